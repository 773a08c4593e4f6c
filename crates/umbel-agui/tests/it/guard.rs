//! What passes the guard is accepted by every reader.

use proptest::prelude::*;
use serde_json::{Value, json};
use umbel_agui::{AguiEvent, Guard, testing};

use crate::rules::Reader;

fn event(form: &Value) -> AguiEvent<'static> {
    serde_json::from_value(form.clone()).unwrap_or_else(|error| panic!("{form}: {error}"))
}

/// What comes out for what goes in, and which events were refused.
struct Passed {
    out: Vec<Value>,
    refused: Vec<String>,
    repairs: u64,
}

fn pass(events: &[Value]) -> Passed {
    let mut guard = Guard::new();
    let (mut out, mut refused) = (Vec::new(), Vec::new());
    for form in events {
        let mut sink = |event: &AguiEvent<'_>| out.push(serde_json::to_value(event).unwrap());
        let passed = guard.pass(&event(form), &mut sink);
        refused.extend(passed.err().map(|refusal| refusal.to_string()));
    }
    testing::record_stream(&out).unwrap();
    Passed { out, refused, repairs: guard.repairs() }
}

fn run_started() -> Value {
    json!({"type": "RUN_STARTED", "threadId": "t", "runId": "r"})
}

fn run_finished() -> Value {
    json!({"type": "RUN_FINISHED", "threadId": "t", "runId": "r"})
}

fn types(events: &[Value]) -> Vec<&str> {
    events.iter().map(|event| event["type"].as_str().unwrap()).collect()
}

#[test]
fn what_is_open_is_closed_from_within_before_a_run_finishes() {
    let start = |kind: &str, key: &str, more: Value| {
        let mut form = json!({"type": kind, key: "x", "subagentRunId": "s"});
        form.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        form
    };
    let passed = pass(&[
        run_started(),
        json!({"type": "STEP_STARTED", "stepName": "outer"}),
        json!({"type": "SUBAGENT_STARTED", "subagentRunId": "s", "name": "n"}),
        start("STEP_STARTED", "stepName", json!({})),
        start("REASONING_START", "messageId", json!({})),
        start("REASONING_MESSAGE_START", "messageId", json!({"role": "reasoning"})),
        start("TEXT_MESSAGE_START", "messageId", json!({})),
        start("TOOL_CALL_START", "toolCallId", json!({"toolCallName": "t"})),
        run_finished(),
    ]);
    let closing: Vec<_> =
        passed.out.iter().skip(8).map(|event| (&event["type"], &event["subagentRunId"])).collect();
    let (of_s, of_none) = (json!("s"), Value::Null);
    let expected = [
        ("TOOL_CALL_END", &of_s),
        ("TEXT_MESSAGE_END", &of_s),
        ("REASONING_MESSAGE_END", &of_s),
        ("REASONING_END", &of_s),
        ("STEP_FINISHED", &of_s),
        ("SUBAGENT_FINISHED", &of_s),
        ("STEP_FINISHED", &of_none),
        ("RUN_FINISHED", &of_none),
    ];
    assert_eq!(closing.len(), expected.len());
    for ((kind, owner), (expected_kind, expected_owner)) in closing.into_iter().zip(expected) {
        assert_eq!((kind.as_str().unwrap(), owner), (expected_kind, expected_owner));
    }
    assert_eq!(passed.repairs, 7);
}

#[test]
fn a_sub_agent_that_is_at_work_ends_as_its_run_does() {
    let finished = |outcome: Value| {
        let mut form = run_finished();
        form["outcome"] = outcome;
        form
    };
    let ends = [
        (run_finished(), json!({"type": "SUBAGENT_FINISHED", "subagentRunId": "s"})),
        (
            finished(json!({"type": "interrupt", "interrupts": [
                {"id": "i", "reason": "confirmation", "subagentRunId": "s"}, {"id": "j", "reason": "confirmation"}]})),
            json!({"type": "SUBAGENT_FINISHED", "subagentRunId": "s",
                   "outcome": {"type": "suspended", "interruptIds": ["i"]}}),
        ),
        (
            finished(json!({"type": "cancelled"})),
            json!({"type": "SUBAGENT_ERROR", "subagentRunId": "s", "code": "CANCELLED",
                   "message": "The run was cancelled before the sub-agent was done."}),
        ),
        (
            json!({"type": "RUN_ERROR", "message": "m", "code": "MODEL"}),
            json!({"type": "SUBAGENT_ERROR", "subagentRunId": "s", "code": "MODEL",
                   "message": "The run failed before the sub-agent was done."}),
        ),
    ];
    for (terminal, expected) in ends {
        let started = json!({"type": "SUBAGENT_STARTED", "subagentRunId": "s", "name": "n"});
        let passed = pass(&[run_started(), started, terminal]);
        assert_eq!(passed.out[2], expected);
    }
}

