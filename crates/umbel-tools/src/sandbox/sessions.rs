//! Sandboxes that are kept for later code of the same session.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::{Duration, Instant};

use umbel_core::{CodeInput, CodeOutput, Error, ErrorKind, Result, SessionKey};

use super::launch::Launch;
use super::live::{Live, Rest};

/// What the first code of a session hears: it may count on what was defined before a restart.
const ANEW: &str = "A new interpreter was started for this code: nothing that earlier code defined is there.";

/// How often a sandbox that rests is looked at.
const PAUSE: Duration = Duration::from_millis(250);

/// Sandboxes by session.
#[derive(Debug)]
pub(super) struct Sessions {
    limit: usize,
    idle: Duration,
    /// How long code may wait until other code of its session has ended.
    patience: Duration,
    kept: Mutex<HashMap<SessionKey, Arc<Slot>>>,
}

/// The place of a session. Who runs its code takes the sandbox out: if that is cut short, it ends with the code.
#[derive(Debug)]
struct Slot {
    live: tokio::sync::Mutex<Option<Kept>>,
    used: Mutex<Instant>,
}

/// A sandbox that rests until there is more code for it.
#[derive(Debug)]
struct Kept {
    live: Live,
    rest: Rest,
    /// Which one of this process it is.
    number: u64,
}

/// What is to be done about a sandbox.
enum Look {
    /// Nothing: code runs there.
    AtWork,
    /// See whether something goes on there.
    Rests(Rest),
    /// Nothing any more: it is gone, or another one is there.
    Gone,
}

impl Slot {
    fn used(&self) -> Instant {
        *self.used.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether a sandbox rests in it.
    fn has_sandbox(&self) -> bool {
        self.live.try_lock().is_ok_and(|live| live.is_some())
    }

    fn touch(&self) {
        *self.used.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
    }
}

impl Sessions {
    pub(super) fn new(limit: usize, idle: Duration, patience: Duration) -> Arc<Self> {
        Arc::new(Self { limit, idle, patience, kept: Mutex::default() })
    }

    /// Runs code where earlier code of the session ran. One at a time does, and its time begins when it is its turn.
    pub(super) async fn run(
        self: &Arc<Self>,
        launch: &Arc<Launch>,
        session: &SessionKey,
        input: &CodeInput,
    ) -> Result<CodeOutput> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let slot = self.slot(session)?;
        let Ok(mut kept) = tokio::time::timeout(self.patience, slot.live.lock()).await else {
            let message = "other code of this session is still at work: try again later";
            return Err(Error::new(ErrorKind::RateLimited, message));
        };
        slot.touch();
        let there = kept.take().and_then(|mut kept| kept.live.is_there().then_some(kept));
        let (mut live, number) = match there {
            Some(kept) => (kept.live, Some(kept.number)),
            None => (Live::start(launch, Some(launch.admit().await?)).await?, None),
        };
        let is_new = number.is_none();
        let ended = live.run(input).await?;
        slot.touch();
        if ended.is_alive {
            let rest = live.rest().await;
            let number = number.unwrap_or_else(|| NEXT.fetch_add(1, Ordering::Relaxed));
            *kept = Some(Kept { live, rest, number });
            drop(kept);
            drop(slot);
            launch.pool.rested();
            if is_new {
                tokio::spawn(look_after(Arc::downgrade(self), session.clone(), number));
            }
        }
        let mut output = ended.output;
        if is_new {
            output.note = Some(output.note.map_or(ANEW.to_owned(), |note| format!("{note} {ANEW}")));
        }
        Ok(output)
    }

    fn slot(&self, session: &SessionKey) -> Result<Arc<Slot>> {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(slot) = kept.get(session) {
            return Ok(slot.clone());
        }
        if kept.len() >= self.limit {
            let Some((oldest, _)) = Self::oldest(&kept, |_| true) else {
                let message = format!("all {} sessions for code are at work: try again later", self.limit);
                return Err(Error::new(ErrorKind::RateLimited, message));
            };
            kept.remove(&oldest);
        }
        let slot = Arc::new(Slot { live: tokio::sync::Mutex::new(None), used: Mutex::new(Instant::now()) });
        kept.insert(session.clone(), slot.clone());
        Ok(slot)
    }

