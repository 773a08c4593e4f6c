//! What becomes of credentials when work on them is cut short, and when several processes work on them.

use std::sync::atomic::{AtomicUsize, Ordering};

use futures::FutureExt;
use serde_json::json;
use tokio::sync::Notify;

use super::*;
use crate::auth::{AuthMethod, HttpAuth};
use crate::credential_turn::{self, SILENCE};
use crate::work::Work;

const WHOSE: Whose<'static> = ("app", "user");

/// A service that answers when it is told to, and knows each token and code once.
#[derive(Clone, Debug, Default)]
struct Service {
    go_on: Arc<Notify>,
    asked: Arc<AtomicUsize>,
    /// It knows nothing of refresh tokens.
    says_no: bool,
    /// It is out of order.
    fails: bool,
    /// What was given up.
    revoked: Arc<Mutex<Vec<Credential>>>,
}

impl Service {
    fn asked(&self) -> usize {
        self.asked.load(Ordering::SeqCst)
    }
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
            if self.fails {
                return Err(Error::new(ErrorKind::Timeout, "no answer"));
            }
            Ok((!self.says_no).then(|| token(number)))
        })
    }

    fn revoke<'a>(&'a self, kept: &'a Credential, _now: f64) -> Work<'a, Result<()>> {
        self.revoked.lock().unwrap().push(kept.clone());
        Work::done(Ok(()))
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
        let turn = manager.turns.take(WHOSE, &auth.credential).await;
        let of = Of { whose: WHOSE, auth: &auth, now: 0.0, turn: &turn };
        assert!(Box::pin(manager.ready(&of)).now_or_never().is_none());
    }
    assert!(
        Box::pin(manager.turns.take(WHOSE, &auth.credential)).now_or_never().is_none(),
        "it is being worked on"
    );
    service.go_on.notify_one();
    let turn = manager.turns.take(WHOSE, &auth.credential).await;
    let of = Of { whose: WHOSE, auth: &auth, now: 0.0, turn: &turn };
    assert_eq!(manager.ready(&of).await.unwrap().unwrap().credential(), &token(1));
    assert_eq!(service.asked(), 1);
}

#[tokio::test]
async fn a_code_is_redeemed_to_the_end_when_who_wanted_it_is_stopped() {
    let (manager, service) = (CredentialManager::default(), Service::default());
    let auth = AuthConfig::new("redeemed", service.clone());
    let given = answered(&manager).await;
    {
        let turn = manager.turns.take(WHOSE, &auth.credential).await;
        let of = Of { whose: WHOSE, auth: &auth, now: 0.0, turn: &turn };
        assert!(Box::pin(manager.exchange(&of, &given)).now_or_never().is_none());
    }
    service.go_on.notify_one();
    let turn = manager.turns.take(WHOSE, &auth.credential).await;
    let of = Of { whose: WHOSE, auth: &auth, now: 0.0, turn: &turn };
    assert!(manager.exchange(&of, &given).await.unwrap().is_none(), "it was used");
    assert_eq!(manager.ready(&of).await.unwrap().unwrap().credential(), &token(1));
    assert_eq!(service.asked(), 1);
}

/// A store that fails once, when something is saved, replaced or deleted there. Or all of a user's is erased just before
/// something is saved.
#[derive(Debug, Default)]
struct Fails {
    store: InMemoryCredentials,
    at: Mutex<Option<(&'static str, &'static str)>>,
    /// Its only connection.
    connection: tokio::sync::Mutex<()>,
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
        if self.check("erase", name).is_err() {
            self.store.erase_user(app, user).now_or_never().unwrap().unwrap();
        }
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

