//! Servers at web addresses.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};
use umbel_core::{Answer, AuthConfig, Outcome, PlainAuth};
use umbel_mcp::client::{Http, McpOAuth, McpToolset, ToolsetLimits};
use umbel_runtime::{LlmAgent, Runner, ScriptedModel};
use umbel_tools::{OAuthClient, Secret};

use crate::fake::tool;
use crate::{desk, finish, responses};

#[derive(Clone, Debug)]
struct Request {
    method: String,
    path: String,
    headers: HashMap<String, String>,
    body: Value,
    form: String,
}

/// What a server answers: status, headers, body. A body that never ends is said again and again.
#[derive(Clone, Default)]
struct Reply {
    status: u16,
    headers: Vec<(&'static str, String)>,
    body: Vec<u8>,
    is_endless: bool,
    /// It is said once so many others are.
    with: Option<Arc<tokio::sync::Barrier>>,
}

impl Reply {
    fn json(value: &Value) -> Self {
        let headers = vec![("content-type", "application/json".to_owned())];
        Self { status: 200, headers, body: value.to_string().into_bytes(), ..Self::default() }
    }

    fn status(status: u16) -> Self {
        Self { status, ..Self::default() }
    }

    fn header(mut self, name: &'static str, value: impl Into<String>) -> Self {
        self.headers.push((name, value.into()));
        self
    }
}

#[derive(Clone)]
struct Site {
    url: String,
    requests: Arc<Mutex<Vec<Request>>>,
}

impl Site {
    fn of(&self, method: &str) -> Vec<Request> {
        let requests = self.requests.lock().unwrap();
        requests.iter().filter(|request| request.body["method"] == method).cloned().collect()
    }
}

/// An HTTP server that answers as its script says. The script gets the server's own address.
async fn site(script: impl Fn(&Request, &str) -> Reply + Send + Sync + 'static) -> Site {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let site = Site { url: url.clone(), requests: Arc::default() };
    let (script, known) = (Arc::new(script), site.clone());
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let (script, known, url) = (script.clone(), known.clone(), url.clone());
            tokio::spawn(async move {
                let _ = answer(stream, |request| {
                    known.requests.lock().unwrap().push(request.clone());
                    script(request, &url)
                })
                .await;
            });
        }
    });
    site
}

async fn answer(stream: TcpStream, script: impl Fn(&Request) -> Reply) -> std::io::Result<()> {
    let mut stream = BufReader::new(stream);
    let mut line = String::new();
    stream.read_line(&mut line).await?;
    let mut first = line.split(' ').map(str::to_owned);
    let (method, path) = (first.next().unwrap_or_default(), first.next().unwrap_or_default());
    let mut headers = HashMap::new();
    loop {
        let mut line = String::new();
        stream.read_line(&mut line).await?;
        let Some((name, value)) = line.trim_end().split_once(": ") else { break };
        headers.insert(name.to_lowercase(), value.to_owned());
    }
    let length = headers.get("content-length").and_then(|length| length.parse().ok()).unwrap_or(0);
    let mut body = vec![0; length];
    stream.read_exact(&mut body).await?;
    let form = String::from_utf8_lossy(&body).into_owned();
    let body = serde_json::from_slice(&body).unwrap_or_default();
    let reply = script(&Request { method, path, headers, body, form });
    if let Some(others) = &reply.with {
        others.wait().await;
    }
    let mut head = format!("HTTP/1.1 {} X\r\nconnection: close\r\n", reply.status);
    for (name, value) in &reply.headers {
        head.push_str(&format!("{name}: {value}\r\n"));
    }
    if !reply.is_endless {
        head.push_str(&format!("content-length: {}\r\n", reply.body.len()));
    }
    stream.write_all(format!("{head}\r\n").as_bytes()).await?;
    stream.write_all(&reply.body).await?;
    if reply.is_endless {
        loop {
            stream.write_all(&reply.body).await?;
        }
    }
    stream.flush().await
}

/// A server as it should be, with one tool and a session.
fn good(request: &Request) -> Reply {
    let id = &request.body["id"];
    let result = |result: Value| Reply::json(&json!({"jsonrpc": "2.0", "id": id, "result": result}));
    match request.body["method"].as_str() {
        Some("initialize") => {
            let hello = json!({"protocolVersion": "2025-11-25", "serverInfo": {"name": "web", "version": "1"},
                "capabilities": {"tools": {}}});
            result(hello).header("mcp-session-id", "s1")
        }
        Some("notifications/initialized" | "notifications/cancelled") => Reply::status(202),
        Some("tools/list") => result(json!({"tools": [tool("a")]})),
        Some("tools/call") => result(json!({"content": [{"type": "text", "text": "ok"}]})),
        Some(_) => Reply::status(400),
        None => Reply::status(405),
    }
}

