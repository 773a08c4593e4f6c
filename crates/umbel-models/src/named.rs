//! Models by name.

use umbel_core::{Error, ErrorKind, Result};

use crate::endpoint::{Endpoint, Key, Secret};
use crate::http_model::HttpModel;

/// A model by its name: the provider, a slash, and what the provider calls it. Or an address of a server that speaks like
/// OpenAI, a `#`, and the name there.
///
/// Keys and addresses come from the environment:
///
/// | Name | Format | Key | Address |
/// |---|---|---|---|
/// | `anthropic/…` | Messages | `ANTHROPIC_API_KEY` | `ANTHROPIC_BASE_URL`, with `/v1` at its end or without |
/// | `openai/…` | Responses | `OPENAI_API_KEY` | `OPENAI_BASE_URL` |
/// | `openai-chat/…` | chat completions | `OPENAI_API_KEY` | `OPENAI_BASE_URL` |
/// | `gemini/…`, `google/…` | Gemini | `GEMINI_API_KEY` or `GOOGLE_API_KEY` | `GEMINI_BASE_URL` |
/// | `vertex/…` | Gemini | `GOOGLE_APPLICATION_CREDENTIALS` and its like | `GOOGLE_CLOUD_PROJECT`, `GOOGLE_CLOUD_LOCATION` |
/// | `ollama/…` | Ollama | none, or `OLLAMA_API_KEY` | `OLLAMA_HOST` |
/// | `azure/…` with the name of a deployment | chat completions | `AZURE_OPENAI_API_KEY` | `AZURE_OPENAI_ENDPOINT` |
/// | `groq/…`, `deepseek/…`, `mistral/…`, `xai/…`, `openrouter/…` | chat completions | `GROQ_API_KEY` and so on | |
/// | `http://localhost:8080/v1#…` | chat completions | none unless given | |
///
/// ```
/// let model = umbel_models::model("http://localhost:8080/v1#smollm2")?;
/// # Ok::<(), umbel_core::Error>(())
/// ```
pub fn model(name: &str) -> Result<HttpModel> {
    model_with(name, |variable| std::env::var(variable).ok())
}

/// The same, with an environment of one's own.
pub fn model_with(name: &str, environment: impl Fn(&str) -> Option<String>) -> Result<HttpModel> {
    let refuse = |message: String| Error::new(ErrorKind::Build, message);
    let environment = |variable: &str| environment(variable).filter(|value| !value.trim().is_empty());
    if name.starts_with("http://") || name.starts_with("https://") {
        let hint = || refuse(format!("which model of {name}? Put its name behind it: {name}#name"));
        let (base, model) = name.rsplit_once('#').filter(|(_, model)| !model.is_empty()).ok_or_else(hint)?;
        return at_address(base, model);
    }
    let providers = || {
        let names = PROVIDERS.iter().map(|provider| provider.name);
        names.chain(IN_THEIR_OWN_WAY.iter().map(|(name, _)| *name)).collect::<Vec<_>>().join(", ")
    };
    let (provider, model) = name.split_once('/').filter(|(_, model)| !model.is_empty()).ok_or_else(|| {
        refuse(format!(
            "`{name}` is no name of a model: write it as provider/model. Providers: {}",
            providers()
        ))
    })?;
    if let Some((_, make)) = IN_THEIR_OWN_WAY.iter().find(|(name, _)| *name == provider) {
        return make(model, &environment);
    }
    let known = PROVIDERS.iter().find(|known| known.name == provider).ok_or_else(|| {
        refuse(format!("there is no provider `{provider}` here. Providers: {}", providers()))
    })?;
    let key = match known.key {
        "" => None,
        variables => Some(variables.split(" or ").find_map(environment).ok_or_else(|| {
            refuse(format!("`{name}` needs a key: set the environment variable {variables}"))
        })?),
    };
    let base = environment(known.base_variable).unwrap_or_else(|| known.base.to_owned());
    let mut endpoint = Endpoint::new(known.name, base);
    if let Some(key) = key {
        endpoint.key = (known.sent)(Secret(key.trim().to_owned()));
    }
    (known.make)(model, endpoint)
}

/// A provider that is known by name.
struct Provider {
    name: &'static str,
    base: &'static str,
    base_variable: &'static str,
    /// The variable of its key, or several with ` or ` between them; empty if it needs none.
    key: &'static str,
    sent: fn(Secret) -> Key,
    make: fn(&str, Endpoint) -> Result<HttpModel>,
}

#[cfg(feature = "openai")]
fn compatible(
    name: &'static str,
    base: &'static str,
    base_variable: &'static str,
    key: &'static str,
) -> Provider {
    let make: fn(&str, Endpoint) -> Result<HttpModel> = |model, endpoint| {
        let provider =
            PROVIDERS.iter().find(|known| known.name == endpoint.provider).map_or("", |known| known.name);
        HttpModel::new(model, crate::openai_chat::OpenAiChat::compatible(provider), endpoint)
    };
    Provider { name, base, base_variable, key, sent: Key::Bearer, make }
}

#[cfg(feature = "anthropic")]
fn anthropic(model: &str, mut endpoint: Endpoint) -> Result<HttpModel> {
    // Anthropic's own clients take the address without the version.
    let base = endpoint.base.trim_end_matches('/');
    if !base.ends_with("/v1") {
        endpoint.base = format!("{base}/v1");
    }
    endpoint.headers.insert("anthropic-version", reqwest::header::HeaderValue::from_static("2023-06-01"));
    HttpModel::new(model, crate::anthropic::Anthropic, endpoint)
}

