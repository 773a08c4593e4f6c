//! Models that are asked again, and others in their place.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::json;
use umbel::backoff::Backoff;
use umbel::handlers::{Again, ModelFallback, ModelRetry, OnFailure, Verdict};
use umbel::{
    Capabilities, Chunk, ChunkStream, Content, Error, ErrorKind, GenerateConfig, Handler, LlmAgent,
    ModelCall, ModelErrorKind, ModelTurn, NextModel, Outcome, Part, Response, Result, Run, RunConfig,
    RunLimits, Runner, ScriptedModel, Step, Work, handler, text,
};

use crate::support::{Notes, Seen, begin, echo, quick, read, said, stored_answers, with_session};

type Answer = Vec<Result<Chunk>>;

/// A model that gives these answers in order.
fn script(answers: impl IntoIterator<Item = Answer>) -> ScriptedModel {
    named("m", answers)
}

/// The same with a name.
fn named(name: &str, answers: impl IntoIterator<Item = Answer>) -> ScriptedModel {
    let answers: Mutex<VecDeque<Answer>> = Mutex::new(answers.into_iter().collect());
    ScriptedModel::from_fn(name, move |_| answers.lock().unwrap().pop_front().expect("another answer"))
        .recorded()
}

fn overloaded() -> Error {
    Error::new(ErrorKind::Model(ModelErrorKind::Overloaded), "too much to do")
}

fn piece(words: &str) -> Result<Chunk> {
    Ok(Chunk::Text(words.to_owned()))
}

fn whole(words: &str) -> Result<Chunk> {
    Ok(Chunk::Complete(Response::text(words)))
}

/// Retries that do not wait.
fn at_once() -> ModelRetry {
    ModelRetry::new().backoff(Backoff::new().initial(Duration::ZERO))
}

async fn run(agent: LlmAgent, streaming: bool) -> (Seen, Vec<String>) {
    let config = RunConfig { streaming, limits: quick(), ..RunConfig::default() };
    let runner = Runner::builder("app", agent).config(config).build().unwrap();
    let (runner, key) = with_session(runner).await;
    let seen = read(runner.run(&key, "hi")).await;
    let stored = stored_answers(&runner, &key).await.iter().map(|event| event.text()).collect();
    (seen, stored)
}

/// What a reader who drops what is void has in front of him, and how often he had to.
fn shown(seen: &Seen) -> (String, usize) {
    let (mut words, mut voids) = (String::new(), 0);
    for event in seen.partial() {
        if event.error_code() == Some(text::ATTEMPT_REJECTED) {
            words.clear();
            voids += 1;
        }
        words.push_str(&event.text());
    }
    (words, voids)
}

#[tokio::test]
async fn what_was_shown_of_a_failed_attempt_is_void_and_never_stored() {
    for streaming in [false, true] {
        let model = script([
            vec![piece("Hel"), piece("lo wor"), Err(overloaded())],
            vec![Err(overloaded())],
            vec![piece("Good "), piece("day")],
        ]);
        let agent = LlmAgent::new("a").model(model.clone()).handler(at_once());
        let (seen, stored) = run(agent, streaming).await;
        seen.assert_finished();
        assert_eq!(stored, ["Good day"]);
        assert_eq!(model.requests().len(), 3);
        assert_eq!(shown(&seen), if streaming { ("Good day".to_owned(), 1) } else { Default::default() });
        let id =
            |words: &str| seen.partial().iter().find(|event| event.text() == words).map(|e| e.id.clone());
        if streaming {
            assert_ne!(id("Hel"), id("day"));
            assert_eq!(id("day"), seen.whole().last().map(|event| event.id.clone()));
        }
    }
}

#[tokio::test]
async fn an_answer_that_breaks_off_is_a_failed_attempt() {
    let preview = Response { partial: Some(true), ..Response::text("Hel") };
    let cut = Error::new(ErrorKind::StreamCut, "cut");
    let model =
        script([vec![piece("H"), Err(cut)], vec![Ok(Chunk::Complete(preview))], vec![whole("Hello")]]);
    let (seen, stored) = run(LlmAgent::new("a").model(model).handler(at_once()), false).await;
    seen.assert_finished();
    assert_eq!(stored, ["Hello"]);
}

