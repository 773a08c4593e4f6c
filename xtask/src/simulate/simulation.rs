//! One world, run to its end: processes that die, people who act, and the oracle after every group of steps.

use std::cell::RefCell;
use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Once};
use std::time::Duration;

use futures::FutureExt;
use futures::future::{Either, join_all, select};
use tokio::time::Instant;
use umbel::{
    Compactor, Event, InMemorySessions, Result, RunConfig, RunLimits, Runner, SessionKey, SessionStore,
    ToolErrors, UnfinishedCalls,
};

use super::agents::{AgentWorld, for_polls};
use super::fault_store::{FaultPlan, FaultStore, Lifeline, wait_now};
use super::ledger::{Ledger, Violation};
use super::oracle::Oracle;
use super::person::Person;
use super::services::{SimClock, SimIds, StoreClock};
use super::tools::{PANIC, ToolWorld};
use super::world::{FOREVER, ScriptStep, SimWorld, StoreShape, millis};

/// The app of all sessions.
pub(super) const APP: &str = "app";

/// How the ledger calls a step whose future was dropped.
pub(super) const DROPPED: &str = "step.drop";

/// The longest that anything waits which has no limit of its own.
const LONG: Duration = Duration::from_secs(3_600);

/// What a run's last write may take, however short the grace is.
const LAST_WRITE: Duration = Duration::from_secs(5);

/// Which store is simulated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StoreChoice {
    Memory,
    Sqlite,
}

/// What came of a world.
#[derive(Debug)]
pub(super) struct SimReport {
    pub(super) violations: Vec<Violation>,
    pub(super) digest: u64,
    pub(super) ledger: Ledger,
    /// The logs at the end, as text.
    pub(super) logs: Vec<String>,
}

/// All that outlives the processes of a simulation.
#[derive(Clone, Debug)]
pub(super) struct Stage {
    pub(super) world: Arc<SimWorld>,
    pub(super) store: Arc<dyn SessionStore>,
    pub(super) ledger: Ledger,
    pub(super) plan: Arc<FaultPlan>,
    pub(super) clock: SimClock,
    pub(super) ids: SimIds,
    pub(super) sessions: Arc<std::sync::Mutex<Vec<SessionKey>>>,
    /// How many sessions a runner caches.
    pub(super) hot_sessions: usize,
}

/// A simulated process: two runners over one store with faults.
#[derive(Clone, Debug)]
pub(super) struct SimProcess {
    pub(super) stage: Stage,
    pub(super) runner: Runner,
    pub(super) second: Runner,
    pub(super) life: Arc<Lifeline>,
}

thread_local! {
    /// Panics of this thread that are not part of a world; `None` outside of simulations.
    static PANICS: RefCell<Option<Vec<String>>> = const { RefCell::new(None) };
}

/// Collects panics of simulations instead of printing them.
fn watch_panics() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            let is_collected = PANICS.with_borrow_mut(|panics| {
                let Some(panics) = panics else { return false };
                let text = info.to_string();
                if !text.contains(PANIC) {
                    panics.push(text);
                }
                true
            });
            if !is_collected {
                before(info);
            }
        }));
    });
}

/// Panics since the last call.
pub(super) fn take_panics() -> Vec<String> {
    PANICS.with_borrow_mut(|panics| panics.as_mut().map(std::mem::take).unwrap_or_default())
}

fn runtime() -> std::io::Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build()
}

/// Runs a world. `is_cold` turns the cache of sessions off.
pub(super) fn simulate(
    world: &SimWorld,
    choice: StoreChoice,
    is_cold: bool,
    keeps_lines: bool,
) -> Result<SimReport, String> {
    watch_panics();
    PANICS.with_borrow_mut(|panics| *panics = Some(Vec::new()));
    let ledger = Ledger::new(keeps_lines);
    let work = || simulate_watched(world, choice, is_cold, &ledger);
    let report = std::panic::catch_unwind(AssertUnwindSafe(work));
    let panics = PANICS.with_borrow_mut(Option::take).unwrap_or_default();
    report.unwrap_or_else(|_| {
        let detail = panics.join("; ");
        let violations = vec![Violation { check: "no-panic", detail }];
        Ok(SimReport { violations, digest: ledger.digest(), ledger, logs: Vec::new() })
    })
}

