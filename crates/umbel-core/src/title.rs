//! The title of a session: the first words of the user's first message.
//!
//! A store keeps it in the session's row, so that a list of sessions reads no log.

use crate::event::Event;
use crate::log::{LogEntry, live_entries};
use crate::part::Part;

/// The longest title, in characters.
pub const TITLE_CHARS: usize = 80;

/// The title that a whole log gives its session: that of its first live message.
pub fn title_of_log(log: &[LogEntry]) -> Option<String> {
    match live_entries(log) {
        None => title_of(log),
        Some(live) => {
            let mut live =
                log.iter().zip(live).filter(|(_, live)| *live).filter_map(|(entry, _)| entry.event());
            live.find_map(|event| title(event))
        }
    }
}

/// The title that entries give a session which has none yet.
pub fn title_of(entries: &[LogEntry]) -> Option<String> {
    entries.iter().filter_map(LogEntry::event).find_map(|event| title(event))
}

/// The title that one event gives: the words of a user's message in one line, cut between words.
/// It costs the length of the title, however long the message is.
fn title(event: &Event) -> Option<String> {
    if !event.is_user() || event.is_partial() {
        return None;
    }
    let content = event.content.as_deref()?;
    let text = content.parts.iter().filter(|part| !part.is_thought()).filter_map(Part::as_text);
    let (mut line, mut chars, mut ends_word) = (String::new(), 0, false);
    for text in text {
        // PostgreSQL stores no NUL.
        let mut words = text.split(|c: char| c.is_whitespace() || c == '\0');
        // Words of two parts are one word, unless there is space between them.
        let first = words.next().unwrap_or_default();
        for (word, begins) in [(first, ends_word)].into_iter().chain(words.map(|word| (word, true))) {
            ends_word |= begins;
            if word.is_empty() {
                continue;
            }
            if ends_word && !line.is_empty() {
                line.push(' ');
                chars += 1;
            }
            ends_word = false;
            let more = TITLE_CHARS + 1 - chars;
            match word.len() <= more {
                true => line.push_str(word),
                false => line.extend(word.chars().take(more)),
            }
            chars += word.chars().take(more).count();
            if chars > TITLE_CHARS {
                return Some(cut(&line));
            }
        }
    }
    Some(line).filter(|line| !line.is_empty())
}

/// A line that is too long, cut after its last whole word.
fn cut(line: &str) -> String {
    let end = line.char_indices().nth(TITLE_CHARS - 1).map_or(line.len(), |(at, _)| at);
    let short = line.get(..end).unwrap_or_default();
    let words = short.rsplit_once(' ').map_or(short, |(words, _)| words);
    format!("{words}…")
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::content::Content;
    use crate::event::Source;
    use crate::id::RunId;

    fn said(text: &str) -> LogEntry {
        let event = Event::new(RunId::from("r"), Source::user()).with_content(Content::user(text));
        LogEntry::Event(Arc::new(event))
    }

    fn title(text: &str) -> Option<String> {
        title_of(&[said(text)])
    }

    #[test]
    fn a_title_is_one_line_of_whole_words() {
        assert_eq!(title("  Weather \n in\tRome ").as_deref(), Some("Weather in Rome"));
        assert_eq!(title(&"word ".repeat(100)), Some(format!("{}…", "word ".repeat(15).trim_end())));
        assert_eq!(title(&"x".repeat(100)), Some(format!("{}…", "x".repeat(79))));
        assert_eq!(title(&"å".repeat(80)), Some("å".repeat(80)));
        assert_eq!(title("a\0b").as_deref(), Some("a b"));
        assert_eq!(title(" \n "), None);
        let parts = |texts: &[&str]| {
            let parts = texts.iter().map(|text| Part::text(*text));
            let content = Content::new(crate::Role::User, parts);
            let event = Event::new(RunId::from("r"), Source::user()).with_content(content);
            title_of(&[LogEntry::Event(Arc::new(event))])
        };
        assert_eq!(parts(&["one tw", "o three "]).as_deref(), Some("one two three"));
        assert_eq!(parts(&["one ", "", "two", " three"]).as_deref(), Some("one two three"));
        assert_eq!(parts(&["", " one", "\n", "two"]).as_deref(), Some("one two"));
    }

    #[test]
    fn the_first_message_that_says_something_gives_the_title() {
        let agent = Event::new(RunId::from("r"), Arc::new(Source::new("agent")));
        let agent = LogEntry::Event(Arc::new(agent.with_content(Content::model("Hello"))));
        assert_eq!(title_of(&[agent, said(" "), said("one"), said("two")]).as_deref(), Some("one"));
    }

    #[test]
    fn a_rewound_message_gives_no_title() {
        let mut rewind = Event::new(RunId::from("r2"), Source::user());
        rewind.actions_mut().rewind_before_invocation_id = Some(RunId::from("r"));
        let rewind = LogEntry::Event(Arc::new(rewind));
        let again = Event::new(RunId::from("r3"), Source::user()).with_content(Content::user("again"));
        let again = LogEntry::Event(Arc::new(again));
        assert_eq!(title_of_log(&[said("first"), rewind.clone()]), None);
        assert_eq!(title_of_log(&[said("first"), rewind, again]).as_deref(), Some("again"));
    }
}
