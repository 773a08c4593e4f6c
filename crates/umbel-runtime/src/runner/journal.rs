//! A run's way to its session: events are made durable, then handed on.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use smallvec::SmallVec;
use umbel_core::session::without_temp;
use umbel_core::store::{Acquire, Acquired, Entries};
use umbel_core::{
    Address, Content, ContentsView, Error, ErrorKind, Event, History, Interrupt, Journal, Lease, List, LogEntry,
    Outcome, Result, Run, RunConfig, RunId, RunRecord, RunStep, Services, State, Versions, Work,
};

use super::hot::HotSession;
use super::outlet::Outlet;
use crate::contents::visible::{REQUEST_CONFIRMATION, REQUEST_CREDENTIAL, REQUEST_INPUT};
use crate::team::Extras;

/// The journal of one run.
pub(crate) struct Recorder {
    run: RunId,
    services: Arc<Services>,
    extras: Arc<Extras>,
    config: Arc<RunConfig>,
    outlet: Arc<Outlet>,
    inner: Mutex<Inner>,
    /// Held while something is written, so that writes keep their order.
    writer: tokio::sync::Mutex<Option<Writer>>,
}

struct Inner {
    hot: Box<HotSession>,
    /// Not yet written: an event that waits for the next one, and what belongs to it.
    pending: Entries,
    interrupts: Vec<Interrupt>,
}

struct Writer {
    lease: Lease,
    versions: Versions,
}

impl Recorder {
    pub(crate) fn new(
        run: RunId,
        services: Arc<Services>,
        extras: Arc<Extras>,
        config: Arc<RunConfig>,
        outlet: Arc<Outlet>,
        hot: Box<HotSession>,
    ) -> Self {
        let inner = Inner { hot, pending: Entries::new(), interrupts: Vec::new() };
        Self { run, services, extras, config, outlet, inner: Mutex::new(inner), writer: tokio::sync::Mutex::default() }
    }

    /// What is known of the session.
    pub(crate) fn versions(&self) -> Versions {
        self.lock().hot.versions
    }

    /// Brings the session up to date before the run begins.
    pub(crate) fn take_in(&self, news: umbel_core::store::News) {
        self.lock().hot.take_in(news);
    }

    /// Begins the run: takes the lease and writes the user's event.
    pub(crate) async fn begin(&self, acquire: Acquire) -> Result<()> {
        let events = events_of(&acquire.entries);
        let Acquired { lease, news, versions } = self.services.sessions.acquire(acquire).await?;
        self.lock().hot.begin(news, events);
        *self.writer.lock().await = Some(Writer { lease, versions });
        Ok(())
    }

    /// The lease, once there is one.
    pub(crate) async fn lease(&self) -> Option<Lease> {
        self.writer.lock().await.as_ref().map(|writer| writer.lease.clone())
    }

    /// Ends the run: writes what is left and the outcome, gives the lease back and the session away.
    ///
    /// The session is `None` if what is known of it may no longer be what is stored.
    pub(crate) async fn end(&self, outcome: &Outcome) -> (Result<()>, Option<Box<HotSession>>) {
        let mut slot = self.writer.lock().await;
        let Some(writer) = slot.take() else { return (Ok(()), None) };
        let mut entries = std::mem::take(&mut self.lock().pending);
        let events = events_of(&entries);
        entries.push(self.record_of(RunStep::Ended { outcome: outcome.clone() }));
        let released = self.services.sessions.release(&writer.lease, writer.versions, entries).await;
        drop(slot);
        let versions = match released {
            Ok(versions) => versions,
            Err(error) => return (Err(error), None),
        };
        self.deliver(events).await;
        let mut hot = std::mem::take(&mut self.lock().hot);
        hot.versions = versions;
        (Ok(()), Some(hot))
    }

    /// Questions that the run leaves open.
    pub(crate) fn interrupts(&self) -> Vec<Interrupt> {
        self.lock().interrupts.clone()
    }

    async fn write(&self) -> Result<()> {
        let mut slot = self.writer.lock().await;
        let Some(writer) = slot.as_mut() else {
            return Err(Error::new(ErrorKind::Other, "the run has ended: nothing can be emitted any more"));
        };
        let entries = std::mem::take(&mut self.lock().pending);
        if entries.is_empty() {
            return Ok(());
        }
        let events = events_of(&entries);
        writer.versions = self.services.sessions.append(&writer.lease, writer.versions, entries).await?;
        drop(slot);
        self.deliver(events).await;
        Ok(())
    }

    async fn deliver(&self, events: Events) {
        for event in events {
            self.outlet.send(event).await;
        }
    }

    fn stamp(&self, event: &mut Event) {
        if event.timestamp == 0.0 {
            event.timestamp = self.services.clock.now();
        }
        if event.id.is_empty() {
            event.id = self.services.ids.event();
        }
        if !self.config.custom_metadata.is_empty() {
            let metadata = event.meta_mut().custom_metadata.get_or_insert_default();
            for (key, value) in &self.config.custom_metadata {
                metadata.entry(key.clone()).or_insert_with(|| value.clone());
            }
        }
    }

