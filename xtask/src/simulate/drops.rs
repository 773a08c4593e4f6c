//! Each thing that people do, dropped after its first poll, its second, and so on to its last: with every kind of agent, and with
//! stores whose operations take effect before that, after it, or at once.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use super::simulation::{DROPPED, StoreChoice};
use super::world::{
    AgentShape, AnswerShape, ClosureAct, FaultKind, KindShape, LimitShape, ModelMove, PersonAct, ReaderStop,
    Relation, ScriptStep, SimWorld, StoreFault, StoreOp, StoreShape, ToolAct, ToolShape,
};
use super::{literal, run_world};

/// More polls than anything here needs.
const MOST_POLLS: u32 = 2_000;

/// A world whose last step is the one to be dropped, and what it is about.
#[derive(Clone, Debug)]
struct DropCase {
    name: String,
    world: SimWorld,
}

/// Runs all cases. The error names those that fail, with their worlds.
pub(super) fn run(store: StoreChoice) -> Result<(), String> {
    let began = Instant::now();
    let cases = cases(store);
    let (next, worlds, failures) = (AtomicUsize::new(0), AtomicUsize::new(0), Mutex::new(Vec::new()));
    let work = || {
        while let Some(case) = cases.get(next.fetch_add(1, Ordering::Relaxed)) {
            let (polls, failure) = run_case(case, store);
            worlds.fetch_add(polls, Ordering::Relaxed);
            failures.lock().unwrap_or_else(std::sync::PoisonError::into_inner).extend(failure);
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(work);
        }
    });
    let failures = failures.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner);
    println!(
        "simulate: {} futures dropped at each of {} polls on {store:?}: {} failures, {} s",
        cases.len(),
        worlds.into_inner(),
        failures.len(),
        began.elapsed().as_secs()
    );
    failures.iter().for_each(|failure| println!("\n{failure}"));
    match failures.len() {
        0 => Ok(()),
        count => Err(format!("{count} futures cannot be dropped: see above")),
    }
}

/// Drops the last step of a case after 1, 2, … polls, until it needs no more. How many that were, and what failed first.
fn run_case(case: &DropCase, store: StoreChoice) -> (usize, Option<String>) {
    for polls in 1..MOST_POLLS {
        let mut world = case.world.clone();
        if let Some(step) = world.script.last_mut() {
            step.polls = Some(polls);
        }
        let result = run_world(&world, store, false, false);
        if let Some(violation) = result.violations.first() {
            let (check, detail) = (violation.check, &violation.detail);
            let failure =
                format!("{}, dropped after {polls} polls: {check}: {detail}\n{}", case.name, literal(&world));
            return (polls as usize, Some(failure));
        }
        if !result.counts.contains_key(DROPPED) {
            return (polls as usize, None);
        }
    }
    (MOST_POLLS as usize, Some(format!("{} is not done after {MOST_POLLS} polls", case.name)))
}

/// When a store's operations take effect, seen from a future that waits for one.
fn stores() -> Vec<(&'static str, StoreShape)> {
    let writes = [
        StoreOp::CreateSession,
        StoreOp::AcquireLease,
        StoreOp::AppendEntries,
        StoreOp::ReleaseLease,
        StoreOp::CommitEntries,
        StoreOp::DeleteSession,
    ];
    let all = |kind: FaultKind| writes.map(|op| StoreFault { op, nth: 0, times: u32::MAX, kind }).to_vec();
    let shape = |faults| StoreShape { immediate: false, latency_ms: 1, faults };
    vec![
        ("a store that waits first", shape(Vec::new())),
        ("a store that waits afterwards", shape(all(FaultKind::SlowAfter(2)))),
        ("a store with a queue", shape(all(FaultKind::Detach(2)))),
        ("a store that answers at once", StoreShape { immediate: true, latency_ms: 0, faults: Vec::new() }),
    ]
}

fn agent(id: u8, kind: KindShape, relation: Relation, children: Vec<AgentShape>) -> AgentShape {
    AgentShape { id, kind, relation, handlers: Vec::new(), children }
}

/// An agent with a model that calls two tools, the second of which may ask, and then says something.
fn leaf(id: u8, relation: Relation, asks: bool) -> AgentShape {
    let tool = |id: u8, act: ToolAct, before_ms: u64| ToolShape {
        id,
        act,
        idempotent: false,
        before_ms,
        after_ms: 2,
        timeout_ms: None,
    };
    let second = if asks { ToolAct::AffectsOnceThenAsks } else { ToolAct::AffectsOnce };
    let numbers = [2 * id, 2 * id + 1];
    let [first_tool, second_tool] = numbers;
    let tools = vec![tool(first_tool, ToolAct::Affects, 3), tool(second_tool, second, 1)];
    let mut moves = vec![ModelMove::CallTools { tools: numbers.to_vec(), own_ids: false }];
    moves.push(match relation {
        Relation::TaskMode => ModelMove::FinishesTask,
        _ => ModelMove::SayText { pieces: 2, slow_ms: 1 },
    });
    agent(id, KindShape::Llm { moves, tools }, relation, Vec::new())
}

