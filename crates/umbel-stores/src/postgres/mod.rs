//! A server that many processes share.
//!
//! What a commit acknowledged is on the server's disk, unless its `synchronous_commit` was turned off. Leases go by the
//! server's clock, so the machines that use it need not agree on the time. An append under a lease is one statement. If
//! the connection breaks, work that is known not to have been done is done again on another one, and an append first
//! looks whether it was.

mod artifacts;
mod credentials;
mod fault;
mod memory;
mod schema;
mod sessions;
mod transfer;
mod upkeep;

use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::time::{Duration, Instant};

use deadpool_postgres::{Client, Manager, ManagerConfig, Pool, RecyclingMethod, Runtime, Transaction};
use tokio_postgres::types::ToSql;
use tokio_postgres::{IsolationLevel, NoTls};
use umbel_core::{BoxFuture, Error, ErrorKind, Result};

use self::fault::Trouble;
use crate::seal::Keys;

/// A PostgreSQL database: a store of sessions, artifacts, memories and credentials. Clones share its connections.
#[derive(Clone)]
pub struct Postgres {
    inner: Arc<Inner>,
}

struct Inner {
    pool: Pool,
    keys: Option<Keys>,
    patience: Duration,
}

/// How a database is opened.
#[derive(Debug)]
pub struct PostgresOptions {
    url: String,
    keys: Option<Keys>,
    connections: usize,
    patience: Duration,
}

impl PostgresOptions {
    /// The keys that credentials are encrypted with. Without them none are stored.
    pub fn keys(mut self, keys: impl Into<Option<Keys>>) -> Self {
        self.keys = keys.into();
        self
    }

    /// How many connections are used at most; 16 unless told otherwise.
    pub fn connections(mut self, connections: usize) -> Self {
        self.connections = connections.max(1);
        self
    }

    /// How long to wait for a free connection, and for a server that restarts; 10 seconds unless told otherwise.
    pub fn patience(mut self, patience: Duration) -> Self {
        self.patience = patience;
        self
    }

    /// Opens the database, and makes its tables or brings them up to date where needed.
    pub async fn open(self) -> Result<Postgres> {
        // The error of a parser might show the password.
        let unreadable = || Error::new(ErrorKind::InvalidInput, "the address of PostgreSQL cannot be read");
        let config: tokio_postgres::Config = self.url.parse().map_err(|_| unreadable())?;
        let manager = ManagerConfig { recycling_method: RecyclingMethod::Fast };
        let pool = Pool::builder(Manager::from_config(config, NoTls, manager))
            .max_size(self.connections)
            .runtime(Runtime::Tokio1)
            .wait_timeout(Some(self.patience))
            .create_timeout(Some(self.patience))
            .build()
            .map_err(|error| Error::new(ErrorKind::Build, error.to_string()).with_source(error))?;
        let store = Postgres { inner: Arc::new(Inner { pool, keys: self.keys, patience: self.patience }) };
        store.write(|change, _| Box::pin(schema::migrate(change))).await?;
        Ok(store)
    }
}

impl Postgres {
    /// How to open the database at an address such as `postgres://user:password@host/name`.
    pub fn options(url: &str) -> PostgresOptions {
        PostgresOptions {
            url: url.to_owned(),
            keys: None,
            connections: 16,
            patience: Duration::from_secs(10),
        }
    }

    /// Opens the database at an address.
    pub async fn open(url: &str) -> Result<Self> {
        Self::options(url).open().await
    }

    async fn client(&self) -> Result<Client, Trouble> {
        Ok(self.inner.pool.get().await?)
    }

    /// Does something until it goes well or patience is at an end, as long as what stands in its way may pass.
    async fn again<T, F: Future<Output = Result<T, Trouble>>>(&self, work: impl Fn() -> F) -> Result<T> {
        let started = Instant::now();
        let mut wait = Duration::from_millis(20);
        loop {
            match work().await {
                Err(trouble) if trouble.may_pass() && started.elapsed() < self.inner.patience => {
                    // Connections that were open are as dead as this one.
                    self.inner.pool.retain(|client, _| !client.is_closed());
                    tokio::time::sleep(wait).await;
                    wait = (wait * 2).min(Duration::from_millis(500));
                }
                other => return Ok(other?),
            }
        }
    }

    /// Reads something, all of it from one moment.
    async fn read<'env, T>(&self, work: impl Steps<'env, T>) -> Result<T> {
        let read = async || {
            let mut client = self.client().await?;
            let moment = client.build_transaction().isolation_level(IsolationLevel::RepeatableRead);
            let moment = moment.read_only(true).start().await?;
            let value = work(&moment, []).await?;
            moment.commit().await?;
            Ok(value)
        };
        self.again(read).await
    }

    /// Writes something, all of it or nothing.
    async fn write<'env, T>(&self, work: impl Steps<'env, T>) -> Result<T> {
        let write = async || {
            let mut client = self.client().await?;
            let change = client.transaction().await?;
            let value = work(&change, []).await?;
            // From here on nobody knows whether a failure came before or after the commit, so it is not done again.
            change.commit().await.map_err(|error| unknown(&error))?;
            Ok(value)
        };
        self.again(write).await
    }
}

/// What is done in a transaction; more than once, if the connection breaks. The second argument is always empty: it
/// tells the compiler that what is borrowed lives as long as the transaction.
trait Steps<'env, T>:
    for<'a> Fn(&'a Transaction<'a>, [&'a &'env (); 0]) -> BoxFuture<'a, Result<T, Trouble>> + Send + Sync
{
}

impl<'env, T, F> Steps<'env, T> for F where
    F: for<'a> Fn(&'a Transaction<'a>, [&'a &'env (); 0]) -> BoxFuture<'a, Result<T, Trouble>> + Send + Sync
{
}

/// A commit that was not answered.
fn unknown(error: &tokio_postgres::Error) -> Error {
    let message = format!(
        "the connection to PostgreSQL broke during a commit, and it is not known whether it was done ({error})"
    );
    Error::new(ErrorKind::Store, message)
}

impl fmt::Debug for Postgres {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Postgres({} connections)", self.inner.pool.status().size)
    }
}

/// Runs a statement that is kept prepared.
async fn query(
    client: &impl deadpool_postgres::GenericClient,
    sql: &str,
    values: &[&(dyn ToSql + Sync)],
) -> Result<Vec<tokio_postgres::Row>, Trouble> {
    let statement = client.prepare_cached(sql).await?;
    Ok(client.query(&statement, values).await?)
}

/// Runs a statement that is kept prepared and gives no rows. Tells how many it changed.
async fn execute(
    client: &impl deadpool_postgres::GenericClient,
    sql: &str,
    values: &[&(dyn ToSql + Sync)],
) -> Result<u64, Trouble> {
    let statement = client.prepare_cached(sql).await?;
    Ok(client.execute(&statement, values).await?)
}

/// Numbers that PostgreSQL keeps signed and Umbel counts up from 0.
fn unsigned(number: i64) -> u64 {
    u64::try_from(number).unwrap_or(0)
}

/// The other way; a number that no database can hold is larger than any in it.
fn signed(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}
