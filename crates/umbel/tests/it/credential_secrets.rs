//! Secrets of people and programs are found nowhere but where credentials are kept: with a restart between question and
//! answer, in each form of an answer, good or bad.

use std::fmt;
use std::path::Path;
use std::sync::{Arc, Mutex};

use serde_json::{Value, json};
use tracing::field::{Field, Visit};
use tracing::instrument::WithSubscriber;
use tracing::span::{Attributes, Id, Record};
use tracing::{Metadata, Subscriber};
use umbel::{
    Answer, AuthAnswer, AuthConfig, AuthMethod, AuthRequest, Content, Credential, Error, ErrorKind, Event,
    Expects, FunctionResponse, FunctionTool, Handler, HttpAuth, HttpPlace, Interrupt, LlmAgent, LogEntry,
    Part, PlainAuth, Result, Run, RunConfig, Runner, ScriptedModel, SessionKey, Standing, Work, handler,
};
use umbel_stores::{Key, Keys, Sqlite};

use crate::support::{Notes, Seen, log, read};

/// What all secrets of these tests hold.
const CANARY: &str = "c4n4ry";

/// Writes down all that is traced.
#[derive(Clone, Debug, Default)]
struct Tape(Arc<Mutex<String>>);

impl Visit for Tape {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        use fmt::Write;
        writeln!(self.0.lock().unwrap(), "{field}={value:?}").unwrap();
    }
}

impl Subscriber for Tape {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }

    fn new_span(&self, attributes: &Attributes<'_>) -> Id {
        attributes.record(&mut self.clone());
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, values: &Record<'_>) {
        values.record(&mut self.clone());
    }

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &tracing::Event<'_>) {
        event.record(&mut self.clone());
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

/// Writes down what handlers get to see.
#[derive(Clone, Default)]
struct Sees(Notes);

#[handler]
impl Handler for Sees {
    fn name(&self) -> &str {
        "sees"
    }

    fn on_input(&self, _run: &Run, input: Arc<Content>) -> Result<Arc<Content>> {
        self.0.add(format!("{input:?}"));
        Ok(input)
    }

    fn on_event(&self, _run: &Run, event: Event) -> Result<Event> {
        self.0.add(format!("{event:?}"));
        Ok(event)
    }
}

/// A sign-in whose every secret is a canary.
#[derive(Clone, Debug)]
struct SignIn {
    fails: bool,
}

impl AuthMethod for SignIn {
    fn scheme(&self) -> Value {
        json!({"type": "oauth2"})
    }

    fn standing(&self, kept: Option<&Credential>, _now: f64) -> Standing {
        kept.map_or(Standing::Ask, |_| Standing::Ready)
    }

    fn http(&self, credential: &Credential) -> Option<HttpAuth> {
        credential.expose()["accessToken"].as_str().map(HttpAuth::bearer)
    }

    fn ask(&self, _now: f64) -> Work<'_, Result<AuthRequest>> {
        Work::done(Ok(AuthRequest {
            message: "Sign in.".to_owned(),
            shown: json!({"oauth2": {"authUri": "https://id.example/", "state": "s-1"}}),
            schema: None,
            expects: Expects::Redirect {
                uri: "https://app.example/back".to_owned(),
                state: "s-1".to_owned(),
                issuer: None,
            },
            pending: json!({"verifier": format!("{CANARY}-verifier")}),
            expires_in: None,
        }))
    }

    fn exchange<'a>(&'a self, answer: AuthAnswer, _now: f64) -> Work<'a, Result<Credential>> {
        assert_eq!(answer.pending["verifier"], json!(format!("{CANARY}-verifier")));
        assert!(answer.text("code").unwrap().contains(CANARY));
        let given =
            Credential::new(json!({"accessToken": format!("{CANARY}-token"), "refreshToken": CANARY}));
        let failed = || {
            Error::new(ErrorKind::Timeout, "the service did not answer")
                .with_source(std::io::Error::other("no details of a source are told"))
        };
        Work::done(if self.fails { Err(failed()) } else { Ok(given) })
    }
}

/// A place on disk, and all that was seen of the runs there.
struct Place {
    folder: tempfile::TempDir,
    keys: Keys,
    auth: AuthConfig,
    model: ScriptedModel,
    sees: Sees,
    tape: Tape,
    told: String,
}

