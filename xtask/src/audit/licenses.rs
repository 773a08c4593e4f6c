//! SPDX licence expressions.

use std::fmt;

/// A licence expression: what must be allowed for a package to be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum LicenseExpression {
    /// One licence, with its exception if it has one (`Apache-2.0 WITH LLVM-exception`).
    One(String),
    /// All of them must be allowed (`AND`).
    All(Vec<LicenseExpression>),
    /// One of them must be allowed (`OR`).
    Any(Vec<LicenseExpression>),
}

impl LicenseExpression {
    /// Reads an expression. `AND` binds closer than `OR`, and `/` is what manifests had for `OR` in
    /// former times.
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        let spaced = text.replace('(', " ( ").replace(')', " ) ").replace('/', " OR ");
        let words: Vec<&str> = spaced.split_whitespace().collect();
        let mut reader = ExpressionReader { words: &words };
        let expression = reader.any().and_then(|expression| match reader.words.first() {
            None => Ok(expression),
            Some(word) => Err(format!("`{word}` is not expected")),
        });
        expression.map_err(|why| format!("`{text}` is not a licence expression: {why}"))
    }

    /// Whether the expression holds if these licences are allowed. An exception makes another
    /// licence of one.
    pub(super) fn is_satisfied(&self, is_allowed: &dyn Fn(&str) -> bool) -> bool {
        match self {
            Self::One(license) => is_allowed(license),
            Self::All(parts) => parts.iter().all(|part| part.is_satisfied(is_allowed)),
            Self::Any(parts) => parts.iter().any(|part| part.is_satisfied(is_allowed)),
        }
    }
}

impl fmt::Display for LicenseExpression {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (parts, operator) = match self {
            Self::One(license) => return f.write_str(license),
            Self::All(parts) => (parts, " AND "),
            Self::Any(parts) => (parts, " OR "),
        };
        for (at, part) in parts.iter().enumerate() {
            if at > 0 {
                f.write_str(operator)?;
            }
            match part {
                Self::One(license) => f.write_str(license)?,
                Self::All(_) | Self::Any(_) => write!(f, "({part})")?,
            }
        }
        Ok(())
    }
}

/// Recursive descent over the words of an expression.
struct ExpressionReader<'a> {
    words: &'a [&'a str],
}

impl ExpressionReader<'_> {
    fn any(&mut self) -> Result<LicenseExpression, String> {
        let mut parts = vec![self.all()?];
        while self.take("OR") {
            parts.push(self.all()?);
        }
        Ok(joined(parts, LicenseExpression::Any))
    }

    fn all(&mut self) -> Result<LicenseExpression, String> {
        let mut parts = vec![self.one()?];
        while self.take("AND") {
            parts.push(self.one()?);
        }
        Ok(joined(parts, LicenseExpression::All))
    }

    fn one(&mut self) -> Result<LicenseExpression, String> {
        if self.take("(") {
            let inner = self.any()?;
            return if self.take(")") { Ok(inner) } else { Err("a parenthesis is open".to_owned()) };
        }
        let license = self.identifier()?;
        if self.take("WITH") {
            return Ok(LicenseExpression::One(format!("{license} WITH {}", self.identifier()?)));
        }
        Ok(LicenseExpression::One(license))
    }

    fn identifier(&mut self) -> Result<String, String> {
        let (word, rest) = self.words.split_first().ok_or("it ends too early")?;
        let is_part = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'+' | b':');
        let is_operator = ["AND", "OR", "WITH"].iter().any(|one| one.eq_ignore_ascii_case(word));
        if is_operator || !word.bytes().all(is_part) {
            return Err(format!("`{word}` is not an identifier"));
        }
        self.words = rest;
        Ok((*word).to_owned())
    }

    fn take(&mut self, expected: &str) -> bool {
        match self.words.split_first() {
            Some((word, rest)) if *word == expected => {
                self.words = rest;
                true
            }
            _ => false,
        }
    }
}

/// One part as it is, several under an operator.
fn joined(
    mut parts: Vec<LicenseExpression>,
    operator: fn(Vec<LicenseExpression>) -> LicenseExpression,
) -> LicenseExpression {
    match parts.pop() {
        Some(only) if parts.is_empty() => only,
        last => {
            parts.extend(last);
            operator(parts)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn holds(expression: &str, allowed: &[&str]) -> bool {
        LicenseExpression::parse(expression).unwrap().is_satisfied(&|license| allowed.contains(&license))
    }

    #[test]
    fn an_expression_holds_if_what_it_demands_is_allowed() {
        assert!(holds("MIT", &["MIT"]));
        assert!(!holds("GPL-3.0-only", &["MIT"]));
        assert!(holds("MIT OR GPL-3.0-only", &["MIT"]));
        assert!(!holds("MIT AND GPL-3.0-only", &["MIT"]));
        assert!(!holds("(MIT OR Apache-2.0) AND Unicode-3.0", &["MIT", "Apache-2.0"]));
        assert!(holds("(MIT OR Apache-2.0) AND Unicode-3.0", &["MIT", "Unicode-3.0"]));
        assert!(holds("((MIT))", &["MIT"]));
    }

    #[test]
    fn and_binds_closer_than_or() {
        assert!(holds("MIT OR GPL-3.0-only AND ISC", &["MIT"]));
        assert!(!holds("(MIT OR GPL-3.0-only) AND ISC", &["MIT"]));
        assert!(!holds("GPL-3.0-only AND ISC OR AGPL-3.0-only", &["ISC"]));
    }

    #[test]
    fn an_exception_makes_another_licence() {
        let with = "Apache-2.0 WITH LLVM-exception";
        assert!(!holds(with, &["Apache-2.0"]));
        assert!(holds(with, &[with]));
        assert!(!holds("Apache-2.0", &[with]));
        assert!(holds("Apache-2.0 WITH LLVM-exception OR Apache-2.0 OR MIT", &["MIT"]));
        assert!(!holds("GPL-2.0+", &["GPL-2.0"]));
    }

    #[test]
    fn a_slash_is_an_or_and_is_written_as_one() {
        assert!(holds("MIT/Apache-2.0", &["Apache-2.0"]));
        assert!(holds("Apache-2.0 / MIT", &["MIT"]));
        let written = |text: &str| LicenseExpression::parse(text).unwrap().to_string();
        assert_eq!(written("MIT/Apache-2.0"), "MIT OR Apache-2.0");
        assert_eq!(written("(MIT OR ISC)  AND Unicode-3.0"), "(MIT OR ISC) AND Unicode-3.0");
    }

    #[test]
    fn what_is_no_expression_is_refused() {
        for text in [
            "",
            "MIT OR",
            "AND MIT",
            "MIT MIT",
            "(MIT",
            "MIT)",
            "MIT WITH",
            "MIT or ISC",
            "MIT, ISC",
            "()",
            "/",
        ] {
            assert!(LicenseExpression::parse(text).is_err(), "{text}");
        }
    }
}
