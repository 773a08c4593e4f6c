//! Personal data, case by case: what an oracle did with an input, and where Umbel hides more than it.

use std::sync::{Arc, Mutex};

use serde_json::{Value, json};
use umbel::handlers::pii::{Pii, PiiBlocked, PiiRule, PiiStrategy};
use umbel::{
    Content, Error, FunctionCall, FunctionResponse, FunctionTool, History, LlmAgent, Object, Part, Payload,
    Response, Role, RunConfig, ScriptedModel, ToolSpec, Transcript,
};

use crate::support::{begin, read};

const CASES: &str = include_str!("../../../../vectors/handlers/pii.json");
const STREAMS: &str = include_str!("../../../../vectors/handlers/pii_stream.json");

/// Where the oracle lets something through, and what becomes of it here.
const BETTER: &[(&str, &str)] = &[
    ("email-cyrillic-before", "почта[REDACTED_EMAIL]"),
    ("email-accent-after-tld", "[REDACTED_EMAIL]é"),
    ("card-15-digits-amex", "amex [REDACTED_CREDIT_CARD]"),
    ("card-shadowed-by-failed-window", "1234 [REDACTED_CREDIT_CARD]"),
    ("ip-v6-not-seen", "[REDACTED_IP] and [REDACTED_IP]"),
];

struct Case {
    name: String,
    input: Value,
    expect: Value,
    /// The oracle is at fault, or may be.
    is_noted: bool,
}

fn cases(file: &str) -> Vec<Case> {
    let mut file: Value = serde_json::from_str(file).unwrap();
    let Value::Array(cases) = file["cases"].take() else { panic!("no cases") };
    let read = |mut case: Value| Case {
        name: case["name"].as_str().unwrap().to_owned(),
        input: case["input"].take(),
        expect: case["expect"].take(),
        is_noted: case.get("note").is_some(),
    };
    cases.into_iter().map(read).collect()
}

fn rule(value: &Value) -> PiiRule {
    let kind = value["type"].as_str().unwrap();
    let rule = match value["pattern"].as_str() {
        Some(pattern) => PiiRule::pattern(kind, pattern).unwrap(),
        None => PiiRule::built_in(kind).unwrap(),
    };
    let applies = |to: &str| {
        let list = value["apply"].as_array();
        list.is_some_and(|list| list.iter().any(|surface| surface == to))
    };
    let strategy = match value["strategy"].as_str().unwrap() {
        "redact" => PiiStrategy::Redact,
        "mask" => PiiStrategy::Mask,
        "hash" => PiiStrategy::Hash,
        "block" => PiiStrategy::Block,
        other => panic!("no strategy {other}"),
    };
    rule.strategy(strategy)
        .input(applies("input"))
        .output(applies("output"))
        .tool_results(applies("tool_results"))
}

/// What was found and how often, however deep it lies in an error.
pub(crate) fn blocked(error: &Error) -> Value {
    let mut source = std::error::Error::source(error);
    while let Some(inner) = source {
        if let Some(blocked) = inner.downcast_ref::<PiiBlocked>() {
            return json!({"type": blocked.kind.as_str(), "count": blocked.count});
        }
        source = inner.source();
    }
    panic!("not blocked: {error:?}");
}

/// The text with markers in the place of tokens.
fn with_markers(text: &str) -> String {
    let mut out = String::new();
    for piece in text.split('⟦') {
        let Some((token, rest)) = piece.split_once('⟧') else {
            out.push_str(piece);
            continue;
        };
        match token.split(' ').collect::<Vec<_>>().as_slice() {
            ["redacted", kind] => out.push_str(&format!("[REDACTED_{}]", kind.to_uppercase())),
            ["hash", kind, digest] => out.push_str(&format!("<{kind}_hash:{digest}>")),
            ["masked", "url"] => out.push_str("[MASKED_URL]"),
            _ => panic!("no token {token}"),
        }
        out.push_str(rest);
    }
    out
}

/// The same in every string of a value.
fn literal(value: &Value) -> Value {
    match value {
        Value::String(text) => Value::String(with_markers(text)),
        Value::Array(items) => items.iter().map(literal).collect(),
        Value::Object(object) => {
            Value::Object(object.iter().map(|(key, value)| (key.clone(), literal(value))).collect())
        }
        other => other.clone(),
    }
}

