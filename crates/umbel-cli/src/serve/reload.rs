//! Agents of a file are read again when it changes.

use std::io::{self, Write};
use std::time::Duration;

use umbel_mcp::server::McpService;
use umbel_server::{Service, Traces};
use umbel_stores::Stores;

use super::{Options, mounted, server};
use crate::file::{Seen, Watch};
use crate::style::clean;
use crate::{Cli, Offer};

/// How often files are looked at.
const EVERY: Duration = Duration::from_secs(1);

/// Looks at the files for as long as it is polled. A good new version takes the place of the old one: runs under way end
/// with the agents they began with, and conversations go on. Of a bad one it is said what is wrong, and the old one stays.
pub(super) async fn on_change(
    cli: &Cli,
    options: &Options,
    (service, mcp): (&Service, Option<&McpService>),
    (stores, traces): (&Stores, &Traces),
    files: Vec<Seen>,
) {
    if files.is_empty() {
        return std::future::pending().await;
    }
    let mut watch = Watch::new(files);
    loop {
        tokio::time::sleep(EVERY).await;
        if !watch.has_changed() {
            continue;
        }
        let (offers, now) = cli.load(&options.which, true);
        watch = Watch::new(now);
        let names = |offers: &[Offer]| offers.iter().map(Offer::name).collect::<Vec<_>>().join(", ");
        let replaced = offers.and_then(|offers| {
            let names = names(&offers);
            let (server, offered) = server(offers, options, stores, traces)?;
            service.replace(mounted(server, mcp)).map_err(io::Error::other)?;
            if let (Some(mcp), Some(offered)) = (mcp, offered) {
                mcp.replace(offered).map_err(io::Error::other)?;
            }
            Ok(names)
        });
        // If nobody can be told, it happens all the same.
        let _ = match replaced {
            Ok(names) => writeln!(io::stderr(), "The file has changed and was read again. Agents: {names}."),
            Err(error) => {
                let error = error.to_string();
                let stay = "The file has changed; the agents stay as they were.";
                writeln!(io::stderr(), "error: {}\n{stay}", clean(&error))
            }
        };
    }
}
