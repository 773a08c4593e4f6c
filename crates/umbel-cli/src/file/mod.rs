//! Agents in a file: TOML that says what agents there are, what they can do and who works with whom.
//!
//! # Layout
//! - `problem.rs`: what is wrong, with its line; `table.rs`: reading tables key by key
//! - `agents.rs`, `models.rs`, `tools.rs`, `handlers.rs`: what the tables mean
//! - `watch.rs`: noticing that a file has changed

mod agents;
mod code;
mod handlers;
mod models;
mod problem;
mod table;
mod tools;
mod watch;

#[cfg(test)]
mod tests;

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::path::Path;

use toml::de::DeTable;
use umbel::Runner;

pub(crate) use self::watch::{Seen, Watch};

use self::agents::Agents;
use self::models::Models;
use self::problem::{Problem, report};
use self::table::{At, Problems, Table};
use self::tools::Toolbox;
use crate::{Offer, Setup};

/// What became of a file.
#[derive(Debug)]
pub(crate) struct Loaded {
    /// The agents that it offers, or all that is wrong with it.
    pub(crate) offers: Result<Vec<Offer>, String>,
    /// The file, and those that it names, as they were read.
    pub(crate) files: Vec<Seen>,
}

/// What a file is trusted with. Without anything it reads what lies in its folder, and sends nothing of this machine away.
#[derive(Clone, Debug, Default)]
pub(crate) struct Trust {
    /// To run programs: it can do anything then.
    pub(crate) commands: bool,
    /// Variables of the environment that it may use.
    pub(crate) variables: Vec<String>,
}

/// Reads agents from a file.
pub(crate) fn load(path: &Path, setup: &Setup, trust: &Trust) -> Loaded {
    let (source, seen) = Seen::read(path);
    let source = match source {
        Ok(source) => source,
        Err(error) => {
            let message = format!("{}: the file cannot be read: {error}", path.display());
            return Loaded { offers: Err(message), files: vec![seen] };
        }
    };
    let folder = path.parent().unwrap_or(Path::new(""));
    let (offers, mut files) = read(&source, folder, setup, trust);
    files.insert(0, seen);
    Loaded { offers: offers.map_err(|problems| report(path, &source, problems)), files }
}

/// Reads a text that stands in no folder.
#[cfg(fuzzing)]
pub(crate) fn check(source: &str, setup: &Setup, trust: &Trust) -> Result<Vec<Offer>, String> {
    let folder = Path::new("/nowhere");
    read(source, folder, setup, trust).0.map_err(|problems| report(folder, source, problems))
}

/// Reads agents from the text of a file. Gives the files that it names, too.
fn read(
    source: &str,
    folder: &Path,
    setup: &Setup,
    trust: &Trust,
) -> (Result<Vec<Offer>, Vec<Problem>>, Vec<Seen>) {
    let (root, errors) = DeTable::parse_recoverable(source);
    if !errors.is_empty() {
        let problem = |error: &toml::de::Error| Problem {
            at: error.span().unwrap_or(0..0),
            message: format!("this is no TOML: {}", error.message()),
            hint: None,
        };
        return (Err(errors.iter().map(problem).collect()), Vec::new());
    }
    let problems = Problems::default();
    let root = Table::new(&problems, root.get_ref(), 0..0);
    let mut reading = Reading {
        problems: &problems,
        folder,
        models: Models { setup },
        trust,
        described: Vec::new(),
        files: RefCell::default(),
    };
    let offers = reading.offers(root);
    let files = reading.files.take();
    let problems = problems.take();
    (if problems.is_empty() { Ok(offers) } else { Err(problems) }, files)
}

/// A file that is being read.
struct Reading<'a> {
    problems: &'a Problems,
    /// Where the file is: paths in it are meant from there.
    folder: &'a Path,
    models: Models<'a>,
    trust: &'a Trust,
    /// The names of the tools that the file describes, good or not.
    described: Vec<&'a str>,
    /// The files that it names.
    files: RefCell<Vec<Seen>>,
}

