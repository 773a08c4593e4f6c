//! Tools of a file: built-in ones, HTTP services, pages, programs and MCP servers.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use serde_json::{Value, json};
use toml::de::DeValue;
use umbel::{
    BoxFuture, Clock, Confirm, ExitLoop, FunctionTool, LoadArtifacts, LoadMemory, ModelRequest, Object,
    PreloadMemory, RequestInput, Result, Run, SystemClock, Tool, ToolContext, ToolError, ToolOutput,
    ToolSpec,
};
use umbel_mcp::client::{Approval, FilePins, Http, McpToolset, Stdio, ToolsetLimits};
use umbel_tools::{Command, Guard, HttpGet, HttpLimits, OAuthClient, OpenApi, Secret};

use super::Reading;
use super::table::{At, Table, json as to_json};

/// The tools that need no words but their name.
pub(super) const BUILT_IN: [&str; 6] =
    ["current_time", "exit_loop", "load_artifacts", "load_memory", "preload_memory", "request_input"];

/// Tools by the name that agents have them by; a service has several.
pub(super) type Toolbox = BTreeMap<String, Tools>;

/// Tools that are known, and those that a server is asked for.
#[derive(Clone, Default)]
pub(super) struct Tools {
    pub(super) known: Vec<Arc<dyn Tool>>,
    pub(super) servers: Vec<McpToolset>,
}

impl Tools {
    fn one(tool: Arc<dyn Tool>) -> Self {
        Self { known: vec![tool], servers: Vec::new() }
    }
}

/// A built-in tool.
pub(super) fn built_in(name: &str) -> Option<Arc<dyn Tool>> {
    Some(match name {
        "current_time" => Arc::new(current_time()),
        "exit_loop" => Arc::new(ExitLoop),
        "load_artifacts" => Arc::new(LoadArtifacts),
        "load_memory" => Arc::new(LoadMemory),
        "preload_memory" => Arc::new(PreloadMemory),
        "request_input" => Arc::new(RequestInput),
        _ => return None,
    })
}

fn current_time() -> FunctionTool {
    let parameters = json!({"type": "object", "properties": {}});
    let spec = ToolSpec::new("current_time", "Tells the date and the time, in UTC.", parameters);
    FunctionTool::raw(spec, |_, _| Box::pin(async { Ok(json!({"utc": written(SystemClock.now())}).into()) }))
        .read_only()
}

/// A time as people and machines write it: `2026-11-16T01:02:03Z`.
fn written(seconds: f64) -> String {
    let seconds = seconds.max(0.0) as u64;
    let (days, rest) = (seconds / 86_400, seconds % 86_400);
    // Years are counted from March, so that the odd day comes last.
    let days = days + 719_468;
    let (era, day) = (days / 146_097, days % 146_097);
    let year = (day - day / 1_460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let date = day - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    let year = era * 400 + year + u64::from(month <= 2);
    format!("{year:04}-{month:02}-{date:02}T{:02}:{:02}:{:02}Z", rest / 3_600, rest / 60 % 60, rest % 60)
}

/// A tool that a person must agree to.
pub(super) struct Confirmed {
    tool: Arc<dyn Tool>,
    spec: ToolSpec,
}

impl Confirmed {
    pub(super) fn new(tool: Arc<dyn Tool>) -> Self {
        let spec = ToolSpec { confirm: Confirm::Always, ..tool.spec().clone() };
        Self { tool, spec }
    }
}

impl Tool for Confirmed {
    fn spec(&self) -> &ToolSpec {
        &self.spec
    }

    fn call<'a>(
        &'a self,
        cx: &'a ToolContext,
        args: Arc<Object>,
    ) -> BoxFuture<'a, Result<ToolOutput, ToolError>> {
        self.tool.call(cx, args)
    }

    fn prepare<'a>(
        &'a self,
        run: &'a Run,
        request: &'a mut ModelRequest,
    ) -> Option<BoxFuture<'a, Result<()>>> {
        self.tool.prepare(run, request)
    }

    fn agent(&self) -> Option<&Arc<dyn umbel::Agent>> {
        self.tool.agent()
    }

    fn check(&self) -> Result<()> {
        self.tool.check()
    }
}