    fn replace<'a>(
        &'a self,
        app: &'a str,
        user: &'a str,
        name: &'a str,
        before: Option<&'a Credential>,
        after: Option<Credential>,
    ) -> Work<'a, Result<bool>> {
        match self.check("replace", name) {
            Ok(()) => Work::later(async move {
                let _connection = self.connection.lock().await;
                self.store.replace(app, user, name, before, after).await
            }),
            Err(error) => Work::done(Err(error)),
        }
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
        let store = Arc::new(Fails::default());
        let (manager, service) = (CredentialManager::new(store.clone()), Service::default());
        let auth = AuthConfig::new("ended", service.clone());
        let given = answered(&manager).await;
        manager.save(WHOSE, "ended", old()).await.unwrap();
        *store.at.lock().unwrap() = Some(at);
        let turn = manager.turns.take(WHOSE, &auth.credential).await;
        let of = Of { whose: WHOSE, auth: &auth, now: 0.0, turn: &turn };
        service.go_on.notify_one();
        manager.exchange(&of, &given).await.unwrap_err();
        let again = manager.exchange(&of, &given).await.unwrap();
        assert!(again.is_none_or(|grant| *grant.credential() == token(1)), "{at:?}");
        assert_eq!(manager.ready(&of).await.unwrap().unwrap().credential(), &token(1), "{at:?}");
        assert_eq!(service.asked(), 1, "{at:?}: a code is redeemed once");
        assert!(manager.exchange(&of, &given).await.unwrap().is_none());
    }
}

#[tokio::test(start_paused = true)]
async fn what_a_service_gave_is_not_lost_when_the_store_fails() {
    let store = Arc::new(Fails::default());
    let (manager, service) = (CredentialManager::new(store.clone()), Service::default());
    manager.save(WHOSE, "mail", old()).await.unwrap();
    *store.at.lock().unwrap() = Some(("replace", "mail"));
    service.go_on.notify_one();
    assert_eq!(wanted(&manager, &service, None).await, Some(token(1)));
    assert_eq!(manager.load(WHOSE, "mail").await.unwrap(), Some(token(1)));

    let given = answered(&manager).await;
    *store.at.lock().unwrap() = Some(("replace", "_given/"));
    let auth = AuthConfig::new("mail", service.clone());
    let turn = manager.turns.take(WHOSE, &auth.credential).await;
    let of = Of { whose: WHOSE, auth: &auth, now: 0.0, turn: &turn };
    service.go_on.notify_one();
    assert_eq!(manager.exchange(&of, &given).await.unwrap().unwrap().credential(), &token(2));
    assert_eq!(service.asked(), 2, "each was used once");
    assert!(store.at.lock().unwrap().is_none(), "the store failed");
}

/// Processes that share a store, each with a manager of its own.
fn processes<const N: usize>() -> [CredentialManager; N] {
    let store = Arc::new(InMemoryCredentials::new());
    std::array::from_fn(|_| CredentialManager::new(store.clone()))
}

/// What comes of work that must not hang.
async fn in_time<T>(work: impl Future<Output = T>) -> T {
    tokio::time::timeout(SILENCE * 10, work).await.expect("nobody waits for ever")
}

/// What a process gets that wants the credential, and was refused with what it had.
async fn wanted(
    manager: &CredentialManager,
    service: &Service,
    refused: Option<Credential>,
) -> Option<Credential> {
    let auth = AuthConfig::new("mail", service.clone());
    let turn = manager.turns.take(WHOSE, &auth.credential).await;
    let of = Of { whose: WHOSE, auth: &auth, now: 0.0, turn: &turn };
    let grant = match refused {
        None => manager.ready(&of).await.unwrap(),
        Some(refused) => manager.renew(&of, Some(&Grant::new(service, refused))).await.unwrap(),
    };
    grant.map(|grant| grant.credential().clone())
}

