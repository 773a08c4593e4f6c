//! A client for the official conformance suite of MCP, which starts it once for each of its scenarios: an agent calls every
//! tool that the server has, answers every question, and signs in where it is asked to.

#![allow(clippy::print_stdout, clippy::print_stderr)]

use std::process::ExitCode;

use futures::StreamExt;
use serde_json::{Value, json};
use umbel_core::{
    Answer, Chunk, Content, Error, ErrorKind, FunctionCall, Interrupt, Object, Outcome, Part, Response,
    Result, Role,
};
use umbel_mcp::client::{Http, McpOAuth, McpToolset, Protocol};
use umbel_runtime::{LlmAgent, Runner, ScriptedModel};
use umbel_tools::OAuthClient;

/// Where people come back to once they signed in. Nobody is there: the address is all that is needed.
const BACK: &str = "http://localhost:3000/callback";
/// Where the suite would read who the client is.
const DOCUMENT: &str = "https://conformance-test.local/client-metadata.json";

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    let Some(url) = std::env::args().next_back().filter(|url| url.starts_with("http")) else {
        eprintln!("usage: conformance_client URL");
        return ExitCode::from(2);
    };
    match talk(&url).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

/// A conversation in which each tool is called once.
async fn talk(url: &str) -> Result<()> {
    let scenario = std::env::var("MCP_CONFORMANCE_SCENARIO").unwrap_or_default();
    let tools = McpToolset::new("suite", Http::new(url)).protocol(Protocol::Handshake);
    // Whoever is asked takes what a form has in it already.
    let tools = tools.answer_with(|_| async { Answer::input(json!({})) });
    let tools =
        if scenario.starts_with("auth/") { tools.oauth(sign_in(url, &scenario).await?) } else { tools };
    let agent = LlmAgent::new("client").model(caller()).toolset(tools.clone());
    let runner = Runner::new("conformance", agent)?;
    let session = runner.create_session("ann").await?;
    let mut message = Content::user("Call your tools.");
    for _ in 0..10 {
        let mut run = runner.run(&session.key, message);
        while let Some(event) = run.next().await {
            event?;
        }
        match run.outcome() {
            Some(Outcome::Interrupted { interrupts }) => {
                let Some(question) = interrupts.first() else { break };
                message = answer(question).await?;
            }
            _ => {
                tools.close().await;
                return Ok(());
            }
        }
    }
    Err(Error::new(ErrorKind::Other, "it asks and asks"))
}

/// A model that calls all tools at once, and is content with what comes.
fn caller() -> ScriptedModel {
    ScriptedModel::from_fn("caller", |request| {
        let has_called = request.contents.iter().any(|content| content.has_calls());
        if has_called {
            return vec![Ok(Chunk::Text("done".to_owned()))];
        }
        let calls = request.tools.specs().map(|spec| {
            let args = match spec.name.as_str() {
                "add_numbers" => json!({"a": 5, "b": 3}),
                _ => json!({}),
            };
            let args: Object = args.as_object().cloned().unwrap_or_default();
            Part::call(FunctionCall::new(spec.name.clone(), args))
        });
        let calls: Vec<Part> = calls.collect();
        if calls.is_empty() {
            return vec![Ok(Chunk::Text("there is nothing to call".to_owned()))];
        }
        vec![Ok(Chunk::Complete(Response::new(Content::new(Role::Model, calls))))]
    })
}

/// How to sign in, with what the suite says about the client.
async fn sign_in(url: &str, scenario: &str) -> Result<McpOAuth> {
    let context = std::env::var("MCP_CONFORMANCE_CONTEXT").unwrap_or_default();
    let context: Value = serde_json::from_str(&context).unwrap_or_default();
    let mut oauth = McpOAuth::new(url, BACK).client_document(DOCUMENT).allow_private("localhost");
    let said = |name: &str| context.get(name).and_then(Value::as_str);
    if let Some(id) = said("client_id") {
        // Who runs the suite trusts whom its server names.
        oauth = if let Ok(issuer) = oauth.issuer_of_server().await { oauth.issuer(issuer) } else { oauth };
        oauth = match said("private_key_pem") {
            Some(key) => oauth.known_as(OAuthClient::new(id).private_key(key, None)?),
            None => oauth.client(id, said("client_secret")),
        };
    }
    if scenario.contains("client-credentials") {
        oauth = oauth.by_itself();
    }
    Ok(oauth)
}

/// What a person would say who is asked to sign in: the address that this leads back to.
async fn answer(question: &Interrupt) -> Result<Content> {
    let place = question.payload.as_ref().and_then(|payload| {
        payload.pointer("/exchangedAuthCredential/oauth2/authUri").and_then(Value::as_str)
    });
    let failed = |error: &dyn std::fmt::Display| Error::new(ErrorKind::Other, format!("signing in: {error}"));
    let guard = umbel_tools::Guard::new(["*"]).allow_private("localhost");
    let browser = umbel_tools::guarded_client(&guard, std::time::Duration::from_secs(5))?;
    let place = place.ok_or_else(|| failed(&"there is no address"))?;
    let response = browser.get(place).send().await.map_err(|error| failed(&error))?;
    let back = response.headers().get("location").and_then(|back| back.to_str().ok());
    let back = back.ok_or_else(|| failed(&"it leads nowhere"))?;
    Ok(question.answer_with(&Answer::input(back)))
}
