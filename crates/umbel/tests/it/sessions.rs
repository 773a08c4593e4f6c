//! What lasts: state, artifacts, memories, summaries, recordings, and what is taken back.

use std::sync::Arc;

use serde_json::{Value, json};
use umbel::{
    BoxFuture, Compactor, Content, ErrorKind, Event, EventFilter, FunctionTool, InMemoryArtifacts,
    InMemoryMemory, LlmAgent, LoadArtifacts, LoadMemory, LogEntry, MemoryStore, Outcome, Part, PreloadMemory,
    RecordingModel, ReplayModel, RequestInput, Response, Result, Role, Run, RunConfig, Runner, ScriptedModel,
    SessionKey, Source, SteppingClock, Summariser, Usage,
};

use crate::support::{
    Notes, answer, begin, echo, fine, object, read, run_once, said, state, stored, with_session,
};

/// Sets the state to its arguments.
fn set() -> FunctionTool {
    FunctionTool::with_context("set", "", |cx, args: Value| {
        Box::pin(async move {
            for (key, value) in object(args) {
                cx.set_state(key, value);
            }
            Ok(Value::Null)
        })
    })
}

#[tokio::test]
async fn state_reaches_as_far_as_its_prefix_says() {
    let args = json!({"k": 1, "user:k": 2, "app:k": 3, "temp:k": 4});
    let model = ScriptedModel::new("m").call("set", args).text("set").text("next");
    let seen = Notes::default();
    let told = seen.clone();
    let agent = LlmAgent::new("a").model(model).tool(set()).before_model(move |cx, _| {
        told.add(format!("{:?}", cx.state("temp:k")));
        Box::pin(async { Ok(None) })
    });
    let (runner, key) = begin(agent).await;
    let run = read(runner.run(&key, "hi")).await;
    read(runner.run(&key, "again")).await.assert_finished();
    // What is temporary is there in the run, and gone with it; it is never stored.
    assert_eq!(seen.all(), ["None", "Some(Number(4))", "None"]);
    assert_eq!(state(&runner, &key).await, json!({"k": 1, "user:k": 2, "app:k": 3}));
    let delta = run.events.iter().find_map(|event| event.state_delta()).unwrap();
    assert!(!delta.contains_key("temp:k"));
    let same_user = runner.create_session("ann").await.unwrap().key;
    assert_eq!(state(&runner, &same_user).await, json!({"user:k": 2, "app:k": 3}));
    let same_app = runner.create_session("bob").await.unwrap().key;
    assert_eq!(state(&runner, &same_app).await, json!({"app:k": 3}));
}

#[tokio::test]
async fn a_run_can_begin_with_state_and_carry_metadata() {
    let model = ScriptedModel::new("m").recorded().text("ok");
    let (runner, key) = begin(LlmAgent::new("a").model(model.clone()).instruction("{k} {temp:t}")).await;
    let config = RunConfig {
        state_delta: object(json!({"k": "v", "temp:t": "now"})),
        custom_metadata: object(json!({"trace": 7})),
        ..RunConfig::default()
    };
    read(runner.run_with(&key, "hi", config)).await.assert_finished();
    assert!(model.requests()[0].instruction.text().starts_with("v now"));
    assert_eq!(state(&runner, &key).await, json!({"k": "v"}));
    let events = stored(&runner, &key).await;
    assert_eq!(events.len(), 2);
    for event in events {
        let metadata = event.meta.as_ref().unwrap().custom_metadata.clone().unwrap();
        assert_eq!(Value::Object(metadata), json!({"trace": 7}));
    }
}

#[tokio::test]
async fn files_of_the_user_can_be_stored_as_artifacts() {
    let message = || Content::new(Role::User, [Part::text("look"), Part::data("text/plain", *b"abc")]);
    let config = || RunConfig { save_input_blobs: true, ..RunConfig::default() };
    let model = ScriptedModel::new("m").recorded().text("ok");
    let agent = LlmAgent::new("a").model(model.clone());
    let runner = Runner::builder("app", agent).artifacts(InMemoryArtifacts::new()).build().unwrap();
    let (runner, key) = with_session(runner).await;
    read(runner.run_with(&key, message(), config())).await.assert_finished();
    let store = runner.services().artifacts.clone().unwrap();
    let names = store.names(&key).await.unwrap();
    assert_eq!(names.len(), 1);
    assert_eq!(*store.load(&key, &names[0], None).await.unwrap().unwrap(), Part::data("text/plain", *b"abc"));
    assert!(said(&model.requests()[0])[0].contains(&names[0]));
    let delta = stored(&runner, &key).await[0].actions.as_ref().unwrap().artifact_delta.clone().unwrap();
    assert_eq!(delta[&names[0]], 0);
    let (runner, key) = begin(LlmAgent::new("a").model(fine())).await;
    assert_eq!(read(runner.run_with(&key, message(), config())).await.kind(), ErrorKind::NoArtifactStore);
}

