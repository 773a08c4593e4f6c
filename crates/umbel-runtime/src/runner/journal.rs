//! A run's way to its session: events are made durable, then handed on.

use std::future::poll_fn;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};

use futures::TryFutureExt;
use futures::future::FutureExt;
use smallvec::SmallVec;
use umbel_core::session::without_temp;
use umbel_core::store::{Acquired, Entries, News, refuse_nul};
use umbel_core::{
    Answer, CallId, Content, ContentsView, Emitted, Error, ErrorKind, Event, EventId, Extensions, History,
    Interrupt, Journal, Lease, List, LogEntry, Outcome, Piece, Replay, Result, Run, RunConfig, RunStep,
    RunValues, SessionKey, SpawnOnDrop, State, StateScope, Versions, Work,
};

use super::Shared;
use super::batch::{
    self, Appended, Batch, BatchContents, BatchResult, Events, Failure, InFlight, SharedAppend,
    WrittenEntries,
};
use super::hot::HotSession;
use super::outlet::{Outlet, Said};
use crate::onion::{self, Onion};
use crate::team::Place;

/// The slot of a run that holds no session.
const INACTIVE: usize = usize::MAX;

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
    /// The store has not answered for longer than the run may take.
    is_stalled: AtomicBool,
    /// As long as the run holds its session and gets on, nobody else in this process takes it over.
    active: AtomicUsize,
}

struct Inner {
    /// There from the first look at the session until the run ends.
    hot: Option<Box<HotSession>>,
    /// Not yet written: an event that waits for the next one, and what belongs to it.
    pending: Entries,
    /// Events among them whose `emit` has returned: if their append fails, they wait for the next one.
    held: Events,
    /// What the run must remember, to go with what is written next.
    notes: Vec<Arc<RunStep>>,
    /// Which calls the run began, and what else stands between its events for whoever goes on with it, each with the number of
    /// events before it.
    records: SmallVec<[(usize, Arc<RunStep>); 1]>,
    /// What readers see of events that are not yet handed on, where it is not the event itself.
    views: Vec<(EventId, Option<Arc<Event>>)>,
    interrupts: Vec<Interrupt>,
    /// There from the run's first write to its last.
    writer: Option<Writer>,
    /// The append that the store was given. There is one at a time, so that writes keep their order.
    in_flight: Option<InFlight>,
    /// The append after that one, if somebody waits for it already.
    next: Option<Arc<Batch>>,
    /// Nobody knows what the log holds, or another run has it: nothing can be written any more.
    broken: Option<Failure>,
    /// A handler failed on an event: it would on the next one too.
    refused: bool,
    /// Why the run cannot go on.
    unrecoverable: Option<Error>,
}

/// What a run writes with.
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

    /// Marks records to be written, behind the events that are known.
    fn push_records(&mut self, steps: Vec<RunStep>) {
        let at = self.hot().live().len();
        for step in steps {
            let entry = LogEntry::from(step);
            if let LogEntry::Record(step) = &entry {
                self.records.push((at, step.clone()));
            }
            self.pending.push(entry);
        }
    }

    /// Forgets what calls gave that an event answers.
    fn forget_finished(&mut self, event: &Event) {
        let is_answered = |id: &CallId| event.answered().any(|answered| answered == id);
        self.records.retain(|(_, step)| match &**step {
            RunStep::CallFinished { finished } => !is_answered(&finished.call),
            _ => true,
        });
    }

    /// What readers see of an event that was stored.
    fn seen(&mut self, event: Arc<Event>) -> Option<Arc<Event>> {
        match self.views.iter().position(|(id, _)| *id == event.id) {
            Some(place) => self.views.swap_remove(place).1,
            None => Some(event),
        }
    }
}

