//! K: middlewares of the old form work as they did, beside handlers and in their place. G7 and D15 belong here.

#![allow(deprecated)]

use std::fmt;
use std::sync::Arc;

use serde_json::json;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Metadata, Subscriber};
use umbel::legacy::AgentMiddleware;
use umbel::{
    AgentPlan, Content, Error, ErrorKind, Handler, LlmAgent, ModelRequest, ModelTurn, NextTool, Result,
    Runner, ScriptedModel, Step, ToolCall, ToolResult, handler,
};

use crate::handler_support::{before_model, configure, declared, noting};
use crate::support::{Notes, Seen, begin, echo, fine, object, read, run_once, said, streaming};

/// All five fields in use.
fn whole(notes: &Notes) -> AgentMiddleware {
    AgentMiddleware {
        additional_instruction: "Use the clock.".to_owned(),
        additional_tools: vec![Arc::new(noting("clock", notes))],
        before_chat_model: Some(Arc::new(|turn: &mut ModelTurn<'_>| {
            turn.history.push(Content::user("before"));
            Box::pin(async { Ok(()) })
        })),
        after_chat_model: Some(Arc::new(|turn: &mut ModelTurn<'_>| {
            if turn.calls().count() == 0 {
                turn.response = Some(umbel::Response::text("after"));
            }
            Box::pin(async { Ok(()) })
        })),
        wrap_tool_call: Some(Arc::new(|call: ToolCall<'_>, next: NextTool<'_>| {
            let args = object(json!({"wrapped": true}));
            Box::pin(next.call(call.with_args(args)))
        })),
        ..AgentMiddleware::default()
    }
}

/// The same as a handler.
struct Whole(Notes);

#[handler]
impl Handler for Whole {
    fn name(&self) -> &str {
        "whole"
    }

    fn configure(&self, plan: &mut AgentPlan) -> Result<()> {
        plan.instruction.push("whole", "Use the clock.");
        plan.add_tool(Arc::new(noting("clock", &self.0)));
        Ok(())
    }

    fn before_model(&self, turn: &mut ModelTurn<'_>) -> Result<Step> {
        turn.history.push(Content::user("before"));
        Ok(Step::Continue)
    }

    fn after_model(&self, turn: &mut ModelTurn<'_>) -> Result<Step> {
        if turn.calls().count() == 0 {
            turn.response = Some(umbel::Response::text("after"));
        }
        Ok(Step::Continue)
    }

    async fn wrap_tool(&self, call: ToolCall<'_>, next: NextTool<'_>) -> ToolResult {
        next.call(call.with_args(object(json!({"wrapped": true})))).await
    }
}

fn script() -> ScriptedModel {
    ScriptedModel::new("m").recorded().calls([("echo", json!({})), ("clock", json!({}))]).text("done")
}

fn base(model: &ScriptedModel) -> LlmAgent {
    LlmAgent::new("a").model(model.clone()).instruction("Answer.").tool(echo())
}

async fn run(agent: LlmAgent, stream: bool) -> Seen {
    let (runner, key) = begin(agent).await;
    let config = if stream { streaming() } else { umbel::RunConfig::default() };
    read(runner.run_with(&key, "hi", config)).await
}

#[tokio::test]
async fn g7_an_agent_with_a_middleware_of_the_old_form_does_what_it_did() {
    for stream in [false, true] {
        let (notes, model) = (Notes::default(), script());
        let seen = run(base(&model).middleware(whole(&notes)), stream).await;
        assert_eq!(
            seen.assert_finished().responses(),
            [json!({"wrapped": true}), json!({"result": "clock"})]
        );
        assert_eq!(seen.texts(), [("a".into(), "after".into())]);
        let first = &model.requests()[0];
        let own = first.instruction.parts()[0].clone();
        assert_eq!((own.source.as_str(), &*own.text), ("instruction", "Answer.\nUse the clock."));
        assert_eq!(declared(first), ["echo", "clock"]);
        assert_eq!(said(first), ["hi", "before"]);
    }
}

#[tokio::test]
async fn k1_a_middleware_with_nothing_in_it_changes_nothing() {
    let (plain, model) = (script(), script());
    let expected = run(base(&plain), false).await;
    let seen = run(base(&model).middleware(AgentMiddleware::default()), false).await;
    assert_eq!((seen.responses(), seen.texts()), (expected.responses(), expected.texts()));
    for (one, other) in model.requests().iter().zip(plain.requests()) {
        assert_eq!(facts(one), facts(&other));
    }
    let explained = base(&model).middleware(AgentMiddleware::default()).explain().unwrap();
    assert!(explained.hooks.is_empty() && explained.notes.is_empty());
}

/// What a model was asked, as far as it can be compared.
fn facts(request: &ModelRequest) -> (String, Vec<String>, Vec<String>) {
    (request.instruction.text(), said(request), declared(request))
}

#[tokio::test]
async fn k1_its_tools_do_not_answer_directly_and_an_empty_instruction_adds_nothing() {
    let notes = Notes::default();
    let model = ScriptedModel::new("m").recorded().call("clock", json!({})).text("in words");
    let middleware = AgentMiddleware {
        additional_tools: vec![Arc::new(noting("clock", &notes))],
        ..AgentMiddleware::default()
    };
    let seen = run_once(base(&model).middleware(middleware)).await;
    assert_eq!(seen.assert_finished().texts(), [("a".into(), "in words".into())]);
    let request = &model.requests()[0];
    assert!(!request.tools.get("clock").unwrap().return_directly);
    assert_eq!(&*request.instruction.parts()[0].text, "Answer.");
}

