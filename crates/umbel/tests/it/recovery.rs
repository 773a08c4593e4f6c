//! Runs whose process dies, and what another one makes of them.

use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use serde_json::{Value, json};
use umbel::{
    Agent, AgentTool, Chunk, Content, Event, FunctionTool, LlmAgent, LogEntry, LoopAgent, ModelRequest,
    Outcome, Parallel, Payload, Response, RunStep, Runner, RunnerBuilder, ScriptedModel, Sequential,
    SessionKey, SessionStore, ToolContext, UnfinishedCalls, agent_fn,
};

use crate::support::{Death, Notes, Operation, Spy, call_with_id, calls, log, outcomes, read, stored};

/// Makes an agent whose tools note what they do.
pub(crate) type Make = fn(&Notes) -> Arc<dyn Agent>;

/// A tool that notes each call, and under which key.
pub(crate) fn notes_calls(name: &str, notes: &Notes) -> FunctionTool {
    let (notes, tool) = (notes.clone(), name.to_owned());
    FunctionTool::with_context(name, "", move |cx: &ToolContext, _: Value| {
        let (notes, tool) = (notes.clone(), tool.clone());
        let key = cx.idempotency_key().unwrap();
        Box::pin(async move {
            notes.add(format!("{tool} {key}"));
            tokio::task::yield_now().await;
            Ok(json!({"done": tool}))
        })
    })
}

/// Makes the calls, each batch in a step of its own, then says the last word. It knows how far it is by what it is sent,
/// so that it goes on in another process.
pub(crate) fn steps(name: &str, batches: Vec<Vec<(&'static str, &'static str)>>) -> LlmAgent {
    let word = format!("{name} is done");
    let me = name.to_owned();
    LlmAgent::new(name).model(ScriptedModel::from_fn("steps", move |request: &ModelRequest| {
        let mine = mine(request, &me);
        let response = match batches.get(mine % (batches.len() + 1)) {
            Some(batch) => calls(batch.iter().map(|(id, tool)| {
                let arg = if tool.starts_with("child") { json!({"request": "go"}) } else { json!({}) };
                call_with_id(&format!("{id}-{mine}"), tool, arg)
            })),
            None => Response::text(word.clone()),
        };
        vec![Ok(Chunk::Complete(response))]
    }))
}

/// How often the agent that is asked has answered in this request: with calls, or with its last word.
fn mine(request: &ModelRequest, _name: &str) -> usize {
    request.contents.iter().filter(|content| content.role == Some(umbel::Role::Model)).count()
}

pub(crate) fn runner(store: Spy, agent: Arc<dyn Agent>) -> RunnerBuilder {
    Runner::builder("app", agent).sessions(store).lease(Duration::from_millis(5))
}

/// Runs until the process dies or the run ends. Gives the whole events that its reader saw.
pub(crate) async fn run_and_die(
    runner: &Runner,
    store: &Spy,
    key: &SessionKey,
    message: Content,
) -> Vec<Arc<Event>> {
    let mut stream = runner.run(key, message);
    let mut seen = Vec::new();
    loop {
        tokio::select! {
            biased;
            event = stream.next() => match event {
                Some(event) => seen.push(event.unwrap()),
                None => break,
            },
            () = store.died() => break,
        }
    }
    // It is gone as a process is: nobody winds it up.
    std::mem::forget(stream);
    seen
}

/// Goes on with what is there, as long as there is something.
pub(crate) async fn recover(runner: &Runner) -> Vec<umbel::Recovered> {
    tokio::time::sleep(Duration::from_millis(7)).await;
    runner.recover().await.unwrap()
}

/// What was said and what tools gave, without what differs from run to run.
fn told(events: &[Arc<Event>]) -> Vec<String> {
    let mut told = Vec::new();
    for event in events {
        for part in event.content.iter().flat_map(|content| &content.parts) {
            told.push(match &part.payload {
                Payload::Text(text) => format!("{}: {text}", event.author()),
                Payload::Call(call) => format!("{}: {}()", event.author(), call.name),
                Payload::Response(response) => {
                    format!("{} = {}", response.name, json!(response.response))
                }
                Payload::Code(code) => format!("{}: {}", event.author(), json!(code.code)),
                Payload::CodeResult(result) => format!("code = {}", json!(result.output)),
                _ => continue,
            });
        }
    }
    told.sort();
    told
}

