//! Models that need no network.

mod ask;
mod recording;
mod scripted;

use std::sync::Arc;

use umbel_core::{Model, Run};

pub(crate) use self::ask::ask;
pub use self::recording::{RecordingModel, ReplayModel, Take, TakeChunk};
pub use self::scripted::ScriptedModel;

/// The model that the agent thinks with.
pub(crate) fn model_of(run: &Run) -> Option<&Arc<dyn Model>> {
    let mut place = Some(run.node_id());
    while let Some(node) = place.and_then(|place| run.tree().node(place).ok()) {
        if let Some(model) = node.agent.model() {
            return Some(model);
        }
        place = node.parent;
    }
    None
}
