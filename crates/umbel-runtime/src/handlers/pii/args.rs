//! Calls as those who read along see them.
//!
//! Tools get their arguments as the model gave them. While these stream, people see them redacted.

use std::sync::Arc;

use umbel_core::{Event, FunctionCall, PartialArg, Result, Run};

use super::Pii;
use super::memory::{ArgStream, remember};

/// A preview with the arguments in it redacted that stream, or that are an answer.
pub(super) fn redacted(pii: &Pii, run: &Run, event: Arc<Event>) -> Result<Arc<Event>> {
    let Some(content) = event.content.as_ref().filter(|content| event.is_partial() && content.has_calls())
    else {
        return Ok(event);
    };
    let streams = |call: &FunctionCall| call.partial_args.is_some() || call.will_continue.is_some();
    let mut content = pii.hiding.output.answers(content)?.map_or_else(|| content.clone(), Arc::new);
    if content.calls().any(streams) {
        for part in &mut Arc::make_mut(&mut content).parts {
            if let Some(call) = part.as_call_mut().filter(|call| streams(call)) {
                // Taken out meanwhile: rules may be functions of others.
                let mut open = remember(run, pii.number, |memory| std::mem::take(&mut memory.args));
                let redacted = redact_call(pii, call, &mut open);
                remember(run, pii.number, |memory| memory.args.append(&mut open));
                redacted?;
            }
        }
    }
    let mut event = Arc::unwrap_or_clone(event);
    event.content = Some(content);
    Ok(Arc::new(event))
}

fn redact_call(pii: &Pii, call: &mut FunctionCall, open: &mut Vec<ArgStream>) -> Result<()> {
    let mut args = Vec::new();
    for mut arg in call.partial_args.take().unwrap_or_default() {
        if let Some(text) = &arg.string_value {
            let piece = redact_arg(pii, call, &arg, text, open)?;
            if piece.is_empty() {
                continue;
            }
            arg.string_value = Some(piece);
        }
        args.push(arg);
    }
    if call.will_continue != Some(true) {
        for ended in open.extract_if(.., |stream| stream.call == call.id) {
            let rest = ended.redactor.finish()?;
            if !rest.is_empty() {
                let string_value = Some(rest);
                args.push(PartialArg { json_path: ended.path, string_value, ..PartialArg::default() });
            }
        }
    }
    call.partial_args = Some(args);
    Ok(())
}

/// The next piece of a string argument. It ends where it says so, and at the latest with its call.
fn redact_arg(
    pii: &Pii,
    call: &FunctionCall,
    arg: &PartialArg,
    text: &str,
    open: &mut Vec<ArgStream>,
) -> Result<String> {
    let place = open.iter().position(|stream| stream.call == call.id && stream.path == arg.json_path);
    let mut stream = match place {
        Some(place) => open.swap_remove(place),
        None => {
            let redactor = pii.hiding.output.stream(pii.lookback);
            ArgStream { call: call.id.clone(), path: arg.json_path.clone(), redactor }
        }
    };
    let piece = stream.redactor.push(text)?;
    if arg.will_continue == Some(false) {
        return Ok(piece + &stream.redactor.finish()?);
    }
    open.push(stream);
    Ok(piece)
}
