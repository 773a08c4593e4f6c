//! Questions to people, whoever asks them, and what becomes of the answers: hot, cold, and from another runner.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use serde_json::{Value, json};
use umbel::{
    AgentTool, AgentTurn, Answer, Chunk, ChunkStream, Clock, Content, DecisionKind, ErrorKind, FunctionTool,
    Handler, Interrupt, LlmAgent, LoopAgent, ModelCall, ModelTurn, NextModel, NextTool, Outcome, Parallel,
    Question, Response, Result, Runner, RunnerBuilder, ScriptedModel, Sequential, Step, ToolCall, ToolResult,
    agent_fn, handler,
};

use crate::desk::{Desk, WAYS, Way, shown};
use crate::support::{Notes, call_with_id, calls, object, said};

fn runner(agent: LlmAgent) -> impl Fn() -> RunnerBuilder {
    move || Runner::builder("app", agent.clone())
}

fn word(answer: &Answer) -> String {
    answer.payload.clone().map_or_else(|| format!("{:?}", answer.decision()), |value| value.to_string())
}

/// A tool that asks so many questions, one after the other, and does something once before each.
fn asking(name: &'static str, questions: usize, notes: &Notes) -> FunctionTool {
    let notes = notes.clone();
    FunctionTool::with_context(name, "Asks.", move |cx, args: Value| {
        let notes = notes.clone();
        Box::pin(async move {
            notes.add(format!("{name} begins"));
            let mut heard = Vec::new();
            for index in 0..questions {
                let noted = notes.clone();
                let key = format!("step{index}");
                let once = cx.once(&key, || async move {
                    noted.add(format!("{name} does {index}"));
                    Ok(index * 10)
                });
                assert_eq!(once.await?, index * 10);
                heard.push(word(&cx.interrupt(Question::input(format!("{name} {index}?")))?));
            }
            Ok(json!({"args": args, "heard": heard}))
        })
    })
}

/// A handler that asks in each of its hooks that are wanted, so many questions.
#[derive(Clone)]
struct Asks {
    hooks: umbel::Hooks,
    questions: usize,
    notes: Notes,
}

impl Asks {
    fn new(hooks: umbel::Hooks, questions: usize, notes: &Notes) -> Self {
        Self { hooks, questions, notes: notes.clone() }
    }

    fn all(&self, hook: &str, ask: impl Fn(Question) -> Result<Answer>) -> Result<()> {
        for index in 0..self.questions {
            let answer = ask(Question::input(format!("{hook} {index}?")))?;
            self.notes.add(format!("{hook} heard {}", word(&answer)));
        }
        Ok(())
    }
}

#[handler]
impl Handler for Asks {
    fn name(&self) -> &str {
        "asks"
    }

    fn hooks(&self) -> umbel::Hooks {
        self.hooks
    }

    fn before_agent(&self, turn: &mut AgentTurn<'_>) -> Result<Step> {
        self.all("before_agent", |question| turn.interrupt(self, question)).map(|()| Step::Continue)
    }

    fn before_model(&self, turn: &mut ModelTurn<'_>) -> Result<Step> {
        self.all("before_model", |question| turn.interrupt(self, question)).map(|()| Step::Continue)
    }

    fn after_model(&self, turn: &mut ModelTurn<'_>) -> Result<Step> {
        self.all("after_model", |question| turn.interrupt(self, question)).map(|()| Step::Continue)
    }

    async fn wrap_model(&self, call: ModelCall<'_>, next: NextModel<'_>) -> Result<ChunkStream<'_>> {
        self.all("wrap_model", |question| call.interrupt(self, question))?;
        next.call(call).await
    }

    async fn wrap_tool(&self, call: ToolCall<'_>, next: NextTool<'_>) -> ToolResult {
        self.all("wrap_tool", |question| call.interrupt(self, question))?;
        next.call(call).await
    }
}