/// The same of the sessions that worked for calls.
async fn inside(runner: &Runner, key: &SessionKey, events: &[Arc<Event>]) -> Vec<String> {
    let mut all = Vec::new();
    for event in events {
        for call in event.calls().filter(|call| call.name == "child") {
            let id = format!("{}/{}.{}", key.id(), event.id, call.id.as_ref().unwrap());
            let key = SessionKey::new(key.app(), key.user(), id).unwrap();
            assert_eq!(outcomes(&log(runner, &key).await).last(), Some(&Outcome::Finished));
            all.extend(told(&stored(runner, &key).await));
        }
    }
    all
}

/// Lets the process die at each write of a run, before it and behind it, and goes on in another one. What is in the log
/// then is what a run gives that nobody disturbs, but for calls that were under way.
pub(crate) async fn dies_everywhere(make: Make) -> usize {
    let clean = Notes::default();
    let store = Spy::default();
    let (whole, key) =
        crate::support::with_session(runner(store.clone(), make(&clean)).build().unwrap()).await;
    read(whole.run(&key, "go")).await.assert_finished();
    let expected = told(&stored(&whole, &key).await);
    let effects = clean.all().len();
    let mut deaths = 0;
    for number in 1.. {
        let mut alive = 0;
        for death in [Death::Before(number), Death::After(number)] {
            let (notes, store) = (Notes::default(), Spy::default());
            let dying = store.dying(Some(death));
            let other = runner(store.clone(), make(&notes)).build().unwrap();
            let key = other.create_session("ann").await.unwrap().key;
            let first = runner(dying.clone(), make(&notes)).build().unwrap();
            let seen = run_and_die(&first, &dying, &key, "go".into()).await;
            recover(&other).await;
            assert!(recover(&other).await.is_empty(), "{death:?}: there is one run to go on with");
            let log = log(&other, &key).await;
            if log.is_empty() {
                assert_eq!(death, Death::Before(1));
                continue;
            }
            deaths += 1;
            alive += usize::from(dying.writes() < number);
            assert_eq!(outcomes(&log), [Outcome::Finished], "{death:?}: {log:#?}");
            let events = stored(&other, &key).await;
            let missing = seen.iter().filter(|event| !event.is_partial() && !events.contains(event)).count();
            assert_eq!(missing, 0, "{death:?}: what was seen is stored");
            let told = told(&events);
            let inside = inside(&other, &key, &events).await;
            let unknown = told.iter().chain(&inside).filter(|told| told.contains("unknown")).count();
            let calls_made = notes.all();
            let mut once = calls_made.clone();
            once.sort();
            once.dedup();
            assert_eq!(once.len(), calls_made.len(), "{death:?}: no call is made twice");
            assert!(calls_made.len() + unknown >= effects, "{death:?}: {calls_made:?} {told:?}");
            if unknown == 0 {
                assert_eq!(told, expected, "{death:?}");
                assert_eq!(calls_made.len(), effects, "{death:?}");
            } else {
                assert_eq!(told.len(), expected.len(), "{death:?}: {told:#?} {expected:#?}");
            }
        }
        if alive == 2 {
            break;
        }
    }
    deaths
}

#[tokio::test]
async fn a_run_with_a_call_and_one_with_a_batch_go_on_wherever_they_are_cut_short() {
    let deaths = dies_everywhere(|notes| {
        let agent = steps("a", vec![vec![("c", "pay")], vec![("d", "pay"), ("e", "send"), ("f", "pay")]]);
        Arc::new(agent.tool(notes_calls("pay", notes)).tool(notes_calls("send", notes)))
    })
    .await;
    assert!(deaths > 14, "{deaths}");
}

#[tokio::test]
async fn a_sequence_goes_on_with_the_agent_that_was_at_work() {
    dies_everywhere(|notes| {
        let first = steps("one", vec![vec![("c", "pay")]]).tool(notes_calls("pay", notes));
        let second = says_once("two");
        Arc::new(Sequential::new("team").agent(first).agent(second).agent(says_once("three")))
    })
    .await;
}

#[tokio::test]
async fn a_loop_goes_on_in_the_round_it_was_in() {
    dies_everywhere(|_| {
        Arc::new(LoopAgent::new("team").max_iterations(3).agent(says_once("one")).agent(says_once("two")))
    })
    .await;
}

#[tokio::test]
async fn agents_beside_each_other_go_on_each_where_it_was() {
    dies_everywhere(|notes| {
        let paying = steps("left", vec![vec![("c", "pay")]]).tool(notes_calls("pay", notes));
        let team = Parallel::new("team").agent(paying).agent(says_once("middle")).agent(says_once("right"));
        Arc::new(Sequential::new("all").agent(team).agent(says_once("last")))
    })
    .await;
}