impl<'a> Reading<'a> {
    fn offers(&mut self, root: Table<'a>) -> Vec<Offer> {
        let (named, usual) = (root.texts("offer"), root.text("model"));
        let tools = root.table("tools");
        self.described = tools.iter().flat_map(Table::all).map(|(name, _)| name.value).collect();
        let toolbox = tools.map(|tools| self.toolbox(&tools)).unwrap_or_default();
        let list = root.list("handlers");
        let handlers: Vec<_> =
            list.iter().filter_map(|value| handlers::read(self.problems, value, &self.models)).collect();
        let agents = match root.table("agents") {
            Some(table) => self.agents(&table, usual.as_ref()),
            None => {
                let hint = "begin with a line [agents.helper]";
                self.problems.hint(&(0..0), "the file has no agents", hint);
                Agents::new()
            }
        };
        root.finish();
        for name in agents.keys().filter(|name| self.described.contains(name)) {
            if let Some(drawn) = agents.get(name) {
                self.problems.note(&drawn.name.at, format!("`{name}` is the name of a tool, too"));
            }
        }
        let mut offers = Vec::new();
        for name in self.roots(named, &agents) {
            let (Some(agent), Some(drawn)) =
                (self.make(&name, &agents, &toolbox, &mut Vec::new()), agents.get(name.value))
            else {
                continue;
            };
            if let Err(error) = agents::check(&agent, &handlers)
                && self.problems.count() == 0
            {
                self.problems.note(&drawn.name.at, error.message());
            }
            let mut runner = Runner::builder(name.value, agent);
            for handler in &handlers {
                runner = runner.handler(handler.clone());
            }
            let mut offer = Offer::new(name.value, runner).about(drawn.description);
            if let Some(chosen) = &drawn.model {
                offer = offer.model(&chosen.words);
            }
            offers.push(drawn.suggestions.iter().fold(offer, |offer, message| offer.suggest(*message)));
        }
        self.check_rest(&agents, &toolbox);
        offers
    }

    /// The agents that are offered: those that are named, or those that no other works with.
    fn roots(&self, named: Vec<At<&'a str>>, agents: &Agents<'a>) -> Vec<At<&'a str>> {
        if !named.is_empty() {
            return named;
        }
        let below: BTreeSet<&str> = agents.values().flat_map(agents::Drawn::others).collect();
        let mut roots: Vec<_> = agents
            .values()
            .filter(|drawn| !below.contains(drawn.name.value))
            .map(|drawn| drawn.name.clone())
            .collect();
        roots.sort_by_key(|name| name.at.start);
        if let (true, Some(first)) = (roots.is_empty(), agents.values().next()) {
            let hint = "say which agents people talk with, at the top of the file: offer = [\"…\"]";
            self.problems.hint(&first.name.at, "each agent works for another, so that none is offered", hint);
        }
        roots
    }

    /// Agents that nobody works with may be wrong, too.
    fn check_rest(&self, agents: &Agents<'a>, toolbox: &Toolbox) {
        for drawn in agents.values() {
            self.make(&drawn.name, agents, toolbox, &mut Vec::new());
        }
    }

    /// The text of a file that is named.
    fn read_file(&self, name: &At<&str>) -> Option<String> {
        let path = self.folder.join(name.value);
        // Links are followed first: one may lead out of the folder.
        let real =
            |path: &Path| std::fs::canonicalize(if path == Path::new("") { Path::new(".") } else { path });
        let is_inside = match (real(self.folder), real(&path)) {
            (Ok(folder), Ok(path)) => path.starts_with(folder),
            // It cannot be read, which is said below.
            _ => true,
        };
        if !is_inside && !self.trust.commands {
            let hint = "move it there, or start with --allow-commands if you trust this file with everything";
            self.problems.hint(&name.at, format!("`{}` is not in the folder of this file", name.value), hint);
            return None;
        }
        let (read, seen) = Seen::read(&path);
        self.files.borrow_mut().push(seen);
        read.map_err(|error| {
            let hint = format!("it was looked for at {}", path.display());
            self.problems.hint(&name.at, format!("`{}` cannot be read: {error}", name.value), hint);
        })
        .ok()
    }
}
