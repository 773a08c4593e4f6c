//! Where lines come from: a person who edits them, or a pipe.

use std::borrow::Cow;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::mpsc as std_mpsc;

use rustyline::completion::Completer;
use rustyline::error::ReadlineError;
use rustyline::highlight::{CmdKind, Highlighter};
use rustyline::hint::Hinter;
use rustyline::history::FileHistory;
use rustyline::validate::Validator;
use rustyline::{ColorMode, Config, ExternalPrinter, Helper};
use tokio::io::{AsyncBufRead, AsyncBufReadExt, Split};
use tokio::sync::mpsc;

use crate::args::cannot;

/// Where lines come from.
pub enum Input {
    /// A pipe, or anything else that is read to its end. Bytes, not text: a line that is not UTF-8 shall not end the
    /// conversation.
    Lines(Split<Box<dyn AsyncBufRead + Send + Unpin>>),
    /// A person at a terminal.
    Editor(Editor),
}

/// What came from the person.
#[derive(Debug)]
pub(super) enum Line {
    Typed(String),
    /// Ctrl-C.
    Interrupt,
    /// Ctrl-D, or the end of a pipe.
    End,
}

/// What a person is asked for.
#[derive(Debug)]
pub(super) struct Ask {
    pub(super) prompt: String,
    /// What stands there already, to be changed.
    pub(super) initial: String,
    pub(super) keep: Keep,
}

/// What becomes of a line once it was typed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Keep {
    /// The arrow keys bring it back later.
    Remembered,
    /// It is used once.
    Once,
    /// It is a secret: used once, and not shown while it is typed.
    Hidden,
}

impl Input {
    /// Lines as they are read.
    pub fn lines(reader: impl AsyncBufRead + Send + Unpin + 'static) -> Self {
        let reader: Box<dyn AsyncBufRead + Send + Unpin> = Box::new(reader);
        Self::Lines(reader.split(b'\n'))
    }

    /// Lines that a person edits at the terminal. What was typed is kept in that file, for the next time.
    pub fn editor(history: Option<PathBuf>) -> io::Result<Self> {
        Ok(Self::Editor(Editor::start(history)?))
    }

    /// The next line.
    pub(super) async fn next(&mut self, ask: Ask) -> io::Result<Line> {
        match self {
            Self::Editor(editor) => editor.next(ask).await,
            Self::Lines(lines) => Ok(match lines.next_segment().await? {
                Some(bytes) => Line::Typed(String::from_utf8_lossy(&bytes).trim().to_owned()),
                None => Line::End,
            }),
        }
    }
}

impl fmt::Debug for Input {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Lines(_) => "Input(lines)",
            Self::Editor(_) => "Input(editor)",
        })
    }
}

/// A line editor on a thread of its own: it blocks while a person types.
pub struct Editor {
    asks: std_mpsc::Sender<Ask>,
    lines: mpsc::UnboundedReceiver<io::Result<Line>>,
    /// Whether the person is asked already and has not answered: Ctrl-C was pressed before the terminal gave its keys to the
    /// editor, and the signal came when the prompt was there.
    asked: bool,
    /// Has the prompt shown again.
    printer: Option<Box<dyn ExternalPrinter + Send>>,
}

impl Editor {
    fn start(history: Option<PathBuf>) -> io::Result<Self> {
        // Without colours there is nothing that could stand in the place of a secret.
        let config = Config::builder().color_mode(ColorMode::Forced).build();
        let mut editor: LineEditor = rustyline::Editor::with_config(config).map_err(io::Error::other)?;
        editor.set_helper(Some(Mask::default()));
        if let Some(file) = &history {
            make_private(file)?;
            // A history that cannot be read is one that begins anew.
            let _ = editor.load_history(file);
        }
        let printer = editor.create_external_printer().ok();
        let printer = printer.map(|printer| Box::new(printer) as Box<dyn ExternalPrinter + Send>);
        let (asks, asked) = std_mpsc::channel::<Ask>();
        let (send, lines) = mpsc::unbounded_channel();
        std::thread::Builder::new().name("line editor".to_owned()).spawn(move || {
            for ask in asked {
                let line = read(&mut editor, &ask, history.as_deref());
                if send.send(line).is_err() {
                    return;
                }
            }
        })?;
        Ok(Self { asks, lines, asked: false, printer })
    }

    async fn next(&mut self, ask: Ask) -> io::Result<Line> {
        let gone = || io::Error::other("the line editor has stopped");
        if !self.asked {
            self.asks.send(ask).map_err(|_| gone())?;
            self.asked = true;
        } else if let Some(printer) = &mut self.printer {
            // Whatever was written meanwhile stands behind the prompt. If it cannot be shown again, it is still asked.
            let _ = printer.print(String::new());
        }
        let line = self.lines.recv().await.ok_or_else(gone)?;
        self.asked = false;
        line
    }
}

/// The editor of lines, which can hide what is typed.
type LineEditor = rustyline::Editor<Mask, FileHistory>;

/// Shows stars in the place of a secret.
#[derive(Default)]
struct Mask {
    is_on: bool,
}

impl Highlighter for Mask {
    fn highlight<'l>(&self, line: &'l str, _: usize) -> Cow<'l, str> {
        match self.is_on {
            true => Cow::Owned("*".repeat(line.chars().count())),
            false => Cow::Borrowed(line),
        }
    }

    fn highlight_char(&self, _: &str, _: usize, _: CmdKind) -> bool {
        self.is_on
    }
}

impl Completer for Mask {
    type Candidate = String;
}

impl Hinter for Mask {
    type Hint = String;
}

impl Validator for Mask {}

impl Helper for Mask {}

fn read(editor: &mut LineEditor, ask: &Ask, history: Option<&Path>) -> io::Result<Line> {
    if let Some(mask) = editor.helper_mut() {
        mask.is_on = ask.keep == Keep::Hidden;
    }
    let line = match editor.readline_with_initial(&ask.prompt, (&ask.initial, "")) {
        Ok(line) => line.trim().to_owned(),
        Err(ReadlineError::Interrupted) => return Ok(Line::Interrupt),
        Err(ReadlineError::Eof) => return Ok(Line::End),
        Err(error) => return Err(io::Error::other(error)),
    };
    if ask.keep == Keep::Remembered && !line.is_empty() {
        // What cannot be remembered was said all the same.
        let _ = editor.add_history_entry(&line);
        let _ = history.map(|file| editor.append_history(file));
    }
    Ok(Line::Typed(line))
}

/// Makes a file that only its owner may read: what people type is nobody else's business.
fn make_private(file: &Path) -> io::Result<()> {
    let mut options = std::fs::OpenOptions::new();
    options.append(true).create(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    options.open(file).map(drop).map_err(|error| cannot(file, &error))
}

impl fmt::Debug for Editor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Editor").field("asked", &self.asked).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_is_stars_while_it_is_typed_and_other_lines_are_themselves() {
        let (hidden, open) = (Mask { is_on: true }, Mask::default());
        assert_eq!(hidden.highlight("schlüssel", 3), "*********");
        assert_eq!(open.highlight("schlüssel", 3), "schlüssel");
        assert!(
            hidden.highlight_char("s", 1, CmdKind::Other) && !open.highlight_char("s", 1, CmdKind::Other)
        );
    }
}
