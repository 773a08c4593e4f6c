//! What is known of models: how much they take and what they can do.

use std::sync::LazyLock;

use serde::{Deserialize, Serialize};
use smol_str::SmolStr;
use umbel_core::{Capabilities, Error, ErrorKind, Result};

/// What a model can do.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
#[non_exhaustive]
pub struct ModelInfo {
    /// The beginning of the names that this is about, after the provider: `openai/gpt-5`.
    pub name: SmolStr,
    /// How many tokens it takes in one request.
    pub context_tokens: Option<u32>,
    /// How many tokens its answer may have.
    pub output_tokens: Option<u32>,
    /// It calls tools.
    pub tools: bool,
    /// It keeps to a schema.
    pub schema: bool,
    /// It keeps to a schema and calls tools in the same request.
    pub schema_with_tools: bool,
    /// It sees images.
    pub images: bool,
    /// It hears audio.
    pub audio: bool,
    /// It reads documents.
    pub documents: bool,
    /// It thinks before it answers.
    pub thinking: bool,
}

/// What is known of models, as data that can be replaced.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Catalog {
    models: Vec<ModelInfo>,
}

impl Catalog {
    /// What this version knows. The data is in `data/models.json` of this crate.
    pub fn known() -> &'static Self {
        static KNOWN: LazyLock<Catalog> = LazyLock::new(|| {
            // A test reads it, so it can be read.
            Catalog::from_json(include_str!("../data/models.json")).unwrap_or_default()
        });
        &KNOWN
    }

    /// A catalog of one's own.
    pub fn from_json(text: &str) -> Result<Self> {
        serde_json::from_str(text).map_err(|error| {
            Error::new(ErrorKind::InvalidInput, format!("the catalog cannot be read: {error}"))
        })
    }

    /// What is known of a model: by the longest name that its own begins with.
    pub fn find(&self, provider: &str, model: &str) -> Option<&ModelInfo> {
        let (provider, model) = maker(provider, model);
        let fits = |info: &&ModelInfo| {
            let rest = info.name.strip_prefix(provider).and_then(|rest| rest.strip_prefix('/'));
            rest.is_some_and(|name| model.starts_with(name))
        };
        self.models.iter().filter(fits).max_by_key(|info| info.name.len())
    }

    /// All of them.
    pub fn models(&self) -> &[ModelInfo] {
        &self.models
    }
}

/// Who makes a model, and what the maker calls it. Some only run the models of others.
fn maker<'a>(provider: &'a str, model: &'a str) -> (&'a str, &'a str) {
    match provider {
        "openai-chat" | "azure" => ("openai", model),
        "google" | "vertex" => ("gemini", model),
        "openrouter" => match model.split_once('/') {
            Some(("google", model)) => ("gemini", model),
            Some(("mistralai", model)) => ("mistral", model),
            Some(("x-ai", model)) => ("xai", model),
            Some((maker, model)) => (maker, model),
            None => (provider, model),
        },
        _ => (provider, model),
    }
}

/// What a model can do: what its format can, as far as the model can.
pub(crate) fn capabilities(provider: &str, model: &str, format: Capabilities) -> Capabilities {
    let Some(info) = Catalog::known().find(provider, model) else { return format };
    let mut capabilities = format;
    capabilities.schema_with_tools &= info.schema_with_tools;
    capabilities.context_tokens = info.context_tokens;
    capabilities
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn models_are_known_wherever_they_run() {
        let catalog = Catalog::known();
        let gpt = catalog.find("openai", "gpt-5-mini").unwrap();
        for (provider, model) in
            [("openai-chat", "gpt-5-mini"), ("azure", "gpt-5-mini"), ("openrouter", "openai/gpt-5-mini")]
        {
            assert_eq!(catalog.find(provider, model), Some(gpt), "{provider}/{model}");
        }
        let gemini = catalog.find("gemini", "gemini-2.5-pro").unwrap();
        for (provider, model) in [
            ("google", "gemini-2.5-pro"),
            ("vertex", "gemini-2.5-pro"),
            ("openrouter", "google/gemini-2.5-pro"),
        ] {
            assert_eq!(catalog.find(provider, model), Some(gemini), "{provider}/{model}");
        }
        let made_by = |model: &str| catalog.find("openrouter", model).map(|info| info.name.as_str());
        assert_eq!(made_by("x-ai/grok-4.3"), Some("xai/grok-4.3"));
        assert_eq!(made_by("mistralai/mistral-large"), Some("mistral/mistral-large"));
        assert_eq!(made_by("auto"), None);
    }

    #[test]
    fn a_model_can_do_no_more_than_its_format_and_no_more_than_itself() {
        let format = Capabilities::default().schema_with_tools();
        let gpt = capabilities("openai", "gpt-5", format);
        assert!(gpt.schema_with_tools);
        assert_eq!(gpt.context_tokens, Some(272_000));
        assert!(!capabilities("groq", "openai/gpt-oss-20b", format).schema_with_tools);
        assert!(!capabilities("openai", "gpt-5", Capabilities::default()).schema_with_tools);
        assert_eq!(capabilities("nobody", "x", format), format);
    }

    #[test]
    fn the_catalog_that_comes_along_can_be_read_and_names_are_found_by_their_beginning() {
        let catalog = Catalog::from_json(include_str!("../data/models.json")).unwrap();
        assert_eq!(&catalog, Catalog::known());
        for info in catalog.models() {
            let (provider, model) = info.name.split_once('/').unwrap();
            assert_eq!(catalog.find(provider, model), Some(info), "{} is there twice", info.name);
        }
        assert_eq!(catalog.find("nobody", "gpt-5"), None);
        let own = r#"{"models": [{"name": "a/b", "tools": true}, {"name": "a/b-c", "contextTokens": 5}]}"#;
        let own = Catalog::from_json(own).unwrap();
        assert_eq!(own.find("a", "b-c-2").unwrap().context_tokens, Some(5));
        assert!(own.find("a", "b-d").unwrap().tools);
        assert!(Catalog::from_json("{").is_err());
    }
}
