//! Keys and tokens that a document's security schemes ask for.

use std::sync::Arc;

use futures::StreamExt;
use serde_json::{Value, json};
use umbel_core::{
    Answer, AuthConfig, Credential, CredentialStore, HttpPlace, InMemoryCredentials, Outcome, PlainAuth, Tool,
};
use umbel_runtime::{LlmAgent, Runner, ScriptedModel};
use umbel_tools::{Guard, HttpGet, OAuthClient, OpenApi};

use crate::call_and_log;
use crate::http::{Server, answer};

/// An operation for each scheme, one that wants two, one that takes either, and one that is open.
fn document(server: &str) -> Value {
    let operation = |id: &str, security: Value| json!({"get": {"operationId": id, "security": security}});
    json!({
        "openapi": "3.0.3",
        "servers": [{"url": server}],
        "security": [{"header": []}],
        "paths": {
            "/header": {"get": {"operationId": "header", "parameters": [
                {"name": "x-key", "in": "header", "required": true, "schema": {"type": "string"}}]}},
            "/query": operation("query", json!([{"query": []}])),
            "/cookie": {"get": {"operationId": "cookie", "security": [{"cookie": []}], "parameters": [
                {"name": "theme", "in": "cookie", "schema": {"type": "string"}}]}},
            "/bearer": operation("bearer", json!([{"bearer": []}])),
            "/basic": operation("basic", json!([{"basic": []}])),
            "/both": operation("both", json!([{"header": [], "query": []}])),
            "/either": operation("either", json!([{"unknown": []}, {"bearer": []}, {"header": []}])),
            "/open": operation("open", json!([])),
            "/optional": operation("optional", json!([{}, {"header": []}])),
        },
        "components": {"securitySchemes": {
            "header": {"type": "apiKey", "in": "header", "name": "X-Key"},
            "query": {"$ref": "#/components/x-query"},
            "cookie": {"type": "apiKey", "in": "cookie", "name": "sid"},
            "bearer": {"type": "http", "scheme": "Bearer"},
            "basic": {"type": "http", "scheme": "basic"},
            "digest": {"type": "http", "scheme": "digest"},
            "code": {"type": "oauth2", "flows": {"implicit": {}}},
            "id": {"type": "openIdConnect", "openIdConnectUrl": "https://id.example/"},
        }, "x-query": {"type": "apiKey", "in": "query", "name": "key"}},
    })
}

async fn echo() -> Server {
    Server::start(|request| answer(200, "application/json", &json!({"asked": request}).to_string())).await
}

fn service(server: &Server) -> OpenApi {
    OpenApi::new(document(&format!("http://{}", server.host()))).allow_private(server.host())
}

fn tool(service: OpenApi, name: &str) -> Arc<dyn Tool> {
    let service = service.build().unwrap();
    service.tools().iter().find(|tool| tool.spec().name == name).unwrap().clone()
}

#[tokio::test]
async fn a_secret_of_the_program_goes_where_its_scheme_says_and_does_not_come_back() {
    let server = echo().await;
    let basic = PlainAuth::basic().fixed(json!({"username": "ann", "password": "s3cret-basic"}));
    let all = || {
        service(&server)
            .secret("header", "s3cret-header")
            .secret("query", "s3cret-query")
            .secret("cookie", "s3cret-cookie")
            .secret("bearer", "s3cret-bearer")
            .security("basic", AuthConfig::new("basic", basic.clone()))
    };
    for (name, sent) in [
        ("header", &["x-key: s3cret-header\r\n"][..]),
        ("query", &["GET /query?key=s3cret-query "]),
        ("cookie", &["cookie: theme=dark; sid=s3cret-cookie\r\n"]),
        ("bearer", &["authorization: Bearer s3cret-bearer\r\n"]),
        ("basic", &["authorization: Basic YW5uOnMzY3JldC1iYXNpYw==\r\n"]),
        ("both", &["x-key: s3cret-header\r\n", "?key=s3cret-query "]),
        ("either", &["authorization: Bearer s3cret-bearer\r\n"]),
        ("optional", &["x-key: s3cret-header\r\n"]),
    ] {
        let (said, log) = call_and_log(tool(all(), name), json!({"theme": "dark"})).await;
        assert_eq!(said["status"], 200, "{said}");
        let asked = server.last();
        assert!(sent.iter().all(|sent| asked.contains(sent)), "{name}: {asked}");
        assert_eq!(asked.matches("s3cret").count() + asked.matches("YW5u").count(), sent.len(), "{asked}");
        assert!(!log.contains("s3cret") && !log.contains("YW5u"), "{log}");
    }
    call_and_log(tool(all(), "open"), json!({})).await;
    let asked = server.last();
    assert!(!asked.contains("s3cret") && !asked.contains("authorization"), "{asked}");
    let header = tool(all(), "header");
    assert_eq!(header.spec().parameters["properties"], json!({}), "the key is not the model's to say");
    assert!(header.spec().auth.is_none(), "nobody is asked");
}

