//! A server that many processes share.
//!
//! What a commit acknowledged is on the server's disk, unless its `synchronous_commit` was turned off. Leases go by the
//! server's clock, so the machines that use it need not agree on the time. An append under a lease is one statement. If
//! the connection breaks, the work is done again on another one; what must not be done twice looks first whether it was.

mod address;
mod artifacts;
mod credentials;
mod fault;
mod memory;
mod schema;
mod sessions;
mod transfer;
mod upkeep;
mod within;

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use deadpool_postgres::{
    Client, ClientWrapper, Hook, HookError, Manager, ManagerConfig, Pool, RecyclingMethod, Runtime,
    Transaction,
};
use tokio::time::timeout;
use tokio_postgres::types::ToSql;
use tokio_postgres::{IsolationLevel, NoTls};
use umbel_core::deadline::finite;
use umbel_core::{BoxFuture, Error, ErrorKind, Result};

use self::address::Address;
use self::fault::Trouble;
use self::within::answered;
use crate::seal::Keys;

/// How long a new connection may take, unless told otherwise.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// How long a statement may take, unless told otherwise.
const STATEMENT_TIMEOUT: Duration = Duration::from_secs(30);

/// How much longer than a statement may take an answer is waited for: what the server says itself is more.
const GRACE: Duration = Duration::from_secs(2);

/// A PostgreSQL database: a store of sessions, artifacts, memories and credentials. Clones share its connections.
#[derive(Clone)]
pub struct Postgres {
    inner: Arc<Inner>,
}

struct Inner {
    pool: Pool,
    keys: Option<Keys>,
    patience: Duration,
    /// How long to wait for the answer to a statement.
    answer_time: Duration,
}

/// How a database is opened.
#[derive(Debug)]
pub struct PostgresOptions {
    url: String,
    keys: Option<Keys>,
    connections: usize,
    patience: Duration,
    connect_timeout: Option<Duration>,
    statement_timeout: Option<Duration>,
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

    /// How long to wait for a free connection, for a row that someone else has locked, and for a server that restarts;
    /// 10 seconds unless told otherwise. Not at all with zero, without end with [`Duration::MAX`].
    pub fn patience(mut self, patience: Duration) -> Self {
        self.patience = patience;
        self
    }

    /// How long a new connection may take until it can be used; 10 seconds, unless the address has `connect_timeout`, in
    /// seconds. With zero none comes about; [`Duration::MAX`] is no limit.
    pub fn connect_timeout(mut self, time: Duration) -> Self {
        self.connect_timeout = Some(time);
        self
    }

    /// How long one statement may take; 30 seconds, unless the address has `statement_timeout`, in seconds. The server
    /// cancels it then, and nothing of its transaction is written. If the server does not answer at all, the connection
    /// is given up a little later. Zero leaves a millisecond; [`Duration::MAX`] is no limit. Bringing tables up to date,
    /// exports and imports may take longer.
    pub fn statement_timeout(mut self, time: Duration) -> Self {
        self.statement_timeout = Some(time);
        self
    }

