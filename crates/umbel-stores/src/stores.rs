//! All stores of one place, found by its address.

use std::io::{BufRead, Write};
use std::sync::Arc;

use umbel_core::{
    ArtifactStore, CredentialStore, Error, ErrorKind, InMemoryArtifacts, InMemoryCredentials, InMemoryMemory,
    InMemorySessions, MemoryStore, Result, SessionStore,
};

/// The stores of one place.
#[derive(Clone, Debug)]
pub struct Stores {
    /// Sessions.
    pub sessions: Arc<dyn SessionStore>,
    /// Artifacts.
    pub artifacts: Arc<dyn ArtifactStore>,
    /// Memories.
    pub memory: Arc<dyn MemoryStore>,
    /// Credentials.
    pub credentials: Arc<dyn CredentialStore>,
}

impl Stores {
    /// Stores in memory. They end with the process.
    pub fn in_memory() -> Self {
        Self {
            sessions: Arc::new(InMemorySessions::new()),
            artifacts: Arc::new(InMemoryArtifacts::new()),
            memory: Arc::new(InMemoryMemory::new()),
            credentials: Arc::new(InMemoryCredentials::new()),
        }
    }

    /// One store that is all four.
    #[cfg(any(feature = "sqlite", feature = "postgres"))]
    fn all<S>(store: S) -> Self
    where
        S: SessionStore + ArtifactStore + MemoryStore + CredentialStore + Clone + 'static,
    {
        Self {
            sessions: Arc::new(store.clone()),
            artifacts: Arc::new(store.clone()),
            memory: Arc::new(store.clone()),
            credentials: Arc::new(store),
        }
    }
}

#[cfg(feature = "sqlite")]
impl From<crate::Sqlite> for Stores {
    fn from(store: crate::Sqlite) -> Self {
        Self::all(store)
    }
}

#[cfg(feature = "postgres")]
impl From<crate::Postgres> for Stores {
    fn from(store: crate::Postgres) -> Self {
        Self::all(store)
    }
}

/// Writes everything that the stores at an address hold as JSON lines, as it was at one moment. Tells how many pieces
/// there were. Of stores in memory nothing can be found by an address.
pub async fn export(url: &str, out: impl Write + Send + 'static) -> Result<u64> {
    #[cfg(feature = "sqlite")]
    if let Some(path) = url.strip_prefix("sqlite:") {
        return open_sqlite(path).await?.export(out).await;
    }
    #[cfg(feature = "postgres")]
    if is_postgres(url) {
        return open_postgres(url).await?.export(out).await;
    }
    drop(out);
    Err(unknown(url))
}

/// Takes what was exported into the stores at an address, all or none. Tells how many pieces there were.
pub async fn import(url: &str, input: impl BufRead + Send + 'static) -> Result<u64> {
    #[cfg(feature = "sqlite")]
    if let Some(path) = url.strip_prefix("sqlite:") {
        return open_sqlite(path).await?.import(input).await;
    }
    #[cfg(feature = "postgres")]
    if is_postgres(url) {
        return open_postgres(url).await?.import(input).await;
    }
    drop(input);
    Err(unknown(url))
}

/// Opens the stores at an address: `memory:`, `sqlite:path` or `postgres://…`.
///
/// Keys of credentials come from the environment ([`Keys::from_env`](crate::Keys::from_env)).
pub async fn open(url: &str) -> Result<Stores> {
    if url == "memory:" {
        return Ok(Stores::in_memory());
    }
    #[cfg(feature = "sqlite")]
    if let Some(path) = url.strip_prefix("sqlite:") {
        return Ok(open_sqlite(path).await?.into());
    }
    #[cfg(feature = "postgres")]
    if is_postgres(url) {
        return Ok(open_postgres(url).await?.into());
    }
    Err(unknown(url))
}

#[cfg(feature = "sqlite")]
async fn open_sqlite(path: &str) -> Result<crate::Sqlite> {
    let path = path.strip_prefix("//").unwrap_or(path);
    if path.is_empty() || path == ":memory:" {
        let message =
            "`sqlite:` needs the path of a file: write `sqlite:some.db`, or `memory:` to keep nothing";
        return Err(Error::new(ErrorKind::InvalidInput, message));
    }
    crate::Sqlite::options(path).keys(crate::Keys::from_env()?).open().await
}

#[cfg(feature = "postgres")]
fn is_postgres(url: &str) -> bool {
    url.starts_with("postgres:") || url.starts_with("postgresql:")
}

#[cfg(feature = "postgres")]
async fn open_postgres(url: &str) -> Result<crate::Postgres> {
    crate::Postgres::options(url).keys(crate::Keys::from_env()?).open().await
}

/// An address of no store, without what may be a password in it.
fn unknown(url: &str) -> Error {
    let scheme = url.split(':').next().unwrap_or_default();
    let known: Vec<&str> = [
        Some("`memory:`"),
        cfg!(feature = "sqlite").then_some("`sqlite:some.db`"),
        cfg!(feature = "postgres").then_some("`postgres://…`"),
    ]
    .into_iter()
    .flatten()
    .collect();
    let message =
        format!("there is no store for addresses that begin with `{scheme}`: use {}", known.join(" or "));
    Error::new(ErrorKind::InvalidInput, message)
}
