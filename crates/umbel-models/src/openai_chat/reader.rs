//! Reads chat completions: those of OpenAI, and what others make of them.

mod reasoning;

use std::borrow::Cow;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};
use smol_str::SmolStr;
use umbel_core::{Error, FileData, Part, Payload, Result, Usage};

use self::reasoning::Details;
use super::OWN;
use crate::answer::{Answer, SlotId};
use crate::failure;
use crate::frames::unreadable;
use crate::wire::Reader;

/// Reads one answer.
#[derive(Debug)]
pub(super) struct ChatReader {
    provider: &'static str,
    /// The calls by their number.
    calls: Vec<(u64, SmolStr, SlotId)>,
    stopped: bool,
    /// How many tokens it took is told last: what ends then is complete, even if nothing says so.
    counted: bool,
    refused: bool,
    details: Details,
    audio: Audio,
    logprobs: Vec<Value>,
    annotations: Vec<Value>,
}

#[derive(Deserialize)]
struct Completion<'a> {
    #[serde(default, borrow)]
    choices: Option<Vec<Choice<'a>>>,
    #[serde(default)]
    usage: Option<Tokens>,
    #[serde(default)]
    x_groq: Option<Groq>,
    #[serde(default)]
    model: Option<SmolStr>,
    #[serde(default)]
    service_tier: Option<SmolStr>,
    #[serde(default)]
    citations: Option<Value>,
    #[serde(default)]
    prompt_filter_results: Option<Value>,
    #[serde(default, borrow)]
    error: Option<&'a RawValue>,
}

/// Where Groq tells the usage of a stream.
#[derive(Deserialize)]
struct Groq {
    #[serde(default)]
    usage: Option<Tokens>,
}

#[derive(Deserialize)]
struct Choice<'a> {
    #[serde(default)]
    index: Option<u64>,
    #[serde(default, borrow)]
    delta: Option<Delta<'a>>,
    /// In an answer that comes as a whole. Some send both.
    #[serde(default, borrow)]
    message: Option<Delta<'a>>,
    #[serde(default, borrow)]
    finish_reason: Option<Cow<'a, str>>,
    #[serde(default)]
    logprobs: Option<Logprobs>,
    #[serde(default)]
    usage: Option<Tokens>,
    #[serde(default)]
    content_filter_results: Option<Value>,
}

#[derive(Deserialize)]
struct Logprobs {
    #[serde(default)]
    content: Option<Vec<Value>>,
}

#[derive(Deserialize, Default)]
struct Delta<'a> {
    /// A text, or parts.
    #[serde(default, borrow)]
    content: Option<&'a RawValue>,
    #[serde(default, borrow)]
    reasoning_content: Option<Cow<'a, str>>,
    #[serde(default, borrow)]
    reasoning: Option<Cow<'a, str>>,
    #[serde(default)]
    reasoning_details: Option<Vec<Value>>,
    #[serde(default, borrow)]
    refusal: Option<Cow<'a, str>>,
    #[serde(default, borrow)]
    tool_calls: Option<Vec<ToolCallDelta<'a>>>,
    /// How a call was made before there could be several.
    #[serde(default, borrow)]
    function_call: Option<FunctionDelta<'a>>,
    #[serde(default)]
    annotations: Option<Vec<Value>>,
    #[serde(default)]
    images: Option<Vec<Value>>,
    #[serde(default, borrow)]
    audio: Option<AudioDelta<'a>>,
}

#[derive(Deserialize)]
struct ToolCallDelta<'a> {
    #[serde(default)]
    index: Option<u64>,
    #[serde(default, borrow)]
    id: Option<Cow<'a, str>>,
    #[serde(default, borrow)]
    function: Option<FunctionDelta<'a>>,
    /// What Gemini wants to see again, where it speaks like OpenAI.
    #[serde(default)]
    extra_content: Option<Value>,
}

#[derive(Deserialize, Default)]
struct FunctionDelta<'a> {
    #[serde(default, borrow)]
    name: Option<Cow<'a, str>>,
    /// A text, or with some the object itself.
    #[serde(default, borrow)]
    arguments: Option<&'a RawValue>,
}

#[derive(Deserialize)]
struct AudioDelta<'a> {
    #[serde(default, borrow)]
    data: Option<Cow<'a, str>>,
    #[serde(default, borrow)]
    transcript: Option<Cow<'a, str>>,
}

/// A text, as it stands in the frame if it can.
#[derive(Deserialize)]
#[serde(transparent)]
struct Words<'a>(#[serde(borrow)] Cow<'a, str>);

