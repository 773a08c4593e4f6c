//! Credentials of tools and toolsets: asked for, given, renewed, refused and given up.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::{Value, json};
use umbel::{
    AgentTool, Answer, AuthAnswer, AuthConfig, AuthMethod, AuthRequest, BoxFuture, Clock, Content,
    Credential, CredentialStore, Error, ErrorKind, Expects, FunctionTool, HttpAuth, HttpPlace,
    InMemoryCredentials, Interrupt, LlmAgent, Outcome, Parallel, PlainAuth, Result, Run, Runner,
    RunnerBuilder, ScriptedModel, Sequential, Standing, Tool, Toolset, Work,
};

use crate::desk::{Desk, WAYS};
use crate::recovery::{recover, run_and_die, steps};
use crate::support::{Death, Notes, Spy, answer, call_with_id, calls, outcomes, read, responses};

/// A clock that tests set.
#[derive(Clone, Debug, Default)]
pub(crate) struct SetClock(Arc<Mutex<f64>>);

impl SetClock {
    pub(crate) fn set(&self, now: f64) {
        *self.0.lock().unwrap() = now;
    }
}

impl Clock for SetClock {
    fn now(&self) -> f64 {
        *self.0.lock().unwrap()
    }
}

/// A service that people sign in to: it gives a code for the address that its question shows, tokens for the code, and new
/// tokens for those that are 100 seconds old. It notes what it is asked.
#[derive(Clone, Debug, Default)]
pub(crate) struct Service {
    pub(crate) notes: Notes,
    /// What becomes of the next exchanges and renewals, if not a token.
    pub(crate) failures: Arc<Mutex<VecDeque<Failure>>>,
    /// Renewals wait until they are told to go on.
    pub(crate) slow: bool,
}

#[derive(Clone, Debug)]
pub(crate) enum Failure {
    Says(&'static str),
    Gone,
}

const BACK: &str = "https://app.example/back";

impl Service {
    fn next_failure(&self) -> Option<Failure> {
        self.failures.lock().unwrap().pop_front()
    }

    pub(crate) fn fail(&self, failure: Failure) {
        self.failures.lock().unwrap().push_back(failure);
    }

    fn token(&self, now: f64) -> Credential {
        let number = self.notes.all().len();
        Credential::new(json!({"token": format!("token-{number}"), "until": now + 100.0}))
    }

    pub(crate) fn auth(&self) -> AuthConfig {
        AuthConfig::new("mail", self.clone())
    }
}

impl AuthMethod for Service {
    fn scheme(&self) -> Value {
        json!({"type": "oauth2", "flows": {}})
    }

    fn standing(&self, kept: Option<&Credential>, now: f64) -> Standing {
        match kept.and_then(|kept| kept.expose()["until"].as_f64()) {
            None => Standing::Ask,
            Some(until) if until - 10.0 > now => Standing::Ready,
            Some(_) => Standing::Renew,
        }
    }

    fn http(&self, credential: &Credential) -> Option<HttpAuth> {
        credential.expose()["token"].as_str().map(HttpAuth::bearer)
    }

    fn renew<'a>(&'a self, kept: Option<&'a Credential>, now: f64) -> Work<'a, Result<Option<Credential>>> {
        Work::later(async move {
            self.notes.add(format!("renews {}", kept.unwrap().expose()["token"].as_str().unwrap()));
            if self.slow {
                tokio::task::yield_now().await;
            }
            match self.next_failure() {
                None => Ok(Some(self.token(now))),
                Some(Failure::Gone) => Ok(None),
                Some(Failure::Says(words)) => Err(Error::new(ErrorKind::Timeout, words)),
            }
        })
    }

    fn ask(&self, _now: f64) -> Work<'_, Result<AuthRequest>> {
        self.notes.add("asks");
        let state = format!("s-{}", self.notes.all().len());
        Work::done(Ok(AuthRequest {
            message: "Sign in to mail.".to_owned(),
            shown: json!({"authType": "oauth2", "oauth2": {"authUri": format!("https://id.example/?state={state}"), "state": state}}),
            schema: None,
            expects: Expects::Redirect { uri: BACK.to_owned(), state: state.clone(), issuer: None },
            pending: json!({"verifier": format!("v3rifier-{state}")}),
            expires_in: Some(Duration::from_secs(600)),
        }))
    }

    fn exchange<'a>(&'a self, answer: AuthAnswer, now: f64) -> Work<'a, Result<Credential>> {
        Work::later(async move {
            let state = answer.text("state").unwrap();
            assert_eq!(answer.pending["verifier"], json!(format!("v3rifier-{state}")));
            self.notes.add(format!("exchanges {}", answer.text("code").unwrap()));
            match self.next_failure() {
                None => Ok(self.token(now)),
                Some(Failure::Says(words)) => Err(Error::new(ErrorKind::Timeout, words)),
                Some(Failure::Gone) => unreachable!("an exchange gives a token or fails"),
            }
        })
    }

    fn revoke<'a>(&'a self, kept: &'a Credential, _now: f64) -> Work<'a, Result<()>> {
        self.notes.add(format!("revokes {}", kept.expose()["token"].as_str().unwrap()));
        Work::done(match self.next_failure() {
            Some(Failure::Says(words)) => Err(Error::new(ErrorKind::Timeout, words)),
            _ => Ok(()),
        })
    }
}

