//! How many tokens messages take up, about.

use std::io::{self, Write};
use std::sync::Arc;

use serde::Serialize;
use serde_json::Value;
use umbel_core::{Content, FunctionResponse, History, Object, Part, Payload, Run};

use super::per_agent;

/// Counts tokens. A closure from a message to a number is one too.
///
/// ```
/// use umbel_core::Content;
/// use umbel_runtime::handlers::{Summarise, Trigger};
///
/// let words = |message: &Content| message.text().split_whitespace().count() as u64;
/// let summarise = Summarise::new(Trigger::Tokens(1_000)).counter(words);
/// ```
pub trait TokenCounter: Send + Sync {
    /// The tokens of one message.
    fn count(&self, message: &Content) -> u64;
}

impl<F: Fn(&Content) -> u64 + Send + Sync> TokenCounter for F {
    fn count(&self, message: &Content) -> u64 {
        self(message)
    }
}

/// What a picture or another medium counts as: providers differ, and most of them charge about this much.
const MEDIUM: u64 = 256;

/// Counts characters and divides: no tokenizer is needed, and any model is about right.
///
/// Every tool's answer counts as a message of its own, also where several stand in one message.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ApproximateTokens {
    /// Tokens of a message besides what it says.
    pub overhead: u64,
    /// How many characters make a token; with `None` what is said counts nothing.
    pub chars_per_token: Option<f64>,
    /// Whether the arguments of calls count.
    pub count_args: bool,
}

/// Four characters to a token, three tokens more per message, arguments counted.
impl Default for ApproximateTokens {
    fn default() -> Self {
        Self { overhead: 3, chars_per_token: Some(4.0), count_args: true }
    }
}

impl ApproximateTokens {
    fn tokens(&self, chars: usize) -> u64 {
        // A count far below 2^52 loses nothing on the way, and one that is no number becomes zero.
        let whole = |per: f64| (chars as f64 / per).floor() as u64;
        self.chars_per_token.filter(|per| *per > 0.0).map_or(0, whole)
    }

    fn response(&self, response: &FunctionResponse) -> u64 {
        let media = response.unknown.get("parts").and_then(Value::as_array).map_or(0, Vec::len);
        self.overhead + self.tokens(answer_chars(response)) + MEDIUM * media as u64
    }
}

impl TokenCounter for ApproximateTokens {
    fn count(&self, message: &Content) -> u64 {
        let (mut chars, mut rest) = (0, 0);
        for part in &message.parts {
            match &part.payload {
                Payload::Text(text) => chars += text.chars().count(),
                Payload::Code(code) => chars += code.code.as_deref().unwrap_or_default().chars().count(),
                Payload::CodeResult(result) => {
                    chars += result.output.as_deref().unwrap_or_default().chars().count();
                }
                Payload::Call(call) if self.count_args => {
                    rest += call.args.as_deref().map_or(0, |args| self.tokens(json_chars(args)));
                }
                Payload::Response(response) => rest += self.response(response),
                Payload::InlineData(_) | Payload::FileData(_) => rest += MEDIUM,
                _ => {}
            }
        }
        let only_answers = !message.parts.is_empty() && message.parts.iter().all(is_answer);
        rest + if only_answers { 0 } else { self.overhead + self.tokens(chars) }
    }
}

fn is_answer(part: &Part) -> bool {
    part.as_response().is_some()
}

/// What a tool said in words: `{"result": …}` and `{"error": …}` are only the wrapping.
pub(crate) fn answer_value(response: &Object) -> Option<&Value> {
    let (key, value) = response.iter().next().filter(|_| response.len() == 1)?;
    ["result", "error"].contains(&key.as_str()).then_some(value)
}

fn answer_chars(response: &FunctionResponse) -> usize {
    let Some(response) = &response.response else { return 0 };
    match answer_value(response) {
        Some(Value::String(text)) => text.chars().count(),
        Some(value) => json_chars(value),
        None => json_chars(response),
    }
}

/// The length of a value's compact JSON form, without writing it.
pub(crate) fn json_chars(value: &impl Serialize) -> usize {
    struct Count(usize);
    impl Write for Count {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            // All bytes of a character but its first begin with 10.
            self.0 += bytes.iter().filter(|byte| (**byte & 0xC0) != 0x80).count();
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }
    let mut count = Count(0);
    // Counting cannot fail; a value without a JSON form counts as far as it goes.
    let _ = serde_json::to_writer(&mut count, value);
    count.0
}

/// The tokens of all messages.
pub(crate) fn count_all(counter: &dyn TokenCounter, history: &History) -> u64 {
    history.iter().map(|message| counter.count(message)).sum()
}

