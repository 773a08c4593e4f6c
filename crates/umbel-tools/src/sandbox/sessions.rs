//! Sandboxes that are kept for later code of the same session.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::{Duration, Instant};

use umbel_core::{CodeInput, CodeOutput, Error, ErrorKind, Result, SessionKey};

use super::launch::Launch;
use super::live::Live;

/// What the first code of a session hears: it may count on what was defined before a restart.
const ANEW: &str = "A new interpreter was started for this code: nothing that earlier code defined is there.";

/// Sandboxes by session.
#[derive(Debug)]
pub(super) struct Sessions {
    limit: usize,
    idle: Duration,
    kept: Mutex<HashMap<SessionKey, Arc<Slot>>>,
}

/// The place of a session. Who runs its code takes the sandbox out: if that is cut short, it ends with the code.
#[derive(Debug)]
struct Slot {
    live: tokio::sync::Mutex<Option<Live>>,
    used: Mutex<Instant>,
}

impl Slot {
    fn used(&self) -> Instant {
        *self.used.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn touch(&self) {
        *self.used.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
    }
}

impl Sessions {
    pub(super) fn new(limit: usize, idle: Duration) -> Arc<Self> {
        Arc::new(Self { limit, idle, kept: Mutex::default() })
    }

    /// Runs code where earlier code of the session ran. One at a time does.
    pub(super) async fn run(
        self: &Arc<Self>,
        launch: &Arc<Launch>,
        session: &SessionKey,
        input: &CodeInput,
    ) -> Result<CodeOutput> {
        let slot = self.slot(session)?;
        let mut kept = slot.live.lock().await;
        slot.touch();
        let (mut live, is_new) = match kept.take().and_then(|mut live| live.is_there().then_some(live)) {
            Some(live) => (live, false),
            None => (Live::start(launch).await?, true),
        };
        let ended = live.run(input).await?;
        slot.touch();
        if ended.is_alive {
            *kept = Some(live);
            drop(kept);
            if is_new {
                tokio::spawn(end_when_idle(Arc::downgrade(self), session.clone(), self.idle));
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
            // Whoever holds a slot besides the map is at work in it, or about to be.
            let free = kept.iter().filter(|(_, slot)| Arc::strong_count(slot) == 1);
            let oldest = free.min_by_key(|(_, slot)| slot.used()).map(|(key, _)| key.clone());
            let Some(oldest) = oldest else {
                let message = format!("all {} sessions for code are at work: try again later", self.limit);
                return Err(Error::new(ErrorKind::RateLimited, message));
            };
            kept.remove(&oldest);
        }
        let slot = Arc::new(Slot { live: tokio::sync::Mutex::new(None), used: Mutex::new(Instant::now()) });
        kept.insert(session.clone(), slot.clone());
        Ok(slot)
    }

    /// Ends a session that was not used for long. Says when to look again.
    fn end_if_idle(&self, session: &SessionKey) -> Option<Instant> {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        let slot = kept.get(session)?;
        let until = slot.used() + self.idle;
        if Arc::strong_count(slot) > 1 {
            return Some(Instant::now() + self.idle);
        }
        if until > Instant::now() {
            return Some(until);
        }
        kept.remove(session);
        None
    }
}

async fn end_when_idle(sessions: Weak<Sessions>, session: SessionKey, idle: Duration) {
    let mut until = Instant::now() + idle;
    loop {
        tokio::time::sleep_until(until.into()).await;
        let Some(sessions) = sessions.upgrade() else { return };
        match sessions.end_if_idle(&session) {
            Some(later) => until = later,
            None => return,
        }
    }
}