/// The address that the browser is sent back to.
pub(crate) fn back(asked: &Interrupt, code: &str) -> Answer {
    let payload = asked.payload.as_ref().unwrap();
    let state = payload["exchangedAuthCredential"]["oauth2"]["state"].as_str().unwrap();
    let mut config = payload.clone();
    config["exchangedAuthCredential"]["oauth2"]["authResponseUri"] =
        json!(format!("{BACK}?code={code}&state={state}"));
    Answer::input(config)
}

/// A tool that needs a credential and says which it got.
pub(crate) fn locked(name: &'static str, auth: AuthConfig, notes: &Notes) -> FunctionTool {
    let (notes, inner) = (notes.clone(), auth.clone());
    let tool = FunctionTool::with_context(name, "", move |cx, _: Value| {
        let (notes, auth) = (notes.clone(), inner.clone());
        Box::pin(async move {
            let grant = cx.credential(&auth).await?;
            notes.add(format!("{name} {}", grant.http().unwrap().expose()));
            Ok(json!({"sent": true}))
        })
    });
    tool.auth(auth)
}

pub(crate) fn sender(service: &Service, notes: &Notes) -> (ScriptedModel, LlmAgent) {
    let model = ScriptedModel::new("m").recorded().call("send", json!({})).text("done");
    (model.clone(), LlmAgent::new("a").model(model).tool(locked("send", service.auth(), notes)))
}

/// Runners of that agent that share a store and a clock.
pub(crate) fn runner(agent: LlmAgent) -> (Arc<InMemoryCredentials>, SetClock, impl Fn() -> RunnerBuilder) {
    let (secrets, clock) = (Arc::new(InMemoryCredentials::new()), SetClock::default());
    let (store, time) = (secrets.clone(), clock.clone());
    let make = move || Runner::builder("app", agent.clone()).credentials(store.clone()).clock(time.clone());
    (secrets, clock, make)
}

#[tokio::test]
async fn a_call_waits_for_its_credential_and_is_made_with_it() {
    for way in WAYS {
        let (service, notes) = (Service::default(), Notes::default());
        let (model, agent) = sender(&service, &notes);
        let (_, _, make) = runner(agent);
        let desk = Desk::new(way, make).await;
        let seen = desk.say("go").await;
        assert!(notes.all().is_empty(), "the tool is not called");
        let asked = desk.only().await;
        assert_eq!(seen.interrupts(), std::slice::from_ref(&asked));
        assert_eq!(
            (asked.reason.as_str(), asked.message.as_deref()),
            ("credential", Some("Sign in to mail."))
        );
        assert_eq!(asked.expires_at, Some(600.0));

        // The log has google-adk's form: the question, then the call's answer for the time being.
        let events = seen.whole();
        let request =
            events.iter().flat_map(|event| event.calls()).find(|call| call.name == "adk_request_credential");
        let request = request.unwrap();
        assert_eq!(request.id.as_ref(), Some(&asked.id));
        let made = events.iter().flat_map(|event| event.calls()).find(|call| call.name == "send").unwrap();
        let call = made.id.clone().unwrap();
        let args = request.args.clone().unwrap();
        assert_eq!(args["functionCallId"], json!(call));
        assert_eq!(args["authConfig"]["credentialKey"], "mail");
        assert_eq!(args["authConfig"]["exchangedAuthCredential"]["oauth2"]["state"], "s-1");
        let actions = events.iter().filter_map(|event| event.actions.as_ref());
        let configs: Vec<_> = actions.filter_map(|actions| actions.requested_auth_configs.clone()).collect();
        assert_eq!(configs.len(), 1);
        assert_eq!(configs[0][call.as_str()], args["authConfig"]);

        let seen = desk.answer([(&asked, back(&asked, "c1"))]).await;
        seen.assert_finished();
        assert_eq!(seen.responses(), [json!({"sent": true})]);
        assert_eq!(service.notes.all(), ["asks", "exchanges c1"]);
        assert_eq!(notes.all(), ["send Bearer token-2"]);
        assert_eq!(model.requests().len(), 2, "{way:?}: the model is asked once the call is made");
        assert!(desk.open().await.is_empty());
    }
}

