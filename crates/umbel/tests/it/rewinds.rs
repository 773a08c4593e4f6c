//! What is derived from a log goes by what no rewind made void, on every store and whether the session is at hand or not.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use umbel::store::IdleFilter;
use umbel::{
    Answer, ArtifactStore, Confirm, ErrorKind, FunctionTool, InMemoryArtifacts, InMemorySessions, LlmAgent,
    Mode, Outcome, Part, RunId, Runner, RunnerBuilder, ScriptedModel, SessionKey, SessionStore, ToolSpec,
};
use umbel_stores::Sqlite;

use crate::support::{Notes, Operation, Spy, log, outcomes, read, said, stored, with_session};

/// The stores under test.
async fn stores() -> (tempfile::TempDir, Vec<Arc<dyn SessionStore>>) {
    let folder = tempfile::tempdir().unwrap();
    let sqlite = Sqlite::open(folder.path().join("umbel.db")).await.unwrap();
    (folder, vec![Arc::new(InMemorySessions::new()), Arc::new(Spy::default()), Arc::new(sqlite)])
}

/// Rewinds in this runner, which has the session at hand, or in another one behind its back.
async fn rewind(runner: &Runner, elsewhere: bool, key: &SessionKey, run: &RunId) {
    if elsewhere {
        let agent = LlmAgent::new("other").model(ScriptedModel::new("m"));
        let other = Runner::builder("app", agent).sessions(runner.sessions().clone()).build().unwrap();
        other.rewind(key, run).await.unwrap();
    } else {
        runner.rewind(key, run).await.unwrap();
    }
}

async fn last_run(runner: &Runner, key: &SessionKey) -> RunId {
    stored(runner, key).await.last().unwrap().run.clone()
}

fn on(store: &Arc<dyn SessionStore>, agent: LlmAgent) -> RunnerBuilder {
    Runner::builder("app", agent).sessions(store.clone())
}

fn pay(notes: &Notes) -> FunctionTool {
    let notes = notes.clone();
    FunctionTool::new("pay", "Pays.", move |_: Value| {
        notes.add("paid");
        async { Ok(json!("paid")) }
    })
    .confirm(Confirm::Always)
}

#[tokio::test]
async fn a_question_of_a_rewound_run_is_closed_everywhere_and_cannot_be_answered() {
    for elsewhere in [false, true] {
        for store in stores().await.1 {
            let notes = Notes::default();
            let model = ScriptedModel::new("m").call("pay", json!({})).text("x").text("y");
            let agent = LlmAgent::new("a").model(model).tool(pay(&notes));
            let (runner, key) = with_session(on(&store, agent).build().unwrap()).await;
            read(runner.run(&key, "Pay.")).await;
            let open = runner.open_questions(&key).await.unwrap();
            assert_eq!((open.len(), store.open_questions("app", None).await.unwrap().len()), (1, 1));
            rewind(&runner, elsewhere, &key, &last_run(&runner, &key).await).await;
            assert!(runner.open_questions(&key).await.unwrap().is_empty());
            assert!(store.open_questions("app", None).await.unwrap().is_empty());
            let idle = store.idle("app", IdleFilter::before(f64::MAX)).await.unwrap();
            assert_eq!((idle[0].questions, idle[0].awaited_calls), (0, 0));
            let refused = read(runner.resume(&key, [(&open[0], Answer::approve())])).await;
            assert_eq!(refused.kind(), ErrorKind::InvalidConfirmation);
            assert!(notes.all().is_empty());
            read(runner.run(&key, "Hello.")).await.assert_finished();
        }
    }
}

#[tokio::test]
async fn a_question_whose_answer_is_rewound_is_open_again() {
    for elsewhere in [false, true] {
        for store in stores().await.1 {
            let notes = Notes::default();
            let model = ScriptedModel::new("m").call("pay", json!({})).text("Paid.").text("Paid again.");
            let agent = LlmAgent::new("a").model(model).tool(pay(&notes));
            let (runner, key) = with_session(on(&store, agent).build().unwrap()).await;
            read(runner.run(&key, "Pay.")).await;
            let open = runner.open_questions(&key).await.unwrap();
            read(runner.resume(&key, [(&open[0], Answer::reject())])).await.assert_finished();
            rewind(&runner, elsewhere, &key, &last_run(&runner, &key).await).await;
            assert_eq!(runner.open_questions(&key).await.unwrap(), open);
            assert_eq!(store.open_questions("app", None).await.unwrap().len(), 1);
            read(runner.resume(&key, [(&open[0], Answer::approve())])).await.assert_finished();
            assert_eq!(notes.all(), ["paid"]);
        }
    }
}

#[tokio::test]
async fn the_user_does_not_talk_to_a_task_that_is_void() {
    for elsewhere in [false, true] {
        for store in stores().await.1 {
            let model =
                ScriptedModel::new("b").recorded().text("For how many nights?").text("I am the void task.");
            let booking = LlmAgent::new("booking").description("Books.").model(model).mode(Mode::Task);
            let model =
                ScriptedModel::new("d").recorded().call("booking", json!({"goal": "a room"})).text("Hello.");
            let desk = LlmAgent::new("desk").model(model.clone()).sub_agent(booking);
            let (runner, key) = with_session(on(&store, desk).build().unwrap()).await;
            read(runner.run(&key, "A room, please.")).await;
            rewind(&runner, elsewhere, &key, &last_run(&runner, &key).await).await;
            let seen = read(runner.run(&key, "Good morning!")).await;
            assert_eq!(seen.texts(), [("desk".to_owned(), "Hello.".to_owned())]);
            assert_eq!(said(&model.requests()[1]), ["Good morning!"]);
        }
    }
}

