//! Fixed worlds, and that a seed repeats exactly.

#![allow(unused_imports, reason = "worlds that are pasted here name any variant")]

use super::generate::generate;
use super::run_world;
use super::simulation::{StoreChoice, simulate};
use super::world::AnswerShape::*;
use super::world::ClosureAct::*;
use super::world::FaultKind::*;
use super::world::HandlerShape::*;
use super::world::KindShape::*;
use super::world::ModelMove::*;
use super::world::PersonAct::*;
use super::world::ReaderStop::*;
use super::world::Relation::*;
use super::world::StoreOp::*;
use super::world::ToolAct::*;
use super::world::{
    AgentShape, FOREVER, LimitShape, ScriptStep, SimWorld, StoreFault, StoreShape, ToolShape,
};

/// Runs a world on both stores, with and without a cache.
#[allow(clippy::needless_pass_by_value, reason = "a literal is passed")]
fn assert_holds(world: SimWorld) {
    for store in [StoreChoice::Memory, StoreChoice::Sqlite] {
        let violations = run_world(&world, store, true, false).violations;
        assert!(violations.is_empty(), "{store:?}: {violations:#?}");
    }
}

fn agent(id: u8, kind: super::world::KindShape, children: Vec<AgentShape>) -> AgentShape {
    AgentShape { id, kind, relation: Peer, handlers: vec![], children }
}

fn tool(id: u8, act: super::world::ToolAct) -> ToolShape {
    ToolShape { id, act, idempotent: false, before_ms: 0, after_ms: 0, timeout_ms: None }
}

fn step(act: super::world::PersonAct) -> ScriptStep {
    ScriptStep { session: 0, beside: false, delay_ms: 0, second_runner: false, polls: None, act }
}

/// A store whose operations take so long, and one message.
fn world(root: AgentShape, latency_ms: u64) -> SimWorld {
    SimWorld {
        root,
        limits: LimitShape { run_ms: 5_000, tool_ms: 1_000, grace_ms: 200, lease_ms: 1_000, wait_ms: 0 },
        store: StoreShape { immediate: false, latency_ms, faults: vec![] },
        hot_sessions: 64,
        streaming: false,
        creates_sessions: false,
        tool_errors_fail: false,
        asks_unfinished: false,
        compacts_every: None,
        handlers: vec![],
        script: vec![step(Message(ReadsAll))],
    }
}

fn closure(acts: Vec<super::world::ClosureAct>) -> super::world::KindShape {
    Closure { acts, propagates: true }
}

#[test]
fn a_seed_repeats_exactly() {
    for seed in 0..300 {
        let world = generate(seed);
        let digest = |_| simulate(&world, StoreChoice::Memory, false, false).unwrap().digest;
        let [first, second] = [0, 1].map(digest);
        assert_eq!(first, second, "seed {seed}");
    }
}

#[test]
fn a_seed_repeats_exactly_on_sqlite() {
    for seed in 0..20 {
        let world = generate(seed);
        let digest = |_| simulate(&world, StoreChoice::Sqlite, false, false).unwrap().digest;
        let [first, second] = [0, 1].map(digest);
        assert_eq!(first, second, "seed {seed}");
    }
}

#[test]
fn an_escalation_while_a_sibling_writes_on_a_slow_store_loses_nothing() {
    let talker = agent(2, closure(vec![EmitText; 20]), vec![]);
    for wait in [5, 15, 25, 35] {
        let escalates = agent(3, closure(vec![SleepDeaf(wait), EmitEscalation]), vec![]);
        let group = agent(1, Fanout, vec![talker.clone(), escalates]);
        assert_holds(world(agent(0, closure(vec![RunChild(1), EmitText]), vec![group]), 10));
    }
}

#[test]
fn a_timeout_around_a_sub_agent_in_the_middle_of_an_append_loses_nothing() {
    for wait in 20..30 {
        let talker = agent(1, closure(vec![EmitText; 20]), vec![]);
        let root = agent(0, closure(vec![RunChildWithin(1, wait), EmitText, EmitText]), vec![talker]);
        assert_holds(world(root, 10));
    }
}

#[test]
fn a_sub_agent_that_is_dropped_after_any_poll_loses_nothing() {
    for polls in 1..16 {
        let talker = agent(1, closure(vec![EmitText; 4]), vec![]);
        let root = agent(0, closure(vec![RunChildForPolls(1, polls), EmitText]), vec![talker]);
        assert_holds(world(root, 2));
    }
}