#[tokio::test]
async fn a_tool_asks_several_questions_and_does_each_thing_once() {
    for way in WAYS {
        let notes = Notes::default();
        let model = ScriptedModel::new("m").recorded().call("ask", json!({"n": 1})).text("done");
        let desk =
            Desk::new(way, runner(LlmAgent::new("a").model(model.clone()).tool(asking("ask", 3, &notes))))
                .await;
        desk.say("go").await.interrupts();
        for index in 0..3u32 {
            let asked = desk.only().await;
            assert_eq!(asked.message, Some(format!("ask {index}?")));
            assert_eq!((asked.address.nth, &asked.address.layer), (index, &None));
            assert_eq!((asked.address.agent.as_str(), asked.reason.as_str()), ("a", "input"));
            assert_eq!(shown(&asked), ("ask".into(), json!({"n": 1})));
            let seen = desk.answer([(&asked, Answer::input(index))]).await;
            assert_eq!(seen.outcome == Outcome::Finished, index == 2, "{way:?}: {seen:?}");
        }
        assert!(desk.open().await.is_empty());
        let requests = model.requests();
        assert_eq!(requests.len(), 2, "{way:?}: the model is asked when all is said");
        let results: Vec<_> = requests[1].contents.iter().flat_map(|content| content.responses()).collect();
        assert_eq!(results.len(), 1);
        let heard = json!({"args": {"n": 1}, "heard": ["0", "1", "2"]});
        assert_eq!(results[0].response, Some(object(heard)));
        let begins = notes.all().iter().filter(|note| note.ends_with("begins")).count();
        assert_eq!(begins, 4, "it begins at its top each time");
        for index in 0..3 {
            let done = notes.all().iter().filter(|note| **note == format!("ask does {index}")).count();
            assert_eq!(done, 1, "{way:?}");
        }
    }
}

#[tokio::test]
async fn a_hook_asks_several_questions_and_the_model_is_asked_once() {
    use umbel::Hooks;
    let hooks = [
        (Hooks::BEFORE_AGENT, "before_agent", "asks.before_agent"),
        (Hooks::BEFORE_MODEL, "before_model", "asks.before_model"),
        (Hooks::WRAP_MODEL, "wrap_model", "asks.wrap_model"),
        (Hooks::AFTER_MODEL, "after_model", "asks.after_model"),
    ];
    for way in WAYS {
        for (hooks, hook, layer) in hooks {
            let notes = Notes::default();
            let model = ScriptedModel::new("m").recorded().text("first").text("second").text("third");
            let agent = LlmAgent::new("a").model(model.clone()).handler(Asks::new(hooks, 2, &notes));
            let desk = Desk::new(way, runner(agent)).await;
            let seen = desk.say("go").await;
            assert!(seen.texts().is_empty(), "{way:?} {hook}: {seen:?}");
            for index in 0..2u32 {
                let asked = desk.only().await;
                assert_eq!(asked.address.layer.as_deref(), Some(layer));
                assert_eq!((asked.address.nth, asked.address.call.is_none()), (index, true));
                let seen = desk.answer([(&asked, Answer::input(index))]).await;
                assert_eq!(seen.outcome == Outcome::Finished, index == 1, "{way:?} {hook}: {seen:?}");
                if index == 1 {
                    assert_eq!(seen.texts(), [("a".to_owned(), "first".to_owned())], "{way:?} {hook}");
                }
            }
            assert_eq!(model.requests().len(), 1, "{way:?} {hook}");
            assert_eq!(said(&model.requests()[0]), ["go"], "{way:?} {hook}");
            let heard = notes.all();
            assert_eq!(heard.last().unwrap(), &format!("{hook} heard 1"), "{way:?}");
            // The next run is another matter.
            let seen = desk.say("more").await;
            assert_eq!(seen.interrupts().len(), 1, "{way:?} {hook}: {seen:?}");
            assert_eq!(desk.only().await.address.nth, 0);
        }
    }
}

#[tokio::test]
async fn a_response_with_calls_that_people_are_asked_about_is_kept_and_its_calls_are_made() {
    for way in WAYS {
        let notes = Notes::default();
        let model = ScriptedModel::new("m").recorded().call("ask", json!({})).text("done").text("too much");
        let agent = LlmAgent::new("a")
            .model(model.clone())
            .tool(asking("ask", 0, &notes))
            .handler(Asks::new(umbel::Hooks::AFTER_MODEL, 1, &notes));
        let desk = Desk::new(way, runner(agent)).await;
        desk.say("go").await;
        assert_eq!(notes.all(), Vec::<String>::new());
        let seen = desk.answer_only(Answer::input(0)).await;
        assert_eq!(notes.all(), ["after_model heard 0", "ask begins"], "{way:?}: {seen:?}");
        // The hook asks about the second response, too.
        let seen = desk.answer_only(Answer::input(1)).await;
        assert_eq!(seen.assert_finished().texts(), [("a".to_owned(), "done".to_owned())]);
        assert_eq!(model.requests().len(), 2, "{way:?}");
    }
}

