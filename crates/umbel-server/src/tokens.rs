//! Bearer tokens that are listed somewhere.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use http::request::Parts;
use sha2::{Digest, Sha256};
use smol_str::SmolStr;
use subtle::ConstantTimeEq;
use umbel_core::{BoxFuture, Error, ErrorKind, Result};

use crate::auth::{Auth, Principal, bearer_token};
use crate::problem::Problem;
use crate::watched::{Watched, others_may_read};

/// Tokens and whose they are, a line each: `TOKEN USER`, and perhaps until when they are good and what they are good for.
///
/// - Empty lines and what follows a `#` do not count.
/// - In the place of a token may stand its digest, `sha256:` and 64 hexadecimal digits, so that the file holds no secret:
///   `printf %s "$TOKEN" | sha256sum`.
/// - `expires=2027-01-31` or `expires=2027-01-31T18:00:00Z`: it is no good from then on.
/// - `scopes=/chat,/mcp,inspect,metrics`: it is good for these agents and services, to look into agents, to read figures; see
///   [`Principal::scopes`]. Without, for all agents and services and nothing else.
///
/// Only digests of the tokens are kept, and they are compared in a time that does not tell how close a guess was.
///
/// ```
/// use umbel_server::BearerTokens;
///
/// let tokens = BearerTokens::from_text("
///     ## A line per token. `openssl rand -hex 24` makes good ones.
///     5f1c4bdb1d0a4b8f9d6a ann
///     c27f0a9e83c14f3e8b1d bob expires=2027-01-31  # his phone
///     sha256:9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08 prometheus scopes=metrics
/// ")?;
/// assert_eq!(tokens.len(), 3);
/// # Ok::<(), umbel_core::Error>(())
/// ```
#[derive(Clone)]
pub struct BearerTokens(Source);

#[derive(Clone)]
enum Source {
    Fixed(Arc<Tokens>),
    File(PathBuf, Arc<Watched<Tokens>>),
}

impl BearerTokens {
    /// The tokens of a file. A second after it changes it is read again; one that cannot be read then leaves things as
    /// they were.
    pub fn from_file(path: impl Into<PathBuf>) -> Result<Self> {
        let path = path.into();
        let file = Watched::open(path.clone(), Tokens::parse)?;
        file.now().check_some()?;
        let tokens = Self(Source::File(path, file));
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
            Source::File(_, file) => file.now().0.len(),
        }
    }

    /// Whether there are none: all were taken out of the file.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The file, if others on this machine may read it.
    pub fn exposed(&self) -> Option<&Path> {
        match &self.0 {
            Source::File(path, _) if others_may_read(path) => Some(path),
            _ => None,
        }
    }
}

impl Auth for BearerTokens {
    fn principal<'a>(&'a self, head: &'a Parts) -> BoxFuture<'a, Result<Principal, Problem>> {
        Box::pin(async move {
            let token = bearer_token(head)?;
            let tokens = match &self.0 {
                Source::Fixed(tokens) => tokens.clone(),
                Source::File(_, file) => file.get().await,
            };
            let grant =
                tokens.find(token).ok_or_else(|| Problem::invalid_token("that token is not known here"))?;
            let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
            if grant.expires.is_some_and(|expires| now >= expires) {
                return Err(Problem::invalid_token("that token has expired"));
            }
            Ok(Principal { scopes: grant.scopes.clone(), ..Principal::new(grant.user.clone()) })
        })
    }
}

/// Digests of tokens, with what they are good for.
struct Tokens(Vec<Grant>);

/// What a token is good for.
struct Grant {
    digest: [u8; 32],
    user: SmolStr,
    /// From when on it is no good, in seconds since 1970.
    expires: Option<u64>,
    scopes: Option<Arc<[SmolStr]>>,
    line: usize,
}

impl Tokens {
    fn parse(text: &str) -> Result<Self> {
        let mut grants: Vec<Grant> = Vec::new();
        for (at, line) in text.trim_start_matches('\u{feff}').lines().enumerate() {
            // A token is a secret: errors name its line and not what it says.
            let refuse = |why: &str| Error::new(ErrorKind::Build, format!("line {} {why}", at + 1));
            let grant = Grant::parse(line, at + 1).map_err(|why| refuse(&why))?;
            let Some(grant) = grant else { continue };
            if let Some(first) = grants.iter().find(|known| known.digest == grant.digest) {
                return Err(refuse(&format!("has the token of line {}: give each its own", first.line)));
            }
            grants.push(grant);
        }
        Ok(Self(grants))
    }

    fn check_some(&self) -> Result<()> {
        if self.0.is_empty() {
            let message = "there are no tokens, so nobody could ask: add a line `TOKEN USER`";
            return Err(Error::new(ErrorKind::Build, message));
        }
        Ok(())
    }

    /// What a token is good for. All are looked at, whichever it is.
    fn find(&self, token: &str) -> Option<&Grant> {
        let given = digest(token);
        let mut found = None;
        for grant in &self.0 {
            if bool::from(grant.digest.as_slice().ct_eq(given.as_slice())) {
                found = Some(grant);
            }
        }
        found
    }
}

