//! A run's way to its session: events are made durable, then handed on.

use std::future::poll_fn;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};

use futures::TryFutureExt;
use smallvec::SmallVec;
use tokio::sync::Notify;
use umbel_core::session::without_temp;
use umbel_core::store::{Acquired, Entries};
use umbel_core::{
    Answer, Content, ContentsView, Emitted, Error, ErrorKind, Event, EventId, Extensions, History, Interrupt,
    Journal, Lease, List, LogEntry, Outcome, Piece, Replay, Result, Run, RunConfig, RunStep, RunValues,
    SessionKey, State, Versions, Work,
};

use super::Shared;
use super::hot::HotSession;
use super::outlet::{Outlet, Said};
use crate::onion::{self, Onion};
use crate::team::Place;

/// The journal of one run.
pub(crate) struct Recorder {
    pub(crate) shared: Arc<Shared>,
    pub(crate) config: Arc<RunConfig>,
    /// That of the run that started this one, if one did: it counts the model calls.
    above: Option<Arc<dyn Journal>>,
    model_calls: AtomicU32,
    /// To the reader, who holds the recorder for its sake.
    pub(crate) outlet: Outlet,
    inner: Mutex<Inner>,
    /// What the run carries along.
    values: RunValues,
    /// Whether anything is pending; changed under the lock.
    is_behind: AtomicBool,
    /// Told when a write is done and the next may begin.
    written: Notify,
}

struct Inner {
    /// There from the first look at the session until the run ends.
    hot: Option<Box<HotSession>>,
    /// Not yet written: an event that waits for the next one, and what belongs to it.
    pending: Entries,
    /// What the run must remember, to go with what is written next.
    notes: Vec<RunStep>,
    /// What readers see of events that are not yet handed on, where it is not the event itself.
    views: Vec<(EventId, Option<Arc<Event>>)>,
    interrupts: Vec<Interrupt>,
    writer: Turn,
    /// Someone waits for the turn to write.
    awaited: bool,
    /// A handler failed on an event: it would on the next one too.
    refused: bool,
    /// Why the run cannot go on.
    unrecoverable: Option<Error>,
}

/// Whose turn it is to write. There is one writer, so that writes keep their order.
enum Turn {
    /// The run has not begun, or has ended.
    Nobody,
    /// Something is being written.
    Taken,
    /// A write was cut short: nobody knows whether it was done.
    Lost(Writer),
    /// The next may write.
    Free(Writer),
}

struct Writer {
    lease: Lease,
    versions: Versions,
}

impl Inner {
    /// Takes in what an event asks people.
    fn take_questions(&mut self, event: &Event, steps: &[RunStep]) {
        if event.long_running().is_empty() {
            return;
        }
        // Its answer goes on with this run, be it in this process or in another one, which reads the records.
        self.hot().trail();
        self.hot().note_questions(event);
        for step in steps {
            if let RunStep::Asked { interrupts } = step {
                self.hot().asked(interrupts);
            }
        }
        let known = std::mem::take(&mut self.interrupts);
        let is_new = |asked: &&Interrupt| known.iter().all(|known| known.id != asked.id);
        let asked: Vec<Interrupt> = self.hot().open().iter().filter(is_new).cloned().collect();
        self.interrupts = known;
        self.interrupts.extend(asked);
    }

    fn hot(&mut self) -> &mut HotSession {
        self.hot.get_or_insert_default()
    }
}

impl Recorder {
    pub(crate) fn new(shared: Arc<Shared>, config: Arc<RunConfig>, above: Option<Arc<dyn Journal>>) -> Self {
        let inner = Inner {
            hot: None,
            pending: Entries::new(),
            notes: Vec::new(),
            views: Vec::new(),
            interrupts: Vec::new(),
            writer: Turn::Nobody,
            awaited: false,
            refused: false,
            unrecoverable: None,
        };
        Self {
            shared,
            config,
            above,
            model_calls: AtomicU32::new(0),
            outlet: Outlet::default(),
            inner: Mutex::new(inner),
            values: RunValues::default(),
            is_behind: AtomicBool::new(false),
            written: Notify::new(),
        }
    }

