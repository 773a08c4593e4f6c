//! The arguments of a call while they are still coming in.

use serde_json::{Number, Value};
use umbel_core::{Object, PartialArg};

/// Arguments that a model writes as the text of a JSON object, piece by piece.
///
/// Those that are texts are told while they come, and other plain values as soon as they are complete. What lies deeper is
/// told with the whole of them: [`Arguments::finish`].
#[derive(Debug, Default)]
pub(crate) struct Arguments {
    text: String,
    /// How far the text was looked at.
    seen: usize,
    place: Place,
    /// The path of the argument that is being read.
    path: String,
    /// Those that came by their paths instead.
    by_path: Object,
}

/// Where the reading stands.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
enum Place {
    /// Before the object, or between its entries.
    #[default]
    Between,
    /// In the name of an argument that began there.
    Name(usize),
    /// Behind the name.
    Named,
    /// In a text.
    Text,
    /// In a number or a word that began there.
    Plain(usize),
    /// So deep in something that is not told in pieces; in a text there or not.
    Deep(u32, bool),
    /// Nothing more can be told in pieces.
    Done,
}

impl Arguments {
    /// Adds more of the text. Gives what can be told of it.
    pub(crate) fn push(&mut self, more: &str) -> Vec<PartialArg> {
        self.text.push_str(more);
        let mut told = Vec::new();
        while let Some(next) = self.step(&mut told) {
            self.seen = next;
        }
        told
    }

    /// Adds a piece of one that comes by its path.
    pub(crate) fn put(&mut self, piece: &PartialArg) {
        piece.put_into(&mut self.by_path);
    }

    /// All of them, or the text if it is no JSON object. No text at all is no arguments.
    pub(crate) fn finish(self) -> Result<Object, String> {
        if self.text.trim().is_empty() {
            return Ok(self.by_path);
        }
        match serde_json::from_str(&self.text) {
            Ok(Value::Object(args)) => Ok(args),
            Ok(Value::Null) => Ok(Object::new()),
            _ => Err(self.text),
        }
    }

    /// Looks at what comes next, and gives where to look then. Nothing if that is not there yet.
    fn step(&mut self, told: &mut Vec<PartialArg>) -> Option<usize> {
        let rest = self.text.get(self.seen..)?;
        let first = *rest.as_bytes().first()?;
        let next = self.seen + 1;
        let (place, next) = match self.place {
            Place::Done => return None,
            Place::Between => match first {
                b'"' => (Place::Name(self.seen), next),
                b'{' | b',' | b' ' | b'\n' | b'\r' | b'\t' => (Place::Between, next),
                _ => (Place::Done, next),
            },
            Place::Name(start) => {
                let end = self.seen + quote(rest)? + 1;
                let name =
                    self.text.get(start..end).and_then(|name| serde_json::from_str::<String>(name).ok());
                match name {
                    Some(name) => {
                        self.path = path_to(&name);
                        (Place::Named, end)
                    }
                    None => (Place::Done, end),
                }
            }
            Place::Named => match first {
                b':' | b' ' | b'\n' | b'\r' | b'\t' => (Place::Named, next),
                b'"' => (Place::Text, next),
                b'{' | b'[' => (Place::Deep(1, false), next),
                _ => (Place::Plain(self.seen), next),
            },
            Place::Text => return self.step_text(told),
            Place::Plain(start) => {
                let end = self.seen + rest.find([',', '}', ' ', '\n', '\r', '\t'])?;
                let value = self.text.get(start..end).and_then(|value| serde_json::from_str(value).ok());
                told.extend(value.and_then(|value| self.plain(value)));
                (Place::Between, end)
            }
            Place::Deep(depth, true) => match first {
                b'"' => (Place::Deep(depth, false), next),
                b'\\' if rest.len() < 2 => return None,
                // What is escaped may be of several bytes, none of which is a quote.
                b'\\' => (self.place, next + rest.chars().nth(1).map_or(1, char::len_utf8)),
                _ => (self.place, self.seen + rest.find(['"', '\\']).unwrap_or(rest.len())),
            },
            Place::Deep(depth, false) => match first {
                b'"' => (Place::Deep(depth, true), next),
                b'{' | b'[' => (Place::Deep(depth + 1, false), next),
                b'}' | b']' if depth == 1 => (Place::Between, next),
                b'}' | b']' => (Place::Deep(depth - 1, false), next),
                _ => (self.place, self.seen + rest.find(['"', '{', '[', '}', ']']).unwrap_or(rest.len())),
            },
        };
        self.place = place;
        Some(next)
    }

    /// Tells what is there of a text. An escape is told once all of it is there.
    fn step_text(&mut self, told: &mut Vec<PartialArg>) -> Option<usize> {
        let rest = self.text.get(self.seen..)?;
        let end = quote(rest);
        let whole = end.unwrap_or_else(|| complete(rest));
        let piece = rest.get(..whole)?;
        let words = if piece.contains('\\') {
            serde_json::from_str::<String>(&format!("\"{piece}\"")).ok()
        } else {
            Some(piece.to_owned())
        };
        let Some(words) = words else {
            self.place = Place::Done;
            return None;
        };
        if !words.is_empty() || end.is_some() {
            let open = end.is_none().then_some(true);
            told.push(PartialArg { string_value: Some(words), will_continue: open, ..self.arg() });
        }
        if end.is_some() {
            self.place = Place::Between;
        }
        let next = self.seen + whole + usize::from(end.is_some());
        (next > self.seen).then_some(next)
    }

