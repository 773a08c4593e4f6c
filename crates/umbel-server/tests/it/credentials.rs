//! Credentials that front ends are asked for: given by `resume` or by a tool message, and told to nobody.

use serde_json::{Value, json};
use umbel::{AuthConfig, FunctionTool, HttpPlace, LlmAgent, Parallel, PlainAuth, ScriptedModel};

use crate::desk::{
    ByName, answers, ask, call, desk, end, of_kind, offered, results, say, serve, text, tool, user, with,
};
use crate::support::{Host, input};

const CANARY: &str = "c4n4ry";

/// A tool that needs a key, and says how long the key is.
fn order() -> FunctionTool {
    let auth = AuthConfig::new(
        "shop",
        PlainAuth::api_key(HttpPlace::Header, "X-Key").question("The key of the shop?"),
    );
    let inner = auth.clone();
    let order = FunctionTool::with_context("order", "Orders", move |cx, _: Value| {
        let auth = inner.clone();
        Box::pin(async move {
            let grant = cx.credential(&auth).await?;
            Ok(json!({"length": grant.http().map(|http| http.expose().len())}))
        })
    });
    order.auth(auth)
}

/// A model that orders, and says what came of it.
fn orders() -> ScriptedModel {
    answers(|request| match results(request).first() {
        None => call([("order", json!({}))]),
        Some((_, value)) => say(&value.to_string()),
    })
}

/// An agent whose tool needs a key.
fn locked() -> LlmAgent {
    LlmAgent::new("shop").model(orders()).tool(order())
}

fn resume(run: &str, question: &str, answer: Value) -> Value {
    let mut entry = json!({"interruptId": question, "status": "resolved"});
    match answer {
        Value::Null => entry["status"] = json!("cancelled"),
        payload => entry["payload"] = payload,
    }
    with(ask("t", run, &[]), "resume", json!([entry]))
}

/// All that can be read of the thread and its runs, and of the server.
async fn told(host: &Host) -> String {
    let mut told = String::new();
    for path in [
        "/agent/threads/t",
        "/agent/threads/t/events",
        "/agent/runs/r/events",
        "/agent/runs/r2/events",
        "/agent/runs/r2/trace",
        "/agent/threads",
        "/metrics",
    ] {
        told += &host.get(path).await.text().await;
    }
    told
}

#[tokio::test]
async fn a_front_end_gives_a_credential_and_reads_it_nowhere() {
    let host = desk(locked()).await;
    let frames = host.run(&input("t", "r", "order it")).await;
    let asked = end(&frames)["outcome"]["interrupts"][0].clone();
    assert_eq!(
        (&asked["reason"], &asked["message"]),
        (&json!("umbel:credential"), &json!("The key of the shop?"))
    );
    assert_eq!(asked["responseSchema"]["required"], json!(["apiKey"]));
    assert_eq!(
        asked["metadata"]["payload"]["authScheme"],
        json!({"type": "apiKey", "in": "header", "name": "X-Key"})
    );
    let question = asked["id"].as_str().unwrap();
    let mut streams = String::new();
    for bad in [
        json!({"key": CANARY}),
        json!({"approved": true, "args": CANARY}),
        json!(format!("{CANARY}\r\n{CANARY}")),
    ] {
        let frames = host.run(&resume("bad", question, bad)).await;
        assert_eq!(end(&frames)["code"], "INVALID_ANSWER", "{}", end(&frames));
        streams.extend(frames.iter().map(|frame| frame.text.as_str()));
        host.idle().await;
    }
    for run in ["r2", "r2"] {
        // The second time it is told again.
        let frames = host.run(&resume(run, question, json!({"apiKey": CANARY}))).await;
        assert_eq!(end(&frames)["outcome"]["type"], "success", "{}", end(&frames));
        assert!(text(&frames).contains("\"length\":6"), "{}", text(&frames));
        streams.extend(frames.iter().map(|frame| frame.text.as_str()));
        host.idle().await;
    }
    for told in [streams, told(&host).await] {
        assert!(!told.contains(CANARY), "{told}");
    }
}

