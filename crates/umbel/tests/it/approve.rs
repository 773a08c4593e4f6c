//! `Approve`: people decide about calls before they are made.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use umbel::backoff::Backoff;
use umbel::handlers::{ApprovalRule, Approve};
use umbel::layers::{Caching, Layered};
use umbel::{
    AgentTool, Answer, Chunk, Confirm, DecisionKind, ErrorKind, FunctionTool, Handler, LlmAgent, LoopAgent,
    NextTool, Outcome, Parallel, Question, Response, Runner, RunnerBuilder, ScriptedModel, ToolCall,
    ToolError, ToolResult, ToolRetry, handler,
};

use crate::desk::{Desk, WAYS, Way, shown};
use crate::handler_support::digger;
use crate::support::{Notes, Seen, call_with_id, calls, object};

/// A tool that notes its arguments and gives them back.
fn noting(name: &'static str, notes: &Notes) -> FunctionTool {
    let notes = notes.clone();
    FunctionTool::new(name, "", move |args: Value| {
        notes.add(format!("{name} {args}"));
        async move { Ok(args) }
    })
}

/// The same, which says what it gives.
fn giving(name: &'static str, value: Value) -> FunctionTool {
    FunctionTool::new(name, "", move |_: Value| {
        let value = value.clone();
        async move { Ok(value) }
    })
}

fn send(notes: &Notes) -> FunctionTool {
    noting("send", notes)
}

fn script(calls_made: impl IntoIterator<Item = (&'static str, &'static str, Value)>) -> ScriptedModel {
    let parts: Vec<_> = calls_made.into_iter().map(|(id, name, args)| call_with_id(id, name, args)).collect();
    ScriptedModel::new("m").recorded().response(calls(parts)).text("done")
}

fn runner(agent: LlmAgent) -> impl Fn() -> RunnerBuilder {
    move || Runner::builder("app", agent.clone())
}

async fn desk(way: Way, model: &ScriptedModel, tools: Vec<FunctionTool>, approve: Approve) -> Desk {
    let agent = LlmAgent::new("a").model(model.clone()).handler(approve);
    Desk::new(way, runner(tools.into_iter().fold(agent, LlmAgent::tool))).await
}

/// The results that the model saw last, by call.
fn results(model: &ScriptedModel) -> Vec<(String, Value)> {
    let request = model.requests().pop().expect("a request");
    let results: Vec<_> = request.contents.iter().flat_map(|content| content.responses()).cloned().collect();
    let value = |one: &umbel::FunctionResponse| Value::Object(one.response.clone().unwrap_or_default());
    results.iter().map(|one| (one.id.clone().unwrap().to_string(), value(one))).collect()
}

fn edited(args: Value) -> Answer {
    Answer::edit(object(args))
}

