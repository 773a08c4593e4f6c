//! The handler that redacts personal data, in whole runs.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use serde_json::{Value, json};
use umbel::backoff::Backoff;
use umbel::handlers::ModelRetry;
use umbel::handlers::pii::{Pii, PiiRule, PiiStrategy};
use umbel::{
    Chunk, ChunkStream, Content, ErrorKind, Event, FunctionCall, FunctionTool, Handler, Hooks, LlmAgent,
    ModelCall, ModelTurn, NextModel, Part, PartialArg, Response, Result, Role, RunConfig, Runner,
    ScriptedModel, SessionKey, Step, ToolError, ToolItem, ToolOutput, ToolSpec, handler,
};

use crate::pii_vectors::blocked;
use crate::support::{
    Seen, begin, call_with_id, calls, read, responses, said, state, stored, stored_answers, with_session,
};

fn everywhere(rule: PiiRule) -> PiiRule {
    rule.input(true).output(true).tool_results(true)
}

fn output(rule: PiiRule) -> PiiRule {
    rule.input(false).output(true)
}

fn block(rule: PiiRule) -> PiiRule {
    rule.strategy(PiiStrategy::Block)
}

fn streaming() -> RunConfig {
    RunConfig { streaming: true, ..RunConfig::default() }
}

async fn streamed(runner: &Runner, key: &SessionKey) -> Seen {
    read(runner.run_with(key, "hi", streaming())).await
}

/// All that a run showed, as JSON.
fn shown(seen: &Seen) -> String {
    seen.events.iter().map(|event| serde_json::to_string(event).unwrap()).collect()
}

fn texts(events: &[Arc<Event>], thoughts: bool) -> String {
    let parts = events.iter().filter_map(|event| event.content.as_ref()).flat_map(|content| &content.parts);
    parts.filter(|part| part.is_thought() == thoughts).filter_map(Part::as_text).collect()
}

/// A tool that answers with this.
fn looks_up(answer: Value) -> FunctionTool {
    FunctionTool::new("look", "", move |_: Value| {
        let answer = answer.clone();
        async move { Ok(answer) }
    })
}

#[tokio::test]
async fn the_model_never_sees_what_a_user_said_in_this_run_or_in_an_earlier_one() {
    let model = ScriptedModel::new("m").recorded().text("fine").text("fine");
    let (runner, key) =
        begin(LlmAgent::new("a").model(model.clone()).handler(Pii::new(PiiRule::email()))).await;
    read(runner.run(&key, "I am a@x.org")).await.assert_finished();
    read(runner.run(&key, "and b@y.org")).await.assert_finished();
    assert_eq!(said(&model.requests()[0]), ["I am [REDACTED_EMAIL]"]);
    assert_eq!(said(&model.requests()[1]), ["I am [REDACTED_EMAIL]", "fine", "and [REDACTED_EMAIL]"]);
}

#[tokio::test]
async fn what_users_say_is_not_even_stored_if_it_is_redacted_on_entry() {
    for on_entry in [true, false] {
        let pii = Pii::new(PiiRule::email());
        let pii = if on_entry { pii.on_entry() } else { pii };
        let model = ScriptedModel::new("m").recorded().text("fine");
        let agent = LlmAgent::new("a").model(model.clone());
        let (runner, key) = with_session(Runner::builder("app", agent).handler(pii).build().unwrap()).await;
        read(runner.run(&key, "I am a@x.org")).await.assert_finished();
        assert_eq!(said(&model.requests()[0]), ["I am [REDACTED_EMAIL]"]);
        let kept = stored(&runner, &key).await[0].text();
        assert_eq!(kept, if on_entry { "I am [REDACTED_EMAIL]" } else { "I am a@x.org" });
    }
}

#[tokio::test]
async fn what_tools_answer_is_redacted_before_it_is_stored_shown_or_sent() {
    let model = ScriptedModel::new("m").recorded().call("look", json!({"who": "a@x.org"})).text("found");
    let tool = looks_up(json!({"mail": "a@x.org", "b@x.org": ["c@x.org", 7]}));
    let rule = PiiRule::email().input(false).tool_results(true);
    let (runner, key) =
        begin(LlmAgent::new("a").model(model.clone()).tool(tool).handler(Pii::new(rule))).await;
    let seen = read(runner.run(&key, "look for a@x.org")).await;
    let expected = json!({"mail": "[REDACTED_EMAIL]", "[REDACTED_EMAIL]": ["[REDACTED_EMAIL]", 7]});
    assert_eq!(seen.responses(), std::slice::from_ref(&expected));
    assert_eq!(responses(&stored_answers(&runner, &key).await), std::slice::from_ref(&expected));
    let sent = &model.requests()[1].contents;
    assert_eq!(json!(sent.last().unwrap().responses().next().unwrap().response), expected);
    assert_eq!(sent.get(0).unwrap().text(), "look for a@x.org");
    assert_eq!(json!(sent.get(1).unwrap().calls().next().unwrap().args), json!({"who": "a@x.org"}));
}

