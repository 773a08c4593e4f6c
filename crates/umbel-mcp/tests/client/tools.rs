//! What becomes of a server's tools, resources and prompts.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use serde_json::{Value, json};
use umbel_core::{Confirm, Content, FunctionTool, InMemorySessions, Object, Outcome, Part, Role, Toolset};
use umbel_mcp::client::{McpToolset, ToolsetLimits};
use umbel_runtime::{LlmAgent, ScriptedModel};

use crate::fake::{server, tool, tools_server};
use crate::{desk, desk_with, finish};

fn model(name: &str) -> ScriptedModel {
    ScriptedModel::new("m").call(name, json!({"n": 1})).text("done")
}

#[tokio::test(start_paused = true)]
async fn the_tools_of_a_server_are_called_by_the_agent() {
    let (pipe, log) = tools_server(json!([tool("add")]), |request, out| async move {
        out.text(&request, "it is 2").await;
    });
    let desk = desk(McpToolset::new("maths", pipe), model("add")).await;
    assert_eq!(desk.result().await, json!({"result": "it is 2"}));
    let called = &log.of("tools/call")[0]["params"];
    assert_eq!((&called["name"], &called["arguments"]), (&json!("add"), &json!({"n": 1})));
    let told = desk.model.requests()[0].tools.specs().next().unwrap().clone();
    assert_eq!(told.description, "Does add.");
    assert!(!told.read_only && !told.idempotent);
    assert_eq!(log.connections(), 1);
    assert_eq!(log.of("tools/list").len(), 1, "the list counts until the server says otherwise");
}

#[tokio::test(start_paused = true)]
async fn tools_are_chosen_by_name_and_by_function_and_get_a_prefix() {
    let tools = json!([tool("add"), tool("drop"), tool("list")]);
    let all = |toolset: fn(McpToolset) -> McpToolset| {
        let (pipe, _) =
            tools_server(tools.clone(), |request, out| async move { out.text(&request, "ok").await });
        toolset(McpToolset::new("s", pipe))
    };
    let only =
        desk(all(|set| set.only(["add", "none"]).prefix("s_")), ScriptedModel::new("m").text("hi")).await;
    only.say("go").await;
    assert_eq!(only.offered(), [["s_add"]]);
    let filtered = desk(all(|set| set.filter(|name| name != "drop")), model("list")).await;
    assert_eq!(filtered.result().await, json!({"result": "ok"}));
    assert_eq!(filtered.offered()[0], ["add", "list"]);
}

#[tokio::test(start_paused = true)]
async fn lists_come_page_by_page_and_have_an_end() {
    let pages = Arc::new(AtomicUsize::new(0));
    let seen = pages.clone();
    let (pipe, _) = server(move |request, out| {
        let page = seen.fetch_add(1, Ordering::SeqCst);
        async move {
            if request["method"] != "tools/list" {
                return out.refuse(&request, -32601, "not known").await;
            }
            let result = json!({"tools": [tool(&format!("t{page}"))], "nextCursor": format!("c{page}")});
            out.answer(&request, result).await;
        }
    });
    let limits = ToolsetLimits { pages: 3, ..ToolsetLimits::default() };
    let desk = desk(McpToolset::new("s", pipe).limits(limits), ScriptedModel::new("m").text("hi")).await;
    desk.say("go").await;
    // The first question is what the server speaks.
    assert_eq!(desk.offered(), [["t1", "t2", "t3"]]);
    assert_eq!(pages.load(Ordering::SeqCst), 4);
}

#[tokio::test(start_paused = true)]
async fn more_tools_than_there_may_be_are_left_out() {
    let tools: Vec<Value> = (0..10).map(|n| tool(&format!("t{n}"))).collect();
    let (pipe, _) = tools_server(json!(tools), |_, _| async {});
    let limits = ToolsetLimits { tools: 2, ..ToolsetLimits::default() };
    let desk = desk(McpToolset::new("s", pipe).limits(limits), ScriptedModel::new("m").text("hi")).await;
    desk.say("go").await;
    assert_eq!(desk.offered(), [["t0", "t1"]]);
}

#[tokio::test(start_paused = true)]
async fn tools_that_nobody_wants_take_no_room() {
    let tools: Vec<Value> = (0..10).map(|n| tool(&format!("t{n}"))).collect();
    let (pipe, _) = tools_server(json!(tools), |_, _| async {});
    let limits = ToolsetLimits { tools: 2, ..ToolsetLimits::default() };
    let toolset = McpToolset::new("s", pipe).limits(limits).only(["t8"]);
    let desk = desk(toolset, ScriptedModel::new("m").text("hi")).await;
    desk.say("go").await;
    assert_eq!(desk.offered(), [["t8"]]);
}