#[tokio::test]
async fn people_approve_edit_reject_and_respond() {
    for way in WAYS {
        let given = [
            (Answer::approve(), vec![r#"send {"to":"a"}"#], json!({"to": "a"})),
            (
                edited(json!({"to": "b"})),
                vec![r#"send {"to":"b"}"#],
                json!({"notice": umbel::text::call_edited("send", r#"{"to":"b"}"#).trim_end(), "result": {"to": "b"}}),
            ),
            (Answer::reject(), vec![], json!({"error": umbel::text::call_rejected("send", None)})),
            (
                Answer::reject_because("not now"),
                vec![],
                json!({"error": umbel::text::call_rejected("send", Some("not now"))}),
            ),
            (
                Answer::reject_because(" \n"),
                vec![],
                json!({"error": umbel::text::call_rejected("send", None)}),
            ),
            (Answer::respond("I did it"), vec![], json!({"result": "I did it"})),
            (Answer::respond(json!({"n": 1})), vec![], json!({"n": 1})),
        ];
        for (answer, ran, result) in given {
            let (notes, model) = (Notes::default(), script([("k1", "send", json!({"to": "a"}))]));
            let desk = desk(way, &model, vec![send(&notes)], Approve::new().tool("send")).await;
            let seen = desk.say("go").await;
            assert_eq!(seen.interrupts().len(), 1);
            assert!(notes.all().is_empty());
            let asked = desk.only().await;
            assert_eq!(
                (asked.reason.as_str(), asked.decisions.as_slice()),
                ("confirmation", &DecisionKind::ALL[..])
            );
            assert_eq!(shown(&asked), ("send".into(), json!({"to": "a"})));
            assert_eq!(asked.address.layer.as_deref(), Some("approve"));
            desk.answer([(&asked, answer)]).await.assert_finished();
            assert_eq!(notes.all(), ran, "{way:?}");
            assert_eq!(results(&model), [("k1".into(), result)], "{way:?}");
            assert!(desk.open().await.is_empty());
        }
    }
}

#[tokio::test]
async fn a_notice_stands_before_whatever_an_edited_call_gave() {
    let notice = umbel::text::call_edited("t", r#"{"x":2}"#);
    let fails = FunctionTool::new("t", "", |_: Value| async { Err::<Value, _>(ToolError::new("it broke")) });
    let own = FunctionTool::new("t", "", |_: Value| async { Ok(json!({"error": "no luck"})) });
    let given = [
        (giving("t", json!("words")), json!({"result": format!("{notice}words")})),
        (giving("t", json!(7)), json!({"notice": notice.trim_end(), "result": 7})),
        (
            giving("t", json!({"notice": "mine"})),
            json!({"notice": notice.trim_end(), "result": {"notice": "mine"}}),
        ),
        (fails, json!({"error": format!("{notice}it broke")})),
        (own, json!({"error": format!("{notice}no luck")})),
    ];
    for (tool, result) in given {
        let model = script([("k1", "t", json!({"x": 1}))]);
        let desk = desk(Way::Hot, &model, vec![tool], Approve::new().tool("t")).await;
        desk.say("go").await;
        desk.answer_only(edited(json!({"x": 2}))).await.assert_finished();
        assert_eq!(results(&model), [("k1".into(), result)]);
    }
}

#[tokio::test]
async fn a_streamed_result_of_an_edited_call_gets_its_notice_at_its_end() {
    let notice = umbel::text::call_edited("dig", r#"{"x":2}"#);
    let model = script([("k1", "dig", json!({"x": 1}))]);
    let desk = desk(Way::Other, &model, vec![digger()], Approve::new().tool("dig")).await;
    desk.say("go").await;
    let seen = desk.answer_only(edited(json!({"x": 2}))).await;
    assert_eq!(seen.partial().iter().filter(|event| event.responses().next().is_some()).count(), 2);
    let result = json!({"notice": notice.trim_end(), "result": {"x": 2}});
    assert_eq!(results(&model), [("k1".into(), result)]);
}

#[tokio::test]
async fn the_notice_can_be_left_out() {
    let (notes, model) = (Notes::default(), script([("k1", "send", json!({"to": "a"}))]));
    let approve = Approve::new().tool("send").without_edit_notice();
    let desk = desk(Way::Hot, &model, vec![send(&notes)], approve).await;
    desk.say("go").await;
    desk.answer_only(edited(json!({"to": "b"}))).await.assert_finished();
    assert_eq!(results(&model), [("k1".into(), json!({"to": "b"}))]);
}

#[tokio::test]
async fn a_rule_says_what_is_asked_when_and_for_how_long() {
    let (notes, model) = (Notes::default(), script([("k1", "send", json!({"to": "a"}))]));
    let rule = ApprovalRule::tool("send")
        .decisions([DecisionKind::Approve, DecisionKind::Reject])
        .message_fn(|call| format!("Write to {}?", call.args.as_ref().unwrap()["to"]))
        .expires_in(Duration::from_secs(60));
    let desk = desk(Way::Hot, &model, vec![send(&notes)], Approve::new().rule(rule)).await;
    desk.say("go").await;
    let asked = desk.only().await;
    assert_eq!(asked.message.as_deref(), Some("Write to \"a\"?"));
    assert_eq!(asked.decisions, [DecisionKind::Approve, DecisionKind::Reject]);
    assert!(asked.expires_at.is_some());
    let message = desk.refused([(&asked, edited(json!({"to": "b"})))]).await;
    assert!(message.contains("only these are possible"), "{message}");
    desk.answer_only(Answer::approve()).await.assert_finished();
    assert_eq!(notes.all(), [r#"send {"to":"a"}"#]);
}

#[tokio::test]
async fn rules_are_about_tools_arguments_or_any_call() {
    let all = || {
        script([
            ("k1", "send", json!({"to": "boss"})),
            ("k2", "send", json!({"to": "ann"})),
            ("k3", "read", json!({"secret": true})),
            ("k4", "read", json!({})),
        ])
    };
    let to_boss = || ApprovalRule::tool("send").when(|args| args["to"] == "boss").message("The boss?");
    let secret = || {
        let is_secret =
            |call: &umbel::FunctionCall| call.args.as_ref().is_some_and(|args| args.contains_key("secret"));
        ApprovalRule::any().when_call(is_secret)
    };
    let cases = [
        (Approve::new().rule(to_boss()), vec!["k1"]),
        (Approve::new().rule(secret()), vec!["k3"]),
        (Approve::new().rule(secret()).rule(to_boss()), vec!["k1", "k3"]),
        (Approve::new().rule(secret()).allow("read"), vec![]),
        (Approve::new().tool("read").allow("read"), vec!["k3", "k4"]),
        (Approve::new(), vec![]),
        (
            Approve::new().otherwise(ApprovalRule::any().when(|args| args.contains_key("to"))),
            vec!["k1", "k2"],
        ),
    ];
    for (approve, expected) in cases {
        let (notes, model) = (Notes::default(), all());
        let tools = vec![send(&notes), noting("read", &notes)];
        let shown = format!("{approve:?}");
        let desk = desk(Way::Hot, &model, tools, approve).await;
        desk.say("go").await;
        let asked: Vec<_> =
            desk.open().await.iter().map(|asked| asked.address.call.clone().unwrap()).collect();
        assert_eq!(asked, expected, "{shown}");
        assert_eq!(notes.all().len(), 4 - expected.len());
    }
}

#[tokio::test]
async fn every_call_asks_unless_it_is_allowed() {
    let all = || {
        script([
            ("k1", "send", json!({})),
            ("k2", "look", json!({})),
            ("k3", "safe", json!({})),
            ("k4", "nowhere", json!({})),
        ])
    };
    let cases = [
        (Approve::every_call(), vec!["k1", "k2", "k3"]),
        (Approve::every_call().allow("safe"), vec!["k1", "k2"]),
        (Approve::every_call().allow_read_only(), vec!["k1", "k3"]),
        (Approve::every_call().allow_read_only().tool("look"), vec!["k1", "k2", "k3"]),
        (Approve::every_call().allow("safe").allow_read_only().whole_batch(), vec!["k1"]),
    ];
    for (approve, expected) in cases {
        let (notes, model) = (Notes::default(), all());
        let tools = vec![send(&notes), noting("look", &notes).read_only(), noting("safe", &notes)];
        let desk = desk(Way::Hot, &model, tools, approve).await;
        desk.say("go").await;
        let asked: Vec<_> =
            desk.open().await.iter().map(|asked| asked.address.call.clone().unwrap()).collect();
        assert_eq!(asked, expected);
        desk.answer(desk.open().await.iter().map(|asked| (asked, Answer::approve()))).await.assert_finished();
        assert_eq!(notes.all().len(), 3);
        let unknown = results(&model).into_iter().find(|(id, _)| id == "k4").unwrap();
        assert!(unknown.1["error"].as_str().unwrap().contains("no tool named `nowhere`"));
    }
}

#[tokio::test]
async fn a_rule_by_which_nothing_can_be_decided_is_an_error_when_the_agent_is_built() {
    let nothing = || ApprovalRule::tool("send").decisions([]);
    for approve in [Approve::new().rule(nothing()), Approve::new().otherwise(nothing())] {
        let agent = || LlmAgent::new("a").model(ScriptedModel::new("m"));
        let error = Runner::new("app", agent().handler(approve.clone())).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Build, "{error}");
        let error = Runner::builder("app", agent()).handler(approve).build().unwrap_err();
        assert!(error.message().contains("lets people decide nothing"), "{error}");
    }
}

#[tokio::test]
async fn edits_are_checked_at_the_door() {
    #[derive(serde::Deserialize, schemars::JsonSchema)]
    struct Mail {
        #[expect(dead_code, reason = "for its schema")]
        to: String,
    }
    let tool = FunctionTool::new("send", "", |_: Mail| async { Ok("sent") });
    for way in WAYS {
        let model = script([("k1", "send", json!({"to": "a"}))]);
        let desk = desk(way, &model, vec![tool.clone()], Approve::new().tool("send")).await;
        desk.say("go").await;
        let asked = desk.only().await;
        let message = desk.refused([(&asked, edited(json!({"to": 7})))]).await;
        assert!(message.contains("do not fit `send`"), "{message}");
        let other = Answer { tool: Some("drop".into()), ..edited(json!({})) };
        let message = desk.refused([(&asked, other)]).await;
        assert!(message.contains("calls `drop` in the place of `send`"), "{message}");
        let message = desk.refused([(&asked, Answer::approve().digest("of something else"))]).await;
        assert!(message.contains("look at the question again"), "{message}");
        let digest = asked.digest.clone().unwrap();
        desk.answer([(&asked, edited(json!({"to": "b"})).digest(digest))]).await.assert_finished();
    }
}

/// Two that need a person, one that does not.
fn batch() -> ScriptedModel {
    script([
        ("k1", "send", json!({"to": "a"})),
        ("k2", "read", json!({"path": "x"})),
        ("k3", "send", json!({"to": "c"})),
    ])
}

#[tokio::test]
async fn call_by_call_what_needs_nobody_is_made_at_once_and_the_model_waits_for_all() {
    for way in WAYS {
        let (notes, model) = (Notes::default(), batch());
        let tools = vec![send(&notes), noting("read", &notes)];
        let desk = desk(way, &model, tools, Approve::new().tool("send")).await;
        desk.say("go").await;
        assert_eq!(notes.take(), [r#"read {"path":"x"}"#]);
        let open = desk.open().await;
        assert_eq!(open.len(), 2);
        let seen = desk.answer([(&open[1], Answer::reject())]).await;
        assert_eq!(seen.interrupts(), [open[0].clone()], "{way:?}");
        assert_eq!((notes.take(), model.requests().len()), (vec![], 1));
        desk.answer([(&open[0], Answer::approve())]).await.assert_finished();
        assert_eq!((notes.take(), model.requests().len()), (vec![r#"send {"to":"a"}"#.to_owned()], 2));
        let ids: Vec<_> = results(&model).into_iter().map(|(id, _)| id).collect();
        assert_eq!(ids.len(), 3, "{way:?}: {ids:?}");
    }
}

#[tokio::test]
async fn of_a_whole_batch_nothing_is_made_before_all_is_answered() {
    for way in WAYS {
        let (notes, model) = (Notes::default(), batch());
        let tools = vec![send(&notes), noting("read", &notes)];
        let desk = desk(way, &model, tools, Approve::new().tool("send").whole_batch()).await;
        desk.say("go").await;
        assert!(notes.all().is_empty(), "{way:?}");
        let open = desk.open().await;
        assert_eq!(open.len(), 2);
        assert!(open.iter().all(|asked| asked.together && asked.any_tool));
        let message = desk.refused([(&open[0], Answer::approve())]).await;
        assert!(message.contains("2 questions are to be answered together"), "{message}");
        let asks = |n: usize| format!("`{}` ({})", open[n].id, open[n].message.as_deref().unwrap());
        assert!(message.contains(&asks(1)) && !message.contains(&asks(0)), "{message}");
        let seen = desk.answer([(&open[0], Answer::approve()), (&open[1], Answer::reject())]).await;
        let stored = seen.assert_finished().whole();
        let stored: Vec<_> = stored.iter().flat_map(|event| event.responses()).cloned().collect();
        let mut ran = notes.all();
        ran.sort();
        assert_eq!(ran, [r#"read {"path":"x"}"#, r#"send {"to":"a"}"#], "{way:?}");
        assert_eq!(model.requests().len(), 2);
        assert_eq!(results(&model).len(), 3);
        let ids: Vec<_> = stored.iter().map(|result| result.id.clone().unwrap()).collect();
        assert_eq!(ids, ["k3", "k1", "k2"], "{way:?}: what was given comes before what was made");
    }
}

#[tokio::test]
async fn another_tool_that_people_choose_is_called_also_when_it_asks_itself() {
    for way in WAYS {
        let (notes, model) = (Notes::default(), batch());
        let noted = notes.clone();
        let drop = FunctionTool::with_context("drop", "", move |cx, args: Value| {
            let notes = noted.clone();
            Box::pin(async move {
                cx.interrupt("Really?")?;
                notes.add(format!("drop {args}"));
                Ok(json!("dropped"))
            })
        });
        let tools = vec![send(&notes), noting("read", &notes), drop];
        let desk = desk(way, &model, tools, Approve::new().tool("send").whole_batch()).await;
        desk.say("go").await;
        let open = desk.open().await;
        let other = Answer { tool: Some("drop".into()), ..edited(json!({"path": "y"})) };
        desk.answer([(&open[0], other), (&open[1], Answer::reject())]).await;
        let really = desk.only().await;
        assert_eq!(shown(&really), ("drop".into(), json!({"path": "y"})), "{way:?}");
        assert_eq!(notes.take(), [r#"read {"path":"x"}"#], "{way:?}");
        desk.answer([(&really, Answer::approve())]).await.assert_finished();
        assert_eq!(notes.take(), [r#"drop {"path":"y"}"#], "{way:?}");
        let notice = umbel::text::call_edited("drop", r#"{"path":"y"}"#);
        let first = results(&model).into_iter().find(|(id, _)| id == "k1").unwrap();
        assert_eq!(first.1, json!({"result": format!("{notice}dropped")}), "{way:?}");
    }
}

#[tokio::test]
async fn a_call_that_waits_for_others_is_made_when_nobody_is_asked_after_all() {
    for way in WAYS {
        // What stands further out answers the call that people would have been asked about.
        let (notes, model) = (Notes::default(), batch());
        let agent = LlmAgent::new("a")
            .model(model.clone())
            .tool(send(&notes))
            .tool(noting("read", &notes))
            .handler(Answers("send"))
            .handler(Approve::new().tool("send").whole_batch());
        let desk = Desk::new(way, runner(agent)).await;
        desk.say("go").await.assert_finished();
        assert_eq!(notes.all(), [r#"read {"path":"x"}"#], "{way:?}");
        // And so it is when another handler further out rejects it.
        let (notes, model) = (Notes::default(), batch());
        let agent = LlmAgent::new("a")
            .model(model.clone())
            .tool(send(&notes))
            .tool(noting("read", &notes))
            .handler(Approve::new().tool("send").named("outer"))
            .handler(Approve::new().tool("send").whole_batch());
        let desk = Desk::new(way, runner(agent)).await;
        desk.say("go").await;
        let open = desk.open().await;
        assert_eq!(open.len(), 2, "{way:?}: {open:?}");
        desk.answer([(&open[0], Answer::reject())]).await;
        assert_eq!(notes.all(), Vec::<String>::new(), "{way:?}: one of the batch may be asked about still");
        desk.answer([(&open[1], Answer::reject())]).await.assert_finished();
        assert_eq!(notes.all(), [r#"read {"path":"x"}"#], "{way:?}");
        assert_eq!(results(&model).len(), 3);
    }
}

/// Answers calls of one tool.
struct Answers(&'static str);

#[handler]
impl Handler for Answers {
    fn name(&self) -> &str {
        "answers"
    }

    async fn wrap_tool(&self, call: ToolCall<'_>, next: NextTool<'_>) -> ToolResult {
        if call.name() == self.0 {
            return Ok(json!("known already").into());
        }
        next.call(call).await
    }
}

#[tokio::test]
async fn an_approval_goes_around_a_tool_that_asks_and_needs_a_confirmation() {
    for way in WAYS {
        let notes = Notes::default();
        let noted = notes.clone();
        let pay = FunctionTool::with_context("pay", "", move |cx, args: Value| {
            let notes = noted.clone();
            Box::pin(async move {
                let from = cx.interrupt(Question::input("From where?"))?;
                notes.add(format!("pay {args} {:?}", from.payload));
                Ok(json!("paid"))
            })
        });
        let large = Confirm::When(Arc::new(|args| args["amount"].as_u64() > Some(100)));
        let model = script([("k1", "pay", json!({"amount": 5}))]);
        let desk = desk(way, &model, vec![pay.confirm(large)], Approve::new().tool("pay")).await;
        desk.say("go").await;
        // The edit makes it large, so the tool's own gate asks, about what it is now.
        desk.answer_only(edited(json!({"amount": 500}))).await;
        let gate = desk.only().await;
        assert_eq!(gate.address.layer.as_deref(), Some("_confirm"));
        assert_eq!(shown(&gate), ("pay".into(), json!({"amount": 500})), "{way:?}");
        desk.answer([(&gate, edited(json!({"amount": 400})))]).await;
        let own = desk.only().await;
        assert_eq!((own.address.layer.clone(), own.message.as_deref()), (None, Some("From where?")));
        assert_eq!(shown(&own), ("pay".into(), json!({"amount": 400})), "{way:?}");
        desk.answer([(&own, Answer::input("savings"))]).await.assert_finished();
        assert_eq!(notes.all(), [r#"pay {"amount":400} Some(String("savings"))"#], "{way:?}");
    }
}

#[tokio::test]
async fn two_approvals_of_one_name_both_ask_and_the_inner_one_about_what_the_outer_one_left() {
    for way in WAYS {
        let (notes, model) = (Notes::default(), script([("k1", "send", json!({"to": "a"}))]));
        let agent = LlmAgent::new("a")
            .model(model.clone())
            .tool(send(&notes).layered(Approve::new().tool("send")))
            .handler(Approve::new().tool("send"));
        let make = move || Runner::builder("app", agent.clone()).handler(Approve::new().tool("send"));
        let desk = Desk::new(way, make).await;
        desk.say("go").await;
        let mut places = Vec::new();
        for to in ["b", "c", "d"] {
            let asked = desk.only().await;
            places.push((asked.address.layer.clone().unwrap().to_string(), shown(&asked).1["to"].clone()));
            desk.answer([(&asked, edited(json!({"to": to})))]).await;
        }
        assert_eq!(notes.all(), [r#"send {"to":"d"}"#], "{way:?}");
        let shown: Vec<_> = places.iter().map(|(_, to)| to.clone()).collect();
        assert_eq!(shown, [json!("a"), json!("b"), json!("c")], "{way:?}");
        let mut names: Vec<_> = places.into_iter().map(|(name, _)| name).collect();
        names.dedup();
        assert_eq!(names.len(), 3, "{way:?}: {names:?}");
        assert_eq!(model.requests().len(), 2);
    }
}

/// Adds how often it was called to the arguments.
struct Counts(Notes);

#[handler]
impl Handler for Counts {
    fn name(&self) -> &str {
        "counts"
    }

    async fn wrap_tool(&self, call: ToolCall<'_>, next: NextTool<'_>) -> ToolResult {
        self.0.add("call");
        let mut args = (*call.args).clone();
        args.insert("n".to_owned(), self.0.all().len().into());
        next.call(call.with_args(args)).await
    }
}

#[tokio::test]
async fn an_approval_does_not_hold_for_other_arguments() {
    for way in WAYS {
        let (notes, model) = (Notes::default(), script([("k1", "send", json!({}))]));
        let counter = Notes::default();
        let (noted, asked_model, count) = (notes.clone(), model.clone(), counter.clone());
        let make = move || {
            let agent = LlmAgent::new("a")
                .model(asked_model.clone())
                .tool(send(&noted))
                .handler(Counts(count.clone()))
                .handler(Approve::new().tool("send"));
            Runner::builder("app", agent)
        };
        let desk = Desk::new(way, make).await;
        desk.say("go").await;
        let first = desk.only().await;
        assert_eq!(shown(&first).1, json!({"n": 1}));
        desk.answer([(&first, Answer::approve())]).await.interrupts();
        assert!(notes.all().is_empty(), "{way:?}: it was approved with other arguments");
        let second = desk.only().await;
        assert_eq!(shown(&second).1, json!({"n": 2}), "{way:?}");
        assert_ne!(first.digest, second.digest);
        desk.answer([(&second, Answer::reject())]).await.interrupts();
    }
}

#[tokio::test]
async fn a_later_call_of_the_same_id_asks_again() {
    for way in WAYS {
        for arguments in [json!({"to": "a"}), json!({"to": "z"})] {
            let notes = Notes::default();
            let again = calls([call_with_id("k1", "send", arguments)]);
            let model = ScriptedModel::new("m")
                .response(calls([call_with_id("k1", "send", json!({"to": "a"}))]))
                .response(again)
                .text("done");
            let desk = desk(way, &model, vec![send(&notes)], Approve::new().tool("send")).await;
            desk.say("go").await;
            desk.answer_only(Answer::approve()).await;
            assert_eq!(notes.take(), [r#"send {"to":"a"}"#]);
            let again = desk.only().await;
            desk.answer([(&again, Answer::reject())]).await.assert_finished();
            assert_eq!(notes.take(), Vec::<String>::new(), "{way:?}");
        }
    }
}

/// A tool that fails once.
fn shaky(notes: &Notes) -> FunctionTool {
    let notes = notes.clone();
    FunctionTool::new("send", "", move |_: Value| {
        notes.add("tried");
        let failed = notes.all().len() % 2 == 1;
        async move { if failed { Err(ToolError::new("not yet")) } else { Ok("sent") } }
    })
    .read_only()
}

#[tokio::test]
async fn one_approval_holds_for_all_tries_of_a_call() {
    let retry = || ToolRetry::new().backoff(Backoff::new().initial(Duration::ZERO));
    for way in WAYS {
        for outside in [true, false] {
            let (notes, model) = (Notes::default(), script([("k1", "send", json!({}))]));
            let agent = LlmAgent::new("a").model(model.clone()).tool(shaky(&notes));
            let agent = match outside {
                true => agent.handler(retry()).handler(Approve::new().tool("send")),
                false => agent.handler(Approve::new().tool("send")).handler(retry()),
            };
            let desk = Desk::new(way, runner(agent)).await;
            desk.say("go").await;
            desk.answer_only(Answer::approve()).await.assert_finished();
            assert_eq!(notes.all().len(), 2, "{way:?}");
            assert_eq!(results(&model), [("k1".into(), json!({"result": "sent"}))], "{way:?} {outside}");
        }
    }
}

#[tokio::test]
async fn a_cache_outside_answers_what_was_approved_and_one_inside_asks_each_time() {
    for outside in [true, false] {
        let notes = Notes::default();
        let call = |id| calls([call_with_id(id, "send", json!({"to": "a"}))]);
        let model = ScriptedModel::new("m").recorded().response(call("k1")).response(call("k2")).text("done");
        let agent = LlmAgent::new("a").model(model.clone()).tool(send(&notes).read_only());
        let agent = match outside {
            true => agent.handler(Caching::new()).handler(Approve::new().tool("send")),
            false => agent.handler(Approve::new().tool("send")).handler(Caching::new()),
        };
        let desk = Desk::new(Way::Hot, runner(agent)).await;
        desk.say("go").await;
        let seen = desk.answer_only(Answer::approve()).await;
        assert_eq!(seen.outcome == Outcome::Finished, outside, "{seen:?}");
        if !outside {
            desk.answer_only(Answer::approve()).await.assert_finished();
        }
        assert_eq!(notes.all().len(), 1, "the cache answers the second call");
        assert_eq!(results(&model).len(), 2);
    }
}

#[tokio::test]
async fn personal_data_is_redacted_in_results_of_approved_calls_wherever_the_layer_stands() {
    use umbel::handlers::pii::{Pii, PiiRule};
    for outside in [true, false] {
        let model = script([("k1", "find", json!({}))]);
        let tool = giving("find", json!("ann@example.com"));
        let pii = Pii::new(PiiRule::email().tool_results(true));
        let agent = LlmAgent::new("a").model(model.clone()).tool(tool);
        let agent = match outside {
            true => agent.handler(pii).handler(Approve::new().tool("find")),
            false => agent.handler(Approve::new().tool("find")).handler(pii),
        };
        let desk = Desk::new(Way::Cold, runner(agent)).await;
        desk.say("go").await;
        desk.answer_only(edited(json!({"x": 1}))).await.assert_finished();
        let given = results(&model)[0].1["result"].as_str().unwrap().to_owned();
        assert!(given.contains("REDACTED") && !given.contains("ann@"), "{given}");
        assert!(given.contains(r#"{"x":1}"#), "{given}");
    }
}

#[tokio::test]
async fn a_handler_of_the_runner_asks_about_calls_of_agents_that_are_called_at_any_depth() {
    for way in WAYS {
        let notes = Notes::default();
        let inner = ScriptedModel::new("i").response(calls([call_with_id("k1", "send", json!({"to": "a"}))]));
        let inner = inner.text("sent it");
        let noted = notes.clone();
        let make = move || {
            let worker = LlmAgent::new("worker").model(inner.clone()).tool(send(&noted));
            let middle = LlmAgent::new("middle").model(asker("worker")).tool(AgentTool::new(worker));
            let boss = LlmAgent::new("boss").model(asker("middle")).tool(AgentTool::new(middle));
            let pair = Parallel::new("pair").agent(boss).agent(LlmAgent::new("other").model(fine()));
            let rounds = LoopAgent::new("loop").agent(pair).max_iterations(1);
            let approve = Approve::every_call().allow("worker").allow("middle");
            Runner::builder("app", rounds).handler(approve)
        };
        let desk = Desk::new(way, make).await;
        desk.say("go").await;
        let asked = desk.only().await;
        assert_eq!(asked.address.agent, "boss");
        let innermost = asked.address.inner.as_ref().unwrap().inner.as_ref().unwrap();
        assert_eq!((innermost.agent.as_str(), innermost.layer.as_deref()), ("worker", Some("approve")));
        desk.refused([(&asked, Answer { tool: Some("drop".into()), ..edited(json!({})) })]).await;
        desk.answer([(&asked, edited(json!({"to": "b"})))]).await.assert_finished();
        assert_eq!(notes.all(), [r#"send {"to":"b"}"#], "{way:?}");
    }
}

/// Calls an agent, and is done when that has answered.
fn asker(agent: &'static str) -> ScriptedModel {
    ScriptedModel::from_fn(agent, move |request| {
        let done = request.contents.last().is_some_and(|content| content.has_responses());
        let call = || calls([call_with_id("c", agent, json!({"request": "go"}))]);
        vec![Ok(Chunk::Complete(if done { Response::text("done") } else { call() }))]
    })
    .recorded()
}

fn fine() -> ScriptedModel {
    crate::support::fine()
}

#[tokio::test]
async fn whole_batches_of_agents_that_work_at_once_are_answered_one_by_one() {
    for way in WAYS {
        let notes = Notes::default();
        let models = [batch(), batch()];
        let (noted, scripts) = (notes.clone(), models.clone());
        let make = move || {
            let agent = |name: &str, model: &ScriptedModel| {
                let agent = LlmAgent::new(name).model(model.clone()).tool(send(&noted));
                agent.tool(noting("read", &noted)).handler(Approve::new().tool("send").whole_batch())
            };
            let pair =
                Parallel::new("pair").agent(agent("one", &scripts[0])).agent(agent("two", &scripts[1]));
            Runner::builder("app", pair)
        };
        let desk = Desk::new(way, make).await;
        desk.say("go").await;
        let open = desk.open().await;
        assert_eq!(open.len(), 4);
        let of = |agent: &str| open.iter().filter(|asked| asked.address.agent == agent).collect::<Vec<_>>();
        let seen = desk.answer(of("two").into_iter().map(|asked| (asked, Answer::approve()))).await;
        assert_eq!(seen.interrupts().len(), 2, "{way:?}: {seen:?}");
        assert_eq!(notes.take().len(), 3, "{way:?}");
        let seen: Seen = desk.answer(of("one").into_iter().map(|asked| (asked, Answer::reject()))).await;
        seen.assert_finished();
        assert_eq!(notes.take(), [r#"read {"path":"x"}"#], "{way:?}");
        assert_eq!(models.map(|model| model.requests().len()), [2, 2], "{way:?}");
    }
}

#[tokio::test]
async fn what_was_said_counts_though_the_rule_would_not_ask_any_more() {
    for way in WAYS {
        let (notes, model) = (Notes::default(), script([("k1", "send", json!({}))]));
        let judged = Notes::default();
        let judge = judged.clone();
        let rule = ApprovalRule::tool("send").when(move |_| {
            judge.add("judged");
            judge.all().len() == 1
        });
        let desk = desk(way, &model, vec![send(&notes)], Approve::new().rule(rule)).await;
        desk.say("go").await;
        desk.answer_only(Answer::reject()).await.assert_finished();
        assert!(notes.all().is_empty(), "{way:?}: it was rejected");
    }
}

#[tokio::test]
async fn each_round_of_a_loop_asks_about_its_own_call() {
    for way in WAYS {
        let notes = Notes::default();
        let call = || calls([call_with_id("k1", "send", json!({"to": "a"}))]);
        let model =
            ScriptedModel::new("m").recorded().response(call()).text("one").response(call()).text("two");
        let (noted, script) = (notes.clone(), model.clone());
        let make = move || {
            let agent = LlmAgent::new("a").model(script.clone()).tool(send(&noted));
            let agent = agent.handler(Approve::new().tool("send"));
            Runner::builder("app", LoopAgent::new("loop").agent(agent).max_iterations(2))
        };
        let desk = Desk::new(way, make).await;
        desk.say("go").await;
        desk.answer_only(Answer::approve()).await.interrupts();
        let seen = desk.answer_only(Answer::reject()).await;
        assert_eq!(seen.assert_finished().texts(), [("a".into(), "two".into())], "{way:?}");
        assert_eq!((notes.all().len(), model.requests().len()), (1, 4), "{way:?}");
    }
}

#[tokio::test]
async fn a_batch_inside_a_called_agent_is_answered_together() {
    for way in WAYS {
        let (notes, inner) = (Notes::default(), batch());
        let (noted, script) = (notes.clone(), inner.clone());
        let make = move || {
            let worker = LlmAgent::new("worker").model(script.clone()).tool(send(&noted));
            let worker =
                worker.tool(noting("read", &noted)).handler(Approve::new().tool("send").whole_batch());
            Runner::builder("app", LlmAgent::new("boss").model(asker("worker")).tool(AgentTool::new(worker)))
        };
        let desk = Desk::new(way, make).await;
        desk.say("go").await;
        assert!(notes.all().is_empty());
        let open = desk.open().await;
        assert_eq!(open.len(), 2, "{way:?}");
        desk.refused([(&open[0], Answer::approve())]).await;
        let other = Answer { tool: Some("nowhere".into()), ..edited(json!({})) };
        let message = desk.refused([(&open[0], other), (&open[1], Answer::approve())]).await;
        assert!(message.contains("there is no tool `nowhere`"), "{message}");
        desk.answer(open.iter().map(|asked| (asked, Answer::approve()))).await.assert_finished();
        assert_eq!((notes.all().len(), inner.requests().len()), (3, 2), "{way:?}");
    }
}

umbel::layer_contract!(approving_another_tool: Approve::new().tool("another"));
umbel::layer_contract!(approving_what_is_allowed: Approve::every_call().allow("probe").whole_batch());
