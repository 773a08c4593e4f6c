//! `cargo xtask audit`: what Umbel depends on, held against the policy of `deny.toml`; and `cargo
//! xtask sbom`, which writes it down.
//!
//! All that is needed are the lock files and cargo: the packages' [sources and licences](rules),
//! whether versions were [yanked](index), and, if there is a database, [advisories].

mod advisories;
mod index;
mod licenses;
mod lock;
mod policy;
mod rules;
mod sbom;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use self::index::{IndexSnapshot, ReleaseState};
use self::lock::LockedCrate;
use self::policy::Policy;
use crate::test::{Verdict, root};

/// A workspace with a lock file of its own.
struct AuditedWorkspace {
    /// Its folder in the repository.
    folder: &'static str,
    /// Whether its packages are chosen here. Peers that Umbel is measured beside choose their own:
    /// their licences, bans and advisories are theirs, and none of them gets into anything that is
    /// shipped.
    is_ours: bool,
    /// Versions beyond the first of a package, with which it does not fit. This may be lowered, and
    /// not raised.
    duplicates: Option<usize>,
}

const WORKSPACES: [AuditedWorkspace; 3] = [
    AuditedWorkspace { folder: "", is_ours: true, duplicates: Some(22) },
    AuditedWorkspace { folder: "bench", is_ours: false, duplicates: None },
    AuditedWorkspace { folder: "fuzz", is_ours: true, duplicates: None },
];

/// The check of `cargo xtask test`.
pub(crate) fn check() -> Verdict {
    match audit(&root()) {
        Ok(problems) if problems.is_empty() => Verdict::Passed,
        Ok(problems) => Verdict::Failed(problems.join("; ")),
        Err(why) => Verdict::Failed(why),
    }
}

/// `cargo xtask audit`.
pub(crate) fn main() -> ExitCode {
    let problems = audit(&root()).unwrap_or_else(|why| vec![why]);
    for problem in &problems {
        eprintln!("{problem}");
    }
    if problems.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// `cargo xtask sbom FILE`.
pub(crate) fn sbom_main(mut args: impl Iterator<Item = String>) -> ExitCode {
    let (Some(file), None) = (args.next(), args.next()) else {
        eprintln!("usage: cargo xtask sbom FILE");
        return ExitCode::from(2);
    };
    let written = lock::read(&root()).and_then(|packages| {
        let document = sbom::generate(&root(), &packages)?;
        std::fs::write(&file, format!("{document:#}\n"))
            .map_err(|error| format!("{file} cannot be written: {error}"))
    });
    match written {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("{why}");
            ExitCode::FAILURE
        }
    }
}

/// Everything that is wrong, and a line for each thing that was looked at.
fn audit(root: &Path) -> Result<Vec<String>, String> {
    let policy = Policy::read(root)?;
    let folders: Vec<PathBuf> = WORKSPACES.iter().map(|workspace| root.join(workspace.folder)).collect();
    let snapshot = IndexSnapshot::fetch(&folders);
    let (mut problems, mut ours) = (Vec::new(), Vec::new());
    for (workspace, folder) in WORKSPACES.iter().zip(&folders) {
        let packages = lock::read(folder)?;
        let found = workspace_problems(workspace, &packages, root, &policy, snapshot.as_ref().ok());
        let file = Path::new(workspace.folder).join("Cargo.lock");
        let rules = if workspace.is_ours {
            "sources, yanked versions, licences, bans"
        } else {
            "sources, yanked versions"
        };
        println!("{}: {} packages ({rules}), problems: {}", file.display(), packages.len(), found.len());
        problems.extend(found.into_iter().map(|problem| format!("{}: {problem}", file.display())));
        if workspace.is_ours {
            ours.extend(packages);
        }
    }
    if let Err(why) = snapshot {
        problems.push(format!("whether versions were yanked is unknown: {why}"));
    }
    match std::env::var_os(advisories::DATABASE) {
        Some(database) => {
            let found = advisories::problems(Path::new(&database), &ours, &policy)?;
            println!("advisories: checked, problems: {}", found.len());
            problems.extend(found);
        }
        None => println!(
            "advisories: NOT CHECKED, since ${} names no checkout of the RustSec database",
            advisories::DATABASE
        ),
    }
    let shipped = lock::read(root)?;
    let document = sbom::generate(root, &shipped)?;
    let components = document.get("components").and_then(serde_json::Value::as_array).map_or(0, Vec::len);
    println!("bill of materials: {components} components");
    problems.extend(
        sbom::problems(&document, &shipped).into_iter().map(|why| format!("bill of materials: {why}")),
    );
    Ok(problems)
}

/// What is wrong with the packages of a workspace. Without an index nothing is said here of yanked
/// versions.
fn workspace_problems(
    workspace: &AuditedWorkspace,
    packages: &[LockedCrate],
    root: &Path,
    policy: &Policy,
    index: Option<&IndexSnapshot>,
) -> Vec<String> {
    let mut problems = Vec::new();
    for locked in packages {
        problems.extend(rules::source_problem(locked, root, policy));
        if let Some(index) = index
            && locked.source.is_some()
        {
            problems.extend(yanked_problem(locked, index.state(locked)));
        }
        if workspace.is_ours {
            problems.extend(rules::license_problem(locked, policy));
            problems.extend(rules::ban_problem(locked, policy));
        }
    }
    problems.extend(workspace.duplicates.and_then(|budget| rules::duplicate_problem(packages, budget)));
    problems
}

/// What is wrong with a version in the registry; one of which the registry knows nothing is not
/// good either.
fn yanked_problem(locked: &LockedCrate, state: ReleaseState) -> Option<String> {
    match state {
        ReleaseState::Offered => None,
        ReleaseState::Yanked => Some(format!("{} was yanked: take another version", locked.label())),
        ReleaseState::Unknown => {
            Some(format!("{} is not in the index: whether it was yanked is unknown", locked.label()))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::lock::tests::locked;
    use super::policy::tests::SMALL;
    use super::*;

    #[test]
    fn packages_of_peers_answer_for_their_sources_alone() {
        let policy = Policy::parse(SMALL).unwrap();
        let mut banned = locked("openssl-sys", "0.9.0");
        banned.license = Some("GPL-3.0-only".to_owned());
        let of = |is_ours: bool, package: &LockedCrate| {
            let workspace = AuditedWorkspace { folder: "", is_ours, duplicates: None };
            workspace_problems(&workspace, std::slice::from_ref(package), &root(), &policy, None).len()
        };
        assert_eq!((of(true, &banned), of(false, &banned)), (2, 0));
        banned.source = Some("git+https://registry.example/index".to_owned());
        assert_eq!((of(true, &banned), of(false, &banned)), (3, 1));
    }

    #[test]
    fn a_version_that_was_yanked_or_is_not_known_is_a_problem() {
        let package = locked("a", "1.0.0");
        assert_eq!(yanked_problem(&package, ReleaseState::Offered), None);
        assert!(yanked_problem(&package, ReleaseState::Yanked).unwrap().contains("was yanked"));
        assert!(yanked_problem(&package, ReleaseState::Unknown).unwrap().contains("unknown"));
    }
}
