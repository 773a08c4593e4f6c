//! What servers ask while they work: people, and models.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::{Value, json};
use tokio::sync::Notify;
use umbel_core::{Answer, InMemorySessions, Interrupt, Outcome, SessionKey, SessionStore};
use umbel_mcp::client::{McpToolset, Pipe, Sampling, ToolsetLimits};
use umbel_runtime::ScriptedModel;

use crate::fake::{Log, Out, server, tool, tools_server};
use crate::{desk, desk_on, responses};

fn model(name: &str) -> ScriptedModel {
    ScriptedModel::new("m").call(name, json!({})).text("done")
}

fn asked(outcome: &Outcome) -> Interrupt {
    let Outcome::Interrupted { interrupts } = outcome else { panic!("it should ask: {outcome:?}") };
    assert_eq!(interrupts.len(), 1);
    interrupts[0].clone()
}

const SCHEMA: &str = r#"{"type": "object", "properties": {"size": {"type": "string", "enum": ["s", "m"]},
    "gift": {"type": "boolean", "default": false}}, "required": ["size"]}"#;

/// A server that asks for a size, and says what it was told.
fn shop() -> (Pipe, Log) {
    tools_server(json!([tool("order")]), |request, out| async move {
        let schema: Value = serde_json::from_str(SCHEMA).unwrap();
        let params = json!({"mode": "form", "message": "Which size?", "requestedSchema": schema});
        let told = out.ask("q1", "elicitation/create", params).await;
        out.text(&request, &told["result"].to_string()).await;
    })
}

#[tokio::test(start_paused = true)]
async fn a_question_of_a_server_ends_the_run_and_its_answer_goes_back_after_a_restart() {
    let store: Arc<dyn SessionStore> = Arc::new(InMemorySessions::new());
    let (pipe, log) = shop();
    let before = desk_on(McpToolset::new("shop", pipe), model("order"), store.clone()).await;
    let question = asked(&before.say("go").await.1);
    assert_eq!(question.message.as_deref(), Some("The MCP server `shop` asks: Which size?"));
    assert_eq!(question.response_schema.as_ref().unwrap()["properties"]["size"]["enum"], json!(["s", "m"]));
    assert_eq!(question.payload, Some(json!({"mcpServer": "shop", "mode": "form"})));
    log.wait_for("notifications/cancelled").await;
    drop(before);

    let (pipe, _) = shop();
    let after = desk_on(McpToolset::new("shop", pipe), ScriptedModel::new("m").text("done"), store).await;
    let wrong = question.answer_with(&Answer::input(json!({"size": "xl"})));
    assert!(matches!(after.say(wrong).await.1, Outcome::Failed { .. }), "it does not fit the schema");
    let (events, outcome) = after.say(question.answer_with(&Answer::input(json!({"size": "m"})))).await;
    assert_eq!(outcome, Outcome::Finished);
    let told: Value = serde_json::from_str(responses(&events)[0]["result"].as_str().unwrap()).unwrap();
    assert_eq!(told, json!({"action": "accept", "content": {"size": "m", "gift": false}}));
}

#[tokio::test(start_paused = true)]
async fn a_person_may_decline() {
    let (pipe, _) = shop();
    let desk = desk(McpToolset::new("shop", pipe), model("order")).await;
    let question = asked(&desk.say("go").await.1);
    let (events, _) = desk.say(question.answer_with(&Answer::reject())).await;
    assert_eq!(responses(&events)[0], json!({"result": "{\"action\":\"decline\"}"}));
}

