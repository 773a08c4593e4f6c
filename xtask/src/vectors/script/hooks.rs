//! Callbacks of agents and plugins that leave a trace and answer what they are told to.

use std::sync::Arc;

use serde_json::Value;
use umbel::{
    BoxFuture, Callbacks, Content, Context, Error, ErrorKind, Event, LlmAgent, Object, Plugin, Response,
    Result, ToolContext,
};

use super::{Log, object, text};

/// All hooks of a case.
pub(crate) struct Hooks(Vec<Arc<Hook>>);

/// One callback.
struct Hook {
    owner: String,
    name: String,
    /// Only for this tool.
    tool: Option<String>,
    returns: Option<Value>,
    raises: Option<String>,
    state: Object,
    /// Whether the trace says for which tool it was called.
    tells_tool: bool,
    log: Arc<Log>,
}

impl Hooks {
    pub(super) fn read(callbacks: &[Value], tells_tool: bool, log: &Arc<Log>) -> Self {
        let read = |callback: &Value| {
            let word = |key: &str| text(callback, key).map(str::to_owned);
            Arc::new(Hook {
                owner: word("owner").unwrap_or_default(),
                name: word("hook").unwrap_or_default(),
                tool: word("tool"),
                returns: callback.get("returns").filter(|returns| !returns.is_null()).cloned(),
                raises: word("raises"),
                state: object(callback, "set_state"),
                tells_tool,
                log: log.clone(),
            })
        };
        Self(callbacks.iter().map(read).collect())
    }

    fn of<'a>(&'a self, owner: &'a str) -> impl Iterator<Item = &'a Arc<Hook>> {
        self.0.iter().filter(move |hook| hook.owner == owner)
    }

    /// What is called around an agent.
    pub(super) fn around(&self, owner: &str) -> Callbacks {
        let mut callbacks = Callbacks::default();
        for hook in self.of(owner) {
            match hook.name.as_str() {
                "before_agent" => callbacks.before_agent.push(Arc::new(hook.on_agent())),
                "after_agent" => callbacks.after_agent.push(Arc::new(hook.on_agent())),
                _ => {}
            }
        }
        callbacks
    }

    /// The agent with its hooks.
    pub(crate) fn on_agent(&self, owner: &str, mut agent: LlmAgent) -> LlmAgent {
        for hook in self.of(owner) {
            let hook = hook.clone();
            agent = match hook.name.as_str() {
                "before_agent" => agent.before_agent(hook.on_agent()),
                "after_agent" => agent.after_agent(hook.on_agent()),
                "before_model" => agent.before_model(move |cx, _| hook.response(cx)),
                "after_model" => agent.after_model(move |cx, _| hook.response(cx)),
                "on_model_error" => agent.on_model_error(move |cx, _, _| hook.response(cx)),
                "before_tool" => agent.before_tool(move |cx, _, _| hook.result(cx)),
                "after_tool" => agent.after_tool(move |cx, _, _| hook.result(cx)),
                "on_tool_error" => agent.on_tool_error(move |cx, _, _| hook.result(cx)),
                _ => agent,
            };
        }
        agent
    }

    /// The plugins, in the order in which they are first named.
    pub(crate) fn plugins(&self) -> Vec<Plugin> {
        let mut owners: Vec<&str> = Vec::new();
        for hook in &self.0 {
            if hook.owner.starts_with("plugin:") && !owners.contains(&hook.owner.as_str()) {
                owners.push(&hook.owner);
            }
        }
        owners.into_iter().map(|owner| self.plugin(owner)).collect()
    }

    fn plugin(&self, owner: &str) -> Plugin {
        let mut plugin = Plugin::new(owner.strip_prefix("plugin:").unwrap_or(owner));
        for hook in self.of(owner) {
            let hook = hook.clone();
            plugin = match hook.name.as_str() {
                "on_user_message" => plugin.on_user_message(move |_, _| hook.content()),
                "before_run" => plugin.before_run(move |_| hook.content()),
                "on_event" => plugin.on_event(move |_, _| hook.event()),
                "after_run" => plugin.after_run(move |_, _| {
                    let fired = hook.fire(None).map(|_| ());
                    Box::pin(async { fired })
                }),
                "before_agent" => plugin.before_agent(hook.on_agent()),
                "after_agent" => plugin.after_agent(hook.on_agent()),
                "before_model" => plugin.before_model(move |cx, _| hook.response(cx)),
                "after_model" => plugin.after_model(move |cx, _| hook.response(cx)),
                "on_model_error" => plugin.on_model_error(move |cx, _, _| hook.response(cx)),
                "before_tool" => plugin.before_tool(move |cx, _, _| hook.result(cx)),
                "after_tool" => plugin.after_tool(move |cx, _, _| hook.result(cx)),
                "on_tool_error" => plugin.on_tool_error(move |cx, _, _| hook.result(cx)),
                _ => plugin,
            };
        }
        plugin
    }
}

impl Hook {
    /// Leaves a trace and gives what the hook is to give.
    fn fire(&self, tool: Option<&str>) -> Result<Option<Value>> {
        if let (Some(only), Some(tool)) = (&self.tool, tool)
            && only != tool
        {
            return Ok(None);
        }
        let behind = tool.filter(|_| self.tells_tool).map(|tool| format!(":{tool}")).unwrap_or_default();
        self.log.note(format!("{}.{}{behind}", self.owner, self.name));
        match &self.raises {
            Some(message) => Err(Error::new(ErrorKind::Other, message.clone())),
            None => Ok(self.returns.clone()),
        }
    }

    fn write(&self, cx: &Context) {
        for (key, value) in &self.state {
            cx.set_state(key, value.clone());
        }
    }

    fn on_agent(
        self: &Arc<Self>,
    ) -> impl for<'a> Fn(&'a Context) -> BoxFuture<'a, Result<Option<Content>>> + Send + Sync + use<> {
        let hook = self.clone();
        move |cx| {
            hook.write(cx);
            hook.content()
        }
    }

    fn content<'a>(&self) -> BoxFuture<'a, Result<Option<Content>>> {
        let fired = self.fire(None);
        let read =
            fired.and_then(|given| given.map(serde_json::from_value).transpose().map_err(|e| unreadable(&e)));
        Box::pin(async { read })
    }

    fn event<'a>(&self) -> BoxFuture<'a, Result<Option<Event>>> {
        let fired = self.fire(None);
        let read =
            fired.and_then(|given| given.map(serde_json::from_value).transpose().map_err(|e| unreadable(&e)));
        Box::pin(async { read })
    }

    fn response<'a>(&self, cx: &Context) -> BoxFuture<'a, Result<Option<Response>>> {
        self.write(cx);
        let fired = self.fire(None);
        let read =
            fired.and_then(|given| given.map(serde_json::from_value).transpose().map_err(|e| unreadable(&e)));
        Box::pin(async { read })
    }

    fn result<'a>(&self, cx: &ToolContext) -> BoxFuture<'a, Result<Option<Object>>> {
        self.write(cx);
        let fired = self.fire(Some(cx.tool_name()));
        let read =
            fired.and_then(|given| given.map(serde_json::from_value).transpose().map_err(|e| unreadable(&e)));
        Box::pin(async { read })
    }
}

fn unreadable(error: &serde_json::Error) -> Error {
    Error::new(ErrorKind::InvalidInput, format!("a hook's answer cannot be read: {error}"))
}