fn model() -> ScriptedModel {
    ScriptedModel::new("m").call("a", json!({})).text("done")
}

fn toolset(site: &Site) -> McpToolset {
    McpToolset::new("web", Http::new(format!("{}/mcp", site.url)).header("x-team", "blue"))
}

/// The error of a call that a server answers in that way.
async fn call_answered(reply: impl Fn() -> Reply + Send + Sync + 'static) -> String {
    let site =
        site(move |request, _| if request.body["method"] == "tools/call" { reply() } else { good(request) })
            .await;
    let limits =
        ToolsetLimits { answer: Duration::from_secs(5), message_bytes: 1 << 20, ..ToolsetLimits::default() };
    let result = desk(toolset(&site).limits(limits), model()).await.result().await;
    result["error"].as_str().unwrap_or_else(|| panic!("{result} is an error")).to_owned()
}

#[tokio::test]
async fn a_server_at_a_web_address_is_asked_with_its_session_and_headers() {
    let site = site(|request, _| good(request)).await;
    let desk = desk(toolset(&site), model()).await;
    assert_eq!(desk.result().await, json!({"result": "ok"}));
    let call = &site.of("tools/call")[0];
    assert_eq!(call.path, "/mcp");
    assert_eq!(call.headers["x-team"], "blue");
    assert_eq!(call.headers["mcp-session-id"], "s1");
    assert_eq!(call.headers["mcp-protocol-version"], "2025-11-25");
}

/// Says that all is part of one trace.
struct Traced;

const TRACE: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

impl umbel_core::Tracer for Traced {
    fn current(&self) -> Option<umbel_core::TraceContext> {
        umbel_core::TraceContext::parse(TRACE, None)
    }

    fn enter(&self, _: &umbel_core::TraceContext) -> Box<dyn std::any::Any> {
        Box::new(())
    }

    fn link(&self, _: &umbel_core::TraceContext) {}

    fn wants_content(&self) -> bool {
        false
    }