#[test]
fn heartbeats_that_hang_leave_the_time_limit_and_the_grace_alone() {
    let mut world = world(agent(0, closure(vec![SleepDeaf(60_000)]), vec![]), 0);
    world.limits.lease_ms = 150;
    world.limits.run_ms = 500;
    world.store.faults = vec![StoreFault { op: KeepLease, nth: 0, times: 1_000, kind: HangBefore }];
    assert_holds(world.clone());
    world.limits.run_ms = 5_000;
    world.script = vec![step(Message(CancelsAfterMs(300)))];
    assert_holds(world);
}

#[test]
fn durations_without_an_end_and_of_nothing_are_durations() {
    let waits = || ToolShape { before_ms: 20, ..tool(0, Affects) };
    let llm = Llm { moves: vec![CallTools { tools: vec![0], own_ids: false }], tools: vec![waits()] };
    let plain = world(agent(0, llm, vec![]), 1);
    let each: [fn(&mut LimitShape) -> &mut u64; 5] = [
        |limits| &mut limits.run_ms,
        |limits| &mut limits.tool_ms,
        |limits| &mut limits.grace_ms,
        |limits| &mut limits.lease_ms,
        |limits| &mut limits.wait_ms,
    ];
    for limit in each {
        for extreme in [0, FOREVER] {
            let mut world = plain.clone();
            *limit(&mut world.limits) = extreme;
            assert_holds(world);
        }
    }
}

#[test]
fn a_question_of_a_rewound_run_is_not_open() {
    let llm =
        Llm { moves: vec![CallTools { tools: vec![0], own_ids: false }], tools: vec![tool(0, AsksFirst)] };
    let mut world = world(agent(0, llm, vec![]), 0);
    world.script = vec![
        step(Message(ReadsAll)),
        step(Rewinds(0)),
        step(Answers(ApprovesFirst, ReadsAll)),
        step(Answers(AnswersLate, ReadsAll)),
    ];
    assert_holds(world);
}

#[test]
fn a_task_of_a_rewound_run_gets_no_messages() {
    let task = AgentShape { relation: TaskMode, ..agent(1, Llm { moves: vec![], tools: vec![] }, vec![]) };
    let mut world = world(agent(0, Llm { moves: vec![CallAgent(1)], tools: vec![] }, vec![task]), 0);
    world.script = vec![step(Message(ReadsAll)), step(Rewinds(0)), step(Message(ReadsAll))];
    assert_holds(world);
}

#[test]
fn a_failed_run_that_was_rewound_is_not_continued() {
    let llm = Llm {
        moves: vec![CallTools { tools: vec![0], own_ids: false }, FailsFirst],
        tools: vec![tool(0, Affects)],
    };
    let mut world = world(agent(0, llm, vec![]), 0);
    world.script = vec![step(Message(ReadsAll)), step(Rewinds(0)), step(Continues(ReadsAll))];
    assert_holds(world);
}

#[test]
fn a_clock_that_goes_back_after_a_summary_hides_no_message() {
    let mut world = world(agent(0, Llm { moves: vec![], tools: vec![] }, vec![]), 0);
    world.compacts_every = Some(2);
    let message = || step(Message(ReadsAll));
    world.script =
        vec![message(), step(ClockJumps(60)), message(), step(ClockJumps(-61)), message(), message()];
    assert_holds(world);
}

#[test]
fn a_second_runner_takes_over_when_the_lease_expires_under_a_tool() {
    let slow = ToolShape { before_ms: 400, after_ms: 400, idempotent: true, ..tool(0, Affects) };
    let llm = Llm { moves: vec![CallTools { tools: vec![0], own_ids: false }], tools: vec![slow] };
    let mut world = world(agent(0, llm, vec![]), 1);
    world.limits.lease_ms = 150;
    world.store.faults = vec![StoreFault { op: KeepLease, nth: 0, times: 1_000, kind: FailBefore }];
    let recovers = ScriptStep {
        beside: true,
        delay_ms: 200,
        second_runner: true,
        ..step(Recovers { after_lease: false })
    };
    world.script = vec![step(Message(ReadsAll)), recovers];
    assert_holds(world);
}

/// A model that calls its tool once in each of so many steps.
fn caller(steps: usize, own_ids: bool, tool: ToolShape) -> AgentShape {
    let moves = vec![CallTools { tools: vec![tool.id], own_ids }; steps];
    agent(0, Llm { moves, tools: vec![tool] }, vec![])
}

