//! What a run and its session have used so far, and how each answer gets there.
//!
//! The book is one for a run and all that works for it. It has a page per session: agents that are called as tools work in
//! sessions of their own. Each log keeps its own page and those of the sessions that work for it, written with the events
//! that follow the answers. So whoever goes on after a crash knows exactly what is in the logs: of each page the log counts
//! that knows most.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use futures::StreamExt;
use serde::{Deserialize, Serialize};
use smol_str::SmolStr;
use umbel_core::event::USER;
use umbel_core::{
    Chunk, ChunkStream, Error, ErrorKind, Event, Model, Response, Result, Run, Source, State, Usage,
};

use super::prices::Prices;
use super::used::{Stored, Tally, Used};

/// Where the session and the run keep it.
pub(crate) const KEY: &str = "_umbel:usage";

/// What a run and its session have used so far.
#[derive(Debug, Default)]
pub(crate) struct Book(Mutex<Inner>);

#[derive(Debug, Default)]
struct Inner {
    prices: Option<Arc<Prices>>,
    /// The session that all began with.
    session: Option<SmolStr>,
    /// What it had used before.
    before: Used,
    /// By session.
    pages: BTreeMap<SmolStr, Page>,
}

/// What was used in one session.
#[derive(Debug, Default)]
struct Page {
    used: Used,
    /// Its own log was looked at.
    opened: bool,
    /// Something that it keeps is not yet in its log.
    behind: bool,
}

/// What a run keeps.
#[derive(Default, Serialize, Deserialize)]
#[serde(default)]
struct Kept {
    before: Used,
    pages: BTreeMap<SmolStr, Used>,
}

impl Book {
    /// The book of a run, if it has one.
    pub(crate) fn of(run: &Run) -> Option<Arc<Self>> {
        run.values().extension()
    }

    /// Has a run keep a book, and takes in what is in its log. The first prices that are given count.
    pub(crate) fn open(run: &Run, prices: Option<&Arc<Prices>>) -> Result<Arc<Self>> {
        let book = Self::of(run).unwrap_or_else(|| {
            let book = run.values().get_or_insert_with(Self::default);
            // The runs that it starts share it.
            run.values().insert(book.clone());
            book
        });
        let mut inner = book.lock();
        if inner.prices.is_none() {
            inner.prices = prices.cloned();
        }
        let session = session_of(run);
        if inner.pages.get(&session).is_none_or(|page| !page.opened) {
            inner.take_in(run, session)?;
        }
        drop(inner);
        Ok(book)
    }

    /// What the run has used, with all that works for it.
    pub(crate) fn run(&self) -> Used {
        self.lock().run()
    }

    /// What its session has used.
    pub(crate) fn session(&self) -> Used {
        self.lock().total()
    }

    /// Whether it is known what a model costs.
    pub(crate) fn has_price(&self, model: &str) -> bool {
        self.lock().prices.as_ref().is_some_and(|prices| prices.price(model).is_some())
    }

    /// Writes down what was not written yet with an event that is about to be stored.
    pub(crate) fn store(&self, run: &Run, event: &mut Event) -> Result<()> {
        if event.is_partial() {
            return Ok(());
        }
        let session = session_of(run);
        let mut inner = self.lock();
        if !inner.pages.get_mut(&session).is_some_and(|page| std::mem::take(&mut page.behind)) {
            return Ok(());
        }
        let kept = inner.kept(&session);
        let stored = inner.stored(&session, &kept);
        drop(inner);
        run.keep(KEY, &kept)?;
        let value = serde_json::to_value(&stored).map_err(|e| {
            Error::new(ErrorKind::Other, "what was used cannot be written down").with_source(e)
        })?;
        event.actions_mut().set_state(KEY, value);
        Ok(())
    }

    /// Has the run remember what was used, with whatever is written next. The next event tells it in the state.
    pub(crate) fn keep(&self, run: &Run) -> Result<()> {
        let kept = self.lock().kept(&session_of(run));
        run.keep(KEY, &kept)
    }

    /// Writes down what no event carried: the last attempts of a run that failed, or a summary that came to nothing.
    pub(crate) async fn settle(&self, run: &Run) -> Result<()> {
        // Nobody says it, so that nobody has the conversation for it.
        let source = Source { author: USER.into(), ..(**run.source()).clone() };
        let mut event = Event::new(run.id().clone(), Arc::new(source));
        self.check(run)?;
        self.store(run, &mut event)?;
        if event.actions.is_some() {
            run.emit(event).await?;
        }
        Ok(())
    }

    /// Looks whether the state tells what the book does: an event that carried it may never have come to the log, or one
    /// of another agent that carried less came behind it.
    fn check(&self, run: &Run) -> Result<()> {
        let session = session_of(run);
        let told = Stored::read(&run.state())?;
        let mut inner = self.lock();
        let stored = inner.stored(&session, &inner.kept(&session));
        // A run that has used nothing leaves what the one before it told.
        if stored.run != Used::default()
            && told.as_ref() != Some(&stored)
            && let Some(page) = inner.pages.get_mut(&session)
        {
            page.behind = true;
        }
        Ok(())
    }

    /// Takes in what a session that works for the run has used, which may be done since a crash.
    pub(crate) fn take_in_done(&self, state: &State) -> Result<()> {
        if let Some(stored) = Stored::read(state)? {
            self.lock().turn_to(stored.pages);
        }
        Ok(())
    }

