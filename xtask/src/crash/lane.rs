//! One scenario on one store: killed again and again, recovered, and looked at.

use std::collections::{BTreeMap, HashSet};
use std::io::{BufRead, BufReader};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, ChildStdout};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use umbel::{BoxError, Outcome};

use super::audit::{Evidence, Findings, Log, Shapes, call_ids, last_outcome};
use super::child::{LOOK, READY};
use super::files::{self, Effect};
use super::killer::{Killer, Kind, Point};
use super::place::{LEASE, Opened, Place};
use super::scenario::Scenario;
use super::table::Row;

/// How long a batch may take to be recovered, and a child to do its work.
const PATIENCE: Duration = Duration::from_secs(30);

/// One scenario on one store.
pub(super) struct Lane {
    opened: Opened,
    /// The process that recovers all the while.
    _second: Process,
    shapes: Shapes,
    /// All points of the work at which a child can be killed.
    pub(super) points: Vec<Point>,
    /// How long a child works that nobody kills.
    length: Duration,
    batches: u32,
    kills: u32,
    findings: Findings,
}

impl Lane {
    /// Sets a lane up in a new folder inside `parent`, and lets a child do its work undisturbed.
    pub(super) async fn open(
        scenario: &'static Scenario,
        parent: &Path,
        store: &str,
        server: Option<String>,
    ) -> Result<Self, BoxError> {
        let folder = parent.join(format!("{store}-{}", scenario.name));
        std::fs::create_dir_all(files::effects(&folder))?;
        let url = server.unwrap_or_else(|| format!("sqlite:{}", folder.join("crash.db").display()));
        let place = Place { folder, url, scenario };
        let opened = place.clone().open(Arc::new(Killer::idle())).await?;
        let mut second = Process::start(&place, "recover", &[])?;
        second.ready()?;
        let mut lane = Self {
            opened,
            _second: second,
            shapes: Shapes::new(),
            points: Vec::new(),
            length: Duration::ZERO,
            batches: 0,
            kills: 0,
            findings: Findings::default(),
        };
        lane.rehearse().await?;
        Ok(lane)
    }

