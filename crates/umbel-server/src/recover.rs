//! Runs of processes that died.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use futures::future::BoxFuture;
use futures::stream::FuturesUnordered;
use smol_str::SmolStr;
use tokio::sync::{Semaphore, watch};
use umbel_core::SessionKey;

use crate::app::App;
use crate::endpoint::AgentEndpoint;
use crate::metrics::Counted;
use crate::panics::caught;
use crate::server::Served;

/// In how many apps it is looked at once for runs that were cut short. Callers may have brought thousands.
const LOOKS: usize = 16;

/// Nobody looks more often than this, however short leases are.
const SHORTEST_PAUSE: Duration = Duration::from_millis(10);

/// Goes on with runs that were cut short for as long as it is polled. A run that takes long keeps neither those of other apps
/// nor those of its own app waiting.
pub(crate) async fn recover_on(mut served: watch::Receiver<Served>) {
    let mut recoveries = Recoveries::default();
    loop {
        let app = served.borrow_and_update().app.clone();
        for endpoint in &app.agents {
            for name in app.apps_of(endpoint) {
                recoveries.look(AppOf { app: app.clone(), endpoint: endpoint.clone(), name });
            }
        }
        let lease = app.agents.iter().map(|agent| agent.runner.config().limits.lease).min();
        let pause = tokio::time::sleep(lease.unwrap_or(Duration::from_secs(30)).max(SHORTEST_PAUSE));
        tokio::select! {
            () = recoveries.work() => {}
            () = pause => {}
            // Nothing is served any more: there is nothing to go on with.
            changed = served.changed() => if changed.is_err() { return },
        }
    }
}

/// An app, as one agent runs it.
#[derive(Clone)]
struct AppOf {
    app: Arc<App>,
    endpoint: Arc<AgentEndpoint>,
    name: SmolStr,
}

type AppId = (usize, SmolStr);

impl AppOf {
    fn id(&self) -> AppId {
        (Arc::as_ptr(&self.endpoint).addr(), self.name.clone())
    }

    /// The sessions of runs that were cut short.
    async fn abandoned(&self) -> HashSet<SessionKey> {
        let looked = async { self.endpoint.runner.sessions().abandoned(&self.name).await };
        match caught("the search for runs that were cut short", looked).await.and_then(|found| found) {
            Ok(found) => found.into_iter().map(|one| one.key).collect(),
            Err(error) => {
                tracing::warn!(app = %self.name, "runs that were cut short could not be looked for: {error}");
                HashSet::new()
            }
        }
    }

    /// Goes on with runs that were cut short, until they have ended.
    async fn recover(&self) {
        let (app, name, runner) = (&self.app, &self.name, &self.endpoint.runner);
        let recover = async {
            match app.is_shared(name, &self.endpoint) {
                true => runner.recover_own(name).await,
                false => runner.recover_app(name).await,
            }
        };
        match caught("a recovery of runs", recover).await.and_then(|recovered| recovered) {
            Ok(recovered) => recovered.iter().for_each(|_| app.metrics.count(Counted::Recovered)),
            Err(error) => tracing::warn!(app = %name, "runs could not be gone on with: {error}"),
        }
    }
}

/// Where it is being looked for runs, and what is under way of those that were found.
struct Recoveries {
    looks: FuturesUnordered<BoxFuture<'static, (AppOf, HashSet<SessionKey>)>>,
    looking: HashSet<AppId>,
    at_work: FuturesUnordered<BoxFuture<'static, (AppId, HashSet<SessionKey>)>>,
    /// Sessions that somebody here goes on with, or is about to.
    taken: HashMap<AppId, HashSet<SessionKey>>,
    /// Only looking takes turns: a run that is gone on with may take long.
    turns: Arc<Semaphore>,
}

impl Default for Recoveries {
    fn default() -> Self {
        Self {
            looks: FuturesUnordered::new(),
            looking: HashSet::new(),
            at_work: FuturesUnordered::new(),
            taken: HashMap::new(),
            turns: Arc::new(Semaphore::new(LOOKS)),
        }
    }
}

impl Recoveries {
    /// Looks for runs of an app, unless somebody does already.
    fn look(&mut self, of: AppOf) {
        if !self.looking.insert(of.id()) {
            return;
        }
        let turns = self.turns.clone();
        self.looks.push(Box::pin(async move {
            let _turn = turns.acquire().await;
            let found = of.abandoned().await;
            (of, found)
        }));
    }

    /// Goes on with what is found, for as long as it is polled.
    async fn work(&mut self) {
        loop {
            tokio::select! {
                Some((of, found)) = self.looks.next() => self.take(of, found),
                Some((id, done)) = self.at_work.next() => self.give_back(&id, &done),
                else => std::future::pending().await,
            }
        }
    }

    /// Goes on with the runs of an app, if there are any with which nobody here does.
    fn take(&mut self, of: AppOf, mut found: HashSet<SessionKey>) {
        let id = of.id();
        self.looking.remove(&id);
        let taken = self.taken.entry(id.clone()).or_default();
        found.retain(|key| taken.insert(key.clone()));
        if taken.is_empty() {
            self.taken.remove(&id);
        }
        if !found.is_empty() {
            self.at_work.push(Box::pin(async move {
                of.recover().await;
                (id, found)
            }));
        }
    }

    fn give_back(&mut self, id: &AppId, done: &HashSet<SessionKey>) {
        if let Some(taken) = self.taken.get_mut(id) {
            taken.retain(|key| !done.contains(key));
            if taken.is_empty() {
                self.taken.remove(id);
            }
        }
    }
}