impl Place {
    fn new(auth: AuthConfig) -> Self {
        let keys = Keys::parse(&Key::generate("k").unwrap()).unwrap();
        let model = ScriptedModel::new("m").recorded().call("send", json!({})).text("done").text("done");
        let folder = tempfile::tempdir().unwrap();
        Self { folder, keys, auth, model, sees: Sees::default(), tape: Tape::default(), told: String::new() }
    }

    /// A program that starts, says something to the agent, and ends.
    async fn say(&mut self, key: &mut Option<SessionKey>, message: impl Into<Content>) -> Seen {
        let store = Sqlite::options(self.folder.path().join("umbel.db"))
            .keys(self.keys.clone())
            .open()
            .await
            .unwrap();
        let auth = self.auth.clone();
        let send = FunctionTool::with_context("send", "", move |cx, _: Value| {
            let auth = auth.clone();
            Box::pin(async move {
                let grant = cx.credential(&auth).await?;
                assert!(
                    grant.http().unwrap().expose().contains(CANARY)
                        || grant.http().unwrap().expose().starts_with("Basic")
                );
                Ok(format!("sent with {grant:?} and {:?}", grant.http()))
            })
        });
        let agent = LlmAgent::new("a").model(self.model.clone()).tool(send.auth(self.auth.clone()));
        let config = RunConfig { streaming: true, ..RunConfig::default() };
        let runner = Runner::builder("app", agent).sessions(store.clone()).credentials(store).config(config);
        let runner = runner.handler(self.sees.clone()).build().unwrap();
        if key.is_none() {
            *key = Some(runner.create_session("ann").await.unwrap().key);
        }
        let key = key.clone().unwrap();
        let stream = runner.run(&key, message);
        let seen = read(stream).with_subscriber(self.tape.clone()).await;
        self.told += &format!("{seen:?}");
        for entry in log(&runner, &key).await {
            self.told += &match entry {
                LogEntry::Event(event) => serde_json::to_string(&event).unwrap(),
                LogEntry::Record(step) => serde_json::to_string(&step).unwrap(),
            };
        }
        self.told += &format!("{runner:?}{:?}", runner.services());
        seen
    }

    /// Nothing of a secret is anywhere.
    fn assert_secret(&self) {
        let traced = self.tape.0.lock().unwrap().clone();
        assert!(!traced.is_empty());
        let asked = format!("{:?}", self.model.requests());
        for (sink, text) in [
            ("runs", &self.told),
            ("spans and events", &traced),
            ("requests", &asked),
            ("handlers", &self.sees.0.all().join("\n")),
        ] {
            assert!(!text.contains(CANARY), "{sink}: {}", around(text));
            // `name:c4n4ry` in base64.
            assert!(!text.contains("bmFtZTpjNG40cnk"), "{sink}");
        }
        for file in files(self.folder.path()) {
            let bytes = std::fs::read(&file).unwrap();
            let found = bytes.windows(CANARY.len()).any(|window| window == CANARY.as_bytes());
            assert!(!found, "{}", file.display());
        }
    }
}

fn files(folder: &Path) -> Vec<std::path::PathBuf> {
    std::fs::read_dir(folder).unwrap().map(|file| file.unwrap().path()).collect()
}

fn around(text: &str) -> &str {
    let at = text.find(CANARY).unwrap_or(0);
    let (mut from, mut to) = (at.saturating_sub(200), (at + 100).min(text.len()));
    while !text.is_char_boundary(from) {
        from -= 1;
    }
    while !text.is_char_boundary(to) {
        to += 1;
    }
    &text[from..to]
}

