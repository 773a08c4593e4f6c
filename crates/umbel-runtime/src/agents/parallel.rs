//! Several agents at once.

use std::future::poll_fn;
use std::pin::pin;
use std::task::Poll;

use futures::StreamExt;
use futures::stream::FuturesUnordered;
use smol_str::SmolStr;
use umbel_core::{Result, Run};

use super::group::{Group, group_agent};
use super::run_child;

/// Runs its sub-agents at once, each on a branch of its own, so that none sees the others.
///
/// Their events stand in the log in the order they came. If one fails, all are stopped; so they are if one escalates.
#[derive(Clone)]
pub struct Parallel {
    group: Group,
}

group_agent!(Parallel, Parallel);

impl Parallel {
    /// A group without agents yet.
    pub fn new(name: impl Into<SmolStr>) -> Self {
        Self { group: Group::new(name.into()) }
    }

    async fn work(&self, run: &Run) -> Result<()> {
        let children: Vec<Run> =
            run.node()?.children.iter().map(|child| run.fork(*child)).collect::<Result<_>>()?;
        let mut work: FuturesUnordered<_> = children.iter().map(run_until_escalated).collect();
        let mut stopped = None;
        while let Some(result) = work.next().await {
            match result {
                // It stopped where it was asked to; the others come to such a point, too.
                Err(error) if error.is_control() && !run.cancel_token().is_cancelled() => {
                    stopped = Some(error);
                }
                result => result?,
            }
            if children.iter().any(Run::has_escalated) {
                break;
            }
        }
        stopped.map_or(Ok(()), Err)
    }
}

/// Runs a child until it is done or escalates: that ends the group, be it in the middle of the child's work. An agent
/// further below that escalates ends what encloses it there.
async fn run_until_escalated(child: &Run) -> Result<()> {
    let mut work = pin!(run_child(child));
    poll_fn(|cx| match work.as_mut().poll(cx) {
        Poll::Pending if child.has_escalated() => Poll::Ready(Ok(())),
        polled => polled,
    })
    .await
}
