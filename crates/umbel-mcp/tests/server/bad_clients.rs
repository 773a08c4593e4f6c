//! Clients that do not keep to the protocol, or want too much.

use serde_json::{Value, json};
use umbel_mcp::server::{McpLimits, McpServer};

use crate::http::{House, tool_call};
use crate::support::{Lines, TestTool, soon, speaker};

fn echo() -> TestTool {
    TestTool::new("echo", |_, _| std::future::ready(Ok(json!("echo").into())))
}

#[tokio::test]
async fn garbage_is_refused_and_does_no_harm() {
    let house = House::new(McpServer::new("house").tool(echo())).await;
    let session = house.session("ann").await;
    let deep = format!("{}{}", "[".repeat(100_000), "]".repeat(100_000));
    let nested = tool_call(1, "echo", json!({})).to_string().replace("{}", &"{\"a\":".repeat(5_000));
    for (body, status) in [
        ("", 400),
        ("garbage", 400),
        ("{\"jsonrpc\": \"2.0\"", 400),
        ("\u{0}\u{1}", 400),
        (deep.as_str(), 400),
        (nested.as_str(), 400),
    ] {
        for headers in [&[][..], &[("mcp-session-id", session.as_str())]] {
            let reply = house.send("POST", "ann", headers, body).await;
            assert_eq!(reply.status, status, "{body:.60}: {reply:?}");
            assert_eq!(reply.answer()["error"]["code"], -32700, "{body:.60}");
        }
    }
    for body in ["null", "3", "\"text\"", "{}", r#"{"jsonrpc":"1.0","id":1,"method":"tools/list"}"#] {
        let reply = house.send("POST", "ann", &[("mcp-session-id", &session)], body).await;
        assert_eq!((reply.status, &reply.answer()["error"]["code"]), (400, &json!(-32600)), "{body}");
    }
    let reply = house.post("ann", &[("mcp-session-id", &session)], &tool_call(9, "echo", json!({}))).await;
    assert_eq!(reply.answer()["result"]["content"][0]["text"], "echo");
}

#[tokio::test]
async fn a_message_that_is_too_long_is_refused() {
    let limits = McpLimits { message_bytes: 10_000, ..McpLimits::default() };
    let house = House::new(McpServer::new("house").tool(echo()).limits(limits)).await;
    let session = house.session("ann").await;
    let long = tool_call(1, "echo", json!({"text": "x".repeat(20_000)}));
    let reply = house.post("ann", &[("mcp-session-id", &session)], &long).await;
    assert_eq!(reply.status, 413, "{reply:?}");
    let short = tool_call(1, "echo", json!({}));
    assert_eq!(house.post("ann", &[("mcp-session-id", &session)], &short).await.status, 200);
}

#[tokio::test]
async fn wrong_headers_are_refused() {
    let house = House::new(McpServer::new("house").tool(echo())).await;
    let session = house.session("ann").await;
    let ask = tool_call(1, "echo", json!({}));
    for (headers, status) in [
        (vec![("mcp-session-id", "x\u{7f}y")], 400..500),
        (vec![("mcp-session-id", "")], 404..405),
        (vec![("mcp-session-id", session.as_str()), ("mcp-protocol-version", "1999-01-01")], 400..401),
        (vec![], 400..401),
    ] {
        let reply = house.post("ann", &headers, &ask).await;
        assert!(status.contains(&reply.status), "{headers:?}: {reply:?}");
    }
    for method in ["PUT", "PATCH", "OPTIONS"] {
        let reply = house.send(method, "ann", &[], "").await;
        assert_eq!(reply.status, 405, "{method}");
    }
}

#[tokio::test]
async fn odd_requests_are_answered_with_errors() {
    let house = House::new(McpServer::new("house").agent(speaker(["."])).tool(echo())).await;
    let session = house.session("ann").await;
    let ask =
        |method: &str, params: Value| json!({"jsonrpc": "2.0", "id": 5, "method": method, "params": params});
    for odd in [
        ask("tools/call", json!({"name": "nothing"})),
        ask("resources/read", json!({"uri": "artifact://%zz"})),
        ask("prompts/get", json!({"name": "nothing"})),
        ask("no/such", json!({})),
    ] {
        let reply = house.post("ann", &[("mcp-session-id", &session)], &odd).await;
        assert!(reply.answer().get("error").is_some(), "{odd}: {reply:?}");
    }
    for args in [json!({"request": 5}), json!({}), json!({"request": "x", "session": "no such"})] {
        let odd = tool_call(6, "speaker", args);
        let reply = house.post("ann", &[("mcp-session-id", &session)], &odd).await;
        assert_eq!(reply.answer()["result"]["isError"], true, "{odd}");
    }
}

#[tokio::test]
async fn a_flood_of_calls_is_answered_or_refused_one_by_one() {
    let house = House::new(McpServer::new("house").tool(echo())).await;
    let session = house.session("ann").await;
    let named = [("mcp-session-id", session.as_str())];
    let calls = (1..200).map(|id| {
        let ask = tool_call(id, "echo", json!({}));
        let house = &house;
        async move { house.post("ann", &named, &ask).await.answer() }
    });
    let answers = soon(futures::future::join_all(calls)).await;
    for answer in answers {
        let text = answer["result"]["content"][0]["text"].as_str().unwrap().to_owned();
        assert!(text == "echo" || text.starts_with("too many calls"), "{text}");
    }
}

#[tokio::test]
async fn a_call_may_be_cancelled_at_any_point() {
    let house = House::new(McpServer::new("house").agent(speaker(["."; 40]))).await;
    let session = house.session("ann").await;
    let named = [("mcp-session-id", session.as_str())];
    let cancel = |id: u32| json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": id, "reason": "x"}});
    // Before it came, and of what never was.
    assert_eq!(house.post("ann", &named, &cancel(1)).await.status, 202);
    assert_eq!(house.post("ann", &named, &cancel(9_999)).await.status, 202);
    for id in 1..20 {
        let ask = tool_call(id, "speaker", json!({"request": "?"})).to_string();
        let stream = house.open("POST", "ann", &named, &ask).await;
        for _ in 0..id {
            tokio::task::yield_now().await;
        }
        assert_eq!(house.post("ann", &named, &cancel(id)).await.status, 202);
        drop(stream);
    }
    let reply = house.post("ann", &named, &tool_call(50, "speaker", json!({"request": "?"}))).await;
    assert_eq!(reply.answer()["result"]["content"][0]["text"], ".");
}

#[tokio::test]
async fn garbage_in_lines_does_not_end_the_conversation() {
    let limits = McpLimits { message_bytes: 10_000, ..McpLimits::default() };
    let mut lines = Lines::new(McpServer::new("house").tool(echo()).limits(limits)).await;
    let long = "x".repeat(50_000);
    for line in ["garbage", "", "{\"jsonrpc\":", &long, "\u{fffd}\u{0}", "[1,2", "null"] {
        lines.send(line).await;
    }
    lines.send(&tool_call(7, "echo", json!({})).to_string()).await;
    let (_, answer) = lines.until_answer(7).await;
    assert_eq!(answer["result"]["content"][0]["text"], "echo");
}

#[tokio::test]
async fn who_closes_before_saying_anything_wants_nothing() {
    let (near, far) = tokio::io::duplex(64);
    let (read, write) = tokio::io::split(far);
    drop(near);
    soon(McpServer::new("house").tool(echo()).serve(read, write, "ann")).await.unwrap();
}
