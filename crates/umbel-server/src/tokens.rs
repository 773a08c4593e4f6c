//! Bearer tokens that are listed somewhere.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use http::request::Parts;
use sha2::{Digest, Sha256};
use smol_str::SmolStr;
use subtle::ConstantTimeEq;
use umbel_core::{BoxFuture, Error, ErrorKind, Result};

use crate::auth::{Auth, Principal, bearer_token};
use crate::problem::Problem;
use crate::watched::Watched;

/// Tokens and whose they are, a line each: `TOKEN USER`.
///
/// Empty lines and what follows a `#` do not count. Only digests of the tokens are kept, and they are compared in a time
/// that does not tell how close a guess was.
///
/// ```
/// use umbel_server::BearerTokens;
///
/// let tokens = BearerTokens::from_text("
///     ## A line per token. `openssl rand -hex 24` makes good ones.
///     5f1c4bdb1d0a4b8f9d6a ann
///     c27f0a9e83c14f3e8b1d bob   # his phone
/// ")?;
/// assert_eq!(tokens.len(), 2);
/// # Ok::<(), umbel_core::Error>(())
/// ```
#[derive(Clone)]
pub struct BearerTokens(Source);

#[derive(Clone)]
enum Source {
    Fixed(Arc<Tokens>),
    File(Arc<Watched<Tokens>>),
}

impl BearerTokens {
    /// The tokens of a file. A second after it changes it is read again; one that cannot be read then leaves things as
    /// they were.
    pub fn from_file(path: impl Into<PathBuf>) -> Result<Self> {
        let file = Watched::open(path.into(), Tokens::parse)?;
        file.now().check_some()?;
        let tokens = Self(Source::File(file));
        if let Some(path) = tokens.exposed() {
            tracing::warn!("others may read the tokens in {0}: `chmod 600 {0}`", path.display());
        }
        Ok(tokens)
    }

    /// The same, from text.
    pub fn from_text(text: &str) -> Result<Self> {
        let tokens = Tokens::parse(text)?;
        tokens.check_some()?;
        Ok(Self(Source::Fixed(Arc::new(tokens))))
    }

    /// How many tokens there are.
    pub fn len(&self) -> usize {
        match &self.0 {
            Source::Fixed(tokens) => tokens.0.len(),
            Source::File(file) => file.now().0.len(),
        }
    }

    /// Whether there are none: all were taken out of the file.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The file, if others on this machine may read it.
    pub fn exposed(&self) -> Option<&Path> {
        match &self.0 {
            Source::File(file) if others_may_read(file.path()) => Some(file.path()),
            _ => None,
        }
    }
}

#[cfg(unix)]
fn others_may_read(path: &Path) -> bool {
    use std::os::unix::fs::PermissionsExt;
    std::fs::metadata(path).is_ok_and(|metadata| metadata.permissions().mode() & 0o044 != 0)
}

#[cfg(not(unix))]
fn others_may_read(_path: &Path) -> bool {
    false
}

impl Auth for BearerTokens {
    fn principal<'a>(&'a self, head: &'a Parts) -> BoxFuture<'a, Result<Principal, Problem>> {
        Box::pin(async move {
            let token = bearer_token(head)?;
            let tokens = match &self.0 {
                Source::Fixed(tokens) => tokens.clone(),
                Source::File(file) => file.get().await,
            };
            let user = tokens.user(token);
            user.map(Principal::new).ok_or_else(|| Problem::invalid_token("that token is not known here"))
        })
    }
}

/// Digests of tokens, with whose they are.
struct Tokens(Vec<([u8; 32], SmolStr)>);

impl Tokens {
    fn parse(text: &str) -> Result<Self> {
        let mut tokens: Vec<([u8; 32], SmolStr)> = Vec::new();
        let mut lines: Vec<usize> = Vec::new();
        for (at, line) in text.trim_start_matches('\u{feff}').lines().enumerate() {
            // A token is a secret: errors name its line and not what it says.
            let refuse = |why: String| {
                let message = format!("line {} {why}", at + 1);
                Err(Error::new(ErrorKind::Build, message))
            };
            let mut fields = line.split_whitespace().take_while(|field| !field.starts_with('#'));
            let Some(token) = fields.next() else { continue };
            let (Some(user), None) = (fields.next(), fields.next()) else {
                return refuse("is not `TOKEN USER`".to_owned());
            };
            if !token.bytes().all(|byte| byte.is_ascii_graphic()) {
                return refuse(
                    "has a token that cannot stand in a header: use letters, digits and signs".to_owned(),
                );
            }
            if user.contains('\0') {
                return refuse("has a user with a NUL character".to_owned());
            }
            let digest = digest(token);
            if let Some(first) = tokens.iter().position(|(known, _)| *known == digest) {
                let first = lines.get(first).copied().unwrap_or_default();
                return refuse(format!("has the token of line {first}: give each its own"));
            }
            tokens.push((digest, user.into()));
            lines.push(at + 1);
        }
        Ok(Self(tokens))
    }

    fn check_some(&self) -> Result<()> {
        if self.0.is_empty() {
            let message = "there are no tokens, so nobody could ask: add a line `TOKEN USER`";
            return Err(Error::new(ErrorKind::Build, message));
        }
        Ok(())
    }

    /// Whose token it is. All are looked at, whichever it is.
    fn user(&self, token: &str) -> Option<SmolStr> {
        let given = digest(token);
        let mut found = None;
        for (known, user) in &self.0 {
            if bool::from(known.as_slice().ct_eq(given.as_slice())) {
                found = Some(user);
            }
        }
        found.cloned()
    }
}

fn digest(token: &str) -> [u8; 32] {
    Sha256::digest(token.as_bytes()).into()
}

impl fmt::Debug for BearerTokens {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "BearerTokens({})", self.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_tokens_and_users_and_comments_do_not_count() {
        let text = "\u{feff}# people\r\nabc ann\r\n\n  def\tbob # his phone\n#ghi eve\n";
        let tokens = Tokens::parse(text).unwrap();
        assert_eq!(tokens.user("abc").as_deref(), Some("ann"));
        assert_eq!(tokens.user("def").as_deref(), Some("bob"));
        for unknown in ["", "ab", "abcd", "ABC", "ghi", "#ghi", "ann"] {
            assert_eq!(tokens.user(unknown), None, "{unknown}");
        }
    }

    #[test]
    fn a_bad_line_is_named_and_its_token_is_not_told() {
        for (text, line) in [
            ("abc ann\nsecret", "line 2 "),
            ("\n\nsecret ann smith", "line 3 "),
            ("sécret ann", "line 1 "),
            ("abc ann\nsecret bob\nsecret eve", "line 3 has the token of line 2"),
        ] {
            let message = Tokens::parse(text).map(drop).unwrap_err().message().to_owned();
            assert!(message.contains(line) && !message.contains("secret"), "{message}");
        }
        let none = BearerTokens::from_text("# nobody yet\n").unwrap_err();
        assert!(none.message().contains("TOKEN USER"));
    }

    #[test]
    fn what_is_printed_of_them_has_no_token() {
        let tokens = BearerTokens::from_text("abc ann").unwrap();
        assert_eq!((format!("{tokens:?}").as_str(), tokens.is_empty()), ("BearerTokens(1)", false));
    }
}
