//! What `#[tool]` makes of functions and methods.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use umbel::{
    Confirm, Dep, ErrorKind, Extensions, Object, Result, Tool, ToolContext, ToolError, ToolOutput, ToolSet,
    ToolValue, tool,
};

/// What the tools below need.
struct Prefix(String);

fn context(tool: &dyn Tool, dependencies: Extensions) -> ToolContext {
    ToolContext::detached_with(&tool.spec().name, dependencies).unwrap()
}

async fn call_with(tool: &dyn Tool, cx: &ToolContext, args: Value) -> Result<ToolValue, ToolError> {
    let Value::Object(args) = args else { panic!("arguments are an object") };
    match tool.call(cx, Arc::new(args)).await? {
        ToolOutput::Value(value) => Ok(*value),
        ToolOutput::Stream(_) => panic!("not a value"),
    }
}

async fn call(tool: &dyn Tool, args: Value) -> Result<Value, ToolError> {
    let mut dependencies = Extensions::new();
    dependencies.insert(Prefix("Dear ".to_owned()));
    Ok(call_with(tool, &context(tool, dependencies), args).await?.value)
}

/// How to travel.
#[derive(Debug, Deserialize, Serialize, schemars::JsonSchema)]
#[serde(rename_all = "lowercase")]
enum Vehicle {
    Train,
    Car,
}

#[derive(Serialize)]
struct Plan {
    text: String,
    hours: u32,
}

/// Plans a trip.
///
/// The plan is only a plan:
///     nothing is booked.
#[tool]
async fn plan_trip(
    /// Where to go.
    /// A city.
    to: String,
    mut hours: u32,
    by: Option<Vehicle>,
    #[serde(default)] r#type: String,
    /// Notes.
    #[schemars(length(min = 1))]
    notes: Option<Vec<String>>,
) -> Result<Plan, ToolError> {
    hours *= 2;
    if to == "nowhere" {
        return Err(ToolError::new("there is no way to nowhere"));
    }
    let notes = notes.unwrap_or_default().join(",");
    Ok(Plan { text: format!("{to} by {by:?} ({type}) [{notes}]", r#type = r#type), hours })
}

#[test]
fn the_spec_comes_from_the_signature_and_the_doc_comments() {
    let spec = plan_trip.spec();
    assert_eq!(spec.name, "plan_trip");
    assert_eq!(spec.description, "Plans a trip.\n\nThe plan is only a plan:\n    nothing is booked.");
    let expected = json!({
        "type": "object",
        "properties": {
            "to": {"type": "string", "description": "Where to go.\nA city."},
            "hours": {"type": "integer", "format": "uint32", "minimum": 0},
            "by": {"anyOf": [{"$ref": "#/$defs/Vehicle"}, {"type": "null"}]},
            "type": {"type": "string", "default": ""},
            "notes": {
                "type": ["array", "null"],
                "items": {"type": "string"},
                "description": "Notes.",
                "minItems": 1,
            },
        },
        "required": ["to", "hours"],
        "$defs": {"Vehicle": {"type": "string", "enum": ["train", "car"], "description": "How to travel."}},
    });
    assert_eq!(*spec.parameters, expected);
}

#[test]
fn without_options_nothing_is_set() {
    let spec = plan_trip.spec();
    let flags = (spec.long_running, spec.read_only, spec.idempotent, spec.exclusive, spec.hidden);
    assert_eq!(flags, (false, false, false, false, false));
    assert_eq!(spec.timeout, None);
    assert!(!spec.confirm.needed(&Object::new()));
}

#[test]
fn the_spec_is_made_once() {
    assert!(std::ptr::eq(plan_trip.spec(), plan_trip.spec()));
}

#[test]
fn a_tool_can_be_stored_and_debugged() {
    let mut tools = ToolSet::new();
    tools.add(Arc::new(plan_trip));
    assert!(tools.get("plan_trip").is_some());
    assert_eq!(format!("{plan_trip:?}"), "plan_trip");
}

#[tokio::test]
async fn arguments_that_are_absent_or_unknown_do_no_harm() {
    let answer = call(&plan_trip, json!({"to": "Rome", "hours": 1, "who": "me"})).await.unwrap();
    assert_eq!(answer, json!({"text": "Rome by None () []", "hours": 2}));
    let args = json!({"to": "Rome", "hours": 1, "by": "train", "type": "x", "notes": ["a", "b"]});
    let answer = call(&plan_trip, args).await.unwrap();
    assert_eq!(answer, json!({"text": "Rome by Some(Train) (x) [a,b]", "hours": 2}));
}

#[tokio::test]
async fn arguments_that_do_not_fit_are_an_error_for_the_model() {
    let error = call(&plan_trip, json!({"by": "boat"})).await.unwrap_err();
    assert_eq!(error.error().kind(), ErrorKind::InvalidInput);
    assert_eq!(
        error.to_string(),
        "`plan_trip` was not called: the argument `by` does not fit: unknown variant `boat`, expected `train` or \
         `car`; and the mandatory arguments `to`, `hours` are missing. \
         Call it again with arguments that fit its schema."
    );
}

#[tokio::test]
async fn the_function_itself_can_be_called() {
    let plan = plan_trip::run("Rome".to_owned(), 2, None, String::new(), None).await.unwrap();
    assert_eq!(plan.hours, 4);
    let error = plan_trip::run("nowhere".to_owned(), 2, None, String::new(), None).await.err().unwrap();
    assert_eq!(error.to_string(), "there is no way to nowhere");
}

mod elsewhere {
    /// Says where it is.
    #[umbel::tool(
        name = "where-am-i",
        long_running,
        confirm,
        read_only,
        idempotent,
        exclusive,
        timeout_secs = 5
    )]
    pub(crate) async fn place() -> &'static str {
        "elsewhere"
    }
}