    /// Takes in values that the run which started this one hands down.
    pub(crate) fn inherit(&self, extensions: &Extensions) {
        self.values.inherit(extensions);
    }

    /// Takes what is kept of the session.
    pub(crate) fn look_at(&self, key: &SessionKey) {
        let kept = self.shared.hot.take(key);
        self.lock().hot = kept;
    }

    /// What is known of the session.
    pub(crate) fn versions(&self) -> Versions {
        self.lock().hot.as_ref().map(|hot| hot.versions).unwrap_or_default()
    }

    /// Whether a handler failed on an event.
    pub(crate) fn is_refused(&self) -> bool {
        self.lock().refused
    }

    /// Brings the session up to date before the run begins.
    pub(crate) fn take_in(&self, news: umbel_core::store::News) {
        self.lock().hot().take_in(news);
    }

    /// Forgets what was kept of a session that is not there any more.
    pub(crate) fn forget(&self) {
        self.lock().hot = None;
    }

    /// The run has begun: it has the lease, and its first event is written.
    pub(crate) fn begin(&self, acquired: Acquired, event: Arc<Event>) {
        let Acquired { lease, news, versions } = acquired;
        let mut inner = self.lock();
        let hot = inner.hot();
        hot.take_in(news);
        let answers = event.responses().next().is_some();
        hot.push(event);
        hot.started();
        if answers {
            self.go_on(&mut inner);
        }
        inner.writer = Turn::Free(Writer { lease, versions });
    }

    /// The run goes on with what is in the log: it has the lease, and that it goes on is written.
    pub(crate) fn begin_again(&self, lease: Lease, versions: Versions, step: &Arc<RunStep>) {
        let mut inner = self.lock();
        let at = inner.hot().events.len();
        inner.hot().remember(step, at);
        self.go_on(&mut inner);
        inner.writer = Turn::Free(Writer { lease, versions });
    }

    /// Takes in what the runs left that this one goes on with.
    fn go_on(&self, inner: &mut Inner) {
        let hot = inner.hot();
        let Some(trail) = hot.last_run().cloned() else { return };
        for (_, step) in &trail.records {
            self.restore(step);
        }
        let counts =
            |(at, asked, _): &&(usize, Interrupt, Answer)| trail.still_counts(&hot.events, *at, asked);
        let (given, settled): (Vec<_>, Vec<_>) = trail.answers.iter().partition(counts);
        let given = given.into_iter().map(|(_, asked, answer)| (asked.clone(), answer.clone()));
        self.values.give_answers(given.collect());
        self.values.give_settled(settled.into_iter().map(|(_, asked, _)| asked.clone()).collect());
        self.values.set_replay(Replay { from: trail.from, records: trail.records });
        inner.interrupts = trail.open;
    }

    /// Takes in what a handler left in the run that this one goes on with.
    pub(super) fn restore(&self, step: &RunStep) {
        match step {
            RunStep::Edited { edited } => {
                self.values.restore_edits(Arc::new(edited.source()), edited.edits.clone());
            }
            RunStep::Kept { kept } => self.values.keep(kept.key.clone(), kept.value.clone()),
            _ => {}
        }
    }

    /// Says why the run cannot go on.
    pub(crate) fn give_up(&self, error: Error) {
        self.lock().unrecoverable = Some(error);
    }

    /// Why the run cannot go on, if it cannot.
    pub(crate) fn take_unrecoverable(&self) -> Option<Error> {
        self.lock().unrecoverable.take()
    }

    /// What is known of the session.
    pub(crate) fn session<T>(&self, look: impl FnOnce(&HotSession) -> T) -> T {
        look(self.lock().hot())
    }

    /// The lease, once there is one.
    pub(crate) fn lease(&self) -> Option<Lease> {
        match &self.lock().writer {
            Turn::Free(writer) | Turn::Lost(writer) => Some(writer.lease.clone()),
            _ => None,
        }
    }

