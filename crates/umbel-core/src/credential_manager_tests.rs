//! What becomes of credentials when work on them is cut short.

use std::sync::atomic::{AtomicUsize, Ordering};

use futures::FutureExt;
use serde_json::json;
use tokio::sync::Notify;

use super::*;
use crate::auth::{AuthMethod, HttpAuth};
use crate::work::Work;

const WHOSE: Whose<'static> = ("app", "user");

/// A service that answers when it is told to, and knows each token and code once.
#[derive(Clone, Debug, Default)]
struct Service {
    go_on: Arc<Notify>,
    asked: Arc<AtomicUsize>,
    /// What another process saves meanwhile, before the service says no, or after that time.
    other: Option<(CredentialManager, Option<Duration>, Credential)>,
}

fn token(number: usize) -> Credential {
    Credential::new(json!({"token": number}))
}

/// The old token must be renewed, any other one is good.
fn old() -> Credential {
    token(0)
}

impl AuthMethod for Service {
    fn scheme(&self) -> Value {
        json!({})
    }

    fn standing(&self, kept: Option<&Credential>, _now: f64) -> Standing {
        match kept.map(|kept| kept.expose().get("token") == Some(&json!(0))) {
            None => Standing::Ask,
            Some(true) => Standing::Renew,
            Some(false) => Standing::Ready,
        }
    }

    fn http(&self, _credential: &Credential) -> Option<HttpAuth> {
        None
    }

    fn renew<'a>(&'a self, _kept: Option<&'a Credential>, _now: f64) -> Work<'a, Result<Option<Credential>>> {
        Work::later(async {
            let number = self.asked.fetch_add(1, Ordering::SeqCst) + 1;
            self.go_on.notified().await;
            let Some((manager, after, saved)) = self.other.clone() else { return Ok(Some(token(number))) };
            let save = async move { manager.save(WHOSE, "late", saved).await.unwrap() };
            match after {
                None => save.await,
                Some(time) => drop(tokio::spawn(tokio::time::sleep(time).then(|()| save))),
            }
            Ok(None)
        })
    }

    fn exchange<'a>(&'a self, answer: AuthAnswer, _now: f64) -> Work<'a, Result<Credential>> {
        assert_eq!(answer.pending, json!("verifier"));
        Work::later(async {
            let number = self.asked.fetch_add(1, Ordering::SeqCst) + 1;
            self.go_on.notified().await;
            Ok(token(number))
        })
    }
}

/// A question that was answered.
async fn answered(manager: &CredentialManager) -> GivenAuth {
    let expects = Expects::Fields { names: Vec::new(), ascii: false };
    let pending = PendingAuth { expects, pending: json!("verifier") };
    manager.keep_pending(WHOSE, &"q".into(), &pending).await.unwrap();
    let given = GivenAuth { credential_key: "mail".into(), question: "q".into(), answer_digest: "d".into() };
    manager.keep_given(WHOSE, &given, json!({"code": "c"})).await.unwrap();
    given
}

#[tokio::test]
async fn a_renewal_goes_on_when_who_wanted_it_is_stopped_and_the_next_one_gets_it() {
    let (manager, service) = (CredentialManager::default(), Service::default());
    let auth = AuthConfig::new("renewed", service.clone());
    manager.save(WHOSE, "renewed", old()).await.unwrap();
    {
        let turn = turn(WHOSE, &auth.credential).await;
        let of = Of { whose: WHOSE, auth: &auth, now: 0.0, turn: &turn };
        assert!(Box::pin(manager.ready(&of)).now_or_never().is_none());
    }
    assert!(Box::pin(turn(WHOSE, &auth.credential)).now_or_never().is_none(), "it is being worked on");
    service.go_on.notify_one();
    let turn = turn(WHOSE, &auth.credential).await;
    let of = Of { whose: WHOSE, auth: &auth, now: 0.0, turn: &turn };
    assert_eq!(manager.ready(&of).await.unwrap().unwrap().credential(), &token(1));
    assert_eq!(service.asked.load(Ordering::SeqCst), 1);
}

#[tokio::test]
async fn a_code_is_redeemed_to_the_end_when_who_wanted_it_is_stopped() {
    let (manager, service) = (CredentialManager::default(), Service::default());
    let auth = AuthConfig::new("redeemed", service.clone());
    let given = answered(&manager).await;
    {
        let turn = turn(WHOSE, &auth.credential).await;
        let of = Of { whose: WHOSE, auth: &auth, now: 0.0, turn: &turn };
        assert!(Box::pin(manager.exchange(&of, &given)).now_or_never().is_none());
    }
    service.go_on.notify_one();
    let turn = turn(WHOSE, &auth.credential).await;
    let of = Of { whose: WHOSE, auth: &auth, now: 0.0, turn: &turn };
    assert!(manager.exchange(&of, &given).await.unwrap().is_none(), "it was used");
    assert_eq!(manager.ready(&of).await.unwrap().unwrap().credential(), &token(1));
    assert_eq!(service.asked.load(Ordering::SeqCst), 1);
}