#[tokio::test]
async fn a_layer_and_the_tool_inside_it_ask_from_addresses_of_their_own() {
    for way in WAYS {
        let notes = Notes::default();
        let model = ScriptedModel::new("m").call("ask", json!({})).text("done");
        let layer = Asks::new(umbel::Hooks::WRAP_TOOL, 2, &notes);
        let agent = LlmAgent::new("a").model(model).tool(asking("ask", 2, &notes)).tool_layer(layer);
        let desk = Desk::new(way, runner(agent)).await;
        desk.say("go").await;
        let mut places = Vec::new();
        for index in 0..4 {
            let asked = desk.only().await;
            places.push((asked.address.layer.clone().map(String::from), asked.address.nth));
            let seen = desk.answer([(&asked, Answer::input(index))]).await;
            assert_eq!(seen.outcome == Outcome::Finished, index == 3, "{way:?}: {seen:?}");
        }
        let layer = Some("asks".to_owned());
        assert_eq!(places, [(layer.clone(), 0), (layer, 1), (None, 0), (None, 1)]);
        let does = notes.all().into_iter().filter(|note| note.contains("does")).collect::<Vec<_>>();
        assert_eq!(does, ["ask does 0", "ask does 1"]);
    }
}

#[tokio::test]
async fn an_agent_of_code_asks_and_is_run_again_with_the_answers() {
    for way in WAYS {
        let notes = Notes::default();
        let noted = notes.clone();
        let make = move || {
            let notes = noted.clone();
            let agent = agent_fn("code", move |run| {
                let notes = notes.clone();
                Box::pin(async move {
                    notes.add("begins");
                    let one = word(&run.interrupt(Question::input("one?"))?);
                    let two = word(&run.interrupt("two?")?);
                    let said = format!("{one} {two}");
                    run.emit(run.event().with_content(Content::model(said.as_str()))).await?;
                    Ok(())
                })
            });
            Runner::builder("app", agent)
        };
        let desk = Desk::new(way, make).await;
        desk.say("go").await;
        assert_eq!(desk.only().await.message.as_deref(), Some("one?"));
        desk.answer_only(Answer::input("x")).await;
        assert_eq!(desk.only().await.message.as_deref(), Some("two?"));
        let seen = desk.answer_only(Answer::reject()).await;
        assert_eq!(seen.assert_finished().texts(), [("code".into(), "\"x\" Reject".into())], "{way:?}");
        assert_eq!(notes.all().len(), 3);
    }
}

/// A clock that a test moves.
#[derive(Clone, Debug, Default)]
struct Hands(Arc<AtomicU64>);

impl Clock for Hands {
    fn now(&self) -> f64 {
        self.0.load(Ordering::SeqCst) as f64
    }
}

#[tokio::test]
async fn answers_that_do_not_fit_are_refused_and_the_question_stays_open() {
    for way in WAYS {
        let notes = Notes::default();
        let noted = notes.clone();
        let ask = FunctionTool::with_context("ask", "Asks.", move |cx, _: Value| {
            let notes = noted.clone();
            Box::pin(async move {
                let question = Question::input("How many?")
                    .schema(json!({"type": "integer"}))
                    .expires_in(Duration::from_secs(10));
                let answer = cx.interrupt(question)?;
                notes.add(word(&answer));
                Ok(json!("ok"))
            })
        });
        let hands = Hands::default();
        let clock = hands.clone();
        let agent = LlmAgent::new("a")
            .model(ScriptedModel::new("m").call("ask", json!({"n": 1})).text("done").text("more"))
            .tool(ask);
        let desk = Desk::new(way, move || Runner::builder("app", agent.clone()).clock(clock.clone())).await;
        desk.say("go").await;
        let asked = desk.only().await;
        let refuse = |asked: Interrupt, answer: Answer| {
            let desk = &desk;
            async move { desk.refused([(&asked, answer)]).await }
        };
        let forged = Interrupt { id: "forged".into(), ..asked.clone() };
        let message = refuse(forged, Answer::input(1)).await;
        assert!(message.contains("nobody asked question `forged`"), "{message}");
        let asks = format!("open are `{}` ({})", asked.id, asked.message.as_deref().unwrap());
        assert!(message.contains(&asks), "{message}");
        let message = refuse(asked.clone(), Answer::input("many")).await;
        assert!(message.contains("does not fit what was asked for"), "{message}");
        let message = refuse(asked.clone(), Answer::approve()).await;
        assert!(message.contains("does not fit what was asked for"), "a yes is no number: {message}");
        let message = refuse(asked.clone(), Answer::input(1).digest("another")).await;
        assert!(message.contains("about another call"), "{message}");
        let message = refuse(asked.clone(), Answer::respond("x")).await;
        assert!(message.contains("only these are possible"), "{message}");
        let message = refuse(asked.clone(), Answer::edit(object(json!({"n": 2})))).await;
        assert!(message.contains("only these are possible"), "{message}");
        hands.0.store(11, Ordering::SeqCst);
        let message = refuse(asked.clone(), Answer::input(1)).await;
        assert!(message.contains("has expired"), "{message}");
        hands.0.store(9, Ordering::SeqCst);
        assert_eq!(notes.all(), Vec::<String>::new());
        let right = Answer::input(1).digest(asked.digest.clone().unwrap());
        desk.answer([(&asked, right.clone())]).await.assert_finished();
        assert_eq!(notes.all(), ["1"], "{way:?}");
        // The same once more changes nothing; something else is too late.
        let seen = desk.answer([(&asked, right)]).await;
        assert!(seen.assert_finished().events.is_empty(), "{way:?}: {seen:?}");
        let message = refuse(asked, Answer::input(2)).await;
        assert!(message.contains("was answered already, and otherwise"), "{message}");
        assert_eq!(notes.all(), ["1"]);
    }
}

