//! Programs as tools. There is no shell: what a model says is an argument or a part of one, and nothing else.

use std::fmt;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::sync::Arc;
use std::time::Duration;

use jsonschema::Validator;
use serde_json::{Value, json};
use smol_str::SmolStr;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};
use tokio::process::Child;
use umbel_core::{
    BoxFuture, Confirm, Error, ErrorKind, Object, Result, Tool, ToolContext, ToolError, ToolOutput, ToolSpec,
    ToolValue,
};

use crate::process::Group;
use crate::program::Program;

/// How long what a program left behind may keep its output open.
const LINGER: Duration = Duration::from_millis(500);
/// Programs that take a text as commands.
const SHELLS: [&str; 12] =
    ["ash", "bash", "cmd", "csh", "dash", "fish", "ksh", "powershell", "pwsh", "sh", "tcsh", "zsh"];
/// Programs that start others, which are named behind them or in what they read.
const STARTERS: [&str; 40] = [
    "bwrap",
    "busybox",
    "chroot",
    "chrt",
    "dbus-run-session",
    "doas",
    "docker",
    "entr",
    "env",
    "expect",
    "fakeroot",
    "find",
    "firejail",
    "flock",
    "ionice",
    "kubectl",
    "make",
    "nice",
    "nohup",
    "nsenter",
    "parallel",
    "podman",
    "runuser",
    "screen",
    "script",
    "setarch",
    "setpriv",
    "setsid",
    "ssh",
    "stdbuf",
    "strace",
    "su",
    "sudo",
    "systemd-run",
    "taskset",
    "time",
    "timeout",
    "tmux",
    "toybox",
    "xargs",
];
/// Programs whose first plain argument is a program of theirs, without the number of their version.
const INTERPRETERS: [&str; 16] = [
    "awk",
    "bun",
    "deno",
    "gawk",
    "guile",
    "lua",
    "luajit",
    "mawk",
    "node",
    "nodejs",
    "osascript",
    "perl",
    "php",
    "python",
    "ruby",
    "tclsh",
];
/// How interpreters are told that code follows, or that a name of code does.
const CODE: [&str; 10] = ["-c", "-e", "-E", "-m", "-p", "-r", "--eval", "--print", "eval", "run"];

/// A program as a tool, in the making.
///
/// Arguments are templates: `{name}` stands for the argument of that name, as one whole argument or as part of one. `{{`
/// and `}}` are braces. An argument of the program whose value is left out is left out too.
///
/// A value that would begin an argument must not begin with `-`, so that it can never be taken for an option. Put `--`
/// before it, if the program knows that; then it may.
///
/// Shells cannot have values, nor can the code of well-known interpreters, nor programs that start others, such as `timeout` or
/// `xargs`, wherever they stand. What is meant otherwise is allowed by its name, with [`allow`](Self::allow). Other programs
/// take a text as commands as well, and cannot all be known: give them no values there.
///
/// ```
/// use serde_json::json;
/// use umbel_core::Tool;
/// use umbel_tools::Command;
///
/// let schema = json!({"type": "object", "properties": {"word": {"type": "string"}}, "required": ["word"]});
/// let count = Command::new("count", "Counts a word in the notes.", "grep")
///     .args(["--count", "--fixed-strings", "--", "{word}", "notes.txt"])
///     .schema(schema)
///     .build()
///     .unwrap();
/// assert_eq!(count.spec().name, "count");
/// ```
#[derive(Clone)]
pub struct Command {
    name: SmolStr,
    description: String,
    program: Program,
    args: Vec<String>,
    schema: Value,
    stdin: bool,
    time: Duration,
    bytes: usize,
    read_only: bool,
    confirm: Confirm,
    allowed: Vec<String>,
}

impl Command {
    /// A program by its name or path.
    pub fn new(
        name: impl Into<SmolStr>,
        description: impl Into<String>,
        program: impl Into<PathBuf>,
    ) -> Self {
        Self {
            name: name.into(),
            description: description.into(),
            program: Program::new(program),
            args: Vec::new(),
            schema: json!({"type": "object", "properties": {}}),
            stdin: false,
            time: Duration::from_secs(30),
            bytes: 64 << 10,
            read_only: false,
            confirm: Confirm::Never,
            allowed: Vec::new(),
        }
    }

    /// Its arguments, as templates.
    pub fn args<T: Into<String>>(mut self, args: impl IntoIterator<Item = T>) -> Self {
        self.args.extend(args.into_iter().map(Into::into));
        self
    }

    /// The JSON schema of what the model may say. It is held against every call.
    pub fn schema(mut self, schema: Value) -> Self {
        self.schema = schema;
        self
    }

