//! A world from a seed.

use fastrand::Rng;

use super::world::{
    AgentShape, AnswerShape, ClosureAct, FOREVER, FaultKind, HandlerShape, KindShape, LimitShape, ModelMove,
    PersonAct, ReaderStop, Relation, ScriptStep, SimWorld, StoreFault, StoreOp, StoreShape, ToolAct,
    ToolShape,
};

/// Agents of a tree, at most.
const MOST_AGENTS: u8 = 6;

/// The world of a seed.
pub(super) fn generate(seed: u64) -> SimWorld {
    let mut rng = Rng::with_seed(seed);
    let mut next = Numbers::default();
    let root = agent(&mut rng, &mut next, 0, Relation::Peer);
    let limits = limits(&mut rng);
    let store = store(&mut rng, &limits);
    let handlers = handlers(&mut rng, true);
    let script = script(&mut rng, &limits);
    let mut world = SimWorld {
        root,
        limits,
        store,
        hot_sessions: *pick(&mut rng, &[0, 1, 64, 64]),
        streaming: rng.bool(),
        creates_sessions: one_in(&mut rng, 3),
        tool_errors_fail: one_in(&mut rng, 6),
        asks_unfinished: one_in(&mut rng, 5),
        compacts_every: one_in(&mut rng, 6).then(|| rng.usize(1..3)),
        handlers,
        script,
    };
    bring_together(&mut world);
    world
}

fn one_in(rng: &mut Rng, n: u32) -> bool {
    rng.u32(0..n) == 0
}

fn pick<'a, T>(rng: &mut Rng, from: &'a [T]) -> &'a T {
    let place = rng.usize(0..from.len().max(1));
    // A slice that is never empty: all callers name its elements.
    from.get(place).unwrap_or_else(|| unreachable_choice(from))
}

fn unreachable_choice<T>(from: &[T]) -> &T {
    #[allow(clippy::indexing_slicing)]
    &from[0]
}

/// The numbers of the next agent and the next tool.
#[derive(Debug, Default)]
struct Numbers {
    agents: u8,
    tools: u8,
}

fn agent(rng: &mut Rng, next: &mut Numbers, depth: u32, relation: Relation) -> AgentShape {
    let id = next.agents;
    next.agents += 1;
    let handlers = handlers(rng, false);
    let is_delegate = matches!(relation, Relation::TaskMode | Relation::OneTurn);
    let choice = if is_delegate || depth >= 3 { 0 } else { rng.u32(0..10) };
    let (kind, children) = match choice {
        0..=4 => llm(rng, next, depth, relation),
        5 => (KindShape::Sequence, group(rng, next, depth)),
        6 => (KindShape::Fanout, group(rng, next, depth)),
        7 => (KindShape::Rounds(rng.u32(1..4)), group(rng, next, depth)),
        _ => closure(rng, next, depth),
    };
    AgentShape { id, kind, relation, handlers, children }
}

fn group(rng: &mut Rng, next: &mut Numbers, depth: u32) -> Vec<AgentShape> {
    let mut children = vec![agent(rng, next, depth + 1, Relation::Peer)];
    while next.agents < MOST_AGENTS && children.len() < 3 && !one_in(rng, 3) {
        children.push(agent(rng, next, depth + 1, Relation::Peer));
    }
    children
}

fn llm(rng: &mut Rng, next: &mut Numbers, depth: u32, relation: Relation) -> (KindShape, Vec<AgentShape>) {
    let mut children = Vec::new();
    while next.agents < MOST_AGENTS && depth < 3 && children.len() < 2 && one_in(rng, 3) {
        let relations = [Relation::Peer, Relation::TaskMode, Relation::OneTurn, Relation::AsTool];
        let relation = *pick(rng, &relations);
        children.push(agent(rng, next, depth + 1, relation));
    }
    let tools: Vec<ToolShape> = (0..rng.u32(0..4)).map(|_| tool(rng, next)).collect();
    let mut moves = Vec::new();
    for _ in 0..rng.u32(0..4) {
        moves.push(model_move(rng, &tools, &children, relation));
    }
    (KindShape::Llm { moves, tools }, children)
}

fn model_move(rng: &mut Rng, tools: &[ToolShape], children: &[AgentShape], relation: Relation) -> ModelMove {
    if !tools.is_empty() && rng.u32(0..10) < 6 {
        let count = rng.usize(1..4);
        let tools = (0..count).map(|_| pick(rng, tools).id).collect();
        return ModelMove::CallTools { tools, own_ids: one_in(rng, 3) };
    }
    if !children.is_empty() && rng.bool() {
        let child = pick(rng, children);
        return match child.relation {
            Relation::Peer => ModelMove::HandTo(child.id),
            _ => ModelMove::CallAgent(child.id),
        };
    }
    if relation == Relation::TaskMode && rng.bool() {
        return ModelMove::FinishesTask;
    }
    match rng.u32(0..12) {
        0 => ModelMove::FailsAlways,
        1 => ModelMove::FailsFirst,
        2 => ModelMove::BreaksOff,
        3 => ModelMove::HandTo(rng.u8(0..MOST_AGENTS)),
        _ => ModelMove::SayText { pieces: rng.u8(1..4), slow_ms: *pick(rng, &[0, 0, 3, 40]) },
    }
}