#[tokio::test]
async fn what_is_kept_is_used_without_asking_and_renewed_before_it_expires() {
    let (service, notes) = (Service::default(), Notes::default());
    let model = ScriptedModel::from_fn("m", |request| {
        let answered = request.contents.last().is_some_and(|content| content.has_responses());
        let response = if answered {
            umbel::Response::text("done")
        } else {
            calls([call_with_id("c", "send", json!({}))])
        };
        vec![Ok(umbel::Chunk::Complete(response))]
    });
    let agent = LlmAgent::new("a").model(model).tool(locked("send", service.auth(), &notes));
    let (_, clock, make) = runner(agent);
    let desk = Desk::new(crate::desk::Way::Hot, make).await;
    desk.say("go").await;
    let asked = desk.only().await;
    desk.answer([(&asked, back(&asked, "c1"))]).await.assert_finished();
    clock.set(50.0);
    desk.say("again").await.assert_finished();
    assert_eq!(service.notes.all(), ["asks", "exchanges c1"]);
    clock.set(95.0);
    desk.say("again").await.assert_finished();
    assert_eq!(service.notes.all(), ["asks", "exchanges c1", "renews token-2"]);
    // A service that cannot be reached now may be later: nothing is forgotten, and nobody is asked.
    clock.set(200.0);
    service.fail(Failure::Says("mail does not answer"));
    let seen = desk.say("again").await;
    assert!(seen.tool_error().contains("mail does not answer"));
    desk.say("again").await.assert_finished();
    // A service that wants to see a person gets to see one.
    clock.set(400.0);
    service.fail(Failure::Gone);
    desk.say("again").await.interrupts();
    assert_eq!(service.notes.all()[3..], ["renews token-3", "renews token-3", "renews token-5", "asks"]);
}

#[tokio::test]
async fn calls_that_need_the_same_credential_ask_once_and_are_all_made() {
    for way in WAYS {
        let (service, notes) = (Service { slow: true, ..Service::default() }, Notes::default());
        let batch = ["c1", "c2", "c3"].map(|id| call_with_id(id, "send", json!({})));
        let model = ScriptedModel::new("m").recorded().response(calls(batch)).text("done");
        let agent = LlmAgent::new("a").model(model.clone()).tool(locked("send", service.auth(), &notes));
        let (_, _, make) = runner(agent);
        let desk = Desk::new(way, make).await;
        desk.say("go").await;
        let asked = desk.only().await;
        let seen = desk.answer([(&asked, back(&asked, "c"))]).await;
        seen.assert_finished();
        assert_eq!(seen.responses().len(), 3);
        assert_eq!(notes.all(), ["send Bearer token-2"; 3], "{way:?}");
        assert_eq!(service.notes.all(), ["asks", "exchanges c"]);
        assert_eq!(model.requests().len(), 2);
    }
}

#[tokio::test]
async fn calls_that_wait_together_are_told_that_nobody_gave_it() {
    for way in WAYS {
        let (service, notes) = (Service::default(), Notes::default());
        let batch = ["c1", "c2"].map(|id| call_with_id(id, "send", json!({})));
        let model = ScriptedModel::new("m").response(calls(batch)).text("a pity");
        let agent = LlmAgent::new("a").model(model.clone()).tool(locked("send", service.auth(), &notes));
        let (_, _, make) = runner(agent);
        let desk = Desk::new(way, make).await;
        desk.say("go").await;
        let seen = desk.answer_only(Answer::reject_because("not today")).await;
        seen.assert_finished();
        let told = seen.responses();
        assert_eq!(told.len(), 2);
        assert!(told.iter().all(|told| told["error"].as_str().unwrap().contains("nobody gave")), "{told:?}");
        assert!(notes.all().is_empty() && desk.open().await.is_empty(), "{way:?}");
        assert_eq!(service.notes.all(), ["asks"], "nobody is asked twice");
    }
}

#[tokio::test]
async fn renewals_of_calls_side_by_side_are_one() {
    let (service, notes) = (Service { slow: true, ..Service::default() }, Notes::default());
    let batch = ["c1", "c2", "c3"].map(|id| call_with_id(id, "send", json!({})));
    let model = ScriptedModel::new("m").response(calls(batch)).text("done");
    let agent = LlmAgent::new("a").model(model).tool(locked("send", service.auth(), &notes));
    let (secrets, clock, make) = runner(agent);
    clock.set(95.0);
    secrets
        .save("app", "ann", "mail", Credential::new(json!({"token": "old", "until": 100.0})))
        .await
        .unwrap();
    let desk = Desk::new(crate::desk::Way::Hot, make).await;
    desk.say("go").await.assert_finished();
    assert_eq!(service.notes.all(), ["renews old"]);
    assert_eq!(notes.all(), ["send Bearer token-1"; 3]);
}

