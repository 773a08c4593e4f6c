//! Counting what models take and what it costs, and limits on that.

use std::fmt;
use std::sync::Arc;

use smol_str::SmolStr;
use umbel_core::{
    AgentPlan, AgentTurn, Content, Error, ErrorKind, Event, Handler, ModelTurn, Outcome, Part, Result, Run,
    Step,
};
use umbel_macros::handler;

use super::limits::ModelLimitExit;
use crate::models::model_of;
use crate::text;
use crate::usage::book::Book;
use crate::usage::{Money, Prices, Tally};

/// Counts the tokens that a run and its session use, and what they cost, by model.
///
/// Give it to the runner: then every model call of its runs counts, those of sub-agents, of agents that are called as
/// tools, of summaries and of tool selection included. One that is given to an agent counts the run from that agent's first
/// turn on, and its session knows of it with that agent's events. Attempts that failed or were rejected count as far as the model told what they took. A summariser
/// or a tool that asks a model of its own is not seen.
///
/// [`Used`](crate::usage::Used) tells what was counted: to tools and handlers while a run lasts, and by a session's state
/// afterwards. What a session has used stays, whatever happens to its process, and is not taken back by a rewind.
///
/// ```
/// use umbel_runtime::handlers::UsageLedger;
/// use umbel_runtime::usage::{Money, Price, Prices, Used};
/// use umbel_runtime::{LlmAgent, Runner, ScriptedModel};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> umbel_core::Result<()> {
/// let prices = Prices::new().with("demo", Price::new(Money::dollars(2), Money::dollars(8)));
/// let agent = LlmAgent::new("guide").model(ScriptedModel::new("demo").text("Rome."));
/// let runner = Runner::builder("app", agent).handler(UsageLedger::new(prices)).build()?;
/// let session = runner.create_session("ann").await?;
/// runner.run(&session.key, "Where to?").text().await?;
///
/// let state = runner.session(&session.key).await?.unwrap().state;
/// let used = Used::session_in(&state)?.unwrap().total();
/// // A scripted model does not tell what its answer took, so nobody says that it was free.
/// assert_eq!((used.calls, used.unreported, used.cost()), (1, 1, None));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, Default)]
pub struct UsageLedger {
    prices: Arc<Prices>,
}

impl UsageLedger {
    /// With these prices. The tokens of models that have none are counted, and their cost is said to be unknown.
    pub fn new(prices: impl Into<Arc<Prices>>) -> Self {
        Self { prices: prices.into() }
    }
}

#[handler(crate = umbel_core)]
impl Handler for UsageLedger {
    fn name(&self) -> &str {
        "usage-ledger"
    }

    fn before_agent(&self, turn: &mut AgentTurn<'_>) -> Result<Step> {
        Book::open(turn.run(), Some(&self.prices))?;
        Ok(Step::Continue)
    }

    fn on_event(&self, run: &Run, event: Event) -> Result<Event> {
        stored(run, event)
    }

    async fn after_run(&self, run: &Run, _outcome: &Outcome) -> Result<()> {
        settled(run).await
    }
}

/// The event, with what was used since the last one.
fn stored(run: &Run, mut event: Event) -> Result<Event> {
    if let Some(book) = Book::of(run) {
        book.store(run, &mut event)?;
    }
    Ok(event)
}

/// Writes down what no event carried.
async fn settled(run: &Run) -> Result<()> {
    match Book::of(run) {
        Some(book) => book.settle(run).await,
        None => Ok(()),
    }
}

/// Limits how many tokens a run or a session uses, and how much money it spends.
///
/// It is looked at before each model call, and what a call will take is not known then: the call that goes beyond a limit
/// is the last one. All that a [`UsageLedger`] counts counts here. A limit on money needs the prices of one, and is taken
/// as reached where a model has no price; a limit on tokens needs no ledger.
///
/// ```
/// use umbel_runtime::handlers::{UsageLedger, UsageLimit};
/// use umbel_runtime::usage::{Money, Price, Prices};
/// use umbel_runtime::{LlmAgent, Runner, ScriptedModel};
///
/// let prices = Prices::new().with("demo", Price::new(Money::dollars(2), Money::dollars(8)));
/// let runner = Runner::builder("app", LlmAgent::new("guide").model(ScriptedModel::new("demo")))
///     .handler(UsageLedger::new(prices))
///     .handler(UsageLimit::new().run_tokens(100_000).session_cost(Money::dollars(5)))
///     .build()?;
/// # Ok::<(), umbel_core::Error>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct UsageLimit {
    run: Bound,
    session: Bound,
    exit: ModelLimitExit,
}

