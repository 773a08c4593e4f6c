//! What nobody must see: keys and tokens.

use std::cmp::Reverse;
use std::fmt;
use std::sync::Arc;

use serde_json::Value;
use umbel_core::{Error, ErrorKind, Result};

/// What is shown in the place of a secret.
pub(crate) const HIDDEN: &str = "[secret]";
/// Shorter ones are not looked for in answers: too much would look like them.
const SHORTEST: usize = 6;

/// A key or a token. It goes to the service it is for, and is shown nowhere: not to models, not in events, errors or logs.
#[derive(Clone)]
pub struct Secret {
    whole: Arc<str>,
    /// What the environment gave for it: each is a secret of its own, such as the token behind `Bearer `.
    parts: Vec<Arc<str>>,
}

impl Secret {
    /// A secret that is at hand.
    pub fn new(secret: impl Into<Arc<str>>) -> Self {
        Self { whole: secret.into(), parts: Vec::new() }
    }

    /// The secret that the environment has under a name.
    pub fn env(name: &str) -> Result<Self> {
        Self::expand(&format!("${{{name}}}"), |name| std::env::var(name).ok())
    }

    /// A text with `${NAME}` for what the environment has under that name. `$$` is a dollar.
    ///
    /// ```
    /// use umbel_tools::Secret;
    ///
    /// let environment = |name: &str| (name == "TOKEN").then(|| "abc".to_owned());
    /// assert_eq!(Secret::expand("Token ${TOKEN}", environment).unwrap(), Secret::new("Token abc"));
    /// assert!(Secret::expand("${NONE}", environment).is_err());
    /// ```
    pub fn expand(text: &str, environment: impl Fn(&str) -> Option<String>) -> Result<Self> {
        let refuse = |message: String| Error::new(ErrorKind::Build, message);
        let (mut whole, mut parts, mut rest) = (String::new(), Vec::new(), text);
        while let Some((before, after)) = rest.split_once('$') {
            whole.push_str(before);
            if let Some(after) = after.strip_prefix('$') {
                whole.push('$');
                rest = after;
                continue;
            }
            let named = after.strip_prefix('{').and_then(|after| after.split_once('}'));
            let Some((name, after)) = named else {
                let message = "a `$` stands alone: write `${NAME}` for a variable, or `$$` for a dollar";
                return Err(refuse(message.to_owned()));
            };
            match environment(name) {
                Some(value) if !value.trim().is_empty() => {
                    whole.push_str(value.trim());
                    parts.push(value.trim().into());
                }
                _ => return Err(refuse(format!("the environment has no `{name}`: set it and start again"))),
            }
            rest = after;
        }
        whole.push_str(rest);
        Ok(Self { whole: whole.into(), parts })
    }

    /// The secret itself, for the one it is for.
    pub fn reveal(&self) -> &str {
        &self.whole
    }
}

/// What is sent counts, not how it was put together.
impl PartialEq for Secret {
    fn eq(&self, other: &Self) -> bool {
        self.whole == other.whole
    }
}

impl Eq for Secret {}

impl From<&str> for Secret {
    fn from(text: &str) -> Self {
        Self::new(text)
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(…)")
    }
}

/// A text without the secrets that somebody sent back, be they as they are or as addresses and JSON write them. If the text
/// was cut, a secret that begins at its end is left out too.
pub(crate) fn hide(text: &str, secrets: &[Secret], is_cut: bool) -> String {
    let all = secrets.iter().flat_map(|secret| secret.parts.iter().chain([&secret.whole]));
    let mut sought: Vec<&str> = all.map(|secret| &**secret).filter(|one| one.len() >= SHORTEST).collect();
    if sought.is_empty() {
        return text.to_owned();
    }
    // One may be a part of another.
    sought.sort_by_key(|secret| Reverse(secret.len()));
    let (mut shown, mut rest) = (String::with_capacity(text.len()), text);
    while let Some(first) = rest.chars().next() {
        let found: Vec<Found> = sought.iter().map(|one| find(rest.as_bytes(), one.as_bytes())).collect();
        let whole = found.iter().find_map(|found| match found {
            Found::Whole(length) => rest.get(*length..),
            Found::Beginning | Found::Nothing => None,
        });
        if let Some(after) = whole {
            shown.push_str(HIDDEN);
            rest = after;
        } else if is_cut && found.contains(&Found::Beginning) {
            break;
        } else {
            shown.push(first);
            rest = rest.get(first.len_utf8()..).unwrap_or_default();
        }
    }
    shown
}

/// The same for all texts and keys of a JSON value, and for numbers that are secrets.
pub(crate) fn hide_in(value: Value, secrets: &[Secret]) -> Value {
    match value {
        Value::String(text) => Value::String(hide(&text, secrets, false)),
        Value::Array(values) => values.into_iter().map(|value| hide_in(value, secrets)).collect(),
        Value::Object(fields) => {
            let hidden =
                |(key, value): (String, Value)| (hide(&key, secrets, false), hide_in(value, secrets));
            Value::Object(fields.into_iter().map(hidden).collect())
        }
        Value::Number(number) => {
            let (text, value) = (number.to_string(), Value::Number(number));
            let shown = hide(&text, secrets, false);
            if shown == text { value } else { Value::String(shown) }
        }
        Value::Null | Value::Bool(_) => value,
    }
}

