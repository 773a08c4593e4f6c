//! Where tests answer questions of runs: at once, with a session that must be read anew, or from another runner.

use std::sync::Arc;

use serde_json::Value;
use umbel::{
    Answer, Content, FunctionCall, Interrupt, LogEntry, RunConfig, Runner, RunnerBuilder, SessionKey,
};

use crate::support::{Seen, Spy, log, read};

/// How an answer finds its run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Way {
    /// The runner has the session at hand.
    Hot,
    /// The runner reads the session anew.
    Cold,
    /// Another runner does, as in another process, with previews.
    Other,
}

pub(crate) const WAYS: [Way; 3] = [Way::Hot, Way::Cold, Way::Other];

/// A session and who runs it.
pub(crate) struct Desk {
    pub(crate) way: Way,
    pub(crate) key: SessionKey,
    make: Box<dyn Fn() -> RunnerBuilder>,
    store: Spy,
    runner: Runner,
}

impl Desk {
    /// A session of runners that are made so.
    pub(crate) async fn new(way: Way, make: impl Fn() -> RunnerBuilder + 'static) -> Self {
        let store = Spy::default();
        let runner = build(&make, way, &store);
        let key = runner.create_session("ann").await.unwrap().key;
        Self { way, key, make: Box::new(make), store, runner }
    }

    pub(crate) fn runner(&self) -> Runner {
        match self.way {
            Way::Other => build(&self.make, self.way, &self.store),
            _ => self.runner.clone(),
        }
    }

    pub(crate) async fn say(&self, message: impl Into<Content>) -> Seen {
        read(self.runner().run(&self.key, message)).await
    }

    pub(crate) async fn answer<'a>(
        &self,
        answers: impl IntoIterator<Item = (&'a Interrupt, Answer)>,
    ) -> Seen {
        read(self.runner().resume(&self.key, answers)).await
    }

    /// Answers the only question that is open.
    pub(crate) async fn answer_only(&self, answer: Answer) -> Seen {
        self.answer([(&self.only().await, answer)]).await
    }

    pub(crate) async fn open(&self) -> Vec<Interrupt> {
        self.runner().open_questions(&self.key).await.unwrap()
    }

    /// The only question that is open.
    pub(crate) async fn only(&self) -> Interrupt {
        let open = self.open().await;
        assert_eq!(open.len(), 1, "{:?}: {open:?}", self.way);
        open.into_iter().next().unwrap()
    }

    pub(crate) async fn log(&self) -> Vec<LogEntry> {
        log(&self.runner, &self.key).await
    }

    /// The answers are refused, nothing is written, and the questions stay open. Gives the words of the refusal.
    pub(crate) async fn refused<'a>(
        &self,
        answers: impl IntoIterator<Item = (&'a Interrupt, Answer)>,
    ) -> String {
        let (before, open) = (self.log().await.len(), self.open().await);
        let seen = self.answer(answers).await;
        assert_eq!(seen.kind(), umbel::ErrorKind::InvalidConfirmation, "{seen:?}");
        assert!(seen.events.is_empty());
        assert_eq!(self.log().await.len(), before, "nothing is written");
        assert_eq!(self.open().await, open);
        seen.message().to_owned()
    }
}

fn build(make: &impl Fn() -> RunnerBuilder, way: Way, store: &Spy) -> Runner {
    let builder = make().sessions(store.clone());
    match way {
        Way::Hot => builder.build().unwrap(),
        Way::Cold => builder.hot_sessions(0).build().unwrap(),
        Way::Other => builder.config(RunConfig { streaming: true, ..RunConfig::default() }).build().unwrap(),
    }
}

/// What people are shown of the call that a question is about.
pub(crate) fn shown(asked: &Interrupt) -> (String, Value) {
    let FunctionCall { name, args, .. } = asked.call.clone().expect("a call");
    (name.to_string(), Value::Object(Arc::unwrap_or_clone(args.unwrap_or_default())))
}
