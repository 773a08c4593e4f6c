//! Sign-ins from the question to the call that waits for it: with restarts, expiry, refusals, and without a trace of a secret.

use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use futures::StreamExt;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use umbel_core::{
    Answer, AuthConfig, Chunk, Clock, Content, CredentialStore, Event, FunctionCall, InMemoryCredentials,
    Interrupt, Outcome, Part, Response, Role, SessionKey, Tool,
};
use umbel_runtime::{LlmAgent, Runner, ScriptedModel};
use umbel_server::{AgentEndpoint, Server};
use umbel_stores::{Key, Keys, Sqlite};
use umbel_tools::{HttpLimits, OAuth, OAuthClient, OpenApi, Secret};

use crate::oauth_server::{CLIENT, CLIENT_SECRET, Fault, OAuthServer, REDIRECT};

/// A clock that tests set.
#[derive(Clone, Debug)]
struct SetClock(Arc<Mutex<f64>>);

impl SetClock {
    fn new() -> Self {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs_f64();
        Self(Arc::new(Mutex::new(now)))
    }

    fn pass(&self, seconds: f64) {
        *self.0.lock().unwrap() += seconds;
    }
}

impl Clock for SetClock {
    fn now(&self) -> f64 {
        *self.0.lock().unwrap()
    }
}

fn client() -> OAuthClient {
    OAuthClient::new(CLIENT).secret(Secret::new(CLIENT_SECRET))
}

/// The weather, for those who sign in.
fn document(server: &OAuthServer) -> Value {
    json!({
        "openapi": "3.1.0",
        "servers": [{"url": server.url("")}],
        "paths": {"/api": {"get": {"operationId": "weather", "security": [{"login": ["weather"]}]}}},
        "components": {"securitySchemes": {"login": {"type": "oauth2", "flows": {"authorizationCode": {
            "authorizationUrl": server.url("/authorize"), "tokenUrl": server.url("/token"),
            "scopes": {"weather": "Reads the weather", "other": "Not needed"}}}}}},
    })
}

fn weather(server: &OAuthServer) -> Arc<dyn Tool> {
    let service = OpenApi::new(document(server)).sign_in("login", client(), REDIRECT);
    service.allow_private(server.host()).build().unwrap().tools()[0].clone()
}

/// Calls the tool so often at once, and says what came of it.
fn model(calls: usize) -> ScriptedModel {
    ScriptedModel::from_fn("m", move |request| {
        let last = request.contents.last().unwrap();
        let response = match last.responses().next() {
            Some(_) => {
                let results: Vec<String> =
                    last.responses().map(|result| json!(result.response).to_string()).collect();
                Response::text(results.join(" and "))
            }
            None => {
                let parts = (0..calls).map(|_| Part::call(FunctionCall::new("weather", Default::default())));
                Response::new(Content::new(Role::Model, parts.collect::<Vec<_>>()))
            }
        };
        vec![Ok(Chunk::Complete(response))]
    })
}

/// Somebody who talks with an agent, and what they see.
struct Talk {
    server: OAuthServer,
    clock: SetClock,
    runner: Runner,
    key: SessionKey,
}

impl Talk {
    async fn begin(calls: usize) -> Self {
        let server = OAuthServer::start().await;
        Self::with(server.clone(), weather(&server), calls).await
    }

    async fn with(server: OAuthServer, tool: Arc<dyn Tool>, calls: usize) -> Self {
        let clock = SetClock::new();
        let agent = LlmAgent::new("agent").model(model(calls)).tool(tool);
        let runner = Runner::builder("app", agent).clock(clock.clone()).build().unwrap();
        let key = runner.create_session("ann").await.unwrap().key;
        Self { server, clock, runner, key }
    }

    async fn say(&self, message: impl Into<Content>) -> Seen {
        said(&self.runner, &self.key, message).await
    }

