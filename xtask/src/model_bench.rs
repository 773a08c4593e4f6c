//! `cargo xtask bench models`: what it costs to write requests to providers and to read their answers, beside others.

use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::budgets::{Trouble, build, instructions, json_of, per_one};
use crate::cargo;
use crate::test::{ensure, root};

/// Messages of a conversation, as the table has them.
const MESSAGES: [&str; 4] = ["10", "100", "1000", "3000"];

/// Chunks of a stream that is read.
const CHUNKS: &str = "50";

/// Those who read the same stream.
const PEERS: [&str; 2] = ["async-openai", "rig"];

/// Prints the tables.
pub(crate) fn main() -> Result<(), String> {
    let measured = || -> Result<(), Trouble> {
        ensure("valgrind", "valgrind").map_err(Trouble::Missing)?;
        let binary = build("bench-models", false)?;
        println!("a request that was sent before but for its last turn, in ns per byte\n");
        println!("messages    bytes   Umbel, first   Umbel, later   serde_json   later / serde_json");
        for messages in MESSAGES {
            let told = json_of(&binary, &["time", messages])?;
            let figure = |key: &str| told.get(key).and_then(Value::as_f64).unwrap_or(f64::NAN);
            let [bytes, first, later, values] = ["bytes", "first", "later", "values"].map(figure);
            let share = later / values;
            println!("{messages:>8} {bytes:>8} {first:>14.2} {later:>14.2} {values:>12.2} {share:>20.3}");
        }
        println!("\ninstructions to read a stream of {CHUNKS} chunks\n");
        println!("{:<14} {:>10}", "Umbel", stream(&binary, &["parse"])?);
        let peers = build_peers()?;
        for peer in PEERS {
            println!("{peer:<14} {:>10}", stream(&peers, &[peer])?);
        }
        Ok(())
    };
    measured().map_err(|trouble| match trouble {
        Trouble::Missing(why) | Trouble::Broken(why) => why,
    })
}

/// The figures that have a budget.
pub(crate) fn figures() -> Result<[(String, u64); 2], Trouble> {
    let binary = build("bench-models", false)?;
    let body =
        |what: &str| per_one(2, 12, |times| instructions(&binary, &[what, "1000", &times.to_string()]));
    let (ours, values) = (body("assemble")?, body("values")?);
    Ok([
        ("models_permille_of_serde".to_owned(), ours * 1000 / values.max(1)),
        ("models_instructions_parse".to_owned(), stream(&binary, &["parse"])?),
    ])
}

/// Instructions to read one stream.
fn stream(binary: &Path, what: &[&str]) -> Result<u64, Trouble> {
    per_one(10, 60, |times| {
        let times = times.to_string();
        let args: Vec<&str> = what.iter().copied().chain([CHUNKS, times.as_str()]).collect();
        instructions(binary, &args)
    })
}

/// The peers are no part of what budgets need, so they are built apart.
fn build_peers() -> Result<PathBuf, Trouble> {
    let bench = root().join("bench");
    let mut command = cargo::command(&bench);
    command.args(["build", "--release", "--quiet", "--locked", "-p", "bench-models-peers"]);
    match command.status() {
        Ok(status) if status.success() => Ok(bench.join("target").join("release").join("bench-models-peers")),
        Ok(_) => Err(Trouble::Broken("the peers do not build".to_owned())),
        Err(error) => Err(Trouble::Broken(format!("cargo cannot be started: {error}"))),
    }
}
