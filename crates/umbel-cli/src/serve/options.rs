//! What stands behind `umbel serve` on the command line.

use std::path::PathBuf;

use clap::Args;
use clap::builder::BoolishValueParser;

use crate::args::{STORE, Which};

/// How the agents are offered.
#[derive(Args, Clone, Debug)]
pub struct Options {
    /// Agents from a file, such as agents.toml. When it changes, it is read again.
    #[arg(value_name = "FILE", conflicts_with = "agents")]
    pub(super) file: Option<PathBuf>,
    #[command(flatten)]
    pub(super) which: Which,
    /// Where to listen. Any place but this machine needs --tokens.
    #[arg(long, value_name = "NAME", default_value = "127.0.0.1")]
    pub(super) host: String,
    /// On which port; 0 for any that is free. If left out: 8123, or the next one that is free.
    #[arg(short, long, value_name = "NUMBER")]
    pub(super) port: Option<u16>,
    /// A unix socket to listen at in the place of a port. Only this user may connect.
    #[arg(long, value_name = "PATH", conflicts_with_all = ["host", "port", "tls_cert", "open"])]
    pub(super) unix: Option<PathBuf>,
    /// Let the group of the unix socket connect, too.
    #[arg(long, requires = "unix")]
    pub(super) unix_group: bool,
    /// Speak TLS: the certificate, and those between it and a root, in PEM form. Read again when it
    /// changes.
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    pub(super) tls_cert: Option<PathBuf>,
    /// The private key of the certificate, in PEM form.
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    pub(super) tls_key: Option<PathBuf>,
    /// Where conversations are kept: sqlite:FILE, postgres://... or memory: for nowhere.
    #[arg(long, value_name = "ADDRESS", env = "UMBEL_STORE", hide_env_values = true, default_value = STORE)]
    pub(super) store: String,
    /// Who may ask: a line `TOKEN USER` each. Whoever sits at this machine if left out.
    #[arg(long, value_name = "FILE")]
    pub(super) tokens: Option<PathBuf>,
    /// How much it takes on, such as runs_per_user=5 or request_time=10s; may come again. The guide lists all of them.
    #[arg(long = "limit", value_name = "NAME=VALUE")]
    pub(super) limits: Vec<String>,
    /// Pages that may ask, such as http://localhost:3000; may come again.
    #[arg(long = "allow-origin", value_name = "ORIGIN")]
    pub(super) origins: Vec<String>,
    /// A name to be asked by, besides those of this machine; may come again.
    #[arg(long = "allow-host", value_name = "NAME")]
    pub(super) hosts: Vec<String>,
    /// What comes before all paths, behind a proxy.
    #[arg(long = "base-path", value_name = "PATH", default_value = "")]
    pub(super) base: String,
    /// Let whoever may ask look into prompts, logs and traces. Without --tokens that is so anyway.
    #[arg(long)]
    pub(super) inspect: bool,
    /// Send traces and metrics there by OTLP over HTTP, such as http://localhost:4318. OpenTelemetry's own variables count too.
    #[arg(long, value_name = "ADDRESS")]
    pub(super) otlp: Option<String>,
    /// Send what is said along with the traces, too.
    #[arg(long)]
    pub(super) otlp_content: bool,
    /// Whether requests are part of the trace that they name: no begins one of ours, yes takes `tracestate` too and sends it
    /// on. If left out: with a token, or at this machine alone.
    #[arg(long, value_name = "YES|NO", value_parser = BoolishValueParser::new())]
    pub(super) trust_traces: Option<bool>,
    /// Offer the agents to MCP clients too, as tools at /mcp.
    #[arg(long)]
    pub(super) mcp: bool,
    /// Serve the agents alone, without the studio.
    #[arg(long)]
    pub(super) no_studio: bool,
    /// Open the studio in the browser.
    #[arg(long, conflicts_with = "no_studio")]
    pub(super) open: bool,
}
