//! Code in what a model says, and what became of it.
//!
//! Code that is to be run is a call of the tool [`RunCode`](crate::tools::RunCode) to the flow: handlers stand around it,
//! people may be asked about it, it is noted in the log before it begins, and it is not run twice. In the log it has the
//! form of google-adk: a part with the code, and a part with its result.

use std::sync::Arc;

use serde_json::Value;
use umbel_core::{
    CallId, CodeOutcome, CodeResult, Content, Event, ExecutableCode, Fence, FunctionResponse, Object, Part,
    Parts, Payload, Role, Run, ToolSet,
};

use super::data_files::looks_at_file;
use super::function_calls::{Batch, Executed};
use crate::agents::LlmAgent;
use crate::text;

/// The tools that calls of a batch are made with, if it is code.
pub(super) fn tools_of<'a>(agent: &'a LlmAgent, batch: &Batch) -> Option<&'a Arc<ToolSet>> {
    agent.code.as_ref().filter(|_| batch.is_code).map(|code| &code.tools)
}

/// A part with code that the flow is to run.
pub(super) fn code_part(id: CallId, language: &str, code: String) -> Part {
    let language = Some(language.to_uppercase());
    Part::new(Payload::Code(Box::new(ExecutableCode {
        id: Some(id),
        code: Some(code),
        language,
        ..Default::default()
    })))
}

/// Code that was found in what a model said.
pub(super) struct Found {
    /// What stands before it.
    pub(super) before: Parts,
    pub(super) code: String,
    /// Its id, if the flow gave it one before.
    pub(super) id: Option<CallId>,
}

/// The first code in what a model said: a part with code that has no result, or words between fences. What comes behind it
/// was said without knowing its result, and calls beside it go with that. Thoughts are not searched, except for what a
/// planner marked as such.
pub(super) fn find(parts: &[Part], fences: &[Fence], planned: bool) -> Option<Found> {
    let is_signed = |part: &Part| part.signature().is_some_and(|signature| !signature.is_empty());
    let is_thought = |part: &&Part| part.is_thought() && (!planned || is_signed(part));
    let (thoughts, said): (Vec<&Part>, Vec<&Part>) = parts.iter().partition(is_thought);
    let mut found = in_parts(&said).or_else(|| in_words(&said, fences))?;
    found.before.insert_many(0, thoughts.into_iter().cloned());
    Some(found)
}

fn in_parts(said: &[&Part]) -> Option<Found> {
    let has_result =
        |at: usize| said.get(at + 1).is_some_and(|next| matches!(next.payload, Payload::CodeResult(_)));
    let (at, code) = said.iter().enumerate().find_map(|(at, part)| match &part.payload {
        Payload::Code(code) if !has_result(at) => Some((at, code)),
        _ => None,
    })?;
    let text = code.code.clone().filter(|code| !code.is_empty())?;
    let before = said.iter().take(at).filter(|part| part.as_call().is_none());
    // No model may pass its code off as that which looks at files.
    let id = code.id.clone().filter(|id| id.is_client() && !looks_at_file(id));
    Some(Found { before: before.copied().cloned().collect(), code: text, id })
}

fn in_words(said: &[&Part], fences: &[Fence]) -> Option<Found> {
    let mut parts = said.iter().filter(|part| part.as_text().is_some_and(|text| !text.is_empty())).peekable();
    let first = (**parts.peek()?).clone();
    let words: Vec<&str> = parts.filter_map(|part| part.as_text()).collect();
    let words = words.join("\n");
    let block = |fence: &Fence| {
        let (before, rest) = words.split_once(&fence.open)?;
        let (code, _) = rest.split_once(&fence.close)?;
        Some((before, code))
    };
    let (before, code) = fences.iter().filter_map(block).min_by_key(|(before, _)| before.len())?;
    if code.is_empty() {
        return None;
    }
    let lead = (!before.is_empty()).then(|| {
        // What else is known of the words stays with them.
        let mut lead = first;
        lead.payload = Payload::Text(before.to_owned());
        lead
    });
    Some(Found { before: lead.into_iter().collect(), code: code.to_owned(), id: None })
}

