//! `umbel mcp`: the agents as tools of the MCP client that started it.

use std::io;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use smol_str::SmolStr;
use tracing_subscriber::filter::LevelFilter;
use umbel::Runner;
use umbel_mcp::server::{AgentOffer, McpServer};

use crate::args::{self, STORE, Which};
use crate::{Cli, Offer, until_stopped};

/// Whose conversations these are: whoever sits at this machine, as for `umbel serve`.
const USER: &str = "local";

/// Which agents are offered.
#[derive(Args, Clone, Debug)]
pub struct Options {
    /// Agents from a file, such as agents.toml.
    #[arg(value_name = "FILE", conflicts_with = "agents")]
    file: Option<PathBuf>,
    #[command(flatten)]
    which: Which,
    /// Where conversations are kept: sqlite:FILE, postgres://... or memory: for nowhere.
    #[arg(long, value_name = "ADDRESS", env = "UMBEL_STORE", hide_env_values = true, default_value = STORE)]
    store: String,
}

/// Serves until whoever started it hangs up.
pub fn main(cli: &Cli, options: &Options) -> io::Result<ExitCode> {
    // Standard output belongs to the protocol.
    let log = tracing_subscriber::fmt().with_writer(io::stderr).with_target(false);
    // If somebody else listens already, they do.
    let _ = log.with_max_level(LevelFilter::WARN).try_init();
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let result = runtime.block_on(until_stopped(serve(cli, options)));
    // Who reads standard input cannot be stopped, and is not waited for.
    runtime.shutdown_background();
    result
}

async fn serve(cli: &Cli, options: &Options) -> io::Result<ExitCode> {
    let mut which = options.which.clone();
    which.agents = options.file.clone().or(which.agents);
    let offers = match which.agent {
        Some(_) => vec![cli.offer(&which, false)?],
        None => cli.offers(&which, false)?,
    };
    let stores = args::open(&options.store).await?;
    let ready = |offer: Offer| {
        let ready = offer.ready(&stores).map_err(io::Error::other)?;
        Ok((ready.name, ready.about, ready.runner))
    };
    let agents = offers.into_iter().map(ready).collect::<io::Result<Vec<_>>>()?;
    server(agents).stdio(USER).await.map_err(io::Error::other)?;
    Ok(ExitCode::SUCCESS)
}

/// The agents as tools, by the names that the command line knows them by.
pub(crate) fn server(agents: Vec<(SmolStr, String, Runner)>) -> McpServer {
    let mut server = McpServer::new("umbel");
    for (name, about, runner) in agents {
        let root = runner.tree().node(runner.tree().root()).map(|root| root.agent.clone());
        let says_itself = root.is_ok_and(|agent| !agent.description().is_empty());
        let mut offer = AgentOffer::new(runner).name(name).conversations();
        if !says_itself && !about.is_empty() {
            offer = offer.description(about);
        }
        server = server.agent(offer);
    }
    server
}
