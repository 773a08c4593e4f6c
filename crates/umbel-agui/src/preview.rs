//! What was previewed of an event, to be held against the whole.

use umbel_core::{Part, Payload};

/// What was previewed of an event.
#[derive(Debug, Default)]
pub(crate) struct Preview {
    text: String,
    thoughts: String,
}

/// Room for the first words, in bytes: a text that comes in small pieces does not have to move so often.
const FIRST: usize = 256;

impl Preview {
    /// Takes in more words, or more of a thought.
    pub(crate) fn add(&mut self, words: &str, is_thought: bool) {
        let text = if is_thought { &mut self.thoughts } else { &mut self.text };
        if text.capacity() == 0 {
            text.reserve(FIRST);
        }
        text.push_str(words);
    }

    /// Whether these parts begin with it.
    pub(crate) fn begins(&self, parts: &[Part]) -> bool {
        begins(parts, false, &self.text) && begins(parts, true, &self.thoughts)
    }
}

/// Whether the words of these parts, or their thoughts, begin like that.
fn begins(parts: &[Part], thoughts: bool, said: &str) -> bool {
    let mut rest = said.as_bytes();
    for part in parts {
        if let Payload::Text(words) = &part.payload
            && part.is_thought() == thoughts
        {
            let (these, others) = rest.split_at(rest.len().min(words.len()));
            if !words.as_bytes().starts_with(these) {
                return false;
            }
            rest = others;
        }
    }
    rest.is_empty()
}

/// What is left of a text of which so many bytes were said.
pub(crate) fn unsaid<'a>(words: &'a str, said: &mut usize) -> Option<&'a str> {
    let before = (*said).min(words.len());
    *said -= before;
    words.get(before..).filter(|rest| !rest.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_preview_is_the_beginning_of_the_whole_over_all_its_parts() {
        let whole = [Part::thought("hm, "), Part::text("one "), Part::thought("well"), Part::text("two")];
        let begins = |text: &str, thoughts: &str| {
            Preview { text: text.to_owned(), thoughts: thoughts.to_owned() }.begins(&whole)
        };
        for (text, thoughts) in [("", ""), ("on", ""), ("one tw", "hm, w"), ("one two", "hm, well")] {
            assert!(begins(text, thoughts), "{text} {thoughts}");
        }
        for (text, thoughts) in [("x", ""), ("one two three", ""), ("one", "hum"), ("two", ""), ("", "well")]
        {
            assert!(!begins(text, thoughts), "{text} {thoughts}");
        }
    }
}
