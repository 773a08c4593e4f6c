//! Lists the files of the studio and the pages of the guide, so that they become part of the binary. Whoever adds one only
//! has to put it into its folder.

use std::fmt::Write as _;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::{env, fs, io};

fn main() -> io::Result<()> {
    let mut out = io::stdout();
    writeln!(out, "cargo::rerun-if-changed=build.rs")?;
    if env::var_os("CARGO_FEATURE_STUDIO").is_none() {
        return Ok(());
    }
    let own = PathBuf::from(env::var("CARGO_MANIFEST_DIR").map_err(io::Error::other)?);
    let mut tables = String::new();
    for (name, folder) in [("FILES", own.join("studio")), ("PAGES", own.join("../../docs"))] {
        writeln!(out, "cargo::rerun-if-changed={}", folder.display())?;
        let mut files = Vec::new();
        list(&folder, "", &mut files)?;
        files.sort();
        tables.push_str(&format!(
            "/// Names, and what is in the files.\nconst {name}: &[(&str, &[u8])] = &[\n"
        ));
        for (file, path) in files {
            writeln!(tables, "    ({file:?}, include_bytes!({path:?})),").map_err(io::Error::other)?;
        }
        tables.push_str("];\n");
    }
    let made = PathBuf::from(env::var("OUT_DIR").map_err(io::Error::other)?).join("studio_files.rs");
    fs::write(made, tables)
}

/// The files below a folder, with their names as seen from it.
fn list(folder: &Path, prefix: &str, files: &mut Vec<(String, PathBuf)>) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let name = format!("{prefix}{}", entry.file_name().to_string_lossy());
        if entry.file_type()?.is_dir() {
            list(&entry.path(), &format!("{name}/"), files)?;
        } else {
            files.push((name, entry.path()));
        }
    }
    Ok(())
}