#[derive(Deserialize, Default)]
#[serde(default)]
struct Tokens {
    prompt_tokens: Option<u64>,
    completion_tokens: Option<u64>,
    total_tokens: Option<u64>,
    prompt_tokens_details: Option<PromptDetails>,
    completion_tokens_details: Option<CompletionDetails>,
    prompt_cache_hit_tokens: Option<u64>,
    cached_tokens: Option<u64>,
    cost: Option<Value>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct PromptDetails {
    cached_tokens: Option<u64>,
    cache_write_tokens: Option<u64>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct CompletionDetails {
    reasoning_tokens: Option<u64>,
}

impl Tokens {
    fn usage(self) -> Usage {
        let prompt = self.prompt_tokens_details.unwrap_or_default();
        let cached = prompt.cached_tokens.or(self.prompt_cache_hit_tokens).or(self.cached_tokens);
        let thoughts = self.completion_tokens_details.and_then(|details| details.reasoning_tokens);
        let sum =
            |thoughts: u64| self.prompt_tokens?.checked_add(self.completion_tokens?)?.checked_add(thoughts);
        // Most count thoughts as part of the answer; with some they come on top.
        let on_top = thoughts
            .filter(|thoughts| *thoughts > 0)
            .is_some_and(|thoughts| self.total_tokens.is_some() && sum(thoughts) == self.total_tokens);
        let within = if on_top { 0 } else { thoughts.unwrap_or_default() };
        let mut usage = Usage {
            prompt_token_count: self.prompt_tokens,
            candidates_token_count: self.completion_tokens.map(|all| all.saturating_sub(within)),
            total_token_count: self.total_tokens.or_else(|| sum(0)),
            cached_content_token_count: cached,
            cache_write_token_count: prompt.cache_write_tokens.filter(|tokens| *tokens > 0),
            thoughts_token_count: thoughts,
            ..Usage::default()
        };
        if let Some(cost) = self.cost.filter(Value::is_number) {
            usage.unknown.insert("cost".to_owned(), cost);
        }
        usage
    }
}

/// What the model says aloud, as far as it came.
#[derive(Debug, Default)]
struct Audio {
    bytes: Vec<u8>,
    /// The end of what came so far, if it is not yet whole bytes.
    rest: String,
}

impl Audio {
    fn push(&mut self, base64: &str) -> Result<()> {
        self.rest.push_str(base64);
        let whole = self.rest.len() / 4 * 4;
        let ready = self.rest.get(..whole).unwrap_or_default();
        STANDARD
            .decode_vec(ready, &mut self.bytes)
            .map_err(|error| unreadable("the audio of the answer cannot be read").with_source(error))?;
        self.rest.drain(..ready.len());
        Ok(())
    }

    /// What kind of audio it is. What is in a stream has no head that says so.
    fn kind(&self) -> &'static str {
        match self.bytes.as_slice() {
            [b'R', b'I', b'F', b'F', ..] => "audio/wav",
            [b'I', b'D', b'3', ..] | [0xff, 0xe0..=0xff, ..] => "audio/mpeg",
            [b'f', b'L', b'a', b'C', ..] => "audio/flac",
            [b'O', b'g', b'g', b'S', ..] => "audio/ogg",
            _ => "audio/pcm;rate=24000",
        }
    }
}

impl ChatReader {
    pub(super) fn new(provider: &'static str) -> Self {
        Self {
            provider,
            calls: Vec::new(),
            stopped: false,
            counted: false,
            refused: false,
            details: Details::default(),
            audio: Audio::default(),
            logprobs: Vec::new(),
            annotations: Vec::new(),
        }
    }

    fn completion(&mut self, data: &str, answer: &mut Answer) -> Result<()> {
        let read: Completion<'_> = serde_json::from_str(data)
            .map_err(|error| unreadable("a frame of the answer cannot be read").with_source(error))?;
        if let Some(error) = read.error {
            return Err(self.failure(error.get()));
        }
        if let Some(model) = read.model.filter(|model| !model.is_empty()) {
            answer.meta.model_version = Some(model);
        }
        if let Some(tokens) = read.usage.or_else(|| read.x_groq?.usage) {
            self.counted |= read.choices.as_ref().is_none_or(Vec::is_empty);
            answer.meta.usage_metadata = Some(tokens.usage());
        }
        if let Some(tier) = read.service_tier {
            answer.tell("serviceTier", tier.as_str());
        }
        if let Some(citations) = read.citations.filter(|citations| !citations.is_null()) {
            answer.meta.citation_metadata = Some(json!({"citations": citations}));
        }
        tell_filter(answer, "promptFilterResults", read.prompt_filter_results);
        let choices = read.choices.into_iter().flatten();
        for choice in choices.filter(|choice| choice.index.unwrap_or_default() == 0) {
            self.choice(choice, answer)?;
        }
        Ok(())
    }

