//! The software bill of materials of the `umbel` program: CycloneDX 1.6, as JSON.
//!
//! It has what `umbel-cli` with its default features depends on, on this machine's target: no tests
//! and no build scripts. Procedural macros, and what they alone need, run in the compiler and have
//! the scope `excluded`. Nothing in it depends on when, where or by whom it is made.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::Path;

use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};

use super::licenses::LicenseExpression;
use super::lock::LockedCrate;
use crate::cargo;

/// The package of the program.
const PACKAGE: &str = "umbel-cli";
/// The program, as people know it.
const PROGRAM: &str = "umbel";

/// A package by its name and version.
type CrateKey = (String, String);
/// What each package depends on.
type DependencyGraph = BTreeMap<CrateKey, BTreeSet<CrateKey>>;

/// Makes the document for a workspace, of whose lock file these are the packages.
pub(super) fn generate(root: &Path, packages: &[LockedCrate]) -> Result<Value, String> {
    let target = host()?;
    let tree = |edges: &str| {
        let args = [
            "tree",
            "--locked",
            "--package",
            PACKAGE,
            "--edges",
            edges,
            "--target",
            &target,
            "--prefix",
            "depth",
            "--format",
            "\t{p}",
            "--color",
            "never",
        ];
        cargo::output(root, &args, &[]).and_then(|text| parse_tree(&text))
    };
    let (all, linked) = (tree("normal")?, tree("normal,no-proc-macro")?);
    document(packages, &all, &linked, &target)
}

/// The target that this machine builds for.
fn host() -> Result<String, String> {
    let text = cargo::output(Path::new("."), &["--version", "--verbose"], &[])?;
    let host = text.lines().find_map(|line| line.strip_prefix("host: "));
    host.map(str::to_owned).ok_or_else(|| "cargo does not say what this machine's target is".to_owned())
}

/// Reads what `cargo tree --prefix depth` prints: depth, tab, name and version. What a package
/// depends on is printed once for each set of features; later mentions are marked and have nothing
/// below them.
fn parse_tree(text: &str) -> Result<DependencyGraph, String> {
    let mut graph = DependencyGraph::new();
    let mut path: Vec<CrateKey> = Vec::new();
    for line in text.lines().filter(|line| !line.is_empty()) {
        let unknown = || format!("`cargo tree` printed `{line}`");
        let (depth, package) = line.split_once('\t').ok_or_else(unknown)?;
        let depth: usize = depth.parse().map_err(|_| unknown())?;
        let mut words = package.split(' ');
        let (name, version) = words.next().zip(words.next()).ok_or_else(unknown)?;
        let version = version.strip_prefix('v').ok_or_else(unknown)?;
        let key = (name.to_owned(), version.to_owned());
        if depth > path.len() {
            return Err(unknown());
        }
        path.truncate(depth);
        if let Some(parent) = path.last() {
            graph.entry(parent.clone()).or_default().insert(key.clone());
        }
        graph.entry(key.clone()).or_default();
        path.push(key);
    }
    Ok(graph)
}

/// The document. `linked` is the part of `all` that gets into the program.
fn document(
    packages: &[LockedCrate],
    all: &DependencyGraph,
    linked: &DependencyGraph,
    target: &str,
) -> Result<Value, String> {
    let by_key: BTreeMap<CrateKey, &LockedCrate> =
        packages.iter().map(|locked| ((locked.name.clone(), locked.version.to_string()), locked)).collect();
    let (mut program, mut components, mut dependencies) = (None, Vec::new(), Vec::new());
    for (key, needed) in all {
        let locked = by_key.get(key).ok_or_else(|| format!("{} {} is not in Cargo.lock", key.0, key.1))?;
        let mut component = component(locked)?;
        if key.0 == PACKAGE {
            component.insert("type".to_owned(), json!("application"));
            component.insert("name".to_owned(), json!(PROGRAM));
            program = Some(component);
        } else {
            let scope = if linked.contains_key(key) { "required" } else { "excluded" };
            component.insert("scope".to_owned(), json!(scope));
            components.push(Value::Object(component));
        }
        let needed: Vec<String> = needed.iter().map(purl).collect();
        dependencies.push(json!({ "ref": purl(key), "dependsOn": needed }));
    }
    let program = program.ok_or_else(|| format!("{PACKAGE} is not in the tree"))?;
    let mut document = json!({
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": null,
        "version": 1,
        "metadata": {
            "lifecycles": [{ "phase": "pre-build" }],
            "component": program,
            "properties": [{ "name": "umbel:target", "value": target }],
        },
        "components": components,
        "dependencies": dependencies,
    });
    let serial = serial_number(&document.to_string());
    if let Some(place) = document.get_mut("serialNumber") {
        *place = json!(serial);
    }
    Ok(document)
}

