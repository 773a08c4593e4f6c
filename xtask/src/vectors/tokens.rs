//! Tokens such as `⟦identity solo⟧`: vectors leave the wording to us, so a token stands for our own sentence.

use serde_json::{Value, json};
use umbel::history::{BEGIN_TURN, CONTINUE_TURN};
use umbel::run::model_call_limit;
use umbel::text;

use super::handlers::model_failure;

const OPEN: char = '⟦';
const CLOSE: char = '⟧';

/// What the words of an error are that vectors do not look into.
const ANYTHING: &str = "\u{1}anything\u{1}";

/// Turns tokens into words. Knows the agents of a case: some sentences name them, or say what they do.
#[derive(Clone, Debug, Default)]
pub(super) struct Tokens {
    /// Name and description.
    agents: Vec<(String, String)>,
}

impl Tokens {
    /// Knows the agents of a tree as vectors describe it.
    pub(super) fn of_tree(tree: &Value) -> Self {
        let mut tokens = Self::default();
        tokens.learn(tree);
        tokens
    }

    fn learn(&mut self, agent: &Value) {
        let text = |key: &str| agent.get(key).and_then(Value::as_str).unwrap_or_default().to_owned();
        self.agents.push((text("name"), text("description")));
        for below in ["sub_agents", "agent_tools"] {
            for agent in agent.get(below).and_then(Value::as_array).into_iter().flatten() {
                self.learn(agent);
            }
        }
    }

    /// Whether words are what an expectation with tokens asks for.
    pub(super) fn matches(&self, expected: &str, actual: &str) -> bool {
        self.readings(expected).iter().any(|reading| fits(reading, actual))
    }

    /// The value with words in the place of tokens.
    pub(super) fn fill(&self, value: &Value) -> Value {
        match value {
            Value::String(text) => Value::String(self.readings(text).into_iter().next().unwrap_or_default()),
            Value::Array(list) => list.iter().map(|value| self.fill(value)).collect(),
            Value::Object(object) => {
                object.iter().map(|(key, value)| (key.clone(), self.fill(value))).collect()
            }
            other => other.clone(),
        }
    }

    /// What a text with tokens can say. There is more than one reading if a token leaves something open.
    fn readings(&self, text: &str) -> Vec<String> {
        let mut readings = vec![String::new()];
        let mut rest = text;
        while let Some((before, token, behind)) = split(rest) {
            let alternatives = self.words(token);
            readings = readings
                .iter()
                .flat_map(|reading| alternatives.iter().map(move |words| format!("{reading}{before}{words}")))
                .collect();
            rest = behind;
        }
        readings.into_iter().map(|reading| reading + rest).collect()
    }