#[tokio::test(start_paused = true)]
async fn a_server_takes_the_place_of_no_tool_that_is_there() {
    let shop = |result: &'static str| {
        let tools = json!([tool("own"), tool("a"), tool("read_resource")]);
        let (pipe, _) = server(move |request, out| {
            let tools = tools.clone();
            async move {
                match request["method"].as_str() {
                    Some("tools/list") => out.answer(&request, json!({ "tools": tools })).await,
                    Some("tools/call") => out.text(&request, result).await,
                    Some("resources/read") => {
                        let one = json!({"uri": "a:b", "text": "read"});
                        out.answer(&request, json!({"contents": [one]})).await;
                    }
                    _ => out.refuse(&request, -32601, "not known").await,
                }
            }
        });
        pipe
    };
    let own = FunctionTool::new("own", "", |_: Value| async { Ok("mine") });
    let agent = LlmAgent::new("agent").tool(own);
    let agent = agent.toolset(McpToolset::new("x", shop("x")).resources());
    let agent = agent.toolset(McpToolset::new("y", shop("y")));
    let calls = ScriptedModel::new("m").call("own", json!({})).call("a", json!({}));
    let calls = calls.call("read_resource", json!({"uri": "a:b"})).text("done");
    let results = desk_with(agent, calls, Arc::new(InMemorySessions::new())).await.results().await;
    assert_eq!(results[..2], [json!({"result": "mine"}), json!({"result": "x"})]);
    assert_eq!(results[2]["contents"][0]["text"], "read");
}