#[tokio::test]
async fn an_agent_called_as_a_tool_goes_on_in_its_own_session() {
    dies_everywhere(|notes| {
        let inner = steps("child", vec![vec![("i", "pay")]]).tool(notes_calls("pay", notes));
        let outer = steps("a", vec![vec![("c", "child")], vec![("d", "child"), ("e", "pay")]]);
        Arc::new(outer.tool(AgentTool::new(inner)).tool(notes_calls("pay", notes)))
    })
    .await;
}

#[tokio::test]
async fn a_closure_is_run_again_but_says_nothing_twice_and_does_not_repeat_the_agents_below() {
    dies_everywhere(|notes| {
        let paying = steps("payer", vec![vec![("c", "pay")]]).tool(notes_calls("pay", notes));
        let agent = agent_fn("boss", |run| {
            Box::pin(async move {
                run.emit(run.event().with_content(Content::model("first"))).await?;
                umbel::run_sub_agent(run, "payer").await?;
                run.emit(run.event().with_content(Content::model("then"))).await?;
                umbel::run_sub_agent(run, "two").await?;
                run.emit(run.event().with_content(Content::model("last"))).await?;
                Ok(())
            })
        });
        Arc::new(agent.sub_agent(paying).sub_agent(says_once("two")))
    })
    .await;
}

#[tokio::test]
async fn a_conversation_that_was_handed_over_goes_on_with_whom_it_was_handed_to() {
    dies_everywhere(|notes| {
        let hand_over = |request: &ModelRequest| {
            let over = request.contents.iter().any(|content| content.has_responses());
            let call = call_with_id("t", "transfer_to_agent", json!({"agent_name": "b"}));
            vec![Ok(Chunk::Complete(if over { Response::text("never") } else { calls([call]) }))]
        };
        let b = LlmAgent::new("b").tool(notes_calls("pay", notes)).model(ScriptedModel::from_fn(
            "b",
            |request| {
                let paid = request
                    .contents
                    .iter()
                    .flat_map(|content| content.responses())
                    .any(|one| one.name == "pay");
                let call = calls([call_with_id("p", "pay", json!({}))]);
                vec![Ok(Chunk::Complete(if paid { Response::text("paid") } else { call }))]
            },
        ));
        Arc::new(LlmAgent::new("a").model(ScriptedModel::from_fn("a", hand_over)).sub_agent(b))
    })
    .await;
}

#[tokio::test]
async fn a_conversation_that_was_handed_back_is_not_handed_over_again() {
    dies_everywhere(|notes| {
        let hands_to =
            |name: &str| calls([call_with_id("t", "transfer_to_agent", json!({"agent_name": name}))]);
        let has = |request: &ModelRequest, name: &str| {
            request.contents.iter().flat_map(|content| content.responses()).any(|one| one.name == name)
        };
        let a = ScriptedModel::from_fn("a", move |request| {
            // What the other one did is told in words.
            let told = request.contents.iter().any(|content| content.text().contains("pay"));
            vec![Ok(Chunk::Complete(if told { Response::text("all is done") } else { hands_to("b") }))]
        });
        let b = ScriptedModel::from_fn("b", move |request| {
            let call = calls([call_with_id("p", "pay", json!({}))]);
            vec![Ok(Chunk::Complete(if has(request, "pay") { hands_to("a") } else { call }))]
        });
        let b = LlmAgent::new("b").tool(notes_calls("pay", notes)).model(b);
        Arc::new(LlmAgent::new("a").model(a).sub_agent(b))
    })
    .await;
}

/// Begins a run by hand, in a process that is as good as dead: its lease runs out at once.
async fn begun_by_a_dead_one(store: &Spy, key: &SessionKey) -> (umbel::Lease, umbel::Versions) {
    let mut event = Event::new("r".into(), umbel::Source::user()).with_content(Content::user("go"));
    event.id = "e1".into();
    let started = RunStep::Started { fingerprint: 0 };
    let acquire = umbel::store::Acquire {
        entries: [Arc::new(event).into(), started.into()].into_iter().collect(),
        ..umbel::store::Acquire::new(key.clone(), "dead".into(), Duration::from_millis(1))
    };
    let acquired = store.acquire(acquire).await.unwrap();
    (acquired.lease, acquired.versions)
}

/// The last word of a run that was begun by hand.
fn last_word() -> LogEntry {
    let source = Arc::new(umbel::Source::new("a"));
    let mut event = Event::new("r".into(), source).with_content(Content::model("a is done"));
    event.id = "e2".into();
    Arc::new(event).into()
}

