//! How models think, and what else depends on their age.
//!
//! Up to 4.5 models are given a budget of tokens. From 4.6 on they see themselves how much to think, and are told how hard
//! to try; from 4.7 on that is the only way, and how words are drawn is no longer theirs to be told. From 5 on they think
//! unless told otherwise, and some cannot be told.

use serde_json::{Value, json};
use umbel_core::{Effort, GenerateConfig, Thinking, ToolChoice};

use crate::catalog::ModelInfo;

/// What a request says about thinking, and what follows from it.
#[derive(Debug, PartialEq)]
pub(super) struct Plan {
    pub(super) asked: Option<Value>,
    pub(super) effort: Option<&'static str>,
    /// The longest answer, thoughts included. There is no request without it.
    pub(super) max_tokens: u32,
    /// Whether it may be said how words are drawn.
    pub(super) takes_sampling: bool,
}

/// The longest answer if nobody says otherwise.
const MAX_TOKENS: u32 = 32_000;

/// The same for models of old, and for those of which nothing is known.
const OLD_MAX_TOKENS: u32 = 8_192;

/// The smallest budget that is taken.
const LEAST_BUDGET: u32 = 1_024;

/// What to say to a model, of which this is known.
pub(super) fn plan(model: &str, info: Option<&ModelInfo>, config: &GenerateConfig) -> Plan {
    let age = generation(model);
    let takes_sampling = age < 407;
    let most = info.and_then(|info| info.output_tokens).unwrap_or(u32::MAX);
    let usual = if age < 400 { OLD_MAX_TOKENS } else { MAX_TOKENS }.min(most);
    let mut plan = Plan {
        asked: None,
        effort: None,
        max_tokens: config.max_output_tokens.unwrap_or(usual),
        takes_sampling,
    };
    // A call that is forced leaves no room for thoughts; both together are refused.
    let is_forced = matches!(config.tool_choice, Some(ToolChoice::Any | ToolChoice::Tool(_)));
    let thinking = match config.thinking {
        _ if is_forced => Some(Thinking { budget: Some(0), ..Thinking::default() }),
        thinking => thinking,
    };
    let Some(thinking) = thinking.filter(|_| info.is_none_or(|info| info.thinking)) else { return plan };
    if thinking.budget == Some(0) {
        plan.asked = off(model, age).map(|off| json!({"type": off}));
        plan.effort = (age >= 500 && plan.asked.is_none() && !is_forced).then_some("low");
    } else if age >= 407 || (age == 406 && thinking.budget.is_none()) {
        let display = if thinking.include_thoughts { "summarized" } else { "omitted" };
        plan.asked = Some(json!({"type": "adaptive", "display": display}));
        plan.effort = effort(thinking);
    } else {
        let budget = budget(thinking).max(LEAST_BUDGET);
        if config.max_output_tokens.is_none() {
            plan.max_tokens = usual.saturating_add(budget).min(most);
        }
        let budget = budget.min(plan.max_tokens.saturating_sub(1));
        // An answer that is to be so short has no room for thoughts.
        if budget >= LEAST_BUDGET {
            let mut asked = json!({"type": "enabled", "budget_tokens": budget});
            if let (Value::Object(asked), false) = (&mut asked, thinking.include_thoughts) {
                asked.insert("display".to_owned(), json!("omitted"));
            }
            plan.asked = Some(asked);
            plan.takes_sampling = false;
        }
    }
    plan
}

/// What a model is told that is not to think. Older ones do not unless they are told to, and some cannot be told.
fn off(model: &str, age: u32) -> Option<&'static str> {
    let is = |family: &str| model.contains(family);
    match age {
        ..500 => None,
        501.. if is("sonnet") => Some("between_tools"),
        501.. if is("haiku") => Some("disabled"),
        500 if is("sonnet") || is("opus") || is("haiku") => Some("disabled"),
        _ => None,
    }
}

/// How hard to try, in the word for it. Who thinks in tokens gets the word that comes nearest.
fn effort(thinking: Thinking) -> Option<&'static str> {
    let told = match (thinking.effort, thinking.budget) {
        (Some(effort), _) => effort,
        (None, Some(..=2_048)) => Effort::Low,
        (None, Some(..=10_000)) => Effort::Medium,
        (None, Some(_)) => Effort::High,
        (None, None) => return None,
    };
    Some(match told {
        Effort::Minimal => "low",
        other => other.as_str(),
    })
}

/// The tokens for thoughts: as many as told, or what comes nearest to the word for it.
fn budget(thinking: Thinking) -> u32 {
    match (thinking.budget, thinking.effort) {
        (Some(budget), _) => budget,
        (None, Some(Effort::Minimal)) => LEAST_BUDGET,
        (None, Some(Effort::Low)) => 2_048,
        (None, Some(Effort::High)) => 16_384,
        (None, _) => 8_192,
    }
}

