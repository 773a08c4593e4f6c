//! One line per call, however it ended.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures::StreamExt;
use serde_json::json;
use tracing::field::{Field, Visit};
use tracing::instrument::WithSubscriber;
use tracing::span::{Attributes, Id, Record};
use tracing::{Level, Metadata, Subscriber};
use umbel::layers::{CallLog, Ending};
use umbel::{
    CancelReason, Error, Layered, Logging, Tool, ToolError, ToolItem, ToolOutput, ToolResult, ToolValue,
};

use super::{Scripted, call, call_in, context, items, streamed};

/// A line as a listener gets it.
#[derive(Clone, Debug, PartialEq)]
struct Line {
    level: Level,
    /// The span it was written in.
    span: Option<u64>,
    fields: BTreeMap<&'static str, String>,
}

impl Line {
    fn get(&self, name: &str) -> Option<&str> {
        self.fields.get(name).map(String::as_str)
    }
}

#[derive(Debug, Default)]
struct Heard {
    lines: Vec<Line>,
    spans: Vec<BTreeMap<&'static str, String>>,
    entered: Vec<u64>,
}

/// Keeps the lines of the layer, from one level up.
#[derive(Clone, Debug)]
struct Listener(Arc<Mutex<Heard>>, Level);

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
        metadata.target().starts_with("umbel") && *metadata.level() <= self.1
    }

    fn new_span(&self, attributes: &Attributes<'_>) -> Id {
        let mut fields = BTreeMap::from([("name", attributes.metadata().name().to_owned())]);
        attributes.record(&mut Fields(&mut fields));
        let mut heard = self.0.lock().unwrap();
        heard.spans.push(fields);
        Id::from_u64(heard.spans.len() as u64)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &tracing::Event<'_>) {
        let mut fields = BTreeMap::new();
        event.record(&mut Fields(&mut fields));
        let mut heard = self.0.lock().unwrap();
        let span = heard.entered.last().copied();
        heard.lines.push(Line { level: *event.metadata().level(), span, fields });
    }

    fn enter(&self, span: &Id) {
        self.0.lock().unwrap().entered.push(span.into_u64());
    }

    fn exit(&self, _: &Id) {
        self.0.lock().unwrap().entered.pop();
    }
}

/// What is heard of work.
async fn hear<T>(level: Level, work: impl Future<Output = T>) -> (Vec<Line>, T) {
    let listener = Listener(Arc::default(), level);
    let result = work.with_subscriber(listener.clone()).await;
    let lines = listener.0.lock().unwrap().lines.clone();
    (lines, result)
}

fn logged(tool: &Scripted, logging: Logging) -> Arc<dyn Tool> {
    tool.tool.clone().layered(logging)
}

/// The only line of one call.
async fn line(tool: &Scripted, logging: Logging, args: serde_json::Value) -> (Line, ToolResult) {
    let tool = logged(tool, logging);
    let (mut lines, result) = hear(Level::TRACE, call(&tool, args)).await;
    assert_eq!(lines.len(), 1, "{lines:?}");
    (lines.remove(0), result)
}