fn tool(rng: &mut Rng, next: &mut Numbers) -> ToolShape {
    let id = next.tools;
    next.tools += 1;
    let acts = [
        ToolAct::Affects,
        ToolAct::Affects,
        ToolAct::Affects,
        ToolAct::Panics,
        ToolAct::FailsPlainly,
        ToolAct::AsksFirst,
        ToolAct::AsksFirst,
        ToolAct::AsksInput,
        ToolAct::Confirmed,
        ToolAct::AffectsOnce,
        ToolAct::AffectsOnceThenAsks,
        ToolAct::Streams,
        ToolAct::WritesState,
        ToolAct::Escalates,
        ToolAct::SkipsSummary,
    ];
    let act = if one_in(rng, 40) { ToolAct::WritesBadKey } else { *pick(rng, &acts) };
    let waits = [0, 0, 0, 2, 15, 60, 400, 3_000];
    ToolShape {
        id,
        act,
        idempotent: one_in(rng, 3),
        before_ms: *pick(rng, &waits),
        after_ms: *pick(rng, &waits),
        timeout_ms: one_in(rng, 5).then(|| *pick(rng, &[0, 5, 30, 500, FOREVER])),
    }
}

fn closure(rng: &mut Rng, next: &mut Numbers, depth: u32) -> (KindShape, Vec<AgentShape>) {
    let mut children = Vec::new();
    while next.agents < MOST_AGENTS && depth < 3 && children.len() < 2 && !one_in(rng, 3) {
        children.push(agent(rng, next, depth + 1, Relation::Peer));
    }
    let mut acts = Vec::new();
    for _ in 0..rng.u32(1..6) {
        let child = (!children.is_empty()).then(|| pick(rng, &children).id);
        acts.push(match (child, rng.u32(0..12)) {
            (Some(child), 0..=2) => ClosureAct::RunChild(child),
            (Some(child), 3 | 4) => ClosureAct::RunChildWithin(child, *pick(rng, &[0, 4, 12, 35, 120, 900])),
            (Some(child), 5) => ClosureAct::RunChildForPolls(child, rng.u32(1..12)),
            (_, 6) if one_in(rng, 3) => ClosureAct::EmitEscalation,
            (_, 7) => ClosureAct::EmitState,
            (_, 8) => ClosureAct::SleepDeaf(*pick(rng, &[1, 10, 50, 700, 60_000])),
            (_, 9) if rng.bool() => ClosureAct::AskPerson,
            _ => ClosureAct::EmitText,
        });
    }
    (KindShape::Closure { acts, propagates: rng.bool() }, children)
}

fn handlers(rng: &mut Rng, of_runner: bool) -> Vec<HandlerShape> {
    let mut handlers = Vec::new();
    while one_in(rng, 5) {
        let all = [
            HandlerShape::EditsPrompt,
            HandlerShape::MarksEvents,
            HandlerShape::HidesOutput,
            HandlerShape::AnswersErrors,
            HandlerShape::RetriesTools,
            HandlerShape::SetsState,
            HandlerShape::KeepsCount,
        ];
        let shape = match rng.u32(0..10) {
            0 if of_runner => HandlerShape::MarksInput,
            1 if of_runner => HandlerShape::WaitsAfterRun(*pick(rng, &[5, 100, 60_000])),
            _ => *pick(rng, &all),
        };
        if !handlers.contains(&shape) {
            handlers.push(shape);
        }
    }
    handlers
}

fn limits(rng: &mut Rng) -> LimitShape {
    let mut limits = LimitShape {
        run_ms: *pick(rng, &[5_000, 5_000, 800]),
        tool_ms: *pick(rng, &[1_000, 5_000]),
        grace_ms: *pick(rng, &[200, 50]),
        lease_ms: *pick(rng, &[1_000, 300, 150]),
        wait_ms: *pick(rng, &[0, 0, 100, 2_000]),
    };
    if one_in(rng, 12) {
        let extreme = if rng.bool() { 0 } else { FOREVER };
        match rng.u32(0..5) {
            0 => limits.run_ms = extreme,
            1 => limits.tool_ms = extreme,
            2 => limits.grace_ms = extreme,
            3 => limits.lease_ms = extreme,
            _ => limits.wait_ms = extreme,
        }
    }
    limits
}

fn store(rng: &mut Rng, limits: &LimitShape) -> StoreShape {
    let immediate = one_in(rng, 3);
    let latency_ms = if immediate { 0 } else { *pick(rng, &[0, 1, 1, 10]) };
    let mut faults = Vec::new();
    // What an immediate store fails to release is never released, if the lease has no end.
    let is_safe = immediate && limits.lease_ms == FOREVER;
    while !is_safe && one_in(rng, 2) && faults.len() < 3 {
        faults.push(fault(rng, immediate, limits));
    }
    StoreShape { immediate, latency_ms, faults }
}

