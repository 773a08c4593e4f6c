//! What an append writes, and what it does not.

use std::sync::Arc;

use serde_json::json;
use umbel_core::{
    Actions, Address, AgentDone, CallFinished, Content, Continued, ErrorKind, Event, Failure,
    FunctionResponse, Interrupt, Kept, LogEntry, Outcome, Part, Question, RunStep, Versions,
};

use super::{
    LONG, Sessions, acquire, entries, finished, lease, log, message, new_session, odd_value, read, refused,
    said, sets, texts,
};

pub async fn an_append_moves_the_version_by_its_entries(store: &Sessions) {
    let session = new_session(store).await;
    let taken = acquire(store, &session.key, LONG, session.versions, entries([said("1")])).await.unwrap();
    assert_eq!(taken.versions.session, 1);
    let two = store.append(&taken.lease, taken.versions, entries([said("2"), finished()])).await.unwrap();
    assert_eq!(two, Versions { session: 3, ..taken.versions });
    let three = store.release(&taken.lease, two, entries([said("3")])).await.unwrap();
    assert_eq!(three, Versions { session: 4, ..taken.versions });
    assert_eq!(log(store, &session.key).await, [said("1"), said("2"), finished(), said("3")]);
    assert_eq!(read(store, &session.key).await.versions, three);
}

pub async fn a_stale_append_writes_nothing(store: &Sessions) {
    let session = new_session(store).await;
    let taken = acquire(store, &session.key, LONG, session.versions, entries([said("1")])).await.unwrap();
    let writes = || entries([said("lost"), sets(json!({"k": 1, "user:u": 1, "app:a": 1}))]);
    for expected in [session.versions, Versions { session: 2, ..taken.versions }] {
        refused(store.append(&taken.lease, expected, writes()).await, ErrorKind::StaleSession);
        refused(store.release(&taken.lease, expected, writes()).await, ErrorKind::StaleSession);
    }
    let read = read(store, &session.key).await;
    assert_eq!(read.events.len(), 1);
    assert!(read.state.to_object().is_empty());
    assert_eq!(read.versions, taken.versions);
    // The lease was not given back by a release that failed.
    refused(lease(store, &session.key, LONG).await, ErrorKind::SessionBusy);
    store.release(&taken.lease, taken.versions, entries([said("2")])).await.unwrap();
    refused(store.commit(&session.key, Some(taken.versions), writes()).await, ErrorKind::StaleSession);
    assert_eq!(texts(store, &session.key).await, ["1", "2"]);
}

pub async fn previews_are_not_stored(store: &Sessions) {
    let session = new_session(store).await;
    let mut preview = message("pre", 9.0e9);
    preview.partial = Some(true);
    preview.actions_mut().state_delta = Some(super::object(json!({"k": 1, "user:u": 1})));
    let preview = LogEntry::Event(Arc::new(preview));
    let versions = store.commit(&session.key, None, entries([preview.clone(), said("whole"), preview])).await;
    assert_eq!(versions.unwrap().session, 1);
    let session = read(store, &session.key).await;
    assert_eq!(session.events.len(), 1);
    assert!(session.state.to_object().is_empty());
    assert!(session.updated_at < 2.0, "a preview changes no session: {}", session.updated_at);
}

pub async fn temp_keys_are_not_stored(store: &Sessions) {
    let session = new_session(store).await;
    let delta = json!({"temp:a": 1, "k": 2, "temp:b": 3});
    let taken = acquire(store, &session.key, LONG, session.versions, entries([sets(delta)])).await.unwrap();
    store.release(&taken.lease, taken.versions, entries([sets(json!({"temp:c": 1}))])).await.unwrap();
    let session = read(store, &session.key).await;
    assert_eq!(session.state.to_object(), super::object(json!({"k": 2})));
    let deltas: Vec<_> = session.events.iter().map(|event| event.state_delta().cloned()).collect();
    assert_eq!(deltas[0], Some(super::object(json!({"k": 2}))));
    assert!(deltas[1].as_ref().is_none_or(serde_json::Map::is_empty), "{deltas:?}");
}

pub async fn an_empty_append_changes_nothing(store: &Sessions) {
    let session = new_session(store).await;
    assert_eq!(store.commit(&session.key, None, entries([])).await.unwrap(), session.versions);
    let taken = lease(store, &session.key, LONG).await.unwrap();
    assert_eq!(taken.versions, session.versions);
    assert_eq!(store.append(&taken.lease, taken.versions, entries([])).await.unwrap(), session.versions);
    assert_eq!(store.release(&taken.lease, taken.versions, entries([])).await.unwrap(), session.versions);
    assert!(log(store, &session.key).await.is_empty());
}

pub async fn a_commit_needs_no_lease(store: &Sessions) {
    let session = new_session(store).await;
    let one = store.commit(&session.key, Some(session.versions), entries([said("1")])).await.unwrap();
    let two = store.commit(&session.key, None, entries([said("2")])).await.unwrap();
    assert_eq!((one.session, two.session), (1, 2));
    let taken = lease(store, &session.key, LONG).await.unwrap();
    refused(store.commit(&session.key, None, entries([said("x")])).await, ErrorKind::SessionBusy);
    store.release(&taken.lease, taken.versions, entries([])).await.unwrap();
    store.commit(&session.key, Some(two), entries([said("3")])).await.unwrap();
    assert_eq!(texts(store, &session.key).await, ["1", "2", "3"]);
}