#[tokio::test]
async fn one_wrong_answer_among_right_ones_is_refused_with_all_of_them() {
    let notes = Notes::default();
    let both = [call_with_id("k1", "ask", json!({})), call_with_id("k2", "ask", json!({}))];
    let model = ScriptedModel::new("m").response(calls(both)).text("done");
    let desk =
        Desk::new(Way::Hot, runner(LlmAgent::new("a").model(model).tool(asking("ask", 1, &notes)))).await;
    desk.say("go").await;
    let open = desk.open().await;
    desk.refused([(&open[0], Answer::input(1)), (&open[1], Answer::respond(2))]).await;
    desk.answer(open.iter().zip([Answer::input(1), Answer::input(2)])).await.assert_finished();
}

#[tokio::test]
async fn some_of_several_questions_are_answered_and_the_model_waits_for_the_rest() {
    for way in WAYS {
        let notes = Notes::default();
        let three = ["k1", "k2", "k3"].map(|id| call_with_id(id, "ask", json!({"id": id})));
        let free = call_with_id("k4", "free", json!({}));
        let model =
            ScriptedModel::new("m").recorded().response(calls(three.into_iter().chain([free]))).text("done");
        let agent = LlmAgent::new("a")
            .model(model.clone())
            .tool(asking("ask", 1, &notes))
            .tool(asking("free", 0, &notes));
        let desk = Desk::new(way, runner(agent)).await;
        let seen = desk.say("go").await;
        assert_eq!(seen.interrupts().len(), 3);
        assert!(notes.all().contains(&"free begins".to_owned()), "who needs nobody is not held up");
        let open = desk.open().await;
        let seen = desk.answer([(&open[2], Answer::input(3)), (&open[0], Answer::input(1))]).await;
        assert_eq!(seen.interrupts(), [open[1].clone()], "{way:?}");
        assert_eq!(model.requests().len(), 1);
        desk.answer([(&open[1], Answer::input(2))]).await.assert_finished();
        assert_eq!(model.requests().len(), 2);
        let sent = &model.requests()[1].contents;
        let results: Vec<_> = sent.iter().flat_map(|content| content.responses()).collect();
        let heard = |id: &str| {
            let found = results.iter().filter(|one| one.id.as_ref().is_some_and(|call| call == id));
            let found: Vec<_> = found.map(|one| one.response.clone().unwrap()["heard"].clone()).collect();
            found
        };
        assert_eq!(results.len(), 4, "{way:?}: {results:?}");
        for (id, said) in
            [("k1", json!(["1"])), ("k2", json!(["2"])), ("k3", json!(["3"])), ("k4", json!([]))]
        {
            assert_eq!(heard(id), [said], "{way:?}");
        }
        assert_eq!(notes.all().iter().filter(|note| **note == "free begins").count(), 1);
    }
}

#[tokio::test]
async fn a_question_can_be_answered_as_a_message_and_after_another_one() {
    for way in WAYS {
        let notes = Notes::default();
        let model = ScriptedModel::new("m").call("ask", json!({})).text("by the way").text("done");
        let desk =
            Desk::new(way, runner(LlmAgent::new("a").model(model.clone()).tool(asking("ask", 1, &notes))))
                .await;
        desk.say("go").await;
        let asked = desk.only().await;
        let seen = desk.say("something else").await;
        assert_eq!(seen.texts(), [("a".into(), "by the way".into())], "{way:?}: {seen:?}");
        assert_eq!(desk.only().await, asked, "the question is still open");
        let seen = desk.say(asked.answer_with(&Answer::input(7))).await;
        assert_eq!(seen.assert_finished().texts(), [("a".into(), "done".into())], "{way:?}");
        let done = notes.all().into_iter().filter(|note| note == "ask does 0").count();
        assert_eq!(done, 1, "{way:?}: what was done once is not done again");
    }
}