#[tokio::test]
async fn d15_it_is_named_by_its_place_unless_it_has_a_name() {
    let failing = |name: &str| AgentMiddleware {
        name: name.into(),
        before_chat_model: Some(Arc::new(|_: &mut ModelTurn<'_>| {
            Box::pin(async { Err(Error::new(ErrorKind::Other, "no")) })
        })),
        ..AgentMiddleware::default()
    };
    let agent =
        LlmAgent::new("a").model(fine()).middleware(AgentMiddleware::default()).middleware(failing(""));
    let seen = run_once(agent.clone()).await;
    assert_eq!(seen.message(), "handler `legacy-middleware[1]` failed in before_model: no");
    assert_eq!(agent.explain().unwrap().hooks, [("before_model", vec!["legacy-middleware[1]".into()])]);
    let seen = run_once(LlmAgent::new("a").model(fine()).middleware(failing("mine"))).await;
    assert_eq!(seen.message(), "handler `mine` failed in before_model: no");
}

#[tokio::test]
async fn k2_both_forms_work_together() {
    let (notes, model) = (Notes::default(), script());
    let agent = base(&model)
        .handler(configure("new", |plan| {
            plan.instruction.push("new", "And be kind.");
            plan.remove_tool("clock");
            Ok(())
        }))
        .handler(before_model("sees", |turn| {
            // What the old form did comes first.
            assert_eq!(turn.history.last().unwrap().text(), "before");
            turn.history.push(Content::user("behind"));
            Ok(Step::Continue)
        }))
        .middleware(whole(&notes));
    let seen = run_once(agent).await;
    assert_eq!(seen.assert_finished().texts(), [("a".into(), "after".into())]);
    let first = &model.requests()[0];
    assert!(first.instruction.text().starts_with("Answer.\nUse the clock.\n\nAnd be kind."));
    assert_eq!(
        (declared(first), said(first)),
        (vec!["echo".into()], vec!["hi".into(), "before".into(), "behind".into()])
    );
    assert!(notes.all().is_empty(), "a tool that was taken away is not called");
}

/// Keeps the words of warnings.
#[derive(Clone)]
struct Warnings(Notes);

struct Message<'a>(&'a Notes);

impl Visit for Message<'_> {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.0.add(format!("{}: {value:?}", field.name()));
    }
}

impl Subscriber for Warnings {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() == tracing::Level::WARN
    }

    fn new_span(&self, _span: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _span: &Id, _values: &Record<'_>) {}

    fn record_follows_from(&self, _span: &Id, _follows: &Id) {}

    fn event(&self, event: &tracing::Event<'_>) {
        event.record(&mut Message(&self.0));
    }

    fn enter(&self, _span: &Id) {}

    fn exit(&self, _span: &Id) {}
}

#[test]
fn k3_mixing_both_forms_is_told_when_the_runner_is_built_and_in_explain() {
    // While there is one subscriber in all, whoever reaches a place in the code first decides by the subscriber of its own
    // thread whether that place is ever asked again. Other tests reach this one too, and have none.
    let _second = tracing::Dispatch::new(Warnings(Notes::default()));
    let built = |agent: LlmAgent| {
        let notes = Notes::default();
        let notices = || Runner::new("app", agent.clone()).unwrap().explain().unwrap().remove(0).notes;
        let notices = tracing::subscriber::with_default(Warnings(notes.clone()), notices);
        (notes.all(), notices)
    };
    let (old, new) = (AgentMiddleware::default, || before_model("new", |_| Ok(Step::Continue)));
    let base = || LlmAgent::new("mixed").model(fine());
    let (warned, notices) = built(base().middleware(old()).handler(new()));
    assert_eq!(warned.len(), 2, "{warned:?}");
    assert!(warned.iter().any(|one| one.contains("agent") && one.contains("mixed")));
    assert!(warned.iter().any(|one| one.contains("old form are mixed with handlers")));
    assert_eq!(notices, [umbel::text::LEGACY_MIXED]);
    for agent in [base().middleware(old()), base().handler(new()), base()] {
        assert_eq!(built(agent), (Vec::new(), Vec::new()));
    }
}

#[tokio::test]
async fn k4_a_middleware_and_the_handler_it_turns_into_give_the_same() {
    for stream in [false, true] {
        let (old_notes, new_notes) = (Notes::default(), Notes::default());
        let (old_model, new_model) = (script(), script());
        // The one difference is what stands between the instructions.
        let middleware = AgentMiddleware { separator: Some("\n\n".to_owned()), ..whole(&old_notes) };
        let old = run(base(&old_model).middleware(middleware), stream).await;
        let new = run(base(&new_model).handler(Whole(new_notes.clone())), stream).await;
        assert_eq!(new.assert_finished().texts(), [("a".into(), "after".into())]);
        assert_eq!(
            (old.responses(), old.texts(), old_notes.all()),
            (new.responses(), new.texts(), new_notes.all())
        );
        let (old, new) = (old_model.requests(), new_model.requests());
        assert_eq!(old.len(), new.len());
        for (old, new) in old.iter().zip(&new) {
            assert_eq!(facts(old), facts(new));
            assert_eq!(old.contents, new.contents);
        }
    }
}
