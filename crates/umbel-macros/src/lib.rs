//! The attributes `#[tool]` and `#[handler]`.

use proc_macro::TokenStream;

mod expand;
mod handler;
mod options;
mod signature;

/// Makes a tool of a function.
///
/// The function's doc comment tells the model what the tool does, the doc comments of the arguments what they are:
///
/// ```
/// use umbel::tool;
///
/// /// Tells the weather of a city.
/// #[tool(read_only)]
/// async fn get_weather(
///     /// The city, in English.
///     city: String,
///     /// How many days to look ahead; today if left out.
///     days: Option<u8>,
/// ) -> Result<String, std::fmt::Error> {
///     Ok(format!("{city} in {} days: sunny", days.unwrap_or(0)))
/// }
///
/// // `get_weather` is now a tool, to be given to an agent with `.tool(get_weather)`.
/// use umbel::Tool;
/// assert_eq!(get_weather.spec().description, "Tells the weather of a city.");
/// assert_eq!(get_weather.spec().parameters["properties"]["city"]["description"], "The city, in English.");
///
/// // The function itself is called `run`, for tests.
/// # async fn check() {
/// assert_eq!(get_weather::run("Rome".into(), None).await.unwrap(), "Rome in 0 days: sunny");
/// # }
/// ```
///
/// # Arguments
///
/// - An argument has a type that implements `serde::Deserialize` and `schemars::JsonSchema`. An `Option` may be left
///   out by the model. `#[serde(…)]` and `#[schemars(…)]` work as on the field of a struct, such as
///   `#[serde(default)]` or `#[schemars(range(min = 1))]`.
/// - `&ToolContext` is the context of the call. Only an `async fn` can have it.
/// - `Dep<T>` is what the runner was given with `.dependency(…)`, by type.
///
/// The model sees nothing of the last two. Arguments that do not fit go back to it with words that say why.
///
/// ```
/// use umbel::{Dep, ToolContext, tool};
///
/// struct Greetings {
///     hello: String,
/// }
///
/// /// Greets someone.
/// #[tool]
/// async fn greet(
///     Dep(greetings): Dep<Greetings>,
///     cx: &ToolContext,
///     /// Whom to greet.
///     name: String,
/// ) -> String {
///     cx.set_state("greeted", name.as_str());
///     format!("{}, {name}!", greetings.hello)
/// }
/// ```
///
/// # Results
///
/// The function returns a `T` or a `Result<T, E>`, where `T` is anything that implements `serde::Serialize`, or a
/// `ToolOutput`, and `E` is any error or a `ToolError`.
///
/// # Functions that block
///
/// A `fn` that is not `async` runs on a thread of its own, so it may block.
///
/// # Methods
///
/// A method with `&self` stays as it is; beside it there is one more, `…_tool`, that gives the tool:
///
/// ```
/// use std::sync::Arc;
/// use std::sync::atomic::{AtomicI64, Ordering};
/// use umbel::{Tool, tool};
///
/// struct Counter(AtomicI64);
///
/// impl Counter {
///     /// Adds to the counter and tells where it stands.
///     #[tool]
///     async fn add(
///         &self,
///         /// How much to add.
///         by: i64,
///     ) -> i64 {
///         self.0.fetch_add(by, Ordering::Relaxed) + by
///     }
/// }
///
/// let counter = Arc::new(Counter(AtomicI64::new(0)));
/// assert_eq!(counter.add_tool().spec().name, "add");
/// ```
///
/// A function of a type without `&self` cannot be a tool: put it outside the `impl`.
///
/// # Options
///
/// | Option | Meaning |
/// |---|---|
/// | `name = "…"` | The tool's name, if not the function's |
/// | `long_running` | The answer comes later: the call's turn ends without it |
/// | `confirm` | A person must agree first |
/// | `read_only` | It changes nothing |
/// | `idempotent` | Calling it twice is as good as once |
/// | `exclusive` | No other call of the batch runs beside it |
/// | `timeout_secs = 5` | How long it may take |
///
/// # What does not compile
///
/// A tool without a description:
///
/// ```compile_fail
/// #[umbel::tool]
/// async fn get_weather(city: String) -> String {
///     city
/// }
/// ```
///
/// An option that does not exist:
///
/// ```compile_fail
/// /// Tells the weather.
/// #[umbel::tool(readonly)]
/// async fn get_weather(city: String) -> String {
///     city
/// }
/// ```
///
/// A `Result` whose error is not an error, even though serde could write it:
///
/// ```compile_fail,E0277
/// /// Tells the weather.
/// #[umbel::tool]
/// async fn get_weather(city: String) -> Result<String, String> {
///     Ok(city)
/// }
/// ```
#[proc_macro_attribute]
pub fn tool(options: TokenStream, function: TokenStream) -> TokenStream {
    expand::tool(options.into(), function.into()).unwrap_or_else(syn::Error::into_compile_error).into()
}

