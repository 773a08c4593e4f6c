//! What clients send and logs hold costs no more than its size.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use umbel_agui::patch::{PatchOp, diff};
use umbel_agui::{Cast, Conversation, Message, Translator};
use umbel_core::{Actions, Event, EventId, FunctionCall, FunctionResponse, Part, RunId, Source};
use umbel_core::{Content, Role};

/// The processor time of this thread, whatever else the machine does.
fn cpu_time() -> Duration {
    rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime).try_into().unwrap()
}

/// Eight times as much takes about eight times as long, or somewhat more where it does not fit into caches any more. A square
/// would be 64 times.
fn assert_linear<T>(what: &str, size: usize, make: impl Fn(usize) -> T, work: impl Fn(&T) -> usize) {
    let cost = |size: usize| {
        let input = make(size);
        let time = || {
            let began = cpu_time();
            assert!(work(&input) > 0, "{what}: nothing was done");
            cpu_time() - began
        };
        (0..5).map(|_| time()).min().unwrap()
    };
    let (one, eight) = (cost(size), cost(8 * size));
    assert!(eight < one * 32, "{what}: {one:?} for {size}, and {eight:?} for eight times as many");
}

fn event(id: usize, run: &str, author: &str, parts: Vec<Part>) -> Arc<Event> {
    let mut event = Event::new(RunId::from(run), Arc::new(Source::new(author)));
    let role = if author == "user" { Role::User } else { Role::Model };
    event.content = Some(Arc::new(Content::new(role, parts)));
    event.id = EventId::from(format!("e{id}"));
    Arc::new(event)
}

fn cast() -> Arc<Cast> {
    Arc::new(Cast { root: "root".into(), ..Cast::default() })
}

#[test]
fn reading_a_thread_costs_its_length() {
    let calls = |size: usize| {
        let call =
            |n: usize| Part::call(FunctionCall::new("t", umbel_core::Object::new()).with_id(format!("c{n}")));
        let answer = |n: usize| {
            let response = json!({"n": n}).as_object().cloned().unwrap();
            Part::response(FunctionResponse::new(Some(format!("c{n}").into()), "t", response))
        };
        let asked = (0..size).map(|n| event(n, "r", "root", vec![Part::text("so"), call(n)]));
        // All that was asked is answered later, from the first to the last.
        let answered = (0..size).map(|n| event(size + n, "r", "root", vec![answer(n)]));
        asked.chain(answered).collect::<Vec<_>>()
    };
    let read = |events: &Vec<Arc<Event>>| umbel_agui::messages(&cast(), events, true).len();
    assert_linear("calls and results", 1_000, calls, read);
    let words =
        |size| (0..size).map(|n| event(n, "r", ["user", "root"][n % 2], vec![Part::text("so")])).collect();
    assert_linear("words", 4_000, words, read);
}

#[test]
fn reading_a_thread_that_was_rewound_often_costs_its_length() {
    let rewound = |size: usize| {
        let kept = (0..size).map(|n| event(n, &format!("kept{n}"), "user", vec![Part::text("so")]));
        let void = (0..size).flat_map(|n| {
            let run = format!("void{n}");
            let actions =
                Actions { rewind_before_invocation_id: Some(run.as_str().into()), ..Actions::default() };
            let rewind = Event::new(RunId::from("w"), Source::user()).with_actions(actions);
            [event(size + n, &run, "user", vec![Part::text("no")]), Arc::new(rewind)]
        });
        kept.chain(void).collect::<Vec<_>>()
    };
    let read = |events: &Vec<Arc<Event>>| {
        let messages = umbel_agui::messages(&cast(), events, true);
        assert_eq!(messages.len() * 3, events.len(), "what was rewound is gone");
        messages.len()
    };
    assert_linear("rewinds", 2_000, rewound, read);
}

#[test]
fn a_rewind_that_is_taken_back_brings_back_what_it_took() {
    let rewind = |id: usize, run: &str, before: &str| {
        let actions = Actions { rewind_before_invocation_id: Some(before.into()), ..Actions::default() };
        let mut event = Event::new(RunId::from(run), Source::user()).with_actions(actions);
        event.id = EventId::from(format!("e{id}"));
        Arc::new(event)
    };
    let mut log = vec![event(0, "r1", "user", vec![Part::text("so")]), rewind(1, "w1", "r1")];
    assert!(umbel_agui::messages(&cast(), &log, true).is_empty());
    log.push(rewind(2, "w2", "w1"));
    assert_eq!(umbel_agui::messages(&cast(), &log, true).len(), 1, "as models see it");
}