/// One tree for each kind of agent.
fn trees(asks: bool) -> Vec<(&'static str, AgentShape)> {
    let leaf = |id, relation| leaf(id, relation, asks);
    let peers = || vec![leaf(1, Relation::Peer), leaf(2, Relation::Peer)];
    let above = |begins: ModelMove, relation| {
        let moves = vec![begins, ModelMove::SayText { pieces: 1, slow_ms: 0 }];
        agent(0, KindShape::Llm { moves, tools: Vec::new() }, Relation::Peer, vec![leaf(1, relation)])
    };
    let acts =
        vec![ClosureAct::EmitText, ClosureAct::RunChild(1), ClosureAct::EmitState, ClosureAct::EmitText];
    let closure = KindShape::Closure { acts, propagates: true };
    let one = || vec![leaf(1, Relation::Peer)];
    vec![
        ("an agent with a model", leaf(0, Relation::Peer)),
        ("a sequence", agent(0, KindShape::Sequence, Relation::Peer, peers())),
        ("branches in parallel", agent(0, KindShape::Fanout, Relation::Peer, peers())),
        ("a loop", agent(0, KindShape::Rounds(2), Relation::Peer, one())),
        ("a closure", agent(0, closure, Relation::Peer, one())),
        ("a transfer", above(ModelMove::HandTo(1), Relation::Peer)),
        ("a task", above(ModelMove::CallAgent(1), Relation::TaskMode)),
        ("a single turn", above(ModelMove::CallAgent(1), Relation::OneTurn)),
        ("an agent as a tool", above(ModelMove::CallAgent(1), Relation::AsTool)),
    ]
}

fn step(act: PersonAct) -> ScriptStep {
    ScriptStep { session: 0, beside: false, delay_ms: 0, second_runner: false, polls: None, act }
}

fn world(root: AgentShape, store: StoreShape, script: Vec<ScriptStep>) -> SimWorld {
    SimWorld {
        root,
        limits: LimitShape { run_ms: 5_000, tool_ms: 1_000, grace_ms: 200, lease_ms: 1_000, wait_ms: 100 },
        store,
        hot_sessions: 64,
        streaming: true,
        creates_sessions: false,
        tool_errors_fail: false,
        asks_unfinished: false,
        compacts_every: None,
        handlers: Vec::new(),
        script,
    }
}

fn cases(store: StoreChoice) -> Vec<DropCase> {
    let mut cases = Vec::new();
    let is_in_memory = store == StoreChoice::Memory;
    for (when, shape) in stores() {
        let mut add = |name: &str, who: &str, root: &AgentShape, script: Vec<ScriptStep>| {
            let world = world(root.clone(), shape.clone(), script);
            cases.push(DropCase { name: format!("{name}, {who}, {when}"), world });
        };
        let message = || step(PersonAct::Message(ReaderStop::ReadsAll));
        let kinds = if is_in_memory { usize::MAX } else { 1 };
        for (who, root) in trees(false).into_iter().take(kinds) {
            add("run", who, &root, vec![message()]);
            let cancelled = step(PersonAct::Message(ReaderStop::CancelsAfterMs(6)));
            let continues = step(PersonAct::Continues(ReaderStop::ReadsAll));
            add("continue_run", who, &root, vec![cancelled, continues]);
            let kill = ScriptStep { beside: true, delay_ms: 7, ..step(PersonAct::KillsProcess) };
            let recovers = step(PersonAct::Recovers { after_lease: true });
            add("recover", who, &root, vec![message(), kill, recovers]);
        }
        for (who, root) in trees(true).into_iter().take(kinds) {
            let answers = step(PersonAct::Answers(AnswerShape::ApprovesAll, ReaderStop::ReadsAll));
            add("resume", who, &root, vec![message(), answers]);
            add("rewind", who, &root, vec![message(), message(), step(PersonAct::Rewinds(1))]);
            add("reading", who, &root, vec![message(), step(PersonAct::Looks)]);
        }
        let root = leaf(0, Relation::Peer, false);
        add("create", "an agent with a model", &root, vec![step(PersonAct::Creates)]);
        add("create and commit", "an agent with a model", &root, vec![message(), step(PersonAct::Forks)]);
        add("delete", "an agent with a model", &root, vec![message(), step(PersonAct::Deletes)]);
    }
    cases
}
