//! Security advisories, from a checkout of the RustSec database.
//!
//! The package registries do not offer the database, so it is not fetched: whoever has a checkout
//! names it.

use std::path::Path;

use semver::{Version, VersionReq};
use serde::Deserialize;

use super::lock::LockedCrate;
use super::policy::Policy;

/// The variable that names the folder of the database.
pub(super) const DATABASE: &str = "UMBEL_ADVISORY_DB";

/// The head of an advisory: TOML before the text.
#[derive(Debug, Deserialize)]
struct Advisory {
    #[serde(rename = "advisory")]
    about: AdvisoryHead,
    versions: AdvisoryVersions,
}

#[derive(Debug, Deserialize)]
struct AdvisoryHead {
    id: String,
    package: String,
    /// `unmaintained`, `unsound` or `notice`; none for a vulnerability.
    informational: Option<String>,
    /// When it was taken back.
    withdrawn: Option<String>,
}

/// Versions that an advisory does not concern.
#[derive(Debug, Deserialize)]
struct AdvisoryVersions {
    #[serde(default)]
    patched: Vec<VersionReq>,
    #[serde(default)]
    unaffected: Vec<VersionReq>,
}

impl Advisory {
    fn parse(text: &str) -> Result<Self, String> {
        let head = text.trim_start().strip_prefix("```toml").and_then(|rest| rest.split_once("\n```"));
        let (head, _) = head.ok_or("it does not begin with a block of TOML")?;
        toml::from_str(head).map_err(|error| error.to_string())
    }

    /// Whether it concerns a version. A pre-release counts as patched only if the advisory names
    /// it.
    fn affects(&self, version: &Version) -> bool {
        let good = &mut self.versions.patched.iter().chain(&self.versions.unaffected);
        self.about.withdrawn.is_none() && !good.any(|range| range.matches(version))
    }
}

/// What the advisories of a database have against packages: every one that concerns a version and
/// is not ignored, and every one that is ignored and concerns none.
pub(super) fn problems(
    database: &Path,
    packages: &[LockedCrate],
    policy: &Policy,
) -> Result<Vec<String>, String> {
    let folder = database.join("crates");
    if !folder.is_dir() {
        return Err(format!("{} has no folder `crates`: it is no advisory database", database.display()));
    }
    let (mut problems, mut ignored) = (Vec::new(), Vec::new());
    for locked in packages {
        for advisory in advisories_of(&folder.join(&locked.name), &locked.name)? {
            let id = &advisory.about.id;
            if !advisory.affects(&locked.version) {
                continue;
            }
            if policy.advisories.ignore.iter().any(|one| one.id == *id) {
                ignored.push(id.clone());
                continue;
            }
            let kind = advisory.about.informational.as_deref().unwrap_or("vulnerability");
            problems.push(format!("{}: {kind} {id}", locked.label()));
        }
    }
    let unused = policy.advisories.ignore.iter().filter(|one| !ignored.contains(&one.id));
    problems.extend(unused.map(|one| format!("{} is ignored in deny.toml and concerns nothing", one.id)));
    problems.sort();
    problems.dedup();
    Ok(problems)
}

/// The advisories of one package; most have none. One that cannot be read is an error.
fn advisories_of(folder: &Path, package: &str) -> Result<Vec<Advisory>, String> {
    let entries = match std::fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(format!("{} cannot be read: {error}", folder.display())),
    };
    let mut advisories = Vec::new();
    for entry in entries {
        let file = entry.map_err(|error| format!("{} cannot be read: {error}", folder.display()))?.path();
        if file.extension().is_none_or(|ending| ending != "md") {
            continue;
        }
        let text = std::fs::read_to_string(&file).map_err(|error| error.to_string());
        let advisory = text.and_then(|text| Advisory::parse(&text));
        let advisory = advisory.map_err(|why| format!("{} cannot be read: {why}", file.display()))?;
        if advisory.about.package != package {
            return Err(format!("{} is about {}", file.display(), advisory.about.package));
        }
        advisories.push(advisory);
    }
    Ok(advisories)
}

#[cfg(test)]
mod tests {
    use tempfile::TempDir;

    use super::super::lock::tests::locked;
    use super::super::policy::tests::SMALL;
    use super::*;

