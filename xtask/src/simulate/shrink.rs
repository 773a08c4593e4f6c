//! Makes a failing world small: whatever can be left out while the same check fails is left out.

use std::time::{Duration, Instant};

use super::world::{AgentShape, ClosureAct, KindShape, LimitShape, PersonAct, ReaderStop, SimWorld};

/// How long shrinking may take.
const LONGEST: Duration = Duration::from_secs(20);

/// The smallest world that still fails, by leaving out one thing at a time.
pub(super) fn shrink(world: &SimWorld, fails: impl Fn(&SimWorld) -> bool) -> SimWorld {
    let (mut best, began) = (world.clone(), Instant::now());
    loop {
        let mut is_smaller = false;
        for candidate in candidates(&best) {
            if began.elapsed() > LONGEST {
                return best;
            }
            if candidate != best && fails(&candidate) {
                best = candidate;
                is_smaller = true;
                break;
            }
        }
        if !is_smaller {
            return best;
        }
    }
}

/// All that a world can be without, one thing each.
fn candidates(world: &SimWorld) -> Vec<SimWorld> {
    let mut found = Vec::new();
    let mut add = |change: &dyn Fn(&mut SimWorld)| {
        let mut changed = world.clone();
        change(&mut changed);
        found.push(changed);
    };
    for place in 0..world.script.len() {
        add(&|world| {
            world.script.remove(place);
        });
    }
    for root in agents_without(&world.root) {
        add(&|world| world.root = root.clone());
    }
    for place in 0..world.store.faults.len() {
        add(&|world| {
            world.store.faults.remove(place);
        });
    }
    for place in 0..world.handlers.len() {
        add(&|world| {
            world.handlers.remove(place);
        });
    }
    for place in 0..world.script.len() {
        for step in steps_like(world, place) {
            add(&|world| {
                if let Some(old) = world.script.get_mut(place) {
                    *old = step.clone();
                }
            });
        }
    }
    for place in 0..world.store.faults.len() {
        add(&|world| {
            if let Some(fault) = world.store.faults.get_mut(place) {
                fault.times = 1;
            }
        });
    }
    add(&|world| world.compacts_every = None);
    add(&|world| world.streaming = false);
    add(&|world| world.creates_sessions = false);
    add(&|world| world.tool_errors_fail = false);
    add(&|world| world.asks_unfinished = false);
    add(&|world| world.hot_sessions = 64);
    add(&|world| world.store.latency_ms = 0);
    add(&|world| world.store.immediate = true);
    add(&|world| {
        world.limits =
            LimitShape { run_ms: 5_000, tool_ms: 1_000, grace_ms: 200, lease_ms: 1_000, wait_ms: 0 };
    });
    add(&|world| world.limits.wait_ms = 0);
    found
}

/// Simpler forms of a step.
fn steps_like(world: &SimWorld, place: usize) -> Vec<super::world::ScriptStep> {
    let Some(step) = world.script.get(place) else { return Vec::new() };
    let mut found = Vec::new();
    let mut add = |change: &dyn Fn(&mut super::world::ScriptStep)| {
        let mut changed = step.clone();
        change(&mut changed);
        if changed != *step {
            found.push(changed);
        }
    };
    add(&|step| step.session = 0);
    add(&|step| step.second_runner = false);
    add(&|step| step.delay_ms = 0);
    add(&|step| step.beside = false);
    add(&|step| step.polls = None);
    add(&|step| step.polls = step.polls.map(|polls| polls / 2));
    add(&|step| step.polls = step.polls.map(|polls| polls.saturating_sub(1)));
    add(&|step| match &mut step.act {
        PersonAct::Message(stop) | PersonAct::Answers(_, stop) | PersonAct::Continues(stop) => {
            *stop = ReaderStop::ReadsAll;
        }
        _ => {}
    });
    found
}

/// A tree with one thing less.
fn agents_without(agent: &AgentShape) -> Vec<AgentShape> {
    let mut found: Vec<AgentShape> = agent.children.clone();
    for (place, child) in agent.children.iter().enumerate() {
        let mut without = agent.clone();
        without.children.remove(place);
        found.push(without);
        for smaller in agents_without(child) {
            let mut changed = agent.clone();
            if let Some(old) = changed.children.get_mut(place) {
                *old = smaller;
            }
            found.push(changed);
        }
    }
    for place in 0..agent.handlers.len() {
        let mut without = agent.clone();
        without.handlers.remove(place);
        found.push(without);
    }
    for kind in kinds_without(&agent.kind) {
        found.push(AgentShape { kind, ..agent.clone() });
    }
    found
}

fn kinds_without(kind: &KindShape) -> Vec<KindShape> {
    let mut found = Vec::new();
    match kind {
        KindShape::Llm { moves, tools } => {
            for place in 0..moves.len() {
                let mut moves = moves.clone();
                moves.remove(place);
                found.push(KindShape::Llm { moves, tools: tools.clone() });
            }
            for (place, tool) in tools.iter().enumerate() {
                let mut without = tools.clone();
                without.remove(place);
                found.push(KindShape::Llm { moves: moves.clone(), tools: without });
                let mut plain = tools.clone();
                if let Some(old) = plain.get_mut(place) {
                    (old.before_ms, old.after_ms, old.timeout_ms) = (0, 0, None);
                }
                if plain.get(place) != Some(tool) {
                    found.push(KindShape::Llm { moves: moves.clone(), tools: plain });
                }
            }
            for (place, known) in moves.iter().enumerate() {
                let super::world::ModelMove::CallTools { tools: called, own_ids } = known else { continue };
                for call in 0..called.len().min(if called.len() > 1 { usize::MAX } else { 0 }) {
                    let (mut moves, mut called) = (moves.clone(), called.clone());
                    called.remove(call);
                    if let Some(old) = moves.get_mut(place) {
                        *old = super::world::ModelMove::CallTools { tools: called, own_ids: *own_ids };
                    }
                    found.push(KindShape::Llm { moves, tools: tools.clone() });
                }
            }
        }
        KindShape::Rounds(rounds) if *rounds > 1 => found.push(KindShape::Rounds(1)),
        KindShape::Rounds(_) => found.push(KindShape::Sequence),
        KindShape::Closure { acts, propagates } => {
            for place in 0..acts.len() {
                let mut acts: Vec<ClosureAct> = acts.clone();
                acts.remove(place);
                found.push(KindShape::Closure { acts, propagates: *propagates });
            }
        }
        KindShape::Sequence | KindShape::Fanout => {}
    }
    found
}
