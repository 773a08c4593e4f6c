//! What stands behind `umbel serve` on the command line.

use std::path::PathBuf;

use crate::args::{BadArgs, NOWHERE, value};

/// What `umbel serve --help` says.
pub const USAGE: &str = "\
Offers the demo agents to AG-UI front ends. Their model is a script, so it works offline and needs no key.

Usage: umbel serve [FLAG]...

  --host NAME            Where to listen; 127.0.0.1 if left out. Any other place needs --tokens.
  --port NUMBER          On which port; 8123 if left out, 0 for any that is free.
  --store ADDRESS        Where conversations are kept: sqlite:FILE or postgres://...; nowhere if left out.
  --tokens FILE          Who may ask: a line `TOKEN USER` each. Whoever sits at this machine if left out.
  --allow-origin ORIGIN  Pages that may ask, such as http://localhost:3000; none if left out. May come again.
  --allow-host NAME      A name to be asked by, besides those of this machine. May come again.
  --base-path PATH       What comes before all paths, behind a proxy.
  -h, --help             Show this help.
  -V, --version          Show the version.

Agents:
  /guide     A travel guide and its team: tools, state, approval, hand-over.
  /day-plan  Two agents side by side, then a third.

Examples:
  umbel serve
  umbel serve --allow-origin http://localhost:3000
  umbel serve --store sqlite:trips.db --tokens tokens.txt --host 0.0.0.0
";

/// How the agents are offered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// Where to listen.
    pub host: String,
    /// On which port; 0 for any.
    pub port: u16,
    /// Where conversations are kept.
    pub store: String,
    /// Who may ask.
    pub tokens: Option<PathBuf>,
    /// Pages that may ask.
    pub origins: Vec<String>,
    /// Names to be asked by.
    pub hosts: Vec<String>,
    /// What comes before all paths.
    pub base: String,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            host: "127.0.0.1".to_owned(),
            port: 8123,
            store: NOWHERE.to_owned(),
            tokens: None,
            origins: Vec::new(),
            hosts: Vec::new(),
            base: String::new(),
        }
    }
}

/// What `umbel serve` is asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Asked {
    /// How it is used.
    Help,
    /// Which version it is.
    Version,
    /// To serve.
    Serve(Options),
}

/// Reads what stands behind `serve`.
///
/// ```
/// use umbel_cli::serve::options::{Asked, Options, parse};
///
/// let asked = parse(["--port", "0"].map(str::to_owned)).unwrap();
/// assert_eq!(asked, Asked::Serve(Options { port: 0, ..Options::default() }));
/// ```
pub fn parse(args: impl IntoIterator<Item = String>) -> Result<Asked, BadArgs> {
    let (mut args, mut options) = (args.into_iter(), Options::default());
    while let Some(arg) = args.next() {
        let (flag, given) = match arg.split_once('=').filter(|(flag, _)| flag.starts_with("--")) {
            Some((flag, given)) => (flag, Some(given.to_owned())),
            None => (arg.as_str(), None),
        };
        let value = |what, such| value(given.or_else(|| args.next()), flag, what, such);
        match flag {
            "-h" | "--help" => return Ok(Asked::Help),
            "-V" | "--version" => return Ok(Asked::Version),
            "--host" => options.host = value("a name or an address", "127.0.0.1")?,
            "--port" => {
                let port = value("a number", "8123")?;
                let bad = || BadArgs(format!("`{port}` is no port: it is a number from 0 to 65535."));
                options.port = port.parse().map_err(|_| bad())?;
            }
            "--store" => options.store = value("an address", "sqlite:trips.db")?,
            "--tokens" => options.tokens = Some(value("a file", "tokens.txt")?.into()),
            "--allow-origin" => options.origins.push(value("an origin", "http://localhost:3000")?),
            "--allow-host" => options.hosts.push(value("a name", "agents.example")?),
            "--base-path" => options.base = value("a path", "/agents")?,
            _ => return Err(unknown(&arg)),
        }
    }
    Ok(Asked::Serve(options))
}

fn unknown(arg: &str) -> BadArgs {
    let what = if arg.starts_with('-') { "flag" } else { "word" };
    BadArgs(format!(
        "`umbel serve` knows no {what} `{arg}`. `umbel serve --help` lists what it knows.\n\
         If it is a message to the agent, put `--` before it: `umbel -- serve {arg}`."
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(args: &[&str]) -> Result<Asked, BadArgs> {
        parse(args.iter().map(|arg| (*arg).to_owned()))
    }

    #[test]
    fn every_flag_is_read() {
        assert_eq!(parsed(&[]), Ok(Asked::Serve(Options::default())));
        let all = "--host=::1 --port 1 --store sqlite:a.db --tokens t --allow-origin http://a --allow-origin=http://b \
                   --allow-host h --base-path /x";
        let options = Options {
            host: "::1".to_owned(),
            port: 1,
            store: "sqlite:a.db".to_owned(),
            tokens: Some("t".into()),
            origins: vec!["http://a".to_owned(), "http://b".to_owned()],
            hosts: vec!["h".to_owned()],
            base: "/x".to_owned(),
        };
        assert_eq!(parsed(&all.split(' ').collect::<Vec<_>>()), Ok(Asked::Serve(options)));
        assert_eq!(parsed(&["--port", "1", "-h"]), Ok(Asked::Help));
        assert_eq!(parsed(&["-V"]), Ok(Asked::Version));
    }

    #[test]
    fn what_cannot_be_followed_is_refused_with_a_hint() {
        for (args, word) in [
            (&["--prot", "1"][..], "umbel serve --help"),
            (&["tea"], "umbel -- serve tea"),
            (&["--port"], "--port 8123"),
            (&["--port", "many"], "65535"),
            (&["--port", "65536"], "65535"),
            (&["--tokens="], "a file"),
            (&["--host", " "], "127.0.0.1"),
        ] {
            assert!(parsed(args).unwrap_err().0.contains(word), "{args:?}");
        }
    }
}
