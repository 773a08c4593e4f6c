//! Tables of a TOML file, read key by key. Each wrong value is noted and the reading goes on, so that all that is wrong is
//! told at once; the keys that nobody asked for are unknown.

use std::cell::RefCell;
use std::ops::Range;
use std::time::Duration;

use serde_json::Value;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::problem::{Problem, nearest};

/// Where problems are noted.
#[derive(Debug, Default)]
pub(super) struct Problems(RefCell<Vec<Problem>>);

impl Problems {
    /// Notes what is wrong at a place.
    pub(super) fn note(&self, at: &Range<usize>, message: impl Into<String>) {
        self.0.borrow_mut().push(Problem { at: at.clone(), message: message.into(), hint: None });
    }

    /// The same, with what to do.
    pub(super) fn hint(&self, at: &Range<usize>, message: impl Into<String>, hint: impl Into<String>) {
        let problem = Problem { at: at.clone(), message: message.into(), hint: Some(hint.into()) };
        self.0.borrow_mut().push(problem);
    }

    /// Notes a name that is not known, with the one that was most likely meant.
    pub(super) fn unknown(&self, at: &Range<usize>, what: &str, name: &str, known: &[&str]) {
        let hint = match nearest(name, known.iter().copied()) {
            Some(meant) => format!("did you mean `{meant}`?"),
            None => format!("known are: {}", known.join(", ")),
        };
        self.hint(at, format!("{what} `{name}` is not known"), hint);
    }

    pub(super) fn take(&self) -> Vec<Problem> {
        self.0.take()
    }

    /// How many there are so far.
    pub(super) fn count(&self) -> usize {
        self.0.borrow().len()
    }
}

/// A value with its place.
#[derive(Clone, Debug)]
pub(super) struct At<T> {
    pub(super) value: T,
    pub(super) at: Range<usize>,
}

/// A table that is being read.
pub(super) struct Table<'a> {
    problems: &'a Problems,
    entries: &'a DeTable<'a>,
    /// Its place: that of its name, if it has one.
    pub(super) at: Range<usize>,
    asked: RefCell<Vec<&'a str>>,
}

impl<'a> Table<'a> {
    pub(super) fn new(problems: &'a Problems, entries: &'a DeTable<'a>, at: Range<usize>) -> Self {
        Self { problems, entries, at, asked: RefCell::default() }
    }

    /// A value that should be a table.
    pub(super) fn of(problems: &'a Problems, value: &'a Spanned<DeValue<'a>>) -> Option<Self> {
        match value.get_ref() {
            DeValue::Table(entries) => Some(Self::new(problems, entries, value.span())),
            other => {
                problems.note(&value.span(), format!("this must be a table, and is {}", kind(other)));
                None
            }
        }
    }

    /// The value of a key.
    pub(super) fn get(&self, key: &'static str) -> Option<&'a Spanned<DeValue<'a>>> {
        self.asked.borrow_mut().push(key);
        self.entries.iter().find(|(name, _)| name.get_ref() == key).map(|(_, value)| value)
    }

    /// Takes a key as known that was not asked for.
    pub(super) fn know(&self, key: &'a str) {
        self.asked.borrow_mut().push(key);
    }

    /// All keys and values, in the order of the file. Every key is known.
    pub(super) fn all(&self) -> Vec<(At<&'a str>, &'a Spanned<DeValue<'a>>)> {
        let mut all: Vec<_> = self
            .entries
            .iter()
            .map(|(name, value)| (At { value: name.get_ref().as_ref(), at: name.span() }, value))
            .collect();
        all.sort_by_key(|(name, _)| name.at.start);
        all
    }

    fn read<T>(
        &self,
        key: &'static str,
        wanted: &str,
        read: impl FnOnce(&'a DeValue<'a>) -> Option<T>,
    ) -> Option<At<T>> {
        let value = self.get(key)?;
        match read(value.get_ref()) {
            Some(read) => Some(At { value: read, at: value.span() }),
            None => {
                let message = format!("`{key}` must be {wanted}, and is {}", kind(value.get_ref()));
                self.problems.note(&value.span(), message);
                None
            }
        }
    }