/// What a tool of a file is.
#[derive(Clone, Copy)]
enum Kind {
    Command,
    HttpGet,
    Mcp,
    OpenApi,
}

impl<'a> Reading<'a> {
    /// The tools that the file describes.
    pub(super) fn toolbox(&self, tools: &Table<'a>) -> Toolbox {
        let mut toolbox = Toolbox::new();
        for (name, value) in tools.all() {
            let Some(mut table) = Table::of(self.problems, value) else { continue };
            table.at = name.at.clone();
            if BUILT_IN.contains(&name.value) {
                let message = format!("`{}` is the name of a built-in tool", name.value);
                self.problems.hint(&name.at, message, "choose another name");
            }
            let before = self.problems.count();
            let made = self.tool(&name, &table);
            match made {
                Err(error) if self.problems.count() == before => {
                    self.problems.note(&name.at, error.message());
                }
                Err(_) => {}
                Ok(made) => {
                    toolbox.insert(name.value.to_owned(), made);
                }
            }
            table.finish();
        }
        toolbox
    }

    fn tool(&self, name: &At<&str>, table: &Table<'a>) -> Result<Tools> {
        let kinds = [
            ("openapi", Kind::OpenApi),
            ("command", Kind::Command),
            ("http_get", Kind::HttpGet),
            ("mcp", Kind::Mcp),
        ];
        if table.get("kind").is_none() {
            let hint = "such as kind = \"openapi\", \"command\", \"http_get\" or \"mcp\"";
            self.problems.hint(&name.at, format!("the tool `{}` has no `kind`", name.value), hint);
        }
        match table.choice("kind", &kinds) {
            Some(Kind::OpenApi) => Ok(Tools { known: self.openapi(name, table)?, servers: Vec::new() }),
            Some(Kind::Command) => Ok(Tools::one(self.command(name, table)?)),
            Some(Kind::HttpGet) => Ok(Tools::one(self.http_get(name, table)?)),
            Some(Kind::Mcp) => Ok(Tools { known: Vec::new(), servers: vec![self.mcp(name, table)?] }),
            // Nobody can tell which keys such a tool has.
            None => {
                table.all().into_iter().for_each(|(key, _)| table.know(key.value));
                Err(umbel::Error::new(umbel::ErrorKind::Build, "the tool has no kind"))
            }
        }
    }

    fn openapi(&self, name: &At<&str>, table: &Table<'a>) -> Result<Vec<Arc<dyn Tool>>> {
        let missing = || umbel::Error::new(umbel::ErrorKind::Build, "say which document, with `file`");
        let file = table.text("file");
        let mut service = match &file {
            Some(file) => match self.read_file(file) {
                Some(document) => OpenApi::read(&document).unwrap_or_else(|error| {
                    self.problems.note(&file.at, error.message());
                    OpenApi::new(Value::Null)
                }),
                None => OpenApi::new(Value::Null),
            },
            None => OpenApi::new(Value::Null),
        };
        service = service.name(name.value).limits(limits(table));
        if let Some(prefix) = table.text("prefix") {
            service = service.prefix(prefix.value);
        }
        if let Some(server) = table.text("server") {
            service = service.server(server.value);
        }
        for id in table.texts("operations") {
            service = service.operation(id.value);
        }
        for tag in table.texts("tags") {
            service = service.tag(tag.value);
        }
        for host in table.texts("allow_hosts") {
            service = service.allow_host(host.value);
        }
        for host in table.texts("allow_private") {
            service = service.allow_private(host.value);
        }
        if let Some(token) = table.text("bearer").and_then(|token| self.secret(&token)) {
            service = service.bearer(&token);
        }
        for (header, value) in self.secrets(table, "headers") {
            service = service.header(header, value);
        }
        for (key, value) in self.secrets(table, "query") {
            service = service.query_key(key, value);
        }
        for (scheme, value) in table.table("security").map(|schemes| schemes.all()).unwrap_or_default() {
            if let Some(given) = Table::of(self.problems, value) {
                service = self.security(service, &scheme, &given);
                given.finish();
            }
        }
        service = match table.get("confirm").map(|value| (value, value.get_ref())) {
            None | Some((_, DeValue::Boolean(false))) => service,
            Some((_, DeValue::Boolean(true))) => service.confirm(),
            Some((_, DeValue::String(word))) if word == "changes" => service.confirm_changes(),
            Some((value, _)) => {
                let message = "`confirm` must be true, false or \"changes\"";
                self.problems.note(&value.span(), message);
                service
            }
        };
        file.ok_or_else(missing)?;
        Ok(service.build()?.tools().to_vec())
    }

