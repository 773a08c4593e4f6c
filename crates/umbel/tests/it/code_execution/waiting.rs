//! Code that waits for people, and code whose process died.

use std::sync::Arc;

use serde_json::json;
use umbel::replay::{Recording, Replay};
use umbel::{
    Agent, Answer, Chunk, CodeExecution, CodeSpec, Confirm, LlmAgent, ModelRequest, Outcome, Response, Role,
    Runner, RunnerBuilder, ScriptedModel, UnfinishedCalls,
};

use super::{Toy, agent, block, results, told};
use crate::desk::{Desk, WAYS, shown};
use crate::recovery::{self, dies_everywhere, recover, run_and_die};
use crate::support::{Death, Notes, Spy, log, object, outcomes, read, stored};

/// An agent that writes code as long as it has not seen a result, and whose code people must agree to.
fn asking(toy: &Toy) -> impl Fn() -> RunnerBuilder + Send + Sync + 'static {
    let toy = toy.clone();
    move || {
        let execution = CodeExecution::new(toy.clone()).confirm(Confirm::Always);
        Runner::builder("app", writes("print 1", 1).code_executor(execution))
    }
}

/// Writes the code so many times, each time it has the result of the last, and then says the last word.
fn writes(code: &'static str, times: usize) -> LlmAgent {
    let model = ScriptedModel::from_fn("m", move |request: &ModelRequest| {
        let mine = request.contents.iter().filter(|content| content.role == Some(Role::Model)).count();
        let words = if mine < times { block(&format!("{code}{mine}")) } else { "done".to_owned() };
        vec![Ok(Chunk::Complete(Response::text(words)))]
    });
    LlmAgent::new("a").model(model)
}

#[tokio::test]
async fn code_waits_for_a_person_and_runs_once_with_their_yes() {
    for way in WAYS {
        let toy = Toy::new();
        let desk = Desk::new(way, asking(&toy)).await;
        let seen = desk.say("go").await;
        assert!(matches!(seen.outcome, Outcome::Interrupted { .. }), "{seen:?}");
        assert!(toy.ran().is_empty());
        let asked = desk.only().await;
        assert_eq!(shown(&asked), ("run_code".to_owned(), json!({"code": "print 10"})));
        assert!(results(&seen.whole()).is_empty(), "code that waits has no result yet");
        let seen = desk.answer([(&asked, Answer::approve())]).await;
        assert_eq!(told(&seen.assert_finished().whole()), ["= 10 (OK)", "done"], "{way:?}");
        assert_eq!(toy.ran(), ["print 10"]);
        // The same answer may come twice.
        desk.answer([(&asked, Answer::approve())]).await.assert_finished();
        assert_eq!(toy.ran(), ["print 10"], "{way:?}");
    }
}

#[tokio::test]
async fn a_person_may_reject_code_or_change_it_or_say_what_it_gives() {
    let reject = || Answer::reject_because("too dear");
    for (answer, result, ran) in [
        (reject(), "too dear", None),
        (Answer::edit(object(json!({"code": "print 2"}))), "2", Some("print 2")),
        (Answer::respond("42"), "42", None),
    ] {
        for way in WAYS {
            let toy = Toy::new();
            let desk = Desk::new(way, asking(&toy)).await;
            desk.say("go").await;
            let seen = desk.answer_only(answer.clone()).await;
            let results = results(&seen.assert_finished().whole());
            assert_eq!(results.len(), 1);
            assert!(results[0]["output"].as_str().unwrap().contains(result), "{way:?} {results:?}");
            let is_rejected = answer == reject();
            assert_eq!(results[0]["outcome"], if is_rejected { "OUTCOME_FAILED" } else { "OUTCOME_OK" });
            assert_eq!(toy.ran(), ran.into_iter().collect::<Vec<_>>(), "{way:?}");
        }
    }
}

#[tokio::test]
async fn people_are_asked_about_code_that_is_to_be_looked_at() {
    let needed = |args: &umbel::Object| args["code"].as_str().is_some_and(|code| code.contains("rm"));
    let execution = CodeExecution::new(Toy::new()).confirm(Confirm::When(Arc::new(needed)));
    let (fine, bad) = (block("print 1"), block("rm"));
    let (agent, _) = agent([fine.as_str(), bad.as_str(), "ok"]);
    let seen = crate::support::run_once(agent.code_executor(execution)).await;
    assert_eq!(told(&seen.whole())[..3], ["> print 1", "= 1 (OK)", "> rm"]);
    assert_eq!(shown(&seen.interrupts()[0]).1, json!({"code": "rm"}));
}

