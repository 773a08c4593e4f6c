//! The `umbel` command, as a library so that it can be tested.
//!
//! # Layout
//! - [`args`]: what stands on the command line
//! - [`chat`]: a conversation: lines in, answers out
//! - [`screen`]: how events look; [`style`]: colours
//! - [`serve`]: the agents offered to front ends
//! - [`record`]: a real model asked, and all that is said written down
//! - [`demo`]: the agents one talks with, and the script that is their model
//!
//! It makes no requests unless it is told to record, and listens only if it is told to serve. Conversations are gone when it ends, unless it is told where to keep them.

#![cfg_attr(test, allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, clippy::panic))]

pub mod args;
pub mod chat;
pub mod demo;
pub mod record;
pub mod screen;
pub mod serve;
pub mod style;

use std::ffi::OsString;
use std::io::{self, IsTerminal, Write};
use std::process::ExitCode;
use std::time::Duration;

use tokio::io::BufReader;
use umbel_stores::Stores;

use crate::args::{Command, USAGE};
use crate::chat::{Chat, Interrupts, Reply};
use crate::screen::Screen;
use crate::style::Style;

/// How long the demo's model waits before each word where a person reads along.
const PACE: Duration = Duration::from_millis(25);

/// The exit code for a command line that cannot be followed.
const BAD_USAGE: u8 = 2;

/// Does what the command line says, without the program's name.
pub fn main(args: impl IntoIterator<Item = OsString>) -> ExitCode {
    let result = match args::parse(args) {
        Ok(Command::Help) => say(USAGE),
        Ok(Command::Version) => say(concat!("umbel ", env!("CARGO_PKG_VERSION"), "\n")),
        Ok(Command::Explain) => explain(),
        Ok(Command::ServeHelp) => say(serve::options::USAGE),
        Ok(Command::Serve(options)) => serve::main(&options),
        Ok(Command::RecordHelp) => say(record::USAGE),
        Ok(Command::Record(options)) => record::main(&options),
        Ok(Command::Chat { user, store, session, message }) => talk(&Who { user, store, session }, message),
        Err(bad) => {
            complain(&bad.0);
            return ExitCode::from(BAD_USAGE);
        }
    };
    match result {
        Ok(code) => code,
        // Who reads has seen enough, as in `umbel … | head`.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => ExitCode::SUCCESS,
        Err(error) if error.kind() == io::ErrorKind::InvalidInput => {
            complain(&error.to_string());
            ExitCode::from(BAD_USAGE)
        }
        Err(error) => {
            complain(&error.to_string());
            ExitCode::FAILURE
        }
    }
}

pub(crate) fn say(text: &str) -> io::Result<ExitCode> {
    io::stdout().write_all(text.as_bytes())?;
    Ok(ExitCode::SUCCESS)
}

/// Shows what came of each agent of the demo and all that extends it.
fn explain() -> io::Result<ExitCode> {
    let runner = demo::runner(None, Stores::in_memory()).map_err(io::Error::other)?;
    for explanation in runner.explain().map_err(io::Error::other)? {
        writeln!(io::stdout(), "{explanation}")?;
    }
    Ok(ExitCode::SUCCESS)
}

fn complain(text: &str) {
    // If not even this can be written, nobody is there to be told.
    let _ = writeln!(io::stderr(), "umbel: {text}");
}

/// Who talks, and in which conversation.
struct Who {
    user: String,
    store: String,
    session: Option<String>,
}

fn talk(who: &Who, message: Option<String>) -> io::Result<ExitCode> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let result = runtime.block_on(converse(who, message));
    // A thread may still wait for a line that nobody will type.
    runtime.shutdown_background();
    result
}

async fn converse(who: &Who, message: Option<String>) -> io::Result<ExitCode> {
    let terminal = io::stdin().is_terminal() && io::stdout().is_terminal();
    let style = Style::for_terminal(io::stdout().is_terminal());
    let pace = io::stdout().is_terminal().then_some(PACE);
    let stores = umbel_stores::open(&who.store).await.map_err(io::Error::other)?;
    let runner = demo::runner(pace, stores).map_err(io::Error::other)?;
    let screen = Screen::new(io::stdout(), style, terminal);
    // Elsewhere Ctrl-C ends the program, as it does any other.
    let interrupts = if terminal && message.is_none() { Interrupts::ctrl_c() } else { Interrupts::never() };
    let input = BufReader::new(tokio::io::stdin());
    let begun = Chat::begin(runner, &who.user, who.session.as_deref(), input, screen, interrupts).await;
    let mut chat = begun.map_err(io::Error::other)?;
    if who.store != args::NOWHERE {
        chat.go_on().await?;
    }
    let Some(message) = message else {
        chat.talk().await?;
        return Ok(ExitCode::SUCCESS);
    };
    match chat.answer(message).await? {
        Reply::Done => Ok(ExitCode::SUCCESS),
        Reply::Stopped | Reply::Failed | Reply::Unanswered => Ok(ExitCode::FAILURE),
    }
}
