//! What clients can read: artifacts, resources, prompts.

use rmcp::ServiceError;
use rmcp::model::{ErrorCode, GetPromptRequestParams, ReadResourceRequestParams};
use serde_json::{Value, json};
use umbel_core::{BoxFuture, Caller, Content, InMemoryArtifacts, Part, Result, Role};
use umbel_mcp::server::{McpServer, Prompt, Resource, Resources};
use umbel_runtime::{LlmAgent, Runner, ScriptedModel};

use crate::support::{Lines, TestClient, TestTool, call, connect, speaker};

/// An agent that saves a report, and its user's own notes.
fn writer() -> Runner {
    let save = TestTool::new("save", |cx, _| async move {
        cx.save_artifact("report.txt", Part::text("All is well.")).await?;
        cx.save_artifact("user:notes.bin", Part::data("application/x-notes", vec![7])).await?;
        Ok(json!("saved").into())
    });
    let model = ScriptedModel::new("script").call("save", json!({})).text("Done.");
    let agent = LlmAgent::new("writer").model(model).tool(save);
    Runner::builder("app", agent).artifacts(InMemoryArtifacts::new()).build().unwrap()
}

#[tokio::test]
async fn files_that_an_agent_saves_are_read_by_their_owner_alone() {
    let runner = writer();
    let house = || McpServer::new("house").agent(runner.clone());
    let ann = connect(house(), "ann", TestClient::default()).await;
    let result = ann.call_tool(call("writer", json!({"request": "Write"}))).await.unwrap();
    let links: Vec<_> = result.content.iter().filter_map(|block| block.as_resource_link()).collect();
    let names: Vec<&str> = links.iter().map(|link| link.name.as_str()).collect();
    assert_eq!(names, ["report.txt", "user:notes.bin"]);
    let report = ReadResourceRequestParams::new(links[0].uri.clone());
    let read = ann.read_resource(report.clone()).await.unwrap();
    let read = serde_json::to_value(&read.contents).unwrap();
    assert_eq!(read[0]["text"], "All is well.");
    let listed = ann.list_all_resources().await.unwrap();
    let names: Vec<&str> = listed.iter().map(|one| one.name.as_str()).collect();
    assert_eq!(names, ["user:notes.bin"]);
    let notes = ann.read_resource(ReadResourceRequestParams::new(listed[0].uri.clone())).await.unwrap();
    let notes = serde_json::to_value(&notes.contents).unwrap();
    assert_eq!((&notes[0]["blob"], &notes[0]["mimeType"]), (&json!("Bw=="), &json!("application/x-notes")));
    let bob = connect(house(), "bob", TestClient::default()).await;
    assert!(bob.list_all_resources().await.unwrap().is_empty());
    for uri in [&links[0].uri, &links[1].uri] {
        let read = bob.read_resource(ReadResourceRequestParams::new(uri.clone())).await;
        let Err(ServiceError::McpError(error)) = read else { panic!("it was read") };
        assert_eq!(error.code, ErrorCode::RESOURCE_NOT_FOUND);
    }
}

/// A diary with a page for each day.
pub(crate) struct Diary;

impl Resources for Diary {
    fn list<'a>(&'a self, caller: &'a Caller) -> BoxFuture<'a, Result<Vec<Resource>>> {
        let today = Resource::new("diary://today", format!("{}'s day", caller.user));
        Box::pin(std::future::ready(Ok(vec![today.mime_type("text/plain").description("What happened.")])))
    }

    fn patterns(&self) -> Vec<Resource> {
        vec![Resource::new("diary://{day}", "day")]
    }

    fn read<'a>(&'a self, caller: &'a Caller, uri: &'a str) -> BoxFuture<'a, Result<Option<Part>>> {
        let day = uri.strip_prefix("diary://").map(|day| Part::text(format!("{} on {day}", caller.user)));
        Box::pin(std::future::ready(Ok(day)))
    }
}

