//! What the policy demands of a package: its source, its licence, and that it is not banned; and of
//! all of them, that few are there in several versions.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use semver::Version;

use super::licenses::LicenseExpression;
use super::lock::LockedCrate;
use super::policy::Policy;

/// Length of a SHA-256 in hexadecimal digits.
const CHECKSUM_DIGITS: usize = 64;

/// What is wrong with where a package comes from: it must be a folder of the repository, or be of
/// an allowed registry and have a checksum.
pub(super) fn source_problem(locked: &LockedCrate, root: &Path, policy: &Policy) -> Option<String> {
    let label = locked.label();
    let Some(source) = &locked.source else {
        let is_inside =
            |manifest: &Path| Some(manifest.canonicalize().ok()?.starts_with(root.canonicalize().ok()?));
        let is_ours = is_inside(&locked.manifest).unwrap_or(false);
        let message = || format!("{label} is {}, outside of the repository", locked.manifest.display());
        return (!is_ours).then(message);
    };
    let registry = source.strip_prefix("registry+");
    if !registry.is_some_and(|registry| policy.sources.allow_registry.contains(registry)) {
        return Some(format!("{label} comes from {source}, which is not allowed"));
    }
    let is_digest = |checksum: &String| {
        checksum.len() == CHECKSUM_DIGITS && checksum.bytes().all(|byte| byte.is_ascii_hexdigit())
    };
    if locked.checksum.as_ref().is_some_and(is_digest) {
        return None;
    }
    Some(format!("{label} has no checksum in the lock file"))
}

/// What is wrong with the licence of a package.
pub(super) fn license_problem(locked: &LockedCrate, policy: &Policy) -> Option<String> {
    let (rules, label) = (&policy.licenses, locked.label());
    if rules.private.ignore && locked.source.is_none() && !locked.is_published {
        return None;
    }
    let clarified = rules.clarify.iter().find(|clarified| clarified.name == locked.name);
    let Some(expression) = clarified.map(|clarified| &clarified.expression).or(locked.license.as_ref())
    else {
        return Some(format!("{label} has no licence expression: clarify it in deny.toml"));
    };
    let excepted = |license: &str| {
        let mut of_crate = rules.exceptions.iter().filter(|exception| exception.name == locked.name);
        of_crate.any(|exception| exception.allow.contains(license))
    };
    let is_allowed = |license: &str| rules.allow.contains(license) || excepted(license);
    match LicenseExpression::parse(expression) {
        Ok(parsed) if parsed.is_satisfied(&is_allowed) => None,
        Ok(_) => Some(format!("{label} is under {expression}, which deny.toml does not allow")),
        Err(why) => Some(format!("{label}: {why}")),
    }
}

/// Whether a package is banned, and why.
pub(super) fn ban_problem(locked: &LockedCrate, policy: &Policy) -> Option<String> {
    let ban = policy.bans.deny.iter().find(|ban| ban.name == locked.name)?;
    Some(format!("{} is banned: {}", locked.label(), ban.reason))
}

/// Packages that are there in several versions which cannot stand for each other, and the versions.
pub(super) fn duplicates(packages: &[LockedCrate]) -> BTreeMap<&str, BTreeSet<&Version>> {
    let mut by_name: BTreeMap<&str, BTreeMap<[u64; 3], &Version>> = BTreeMap::new();
    for locked in packages {
        let versions = by_name.entry(&locked.name).or_default();
        let newest = versions.entry(compatibility(&locked.version)).or_insert(&locked.version);
        *newest = (*newest).max(&locked.version);
    }
    let several = by_name.into_iter().filter(|(_, versions)| versions.len() > 1);
    several.map(|(name, versions)| (name, versions.into_values().collect())).collect()
}

/// What is wrong with the number of duplicates: it must be the budget, which is lowered with it and
/// never raised.
pub(super) fn duplicate_problem(packages: &[LockedCrate], budget: usize) -> Option<String> {
    let found = duplicates(packages);
    let count: usize = found.values().map(|versions| versions.len() - 1).sum();
    if count < budget {
        return Some(format!("there are {count} duplicate versions: lower the budget of {budget} to that"));
    }
    let list = || {
        let line = |(name, versions): (&&str, &BTreeSet<&Version>)| {
            let versions: Vec<String> = versions.iter().map(ToString::to_string).collect();
            format!("{name} {}", versions.join(", "))
        };
        found.iter().map(line).collect::<Vec<_>>().join("; ")
    };
    (count > budget).then(|| format!("{count} duplicate versions, and {budget} are allowed: {}", list()))
}

