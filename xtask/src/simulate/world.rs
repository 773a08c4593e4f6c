//! A world as plain data: agents, models, tools, people and faults. Its `Debug` form is the literal of a regression test, so the
//! names of variants are unique over all enums here.

use std::time::Duration;

/// A number of milliseconds that means `Duration::MAX`.
pub(super) const FOREVER: u64 = u64::MAX;

/// Milliseconds as a duration.
pub(super) fn millis(ms: u64) -> Duration {
    if ms == FOREVER { Duration::MAX } else { Duration::from_millis(ms) }
}

/// All that a seed decides.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct SimWorld {
    pub(super) root: AgentShape,
    pub(super) limits: LimitShape,
    pub(super) store: StoreShape,
    /// Sessions that the runner caches.
    pub(super) hot_sessions: usize,
    pub(super) streaming: bool,
    /// Sessions are created by their first message.
    pub(super) creates_sessions: bool,
    pub(super) tool_errors_fail: bool,
    /// A person is asked about calls of unknown outcome.
    pub(super) asks_unfinished: bool,
    /// A summary after so many runs.
    pub(super) compacts_every: Option<usize>,
    /// Handlers of the runner.
    pub(super) handlers: Vec<HandlerShape>,
    pub(super) script: Vec<ScriptStep>,
}

/// Limits of each run, in milliseconds.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct LimitShape {
    pub(super) run_ms: u64,
    pub(super) tool_ms: u64,
    pub(super) grace_ms: u64,
    pub(super) lease_ms: u64,
    /// `RunConfig::wait_for_session`.
    pub(super) wait_ms: u64,
}

/// How the session store behaves.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct StoreShape {
    /// Presents itself as a store that answers at once.
    pub(super) immediate: bool,
    /// How long each operation takes, unless immediate.
    pub(super) latency_ms: u64,
    pub(super) faults: Vec<StoreFault>,
}

/// A fault at the nth operation of a kind, and at those that follow.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct StoreFault {
    pub(super) op: StoreOp,
    pub(super) nth: u32,
    /// How many operations in a row.
    pub(super) times: u32,
    pub(super) kind: FaultKind,
}

/// Operations of a session store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum StoreOp {
    CreateSession,
    ReadSession,
    ReadNews,
    AcquireLease,
    KeepLease,
    AppendEntries,
    ReleaseLease,
    CommitEntries,
    DeleteSession,
    ListSessions,
}

/// What goes wrong with an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FaultKind {
    /// Takes effect late.
    SlowBefore(u64),
    /// Takes effect at once, answers late.
    SlowAfter(u64),
    /// Takes effect late, even if nobody waits for it any more.
    Detach(u64),
    HangBefore,
    /// Takes effect and never answers.
    HangAfter,
    FailBefore,
    /// Takes effect, and the answer is an error.
    FailAfter,
    /// The process dies.
    DieBefore,
    DieAfter,
}

/// An agent of the tree.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct AgentShape {
    /// Its name is `a` with this number.
    pub(super) id: u8,
    pub(super) kind: KindShape,
    /// How an agent with a model uses it.
    pub(super) relation: Relation,
    pub(super) handlers: Vec<HandlerShape>,
    pub(super) children: Vec<AgentShape>,
}

/// How an agent with a model uses an agent below it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Relation {
    /// By transfer.
    Peer,
    /// `Mode::Task`.
    TaskMode,
    /// `Mode::SingleTurn`.
    OneTurn,
    /// `AgentTool`.
    AsTool,
}

/// What an agent is.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum KindShape {
    Llm { moves: Vec<ModelMove>, tools: Vec<ToolShape> },
    Sequence,
    Fanout,
    Rounds(u32),
    Closure { acts: Vec<ClosureAct>, propagates: bool },
}

/// One answer of a model. Which one is chosen follows from the length of the conversation since the last message.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum ModelMove {
    SayText {
        pieces: u8,
        slow_ms: u64,
    },
    /// Calls tools by their numbers, with ids that repeat or without ids.
    CallTools {
        tools: Vec<u8>,
        own_ids: bool,
    },
    /// Calls an agent below by name.
    CallAgent(u8),
    /// Transfers.
    HandTo(u8),
    FinishesTask,
    FailsAlways,
    /// Fails the first time it gets this request.
    FailsFirst,
    BreaksOff,
}

/// A tool.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct ToolShape {
    /// Its name is `t` with this number.
    pub(super) id: u8,
    pub(super) act: ToolAct,
    pub(super) idempotent: bool,
    pub(super) before_ms: u64,
    pub(super) after_ms: u64,
    pub(super) timeout_ms: Option<u64>,
}

/// What a tool does, between its two waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ToolAct {
    /// An effect in the world outside.
    Affects,
    Panics,
    FailsPlainly,
    /// `ToolContext::interrupt`, then an effect.
    AsksFirst,
    /// The same with a question for input.
    AsksInput,
    /// `Confirm::Always`, then an effect.
    Confirmed,
    /// An effect in `ToolContext::once`.
    AffectsOnce,
    /// The same, then a question.
    AffectsOnceThenAsks,
    /// A stream of previews, then an effect.
    Streams,
    /// Session state and user state.
    WritesState,
    /// A state key that stores refuse.
    WritesBadKey,
    Escalates,
    SkipsSummary,
}