#[tokio::test]
async fn a_tools_error_says_no_more_than_its_answer_may() {
    let fails = FunctionTool::new("look", "", |_: Value| async {
        Err::<Value, _>(ToolError::new("nobody has a@x.org"))
    });
    let model = ScriptedModel::new("m").call("look", json!({})).text("sorry");
    let pii = Pii::new(PiiRule::email().tool_results(true));
    let (runner, key) = begin(LlmAgent::new("a").model(model).tool(fails).handler(pii)).await;
    let seen = read(runner.run(&key, "hi")).await;
    assert_eq!(seen.tool_error(), "nobody has [REDACTED_EMAIL]");
}

#[tokio::test]
async fn what_tools_answered_before_the_handler_was_there_is_redacted_in_the_history() {
    let model = ScriptedModel::new("m").recorded().call("look", json!({})).text("found").text("fine");
    let agent = |pii: Option<Pii>| {
        let agent = LlmAgent::new("a").model(model.clone()).tool(looks_up(json!("a@x.org")));
        match pii {
            Some(pii) => agent.handler(pii),
            None => agent,
        }
    };
    let (runner, key) = begin(agent(None)).await;
    read(runner.run(&key, "hi")).await.assert_finished();
    let pii = Pii::new(PiiRule::email().tool_results(true));
    let later = Runner::builder("app", agent(Some(pii))).sessions(runner.sessions().clone()).build().unwrap();
    read(later.run(&key, "again")).await.assert_finished();
    let sent = &model.requests()[2].contents;
    let answer = sent.iter().find_map(|content| content.responses().next()).unwrap();
    assert_eq!(json!(answer.response), json!({"result": "[REDACTED_EMAIL]"}));
}

#[tokio::test]
async fn what_the_model_says_is_redacted_where_it_is_stored_shown_and_saved() {
    for config in [RunConfig::default(), streaming()] {
        let model = ScriptedModel::new("m").response(Response::new(Content::new(
            Role::Model,
            [Part::thought("is it a@x.org?"), "It is a@x.org.".into()],
        )));
        let pii = Pii::new(output(PiiRule::email()));
        let (runner, key) = begin(LlmAgent::new("a").model(model).handler(pii).output_key("out")).await;
        let seen = read(runner.run_with(&key, "a@x.org?", config)).await;
        assert_eq!(seen.texts(), [("a".to_owned(), "It is [REDACTED_EMAIL].".to_owned())]);
        let kept = stored_answers(&runner, &key).await;
        assert_eq!(texts(&kept, true), "is it [REDACTED_EMAIL]?");
        assert_eq!(texts(&kept, false), "It is [REDACTED_EMAIL].");
        assert_eq!(state(&runner, &key).await, json!({"out": "It is [REDACTED_EMAIL]."}));
        assert!(!shown(&seen).contains("x.org"), "{}", shown(&seen));
    }
}

#[tokio::test]
async fn previews_never_show_what_is_redacted_and_add_up_to_what_is_stored() {
    let thought = "Perhaps a@x.org? Or b@y.org, or none of them.";
    let text = "Write to anna.k@mail.example.org, or to b@y.org.";
    for (size, lookback) in [(1, 0), (1, 128), (5, 8), (100, 0)] {
        let pieces = |text: &str| -> Vec<String> {
            text.chars().collect::<Vec<_>>().chunks(size).map(|piece| piece.iter().collect()).collect()
        };
        let thoughts = pieces(thought).into_iter().map(Chunk::Thought);
        let model = ScriptedModel::new("m").chunks(thoughts.chain(pieces(text).into_iter().map(Chunk::Text)));
        let pii = Pii::new(output(PiiRule::email())).lookback(lookback);
        let (runner, key) = begin(LlmAgent::new("a").model(model).handler(pii).output_key("out")).await;
        let seen = streamed(&runner, &key).await;
        let (thought, text) = (
            "Perhaps [REDACTED_EMAIL]? Or [REDACTED_EMAIL], or none of them.",
            "Write to [REDACTED_EMAIL], or to [REDACTED_EMAIL].",
        );
        for events in [seen.partial(), seen.whole(), stored_answers(&runner, &key).await] {
            assert_eq!((texts(&events, true).as_str(), texts(&events, false).as_str()), (thought, text));
        }
        assert_eq!(state(&runner, &key).await, json!({"out": text}));
    }
}

