//! The one check of what people answer, whichever way it comes in.

use std::collections::HashSet;
use std::sync::Arc;

use sha2::{Digest, Sha256};
use umbel_core::interrupt::questions_in_words;
use umbel_core::json_schema::{is_recursive, unfolded};
use umbel_core::{
    Address, Agent, Answer, CallId, Content, DecisionKind, Error, ErrorKind, Event, FunctionCall,
    FunctionResponse, Interrupt, List, Result, ToolSet, ToolSpec,
};

use crate::contents::visible::{REQUEST_CONFIRMATION, REQUEST_CREDENTIAL};
use crate::layers::canonical::write_value;
use crate::output_schema::OutputSchema;
use crate::team::Team;

/// How big a schema may be, with all that it refers to, for arguments to be held against it.
const LARGEST_SCHEMA: u64 = 20_000;

/// What an answer says it is an answer to: the call as it was shown.
pub(crate) fn digest(call: &FunctionCall) -> String {
    let mut text = String::new();
    let args = call.args.as_deref().cloned().unwrap_or_default();
    write_value(&mut text, &serde_json::json!([call.id, call.name, args]));
    Sha256::digest(text.as_bytes()).iter().map(|byte| format!("{byte:02x}")).collect()
}

pub(super) fn refused(message: String) -> Error {
    Error::new(ErrorKind::InvalidConfirmation, message)
}

/// An error if the message answers a question otherwise than it may be. Nothing is written then, and the question stays
/// open.
pub(crate) fn check(
    team: &Team,
    open: &[Interrupt],
    events: &List<Arc<Event>>,
    input: &Content,
    now: f64,
) -> Result<()> {
    let mut answered: HashSet<&CallId> = HashSet::new();
    for response in input.responses() {
        let Some(id) = &response.id else { continue };
        match open.iter().find(|asked| asked.id == *id) {
            Some(asked) => {
                check_one(team, asked, response, now)?;
                answered.insert(id);
            }
            None if [REQUEST_CONFIRMATION, REQUEST_CREDENTIAL].contains(&response.name.as_str()) => {
                check_again(open, events, id, response)?;
            }
            None => {}
        }
    }
    let together = || open.iter().filter(|asked| asked.together);
    for one in together().filter(|asked| answered.contains(&asked.id)) {
        let batch = || together().filter(|asked| asked.address.is_same_batch(&one.address));
        let (given, wanted) = (batch().filter(|asked| answered.contains(&asked.id)).count(), batch().count());
        if given < wanted {
            let left = batch().filter(|asked| !answered.contains(&asked.id)).map(Interrupt::asks);
            return Err(refused(format!(
                "{wanted} questions are to be answered together, and {given} of them are: answer {} too",
                questions_in_words(left)
            )));
        }
    }
    Ok(())
}

/// The same answer may come twice; another one is too late.
fn check_again(
    open: &[Interrupt],
    events: &List<Arc<Event>>,
    id: &CallId,
    response: &FunctionResponse,
) -> Result<()> {
    let before = events.iter().rev().filter(|event| event.is_user());
    let before = before.flat_map(|event| event.responses()).find(|given| given.id.as_ref() == Some(id));
    match before {
        Some(given) if given.response == response.response => Ok(()),
        Some(_) => Err(refused(format!("question `{id}` was answered already, and otherwise"))),
        None => Err(refused(format!("nobody asked question `{id}`: {}", what_is_open(open)))),
    }
}

/// What is said to a message that says nothing: if people are asked, what they have to answer.
pub(super) fn nothing_said(open: &[Interrupt]) -> Error {
    let message = match open {
        [] => "the message has no parts: say something".to_owned(),
        open => {
            format!("the message has no parts: answer what is open, or say something; {}", what_is_open(open))
        }
    };
    Error::new(ErrorKind::InvalidInput, message)
}

/// Which questions are open, in words.
fn what_is_open(open: &[Interrupt]) -> String {
    match open {
        [] => "none is open".to_owned(),
        open => format!("open are {}", questions_in_words(open.iter().map(Interrupt::asks))),
    }
}