    /// The person signs in with what the question shows.
    async fn sign_in(&self, asked: &Interrupt) -> Seen {
        let back = self.server.sign_in(&link(asked)).await;
        self.say(asked.answer_with(&Answer::input(back))).await
    }
}

/// What came of a message.
#[derive(Debug)]
struct Seen {
    events: Vec<Event>,
    outcome: Outcome,
    error: Option<String>,
}

impl Seen {
    fn asked(&self) -> Interrupt {
        match &self.outcome {
            Outcome::Interrupted { interrupts: asked } => {
                assert_eq!(asked.len(), 1, "{asked:?}");
                asked[0].clone()
            }
            other => panic!("{other:?} {:?}", self.error),
        }
    }

    /// The last words of the agent.
    fn told(&self) -> String {
        assert!(matches!(self.outcome, Outcome::Finished), "{self:?}");
        self.events.last().unwrap().text()
    }
}

async fn said(runner: &Runner, key: &SessionKey, message: impl Into<Content>) -> Seen {
    let mut stream = runner.run(key, message);
    let (mut events, mut error) = (Vec::new(), None);
    while let Some(item) = stream.next().await {
        match item {
            Ok(event) => events.push((*event).clone()),
            Err(failure) => error = Some(failure.to_string()),
        }
    }
    Seen { events, outcome: stream.outcome().unwrap().clone(), error }
}

/// Where a person signs in.
fn link(asked: &Interrupt) -> String {
    let shown = &asked.payload.as_ref().unwrap()["exchangedAuthCredential"]["oauth2"]["authUri"];
    shown.as_str().unwrap().to_owned()
}

#[tokio::test]
async fn a_call_waits_until_a_person_has_signed_in_and_is_made_with_their_token() {
    let talk = Talk::begin(1).await;
    let asked = talk.say("How is the weather?").await.asked();
    assert_eq!(asked.message.as_deref(), Some("Sign in at 127.0.0.1 to go on."));
    let payload = asked.payload.as_ref().unwrap();
    assert_eq!(payload["authScheme"]["type"], "oauth2");
    assert_eq!(payload["credentialKey"], format!("{}/login", talk.server.host()));
    assert_eq!(payload["exchangedAuthCredential"]["authType"], "oauth2");
    let told = talk.sign_in(&asked).await.told();
    assert!(told.contains("\"weather\":\"sunny\"") && told.contains("\"scope\":\"weather\""), "{told}");
    // It is asked for once.
    assert!(talk.say("And now?").await.told().contains("sunny"));
    assert_eq!(talk.server.grants("authorization_code").len(), 1);
}

#[tokio::test]
async fn a_token_is_renewed_without_asking_and_a_person_is_asked_if_that_is_refused() {
    let talk = Talk::begin(1).await;
    let asked = talk.say("go").await.asked();
    talk.sign_in(&asked).await.told();
    talk.clock.pass(3_590.0);
    assert!(talk.say("go").await.told().contains("sunny"));
    talk.clock.pass(3_590.0);
    assert!(talk.say("go").await.told().contains("sunny"));
    assert_eq!(talk.server.grants("refresh_token").len(), 2);
    // A server that fails is not one that refuses: the token is used as long as it is good.
    talk.clock.pass(3_590.0);
    talk.server.fault(Fault::Broken);
    assert!(talk.say("go").await.told().contains("sunny"));
    talk.clock.pass(20.0);
    assert!(talk.say("go").await.told().contains("gives no token"));
    talk.server.fault(Fault::None);
    assert!(talk.say("go").await.told().contains("sunny"));
    talk.server.forget_tokens();
    talk.clock.pass(3_590.0);
    let asked = talk.say("go").await.asked();
    assert!(talk.sign_in(&asked).await.told().contains("sunny"));
}

