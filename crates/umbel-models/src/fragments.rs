//! Messages and tools as a provider reads them, written once and kept.
//!
//! A conversation grows at its end: nearly all of a request was part of the one before. So a message is turned into JSON
//! once, and later requests copy its bytes. What is kept is found by the address of the message, which cannot be taken by
//! another as long as the cache holds a weak reference to it.

use std::collections::HashMap;
use std::fmt;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use smallvec::SmallVec;
use smol_str::SmolStr;
use umbel_core::{CallId, Content, FunctionCall, FunctionResponse, Role, Tool};

/// A message as a provider reads it.
#[derive(Debug, Default)]
pub(crate) struct Fragment {
    /// Whether the model speaks.
    pub(crate) by_model: bool,
    /// JSON values, a comma behind each but the last.
    pub(crate) json: Vec<u8>,
    pub(crate) pieces: SmallVec<[Piece; 1]>,
}

/// One value of a fragment.
#[derive(Debug, Default)]
pub(crate) struct Piece {
    pub(crate) range: Range<usize>,
    /// The calls in it, and the names of their tools.
    pub(crate) calls: SmallVec<[(CallId, SmolStr); 1]>,
    /// The call that it answers.
    pub(crate) answers: Option<CallId>,
}

impl Fragment {
    pub(crate) fn of(content: &Content) -> Self {
        Self { by_model: content.role == Some(Role::Model), ..Self::default() }
    }

    /// Adds a value: whatever `write` writes.
    pub(crate) fn add(&mut self, mut piece: Piece, write: impl FnOnce(&mut Vec<u8>)) {
        if !self.json.is_empty() {
            self.json.push(b',');
        }
        let start = self.json.len();
        write(&mut self.json);
        piece.range = start..self.json.len();
        self.pieces.push(piece);
    }

    /// The bytes of a piece.
    pub(crate) fn bytes(&self, piece: &Piece) -> &[u8] {
        self.json.get(piece.range.clone()).unwrap_or_default()
    }
}

impl Piece {
    /// One with these calls in it.
    pub(crate) fn with_calls<'a>(calls: impl IntoIterator<Item = &'a FunctionCall>) -> Self {
        let named = |call: &FunctionCall| (call_key(call.id.as_ref(), &call.name), call.name.clone());
        Self { calls: calls.into_iter().map(named).collect(), ..Self::default() }
    }

    /// One that answers a call.
    pub(crate) fn answering(response: &FunctionResponse) -> Self {
        Self { answers: Some(call_key(response.id.as_ref(), &response.name)), ..Self::default() }
    }
}

/// By what a call and its answer find each other. Without ids, those of one tool pair in their order.
pub(crate) fn call_key(id: Option<&CallId>, name: &str) -> CallId {
    id.cloned().unwrap_or_else(|| name.into())
}

/// Fragments that were written before, up to so many bytes.
pub(crate) struct Fragments {
    most: usize,
    kept: Mutex<Kept>,
}

#[derive(Default)]
struct Kept {
    entries: HashMap<usize, Entry>,
    bytes: usize,
    /// Counts requests: what the last ones used stays.
    now: u64,
}

struct Entry {
    _of: Owner,
    fragment: Arc<Fragment>,
    used: u64,
}

/// Keeps an address from being used again.
enum Owner {
    Content { _at: Weak<Content> },
    Tool { _at: Weak<dyn Tool> },
}

/// What an entry costs besides its JSON.
const OVERHEAD: usize = 256;

impl Fragments {
    pub(crate) fn new(most: usize) -> Self {
        Self { most, kept: Mutex::default() }
    }

    /// Begins a request.
    pub(crate) fn begin(&self) -> Writing<'_> {
        self.lock().now += 1;
        Writing { fragments: self }
    }

    fn lock(&self) -> MutexGuard<'_, Kept> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Fragments {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Fragments").field("most", &self.most).finish_non_exhaustive()
    }
}

/// The fragments while a request is written. Others may write theirs at the same time.
pub(crate) struct Writing<'a> {
    fragments: &'a Fragments,
}

