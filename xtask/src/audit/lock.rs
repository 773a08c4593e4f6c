//! Lock files, and what the manifests of the packages in them say.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use semver::Version;
use serde::Deserialize;

use crate::cargo;

/// A package of a lock file.
#[derive(Clone, Debug)]
pub(super) struct LockedCrate {
    pub(super) name: String,
    pub(super) version: Version,
    /// Where it comes from; none if it is a folder.
    pub(super) source: Option<String>,
    /// SHA-256 of its archive, in hexadecimal digits.
    pub(super) checksum: Option<String>,
    pub(super) manifest: PathBuf,
    /// Its licence expression, as it is written in its manifest.
    pub(super) license: Option<String>,
    /// Whether its manifest lets it be published.
    pub(super) is_published: bool,
}

impl LockedCrate {
    /// The name and the version, for people.
    pub(super) fn label(&self) -> String {
        format!("{} {}", self.name, self.version)
    }
}

#[derive(Deserialize)]
struct LockFile {
    package: Vec<LockEntry>,
}

#[derive(Deserialize)]
struct LockEntry {
    name: String,
    version: Version,
    source: Option<String>,
    checksum: Option<String>,
}

#[derive(Deserialize)]
struct CargoMetadata {
    packages: Vec<ManifestEntry>,
}

#[derive(Deserialize)]
struct ManifestEntry {
    name: String,
    version: Version,
    source: Option<String>,
    license: Option<String>,
    manifest_path: PathBuf,
    /// Registries to publish to; none means all of them.
    publish: Option<Vec<String>>,
}

/// The packages of a workspace, for all targets and features. A lock file that is not up to date is
/// an error.
pub(super) fn read(workspace: &Path) -> Result<Vec<LockedCrate>, String> {
    let args = ["metadata", "--locked", "--all-features", "--format-version", "1"];
    let metadata = cargo::output(workspace, &args, &[])?;
    let file = workspace.join("Cargo.lock");
    let lock = std::fs::read_to_string(&file)
        .map_err(|error| format!("{} cannot be read: {error}", file.display()))?;
    merge(&lock, &metadata)
}

/// Every package of a lock file, with what `cargo metadata` says of it.
fn merge(lock: &str, metadata: &str) -> Result<Vec<LockedCrate>, String> {
    let lock: LockFile = toml::from_str(lock).map_err(|error| format!("Cargo.lock: {error}"))?;
    let metadata: CargoMetadata =
        serde_json::from_str(metadata).map_err(|error| format!("cargo metadata: {error}"))?;
    let mut manifests: BTreeMap<_, _> = metadata
        .packages
        .into_iter()
        .map(|entry| ((entry.name.clone(), entry.version.clone(), entry.source.clone()), entry))
        .collect();
    let merged = lock.package.into_iter().map(|entry| {
        let LockEntry { name, version, source, checksum } = entry;
        let manifest =
            manifests.remove(&(name.clone(), version.clone(), source.clone())).ok_or_else(|| {
                format!("{name} {version} is in Cargo.lock, and `cargo metadata` does not know it")
            })?;
        let is_published = manifest.publish.is_none_or(|registries| !registries.is_empty());
        let (license, manifest) = (manifest.license, manifest.manifest_path);
        Ok(LockedCrate { name, version, source, checksum, manifest, license, is_published })
    });
    merged.collect()
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// A package from the registry of the policy that tests use.
    pub(in super::super) fn locked(name: &str, version: &str) -> LockedCrate {
        LockedCrate {
            name: name.to_owned(),
            version: version.parse().unwrap(),
            source: Some("registry+https://registry.example/index".to_owned()),
            checksum: Some("ab".repeat(32)),
            manifest: PathBuf::from("/registry/Cargo.toml"),
            license: Some("MIT".to_owned()),
            is_published: true,
        }
    }

    #[test]
    fn packages_have_what_their_manifests_say_and_none_is_left_out() {
        let lock = r#"
            version = 4
            [[package]]
            name = "a"
            version = "1.0.0"
            source = "registry+r"
            checksum = "c"
        "#;
        let known = r#"{"packages": [{"name": "a", "version": "1.0.0", "source": "registry+r", "license": "MIT",
            "manifest_path": "/a/Cargo.toml", "publish": []}]}"#;
        let merged = merge(lock, known).unwrap();
        assert_eq!(merged[0].license.as_deref(), Some("MIT"));
        assert_eq!(merged[0].checksum.as_deref(), Some("c"));
        assert!(!merged[0].is_published);
        assert!(merge(lock, &known.replace("registry+r", "git+r")).unwrap_err().contains("does not know"));
    }
}
