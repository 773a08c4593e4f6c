//! What runs and sessions use of their models, what it costs, and limits on that.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::{Value, json};
use umbel::backoff::Backoff;
use umbel::handlers::{
    Again, Keep, ModelFallback, ModelLimitExit, ModelRetry, Summarise, ToolSelect, Trigger, UsageLedger,
    UsageLimit, UsageReached, Verdict,
};
use umbel::usage::{Money, Price, Prices, Tally, Used};
use umbel::{
    AgentTool, Chunk, Compactor, Confirm, Content, Error, ErrorKind, Event, FunctionTool, Handler, LlmAgent,
    ModelErrorKind, ModelRequest, Outcome, Parallel, Part, Response, Result, Run, Runner, RunnerBuilder,
    ScriptedModel, SessionKey, ToolContext, Usage, Work, handler, text,
};

use crate::recovery::{recover, run_and_die};
use crate::support::{
    Death, Notes, Spy, answer, call_with_id, calls, echo, read, stored, streaming, with_session,
};

/// A dollar for a million tokens of the prompt of `m`, ten for those of its answer.
fn prices() -> Prices {
    Prices::new().with("m", Price::new(Money::dollars(1), Money::dollars(10)).cached_input(Money::cents(10)))
}

fn usage(prompt: u64, answer: u64) -> Usage {
    Usage {
        prompt_token_count: Some(prompt),
        candidates_token_count: Some(answer),
        total_token_count: Some(prompt + answer),
        ..Usage::default()
    }
}

/// The response, with what it took.
fn took(mut response: Response, prompt: u64, answer: u64) -> Response {
    response.meta_mut().usage_metadata = Some(usage(prompt, answer));
    response
}

fn says(words: &str, prompt: u64, answer: u64) -> Response {
    took(Response::text(words), prompt, answer)
}

fn asks(tool: &str, args: Value, prompt: u64, answer: u64) -> Response {
    took(calls([call_with_id("c", tool, args)]), prompt, answer)
}

/// A model that gives these answers in order.
fn script(name: &str, answers: impl IntoIterator<Item = Vec<Result<Chunk>>>) -> ScriptedModel {
    let answers: Mutex<VecDeque<_>> = Mutex::new(answers.into_iter().collect());
    ScriptedModel::from_fn(name, move |_| answers.lock().unwrap().pop_front().expect("another answer"))
}

fn overloaded() -> Error {
    Error::new(ErrorKind::Model(ModelErrorKind::Overloaded), "too much to do")
}

fn at_once() -> ModelRetry {
    ModelRetry::new().backoff(Backoff::new().initial(Duration::ZERO))
}

async fn counted(agent: impl umbel::Agent + 'static) -> (Runner, SessionKey) {
    let runner = Runner::builder("app", agent).handler(UsageLedger::new(prices()));
    with_session(runner.build().unwrap()).await
}

/// What a session has used, and its last run.
async fn used(runner: &Runner, key: &SessionKey) -> (Used, Used) {
    let state = runner.session(key).await.unwrap().unwrap().state;
    (Used::session_in(&state).unwrap().unwrap(), Used::last_run_in(&state).unwrap().unwrap())
}

/// Calls and tokens of a session.
async fn total(runner: &Runner, key: &SessionKey) -> (u64, u64, Option<u64>) {
    let total = used(runner, key).await.0.total();
    (total.calls, total.tokens(), total.cost().map(Money::as_nanos))
}

#[tokio::test]
async fn tokens_and_cost_are_added_up_per_run_session_and_model() {
    let mut thinking = says("one", 100, 10);
    let told = thinking.meta_mut().usage_metadata.as_mut().unwrap();
    told.cached_content_token_count = Some(60);
    told.cache_write_token_count = Some(20);
    told.thoughts_token_count = Some(5);
    let model = ScriptedModel::new("m-1").response(thinking).response(says("two", 200, 20));
    let (runner, key) = counted(LlmAgent::new("a").model(model)).await;
    read(runner.run(&key, "hi")).await.assert_finished();
    let first = Tally {
        calls: 1,
        prompt: 100,
        cached: 60,
        cache_writes: 20,
        answer: 10,
        thoughts: 5,
        known_cost: Money::nanos(40 * 1_000 + 60 * 100 + 15 * 10_000),
        ..Tally::default()
    };
    let (session, run) = used(&runner, &key).await;
    assert_eq!((session.model("m-1"), &session), (Some(&first), &run));
    assert_eq!((first.tokens(), first.cost()), (115, Some(Money::nanos(196_000))));
    read(runner.run(&key, "hi")).await.assert_finished();
    let (session, run) = used(&runner, &key).await;
    assert_eq!(run.total().known_cost, Money::nanos(200 * 1_000 + 20 * 10_000));
    assert_eq!((session.total().calls, session.total().tokens()), (2, 115 + 220));
    assert_eq!(session.total().cost(), Some(Money::nanos(596_000)));
    assert_eq!(session.models().map(|(name, _)| name).collect::<Vec<_>>(), ["m-1"]);
}

