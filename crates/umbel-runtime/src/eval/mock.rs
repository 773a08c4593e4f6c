//! What tools give without being called, and a count of what models are asked.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};

use smol_str::SmolStr;
use umbel_core::{
    ChunkStream, ModelRequest, Object, Run, Tool, ToolContext, ToolError, ToolResult, ToolValue,
};

use super::case::{Case, Mock};
use super::tools::has;
use crate::stand_in::StandIn;

/// Stands in for the tools of one run of a case.
#[derive(Default)]
pub(super) struct Mocks {
    mocks: Vec<Mock>,
    only: bool,
    seen: Mutex<Seen>,
}

/// What was asked so far.
#[derive(Clone, Debug, Default)]
pub(super) struct Seen {
    /// How often each mock was used.
    used: Vec<u32>,
    /// How often models were asked.
    pub(super) model_calls: u64,
    /// Their names.
    pub(super) models: BTreeSet<SmolStr>,
}

impl Mocks {
    pub(super) fn new(case: &Case) -> Self {
        let seen = Seen { used: vec![0; case.mocks.len()], ..Seen::default() };
        Self { mocks: case.mocks.clone(), only: case.only_mocks, seen: Mutex::new(seen) }
    }

    pub(super) fn seen(&self) -> Seen {
        self.lock().clone()
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Seen> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The first that fits and is not used up.
    fn find(&self, tool: &str, args: &Object) -> Option<&Mock> {
        let mut seen = self.lock();
        let mut mocks = self.mocks.iter().zip(&mut seen.used);
        let (mock, used) = mocks.find(|(mock, used)| {
            mock.tool == tool
                && mock.args.as_ref().is_none_or(|expected| has(expected, args))
                && mock.times.is_none_or(|times| **used < times)
        })?;
        *used += 1;
        Some(mock)
    }
}

impl StandIn for Mocks {
    fn call(&self, cx: &ToolContext, tool: &Arc<dyn Tool>, args: &Arc<Object>) -> Option<ToolResult> {
        let spec = tool.spec();
        let Some(mock) = self.find(&spec.name, args) else {
            // What does nothing but act on its run has no effects.
            let fails = self.only && !spec.resumes;
            return fails.then(|| Err(ToolError::new(format!("`{}` has no mock that fits", spec.name))));
        };
        for (key, value) in &mock.state {
            cx.set_state(key, value.clone());
        }
        Some(match &mock.error {
            Some(error) => Err(ToolError::new(error)),
            None => Ok(ToolValue::from(mock.result.clone().unwrap_or_default()).into()),
        })
    }

    fn generate(&self, _: &Run, request: &ModelRequest) -> Option<ChunkStream<'static>> {
        let mut seen = self.lock();
        seen.model_calls += 1;
        seen.models.insert(request.model.clone());
        None
    }
}