/// An executor that notes what it runs.
fn noting(notes: &Notes, spec: CodeSpec) -> Toy {
    Toy { notes: notes.clone(), is_noting: true, ..Toy::with(spec) }
}

#[tokio::test]
async fn a_run_with_code_goes_on_wherever_it_is_cut_short_and_runs_nothing_twice() {
    let deaths = dies_everywhere(|notes| {
        Arc::new(writes("print x", 2).code_executor(noting(notes, CodeSpec::new("python"))))
    })
    .await;
    assert!(deaths > 8, "{deaths}");
}

/// Lets a process die when code has begun, and another go on.
async fn cut_short(spec: CodeSpec, unfinished: UnfinishedCalls) -> (Notes, Runner, umbel::SessionKey) {
    let (notes, store) = (Notes::default(), Spy::default());
    let make = |store: Spy| {
        let agent: Arc<dyn Agent> =
            Arc::new(writes("print x", 1).code_executor(noting(&notes, spec.clone())));
        recovery::runner(store, agent).unfinished_calls(unfinished).build().unwrap()
    };
    let other = make(store.clone());
    let key = other.create_session("ann").await.unwrap().key;
    // The message is the first write, the code the second, its result the third.
    let dying = store.dying(Some(Death::Before(3)));
    run_and_die(&make(dying.clone()), &dying, &key, "go".into()).await;
    assert_eq!(notes.all(), ["ran print x0"]);
    recover(&other).await;
    (notes, other, key)
}

#[tokio::test]
async fn code_that_was_cut_short_has_an_unknown_outcome() {
    let (notes, runner, key) = cut_short(CodeSpec::new("python"), UnfinishedCalls::Report).await;
    let told = told(&stored(&runner, &key).await);
    assert_eq!(told[1..], ["> print x0", &format!("= {} (FAILED)", umbel::text::UNKNOWN_OUTCOME), "done"]);
    assert_eq!(notes.all().len(), 1);
    assert_eq!(outcomes(&log(&runner, &key).await), [Outcome::Finished]);
}

#[tokio::test]
async fn code_that_does_no_harm_is_run_again() {
    let (notes, runner, key) = cut_short(CodeSpec::new("python").repeatable(), UnfinishedCalls::Report).await;
    assert_eq!(told(&stored(&runner, &key).await)[1..], ["> print x0", "= x0 (OK)", "done"]);
    assert_eq!(notes.all().len(), 2);
}

#[tokio::test]
async fn people_may_be_asked_about_code_that_was_cut_short() {
    let (notes, runner, key) = cut_short(CodeSpec::new("python"), UnfinishedCalls::Ask).await;
    let asked = runner.open_questions(&key).await.unwrap().remove(0);
    let seen = read(runner.resume(&key, [(&asked, Answer::approve())])).await;
    assert_eq!(told(&seen.assert_finished().whole()), ["= x0 (OK)", "done"]);
    assert_eq!(notes.all().len(), 2);
}

#[tokio::test]
async fn a_replay_gives_the_results_of_then_and_runs_nothing() {
    let toy = Toy::new();
    let make = |toy: &Toy| {
        let toy = toy.clone();
        move || {
            let words = [block("fail no"), block("print 1"), "ok".to_owned()];
            let (agent, _) = agent(words.iter().map(String::as_str));
            Runner::builder("app", agent.code_executor(toy.clone()))
        }
    };
    let runner = make(&toy)().build().unwrap();
    let key = runner.create_session("ann").await.unwrap().key;
    read(runner.run(&key, "go")).await.assert_finished();
    let recording = Recording::read(runner.sessions(), &key).await.unwrap().unwrap();
    let other = Toy::new();
    let again = make(&other);
    let replayed = Replay::new(move || Ok(again())).run(&recording).await.unwrap();
    assert!(replayed.differences.is_empty(), "{:?}", replayed.differences);
    assert_eq!((toy.ran().len(), other.ran().len()), (2, 0));
}
