//! Dying at a chosen moment, by SIGKILL: no destructor runs and no buffer is flushed.

use std::collections::HashSet;
use std::fmt;
use std::str::FromStr;
use std::sync::{Mutex, PoisonError};

use rustix::process::{Signal, getpid, kill_process};
use umbel::BoxError;

/// What a process counts on its way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Kind {
    /// A write to the log.
    Write,
    /// A tool with an effect.
    Effect,
}

/// Where a process kills itself: before the n-th write or effect, or when it is done and nobody knows yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Point {
    pub(super) kind: Kind,
    pub(super) number: u32,
    pub(super) done: bool,
}

impl Point {
    /// All points of a piece of work that has so many writes and effects.
    pub(super) fn all(writes: u32, effects: u32) -> Vec<Self> {
        let points = |kind, last| {
            (1..=last).flat_map(move |number| [false, true].map(|done| Point { kind, number, done }))
        };
        points(Kind::Write, writes).chain(points(Kind::Effect, effects)).collect()
    }
}

impl fmt::Display for Point {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match self.kind {
            Kind::Write => "write",
            Kind::Effect => "effect",
        };
        write!(f, "{}-{kind}-{}", if self.done { "after" } else { "before" }, self.number)
    }
}

impl FromStr for Point {
    type Err = BoxError;

    fn from_str(text: &str) -> Result<Self, BoxError> {
        let mut words = text.split('-');
        let done = match words.next() {
            Some("before") => false,
            Some("after") => true,
            _ => return Err(format!("`{text}` is no point").into()),
        };
        let kind = match words.next() {
            Some("write") => Kind::Write,
            Some("effect") => Kind::Effect,
            _ => return Err(format!("`{text}` is no point").into()),
        };
        let number = words.next().ok_or("the point has no number")?.parse()?;
        Ok(Self { kind, number, done })
    }
}

/// Counts what happens to one session and to those that work for it, and kills the process at a point.
#[derive(Debug)]
pub(super) struct Killer {
    point: Option<Point>,
    counted: Mutex<Counted>,
}

#[derive(Debug, Default)]
struct Counted {
    sessions: HashSet<String>,
    writes: u32,
    effects: u32,
}

impl Killer {
    /// One that kills at that point of that session.
    pub(super) fn new(session: &str, point: Option<Point>) -> Self {
        let sessions = HashSet::from([session.to_owned()]);
        Self { point, counted: Mutex::new(Counted { sessions, ..Counted::default() }) }
    }

    /// One that never kills and counts nothing.
    pub(super) fn idle() -> Self {
        Self { point: None, counted: Mutex::default() }
    }

    /// A session is made that works for another.
    pub(super) fn follow(&self, parent: &str, session: &str) {
        let mut counted = self.counted.lock().unwrap_or_else(PoisonError::into_inner);
        if counted.sessions.contains(parent) {
            counted.sessions.insert(session.to_owned());
        }
    }

    /// Something begins. Gives its number, if it counts.
    pub(super) fn begin(&self, session: &str, kind: Kind) -> Option<u32> {
        let mut counted = self.counted.lock().unwrap_or_else(PoisonError::into_inner);
        if !counted.sessions.contains(session) {
            return None;
        }
        let count = match kind {
            Kind::Write => &mut counted.writes,
            Kind::Effect => &mut counted.effects,
        };
        *count += 1;
        let number = *count;
        self.at(Point { kind, number, done: false });
        Some(number)
    }

    /// What began under that number is done.
    pub(super) fn end(&self, kind: Kind, number: Option<u32>) {
        if let Some(number) = number {
            self.at(Point { kind, number, done: true });
        }
    }

    /// How many writes and effects there were.
    pub(super) fn counts(&self) -> (u32, u32) {
        let counted = self.counted.lock().unwrap_or_else(PoisonError::into_inner);
        (counted.writes, counted.effects)
    }

    fn at(&self, point: Point) {
        if self.point == Some(point) {
            // The signal may take a moment; nothing must be done in it.
            let _ = kill_process(getpid(), Signal::KILL);
            loop {
                std::thread::park();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_point_is_read_as_it_is_written() {
        for point in Point::all(2, 1) {
            assert_eq!(point.to_string().parse::<Point>().unwrap(), point);
        }
        assert_eq!(Point::all(2, 1).len(), 6);
    }

    #[test]
    fn only_the_chosen_session_and_those_that_work_for_it_are_counted() {
        let killer = Killer::new("s0", None);
        killer.follow("s0", "s0/child");
        killer.follow("s1", "s1/child");
        for session in ["s0", "s0/child", "s1", "s1/child"] {
            killer.begin(session, Kind::Write);
        }
        killer.begin("s0/child", Kind::Effect);
        assert_eq!(killer.counts(), (2, 1));
    }
}
