//! Tools of the client: declared for one run, called by the agent, answered by the client in a later run.

use http::StatusCode;
use serde_json::{Value, json};
use umbel::{FunctionTool, LlmAgent, ModelRequest, ScriptedModel, Sequential};
use umbel_server::Server;

use crate::desk::{
    answers, ask, call, desk, end, of_kind, offered, results, said, say, serve, text, tool, user, with,
};
use crate::support::{Host, SseFrame, input};

fn declared(names: &[&str]) -> Value {
    names
        .iter()
        .map(|name| json!({"name": name, "description": "of the page", "parameters": {"type": "object"}}))
        .collect()
}

fn with_tools(input: Value, names: &[&str]) -> Value {
    with(input, "tools", declared(names))
}

/// The names of the tools that a model was offered.
fn offered_tools(request: &ModelRequest) -> Vec<String> {
    request.tools.specs().map(|spec| spec.name.to_string()).collect()
}

/// A model that calls all of these at once and then says what came back.
fn calls_all(names: &'static [&'static str]) -> ScriptedModel {
    answers(move |request| {
        let results = results(request);
        if results.is_empty() && said(request).len() == 1 {
            let parts = names.iter().map(|name| call([(name, json!({"of": name}))]));
            return vec![Ok(umbel::Chunk::Complete(umbel::Response::new(umbel::Content::new(
                umbel::Role::Model,
                parts
                    .flatten()
                    .filter_map(|chunk| match chunk {
                        Ok(umbel::Chunk::Complete(whole)) => {
                            whole.content.map(|content| content.parts[0].clone())
                        }
                        _ => None,
                    })
                    .collect::<Vec<_>>(),
            ))))];
        }
        let mut told: Vec<String> = results.iter().map(|(name, value)| format!("{name}={value}")).collect();
        told.extend(said(request).last().filter(|last| last.starts_with("user: ")).cloned());
        say(&told.join(" "))
    })
}

/// The calls that a stream ended with, in order.
fn pending(frames: &[SseFrame]) -> Vec<String> {
    let ids = end(frames)["outcome"]["pendingToolCallIds"].as_array().cloned().unwrap_or_default();
    ids.iter().map(|id| id.as_str().unwrap().to_owned()).collect()
}

/// Begins with three calls of the client's.
async fn three() -> (Host, ScriptedModel, Vec<String>) {
    let model = calls_all(&["one", "two", "three"]);
    let host = desk(LlmAgent::new("asker").model(model.clone())).await;
    let frames = host.run(&with_tools(input("t", "r1", "go"), &["one", "two", "three"])).await;
    let ids = pending(&frames);
    assert_eq!(ids.len(), 3);
    assert_eq!(of_kind(&frames, "TOOL_CALL_RESULT").len(), 0, "nobody answered yet");
    let ended: Vec<&str> =
        of_kind(&frames, "TOOL_CALL_END").iter().map(|end| end["toolCallId"].as_str().unwrap()).collect();
    assert_eq!(ended, ids, "each call is told once, in order");
    (host, model, ids)
}

#[tokio::test]
async fn several_calls_are_answered_together_in_any_order() {
    let (host, model, ids) = three().await;
    let answers = [tool("a3", &ids[2], "third"), tool("a1", &ids[0], "first"), tool("a2", &ids[1], "second")];
    let frames = host.run(&ask("t", "r2", &answers)).await;
    let told = text(&frames);
    for part in ["one={\"result\":\"first\"}", "two={\"result\":\"second\"}", "three={\"result\":\"third\"}"]
    {
        assert!(told.contains(part), "{part} in {told}");
    }
    assert_eq!((pending(&frames).len(), model.requests().len()), (0, 2), "the model is asked once more");
}

