//! Models that need no network.

mod recording;
mod scripted;

pub use self::recording::{RecordingModel, ReplayModel, Take, TakeChunk};
pub use self::scripted::ScriptedModel;