/// What a closure does, step by step.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum ClosureAct {
    EmitText,
    EmitEscalation,
    EmitState,
    /// Runs an agent below to its end.
    RunChild(u8),
    /// The same within a time.
    RunChildWithin(u8, u64),
    /// The same, and drops its future after so many polls.
    RunChildForPolls(u8, u32),
    /// Waits without a look at the cancel token.
    SleepDeaf(u64),
    /// `Run::interrupt`.
    AskPerson,
}

/// What a handler does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum HandlerShape {
    /// `before_model` appends a message.
    EditsPrompt,
    /// `on_event` adds metadata.
    MarksEvents,
    /// `on_output` hides events that are not final.
    HidesOutput,
    /// `on_error` answers.
    AnswersErrors,
    /// `wrap_tool` calls a tool again that failed.
    RetriesTools,
    /// `before_agent` writes state.
    SetsState,
    /// `on_input` marks the message.
    MarksInput,
    /// `after_run` waits.
    WaitsAfterRun(u64),
    /// `Run::keep` in `before_model`.
    KeepsCount,
}

/// One step of the script.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct ScriptStep {
    /// Which session, modulo how many there are.
    pub(super) session: u8,
    /// Runs beside the step before it.
    pub(super) beside: bool,
    pub(super) delay_ms: u64,
    /// Uses a second runner of the same process.
    pub(super) second_runner: bool,
    /// Its future is dropped after so many polls.
    pub(super) polls: Option<u32>,
    pub(super) act: PersonAct,
}

/// What people and operators do.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum PersonAct {
    Message(ReaderStop),
    Answers(AnswerShape, ReaderStop),
    Continues(ReaderStop),
    /// Rewinds this many runs.
    Rewinds(u8),
    /// Copies the session.
    Forks,
    /// `Runner::create_session`.
    Creates,
    Deletes,
    /// `Runner::recover`, after the leases expired or at once.
    Recovers {
        after_lease: bool,
    },
    /// The wall clock jumps.
    ClockJumps(i32),
    KillsProcess,
    /// Reads the session, its open questions, a request of the past and the store's lists.
    Looks,
}

/// How a person answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AnswerShape {
    ApprovesFirst,
    ApprovesAll,
    RejectsFirst,
    RejectsAll,
    GivesInput,
    /// The same answer again.
    ApprovesTwice,
    /// To the question that was answered last.
    AnswersLate,
}

/// How long the reader of a run reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ReaderStop {
    ReadsAll,
    DropsAfterItems(u32),
    DropsAfterMs(u64),
    CancelsAfterMs(u64),
    /// `cancel_at(SafePoint::Next)`.
    StopsAfterMs(u64),
}

impl AgentShape {
    /// Its name.
    pub(super) fn name(&self) -> String {
        format!("a{}", self.id)
    }

    /// Whether this holds of it or of an agent below.
    pub(super) fn any(&self, is: &impl Fn(&AgentShape) -> bool) -> bool {
        is(self) || self.children.iter().any(|child| child.any(is))
    }
}

impl SimWorld {
    /// Whether an agent ends others before they are done, or goes on after their errors.
    pub(super) fn cuts_agents(&self) -> bool {
        let cuts = |act: &ClosureAct| {
            matches!(
                act,
                ClosureAct::EmitEscalation
                    | ClosureAct::RunChildWithin(..)
                    | ClosureAct::RunChildForPolls(..)
            )
        };
        let escalates = |agent: &AgentShape| match &agent.kind {
            KindShape::Closure { acts, propagates } => !propagates || acts.iter().any(cuts),
            KindShape::Llm { tools, .. } => tools.iter().any(|tool| tool.act == ToolAct::Escalates),
            _ => false,
        };
        self.root.any(&escalates) || self.has_handler(HandlerShape::AnswersErrors)
    }

    /// Whether any agent, or the runner, has this handler.
    pub(super) fn has_handler(&self, shape: HandlerShape) -> bool {
        self.handlers.contains(&shape) || self.root.any(&|agent| agent.handlers.contains(&shape))
    }

    /// How often people rewind.
    pub(super) fn rewinds(&self) -> u32 {
        let rewinds = |step: &&ScriptStep| matches!(step.act, PersonAct::Rewinds(_));
        u32::try_from(self.script.iter().filter(rewinds).count()).unwrap_or(u32::MAX)
    }

    /// Whether anything counts polls, reads or time, which a cache may change.
    pub(super) fn depends_on_cache(&self) -> bool {
        let reads = [StoreOp::ReadNews, StoreOp::ReadSession, StoreOp::ListSessions];
        let is_read = |fault: &StoreFault| reads.contains(&fault.op);
        // A session that another runner rewound is read once more, which takes time.
        let is_timed = self.store.latency_ms > 0 && self.rewinds() > 0;
        self.counts_polls() || is_timed || self.store.faults.iter().any(is_read)
    }

    fn counts_polls(&self) -> bool {
        let polls = |agent: &AgentShape| match &agent.kind {
            KindShape::Closure { acts, .. } => {
                acts.iter().any(|act| matches!(act, ClosureAct::RunChildForPolls(..)))
            }
            _ => false,
        };
        self.root.any(&polls) || self.script.iter().any(|step| step.polls.is_some())
    }
}