#[tokio::test]
async fn several_calls_are_answered_one_by_one_and_the_model_waits_for_the_last() {
    let (host, model, ids) = three().await;
    let first = host.run(&ask("t", "r2", &[tool("a2", &ids[1], "second")])).await;
    assert_eq!(
        (text(&first).as_str(), pending(&first)),
        ("", vec![ids[0].clone(), ids[2].clone()]),
        "two are left"
    );
    assert_eq!(model.requests().len(), 1, "the model is not asked before all are there");
    let second = host.run(&ask("t", "r3", &[tool("a3", &ids[2], "third")])).await;
    assert_eq!((text(&second).as_str(), pending(&second)), ("", vec![ids[0].clone()]));
    let third = host.run(&ask("t", "r4", &[tool("a1", &ids[0], "first")])).await;
    let told = text(&third);
    for part in ["one={\"result\":\"first\"}", "two={\"result\":\"second\"}", "three={\"result\":\"third\"}"]
    {
        assert!(told.contains(part), "{part} in {told}");
    }
    assert_eq!((pending(&third).len(), model.requests().len()), (0, 2));
}

#[tokio::test]
async fn doubled_and_unknown_answers_change_nothing() {
    let (host, model, ids) = three().await;
    let stray = host.run(&ask("t", "r2", &[tool("x", "no-such-call", "hm")])).await;
    assert_eq!((text(&stray).as_str(), pending(&stray).len(), model.requests().len()), ("", 3, 1));
    let answers = [
        tool("a1", &ids[0], "first"),
        tool("b1", &ids[0], "again"),
        tool("x2", "no-such-call", "hm"),
        tool("a2", &ids[1], "second"),
        tool("a3", &ids[2], "third"),
    ];
    let frames = host.run(&ask("t", "r3", &answers)).await;
    assert!(text(&frames).contains("one={\"result\":\"first\"}"), "{}", text(&frames));
    let late = host.run(&ask("t", "r4", &[tool("c1", &ids[0], "much later")])).await;
    assert_eq!((text(&late).as_str(), end(&late)["outcome"]["type"].as_str()), ("", Some("success")));
    assert_eq!(model.requests().len(), 2, "an answer that comes again asks nobody");
    let thread = host.get("/agent/threads/t").await.json().await;
    let results = thread["messages"].as_array().unwrap().iter().filter(|one| one["role"] == "tool");
    assert_eq!(results.count(), 3, "one result per call: {thread}");
}

#[tokio::test]
async fn a_message_instead_of_answers_tells_the_model_that_there_are_none() {
    let (host, model, ids) = three().await;
    let frames = host.run(&ask("t", "r2", &[tool("a2", &ids[1], "second"), user("m2", "forget it")])).await;
    assert!(text(&frames).contains("user: forget it"), "{}", text(&frames));
    assert_eq!(pending(&frames).len(), 0);
    let request = model.requests().pop().unwrap();
    let given: Vec<(String, Value)> = request
        .contents
        .iter()
        .flat_map(|content| content.responses())
        .map(|response| (response.name.to_string(), json!(response.response)))
        .collect();
    assert_eq!(given.len(), 3, "every call has an answer: {given:?}");
    for (name, value) in &given {
        match name.as_str() {
            "two" => assert_eq!(*value, json!({"result": "second"})),
            _ => assert!(value["error"].as_str().unwrap().contains("did not answer"), "{name}: {value}"),
        }
    }
    // The answers follow their calls, and what was said then comes behind them.
    let last = request.contents.last().unwrap();
    let is_answer: Vec<bool> = last.parts.iter().map(|part| part.as_response().is_some()).collect();
    assert_eq!(is_answer, [true, true, true, false], "{last:?}");
    let late = host.run(&ask("t", "r3", &[tool("a1", &ids[0], "first after all")])).await;
    assert_eq!(text(&late), "", "it is too late");
}