#[test]
fn ends_of_what_is_not_open_and_starts_of_what_is_are_left_out_and_counted() {
    let start = json!({"type": "TEXT_MESSAGE_START", "messageId": "m"});
    let end = json!({"type": "TEXT_MESSAGE_END", "messageId": "m"});
    let passed =
        pass(&[run_started(), start.clone(), start.clone(), end.clone(), end.clone(), run_finished()]);
    assert_eq!(passed.out, [run_started(), start, end, run_finished()]);
    assert_eq!((passed.repairs, passed.refused), (2, Vec::new()));
}

#[test]
fn what_cannot_be_repaired_is_refused_and_says_why() {
    let content = json!({"type": "TEXT_MESSAGE_CONTENT", "messageId": "m", "delta": "x"});
    let started = json!({"type": "SUBAGENT_STARTED", "subagentRunId": "s", "name": "n"});
    let child =
        json!({"type": "SUBAGENT_STARTED", "subagentRunId": "c", "name": "n", "parentSubagentRunId": "p"});
    let done = json!({"type": "SUBAGENT_FINISHED", "subagentRunId": "s"});
    let passed = pass(&[
        content.clone(),
        run_started(),
        run_started(),
        content.clone(),
        json!({"type": "TEXT_MESSAGE_START", "messageId": "m"}),
        json!({"type": "TEXT_MESSAGE_CONTENT", "messageId": "m", "delta": "x", "subagentRunId": "s"}),
        json!({"type": "TOOL_CALL_START", "toolCallId": "c", "toolCallName": "t", "parentMessageId": "m",
               "subagentRunId": "s"}),
        child,
        started.clone(),
        done,
        started,
        run_finished(),
        content,
    ]);
    let why = [
        "TEXT_MESSAGE_CONTENT cannot be sent: a run has to begin first",
        "RUN_STARTED cannot be sent: a run is under way",
        "TEXT_MESSAGE_CONTENT cannot be sent: the text message `m` is not open",
        "TEXT_MESSAGE_CONTENT cannot be sent: `m` belongs to the agent itself, and the event is marked with sub-agent `s`",
        "TOOL_CALL_START cannot be sent: `m` belongs to the agent itself, and the event is marked with sub-agent `s`",
        "SUBAGENT_STARTED cannot be sent: its parent `p` has not begun",
        "SUBAGENT_STARTED cannot be sent: the sub-agent's run `s` is over; another one needs its own id",
        "TEXT_MESSAGE_CONTENT cannot be sent: the run has ended; only a new run may follow",
    ];
    assert_eq!(passed.refused, why);
}

#[test]
fn exactly_one_event_ends_a_run_however_often_it_is_ended() {
    let mut guard = Guard::new();
    let mut out = Vec::new();
    let mut sink = |event: &AguiEvent<'_>| out.push(serde_json::to_value(event).unwrap());
    let failed = event(&json!({"type": "RUN_ERROR", "message": "m"}));
    assert!(guard.finish(&event(&run_finished()), &mut sink).is_err(), "it has not begun");
    guard.pass(&event(&run_started()), &mut sink).unwrap();
    assert!(guard.finish(&event(&run_started()), &mut sink).is_err(), "it is no end");
    guard.pass(&event(&json!({"type": "TEXT_MESSAGE_START", "messageId": "m"})), &mut sink).unwrap();
    assert!(!guard.is_over());
    guard.finish(&event(&run_finished()), &mut sink).unwrap();
    assert!(guard.is_over());
    guard.finish(&failed, &mut sink).unwrap();
    assert_eq!(guard.repairs(), 0);
    guard.pass(&failed, &mut sink).unwrap();
    assert_eq!(guard.repairs(), 1);
    assert_eq!(types(&out), ["RUN_STARTED", "TEXT_MESSAGE_START", "TEXT_MESSAGE_END", "RUN_FINISHED"]);
}

