//! From what borrows to what does not.

use std::borrow::Cow;

use crate::event::{
    EncryptedSubtype, EventKind, ReasoningRole, RunOutcome, SubagentOutcome, TextRole, TokenUsage,
    ToolResultContent, ToolRole,
};
use crate::input::RunAgentInput;

/// The same thing, borrowing from nothing.
pub(crate) trait IntoOwned {
    type Free;
    fn into_owned(self) -> Self::Free;
}

impl<T: ToOwned + ?Sized + 'static> IntoOwned for Cow<'_, T> {
    type Free = Cow<'static, T>;

    fn into_owned(self) -> Self::Free {
        Cow::Owned(Cow::into_owned(self))
    }
}

impl<T: IntoOwned> IntoOwned for Option<T> {
    type Free = Option<T::Free>;

    fn into_owned(self) -> Self::Free {
        self.map(T::into_owned)
    }
}

impl IntoOwned for Box<RunAgentInput<'_>> {
    type Free = Box<RunAgentInput<'static>>;

    fn into_owned(self) -> Self::Free {
        Box::new((*self).into_owned())
    }
}

impl IntoOwned for ToolResultContent<'_> {
    type Free = ToolResultContent<'static>;

    fn into_owned(self) -> Self::Free {
        match self {
            Self::Text(text) => ToolResultContent::Text(IntoOwned::into_owned(text)),
            Self::Parts(parts) => ToolResultContent::Parts(parts),
        }
    }
}

/// Things that never borrow.
macro_rules! is_owned {
    ($($name:ty),*) => {
        $(impl IntoOwned for $name {
            type Free = Self;

            fn into_owned(self) -> Self {
                self
            }
        })*
    };
}

is_owned!(
    bool,
    EncryptedSubtype,
    ReasoningRole,
    RunOutcome,
    SubagentOutcome,
    TextRole,
    ToolRole,
    Vec<TokenUsage>
);

/// Makes each field of each variant its own.
macro_rules! each_field {
    ($kind:expr; $($variant:ident { $($field:ident),* })*) => {
        match $kind {
            $(EventKind::$variant { $($field),* } => {
                EventKind::$variant { $($field: IntoOwned::into_owned($field)),* }
            })*
        }
    };
}

impl EventKind<'_> {
    /// The same kind, borrowing from nothing.
    pub fn into_owned(self) -> EventKind<'static> {
        each_field!(self;
            RunStarted { thread_id, run_id, protocol_version, parent_run_id, input }
            RunFinished { thread_id, run_id, result, outcome, usage }
            RunError { message, code, usage }
            StepStarted { step_name }
            StepFinished { step_name }
            TextMessageStart { message_id, role, name }
            TextMessageContent { message_id, delta }
            TextMessageEnd { message_id }
            TextMessageChunk { message_id, role, delta, name }
            ToolCallStart { tool_call_id, tool_call_name, parent_message_id }
            ToolCallArgs { tool_call_id, delta }
            ToolCallEnd { tool_call_id }
            ToolCallChunk { tool_call_id, tool_call_name, parent_message_id, delta }
            ToolCallResult { message_id, tool_call_id, content, role }
            StateSnapshot { snapshot }
            StateDelta { delta }
            MessagesSnapshot { messages }
            ActivitySnapshot { message_id, activity_type, content, replace }
            ActivityDelta { message_id, activity_type, patch }
            ReasoningStart { message_id }
            ReasoningMessageStart { message_id, role }
            ReasoningMessageContent { message_id, delta }
            ReasoningMessageEnd { message_id }
            ReasoningMessageChunk { message_id, delta }
            ReasoningEnd { message_id }
            ReasoningEncryptedValue { subtype, entity_id, encrypted_value }
            SubagentStarted {
                subagent_run_id, name, description, parent_subagent_run_id, parent_tool_call_id, parent_message_id
            }
            SubagentFinished { subagent_run_id, result, outcome }
            SubagentError { subagent_run_id, message, code }
            Raw { event, source }
            Custom { name, value }
        )
    }
}