#[tokio::test]
async fn a_model_without_a_price_is_counted_and_never_free() {
    let model = ScriptedModel::new("other").response(says("one", 100, 10)).text("untold");
    let (runner, key) = counted(LlmAgent::new("a").model(model)).await;
    read(runner.run(&key, "hi")).await.assert_finished();
    let tally = used(&runner, &key).await.0.total();
    assert_eq!((tally.tokens(), tally.unpriced, tally.unreported, tally.cost()), (110, 1, 0, None));
    // Neither is an answer of which nothing was told.
    read(runner.run(&key, "hi")).await.assert_finished();
    let run = used(&runner, &key).await.1.total();
    assert_eq!((run.calls, run.tokens(), run.unpriced, run.unreported, run.cost()), (1, 0, 0, 1, None));
}

#[tokio::test]
async fn attempts_that_failed_or_were_rejected_count_by_themselves() {
    // The first tells what it took and breaks off, the second has nothing to tell, the third is rejected.
    let told = |prompt, answer| {
        let mut end = Response::default();
        end.meta_mut().usage_metadata = Some(usage(prompt, answer));
        Ok(Chunk::Delta(end))
    };
    let first = script(
        "m",
        [
            vec![told(100, 1), Ok(Chunk::Text("Hel".into())), told(100, 7), Err(overloaded())],
            vec![Err(overloaded())],
            vec![Ok(Chunk::Complete(says("no", 100, 20)))],
            vec![Err(overloaded())],
        ],
    );
    let second = script("m-2", [vec![Ok(Chunk::Text("yes".into())), told(50, 5)]]);
    let retry =
        at_once().max_retries(3).on_failure(umbel::handlers::OnFailure::Error).should_retry(|attempt| {
            let rejected = attempt
                .response
                .is_none_or(|answer| answer.content.as_ref().is_some_and(|content| content.text() == "no"));
            let again = attempt.request.model == "m" && rejected;
            Work::done(Ok(if again { Verdict::Retry(Again::default()) } else { Verdict::Accept }))
        });
    for streams in [false, true] {
        let (first, second) = match streams {
            false => (first.clone(), second.clone()),
            true => (
                script(
                    "m",
                    [
                        vec![told(100, 7), Err(overloaded())],
                        vec![Ok(Chunk::Complete(says("no", 100, 20)))],
                        vec![Err(overloaded())],
                        vec![Err(overloaded())],
                    ],
                ),
                script("m-2", [vec![Ok(Chunk::Text("yes".into())), told(50, 5)]]),
            ),
        };
        let agent =
            LlmAgent::new("a").model(first).handler(ModelFallback::new(second)).handler(retry.clone());
        let (runner, key) = counted(agent).await;
        let config = if streams { streaming() } else { Default::default() };
        let seen = read(runner.run_with(&key, "hi", config)).await;
        assert_eq!(seen.texts(), [("a".to_owned(), "yes".to_owned())]);
        let (used, _) = used(&runner, &key).await;
        let of = |model: &str| used.model(model).map(|tally| (tally.calls, tally.prompt, tally.answer));
        assert_eq!((of("m"), of("m-2")), (Some((4, 200, 27)), Some((1, 50, 5))));
        assert_eq!(used.total().cost(), Some(Money::nanos(250 * 1_000 + 32 * 10_000)));
    }
}