impl Grant {
    /// Reads a line. `None` if nothing stands there.
    fn parse(line: &str, number: usize) -> std::result::Result<Option<Self>, String> {
        let mut fields = line.split_whitespace().take_while(|field| !field.starts_with('#'));
        let Some(token) = fields.next() else { return Ok(None) };
        let Some(user) = fields.next() else { return Err("is not `TOKEN USER`".to_owned()) };
        let digest = match token.strip_prefix("sha256:") {
            Some(hex) => {
                let known = from_hex(hex);
                known.ok_or("has a digest that is not `sha256:` and 64 hexadecimal digits")?
            }
            None if !token.bytes().all(|byte| byte.is_ascii_graphic()) => {
                let why = "has a token that cannot stand in a header: use letters, digits and signs";
                return Err(why.to_owned());
            }
            None => digest(token),
        };
        if user.contains('\0') {
            return Err("has a user with a NUL character".to_owned());
        }
        let mut grant = Self { digest, user: user.into(), expires: None, scopes: None, line: number };
        for field in fields {
            match field.split_once('=') {
                Some(("expires", time)) => {
                    let why = "has an expiry that is not like 2027-01-31 or 2027-01-31T18:00:00Z";
                    grant.expires = Some(seconds(time).ok_or(why)?);
                }
                Some(("scopes", scopes)) => {
                    grant.scopes = Some(scopes.split(',').map(SmolStr::from).collect());
                }
                _ => return Err("is not `TOKEN USER`, perhaps with `expires=` and `scopes=`".to_owned()),
            }
        }
        Ok(Some(grant))
    }
}

fn from_hex(text: &str) -> Option<[u8; 32]> {
    if text.len() != 64 || !text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return None;
    }
    let mut bytes = [0; 32];
    for (byte, at) in bytes.iter_mut().zip((0..64).step_by(2)) {
        *byte = u8::from_str_radix(text.get(at..at + 2)?, 16).ok()?;
    }
    Some(bytes)
}

/// A time of UTC in seconds since 1970.
fn seconds(text: &str) -> Option<u64> {
    let (date, time) = text.split_once('T').unwrap_or((text, "00:00:00Z"));
    let numbers = |text: &str, sign: char| -> Option<[u64; 3]> {
        let numbers: Option<Vec<u64>> = text
            .split(sign)
            .map(|part| part.bytes().all(|byte| byte.is_ascii_digit()).then(|| part.parse().ok())?)
            .collect();
        numbers?.try_into().ok()
    };
    let ([year, month, day], [hour, minute, second]) =
        (numbers(date, '-')?, numbers(time.strip_suffix('Z')?, ':')?);
    let is_leap =
        |year: u64| year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400));
    let days_of = |month: u64| match month {
        2 => 28 + u64::from(is_leap(year)),
        4 | 6 | 9 | 11 => 30,
        _ => 31,
    };
    let is_time = (1970..=9999).contains(&year)
        && (1..=12).contains(&month)
        && (1..=days_of(month)).contains(&day)
        && hour < 24
        && minute < 60
        && second < 60;
    if !is_time {
        return None;
    }
    let days = (1970..year).map(|year| 365 + u64::from(is_leap(year))).sum::<u64>()
        + (1..month).map(days_of).sum::<u64>()
        + day.checked_sub(1)?;
    Some(((days * 24 + hour) * 60 + minute) * 60 + second)
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
        let user = |token: &str| tokens.find(token).map(|grant| grant.user.clone());
        assert_eq!(user("abc").as_deref(), Some("ann"));
        assert_eq!(user("def").as_deref(), Some("bob"));
        for unknown in ["", "ab", "abcd", "ABC", "ghi", "#ghi", "ann"] {
            assert_eq!(user(unknown), None, "{unknown}");
        }
    }

    #[test]
    fn a_bad_line_is_named_and_its_token_is_not_told() {
        for (text, line) in [
            ("abc ann\nsecret", "line 2 "),
            ("\n\nsecret ann smith", "line 3 "),
            ("sécret ann", "line 1 "),
            ("abc ann\nsecret bob\nsecret eve", "line 3 has the token of line 2"),
            ("secret ann expires=soon", "line 1 has an expiry"),
            ("secret ann expires=2027-02-29", "line 1 has an expiry"),
            ("secret ann scope=/chat", "line 1 is not"),
            ("sha256:secret ann", "line 1 has a digest"),
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

    #[test]
    fn a_digest_stands_for_its_token() {
        let secret = format!("sha256:{}", "9F86D081884C7D659A2FEAA0C55AD015A3BF4F1B2B0B822CD15D6C15B0F00A08");
        let tokens = Tokens::parse(&format!("{secret} ann")).unwrap();
        assert_eq!(tokens.find("test").map(|grant| grant.user.as_str()), Some("ann"));
        // Who reads the file has no token.
        assert!(tokens.find(&secret).is_none());
        let twice = Tokens::parse(&format!("test bob\n{secret} ann")).map(drop).unwrap_err();
        assert!(twice.message().contains("line 2 has the token of line 1"), "{twice}");
    }

    #[test]
    fn times_are_those_of_the_calendar() {
        for (text, expected) in [
            ("1970-01-01", Some(0)),
            ("2000-02-29T00:00:01Z", Some(951_782_401)),
            ("2027-01-31", Some(1_801_353_600)),
            ("2027-01-31T18:30:00Z", Some(1_801_420_200)),
            ("2100-02-29", None),
            ("2027-13-01", None),
            ("2027-00-01", None),
            ("2027-01-00", None),
            ("2027-01-31T24:00:00Z", None),
            ("2027-01-31T18:30:00", None),
            ("99999999999-01-01", None),
            ("+2027-01-01", None),
            ("", None),
        ] {
            assert_eq!(seconds(text), expected, "{text}");
        }
    }
}
