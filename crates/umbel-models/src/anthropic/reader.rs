//! Reads answers: events of a stream, or a message as a whole.

use std::borrow::Cow;

use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};
use smol_str::SmolStr;
use umbel_core::{Error, Object, Result, Usage};

use super::OWN;
use crate::answer::{Answer, SlotId};
use crate::failure;
use crate::frames::unreadable;
use crate::wire::Reader;

#[derive(Debug, Default)]
pub(super) struct MessageReader {
    model: SmolStr,
    /// The blocks that are still coming, by their number.
    open: Vec<(u64, Block)>,
    tokens: Tokens,
    citations: Vec<Value>,
    stopped: bool,
}

/// A block that is still coming.
#[derive(Debug)]
enum Block {
    Text(SlotId, Vec<Value>),
    Thinking(SlotId),
    /// A call, and its arguments if they came with its beginning.
    Call(SlotId, Option<String>),
    /// A block of a kind that is not known here, and the text of its input.
    Other(Object, String),
}

#[derive(Deserialize)]
struct Event<'a> {
    #[serde(rename = "type", borrow)]
    kind: Cow<'a, str>,
    #[serde(default)]
    index: u64,
    #[serde(default)]
    message: Option<Message>,
    #[serde(default)]
    content_block: Option<Object>,
    #[serde(default, borrow)]
    delta: Option<Delta<'a>>,
    #[serde(default)]
    usage: Option<Tokens>,
    #[serde(default, borrow)]
    error: Option<&'a RawValue>,
}

#[derive(Deserialize)]
struct Message {
    #[serde(default)]
    model: SmolStr,
    #[serde(default)]
    content: Vec<Object>,
    #[serde(default)]
    usage: Option<Tokens>,
}

/// What comes to a block, or to the message.
#[derive(Deserialize)]
struct Delta<'a> {
    #[serde(rename = "type", default, borrow)]
    kind: Cow<'a, str>,
    #[serde(default, borrow)]
    text: Option<Cow<'a, str>>,
    #[serde(default, borrow)]
    partial_json: Option<Cow<'a, str>>,
    #[serde(default, borrow)]
    thinking: Option<Cow<'a, str>>,
    #[serde(default, borrow)]
    signature: Option<Cow<'a, str>>,
    #[serde(default)]
    citation: Option<Value>,
    #[serde(default, borrow)]
    stop_reason: Option<Cow<'a, str>>,
    #[serde(default)]
    stop_sequence: Option<String>,
    #[serde(default)]
    stop_details: Option<Value>,
    #[serde(default)]
    container: Option<Value>,
}

/// What was used so far.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Tokens {
    input_tokens: Option<u64>,
    output_tokens: Option<u64>,
    cache_read_input_tokens: Option<u64>,
    cache_creation_input_tokens: Option<u64>,
    cache_creation: Option<Value>,
    output_tokens_details: Option<OutputDetails>,
    server_tool_use: Option<Value>,
    service_tier: Option<SmolStr>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct OutputDetails {
    thinking_tokens: Option<u64>,
}

impl Tokens {
    /// Takes in what is newer: each number is the sum so far.
    fn update(&mut self, newer: Self) {
        fn take<T>(old: &mut Option<T>, newer: Option<T>) {
            if newer.is_some() {
                *old = newer;
            }
        }
        take(&mut self.input_tokens, newer.input_tokens);
        take(&mut self.output_tokens, newer.output_tokens);
        take(&mut self.cache_read_input_tokens, newer.cache_read_input_tokens);
        take(&mut self.cache_creation_input_tokens, newer.cache_creation_input_tokens);
        take(&mut self.cache_creation, newer.cache_creation);
        take(&mut self.output_tokens_details, newer.output_tokens_details);
        take(&mut self.server_tool_use, newer.server_tool_use);
        take(&mut self.service_tier, newer.service_tier);
    }

    /// Nothing if nothing was said.
    fn usage(&self) -> Option<Usage> {
        self.input_tokens.or(self.output_tokens)?;
        // What came from the cache or went there is not among the input here.
        let input = [self.input_tokens, self.cache_read_input_tokens, self.cache_creation_input_tokens];
        let prompt = input.into_iter().flatten().fold(0, u64::saturating_add);
        let thoughts = self.output_tokens_details.as_ref().and_then(|details| details.thinking_tokens);
        let output = self.output_tokens.unwrap_or_default();
        let mut unknown = Object::new();
        for (key, value) in
            [("cacheCreation", &self.cache_creation), ("serverToolUse", &self.server_tool_use)]
        {
            unknown.extend(value.clone().map(|value| (key.to_owned(), value)));
        }
        Some(Usage {
            prompt_token_count: Some(prompt),
            candidates_token_count: Some(output.saturating_sub(thoughts.unwrap_or_default())),
            total_token_count: Some(prompt.saturating_add(output)),
            cached_content_token_count: self.cache_read_input_tokens,
            cache_write_token_count: self.cache_creation_input_tokens,
            thoughts_token_count: thoughts,
            unknown,
        })
    }
}