    pub(super) fn text(&self, key: &'static str) -> Option<At<&'a str>> {
        self.read(key, "a text", DeValue::as_str)
    }

    pub(super) fn flag(&self, key: &'static str) -> bool {
        self.read(key, "true or false", DeValue::as_bool).is_some_and(|flag| flag.value)
    }

    /// A value that may be left out.
    pub(super) fn maybe_flag(&self, key: &'static str) -> Option<bool> {
        self.read(key, "true or false", DeValue::as_bool).map(|flag| flag.value)
    }

    /// A whole number that fits.
    pub(super) fn whole<T: TryFrom<i64>>(&self, key: &'static str) -> Option<T> {
        let fits = |value: &DeValue<'_>| integer(value).and_then(|number| T::try_from(number).ok());
        self.read(key, "a whole number that is not too large and not below 0", fits)
            .map(|number| number.value)
    }

    pub(super) fn number(&self, key: &'static str) -> Option<f64> {
        self.read(key, "a number", number).map(|number| number.value)
    }

    pub(super) fn seconds(&self, key: &'static str) -> Option<Duration> {
        let seconds = |value: &DeValue<'_>| Duration::try_from_secs_f64(number(value)?).ok();
        self.read(key, "a number of seconds", seconds).map(|time| time.value)
    }

    /// A list of texts.
    pub(super) fn texts(&self, key: &'static str) -> Vec<At<&'a str>> {
        self.list(key).into_iter().filter_map(|value| self.text_of(value)).collect()
    }

    /// A list of anything.
    pub(super) fn list(&self, key: &'static str) -> Vec<&'a Spanned<DeValue<'a>>> {
        let list = self.read(key, "a list", DeValue::as_array);
        list.map(|list| list.value.iter().collect()).unwrap_or_default()
    }

    fn text_of(&self, value: &'a Spanned<DeValue<'a>>) -> Option<At<&'a str>> {
        match value.get_ref().as_str() {
            Some(text) => Some(At { value: text, at: value.span() }),
            None => {
                let message = format!("this must be a text, and is {}", kind(value.get_ref()));
                self.problems.note(&value.span(), message);
                None
            }
        }
    }

    /// A table in the table.
    pub(super) fn table(&self, key: &'static str) -> Option<Table<'a>> {
        Table::of(self.problems, self.get(key)?)
    }

    /// One of a few words.
    pub(super) fn choice<T: Copy>(&self, key: &'static str, words: &[(&str, T)]) -> Option<T> {
        let text = self.text(key)?;
        let found = words.iter().find(|(word, _)| *word == text.value);
        if found.is_none() {
            let known: Vec<&str> = words.iter().map(|(word, _)| *word).collect();
            self.problems.unknown(&text.at, &format!("the {key}"), text.value, &known);
        }
        found.map(|(_, value)| *value)
    }

    /// Notes the keys that nobody asked for.
    pub(super) fn finish(self) {
        let mut known = self.asked.into_inner();
        known.sort_unstable();
        known.dedup();
        for (name, _) in self.entries {
            if !known.contains(&name.get_ref().as_ref()) {
                self.problems.unknown(&name.span(), "the key", name.get_ref(), &known);
            }
        }
    }
}

/// What a value is, in words.
pub(super) fn kind(value: &DeValue<'_>) -> &'static str {
    match value {
        DeValue::String(_) => "a text",
        DeValue::Integer(_) | DeValue::Float(_) => "a number",
        DeValue::Boolean(_) => "true or false",
        DeValue::Datetime(_) => "a date",
        DeValue::Array(_) => "a list",
        DeValue::Table(_) => "a table",
    }
}

fn integer(value: &DeValue<'_>) -> Option<i64> {
    let value = value.as_integer()?;
    i64::from_str_radix(value.as_str(), value.radix()).ok()
}

fn number(value: &DeValue<'_>) -> Option<f64> {
    let number = match value {
        DeValue::Integer(_) => integer(value).map(|number| number as f64),
        DeValue::Float(float) => float.as_str().parse().ok(),
        _ => None,
    };
    number.filter(|number: &f64| number.is_finite())
}

/// A value as JSON, such as a schema.
pub(super) fn json(value: &DeValue<'_>) -> Value {
    match value {
        DeValue::String(text) => Value::String(text.to_string()),
        DeValue::Integer(_) => integer(value).map_or(Value::Null, Value::from),
        DeValue::Float(_) => number(value).map_or(Value::Null, Value::from),
        DeValue::Boolean(flag) => Value::Bool(*flag),
        DeValue::Datetime(date) => Value::String(date.to_string()),
        DeValue::Array(values) => Value::Array(values.iter().map(|value| json(value.get_ref())).collect()),
        DeValue::Table(entries) => {
            // In the order of the file, which says what matters most.
            let mut entries: Vec<_> = entries.iter().collect();
            entries.sort_by_key(|(name, _)| name.span().start);
            let entries =
                entries.into_iter().map(|(name, value)| (name.get_ref().to_string(), json(value.get_ref())));
            Value::Object(entries.collect())
        }
    }
}