/// A store that fails once, when something is saved or deleted there.
#[derive(Debug)]
struct Fails {
    store: InMemoryCredentials,
    at: Mutex<Option<(&'static str, &'static str)>>,
}

impl Fails {
    fn check(&self, what: &'static str, name: &str) -> Result<()> {
        let mut at = self.at.lock().unwrap();
        match at.take_if(|(when, place)| *when == what && name.starts_with(*place)) {
            Some(_) => Err(Error::new(ErrorKind::Other, "the process ends here")),
            None => Ok(()),
        }
    }
}

impl CredentialStore for Fails {
    fn save<'a>(
        &'a self,
        app: &'a str,
        user: &'a str,
        name: &'a str,
        new: Credential,
    ) -> Work<'a, Result<()>> {
        match self.check("save", name) {
            Ok(()) => self.store.save(app, user, name, new),
            Err(error) => Work::done(Err(error)),
        }
    }

    fn load<'a>(
        &'a self,
        app: &'a str,
        user: &'a str,
        name: &'a str,
    ) -> Work<'a, Result<Option<Credential>>> {
        self.store.load(app, user, name)
    }

    fn delete<'a>(&'a self, app: &'a str, user: &'a str, name: &'a str) -> Work<'a, Result<()>> {
        match self.check("delete", name) {
            Ok(()) => self.store.delete(app, user, name),
            Err(error) => Work::done(Err(error)),
        }
    }

    fn erase_user<'a>(&'a self, app: &'a str, user: &'a str) -> Work<'a, Result<u64>> {
        self.store.erase_user(app, user)
    }

    fn delete_older_than<'a>(&'a self, app: &'a str, time: f64) -> Work<'a, Result<u64>> {
        self.store.delete_older_than(app, time)
    }
}

#[tokio::test]
async fn what_a_code_was_redeemed_for_is_used_by_who_comes_after_a_process_that_ended() {
    for at in [("save", "ended"), ("delete", "_given/"), ("delete", "_asked/")] {
        let store = Arc::new(Fails { store: InMemoryCredentials::new(), at: Mutex::new(None) });
        let (manager, service) = (CredentialManager::new(store.clone()), Service::default());
        let auth = AuthConfig::new("ended", service.clone());
        let given = answered(&manager).await;
        manager.save(WHOSE, "ended", old()).await.unwrap();
        *store.at.lock().unwrap() = Some(at);
        let turn = turn(WHOSE, &auth.credential).await;
        let of = Of { whose: WHOSE, auth: &auth, now: 0.0, turn: &turn };
        service.go_on.notify_one();
        manager.exchange(&of, &given).await.unwrap_err();
        let again = manager.exchange(&of, &given).await.unwrap();
        assert!(again.is_none_or(|grant| *grant.credential() == token(1)), "{at:?}");
        assert_eq!(manager.ready(&of).await.unwrap().unwrap().credential(), &token(1), "{at:?}");
        assert_eq!(service.asked.load(Ordering::SeqCst), 1, "{at:?}: a code is redeemed once");
        assert!(manager.exchange(&of, &given).await.unwrap().is_none());
    }
}

#[tokio::test]
async fn what_another_process_saved_is_waited_for_and_not_deleted() {
    let not_good = Credential::new(json!({"token": 0, "of": "another process"}));
    for (after, saved, found) in
        [(None, token(7), true), (Some(LOOK_AGAIN / 2), token(7), true), (None, not_good, false)]
    {
        let manager = CredentialManager::default();
        let service = Service { other: Some((manager.clone(), after, saved.clone())), ..Service::default() };
        let auth = AuthConfig::new("late", service.clone());
        let turn = turn(WHOSE, &auth.credential).await;
        let of = Of { whose: WHOSE, auth: &auth, now: 0.0, turn: &turn };
        manager.save(WHOSE, "late", old()).await.unwrap();
        service.go_on.notify_one();
        let refused = Grant::new(&service, old());
        let other = manager.refused(&of, &refused).await.unwrap();
        assert_eq!(other.is_some_and(|grant| *grant.credential() == saved), found);
        assert_eq!(
            manager.load(WHOSE, "late").await.unwrap(),
            Some(saved),
            "only what was refused is deleted"
        );
    }
    // Nobody else was there.
    let manager = CredentialManager::default();
    let elsewhere = (CredentialManager::default(), None, old());
    let service = Service { other: Some(elsewhere), ..Service::default() };
    let auth = AuthConfig::new("late", service.clone());
    let turn = turn(WHOSE, &auth.credential).await;
    let of = Of { whose: WHOSE, auth: &auth, now: 0.0, turn: &turn };
    manager.save(WHOSE, "late", old()).await.unwrap();
    service.go_on.notify_one();
    assert!(manager.refused(&of, &Grant::new(&service, old())).await.unwrap().is_none());
    assert_eq!(manager.load(WHOSE, "late").await.unwrap(), None);
}
