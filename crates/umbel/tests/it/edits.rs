//! What handlers change in a conversation, and keep: as long as the run goes on, and no longer.

use std::sync::Arc;

use serde_json::{Value, json};
use umbel::{
    Chunk, Compactor, Confirm, Content, Event, FunctionTool, Handler, LlmAgent, LoopAgent, ModelRequest,
    ModelTurn, Parallel, Response, Result, Run, RunConfig, Runner, ScriptedModel, Sequential, SessionKey,
    Step, Summariser, Usage, handler,
};

use crate::handler_support::{after_model, before_agent, before_model};
use crate::support::{
    Notes, Seen, Spy, begin, call_with_id, calls, echo, read, run_once, said, state, with_session,
};

/// Where the answer to a question comes to: the runner that asked, with the session at hand or not, or another one over
/// the same store.
#[derive(Clone, Copy, Debug, PartialEq)]
enum To {
    Hot,
    Unkept,
    Other,
}

const EACH: [To; 3] = [To::Hot, To::Unkept, To::Other];

/// Runners over one store.
struct House {
    store: Spy,
    to: To,
    runner: Runner,
    key: SessionKey,
    make: Box<dyn Fn() -> LlmAgent>,
}

impl House {
    async fn new(to: To, make: impl Fn() -> LlmAgent + 'static) -> Self {
        let (store, make) = (Spy::default(), Box::new(make));
        let (runner, key) = with_session(Self::build(&store, to, make())).await;
        Self { store, to, runner, key, make }
    }

    fn build(store: &Spy, to: To, agent: LlmAgent) -> Runner {
        let builder = Runner::builder("app", agent).sessions(store.clone());
        let builder = if to == To::Hot { builder } else { builder.hot_sessions(0) };
        builder.build().unwrap()
    }

    async fn run(&mut self, message: impl Into<Content>) -> Seen {
        if self.to == To::Other {
            self.runner = Self::build(&self.store, self.to, (self.make)());
        }
        read(self.runner.run(&self.key, message)).await
    }
}

/// Notes what it was asked. Calls `pay` when it was told "pay", else says "done".
fn clerk(asked: &Notes) -> ScriptedModel {
    let asked = asked.clone();
    ScriptedModel::from_fn("clerk", move |request| {
        asked.add(said(request).join(" | "));
        let last = request.contents.iter().rev().find(|content| !content.text().starts_with("note")).unwrap();
        let response = match last.text().as_str() {
            "pay" => calls([call_with_id("c1", "pay", json!({}))]),
            _ => Response::text("done"),
        };
        vec![Ok(Chunk::Complete(response))]
    })
    .recorded()
}

fn pay() -> FunctionTool {
    FunctionTool::new("pay", "", |_: Value| async { Ok("paid") }).confirm(Confirm::Always)
}

/// Shortens the conversation once, when it is asked to pay, and keeps that it did.
struct Shortens;

#[handler]
impl Handler for Shortens {
    fn name(&self) -> &str {
        "shortens"
    }

    fn before_model(&self, turn: &mut ModelTurn<'_>) -> Result<Step> {
        let times: u32 = turn.run().kept("shortened")?.unwrap_or_default();
        if times == 0 && turn.history.last().is_some_and(|content| content.text() == "pay") {
            let before = turn.history.len() - 1;
            turn.history.splice(0..before, [Arc::new(Content::user("note: before"))]);
            turn.history.push(Content::user("note: behind"));
            turn.run().keep("shortened", &1)?;
        }
        turn.cx().set_state("times", json!(turn.run().kept::<u32>("shortened")?));
        Ok(Step::Continue)
    }
}

#[tokio::test]
async fn an_edit_and_a_kept_value_are_there_after_the_answer_and_gone_in_the_next_run() {
    for to in EACH {
        let asked = Notes::default();
        let model = asked.clone();
        let mut house =
            House::new(to, move || LlmAgent::new("a").model(clerk(&model)).tool(pay()).handler(Shortens))
                .await;
        house.run("one").await.assert_finished();
        let question = house.run("pay").await.interrupts()[0].clone();
        let seen = house.run(question.answer(true)).await;
        assert_eq!(seen.assert_finished().responses(), [json!({"result": "paid"})], "{to:?}");
        assert_eq!(state(&house.runner, &house.key).await["times"], 1, "{to:?}");
        house.run("and now?").await.assert_finished();
        let expected = [
            "one",
            "note: before | pay | note: behind",
            "note: before | pay | note: behind |  | ",
            "one | done | pay |  |  | done | and now?",
        ];
        assert_eq!(asked.all(), expected, "{to:?}");
        assert_eq!(state(&house.runner, &house.key).await["times"], Value::Null, "{to:?}");
    }
}

