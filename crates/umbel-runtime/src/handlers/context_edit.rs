//! Takes old tool results out of requests when a conversation grows long.

use std::collections::HashSet;
use std::fmt;
use std::sync::Arc;

use smol_str::SmolStr;
use umbel_core::{
    CallId, ChunkStream, Content, FunctionCall, FunctionResponse, Handler, History, ModelCall, NextModel,
    Object, Payload, Result, Role, Work,
};
use umbel_macros::handler;

use super::per_agent;
use super::token_counter::{ApproximateTokens, TokenCounter, count_all, running_count};
use crate::contents::pairing::answers;
use crate::text;

/// Clears old tool results when there are many tokens. A part of [`ContextEdit`].
#[derive(Clone, Debug, PartialEq)]
pub struct ClearResults {
    trigger: u64,
    keep: usize,
    at_least: u64,
    excluded: HashSet<SmolStr>,
    inputs: bool,
    placeholder: Arc<str>,
}

/// Above 100,000 tokens all results but the newest three are cleared.
impl Default for ClearResults {
    fn default() -> Self {
        Self {
            trigger: 100_000,
            keep: 3,
            at_least: 0,
            excluded: HashSet::new(),
            inputs: false,
            placeholder: text::CLEARED.into(),
        }
    }
}

impl ClearResults {
    /// Clears when the messages have more than so many tokens.
    pub fn above(tokens: u64) -> Self {
        Self { trigger: tokens, ..Self::default() }
    }

    /// How many of the newest results stay, those of excluded tools counted too.
    pub fn keep(mut self, results: usize) -> Self {
        self.keep = results;
        self
    }

    /// Stops once so many tokens were cleared, the oldest first. With 0 it clears all that it may.
    pub fn at_least(mut self, tokens: u64) -> Self {
        self.at_least = tokens;
        self
    }

    /// Never clears results of these tools.
    pub fn exclude<T: Into<SmolStr>>(mut self, tools: impl IntoIterator<Item = T>) -> Self {
        self.excluded.extend(tools.into_iter().map(Into::into));
        self
    }

    /// Clears the arguments of the calls too.
    pub fn inputs(mut self) -> Self {
        self.inputs = true;
        self
    }

    /// What stands in the place of a result.
    pub fn placeholder(mut self, words: impl Into<Arc<str>>) -> Self {
        self.placeholder = words.into();
        self
    }
}

/// Takes old tool results out of what the model is sent when a conversation grows long.
///
/// Only the request is changed: log and history keep the results, and another request may show them again.
///
/// ```
/// use umbel_runtime::handlers::{ClearResults, ContextEdit};
/// use umbel_runtime::{LlmAgent, ScriptedModel};
///
/// let edit = ContextEdit::of([ClearResults::above(50_000).keep(1).exclude(["plan"])]);
/// let agent = LlmAgent::new("guide").model(ScriptedModel::new("demo")).handler(edit);
/// ```
pub struct ContextEdit {
    edits: Vec<ClearResults>,
    counter: Arc<dyn TokenCounter>,
}

/// Results that someone further out has cleared.
struct Cleared(Vec<CallId>);

impl ContextEdit {
    /// Clears as [`ClearResults`] does by default.
    pub fn new() -> Self {
        Self::of([ClearResults::default()])
    }

    /// Makes these edits, one after the other; each sees what those before it left.
    pub fn of(edits: impl IntoIterator<Item = ClearResults>) -> Self {
        Self { edits: edits.into_iter().collect(), counter: Arc::new(ApproximateTokens::default()) }
    }

    /// Counts tokens in another way.
    pub fn counter(mut self, counter: impl TokenCounter + 'static) -> Self {
        self.counter = Arc::new(counter);
        self
    }

    /// The messages without what is to be cleared, and the calls whose results are gone, in order. `cleared` are those
    /// whose results were gone before; they stay as they are.
    pub fn edit(&self, history: &History, cleared: &[CallId]) -> (History, Vec<CallId>) {
        self.edit_counted(history, count_all(self.counter.as_ref(), history), cleared)
    }

    fn edit_counted(&self, history: &History, tokens: u64, cleared: &[CallId]) -> (History, Vec<CallId>) {
        if !self.is_due(tokens) {
            return (history.clone(), cleared.to_vec());
        }
        let mut draft = Draft {
            counter: self.counter.as_ref(),
            results: results(history, cleared),
            history: history.clone(),
            tokens,
        };
        for edit in self.edits.iter() {
            if draft.tokens > edit.trigger {
                draft.clear(edit);
            }
        }
        let gone = draft.results.into_iter().filter(|result| result.cleared).filter_map(|result| result.id);
        (draft.history, gone.collect())
    }