#[tokio::test(start_paused = true)]
async fn of_two_processes_one_renews_and_the_other_takes_what_came_of_it() {
    for refused in [None, Some(old())] {
        let ([one, other], service) = (processes(), Service::default());
        one.save(WHOSE, "mail", old()).await.unwrap();
        let both = async {
            tokio::join!(wanted(&one, &service, refused.clone()), wanted(&other, &service, refused))
        };
        // It takes longer than any process may be silent.
        let served = tokio::time::sleep(SILENCE * 3).then(|()| async { service.go_on.notify_one() });
        let (got, ()) = in_time(async { tokio::join!(both, served) }).await;
        assert_eq!(got, (Some(token(1)), Some(token(1))));
        assert_eq!(service.asked(), 1);
        assert_eq!(
            one.load(WHOSE, &credential_turn::place("mail")).await.unwrap(),
            None,
            "nobody is at work"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn work_that_has_the_only_connection_of_a_store_comes_to_its_end() {
    let store = Fails::default();
    let work = async {
        let _connection = store.connection.lock().await;
        tokio::time::sleep(SILENCE).await;
        Ok(())
    };
    in_time(alone(&store, WHOSE, "mail", work)).await.unwrap();
    let mark = store.load(WHOSE.0, WHOSE.1, &credential_turn::place("mail")).await.unwrap();
    assert_eq!(mark, None, "nobody is at work");
}

#[tokio::test(start_paused = true)]
async fn who_ended_at_work_is_waited_for_a_while() {
    let ([one, other], service) = (processes(), Service::default());
    one.save(WHOSE, "mail", old()).await.unwrap();
    let ended = alone(&*one.store, WHOSE, "mail", std::future::pending::<Result<()>>());
    assert!(Box::pin(ended).now_or_never().is_none());
    service.go_on.notify_one();
    let begun = tokio::time::Instant::now();
    assert_eq!(wanted(&other, &service, None).await, Some(token(1)));
    assert!((SILENCE..SILENCE * 2).contains(&begun.elapsed()), "{:?}", begun.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_service_that_hangs_is_asked_once_for_all_who_want_it_at_the_same_time() {
    let (manager, service) = (CredentialManager::default(), Service { fails: true, ..Service::default() });
    let auth = AuthConfig::new("mail", service.clone());
    manager.save(WHOSE, "mail", old()).await.unwrap();
    let want = async || {
        let turn = manager.turns.take(WHOSE, &auth.credential).await;
        let of = Of { whose: WHOSE, auth: &auth, now: 0.0, turn: &turn };
        manager.ready(&of).await.unwrap_err().message().to_owned()
    };
    for times in 1..=2 {
        // Who comes later tries again.
        let served = tokio::time::sleep(SILENCE).then(|()| async { service.go_on.notify_one() });
        let (first, second, third, ()) =
            in_time(async { tokio::join!(want(), want(), want(), served) }).await;
        assert_eq!([first, second, third], ["no answer"; 3]);
        assert_eq!(service.asked(), times);
    }
}

#[tokio::test]
async fn a_renewal_brings_nothing_back_that_was_given_up_or_signed_in_anew_meanwhile() {
    for (there, got, revoked) in [(None, None, vec![token(1)]), (Some(token(7)), Some(token(7)), Vec::new())]
    {
        let ([one, other], service) = (processes(), Service::default());
        one.save(WHOSE, "mail", old()).await.unwrap();
        let mut renewal = Box::pin(wanted(&one, &service, None));
        assert!(renewal.as_mut().now_or_never().is_none());
        match &there {
            None => assert_eq!(other.store.erase_user(WHOSE.0, WHOSE.1).await.unwrap(), 2),
            Some(new) => other.save(WHOSE, "mail", new.clone()).await.unwrap(),
        }
        service.go_on.notify_one();
        assert_eq!(renewal.await, got);
        assert_eq!(one.load(WHOSE, "mail").await.unwrap(), there);
        assert_eq!(*service.revoked.lock().unwrap(), revoked, "what nobody keeps is given up");
    }
}

#[tokio::test]
async fn what_a_code_was_redeemed_for_is_given_up_if_its_user_was_erased_meanwhile() {
    let ([one, other], service) = (processes(), Service::default());
    let auth = AuthConfig::new("mail", service.clone());
    let given = answered(&one).await;
    let turn = one.turns.take(WHOSE, &auth.credential).await;
    let of = Of { whose: WHOSE, auth: &auth, now: 0.0, turn: &turn };
    let mut exchange = Box::pin(one.exchange(&of, &given));
    assert!(exchange.as_mut().now_or_never().is_none());
    other.store.erase_user(WHOSE.0, WHOSE.1).await.unwrap();
    service.go_on.notify_one();
    assert!(exchange.await.unwrap().is_none());
    assert_eq!(one.load(WHOSE, "mail").await.unwrap(), None);
    assert_eq!(*service.revoked.lock().unwrap(), [token(1)]);
}

#[tokio::test]
async fn what_a_code_was_redeemed_for_does_not_stay_if_its_user_is_erased_just_before_it_is_saved() {
    let store = Arc::new(Fails::default());
    let (manager, service) = (CredentialManager::new(store.clone()), Service::default());
    let auth = AuthConfig::new("mail", service.clone());
    let given = answered(&manager).await;
    *store.at.lock().unwrap() = Some(("erase", "mail"));
    let turn = manager.turns.take(WHOSE, &auth.credential).await;
    let of = Of { whose: WHOSE, auth: &auth, now: 0.0, turn: &turn };
    service.go_on.notify_one();
    assert!(manager.exchange(&of, &given).await.unwrap().is_none());
    assert_eq!(store.erase_user(WHOSE.0, WHOSE.1).await.unwrap(), 0, "nothing is left");
    assert_eq!(*service.revoked.lock().unwrap(), [token(1)]);
}

#[tokio::test]
async fn an_answer_that_was_used_is_no_work_for_which_others_are_waited_for() {
    let ([one, other], service) = (processes(), Service::default());
    let mut at_work = Box::pin(alone(&*other.store, WHOSE, "mail", std::future::pending::<Result<()>>()));
    assert!(at_work.as_mut().now_or_never().is_none());
    let auth = AuthConfig::new("mail", service);
    let turn = one.turns.take(WHOSE, &auth.credential).await;
    let of = Of { whose: WHOSE, auth: &auth, now: 0.0, turn: &turn };
    let used = GivenAuth { credential_key: "mail".into(), question: "q".into(), answer_digest: "d".into() };
    assert!(Box::pin(one.exchange(&of, &used)).now_or_never().unwrap().unwrap().is_none());
    let given = answered(&one).await;
    assert!(Box::pin(one.exchange(&of, &given)).now_or_never().is_none(), "this one is");
}

#[tokio::test]
async fn only_what_was_refused_is_forgotten() {
    for (meanwhile, left) in [(None, None), (Some(token(7)), Some(token(7)))] {
        let ([one, other], service) = (processes(), Service { says_no: true, ..Service::default() });
        one.save(WHOSE, "mail", old()).await.unwrap();
        let mut renewal = Box::pin(wanted(&one, &service, Some(old())));
        assert!(renewal.as_mut().now_or_never().is_none());
        if let Some(new) = meanwhile {
            other.save(WHOSE, "mail", new).await.unwrap();
        }
        service.go_on.notify_one();
        assert_eq!(renewal.await, left);
        assert_eq!(one.load(WHOSE, "mail").await.unwrap(), left);
    }
}

#[tokio::test(start_paused = true)]
async fn a_credential_is_given_up_after_it_was_renewed_elsewhere() {
    let ([one, other], service) = (processes(), Service::default());
    one.save(WHOSE, "mail", old()).await.unwrap();
    let mut renewal = Box::pin(wanted(&one, &service, None));
    assert!(renewal.as_mut().now_or_never().is_none());
    let auth = AuthConfig::new("mail", service.clone());
    let mut revoked = Box::pin(other.revoke(WHOSE, &auth, 0.0));
    assert!(revoked.as_mut().now_or_never().is_none());
    service.go_on.notify_one();
    let (got, revoked) = in_time(async { tokio::join!(renewal, revoked) }).await;
    revoked.unwrap();
    assert_eq!(got, Some(token(1)));
    assert_eq!(*service.revoked.lock().unwrap(), [token(1)], "the one that counts");
    assert_eq!(other.load(WHOSE, "mail").await.unwrap(), None);
}

#[tokio::test]
async fn processes_that_make_a_secret_of_a_user_at_once_have_the_same() {
    let [one, other]: [CredentialManager; 2] = processes();
    let number = AtomicUsize::new(0);
    // The other process is faster.
    let make = || {
        if number.fetch_add(1, Ordering::SeqCst) == 0 {
            other.save(WHOSE, "_own", token(7)).now_or_never().unwrap().unwrap();
        }
        Ok(token(1))
    };
    assert_eq!(one.own(WHOSE, "_own", make).await.unwrap(), token(7));
    assert_eq!(other.own(WHOSE, "_own", || Ok(token(2))).await.unwrap(), token(7));
}
