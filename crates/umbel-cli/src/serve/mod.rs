//! `umbel serve`: the agents, offered to AG-UI front ends, with the studio to watch them.

mod greeting;
mod options;
mod reload;

use std::io::{self, Write};
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};
use std::time::Duration;

use smol_str::SmolStr;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tracing_subscriber::Layer;
use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use umbel_mcp::server::{McpServer, McpService};
use umbel_server::{BearerTokens, Listener, Server, ServerLimits, Tls, Traces};
use umbel_stores::Stores;
use umbel_telemetry::{ContentCapture, Exporting, Telemetry};

use self::greeting::Greeting;
pub use self::options::Options;
use crate::style::clean;
use crate::{Cli, Offer, STOPPED, args, mcp, models};

/// The port unless one is named.
pub(crate) const PORT: u16 = 8123;

/// How long it may take until all that goes on is dropped.
const LETTING_GO: Duration = Duration::from_secs(2);

/// Where MCP clients find the agents.
pub(crate) const MCP: &str = "/mcp";

/// How long calls of MCP clients may go on when it is told to stop.
const CALLS: Duration = Duration::from_secs(10);

/// How many ports after it are tried.
const MORE_PORTS: u16 = 20;

/// Serves until it is told to stop.
pub fn main(cli: &Cli, options: &Options) -> io::Result<ExitCode> {
    let traces = Traces::new();
    // What clients get as a reference is found here.
    let log = tracing_subscriber::fmt::layer().with_writer(io::stderr).with_target(false);
    let log = log.with_filter(LevelFilter::WARN);
    let exporting = exporting(options)?;
    let told = exporting.as_ref().map(Exporting::layer);
    tracing_subscriber::registry().with(log).with(traces.layer()).with(told).init();
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let result = runtime.block_on(serve(cli, options, &traces));
    // Told twice, it does not wait for what is still going on, but lets it go: programs of tools end then.
    runtime.shutdown_timeout(LETTING_GO);
    if let Some(exporting) = exporting {
        // A collector that does not answer was told of before.
        let _ = exporting.shutdown(LETTING_GO);
    }
    result
}

/// Traces and metrics on their way to a collector, if there is to be one.
fn exporting(options: &Options) -> io::Result<Option<Exporting>> {
    let telemetry = match &options.otlp {
        Some(address) => Some(Telemetry::new("umbel").otlp(address)),
        None => Telemetry::from_env("umbel"),
    };
    if telemetry.is_none() && options.otlp_content {
        let message = "Where is it to be sent? Say so with `--otlp http://localhost:4318`.";
        return Err(io::Error::new(io::ErrorKind::InvalidInput, message));
    }
    let with_content = |telemetry: Telemetry| match options.otlp_content {
        true => telemetry.content(ContentCapture::new()),
        false => telemetry,
    };
    telemetry.map(|telemetry| with_content(telemetry).build()).transpose().map_err(io::Error::other)
}

async fn serve(cli: &Cli, options: &Options, traces: &Traces) -> io::Result<ExitCode> {
    let mut options = options.clone();
    options.which.agents = options.file.take().or(options.which.agents);
    let options = &options;
    let (offers, files) = cli.load(&options.which, true);
    let offers = offers?;
    let mut greeting = Greeting::new(options, &offers);
    let stores = args::open(&options.store).await?;
    let (server, offered) = server(offers, options, &stores, traces)?;
    let mcp = offered.map(McpServer::http).transpose().map_err(io::Error::other)?;
    let service = mounted(server, mcp.as_ref()).build().map_err(io::Error::other)?;
    let listener = listen(options, &mut greeting).await?;
    io::stdout().write_all(clean(&greeting.to_string()).as_bytes())?;
    if options.open && !open(&greeting.studio()) {
        writeln!(io::stderr(), "No browser could be opened: open {} yourself.", greeting.studio())?;
    }
    let mut told = signals()?;
    let mut twice = told.clone();
    let stop = async move {
        // An error means that nobody can tell any more.
        let _ = told.wait_for(|times| *times >= 1).await;
        // If it cannot be said, it happens all the same.
        let _ =
            io::stdout().write_all(b"Stopping when the runs under way are over. Once more stops at once.\n");
    };
    let reload = reload::on_change(cli, options, (&service, mcp.as_ref()), (&stores, traces), files);
    let serve = async {
        let served = service.clone().serve(listener, stop).await;
        if let Some(mcp) = &mcp {
            mcp.close(CALLS).await;
        }
        served
    };
    tokio::select! {
        served = serve => served.map(|()| ExitCode::SUCCESS),
        _ = twice.wait_for(|times| *times >= 2) => Ok(ExitCode::from(STOPPED)),
        () = reload => Ok(ExitCode::SUCCESS),
    }
}