impl Recorder {
    pub(crate) fn new(shared: Arc<Shared>, config: Arc<RunConfig>, above: Option<Arc<dyn Journal>>) -> Self {
        let inner = Inner {
            hot: None,
            pending: Entries::new(),
            held: Events::new(),
            notes: Vec::new(),
            records: SmallVec::new(),
            views: Vec::new(),
            interrupts: Vec::new(),
            writer: None,
            in_flight: None,
            next: None,
            broken: None,
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
            is_stalled: AtomicBool::new(false),
            active: AtomicUsize::new(INACTIVE),
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
        inner.writer = Some(self.writer(lease, versions));
    }

    /// The run goes on with what is in the log: it has the lease, and that it goes on is written.
    pub(crate) fn begin_again(&self, lease: Lease, versions: Versions, step: &Arc<RunStep>) {
        let mut inner = self.lock();
        let at = inner.hot().live().len();
        inner.hot().remember(step, at);
        self.go_on(&mut inner);
        inner.writer = Some(self.writer(lease, versions));
    }

    fn writer(&self, lease: Lease, versions: Versions) -> Writer {
        self.active.store(self.shared.active.insert(versions.incarnation), Ordering::Relaxed);
        Writer { lease, versions }
    }

    /// Says that the run does not hold its session any more, or does not get on with it.
    fn deactivate(&self) {
        let slot = self.active.swap(INACTIVE, Ordering::Relaxed);
        if slot != INACTIVE {
            self.shared.active.remove(slot);
        }
    }

    /// Takes in what the runs left that this one goes on with.
    fn go_on(&self, inner: &mut Inner) {
        let hot = inner.hot();
        let Some(trail) = hot.last_run().cloned() else { return };
        for (_, step) in &trail.records {
            self.restore(step);
        }
        let counts =
            |(at, asked, _): &&(usize, Interrupt, Answer)| trail.still_counts(hot.live(), *at, asked);
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
        self.lock().writer.as_ref().map(|writer| writer.lease.clone())
    }

    /// Says that the store has not answered for longer than the run may take. Whoever recovers runs may take it over.
    pub(crate) fn set_stalled(&self) {
        self.deactivate();
        self.is_stalled.store(true, Ordering::Release);
    }

    /// Whether it has not.
    pub(crate) fn is_stalled(&self) -> bool {
        self.is_stalled.load(Ordering::Acquire)
    }

    /// Ends the run: writes what is left and the outcome, gives the lease back and the session away.
    ///
    /// The session is `None` if what is known of it may no longer be what is stored. A run that ended well has failed if nobody
    /// knows whether all that it said is stored; the outcome says so then.
    pub(crate) async fn end(&self, outcome: &mut Outcome) -> (Result<()>, Option<Box<HotSession>>) {
        let last = loop {
            match self.last_write(outcome) {
                Ok(last) => break last,
                Err(append) => SpawnOnDrop::new(append).await,
            }
            self.complete();
        };
        let Some(LastWrite { writer, entries, next, is_sure }) = last else { return (Ok(()), None) };
        let events = events_of(&entries);
        let store = &*self.shared.services.sessions;
        let Writer { lease, versions } = &writer;
        let released = if store.is_immediate() {
            let written = WrittenEntries::new(&entries);
            match store.release(lease, *versions, entries).await {
                Err(error) => Box::pin(batch::verify(store, lease, *versions, &written, error)).await,
                released => released,
            }
        } else {
            Box::pin(batch::release(store, lease, *versions, entries, is_sure)).await
        };
        self.deactivate();
        let (ticket, hot) = match self.ended(released, events, next, outcome) {
            Ok(ended) => ended,
            Err(error) => return (Err(error), None),
        };
        self.taken(ticket).await;
        (Ok(()), hot.filter(|_| is_sure))
    }

    /// Why something that the run said may not be in its log.
    pub(crate) fn broken(&self) -> Option<Error> {
        self.lock().broken.clone().map(Error::from)
    }

    /// Takes in what came of the last write.
    fn ended(
        &self,
        released: Result<Versions>,
        events: Events,
        next: Option<Arc<Batch>>,
        outcome: &Outcome,
    ) -> Result<(Option<u64>, Option<Box<HotSession>>)> {
        let mut inner = self.lock();
        let result = match &released {
            Ok(_) => Ok(self.publish(&mut inner, events)),
            Err(error) => Err(Failure::from(error)),
        };
        if let Some(next) = next {
            next.set_result(result.clone());
        }
        let versions = released?;
        if !inner.records.is_empty() {
            let records = std::mem::take(&mut inner.records);
            inner.hot().remember_all(records);
        }
        let mut hot = inner.hot.take();
        drop(inner);
        if let Some(hot) = &mut hot {
            hot.versions = versions;
            hot.ended(outcome);
        }
        Ok((result.unwrap_or_default(), hot))
    }

    /// What is left to write; the append that is to be waited for first, if one is under way. `None` if the run has not
    /// begun or has ended.
    fn last_write(&self, outcome: &mut Outcome) -> Result<Option<LastWrite>, SharedAppend> {
        let mut inner = self.lock();
        if let Some(in_flight) = &inner.in_flight {
            return Err(in_flight.append.clone());
        }
        let Some(writer) = inner.writer.take() else { return Ok(None) };
        let (mut entries, _) = self.take_pending(&mut inner);
        if let Outcome::Interrupted { interrupts } = outcome {
            // A branch that was dropped may have asked what could not be stored: nobody will be asked that.
            let open = inner.hot().open();
            interrupts.retain(|asked| open.iter().any(|open| open.id == asked.id));
            if interrupts.is_empty() {
                *outcome = Outcome::Finished;
            }
        }
        let is_sure = inner.broken.is_none();
        if let Some(broken) = &inner.broken
            && outcome.is_good()
        {
            *outcome = Outcome::from_error(&Error::from(broken.clone()));
        }
        entries.push(LogEntry::from(RunStep::Ended { outcome: outcome.clone() }));
        Ok(Some(LastWrite { writer, entries, next: inner.next.take(), is_sure }))
    }

    /// Questions that the run leaves open, taken out.
    pub(crate) fn take_interrupts(&self) -> Vec<Interrupt> {
        std::mem::take(&mut self.lock().interrupts)
    }

    /// Writes what is pending, together with what others have queued. Gives the number by which to ask whether the last
    /// event of it was taken.
    fn write(&self) -> Work<'_, Result<Option<u64>>> {
        let mut inner = self.lock();
        let batch = match &inner.in_flight {
            Some(_) => inner.next.get_or_insert_default().clone(),
            None => match self.start_append(&mut inner) {
                Ok(result) => return Work::done(result.map_err(Error::from)),
                Err(batch) => batch,
            },
        };
        drop(inner);
        Work::later(self.written(batch))
    }