#[tokio::test]
async fn a_run_is_taken_over_though_its_process_wrote_once_more() {
    let store = Spy::default();
    let (runner, key) =
        crate::support::with_session(runner(store.clone(), Arc::new(says_once("a"))).build().unwrap()).await;
    let (lease, versions) = begun_by_a_dead_one(&store, &key).await;
    store.meanwhile(move |sessions| {
        let entries = [last_word()].into_iter().collect();
        sessions.append(&lease, versions, entries).try_now().unwrap().unwrap();
    });
    assert_eq!(recover(&runner).await.len(), 1);
    assert_eq!(outcomes(&log(&runner, &key).await), [Outcome::Finished]);
    assert_eq!(stored(&runner, &key).await.len(), 2);
}

#[tokio::test]
async fn a_run_that_ended_before_it_could_be_taken_over_is_left_as_it_is() {
    let store = Spy::default();
    let (runner, key) =
        crate::support::with_session(runner(store.clone(), Arc::new(says_once("a"))).build().unwrap()).await;
    let (lease, versions) = begun_by_a_dead_one(&store, &key).await;
    store.meanwhile(move |sessions| {
        let ended = RunStep::Ended { outcome: Outcome::Finished };
        let entries = [last_word(), ended.into()].into_iter().collect();
        sessions.release(&lease, versions, entries).try_now().unwrap().unwrap();
    });
    assert!(recover(&runner).await.is_empty());
    assert_eq!(log(&runner, &key).await.len(), 4);
    read(runner.run(&key, "and now?")).await.assert_finished();
}

#[tokio::test]
async fn a_call_that_nobody_agreed_to_is_asked_about_and_not_of_unknown_outcome() {
    let (notes, store) = (Notes::default(), Spy::default());
    let make = || {
        let pay = notes_calls("pay", &notes).confirm(umbel::Confirm::Always);
        Arc::new(steps("a", vec![vec![("c", "pay")]]).tool(pay))
    };
    let other = runner(store.clone(), make()).build().unwrap();
    let key = other.create_session("ann").await.unwrap().key;
    // The call is in the log, the question is not.
    let dying = store.dying(Some(Death::After(2)));
    run_and_die(&runner(dying.clone(), make()).build().unwrap(), &dying, &key, "go".into()).await;
    let recovered = recover(&other).await;
    let [umbel::Recovered { outcome: Ok(Outcome::Interrupted { interrupts }), .. }] = recovered.as_slice()
    else {
        panic!("{recovered:?}")
    };
    assert!(notes.all().is_empty());
    read(other.run(&key, interrupts[0].answer(true))).await.assert_finished();
    assert_eq!(notes.all().len(), 1);
}

#[tokio::test]
async fn a_call_whose_session_another_process_made_is_left_to_that_process() {
    let notes = Notes::default();
    let inner = AgentTool::new(steps("child", vec![vec![("i", "pay")]]).tool(notes_calls("pay", &notes)));
    let outer = steps("a", vec![vec![("c", "child")]]).tool(inner).before_tool(|cx, _, _| {
        Box::pin(async move {
            let parent = cx.run().session_key();
            let id = format!("{}/{}", parent.id(), cx.idempotency_key().unwrap());
            let key = SessionKey::new(parent.app(), parent.user(), id)?;
            cx.run().services().sessions.create(umbel::NewSession::new(key).parent(parent.clone())).await?;
            Ok(None)
        })
    });
    let (runner, key) = crate::support::begin(outer).await;
    let seen = read(runner.run(&key, "go")).await;
    assert!(seen.tool_error().contains("another process goes on with the call"), "{}", seen.tool_error());
    assert!(notes.all().is_empty());
}

/// Lets the process die at each write of the run that an answer begins.
async fn dies_after_the_answer(make: Make) -> usize {
    let mut deaths = 0;
    for number in 1.. {
        let mut alive = 0;
        for death in [Death::Before(number), Death::After(number)] {
            let (notes, store) = (Notes::default(), Spy::default());
            let dying = store.dying(Some(death));
            let other = runner(store.clone(), make(&notes)).build().unwrap();
            let key = other.create_session("ann").await.unwrap().key;
            let asked = read(other.run(&key, "go")).await.interrupts().to_vec();
            let before = notes.all().len();
            let first = runner(dying.clone(), make(&notes)).build().unwrap();
            let yes = || {
                asked.iter().map(|asked| asked.response(&umbel::Answer::approve())).map(umbel::Part::response)
            };
            let answer = || Content::new(umbel::Role::User, yes());
            run_and_die(&first, &dying, &key, answer()).await;
            let recovered = recover(&other).await;
            if death == Death::Before(1) {
                // The answer never came: it can be given again.
                assert!(recovered.is_empty());
                read(other.run(&key, answer())).await.assert_finished();
            }
            deaths += 1;
            alive += usize::from(dying.writes() < number);
            let log = log(&other, &key).await;
            let [Outcome::Interrupted { .. }, Outcome::Finished] = outcomes(&log).as_slice() else {
                panic!("{death:?} {:?} {log:#?}", outcomes(&log))
            };
            let events = stored(&other, &key).await;
            let last = events.last().unwrap();
            assert!(
                last.is_final() && !last.text().is_empty(),
                "{death:?}: the last word is missing: {last:?}"
            );
            let (told, inside) = (told(&events), inside(&other, &key, &events).await);
            let unknown = told.iter().chain(&inside).filter(|told| told.contains("unknown")).count();
            let made = notes.all();
            let mut once = made.clone();
            once.sort();
            once.dedup();
            assert_eq!(once.len(), made.len(), "{death:?}: {made:?}");
            assert!(made.len() + unknown > before, "{death:?} {made:?} {told:#?}");
            assert!(open(&other, &key).await.is_empty());
        }
        if alive == 2 {
            break;
        }
    }
    deaths
}

