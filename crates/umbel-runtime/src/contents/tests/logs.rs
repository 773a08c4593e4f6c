//! Random logs, made of few names so that things collide.

use std::sync::Arc;

use proptest::collection::vec;
use proptest::prelude::*;
use umbel_core::event::Transcription;
use umbel_core::{
    CallId, CodeResult, CodeWords, Compaction, Confirmation, Content, ContentsView, Event, ExecutableCode,
    Fence, FileData, FunctionCall, FunctionResponse, Object, Part, Payload, Role, RunId, Source,
};

use crate::contents::compaction::CompactionRange;

/// What a log may be made of. Fewer kinds of trouble per log leave stretches without any.
#[derive(Clone, Debug)]
pub(super) struct World {
    agents: usize,
    ids: usize,
    idless: bool,
    branches: usize,
    scopes: usize,
    runs: usize,
    clock: i64,
    /// Which of the troublesome steps occur at all.
    trouble: [bool; 6],
}

/// One step of a log: one event, or a call and its answer.
#[derive(Clone, Debug)]
pub(super) struct Step {
    kind: u8,
    who: u8,
    place: u8,
    run: u8,
    tick: u8,
    items: Vec<(u8, u8)>,
    dice: u8,
}

#[derive(Clone, Debug)]
pub(super) struct Log {
    pub(super) view: ContentsView,
    pub(super) events: Vec<Arc<Event>>,
}

const AGENTS: [&str; 3] = ["alpha", "beta", "gamma"];
const IDS: [&str; 6] = ["c1", "c2", "adk-1", "c3", "c4", "adk-2"];
const TOOLS: [&str; 3] = ["look", "book", "alpha"];
const BRANCHES: [&str; 8] =
    ["", "root", "root.alpha", "root.beta", "look@c1", "root.alpha@c1", "root.book@c2.beta@7", "look@adk-1"];
const SCOPES: [&str; 3] = ["", "c1", "c2"];
const FRAMEWORK: [&str; 4] =
    ["adk_request_credential", "adk_request_confirmation", "adk_framework", "adk_request_input"];

pub(super) fn log() -> impl Strategy<Value = Log> {
    (world(), vec(step(), 1..14), view()).prop_map(|(world, steps, view)| {
        let mut writer = Writer { world: &world, events: Vec::new(), now: 100, asked: Vec::new(), number: 0 };
        for step in &steps {
            writer.write(step);
        }
        Log { events: writer.events.into_iter().map(Arc::new).collect(), view: fit(view, &world) }
    })
}

fn world() -> impl Strategy<Value = World> {
    let trouble = proptest::array::uniform6(proptest::bool::weighted(0.3));
    (
        1..=3usize,
        0..=6usize,
        proptest::bool::weighted(0.4),
        small(BRANCHES.len()),
        small(3),
        1..=3usize,
        0..3i64,
        trouble,
    )
        .prop_map(|(agents, ids, idless, branches, scopes, runs, clock, trouble)| World {
            agents,
            ids,
            idless: idless || ids == 0,
            branches,
            scopes,
            runs,
            clock,
            trouble,
        })
}

/// Mostly one, else up to `most`.
fn small(most: usize) -> impl Strategy<Value = usize> {
    prop_oneof![2 => Just(1usize), 1 => 1..=most]
}

fn step() -> impl Strategy<Value = Step> {
    (
        any::<u8>(),
        any::<u8>(),
        any::<u8>(),
        any::<u8>(),
        any::<u8>(),
        vec(any::<(u8, u8)>(), 1..4),
        any::<u8>(),
    )
        .prop_map(|(kind, who, place, run, tick, items, dice)| Step {
            kind,
            who,
            place,
            run,
            tick,
            items,
            dice,
        })
}

