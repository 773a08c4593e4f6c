//! A real server: `cargo xtask postgres cargo test -p umbel-stores --all-features`.

use std::sync::Arc;
use std::time::Duration;

use tokio_postgres::{Client, NoTls};
use umbel_core::store::{Acquire, Acquired, Entries, IdleFilter};
use umbel_core::{
    ArtifactStore, Content, Credential, CredentialStore, ErrorKind, Event, EventFilter, LogEntry,
    MemoryStore, NewSession, RunId, SessionKey, SessionStore, Source, Versions,
};
use umbel_stores::{Key, Keys, Postgres, Stores, contract};

use crate::privacy;

/// The address of the server, or a word that there is none.
// Who runs the tests is told why these are not run.
#[allow(clippy::print_stderr)]
pub(crate) fn server() -> Option<String> {
    let url = std::env::var("UMBEL_TEST_POSTGRES").ok();
    if url.is_none() {
        eprintln!("not run, since UMBEL_TEST_POSTGRES names no server: use `cargo xtask test postgres`");
    }
    url
}

/// A database of its own on that server.
pub(crate) async fn new_database(url: &str) -> String {
    let name = format!("test_{}", contract::fresh_app().replace('-', "_"));
    connect(url).await.batch_execute(&format!("CREATE DATABASE {name}")).await.unwrap();
    url.replace("///postgres?", &format!("///{name}?"))
}

pub(crate) async fn connect(url: &str) -> Client {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await.unwrap();
    tokio::spawn(connection);
    client
}

async fn open(url: &str) -> Postgres {
    let keys = Keys::parse(&Key::generate("k1").unwrap()).unwrap();
    Postgres::options(url).keys(keys).patience(Duration::from_secs(60)).open().await.unwrap()
}

#[test]
fn postgres_keeps_the_contract_of_sessions() {
    let Some(url) = server() else { return };
    contract::block_on(async {
        let store: Arc<dyn SessionStore> = Arc::new(open(&url).await);
        contract::sessions(&store).await;
    });
}

#[test]
fn postgres_keeps_the_contract_of_artifacts_memory_and_credentials() {
    let Some(url) = server() else { return };
    contract::block_on(async {
        let store = open(&url).await;
        let artifacts: Arc<dyn ArtifactStore> = Arc::new(store.clone());
        contract::artifacts(&artifacts).await;
        let memory: Arc<dyn MemoryStore> = Arc::new(store.clone());
        contract::memory(&memory).await;
        let credentials: Arc<dyn CredentialStore> = Arc::new(store);
        contract::credentials(&credentials).await;
    });
}

pub(crate) fn key(id: &str) -> SessionKey {
    SessionKey::new("app", "ann", id).unwrap()
}

pub(crate) fn entries(texts: &[&str]) -> Entries {
    let said = |text: &&str| {
        let mut event = Event::new(RunId::from("e-1"), Arc::new(Source::new("agent")));
        event.content = Some(Arc::new(Content::model(*text)));
        LogEntry::Event(Arc::new(event))
    };
    texts.iter().map(said).collect()
}

pub(crate) async fn texts(store: &Postgres, key: &SessionKey) -> Vec<String> {
    let session = store.get(key, EventFilter::default()).await.unwrap().unwrap();
    session.events.iter().map(|event| event.text()).collect()
}

pub(crate) async fn new_session(store: &Postgres) -> SessionKey {
    store.create(NewSession::new(key("s1"))).await.unwrap().key
}

pub(crate) async fn lease(store: &Postgres, key: &SessionKey) -> Acquired {
    let (owner, ttl, known) = ("tester".into(), Duration::from_secs(60), Versions::default());
    let acquire = Acquire { known, ..Acquire::new(key.clone(), owner, ttl) };
    store.acquire(acquire).await.unwrap()
}

/// Ends every connection that the store has, as a restart of the server does.
async fn cut(client: &Client) {
    let cut = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity
        WHERE datname = current_database() AND pid <> pg_backend_pid()";
    client.query(cut, &[]).await.unwrap();
}

