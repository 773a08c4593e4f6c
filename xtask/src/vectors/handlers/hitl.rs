//! People who decide about calls.

use futures::StreamExt;
use serde_json::{Value, json};
use umbel::handlers::{ApprovalRule, Approve};
use umbel::interrupt::REQUEST_CONFIRMATION;
use umbel::{
    Answer, BoxError, CountingIds, DecisionKind, Error, ErrorKind, EventFilter, Interrupt, LlmAgent, Object,
    RunConfig, RunStream, Runner, SessionKey, ToolErrors, Versions, text as words,
};

use super::message::{of_content, of_events, settle};
use super::play::built;
use super::scene::{Scene, SceneModel};
use crate::vectors::case::{Case, Checked};
use crate::vectors::script::{list, object, text};
use crate::vectors::tokens::Tokens;

/// Checks a case with and without previews, and each with sessions that are kept at hand and that are read anew.
pub(in crate::vectors) async fn check(case: &Case) -> Result<Checked, BoxError> {
    for (streaming, hot) in [(false, true), (false, false), (true, true)] {
        let checked = once(case, streaming, hot).await?;
        if checked.differs() {
            return Ok(checked);
        }
    }
    once(case, true, false).await
}

async fn once(case: &Case, streaming: bool, hot: bool) -> Result<Checked, BoxError> {
    let per_call = text(&case.input, "mode") == Some("per_call");
    let scene = Scene::new(&case.input);
    let model = SceneModel::new("main", list(&case.input, "model"), &scene);
    let agent = scene.agent(&case.input, model)?.handler(handler(&case.input, per_call)?);
    let Some(talk) = built(Talk::new(agent, streaming, hot, per_call).await)? else {
        return Ok(Checked::refused(case));
    };
    let mut actual = talk.all(list(&case.input, "answers")).await?;
    let (seen, mut expected) = (scene.seen(), case.expect.clone());
    let mut ran = seen.ran();
    let mut saw: Value = match seen.asked.last() {
        Some((_, request, _)) if text(&expected, "outcome") == Some("ok") => {
            request.contents.iter().skip(1).flat_map(|content| of_content(content)).collect()
        }
        _ => Value::Null,
    };
    // What the model was sent last is what the vector says that the thread holds, but for its last word.
    let mut wanted = expected.get("messages").cloned().unwrap_or_default();
    match wanted.as_array_mut().filter(|_| saw.is_array()) {
        Some(messages) => _ = messages.pop(),
        None => wanted = Value::Null,
    }
    settle(&mut wanted, &mut saw);
    // Calls of one turn are made at once; answers that come one by one stand so in the log.
    for side in [Some(&mut ran), expected.get_mut("ran").and_then(Value::as_array_mut)] {
        side.into_iter().for_each(|ran| ran.sort_by_key(ToString::to_string));
    }
    if let (true, Some(wanted), Some(got)) =
        (per_call, expected.get_mut("messages"), actual.get_mut("messages"))
    {
        settle(wanted, got);
    }
    if let (Some(expected), Some(actual)) = (expected.as_object_mut(), actual.as_object_mut()) {
        expected.insert("model_saw".to_owned(), wanted);
        actual.insert("model_saw".to_owned(), saw);
        actual.insert("ran".to_owned(), ran.into());
        actual.insert("model_calls".to_owned(), seen.asked.len().into());
    }
    Ok(Checked::Compare { expected, actual, tokens: Tokens::default() })
}

fn handler(input: &Value, per_call: bool) -> Result<Approve, BoxError> {
    let mut approve = if per_call { Approve::new() } else { Approve::new().whole_batch() };
    if input.get("edit_notice").is_some_and(Value::is_null) {
        approve = approve.without_edit_notice();
    }
    for (tool, how) in object(input, "interrupt_on") {
        if how == Value::Bool(false) {
            continue;
        }
        let mut rule = ApprovalRule::tool(tool);
        if let Some(allowed) = how.get("allowed") {
            let allowed: Vec<DecisionKind> = serde_json::from_value(allowed.clone())?;
            rule = rule.decisions(allowed);
        }
        if let Some(description) = text(&how, "description") {
            rule = rule.message(description);
        }
        if let Some(when) = how.get("when").cloned() {
            let arg = text(&when, "arg").unwrap_or_default().to_owned();
            rule = rule.when(move |args| args.get(&arg) == when.get("value"));
        }
        approve = approve.rule(rule);
    }
    Ok(approve)
}

/// A conversation with someone who decides.
struct Talk {
    runner: Runner,
    key: SessionKey,
    per_call: bool,
}

impl Talk {
    async fn new(agent: LlmAgent, streaming: bool, hot: bool, per_call: bool) -> umbel::Result<Self> {
        let config = RunConfig { streaming, tool_errors: ToolErrors::Fail, ..RunConfig::default() };
        let builder = Runner::builder("app", agent).ids(CountingIds::default()).config(config);
        let runner = builder.hot_sessions(usize::from(hot)).build()?;
        let key = runner.create_session_with("user", "t1", Object::new()).await?.key;
        Ok(Self { runner, key, per_call })
    }

