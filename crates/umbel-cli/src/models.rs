//! Which model the agents work with: the one that is named, or one that the environment has a key or an address for.

use std::sync::{Arc, LazyLock};

use umbel::Result;
use umbel::models::{Catalog, HttpModel, model_with};
use umbel::runtime::usage::Prices;

/// The name that stands for no model at all: agents that have a script use it.
pub const SCRIPT: &str = "script";

/// What the environment has, and the model that is taken then. The first that is there counts.
///
/// A name with an address in it is completed by the variable's value.
const DEFAULTS: [(&str, &str); 11] = [
    ("ANTHROPIC_API_KEY", "anthropic/claude-haiku-4-5"),
    ("OPENAI_API_KEY", "openai/gpt-5-mini"),
    ("GEMINI_API_KEY", "gemini/gemini-2.5-flash"),
    ("GOOGLE_API_KEY", "gemini/gemini-2.5-flash"),
    ("MISTRAL_API_KEY", "mistral/mistral-medium-latest"),
    ("DEEPSEEK_API_KEY", "deepseek/deepseek-chat"),
    ("XAI_API_KEY", "xai/grok-4-fast"),
    ("GROQ_API_KEY", "groq/openai/gpt-oss-20b"),
    ("OPENROUTER_API_KEY", "openrouter/openai/gpt-5-mini"),
    ("OPENAI_BASE_URL", "{}#default"),
    ("OLLAMA_HOST", "ollama/qwen3"),
];

/// A model, and how it was found.
#[derive(Debug)]
pub struct Found {
    /// Its name, as `--model` takes it.
    pub name: String,
    /// The variable of the environment that it was found by; absent if it was named.
    pub because: Option<&'static str>,
    /// The model.
    pub model: HttpModel,
}

impl Found {
    /// Whether it is known to think before it answers.
    pub fn thinks(&self) -> bool {
        let known =
            self.name.split_once('/').and_then(|(provider, name)| Catalog::known().find(provider, name));
        known.is_some_and(|info| info.thinking)
    }
}

/// The model to work with, if there is one: the one that is named, else one that the environment has a key or an address
/// for. None if [`SCRIPT`] is named.
pub(crate) fn find(
    named: Option<&str>,
    environment: impl Fn(&str) -> Option<String>,
) -> Result<Option<Found>> {
    let found = match named.map(str::trim).filter(|name| !name.is_empty()) {
        Some(SCRIPT) => return Ok(None),
        Some(name) => Some((name.to_owned(), None)),
        None => by_environment(&environment).map(|(name, variable)| (name, Some(variable))),
    };
    let Some((name, because)) = found else { return Ok(None) };
    let model = model_with(&name, environment)?;
    Ok(Some(Found { name, because, model }))
}

/// The name of the model that the environment is set up for, and by which variable.
fn by_environment(environment: &impl Fn(&str) -> Option<String>) -> Option<(String, &'static str)> {
    DEFAULTS.iter().find_map(|(variable, name)| {
        let value = environment(variable).filter(|value| !value.trim().is_empty())?;
        Some((name.replace("{}", value.trim()), *variable))
    })
}

/// The variables by which a model is found, for people.
pub(crate) fn variables() -> impl Iterator<Item = &'static str> {
    DEFAULTS.iter().map(|(variable, _)| *variable)
}

/// What models cost, as far as this version knows.
pub(crate) fn prices() -> Arc<Prices> {
    static PRICES: LazyLock<Arc<Prices>> = LazyLock::new(|| {
        // A test reads them, so they can be read.
        let prices = umbel::models::prices().ok().and_then(|prices| serde_json::from_value(prices).ok());
        Arc::new(prices.unwrap_or_default())
    });
    PRICES.clone()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(named: Option<&str>, set: &[(&str, &str)]) -> Option<(String, Option<&'static str>)> {
        let environment = |variable: &str| {
            set.iter().find(|(name, _)| *name == variable).map(|(_, value)| (*value).to_owned())
        };
        find(named, environment).unwrap().map(|found| (found.name, found.because))
    }

    #[test]
    fn each_key_or_address_of_the_environment_brings_a_model() {
        for (variable, name) in DEFAULTS {
            let value = if variable.ends_with("URL") { "http://localhost:1/v1" } else { "k" };
            let name = name.replace("{}", value);
            assert_eq!(found(None, &[(variable, value)]), Some((name, Some(variable))));
        }
        assert_eq!(found(None, &[("OPENAI_API_KEY", " ")]), None, "an empty key is none");
        assert_eq!(found(None, &[]), None);
    }

    #[test]
    fn a_name_counts_more_than_the_environment() {
        let set = [("ANTHROPIC_API_KEY", "k"), ("GROQ_API_KEY", "k")];
        assert_eq!(found(Some("groq/m"), &set), Some(("groq/m".to_owned(), None)));
        assert_eq!(found(Some(SCRIPT), &set), None);
        assert_eq!(found(Some(""), &set).unwrap().1, Some("ANTHROPIC_API_KEY"));
        assert!(find(Some("mistral/m"), |_| None).unwrap_err().message().contains("MISTRAL_API_KEY"));
    }

    #[test]
    fn what_the_usual_models_cost_is_known() {
        let prices = prices();
        for (_, name) in DEFAULTS.iter().take(4) {
            let model = name.split_once('/').unwrap().1;
            assert!(prices.price(model).is_some(), "{model}");
        }
    }
}