/// Makes a model from its name and the environment.
type Make = fn(&str, &dyn Fn(&str) -> Option<String>) -> Result<HttpModel>;

/// Providers that take more from the environment than a key and an address, or less.
const IN_THEIR_OWN_WAY: &[(&str, Make)] = &[
    #[cfg(feature = "gemini")]
    ("vertex", crate::gemini::vertex::model),
    #[cfg(feature = "ollama")]
    ("ollama", crate::ollama::model),
];

/// A deployment at Azure. What a portal gives as the endpoint of a resource is the address without its path.
#[cfg(feature = "openai")]
fn at_azure(deployment: &str, mut endpoint: Endpoint) -> Result<HttpModel> {
    if endpoint.base.is_empty() {
        let message = "a model at Azure needs an address: set the environment variable AZURE_OPENAI_ENDPOINT";
        return Err(Error::new(ErrorKind::Build, message));
    }
    let base = endpoint.base.trim_end_matches('/').to_owned();
    endpoint.base = if base.ends_with("/openai/v1") { base } else { format!("{base}/openai/v1") };
    HttpModel::new(deployment, crate::openai_chat::OpenAiChat::openai("azure"), endpoint)
}

/// All providers that are known by name.
static PROVIDERS: std::sync::LazyLock<Vec<Provider>> = std::sync::LazyLock::new(|| {
    let mut providers = Vec::new();
    #[cfg(feature = "anthropic")]
    providers.push(Provider {
        name: "anthropic",
        base: "https://api.anthropic.com/v1",
        base_variable: "ANTHROPIC_BASE_URL",
        key: "ANTHROPIC_API_KEY",
        sent: |key| Key::Header("x-api-key", key),
        make: anthropic,
    });
    #[cfg(feature = "openai")]
    providers.extend([
        Provider {
            make: |model, endpoint| HttpModel::new(model, crate::openai_responses::OpenAiResponses, endpoint),
            ..compatible("openai", "https://api.openai.com/v1", "OPENAI_BASE_URL", "OPENAI_API_KEY")
        },
        Provider {
            make: |model, endpoint| {
                HttpModel::new(model, crate::openai_chat::OpenAiChat::openai("openai"), endpoint)
            },
            ..compatible("openai-chat", "https://api.openai.com/v1", "OPENAI_BASE_URL", "OPENAI_API_KEY")
        },
        Provider {
            make: at_azure,
            sent: |key| Key::Header("api-key", key),
            ..compatible("azure", "", "AZURE_OPENAI_ENDPOINT", "AZURE_OPENAI_API_KEY")
        },
        compatible("groq", "https://api.groq.com/openai/v1", "GROQ_BASE_URL", "GROQ_API_KEY"),
        compatible("deepseek", "https://api.deepseek.com/v1", "DEEPSEEK_BASE_URL", "DEEPSEEK_API_KEY"),
        compatible("mistral", "https://api.mistral.ai/v1", "MISTRAL_BASE_URL", "MISTRAL_API_KEY"),
        compatible("xai", "https://api.x.ai/v1", "XAI_BASE_URL", "XAI_API_KEY"),
        compatible("openrouter", "https://openrouter.ai/api/v1", "OPENROUTER_BASE_URL", "OPENROUTER_API_KEY"),
    ]);
    #[cfg(feature = "gemini")]
    providers.extend(["gemini", "google"].map(|name| Provider {
        name,
        base: "https://generativelanguage.googleapis.com/v1beta",
        base_variable: "GEMINI_BASE_URL",
        key: "GEMINI_API_KEY or GOOGLE_API_KEY",
        sent: |key| Key::Header("x-goog-api-key", key),
        make: |model, endpoint| HttpModel::new(model, crate::gemini::Gemini::new(model), endpoint),
    }));
    providers
});

#[cfg(feature = "openai")]
fn at_address(base: &str, model: &str) -> Result<HttpModel> {
    let wire = crate::openai_chat::OpenAiChat::compatible("the server");
    HttpModel::new(model, wire, Endpoint::new("the server", base))
}

#[cfg(not(feature = "openai"))]
fn at_address(_base: &str, _model: &str) -> Result<HttpModel> {
    Err(Error::new(ErrorKind::Unsupported, "servers that speak like OpenAI need the feature `openai`"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use umbel_core::Model;

    fn named(name: &str) -> Result<HttpModel> {
        model_with(name, |variable| (variable == "GROQ_API_KEY").then(|| "gk-1234".to_owned()))
    }

    #[test]
    fn a_name_says_provider_and_model() {
        let model = named("groq/openai/gpt-oss-20b").unwrap();
        assert_eq!(model.name(), "openai/gpt-oss-20b");
        assert_eq!(format!("{model:?}"), "HttpModel(openai/gpt-oss-20b at groq)");
        assert_eq!(named("http://localhost:1/v1#m").unwrap().name(), "m");
    }

    #[test]
    fn a_name_that_says_too_little_is_answered_with_what_to_do() {
        let said = |name: &str| named(name).unwrap_err().message().to_owned();
        assert!(said("gpt-5").contains("provider/model"));
        assert!(said("nobody/x").contains("Providers: "));
        assert!(said("mistral/m").contains("set the environment variable MISTRAL_API_KEY"));
        assert!(said("http://localhost/v1").contains("http://localhost/v1#name"));
        assert!(said("http://#m").contains("no address"));
    }

    #[test]
    fn a_key_is_shown_nowhere_and_must_be_one() {
        let model = named("groq/m").unwrap();
        assert!(!format!("{model:#?}").contains("gk-1234"));
        let error = model.api_key("a\nb").unwrap_err();
        assert!(error.message().contains("the key of groq"), "{error}");
    }
}
