//! What a model was asked, made from the log again.

use std::sync::Arc;

use umbel_core::{
    CancelToken, Error, ErrorKind, EventId, LogEntry, ModelRequest, Outcome, Result, Run, RunConfig,
    RunParts, RunStep, SessionKey, Source, Versions,
};

use super::Runner;
use super::drive::{Begins, Task, parts_of};
use super::journal::Recorder;

impl Runner {
    /// The request to which a model answered with that event, made from the log again: the conversation as it stood, with
    /// what handlers had changed in it, the instruction and the tools as they follow from the agents of today. What a run
    /// brought along and what `wrap_model` made of the request is not in the log, and not in this.
    ///
    /// Nothing is done for it: no call is made, and nothing is summed up.
    pub async fn request_before(&self, key: &SessionKey, event: &EventId) -> Result<ModelRequest> {
        self.request_before_with(key, event, self.shared.config.clone()).await
    }

    /// The same for a run that had settings of its own: the tools and the instruction that it brought along are in it.
    pub async fn request_before_with(
        &self,
        key: &SessionKey,
        event: &EventId,
        config: impl Into<Arc<RunConfig>>,
    ) -> Result<ModelRequest> {
        let missing = |what: String| Error::new(ErrorKind::InvalidInput, what);
        let no_event = || missing(format!("there is no event `{event}` in {key}"));
        let mut news = self
            .sessions()
            .news(key, Versions::default())
            .await?
            .ok_or_else(|| super::recovery::no_session(key))?;
        let is_it = |entry: &LogEntry| matches!(entry, LogEntry::Event(one) if one.id == *event);
        let at = news.entries.iter().position(is_it).ok_or_else(no_event)?;
        let rest = news.entries.split_off(at);
        let Some(LogEntry::Event(answer)) = rest.into_iter().next() else { return Err(no_event()) };
        let tree = &self.shared.team.tree;
        let node = tree.find(answer.author());
        let node = node.ok_or_else(|| missing(format!("`{event}` is not an agent's, or it is gone")))?;

        let recorder = Arc::new(Recorder::new(self.shared.clone(), config.into(), None));
        changes(&news.entries).into_iter().for_each(|step| recorder.restore(step));
        recorder.take_in(news);
        let said = recorder.session(|hot| {
            let said = hot.live().iter().rev().find(|event| event.is_user() && event.run == answer.run);
            said.and_then(|event| event.content.clone())
        });
        let task = Task {
            key: key.clone(),
            id: answer.run.clone(),
            begins: Begins::Again,
            recorder,
            cancel: CancelToken::new(),
            depth: 0,
        };
        let (parts, _) = parts_of(task);
        let run = Run::new(RunParts { input: said, ..parts }, tree.root())?;
        let Source { branch, isolation_scope, .. } = (*answer.source).clone();
        let run = run.resume(node, branch)?;
        let run = match isolation_scope {
            Some(scope) => run.isolate(node, scope)?,
            None => run,
        };
        let request = run.node()?.agent.clone();
        let request = request.request(&run).await?;
        request.ok_or_else(|| missing(format!("`{}` asks no model", answer.author())))
    }
}

/// What handlers had changed when a log ended like that: it holds for a run, and for one that goes on with it after an
/// answer.
fn changes(entries: &[LogEntry]) -> Vec<&RunStep> {
    let mut changes = Vec::new();
    for entry in entries {
        let LogEntry::Record(step) = entry else { continue };
        match &**step {
            RunStep::Ended { outcome: Outcome::Interrupted { .. } } => {}
            RunStep::Ended { .. } => changes.clear(),
            RunStep::Edited { .. } | RunStep::Kept { .. } => changes.push(&**step),
            _ => {}
        }
    }
    changes
}
