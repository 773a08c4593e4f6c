//! Credentials when something else goes wrong: services that cannot be reached, answers that come to nothing, several
//! runners, and what is left in the store.

use std::sync::Arc;

use serde_json::{Value, json};
use umbel::{
    Answer, AuthAnswer, AuthConfig, AuthMethod, AuthRequest, Content, Credential, CredentialStore, Error,
    ErrorKind, Handler, HttpAuth, InMemoryCredentials, LlmAgent, Parallel, PlainAuth, Result, Run, Runner,
    ScriptedModel, StandIn, Standing, Work, handler,
};

use crate::credentials::{Chest, Failure, Service, back, locked, runner, sender};
use crate::desk::{Desk, WAYS, Way};
use crate::support::{Notes, call_with_id, calls, read};

/// A token that must be renewed at the time 95.
fn old() -> Credential {
    Credential::new(json!({"token": "old", "until": 100.0}))
}

#[tokio::test]
async fn a_toolset_whose_service_cannot_be_reached_is_done_without() {
    let (service, notes) = (Service::default(), Notes::default());
    let model = ScriptedModel::new("m").recorded().text("without").text("with");
    let toolset = Chest { auth: service.auth(), notes: notes.clone() };
    let (secrets, clock, make) = runner(LlmAgent::new("a").model(model.clone()).toolset(toolset));
    secrets.save("app", "ann", "mail", old()).await.unwrap();
    clock.set(95.0);
    let desk = Desk::new(Way::Hot, make).await;
    service.fail(Failure::Says("mail does not answer"));
    let seen = desk.say("go").await;
    seen.assert_finished();
    assert!(model.requests()[0].tools.is_empty());
    assert!(model.requests()[0].instruction.text().contains("mail does not answer"));
    // Who looks at what was asked renews nothing.
    let event = seen.whole()[0].id.clone();
    assert!(desk.runner().request_before(&desk.key, &event).await.unwrap().tools.is_empty());
    assert_eq!(service.notes.all(), ["renews old"]);
    desk.say("and now?").await.assert_finished();
    assert_eq!(model.requests()[1].tools.len(), 1);
}

#[tokio::test]
async fn runners_of_one_process_renew_once_together() {
    let (service, notes) = (Service { slow: true, ..Service::default() }, Notes::default());
    let secrets = Arc::new(InMemoryCredentials::new());
    let expired = Credential::new(json!({"token": "old", "until": 1.0}));
    secrets.save("app", "ann", "mail", expired).await.unwrap();
    let run = async || {
        let (_, agent) = sender(&service, &notes);
        let runner = Runner::builder("app", agent).credentials(secrets.clone()).build().unwrap();
        let key = runner.create_session("ann").await.unwrap().key;
        read(runner.run(&key, "go")).await.assert_finished();
    };
    tokio::join!(run(), run());
    assert_eq!(service.notes.all(), ["renews old"]);
    assert_eq!(notes.all(), ["send Bearer token-1"; 2]);
}

/// A service that takes its time to say that it cannot be reached.
#[derive(Clone, Debug, Default)]
struct OutOfOrder(Notes);

impl AuthMethod for OutOfOrder {
    fn scheme(&self) -> Value {
        json!({"type": "openIdConnect"})
    }

    fn standing(&self, _kept: Option<&Credential>, _now: f64) -> Standing {
        Standing::Ask
    }

    fn http(&self, _credential: &Credential) -> Option<HttpAuth> {
        None
    }

    fn ask(&self, _now: f64) -> Work<'_, Result<AuthRequest>> {
        self.0.add("asked");
        Work::later(async {
            tokio::task::yield_now().await;
            Err(Error::new(ErrorKind::Timeout, "no answer within 30 s"))
        })
    }

    fn exchange<'a>(&'a self, _answer: AuthAnswer, _now: f64) -> Work<'a, Result<Credential>> {
        unreachable!("nobody was asked")
    }
}

#[tokio::test]
async fn a_service_that_cannot_be_reached_is_asked_once_for_the_calls_of_a_batch() {
    let (service, notes) = (OutOfOrder::default(), Notes::default());
    let batch = ["c1", "c2", "c3"].map(|id| call_with_id(id, "send", json!({})));
    let model = ScriptedModel::new("m").response(calls(batch)).text("a pity");
    let auth = AuthConfig::new("mail", service.clone());
    let (_, _, make) = runner(LlmAgent::new("a").model(model).tool(locked("send", auth, &notes)));
    let desk = Desk::new(Way::Hot, make).await;
    let told = desk.say("go").await.responses();
    assert_eq!(told.len(), 3);
    assert!(told.iter().all(|told| told["error"].as_str().unwrap().contains("no answer")), "{told:?}");
    assert_eq!(service.0.all(), ["asked"]);
}