#[tokio::test]
async fn messages_for_one_request_are_sent_and_not_stored() {
    let model = ScriptedModel::new("m").recorded().text("one").text("two");
    let (runner, key) = begin(LlmAgent::new("a").model(model.clone())).await;
    read(runner.run(&key, "first")).await.assert_finished();
    let context = vec![Arc::new(Content::user("it rains"))];
    let config = RunConfig { model_input_context: context, ..RunConfig::default() };
    read(runner.run_with(&key, "second", config)).await.assert_finished();
    assert_eq!(said(&model.requests()[1]), ["first", "one", "it rains", "second"]);
    assert!(stored(&runner, &key).await.iter().all(|event| event.text() != "it rains"));
}

#[tokio::test]
async fn a_rewind_takes_back_state_artifacts_and_words() {
    let save = FunctionTool::with_context("save", "", |cx, args: Value| {
        Box::pin(async move {
            cx.set_state("n", args["n"].clone());
            cx.set_state(format!("new{}", args["n"]), true);
            cx.set_state("user:n", args["n"].clone());
            cx.save_artifact("file", Part::text(args["n"].to_string())).await?;
            Ok(Value::Null)
        })
    });
    let turn = |model: ScriptedModel, n: u32| model.call("save", json!({"n": n})).text(format!("saved {n}"));
    let model = turn(turn(ScriptedModel::new("m").recorded(), 1), 2).text("after");
    let agent = LlmAgent::new("a").model(model.clone()).tool(save);
    let runner = Runner::builder("app", agent).artifacts(InMemoryArtifacts::new()).build().unwrap();
    let (runner, key) = with_session(runner).await;
    read(runner.run(&key, "first")).await.assert_finished();
    let second = read(runner.run(&key, "second")).await;
    let before = stored(&runner, &key).await.len();
    runner.rewind(&key, &second.events[0].run).await.unwrap();
    let expected = json!({"n": 1, "new1": true, "new2": null, "user:n": 2});
    assert_eq!(state(&runner, &key).await, expected);
    let store = runner.services().artifacts.clone().unwrap();
    assert_eq!(store.load(&key, "file", None).await.unwrap().unwrap().as_text(), Some("1"));
    assert_eq!(store.versions(&key, "file").await.unwrap(), [0, 1, 2]);
    // The log keeps everything; models see none of it.
    assert_eq!(stored(&runner, &key).await.len(), before + 1);
    read(runner.run(&key, "third")).await.assert_finished();
    let words = said(&model.requests()[4]);
    assert_eq!(words, ["first", "", "", "saved 1", "third"]);
    let unknown = runner.rewind(&key, &"e-nope".into()).await.unwrap_err();
    assert_eq!(unknown.kind(), ErrorKind::InvalidInput);
}

/// Sums up by counting.
struct Counter(Notes);

impl Summariser for Counter {
    fn summarise<'a>(
        &'a self,
        _: &'a Run,
        events: &'a [Arc<Event>],
    ) -> BoxFuture<'a, Result<Option<Content>>> {
        let words: Vec<_> = events.iter().map(|event| event.text()).collect();
        self.0.add(words.join("|"));
        Box::pin(async move { Ok(Some(Content::model(format!("{} said", words.len()).as_str()))) })
    }
}

fn compacting(model: &ScriptedModel, compactor: Compactor) -> Runner {
    let agent = LlmAgent::new("a").model(model.clone());
    let clock = SteppingClock::new(1.0, 1.0);
    Runner::builder("app", agent).compaction(compactor).clock(clock).build().unwrap()
}

#[tokio::test]
async fn old_runs_are_summed_up_after_every_so_many() {
    let notes = Notes::default();
    let model =
        ["1", "2", "3", "4", "5"].into_iter().fold(ScriptedModel::new("m").recorded(), ScriptedModel::text);
    let compactor = Compactor::every(2, 1).summariser(Counter(notes.clone()));
    let (runner, key) = with_session(compacting(&model, compactor)).await;
    for message in ["a", "b", "c", "d", "e"] {
        read(runner.run(&key, message)).await.assert_finished();
    }
    // The second summary reaches one run further back.
    assert_eq!(notes.all(), ["a|1|b|2", "b|2|c|3|d|4"]);
    let requests = model.requests();
    assert_eq!(said(&requests[2]), ["4 said", "c"]);
    let last = said(&requests[4]);
    assert_eq!(last.last().unwrap(), "e");
    assert!(!last.contains(&"d".to_owned()), "{last:?}");
    // The log keeps everything.
    assert_eq!(stored(&runner, &key).await.iter().filter(|event| !event.text().is_empty()).count(), 10);
}