#[tokio::test]
async fn a_front_end_that_knows_no_interrupts_answers_the_call_that_asks() {
    let host = desk(locked()).await;
    let old = |run: &str, messages: &[Value]| {
        let mut input = ask("t", run, messages);
        input.as_object_mut().unwrap().remove("protocolVersion");
        input
    };
    let frames = host.run(&old("r", &[user("m1", "order it")])).await;
    let calls = of_kind(&frames, "TOOL_CALL_START");
    let asks = calls.iter().find(|call| call["toolCallName"] == "adk_request_credential").unwrap();
    let question = asks["toolCallId"].as_str().unwrap();
    let given = tool("m2", question, json!({"apiKey": CANARY}).to_string());
    let frames = host.run(&old("r2", &[user("m1", "order it"), given.clone()])).await;
    assert!(text(&frames).contains("\"length\":6"), "{frames:?}");
    host.idle().await;
    let streams: String = frames.iter().map(|frame| frame.text.as_str()).collect();
    for told in [streams, told(&host).await] {
        assert!(!told.contains(CANARY), "{told}");
    }
    // The conversation goes on elsewhere, with all that the client has of it.
    let call = json!({"id": question, "type": "function", "function": {"name": "adk_request_credential", "arguments": "{}"}});
    let assistant = json!({"id": "m3", "role": "assistant", "content": "", "toolCalls": [call]});
    let moved = with(
        old("r3", &[user("m1", "order it"), assistant, given, user("m4", "and now?")]),
        "threadId",
        json!("t2"),
    );
    host.run(&moved).await;
    host.idle().await;
    let log = host.get("/agent/threads/t2/events").await.text().await;
    assert!(log.contains("and now?") && !log.contains(CANARY), "{log}");
}

#[tokio::test]
async fn a_credential_that_is_not_given_ends_the_question() {
    let host = desk(locked()).await;
    let frames = host.run(&input("t", "r", "order it")).await;
    let question = end(&frames)["outcome"]["interrupts"][0]["id"].as_str().unwrap().to_owned();
    let frames = host.run(&resume("r2", &question, Value::Null)).await;
    assert_eq!(end(&frames)["outcome"]["type"], "success");
    assert!(text(&frames).contains("nobody gave the credential"), "{}", text(&frames));
}

#[tokio::test]
async fn nobody_answers_for_another_user() {
    let host = serve(umbel_server::Server::new().auth(ByName).agent("/agent", offered(locked()))).await;
    let post = async |name: &str, body: Value| {
        host.ask(name, http::Method::POST, "/agent", &body).await.frames().await
    };
    let frames = post("ann", input("t", "r", "order it")).await;
    let question = end(&frames)["outcome"]["interrupts"][0]["id"].as_str().unwrap().to_owned();
    let frames = post("bob", resume("r2", &question, json!({"apiKey": CANARY}))).await;
    assert_eq!(end(&frames)["code"], "UNKNOWN_INTERRUPT");
    let frames = post("ann", resume("r2", &question, json!({"apiKey": "mine"}))).await;
    assert!(text(&frames).contains("\"length\":4"), "{}", text(&frames));
}

#[tokio::test]
async fn a_text_that_looks_like_json_is_a_key_like_any_other() {
    for (key, length) in [("123456", 6), ("true", 4), (r#"{"type":"service_account"}"#, 26)] {
        let host = desk(locked()).await;
        let old = |run: &str, messages: &[Value]| {
            let mut input = ask("t", run, messages);
            input.as_object_mut().unwrap().remove("protocolVersion");
            input
        };
        let frames = host.run(&old("r", &[user("m1", "order it")])).await;
        let calls = of_kind(&frames, "TOOL_CALL_START");
        let asks = calls.iter().find(|call| call["toolCallName"] == "adk_request_credential").unwrap();
        let given = tool("m2", asks["toolCallId"].as_str().unwrap(), key.to_owned());
        let frames = host.run(&old("r2", &[user("m1", "order it"), given])).await;
        assert!(text(&frames).contains(&format!("\"length\":{length}")), "{}", text(&frames));
    }
}

#[tokio::test]
async fn one_answer_does_for_all_questions_for_the_same_credential() {
    let agent = |name: &str| LlmAgent::new(name).model(orders()).tool(order());
    let host = desk(Parallel::new("both").agent(agent("left")).agent(agent("right"))).await;
    let frames = host.run(&input("t", "r", "order it")).await;
    let asked = end(&frames)["outcome"]["interrupts"].clone();
    assert_eq!(asked.as_array().unwrap().len(), 2);
    let question = asked[1]["id"].as_str().unwrap();
    let frames = host.run(&resume("r2", question, json!({"apiKey": "mine"}))).await;
    assert_eq!(end(&frames)["outcome"]["type"], "success", "{}", end(&frames));
    assert_eq!(text(&frames).matches("\"length\":4").count(), 2, "{}", text(&frames));
}
