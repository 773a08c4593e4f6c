//! Old messages are summed up before a conversation grows too long.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use futures::StreamExt;
use serde_json::{Value, json};
use umbel::handlers::{Keep, Summarise, Trigger};
use umbel::{
    Capabilities, Chunk, Content, Error, ErrorKind, Event, FunctionTool, LlmAgent, Outcome, Response, Result,
    RunConfig, Runner, ScriptedModel, SessionKey, SteppingClock, Summariser, Usage,
};

use super::support::{Notes, begin, echo, fine, read, said, stored, with_session};

/// Notes what it is shown, and sums it up as its number of messages.
fn counting(notes: &Notes) -> impl Summariser + 'static {
    let notes = notes.clone();
    move |events: Vec<Arc<Event>>| {
        let words: Vec<String> = events.iter().map(|event| event.text()).collect();
        notes.add(words.join("|"));
        let count = events.len();
        async move { Ok(format!("  {count} messages\n")) }
    }
}

/// An agent whose model says `fine` to everything.
fn talking(model: &ScriptedModel, summarise: Summarise) -> LlmAgent {
    LlmAgent::new("a").model(model.clone()).handler(summarise)
}

async fn say(runner: &Runner, key: &SessionKey, messages: impl IntoIterator<Item = &'static str>) {
    for message in messages {
        read(runner.run(key, message)).await.assert_finished();
    }
}

/// What the model was sent, with a summary cut down to its own words.
fn sent(model: &ScriptedModel, request: usize) -> Vec<String> {
    let prefix = umbel::text::summary("");
    let words = said(&model.requests()[request]).into_iter();
    words.map(|words| words.strip_prefix(&prefix).map_or(words.clone(), |own| format!("[{own}]"))).collect()
}

#[tokio::test]
async fn the_oldest_messages_are_summed_up_and_the_log_keeps_them() {
    let (model, notes) = (fine(), Notes::default());
    let summarise = Summarise::new(Trigger::Messages(5)).keep(Keep::Messages(2)).summariser(counting(&notes));
    let (runner, key) = begin(talking(&model, summarise)).await;
    say(&runner, &key, ["one", "two"]).await;
    assert!(notes.all().is_empty(), "four messages are not too many");
    say(&runner, &key, ["three"]).await;
    assert_eq!(notes.all(), ["one|fine|two"]);
    assert_eq!(sent(&model, 2), ["[3 messages]", "fine", "three"]);
    let role = model.requests()[2].contents.get(0).unwrap().role.clone();
    assert_eq!(role, Some(umbel::Role::User));
    let log = stored(&runner, &key).await;
    assert_eq!(
        log.iter().map(|event| event.text()).collect::<Vec<_>>().join(" "),
        "one fine two fine three fine"
    );
    // It ends with the run: the next one starts from what was said.
    say(&runner, &key, ["four"]).await;
    assert_eq!(notes.all()[1], "one|fine|two|fine|three");
}

#[tokio::test]
async fn a_summary_holds_for_the_rest_of_the_run_and_calls_stay_with_their_answers() {
    let notes = Notes::default();
    let model = ScriptedModel::new("m")
        .recorded()
        .call("echo", json!({"n": 1}))
        .calls([("echo", json!({"n": 2})), ("echo", json!({"n": 3}))])
        .call("echo", json!({"n": 4}))
        .text("done");
    let summarise = Summarise::new(Trigger::Messages(5)).keep(Keep::Messages(1)).summariser(counting(&notes));
    let agent = LlmAgent::new("a").model(model.clone()).tool(echo()).handler(summarise);
    let (runner, key) = begin(agent).await;
    read(runner.run(&key, "go")).await.assert_finished();
    let requests = model.requests();
    // The answer that is to be kept has its call right before it, though that is one message more.
    let third = &requests[2].contents;
    assert_eq!(third.len(), 3);
    assert_eq!(third.get(1).unwrap().calls().count(), 2);
    assert_eq!(third.get(2).unwrap().responses().count(), 2);
    assert_eq!(sent(&model, 2)[0], "[3 messages]");
    // Summed up again, the earlier summary first.
    assert_eq!(notes.all().len(), 2);
    assert!(notes.all()[1].starts_with(&umbel::text::summary("3 messages")), "{:?}", notes.all());
    let fourth = &requests[3].contents;
    assert_eq!((fourth.len(), fourth.get(1).unwrap().calls().count()), (3, 1));
}