#[tokio::test]
async fn a_model_that_begins_anew_or_says_several_things_is_paid_for_all_of_them() {
    let whole = |words: &str, prompt| Ok(Chunk::Complete(says(words, prompt, 0)));
    let preview = Response { partial: Some(true), ..says("on", 3, 0) };
    for (chunks, prompt) in [
        (vec![whole("one", 1), whole("two", 2)], 3),
        (vec![Ok(Chunk::Delta(says("one", 1, 0))), Ok(Chunk::Restart), whole("two", 2)], 3),
        (vec![Ok(Chunk::Complete(preview)), whole("one", 4)], 4),
        // What is told last about one answer counts.
        (vec![Ok(Chunk::Delta(says("o", 1, 0))), Ok(Chunk::Delta(says("ne", 2, 0)))], 2),
        (vec![Ok(Chunk::Text("one".into())), Ok(Chunk::Delta(says("", 2, 0)))], 2),
    ] {
        let (runner, key) = counted(LlmAgent::new("a").model(script("m", [chunks]))).await;
        read(runner.run(&key, "hi")).await.assert_finished();
        let total = used(&runner, &key).await.0.total();
        assert_eq!((total.calls, total.prompt, total.unreported), (1, prompt, 0));
    }
}

#[tokio::test]
async fn a_provider_that_tells_only_the_sum_is_counted() {
    let mut response = Response::text("one");
    response.meta_mut().usage_metadata =
        Some(Usage { total_token_count: Some(9), candidates_token_count: Some(2), ..Usage::default() });
    let (runner, key) = counted(LlmAgent::new("a").model(ScriptedModel::new("m").response(response))).await;
    read(runner.run(&key, "hi")).await.assert_finished();
    let total = used(&runner, &key).await.0.total();
    assert_eq!((total.prompt, total.answer), (7, 2));
}

#[tokio::test]
async fn all_that_works_for_a_run_counts() {
    // Agents side by side, one of which calls another as a tool, which calls a third.
    let model =
        |answers: Vec<Response>| answers.into_iter().fold(ScriptedModel::new("m"), ScriptedModel::response);
    let inner = LlmAgent::new("inner").description("Helps.").model(model(vec![says("in", 1_000, 0)]));
    let ask = || json!({"request": "help"});
    let helper = LlmAgent::new("helper")
        .description("Helps.")
        .model(model(vec![asks("inner", ask(), 100, 0), says("help", 100, 0)]))
        .tool(AgentTool::new(inner));
    let left = LlmAgent::new("left")
        .model(model(vec![asks("helper", ask(), 10, 0), says("left", 10, 0)]))
        .tool(AgentTool::new(helper));
    let right = LlmAgent::new("right")
        .model(model(vec![asks("echo", json!({}), 1, 0), says("right", 1, 0)]))
        .tool(echo());
    let crowd = Parallel::new("crowd").agent(left).agent(right);
    let (runner, key) = counted(crowd).await;
    read(runner.run(&key, "hi")).await.assert_finished();
    assert_eq!(total(&runner, &key).await, (7, 1_222, Some(1_222_000)));
    // The sessions that worked for it tell what is theirs.
    let log = stored(&runner, &key).await;
    let call = log.iter().find(|event| event.calls().any(|call| call.name == "helper")).unwrap();
    let child = SessionKey::new("app", "ann", format!("{}/{}.c", key.id(), call.id)).unwrap();
    assert_eq!(total(&runner, &child).await, (3, 1_200, Some(1_200_000)));
}

