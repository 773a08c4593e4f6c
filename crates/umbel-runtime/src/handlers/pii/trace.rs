//! What of a text that is still coming may become a match.
//!
//! A pattern is followed from every place of the text at once. Once nothing that began at a place is alive any more,
//! whatever comes next cannot change what the pattern matches there.

use regex_automata::nfa::thompson::{NFA, State};
use regex_automata::util::primitives::StateID;

/// The matches of one pattern that have begun and may go on.
#[derive(Debug)]
pub(super) struct Trace {
    nfa: NFA,
    /// How far the text was read.
    at: usize,
    /// Where in the pattern one may be, and the earliest place of the text from which one gets there; earliest first.
    threads: Vec<(StateID, usize)>,
    next: Vec<(StateID, usize)>,
    /// The earliest place from which there is a match, however the text goes on.
    certain: Option<usize>,
    /// The states that were looked at for this place of the text: those with the number of the round.
    looked_at: Vec<u64>,
    round: u64,
    stack: Vec<StateID>,
}

/// What is known at the end of what has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Known {
    /// The earliest place where a match may yet begin, end later, or turn out to be none.
    pub(super) open: Option<usize>,
    /// The earliest place from which there is a match, however the text goes on.
    pub(super) certain: Option<usize>,
}

impl Trace {
    pub(super) fn new(nfa: &NFA) -> Self {
        Self {
            nfa: nfa.clone(),
            at: 0,
            threads: Vec::new(),
            next: Vec::new(),
            certain: None,
            looked_at: vec![0; nfa.states().len()],
            round: 0,
            stack: Vec::new(),
        }
    }

    /// Forgets everything and begins at another place.
    pub(super) fn restart(&mut self, at: usize) {
        self.at = at;
        self.threads.clear();
        self.certain = None;
    }

    /// Takes note that what begins before `from` is settled, and that so many bytes at the front of the text are gone.
    pub(super) fn forget(&mut self, from: usize, gone: usize) {
        self.at -= gone;
        self.certain = self.certain.filter(|start| *start >= from).map(|start| start - gone);
        self.threads.retain(|(_, start)| *start >= from);
        for (_, start) in &mut self.threads {
            *start -= gone;
        }
    }

    /// Reads on until nothing is alive that began at `place` or before. Gives whether that is so: if not, the end of the
    /// text was reached.
    pub(super) fn settles(&mut self, text: &str, place: usize) -> bool {
        let alive = |trace: &Self| trace.threads.first().is_some_and(|(_, start)| *start <= place);
        while self.at < text.len() {
            if self.at > place && !alive(self) {
                return true;
            }
            self.step(text);
        }
        self.known().open.is_none_or(|open| open > place)
    }

    /// Reads to the end of the text.
    pub(super) fn read(&mut self, text: &str) -> Known {
        while self.at < text.len() {
            self.step(text);
        }
        self.known()
    }

    /// Reads one byte.
    fn step(&mut self, text: &str) {
        let bytes = text.as_bytes();
        let Some(byte) = bytes.get(self.at).copied() else { return };
        self.round += 1;
        let begins = text.is_char_boundary(self.at).then(|| (self.nfa.start_anchored(), self.at));
        let mut threads = std::mem::take(&mut self.threads);
        for (state, start) in threads.drain(..).chain(begins) {
            self.stack.push(state);
            while let Some(state) = self.stack.pop() {
                if !first_look(&mut self.looked_at, self.round, state) {
                    continue;
                }
                let next = match self.nfa.state(state) {
                    State::ByteRange { trans } => trans.matches_byte(byte).then_some(trans.next),
                    State::Sparse(sparse) => sparse.matches_byte(byte),
                    State::Dense(dense) => dense.matches_byte(byte),
                    State::Look { look, next } => {
                        if self.nfa.look_matcher().matches(*look, bytes, self.at) {
                            self.stack.push(*next);
                        }
                        None
                    }
                    other => {
                        if leads_on(other, &mut self.stack) && start < self.at {
                            self.certain = Some(self.certain.map_or(start, |known| known.min(start)));
                        }
                        None
                    }
                };
                self.next.extend(next.map(|next| (next, start)));
            }
        }
        self.threads = std::mem::replace(&mut self.next, threads);
        self.at += 1;
    }

    /// What is known where the text ends for now. What looks ahead cannot tell yet.
    fn known(&mut self) -> Known {
        self.round += 1;
        let (mut open, mut certain) = (None, self.certain);
        for (state, start) in self.threads.iter().copied() {
            self.stack.push(state);
            while let Some(state) = self.stack.pop() {
                if !first_look(&mut self.looked_at, self.round, state) {
                    continue;
                }
                match self.nfa.state(state) {
                    State::ByteRange { .. } | State::Sparse(_) | State::Dense(_) | State::Look { .. } => {
                        open = open.or(Some(start));
                    }
                    other => {
                        if leads_on(other, &mut self.stack) && start < self.at {
                            certain = Some(certain.map_or(start, |known: usize| known.min(start)));
                        }
                    }
                }
            }
        }
        Known { open, certain }
    }
}

/// Whether the state was not looked at in this round. From then on it was.
fn first_look(looked_at: &mut [u64], round: u64, state: StateID) -> bool {
    looked_at.get_mut(state.as_usize()).is_some_and(|last| std::mem::replace(last, round) != round)
}

/// Adds the states that a state leads to without reading. Gives whether it is the end of the pattern.
fn leads_on(state: &State, stack: &mut Vec<StateID>) -> bool {
    match state {
        State::Union { alternates } => stack.extend(alternates.iter().rev().copied()),
        State::BinaryUnion { alt1, alt2 } => stack.extend([*alt2, *alt1]),
        State::Capture { next, .. } => stack.push(*next),
        State::Match { .. } => return true,
        _ => {}
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(pattern: &str, text: &str) -> (Option<usize>, Option<usize>) {
        let known = Trace::new(&NFA::new(pattern).unwrap()).read(text);
        (known.open, known.certain)
    }

    #[test]
    fn a_match_that_cannot_grow_is_not_open() {
        assert_eq!(read("ab?c", "xa"), (Some(1), None));
        assert_eq!(read("ab?c", "xabc"), (None, Some(1)));
        assert_eq!(read("ab?c", "xabd"), (None, None));
        assert_eq!(read("abc+", "xabc"), (Some(1), Some(1)));
    }

    #[test]
    fn what_looks_ahead_is_open_at_the_end() {
        assert_eq!(read(r"ab\b", "ab"), (Some(0), None));
        assert_eq!(read(r"ab\b", "ab "), (None, Some(0)));
        assert_eq!(read(r"ab\b", "abc"), (None, None));
        assert_eq!(read(r"ab$", "ab"), (Some(0), None));
    }

    #[test]
    fn the_earliest_place_counts() {
        assert_eq!(read("[a-z]+@", "ab cd"), (Some(3), None));
        assert_eq!(read("aaab|a", "aa"), (Some(0), Some(0)));
    }

    #[test]
    fn an_empty_match_is_none() {
        assert_eq!(read("x*", "ab"), (None, None));
    }
}