/// What there is of a secret at the beginning of a text.
#[derive(Debug, PartialEq, Eq)]
enum Found {
    /// All of it, in so many bytes.
    Whole(usize),
    /// The text ends before the secret does.
    Beginning,
    Nothing,
}

fn find(text: &[u8], secret: &[u8]) -> Found {
    let mut rest = text;
    for byte in secret {
        let ends = rest.is_empty() || matches!(rest, [b'%', ..] if rest.len() < 3);
        match written(rest, *byte).and_then(|length| rest.get(length..)) {
            Some(after) => rest = after,
            None if ends || (rest.len() < 6 && matches!(rest, [b'\\'] | [b'\\', b'u', ..])) => {
                return Found::Beginning;
            }
            None => return Found::Nothing,
        }
    }
    Found::Whole(text.len() - rest.len())
}

/// In how many bytes a text begins with that byte: as it is, as addresses write it (`%2F`, `+`) or as JSON does (`\/`,
/// `\u002f`).
fn written(text: &[u8], byte: u8) -> Option<usize> {
    let number = |digits: &[u8]| {
        let digits = std::str::from_utf8(digits).ok()?;
        u32::from_str_radix(digits, 16).ok()
    };
    match text {
        [b'%', high, low, ..] if number(&[*high, *low]) == Some(byte.into()) => Some(3),
        [b'\\', b'u', a, b, c, d, ..]
            if byte.is_ascii() && number(&[*a, *b, *c, *d]) == Some(byte.into()) =>
        {
            Some(6)
        }
        [b'\\', escaped, ..] if *escaped == byte && matches!(byte, b'/' | b'"' | b'\\') => Some(2),
        [first, ..] if *first == byte => Some(1),
        [b'+', ..] if byte == b' ' => Some(1),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_is_not_shown_and_is_taken_out_of_what_comes_back() {
        let secret = Secret::new("hunter2");
        assert_eq!(format!("{secret:?}"), "Secret(…)");
        assert_eq!(hide("you said hunter2.", &[secret], false), "you said [secret].");
    }

    #[test]
    fn a_secret_is_found_however_it_is_written() {
        let environment = |_: &str| Some("ab c/D\"é+9".to_owned());
        let secret = Secret::expand("Bearer ${TOKEN}", environment).unwrap();
        for (text, expected) in [
            ("<Bearer ab c/D\"é+9>", "<[secret]>"),
            ("<ab c/D\"é+9>", "<[secret]>"),
            ("<ab+c%2FD%22%C3%A9%2B9>", "<[secret]>"),
            ("<ab%20c%2fD%22%c3%a9+9>", "<[secret]>"),
            ("<ab c\\/D\\\"é+9>", "<[secret]>"),
            ("<\\u0061b c\\u002fD\\u0022é+9>", "<[secret]>"),
            ("ab c/D and ü %2", "ab c/D and ü %2"),
        ] {
            assert_eq!(hide(text, std::slice::from_ref(&secret), false), expected, "{text}");
        }
    }

    #[test]
    fn the_beginning_of_a_secret_at_a_cut_is_left_out() {
        let secret = [Secret::new("abc/DEF")];
        for cut in ["so abc/DE", "so ab", "so abc%2", "so abc%", "so abc\\u00", "so abc\\"] {
            assert_eq!(hide(cut, &secret, true), "so ", "{cut}");
            assert_eq!(hide(cut, &secret, false), cut, "whole texts may end so");
        }
        assert_eq!(hide("so abc/DEF", &secret, true), "so [secret]");
        assert_eq!(hide("so abd", &secret, true), "so abd");
    }

    #[test]
    fn secrets_are_taken_out_of_texts_keys_and_numbers_of_json() {
        let secrets = [Secret::new("hunter2"), Secret::new("123456789")];
        let value = serde_json::json!({"hunter2": ["a hunter2", {"n": 123_456_789}], "m": 12, "b": true});
        let hidden = serde_json::json!({"[secret]": ["a [secret]", {"n": "[secret]"}], "m": 12, "b": true});
        assert_eq!(hide_in(value, &secrets), hidden);
    }

    #[test]
    fn a_variable_that_is_missing_or_half_written_is_an_error_that_says_what_to_do() {
        let expand = |text| Secret::expand(text, |_| None).unwrap_err().message().to_owned();
        assert_eq!(expand("${A}"), "the environment has no `A`: set it and start again");
        assert!(expand("$A").starts_with("a `$` stands alone"));
        assert!(expand("${A").starts_with("a `$` stands alone"));
        assert_eq!(Secret::expand("a$$b", |_| None).unwrap().reveal(), "a$b");
    }
}
