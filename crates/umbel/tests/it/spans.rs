//! What a run tells about itself to whoever listens: spans with names and fields, and nothing of what was said.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex};

use serde_json::{Value, json};
use tracing::field::{Field, Visit};
use tracing::instrument::WithSubscriber;
use tracing::span::{Attributes, Id, Record};
use tracing::{Metadata, Subscriber};
use tracing_core::span::Current;
use umbel::backoff::Backoff;
use umbel::{AgentTool, FunctionTool, LlmAgent, Response, ScriptedModel, ToolError, ToolRetry, Usage};

use crate::support::{Notes, Seen, begin, echo, fine, read};

/// A span as it was recorded.
#[derive(Clone, Debug)]
struct Span {
    metadata: &'static Metadata<'static>,
    parent: Option<u64>,
    fields: BTreeMap<&'static str, String>,
}

impl Span {
    fn name(&self) -> &'static str {
        self.metadata.name()
    }
}

#[derive(Debug, Default)]
struct Spans {
    all: Vec<Span>,
    entered: Vec<u64>,
}

/// Keeps all spans. Each test runs on one thread, so the span that was entered last is the current one.
#[derive(Clone, Debug, Default)]
struct Listener(Arc<Mutex<Spans>>);

impl Listener {
    fn spans(&self) -> Vec<Span> {
        self.0.lock().unwrap().all.clone()
    }

    /// The names from the root to each span.
    fn paths(&self) -> Vec<String> {
        let spans = self.spans();
        let path = |span: &Span| {
            let mut names = vec![span.name()];
            let mut parent = span.parent;
            while let Some(id) = parent {
                let above = &spans[id as usize - 1];
                names.push(above.name());
                parent = above.parent;
            }
            names.reverse();
            names.join(" > ")
        };
        spans.iter().map(path).collect()
    }

    fn of_name(&self, name: &str) -> Vec<BTreeMap<&'static str, String>> {
        self.spans().into_iter().filter(|span| span.name() == name).map(|span| span.fields).collect()
    }
}

struct Fields<'a>(&'a mut BTreeMap<&'static str, String>);

impl Visit for Fields<'_> {
    fn record_str(&mut self, field: &Field, value: &str) {
        self.0.insert(field.name(), value.to_owned());
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.0.insert(field.name(), format!("{value:?}"));
    }
}

impl Subscriber for Listener {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.is_span() && metadata.target().starts_with("umbel")
    }

    fn new_span(&self, attributes: &Attributes<'_>) -> Id {
        let mut spans = self.0.lock().unwrap();
        let mut fields = BTreeMap::new();
        attributes.record(&mut Fields(&mut fields));
        let parent = spans.entered.last().copied();
        spans.all.push(Span { metadata: attributes.metadata(), parent, fields });
        Id::from_u64(spans.all.len() as u64)
    }

    fn record(&self, span: &Id, values: &Record<'_>) {
        let mut spans = self.0.lock().unwrap();
        let index = span.into_u64() as usize - 1;
        values.record(&mut Fields(&mut spans.all[index].fields));
    }

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, _: &tracing::Event<'_>) {}

    fn enter(&self, span: &Id) {
        self.0.lock().unwrap().entered.push(span.into_u64());
    }

    fn exit(&self, span: &Id) {
        let mut spans = self.0.lock().unwrap();
        let place = spans.entered.iter().rposition(|id| *id == span.into_u64()).unwrap();
        spans.entered.remove(place);
    }

    fn current_span(&self) -> Current {
        let spans = self.0.lock().unwrap();
        match spans.entered.last() {
            Some(id) => Current::new(Id::from_u64(*id), spans.all[*id as usize - 1].metadata),
            None => Current::none(),
        }
    }
}

/// One run of an agent with someone listening.
async fn listen(agent: LlmAgent) -> (Listener, Seen, umbel::SessionKey) {
    let listener = Listener::default();
    let (runner, key) = begin(agent).await;
    let seen = async { read(runner.run(&key, "my secret question")).await };
    let seen = seen.with_subscriber(listener.clone()).await;
    (listener, seen, key)
}

fn told() -> ScriptedModel {
    let mut answer = Response::text("a secret answer");
    let meta = answer.meta_mut();
    meta.model_version = Some("m-1".into());
    meta.finish_reason = Some("STOP".into());
    meta.usage_metadata = Some(Usage {
        prompt_token_count: Some(10),
        candidates_token_count: Some(3),
        cached_content_token_count: Some(2),
        thoughts_token_count: Some(1),
        ..Usage::default()
    });
    ScriptedModel::new("m").call("echo", json!({"text": "a secret argument"})).response(answer)
}

#[tokio::test]
async fn a_run_is_a_tree_of_spans() {
    let (listener, seen, _) = listen(LlmAgent::new("a").model(told()).tool(echo())).await;
    seen.assert_finished();
    let agent = "invocation > invoke_agent";
    let expected = ["invocation", agent, "invocation > invoke_agent > chat"].map(str::to_owned);
    let rest = ["execute_tool", "chat"].map(|name| format!("{agent} > {name}"));
    assert_eq!(listener.paths(), [&expected[..], &rest[..]].concat());
}