#[tokio::test]
async fn when_all_attempts_failed_the_agent_says_so_in_the_place_of_what_was_shown() {
    for streaming in [false, true] {
        let model = script((0..3).map(|_| vec![piece("Hel"), Err(overloaded())]));
        let (seen, stored) = run(LlmAgent::new("a").model(model).handler(at_once()), streaming).await;
        seen.assert_finished();
        assert_eq!(stored, [text::model_failed(3, &overloaded())]);
        assert_eq!(shown(&seen), (String::new(), if streaming { 3 } else { 0 }));
    }
}

#[tokio::test]
async fn on_failure_may_be_an_error_or_other_words() {
    let failing = || script((0..2).map(|_| vec![Err(overloaded())]));
    let retry = at_once().max_retries(1);
    let agent = LlmAgent::new("a").model(failing()).handler(retry.clone().on_failure(OnFailure::Error));
    let (seen, _) = run(agent, false).await;
    assert_eq!(seen.kind(), overloaded().kind());
    let words = OnFailure::say(|error, attempts| format!("{attempts}: {error}"));
    let (_, stored) = run(LlmAgent::new("a").model(failing()).handler(retry.on_failure(words)), false).await;
    assert_eq!(stored, ["2: too much to do"]);
}

#[tokio::test]
async fn an_error_that_will_not_pass_fails_at_once() {
    for kind in [ErrorKind::Model(ModelErrorKind::BadRequest), ErrorKind::Handler, ErrorKind::ModelCallLimit]
    {
        let model = script([vec![Err(Error::new(kind, "no"))]]);
        let (seen, _) = run(LlmAgent::new("a").model(model).handler(at_once()), false).await;
        assert_eq!(seen.kind(), kind);
    }
}

#[tokio::test(start_paused = true)]
async fn an_error_that_names_a_time_is_believed() {
    let later = |seconds| overloaded().with_retry_after(Duration::from_secs(seconds));
    let model = script([vec![Err(later(7))], vec![Err(later(61))]]);
    let begin = tokio::time::Instant::now();
    let (_, stored) = run(LlmAgent::new("a").model(model).handler(ModelRetry::new()), false).await;
    assert_eq!(begin.elapsed().as_secs(), 7);
    assert_eq!(stored, [text::model_failed(2, &overloaded())]);
}

#[tokio::test]
async fn a_run_that_is_cancelled_while_it_waits_ends() {
    let model = script([vec![piece("Hel"), Err(overloaded())]]);
    let (runner, key) = begin(LlmAgent::new("a").model(model).handler(ModelRetry::new())).await;
    let stream = runner.run(&key, "hi");
    let token = stream.cancel_token().clone();
    let (seen, ()) = tokio::join!(read(stream), async {
        tokio::time::sleep(Duration::from_millis(20)).await;
        token.cancel(umbel::CancelReason::Asked);
    });
    assert_eq!(seen.outcome, Outcome::Cancelled);
    assert!(stored_answers(&runner, &key).await.iter().all(|event| event.text().is_empty()));
}

/// A model that never answers.
#[derive(Debug)]
struct Silent;

impl umbel::Model for Silent {
    fn name(&self) -> &str {
        "silent"
    }

    fn generate(&self, _request: &umbel::ModelRequest) -> umbel::BoxStream<'static, Result<Chunk>> {
        Box::pin(futures::stream::pending())
    }
}

/// A run that may take five seconds.
async fn five_seconds(agent: LlmAgent) -> Seen {
    let limits = RunLimits { run_time: Duration::from_secs(5), ..quick() };
    let runner = Runner::builder("app", agent).config(RunConfig { limits, ..RunConfig::default() }).build();
    let (runner, key) = with_session(runner.unwrap()).await;
    read(runner.run(&key, "hi")).await
}

#[tokio::test(start_paused = true)]
async fn a_run_whose_time_is_up_is_not_retried() {
    let seen = five_seconds(LlmAgent::new("a").model(Silent).handler(at_once())).await;
    assert_eq!(seen.kind(), ErrorKind::Timeout);
}

#[tokio::test(start_paused = true)]
async fn nobody_waits_for_an_attempt_that_would_come_after_the_end_of_the_run() {
    let steady = |seconds| Backoff::new().initial(Duration::from_secs(seconds)).factor(1.0).jitter(false);
    // The first wait fits in the run's five seconds, the second does not.
    for (seconds, attempts) in [(3, 2), (5, 1), (2, 3)] {
        let model = script((0..3).map(|_| vec![Err(overloaded())]));
        let retry = ModelRetry::new().backoff(steady(seconds)).on_failure(OnFailure::Error);
        let begin = tokio::time::Instant::now();
        let seen = five_seconds(LlmAgent::new("a").model(model.clone()).handler(retry)).await;
        assert_eq!((seen.kind(), model.requests().len()), (overloaded().kind(), attempts));
        assert_eq!(begin.elapsed().as_secs(), seconds * (attempts as u64 - 1));
    }
}