fn fault(rng: &mut Rng, immediate: bool, limits: &LimitShape) -> StoreFault {
    let slow = *pick(rng, &[5, 30, 200, 1_500]);
    let late = [
        FaultKind::SlowBefore(slow),
        FaultKind::SlowAfter(slow),
        FaultKind::Detach(slow),
        FaultKind::HangBefore,
        FaultKind::HangAfter,
    ];
    let early = [FaultKind::FailBefore, FaultKind::FailAfter, FaultKind::DieBefore, FaultKind::DieAfter];
    let mut kind = if immediate || rng.bool() { *pick(rng, &early) } else { *pick(rng, &late) };
    let (never_expires, never_unwinds) = (limits.lease_ms == FOREVER, limits.grace_ms == FOREVER);
    if never_expires && kind != FaultKind::SlowBefore(slow) || never_unwinds && !early.contains(&kind) {
        // A lease without an end, or a grace without one: what hangs or dies then does so for ever.
        kind = if immediate { FaultKind::FailBefore } else { FaultKind::SlowBefore(slow) };
    }
    let ops = [
        (StoreOp::AppendEntries, 8),
        (StoreOp::AppendEntries, 8),
        (StoreOp::AppendEntries, 4),
        (StoreOp::ReleaseLease, 3),
        (StoreOp::ReleaseLease, 2),
        (StoreOp::AcquireLease, 4),
        (StoreOp::KeepLease, 2),
        (StoreOp::KeepLease, 2),
        (StoreOp::ReadNews, 4),
        (StoreOp::CreateSession, 2),
        (StoreOp::CommitEntries, 2),
        (StoreOp::ListSessions, 3),
        (StoreOp::ReadSession, 2),
        (StoreOp::DeleteSession, 1),
    ];
    let (op, range) = *pick(rng, &ops);
    let times = if op == StoreOp::KeepLease && rng.bool() { 1_000 } else { rng.u32(1..3) };
    StoreFault { op, nth: rng.u32(0..range), times, kind }
}

fn reader(rng: &mut Rng) -> ReaderStop {
    match rng.u32(0..12) {
        0 => ReaderStop::DropsAfterItems(rng.u32(0..5)),
        1 => ReaderStop::DropsAfterMs(*pick(rng, &[0, 1, 8, 40, 500])),
        2 => ReaderStop::CancelsAfterMs(*pick(rng, &[0, 1, 8, 40, 500])),
        3 => ReaderStop::StopsAfterMs(*pick(rng, &[0, 1, 8, 40])),
        _ => ReaderStop::ReadsAll,
    }
}

fn script(rng: &mut Rng, limits: &LimitShape) -> Vec<ScriptStep> {
    let mut steps = Vec::new();
    let message = |rng: &mut Rng| PersonAct::Message(reader(rng));
    for number in 0..rng.u32(2..7) {
        let act = match rng.u32(0..20) {
            _ if number == 0 => message(rng),
            0..=4 => message(rng),
            5..=10 => {
                let shapes = [
                    AnswerShape::ApprovesFirst,
                    AnswerShape::ApprovesAll,
                    AnswerShape::ApprovesAll,
                    AnswerShape::RejectsFirst,
                    AnswerShape::RejectsAll,
                    AnswerShape::GivesInput,
                    AnswerShape::ApprovesTwice,
                    AnswerShape::AnswersLate,
                ];
                PersonAct::Answers(*pick(rng, &shapes), reader(rng))
            }
            11 | 12 => PersonAct::Continues(reader(rng)),
            13 | 14 => PersonAct::Rewinds(rng.u8(0..2)),
            15 if one_in(rng, 3) => PersonAct::Creates,
            15 => PersonAct::Forks,
            16 => match rng.u32(0..3) {
                0 => PersonAct::Deletes,
                _ => PersonAct::Looks,
            },
            17 => PersonAct::Recovers { after_lease: rng.bool() },
            18 => PersonAct::ClockJumps(*pick(rng, &[-3_600, -60, -1, 1, 60, 86_400])),
            _ if limits.lease_ms == FOREVER => PersonAct::Looks,
            _ => PersonAct::KillsProcess,
        };
        let beside = number > 0 && (act == PersonAct::KillsProcess || one_in(rng, 4));
        let delay_ms =
            if beside { *pick(rng, &[0, 1, 7, 30, 250, 1_200]) } else { *pick(rng, &[0, 0, 20, 1_500]) };
        let session = if one_in(rng, 5) { rng.u8(1..3) } else { 0 };
        let second_runner = one_in(rng, 5);
        let polls = one_in(rng, 8).then(|| rng.u32(1..40));
        steps.push(ScriptStep { session, beside, delay_ms, second_runner, polls, act });
    }
    steps
}

/// Takes away what makes a world's promises void: then nothing could be checked.
fn bring_together(world: &mut SimWorld) {
    if world.limits.grace_ms == FOREVER {
        // Nothing ends an agent that does not look at its token.
        world.limits.run_ms = world.limits.run_ms.max(5_000);
    }
    if world.limits.wait_ms == FOREVER && world.limits.lease_ms == FOREVER {
        world.limits.wait_ms = 100;
    }
}
