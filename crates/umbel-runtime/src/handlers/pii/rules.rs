//! Rules sorted by where they apply, and how they go through messages and JSON values.

use std::borrow::Cow;
use std::sync::Arc;

use serde_json::Value;
use umbel_core::{Content, FunctionCall, Object, Part, Payload, Role};

use super::redact::{PiiBlocked, PiiRule, Surface};
use super::stream::StreamRedactor;
use crate::output_schema::SET_MODEL_RESPONSE;
use crate::tools::delegate::FINISH_TASK;

/// Rules in the order in which they apply.
#[derive(Clone, Debug, Default)]
pub(super) struct Rules(Vec<PiiRule>);

impl Rules {
    fn choose(rules: &[PiiRule], choose: impl Fn(&PiiRule) -> bool) -> Self {
        Self(rules.iter().filter(|rule| choose(rule)).cloned().collect())
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn stream(&self, lookback: usize) -> StreamRedactor {
        StreamRedactor::new(self.0.iter().cloned(), lookback)
    }

    /// The text redacted; `None` if there is nothing to redact.
    pub(super) fn text(&self, text: &str) -> Result<Option<String>, PiiBlocked> {
        let mut changed = Cow::Borrowed(text);
        for rule in &self.0 {
            if let Some(text) = rule.change(&changed)? {
                changed = Cow::Owned(text);
            }
        }
        Ok(match changed {
            Cow::Borrowed(_) => None,
            Cow::Owned(text) => Some(text),
        })
    }

    /// A value with its strings redacted, keys too. A number that is personal data becomes a string.
    pub(super) fn value(&self, value: &Value) -> Result<Option<Value>, PiiBlocked> {
        Ok(match value {
            Value::String(text) => self.text(text)?.map(Value::String),
            Value::Number(number) => self.text(&number.to_string())?.map(Value::String),
            Value::Array(items) => {
                let changes = items.iter().map(|item| self.value(item)).collect::<Result<Vec<_>, _>>()?;
                changes.iter().any(Option::is_some).then(|| {
                    let merged = changes.into_iter().zip(items);
                    Value::Array(
                        merged.map(|(change, item)| change.unwrap_or_else(|| item.clone())).collect(),
                    )
                })
            }
            Value::Object(object) => self.object(object)?.map(Value::Object),
            Value::Null | Value::Bool(_) => None,
        })
    }

    pub(super) fn object(&self, object: &Object) -> Result<Option<Object>, PiiBlocked> {
        let change = |(key, value): (&String, &Value)| Ok((self.text(key)?, self.value(value)?));
        let changes = object.iter().map(change).collect::<Result<Vec<_>, _>>()?;
        if changes.iter().all(|(key, value)| key.is_none() && value.is_none()) {
            return Ok(None);
        }
        let mut changed = Object::new();
        for ((key, value), (new_key, new_value)) in object.iter().zip(changes) {
            let key = unused(&changed, new_key.unwrap_or_else(|| key.clone()));
            changed.insert(key, new_value.unwrap_or_else(|| value.clone()));
        }
        Ok(Some(changed))
    }

    /// A message with its words and thoughts redacted, but for those that `passed` already.
    pub(super) fn words(&self, content: &Content, passed: &[String]) -> Result<Option<Content>, PiiBlocked> {
        change_parts(content, |part| match &part.payload {
            Payload::Text(text) if !passed.contains(text) => {
                Ok(self.text(text)?.map(|text| with_text(part, text)))
            }
            _ => Ok(None),
        })
    }

    /// A message with those calls redacted by which the agent gives its answer.
    pub(super) fn answers(&self, content: &Content) -> Result<Option<Content>, PiiBlocked> {
        change_parts(content, |part| match &part.payload {
            Payload::Call(call) if is_answer(call) => {
                let Some(args) = &call.args else { return Ok(None) };
                Ok(self.object(args)?.map(|args| {
                    let mut call = call.clone();
                    call.args = Some(Arc::new(args));
                    with_payload(part, Payload::Call(call))
                }))
            }
            _ => Ok(None),
        })
    }
}

/// Whether the arguments of such a call are what the agent says, and no tool's business.
fn is_answer(call: &FunctionCall) -> bool {
    call.name == SET_MODEL_RESPONSE || call.name == FINISH_TASK
}

/// A key that is not there yet: two that look alike once they are redacted must both stay.
fn unused(object: &Object, key: String) -> String {
    if !object.contains_key(&key) {
        return key;
    }
    let numbered = |number: usize| format!("{key} ({number})");
    (2..).map(numbered).find(|key| !object.contains_key(key)).unwrap_or(key)
}

/// The rules of a handler by what they are about.
#[derive(Clone, Debug, Default)]
pub(super) struct Sorted {
    /// What users say.
    pub(super) input: Rules,
    /// What the model says.
    pub(super) output: Rules,
    /// What tools answer.
    pub(super) tool_results: Rules,
    /// Words beside a tool's answer: said by the tool or by the user.
    beside: Rules,
}

impl Sorted {
    pub(super) fn new(rules: &[PiiRule]) -> Self {
        let of = |surface: Surface| Rules::choose(rules, |rule| rule.applies_to(surface));
        Self {
            input: of(Surface::Input),
            output: of(Surface::Output),
            tool_results: of(Surface::ToolResults),
            beside: Rules::choose(rules, |rule| {
                rule.applies_to(Surface::Input) || rule.applies_to(Surface::ToolResults)
            }),
        }
    }