#[tokio::test]
async fn each_class_of_errors_is_retried_or_not() {
    use ModelErrorKind as Class;
    let retried =
        [Class::RateLimited, Class::Overloaded, Class::Transport, Class::Other].map(ErrorKind::Model);
    let passed_on =
        [Class::Auth, Class::BadRequest, Class::Refused, Class::ContextTooLong].map(ErrorKind::Model);
    let retried = retried.into_iter().chain([ErrorKind::StreamCut]).map(|kind| (kind, 2));
    for (kind, attempts) in retried.chain(passed_on.map(|kind| (kind, 1))) {
        for streaming in [false, true] {
            let model = script([vec![piece("Hel"), Err(Error::new(kind, "no"))], vec![piece("Good day")]]);
            let agent = LlmAgent::new("a").model(model.clone()).handler(at_once());
            let (seen, stored) = run(agent, streaming).await;
            assert_eq!(model.requests().len(), attempts, "{kind:?}");
            if attempts == 1 {
                assert_eq!(seen.kind(), kind);
                continue;
            }
            assert_eq!(stored, ["Good day"], "{kind:?}");
            let void = if streaming { ("Good day".to_owned(), 1) } else { Default::default() };
            assert_eq!(shown(&seen), void, "{kind:?}");
        }
    }
}

#[tokio::test]
async fn what_is_too_long_goes_only_to_models_that_are_known_to_take_more() {
    let too_long = || Error::new(ErrorKind::Model(ModelErrorKind::ContextTooLong), "too long");
    let taking = |name: &str, window: Option<u32>, answer: Answer| {
        let can = window
            .map_or_else(Capabilities::default, |tokens| Capabilities::default().context_tokens(tokens));
        named(name, [answer]).capabilities(can)
    };
    let (small, large) = (Some(100), Some(200));
    for (first, second, third, asked) in [
        (small, small, large, "first third"),
        (small, None, large, "first third"),
        (small, large, large, "first second"),
        (large, small, None, "first"),
        (None, large, large, "first"),
    ] {
        let models = [
            taking("first", first, vec![Err(too_long())]),
            taking("second", second, vec![whole("fine")]),
            taking("third", third, vec![whole("fine")]),
        ];
        let fallback = ModelFallback::new(models[1].clone()).then(models[2].clone());
        let (seen, _) = run(LlmAgent::new("a").model(models[0].clone()).handler(fallback), false).await;
        let was_asked = models.iter().filter(|model| !model.requests().is_empty());
        let names: Vec<&str> = was_asked.map(umbel::Model::name).collect();
        assert_eq!(names.join(" "), asked);
        match asked {
            "first" => assert_eq!(seen.kind(), too_long().kind()),
            _ => assert_eq!(seen.assert_finished().texts()[0].1, "fine"),
        }
    }
    // A model that takes as much may still have another error than that.
    let first = taking("first", small, vec![Err(overloaded())]);
    let fallback = ModelFallback::new(taking("second", None, vec![whole("fine")]));
    assert_eq!(run(LlmAgent::new("a").model(first).handler(fallback), false).await.1, ["fine"]);
}

/// Fails each model call in that way.
struct Fails(fn() -> Error, Notes);

#[handler]
impl Handler for Fails {
    fn name(&self) -> &str {
        "fails"
    }

    fn wrap_model(&self, _call: ModelCall<'_>, _next: NextModel<'_>) -> Result<ChunkStream<'_>> {
        self.1.add("asked");
        Err((self.0)())
    }
}

#[tokio::test]
async fn control_flow_is_never_retried_and_no_other_model_is_asked() {
    let interrupt = || Error::interrupt("may I?");
    let cancel = || Error::new(ErrorKind::Cancelled, "stop");
    for control in [interrupt, cancel] {
        for retries in [true, false] {
            let notes = Notes::default();
            let agent = LlmAgent::new("a").model(script([]));
            let agent = match retries {
                true => agent.handler(at_once().retry_on(|_| true)),
                false => agent.handler(ModelFallback::new(ScriptedModel::new("b").text("no"))),
            };
            let (seen, stored) = run(agent.handler(Fails(control, notes.clone())), false).await;
            assert_eq!(notes.all(), ["asked"]);
            assert_ne!(seen.outcome, Outcome::Finished);
            assert!(stored.iter().all(String::is_empty), "{stored:?}");
        }
    }
}