#[tokio::test]
async fn previews_are_redacted_when_callbacks_see_each_piece() {
    let model = ScriptedModel::new("m").stream(["Write to an", "na@x.or", "g, or", " not."]);
    let pii = Pii::new(output(PiiRule::email())).lookback(0);
    let agent = LlmAgent::new("a")
        .model(model)
        .after_model(|_, _| Box::pin(async { Ok(None) }))
        .handler(pii)
        .output_key("out");
    let (runner, key) = begin(agent).await;
    let seen = streamed(&runner, &key).await;
    assert!(seen.partial().len() > 1);
    for events in [seen.partial(), seen.whole(), stored_answers(&runner, &key).await] {
        assert_eq!(texts(&events, false), "Write to [REDACTED_EMAIL], or not.");
    }
}

#[tokio::test]
async fn text_that_waits_is_shown_before_a_call_that_follows_it() {
    let delta = |part: Part| Chunk::Delta(Response::new(Content::new(Role::Model, [part])));
    let model = ScriptedModel::new("m")
        .chunks([
            Chunk::Text("Asking for a@x.org".into()),
            delta(call_with_id("c", "look", json!({"who": "a@x.org"}))),
            Chunk::Text("one moment".into()),
        ])
        .text("done");
    let heard = Arc::new(std::sync::Mutex::new(Value::Null));
    let look = {
        let heard = heard.clone();
        FunctionTool::new("look", "", move |args: Value| {
            *heard.lock().unwrap() = args;
            async { Ok(json!("ok")) }
        })
    };
    let (runner, key) =
        begin(LlmAgent::new("a").model(model).tool(look).handler(Pii::new(output(PiiRule::email())))).await;
    let seen = streamed(&runner, &key).await;
    let answer = seen.whole()[0].content.clone().unwrap();
    let order: Vec<bool> = answer.parts.iter().map(|part| part.as_call().is_some()).collect();
    assert_eq!(
        (order, answer.text()),
        (vec![false, true, false], "Asking for [REDACTED_EMAIL]one moment".into())
    );
    assert_eq!(*heard.lock().unwrap(), json!({"who": "a@x.org"}), "tools get what the model gave");
}

fn args(id: &str, text: &str, continues: bool) -> Chunk {
    let arg = PartialArg {
        json_path: Some("$.who".into()),
        string_value: Some(text.to_owned()),
        ..PartialArg::default()
    };
    let call = FunctionCall {
        id: Some(id.into()),
        name: "look".into(),
        partial_args: Some(vec![arg]),
        will_continue: continues.then_some(true),
        ..FunctionCall::default()
    };
    Chunk::Delta(Response::new(Content::model(Part::call(call))))
}

#[tokio::test]
async fn arguments_are_shown_redacted_while_they_stream_and_reach_the_tool_whole() {
    for rule in [PiiRule::email(), block(PiiRule::email())] {
        let pieces = [args("c", "to an", true), args("c", "na@x", true), args("c", ".org, now", false)];
        let model = ScriptedModel::new("m").chunks(pieces).text("done");
        let echo = FunctionTool::new("look", "", |args: Value| async move { Ok(args) });
        let pii = Pii::new(output(rule)).lookback(3);
        let (runner, key) = begin(LlmAgent::new("a").model(model).tool(echo).handler(pii)).await;
        let seen = streamed(&runner, &key).await;
        seen.assert_finished();
        let partial = seen.partial();
        let shown = partial
            .iter()
            .flat_map(|event| event.calls())
            .flat_map(|call| call.partial_args.iter().flatten());
        let shown: String = shown.filter_map(|arg| arg.string_value.as_deref()).collect();
        assert_eq!(shown, "to [REDACTED_EMAIL], now");
        assert_eq!(seen.responses(), [json!({"who": "to anna@x.org, now"})]);
    }
}