#[test]
fn a_run_that_fails_before_it_begins_is_one_event() {
    let failed = json!({"type": "RUN_ERROR", "message": "m"});
    let passed = pass(&[failed.clone(), run_started(), run_finished()]);
    assert_eq!(passed.out, [failed, run_started(), run_finished()]);
}

#[test]
fn chunks_are_spelled_out() {
    let chunk = |form: Value| {
        let mut chunk = json!({"type": "TEXT_MESSAGE_CHUNK"});
        chunk.as_object_mut().unwrap().extend(form.as_object().unwrap().clone());
        chunk
    };
    let passed = pass(&[
        run_started(),
        chunk(json!({"messageId": "a", "delta": "1", "name": "n", "role": "user"})),
        chunk(json!({"delta": "2", "rawEvent": 7})),
        json!({"type": "RAW", "event": null}),
        chunk(json!({"metadata": {"k": 1}})),
        chunk(json!({"messageId": "b"})),
        chunk(json!({"messageId": "s", "subagentRunId": "s", "delta": "3"})),
        json!({"type": "TOOL_CALL_CHUNK", "toolCallId": "c", "toolCallName": "t", "parentMessageId": "b", "delta": "{}"}),
        json!({"type": "REASONING_MESSAGE_CHUNK", "messageId": "r", "delta": "4"}),
        json!({"type": "CUSTOM", "name": "n", "value": null}),
        chunk(json!({"delta": "5"})),
        run_finished(),
    ]);
    let expected = [
        run_started(),
        json!({"type": "TEXT_MESSAGE_START", "messageId": "a", "role": "user", "name": "n"}),
        json!({"type": "TEXT_MESSAGE_CONTENT", "messageId": "a", "delta": "1"}),
        json!({"type": "TEXT_MESSAGE_CONTENT", "messageId": "a", "delta": "2", "rawEvent": 7}),
        json!({"type": "RAW", "event": null}),
        json!({"type": "TEXT_MESSAGE_CONTENT", "messageId": "a", "delta": "", "metadata": {"k": 1}}),
        json!({"type": "TEXT_MESSAGE_END", "messageId": "a"}),
        json!({"type": "TEXT_MESSAGE_START", "messageId": "b"}),
        json!({"type": "TEXT_MESSAGE_START", "messageId": "s", "subagentRunId": "s"}),
        json!({"type": "TEXT_MESSAGE_CONTENT", "messageId": "s", "delta": "3", "subagentRunId": "s"}),
        json!({"type": "TEXT_MESSAGE_END", "messageId": "b"}),
        json!({"type": "TOOL_CALL_START", "toolCallId": "c", "toolCallName": "t", "parentMessageId": "b"}),
        json!({"type": "TOOL_CALL_ARGS", "toolCallId": "c", "delta": "{}"}),
        json!({"type": "TOOL_CALL_END", "toolCallId": "c"}),
        json!({"type": "REASONING_MESSAGE_START", "messageId": "r", "role": "reasoning"}),
        json!({"type": "REASONING_MESSAGE_CONTENT", "messageId": "r", "delta": "4"}),
        json!({"type": "REASONING_MESSAGE_END", "messageId": "r"}),
        json!({"type": "CUSTOM", "name": "n", "value": null}),
        json!({"type": "TEXT_MESSAGE_CONTENT", "messageId": "s", "delta": "5", "subagentRunId": "s"}),
        json!({"type": "TEXT_MESSAGE_END", "messageId": "s", "subagentRunId": "s"}),
        run_finished(),
    ];
    assert_eq!(passed.refused, Vec::<String>::new());
    for (out, expected) in passed.out.iter().zip(&expected) {
        assert_eq!(out, expected);
    }
    assert_eq!((passed.out.len(), passed.repairs), (expected.len(), 0));
}