#[tokio::test]
async fn an_error_of_a_layer_further_in_is_a_failed_attempt_like_any_other() {
    let notes = Notes::default();
    let agent =
        LlmAgent::new("a").model(script([])).handler(at_once()).handler(Fails(overloaded, notes.clone()));
    let (_, stored) = run(agent, false).await;
    assert_eq!(notes.all(), ["asked"; 3]);
    assert_eq!(stored, [text::model_failed(3, &overloaded())]);
}

/// Notes when it is asked.
struct Hears(Notes);

#[handler]
impl Handler for Hears {
    fn name(&self) -> &str {
        "hears"
    }

    fn before_model(&self, _turn: &mut ModelTurn<'_>) -> Result<Step> {
        self.0.add("before");
        Ok(Step::Continue)
    }

    async fn wrap_model(&self, call: ModelCall<'_>, next: NextModel<'_>) -> Result<ChunkStream<'_>> {
        self.0.add(format!("wrap {}", call.request.model));
        next.call(call).await
    }

    fn after_model(&self, _turn: &mut ModelTurn<'_>) -> Result<Step> {
        self.0.add("after");
        Ok(Step::Continue)
    }
}

#[tokio::test]
async fn layers_further_in_see_each_attempt_and_those_before_and_after_see_the_call() {
    let notes = Notes::default();
    let model = script([vec![Err(overloaded())], vec![Err(overloaded())], vec![whole("fine")]]);
    let agent = LlmAgent::new("a").model(model).handler(at_once()).handler(Hears(notes.clone()));
    run(agent, false).await.0.assert_finished();
    assert_eq!(notes.all(), ["before", "wrap m", "wrap m", "wrap m", "after"]);
}

/// Wants an answer that is not short, and asks for it.
fn longer() -> ModelRetry {
    at_once().should_retry(|attempt| {
        let Some(answer) = attempt.response else { return Work::done(Ok(Verdict::Accept)) };
        let short = answer.content.as_ref().is_some_and(|content| content.text().len() < 5);
        if !short {
            return Work::done(Ok(Verdict::Accept));
        }
        Work::later(async move {
            tokio::task::yield_now().await;
            let mut request = attempt.request.clone();
            request.contents.push(Content::user(format!("longer {}", attempt.number).as_str()));
            let reason = Some("it is short".to_owned());
            Ok(Verdict::Retry(Again { reason, request: Some(Box::new(request)), ..Again::default() }))
        })
    })
}

#[tokio::test]
async fn an_answer_can_be_rejected_and_another_one_asked_for() {
    for streaming in [false, true] {
        for pieces in [false, true] {
            let answer = |a: &str, b: &str| {
                if pieces { vec![piece(a), piece(b)] } else { vec![whole(&format!("{a}{b}"))] }
            };
            let model = script([answer("n", "o"), answer("y", "es"), answer("oh ", "well")]);
            let (seen, stored) =
                run(LlmAgent::new("a").model(model.clone()).handler(longer()), streaming).await;
            seen.assert_finished();
            assert_eq!(stored, ["oh well"]);
            let asked = model.requests().iter().map(said).collect::<Vec<_>>();
            assert_eq!(asked, [vec!["hi"], vec!["hi", "longer 1"], vec!["hi", "longer 1", "longer 2"]]);
            let expected = if streaming && pieces { ("oh well".to_owned(), 2) } else { Default::default() };
            assert_eq!(shown(&seen), expected);
        }
    }
}

#[tokio::test]
async fn an_answer_that_is_rejected_each_time_is_told_with_the_reason() {
    let model = || script((0..3).map(|_| vec![whole("no")]));
    let (_, stored) = run(LlmAgent::new("a").model(model()).handler(longer()), false).await;
    assert_eq!(stored.len(), 1);
    assert!(stored[0].ends_with("the model's answer was rejected: it is short"), "{stored:?}");
    let agent = LlmAgent::new("a").model(model()).handler(longer().on_failure(OnFailure::Error));
    let (seen, stored) = run(agent, false).await;
    assert_eq!(seen.error.unwrap().message(), "the model's answer was rejected: it is short");
    assert!(stored.iter().all(String::is_empty));
}

