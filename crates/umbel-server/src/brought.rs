//! What a client brings along for a run, as the log keeps it: its tools, and what it tells the agents.

use std::hash::Hasher;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use siphasher::sip::SipHasher13;
use umbel_agui::Tool;
use umbel_core::{Event, EventId, List, RunConfig};
use umbel_runtime::Runner;

use crate::plan::client_tools;

/// The key in the metadata of a user's event.
pub(crate) const KEY: &str = "agui_brought";

/// How many bytes of it are kept at most.
const MOST: usize = 64 * 1024;

/// How far back it is looked whether the same was brought before.
const LOOKED_AT: usize = 64;

/// What a client brings along for a run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Brought {
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) tools: Vec<Tool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) instruction: Option<String>,
}

/// The form in the log. Clients bring the same each time, so it is kept once and pointed to then.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
enum Kept {
    /// It stands here.
    Here(Brought),
    /// It stands with that event.
    At(EventId),
    /// It had so many bytes, and is not kept.
    TooLarge(usize),
}

#[derive(Serialize, Deserialize)]
struct Entry {
    /// Tells it from others.
    digest: String,
    #[serde(flatten)]
    kept: Kept,
}

impl Brought {
    pub(crate) fn is_empty(&self) -> bool {
        self.tools.is_empty() && self.instruction.is_none()
    }

    /// Gives it to a run.
    pub(crate) fn give(&self, runner: &Runner, config: &mut RunConfig) {
        if !self.tools.is_empty() {
            config.tools = Some(client_tools(runner, &self.tools));
        }
        if let Some(instruction) = &self.instruction {
            config.instruction = Some(instruction.as_str().into());
        }
    }

    /// What the log is to keep of it, behind these events.
    pub(crate) fn to_log(&self, events: &List<Arc<Event>>) -> Value {
        let text = serde_json::to_vec(self).unwrap_or_default();
        let mut hasher = SipHasher13::new();
        hasher.write(&text);
        let digest = format!("{:x}", hasher.finish());
        let said = events.iter().rev().take(LOOKED_AT).filter(|event| event.is_user());
        let before = said.into_iter().find_map(|event| Some((event, entry(event)?)));
        let same = before.filter(|(_, entry)| entry.get("digest") == Some(&Value::String(digest.clone())));
        let kept = match same {
            Some((event, entry)) => match entry.get("at").and_then(Value::as_str) {
                Some(at) => Kept::At(at.into()),
                None => Kept::At(event.id.clone()),
            },
            None if text.len() > MOST => Kept::TooLarge(text.len()),
            None => Kept::Here(self.clone()),
        };
        json!(Entry { digest, kept })
    }

    /// What the run of an event was given; `None` if that was too large to be kept.
    pub(crate) fn of(events: &List<Arc<Event>>, event: &Event) -> Option<Self> {
        // Not all that is the user's was said: the first event of the run has it.
        let said = events.iter().rev().filter(|one| one.is_user() && one.run == event.run);
        let Some(found) = said.into_iter().find_map(|event| entry(event)) else {
            return Some(Self::default());
        };
        let mut found = Entry::deserialize(found).ok()?;
        if let Kept::At(at) = &found.kept {
            let there = events.iter().rev().find(|event| event.id == *at)?;
            found = Entry::deserialize(entry(there)?).ok()?;
        }
        match found.kept {
            Kept::Here(brought) => Some(brought),
            Kept::At(_) | Kept::TooLarge(_) => None,
        }
    }
}

/// The settings that the run of an event had, as far as the log keeps them: the runner's own, with the tools and the
/// instruction that the client had brought along.
pub fn run_config_of(runner: &Runner, events: &List<Arc<Event>>, event: &Event) -> RunConfig {
    let mut config = RunConfig::clone(runner.config());
    if let Some(brought) = Brought::of(events, event) {
        brought.give(runner, &mut config);
    }
    config
}

fn entry(event: &Event) -> Option<&Value> {
    event.meta.as_ref()?.custom_metadata.as_ref()?.get(KEY)
}
