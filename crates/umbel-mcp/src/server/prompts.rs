//! Words for people to begin with.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use rmcp::model::{Prompt as McpPrompt, PromptArgument, PromptMessage, Role as McpRole};
use smol_str::SmolStr;
use umbel_core::{Content, Role};

use super::result;

/// What a prompt is made of when it is asked for.
type Words = Arc<dyn Fn(&BTreeMap<String, String>) -> Vec<Content> + Send + Sync>;

/// Words for people to begin with, which their client offers them.
///
/// ```
/// use umbel_mcp::server::Prompt;
///
/// let prompt = Prompt::new("review", "Review the file {file}, and be {tone}.")
///     .description("Asks for a review.")
///     .argument("file", "Which file.")
///     .option("tone", "How to say it.", ["kind", "brief"]);
/// # let _ = prompt;
/// ```
#[derive(Clone)]
pub struct Prompt {
    pub(super) name: SmolStr,
    description: Option<String>,
    arguments: Vec<Argument>,
    words: Words,
}

#[derive(Clone, Debug)]
struct Argument {
    name: String,
    description: String,
    is_required: bool,
    values: Vec<String>,
}

impl Prompt {
    /// A message of the user. What stands in braces is taken from the arguments.
    pub fn new(name: impl Into<SmolStr>, template: impl Into<String>) -> Self {
        let template = template.into();
        Self::with(name, move |arguments| vec![Content::user(filled(&template, arguments).as_str())])
    }

    /// Messages that a closure makes of the arguments.
    pub fn with(
        name: impl Into<SmolStr>,
        words: impl Fn(&BTreeMap<String, String>) -> Vec<Content> + Send + Sync + 'static,
    ) -> Self {
        Self { name: name.into(), description: None, arguments: Vec::new(), words: Arc::new(words) }
    }

    /// What it is good for.
    pub fn description(mut self, description: impl Into<String>) -> Self {
        self.description = Some(description.into());
        self
    }

    /// An argument that must be given.
    pub fn argument(mut self, name: impl Into<String>, description: impl Into<String>) -> Self {
        let (name, description) = (name.into(), description.into());
        self.arguments.push(Argument { name, description, is_required: true, values: Vec::new() });
        self
    }

    /// An argument that may be left out, with values that clients suggest.
    pub fn option<V: Into<String>>(
        mut self,
        name: impl Into<String>,
        description: impl Into<String>,
        values: impl IntoIterator<Item = V>,
    ) -> Self {
        let (name, description) = (name.into(), description.into());
        let values = values.into_iter().map(Into::into).collect();
        self.arguments.push(Argument { name, description, is_required: false, values });
        self
    }

    /// As clients list it.
    pub(super) fn listed(&self) -> McpPrompt {
        let arguments = self.arguments.iter().map(|argument| {
            PromptArgument::new(argument.name.clone())
                .with_description(argument.description.clone())
                .with_required(argument.is_required)
        });
        McpPrompt::new(self.name.to_string(), self.description.clone(), Some(arguments.collect()))
    }

    /// What it says with these arguments; an error in words if one is missing.
    pub(super) fn messages(
        &self,
        arguments: &BTreeMap<String, String>,
    ) -> Result<Vec<PromptMessage>, String> {
        for argument in self.arguments.iter().filter(|argument| argument.is_required) {
            if !arguments.contains_key(&argument.name) {
                return Err(format!("`{}` needs the argument `{}`", self.name, argument.name));
            }
        }
        let contents = (self.words)(arguments);
        let messages = contents.iter().flat_map(|content| {
            let role = match content.role {
                Some(Role::Model) => McpRole::Assistant,
                _ => McpRole::User,
            };
            let blocks = content.parts.iter().filter_map(result::block);
            blocks.map(move |block| PromptMessage::new(role.clone(), block))
        });
        Ok(messages.collect())
    }

    /// Values of an argument that begin so.
    pub(super) fn complete(&self, argument: &str, begun: &str) -> Vec<String> {
        let argument = self.arguments.iter().find(|known| known.name == argument);
        let values = argument.into_iter().flat_map(|argument| &argument.values);
        values.filter(|value| value.starts_with(begun)).take(100).cloned().collect()
    }
}

/// A template with its names in braces filled in; those that are not known are left out.
fn filled(template: &str, arguments: &BTreeMap<String, String>) -> String {
    let mut text = String::new();
    let mut rest = template;
    while let Some((before, after)) = rest.split_once('{') {
        text.push_str(before);
        match after.split_once('}') {
            Some((name, after)) => {
                text.push_str(arguments.get(name).map(String::as_str).unwrap_or_default());
                rest = after;
            }
            None => {
                text.push('{');
                rest = after;
            }
        }
    }
    text + rest
}

impl fmt::Debug for Prompt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Prompt({})", self.name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_template_is_filled_once() {
        let arguments =
            BTreeMap::from([("a".to_owned(), "{b}".to_owned()), ("b".to_owned(), "x".to_owned())]);
        assert_eq!(filled("{a} and {b}, {c}{", &arguments), "{b} and x, {");
    }
}
