//! What an address of PostgreSQL says.

use std::time::Duration;

use umbel_core::{Error, ErrorKind, Result};

/// An address, with what it says for Umbel rather than for the server.
#[derive(Debug)]
pub(super) struct Address {
    pub(super) config: tokio_postgres::Config,
    pub(super) connect_timeout: Option<Duration>,
    pub(super) statement_timeout: Option<Duration>,
}

impl Address {
    pub(super) fn read(url: &str) -> Result<Self> {
        let (url, statement_timeout) = take(url, "statement_timeout")?;
        // The error of a parser might show the password.
        let unreadable = || Error::new(ErrorKind::InvalidInput, "the address of PostgreSQL cannot be read");
        let config: tokio_postgres::Config = url.parse().map_err(|_| unreadable())?;
        Ok(Self { connect_timeout: config.get_connect_timeout().copied(), config, statement_timeout })
    }
}

/// The address without a parameter, and how many seconds that says. PostgreSQL has no such parameter in addresses.
fn take(url: &str, name: &str) -> Result<(String, Option<Duration>)> {
    let (head, separator, parameters) = match url.split_once('?') {
        Some((head, parameters)) => (format!("{head}?"), '&', parameters),
        None if url.contains("://") => return Ok((url.to_owned(), None)),
        None => (String::new(), ' ', url),
    };
    let value_of = |parameter: &str| parameter.strip_prefix(name)?.strip_prefix('=').map(str::to_owned);
    let seconds = parameters.split(separator).rev().find_map(value_of);
    let Some(seconds) = seconds else { return Ok((url.to_owned(), None)) };
    let rest: Vec<&str> =
        parameters.split(separator).filter(|parameter| value_of(parameter).is_none()).collect();
    let time = seconds.parse().ok().and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    let time = time.ok_or_else(|| {
        let message = format!(
            "`{name}` in the address of PostgreSQL is `{seconds}`: give it as seconds, such as `{name}=30`"
        );
        Error::new(ErrorKind::InvalidInput, message)
    })?;
    let rest = rest.join(&separator.to_string());
    let head = if rest.is_empty() { head.trim_end_matches('?').to_owned() } else { head };
    Ok((head + &rest, Some(time)))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn an_address_may_say_how_long_connections_and_statements_may_take() {
        for (url, connect, statement) in [
            ("postgres://ann@db/desk", None, None),
            ("postgres://ann@db/desk?statement_timeout=5", None, Some(5 * SECOND)),
            (
                "postgres://ann@db/desk?statement_timeout=0.5&connect_timeout=3",
                Some(3 * SECOND),
                Some(SECOND / 2),
            ),
            (
                "postgres://ann@db/desk?connect_timeout=3&statement_timeout=0",
                Some(3 * SECOND),
                Some(Duration::ZERO),
            ),
            ("host=db user=ann statement_timeout=7 dbname=desk", None, Some(7 * SECOND)),
            ("host=db user=ann dbname=desk", None, None),
        ] {
            let address = Address::read(url).unwrap();
            assert_eq!((address.connect_timeout, address.statement_timeout), (connect, statement), "{url}");
            assert_eq!(address.config.get_dbname(), Some("desk"), "{url}");
            assert_eq!(address.config.get_user(), Some("ann"), "{url}");
        }
    }

    #[test]
    fn a_time_in_an_address_that_is_none_is_refused_without_the_password() {
        for time in ["soon", "-1", "", "1e99"] {
            let url = format!("postgres://ann:secret@db/desk?statement_timeout={time}");
            let error = Address::read(&url).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidInput);
            assert!(error.message().contains("as seconds") && !error.message().contains("secret"), "{error}");
        }
    }
}
