//! `umbel sessions`: the conversations of a store.

pub(crate) mod look;
mod transfer;

use std::io::{self, BufRead, IsTerminal, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, Subcommand};

use self::look::Listed;
use crate::agents::Ready;
use crate::args::{self, Kept, STORE, Which, bad_usage};
use crate::screen::Screen;
use crate::style::{Style, for_stdout};
use crate::{Cli, STOPPED};

/// What to do with conversations.
#[derive(Args, Clone, Debug)]
pub struct Options {
    #[command(subcommand)]
    action: Action,
}

/// What to do with conversations.
#[derive(Clone, Debug, Subcommand)]
enum Action {
    /// List conversations, the one that changed last first.
    List(List),
    /// Show what was said and done in a conversation.
    Show(Show),
    /// Write conversations as JSON lines: a whole store, or one conversation.
    Export(Export),
    /// Take in what was exported, all or nothing. What is there already is refused.
    Import(Import),
    /// Delete conversations.
    Delete(Delete),
}

#[derive(Args, Clone, Debug)]
struct List {
    #[command(flatten)]
    which: Which,
    #[command(flatten)]
    kept: Kept,
    /// As JSON.
    #[arg(long)]
    json: bool,
}

#[derive(Args, Clone, Debug)]
struct Show {
    /// Which conversation; the first letters of its id are enough.
    #[arg(value_name = "ID")]
    id: String,
    #[command(flatten)]
    which: Which,
    #[command(flatten)]
    kept: Kept,
    /// The events as JSON, a line each.
    #[arg(long)]
    json: bool,
}

#[derive(Args, Clone, Debug)]
struct Export {
    /// Which conversation; all that the store holds if left out.
    #[arg(value_name = "ID")]
    id: Option<String>,
    #[command(flatten)]
    which: Which,
    #[command(flatten)]
    kept: Kept,
    /// Where to write; standard output if left out.
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
}

#[derive(Args, Clone, Debug)]
struct Import {
    /// What was exported; `-` for standard input.
    #[arg(value_name = "FILE")]
    file: PathBuf,
    #[command(flatten)]
    kept: Kept,
}

#[derive(Args, Clone, Debug)]
struct Delete {
    /// Which conversations; the first letters of an id are enough.
    #[arg(value_name = "ID", required_unless_present = "all")]
    ids: Vec<String>,
    #[command(flatten)]
    which: Which,
    #[command(flatten)]
    kept: Kept,
    /// All of this user with the agent, or with all agents if none is named.
    #[arg(long, conflicts_with = "ids")]
    all: bool,
    /// Do not ask.
    #[arg(short, long)]
    yes: bool,
}

/// Does it.
pub fn main(cli: &Cli, options: &Options) -> io::Result<ExitCode> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        match &options.action {
            Action::List(options) => list(cli, options).await,
            Action::Show(options) => show(cli, options).await,
            Action::Export(options) => export(cli, options).await,
            Action::Import(options) => import(options).await,
            Action::Delete(options) => delete(cli, options).await,
        }
    })
}

async fn list(cli: &Cli, options: &List) -> io::Result<ExitCode> {
    // Nobody has named a store, and nothing was said yet.
    let listed = match options.kept.store == STORE && args::must_be_there(STORE).is_err() {
        true => Vec::new(),
        false => options.kept.listed(cli, &options.which).await?.1,
    };
    let mut out = io::stdout().lock();
    if options.json {
        writeln!(out, "{}", for_stdout(&serde_json::to_string_pretty(&listed)?))?;
        return Ok(ExitCode::SUCCESS);
    }
    if listed.is_empty() {
        writeln!(io::stderr(), "There are no conversations yet. `umbel chat` begins one.")?;
    }
    let width =
        |of: fn(&Listed) -> &str| listed.iter().map(|one| of(one).chars().count()).max().unwrap_or_default();
    let (agent, id) = (width(|one| &one.agent), width(|one| &one.id));
    for one in &listed {
        writeln!(out, "{:<agent$}  {}", one.agent, one.line(id))?;
    }
    Ok(ExitCode::SUCCESS)
}

async fn show(cli: &Cli, options: &Show) -> io::Result<ExitCode> {
    let (agents, listed) = options.kept.listed(cli, &options.which).await?;
    let found = one(&listed, &options.id)?;
    let agent = agents.iter().find(|agent| agent.name == found.agent);
    let agent = agent.ok_or_else(|| io::Error::other("the agent is gone"))?;
    let session = look::whole(&agent.runner, &found.key).await.map_err(io::Error::other)?;
    let mut screen = match options.json {
        true => Screen::json(io::stdout()),
        false => Screen::new(io::stdout(), Style::for_terminal(io::stdout().is_terminal()), false),
    };
    for event in session.events.iter() {
        screen.replay(event)?;
    }
    screen.settle()?;
    Ok(ExitCode::SUCCESS)
}