#[tokio::test]
async fn spans_name_agents_models_tools_and_what_they_used() {
    let (listener, seen, key) = listen(LlmAgent::new("a").model(told()).tool(echo())).await;
    let invocation = &listener.of_name("invocation")[0];
    assert_eq!(invocation["gen_ai.conversation.id"], key.id());
    assert_eq!(invocation["umbel.run.id"], seen.events[0].run.as_str());
    let agent = &listener.of_name("invoke_agent")[0];
    assert_eq!(agent["gen_ai.operation.name"], "invoke_agent");
    assert_eq!(agent["gen_ai.agent.name"], "a");
    let chats = listener.of_name("chat");
    assert_eq!(chats[0]["gen_ai.operation.name"], "chat");
    assert_eq!(chats[0]["gen_ai.request.model"], "m");
    assert!(!chats[0].contains_key("gen_ai.request.stream"), "only what is streamed says so");
    for (field, value) in [
        ("gen_ai.response.model", "m-1"),
        ("gen_ai.response.finish_reasons", "STOP"),
        ("gen_ai.usage.input_tokens", "10"),
        ("gen_ai.usage.output_tokens", "4"),
        ("gen_ai.usage.cache_read.input_tokens", "2"),
        ("gen_ai.usage.reasoning.output_tokens", "1"),
    ] {
        assert_eq!(chats[1][field], value, "{field}");
    }
    let tool = &listener.of_name("execute_tool")[0];
    assert_eq!(tool["gen_ai.operation.name"], "execute_tool");
    assert_eq!(tool["gen_ai.tool.name"], "echo");
    assert_eq!(tool["gen_ai.tool.type"], "function");
    let call = seen.events[0].calls().next().unwrap().id.clone().unwrap();
    assert_eq!(tool["gen_ai.tool.call.id"], call.as_str());
    let failed = listener.spans().iter().any(|span| span.fields.contains_key("error.type"));
    assert!(!failed, "nothing failed");
}

#[tokio::test]
async fn nothing_that_was_said_is_in_a_span() {
    let fail = FunctionTool::new("fail", "", |_: Value| async {
        Err::<Value, _>(ToolError::new("a secret reason"))
    });
    let model = told().call("fail", json!({})).fail("a secret failure");
    let agent = LlmAgent::new("a").model(model).tool(echo()).tool(fail).instruction("a secret instruction");
    let (runner, key) = begin(agent).await;
    let listener = Listener::default();
    let runs = async {
        for _ in 0..2 {
            read(runner.run(&key, "my secret question")).await;
        }
    };
    runs.with_subscriber(listener.clone()).await;
    assert!(listener.spans().len() > 6);
    for span in listener.spans() {
        let content = span.fields.values().any(|value| value.contains("secret"));
        assert!(!content, "{span:?}");
    }
}

#[tokio::test]
async fn a_failure_is_named_where_it_happened() {
    let fail = FunctionTool::new("fail", "", |_: Value| async { Err::<Value, _>(ToolError::new("no")) });
    let model = ScriptedModel::new("m").call("fail", json!({})).fail("no power");
    let (listener, seen, _) = listen(LlmAgent::new("a").model(model).tool(fail)).await;
    assert_eq!(seen.code(), "MODEL_FAILED");
    assert_eq!(listener.of_name("execute_tool")[0]["error.type"], "TOOL_FAILED");
    let chats = listener.of_name("chat");
    assert_eq!(chats[0].get("error.type"), None);
    assert_eq!(chats[1]["error.type"], "MODEL_FAILED");
    assert_eq!(listener.of_name("invoke_agent")[0]["error.type"], "MODEL_FAILED");
}

#[tokio::test]
async fn an_agent_called_as_a_tool_stands_below_its_call() {
    let child = LlmAgent::new("child").model(fine());
    let model = ScriptedModel::new("m").call("child", json!({"request": "go"})).text("done");
    let (listener, seen, _) = listen(LlmAgent::new("a").model(model).tool(AgentTool::new(child))).await;
    seen.assert_finished();
    let below = "invocation > invoke_agent > execute_tool > invocation > invoke_agent > chat";
    assert!(listener.paths().contains(&below.to_owned()), "{:?}", listener.paths());
}

#[tokio::test]
async fn a_retry_that_asks_a_person_has_not_failed() {
    let tries = Notes::default();
    let count = tries.clone();
    let tool = FunctionTool::with_context("send", "", move |cx, _: Value| {
        count.add("tried");
        let is_first = count.all().len() == 1;
        Box::pin(async move {
            if is_first {
                return Err(ToolError::new("not yet"));
            }
            cx.interrupt("Send it?")?;
            Ok("sent")
        })
    });
    let retry = ToolRetry::new().backoff(Backoff::new().initial(std::time::Duration::ZERO));
    let model = ScriptedModel::new("m").call("send", json!({}));
    let (listener, seen, _) = listen(LlmAgent::new("a").model(model).tool(tool).handler(retry)).await;
    assert_eq!(seen.interrupts().len(), 1);
    let retries = listener.of_name("retry");
    assert_eq!(retries.len(), 1);
    assert!(!retries[0].contains_key("error.type"), "{retries:?}");
}