fn messages(size: usize) -> Vec<Message> {
    let message = |form: Value| serde_json::from_value(form).unwrap();
    let calls = (0..size).map(|n| {
        let call =
            json!({"id": format!("c{n}"), "type": "function", "function": {"name": "t", "arguments": "{}"}});
        message(json!({"role": "assistant", "id": format!("a{n}"), "toolCalls": [call]}))
    });
    let results = (0..size).map(|n| {
        message(
            json!({"role": "tool", "id": format!("t{n}"), "toolCallId": format!("c{n}"), "content": "{}"}),
        )
    });
    calls.chain(results).collect()
}

#[test]
fn taking_over_a_conversation_costs_its_length() {
    let taken = |messages: &Vec<Message>| {
        let events = umbel_agui::inbound::history(messages, &"root".into(), &RunId::from("r"), 1.0);
        assert_eq!(events.len(), messages.len());
        events.len()
    };
    assert_linear("history", 2_000, messages, taken);
    let folded =
        |messages: &Vec<Message>| messages.iter().cloned().collect::<Conversation>().messages().count();
    assert_linear("a snapshot", 2_000, messages, folded);
}

#[test]
fn a_difference_takes_no_more_than_the_value_however_long_its_keys_are() {
    let key = "k".repeat(100_000);
    let state = |value: u32| {
        let fields: umbel_core::Object = (0..60_000).map(|n| (format!("f{n}"), json!(value))).collect();
        json!({&key: fields, "other": 1})
    };
    let (old, new) = (state(1), state(2));
    let steps = diff(&old, &new, "");
    assert_eq!(steps.len(), 1);
    let told = serde_json::to_string(&steps).unwrap().len();
    assert!(told < serde_json::to_string(&new).unwrap().len() + 200, "{told}");
    let mut patched = old;
    umbel_agui::patch::apply(&mut patched, &steps).unwrap();
    assert_eq!(patched, new);
}

#[test]
fn a_difference_is_told_by_the_shorter_way_at_each_level() {
    let old = json!({"a": {"x": 1, "y": {"long": "z".repeat(100), "n": 1}}, "b": [1, 2, 3, 4]});
    let new = json!({"a": {"x": 1, "y": {"long": "z".repeat(100), "n": 2}}, "b": [9, 8, 7, 6]});
    let steps = diff(&old, &new, "");
    let replace = |path: &str, value: Value| PatchOp::Replace { path: path.to_owned(), value };
    assert_eq!(steps, [replace("/a/y/n", json!(2)), replace("/b", json!([9, 8, 7, 6]))]);
}

/// How many events tell what happened.
fn told(events: &[Arc<Event>]) -> usize {
    let cast = Cast { root: "root".into(), ..Cast::default() };
    let (mut translator, mut count) = (Translator::new(Arc::new(cast), "t", "r", true), 0);
    translator.begin(None, None, umbel_core::Object::new(), Vec::new(), &mut |_| {});
    events.iter().for_each(|event| translator.event(event, &mut |_| count += 1));
    count
}

#[test]
fn turns_of_agents_and_keys_that_go_cost_their_number() {
    let turns = |size: usize| {
        let turn =
            |n: usize| event(n, "r", if n.is_multiple_of(2) { "one" } else { "two" }, vec![Part::text("so")]);
        (0..size).map(turn).collect::<Vec<_>>()
    };
    assert_linear("turns of agents", 1_000, turns, |events| told(events));
    let keys = |size: usize| {
        let set = |n: usize, value: fn(usize) -> Value| {
            let delta: umbel_core::Object = (0..size).map(|key| (format!("k{key}"), value(key))).collect();
            let mut event = Event::clone(&event(n, "r", "root", vec![Part::text("so")]));
            event.actions = Some(Box::new(Actions { state_delta: Some(delta), ..Actions::default() }));
            Arc::new(event)
        };
        vec![set(1, |key| json!(key)), set(2, |_| Value::Null)]
    };
    assert_linear("keys that go", 2_000, keys, |events| told(events));
}