    /// What is given for a security scheme of a service.
    fn security(&self, service: OpenApi, scheme: &At<&str>, given: &Table<'a>) -> OpenApi {
        let secret = |key| given.text(key).and_then(|text| self.secret(&text));
        let (redirect, key_id) = (given.text("redirect_uri"), given.text("client_key_id"));
        let client = given.text("client_id").map(|id| OAuthClient::new(id.value));
        let client = match (client, secret("client_secret"), secret("client_key")) {
            (Some(client), Some(secret), None) => Ok(Some(client.secret(secret))),
            (Some(client), None, Some(key)) => client.private_key(key, key_id.map(|id| id.value)).map(Some),
            (Some(_), Some(_), Some(_)) => Ok(None),
            (client, ..) => Ok(client),
        };
        let client = match client {
            Ok(client) => client,
            Err(error) => {
                self.problems.note(&scheme.at, error.message());
                return service;
            }
        };
        match (client, redirect, secret("secret"), given.flag("ask")) {
            (Some(client), Some(redirect), None, false) => {
                service.sign_in(scheme.value, client, redirect.value)
            }
            (Some(client), None, None, false) => service.sign_in_as_program(scheme.value, client),
            (None, None, Some(secret), false) => service.secret(scheme.value, secret),
            (None, None, None, true) => service.ask_for(scheme.value),
            _ => {
                let message = format!("the security scheme `{}` is given nothing, or too much", scheme.value);
                let hint = "give it `client_id` with `redirect_uri`, or `secret`, or `ask = true`";
                self.problems.hint(&scheme.at, message, hint);
                service
            }
        }
    }

    fn http_get(&self, name: &At<&str>, table: &Table<'a>) -> Result<Arc<dyn Tool>> {
        let hosts: Vec<&str> = table.texts("hosts").iter().map(|host| host.value).collect();
        let mut guard = Guard::new(&hosts);
        let private = table.texts("allow_private");
        for host in &private {
            guard = guard.allow_private(host.value);
        }
        if hosts.is_empty() && private.is_empty() {
            let what = "say which hosts may be read, with `hosts = [\"docs.example.org\"]`";
            return Err(umbel::Error::new(umbel::ErrorKind::Build, what));
        }
        let mut tool = HttpGet::with_limits(guard, limits(table))?.named(name.value);
        if let Some(description) = table.text("description") {
            tool = tool.description(description.value);
        }
        let tool: Arc<dyn Tool> = Arc::new(tool);
        Ok(if table.flag("confirm") { Arc::new(Confirmed::new(tool)) } else { tool })
    }