/// A package as a component.
fn component(locked: &LockedCrate) -> Result<Map<String, Value>, String> {
    let purl = purl(&(locked.name.clone(), locked.version.to_string()));
    let expression = locked.license.as_ref().ok_or_else(|| format!("{} has no licence", locked.label()))?;
    let license = match LicenseExpression::parse(expression)? {
        LicenseExpression::One(id) if !id.contains(" WITH ") => json!({ "license": { "id": id } }),
        several => json!({ "expression": several.to_string() }),
    };
    let mut component = Map::new();
    component.insert("type".to_owned(), json!("library"));
    component.insert("bom-ref".to_owned(), json!(purl));
    component.insert("name".to_owned(), json!(locked.name));
    component.insert("version".to_owned(), json!(locked.version.to_string()));
    if let Some(checksum) = &locked.checksum {
        component.insert("hashes".to_owned(), json!([{ "alg": "SHA-256", "content": checksum }]));
    }
    component.insert("licenses".to_owned(), json!([license]));
    component.insert("purl".to_owned(), json!(purl));
    Ok(component)
}

/// The package URL of a package. Of what a version may have, only `+` is escaped in one.
fn purl((name, version): &CrateKey) -> String {
    format!("pkg:cargo/{name}@{}", version.replace('+', "%2B"))
}

/// A UUID (version 8) made of the digest of a text.
fn serial_number(text: &str) -> String {
    let mut serial = "urn:uuid:".to_owned();
    for (at, byte) in Sha256::digest(text).iter().take(16).enumerate() {
        let byte = match at {
            6 => byte & 0x0f | 0x80,
            8 => byte & 0x3f | 0x80,
            _ => *byte,
        };
        if matches!(at, 4 | 6 | 8 | 10) {
            serial.push('-');
        }
        let _ = write!(serial, "{byte:02x}");
    }
    serial
}

/// What a document lacks: every component is named once, has a licence and is needed by the
/// program; what comes from a registry has a digest; and what depends on each other is there.
pub(super) fn problems(document: &Value, packages: &[LockedCrate]) -> Vec<String> {
    let text =
        |value: &Value, key: &str| value.get(key).and_then(Value::as_str).unwrap_or_default().to_owned();
    let list =
        |value: &Value, key: &str| value.get(key).and_then(Value::as_array).cloned().unwrap_or_default();
    let from_registry: BTreeSet<String> = packages
        .iter()
        .filter(|locked| locked.source.is_some())
        .map(|locked| purl(&(locked.name.clone(), locked.version.to_string())))
        .collect();
    let mut problems = Vec::new();
    let program = document.pointer("/metadata/component").cloned().unwrap_or_default();
    let mut known = BTreeSet::from([text(&program, "bom-ref")]);
    for component in list(document, "components") {
        let name = text(&component, "bom-ref");
        if !known.insert(name.clone()) {
            problems.push(format!("{name} is there twice"));
        }
        if name.is_empty() || text(&component, "purl") != name || list(&component, "licenses").is_empty() {
            problems.push(format!("{name} lacks its package URL or licence"));
        }
        if from_registry.contains(&name) && list(&component, "hashes").is_empty() {
            problems.push(format!("{name} has no digest"));
        }
    }
    let graph: BTreeMap<String, BTreeSet<String>> = list(document, "dependencies")
        .iter()
        .map(|entry| {
            let needed = list(entry, "dependsOn");
            (text(entry, "ref"), needed.iter().filter_map(Value::as_str).map(str::to_owned).collect())
        })
        .collect();
    let (mut open, mut reached) = (vec![text(&program, "bom-ref")], BTreeSet::new());
    while let Some(name) = open.pop() {
        match graph.get(&name) {
            Some(needed) if reached.insert(name.clone()) => open.extend(needed.iter().cloned()),
            Some(_) => {}
            None => problems.push(format!("it is not said what {name} depends on")),
        }
    }
    problems.extend(
        known.symmetric_difference(&reached).map(|name| format!("{name} is not needed, or not there")),
    );
    problems
}

#[cfg(test)]
mod tests {
    use super::super::lock::tests::locked;
    use super::*;

    const ALL: &str = "0\tumbel-cli v0.1.0 (/somewhere/umbel-cli)\n1\tclap v4.6.7\n2\tclap_derive v4.6.7 (proc-macro)\n\
        3\tsyn v3.0.9\n2\tstrsim v0.11.1\n1\tstrsim v0.11.1\n1\twasi v0.14.7+wasi-0.2.4\n1\tclap v4.6.7 (*)\n";
    const LINKED: &str = "0\tumbel-cli v0.1.0 (/somewhere/umbel-cli)\n1\tclap v4.6.7\n\
        2\tstrsim v0.11.1\n1\twasi v0.14.7+wasi-0.2.4\n";