/// The agents at their paths, and all of them for MCP clients if that is wanted.
fn server(
    offers: Vec<Offer>,
    options: &Options,
    stores: &Stores,
    traces: &Traces,
) -> io::Result<(Server, Option<McpServer>)> {
    let mut server = Server::new()
        .base_path(&options.base)
        .studio(!options.no_studio)
        .traces(traces.clone())
        .prices(models::prices().as_ref().clone());
    if options.inspect {
        server = server.inspect(true);
    }
    if let Some(trusted) = options.trust_traces {
        server = server.trust_traces(trusted);
    }
    let mut limits = ServerLimits::default();
    for limit in &options.limits {
        let Some((name, value)) = limit.split_once('=') else {
            return Err(args::bad_usage(format!("--limit {limit}: write it as NAME=VALUE")));
        };
        limits.set(name, value).map_err(|error| args::bad_usage(format!("--limit: {}", error.message())))?;
    }
    server = server.limits(limits);
    let mut tools = Vec::new();
    for offer in offers {
        let (name, about) = (SmolStr::new(offer.name()), offer.describes().to_owned());
        let endpoint = offer.serve(stores).map_err(io::Error::other)?;
        tools.push((name.clone(), about, endpoint.runner().clone()));
        server = server.agent(format!("/{name}"), endpoint);
    }
    for origin in &options.origins {
        server = server.allow_origin(origin);
    }
    for host in &options.hosts {
        server = server.allow_host(host);
    }
    if let Some(path) = &options.tokens {
        server = server.auth(BearerTokens::from_file(path).map_err(io::Error::other)?);
    }
    Ok((server, options.mcp.then(|| mcp::server(tools))))
}

/// The server with what is offered to MCP clients.
fn mounted(server: Server, mcp: Option<&McpService>) -> Server {
    match mcp {
        Some(mcp) => server.mount(MCP, mcp.clone()),
        None => server,
    }
}

/// Listens, and says where.
async fn listen<'a>(options: &'a Options, greeting: &mut Greeting<'a>) -> io::Result<Listener> {
    if let Some(path) = &options.unix {
        let listener = listen_at(path, options.unix_group).await.map_err(|error| {
            io::Error::other(format!("It cannot listen at the socket {}: {error}.", path.display()))
        })?;
        greeting.place_at(path);
        return Ok(listener);
    }
    // What is wrong with the files is told before a port is taken.
    let tls = match (&options.tls_cert, &options.tls_key) {
        (Some(certificate), Some(key)) => Some(Tls::from_files(certificate, key).map_err(io::Error::other)?),
        _ => None,
    };
    let tcp = listen_on_port(options).await?;
    greeting.place(tcp.local_addr()?);
    Ok(match tls {
        Some(tls) => Listener::tls(tcp, tls),
        None => tcp.into(),
    })
}

/// Listens at a unix socket.
#[cfg(unix)]
async fn listen_at(path: &Path, for_group: bool) -> io::Result<Listener> {
    match for_group {
        true => Listener::unix_for_group(path).await,
        false => Listener::unix(path).await,
    }
}

#[cfg(not(unix))]
async fn listen_at(_path: &Path, _for_group: bool) -> io::Result<Listener> {
    Err(io::Error::new(io::ErrorKind::Unsupported, "this system has no unix sockets"))
}

/// Listens on a port, unless anybody could come and nobody would be asked who they are.
async fn listen_on_port(options: &Options) -> io::Result<TcpListener> {
    let host = &options.host;
    let port = options.port.unwrap_or(PORT);
    let cannot = |error: io::Error| {
        let hint = match error.kind() {
            io::ErrorKind::AddrInUse => ": another program listens there. Choose another port with `--port`",
            _ => "",
        };
        io::Error::other(format!("It cannot listen at {host}, port {port}{hint}.\n({error})"))
    };
    let places: Vec<SocketAddr> =
        tokio::net::lookup_host((host.as_str(), port)).await.map_err(cannot)?.collect();
    if options.tokens.is_none() && !places.iter().all(|place| place.ip().is_loopback()) {
        let message = format!(
            "Others can reach {host}, and nobody would be asked who they are.\n\
             Say who may ask with `--tokens FILE`: a line `TOKEN USER` each, where `openssl rand -hex 24` makes a good \
             token.\nOr leave `--host` out: then only this machine can reach it."
        );
        return Err(io::Error::new(io::ErrorKind::InvalidInput, message));
    }
    // A port that somebody named is the one that clients know; otherwise the next one is as good.
    let more = if options.port.is_none() { MORE_PORTS } else { 0 };
    let mut last = None;
    for step in 0..=more {
        let places: Vec<SocketAddr> = places
            .iter()
            .map(|place| SocketAddr::new(place.ip(), place.port().saturating_add(step)))
            .collect();
        match TcpListener::bind(places.as_slice()).await {
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => last = Some(error),
            bound => return bound.map_err(cannot),
        }
    }
    Err(cannot(last.unwrap_or_else(|| io::ErrorKind::AddrInUse.into())))
}

/// Opens a page in the browser, without waiting for it. Tells whether that began.
fn open(address: &str) -> bool {
    let usual = if cfg!(target_os = "macos") { "open" } else { "xdg-open" };
    let named = std::env::var_os("BROWSER").filter(|browser| !browser.is_empty());
    let mut command = match named {
        Some(browser) => Command::new(browser),
        None if cfg!(windows) => Command::new("explorer"),
        None => Command::new(usual),
    };
    let started =
        command.arg(address).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn();
    // It is waited for elsewhere, so that it does not stay behind as a process that nobody asks about.
    started.map(|mut child| std::thread::spawn(move || child.wait())).is_ok()
}

/// How often the program was told to stop, by Ctrl-C or by whoever runs it.
fn signals() -> io::Result<watch::Receiver<usize>> {
    let (told, times) = watch::channel(0);
    #[cfg(unix)]
    {
        let mut terminate = tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate())?;
        let told = told.clone();
        tokio::spawn(async move {
            while terminate.recv().await.is_some() {
                told.send_modify(|times| *times += 1);
            }
        });
    }
    tokio::spawn(async move {
        while tokio::signal::ctrl_c().await.is_ok() {
            told.send_modify(|times| *times += 1);
        }
    });
    Ok(times)
}