/// What versions have in common that cargo takes for each other: the first part that is not zero,
/// and those before it.
fn compatibility(version: &Version) -> [u64; 3] {
    match (version.major, version.minor) {
        (0, 0) => [0, 0, version.patch],
        (0, minor) => [0, minor, 0],
        (major, _) => [major, 0, 0],
    }
}

#[cfg(test)]
mod tests {
    use super::super::lock::tests::locked;
    use super::super::policy::tests::SMALL;
    use super::*;

    fn policy() -> Policy {
        Policy::parse(SMALL).unwrap()
    }

    #[test]
    fn packages_come_from_the_repository_or_with_a_checksum_from_an_allowed_registry() {
        let (root, policy) = (crate::test::root(), policy());
        let mut package = locked("serde", "1.0.0");
        assert_eq!(source_problem(&package, &root, &policy), None);

        package.checksum = None;
        assert!(source_problem(&package, &root, &policy).unwrap().contains("no checksum"));
        package.checksum = Some("ab".to_owned());
        assert!(source_problem(&package, &root, &policy).is_some());

        for source in ["git+https://registry.example/index", "registry+https://registry.example/index2", ""] {
            let other = LockedCrate { source: Some(source.to_owned()), ..locked("serde", "1.0.0") };
            assert!(source_problem(&other, &root, &policy).unwrap().contains("not allowed"), "{source}");
        }

        let elsewhere = tempfile::tempdir().unwrap();
        let outside = elsewhere.path().join("Cargo.toml");
        std::fs::write(&outside, "").unwrap();
        for (manifest, is_good) in [
            (root.join("xtask/Cargo.toml"), true),
            (outside, false),
            (root.join("../Cargo.toml"), false),
            (root.join("not-there/Cargo.toml"), false),
        ] {
            let path = LockedCrate { source: None, manifest, ..locked("umbel", "0.1.0") };
            assert_eq!(source_problem(&path, &root, &policy).is_none(), is_good, "{path:?}");
        }
    }

    #[test]
    fn a_licence_is_allowed_for_all_or_for_one_package_or_clarified() {
        let policy = policy();
        let of = |name: &str, license: Option<&str>| {
            let package = LockedCrate { license: license.map(str::to_owned), ..locked(name, "1.0.0") };
            license_problem(&package, &policy)
        };
        assert_eq!(of("a", Some("MIT/GPL-3.0-only")), None);
        assert!(of("a", Some("GPL-3.0-only")).unwrap().contains("does not allow"));
        assert!(of("a", Some("MIT or so")).unwrap().contains("not a licence expression"));
        assert!(of("a", None).unwrap().contains("clarify"));
        assert_eq!(of("unsaid", None), None);
        assert_eq!(of("roots", Some("CDLA-Permissive-2.0")), None);
        assert!(of("a", Some("CDLA-Permissive-2.0")).is_some());
    }

    #[test]
    fn only_what_is_ours_and_not_published_needs_no_licence() {
        let mut package = LockedCrate { license: None, is_published: false, ..locked("xtask", "0.0.0") };
        assert!(license_problem(&package, &policy()).is_some());
        package.source = None;
        assert_eq!(license_problem(&package, &policy()), None);
        let strict = Policy::parse(&SMALL.replace("ignore = true", "ignore = false")).unwrap();
        assert!(license_problem(&package, &strict).is_some());
    }

    #[test]
    fn a_banned_package_is_told_with_the_reason() {
        let problem = ban_problem(&locked("openssl-sys", "0.9.1"), &policy()).unwrap();
        assert!(problem.contains("TLS is rustls"), "{problem}");
        assert_eq!(ban_problem(&locked("openssl-probe", "0.1.0"), &policy()), None);
    }

    #[test]
    fn versions_that_cannot_stand_for_each_other_are_counted_against_a_budget() {
        let packages = [
            locked("rand", "0.8.8"),
            locked("rand", "0.9.5"),
            locked("rand", "0.10.3"),
            locked("syn", "2.0.1"),
            locked("syn", "2.1.0"),
            locked("old", "0.0.1"),
            locked("old", "0.0.2"),
            locked("once", "1.0.0"),
        ];
        let names: Vec<&str> = duplicates(&packages).into_keys().collect();
        assert_eq!(names, ["old", "rand"]);
        assert_eq!(duplicate_problem(&packages, 3), None);
        assert!(duplicate_problem(&packages, 2).unwrap().contains("rand 0.8.8, 0.9.5, 0.10.3"));
        assert!(duplicate_problem(&packages, 4).unwrap().contains("lower the budget"));
    }
}