    /// Waits for the turn to write. `None` if the run has not begun or has ended.
    async fn turn(&self) -> Option<(Writing<'_>, Entries)> {
        loop {
            let written = self.written.notified();
            if let Some(turn) = self.try_turn() {
                return turn;
            }
            written.await;
        }
    }

    /// The turn to write, unless someone else has it.
    fn try_turn(&self) -> Option<Option<(Writing<'_>, Entries)>> {
        let mut inner = self.lock();
        match std::mem::replace(&mut inner.writer, Turn::Taken) {
            Turn::Free(writer) => {
                let entries = self.take_pending(&mut inner);
                Some(Some((Writing { recorder: self, writer: Some(writer), lost: false }, entries)))
            }
            Turn::Lost(writer) => {
                let writing = Writing { recorder: self, writer: Some(writer), lost: true };
                Some(Some((writing, Entries::new())))
            }
            Turn::Nobody => {
                inner.writer = Turn::Nobody;
                Some(None)
            }
            Turn::Taken => {
                inner.awaited = true;
                None
            }
        }
    }

    /// Gives the turn back.
    fn pass(&self, writer: Turn) {
        let mut inner = self.lock();
        inner.writer = writer;
        let awaited = std::mem::take(&mut inner.awaited);
        drop(inner);
        if awaited {
            self.written.notify_waiters();
        }
    }

    /// Ends the run: writes what is left and the outcome, gives the lease back and the session away.
    ///
    /// The session is `None` if what is known of it may no longer be what is stored.
    pub(crate) async fn end(&self, outcome: &Outcome) -> (Result<()>, Option<Box<HotSession>>) {
        let Some(Released { result, events, lost }) = self.release(outcome).await else {
            return (Ok(()), None);
        };
        let versions = match result {
            Ok(versions) => versions,
            Err(error) => return (Err(error), None),
        };
        self.deliver(events).await;
        let mut hot = self.lock().hot.take();
        if let Some(hot) = &mut hot {
            hot.versions = versions;
            hot.ended(outcome);
        }
        (Ok(()), hot.filter(|_| !lost))
    }

