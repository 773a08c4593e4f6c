//! Packages of npm that checks use, in folders of their own.

use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::test::{Verdict, ensure, root, succeed, target};

/// What npm and bundlers leave behind in a folder that somebody worked in.
const LEFTOVERS: [&str; 2] = ["node_modules", "dist"];

/// The files of a folder and the packages they use.
pub(crate) struct Packages {
    folder: PathBuf,
}

impl Packages {
    /// Copies a folder of this repository to where things are built, and installs its packages there as its lock file
    /// has them; Node.js is installed for them where that is possible.
    pub(crate) fn install(name: &str) -> Result<Self, String> {
        ensure("node", "nodejs")?;
        ensure("npm", "npm")?;
        let folder = target().join(name.replace('/', "-"));
        let failed = |error: io::Error| format!("{} cannot be written: {error}", folder.display());
        let source = root().join(name);
        let (locked, installed) = (source.join("package-lock.json"), folder.join("installed-lock.json"));
        let is_installed = std::fs::read(&locked).ok() == std::fs::read(&installed).ok();
        copy(&source, &folder).map_err(failed)?;
        if !is_installed {
            // No package here needs a script of its own to be installed, and some tell others of it.
            let args = ["ci", "--ignore-scripts", "--no-audit", "--no-fund", "--silent"];
            let mut npm = Command::new("npm");
            npm.args(args).current_dir(&folder);
            if let Verdict::Failed(why) | Verdict::NotRun(why) = succeed(&mut npm) {
                return Err(format!("the packages of {name} cannot be installed: {why}"));
            }
            std::fs::copy(&locked, &installed).map_err(failed)?;
        }
        Ok(Self { folder })
    }

    /// Runs a script of the folder.
    pub(crate) fn run(&self, script: &str, args: &[&str]) -> Verdict {
        succeed(self.node(script).args(args))
    }

    /// The command that runs a script of the folder, or of a package in it.
    pub(crate) fn node(&self, script: &str) -> Command {
        let mut node = Command::new("node");
        node.arg(script).current_dir(&self.folder);
        node
    }

    /// Runs one of the commands that the folder's `package.json` names.
    pub(crate) fn npm_run(&self, command: &str) -> Verdict {
        let mut npm = Command::new("npm");
        succeed(npm.args(["run", "--silent", command]).current_dir(&self.folder))
    }
}

/// Copies a folder with all that is in it.
fn copy(from: &Path, to: &Path) -> io::Result<()> {
    std::fs::create_dir_all(to)?;
    for entry in std::fs::read_dir(from)? {
        let entry = entry?;
        let (path, name) = (entry.path(), entry.file_name());
        if path.is_file() {
            std::fs::copy(path, to.join(name))?;
        } else if !LEFTOVERS.iter().any(|leftover| *leftover == name) {
            copy(&path, &to.join(name))?;
        }
    }
    Ok(())
}