impl Writing<'_> {
    /// The fragment of a message; written by `write` if it is not there.
    pub(crate) fn message(
        &mut self,
        of: &Arc<Content>,
        write: impl FnOnce(&Content) -> Fragment,
    ) -> Arc<Fragment> {
        self.get(Arc::as_ptr(of) as usize, || (Owner::Content { _at: Arc::downgrade(of) }, write(of)))
    }

    /// The fragment of a tool.
    pub(crate) fn tool(
        &mut self,
        of: &Arc<dyn Tool>,
        write: impl FnOnce(&dyn Tool) -> Fragment,
    ) -> Arc<Fragment> {
        let at = Arc::as_ptr(of).cast::<()>() as usize;
        self.get(at, || (Owner::Tool { _at: Arc::downgrade(of) }, write(&**of)))
    }

    fn get(&mut self, at: usize, write: impl FnOnce() -> (Owner, Fragment)) -> Arc<Fragment> {
        {
            let mut kept = self.fragments.lock();
            let now = kept.now;
            if let Some(entry) = kept.entries.get_mut(&at) {
                entry.used = now;
                return entry.fragment.clone();
            }
        }
        let (owner, mut fragment) = write();
        fragment.json.shrink_to_fit();
        let fragment = Arc::new(fragment);
        self.fragments.lock().keep(at, owner, &fragment, self.fragments.most);
        fragment
    }
}

impl Kept {
    fn keep(&mut self, at: usize, owner: Owner, fragment: &Arc<Fragment>, most: usize) {
        let cost = fragment.json.len() + OVERHEAD;
        // What would push out all the others is not worth it, and somebody else may have written it in the meantime.
        if cost > most / 4 || self.entries.contains_key(&at) {
            return;
        }
        self.bytes += cost;
        let entry = Entry { _of: owner, fragment: fragment.clone(), used: self.now };
        self.entries.insert(at, entry);
        if self.bytes > most {
            self.make_room(most);
        }
    }

    /// Drops what was not used for longest, until half of the room is free.
    fn make_room(&mut self, most: usize) {
        let mut ages: Vec<(u64, usize)> = self.entries.iter().map(|(at, entry)| (entry.used, *at)).collect();
        ages.sort_unstable();
        for (_, at) in ages {
            if self.bytes <= most / 2 {
                break;
            }
            if let Some(entry) = self.entries.remove(&at) {
                self.bytes -= entry.fragment.json.len() + OVERHEAD;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fragment(content: &Content) -> Fragment {
        let mut fragment = Fragment::of(content);
        for part in &content.parts {
            fragment.add(Piece::default(), |json| {
                json.extend_from_slice(part.as_text().unwrap_or_default().as_bytes());
            });
        }
        fragment
    }

    #[test]
    fn a_message_is_written_once_and_another_at_its_old_address_is_not_taken_for_it() {
        let fragments = Fragments::new(1 << 20);
        let first = Arc::new(Content::user("a"));
        for _ in 0..2 {
            let mut writing = fragments.begin();
            assert_eq!(writing.message(&first, fragment).json, b"a");
        }
        let again = fragments.begin().message(&first, |_| panic!("written twice"));
        assert_eq!(again.json, b"a");
        drop(first);
        // Were the address free, one of these would get it.
        for text in 0..1000 {
            let text = text.to_string();
            let other = Arc::new(Content::from(text.clone()));
            assert_eq!(fragments.begin().message(&other, fragment).json, text.as_bytes());
        }
    }

    #[test]
    fn a_message_that_was_changed_in_its_place_is_written_anew() {
        let fragments = Fragments::new(1 << 20);
        let mut content = Arc::new(Content::user("a"));
        fragments.begin().message(&content, fragment);
        Arc::make_mut(&mut content).parts.push("b".into());
        assert_eq!(fragments.begin().message(&content, fragment).json, b"a,b");
        assert!(Arc::get_mut(&mut content).is_none());
    }

    #[test]
    fn what_is_kept_is_bounded_and_the_oldest_goes_first() {
        let most = 100 * (OVERHEAD + 100);
        let fragments = Fragments::new(most);
        let messages: Vec<_> = (0..1000).map(|_| Arc::new(Content::from("x".repeat(100)))).collect();
        for message in &messages {
            fragments.begin().message(message, fragment);
            assert!(fragments.kept.lock().unwrap().bytes <= most);
        }
        fragments.begin().message(messages.last().unwrap(), |_| panic!("the newest is gone"));
        let mut written = false;
        fragments.begin().message(&messages[0], |content| {
            written = true;
            fragment(content)
        });
        assert!(written, "the oldest is still there");
    }
}
