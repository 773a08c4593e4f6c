//! `cargo xtask crash`: processes that run agents are killed, and nothing is lost.
//!
//! A child process runs a [scenario] on a few sessions at once. It is killed with SIGKILL at every
//! [point](killer) of its work, that is before and after each write and each effect of a tool, and at random moments. A
//! second process, and this one, recover what it left. Then the logs and what the tools did are [looked at](audit). The
//! same is done while the database server is killed.

mod audit;
mod child;
mod files;
mod killer;
mod lane;
mod place;
mod scenario;
mod store;
mod table;

use std::path::Path;
use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::PoisonError;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use tokio::runtime::Runtime;
use umbel::BoxError;

pub(crate) use self::child::main as child_main;
pub(crate) use self::place::CHILD;

use self::lane::Lane;
use self::scenario::{SCENARIOS, Scenario};
use self::table::Row;
use crate::postgres::Server;
use crate::test::Verdict;

/// Lanes that work at once: they mostly wait for leases to run out.
const LANES: usize = 4;

/// Scenarios of the short form: the ones with most to lose.
const SHORT: [&str; 4] = ["batch", "agent-tool", "approval", "ask"];

/// Children on SQLite, children on PostgreSQL, and the server of PostgreSQL itself.
const TARGETS: [&str; 3] = ["sqlite", "postgres", "server"];

/// What is to be done.
struct Plan {
    scenarios: Vec<&'static Scenario>,
    /// Random kills per store.
    random: usize,
    /// Random stops per store.
    stops: usize,
    /// How often the server is killed.
    server_kills: u32,
    /// What is killed on which store, of [`TARGETS`].
    targets: Vec<&'static str>,
    seed: u64,
}

impl Plan {
    fn full() -> Self {
        let seed = fastrand::u64(..1_000_000);
        let scenarios = SCENARIOS.iter().collect();
        Self { scenarios, random: 300, stops: 40, server_kills: 30, targets: TARGETS.to_vec(), seed }
    }

    fn short() -> Self {
        let scenarios = SCENARIOS.iter().filter(|scenario| SHORT.contains(&scenario.name)).collect();
        Self { scenarios, random: 15, stops: 2, server_kills: 1, ..Self::full() }
    }

    /// The plan that the command line asks for.
    fn from_args(mut args: impl Iterator<Item = String>) -> Result<Self, BoxError> {
        let mut plan = Self::full();
        while let Some(arg) = args.next() {
            let mut value = || args.next().ok_or(format!("{arg} needs a value"));
            match arg.as_str() {
                "--short" => plan = Self { seed: plan.seed, ..Self::short() },
                "--random" => plan.random = value()?.parse()?,
                "--stops" => plan.stops = value()?.parse()?,
                "--server-kills" => plan.server_kills = value()?.parse()?,
                "--seed" => plan.seed = value()?.parse()?,
                "--scenario" => plan.scenarios = vec![named(SCENARIOS, |scenario| scenario.name, &value()?)?],
                "--target" => plan.targets = vec![*named(&TARGETS, |target| target, &value()?)?],
                other => return Err(format!("there is no option `{other}`").into()),
            }
        }
        Ok(plan)
    }
}

/// The one of that name.
fn named<'a, T>(all: &'a [T], name: impl Fn(&'a T) -> &'a str, wanted: &str) -> Result<&'a T, String> {
    all.iter().find(|one| name(one) == wanted).ok_or_else(|| {
        let names: Vec<&str> = all.iter().map(&name).collect();
        format!("there is no `{wanted}`, only {}", names.join(", "))
    })
}

pub(crate) fn main(args: impl Iterator<Item = String>) -> ExitCode {
    let plan = match Plan::from_args(args) {
        Ok(plan) => plan,
        Err(why) => {
            eprintln!("{why}");
            return ExitCode::from(2);
        }
    };
    match carry_out(&plan) {
        Ok(verdict) => match verdict {
            Verdict::Passed => ExitCode::SUCCESS,
            Verdict::Failed(why) | Verdict::NotRun(why) => {
                eprintln!("{why}");
                ExitCode::FAILURE
            }
        },
        Err(why) => {
            eprintln!("{why}");
            ExitCode::FAILURE
        }
    }
}

/// `cargo xtask test crash`: the short form.
pub(crate) fn check() -> Verdict {
    carry_out(&Plan::short()).unwrap_or_else(|why| Verdict::Failed(why.to_string()))
}

/// A runtime for many short tasks.
fn runtime() -> Result<Runtime, BoxError> {
    Ok(tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?)
}