    /// The words for what stands between the brackets.
    fn words(&self, token: &str) -> Vec<String> {
        let (name, rest) = token.split_once(' ').unwrap_or((token, ""));
        let mut two = rest.splitn(2, ' ');
        let (first, second) = (two.next().unwrap_or_default(), two.next().unwrap_or_default());
        let words = match name {
            "foreign" => text::FOREIGN.to_owned(),
            "said" => until_quote(text::said(rest, "")),
            "thought" => until_quote(text::thought(rest, "")),
            "called" => until_quote(text::called(first, second, None)),
            "returned" => until_quote(text::returned(first, second, None)),
            "/" => format!("\n{}", text::QUOTE_END),
            "quote-begin" => text::QUOTE_BEGIN.to_owned(),
            "quote-end" => text::QUOTE_END.to_owned(),
            "instruction-begin" => text::INSTRUCTION_BEGIN.to_owned(),
            "instruction-end" => text::INSTRUCTION_END.to_owned(),
            "instruction-preamble" => text::INSTRUCTION_PREAMBLE.to_owned(),
            "elided" => text::ELIDED.to_owned(),
            "identity" => {
                let (name, description) = rest.split_once(": ").unwrap_or((rest, ""));
                text::identity(name, description)
            }
            "transfer" => self.transfer(rest),
            "transfer-tool-description" => text::TRANSFER_TOOL.to_owned(),
            "transfer-refused" => {
                let to = second.split([' ', ',', ':']).next().unwrap_or_default();
                text::transfer_refused(first, to)
            }
            "agent-not-found" => text::agent_not_found(rest),
            "output-schema-note" => text::OUTPUT_SCHEMA_NOTE.to_owned(),
            "schema-error" => ANYTHING.to_owned(),
            "confirm-hint" => text::confirm_hint(rest),
            "needs-confirmation" => text::NEEDS_CONFIRMATION.to_owned(),
            "rejected" if rest.is_empty() => text::REJECTED.to_owned(),
            "rejected" => {
                let reason = second.strip_prefix("reason=");
                text::call_rejected(limited_tool(rest).unwrap_or_default(), reason)
            }
            "edited" => {
                let tool = first.strip_prefix("name=").unwrap_or_default();
                text::call_edited(tool, second.strip_prefix("args=").unwrap_or_default())
            }
            "default-description" => text::approve_hint(ANYTHING),
            "tool-not-found" => tool_not_found(rest),
            "no-content" => text::NO_CONTENT.to_owned(),
            "llm-call-limit" => model_call_limit(rest.parse().unwrap_or_default()),
            // The token does not say which agent's instruction it was.
            "missing-state" => {
                return self.agents.iter().map(|(agent, _)| text::missing_state(rest, agent)).collect();
            }
            "plugin-error" => return self.plugin_error(first, second),
            "binary-artifact" => text::binary_artifact(first, second),
            "begin" => BEGIN_TURN.to_owned(),
            "continue" => CONTINUE_TURN.to_owned(),
            "single-turn-nudge" => text::SINGLE_TURN_NUDGE.to_owned(),
            "todo-prompt" => text::TODO_PROMPT.to_owned(),
            "todo-parallel-error" => text::TODO_PARALLEL.to_owned(),
            "todo-updated" | "tool-args-invalid" => ANYTHING.to_owned(),
            "redacted" => format!("[REDACTED_{}]", rest.to_uppercase()),
            "hash" => format!("<{first}_hash:{second}>"),
            "masked" => format!("[MASKED_{}]", rest.to_uppercase()),
            "cleared" => text::CLEARED.to_owned(),
            "summary-prefix" => text::summary(""),
            "summary-impossible" => ANYTHING.to_owned(),
            "model-limit" => text::model_limit(&used(rest)),
            "tool-limit" => text::tool_limit(limited_tool(rest)),
            "tool-limit-end" => text::tool_limit_end(limited_tool(rest), &used(rest)),
            "tool-skipped" => text::CALL_SKIPPED.to_owned(),
            "tool-failed" => {
                let words = rest.split_once("text=").map_or("", |(_, words)| words);
                let tool = limited_tool(rest).unwrap_or_default();
                text::tool_failed(tool, attempts(rest), umbel::ErrorKind::Tool.code(), words)
            }
            "model-failed" => text::model_failed(attempts(rest), &failure(rest)),
            _ => format!("{OPEN}{token}{CLOSE}"),
        };
        vec![words]
    }

    /// `targets=a,b parent=p`
    fn transfer(&self, rest: &str) -> String {
        let field = |key: &str| rest.split(' ').find_map(|field| field.strip_prefix(key)).unwrap_or_default();
        let described = |name| {
            let known = self.agents.iter().find(|(agent, _)| agent == name);
            (name, known.map_or("", |(_, description)| description.as_str()))
        };
        let targets: Vec<(&str, &str)> = field("targets=").split(',').map(described).collect();
        text::transfer(&targets, Some(field("parent=")).filter(|parent| !parent.is_empty()))
    }

    /// `hook: message`, where the hook may have the oracle's own ending and the message tokens of its own.
    fn plugin_error(&self, plugin: &str, rest: &str) -> Vec<String> {
        let (hook, message) = rest.split_once(": ").unwrap_or((rest, ""));
        let hook = hook.strip_suffix("_callback").unwrap_or(hook);
        self.readings(message).iter().map(|message| text::plugin_error(plugin, hook, message)).collect()
    }
}

