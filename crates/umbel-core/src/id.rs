//! Ids as types of their own, and who mints them.

use std::cell::Cell;
use std::fmt;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::atomic::{AtomicU64, Ordering};

use serde::{Deserialize, Serialize};
use smol_str::{SmolStr, SmolStrBuilder};

macro_rules! id {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $name(SmolStr);

        impl $name {
            /// The id as text.
            pub fn as_str(&self) -> &str {
                &self.0
            }

            /// Whether it was never set.
            pub fn is_empty(&self) -> bool {
                self.0.is_empty()
            }
        }

        impl From<SmolStr> for $name {
            fn from(text: SmolStr) -> Self {
                Self(text)
            }
        }

        impl From<&str> for $name {
            fn from(text: &str) -> Self {
                Self(text.into())
            }
        }

        impl From<String> for $name {
            fn from(text: String) -> Self {
                Self(text.into())
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl AsRef<str> for $name {
            fn as_ref(&self) -> &str {
                &self.0
            }
        }

        impl std::borrow::Borrow<str> for $name {
            fn borrow(&self) -> &str {
                &self.0
            }
        }

        impl PartialEq<str> for $name {
            fn eq(&self, other: &str) -> bool {
                self.0 == other
            }
        }

        impl PartialEq<&str> for $name {
            fn eq(&self, other: &&str) -> bool {
                self.0 == *other
            }
        }
    };
}

id! {
    /// Names one event of a session.
    EventId
}
id! {
    /// Names one run; `invocationId` on the wire.
    RunId
}
id! {
    /// Names one tool call. A model may hand out the same one twice in a session.
    CallId
}

/// Prefix of call ids that the flow minted because the model gave none.
pub const CLIENT_CALL_PREFIX: &str = "adk-";

impl CallId {
    /// Whether the flow minted this id; the model has never seen it.
    pub fn is_client(&self) -> bool {
        self.0.starts_with(CLIENT_CALL_PREFIX)
    }
}

/// What an id is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum IdKind {
    /// An [`EventId`].
    Event,
    /// A [`RunId`], with prefix `e-`.
    Run,
    /// A [`CallId`], with prefix `adk-`.
    Call,
    /// The id of a session that was created without one.
    Session,
}

impl IdKind {
    fn prefix(self) -> &'static str {
        match self {
            Self::Event | Self::Session => "",
            Self::Run => "e-",
            Self::Call => CLIENT_CALL_PREFIX,
        }
    }
}

/// Mints ids. Injected, so that a test can foresee them.
pub trait Ids: Send + Sync + fmt::Debug {
    /// A new id of this kind, its prefix included.
    fn mint(&self, kind: IdKind) -> SmolStr;

    /// A new id for an event.
    fn event(&self) -> EventId {
        self.mint(IdKind::Event).into()
    }

    /// A new id for a run.
    fn run(&self) -> RunId {
        self.mint(IdKind::Run).into()
    }

    /// A new id for a call that came without one.
    fn call(&self) -> CallId {
        self.mint(IdKind::Call).into()
    }
}

/// Ids that never repeat: 72 random bits per thread, then a counter. Session ids are random throughout.
#[derive(Clone, Copy, Debug, Default)]
pub struct RandomIds;

/// Url-safe, 6 bits a character.
const ALPHABET: &[u8; 64] = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ_abcdefghijklmnopqrstuvwxyz-";

/// 36 bits as text. An id is three of them: two random ones and a counter.
type Digits = [u8; 6];

thread_local! {
    /// The thread's random part and what it has counted to; drawn anew when the counter is used up.
    static STREAM: Cell<([Digits; 2], u64)> = const { Cell::new(([[0; 6]; 2], u64::MAX)) };
}

/// The last 36 bits of a number, in characters of the alphabet.
fn digits(number: u64) -> Digits {
    // The index is below 64 by its mask.
    let digit = |shift: u32| ALPHABET.get((number >> shift & 63) as usize).copied().unwrap_or(b'0');
    [digit(30), digit(24), digit(18), digit(12), digit(6), digit(0)]
}