async fn open(runner: &Runner, key: &SessionKey) -> Vec<umbel::Interrupt> {
    runner.open_questions(key).await.unwrap()
}

#[tokio::test]
async fn a_call_that_was_approved_is_made_once_wherever_its_run_is_cut_short() {
    let deaths = dies_after_the_answer(|notes| {
        let pay = notes_calls("pay", notes).confirm(umbel::Confirm::Always);
        let agent = steps("a", vec![vec![("c", "pay"), ("d", "send"), ("e", "pay")], vec![("f", "send")]]);
        Arc::new(agent.tool(pay).tool(notes_calls("send", notes)))
    })
    .await;
    assert!(deaths > 8, "{deaths}");
}

#[tokio::test]
async fn a_workflow_around_an_approved_call_goes_on_wherever_its_run_is_cut_short() {
    dies_after_the_answer(|notes| {
        let pay = notes_calls("pay", notes).confirm(umbel::Confirm::Always);
        let asks = steps("asks", vec![vec![("c", "pay")]]).tool(pay);
        let both = Parallel::new("both").agent(asks).agent(says_once("beside"));
        let rounds = LoopAgent::new("rounds").max_iterations(1).agent(both).agent(says_once("behind"));
        Arc::new(Sequential::new("all").agent(says_once("first")).agent(rounds).agent(says_once("last")))
    })
    .await;
}

#[tokio::test]
async fn an_approved_call_inside_an_agent_called_as_a_tool_is_made_once() {
    dies_after_the_answer(|notes| {
        let pay = notes_calls("pay", notes).confirm(umbel::Confirm::Always);
        let inner = steps("child", vec![vec![("i", "pay")]]).tool(pay);
        let outer = steps("a", vec![vec![("c", "child"), ("d", "send")]]);
        Arc::new(outer.tool(AgentTool::new(inner)).tool(notes_calls("send", notes)))
    })
    .await;
}

/// Says one thing in each of its turns.
pub(crate) fn says_once(name: &str) -> LlmAgent {
    let word = format!("{name} says");
    LlmAgent::new(name)
        .model(ScriptedModel::from_fn("m", move |_| vec![Ok(Chunk::Complete(Response::text(word.clone())))]))
}

/// Dies in the call: when the tool is about to return.
async fn dies_in_the_call(policy: UnfinishedCalls, idempotent: bool) -> (Runner, SessionKey, Notes) {
    let (notes, store) = (Notes::default(), Spy::default());
    let dying = store.dying(Some(Death::Before(3)));
    let make = || {
        let tool = notes_calls("pay", &notes);
        let tool = if idempotent { tool.idempotent() } else { tool };
        Arc::new(steps("a", vec![vec![("c", "pay")]]).tool(tool))
    };
    let other = runner(store.clone(), make()).unfinished_calls(policy).build().unwrap();
    let key = other.create_session("ann").await.unwrap().key;
    let first = runner(dying.clone(), make()).build().unwrap();
    run_and_die(&first, &dying, &key, "go".into()).await;
    assert_eq!(notes.all().len(), 1);
    (other, key, notes)
}

#[tokio::test]
async fn a_call_under_way_is_reported_as_of_unknown_outcome() {
    let (runner, key, notes) = dies_in_the_call(UnfinishedCalls::Report, false).await;
    let recovered = recover(&runner).await;
    assert!(
        matches!(recovered.as_slice(), [one] if one.key == key && *one.outcome.as_ref().unwrap() == Outcome::Finished)
    );
    let told = told(&stored(&runner, &key).await);
    assert!(told.iter().any(|told| told.starts_with("pay =") && told.contains("unknown")), "{told:?}");
    assert_eq!(notes.all().len(), 1);
}

