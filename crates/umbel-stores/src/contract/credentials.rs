//! The contract of a credential store.

use serde_json::json;
use umbel_core::{Credential, ErrorKind};

use super::{Credentials, fresh_app, later, now, odd_names, odd_value, refused};

pub async fn a_credential_is_read_back_and_replaced(store: &Credentials) {
    let app = fresh_app();
    assert_eq!(store.load(&app, "ann", "mail").await.unwrap(), None);
    for secret in [json!("one"), json!({"token": "two"}), odd_value()] {
        store.save(&app, "ann", "mail", Credential::new(secret.clone())).await.unwrap();
        assert_eq!(store.load(&app, "ann", "mail").await.unwrap().unwrap().expose(), &secret);
    }
}

pub async fn credentials_are_their_users_alone(store: &Credentials) {
    let (a, b) = (fresh_app(), fresh_app());
    store.save(&a, "ann", "mail", Credential::new("ann's")).await.unwrap();
    store.save(&a, "bob", "mail", Credential::new("bob's")).await.unwrap();
    assert_eq!(store.load(&a, "ann", "mail").await.unwrap(), Some(Credential::new("ann's")));
    for (app, user, name) in [(&b, "ann", "mail"), (&a, "Ann", "mail"), (&a, "ann", "Mail"), (&a, "ann", "")]
    {
        assert_eq!(store.load(app, user, name).await.unwrap(), None);
    }
}

pub async fn a_deleted_credential_is_gone(store: &Credentials) {
    let app = fresh_app();
    store.delete(&app, "ann", "never").await.unwrap();
    for name in ["mail", "chat"] {
        store.save(&app, "ann", name, Credential::new(name)).await.unwrap();
    }
    store.delete(&app, "ann", "mail").await.unwrap();
    assert_eq!(store.load(&app, "ann", "mail").await.unwrap(), None);
    assert_eq!(store.load(&app, "ann", "chat").await.unwrap(), Some(Credential::new("chat")));
}

pub async fn odd_credential_names_and_values_are_kept(store: &Credentials) {
    let app = fresh_app();
    for name in odd_names() {
        store.save(&app, &name, &name, Credential::new(name.clone())).await.unwrap();
    }
    for name in odd_names() {
        assert_eq!(store.load(&app, &name, &name).await.unwrap(), Some(Credential::new(name)));
    }
    store.save(&app, "ann", "long", Credential::new("x\0".repeat(100_000))).await.unwrap();
    let long = store.load(&app, "ann", "long").await.unwrap().unwrap();
    assert_eq!(long.expose().as_str().map(str::len), Some(200_000));
}

pub async fn a_nul_in_a_credential_name_is_refused(store: &Credentials) {
    let app = fresh_app();
    for (user, name) in [("ann", "a\0b"), ("a\0", "mail")] {
        refused(store.save(&app, user, name, Credential::new("x")).await, ErrorKind::InvalidInput);
    }
}

pub async fn credentials_of_an_erased_user_are_gone(store: &Credentials) {
    let (a, b) = (fresh_app(), fresh_app());
    for (app, user, name) in
        [(&a, "ann", "mail"), (&a, "ann", "bank"), (&a, "bob", "mail"), (&b, "ann", "mail")]
    {
        store.save(app, user, name, Credential::new("s3cret")).await.unwrap();
    }
    assert_eq!(store.erase_user(&a, "ann").await.unwrap(), 2);
    for (app, user, name, there) in [
        (&a, "ann", "mail", false),
        (&a, "ann", "bank", false),
        (&a, "bob", "mail", true),
        (&b, "ann", "mail", true),
    ] {
        assert_eq!(store.load(app, user, name).await.unwrap().is_some(), there, "{user} {name}");
    }
    assert_eq!(store.erase_user(&a, "ann").await.unwrap(), 0);
}

pub async fn old_credentials_go(store: &Credentials) {
    let (app, other) = (fresh_app(), fresh_app());
    for (app, name) in [(&app, "old"), (&app, "renewed"), (&other, "old")] {
        store.save(app, "ann", name, Credential::new("1")).await.unwrap();
    }
    assert_eq!(store.delete_older_than(&app, now() - 60.0).await.unwrap(), 0);
    let time = later().await;
    store.save(&app, "ann", "renewed", Credential::new("2")).await.unwrap();
    assert_eq!(store.delete_older_than(&app, time).await.unwrap(), 1);
    assert_eq!(store.load(&app, "ann", "old").await.unwrap(), None);
    assert_eq!(store.load(&app, "ann", "renewed").await.unwrap(), Some(Credential::new("2")));
    assert!(store.load(&other, "ann", "old").await.unwrap().is_some(), "another app has its own ages");
}
