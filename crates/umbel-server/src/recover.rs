//! Runs of processes that died.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use futures::stream::FuturesUnordered;
use smol_str::SmolStr;
use tokio::sync::{Semaphore, watch};

use crate::app::App;
use crate::endpoint::AgentEndpoint;
use crate::metrics::Counted;
use crate::server::Served;

/// In how many apps it is looked at once for runs that were cut short. Callers may have brought thousands.
const LOOKS: usize = 16;

/// Goes on with runs that were cut short for as long as it is polled. An app whose runs take long does not keep those of
/// others waiting.
pub(crate) async fn recover_on(mut served: watch::Receiver<Served>) {
    let (mut at_work, mut busy) = (FuturesUnordered::new(), HashSet::new());
    let looks = Arc::new(Semaphore::new(LOOKS));
    loop {
        let app = served.borrow_and_update().app.clone();
        for endpoint in &app.agents {
            for name in app.apps_of(endpoint) {
                if busy.insert((Arc::as_ptr(endpoint).addr(), name.clone())) {
                    at_work.push(recover_once(app.clone(), endpoint.clone(), name, looks.clone()));
                }
            }
        }
        let lease = app.agents.iter().map(|agent| agent.runner.config().limits.lease).min();
        let pause = tokio::time::sleep(lease.unwrap_or(Duration::from_secs(30)));
        let work = async {
            while let Some((endpoint, name)) = at_work.next().await {
                busy.remove(&(Arc::as_ptr(&endpoint).addr(), name));
            }
            std::future::pending::<()>().await;
        };
        tokio::select! {
            () = work => {}
            () = pause => {}
            // Nothing is served any more: there is nothing to go on with.
            changed = served.changed() => if changed.is_err() { return },
        }
    }
}

async fn recover_once(
    app: Arc<App>,
    endpoint: Arc<AgentEndpoint>,
    name: SmolStr,
    looks: Arc<Semaphore>,
) -> (Arc<AgentEndpoint>, SmolStr) {
    let recover = async {
        // Only looking takes turns: a run that is gone on with may take long.
        let look = looks.acquire().await;
        let is_any = !endpoint.runner.sessions().abandoned(&name).await?.is_empty();
        drop(look);
        match is_any {
            false => Ok(Vec::new()),
            true if app.is_shared(&name, &endpoint) => endpoint.runner.recover_own(&name).await,
            true => endpoint.runner.recover_app(&name).await,
        }
    };
    match recover.await {
        Ok(recovered) => recovered.iter().for_each(|_| app.metrics.count(Counted::Recovered)),
        Err(error) => tracing::warn!(app = %name, "runs could not be gone on with: {error}"),
    }
    (endpoint, name)
}
