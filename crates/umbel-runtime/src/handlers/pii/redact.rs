//! What is looked for, and what becomes of it.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use sha2::{Digest, Sha256};
use smol_str::SmolStr;
use umbel_core::{Error, ErrorKind, Result};

use super::detect::{self, Detector, Pattern, PiiMatch, in_chars};
use super::stream::StreamRedactor;
use crate::text;

/// What becomes of personal data.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PiiStrategy {
    /// A marker such as `[REDACTED_EMAIL]` takes its place.
    #[default]
    Redact,
    /// Most of it is covered: `****-****-****-1234`.
    Mask,
    /// The beginning of its digest takes its place: `<email_hash:1a2b3c4d>`. The same data give the same digest.
    Hash,
    /// The run fails, with an error of kind [`Blocked`](ErrorKind::Blocked) whose source is a [`PiiBlocked`].
    Block,
}

/// Where personal data are looked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Surface {
    /// In what users say.
    Input,
    /// In what the model says and thinks.
    Output,
    /// In what tools answer.
    ToolResults,
}

/// Why a run was stopped: what was found, and how often. It never holds the data themselves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PiiBlocked {
    /// What was found.
    pub kind: SmolStr,
    /// How often.
    pub count: usize,
}

impl From<PiiBlocked> for Error {
    fn from(blocked: PiiBlocked) -> Self {
        let message = text::pii_blocked(&blocked.kind, blocked.count);
        Self::new(ErrorKind::Blocked, message).with_source(blocked)
    }
}

impl fmt::Display for PiiBlocked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of type {}", self.count, self.kind)
    }
}

impl std::error::Error for PiiBlocked {}

/// One kind of personal data, where it is looked for, and what becomes of it.
#[derive(Clone)]
pub struct PiiRule {
    kind: SmolStr,
    pub(super) detector: Detector,
    strategy: PiiStrategy,
    input: bool,
    output: bool,
    tool_results: bool,
}

impl PiiRule {
    fn new(kind: impl Into<SmolStr>, detector: Detector) -> Self {
        let strategy = PiiStrategy::default();
        Self { kind: kind.into(), detector, strategy, input: true, output: false, tool_results: false }
    }

    /// Email addresses.
    pub fn email() -> Self {
        Self::new("email", detect::email())
    }

    /// Numbers of payment cards whose check digit fits.
    pub fn credit_card() -> Self {
        Self::new("credit_card", detect::credit_card())
    }

    /// IP addresses.
    pub fn ip() -> Self {
        Self::new("ip", detect::ip())
    }

    /// Addresses of network cards.
    pub fn mac_address() -> Self {
        Self::new("mac_address", detect::mac_address())
    }

    /// URLs.
    pub fn url() -> Self {
        Self::new("url", detect::url())
    }

    /// A built-in kind by its name.
    pub fn built_in(kind: &str) -> Result<Self> {
        match kind {
            "email" => Ok(Self::email()),
            "credit_card" => Ok(Self::credit_card()),
            "ip" => Ok(Self::ip()),
            "mac_address" => Ok(Self::mac_address()),
            "url" => Ok(Self::url()),
            other => {
                let message = format!(
                    "there is no built-in kind of personal data `{other}`: \
                     use email, credit_card, ip, mac_address or url, or give a pattern"
                );
                Err(Error::new(ErrorKind::Build, message))
            }
        }
    }

    /// Whatever a regular expression matches, in the syntax of the `regex` crate.
    pub fn pattern(kind: impl Into<SmolStr>, pattern: &str) -> Result<Self> {
        Ok(Self::new(kind, Detector::Pattern(Arc::new(Pattern::new(pattern)?))))
    }

    /// Whatever a function finds: it gives places in bytes. It sees whole texts only, so a text that streams in is held
    /// back to its end.
    pub fn function<F>(kind: impl Into<SmolStr>, detect: F) -> Self
    where
        F: Fn(&str) -> Vec<Range<usize>> + Send + Sync + 'static,
    {
        Self::new(kind, Detector::Function(Arc::new(detect)))
    }