    /// The last write. `None` if the run has not begun or has ended.
    fn release(&self, outcome: &Outcome) -> Work<'_, Option<Released>> {
        let record = LogEntry::from(RunStep::Ended { outcome: outcome.clone() });
        if !self.shared.services.sessions.is_immediate() || !matches!(self.lock().writer, Turn::Free(_)) {
            return Work::later(self.release_later(record));
        }
        let Some(Some((mut writing, mut entries))) = self.try_turn() else { return Work::done(None) };
        let events = events_of(&entries);
        entries.push(record);
        let Some(Writer { lease, versions }) = writing.writer.take() else { return Work::done(None) };
        let released = self.shared.services.sessions.release(&lease, versions, entries).try_now();
        self.pass(Turn::Nobody);
        let result = released.unwrap_or_else(|_| Err(not_immediate()));
        Work::done(Some(Released { result, events, lost: false }))
    }

    async fn release_later(&self, record: LogEntry) -> Option<Released> {
        let (mut writing, mut entries) = self.turn().await?;
        let events = events_of(&entries);
        entries.push(record);
        let lost = writing.lost;
        let result = writing.release(entries).await;
        self.pass(Turn::Nobody);
        Some(Released { result, events, lost })
    }

    /// Questions that the run leaves open, taken out.
    pub(crate) fn take_interrupts(&self) -> Vec<Interrupt> {
        std::mem::take(&mut self.lock().interrupts)
    }

    /// Writes at once and puts the event on offer, if it is one event, the turn is free and nothing else is on offer.
    fn write_now(&self) -> Option<Result<u64>> {
        if self.outlet.is_full() {
            return None;
        }
        let mut inner = self.lock();
        let mut events = events_of(&inner.pending);
        let event = events.pop().filter(|_| events.is_empty())?;
        if !matches!(inner.writer, Turn::Free(_)) {
            return None;
        }
        let Turn::Free(mut writer) = std::mem::replace(&mut inner.writer, Turn::Taken) else { return None };
        let entries = self.take_pending(&mut inner);
        drop(inner);
        let result =
            match self.shared.services.sessions.append(&writer.lease, writer.versions, entries).try_now() {
                Ok(appended) => appended,
                Err(_) => Err(not_immediate()),
            };
        if let Ok(versions) = &result {
            writer.versions = *versions;
        }
        self.pass(Turn::Free(writer));
        Some(result.map(|_| self.outlet.offer(event)))
    }

    async fn write(&self) -> Result<()> {
        let Some((mut writing, entries)) = self.turn().await else {
            return Err(Error::new(ErrorKind::Other, "the run has ended: nothing can be emitted any more"));
        };
        if writing.lost {
            return Err(Error::new(
                ErrorKind::Store,
                "a write of this run was cut short: the run cannot go on",
            ));
        }
        let events = events_of(&entries);
        if !entries.is_empty() {
            writing.append(entries).await?;
        }
        writing.done();
        self.deliver(events).await;
        Ok(())
    }

    /// Puts all on offer before it waits, so that they leave in the order in which they were stored.
    fn deliver(&self, events: Events) -> impl Future<Output = ()> {
        let seen = events.into_iter().filter_map(|event| self.seen(event));
        let last = seen.map(|event| self.outlet.offer(event)).last();
        poll_fn(move |cx| last.map_or(Poll::Ready(()), |ticket| self.outlet.poll_taken(ticket, cx)))
    }

    /// What readers see of an event that was stored.
    fn seen(&self, event: Arc<Event>) -> Option<Arc<Event>> {
        let views = &mut self.lock().views;
        match views.iter().position(|(id, _)| *id == event.id) {
            Some(place) => views.swap_remove(place).1,
            None => Some(event),
        }
    }

    /// Gives an event what each one has.
    pub(crate) fn stamp(&self, event: &mut Event) {
        if event.timestamp == 0.0 {
            event.timestamp = self.shared.services.clock.now();
        }
        if event.id.is_empty() {
            event.id = self.shared.services.ids.event();
        }
        if !self.config.custom_metadata.is_empty() {
            let metadata = event.meta_mut().custom_metadata.get_or_insert_default();
            for (key, value) in &self.config.custom_metadata {
                metadata.entry(key.clone()).or_insert_with(|| value.clone());
            }
        }
    }

    /// Lets the handlers see an event, then hands it on as they want it to be seen.
    async fn emit_seen(
        &self,
        run: &Run,
        onion: &Onion,
        event: Event,
        steps: Vec<RunStep>,
    ) -> Result<Emitted> {
        let refused = |_: &Error| self.lock().refused = true;
        let event = onion::on_event(&onion.on_event, run, event).await.inspect_err(refused)?;
        if event.is_partial() {
            let event = Arc::new(event);
            return match self.view(run, onion, &event).await.inspect_err(refused)? {
                Some(seen) => self.show(seen).await.map(|_| event.into()),
                None => Ok(event.into()),
            };
        }
        let mut failure = None;
        if !onion.on_output.is_empty() {
            // Asked before the event is taken in, since whoever writes next hands on all that is there. If it fails,
            // the event is stored and nobody sees it.
            let whole = Arc::new(without_temp(event.clone()));
            let seen = self.view(run, onion, &whole).await.inspect_err(refused);
            let seen = seen.unwrap_or_else(|error| {
                failure = Some(error);
                None
            });
            if seen.as_ref().is_none_or(|seen| !Arc::ptr_eq(seen, &whole)) {
                self.lock().views.push((event.id.clone(), seen));
            }
        }
        let holds = holds(run, &event, &steps);
        let event = self.take_in_event(event, steps);
        if let Some(error) = failure {
            return Err(error);
        }
        if !holds {
            self.write().await?;
        }
        Ok(event.into())
    }

    /// What readers are to see of an event.
    async fn view(&self, run: &Run, onion: &Onion, event: &Arc<Event>) -> Result<Option<Arc<Event>>> {
        onion::on_output(&onion.on_output, run, event.clone()).await
    }

    /// Shows a preview and waits until it is taken. An event that was held back came first.
    async fn show(&self, event: Arc<Event>) -> Result<Emitted> {
        self.flush().await?;
        self.outlet.send(event.clone()).await;
        Ok(event.into())
    }

    /// Writes an event, unless it is a preview, and waits until it is taken.
    async fn hand_on(&self, event: Event, steps: Vec<RunStep>) -> Result<Emitted> {
        if event.is_partial() {
            return self.show(Arc::new(event)).await;
        }
        let event = self.take_in_event(event, steps);
        self.write().await?;
        Ok(event.into())
    }

    /// Takes an event into what is known of the session, and marks it to be written.
    fn take_in_event(&self, event: Event, steps: Vec<RunStep>) -> Arc<Event> {
        let mut inner = self.lock();
        if let Some(delta) = event.state_delta() {
            inner.hot().state.apply(delta);
        }
        let event = Arc::new(without_temp(event));
        inner.take_questions(&event, &steps);
        inner.hot().events.push(event.clone());
        inner.pending.push(LogEntry::Event(event.clone()));
        self.is_behind.store(true, Ordering::Release);
        if !steps.is_empty() {
            inner.pending.extend(steps.into_iter().map(LogEntry::from));
        }
        event
    }

    fn take_pending(&self, inner: &mut Inner) -> Entries {
        self.is_behind.store(false, Ordering::Release);
        let mut entries = std::mem::take(&mut inner.pending);
        if !inner.notes.is_empty() {
            // What was noted came before what is emitted now, as far as whoever goes on with the run is concerned.
            let notes = std::mem::take(&mut inner.notes);
            let at = inner.hot().events.len() - events_of(&entries).len();
            for (place, step) in notes.into_iter().enumerate() {
                let step = Arc::new(step);
                inner.hot().remember(&step, at);
                entries.insert(place, LogEntry::Record(step));
            }
        }
        entries
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whether an event waits for the next write: the last word of a run shares its write with the outcome.
fn holds(run: &Run, event: &Event, steps: &[RunStep]) -> bool {
    steps.is_empty()
        && run.is_top()
        && !event.is_partial()
        && event.is_final()
        && event.calls().next().is_none()
}

/// What a store is told that said it answers at once, and did not.
pub(crate) fn not_immediate() -> Error {
    Error::new(ErrorKind::Store, "a store that answers at once did not")
}

/// What came of the last write.
struct Released {
    result: Result<Versions>,
    /// What was written with it, to be handed on.
    events: Events,
    /// A write before it was cut short.
    lost: bool,
}

/// Events of one write; seldom more than two.
type Events = SmallVec<[Arc<Event>; 2]>;

/// The turn to write. Whoever is cut short in the middle leaves word that it was.
struct Writing<'a> {
    recorder: &'a Recorder,
    writer: Option<Writer>,
    lost: bool,
}