    /// Adds to what a session has used, in the place of what was added for the same answer before.
    fn post(&self, session: &SmolStr, model: &SmolStr, before: &Tally, now: &Tally) {
        let mut inner = self.lock();
        let page = inner.pages.entry(session.clone()).or_default();
        let tally = page.used.tally(model);
        tally.subtract(before);
        tally.add(now);
        inner.mark(session);
    }

    /// What an answer took of which the model told that.
    fn priced(&self, model: &str, usage: &Usage) -> Tally {
        let told = Tally::told(usage);
        match self.lock().prices.as_ref().and_then(|prices| prices.price(model)) {
            Some(price) => Tally { known_cost: price.cost_of(&told), ..told },
            None => Tally { unpriced: 1, ..told },
        }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Inner {
    /// Takes in what is in the log of a session.
    fn take_in(&mut self, run: &Run, session: SmolStr) -> Result<()> {
        let kept: Option<Kept> = run.kept(KEY)?;
        if self.session.is_none() {
            self.session = Some(session.clone());
            self.before = match &kept {
                Some(kept) => kept.before.clone(),
                None => Stored::read(&run.state())?.unwrap_or_default().session,
            };
        }
        let page = self.pages.entry(session).or_default();
        page.opened = true;
        // The event that was to tell it in the state may not have come to the log.
        page.behind = kept.is_some();
        self.turn_to(kept.unwrap_or_default().pages);
        Ok(())
    }

    /// Takes in pages of a log, where it knows more.
    fn turn_to(&mut self, pages: BTreeMap<SmolStr, Used>) {
        for (session, used) in pages {
            let page = self.pages.entry(session.clone()).or_default();
            if used.is_beyond(&page.used) {
                page.used = used;
                self.mark(&session);
            }
        }
    }

    /// A session has used something: that has to be written there, and wherever it works for.
    fn mark(&mut self, session: &str) {
        let above = self.pages.iter_mut().filter(|(above, _)| works_for(session, above));
        above.for_each(|(_, page)| page.behind = true);
    }

    /// What the log of a session keeps: its page, and those of the sessions that work for it.
    fn kept(&self, session: &SmolStr) -> Kept {
        let pages = self.pages.iter().filter(|(below, _)| works_for(below, session));
        let pages = pages.map(|(below, page)| (below.clone(), page.used.clone())).collect();
        let before = if self.is_first(session) { self.before.clone() } else { Used::default() };
        Kept { before, pages }
    }

    /// What its state tells.
    fn stored(&self, session: &SmolStr, kept: &Kept) -> Stored {
        let mut run = Used::default();
        kept.pages.values().for_each(|used| run.add(used));
        let mut total = kept.before.clone();
        total.add(&run);
        let pages = if self.is_first(session) { BTreeMap::new() } else { kept.pages.clone() };
        Stored { run, session: total, pages }
    }

    /// Whether all began with it.
    fn is_first(&self, session: &SmolStr) -> bool {
        self.session.as_ref() == Some(session)
    }

    fn run(&self) -> Used {
        let mut run = Used::default();
        self.pages.values().for_each(|page| run.add(&page.used));
        run
    }

    fn total(&self) -> Used {
        let mut total = self.before.clone();
        total.add(&self.run());
        total
    }
}

/// Whether a session is that one, or works for one of its calls: then its name begins with that one's.
fn works_for(session: &str, above: &str) -> bool {
    session.strip_prefix(above).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

fn session_of(run: &Run) -> SmolStr {
    run.session_key().id().into()
}

/// Has the run's book, if it has one, know what a model's answer takes. Each attempt to get an answer is seen by itself.
pub(crate) fn metered<'a>(run: &Run, model: &dyn Model, chunks: ChunkStream<'a>) -> ChunkStream<'a> {
    let Some(book) = Book::of(run) else { return chunks };
    let mut meter =
        Meter { book, session: session_of(run), model: model.name().into(), posted: None, whole: false };
    meter.book.post(&meter.session, &meter.model, &Tally::default(), &Tally { calls: 1, ..Tally::default() });
    Box::pin(chunks.inspect(move |chunk| meter.see(chunk)))
}

/// Watches one attempt.
struct Meter {
    book: Arc<Book>,
    session: SmolStr,
    model: SmolStr,
    /// What was added for the present answer so far.
    posted: Option<Tally>,
    /// A whole message came, with what it took.
    whole: bool,
}

impl Meter {
    fn see(&mut self, chunk: &Result<Chunk>) {
        match chunk {
            Ok(Chunk::Restart) => self.next_answer(),
            Ok(Chunk::Delta(piece)) => self.take(piece.usage()),
            Ok(Chunk::Complete(message)) => {
                if self.whole {
                    self.next_answer();
                }
                self.take(message.usage());
                self.whole = is_whole(message) && message.usage().is_some();
            }
            Ok(_) => self.take(None),
            Err(_) => {}
        }
    }

    /// What was added stays: it was paid for.
    fn next_answer(&mut self) {
        (self.posted, self.whole) = (None, false);
    }

    /// Takes in a piece of the answer. What is told last counts.
    fn take(&mut self, told: Option<&Usage>) {
        let now = match (told, &self.posted) {
            (Some(usage), _) => self.book.priced(&self.model, usage),
            (None, None) => Tally { unreported: 1, ..Tally::default() },
            (None, Some(_)) => return,
        };
        let before = self.posted.replace(now).unwrap_or_default();
        if before != now {
            self.book.post(&self.session, &self.model, &before, &now);
        }
    }
}

fn is_whole(message: &Response) -> bool {
    message.partial != Some(true)
}