    /// What becomes of it; [`PiiStrategy::Redact`] unless set.
    pub fn strategy(mut self, strategy: PiiStrategy) -> Self {
        self.strategy = strategy;
        self
    }

    /// Whether it is looked for in what users say; yes unless set.
    pub fn input(mut self, input: bool) -> Self {
        self.input = input;
        self
    }

    /// Whether it is looked for in what the model says; no unless set.
    pub fn output(mut self, output: bool) -> Self {
        self.output = output;
        self
    }

    /// Whether it is looked for in what tools answer; no unless set.
    pub fn tool_results(mut self, tool_results: bool) -> Self {
        self.tool_results = tool_results;
        self
    }

    /// What kind of data it is about.
    pub fn kind(&self) -> &str {
        &self.kind
    }

    /// Whether it is about that surface.
    pub(super) fn applies_to(&self, surface: Surface) -> bool {
        match surface {
            Surface::Input => self.input,
            Surface::Output => self.output,
            Surface::ToolResults => self.tool_results,
        }
    }

    /// What there is of it in a text.
    pub fn detect(&self, text: &str) -> Vec<PiiMatch> {
        in_chars(text, &self.detector.find_all(text))
    }

    /// The text without it.
    pub fn apply(&self, text: &str) -> Result<String> {
        Ok(self.change(text)?.unwrap_or_else(|| text.to_owned()))
    }

    /// The same for a text that comes piece by piece. The last `lookback` characters at least are held back.
    pub fn stream(&self, lookback: usize) -> StreamRedactor {
        StreamRedactor::new([self.clone()], lookback)
    }

    /// The text without it; `None` if there was none in it.
    pub(super) fn change(&self, text: &str) -> Result<Option<String>, PiiBlocked> {
        let places = self.detector.find_all(text);
        if places.is_empty() {
            return Ok(None);
        }
        if self.strategy == PiiStrategy::Block {
            return Err(self.blocked(places.len()));
        }
        let mut changed = String::with_capacity(text.len());
        let mut done = 0;
        for place in places {
            changed.push_str(text.get(done..place.start).unwrap_or_default());
            changed.push_str(&self.replacement(text.get(place.clone()).unwrap_or_default()));
            done = place.end;
        }
        changed.push_str(text.get(done..).unwrap_or_default());
        Ok(Some(changed))
    }

    /// The same rule, but for one thing: it never stops a run.
    pub(super) fn hiding(mut self) -> Self {
        if self.strategy == PiiStrategy::Block {
            self.strategy = PiiStrategy::Redact;
        }
        self
    }

    pub(super) fn blocks(&self) -> bool {
        self.strategy == PiiStrategy::Block
    }

    pub(super) fn blocked(&self, count: usize) -> PiiBlocked {
        PiiBlocked { kind: self.kind.clone(), count }
    }

    /// What takes the place of any data, if that does not depend on them.
    pub(super) fn marker(&self) -> Option<String> {
        (self.strategy == PiiStrategy::Redact).then(|| format!("[REDACTED_{}]", self.kind.to_uppercase()))
    }

    /// What takes the place of these data.
    pub(super) fn replacement(&self, value: &str) -> String {
        match self.strategy {
            PiiStrategy::Mask => mask(&self.kind, value),
            PiiStrategy::Hash => {
                let digest = Sha256::digest(value.as_bytes());
                let start: String = digest.iter().take(4).map(|byte| format!("{byte:02x}")).collect();
                format!("<{}_hash:{start}>", self.kind)
            }
            PiiStrategy::Redact | PiiStrategy::Block => self.clone().hiding().marker().unwrap_or_default(),
        }
    }
}

impl fmt::Debug for PiiRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PiiRule({}, {:?})", self.kind, self.strategy)
    }
}