/// Refuses what people say once it knows that they answer.
struct Refuses;

#[handler]
impl Handler for Refuses {
    fn name(&self) -> &str {
        "refuses"
    }

    fn on_input(&self, _run: &Run, input: Arc<Content>) -> Result<Arc<Content>> {
        match input.has_responses() {
            true => Err(Error::new(ErrorKind::InvalidInput, "not today")),
            false => Ok(input),
        }
    }
}

#[tokio::test]
async fn an_answer_that_is_not_taken_leaves_its_secret_nowhere() {
    let (service, notes) = (Service::default(), Notes::default());
    let (_, agent) = sender(&service, &notes);
    let (secrets, _, make) = runner(agent);
    let desk = Desk::new(Way::Hot, move || make().handler(Refuses)).await;
    desk.say("go").await;
    let asked = desk.only().await;
    let seen = desk.answer([(&asked, back(&asked, "c"))]).await;
    assert_eq!(seen.kind(), ErrorKind::InvalidInput);
    assert_eq!(desk.only().await, asked, "it can be answered once more");
    // What the question needs, and the secret that digests are made with.
    assert_eq!(secrets.erase_user("app", "ann").await.unwrap(), 2);
}

#[tokio::test]
async fn questions_that_are_closed_leave_nothing_behind() {
    for way in WAYS {
        let (service, notes) = (Service::default(), Notes::default());
        let (_, agent) = sender(&service, &notes);
        let (secrets, _, make) = runner(agent);
        let desk = Desk::new(way, make).await;
        desk.say("go").await;
        desk.answer_only(Answer::reject()).await.assert_finished();
        assert_eq!(secrets.erase_user("app", "ann").await.unwrap(), 0, "{way:?}");
    }
    let (service, notes) = (Service::default(), Notes::default());
    let secrets = Arc::new(InMemoryCredentials::new());
    let agent = |name: &'static str| {
        let model = ScriptedModel::new(name).call("send", json!({})).text("done");
        LlmAgent::new(name).model(model).tool(locked("send", service.auth(), &notes))
    };
    let both = Parallel::new("p").agent(agent("a")).agent(agent("b"));
    let runner = Runner::builder("app", both).credentials(secrets.clone()).build().unwrap();
    let key = runner.create_session("ann").await.unwrap().key;
    let asked = read(runner.run(&key, "go")).await.interrupts()[0].clone();
    read(runner.resume(&key, [(&asked, back(&asked, "c"))])).await.assert_finished();
    // The credential, and the secret that digests are made with.
    assert_eq!(secrets.erase_user("app", "ann").await.unwrap(), 2);
}

#[tokio::test]
async fn calls_that_wait_for_the_same_credential_all_say_so() {
    let (service, notes) = (Service::default(), Notes::default());
    let batch = ["c1", "c2"].map(|id| call_with_id(id, "send", json!({})));
    let model = ScriptedModel::new("m").response(calls(batch)).text("done");
    let agent = LlmAgent::new("a").model(model).tool(locked("send", service.auth(), &notes));
    let (_, _, make) = runner(agent);
    let desk = Desk::new(Way::Hot, make).await;
    let seen = desk.say("go").await;
    let told = seen.responses();
    assert_eq!(told.len(), 2);
    assert!(
        told.iter().all(|told| told["error"].as_str().unwrap().contains("give the credential")),
        "{told:?}"
    );
}

/// Stands in the place of nobody.
struct Nobody;

impl StandIn for Nobody {}

#[tokio::test]
async fn what_people_give_is_taken_out_where_others_stand_in_the_place_of_tools_too() {
    let notes = Notes::default();
    let auth = AuthConfig::new("key", PlainAuth::bearer());
    let model = ScriptedModel::new("m").call("send", json!({})).text("done");
    let (_, _, make) = runner(LlmAgent::new("a").model(model).tool(locked("send", auth, &notes)));
    let desk = Desk::new(Way::Hot, move || make().stand_in(Nobody)).await;
    desk.say("go").await;
    desk.answer_only(Answer::input("c4n4ry")).await.assert_finished();
    assert_eq!(notes.all(), ["send Bearer c4n4ry"]);
    let log = format!("{:?}", desk.log().await);
    assert!(!log.contains("c4n4ry"), "{log}");
}