#[tokio::test]
async fn a_blank_reason_of_a_rejected_answer_is_none() {
    let blank = || Verdict::Retry(Again { reason: Some(" \n".to_owned()), ..Again::default() });
    let retry = at_once().should_retry(move |_| Work::done(Ok(blank()))).on_failure(OnFailure::Error);
    let model = script((0..3).map(|_| vec![whole("no")]));
    let (seen, _) = run(LlmAgent::new("a").model(model).handler(retry), false).await;
    assert_eq!(seen.error.unwrap().message(), "the model's answer was rejected");
}

#[tokio::test]
async fn the_calls_of_a_rejected_answer_are_not_made() {
    let notes = Notes::default();
    let noted = notes.clone();
    let retry = at_once().should_retry(move |attempt| {
        let calls =
            attempt.response.and_then(|answer| answer.content.as_ref()).is_some_and(|c| c.has_calls());
        noted.add(if calls { "calls" } else { "words" });
        Work::done(Ok(if calls && attempt.number == 1 {
            Verdict::Retry(Again::default())
        } else {
            Verdict::Accept
        }))
    });
    let model = script([calls(), calls(), vec![whole("done")]]);
    let (seen, stored) = run(LlmAgent::new("a").model(model).tool(echo()).handler(retry), false).await;
    assert_eq!(seen.assert_finished().responses().len(), 1);
    assert_eq!(stored.len(), 3);
    assert_eq!(notes.all(), ["calls", "calls", "words"]);
}

#[tokio::test(start_paused = true)]
async fn the_function_decides_about_errors_and_waits_too() {
    let decide = |attempt: &umbel::handlers::Attempt<'_>| match attempt.error {
        Some(error) if error.message() == "again" => {
            Ok(Verdict::Retry(Again { delay: Some(Duration::from_secs(100)), ..Again::default() }))
        }
        Some(error) if error.message() == "broken" => Err(Error::new(ErrorKind::Blocked, "stop it")),
        _ => Ok(Verdict::Accept),
    };
    let retry = ModelRetry::new().should_retry(move |attempt| Work::done(decide(attempt)));
    let failing = |words: &str| vec![Err(Error::new(ErrorKind::Model(ModelErrorKind::Auth), words))];
    let begin = tokio::time::Instant::now();
    let model = script([failing("again"), failing("no")]);
    let (seen, _) = run(LlmAgent::new("a").model(model).handler(retry.clone()), false).await;
    assert_eq!(seen.error.unwrap().message(), "no");
    assert_eq!(begin.elapsed().as_secs(), 100);
    let (seen, _) = run(LlmAgent::new("a").model(script([failing("broken")])).handler(retry), false).await;
    assert_eq!(seen.kind(), ErrorKind::Blocked);
}

#[tokio::test]
async fn an_error_behind_a_whole_message_is_not_retried_since_the_message_was_acted_on() {
    let model = script([vec![whole("said"), Err(overloaded())]]);
    let (seen, stored) = run(LlmAgent::new("a").model(model).handler(at_once()), false).await;
    assert_eq!(seen.kind(), overloaded().kind());
    assert_eq!(stored.first().map(String::as_str), Some("said"));
}

#[test]
fn a_backoff_that_makes_no_sense_fails_the_build() {
    let retry = ModelRetry::new().backoff(Backoff::new().factor(-1.0));
    let error = Runner::new("app", LlmAgent::new("a").model(script([])).handler(retry)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Build);
    assert!(error.message().contains("model-retry"), "{error}");
}

#[tokio::test]
async fn another_model_is_asked_under_its_own_name_without_what_only_the_first_understands() {
    let (first, second) = (named("large", [vec![Err(overloaded())]]), named("small", [vec![whole("hello")]]));
    let mut generate = GenerateConfig { temperature: Some(0.5), ..GenerateConfig::default() };
    generate.other.insert("cachedContent".to_owned(), json!("c1"));
    let agent = LlmAgent::new("a").model(first.clone()).generate(generate);
    let (seen, stored) = run(agent.handler(ModelFallback::new(second.clone())), false).await;
    seen.assert_finished();
    assert_eq!(stored, ["hello"]);
    let (first, second) = (first.requests().remove(0), second.requests().remove(0));
    assert_eq!((first.model.as_str(), second.model.as_str()), ("large", "small"));
    assert_eq!((first.config.temperature, second.config.temperature), (Some(0.5), Some(0.5)));
    assert_eq!(first.config.other.len(), 1);
    assert!(second.config.other.is_empty());
}