#[test]
fn state_that_a_handler_sets_on_recovery_does_not_hide_a_call_that_was_cut_short() {
    let slow = ToolShape { idempotent: true, before_ms: 60, after_ms: 60, ..tool(0, Affects) };
    let root = AgentShape { handlers: vec![SetsState], ..caller(2, false, slow) };
    let mut world = world(root, 0);
    world.store.immediate = true;
    (world.limits.lease_ms, world.limits.tool_ms, world.limits.grace_ms) = (300, 5_000, 50);
    world.store.faults = vec![StoreFault { op: KeepLease, nth: 1, times: 1, kind: DieBefore }];
    assert_holds(world);
}

#[test]
fn a_batch_whose_results_could_not_be_written_is_answered_after_recovery() {
    let root = agent(
        0,
        Llm { moves: vec![CallTools { tools: vec![0, 0, 0], own_ids: false }], tools: vec![] },
        vec![],
    );
    for nth in 0..5 {
        let mut world = world(root.clone(), 0);
        world.store.immediate = true;
        world.store.faults = vec![
            StoreFault { op: AppendEntries, nth, times: 1, kind: FailBefore },
            StoreFault { op: ReleaseLease, nth: 0, times: 1, kind: FailBefore },
        ];
        assert_holds(world);
    }
}

#[test]
fn a_write_whose_answer_is_lost_is_done_once_and_shown() {
    for op in [AppendEntries, ReleaseLease] {
        for nth in 0..5 {
            for immediate in [false, true] {
                let mut world = world(caller(2, false, tool(0, Affects)), 0);
                world.store.immediate = immediate;
                world.compacts_every = Some(1);
                world.store.faults = vec![StoreFault { op, nth, times: 1, kind: FailAfter }];
                world.script = vec![step(Message(ReadsAll)), step(Message(ReadsAll))];
                assert_holds(world);
            }
        }
    }
}

#[test]
fn an_outcome_that_could_not_be_written_is_not_told() {
    let stops = ToolShape { before_ms: 3_000, timeout_ms: Some(5), ..tool(3, WritesState) };
    let mut world = world(caller(2, false, stops), 0);
    world.store.immediate = true;
    world.tool_errors_fail = true;
    world.store.faults = vec![StoreFault { op: ReleaseLease, nth: 0, times: 3, kind: FailBefore }];
    assert_holds(world);
}

#[test]
fn an_agent_called_as_a_tool_takes_durations_without_an_end() {
    let inner = AgentShape { relation: AsTool, ..agent(1, Llm { moves: vec![], tools: vec![] }, vec![]) };
    let mut world = world(agent(0, Llm { moves: vec![CallAgent(1)], tools: vec![] }, vec![inner]), 0);
    (world.limits.grace_ms, world.limits.lease_ms) = (FOREVER, FOREVER);
    assert_holds(world);
}

#[test]
fn an_approved_call_that_was_dropped_with_its_agent_is_not_made_again() {
    let asks = ToolShape { before_ms: 15, after_ms: 60, ..tool(2, AsksInput) };
    let streams = ToolShape { idempotent: true, after_ms: 60, ..tool(3, Streams) };
    let moves =
        vec![CallTools { tools: vec![3], own_ids: false }, CallTools { tools: vec![2], own_ids: false }];
    let inner = agent(2, Llm { moves, tools: vec![asks, streams] }, vec![]);
    let mut world = world(agent(0, closure(vec![RunChildWithin(2, 35), RunChild(2)]), vec![inner]), 0);
    world.store.immediate = true;
    world.script = vec![
        step(Message(ReadsAll)),
        step(Answers(AnswersLate, ReadsAll)),
        step(Answers(RejectsAll, ReadsAll)),
    ];
    assert_holds(world);
}

#[test]
fn an_answer_that_comes_twice_makes_its_call_once_though_the_first_run_was_dropped() {
    let asks = ToolShape { after_ms: 15, ..tool(0, AsksInput) };
    let root = AgentShape { handlers: vec![SetsState], ..caller(1, true, asks) };
    let mut world = world(root, 10);
    world.script = vec![step(Message(ReadsAll)), step(Answers(ApprovesTwice, DropsAfterItems(1)))];
    assert_holds(world);
}

#[test]
fn a_call_whose_id_was_used_before_is_the_same_with_and_without_a_cache() {
    let confirmed = ToolShape { idempotent: true, ..tool(2, Confirmed) };
    let mut world = world(caller(1, true, confirmed), 0);
    world.store.immediate = true;
    world.script =
        vec![step(Message(ReadsAll)), step(Message(ReadsAll)), step(Answers(ApprovesFirst, ReadsAll))];
    assert_holds(world);
}