#[tokio::test]
async fn calls_side_by_side_renew_a_token_once() {
    let talk = Talk::begin(3).await;
    let asked = talk.say("go").await.asked();
    assert_eq!(talk.sign_in(&asked).await.told().matches("sunny").count(), 3);
    assert_eq!(talk.server.grants("authorization_code").len(), 1);
    talk.clock.pass(3_590.0);
    assert_eq!(talk.say("go").await.told().matches("sunny").count(), 3);
    assert_eq!(talk.server.grants("refresh_token").len(), 1, "refresh tokens count once");
}

#[tokio::test]
async fn a_token_that_the_service_refuses_is_renewed_and_the_call_made_again() {
    let talk = Talk::begin(1).await;
    let asked = talk.say("go").await.asked();
    talk.sign_in(&asked).await.told();
    talk.server.forget_access_tokens();
    assert!(talk.say("go").await.told().contains("sunny"));
    assert_eq!(talk.server.asked("/api").len(), 3, "refused once, then made again");
    talk.server.forget_tokens();
    let asked = talk.say("go").await.asked();
    assert!(talk.sign_in(&asked).await.told().contains("sunny"));
}

#[tokio::test]
async fn a_credential_that_is_given_up_counts_no_more_anywhere() {
    let server = OAuthServer::start().await;
    let oauth = OAuth::code(client(), server.url("/authorize"), server.url("/token"), REDIRECT)
        .revocation_url(server.url("/revoke"))
        .allow_private(server.host());
    let auth = AuthConfig::new("weather", oauth.build().unwrap());
    let service = OpenApi::new(document(&server)).security("login", auth.clone());
    let tool = service.allow_private(server.host()).build().unwrap().tools()[0].clone();
    let talk = Talk::with(server, tool, 1).await;
    let asked = talk.say("go").await.asked();
    talk.sign_in(&asked).await.told();
    assert_eq!(talk.server.good_tokens(), (1, 1));
    talk.runner.revoke_credential("ann", &auth).await.unwrap();
    assert_eq!(talk.server.good_tokens(), (0, 0));
    talk.say("go").await.asked();
}

#[tokio::test]
async fn an_exchange_that_fails_says_so_and_the_next_call_asks_anew() {
    let talk = Talk::begin(1).await;
    for fault in [Fault::Html, Fault::ExpiresCodes, Fault::Says(json!({"token_type": "mac"}))] {
        let asked = talk.say("go").await.asked();
        talk.server.fault(fault);
        let told = talk.sign_in(&asked).await.told();
        assert!(told.contains("could not be used") && told.contains("gives no token"), "{told}");
        assert!(!told.contains("CANARY"), "{told}");
        talk.server.fault(Fault::None);
    }
    let asked = talk.say("go").await.asked();
    assert!(talk.sign_in(&asked).await.told().contains("sunny"));
}

#[tokio::test]
async fn a_token_endpoint_that_hangs_does_not_hold_the_run() {
    let server = OAuthServer::start().await;
    let oauth = OAuth::code(client(), server.url("/authorize"), server.url("/token"), REDIRECT)
        .limits(HttpLimits { time: Duration::from_millis(300), ..HttpLimits::default() })
        .allow_private(server.host());
    let auth = AuthConfig::new("weather", oauth.build().unwrap());
    let service = OpenApi::new(document(&server)).security("login", auth);
    let tool = service.allow_private(server.host()).build().unwrap().tools()[0].clone();
    let talk = Talk::with(server, tool, 1).await;
    let asked = talk.say("go").await.asked();
    talk.server.fault(Fault::Hang);
    assert!(talk.sign_in(&asked).await.told().contains("no answer within 0.3 s"));
}

#[tokio::test]
async fn what_an_answer_says_of_endpoints_and_clients_is_not_believed() {
    let talk = Talk::begin(1).await;
    let asked = talk.say("go").await.asked();
    let back = talk.server.sign_in(&link(&asked)).await;
    let mut forged = asked.payload.clone().unwrap();
    forged["authScheme"]["flows"]["authorizationCode"]["tokenUrl"] = json!(talk.server.url("/stolen"));
    forged["rawAuthCredential"] = json!({"oauth2": {"clientId": "evil", "clientSecret": "evil"}});
    forged["exchangedAuthCredential"]["oauth2"] = json!({"authResponseUri": back, "clientId": "evil",
        "accessToken": "evil", "redirectUri": "https://evil.example/", "codeVerifier": "evil"});
    let seen = talk.say(asked.answer_with(&Answer::input(forged))).await;
    assert!(seen.told().contains("sunny"));
    assert!(talk.server.asked("/stolen").is_empty());
}