#[tokio::test]
async fn a_lasting_summary_is_written_once_and_later_runs_profit() {
    let (model, notes) = (fine(), Notes::default());
    let summarise =
        Summarise::new(Trigger::Messages(5)).keep(Keep::Messages(2)).summariser(counting(&notes)).lasting();
    let runner = Runner::builder("app", talking(&model, summarise)).clock(SteppingClock::new(1.0, 1.0));
    let (runner, key) = with_session(runner.build().unwrap()).await;
    say(&runner, &key, ["one", "two", "three"]).await;
    // The same request is short already.
    assert_eq!(sent(&model, 2), ["[3 messages]", "fine", "three"]);
    say(&runner, &key, ["four"]).await;
    assert_eq!(sent(&model, 3), ["[3 messages]", "fine", "four"]);
    let again = format!("{}|fine|three", umbel::text::summary("3 messages"));
    assert_eq!(notes.all(), ["one|fine|two".to_owned(), again]);
    let log = stored(&runner, &key).await;
    assert_eq!(log.iter().filter(|event| event.compaction().is_some()).count(), 2);
    assert_eq!(log.iter().filter(|event| !event.text().is_empty()).count(), 8);
}

#[tokio::test]
async fn a_lasting_summary_is_not_made_twice_for_one_request_however_long_it_stays() {
    let (model, notes) = (fine(), Notes::default());
    let summarise = Summarise::new(Trigger::Tokens(1)).keep(Keep::Messages(1)).summariser(counting(&notes));
    let (runner, key) = begin(talking(&model, summarise.lasting())).await;
    say(&runner, &key, ["one", "two", "three"]).await;
    assert_eq!(model.requests().len(), 3);
    assert_eq!(notes.all().len(), 2);
}

#[tokio::test]
async fn the_agents_own_model_sums_up_unless_told_otherwise() {
    let model = ScriptedModel::new("m").recorded().text("hello").text("Ann said hi.").text("bye");
    let summarise = Summarise::new(Trigger::Messages(3)).keep(Keep::Messages(1));
    let (runner, key) = begin(talking(&model, summarise)).await;
    say(&runner, &key, ["hi", "ciao"]).await;
    let requests = model.requests();
    assert!(said(&requests[1])[0].ends_with("user: hi\na: hello\n"), "{:?}", said(&requests[1]));
    assert_eq!(sent(&model, 2), ["[Ann said hi.]", "ciao"]);
}

#[tokio::test]
async fn an_agent_without_a_model_of_its_own_sums_up_with_that_of_the_one_above_it() {
    let model = ScriptedModel::new("m")
        .recorded()
        .call("transfer_to_agent", json!({"agent_name": "child"}))
        .text("Ann was handed over.")
        .text("hello from below");
    let child = LlmAgent::new("child").handler(Summarise::new(Trigger::Messages(2)).keep(Keep::Messages(1)));
    let (runner, key) = begin(LlmAgent::new("root").model(model.clone()).sub_agent(child)).await;
    let seen = read(runner.run(&key, "hi")).await;
    assert_eq!(seen.assert_finished().texts(), [("child".into(), "hello from below".into())]);
    assert_eq!(sent(&model, 2)[0], "[Ann was handed over.]");
}

#[tokio::test]
async fn another_model_sums_up_and_its_calls_count() {
    let (model, other) = (fine(), ScriptedModel::new("small").recorded().text("short"));
    let summarise = Summarise::new(Trigger::Messages(3)).keep(Keep::Messages(1)).model(other.clone());
    let (runner, key) = begin(talking(&model, summarise)).await;
    say(&runner, &key, ["hi"]).await;
    let mut config = RunConfig::default();
    config.limits.model_calls = 1;
    let seen = read(runner.run_with(&key, "ciao", config)).await;
    assert_eq!(other.requests().len(), 1);
    assert_eq!(seen.kind(), ErrorKind::ModelCallLimit);
}