#[tokio::test]
async fn what_does_not_fit_its_question_is_refused_and_the_question_stays_open() {
    for way in WAYS {
        let (service, notes) = (Service::default(), Notes::default());
        let (_, agent) = sender(&service, &notes);
        let (_, clock, make) = runner(agent);
        let desk = Desk::new(way, make).await;
        desk.say("go").await;
        let asked = desk.only().await;
        for (given, why) in [
            (json!(format!("{BACK}?code=c&state=other")), "`state`"),
            (json!(format!("{BACK}?code=c")), "`state`"),
            (json!("https://evil.example/?code=c&state=s-1"), "not the one"),
            (json!(format!("{BACK}?error=access_denied&state=s-1")), "access_denied"),
            (json!({"token": "t"}), "missing"),
            (json!(null), "missing"),
        ] {
            let refusal = desk.refused([(&asked, Answer::input(given))]).await;
            assert!(refusal.contains(why), "{refusal}");
        }
        let digest = back(&asked, "c").digest("another call");
        assert!(desk.refused([(&asked, digest)]).await.contains("another call"));
        let edited = Answer { args: Some(umbel::Object::new()), ..back(&asked, "c") };
        // What an answer says besides is nobody's business.
        clock.set(700.0);
        assert!(desk.refused([(&asked, edited.clone())]).await.contains("expired"));
        clock.set(0.0);
        desk.answer([(&asked, edited)]).await.assert_finished();
        assert_eq!(service.notes.all(), ["asks", "exchanges c"]);
    }
}

#[tokio::test]
async fn an_answer_to_no_question_or_of_another_user_is_refused() {
    let (service, notes) = (Service::default(), Notes::default());
    let (_, agent) = sender(&service, &notes);
    let (_, _, make) = runner(agent);
    let runner = make().build().unwrap();
    let (ann, bob) =
        (runner.create_session("ann").await.unwrap().key, runner.create_session("bob").await.unwrap().key);
    let seen = read(runner.run(&ann, "go")).await;
    let asked = seen.interrupts()[0].clone();
    let given = asked.answer_with(&back(&asked, "c"));
    for (key, message) in [
        (&bob, given.clone()),
        (&ann, answer("made-up", "adk_request_credential", json!({"code": "c", "state": "s-1"}))),
        (
            &ann,
            Content::user(umbel::Part::response(umbel::FunctionResponse::new(
                None,
                "adk_request_credential",
                Default::default(),
            ))),
        ),
    ] {
        let seen = read(runner.run(key, message)).await;
        assert_eq!(seen.kind(), ErrorKind::InvalidConfirmation, "{seen:?}");
    }
    assert!(crate::support::log(&runner, &bob).await.is_empty());
    read(runner.run(&ann, given)).await.assert_finished();
}

#[tokio::test]
async fn the_same_answer_may_come_twice_and_another_one_is_too_late() {
    for way in WAYS {
        let (service, notes) = (Service::default(), Notes::default());
        let (_, agent) = sender(&service, &notes);
        let (_, _, make) = runner(agent);
        let desk = Desk::new(way, make).await;
        desk.say("go").await;
        let asked = desk.only().await;
        desk.answer([(&asked, back(&asked, "c"))]).await.assert_finished();
        let again = desk.answer([(&asked, back(&asked, "c"))]).await;
        again.assert_finished();
        assert!(again.whole().is_empty(), "{again:?}");
        for other in [back(&asked, "d"), Answer::reject()] {
            assert!(desk.refused([(&asked, other)]).await.contains("otherwise"));
        }
        assert_eq!(service.notes.all(), ["asks", "exchanges c"], "{way:?}");
    }
}

#[tokio::test]
async fn an_exchange_that_fails_is_told_to_the_model_and_the_next_call_asks_anew() {
    for way in WAYS {
        let (service, notes) = (Service::default(), Notes::default());
        let batch = ["c1", "c2"].map(|id| call_with_id(id, "send", json!({})));
        let model = ScriptedModel::new("m").response(calls(batch)).call("send", json!({})).text("done");
        let agent = LlmAgent::new("a").model(model).tool(locked("send", service.auth(), &notes));
        let (_, _, make) = runner(agent);
        let desk = Desk::new(way, make).await;
        desk.say("go").await;
        service.fail(Failure::Says("mail does not answer"));
        let asked = desk.only().await;
        let seen = desk.answer([(&asked, back(&asked, "c1"))]).await;
        let told: Vec<_> = seen.responses().into_iter().take(2).collect();
        assert!(
            told.iter().all(|told| told["error"].as_str().unwrap().contains("mail does not answer")),
            "{told:?}"
        );
        let asked = desk.only().await;
        desk.answer([(&asked, back(&asked, "c2"))]).await.assert_finished();
        assert_eq!(service.notes.all(), ["asks", "exchanges c1", "asks", "exchanges c2"]);
        assert_eq!(notes.all(), ["send Bearer token-4"], "{way:?}");
    }
}