fn content(message: &Value) -> Content {
    let text = message["text"].as_str().unwrap_or_default();
    match message["role"].as_str().unwrap() {
        "user" => match message["blocks"].as_array() {
            Some(blocks) => Content::new(Role::User, blocks.iter().map(block)),
            None => Content::user(text),
        },
        "assistant" => {
            let calls = message["calls"].as_array().into_iter().flatten().map(|call| {
                let args = call["args"].as_object().unwrap().clone();
                let name = call["name"].as_str().unwrap();
                Part::call(FunctionCall::new(name, args).with_id(call["id"].as_str().unwrap()))
            });
            Content::new(Role::Model, [Part::text(text)].into_iter().chain(calls))
        }
        "tool" => {
            let response = Object::from_iter([("result".to_owned(), text.into())]);
            let id = message["call_id"].as_str().map(Into::into);
            let name = message["name"].as_str().unwrap();
            Content::user(Part::response(FunctionResponse::new(id, name, response)))
        }
        other => Content::new(other.into(), [text.into()]),
    }
}

/// A block of a message; what is not text is a file somewhere else.
fn block(block: &Value) -> Part {
    match block["text"].as_str() {
        Some(text) => Part::text(text),
        None => serde_json::from_value(json!({"fileData": {"fileUri": block["url"]}})).unwrap(),
    }
}

fn message(content: &Content, like: &Value) -> Value {
    let mut message = like.clone();
    match (&mut message, content.responses().next()) {
        (message, Some(response)) => message["text"] = response.response.as_ref().unwrap()["result"].clone(),
        (message, None) if message.get("blocks").is_some() => {
            for (part, block) in content.parts.iter().zip(message["blocks"].as_array_mut().unwrap()) {
                match &part.payload {
                    Payload::Text(text) => block["text"] = text.as_str().into(),
                    Payload::FileData(file) => block["url"] = file.file_uri.as_deref().into(),
                    other => panic!("no block {other:?}"),
                }
            }
        }
        (message, None) => message["text"] = content.text().into(),
    }
    let calls = content.calls().map(|call| json!({"id": call.id, "name": call.name, "args": call.args}));
    let calls: Vec<Value> = calls.collect();
    if !calls.is_empty() {
        message["calls"] = calls.into();
    }
    message
}

/// What the rules make of messages, one handler for each. Older messages were looked at before.
fn redact_messages(rules: &[Value], phase: &str, messages: &[Value]) -> Result<Vec<Value>, Error> {
    let last = |role: &str| messages.iter().rposition(|message| message["role"] == role);
    let mut history =
        Transcript::new(messages.iter().map(|message| Arc::new(content(message))).collect::<History>());
    let behind_model = last("assistant").map_or(0, |place| place + 1);
    if phase == "before_model" {
        for rule in rules.iter().map(rule) {
            let users = Pii::new(rule.clone().tool_results(false));
            users.redact_history(&mut history, last("user").unwrap_or(messages.len()))?;
            Pii::new(rule.input(false)).redact_history(&mut history, behind_model)?;
        }
    } else if let Some(place) = behind_model.checked_sub(1) {
        for rule in rules.iter().rev().map(rule) {
            if let Some(answer) = Pii::new(rule).redact_answer(history.get(place).unwrap())? {
                history.replace(place, answer);
            }
        }
    }
    Ok(history.iter().zip(messages).map(|(content, like)| message(content, like)).collect())
}

/// Whether all that the oracle found is hidden, and more.
fn hides_more(ours: &[Value], oracles: &[Value]) -> bool {
    let hides = |theirs: &Value| {
        let covers = |our: &Value| {
            our["start"].as_u64() <= theirs["start"].as_u64() && our["end"].as_u64() >= theirs["end"].as_u64()
        };
        ours.iter().any(covers)
    };
    ours != oracles && oracles.iter().all(hides)
}