#[test]
fn an_approved_call_that_was_cut_short_is_not_made_again_with_one_that_waited_beside_it() {
    let asks = ToolShape { after_ms: 3_000, ..tool(1, AsksFirst) };
    let llm = Llm { moves: vec![CallTools { tools: vec![1, 1], own_ids: false }], tools: vec![asks] };
    let mut world = world(agent(0, llm, vec![]), 0);
    world.store.immediate = true;
    world.limits.run_ms = 800;
    world.script = vec![
        step(Message(ReadsAll)),
        step(Answers(AnswersLate, ReadsAll)),
        step(Answers(ApprovesAll, ReadsAll)),
    ];
    assert_holds(world);
}

#[test]
fn a_run_that_was_cut_short_has_an_outcome_though_its_rewind_is_taken_back() {
    let mut world = world(agent(1, Llm { moves: vec![], tools: vec![] }, vec![]), 0);
    world.store.immediate = true;
    world.store.faults = vec![StoreFault { op: ReleaseLease, nth: 0, times: 1, kind: FailBefore }];
    let late = ScriptStep { delay_ms: 1_500, ..step(Rewinds(0)) };
    let message = ScriptStep { beside: true, ..step(Message(ReadsAll)) };
    world.script = vec![late, message, step(Rewinds(0))];
    assert_holds(world);
}

#[test]
fn a_call_that_was_dropped_before_another_agent_asked_is_reported_with_and_without_a_cache() {
    let slow = ToolShape { before_ms: 3_000, after_ms: 15, ..tool(1, FailsPlainly) };
    let moves = vec![CallTools { tools: vec![1], own_ids: true }];
    let caller = agent(2, Llm { moves, tools: vec![slow] }, vec![]);
    let asker = agent(3, Closure { acts: vec![AskPerson], propagates: false }, vec![]);
    let acts = vec![RunChildWithin(2, 120), RunChild(3)];
    let mut world = world(agent(1, Closure { acts, propagates: false }, vec![caller, asker]), 0);
    world.store.immediate = true;
    world.script = vec![step(Message(ReadsAll)), step(Answers(ApprovesAll, ReadsAll))];
    assert_holds(world);
}

#[test]
fn a_call_of_a_branch_that_was_dropped_is_not_made_again_when_another_branch_is_answered() {
    let slow = ToolShape { after_ms: 3_000, ..tool(0, Affects) };
    let moves = |tool| vec![CallTools { tools: vec![tool], own_ids: false }];
    let caller = agent(1, Llm { moves: moves(0), tools: vec![slow] }, vec![]);
    let asker = agent(3, closure(vec![AskPerson]), vec![]);
    let escalates = ToolShape { idempotent: true, ..tool(3, Escalates) };
    let ender = agent(5, Llm { moves: moves(3), tools: vec![escalates] }, vec![]);
    let mut world = world(agent(0, Fanout, vec![caller, asker, ender]), 0);
    world.store.immediate = true;
    world.script = vec![step(Message(ReadsAll)), step(Answers(RejectsFirst, ReadsAll))];
    assert_holds(world);
}

#[test]
fn a_run_of_which_nobody_knows_whether_all_is_stored_does_not_finish() {
    let inner = agent(3, Llm { moves: vec![], tools: vec![] }, vec![]);
    let acts = vec![EmitText, RunChild(3)];
    let mut world = world(agent(0, Closure { acts, propagates: false }, vec![inner]), 0);
    world.store.immediate = true;
    world.store.faults = vec![
        StoreFault { op: ReadNews, nth: 1, times: 1, kind: FailAfter },
        StoreFault { op: AppendEntries, nth: 0, times: 1, kind: FailBefore },
    ];
    assert_holds(world);
}

#[test]
fn a_write_that_is_found_only_at_the_second_look_is_done_once_and_shown() {
    let mut faults = vec![
        StoreFault { op: AppendEntries, nth: 1, times: 1, kind: FailAfter },
        StoreFault { op: ReadNews, nth: 1, times: 1, kind: FailBefore },
    ];
    let mut summed_up = world(agent(0, Llm { moves: vec![], tools: vec![] }, vec![]), 0);
    (summed_up.store.immediate, summed_up.compacts_every) = (true, Some(1));
    summed_up.store.faults = faults.clone();
    summed_up.script = vec![step(Message(ReadsAll)), step(Rewinds(0)), step(Message(ReadsAll))];
    assert_holds(summed_up);

    let inner = agent(1, Llm { moves: vec![], tools: vec![] }, vec![]);
    let acts = vec![RunChildForPolls(1, 8), RunChild(1)];
    let mut dropped = world(agent(0, Closure { acts, propagates: false }, vec![inner]), 0);
    faults.push(StoreFault { op: AppendEntries, nth: 0, times: 1, kind: FailBefore });
    if let Some(read) = faults.get_mut(1) {
        (read.nth, read.kind) = (2, FailAfter);
    }
    dropped.store.immediate = true;
    dropped.store.faults = faults;
    assert_holds(dropped);
}