    /// Hands what is pending to the store, when no append is under way. Gives the result if it is there at once.
    fn start_append(&self, inner: &mut Inner) -> Result<BatchResult, Arc<Batch>> {
        let next = inner.next.take();
        let result = self.append_pending(inner, next.as_ref());
        if let (Some(batch), Ok(result)) = (next, &result) {
            batch.set_result(result.clone());
        }
        result
    }

    fn append_pending(
        &self,
        inner: &mut Inner,
        next: Option<&Arc<Batch>>,
    ) -> Result<BatchResult, Arc<Batch>> {
        if let Some(broken) = inner.broken.clone() {
            inner.pending.clear();
            return Ok(Err(broken));
        }
        let Some(Writer { lease, versions }) = &inner.writer else {
            inner.pending.clear();
            let ended = Error::new(ErrorKind::Other, "the run has ended: nothing can be emitted any more");
            return Ok(Err(Failure::from(&ended)));
        };
        let (lease, versions) = (lease.clone(), *versions);
        let (entries, notes) = self.take_pending(inner);
        if entries.is_empty() {
            return Ok(Ok(None));
        }
        let contents =
            BatchContents { events: events_of(&entries), notes, held: std::mem::take(&mut inner.held) };
        let store = &self.shared.services.sessions;
        if store.is_immediate() {
            let written = WrittenEntries::new(&entries);
            let appended = match store.append(&lease, versions, entries).try_now() {
                Ok(Ok(versions)) => Appended::Stored(versions),
                Ok(Err(error)) => batch::explain(&**store, &lease, versions, &written, error)
                    .now_or_never()
                    .unwrap_or_else(|| Appended::Failed(not_immediate(), None)),
                Err(_) => Appended::Failed(not_immediate(), None),
            };
            return Ok(self.apply(inner, appended, contents));
        }
        let append = batch::append(store.clone(), lease, versions, entries);
        let batch = next.cloned().unwrap_or_default();
        inner.in_flight = Some(InFlight::new(batch.clone(), append, contents));
        Err(batch)
    }