fn carry_out(plan: &Plan) -> Result<Verdict, BoxError> {
    let (started, runtime) = (Instant::now(), runtime()?);
    let folder = tempfile::tempdir()?;
    println!("seed {}", plan.seed);
    table::header();
    let mut rows = Vec::new();
    let mut missing = None;
    for target in &plan.targets {
        if *target == "sqlite" {
            rows.extend(kill_children(plan, &runtime, folder.path(), target, None)?);
            continue;
        }
        match Server::start() {
            Ok(server) if *target == "server" => {
                rows.extend(kill_server(plan, &runtime, folder.path(), &server)?);
            }
            Ok(server) => {
                rows.extend(kill_children(plan, &runtime, folder.path(), target, Some(&server.url()))?);
            }
            Err(why) => missing = Some(why),
        }
    }
    table::total(&rows);
    println!("{} s", started.elapsed().as_secs());
    let problems: Vec<&String> = rows.iter().flat_map(|row| &row.findings.problems).collect();
    if !problems.is_empty() {
        for problem in problems.iter().take(40) {
            println!("  {problem}");
        }
        let folder = folder.keep();
        return Ok(Verdict::Failed(format!(
            "{} problems; all about them is in {}",
            problems.len(),
            folder.display()
        )));
    }
    Ok(match missing {
        Some(why) => Verdict::NotRun(format!("PostgreSQL was left out: {why}")),
        None => Verdict::Passed,
    })
}

/// Kills children at every point and at random moments, a few scenarios at a time.
fn kill_children(
    plan: &Plan,
    runtime: &Runtime,
    folder: &Path,
    store: &'static str,
    server: Option<&str>,
) -> Result<Vec<Row>, BoxError> {
    let (next, rows) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    let work = || -> Result<(), String> {
        while let Some(scenario) = plan.scenarios.get(next.fetch_add(1, Ordering::Relaxed)) {
            let lane = async {
                let lane = Lane::open(scenario, folder, store, server.map(str::to_owned)).await?;
                kill_one(plan, lane, store).await
            };
            let done = runtime.block_on(lane).map_err(|why| format!("{store}, {}: {why}", scenario.name))?;
            rows.lock().unwrap_or_else(PoisonError::into_inner).extend(done);
        }
        Ok(())
    };
    std::thread::scope(|scope| {
        let lanes: Vec<_> = (0..LANES).map(|_| scope.spawn(work)).collect();
        let join = |lane: std::thread::ScopedJoinHandle<'_, Result<(), String>>| {
            lane.join().unwrap_or_else(|_| Err("a lane panicked".to_owned()))
        };
        // All are waited for, also when one fails.
        let results: Vec<_> = lanes.into_iter().map(join).collect();
        results.into_iter().collect::<Result<Vec<()>, String>>()
    })?;
    let mut rows = rows.into_inner().unwrap_or_else(PoisonError::into_inner);
    rows.sort_by_key(|row: &Row| row.store);
    Ok(rows)
}

/// Kills the children of one lane, then stops some.
async fn kill_one(plan: &Plan, mut lane: Lane, store: &'static str) -> Result<[Row; 2], BoxError> {
    let mut dice = fastrand::Rng::with_seed(plan.seed);
    for point in lane.points.clone() {
        lane.kill_at(point).await?;
    }
    lane.expect_unknown();
    for _ in 0..plan.random.div_ceil(plan.scenarios.len()) {
        lane.kill_sometime(&mut dice).await?;
    }
    let killed = lane.row(store);
    killed.print();
    for _ in 0..plan.stops.div_ceil(plan.scenarios.len()) {
        lane.stop_sometime(&mut dice).await?;
    }
    lane.look_for_strays().await?;
    let stopped = lane.row(if store == "sqlite" { "sqlite, stopped" } else { "postgres, stopped" });
    stopped.print();
    Ok([killed, stopped])
}

/// Kills the database server while all scenarios are at work, and starts it again.
fn kill_server(plan: &Plan, runtime: &Runtime, folder: &Path, server: &Server) -> Result<Vec<Row>, BoxError> {
    let mut dice = fastrand::Rng::with_seed(plan.seed);
    runtime.block_on(async {
        let mut lanes = Vec::new();
        for scenario in &plan.scenarios {
            lanes.push(Lane::open(scenario, folder, "server", Some(server.url())).await?);
        }
        for _ in 0..plan.server_kills {
            let mut working = lanes.iter_mut().map(Lane::start).collect::<Result<Vec<_>, _>>()?;
            working.iter_mut().try_for_each(lane::Working::ready)?;
            let longest = working.iter().map(|working| working.length).max().unwrap_or_default();
            let (moment, pause) = (longest.mul_f64(dice.f64()), Duration::from_millis(dice.u64(..400)));
            tokio::time::sleep(moment).await;
            server.kill()?;
            tokio::time::sleep(pause).await;
            server.restart()?;
            let when = format!("server killed after {} µs for {} ms", moment.as_micros(), pause.as_millis());
            for (lane, working) in lanes.iter_mut().zip(working) {
                lane.finish(working, &when).await?;
            }
        }
        let mut rows = Vec::new();
        for mut lane in lanes {
            lane.look_for_strays().await?;
            let row = lane.row(table::SERVER_KILLED);
            row.print();
            rows.push(row);
        }
        Ok(rows)
    })
}