#[test]
fn chunks_that_name_too_little_are_refused() {
    let nameless = json!({"type": "TEXT_MESSAGE_CHUNK", "delta": "x"});
    let of = |id: &str| json!({"type": "TEXT_MESSAGE_CHUNK", "messageId": id, "subagentRunId": id});
    let passed = pass(&[
        run_started(),
        nameless.clone(),
        json!({"type": "TOOL_CALL_CHUNK", "toolCallId": "c"}),
        of("s"),
        of("t"),
        nameless,
    ]);
    let why = [
        "TEXT_MESSAGE_CHUNK cannot be sent: the first chunk has to name what it begins",
        "TOOL_CALL_CHUNK cannot be sent: the first chunk of a call has to name the tool",
        "TEXT_MESSAGE_CHUNK cannot be sent: it names nothing, and several could be meant",
    ];
    assert_eq!(passed.refused, why);
}

const KINDS: [&str; 31] = [
    "RUN_STARTED",
    "RUN_FINISHED",
    "RUN_ERROR",
    "STEP_STARTED",
    "STEP_FINISHED",
    "TEXT_MESSAGE_START",
    "TEXT_MESSAGE_CONTENT",
    "TEXT_MESSAGE_END",
    "TEXT_MESSAGE_CHUNK",
    "TOOL_CALL_START",
    "TOOL_CALL_ARGS",
    "TOOL_CALL_END",
    "TOOL_CALL_CHUNK",
    "TOOL_CALL_RESULT",
    "STATE_SNAPSHOT",
    "STATE_DELTA",
    "MESSAGES_SNAPSHOT",
    "ACTIVITY_SNAPSHOT",
    "ACTIVITY_DELTA",
    "REASONING_START",
    "REASONING_MESSAGE_START",
    "REASONING_MESSAGE_CONTENT",
    "REASONING_MESSAGE_END",
    "REASONING_MESSAGE_CHUNK",
    "REASONING_END",
    "REASONING_ENCRYPTED_VALUE",
    "SUBAGENT_STARTED",
    "SUBAGENT_FINISHED",
    "SUBAGENT_ERROR",
    "RAW",
    "CUSTOM",
];

/// One event of any kind, from few ids, so that they meet.
fn any_event() -> impl Strategy<Value = Value> {
    let id = || prop::sample::select(vec!["a", "b"]);
    let tag = || prop::option::weighted(0.4, prop::sample::select(vec!["s", "t"]));
    let kind = (0..KINDS.len() * 3).prop_map(move |at| {
        // Runs that end at once show little.
        let kind = KINDS[at % KINDS.len()];
        if at >= KINDS.len() && kind.starts_with("RUN_") { "TEXT_MESSAGE_CONTENT" } else { kind }
    });
    (kind, id(), id(), tag(), tag(), any::<bool>(), any::<bool>()).prop_map(
        |(kind, id, other, tag, parent, yes, no)| {
            let mut form = form_of(kind, id, other, parent, yes, no);
            let object = form.as_object_mut().unwrap();
            object.insert("type".to_owned(), kind.into());
            if let (Some(tag), false) = (tag, object.contains_key("subagentRunId")) {
                object.insert("subagentRunId".to_owned(), tag.into());
            }
            form
        },
    )
}

