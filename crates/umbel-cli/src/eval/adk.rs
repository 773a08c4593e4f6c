//! Eval sets and test files of google-adk.
//!
//! Keys may be written in snake or in camel case. The criteria come from `test_config.json` beside the file, as there.

use serde_json::{Value, json};
use umbel::Object;
use umbel::eval::{Case, Expected, ExpectedCall, Metric, Suite, Thresholds, ToolsMatch, Turn};

/// Whether the value is an eval set or a test file.
pub(super) fn is_one(value: &Value) -> bool {
    match value {
        Value::Array(items) => {
            items.iter().any(|item| field(item, "query").is_some() || field(item, "data").is_some())
        }
        value => field(value, "eval_cases").is_some(),
    }
}

/// The cases, measured by the criteria.
pub(super) fn suite(value: &Value, config: Option<&Value>) -> Result<Suite, String> {
    let criteria = Criteria::read(config)?;
    let cases = match value {
        Value::Array(items) if items.iter().any(|item| field(item, "query").is_some()) => {
            vec![old_case("case", items, None, &criteria)?]
        }
        Value::Array(items) => {
            items.iter().enumerate().map(|(at, item)| named(at, item, &criteria)).collect::<Result<_, _>>()?
        }
        value => {
            let cases = field(value, "eval_cases").and_then(Value::as_array).into_iter().flatten();
            cases.map(|value| case(value, &criteria)).collect::<Result<_, _>>()?
        }
    };
    Ok(Suite { cases, thresholds: criteria.thresholds, ..Suite::default() })
}

/// What answers and calls must reach.
struct Criteria {
    thresholds: Thresholds,
    tools_match: ToolsMatch,
    /// Whether it is measured at all.
    tools: bool,
    response: bool,
}

impl Criteria {
    fn read(config: Option<&Value>) -> Result<Self, String> {
        let usual = json!({"tool_trajectory_avg_score": 1.0, "response_match_score": 0.8});
        let criteria = config.and_then(|config| field(config, "criteria")).unwrap_or(&usual);
        let mut read = Self {
            thresholds: Thresholds::new(),
            tools_match: ToolsMatch::Exact,
            tools: false,
            response: false,
        };
        for (name, value) in criteria.as_object().into_iter().flatten() {
            let threshold = value.as_f64().or_else(|| field(value, "threshold")?.as_f64());
            let threshold = threshold.ok_or_else(|| format!("criterion `{name}` has no threshold"))?;
            match name.as_str() {
                "tool_trajectory_avg_score" => {
                    read.tools = true;
                    read.thresholds.insert(Metric::Tools, threshold);
                    read.tools_match = match_type(field(value, "match_type"))?;
                }
                "response_match_score" => {
                    read.response = true;
                    read.thresholds.insert(Metric::Overlap, threshold);
                }
                other => {
                    return Err(format!(
                        "criterion `{other}` is not known here: use tool_trajectory_avg_score and \
                         response_match_score, or write rubrics in a TOML file"
                    ));
                }
            }
        }
        Ok(read)
    }

    fn turn(&self, user: Value, calls: Vec<ExpectedCall>, answer: Option<String>) -> Result<Turn, String> {
        let user = serde_json::from_value(user).map_err(|error| format!("what the user says: {error}"))?;
        let like = answer.filter(|_| self.response);
        Ok(Turn {
            user,
            tools: self.tools.then_some(calls),
            tools_match: self.tools_match,
            response: Expected { like, ..Expected::default() },
            ..Turn::default()
        })
    }
}

/// How calls are compared: by name, or by the number that stands for it.
fn match_type(value: Option<&Value>) -> Result<ToolsMatch, String> {
    let Some(value) = value else { return Ok(ToolsMatch::Exact) };
    match (value.as_str(), value.as_u64()) {
        (Some("EXACT"), _) | (_, Some(0)) => Ok(ToolsMatch::Exact),
        (Some("IN_ORDER"), _) | (_, Some(1)) => Ok(ToolsMatch::InOrder),
        (Some("ANY_ORDER"), _) | (_, Some(2)) => Ok(ToolsMatch::AnyOrder),
        _ => Err(format!("match_type {value} is not known here: use EXACT, IN_ORDER or ANY_ORDER")),
    }
}