    fn arg(&self) -> PartialArg {
        PartialArg { json_path: Some(self.path.clone()), ..PartialArg::default() }
    }

    fn plain(&self, value: Value) -> Option<PartialArg> {
        let number = |number: Number| PartialArg { number_value: Some(number), ..self.arg() };
        match value {
            Value::Null => Some(PartialArg { null_value: Some(Value::Null), ..self.arg() }),
            Value::Bool(flag) => Some(PartialArg { bool_value: Some(flag), ..self.arg() }),
            Value::Number(value) => Some(number(value)),
            _ => None,
        }
    }
}

/// The path of an argument.
fn path_to(name: &str) -> String {
    let plain = !name.is_empty() && name.chars().all(|c| c.is_alphanumeric() || matches!(c, '_' | '-'));
    if plain { format!("$.{name}") } else { format!("$[{}]", Value::from(name)) }
}

/// Where the quote stands that ends a text.
fn quote(text: &str) -> Option<usize> {
    let mut from = 0;
    loop {
        let at = from + text.get(from..)?.find(['"', '\\'])?;
        if text.as_bytes().get(at) == Some(&b'"') {
            return Some(at);
        }
        from = at + 1 + text.get(at + 1..)?.chars().next()?.len_utf8();
    }
}

/// How much of an open text is complete: up to an escape that is still coming. Of two escapes that are one character
/// together, both have to be there.
fn complete(text: &str) -> usize {
    let mut at = 0;
    while let Some(found) = text.get(at..).and_then(|rest| rest.find('\\')) {
        let start = at + found;
        let escape = |from: usize| match text.as_bytes().get(from + 1) {
            Some(b'u') => {
                text.get(from + 2..from + 6).map(|code| (from + 6, u16::from_str_radix(code, 16).ok()))
            }
            Some(_) if text.is_char_boundary(from + 2) => Some((from + 2, None)),
            _ => None,
        };
        at = match escape(start) {
            None => return start,
            Some((end, Some(0xd800..=0xdbff))) => match escape(end) {
                Some((both, _)) => both,
                None if text.len() > end + 5 => end,
                None => return start,
            },
            Some((end, _)) => end,
        };
    }
    text.len()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    /// What the pieces make together.
    fn joined(told: Vec<PartialArg>) -> Object {
        let mut args = Object::new();
        for arg in told {
            let path = arg.json_path.unwrap();
            let name = path.strip_prefix("$.").unwrap_or(&path).to_owned();
            let value = match arg {
                PartialArg { string_value: Some(more), .. } => {
                    let before = args.get(&name).and_then(Value::as_str).unwrap_or_default();
                    json!(format!("{before}{more}"))
                }
                PartialArg { number_value: Some(number), .. } => Value::Number(number),
                PartialArg { bool_value: Some(flag), .. } => json!(flag),
                _ => Value::Null,
            };
            args.insert(name, value);
        }
        args
    }

    const TEXT: &str = r#" {"city":"Zü\"rich\u00fc \ud83d\ude00\n", "deep": {"a":["]}\"",{"b":"x"}]}, "days" : -3.5e1,
        "sure":true,"none": null,"empty":"","odd key":"v", "last":7}"#;

    #[test]
    fn texts_and_plain_values_are_told_while_they_come_wherever_the_text_is_split() {
        let whole: Object = serde_json::from_str(TEXT).unwrap();
        let mut expected = whole.clone();
        expected.shift_remove("deep");
        let odd = expected.shift_remove("odd key").unwrap();
        expected.insert("$[\"odd key\"]".to_owned(), odd);
        let check = |pieces: Vec<&str>| {
            let mut args = Arguments::default();
            let told = pieces.iter().flat_map(|piece| args.push(piece)).collect();
            assert_eq!(Value::Object(joined(told)), Value::Object(expected.clone()), "{pieces:?}");
            assert_eq!(args.finish().unwrap(), whole);
        };
        for at in (0..=TEXT.len()).filter(|at| TEXT.is_char_boundary(*at)) {
            check(vec![&TEXT[..at], &TEXT[at..]]);
        }
        let single: Vec<String> = TEXT.chars().map(String::from).collect();
        check(single.iter().map(String::as_str).collect());
    }

    #[test]
    fn a_long_text_is_told_before_its_end() {
        let mut args = Arguments::default();
        assert_eq!(
            args.push("{\"note\":\"Once "),
            [PartialArg {
                json_path: Some("$.note".to_owned()),
                string_value: Some("Once ".to_owned()),
                will_continue: Some(true),
                ..PartialArg::default()
            }]
        );
    }

    #[test]
    fn what_is_no_object_is_given_back_and_nothing_is_nothing() {
        let finish = |text: &str| {
            let mut args = Arguments::default();
            args.push(text);
            args.finish()
        };
        for text in
            ["{\"a\":", "[1]", "\"x\"", "{\"a\" 1}", "{\"a\":\"\\x\"}", "{\"a\":\"\\ud800\"}", "{{", "\\"]
        {
            assert_eq!(finish(text), Err(text.to_owned()));
        }
        for text in ["", "  ", "null", "{}"] {
            assert_eq!(finish(text), Ok(Object::new()));
        }
    }
}