/// Lets the hooks of a `Handler` be written as they are meant.
///
/// It stands on `impl Handler for …`. A hook is an `async fn` if it waits for something, else a plain `fn`, which costs
/// nothing. Which hooks there are is written down in `hooks`, so that the runtime does not ask for the others.
///
/// ```
/// use umbel::{ChunkStream, Handler, Hooks, ModelCall, ModelTurn, NextModel, Result, Step, handler};
///
/// struct Brief {
///     messages: usize,
/// }
///
/// #[handler]
/// impl Handler for Brief {
///     fn name(&self) -> &str {
///         "brief"
///     }
///
///     // Nothing to wait for.
///     fn before_model(&self, turn: &mut ModelTurn<'_>) -> Result<Step> {
///         let much = turn.history.len().saturating_sub(self.messages);
///         turn.history.truncate_front(much);
///         Ok(Step::Continue)
///     }
///
///     async fn wrap_model(&self, mut call: ModelCall<'_>, next: NextModel<'_>) -> Result<ChunkStream<'_>> {
///         call.request.instruction.push("brief", "Be brief.");
///         next.call(call).await
///     }
/// }
///
/// assert_eq!(Brief { messages: 20 }.hooks(), Hooks::BEFORE_MODEL | Hooks::WRAP_MODEL);
/// ```
///
/// # What it changes
///
/// - What a hook borrows gets the lifetime that the trait asks for, so none is named.
/// - The body of an `async fn` becomes a `Work::later`, that of a plain `fn` a `Work::done`.
/// - A hook that returns a `Work` is in the trait's own form and stays as it is: it may decide when it is called whether
///   there is anything to wait for.
/// - `name`, `configure` and `hooks` stay as they are. Without `hooks` it is written.
///
/// ```
/// use umbel::{Handler, NextTool, ToolCall, ToolResult, Work, handler};
///
/// struct Allow(fn(&str) -> bool);
///
/// #[handler]
/// impl Handler for Allow {
///     fn name(&self) -> &str {
///         "allow"
///     }
///
///     fn wrap_tool<'a>(&'a self, call: ToolCall<'a>, next: NextTool<'a>) -> Work<'a, ToolResult> {
///         if !(self.0)(call.name()) {
///             return Work::done(Err(umbel::ToolError::new("this tool may not be used now")));
///         }
///         Work::later(next.call(call))
///     }
/// }
/// ```
///
/// # Options
///
/// | Option | Meaning |
/// |---|---|
/// | `crate = …` | Where the types of Umbel are found, if not in `::umbel` |
///
/// # What does not compile
///
/// A handler without a name:
///
/// ```compile_fail
/// struct Nameless;
///
/// #[umbel::handler]
/// impl umbel::Handler for Nameless {}
/// ```
///
/// A hook that does not exist:
///
/// ```compile_fail
/// struct Early;
///
/// #[umbel::handler]
/// impl umbel::Handler for Early {
///     fn name(&self) -> &str {
///         "early"
///     }
///
///     async fn before_tool(&self) {}
/// }
/// ```
///
/// A hook with other arguments, or without a result:
///
/// ```compile_fail
/// struct Deaf;
///
/// #[umbel::handler]
/// impl umbel::Handler for Deaf {
///     fn name(&self) -> &str {
///         "deaf"
///     }
///
///     async fn on_event(&self, event: umbel::Event) -> umbel::Result<umbel::Event> {
///         Ok(event)
///     }
/// }
/// ```
#[proc_macro_attribute]
pub fn handler(options: TokenStream, item: TokenStream) -> TokenStream {
    handler::handler(options.into(), item.into()).unwrap_or_else(syn::Error::into_compile_error).into()
}