    /// The folder it runs in; that of this process if left out.
    pub fn folder(mut self, folder: impl Into<PathBuf>) -> Self {
        self.program = self.program.folder(folder);
        self
    }

    /// Lets it see a variable of the environment. `PATH` and `LANG` are all it sees otherwise.
    pub fn keep_env(mut self, name: impl Into<String>) -> Self {
        self.program = self.program.keep_env(name);
        self
    }

    /// Sets a variable of its environment.
    pub fn env(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.program = self.program.env(name, value);
        self
    }

    /// Gives it the model's arguments on its standard input, as JSON. Otherwise there is nothing to read.
    pub fn stdin_json(mut self) -> Self {
        self.stdin = true;
        self
    }

    /// How long it may take; 30 s. Then it is killed, with all that it started.
    pub fn timeout(mut self, time: Duration) -> Self {
        self.time = time;
        self
    }

    /// How many bytes of its output the model gets, and of its errors; 64 KiB each. The rest is left out, and the model is
    /// told.
    pub fn output_bytes(mut self, bytes: usize) -> Self {
        self.bytes = bytes;
        self
    }

    /// It changes nothing.
    pub fn read_only(mut self) -> Self {
        self.read_only = true;
        self
    }

    /// Whether a person must agree first.
    pub fn confirm(mut self, confirm: Confirm) -> Self {
        self.confirm = confirm;
        self
    }

    /// Lets a word stand beside values though it is the name of a shell, an interpreter or a program that starts others: it is no
    /// program here, or what a model says can do no harm to it. `timeout` may be allowed so before a program that is named.
    pub fn allow(mut self, name: impl Into<String>) -> Self {
        self.allowed.push(name.into().to_ascii_lowercase());
        self
    }

    /// Checks it and makes the tool.
    pub fn build(self) -> Result<CommandTool> {
        let name = &self.name;
        let refuse = |why: String| Error::new(ErrorKind::Build, format!("the command `{name}`: {why}"));
        let program = self.program.path();
        if program.as_os_str().is_empty() {
            return Err(refuse("it has no program".to_owned()));
        }
        if program.to_string_lossy().contains('{') {
            return Err(refuse("which program it is cannot be left to the model: name it".to_owned()));
        }
        let args = self.args.iter().map(|arg| template(arg)).collect::<std::result::Result<Vec<_>, _>>();
        let args = args.map_err(refuse)?;
        let mut named = args.iter().flatten().filter_map(|piece| match piece {
            Piece::Argument(name) => Some(name),
            Piece::Text(_) => None,
        });
        let known = self.schema.get("properties").and_then(Value::as_object);
        if let Some(missing) = named.find(|name| known.is_none_or(|known| !known.contains_key(*name))) {
            let why = format!("`{{{missing}}}` is not in its schema: describe it there, under `properties`");
            return Err(refuse(why));
        }
        if let Some(name) = code_taker(program, &args, &self.allowed) {
            return Err(refuse(format!(
                "what a model says would be taken for commands or code by `{name}`: name the program itself, or \
                 allow `{name}` if it is none here"
            )));
        }
        let validator = jsonschema::validator_for(&self.schema)
            .map_err(|error| refuse(format!("its schema cannot be used: {error}")))?;
        let mut spec = ToolSpec::new(self.name.clone(), self.description.clone(), self.schema.clone());
        (spec.read_only, spec.confirm) = (self.read_only, self.confirm.clone());
        // The limit here comes first, and says more.
        spec.timeout = Some(self.time.saturating_add(Duration::from_secs(5)));
        Ok(CommandTool { spec, args, validator: Arc::new(validator), command: self })
    }
}

/// What is set for the program may be secret, so it is not shown.
impl fmt::Debug for Command {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Command({}, {})", self.name, self.program.path().display())
    }
}