pub async fn records_come_back_as_they_were(store: &Sessions) {
    let session = new_session(store).await;
    let failure = Failure { code: "STORE_FAILED".into(), message: "the \"disk\" is full\n".to_owned() };
    let given = odd_value().as_object().cloned().unwrap_or_default();
    let response = Part::response(FunctionResponse::new(Some("c1".into()), "f", given.clone()));
    let actions = Actions { state_delta: Some(given), ..Actions::default() };
    let finished = CallFinished {
        call: "c1".into(),
        words: Some(Part::text("said\n")),
        response: Some(response),
        actions: Some(Box::new(actions)),
    };
    let question = Question::input("How\nmuch?").schema(odd_value()).payload(odd_value());
    let inner = Some(Box::new(Address { agent: "b".into(), nth: 2, ..Address::default() }));
    let address = Address { agent: "a".into(), call: Some("c1".into()), inner, ..Address::default() };
    let asked = Interrupt::new("q1".into(), address, question, 1.5);
    let done = AgentDone {
        agent: "a".into(),
        branch: Some("x.y".into()),
        isolation_scope: None,
        escalated: true,
        escalates: false,
    };
    let steps = [
        RunStep::Started { fingerprint: u64::MAX },
        RunStep::CallsStarted { calls: Box::new(vec!["c1".into(), "c\"2".into()]) },
        RunStep::CallFinished { finished: Box::new(finished) },
        RunStep::CallFinished {
            finished: Box::new(CallFinished { call: "c2".into(), ..CallFinished::default() }),
        },
        RunStep::Kept { kept: Box::new(Kept { key: "k\n".into(), value: odd_value() }) },
        RunStep::Asked { interrupts: Box::new(vec![asked.clone()]) },
        RunStep::AgentDone { done: Box::new(done) },
        RunStep::Recovered,
        RunStep::Continued { continued: Box::new(Continued { run: "r2".into(), fingerprint: 7 }) },
        RunStep::Ended { outcome: Outcome::Interrupted { interrupts: Box::new(vec![asked]) } },
        RunStep::Ended { outcome: Outcome::Cancelled },
        RunStep::Ended { outcome: Outcome::Failed { failure: Box::new(failure) } },
    ];
    let written: Vec<LogEntry> = steps.into_iter().map(LogEntry::from).collect();
    store.commit(&session.key, None, entries(written.clone())).await.unwrap();
    assert_eq!(log(store, &session.key).await, written);
    assert!(read(store, &session.key).await.events.is_empty(), "records are not events");
}

pub async fn an_event_comes_back_as_it_was(store: &Sessions) {
    let session = new_session(store).await;
    let foreign = json!({
        "id": "e\u{301}1", "invocationId": "i", "author": "guide", "timestamp": 1_760_000_000.123_457,
        "branch": "a.b", "isolationScope": "c1", "turnComplete": true, "longRunningToolIds": [],
        "content": {"role": "model", "parts": [
            {"text": "hm", "thought": true},
            {"functionCall": {"id": "c1", "name": "f", "args": odd_value()}, "thoughtSignature": "AAFzaWc="},
            {"inlineData": {"data": "AAECAw==", "mimeType": "image/png"}}]},
        "actions": {"stateDelta": {"k": odd_value()}, "artifactDelta": {"a.txt": 0}, "route": "x"},
        "usageMetadata": {"promptTokenCount": 1, "promptTokensDetails": []},
        "errorCode": "SAFETY", "customMetadata": {"own": [1]}, "nodeInfo": {"path": ""}, "unknownKey": odd_value()
    });
    let event: Event = serde_json::from_value(foreign.clone()).unwrap();
    let plain = Event::default().with_content(Content::model("no id, no author"));
    let written = [LogEntry::Event(Arc::new(event)), LogEntry::Event(Arc::new(plain))];
    store.commit(&session.key, None, entries(written.clone())).await.unwrap();
    assert_eq!(log(store, &session.key).await, written);
    let session = read(store, &session.key).await;
    let first = session.events.iter().next().unwrap();
    assert_eq!(serde_json::to_value(&**first).unwrap(), foreign);
}

pub async fn state_follows_the_deltas(store: &Sessions) {
    let session = new_session(store).await;
    let steps =
        [json!({"a": 1, "b": {"x": 1}}), json!({"b": {"y": 2}}), json!({"a": null, "c": [odd_value()]})];
    store.commit(&session.key, None, entries(steps.into_iter().map(sets))).await.unwrap();
    let state = read(store, &session.key).await.state;
    assert_eq!(state.to_object(), super::object(json!({"a": null, "b": {"y": 2}, "c": [odd_value()]})));
    let order: Vec<_> = state.to_object().keys().cloned().collect();
    assert_eq!(order, ["a", "b", "c"], "keys stay in the order they were first set");
}

pub async fn big_events_are_kept_whole(store: &Sessions) {
    let session = new_session(store).await;
    let text = "0123456789abcdeå".repeat(256 * 1024);
    let data: Vec<u8> = (0..3_000_000_u32).map(|n| (n % 251) as u8).collect();
    let mut image = message("image", 2.0);
    image.content = Some(Arc::new(Content::model(Part::data("image/png", data))));
    let written = [said(&text), LogEntry::Event(Arc::new(image)), sets(json!({"big": text, "small": 1}))];
    store.commit(&session.key, None, entries(written.clone())).await.unwrap();
    assert!(log(store, &session.key).await == written, "a big event came back changed");
    let read = read(store, &session.key).await;
    assert_eq!(read.state.get("big").and_then(|value| value.as_str()).map(str::len), Some(text.len()));
}