fn simulate_watched(
    world: &SimWorld,
    choice: StoreChoice,
    is_cold: bool,
    ledger: &Ledger,
) -> Result<SimReport, String> {
    let first = runtime().map_err(|error| error.to_string())?;
    let clock = first.block_on(SimClock::start());
    let mut folder = None;
    let store: Arc<dyn SessionStore> = match choice {
        StoreChoice::Memory => Arc::new(InMemorySessions::new()),
        StoreChoice::Sqlite => {
            let folder = folder.insert(tempfile::tempdir().map_err(|error| error.to_string())?);
            let options = umbel_stores::Sqlite::options(folder.path().join("sim.db"));
            let opened =
                futures::executor::block_on(options.clock(StoreClock(clock.clone())).readers(1).open());
            Arc::new(opened.map_err(|error| error.to_string())?)
        }
    };
    let stage = Stage {
        world: Arc::new(world.clone()),
        store,
        ledger: ledger.clone(),
        plan: Arc::new(FaultPlan::new(world.store.faults.clone())),
        clock,
        ids: SimIds::default(),
        sessions: Arc::default(),
        hot_sessions: if is_cold { 0 } else { world.hot_sessions },
    };
    let logs = stage.run_processes(first).map_err(|error| error.to_string())?;
    let violations = ledger.lock().violations.clone();
    Ok(SimReport { violations, digest: ledger.digest(), ledger: ledger.clone(), logs })
}

impl Stage {
    /// Runs the script, with a new process whenever one dies, and then the oracle. Gives the logs.
    fn run_processes(&self, first: tokio::runtime::Runtime) -> std::io::Result<Vec<String>> {
        let groups = groups(&self.world.script);
        let (mut next, mut elapsed, mut current) = (0, Duration::ZERO, Some(first));
        loop {
            let runtime = match current.take() {
                Some(runtime) => runtime,
                None => runtime()?,
            };
            let ended = runtime.block_on(async {
                self.clock.catch_up(elapsed).await;
                let process = match self.process() {
                    Ok(process) => process,
                    Err(error) => {
                        self.ledger.violate("setup", error.to_string());
                        return Some(Vec::new());
                    }
                };
                let life = process.life.clone();
                let script = Box::pin(process.run_groups(&groups, &mut next));
                let ended = match select(script, Box::pin(life.died())).await {
                    Either::Left((logs, _)) => Some(logs),
                    Either::Right(_) => None,
                };
                elapsed = self.clock.elapsed();
                ended
            });
            if let Some(logs) = ended {
                return Ok(logs);
            }
            self.ledger.count("process.death");
            drop(runtime);
            if self.plan.is_exhausted() {
                return Ok(Vec::new());
            }
        }
    }

    fn config(&self) -> RunConfig {
        let limits = &self.world.limits;
        RunConfig {
            streaming: self.world.streaming,
            create_session: self.world.creates_sessions,
            wait_for_session: millis(limits.wait_ms),
            tool_errors: if self.world.tool_errors_fail { ToolErrors::Fail } else { ToolErrors::ToModel },
            unfinished_calls: match self.world.asks_unfinished {
                true => UnfinishedCalls::Ask,
                false => UnfinishedCalls::Report,
            },
            limits: RunLimits {
                model_calls: 24,
                run_time: millis(limits.run_ms),
                tool_time: millis(limits.tool_ms),
                grace: millis(limits.grace_ms),
                lease: millis(limits.lease_ms),
                ..RunLimits::default()
            },
            ..RunConfig::default()
        }
    }

    /// A runner with nothing in its cache, over the store without faults.
    pub(super) fn cold_runner(&self) -> Result<Runner> {
        let life = Arc::new(Lifeline::default());
        let shape = StoreShape { immediate: false, latency_ms: 0, faults: Vec::new() };
        self.runner(self.fault_store(shape, Arc::default(), &life), &life, 0)
    }

    fn fault_store(&self, shape: StoreShape, plan: Arc<FaultPlan>, life: &Arc<Lifeline>) -> FaultStore {
        let (inner, life) = (self.store.clone(), life.clone());
        FaultStore { inner, shape, plan, life, ledger: self.ledger.clone(), clock: self.clock.clone() }
    }