#[tokio::test(start_paused = true)]
async fn a_program_whose_user_is_there_answers_at_once() {
    let (pipe, log) = shop();
    let toolset = McpToolset::new("shop", pipe).answer_with(|question| async move {
        assert_eq!(question.message, "The MCP server `shop` asks: Which size?");
        Answer::input(json!({"size": "s"}))
    });
    let desk = desk(toolset, model("order")).await;
    let told: Value = serde_json::from_str(desk.result().await["result"].as_str().unwrap()).unwrap();
    assert_eq!(told["content"], json!({"size": "s", "gift": false}));
    assert_eq!(log.of("tools/call").len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_server_that_may_not_ask_is_told_so() {
    let (pipe, log) = shop();
    let desk = desk(McpToolset::new("shop", pipe).elicitation(false), model("order")).await;
    desk.result().await;
    assert_eq!(log.answers()[0]["error"]["code"], -32601);
    assert!(log.of("initialize")[0]["params"]["capabilities"]["elicitation"].is_null());
}

#[tokio::test(start_paused = true)]
async fn a_page_to_visit_is_shown_and_only_pages_are() {
    let visit = |url: &'static str| {
        let (pipe, log) = tools_server(json!([tool("pay")]), move |request, out| async move {
            let params = json!({"mode": "url", "message": "Pay here.", "url": url, "elicitationId": "e1"});
            let told = out.ask("q1", "elicitation/create", params).await;
            out.text(&request, &told["result"]["action"].to_string()).await;
        });
        (McpToolset::new("bank", pipe), log)
    };
    let desk_at = desk(visit("https://bank.example/pay").0, model("pay")).await;
    let question = asked(&desk_at.say("go").await.1);
    assert!(question.message.as_ref().unwrap().contains("https://bank.example/pay"));
    assert_eq!(question.payload.as_ref().unwrap()["url"], "https://bank.example/pay");
    let (events, _) = desk_at.say(question.answer(true)).await;
    assert_eq!(responses(&events)[0], json!({"result": "\"accept\""}));
    for wrong in ["javascript:alert(1)", "file:///etc/passwd", "https://ann:pw@bank.example/"] {
        let (toolset, log) = visit(wrong);
        desk(toolset, model("pay")).await.result().await;
        assert_eq!(log.answers()[0]["error"]["code"], -32602, "{wrong}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_question_that_nobody_could_read_is_refused() {
    for params in [
        json!({"message": "x".repeat(100_000), "requestedSchema": {"type": "object", "properties": {}}}),
        json!({"mode": "url", "message": "Pay.", "url": format!("https://bank.example/{}", "x".repeat(100_000)), "elicitationId": "e"}),
    ] {
        let (pipe, log) = tools_server(json!([tool("pay")]), move |request, out| {
            let params = params.clone();
            async move {
                out.ask("q1", "elicitation/create", params).await;
                out.text(&request, "ok").await;
            }
        });
        desk(McpToolset::new("bank", pipe), model("pay")).await.result().await;
        assert_eq!(log.answers()[0]["error"]["message"], "a question may have 65536 bytes");
    }
}

#[tokio::test(start_paused = true)]
async fn a_call_that_needs_a_visit_first_is_made_again_after_it() {
    let calls = Arc::new(AtomicUsize::new(0));
    let counted = calls.clone();
    let (pipe, _) = tools_server(json!([tool("pay")]), move |request, out| {
        let nth = counted.fetch_add(1, Ordering::SeqCst);
        async move {
            if nth < 2 {
                let page = json!({"mode": "url", "message": "Sign in.", "url": "https://bank.example/in", "elicitationId": "e"});
                let error = json!({"code": -32042, "message": "first", "data": {"elicitations": [page]}});
                return out.say(json!({"jsonrpc": "2.0", "id": request["id"], "error": error})).await;
            }
            out.text(&request, "paid").await;
        }
    });
    let desk = desk(McpToolset::new("bank", pipe), model("pay")).await;
    let question = asked(&desk.say("go").await.1);
    assert!(question.message.as_ref().unwrap().contains("https://bank.example/in"));
    let (events, _) = desk.say(question.answer(true)).await;
    assert_eq!(responses(&events)[0], json!({"result": "paid"}));
    assert_eq!(calls.load(Ordering::SeqCst), 3, "once before the question, and again after the answer");
}

#[tokio::test(start_paused = true)]
async fn an_answer_counts_for_the_question_that_was_asked_and_for_no_other() {
    let asked_before = Arc::new(AtomicUsize::new(0));
    let counted = asked_before.clone();
    let (pipe, _) = tools_server(json!([tool("pay")]), move |request, out| {
        let words =
            ["Pay 1 euro?", "Pay 1,000 euros?", "Pay 1 euro?"][counted.fetch_add(1, Ordering::SeqCst)];
        async move {
            let params = json!({"message": words, "requestedSchema": {"type": "object", "properties": {}}});
            let told = out.ask("q1", "elicitation/create", params).await;
            out.text(&request, &format!("{words} {}", told["result"]["action"])).await;
        }
    });
    let desk = desk(McpToolset::new("bank", pipe), model("pay")).await;
    let small = asked(&desk.say("go").await.1);
    assert_eq!(small.message.as_deref(), Some("The MCP server `bank` asks: Pay 1 euro?"));
    let large = asked(&desk.say(small.answer_with(&Answer::input(json!({})))).await.1);
    assert_eq!(large.message.as_deref(), Some("The MCP server `bank` asks: Pay 1,000 euros?"));
    let (events, outcome) = desk.say(large.answer_with(&Answer::reject())).await;
    assert_eq!(outcome, Outcome::Finished);
    assert_eq!(responses(&events)[0], json!({"result": "Pay 1 euro? \"accept\""}));
}

/// A server that asks for each of two calls, and waits until both are there.
fn twins() -> (Pipe, Log) {
    tools_server(json!([tool("a"), tool("b")]), |request, out| async move {
        let name = request["params"]["name"].as_str().unwrap().to_owned();
        tokio::time::sleep(std::time::Duration::from_millis(100)).await;
        let schema = json!({"type": "object", "properties": {"x": {"type": "string"}}});
        let params = json!({"message": format!("For {name}?"), "requestedSchema": schema});
        let told = out.ask(&format!("q-{name}"), "elicitation/create", params).await;
        out.text(&request, told["error"]["message"].as_str().unwrap_or("asked")).await;
    })
}

#[tokio::test(start_paused = true)]
async fn where_it_cannot_be_told_which_call_asks_nobody_is_asked() {
    let script = || ScriptedModel::new("m").calls([("a", json!({})), ("b", json!({}))]).text("done");
    let (pipe, _) = twins();
    let desk_both = desk(McpToolset::new("s", pipe), script()).await;
    let refused = json!({"result": "it cannot be told which request this is for"});
    assert_eq!(desk_both.results().await, [refused.clone(), refused]);

    let (pipe, _) = twins();
    let one_by_one = desk(McpToolset::new("s", pipe).one_at_a_time(), script()).await;
    let Outcome::Interrupted { interrupts } = one_by_one.say("go").await.1 else { panic!("it should ask") };
    let said: Vec<_> = interrupts.iter().map(|asked| asked.message.clone().unwrap()).collect();
    assert_eq!(said, ["The MCP server `s` asks: For a?", "The MCP server `s` asks: For b?"]);
}

/// A server of the newest version that wants a name before it answers.
fn modern(rounds: Arc<AtomicUsize>) -> (Pipe, Log) {
    server(move |request, out: Out| {
        let rounds = rounds.clone();
        async move {
            match request["method"].as_str() {
                Some("server/discover") => {
                    let result = json!({"supportedVersions": ["2026-07-28"], "capabilities": {"tools": {}},
                        "serverInfo": {"name": "m", "version": "1"}, "ttlMs": 0, "cacheScope": "private", "resultType": "complete"});
                    out.answer(&request, result).await;
                }
                Some("tools/list") => {
                    out.answer(&request, json!({"tools": [tool("greet")], "resultType": "complete"})).await;
                }
                Some("tools/call") => {
                    let params = &request["params"];
                    if params["requestState"] == "s1" {
                        let name = &params["inputResponses"]["who"]["content"]["name"];
                        return out.text(&request, &format!("Hello {}", name.as_str().unwrap())).await;
                    }
                    rounds.fetch_add(1, Ordering::SeqCst);
                    let schema = json!({"type": "object", "properties": {"name": {"type": "string"}}});
                    let ask = json!({"method": "elicitation/create", "params":
                        {"mode": "form", "message": "Who?", "requestedSchema": schema}});
                    let result = json!({"resultType": "input_required", "inputRequests": {"who": ask}, "requestState": "s1"});
                    out.answer(&request, result).await;
                }
                _ => out.refuse(&request, -32601, "not known").await,
            }
        }
    })
}

#[tokio::test(start_paused = true)]
async fn a_server_of_the_newest_version_gets_its_answer_with_the_next_round() {
    let store: Arc<dyn SessionStore> = Arc::new(InMemorySessions::new());
    let rounds = Arc::new(AtomicUsize::new(0));
    let before = desk_on(McpToolset::new("m", modern(rounds.clone()).0), model("greet"), store.clone()).await;
    let question = asked(&before.say("go").await.1);
    assert_eq!(question.message.as_deref(), Some("The MCP server `m` asks: Who?"));
    drop(before);
    let (pipe, log) = modern(rounds.clone());
    let after = desk_on(McpToolset::new("m", pipe), ScriptedModel::new("m").text("done"), store).await;
    let (events, outcome) = after.say(question.answer_with(&Answer::input(json!({"name": "Ann"})))).await;
    assert_eq!(outcome, Outcome::Finished);
    assert_eq!(responses(&events)[0], json!({"result": "Hello Ann"}));
    assert_eq!(rounds.load(Ordering::SeqCst), 1, "the first round is not made again");
    assert!(log.of("initialize").is_empty());
    let meta = &log.of("tools/call")[0]["params"]["_meta"];
    assert_eq!(meta["io.modelcontextprotocol/protocolVersion"], "2026-07-28");
}

/// A server that asks a model, so many times.
fn thinker(times: usize) -> (Pipe, Log) {
    tools_server(json!([tool("think")]), move |request, out| async move {
        let mut told = Vec::new();
        for n in 0..times {
            let said = json!({"role": "user", "content": {"type": "text", "text": "What is 1 + 1?"}});
            let params = json!({"messages": [said], "maxTokens": 50, "systemPrompt": "Be short."});
            let answer = out.ask(&format!("s{n}"), "sampling/createMessage", params).await;
            told.push(answer["result"]["content"]["text"].as_str().unwrap_or("refused").to_owned());
        }
        out.text(&request, &told.join(", ")).await;
    })
}

#[tokio::test(start_paused = true)]
async fn no_model_is_lent_unless_the_program_says_so() {
    let (pipe, log) = thinker(1);
    let desk = desk(McpToolset::new("s", pipe), model("think")).await;
    assert_eq!(desk.result().await, json!({"result": "refused"}));
    assert_eq!(log.answers()[0]["error"]["code"], -32601);
    assert!(log.of("initialize")[0]["params"]["capabilities"]["sampling"].is_null());
}

#[tokio::test(start_paused = true)]
async fn a_model_is_lent_as_often_and_for_as_long_as_the_program_says() {
    let (pipe, _) = thinker(3);
    let lent = ScriptedModel::new("lent").recorded().text("2").text("two").text("never");
    let sampling = Sampling::new().model(lent.clone()).calls(2).tokens(20);
    let desk_lent = desk(McpToolset::new("s", pipe).sampling(sampling), model("think")).await;
    assert_eq!(desk_lent.result().await, json!({"result": "2, two, refused"}));
    let request = lent.requests().remove(0);
    assert_eq!(request.config.max_output_tokens, Some(20));
    assert_eq!(request.instruction.text(), "Be short.");
    assert_eq!(request.contents.iter().next().unwrap().text(), "What is 1 + 1?");

    let (pipe, _) = thinker(1);
    let own = ScriptedModel::new("m").call("think", json!({})).text("own").text("done");
    let desk_own = desk(McpToolset::new("s", pipe).sampling(Sampling::new()), own).await;
    assert_eq!(
        desk_own.result().await,
        json!({"result": "own"}),
        "the agent's model unless another is named"
    );
}

#[tokio::test(start_paused = true)]
async fn a_person_may_have_a_say_before_a_model_is_lent() {
    let lend = || {
        let sampling = Sampling::new().model(ScriptedModel::new("lent").text("2")).confirm();
        McpToolset::new("s", thinker(1).0).sampling(sampling)
    };
    for (agrees, expected) in [(true, "2"), (false, "refused")] {
        let desk = desk(lend(), model("think")).await;
        let question = asked(&desk.say("go").await.1);
        assert_eq!(
            question.message.as_deref(),
            Some(
                "The MCP server `s` wants to ask the model: [as its instruction] Be short.\n\
                 [as the user] What is 1 + 1?"
            )
        );
        let (events, _) = desk.say(question.answer(agrees)).await;
        assert_eq!(responses(&events)[0], json!({ "result": expected }));
    }
}

#[tokio::test(start_paused = true)]
async fn a_yes_to_one_request_to_a_model_is_none_to_another() {
    let asks = Arc::new(AtomicUsize::new(0));
    let counted = asks.clone();
    let (pipe, _) = tools_server(json!([tool("think")]), move |request, out| {
        let data = ["aGk=", "aG8="][counted.fetch_add(1, Ordering::SeqCst).min(1)];
        async move {
            let image = json!({"type": "image", "mimeType": "image/png", "data": data});
            let params = json!({"messages": [{"role": "user", "content": image}], "maxTokens": 5});
            let told = out.ask("s1", "sampling/createMessage", params).await;
            out.text(&request, told["result"]["content"]["text"].as_str().unwrap_or("refused")).await;
        }
    });
    let sampling = Sampling::new().model(ScriptedModel::new("lent").text("2")).confirm();
    let desk = desk(McpToolset::new("s", pipe).sampling(sampling), model("think")).await;
    let first = asked(&desk.say("go").await.1);
    let words = first.message.clone().unwrap();
    assert!(words.starts_with("The MCP server `s` wants to ask the model: [image/png, 3 bytes, "), "{words}");
    let second = asked(&desk.say(first.answer(true)).await.1);
    assert_ne!(second.message, first.message);
    let (events, _) = desk.say(second.answer(true)).await;
    assert_eq!(responses(&events)[0], json!({"result": "2"}));
}

const FREE: &str = r#"{"type": "object", "properties": {}}"#;

fn free_question(words: &str) -> Value {
    let schema: Value = serde_json::from_str(FREE).unwrap();
    json!({"message": words, "requestedSchema": schema})
}

#[tokio::test(start_paused = true)]
async fn nobody_is_asked_for_a_call_that_somebody_else_took_back() {
    let ben_calls = Arc::new(Notify::new());
    let (came, calls) = (ben_calls.clone(), Arc::new(AtomicUsize::new(0)));
    let (pipe, log) = tools_server(json!([tool("a")]), move |request, out| {
        let (nth, came) = (calls.fetch_add(1, Ordering::SeqCst), came.clone());
        async move {
            if nth == 0 {
                came.notified().await;
                let told = out.ask("q1", "elicitation/create", free_question("The key of Ann?")).await;
                assert_eq!(told["error"]["message"], "it cannot be told which request this is for");
                came.notify_one();
                return;
            }
            came.notify_one();
            tokio::time::sleep(std::time::Duration::from_millis(50)).await;
            came.notified().await;
            out.text(&request, "done").await;
        }
    });
    let script = ScriptedModel::new("m").call("a", json!({})).call("a", json!({})).text("done");
    let desk = desk(McpToolset::new("s", pipe), script).await;
    let run = desk.runner.run(&desk.key, "go");
    let token = run.cancel_token();
    let (ended, _) = tokio::join!(crate::finish(run), async {
        log.wait_for("tools/call").await;
        token.cancel(umbel_core::CancelReason::Asked);
    });
    assert_eq!(ended.1, Outcome::Cancelled);
    let ben = SessionKey::new("tests", "ben", "s2").unwrap();
    desk.runner.create_session_with("ben", "s2", umbel_core::Object::new()).await.unwrap();
    let (events, outcome) = crate::finish(desk.runner.run(&ben, "go")).await;
    assert_eq!(outcome, Outcome::Finished);
    assert_eq!(responses(&events)[0], json!({"result": "done"}));
    assert_eq!(log.connections(), 1);
}

#[tokio::test(start_paused = true)]
async fn where_a_call_of_somebody_else_waits_for_people_the_next_user_gets_a_connection() {
    let (pipe, log) = shop();
    let script = ScriptedModel::new("m").call("order", json!({})).call("order", json!({})).text("done");
    let limits = ToolsetLimits { connections: 1, ..ToolsetLimits::default() };
    let desk = desk(McpToolset::new("shop", pipe).limits(limits), script).await;
    asked(&desk.say("go").await.1);
    let ben = SessionKey::new("tests", "ben", "s2").unwrap();
    desk.runner.create_session_with("ben", "s2", umbel_core::Object::new()).await.unwrap();
    let question = asked(&crate::finish(desk.runner.run(&ben, "go")).await.1);
    assert_eq!(log.connections(), 2);
    let answer = question.answer_with(&Answer::input(json!({"size": "m"})));
    assert_eq!(crate::finish(desk.runner.run(&ben, answer)).await.1, Outcome::Finished);
    assert_eq!(log.connections(), 2, "one and the same user keeps it");
}

#[tokio::test(start_paused = true)]
async fn a_server_that_wants_much_at_once_is_refused() {
    let (pipe, log) = tools_server(json!([tool("a")]), |request, out| async move {
        for n in 0..20 {
            let params = free_question(&format!("{n}?"));
            out.say(json!({"jsonrpc": "2.0", "id": n, "method": "elicitation/create", "params": params}))
                .await;
        }
        tokio::time::sleep(std::time::Duration::from_secs(20)).await;
        out.text(&request, "done").await;
    });
    let toolset = McpToolset::new("s", pipe).answer_with(|_| async {
        tokio::time::sleep(std::time::Duration::from_secs(1)).await;
        Answer::input(json!({}))
    });
    assert_eq!(desk(toolset, model("a")).await.result().await, json!({"result": "done"}));
    let refused = |answer: &&Value| answer["error"]["message"] == "too much is wanted at once";
    let answers = log.answers();
    assert_eq!((answers.len(), answers.iter().filter(refused).count()), (20, 12));
}