/// Random characters from the operating system's generator, by way of the seeds of `RandomState`.
fn random_digits() -> Digits {
    digits(RandomState::new().build_hasher().finish())
}

/// The same without a dash in front: people put the id of a session on a command line, where that means a flag.
fn random_start() -> Digits {
    loop {
        let start = random_digits();
        if start.first() != Some(&b'-') {
            return start;
        }
    }
}

/// The next id of this thread.
fn next() -> [Digits; 3] {
    let (mut random, mut count) = STREAM.get();
    if count >> 36 != 0 {
        random = [random_digits(), random_digits()];
        count = 0;
    }
    STREAM.set((random, count + 1));
    let [first, second] = random;
    [first, second, digits(count)]
}

/// An id with its prefix, all of it ASCII. The lengths are known, so that it is put together in few steps.
fn join<const P: usize>(prefix: &[u8; P], digits: &[Digits; 3]) -> SmolStr {
    let mut text = [0u8; CLIENT_CALL_PREFIX.len() + 3 * size_of::<Digits>()];
    if let Some((head, rest)) = text.split_first_chunk_mut() {
        *head = *prefix;
        for (slot, digit) in rest.iter_mut().zip(digits.as_flattened()) {
            *slot = *digit;
        }
    }
    let text = std::str::from_utf8(text.get(..P + 3 * size_of::<Digits>()).unwrap_or_default());
    text.map(SmolStr::new_inline).unwrap_or_default()
}

impl Ids for RandomIds {
    fn mint(&self, kind: IdKind) -> SmolStr {
        match kind {
            IdKind::Event => join(b"", &next()),
            IdKind::Run => join(b"e-", &next()),
            IdKind::Call => join(b"adk-", &next()),
            IdKind::Session => join(b"", &[random_start(), random_digits(), random_digits()]),
        }
    }
}

/// Ids that count: `adk-1`, `adk-2`, … for calls, and so on for each kind. For tests.
#[derive(Debug, Default)]
pub struct CountingIds {
    next: [AtomicU64; 4],
}

impl Ids for CountingIds {
    fn mint(&self, kind: IdKind) -> SmolStr {
        let index = match kind {
            IdKind::Event => 0,
            IdKind::Run => 1,
            IdKind::Call => 2,
            IdKind::Session => 3,
        };
        let number = self.next.get(index).map_or(0, |n| n.fetch_add(1, Ordering::Relaxed) + 1);
        let mut text = SmolStrBuilder::new();
        text.push_str(kind.prefix());
        text.push_str(&number.to_string());
        text.finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn no_session_begins_with_a_dash() {
        assert!((0..2_000).all(|_| !RandomIds.mint(IdKind::Session).starts_with('-')));
    }

    #[test]
    fn random_ids_do_not_repeat_across_threads() {
        let threads: Vec<_> = (0..4)
            .map(|_| std::thread::spawn(|| (0..2000).map(|_| RandomIds.event()).collect::<Vec<_>>()))
            .collect();
        let ids: HashSet<_> = threads.into_iter().flat_map(|t| t.join().unwrap()).collect();
        assert_eq!(ids.len(), 8000);
    }

    #[test]
    fn ids_carry_the_prefix_of_their_kind_and_stay_inline() {
        for (kind, prefix) in [(IdKind::Run, "e-"), (IdKind::Call, "adk-"), (IdKind::Event, "")] {
            let id = RandomIds.mint(kind);
            assert!(id.starts_with(prefix), "{id}");
            assert_eq!(id.len(), prefix.len() + 18);
            assert!(!id.is_heap_allocated());
        }
        assert!(RandomIds.call().is_client());
    }

    #[test]
    fn counting_ids_count_per_kind() {
        let ids = CountingIds::default();
        assert_eq!((ids.call(), ids.call(), ids.run()), ("adk-1".into(), "adk-2".into(), "e-1".into()));
    }
}