/// How often code failed in a row since the user spoke last.
pub(super) fn failures(run: &Run) -> u32 {
    let events = run.events();
    let speaks = |event: &Event| {
        event.is_user()
            && event
                .content
                .iter()
                .any(|content| content.parts.iter().any(|part| part.as_response().is_none()))
    };
    let since = events.iter().rev().take_while(|event| !speaks(event));
    let results = since.filter(|event| event.source == *run.source()).filter_map(|event| result(event));
    let of_model =
        results.filter(|result| result.id.as_ref().is_some_and(|id| id.is_client() && !looks_at_file(id)));
    let failed = of_model.take_while(|result| result.outcome.as_deref() != Some(CodeOutcome::Ok.in_log()));
    failed.count().try_into().unwrap_or(u32::MAX)
}

/// The result of code that an event tells.
fn result(event: &Event) -> Option<&CodeResult> {
    match event.content.as_ref()?.parts.last().map(|part| &part.payload) {
        Some(Payload::CodeResult(result)) => Some(result),
        _ => None,
    }
}

/// Turns the answer to the call that ran code into the result of the code. A call that waits for people has none yet.
pub(super) fn as_result(agent: &LlmAgent, run: &Run, made: &mut Executed) {
    let Some(event) = &mut made.event else { return };
    let responses = event.responses().filter(|response| !response.is_waiting());
    let max_failures = agent.code.as_ref().map_or(0, |code| code.execution.max_failures);
    let parts: Parts = responses
        .map(|response| {
            let mut result = result_of(response);
            let failed = result.outcome.as_deref() != Some(CodeOutcome::Ok.in_log());
            let counts = response.id.as_ref().is_some_and(|id| !looks_at_file(id));
            let output = result.output.get_or_insert_default();
            // A replay brings the words along.
            let is_told = output.ends_with(text::NO_MORE_CODE);
            if failed && counts && !is_told && failures(run).saturating_add(1) >= max_failures {
                output.push_str("\n\n");
                output.push_str(text::NO_MORE_CODE);
            }
            Part::new(Payload::CodeResult(Box::new(result)))
        })
        .collect();
    event.content = (!parts.is_empty()).then(|| Arc::new(Content { role: Some(Role::Model), parts }));
}

const FAILED: CodeOutcome = CodeOutcome::Failed { exit_code: None };

/// What is said before an answer, such as that a person changed the code, and the answer itself.
fn without_notice(mut given: Object) -> (Option<String>, Object) {
    match (given.get("notice").cloned(), given.get_mut("result").map(Value::take)) {
        (Some(Value::String(notice)), Some(Value::Object(result))) if given.len() == 2 => {
            (Some(notice), result)
        }
        (_, Some(result)) => {
            given.insert("result".to_owned(), result);
            (None, given)
        }
        _ => (None, given),
    }
}

/// What the tool, or a layer or a person in its place, answered.
fn result_of(response: &FunctionResponse) -> CodeResult {
    let (notice, given) = without_notice(response.response.clone().unwrap_or_default());
    let named = given.get("outcome").and_then(Value::as_str);
    let outcome = match named {
        Some(name) => CodeOutcome::from_name(name).unwrap_or(FAILED),
        None if given.contains_key("error") => FAILED,
        None => CodeOutcome::Ok,
    };
    let told = ["output", "error", "result"].iter().find_map(|key| given.get(*key));
    let output = match told {
        Some(value) => umbel_core::json::render(value),
        None => Value::Object(given).to_string(),
    };
    CodeResult {
        id: response.id.clone(),
        outcome: Some(outcome.in_log().to_owned()),
        output: Some(match notice {
            Some(notice) => format!("{notice}\n{output}"),
            None => output,
        }),
        ..CodeResult::default()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn told(response: &Value) -> (String, String) {
        let response = FunctionResponse::new(None, "run_code", response.as_object().cloned().unwrap());
        let result = result_of(&response);
        (result.outcome.unwrap(), result.output.unwrap())
    }

    #[test]
    fn code_that_a_person_changed_is_told_by_how_it_ended() {
        let failed = json!({"outcome": "failed", "output": "NameError"});
        let (outcome, output) = told(&json!({"notice": "A person changed it.", "result": failed}));
        assert_eq!(
            (outcome.as_str(), output.as_str()),
            ("OUTCOME_FAILED", "A person changed it.\nNameError")
        );
        let (outcome, output) = told(&json!({"result": {"a": 1}}));
        assert_eq!((outcome.as_str(), output.as_str()), ("OUTCOME_OK", "{\"a\":1}"));
    }
}
