//! `umbel serve`: the demo agents, offered to AG-UI front ends.

mod options;
mod reload;

use std::fmt::Write as _;
use std::io::{self, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::process::ExitCode;

use tokio::net::TcpListener;
use tokio::sync::watch;
use tracing_subscriber::filter::LevelFilter;
use umbel_server::{BearerTokens, Server};
use umbel_stores::Stores;

pub use self::options::Options;
use crate::args::{self, NOWHERE};
use crate::{Cli, Offer, STOPPED};

/// Serves until it is told to stop.
pub fn main(cli: &Cli, options: &Options) -> io::Result<ExitCode> {
    // What clients get as a reference is found here.
    let log = tracing_subscriber::fmt().with_writer(io::stderr).with_max_level(LevelFilter::WARN);
    log.with_target(false).init();
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let result = runtime.block_on(serve(cli, options));
    // Told twice, it does not wait for what is still going on.
    runtime.shutdown_background();
    result
}

async fn serve(cli: &Cli, options: &Options) -> io::Result<ExitCode> {
    let mut options = options.clone();
    options.which.agents = options.file.take().or(options.which.agents);
    let options = &options;
    let (offers, files) = cli.load(&options.which, true);
    let offers = offers?;
    let names: Vec<(String, String)> =
        offers.iter().map(|offer| (offer.name().to_owned(), offer.describes().to_owned())).collect();
    let stores = args::open(&options.store).await?;
    let service = server(offers, options, &stores)?.build().map_err(io::Error::other)?;
    let listener = listen(options).await?;
    let address = listener.local_addr()?;
    io::stdout().write_all(greeting(options, &names, address).as_bytes())?;
    let mut told = signals()?;
    let mut twice = told.clone();
    let stop = async move {
        // An error means that nobody can tell any more.
        let _ = told.wait_for(|times| *times >= 1).await;
        // If it cannot be said, it happens all the same.
        let _ =
            io::stdout().write_all(b"Stopping when the runs under way are over. Once more stops at once.\n");
    };
    let reload = reload::on_change(cli, options, &service, &stores, files);
    tokio::select! {
        served = service.clone().serve(listener, stop) => served.map(|()| ExitCode::SUCCESS),
        _ = twice.wait_for(|times| *times >= 2) => Ok(ExitCode::from(STOPPED)),
        () = reload => Ok(ExitCode::SUCCESS),
    }
}

/// The agents at their paths.
fn server(offers: Vec<Offer>, options: &Options, stores: &Stores) -> io::Result<Server> {
    let mut server = Server::new().base_path(&options.base);
    for offer in offers {
        let path = format!("/{}", offer.name());
        server = server.agent(path, offer.serve(stores).map_err(io::Error::other)?);
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
    Ok(server)
}

/// Listens, unless anybody could come and nobody would be asked who they are.
async fn listen(options: &Options) -> io::Result<TcpListener> {
    let Options { host, port, .. } = options;
    let cannot = |error: io::Error| {
        let hint = match error.kind() {
            io::ErrorKind::AddrInUse => ": another program listens there. Choose another port with `--port`",
            _ => "",
        };
        io::Error::other(format!("It cannot listen at {host}, port {port}{hint}.\n({error})"))
    };
    let places: Vec<SocketAddr> =
        tokio::net::lookup_host((host.as_str(), *port)).await.map_err(cannot)?.collect();
    if options.tokens.is_none() && !places.iter().all(|place| place.ip().is_loopback()) {
        let message = format!(
            "Others can reach {host}, and nobody would be asked who they are.\n\
             Say who may ask with `--tokens FILE`: a line `TOKEN USER` each, where `openssl rand -hex 24` makes a good \
             token.\nOr leave `--host` out: then only this machine can reach it."
        );
        return Err(io::Error::new(io::ErrorKind::InvalidInput, message));
    }
    TcpListener::bind(places.as_slice()).await.map_err(cannot)
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

/// Where it listens, and what to try.
fn greeting(options: &Options, agents: &[(String, String)], address: SocketAddr) -> String {
    // Nobody can ask for "any address".
    let here = match address.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => IpAddr::V4(Ipv4Addr::LOCALHOST),
        IpAddr::V6(ip) if ip.is_unspecified() => IpAddr::V6(Ipv6Addr::LOCALHOST),
        ip => ip,
    };
    let base = options.base.trim_matches('/');
    let slash = if base.is_empty() { "" } else { "/" };
    let root = format!("http://{}{slash}{base}", SocketAddr::new(here, address.port()));
    let mut text = match &options.which.agents {
        Some(path) => format!("Agents of {} for AG-UI front ends.\n\n", path.display()),
        None => "Umbel demo for AG-UI front ends: a scripted model, made-up data.\n\n".to_owned(),
    };
    for (name, about) in agents {
        // Writing to a string cannot fail.
        let _ = writeln!(text, "  {root}/{name}  {about}");
    }
    let first = agents.first().map_or("", |(name, _)| name);
    let token = match options.tokens {
        Some(_) => " \\\n    -H \"Authorization: Bearer $TOKEN\"",
        None => "",
    };
    let _ = writeln!(
        text,
        "\nTry it:\n  curl -N {root}/{first} -H 'Content-Type: application/json'{token} \\\n    \
         -d '{{\"threadId\": \"t1\", \"runId\": \"r1\", \"messages\": [\n      \
         {{\"id\": \"m1\", \"role\": \"user\", \"content\": \"weather in Paris and Rome\"}}]}}'\n"
    );
    let kept = match options.store.as_str() {
        NOWHERE => "Conversations are gone when it stops; `--store` keeps them. ",
        _ => "",
    };
    let _ = writeln!(text, "{kept}Ctrl-C stops it.");
    text
}