    /// A message of the history, redacted. Those of the model are left as they are: they were redacted when they came.
    pub(super) fn message(&self, content: &Content) -> Result<Option<Content>, PiiBlocked> {
        if content.role != Some(Role::User) {
            return Ok(None);
        }
        let words = if content.has_responses() { &self.beside } else { &self.input };
        change_parts(content, |part| match &part.payload {
            Payload::Text(text) => Ok(words.text(text)?.map(|text| with_text(part, text))),
            Payload::Response(response) => {
                let Some(object) = &response.response else { return Ok(None) };
                Ok(self.tool_results.object(object)?.map(|object| {
                    let mut response = response.clone();
                    response.response = Some(object);
                    with_payload(part, Payload::Response(response))
                }))
            }
            _ => Ok(None),
        })
    }
}

/// The part with another text; all else of it stays.
pub(super) fn with_text(part: &Part, text: String) -> Part {
    with_payload(part, Payload::Text(text))
}

fn with_payload(part: &Part, payload: Payload) -> Part {
    let mut part = part.clone();
    part.payload = payload;
    part
}

/// The message with other parts; `None` if none of them changed.
fn change_parts(
    content: &Content,
    change: impl Fn(&Part) -> Result<Option<Part>, PiiBlocked>,
) -> Result<Option<Content>, PiiBlocked> {
    let changes = content.parts.iter().map(change).collect::<Result<Vec<_>, _>>()?;
    Ok(changes.iter().any(Option::is_some).then(|| {
        let merged = changes.into_iter().zip(&content.parts);
        let parts = merged.map(|(change, part)| change.unwrap_or_else(|| part.clone())).collect();
        Content { role: content.role.clone(), parts }
    }))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::handlers::pii::PiiStrategy;

    #[test]
    fn strings_keys_and_numbers_of_a_value_are_redacted() {
        let rules = Rules(vec![PiiRule::email(), PiiRule::credit_card().strategy(PiiStrategy::Mask)]);
        let value = json!({
            "a@x.org": 1, "b@x.org": [true, null, {"deep": "to c@x.org"}], "card": 4111111111111111_u64, "n": 1.5
        });
        let redacted = json!({
            "[REDACTED_EMAIL]": 1,
            "[REDACTED_EMAIL] (2)": [true, null, {"deep": "to [REDACTED_EMAIL]"}],
            "card": "************1111",
            "n": 1.5,
        });
        assert_eq!(rules.value(&value).unwrap(), Some(redacted));
        assert_eq!(rules.value(&json!({"a": ["x", 1, {"b": null}]})).unwrap(), None);
    }

    #[test]
    fn a_key_that_was_there_before_is_not_lost() {
        let rules = Rules(vec![PiiRule::email()]);
        let value = json!({"a@x.org": 1, "[REDACTED_EMAIL]": 2, "[REDACTED_EMAIL] (2)": 3});
        let object = rules.object(value.as_object().unwrap()).unwrap().unwrap();
        assert_eq!(object.values().collect::<Vec<_>>(), [1, 2, 3]);
    }

    #[test]
    fn words_beside_a_tools_answer_are_looked_at_if_users_or_tools_are() {
        let answer = umbel_core::FunctionResponse::new(
            None,
            "t",
            json!({"r": "a@x.org"}).as_object().unwrap().clone(),
        );
        let content = Content::new(Role::User, [Part::response(answer), "b@x.org".into()]);
        let looked =
            |rule: PiiRule| Sorted::new(&[rule]).message(&content).unwrap().map(|c| json!(c).to_string());
        let tools = looked(PiiRule::email().input(false).tool_results(true)).unwrap();
        assert!(!tools.contains("a@x.org") && !tools.contains("b@x.org"), "{tools}");
        let users = looked(PiiRule::email()).unwrap();
        assert!(users.contains("a@x.org") && !users.contains("b@x.org"), "{users}");
        assert_eq!(looked(PiiRule::email().input(false).output(true)), None);
    }
}