async fn with_broken(
    summarise: impl FnOnce(Summarise) -> Summarise,
) -> (super::support::Seen, ScriptedModel) {
    let model = fine();
    let due = Summarise::new(Trigger::Messages(3)).keep(Keep::Messages(1));
    let (runner, key) = begin(talking(&model, summarise(due))).await;
    say(&runner, &key, ["one"]).await;
    (read(runner.run(&key, "two")).await, model)
}

#[tokio::test]
async fn a_failing_or_empty_summary_loses_nothing() {
    let asked = Arc::new(AtomicUsize::new(0));
    let count = asked.clone();
    let failing = move |_: Vec<Arc<Event>>| {
        count.fetch_add(1, Ordering::SeqCst);
        async { Err(Error::new(ErrorKind::Other, "no paper")) }
    };
    let empty = |_: Vec<Arc<Event>>| async { Ok(" \n".to_owned()) };
    for lasting in [false, true] {
        let set = |summarise: Summarise| if lasting { summarise.lasting() } else { summarise };
        let (seen, model) = with_broken(|due| set(due.summariser(failing.clone()))).await;
        seen.assert_finished();
        assert_eq!(asked.swap(0, Ordering::SeqCst), 1);
        assert_eq!(sent(&model, 1), ["one", "fine", "two"]);
        let (seen, model) = with_broken(|due| set(due.summariser(empty))).await;
        seen.assert_finished();
        assert_eq!(sent(&model, 1), ["one", "fine", "two"]);

        let (seen, model) = with_broken(|due| set(due.summariser(failing.clone()).or_fail())).await;
        assert!(seen.error.as_ref().unwrap().message().contains("no paper"), "{seen:?}");
        asked.store(0, Ordering::SeqCst);
        assert_eq!(model.requests().len(), 1);
        let (seen, _) = with_broken(|due| set(due.summariser(empty).or_fail())).await;
        assert!(seen.error.as_ref().unwrap().message().contains("empty"), "{seen:?}");
    }
}

#[tokio::test]
async fn e4_no_policy_swallows_a_cancellation_or_an_interrupt() {
    let slow = |_: Vec<Arc<Event>>| async {
        tokio::time::sleep(Duration::from_secs(60)).await;
        Ok("late".to_owned())
    };
    let model = fine();
    let due = Summarise::new(Trigger::Messages(3)).keep(Keep::Messages(1)).summariser(slow);
    let (runner, key) = begin(talking(&model, due)).await;
    say(&runner, &key, ["one"]).await;
    let mut stream = runner.run(&key, "two");
    let token = stream.cancel_token();
    tokio::spawn(async move {
        tokio::time::sleep(Duration::from_millis(20)).await;
        token.cancel(umbel::CancelReason::Asked);
    });
    while stream.next().await.is_some() {}
    assert_eq!(stream.outcome(), Some(&Outcome::Cancelled));
    assert_eq!(model.requests().len(), 1);

    let asking = |_: Vec<Arc<Event>>| async { Err::<String, _>(Error::interrupt("May I?")) };
    let (seen, model) = with_broken(|due| due.summariser(asking)).await;
    assert_ne!(seen.outcome, Outcome::Finished);
    assert_eq!(model.requests().len(), 1);
}

/// Answers with a usage, by a model of that version.
fn reporting(text: &str, tokens: u64, version: Option<&str>) -> Response {
    let mut response = Response::text(text);
    response.meta_mut().usage_metadata = Some(Usage { total_token_count: Some(tokens), ..Usage::default() });
    response.meta_mut().model_version = version.map(Into::into);
    response
}