#[tokio::test]
async fn answers_with_another_state_redirect_or_user_are_refused_and_the_question_stays_open() {
    let talk = Talk::begin(1).await;
    let asked = talk.say("go").await.asked();
    talk.server.fault(Fault::LiesAboutState);
    let lied = talk.server.sign_in(&link(&asked)).await;
    talk.server.fault(Fault::None);
    let denied = talk.server.deny(&link(&asked)).await;
    let back = talk.server.sign_in(&link(&asked)).await;
    let elsewhere = back.replace("app.example", "evil.example");
    for (bad, why) in [(lied, "`state`"), (denied, "`access_denied`"), (elsewhere, "sent back to")] {
        let seen = talk.say(asked.answer_with(&Answer::input(bad))).await;
        let error = seen.error.unwrap();
        assert!(error.contains(why) && !error.contains("CANARY"), "{error}");
        assert!(seen.events.is_empty());
    }
    let bob = talk.runner.create_session("bob").await.unwrap().key;
    let seen = said(&talk.runner, &bob, asked.answer_with(&Answer::input(back.as_str()))).await;
    assert!(seen.error.is_some() && seen.events.is_empty());
    assert!(talk.server.asked("/token").is_empty());
    let seen = talk.say(asked.answer_with(&Answer::input(back))).await;
    assert!(seen.told().contains("sunny"));
}

#[tokio::test]
async fn nobody_is_asked_twice_who_said_no() {
    let talk = Talk::begin(2).await;
    let asked = talk.say("go").await.asked();
    let told = talk.say(asked.answer_with(&Answer::reject())).await.told();
    assert_eq!(told.matches("nobody gave").count(), 2, "{told}");
}

#[tokio::test]
async fn a_program_signs_in_for_itself_and_people_by_an_issuer() {
    let server = OAuthServer::start().await;
    let mut document = document(&server);
    document["paths"]["/api"]["get"]["security"] =
        json!([{"machine": ["jobs"]}, {"id": ["openid", "weather"]}]);
    document["components"]["securitySchemes"] = json!({
        "machine": {"type": "oauth2", "flows": {"clientCredentials": {"tokenUrl": server.url("/token")}}},
        "id": {"type": "openIdConnect",
            "openIdConnectUrl": server.url("/.well-known/openid-configuration")},
    });
    let service = || OpenApi::new(document.clone()).allow_private(server.host());
    let tool = |service: OpenApi| service.build().unwrap().tools()[0].clone();
    let machine = tool(service().sign_in_as_program("machine", client()));
    let talk = Talk::with(server.clone(), machine, 2).await;
    let told = talk.say("go").await.told();
    assert_eq!(told.matches("\"scope\":\"jobs\"").count(), 2, "{told}");
    assert_eq!(server.grants("client_credentials").len(), 1);
    let person = tool(service().sign_in("id", client(), REDIRECT));
    let talk = Talk::with(server.clone(), person, 1).await;
    let asked = talk.say("go").await.asked();
    let told = talk.sign_in(&asked).await.told();
    assert!(told.contains("openid") && told.contains("weather"), "{told}");
}

/// How long programs wait for each other to write: a disk may be busy with other things.
const PATIENCE: Duration = Duration::from_secs(120);

/// A folder with a store, and programs that start there, do one thing, and end.
struct Disk {
    folder: tempfile::TempDir,
    keys: Keys,
    server: OAuthServer,
    clock: SetClock,
    model: ScriptedModel,
}

