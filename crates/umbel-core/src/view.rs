//! Whose eyes a session is seen with.

use std::sync::Arc;

use smol_str::SmolStr;

use crate::code::CodeWords;

/// Whose eyes a session is seen with, when its log is turned into what a model is sent.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct ContentsView {
    /// The agent: what others said is quoted to it.
    pub agent: SmolStr,
    /// Its branch: what stands on siblings is hidden from it.
    pub branch: Option<SmolStr>,
    /// The call it works under: it sees just what was said under that one.
    pub isolation_scope: Option<SmolStr>,
    /// It gets one turn and no replies.
    pub single_turn: bool,
    /// Only what belongs to the current turn.
    pub current_turn_only: bool,
    /// Call ids that the flow minted are sent too.
    pub keep_client_ids: bool,
    /// Thoughts of other agents are quoted too.
    pub foreign_thoughts: bool,
    /// Thoughts are sent as plain text: a planner of ours marked them, not the model.
    pub plain_thoughts: bool,
    /// Display names of media are left out.
    pub no_display_names: bool,
    /// Code and its results are sent as words like these.
    pub code_as_words: Option<Arc<CodeWords>>,
}

impl ContentsView {
    /// The eyes of an agent on the trunk.
    pub fn new(agent: impl Into<SmolStr>) -> Self {
        Self { agent: agent.into(), ..Self::default() }
    }
}