#[tokio::test]
async fn what_the_model_reported_last_counts_too() {
    let cases = [
        (reporting("b", 500, None), true),
        (reporting("b", 500, Some("m-2026-01")), true),
        (reporting("b", 500, Some("other")), false),
        (reporting("b", 399, None), false),
    ];
    for (response, due) in cases {
        let notes = Notes::default();
        let model = ScriptedModel::new("m").response(response).text("c").text("d");
        let summarise =
            Summarise::new(Trigger::Tokens(400)).keep(Keep::Messages(1)).summariser(counting(&notes));
        let (runner, key) = begin(talking(&model, summarise)).await;
        say(&runner, &key, ["a", "x"]).await;
        assert_eq!(notes.all().len(), usize::from(due));
        // The answer after it reported nothing.
        say(&runner, &key, ["y"]).await;
        assert_eq!(notes.all().len(), usize::from(due));
    }
}

#[tokio::test]
async fn within_a_run_each_message_is_counted_once() {
    let counted = Arc::new(AtomicUsize::new(0));
    let count = counted.clone();
    let counter = move |_: &Content| -> u64 {
        count.fetch_add(1, Ordering::SeqCst);
        1
    };
    let mut model = ScriptedModel::new("m");
    for n in 0..40 {
        model = model.call("echo", json!({"n": n}));
    }
    let agent = LlmAgent::new("a")
        .model(model.text("done"))
        .tool(echo())
        .handler(Summarise::new(Trigger::Tokens(1_000)).keep(Keep::Tokens(10)).counter(counter));
    let (runner, key) = begin(agent).await;
    read(runner.run(&key, "go")).await.assert_finished();
    assert_eq!(counted.load(Ordering::SeqCst), 1 + 2 * 40);
}

#[tokio::test]
async fn settings_that_make_no_sense_fail_the_build() {
    let wrong: [(Summarise, &str); 6] = [
        (Summarise::new(Trigger::Fraction(0.8)), ".window(…)"),
        (Summarise::new(Trigger::Messages(9)).keep(Keep::Fraction(0.5)), ".window(…)"),
        (Summarise::new(Trigger::Any(vec![Trigger::Fraction(1.5)])).window(100), "at most 1"),
        (Summarise::new(Trigger::All(Vec::new())), "at least one"),
        (Summarise::new(Trigger::Tokens(0)), "more than 0"),
        (Summarise::new(Trigger::Messages(9)).keep(Keep::Messages(0)), "more than 0"),
    ];
    for (summarise, hint) in wrong {
        let error = Runner::new("app", talking(&fine(), summarise)).unwrap_err();
        assert!(error.message().contains(hint), "{error}");
    }
    let right = Summarise::new(Trigger::Fraction(0.8)).window(100);
    let built: Result<Runner> = Runner::new("app", talking(&fine(), right));
    assert!(built.is_ok());
}

#[tokio::test]
async fn a_run_that_goes_on_after_a_question_still_has_its_summary() {
    let notes = Notes::default();
    let sure =
        FunctionTool::new("delete", "", |_: Value| async { Ok("gone") }).confirm(umbel::Confirm::Always);
    let model = ScriptedModel::new("m")
        .recorded()
        .call("echo", json!({"n": 1}))
        .call("echo", json!({"n": 2}))
        .call("delete", json!({}))
        .text("done");
    let summarise = Summarise::new(Trigger::Messages(5)).keep(Keep::Messages(2)).summariser(counting(&notes));
    let agent = LlmAgent::new("a").model(model.clone()).tool(echo()).tool(sure).handler(summarise);
    let (runner, key) = begin(agent).await;
    let seen = read(runner.run(&key, "go")).await;
    let Outcome::Interrupted { interrupts } = &seen.outcome else { panic!("{seen:?}") };
    assert_eq!(sent(&model, 2).len(), 3);
    let yes = super::support::answer(
        interrupts[0].id.as_str(),
        "adk_request_confirmation",
        json!({"confirmed": true}),
    );
    read(runner.run(&key, yes)).await.assert_finished();
    // What was summed up before the question is not told again: its summary is.
    assert_eq!(notes.all().len(), 2);
    assert!(notes.all()[1].starts_with(&umbel::text::summary("3 messages")), "{:?}", notes.all());
}

/// A clock that stands still.
#[derive(Debug)]
struct Noon;