    pub(super) fn name(&self) -> &'static str {
        self.opened.place.scenario.name
    }

    /// Finds out how the work goes when nobody disturbs it.
    async fn rehearse(&mut self) -> Result<(), BoxError> {
        let batch = self.next_batch();
        let mut child = Process::start(&self.opened.place, "work", std::slice::from_ref(&batch))?;
        child.ready()?;
        let started = Instant::now();
        let counts = child.line()?;
        self.length = started.elapsed();
        let (writes, effects) = counts.split_once(' ').ok_or("the child did not count")?;
        self.points = Point::all(writes.parse()?, effects.parse()?);
        // On a busy machine even a child that nobody disturbs may lose a lease.
        let (logs, settled) = self.settle(&batch).await?;
        settled?;
        self.shapes = Evidence::shapes(&logs)?;
        self.look_at(&batch, "undisturbed").await
    }

    /// Lets a child work until it kills itself at that point.
    pub(super) async fn kill_at(&mut self, point: Point) -> Result<(), BoxError> {
        // Agents that work side by side share a write now and then, so that the last ones are not always reached.
        for _ in 0..10 {
            let batch = self.next_batch();
            let mut child = Process::start(&self.opened.place, "work", &[batch.clone(), point.to_string()])?;
            child.ready()?;
            let was_killed = child.was_killed()?;
            self.look_at(&batch, &point.to_string()).await?;
            if was_killed {
                self.kills += 1;
                return Ok(());
            }
        }
        self.findings.problems.push(format!("{}: {point} was never reached", self.name()));
        Ok(())
    }

    /// Kills a child at a random moment of its work; and sometimes another that recovers what it left.
    pub(super) async fn kill_sometime(&mut self, random: &mut fastrand::Rng) -> Result<(), BoxError> {
        loop {
            let batch = self.next_batch();
            let mut child = Process::start(&self.opened.place, "work", std::slice::from_ref(&batch))?;
            child.ready()?;
            let moment = self.length.mul_f64(random.f64());
            tokio::time::sleep(moment).await;
            let was_working = child.kill()?;
            let mut when = format!("killed after {} µs", moment.as_micros());
            if was_working && random.bool() {
                let mut second = Process::start(&self.opened.place, "recover", &[])?;
                second.ready()?;
                let moment = LEASE + self.length.mul_f64(random.f64());
                tokio::time::sleep(moment).await;
                second.kill()?;
                self.kills += 1;
                when += &format!(", and one that recovers after {} µs", moment.as_micros());
            }
            self.look_at(&batch, &when).await?;
            if was_working {
                self.kills += 1;
                return Ok(());
            }
        }
    }

    /// Stops a child at a random moment until others have taken its runs over, and lets it go on: it must not do harm.
    pub(super) async fn stop_sometime(&mut self, random: &mut fastrand::Rng) -> Result<(), BoxError> {
        let batch = self.next_batch();
        let mut child = Process::start(&self.opened.place, "work", std::slice::from_ref(&batch))?;
        child.ready()?;
        let (moment, pause) = (self.length.mul_f64(random.f64()), LEASE.mul_f64(1.0 + random.f64()));
        tokio::time::sleep(moment).await;
        child.signal(Signal::STOP)?;
        tokio::time::sleep(pause).await;
        child.signal(Signal::CONT)?;
        let when = format!("stopped after {} µs for {} ms", moment.as_micros(), pause.as_millis());
        self.finish(Working { batch, child, length: self.length }, &when).await
    }

    /// Starts a child that does its work, whatever happens to its server.
    pub(super) fn start(&mut self) -> Result<Working, BoxError> {
        let batch = self.next_batch();
        let child = Process::start(&self.opened.place, "work", std::slice::from_ref(&batch))?;
        Ok(Working { batch, child, length: self.length })
    }

    /// Waits until a child is done, and looks at what came of it.
    pub(super) async fn finish(&mut self, mut working: Working, when: &str) -> Result<(), BoxError> {
        if working.child.was_killed()? {
            self.findings.problems.push(format!("{}: a child died by itself", self.name()));
        }
        self.kills += 1;
        self.look_at(&working.batch, when).await
    }

    fn next_batch(&mut self) -> String {
        self.batches += 1;
        format!("b{}", self.batches)
    }

    /// Lets a batch be recovered, and looks whether all is as it should be.
    async fn look_at(&mut self, batch: &str, when: &str) -> Result<(), BoxError> {
        let (logs, settled) = self.settle(batch).await?;
        let mut effects = BTreeMap::new();
        for call in logs.iter().flat_map(call_ids) {
            effects.insert(call.to_owned(), Effect::of_call(self.opened.folder(), call)?);
        }
        let seen = files::read(&files::seen(self.opened.folder(), batch))?;
        let seen = seen.iter().filter_map(Value::as_str).map(str::to_owned).collect();
        let evidence = Evidence { logs, seen, effects, shapes: self.shapes.clone() };
        let mut findings = evidence.audit();
        if let Err(why) = settled {
            findings.problems.push(format!("not settled in time: {why}"));
        }
        if !findings.problems.is_empty() {
            let dump = self.opened.folder().join(format!("dump-{batch}"));
            std::fs::write(&dump, format!("{when}\n{:#?}\n{evidence}\n", findings.problems))?;
        }
        let name = self.name();
        for problem in &mut findings.problems {
            *problem = format!("{name}, {when}: {problem}");
        }
        self.findings += findings;
        Ok(())
    }

    /// Recovers beside the second process until each run has its outcome, and answers whatever is asked. Gives the logs
    /// as they are then: a server may still do what a process asked it for before it was killed.
    async fn settle(&self, batch: &str) -> Result<(Vec<Log>, Result<(), BoxError>), BoxError> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let why = match self.step(batch).await {
                Ok((logs, true)) => return Ok((logs, Ok(()))),
                Ok((_, false)) => "a run is still open".into(),
                Err(error) => error,
            };
            if Instant::now() > deadline {
                return Ok((self.opened.logs(batch).await?, Err(why)));
            }
            tokio::time::sleep(LOOK).await;
        }
    }

    /// The logs, and whether all runs have their outcome and nothing is asked any more.
    async fn step(&self, batch: &str) -> Result<(Vec<Log>, bool), BoxError> {
        self.opened.runner.recover().await?;
        let logs = self.opened.logs(batch).await?;
        if logs.iter().any(|log| last_outcome(log).is_none()) {
            return Ok((logs, false));
        }
        // Sessions that work for others are answered through these.
        for key in self.opened.place.sessions(batch)? {
            let outcome = logs.iter().find(|log| log.session == key.id()).and_then(last_outcome);
            if let Some(outcome @ Outcome::Interrupted { .. }) = outcome {
                self.opened.answer(batch, &key, outcome).await?;
                return Ok((logs, false));
            }
        }
        Ok((logs, true))
    }

    /// A lane that was killed in the middle of effects has calls of which nobody knows what came. If there are none, the
    /// killing went wrong, and nothing was shown.
    pub(super) fn expect_unknown(&mut self) {
        let has_effects = self.points.iter().any(|point| point.kind == Kind::Effect);
        if has_effects && self.findings.unknown == 0 {
            let name = self.name();
            self.findings.problems.push(format!("{name}: no call was ever of unknown outcome"));
        }
    }

    /// What came of the lane since it was last asked.
    pub(super) fn row(&mut self, store: &'static str) -> Row {
        let (kills, findings) = (std::mem::take(&mut self.kills), std::mem::take(&mut self.findings));
        Row { store, scenario: self.name(), kills, findings }
    }

    /// The last look: whatever happened must be in some log.
    pub(super) async fn look_for_strays(&mut self) -> Result<(), BoxError> {
        let mut known = HashSet::new();
        for number in 1..=self.batches {
            let logs = self.opened.logs(&format!("b{number}")).await?;
            known.extend(logs.iter().flat_map(call_ids).map(str::to_owned));
        }
        for call in Effect::calls(self.opened.folder())? {
            if !known.contains(&call) {
                let name = self.name();
                self.findings.problems.push(format!("{name}: an effect of call {call}, which no log knows"));
            }
        }
        Ok(())
    }
}