impl MessageReader {
    /// Takes an event. Gives whether it is known.
    fn event(&mut self, event: Event<'_>, answer: &mut Answer) -> Result<bool> {
        match (&*event.kind, event.message, event.content_block, event.delta) {
            ("ping", ..) => {}
            ("error", ..) => return Err(refusal(event.error)),
            ("message_start", Some(message), ..) => self.begin(message, answer)?,
            ("content_block_start", _, Some(block), _) => self.begin_block(event.index, block, answer)?,
            ("content_block_delta", _, _, Some(delta)) => return self.add(event.index, delta, answer),
            ("content_block_stop", ..) => {
                if let Some(at) = self.open.iter().position(|(index, _)| *index == event.index) {
                    let (_, block) = self.open.remove(at);
                    self.end_block(block, answer)?;
                }
            }
            ("message_delta", _, _, Some(delta)) => {
                self.tokens.update(event.usage.unwrap_or_default());
                self.stop(delta, answer);
            }
            ("message_stop", ..) if self.stopped => self.finish(answer)?,
            ("message_stop", ..) => {}
            _ => return Ok(false),
        }
        Ok(true)
    }

    fn begin(&mut self, message: Message, answer: &mut Answer) -> Result<()> {
        if !message.model.is_empty() {
            answer.meta.model_version = Some(message.model.clone());
        }
        self.model = message.model;
        self.tokens.update(message.usage.unwrap_or_default());
        for (index, block) in message.content.into_iter().enumerate() {
            self.begin_block(index as u64, block, answer)?;
            if let Some((_, block)) = self.open.pop() {
                self.end_block(block, answer)?;
            }
        }
        Ok(())
    }

    fn begin_block(&mut self, index: u64, mut block: Object, answer: &mut Answer) -> Result<()> {
        let text = |key: &str| block.get(key).and_then(Value::as_str).unwrap_or_default();
        let begun = match text("type") {
            "text" => {
                let slot = answer.begin_text(false);
                answer.push(slot, text("text"))?;
                let citations = block.remove("citations");
                Block::Text(
                    slot,
                    citations.and_then(|all| serde_json::from_value(all).ok()).unwrap_or_default(),
                )
            }
            "thinking" => {
                let slot = answer.begin_text(true);
                answer.own(slot, OWN, json!({"model": self.model}));
                answer.push(slot, text("thinking"))?;
                answer.sign(slot, text("signature"));
                Block::Thinking(slot)
            }
            "tool_use" => {
                let slot = answer.begin_call(text("id"), text("name"));
                let by_model = |caller: &&Value| caller.get("type").is_some_and(|kind| kind == "direct");
                if let Some(caller) =
                    block.get("caller").filter(|caller| !caller.is_null() && !by_model(caller))
                {
                    answer.own(slot, OWN, json!({"caller": caller}));
                }
                let input = block.get("input").filter(|input| **input != json!({}));
                Block::Call(slot, input.map(Value::to_string))
            }
            _ => Block::Other(block, String::new()),
        };
        self.open.push((index, begun));
        Ok(())
    }

    /// More of a block. Gives whether it is known.
    fn add(&mut self, index: u64, delta: Delta<'_>, answer: &mut Answer) -> Result<bool> {
        let Some((_, block)) = self.open.iter_mut().rev().find(|(at, _)| *at == index) else {
            return Ok(false);
        };
        match (&*delta.kind, block) {
            ("text_delta", Block::Text(slot, _)) => answer.push(*slot, &delta.text.unwrap_or_default())?,
            ("citations_delta", Block::Text(_, citations)) => citations.extend(delta.citation),
            ("thinking_delta", Block::Thinking(slot)) => {
                answer.push(*slot, &delta.thinking.unwrap_or_default())?;
            }
            ("signature_delta", Block::Thinking(slot)) => {
                answer.sign(*slot, &delta.signature.unwrap_or_default());
            }
            ("input_json_delta", Block::Call(slot, whole)) => {
                let more = delta.partial_json.unwrap_or_default();
                if !more.is_empty() {
                    *whole = None;
                }
                answer.push(*slot, &more)?;
            }
            ("input_json_delta", Block::Other(_, input)) => {
                input.push_str(&delta.partial_json.unwrap_or_default());
            }
            _ => return Ok(false),
        }
        Ok(true)
    }