/// A tool whose service refuses some credentials.
fn picky(auth: AuthConfig, refuses: &'static [&'static str], notes: &Notes) -> FunctionTool {
    let notes = notes.clone();
    FunctionTool::with_context("send", "", move |cx, _: Value| {
        let (auth, notes) = (auth.clone(), notes.clone());
        Box::pin(async move {
            let mut grant = cx.credential(&auth).await?;
            notes.add(grant.http().unwrap().expose());
            if refuses.contains(&grant.http().unwrap().expose()) {
                grant = cx.credential_refused(&auth, &grant).await?;
                notes.add(grant.http().unwrap().expose());
            }
            Ok(json!({"sent": true}))
        })
    })
}

#[tokio::test]
async fn a_credential_that_its_service_refuses_is_renewed_or_asked_for_anew() {
    for way in WAYS {
        let (service, notes) = (Service::default(), Notes::default());
        let model = ScriptedModel::new("m").call("send", json!({})).text("done");
        let tool = picky(service.auth(), &["Bearer old", "Bearer token-4"], &notes);
        let (secrets, _, make) = runner(LlmAgent::new("a").model(model).tool(tool));
        let old = Credential::new(json!({"token": "old", "until": 100.0}));
        secrets.save("app", "ann", "mail", old).await.unwrap();
        service.fail(Failure::Gone);
        let desk = Desk::new(way, make).await;
        desk.say("go").await.interrupts();
        assert_eq!(service.notes.all(), ["renews old", "asks"]);
        assert_eq!(secrets.load("app", "ann", "mail").await.unwrap(), None, "it is not used again");
        let asked = desk.only().await;
        service.notes.add("in between");
        desk.answer([(&asked, back(&asked, "c"))]).await.assert_finished();
        assert_eq!(service.notes.all()[3..], ["exchanges c", "renews token-4"]);
        assert_eq!(notes.all(), ["Bearer old", "Bearer token-4", "Bearer token-5"], "{way:?}");
    }
}

#[tokio::test]
async fn a_person_may_give_wrong_keys_one_after_the_other() {
    for way in WAYS {
        let notes = Notes::default();
        let auth = AuthConfig::new("key", PlainAuth::bearer().question("The key of the shop?"));
        let model = ScriptedModel::new("m").call("send", json!({})).text("done");
        let tool = picky(auth, &["Bearer wrong", "Bearer worse"], &notes);
        let (secrets, _, make) = runner(LlmAgent::new("a").model(model).tool(tool));
        let desk = Desk::new(way, make).await;
        desk.say("go").await;
        for (index, key) in ["wrong", "worse", "right"].into_iter().enumerate() {
            let asked = desk.only().await;
            assert_eq!(asked.message.as_deref(), Some("The key of the shop?"));
            let seen = desk.answer([(&asked, Answer::input(key))]).await;
            assert_eq!(seen.outcome == Outcome::Finished, index == 2, "{way:?} {seen:?}");
        }
        assert_eq!(notes.all(), ["Bearer wrong", "Bearer worse", "Bearer right"]);
        let kept = secrets.load("app", "ann", "key").await.unwrap().unwrap();
        assert_eq!(kept.expose(), &json!({"token": "right"}));
    }
}

#[tokio::test]
async fn each_plain_form_is_asked_for_and_goes_where_it_belongs() {
    for (method, given, carried) in [
        (PlainAuth::api_key(HttpPlace::Query, "key"), json!("k"), "k"),
        (PlainAuth::bearer(), json!({"token": "t"}), "Bearer t"),
        (PlainAuth::basic(), json!({"username": "ann", "password": "pass"}), "Basic YW5uOnBhc3M="),
    ] {
        let notes = Notes::default();
        let model = ScriptedModel::new("m").call("send", json!({})).text("done");
        let tool = locked("send", AuthConfig::new("key", method), &notes);
        let (_, _, make) = runner(LlmAgent::new("a").model(model).tool(tool));
        let desk = Desk::new(crate::desk::Way::Cold, make).await;
        desk.say("go").await;
        let asked = desk.only().await;
        assert!(asked.response_schema.is_some(), "a front end can make a form of it");
        desk.answer([(&asked, Answer::input(given))]).await.assert_finished();
        assert_eq!(notes.all(), [format!("send {carried}")]);
    }
}

#[tokio::test]
async fn a_credential_of_the_program_is_asked_of_nobody_and_kept_nowhere() {
    let notes = Notes::default();
    let auth = AuthConfig::new("key", PlainAuth::api_key(HttpPlace::Header, "X-Key").fixed("k"));
    let model = ScriptedModel::new("m").call("send", json!({})).text("done");
    let (secrets, _, make) =
        runner(LlmAgent::new("a").model(model).tool(locked("send", auth.clone(), &notes)));
    let desk = Desk::new(crate::desk::Way::Hot, make).await;
    desk.say("go").await.assert_finished();
    assert_eq!(notes.all(), ["send k"]);
    assert_eq!(secrets.load("app", "ann", "key").await.unwrap(), None);
    // It cannot be had anew.
    let model = ScriptedModel::new("m").call("send", json!({})).text("done");
    let (_, _, make) = runner(LlmAgent::new("a").model(model).tool(picky(auth, &["k"], &notes)));
    let desk = Desk::new(crate::desk::Way::Hot, make).await;
    assert!(desk.say("go").await.tool_error().contains("that the program has"));
}

