//! What other middlewares got wrong with what clients send: histories that came from elsewhere, messages that come again,
//! ids that change, and instructions.

use std::borrow::Cow;
use std::sync::Arc;

use serde_json::value::RawValue;
use serde_json::{Value, json};
use umbel_agui::{Cast, InputLimits, Message, NewMessages, inbound};
use umbel_core::{Event, RunId};

fn raw(messages: &[Value]) -> Vec<Cow<'static, RawValue>> {
    messages.iter().map(|one| Cow::Owned(RawValue::from_string(one.to_string()).unwrap())).collect()
}

fn find(messages: &[Value], known: &[&str]) -> NewMessages {
    let is_known = |id: &str| known.contains(&id);
    NewMessages::find(&raw(messages), &InputLimits::default(), |_| false, is_known).unwrap()
}

fn ids(messages: &[Message]) -> Vec<&str> {
    messages.iter().map(|message| message.id().as_str()).collect()
}

fn user(id: &str, text: &str) -> Value {
    json!({"id": id, "role": "user", "content": text})
}

fn assistant(id: &str, text: &str) -> Value {
    json!({"id": id, "role": "assistant", "content": text})
}

#[test]
fn only_what_follows_the_last_known_message_is_new() {
    let sent = [user("m1", "a"), assistant("m2", "b"), user("m3", "c")];
    assert_eq!(ids(&find(&sent, &["m1", "m2"]).turn), ["m3"]);
    assert_eq!(ids(&find(&sent, &["m2"]).turn), ["m3"], "what stands before it is known, too");
    assert_eq!(ids(&find(&sent, &["m3"]).turn), [""; 0]);
    assert_eq!(ids(&find(&sent[2..], &["m1", "m2"]).turn), ["m3"], "the last message alone will do");
}

#[test]
fn a_message_that_comes_twice_in_one_input_is_said_once_as_it_was_sent_last() {
    let found = find(&[user("m1", "first form"), user("m2", "b"), user("m1", "last form")], &[]);
    assert_eq!(ids(&found.turn), ["m2", "m1"]);
    assert!(
        matches!(&found.turn[1], Message::User(one) if one.content == umbel_agui::MessageContent::Text("last form".into()))
    );
}

#[test]
fn what_was_said_elsewhere_is_history_and_the_rest_is_said_now() {
    let sent = [
        json!({"id": "s", "role": "system", "content": "Be brief."}),
        user("m1", "a"),
        json!({"id": "th", "role": "reasoning", "content": "hm"}),
        assistant("m2", "b"),
        json!({"id": "act", "role": "activity", "activityType": "x", "content": {}}),
        user("m3", "c"),
        user("m4", "d"),
    ];
    let found = find(&sent, &[]);
    assert_eq!((ids(&found.history), ids(&found.turn)), (vec!["m1", "m2"], vec!["m3", "m4"]));
    assert_eq!(found.instruction.as_deref(), Some("Be brief."));
}

#[test]
fn instructions_count_in_every_run_whether_their_message_is_known_or_not() {
    let sent = [
        json!({"id": "s", "role": "system", "content": "Be brief."}),
        json!({"id": "d", "role": "developer", "content": "Be kind."}),
        user("m1", "a"),
        assistant("m2", "b"),
        user("m3", "c"),
    ];
    for known in [&[][..], &["m2"], &["s", "d", "m1", "m2"]] {
        assert_eq!(find(&sent, known).instruction.as_deref(), Some("Be brief.\n\nBe kind."), "{known:?}");
    }
}

#[test]
fn a_history_keeps_its_ids_and_the_calls_that_have_results() {
    let calls = json!([
        {"id": "c1", "type": "function", "function": {"name": "look", "arguments": "{\"at\": 1}"}},
        {"id": "c2", "type": "function", "function": {"name": "look", "arguments": "not json"}},
        {"id": "c3", "type": "function", "function": {"name": "look", "arguments": "{}"}},
    ]);
    let sent = [
        user("m1", "a"),
        json!({"id": "m2", "role": "assistant", "content": "Let me see", "toolCalls": calls}),
        json!({"id": "m3", "role": "tool", "toolCallId": "c1", "content": "seen"}),
        json!({"id": "m4", "role": "tool", "toolCallId": "c2", "content": "{\"x\": 1}"}),
        json!({"id": "m5", "role": "tool", "toolCallId": "nobody", "content": "stray"}),
        json!({"id": "m6", "role": "assistant", "toolCalls": []}),
        assistant("m7", "There"),
    ];
    let found = find(&sent, &[]);
    let events = inbound::history(&found.history, &"root".into(), &RunId::from("r0"), 7.0);
    let events: Vec<Arc<Event>> = events.into_iter().map(Arc::new).collect();
    let cast = Arc::new(Cast { root: "root".into(), ..Cast::default() });
    let told = serde_json::to_value(umbel_agui::messages(&cast, &events, true)).unwrap();
    let calls: Vec<&Value> =
        told[1]["toolCalls"].as_array().unwrap().iter().map(|call| &call["id"]).collect();
    assert_eq!(calls, ["c1", "c2"], "one without a result would leave the model waiting");
    let roles: Vec<&Value> = told.as_array().unwrap().iter().map(|one| &one["role"]).collect();
    assert_eq!(roles, ["user", "assistant", "tool", "tool", "assistant"], "{told}");
    assert_eq!((&told[0]["id"], &told[1]["id"], &told[4]["id"]), (&json!("m1"), &json!("m2"), &json!("m7")));
    assert_eq!((&told[2]["content"], &told[3]["content"]), (&json!("seen"), &json!("{\"x\":1}")));
    // All of it is known when the client sends it again.
    let mut known: Vec<String> =
        events.iter().flat_map(|event| umbel_agui::ids(event)).map(|id| id.to_string()).collect();
    known.push("m5".to_owned());
    let known: Vec<&str> = known.iter().map(String::as_str).collect();
    for cut in 1..=sent.len() {
        if cut != 6 {
            let found = find(&sent[..cut], &known);
            assert!(found.turn.is_empty() && found.history.is_empty(), "{cut}: {found:?}");
        }
    }
}
