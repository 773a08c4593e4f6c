//! How an agent plans before it acts.

use std::sync::Arc;

use umbel_core::{Part, Parts, Payload, Thinking};

use crate::text;

/// Has a say in requests and responses so that a model plans.
pub trait Planner: Send + Sync {
    /// What the model is told.
    fn instruction(&self) -> Option<Arc<str>> {
        None
    }

    /// How much the model is to think, if it can.
    fn thinking(&self) -> Option<Thinking> {
        None
    }

    /// Whether thoughts in the conversation are this planner's marks, to be sent as plain text.
    fn marks_thoughts(&self) -> bool {
        false
    }

    /// Rewrites the parts of a response. `None` leaves them as they are.
    fn rewrite(&self, _parts: &[Part]) -> Option<Parts> {
        None
    }
}

/// Lets a model that can think do its own planning.
#[derive(Clone, Copy, Debug)]
pub struct ThinkingPlanner(pub Thinking);

impl Planner for ThinkingPlanner {
    fn thinking(&self) -> Option<Thinking> {
        Some(self.0)
    }
}

/// Has any model write a plan, act on it, reason about results, and mark its final answer.
#[derive(Clone, Copy, Debug, Default)]
pub struct PlanAndAct;

const FINAL_ANSWER: &str = "/*FINAL_ANSWER*/";
const PLANNING_TAGS: [&str; 4] = ["/*PLANNING*/", "/*REASONING*/", "/*ACTION*/", "/*REPLANNING*/"];

impl Planner for PlanAndAct {
    fn instruction(&self) -> Option<Arc<str>> {
        Some(text::PLAN_AND_ACT.into())
    }

    fn marks_thoughts(&self) -> bool {
        true
    }

    /// Keeps what stands before the first calls and the calls themselves; what the model goes on to say is made up.
    /// Plans and reasoning become thoughts.
    fn rewrite(&self, parts: &[Part]) -> Option<Parts> {
        if parts.is_empty() {
            return None;
        }
        let mut kept = Parts::new();
        let mut parts = parts.iter();
        while let Some(part) = parts.next() {
            match part.as_call() {
                Some(call) if call.name.is_empty() => {}
                Some(_) => {
                    kept.push(part.clone());
                    kept.extend(parts.take_while(|part| part.as_call().is_some()).cloned());
                    break;
                }
                None => rewrite_part(part, &mut kept),
            }
        }
        Some(kept)
    }
}

fn rewrite_part(part: &Part, kept: &mut Parts) {
    let Payload::Text(text) = &part.payload else {
        kept.push(part.clone());
        return;
    };
    if let Some((reasoning, answer)) = text.rsplit_once(FINAL_ANSWER) {
        let reasoning = without_tags(reasoning);
        if !reasoning.is_empty() {
            kept.push(Part::thought(reasoning));
        }
        if !answer.is_empty() {
            kept.push(Part::text(answer));
        }
    } else if PLANNING_TAGS.iter().any(|tag| text.starts_with(tag)) {
        let mut thought = part.clone().with_thought(true);
        thought.payload = Payload::Text(without_tags(text));
        kept.push(thought);
    } else {
        kept.push(part.clone());
    }
}

fn without_tags(text: &str) -> String {
    PLANNING_TAGS.iter().fold(text.to_owned(), |text, tag| text.replace(tag, ""))
}
