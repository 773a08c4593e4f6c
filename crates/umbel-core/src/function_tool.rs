//! Tools made from functions and closures.
//!
//! [`FunctionTool`] is the closure form. The `#[tool]` attribute makes the same from a function or a method, and
//! shares [`parse_args`] and [`IntoToolOutput`] with it.

use std::any::Any;
use std::cell::Cell;
use std::fmt;
use std::future::Future;
use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use schemars::JsonSchema;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde::de::value::MapDeserializer;
use serde_json::Value;
use smol_str::SmolStr;

use crate::auth::AuthConfig;
use crate::error::{Error, ErrorKind};
use crate::json::Object;
use crate::tool::{Confirm, Tool, ToolError, ToolOutput, ToolSpec, ToolValue};
use crate::tool_context::ToolContext;
use crate::work::BoxFuture;

/// What every call of a tool gives.
type Answered = Result<ToolOutput, ToolError>;

type Body =
    dyn for<'a> Fn(&'a ToolSpec, &'a ToolContext, Arc<Object>) -> BoxFuture<'a, Answered> + Send + Sync;

/// A tool made from a closure.
///
/// The type of the closure's argument gives the schema, its doc comments the descriptions:
///
/// ```
/// use umbel_core::FunctionTool;
///
/// #[derive(serde::Deserialize, schemars::JsonSchema)]
/// struct Add {
///     /// The first number.
///     a: i64,
///     /// The second number.
///     b: i64,
/// }
///
/// let add = FunctionTool::new("add", "Adds two numbers.", |args: Add| async move { Ok(args.a + args.b) })
///     .read_only()
///     .idempotent();
/// ```
#[derive(Clone)]
pub struct FunctionTool {
    spec: ToolSpec,
    body: Arc<Body>,
}

impl FunctionTool {
    /// A tool that needs nothing but its arguments.
    ///
    /// The arguments may be a [`Value`], for a tool that takes any object. The answer is anything with a JSON
    /// form, or a [`ToolOutput`]. Any error turns into a [`ToolError`] with `?`.
    pub fn new<A, R, F, Fut>(name: impl Into<SmolStr>, description: impl Into<String>, call: F) -> Self
    where
        A: DeserializeOwned + JsonSchema + Send + 'static,
        R: IntoToolOutput,
        F: Fn(A) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<R, ToolError>> + Send + 'static,
    {
        Self::with_body(spec_of::<A>(name, description), move |spec, _, args| {
            let answer = parse_args(spec, &args).map(&call);
            Box::pin(async move { answer?.await?.into_output() })
        })
    }