#[tokio::test]
async fn calls_beside_the_conversation_count_too() {
    let summarise = Summarise::new(Trigger::Messages(3))
        .keep(Keep::Messages(1))
        .model(ScriptedModel::new("m-sum").response(says("sum", 7, 1)));
    let choice = says(r#"{"tools": ["echo"]}"#, 5, 1);
    let select = ToolSelect::new().max_tools(1).model(ScriptedModel::new("m-select").response(choice));
    let model = ScriptedModel::new("m").response(says("one", 100, 1)).response(says("two", 100, 1));
    let agent = LlmAgent::new("a").model(model).handler(summarise);
    let (runner, key) = counted(agent).await;
    read(runner.run(&key, "hi")).await.assert_finished();
    read(runner.run(&key, "hi")).await.assert_finished();
    let used_up = used(&runner, &key).await.0;
    assert_eq!(used_up.model("m-sum").map(Tally::tokens), Some(8));
    assert_eq!(used_up.model("m").map(Tally::tokens), Some(202));

    let model = ScriptedModel::new("m").response(says("one", 100, 1));
    let other = FunctionTool::new("other", "Another.", |args: Value| async move { Ok(args) });
    let agent = LlmAgent::new("a").model(model).tool(echo()).tool(other).handler(select);
    let (runner, key) = counted(agent).await;
    read(runner.run(&key, "hi")).await.assert_finished();
    assert_eq!(used(&runner, &key).await.0.model("m-select").map(Tally::tokens), Some(6));
}

#[tokio::test]
async fn a_summary_after_the_run_counts_though_it_came_to_nothing() {
    for summary in [says("sum", 7, 1), took(Response::new(Content::model(Part::text(" "))), 7, 1)] {
        let model = ScriptedModel::new("m").response(says("one", 100, 1));
        let runner = Runner::builder("app", LlmAgent::new("a").model(model))
            .handler(UsageLedger::new(prices()))
            .compaction(
                Compactor::every(1, 0)
                    .summariser(umbel::ModelSummariser::new(ScriptedModel::new("m-sum").response(summary))),
            );
        let (runner, key) = with_session(runner.build().unwrap()).await;
        read(runner.run(&key, "hi")).await.assert_finished();
        assert_eq!(total(&runner, &key).await.1, 109);
    }
}

/// Notes what a run has used when it is over.
struct AtEnd(Notes);

#[handler]
impl Handler for AtEnd {
    fn name(&self) -> &str {
        "at-end"
    }

    fn after_run(&self, run: &Run, _outcome: &Outcome) -> Result<()> {
        let tokens = |used: Option<Used>| used.map(|used| used.total().tokens());
        self.0.add(format!("{:?} {:?}", tokens(Used::by_run(run)), tokens(Used::by_session(run))));
        Ok(())
    }
}

#[tokio::test]
async fn tools_and_handlers_can_look_at_it_while_the_run_lasts() {
    let notes = Notes::default();
    let look = |notes: Notes| {
        FunctionTool::with_context("look", "", move |cx: &ToolContext, _: Value| {
            notes.add(format!("{:?}", Used::by_run(cx.run()).map(|used| used.total().tokens())));
            Box::pin(async { Ok(json!({})) })
        })
    };
    let model = || {
        ScriptedModel::from_fn("m", |request: &ModelRequest| {
            let asked = request.contents.last().is_some_and(|content| !content.has_responses());
            let response = if asked { asks("look", json!({}), 10, 1) } else { says("done", 20, 2) };
            vec![Ok(Chunk::Complete(response))]
        })
    };
    let agent = || LlmAgent::new("a").model(model()).tool(look(notes.clone()));
    let runner =
        Runner::builder("app", agent()).handler(AtEnd(notes.clone())).handler(UsageLedger::new(prices()));
    let (runner, key) = with_session(runner.build().unwrap()).await;
    read(runner.run(&key, "hi")).await.assert_finished();
    read(runner.run(&key, "hi")).await.assert_finished();
    assert_eq!(notes.take(), ["Some(11)", "Some(33) Some(33)", "Some(11)", "Some(33) Some(66)"]);
    // Nobody counts.
    let runner = Runner::builder("app", agent()).handler(AtEnd(notes.clone())).build().unwrap();
    let (runner, key) = with_session(runner).await;
    read(runner.run(&key, "hi")).await.assert_finished();
    assert_eq!(notes.take(), ["None", "None None"]);
    let state = runner.session(&key).await.unwrap().unwrap().state;
    assert_eq!(Used::session_in(&state).unwrap(), None);
}

#[tokio::test]
async fn a_run_that_failed_is_paid_for_whatever_it_leaves_in_the_log() {
    let fails = |name: &str| {
        LlmAgent::new(name).model(script("m", [vec![Ok(Chunk::Delta(says("o", 50, 1))), Err(overloaded())]]))
    };
    // A team leaves no word of its failure in the log.
    let team = umbel::Sequential::new("team").agent(fails("a"));
    for agent in [Arc::new(fails("a")) as Arc<dyn umbel::Agent>, Arc::new(team)] {
        let (runner, key) = counted(agent).await;
        let seen = read(runner.run(&key, "hi")).await;
        assert_eq!(seen.kind(), overloaded().kind());
        assert_eq!(total(&runner, &key).await.1, 51);
        assert_eq!(
            seen.events.iter().filter(|event| event.content.is_some() && !event.is_partial()).count(),
            0
        );
    }
}

/// Lets no answer through.
#[derive(Debug)]
struct Refuses;

#[handler]
impl Handler for Refuses {
    fn name(&self) -> &str {
        "refuses"
    }

    fn on_event(&self, _: &Run, event: Event) -> Result<Event> {
        match event.content {
            Some(_) => Err(Error::new(ErrorKind::Other, "not that")),
            None => Ok(event),
        }
    }
}

#[tokio::test]
async fn what_an_answer_took_counts_though_another_handler_refuses_it() {
    for ledger_first in [true, false] {
        let model = ScriptedModel::from_fn("m", |_| vec![Ok(Chunk::Complete(says("fine", 100, 1)))]);
        let runner = Runner::builder("app", LlmAgent::new("a").model(model));
        let runner = match ledger_first {
            true => runner.handler(UsageLedger::new(prices())).handler(Refuses),
            false => runner.handler(Refuses).handler(UsageLedger::new(prices())),
        };
        let (runner, key) = with_session(runner.build().unwrap()).await;
        for runs in 1..=2 {
            let error = read(runner.run(&key, "hi")).await.error.unwrap();
            assert!(error.message().contains("not that"), "{error}");
            assert_eq!(total(&runner, &key).await, (runs, runs * 101, Some(runs * 110_000)));
        }
    }
}

/// Has later answers tell what the first one told, as agents side by side may.
#[derive(Debug, Default)]
struct Late(Mutex<Option<Value>>);

#[handler]
impl Handler for Late {
    fn name(&self) -> &str {
        "late"
    }

    fn on_event(&self, _: &Run, mut event: Event) -> Result<Event> {
        const KEY: &str = "_umbel:usage";
        let told = event.state_delta().and_then(|delta| delta.get(KEY)).cloned();
        let mut first = self.0.lock().unwrap();
        match (&*first, told) {
            (None, told) => *first = told,
            (Some(first), Some(_)) if event.content.is_some() => {
                event.actions_mut().set_state(KEY, first.clone());
            }
            _ => {}
        }
        Ok(event)
    }
}

#[tokio::test]
async fn what_a_session_used_is_right_in_the_end_though_less_was_written_last() {
    let model = script(
        "m",
        [
            vec![Ok(Chunk::Complete(asks("echo", json!({}), 10, 1)))],
            vec![Ok(Chunk::Complete(says("done", 20, 2)))],
        ],
    );
    let agent = LlmAgent::new("a").model(model).tool(echo());
    // One of the two sees events behind the ledger.
    let runner = Runner::builder("app", agent).handler(Late::default()).handler(UsageLedger::new(prices()));
    let (runner, key) = with_session(runner.handler(Late::default()).build().unwrap()).await;
    read(runner.run(&key, "hi")).await.assert_finished();
    assert_eq!(total(&runner, &key).await.1, 33);
}

#[tokio::test]
async fn what_a_session_used_survives_a_restart_and_a_rewind() {
    let store = Spy::default().memory();
    let make = || {
        let model = ScriptedModel::from_fn("m", |_| vec![Ok(Chunk::Complete(says("fine", 100, 1)))]);
        let runner = Runner::builder("app", LlmAgent::new("a").model(model)).sessions(store.clone());
        runner.handler(UsageLedger::new(prices())).build().unwrap()
    };
    let (first, key) = with_session(make()).await;
    read(first.run(&key, "hi")).await.assert_finished();
    drop(first);
    let second = make();
    read(second.run(&key, "hi")).await.assert_finished();
    assert_eq!(total(&second, &key).await, (2, 202, Some(220_000)));
    let run = stored(&second, &key).await.last().unwrap().run.clone();
    second.rewind(&key, &run).await.unwrap();
    assert_eq!(total(&second, &key).await.1, 202);
    read(second.run(&key, "hi")).await.assert_finished();
    assert_eq!(total(&second, &key).await, (3, 303, Some(330_000)));
}

#[tokio::test]
async fn a_run_that_waited_for_an_answer_counts_on() {
    let notes = Notes::default();
    let pay = || {
        let tool = FunctionTool::new("pay", "", |args: Value| async move { Ok(args) });
        tool.confirm(Confirm::Always)
    };
    let model = || {
        ScriptedModel::from_fn("m", |request: &ModelRequest| {
            let paid = request.contents.iter().any(|content| content.has_responses());
            let response = if paid { says("done", 20, 2) } else { asks("pay", json!({}), 10, 1) };
            vec![Ok(Chunk::Complete(response))]
        })
    };
    let child = || LlmAgent::new("child").description("Pays.").model(model()).tool(pay());
    let above = || {
        ScriptedModel::from_fn("m", |request: &ModelRequest| {
            let done = request.contents.iter().any(|content| content.has_responses());
            let response =
                if done { says("all done", 200, 0) } else { asks("child", json!({"request": "go"}), 100, 0) };
            vec![Ok(Chunk::Complete(response))]
        })
    };
    for inside in [false, true] {
        let store = Spy::default().memory();
        let make = || {
            let agent = match inside {
                false => LlmAgent::new("a").model(model()).tool(pay()),
                true => LlmAgent::new("a").model(above()).tool(AgentTool::new(child())),
            };
            let runner = Runner::builder("app", agent).sessions(store.clone());
            runner.handler(AtEnd(notes.clone())).handler(UsageLedger::new(prices())).build().unwrap()
        };
        let (runner, key) = with_session(make()).await;
        let seen = read(runner.run(&key, "hi")).await;
        let asked = seen.interrupts()[0].id.clone();
        drop(runner);
        let runner = make();
        let yes = answer(asked.as_str(), "adk_request_confirmation", json!({"confirmed": true}));
        read(runner.run(&key, yes)).await.assert_finished();
        let sum = if inside { 333 } else { 33 };
        assert_eq!(total(&runner, &key).await.1, sum, "inside: {inside}");
        assert_eq!(used(&runner, &key).await.1.total().tokens(), sum, "it is one run that goes on");
        assert_eq!(notes.take().last().unwrap(), &format!("Some({sum}) Some({sum})"));
    }
}

/// The tokens that the events of a session and of those that worked for its calls tell of.
async fn told(runner: &Runner, key: &SessionKey) -> u64 {
    let events = stored(runner, key).await;
    let tokens = |event: &Arc<Event>| event.meta.as_ref()?.usage_metadata.as_ref()?.total_token_count;
    let mut sum: u64 = events.iter().filter_map(tokens).sum();
    for event in &events {
        for call in event.calls().filter(|call| call.name == "child") {
            let id = format!("{}/{}.{}", key.id(), event.id, call.id.as_ref().unwrap());
            let key = SessionKey::new(key.app(), key.user(), id).unwrap();
            sum += Box::pin(told(runner, &key)).await;
        }
    }
    sum
}

/// Makes so many calls at once, so many times, then says its last word. Each step takes more.
fn stepping(name: &str, tool: &'static str, steps: usize, at_once: usize) -> LlmAgent {
    let model = ScriptedModel::from_fn("m", move |request: &ModelRequest| {
        let mine = request.contents.iter().filter(|content| content.role == Some(umbel::Role::Model)).count();
        let prompt = 10_u64.pow(u32::try_from(mine).unwrap());
        let call = |n: usize| call_with_id(&format!("c{mine}-{n}"), tool, json!({"request": "go"}));
        let response = match mine < steps {
            true => took(calls((0..at_once).map(call)), prompt, 0),
            false => says("done", prompt, 0),
        };
        vec![Ok(Chunk::Complete(response))]
    });
    LlmAgent::new(name).description("Works.").model(model)
}

/// Lets the process die at each write of a run, before it and behind it, and goes on in another one. Gives how often.
async fn dies_everywhere(at_once: usize) -> usize {
    let make = |store: Spy| -> RunnerBuilder {
        let inner = stepping("child", "echo", 1, 1).tool(echo());
        let child = stepping("child", "child", 1, 1).tool(AgentTool::new(inner));
        let agent = stepping("a", "child", 2, at_once).tool(AgentTool::new(child));
        let runner = Runner::builder("app", agent).sessions(store).lease(Duration::from_millis(5));
        runner.handler(UsageLedger::new(prices()))
    };
    let mut deaths = 0;
    for number in 1.. {
        let mut alive = 0;
        for death in [Death::Before(number), Death::After(number)] {
            let store = Spy::default();
            let dying = store.dying(Some(death));
            let (other, key) = with_session(make(store.clone()).build().unwrap()).await;
            let first = make(dying.clone()).build().unwrap();
            run_and_die(&first, &dying, &key, "go".into()).await;
            recover(&other).await;
            if stored(&other, &key).await.is_empty() {
                continue;
            }
            (deaths, alive) = (deaths + 1, alive + usize::from(dying.writes() < number));
            let (session, run) = used(&other, &key).await;
            let expected = told(&other, &key).await;
            assert!(expected >= 111 + 2 * 22 * at_once as u64, "{death:?}: {expected}");
            assert_eq!((session.total().tokens(), run.total().tokens()), (expected, expected), "{death:?}");
        }
        if alive == 2 {
            return deaths;
        }
    }
    deaths
}

#[tokio::test]
async fn whatever_write_a_process_dies_at_all_that_is_in_the_logs_is_counted_once() {
    let deaths = dies_everywhere(1).await;
    assert!(deaths > 30, "{deaths}");
}

#[tokio::test]
async fn that_holds_for_agents_that_work_at_the_same_time_too() {
    let deaths = dies_everywhere(2).await;
    assert!(deaths > 60, "{deaths}");
}

#[tokio::test]
async fn a_limit_on_tokens_ends_the_turn_before_the_next_call() {
    let model = || {
        ScriptedModel::from_fn("unpriced", |request: &ModelRequest| {
            let first = !request.contents.last().unwrap().has_responses();
            let response = if first { asks("echo", json!({}), 60, 0) } else { says("done", 60, 0) };
            vec![Ok(Chunk::Complete(response))]
        })
    };
    let run = |limit: UsageLimit| {
        let agent = LlmAgent::new("a").model(model()).tool(echo());
        async move {
            let runner = Runner::builder("app", agent).handler(limit).build().unwrap();
            let (runner, key) = with_session(runner).await;
            (read(runner.run(&key, "hi")).await, read(runner.run(&key, "hi")).await)
        }
    };
    let last = |seen: &crate::support::Seen| seen.texts().last().unwrap().1.clone();
    let stop = |used: &str| text::usage_limit(used);
    // The call that goes beyond is the last one.
    let (first, second) = run(UsageLimit::new().run_tokens(61)).await;
    assert_eq!((last(&first), last(&second)), ("done".to_owned(), "done".to_owned()));
    let (first, second) = run(UsageLimit::new().run_tokens(60)).await;
    let words = stop("60 tokens of 60 in this run");
    assert_eq!((last(&first), last(&second)), (words.clone(), words));
    let (first, second) = run(UsageLimit::new().session_tokens(180)).await;
    assert_eq!((last(&first), last(&second)), ("done".to_owned(), stop("180 tokens of 180 in this session")));
}

#[tokio::test]
async fn a_limit_on_cost_may_fail_the_run() {
    let model = ScriptedModel::from_fn("m", |_| vec![Ok(Chunk::Complete(says("fine", 1_000, 0)))]);
    let limits = [
        (UsageLimit::new().session_cost(Money::nanos(2_000_000)), 2),
        (UsageLimit::new().session_cost(Money::nanos(2_000_001)), 3),
        (UsageLimit::new().run_cost(Money::ZERO), 0),
        (UsageLimit::new().run_cost(Money::nanos(1)), 4),
    ];
    for (limit, runs) in limits {
        let runner = Runner::builder("app", LlmAgent::new("a").model(model.clone()))
            .handler(UsageLedger::new(prices()))
            .handler(limit.exit(ModelLimitExit::Error));
        let (runner, key) = with_session(runner.build().unwrap()).await;
        let mut done = 0;
        for _ in 0..4 {
            let seen = read(runner.run(&key, "hi")).await;
            if seen.error.is_none() {
                done += 1;
                continue;
            }
            assert_eq!((seen.kind(), seen.code()), (ErrorKind::UsageLimit, "USAGE_LIMIT"));
            let source = std::error::Error::source(seen.error.as_ref().unwrap()).unwrap();
            let source = std::error::Error::source(source).unwrap();
            let reached = source.downcast_ref::<UsageReached>().unwrap();
            assert_eq!((reached.session.calls, reached.run.calls, &reached.unpriced), (done, 0, &None));
            assert!(reached.to_string().contains(" of $0.00"), "{reached}");
        }
        assert_eq!(done, runs);
    }
}

#[tokio::test]
async fn a_limit_on_cost_does_not_let_pass_what_it_cannot_count() {
    let model = |name: &str| ScriptedModel::from_fn(name, |_| vec![Ok(Chunk::Complete(says("fine", 10, 0)))]);
    let limit = || UsageLimit::new().session_cost(Money::dollars(1));
    // The agent's model has no price.
    let runner = Runner::builder("app", LlmAgent::new("a").model(model("other")))
        .handler(UsageLedger::new(prices()))
        .handler(limit());
    let (runner, key) = with_session(runner.build().unwrap()).await;
    let stop = text::usage_limit(&text::no_price("other"));
    assert_eq!(read(runner.run(&key, "hi")).await.texts(), [("a".to_owned(), stop.clone())]);
    // Another one that was asked in its place has none.
    let first = ScriptedModel::new("m").fail("no").text("fine");
    let agent = LlmAgent::new("a").model(first).handler(ModelFallback::new(model("other")));
    let runner = Runner::builder("app", agent).handler(UsageLedger::new(prices())).handler(limit());
    let (runner, key) = with_session(runner.build().unwrap()).await;
    assert_eq!(read(runner.run(&key, "hi")).await.texts()[0].1, "fine");
    assert_eq!(read(runner.run(&key, "hi")).await.texts()[0].1, stop);
    // Nobody brought prices.
    let runner = Runner::builder("app", LlmAgent::new("a").model(model("m"))).handler(limit());
    let (runner, key) = with_session(runner.build().unwrap()).await;
    let stop = text::usage_limit(&text::no_price("m"));
    assert_eq!(read(runner.run(&key, "hi")).await.texts(), [("a".to_owned(), stop)]);
}

#[tokio::test]
async fn a_limit_that_limits_nothing_is_refused() {
    let agent = LlmAgent::new("a").model(ScriptedModel::new("m"));
    let error = Runner::builder("app", agent).handler(UsageLimit::new()).build().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Build);
}

