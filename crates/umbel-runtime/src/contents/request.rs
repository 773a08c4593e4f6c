//! Rules 10 and 12: what one request needs.

use std::sync::Arc;

use umbel_core::{CallId, CodeWords, Content, ContentsView, History, Part, Payload, Role};

/// Rule 10: leaves out of a message what this view's model is not to see.
pub(crate) fn for_request(content: Arc<Content>, view: &ContentsView) -> Arc<Content> {
    if content.parts.iter().all(|part| fitted(part, view).is_none()) {
        return content;
    }
    let parts = content.parts.iter().map(|part| fitted(part, view).unwrap_or_else(|| part.clone())).collect();
    // The model did not say itself what its code gave.
    let is_result = |part: &Part| matches!(part.payload, Payload::CodeResult(_));
    let tells_result = view.code_as_words.is_some() && content.parts.iter().all(is_result);
    let role = if tells_result { Some(Role::User) } else { content.role.clone() };
    Arc::new(Content { role, parts })
}

/// A part without what the model is not to see. `None` if there is no such thing in it.
fn fitted(part: &Part, view: &ContentsView) -> Option<Part> {
    // Ids that the flow minted mean nothing to most models.
    let drops_id = |id: &Option<CallId>| !view.keep_client_ids && id.as_ref().is_some_and(CallId::is_client);
    let drops_name = |name: &Option<String>| view.no_display_names && name.is_some();
    let drops_mark = view.plain_thoughts && part.thought_mark().is_some();
    let drops = match &part.payload {
        Payload::Call(call) => drops_id(&call.id),
        Payload::Response(response) => drops_id(&response.id),
        Payload::InlineData(data) => drops_name(&data.display_name),
        Payload::FileData(file) => drops_name(&file.display_name),
        Payload::Code(code) => drops_id(&code.id),
        Payload::CodeResult(result) => drops_id(&result.id),
        _ => false,
    };
    let words = view.code_as_words.as_ref().and_then(|words| code_in_words(part, words));
    if !drops && !drops_mark && words.is_none() {
        return None;
    }
    let mut part = part.clone();
    if drops_mark {
        part.clear_thought();
    }
    match &mut part.payload {
        Payload::Call(call) if drops => call.id = None,
        Payload::Response(response) if drops => response.id = None,
        Payload::InlineData(data) if drops => data.display_name = None,
        Payload::FileData(file) if drops => file.display_name = None,
        Payload::Code(code) if drops => code.id = None,
        Payload::CodeResult(result) if drops => result.id = None,
        _ => {}
    }
    if let Some(words) = words {
        part.payload = Payload::Text(words);
    }
    Some(part)
}

/// Code, or its result, as words.
fn code_in_words(part: &Part, words: &CodeWords) -> Option<String> {
    match &part.payload {
        Payload::Code(code) => Some(words.code.around(code.code.as_deref().unwrap_or_default())),
        Payload::CodeResult(result) => {
            Some(words.result.around(result.output.as_deref().unwrap_or_default()))
        }
        _ => None,
    }
}

/// Rule 12: puts what is for this request only among the messages.
///
/// `context` goes right before the last message that equals `input`, or to the front if there is none.
/// `instructions` then go to where the turn starts, see [`History::turn_start`].
pub fn place(
    history: &mut History,
    context: &[Arc<Content>],
    input: Option<&Arc<Content>>,
    instructions: &[Arc<Content>],
) {
    if !context.is_empty() {
        let said = (0..history.len()).rev().find(|place| input.is_some() && history.get(*place) == input);
        history.insert(said.unwrap_or(0), context.iter().cloned());
    }
    if !instructions.is_empty() {
        history.insert(history.turn_start(), instructions.iter().cloned());
    }
}