    fn choice(&mut self, choice: Choice<'_>, answer: &mut Answer) -> Result<()> {
        if let Some(delta) = choice.delta.or(choice.message) {
            self.delta(delta, answer)?;
        }
        if let Some(content) = choice.logprobs.and_then(|logprobs| logprobs.content) {
            self.logprobs.extend(content);
        }
        if let Some(tokens) = choice.usage {
            answer.meta.usage_metadata = Some(tokens.usage());
        }
        tell_filter(answer, "contentFilterResults", choice.content_filter_results);
        if let Some(word) = choice.finish_reason.filter(|word| !word.is_empty()) {
            let reason = match &*word {
                _ if self.refused => "REFUSAL",
                "length" | "max_tokens" | "model_length" => "MAX_TOKENS",
                "content_filter" => "SAFETY",
                "error" => return Err(self.failure("{\"message\":\"the model failed\"}")),
                "insufficient_system_resource" => {
                    let error = json!({"message": "the provider has no room", "code": "overloaded"});
                    return Err(self.failure(&error.to_string()));
                }
                _ => "STOP",
            };
            answer.stop(&word, reason);
            self.stopped = true;
        }
        Ok(())
    }

    fn delta(&mut self, delta: Delta<'_>, answer: &mut Answer) -> Result<()> {
        let in_words = delta.reasoning_content.as_ref().map(|thought| ("reasoning_content", thought));
        let in_words = in_words.or_else(|| delta.reasoning.as_ref().map(|thought| ("reasoning", thought)));
        if let Some((place, thought)) = in_words {
            self.think(place, thought, answer)?;
        }
        for detail in delta.reasoning_details.into_iter().flatten() {
            if let Some(words) = reasoning::words(&detail).filter(|_| in_words.is_none()) {
                self.think("reasoning", words, answer)?;
            }
            self.details.add(detail)?;
        }
        if let Some(content) = delta.content {
            self.content(content.get(), answer)?;
        }
        if let Some(words) = delta.refusal.filter(|words| !words.is_empty()) {
            self.refused = true;
            answer.say(false, &words)?;
        }
        if let Some(audio) = delta.audio {
            answer.say(false, audio.transcript.as_deref().unwrap_or_default())?;
            let data = audio.data.as_deref().unwrap_or_default();
            answer.grow(data.len())?;
            self.audio.push(data)?;
        }
        for image in delta.images.into_iter().flatten() {
            picture(&image, answer);
        }
        for (place, call) in delta.tool_calls.into_iter().flatten().enumerate() {
            self.tool_call(place as u64, call, answer)?;
        }
        if let Some(function) = delta.function_call {
            let call =
                ToolCallDelta { index: Some(0), id: None, function: Some(function), extra_content: None };
            self.tool_call(0, call, answer)?;
        }
        self.annotations.extend(delta.annotations.into_iter().flatten());
        Ok(())
    }

    /// More of a thought that is to be sent back in that place.
    fn think(&self, place: &str, more: &str, answer: &mut Answer) -> Result<()> {
        answer.think(more, OWN, || json!({"provider": self.provider, "thoughtIn": place}))
    }

    /// More words: as a text, or in parts among which thoughts can be.
    fn content(&self, content: &str, answer: &mut Answer) -> Result<()> {
        if let Ok(Words(words)) = serde_json::from_str(content) {
            return answer.say(false, &words);
        }
        let parts: Option<Vec<Value>> = serde_json::from_str(content)
            .map_err(|error| unreadable("the content of the answer cannot be read").with_source(error))?;
        for part in parts.into_iter().flatten() {
            let text = |part: &Value| part.get("text").and_then(Value::as_str).map(str::to_owned);
            match part.get("type").and_then(Value::as_str).unwrap_or_default() {
                "text" => answer.say(false, &text(&part).unwrap_or_default())?,
                "thinking" => match part.get("thinking") {
                    Some(Value::String(thought)) => self.think("content", thought, answer)?,
                    Some(Value::Array(thoughts)) => {
                        let thought: String = thoughts.iter().filter_map(text).collect();
                        self.think("content", &thought, answer)?;
                    }
                    _ => {}
                },
                "image_url" => picture(&part, answer),
                _ => answer.keep_unknown(&part.to_string()),
            }
        }
        Ok(())
    }