/// The program that would take what a model says for commands or code, as far as that is known. It may be one that another
/// one starts, so all that is fixed is looked at, word by word.
fn code_taker(program: &Path, args: &[Vec<Piece>], allowed: &[String]) -> Option<String> {
    let has_value = |pieces: &Vec<Piece>| pieces.iter().any(|piece| matches!(piece, Piece::Argument(_)));
    if !args.iter().any(has_value) {
        return None;
    }
    let of_program = [(program.to_string_lossy().into_owned(), args)];
    let of_args = args.iter().enumerate().flat_map(|(at, pieces)| {
        let behind = args.get(at + 1..).unwrap_or_default();
        let fixed = pieces.iter().filter_map(|piece| match piece {
            Piece::Text(text) => Some(text),
            Piece::Argument(_) => None,
        });
        // A command may stand in one argument, as behind `ssh`, or behind an option, as in `--shell=sh`.
        let words =
            fixed.flat_map(|text| text.split(|c: char| c.is_whitespace() || "=;|&()`'\"".contains(c)));
        words.filter(|word| !word.is_empty()).map(move |word| (word.to_owned(), behind)).collect::<Vec<_>>()
    });
    of_program.into_iter().chain(of_args).find_map(|(word, behind)| {
        let name = Path::new(&word).file_name().unwrap_or_default().to_string_lossy().to_ascii_lowercase();
        let stem = [".exe", ".cmd", ".bat", ".com"].iter().find_map(|end| name.strip_suffix(end));
        let stem = stem.unwrap_or(&name).to_owned();
        let bare = stem.trim_end_matches(|c: char| c.is_ascii_digit() || matches!(c, '.' | '-'));
        let is_risk = SHELLS.contains(&stem.as_str())
            || STARTERS.contains(&stem.as_str()) && behind.iter().any(has_value)
            || INTERPRETERS.contains(&bare) && gets_code(behind);
        (is_risk && !allowed.contains(&stem)).then_some(stem)
    })
}

/// Whether values are code of an interpreter, by the arguments behind its name: they stand before anything plain, or behind an
/// option that announces code.
fn gets_code(args: &[Vec<Piece>]) -> bool {
    let fixed = |pieces: &[Piece]| match pieces {
        [Piece::Text(text)] => Some(text.clone()),
        _ => None,
    };
    let is_plain = |pieces: &Vec<Piece>| fixed(pieces).is_some_and(|text| !text.starts_with('-'));
    let plain = args.iter().position(is_plain).unwrap_or(args.len());
    let Some(value) = args.iter().position(|pieces| fixed(pieces).is_none()) else { return false };
    let announced = |pair: &[Vec<Piece>]| match pair {
        [flag, code] => {
            fixed(flag).is_some_and(|flag| CODE.contains(&flag.as_str())) && fixed(code).is_none()
        }
        _ => false,
    };
    value < plain || args.windows(2).any(announced)
}

/// A part of an argument.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Piece {
    Text(String),
    Argument(String),
}

/// Reads a template.
fn template(text: &str) -> std::result::Result<Vec<Piece>, String> {
    let (mut pieces, mut plain) = (Vec::new(), String::new());
    let mut rest = text.chars().peekable();
    while let Some(c) = rest.next() {
        match c {
            '{' | '}' if rest.peek() == Some(&c) => {
                rest.next();
                plain.push(c);
            }
            '{' => {
                let name: String = rest.by_ref().take_while(|c| *c != '}').collect();
                let is_name = |c: char| c.is_alphanumeric() || c == '_' || c == '-';
                if name.is_empty() || !name.chars().all(is_name) {
                    return Err(format!("`{text}` has a brace that holds no name: write `{{{{` for a brace"));
                }
                if !plain.is_empty() {
                    pieces.push(Piece::Text(std::mem::take(&mut plain)));
                }
                pieces.push(Piece::Argument(name));
            }
            '}' => return Err(format!("`{text}` has a `}}` too many: write `}}}}` for a brace")),
            c => plain.push(c),
        }
    }
    if !plain.is_empty() || pieces.is_empty() {
        pieces.push(Piece::Text(plain));
    }
    Ok(pieces)
}

/// A program as a tool.
#[derive(Clone)]
pub struct CommandTool {
    spec: ToolSpec,
    args: Vec<Vec<Piece>>,
    validator: Arc<Validator>,
    command: Command,
}

impl CommandTool {
    /// The arguments for a call.
    fn argv(&self, args: &Object) -> Result<Vec<String>, ToolError> {
        let value = Value::Object(args.clone());
        if let Err(error) = self.validator.validate(&value) {
            let place = error.instance_path().to_string();
            let place = if place.is_empty() { String::new() } else { format!(" (at {place})") };
            return Err(ToolError::invalid_arguments(format!("the arguments do not fit{place}: {error}")));
        }
        let (mut argv, mut is_past_options) = (Vec::new(), false);
        for pieces in &self.args {
            if let Some(arg) = fill(pieces, args, is_past_options)? {
                is_past_options |= arg == "--" && matches!(pieces.as_slice(), [Piece::Text(_)]);
                argv.push(arg);
            }
        }
        Ok(argv)
    }