fn case(value: &Value, criteria: &Criteria) -> Result<Case, String> {
    let name = text(value, "eval_id").ok_or("a case has no `eval_id`")?;
    let Some(conversation) = field(value, "conversation").and_then(Value::as_array) else {
        return Err(format!("case `{name}` has no `conversation`; simulated users are not known here"));
    };
    let mut turns = Vec::new();
    for said in conversation {
        let user = field(said, "user_content").cloned();
        let user = user.ok_or_else(|| format!("a turn of case `{name}` has no `user_content`"))?;
        let between = field(said, "intermediate_data");
        let used = between.and_then(|data| field(data, "tool_uses")).and_then(Value::as_array);
        let mut calls: Vec<ExpectedCall> = used.into_iter().flatten().map(call).collect();
        let events = between.and_then(|data| field(data, "invocation_events")).and_then(Value::as_array);
        for event in events.into_iter().flatten() {
            calls.extend(
                parts(field(event, "content")).filter_map(|part| field(part, "function_call")).map(call),
            );
        }
        let answer = field(said, "final_response").map(said_in);
        turns.push(criteria.turn(user, calls, answer)?);
    }
    let input = field(value, "session_input");
    let state = input.and_then(|input| field(input, "state")).and_then(Value::as_object).cloned();
    let after = field(value, "final_session_state").and_then(Value::as_object).cloned();
    Ok(Case {
        name,
        turns,
        user: input.and_then(|input| text(input, "user_id")),
        state: state.unwrap_or_default(),
        state_after: after.unwrap_or_default(),
        ..Case::default()
    })
}

/// A conversation of the oldest form, with its name.
fn named(at: usize, value: &Value, criteria: &Criteria) -> Result<Case, String> {
    let name = text(value, "name").unwrap_or_else(|| format!("case {}", at + 1));
    let data = field(value, "data").and_then(Value::as_array);
    let data = data.ok_or_else(|| format!("case `{name}` has no `data`"))?;
    old_case(&name, data, field(value, "initial_session"), criteria)
}

fn old_case(name: &str, data: &[Value], input: Option<&Value>, criteria: &Criteria) -> Result<Case, String> {
    let mut turns = Vec::new();
    for said in data {
        let query = text(said, "query").ok_or_else(|| format!("a turn of case `{name}` has no `query`"))?;
        let used = field(said, "expected_tool_use").and_then(Value::as_array).into_iter().flatten();
        let calls = used.map(|used| ExpectedCall {
            name: text(used, "tool_name").unwrap_or_default(),
            args: Some(object(field(used, "tool_input"))),
        });
        let user = json!({"role": "user", "parts": [{"text": query}]});
        turns.push(criteria.turn(user, calls.collect(), text(said, "reference"))?);
    }
    let state = object(input.and_then(|input| field(input, "state")));
    let user = input.and_then(|input| text(input, "user_id"));
    Ok(Case { name: name.to_owned(), turns, user, state, ..Case::default() })
}

fn call(value: &Value) -> ExpectedCall {
    ExpectedCall { name: text(value, "name").unwrap_or_default(), args: Some(object(field(value, "args"))) }
}

fn object(value: Option<&Value>) -> Object {
    value.and_then(Value::as_object).cloned().unwrap_or_default()
}

fn parts(content: Option<&Value>) -> impl Iterator<Item = &Value> {
    content.and_then(|content| field(content, "parts")?.as_array()).into_iter().flatten()
}

/// The text of a content.
fn said_in(content: &Value) -> String {
    parts(Some(content)).filter_map(|part| text(part, "text")).collect::<Vec<_>>().join("\n")
}

fn text(value: &Value, key: &str) -> Option<String> {
    field(value, key)?.as_str().map(str::to_owned)
}

/// The field of that name, in snake case or in camel case; null is as good as none.
fn field<'a>(value: &'a Value, key: &str) -> Option<&'a Value> {
    let mut camel = String::new();
    for (index, word) in key.split('_').enumerate() {
        let (first, rest) = word.split_at(word.len().min(1));
        camel.push_str(&if index == 0 { first.to_owned() } else { first.to_uppercase() });
        camel.push_str(rest);
    }
    value.get(key).or_else(|| value.get(&camel)).filter(|value| !value.is_null())
}
