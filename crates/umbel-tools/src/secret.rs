//! What nobody must see: keys and tokens.

use std::fmt;
use std::sync::Arc;

use umbel_core::{Error, ErrorKind, Result};

/// What is shown in the place of a secret.
pub(crate) const HIDDEN: &str = "[secret]";
/// Shorter ones are not looked for in answers: too much would look like them.
const SHORTEST: usize = 6;

/// A key or a token. It goes to the service it is for, and is shown nowhere: not to models, not in events, errors or logs.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(Arc<str>);

impl Secret {
    /// A secret that is at hand.
    pub fn new(secret: impl Into<Arc<str>>) -> Self {
        Self(secret.into())
    }

    /// The secret that the environment has under a name.
    pub fn env(name: &str) -> Result<Self> {
        Self::expand(&format!("${{{name}}}"), |name| std::env::var(name).ok())
    }

    /// A text with `${NAME}` for what the environment has under that name. `$$` is a dollar.
    ///
    /// ```
    /// use umbel_tools::Secret;
    ///
    /// let environment = |name: &str| (name == "TOKEN").then(|| "abc".to_owned());
    /// assert_eq!(Secret::expand("Token ${TOKEN}", environment).unwrap(), Secret::new("Token abc"));
    /// assert!(Secret::expand("${NONE}", environment).is_err());
    /// ```
    pub fn expand(text: &str, environment: impl Fn(&str) -> Option<String>) -> Result<Self> {
        let refuse = |message: String| Error::new(ErrorKind::Build, message);
        let (mut whole, mut rest) = (String::new(), text);
        while let Some((before, after)) = rest.split_once('$') {
            whole.push_str(before);
            if let Some(after) = after.strip_prefix('$') {
                whole.push('$');
                rest = after;
                continue;
            }
            let named = after.strip_prefix('{').and_then(|after| after.split_once('}'));
            let Some((name, after)) = named else {
                let message = "a `$` stands alone: write `${NAME}` for a variable, or `$$` for a dollar";
                return Err(refuse(message.to_owned()));
            };
            match environment(name) {
                Some(value) if !value.trim().is_empty() => whole.push_str(value.trim()),
                _ => return Err(refuse(format!("the environment has no `{name}`: set it and start again"))),
            }
            rest = after;
        }
        whole.push_str(rest);
        Ok(Self(whole.into()))
    }

    /// The secret itself, for the one it is for.
    pub(crate) fn reveal(&self) -> &str {
        &self.0
    }
}

impl From<&str> for Secret {
    fn from(text: &str) -> Self {
        Self::new(text)
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(…)")
    }
}

/// A text without the secrets that somebody sent back.
pub(crate) fn hide(mut text: String, secrets: &[Secret]) -> String {
    for secret in secrets.iter().filter(|secret| secret.0.len() >= SHORTEST) {
        if text.contains(&*secret.0) {
            text = text.replace(&*secret.0, HIDDEN);
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_is_not_shown_and_is_taken_out_of_what_comes_back() {
        let secret = Secret::new("hunter2");
        assert_eq!(format!("{secret:?}"), "Secret(…)");
        assert_eq!(hide("you said hunter2.".to_owned(), &[secret]), "you said [secret].");
    }

    #[test]
    fn a_variable_that_is_missing_or_half_written_is_an_error_that_says_what_to_do() {
        let expand = |text| Secret::expand(text, |_| None).unwrap_err().message().to_owned();
        assert_eq!(expand("${A}"), "the environment has no `A`: set it and start again");
        assert!(expand("$A").starts_with("a `$` stands alone"));
        assert!(expand("${A").starts_with("a `$` stands alone"));
        assert_eq!(Secret::expand("a$$b", |_| None).unwrap().reveal(), "a$b");
    }
}