#[tokio::test]
async fn answers_are_text_json_parts_nothing_or_an_error() {
    let image = json!([{"type": "text", "text": "a cat"}, {"type": "image", "source": {"type": "data", "value": "aGk=", "mimeType": "image/png"}}]);
    let mut failed = tool("a", "", "");
    failed["error"] = json!("the page was closed");
    let cases = [
        (tool("a", "", "teal"), json!({"result": "teal"}), json!("teal")),
        (tool("a", "", ""), json!({"result": ""}), json!("")),
        (tool("a", "", "{\"color\": \"teal\"}"), json!({"color": "teal"}), json!("{\"color\":\"teal\"}")),
        (tool("a", "", "[1, 2]"), json!({"result": [1, 2]}), json!("[1,2]")),
        (tool("a", "", "42"), json!({"result": 42}), json!("42")),
        (tool("a", "", "{not json"), json!({"result": "{not json"}), json!("{not json")),
        (tool("a", "", "[".repeat(10_000)), json!({"result": "[".repeat(10_000)}), json!("[".repeat(10_000))),
        (tool("a", "", image.clone()), json!({"result": "a cat"}), image),
        (failed, json!({"error": "the page was closed"}), json!("{\"error\":\"the page was closed\"}")),
    ];
    for (at, (mut answer, given, shown)) in cases.into_iter().enumerate() {
        let model = calls_all(&["pick"]);
        let host = desk(LlmAgent::new("picker").model(model.clone())).await;
        let ids = pending(&host.run(&with_tools(input("t", "r1", "go"), &["pick"])).await);
        answer["toolCallId"] = json!(ids[0]);
        let frames = host.run(&ask("t", "r2", &[answer])).await;
        assert_eq!(end(&frames)["type"], "RUN_FINISHED", "{at}");
        let request = model.requests().pop().unwrap();
        assert_eq!(results(&request), [("pick".to_owned(), given)], "{at}");
        let thread = host.get("/agent/threads/t").await.json().await;
        let told = thread["messages"].as_array().unwrap().iter().find(|one| one["role"] == "tool").unwrap();
        assert_eq!(
            (&told["content"], &told["id"]),
            (&shown, &json!("a")),
            "{at}: it comes back as it was sent"
        );
    }
}

#[tokio::test]
async fn backend_and_client_tools_in_one_batch_each_get_their_answer() {
    let model = calls_all(&["ours", "theirs"]);
    let ours = FunctionTool::new("ours", "Ours", |_: Value| async { Ok("done here") });
    let host = desk(LlmAgent::new("mixed").model(model.clone()).tool(ours)).await;
    let frames = host.run(&with_tools(input("t", "r1", "go"), &["theirs"])).await;
    let started = of_kind(&frames, "TOOL_CALL_START");
    let theirs = started.iter().find(|start| start["toolCallName"] == "theirs").unwrap()["toolCallId"]
        .as_str()
        .unwrap();
    assert_eq!(pending(&frames), [theirs]);
    assert_eq!(
        of_kind(&frames, "TOOL_CALL_RESULT")
            .iter()
            .map(|result| result["content"].as_str().unwrap())
            .collect::<Vec<_>>(),
        ["done here"]
    );
    assert_eq!((text(&frames).as_str(), model.requests().len()), ("", 1), "the model waits for the other");
    let frames = host.run(&ask("t", "r2", &[tool("a", theirs, "done there")])).await;
    let told = text(&frames);
    assert!(
        told.contains("ours={\"result\":\"done here\"}")
            && told.contains("theirs={\"result\":\"done there\"}"),
        "{told}"
    );
}

#[tokio::test]
async fn a_workflow_goes_on_with_its_next_agent_after_the_answer() {
    let asks = LlmAgent::new("asks").model(answers(|request| match results(request).first() {
        None => call([("pick", json!({}))]),
        Some((_, value)) => say(&format!("picked {value}")),
    }));
    let closing = answers(|_| say("And that was that."));
    let closes = LlmAgent::new("closes").model(closing.clone());
    let host = desk(Sequential::new("flow").agent(asks).agent(closes)).await;
    let frames = host.run(&with_tools(input("t", "r1", "go"), &["pick"])).await;
    let ids = pending(&frames);
    assert_eq!((ids.len(), text(&frames).as_str()), (1, ""));
    assert_eq!(closing.requests().len(), 0, "the next agent waits");
    let frames = host.run(&ask("t", "r2", &[tool("a", &ids[0], "teal")])).await;
    assert_eq!(text(&frames), "picked {\"result\":\"teal\"}And that was that.");
    assert_eq!(closing.requests().len(), 1, "each agent has its turn once");
    assert_eq!((pending(&frames).len(), end(&frames)["outcome"]["type"].as_str()), (0, Some("success")));
}