    /// Lets the handlers see an event, then hands it on.
    async fn emit_seen(&self, run: &Run, mut event: Event, steps: Vec<RunStep>) -> Result<Arc<Event>> {
        for handler in &self.extras.handlers {
            event = handler.on_event(run, event).await?;
        }
        if holds(run, &event, &steps) { Ok(self.note(event, steps)) } else { self.hand_on(event, steps).await }
    }

    /// Writes an event, unless it is a preview, and waits until it is taken.
    async fn hand_on(&self, event: Event, steps: Vec<RunStep>) -> Result<Arc<Event>> {
        if event.is_partial() {
            let event = Arc::new(event);
            self.outlet.send(event.clone()).await;
            return Ok(event);
        }
        let event = self.note(event, steps);
        self.write().await?;
        Ok(event)
    }

    /// Takes an event into what is known of the session, and marks it to be written.
    fn note(&self, event: Event, steps: Vec<RunStep>) -> Arc<Event> {
        let mut inner = self.lock();
        if let Some(delta) = event.state_delta() {
            inner.hot.state.apply(delta);
        }
        let event = Arc::new(without_temp(event));
        inner.interrupts.extend(questions(&event));
        inner.hot.events.push(event.clone());
        inner.pending.push(LogEntry::Event(event.clone()));
        inner.pending.extend(steps.into_iter().map(|step| self.record_of(step)));
        event
    }

    fn record_of(&self, step: RunStep) -> LogEntry {
        RunRecord { run: self.run.clone(), step }.into()
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whether an event waits for the next write: the last word of a run shares its write with the outcome.
fn holds(run: &Run, event: &Event, steps: &[RunStep]) -> bool {
    steps.is_empty() && run.is_top() && !event.is_partial() && event.is_final() && event.calls().next().is_none()
}

/// Events of one write; seldom more than two.
type Events = SmallVec<[Arc<Event>; 2]>;

fn events_of(entries: &[LogEntry]) -> Events {
    let event = |entry: &LogEntry| match entry {
        LogEntry::Event(event) => Some(event.clone()),
        LogEntry::Record(_) => None,
    };
    entries.iter().filter_map(event).collect()
}

/// The questions to people that an event asks.
fn questions(event: &Event) -> Vec<Interrupt> {
    let waiting = event.long_running();
    if waiting.is_empty() {
        return Vec::new();
    }
    let question = |call: &umbel_core::FunctionCall| {
        let reason = match call.name.as_str() {
            REQUEST_CONFIRMATION => "confirmation",
            REQUEST_CREDENTIAL => "credential",
            REQUEST_INPUT => "input",
            _ => return None,
        };
        let id = call.id.clone().filter(|id| waiting.contains(id))?;
        let about = |key: &str| call.args.as_ref()?.get(key).cloned();
        let asked = about("originalFunctionCall").and_then(|call| Some(call.get("id")?.as_str()?.into()));
        let hint = about("toolConfirmation").and_then(|asked| Some(asked.get("hint")?.as_str()?.to_owned()));
        let message = hint.or_else(|| Some(about("message")?.as_str()?.to_owned()));
        Some(Interrupt {
            address: Address { agent: event.source.author.clone(), call: asked.or_else(|| Some(id.clone())) },
            id,
            reason: reason.into(),
            message,
            response_schema: about("responseSchema"),
            expires_at: None,
        })
    };
    event.calls().filter_map(question).collect()
}

impl Journal for Recorder {
    fn emit<'a>(&'a self, run: &'a Run, mut event: Event, steps: Vec<RunStep>) -> Work<'a, Result<Arc<Event>>> {
        self.stamp(&mut event);
        if !self.extras.handlers.is_empty() {
            return Work::later(self.emit_seen(run, event, steps));
        }
        if holds(run, &event, &steps) {
            return Work::done(Ok(self.note(event, steps)));
        }
        Work::later(self.hand_on(event, steps))
    }

    fn record(&self, steps: Vec<RunStep>) -> Work<'_, Result<()>> {
        let records: Entries = steps.into_iter().map(|step| self.record_of(step)).collect();
        self.lock().pending.extend(records);
        Work::later(self.write())
    }

    fn flush(&self) -> Work<'_, Result<()>> {
        if self.lock().pending.is_empty() {
            return Work::done(Ok(()));
        }
        Work::later(self.write())
    }

    fn state(&self) -> State {
        self.lock().hot.state.clone()
    }

    fn events(&self) -> List<Arc<Event>> {
        self.lock().hot.events.clone()
    }

    fn contents(&self, view: &ContentsView, input: Option<&Arc<Content>>) -> History {
        self.lock().hot.contents(view, input)
    }
}