impl umbel::Clock for Noon {
    fn now(&self) -> f64 {
        43_200.0
    }
}

#[tokio::test]
async fn a_lasting_summary_covers_no_more_than_it_was_made_of_though_all_took_place_in_the_same_moment() {
    let (model, notes) = (fine(), Notes::default());
    let summarise =
        Summarise::new(Trigger::Messages(3)).keep(Keep::Messages(1)).summariser(counting(&notes)).lasting();
    let runner = Runner::builder("app", talking(&model, summarise)).clock(Noon).build().unwrap();
    let (runner, key) = with_session(runner).await;
    say(&runner, &key, ["one", "two"]).await;
    assert_eq!(sent(&model, 1), ["[2 messages]", "two"]);
    assert_eq!(stored(&runner, &key).await.iter().filter(|event| event.compaction().is_some()).count(), 1);
}

fn too_long() -> Error {
    Error::new(ErrorKind::Model(umbel::ModelErrorKind::ContextTooLong), "too long")
}

/// Takes so many messages and no more, of which it says a word first.
fn takes(messages: usize) -> ScriptedModel {
    ScriptedModel::from_fn("m", move |request| match request.contents.len() <= messages {
        true => vec![Ok(Chunk::Text("fine".into()))],
        false => vec![Ok(Chunk::Text("we".into())), Err(too_long())],
    })
    .recorded()
}

/// Never by itself.
fn when_forced(keep: usize, notes: &Notes) -> Summarise {
    Summarise::new(Trigger::Any(Vec::new())).keep(Keep::Messages(keep)).summariser(counting(notes))
}

#[tokio::test]
async fn a_conversation_that_is_too_long_is_summed_up_and_the_model_asked_again() {
    const ONE: &str =
        "one, and a good deal more of it than there would be in any summary of it, however long that is";
    for lasting in [false, true] {
        let (model, notes) = (takes(4), Notes::default());
        let summarise = when_forced(1, &notes);
        let agent = talking(&model, if lasting { summarise.lasting() } else { summarise });
        let runner = Runner::builder("app", agent).clock(SteppingClock::new(1.0, 1.0));
        let (runner, key) = with_session(runner.build().unwrap()).await;
        say(&runner, &key, [ONE, "two"]).await;
        let streaming = RunConfig { streaming: true, ..RunConfig::default() };
        let seen = read(runner.run_with(&key, "three", streaming)).await;
        seen.assert_finished();
        assert_eq!(notes.all(), [format!("{ONE}|fine|two|fine")]);
        assert_eq!(sent(&model, 3), ["[4 messages]", "three"]);
        // What was seen of the first attempt is void, and what comes then has another id.
        let shown = seen.partial();
        let words: Vec<_> = shown.iter().map(|event| (event.text(), event.error_code().is_some())).collect();
        assert_eq!(words, [("we".to_owned(), false), (String::new(), true), ("fine".to_owned(), false)]);
        assert_eq!((shown[0].id == shown[1].id, shown[0].id == shown[2].id), (true, false));
        assert_eq!(seen.texts().last().unwrap().1, "fine");
        assert_eq!(model.requests().len(), 4);
        // One that lasts helps the next run, too.
        say(&runner, &key, ["four"]).await;
        assert_eq!(model.requests().len(), if lasting { 5 } else { 6 });
        let log = stored(&runner, &key).await;
        assert_eq!(log.iter().filter(|event| event.compaction().is_some()).count(), usize::from(lasting));
    }
}