#[tokio::test]
async fn what_was_shown_of_the_first_model_is_void_when_another_answers() {
    for streaming in [false, true] {
        let first = named("large", [vec![piece("Hel"), Err(overloaded())]]);
        let fallback = ModelFallback::new(named("middle", [vec![Err(overloaded())]]))
            .then(named("small", [vec![piece("Good "), piece("day")]]));
        let (seen, stored) = run(LlmAgent::new("a").model(first).handler(fallback), streaming).await;
        seen.assert_finished();
        assert_eq!(stored, ["Good day"]);
        assert_eq!(shown(&seen), if streaming { ("Good day".to_owned(), 1) } else { Default::default() });
    }
}

/// An answer that calls `echo`.
fn calls() -> Answer {
    let call = umbel::FunctionCall::new("echo", crate::support::object(json!({"a": 1})));
    vec![Ok(Chunk::Complete(Response::new(Content::model(Part::call(call)))))]
}

#[tokio::test]
async fn the_model_that_answered_last_can_be_asked_first_for_the_rest_of_the_run() {
    for sticky in [false, true] {
        let notes = Notes::default();
        // The first fails once in each run; the second has both turns of the first run.
        let first = named("large", [vec![Err(overloaded())], vec![whole("back")], vec![whole("back")]]);
        let fallback = ModelFallback::new(named("small", [calls(), vec![whole("done")]])).sticky(sticky);
        let agent =
            LlmAgent::new("a").model(first).tool(echo()).handler(fallback).handler(Hears(notes.clone()));
        let (runner, key) = begin(agent).await;
        read(runner.run(&key, "one")).await.assert_finished();
        read(runner.run(&key, "two")).await.assert_finished();
        let asked: Vec<String> = notes.all().into_iter().filter(|note| note.starts_with("wrap")).collect();
        let expected: &[&str] = match sticky {
            true => &["wrap large", "wrap small", "wrap small", "wrap large"],
            false => &["wrap large", "wrap small", "wrap large", "wrap large"],
        };
        assert_eq!(asked, expected, "sticky: {sticky}");
    }
}

#[tokio::test]
async fn if_the_model_that_answered_last_fails_the_others_are_asked_in_order() {
    let notes = Notes::default();
    let first = named("large", [vec![Err(overloaded())], vec![Err(overloaded())]]);
    let fallback = ModelFallback::new(named("middle", [vec![Err(overloaded())], vec![whole("here")]]))
        .then(named("small", [calls(), vec![Err(overloaded())]]))
        .sticky(true);
    let agent = LlmAgent::new("a").model(first).tool(echo()).handler(fallback).handler(Hears(notes.clone()));
    let (_, stored) = run(agent, false).await;
    assert_eq!(stored.last().map(String::as_str), Some("here"));
    let asked: Vec<String> = notes.all().into_iter().filter(|note| note.starts_with("wrap")).collect();
    let expected =
        ["large", "middle", "small", "small", "large", "middle"].map(|name| format!("wrap {name}"));
    assert_eq!(asked, expected);
}

#[tokio::test]
async fn a_layer_can_be_tried_without_an_agent() {
    struct End;
    impl umbel::ModelEnd for End {
        fn call<'a>(&'a self, call: ModelCall<'a>) -> Work<'a, Result<ChunkStream<'a>>> {
            Work::done(Ok(Box::pin(call.model.generate(&call.request))))
        }
    }
    let cx = umbel::Context::new(Run::detached(umbel::Extensions::new()).unwrap());
    let model =
        script([vec![piece("a"), Err(overloaded())], vec![piece("b"), Ok(Chunk::Restart), piece("c")]]);
    let layers: [Arc<dyn Handler>; 1] = [Arc::new(at_once())];
    let request = umbel::ModelRequest::new("m");
    let call = ModelCall { cx: &cx, model: Arc::new(model), request, extensions: umbel::Extensions::new() };
    let chunks = NextModel::new(&layers, &End).call(call).await.unwrap();
    let chunks: Vec<Chunk> = futures::TryStreamExt::try_collect(chunks).await.unwrap();
    let text = |words: &str| Chunk::Text(words.to_owned());
    assert_eq!(chunks, [text("a"), Chunk::Restart, text("b"), Chunk::Restart, text("c")]);
}