    fn tool_call(&mut self, place: u64, call: ToolCallDelta<'_>, answer: &mut Answer) -> Result<()> {
        let number = call.index.unwrap_or(place);
        let id = call.id.as_deref().unwrap_or_default();
        let function = call.function.unwrap_or_default();
        let name = function.name.as_deref().unwrap_or_default();
        // Some give each call the same number, and only the id tells that another begins. Or there is neither, and then a
        // name tells it.
        let begins = call.index.is_none() && id.is_empty() && !name.is_empty();
        let known = self.calls.iter().rev().find(|(at, _, _)| *at == number && !begins);
        let slot = match known.filter(|(_, before, _)| id.is_empty() || before == id) {
            Some((_, _, slot)) => *slot,
            None => {
                let slot = answer.begin_call(id, name);
                self.calls.push((number, id.into(), slot));
                slot
            }
        };
        if let Some(extra) = call.extra_content.filter(|extra| !extra.is_null()) {
            answer.own(slot, OWN, json!({"provider": self.provider, "extra_content": extra}));
        }
        let arguments = function.arguments.map(RawValue::get).unwrap_or_default();
        match serde_json::from_str(arguments) {
            Ok(Words(text)) => answer.push(slot, &text),
            Err(_) => answer.push(slot, arguments),
        }
    }

    /// Finishes the answer, if it is complete as far as that can be told.
    fn finish(&mut self, is_over: bool, answer: &mut Answer) {
        let said_something = !answer.is_empty() || !self.audio.bytes.is_empty();
        if !(self.stopped || is_over && said_something) {
            return;
        }
        if !self.stopped {
            let reason = if self.refused { "REFUSAL" } else { "STOP" };
            answer.meta.finish_reason = Some(reason.into());
        }
        if let Some(details) = self.details.take() {
            answer.opaque(OWN, json!({"provider": self.provider, "reasoning_details": details}));
        }
        if !self.audio.bytes.is_empty() {
            let kind = self.audio.kind();
            answer.part(Part::data(kind, std::mem::take(&mut self.audio.bytes)));
        }
        if !self.logprobs.is_empty() {
            answer.tell("logprobsResult", std::mem::take(&mut self.logprobs));
        }
        if !self.annotations.is_empty() {
            let citations = json!({"citations": std::mem::take(&mut self.annotations)});
            answer.meta.citation_metadata = Some(citations);
        }
        answer.finish();
    }

    /// A failure in the middle of an answer.
    fn failure(&self, error: &str) -> Error {
        failure::in_stream(self.provider, error)
    }
}

/// What a filter of Azure found.
fn tell_filter(answer: &mut Answer, key: &str, found: Option<Value>) {
    let is_something = |found: &Value| match found {
        Value::Object(found) => !found.is_empty(),
        Value::Array(found) => !found.is_empty(),
        _ => false,
    };
    if let Some(found) = found.filter(is_something) {
        answer.tell(key, found);
    }
}

/// An image that was made: its data, or where it is.
fn picture(image: &Value, answer: &mut Answer) {
    let url = image.get("image_url").and_then(|url| url.as_str().or_else(|| url.get("url")?.as_str()));
    let Some(url) = url.filter(|url| !url.is_empty()) else { return };
    let inline = url.strip_prefix("data:").and_then(|rest| rest.split_once(";base64,"));
    let inline = inline.and_then(|(kind, data)| Some((kind, STANDARD.decode(data).ok()?)));
    let part = match inline {
        Some((kind, data)) => Part::data(kind, data),
        None => {
            let file = FileData { file_uri: Some(url.to_owned()), ..FileData::default() };
            Part::new(Payload::FileData(Box::new(file)))
        }
    };
    answer.part(part);
}

impl Reader for ChatReader {
    fn frame(&mut self, _event: &str, data: &str, answer: &mut Answer) -> Result<()> {
        if data.trim() == "[DONE]" {
            self.finish(true, answer);
            return Ok(());
        }
        self.completion(data, answer)
    }

    fn whole(&mut self, body: &str, answer: &mut Answer) -> Result<()> {
        self.completion(body, answer)?;
        self.finish(true, answer);
        match answer.is_finished() {
            true => Ok(()),
            false => Err(unreadable("the answer has no message in it")),
        }
    }

    fn end(&mut self, answer: &mut Answer) -> Result<()> {
        // Not all say that they are done.
        self.finish(self.counted, answer);
        Ok(())
    }
}