#[tokio::test]
async fn a_person_is_asked_for_what_a_scheme_wants_and_again_if_it_is_refused() {
    let server = Server::start(|request| match request.contains("x-key: right-key\r\n") {
        true => answer(200, "application/json", "{}"),
        false => answer(401, "application/json", "{}"),
    })
    .await;
    let tool = tool(service(&server).ask_for("header"), "header");
    assert_eq!(tool.spec().auth.as_ref().unwrap().credential, format!("{}/header", server.host()));
    let model = ScriptedModel::new("m").call("header", json!({})).text("done");
    let runner = Runner::new("app", LlmAgent::new("agent").model(model).tool(tool)).unwrap();
    let key = runner.create_session("ann").await.unwrap().key;
    let mut message = umbel_core::Content::user("go");
    for given in ["wrong-key", "right-key"] {
        let mut stream = runner.run(&key, message);
        while let Some(item) = stream.next().await {
            item.unwrap();
        }
        let Some(Outcome::Interrupted { interrupts: asked }) = stream.outcome() else {
            panic!("{:?}", stream.outcome())
        };
        message = asked[0].answer_with(&Answer::input(given));
    }
    let events = runner.run(&key, message).collect_events().await.unwrap();
    let result = events.iter().flat_map(|event| event.responses()).next().unwrap().response.clone().unwrap();
    assert_eq!(result["status"], 200);
    let log = serde_json::to_string(&events).unwrap();
    assert!(!log.contains("right-key"), "{log}");
}

#[tokio::test]
async fn a_refusal_of_another_host_costs_no_credential() {
    let away = Server::start(|_| answer(401, "text/plain", "who are you?")).await;
    let to = format!("http://{}/", away.host());
    let server = Server::start(move |_| {
        format!("HTTP/1.1 302 X\r\nlocation: {to}\r\ncontent-length: 0\r\nconnection: close\r\n\r\n")
    })
    .await;
    let guard = Guard::new([""; 0]).allow_private(&server.host()).allow_private(&away.host());
    let page = HttpGet::new(guard).unwrap();
    let page = page.auth(&server.host(), AuthConfig::new("key", PlainAuth::bearer())).unwrap();
    let service = service(&server).security("bearer", AuthConfig::new("key", PlainAuth::bearer()));
    let service = tool(service.allow_private(away.host()), "bearer");
    let url = format!("http://{}/", server.host());
    for (tool, args) in [(Arc::new(page) as Arc<dyn Tool>, json!({"url": url})), (service, json!({}))] {
        let secrets = Arc::new(InMemoryCredentials::new());
        secrets.save("app", "ann", "key", Credential::new("good")).await.unwrap();
        let model = ScriptedModel::new("m").call(tool.spec().name.clone(), args).text("done");
        let agent = LlmAgent::new("agent").model(model).tool(tool);
        let runner = Runner::builder("app", agent).credentials(secrets.clone()).build().unwrap();
        let key = runner.create_session("ann").await.unwrap().key;
        let events = runner.run(&key, "go").collect_events().await.unwrap();
        let result = events.iter().flat_map(|event| event.responses()).next().unwrap().response.clone();
        assert_eq!(result.unwrap()["status"], 401);
        assert!(runner.open_questions(&key).await.unwrap().is_empty(), "nobody is asked");
        assert_eq!(secrets.load("app", "ann", "key").await.unwrap(), Some(Credential::new("good")));
    }
}

#[tokio::test]
async fn a_credential_may_go_with_each_request_whatever_the_document_says() {
    let server = echo().await;
    let method = PlainAuth::api_key(HttpPlace::Header, "X-All").fixed("s3cret-for-all");
    let service = service(&server).credential(AuthConfig::new("all", method));
    call_and_log(tool(service, "open"), json!({})).await;
    assert!(server.last().contains("x-all: s3cret-for-all\r\n"));
}

