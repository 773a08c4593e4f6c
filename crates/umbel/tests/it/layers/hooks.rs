//! Layers from functions, layers around one tool, and layers that misbehave.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::{Value, json};
use umbel::layers::hooks;
use umbel::{
    BoxFuture, Error, ErrorKind, FunctionTool, Handler, Hooks, Layered, LlmAgent, ModelRequest, NextTool,
    Object, Result, Run, ScriptedModel, Tool, ToolCall, ToolContext, ToolError, ToolHooks, ToolItem,
    ToolOutput, ToolResult, ToolSpec, ToolValue, Work, layer_fn,
};

use super::{Scripted, call, context, done, error, items, streamed, value};
use crate::support::{Notes, object, run_once};

/// Notes when a call enters and leaves.
fn noting(name: &'static str, notes: &Notes) -> Arc<dyn Handler> {
    let notes = notes.clone();
    Arc::new(layer_fn(name, move |call, next| {
        let notes = notes.clone();
        Work::later(async move {
            notes.add(format!("{name}>"));
            let result = next.call(call).await;
            notes.add(format!("<{name}"));
            result
        })
    }))
}

/// Does all that hooks can do, as the arguments say.
#[derive(Default)]
struct Versatile {
    notes: Notes,
}

impl ToolHooks for Versatile {
    fn name(&self) -> &str {
        "versatile"
    }

    fn before<'a>(&'a self, call: &'a mut ToolCall<'_>) -> Work<'a, Result<Option<ToolValue>, ToolError>> {
        Work::later(async move {
            self.notes.add("before");
            tokio::task::yield_now().await;
            match call.args.get("before").and_then(Value::as_str) {
                Some("answer") => return Ok(Some(json!("from before").into())),
                Some("fail") => return Err(ToolError::new("failed before")),
                Some("ask") => return Err(Error::interrupt("May I?").into()),
                Some("change") => call.args = Arc::new(object(json!({"changed": true}))),
                _ => {}
            }
            Ok(None)
        })
    }

    fn after<'a>(
        &'a self,
        call: &'a ToolCall<'_>,
        mut value: ToolValue,
    ) -> Work<'a, Result<ToolValue, ToolError>> {
        Work::later(async move {
            self.notes.add(format!("after {} of {}", value.value, call.name()));
            tokio::task::yield_now().await;
            match call.args.get("after").and_then(Value::as_str) {
                Some("fail") => Err(ToolError::new("failed after")),
                _ => {
                    value.metadata.insert("seen".into(), json!(true));
                    Ok(value)
                }
            }
        })
    }

    fn on_error<'a>(
        &'a self,
        call: &'a ToolCall<'_>,
        error: ToolError,
    ) -> Work<'a, Result<ToolValue, ToolError>> {
        self.notes.add(format!("on_error {error}"));
        Work::done(match call.args.get("on_error").and_then(Value::as_str) {
            Some("answer") => Ok(json!("from on_error").into()),
            Some("change") => Err(ToolError::new("changed")),
            _ => Err(error),
        })
    }
}

/// One call through the hooks: what was noted, and what came out.
async fn through(tool: &Scripted, args: Value) -> (Vec<String>, ToolResult) {
    let notes = Notes::default();
    let tool = tool.tool.clone().layered(hooks(Versatile { notes: notes.clone() }));
    let result = call(&tool, args).await;
    (notes.all(), result)
}

#[tokio::test]
async fn a2_before_may_change_the_arguments_or_answer_in_the_tools_place() {
    let tool = Scripted::numbers();
    let (notes, result) = through(&tool, json!({"before": "change"})).await;
    assert_eq!(notes, ["before", "after 0 of probe"]);
    let result = value(result);
    assert_eq!((result.value, result.metadata["seen"].clone()), (json!(0), json!(true)));
    assert_eq!(*tool.seen.lock().unwrap(), [json!({"changed": true})]);
    let (notes, result) = through(&tool, json!({"before": "answer"})).await;
    assert_eq!((notes, value(result).value), (vec!["before".to_owned()], json!("from before")));
    assert_eq!(tool.calls(), 1);
}

#[tokio::test]
async fn a2_on_error_sees_failures_from_everywhere_and_always_gives_something() {
    for (args, failure) in [
        (json!({"before": "fail"}), "failed before"),
        (json!({}), "failure 0"),
        (json!({"after": "fail"}), "failed after"),
    ] {
        for (policy, expected) in
            [("pass", Err(failure)), ("answer", Ok("from on_error")), ("change", Err("changed"))]
        {
            let tool = Scripted::failing(usize::from(failure == "failure 0"));
            let mut args = args.clone();
            args["on_error"] = json!(policy);
            let (notes, result) = through(&tool, args).await;
            assert_eq!(notes.last().unwrap(), &format!("on_error {failure}"));
            match expected {
                Ok(answer) => assert_eq!(value(result).value, json!(answer)),
                Err(message) => assert_eq!(error(result).message(), message),
            }
        }
    }
}