#[tokio::test]
async fn structured_answers_are_redacted_too() {
    let answer = json!({"mail": "a@x.org"});
    let schema = json!({"type": "object", "properties": {"mail": {"type": "string"}}, "required": ["mail"]});
    let part = call_with_id("c", "set_model_response", answer);
    let model = ScriptedModel::new("m").chunks([Chunk::Delta(Response::new(Content::model(part)))]);
    let agent = LlmAgent::new("a")
        .model(model)
        .tool(looks_up(json!(1)))
        .output_schema(schema)
        .output_key("out")
        .handler(Pii::new(output(PiiRule::email())));
    let (runner, key) = begin(agent).await;
    let seen = streamed(&runner, &key).await;
    seen.assert_finished();
    assert!(!seen.partial().is_empty() && !shown(&seen).contains("x.org"), "{}", shown(&seen));
    assert_eq!(state(&runner, &key).await, json!({"out": {"mail": "[REDACTED_EMAIL]"}}));
}

#[tokio::test]
async fn what_waited_in_a_rejected_attempt_is_not_part_of_the_next() {
    for outside in [true, false] {
        let model = ScriptedModel::new("m").break_off(["Hello a@x"]).stream([".org b@", "y.org"]);
        let again = ModelRetry::new().backoff(Backoff::new().initial(Duration::ZERO).jitter(false));
        let pii = Pii::new(output(PiiRule::email())).lookback(0);
        let agent = LlmAgent::new("a").model(model);
        let agent =
            if outside { agent.handler(again).handler(pii) } else { agent.handler(pii).handler(again) };
        let (runner, key) = begin(agent).await;
        let seen = streamed(&runner, &key).await;
        seen.assert_finished();
        assert_eq!(texts(&seen.whole(), false), ".org [REDACTED_EMAIL]");
        assert!(!shown(&seen).contains("a@x") && !shown(&seen).contains("y.org"), "{}", shown(&seen));
    }
}

#[tokio::test]
async fn a_blocked_answer_fails_the_run_before_anything_of_it_is_shown_or_stored() {
    for config in [RunConfig::default(), streaming()] {
        for lookback in [0, 128] {
            let model = ScriptedModel::new("m").stream(["Write to an", "na@x.or", "g."]);
            let pii = Pii::new(block(output(PiiRule::email()))).lookback(lookback);
            let (runner, key) = begin(LlmAgent::new("a").model(model).handler(pii)).await;
            let seen = read(runner.run_with(&key, "hi", config.clone())).await;
            assert_eq!((seen.kind(), seen.code()), (ErrorKind::Blocked, "BLOCKED"));
            assert_eq!(blocked(seen.error.as_ref().unwrap()), json!({"type": "email", "count": 1}));
            let kept = stored_answers(&runner, &key).await;
            let all = shown(&seen)
                + &serde_json::to_string(&kept.iter().map(|e| &**e).collect::<Vec<_>>()).unwrap();
            assert!(!all.contains("na@") && !all.contains("x.or"), "{all}");
            assert!("Write to ".starts_with(&texts(&seen.partial(), false)), "{all}");
        }
    }
}

#[tokio::test]
async fn a_blocked_input_fails_its_run_and_is_hidden_in_the_next() {
    let model = ScriptedModel::new("m").recorded().text("fine");
    let (runner, key) =
        begin(LlmAgent::new("a").model(model.clone()).handler(Pii::new(block(PiiRule::email())))).await;
    let seen = read(runner.run(&key, "I am a@x.org or b@y.org")).await;
    assert_eq!(blocked(seen.error.as_ref().unwrap()), json!({"type": "email", "count": 2}));
    assert!(model.requests().is_empty());
    let message = seen.error.as_ref().unwrap().message();
    assert!(
        message.contains("before_model") && message.contains("email") && !message.contains("x.org"),
        "{message}"
    );

    read(runner.run(&key, "never mind")).await.assert_finished();
    let hidden = "I am [REDACTED_EMAIL] or [REDACTED_EMAIL]";
    assert_eq!(said(&model.requests()[0]), [hidden, "never mind"]);
}

#[tokio::test]
async fn a_blocked_input_is_not_stored_if_it_is_stopped_on_entry() {
    let agent = LlmAgent::new("a").model(ScriptedModel::new("m").text("fine"));
    let pii = Pii::new(block(PiiRule::email())).on_entry();
    let (runner, key) = with_session(Runner::builder("app", agent).handler(pii).build().unwrap()).await;
    assert_eq!(read(runner.run(&key, "I am a@x.org")).await.kind(), ErrorKind::Blocked);
    let kept: Vec<String> = stored(&runner, &key).await.iter().map(|event| event.text()).collect();
    assert!(kept.iter().all(|text| !text.contains("x.org")), "{kept:?}");
}