    /// All of it: the message, and answers as long as there are some.
    async fn all(&self, answers: &[Value]) -> Result<Value, BoxError> {
        let (mut pauses, mut errors) = (Vec::new(), Vec::new());
        let mut error = read(self.runner.run(&self.key, "go")).await;
        let mut answers = answers.iter().enumerate();
        let outcome = loop {
            if let Some(error) = error.as_ref().filter(|error| error.kind() != ErrorKind::InvalidConfirmation)
            {
                return Err(format!("the run failed: {error}").into());
            }
            let open = self.runner.open_questions(&self.key).await?;
            let answer = answers.next();
            if answer.is_none() && error.is_some() {
                break "error";
            }
            if open.is_empty() {
                break "ok";
            }
            pauses.push(json!({"requests": self.requests(&open)}));
            let Some((index, answer)) = answer else { break "paused" };
            let given = self.given(&open, answer)?;
            let before = self.length().await?;
            let given = given.iter().map(|(asked, answer)| (asked, answer.clone()));
            error = read(self.runner.resume(&self.key, given)).await;
            if let Some(error) = &error {
                if self.length().await? != before || self.runner.open_questions(&self.key).await? != open {
                    return Err(format!("an answer was refused and changed something: {error}").into());
                }
                errors.push(json!({"after_answers": index + 1, "kind": self.kind(error, &open, answer)}));
            }
        };
        let messages = self.messages().await?;
        Ok(json!({"pauses": pauses, "errors": errors, "outcome": outcome, "messages": messages}))
    }

    /// How much is in the log.
    async fn length(&self) -> Result<usize, BoxError> {
        let news = self.runner.sessions().news(&self.key, Versions::default()).await?;
        Ok(news.ok_or("the session is gone")?.entries.len())
    }

    /// What people are shown.
    fn requests(&self, open: &[Interrupt]) -> Vec<Value> {
        let request = |asked: &Interrupt| {
            let call = asked.call.clone().unwrap_or_else(|| umbel::FunctionCall::new("", Object::new()));
            let args = call.args.unwrap_or_default();
            let mut request = json!({"name": call.name, "args": args, "description": asked.message});
            if let Some(request) = request.as_object_mut() {
                if self.per_call {
                    request.insert("call_id".to_owned(), json!(call.id));
                } else {
                    request.insert("allowed".to_owned(), json!(asked.decisions));
                }
            }
            request
        };
        open.iter().map(request).collect()
    }

    /// The answers of a vector, each to the question that it is about. One too many is an answer to nothing.
    fn given(&self, open: &[Interrupt], answer: &Value) -> Result<Vec<(Interrupt, Answer)>, BoxError> {
        if let Some(by_call) = answer.as_object() {
            let of_call = |id: &str| {
                let about = |asked: &&Interrupt| {
                    asked.call.as_ref().and_then(|call| call.id.as_ref()).is_some_and(|call| call == id)
                };
                open.iter().find(about).cloned().ok_or_else(|| format!("nothing is asked about call {id}"))
            };
            return by_call.iter().map(|(id, answer)| Ok((of_call(id)?, decision(answer)?))).collect();
        }
        let first = open.first().ok_or("nothing is asked")?;
        let decisions = answer.as_array().map(Vec::as_slice).unwrap_or_default();
        let pair = |(index, answer): (usize, &Value)| {
            let extra = || Interrupt { id: format!("extra-{index}").as_str().into(), ..first.clone() };
            Ok((open.get(index).cloned().unwrap_or_else(extra), decision(answer)?))
        };
        decisions.iter().enumerate().map(pair).collect()
    }

    /// Why an answer was refused, as vectors write it.
    fn kind(&self, error: &Error, open: &[Interrupt], answer: &Value) -> String {
        if self.per_call {
            return "invalid_answer".to_owned();
        }
        let (got, want) = (answer.as_array().map_or(0, Vec::len), open.len());
        let message = error.message();
        let says = |part: &str| message.contains(part);
        if says("only these are possible") {
            "decision_not_allowed".to_owned()
        } else if says("there is no tool") {
            "unknown_tool".to_owned()
        } else if (got > want && says("nobody asked question"))
            || (got < want && says(&format!("{want} questions are to be answered together, and {got} of")))
        {
            format!("decision_count got={got} want={want}")
        } else {
            message.to_owned()
        }
    }

    /// What the session holds of the conversation: without questions, answers to them, and that calls wait.
    async fn messages(&self) -> Result<Vec<Value>, BoxError> {
        let session = self.runner.sessions().get(&self.key, EventFilter::default()).await?;
        let session = session.ok_or("the session is gone")?;
        let events: Vec<_> = session
            .events
            .iter()
            .filter(|event| !event.is_user() && event.calls().all(|call| call.name != REQUEST_CONFIRMATION))
            .cloned()
            .collect();
        let mut messages = of_events(&events);
        messages.retain(|message| text(message, "text") != Some(words::NEEDS_CONFIRMATION));
        Ok(messages)
    }
}

fn decision(answer: &Value) -> Result<Answer, BoxError> {
    let message = text(answer, "message");
    Ok(match text(answer, "type") {
        Some("approve") => Answer::approve(),
        Some("edit") => {
            Answer { tool: text(answer, "name").map(Into::into), ..Answer::edit(object(answer, "args")) }
        }
        Some("reject") => message.map_or_else(Answer::reject, Answer::reject_because),
        Some("respond") => Answer::respond(message.unwrap_or_default()),
        other => return Err(format!("there is no decision {other:?}").into()),
    })
}

/// Reads a run to its end. Gives the error, if there is one.
async fn read(mut stream: RunStream) -> Option<Error> {
    let mut error = None;
    while let Some(item) = stream.next().await {
        error = item.err();
    }
    error
}