#[test]
fn texts_are_redacted_as_by_the_oracle_or_better() {
    for Case { name, input, expect, is_noted } in cases(CASES) {
        if input["op"] != "text" {
            continue;
        }
        let (rule, text) = (rule(&input), input["text"].as_str().unwrap());
        let found = rule.detect(text).into_iter();
        let found: Vec<Value> = found
            .map(|found| json!({"value": found.value, "start": found.start, "end": found.end}))
            .collect();
        let oracles = expect["matches"].as_array().unwrap();
        if is_noted && hides_more(&found, oracles) {
            let known = BETTER.iter().find(|(better, _)| *better == name);
            assert!(known.is_none_or(|(_, ours)| rule.apply(text).unwrap() == *ours), "{name}");
            continue;
        }
        assert_eq!(found, *oracles, "{name}");
        assert!(BETTER.iter().all(|(better, _)| *better != name), "{name} is no better than the oracle");
        match rule.apply(text) {
            Ok(text) => {
                assert_eq!(text, expect["literal"], "{name}");
                assert_eq!(text, with_markers(expect["text"].as_str().unwrap()), "{name}");
            }
            Err(error) => assert_eq!(blocked(&error), expect["blocked"], "{name}"),
        }
    }
}

#[test]
fn messages_are_redacted_as_by_the_oracle() {
    let all = cases(CASES);
    let some = all.iter().filter(|case| case.input["op"] == "messages");
    let mut count = 0;
    for Case { name, input, expect, .. } in some {
        let messages = input["messages"].as_array().unwrap();
        let phase = input["phase"].as_str().unwrap();
        match redact_messages(input["rules"].as_array().unwrap(), phase, messages) {
            Ok(redacted) => {
                assert_eq!(Value::from(redacted.clone()), literal(&expect["messages"]), "{name}");
                assert_eq!(Value::from(redacted != *messages), expect["changed"], "{name}");
            }
            Err(error) => assert_eq!(blocked(&error), expect["blocked"], "{name}"),
        }
        count += 1;
    }
    assert!(count >= 15, "{count}");
}

/// The agent that a case describes, with one handler for each rule. Gives the model, and where calls are noted.
fn agent(input: &Value) -> (LlmAgent, ScriptedModel, Arc<Mutex<Vec<Value>>>) {
    let mut model = ScriptedModel::new("m").recorded();
    for reply in input["model"].as_array().unwrap() {
        let mut reply = reply.clone();
        reply["role"] = "assistant".into();
        model = model.response(Response::new(content(&reply)));
    }
    let ran = Arc::new(Mutex::new(Vec::new()));
    let system = input["system"].as_str().unwrap_or_default();
    let mut agent = LlmAgent::new("a").model(model.clone()).static_instruction(system);
    for tool in input["tools"].as_array().unwrap() {
        let (name, ran) = (tool["name"].as_str().unwrap().to_owned(), ran.clone());
        let scripted: Vec<Value> = input["tool_script"][&name].as_array().cloned().unwrap_or_default();
        let scripted = Mutex::new(scripted.into_iter());
        let spec = ToolSpec::new(name.as_str(), "", json!({"type": "object"}));
        agent = agent.tool(FunctionTool::raw(spec, move |cx, args| {
            ran.lock().unwrap().push(json!({"call_id": cx.call_id(), "name": name, "args": args}));
            let text = match scripted.lock().unwrap().next() {
                Some(outcome) => outcome["text"].clone(),
                None => format!("{name} {}", Value::Object((*args).clone())).into(),
            };
            Box::pin(async move { Ok(text.into()) })
        }));
    }
    for (number, rule) in input["rules"].as_array().unwrap().iter().map(rule).enumerate() {
        agent = agent.handler(Pii::new(rule).named(format!("pii {number}")));
    }
    (agent, model, ran)
}

/// Messages as the oracle writes them.
fn messages<'a>(contents: impl IntoIterator<Item = &'a Arc<Content>>) -> Value {
    let written = |content: &Arc<Content>| match content.responses().next() {
        Some(response) => {
            message(content, &json!({"role": "tool", "call_id": response.id, "name": response.name}))
        }
        None if content.role == Some(Role::User) => message(content, &json!({"role": "user"})),
        None => message(content, &json!({"role": "assistant"})),
    };
    contents.into_iter().map(written).collect()
}

