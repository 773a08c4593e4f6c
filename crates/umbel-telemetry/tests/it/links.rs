//! Runs that go on with others: their spans are linked, be it in another process.

use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures::StreamExt;
use opentelemetry_sdk::trace::SpanData;
use serde_json::{Value, json};
use umbel_core::conventions::attribute;
use umbel_core::{
    Answer, Confirm, FunctionTool, LogEntry, Outcome, RunStep, SessionStore, TraceContext, Versions,
};
use umbel_runtime::{LlmAgent, Runner, ScriptedModel};
use umbel_stores::Sqlite;

use crate::support::{begin, echo, listen, read, text};

/// A process of its own, as far as sessions are concerned: all it knows is in the file.
async fn process(file: &Path, agent: LlmAgent) -> Runner {
    Runner::builder("app", agent).sessions(Sqlite::open(file).await.unwrap()).build().unwrap()
}

fn asking(model: ScriptedModel) -> LlmAgent {
    LlmAgent::new("a").model(model).tool(echo().confirm(Confirm::Always))
}

/// The spans that a span is linked to, by trace and id.
fn links(span: &SpanData) -> Vec<String> {
    let linked = span.links.iter().map(|link| &link.span_context);
    linked.map(|context| format!("{}-{}", context.trace_id(), context.span_id())).collect()
}

fn name(span: &SpanData) -> String {
    format!("{}-{}", span.span_context.trace_id(), span.span_context.span_id())
}

#[tokio::test]
async fn an_answer_is_linked_to_the_run_that_asked_after_a_restart() {
    let listening = listen();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("sessions.db");
    let first = process(&file, asking(ScriptedModel::new("m").call("echo", json!({})))).await;
    let key = first.create_session("ann").await.unwrap().key;
    let Outcome::Interrupted { interrupts } = read(first.run(&key, "hi")).await.outcome else {
        panic!("not asked")
    };
    drop(first);
    let second = process(&file, asking(ScriptedModel::new("m").text("Done."))).await;
    let answered = read(second.resume(&key, [(&interrupts[0], Answer::approve())])).await;
    assert_eq!(answered.outcome, Outcome::Finished);

    let invocations = listening.of_name("invocation");
    assert_eq!(links(&invocations[0]), Vec::<String>::new());
    assert_eq!(links(&invocations[1]), [name(&invocations[0])]);
    assert_ne!(invocations[0].span_context.trace_id(), invocations[1].span_context.trace_id());
    assert_eq!(text(&invocations[1], attribute::RESUMES), text(&invocations[0], attribute::RUN));
    assert!(
        listening.spans().iter().filter(|span| span.name != "invocation").all(|span| span.links.is_empty())
    );
}

#[tokio::test]
async fn an_answer_that_comes_after_other_turns_is_linked_to_the_run_that_asked() {
    let listening = listen();
    let model = ScriptedModel::new("m").call("echo", json!({})).text("Fine.").text("Done.");
    let (runner, key) = begin(asking(model)).await;
    let Outcome::Interrupted { interrupts } = read(runner.run(&key, "hi")).await.outcome else {
        panic!("not asked")
    };
    read(runner.run(&key, "how are you?")).await;
    read(runner.resume(&key, [(&interrupts[0], Answer::approve())])).await;
    let invocations = listening.of_name("invocation");
    assert_eq!(links(&invocations[1]), Vec::<String>::new(), "it goes on with nothing");
    assert_eq!(links(&invocations[2]), [name(&invocations[0])]);
    assert_eq!(text(&invocations[2], attribute::RESUMES), text(&invocations[0], attribute::RUN));
}

#[tokio::test]
async fn a_run_that_is_continued_is_linked_to_the_one_that_failed() {
    let listening = listen();
    let model = ScriptedModel::new("m").call("echo", json!({})).fail("out of order").text("Done.");
    let (runner, key) = begin(LlmAgent::new("a").model(model).tool(echo())).await;
    assert!(read(runner.run(&key, "hi")).await.error.is_some());
    assert_eq!(read(runner.continue_run(&key)).await.outcome, Outcome::Finished);
    let invocations = listening.of_name("invocation");
    assert_eq!(links(&invocations[1]), [name(&invocations[0])]);
    assert_eq!(text(&invocations[1], attribute::RESUMES), text(&invocations[0], attribute::RUN));
}

#[tokio::test]
async fn a_run_that_goes_on_after_a_crash_is_linked_to_what_was_cut_short() {
    let listening = listen();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("sessions.db");
    let traced: Arc<Mutex<Vec<TraceContext>>> = Arc::default();
    let look = || {
        let traced = traced.clone();
        FunctionTool::new("look", "", move |_: Value| {
            let mut traced = traced.lock().unwrap();
            traced.extend(TraceContext::current());
            let is_first = traced.len() == 1;
            async move {
                if is_first {
                    std::future::pending::<()>().await;
                }
                Ok(())
            }
        })
        .read_only()
    };
    let agent = |model| LlmAgent::new("a").model(model).tool(look());
    let lease = Duration::from_millis(5);
    let open = async |model| {
        let sessions = Sqlite::open(&file).await.unwrap();
        Runner::builder("app", agent(model)).sessions(sessions).lease(lease).build().unwrap()
    };
    let first = open(ScriptedModel::new("m").call("look", json!({}))).await;
    let key = first.create_session("ann").await.unwrap().key;
    let mut stream = first.run(&key, "hi");
    while traced.lock().unwrap().is_empty() {
        tokio::select! {
            event = stream.next() => drop(event.unwrap().unwrap()),
            () = tokio::task::yield_now() => {}
        }
    }
    // It is gone as a process is: nobody winds it up.
    std::mem::forget(stream);

    let second = open(ScriptedModel::new("m").text("Done.")).await;
    let recovered = loop {
        let recovered = second.recover().await.unwrap();
        if !recovered.is_empty() {
            break recovered;
        }
        tokio::time::sleep(lease).await;
    };
    assert_eq!(*recovered[0].outcome.as_ref().unwrap(), Outcome::Finished);
    // What was cut short never ended, so it is known by its trace alone.
    let invocation = listening.one("invocation");
    let cut = traced.lock().unwrap()[0].traceparent().split('-').nth(1).unwrap().to_owned();
    let [link] = &*links(&invocation) else { panic!("{:?}", invocation.links) };
    assert!(link.starts_with(&cut) && !name(&invocation).starts_with(&cut), "{link}");
    assert_eq!(text(&invocation, attribute::RESUMES), None, "it has the same name");
}

#[tokio::test]
async fn nothing_is_kept_for_links_unless_somebody_traces() {
    let kept = async || {
        let (runner, key) = begin(LlmAgent::new("a").model(ScriptedModel::new("m").text("Hi."))).await;
        read(runner.run(&key, "hi")).await;
        let news = runner.sessions().news(&key, Versions::default()).await.unwrap().unwrap();
        let is_kept = |entry: &LogEntry| matches!(entry, LogEntry::Record(step) if matches!(**step, RunStep::Kept { .. }));
        news.entries.iter().filter(|entry| is_kept(entry)).count()
    };
    let listening = listen();
    assert_eq!(kept().await, 1);
    drop(listening);
    assert_eq!(kept().await, 0);
}
