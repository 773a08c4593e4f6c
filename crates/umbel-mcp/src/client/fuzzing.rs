//! What fuzzers reach of this crate.

use rmcp::model::{CallToolResult, Tool};
use rmcp::service::RxJsonRpcMessage;
use rmcp::{RoleClient, RoleServer};

use super::listed::look_at;
use super::tool::output_check;

/// Reads a message as a client and as a server do.
pub fn message(bytes: &[u8]) {
    let _ = serde_json::from_slice::<RxJsonRpcMessage<RoleClient>>(bytes);
    let _ = serde_json::from_slice::<RxJsonRpcMessage<RoleServer>>(bytes);
}

/// Looks at the tools that a server lists, and holds a result against the schema of each.
pub fn tools(tools: &[u8], result: &[u8]) {
    let Ok(tools) = serde_json::from_slice::<Vec<Tool>>(tools) else { return };
    let result = serde_json::from_slice::<CallToolResult>(result).ok();
    let structured = result.and_then(|result| result.structured_content).unwrap_or_default();
    for listed in look_at("server", "s_", tools) {
        assert!(!listed.name.is_empty() && listed.name.len() <= 64, "{}", listed.name);
        if let Some(check) = output_check(&listed) {
            let _ = check.validator.is_valid(&structured);
        }
    }
}