/// A count that goes along with a conversation.
#[derive(Default)]
struct Tally {
    history: History,
    tokens: u64,
}

impl Tally {
    /// The tokens of all messages. Costs what changed since it was asked last.
    fn follow(&mut self, counter: &dyn TokenCounter, history: &History) -> u64 {
        let same = self.history.common_prefix(history);
        let from = |history: &History, start: usize| -> u64 {
            history.iter_from(start).map(|message| counter.count(message)).sum()
        };
        self.tokens = match same {
            0 => from(history, 0),
            _ => self.tokens.saturating_sub(from(&self.history, same)) + from(history, same),
        };
        self.history = history.clone();
        self.tokens
    }
}

/// The tokens of an agent's messages. Within a run each message is counted once.
pub(crate) fn running_count(
    run: &Run,
    handler: usize,
    counter: &Arc<dyn TokenCounter>,
    history: &History,
) -> u64 {
    per_agent::with(run, handler, |tally: &mut Tally| tally.follow(counter.as_ref(), history))
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;
    use serde_json::json;
    use umbel_core::{FunctionCall, Role};

    fn response(value: Value) -> Part {
        let Value::Object(response) = value else { panic!("an object") };
        Part::response(FunctionResponse::new(Some("c".into()), "f", response))
    }

    fn object(value: Value) -> Object {
        let Value::Object(object) = value else { panic!("an object") };
        object
    }

    #[test]
    fn characters_count_not_bytes_and_each_piece_is_rounded_down() {
        let counter = ApproximateTokens { overhead: 10, ..ApproximateTokens::default() };
        assert_eq!(counter.count(&Content::user("äöüß€")), 11);
        assert_eq!(counter.count(&Content::user("")), 10);
        let call = Part::call(FunctionCall::new("f", object(json!({"q": "ääää"}))));
        // {"q":"ääää"} has 12 characters.
        let both = Content::new(Role::Model, ["abcdef".into(), call.clone(), call]);
        assert_eq!(counter.count(&both), 10 + 1 + 3 + 3);
        let without = ApproximateTokens { count_args: false, ..counter };
        assert_eq!(without.count(&both), 11);
        let silent = ApproximateTokens { chars_per_token: None, ..counter };
        assert_eq!(silent.count(&both), 10);
        let broken = ApproximateTokens { chars_per_token: Some(0.0), ..counter };
        assert_eq!(broken.count(&both), 10);
    }

    #[test]
    fn answers_count_the_same_together_or_apart() {
        let counter = ApproximateTokens::default();
        let (a, b) = (response(json!({"result": "x".repeat(9)})), response(json!({"error": "x".repeat(7)})));
        let apart = [&a, &b].map(|part| counter.count(&Content::new(Role::User, [part.clone()])));
        assert_eq!(apart, [3 + 2, 3 + 1]);
        assert_eq!(counter.count(&Content::new(Role::User, [a, b])), 9);
        // Anything else is counted as JSON: {"k":[1,2]} has 11 characters, [1,2] has 5.
        assert_eq!(counter.count(&Content::user(response(json!({"k": [1, 2]})))), 3 + 2);
        assert_eq!(counter.count(&Content::user(response(json!({"result": [1, 2]})))), 3 + 1);
    }

    #[test]
    fn media_count_though_they_have_no_characters() {
        let counter = ApproximateTokens::default();
        let picture = Part::data("image/png", vec![0; 5000]);
        assert_eq!(counter.count(&Content::user(picture)), 3 + MEDIUM);
    }

    #[test]
    fn a_tally_counts_each_message_once_and_stays_right_when_some_change() {
        let counted = Arc::new(AtomicUsize::new(0));
        let count = counted.clone();
        let counter = move |message: &Content| {
            count.fetch_add(1, Ordering::SeqCst);
            message.text().len() as u64
        };
        let mut tally = Tally::default();
        let mut history: History = (0..1000).map(|_| Arc::new(Content::user("abc"))).collect();
        assert_eq!(tally.follow(&counter, &history), 3000);
        assert_eq!(counted.swap(0, Ordering::SeqCst), 1000);
        history.push(Content::user("abcd"));
        assert_eq!(tally.follow(&counter, &history), 3004);
        assert_eq!(counted.swap(0, Ordering::SeqCst), 1);
        history.replace(999, Content::user(""));
        assert_eq!(tally.follow(&counter, &history), 3001);
        assert_eq!(counted.swap(0, Ordering::SeqCst), 4);
        history.splice(0, 900, [Arc::new(Content::user("summary"))]);
        assert_eq!(tally.follow(&counter, &history), 7 + 3 * 99 + 4);
        assert_eq!(tally.follow(&counter, &History::new()), 0);
    }
}
