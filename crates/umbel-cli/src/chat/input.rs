//! Where lines come from: a person who edits them, or a pipe.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::mpsc as std_mpsc;

use rustyline::DefaultEditor;
use rustyline::error::ReadlineError;
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
    /// Whether the arrow keys bring it back later.
    pub(super) remember: bool,
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
    /// Whether the person is asked already and has not answered: an interrupt came from elsewhere.
    asked: bool,
}

impl Editor {
    fn start(history: Option<PathBuf>) -> io::Result<Self> {
        let mut editor = DefaultEditor::new().map_err(io::Error::other)?;
        if let Some(file) = &history {
            make_private(file)?;
            // A history that cannot be read is one that begins anew.
            let _ = editor.load_history(file);
        }
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
        Ok(Self { asks, lines, asked: false })
    }

    async fn next(&mut self, ask: Ask) -> io::Result<Line> {
        let gone = || io::Error::other("the line editor has stopped");
        if !self.asked {
            self.asks.send(ask).map_err(|_| gone())?;
            self.asked = true;
        }
        let line = self.lines.recv().await.ok_or_else(gone)?;
        self.asked = false;
        line
    }
}

fn read(editor: &mut DefaultEditor, ask: &Ask, history: Option<&Path>) -> io::Result<Line> {
    let line = match editor.readline_with_initial(&ask.prompt, (&ask.initial, "")) {
        Ok(line) => line.trim().to_owned(),
        Err(ReadlineError::Interrupted) => return Ok(Line::Interrupt),
        Err(ReadlineError::Eof) => return Ok(Line::End),
        Err(error) => return Err(io::Error::other(error)),
    };
    if ask.remember && !line.is_empty() {
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