    /// A runner over this store.
    fn runner(&self, store: impl SessionStore + 'static, life: &Arc<Lifeline>, hot: usize) -> Result<Runner> {
        let tools = ToolWorld { ledger: self.ledger.clone(), life: life.clone() };
        let is_alone = self.world.root.children.is_empty() && !self.may_abandon() && !self.has_company();
        let agents = AgentWorld { tools, clock: self.clock.clone(), is_alone };
        let root = agents.build(&self.world.root);
        let mut builder = Runner::builder(APP, root)
            .sessions(store)
            .config(self.config())
            .clock(self.clock.clone())
            .ids(self.ids.clone())
            .hot_sessions(hot);
        for handler in &self.world.handlers {
            builder = builder.handler(agents.handler(*handler));
        }
        if let Some(every) = self.world.compacts_every {
            let ledger = self.ledger.clone();
            let summariser = move |events: Vec<Arc<Event>>| {
                ledger.count("summary");
                let text = format!("summary of {} events", events.len());
                async move { Ok(text) }
            };
            builder = builder.compaction(Compactor::every(every, 0).summariser(summariser));
        }
        builder.build()
    }

    fn process(&self) -> Result<SimProcess> {
        let life = Arc::new(Lifeline::default());
        let store = self.fault_store(self.world.store.clone(), self.plan.clone(), &life);
        let runner = self.runner(store.clone(), &life, self.hot_sessions)?;
        let second = self.runner(store, &life, self.hot_sessions)?;
        Ok(SimProcess { stage: self.clone(), runner, second, life })
    }

    /// The session of a step.
    pub(super) fn session(&self, number: u8) -> Option<SessionKey> {
        let sessions = self.sessions.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let place = usize::from(number).checked_rem(sessions.len())?;
        sessions.get(place).cloned()
    }

    pub(super) fn all_sessions(&self) -> Vec<SessionKey> {
        self.sessions.lock().unwrap_or_else(std::sync::PoisonError::into_inner).clone()
    }

    /// A new session of the script.
    pub(super) fn add_session(&self, key: SessionKey) {
        self.sessions.lock().unwrap_or_else(std::sync::PoisonError::into_inner).push(key);
    }

    /// How long a run may take from its beginning, all limits included. `None` without a limit.
    pub(super) fn longest_run(&self) -> Option<Duration> {
        let limits = &self.world.limits;
        if [limits.run_ms, limits.grace_ms, limits.wait_ms].contains(&FOREVER) {
            return None;
        }
        // What comes after a run has the same limits, and so has the run that was cut short before it.
        let parts = 1 + u64::from(self.has_wind_up()) + u64::from(self.may_abandon());
        Some(Duration::from_millis(limits.wait_ms + parts * (limits.run_ms + limits.grace_ms)) + self.slack())
    }

    /// Whether runs may be left without an outcome.
    fn may_abandon(&self) -> bool {
        let kills = |step: &ScriptStep| step.act == super::world::PersonAct::KillsProcess;
        !self.world.store.faults.is_empty() || self.world.script.iter().any(kills)
    }

    /// Whether people act side by side.
    fn has_company(&self) -> bool {
        self.world.script.iter().any(|step| step.beside)
    }

    /// Whether handlers or a compactor work after the last event.
    pub(super) fn has_wind_up(&self) -> bool {
        use super::world::HandlerShape::WaitsAfterRun;
        self.world.compacts_every.is_some()
            || self.world.handlers.iter().any(|handler| matches!(handler, WaitsAfterRun(_)))
    }

    /// What the store itself takes for a few operations, and what the last write of a run may take in any case.
    pub(super) fn slack(&self) -> Duration {
        Duration::from_millis(500 + 8 * self.world.store.latency_ms) + LAST_WRITE
    }

    /// The length of a lease, as far as anybody waits for one.
    pub(super) fn lease(&self) -> Duration {
        millis(self.world.limits.lease_ms).min(LONG)
    }
}

/// Steps that run beside each other.
fn groups(script: &[ScriptStep]) -> Vec<Vec<ScriptStep>> {
    let mut groups: Vec<Vec<ScriptStep>> = Vec::new();
    for step in script {
        match groups.last_mut() {
            Some(group) if step.beside => group.push(step.clone()),
            _ => groups.push(vec![step.clone()]),
        }
    }
    groups
}