    /// Opens the database, and makes its tables or brings them up to date where needed.
    pub async fn open(self) -> Result<Postgres> {
        let address = Address::read(&self.url)?;
        let connect_time = self.connect_timeout.or(address.connect_timeout).unwrap_or(CONNECT_TIMEOUT);
        let statement_time =
            self.statement_timeout.or(address.statement_timeout).unwrap_or(STATEMENT_TIMEOUT);
        let config = address.config;
        let manager = ManagerConfig { recycling_method: RecyclingMethod::Fast };
        // Whoever holds a lock for ever, such as a person at a console, must not take all connections.
        let limits = format!(
            "SET lock_timeout = {}; SET statement_timeout = {}",
            as_setting(self.patience),
            as_setting(statement_time)
        );
        let set_up = Hook::async_fn(move |client: &mut ClientWrapper, _| {
            let limits = limits.clone();
            Box::pin(async move {
                match timeout(connect_time, client.batch_execute(&limits)).await {
                    Ok(set) => set.map_err(HookError::Backend),
                    Err(_) => Err(HookError::message(fault::NO_ANSWER)),
                }
            })
        });
        let pool = Pool::builder(Manager::from_config(config, NoTls, manager))
            .post_create(set_up)
            .max_size(self.connections)
            .runtime(Runtime::Tokio1)
            .wait_timeout(Some(self.patience))
            .create_timeout(Some(connect_time))
            .build()
            .map_err(|error| Error::new(ErrorKind::Build, error.to_string()).with_source(error))?;
        let answer_time = statement_time.saturating_add(GRACE);
        let inner = Inner { pool, keys: self.keys, patience: self.patience, answer_time };
        let store = Postgres { inner: Arc::new(inner) };
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
            connect_timeout: None,
            statement_timeout: None,
        }
    }

    /// Opens the database at an address.
    pub async fn open(url: &str) -> Result<Self> {
        Self::options(url).open().await
    }

    async fn client(&self) -> Result<Client, Trouble> {
        Ok(self.inner.pool.get().await?)
    }

    /// Does something on a connection. One over which no answer came in time is not used again.
    async fn on_client<T>(
        &self,
        work: impl AsyncFnOnce(&mut Client) -> Result<T, Trouble>,
    ) -> Result<T, Trouble> {
        let mut client = self.client().await?;
        let done = within::scope(self.inner.answer_time, work(&mut client)).await;
        if matches!(done, Err(Trouble::Late(_))) {
            drop(Client::take(client));
        }
        done
    }

    /// Waits a while, if what stands in the way may pass and there is patience left. Tells whether to try again.
    async fn tries_again(&self, tries: &mut Tries, trouble: &Trouble) -> bool {
        if !trouble.may_pass() || tries.since.elapsed() >= self.inner.patience {
            return false;
        }
        // Connections that were open are as dead as this one.
        self.inner.pool.retain(|client, _| !client.is_closed());
        tokio::time::sleep(tries.wait).await;
        tries.wait = (tries.wait * 2).min(Duration::from_millis(500));
        true
    }

    /// Reads something, all of it from one moment.
    async fn read<'env, T>(&self, work: impl Steps<'env, T>) -> Result<T> {
        let read = async |client: &mut Client| {
            let moment = client.build_transaction().isolation_level(IsolationLevel::RepeatableRead);
            let moment = answered(moment.read_only(true).start()).await?;
            let value = work(&moment, []).await?;
            answered(moment.commit()).await?;
            Ok(value)
        };
        let mut tries = Tries::new();
        loop {
            match self.on_client(read).await {
                Err(trouble) if self.tries_again(&mut tries, &trouble).await => {}
                read => return Ok(read?),
            }
        }
    }

    /// Writes something, all of it or nothing. If the answer to the commit is lost it is done again, so it must come to
    /// the same when it is done twice.
    async fn write<'env, T: Sync>(&self, work: impl Steps<'env, T>) -> Result<T> {
        self.write_once(work, |_, _, _| Box::pin(std::future::ready(Ok(false)))).await
    }

    /// Writes something that must not be done twice, all of it or nothing. If the answer to the commit is lost,
    /// `was_done` looks for what that attempt gave before it is done again.
    async fn write_once<'env, T: Sync>(
        &self,
        work: impl Steps<'env, T>,
        was_done: impl Look<'env, T>,
    ) -> Result<T> {
        let (mut tries, mut doubtful) = (Tries::new(), None);
        loop {
            let attempt =
                self.on_client(async |client| attempt(client, &work, &was_done, &mut doubtful).await).await;
            match attempt {
                Err(trouble) if self.tries_again(&mut tries, &trouble).await => {}
                Err(trouble) if doubtful.is_some() && !trouble.is_refusal() => return Err(unknown(trouble)),
                written => return Ok(written?),
            }
        }
    }
}

