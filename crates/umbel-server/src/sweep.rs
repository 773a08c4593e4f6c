//! Sessions that nobody comes back to.

use std::time::Duration;

use tokio::sync::watch;
use umbel_runtime::SessionManager;

use crate::app::App;
use crate::endpoint::AgentEndpoint;
use crate::metrics::Counted;
use crate::panics::caught;
use crate::server::Served;

/// Nobody sweeps more often than this, whatever they were told.
const SHORTEST_PAUSE: Duration = Duration::from_millis(10);

/// When sessions that nobody comes back to are deleted. Those that have a run under way are not, and those that wait for
/// people only after a longer time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sweep {
    /// How long a session may be idle; 20 minutes. With [`Duration::MAX`] none is deleted.
    pub timeout: Duration,
    /// How often idle sessions are looked for; every 5 minutes. Zero is every 10 milliseconds.
    pub every: Duration,
    /// How long a session stays since it waits for people or for a client's tool; a week. `None` is for ever.
    pub max_wait: Option<Duration>,
}

impl Default for Sweep {
    fn default() -> Self {
        let week = Duration::from_secs(7 * 86_400);
        Self { timeout: Duration::from_secs(1_200), every: Duration::from_secs(300), max_wait: Some(week) }
    }
}

/// Deletes idle sessions for as long as it is polled. What is kept on disk was meant to be kept: unless somebody says
/// so, only sessions in memory are deleted.
pub(crate) async fn sweep_on(mut served: watch::Receiver<Served>) {
    loop {
        let app = served.borrow_and_update().app.clone();
        let mut next = None;
        for endpoint in &app.agents {
            let Some(sweep) = app.sweep.unwrap_or_else(|| usual(endpoint)) else { continue };
            sweep_once(&app, endpoint, sweep).await;
            next = Some(sweep.every.max(SHORTEST_PAUSE));
        }
        let pause = async {
            match next {
                Some(pause) => tokio::time::sleep(pause).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = pause => {}
            // Nothing is served any more: there is nothing to sweep.
            changed = served.changed() => if changed.is_err() { return },
        }
    }
}

/// What is done if nobody said.
fn usual(endpoint: &AgentEndpoint) -> Option<Sweep> {
    endpoint.runner.sessions().is_immediate().then(Sweep::default)
}

async fn sweep_once(app: &App, endpoint: &AgentEndpoint, sweep: Sweep) {
    for name in app.apps_of(endpoint) {
        let manager = SessionManager::of(name.clone(), endpoint.runner.services().clone());
        let manager = manager.timeout(sweep.timeout).max_wait(sweep.max_wait);
        match caught("a sweep of idle sessions", manager.sweep()).await.and_then(|swept| swept) {
            Ok(swept) => app.metrics.add(Counted::Swept, swept.deleted),
            Err(error) => {
                tracing::warn!(app = %name, "idle sessions could not be swept; tried again later: {error}");
            }
        }
    }
}