/// Text before the first token, what the token says, and the text behind it. Tokens may hold tokens.
fn split(text: &str) -> Option<(&str, &str, &str)> {
    let start = text.find(OPEN)?;
    let mut depth = 0;
    for (index, c) in text.char_indices().skip_while(|(index, _)| *index < start) {
        match c {
            OPEN => depth += 1,
            CLOSE => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            let token = text.get(start + OPEN.len_utf8()..index)?;
            return Some((text.get(..start)?, token, text.get(index + CLOSE.len_utf8()..)?));
        }
    }
    None
}

/// The words of a quotation up to where the quoted text begins.
fn until_quote(quotation: String) -> String {
    let begin = format!("{}\n", text::QUOTE_BEGIN);
    match quotation.find(&begin) {
        Some(at) => quotation.get(..at + begin.len()).unwrap_or_default().to_owned(),
        None => quotation,
    }
}

/// `tool: known, known` or `tool: none`
fn tool_not_found(rest: &str) -> String {
    let (tool, known) = rest.split_once(": ").unwrap_or((rest, "none"));
    let known: Vec<&str> = known.split(", ").filter(|name| *name != "none").collect();
    text::tool_not_found(tool, &known)
}

/// `tool=NAME`, or `tool=*` for all of them.
fn limited_tool(rest: &str) -> Option<&str> {
    rest.split(' ').find_map(|field| field.strip_prefix("tool=")).filter(|tool| *tool != "*")
}

/// `attempts=n`
fn attempts(rest: &str) -> u32 {
    let attempts = rest.split(' ').find_map(|field| field.strip_prefix("attempts="));
    attempts.and_then(|attempts| attempts.parse().ok()).unwrap_or_default()
}

/// `kind=kind text=words`
fn failure(rest: &str) -> umbel::Error {
    let kind = rest.split(' ').find_map(|field| field.strip_prefix("kind="));
    let words = rest.split_once("text=").map(|(_, words)| words);
    model_failure(&json!({"kind": kind, "text": words}))
}

/// `thread=n/limit run=n/limit`
fn used(rest: &str) -> String {
    let scopes = rest.split(' ').filter_map(|field| {
        let (scope, counts) = field.split_once('=')?;
        let (calls, limit) = counts.split_once('/')?;
        let scope = if scope == "thread" { "session" } else { scope };
        Some(text::calls_of(calls.parse().ok()?, limit.parse().ok()?, scope))
    });
    scopes.collect::<Vec<_>>().join(", ")
}

/// Whether words fit a reading, which may leave some of them open.
fn fits(reading: &str, actual: &str) -> bool {
    match reading.split_once(ANYTHING) {
        None => reading == actual,
        Some((before, behind)) => {
            actual.strip_prefix(before).is_some_and(|rest| !rest.is_empty() && rest.ends_with(behind))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quotation_reads_as_our_own_text_does() {
        let tokens = Tokens::default();
        assert!(tokens.matches("⟦said scout⟧hello⟦/⟧", &text::said("scout", "hello")));
        let args = json!({"b": 1, "a": 2});
        let called = text::called("scout", "find", args.as_object());
        assert!(tokens.matches("⟦called scout find⟧{\"a\":2,\"b\":1}⟦/⟧", &called));
    }

    #[test]
    fn a_token_that_leaves_the_agent_open_fits_any_of_them() {
        let tokens = Tokens::of_tree(&json!({"name": "root", "sub_agents": [{"name": "kid"}]}));
        assert!(tokens.matches("⟦missing-state k⟧", &text::missing_state("k", "kid")));
        assert!(!tokens.matches("⟦missing-state k⟧", &text::missing_state("k", "stranger")));
    }

    #[test]
    fn tokens_inside_tokens_are_read_too() {
        let tokens = Tokens::default();
        let inner = text::REJECTED;
        let expected = text::plugin_error("p", "before_model", inner);
        assert!(tokens.matches("⟦plugin-error p before_model_callback: ⟦rejected⟧⟧", &expected));
        assert!(tokens.matches("it says ⟦schema-error⟧.", "it says a lot."));
    }
}
