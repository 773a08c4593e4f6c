//! What stands on the command line.

use std::ffi::OsString;

use crate::record;
use crate::serve::options::{self, Asked, Options};

/// What `--help` says.
pub const USAGE: &str = "\
Talks with a demo agent in the terminal. Its model is a script, so it works offline and needs no key.

Usage: umbel [--user NAME] [--store ADDRESS] [--session ID] [MESSAGE]...
       umbel serve [FLAG]...
       umbel record --model NAME --tape FILE MESSAGE...

  serve            Offer the demo to AG-UI front ends; `umbel serve --help` tells how.
  record           Ask a real model and write down what is said; `umbel record --help` tells how.
  MESSAGE          Answer this message and leave. Without it a conversation begins.
  --user NAME      Who is talking; `local` if left out.
  --store ADDRESS  Where conversations are kept: sqlite:FILE or postgres://...; nowhere if left out.
  --session ID     Which conversation to go on with; a new one if left out.
  --explain        Show what the agents are made of: instructions, tools, handlers.
  -h, --help       Show this help.
  -V, --version    Show the version.

Examples:
  umbel
  umbel weather in Paris and Rome
  echo \"convert 100 EUR to JPY\" | umbel
  umbel --store sqlite:trips.db --session lisbon
  umbel serve --port 8123

NO_COLOR=1 turns colours off.
";

/// Who talks if nobody says so.
const LOCAL: &str = "local";
/// The store that keeps nothing.
pub const NOWHERE: &str = "memory:";

/// What is to be done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Command {
    /// Show the help.
    Help,
    /// Show the version.
    Version,
    /// Show what the agents are made of.
    Explain,
    /// Offer the agents to front ends.
    Serve(Options),
    /// Show how that is done.
    ServeHelp,
    /// Ask a real model and write down what is said.
    Record(record::Options),
    /// Show how that is done.
    RecordHelp,
    /// Talk.
    Chat {
        /// With whom.
        user: String,
        /// Where conversations are kept.
        store: String,
        /// Which conversation to go on with.
        session: Option<String>,
        /// One message and no more; a conversation if there is none.
        message: Option<String>,
    },
}

/// Why the command line cannot be followed, in words, with what to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BadArgs(pub String);

/// Reads a command line, without the program's name.
///
/// ```
/// use umbel_cli::args::{Command, parse};
///
/// let command = parse(["--user", "ann", "weather", "in", "Paris"].map(Into::into)).unwrap();
/// let (store, message) = ("memory:".to_owned(), Some("weather in Paris".to_owned()));
/// assert_eq!(command, Command::Chat { user: "ann".to_owned(), store, session: None, message });
/// ```
pub fn parse(args: impl IntoIterator<Item = OsString>) -> Result<Command, BadArgs> {
    let mut args = args.into_iter().map(|arg| arg.to_string_lossy().into_owned()).peekable();
    if args.next_if(|first| first == "serve").is_some() {
        return options::parse(args).map(|asked| match asked {
            Asked::Help => Command::ServeHelp,
            Asked::Version => Command::Version,
            Asked::Serve(options) => Command::Serve(options),
        });
    }
    if args.next_if(|first| first == "record").is_some() {
        return record::parse(args).map(|asked| asked.map_or(Command::RecordHelp, Command::Record));
    }
    let (mut user, mut store, mut session, mut words) =
        (LOCAL.to_owned(), NOWHERE.to_owned(), None, Vec::new());
    while let Some(arg) = args.next() {
        let (flag, given) = match arg.split_once('=').filter(|(flag, _)| flag.starts_with("--")) {
            Some((flag, given)) => (flag, Some(given.to_owned())),
            None => (arg.as_str(), None),
        };
        match flag {
            "-h" | "--help" => return Ok(Command::Help),
            "-V" | "--version" => return Ok(Command::Version),
            "--explain" => return Ok(Command::Explain),
            "--user" => user = value(given.or_else(|| args.next()), "--user", "a name", "ann")?,
            "--store" => {
                store = value(given.or_else(|| args.next()), "--store", "an address", "sqlite:trips.db")?;
            }
            "--session" => {
                session = Some(value(given.or_else(|| args.next()), "--session", "an id", "lisbon")?);
            }
            // A message may begin with a dash: all that follows is one.
            "--" => words.extend(args.by_ref()),
            _ if flag.starts_with('-') && flag.len() > 1 => return Err(unknown(flag)),
            _ => words.push(arg),
        }
    }
    let message = words.join(" ");
    let message = message.trim();
    let message = (!message.is_empty()).then(|| message.to_owned());
    Ok(Command::Chat { user, store, session, message })
}

pub(crate) fn value(given: Option<String>, flag: &str, what: &str, such: &str) -> Result<String, BadArgs> {
    match given.filter(|given| !given.trim().is_empty()) {
        Some(given) => Ok(given),
        None => Err(BadArgs(format!("`{flag}` needs {what}, such as `{flag} {such}`."))),
    }
}

fn unknown(flag: &str) -> BadArgs {
    BadArgs(format!(
        "There is no flag `{flag}`. `umbel --help` lists those there are.\n\
         If it is part of a message, put `--` before the message: `umbel -- {flag}`."
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(args: &[&str]) -> Result<Command, BadArgs> {
        parse(args.iter().map(Into::into))
    }

    fn chat(user: &str, message: Option<&str>) -> Result<Command, BadArgs> {
        let (store, message) = ("memory:".to_owned(), message.map(str::to_owned));
        Ok(Command::Chat { user: user.to_owned(), store, session: None, message })
    }

    #[test]
    fn flags_and_words_are_told_apart() {
        assert_eq!(parsed(&[]), chat("local", None));
        assert_eq!(parsed(&["--user=ann", "hi", "there"]), chat("ann", Some("hi there")));
        assert_eq!(parsed(&["hi", "--user", "bob"]), chat("bob", Some("hi")));
        assert_eq!(parsed(&["--", "-5", "degrees"]), chat("local", Some("-5 degrees")));
        assert_eq!(parsed(&[" "]), chat("local", None));
        assert_eq!(parsed(&["-h"]), Ok(Command::Help));
        assert_eq!(parsed(&["hi", "--version"]), Ok(Command::Version));
        assert_eq!(parsed(&["--explain"]), Ok(Command::Explain));
        assert_eq!(parsed(&["1=2"]), chat("local", Some("1=2")));
        assert_eq!(parsed(&["--", "serve"]), chat("local", Some("serve")));
        assert_eq!(parsed(&["please", "serve", "tea"]), chat("local", Some("please serve tea")));
        assert!(matches!(parsed(&["serve"]), Ok(Command::Serve(_))));
        assert_eq!(parsed(&["serve", "--help"]), Ok(Command::ServeHelp));
        let kept = Command::Chat {
            user: "local".to_owned(),
            store: "sqlite:a.db".to_owned(),
            session: Some("s".to_owned()),
            message: None,
        };
        assert_eq!(parsed(&["--store=sqlite:a.db", "--session", "s"]), Ok(kept));
    }

    #[test]
    fn what_cannot_be_followed_is_refused_with_a_hint() {
        for (args, word) in [
            (&["--colour"][..], "--help"),
            (&["--user"], "--user ann"),
            (&["--user", ""], "name"),
            (&["--store"], "sqlite:"),
            (&["--session="], "an id"),
        ] {
            assert!(parsed(args).unwrap_err().0.contains(word), "{args:?}");
        }
    }
}
