//! Chores of this workspace, run as `cargo xtask NAME`.

// A tool on the command line: it talks to a person, and its exit code is its answer.
#![allow(clippy::print_stdout, clippy::print_stderr, clippy::exit)]
#![cfg_attr(test, allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, clippy::panic))]

mod audit;
mod budgets;
mod built;
mod cargo;
mod conformance;
mod copilotkit;
mod crash;
mod fuzz;
mod http;
mod mcp;
mod model_bench;
mod models;
mod onion;
mod packages;
mod pages;
mod postgres;
mod sandbox;
mod server;
mod simulate;
mod soak;
mod starter;
mod stores;
mod studio;
mod style;
mod test;
mod vectors;

use std::process::ExitCode;

const USAGE: &str = "usage: cargo xtask COMMAND

commands:
  audit
      holds the packages of all lock files against deny.toml: sources, licences, bans, yanked versions, duplicates;
      and against the advisories of a checkout of the RustSec database, if $UMBEL_ADVISORY_DB names its folder
  conformance [--events | --only NAME,...] [--list] [--verbose]
      holds the AG-UI server and the events of all tests against the official packages of the protocol
      --events          only the events of the tests
      --only NAME,...   only the checks of the server whose name contains one of these; --list names them
      --verbose         shows what the official client complains about
  copilotkit
      builds examples/copilotkit and drives it with a headless Chromium, against `umbel serve`
  crash [--short] [--target NAME] [--scenario NAME] [--random N] [--stops N] [--server-kills N] [--seed N]
      kills processes that run agents, and the database server, and shows that nothing is lost
      --short           what `cargo xtask test crash` does
      --target NAME     only sqlite, postgres (processes that use it are killed) or server (PostgreSQL's own is)
      --scenario NAME   only what agents of that kind do
      --random N        kills at random moments, per store (300), besides those at every point of the work
      --stops N         processes that are stopped until others took over, and then go on, per store (40)
      --server-kills N  kills of the server (30)
      --seed N          the random moments of an earlier run
  fuzz [TARGET]... [--seconds N]
      feeds all that reads what comes from outside with bytes that find new ways through it, each for N seconds (600)
  local-model
      serves a real small model on this machine and runs an agent on it, streamed and with a schema
  sbom FILE
      writes the bill of materials of the `umbel` program, as CycloneDX 1.6
  simulate [--seeds N] [--seed S] [--from S] [--store memory|sqlite] [--verbose]
      runs random worlds of agents, people and faults in simulated time, and checks that nothing is lost or done twice
      --seeds N         that many worlds (20000)
      --seed S          one world; a failing one is shrunk and printed as a test
      --from S          the first world
      --store NAME      the session store, in memory unless told otherwise
      --verbose         prints the world and its trace
  soak [--runs N] [--minutes N] [--plot FILE.svg]
      puts a server under a long mixed load, deletes all of it, and checks memory, descriptors, tasks and database pages
      --runs N          at least so many exchanges (20000)
      --minutes N       and for at least so long
      --plot FILE.svg   writes memory over time
  test [CHECK]
      sets up what is needed and runs every check, or one of them:
      format, style, pages, audit, lints, tests, sandbox, vectors, postgres, crash, simulate, soak, conformance, mcp,
      studio, starter, models, docs, budgets
  bench http
      what serving agents costs, beside a raw handler that writes the same bytes
  bench models
      what it costs to write requests to providers and to read their answers, beside others
  bench onion
      what handlers and tool layers cost, in instructions and allocations
  bench stores
      what sessions on disk cost, in commits, fsyncs, bytes, instructions and time
  postgres COMMAND [ARGUMENT]...
      runs a command beside a PostgreSQL server, whose address is in $UMBEL_TEST_POSTGRES
  vectors DIR [--case NAME] [--verbose]
      runs every vector file of a folder and says which cases fail; those on which Umbel is better on purpose
      (vectors/handlers/better.json) are counted apart
      -c, --case NAME   only cases whose name contains NAME
      -v, --verbose     shows what was expected and what came of each failing case";

/// The tables that are not part of the side-by-side benchmark.
fn bench(name: Option<&str>) -> ExitCode {
    let result = match name {
        Some("http") => http::main(),
        Some("models") => model_bench::main(),
        Some("onion") => onion::main(),
        Some("stores") => stores::main(),
        _ => {
            let message = "there are `bench http`, `bench models`, `bench onion` and `bench stores`; `bench/run.sh` measures beside peers";
            Err(message.to_owned())
        }
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("{why}");
            ExitCode::FAILURE
        }
    }
}

fn main() -> ExitCode {
    let mut args = std::env::args().skip(1);
    match args.next().as_deref() {
        Some("audit") => audit::main(),
        Some("conformance") => conformance::main(args),
        Some("copilotkit") => copilotkit::main(),
        Some("crash") => crash::main(args),
        Some(crash::CHILD) => crash::child_main(args),
        Some("fuzz") => fuzz::main(args),
        Some("local-model") => models::local_model(),
        Some("sbom") => audit::sbom_main(args),
        Some("simulate") => simulate::main(args),
        Some("soak") => soak::main(args),
        Some("test") => test::main(args),
        Some("postgres") => postgres::main(args),
        Some("vectors") => vectors::main(args),
        Some("bench") => bench(args.next().as_deref()),
        Some("help" | "--help" | "-h") => {
            println!("{USAGE}");
            ExitCode::SUCCESS
        }
        other => {
            if let Some(name) = other {
                eprintln!("there is no command `{name}`\n");
            }
            eprintln!("{USAGE}");
            ExitCode::from(2)
        }
    }
}