impl Writing<'_> {
    async fn append(&mut self, entries: Entries) -> Result<()> {
        let Some(writer) = &mut self.writer else { return Ok(()) };
        let store = &self.recorder.shared.services.sessions;
        let appended = store.append(&writer.lease, writer.versions, entries).await;
        if appended.is_err() {
            // Nothing was written, so the lease can still be given back.
            self.recorder.pass(Turn::Free(Writer { lease: writer.lease.clone(), versions: writer.versions }));
            self.writer = None;
        }
        if let (Ok(versions), Some(writer)) = (&appended, &mut self.writer) {
            writer.versions = *versions;
        }
        appended.map(|_| ())
    }

    async fn release(&mut self, entries: Entries) -> Result<Versions> {
        let Some(Writer { lease, mut versions }) = self.writer.take() else { return Ok(Versions::default()) };
        let store = &self.recorder.shared.services.sessions;
        if self.lost {
            let news = store.news(&lease.key, versions).await?;
            versions = news.map_or(versions, |news| news.versions);
        }
        store.release(&lease, versions, entries).await
    }

    /// Gives the turn to the next.
    fn done(mut self) {
        if let Some(writer) = self.writer.take() {
            self.recorder.pass(Turn::Free(writer));
        }
    }
}

impl Drop for Writing<'_> {
    fn drop(&mut self) {
        if let Some(writer) = self.writer.take() {
            self.recorder.pass(Turn::Lost(writer));
        }
    }
}

