//! What stands on the command line: the commands, and what several of them share.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use std::ffi::OsString;

use clap::{ArgMatches, Args, CommandFactory, FromArgMatches, Parser, Subcommand};
use umbel_stores::Stores;

use crate::file::Trust;
use crate::{chat, completions, doctor, eval, explain, mcp, new, record, replay, run, serve, sessions};

/// Where conversations are kept unless one says otherwise.
pub const STORE: &str = "sqlite:.umbel/umbel.db";
/// The store that keeps nothing.
pub const NOWHERE: &str = "memory:";

/// The whole command line.
#[derive(Debug, Parser)]
#[command(
    version,
    about = "Builds, runs and watches agents.",
    after_help = "Without a command it serves the agents and shows where to look at them.",
    subcommand_required = false,
    arg_required_else_help = false
)]
pub struct Line {
    /// What is to be done.
    #[command(subcommand)]
    pub command: Command,
}

impl Line {
    /// The command line of a program that was started by that name: one that has the commands for its own agents has a
    /// name of its own.
    pub fn command_for(program: Option<&OsString>) -> clap::Command {
        let name = program
            .and_then(|path| Path::new(path).file_stem())
            .map(|name| name.to_string_lossy().into_owned());
        let name = name.unwrap_or_else(|| "umbel".to_owned());
        Self::command().name(name.clone()).bin_name(name)
    }

    /// Reads a command line; the first argument is the program's name. Without a command the agents are served.
    pub fn read(args: Vec<OsString>, about: Option<&str>) -> Result<Self, clap::Error> {
        let mut command = Self::command_for(args.first());
        if let Some(about) = about {
            command = command.about(about.to_owned());
        }
        let serve = args.iter().take(1).cloned().chain(["serve".into()]).collect::<Vec<_>>();
        let found: ArgMatches = match command.try_get_matches_from_mut(args)? {
            found if found.subcommand_name().is_some() => found,
            _ => command.try_get_matches_from_mut(serve)?,
        };
        Self::from_arg_matches(&found)
    }
}

/// What is to be done.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Offer the agents to front ends, with the studio to watch them.
    Serve(serve::Options),
    /// Talk with an agent in the terminal, or through a pipe.
    Chat(chat::Options),
    /// Ask once and print the answer, for scripts.
    Run(run::Options),
    /// Offer the agents to the MCP client that starts this, such as a desktop app.
    Mcp(mcp::Options),
    /// Show what the agents are made of: instructions, tools, handlers.
    Explain(explain::Options),
    /// Measure agents by cases in a file: calls, answers, state, cost.
    Eval(eval::Options),
    /// Run a recorded session again, and see what the code of today makes of it.
    Replay(replay::Options),
    /// Ask a real model and write down all that is said: a tape to test with.
    Record(record::Options),
    /// Begin a project: an agent with a tool and a test.
    New(new::Options),
    /// Look at everything that the commands need, and say what to do.
    Doctor(doctor::Options),
    /// List, show, export, import and delete conversations.
    Sessions(sessions::Options),
    /// Print what a shell needs to complete the command line.
    Completions(completions::Options),
}

/// Which agents a command works on.
#[derive(Args, Clone, Debug, Default)]
pub struct Which {
    /// Agents from a file, in place of those that are built in.
    #[arg(long, value_name = "FILE", env = "UMBEL_AGENTS", hide_env_values = true)]
    pub agents: Option<PathBuf>,
    /// Lets agents of a file run the programs that it names. Only for files that you trust.
    #[arg(long)]
    pub allow_commands: bool,
    /// Lets a file of agents use a variable of the environment, and send it to where it says.
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    pub allow_env: Vec<String>,
    /// Which agent; the first one if left out.
    #[arg(short, long, value_name = "NAME")]
    pub agent: Option<String>,
    /// The model, as provider/model or http://HOST/v1#model, or `script` for none; its key comes from the environment.
    #[arg(short, long, value_name = "NAME", env = "UMBEL_MODEL", hide_env_values = true)]
    pub model: Option<String>,
}

impl Which {
    /// What a file of agents is trusted with.
    pub(crate) fn trust(&self) -> Trust {
        Trust { commands: self.allow_commands, variables: self.allow_env.clone() }
    }
}

/// Where conversations are kept, and whose they are.
#[derive(Args, Clone, Debug)]
pub struct Kept {
    /// Where conversations are kept: sqlite:FILE, postgres://... or memory: for nowhere.
    #[arg(long, value_name = "ADDRESS", env = "UMBEL_STORE", hide_env_values = true, default_value = STORE)]
    pub store: String,
    /// Whose conversations.
    #[arg(long, value_name = "NAME", default_value = "local")]
    pub user: String,
}

