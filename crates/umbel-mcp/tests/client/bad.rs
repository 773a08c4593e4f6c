//! Servers that do what they should not.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use serde_json::{Value, json};
use umbel_core::{Error, ErrorKind, Outcome};
use umbel_mcp::client::{McpToolset, Pipe, ToolsetLimits};
use umbel_runtime::ScriptedModel;

use crate::desk;
use crate::fake::{server, tool, tools_server};

fn model() -> ScriptedModel {
    ScriptedModel::new("m").call("a", json!({})).text("done")
}

fn quick() -> ToolsetLimits {
    ToolsetLimits {
        answer: Duration::from_millis(200),
        connect: Duration::from_millis(500),
        ..ToolsetLimits::default()
    }
}

fn words(result: &Value) -> String {
    result["error"].as_str().unwrap_or_else(|| panic!("{result} is an error")).to_owned()
}

#[tokio::test(start_paused = true)]
async fn a_server_that_dies_in_the_middle_of_a_call_is_told_of_and_the_call_is_not_made_again() {
    let (pipe, log) = tools_server(json!([tool("a")]), |_, out| async move { out.close().await });
    let desk = desk(McpToolset::new("s", pipe), model().call("a", json!({})).text("again")).await;
    let said = words(&desk.result().await);
    assert!(said.starts_with("the MCP server `s` went away: it closed the connection."), "{said}");
    assert_eq!(log.of("tools/call").len(), 1);
    desk.say("again").await;
    assert_eq!(log.of("tools/call").len(), 2, "another call connects again");
}

#[tokio::test(start_paused = true)]
async fn a_call_that_is_safe_twice_is_made_again_once() {
    let mut reads = tool("a");
    reads["annotations"] = json!({"readOnlyHint": true});
    let calls = Arc::new(AtomicUsize::new(0));
    let counted = calls.clone();
    let (pipe, log) = tools_server(json!([reads]), move |request, out| {
        let nth = counted.fetch_add(1, Ordering::SeqCst);
        async move {
            if nth == 0 {
                return out.close().await;
            }
            out.text(&request, "ok").await;
        }
    });
    let desk = desk(McpToolset::new("s", pipe).trust_hints(), model()).await;
    assert_eq!(desk.result().await, json!({"result": "ok"}));
    assert_eq!((calls.load(Ordering::SeqCst), log.connections()), (2, 2));
}

#[tokio::test(start_paused = true)]
async fn a_server_that_never_answers_is_given_up_and_told() {
    let (pipe, log) = tools_server(json!([tool("a")]), |_, _| async {});
    let desk = desk(McpToolset::new("s", pipe).limits(quick()), model()).await;
    assert_eq!(words(&desk.result().await), "the MCP server `s` did not answer within 0.2 s");
    let cancelled = log.wait_for("notifications/cancelled").await;
    assert_eq!(cancelled["params"]["requestId"], log.of("tools/call")[0]["id"]);
}

#[tokio::test(start_paused = true)]
async fn a_server_that_hangs_is_connected_to_anew() {
    let calls = Arc::new(AtomicUsize::new(0));
    let (pipe, log) = server(move |request, out| {
        let calls = calls.clone();
        async move {
            match request["method"].as_str() {
                Some("tools/list") => out.answer(&request, json!({"tools": [tool("a")]})).await,
                Some("tools/call") if calls.fetch_add(1, Ordering::SeqCst) > 0 => {
                    out.text(&request, "ok").await;
                }
                Some("tools/call" | "ping") => {}
                _ => out.refuse(&request, -32601, "not known").await,
            }
        }
    });
    let script = ScriptedModel::new("m").call("a", json!({})).text("1").call("a", json!({})).text("2");
    let desk = desk(McpToolset::new("s", pipe).limits(quick()), script).await;
    assert_eq!(words(&desk.result().await), "the MCP server `s` did not answer within 0.2 s");
    log.wait_closed(1).await;
    assert_eq!(desk.result().await, json!({"result": "ok"}));
    assert_eq!(log.connections(), 2);
}