impl Disk {
    async fn runner(&self) -> Runner {
        let path = self.folder.path().join("umbel.db");
        let store =
            Sqlite::options(path).keys(self.keys.clone()).wait_for_lock(PATIENCE).open().await.unwrap();
        let agent = LlmAgent::new("agent").model(self.model.clone()).tool(weather(&self.server));
        let runner = Runner::builder("app", agent).sessions(store.clone()).credentials(store);
        runner.clock(self.clock.clone()).build().unwrap()
    }
}

async fn disk() -> Disk {
    let keys = Keys::parse(&Key::generate("k").unwrap()).unwrap();
    let folder = tempfile::tempdir().unwrap();
    Disk { folder, keys, server: OAuthServer::start().await, clock: SetClock::new(), model: model(1) }
}

#[tokio::test]
async fn a_restart_between_question_and_answer_changes_nothing() {
    let disk = disk().await;
    let first = disk.runner().await;
    let key = first.create_session("ann").await.unwrap().key;
    let asked = said(&first, &key, "go").await.asked();
    drop(first);
    let back = disk.server.sign_in(&link(&asked)).await;
    let second = disk.runner().await;
    let seen = said(&second, &key, asked.answer_with(&Answer::input(back))).await;
    assert!(seen.told().contains("sunny"));
    drop(second);
    // The token outlives programs, too.
    let third = disk.runner().await;
    assert!(said(&third, &key, "go").await.told().contains("sunny"));
    assert_eq!(disk.server.grants("authorization_code").len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn of_several_programs_with_one_store_one_renews_a_token_that_counts_once() {
    let disk = disk().await;
    disk.server.detects_reuse(Duration::from_millis(200));
    let mut programs = Vec::new();
    for _ in 0..4 {
        let runner = disk.runner().await;
        let key = runner.create_session("ann").await.unwrap().key;
        programs.push((runner, key));
    }
    let (first, key) = &programs[0];
    let asked = said(first, key, "go").await.asked();
    let back = disk.server.sign_in(&link(&asked)).await;
    said(first, key, asked.answer_with(&Answer::input(back))).await.told();
    for round in 1..=4 {
        // It is about to expire, or the service does not know it any more.
        match round % 2 {
            0 => disk.server.forget_access_tokens(),
            _ => disk.clock.pass(3_590.0),
        }
        let all = programs.iter().map(|(runner, key)| said(runner, key, "go"));
        for seen in futures::future::join_all(all).await {
            assert!(seen.told().contains("sunny"));
        }
        assert_eq!(disk.server.grants("refresh_token").len(), round, "one of them renews it");
    }
    assert_eq!(disk.server.good_tokens().1, 1, "no refresh token was used twice");
}

/// Keeps all that is logged.
#[derive(Clone, Default)]
struct Tape(Arc<Mutex<Vec<u8>>>);

impl std::io::Write for Tape {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// What a server answers to a request.
async fn http(host: &str, head: &str, body: &str) -> String {
    let mut stream = TcpStream::connect(host).await.unwrap();
    let length = body.len();
    let kind = "content-type: application/json\r\nconnection: close";
    let request =
        format!("{head} HTTP/1.1\r\nhost: {host}\r\n{kind}\r\ncontent-length: {length}\r\n\r\n{body}");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    answer
}

fn files(folder: &Path) -> Vec<u8> {
    let files = std::fs::read_dir(folder).unwrap().map(|file| file.unwrap().path());
    files.flat_map(|file| std::fs::read(file).unwrap()).collect()
}

#[tokio::test]
async fn no_secret_is_in_events_requests_logs_streams_or_files() {
    let disk = disk().await;
    let tape = Tape::default();
    let writer = tape.clone();
    let subscriber = tracing_subscriber::fmt()
        .with_max_level(tracing_subscriber::filter::LevelFilter::TRACE)
        .with_ansi(false)
        .with_span_events(tracing_subscriber::fmt::format::FmtSpan::FULL)
        .with_writer(move || writer.clone())
        .finish();
    // While there is just one, `tracing` believes that what a test beside this one is not interested in is of no interest.
    let _second = tracing::Dispatch::new(tracing::subscriber::NoSubscriber::default());
    let _logs = tracing::subscriber::set_default(subscriber);
    let server = Server::new().agent("/agent", AgentEndpoint::new(disk.runner().await)).build().unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let host = listener.local_addr().unwrap().to_string();
    let serving = tokio::spawn(server.serve(listener, std::future::pending()));
    let input = |run: &str| json!({"threadId": "t", "runId": run, "protocolVersion": "1.0", "messages": []});
    let mut first = input("r1");
    first["messages"] = json!([{"id": "m1", "role": "user", "content": "go"}]);
    let mut told = http(&host, "POST /agent", &first.to_string()).await;
    let open = http(&host, "GET /agent/threads/t", "").await;
    let thread: Value = serde_json::from_str(open.split_once("\r\n\r\n").unwrap().1.trim()).unwrap();
    let asked = &thread["interrupts"][0];
    let shown = &asked["metadata"]["payload"]["exchangedAuthCredential"]["oauth2"];
    let back = disk.server.sign_in(shown["authUri"].as_str().unwrap()).await;
    let mut answer = input("r2");
    answer["resume"] =
        json!([{"interruptId": asked["id"], "status": "resolved", "payload": {"authResponseUri": back}}]);
    told += &http(&host, "POST /agent", &answer.to_string()).await;
    assert!(told.contains("sunny"), "{told}");
    disk.server.forget_access_tokens();
    // It repeats what it was sent.
    disk.server.fault(Fault::Refuses("invalid_client"));
    let mut again = input("r3");
    again["messages"] = json!([{"id": "m3", "role": "user", "content": "go"}]);
    told += &http(&host, "POST /agent", &again.to_string()).await;
    assert!(told.contains("invalid_client"), "{told}");
    for path in
        ["/agent/threads/t", "/agent/threads/t/events", "/agent/runs/r2/events", "/agent/runs/r2/trace"]
    {
        told += &http(&host, &format!("GET {path}"), "").await;
    }
    serving.abort();
    let logs = String::from_utf8(tape.0.lock().unwrap().clone()).unwrap();
    assert!(logs.contains("weather"), "there are logs");
    let verifier = disk.server.grants("authorization_code")[0]["code_verifier"].clone();
    let requests = format!("{:?}", disk.model.requests());
    for (sink, text) in [
        ("streams", told.as_bytes()),
        ("logs", logs.as_bytes()),
        ("requests", requests.as_bytes()),
        ("files", &files(disk.folder.path())),
    ] {
        for secret in ["CANARY", &verifier] {
            let found = text.windows(secret.len()).position(|window| window == secret.as_bytes());
            let around = found.map(|at| String::from_utf8_lossy(&text[at.saturating_sub(200)..at + 20]));
            assert!(found.is_none(), "{sink}: {around:?}");
        }
    }
}

#[tokio::test]
async fn credentials_are_kept_per_service_and_user() {
    let server = OAuthServer::start().await;
    let secrets = Arc::new(InMemoryCredentials::new());
    let agent = LlmAgent::new("agent").model(model(1)).tool(weather(&server));
    let runner = Runner::builder("app", agent).credentials(secrets.clone()).build().unwrap();
    let ann = runner.create_session("ann").await.unwrap().key;
    let asked = said(&runner, &ann, "go").await.asked();
    let back = server.sign_in(&link(&asked)).await;
    said(&runner, &ann, asked.answer_with(&Answer::input(back))).await.told();
    let name = format!("{}/login", server.host());
    assert!(secrets.load("app", "ann", &name).await.unwrap().is_some());
    assert!(secrets.load("app", "bob", &name).await.unwrap().is_none());
    let bob = runner.create_session("bob").await.unwrap().key;
    said(&runner, &bob, "go").await.asked();
}