#[tokio::test(start_paused = true)]
async fn progress_is_shown_and_not_kept() {
    let (pipe, _) = tools_server(json!([tool("slow")]), |request, out| async move {
        let token = &request["params"]["_meta"]["progressToken"];
        for n in [1, 2] {
            let params =
                json!({"progressToken": token, "progress": n, "total": 2, "message": "é".repeat(n * 400)});
            out.say(json!({"jsonrpc": "2.0", "method": "notifications/progress", "params": params})).await;
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        out.text(&request, "done").await;
    });
    let desk = desk(McpToolset::new("s", pipe), model("slow")).await;
    let (events, outcome) = desk.say("go").await;
    assert_eq!(outcome, Outcome::Finished);
    let shown: Vec<Value> = events
        .iter()
        .filter(|event| event.is_partial())
        .flat_map(|event| event.responses())
        .map(|response| Value::Object(response.response.clone().unwrap()))
        .collect();
    let expected = |n: f64, long| json!({"progress": n, "total": 2.0, "message": "é".repeat(long)});
    assert_eq!(shown, [expected(1.0, 400), expected(2.0, 512)], "what is too long is cut");
}

#[tokio::test(start_paused = true)]
async fn a_result_must_fit_the_schema_that_the_server_gave_for_it() {
    let schema = json!({"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]});
    let mut counting = tool("count");
    counting["outputSchema"] = schema;
    let give = |result: Value| {
        let (pipe, _) = tools_server(json!([counting.clone()]), move |request, out| {
            let result = result.clone();
            async move { out.answer(&request, result).await }
        });
        McpToolset::new("s", pipe)
    };
    let good = desk(give(json!({"content": [], "structuredContent": {"n": 3}})), model("count")).await;
    assert_eq!(good.result().await, json!({"n": 3}));
    for wrong in [json!({"content": [], "structuredContent": {"n": "3"}}), json!({"content": []})] {
        let bad = desk(give(wrong), model("count")).await;
        let words = bad.result().await["error"].as_str().unwrap().to_owned();
        assert!(words.contains("does not fit its own schema"), "{words}");
    }
    let failed = json!({"content": [{"type": "text", "text": "no numbers"}], "isError": true});
    assert_eq!(desk(give(failed), model("count")).await.result().await, json!({"error": "no numbers"}));
}

#[tokio::test(start_paused = true)]
async fn hints_count_only_where_they_are_believed() {
    let mut reads = tool("reads");
    reads["annotations"] = json!({"readOnlyHint": true});
    let mut again = tool("again");
    again["annotations"] = json!({"idempotentHint": true, "destructiveHint": false});
    let tools = json!([reads, again, tool("drops")]);
    let specs = |toolset: fn(McpToolset) -> McpToolset| {
        let (pipe, _) = tools_server(tools.clone(), |_, _| async {});
        let toolset = toolset(McpToolset::new("s", pipe));
        async move {
            let desk = desk(toolset, ScriptedModel::new("m").text("hi")).await;
            desk.say("go").await;
            let request = desk.model.requests().remove(0);
            let all = request
                .tools
                .specs()
                .map(|spec| (spec.read_only, spec.idempotent, matches!(spec.confirm, Confirm::Always)));
            all.collect::<Vec<_>>()
        }
    };
    assert_eq!(specs(|set| set).await, [(false, false, false); 3]);
    let expected = [(true, false, false), (false, true, false), (false, false, false)];
    assert_eq!(specs(McpToolset::trust_hints).await, expected);
    let expected = [(false, false, false), (false, false, false), (false, false, true)];
    assert_eq!(specs(McpToolset::confirm_destructive).await, expected);
    assert_eq!(specs(|set| set.confirm(Confirm::Always)).await, [(false, false, true); 3]);
}

#[tokio::test(start_paused = true)]
async fn what_a_server_wants_told_is_told_only_if_asked_for() {
    let toolset = || {
        let (pipe, _) = tools_server(json!([tool("a")]), |_, _| async {});
        McpToolset::new("s", pipe)
    };
    let silent = desk(toolset(), ScriptedModel::new("m").text("hi")).await;
    silent.say("go").await;
    assert!(!silent.model.requests()[0].instruction.text().contains("Be kind."));
    let told = desk(toolset().instructions(), ScriptedModel::new("m").text("hi")).await;
    told.say("go").await;
    assert!(told.model.requests()[0].instruction.text().contains("Be kind."));
    assert_eq!(told.offered(), [["a"]]);
}

#[tokio::test(start_paused = true)]
async fn resources_are_listed_and_read_by_tools() {
    let (pipe, log) = server(|request, out| async move {
        match request["method"].as_str() {
            Some("tools/list") => out.answer(&request, json!({"tools": []})).await,
            Some("resources/list") => {
                let one = json!({"uri": "note://1", "name": "One", "mimeType": "text/plain"});
                out.answer(&request, json!({"resources": [one], "nextCursor": "more"})).await;
            }
            Some("resources/templates/list") => {
                let one = json!({"uriTemplate": "note://{n}", "name": "Any"});
                out.answer(&request, json!({"resourceTemplates": [one]})).await;
            }
            Some("resources/read") => {
                let text = json!({"uri": "note://1", "mimeType": "text/plain", "text": "hello"});
                let bytes = json!({"uri": "note://1", "mimeType": "image/png", "blob": "aGk="});
                out.answer(&request, json!({"contents": [text, bytes]})).await;
            }
            _ => out.refuse(&request, -32601, "not known").await,
        }
    });
    let script = ScriptedModel::new("m")
        .call("n_list_resources", json!({"cursor": "c"}))
        .call("n_read_resource", json!({"uri": "note://1"}))
        .call("n_read_resource", json!({}))
        .text("done");
    let desk = desk(McpToolset::new("notes", pipe).prefix("n_").resources(), script).await;
    let results = desk.results().await;
    assert_eq!(results[0]["resources"][0]["uri"], "note://1");
    assert_eq!(results[0]["templates"][0]["uriTemplate"], "note://{n}");
    assert_eq!(results[0]["nextCursor"], "more");
    assert_eq!(log.of("resources/list")[0]["params"]["cursor"], "c");
    assert_eq!(results[1]["contents"][0]["text"], "hello");
    assert!(results[2]["error"].as_str().unwrap().contains("`uri` is missing"));
    let media = desk.model.requests()[2]
        .contents
        .iter()
        .any(|content| content.responses().any(|response| format!("{response:?}").contains("image/png")));
    assert!(media, "the bytes are part of the result");
}

#[tokio::test(start_paused = true)]
async fn prompts_are_listed_and_taken_as_messages() {
    let (pipe, log) = server(|request, out| async move {
        match request["method"].as_str() {
            Some("prompts/list") => {
                let argument = json!({"name": "topic", "description": "What about", "required": true});
                let prompt = json!({"name": "essay", "description": "Writes", "arguments": [argument]});
                out.answer(&request, json!({"prompts": [prompt]})).await;
            }
            Some("prompts/get") => {
                let said =
                    |role: &str, text: &str| json!({"role": role, "content": {"type": "text", "text": text}});
                let image = json!({"role": "user", "content": {"type": "image", "mimeType": "image/png", "data": "aGk="}});
                let messages = json!([said("user", "Write."), said("assistant", "I will."), image]);
                out.answer(&request, json!({ "messages": messages })).await;
            }
            _ => out.refuse(&request, -32601, "not known").await,
        }
    });
    let toolset = McpToolset::new("s", pipe);
    let prompts = toolset.prompts().await.unwrap();
    assert_eq!(prompts[0].name, "essay");
    assert_eq!(prompts[0].arguments, [("topic".to_owned(), Some("What about".to_owned()), true)]);
    let args = Object::from_iter([("topic".to_owned(), json!("bees"))]);
    let messages = toolset.prompt("essay", args).await.unwrap();
    assert_eq!(
        messages,
        [
            Content::new(Role::User, [Part::text("Write.")]),
            Content::new(Role::Model, [Part::text("I will.")]),
            Content::new(Role::User, [Part::data("image/png", "hi")]),
        ]
    );
    assert_eq!(log.of("prompts/get")[0]["params"]["arguments"], json!({"topic": "bees"}));
    assert_eq!(toolset.name(), "s");
}

#[tokio::test(start_paused = true)]
async fn folders_are_told_to_servers_that_ask() {
    let (pipe, log) = tools_server(json!([tool("where")]), |request, out| async move {
        out.ask("r1", "roots/list", json!({})).await;
        out.text(&request, "thanks").await;
    });
    let toolset = McpToolset::new("s", pipe).root("file:///srv/a", Some("A")).root("file:///srv/b", None);
    let desk = desk(toolset, model("where")).await;
    assert_eq!(desk.result().await, json!({"result": "thanks"}));
    let roots = &log.answers()[0]["result"]["roots"];
    assert_eq!(roots, &json!([{"uri": "file:///srv/a", "name": "A"}, {"uri": "file:///srv/b"}]));
}

#[tokio::test(start_paused = true)]
async fn a_connection_that_nobody_uses_is_closed_and_opened_again() {
    let (pipe, log) =
        tools_server(json!([tool("a")]), |request, out| async move { out.text(&request, "ok").await });
    let limits = ToolsetLimits { idle: Duration::from_millis(50), ..ToolsetLimits::default() };
    let script = model("a").call("a", json!({})).text("again");
    let desk = desk(McpToolset::new("s", pipe).limits(limits), script).await;
    assert_eq!(desk.result().await, json!({"result": "ok"}));
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert_eq!(finish(desk.runner.run(&desk.key, "again")).await.1, Outcome::Finished);
    assert!(log.connections() >= 2);
}

#[tokio::test(start_paused = true)]
async fn a_list_of_tools_counts_for_a_while() {
    let (pipe, log) =
        tools_server(json!([tool("a")]), |request, out| async move { out.text(&request, "ok").await });
    let limits = ToolsetLimits { list: Duration::ZERO, ..ToolsetLimits::default() };
    desk(McpToolset::new("s", pipe).limits(limits), model("a")).await.result().await;
    assert_eq!(log.of("tools/list").len(), 2, "before each question to the model");
}

#[tokio::test(start_paused = true)]
async fn a_result_is_cut_where_it_gets_too_long() {
    let (pipe, _) = tools_server(json!([tool("a")]), |request, out| async move {
        out.text(&request, &"x".repeat(100)).await;
    });
    let limits = ToolsetLimits { result_bytes: 10, ..ToolsetLimits::default() };
    let result = desk(McpToolset::new("s", pipe).limits(limits), model("a")).await.result().await;
    assert_eq!(result["result"], "xxxxxxxxxx [the rest was left out: it is too long]");
}

#[tokio::test(start_paused = true)]
async fn a_toolset_that_was_closed_connects_again() {
    let (pipe, log) =
        tools_server(json!([tool("a")]), |request, out| async move { out.text(&request, "ok").await });
    let toolset = McpToolset::new("s", pipe);
    let desk = desk(toolset.clone(), model("a").call("a", json!({})).text("again")).await;
    desk.say("go").await;
    toolset.close().await;
    assert_eq!(desk.say("again").await.1, Outcome::Finished);
    assert_eq!(log.connections(), 2);
}