impl SimProcess {
    /// Runs what is left of the script, and the oracle. Gives the logs.
    async fn run_groups(&self, groups: &[Vec<ScriptStep>], next: &mut usize) -> Vec<String> {
        if self.stage.all_sessions().is_empty() {
            self.create_sessions();
        }
        let oracle = Oracle { stage: &self.stage };
        while let Some(group) = groups.get(*next) {
            // A process that dies in a group goes on with the next one.
            *next += 1;
            join_all(group.iter().map(|step| self.step(step))).await;
            self.alive().await;
            self.quiet().await;
            self.alive().await;
            oracle.after_group();
        }
        self.recover_all().await;
        oracle.at_end(self).await
    }

    /// Waits for ever if the process is dead.
    async fn alive(&self) {
        if self.life.is_dead() {
            std::future::pending::<()>().await;
        }
    }

    fn create_sessions(&self) {
        for (user, id) in [("ann", "s-a"), ("bob", "s-b")] {
            let Ok(key) = SessionKey::new(APP, user, id) else { continue };
            if !self.stage.world.creates_sessions {
                self.stage.ledger.created(&key);
                let created = wait_now(self.stage.store.create(umbel::NewSession::new(key.clone())));
                if let Err(error) = created {
                    self.stage.ledger.violate("setup", error.to_string());
                }
            }
            self.stage.add_session(key);
        }
    }

    async fn step(&self, step: &ScriptStep) {
        if step.delay_ms > 0 {
            tokio::time::sleep(millis(step.delay_ms)).await;
        }
        let runner = if step.second_runner { &self.second } else { &self.runner };
        let person = Person { process: self, runner, session: step.session };
        let act = for_polls(step.polls.unwrap_or(u32::MAX), person.act(&step.act));
        match AssertUnwindSafe(act).catch_unwind().await {
            Ok(Some(())) => {}
            Ok(None) => self.stage.ledger.count(DROPPED),
            Err(_) => self.stage.ledger.count("step.panic"),
        }
    }

    /// Waits until no task is left, as long as a run may take.
    async fn quiet(&self) {
        let handle = tokio::runtime::Handle::current();
        let longest = self.stage.longest_run().unwrap_or(LONG) + self.stage.lease();
        let until = Instant::now() + longest;
        let mut pause = Duration::from_millis(5);
        while handle.metrics().num_alive_tasks() > 0 {
            if Instant::now() >= until && self.stage.ledger.lock().hangs {
                // The task that asked for it waits for ever, too.
                return;
            }
            if Instant::now() >= until {
                let alive = handle.metrics().num_alive_tasks();
                let detail = format!("{alive} tasks are alive {longest:?} after their readers went away");
                self.stage.ledger.violate("tasks-end", detail);
                return;
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(Duration::from_secs(1));
        }
    }

    /// Lets the leases of dead runs expire and recovers them, without faults from now on.
    async fn recover_all(&self) {
        self.stage.plan.stop();
        // Sessions of calls are in no list while a dead process holds them.
        let mut may_hold = self.stage.may_abandon();
        for _ in 0..8 {
            let abandoned = wait_now(self.stage.store.abandoned(APP)).unwrap_or_default();
            let held = wait_now(self.stage.store.idle(APP, umbel::store::IdleFilter::before(f64::MAX)))
                .unwrap_or_default();
            if abandoned.is_empty() && !held.iter().any(|idle| idle.held) && !may_hold {
                return;
            }
            may_hold = false;
            tokio::time::sleep(self.stage.lease() + Duration::from_millis(10)).await;
            self.stage.clock.elapsed();
            let Ok(runner) = self.stage.cold_runner() else { return };
            let bound = self.stage.longest_run().unwrap_or(LONG) * 8;
            match tokio::time::timeout(bound, runner.recover()).await {
                Ok(Ok(recovered)) => {
                    for one in recovered {
                        self.stage.ledger.count("recovered");
                        let at = self.stage.clock.elapsed();
                        self.stage.ledger.trace(at, "recovered", || format!("{:?}", one.outcome));
                    }
                }
                Ok(Err(error)) => self.stage.ledger.violate("recovers", error.to_string()),
                Err(_) => self.stage.ledger.violate("recovers", format!("not done after {bound:?}")),
            }
            self.quiet().await;
        }
    }
}
