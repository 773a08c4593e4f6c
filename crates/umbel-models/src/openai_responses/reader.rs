//! Reads the answers of the Responses format.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};
use smol_str::SmolStr;
use umbel_core::{Error, ErrorKind, ModelErrorKind, Object, Part, Result, Usage};

use super::OWN;
use crate::answer::{Answer, SlotId};
use crate::failure;
use crate::frames::unreadable;
use crate::wire::Reader;

/// Whose answers they are, for messages.
const PROVIDER: &str = "openai";

/// Reads one answer: items that come one after the other, each in pieces and then as a whole.
#[derive(Debug, Default)]
pub(super) struct ResponsesReader {
    texts: Vec<TextAt>,
    /// The items that came as a whole, by their number.
    done: Vec<u64>,
    refused: bool,
    /// By the number of their item.
    annotations: Vec<(u64, Value)>,
    logprobs: Vec<(u64, Value)>,
}

/// A text that comes in pieces: where it stands, and how much of it came.
#[derive(Debug)]
struct TextAt {
    item: u64,
    kind: Kind,
    part: u64,
    slot: SlotId,
    seen: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Said,
    Summary,
    Reasoning,
    Arguments,
}

impl Kind {
    fn is_thought(self) -> bool {
        matches!(self, Self::Summary | Self::Reasoning)
    }
}

#[derive(Deserialize)]
struct Frame<'a> {
    #[serde(default, rename = "type")]
    kind: Option<SmolStr>,
    #[serde(default)]
    output_index: u64,
    #[serde(default)]
    content_index: u64,
    #[serde(default)]
    summary_index: u64,
    #[serde(default, borrow)]
    delta: Option<&'a RawValue>,
    #[serde(default, borrow)]
    text: Option<&'a RawValue>,
    #[serde(default, borrow)]
    refusal: Option<&'a RawValue>,
    #[serde(default, borrow)]
    arguments: Option<&'a RawValue>,
    #[serde(default, borrow)]
    item: Option<&'a RawValue>,
    #[serde(default, borrow)]
    annotation: Option<&'a RawValue>,
    #[serde(default, borrow)]
    logprobs: Option<&'a RawValue>,
    #[serde(default, borrow)]
    response: Option<&'a RawValue>,
}

#[derive(Deserialize)]
struct Outcome<'a> {
    #[serde(default)]
    id: Option<SmolStr>,
    #[serde(default)]
    model: Option<SmolStr>,
    #[serde(default)]
    status: Option<SmolStr>,
    #[serde(default)]
    service_tier: Option<SmolStr>,
    #[serde(default, borrow)]
    error: Option<&'a RawValue>,
    #[serde(default)]
    incomplete_details: Option<Incomplete>,
    #[serde(default, borrow)]
    output: Option<Vec<&'a RawValue>>,
    #[serde(default)]
    usage: Option<Tokens>,
}