fn view() -> impl Strategy<Value = ContentsView> {
    let flags = proptest::array::uniform7(proptest::bool::weighted(0.2));
    (0..4usize, 0..4usize, 0..3usize, flags).prop_map(|(agent, branch, scope, flags)| ContentsView {
        agent: AGENTS.get(agent).copied().unwrap_or("alpha").into(),
        branch: some(BRANCHES[branch]),
        isolation_scope: some(SCOPES[scope]),
        single_turn: flags[0],
        current_turn_only: flags[1],
        keep_client_ids: flags[2],
        foreign_thoughts: flags[3],
        plain_thoughts: flags[4],
        no_display_names: flags[5],
        code_as_words: flags[6].then(|| {
            let (code, result) = (Fence::named("tool_code"), Fence::named("tool_output"));
            Arc::new(CodeWords { code, result })
        }),
    })
}

/// A view on a scope or branch that a log does not have sees next to nothing.
fn fit(mut view: ContentsView, world: &World) -> ContentsView {
    view.branch = view.branch.filter(|_| world.branches > 1);
    view.isolation_scope = view.isolation_scope.filter(|_| world.scopes > 1);
    view
}

fn some<T: for<'a> From<&'a str>>(text: &str) -> Option<T> {
    (!text.is_empty()).then(|| text.into())
}

struct Writer<'a> {
    world: &'a World,
    events: Vec<Event>,
    now: i64,
    /// Calls so far.
    asked: Vec<FunctionCall>,
    number: u32,
}

