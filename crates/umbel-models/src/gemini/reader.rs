//! Reads what Gemini answers.

use std::borrow::Cow;

use serde::Deserialize;
use serde_json::Value;
use serde_json::value::RawValue;
use smol_str::SmolStr;
use umbel_core::{CallId, Error, FunctionCall, Ids, Object, Part, Payload, RandomIds, Result, Usage};

use crate::answer::{Answer, SlotId};
use crate::failure;
use crate::frames::unreadable;
use crate::wire::Reader;

use super::{OWN, PART_KEYS};

/// Keys of a part that messages know here.
const KNOWN: [&str; 9] = [
    "text",
    "functionCall",
    "functionResponse",
    "inlineData",
    "fileData",
    "executableCode",
    "codeExecutionResult",
    "thought",
    "thoughtSignature",
];

#[derive(Debug)]
pub(super) struct GeminiReader {
    provider: &'static str,
    /// The call whose arguments are coming in.
    open: Option<SlotId>,
    /// Nothing more is to come.
    stopped: bool,
    logprobs: Option<Value>,
}

/// A frame, or the whole.
#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct Generated<'a> {
    #[serde(borrow)]
    candidates: Option<Vec<Candidate<'a>>>,
    prompt_feedback: Option<Feedback>,
    usage_metadata: Option<Usage>,
    model_version: Option<SmolStr>,
    response_id: Option<SmolStr>,
    #[serde(borrow)]
    error: Option<&'a RawValue>,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct Candidate<'a> {
    index: u64,
    #[serde(borrow)]
    content: Option<Said<'a>>,
    finish_reason: Option<SmolStr>,
    finish_message: Option<String>,
    grounding_metadata: Option<Value>,
    citation_metadata: Option<Value>,
    url_context_metadata: Option<Value>,
    safety_ratings: Option<Value>,
    avg_logprobs: Option<Value>,
    logprobs_result: Option<Value>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Said<'a> {
    #[serde(borrow)]
    parts: Option<Vec<&'a RawValue>>,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct Feedback {
    block_reason: Option<SmolStr>,
    block_reason_message: Option<String>,
}

/// A part that is words and nothing else, as nearly all are.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Words<'a> {
    #[serde(borrow)]
    text: Cow<'a, str>,
    #[serde(default)]
    thought: Option<bool>,
    #[serde(default, borrow)]
    thought_signature: Option<Cow<'a, str>>,
}

impl GeminiReader {
    pub(super) fn new(provider: &'static str) -> Self {
        Self { provider, open: None, stopped: false, logprobs: None }
    }

    fn take(&mut self, data: &str, answer: &mut Answer) -> Result<()> {
        let read: Generated<'_> = serde_json::from_str(data)
            .map_err(|error| unreadable("a frame of the answer cannot be read").with_source(error))?;
        if let Some(error) = read.error {
            return Err(failure::in_stream(self.provider, error.get()));
        }
        let is_known = read.candidates.is_some()
            || read.prompt_feedback.is_some()
            || read.usage_metadata.is_some()
            || read.model_version.is_some();
        if !is_known {
            answer.keep_unknown(data);
        }
        if let Some(usage) = read.usage_metadata {
            if let Some(tier) = usage.unknown.get("serviceTier") {
                answer.tell("serviceTier", tier.clone());
            }
            answer.meta.usage_metadata = Some(usage);
        }
        if read.model_version.is_some() {
            answer.meta.model_version = read.model_version;
        }
        if let Some(id) = read.response_id {
            answer.tell("responseId", id.as_str());
        }
        if let Some(feedback) = read.prompt_feedback.filter(|feedback| feedback.block_reason.is_some()) {
            answer.meta.error_code = feedback.block_reason;
            answer.meta.error_message = feedback.block_reason_message;
            self.stopped = true;
        }
        for candidate in read.candidates.into_iter().flatten().filter(|candidate| candidate.index == 0) {
            self.candidate(candidate, answer)?;
        }
        Ok(())
    }

