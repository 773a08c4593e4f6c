//! What clients hear when something else is offered.

use std::time::Duration;

use serde_json::{Value, json};
use umbel_mcp::client::{Approval, McpToolset, Protocol};
use umbel_mcp::server::{McpLimits, McpServer, Prompt};
use umbel_runtime::{LlmAgent, Runner, ScriptedModel};

use crate::http::{House, initialize};
use crate::reading::Diary;
use crate::support::{Lines, TestTool, soon};

/// A server with a tool of that name.
fn with_tool(name: &str) -> McpServer {
    McpServer::new("house").tool(TestTool::new(name, |_, _| std::future::ready(Ok(json!("done").into()))))
}

#[tokio::test]
async fn an_agent_sees_the_tools_that_another_one_has_now() {
    for protocol in [Protocol::Newest, Protocol::Handshake] {
        let house = House::new(with_tool("first")).await;
        let tools = McpToolset::new("house", house.door()).protocol(protocol).changes(Approval::Trust);
        let model = (0..1_000).fold(ScriptedModel::new("m").recorded(), |model, _| model.text("."));
        let agent = LlmAgent::new("agent").model(model.clone()).toolset(tools);
        let runner = Runner::new("tests", agent).unwrap();
        let offered = async || {
            let session = runner.create_session("ann").await.unwrap();
            runner.run(&session.key, "go").text().await.unwrap();
            let asked = model.requests().pop().unwrap();
            asked.tools.specs().map(|spec| spec.name.to_string()).collect::<Vec<_>>()
        };
        assert_eq!(offered().await, ["first"]);
        house.service.replace(with_tool("second")).unwrap();
        soon(async {
            while offered().await != ["second"] {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        })
        .await;
    }
}

#[tokio::test]
async fn clients_hear_of_what_they_can_see_and_of_nothing_else() {
    let house = House::new(with_tool("first").prompt(Prompt::new("plan", "Plan."))).await;
    let hello = house.post("ann", &[], &initialize()).await;
    let can = &hello.answer()["result"]["capabilities"];
    assert_eq!((&can["tools"]["listChanged"], &can["prompts"]["listChanged"]), (&json!(true), &json!(true)));
    let session = house.session("ann").await;
    let mut heard = house.stream("GET", "ann", &[("mcp-session-id", &session)], "").await;
    house.service.replace(with_tool("first").prompt(Prompt::new("plan", "Plan well."))).unwrap();
    house.service.replace(with_tool("first").prompt(Prompt::new("walk", "Walk."))).unwrap();
    assert_eq!(heard.message().await["method"], "notifications/prompts/list_changed");
    house.service.replace(with_tool("second").prompt(Prompt::new("walk", "Walk."))).unwrap();
    assert_eq!(heard.message().await["method"], "notifications/tools/list_changed");
}

#[tokio::test]
async fn what_the_program_that_started_it_is_offered_stays_and_nothing_else_is_said() {
    let (near, far) = tokio::io::duplex(1 << 16);
    let (read, write) = tokio::io::split(far);
    tokio::spawn(with_tool("first").serve(read, write, "ann"));
    let mut lines = Lines::on(near);
    lines.send(&initialize().to_string()).await;
    assert_eq!(lines.next().await["result"]["capabilities"]["tools"], json!({}));
}

/// A request for a stream of news.
fn listen(id: u32, wanted: &Value) -> String {
    let meta = json!({
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientInfo": {"name": "test", "version": "1"},
        "io.modelcontextprotocol/clientCapabilities": {},
    });
    let params = json!({"notifications": wanted, "_meta": meta});
    json!({"jsonrpc": "2.0", "id": id, "method": "subscriptions/listen", "params": params}).to_string()
}

const NOW: [(&str, &str); 2] =
    [("mcp-protocol-version", "2026-07-28"), ("mcp-method", "subscriptions/listen")];

#[tokio::test]
async fn without_sessions_a_client_hears_over_a_stream_what_it_asked_for() {
    let server = with_tool("first").resources(Diary);
    let changes = server.changes();
    let house = House::new(server).await;
    let wanted = json!({"toolsListChanged": true, "resourcesListChanged": true,
        "resourceSubscriptions": ["diary://a"]});
    let mut heard = house.stream("POST", "ann", &NOW, &listen(7, &wanted)).await;
    let begun = heard.message().await;
    assert_eq!(begun["method"], "notifications/subscriptions/acknowledged");
    let accepted = json!({"toolsListChanged": true, "resourceSubscriptions": ["diary://a"]});
    assert_eq!(begun["params"]["notifications"], accepted, "nobody knows which resources there will be");
    changes.tell("diary://b").await;
    changes.tell("diary://a").await;
    let told = heard.message().await;
    assert_eq!(
        (&told["method"], &told["params"]["uri"]),
        (&json!("notifications/resources/updated"), &json!("diary://a"))
    );
    house.service.replace(with_tool("second").resources(Diary).prompt(Prompt::new("plan", "Plan."))).unwrap();
    let told = heard.message().await;
    assert_eq!(told["method"], "notifications/tools/list_changed");
    assert_eq!(told["params"]["_meta"]["io.modelcontextprotocol/subscriptionId"], 7);
}

#[tokio::test]
async fn a_user_has_so_many_streams_and_those_that_ended_make_room() {
    let limits = McpLimits { sessions_per_user: 1, ..McpLimits::default() };
    let house = House::new(with_tool("first").limits(limits)).await;
    let ask = || listen(1, &json!({"toolsListChanged": true}));
    let mut first = house.stream("POST", "ann", &NOW, &ask()).await;
    assert_eq!(first.message().await["method"], "notifications/subscriptions/acknowledged");
    let mut second = house.stream("POST", "ann", &NOW, &ask()).await;
    second.message().await;
    assert_eq!(second.message().await["error"]["message"], "too many streams are open: close some");
    let mut of_bob = house.stream("POST", "bob", &NOW, &ask()).await;
    of_bob.message().await;
    drop(first);
    soon(async {
        loop {
            let mut again = house.stream("POST", "ann", &NOW, &ask()).await;
            again.message().await;
            house.service.replace(with_tool("other")).unwrap();
            house.service.replace(with_tool("first")).unwrap();
            if again.message().await["method"] == "notifications/tools/list_changed" {
                return;
            }
        }
    })
    .await;
    assert_eq!(of_bob.message().await["method"], "notifications/tools/list_changed");
}
