//! The stream of a run, made from the log: after its frames are gone, after a restart, on another server.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;
use smallvec::SmallVec;
use smol_str::SmolStr;
use umbel_agui::{AguiEvent, EventKind, InputMark, Open, Shown, Translator, Waiting};
use umbel_core::json::empty_object;
use umbel_core::{Event, List, LogEntry, Outcome, RunId, RunStep, SessionKey, State, Versions};

use crate::app::Offered;
use crate::drive::{correct, end, tell};
use crate::emitter::Emitter;
use crate::endpoint::AgentEndpoint;
use crate::live::LiveRun;
use crate::place::{Of, Part, Place};
use crate::plan::last_turn;
use crate::problem::Problem;
use crate::state::visible;

/// How often the log is looked at for more of a run that is under way elsewhere.
const LOOK: Duration = Duration::from_millis(250);

/// How long the second part of a request is waited for, once the first has ended.
const FOLLOWS: Duration = Duration::from_secs(5);

type Void = SmallVec<[Shown; 1]>;

/// A session's log from where a run began.
pub(crate) struct Log {
    versions: Versions,
    state: State,
    /// How many runs of that name came before.
    round: u32,
    /// What the session knew when the run began, and what it waited for.
    before: List<Arc<Event>>,
    entries: Vec<LogEntry>,
}

/// Tells a run from the log, from behind that place on, and follows it until it ends, nobody looks any more, or the server is
/// told to stop. Its last frame is a terminal event.
pub(crate) async fn replay(offered: &Offered, live: &Arc<LiveRun>, log: Log, seen: Option<Place>) {
    let mut emitter = Emitter::behind(live.clone(), seen.clone());
    match follow(offered, live, log, seen, &mut emitter).await {
        Ok(Followed::ToItsEnd) => {}
        Ok(Followed::UntilStopped) => {
            let problem = Problem::shutting_down("the run goes on elsewhere: take its stream up there");
            emitter.leave(&ended_by(&problem));
        }
        Err(problem) => {
            tracing::warn!(code = %problem.code, "a run could not be told from the log");
            emitter.finish(&ended_by(&problem));
        }
    }
    emitter.close();
}

fn ended_by(problem: &Problem) -> AguiEvent<'_> {
    let (message, code) = (Cow::Owned(problem.text()), Some(Cow::Borrowed(problem.code.as_str())));
    EventKind::RunError { message, code, usage: Vec::new() }.into()
}

/// How far a run was followed.
enum Followed {
    /// There is nothing more to tell, or nobody to tell it to.
    ToItsEnd,
    /// The server stops, and the run goes on.
    UntilStopped,
}

async fn follow(
    offered: &Offered,
    live: &Arc<LiveRun>,
    mut log: Log,
    seen: Option<Place>,
    emitter: &mut Emitter,
) -> Result<Followed, Problem> {
    let mut telling = Telling::begin(&offered.endpoint, live, &log, seen, emitter);
    let mut patience = FOLLOWS;
    loop {
        let is_all = telling.take(std::mem::take(&mut log.entries)).await?;
        if telling.is_over() && (is_all || !telling.awaits_more() || patience.is_zero()) {
            telling.end().await?;
            return Ok(Followed::ToItsEnd);
        }
        telling.emitter.flush();
        if tokio::time::timeout(LOOK, offered.app.runs.draining()).await.is_ok() {
            return Ok(Followed::UntilStopped);
        }
        if telling.is_over() {
            patience = patience.saturating_sub(LOOK);
        }
        if live.is_unseen() {
            return Ok(Followed::ToItsEnd);
        }
        let news = offered.endpoint.runner.sessions().news(&live.key, log.versions).await?;
        let news = news.ok_or_else(|| Problem::not_found("thread"))?;
        log.versions = news.versions;
        log.entries = news.entries;
    }
}

/// A run that is being told.
struct Telling<'a> {
    endpoint: &'a AgentEndpoint,
    live: &'a Arc<LiveRun>,
    emitter: &'a mut Emitter,
    translator: Translator,
    /// What was previewed to the client, and is still to come.
    shown: Void,
    /// The run as the log calls it, and how it ended.
    run: RunId,
    outcome: Option<Outcome>,
    /// Another part of the same request is to follow this one.
    leads: bool,
}