#[derive(Deserialize)]
struct Incomplete {
    #[serde(default)]
    reason: Option<SmolStr>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Tokens {
    input_tokens: Option<u64>,
    input_tokens_details: Option<InputDetails>,
    output_tokens: Option<u64>,
    output_tokens_details: Option<OutputDetails>,
    total_tokens: Option<u64>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct InputDetails {
    cached_tokens: Option<u64>,
    cache_write_tokens: Option<u64>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct OutputDetails {
    reasoning_tokens: Option<u64>,
}

impl Tokens {
    fn usage(self) -> Usage {
        let input = self.input_tokens_details.unwrap_or_default();
        let thoughts = self.output_tokens_details.unwrap_or_default().reasoning_tokens;
        let output = self.output_tokens.map(|all| all.saturating_sub(thoughts.unwrap_or_default()));
        let sum = || self.input_tokens?.checked_add(self.output_tokens?);
        Usage {
            prompt_token_count: self.input_tokens,
            candidates_token_count: output,
            total_token_count: self.total_tokens.or_else(sum),
            cached_content_token_count: input.cached_tokens,
            cache_write_token_count: input.cache_write_tokens.filter(|tokens| *tokens > 0),
            thoughts_token_count: thoughts,
            ..Usage::default()
        }
    }
}

/// A value that should be a text. One that is not, is none.
fn text(raw: Option<&RawValue>) -> String {
    raw.and_then(|raw| serde_json::from_str(raw.get()).ok()).unwrap_or_default()
}

fn read<'a, T: Deserialize<'a>>(json: &'a str) -> Result<T> {
    serde_json::from_str(json)
        .map_err(|error| unreadable("a frame of the answer cannot be read").with_source(error))
}

impl ResponsesReader {
    /// Where a text stands. One that was not there before begins.
    fn place(&mut self, item: u64, kind: Kind, part: u64, answer: &mut Answer) -> Result<&mut TextAt> {
        let known =
            self.texts.iter().position(|text| (text.item, text.kind, text.part) == (item, kind, part));
        let at = match known {
            Some(at) => at,
            None => {
                let before = self.texts.iter().find(|text| text.item == item && text.kind.is_thought());
                let slot = match before.filter(|_| kind.is_thought()) {
                    // A thought is told in paragraphs.
                    Some(TextAt { slot, .. }) => {
                        answer.push(*slot, "\n\n")?;
                        *slot
                    }
                    None => answer.begin_text(kind.is_thought()),
                };
                self.texts.push(TextAt { item, kind, part, slot, seen: 0 });
                self.texts.len() - 1
            }
        };
        self.texts.get_mut(at).ok_or_else(|| unreadable("the answer has no such part"))
    }

    /// More of a text.
    fn more(&mut self, item: u64, kind: Kind, part: u64, more: &str, answer: &mut Answer) -> Result<()> {
        let is_lost = || kind == Kind::Arguments && !self.texts.iter().any(|text| text.item == item);
        if more.is_empty() || self.done.contains(&item) || is_lost() {
            return Ok(());
        }
        let text = self.place(item, kind, part, answer)?;
        text.seen += more.len();
        answer.push(text.slot, more)
    }

    /// The whole of a text, of which some may have come before.
    fn all(&mut self, item: u64, kind: Kind, part: u64, all: &str, answer: &mut Answer) -> Result<()> {
        let known = self.texts.iter().find(|text| (text.item, text.kind, text.part) == (item, kind, part));
        let rest = all.get(known.map_or(0, |text| text.seen)..).unwrap_or_default();
        self.more(item, kind, part, rest, answer)
    }

    fn begin_call(&mut self, at: u64, item: &Object, answer: &mut Answer) {
        let known = self.texts.iter().any(|text| (text.item, text.kind) == (at, Kind::Arguments));
        if !known {
            let text = |key: &str| item.get(key).and_then(Value::as_str).unwrap_or_default();
            let slot = answer.begin_call(text("call_id"), text("name"));
            self.texts.push(TextAt { item: at, kind: Kind::Arguments, part: 0, slot, seen: 0 });
        }
    }

    /// An item begins.
    fn begin(&mut self, at: u64, item: &Object, answer: &mut Answer) {
        if item.get("type").is_some_and(|kind| kind == "function_call") {
            self.begin_call(at, item, answer);
        }
    }

    /// An item as a whole.
    fn item(&mut self, at: u64, mut item: Object, answer: &mut Answer) -> Result<()> {
        if self.done.contains(&at) {
            return Ok(());
        }
        match item.get("type").and_then(Value::as_str).unwrap_or_default() {
            "message" => self.message(at, item, answer)?,
            "reasoning" => {
                for (kind, key) in [(Kind::Summary, "summary"), (Kind::Reasoning, "content")] {
                    let parts = item.get(key).and_then(Value::as_array).into_iter().flatten();
                    for (part, value) in (0..).zip(parts) {
                        let words = value.get("text").and_then(Value::as_str).unwrap_or_default();
                        self.all(at, kind, part, words, answer)?;
                    }
                }
                let thought = self.texts.iter().find(|text| text.item == at && text.kind.is_thought());
                let slot = thought.map_or_else(|| answer.begin_text(true), |text| text.slot);
                answer.own(slot, OWN, json!({"item": item}));
            }
            "function_call" => {
                self.begin_call(at, &item, answer);
                let arguments = item.get("arguments").and_then(Value::as_str).unwrap_or_default();
                self.all(at, Kind::Arguments, 0, arguments, answer)?;
                let call = self.texts.iter().find(|text| (text.item, text.kind) == (at, Kind::Arguments));
                for key in ["type", "call_id", "name", "arguments"] {
                    item.shift_remove(key);
                }
                if let Some(TextAt { slot, .. }) = call {
                    answer.own(*slot, OWN, Value::Object(item));
                    answer.end(*slot);
                }
            }
            "image_generation_call" => image(item, answer),
            _ => {
                answer.opaque(OWN, json!({"item": item}));
            }
        }
        self.done.push(at);
        Ok(())
    }

    fn message(&mut self, at: u64, mut item: Object, answer: &mut Answer) -> Result<()> {
        let content = item.shift_remove("content");
        for key in ["type", "role"] {
            item.shift_remove(key);
        }
        self.annotations.retain(|(item, _)| *item != at);
        self.logprobs.retain(|(item, _)| *item != at);
        for (part, value) in (0..).zip(content.as_ref().and_then(Value::as_array).into_iter().flatten()) {
            let refusal = value.get("refusal").and_then(Value::as_str);
            let said = refusal.or_else(|| value.get("text")?.as_str()).unwrap_or_default();
            self.all(at, Kind::Said, part, said, answer)?;
            let mut own = item.clone();
            if refusal.is_some() {
                self.refused = true;
                own.insert("refusal".to_owned(), true.into());
            }
            let place =
                self.texts.iter().find(|text| (text.item, text.kind, text.part) == (at, Kind::Said, part));
            if let Some(TextAt { slot, .. }) = place {
                answer.own(*slot, OWN, Value::Object(own));
            }
            let list = |key: &str| value.get(key).and_then(Value::as_array).into_iter().flatten().cloned();
            self.annotations.extend(list("annotations").map(|one| (at, one)));
            self.logprobs.extend(list("logprobs").map(|one| (at, one)));
        }
        Ok(())
    }

    /// The end of an answer, and all that is told with it.
    fn outcome(&mut self, outcome: Outcome<'_>, answer: &mut Answer) -> Result<()> {
        if let Some(error) = outcome.error {
            return Err(failure::in_stream(PROVIDER, error.get()));
        }
        let status = outcome.status.as_deref().unwrap_or("completed");
        if !matches!(status, "completed" | "incomplete") {
            let message = format!("{PROVIDER}: the answer is {status}");
            return Err(Error::new(ErrorKind::Model(ModelErrorKind::Other), message));
        }
        // In a stream they came before.
        if self.done.is_empty() {
            for (at, item) in (0..).zip(outcome.output.into_iter().flatten()) {
                self.item(at, read(item.get())?, answer)?;
            }
        }
        if let Some(id) = outcome.id {
            answer.tell("responseId", id.as_str());
        }
        if let Some(tier) = outcome.service_tier {
            answer.tell("serviceTier", tier.as_str());
        }
        if let Some(tokens) = outcome.usage {
            answer.meta.usage_metadata = Some(tokens.usage());
        }
        answer.meta.model_version = outcome.model.filter(|model| !model.is_empty());
        let why = outcome.incomplete_details.and_then(|details| details.reason);
        match (status, why.as_deref()) {
            ("completed", _) if self.refused => answer.stop(status, "REFUSAL"),
            ("completed", _) => answer.stop(status, "STOP"),
            (_, Some("content_filter")) => answer.stop("content_filter", "SAFETY"),
            (_, Some(word @ ("max_output_tokens" | "max_tokens"))) => answer.stop(word, "MAX_TOKENS"),
            (_, word) => answer.stop(word.unwrap_or(status), "OTHER"),
        }
        self.finish(answer);
        Ok(())
    }

    fn finish(&mut self, answer: &mut Answer) {
        let values = |list: &mut Vec<(u64, Value)>| -> Vec<Value> {
            std::mem::take(list).into_iter().map(|(_, value)| value).collect()
        };
        if !self.logprobs.is_empty() {
            answer.tell("logprobsResult", values(&mut self.logprobs));
        }
        if !self.annotations.is_empty() {
            answer.meta.citation_metadata = Some(json!({"citations": values(&mut self.annotations)}));
        }
        answer.finish();
    }

    fn event(&mut self, kind: &str, frame: &Frame<'_>, data: &str, answer: &mut Answer) -> Result<()> {
        let (at, part, thought) = (frame.output_index, frame.content_index, frame.summary_index);
        match kind {
            "response.output_item.added" => self.begin(at, &read(raw(frame.item)?)?, answer),
            "response.output_item.done" => self.item(at, read(raw(frame.item)?)?, answer)?,
            "response.output_text.delta" => {
                let logprobs: Vec<Value> = frame.logprobs.map_or(Ok(Vec::new()), |raw| read(raw.get()))?;
                self.logprobs.extend(logprobs.into_iter().map(|one| (at, one)));
                self.more(at, Kind::Said, part, &text(frame.delta), answer)?;
            }
            "response.output_text.done" => self.all(at, Kind::Said, part, &text(frame.text), answer)?,
            "response.output_text.annotation.added" => {
                self.annotations.push((at, read(raw(frame.annotation)?)?));
            }
            "response.refusal.delta" => {
                self.refused = true;
                self.more(at, Kind::Said, part, &text(frame.delta), answer)?;
            }
            "response.refusal.done" => {
                self.refused = true;
                self.all(at, Kind::Said, part, &text(frame.refusal), answer)?;
            }
            "response.reasoning_summary_text.delta" => {
                self.more(at, Kind::Summary, thought, &text(frame.delta), answer)?;
            }
            "response.reasoning_summary_text.done" => {
                self.all(at, Kind::Summary, thought, &text(frame.text), answer)?;
            }
            "response.reasoning_text.delta" => {
                self.more(at, Kind::Reasoning, part, &text(frame.delta), answer)?;
            }
            "response.reasoning_text.done" => {
                self.all(at, Kind::Reasoning, part, &text(frame.text), answer)?;
            }
            "response.function_call_arguments.delta" => {
                self.more(at, Kind::Arguments, 0, &text(frame.delta), answer)?;
            }
            "response.function_call_arguments.done" => {
                self.all(at, Kind::Arguments, 0, &text(frame.arguments), answer)?;
            }
            "response.completed" | "response.incomplete" | "response.failed" | "response.cancelled" => {
                return self.outcome(read(raw(frame.response)?)?, answer);
            }
            "error" => return Err(failure::in_stream(PROVIDER, data)),
            _ if !is_progress(kind) => answer.keep_unknown(data),
            _ => {}
        }
        Ok(())
    }
}

fn raw(value: Option<&RawValue>) -> Result<&str> {
    value.map(RawValue::get).ok_or_else(|| unreadable("a frame of the answer says too little"))
}

/// An image that was made: a part that people see, and an item that goes back.
fn image(mut item: Object, answer: &mut Answer) {
    let result = item.shift_remove("result");
    let image = result.as_ref().and_then(Value::as_str).and_then(|image| STANDARD.decode(image).ok());
    let format = item.get("output_format").and_then(Value::as_str).unwrap_or("png");
    let kind = format!("image/{format}");
    match image {
        Some(image) => answer.part(Part::data(kind, image).with_unknown(OWN, json!({"item": item}))),
        None => answer.opaque(OWN, json!({"item": item})),
    };
}

/// Events that say nothing but that something is under way, or what an item says as a whole.
fn is_progress(kind: &str) -> bool {
    const ABOUT: [&str; 12] = [
        "code_interpreter_call",
        "code_interpreter_call_code",
        "content_part",
        "created",
        "custom_tool_call_input",
        "file_search_call",
        "image_generation_call",
        "in_progress",
        "mcp_",
        "queued",
        "reasoning_summary_part",
        "web_search_call",
    ];
    let what = kind.strip_prefix("response.").unwrap_or_default();
    ABOUT.iter().any(|about| what.starts_with(about))
}

impl Reader for ResponsesReader {
    fn frame(&mut self, event: &str, data: &str, answer: &mut Answer) -> Result<()> {
        // There is no such mark in this format, but there are servers that send it.
        if data.trim() == "[DONE]" {
            return Ok(());
        }
        let frame: Frame<'_> = read(data)?;
        let kind = frame.kind.clone().unwrap_or_else(|| event.into());
        self.event(&kind, &frame, data, answer)
    }

    fn whole(&mut self, body: &str, answer: &mut Answer) -> Result<()> {
        let outcome: Outcome<'_> = read(body)?;
        if outcome.output.is_none() && outcome.error.is_none() {
            return Err(unreadable("the answer has nothing in it"));
        }
        self.outcome(outcome, answer)
    }
}