#[tokio::test]
async fn the_agents_own_model_writes_the_summary_unless_told_otherwise() {
    let model = ScriptedModel::new("m").recorded().text("hello").text("a summary").text("next");
    let (runner, key) = with_session(compacting(&model, Compactor::every(1, 0))).await;
    let seen = read(runner.run(&key, "hi")).await;
    assert_eq!(seen.assert_finished().texts(), [("a".into(), "hello".into())]);
    let requests = model.requests();
    assert!(said(&requests[1])[0].contains("user: hi\na: hello"), "{:?}", said(&requests[1]));
    let summary = seen.events.iter().find_map(|event| event.compaction()).unwrap();
    assert_eq!(summary.compacted_content.as_ref().unwrap().text(), "a summary");
}

#[tokio::test]
async fn the_last_answer_does_not_wait_for_the_summary() {
    use futures::StreamExt;
    struct Slow;
    impl Summariser for Slow {
        fn summarise<'a>(
            &'a self,
            _: &'a Run,
            _: &'a [Arc<Event>],
        ) -> BoxFuture<'a, Result<Option<Content>>> {
            Box::pin(async {
                tokio::time::sleep(std::time::Duration::from_secs(30)).await;
                Ok(None)
            })
        }
    }
    let model = ScriptedModel::new("m").text("hello");
    let (runner, key) = with_session(compacting(&model, Compactor::every(1, 0).summariser(Slow))).await;
    let mut stream = runner.run(&key, "hi");
    let first = tokio::time::timeout(std::time::Duration::from_secs(2), stream.next()).await;
    assert_eq!(first.expect("the answer comes at once").unwrap().unwrap().text(), "hello");
}

#[tokio::test]
async fn a_prompt_that_grew_too_long_is_summed_up_before_the_next_request() {
    let notes = Notes::default();
    let long = |text: &str| {
        let mut response = Response::text(text);
        response.meta_mut().usage_metadata =
            Some(Usage { prompt_token_count: Some(100), ..Usage::default() });
        response
    };
    let model = ScriptedModel::new("m").recorded().text("1").response(long("2")).text("3");
    let compactor = Compactor::above(100, 1).summariser(Counter(notes.clone()));
    let (runner, key) = with_session(compacting(&model, compactor)).await;
    for message in ["a", "b", "c"] {
        read(runner.run(&key, message)).await.assert_finished();
    }
    assert_eq!(notes.all(), ["a|1|b|2"]);
    assert_eq!(said(&model.requests()[2]), ["4 said", "c"]);
}

/// A runner that remembers that Ann likes tea.
async fn remembering(agent: LlmAgent) -> (Runner, SessionKey) {
    let memory = InMemoryMemory::new();
    let (other, old) = begin(LlmAgent::new("a").model(fine())).await;
    read(other.run(&old, "I like green tea")).await.assert_finished();
    let session = other.sessions().get(&old, EventFilter::default()).await.unwrap().unwrap();
    memory.add(&session).await.unwrap();
    with_session(Runner::builder("app", agent).memory(memory).build().unwrap()).await
}

#[tokio::test]
async fn memories_are_looked_up_by_a_call() {
    let model = ScriptedModel::new("m").call("load_memory", json!({"query": "tea"})).text("green");
    let (runner, key) = remembering(LlmAgent::new("a").model(model).tool(LoadMemory)).await;
    let found = read(runner.run(&key, "what do I like?")).await.responses().remove(0);
    assert_eq!(found["memories"][0]["text"], "I like green tea");
    assert_eq!(found["memories"].as_array().unwrap().len(), 1);
}

#[tokio::test]
async fn memories_are_put_before_each_request_without_a_call() {
    let model = ScriptedModel::new("m").recorded().text("green").text("no idea");
    let (runner, key) = remembering(LlmAgent::new("a").model(model.clone()).tool(PreloadMemory)).await;
    read(runner.run(&key, "which tea?")).await.assert_finished();
    read(runner.run(&key, "which car?")).await.assert_finished();
    let requests = model.requests();
    assert!(requests[0].instruction.text().contains("I like green tea"));
    assert!(!requests[1].instruction.text().contains("green"));
    assert_eq!(requests[0].tools.specs().count(), 0);
}

