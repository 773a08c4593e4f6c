//! What a summary covers is a range of the log, whatever clocks say.

use std::sync::{Arc, Mutex};

use serde_json::{Value, json};
use umbel::handlers::{Keep, Summarise, Trigger};
use umbel::{
    Chunk, Clock, Compactor, Content, Event, LlmAgent, LogEntry, Response, Runner, ScriptedModel, Source,
    SteppingClock, Summariser, Usage,
};

use super::support::{Notes, read, said, stored, with_session};

/// A clock that tests set.
#[derive(Clone, Debug)]
struct SetClock(Arc<Mutex<f64>>);

impl SetClock {
    fn new(now: f64) -> Self {
        Self(Arc::new(Mutex::new(now)))
    }

    fn advance(&self, seconds: f64) {
        *self.0.lock().unwrap() += seconds;
    }
}

impl Clock for SetClock {
    fn now(&self) -> f64 {
        self.advance(0.001);
        *self.0.lock().unwrap()
    }
}

/// Sums up as the words in brackets, and notes them.
fn bracketing(notes: &Notes) -> impl Summariser + 'static {
    let notes = notes.clone();
    move |events: Vec<Arc<Event>>| {
        let words: Vec<String> = events.iter().map(|event| event.text()).collect();
        notes.add(words.join("|"));
        async move { Ok(format!("[{}]", words.join(" "))) }
    }
}

/// A model that answers with the last words, in capitals, and says that its prompts are long.
fn shouting() -> ScriptedModel {
    ScriptedModel::from_fn("m", |request| {
        let last = request.contents.last().map(|content| content.text()).unwrap_or_default();
        let mut response = Response::text(last.to_uppercase());
        let usage = Usage { prompt_token_count: Some(100), ..Usage::default() };
        response.meta_mut().usage_metadata = Some(usage);
        vec![Ok(Chunk::Complete(response))]
    })
}

/// What the model was sent in a conversation of nine turns, by request, and what was summed up.
async fn conversation(
    compactor: Option<Compactor>,
    handler: Option<Summarise>,
    clock: impl Clock + 'static,
    cold: bool,
) -> Vec<Vec<String>> {
    let model = shouting();
    let mut agent = LlmAgent::new("a").model(model.clone());
    if let Some(handler) = handler {
        agent = agent.handler(handler);
    }
    let mut builder = Runner::builder("app", agent).clock(clock);
    if let Some(compactor) = compactor {
        builder = builder.compaction(compactor);
    }
    if cold {
        builder = builder.hot_sessions(0);
    }
    let (runner, key) = with_session(builder.build().unwrap()).await;
    for message in ["a", "b", "c", "d", "e", "f", "g", "h", "i"] {
        read(runner.run(&key, message)).await.assert_finished();
    }
    model.requests().iter().map(said).collect()
}

#[tokio::test]
async fn summaries_are_the_same_when_the_clock_stands_still_or_goes_back() {
    let notes = Notes::default();
    let compactors: [&dyn Fn() -> Compactor; 4] = [
        &|| Compactor::every(1, 0).summariser(bracketing(&notes)),
        &|| Compactor::every(2, 1).summariser(bracketing(&notes)),
        &|| Compactor::above(100, 2).summariser(bracketing(&notes)),
        &|| Compactor::every(3, 1).or_above(100, 3).summariser(bracketing(&notes)),
    ];
    let lasting = || {
        let summarise = Summarise::new(Trigger::Messages(5)).keep(Keep::Messages(2)).lasting();
        summarise.summariser(bracketing(&notes))
    };
    for case in 0..=compactors.len() {
        let compactor = || compactors.get(case).map(|make| make());
        let handler = || compactors.get(case).is_none().then(lasting);
        let expected = conversation(compactor(), handler(), SteppingClock::new(1e6, 1.0), false).await;
        let summed_up = notes.take();
        assert!(summed_up.len() > 1, "{summed_up:?}");
        for (request, last) in expected.iter().zip(["a", "b", "c", "d", "e", "f", "g", "h", "i"]) {
            assert_eq!(request.last().unwrap(), last, "{request:?}");
        }
        for step in [1.0, 0.0, -1.0] {
            for cold in [false, true] {
                let sent = conversation(compactor(), handler(), SteppingClock::new(1e6, step), cold).await;
                assert_eq!(sent, expected, "case {case}, step {step}, cold {cold}");
                assert_eq!(notes.take(), summed_up, "case {case}, step {step}");
            }
        }
    }
}

