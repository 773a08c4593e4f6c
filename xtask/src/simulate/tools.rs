//! Tools of a simulated world. Their effects are noted in the ledger.

use std::sync::Arc;

use futures::stream;
use serde_json::{Value, json};
use umbel::{
    Confirm, FunctionTool, Object, Question, ToolContext, ToolError, ToolItem, ToolOutput, ToolSpec,
};

use super::fault_store::Lifeline;
use super::ledger::Ledger;
use super::world::{ToolAct, ToolShape, millis};

/// The words of panics that belong to the world.
pub(super) const PANIC: &str = "simulated panic";

/// The key of a tool's result that says its effect happened.
pub(super) const DONE: &str = "done";

/// What tools need of the simulation.
#[derive(Clone, Debug)]
pub(super) struct ToolWorld {
    pub(super) ledger: Ledger,
    pub(super) life: Arc<Lifeline>,
}

/// What names the call in the ledger.
pub(super) fn call_key(cx: &ToolContext) -> String {
    let session = cx.run().session_key();
    format!("{}:{}:{}", session.user(), session.id(), cx.idempotency_key().unwrap_or_default())
}

/// Makes the tool.
pub(super) fn build(shape: &ToolShape, world: &ToolWorld) -> FunctionTool {
    let schema = json!({"type": "object", "properties": {}});
    let mut spec = ToolSpec::new(format!("t{}", shape.id), "Does something.", schema);
    spec.idempotent = shape.idempotent;
    spec.timeout = shape.timeout_ms.map(millis);
    if shape.act == ToolAct::Confirmed {
        spec.confirm = Confirm::Always;
    }
    let (shape, world) = (shape.clone(), world.clone());
    FunctionTool::raw(spec, move |cx, _args: Arc<Object>| {
        let (shape, world) = (shape.clone(), world.clone());
        Box::pin(async move { call(&shape, &world, cx).await })
    })
}

async fn call(shape: &ToolShape, world: &ToolWorld, cx: &ToolContext) -> Result<ToolOutput, ToolError> {
    world.ledger.count("tool.call");
    if shape.before_ms > 0 {
        tokio::time::sleep(millis(shape.before_ms)).await;
    }
    let output = act(shape, world, cx).await?;
    if shape.after_ms > 0 {
        tokio::time::sleep(millis(shape.after_ms)).await;
    }
    Ok(output)
}

/// What the tool does between its waits.
async fn act(shape: &ToolShape, world: &ToolWorld, cx: &ToolContext) -> Result<ToolOutput, ToolError> {
    let key = call_key(cx);
    let affect = |key: &str| {
        if !world.life.is_dead() {
            world.ledger.count("tool.effect");
            world.ledger.affect(key, cx.tool_name(), shape.idempotent);
        }
    };
    let once = |name: &'static str| {
        let key = format!("{key}#{name}");
        cx.once(name, || async move {
            affect(&key);
            Ok(1u8)
        })
    };
    match shape.act {
        ToolAct::Affects | ToolAct::Confirmed => affect(&key),
        ToolAct::Panics => return crash(),
        ToolAct::FailsPlainly => return Err(ToolError::new("simulated failure of a tool")),
        ToolAct::AsksFirst => {
            if !cx.interrupt("May it?")?.confirmed {
                return Ok(json!({"refused": true}).into());
            }
            affect(&key);
        }
        ToolAct::AsksInput => {
            let answer = cx.interrupt(Question::input("How many?"))?;
            if !answer.confirmed {
                return Ok(json!({"refused": true}).into());
            }
            affect(&key);
        }
        ToolAct::AffectsOnce => {
            once("effect").await?;
        }
        ToolAct::AffectsOnceThenAsks => {
            once("effect").await?;
            if !cx.interrupt("And now?")?.confirmed {
                return Ok(json!({"refused": true}).into());
            }
            once("second").await?;
        }
        ToolAct::Streams => {
            affect(&key);
            let items =
                [Ok(ToolItem::Progress(json!("half"))), Ok(ToolItem::Done(json!({DONE: key}).into()))];
            return Ok(ToolOutput::Stream(Box::pin(stream::iter(items))));
        }
        ToolAct::WritesState => {
            cx.set_state("tool", Value::from(key.as_str()));
            cx.set_state("user:tool", Value::from(key.as_str()));
        }
        ToolAct::WritesBadKey => cx.set_state("bad\0key", 1),
        ToolAct::Escalates => cx.escalate(),
        ToolAct::SkipsSummary => {
            affect(&key);
            cx.skip_summarization();
        }
    }
    let has_effect = !matches!(
        shape.act,
        ToolAct::WritesState
            | ToolAct::WritesBadKey
            | ToolAct::Escalates
            | ToolAct::AffectsOnce
            | ToolAct::AffectsOnceThenAsks
    );
    Ok(if has_effect { json!({DONE: key}) } else { json!({"ok": true}) }.into())
}

/// A panic that the runtime must catch.
#[allow(clippy::panic)]
fn crash() -> Result<ToolOutput, ToolError> {
    panic!("{PANIC} of a tool")
}