#[tokio::test]
async fn names_that_are_taken_are_left_out_and_the_others_are_offered() {
    let model = answers(|request| match results(request).is_empty() {
        true => call([("ours", json!({}))]),
        false => say("done"),
    });
    let ours = FunctionTool::new("ours", "The real one", |_: Value| async { Ok("from the backend") });
    let sub = LlmAgent::new("helper").description("Helps").model(answers(|_| say("x")));
    let host = desk(LlmAgent::new("root").model(model.clone()).tool(ours).sub_agent(sub)).await;
    let names = [
        "ours",
        "transfer_to_agent",
        "set_model_response",
        "adk_request_confirmation",
        "adk_request_input",
        "adk_request_credential",
        "helper",
        "root",
        "finish_task",
        "theirs",
    ];
    let frames = host.run(&with_tools(input("t", "r", "go"), &names)).await;
    assert_eq!(pending(&frames).len(), 0, "the backend's tool was called");
    assert!(
        of_kind(&frames, "TOOL_CALL_RESULT")[0]["content"].as_str().unwrap().contains("from the backend")
    );
    let request = &model.requests()[0];
    let mut offered = offered_tools(request);
    offered.sort();
    assert_eq!(offered, ["ours", "theirs", "transfer_to_agent"]);
    let real = request.tools.get("ours").unwrap();
    assert_eq!(real.tool.spec().description, "The real one");
}

#[tokio::test]
async fn a_name_that_is_declared_twice_is_one_tool_the_last() {
    let model = answers(|_| say("done"));
    let host = desk(LlmAgent::new("root").model(model.clone())).await;
    let mut tools = declared(&["pick", "pick"]);
    tools[1]["description"] = json!("the later one");
    host.run(&with(input("t", "r", "go"), "tools", tools)).await;
    let request = &model.requests()[0];
    assert_eq!(offered_tools(request), ["pick"]);
    assert_eq!(request.tools.get("pick").unwrap().tool.spec().description, "the later one");
}

#[tokio::test]
async fn tools_of_one_run_are_not_seen_by_the_next_nor_by_one_at_the_same_time() {
    let model = answers(|_| say("done"));
    let host = desk(LlmAgent::new("root").model(model.clone())).await;
    host.run(&with_tools(input("t", "r1", "go"), &["first"])).await;
    host.run(&with_tools(input("t", "r2", "go"), &["second"])).await;
    host.run(&input("t", "r3", "go")).await;
    let seen: Vec<_> = model.requests().iter().map(offered_tools).collect();
    assert_eq!(seen, [vec!["first".to_owned()], vec!["second".to_owned()], vec![]]);

    let at_once = (0..16).map(|at| {
        let (host, name) = (&host, format!("tool_{at}"));
        async move {
            let thread = format!("c{at}");
            let text = format!("I have {name}");
            let body = with_tools(ask(&thread, &thread, &[user(&thread, &text)]), &[&name]);
            assert_eq!(end(&host.post("/agent", &body).await.frames().await)["type"], "RUN_FINISHED");
        }
    });
    futures::future::join_all(at_once).await;
    let requests = model.requests();
    assert_eq!(requests.len(), 3 + 16);
    for request in &requests[3..] {
        let said = said(request);
        let tools = offered_tools(request);
        assert_eq!((said.len(), tools.len()), (1, 1), "nothing of the others: {said:?} {tools:?}");
        assert_eq!(said[0], format!("user: I have {}", tools[0]));
    }
}

#[tokio::test]
async fn a_call_of_a_tool_that_this_run_does_not_have_is_the_model_s_mistake() {
    let model = answers(|request| match results(request).first() {
        None => call([("gone", json!({}))]),
        Some((_, value)) => say(&format!("{value}")),
    });
    let host = desk(LlmAgent::new("root").model(model)).await;
    let frames = host.run(&input("t", "r", "go")).await;
    assert_eq!((pending(&frames).len(), end(&frames)["type"].as_str()), (0, Some("RUN_FINISHED")));
    assert!(text(&frames).contains("gone"), "the model is told: {}", text(&frames));
}