impl<'a> Telling<'a> {
    fn begin(
        endpoint: &'a AgentEndpoint,
        live: &'a Arc<LiveRun>,
        log: &Log,
        seen: Option<Place>,
        emitter: &'a mut Emitter,
    ) -> Self {
        let first = log.entries.first().and_then(event_of_entry);
        let mark = first.and_then(|event| InputMark::of(event)).unwrap_or_default();
        let mut translator = Translator::new(endpoint.cast.clone(), live.key.id(), &live.run, !mark.is_plain);
        let waiting = Waiting::of(last_turn(&log.before), Vec::new());
        let pending = waiting.calls.into_iter().map(|(id, _)| id).collect();
        let ours = visible(&endpoint.cast, &log.state);
        emitter.round(log.round);
        // What state the client had is not known any more.
        let theirs = Some(&Value::Null);
        translator.begin(mark.parent.as_deref(), theirs, ours, pending, &mut |event| emitter.say(&event));
        emitter.told();
        if seen.as_ref().is_some_and(|place| place.is_mixed) {
            translator.mix();
        }
        Self {
            endpoint,
            live,
            emitter,
            translator,
            shown: seen.map(|place| place.shown).unwrap_or_default(),
            run: first.map(|event| event.run.clone()).unwrap_or_default(),
            outcome: None,
            leads: false,
        }
    }

    /// Whether what was told so far has ended.
    fn is_over(&self) -> bool {
        self.outcome.is_some()
    }

    /// Whether more of the same request is to come, though what was told so far has ended.
    fn awaits_more(&self) -> bool {
        self.leads && self.outcome == Some(Outcome::Finished)
    }

    /// Tells what the log has of the run. Whether it has something of another run behind it.
    async fn take(&mut self, entries: Vec<LogEntry>) -> Result<bool, Problem> {
        for entry in entries {
            match entry {
                LogEntry::Event(event) => {
                    if self.outcome.is_some() && !goes_on(&event, &self.live.run) {
                        return Ok(true);
                    }
                    self.outcome = None;
                    self.run.clone_from(&event.run);
                    if event.is_user() {
                        // What has no mark was not said: it only belongs to nobody else.
                        if let Some(mark) = InputMark::of(&event) {
                            self.leads = mark.leads;
                        }
                        self.translator.event(&event, &mut |event| self.emitter.say(&event));
                    } else {
                        self.tell(event).await?;
                    }
                }
                LogEntry::Record(step) => {
                    if let RunStep::Ended { outcome } = &*step {
                        self.outcome = Some(outcome.clone());
                    }
                }
            }
        }
        Ok(false)
    }

    /// Tells an event of an agent.
    async fn tell(&mut self, event: Arc<Event>) -> Result<(), Problem> {
        let Self { endpoint, live, emitter, translator, shown, run, .. } = self;
        let of = Of::new(&event, translator.root());
        let is_begun = |shown: &Shown| {
            let speaks = shown.text > 0 || shown.open == Open::Text || !shown.calls.is_empty();
            shown.event != event.id && (speaks || shown.thinks)
        };
        if emitter.is_new() && event.responses().next().is_none() && shown.iter().any(is_begun) {
            // What the client saw begin before it comes behind it in the log.
            translator.mix();
        }
        if let Some(at) = shown.iter().position(|shown| shown.event == event.id) {
            emitter.begin(Some(of), Part::Preview);
            translator.take_up(&event, shown.remove(at), &mut |event| emitter.say(&event));
        } else if emitter.is_new() && shown.iter().any(|shown| shown.by == of.by) {
            // Its agent had begun to say something else, and did not say it.
            let (void, rest) = std::mem::take(shown).into_iter().partition(|shown| shown.by == of.by);
            *shown = rest;
            take_up_void(void, run, translator, emitter);
            emitter.begin(None, Part::Void);
            translator.make_void(&event, &mut |event| emitter.say(&event));
            if shown.is_empty() && translator.owes_messages() {
                correct(endpoint, live, translator, emitter).await;
            }
        }
        let seen = endpoint.runner.as_seen(&live.key, &List::from_iter([event])).await?;
        seen.iter().for_each(|event| tell(event, translator, emitter));
        emitter.room().await;
        Ok(())
    }