/// A toolset behind a credential.
pub(crate) struct Chest {
    pub(crate) auth: AuthConfig,
    pub(crate) notes: Notes,
}

impl Toolset for Chest {
    fn name(&self) -> &str {
        "box"
    }

    fn tools<'a>(&'a self, run: &'a Run) -> BoxFuture<'a, Result<Vec<Arc<dyn Tool>>>> {
        Box::pin(async move {
            let grant = run.credential(&self.auth).await?;
            self.notes.add(format!("lists with {}", grant.http().unwrap().expose()));
            let tool: Arc<dyn Tool> = Arc::new(crate::support::echo());
            Ok(vec![tool])
        })
    }

    fn auth(&self) -> Option<&AuthConfig> {
        Some(&self.auth)
    }
}

#[tokio::test]
async fn a_toolset_gets_its_credential_before_it_lists_its_tools() {
    for way in WAYS {
        let (service, notes) = (Service::default(), Notes::default());
        let model = ScriptedModel::new("m").recorded().call("echo", json!({"n": 1})).text("done");
        let toolset = Chest { auth: service.auth(), notes: notes.clone() };
        let (_, _, make) = runner(LlmAgent::new("a").model(model.clone()).toolset(toolset));
        let desk = Desk::new(way, make).await;
        let seen = desk.say("go").await;
        assert!(model.requests().is_empty() && notes.all().is_empty(), "nobody knows its tools yet");
        let asked = desk.only().await;
        let events = seen.whole();
        let request = events[0].calls().next().unwrap();
        assert_eq!(request.args.clone().unwrap()["functionCallId"], "_adk_toolset_auth_mail");
        let seen = desk.answer([(&asked, back(&asked, "c"))]).await;
        seen.assert_finished();
        assert_eq!(seen.responses(), [json!({"n": 1})], "only what the model asked for is called");
        assert_eq!(service.notes.all(), ["asks", "exchanges c"]);
        assert_eq!(notes.all(), ["lists with Bearer token-2"; 2], "{way:?}");
        assert_eq!(model.requests()[0].tools.len(), 1);
    }
}

#[tokio::test]
async fn a_toolset_that_gets_none_is_done_without_and_asks_in_the_next_turn() {
    for way in WAYS {
        let (service, notes) = (Service::default(), Notes::default());
        let model = ScriptedModel::new("m").recorded().text("without").text("again without");
        let toolset = Chest { auth: service.auth(), notes: notes.clone() };
        let (_, _, make) = runner(LlmAgent::new("a").model(model.clone()).toolset(toolset));
        let desk = Desk::new(way, make).await;
        desk.say("go").await;
        let seen = desk.answer_only(Answer::reject()).await;
        seen.assert_finished();
        assert_eq!(seen.texts(), [("a".to_owned(), "without".to_owned())]);
        let request = &model.requests()[0];
        assert!(request.tools.is_empty());
        assert!(request.instruction.text().contains("The tools of `box` cannot be used"), "{way:?}");
        desk.say("and now?").await;
        service.fail(Failure::Says("mail does not answer"));
        let asked = desk.only().await;
        desk.answer([(&asked, back(&asked, "c"))]).await.assert_finished();
        assert!(model.requests()[1].instruction.text().contains("mail does not answer"));
        assert_eq!(notes.all(), Vec::<String>::new());
    }
}

#[tokio::test]
async fn what_a_model_was_asked_is_told_without_asking_anyone_for_a_credential() {
    let (service, notes) = (Service::default(), Notes::default());
    let toolset = Chest { auth: service.auth(), notes: notes.clone() };
    let model = ScriptedModel::new("m").text("without");
    let (_, _, make) = runner(LlmAgent::new("a").model(model).toolset(toolset));
    let desk = Desk::new(crate::desk::Way::Hot, make).await;
    desk.say("go").await;
    let seen = desk.answer_only(Answer::reject()).await;
    let event = seen.whole()[0].id.clone();
    let request = desk.runner().request_before(&desk.key, &event).await.unwrap();
    assert!(request.tools.is_empty());
    assert_eq!(service.notes.all(), ["asks"]);
}

