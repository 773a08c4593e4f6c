//! Sessions that another process left in the middle, or comes back to, when someone else uses them.

use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use serde_json::{Value, json};
use umbel::store::Acquire;
use umbel::{
    Agent, AgentTool, Content, ErrorKind, Event, FunctionTool, LogEntry, Outcome, RunConfig, RunStep, Runner,
    SessionKey, SessionStore, UnfinishedCalls,
};

use crate::recovery::{notes_calls, recover, run_and_die, runner, says_once, steps};
use crate::support::{Death, Notes, Spy, log, outcomes, read, stored};

/// Dies at that write, and is not looked for: the next message comes when the lease has run out.
async fn dies_unseen(store: &Spy, death: Death, make: impl Fn() -> Arc<dyn Agent>, key: &SessionKey) {
    let dying = store.dying(Some(death));
    run_and_die(&runner(dying.clone(), make()).build().unwrap(), &dying, key, "go".into()).await;
    tokio::time::sleep(Duration::from_millis(7)).await;
}

#[tokio::test]
async fn a_message_is_answered_when_the_run_before_it_has_its_outcome() {
    for death in [Death::After(1), Death::After(2), Death::Before(3), Death::After(3), Death::Before(4)] {
        for is_immediate in [true, false] {
            let (notes, store) = (Notes::default(), Spy::default());
            let make = || -> Arc<dyn Agent> {
                Arc::new(steps("a", vec![vec![("c", "pay")]]).tool(notes_calls("pay", &notes)))
            };
            let other = Runner::builder("app", make());
            let other =
                if is_immediate { other.sessions(store.memory()) } else { other.sessions(store.clone()) };
            let other = other.build().unwrap();
            let key = other.create_session("ann").await.unwrap().key;
            dies_unseen(&store, death, make, &key).await;
            let seen = read(other.run(&key, "again")).await;
            assert_eq!(seen.assert_finished().texts(), [("a".into(), "a is done".into())]);
            assert!(recover(&other).await.is_empty(), "{death:?}: nothing is left to be recovered");
            let log = log(&other, &key).await;
            assert_eq!(outcomes(&log), [Outcome::Finished, Outcome::Finished], "{death:?}: {log:#?}");
            let mut made = notes.all();
            made.sort();
            made.dedup();
            assert_eq!(made.len(), notes.all().len(), "{death:?}: {:?}", notes.all());
            let unknown = told_of("pay", &stored(&other, &key).await);
            let unknown = unknown.iter().filter(|told| told.contains("unknown")).count();
            assert_eq!(
                made.len() + unknown,
                2 + usize::from(death == Death::Before(3)),
                "{death:?}: {made:?}"
            );
            // The outcome of the first run stands before the second message.
            let ended = |entry: &LogEntry| matches!(entry, LogEntry::Record(step) if matches!(**step, RunStep::Ended { .. }));
            let asked = |entry: &LogEntry| matches!(entry, LogEntry::Event(event) if event.text() == "again");
            assert!(log.iter().position(ended) < log.iter().position(asked), "{death:?}: {log:#?}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_in_another_process_is_answered_when_the_run_before_it_has_its_outcome() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("umbel.db");
    let notes = Notes::default();
    let open = async |tool: FunctionTool| {
        let agent = steps("a", vec![vec![("c", "pay")]]).tool(tool);
        let store = umbel_stores::Sqlite::open(&path).await.unwrap();
        Runner::builder("app", agent).sessions(store).lease(Duration::from_millis(100)).build().unwrap()
    };
    let (begun, told) = (Arc::new(tokio::sync::Notify::new()), notes.clone());
    let called = begun.clone();
    let stuck = FunctionTool::new("pay", "", move |_: Value| {
        told.add("begun by the first");
        called.notify_one();
        std::future::pending::<Result<Value, umbel::ToolError>>()
    });
    let first = open(stuck).await;
    let key = first.create_session("ann").await.unwrap().key;
    let mut stream = first.run(&key, "go");
    tokio::select! {
        event = async { loop { stream.next().await.unwrap().unwrap(); } } => event,
        () = begun.notified() => {}
    }
    // It is gone as a process is: nobody winds it up.
    std::mem::forget(stream);
    let second = open(notes_calls("pay", &notes)).await;
    let refused = read(second.run(&key, "too early")).await;
    assert_eq!(refused.kind(), ErrorKind::SessionBusy);
    let config = RunConfig { wait_for_session: Duration::from_secs(30), ..RunConfig::default() };
    read(second.run_with(&key, "again", config)).await.assert_finished();
    assert_eq!(outcomes(&log(&second, &key).await), [Outcome::Finished, Outcome::Finished]);
    let told = told_of("pay", &stored(&second, &key).await);
    assert!(
        matches!(told.as_slice(), [first, second] if first.contains("unknown") && second.contains("done")),
        "{told:?}"
    );
    assert_eq!(notes.all().len(), 2, "what was under way is not made again: {:?}", notes.all());
}

/// What a tool gave, in the order of the log.
fn told_of(tool: &str, events: &[Arc<Event>]) -> Vec<String> {
    let responses = events.iter().flat_map(|event| event.responses()).filter(|one| one.name == tool);
    responses.map(|response| json!(response.response).to_string()).collect()
}

#[tokio::test]
async fn of_two_messages_after_a_crash_both_are_answered_and_the_run_before_them_ends_once() {
    let (notes, store) = (Notes::default(), Spy::default());
    let make = || -> Arc<dyn Agent> {
        Arc::new(steps("a", vec![vec![("c", "pay")]]).tool(notes_calls("pay", &notes)))
    };
    let config = || RunConfig { wait_for_session: Duration::from_secs(30), ..RunConfig::default() };
    let build =
        || Runner::builder("app", make()).sessions(store.clone().slow()).config(config()).build().unwrap();
    let (one, two) = (build(), build());
    let key = one.create_session("ann").await.unwrap().key;
    dies_unseen(&store, Death::After(3), make, &key).await;
    let (first, second) = tokio::join!(read(one.run(&key, "one")), read(two.run(&key, "two")));
    first.assert_finished();
    second.assert_finished();
    let log = log(&one, &key).await;
    assert_eq!(outcomes(&log), vec![Outcome::Finished; 3], "{log:#?}");
    assert_eq!(notes.all().len(), 3);
}

#[tokio::test]
async fn a_lease_that_nobody_wrote_with_is_no_hindrance() {
    let store = Spy::default();
    let (runner, key) =
        crate::support::with_session(runner(store.clone(), Arc::new(says_once("a"))).build().unwrap()).await;
    let acquire =
        Acquire { claims: true, ..Acquire::new(key.clone(), "dead".into(), Duration::from_millis(1)) };
    store.acquire(acquire).await.unwrap();
    tokio::time::sleep(Duration::from_millis(3)).await;
    read(runner.run(&key, "go")).await.assert_finished();
    assert_eq!(outcomes(&log(&runner, &key).await), [Outcome::Finished]);
}

#[tokio::test]
async fn what_was_cut_short_is_gone_on_with_before_it_is_continued() {
    let (notes, store) = (Notes::default(), Spy::default());
    let make = || -> Arc<dyn Agent> {
        Arc::new(steps("a", vec![vec![("c", "pay")]]).tool(notes_calls("pay", &notes)))
    };
    let other = Runner::builder("app", make()).sessions(store.clone()).build().unwrap();
    let key = other.create_session("ann").await.unwrap().key;
    dies_unseen(&store, Death::After(2), make, &key).await;
    let seen = read(other.continue_run(&key)).await;
    assert!(seen.message().contains("nothing to go on with"), "{}", seen.message());
    assert_eq!(outcomes(&log(&other, &key).await), [Outcome::Finished]);
}

#[tokio::test]
async fn who_waits_for_a_run_that_was_cut_short_can_be_cancelled_and_the_run_ends_all_the_same() {
    let (notes, store) = (Notes::default(), Spy::default());
    let make = || -> Arc<dyn Agent> {
        Arc::new(steps("a", vec![vec![("c", "pay")]]).tool(notes_calls("pay", &notes)))
    };
    let other = Runner::builder("app", make()).sessions(store.clone().slow()).build().unwrap();
    let key = other.create_session("ann").await.unwrap().key;
    dies_unseen(&store, Death::After(1), make, &key).await;
    let mut stream = other.run(&key, "again");
    let token = stream.cancel_token();
    let (event, ()) = tokio::join!(stream.next(), async {
        while !log(&other, &key)
            .await
            .iter()
            .any(|entry| matches!(entry, LogEntry::Record(step) if matches!(**step, RunStep::Recovered)))
        {
            tokio::task::yield_now().await;
        }
        token.cancel(umbel::CancelReason::Asked);
    });
    assert_eq!(event.unwrap().unwrap_err().kind(), ErrorKind::Cancelled);
    while outcomes(&log(&other, &key).await).is_empty() {
        tokio::task::yield_now().await;
    }
    assert_eq!(outcomes(&log(&other, &key).await), [Outcome::Finished]);
    assert!(stored(&other, &key).await.iter().all(|event| event.text() != "again"));
}

/// An agent that calls another one as a tool. Before it does, this is done.
fn calls_child(notes: &Notes, before: impl Fn(SessionKey) + Send + Sync + 'static) -> Arc<dyn Agent> {
    let inner = steps("child", vec![vec![("i", "pay")]]).tool(notes_calls("pay", notes));
    let before = Arc::new(before);
    let outer = steps("a", vec![vec![("c", "child")]]).tool(AgentTool::new(inner));
    Arc::new(outer.before_tool(move |cx, _, _| {
        let before = before.clone();
        Box::pin(async move {
            let parent = cx.run().session_key();
            let id = format!("{}/{}", parent.id(), cx.idempotency_key().unwrap());
            before(SessionKey::new(parent.app(), parent.user(), id)?);
            Ok(None)
        })
    }))
}

/// What a process writes that comes back to the session of a call: it asks the agent.
fn asks_child(key: &SessionKey, ttl: Duration) -> Acquire {
    let mut event = Event::new("r".into(), umbel::Source::user()).with_content(Content::user("go"));
    event.id = "e1".into();
    let entries = [Arc::new(event).into(), RunStep::Started { fingerprint: 0 }.into()].into_iter().collect();
    Acquire { entries, ..Acquire::new(key.clone(), "late".into(), ttl) }
}

/// The sessions that were made for calls of a session.
async fn child_of(runner: &Runner, key: &SessionKey) -> SessionKey {
    let events = stored(runner, key).await;
    let event = events.iter().find(|event| event.calls().next().is_some()).unwrap();
    let call = event.calls().next().unwrap().id.clone().unwrap();
    SessionKey::new(key.app(), key.user(), format!("{}/{}.{call}", key.id(), event.id)).unwrap()
}

#[tokio::test]
async fn a_call_is_looked_at_again_if_its_first_process_came_back_meanwhile() {
    let (notes, store) = (Notes::default(), Spy::default());
    let late = store.clone();
    let other = runner(
        store.clone(),
        calls_child(&notes, move |child| {
            // The session of the call was empty; before it is taken, the process that made it asks the agent, and is cancelled.
            late.meanwhile(move |sessions| {
                let taken =
                    sessions.acquire(asks_child(&child, Duration::from_secs(5))).try_now().unwrap().unwrap();
                let ended = [RunStep::Ended { outcome: Outcome::Cancelled }.into()].into_iter().collect();
                sessions.release(&taken.lease, taken.versions, ended).try_now().unwrap().unwrap();
            });
        }),
    )
    .build()
    .unwrap();
    let key = other.create_session("ann").await.unwrap().key;
    let dying = store.dying(Some(Death::After(3)));
    let first = runner(dying.clone(), calls_child(&notes, |_| {})).build().unwrap();
    run_and_die(&first, &dying, &key, "go".into()).await;
    recover(&other).await;
    assert_eq!(outcomes(&log(&other, &key).await), [Outcome::Finished]);
    let child = child_of(&other, &key).await;
    let inside = log(&other, &child).await;
    assert_eq!(outcomes(&inside), [Outcome::Cancelled, Outcome::Finished], "{inside:#?}");
    let asked = stored(&other, &child).await.iter().filter(|event| event.is_user()).count();
    assert_eq!(asked, 1, "the agent is asked once: {inside:#?}");
    assert_eq!(notes.all().len(), 1);
}

#[tokio::test]
async fn what_an_agent_said_while_it_was_taken_over_is_part_of_its_answer() {
    let (notes, store) = (Notes::default(), Spy::default());
    let late = store.clone();
    let other = runner(
        store.clone(),
        calls_child(&notes, move |child| {
            let taken = late
                .memory()
                .acquire(asks_child(&child, Duration::from_millis(1)))
                .try_now()
                .unwrap()
                .unwrap();
            std::thread::sleep(Duration::from_millis(3));
            late.meanwhile(move |sessions| {
                let source = Arc::new(umbel::Source::new("child"));
                let mut event = Event::new("r".into(), source).with_content(Content::model("I was quicker"));
                event.id = "e2".into();
                let word = [Arc::new(event).into()].into_iter().collect();
                sessions.append(&taken.lease, taken.versions, word).try_now().unwrap().unwrap();
            });
        }),
    )
    .build()
    .unwrap();
    let key = other.create_session("ann").await.unwrap().key;
    let dying = store.dying(Some(Death::After(3)));
    let first = runner(dying.clone(), calls_child(&notes, |_| {})).build().unwrap();
    run_and_die(&first, &dying, &key, "go".into()).await;
    recover(&other).await;
    assert_eq!(outcomes(&log(&other, &key).await), [Outcome::Finished]);
    assert_eq!(told_of("child", &stored(&other, &key).await), [r#"{"result":"I was quicker"}"#]);
}

#[tokio::test]
async fn an_answer_that_came_second_is_too_late() {
    let (notes, store) = (Notes::default(), Spy::default());
    let pay = notes_calls("pay", &notes).confirm(umbel::Confirm::Always);
    let agent = Arc::new(steps("a", vec![vec![("c", "pay")]]).tool(pay));
    let (runner, key) = crate::support::with_session(runner(store.clone(), agent).build().unwrap()).await;
    let asked = read(runner.run(&key, "go")).await.interrupts().to_vec();
    let [asked] = asked.as_slice() else { panic!("{asked:?}") };
    let (of, no) = (key.clone(), asked.answer(false));
    // It was open when the answer was checked.
    store.meanwhile(move |sessions| {
        let mut event = Event::new("r".into(), umbel::Source::user()).with_content(no);
        event.id = "e1".into();
        sessions
            .commit(&of, None, [Arc::new(event).into()].into_iter().collect())
            .try_now()
            .unwrap()
            .unwrap();
    });
    let seen = read(runner.run(&key, asked.answer(true))).await;
    assert_eq!(seen.kind(), ErrorKind::InvalidConfirmation);
    assert!(seen.message().contains("answered already"), "{}", seen.message());
    assert!(notes.all().is_empty());
}

#[tokio::test]
async fn a_person_is_asked_again_if_the_call_was_cut_short_once_more() {
    for death in [Death::Before(2), Death::After(2), Death::Before(3), Death::After(3)] {
        let (notes, store) = (Notes::default(), Spy::default());
        let make = || -> Arc<dyn Agent> {
            Arc::new(steps("a", vec![vec![("c", "pay")]]).tool(notes_calls("pay", &notes)))
        };
        let build =
            |store: Spy| runner(store, make()).unfinished_calls(UnfinishedCalls::Ask).build().unwrap();
        let other = build(store.clone());
        let key = other.create_session("ann").await.unwrap().key;
        dies_unseen(&store, Death::Before(3), make, &key).await;
        let asked = recover(&other).await;
        let Ok(Outcome::Interrupted { interrupts }) = &asked[0].outcome else { panic!("{asked:?}") };
        let dying = store.dying(Some(death));
        run_and_die(&build(dying.clone()), &dying, &key, interrupts[0].answer(true)).await;
        let again = recover(&other).await;
        match (death, again.first().map(|one| one.outcome.as_ref().unwrap())) {
            (Death::Before(2), Some(Outcome::Finished)) => {
                assert_eq!(notes.all().len(), 2, "{death:?}: what was agreed to had not begun");
            }
            (Death::After(3), Some(Outcome::Finished)) => assert_eq!(notes.all().len(), 2, "{death:?}"),
            (Death::After(2) | Death::Before(3), Some(Outcome::Interrupted { interrupts })) => {
                let made = notes.all().len();
                let known = umbel::Answer::respond(json!({"found": "out"}));
                read(other.resume(&key, [(&interrupts[0], known)])).await.assert_finished();
                let told = told_of("pay", &stored(&other, &key).await);
                assert!(told.last().unwrap().contains("found"), "{death:?}: {told:?}");
                assert_eq!(notes.all().len(), made, "{death:?}: it is not made again");
            }
            (_, outcome) => panic!("{death:?}: {outcome:?}"),
        }
    }
}