#[tokio::test]
async fn an_edit_is_gone_if_something_else_is_said_in_the_place_of_the_answer() {
    for to in EACH {
        let asked = Notes::default();
        let model = asked.clone();
        let mut house =
            House::new(to, move || LlmAgent::new("a").model(clerk(&model)).tool(pay()).handler(Shortens))
                .await;
        house.run("one").await.assert_finished();
        let question = house.run("pay").await.interrupts()[0].clone();
        house.run("never mind").await.assert_finished();
        house.run(question.answer(true)).await.assert_finished();
        for later in &asked.all()[2..] {
            assert!(later.starts_with("one | done | pay |"), "{to:?}: {later}");
        }
    }
}

#[tokio::test]
async fn edits_and_kept_values_add_up_over_several_questions_in_one_run() {
    for to in EACH {
        let asked = Notes::default();
        let noted = asked.clone();
        let mut house = House::new(to, move || {
            let asked = noted.clone();
            let model = ScriptedModel::from_fn("m", move |request| {
                asked.add(said(request).join(" | "));
                let answered = request.contents.iter().filter(|content| content.has_responses()).count();
                let response = match answered {
                    0 => calls([call_with_id("c1", "pay", json!({}))]),
                    1 => calls([call_with_id("c2", "pay", json!({}))]),
                    _ => Response::text("done"),
                };
                vec![Ok(Chunk::Complete(response))]
            });
            LlmAgent::new("a").model(model).tool(pay()).handler(before_model("notes", |turn| {
                let count: usize = turn.run().kept("count")?.unwrap_or_default();
                turn.run().keep("count", &(count + 1))?;
                turn.history.push(Content::user(format!("note {count}").as_str()));
                Ok(Step::Continue)
            }))
        })
        .await;
        let first = house.run("go").await.interrupts()[0].clone();
        let second = house.run(first.answer(true)).await.interrupts()[0].clone();
        house.run(second.answer(true)).await.assert_finished();
        let expected =
            ["go | note 0", "go | note 0 |  |  | note 1", "go | note 0 |  |  | note 1 |  |  | note 2"];
        assert_eq!(asked.all(), expected, "{to:?}");
    }
}

#[tokio::test]
async fn what_before_agent_put_in_the_place_of_the_input_is_there_after_the_answer() {
    for to in EACH {
        let asked = Notes::default();
        let model = asked.clone();
        let mut house = House::new(to, move || {
            LlmAgent::new("a").model(clerk(&model)).tool(pay()).handler(before_agent("pays", |turn| {
                if turn.input.as_ref().is_some_and(|input| input.text() == "secret") {
                    turn.input = Some(Arc::new(Content::user("pay")));
                }
                Ok(Step::Continue)
            }))
        })
        .await;
        let question = house.run("secret").await.interrupts()[0].clone();
        house.run(question.answer(true)).await.assert_finished();
        assert_eq!(asked.all(), ["pay", "pay |  | "], "{to:?}");
    }
}

#[tokio::test]
async fn an_edit_and_a_kept_value_end_with_a_run_that_fails() {
    for to in EACH {
        let asked = Notes::default();
        let model = asked.clone();
        let mut house = House::new(to, move || {
            LlmAgent::new("a")
                .model(clerk(&model))
                .handler(before_model("edits", |turn| {
                    assert!(turn.run().kept::<bool>("seen")?.is_none());
                    turn.run().keep("seen", &true)?;
                    turn.history.push(Content::user("note"));
                    Ok(Step::Continue)
                }))
                .handler(after_model("fails", |turn| match turn.history.base().len() {
                    2 => Err(umbel::Error::new(umbel::ErrorKind::Other, "no")),
                    _ => Ok(Step::Continue),
                }))
        })
        .await;
        assert!(house.run("one").await.error.is_some());
        house.run("two").await.assert_finished();
        assert_eq!(asked.all(), ["one | note", "one | two | note"], "{to:?}");
    }
}

/// An agent that leaves a note of its own at each of its steps.
fn noting(name: &'static str, model: &ScriptedModel) -> LlmAgent {
    LlmAgent::new(name).model(model.clone()).tool(echo()).handler(before_model(name, move |turn| {
        turn.history.push(Content::user(format!("note of {name}").as_str()));
        Ok(Step::Continue)
    }))
}

fn notes_in(request: &ModelRequest) -> Vec<String> {
    said(request).into_iter().filter(|text| text.starts_with("note")).collect()
}

fn echo_once() -> ScriptedModel {
    ScriptedModel::new("m").recorded().call("echo", json!({"n": 1})).text("done")
}

