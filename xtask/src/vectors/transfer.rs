//! Whom an agent may hand over to, and how it is told.

use serde_json::{Value, json};
use umbel::team::{TransferTool, resolve_transfer, transfer_instruction, transfer_targets};
use umbel::{AgentTree, BoxError, NodeId, Tool};

use super::case::{Case, Checked};
use super::script::{Stage, text};
use super::tokens::Tokens;

pub(super) fn check(case: &Case) -> Result<Checked, BoxError> {
    let input = case.input.get("tree").ok_or("the input has no `tree`")?;
    let tree = AgentTree::new(&Stage::new(&Value::Null).agent(input)?)?;
    let current = text(&case.input, "current").ok_or("the input has no `current`")?;
    let node = tree.find(current).ok_or("`current` is not in the tree")?;
    let mut expected = case.expect.clone();
    if let Some(declaration) = expected.get_mut("declaration") {
        *declaration = meaning_of(declaration);
    }
    let mut actual = facts(&tree, node)?;
    if let Some(requested) = text(&case.input, "requested") {
        let (key, value) = match resolve_transfer(&tree, node, requested) {
            Ok(target) => ("resolved", tree.node(target)?.agent.name().to_owned()),
            Err(error) => ("resolve_error", error.message().to_owned()),
        };
        actual.as_object_mut().ok_or("not an object")?.insert(key.to_owned(), value.into());
    }
    Ok(Checked::Compare { expected, actual, tokens: Tokens::of_tree(input) })
}

fn facts(tree: &AgentTree, node: NodeId) -> Result<Value, BoxError> {
    let agent = &tree.node(node)?.agent;
    let (policy, targets) = (agent.transfer(), transfer_targets(tree, node)?);
    let names = targets.iter().map(|id| Ok(tree.node(*id)?.source.author.clone()));
    let names = names.collect::<Result<Vec<_>, BoxError>>()?;
    let mut facts = json!({
        "targets": names,
        "auto_flow": policy.to_parent || policy.to_peers || !agent.sub_agents().is_empty(),
        "tool_added": policy.by_model && !targets.is_empty(),
        "instruction": &*transfer_instruction(tree, node)?,
    });
    if !targets.is_empty() {
        let tool = TransferTool::new(&names);
        let spec = tool.spec();
        let declaration = json!({"name": spec.name, "parametersJsonSchema": *spec.parameters});
        facts
            .as_object_mut()
            .ok_or("not an object")?
            .insert("declaration".to_owned(), meaning_of(&declaration));
    }
    Ok(facts)
}

/// What counts of a declaration: its name and the agents that can be chosen.
fn meaning_of(declaration: &Value) -> Value {
    let names = declaration.pointer("/parametersJsonSchema/properties/agent_name/enum");
    json!({"name": declaration.get("name"), "enum": names})
}
