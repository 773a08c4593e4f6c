//! What to do when something goes wrong.

use umbel::{ErrorKind, ModelErrorKind};

/// What a person can do about an error of that kind.
pub(super) fn what_to_do(kind: ErrorKind) -> &'static str {
    match kind {
        ErrorKind::Model(ModelErrorKind::Auth) => "Check the key of the model's provider.",
        ErrorKind::Model(ModelErrorKind::RateLimited | ModelErrorKind::Overloaded) => {
            "Wait a moment and say it again."
        }
        ErrorKind::Model(ModelErrorKind::Transport) | ErrorKind::StreamCut => {
            "Check the network and say it again."
        }
        ErrorKind::Model(ModelErrorKind::ContextTooLong) => "Begin a new conversation with /new.",
        ErrorKind::Model(ModelErrorKind::Refused) => "Say it in other words.",
        ErrorKind::Timeout => "Say it again, or ask for less at once.",
        ErrorKind::ModelCallLimit | ErrorKind::DepthLimit => {
            "The agents may be going in circles: ask for less at once."
        }
        ErrorKind::SessionBusy | ErrorKind::SessionAbandoned | ErrorKind::StaleSession => {
            "Something else uses this conversation: say it again."
        }
        ErrorKind::InvalidConfirmation => "If it still asks, answer once more.",
        ErrorKind::SessionNotFound | ErrorKind::Fenced | ErrorKind::Corrupt => {
            "Begin a new conversation with /new."
        }
        _ => "Say it again, or begin a new conversation with /new.",
    }
}