    /// A tool that works with the run it is called in.
    ///
    /// The context is borrowed, as in [`Tool::call`], so what the tool does with it is seen even if the call is
    /// cut short. The price is one `Box::pin`: a plain `async` block cannot borrow from a closure's argument.
    ///
    /// ```
    /// use umbel_core::FunctionTool;
    ///
    /// let note = FunctionTool::with_context("note", "Keeps a note.", |cx, note: serde_json::Value| {
    ///     Box::pin(async move {
    ///         cx.set_state("note", note);
    ///         Ok("noted")
    ///     })
    /// });
    /// ```
    pub fn with_context<A, R, F>(name: impl Into<SmolStr>, description: impl Into<String>, call: F) -> Self
    where
        A: DeserializeOwned + JsonSchema + Send + 'static,
        R: IntoToolOutput + 'static,
        F: for<'a> Fn(&'a ToolContext, A) -> BoxFuture<'a, Result<R, ToolError>> + Send + Sync + 'static,
    {
        Self::with_body(spec_of::<A>(name, description), move |spec, cx, args| {
            let answer = parse_args(spec, &args).map(|args| call(cx, args));
            Box::pin(async move { answer?.await?.into_output() })
        })
    }

    /// A tool that blocks: each call gets a thread of its own, from tokio's pool.
    ///
    /// A call that is cancelled or takes too long is no longer waited for, but its thread works on to the end.
    pub fn blocking<A, R, F>(name: impl Into<SmolStr>, description: impl Into<String>, call: F) -> Self
    where
        A: DeserializeOwned + JsonSchema + Send + 'static,
        R: IntoToolOutput,
        F: Fn(A) -> Result<R, ToolError> + Send + Sync + 'static,
    {
        let call = Arc::new(call);
        Self::with_body(spec_of::<A>(name, description), move |spec, cx, args| {
            let args = parse_args(spec, &args);
            let call = call.clone();
            Box::pin(async move {
                let args = args?;
                run_blocking(cx, move || call(args)?.into_output()).await
            })
        })
    }

    /// A tool that reads its arguments itself: [`Tool::call`] as a closure, with a spec made by hand.
    ///
    /// ```
    /// use serde_json::{Value, json};
    /// use umbel_core::{FunctionTool, ToolSpec};
    ///
    /// let spec = ToolSpec::new("echo", "Says it again.", json!({"type": "object"}));
    /// let echo = FunctionTool::raw(spec, |_cx, args| {
    ///     Box::pin(async move { Ok(Value::Object((*args).clone()).into()) })
    /// });
    /// ```
    pub fn raw<F>(spec: ToolSpec, call: F) -> Self
    where
        F: for<'a> Fn(&'a ToolContext, Arc<Object>) -> BoxFuture<'a, Answered> + Send + Sync + 'static,
    {
        Self::with_body(spec, move |_, cx, args| call(cx, args))
    }

    // The bound is written out because it is what gives the closures above their signature.
    fn with_body<F>(spec: ToolSpec, body: F) -> Self
    where
        F: for<'a> Fn(&'a ToolSpec, &'a ToolContext, Arc<Object>) -> BoxFuture<'a, Answered>
            + Send
            + Sync
            + 'static,
    {
        Self { spec, body: Arc::new(body) }
    }

    /// The answer comes later: the call's turn ends without it.
    pub fn long_running(mut self) -> Self {
        self.spec.long_running = true;
        self
    }

    /// Whether a person must agree first.
    pub fn confirm(mut self, confirm: Confirm) -> Self {
        self.spec.confirm = confirm;
        self
    }

    /// The credential it needs: without it, it is not called. It gets it by
    /// [`ToolContext::credential`](crate::ToolContext::credential).
    pub fn auth(mut self, auth: AuthConfig) -> Self {
        self.spec.auth = Some(auth);
        self
    }

    /// It changes nothing.
    pub fn read_only(mut self) -> Self {
        self.spec.read_only = true;
        self
    }

    /// Calling it twice is as good as once.
    pub fn idempotent(mut self) -> Self {
        self.spec.idempotent = true;
        self
    }

    /// No other call of the batch runs beside it.
    pub fn exclusive(mut self) -> Self {
        self.spec.exclusive = true;
        self
    }

    /// How long it may take.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.spec.timeout = Some(timeout);
        self
    }
}

impl Tool for FunctionTool {
    fn spec(&self) -> &ToolSpec {
        &self.spec
    }

    fn call<'a>(&'a self, cx: &'a ToolContext, args: Arc<Object>) -> BoxFuture<'a, Answered> {
        (self.body)(&self.spec, cx, args)
    }
}

impl fmt::Debug for FunctionTool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "FunctionTool({})", self.spec.name)
    }
}

/// The spec of a tool with arguments of this type.
fn spec_of<A: JsonSchema>(name: impl Into<SmolStr>, description: impl Into<String>) -> ToolSpec {
    let mut parameters = ToolSpec::schema_of::<A>();
    if let Some(schema) = parameters.as_object_mut() {
        // The schemas of an enum and of a `Value` do not say so, but arguments are always an object.
        schema.entry("type").or_insert_with(|| "object".into());
    }
    ToolSpec::new(name, description, parameters)
}

/// A value that the runner was given for its tools, as an argument of a `#[tool]` function.
///
/// The model does not see it. It is found by its type, as `cx.dependency::<T>()` finds it.
pub struct Dep<T>(pub Arc<T>);

impl<T> Deref for Dep<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0
    }
}

impl<T> Clone for Dep<T> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<T: fmt::Debug> fmt::Debug for Dep<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Dep").field(&self.0).finish()
    }
}

/// What a function may answer with: anything that has a JSON form, a [`ToolValue`] or a [`ToolOutput`].
pub trait IntoToolOutput {
    /// The answer as the runtime takes it.
    fn into_output(self) -> Result<ToolOutput, ToolError>;
}

impl<T: Serialize + 'static> IntoToolOutput for T {
    fn into_output(self) -> Result<ToolOutput, ToolError> {
        // A value that is JSON already is taken as it is, not copied.
        let mut answer = Some(self);
        if let Some(value) = (&mut answer as &mut dyn Any).downcast_mut::<Option<Value>>() {
            return Ok(value.take().unwrap_or_default().into());
        }
        ToolOutput::json(answer)
    }
}

