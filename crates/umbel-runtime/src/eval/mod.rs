//! Cases that agents are measured by: what is said to them, and which calls, answers, states and costs are expected.
//!
//! `umbel eval` reads cases from files. In a test of your own they are run like this:
//!
//! ```
//! use umbel_runtime::eval::{Case, Eval, Suite, Turn};
//! use umbel_runtime::{LlmAgent, Runner, ScriptedModel};
//!
//! # let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
//! # runtime.block_on(async {
//! let eval = Eval::new(|| {
//!     let agent = LlmAgent::new("greeter").model(ScriptedModel::new("demo").text("Hello, Ann!"));
//!     Ok(Runner::builder("greeter", agent))
//! });
//! let cases = vec![Case::new("greets", [Turn::new("Hi, I am Ann").contains("Ann")])];
//! let report = eval.run(&Suite { cases, ..Suite::default() }).await?;
//! assert!(report.passed(), "{}", report.failures());
//! # Ok::<(), umbel_core::Error>(())
//! # }).unwrap();
//! ```
//!
//! # Layout
//! - `case`: the cases; `report`: what came of them
//! - `conversation`: has the conversation of a case; `mock`: what tools give meanwhile
//! - `checks`: measures it; `tools`, `overlap` and `judge` do a metric each; `stem` helps `overlap`

mod case;
mod checks;
mod conversation;
mod judge;
mod mock;
mod overlap;
mod report;
mod stem;
mod tools;

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;

use futures::{StreamExt, TryStreamExt, stream};
use umbel_core::{Error, ErrorKind, Result};

pub use self::case::{
    ArgsMatch, Case, Decision, Expected, ExpectedCall, Gates, JudgeChoice, Limits, Metric, Mock, Reply,
    Suite, Texts, Thresholds, ToolsMatch, Turn,
};
pub use self::judge::Judge;
pub use self::overlap::overlap;
pub use self::report::{CaseReport, Change, Check, Gate, Report, RunReport, Score, Spent};

use self::mock::Mocks;
use crate::runner::RunnerBuilder;
use crate::usage::Prices;

/// How often a case may be run, at most: beyond it, somebody typed one digit too many.
pub const MOST_RUNS: u32 = 10_000;

type Make = Arc<dyn Fn() -> Result<RunnerBuilder> + Send + Sync>;
type Tell = Arc<dyn Fn(&str, &RunReport) + Send + Sync>;

/// Runs cases.
///
/// Each run of a case has a runner and a session of its own, so that none sees what another left.
#[derive(Clone)]
pub struct Eval {
    make: Make,
    judge: Option<Judge>,
    prices: Arc<Prices>,
    runs: Option<u32>,
    jobs: usize,
    tell: Option<Tell>,
}

impl Eval {
    /// Evaluates what the closure makes: it is called for each run of each case.
    pub fn new(make: impl Fn() -> Result<RunnerBuilder> + Send + Sync + 'static) -> Self {
        let prices = Arc::new(Prices::new());
        Self { make: Arc::new(make), judge: None, prices, runs: None, jobs: 1, tell: None }
    }

    /// Who judges rubrics.
    pub fn judge(mut self, judge: Judge) -> Self {
        self.judge = Some(judge);
        self
    }

    /// What models cost. What is not known of is not taken as free.
    pub fn prices(mut self, prices: impl Into<Arc<Prices>>) -> Self {
        self.prices = prices.into();
        self
    }

    /// How often each case is run, whatever the cases say: at most [`MOST_RUNS`] times.
    pub fn runs(mut self, runs: u32) -> Self {
        self.runs = Some(runs.max(1));
        self
    }

    /// How many runs go on at once; one unless said. Latency is measured best with one.
    pub fn jobs(mut self, jobs: usize) -> Self {
        self.jobs = jobs.max(1);
        self
    }

    /// Is told of each run as it is done, with the name of its case.
    pub fn on_run(mut self, tell: impl Fn(&str, &RunReport) + Send + Sync + 'static) -> Self {
        self.tell = Some(Arc::new(tell));
        self
    }

    /// How many runs a case gets.
    pub fn runs_of(&self, suite: &Suite, case: &Case) -> u32 {
        self.runs.or(case.runs).or(suite.runs).unwrap_or(1).max(1)
    }

