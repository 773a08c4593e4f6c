//! The tables of the guide, held against the code.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use umbel::ErrorKind;
use umbel_server::{AgentEndpoint, Server};

use crate::auth::runner;
use crate::support::Host;

const GUIDE: &str = include_str!("../../../../docs/server.md");

/// The first column of the table below a heading: all that stands in backticks.
fn first_column(heading: &str) -> BTreeSet<String> {
    let (_, section) = GUIDE.split_once(&format!("\n# {heading}\n")).unwrap();
    let section = section.split("\n# ").next().unwrap();
    let rows = section.lines().filter(|line| line.starts_with("| `"));
    let cells = rows.flat_map(|row| row.split(" | ").next().unwrap().split('`').skip(1).step_by(2));
    cells.map(str::to_owned).collect()
}

/// The files of a folder and those below it.
fn files(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    entries.flat_map(|path| if path.is_dir() { files(&path) } else { vec![path] }).collect()
}

/// The codes that stand in the server's own code: texts of capitals. Tests do not count.
fn own_codes() -> BTreeSet<String> {
    let mut codes = BTreeSet::new();
    for file in files(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src")) {
        let text = std::fs::read_to_string(file).unwrap();
        let text = text.split("#[cfg(test)]").next().unwrap().replace("env!(\"", "env!(");
        for word in text.split('"') {
            let is_code =
                word.len() > 3 && word.bytes().all(|byte| byte.is_ascii_uppercase() || byte == b'_');
            if is_code && !word.ends_with('_') {
                codes.insert(word.to_owned());
            }
        }
    }
    codes
}

/// The codes that errors of a run can have.
fn codes_of_runs() -> BTreeSet<String> {
    let text = include_str!("../../../umbel-core/src/error.rs");
    let words = text.split('"').map(str::to_owned);
    words.filter(|word| ErrorKind::from_code(word).is_some()).collect()
}

#[test]
fn every_code_is_in_the_table_of_errors_and_no_other() {
    let (own, runs) = (own_codes(), codes_of_runs());
    assert!(own.contains("NOT_FOUND") && runs.len() > 30, "they were not found: {own:?}");
    let there: BTreeSet<String> = own.union(&runs).cloned().collect();
    let told = first_column("Errors");
    let missing: Vec<_> = there.difference(&told).collect();
    let stale: Vec<_> = told.difference(&there).collect();
    assert!(missing.is_empty() && stale.is_empty(), "missing: {missing:?}, stale: {stale:?}");
}

#[tokio::test]
async fn every_figure_is_in_the_table_of_metrics_and_no_other() {
    let endpoint = AgentEndpoint::new(runner("app", "echo").build().unwrap());
    let host = Host::start(Server::new().agent("/chat", endpoint).build().unwrap()).await;
    let text = host.get("/metrics").await.text().await;
    let given = text.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split(' ').next());
    let given: BTreeSet<String> = given.map(str::to_owned).collect();
    assert_eq!(given, first_column("Metrics"));
}