    /// A database with advisories: the package, the id, what else the head has, and the versions.
    fn database(advisories: &[(&str, &str, &str, &str)]) -> TempDir {
        let database = TempDir::new().unwrap();
        for (package, id, more, versions) in advisories {
            let folder = database.path().join("crates").join(package);
            std::fs::create_dir_all(&folder).unwrap();
            let text = format!(
                "```toml\n[advisory]\nid = \"{id}\"\npackage = \"{package}\"\ndate = \"2000-01-01\"\n{more}\n\
                 [affected.functions]\n\"a::b\" = [\"< 2\"]\n[versions]\n{versions}\n```\n\n# Title\n\nText.\n"
            );
            std::fs::write(folder.join(format!("{id}.md")), text).unwrap();
        }
        database
    }

    fn problems_of(database: &TempDir, packages: &[(&str, &str)]) -> Vec<String> {
        let policy = Policy::parse(
            &SMALL.replace("{ id = \"RUSTSEC-2000-0009\", reason = \"the function is not called\" }", ""),
        )
        .unwrap();
        let packages: Vec<LockedCrate> =
            packages.iter().map(|(name, version)| locked(name, version)).collect();
        problems(database.path(), &packages, &policy).unwrap()
    }

    #[test]
    fn an_advisory_concerns_versions_that_are_neither_patched_nor_unaffected() {
        let database = database(&[(
            "tokio",
            "RUSTSEC-2000-0001",
            "",
            "patched = [\">= 1.5.1, < 1.6.0\", \">= 1.6.3\"]\nunaffected = [\"< 0.3.0\"]",
        )]);
        for (version, is_good) in [
            ("0.2.9", true),
            ("0.3.0", false),
            ("1.5.0", false),
            ("1.5.1", true),
            ("1.6.0", false),
            ("1.6.3", true),
            ("2.0.0", true),
            ("1.6.3-beta.1", false),
            ("1.6.3+build", true),
        ] {
            assert_eq!(problems_of(&database, &[("tokio", version)]).is_empty(), is_good, "{version}");
        }
        assert!(problems_of(&database, &[("tokio-util", "1.0.0")]).is_empty());
        assert_eq!(
            problems_of(&database, &[("tokio", "1.0.0")]),
            ["tokio 1.0.0: vulnerability RUSTSEC-2000-0001"]
        );
    }

    #[test]
    fn an_unmaintained_package_counts_and_a_withdrawn_advisory_does_not() {
        let database = database(&[
            ("left", "RUSTSEC-2000-0002", "informational = \"unmaintained\"", "patched = []"),
            ("fine", "RUSTSEC-2000-0003", "withdrawn = \"2000-02-01\"", "patched = []"),
        ]);
        let found = problems_of(&database, &[("left", "9.0.0"), ("fine", "1.0.0")]);
        assert_eq!(found, ["left 9.0.0: unmaintained RUSTSEC-2000-0002"]);
    }

    #[test]
    fn an_advisory_can_be_ignored_as_long_as_it_concerns_something() {
        let database = database(&[("a", "RUSTSEC-2000-0009", "", "patched = [\">= 2.0.0\"]")]);
        let policy = Policy::parse(SMALL).unwrap();
        assert!(problems(database.path(), &[locked("a", "1.0.0")], &policy).unwrap().is_empty());
        let unused = problems(database.path(), &[locked("a", "2.0.0")], &policy).unwrap();
        assert_eq!(unused, ["RUSTSEC-2000-0009 is ignored in deny.toml and concerns nothing"]);
    }

    #[test]
    fn what_cannot_be_read_is_an_error_and_not_an_all_clear() {
        let policy = Policy::parse(SMALL).unwrap();
        let package = locked("a", "1.0.0");
        let empty = TempDir::new().unwrap();
        assert!(problems(empty.path(), std::slice::from_ref(&package), &policy).is_err());
        let broken = database(&[("a", "RUSTSEC-2000-0004", "", "patched = [\"newer\"]")]);
        assert!(problems(broken.path(), std::slice::from_ref(&package), &policy).is_err());
        let file = broken.path().join("crates/a/RUSTSEC-2000-0004.md");
        std::fs::write(&file, "# No head").unwrap();
        assert!(
            problems(broken.path(), std::slice::from_ref(&package), &policy)
                .unwrap_err()
                .contains("block of TOML")
        );
    }
}