#[tokio::test]
async fn answers_to_questions_of_two_turns_go_to_their_own_calls() {
    for way in WAYS {
        let notes = Notes::default();
        let model = ScriptedModel::new("m")
            .response(calls([call_with_id("same", "ask", json!({"turn": 1}))]))
            .response(calls([call_with_id("same", "ask", json!({"turn": 2}))]))
            .text("done")
            .text("done");
        let desk =
            Desk::new(way, runner(LlmAgent::new("a").model(model).tool(asking("ask", 1, &notes)))).await;
        desk.say("one").await;
        desk.say("two").await;
        let open = desk.open().await;
        let turns: Vec<_> = open.iter().map(|asked| shown(asked).1["turn"].clone()).collect();
        assert_eq!(turns, [json!(1), json!(2)], "{way:?}");
        let seen = desk.answer(open.iter().zip([Answer::input("a"), Answer::input("b")])).await;
        let mut heard: Vec<_> = seen.assert_finished().responses();
        heard.sort_by_key(ToString::to_string);
        let expected = [
            json!({"args": {"turn": 1}, "heard": ["\"a\""]}),
            json!({"args": {"turn": 2}, "heard": ["\"b\""]}),
        ];
        assert_eq!(heard, expected, "{way:?}");
    }
}

#[tokio::test]
async fn a_sequence_goes_on_behind_the_agent_that_asked() {
    for way in WAYS {
        let notes = Notes::default();
        let (first, last) = (
            ScriptedModel::new("f").recorded().text("one"),
            ScriptedModel::new("l").recorded().text("three"),
        );
        let middle = ScriptedModel::new("m").recorded().call("ask", json!({})).text("two");
        let (f, l, m) = (first.clone(), last.clone(), middle.clone());
        let make = move || {
            let team = Sequential::new("team")
                .agent(LlmAgent::new("first").model(f.clone()))
                .agent(LlmAgent::new("middle").model(m.clone()).tool(asking("ask", 1, &notes)))
                .agent(LlmAgent::new("last").model(l.clone()));
            Runner::builder("app", team)
        };
        let desk = Desk::new(way, make).await;
        let seen = desk.say("go").await;
        assert_eq!(seen.texts(), [("first".into(), "one".into())]);
        let seen = desk.answer_only(Answer::input(1)).await;
        let said = [("middle".into(), "two".into()), ("last".into(), "three".into())];
        assert_eq!(seen.assert_finished().texts(), said, "{way:?}");
        assert_eq!([first, last].map(|model| model.requests().len()), [1, 1]);
    }
}

/// A worker with a tool that asks, called as a tool by a boss, in a parallel pair, in a loop of two rounds.
fn deep(notes: &Notes, boss: &ScriptedModel, worker: &ScriptedModel, beside: &ScriptedModel) -> LoopAgent {
    let worker = LlmAgent::new("worker").model(worker.clone()).tool(asking("ask", 1, notes));
    let middle = LlmAgent::new("middle")
        .model(ScriptedModel::from_fn("middle", |request| {
            let done = request.contents.last().is_some_and(|content| content.has_responses());
            let response = if done {
                Response::text("middle is done")
            } else {
                calls([call_with_id("inner", "worker", json!({"request": "work"}))])
            };
            vec![Ok(Chunk::Complete(response))]
        }))
        .tool(AgentTool::new(worker));
    let boss = LlmAgent::new("boss").model(boss.clone()).tool(AgentTool::new(middle));
    let beside = LlmAgent::new("beside").model(beside.clone());
    LoopAgent::new("loop").agent(Parallel::new("pair").agent(boss).agent(beside)).max_iterations(2)
}

