//! Sums of tokens and money, by model.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use smol_str::SmolStr;
use umbel_core::{Error, ErrorKind, Result, Run, State, Usage};

use super::book::{self, Book};
use super::prices::Money;

/// What calls of a model took, added up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Tally {
    /// How often the model was asked. Attempts that failed or were rejected count too.
    #[serde(skip_serializing_if = "is_zero")]
    pub calls: u64,
    /// Answers of which the model did not tell what they took.
    #[serde(skip_serializing_if = "is_zero")]
    pub unreported: u64,
    /// Answers whose price is not known.
    #[serde(skip_serializing_if = "is_zero")]
    pub unpriced: u64,
    /// Tokens of prompts, from caches or not.
    #[serde(skip_serializing_if = "is_zero")]
    pub prompt: u64,
    /// Those of them that came from a cache.
    #[serde(skip_serializing_if = "is_zero")]
    pub cached: u64,
    /// Those of them that were put into a cache.
    #[serde(skip_serializing_if = "is_zero")]
    pub cache_writes: u64,
    /// Tokens of answers, without thoughts.
    #[serde(skip_serializing_if = "is_zero")]
    pub answer: u64,
    /// Tokens of thoughts.
    #[serde(skip_serializing_if = "is_zero")]
    pub thoughts: u64,
    /// What is known of what it costs; see [`cost`](Self::cost).
    #[serde(skip_serializing_if = "is_free")]
    pub known_cost: Money,
}

#[allow(clippy::trivially_copy_pass_by_ref)] // The form that serde asks for.
fn is_zero(count: &u64) -> bool {
    *count == 0
}

#[allow(clippy::trivially_copy_pass_by_ref)] // The form that serde asks for.
fn is_free(cost: &Money) -> bool {
    *cost == Money::ZERO
}

impl Tally {
    /// All tokens: of prompts, answers and thoughts.
    pub fn tokens(&self) -> u64 {
        self.prompt.saturating_add(self.answer).saturating_add(self.thoughts)
    }

    /// What it costs. `None` if that is not known of all of it: then [`known_cost`](Self::known_cost) is not all.
    pub fn cost(&self) -> Option<Money> {
        (self.unreported == 0 && self.unpriced == 0).then_some(self.known_cost)
    }

    /// What a model told about one answer. A provider that tells only the sum means the prompt with what is left of it.
    pub(super) fn told(usage: &Usage) -> Self {
        let answer = usage.candidates_token_count.unwrap_or(0);
        let thoughts = usage.thoughts_token_count.unwrap_or(0);
        let rest = || usage.total_token_count.unwrap_or(0).saturating_sub(answer.saturating_add(thoughts));
        Self {
            prompt: usage.prompt_token_count.unwrap_or_else(rest),
            cached: usage.cached_content_token_count.unwrap_or(0),
            cache_writes: usage.cache_write_token_count.unwrap_or(0),
            answer,
            thoughts,
            ..Self::default()
        }
    }

    pub(super) fn add(&mut self, other: &Self) {
        self.each(other, u64::saturating_add);
        self.known_cost = self.known_cost.plus(other.known_cost);
    }

    pub(super) fn subtract(&mut self, other: &Self) {
        self.each(other, u64::saturating_sub);
        self.known_cost = self.known_cost.minus(other.known_cost);
    }

    fn each(&mut self, other: &Self, with: impl Fn(u64, u64) -> u64) {
        self.calls = with(self.calls, other.calls);
        self.unreported = with(self.unreported, other.unreported);
        self.unpriced = with(self.unpriced, other.unpriced);
        self.prompt = with(self.prompt, other.prompt);
        self.cached = with(self.cached, other.cached);
        self.cache_writes = with(self.cache_writes, other.cache_writes);
        self.answer = with(self.answer, other.answer);
        self.thoughts = with(self.thoughts, other.thoughts);
    }
}

/// What a run or a session has used, by model. It is counted where a [`UsageLedger`](crate::handlers::UsageLedger) or a
/// [`UsageLimit`](crate::handlers::UsageLimit) is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Used(BTreeMap<SmolStr, Tally>);

/// What a session remembers.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct Stored {
    /// Its last run.
    pub(super) run: Used,
    /// All its runs.
    pub(super) session: Used,
    /// It and those that work for it, each by itself, if it works for another one itself.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub(super) pages: BTreeMap<SmolStr, Used>,
}

impl Stored {
    /// What is in a session's state.
    pub(super) fn read(state: &State) -> Result<Option<Self>> {
        let Some(value) = state.get(book::KEY).filter(|value| !value.is_null()) else { return Ok(None) };
        let stored = Self::deserialize(value).map_err(|e| {
            let message = format!("what the session has used cannot be read from `{}`: {e}", book::KEY);
            Error::new(ErrorKind::Corrupt, message).with_source(e)
        })?;
        Ok(Some(stored))
    }
}

impl Used {
    /// What a run has used so far, with all that works for it. A run that works for a call tells of the one that all began
    /// with. `None` if nobody counts.
    pub fn by_run(run: &Run) -> Option<Self> {
        Book::of(run).map(|book| book.run())
    }

    /// What the session of a run has used so far, this run included. `None` if nobody counts.
    pub fn by_session(run: &Run) -> Option<Self> {
        Book::of(run).map(|book| book.session())
    }

    /// What a session has used, told by its state. `None` if nobody counted.
    pub fn session_in(state: &State) -> Result<Option<Self>> {
        Ok(Stored::read(state)?.map(|stored| stored.session))
    }

    /// What the last run of a session has used, told by its state. `None` if nobody counted.
    pub fn last_run_in(state: &State) -> Result<Option<Self>> {
        Ok(Stored::read(state)?.map(|stored| stored.run))
    }

    /// All models together.
    pub fn total(&self) -> Tally {
        let mut total = Tally::default();
        self.0.values().for_each(|tally| total.add(tally));
        total
    }

    /// One model, by its name.
    pub fn model(&self, name: &str) -> Option<&Tally> {
        self.0.get(name)
    }

    /// Each model.
    pub fn models(&self) -> impl Iterator<Item = (&str, &Tally)> {
        self.0.iter().map(|(name, tally)| (name.as_str(), tally))
    }

    pub(super) fn tally(&mut self, model: &SmolStr) -> &mut Tally {
        self.0.entry(model.clone()).or_default()
    }

    /// Whether it was known later than another one of the same place.
    pub(super) fn is_beyond(&self, other: &Self) -> bool {
        let known = |used: &Self| {
            let total = used.total();
            (total.calls, total.tokens(), total.unreported)
        };
        known(self) > known(other)
    }

    pub(super) fn add(&mut self, other: &Self) {
        for (model, tally) in &other.0 {
            self.tally(model).add(tally);
        }
    }
}