    fn candidate(&mut self, candidate: Candidate<'_>, answer: &mut Answer) -> Result<()> {
        for part in candidate.content.and_then(|said| said.parts).into_iter().flatten() {
            match serde_json::from_str::<Words<'_>>(part.get()) {
                Ok(words) => say(&words, answer)?,
                Err(_) => self.part(part.get(), answer)?,
            }
        }
        let meta = &mut answer.meta;
        if candidate.grounding_metadata.is_some() {
            meta.grounding_metadata = candidate.grounding_metadata;
        }
        join(&mut meta.citation_metadata, candidate.citation_metadata);
        join(&mut self.logprobs, candidate.logprobs_result);
        let told = [
            ("avgLogprobs", candidate.avg_logprobs),
            ("safetyRatings", candidate.safety_ratings),
            ("urlContextMetadata", candidate.url_context_metadata),
        ];
        for (key, value) in told {
            if let Some(value) = value {
                answer.tell(key, value);
            }
        }
        if let Some(reason) = candidate.finish_reason {
            answer.stop(&reason, &reason);
            answer.meta.finish_message = candidate.finish_message;
            self.stopped = true;
        }
        Ok(())
    }

    /// A part that is not only words.
    fn part(&mut self, part: &str, answer: &mut Answer) -> Result<()> {
        let bad = |error| unreadable("a part of the answer cannot be read").with_source(error);
        let mut known: Object = serde_json::from_str(part).map_err(bad)?;
        let own: Object = std::mem::take(&mut known)
            .into_iter()
            .filter_map(|(key, value)| {
                if KNOWN.contains(&key.as_str()) || PART_KEYS.contains(&key.as_str()) {
                    known.insert(key, value);
                    return None;
                }
                Some((key, value))
            })
            .collect();
        let mut part: Part = serde_json::from_value(Value::Object(known)).map_err(bad)?;
        if !own.is_empty() {
            part = part.with_unknown(OWN, own);
        }
        if part == Part::new(Payload::Empty) {
            return Ok(());
        }
        let signature = part.signature().map(str::to_owned);
        match &mut part.payload {
            Payload::Call(call) if streams(call) => {
                self.stream_call(call, signature.as_deref().unwrap_or_default(), answer);
            }
            Payload::Call(call) => {
                call.id = Some(id_of(call));
                answer.part(part);
            }
            Payload::Empty => {
                answer.hidden(part);
            }
            _ => {
                answer.part(part);
            }
        }
        Ok(())
    }

    fn stream_call(&mut self, call: &mut FunctionCall, signature: &str, answer: &mut Answer) {
        if !call.name.is_empty() {
            if let Some(before) = self.open.take() {
                answer.end(before);
            }
            self.open = Some(answer.begin_call(id_of(call).as_str(), &call.name));
        }
        let Some(slot) = self.open else { return };
        answer.sign(slot, signature);
        answer.push_args(slot, call.partial_args.take().unwrap_or_default());
        if call.will_continue != Some(true) {
            answer.end(slot);
            self.open = None;
        }
    }

    fn finish(&mut self, answer: &mut Answer) {
        if let Some(logprobs) = self.logprobs.take() {
            answer.tell("logprobsResult", logprobs);
        }
        answer.finish();
    }
}

/// Whether a call comes in pieces. The last piece says nothing at all.
fn streams(call: &FunctionCall) -> bool {
    call.partial_args.is_some() || call.will_continue.is_some() || call.name.is_empty()
}

/// The id of a call. One that Gemini gave none gets one that it will not see.
fn id_of(call: &FunctionCall) -> CallId {
    call.id.clone().filter(|id| !id.is_empty()).unwrap_or_else(|| RandomIds.call())
}

/// Words run together, but not with those that are signed: a signature goes back with the part it came with.
fn say(words: &Words<'_>, answer: &mut Answer) -> Result<()> {
    let thought = words.thought == Some(true);
    match words.thought_signature.as_deref().filter(|signature| !signature.is_empty()) {
        None => answer.say(thought, &words.text),
        Some(signature) => {
            let slot = answer.begin_text(thought);
            answer.sign(slot, signature);
            answer.push(slot, &words.text)
        }
    }
}

/// Lists that come in pieces run together. Of all else the last counts.
fn join(so_far: &mut Option<Value>, more: Option<Value>) {
    let Some(more) = more else { return };
    let (Some(Value::Object(so_far)), Value::Object(more)) = (so_far.as_mut(), &more) else {
        *so_far = Some(more);
        return;
    };
    for (key, value) in more {
        match (so_far.get_mut(key), value) {
            (Some(Value::Array(so_far)), Value::Array(more)) => so_far.extend(more.iter().cloned()),
            _ => {
                so_far.insert(key.clone(), value.clone());
            }
        }
    }
}

impl Reader for GeminiReader {
    fn frame(&mut self, _event: &str, data: &str, answer: &mut Answer) -> Result<()> {
        self.take(data, answer)
    }

    fn whole(&mut self, body: &str, answer: &mut Answer) -> Result<()> {
        let bad = |error| -> Error { unreadable("the answer cannot be read").with_source(error) };
        if body.trim_start().starts_with('[') {
            // A stream without frames comes as a list of them.
            let frames: Vec<&RawValue> = serde_json::from_str(body).map_err(bad)?;
            frames.iter().try_for_each(|frame| self.take(frame.get(), answer))?;
            if !self.stopped {
                return Err(unreadable("the answer has no end"));
            }
        } else {
            self.take(body, answer)?;
        }
        self.finish(answer);
        Ok(())
    }

    fn end(&mut self, answer: &mut Answer) -> Result<()> {
        // There is no other end mark than that the model says why it stopped.
        if self.stopped {
            self.finish(answer);
        }
        Ok(())
    }
}