/// How much may be used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Bound {
    tokens: Option<u64>,
    cost: Option<Money>,
}

/// A limit on tokens or money was reached: the source of the error that a run fails with.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct UsageReached {
    /// What the run has used.
    pub run: Tally,
    /// What its session has used.
    pub session: Tally,
    /// A model whose price is not known, if that is the reason.
    pub unpriced: Option<SmolStr>,
    /// What was used up, in words.
    used_up: String,
}

impl fmt::Display for UsageReached {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.used_up)
    }
}

impl std::error::Error for UsageReached {}

impl UsageLimit {
    /// No limit yet: there must be one.
    pub fn new() -> Self {
        Self::default()
    }

    /// How many tokens a run may use: of prompts, answers and thoughts.
    pub fn run_tokens(mut self, limit: u64) -> Self {
        self.run.tokens = Some(limit);
        self
    }

    /// How many tokens a session may use, over all its runs.
    pub fn session_tokens(mut self, limit: u64) -> Self {
        self.session.tokens = Some(limit);
        self
    }

    /// How much a run may cost.
    pub fn run_cost(mut self, limit: Money) -> Self {
        self.run.cost = Some(limit);
        self
    }

    /// How much a session may cost, over all its runs.
    pub fn session_cost(mut self, limit: Money) -> Self {
        self.session.cost = Some(limit);
        self
    }

    /// What happens then.
    pub fn exit(mut self, exit: ModelLimitExit) -> Self {
        self.exit = exit;
        self
    }

    /// Why the model may not be asked any more, if it may not.
    fn reached(&self, run: &Run) -> Result<Option<UsageReached>> {
        let book = Book::open(run, None)?;
        let by_model = book.session();
        let (of_run, of_session) = (book.run().total(), by_model.total());
        let mut used_up = self.session.used_up(&of_session, "session");
        used_up.extend(self.run.used_up(&of_run, "run"));
        let limits_cost = self.run.cost.is_some() || self.session.cost.is_some();
        let unpriced = if limits_cost && used_up.is_empty() {
            let next = model_of(run).map(|model| model.name()).filter(|name| !book.has_price(name));
            let asked = || by_model.models().find(|(_, tally)| tally.unpriced > 0).map(|(name, _)| name);
            next.or_else(asked).map(SmolStr::from)
        } else {
            None
        };
        used_up.extend(unpriced.as_deref().map(text::no_price));
        let reached =
            UsageReached { run: of_run, session: of_session, unpriced, used_up: used_up.join(", ") };
        Ok((!used_up.is_empty()).then_some(reached))
    }
}

impl Bound {
    /// What is used up, in words.
    fn used_up(&self, used: &Tally, scope: &str) -> Vec<String> {
        let tokens = self.tokens.filter(|limit| used.tokens() >= *limit);
        let tokens = tokens.map(|limit| text::used_of(format!("{} tokens", used.tokens()), limit, scope));
        let cost = self.cost.filter(|limit| used.known_cost >= *limit);
        let cost = cost.map(|limit| text::used_of(used.known_cost, limit, scope));
        tokens.into_iter().chain(cost).collect()
    }
}

#[handler(crate = umbel_core)]
impl Handler for UsageLimit {
    fn name(&self) -> &str {
        "usage-limit"
    }

    fn configure(&self, _plan: &mut AgentPlan) -> Result<()> {
        if (self.run, self.session) == (Bound::default(), Bound::default()) {
            let message = "a limit on usage limits nothing: give it tokens or a cost, of a run or a session";
            return Err(Error::new(ErrorKind::Build, message));
        }
        Ok(())
    }

    fn before_agent(&self, turn: &mut AgentTurn<'_>) -> Result<Step> {
        Book::open(turn.run(), None)?;
        Ok(Step::Continue)
    }

    fn before_model(&self, turn: &mut ModelTurn<'_>) -> Result<Step> {
        let Some(reached) = self.reached(turn.run())? else { return Ok(Step::Continue) };
        let words = text::usage_limit(&reached.used_up);
        match self.exit {
            ModelLimitExit::End => Ok(Step::Respond(Content::model(Part::text(words)))),
            ModelLimitExit::Error => Err(Error::new(ErrorKind::UsageLimit, words).with_source(reached)),
        }
    }

    fn on_event(&self, run: &Run, event: Event) -> Result<Event> {
        stored(run, event)
    }

    async fn after_run(&self, run: &Run, _outcome: &Outcome) -> Result<()> {
        settled(run).await
    }
}