/// How many characters at the end a mask leaves.
const UNMASKED: usize = 4;

fn mask(kind: &str, value: &str) -> String {
    match kind {
        "email" => mask_email(value),
        "credit_card" => {
            let digits: Vec<char> = value.chars().filter(|c| c.is_numeric()).collect();
            let last: String = digits.iter().skip(digits.len().saturating_sub(UNMASKED)).collect();
            let separator = ["-", " "].into_iter().find(|mark| value.contains(mark)).unwrap_or_default();
            format!("****{separator}****{separator}****{separator}{last}")
        }
        "ip" => match value.split('.').collect::<Vec<_>>().as_slice() {
            [_, _, _, last] => format!("*.*.*.{last}"),
            _ => "****".to_owned(),
        },
        "mac_address" => {
            let separator = if value.contains(':') { ":" } else { "-" };
            format!("{}{}", format!("**{separator}").repeat(5), last_chars(value, 2))
        }
        "url" => "[MASKED_URL]".to_owned(),
        _ if value.chars().count() > UNMASKED => format!("****{}", last_chars(value, UNMASKED)),
        _ => "****".to_owned(),
    }
}

fn mask_email(value: &str) -> String {
    let Some((name, domain)) = value.split_once('@').filter(|(_, domain)| !domain.contains('@')) else {
        return "****".to_owned();
    };
    match domain.rsplit_once('.') {
        Some((_, last)) => format!("{name}@****.{last}"),
        None => format!("{name}@****"),
    }
}

fn last_chars(text: &str, count: usize) -> String {
    text.chars().skip(text.chars().count().saturating_sub(count)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mask_leaves_what_tells_data_apart() {
        let masked = [
            ("email", "anna.k@mail.example.org", "anna.k@****.org"),
            ("email", "user#host", "****"),
            ("email", "u@localhost", "u@****"),
            ("credit_card", "4111-1111 1111-1111", "****-****-****-1111"),
            ("credit_card", "4111\n1111\n1111\n1111", "************1111"),
            ("ip", "10.0.0.7", "*.*.*.7"),
            ("ip", "fe80::1", "****"),
            ("mac_address", "00-1A:2B-3C:4D-5E", "**:**:**:**:**:5E"),
            ("url", "https://x.io", "[MASKED_URL]"),
            ("id", "ünïcödé", "****cödé"),
            ("id", "0042", "****"),
        ];
        for (kind, value, expected) in masked {
            assert_eq!(mask(kind, value), expected, "{kind} {value}");
        }
    }

    #[test]
    fn blocking_names_type_and_count_but_never_the_value() {
        let rule = PiiRule::email().strategy(PiiStrategy::Block);
        let error = rule.apply("a@x.org and b@y.org").unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Blocked);
        assert!(error.message().contains("email") && error.message().contains('2'), "{error}");
        assert!(!format!("{error:?}").contains("x.org"), "{error:?}");
        let source = std::error::Error::source(&error).and_then(|source| source.downcast_ref());
        assert_eq!(source, Some(&PiiBlocked { kind: "email".into(), count: 2 }));
        assert_eq!(rule.apply("nothing").unwrap(), "nothing");
    }

    #[test]
    fn a_kind_that_is_not_built_in_is_refused() {
        assert_eq!(PiiRule::built_in("url").unwrap().kind(), "url");
        assert_eq!(PiiRule::built_in("ssn").unwrap_err().kind(), ErrorKind::Build);
    }

    #[test]
    fn a_function_is_as_good_as_a_pattern() {
        let rule = PiiRule::function("name", |text| {
            text.match_indices("Ann").map(|(at, n)| at..at + n.len()).collect()
        });
        assert_eq!(rule.apply("Ann and Ann").unwrap(), "[REDACTED_NAME] and [REDACTED_NAME]");
        assert_eq!(rule.detect("é Ann")[0], PiiMatch { start: 2, end: 5, value: "Ann".into() });
    }
}
