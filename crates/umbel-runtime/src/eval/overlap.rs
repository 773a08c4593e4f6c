//! How many words two texts share: ROUGE-1 as its F-measure, with English words cut to their stems.
//!
//! For text in Latin letters it gives what google-adk's `response_match_score` gives. Words of other scripts are words here,
//! too, where that one drops them.

use std::collections::HashMap;

use super::stem::stem;

/// Words of more letters than this are cut to their stems.
const SHORT: usize = 3;

/// How much of the words two texts have in common, from 0 to 1.
pub fn overlap(expected: &str, actual: &str) -> f64 {
    let (expected, actual) = (words(expected), words(actual));
    let mut left: HashMap<&str, usize> = HashMap::new();
    expected.iter().for_each(|word| *left.entry(word).or_default() += 1);
    let mut shared = 0.0;
    for word in &actual {
        if let Some(count) = left.get_mut(word.as_str()).filter(|count| **count > 0) {
            *count -= 1;
            shared += 1.0;
        }
    }
    if shared == 0.0 {
        return 0.0;
    }
    let (precision, recall) = (shared / actual.len() as f64, shared / expected.len() as f64);
    2.0 * precision * recall / (precision + recall)
}

/// The words of a text, in lower case, without marks.
fn words(text: &str) -> Vec<String> {
    let mut words = Vec::new();
    let mut word = String::new();
    let mut end = |word: &mut String| {
        let whole = std::mem::take(word);
        if !whole.is_empty() {
            words.push(if whole.len() > SHORT && whole.is_ascii() { stem(&whole) } else { whole });
        }
    };
    for c in text.chars().flat_map(char::to_lowercase) {
        if !c.is_alphanumeric() {
            end(&mut word);
            continue;
        }
        // There are no spaces between these: each is taken for a word.
        let alone =
            matches!(u32::from(c), 0x3040..=0x30ff | 0x3400..=0x9fff | 0xf900..=0xfaff | 0x20000..=0x3ffff);
        if alone {
            end(&mut word);
        }
        word.push(c);
        if alone {
            end(&mut word);
        }
    }
    end(&mut word);
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_f_measure_of_shared_words_is_given() {
        for (expected, actual, score) in [
            ("the cat sat on the mat", "the cat sat on the mat", 1.0),
            ("The cat, sat. On the MAT!", "the cat sat on the mat", 1.0),
            // 5 of 6 both ways.
            ("the cat sat on the mat", "the cat lay on the mat", 5.0 / 6.0),
            // Each word counts as often as it stands in both: 2 of 4, and 2 of 2.
            ("the the", "the the the the", 2.0 / 3.0),
            // Stems: running and runs, cities and city.
            ("running cities", "runs city", 1.0),
            ("a b c d", "a", 0.4),
            ("a", "b", 0.0),
            ("", "a", 0.0),
            ("a", "", 0.0),
            ("", "", 0.0),
            ("Grüße aus Köln", "grüße aus köln", 1.0),
            ("東京は雨", "東京は晴れ", 2.0 * 0.75 * 0.6 / 1.35),
        ] {
            let found = overlap(expected, actual);
            assert!((found - score).abs() < 1e-9, "{expected:?} and {actual:?}: {found}, not {score}");
        }
    }
}