#[tokio::test(start_paused = true)]
async fn l1_a_success_is_one_line_with_all_that_matters() {
    let tool = Scripted::new(|_, _| async {
        tokio::time::sleep(Duration::from_millis(15)).await;
        Ok(json!({"sum": 42}).into())
    });
    let (line, result) = line(&tool, Logging::new(), json!({"a": 1})).await;
    assert!(result.is_ok());
    assert_eq!(line.level, Level::INFO);
    for (field, expected) in [
        ("tool", "probe"),
        ("call_id", "call"),
        ("success", "true"),
        ("ending", "success"),
        ("duration_ms", "15"),
        ("args", r#"{"a":1}"#),
        ("result", r#"{"sum":42}"#),
    ] {
        assert_eq!(line.get(field), Some(expected), "{field}");
    }
    assert_eq!(line.get("error"), None);
}

#[tokio::test(start_paused = true)]
async fn l1_a_failure_is_an_error_with_its_duration() {
    let tool = Scripted::new(|_, _| async {
        tokio::time::sleep(Duration::from_millis(7)).await;
        Err(ToolError::new("no power"))
    });
    let (failed, _) = line(&tool, Logging::new(), json!({})).await;
    assert_eq!(failed.level, Level::ERROR);
    assert_eq!((failed.get("success"), failed.get("error")), (Some("false"), Some("no power")));
    assert_eq!((failed.get("duration_ms"), failed.get("result")), (Some("7"), None));
    // A result that says it is an error is one.
    let bad = || ToolValue { is_error: true, ..json!({"error": "none"}).into() };
    let tool = Scripted::new(move |_, _| async move { Ok(ToolOutput::from(bad())) });
    let (failed, _) = line(&tool, Logging::new(), json!({})).await;
    assert_eq!((failed.level, failed.get("success")), (Level::ERROR, Some("false")));
    assert_eq!(failed.get("result"), Some(r#"{"error":"none"}"#));
}

#[tokio::test(start_paused = true)]
async fn every_way_out_has_a_line_and_a_duration() {
    // Asking a person.
    let tool = Scripted::new(|_, _| async { Err(Error::interrupt("May I?").into()) });
    let (asked, _) = line(&tool, Logging::new(), json!({})).await;
    assert_eq!((asked.level, asked.get("ending")), (Level::INFO, Some("interrupted")));
    // A panic, caught further in.
    let tool = Scripted::new(|_, _| async { panic!("oh") });
    let (panicked, _) = line(&tool, Logging::new(), json!({})).await;
    assert_eq!((panicked.level, panicked.get("ending")), (Level::ERROR, Some("panicked")));
    // A call that nobody waits for any more.
    let tool = logged(&Scripted::slow(Duration::from_secs(10)), Logging::new());
    let late = async { drop(tokio::time::timeout(Duration::from_secs(3), call(&tool, json!({}))).await) };
    let (lines, ()) = hear(Level::TRACE, late).await;
    assert_eq!((lines[0].level, lines[0].get("ending")), (Level::INFO, Some("cancelled")));
    assert_eq!((lines.len(), lines[0].get("duration_ms")), (1, Some("3000")));
    // A run out of time.
    let tool = Scripted::new(|_, _| async { Err(CancelReason::Deadline.error().into()) });
    let tool = logged(&tool, Logging::new());
    let cx = context();
    cx.run().cancel_token().cancel(CancelReason::Deadline);
    let (lines, _) = hear(Level::TRACE, call_in(&tool, &cx, json!({}))).await;
    assert_eq!((lines[0].level, lines[0].get("ending")), (Level::INFO, Some("cancelled")));
}

#[tokio::test]
async fn a_panic_that_passes_through_is_logged_on_its_way() {
    let endings: Arc<Mutex<Vec<Ending>>> = Arc::default();
    let noted = endings.clone();
    let logging = Logging::new().sink(move |line| noted.lock().unwrap().push(line.ending));
    let panics = umbel::layer_fn("panics", |_, _| umbel::Work::later(async { panic!("oh") }));
    let tool = Scripted::numbers().tool.layered_with([Arc::new(logging.clone()), Arc::new(panics)]);
    assert!(call(&tool, json!({})).await.unwrap_err().to_string().contains("panics"));
    // A stream is read behind all layers, so there its panic passes.
    let tool = Scripted::new(|_, _| async {
        let items = futures::stream::once(async { panic!("oh") });
        Ok(ToolOutput::Stream(items.boxed()))
    });
    let tool = tool.tool.layered(logging);
    let read = tokio::spawn(async move { items(call(&tool, json!({})).await).await });
    assert!(read.await.unwrap_err().is_panic());
    assert_eq!(*endings.lock().unwrap(), [Ending::Panicked; 2]);
}

#[tokio::test(start_paused = true)]
async fn a_streamed_call_is_logged_at_the_end_of_its_stream() {
    let tool = Scripted::new(|_, _| async {
        let end = async {
            tokio::time::sleep(Duration::from_secs(2)).await;
            tracing::info!(target: "umbel::test", "working");
            Ok(ToolItem::Done(json!(1).into()))
        };
        Ok(ToolOutput::Stream(futures::stream::once(end).boxed()))
    });
    let tool = logged(&tool, Logging::new());
    let (lines, _) = hear(Level::TRACE, async { items(call(&tool, json!({})).await).await }).await;
    assert_eq!(lines.len(), 2);
    assert_eq!(lines[0].span, Some(1), "what a stream does is in the span of its call");
    assert_eq!((lines[1].get("duration_ms"), lines[1].get("result")), (Some("2000"), Some("1")));
    // One that is not read to its end is logged too.
    let (lines, _) = hear(Level::TRACE, async { drop(call(&tool, json!({})).await) }).await;
    assert_eq!((lines.len(), lines[0].get("ending")), (1, Some("cancelled")));
}

#[tokio::test]
async fn each_call_has_a_span_that_says_nothing_of_what_it_is_about() {
    let listener = Listener(Arc::default(), Level::TRACE);
    let tool = Scripted::new(|_, _| async {
        tracing::info!(target: "umbel::test", "working");
        Ok(json!("secret").into())
    });
    let tool = logged(&tool, Logging::new());
    call(&tool, json!({"a": "secret"})).with_subscriber(listener.clone()).await.unwrap();
    let heard = listener.0.lock().unwrap();
    let expected = BTreeMap::from([("name", "tool"), ("tool", "probe"), ("call_id", "call")]);
    assert_eq!(heard.spans, [expected.into_iter().map(|(k, v)| (k, v.to_owned())).collect()]);
    assert_eq!(heard.lines.iter().map(|line| line.span).collect::<Vec<_>>(), [Some(1), Some(1)]);
}

#[tokio::test]
async fn l1_arguments_and_results_can_be_left_out_cut_and_redacted() {
    let tool = Scripted::new(|_, _| async { Ok(json!({"token": "t", "text": "ä".repeat(2_000)}).into()) });
    let args = || json!({"user": {"password": "p", "name": "ann"}, "text": "ä".repeat(2_000)});
    let (whole, _) = line(&tool, Logging::new(), args()).await;
    for field in ["args", "result"] {
        let text = whole.get(field).unwrap();
        assert!(text.len() <= 1_024 + '…'.len_utf8() && text.len() > 1_000, "{}", text.len());
        assert!(text.ends_with("ä…"), "cut between characters: {text}");
    }
    let logging = || Logging::new().max_arg_bytes(20);
    let (cut, _) = line(&tool, logging().redact("/token").redact("/user/password"), args()).await;
    assert_eq!(cut.get("args"), Some(r#"{"user":{"password":…"#));
    assert_eq!(cut.get("result"), Some(r#"{"token":"[redacted]…"#));
    let (without, _) = line(&tool, Logging::new().without_input_logging(), args()).await;
    assert!(without.get("args").is_none() && without.get("result").is_some());
    let (without, _) = line(&tool, Logging::new().without_output_logging(), args()).await;
    assert!(without.get("args").is_some() && without.get("result").is_none());
}

#[tokio::test]
async fn levels_can_be_chosen_and_what_nobody_reads_is_not_written() {
    for level in [Level::ERROR, Level::WARN, Level::INFO, Level::DEBUG, Level::TRACE] {
        let (success, _) = line(&Scripted::numbers(), Logging::new().level(level), json!({})).await;
        let (failure, _) = line(&Scripted::failing(1), Logging::new().failure_level(level), json!({})).await;
        assert_eq!((success.level, failure.level), (level, level));
    }
    let tool = logged(&Scripted::failing(1), Logging::new());
    let (lines, _) = hear(Level::WARN, async {
        for _ in 0..2 {
            let _ = call(&tool, json!({})).await;
        }
    })
    .await;
    assert_eq!(lines.len(), 1, "the success is below the level");
}

#[tokio::test]
async fn l1_lines_can_go_to_a_sink_of_ones_own() {
    let lines: Arc<Mutex<Vec<String>>> = Arc::default();
    let noted = lines.clone();
    let logging = Logging::new().sink(move |line: &CallLog<'_>| {
        let text =
            format!("{} {:?} {:?} {:?} {:?}", line.tool, line.ending, line.args, line.result, line.error);
        noted.lock().unwrap().push(text);
    });
    let tool = logged(&Scripted::failing(1), logging);
    let (heard, _) = hear(Level::TRACE, async {
        for _ in 0..2 {
            let _ = call(&tool, json!({})).await;
        }
    })
    .await;
    assert!(heard.is_empty());
    let expected =
        [r#"probe Failure Some("{}") None Some("failure 0")"#, r#"probe Success Some("{}") Some("1") None"#];
    assert_eq!(*lines.lock().unwrap(), expected);
}

#[tokio::test]
async fn two_logging_layers_and_concurrent_calls_do_not_disturb_each_other() {
    let tool = Scripted::new(|n, args| async move {
        for _ in 0..n % 4 {
            tokio::task::yield_now().await;
        }
        streamed([ToolItem::Done(args.into())])
    });
    let tool = tool.tool.layered_with([Arc::new(Logging::new()), Arc::new(Logging::new())]);
    let calls = (0..20).map(|n| {
        let tool = tool.clone();
        async move { items(call(&tool, json!({"n": n})).await).await }
    });
    let (lines, _) = hear(Level::TRACE, futures::future::join_all(calls)).await;
    assert_eq!(lines.len(), 40);
    for line in lines {
        assert_eq!(line.get("args"), line.get("result"));
    }
}