impl Writer<'_> {
    fn write(&mut self, step: &Step) {
        let trouble = self.world.trouble;
        match step.kind {
            0..60 => self.say(step),
            60..100 => self.call(step),
            100..150 => {
                self.call(step);
                self.answer_at_once(step);
            }
            150..185 => self.answer(step),
            185..192 => self.framework(step),
            192..198 => self.nothing(step),
            198..204 => self.mixed(step),
            204..216 if trouble[0] => self.summarise(step),
            216..224 if trouble[1] => self.rewind(step),
            224..240 if trouble[2] => self.speak(step),
            240..246 if trouble[3] => self.mixed(step),
            246..250 if trouble[4] => self.live(step),
            250..=255 if trouble[5] => self.transfer(step),
            _ => self.answer_last(step),
        }
    }

    fn event(&mut self, step: &Step) -> Event {
        let world = self.world;
        self.now += match world.clock {
            0 => 1,
            1 => i64::from(step.tick.is_multiple_of(3)),
            _ => [-3, -1, 0, 1, 1, 2][usize::from(step.tick) % 6],
        };
        let who = usize::from(step.who) % (world.agents + 1);
        let source = Source {
            author: AGENTS.get(who).copied().filter(|_| who < world.agents).unwrap_or("user").into(),
            branch: some(BRANCHES[usize::from(step.place) % world.branches]),
            isolation_scope: some(SCOPES[usize::from(step.place / 16) % world.scopes]),
        };
        let run = format!("r{}", usize::from(step.run) % world.runs);
        let mut event =
            Event { timestamp: self.now as f64, ..Event::new(RunId::from(run), Arc::new(source)) };
        if step.tick.is_multiple_of(2) {
            event.id = format!("e{}", self.events.len() % 12).into();
        }
        event
    }

    fn push(&mut self, mut event: Event, parts: Vec<Part>, dice: u8) {
        let role = if event.is_user() { Role::User } else { Role::Model };
        let ids: Vec<CallId> = parts.iter().filter_map(|part| part.as_call()?.id.clone()).collect();
        match dice {
            0..30 if !ids.is_empty() => event.long_running_tool_ids = Some(Box::new(ids)),
            30..33 => event.long_running_tool_ids = Some(Box::new(vec!["c1".into()])),
            _ => {}
        }
        let role = Some(role).filter(|_| dice != 40);
        event.content = Some(Arc::new(Content { role, parts: parts.into_iter().collect() }));
        self.events.push(event);
    }

    fn text(&mut self, dice: u8) -> Part {
        self.number += 1;
        let text = format!("t{}", self.number);
        match dice {
            0..10 => Part::thought(text),
            10..15 => Part::text(" "),
            15..20 => Part::text(""),
            20..25 => Part::thought(text).with_signature("AQID"),
            25..30 => media(),
            30..33 => code(dice, text),
            33..36 => code_result(dice, text),
            _ => Part::text(text),
        }
    }

    fn id(&self, index: u8) -> Option<CallId> {
        let ids = self.world.ids + usize::from(self.world.idless);
        IDS.get(usize::from(index) % ids)
            .filter(|_| usize::from(index) % ids < self.world.ids)
            .map(|id| (*id).into())
    }

    fn new_call(&mut self, (id, name): (u8, u8)) -> Part {
        self.number += 1;
        let args: Object = if name > 200 { Object::new() } else { number("n", self.number) };
        let mut call = FunctionCall::new(TOOLS[usize::from(name) % 3], args);
        call.id = self.id(id);
        self.asked.push(call.clone());
        Part::call(call)
    }

    fn response(&mut self, call: &FunctionCall) -> Part {
        self.number += 1;
        Part::response(FunctionResponse::new(call.id.clone(), call.name.clone(), number("r", self.number)))
    }

    fn say(&mut self, step: &Step) {
        let event = self.event(step);
        let parts = step.items.iter().map(|(dice, _)| self.text(*dice)).collect();
        self.push(event, parts, step.dice);
    }

    fn call(&mut self, step: &Step) {
        let event = self.event(step);
        let mut parts: Vec<Part> = step.items.iter().map(|item| self.new_call(*item)).collect();
        if step.dice > 230 {
            parts.insert(0, self.text(step.tick));
        }
        self.push(event, parts, step.dice);
    }

    /// Answers the calls just made, all or nearly all, in order or not.
    fn answer_at_once(&mut self, step: &Step) {
        let Some(calls) = self.events.last().cloned() else { return };
        let mut event =
            Event { timestamp: self.now as f64, ..Event::new(calls.run.clone(), calls.source.clone()) };
        if step.tick.is_multiple_of(16) {
            event.source = Source::user();
        }
        let mut parts: Vec<Part> = calls.calls().map(|call| self.response(call)).collect();
        match step.dice {
            100..120 => parts.reverse(),
            120..125 => drop(parts.pop()),
            125..130 => parts.extend(parts.first().cloned()),
            _ => {}
        }
        self.push(event, parts, 255);
    }

    /// Answers calls of any time.
    fn answer(&mut self, step: &Step) {
        let mut event = self.event(step);
        let mut parts = Vec::new();
        for (pick, other) in &step.items {
            let known = self.asked.get(usize::from(*pick) % self.asked.len().max(1)).cloned();
            let call = known.filter(|_| *other < 220).unwrap_or_else(|| FunctionCall {
                id: self.id(*pick),
                ..FunctionCall::new(TOOLS[usize::from(*other) % 3], Object::new())
            });
            parts.push(self.response(&call));
        }
        if step.dice > 240 {
            parts.push(self.text(step.tick));
        } else if step.dice > 230 {
            let asked = [("c1".into(), Confirmation::default())];
            event.actions_mut().requested_tool_confirmations = Some(asked.into_iter().collect());
        }
        self.push(event, parts, step.dice);
    }

    /// Answers the last call once more, or for the first time.
    fn answer_last(&mut self, step: &Step) {
        let Some(call) = self.asked.last().cloned() else { return self.say(step) };
        let event = self.event(step);
        let part = self.response(&call);
        self.push(event, vec![part], step.dice);
    }

    fn mixed(&mut self, step: &Step) {
        let event = self.event(step);
        let mut parts = Vec::new();
        for item in &step.items {
            let part = match item.1 % 3 {
                0 => self.new_call(*item),
                1 => {
                    let call =
                        FunctionCall { id: self.id(item.0), ..FunctionCall::new("look", Object::new()) };
                    self.response(&call)
                }
                _ => self.text(item.0),
            };
            parts.push(part);
        }
        self.push(event, parts, step.dice);
    }

    fn framework(&mut self, step: &Step) {
        let event = self.event(step);
        let call = FunctionCall::new(FRAMEWORK[usize::from(step.tick) % 4], Object::new());
        let call = FunctionCall { id: self.id(step.dice), ..call };
        let part = if step.dice.is_multiple_of(2) { Part::call(call) } else { self.response(&call) };
        self.push(event, vec![part], 255);
    }

    fn nothing(&mut self, step: &Step) {
        let mut event = self.event(step);
        event.actions_mut().set_state("k", 1);
        self.events.push(event);
    }

    fn summarise(&mut self, step: &Step) {
        let mut event = self.event(step);
        let now = self.now;
        let ago = |ticks: u8| (now - i64::from(ticks)) as f64;
        self.number += 1;
        let mut content = Content::model(Part::text(format!("summary {}", self.number)));
        if step.dice > 230 {
            content.parts.push(self.new_call(step.items[0]));
        }
        event.actions_mut().compaction = Some(Box::new(Compaction {
            start_timestamp: Some(ago(step.dice % 9)),
            end_timestamp: Some(ago(step.tick % 4) + f64::from(u8::from(step.tick > 220))),
            compacted_content: Some(Arc::new(content)),
            unknown: Object::new(),
        }));
        if step.place.is_multiple_of(2) {
            let id = |ago: u8| format!("e{}", self.events.len().saturating_sub(usize::from(ago)) % 12).into();
            CompactionRange { first: id(step.dice % 9), last: id(step.tick % 4) }.put(&mut event);
        }
        match step.dice {
            0..20 => self.push(event, vec![Part::text("beside a summary")], 255),
            20..40 => {
                let part = self.new_call(step.items[0]);
                self.push(event, vec![part], 255);
            }
            _ => self.events.push(event),
        }
    }

    fn rewind(&mut self, step: &Step) {
        let mut event = self.event(step);
        let run = format!("r{}", usize::from(step.dice) % (self.world.runs + 1));
        event.actions_mut().rewind_before_invocation_id = Some(run.into());
        self.events.push(event);
    }

    fn speak(&mut self, step: &Step) {
        let mut event = self.event(step);
        self.number += 1;
        let text = (step.dice > 30).then(|| format!("s{} ", self.number));
        let said = Some(Transcription { text, unknown: Object::new() });
        let both = step.tick.is_multiple_of(8);
        if both || step.dice.is_multiple_of(2) {
            event.meta_mut().input_transcription = said.clone();
        }
        if both || !step.dice.is_multiple_of(2) {
            event.meta_mut().output_transcription = said;
        }
        if step.tick < 30 {
            event.content = Some(Arc::new(Content::model(self.text(step.dice))));
        }
        self.events.push(event);
    }

    fn live(&mut self, step: &Step) {
        self.call(step);
        if let Some(event) = self.events.last_mut() {
            event.meta_mut().live_session_id = Some("live".into());
        }
        self.answer_at_once(step);
    }

    fn transfer(&mut self, step: &Step) {
        let mut event = self.event(step);
        let call =
            FunctionCall { id: self.id(step.dice), ..FunctionCall::new("transfer_to_agent", Object::new()) };
        self.asked.push(call.clone());
        event.actions_mut().transfer_to_agent = Some("beta".into());
        self.push(event, vec![Part::call(call)], step.dice);
        self.answer_at_once(step);
    }
}

fn code(dice: u8, text: String) -> Part {
    let code = ExecutableCode { id: code_id(dice), code: Some(text), ..ExecutableCode::default() };
    Part::new(Payload::Code(Box::new(code)))
}

fn code_result(dice: u8, text: String) -> Part {
    let result = CodeResult { id: code_id(dice), output: Some(text), ..CodeResult::default() };
    Part::new(Payload::CodeResult(Box::new(result)))
}

fn code_id(dice: u8) -> Option<CallId> {
    [Some("adk-1"), Some("c1"), None].get(usize::from(dice) % 3).copied().flatten().map(CallId::from)
}

fn media() -> Part {
    let file = FileData { display_name: Some("a picture".into()), ..FileData::default() };
    Part::new(Payload::FileData(Box::new(file)))
}

fn number(key: &str, number: u32) -> Object {
    [(key.to_owned(), number.into())].into_iter().collect()
}