    /// Waits until a batch is written, and sees to it that it is. If the future is dropped, the append goes on.
    async fn written(&self, batch: Arc<Batch>) -> Result<Option<u64>> {
        loop {
            if let Some(result) = batch.result() {
                return result;
            }
            let append = {
                let mut inner = self.lock();
                match &inner.in_flight {
                    Some(in_flight) => in_flight.append.clone(),
                    None => match self.start_append(&mut inner) {
                        Ok(result) => return result.map_err(Error::from),
                        Err(_) => continue,
                    },
                }
            };
            SpawnOnDrop::new(append).await;
            self.complete();
        }
    }

    /// Takes in what came of the append that was under way, once.
    fn complete(&self) {
        let mut inner = self.lock();
        let done = inner.in_flight.as_ref().and_then(|in_flight| in_flight.batch.take_appended());
        if let Some(appended) = done
            && let Some(InFlight { batch, contents, .. }) = inner.in_flight.take()
        {
            batch.set_result(self.apply(&mut inner, appended, contents));
        }
    }

    fn apply(&self, inner: &mut Inner, appended: Appended, contents: BatchContents) -> BatchResult {
        let (error, log) = match appended {
            Appended::Stored(versions) => {
                if let Some(writer) = &mut inner.writer {
                    writer.versions = versions;
                }
                return Ok(self.publish(inner, contents.events));
            }
            Appended::Failed(error, log) => (error, log),
        };
        let failure = Failure::from(&error);
        match log {
            Some(log) => self.roll_back(inner, *log, contents),
            None => inner.broken = Some(failure.clone()),
        }
        Err(failure)
    }

    /// What is known of the session is what is stored, and what waits to be stored. Notes are not lost with an event that
    /// could not be written, nor is an event whose `emit` has returned.
    fn roll_back(&self, inner: &mut Inner, log: News, contents: BatchContents) {
        let BatchContents { events, mut notes, held } = contents;
        let is_lost = |id: &EventId| {
            events.iter().any(|event| event.id == *id) && held.iter().all(|event| event.id != *id)
        };
        inner.views.retain(|(id, _)| !is_lost(id));
        if let Some(writer) = &mut inner.writer {
            writer.versions = log.versions;
        }
        for event in held.iter().rev() {
            inner.pending.insert(0, LogEntry::Event(event.clone()));
        }
        inner.held.insert_many(0, held);
        self.is_behind.store(!inner.pending.is_empty(), Ordering::Release);
        let pending = inner.pending.clone();
        let mut records = std::mem::take(&mut inner.records);
        // Those that are stored are read with the log.
        records.clear();
        let hot = inner.hot();
        let temp = hot.state.scope(StateScope::Temp).clone();
        hot.take_in(log);
        hot.state.replace_scope(StateScope::Temp, temp);
        for entry in pending {
            match entry {
                LogEntry::Event(event) => hot.push(event),
                LogEntry::Record(step) => {
                    if let RunStep::Asked { interrupts } = &*step {
                        hot.asked(interrupts);
                    }
                    records.push((hot.live().len(), step));
                }
            }
        }
        inner.records = records;
        let mut interrupts = std::mem::take(&mut inner.interrupts);
        let open = inner.hot().open();
        interrupts.retain(|asked| open.iter().any(|open| open.id == asked.id));
        inner.interrupts = interrupts;
        notes.append(&mut inner.notes);
        inner.notes = notes;
    }

    /// Puts stored events on offer, so that they leave in the order in which they were stored.
    fn publish(&self, inner: &mut Inner, events: Events) -> Option<u64> {
        events.into_iter().filter_map(|event| inner.seen(event)).map(|event| self.outlet.offer(event)).last()
    }

    /// Done once the event with that number was taken.
    fn taken(&self, ticket: Option<u64>) -> impl Future<Output = ()> {
        poll_fn(move |cx| ticket.map_or(Poll::Ready(()), |ticket| self.outlet.poll_taken(ticket, cx)))
    }

