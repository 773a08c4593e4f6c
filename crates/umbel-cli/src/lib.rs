//! The `umbel` command, as a library: a program of your own gets all its commands for its own agents.
//!
//! ```
//! use std::process::ExitCode;
//! use umbel::{LlmAgent, Runner, ScriptedModel};
//! use umbel_cli::{Cli, Offer};
//!
//! fn main() -> ExitCode {
//!     let cli = Cli::new(|_| {
//!         let agent = LlmAgent::new("greeter").model(ScriptedModel::new("demo").text("Hello!"));
//!         Ok(vec![Offer::new("greeter", Runner::builder("greeter", agent))])
//!     });
//!     # return cli.run(["greeter", "explain"]);
//!     cli.main()
//! }
//! ```
//!
//! # Layout
//! - [`args`]: the command line; what several commands share
//! - [`agents`]: the agents that the commands work on
//! - `file`: agents that a TOML file describes
//! - [`models`]: which model they work with, and what it costs
//! - one module for each command: [`serve`], [`chat`], [`run`], [`mcp`], [`explain`], [`eval`], [`replay`], [`record`], [`new`],
//!   [`doctor`], [`sessions`], [`completions`]
//! - [`screen`]: how events look; [`style`]: colours; `stop`: being told to stop
//! - [`demo`]: agents to begin with, and the script that is their model

#![cfg_attr(test, allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, clippy::panic))]

pub mod agents;
pub mod args;
pub mod chat;
pub mod completions;
pub mod demo;
pub mod doctor;
pub mod eval;
pub mod explain;
mod file;
#[cfg(fuzzing)]
#[doc(hidden)]
pub mod fuzzing;
pub mod mcp;
pub mod models;
pub mod new;
pub mod record;
pub mod replay;
pub mod run;
pub mod screen;
pub mod serve;
pub mod sessions;
mod stop;
pub mod style;

use std::ffi::OsString;
use std::fmt;
use std::io::{self, Write};
use std::process::ExitCode;
use std::sync::Arc;

pub use self::agents::{Offer, Ready, Setup, Source};
use self::args::{Command, Line, Which, bad_usage};
use self::file::Seen;
pub(crate) use self::stop::{until_stopped, until_terminated};

/// The exit code for a command line that cannot be followed.
pub const BAD_USAGE: u8 = 2;
/// The exit code of a run that waits for an answer that nobody gave.
pub const UNANSWERED: u8 = 3;
/// The exit code of what was stopped.
pub const STOPPED: u8 = 130;

/// A command line for agents.
#[derive(Clone)]
pub struct Cli {
    source: Source,
    about: Option<String>,
}

impl Cli {
    /// The commands, for the agents that the closure makes.
    pub fn new(agents: impl Fn(&Setup) -> umbel::Result<Vec<Offer>> + Send + Sync + 'static) -> Self {
        Self { source: Arc::new(agents), about: None }
    }

    /// The commands, for the agents of the demo.
    pub fn demo() -> Self {
        Self::new(demo::offers)
    }

    /// What the program is about, in a line of its help.
    pub fn about(mut self, about: impl Into<String>) -> Self {
        self.about = Some(about.into());
        self
    }

    /// Does what the command line of this process says.
    pub fn main(self) -> ExitCode {
        self.run(std::env::args_os())
    }

    /// Does what a command line says. The first argument is the program's name.
    pub fn run(&self, args: impl IntoIterator<Item = impl Into<OsString>>) -> ExitCode {
        let line = match Line::read(args.into_iter().map(Into::into).collect(), self.about.as_deref()) {
            Ok(line) => line,
            Err(error) => {
                // If not even this can be written, nobody is there to be told.
                let _ = error.print();
                return ExitCode::from(if error.use_stderr() { BAD_USAGE } else { 0 });
            }
        };
        match self.follow(line) {
            Ok(code) => code,
            // Who reads has seen enough, as in `umbel … | head`.
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => ExitCode::SUCCESS,
            Err(error) => {
                let _ = writeln!(io::stderr(), "error: {}", style::clean(&error.to_string()));
                let bad = error.kind() == io::ErrorKind::InvalidInput;
                if bad { ExitCode::from(BAD_USAGE) } else { ExitCode::FAILURE }
            }
        }
    }

    fn follow(&self, line: Line) -> io::Result<ExitCode> {
        match line.command {
            Command::Serve(options) => serve::main(self, &options),
            Command::Chat(options) => chat::main(self, &options),
            Command::Run(options) => run::main(self, &options),
            Command::Mcp(options) => mcp::main(self, &options),
            Command::Explain(options) => explain::main(self, &options),
            Command::Eval(options) => eval::main(self, &options),
            Command::Replay(options) => replay::main(self, &options),
            Command::Record(options) => record::main(self, &options),
            Command::New(options) => new::main(self, &options),
            Command::Doctor(options) => doctor::main(self, &options),
            Command::Sessions(options) => sessions::main(self, &options),
            Command::Completions(options) => completions::main(self, &options),
        }
    }

    /// All agents.
    pub(crate) fn offers(&self, which: &Which, watched: bool) -> io::Result<Vec<Offer>> {
        self.load(which, watched).0
    }

    /// All agents, and the files that they come from as they were read.
    pub(crate) fn load(&self, which: &Which, watched: bool) -> (io::Result<Vec<Offer>>, Vec<Seen>) {
        let setup = Setup { watched, model: which.model.clone() };
        match &which.agents {
            Some(path) => {
                let loaded = file::load(path, &setup, &which.trust());
                (loaded.offers.map_err(bad_usage), loaded.files)
            }
            None => ((self.source)(&setup).map_err(|error| bad_usage(error.message())), Vec::new()),
        }
    }

    /// The agent that is meant: the one that is named, or the first.
    pub(crate) fn offer(&self, which: &Which, watched: bool) -> io::Result<Offer> {
        let offers = self.offers(which, watched)?;
        let names = offers.iter().map(Offer::name).collect::<Vec<_>>().join(", ");
        let is_meant = |offer: &Offer| which.agent.as_deref().is_none_or(|name| name == offer.name());
        offers.into_iter().find(is_meant).ok_or_else(|| match &which.agent {
            Some(name) => bad_usage(format!("there is no agent `{name}`. There are: {names}")),
            None => bad_usage("there are no agents"),
        })
    }
}

impl fmt::Debug for Cli {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cli").field("about", &self.about).finish_non_exhaustive()
    }
}