async fn export(cli: &Cli, options: &Export) -> io::Result<ExitCode> {
    args::must_be_there(&options.kept.store)?;
    let only = match &options.id {
        Some(id) => Some(one(&options.kept.listed(cli, &options.which).await?.1, id)?.key.clone()),
        None => None,
    };
    let pieces = transfer::export(&options.kept.store, only, options.output.as_deref()).await?;
    writeln!(io::stderr(), "{pieces} pieces are written: state, conversations, artifacts and memories.")?;
    Ok(ExitCode::SUCCESS)
}

async fn import(options: &Import) -> io::Result<ExitCode> {
    let pieces = transfer::import(&options.kept.store, &options.file).await?;
    writeln!(io::stderr(), "{pieces} pieces are taken in.")?;
    Ok(ExitCode::SUCCESS)
}

async fn delete(cli: &Cli, options: &Delete) -> io::Result<ExitCode> {
    let (agents, listed) = options.kept.listed(cli, &options.which).await?;
    let meant: Vec<&Listed> = match options.all {
        true => listed.iter().collect(),
        false => options.ids.iter().map(|id| one(&listed, id)).collect::<io::Result<_>>()?,
    };
    if !options.yes && !sure(&meant)? {
        writeln!(io::stderr(), "Nothing was deleted.")?;
        return Ok(ExitCode::from(STOPPED));
    }
    for one in &meant {
        if let Some(agent) = agents.iter().find(|agent| agent.name == one.agent) {
            agent.runner.delete_session(&one.key).await.map_err(io::Error::other)?;
        }
    }
    writeln!(io::stderr(), "{} deleted.", meant.len())?;
    Ok(ExitCode::SUCCESS)
}

/// Asks the person, if there is one.
fn sure(meant: &[&Listed]) -> io::Result<bool> {
    if !io::stdin().is_terminal() {
        return Err(bad_usage("nobody can be asked whether to delete: say so with --yes"));
    }
    for one in meant {
        writeln!(io::stderr(), "{}  {}", one.agent, one.line(one.id.len()))?;
    }
    write!(io::stderr(), "Delete {} for good? [y/n] ", meant.len())?;
    let mut line = String::new();
    io::stdin().lock().read_line(&mut line)?;
    Ok(matches!(line.trim().to_lowercase().as_str(), "y" | "yes"))
}

/// The conversation that is meant: its id, or the first letters of it.
fn one<'a>(listed: &'a [Listed], id: &str) -> io::Result<&'a Listed> {
    if id.is_empty() {
        return Err(bad_usage("an id is empty: `umbel sessions list` shows those there are"));
    }
    let exact: Vec<&Listed> = listed.iter().filter(|one| one.id == id).collect();
    let begins: Vec<&Listed> = listed.iter().filter(|one| one.id.starts_with(id)).collect();
    match (exact.as_slice(), begins.as_slice()) {
        ([one], _) | ([], [one]) => Ok(one),
        ([], []) => Err(bad_usage(format!(
            "there is no conversation {id}: `umbel sessions list` shows those there are"
        ))),
        _ => Err(bad_usage(format!(
            "several conversations begin with {id}: say more of it, or the agent with --agent"
        ))),
    }
}

impl Kept {
    /// The agents that are meant, all of them if none is named, and their conversations with the user.
    async fn listed(&self, cli: &Cli, which: &Which) -> io::Result<(Vec<Ready>, Vec<Listed>)> {
        args::must_be_there(&self.store)?;
        let stores = args::open(&self.store).await?;
        let offers = match which.agent {
            Some(_) => vec![cli.offer(which, false)?],
            None => cli.offers(which, false)?,
        };
        let (mut agents, mut listed) = (Vec::<Ready>::new(), Vec::new());
        for offer in offers {
            let agent = offer.ready(&stores).map_err(io::Error::other)?;
            // Agents of one app share their conversations.
            if agents.iter().all(|known| known.runner.app() != agent.runner.app()) {
                let found = look::list(&agent.name, &agent.runner, &self.user).await;
                listed.extend(found.map_err(io::Error::other)?);
            }
            agents.push(agent);
        }
        listed.sort_by(|one, other| other.updated_at.total_cmp(&one.updated_at));
        Ok((agents, listed))
    }
}
