//! The steps that make a request, by name and in order.

mod answers;
mod basic;
mod code_execution;
mod compaction;
mod contents;
mod instructions;
mod output_schema;
mod planning;
mod transfer;

use std::sync::{Arc, LazyLock};

use umbel_core::{Actions, ContentsView, Error, ErrorKind, Response, Result, Run, Work};

pub(crate) use self::output_schema::part_schema_from_tools;
use super::draft::Draft;
use crate::agents::LlmAgent;

/// One step of making a request.
pub trait RequestProcessor: Send + Sync {
    /// Its name in the list.
    fn name(&self) -> &str;

    /// Whether an agent needs it at all.
    fn applies(&self, _agent: &LlmAgent) -> bool {
        true
    }

    /// Whether it does something besides working on the request: makes calls, asks people, sums up. Who only wants to
    /// know what the request was passes it over.
    fn acts(&self) -> bool {
        false
    }

    /// Has a say in how the log is seen, before it is turned into messages.
    fn see(&self, _step: &Draft<'_>, _view: &mut ContentsView) {}

    /// Works on the request. It may emit events and stop the step.
    fn process<'a>(&'a self, _step: &'a mut Draft<'_>) -> Work<'a, Result<()>> {
        Work::done(Ok(()))
    }
}

/// A whole answer of a model, before anything is done with it: what response processors work on.
#[derive(Debug)]
pub struct Answered<'a> {
    /// The agent.
    pub agent: &'a LlmAgent,
    /// The run, seen from the agent's place.
    pub run: &'a Run,
    /// What the model said.
    pub response: Response,
    /// What the event that says so does besides.
    pub actions: Option<Box<Actions>>,
}

/// Looks at a whole answer before anything is done with it, and may change it.
pub trait ResponseProcessor: Send + Sync {
    /// Its name in the list.
    fn name(&self) -> &str;

    /// Works on the answer.
    fn process<'a>(&'a self, answer: &'a mut Answered<'_>) -> Work<'a, Result<()>>;
}

///
/// Requests: `basic`, `auth`, `confirmation`, `instructions`, `identity`, `compaction`, `data_files`, `contents`,
/// `planning`, `code_execution`, `output_schema`, `transfer`, `display_names`. Responses: `planning`, `code_execution`.
/// After the last of them the agent's tools are declared.
#[derive(Clone)]
pub struct Processors {
    request: Arc<Vec<Arc<dyn RequestProcessor>>>,
    response: Arc<Vec<Arc<dyn ResponseProcessor>>>,
}

impl Default for Processors {
    fn default() -> Self {
        static DEFAULT: LazyLock<Processors> = LazyLock::new(|| Processors {
            request: Arc::new(vec![
                Arc::new(basic::Basic),
                Arc::new(answers::AUTH),
                Arc::new(answers::CONFIRMATION),
                Arc::new(instructions::Instructions),
                Arc::new(instructions::Identity),
                Arc::new(compaction::Compaction),
                Arc::new(code_execution::DataFiles),
                Arc::new(contents::Contents),
                Arc::new(planning::Planning),
                Arc::new(code_execution::CodeExecution),
                Arc::new(output_schema::OutputSchemaNote),
                Arc::new(transfer::Transfers),
                Arc::new(contents::DisplayNames),
            ]),
            response: Arc::new(vec![Arc::new(planning::Planning), Arc::new(code_execution::CodeExecution)]),
        });
        DEFAULT.clone()
    }
}

impl Processors {
    pub(crate) fn request(&self) -> &[Arc<dyn RequestProcessor>] {
        &self.request
    }

    pub(crate) fn response(&self) -> &[Arc<dyn ResponseProcessor>] {
        &self.response
    }

    /// The names of the request processors, in order.
    pub fn request_names(&self) -> Vec<&str> {
        self.request.iter().map(|processor| processor.name()).collect()
    }

    /// Puts another request processor in the place of the one of that name.
    pub fn replace(&mut self, name: &str, processor: impl RequestProcessor + 'static) -> Result<()> {
        let place = self.place(name)?;
        if let Some(slot) = Arc::make_mut(&mut self.request).get_mut(place) {
            *slot = Arc::new(processor);
        }
        Ok(())
    }

    /// Puts a request processor before the one of that name.
    pub fn insert_before(&mut self, name: &str, processor: impl RequestProcessor + 'static) -> Result<()> {
        let place = self.place(name)?;
        Arc::make_mut(&mut self.request).insert(place, Arc::new(processor));
        Ok(())
    }

    /// Puts a request processor behind the one of that name.
    pub fn insert_after(&mut self, name: &str, processor: impl RequestProcessor + 'static) -> Result<()> {
        let place = self.place(name)?;
        Arc::make_mut(&mut self.request).insert(place + 1, Arc::new(processor));
        Ok(())
    }

    /// Takes the request processor of that name out.
    pub fn remove(&mut self, name: &str) -> Result<()> {
        let place = self.place(name)?;
        Arc::make_mut(&mut self.request).remove(place);
        Ok(())
    }

    /// Adds a response processor behind the others.
    pub fn add_response(&mut self, processor: impl ResponseProcessor + 'static) {
        Arc::make_mut(&mut self.response).push(Arc::new(processor));
    }

    /// Takes the response processor of that name out.
    pub fn remove_response(&mut self, name: &str) {
        Arc::make_mut(&mut self.response).retain(|processor| processor.name() != name);
    }

    fn place(&self, name: &str) -> Result<usize> {
        self.request.iter().position(|processor| processor.name() == name).ok_or_else(|| {
            let known = self.request_names().join(", ");
            Error::new(ErrorKind::Build, format!("there is no processor `{name}`: there are {known}"))
        })
    }
}

impl std::fmt::Debug for Processors {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.request_names()).finish()
    }
}