#[test]
fn schemes_that_cannot_be_used_so_say_why() {
    let client = || OAuthClient::new("c");
    let base = || OpenApi::new(document("https://api.example"));
    let error = |service: OpenApi| service.build().unwrap_err().message().to_owned();
    let missing = error(base().ask_for("nothing"));
    assert!(
        missing.contains("no security scheme `nothing`") && missing.contains("header, query"),
        "{missing}"
    );
    assert!(error(base().ask_for("digest")).contains("#/components/securitySchemes/digest: this is no key"));
    assert!(error(base().secret("code", "x")).contains("this is no key"));
    assert!(error(base().sign_in("code", client(), "https://a.example/")).contains("nobody can sign in"));
    assert!(error(base().sign_in("id", client(), "https://a.example/")).contains("`openIdConnectUrl`"));
    assert!(error(base().sign_in_as_program("code", client())).contains("`clientCredentials`"));
    let open = OpenApi::new(document("http://api.example")).ask_for("header");
    assert!(error(open).contains("would get a key over http"));
    assert!(error(base().header("X-A", "s3c\r\nret")).contains("the header `X-A` has characters"));
    for secret in ["s3c\r\nret", ""] {
        let refused = error(base().secret("header", secret));
        assert!(refused.contains("api.example/header has characters that cannot be sent"), "{refused}");
    }
}

/// A document whose last operation is on another host.
fn led_away(server: &Server, away: &Server) -> OpenApi {
    let mut document = document(&format!("http://{}", server.host()));
    let servers = json!([{"url": format!("http://{}", away.host())}]);
    document["paths"]["/away"] = json!({"get": {"operationId": "away", "servers": servers}});
    let open = json!({"get": {"operationId": "open_away", "servers": servers, "security": []}});
    document["paths"]["/open_away"] = open;
    OpenApi::new(document).allow_private(server.host()).allow_private(away.host())
}

#[tokio::test]
async fn a_document_cannot_lead_a_credential_to_another_host() {
    let (server, away) = (echo().await, echo().await);
    for service in [
        led_away(&server, &away).secret("header", "s3cret-header"),
        led_away(&server, &away).bearer(&umbel_tools::Secret::new("s3cret-bearer")),
    ] {
        let built = service.build().unwrap();
        let skipped: Vec<_> = built.skipped().iter().filter(|(name, _)| name == "away").collect();
        assert!(skipped[0].1.contains("`allow_host` says that it may"), "{skipped:?}");
    }
    let named = led_away(&server, &away).secret("header", "s3cret-header").operation("away");
    assert!(named.build().unwrap_err().message().contains("not where the service is"));
    let open = led_away(&server, &away).secret("header", "s3cret-header");
    call_and_log(tool(open, "open_away"), json!({})).await;
    assert!(!away.last().contains("s3cret"), "what needs no key may be anywhere");
    let allowed = led_away(&server, &away).secret("header", "s3cret-header").allow_host(away.host());
    call_and_log(tool(allowed, "away"), json!({})).await;
    assert!(away.last().contains("x-key: s3cret-header\r\n"));
}

#[tokio::test]
async fn people_are_asked_for_one_refused_credential_at_a_time() {
    let server = Server::start(|request| {
        let is_right = request.contains("x-key: right\r\n") && request.contains("?key=right ");
        answer(if is_right { 200 } else { 401 }, "application/json", "{}")
    })
    .await;
    let tool = tool(service(&server).ask_for("header").ask_for("query"), "both");
    let model = ScriptedModel::new("m").call("both", json!({})).text("done");
    let runner = Runner::new("app", LlmAgent::new("agent").model(model).tool(tool)).unwrap();
    let key = runner.create_session("ann").await.unwrap().key;
    let (header, query) = (format!("{}/header", server.host()), format!("{}/query", server.host()));
    let mut message = umbel_core::Content::user("go");
    // The first is right and the second is not: after both were asked for, each is asked for by itself.
    for (name, given) in [(&header, "right"), (&query, "wrong"), (&header, "right"), (&query, "right")] {
        let mut stream = runner.run(&key, message);
        while let Some(item) = stream.next().await {
            item.unwrap();
        }
        let Some(Outcome::Interrupted { interrupts: asked }) = stream.outcome() else {
            panic!("{:?}", stream.outcome())
        };
        assert_eq!((asked.len(), asked[0].credential()), (1, Some(name.as_str())));
        message = asked[0].answer_with(&Answer::input(given));
    }
    let events = runner.run(&key, message).collect_events().await.unwrap();
    let result = events.iter().flat_map(|event| event.responses()).next().unwrap().response.clone().unwrap();
    assert_eq!(result["status"], 200);
}
