//! `umbel replay`: runs a recorded session again, and shows what the code of today makes of it.

mod diff;
mod lines;

use std::io::{self, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Args;
use serde::{Deserialize, Serialize};
use serde_json::json;
use umbel::SessionKey;
use umbel::replay::{Difference, Part, Recording, Replay, Replayed, Sent, compare_requests};
use umbel_stores::Stores;

use self::lines::Read;
use crate::Cli;
use crate::args::{self, Kept, Which, bad_usage, cannot};
use crate::stop::until_stopped;
use crate::style::{Ink, Style, clean_line, for_stdout};

/// What is to be run again, and what it is compared with.
#[derive(Args, Clone, Debug)]
#[command(after_help = "\
Models answer from the recording, tools are not called but give what they gave, people say what they said. A log has no
instructions and no tools: to see what a change does to these, save the requests before it and compare after it.
Exit code: 0 if nothing is different, 1 if something is, 2 if it cannot be run again.

Examples:
  umbel replay --session 3hK2
  umbel replay session.jsonl --save requests.json
  umbel replay session.jsonl --against requests.json")]
pub struct Options {
    /// A file with the session, as `umbel sessions export` writes it; without one it is looked for in the store.
    #[arg(value_name = "FILE")]
    file: Option<PathBuf>,
    #[command(flatten)]
    which: Which,
    #[command(flatten)]
    kept: Kept,
    /// Which session.
    #[arg(short, long, value_name = "ID", required_unless_present = "file")]
    session: Option<String>,
    /// Write what models are asked by this code, to compare with it later.
    #[arg(long, value_name = "FILE")]
    save: Option<PathBuf>,
    /// Compare what models are asked with what was saved.
    #[arg(long, value_name = "FILE")]
    against: Option<PathBuf>,
    /// Call tools for real. They may do what they do.
    #[arg(long)]
    live_tools: bool,
    /// As JSON.
    #[arg(long)]
    json: bool,
}

/// What is saved.
#[derive(Debug, Serialize, Deserialize)]
struct Saved {
    session: String,
    requests: Vec<Sent>,
}

/// Runs it again.
pub fn main(cli: &Cli, options: &Options) -> io::Result<ExitCode> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let replayed = runtime.block_on(until_stopped(replay(cli, options)));
    // 1 says that something is different: whatever is in the way of that is another matter.
    replayed.map_err(|error| match error.kind() {
        io::ErrorKind::BrokenPipe => error,
        _ => bad_usage(error.to_string()),
    })
}

async fn replay(cli: &Cli, options: &Options) -> io::Result<ExitCode> {
    let Read { recording, has_shared_state } = recording(cli, options).await?;
    let before = options.against.as_deref().map(read_saved).transpose()?;
    if let Some(before) = before.as_ref().filter(|before| before.session != recording.key.id()) {
        let (saved, id) = (&before.session, recording.key.id());
        return Err(bad_usage(format!("the saved requests are of session {saved}, and this is {id}")));
    }
    let (again, which) = (cli.clone(), options.which.clone());
    let make = move || {
        let offer = again.offer(&which, false);
        let offer = offer.map_err(|error| umbel::Error::new(umbel::ErrorKind::Build, error.to_string()))?;
        Ok(offer.builder(&Stores::in_memory()))
    };
    let replay = Replay::new(make).configure(umbel_server::run_config_of);
    let replay = if options.live_tools { replay.live_tools() } else { replay };
    let mut replayed = replay.run(&recording).await.map_err(io::Error::other)?;
    if let Some(before) = &before {
        // Both are known exactly, so messages need not be made from the logs.
        replayed.differences.retain(|difference| difference.part != Part::Messages);
        replayed.unknown_requests.clear();
        replayed.differences.extend(compare_requests(&before.requests, &replayed.requests));
    }
    replayed.unknown.append(&mut replayed.unknown_requests);
    if !has_shared_state {
        let what = "the state of the user and of the app: the file tells none; `umbel sessions export` without an id \
                    writes what there is";
        replayed.unknown.push(what.to_owned());
    }
    if let Some(path) = &options.save {
        let saved = Saved { session: recording.key.id().to_owned(), requests: replayed.requests.clone() };
        let text = serde_json::to_string_pretty(&saved)? + "\n";
        args::write_private(path, text)?;
    }
    let mut out = io::stdout().lock();
    if options.json {
        let same = replayed.is_same();
        let form = json!({"session": recording.key.id(), "same": same, "differences": replayed.differences,
                          "unknown": replayed.unknown, "requests": replayed.requests});
        writeln!(out, "{}", for_stdout(&serde_json::to_string_pretty(&form)?))?;
    } else {
        out.write_all(text(&replayed, Style::for_terminal(io::stdout().is_terminal())).as_bytes())?;
    }
    Ok(if replayed.is_same() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

async fn recording(cli: &Cli, options: &Options) -> io::Result<Read> {
    let session = options.session.as_deref();
    if let Some(path) = &options.file {
        return lines::read(path, session);
    }
    let offer = cli.offer(&options.which, false)?;
    let runner = offer.runner(&Stores::in_memory()).map_err(io::Error::other)?;
    let id = session.unwrap_or_default();
    let key = SessionKey::new(runner.app(), &options.kept.user, id);
    let key = key.map_err(|error| bad_usage(error.message().to_owned()))?;
    let stores = args::open(&options.kept.store).await?;
    let found = Recording::read(&stores.sessions, &key).await.map_err(io::Error::other)?;
    let recording = found.ok_or_else(|| {
        let (agent, store) = (runner.app(), args::shown(&options.kept.store));
        bad_usage(format!(
            "there is no session `{id}` of {} in {store} for the app {agent}. Name another --agent, --user or --store.",
            options.kept.user
        ))
    })?;
    Ok(Read { recording, has_shared_state: true })
}

fn read_saved(path: &Path) -> io::Result<Saved> {
    let text = std::fs::read_to_string(path).map_err(|error| cannot(path, &error))?;
    serde_json::from_str(&text)
        .map_err(|error| bad_usage(format!("{}: this was not written by --save: {error}", path.display())))
}

/// What came of it, for people.
fn text(replayed: &Replayed, style: Style) -> String {
    let mut text = String::new();
    for Difference { part, place, note, then, now } in &replayed.differences {
        let note = if note.is_empty() { String::new() } else { format!(": {note}") };
        let title = clean_line(&format!("{}, {place}{note}", part.as_str()));
        text.push_str(&format!("{}\n", style.paint(Ink::Question, &title)));
        text.push_str(&diff::unified(then, now, style));
        text.push('\n');
    }
    let requests = replayed.requests.len();
    let count = replayed.differences.len();
    text.push_str(&match count {
        0 => format!("The same: {requests} requests, and all that followed from them.\n"),
        count => format!("{count} difference(s) in {requests} requests and what followed from them.\n"),
    });
    for unknown in &replayed.unknown {
        text.push_str(&format!(
            "{}\n",
            style.paint(Ink::Faint, &clean_line(&format!("Not known: {unknown}.")))
        ));
    }
    text
}
