//! Calls: what they are given, what they give, what they tell meanwhile, and how they end early.

use std::time::Duration;

use rmcp::ServiceError;
use rmcp::model::{ClientRequest, ErrorCode, NumberOrString, ProgressToken, RequestMetaObject};
use rmcp::service::PeerRequestOptions;
use serde_json::{Value, json};
use umbel_core::{Error, ErrorKind, Part, ToolError, ToolValue, TraceContext};
use umbel_mcp::server::{AgentOffer, ClientModel, McpLimits, McpServer};
use umbel_runtime::{LlmAgent, Runner, ScriptedModel};

use crate::support::{
    Lines, TestClient, TestTool, call, connect, session, sessions_of, soon, speaker, texts, turns, until,
};

#[tokio::test]
async fn an_agent_is_a_tool() {
    let runner = speaker(["Good morning."]);
    let server = McpServer::new("house").version("7").instructions("Be brief.").agent(runner.clone());
    let client = connect(server, "ann", TestClient::default()).await;
    let info = client.peer_info().unwrap();
    let identity = info.server_info.clone().unwrap();
    assert_eq!((identity.name.as_str(), identity.version.as_str()), ("house", "7"));
    assert_eq!(info.instructions.as_deref(), Some("Be brief."));
    let tools = client.list_all_tools().await.unwrap();
    assert_eq!(tools.len(), 1);
    assert_eq!((tools[0].name.as_ref(), tools[0].description.as_deref()), ("speaker", Some("Speaks.")));
    let schema = Value::Object((*tools[0].input_schema).clone());
    assert_eq!(schema["required"], json!(["request"]));
    assert_eq!(schema["properties"]["request"]["type"], "string");
    let result = client.call_tool(call("speaker", json!({"request": "Hello"}))).await.unwrap();
    assert_eq!((texts(&result), result.is_error), (vec!["Good morning."], Some(false)));
    let sessions = sessions_of(&runner, "ann").await;
    assert_eq!(sessions.len(), 1);
    assert_eq!(sessions[0].id(), session(&result));
}

#[tokio::test]
async fn an_agent_may_be_offered_by_another_name() {
    let offer = AgentOffer::new(speaker(["Hi."])).name("greet").description("Greets.");
    let client = connect(McpServer::new("house").agent(offer), "ann", TestClient::default()).await;
    let tools = client.list_all_tools().await.unwrap();
    assert_eq!((tools[0].name.as_ref(), tools[0].description.as_deref()), ("greet", Some("Greets.")));
    let result = client.call_tool(call("greet", json!({"request": "Hello"}))).await.unwrap();
    assert_eq!(texts(&result), ["Hi."]);
}

#[tokio::test]
async fn each_call_is_a_conversation_unless_it_names_one() {
    let runner = speaker(["One.", "Two.", "Three."]);
    let server = McpServer::new("house").agent(AgentOffer::new(runner.clone()).conversations());
    let client = connect(server, "ann", TestClient::default()).await;
    let first = client.call_tool(call("speaker", json!({"request": "a"}))).await.unwrap();
    let id = session(&first);
    assert_eq!(texts(&first), ["One.", &format!("session: {id}")]);
    let other = client.call_tool(call("speaker", json!({"request": "b"}))).await.unwrap();
    assert_ne!(session(&other), id);
    let more = client.call_tool(call("speaker", json!({"request": "c", "session": id}))).await.unwrap();
    assert_eq!((texts(&more)[0], session(&more)), ("Three.", id.clone()));
    let sessions = sessions_of(&runner, "ann").await;
    let key = sessions.iter().find(|key| key.id() == id).unwrap();
    assert_eq!(turns(&runner, key).await, 2);
}