/// A child at its work.
pub(super) struct Working {
    batch: String,
    child: Process,
    pub(super) length: Duration,
}

impl Working {
    /// Waits until it begins.
    pub(super) fn ready(&mut self) -> Result<(), BoxError> {
        self.child.ready()
    }
}

/// A process that does not outlive this.
struct Process {
    child: Child,
    said: BufReader<ChildStdout>,
}

impl Process {
    fn start(place: &Place, task: &str, more: &[String]) -> Result<Self, BoxError> {
        let mut child = place.spawn(task, more)?;
        let said = BufReader::new(child.stdout.take().ok_or("a child without an output")?);
        Ok(Self { child, said })
    }

    /// The next line it says.
    fn line(&mut self) -> Result<String, BoxError> {
        let mut line = String::new();
        self.said.read_line(&mut line)?;
        Ok(line.trim_end().to_owned())
    }

    /// Waits until it begins.
    fn ready(&mut self) -> Result<(), BoxError> {
        let line = self.line()?;
        if line == READY { Ok(()) } else { Err(format!("a child did not begin: {line}").into()) }
    }

    /// Kills it. Whether it was still at work.
    fn kill(&mut self) -> Result<bool, BoxError> {
        self.child.kill()?;
        Ok(self.child.wait()?.signal().is_some())
    }

    /// Sends it a signal. It may have ended already.
    fn signal(&self, signal: Signal) -> Result<(), BoxError> {
        let process = Pid::from_raw(i32::try_from(self.child.id())?).ok_or("a child without a process")?;
        Ok(kill_process(process, signal)?)
    }

    /// Waits for its end, and tells whether it was killed.
    fn was_killed(&mut self) -> Result<bool, BoxError> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            if let Some(status) = self.child.try_wait()? {
                return Ok(status.signal().is_some());
            }
            if Instant::now() > deadline {
                self.kill()?;
                return Err("a child did not end in time".into());
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // One that has ended cannot be killed, which is as well.
        drop(self.child.kill());
        drop(self.child.wait());
    }
}