#[tokio::test]
async fn e4_on_error_is_never_asked_about_a_question_or_the_end_of_a_run() {
    let (notes, result) = through(&Scripted::numbers(), json!({"before": "ask", "on_error": "answer"})).await;
    assert_eq!((notes, error(result).kind()), (vec!["before".to_owned()], ErrorKind::Interrupted));
    for kind in [ErrorKind::Interrupted, ErrorKind::Cancelled] {
        let tool = Scripted::new(move |_, _| async move { Err(Error::new(kind, "stop").into()) });
        let (notes, result) = through(&tool, json!({"on_error": "answer"})).await;
        assert_eq!((notes, error(result).kind()), (vec!["before".to_owned()], kind));
    }
}

#[tokio::test]
async fn h6_hooks_see_the_last_item_of_a_streamed_result() {
    let news = || ToolItem::Progress(json!("half"));
    let tool = Scripted::new(move |_, _| async move { streamed([news(), ToolItem::Done(json!(1).into())]) });
    let (notes, result) = through(&tool, json!({})).await;
    assert_eq!(notes, ["before"], "nobody has read it yet");
    let seen = items(result).await;
    assert_eq!(seen[0], Ok(news()));
    let Ok(ToolItem::Done(last)) = &seen[1] else { panic!("{seen:?}") };
    assert_eq!(last.metadata["seen"], json!(true));
    // A failure at its end is one like any other.
    let tool = Scripted::new(|_, _| async {
        let items = [Err(ToolError::new("broke off"))];
        Ok(ToolOutput::Stream(Box::pin(futures::stream::iter(items))))
    });
    let (_, result) = through(&tool, json!({"on_error": "answer"})).await;
    assert_eq!(done(result).await.value, json!("from on_error"));
}

#[tokio::test]
async fn a1_the_first_layer_is_outermost_and_both_forms_mix() {
    let notes = Notes::default();
    let tool = Scripted::new({
        let notes = notes.clone();
        move |_, _| {
            notes.add("tool");
            async { Ok(json!(1).into()) }
        }
    });
    let versatile = Arc::new(hooks(Versatile { notes: notes.clone() }));
    let layered = tool.tool.clone().layered_with([noting("a", &notes), versatile, noting("b", &notes)]);
    call(&layered, json!({})).await.unwrap();
    assert_eq!(notes.all(), ["a>", "before", "b>", "tool", "<b", "after 1 of probe", "<a"]);
    // One more layer goes around those that are there.
    let layered = layered.layered(Arc::clone(&noting("c", &notes)));
    let before = notes.all().len();
    call(&layered, json!({})).await.unwrap();
    assert_eq!(notes.all()[before], "c>");
}

#[tokio::test]
async fn a1_without_a_layer_it_is_the_very_same_tool() {
    let tool: Arc<dyn Tool> = Arc::new(Scripted::numbers().tool);
    assert!(Arc::ptr_eq(&tool, &tool.clone().layered_with([])));
    // A handler that has no `wrap_tool` is no layer.
    struct Other;
    impl Handler for Other {
        fn name(&self) -> &str {
            "other"
        }

        fn hooks(&self) -> Hooks {
            Hooks::BEFORE_MODEL
        }
    }
    assert!(Arc::ptr_eq(&tool, &tool.clone().layered(Other)));
    let plain = FunctionTool::new("plain", "", |_: Value| async { Ok(1) }).layered_with([]);
    assert_eq!(value(call(&plain, json!({})).await).value, json!(1));
}

#[tokio::test]
async fn a_layered_tool_is_the_same_to_its_agent() {
    /// Adds words to each request.
    struct Preparing(FunctionTool);

    impl Tool for Preparing {
        fn spec(&self) -> &ToolSpec {
            self.0.spec()
        }

        fn call<'a>(&'a self, cx: &'a ToolContext, args: Arc<Object>) -> BoxFuture<'a, ToolResult> {
            self.0.call(cx, args)
        }

        fn prepare<'a>(
            &'a self,
            _: &'a Run,
            request: &'a mut ModelRequest,
        ) -> Option<BoxFuture<'a, Result<()>>> {
            request.instruction.push("preparing", "Mind the gap.");
            None
        }
    }

    let notes = Notes::default();
    let tool = FunctionTool::new("probe", "Probes.", |_: Value| async { Ok(7) }).exclusive();
    let tool = Preparing(tool).layered(noting("layer", &notes));
    assert!(tool.spec().exclusive && tool.spec().description == "Probes.");
    let model = ScriptedModel::new("m").recorded().call("probe", json!({})).text("done");
    let seen = run_once(LlmAgent::new("a").model(model.clone()).tool(tool)).await;
    assert_eq!(seen.assert_finished().responses(), [json!({"result": 7})]);
    assert_eq!(notes.all(), ["layer>", "<layer"]);
    assert!(model.requests()[0].instruction.text().contains("Mind the gap."));
    assert_eq!(model.requests()[0].tools.specs().next().unwrap().name, "probe");
}

