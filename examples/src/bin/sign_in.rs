//! A tool that needs a person's token: the call waits, the person signs in, and the call is made.
//!
//! ```sh
//! cargo run -p umbel-examples --bin sign_in
//! ```

use axum::Router;
use axum::http::header::{AUTHORIZATION, CONTENT_TYPE};
use axum::http::{HeaderMap, StatusCode};
use axum::response::IntoResponse;
use axum::routing::{get, post};
use serde_json::{Value, json};
use tokio::net::TcpListener;
use umbel::outside::{OAuthClient, OpenApi};
use umbel::{Answer, Error, ErrorKind, Interrupt, LlmAgent, Result, Runner, ScriptedModel};

/// Where browsers are sent after signing in.
const REDIRECT: &str = "https://my-app.example/callback";

/// A calendar for those who sign in, in the place of a real one. It takes any code.
async fn start_service() -> Result<String> {
    let failed = |error| Error::new(ErrorKind::Other, "the service does not start").with_source(error);
    let listener = TcpListener::bind("127.0.0.1:0").await.map_err(failed)?;
    let host = listener.local_addr().map_err(failed)?.to_string();
    let token = || async { ([(CONTENT_TYPE, "application/json")], r#"{"access_token": "t0ken"}"#) };
    let today = |headers: HeaderMap| async move {
        match headers.get(AUTHORIZATION).is_some_and(|given| given == "Bearer t0ken") {
            true => "10:00 Dentist".into_response(),
            false => StatusCode::UNAUTHORIZED.into_response(),
        }
    };
    let router = Router::new().route("/token", post(token)).route("/today", get(today));
    tokio::spawn(async move { axum::serve(listener, router).await });
    Ok(host)
}

/// What the service says of itself.
fn document(host: &str) -> Value {
    let login = json!({"authorizationUrl": format!("http://{host}/authorize"),
        "tokenUrl": format!("http://{host}/token"), "scopes": {"calendar": "Reads the calendar"}});
    json!({
        "openapi": "3.1.0",
        "servers": [{"url": format!("http://{host}")}],
        "paths": {"/today": {"get": {"operationId": "today", "summary": "Tells what is on today.",
            "security": [{"login": ["calendar"]}]}}},
        "components": {"securitySchemes": {"login": {"type": "oauth2", "flows": {"authorizationCode": login}}}},
    })
}

/// A person opens the link in a browser, signs in, and copies the address they are sent to.
fn sign_in(question: &Interrupt) -> Answer {
    let shown =
        question.payload.as_ref().and_then(|payload| payload.pointer("/exchangedAuthCredential/oauth2"));
    let text = |name: &str| shown.and_then(|shown| shown.get(name)?.as_str()).unwrap_or_default();
    let (page, _) = text("authUri").split_once('?').unwrap_or_default();
    println!("A person signs in at the page {}", page.rsplit('/').next().unwrap_or_default());
    Answer::input(format!("{REDIRECT}?code=c0de&state={}", text("state")))
}

#[tokio::main]
async fn main() -> Result<()> {
    let host = start_service().await?;
    let calendar = OpenApi::new(document(&host))
        .sign_in("login", OAuthClient::new("my-app"), REDIRECT)
        .allow_private(&host)
        .build()?;
    let model = ScriptedModel::new("demo").call("today", json!({})).text("You see the dentist at ten.");
    let runner = Runner::new("calendar", LlmAgent::new("clerk").model(model).toolset(calendar))?;
    let session = runner.create_session("ann").await?;

    runner.run(&session.key, "What is on today?").text().await?;
    let open = runner.open_questions(&session.key).await?;
    let answers: Vec<_> = open.iter().map(|question| (question, sign_in(question))).collect();
    let events = runner.resume(&session.key, answers).collect_events().await?;
    for response in events.iter().flat_map(|event| event.responses()) {
        println!("{}: {}", response.name, json!(response.response));
    }
    println!("clerk> {}", events.last().map(|event| event.text()).unwrap_or_default());
    println!("A secret in the log: {}", json!(events).to_string().contains("t0ken"));
    Ok(())
}
