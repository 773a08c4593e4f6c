//! How an agent of a file has code run.

use std::ops::Range;

use toml::de::DeValue;
use umbel::{CodeExecution, Confirm};

use super::Reading;
use super::table::Table;

/// What may stand in the table beside the language.
const OPTIONS: [&str; 7] =
    ["stateful", "time", "memory_mib", "read_only", "data_files", "confirm", "max_failures"];

impl<'a> Reading<'a> {
    /// How an agent has code run: its language, or a table with that and more. The sandbox is tried here.
    pub(super) fn code(&self, table: &Table<'a>) -> Option<CodeExecution> {
        let value = table.get("code")?;
        let options = match value.get_ref() {
            DeValue::Table(_) => table.table("code"),
            _ => None,
        };
        // They are known where code cannot be run, too.
        options.iter().for_each(|options| OPTIONS.into_iter().for_each(|key| options.know(key)));
        let language = match &options {
            Some(options) => options.text("language"),
            None => Some(table.text("code")?),
        };
        let execution = match language {
            Some(language) if language.value != "python" => {
                let message = format!("code in `{}` cannot be run", language.value);
                self.problems.hint(&language.at, message, "code = \"python\" is what there is");
                None
            }
            language => {
                let at = language.map_or_else(|| value.span(), |language| language.at);
                self.sandbox(options.as_ref(), &at)
            }
        };
        let execution = execution.map(|execution| match &options {
            Some(options) => with(execution, options),
            None => execution,
        });
        options.into_iter().for_each(Table::finish);
        execution
    }

    #[cfg(target_os = "linux")]
    fn sandbox(&self, options: Option<&Table<'a>>, at: &Range<usize>) -> Option<CodeExecution> {
        let mut sandbox = umbel_tools::Sandbox::python();
        if let Some(options) = options {
            if options.flag("stateful") {
                sandbox = sandbox.stateful();
            }
            sandbox = options.seconds("time").into_iter().fold(sandbox, umbel_tools::Sandbox::time);
            let memory = options.whole::<u32>("memory_mib").map(|memory| u64::from(memory) << 20);
            sandbox = memory.into_iter().fold(sandbox, umbel_tools::Sandbox::memory);
            let seen = options.texts("read_only").into_iter().map(|path| self.folder.join(path.value));
            sandbox = seen.fold(sandbox, umbel_tools::Sandbox::read_only);
        }
        let built = sandbox.build().inspect_err(|error| self.problems.note(at, error.message()));
        built.ok().map(CodeExecution::new)
    }

    #[cfg(not(target_os = "linux"))]
    fn sandbox(&self, _: Option<&Table<'a>>, at: &Range<usize>) -> Option<CodeExecution> {
        self.problems.note(at, "code can be run on Linux only");
        None
    }
}

/// What does not concern the sandbox.
fn with(mut execution: CodeExecution, options: &Table<'_>) -> CodeExecution {
    if options.flag("data_files") {
        execution = execution.data_files();
    }
    if options.flag("confirm") {
        execution = execution.confirm(Confirm::Always);
    }
    options.whole("max_failures").into_iter().fold(execution, CodeExecution::max_failures)
}