#[tokio::test]
async fn a_failed_run_that_was_rewound_is_not_continued_and_the_one_before_it_is() {
    for elsewhere in [false, true] {
        for store in stores().await.1 {
            let model = ScriptedModel::new("m").recorded().fail("no power").fail("no water").text("after");
            let agent = LlmAgent::new("a").model(model.clone());
            let (runner, key) = with_session(on(&store, agent).build().unwrap()).await;
            read(runner.run(&key, "one")).await;
            read(runner.run(&key, "two")).await;
            let second = last_run(&runner, &key).await;
            rewind(&runner, elsewhere, &key, &second).await;
            read(runner.continue_run(&key)).await.assert_finished();
            assert_eq!(said(&model.requests()[2]).first().unwrap(), "one");
            assert!(said(&model.requests()[2]).iter().all(|words| words != "two"));
            let first = stored(&runner, &key).await[0].run.clone();
            rewind(&runner, elsewhere, &key, &first).await;
            let nothing = read(runner.continue_run(&key)).await;
            assert_eq!(nothing.kind(), ErrorKind::InvalidInput, "{:?}", nothing.outcome);
        }
    }
}

#[tokio::test]
async fn a_continued_run_that_is_rewound_leaves_nothing_running() {
    for store in stores().await.1 {
        let model = ScriptedModel::new("m").fail("no power").text("continued").text("again").text("new");
        let (runner, key) =
            with_session(on(&store, LlmAgent::new("a").model(model.clone())).build().unwrap()).await;
        read(runner.run(&key, "one")).await;
        read(runner.continue_run(&key)).await.assert_finished();
        rewind(&runner, false, &key, &last_run(&runner, &key).await).await;
        assert_eq!(runner.session(&key).await.unwrap().unwrap().running, None);
        // What it continued can be continued once more.
        read(runner.continue_run(&key)).await.assert_finished();
        read(runner.run(&key, "two")).await.assert_finished();
        assert_eq!(outcomes(&log(&runner, &key).await).len(), 4);
    }
}

#[tokio::test(start_paused = true)]
async fn a_rewind_that_is_refused_changes_no_artifact() {
    let schema = json!({"type": "object", "properties": {"t": {"type": "string"}}});
    let save = FunctionTool::raw(ToolSpec::new("save", "", schema), |cx, args| {
        Box::pin(async move {
            let text = args.get("t").and_then(Value::as_str).unwrap_or_default().to_owned();
            cx.save_artifact("f", Part::text(text)).await?;
            Ok(json!("saved").into())
        })
    });
    let block = FunctionTool::new("block", "", |_: Value| async {
        tokio::time::sleep(Duration::from_secs(1)).await;
        Ok(json!(1))
    });
    let model = ScriptedModel::new("m").call("save", json!({"t": "one"})).text("1");
    let model = model.call("save", json!({"t": "two"})).text("2").call("block", json!({})).text("3");
    let artifacts = Arc::new(InMemoryArtifacts::new());
    let agent = LlmAgent::new("a").model(model).tool(save).tool(block);
    let runner = Runner::builder("app", agent).artifacts(artifacts.clone()).build().unwrap();
    let (runner, key) = with_session(runner).await;
    read(runner.run(&key, "a")).await.assert_finished();
    read(runner.run(&key, "b")).await.assert_finished();
    let second = last_run(&runner, &key).await;
    let third = tokio::spawn(read(runner.run(&key, "c")));
    tokio::time::sleep(Duration::from_millis(500)).await;
    assert_eq!(runner.rewind(&key, &second).await.unwrap_err().kind(), ErrorKind::SessionBusy);
    assert_eq!(artifacts.load(&key, "f", None).await.unwrap().unwrap().as_text(), Some("two"));
    third.await.unwrap().assert_finished();
    runner.rewind(&key, &second).await.unwrap();
    assert_eq!(artifacts.load(&key, "f", None).await.unwrap().unwrap().as_text(), Some("one"));
}

#[tokio::test(start_paused = true)]
async fn a_rewind_goes_on_when_nobody_waits_for_it_any_more() {
    let store = Spy::default();
    let model = ScriptedModel::new("m").text("one").text("two");
    let agent = LlmAgent::new("a").model(model);
    let (runner, key) =
        with_session(Runner::builder("app", agent).sessions(store.clone()).build().unwrap()).await;
    read(runner.run(&key, "hi")).await.assert_finished();
    let run = last_run(&runner, &key).await;
    let answers = store.hang(Operation::Release);
    let rewound = tokio::time::timeout(Duration::from_secs(1), runner.rewind(&key, &run)).await;
    assert!(rewound.is_err(), "the store does not answer");
    answers.notify_waiters();
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert!(stored(&runner, &key).await.last().unwrap().rewinds_to().is_some());
    assert_eq!(read(runner.run(&key, "again")).await.outcome, Outcome::Finished);
}