/// Which generation a model is of, by its name: `claude-opus-4-6` is 406. One without a number is newer than all that have
/// one. Other models that are spoken to like this are taken for the oldest, of which the least is expected.
fn generation(model: &str) -> u32 {
    let Some((_, rest)) = model.split_once("claude") else { return 0 };
    let numbers = rest.split(|c: char| !c.is_ascii_alphanumeric()).map(|word| match word.len() {
        1 | 2 => word.parse::<u32>().ok(),
        _ => None,
    });
    let mut numbers = numbers.skip_while(Option::is_none);
    match numbers.next().flatten() {
        Some(major) => major * 100 + numbers.next().flatten().unwrap_or(0),
        None => u32::MAX,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_tells_the_generation() {
        for (name, age) in [
            ("claude-3-haiku-20240307", 300),
            ("claude-3-7-sonnet-latest", 307),
            ("claude-opus-4-20250514", 400),
            ("claude-sonnet-4-5@20250929", 405),
            ("anthropic/claude-sonnet-4.6", 406),
            ("claude-opus-4-8", 408),
            ("claude-fable-5", 500),
            ("claude-opus-5-5", 505),
            ("claude-mythos-preview", u32::MAX),
            ("deepseek-chat", 0),
        ] {
            assert_eq!(generation(name), age, "{name}");
        }
    }

    fn thinking(budget: Option<u32>, effort: Option<Effort>) -> GenerateConfig {
        let thinking = Thinking { include_thoughts: true, budget, effort };
        GenerateConfig { thinking: Some(thinking), ..GenerateConfig::default() }
    }

    #[test]
    fn models_are_told_how_much_to_think_in_the_way_of_their_age() {
        let asked = |model: &str, budget, effort| {
            let plan = plan(model, None, &thinking(budget, effort));
            (plan.asked.unwrap_or_default(), plan.effort, plan.max_tokens)
        };
        let adaptive = json!({"type": "adaptive", "display": "summarized"});
        let enabled = |budget: u32| json!({"type": "enabled", "budget_tokens": budget});
        for (model, budget, effort, expected) in [
            ("claude-sonnet-4-5", Some(5_000), None, (enabled(5_000), None, 37_000)),
            ("claude-sonnet-4-5", Some(10), None, (enabled(1_024), None, 33_024)),
            ("claude-sonnet-4-5", None, Some(Effort::Minimal), (enabled(1_024), None, 33_024)),
            ("claude-sonnet-4-5", None, Some(Effort::Low), (enabled(2_048), None, 34_048)),
            ("claude-sonnet-4-5", None, Some(Effort::High), (enabled(16_384), None, 48_384)),
            ("claude-sonnet-4-5", None, None, (enabled(8_192), None, 40_192)),
            ("other", Some(2_000), None, (enabled(2_000), None, 10_192)),
            ("claude-opus-4-6", Some(5_000), None, (enabled(5_000), None, 37_000)),
            ("claude-opus-4-6", None, Some(Effort::High), (adaptive.clone(), Some("high"), 32_000)),
            ("claude-opus-4-7", Some(5_000), None, (adaptive.clone(), Some("medium"), 32_000)),
            ("claude-opus-5", Some(1_500), None, (adaptive.clone(), Some("low"), 32_000)),
            ("claude-opus-5", Some(50_000), None, (adaptive.clone(), Some("high"), 32_000)),
            ("claude-opus-5-5", None, Some(Effort::Minimal), (adaptive.clone(), Some("low"), 32_000)),
            ("claude-mythos-preview", None, None, (adaptive, None, 32_000)),
        ] {
            assert_eq!(asked(model, budget, effort), expected, "{model} {budget:?} {effort:?}");
        }
    }

    #[test]
    fn a_model_is_kept_from_thinking_as_far_as_that_is_possible() {
        for (model, asked, effort) in [
            ("claude-sonnet-4-5", None, None),
            ("claude-opus-4-8", None, None),
            ("claude-opus-5", Some(json!({"type": "disabled"})), None),
            ("claude-sonnet-5-5", Some(json!({"type": "between_tools"})), None),
            ("claude-haiku-5-5", Some(json!({"type": "disabled"})), None),
            ("claude-opus-5-5", None, Some("low")),
            ("claude-fable-5", None, Some("low")),
        ] {
            let off = plan(model, None, &thinking(Some(0), None));
            assert_eq!((off.asked, off.effort), (asked.clone(), effort), "{model}");
            let mut forced = thinking(Some(5_000), None);
            forced.tool_choice = Some(ToolChoice::Any);
            assert_eq!(plan(model, None, &forced).asked, asked, "{model}, forced");
        }
    }

    #[test]
    fn thoughts_fit_into_the_longest_answer() {
        let mut config = thinking(Some(5_000), None);
        config.max_output_tokens = Some(2_000);
        let short = plan("claude-sonnet-4-5", None, &config);
        assert_eq!(short.asked.unwrap()["budget_tokens"], 1_999);
        assert_eq!((short.max_tokens, short.takes_sampling), (2_000, false));
        config.max_output_tokens = Some(1_000);
        let shorter = plan("claude-sonnet-4-5", None, &config);
        assert_eq!((shorter.asked, shorter.max_tokens, shorter.takes_sampling), (None, 1_000, true));
    }

    #[test]
    fn what_is_known_of_a_model_bounds_what_it_is_asked_for() {
        let small = ModelInfo { output_tokens: Some(4_096), thinking: true, ..ModelInfo::default() };
        let told = plan("claude-opus-4", Some(&small), &thinking(Some(50_000), None));
        assert_eq!((told.asked.unwrap()["budget_tokens"].clone(), told.max_tokens), (json!(4_095), 4_096));
        assert_eq!(plan("claude-opus-4", Some(&small), &GenerateConfig::default()).max_tokens, 4_096);
        let plain = ModelInfo::default();
        let told = plan("claude-3-haiku", Some(&plain), &thinking(Some(2_000), None));
        assert_eq!((told.asked, told.max_tokens, told.takes_sampling), (None, 8_192, true));
    }
}