#[tokio::test]
async fn a_program_offers_what_it_likes() {
    let client = connect(McpServer::new("house").resources(Diary), "ann", TestClient::default()).await;
    let listed = client.list_all_resources().await.unwrap();
    assert_eq!((listed[0].name.as_str(), listed[0].mime_type.as_deref()), ("ann's day", Some("text/plain")));
    assert_eq!(listed[0].description.as_deref(), Some("What happened."));
    let patterns = client.list_all_resource_templates().await.unwrap();
    assert_eq!(patterns[0].uri_template, "diary://{day}");
    let read = client.read_resource(ReadResourceRequestParams::new("diary://monday")).await.unwrap();
    assert_eq!(serde_json::to_value(&read.contents).unwrap()[0]["text"], "ann on monday");
    let none = client.read_resource(ReadResourceRequestParams::new("file:///etc/passwd")).await;
    assert!(
        matches!(none, Err(ServiceError::McpError(error)) if error.code == ErrorCode::RESOURCE_NOT_FOUND)
    );
}

#[tokio::test]
async fn who_watches_is_told_of_changes() {
    let server = McpServer::new("house").resources(Diary);
    let changes = server.changes();
    let mut lines = Lines::new(server).await;
    let watch = |id: u32, what: &str, uri: &str| {
        json!({"jsonrpc": "2.0", "id": id, "method": format!("resources/{what}"), "params": {"uri": uri}})
            .to_string()
    };
    for (id, what, uri) in
        [(1, "subscribe", "diary://a"), (2, "subscribe", "diary://b"), (3, "unsubscribe", "diary://b")]
    {
        lines.send(&watch(id, what, uri)).await;
        lines.until_answer(id).await;
    }
    for uri in ["diary://b", "diary://c", "diary://a"] {
        changes.tell(uri).await;
    }
    let told = lines.next().await;
    assert_eq!(
        (&told["method"], &told["params"]["uri"]),
        (&json!("notifications/resources/updated"), &json!("diary://a"))
    );
    for n in 0..100 {
        lines.send(&watch(10 + n, "subscribe", &format!("diary://{n}"))).await;
        let (_, answer) = lines.until_answer(10 + n).await;
        assert_eq!(answer.get("error").is_some(), n == 99, "{answer}");
    }
}

#[tokio::test]
async fn prompts_are_filled_with_what_people_give() {
    let review = Prompt::new("review", "Review {file}.")
        .description("Asks for a review.")
        .argument("file", "Which file.")
        .option("tone", "How.", ["kind", "keen", "brief"]);
    let talk = Prompt::with("talk", |_| {
        vec![Content::user("Hello"), Content::new(Role::Model, [Part::data("image/png", vec![1])])]
    });
    let server = McpServer::new("house").agent(speaker(["."])).prompt(review).prompt(talk);
    let client = connect(server, "ann", TestClient::default()).await;
    let listed = serde_json::to_value(client.list_all_prompts().await.unwrap()).unwrap();
    assert_eq!(listed[0]["description"], "Asks for a review.");
    assert_eq!(listed[0]["arguments"][0]["required"], true);
    assert_eq!(listed[0]["arguments"][1]["required"], false);
    let mut params = GetPromptRequestParams::new("review");
    let Err(ServiceError::McpError(error)) = client.get_prompt(params.clone()).await else { panic!("given") };
    assert_eq!(error.message, "`review` needs the argument `file`");
    params.arguments = json!({"file": "a.rs"}).as_object().cloned();
    let given: Value = serde_json::to_value(client.get_prompt(params).await.unwrap()).unwrap();
    assert_eq!(given["messages"][0]["content"]["text"], "Review a.rs.");
    let talk =
        serde_json::to_value(client.get_prompt(GetPromptRequestParams::new("talk")).await.unwrap()).unwrap();
    assert_eq!(talk["messages"][1]["role"], "assistant");
    assert_eq!(talk["messages"][1]["content"]["type"], "image");
    let values = client.complete_prompt_simple("review", "tone", "k").await.unwrap();
    assert_eq!(values, ["kind", "keen"]);
    assert!(client.get_prompt(GetPromptRequestParams::new("other")).await.is_err());
}

#[test]
fn prompts_that_share_a_name_are_refused() {
    let server = McpServer::new("house").prompt(Prompt::new("a", "x")).prompt(Prompt::new("a", "y"));
    assert_eq!(server.http().unwrap_err().message(), "two prompts are named `a`: name one of them otherwise");
}