#[tokio::test]
async fn an_agent_called_by_an_agent_called_in_a_parallel_branch_of_a_loop_asks() {
    for way in WAYS {
        let notes = Notes::default();
        let call = || calls([call_with_id("outer", "middle", json!({"request": "work"}))]);
        let boss = ScriptedModel::new("b")
            .recorded()
            .response(call())
            .text("round 1")
            .response(call())
            .text("round 2");
        let worker = ScriptedModel::new("w")
            .recorded()
            .call("ask", json!({"round": 1}))
            .text("worked")
            .call("ask", json!({"round": 2}))
            .text("worked again");
        let beside = ScriptedModel::new("s").recorded().text("beside 1").text("beside 2");
        let (n, b, w, s) = (notes.clone(), boss.clone(), worker.clone(), beside.clone());
        let desk = Desk::new(way, move || Runner::builder("app", deep(&n, &b, &w, &s))).await;
        desk.say("go").await;
        let asked = desk.only().await;
        let address = &asked.address;
        assert_eq!(address.to_string(), format!("boss/outer/middle/inner/worker/{}", inner_call(&asked)));
        assert_eq!(address.branch.as_deref(), Some("pair.boss"));
        assert_eq!(shown(&asked), ("ask".into(), json!({"round": 1})));
        desk.refused([(&asked, Answer::respond(1))]).await;
        let seen = desk.answer([(&asked, Answer::input(1))]).await;
        assert_eq!(seen.interrupts().len(), 1, "{way:?}: the second round asks: {seen:?}");
        let again = desk.only().await;
        assert_eq!(shown(&again), ("ask".into(), json!({"round": 2})));
        desk.answer([(&again, Answer::input(2))]).await.assert_finished();
        let counts = [&boss, &worker, &beside].map(|model| model.requests().len());
        assert_eq!(counts, [4, 4, 2], "{way:?}: nobody is asked twice for the same");
        let done = notes.all().into_iter().filter(|note| note.contains("does")).count();
        assert_eq!(done, 2, "{way:?}: {:?}", notes.all());
    }
}

/// The id of the innermost call that a question is about.
fn inner_call(asked: &Interrupt) -> String {
    let mut address = &asked.address;
    while let Some(inner) = &address.inner {
        address = inner;
    }
    address.call.clone().unwrap().to_string()
}

#[tokio::test]
async fn two_questions_inside_one_called_agent_are_answered_one_by_one() {
    for way in WAYS {
        let notes = Notes::default();
        let both = [call_with_id("k1", "ask", json!({"n": 1})), call_with_id("k2", "ask", json!({"n": 2}))];
        let inner = ScriptedModel::new("i").recorded().response(calls(both)).text("inner done");
        let outer =
            ScriptedModel::new("o").recorded().call("inner", json!({"request": "x"})).text("outer done");
        let worker = LlmAgent::new("inner").model(inner.clone()).tool(asking("ask", 1, &notes));
        let agent = Arc::new(worker);
        let out = outer.clone();
        let make = move || {
            let tool = AgentTool::new((*agent).clone());
            Runner::builder("app", LlmAgent::new("outer").model(out.clone()).tool(tool))
        };
        let desk = Desk::new(way, make).await;
        desk.say("go").await;
        let open = desk.open().await;
        assert_eq!(open.len(), 2, "{way:?}");
        let seen = desk.answer([(&open[1], Answer::input(2))]).await;
        assert_eq!(seen.interrupts(), [open[0].clone()], "{way:?}");
        let seen = desk.answer([(&open[0], Answer::input(1))]).await;
        assert_eq!(seen.assert_finished().texts(), [("outer".into(), "outer done".into())]);
        assert_eq!([inner.requests().len(), outer.requests().len()], [2, 2], "{way:?}");
    }
}

#[tokio::test]
async fn a_tool_that_needs_a_confirmation_and_asks_itself_hears_both() {
    use umbel::Confirm;
    for way in WAYS {
        let notes = Notes::default();
        let tool = asking("ask", 1, &notes).confirm(Confirm::Always);
        let model = ScriptedModel::new("m").call("ask", json!({"n": 1})).text("done");
        let desk = Desk::new(way, runner(LlmAgent::new("a").model(model).tool(tool))).await;
        desk.say("go").await;
        let gate = desk.only().await;
        assert_eq!(gate.decisions, DecisionKind::ALL);
        desk.answer([(&gate, Answer::edit(object(json!({"n": 2}))))]).await;
        let own = desk.only().await;
        assert_eq!(
            shown(&own),
            ("ask".into(), json!({"n": 2})),
            "{way:?}: with the arguments as they are now"
        );
        // A no to the tool's own question is for the tool, and does not close the gate.
        let seen = desk.answer([(&own, Answer::reject())]).await;
        let result = json!({"args": {"n": 2}, "heard": ["Reject"]});
        assert_eq!(seen.assert_finished().responses(), [result], "{way:?}");
    }
}

#[tokio::test]
async fn a_tool_that_is_rejected_at_the_gate_is_not_called() {
    let notes = Notes::default();
    let tool = asking("ask", 1, &notes).confirm(umbel::Confirm::Always);
    let model = ScriptedModel::new("m").call("ask", json!({})).text("done");
    let desk = Desk::new(Way::Hot, runner(LlmAgent::new("a").model(model).tool(tool))).await;
    desk.say("go").await;
    let seen = desk.answer_only(Answer::reject_because("too dear")).await;
    assert!(seen.assert_finished().tool_error().contains("too dear"));
    assert!(notes.all().is_empty());
}