/// What the model saw besides the instruction, which is no message here.
fn without_system(saw: &Value) -> Value {
    let Value::Array(mut requests) = literal(saw) else { panic!("no requests: {saw}") };
    for request in &mut requests {
        request.as_array_mut().unwrap().retain(|message| message["role"] != "system");
    }
    requests.into()
}

#[tokio::test]
async fn whole_runs_are_redacted_as_by_the_oracle() {
    let all = cases(CASES);
    let some: Vec<&Case> = all.iter().filter(|case| case.input["op"] == "agent").collect();
    assert!(some.len() >= 7);
    for streaming in [false, true] {
        for Case { name, input, expect, .. } in &some {
            let [said] = input["messages"].as_array().unwrap().as_slice() else { panic!("{name}") };
            let (agent, model, ran) = agent(input);
            let (runner, key) = begin(agent).await;
            let config = RunConfig { streaming, ..RunConfig::default() };
            let seen = read(runner.run_with(&key, content(said), config)).await;
            let requests = model.requests();
            let saw: Value = requests.iter().map(|request| messages(&request.contents)).collect();
            assert_eq!(saw, without_system(&expect["model_saw"]), "{name}");
            let system = input["system"].as_str().unwrap_or_default();
            assert!(requests.iter().all(|request| request.instruction.text().contains(system)), "{name}");
            assert_eq!(Value::from(ran.lock().unwrap().clone()), expect["ran"], "{name}");
            if expect["blocked"].is_object() {
                assert_eq!(blocked(seen.error.as_ref().unwrap()), expect["blocked"], "{name}");
                continue;
            }
            let answer = seen.assert_finished().whole().last().unwrap().content.clone().unwrap();
            let last = requests.last().unwrap().contents.iter().chain([&answer]);
            assert_eq!(messages(last), literal(&expect["messages"]), "{name}");
        }
    }
}

#[test]
fn streams_give_the_redacted_whole_and_pass_what_the_oracle_passes_where_that_is_safe() {
    for Case { name, input, expect, .. } in cases(STREAMS) {
        let rule = rule(&input);
        let lookback = input["lookback"].as_u64().unwrap() as usize;
        let mut redactor = rule.stream(lookback);
        let deltas: Vec<&str> =
            input["deltas"].as_array().unwrap().iter().map(|d| d.as_str().unwrap()).collect();
        let mut passed = Vec::new();
        let mut stopped = None;
        for delta in &deltas {
            match redactor.push(delta) {
                Ok(piece) => passed.push(piece),
                Err(error) => {
                    stopped = Some(blocked(&error));
                    break;
                }
            }
        }
        if expect["blocked"].is_object() {
            let stopped = stopped.unwrap_or_else(|| panic!("{name} is not blocked"));
            check_block(&name, &rule, &deltas, &expect, &passed, stopped);
            continue;
        }
        let whole = passed.concat() + &redactor.finish().unwrap();
        assert_eq!(whole, expect["final"], "{name}");
        assert_eq!(rule.apply(&deltas.concat()).unwrap(), whole, "{name}");
        if expect["stream_equals_final"] == true {
            assert_eq!(Value::from(passed), expect["deltas"], "{name}");
        }
    }
}

/// A stream stops where the oracle's stops, or later where the oracle stops for what may yet turn out to be nothing.
fn check_block(
    name: &str,
    rule: &PiiRule,
    deltas: &[&str],
    expect: &Value,
    passed: &[String],
    mut stopped: Value,
) {
    let after = expect["blocked"]["after_delta"].as_u64().unwrap() as usize;
    let so_far = deltas[..=after].concat();
    if ["0", "a"].iter().any(|more| rule.apply(&format!("{so_far}{more}")).is_ok()) {
        let first = rule.detect(&deltas.concat())[0].start;
        let before: String = deltas.concat().chars().take(first).collect();
        assert!(passed.len() >= after && before.starts_with(&passed.concat()), "{name}");
    } else {
        stopped["after_delta"] = passed.len().into();
        assert_eq!(stopped, expect["blocked"], "{name}");
        assert_eq!(Value::from(passed.to_vec()), expect["deltas"], "{name}");
    }
}
