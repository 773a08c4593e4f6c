//! The policy for dependencies: `deny.toml`, in the format of cargo-deny.

use std::collections::BTreeSet;
use std::path::Path;

use serde::Deserialize;
use serde::de::IgnoredAny;

/// The policy file, in the root of the repository.
const POLICY: &str = "deny.toml";

/// Rules for dependencies. Keys that are not enforced here are refused, so that no rule is without
/// effect.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Policy {
    pub(super) licenses: LicenseRules,
    pub(super) bans: BanRules,
    pub(super) sources: SourceRules,
    pub(super) advisories: AdvisoryRules,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct LicenseRules {
    /// SPDX identifiers that every package may have.
    pub(super) allow: BTreeSet<String>,
    /// SPDX identifiers that one package may have besides.
    #[serde(default)]
    pub(super) exceptions: Vec<LicenseException>,
    /// Expressions for packages whose manifests have none.
    #[serde(default)]
    pub(super) clarify: Vec<Clarification>,
    #[serde(default)]
    pub(super) private: PrivateRules,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct LicenseException {
    #[serde(rename = "crate")]
    pub(super) name: String,
    pub(super) allow: BTreeSet<String>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(super) struct Clarification {
    #[serde(rename = "crate")]
    pub(super) name: String,
    pub(super) expression: String,
    /// cargo-deny demands them and compares their texts, which nothing here does.
    #[serde(rename = "license-files")]
    _license_files: Vec<IgnoredAny>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct PrivateRules {
    /// Whether packages of this repository that are not published need no licence.
    #[serde(default)]
    pub(super) ignore: bool,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct BanRules {
    /// Packages that must not be there, in any version.
    pub(super) deny: Vec<Ban>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Ban {
    #[serde(rename = "crate")]
    pub(super) name: String,
    pub(super) reason: String,
}

/// The only level that is enforced here.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum DenyLevel {
    Deny,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(super) struct SourceRules {
    #[serde(rename = "unknown-registry")]
    _unknown_registry: DenyLevel,
    #[serde(rename = "unknown-git")]
    _unknown_git: DenyLevel,
    /// Registries that packages may come from.
    pub(super) allow_registry: BTreeSet<String>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct AdvisoryRules {
    #[serde(rename = "yanked")]
    _yanked: DenyLevel,
    /// Advisories that do not concern this repository.
    #[serde(default)]
    pub(super) ignore: Vec<IgnoredAdvisory>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct IgnoredAdvisory {
    pub(super) id: String,
    pub(super) reason: String,
}

impl Policy {
    /// Reads the policy of the repository.
    pub(super) fn read(root: &Path) -> Result<Self, String> {
        let text = std::fs::read_to_string(root.join(POLICY))
            .map_err(|error| format!("{POLICY} cannot be read: {error}"))?;
        Self::parse(&text)
    }

    pub(super) fn parse(text: &str) -> Result<Self, String> {
        let policy: Self = toml::from_str(text).map_err(|error| format!("{POLICY}: {error}"))?;
        let named = policy.bans.deny.iter().map(|ban| &ban.name);
        let named = named.chain(policy.licenses.exceptions.iter().map(|exception| &exception.name));
        let named = named.chain(policy.licenses.clarify.iter().map(|clarified| &clarified.name));
        for name in named {
            if !name.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_')) {
                return Err(format!("{POLICY}: `{name}` is not a name; versions are not supported"));
            }
        }
        let reasons = policy.bans.deny.iter().map(|ban| (&ban.name, &ban.reason));
        let ignored = policy.advisories.ignore.iter().map(|ignored| (&ignored.id, &ignored.reason));
        for (what, reason) in reasons.chain(ignored) {
            if reason.trim().is_empty() {
                return Err(format!("{POLICY}: `{what}` has no reason"));
            }
        }
        Ok(policy)
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// A policy of which tests change a part.
    pub(in super::super) const SMALL: &str = r#"
        [licenses]
        allow = ["MIT", "Apache-2.0"]
        exceptions = [{ crate = "roots", allow = ["CDLA-Permissive-2.0"] }]
        clarify = [{ crate = "unsaid", expression = "MIT", license-files = [{ path = "LICENSE", hash = 1 }] }]
        private = { ignore = true }
        [bans]
        deny = [{ crate = "openssl-sys", reason = "TLS is rustls" }]
        [sources]
        unknown-registry = "deny"
        unknown-git = "deny"
        allow-registry = ["https://registry.example/index"]
        [advisories]
        yanked = "deny"
        ignore = [{ id = "RUSTSEC-2000-0009", reason = "the function is not called" }]
    "#;

    #[test]
    fn the_policy_of_this_repository_can_be_read() {
        let policy = Policy::read(&crate::test::root()).unwrap();
        assert!(policy.licenses.allow.contains("MIT"));
        assert_eq!(policy.sources.allow_registry.len(), 1);
    }

    #[test]
    fn a_rule_that_would_have_no_effect_is_refused() {
        assert!(Policy::parse(SMALL).is_ok());
        for (from, to) in [
            ("[advisories]", "[advisories]\nunmaintained = \"none\""),
            ("unknown-git = \"deny\"", "unknown-git = \"allow\""),
            ("yanked = \"deny\"", "yanked = \"warn\""),
            ("openssl-sys", "openssl-sys@0.9"),
            (", reason = \"TLS is rustls\"", ""),
            ("the function is not called", " "),
        ] {
            assert!(SMALL.contains(from), "{from}");
            assert!(Policy::parse(&SMALL.replace(from, to)).is_err(), "{to}");
        }
    }
}