    /// The session that was not used for longest, of those where nobody is at work, and when it
    /// was.
    fn oldest(
        kept: &HashMap<SessionKey, Arc<Slot>>,
        counts: impl Fn(&Slot) -> bool,
    ) -> Option<(SessionKey, Instant)> {
        // Whoever holds a slot besides the map is at work in it, or about to be.
        let free = kept.iter().filter(|(_, slot)| Arc::strong_count(slot) == 1 && counts(slot));
        free.map(|(key, slot)| (key.clone(), slot.used())).min_by_key(|(_, used)| *used)
    }

    /// Since when the sandbox rests that rests for longest.
    pub(super) fn rests_since(&self) -> Option<Instant> {
        let kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        Self::oldest(&kept, Slot::has_sandbox).map(|(_, used)| used)
    }

    /// Ends that one, if there is still one.
    pub(super) fn end_oldest(&self) -> bool {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        let oldest = Self::oldest(&kept, Slot::has_sandbox);
        oldest.is_some_and(|(session, _)| kept.remove(&session).is_some())
    }

    /// Says what is to be done about a sandbox. One that was not used for long ends.
    fn look(&self, session: &SessionKey, number: u64) -> Look {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(slot) = kept.get(session) else { return Look::Gone };
        if Arc::strong_count(slot) > 1 {
            return Look::AtWork;
        }
        let is_idle = slot.used().elapsed() >= self.idle;
        let Ok(live) = slot.live.try_lock() else { return Look::AtWork };
        let (is_empty, rest) = (live.is_none(), live.as_ref().filter(|kept| kept.number == number));
        let look = rest.filter(|_| !is_idle).map_or(Look::Gone, |kept| Look::Rests(kept.rest.clone()));
        let ends = is_empty || (rest.is_some() && is_idle);
        drop(live);
        if ends {
            kept.remove(session);
        }
        look
    }

    /// Ends a sandbox that does not rest, unless code has come for it meanwhile: then that has its own limits.
    fn end(&self, session: &SessionKey, number: u64) {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(slot) = kept.get(session).filter(|slot| Arc::strong_count(slot) == 1) else { return };
        let is_it =
            slot.live.try_lock().is_ok_and(|live| live.as_ref().is_some_and(|kept| kept.number == number));
        if is_it {
            kept.remove(session);
        }
    }
}

/// Looks after a sandbox until it is gone. The supervisor has its processes stand still, but code can have itself woken.
async fn look_after(sessions: Weak<Sessions>, session: SessionKey, number: u64) {
    let mut pause = PAUSE;
    loop {
        tokio::time::sleep(pause).await;
        let Some(look) = sessions.upgrade().map(|sessions| sessions.look(&session, number)) else { return };
        pause = PAUSE;
        match look {
            Look::AtWork => {}
            Look::Gone => return,
            Look::Rests(rest) => {
                let began = Instant::now();
                if rest.is_broken().await
                    && let Some(sessions) = sessions.upgrade()
                {
                    sessions.end(&session, number);
                }
                pause = pause.max(began.elapsed() * 4);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Sandbox;

    #[tokio::test(start_paused = true)]
    async fn code_does_not_wait_for_ever_until_it_is_its_turn() {
        let sessions = Sessions::new(1, Duration::MAX, Duration::from_secs(60));
        let launch = Arc::new(Launch::prepare(Sandbox::python().dangerously_unsandboxed()).unwrap());
        let key = SessionKey::new("app", "ann", "a").unwrap();
        let slot = sessions.slot(&key).unwrap();
        let _at_work = slot.live.lock().await;
        let began = tokio::time::Instant::now();
        let error = sessions.run(&launch, &key, &CodeInput::new("", "python")).await.unwrap_err();
        assert_eq!((error.kind(), began.elapsed()), (ErrorKind::RateLimited, Duration::from_secs(60)));
        assert!(error.message().contains("still at work"), "{error}");
    }
}