#[tokio::test]
async fn schemas_reach_the_model_as_they_came_and_nonsense_is_none() {
    let model = answers(|_| say("done"));
    let host = desk(LlmAgent::new("root").model(model.clone())).await;
    let full = json!({"$schema": "http://json-schema.org/draft-07/schema#", "type": "object", "additionalProperties": false,
        "properties": {"color": {"type": "string", "enum": ["red", "teal"], "x-hint": 1}}, "required": ["color"], "$defs": {"a": {}}});
    let none = json!({"type": "object", "properties": {}});
    let cases = [
        (full.clone(), full),
        (json!(true), none.clone()),
        (json!([1]), none.clone()),
        (json!("x"), none.clone()),
        (json!({"type": 12}), json!({"type": 12})),
    ];
    for (at, (given, wanted)) in cases.into_iter().enumerate() {
        let id = format!("t{at}");
        let tools = json!([{"name": "pick", "description": "", "parameters": given}]);
        let frames = host.run(&with(input(&id, &id, "go"), "tools", tools)).await;
        assert_eq!(end(&frames)["type"], "RUN_FINISHED");
        let request = model.requests().pop().unwrap();
        assert_eq!(*request.tools.get("pick").unwrap().tool.spec().parameters, wanted, "{at}");
    }
}

#[tokio::test]
async fn an_agent_can_do_without_the_tools_of_clients() {
    let model = answers(|_| say("done"));
    let agent = offered(LlmAgent::new("root").model(model.clone())).client_tools(false);
    let host = serve(Server::new().agent("/agent", agent)).await;
    let reply = host.post("/agent", &with_tools(input("t", "r", "go"), &["pick"])).await;
    assert_eq!(reply.status(), StatusCode::OK);
    drop(reply.frames().await);
    assert_eq!(offered_tools(&model.requests()[0]), [""; 0]);
}

#[tokio::test]
async fn text_before_a_client_s_call_is_told_once_and_before_it() {
    for streamed in [true, false] {
        let model = answers(move |request| {
            if !results(request).is_empty() {
                return say("Thank you.");
            }
            let mut chunks = if streamed { say("Let me ask: ") } else { Vec::new() };
            let words = umbel::Part::text("Let me ask: ");
            let calling = umbel::Part::call(umbel::FunctionCall::new("pick", umbel::Object::new()));
            chunks.push(Ok(umbel::Chunk::Complete(umbel::Response::new(umbel::Content::new(
                umbel::Role::Model,
                [words, calling],
            )))));
            chunks
        });
        let host = desk(LlmAgent::new("root").model(model)).await;
        let frames = host.run(&with_tools(input("t", "r", "go"), &["pick"])).await;
        assert_eq!(text(&frames), "Let me ask: ", "streamed: {streamed}");
        let place = |kind: &str| frames.iter().position(|frame| frame.kind() == kind).unwrap();
        assert!(place("TEXT_MESSAGE_END") < place("TOOL_CALL_START"));
        let message = &frames[place("TEXT_MESSAGE_START")].event["messageId"];
        assert_eq!(
            &frames[place("TOOL_CALL_START")].event["parentMessageId"],
            message,
            "one assistant message"
        );
        let frames = host.run(&ask("t", "r2", &[tool("a", &pending(&frames)[0], "teal")])).await;
        assert_eq!(text(&frames), "Thank you.", "the answer is followed by words");
    }
}

#[tokio::test]
async fn beside_tools_of_the_client_a_structured_answer_comes_by_a_tool() {
    let schema = json!({"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]});
    let model = ScriptedModel::new("m").recorded().call("set_model_response", json!({"city": "Rome"}));
    let host = desk(LlmAgent::new("asker").model(model.clone()).output_schema(schema)).await;
    let frames = host.run(&with_tools(input("t", "r1", "go"), &["pick_colour"])).await;
    assert_eq!(end(&frames)["result"], json!({"city": "Rome"}));
    let request = model.requests().remove(0);
    assert!(request.output_schema.is_none(), "the model cannot take both");
    assert_eq!(offered_tools(&request), ["set_model_response", "pick_colour"]);
}