#[test]
fn a_call_whose_id_is_used_again_while_others_wait_is_made_once() {
    let llm =
        Llm { moves: vec![CallTools { tools: vec![0, 0], own_ids: true }], tools: vec![tool(0, AsksFirst)] };
    let mut world = world(agent(2, llm, vec![]), 0);
    world.store.immediate = true;
    world.script = vec![
        step(Message(ReadsAll)),
        step(Answers(ApprovesTwice, ReadsAll)),
        step(Message(ReadsAll)),
        step(Answers(ApprovesAll, ReadsAll)),
        step(Answers(ApprovesFirst, ReadsAll)),
    ];
    assert_holds(world);
}

#[test]
fn a_last_write_that_is_looked_up_does_not_count_what_others_wrote_since() {
    let mut world = world(agent(1, Llm { moves: vec![], tools: vec![] }, vec![]), 10);
    world.store.faults = vec![StoreFault { op: ReleaseLease, nth: 1, times: 1, kind: FailAfter }];
    let dropped = ScriptStep { delay_ms: 20, ..step(Message(DropsAfterMs(0))) };
    let beside = ScriptStep { beside: true, delay_ms: 7, ..step(Message(ReadsAll)) };
    world.script = vec![step(Message(ReadsAll)), dropped, beside];
    assert_holds(world);
}

#[test]
fn a_cancelled_run_waits_once_for_a_store_that_is_slow_at_its_start_and_hangs_at_its_end() {
    let inner = AgentShape { relation: TaskMode, ..agent(1, Llm { moves: vec![], tools: vec![] }, vec![]) };
    let mut world = world(agent(0, Llm { moves: vec![], tools: vec![] }, vec![inner]), 0);
    world.store.faults = vec![
        StoreFault { op: ReadNews, nth: 0, times: 1, kind: SlowAfter(1_500) },
        StoreFault { op: ReleaseLease, nth: 0, times: 1, kind: HangAfter },
    ];
    world.script = vec![step(Message(CancelsAfterMs(0)))];
    assert_holds(world);
}

#[test]
fn an_agent_that_was_handed_the_word_under_a_call_does_not_hide_that_call_from_itself() {
    let inner =
        AgentShape { relation: OneTurn, ..agent(1, Llm { moves: vec![HandTo(0)], tools: vec![] }, vec![]) };
    let mut world = world(agent(0, Llm { moves: vec![CallAgent(1)], tools: vec![] }, vec![inner]), 0);
    world.store.immediate = true;
    world.store.faults = vec![StoreFault { op: AppendEntries, nth: 3, times: 1, kind: DieAfter }];
    assert_holds(world);
}

#[test]
fn a_question_of_a_dropped_branch_that_was_not_stored_is_not_in_the_outcome() {
    let asking = |acts| agent(1, Closure { acts, propagates: false }, vec![]);
    for (acts, inner, latency, fault) in [
        (vec![RunChild(1), RunChildForPolls(1, 2)], vec![AskPerson], 10, (3, 1)),
        (vec![RunChildWithin(1, 4)], vec![EmitText, AskPerson], 1, (2, 2)),
        (vec![RunChildForPolls(1, 2)], vec![AskPerson], 10, (0, 1)),
    ] {
        let mut world = world(agent(0, Closure { acts, propagates: false }, vec![asking(inner)]), latency);
        let (nth, times) = fault;
        world.store.faults = vec![StoreFault { op: AppendEntries, nth, times, kind: FailBefore }];
        world.script = vec![step(Message(ReadsAll)), step(Message(ReadsAll))];
        assert_holds(world);
    }
}

#[test]
fn an_agent_that_was_handed_the_word_under_a_call_does_not_get_the_conversation_after_a_crash() {
    let last = agent(2, Llm { moves: vec![], tools: vec![] }, vec![]);
    let handing = Llm { moves: vec![HandTo(2)], tools: vec![] };
    for peers in [false, true] {
        let below = if peers { vec![] } else { vec![last.clone()] };
        let inner = AgentShape { relation: OneTurn, ..agent(1, handing.clone(), below) };
        let beside = if peers { vec![inner, last.clone()] } else { vec![inner] };
        let mut world = world(agent(0, Llm { moves: vec![CallAgent(1)], tools: vec![] }, beside), 0);
        world.store.immediate = true;
        world.store.faults = vec![StoreFault { op: AppendEntries, nth: 3, times: 1, kind: DieAfter }];
        assert_holds(world);
    }
}
