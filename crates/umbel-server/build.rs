//! Lists the files of the studio and the pages of the guide, so that they become part of the binary. Whoever adds one only
//! has to put it into its folder. Modules lose their comments, which tell types too: browsers have no use for them.

use std::fmt::Write as _;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::{env, fs, io};

/// How big the studio may be as it is served, in bytes.
const LARGEST: u64 = 200_000;

fn main() -> io::Result<()> {
    let mut out = io::stdout();
    writeln!(out, "cargo::rerun-if-changed=build.rs")?;
    if env::var_os("CARGO_FEATURE_STUDIO").is_none() {
        return Ok(());
    }
    let own = PathBuf::from(env::var("CARGO_MANIFEST_DIR").map_err(io::Error::other)?);
    let made = PathBuf::from(env::var("OUT_DIR").map_err(io::Error::other)?);
    let mut tables = String::new();
    for (name, folder) in [("FILES", own.join("studio")), ("PAGES", own.join("../../docs"))] {
        writeln!(out, "cargo::rerun-if-changed={}", folder.display())?;
        let mut files = Vec::new();
        list(&folder, "", &mut files)?;
        files.sort();
        if name == "FILES" {
            files.retain(|(file, _)| !file.ends_with(".md"));
            lean(&mut files, &made.join("studio"))?;
        }
        tables.push_str(&format!(
            "/// Names, and what is in the files.\nconst {name}: &[(&str, &[u8])] = &[\n"
        ));
        for (file, path) in files {
            writeln!(tables, "    ({file:?}, include_bytes!({path:?})),").map_err(io::Error::other)?;
        }
        tables.push_str("];\n");
    }
    fs::write(made.join("studio_files.rs"), tables)
}

/// Writes modules without their comments to a folder, and lets the table name those. Tells if all is too big.
fn lean(files: &mut [(String, PathBuf)], folder: &Path) -> io::Result<()> {
    let mut bytes = 0;
    for (file, path) in files {
        if file.ends_with(".js") {
            let text = without_comments(&fs::read_to_string(&path)?);
            *path = folder.join(&file);
            fs::create_dir_all(path.parent().unwrap_or(folder))?;
            fs::write(&path, text)?;
        }
        bytes += fs::metadata(&path)?.len();
    }
    if bytes > LARGEST {
        return Err(io::Error::other(format!("the studio has {bytes} bytes, and {LARGEST} are allowed")));
    }
    Ok(())
}

/// A module without what stands between `/**` and `*/`, and without lines that are comments.
fn without_comments(text: &str) -> String {
    let mut pieces = text.split("/**");
    let mut code = pieces.next().unwrap_or_default().to_owned();
    for piece in pieces {
        code.push_str(piece.split_once("*/").map_or("", |(_, behind)| behind));
    }
    let is_code = |line: &&str| !line.trim().is_empty() && !line.trim_start().starts_with("//");
    code.lines().filter(is_code).fold(String::with_capacity(code.len()), |lines, line| lines + line + "\n")
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