#[tokio::test]
async fn a_message_on_a_server_whose_clock_is_a_second_behind_reaches_the_model() {
    let clock = SetClock::new(1_000.0);
    let notes = Notes::default();
    let model = ScriptedModel::new("m").recorded().text("Rome.").text("May.").text("Gone.");
    let compactor = Compactor::every(2, 0).summariser(bracketing(&notes));
    let runner = Runner::builder("app", LlmAgent::new("a").model(model.clone())).compaction(compactor);
    let (runner, key) = with_session(runner.clock(clock.clone()).build().unwrap()).await;
    read(runner.run(&key, "Where to?")).await.assert_finished();
    clock.advance(60.0);
    read(runner.run(&key, "When?")).await.assert_finished();
    clock.advance(-1.0);
    read(runner.run(&key, "Delete my account.")).await.assert_finished();
    assert_eq!(said(&model.requests()[2]), ["[Where to? Rome. When? May.]", "Delete my account."]);
}

#[tokio::test]
async fn a_summary_has_the_form_of_google_adk_and_names_what_it_covers_beside_it() {
    let notes = Notes::default();
    let compactor = Compactor::above(100, 1).summariser(bracketing(&notes));
    let runner = Runner::builder("app", LlmAgent::new("a").model(shouting())).compaction(compactor);
    let (runner, key) = with_session(runner.clock(SteppingClock::new(100.0, -1.0)).build().unwrap()).await;
    for message in ["a", "b", "c"] {
        read(runner.run(&key, message)).await.assert_finished();
    }
    let log = stored(&runner, &key).await;
    let summaries: Vec<_> = log.iter().filter(|event| event.compaction().is_some()).collect();
    assert_eq!(notes.all(), ["a|A", "[a A]|b|B"]);
    for (summary, last) in summaries.iter().zip(["A", "B"]) {
        let event: Value = serde_json::from_str(&serde_json::to_string(&***summary).unwrap()).unwrap();
        let keys: Vec<_> = event["actions"]["compaction"].as_object().unwrap().keys().cloned().collect();
        assert_eq!(keys, ["startTimestamp", "endTimestamp", "compactedContent"]);
        let named = &event["customMetadata"]["umbel"]["compaction"];
        let text = |id: &Value| log.iter().find(|event| event.id == *id.as_str().unwrap()).unwrap().text();
        assert_eq!((text(&named["first"]), text(&named["last"])), ("a".to_owned(), last.to_owned()));
        // All that is covered lies between the times, and so does the summary that was taken in.
        let time = |key: &str| event["actions"]["compaction"][key].as_f64().unwrap();
        let end = log.iter().position(|event| event.text() == last).unwrap();
        for covered in &log[..=end] {
            assert!((time("startTimestamp")..=time("endTimestamp")).contains(&covered.timestamp), "{event}");
        }
    }
}

/// A log with summaries by times alone, as google-adk and older versions wrote them.
#[tokio::test]
async fn a_log_of_google_adk_is_gone_on_with_though_the_clock_is_behind() {
    let event = |id: &str, author: &str, at: f64| {
        let mut event = Event::new(format!("run-{id}").as_str().into(), Arc::new(Source::new(author)));
        (event.id, event.timestamp) = (id.into(), at);
        event
    };
    let said_by = |id: &str, author: &str, at: f64| {
        let content = if author == "user" { Content::user(id) } else { Content::model(id) };
        event(id, author, at).with_content(content)
    };
    let mut summary = event("s", "user", 1_003.0);
    let compaction = json!({"startTimestamp": 1000.0, "endTimestamp": 1002.0,
        "compactedContent": {"role": "model", "parts": [{"text": "[old]"}]}});
    summary.actions_mut().compaction = Some(Box::new(serde_json::from_value(compaction).unwrap()));
    let log = [said_by("u1", "user", 1000.0), said_by("a1", "a", 1002.0), summary];
    let notes = Notes::default();
    let model = ScriptedModel::new("m").recorded().text("2").text("3").text("4");
    let runner = Runner::builder("app", LlmAgent::new("a").model(model.clone()))
        .compaction(Compactor::every(2, 0).or_above(1_000, 0).summariser(bracketing(&notes)))
        .clock(SteppingClock::new(1_001.0, 0.01));
    let (runner, key) = with_session(runner.build().unwrap()).await;
    let entries = log.into_iter().map(|event| LogEntry::Event(Arc::new(event))).collect();
    runner.sessions().commit(&key, None, entries).await.unwrap();
    for message in ["b", "c", "d"] {
        read(runner.run(&key, message)).await.assert_finished();
    }
    let requests: Vec<_> = model.requests().iter().map(said).collect();
    assert_eq!(requests[0], ["[old]", "b"]);
    assert_eq!(requests[1], ["[old]", "b", "2", "c"]);
    assert_eq!(notes.all(), ["b|2|c|3"]);
    assert_eq!(requests[2], ["[old]", "[b 2 c 3]", "d"]);
}