#[tokio::test]
async fn an_idempotent_call_under_way_is_made_again_with_the_same_key() {
    let (runner, key, notes) = dies_in_the_call(UnfinishedCalls::Report, true).await;
    recover(&runner).await;
    let all = notes.all();
    assert_eq!(all.len(), 2);
    assert_eq!(all[0], all[1]);
    assert!(!told(&stored(&runner, &key).await).iter().any(|told| told.contains("unknown")));
}

#[tokio::test]
async fn a_person_can_be_asked_about_a_call_under_way() {
    for (answer, times, word) in [
        (umbel::Answer::approve(), 2, "\"done\""),
        (umbel::Answer::respond(json!({"paid": true})), 1, "\"paid\""),
        (umbel::Answer::reject(), 1, "unknown"),
    ] {
        let (runner, key, notes) = dies_in_the_call(UnfinishedCalls::Ask, false).await;
        let recovered = recover(&runner).await;
        let Ok(Outcome::Interrupted { interrupts }) = &recovered[0].outcome else { panic!("{recovered:?}") };
        let [asked] = interrupts.as_slice() else { panic!("{interrupts:?}") };
        assert_eq!(asked.reason, "unfinished");
        read(runner.resume(&key, [(asked, answer)])).await.assert_finished();
        assert_eq!(notes.all().len(), times);
        let told = told(&stored(&runner, &key).await);
        assert!(
            told.iter().any(|told| told.starts_with("pay =") && told.contains(word)),
            "{word}: {told:#?}"
        );
    }
}

#[tokio::test]
async fn a_run_that_ends_its_process_again_and_again_is_given_up() {
    let (notes, store) = (Notes::default(), Spy::default());
    let make = || Arc::new(steps("a", vec![vec![("c", "pay")]]).tool(notes_calls("pay", &notes)));
    let last = runner(store.clone(), make()).build().unwrap();
    let key = last.create_session("ann").await.unwrap().key;
    let dying = store.dying(Some(Death::Before(2)));
    run_and_die(&runner(dying.clone(), make()).build().unwrap(), &dying, &key, "go".into()).await;
    for _ in 0..5 {
        // It takes the lease, then says that it goes on.
        let dying = store.dying(Some(Death::Before(3)));
        let other = runner(dying.clone(), make()).build().unwrap();
        tokio::time::sleep(Duration::from_millis(7)).await;
        tokio::select! {
            _ = other.recover() => panic!("it dies"),
            () = dying.died() => {}
        }
    }
    let recovered = recover(&last).await;
    let Ok(Outcome::Failed { failure }) = &recovered[0].outcome else { panic!("{recovered:?}") };
    assert_eq!(failure.code, "UNRECOVERABLE");
    assert!(notes.all().is_empty());
    assert!(recover(&last).await.is_empty());
}

#[tokio::test]
async fn two_that_recover_at_once_do_not_go_on_with_the_same_run() {
    let (notes, store) = (Notes::default(), Spy::default());
    let make = || Arc::new(steps("a", vec![vec![("c", "pay")]]).tool(notes_calls("pay", &notes)));
    let one = runner(store.clone(), make()).lease(Duration::from_secs(5)).build().unwrap();
    let two = runner(store.clone(), make()).lease(Duration::from_secs(5)).build().unwrap();
    let mut keys = Vec::new();
    for _ in 0..20 {
        let key = one.create_session("ann").await.unwrap().key;
        let dying = store.dying(Some(Death::Before(2)));
        run_and_die(&runner(dying.clone(), make()).build().unwrap(), &dying, &key, "go".into()).await;
        keys.push(key);
    }
    tokio::time::sleep(Duration::from_millis(7)).await;
    let (first, second) = tokio::join!(one.recover(), two.recover());
    let (first, second) = (first.unwrap(), second.unwrap());
    assert_eq!(first.len() + second.len(), 20);
    for key in &keys {
        assert_eq!(outcomes(&log(&one, key).await), [Outcome::Finished]);
    }
    assert_eq!(notes.all().len(), 20);
}