fn form_of(kind: &str, id: &str, other: &str, parent: Option<&str>, yes: bool, no: bool) -> Value {
    let message = |id: &str| {
        let mut message = json!({"id": id, "role": "assistant", "content": "x",
            "toolCalls": [{"id": other, "type": "function", "function": {"name": "n", "arguments": "{}"}}]});
        if let Some(parent) = parent {
            message["subagentRunId"] = parent.into();
        }
        if no {
            message = json!({"id": id, "role": "reasoning", "content": "x"});
        }
        message
    };
    let mut form = match kind {
        "RUN_STARTED" | "RUN_FINISHED" => json!({"threadId": "t", "runId": "r"}),
        "RUN_ERROR" => json!({"message": "m"}),
        "STEP_STARTED" | "STEP_FINISHED" => json!({"stepName": id}),
        "TOOL_CALL_START" | "TOOL_CALL_CHUNK" => json!({"toolCallId": id, "toolCallName": "n"}),
        "TOOL_CALL_ARGS" => json!({"toolCallId": id, "delta": "x"}),
        "TOOL_CALL_END" => json!({"toolCallId": id}),
        "TOOL_CALL_RESULT" => json!({"messageId": id, "toolCallId": other, "content": "x"}),
        "STATE_SNAPSHOT" => json!({"snapshot": null}),
        "STATE_DELTA" => json!({"delta": []}),
        "MESSAGES_SNAPSHOT" => json!({"messages": [message(id)]}),
        "ACTIVITY_SNAPSHOT" => json!({"messageId": id, "activityType": "x", "content": {}, "replace": yes}),
        "ACTIVITY_DELTA" => json!({"messageId": id, "activityType": "x", "patch": []}),
        "REASONING_ENCRYPTED_VALUE" => {
            let subtype = if yes { "message" } else { "tool-call" };
            json!({"subtype": subtype, "entityId": id, "encryptedValue": "x"})
        }
        "SUBAGENT_STARTED" => json!({"subagentRunId": if yes { "s" } else { "t" }, "name": "n"}),
        "SUBAGENT_FINISHED" => json!({"subagentRunId": if yes { "s" } else { "t" }}),
        "SUBAGENT_ERROR" => json!({"subagentRunId": if yes { "s" } else { "t" }, "message": "m"}),
        "RAW" => json!({"event": 1}),
        "CUSTOM" => json!({"name": "n", "value": 1}),
        _ => json!({"messageId": id, "delta": "x", "role": "user"}),
    };
    match kind {
        "RUN_STARTED" if yes => {
            form["input"] = json!({"threadId": "t", "runId": "r", "messages": [message(id)]});
        }
        "TOOL_CALL_START" | "TOOL_CALL_CHUNK" if yes => form["parentMessageId"] = other.into(),
        "REASONING_MESSAGE_START" => form["role"] = "reasoning".into(),
        "SUBAGENT_STARTED" => {
            if let Some(parent) = parent {
                form["parentSubagentRunId"] = parent.into();
            }
        }
        _ => {}
    }
    let is_continuing = kind.ends_with("_CHUNK") && no;
    if is_continuing {
        let object = form.as_object_mut().unwrap();
        object.remove("messageId");
        object.remove("toolCallId");
    }
    form
}

/// A run that began, with whatever else.
fn any_stream() -> impl Strategy<Value = Vec<Value>> {
    prop::collection::vec(any_event(), 0..80).prop_map(|mut events| {
        events.insert(0, run_started());
        events
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]

    #[test]
    fn whatever_goes_in_what_comes_out_is_accepted(events in any_stream()) {
        let passed = pass(&events);
        let mut reader = Reader::default();
        for event in &passed.out {
            reader.read(event).map_err(|why| TestCaseError::fail(format!("{event}: {why}")))?;
        }
        let count = |names: &[&str]| types(&passed.out).iter().filter(|kind| names.contains(kind)).count();
        prop_assert!(count(&["RUN_FINISHED", "RUN_ERROR"]) <= count(&["RUN_STARTED"]));
    }

    #[test]
    fn what_is_accepted_passes_unchanged(events in any_stream()) {
        let mut reader = Reader::default();
        let mut accepted = Vec::new();
        for event in events {
            // Readers take a failure at any time. The guard closes what is open first, and ends a run only once.
            let is_taken = event["type"] != "RUN_ERROR" || reader.could_finish();
            let mut next = reader.clone();
            if is_taken && next.read(&event).is_ok() {
                reader = next;
                accepted.push(event);
            }
        }
        let passed = pass(&accepted);
        prop_assert_eq!((&passed.refused, passed.repairs), (&Vec::new(), 0));
        let events = |forms: &[Value]| forms.iter().map(event).collect::<Vec<_>>();
        prop_assert_eq!(events(&passed.out), events(&accepted));
    }
}