    async fn run(&self, args: &Object) -> Result<ToolValue, ToolError> {
        let argv = self.argv(args)?;
        // Dropped, whatever the reason, the group ends all that was started.
        let (mut child, group) = self.start(&argv)?;
        let input = child.stdin.take().filter(|_| self.command.stdin);
        let feed = async {
            if let Some(mut input) = input {
                // A program that does not read is none of our business.
                let _ = input.write_all(Value::Object(args.clone()).to_string().as_bytes()).await;
            }
        };
        let (out, err) = (child.stdout.take(), child.stderr.take());
        let (mut said, mut complained) = (Output::default(), Output::default());
        let bytes = self.command.bytes;
        let work = async {
            let read = async { tokio::join!(said.read(out, bytes), complained.read(err, bytes), feed) };
            tokio::pin!(read);
            let status = tokio::select! {
                status = child.wait() => status,
                // It closed its output and goes on.
                _ = &mut read => return child.wait().await,
            };
            // What it left behind has nothing more to say.
            drop(group);
            let _ = tokio::time::timeout(LINGER, read).await;
            status
        };
        let Ok(status) = tokio::time::timeout(self.command.time, work).await else {
            let seconds = self.command.time.as_secs_f64();
            return Err(ToolError::new(format!(
                "`{}` took longer than {seconds} s and was stopped",
                self.spec.name
            )));
        };
        Ok(result(status?, &said, &complained))
    }

    fn start(&self, argv: &[String]) -> Result<(Child, Group), ToolError> {
        let Command { program, stdin, .. } = &self.command;
        let mut command = program.command();
        command.args(argv);
        command.stdin(if *stdin { Stdio::piped() } else { Stdio::null() });
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        Group::start(&mut command).map_err(|error| {
            let name = program.name();
            ToolError::new(format!("`{name}` could not be started: {error}"))
        })
    }
}

/// An argument with its values. `None` if one of them was left out.
fn fill(pieces: &[Piece], args: &Object, is_past_options: bool) -> Result<Option<String>, ToolError> {
    let mut whole = String::new();
    for piece in pieces {
        let name = match piece {
            Piece::Text(text) => {
                whole.push_str(text);
                continue;
            }
            Piece::Argument(name) => name,
        };
        let value = match args.get(name) {
            None | Some(Value::Null) => return Ok(None),
            Some(Value::String(text)) => text.clone(),
            Some(value @ (Value::Number(_) | Value::Bool(_))) => value.to_string(),
            Some(Value::Array(_) | Value::Object(_)) => {
                let message = format!("`{name}` must be one text or number: a list or an object is none");
                return Err(ToolError::invalid_arguments(message));
            }
        };
        if value.contains('\0') {
            return Err(ToolError::invalid_arguments(format!(
                "`{name}` has a zero byte, which cannot be passed on"
            )));
        }
        if whole.is_empty() && value.starts_with('-') && !is_past_options {
            let message = format!("`{name}` must not begin with `-`, since it would be taken for an option");
            return Err(ToolError::invalid_arguments(message));
        }
        whole.push_str(&value);
    }
    Ok(Some(whole))
}

/// What came of it.
fn result(status: ExitStatus, said: &Output, complained: &Output) -> ToolValue {
    let mut value = json!({"exit_code": status.code(), "stdout": said.text(), "stderr": complained.text()});
    if let Some(object) = value.as_object_mut().filter(|_| said.is_cut || complained.is_cut) {
        object.insert("truncated".to_owned(), Value::Bool(true));
    }
    ToolValue { is_error: !status.success(), ..ToolValue::from(value) }
}

/// What a program wrote, as far as it is kept.
#[derive(Default)]
struct Output {
    bytes: Vec<u8>,
    is_cut: bool,
}

impl Output {
    /// Reads to the end. What is too much is read too, so that the program can go on, and forgotten.
    async fn read(&mut self, from: Option<impl AsyncRead + Unpin>, limit: usize) {
        let Some(mut from) = from else { return };
        let mut buffer = vec![0; 8 << 10];
        // What cannot be read is at its end.
        while let Ok(count @ 1..) = from.read(&mut buffer).await {
            let read = buffer.get(..count).unwrap_or_default();
            let room = limit.saturating_sub(self.bytes.len());
            self.bytes.extend_from_slice(read.get(..room).unwrap_or(read));
            self.is_cut |= count > room;
        }
    }

    fn text(&self) -> String {
        String::from_utf8_lossy(&self.bytes).into_owned()
    }
}

impl Tool for CommandTool {
    fn spec(&self) -> &ToolSpec {
        &self.spec
    }

    fn call<'a>(
        &'a self,
        _: &'a ToolContext,
        args: Arc<Object>,
    ) -> BoxFuture<'a, Result<ToolOutput, ToolError>> {
        Box::pin(async move { Ok(self.run(&args).await?.into()) })
    }
}

impl fmt::Debug for CommandTool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CommandTool({:?})", self.command)
    }
}