#[tokio::test]
async fn a_blank_reason_of_a_rejection_at_the_gate_is_none() {
    for reason in ["", " ", "\n\t ", "\u{a0}"] {
        let tool = asking("ask", 1, &Notes::default()).confirm(umbel::Confirm::Always);
        let model = ScriptedModel::new("m").call("ask", json!({})).text("done");
        let desk = Desk::new(Way::Hot, runner(LlmAgent::new("a").model(model).tool(tool))).await;
        desk.say("go").await;
        let seen = desk.answer_only(Answer::reject_because(reason)).await;
        assert_eq!(seen.assert_finished().tool_error(), umbel::text::REJECTED, "{reason:?}");
    }
}

#[tokio::test]
async fn questions_of_a_session_that_does_not_exist_are_an_error() {
    let desk = Desk::new(Way::Hot, runner(LlmAgent::new("a").model(ScriptedModel::new("m")))).await;
    let key = umbel::SessionKey::new("app", "ann", "no such session").unwrap();
    let error = desk.runner().open_questions(&key).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::SessionNotFound);
}

#[tokio::test]
async fn an_agent_of_code_that_speaks_between_its_questions_comes_to_its_end() {
    for way in WAYS {
        let make = || {
            let agent = agent_fn("code", |run| {
                Box::pin(async move {
                    for index in 0..3 {
                        let said = word(&run.interrupt(Question::input(format!("{index}?")))?);
                        let said = Content::model(format!("heard {said}").as_str());
                        run.emit(run.event().with_content(said)).await?;
                    }
                    Ok(())
                })
            });
            Runner::builder("app", agent)
        };
        let desk = Desk::new(way, make).await;
        desk.say("go").await;
        for index in 0..3 {
            let asked = desk.only().await;
            assert_eq!(asked.message, Some(format!("{index}?")), "{way:?}");
            desk.answer([(&asked, Answer::input(index))]).await;
        }
        assert!(desk.open().await.is_empty(), "{way:?}");
    }
}

#[tokio::test]
async fn who_was_answered_before_the_agent_began_does_not_ask_again_when_a_tool_asks() {
    for way in WAYS {
        let notes = Notes::default();
        let model = ScriptedModel::new("m").recorded().call("ask", json!({})).text("done");
        let agent = LlmAgent::new("a")
            .model(model.clone())
            .tool(asking("ask", 1, &notes))
            .handler(Asks::new(umbel::Hooks::BEFORE_AGENT, 1, &notes));
        let desk = Desk::new(way, runner(agent)).await;
        desk.say("go").await;
        desk.answer_only(Answer::input(1)).await;
        let asked = desk.only().await;
        assert_eq!(asked.message.as_deref(), Some("ask 0?"), "{way:?}");
        let seen = desk.answer([(&asked, Answer::input(2))]).await;
        assert_eq!(seen.assert_finished().texts(), [("a".into(), "done".into())], "{way:?}");
        assert_eq!(model.requests().len(), 2);
    }
}

#[tokio::test]
async fn a_run_goes_on_with_further_steps_after_an_answer() {
    for way in WAYS {
        let notes = Notes::default();
        let model = ScriptedModel::new("m")
            .call("ask", json!({}))
            .call("free", json!({}))
            .call("free", json!({}))
            .text("done");
        let agent =
            LlmAgent::new("a").model(model).tool(asking("ask", 1, &notes)).tool(asking("free", 0, &notes));
        let desk = Desk::new(way, runner(agent)).await;
        desk.say("go").await;
        let seen = desk.answer_only(Answer::input(1)).await;
        assert_eq!(seen.assert_finished().texts(), [("a".into(), "done".into())], "{way:?}");
        assert_eq!(notes.all().iter().filter(|note| **note == "free begins").count(), 2, "{way:?}");
    }
}

