//! Which versions were yanked: withdrawn from the registry by whoever published them.
//!
//! Cargo's own index cache may be old, and does not say how old. So cargo is given an empty home,
//! in which it looks up every package of the lock files; what it then has in its cache is of this
//! moment. No archives are fetched for that.

use std::path::{Path, PathBuf};

use serde::Deserialize;
use tempfile::TempDir;

use super::lock::LockedCrate;
use crate::cargo;

/// What the registry says of a version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ReleaseState {
    Offered,
    Yanked,
    /// The index does not have this version with this checksum.
    Unknown,
}

/// A fresh copy of the index, of the packages of some workspaces.
pub(super) struct IndexSnapshot {
    home: TempDir,
}

impl IndexSnapshot {
    pub(super) fn fetch(workspaces: &[PathBuf]) -> Result<Self, String> {
        let home = TempDir::new().map_err(|error| format!("there is no place for the index: {error}"))?;
        let config = configuration();
        for workspace in workspaces {
            let mut args = vec!["update", "--workspace", "--dry-run", "--quiet"];
            if let Some(config) = config.as_deref().and_then(Path::to_str) {
                args.extend(["--config", config]);
            }
            cargo::output(workspace, &args, &[("CARGO_HOME", home.path())])?;
        }
        Ok(Self { home })
    }

    /// What the registry says of a package. Which registry an index belongs to is seen by the
    /// checksum.
    pub(super) fn state(&self, locked: &LockedCrate) -> ReleaseState {
        let indexes = std::fs::read_dir(self.home.path().join("registry/index"));
        let place = cache_place(&locked.name);
        let mut state = ReleaseState::Unknown;
        for index in indexes.into_iter().flatten().flatten() {
            let Ok(cache) = std::fs::read(index.path().join(".cache").join(&place)) else { continue };
            match state_in(&cache, locked) {
                ReleaseState::Unknown => {}
                ReleaseState::Offered => state = ReleaseState::Offered,
                ReleaseState::Yanked => return ReleaseState::Yanked,
            }
        }
        state
    }
}

/// The configuration in cargo's home, which names registries to use in place of others.
fn configuration() -> Option<PathBuf> {
    let home = std::env::var_os("CARGO_HOME").map(PathBuf::from);
    let file = home.or_else(|| Some(std::env::home_dir()?.join(".cargo")))?.join("config.toml");
    file.is_file().then_some(file)
}

/// Where the index has a package: by the length of its name, and by its first letters.
fn cache_place(name: &str) -> PathBuf {
    let name = name.to_ascii_lowercase();
    let part = |from: usize, to: usize| name.get(from..to).unwrap_or_default();
    let folder = match name.len() {
        length @ (1 | 2) => length.to_string(),
        3 => format!("3/{}", part(0, 1)),
        _ => format!("{}/{}", part(0, 2), part(2, 4)),
    };
    Path::new(&folder).join(name)
}

#[derive(Deserialize)]
struct IndexLine {
    vers: String,
    cksum: String,
    #[serde(default)]
    yanked: bool,
}

/// What a cache file says of a package. After a head it has, between zero bytes, versions in turn
/// with lines of JSON.
fn state_in(cache: &[u8], locked: &LockedCrate) -> ReleaseState {
    let lines = cache.split(|byte| *byte == 0).filter(|part| part.starts_with(b"{"));
    let mut parsed = lines.filter_map(|line| serde_json::from_slice::<IndexLine>(line).ok());
    let version = locked.version.to_string();
    let found = parsed
        .find(|line| line.vers == version && locked.checksum.as_ref().is_some_and(|sum| *sum == line.cksum));
    match found {
        Some(line) if line.yanked => ReleaseState::Yanked,
        Some(_) => ReleaseState::Offered,
        None => ReleaseState::Unknown,
    }
}

#[cfg(test)]
mod tests {
    use super::super::lock::tests::locked;
    use super::*;

    fn cache() -> Vec<u8> {
        let sum = "ab".repeat(32);
        let line = |version: &str, yanked: bool| {
            format!(
                r#"{version}|{{"name":"a","vers":"{version}","deps":[],"cksum":"{sum}","yanked":{yanked}}}"#
            )
        };
        let text = format!("\u{3}\u{2}||||etag: x|{}|{}|", line("1.0.0", false), line("1.0.1", true));
        text.replace('|', "\0").into_bytes()
    }

    #[test]
    fn a_yanked_version_is_found_and_one_that_the_index_lacks_is_unknown() {
        assert_eq!(state_in(&cache(), &locked("a", "1.0.0")), ReleaseState::Offered);
        assert_eq!(state_in(&cache(), &locked("a", "1.0.1")), ReleaseState::Yanked);
        assert_eq!(state_in(&cache(), &locked("a", "1.0.2")), ReleaseState::Unknown);
        let forged = LockedCrate { checksum: Some("cd".repeat(32)), ..locked("a", "1.0.0") };
        assert_eq!(state_in(&cache(), &forged), ReleaseState::Unknown);
    }

    #[test]
    fn a_package_is_looked_up_where_cargo_keeps_it() {
        let snapshot = IndexSnapshot { home: TempDir::new().unwrap() };
        for (name, place) in
            [("a", "1/a"), ("cc", "2/cc"), ("syn", "3/s/syn"), ("Inflector", "in/fl/inflector")]
        {
            let package = locked(name, "1.0.1");
            assert_eq!(snapshot.state(&package), ReleaseState::Unknown);
            let file = snapshot.home.path().join("registry/index/some/.cache").join(place);
            std::fs::create_dir_all(file.parent().unwrap()).unwrap();
            std::fs::write(&file, cache()).unwrap();
            assert_eq!(snapshot.state(&package), ReleaseState::Yanked, "{name}");
        }
    }
}