#[tokio::test]
async fn a_cancelled_run_and_a_failed_one_can_be_continued() {
    let notes = Notes::default();
    let store = Spy::default();
    let flaky = ScriptedModel::new("m")
        .response(calls([call_with_id("c", "pay", json!({}))]))
        .fail("no power")
        .text("all paid");
    let agent = LlmAgent::new("a").model(flaky).tool(notes_calls("pay", &notes));
    let runner = Runner::builder("app", agent).sessions(store).build().unwrap();
    let key = runner.create_session("ann").await.unwrap().key;
    let failed = read(runner.run(&key, "pay")).await;
    assert!(failed.error.is_some());
    let seen = read(runner.continue_run(&key)).await;
    assert_eq!(seen.assert_finished().texts(), [("a".into(), "all paid".into())]);
    assert_eq!(notes.all().len(), 1);
    let again = read(runner.continue_run(&key)).await;
    assert!(again.message().contains("nothing to go on with"), "{}", again.message());
}

#[tokio::test]
async fn a_run_that_was_cancelled_in_a_call_goes_on_behind_it() {
    let notes = Notes::default();
    let waiting = notes.clone();
    let slow = FunctionTool::new("slow", "", move |_: Value| {
        let notes = waiting.clone();
        async move {
            notes.add("begun");
            std::future::pending::<()>().await;
            Ok(json!(1))
        }
    });
    let agent =
        steps("a", vec![vec![("c", "slow"), ("d", "pay")]]).tool(slow).tool(notes_calls("pay", &notes));
    let (runner, key) = crate::support::begin(agent).await;
    let mut stream = runner.run(&key, "go");
    let token = stream.cancel_token();
    let (events, ()) = tokio::join!(
        async {
            let mut events = Vec::new();
            while let Some(event) = stream.next().await {
                events.push(event);
            }
            events
        },
        async {
            while notes.all().len() < 2 {
                tokio::task::yield_now().await;
            }
            tokio::task::yield_now().await;
            token.cancel(umbel::CancelReason::Asked);
        }
    );
    assert!(events.iter().any(|event| event.is_err()) || stream.outcome() == Some(&Outcome::Cancelled));
    assert_eq!(stream.outcome(), Some(&Outcome::Cancelled));
    let seen = read(runner.continue_run(&key)).await;
    seen.assert_finished();
    let told = told(&stored(&runner, &key).await);
    assert!(told.iter().any(|told| told.starts_with("slow =") && told.contains("unknown")), "{told:#?}");
    assert!(told.iter().any(|told| told.starts_with("pay =") && told.contains("done")), "{told:#?}");
    assert_eq!(notes.all().len(), 2, "{:?}", notes.all());
    let records = log(&runner, &key).await;
    let ended =
        |entry: &LogEntry| matches!(entry, LogEntry::Record(step) if matches!(**step, RunStep::Ended { .. }));
    assert_eq!(records.iter().filter(|entry| ended(entry)).count(), 2);
}

#[tokio::test]
async fn a_run_that_another_build_began_goes_on_or_is_refused_as_one_says() {
    for (policy, code) in
        [(umbel::OtherBuilds::Continue, None), (umbel::OtherBuilds::Refuse, Some("UNRECOVERABLE"))]
    {
        let (notes, store) = (Notes::default(), Spy::default());
        let pays = |name: &str| steps(name, vec![vec![("c", "pay")]]).tool(notes_calls("pay", &notes));
        let other = Arc::new(pays("a").instruction("Be quick."));
        let other = runner(store.clone(), other).other_builds(policy).build().unwrap();
        let key = other.create_session("ann").await.unwrap().key;
        let dying = store.dying(Some(Death::Before(2)));
        let first = runner(dying.clone(), Arc::new(pays("a"))).build().unwrap();
        run_and_die(&first, &dying, &key, "go".into()).await;
        let recovered = recover(&other).await;
        match (&recovered[0].outcome, code) {
            (Ok(Outcome::Finished), None) => assert_eq!(notes.all().len(), 1),
            (Ok(Outcome::Failed { failure }), Some(code)) => assert_eq!(failure.code, code),
            (outcome, _) => panic!("{policy:?}: {outcome:?}"),
        }
    }
}