    fn packages() -> Vec<LockedCrate> {
        let ours = LockedCrate {
            source: None,
            checksum: None,
            license: Some("MIT OR Apache-2.0".to_owned()),
            ..locked("umbel-cli", "0.1.0")
        };
        let old = LockedCrate { license: Some("MIT/Apache-2.0".to_owned()), ..locked("clap", "4.6.7") };
        let of_tests = locked("proptest", "1.0.0");
        let others =
            [("clap_derive", "4.6.7"), ("syn", "3.0.9"), ("strsim", "0.11.1"), ("wasi", "0.14.7+wasi-0.2.4")];
        let others = others.map(|(name, version)| locked(name, version));
        [ours, old, of_tests].into_iter().chain(others).collect()
    }

    fn sample(packages: &[LockedCrate], target: &str) -> Value {
        document(packages, &parse_tree(ALL).unwrap(), &parse_tree(LINKED).unwrap(), target).unwrap()
    }

    #[test]
    fn the_document_has_what_the_program_is_made_of() {
        let document = sample(&packages(), "some-target");
        assert_eq!(problems(&document, &packages()), Vec::<String>::new());
        assert_eq!(document["specVersion"], "1.6");
        assert_eq!(document["metadata"]["component"]["name"], "umbel");
        let names: Vec<&str> = document["components"]
            .as_array()
            .unwrap()
            .iter()
            .map(|one| one["name"].as_str().unwrap())
            .collect();
        assert_eq!(names, ["clap", "clap_derive", "strsim", "syn", "wasi"]);
        assert_eq!(
            document["components"][0],
            json!({
                "type": "library", "bom-ref": "pkg:cargo/clap@4.6.7", "name": "clap", "version": "4.6.7",
                "hashes": [{ "alg": "SHA-256", "content": "ab".repeat(32) }],
                "licenses": [{ "expression": "MIT OR Apache-2.0" }],
                "purl": "pkg:cargo/clap@4.6.7", "scope": "required"
            })
        );
        assert_eq!(document["components"][2]["licenses"], json!([{ "license": { "id": "MIT" } }]));
        assert_eq!(document["components"][3]["scope"], "excluded");
        assert_eq!(document["components"][4]["purl"], "pkg:cargo/wasi@0.14.7%2Bwasi-0.2.4");
        assert_eq!(
            document["dependencies"][0],
            json!({
                "ref": "pkg:cargo/clap@4.6.7",
                "dependsOn": ["pkg:cargo/clap_derive@4.6.7", "pkg:cargo/strsim@0.11.1"]
            })
        );
    }

    #[test]
    fn the_same_packages_make_the_same_bytes_and_others_another_serial_number() {
        let document = sample(&packages(), "some-target");
        let reversed: Vec<LockedCrate> = packages().into_iter().rev().collect();
        assert_eq!(document.to_string(), sample(&reversed, "some-target").to_string());
        assert!(!document.to_string().contains("/somewhere"));
        let serial = document["serialNumber"].as_str().unwrap();
        assert_eq!(serial.len(), "urn:uuid:".len() + 36);
        assert_eq!((serial.as_bytes()[22], serial.as_bytes()[23]), (b'-', b'8'));
        assert_ne!(document["serialNumber"], sample(&packages(), "other-target")["serialNumber"]);
    }

    #[test]
    fn a_document_that_lacks_something_is_found() {
        let good = sample(&packages(), "some-target");
        let spoil = |pointer: &str, value: Value| {
            let mut document = good.clone();
            *document.pointer_mut(pointer).unwrap() = value;
            problems(&document, &packages())
        };
        assert!(!spoil("/components/0/bom-ref", json!("pkg:cargo/strsim@0.11.1")).is_empty());
        assert!(!spoil("/components/0/licenses", json!([])).is_empty());
        assert!(!spoil("/components/0/hashes", json!([])).is_empty());
        assert!(!spoil("/components/0/purl", json!("")).is_empty());
        assert!(!spoil("/components", json!([])).is_empty());
        assert!(!spoil("/dependencies", json!([])).is_empty());
        assert!(!spoil("/dependencies/0/dependsOn", json!([])).is_empty());
    }

    #[test]
    fn a_tree_that_is_not_understood_is_refused() {
        for text in ["0 umbel-cli v0.1.0", "0\tumbel-cli", "0\tumbel-cli 0.1.0", "x\ta v1.0.0", "1\ta v1.0.0"]
        {
            assert!(parse_tree(text).is_err(), "{text}");
        }
    }
}
