//! Runs of processes that died.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use futures::stream::FuturesUnordered;
use smol_str::SmolStr;
use tokio::sync::watch;

use crate::app::App;
use crate::endpoint::AgentEndpoint;
use crate::metrics::Counted;
use crate::server::Served;

/// Goes on with runs that were cut short for as long as it is polled. An app whose runs take long does not keep those of
/// others waiting.
pub(crate) async fn recover_on(mut served: watch::Receiver<Served>) {
    let (mut at_work, mut busy) = (FuturesUnordered::new(), HashSet::new());
    loop {
        let app = served.borrow_and_update().app.clone();
        for endpoint in &app.agents {
            for name in app.apps_of(endpoint) {
                if busy.insert((Arc::as_ptr(endpoint).addr(), name.clone())) {
                    at_work.push(recover_once(app.clone(), endpoint.clone(), name));
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
) -> (Arc<AgentEndpoint>, SmolStr) {
    let recovered = match app.is_shared(&name, &endpoint) {
        true => endpoint.runner.recover_own(&name).await,
        false => endpoint.runner.recover_app(&name).await,
    };
    match recovered {
        Ok(recovered) => recovered.iter().for_each(|_| app.metrics.count(Counted::Recovered)),
        Err(error) => tracing::warn!(app = %name, "runs could not be gone on with: {error}"),
    }
    (endpoint, name)
}
