//! Answers to questions that people were asked: forged, late, doubled, in part, of the wrong form, and for nothing.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use http::StatusCode;
use serde_json::{Value, json};
use umbel::{Answer, Confirm, FunctionTool, LlmAgent, Question, Runner};
use umbel_server::{AgentEndpoint, Server};

use crate::desk::{
    answers, ask, call, desk, end, kinds, of_kind, results, say, serve, talker, text, tool, user, with,
};
use crate::support::{Host, SseFrame, input};

/// An agent that asks before it sends a mail, and how often it has sent one.
fn careful(calls: usize) -> (LlmAgent, Arc<AtomicUsize>) {
    let sent = Arc::new(AtomicUsize::new(0));
    let count = sent.clone();
    let send = FunctionTool::new("send", "Sends", move |_: Value| {
        count.fetch_add(1, Ordering::Relaxed);
        async { Ok("sent") }
    });
    let model = answers(move |request| match (results(request).as_slice(), calls) {
        ([], 1) => call([("send", json!({"to": "ann"}))]),
        ([], _) => call([("send", json!({"to": "ann"})), ("send", json!({"to": "bob"}))]),
        (given, _) => say(&given.iter().map(|(_, value)| format!("{value} ")).collect::<String>()),
    });
    (LlmAgent::new("careful").model(model).tool(send.confirm(Confirm::Always)), sent)
}

/// The questions that a stream ended with.
pub(crate) fn asked(frames: &[SseFrame]) -> Vec<String> {
    let outcome = &end(frames)["outcome"];
    assert_eq!(outcome["type"], "interrupt", "{outcome}");
    outcome["interrupts"]
        .as_array()
        .unwrap()
        .iter()
        .map(|one| one["id"].as_str().unwrap().to_owned())
        .collect()
}

pub(crate) fn resume(thread: &str, run: &str, answers: &[(&str, &str, Value)]) -> Value {
    let answers: Vec<Value> = answers
        .iter()
        .map(|(id, status, payload)| match payload {
            Value::Null => json!({"interruptId": id, "status": status}),
            payload => json!({"interruptId": id, "status": status, "payload": payload}),
        })
        .collect();
    with(ask(thread, run, &[]), "resume", answers.into())
}

pub(crate) fn yes() -> Value {
    json!({"approved": true})
}

/// The one error of a run that could not begin.
async fn refused(host: &Host, input: &Value) -> (String, String) {
    let reply = host.post("/agent", input).await;
    assert_eq!(reply.status(), StatusCode::OK, "the protocol has it as the end of a run");
    let frames = reply.frames().await;
    assert_eq!(kinds(&frames), ["RUN_STARTED", "RUN_ERROR"]);
    let error = end(&frames);
    (error["code"].as_str().unwrap().to_owned(), error["message"].as_str().unwrap().to_owned())
}

#[tokio::test]
async fn an_answer_that_is_none_is_refused_and_the_question_stays_open() {
    let (agent, sent) = careful(2);
    let host = desk(agent).await;
    let questions = asked(&host.run(&input("t", "r", "mail them")).await);
    let (first, second) = (questions[0].as_str(), questions[1].as_str());
    let cases = [
        (
            "forged",
            resume("t", "r2", &[("forged", "resolved", yes())]),
            "UNKNOWN_INTERRUPT",
            "nobody asked question `forged` in this thread",
        ),
        (
            "forged beside real ones",
            resume(
                "t",
                "r2",
                &[(first, "resolved", yes()), (second, "resolved", yes()), ("x", "resolved", yes())],
            ),
            "UNKNOWN_INTERRUPT",
            "nobody asked question `x` in this thread",
        ),
        ("partial", resume("t", "r2", &[(first, "resolved", yes())]), "INTERRUPT_RESUME_INCOMPLETE", second),
        (
            "no decision",
            resume("t", "r2", &[(first, "resolved", json!({"note": 1})), (second, "resolved", yes())]),
            "INVALID_ANSWER",
            "the answer must say `approved: true` or `approved: false`",
        ),
        (
            "nothing",
            resume("t", "r2", &[(first, "resolved", Value::Null), (second, "resolved", yes())]),
            "INVALID_ANSWER",
            "the answer must say `approved: true` or `approved: false`",
        ),
        (
            "text",
            resume("t", "r2", &[(first, "resolved", json!("yes")), (second, "resolved", yes())]),
            "INVALID_ANSWER",
            "the answer must say `approved: true` or `approved: false`",
        ),
        (
            "a message instead",
            ask("t", "r2", &[user("m2", "never mind")]),
            "INTERRUPT_RESUME_REQUIRED",
            "the thread waits for 2 answers: send `resume` with all of them first",
        ),
        (
            "no answer, and a message",
            with(ask("t", "r2", &[user("m2", "never mind")]), "resume", json!([])),
            "INTERRUPT_RESUME_REQUIRED",
            "the thread waits for 2 answers: send `resume` with all of them first",
        ),
    ];
    let shown = host.get("/agent/threads/t").await.json().await["interrupts"].clone();
    let asks = |id: &str| {
        let of_id = shown.as_array().unwrap().iter().find(|one| one["id"] == id).unwrap();
        format!("`{id}` ({})", of_id["message"].as_str().unwrap())
    };
    for (name, input, code, message) in cases {
        let told = refused(&host, &input).await;
        assert_eq!(told.0, code, "{name}");
        assert!(told.1.contains(message), "{name}: {}", told.1);
        // Who forgot to answer is told what is asked, and what was answered is not named.
        assert_eq!(
            told.1.contains(&asks(second)),
            code.starts_with("INTERRUPT_RESUME"),
            "{name}: {}",
            told.1
        );
        assert_eq!(told.1.contains(&asks(first)), code == "INTERRUPT_RESUME_REQUIRED", "{name}: {}", told.1);
        assert_eq!(sent.load(Ordering::Relaxed), 0, "{name}");
        let thread = host.get("/agent/threads/t").await.json().await;
        let open: Vec<&Value> =
            thread["interrupts"].as_array().unwrap().iter().map(|one| &one["id"]).collect();
        assert_eq!(open, [first, second], "{name}");
        host.idle().await;
    }
    let frames =
        host.run(&resume("t", "r2", &[(second, "cancelled", Value::Null), (first, "resolved", yes())])).await;
    assert_eq!(
        (end(&frames)["outcome"]["type"].as_str(), sent.load(Ordering::Relaxed)),
        (Some("success"), 1)
    );
    assert_eq!(of_kind(&frames, "TOOL_CALL_START").len(), 0, "calls that were told are not told again");
    assert_eq!(of_kind(&frames, "TOOL_CALL_RESULT").len(), 2);
    assert!(!text(&frames).is_empty(), "the agent goes on in words");
}