/// Opens the stores at an address. A file that is not there yet is made, and the folder that it needs.
pub async fn open(address: &str) -> io::Result<Stores> {
    if let Some(file) = file_of(address).filter(|file| !file.exists()) {
        file.parent().map_or(Ok(()), make_folder)?;
        // Another program may make it at the same time, so nothing in it is touched.
        private(file, File::options().append(true).create(true))?;
    }
    umbel_stores::open(address).await.map_err(io::Error::other)
}

/// Refuses a store whose file is not there: to look into one must not make it.
pub fn must_be_there(address: &str) -> io::Result<()> {
    match file_of(address).filter(|file| !file.exists()) {
        Some(file) => Err(bad_usage(format!(
            "there is no store at {}: name the one that is meant with --store, or begin one with `umbel chat`",
            file.display()
        ))),
        None => Ok(()),
    }
}

/// The file that a store is kept in, if it is kept in one.
fn file_of(address: &str) -> Option<&Path> {
    address.strip_prefix("sqlite:").filter(|file| !file.is_empty()).map(Path::new)
}

/// The address of a store or a model as it may be shown: without a name and a password that may be in it.
pub fn shown(address: &str) -> String {
    let Some((scheme, rest)) = address.split_once("://") else { return address.to_owned() };
    let (host, path) = rest.split_at(rest.find(['/', '?', '#']).unwrap_or(rest.len()));
    let host = host.rsplit_once('@').map_or(host, |(_, host)| host);
    // What stands where a port should be may be a password with a slash in it.
    let is_port = |port: &str| port.ends_with(']') || port.chars().all(|c| c.is_ascii_digit());
    if host.rsplit_once(':').is_some_and(|(_, port)| !is_port(port)) {
        return format!("{scheme}://…");
    }
    let path = match path.split_once('?') {
        Some((path, query)) => {
            let name = query.split_once('#').map_or_else(String::new, |(_, name)| format!("#{name}"));
            format!("{path}?…{name}")
        }
        None => path.to_owned(),
    };
    format!("{scheme}://{host}{path}")
}

/// Opens a file that only its owner may read if it is new: conversations are nobody else's business.
fn private(path: &Path, options: &mut OpenOptions) -> io::Result<File> {
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(options, 0o600);
    options.open(path).map_err(|error| cannot(path, &error))
}

/// Writes a file that only its owner may read if it is new.
pub fn write_private(path: &Path, text: impl AsRef<[u8]>) -> io::Result<()> {
    let mut file = private(path, File::options().write(true).create(true).truncate(true))?;
    file.write_all(text.as_ref()).map_err(|error| cannot(path, &error))
}

/// Makes a folder that only its owner may look into: conversations are nobody else's business.
fn make_folder(folder: &Path) -> io::Result<()> {
    if folder.as_os_str().is_empty() || folder.is_dir() {
        return Ok(());
    }
    let mut builder = std::fs::DirBuilder::new();
    builder.recursive(true);
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    builder.create(folder).map_err(|error| cannot(folder, &error))
}

/// What could not be done with a file, and why.
pub fn cannot(path: impl AsRef<Path>, error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{}: {error}", path.as_ref().display()))
}

/// A command line that cannot be followed: what is wrong, and what to do.
pub fn bad_usage(message: impl Into<String>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, message.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_shown_without_what_is_secret() {
        for (address, expected) in [
            ("sqlite:a/b.db", "sqlite:a/b.db"),
            ("memory:", "memory:"),
            ("anthropic/m", "anthropic/m"),
            ("postgres://ann:hunter2@db/umbel", "postgres://db/umbel"),
            ("postgres://ann:hun@ter2@db:5432/umbel", "postgres://db:5432/umbel"),
            ("postgres://db/umbel?user=ann&password=hunter2", "postgres://db/umbel?…"),
            ("postgres://db/umbel?password=hunter2@x", "postgres://db/umbel?…"),
            ("postgres://ann:hunter2/@db/umbel", "postgres://…"),
            ("http://ann:hunter2@localhost:8080/v1#m@2", "http://localhost:8080/v1#m@2"),
            ("http://[::1]:8080/v1?key=hunter2#m", "http://[::1]:8080/v1?…#m"),
            ("http://[fe80::a]/v1", "http://[fe80::a]/v1"),
        ] {
            assert_eq!(shown(address), expected);
        }
    }
}