    fn is_due(&self, tokens: u64) -> bool {
        self.edits.iter().any(|edit| tokens > edit.trigger)
    }
}

impl Default for ContextEdit {
    fn default() -> Self {
        Self::new()
    }
}

#[handler(crate = umbel_core)]
impl Handler for ContextEdit {
    fn name(&self) -> &str {
        "context-edit"
    }

    fn wrap_model<'a>(
        &'a self,
        mut call: ModelCall<'a>,
        next: NextModel<'a>,
    ) -> Work<'a, Result<ChunkStream<'a>>> {
        let contents = &call.request.contents;
        let tokens = running_count(call.run(), per_agent::identity(self), &self.counter, contents);
        if self.is_due(tokens) {
            let before = call.extensions.get::<Cleared>();
            let before = before.as_ref().map_or(&[][..], |cleared| &cleared.0);
            let (edited, cleared) = self.edit_counted(contents, tokens, before);
            call.request.contents = edited;
            call.extensions.insert(Cleared(cleared));
        }
        Work::later(next.call(call))
    }
}

impl fmt::Debug for ContextEdit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ContextEdit").field("edits", &self.edits).finish()
    }
}

/// A tool's result among the messages.
struct Found {
    id: Option<CallId>,
    /// Message and part.
    place: (usize, usize),
    /// Message and part of its call; absent if the model's last message before it has no such call.
    call: Option<(usize, usize)>,
    tool: SmolStr,
    cleared: bool,
}

/// All results, in order.
fn results(history: &History, cleared: &[CallId]) -> Vec<Found> {
    let cleared: HashSet<&CallId> = cleared.iter().collect();
    let mut found = Vec::new();
    // The calls of the model's last message. One without an id is gone once a result was found for it.
    let mut open: Vec<((usize, usize), &FunctionCall)> = Vec::new();
    for (index, message) in history.iter().enumerate() {
        if message.role == Some(Role::Model) {
            open.clear();
        }
        for (part, payload) in message.parts.iter().enumerate() {
            match &payload.payload {
                Payload::Call(call) => open.push(((index, part), call)),
                Payload::Response(response) => {
                    let place = open.iter().position(|(_, call)| answers(response, call));
                    let call = place.and_then(|place| open.get(place).copied());
                    if let Some(place) = place.filter(|_| response.id.is_none()) {
                        open.remove(place);
                    }
                    let named = Some(&response.name).filter(|name| !name.is_empty());
                    found.push(Found {
                        id: response.id.clone(),
                        place: (index, part),
                        tool: named.or(call.map(|(_, call)| &call.name)).cloned().unwrap_or_default(),
                        call: call.map(|(place, _)| place),
                        cleared: response.id.as_ref().is_some_and(|id| cleared.contains(id)),
                    });
                }
                _ => {}
            }
        }
    }
    found
}

/// A request in the making.
struct Draft<'a> {
    history: History,
    results: Vec<Found>,
    tokens: u64,
    counter: &'a dyn TokenCounter,
}

impl Draft<'_> {
    fn clear(&mut self, edit: &ClearResults) {
        let before = self.tokens;
        let old = self.results.len().saturating_sub(edit.keep);
        for index in 0..old {
            let Some(found) = self.results.get_mut(index).filter(|found| !found.cleared) else { continue };
            let Some(call) = found.call.filter(|_| !edit.excluded.contains(&found.tool)) else { continue };
            found.cleared = true;
            let place = found.place;
            self.change(place, |payload| {
                if let Payload::Response(response) = payload {
                    clear_result(response, &edit.placeholder);
                }
            });
            if edit.inputs {
                self.change(call, |payload| {
                    if let Payload::Call(call) = payload {
                        call.args = Some(Arc::default());
                    }
                });
            }
            if edit.at_least > 0 && before.saturating_sub(self.tokens) >= edit.at_least {
                return;
            }
        }
    }

    fn change(&mut self, (message, part): (usize, usize), change: impl FnOnce(&mut Payload)) {
        let Some(old) = self.history.get(message) else { return };
        let mut new: Content = (**old).clone();
        let Some(part) = new.parts.get_mut(part) else { return };
        change(&mut part.payload);
        let spared = self.counter.count(old);
        self.tokens = self.tokens.saturating_sub(spared) + self.counter.count(&new);
        self.history.replace(message, new);
    }
}

/// Leaves of a result that there was one, and whether it was an error.
fn clear_result(response: &mut FunctionResponse, placeholder: &str) {
    let is_error = response.response.as_ref().is_some_and(|response| response.contains_key("error"));
    let key = if is_error { "error" } else { "result" };
    response.response = Some(Object::from_iter([(key.to_owned(), placeholder.into())]));
    // Media that belong to it.
    response.unknown.shift_remove("parts");
}