fn events_of(entries: &[LogEntry]) -> Events {
    let event = |entry: &LogEntry| match entry {
        LogEntry::Event(event) => Some(event.clone()),
        LogEntry::Record(_) => None,
    };
    entries.iter().filter_map(event).collect()
}

impl Journal for Recorder {
    fn emit<'a>(&'a self, run: &'a Run, mut event: Event, steps: Vec<RunStep>) -> Work<'a, Result<Emitted>> {
        self.stamp(&mut event);
        let onion = match self.shared.team.place(run.node_id()) {
            Ok(place) => &place.onion,
            Err(error) => return Work::done(Err(error)),
        };
        if !onion.on_event.is_empty() || !onion.on_output.is_empty() {
            return Work::later(self.emit_seen(run, onion, event, steps));
        }
        if event.is_partial() {
            let event = Arc::new(event);
            if self.is_behind.load(Ordering::Acquire) {
                return Work::later(self.show(event));
            }
            let ticket = self.outlet.offer_preview(Said::Event(event.clone()));
            return Work::done(Ok(Emitted { event, ticket }));
        }
        if holds(run, &event, &steps) {
            return Work::done(Ok(self.take_in_event(event, steps).into()));
        }
        if !self.shared.services.sessions.is_immediate() {
            return Work::later(self.hand_on(event, steps));
        }
        let event = self.take_in_event(event, steps);
        match self.write_now() {
            Some(written) => Work::done(written.map(|ticket| Emitted { event, ticket: Some(ticket) })),
            None => Work::later(async move {
                self.write().await?;
                Ok(event.into())
            }),
        }
    }

    fn show<'a>(&'a self, run: &'a Run, piece: Piece) -> Work<'a, Result<()>> {
        let is_plain = |place: &Place| place.onion.on_event.is_empty() && place.onion.on_output.is_empty();
        if self.is_behind.load(Ordering::Acquire)
            || !self.shared.team.place(run.node_id()).is_ok_and(is_plain)
        {
            let event = piece.into_event(run.id().clone());
            return Work::later(run.emit(event).map_ok(drop));
        }
        match self.outlet.offer_preview(Said::Piece(piece)) {
            None => Work::done(Ok(())),
            Some(ticket) => Work::later(poll_fn(move |cx| self.outlet.poll_taken(ticket, cx).map(Ok))),
        }
    }

    fn poll_taken(&self, ticket: u64, cx: &mut Context<'_>) -> Poll<()> {
        self.outlet.poll_taken(ticket, cx)
    }

    fn record(&self, steps: Vec<RunStep>) -> Work<'_, Result<()>> {
        let records: Entries = steps.into_iter().map(LogEntry::from).collect();
        let mut inner = self.lock();
        inner.pending.extend(records);
        self.is_behind.store(!inner.pending.is_empty(), Ordering::Release);
        drop(inner);
        Work::later(self.write())
    }

    fn flush(&self) -> Work<'_, Result<()>> {
        if !self.is_behind.load(Ordering::Acquire) {
            return Work::done(Ok(()));
        }
        Work::later(self.write())
    }

    fn note(&self, step: RunStep) {
        self.lock().notes.push(step);
    }

    fn values(&self) -> &RunValues {
        &self.values
    }

    fn open_questions(&self) -> Vec<Interrupt> {
        self.lock().interrupts.clone()
    }

    fn count_model_call(&self) -> u32 {
        match &self.above {
            Some(above) => above.count_model_call(),
            None => self.model_calls.fetch_add(1, Ordering::Relaxed),
        }
    }

    fn state(&self) -> State {
        self.lock().hot().state.clone()
    }

    fn events(&self) -> List<Arc<Event>> {
        self.lock().hot().events.clone()
    }

    fn contents(&self, view: &ContentsView, input: Option<&Arc<Content>>) -> History {
        self.lock().hot().contents(view, input)
    }
}