    /// Runs all cases. An error means that they cannot be run at all: a regex or a schema that is none, rubrics without a
    /// judge, agents that cannot be built.
    pub async fn run(&self, suite: &Suite) -> Result<Report> {
        validate(suite, self.judge.is_some())?;
        suite.cases.iter().try_for_each(|case| few_enough(case, self.runs_of(suite, case)))?;
        let runs = suite
            .cases
            .iter()
            .enumerate()
            .flat_map(|(index, case)| (0..self.runs_of(suite, case)).map(move |_| (index, case)));
        let runs: Vec<(usize, &Case)> = runs.collect();
        let reports: Vec<(usize, RunReport)> = stream::iter(runs)
            .map(|(index, case)| async move { Ok::<_, Error>((index, self.run_case(suite, case).await?)) })
            .buffered(self.jobs)
            .try_collect()
            .await?;
        let named = |case: &Case| CaseReport { name: case.name.clone(), runs: Vec::new() };
        let mut cases: Vec<CaseReport> = suite.cases.iter().map(named).collect();
        for (index, report) in reports {
            cases.get_mut(index).into_iter().for_each(|case| case.runs.push(report.clone()));
        }
        Ok(Report::new(cases, &suite.gates))
    }

    async fn run_case(&self, suite: &Suite, case: &Case) -> Result<RunReport> {
        let mocks = Arc::new(Mocks::new(case));
        let runner = (self.make)()?.stand_in(mocks.clone()).build()?;
        let talk = conversation::talk(&runner, case).await;
        let spent = checks::spent(&talk, &mocks.seen(), &self.prices);
        let found = checks::check(case, &talk, &spent, self.judge.as_ref()).await?;
        let report = RunReport::of(suite, case, found, spent);
        if let Some(tell) = &self.tell {
            tell(&case.name, &report);
        }
        Ok(report)
    }
}

/// Says what is wrong with cases before any of them is run.
pub fn validate(suite: &Suite, has_judge: bool) -> Result<()> {
    let bad = |what: String| Err(Error::new(ErrorKind::InvalidInput, what));
    if suite.cases.is_empty() {
        return bad("there are no cases: add a [[case]]".to_owned());
    }
    let mut names = BTreeSet::new();
    for case in &suite.cases {
        let name = &case.name;
        if name.trim().is_empty() {
            return bad("a case has no name: add `name = \"…\"`".to_owned());
        }
        if !names.insert(name.as_str()) {
            return bad(format!("two cases have the name `{name}`: give one of them another"));
        }
        if case.turns.is_empty() {
            return bad(format!("case `{name}` says nothing: add a [[case.turn]] with `user = \"…\"`"));
        }
        if let Some(turn) = case.turns.iter().position(|turn| turn.user.parts.is_empty()) {
            return bad(format!("turn {} of case `{name}` says nothing: add `user = \"…\"`", turn + 1));
        }
        let rubrics = case.turns.iter().map(|turn| turn.rubrics.len()).sum::<usize>() + case.rubrics.len();
        if rubrics > 0 && !has_judge {
            return bad(format!("case `{name}` has rubrics, but nobody judges them: name a model as judge"));
        }
        if let Some(mock) = case.mocks.iter().find(|mock| mock.tool.is_empty()) {
            return bad(format!("a mock of case `{name}` names no tool: {mock:?}"));
        }
        for response in case.turns.iter().map(|turn| &turn.response) {
            checks::are_readable(response)
                .or_else(|error| bad(format!("case `{name}`: {}", error.message())))?;
        }
        in_range(&case.thresholds).or_else(|metric| bad(out_of_range(metric)))?;
    }
    in_range(&suite.thresholds).or_else(|metric| bad(out_of_range(metric)))?;
    in_range(&suite.gates.metrics).or_else(|metric| bad(out_of_range(metric)))?;
    match suite.gates.min_pass {
        Some(share) if !(0.0..=1.0).contains(&share) => bad(out_of_range("min_pass")),
        _ => Ok(()),
    }
}

fn few_enough(case: &Case, runs: u32) -> Result<()> {
    if runs <= MOST_RUNS {
        return Ok(());
    }
    let message = format!("case `{}` is to be run {runs} times: {MOST_RUNS} are the most", case.name);
    Err(Error::new(ErrorKind::InvalidInput, message))
}

fn in_range(thresholds: &Thresholds) -> std::result::Result<(), &'static str> {
    let out = thresholds.iter().find(|(_, score)| !(0.0..=1.0).contains(*score));
    out.map_or(Ok(()), |(metric, _)| Err(metric.as_str()))
}

fn out_of_range(what: &str) -> String {
    format!("`{what}` must be between 0 and 1")
}

impl fmt::Debug for Eval {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Eval({:?}, {} at once)", self.judge, self.jobs)
    }
}
