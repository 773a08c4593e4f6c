//! Colours, where they can be seen.

use std::borrow::Cow;
use std::io::{self, IsTerminal};

/// Whether text is coloured.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Style {
    /// As it is, without escape codes.
    #[default]
    Plain,
    /// With the escape codes of terminals.
    Colour,
}

/// What a piece of text is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ink {
    /// The person.
    You,
    /// The name of an agent.
    Agent,
    /// A thought, or anything else in the background.
    Faint,
    /// A call, and what came of it.
    Tool,
    /// State that changed.
    State,
    /// Something that needs an answer.
    Question,
    /// Something that went wrong.
    Error,
}

impl Ink {
    fn code(self) -> &'static str {
        match self {
            Self::You => "\x1b[1;32m",
            Self::Agent => "\x1b[1;36m",
            Self::Faint => "\x1b[2m",
            Self::Tool => "\x1b[36m",
            Self::State => "\x1b[35m",
            Self::Question => "\x1b[1;33m",
            Self::Error => "\x1b[31m",
        }
    }
}

impl Style {
    /// Colours if the output is a terminal and nobody minds.
    pub fn for_terminal(is_terminal: bool) -> Self {
        let unwanted = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
        let simple = std::env::var_os("TERM").is_some_and(|term| term == "dumb");
        if is_terminal && !unwanted && !simple { Self::Colour } else { Self::Plain }
    }

    /// The text in that ink.
    pub fn paint(self, ink: Ink, text: &str) -> Cow<'_, str> {
        match self {
            Self::Plain => text.into(),
            Self::Colour => format!("{}{text}\x1b[0m", ink.code()).into(),
        }
    }
}

/// The text without control characters: a model or a tool must not be able to steer the terminal, nor to turn the order of
/// what is read.
pub fn clean(text: &str) -> Cow<'_, str> {
    let turns = |c: char| matches!(c, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    let bad = |c: char| (c.is_control() && c != '\n' && c != '\t') || turns(c);
    if text.contains(bad) { text.replace(bad, "\u{fffd}").into() } else { text.into() }
}

/// The same on one line: what must not look like another line, such as a name.
pub fn clean_line(text: &str) -> String {
    clean(text).replace(['\n', '\t'], " ")
}

/// The text as standard output gets it: a program gets it as it is, and a terminal must not be steered by it.
pub fn for_stdout(text: &str) -> Cow<'_, str> {
    if io::stdout().is_terminal() { clean(text) } else { text.into() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_do_not_reach_the_terminal() {
        assert_eq!(clean("a\x1b[31mb\u{9b}c\r\n\td"), "a\u{fffd}[31mb\u{fffd}c\u{fffd}\n\td");
        assert_eq!(clean("a\u{202e}b\u{2066}c\u{2069}"), "a\u{fffd}b\u{fffd}c\u{fffd}");
        assert_eq!(clean_line("a\nb\tc\x1b"), "a b c\u{fffd}");
        assert!(matches!(clean("plain °C"), Cow::Borrowed(_)));
    }

    #[test]
    fn plain_text_has_no_escape_codes() {
        assert_eq!(Style::Plain.paint(Ink::Error, "x"), "x");
        assert_eq!(Style::Colour.paint(Ink::Faint, "x"), "\x1b[2mx\x1b[0m");
    }
}