#[tokio::test]
async fn it_is_made_shorter_each_time_and_so_often_and_no_more() {
    // Twelve messages and one; half of them each time, and none of that is kept by itself.
    let history = ["one", "two", "three", "four", "five", "six"];
    for (takes_at_most, asked, error) in [(8, 2, false), (4, 3, false), (3, 4, false), (2, 4, true)] {
        let (model, notes) = (fine(), Notes::default());
        let (runner, key) = begin(talking(&model, when_forced(100, &notes))).await;
        say(&runner, &key, history).await;
        let (model, notes) = (takes(takes_at_most), Notes::default());
        let other = Runner::builder("app", talking(&model, when_forced(100, &notes)));
        let other = other.sessions(runner.sessions().clone()).build().unwrap();
        let seen = read(other.run(&key, "seven")).await;
        let lengths: Vec<usize> = model.requests().iter().map(|request| request.contents.len()).collect();
        assert_eq!(lengths, [13, 7, 4, 3][..asked]);
        assert_eq!(notes.all().len(), asked - 1);
        match error {
            true => assert_eq!((seen.kind(), seen.message()), (too_long().kind(), "too long")),
            false => assert_eq!(seen.assert_finished().texts()[0].1, "fine"),
        }
        assert_eq!(sent(&model, asked - 1).last().unwrap(), "seven");
    }
}

#[tokio::test]
async fn what_cannot_be_made_shorter_fails_as_the_model_said() {
    let notes = Notes::default();
    // A single message.
    let (runner, key) = begin(talking(&takes(0), when_forced(1, &notes))).await;
    assert_eq!(read(runner.run(&key, "one")).await.kind(), too_long().kind());
    assert!(notes.all().is_empty());
    // A summary that is longer than what it sums up, and none at all.
    for words in ["x".repeat(1_000), String::new()] {
        let model = takes(2);
        let summarise = Summarise::new(Trigger::Any(Vec::new())).keep(Keep::Messages(1));
        let summarise = summarise.summariser(move |_: Vec<Arc<Event>>| {
            let words = words.clone();
            async move { Ok(words) }
        });
        let (runner, key) = begin(talking(&model, summarise)).await;
        say(&runner, &key, ["one"]).await;
        assert_eq!(read(runner.run(&key, "two")).await.kind(), too_long().kind());
        assert_eq!(model.requests().len(), 2);
    }
    // One that was told not to.
    let model = takes(2);
    let (runner, key) = begin(talking(&model, when_forced(1, &notes).on_overflow(false))).await;
    say(&runner, &key, ["one"]).await;
    assert_eq!(read(runner.run(&key, "two")).await.kind(), too_long().kind());
    assert_eq!((model.requests().len(), notes.all().len()), (2, 0));
}

#[tokio::test]
async fn a_later_call_of_the_same_run_may_be_too_long_again() {
    let notes = Notes::default();
    let answers = AtomicUsize::new(0);
    let model = ScriptedModel::from_fn("m", move |request| {
        if request.contents.len() > 4 {
            return vec![Err(too_long())];
        }
        let answered = answers.fetch_add(1, Ordering::SeqCst);
        let response = match answered < 6 {
            true => crate::support::calls([crate::support::call_with_id(
                &answered.to_string(),
                "echo",
                json!({"words": "x".repeat(500)}),
            )]),
            false => Response::text("done"),
        };
        vec![Ok(Chunk::Complete(response))]
    });
    let agent = LlmAgent::new("a").model(model.clone()).tool(echo()).handler(when_forced(2, &notes));
    let (runner, key) = begin(agent).await;
    let seen = read(runner.run(&key, "go")).await;
    assert_eq!(seen.assert_finished().texts()[0].1, "done");
    assert!(notes.all().len() > 1, "{:?}", notes.all());
}

#[tokio::test]
async fn a_compactor_of_the_runner_helps_a_model_that_finds_it_too_long_too() {
    let (model, notes) = (takes(5), Notes::default());
    let compactor = || umbel::Compactor::above(1_000_000, 100).summariser(counting(&notes));
    let make = |compactor: umbel::Compactor| {
        let runner = Runner::builder("app", LlmAgent::new("a").model(model.clone()));
        runner.clock(SteppingClock::new(1.0, 1.0)).compaction(compactor).build().unwrap()
    };
    let (runner, key) = with_session(make(compactor())).await;
    say(&runner, &key, ["one", "two", "three"]).await;
    assert_eq!(notes.all(), [] as [String; 0]);
    say(&runner, &key, ["four"]).await;
    assert_eq!(notes.all().len(), 1);
    assert_eq!(said(model.requests().last().unwrap()).last().unwrap(), "four");
    // What cannot be summed up fails as the model said, and so does it without a summary.
    let broken = umbel::Compactor::above(1_000_000, 100).summariser(|_: Vec<Arc<Event>>| async {
        Err::<String, _>(Error::new(ErrorKind::Other, "no words"))
    });
    let (runner, key) = with_session(make(broken)).await;
    say(&runner, &key, ["one", "two", "three"]).await;
    assert_eq!(read(runner.run(&key, "four")).await.kind(), too_long().kind());
    let every = umbel::Compactor::every(100, 0);
    let (runner, key) = with_session(make(every)).await;
    say(&runner, &key, ["one", "two", "three"]).await;
    assert_eq!(read(runner.run(&key, "four")).await.kind(), too_long().kind());
}

