//! The models of agents: by name, or a script.

use std::sync::Arc;

use serde_json::Value;
use toml::Spanned;
use toml::de::DeValue;
use umbel::{Chunk, Content, FunctionCall, Model, Object, Part, Response, Result, Role, ScriptedModel};

use super::table::{Problems, Table, json};
use crate::Setup;
use crate::args::shown;

/// Gives models to agents.
pub(super) struct Models<'a> {
    pub(super) setup: &'a Setup,
}

/// A model, and what it is in words.
#[derive(Clone)]
pub(super) struct Chosen {
    pub(super) model: Arc<dyn Model>,
    pub(super) words: String,
}

impl Models<'_> {
    /// The model of that name; its key comes from the environment.
    pub(super) fn named(&self, name: &str) -> Result<Arc<dyn Model>> {
        Ok(Arc::new(umbel::models::model(name)?))
    }

    /// The model for agents that name none: that of the command line, or one that the environment has a key for.
    pub(super) fn usual(&self) -> Result<Option<Chosen>> {
        let found = self.setup.find_model()?;
        Ok(found.map(|found| Chosen { words: shown(&found.name), model: Arc::new(found.model) }))
    }
}

/// One answer of a script.
#[derive(Clone, Debug, Default)]
struct Answer {
    thought: Option<String>,
    says: Option<String>,
    calls: Vec<(String, Object)>,
}

/// A model that answers from a list, one after the other in each conversation, and then from the beginning.
pub(super) fn script<'a>(problems: &'a Problems, list: &[&'a Spanned<DeValue<'a>>]) -> Chosen {
    let answers: Vec<Answer> = list.iter().filter_map(|value| answer(problems, value)).collect();
    let model = ScriptedModel::from_fn("script", move |request| {
        let own = request.contents.iter().filter(|content| content.role == Some(Role::Model)).count();
        let answer = own.checked_rem(answers.len()).and_then(|place| answers.get(place));
        answer.map(said).unwrap_or_else(|| vec![Ok(Chunk::Text(String::new()))])
    });
    Chosen { model: Arc::new(model), words: "a script".to_owned() }
}

fn answer<'a>(problems: &'a Problems, value: &'a Spanned<DeValue<'a>>) -> Option<Answer> {
    if let Some(text) = value.get_ref().as_str() {
        return Some(Answer { says: Some(text.to_owned()), ..Answer::default() });
    }
    let table = Table::of(problems, value)?;
    let text = |key| table.text(key).map(|text| text.value.to_owned());
    let mut answer = Answer { thought: text("thought"), says: text("say"), calls: Vec::new() };
    let args = table.get("args").map(|args| json(args.get_ref()));
    if let Some(name) = text("call") {
        let args = match args {
            Some(Value::Object(args)) => args,
            _ => Object::new(),
        };
        answer.calls.push((name, args));
    }
    table.finish();
    Some(answer)
}

/// An answer as a model gives it, a word at a time.
fn said(answer: &Answer) -> Vec<Result<Chunk>> {
    let words = |text: &str| text.split_inclusive(' ').map(str::to_owned).collect::<Vec<_>>();
    let mut chunks: Vec<Result<Chunk>> = Vec::new();
    chunks.extend(answer.thought.iter().flat_map(|text| words(text)).map(|word| Ok(Chunk::Thought(word))));
    chunks.extend(answer.says.iter().flat_map(|text| words(text)).map(|word| Ok(Chunk::Text(word))));
    if !answer.calls.is_empty() {
        let mut parts: Vec<Part> = Vec::new();
        parts.extend(answer.says.clone().map(Part::text));
        parts.extend(
            answer.calls.iter().map(|(name, args)| Part::call(FunctionCall::new(name, args.clone()))),
        );
        return vec![Ok(Chunk::Complete(Response::new(Content::new(Role::Model, parts))))];
    }
    chunks
}
