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
        let replaced = store.replace(&app, user, name, None, Some(Credential::new("x"))).await;
        refused(replaced, ErrorKind::InvalidInput);
    }
}

pub async fn a_credential_is_replaced_only_if_it_is_the_one_that_was_read(store: &Credentials) {
    let app = fresh_app();
    let secret = |text: &str| Some(Credential::new(json!({"token": text})));
    let (one, two, three) = (secret("one"), secret("two"), secret("three"));
    for (before, after, is_replaced, there) in [
        (&one, &two, false, &None),
        (&None, &one, true, &one),
        (&None, &two, false, &one),
        (&two, &three, false, &one),
        (&two, &None, false, &one),
        (&one, &two, true, &two),
        // Who does not know whether it was done asks again.
        (&one, &two, true, &two),
        (&two, &two, true, &two),
        (&one, &None, false, &two),
        (&two, &None, true, &None),
        (&two, &None, true, &None),
        (&None, &None, true, &None),
    ] {
        let replaced = store.replace(&app, "ann", "mail", before.as_ref(), after.clone()).await.unwrap();
        assert_eq!(replaced, is_replaced, "{before:?} {after:?}");
        assert_eq!(&store.load(&app, "ann", "mail").await.unwrap(), there);
    }
    store.save(&app, "bob", "mail", Credential::new("bob's")).await.unwrap();
    assert!(store.replace(&app, "ann", "mail", None, one).await.unwrap(), "each has their own");
    assert_eq!(store.load(&app, "bob", "mail").await.unwrap(), Some(Credential::new("bob's")));
}

pub async fn of_many_who_replace_a_credential_at_once_one_does(store: &Credentials) {
    let (app, many) = (fresh_app(), 8);
    let mut before = None;
    // First there is none, then there is one, and then it is taken away.
    for round in ["made", "changed", "gone"] {
        let after = |number: i32| match round {
            "gone" => (number == 0).then(|| Credential::new("nobody's")),
            _ => Some(Credential::new(json!([round, number]))),
        };
        let all = (0..many).map(|number| store.replace(&app, "ann", "mail", before.as_ref(), after(number)));
        let replaced = futures::future::join_all(all).await;
        let there = store.load(&app, "ann", "mail").await.unwrap();
        for (number, replaced) in (0..many).zip(replaced) {
            assert_eq!(replaced.unwrap(), after(number) == there, "{round} {number}");
        }
        assert_ne!(there, before, "{round}");
        before = there;
    }
}

pub async fn a_replaced_credential_is_as_new_as_a_saved_one(store: &Credentials) {
    let app = fresh_app();
    let (one, two) = (Credential::new("1"), Credential::new("2"));
    store.save(&app, "ann", "renewed", one.clone()).await.unwrap();
    let time = later().await;
    assert!(store.replace(&app, "ann", "renewed", Some(&one), Some(two)).await.unwrap());
    assert!(store.replace(&app, "ann", "made", None, Some(one)).await.unwrap());
    assert_eq!(store.delete_older_than(&app, time).await.unwrap(), 0);
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