#[tokio::test]
async fn a_run_whose_caller_is_over_is_closed() {
    let (notes, store) = (Notes::default(), Spy::default());
    let make = || {
        let inner = steps("child", vec![vec![("i", "pay")]]).tool(notes_calls("pay", &notes));
        Arc::new(steps("a", vec![vec![("c", "child")]]).tool(AgentTool::new(inner)))
    };
    let other = runner(store.clone(), make()).build().unwrap();
    let key = other.create_session("ann").await.unwrap().key;
    let dying = store.dying(Some(Death::After(4)));
    run_and_die(&runner(dying.clone(), make()).build().unwrap(), &dying, &key, "go".into()).await;
    // Its caller's run is ended by hand, as an operator might.
    tokio::time::sleep(Duration::from_millis(7)).await;
    let ended = LogEntry::from(RunStep::Ended { outcome: Outcome::Cancelled });
    other.sessions().commit(&key, None, [ended].into_iter().collect()).await.unwrap();
    assert!(recover(&other).await.is_empty(), "the lease of the caller is given back first");
    let recovered = recover(&other).await;
    assert!(
        matches!(recovered.as_slice(), [one] if one.key != key && matches!(one.outcome, Ok(Outcome::Cancelled))),
        "{recovered:?}"
    );
    assert!(notes.all().is_empty() && recover(&other).await.is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_run_that_is_under_way_here_is_left_alone_though_its_lease_ran_out() {
    let (notes, store) = (Notes::default(), Spy::default());
    let work = {
        let notes = notes.clone();
        FunctionTool::new("work", "", move |_: Value| {
            notes.add("worked");
            async {
                tokio::time::sleep(Duration::from_secs(1)).await;
                Ok(json!("worked"))
            }
        })
    };
    let agent = Arc::new(steps("a", vec![vec![("c", "work")]]).tool(work.idempotent()));
    let runner = runner(store.clone(), agent).build().unwrap();
    let key = runner.create_session("ann").await.unwrap().key;
    store.hang(Operation::Heartbeat);
    let live = tokio::spawn(read(runner.run(&key, "go")));
    tokio::time::sleep(Duration::from_millis(500)).await;
    assert_eq!(store.memory().abandoned("app").await.unwrap().len(), 1);
    assert!(runner.recover().await.unwrap().is_empty());
    // Nor is it disturbed by a message, which waits or is refused.
    assert_eq!(read(runner.run(&key, "and?")).await.kind(), umbel::ErrorKind::SessionBusy);
    live.await.unwrap().assert_finished();
    assert_eq!(notes.all(), ["worked"]);
    assert_eq!(outcomes(&log(&runner, &key).await), [Outcome::Finished]);
}

#[tokio::test]
async fn a_session_that_is_deleted_meanwhile_does_not_hide_what_came_of_the_others() {
    let store = Spy::default();
    let other: Arc<std::sync::OnceLock<SessionKey>> = Arc::default();
    let (memory, deletes) = (store.memory(), other.clone());
    // Whoever is gone on with first deletes the session of the other one.
    let agent = Arc::new(agent_fn("a", move |run| {
        let (memory, deletes) = (memory.clone(), deletes.clone());
        Box::pin(async move {
            if let Some(key) = deletes.get() {
                memory.delete(key).await?;
            }
            run.emit(run.event().with_content(Content::model("done"))).await?;
            Ok(())
        })
    }));
    let last = runner(store.clone(), agent.clone()).build().unwrap();
    let mut keys = Vec::new();
    for _ in 0..2 {
        let key = last.create_session("ann").await.unwrap().key;
        let dying = store.dying(Some(Death::After(1)));
        run_and_die(&runner(dying.clone(), agent.clone()).build().unwrap(), &dying, &key, "go".into()).await;
        keys.push(key);
    }
    other.set(keys[1].clone()).unwrap();
    let memory = Runner::builder("app", agent).sessions(store.memory()).build().unwrap();
    let recovered = recover(&memory).await;
    assert_eq!(recovered.len(), 1, "{recovered:?}");
    assert_eq!((&recovered[0].key, recovered[0].outcome.as_ref().unwrap()), (&keys[0], &Outcome::Finished));
}

#[tokio::test]
async fn a_run_that_one_of_several_calls_failed_goes_on_with_an_answer_to_each_of_them() {
    let bad = FunctionTool::new("bad", "", |_: Value| async {
        Err::<Value, _>(umbel::ToolError::new("the printer is on fire"))
    });
    let good = FunctionTool::new("good", "", |_: Value| async { Ok(json!("good")) });
    let model =
        ScriptedModel::new("m").recorded().calls([("good", json!({})), ("bad", json!({}))]).text("done");
    let config = umbel::RunConfig { tool_errors: umbel::ToolErrors::Fail, ..Default::default() };
    let agent = LlmAgent::new("a").model(model.clone()).tool(good).tool(bad);
    let runner = Runner::builder("app", agent).config(config).build().unwrap();
    let key = runner.create_session("ann").await.unwrap().key;
    assert_eq!(read(runner.run(&key, "go")).await.kind(), umbel::ErrorKind::Tool);
    read(runner.continue_run(&key)).await.assert_finished();
    let sent = &model.requests()[1];
    let calls = sent.contents.iter().flat_map(|content| content.calls()).count();
    let answers = sent.contents.iter().flat_map(|content| content.responses()).count();
    assert_eq!((calls, answers), (2, 2), "{:?}", sent.contents);
}
