//! A pause with a question that anyone may answer later, in any process.

use serde::{Deserialize, Serialize};
use serde_json::Value;
use smol_str::SmolStr;

use crate::id::CallId;

/// A question that a run waits for.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Interrupt {
    /// Names the question; the answer carries it. In the log it is the id of the asking call.
    pub id: CallId,
    /// Who asks: the agent, and the call it is about.
    pub address: Address,
    /// Why, as a name: `confirmation`, `credential`, `input`.
    pub reason: SmolStr,
    /// The question, for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// What an answer must look like.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub response_schema: Option<Value>,
    /// When it is too late, seconds since 1970.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<f64>,
}

/// Where in a run a question was raised.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Address {
    /// The agent.
    pub agent: SmolStr,
    /// The call it is about, if it is about one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub call: Option<CallId>,
}