#[tokio::test]
async fn what_comes_behind_parallel_agents_waits_for_all_their_answers() {
    for way in WAYS {
        let notes = Notes::default();
        let script =
            || ScriptedModel::new("m").recorded().response(calls([call_with_id("k", "ask", json!({}))]));
        let models = [script().text("one"), script().text("two")];
        let last = ScriptedModel::new("l").recorded().text("last");
        let (noted, scripts, behind) = (notes.clone(), models.clone(), last.clone());
        let make = move || {
            let agent = |name: &str, model: &ScriptedModel| {
                LlmAgent::new(name).model(model.clone()).tool(asking("ask", 1, &noted))
            };
            let pair =
                Parallel::new("pair").agent(agent("one", &scripts[0])).agent(agent("two", &scripts[1]));
            let team = Sequential::new("team").agent(pair).agent(LlmAgent::new("last").model(behind.clone()));
            Runner::builder("app", team)
        };
        let desk = Desk::new(way, make).await;
        desk.say("go").await;
        let open = desk.open().await;
        let of = |agent: &str| open.iter().find(|asked| asked.address.agent == agent).unwrap();
        let seen = desk.answer([(of("two"), Answer::input(2))]).await;
        assert_eq!(seen.texts(), [("two".into(), "two".into())], "{way:?}");
        assert_eq!((seen.interrupts().len(), last.requests().len()), (1, 0), "{way:?}");
        let seen = desk.answer([(of("one"), Answer::input(1))]).await;
        let said = [("one".into(), "one".into()), ("last".into(), "last".into())];
        assert_eq!(seen.assert_finished().texts(), said, "{way:?}");
        assert_eq!(models.map(|model| model.requests().len()), [2, 2], "{way:?}");
    }
}

#[tokio::test]
async fn an_agent_that_was_handed_the_conversation_asks_and_keeps_it() {
    for way in WAYS {
        let notes = Notes::default();
        let boss =
            ScriptedModel::new("b").recorded().call("transfer_to_agent", json!({"agent_name": "clerk"}));
        let clerk = ScriptedModel::new("c")
            .recorded()
            .call("ask", json!({}))
            .text("clerk is done")
            .text("still clerk");
        let (up, down) = (boss.clone(), clerk.clone());
        let make = move || {
            let clerk = LlmAgent::new("clerk").model(down.clone()).tool(asking("ask", 1, &notes));
            Runner::builder("app", LlmAgent::new("boss").model(up.clone()).sub_agent(clerk))
        };
        let desk = Desk::new(way, make).await;
        desk.say("go").await;
        assert_eq!(desk.only().await.address.agent, "clerk");
        let seen = desk.answer_only(Answer::input(1)).await;
        assert_eq!(seen.assert_finished().texts(), [("clerk".into(), "clerk is done".into())], "{way:?}");
        let seen = desk.say("and now?").await;
        assert_eq!(seen.assert_finished().texts(), [("clerk".into(), "still clerk".into())], "{way:?}");
        assert_eq!([boss.requests().len(), clerk.requests().len()], [1, 3], "{way:?}");
    }
}

#[tokio::test]
async fn it_is_never_too_late_to_say_no() {
    let hands = Hands::default();
    let ask = FunctionTool::with_context("ask", "", |cx, _: Value| {
        Box::pin(async move {
            let answer = cx.interrupt(Question::confirm("Sure?").expires_in(Duration::from_secs(10)))?;
            Ok(answer.confirmed)
        })
    });
    let model = ScriptedModel::new("m").call("ask", json!({})).text("done");
    let (agent, clock) = (LlmAgent::new("a").model(model).tool(ask), hands.clone());
    let make = move || Runner::builder("app", agent.clone()).clock(clock.clone());
    let desk = Desk::new(Way::Cold, make).await;
    desk.say("hi").await;
    let asked = desk.only().await;
    hands.0.store(1_000, Ordering::SeqCst);
    let message = desk.refused([(&asked, Answer::approve())]).await;
    assert!(message.contains("has expired"), "{message}");
    desk.answer([(&asked, Answer::reject())]).await.assert_finished();
}

#[tokio::test]
async fn who_resumes_without_an_answer_is_told_what_is_asked() {
    let notes = Notes::default();
    for way in WAYS {
        let model = ScriptedModel::new("m").call("ask", json!({})).text("done");
        let agent = LlmAgent::new("a").model(model).tool(asking("ask", 1, &notes));
        let desk = Desk::new(way, runner(agent)).await;
        let nothing = desk.answer([]).await.error.unwrap();
        assert_eq!(nothing.message(), "the message has no parts: say something", "{way:?}: nobody is asked");
        desk.say("go").await;
        let asked = desk.only().await;
        let before = desk.log().await;
        let error = desk.answer([]).await.error.unwrap();
        assert_eq!(error.kind(), ErrorKind::InvalidInput);
        let asks = format!("open are `{}` ({})", asked.id, asked.message.as_deref().unwrap());
        assert!(error.message().contains(&asks), "{way:?}: {}", error.message());
        assert_eq!(desk.log().await, before, "{way:?}: nothing is written");
        assert_eq!(desk.only().await, asked, "{way:?}");
    }
}
