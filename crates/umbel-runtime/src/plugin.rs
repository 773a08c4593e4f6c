//! A plugin: callbacks for every agent of a runner, under one name.

use std::fmt;
use std::sync::Arc;

use smol_str::SmolStr;
use umbel_core::{
    BoxFuture, Callbacks, Content, Context, Error, ErrorKind, Event, Handler, Hooks, Meta, ModelRequest,
    Object, Outcome, Response, Result, Run, Source, Tool, ToolContext, Work,
};

use crate::text;

type OnUserMessage =
    Arc<dyn for<'a> Fn(&'a Run, &'a Content) -> BoxFuture<'a, Result<Option<Content>>> + Send + Sync>;
type BeforeRun = Arc<dyn for<'a> Fn(&'a Run) -> BoxFuture<'a, Result<Option<Content>>> + Send + Sync>;
type OnEvent = Arc<dyn for<'a> Fn(&'a Run, &'a Event) -> BoxFuture<'a, Result<Option<Event>>> + Send + Sync>;
type AfterRun = Arc<dyn for<'a> Fn(&'a Run, &'a Outcome) -> BoxFuture<'a, Result<()>> + Send + Sync>;
type Close = Arc<dyn Fn() -> BoxFuture<'static, Result<()>> + Send + Sync>;

/// Callbacks for every agent of a runner, in google-adk's sequence. An error in one fails the run and names it.
#[derive(Clone, Default)]
pub struct Plugin {
    name: SmolStr,
    pub(crate) callbacks: Callbacks,
    on_user_message: Option<OnUserMessage>,
    before_run: Option<BeforeRun>,
    on_event: Option<OnEvent>,
    after_run: Option<AfterRun>,
    close: Option<Close>,
}

macro_rules! hook {
    ($(#[$doc:meta])* $name:ident -> $field:ident $(. $list:ident)?: $($bound:tt)*) => {
        $(#[$doc])*
        pub fn $name<F>(mut self, callback: F) -> Self
        where
            F: $($bound)* + Send + Sync + 'static,
        {
            hook!(@set self, callback, $field $(. $list)?);
            self
        }
    };
    (@set $self:ident, $callback:ident, $field:ident . $list:ident) => { $self.$field.$list.push(Arc::new($callback)) };
    (@set $self:ident, $callback:ident, $field:ident) => { $self.$field = Some(Arc::new($callback)) };
}

impl Plugin {
    /// A plugin without callbacks.
    pub fn new(name: impl Into<SmolStr>) -> Self {
        Self { name: name.into(), ..Self::default() }
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    hook! {
        /// Sees what the user said, before it is stored, and may give something else in its place.
        on_user_message -> on_user_message:
            for<'a> Fn(&'a Run, &'a Content) -> BoxFuture<'a, Result<Option<Content>>>
    }
    hook! {
        /// May answer in the place of all agents.
        before_run -> before_run: for<'a> Fn(&'a Run) -> BoxFuture<'a, Result<Option<Content>>>
    }
    hook! {
        /// Sees each event before it is stored. What it gives is laid over the event, but for id, run and time.
        on_event -> on_event: for<'a> Fn(&'a Run, &'a Event) -> BoxFuture<'a, Result<Option<Event>>>
    }
    hook! {
        /// Sees how a run ended, unless it failed.
        after_run -> after_run: for<'a> Fn(&'a Run, &'a Outcome) -> BoxFuture<'a, Result<()>>
    }
    hook! {
        /// Called when the runner is closed.
        on_close -> close: Fn() -> BoxFuture<'static, Result<()>>
    }
    hook! {
        /// Called before an agent works; a content answers in its place.
        before_agent -> callbacks.before_agent: for<'a> Fn(&'a Context) -> BoxFuture<'a, Result<Option<Content>>>
    }
    hook! {
        /// Called after an agent worked; a content is added.
        after_agent -> callbacks.after_agent: for<'a> Fn(&'a Context) -> BoxFuture<'a, Result<Option<Content>>>
    }
    hook! {
        /// Called before the model is asked; a response answers in its place.
        before_model -> callbacks.before_model:
            for<'a> Fn(&'a Context, &'a mut ModelRequest) -> BoxFuture<'a, Result<Option<Response>>>
    }
    hook! {
        /// Called after the model answered; a response takes the place of its.
        after_model -> callbacks.after_model:
            for<'a> Fn(&'a Context, &'a Response) -> BoxFuture<'a, Result<Option<Response>>>
    }
    hook! {
        /// Called after the model failed; a response is as good as an answer.
        on_model_error -> callbacks.on_model_error:
            for<'a> Fn(&'a Context, &'a ModelRequest, &'a Error) -> BoxFuture<'a, Result<Option<Response>>>
    }
    hook! {
        /// Called before a tool; an object answers in its place.
        before_tool -> callbacks.before_tool:
            for<'a> Fn(&'a ToolContext, Option<&'a dyn Tool>, &'a mut Object) -> BoxFuture<'a, Result<Option<Object>>>
    }
    hook! {
        /// Called after a tool; an object takes the place of its result.
        after_tool -> callbacks.after_tool:
            for<'a> Fn(&'a ToolContext, &'a Object, &'a Object) -> BoxFuture<'a, Result<Option<Object>>>
    }
    hook! {
        /// Called after a tool failed; an object is as good as a result.
        on_tool_error -> callbacks.on_tool_error:
            for<'a> Fn(&'a ToolContext, &'a Object, &'a Error) -> BoxFuture<'a, Result<Option<Object>>>
    }

    /// An error of a callback, with the name of the plugin and the hook.
    pub(crate) fn named(&self, hook: &str, error: Error) -> Error {
        if error.is_control() {
            return error;
        }
        let message = text::plugin_error(&self.name, hook, error.message());
        Error::new(ErrorKind::Handler, message).with_source(error)
    }
}

