//! How far it has come, on a terminal.

use std::io::{self, Write};
use std::sync::{Mutex, PoisonError};

use crate::style::{Ink, Style, clean_line};

/// How long the bar is.
const WIDTH: usize = 30;

/// A bar on standard error; nothing at all if that is no terminal.
pub(super) struct Progress {
    shown: bool,
    style: Style,
    count: Mutex<Count>,
}

#[derive(Clone, Debug, Default)]
struct Count {
    file: String,
    all: u64,
    done: u64,
    failed: u64,
}

impl Progress {
    pub(super) fn new(is_terminal: bool) -> Self {
        Self { shown: is_terminal, style: Style::for_terminal(is_terminal), count: Mutex::default() }
    }

    /// So many runs of that file come.
    pub(super) fn begin(&self, file: &str, all: u64) {
        self.change(|count| *count = Count { file: clean_line(file), all, ..Count::default() });
    }

    /// One is done.
    pub(super) fn done(&self, passed: bool) {
        self.change(|count| {
            count.done += 1;
            count.failed += u64::from(!passed);
        });
    }

    /// Takes the bar away.
    pub(super) fn end(&self) {
        if self.shown {
            // A bar that cannot be drawn is no reason to stop.
            let _ = write!(io::stderr(), "\r\x1b[K");
        }
    }

    fn change(&self, change: impl FnOnce(&mut Count)) {
        let mut count = self.count.lock().unwrap_or_else(PoisonError::into_inner);
        change(&mut count);
        if self.shown {
            let _ = write!(io::stderr(), "\r\x1b[K{}", bar(&count, self.style));
        }
    }
}

fn bar(count: &Count, style: Style) -> String {
    let Count { file, all, done, failed } = count;
    let full = usize::try_from(WIDTH as u64 * done / (*all).max(1)).unwrap_or(WIDTH);
    let (full, rest) = ("█".repeat(full.min(WIDTH)), "·".repeat(WIDTH.saturating_sub(full)));
    let failed = match failed {
        0 => String::new(),
        failed => format!(", {}", style.paint(Ink::Error, &format!("{failed} failed"))),
    };
    format!("{full}{} {done}/{all}{failed}  {file}", style.paint(Ink::Faint, &rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bar_grows_and_tells_of_failures() {
        let count = |done, failed| Count { file: "f".to_owned(), all: 4, done, failed };
        assert_eq!(bar(&count(0, 0), Style::Plain), format!("{} 0/4  f", "·".repeat(30)));
        let half = format!("{}{} 2/4, 1 failed  f", "█".repeat(15), "·".repeat(15));
        assert_eq!(bar(&count(2, 1), Style::Plain), half);
        assert_eq!(bar(&count(4, 0), Style::Plain), format!("{} 4/4  f", "█".repeat(30)));
        assert_eq!(bar(&Count::default(), Style::Plain), format!("{} 0/0  ", "·".repeat(30)));
    }
}
