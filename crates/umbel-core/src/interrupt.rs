//! A pause with a question that anyone may answer later, in any process.

use serde::{Deserialize, Serialize};
use serde_json::Value;
use smol_str::SmolStr;

use crate::content::Content;
use crate::id::CallId;
use crate::json::Object;
use crate::part::{FunctionResponse, Part};

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

/// Name of the call by which the flow asks whether a tool may run.
pub const REQUEST_CONFIRMATION: &str = "adk_request_confirmation";

impl Interrupt {
    /// The message by which a person approves or rejects the call that asked for a confirmation.
    pub fn answer(&self, confirmed: bool) -> Content {
        let answer = Object::from_iter([("confirmed".to_owned(), Value::Bool(confirmed))]);
        let response = FunctionResponse::new(Some(self.id.clone()), REQUEST_CONFIRMATION, answer);
        Content::user(Part::response(response))
    }
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