fn check_one(team: &Team, asked: &Interrupt, response: &FunctionResponse, now: f64) -> Result<()> {
    let id = &asked.id;
    let given = response.response.clone().unwrap_or_default();
    let answer = Answer::from_response(&asked.reason, &given)
        .map_err(|e| refused(format!("the answer to `{id}` is no confirmation: {e}")))?;
    // It is never too late to say no: otherwise nobody could go on.
    let is_late = asked.expires_at.is_some_and(|until| now > until);
    if is_late && answer.decision() != DecisionKind::Reject {
        return Err(refused(format!("question `{id}` has expired: reject it, and ask the agent again")));
    }
    if answer.digest.is_some() && answer.digest != asked.digest {
        return Err(refused(format!(
            "the answer to `{id}` is about another call than the one that waits: look at the question again"
        )));
    }
    check_decision(team, asked, &answer)?;
    let (Some(schema), DecisionKind::Approve) = (&asked.response_schema, answer.decision()) else {
        return Ok(());
    };
    if asked.credential().is_some() {
        // What was given is not in the answer any more, and was checked when it was taken out.
        return Ok(());
    }
    let said = answer.payload.unwrap_or_default();
    OutputSchema::new(schema.clone())
        .and_then(|schema| schema.check(&said).map_err(|e| Error::new(ErrorKind::InvalidInput, e)))
        .map_err(|e| refused(format!("the answer to `{id}` does not fit what was asked for: {e}")))
}

/// Whether a person may decide so about the call.
fn check_decision(team: &Team, asked: &Interrupt, answer: &Answer) -> Result<()> {
    let (id, decision) = (&asked.id, answer.decision());
    let allowed = match asked.decisions.as_slice() {
        [] => &[DecisionKind::Approve, DecisionKind::Reject],
        some => some,
    };
    if !allowed.contains(&decision) {
        return Err(refused(format!(
            "the answer to `{id}` is {decision:?}, and only these are possible: {allowed:?}"
        )));
    }
    let (DecisionKind::Edit, Some(call)) = (decision, &asked.call) else { return Ok(()) };
    let tool = answer.tool.as_ref().filter(|tool| **tool != call.name);
    if let Some(tool) = tool.filter(|_| !asked.any_tool) {
        return Err(refused(format!("the answer to `{id}` calls `{tool}` in the place of `{}`", call.name)));
    }
    let Some(tools) = tools_at(team, &asked.address) else { return Ok(()) };
    let name = tool.unwrap_or(&call.name);
    let Some(meta) = tools.get(name) else {
        // It may come from a toolset, which is asked when the call is made.
        return if tool.is_none() { Ok(()) } else { Err(refused(format!("there is no tool `{name}`"))) };
    };
    check_args(meta.tool.spec(), asked, answer)
}

fn check_args(spec: &ToolSpec, asked: &Interrupt, answer: &Answer) -> Result<()> {
    let Some(args) = answer.args.clone().filter(|_| !asked.any_tool) else { return Ok(()) };
    // A schema may be somebody else's, and then made to take for ever. The tool looks at its arguments itself.
    if is_recursive(&spec.parameters) || unfolded(&spec.parameters).is_none_or(|size| size > LARGEST_SCHEMA) {
        return Ok(());
    }
    let schema = OutputSchema::new((*spec.parameters).clone())?;
    schema.check(&serde_json::Value::Object(args)).map_err(|e| {
        refused(format!("the arguments in the answer to `{}` do not fit `{}`: {e}", asked.id, spec.name))
    })
}

/// The tools of the agent that asks, as far as they are known before it runs.
fn tools_at(team: &Team, address: &Address) -> Option<Arc<ToolSet>> {
    let node = team.tree.find(&address.agent)?;
    let tools = match &team.place(node).ok()?.configured {
        Some(plan) => plan.tools.clone(),
        None => team.tree.node(node).ok()?.agent.plan().tools,
    };
    match &address.inner {
        None => Some(tools),
        Some(inner) => tools.iter().find_map(|meta| tools_inside(meta.tool.agent()?, inner)),
    }
}

/// The tools of an agent that works for a call.
fn tools_inside(agent: &Arc<dyn Agent>, address: &Address) -> Option<Arc<ToolSet>> {
    if agent.name() != address.agent {
        return agent.sub_agents().iter().find_map(|below| tools_inside(below, address));
    }
    let tools = agent.plan().tools;
    match &address.inner {
        None => Some(tools),
        Some(inner) => tools.iter().find_map(|meta| tools_inside(meta.tool.agent()?, inner)),
    }
}
