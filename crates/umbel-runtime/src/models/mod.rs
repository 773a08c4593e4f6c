//! Models that need no network.

mod ask;
mod recording;
mod scripted;

pub(crate) use self::ask::ask;
pub use self::recording::{RecordingModel, ReplayModel, Take, TakeChunk};
pub use self::scripted::ScriptedModel;