#[tokio::test(start_paused = true)]
async fn signs_of_life_give_more_time_up_to_a_limit() {
    let (pipe, _) = tools_server(json!([tool("a")]), |request, out| async move {
        let token = request["params"]["_meta"]["progressToken"].clone();
        for n in 0..100 {
            let params = json!({"progressToken": token, "progress": n});
            out.say(json!({"jsonrpc": "2.0", "method": "notifications/progress", "params": params})).await;
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    });
    let limits = ToolsetLimits { call: Duration::from_millis(600), ..quick() };
    let desk = desk(McpToolset::new("s", pipe).limits(limits), model()).await;
    let begin = tokio::time::Instant::now();
    assert_eq!(words(&desk.result().await), "the MCP server `s` did not answer within 0.6 s");
    assert!(begin.elapsed() >= Duration::from_millis(600));
}

#[tokio::test(start_paused = true)]
async fn a_run_that_is_cancelled_takes_its_call_back() {
    let (pipe, log) = tools_server(json!([tool("a")]), |_, _| async {});
    let desk = desk(McpToolset::new("s", pipe), model()).await;
    let run = desk.runner.run(&desk.key, "go");
    let token = run.cancel_token();
    let (ended, call) = tokio::join!(crate::finish(run), async {
        let call = log.wait_for("tools/call").await;
        token.cancel(umbel_core::CancelReason::Asked);
        call
    });
    assert_eq!(ended.1, Outcome::Cancelled);
    let cancelled = log.wait_for("notifications/cancelled").await;
    assert_eq!(cancelled["params"]["requestId"], call["id"]);
}

#[tokio::test(start_paused = true)]
async fn a_hundred_megabytes_end_the_connection_before_they_are_read() {
    let taken = Arc::new(AtomicUsize::new(0));
    let counted = taken.clone();
    let (pipe, log) = tools_server(json!([tool("a")]), move |request, out| {
        let counted = counted.clone();
        async move {
            let begin = format!("{{\"jsonrpc\":\"2.0\",\"id\":{},\"result\":{{\"content\":\"", request["id"]);
            out.raw(begin.as_bytes()).await;
            let piece = vec![b'x'; 1 << 16];
            for _ in 0..1_600 {
                if out.raw(&piece).await {
                    counted.fetch_add(piece.len(), Ordering::SeqCst);
                }
            }
        }
    });
    let desk = desk(McpToolset::new("s", pipe), model()).await;
    let said = words(&desk.result().await);
    assert!(said.contains("it sent a message of more than 4194304 bytes"), "{said}");
    log.wait_closed(1).await;
    let taken = taken.load(Ordering::SeqCst);
    assert!(taken <= (4 << 20) + (256 << 10), "{taken} bytes were taken");
}

#[tokio::test(start_paused = true)]
async fn answers_out_of_order_to_nobody_and_twice_do_no_harm() {
    let (pipe, _) = tools_server(json!([tool("a"), tool("b")]), |request, out| async move {
        let is_first = request["params"]["name"] == "a";
        if is_first {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        out.say(json!({"jsonrpc": "2.0", "id": 4711, "result": {"content": []}})).await;
        out.say(json!({"jsonrpc": "2.0", "id": "none", "error": {"code": 1, "message": "no"}})).await;
        out.raw(b"Listening on port 7\n{\"jsonrpc\": \"2.0\", \"id\"\n").await;
        let name = request["params"]["name"].as_str().unwrap().to_owned();
        out.text(&request, &name).await;
        out.text(&request, "something else").await;
    });
    let script = ScriptedModel::new("m").calls([("a", json!({})), ("b", json!({}))]).text("done");
    let desk = desk(McpToolset::new("s", pipe), script).await;
    assert_eq!(desk.results().await, [json!({"result": "a"}), json!({"result": "b"})]);
}

#[tokio::test(start_paused = true)]
async fn a_flood_of_notifications_does_not_keep_an_answer_away() {
    let (pipe, _) = tools_server(json!([tool("a")]), |request, out| async move {
        let news = json!({"jsonrpc": "2.0", "method": "notifications/message", "params": {"level": "info", "data": "x"}});
        let flood = format!("{news}\n").repeat(20_000);
        out.raw(flood.as_bytes()).await;
        out.text(&request, "ok").await;
    });
    let desk = desk(McpToolset::new("s", pipe), model()).await;
    assert_eq!(desk.result().await, json!({"result": "ok"}));
}

#[tokio::test(start_paused = true)]
async fn what_is_no_result_of_a_tool_is_an_error_the_model_sees() {
    for (result, expected) in [
        (json!({"tools": []}), "is no result of a tool"),
        (json!({"content": [{"type": "image"}]}), "is no result of a tool"),
    ] {
        let (pipe, _) = tools_server(json!([tool("a")]), move |request, out| {
            let result = result.clone();
            async move { out.answer(&request, result).await }
        });
        let said = words(&desk(McpToolset::new("s", pipe), model()).await.result().await);
        assert!(said.contains(expected), "{said}");
    }
    let (pipe, _) = tools_server(json!([tool("a")]), |request, out| async move {
        out.refuse(&request, -32602, "`to` is missing").await;
    });
    let said = words(&desk(McpToolset::new("s", pipe), model()).await.result().await);
    assert_eq!(said, "the MCP server `s` refuses: `to` is missing");
    let (pipe, _) = tools_server(json!([tool("a")]), |request, out| async move {
        out.refuse(&request, -32602, &"é".repeat(100_000)).await;
    });
    let said = words(&desk(McpToolset::new("s", pipe), model()).await.result().await);
    assert_eq!(said, format!("the MCP server `s` refuses: {}", "é".repeat(2_048)));
}

#[tokio::test(start_paused = true)]
async fn a_server_that_cannot_be_reached_fails_the_run_unless_it_is_optional() {
    let tries = Arc::new(AtomicUsize::new(0));
    let counted = tries.clone();
    let dead = Pipe::new(move || {
        counted.fetch_add(1, Ordering::SeqCst);
        let (ours, theirs) = tokio::io::duplex(16);
        drop(theirs);
        Ok(ours)
    });
    let needed = desk(McpToolset::new("s", dead.clone()), ScriptedModel::new("m").text("hi")).await;
    let Outcome::Failed { failure } = needed.say("go").await.1 else { panic!("it should fail") };
    assert_eq!(failure.message, "the MCP server `s` cannot be reached: it closed the connection");
    assert_eq!(
        tries.load(Ordering::SeqCst),
        6,
        "three times, each time as the newest version has it and with a handshake"
    );
    let Outcome::Failed { failure } = needed.say("again").await.1 else { panic!("it should fail") };
    assert!(failure.message.contains("it is tried again in"), "{}", failure.message);
    assert_eq!(tries.load(Ordering::SeqCst), 6, "for a while nothing is tried");

    let optional = desk(McpToolset::new("s", dead).optional(), ScriptedModel::new("m").text("hi")).await;
    assert_eq!(optional.say("go").await.1, Outcome::Finished);
    assert!(optional.offered()[0].is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_server_that_does_not_begin_a_connection_is_given_up_in_time() {
    let silent = Pipe::new(|| {
        let (ours, theirs) = tokio::io::duplex(1 << 16);
        // It listens and says nothing.
        tokio::spawn(async move {
            let (mut read, _write) = tokio::io::split(theirs);
            let _ = tokio::io::copy(&mut read, &mut tokio::io::sink()).await;
        });
        Ok(ours)
    });
    let desk_silent =
        desk(McpToolset::new("s", silent).limits(quick()), ScriptedModel::new("m").text("hi")).await;
    let Outcome::Failed { failure } = desk_silent.say("go").await.1 else { panic!("it should fail") };
    assert_eq!(failure.message, "the MCP server `s` cannot be reached: it did not answer within 0.5 s");
    let broken = Pipe::new(|| Err(Error::new(ErrorKind::Other, "there is no pipe")));
    let desk_broken = desk(McpToolset::new("s", broken), ScriptedModel::new("m").text("hi")).await;
    let Outcome::Failed { failure } = desk_broken.say("go").await.1 else { panic!("it should fail") };
    assert_eq!(failure.message, "there is no pipe");
}

#[tokio::test(start_paused = true)]
async fn a_server_that_knows_no_tools_is_an_error_that_says_so() {
    let (pipe, _) = server(|request, out| async move { out.refuse(&request, -32601, "not known").await });
    let desk = desk(McpToolset::new("s", pipe), ScriptedModel::new("m").text("hi")).await;
    let Outcome::Failed { failure } = desk.say("go").await.1 else { panic!("it should fail") };
    assert_eq!(failure.message, "the MCP server `s` refuses: not known");
}