#[tokio::test]
async fn without_a_memory_store_one_is_told_how_to_get_one() {
    let model = ScriptedModel::new("m").call("load_memory", json!({"query": "tea"})).text("ok");
    let seen = run_once(LlmAgent::new("a").model(model).tool(LoadMemory)).await;
    assert!(seen.tool_error().contains(".memory("));
    assert_eq!(run_once(LlmAgent::new("a").model(fine()).tool(PreloadMemory)).await.kind(), ErrorKind::Build);
}

#[tokio::test]
async fn artifacts_are_named_and_shown_when_asked_for() {
    let model = ScriptedModel::new("m")
        .recorded()
        .call("load_artifacts", json!({"artifact_names": ["note"]}))
        .text("read");
    let agent = LlmAgent::new("a").model(model.clone()).tool(LoadArtifacts);
    let runner = Runner::builder("app", agent).artifacts(InMemoryArtifacts::new()).build().unwrap();
    let (runner, key) = with_session(runner).await;
    let store = runner.services().artifacts.clone().unwrap();
    store.save(&key, "note", Part::text("buy milk")).await.unwrap();
    read(runner.run(&key, "read it")).await.assert_finished();
    let requests = model.requests();
    assert!(requests[0].instruction.text().contains("note"));
    assert_eq!(said(&requests[0]), ["read it"]);
    assert!(said(&requests[1]).last().unwrap().contains("buy milk"));
    assert!(stored(&runner, &key).await.iter().all(|event| !event.text().contains("milk")));
}

#[tokio::test]
async fn a_question_to_the_user_is_answered_in_the_next_turn() {
    let ask = json!({"message": "Which city?"});
    let model = ScriptedModel::new("m").recorded().call("adk_request_input", ask).text("Rome, then.");
    let (runner, key) = begin(LlmAgent::new("a").model(model.clone()).tool(RequestInput)).await;
    let seen = read(runner.run(&key, "plan a trip")).await;
    let Outcome::Interrupted { interrupts } = &seen.outcome else { panic!("{:?}", seen.outcome) };
    assert_eq!(
        (interrupts[0].reason.as_str(), interrupts[0].message.as_deref()),
        ("input", Some("Which city?"))
    );
    assert_eq!(model.requests().len(), 1);
    let reply = answer(interrupts[0].id.as_str(), "adk_request_input", json!({"result": "Rome"}));
    let seen = read(runner.run(&key, reply)).await;
    assert_eq!(seen.assert_finished().texts(), [("a".into(), "Rome, then.".into())]);
    let sent = model.requests()[1].contents.clone();
    let answers: Vec<_> = sent.iter().flat_map(|content| content.responses()).collect();
    assert_eq!(answers.len(), 1);
    assert_eq!(answers[0].response.as_ref().unwrap().get("result"), Some(&json!("Rome")));
}

#[tokio::test]
async fn a_recording_plays_back_the_same_run() {
    let script = ScriptedModel::new("m").call("echo", json!({"n": 1})).stream(["do", "ne"]);
    let recorder = RecordingModel::new(script);
    let seen = run_once(LlmAgent::new("a").model(recorder.clone()).tool(echo())).await;
    let lines = recorder.to_json_lines().unwrap();
    assert_eq!(lines.lines().count(), 2);
    let replay = ReplayModel::from_json_lines("m", &lines).unwrap();
    let (runner, key) = begin(LlmAgent::new("a").model(replay).tool(echo())).await;
    let again = read(runner.run(&key, "hi")).await;
    let words = |seen: &crate::support::Seen| (seen.texts(), seen.responses());
    assert_eq!(words(again.assert_finished()), words(&seen));
    // What was not asked then has no answer.
    let seen = read(runner.run(&key, "something else")).await;
    assert!(seen.error.as_ref().unwrap().message().contains("record it again"));
    assert_eq!(ReplayModel::from_json_lines("m", "nonsense").unwrap_err().kind(), ErrorKind::Corrupt);
}

#[test]
fn events_of_google_adk_are_written_back_unchanged() {
    let data: Value = serde_json::from_str(include_str!("../data/adk-sessions.expect.json")).unwrap();
    let sessions = ["sqlite", "alchemy"].into_iter().flat_map(|kind| data[kind].as_array().unwrap());
    let mut count = 0;
    for event in sessions.flat_map(|session| session["events"].as_array().unwrap()) {
        let read: Event = serde_json::from_value(event.clone()).unwrap();
        assert_eq!(serde_json::to_value(&read).unwrap(), *event);
        count += 1;
    }
    assert_eq!(count, 28);
}