#[tokio::test]
async fn a_blocked_tool_result_fails_the_run_before_the_model_is_asked_again() {
    let model = ScriptedModel::new("m").recorded().call("look", json!({})).text("never");
    let pii = Pii::new(block(PiiRule::email().input(false).tool_results(true)));
    let agent = LlmAgent::new("a").model(model.clone()).tool(looks_up(json!("it is a@x.org"))).handler(pii);
    let (runner, key) = begin(agent).await;
    let seen = read(runner.run(&key, "hi")).await;
    assert_eq!(blocked(seen.error.as_ref().unwrap()), json!({"type": "email", "count": 1}));
    assert_eq!(model.requests().len(), 1);
    assert_eq!(
        responses(&stored_answers(&runner, &key).await),
        [json!({"result": "it is [REDACTED_EMAIL]"})]
    );
    assert!(!shown(&seen).contains("x.org"));
}

#[tokio::test]
async fn news_of_a_tool_are_redacted_however_they_are_cut() {
    let spec = ToolSpec::new("dig", "", json!({"type": "object"}));
    let dig = FunctionTool::raw(spec, |_, _| {
        let items = [
            Ok(ToolItem::Progress(json!("asking an"))),
            Ok(ToolItem::Progress(json!("na@x.or"))),
            Ok(ToolItem::Progress(json!({"by": "b@y.org"}))),
            Ok(ToolItem::Progress(json!("g and c"))),
            Ok(ToolItem::Done(json!("said anna@x.org").into())),
        ];
        Box::pin(async move { Ok(ToolOutput::Stream(Box::pin(futures::stream::iter(items)))) })
    });
    let model = ScriptedModel::new("m").call("dig", json!({})).text("done");
    let pii = Pii::new(PiiRule::email().tool_results(true));
    let (runner, key) = begin(LlmAgent::new("a").model(model).tool(dig).handler(pii)).await;
    let seen = read(runner.run(&key, "hi")).await;
    let news = responses(&seen.partial());
    let text: String = news.iter().filter_map(|news| news["result"].as_str()).collect();
    assert_eq!(text, "asking [REDACTED_EMAIL] and c");
    assert!(news.contains(&json!({"by": "[REDACTED_EMAIL]"})), "{news:?}");
    assert_eq!(seen.responses(), [json!({"result": "said [REDACTED_EMAIL]"})]);
}

/// Answers in the model's place.
struct Instead;

#[handler]
impl Handler for Instead {
    fn name(&self) -> &str {
        "instead"
    }

    fn wrap_model(&self, _call: ModelCall<'_>, _next: NextModel<'_>) -> Result<ChunkStream<'_>> {
        let answer = Chunk::Complete(Response::text("It is a@x.org"));
        Ok(Box::pin(futures::stream::iter([Ok(answer)])))
    }
}

#[tokio::test]
async fn an_answer_that_someone_else_gave_is_redacted_before_it_is_stored() {
    let agent = LlmAgent::new("a")
        .model(ScriptedModel::new("m"))
        .handler(Instead)
        .handler(Pii::new(output(PiiRule::email())));
    let (runner, key) = begin(agent).await;
    let seen = read(runner.run(&key, "hi")).await;
    assert_eq!(texts(&seen.events, false), "It is [REDACTED_EMAIL]");
    assert_eq!(texts(&stored_answers(&runner, &key).await, false), "It is [REDACTED_EMAIL]");
}

#[tokio::test]
async fn a_rule_that_finds_its_own_marker_acts_once_on_each_text() {
    let shouts = everywhere(PiiRule::pattern("shout", "[A-Z]{3,}").unwrap());
    for config in [RunConfig::default(), streaming()] {
        let model = ScriptedModel::new("m").recorded().call("look", json!({})).stream(["oh N", "OOO!"]);
        let pii = Pii::new(shouts.clone());
        let agent = LlmAgent::new("a").model(model.clone()).tool(looks_up(json!(1))).handler(pii);
        let (runner, key) = begin(agent).await;
        let seen = read(runner.run_with(&key, "YES", config)).await;
        assert_eq!(seen.texts(), [("a".to_owned(), "oh [REDACTED_SHOUT]!".to_owned())]);
        assert_eq!(said(&model.requests()[1])[0], "[REDACTED_SHOUT]");
    }
}

/// Drops an old message before each model call, as those do that keep a history short.
struct DropsFirst;

#[handler]
impl Handler for DropsFirst {
    fn name(&self) -> &str {
        "drops_first"
    }

