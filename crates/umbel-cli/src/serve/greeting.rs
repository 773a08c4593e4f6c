//! What `umbel serve` says when it listens.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::Path;

use super::{MCP, Options, PORT};
use crate::Offer;
use crate::args::{NOWHERE, shown};

/// Where it listens, what is there, and what to try.
pub(super) struct Greeting<'a> {
    options: &'a Options,
    agents: Vec<Agent>,
    /// What all agents think with, if that is known.
    models: Vec<String>,
    root: String,
    /// The unix socket at which it listens, if it does.
    socket: Option<&'a Path>,
    /// A port that is taken, and the one in its place.
    instead: Option<(u16, u16)>,
}

struct Agent {
    name: String,
    about: String,
    suggestion: Option<String>,
}

impl<'a> Greeting<'a> {
    pub(super) fn new(options: &'a Options, offers: &[Offer]) -> Self {
        let agents = offers.iter().map(|offer| Agent {
            name: offer.name().to_owned(),
            about: offer.describes().to_owned(),
            suggestion: offer.suggestions().first().cloned(),
        });
        let mut models: Vec<String> = Vec::new();
        for words in offers.iter().map(Offer::model_words).filter(|words| !words.is_empty()) {
            if !models.iter().any(|known| known == words) {
                models.push(words.to_owned());
            }
        }
        Self { options, agents: agents.collect(), models, root: String::new(), socket: None, instead: None }
    }

    /// It listens there.
    pub(super) fn place(&mut self, address: SocketAddr) {
        // Nobody can ask for "any address".
        let here = match address.ip() {
            IpAddr::V4(ip) if ip.is_unspecified() => IpAddr::V4(Ipv4Addr::LOCALHOST),
            IpAddr::V6(ip) if ip.is_unspecified() => IpAddr::V6(Ipv6Addr::LOCALHOST),
            ip => ip,
        };
        let here = SocketAddr::new(here, address.port());
        self.root = match self.options.tls_cert {
            Some(_) => self.below(&format!("https://{}", self.named(here))),
            None => self.below(&format!("http://{here}")),
        };
        let other = self.options.port.is_none() && address.port() != PORT;
        self.instead = other.then_some((PORT, address.port()));
    }

    /// It listens at a unix socket.
    pub(super) fn place_at(&mut self, socket: &'a Path) {
        self.socket = Some(socket);
        self.root = self.below("http://localhost");
    }

    /// What comes before all paths, behind that.
    fn below(&self, root: &str) -> String {
        let base = self.options.base.trim_matches('/');
        let slash = if base.is_empty() { "" } else { "/" };
        format!("{root}{slash}{base}")
    }

    /// By which name to ask: a certificate is good for names, and seldom for addresses.
    fn named(&self, address: SocketAddr) -> String {
        let host = Some(&self.options.host).filter(|host| host.parse::<IpAddr>().is_err());
        match self.options.hosts.first().or(host) {
            Some(name) => format!("{name}:{}", address.port()),
            None => address.to_string(),
        }
    }

    /// Where the studio is.
    pub(super) fn studio(&self) -> String {
        format!("{}/studio/", self.root)
    }
}

impl fmt::Display for Greeting<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { options, root, .. } = self;
        let version = env!("CARGO_PKG_VERSION");
        match self.socket {
            Some(socket) => writeln!(f, "Umbel {version} is listening on the socket {}", socket.display())?,
            None => writeln!(f, "Umbel {version} is listening on {root}")?,
        }
        if let Some((taken, instead)) = self.instead {
            writeln!(f, "(Another program has port {taken}, so this is port {instead}.)")?;
        }
        // A browser has no way to a socket.
        if !options.no_studio && self.socket.is_none() {
            writeln!(f, "\nOpen the studio:\n  {}", self.studio())?;
        }
        match &options.which.agents {
            Some(file) => writeln!(f, "\nAgents of {}:", file.display())?,
            None => writeln!(f, "\nAgents:")?,
        }
        let width = self.agents.iter().map(|agent| agent.name.len()).max().unwrap_or_default();
        for Agent { name, about, .. } in &self.agents {
            writeln!(f, "  {root}/{name:<width$}  {about}")?;
        }
        if options.mcp {
            writeln!(f, "\nAll of them as tools, for MCP clients:\n  {root}{MCP}")?;
        }
        writeln!(f)?;
        for words in &self.models {
            writeln!(f, "Model: {words}.")?;
        }
        match options.store.as_str() {
            NOWHERE => writeln!(f, "Conversations are gone when it stops; `--store` keeps them.")?,
            store => writeln!(f, "Conversations are kept in {}.", shown(store))?,
        }
        if let Some(Agent { name, suggestion, .. }) = self.agents.first() {
            let said = suggestion.as_deref().unwrap_or("Hello!").replace(['\'', '"', '\\'], "");
            let token = match options.tokens {
                Some(_) => " \\\n    -H \"Authorization: Bearer $TOKEN\"",
                None => "",
            };
            let socket = self.socket.map(|socket| format!("--unix-socket '{}' ", socket.display()));
            let socket = socket.unwrap_or_default();
            writeln!(
                f,
                "\nWithout a browser:\n  curl -N {socket}{root}/{name} -H 'Content-Type: application/json'{token} \\\n    \
                 -d '{{\"threadId\": \"t1\", \"runId\": \"r1\", \"messages\": [\n      \
                 {{\"id\": \"m1\", \"role\": \"user\", \"content\": \"{said}\"}}]}}'"
            )?;
        }
        writeln!(f, "\nCtrl-C stops it.")
    }
}