/// Asks, gives bad answers and a good one, each in a program of its own.
async fn told_apart(auth: AuthConfig, bad: &[Value], good: Value) -> Place {
    let (mut place, mut key) = (Place::new(auth), None);
    let seen = place.say(&mut key, "go").await;
    let asked: Interrupt = seen.interrupts()[0].clone();
    for bad in bad {
        let seen = place.say(&mut key, asked.answer_with(&Answer::input(bad.clone()))).await;
        assert_eq!(seen.kind(), ErrorKind::InvalidConfirmation, "{seen:?}");
    }
    let given = asked.answer_with(&Answer::input(good.clone()));
    place.say(&mut key, given.clone()).await.assert_finished();
    // The same again, and another one: too late.
    place.say(&mut key, given).await.assert_finished();
    let other = asked.answer_with(&Answer::input(json!({"other": CANARY})));
    assert_eq!(place.say(&mut key, other).await.kind(), ErrorKind::InvalidConfirmation);
    place.assert_secret();
    place
}

#[tokio::test]
async fn nothing_of_a_sign_in_is_told_and_a_restart_does_it_no_harm() {
    let back = |query: &str| json!(format!("https://app.example/back?{query}"));
    let bad = [
        back(&format!("code={CANARY}&state=s-2")),
        json!(format!("https://{CANARY}.example/?code={CANARY}&state=s-1")),
        back(&format!("error={CANARY}&state=s-1&error_description={CANARY}")),
        json!({"confirmed": CANARY, "code": CANARY}),
        json!([CANARY]),
    ];
    let good = json!({
        "authScheme": {"tokenUrl": format!("https://{CANARY}.example")},
        "rawAuthCredential": {"oauth2": {"clientSecret": CANARY}},
        "exchangedAuthCredential": {"oauth2": {"authResponseUri": back(&format!("code={CANARY}-code&state=s-1"))}},
    });
    told_apart(AuthConfig::new("mail", SignIn { fails: false }), &bad, good).await;
}

#[tokio::test]
async fn nothing_of_a_sign_in_that_fails_is_told() {
    let good = json!({"authCode": format!("{CANARY}-code"), "state": "s-1"});
    let place = told_apart(AuthConfig::new("mail", SignIn { fails: true }), &[], good).await;
    assert!(place.told.contains("the service did not answer"));
}

#[tokio::test]
async fn nothing_of_keys_tokens_and_passwords_is_told() {
    let bad = [json!({"no": CANARY}), json!(format!("{CANARY}\n{CANARY}")), json!(7)];
    let key = PlainAuth::api_key(HttpPlace::Query, "key");
    told_apart(AuthConfig::new("key", key), &bad, json!(format!("{CANARY}-key"))).await;
    told_apart(AuthConfig::new("key", PlainAuth::bearer()), &bad, json!({"token": CANARY})).await;
    let bad = [json!({"username": CANARY}), json!(CANARY)];
    let good = json!({"http": {"credentials": {"username": "name", "password": CANARY}}});
    told_apart(AuthConfig::new("key", PlainAuth::basic()), &bad, good).await;
}

#[tokio::test]
async fn what_comes_along_with_an_answer_or_a_refusal_is_not_told_either() {
    let (mut place, mut key) = (Place::new(AuthConfig::new("key", PlainAuth::bearer())), None);
    let seen = place.say(&mut key, "go").await;
    let asked = seen.interrupts()[0].clone();
    // Under another name, without an id, to a question that nobody asked, with more in it than an answer has.
    let response = |id: Option<&str>, name: &str, value: Value| {
        let value = value.as_object().cloned().unwrap();
        let mut response = FunctionResponse::new(id.map(Into::into), name, value);
        response.unknown.insert("more".to_owned(), json!(CANARY));
        Content::user(Part::response(response))
    };
    let given = || json!({"token": CANARY});
    for bad in [
        response(None, "adk_request_credential", given()),
        response(Some("made-up"), "adk_request_credential", given()),
        response(Some(asked.id.as_str()), "anything", json!({"response": CANARY, "more": CANARY})),
    ] {
        assert_eq!(place.say(&mut key, bad).await.kind(), ErrorKind::InvalidConfirmation);
    }
    let no = json!({"confirmed": false, "reason": "I have none", "payload": given(), "args": given(), "x": CANARY});
    let seen = place.say(&mut key, response(Some(asked.id.as_str()), "anything", no)).await;
    seen.assert_finished();
    assert!(seen.tool_error().contains("nobody gave"));
    let late = response(Some(asked.id.as_str()), "anything", given());
    assert_eq!(place.say(&mut key, late).await.kind(), ErrorKind::InvalidConfirmation);
    place.assert_secret();
}
