//! `umbel doctor`: looks at everything that the other commands need, and says what to do about what is amiss.

use std::io::{self, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::Duration;

use clap::Args;
use serde::Serialize;
use umbel::{EventFilter, LlmAgent, Object, Runner, SessionKey};

use crate::args::{self, Kept, Which};
use crate::style::{Ink, Style, clean, for_stdout};
use crate::{Cli, models, serve};

/// Space that a store should have left.
const SPACE: u64 = 100 * 1024 * 1024;

/// How long a model may take to say a word.
const PATIENCE: Duration = Duration::from_secs(30);

/// What is looked at.
#[derive(Args, Clone, Debug)]
pub struct Options {
    #[command(flatten)]
    which: Which,
    #[command(flatten)]
    kept: Kept,
    /// Ask the model for a word, too. It takes some tokens.
    #[arg(long)]
    online: bool,
    /// As JSON.
    #[arg(long)]
    json: bool,
}

/// What one check says.
#[derive(Debug, Serialize)]
struct Finding {
    check: &'static str,
    verdict: Verdict,
    found: String,
    /// What to do about it.
    #[serde(skip_serializing_if = "Option::is_none")]
    todo: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum Verdict {
    Ok,
    Warn,
    Fail,
}

impl Finding {
    fn ok(check: &'static str, found: impl Into<String>) -> Self {
        Self { check, verdict: Verdict::Ok, found: found.into(), todo: None }
    }

    fn warn(check: &'static str, found: impl Into<String>, todo: impl Into<String>) -> Self {
        Self { check, verdict: Verdict::Warn, found: found.into(), todo: Some(todo.into()) }
    }

    fn fail(check: &'static str, found: impl Into<String>, todo: impl Into<String>) -> Self {
        Self { verdict: Verdict::Fail, ..Self::warn(check, found, todo) }
    }
}

/// Looks, and says what it found.
pub fn main(cli: &Cli, options: &Options) -> io::Result<ExitCode> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let findings = runtime.block_on(look(cli, options));
    let failed = findings.iter().any(|finding| finding.verdict == Verdict::Fail);
    let mut out = io::stdout().lock();
    if options.json {
        writeln!(out, "{}", for_stdout(&serde_json::to_string_pretty(&findings)?))?;
    } else {
        let style = Style::for_terminal(io::stdout().is_terminal());
        findings.iter().try_for_each(|finding| tell(&mut out, style, finding))?;
    }
    Ok(if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

fn tell(out: &mut impl Write, style: Style, finding: &Finding) -> io::Result<()> {
    let (ink, word) = match finding.verdict {
        Verdict::Ok => (Ink::You, "ok  "),
        Verdict::Warn => (Ink::Question, "warn"),
        Verdict::Fail => (Ink::Error, "FAIL"),
    };
    writeln!(out, "{}  {:<9} {}", style.paint(ink, word), finding.check, clean(&finding.found))?;
    match &finding.todo {
        Some(todo) => writeln!(out, "{:>16} {}", "→", clean(todo)),
        None => Ok(()),
    }
}

async fn look(cli: &Cli, options: &Options) -> Vec<Finding> {
    let mut findings = vec![Finding::ok("version", concat!("Umbel ", env!("CARGO_PKG_VERSION")))];
    findings.push(agents(cli, options));
    findings.extend(model(options).await);
    findings.push(store(&options.kept.store).await);
    if let Some(folder) = folder(&options.kept.store) {
        findings.extend(permissions(&folder));
        findings.extend(space(&folder));
    }
    findings.push(port());
    findings.push(sandbox());
    findings.push(terminal());
    findings
}

fn agents(cli: &Cli, options: &Options) -> Finding {
    let hint = "Correct what makes the agents; `explain` shows what comes of them.";
    let offers = match cli.offers(&options.which, false) {
        Ok(offers) if offers.is_empty() => return Finding::fail("agents", "there are none", hint),
        Ok(offers) => offers,
        Err(error) => return Finding::fail("agents", error.to_string(), hint),
    };
    let mut names = Vec::new();
    for offer in offers {
        let name = offer.name().to_owned();
        if let Err(error) = offer.runner(&umbel_stores::Stores::in_memory()) {
            return Finding::fail("agents", format!("{name} cannot be built: {error}"), hint);
        }
        names.push(name);
    }
    Finding::ok("agents", names.join(", "))
}

/// Which model there is, and whether it answers. Keys are never shown.
async fn model(options: &Options) -> Vec<Finding> {
    let environment = |variable: &str| std::env::var(variable).ok();
    let set: Vec<&str> = models::variables()
        .filter(|variable| environment(variable).is_some_and(|value| !value.trim().is_empty()))
        .collect();
    let found = match models::find(options.which.model.as_deref(), environment) {
        Ok(Some(found)) => found,
        Ok(None) => {
            let hint = match set.is_empty() {
                true => "For a real one set a key, such as ANTHROPIC_API_KEY, or name one with --model.",
                false => "`--model script` or UMBEL_MODEL says so.",
            };
            return vec![Finding {
                todo: Some(hint.to_owned()),
                ..Finding::ok("model", "none: scripts are used")
            }];
        }
        Err(error) => {
            return vec![Finding::fail("model", error.message(), "Set what is missing, or name another.")];
        }
    };
    let keys = if set.is_empty() { String::new() } else { format!(" (set: {})", set.join(", ")) };
    let mut findings = vec![Finding::ok("model", format!("{}{keys}", args::shown(&found.name)))];
    if options.online {
        findings.push(answers(found).await);
    }
    findings
}

async fn answers(found: models::Found) -> Finding {
    let hint = "Check the key, the address and the network.";
    let agent = LlmAgent::new("doctor").instruction("Answer with the word ok.").model(found.model);
    let asked = async {
        let runner = Runner::new("umbel-doctor", agent)?;
        let session = runner.create_session("doctor").await?;
        runner.run(&session.key, "Are you there?").text().await
    };
    match tokio::time::timeout(PATIENCE, asked).await {
        Ok(Ok(_)) => Finding::ok("online", "the model answers"),
        Ok(Err(error)) => Finding::fail("online", error.to_string(), hint),
        Err(_) => Finding::fail("online", format!("no answer within {} s", PATIENCE.as_secs()), hint),
    }
}

/// Opens the store, writes a session, reads it and deletes it.
async fn store(address: &str) -> Finding {
    let shown = args::shown(address);
    let hint = "Choose another place with --store or UMBEL_STORE, or correct this one.";
    let tried = async {
        let stores = args::open(address).await?;
        let key = SessionKey::new("umbel-doctor", "doctor", std::process::id().to_string())
            .map_err(io::Error::other)?;
        let new =
            umbel::NewSession::new(key.clone()).state(Object::from_iter([("ok".to_owned(), true.into())]));
        stores.sessions.create(new).await.map_err(io::Error::other)?;
        let read = stores.sessions.get(&key, EventFilter::default()).await.map_err(io::Error::other)?;
        stores.sessions.delete(&key).await.map_err(io::Error::other)?;
        Ok::<_, io::Error>(read.is_some())
    };
    match tried.await {
        Ok(true) if address == args::NOWHERE => Finding::warn(
            "store",
            "memory: conversations are gone when a program ends",
            "Name a place with --store.",
        ),
        Ok(true) => {
            let schema = match address.starts_with("sqlite:") {
                true => format!(", schema {}", umbel_stores::sqlite::SCHEMA_VERSION),
                false => String::new(),
            };
            Finding::ok("store", format!("{shown} opens, writes and reads{schema}"))
        }
        Ok(false) => Finding::fail("store", format!("{shown} does not find what was written"), hint),
        Err(error) => Finding::fail("store", error.to_string(), hint),
    }
}

/// The folder that a store's file is in.
fn folder(store: &str) -> Option<PathBuf> {
    let folder = Path::new(store.strip_prefix("sqlite:")?).parent()?;
    Some(if folder.as_os_str().is_empty() { PathBuf::from(".") } else { folder.to_path_buf() })
}

#[cfg(unix)]
fn permissions(folder: &Path) -> Option<Finding> {
    use std::os::unix::fs::PermissionsExt;
    let mode = folder.metadata().ok()?.permissions().mode() & 0o777;
    let shown = folder.display();
    Some(match mode & 0o077 {
        0 => Finding::ok("folder", format!("{shown} is yours alone")),
        _ => {
            let found = format!("others can look into {shown} (mode {mode:o})");
            Finding::warn(
                "folder",
                found,
                format!("`chmod 700 {shown}`, if conversations are nobody else's business."),
            )
        }
    })
}

#[cfg(not(unix))]
fn permissions(_: &Path) -> Option<Finding> {
    None
}

/// How much space is left there, as `df` tells it.
fn space(folder: &Path) -> Option<Finding> {
    let output = Command::new("df").arg("-Pk").arg(folder).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    let free = text.lines().nth(1)?.split_whitespace().nth(3)?.parse::<u64>().ok()?.saturating_mul(1024);
    let found = format!("{} MB are free", free / (1024 * 1024));
    Some(match free < SPACE {
        true => Finding::warn("space", found, "Make room: a store that cannot write stops runs."),
        false => Finding::ok("space", found),
    })
}

fn port() -> Finding {
    let port = serve::PORT;
    match std::net::TcpListener::bind(("127.0.0.1", port)) {
        Ok(_) => Finding::ok("port", format!("{port} is free for `serve`")),
        Err(error) => {
            let found = format!("{port} cannot be had: {error}");
            Finding::warn("port", found, "`serve` takes the next one, or say `--port`.")
        }
    }
}

/// Runs a program in the sandbox for code.
#[cfg(target_os = "linux")]
fn sandbox() -> Finding {
    match umbel_tools::Sandbox::python().build() {
        Ok(_) => Finding::ok("sandbox", "Python runs in it"),
        Err(error) => Finding::warn(
            "sandbox",
            error.message(),
            "Only agents that run code need it: see the page on that.",
        ),
    }
}

#[cfg(not(target_os = "linux"))]
fn sandbox() -> Finding {
    Finding::warn("sandbox", "there is none here", "Agents that run code need Linux.")
}

fn terminal() -> Finding {
    let [input, output] = [io::stdin().is_terminal(), io::stdout().is_terminal()];
    let colours = if Style::for_terminal(output) == Style::Colour { "colours" } else { "no colours" };
    Finding::ok(
        "terminal",
        match (input, output) {
            (true, true) => format!("yes, with {colours}"),
            _ => "no: commands speak plain text".to_owned(),
        },
    )
}
