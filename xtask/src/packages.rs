//! Packages of npm that checks use, in folders of their own.

use std::path::PathBuf;
use std::process::Command;

use crate::test::{Verdict, ensure, root, succeed, target};

/// The files of a folder of `conformance` and the packages they use.
pub(crate) struct Packages {
    folder: PathBuf,
}

impl Packages {
    /// Installs the packages of `conformance/NAME` as its lock file has them; Node.js is installed for them where that is
    /// possible.
    pub(crate) fn install(name: &str) -> Result<Self, String> {
        ensure("node", "nodejs")?;
        ensure("npm", "npm")?;
        let folder = target().join(format!("conformance-{name}"));
        let failed = |error: std::io::Error| format!("{} cannot be written: {error}", folder.display());
        let source = root().join("conformance").join(name);
        let (locked, installed) = (source.join("package-lock.json"), folder.join("installed-lock.json"));
        let is_installed = std::fs::read(&locked).ok() == std::fs::read(&installed).ok();
        std::fs::create_dir_all(&folder).map_err(failed)?;
        for entry in std::fs::read_dir(&source).map_err(failed)?.flatten() {
            if entry.path().is_file() {
                std::fs::copy(entry.path(), folder.join(entry.file_name())).map_err(failed)?;
            }
        }
        if !is_installed {
            let mut npm = Command::new("npm");
            npm.args(["ci", "--no-audit", "--no-fund", "--silent"]).current_dir(&folder);
            if let Verdict::Failed(why) | Verdict::NotRun(why) = succeed(&mut npm) {
                return Err(format!("the packages of conformance/{name} cannot be installed: {why}"));
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
}