#[tokio::test]
async fn an_answer_that_comes_twice_counts_once() {
    let (agent, sent) = careful(1);
    let host = desk(agent).await;
    let question = asked(&host.run(&input("t", "r", "mail ann")).await).remove(0);
    let doubled = resume("t", "r2", &[(&question, "resolved", yes()), (&question, "cancelled", Value::Null)]);
    let frames = host.run(&doubled).await;
    assert_eq!(
        (end(&frames)["outcome"]["type"].as_str(), sent.load(Ordering::Relaxed)),
        (Some("success"), 1),
        "the first form counts"
    );
    assert_eq!(host.run(&doubled).await, frames, "the same request looks at the same run");
    host.service.forget_frames();
    let late = host.run(&resume("t", "r3", &[(&question, "resolved", yes())])).await;
    assert_eq!(
        (end(&late)["outcome"]["type"].as_str(), text(&late).as_str()),
        (Some("success"), ""),
        "there is nothing left to do"
    );
    assert_eq!(sent.load(Ordering::Relaxed), 1);
}

#[tokio::test]
async fn two_answers_at_the_same_moment_make_one_call() {
    let (agent, sent) = careful(1);
    let host = desk(agent).await;
    let question = asked(&host.run(&input("t", "r", "mail ann")).await).remove(0);
    let (one, other) = (
        resume("t", "r2", &[(&question, "resolved", yes())]),
        resume("t", "r3", &[(&question, "resolved", yes())]),
    );
    let (one, other) = tokio::join!(host.post("/agent", &one), host.post("/agent", &other));
    for reply in [one, other] {
        assert_eq!(end(&reply.frames().await)["type"], "RUN_FINISHED");
    }
    assert_eq!(sent.load(Ordering::Relaxed), 1);
}

#[tokio::test]
async fn an_answer_for_a_thread_that_asked_nothing_is_refused() {
    let host = desk(talker("Hello.")).await;
    assert_eq!(refused(&host, &resume("new", "r", &[("q", "resolved", yes())])).await.0, "UNKNOWN_INTERRUPT");
    let thread = host.get("/agent/threads/new").await;
    assert_eq!(thread.status(), StatusCode::NOT_FOUND, "no thread is made for it");
    host.run(&input("t", "r1", "hello")).await;
    assert_eq!(refused(&host, &resume("t", "r2", &[("q", "resolved", yes())])).await.0, "UNKNOWN_INTERRUPT");
}

/// An agent whose tool asks for a number, for a while.
fn curious(question: impl Fn() -> Question + Send + Sync + 'static) -> LlmAgent {
    let ask = FunctionTool::with_context("ask", "Asks", move |cx, _: Value| {
        let answer = cx.interrupt(question());
        Box::pin(async move {
            let answer: Answer = answer?;
            Ok(json!({"said": answer.payload, "confirmed": answer.confirmed}))
        })
    });
    let model = answers(|request| match results(request).first() {
        None => call([("ask", json!({}))]),
        Some((_, value)) => say(&value.to_string()),
    });
    LlmAgent::new("curious").model(model).tool(ask)
}