#[tokio::test]
async fn what_cannot_be_read_is_an_error_and_not_nothing() {
    let model = ScriptedModel::new("m").text("fine");
    let (runner, key) = counted(LlmAgent::new("a").model(model)).await;
    let delta = umbel::Object::from_iter([("_umbel:usage".to_owned(), json!({"session": 5}))]);
    let config = umbel::RunConfig { state_delta: delta, ..Default::default() };
    let seen = read(runner.run_with(&key, "hi", config)).await;
    assert_eq!(seen.kind(), ErrorKind::Corrupt);
}

#[tokio::test]
async fn a_ledger_of_one_agent_counts_the_run_from_there_on() {
    let saying = |name: &str, prompt| {
        LlmAgent::new(name).model(ScriptedModel::new("m").response(says("fine", prompt, 0)))
    };
    let second = saying("two", 10).handler(UsageLedger::new(prices()));
    let team =
        umbel::Sequential::new("team").agent(saying("one", 1)).agent(second).agent(saying("three", 100));
    let (runner, key) = with_session(Runner::new("app", team).unwrap()).await;
    let notes = Notes::default();
    read(runner.run(&key, "hi")).await.assert_finished();
    assert_eq!(total(&runner, &key).await, (1, 10, Some(10_000)));
    // What follows is known to who looks while the run lasts, and to the log with that agent's next event.
    let look = AtEnd(notes.clone());
    let team = umbel::Sequential::new("team")
        .agent(saying("two", 10).handler(UsageLedger::new(prices())))
        .agent(saying("three", 100));
    let (runner, key) = with_session(Runner::builder("app", team).handler(look).build().unwrap()).await;
    read(runner.run(&key, "hi")).await.assert_finished();
    assert_eq!(notes.all(), ["Some(110) Some(110)"]);
}

#[tokio::test]
async fn counting_costs_no_write() {
    for counts in [false, true] {
        let store = Spy::default();
        let model =
            ScriptedModel::new("m").response(asks("echo", json!({}), 1, 1)).response(says("fine", 1, 1));
        let agent = LlmAgent::new("a").model(model).tool(echo());
        let runner = Runner::builder("app", agent).sessions(store.clone());
        let runner = if counts { runner.handler(UsageLedger::new(prices())) } else { runner };
        let (runner, key) = with_session(runner.build().unwrap()).await;
        read(runner.run(&key, "hi")).await.assert_finished();
        assert_eq!(store.writes(), 4, "counts: {counts}");
    }
}