/// Three turns on each of two sessions in turn, as messages that the model was sent.
async fn talk(hot: usize) -> (Vec<Vec<String>>, Vec<Value>) {
    let model = ScriptedModel::new("m").recorded();
    let model =
        (0..6).fold(model, |model, n| model.call("set", json!({"n": n, "user:n": n})).text(format!("t{n}")));
    let agent = LlmAgent::new("a").model(model.clone()).tool(set()).instruction("{n?} {user:n?}");
    let runner = Runner::builder("app", agent).hot_sessions(hot).build().unwrap();
    let keys =
        [runner.create_session("ann").await.unwrap().key, runner.create_session("ann").await.unwrap().key];
    for turn in 0..6 {
        read(runner.run(&keys[turn % 2], format!("m{turn}"))).await.assert_finished();
    }
    let requests = model.requests();
    let sent = requests.iter().map(|request| {
        let mut words = said(request);
        words.push(request.instruction.text());
        words
    });
    let sent = sent.collect();
    (sent, vec![state(&runner, &keys[0]).await, state(&runner, &keys[1]).await])
}

#[tokio::test]
async fn sessions_kept_at_hand_change_nothing_but_the_cost() {
    let cold = talk(0).await;
    assert_eq!(cold.0.len(), 12);
    assert_eq!(talk(1).await, cold);
    assert_eq!(talk(1024).await, cold);
}

#[tokio::test]
async fn what_another_writes_between_turns_is_seen() {
    for hot in [0, 1, 1024] {
        let model = ScriptedModel::new("m").recorded().text("one").text("two");
        let agent = LlmAgent::new("a").model(model.clone()).instruction("{k?} {user:k?}");
        let runner = Runner::builder("app", agent).hot_sessions(hot).build().unwrap();
        let (runner, key) = with_session(runner).await;
        read(runner.run(&key, "first")).await.assert_finished();
        let mut event = Event::new("other".into(), Source::user()).with_content(Content::user("by hand"));
        event.actions_mut().set_state("k", "mine");
        let entry = LogEntry::Event(Arc::new(event));
        runner.sessions().commit(&key, None, std::iter::once(entry).collect()).await.unwrap();
        let user = object(json!({"user:k": "shared"}));
        runner.create_session_with("ann", "another", user).await.unwrap();
        read(runner.run(&key, "second")).await.assert_finished();
        let request = &model.requests()[1];
        assert_eq!(said(request), ["first", "one", "by hand", "second"]);
        assert!(request.instruction.text().starts_with("mine shared"), "{}", request.instruction.text());
    }
}

#[tokio::test]
async fn a_session_made_anew_under_the_same_key_knows_nothing_of_the_old_one() {
    let model = ScriptedModel::new("m").recorded().text("one").text("two");
    let runner = Runner::new("app", LlmAgent::new("a").model(model.clone())).unwrap();
    let key = runner.create_session_with("ann", "s", Default::default()).await.unwrap().key;
    read(runner.run(&key, "first")).await.assert_finished();
    // Behind the runner's back.
    runner.sessions().delete(&key).await.unwrap();
    runner.create_session_with("ann", "s", Default::default()).await.unwrap();
    read(runner.run(&key, "second")).await.assert_finished();
    assert_eq!(said(&model.requests()[1]), ["second"]);
}

#[tokio::test]
async fn what_another_session_set_for_the_user_during_a_run_is_there_in_the_next_one() {
    let seen = Notes::default();
    let told = seen.clone();
    let tool = FunctionTool::with_context("elsewhere", "", |cx: &umbel::ToolContext, _: Value| {
        Box::pin(async move {
            let of = cx.run().session_key();
            let other = SessionKey::new(of.app(), of.user(), "other")?;
            let mut event = Event::new("r".into(), Source::user());
            event.id = "set-elsewhere".into();
            event.actions_mut().state_delta = Some(object(json!({"user:k": 1, "app:k": 2})));
            let entries = [LogEntry::Event(Arc::new(event))].into_iter().collect();
            cx.run().services().sessions.commit(&other, None, entries).await?;
            Ok(json!("done"))
        })
    });
    let model = ScriptedModel::new("m").call("elsewhere", json!({})).text("one").text("two");
    let agent = LlmAgent::new("a").model(model).tool(tool).before_model(move |cx, _| {
        told.add(format!("{:?} {:?}", cx.state("user:k"), cx.state("app:k")));
        Box::pin(async { Ok(None) })
    });
    let (runner, key) = begin(agent).await;
    runner.create_session_with("ann", "other", Default::default()).await.unwrap();
    read(runner.run(&key, "go")).await.assert_finished();
    read(runner.run(&key, "again")).await.assert_finished();
    assert_eq!(seen.all().last().unwrap(), "Some(Number(1)) Some(Number(2))");
}