    fn before_model(&self, turn: &mut ModelTurn<'_>) -> Result<Step> {
        let first = turn.history.get(0).map(|content| content.text()).unwrap_or_default();
        if turn.history.len() > 1 && ["a", "one", "b", "two"].contains(&first.as_str()) {
            turn.history.truncate_front(1);
        }
        Ok(Step::Continue)
    }
}

#[tokio::test]
async fn each_message_is_looked_at_once_though_others_move_it() {
    let looks = Arc::new(AtomicUsize::new(0));
    let rule = {
        let looks = looks.clone();
        PiiRule::function("word", move |text| {
            looks.fetch_add(1, Ordering::SeqCst);
            text.find("YES").map(|at| at..at + 3).into_iter().collect()
        })
    };
    for moves in [false, true] {
        let model = ScriptedModel::new("m").text("one").text("two");
        let model = (0..5).fold(model, |model, _| model.call("look", json!({}))).text("end");
        let agent = LlmAgent::new("a").model(model).tool(looks_up(json!(1)));
        let agent = if moves { agent.handler(DropsFirst) } else { agent };
        let (runner, key) = begin(agent.handler(Pii::new(rule.clone()))).await;
        for text in ["a", "b"] {
            read(runner.run(&key, text)).await.assert_finished();
        }
        looks.store(0, Ordering::SeqCst);
        read(runner.run(&key, "YES")).await.assert_finished();
        // What three runs began with, once in this run: its six model calls do not count.
        assert_eq!(looks.load(Ordering::SeqCst), if moves { 2 } else { 3 });
    }
}

#[tokio::test]
async fn an_interrupted_run_goes_on_without_what_was_redacted() {
    let delete = FunctionTool::new("delete", "", |_: Value| async { Ok(json!("gone")) })
        .confirm(umbel::Confirm::Always);
    let model = ScriptedModel::new("m")
        .recorded()
        .response(calls([call_with_id("c", "delete", json!({}))]))
        .text("done");
    let (runner, key) =
        begin(LlmAgent::new("a").model(model.clone()).tool(delete).handler(Pii::new(PiiRule::email()))).await;
    let seen = read(runner.run(&key, "delete a@x.org")).await;
    let umbel::Outcome::Interrupted { interrupts } = &seen.outcome else { panic!("{:?}", seen.outcome) };
    let yes = crate::support::answer(
        interrupts[0].id.as_str(),
        "adk_request_confirmation",
        json!({"confirmed": true}),
    );
    read(runner.run(&key, yes)).await.assert_finished();
    assert_eq!(said(&model.requests()[1])[0], "delete [REDACTED_EMAIL]");
}

#[tokio::test]
async fn a_handler_that_was_made_from_another_looks_for_itself() {
    let mails = Pii::new(PiiRule::email());
    let more = mails.clone().rule(PiiRule::ip()).named("more");
    let model = ScriptedModel::new("m").recorded().text("fine");
    let (runner, key) = begin(LlmAgent::new("a").model(model.clone()).handler(mails).handler(more)).await;
    read(runner.run(&key, "a@x.org at 10.0.0.7")).await.assert_finished();
    assert_eq!(said(&model.requests()[0]), ["[REDACTED_EMAIL] at [REDACTED_IP]"]);
}

#[test]
fn a_handler_has_the_hooks_that_its_rules_need() {
    let hooks = |rule: PiiRule| Pii::new(rule).hooks();
    assert_eq!(hooks(PiiRule::email()), Hooks::BEFORE_MODEL);
    assert_eq!(hooks(PiiRule::email().input(false)), Hooks::NONE);
    assert_eq!(Pii::new(PiiRule::email()).on_entry().hooks(), Hooks::BEFORE_MODEL | Hooks::ON_INPUT);
    let answers = Hooks::WRAP_MODEL | Hooks::AFTER_MODEL | Hooks::ON_OUTPUT;
    assert_eq!(hooks(output(PiiRule::email())), answers);
    assert_eq!(
        hooks(PiiRule::email().input(false).tool_results(true)),
        Hooks::BEFORE_MODEL | Hooks::WRAP_TOOL
    );
}

#[test]
fn a_handler_is_named_after_what_it_looks_for() {
    let pii = Pii::new(PiiRule::email()).rule(PiiRule::url());
    assert_eq!(pii.name(), "pii(email, url)");
    assert_eq!(pii.named("privacy").rule(PiiRule::ip()).name(), "privacy");
}
