//! What people and operators do in a simulated world.

use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use tokio::time::Instant;
use umbel::store::IdleFilter;
use umbel::{
    Answer, CancelReason, Event, Interrupt, LogEntry, NewSession, Outcome, Question, Result, RunId, RunStep,
    RunStream, Runner, SafePoint, SessionKey, Source, Versions,
};

use super::fault_store::wait_now;
use super::models::SAYS;
use super::simulation::{APP, SimProcess};
use super::world::{AnswerShape, PersonAct, ReaderStop, millis};

/// Who acts in one session, by one runner.
#[derive(Debug)]
pub(super) struct Person<'a> {
    pub(super) process: &'a SimProcess,
    pub(super) runner: &'a Runner,
    pub(super) session: u8,
}

/// The longest that a reader waits before it cancels, where there is no limit.
const PATIENCE: Duration = Duration::from_secs(1_800);

impl Person<'_> {
    pub(super) async fn act(&self, act: &PersonAct) {
        let stage = &self.process.stage;
        let Some(key) = stage.session(self.session) else { return };
        let ledger = &stage.ledger;
        match act {
            PersonAct::Message(stop) => {
                ledger.count("person.message");
                let number = {
                    let mut state = ledger.lock();
                    state.messages += 1;
                    state.messages
                };
                let text = format!("{SAYS} {number}.");
                let stream = self.runner.run(&key, text.as_str());
                let _sent = ledger.sent(number);
                self.read(&key, stream, *stop).await;
            }
            PersonAct::Answers(shape, stop) => self.answer(&key, *shape, *stop).await,
            PersonAct::Continues(stop) => {
                ledger.count("person.continue");
                self.read(&key, self.runner.continue_run(&key), *stop).await;
            }
            PersonAct::Rewinds(back) => self.rewind(&key, *back).await,
            PersonAct::Forks => self.fork(&key).await,
            PersonAct::Creates => {
                ledger.count("person.create");
                if let Some(Ok(created)) = self.within(self.runner.create_session(key.user())).await {
                    stage.add_session(created.key);
                }
            }
            PersonAct::Deletes => {
                ledger.count("person.delete");
                let deleted = self.within(self.runner.delete_session(&key)).await;
                self.trace("delete", || format!("{deleted:?}"));
            }
            PersonAct::Recovers { after_lease } => {
                if *after_lease {
                    tokio::time::sleep(stage.lease() + Duration::from_millis(5)).await;
                }
                ledger.count("person.recover");
                let recovered = self.within(self.runner.recover()).await;
                let outcomes = recovered.map(|done| {
                    done.map(|all| {
                        all.into_iter().map(|one| (one.key.id().to_owned(), one.run)).collect::<Vec<_>>()
                    })
                });
                self.trace("recover", || format!("{outcomes:?}"));
            }
            PersonAct::ClockJumps(seconds) => {
                ledger.count(if *seconds < 0 { "clock.back" } else { "clock.forward" });
                stage.clock.jump(*seconds);
            }
            PersonAct::KillsProcess => {
                ledger.count("person.kill");
                self.process.life.kill();
                std::future::pending::<()>().await;
            }
            PersonAct::Looks => self.look(&key).await,
        }
    }

    fn trace(&self, what: &'static str, value: impl FnOnce() -> String) {
        let stage = &self.process.stage;
        stage.ledger.trace(stage.clock.elapsed(), what, value);
    }

    /// The value of an operation, if it is there before a person loses patience.
    async fn within<T>(&self, work: impl Future<Output = T>) -> Option<T> {
        tokio::time::timeout(PATIENCE, work).await.ok()
    }

    async fn look(&self, key: &SessionKey) {
        self.process.stage.ledger.count("person.look");
        let view = self.within(self.runner.session(key)).await;
        let view = view.and_then(Result::ok).flatten();
        if let Some(view) = &view {
            let seen = self.within(self.runner.as_seen(key, &view.events)).await;
            let last = view.events.iter().rev().find(|event| !event.is_user());
            let request = match last {
                Some(event) => self.within(self.runner.request_before(key, &event.id)).await,
                None => None,
            };
            self.trace("seen", || {
                let seen = seen.and_then(Result::ok).map(|events| events.len());
                format!("{seen:?} {:?}", request.and_then(Result::ok).map(|request| request.contents.len()))
            });
        }
        self.trace("look", || {
            format!("{:?}", view.map(|view| (view.events.len(), view.open.len(), view.running)))
        });
        let store = self.runner.sessions();
        let _ = self.within(store.open_questions(APP, None)).await;
        let _ = self.within(store.idle(APP, IdleFilter::before(f64::MAX))).await;
    }

    async fn answer(&self, key: &SessionKey, shape: AnswerShape, stop: ReaderStop) {
        let Some(Ok(open)) = self.within(self.runner.open_questions(key)).await else { return };
        let asked: Vec<Interrupt> = match shape {
            AnswerShape::AnswersLate => self.last_answered(key),
            AnswerShape::ApprovesAll | AnswerShape::RejectsAll => open,
            _ => open.into_iter().take(1).collect(),
        };
        if asked.is_empty() {
            return;
        }
        self.process.stage.ledger.count("person.answer");
        let answer = |asked: &Interrupt| match shape {
            AnswerShape::RejectsFirst | AnswerShape::RejectsAll => Answer::reject(),
            AnswerShape::GivesInput => Answer::input("seven"),
            _ if asked.reason == Question::INPUT => Answer::input("seven"),
            _ => Answer::approve(),
        };
        let answers: Vec<(&Interrupt, Answer)> = asked.iter().map(|asked| (asked, answer(asked))).collect();
        self.read(key, self.runner.resume(key, answers.clone()), stop).await;
        if shape == AnswerShape::ApprovesTwice {
            self.read(key, self.runner.resume(key, answers), stop).await;
        }
    }

    /// The question that was answered last, by what the log has of it.
    fn last_answered(&self, key: &SessionKey) -> Vec<Interrupt> {
        let entries = self.log(key).unwrap_or_default();
        let mut asked: Vec<Interrupt> = Vec::new();
        for entry in &entries {
            if let LogEntry::Record(step) = entry
                && let RunStep::Asked { interrupts } = &**step
            {
                asked.extend(interrupts.iter().cloned());
            }
        }
        asked.into_iter().next().into_iter().collect()
    }

    fn log(&self, key: &SessionKey) -> Option<Vec<LogEntry>> {
        let news = wait_now(self.process.stage.store.news(key, Versions::default()));
        news.ok().flatten().map(|news| news.entries)
    }

    async fn rewind(&self, key: &SessionKey, back: u8) {
        let mut runs: Vec<RunId> = Vec::new();
        for entry in self.log(key).unwrap_or_default() {
            if let LogEntry::Event(event) = entry
                && !runs.contains(&event.run)
            {
                runs.push(event.run.clone());
            }
        }
        let Some(run) = runs.into_iter().rev().nth(usize::from(back)) else { return };
        self.process.stage.ledger.count("person.rewind");
        let rewound = self.within(self.runner.rewind(key, &run)).await;
        self.trace("rewind", || {
            format!("{run} {:?}", rewound.map(|done| done.map(|event| event.id.clone())))
        });
    }

    /// Copies a session as far as its last run that ended, the way the server does.
    async fn fork(&self, key: &SessionKey) {
        let stage = &self.process.stage;
        let Some(Ok(Some(news))) = self.within(self.runner.sessions().news(key, Versions::default())).await
        else {
            return;
        };
        let is_end = |entry: &LogEntry| matches!(entry, LogEntry::Record(step) if matches!(&**step, RunStep::Ended { .. }));
        let Some(end) = news.entries.iter().rposition(is_end) else { return };
        let number = stage.all_sessions().len();
        let Ok(forked) = SessionKey::new(APP, key.user(), format!("s-fork{number}")) else { return };
        let state = news.session_state.map(Arc::unwrap_or_clone).unwrap_or_default();
        let store = self.runner.sessions();
        let created = self.within(store.create(NewSession::new(forked.clone()).state(state))).await;
        let Some(Ok(_)) = created else { return };
        let mut entries: umbel::store::Entries = news.entries.into_iter().take(end + 1).collect();
        let mut mark = Event::new(self.runner.services().ids.run(), Source::user());
        mark.id = self.runner.services().ids.event();
        mark.timestamp = self.runner.services().clock.now();
        entries.push(LogEntry::Event(Arc::new(mark)));
        if let Some(Ok(_)) = self.within(store.commit(&forked, None, entries)).await {
            stage.ledger.count("person.fork");
            stage.add_session(forked);
        }
    }

    /// Reads a run as long as its reader does, within the limits of the run.
    async fn read(&self, key: &SessionKey, mut stream: RunStream, stop: ReaderStop) {
        let stage = &self.process.stage;
        let place = stage.ledger.reader(key, stream.id());
        let began = Instant::now();
        let longest = stage.longest_run();
        let mut until = began + longest.unwrap_or(PATIENCE);
        let (mut items, mut is_stopped, mut is_late) = (0u32, false, longest.is_none());
        let stop_at = match stop {
            ReaderStop::DropsAfterMs(ms) | ReaderStop::CancelsAfterMs(ms) | ReaderStop::StopsAfterMs(ms) => {
                Some(began + millis(ms))
            }
            _ => None,
        };
        loop {
            if let ReaderStop::DropsAfterItems(limit) = stop
                && items >= limit
            {
                stage.ledger.count("reader.drop");
                return;
            }
            let wake = stop_at.filter(|_| !is_stopped).map_or(until, |at| at.min(until));
            let item = match tokio::time::timeout_at(wake, stream.next()).await {
                Ok(item) => item,
                Err(_) if stop_at.is_some_and(|at| !is_stopped && Instant::now() >= at) => {
                    is_stopped = true;
                    match stop {
                        ReaderStop::CancelsAfterMs(_) => {
                            stage.ledger.count("reader.cancel");
                            stream.cancel_token().cancel(CancelReason::Asked);
                            until = until.min(self.after_cancel());
                        }
                        ReaderStop::StopsAfterMs(_) => {
                            stage.ledger.count("reader.safe-point");
                            stream.cancel_at(SafePoint::Next);
                        }
                        _ => {
                            stage.ledger.count("reader.drop");
                            return;
                        }
                    }
                    continue;
                }
                Err(_) if is_late => {
                    // Nothing limits this run: it is cancelled, and then the grace does.
                    is_late = false;
                    stream.cancel();
                    until = self.after_cancel();
                    continue;
                }
                Err(_) => {
                    let waited = began.elapsed();
                    let detail = format!("the stream of {} has not ended after {waited:?}", stream.id());
                    stage.ledger.violate("reader-ends", detail);
                    return;
                }
            };
            let Some(item) = item else { break };
            items += 1;
            if self.process.life.is_dead() {
                return std::future::pending().await;
            }
            match item {
                Ok(event) if event.is_partial() => stage.ledger.count("shown.preview"),
                Ok(event) => {
                    stage.ledger.count("shown.event");
                    self.trace("shown", || format!("{} {}", event.id, event.text()));
                    stage.ledger.note_reader(place, |note| note.shown.push(event.id.clone()));
                }
                Err(error) => {
                    self.trace("error", || format!("{} {}", error.kind().code(), error.message()));
                    stage.ledger.note_reader(place, |note| note.error = Some(Arc::new(error)));
                }
            }
        }
        self.ended(key, place, &stream);
    }

    /// When a run must have ended that is cancelled now.
    fn after_cancel(&self) -> Instant {
        let stage = &self.process.stage;
        let parts = if stage.has_wind_up() { 2 } else { 1 };
        let grace = millis(stage.world.limits.grace_ms).min(PATIENCE);
        Instant::now() + grace * parts + stage.slack()
    }

    /// Notes how a run ended, and whether the log says the same.
    fn ended(&self, key: &SessionKey, place: usize, stream: &RunStream) {
        let stage = &self.process.stage;
        let Some(outcome) = stream.outcome().cloned() else { return };
        stage.ledger.count(match &outcome {
            Outcome::Finished => "outcome.finished",
            Outcome::Interrupted { .. } => "outcome.interrupted",
            Outcome::Cancelled => "outcome.cancelled",
            _ => "outcome.failed",
        });
        self.trace("ended", || format!("{} {outcome:?}", stream.id()));
        let last = self.log(key).unwrap_or_default().into_iter().rev().find_map(|entry| match entry {
            LogEntry::Record(step) => match &*step {
                RunStep::Ended { outcome } => Some(outcome.clone()),
                _ => None,
            },
            LogEntry::Event(_) => None,
        });
        let is_logged = last.as_ref() == Some(&outcome);
        stage.ledger.note_reader(place, |note| {
            note.outcome = Some(outcome);
            note.is_logged = is_logged;
        });
    }
}