#[tokio::test]
async fn nobody_goes_on_with_the_conversation_of_another() {
    let runner = speaker(["One.", "Two."]);
    let house = || McpServer::new("house").agent(runner.clone());
    let ann = connect(house(), "ann", TestClient::default()).await;
    let first = ann.call_tool(call("speaker", json!({"request": "a"}))).await.unwrap();
    let bob = connect(house(), "bob", TestClient::default()).await;
    let stolen = json!({"request": "b", "session": session(&first)});
    let refused = bob.call_tool(call("speaker", stolen)).await.unwrap();
    assert_eq!(refused.is_error, Some(true));
    assert_eq!(texts(&refused), ["there is no such session: leave `session` out to begin anew"]);
    assert!(sessions_of(&runner, "bob").await.is_empty());
    assert_eq!(turns(&runner, &sessions_of(&runner, "ann").await[0]).await, 1);
}

#[tokio::test]
async fn structures_go_in_and_out() {
    let model = ScriptedModel::new("script").recorded().text(r#"{"sum": 5}"#);
    let agent = LlmAgent::new("adder")
        .model(model.clone())
        .input_schema(json!({"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}))
        .output_schema(json!({"type": "object", "properties": {"sum": {"type": "integer"}}}));
    let server = McpServer::new("house").agent(Runner::new("adder", agent).unwrap());
    let client = connect(server, "ann", TestClient::default()).await;
    let tool = &client.list_all_tools().await.unwrap()[0];
    assert_eq!(tool.input_schema["required"], json!(["a"]));
    assert_eq!(tool.output_schema.as_ref().unwrap()["properties"]["sum"]["type"], "integer");
    let result = client.call_tool(call("adder", json!({"a": 2}))).await.unwrap();
    assert_eq!(result.structured_content, Some(json!({"sum": 5})));
    assert_eq!(texts(&result), [r#"{"sum":5}"#]);
    let asked = model.requests()[0].contents.iter().next_back().unwrap().text();
    assert_eq!(asked, r#"{"a":2}"#);
    let bad = client.call_tool(call("adder", json!({"a": "two"}))).await.unwrap();
    assert_eq!(bad.is_error, Some(true));
    assert!(texts(&bad)[0].starts_with("the arguments do not fit `adder`: at `/a`"), "{bad:?}");
}

#[tokio::test]
async fn an_answer_that_is_no_object_is_wrapped_in_one() {
    let agent = LlmAgent::new("lister")
        .model(ScriptedModel::new("script").text("[1, 2]"))
        .output_schema(json!({"type": "array", "items": {"type": "integer"}}));
    let server = McpServer::new("house").agent(Runner::new("lister", agent).unwrap());
    let client = connect(server, "ann", TestClient::default()).await;
    let tool = &client.list_all_tools().await.unwrap()[0];
    assert_eq!(tool.output_schema.as_ref().unwrap()["type"], "object");
    let result = client.call_tool(call("lister", json!({"request": "go"}))).await.unwrap();
    assert_eq!(result.structured_content, Some(json!({"result": [1, 2]})));
}

#[tokio::test]
async fn a_tool_is_offered_as_it_is_and_leaves_nothing_behind() {
    let mut add = TestTool::new("add", |_, args| {
        let sum = args["a"].as_i64().unwrap() + args["b"].as_i64().unwrap();
        std::future::ready(Ok(json!({"sum": sum}).into()))
    });
    add.spec.parameters = std::sync::Arc::new(json!({
        "type": "object",
        "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
        "required": ["a", "b"],
    }));
    add.spec.read_only = true;
    let store = std::sync::Arc::new(umbel_core::InMemorySessions::new());
    let kept = store.clone();
    let server = McpServer::new("house").tool(add).tool_runner(move |runner| runner.sessions(kept));
    let client = connect(server, "ann", TestClient::default()).await;
    let tool = &client.list_all_tools().await.unwrap()[0];
    assert_eq!(tool.annotations.as_ref().unwrap().read_only_hint, Some(true));
    let result = client.call_tool(call("add", json!({"a": 2, "b": 3}))).await.unwrap();
    assert_eq!((result.structured_content.clone(), result.is_error), (Some(json!({"sum": 5})), Some(false)));
    let bad = client.call_tool(call("add", json!({"a": 2}))).await.unwrap();
    assert_eq!(bad.is_error, Some(true));
    assert!(texts(&bad)[0].contains("\"b\" is a required property"), "{bad:?}");
    let left = umbel_core::SessionStore::list(&*store, "tools", "ann").await.unwrap();
    assert!(left.is_empty());
}

#[tokio::test]
async fn media_and_files_are_part_of_a_result() {
    let tool = TestTool::new("show", |_, _| {
        let mut text = Part::data("text/plain", b"notes".to_vec());
        if let umbel_core::Payload::InlineData(blob) = &mut text.payload {
            blob.display_name = Some("notes://today".to_owned());
        }
        let parts = vec![Part::data("image/png", vec![1]), Part::data("audio/wav", vec![2]), text];
        std::future::ready(Ok(ToolValue { value: json!("Look."), parts, ..ToolValue::default() }.into()))
    });
    let client = connect(McpServer::new("house").tool(tool), "ann", TestClient::default()).await;
    let result = client.call_tool(call("show", json!({}))).await.unwrap();
    let content = serde_json::to_value(&result.content).unwrap();
    assert_eq!(
        content,
        json!([
            {"type": "text", "text": "Look."},
            {"type": "image", "data": "AQ==", "mimeType": "image/png"},
            {"type": "audio", "data": "Ag==", "mimeType": "audio/wav"},
            {"type": "resource", "resource": {"uri": "notes://today", "mimeType": "text/plain", "text": "notes"}},
        ])
    );
}

#[tokio::test]
async fn what_goes_wrong_is_told_in_words_without_what_is_inside() {
    let told = TestTool::new("told", |_, _| std::future::ready(Err(ToolError::new("the file is locked"))));
    let panics = TestTool::new("panics", |_, _| async { panic!("secret address 10.0.0.7") });
    let failing = |name: &str, error: Error| {
        let model =
            ScriptedModel::from_fn("broken", move |_| vec![Err(Error::new(error.kind(), error.message()))]);
        Runner::new("app", LlmAgent::new(name).model(model)).unwrap()
    };
    let broken = failing("broken", Error::new(ErrorKind::Store, "db.internal:5432 refused"));
    let limited = failing("limited", Error::new(ErrorKind::ModelCallLimit, "500 of 500"));
    let server = McpServer::new("house").tool(told).tool(panics).agent(broken).agent(limited);
    let client = connect(server, "ann", TestClient::default()).await;
    let mut said = Vec::new();
    for (name, args) in [
        ("told", json!({})),
        ("panics", json!({})),
        ("broken", json!({"request": "x"})),
        ("limited", json!({"request": "x"})),
    ] {
        let result = client.call_tool(call(name, args)).await.unwrap();
        assert_eq!(result.is_error, Some(true), "{name}");
        said.push(texts(&result).join("\n"));
    }
    assert_eq!(said[0], "the file is locked");
    assert!(!said[1].contains("10.0.0.7"), "{}", said[1]);
    assert!(said[2].starts_with("the run failed (reference "), "{}", said[2]);
    assert!(said[3].starts_with("the run used up its model calls (reference "), "{}", said[3]);
}

#[tokio::test]
async fn an_unknown_tool_is_a_mistake_of_the_client() {
    let client = connect(McpServer::new("house").agent(speaker(["."])), "ann", TestClient::default()).await;
    let Err(ServiceError::McpError(error)) = client.call_tool(call("speeker", json!({}))).await else {
        panic!("it was called")
    };
    assert_eq!(error.code, ErrorCode::INVALID_PARAMS);
    assert_eq!(error.message, "there is no tool `speeker`. There are: speaker");
}

fn with_token() -> RequestMetaObject {
    let mut meta = RequestMetaObject::new();
    meta.set_progress_token(ProgressToken(NumberOrString::String("t".into())));
    meta
}

#[tokio::test]
async fn what_an_agent_does_is_progress() {
    let model = ScriptedModel::new("script").call("look", json!({})).stream(["It ", "is ", "fine."]);
    let look = TestTool::with_news("look", vec![json!({"message": "half way"})], json!("seen"));
    let runner = Runner::new("app", LlmAgent::new("watcher").model(model).tool(look)).unwrap();
    let test = TestClient::default();
    let client = connect(McpServer::new("house").agent(runner), "ann", test.clone()).await;
    let mut params = call("watcher", json!({"request": "?"}));
    params.meta = Some(with_token());
    let result = client.call_tool(params).await.unwrap();
    assert_eq!(texts(&result), ["It is fine."]);
    let words = || test.progress().iter().filter_map(|one| one.message.clone()).collect::<String>();
    until(|| words().ends_with("It is fine.")).await;
    let progress = test.progress();
    let messages: Vec<&str> = progress.iter().filter_map(|one| one.message.as_deref()).collect();
    assert_eq!(messages[..2], ["calls `look`", "half way"]);
    assert_eq!(messages[2..].concat(), "It is fine.");
    assert!(progress.windows(2).all(|two| two[0].progress < two[1].progress), "{progress:?}");
}

#[tokio::test]
async fn a_tool_says_how_far_it_is() {
    let news = [0, 50, 100].map(|at| json!({"progress": at, "total": 100, "message": format!("{at} %")}));
    let test = TestClient::default();
    let tool = TestTool::with_news("load", news.to_vec(), json!("loaded"));
    let client = connect(McpServer::new("house").tool(tool), "ann", test.clone()).await;
    let mut params = call("load", json!({}));
    params.meta = Some(with_token());
    assert_eq!(texts(&client.call_tool(params).await.unwrap()), ["loaded"]);
    let told: Vec<_> =
        test.progress().into_iter().map(|one| (one.progress, one.total, one.message)).collect();
    let expected = [0.0, 50.0, 100.0].map(|at| (at, Some(100.0), Some(format!("{at} %"))));
    assert_eq!(told, expected);
}

#[tokio::test]
async fn who_asks_for_no_progress_gets_news_as_log_messages() {
    let tool = TestTool::with_news("load", vec![json!("one"), json!({"n": 2})], json!("loaded"));
    let mut lines = Lines::new(McpServer::new("house").tool(tool)).await;
    for (id, level, expected) in [(1, "debug", 2), (3, "warning", 0), (5, "info", 2)] {
        let params = json!({"level": level});
        let set = json!({"jsonrpc": "2.0", "id": id, "method": "logging/setLevel", "params": params});
        lines.send(&set.to_string()).await;
        lines.until_answer(id).await;
        lines.send(&crate::http::tool_call(id + 1, "load", json!({})).to_string()).await;
        let (news, answer) = lines.until_answer(id + 1).await;
        assert_eq!(answer["result"]["content"][0]["text"], "loaded");
        let told: Vec<&Value> = news.iter().map(|one| &one["params"]).collect();
        let one = json!({"level": "info", "logger": "load", "data": "one"});
        let two = json!({"level": "info", "logger": "load", "data": {"n": 2}});
        assert_eq!(told, [&one, &two][..expected], "{level}");
    }
}

#[tokio::test]
async fn a_cancelled_call_cancels_its_run() {
    let (tool, mut told) = TestTool::endless("wait");
    let model = ScriptedModel::new("script").call("wait", json!({})).text("never");
    let runner = Runner::new("app", LlmAgent::new("waiter").model(model).tool(tool)).unwrap();
    let client = connect(McpServer::new("house").agent(runner.clone()), "ann", TestClient::default()).await;
    let request = rmcp::model::CallToolRequest::new(call("waiter", json!({"request": "?"})));
    let options = PeerRequestOptions::no_options();
    let handle =
        client.send_cancellable_request(ClientRequest::CallToolRequest(request), options).await.unwrap();
    assert_eq!(soon(told.recv()).await, Some("begun"));
    handle.cancel(Some("enough".to_owned())).await.unwrap();
    assert_eq!(soon(told.recv()).await, Some("dropped"));
    let key = sessions_of(&runner, "ann").await.remove(0);
    soon(async {
        while runner.session(&key).await.unwrap().unwrap().running.is_some() {
            tokio::task::yield_now().await;
        }
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_client_that_goes_away_cancels_its_calls() {
    let (tool, mut told) = TestTool::endless("wait");
    let server = McpServer::new("house").tool(tool);
    let client = connect(server, "ann", TestClient::default()).await;
    let peer = client.peer().clone();
    let waiting = tokio::spawn(async move { peer.call_tool_once(call("wait", json!({}))).await });
    assert_eq!(told.recv().await, Some("begun"));
    client.cancel().await.unwrap();
    assert_eq!(told.recv().await, Some("dropped"));
    assert!(waiting.await.unwrap().is_err());
}

#[tokio::test]
async fn a_user_has_so_many_calls_at_once() {
    let (tool, mut told) = TestTool::endless("wait");
    let limits = McpLimits { calls_per_user: 1, ..McpLimits::default() };
    let server = McpServer::new("house").tool(tool).limits(limits);
    let client = connect(server, "ann", TestClient::default()).await;
    let peer = client.peer().clone();
    let waiting = tokio::spawn(async move { peer.call_tool_once(call("wait", json!({}))).await });
    assert_eq!(soon(told.recv()).await, Some("begun"));
    let refused = client.call_tool(call("wait", json!({}))).await.unwrap();
    assert_eq!(texts(&refused), ["too many calls are under way: try again when some are done"]);
    waiting.abort();
}

#[tokio::test]
async fn an_agent_may_think_with_the_model_of_the_client() {
    let agent = LlmAgent::new("borrower").model(ClientModel::new()).instruction("Be kind.");
    let runner = Runner::new("app", agent).unwrap();
    let house = || McpServer::new("house").agent(runner.clone());
    let test = TestClient { samples: true, ..TestClient::default() };
    let client = connect(house(), "ann", test.clone()).await;
    let result = client.call_tool(call("borrower", json!({"request": "Hello"}))).await.unwrap();
    assert_eq!(texts(&result), ["from the client"]);
    let asked = test.asked.lock().unwrap().remove(0);
    assert!(asked["systemPrompt"].as_str().unwrap().starts_with("Be kind."), "{asked}");
    assert_eq!(asked["messages"][0]["content"]["text"], "Hello");
    let poor = connect(house(), "ann", TestClient::default()).await;
    let result = poor.call_tool(call("borrower", json!({"request": "Hello"}))).await.unwrap();
    assert_eq!(result.is_error, Some(true));
    assert!(texts(&result)[0].starts_with("the model could not answer"), "{result:?}");
}

#[tokio::test]
async fn a_call_is_part_of_the_trace_that_it_names() {
    let parent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
    let tool = TestTool::new("trace", |cx, _| {
        let trace = cx.extension::<TraceContext>().map(|trace| trace.traceparent().to_owned());
        std::future::ready(Ok(json!({"trace": trace}).into()))
    });
    let client = connect(McpServer::new("house").tool(tool), "ann", TestClient::default()).await;
    let mut params = call("trace", json!({}));
    let mut meta = RequestMetaObject::new();
    meta.0.set_traceparent(parent);
    params.meta = Some(meta);
    let result = client.call_tool(params).await.unwrap();
    assert_eq!(result.structured_content, Some(json!({"trace": parent})));
}

#[tokio::test(start_paused = true)]
async fn two_calls_of_one_client_do_not_wait_for_each_other() {
    let slow = TestTool::new("slow", |_, _| async {
        tokio::time::sleep(Duration::from_secs(60)).await;
        Ok(json!("slow").into())
    });
    let quick = TestTool::new("quick", |_, _| std::future::ready(Ok(json!("quick").into())));
    let client = connect(McpServer::new("house").tool(slow).tool(quick), "ann", TestClient::default()).await;
    let peer = client.peer().clone();
    let waiting = tokio::spawn(async move { peer.call_tool_once(call("slow", json!({}))).await });
    let begun = tokio::time::Instant::now();
    assert_eq!(texts(&client.call_tool(call("quick", json!({}))).await.unwrap()), ["quick"]);
    assert!(begun.elapsed() < Duration::from_secs(60));
    assert!(waiting.await.unwrap().is_ok());
}

#[test]
fn names_that_meet_are_refused() {
    let twice = McpServer::new("house").agent(speaker(["."])).agent(speaker(["."]));
    let error = twice.http().unwrap_err();
    assert_eq!(error.message(), "two tools are named `speaker`: name one of them otherwise");
}
