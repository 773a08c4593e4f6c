//! The difference of two texts, line by line.

use crate::style::{Ink, Style, clean};

/// How many lines that are the same are shown around others.
const CONTEXT: usize = 3;
/// Beyond this many lines, what differs is shown as a whole: nobody reads it line by line.
const MOST: usize = 4_000;

/// A line of a difference.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Line<'a> {
    Same(&'a str),
    Gone(&'a str),
    New(&'a str),
}

/// The difference in unified form, without the heads of files.
pub(super) fn unified(then: &str, now: &str, style: Style) -> String {
    let lines = compare(&then.lines().collect::<Vec<_>>(), &now.lines().collect::<Vec<_>>());
    let near = |at: usize| {
        let from = at.saturating_sub(CONTEXT);
        lines.iter().skip(from).take(at + CONTEXT + 1 - from).any(|line| !matches!(line, Line::Same(_)))
    };
    let (mut text, mut skipped) = (String::new(), 0);
    for (at, line) in lines.iter().enumerate() {
        if !near(at) {
            skipped += 1;
            continue;
        }
        note_skipped(&mut text, &mut skipped, style);
        let shown = match line {
            Line::Same(line) => format!("  {}", clean(line)),
            Line::Gone(line) => style.paint(Ink::Error, &format!("- {}", clean(line))).into_owned(),
            Line::New(line) => style.paint(Ink::You, &format!("+ {}", clean(line))).into_owned(),
        };
        text.push_str(shown.trim_end());
        text.push('\n');
    }
    note_skipped(&mut text, &mut skipped, style);
    text
}

fn note_skipped(text: &mut String, skipped: &mut usize, style: Style) {
    if *skipped > 0 {
        let note = format!("  ... {skipped} lines the same");
        text.push_str(&format!("{}\n", style.paint(Ink::Faint, &note)));
        *skipped = 0;
    }
}

/// The longest lines that both have in common, and the others around them.
fn compare<'a>(then: &[&'a str], now: &[&'a str]) -> Vec<Line<'a>> {
    let same = then.iter().zip(now).take_while(|(one, other)| one == other).count();
    let (head, then) = then.split_at_checked(same).unwrap_or((then, &[]));
    let now = now.get(same..).unwrap_or_default();
    let tail = then.iter().rev().zip(now.iter().rev()).take_while(|(one, other)| one == other).count();
    let (then, end) = then.split_at_checked(then.len() - tail).unwrap_or((then, &[]));
    let now = now.get(..now.len() - tail).unwrap_or_default();
    let mut lines: Vec<Line<'a>> = head.iter().copied().map(Line::Same).collect();
    if then.len() * now.len() > MOST * MOST {
        lines.extend(then.iter().copied().map(Line::Gone));
        lines.extend(now.iter().copied().map(Line::New));
    } else {
        lines.extend(middle(then, now));
    }
    lines.extend(end.iter().copied().map(Line::Same));
    lines
}

/// By the table of longest common subsequences.
fn middle<'a>(then: &[&'a str], now: &[&'a str]) -> Vec<Line<'a>> {
    let wide = now.len() + 1;
    let mut table = vec![0_u32; (then.len() + 1) * wide];
    let at = |table: &[u32], i: usize, j: usize| table.get(i * wide + j).copied().unwrap_or(0);
    for (i, one) in then.iter().enumerate().rev() {
        for (j, other) in now.iter().enumerate().rev() {
            let length = if one == other {
                at(&table, i + 1, j + 1) + 1
            } else {
                at(&table, i + 1, j).max(at(&table, i, j + 1))
            };
            if let Some(cell) = table.get_mut(i * wide + j) {
                *cell = length;
            }
        }
    }
    let (mut i, mut j, mut lines) = (0, 0, Vec::new());
    loop {
        match (then.get(i), now.get(j)) {
            (Some(one), Some(other)) if one == other => {
                lines.push(Line::Same(one));
                (i, j) = (i + 1, j + 1);
            }
            (Some(one), other) if other.is_none() || at(&table, i + 1, j) >= at(&table, i, j + 1) => {
                lines.push(Line::Gone(one));
                i += 1;
            }
            (_, Some(other)) => {
                lines.push(Line::New(other));
                j += 1;
            }
            _ => return lines,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_that_changed_are_shown_with_their_surroundings() {
        let then = "1\n2\n3\n4\n5\n6\n7\n8\n9\n10";
        let now = "1\n2\n3\n4\nfive\n6\n7\n8\n9\n10\n11";
        let expected = "  ... 1 lines the same\n  2\n  3\n  4\n- 5\n+ five\n  6\n  7\n  8\n  9\n  10\n+ 11\n";
        assert_eq!(unified(then, now, Style::Plain), expected);
    }

    #[test]
    fn the_longest_common_lines_are_kept_and_both_texts_can_be_made_of_it() {
        for (then, now) in [
            ("a b c d", "b d a"),
            ("", "a"),
            ("a", ""),
            ("a a a", "a b a"),
            ("x a b y", "a x y b"),
            ("same", "same"),
        ] {
            let (then, now): (Vec<&str>, Vec<&str>) = (then.split(' ').collect(), now.split(' ').collect());
            let lines = compare(&then, &now);
            let old = lines.iter().filter_map(|line| match line {
                Line::Same(line) | Line::Gone(line) => Some(*line),
                Line::New(_) => None,
            });
            let new = lines.iter().filter_map(|line| match line {
                Line::Same(line) | Line::New(line) => Some(*line),
                Line::Gone(_) => None,
            });
            assert_eq!(old.collect::<Vec<_>>(), then);
            assert_eq!(new.collect::<Vec<_>>(), now);
        }
        let same = |lines: &[Line<'_>]| lines.iter().filter(|line| matches!(line, Line::Same(_))).count();
        assert_eq!(same(&compare(&["a", "b", "c", "d"], &["b", "d", "a"])), 2);
    }

    #[test]
    fn colours_and_control_characters_are_kept_apart() {
        let shown = unified("a", "\x1b[31mb", Style::Colour);
        assert_eq!(shown, "\x1b[31m- a\x1b[0m\n\x1b[1;32m+ \u{fffd}[31mb\x1b[0m\n");
    }
}
