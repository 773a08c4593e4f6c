//! Other models in the place of one that failed.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use smol_str::SmolStr;
use umbel_core::{
    ChunkStream, Error, ErrorKind, Handler, Model, ModelCall, ModelErrorKind, NextModel, Object, Response,
    Result, Work,
};
use umbel_macros::handler;

use super::attempts::{Attempts, Judge, Next};

/// Asks other models in the place of one that failed, in order, whatever the error. What is too long for one is sent only
/// to those that are known to take more.
///
/// The error of the last one is the call's. What was shown of a failed answer is made void. A cancelled or interrupted
/// run asks nobody else. Settings that only the first model's provider knows are not sent to the others.
///
/// ```
/// use umbel_runtime::handlers::ModelFallback;
/// use umbel_runtime::{LlmAgent, ScriptedModel};
///
/// let (large, small) = (ScriptedModel::new("large").fail("overloaded"), ScriptedModel::new("small").text("Hello."));
/// let agent = LlmAgent::new("guide").model(large).handler(ModelFallback::new(small));
/// ```
#[derive(Clone, Debug)]
pub struct ModelFallback {
    models: Vec<Arc<dyn Model>>,
    sticky: bool,
}

/// For each first choice, the model that answered last in this run: 0 is the first choice itself.
#[derive(Default)]
struct Answered(Mutex<BTreeMap<SmolStr, usize>>);

impl ModelFallback {
    /// This model in the place of the agent's.
    pub fn new(model: impl Model + 'static) -> Self {
        Self { models: vec![Arc::new(model)], sticky: false }
    }

    /// This model if all before it failed.
    pub fn then(mut self, model: impl Model + 'static) -> Self {
        self.models.push(Arc::new(model));
        self
    }

    /// Whether the model that answered last is asked first for the rest of the run. Otherwise each call begins with the
    /// agent's own.
    pub fn sticky(mut self, sticky: bool) -> Self {
        self.sticky = sticky;
        self
    }

    /// A call as a model gets it: its first choice as it is, the others without what only the first understands.
    fn call<'a>(&self, first: &ModelCall<'a>, choice: usize) -> Option<ModelCall<'a>> {
        let mut call = first.clone();
        if choice > 0 {
            let model = self.models.get(choice - 1)?;
            call.request.model = model.name().into();
            call.model = model.clone();
            if !call.request.config.other.is_empty() {
                Arc::make_mut(&mut call.request.config).other = Object::new();
            }
        }
        Some(call)
    }
}

#[handler(crate = umbel_core)]
impl Handler for ModelFallback {
    fn name(&self) -> &str {
        "model-fallback"
    }

    fn wrap_model(&self, call: ModelCall<'_>, next: NextModel<'_>) -> Result<ChunkStream<'_>> {
        let mut choices: Vec<usize> = (0..=self.models.len()).rev().collect();
        if self.sticky {
            let answered = call.run().values().get_or_insert_with(Answered::default);
            let answered = answered.0.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some(last) = answered.get(&call.request.model) {
                choices.retain(|choice| choice != last);
                choices.push(*last);
            }
        }
        let mut judge = Choices { fallback: self, first: call, choices, choice: 0 };
        let first = judge.next_call().unwrap_or_else(|| judge.first.clone());
        Ok(Attempts::stream(first, next, judge))
    }
}

/// The models that can be asked in one call.
struct Choices<'a> {
    fallback: &'a ModelFallback,
    /// The call of the first choice.
    first: ModelCall<'a>,
    /// Those that were not asked yet, the next one last.
    choices: Vec<usize>,
    /// The one that is asked now.
    choice: usize,
}

impl<'a> Choices<'a> {
    fn next_call(&mut self) -> Option<ModelCall<'a>> {
        self.choice = self.choices.pop()?;
        self.fallback.call(&self.first, self.choice)
    }

    /// How many tokens a model takes in, if that is known.
    fn window(&self, choice: usize) -> Option<u32> {
        let other = |choice: usize| self.fallback.models.get(choice);
        let model = choice.checked_sub(1).map_or(Some(&self.first.model), other)?;
        model.capabilities().context_tokens
    }

    /// Leaves out those that would find the same too long.
    fn only_larger(&mut self) {
        let Some(window) = self.window(self.choice) else { return self.choices.clear() };
        let mut choices = std::mem::take(&mut self.choices);
        choices.retain(|choice| self.window(*choice).is_some_and(|other| other > window));
        self.choices = choices;
    }
}

impl<'a> Judge<'a> for Choices<'a> {
    fn reads_answers(&self) -> bool {
        false
    }

    fn answered<'s>(&'s mut self, _answer: Option<&'s Response>) -> Work<'s, Next<'a>> {
        if self.fallback.sticky {
            let answered = self.first.run().values().get_or_insert_with(Answered::default);
            let mut answered = answered.0.lock().unwrap_or_else(PoisonError::into_inner);
            answered.insert(self.first.request.model.clone(), self.choice);
        }
        Work::done(Next::Accept)
    }

    fn failed(&mut self, error: Error) -> Work<'_, Next<'a>> {
        // A run that is told to stop is not kept up by errors that come of it.
        let stopped = error.is_control() || self.first.run().cancel_token().is_cancelled();
        if error.kind() == ErrorKind::Model(ModelErrorKind::ContextTooLong) {
            self.only_larger();
        }
        let next = if stopped { None } else { self.next_call() };
        Work::done(match next {
            Some(call) => Next::Again(Box::new(call), std::time::Duration::ZERO),
            None => Next::Fail(error),
        })
    }
}