#[tokio::test]
async fn options_set_the_fields_of_the_spec() {
    let spec = elsewhere::place.spec();
    assert_eq!(spec.name, "where-am-i");
    assert!(spec.long_running && spec.read_only && spec.idempotent && spec.exclusive);
    assert!(matches!(spec.confirm, Confirm::Always));
    assert_eq!(spec.timeout, Some(Duration::from_secs(5)));
    assert_eq!(*spec.parameters, json!({"type": "object"}));
    assert_eq!(call(&elsewhere::place, json!({"a": 1})).await.unwrap(), json!("elsewhere"));
    assert_eq!(elsewhere::place::run().await, "elsewhere");
}

/// Greets someone.
#[tool]
async fn greet(Dep(prefix): Dep<Prefix>, name: String, cx: &ToolContext, again: Dep<Prefix>) -> String {
    tokio::task::yield_now().await;
    cx.set_state("greeted", name.as_str());
    assert_eq!(prefix.0, again.0.0);
    format!("{}{name}", prefix.0)
}

#[tokio::test]
async fn context_and_dependencies_are_given_and_not_shown() {
    let schema = json!({"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]});
    assert_eq!(*greet.spec().parameters, schema);
    let mut dependencies = Extensions::new();
    dependencies.insert(Prefix("Hello ".to_owned()));
    let cx = context(&greet, dependencies);
    let answer = call_with(&greet, &cx, json!({"name": "Ann"})).await.unwrap();
    assert_eq!(answer.value, json!("Hello Ann"));
    assert_eq!(cx.state("greeted"), Some(json!("Ann")));
}

#[tokio::test]
async fn a_dependency_that_nobody_gave_is_an_error_that_says_so() {
    let cx = context(&greet, Extensions::new());
    let error = call_with(&greet, &cx, json!({"name": "Ann"})).await.unwrap_err();
    assert_eq!(error.error().kind(), ErrorKind::Build);
    assert!(error.to_string().contains("Prefix`"), "{error}");
}

/// Names its thread.
#[tool]
fn thread_name(prefix: Dep<Prefix>, title: String) -> std::result::Result<String, std::num::ParseIntError> {
    if title == "bad" {
        let _: i32 = title.parse()?;
    }
    Ok(format!("{}{title} {:?}", prefix.0.0, std::thread::current().id()))
}

#[tokio::test]
async fn a_plain_function_runs_on_a_thread_of_its_own() {
    let here = format!("Dear Ann {:?}", std::thread::current().id());
    let there = call(&thread_name, json!({"title": "Ann"})).await.unwrap();
    assert!(there.as_str().unwrap().starts_with("Dear Ann ThreadId"), "{there}");
    assert_ne!(there, json!(here));
    let dependency = || Dep(Arc::new(Prefix("Dear ".to_owned())));
    assert_eq!(thread_name::run(dependency(), "Ann".to_owned()).unwrap(), here);
}

#[tokio::test]
async fn any_error_goes_through_with_a_question_mark() {
    let error = call(&thread_name, json!({"title": "bad"})).await.unwrap_err();
    assert_eq!(error.error().kind(), ErrorKind::Tool);
    assert_eq!(error.to_string(), "invalid digit found in string");
}

/// Falls.
#[tool]
fn fall() {
    panic!("no ground");
}

#[tokio::test]
async fn a_panic_of_a_plain_function_becomes_an_error() {
    let error = call(&fall, json!({})).await.unwrap_err();
    assert_eq!(error.error().kind(), ErrorKind::Panic);
    assert_eq!(error.to_string(), "the tool `fall` panicked: no ground");
}

type Answer = Result<u8>;

/// Answers by an alias.
#[tool]
async fn alias(fail: bool) -> Answer {
    if fail { Err(umbel::Error::new(ErrorKind::Unsupported, "not here")) } else { Ok(1) }
}

/// Answers with nothing.
#[tool]
async fn nothing() {}

/// Answers with nothing or an error.
#[tool]
async fn nothing_or_error() -> Result<()> {
    Ok(())
}

/// Answers with an output of its own.
#[tool]
async fn output() -> ToolOutput {
    ToolOutput::from(ToolValue { is_error: true, value: json!("broken"), ..ToolValue::default() })
}

/// Answers with a value or an error.
#[tool]
async fn value_or_error() -> Result<ToolValue, ToolError> {
    Ok(ToolValue { is_error: true, ..ToolValue::default() })
}

/// Answers with anything that has a JSON form.
#[tool]
async fn opaque() -> impl Serialize {
    [1, 2]
}

#[tokio::test]
async fn a_function_may_answer_in_many_ways() {
    assert_eq!(call(&alias, json!({"fail": false})).await.unwrap(), json!(1));
    let error = call(&alias, json!({"fail": true})).await.unwrap_err();
    assert_eq!(error.error().kind(), ErrorKind::Unsupported);
    assert_eq!(call(&nothing, json!({})).await.unwrap(), Value::Null);
    assert_eq!(call(&nothing_or_error, json!({})).await.unwrap(), Value::Null);
    let answer = call_with(&output, &context(&output, Extensions::new()), json!({})).await.unwrap();
    assert_eq!((answer.is_error, answer.value), (true, json!("broken")));
    let cx = context(&value_or_error, Extensions::new());
    assert!(call_with(&value_or_error, &cx, json!({})).await.unwrap().is_error);
    assert_eq!(call(&opaque, json!({})).await.unwrap(), json!([1, 2]));
}

struct Counter {
    count: AtomicI64,
}

impl Counter {
    /// Adds to the counter.
    #[tool(name = "add_to_counter", exclusive)]
    async fn add(
        &self,
        /// How much.
        by: i64,
        cx: &ToolContext,
    ) -> Result<i64, ToolError> {
        if by == 0 {
            return Err(ToolError::new("nothing to add"));
        }
        cx.set_state("added", by);
        Ok(self.count.fetch_add(by, Ordering::Relaxed) + by)
    }

    /// Reads the counter.
    #[tool]
    fn read(&self, prefix: Dep<Prefix>) -> String {
        format!("{}{}", prefix.0.0, self.count.load(Ordering::Relaxed))
    }
}

#[tokio::test]
async fn a_method_is_a_tool_of_its_object() {
    let counter = Arc::new(Counter { count: AtomicI64::new(1) });
    let add = counter.add_tool();
    assert_eq!((add.spec().name.as_str(), add.spec().exclusive), ("add_to_counter", true));
    let schema = json!({
        "type": "object",
        "properties": {"by": {"type": "integer", "format": "int64", "description": "How much."}},
        "required": ["by"],
    });
    assert_eq!(*add.spec().parameters, schema);
    let cx = context(&add, Extensions::new());
    assert_eq!(call_with(&add, &cx, json!({"by": 2})).await.unwrap().value, json!(3));
    assert_eq!(cx.state("added"), Some(json!(2)));
    assert_eq!(counter.add(1, &cx).await.unwrap(), 4);
    assert_eq!(call(&counter.read_tool(), json!({})).await.unwrap(), json!("Dear 4"));
    assert_eq!(call(&add, json!({"by": 0})).await.unwrap_err().to_string(), "nothing to add");
    let error = call(&add, json!({})).await.unwrap_err();
    assert!(error.to_string().starts_with("`add_to_counter` was not called: the mandatory argument `by`"));
}

#[tokio::test]
async fn a_tool_may_be_defined_in_a_function() {
    /// A type with a name that the macro might use itself.
    #[derive(Deserialize, schemars::JsonSchema)]
    struct Args {
        cx: i64,
    }

    /// Adds.
    #[tool]
    async fn add(args: Args, cx: i64) -> i64 {
        args.cx + cx
    }

    assert_eq!(call(&add, json!({"args": {"cx": 1}, "cx": 2})).await.unwrap(), json!(3));
    assert_eq!(
        call(&add, json!({"args": {"cx": "1"}, "cx": 2})).await.unwrap_err().to_string(),
        "`add` was not called: the argument `args` does not fit: invalid type: string \"1\", expected i64. \
         Call it again with arguments that fit its schema."
    );
}