#[tokio::test]
async fn edits_of_two_agents_in_one_run_do_not_mix() {
    let (one, two) = (echo_once(), echo_once());
    run_once(Sequential::new("team").agent(noting("one", &one)).agent(noting("two", &two)))
        .await
        .assert_finished();
    let (left, right) = (echo_once(), echo_once());
    run_once(Parallel::new("team").agent(noting("left", &left)).agent(noting("right", &right)))
        .await
        .assert_finished();
    for (name, model) in [("one", one), ("two", two), ("left", left), ("right", right)] {
        let (requests, note) = (model.requests(), format!("note of {name}"));
        assert_eq!(notes_in(&requests[0]), [note.as_str()]);
        assert_eq!(notes_in(&requests[1]), [note.as_str(), note.as_str()]);
    }
}

#[tokio::test]
async fn an_agent_that_gets_the_word_back_and_one_in_a_loop_find_their_edits() {
    let hand = |to: &str| calls([call_with_id(to, "transfer_to_agent", json!({"agent_name": to}))]);
    let (first, second) = (
        ScriptedModel::new("m").recorded().response(hand("b")).text("the end"),
        ScriptedModel::new("m").recorded().response(hand("a")),
    );
    let seen = run_once(noting("a", &first).sub_agent(noting("b", &second))).await;
    assert_eq!(seen.assert_finished().texts(), [("a".into(), "the end".into())]);
    assert_eq!(notes_in(&second.requests()[0]), ["note of b"]);
    assert_eq!(notes_in(&first.requests()[1]), ["note of a", "note of a"]);
    let model = ScriptedModel::new("m").recorded().text("one").text("two").text("three");
    run_once(LoopAgent::new("loop").agent(noting("a", &model)).max_iterations(3)).await.assert_finished();
    let counts: Vec<usize> = model.requests().iter().map(|request| notes_in(request).len()).collect();
    assert_eq!(counts, [1, 2, 3]);
}

#[tokio::test]
async fn an_edit_is_there_at_the_next_step_whatever_it_was() {
    type Change = fn(&mut ModelTurn<'_>);
    let changes: [(&str, Change, &[&str]); 6] = [
        ("replace", |turn| _ = turn.history.replace(0, Content::user("x")), &["x", "fine", "two"]),
        ("truncate", |turn| turn.history.truncate_front(2), &["two"]),
        (
            "insert",
            |turn| turn.history.splice(1..1, [Arc::new(Content::user("x"))]),
            &["one", "x", "fine", "two"],
        ),
        ("push", |turn| turn.history.push(Content::user("x")), &["one", "fine", "two", "x"]),
        ("all", |turn| turn.history.splice(.., [Arc::new(Content::user("x"))]), &["x"]),
        ("last", |turn| _ = turn.history.replace(2, Content::user("x")), &["one", "fine", "x"]),
    ];
    for (what, change, expected) in changes {
        let call = |n: u32| calls([call_with_id(&format!("c{n}"), "echo", json!({}))]);
        let model =
            ScriptedModel::new("m").recorded().text("fine").response(call(1)).response(call(2)).text("done");
        let agent =
            LlmAgent::new("a").model(model.clone()).tool(echo()).handler(before_model(what, move |turn| {
                if turn.history.len() == 3 && !turn.history.is_edited() {
                    change(turn);
                }
                Ok(Step::Continue)
            }));
        let (runner, key) = begin(agent).await;
        read(runner.run(&key, "one")).await.assert_finished();
        read(runner.run(&key, "two")).await.assert_finished();
        for (step, request) in model.requests()[1..].iter().enumerate() {
            let mut expected: Vec<String> = expected.iter().map(|text| (*text).to_owned()).collect();
            expected.extend(std::iter::repeat_n(String::new(), 2 * step));
            assert_eq!(said(request), expected, "{what} at step {step}");
        }
    }
}

#[tokio::test]
async fn an_edit_stays_though_words_for_the_turn_travel_among_the_messages() {
    // The instruction stands before the user's message at first, and behind the tool's answer later.
    let model = echo_once();
    let agent = LlmAgent::new("a")
        .model(model.clone())
        .tool(echo())
        .static_instruction("Fixed.")
        .instruction("For this turn.")
        .handler(before_model("redacts", |turn| {
            let place = turn.history.iter().position(|content| content.text() == "secret");
            if let Some(place) = place.filter(|_| !turn.history.is_edited()) {
                turn.history.replace(place, Content::user("***"));
            }
            Ok(Step::Continue)
        }));
    let (runner, key) = begin(agent).await;
    read(runner.run(&key, "secret")).await.assert_finished();
    for request in model.requests() {
        let texts = said(&request);
        assert!(!texts.iter().any(|text| text.contains("secret")), "{texts:?}");
        assert_eq!(texts.iter().filter(|text| *text == "***").count(), 1, "{texts:?}");
        assert_eq!(texts.iter().filter(|text| text.contains("For this turn.")).count(), 1, "{texts:?}");
    }
}

#[tokio::test]
async fn an_edit_stays_though_the_run_brings_messages_along() {
    for to in EACH {
        let asked = Notes::default();
        let model = asked.clone();
        let mut house = House::new(to, move || {
            LlmAgent::new("a").model(clerk(&model)).tool(pay()).handler(before_model("notes", |turn| {
                if turn.history.len() < 3 {
                    turn.history.push(Content::user("note: end"));
                }
                Ok(Step::Continue)
            }))
        })
        .await;
        let context = vec![Arc::new(Content::user("note: context"))];
        let config = RunConfig { model_input_context: context, ..RunConfig::default() };
        let seen = read(house.runner.run_with(&house.key, "pay", config)).await;
        assert_eq!(asked.all(), ["note: context | pay | note: end"]);
        let question = seen.interrupts()[0].clone();
        house.run(question.answer(true)).await.assert_finished();
        assert_eq!(asked.all()[1], "pay | note: end |  | ", "{to:?}");
    }
}

/// Sums everything up in a word.
struct Briefly;

impl Summariser for Briefly {
    fn summarise<'a>(
        &'a self,
        _run: &'a Run,
        _events: &'a [Arc<Event>],
    ) -> umbel::BoxFuture<'a, Result<Option<Content>>> {
        Box::pin(async move { Ok(Some(Content::model("summary"))) })
    }
}