    fn end_block(&mut self, block: Block, answer: &mut Answer) -> Result<()> {
        match block {
            Block::Text(slot, citations) => {
                if !citations.is_empty() {
                    self.citations.extend(citations.iter().cloned());
                    answer.own(slot, OWN, json!({"citations": citations}));
                }
            }
            Block::Thinking(slot) => answer.end(slot),
            Block::Call(slot, whole) => {
                answer.push(slot, &whole.unwrap_or_default())?;
                answer.end(slot);
            }
            Block::Other(mut block, input) => {
                if !input.is_empty() {
                    let input = serde_json::from_str(&input).unwrap_or(Value::String(input));
                    block.insert("input".to_owned(), input);
                }
                let is_thought = block.get("type").is_some_and(|kind| kind == "redacted_thinking");
                let mut own = json!({"block": block});
                if let (Value::Object(own), true) = (&mut own, is_thought) {
                    own.insert("model".to_owned(), json!(self.model));
                }
                answer.opaque(OWN, own);
            }
        }
        Ok(())
    }

    fn stop(&mut self, delta: Delta<'_>, answer: &mut Answer) {
        for (key, value) in [
            ("stopSequence", delta.stop_sequence.map(Value::String)),
            ("stopDetails", delta.stop_details.clone()),
            ("container", delta.container),
        ] {
            if let Some(value) = value {
                answer.tell(key, value);
            }
        }
        let Some(word) = delta.stop_reason else { return };
        let reason = match &*word {
            "max_tokens" | "model_context_window_exceeded" => "MAX_TOKENS",
            "refusal" => "REFUSAL",
            // Not an end: the provider goes on if it is asked again.
            "pause_turn" => "PAUSE_TURN",
            _ => "STOP",
        };
        let explanation = delta.stop_details.as_ref().and_then(|details| details.get("explanation"));
        answer.meta.finish_message = explanation.and_then(Value::as_str).map(str::to_owned);
        answer.stop(&word, reason);
        self.stopped = true;
    }

    fn finish(&mut self, answer: &mut Answer) -> Result<()> {
        for (_, block) in std::mem::take(&mut self.open) {
            self.end_block(block, answer)?;
        }
        answer.meta.usage_metadata = self.tokens.usage();
        if let Some(tier) = &self.tokens.service_tier {
            answer.tell("serviceTier", tier.as_str());
        }
        if !self.citations.is_empty() {
            let citations = std::mem::take(&mut self.citations);
            answer.meta.citation_metadata = Some(json!({"citations": citations}));
        }
        answer.finish();
        Ok(())
    }
}

fn refusal(error: Option<&RawValue>) -> Error {
    failure::in_stream("anthropic", error.map_or("the model failed", RawValue::get))
}

/// Reads JSON that must be of a certain form.
fn parse<'a, T: Deserialize<'a>>(text: &'a str) -> Result<T> {
    serde_json::from_str(text).map_err(|error| unreadable("the answer cannot be read").with_source(error))
}

impl Reader for MessageReader {
    fn frame(&mut self, _event: &str, data: &str, answer: &mut Answer) -> Result<()> {
        const KNOWN: [&str; 8] = [
            "ping",
            "error",
            "message_start",
            "content_block_start",
            "content_block_delta",
            "content_block_stop",
            "message_delta",
            "message_stop",
        ];
        #[derive(Deserialize)]
        struct Kind {
            #[serde(rename = "type")]
            kind: SmolStr,
        }
        let known = match parse(data) {
            Ok(event) => self.event(event, answer)?,
            // Nothing is known of the form of what is not known.
            Err(error) => match parse::<Kind>(data) {
                Ok(Kind { kind }) if !KNOWN.contains(&kind.as_str()) => false,
                _ => return Err(error),
            },
        };
        if !known {
            answer.keep_unknown(data);
        }
        Ok(())
    }

    fn whole(&mut self, body: &str, answer: &mut Answer) -> Result<()> {
        #[derive(Deserialize)]
        struct Failed<'a> {
            #[serde(default, borrow)]
            error: Option<&'a RawValue>,
        }
        if let Some(error) = parse::<Failed<'_>>(body)?.error {
            return Err(refusal(Some(error)));
        }
        self.begin(parse(body)?, answer)?;
        self.stop(parse(body)?, answer);
        if !self.stopped {
            return Err(unreadable("the answer has no message in it"));
        }
        self.finish(answer)
    }
}