/// One attempt to write. `doubtful` is what an earlier one gave, if nobody knows whether it was done.
async fn attempt<'env, T: Sync>(
    client: &mut Client,
    work: &impl Steps<'env, T>,
    was_done: &impl Look<'env, T>,
    doubtful: &mut Option<T>,
) -> Result<T, Trouble> {
    let change = answered(client.transaction()).await?;
    if let Some(value) = take_if_done(doubtful, &change, was_done).await? {
        return Ok(value);
    }
    let value = match work(&change, []).await {
        // By what the earlier attempt wrote, perhaps: it may have ended only now.
        Err(Trouble::Refused(error)) => {
            return take_if_done(doubtful, &change, was_done).await?.ok_or(Trouble::Refused(error));
        }
        other => other?,
    };
    match answered(change.commit()).await {
        Ok(()) => Ok(value),
        Err(trouble) => {
            if trouble.leaves_doubt() {
                *doubtful = Some(value);
            }
            Err(trouble)
        }
    }
}

/// A time as a setting of the server: milliseconds, of which zero is no limit.
fn as_setting(time: Duration) -> i32 {
    let millis = finite(time).map_or(0, |time| time.as_millis().max(1));
    i32::try_from(millis).unwrap_or(0)
}

/// How long something has been tried, and how long to wait before the next time.
struct Tries {
    since: Instant,
    wait: Duration,
}

impl Tries {
    fn new() -> Self {
        Self { since: Instant::now(), wait: Duration::from_millis(20) }
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

/// Looks whether something that was written is stored. Waits for whoever wrote it, if that transaction has not ended.
trait Look<'env, T>:
    for<'a> Fn(&'a Transaction<'a>, &'a T, [&'a &'env (); 0]) -> BoxFuture<'a, Result<bool, Trouble>>
    + Send
    + Sync
{
}

impl<'env, T, F> Look<'env, T> for F where
    F: for<'a> Fn(&'a Transaction<'a>, &'a T, [&'a &'env (); 0]) -> BoxFuture<'a, Result<bool, Trouble>>
        + Send
        + Sync
{
}

/// What an earlier attempt gave, if it turns out that it was done.
async fn take_if_done<'env, T>(
    doubtful: &mut Option<T>,
    change: &Transaction<'_>,
    was_done: &impl Look<'env, T>,
) -> Result<Option<T>, Trouble> {
    let is_done = match doubtful {
        Some(value) => was_done(change, value, []).await?,
        None => false,
    };
    Ok(if is_done { doubtful.take() } else { None })
}

/// The connection broke during a commit, and no other could be had to look.
fn unknown(trouble: Trouble) -> Error {
    let trouble = Error::from(trouble);
    let message = format!(
        "the connection to PostgreSQL broke before it said whether something was written: read it again to see ({trouble})"
    );
    Error::new(ErrorKind::Store, message).with_source(trouble)
}

impl fmt::Debug for Postgres {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Postgres({} connections)", self.inner.pool.status().size)
    }
}

/// Takes an advisory lock on a name until the transaction ends. Concurrent transactions that replace what one name stands
/// for need it: under READ COMMITTED, a `DELETE` that waited for another transaction does not see the rows that one inserted.
async fn lock(change: &Transaction<'_>, name: &[&str]) -> Result<(), Trouble> {
    query(change, "SELECT pg_advisory_xact_lock(hashtextextended($1, 0))", &[&name.join("\n")]).await?;
    Ok(())
}

/// Runs a statement that is kept prepared.
async fn query(
    client: &impl deadpool_postgres::GenericClient,
    sql: &str,
    values: &[&(dyn ToSql + Sync)],
) -> Result<Vec<tokio_postgres::Row>, Trouble> {
    answered(async {
        let statement = client.prepare_cached(sql).await?;
        client.query(&statement, values).await
    })
    .await
}

/// Runs a statement that is kept prepared and gives no rows. Tells how many it changed.
async fn execute(
    client: &impl deadpool_postgres::GenericClient,
    sql: &str,
    values: &[&(dyn ToSql + Sync)],
) -> Result<u64, Trouble> {
    answered(async {
        let statement = client.prepare_cached(sql).await?;
        client.execute(&statement, values).await
    })
    .await
}

/// Numbers that PostgreSQL keeps signed and Umbel counts up from 0.
fn unsigned(number: i64) -> u64 {
    u64::try_from(number).unwrap_or(0)
}

/// The other way; a number that no database can hold is larger than any in it.
fn signed(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}
