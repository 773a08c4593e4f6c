//! Requests of two builds, compared part by part.

use std::collections::BTreeMap;

use serde_json::Value;

use super::answers::Sent;
use super::{Difference, Part, words};

/// What is different between the requests of two replays of one session.
pub fn compare_requests(then: &[Sent], now: &[Sent]) -> Vec<Difference> {
    let key =
        |sent: &Sent| (sent.run, sent.under.clone(), sent.agent.clone(), sent.branch.clone(), sent.step);
    let before: BTreeMap<_, &Sent> = then.iter().map(|sent| (key(sent), sent)).collect();
    let after: BTreeMap<_, &Sent> = now.iter().map(|sent| (key(sent), sent)).collect();
    let mut differences = Vec::new();
    for (key, sent) in &after {
        match before.get(key) {
            Some(then) => compare(then, sent, &mut differences),
            None => differences.push(only(sent, "is made now, and was not then")),
        }
    }
    let gone = before.iter().filter(|(key, _)| !after.contains_key(*key));
    differences.extend(gone.map(|(_, sent)| only(sent, "was made then, and is not now")));
    differences
}

fn only(sent: &Sent, note: &str) -> Difference {
    let (place, note) = (sent.place(), note.to_owned());
    Difference { part: Part::Request, place, note, then: String::new(), now: String::new() }
}

fn compare(then: &Sent, now: &Sent, differences: &mut Vec<Difference>) {
    let parts = [
        (Part::Model, "model"),
        (Part::Instruction, "instruction"),
        (Part::Messages, "messages"),
        (Part::Tools, "tools"),
        (Part::Config, "config"),
        (Part::OutputSchema, "outputSchema"),
    ];
    for (part, key) in parts {
        let (old, new) = (field(&then.request, key), field(&now.request, key));
        if old == new {
            continue;
        }
        let note = if part == Part::Tools { about_tools(old, new) } else { String::new() };
        let (then, new) = (words::pretty(old), words::pretty(new));
        differences.push(Difference { part, place: now.place(), note, then, now: new });
    }
}

fn field<'a>(request: &'a Value, key: &str) -> &'a Value {
    request.get(key).unwrap_or(&Value::Null)
}

/// Which tools came, went, changed or moved.
fn about_tools(then: &Value, now: &Value) -> String {
    let named = |tools: &Value| -> Vec<(String, Value)> {
        let tools = tools.as_array().into_iter().flatten();
        let name = |tool: &Value| tool.get("name").and_then(Value::as_str).unwrap_or_default().to_owned();
        tools.map(|tool| (name(tool), tool.clone())).collect()
    };
    let (then, now) = (named(then), named(now));
    let find = |tools: &[(String, Value)], name: &str| {
        tools.iter().find(|(other, _)| other == name).map(|(_, tool)| tool.clone())
    };
    let mut notes = Vec::new();
    let mut note = |what: &str, names: Vec<&str>| {
        if !names.is_empty() {
            notes.push(format!("{what}: {}", names.join(", ")));
        }
    };
    let names = |tools: &'_ [(String, Value)]| tools.iter().map(|(name, _)| name.clone()).collect::<Vec<_>>();
    let (old, new) = (names(&then), names(&now));
    note("added", new.iter().filter(|name| !old.contains(name)).map(String::as_str).collect());
    note("removed", old.iter().filter(|name| !new.contains(name)).map(String::as_str).collect());
    let changed = |name: &&String| {
        let (one, other) = (find(&then, name), find(&now, name));
        one.is_some() && other.is_some() && one != other
    };
    note("changed", new.iter().filter(changed).map(String::as_str).collect());
    let kept = |names: &[String], others: &[String]| -> Vec<String> {
        names.iter().filter(|name| others.contains(name)).cloned().collect()
    };
    let (before, after) = (kept(&old, &new), kept(&new, &old));
    if before != after {
        note("in another order", after.iter().map(String::as_str).collect());
    }
    notes.join("; ")
}