    fn command(&self, name: &At<&str>, table: &Table<'a>) -> Result<Arc<dyn Tool>> {
        let text = |key| table.text(key).map(|text| text.value);
        let program = self.program(text("program").unwrap_or_default());
        let description = text("description").unwrap_or_default();
        let args: Vec<&str> = table.texts("args").iter().map(|arg| arg.value).collect();
        let folder = self.working_folder(text("folder"));
        let mut command = Command::new(name.value, description, program).args(args).folder(folder);
        command = command.schema(arguments(table));
        for name in table.texts("keep_env") {
            command = command.keep_env(name.value);
        }
        for (name, value) in self.variables(table) {
            command = command.env(name, value);
        }
        if let Some(time) = table.seconds("timeout") {
            command = command.timeout(time);
        }
        if let Some(bytes) = table.whole("max_bytes") {
            command = command.output_bytes(bytes);
        }
        for name in table.texts("allow") {
            command = command.allow(name.value);
        }
        if table.flag("stdin") {
            command = command.stdin_json();
        }
        if table.flag("read_only") {
            command = command.read_only();
        }
        if table.flag("confirm") {
            command = command.confirm(Confirm::Always);
        }
        self.check_commands(name);
        Ok(Arc::new(command.build()?))
    }

    /// An MCP server: a program, or one at a web address.
    fn mcp(&self, name: &At<&str>, table: &Table<'a>) -> Result<McpToolset> {
        let text = |key| table.text(key).map(|text| text.value);
        let (url, program) = (text("url"), text("program"));
        let args: Vec<&str> = table.texts("args").iter().map(|arg| arg.value).collect();
        let mut stdio = Stdio::new(self.program(program.unwrap_or_default()));
        stdio = stdio.args(args).folder(self.working_folder(text("folder")));
        for name in table.texts("keep_env") {
            stdio = stdio.keep_env(name.value);
        }
        for (name, value) in self.variables(table) {
            stdio = stdio.env(name, value);
        }
        let mut http = Http::new(url.unwrap_or_default());
        for (header, value) in self.secrets(table, "headers") {
            http = http.header(header, value);
        }
        let mut tools = match (url, program) {
            (Some(_), None) => McpToolset::new(name.value, http),
            (None, Some(_)) => {
                self.check_commands(name);
                McpToolset::new(name.value, stdio)
            }
            _ => {
                let what = "say where the server is, either with `program` or with `url`";
                return Err(umbel::Error::new(umbel::ErrorKind::Build, what));
            }
        };
        let only: Vec<&str> = table.texts("only").iter().map(|name| name.value).collect();
        if !only.is_empty() {
            tools = tools.only(only);
        }
        if let Some(prefix) = text("prefix") {
            tools = tools.prefix(prefix);
        }
        if let Some(time) = table.seconds("timeout") {
            tools = tools.limits(ToolsetLimits { answer: time, ..ToolsetLimits::default() });
        }
        if let Some(pins) = text("pins") {
            tools = tools.pins(FilePins::new(self.folder.join(pins)));
        }
        let approvals = [("ask", Approval::Ask), ("refuse", Approval::Refuse), ("trust", Approval::Trust)];
        if let Some(first) = table.choice("first_use", &approvals) {
            tools = tools.first_use(first);
        }
        if let Some(changes) = table.choice("changes", &approvals) {
            tools = tools.changes(changes);
        }
        let flags: [(&'static str, fn(McpToolset) -> McpToolset); 6] = [
            ("trust_hints", McpToolset::trust_hints),
            ("resources", McpToolset::resources),
            ("instructions", McpToolset::instructions),
            ("optional", McpToolset::optional),
            ("one_at_a_time", McpToolset::one_at_a_time),
            ("confirm", |tools| tools.confirm(Confirm::Always)),
        ];
        for (key, set) in flags {
            if table.flag(key) {
                tools = set(tools);
            }
        }
        Ok(tools)
    }

    /// A program. A path is meant from where the file is; a bare name is looked for as always.
    fn program(&self, program: &str) -> PathBuf {
        if !program.contains('/') {
            return PathBuf::from(program);
        }
        // It is made whole, since the program runs in another folder than this process.
        let path = self.folder.join(program);
        std::path::absolute(&path).unwrap_or(path)
    }

    /// Where a program runs: where the file is, unless it says otherwise.
    fn working_folder(&self, folder: Option<&str>) -> PathBuf {
        let folder = folder.map_or_else(|| self.folder.to_owned(), |folder| self.folder.join(folder));
        // A command without a folder to run in fails when it is called; an empty one is here.
        if folder.as_os_str().is_empty() { PathBuf::from(".") } else { folder }
    }

    /// What is set for a program.
    fn variables(&self, table: &Table<'a>) -> Vec<(&'a str, &'a str)> {
        let mut variables = Vec::new();
        for (name, value) in table.table("env").map(|env| env.all()).unwrap_or_default() {
            match value.get_ref().as_str() {
                Some(value) => variables.push((name.value, value)),
                None => self.problems.note(&value.span(), "a variable must be a text"),
            }
        }
        variables
    }

    fn check_commands(&self, name: &At<&str>) {
        if !self.trust.commands {
            let message = format!("the tool `{}` runs a program, and programs are off", name.value);
            let hint = "if you trust this file, start with --allow-commands";
            self.problems.hint(&name.at, message, hint);
        }
    }

    /// A value with `${NAME}` from the environment.
    fn secret(&self, text: &At<&str>) -> Option<Secret> {
        let refused = std::cell::RefCell::new(Vec::new());
        let made = Secret::expand(text.value, |name| {
            if !self.trust.commands && !self.trust.variables.iter().any(|known| known == name) {
                refused.borrow_mut().push(name.to_owned());
                // What it holds is not looked at.
                return Some("-".to_owned());
            }
            std::env::var(name).ok()
        });
        for name in refused.take() {
            let hint = format!("if it may be sent to where this file says, start with --allow-env {name}");
            self.problems.hint(
                &text.at,
                format!("the file uses the variable `{name}` of the environment"),
                hint,
            );
        }
        made.map_err(|error| self.problems.note(&text.at, error.message())).ok()
    }

    fn secrets(&self, table: &Table<'a>, key: &'static str) -> Vec<(&'a str, Secret)> {
        let mut secrets = Vec::new();
        for (name, value) in table.table(key).map(|table| table.all()).unwrap_or_default() {
            match value.get_ref().as_str() {
                Some(text) => {
                    let secret = self.secret(&At { value: text, at: value.span() });
                    secrets.extend(secret.map(|secret| (name.value, secret)));
                }
                None => self.problems.note(&value.span(), "this must be a text"),
            }
        }
        secrets
    }
}

fn limits(table: &Table<'_>) -> HttpLimits {
    let usual = HttpLimits::default();
    HttpLimits {
        time: table.seconds("timeout").unwrap_or(usual.time),
        bytes: table.whole("max_bytes").unwrap_or(usual.bytes),
        redirects: table.whole("redirects").unwrap_or(usual.redirects),
    }
}

/// The schema of a command's arguments: a schema for each, all of them mandatory unless they are optional.
fn arguments(table: &Table<'_>) -> Value {
    let properties: Object = table
        .table("arguments")
        .map(|arguments| arguments.all())
        .unwrap_or_default()
        .into_iter()
        .map(|(name, schema)| (name.value.to_owned(), to_json(schema.get_ref())))
        .collect();
    let optional: Vec<&str> = table.texts("optional").iter().map(|name| name.value).collect();
    let required: Vec<&String> =
        properties.keys().filter(|name| !optional.contains(&name.as_str())).collect();
    json!({"type": "object", "required": required, "properties": properties, "additionalProperties": false})
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_written_as_usual() {
        assert_eq!(written(0.0), "1970-01-01T00:00:00Z");
        assert_eq!(written(951_782_400.0), "2000-02-29T00:00:00Z");
        assert_eq!(written(1_709_251_199.9), "2024-02-29T23:59:59Z");
        assert_eq!(written(4_107_542_400.0), "2100-03-01T00:00:00Z");
        assert_eq!(written(-5.0), "1970-01-01T00:00:00Z");
    }

    #[test]
    fn every_built_in_tool_is_there() {
        for name in BUILT_IN {
            assert!(built_in(name).is_some(), "{name}");
        }
        assert!(built_in("nothing").is_none());
    }
}