#[tokio::test]
async fn an_edit_keeps_its_sense_when_old_turns_are_summed_up_in_the_middle_of_a_run() {
    let mut large = calls([call_with_id("c1", "echo", json!({}))]);
    large.meta_mut().usage_metadata = Some(Usage { prompt_token_count: Some(1000), ..Usage::default() });
    let model = ScriptedModel::new("m").recorded().text("a1").text("a2").response(large).text("done");
    let agent = LlmAgent::new("a").model(model.clone()).tool(echo()).handler(before_model("edits", |turn| {
        if turn.history.len() == 5 && !turn.history.is_edited() {
            turn.history.replace(0, Content::user("u1 redacted"));
            turn.history.replace(4, Content::user("u3 redacted"));
            turn.history.push(Content::user("note"));
        }
        Ok(Step::Continue)
    }));
    let compactor = Compactor::above(500, 3).summariser(Briefly);
    let runner = Runner::builder("app", agent).compaction(compactor).build().unwrap();
    let (runner, key) = with_session(runner).await;
    for text in ["u1", "u2", "u3"] {
        read(runner.run(&key, text)).await.assert_finished();
    }
    let requests = model.requests();
    assert_eq!(said(&requests[2]), ["u1 redacted", "a1", "u2", "a2", "u3 redacted", "note"]);
    let last = said(&requests[3]);
    assert_eq!(last.iter().filter(|text| *text == "summary").count(), 1, "{last:?}");
    assert!(
        !last.iter().any(|text| ["u1", "u2", "u3", "a1", "a2"].contains(&text.as_str())),
        "nothing comes back: {last:?}"
    );
    assert_eq!(last.iter().filter(|text| *text == "u3 redacted").count(), 1, "{last:?}");
    assert_eq!(last.iter().filter(|text| *text == "note").count(), 1, "{last:?}");
}

#[tokio::test]
async fn an_edit_keeps_its_place_when_a_late_answer_is_put_beside_its_call() {
    for to in EACH {
        let asked = Notes::default();
        let noted = asked.clone();
        let mut house = House::new(to, move || {
            let asked = noted.clone();
            let model = ScriptedModel::from_fn("m", move |request| {
                let words = request.contents.iter().map(|content| match content.responses().count() {
                    0 => content.text(),
                    count => format!("[{count} answers]"),
                });
                asked.add(words.collect::<Vec<_>>().join(" | "));
                let both =
                    || calls([call_with_id("c1", "echo", json!({})), call_with_id("c2", "pay", json!({}))]);
                let answered = request.contents.last().unwrap().has_responses();
                vec![Ok(Chunk::Complete(if answered { Response::text("done") } else { both() }))]
            });
            LlmAgent::new("a")
                .model(model)
                .tool(echo())
                .tool(pay())
                .handler(before_model("front", |turn| {
                    if turn.history.len() == 1 {
                        turn.history.splice(0..0, [Arc::new(Content::user("note"))]);
                    }
                    Ok(Step::Continue)
                }))
                .handler(after_model("shorter", |turn| {
                    if turn.calls().count() == 2 {
                        turn.history.replace(1, Content::user("go, in short"));
                    }
                    Ok(Step::Continue)
                }))
        })
        .await;
        let question = house.run("go").await.interrupts()[0].clone();
        house.run(question.answer(true)).await.assert_finished();
        assert_eq!(asked.all(), ["note | go", "note | go, in short |  | [2 answers]"], "{to:?}");
    }
}
