//! What an agent can do, for clients that adapt to it.

use serde::{Deserialize, Serialize};
use smol_str::SmolStr;
use umbel_core::Object;

use crate::input::Tool;

/// A group of capabilities: every field may be left out, which says nothing, neither yes nor no.
macro_rules! capabilities {
    ($($(#[$about:meta])* $name:ident { $($(#[$field_about:meta])* $field:ident: $type:ty,)* })*) => {
        $(
            $(#[$about])*
            #[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
            #[serde(rename_all = "camelCase")]
            pub struct $name {
                $($(#[$field_about])* #[serde(skip_serializing_if = "Option::is_none")] pub $field: Option<$type>,)*
            }
        )*
    };
}

capabilities! {
    /// What an agent can do. What is left out is not known.
    AgentCapabilities {
        /// Who it is.
        identity: IdentityCapabilities,
        /// How it can be reached.
        transport: TransportCapabilities,
        /// Its tools.
        tools: ToolsCapabilities,
        /// What it gives.
        output: OutputCapabilities,
        /// State that it shares.
        state: StateCapabilities,
        /// Other agents that it works with.
        multi_agent: MultiAgentCapabilities,
        /// Whether its thoughts can be seen.
        reasoning: ReasoningCapabilities,
        /// Images, sound and the like.
        multimodal: MultimodalCapabilities,
        /// What it may run, and for how long.
        execution: ExecutionCapabilities,
        /// Where people come in.
        human_in_the_loop: HumanInTheLoopCapabilities,
        /// Anything the protocol has no word for.
        custom: Object,
    }

    /// Who an agent is.
    IdentityCapabilities {
        /// Its name.
        name: SmolStr,
        /// What it is built with.
        r#type: SmolStr,
        /// What it is for.
        description: String,
        /// Its version.
        version: SmolStr,
        /// Who offers it.
        provider: SmolStr,
        /// Where to read about it.
        documentation_url: String,
        /// Anything else.
        metadata: Object,
    }

    /// How an agent can be reached.
    TransportCapabilities {
        /// Events come as they happen.
        streaming: bool,
        /// By WebSocket.
        websocket: bool,
        /// In protobuf.
        http_binary: bool,
        /// It tells of what happens without being asked.
        push_notifications: bool,
        /// A stream that broke off can be taken up.
        resumable: bool,
    }

    /// The tools of an agent.
    ToolsCapabilities {
        /// It calls tools.
        supported: bool,
        /// Those it has itself.
        items: Vec<Tool>,
        /// Several calls at once.
        parallel_calls: bool,
        /// It calls those of the client.
        client_provided: bool,
    }

    /// What an agent gives.
    OutputCapabilities {
        /// Answers that follow a schema.
        structured_output: bool,
        /// The media types of its answers.
        supported_mime_types: Vec<SmolStr>,
    }

    /// State that an agent shares.
    StateCapabilities {
        /// It sends whole states.
        snapshots: bool,
        /// It sends changes.
        deltas: bool,
        /// It remembers across threads.
        memory: bool,
        /// Its state outlives a run.
        persistent_state: bool,
    }

    /// Other agents that an agent works with.
    MultiAgentCapabilities {
        /// It does.
        supported: bool,
        /// It gives work to them.
        delegation: bool,
        /// It hands conversations over to them.
        handoffs: bool,
        /// Those it knows.
        subagents: Vec<SubagentInfo>,
    }

    /// Whether an agent's thoughts can be seen.
    ReasoningCapabilities {
        /// They can.
        supported: bool,
        /// As it thinks.
        streaming: bool,
        /// Some of them can be read by the provider only.
        encrypted: bool,
    }

    /// Images, sound and the like.
    MultimodalCapabilities {
        /// What the agent takes.
        input: MultimodalInputCapabilities,
        /// What the agent gives.
        output: MultimodalOutputCapabilities,
    }

    /// What an agent takes besides text.
    MultimodalInputCapabilities {
        /// Images.
        image: bool,
        /// Sound.
        audio: bool,
        /// Films.
        video: bool,
        /// PDF.
        pdf: bool,
        /// Any file.
        file: bool,
    }

    /// What an agent gives besides text.
    MultimodalOutputCapabilities {
        /// Images.
        image: bool,
        /// Sound.
        audio: bool,
    }

    /// What an agent may run, and for how long.
    ExecutionCapabilities {
        /// It runs code.
        code_execution: bool,
        /// In a sandbox.
        sandboxed: bool,
        /// Most rounds of a run.
        max_iterations: u64,
        /// Longest run, in milliseconds.
        max_execution_time: u64,
    }

    /// Where people come in.
    HumanInTheLoopCapabilities {
        /// They do.
        supported: bool,
        /// They approve what is about to be done.
        approvals: bool,
        /// They step in while it runs.
        interventions: bool,
        /// They say how good it was.
        feedback: bool,
        /// Runs end with a question and go on with its answer.
        interrupts: bool,
        /// Who approves may change the arguments.
        approve_with_edits: bool,
    }
}

/// An agent that another one works with.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SubagentInfo {
    /// Its name.
    pub name: SmolStr,
    /// What it is for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn what_is_not_declared_is_left_out() {
        assert_eq!(serde_json::to_value(AgentCapabilities::default()).unwrap(), json!({}));
    }

    #[test]
    fn every_capability_is_read_and_written_under_its_name() {
        let tool = json!({"name": "t", "description": "d"});
        let form = json!({
            "identity": {"name": "n", "type": "umbel", "description": "d", "version": "1", "provider": "p",
                         "documentationUrl": "u", "metadata": {"k": null}},
            "transport": {"streaming": true, "websocket": false, "httpBinary": true, "pushNotifications": false,
                          "resumable": true},
            "tools": {"supported": true, "items": [tool], "parallelCalls": true, "clientProvided": true},
            "output": {"structuredOutput": true, "supportedMimeTypes": ["text/plain"]},
            "state": {"snapshots": true, "deltas": true, "memory": false, "persistentState": true},
            "multiAgent": {"supported": true, "delegation": true, "handoffs": true,
                           "subagents": [{"name": "n", "description": "d"}, {"name": "m"}]},
            "reasoning": {"supported": true, "streaming": true, "encrypted": false},
            "multimodal": {"input": {"image": true, "audio": true, "video": true, "pdf": true, "file": true},
                           "output": {"image": false, "audio": false}},
            "execution": {"codeExecution": false, "sandboxed": false, "maxIterations": 500,
                          "maxExecutionTime": 600_000},
            "humanInTheLoop": {"supported": true, "approvals": true, "interventions": true, "feedback": false,
                               "interrupts": true, "approveWithEdits": true},
            "custom": {"any": [1]},
        });
        let read: AgentCapabilities = serde_json::from_value(form.clone()).unwrap();
        assert_eq!(serde_json::to_value(read).unwrap(), form);
    }
}