    fn take(&self, _: umbel_core::SpanContent<'_>) {}
}

#[tokio::test]
async fn the_trace_goes_along_in_the_message_and_in_a_header() {
    umbel_core::set_tracer(&Traced);
    let site = site(|request, _| good(request)).await;
    desk(toolset(&site), model()).await.result().await;
    let call = &site.of("tools/call")[0];
    assert_eq!(call.headers["traceparent"], TRACE);
    assert_eq!(call.body["params"]["_meta"]["traceparent"], TRACE);
}

#[tokio::test]
async fn answers_that_are_none_are_errors_that_say_what_came() {
    assert!(call_answered(|| Reply::status(500)).await.contains("HTTP 500"));
    let page = || Reply {
        body: b"<html>hi</html>".to_vec(),
        ..Reply::status(200).header("content-type", "text/html")
    };
    assert!(call_answered(page).await.contains("text/html"));
    let nonsense = || Reply { body: b"{".to_vec(), ..Reply::json(&json!(1)) };
    assert!(call_answered(nonsense).await.contains("what it answers is no message"));
    let elsewhere = || Reply::status(307).header("location", "http://169.254.169.254/");
    assert!(call_answered(elsewhere).await.contains("it redirects elsewhere"));
    assert!(call_answered(|| Reply::status(401)).await.contains("wants to know who asks"));
}

#[tokio::test]
async fn bodies_and_streams_without_end_are_cut_off() {
    let body = || Reply { body: vec![b' '; 1 << 16], is_endless: true, ..Reply::json(&json!(1)) };
    assert!(call_answered(body).await.contains("more than 1048576 bytes"));
    let event = || Reply {
        body: [b"data: ".as_slice(), &[b'x'; 1 << 16]].concat(),
        is_endless: true,
        ..Reply::status(200).header("content-type", "text/event-stream")
    };
    let words = call_answered(event).await;
    assert!(words.contains("more than 1048576 bytes"), "{words}");
}

#[tokio::test]
async fn a_stream_that_says_nothing_for_ever_is_given_up() {
    let site = site(|request, _| match request.body["method"].as_str() {
        Some("tools/call") => Reply {
            body: b": still here\n\n".to_vec(),
            is_endless: true,
            ..Reply::status(200).header("content-type", "text/event-stream")
        },
        _ => good(request),
    })
    .await;
    let limits = ToolsetLimits { answer: Duration::from_secs(3), ..ToolsetLimits::default() };
    let result = desk(toolset(&site).limits(limits), model()).await.result().await;
    assert_eq!(result["error"], "the MCP server `web` did not answer within 3 s");
}

#[tokio::test]
async fn a_session_that_was_lost_is_begun_anew() {
    let unknown = json!({"jsonrpc": "2.0", "id": null, "error": {"code": -32000, "message": "no session"}});
    let unknown = Reply { status: 400, ..Reply::json(&unknown) };
    for lost in [Reply::status(404), unknown] {
        let calls = Arc::new(AtomicUsize::new(0));
        let site = site(move |request, _| {
            let is_call = request.body["method"] == "tools/call";
            if is_call && calls.fetch_add(1, Ordering::SeqCst) == 0 {
                return lost.clone();
            }
            good(request)
        })
        .await;
        let desk = desk(toolset(&site), model()).await;
        assert_eq!(desk.result().await, json!({"result": "ok"}));
        assert_eq!(site.of("initialize").len(), 2);
    }
}

#[tokio::test]
async fn an_error_that_does_not_say_what_it_is_about_is_the_answer() {
    let said = || {
        let error = json!({"jsonrpc": "2.0", "error": {"code": -32603, "message": "it broke"}});
        Reply { status: 500, ..Reply::json(&error) }
    };
    assert_eq!(call_answered(said).await, "the MCP server `web` refuses: it broke");
}

#[tokio::test]
async fn a_schema_of_results_that_is_made_to_take_for_ever_is_not_used() {
    let nest = |levels: usize| (0..levels).fold(json!({}), |value, _| json!({"a": value}));
    let draft = "https://json-schema.org/draft/2019-09/schema";
    let again = json!({"properties": {"a": {"$recursiveRef": "#"}}});
    let mut schemas = vec![
        json!({"$schema": draft, "type": "object", "allOf": [again.clone(), again.clone(), again.clone()]}),
        json!({"$schema": draft, "type": "object", "anyOf": [again.clone(), again]}),
    ];
    for place in ["#/$defs/d", "#/%24defs/d"] {
        let twice =
            |n: usize| json!({"allOf": [{"$ref": format!("{place}{n}")}, {"$ref": format!("{place}{n}")}]});
        let mut defs: umbel_core::Object = (0..40).map(|n| (format!("d{n}"), twice(n + 1))).collect();
        defs.insert("d40".to_owned(), json!({"type": "object"}));
        schemas.push(json!({"type": "object", "$ref": format!("{place}0"), "$defs": defs}));
    }
    for schema in schemas {
        let said = schema.to_string();
        let site = site(move |request, _| {
            let id = &request.body["id"];
            let result = |result: Value| Reply::json(&json!({"jsonrpc": "2.0", "id": id, "result": result}));
            match request.body["method"].as_str() {
                Some("tools/list") => {
                    let mut tool = tool("a");
                    tool["outputSchema"] = schema.clone();
                    result(json!({"tools": [tool]}))
                }
                Some("tools/call") => result(json!({"content": [], "structuredContent": nest(60)})),
                _ => good(request),
            }
        })
        .await;
        let result = desk(toolset(&site), model()).await.result().await;
        assert!(result.get("error").is_none(), "{said}: {result}");
    }
}

#[tokio::test]
async fn a_result_that_is_too_big_to_be_held_against_its_schema_is_an_error() {
    let site = site(|request, _| {
        let id = &request.body["id"];
        let result = |result: Value| Reply::json(&json!({"jsonrpc": "2.0", "id": id, "result": result}));
        match request.body["method"].as_str() {
            Some("tools/list") => {
                let fields: umbel_core::Object = (0..1_000).map(|n| (format!("f{n}"), json!({}))).collect();
                let mut tool = tool("a");
                tool["outputSchema"] =
                    json!({"type": "object", "additionalProperties": {"properties": fields}});
                result(json!({"tools": [tool]}))
            }
            Some("tools/call") => {
                let many: Vec<Value> = (0..30_000).map(|n| json!(n)).collect();
                result(json!({"content": [], "structuredContent": {"many": many}}))
            }
            _ => good(request),
        }
    })
    .await;
    let result = desk(toolset(&site), model()).await.result().await;
    assert!(result["error"].as_str().unwrap().contains("too big for its own schema"), "{result}");
}

#[tokio::test]
async fn as_many_calls_are_under_way_as_may_be() {
    let all = || async {
        let together = Arc::new(tokio::sync::Barrier::new(10));
        site(move |request, _| match request.body["method"].as_str() {
            Some("tools/call") => Reply { with: Some(together.clone()), ..good(request) },
            _ => good(request),
        })
        .await
    };
    let script = || ScriptedModel::new("m").calls(vec![("a", json!({})); 10]).text("done");
    let many = all().await;
    let results = desk(toolset(&many), script()).await.results().await;
    assert_eq!(results, vec![json!({"result": "ok"}); 10]);
    let few = all().await;
    let limits = ToolsetLimits { requests: 2, answer: Duration::from_secs(3), ..ToolsetLimits::default() };
    let results = desk(toolset(&few).limits(limits), script()).await.results().await;
    assert!(results.iter().all(|result| result["error"].is_string()), "{results:?}");
}

#[tokio::test]
async fn a_credential_of_the_program_goes_along() {
    let site = site(|request, _| match request.headers.get("authorization").map(String::as_str) {
        Some("Bearer hunter2") => good(request),
        _ => Reply::status(401),
    })
    .await;
    let auth = AuthConfig::new("web", PlainAuth::bearer().fixed("hunter2"));
    let desk = desk(toolset(&site).auth(auth), model()).await;
    let (events, outcome) = desk.say("go").await;
    assert_eq!(outcome, Outcome::Finished);
    assert_eq!(responses(&events)[0], json!({"result": "ok"}));
    assert!(!serde_json::to_string(&events).unwrap().contains("hunter2"));
}

/// A server that wants to know who asks, and whoever signs people in for it.
fn guarded(request: &Request, url: &str) -> Reply {
    let path = request.path.split('?').next().unwrap_or_default();
    match path {
        "/.well-known/oauth-protected-resource/mcp" => Reply::json(&json!({
            "resource": format!("{url}/mcp"), "authorization_servers": [url], "scopes_supported": ["read"]})),
        "/.well-known/oauth-authorization-server" => Reply::json(&json!({
            "issuer": url, "authorization_endpoint": format!("{url}/authorize"),
            "token_endpoint": format!("{url}/token"), "registration_endpoint": format!("{url}/register"),
            "response_types_supported": ["code"], "code_challenge_methods_supported": ["S256"]})),
        "/register" => {
            Reply::json(&json!({"client_id": "c1", "redirect_uris": request.body["redirect_uris"]}))
        }
        "/token" if request.form.contains("code=good") && request.form.contains("code_verifier=") => {
            Reply::json(&json!({"access_token": "token-of-ann", "token_type": "Bearer", "expires_in": 3600}))
        }
        "/token" => Reply { status: 400, ..Reply::json(&json!({"error": "invalid_grant"})) },
        "/mcp" => match request.headers.get("authorization").map(String::as_str) {
            Some("Bearer token-of-ann") => good(request),
            _ => {
                let place =
                    format!("Bearer resource_metadata=\"{url}/.well-known/oauth-protected-resource/mcp\"");
                Reply::status(401).header("www-authenticate", place)
            }
        },
        _ => Reply::status(404),
    }
}

#[tokio::test]
async fn a_person_signs_in_where_the_server_says_and_the_run_goes_on_after_a_restart() {
    let site = site(guarded).await;
    let (sessions, credentials) =
        (Arc::new(umbel_core::InMemorySessions::new()), Arc::new(umbel_core::InMemoryCredentials::new()));
    let runner = |model: ScriptedModel| {
        let host = site.url.trim_start_matches("http://").to_owned();
        let url = format!("{}/mcp", site.url);
        let oauth = McpOAuth::new(&url, "https://app.example/back").allow_private(host).client_name("Tests");
        let tools = McpToolset::new("web", Http::new(url)).oauth(oauth);
        let agent = LlmAgent::new("agent").model(model).toolset(tools);
        let builder = Runner::builder("tests", agent).sessions(sessions.clone());
        builder.credentials(credentials.clone()).build().unwrap()
    };
    let before = runner(model());
    let session = before.create_session("ann").await.unwrap();
    let (_, outcome) = finish(before.run(&session.key, "go")).await;
    let Outcome::Interrupted { interrupts } = outcome else { panic!("it should ask: {outcome:?}") };
    let question = &interrupts[0];
    assert_eq!(question.reason, "credential");
    let shown = &question.payload.as_ref().unwrap()["exchangedAuthCredential"]["oauth2"];
    let place = reqwest::Url::parse(shown["authUri"].as_str().unwrap()).unwrap();
    let asked: HashMap<String, String> = place.query_pairs().into_owned().collect();
    assert_eq!(asked["client_id"], "c1");
    assert_eq!(asked["resource"], format!("{}/mcp", site.url));
    assert_eq!(asked["scope"], "read");
    assert_eq!(asked["code_challenge_method"], "S256");
    drop(before);

    let after = runner(ScriptedModel::new("m").call("a", json!({})).text("done"));
    let back = format!("https://app.example/back?code=good&state={}", asked["state"]);
    let (events, outcome) = finish(after.run(&session.key, question.answer_with(&Answer::input(back)))).await;
    assert_eq!(outcome, Outcome::Finished, "{events:?}");
    assert_eq!(responses(&events).last().unwrap(), &json!({"result": "ok"}));
    let token = site.requests.lock().unwrap().iter().find(|one| one.path == "/token").unwrap().form.clone();
    assert!(token.contains("resource=") && token.contains("code_verifier="), "{token}");
    assert_eq!(site.requests.lock().unwrap().iter().filter(|one| one.path == "/register").count(), 1);
    assert!(!serde_json::to_string(&events).unwrap().contains("token-of-ann"));
    assert!(site.requests.lock().unwrap().iter().all(|one| one.method != "PUT"));
}

/// Signs programs in, too.
fn guarded_for_programs(request: &Request, url: &str) -> Reply {
    match request.form.contains("grant_type=client_credentials") {
        true => Reply::json(&json!({"access_token": "token-of-ann", "token_type": "Bearer"})),
        false => guarded(request, url),
    }
}

#[tokio::test]
async fn a_program_signs_itself_in_with_a_secret_or_a_key_of_its_own_and_neither_is_kept() {
    let site = site(guarded_for_programs).await;
    let url = format!("{}/mcp", site.url);
    let host = site.url.trim_start_matches("http://").to_owned();
    let key = include_str!("../../../umbel-jwt/tests/p256_key.pem");
    let clients = [
        OAuthClient::new("c2").secret(Secret::new("hunter2")),
        OAuthClient::new("c2").private_key(key, Some("k1")).unwrap(),
    ];
    let mut forms = Vec::new();
    for client in clients {
        let oauth = McpOAuth::new(&url, "https://app.example/back").allow_private(&host);
        let oauth = oauth.known_as(client).issuer(&site.url).by_itself();
        let oauth = AuthConfig::new("web", oauth);
        let kept = oauth.method.renew(None, 1_800_000_000.0).await.unwrap().unwrap();
        assert!(oauth.method.http(&kept).unwrap().expose().ends_with("token-of-ann"));
        assert!(!kept.expose().to_string().contains("hunter2"), "it is the program's, and not the user's");
        let requests = site.requests.lock().unwrap();
        forms.push(requests.iter().rfind(|one| one.path == "/token").unwrap().form.clone());
    }
    assert!(!forms[0].contains("client_assertion"), "{}", forms[0]);
    let form: HashMap<String, String> = reqwest::Url::parse(&format!("http://form?{}", forms[1]))
        .unwrap()
        .query_pairs()
        .into_owned()
        .collect();
    let claims = form["client_assertion"].split('.').nth(1).unwrap();
    let claims = base64::Engine::decode(&base64::engine::general_purpose::URL_SAFE_NO_PAD, claims).unwrap();
    let claims: Value = serde_json::from_slice(&claims).unwrap();
    assert_eq!(
        (&claims["iss"], &claims["sub"], &claims["aud"]),
        (&json!("c2"), &json!("c2"), &json!(site.url))
    );
    assert!(!form.contains_key("client_secret"));
}

#[tokio::test]
async fn a_secret_or_a_key_goes_to_the_issuer_it_belongs_to_and_to_nobody_else() {
    let good = site(guarded_for_programs).await;
    let issuer = good.url.clone();
    // Its own authorization server, then one that says it is the good one, with an address of its own for tokens.
    for claims in [None, Some(issuer.clone())] {
        let evil = site(move |request, url| {
            let mut reply = guarded_for_programs(request, url);
            if let Some(claims) = claims.as_ref().filter(|_| request.path.contains("authorization-server")) {
                reply = Reply::json(&json!({"issuer": claims, "token_endpoint": format!("{url}/token"),
                    "authorization_endpoint": format!("{url}/authorize"), "response_types_supported": ["code"],
                    "code_challenge_methods_supported": ["S256"]}));
            }
            reply
        })
        .await;
        let hosts = [&good.url, &evil.url].map(|url| url.trim_start_matches("http://").to_owned());
        let key = include_str!("../../../umbel-jwt/tests/p256_key.pem");
        let clients = [
            OAuthClient::new("c2").secret(Secret::new("hunter2")),
            OAuthClient::new("c2").private_key(key, Some("k1")).unwrap(),
        ];
        for client in clients {
            let oauth = |client: OAuthClient| {
                let oauth = McpOAuth::new(format!("{}/mcp", evil.url), "https://app.example/back");
                hosts.iter().fold(oauth.known_as(client).by_itself(), |oauth, host| oauth.allow_private(host))
            };
            let named = AuthConfig::new("web", oauth(client.clone()).issuer(&issuer));
            let error = named.method.renew(None, 1_800_000_000.0).await.unwrap_err();
            assert!(error.message().contains("does not say how to sign in"), "{error}");
            let unnamed = AuthConfig::new("web", oauth(client));
            let error = unnamed.method.renew(None, 1_800_000_000.0).await.unwrap_err();
            assert!(error.message().contains("name the issuer"), "{error}");
        }
        let requests = evil.requests.lock().unwrap();
        assert!(requests.iter().all(|one| one.path != "/token"), "it was asked for a token");
    }
}

/// The scopes that a person is asked to sign in for, and the state of that.
fn asked_for(outcome: &Outcome) -> (umbel_core::Interrupt, String, String) {
    let Outcome::Interrupted { interrupts } = outcome else { panic!("it should ask: {outcome:?}") };
    let shown = &interrupts[0].payload.as_ref().unwrap()["exchangedAuthCredential"]["oauth2"];
    let place = reqwest::Url::parse(shown["authUri"].as_str().unwrap()).unwrap();
    let asked: HashMap<String, String> = place.query_pairs().into_owned().collect();
    (interrupts[0].clone(), asked["scope"].clone(), asked["state"].clone())
}

#[tokio::test]
async fn what_a_server_wants_of_one_user_besides_is_asked_of_no_other() {
    let site = site(|request, url| {
        let wants = |scope: &str| {
            let place = format!("resource_metadata=\"{url}/.well-known/oauth-protected-resource/mcp\"");
            let said = format!("Bearer error=\"insufficient_scope\", scope=\"{scope}\", {place}");
            Reply::status(403).header("www-authenticate", said)
        };
        let is_call = request.body["method"] == "tools/call";
        match (request.path.as_str(), request.headers.get("authorization").map(String::as_str)) {
            // The token is called after the code that it was given for.
            ("/token", _) => {
                let code = request.form.split('&').find_map(|field| field.strip_prefix("code="));
                let token = json!({"access_token": code, "token_type": "Bearer", "expires_in": 3600});
                Reply::json(&token)
            }
            ("/mcp", Some("Bearer first")) if is_call => wants("write"),
            ("/mcp", Some("Bearer second")) if is_call => wants("all"),
            ("/mcp", Some(_)) => good(request),
            _ => guarded(request, url),
        }
    })
    .await;
    let host = site.url.trim_start_matches("http://").to_owned();
    let url = format!("{}/mcp", site.url);
    let oauth = McpOAuth::new(&url, "https://app.example/back").allow_private(host);
    let tools = McpToolset::new("web", Http::new(url)).oauth(oauth);
    let desk = desk(tools, model()).await;
    let ben = desk.runner.create_session("ben").await.unwrap().key;
    let back = |(question, _, state): (umbel_core::Interrupt, String, String), code: &str| {
        let place = format!("https://app.example/back?code={code}&state={state}");
        question.answer_with(&Answer::input(place))
    };
    let first = asked_for(&desk.say("go").await.1);
    assert_eq!(first.1, "read");
    let second = asked_for(&desk.say(back(first, "first")).await.1);
    assert_eq!(second.1, "read write");
    let of_ben = asked_for(&finish(desk.runner.run(&ben, "go")).await.1);
    assert_eq!(of_ben.1, "read", "what ann's token lacks is no matter of ben's");
    let third = asked_for(&desk.say(back(second, "second")).await.1);
    assert_eq!(third.1, "read write all", "and what it had, it keeps");
    let (events, outcome) = desk.say(back(third, "third")).await;
    assert_eq!(outcome, Outcome::Finished);
    assert_eq!(responses(&events).last().unwrap(), &json!({"result": "ok"}));
}