impl IntoToolOutput for ToolOutput {
    fn into_output(self) -> Result<ToolOutput, ToolError> {
        Ok(self)
    }
}

impl IntoToolOutput for ToolValue {
    fn into_output(self) -> Result<ToolOutput, ToolError> {
        Ok(ToolOutput::from(self))
    }
}

/// Reads the arguments of a call. Those that the type does not know are ignored.
///
/// If they do not fit, the error tells the model what is wrong and what to do.
pub fn parse_args<T: DeserializeOwned>(spec: &ToolSpec, args: &Object) -> Result<T, ToolError> {
    T::deserialize(args).map_err(|error| misfit(spec, args, culprit::<T>(args), &error))
}

/// Says what is wrong with the arguments.
fn misfit(spec: &ToolSpec, args: &Object, culprit: Option<&str>, error: &serde_json::Error) -> ToolError {
    let required = spec.parameters.get("required").and_then(Value::as_array).into_iter().flatten();
    let missing: Vec<String> = required
        .filter_map(Value::as_str)
        .filter(|name| !args.contains_key(*name))
        .map(|name| format!("`{name}`"))
        .collect();
    let missing = match missing.as_slice() {
        [] => None,
        [one] => Some(format!("the mandatory argument {one} is missing")),
        many => Some(format!("the mandatory arguments {} are missing", many.join(", "))),
    };
    let problem = match (culprit, missing) {
        (Some(name), None) => format!("the argument `{name}` does not fit: {error}"),
        (Some(name), Some(missing)) => format!("the argument `{name}` does not fit: {error}; and {missing}"),
        // serde names only the first one that is missing.
        (None, Some(missing)) => missing,
        (None, None) => format!("the arguments do not fit: {error}"),
    };
    let name = &spec.name;
    ToolError::invalid_arguments(format!(
        "`{name}` was not called: {problem}. Call it again with arguments that fit its schema."
    ))
}

/// The argument that was being read when reading failed; serde's error does not name it.
fn culprit<T: DeserializeOwned>(args: &Object) -> Option<&str> {
    let reading = Cell::new(None);
    let mut entries = args.iter();
    // The next entry is asked for only when the last one has been read.
    let entries = std::iter::from_fn(|| {
        let entry = entries.next().map(|(name, value)| (name.as_str(), value));
        reading.set(entry.map(|(name, _)| name));
        entry
    });
    T::deserialize(MapDeserializer::<_, serde_json::Error>::new(entries)).err().and_then(|_| reading.get())
}

/// Runs what blocks on a thread of its own. A panic becomes an error.
#[doc(hidden)]
pub async fn run_blocking(cx: &ToolContext, work: impl FnOnce() -> Answered + Send + 'static) -> Answered {
    let tool = cx.tool_name();
    match tokio::task::spawn_blocking(work).await {
        Ok(answer) => answer,
        Err(error) => Err(match error.try_into_panic() {
            Ok(payload) => Error::from_panic(&format!("the tool `{tool}`"), &*payload),
            Err(_) => {
                Error::new(ErrorKind::Cancelled, format!("`{tool}` was stopped: the process shuts down"))
            }
        }
        .into()),
    }
}

/// What a `#[tool]` function returned: a `Result`, or just the answer.
///
/// Which one it is is decided by the type, not by how it is written, so that aliases of `Result` work: a method
/// of the type itself goes before one of a trait. What the method needs is said at the method, not at the `impl`,
/// else a `Result` with an unsuitable error would count as a plain answer because serde can write it.
#[doc(hidden)]
#[derive(Debug)]
pub struct Returned<T>(pub T);

impl<T, E> Returned<Result<T, E>> {
    #[doc(hidden)]
    pub fn into_answer(self) -> Answered
    where
        T: IntoToolOutput,
        E: Into<ToolError>,
    {
        self.0.map_err(Into::into)?.into_output()
    }
}

/// The other half of [`Returned`].
#[doc(hidden)]
pub trait ReturnedPlain<T> {
    #[doc(hidden)]
    fn into_answer(self) -> Answered
    where
        T: IntoToolOutput;
}