#[tokio::test]
async fn agents_side_by_side_ask_the_same_and_one_answer_does_for_all() {
    for way in WAYS {
        let (service, notes) = (Service::default(), Notes::default());
        let make = {
            let (service, notes) = (service.clone(), notes.clone());
            let secrets = Arc::new(InMemoryCredentials::new());
            let models = ["a", "b"].map(|name| {
                let script = ScriptedModel::new(name).call("send", json!({})).text("done");
                (name, script)
            });
            move || {
                let agent = |(name, model): &(&str, ScriptedModel)| {
                    LlmAgent::new(*name).model(model.clone()).tool(locked("send", service.auth(), &notes))
                };
                let agents = models.iter().map(agent);
                let parallel = agents.fold(Parallel::new("p"), Parallel::agent);
                let after = LlmAgent::new("last").model(ScriptedModel::new("l").text("the end"));
                let all = Sequential::new("s").agent(parallel).agent(after);
                Runner::builder("app", all).credentials(secrets.clone()).clock(SetClock::default())
            }
        };
        let desk = Desk::new(way, make).await;
        desk.say("go").await;
        let open = desk.open().await;
        assert_eq!(open.len(), 2, "{way:?}");
        let seen = desk.answer([(&open[1], back(&open[1], "c"))]).await;
        seen.assert_finished();
        assert_eq!(notes.all().len(), 2, "{seen:?}");
        assert_eq!(seen.texts().last().unwrap().1, "the end");
        assert_eq!(service.notes.all(), ["asks", "exchanges c"], "{way:?}: one sign-in, one code");
    }
}

#[tokio::test]
async fn front_ends_that_answer_all_questions_at_once_use_a_code_once() {
    let (service, notes) = (Service::default(), Notes::default());
    let agent = |name: &'static str| {
        let model = ScriptedModel::new(name).call("send", json!({})).text("done");
        LlmAgent::new(name).model(model).tool(locked("send", service.auth(), &notes))
    };
    let runner = Runner::new("app", Parallel::new("p").agent(agent("a")).agent(agent("b"))).unwrap();
    let key = runner.create_session("ann").await.unwrap().key;
    let seen = read(runner.run(&key, "go")).await;
    let asked = seen.interrupts().to_vec();
    let answers = asked.iter().map(|asked| (asked, back(asked, "c")));
    read(runner.resume(&key, answers)).await.assert_finished();
    assert_eq!(service.notes.all(), ["asks", "exchanges c"]);
    assert_eq!(notes.all().len(), 2);
}

#[tokio::test]
async fn tools_of_agents_that_work_for_a_call_get_theirs() {
    for way in WAYS {
        let (service, notes) = (Service::default(), Notes::default());
        let (_, inner) = sender(&service, &notes);
        let outer = ScriptedModel::new("o").call("a", json!({"request": "send it"})).text("sent");
        let (_, _, make) = runner(LlmAgent::new("outer").model(outer).tool(AgentTool::new(inner)));
        let desk = Desk::new(way, make).await;
        desk.say("go").await;
        let asked = desk.only().await;
        assert_eq!(asked.address.inner.as_ref().unwrap().agent, "a");
        assert!(desk.refused([(&asked, Answer::input("nonsense"))]).await.contains("not the one"));
        let seen = desk.answer([(&asked, back(&asked, "c"))]).await;
        seen.assert_finished();
        assert_eq!(seen.texts().last().unwrap().1, "sent");
        assert_eq!(notes.all(), ["send Bearer token-2"], "{way:?}");
    }
}

#[tokio::test]
async fn another_question_and_one_for_a_credential_of_one_batch_are_answered_in_any_order() {
    for way in WAYS {
        for first in ["credential", "confirmation"] {
            let (service, notes) = (Service::default(), Notes::default());
            let told = notes.clone();
            let delete = FunctionTool::with_context("delete", "", move |cx, _: Value| {
                let told = told.clone();
                Box::pin(async move {
                    assert!(cx.interrupt("Delete it?")?.confirmed);
                    told.add("deleted");
                    Ok(json!({"deleted": true}))
                })
            });
            let batch = [
                call_with_id("c1", "send", json!({})),
                call_with_id("c2", "delete", json!({})),
                call_with_id("c3", "send", json!({})),
            ];
            let model = ScriptedModel::new("m").response(calls(batch)).text("done");
            let agent = LlmAgent::new("a")
                .model(model.clone())
                .tool(locked("send", service.auth(), &notes))
                .tool(delete);
            let (_, _, make) = runner(agent);
            let desk = Desk::new(way, make).await;
            desk.say("go").await;
            let answer = |asked: &Interrupt| match asked.reason.as_str() {
                "credential" => back(asked, "c"),
                _ => Answer::approve(),
            };
            let open = desk.open().await;
            assert_eq!(open.len(), 2, "{open:?}");
            let one = open.iter().find(|asked| asked.reason == first).unwrap();
            desk.answer([(one, answer(one))]).await;
            let other = desk.only().await;
            desk.answer([(&other, answer(&other))]).await.assert_finished();
            let mut made = notes.all();
            made.sort();
            assert_eq!(made, ["deleted", "send Bearer token-2", "send Bearer token-2"], "{way:?} {first}");
            assert_eq!(service.notes.all(), ["asks", "exchanges c"]);
        }
    }
}