    /// Tells how it ended.
    async fn end(mut self) -> Result<(), Problem> {
        if self.awaits_more() {
            let message = "the message that came with the answers was not taken: send it again";
            return Err(Problem::not_begun(message));
        }
        let Some(outcome) = self.outcome.take() else { return Ok(()) };
        take_up_void(self.shown, &self.run, &mut self.translator, self.emitter);
        let (outcome, problem) = still_true(self.endpoint, &self.live.key, outcome).await?;
        end(self.endpoint, self.live, outcome, problem, &mut self.translator, self.emitter).await;
        Ok(())
    }
}

/// Takes up what was previewed and never came.
fn take_up_void(void: Void, run: &RunId, translator: &mut Translator, emitter: &mut Emitter) {
    for shown in void {
        emitter.begin(Some(Of::from(&shown)), Part::Preview);
        translator.take_up_void(run, shown, &mut |event| emitter.say(&event));
    }
}

fn event_of_entry(entry: &LogEntry) -> Option<&Arc<Event>> {
    match entry {
        LogEntry::Event(event) => Some(event),
        LogEntry::Record(_) => None,
    }
}

/// Whether an event of the user goes on with the same request.
fn goes_on(event: &Event, run: &str) -> bool {
    InputMark::of(event).is_some_and(|mark| mark.follows && mark.run == run)
}

/// The log from where a run of that name began, the last one unless said otherwise; `None` if there is none.
pub(crate) async fn read(
    endpoint: &AgentEndpoint,
    key: &SessionKey,
    run: &SmolStr,
    round: Option<u32>,
) -> Result<Option<Log>, Problem> {
    let Some(news) = endpoint.runner.sessions().news(key, Versions::default()).await? else {
        return Ok(None);
    };
    let begins = |entry: &LogEntry| {
        let mark =
            event_of_entry(entry).filter(|event| event.is_user()).and_then(|event| InputMark::of(event));
        mark.is_some_and(|mark| mark.run == *run && !mark.follows)
    };
    let begins = news.entries.iter().enumerate().filter(|(_, entry)| begins(entry));
    let rounds = (0_u32..).zip(begins.map(|(at, _)| at));
    let rounds = rounds.take_while(|(number, _)| round.is_none_or(|round| *number <= round));
    let Some((round, from)) = rounds.last() else { return Ok(None) };
    let session = news.session_state.unwrap_or_else(empty_object);
    let user = news.user_state.unwrap_or_else(empty_object);
    let app = news.app_state.unwrap_or_else(empty_object);
    let mut state = State::new(session, user, app);
    let mut before = List::new();
    let mut entries = news.entries;
    let rest = entries.split_off(from);
    for event in entries.iter().filter_map(event_of_entry) {
        if let Some(delta) = event.state_delta() {
            state.apply(delta);
        }
        before.push(event.clone());
    }
    if let Some(delta) = rest.first().and_then(event_of_entry).and_then(|event| event.state_delta()) {
        state.apply(delta);
    }
    Ok(Some(Log { versions: news.versions, state, round, before, entries: rest }))
}

/// How a run ended, as far as that still is so: questions that were answered since are not asked again.
async fn still_true(
    endpoint: &AgentEndpoint,
    key: &SessionKey,
    outcome: Outcome,
) -> Result<(Outcome, Option<Problem>), Problem> {
    match outcome {
        Outcome::Interrupted { mut interrupts } => {
            let open = endpoint.runner.open_questions(key).await?;
            interrupts.retain(|asked| open.iter().any(|open| open.id == asked.id));
            let is_settled = interrupts.is_empty();
            Ok((if is_settled { Outcome::Finished } else { Outcome::Interrupted { interrupts } }, None))
        }
        Outcome::Failed { failure } => {
            let problem = Problem::of_failure(&failure);
            Ok((Outcome::Failed { failure }, Some(problem)))
        }
        other => Ok((other, None)),
    }
}