#[tokio::test]
async fn an_answer_that_does_not_fit_the_schema_is_refused_and_can_be_given_again() {
    let schema =
        json!({"type": "object", "properties": {"count": {"type": "integer"}}, "required": ["count"]});
    let host = desk(curious(move || Question::input("How many?").schema(schema.clone()))).await;
    let frames = host.run(&input("t", "r", "go")).await;
    let question = asked(&frames).remove(0);
    assert!(end(&frames)["outcome"]["interrupts"][0]["responseSchema"].is_object());
    for payload in [json!({"count": "three"}), json!({}), json!("three")] {
        let frames = host
            .run(&resume("t", &format!("r-{payload}"), &[(&question, "resolved", payload.clone())]))
            .await;
        assert_eq!(end(&frames)["type"], "RUN_ERROR", "{payload}");
        assert_eq!(end(&frames)["code"], "INVALID_ANSWER", "{payload}: {}", end(&frames));
        host.idle().await;
    }
    let frames = host.run(&resume("t", "r2", &[(&question, "resolved", json!({"count": 3}))])).await;
    assert!(text(&frames).contains("\"count\":3"), "{}", text(&frames));
}

#[tokio::test]
async fn a_question_that_has_expired_can_only_be_cancelled() {
    let host = desk(curious(|| Question::input("Now?").expires_in(Duration::from_millis(1)))).await;
    let frames = host.run(&input("t", "r", "go")).await;
    let question = asked(&frames).remove(0);
    assert!(end(&frames)["outcome"]["interrupts"][0]["expiresAt"].is_string());
    tokio::time::sleep(Duration::from_millis(5)).await;
    let late = host.run(&resume("t", "r2", &[(&question, "resolved", json!("now"))])).await;
    assert_eq!(end(&late)["type"], "RUN_ERROR", "{:?}", kinds(&late));
    assert_eq!(end(&late)["code"], "INVALID_ANSWER", "{}", end(&late));
    host.idle().await;
    let cancelled = host.run(&resume("t", "r3", &[(&question, "cancelled", Value::Null)])).await;
    assert_eq!(end(&cancelled)["outcome"]["type"], "success");
    assert!(text(&cancelled).contains("\"confirmed\":false"), "{}", text(&cancelled));
}

#[tokio::test]
async fn an_answer_and_a_message_in_one_input_both_count() {
    let (agent, sent) = careful(1);
    let host = desk(agent).await;
    let first = host.run(&input("t", "r", "mail ann")).await;
    let question = asked(&first).remove(0);
    let call = of_kind(&first, "TOOL_CALL_START")[0]["toolCallId"].as_str().unwrap().to_owned();
    let both = with(
        ask("t", "r", &[tool("extra", &call, "yes"), user("m2", "and now?")]),
        "resume",
        json!([{"interruptId": question, "status": "resolved", "payload": {"approved": true}}]),
    );
    let frames = host.run(&both).await;
    assert_eq!((end(&frames)["type"].as_str(), sent.load(Ordering::Relaxed)), (Some("RUN_FINISHED"), 1));
    let thread = host.get("/agent/threads/t").await.json().await;
    let roles: Vec<&str> =
        thread["messages"].as_array().unwrap().iter().map(|one| one["role"].as_str().unwrap()).collect();
    assert_eq!(
        roles.iter().filter(|role| **role == "tool").count(),
        1 + usize::from(roles.len() > 6),
        "one result per call: {roles:?}"
    );
}

#[tokio::test]
async fn a_thread_that_waits_for_people_holds_no_slot_and_no_frames_once_these_are_forgotten() {
    let (agent, _) = careful(1);
    let limits = umbel_server::ServerLimits { runs: 1, ..Default::default() };
    let endpoint = AgentEndpoint::new(Runner::new("desk", agent).unwrap());
    let host = serve(Server::new().limits(limits).agent("/agent", endpoint)).await;
    let mut questions = Vec::new();
    for at in 0..20 {
        let thread = format!("t{at}");
        questions
            .push((thread.clone(), asked(&host.run(&input(&thread, &thread, "mail ann")).await).remove(0)));
        host.idle().await;
    }
    host.service.forget_frames();
    for (thread, question) in questions {
        let frames =
            host.run(&resume(&thread, &format!("again-{thread}"), &[(&question, "resolved", yes())])).await;
        assert_eq!(end(&frames)["outcome"]["type"], "success");
        host.idle().await;
    }
}

#[tokio::test]
async fn an_answered_question_is_not_asked_again_by_any_stream() {
    let (agent, _) = careful(1);
    let host = desk(agent).await;
    let question = asked(&host.run(&input("t", "r", "mail ann")).await).remove(0);
    let done = host.run(&resume("t", "r2", &[(&question, "resolved", yes())])).await;
    assert_eq!(end(&done)["outcome"]["type"], "success");
    let old = host.get("/agent/runs/r/events").await.frames().await;
    assert_eq!(end(&old)["outcome"]["type"], "success", "nobody can answer it any more");
    let thread = host.get("/agent/threads/t").await.json().await;
    assert_eq!(thread["interrupts"], json!([]));
}