/// All plugins of a runner as one handler: of what several of them give, the first counts, and the others are not
/// asked.
pub(crate) struct Plugins(pub(crate) Vec<Arc<Plugin>>);

impl Handler for Plugins {
    fn name(&self) -> &str {
        "plugins"
    }

    fn hooks(&self) -> Hooks {
        let hook = |has: fn(&Plugin) -> bool, hook: Hooks| {
            if self.0.iter().any(|plugin| has(plugin)) { hook } else { Hooks::NONE }
        };
        hook(|plugin| plugin.on_user_message.is_some(), Hooks::ON_INPUT)
            | hook(|plugin| plugin.before_run.is_some(), Hooks::BEFORE_RUN)
            | hook(|plugin| plugin.on_event.is_some(), Hooks::ON_EVENT)
            | hook(|plugin| plugin.after_run.is_some(), Hooks::AFTER_RUN)
            | hook(|plugin| plugin.close.is_some(), Hooks::CLOSE)
    }

    fn on_input<'a>(&'a self, run: &'a Run, input: Arc<Content>) -> Work<'a, Result<Arc<Content>>> {
        Work::later(async move {
            for plugin in &self.0 {
                let Some(callback) = &plugin.on_user_message else { continue };
                let given = callback(run, &input).await.map_err(|e| plugin.named("on_user_message", e))?;
                if let Some(given) = given {
                    return Ok(Arc::new(given));
                }
            }
            Ok(input)
        })
    }

    fn before_run<'a>(&'a self, run: &'a Run) -> Work<'a, Result<Option<Content>>> {
        Work::later(async move {
            for plugin in &self.0 {
                let Some(callback) = &plugin.before_run else { continue };
                let given = callback(run).await.map_err(|e| plugin.named("before_run", e))?;
                if given.is_some() {
                    return Ok(given);
                }
            }
            Ok(None)
        })
    }

    fn on_event<'a>(&'a self, run: &'a Run, event: Event) -> Work<'a, Result<Event>> {
        Work::later(async move {
            for plugin in &self.0 {
                let Some(callback) = &plugin.on_event else { continue };
                let given = callback(run, &event).await.map_err(|e| plugin.named("on_event", e))?;
                if let Some(given) = given {
                    return Ok(lay_over(event, given));
                }
            }
            Ok(event)
        })
    }

    fn after_run<'a>(&'a self, run: &'a Run, outcome: &'a Outcome) -> Work<'a, Result<()>> {
        if matches!(outcome, Outcome::Failed { .. }) {
            return Work::done(Ok(()));
        }
        Work::later(async move {
            for plugin in &self.0 {
                let Some(callback) = &plugin.after_run else { continue };
                callback(run, outcome).await.map_err(|e| plugin.named("after_run", e))?;
            }
            Ok(())
        })
    }

    fn close(&self) -> Work<'_, Result<()>> {
        Work::later(async move {
            for plugin in &self.0 {
                let Some(callback) = &plugin.close else { continue };
                callback().await.map_err(|e| plugin.named("close", e))?;
            }
            Ok(())
        })
    }
}

/// What is set in `given` takes the place of what the event has, but for id, run and time.
fn lay_over(event: Event, given: Event) -> Event {
    let author = if given.source.author.is_empty() { &event.source.author } else { &given.source.author };
    let source = Source {
        author: author.clone(),
        branch: given.source.branch.clone().or_else(|| event.source.branch.clone()),
        isolation_scope: given
            .source
            .isolation_scope
            .clone()
            .or_else(|| event.source.isolation_scope.clone()),
    };
    Event {
        id: event.id,
        run: event.run,
        timestamp: event.timestamp,
        source: if source == *event.source { event.source } else { Arc::new(source) },
        content: given.content.or(event.content),
        partial: given.partial.or(event.partial),
        turn_complete: given.turn_complete.or(event.turn_complete),
        actions: given.actions.or(event.actions),
        long_running_tool_ids: given.long_running_tool_ids.or(event.long_running_tool_ids),
        meta: match (event.meta, given.meta) {
            (Some(meta), Some(given)) => Some(lay_over_meta(meta, *given)),
            (meta, given) => given.or(meta),
        },
    }
}

fn lay_over_meta(mut meta: Box<Meta>, given: Meta) -> Box<Meta> {
    macro_rules! lay {
        ($($field:ident),*) => {
            $(if given.$field.is_some() { meta.$field = given.$field; })*
        };
    }
    lay!(
        finish_reason,
        finish_message,
        error_code,
        error_message,
        interrupted,
        usage_metadata,
        grounding_metadata
    );
    lay!(citation_metadata, custom_metadata, input_transcription, output_transcription, model_version);
    lay!(live_session_id, node_info);
    meta.unknown.extend(given.unknown);
    meta
}

impl fmt::Debug for Plugin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Plugin({})", self.name)
    }
}