    /// The same after a write.
    async fn written_and_taken(&self, written: Work<'_, Result<Option<u64>>>) -> Result<()> {
        let ticket = written.await?;
        self.taken(ticket).await;
        Ok(())
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
        check_keys(&event)?;
        let holds = holds(run, &event, &steps);
        let event = self.take_in_event(event, steps, holds);
        if let Some(error) = failure {
            return Err(error);
        }
        let ticket = if holds { None } else { self.write().await? };
        Ok(Emitted { event, ticket })
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

    /// Takes an event into what is known of the session, and marks it to be written.
    fn take_in_event(&self, event: Event, steps: Vec<RunStep>, holds: bool) -> Arc<Event> {
        let mut inner = self.lock();
        if let Some(delta) = event.state_delta() {
            inner.hot().state.apply(delta);
        }
        let event = Arc::new(without_temp(event));
        inner.take_questions(&event, &steps);
        inner.hot().push_event(event.clone());
        inner.pending.push(LogEntry::Event(event.clone()));
        if holds {
            inner.held.push(event.clone());
        }
        self.is_behind.store(true, Ordering::Release);
        let is_finished = |(_, step): &(usize, Arc<RunStep>)| matches!(**step, RunStep::CallFinished { .. });
        if inner.records.last().is_some_and(is_finished) {
            inner.forget_finished(&event);
        }
        if !steps.is_empty() {
            inner.push_records(steps);
        }
        event
    }

    /// What is to be written, and the notes among it.
    fn take_pending(&self, inner: &mut Inner) -> (Entries, Vec<Arc<RunStep>>) {
        self.is_behind.store(false, Ordering::Release);
        let mut entries = std::mem::take(&mut inner.pending);
        let notes = std::mem::take(&mut inner.notes);
        if !notes.is_empty() {
            // What was noted came before what is emitted now, as far as whoever goes on with the run is concerned.
            let at = inner.hot().live().len() - events_of(&entries).len();
            for (place, step) in notes.iter().enumerate() {
                inner.hot().remember(step, at);
                entries.insert(place, LogEntry::Record(step.clone()));
            }
        }
        (entries, notes)
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

/// The last write of a run.
struct LastWrite {
    writer: Writer,
    entries: Entries,
    /// Who waits for some of the entries.
    next: Option<Arc<Batch>>,
    /// Whether it is known where the log stands.
    is_sure: bool,
}

/// An error for an event that no store takes. It is told before others share an append with it.
fn check_keys(event: &Event) -> Result<()> {
    let Some(delta) = event.state_delta() else { return Ok(()) };
    delta.keys().try_for_each(|key| refuse_nul("name of a state key", key))
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
        if let Err(error) = check_keys(&event) {
            return Work::done(Err(error));
        }
        if holds(run, &event, &steps) {
            return Work::done(Ok(self.take_in_event(event, steps, true).into()));
        }
        let event = self.take_in_event(event, steps, false);
        match self.write().try_now() {
            Ok(written) => Work::done(written.map(|ticket| Emitted { event, ticket })),
            Err(written) => Work::later(written.map_ok(|ticket| Emitted { event, ticket })),
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
        let mut inner = self.lock();
        inner.push_records(steps);
        self.is_behind.store(!inner.pending.is_empty(), Ordering::Release);
        drop(inner);
        Work::later(self.written_and_taken(self.write()))
    }

    fn flush(&self) -> Work<'_, Result<()>> {
        // What else is pending has somebody who waits for it, and who is told if it cannot be written.
        if !self.is_behind.load(Ordering::Acquire) || self.lock().held.is_empty() {
            return Work::done(Ok(()));
        }
        Work::later(self.written_and_taken(self.write()))
    }

    fn note(&self, step: RunStep) {
        let notes = &mut self.lock().notes;
        // A loop whose agents say nothing comes to the same end again and again: once is enough to go on from.
        if !matches!(step, RunStep::AgentDone { .. }) || !notes.iter().any(|noted| **noted == step) {
            notes.push(Arc::new(step));
        }
    }

    fn values(&self) -> &RunValues {
        &self.values
    }

    fn open_questions(&self) -> Vec<Interrupt> {
        self.lock().interrupts.clone()
    }

    fn is_asked_about(&self, call: &CallId) -> bool {
        let mut inner = self.lock();
        let open = inner.hot().open();
        open.iter().any(|asked| asked.address.call.as_ref() == Some(call))
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
        self.lock().hot().live().clone()
    }

    fn contents(&self, view: &ContentsView, input: Option<&Arc<Content>>) -> History {
        self.lock().hot().contents(view, input)
    }
}

impl Drop for Recorder {
    fn drop(&mut self) {
        self.deactivate();
    }
}
