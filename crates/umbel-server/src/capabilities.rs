//! What an agent can do, as far as it follows from what it is made of.

use std::sync::Arc;

use umbel_agui::capabilities::{
    ExecutionCapabilities, HumanInTheLoopCapabilities, IdentityCapabilities, MultiAgentCapabilities,
    OutputCapabilities, ReasoningCapabilities, StateCapabilities, SubagentInfo, ToolsCapabilities,
    TransportCapabilities,
};
use umbel_agui::{AgentCapabilities, Tool};

use crate::endpoint::AgentEndpoint;

/// The capabilities of an agent.
pub(crate) fn of(endpoint: &AgentEndpoint) -> Arc<AgentCapabilities> {
    if let Some(given) = &endpoint.capabilities {
        return given.clone();
    }
    let runner = &endpoint.runner;
    let root = runner.tree().node(runner.tree().root()).ok();
    let description = root.map(|node| node.agent.description().to_owned()).filter(|text| !text.is_empty());
    let plan = root.map(|node| node.agent.plan());
    let items: Vec<Tool> = plan
        .iter()
        .flat_map(|plan| plan.tools.specs())
        .map(|spec| Tool {
            name: spec.name.clone(),
            description: spec.description.clone(),
            parameters: Some((*spec.parameters).clone()),
            metadata: None,
        })
        .collect();
    let others = endpoint.cast.others.iter().map(|member| SubagentInfo {
        name: member.name.clone(),
        description: Some(member.description.to_string()).filter(|text| !text.is_empty()),
    });
    let others: Vec<SubagentInfo> = others.collect();
    let has_others = !others.is_empty();
    let limits = &runner.config().limits;
    let mut agents = runner.tree().ids().filter_map(|id| runner.tree().node(id).ok());
    let runs_code = agents.any(|node| node.agent.runs_code());
    Arc::new(AgentCapabilities {
        identity: Some(IdentityCapabilities {
            name: Some(endpoint.cast.root.clone()),
            r#type: Some("umbel".into()),
            description,
            ..IdentityCapabilities::default()
        }),
        transport: Some(TransportCapabilities {
            streaming: Some(true),
            http_binary: Some(true),
            resumable: Some(true),
            ..TransportCapabilities::default()
        }),
        tools: Some(ToolsCapabilities {
            supported: Some(endpoint.client_tools || !items.is_empty()),
            items: Some(items),
            parallel_calls: Some(true),
            client_provided: Some(endpoint.client_tools),
        }),
        output: Some(OutputCapabilities {
            structured_output: Some(root.is_some_and(|node| node.agent.output_schema().is_some())),
            ..OutputCapabilities::default()
        }),
        state: Some(StateCapabilities {
            snapshots: Some(true),
            deltas: Some(true),
            memory: Some(runner.services().memory.is_some()),
            persistent_state: Some(true),
        }),
        multi_agent: Some(MultiAgentCapabilities {
            supported: Some(has_others),
            delegation: Some(has_others),
            handoffs: Some(has_others && root.is_some_and(|node| node.agent.transfer().by_model)),
            subagents: Some(others),
        }),
        reasoning: Some(ReasoningCapabilities {
            supported: Some(true),
            streaming: Some(true),
            encrypted: Some(true),
        }),
        execution: Some(ExecutionCapabilities {
            code_execution: Some(runs_code),
            max_iterations: Some(limits.model_calls.into()).filter(|calls| *calls > 0),
            max_execution_time: u64::try_from(limits.run_time.as_millis()).ok(),
            ..ExecutionCapabilities::default()
        }),
        human_in_the_loop: Some(HumanInTheLoopCapabilities {
            supported: Some(true),
            approvals: Some(true),
            interrupts: Some(true),
            approve_with_edits: Some(true),
            ..HumanInTheLoopCapabilities::default()
        }),
        ..AgentCapabilities::default()
    })
}