#[tokio::test]
async fn a_credential_that_is_given_up_is_revoked_and_forgotten() {
    let service = Service::default();
    let (secrets, _, make) = runner(LlmAgent::new("a").model(ScriptedModel::new("m")));
    let runner = make().build().unwrap();
    let kept = Credential::new(json!({"token": "t", "until": 100.0}));
    for failure in [None, Some(Failure::Says("mail does not answer"))] {
        secrets.save("app", "ann", "mail", kept.clone()).await.unwrap();
        let fails = failure.is_some();
        failure.into_iter().for_each(|failure| service.fail(failure));
        let revoked = runner.revoke_credential("ann", &service.auth()).await;
        assert_eq!(revoked.is_err(), fails);
        assert_eq!(secrets.load("app", "ann", "mail").await.unwrap(), None);
    }
    runner.revoke_credential("ann", &service.auth()).await.unwrap();
    assert_eq!(service.notes.all(), ["revokes t", "revokes t"], "what is not there is not revoked");
}

#[tokio::test]
async fn names_of_credentials_are_checked_when_the_agent_is_built_or_the_tool_asks() {
    for name in ["", "_answers"] {
        let auth = AuthConfig::new(name, PlainAuth::bearer());
        let tool = locked("send", auth.clone(), &Notes::default());
        let error =
            Runner::new("app", LlmAgent::new("a").model(ScriptedModel::new("m")).tool(tool)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Build);
        let toolset = Chest { auth: auth.clone(), notes: Notes::default() };
        Runner::new("app", LlmAgent::new("a").model(ScriptedModel::new("m")).toolset(toolset)).unwrap_err();
        let model = ScriptedModel::new("m").call("send", json!({})).text("done");
        let (runner, key) =
            crate::support::begin(LlmAgent::new("a").model(model).tool(picky(auth, &[], &Notes::default())))
                .await;
        let seen = read(runner.run(&key, "hi")).await;
        assert!(format!("{seen:?}").contains("a credential cannot be named"), "{seen:?}");
    }
}

#[tokio::test]
async fn an_answer_whose_secrets_are_gone_says_so_and_can_be_rejected() {
    let (service, notes) = (Service::default(), Notes::default());
    let (_, agent) = sender(&service, &notes);
    // Each runner has a store of its own, as programs have that keep credentials in memory.
    let desk = Desk::new(crate::desk::Way::Other, move || Runner::builder("app", agent.clone())).await;
    desk.say("go").await;
    let asked = desk.only().await;
    assert!(desk.refused([(&asked, back(&asked, "c"))]).await.contains("is gone"));
    let seen = desk.answer([(&asked, Answer::reject())]).await;
    assert!(responses(&seen.whole())[0]["error"].as_str().unwrap().contains("nobody gave"));
}

#[tokio::test]
async fn a_process_that_dies_after_the_answer_loses_no_credential() {
    for number in 1.. {
        let mut alive = 0;
        for death in [Death::Before(number), Death::After(number)] {
            let (service, notes, store) = (Service::default(), Notes::default(), Spy::default());
            let secrets = Arc::new(InMemoryCredentials::new());
            let make = |store: Spy| {
                let agent = steps("a", vec![vec![("c1", "send"), ("c2", "send")]]);
                let agent = agent.tool(locked("send", service.auth(), &notes).idempotent());
                let runner = Runner::builder("app", agent).sessions(store).credentials(secrets.clone());
                runner.lease(Duration::from_millis(100)).clock(SetClock::default()).build().unwrap()
            };
            let dying = store.dying(Some(death));
            let (first, other) = (make(dying.clone()), make(store.clone()));
            let key = other.create_session("ann").await.unwrap().key;
            let asked = read(other.run(&key, "go")).await.interrupts()[0].clone();
            let given = asked.answer_with(&back(&asked, "c"));
            run_and_die(&first, &dying, &key, given.clone()).await;
            // Until its lease is over.
            tokio::time::sleep(Duration::from_millis(105)).await;
            let recovered = recover(&other).await;
            if death == Death::Before(1) {
                // The answer never came: it can be given again.
                assert!(recovered.is_empty());
                read(other.run(&key, given)).await.assert_finished();
            }
            alive += usize::from(dying.writes() < number);
            let log = crate::support::log(&other, &key).await;
            let outcomes = outcomes(&log);
            assert!(
                matches!(outcomes.as_slice(), [Outcome::Interrupted { .. }, Outcome::Finished]),
                "{death:?} {outcomes:?}"
            );
            assert_eq!(service.notes.all(), ["asks", "exchanges c"], "{death:?}: a code is used once");
            assert!(notes.all().len() >= 2 && notes.all().iter().all(|note| note == "send Bearer token-2"));
        }
        if alive == 2 {
            assert!(number > 3, "it died {number} times");
            return;
        }
    }
}
