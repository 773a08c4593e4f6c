//! `umbel mcp` and `umbel serve --mcp`, as MCP clients use them.

use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};

use serde_json::{Value, json};

use crate::serve::Served;

fn initialize() -> String {
    let client = json!({"name": "test", "version": "1"});
    let params = json!({"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": client});
    json!({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": params}).to_string()
}

/// Sends messages to `umbel mcp`, and gives what it says until it answers the last one, and then ends.
fn talk(args: &[&str], messages: &[Value]) -> Vec<Value> {
    let mut command = Command::new(env!("CARGO_BIN_EXE_umbel"));
    command.arg("mcp").args(args).env("UMBEL_STORE", "memory:").env("UMBEL_MODEL", "script");
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut input = child.stdin.take().unwrap();
    writeln!(input, "{}", initialize()).unwrap();
    writeln!(input, "{}", json!({"jsonrpc": "2.0", "method": "notifications/initialized"})).unwrap();
    messages.iter().for_each(|message| writeln!(input, "{message}").unwrap());
    let last = messages.last().map_or(json!(1), |message| message["id"].clone());
    let mut said = Vec::new();
    for line in BufReader::new(child.stdout.take().unwrap()).lines() {
        // Nothing but messages goes to standard output.
        let message: Value = serde_json::from_str(&line.unwrap()).unwrap();
        let is_last = message["id"] == last && message.get("method").is_none();
        said.push(message);
        if is_last {
            break;
        }
    }
    drop(input);
    assert!(child.wait().unwrap().success());
    said
}

#[test]
fn agents_are_tools_of_whoever_starts_the_program() {
    let list = json!({"jsonrpc": "2.0", "id": 2, "method": "tools/list"});
    let said = talk(&[], &[list]);
    assert_eq!(said[0]["result"]["serverInfo"]["name"], "umbel");
    let tools = said[1]["result"]["tools"].as_array().unwrap();
    assert!(tools.len() > 1, "{tools:?}");
    assert!(tools.iter().all(|tool| !tool["description"].as_str().unwrap().is_empty()), "{tools:?}");
    let name = tools[0]["name"].as_str().unwrap();
    let params = json!({"name": name, "arguments": {"request": "Hello"}});
    let call = json!({"jsonrpc": "2.0", "id": 3, "method": "tools/call", "params": params});
    let said = talk(&["--agent", name], &[call]);
    let result = &said.last().unwrap()["result"];
    assert_eq!(result["isError"], false, "{result}");
    let content = result["content"].as_array().unwrap();
    assert!(content.last().unwrap()["text"].as_str().unwrap().starts_with("session: "), "{result}");
}

#[test]
fn one_agent_alone_is_offered_if_it_is_named() {
    let list = json!({"jsonrpc": "2.0", "id": 2, "method": "tools/list"});
    let all = talk(&[], std::slice::from_ref(&list));
    let name = all[1]["result"]["tools"][1]["name"].as_str().unwrap();
    let one = talk(&["--agent", name], &[list]);
    let tools = one[1]["result"]["tools"].as_array().unwrap();
    assert_eq!((tools.len(), &tools[0]["name"]), (1, &json!(name)));
}

#[test]
fn agents_are_offered_over_http_beside_everything_else() {
    let served = Served::start(&["--port", "0", "--mcp"]);
    assert!(served.greeting.contains("/mcp\n"), "{}", served.greeting);
    let accept = ["accept: application/json, text/event-stream"];
    let answer = served.ask("POST /mcp", &accept, &initialize());
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    assert!(answer.contains(r#""serverInfo":{"name":"umbel""#), "{answer}");
    let without = Served::start(&["--port", "0"]);
    assert!(!without.greeting.contains("/mcp"));
    assert!(without.ask("POST /mcp", &accept, &initialize()).starts_with("HTTP/1.1 404"));
}