#[tokio::test]
async fn h10_a_layer_may_answer_change_arguments_change_results_and_call_again() {
    let tool = Scripted::new(|n, args| async move { Ok(json!([n, args]).into()) });
    let never = layer_fn("never", |_, _| Work::done(Ok(json!("no need").into())));
    assert_eq!(value(call(&tool.tool.clone().layered(never), json!({})).await).value, json!("no need"));
    assert_eq!(tool.calls(), 0);
    let twice = layer_fn("twice", |call, next| {
        Work::later(async move {
            let first = value(next.call(call.clone().with_args(object(json!({"try": 1})))).await);
            let second = value(next.call(call.with_args(object(json!({"try": 2})))).await);
            Ok(json!([first.value, second.value]).into())
        })
    });
    let both = value(call(&tool.tool.clone().layered(twice), json!({})).await).value;
    assert_eq!(both, json!([[0, {"try": 1}], [1, {"try": 2}]]));
    let at_once = layer_fn("at_once", |call, next| {
        Work::later(async move {
            let (first, second) = tokio::join!(next.call(call.clone()), next.call(call));
            first.and(second)
        })
    });
    call(&tool.tool.clone().layered(at_once), json!({})).await.unwrap();
    assert_eq!(tool.calls(), 4);
}

#[tokio::test]
async fn a_panic_in_a_layer_is_an_error_that_names_it() {
    let at_once = layer_fn("hasty", |_, _| panic!("at once"));
    let later = layer_fn("slow", |call, next| {
        Work::later(async move {
            next.call(call).await?;
            panic!("later")
        })
    });
    for (layer, words) in [(Arc::new(at_once) as Arc<dyn Handler>, "hasty"), (Arc::new(later), "slow")] {
        let failed = error(call(&Scripted::numbers().tool.layered(layer), json!({})).await);
        assert!(failed.kind() == ErrorKind::Handler && failed.is_panic());
        assert!(failed.message().contains(words), "{failed}");
    }
    // One of the tool names the tool, and layers see it as an error.
    let sees = layer_fn("sees", |call, next| {
        Work::later(async move {
            let failed = error(next.call(call).await);
            Ok(json!(failed.message()).into())
        })
    });
    let tool = Scripted::new(|_, _| async { panic!("oh") });
    let seen = value(call(&tool.tool.layered(sees), json!({})).await).value;
    assert_eq!(seen, json!("tool `probe` panicked: oh"));
}

#[tokio::test]
async fn s3_what_a_layer_puts_in_is_seen_further_in_and_nowhere_else() {
    struct Depth(usize);

    /// Puts its depth in, one more than that further out.
    struct Deeper(AtomicUsize);

    impl Handler for Deeper {
        fn name(&self) -> &str {
            "deeper"
        }

        fn wrap_tool<'a>(&'a self, call: ToolCall<'a>, next: NextTool<'a>) -> Work<'a, ToolResult> {
            Work::later(async move {
                let outer = call.cx.extension::<Depth>().map_or(0, |depth| depth.0);
                self.0.store(outer, Ordering::SeqCst);
                let cx = call.cx.with(Depth(outer + 1));
                next.call(call.with_context(&cx)).await
            })
        }
    }

    let tool = FunctionTool::with_context("probe", "", |cx, _: Value| {
        Box::pin(async move { Ok(cx.extension::<Depth>().map_or(0, |depth| depth.0)) })
    });
    let layers = [Arc::new(Deeper(AtomicUsize::new(9))), Arc::new(Deeper(AtomicUsize::new(9)))];
    let cx = context();
    let layered = tool.layered_with([layers[0].clone(), layers[1].clone()]);
    let result = layered.call(&cx, Arc::default()).await;
    assert_eq!(value(result).value, json!(2));
    assert_eq!(layers.each_ref().map(|layer| layer.0.load(Ordering::SeqCst)), [0, 1]);
    assert!(cx.extension::<Depth>().is_none());
}