#[tokio::test]
async fn postgres_connections_that_break_are_made_anew() {
    let Some(url) = server() else { return };
    let url = new_database(&url).await;
    let (store, other) = (open(&url).await, connect(&url).await);
    let s1 = new_session(&store).await;
    let taken = lease(&store, &s1).await;
    cut(&other).await;
    let versions = store.append(&taken.lease, taken.versions, entries(&["one"])).await.unwrap();
    cut(&other).await;
    assert_eq!(texts(&store, &s1).await, ["one"]);
    cut(&other).await;
    store.heartbeat(&taken.lease, Duration::from_secs(60)).await.unwrap();
    cut(&other).await;
    store.release(&taken.lease, versions, entries(&["two"])).await.unwrap();
    cut(&other).await;
    store.commit(&s1, None, entries(&["three"])).await.unwrap();
    assert_eq!(texts(&store, &s1).await, ["one", "two", "three"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn postgres_an_append_that_was_cut_off_is_written_once() {
    let Some(url) = server() else { return };
    let url = new_database(&url).await;
    let (store, mut other) = (open(&url).await, connect(&url).await);
    let s1 = new_session(&store).await;
    let taken = lease(&store, &s1).await;
    let lock = other.transaction().await.unwrap();
    lock.execute("SELECT 1 FROM umbel_sessions FOR UPDATE", &[]).await.unwrap();
    let append = tokio::spawn({
        let store = store.clone();
        async move { store.append(&taken.lease, taken.versions, entries(&["once"])).await }
    });
    tokio::time::sleep(Duration::from_millis(200)).await;
    let third = connect(&url).await;
    let waiting = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity
        WHERE datname = current_database() AND wait_event_type = 'Lock'";
    assert_eq!(third.query(waiting, &[]).await.unwrap().len(), 1);
    lock.commit().await.unwrap();
    assert_eq!(append.await.unwrap().unwrap().session, 1);
    assert_eq!(texts(&store, &s1).await, ["once"]);
}

#[tokio::test]
async fn postgres_that_is_not_there_or_newer_is_an_error_with_words() {
    let patience = Duration::from_millis(300);
    let nowhere = "postgres:///postgres?user=umbel&password=pw&host=/nowhere/at/all";
    let error = Postgres::options(nowhere).patience(patience).open().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Store);
    assert!(!error.message().contains("pw"), "{error}");
    let error = Postgres::open("postgres://a:pw@host:notaport/x").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidInput);
    assert!(!error.message().contains("pw"), "{error}");
    let Some(url) = server() else { return };
    let url = new_database(&url).await;
    open(&url).await;
    connect(&url).await.batch_execute("INSERT INTO umbel_schema VALUES (99)").await.unwrap();
    let error = Postgres::open(&url).await.unwrap_err();
    assert!(error.message().contains("newer version") && error.message().contains("99"), "{error}");
}

#[tokio::test]
async fn postgres_of_any_earlier_version_becomes_todays() {
    let Some(server) = server() else { return };
    let tables = async |url: &str| {
        let columns =
            "SELECT table_name || '.' || column_name || ' ' || data_type FROM information_schema.columns
            WHERE table_name LIKE 'umbel%' ORDER BY 1";
        let rows = connect(url).await.query(columns, &[]).await.unwrap();
        rows.iter().map(|row| row.get(0)).collect::<Vec<String>>()
    };
    let new = new_database(&server).await;
    let (first, second) = tokio::join!(Postgres::open(&new), Postgres::open(&new));
    first.unwrap();
    second.unwrap();
    let migrations = [
        include_str!("../../src/postgres/migrations/1_sessions.sql"),
        include_str!("../../src/postgres/migrations/2_artifacts_memory_credentials.sql"),
        include_str!("../../src/postgres/migrations/3_waits_and_ages.sql"),
    ];
    for from in 1..=migrations.len() {
        let url = new_database(&server).await;
        let client = connect(&url).await;
        client.batch_execute("CREATE TABLE umbel_schema (version bigint NOT NULL)").await.unwrap();
        for (before, migration) in migrations.iter().take(from).enumerate() {
            client.batch_execute(migration).await.unwrap();
            client.batch_execute(&format!("INSERT INTO umbel_schema VALUES ({})", before + 1)).await.unwrap();
        }
        let fields = "app, user_id, name, first_state, version, updated_at, epoch";
        let insert =
            format!("INSERT INTO umbel_sessions ({fields}) VALUES ('app', 'ann', 's1', '{{}}', 0, 1.5, 1)");
        client.batch_execute(&insert).await.unwrap();
        let log = [
            r#"{"id":"1","author":"a","timestamp":1.0,"longRunningToolIds":["c1","c2"]}"#,
            r#"{"step":"ended","outcome":{"kind":"interrupted","interrupts":[{"id":"q","address":{"agent":"a"},"reason":"input"}]}}"#,
            r#"{"id":"2","author":"user","timestamp":1.0,"content":{"role":"user","parts":[{"functionResponse":{"id":"c1","name":"t","response":{}}}]}}"#,
        ];
        for (version, body) in log.iter().enumerate() {
            let time = (!body.contains("step")).then_some(1.0);
            let insert = "INSERT INTO umbel_log (session, version, time, body) VALUES (1, $1, $2, $3)";
            client.execute(insert, &[&(version as i64 + 1), &time, body]).await.unwrap();
        }
        client.batch_execute("UPDATE umbel_sessions SET version = 3").await.unwrap();
        let store = open(&url).await;
        assert_eq!(tables(&url).await, tables(&new).await, "from version {from}");
        assert_eq!(texts(&store, &key("s1")).await.len(), 2);
        // The newest version had the index already, so nobody looked into the log.
        let waits = usize::from(from < migrations.len());
        assert_eq!(store.open_questions("app", None).await.unwrap().len(), waits);
        let idle = store.idle("app", IdleFilter::before(2.0)).await.unwrap();
        assert_eq!(idle[0].awaited_calls, waits as u64);
        save(&store, "x").await.unwrap();
    }
}

async fn save(store: &Postgres, secret: &str) -> umbel_core::Result<()> {
    CredentialStore::save(store, "app", "ann", "mail", Credential::new(secret)).await
}

#[tokio::test]
async fn postgres_credentials_change_their_key() {
    let Some(url) = server() else { return };
    let url = new_database(&url).await;
    let error = save(&Postgres::open(&url).await.unwrap(), "x").await;
    assert!(error.unwrap_err().message().contains("UMBEL_CREDENTIAL_KEYS"));
    let (old, new) = (Key::generate("old").unwrap(), Key::generate("new").unwrap());
    let with = |keys: &str| Postgres::options(&url).keys(Keys::parse(keys).unwrap());
    save(&with(&old).open().await.unwrap(), "s3cret").await.unwrap();
    assert_eq!(with(&format!("{new} {old}")).open().await.unwrap().rotate_credentials().await.unwrap(), 1);
    let store = with(&new).open().await.unwrap();
    let secret = CredentialStore::load(&store, "app", "ann", "mail").await.unwrap();
    assert_eq!(secret, Some(Credential::new("s3cret")));
}

#[tokio::test]
async fn postgres_takes_in_what_another_store_exported_and_gives_it_back() {
    let Some(url) = server() else { return };
    let keys = Keys::parse(&Key::generate("k1").unwrap()).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let file = umbel_stores::Sqlite::options(folder.path().join("umbel.db"))
        .keys(keys.clone())
        .open()
        .await
        .unwrap();
    crate::transfer::fill(&file).await;
    let lines = crate::transfer::exported(&file).await;
    let store = Postgres::options(&new_database(&url).await).keys(keys).open().await.unwrap();
    let pieces = store.import(lines.as_bytes()).await.unwrap();
    let mut back = Vec::new();
    assert!(store.export(&mut back).await.unwrap() >= pieces);
    assert_eq!(String::from_utf8(back).unwrap(), lines);
    assert_eq!(store.abandoned("app").await.unwrap().len(), 1);
    let again = store.import(lines.as_bytes()).await.unwrap_err();
    assert_eq!(again.kind(), ErrorKind::AlreadyExists);
}

/// How often a word stands in all tables, as text or as bytes.
async fn count(client: &Client, word: &str) -> i64 {
    let tables = "SELECT table_name FROM information_schema.tables WHERE table_name LIKE 'umbel%'";
    let hex: String = word.bytes().map(|byte| format!("{byte:02x}")).collect();
    let mut found = 0;
    for table in client.query(tables, &[]).await.unwrap() {
        let table: String = table.get(0);
        let select = format!(
            "SELECT count(*) FROM {table} t WHERE t::text ILIKE '%{word}%' OR t::text LIKE '%{hex}%'"
        );
        found += client.query_one(&select, &[]).await.unwrap().get::<_, i64>(0);
    }
    found
}

#[tokio::test(flavor = "multi_thread")]
async fn postgres_has_nothing_of_an_erased_user_in_its_tables() {
    let Some(url) = server() else { return };
    let url = new_database(&url).await;
    let (stores, client) = (Stores::from(open(&url).await), connect(&url).await);
    privacy::fill(&stores, 24).await;
    assert!(count(&client, privacy::MARK).await > 50, "the search finds what is there");
    privacy::erase(&stores, 24).await;
    assert_eq!(count(&client, privacy::MARK).await, 0);
    assert!(count(&client, "others").await > 50);
}

#[tokio::test]
async fn postgres_does_not_keep_what_is_too_old() {
    let Some(url) = server() else { return };
    privacy::retain(&Stores::from(open(&new_database(&url).await).await)).await;
}
