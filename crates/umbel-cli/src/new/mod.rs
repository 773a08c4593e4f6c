//! `umbel new`: a project to begin with, which builds, runs and passes its test.

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Args;

use crate::Cli;
use crate::args::{bad_usage, cannot};

/// The files of a project, and where they go.
const FILES: [(&str, &str); 5] = [
    ("Cargo.toml", include_str!("starter/Cargo.toml.txt")),
    ("src/main.rs", include_str!("starter/main.rs.txt")),
    ("src/script.rs", include_str!("starter/script.rs.txt")),
    ("README.md", include_str!("starter/README.md.txt")),
    (".gitignore", include_str!("starter/gitignore.txt")),
];

/// Names that cargo refuses, or that would be taken for something else.
const TAKEN: [&str; 14] = [
    "umbel",
    "umbel-cli",
    "test",
    "core",
    "std",
    "alloc",
    "proc-macro",
    "build",
    "deps",
    "examples",
    "incremental",
    "tokio",
    "serde_json",
    "self",
];

/// The longest name that is taken.
const LONGEST: usize = 64;

/// What is to be made.
#[derive(Args, Clone, Debug)]
#[command(after_help = "\
Example:
  umbel new helper && cd helper && cargo run")]
pub struct Options {
    /// The name of the project and of its folder: small letters, digits, `-` and `_`.
    name: String,
    /// A checkout of Umbel to build with. If left out: the one that this program was built from if it is still there,
    /// else the published version.
    #[arg(long, value_name = "FOLDER")]
    path: Option<PathBuf>,
}

/// Makes it.
pub fn main(_: &Cli, options: &Options) -> io::Result<ExitCode> {
    let name = checked(&options.name)?;
    let checkout = checkout(options.path.as_deref())?;
    let folder = Path::new(name);
    fs::create_dir(folder).map_err(|error| match error.kind() {
        io::ErrorKind::AlreadyExists => bad_usage(format!("{name} is there already: choose another name")),
        _ => cannot(folder, &error),
    })?;
    for (path, text) in FILES {
        write(&folder.join(path), &filled(text, name, checkout.as_deref()))?;
    }
    if let Some(lock) = checkout.and_then(|checkout| fs::read_to_string(checkout.join("Cargo.lock")).ok()) {
        // The versions that the checkout was tested with; cargo leaves out what is not needed.
        write(&folder.join("Cargo.lock"), &lock)?;
    }
    let mut out = io::stdout().lock();
    writeln!(out, "{name} is there. Next:\n  cd {name}\n  cargo test          passes, offline")?;
    writeln!(out, "  cargo run           serves the agent, with the studio to watch it")?;
    writeln!(out, "  cargo run -- chat   talks with it here")?;
    Ok(ExitCode::SUCCESS)
}

/// The name, if a project may have it.
fn checked(name: &str) -> io::Result<&str> {
    let fits = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-' || c == '_';
    if name.is_empty()
        || name.len() > LONGEST
        || !name.starts_with(|c: char| c.is_ascii_lowercase())
        || !name.chars().all(fits)
    {
        return Err(bad_usage(format!(
            "`{name}` cannot be the name of a project: begin with a small letter and use small letters, digits, `-` and `_`"
        )));
    }
    if TAKEN.contains(&name) {
        return Err(bad_usage(format!(
            "`{name}` cannot be the name of a project: the name is taken by something else"
        )));
    }
    Ok(name)
}

/// The checkout to build with, if there is one.
fn checkout(named: Option<&Path>) -> io::Result<Option<PathBuf>> {
    let is_one = |folder: &Path| folder.join("crates/umbel-cli/Cargo.toml").is_file();
    match named {
        Some(folder) => {
            let whole = folder.canonicalize().map_err(|error| cannot(folder, &error))?;
            if is_one(&whole) {
                return Ok(Some(whole));
            }
            Err(bad_usage(format!(
                "{} is no checkout of Umbel: crates/umbel-cli is missing there",
                folder.display()
            )))
        }
        None => {
            let built_from = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2);
            Ok(built_from.filter(|folder| is_one(folder)).map(Path::to_path_buf))
        }
    }
}

/// A file of the project.
fn filled(text: &str, name: &str, checkout: Option<&Path>) -> String {
    let from = |package: &str| match checkout {
        Some(folder) => {
            let path = folder.join("crates").join(package).display().to_string();
            // JSON and TOML write strings in the same way.
            format!("path = {}", serde_json::Value::String(path))
        }
        None => format!("version = \"{}\"", env!("CARGO_PKG_VERSION")),
    };
    text.replace("{{name}}", name)
        .replace("{{agent}}", &name.replace('-', "_"))
        .replace("{{umbel}}", &format!("{{ {}, features = [\"models\", \"sqlite\"] }}", from("umbel")))
        .replace("{{umbel-cli}}", &format!("{{ {} }}", from("umbel-cli")))
}

fn write(path: &Path, text: &str) -> io::Result<()> {
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder).map_err(|error| cannot(folder, &error))?;
    }
    fs::write(path, text).map_err(|error| cannot(path, &error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_cargo_would_refuse_are_refused() {
        for bad in ["", "Helper", "1st", "my helper", "../up", "a/b", "é", "test", "umbel", &"a".repeat(65)]
        {
            assert_eq!(checked(bad).unwrap_err().kind(), io::ErrorKind::InvalidInput, "{bad}");
        }
        for good in ["helper", "my-helper_2"] {
            assert_eq!(checked(good).unwrap(), good);
        }
    }

    #[test]
    fn a_project_needs_a_checkout_or_the_published_version() {
        let manifest = FILES[0].1;
        let text = filled(manifest, "my-helper", Some(Path::new("/a \"b\"")));
        let parsed: toml::Table = toml::from_str(&text).unwrap();
        assert_eq!(parsed["package"]["name"].as_str(), Some("my-helper"));
        assert_eq!(parsed["dependencies"]["umbel"]["path"].as_str(), Some("/a \"b\"/crates/umbel"));
        let parsed: toml::Table = toml::from_str(&filled(manifest, "x", None)).unwrap();
        assert_eq!(parsed["dependencies"]["umbel-cli"]["version"].as_str(), Some(env!("CARGO_PKG_VERSION")));
    }

    #[test]
    fn nothing_is_left_to_be_filled_in() {
        for (path, text) in FILES {
            assert!(!filled(text, "my-helper", None).contains("{{"), "{path}");
        }
        assert!(filled(FILES[1].1, "my-helper", None).contains("\"my_helper\""));
    }
}