#[tokio::test]
async fn a_fraction_goes_by_what_the_model_tells_of_itself() {
    let one_each = |_: &Content| 10;
    let summarise = |notes: &Notes| {
        let summarise = Summarise::new(Trigger::Fraction(0.5)).keep(Keep::Fraction(0.2));
        summarise.counter(one_each).summariser(counting(notes))
    };
    let telling = |tokens| fine().capabilities(Capabilities::default().context_tokens(tokens));
    let (model, notes) = (telling(100), Notes::default());
    let (runner, key) = begin(talking(&model, summarise(&notes))).await;
    say(&runner, &key, ["one", "two", "three"]).await;
    assert_eq!(notes.all(), ["one|fine|two"]);
    // What is said of it counts more.
    let notes = Notes::default();
    let (runner, key) = begin(talking(&model, summarise(&notes).window(1_000))).await;
    say(&runner, &key, ["one", "two", "three"]).await;
    assert!(notes.all().is_empty());
    // An agent whose model is that of the one above it.
    for window in [Some(30), None] {
        let notes = Notes::default();
        let below = LlmAgent::new("below").description("Helps.").handler(summarise(&notes));
        let calls = crate::support::calls([crate::support::call_with_id(
            "t",
            "transfer_to_agent",
            json!({"agent_name": "below"}),
        )]);
        let first = AtomicUsize::new(0);
        let model = ScriptedModel::from_fn("m", move |_| {
            let response = if first.fetch_add(1, Ordering::SeqCst) == 0 {
                calls.clone()
            } else {
                Response::text("fine")
            };
            vec![Ok(Chunk::Complete(response))]
        });
        let can = window
            .map_or_else(Capabilities::default, |tokens| Capabilities::default().context_tokens(tokens));
        let (runner, key) = begin(LlmAgent::new("a").model(model.capabilities(can)).sub_agent(below)).await;
        let seen = read(runner.run(&key, "one")).await;
        match window {
            Some(_) => assert!(!notes.all().is_empty()),
            None => assert!(seen.message().contains(".window(…)"), "{:?}", seen.error),
        }
    }
}

/// Forgets the oldest messages when they are too many for the model.
struct Forgets(Notes);

#[umbel::handler]
impl umbel::Handler for Forgets {
    fn name(&self) -> &str {
        "forgets"
    }

    fn before_model(&self, turn: &mut umbel::ModelTurn<'_>) -> Result<umbel::Step> {
        turn.offer_to_shorten();
        self.0.add(format!("{} of {}", turn.overflows(), turn.history.len()));
        if turn.overflows() > 0 {
            turn.history.splice(0..2, []);
        }
        Ok(umbel::Step::Continue)
    }
}

#[tokio::test]
async fn any_handler_may_offer_to_shorten_a_conversation() {
    let (model, notes) = (takes(2), Notes::default());
    let (runner, key) = begin(LlmAgent::new("a").model(model.clone()).handler(Forgets(notes.clone()))).await;
    say(&runner, &key, ["one", "two", "three"]).await;
    assert_eq!(sent(&model, 5), ["three"]);
    assert_eq!(notes.all(), ["0 of 1", "0 of 3", "1 of 3", "0 of 5", "1 of 5", "2 of 3"]);
}