impl<T> ReturnedPlain<T> for Returned<T> {
    fn into_answer(self) -> Answered
    where
        T: IntoToolOutput,
    {
        self.0.into_output()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn context(tool: &FunctionTool) -> ToolContext {
        ToolContext::detached(&tool.spec.name).unwrap()
    }

    async fn call_with(tool: &FunctionTool, cx: &ToolContext, args: Value) -> Result<ToolValue, ToolError> {
        let Value::Object(args) = args else { panic!("arguments are an object") };
        match tool.call(cx, Arc::new(args)).await? {
            ToolOutput::Value(value) => Ok(*value),
            ToolOutput::Stream(_) => panic!("not a value"),
        }
    }

    async fn call(tool: &FunctionTool, args: Value) -> Result<Value, ToolError> {
        Ok(call_with(tool, &context(tool), args).await?.value)
    }

    async fn refused(tool: &FunctionTool, args: Value) -> String {
        let error = call(tool, args).await.unwrap_err();
        assert_eq!(error.error().kind(), ErrorKind::InvalidInput);
        error.to_string()
    }

    #[derive(serde::Deserialize, JsonSchema)]
    struct Trip {
        /// Where to.
        to: String,
        days: u8,
        by: Option<String>,
    }

    fn trip() -> FunctionTool {
        FunctionTool::new("trip", "Plans a trip.", |trip: Trip| async move {
            Ok(
                json!({"plan": format!("{} days in {} by {}", trip.days, trip.to, trip.by.as_deref().unwrap_or("foot"))}),
            )
        })
    }

    #[test]
    fn the_schema_comes_from_the_type_of_the_arguments() {
        let spec = trip().spec;
        assert_eq!((spec.name.as_str(), spec.description.as_str()), ("trip", "Plans a trip."));
        let expected = json!({
            "type": "object",
            "properties": {
                "to": {"type": "string", "description": "Where to."},
                "days": {"type": "integer", "format": "uint8", "minimum": 0, "maximum": 255},
                "by": {"type": ["string", "null"]},
            },
            "required": ["to", "days"],
        });
        assert_eq!(*spec.parameters, expected);
    }

    #[tokio::test]
    async fn optional_arguments_may_be_absent_and_unknown_ones_are_ignored() {
        let answer = call(&trip(), json!({"to": "Rome", "days": 2, "why": "sun"})).await.unwrap();
        assert_eq!(answer, json!({"plan": "2 days in Rome by foot"}));
        let answer = call(&trip(), json!({"to": "Rome", "days": 2, "by": null})).await.unwrap();
        assert_eq!(answer, json!({"plan": "2 days in Rome by foot"}));
    }

    #[tokio::test]
    async fn all_missing_arguments_are_named() {
        assert_eq!(
            refused(&trip(), json!({})).await,
            "`trip` was not called: the mandatory arguments `to`, `days` are missing. \
             Call it again with arguments that fit its schema."
        );
        assert_eq!(
            refused(&trip(), json!({"days": 1, "by": "car"})).await,
            "`trip` was not called: the mandatory argument `to` is missing. \
             Call it again with arguments that fit its schema."
        );
    }

    #[tokio::test]
    async fn an_argument_that_does_not_fit_is_named() {
        assert_eq!(
            refused(&trip(), json!({"to": "Rome", "days": "two", "by": "car"})).await,
            "`trip` was not called: the argument `days` does not fit: invalid type: string \"two\", expected u8. \
             Call it again with arguments that fit its schema."
        );
        assert_eq!(
            refused(&trip(), json!({"by": 7})).await,
            "`trip` was not called: the argument `by` does not fit: invalid type: integer `7`, expected a string; \
             and the mandatory arguments `to`, `days` are missing. Call it again with arguments that fit its schema."
        );
    }

    #[derive(serde::Deserialize, JsonSchema)]
    #[serde(rename_all = "lowercase")]
    enum Shape {
        Circle { radius: f64 },
        Square { side: f64 },
    }

    #[tokio::test]
    async fn arguments_may_be_an_enum() {
        let area = FunctionTool::new("area", "Measures a shape.", |shape: Shape| async move {
            Ok(match shape {
                Shape::Circle { radius } => 3.0 * radius * radius,
                Shape::Square { side } => side * side,
            })
        });
        assert_eq!(area.spec.parameters["type"], "object");
        assert_eq!(call(&area, json!({"square": {"side": 3.0}})).await.unwrap(), json!(9.0));
        assert_eq!(
            refused(&area, json!({"line": {}})).await,
            "`area` was not called: the arguments do not fit: unknown variant `line`, expected `circle` or `square`. \
             Call it again with arguments that fit its schema."
        );
    }

    #[tokio::test]
    async fn a_value_takes_any_object() {
        let echo = FunctionTool::new("echo", "Says it again.", |args: Value| async move { Ok(args) });
        assert_eq!(*echo.spec.parameters, json!({"type": "object"}));
        assert_eq!(
            call(&echo, json!({"a": [1, {"b": null}]})).await.unwrap(),
            json!({"a": [1, {"b": null}]})
        );
    }

    #[tokio::test]
    async fn errors_turn_into_tool_errors() {
        let parse = FunctionTool::new("parse", "Reads a number.", |trip: Trip| async move {
            if trip.days == 0 {
                return Err(ToolError::new("no days"));
            }
            let number: i32 = trip.to.parse()?;
            Ok(number)
        });
        assert_eq!(call(&parse, json!({"to": "12", "days": 1})).await.unwrap(), json!(12));
        let error = call(&parse, json!({"to": "x", "days": 1})).await.unwrap_err();
        assert_eq!(error.error().kind(), ErrorKind::Tool);
        assert_eq!(error.to_string(), "invalid digit found in string");
        assert_eq!(call(&parse, json!({"to": "x", "days": 0})).await.unwrap_err().to_string(), "no days");
    }

    #[tokio::test]
    async fn a_closure_with_context_acts_on_the_run() {
        let note = FunctionTool::with_context("note", "Keeps a note.", |cx, trip: Trip| {
            Box::pin(async move {
                tokio::task::yield_now().await;
                cx.set_state("to", trip.to.clone());
                let days: u32 = "3".parse()?;
                Ok(days)
            })
        });
        let cx = context(&note);
        let answer = call_with(&note, &cx, json!({"to": "Rome", "days": 1})).await.unwrap();
        assert_eq!(answer.value, json!(3));
        assert_eq!(cx.state("to"), Some(json!("Rome")));
        assert!(refused(&note, json!({})).await.starts_with("`note` was not called"));
    }

    #[tokio::test]
    async fn a_blocking_closure_runs_on_another_thread() {
        let here = format!("{:?}", std::thread::current().id());
        let thread = FunctionTool::blocking("thread", "Names its thread.", |_: Value| {
            Ok(format!("{:?}", std::thread::current().id()))
        });
        assert_ne!(call(&thread, json!({})).await.unwrap(), json!(here));
    }

    #[tokio::test]
    async fn a_panic_on_another_thread_becomes_an_error() {
        fn fall(_: Value) -> Result<(), ToolError> {
            panic!("no ground")
        }
        let fall = FunctionTool::blocking("fall", "Falls.", fall);
        let error = call(&fall, json!({})).await.unwrap_err();
        assert_eq!(error.error().kind(), ErrorKind::Panic);
        assert_eq!(error.to_string(), "the tool `fall` panicked: no ground");
    }

    #[tokio::test]
    async fn a_raw_closure_gets_the_arguments_as_they_came() {
        let spec = ToolSpec::new("count", "Counts.", json!({"type": "object"}));
        let count = FunctionTool::raw(spec, |cx, args| {
            Box::pin(async move {
                cx.skip_summarization();
                Ok(json!(args.len()).into())
            })
        });
        assert_eq!(call(&count, json!({"a": 1, "b": 2})).await.unwrap(), json!(2));
    }

    #[tokio::test]
    async fn an_output_is_passed_on_unchanged() {
        let fail = FunctionTool::new("fail", "Says it failed.", |_: Value| async {
            Ok(ToolValue { is_error: true, ..ToolValue::default() })
        });
        assert!(call_with(&fail, &context(&fail), json!({})).await.unwrap().is_error);
        let plain =
            FunctionTool::new("plain", "Says yes.", |_: Value| async { Ok(ToolOutput::from(json!("yes"))) });
        assert_eq!(call(&plain, json!({})).await.unwrap(), json!("yes"));
    }

    #[test]
    fn builder_methods_set_the_flags_of_the_spec() {
        let spec = trip().spec;
        let off = (spec.long_running, spec.read_only, spec.idempotent, spec.exclusive, spec.timeout);
        assert_eq!(off, (false, false, false, false, None));
        assert!(!spec.confirm.needed(&Object::new()));
        let tool = trip().long_running().read_only().idempotent().exclusive();
        let spec = tool.timeout(Duration::from_secs(5)).confirm(Confirm::Always).spec;
        let on = (spec.long_running, spec.read_only, spec.idempotent, spec.exclusive, spec.timeout);
        assert_eq!(on, (true, true, true, true, Some(Duration::from_secs(5))));
        assert!(spec.confirm.needed(&Object::new()));
    }
}
