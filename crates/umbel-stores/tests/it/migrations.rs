//! Databases that earlier versions left, with something in them, opened by today's.
//!
//! `schemas/` has each schema that was there before today's, as it was. A file adds to the one before it. Whoever adds a
//! migration adds the schema that it starts from, and data for it.

use std::sync::Arc;

use serde_json::json;
use umbel_core::{
    ArtifactStore, Credential, CredentialStore, ErrorKind, EventFilter, LogEntry, MemoryStore, Outcome, Part,
    RunStep, SessionKey, SessionStore, Versions,
};
use umbel_stores::{Keys, Sqlite, Stores};

use crate::sqlite::{entries, key, new_file};

const SQLITE: [&str; 3] = [
    include_str!("schemas/sqlite_1.sql"),
    include_str!("schemas/sqlite_2.sql"),
    include_str!("schemas/sqlite_3.sql"),
];

/// What the credentials of the old databases are encrypted with.
fn keys() -> Keys {
    Keys::parse("k1:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=").unwrap()
}

/// What was in a database of that version is there, and it can be worked with.
async fn assert_whole(stores: &Stores, version: usize) {
    let (sessions, s1) = (&stores.sessions, key("s1"));
    let session = sessions.get(&s1, EventFilter::default()).await.unwrap().unwrap();
    let texts: Vec<String> = session.events.iter().map(|event| event.text()).collect();
    assert_eq!(texts, ["one", "two"], "from version {version}");
    let state = json!({"k": [1], "user:u": "x", "app:a": true});
    assert_eq!(json!(session.state.to_object()), state);
    assert_eq!(session.updated_at, 2.5);
    let news = sessions.news(&s1, Versions::default()).await.unwrap().unwrap();
    assert_eq!(news.versions, Versions { incarnation: 1, session: 3, user: 4, app: 2 });
    let ended = LogEntry::from(RunStep::Ended { outcome: Outcome::Finished });
    assert_eq!(news.entries.last(), Some(&ended));
    assert_eq!(json!(news.session_state), json!({"k": 0}));
    let left: Vec<(SessionKey, Option<SessionKey>)> =
        sessions.abandoned("app").await.unwrap().into_iter().map(|left| (left.key, left.parent)).collect();
    assert_eq!(left, [(key("child"), Some(s1.clone()))]);
    assert_eq!(sessions.commit(&s1, None, entries(&["three"])).await.unwrap().session, 4);
    if version < 2 {
        return;
    }
    let part = stores.artifacts.load(&s1, "file", None).await.unwrap();
    assert_eq!(part, Some(Arc::new(Part::text("hello"))));
    assert_eq!(stores.memory.search("app", "ann", "one").await.unwrap().len(), 1);
    let secret = stores.credentials.load("app", "ann", "mail").await.unwrap();
    assert_eq!(secret, Some(Credential::new("s3cret")));
    if version < 3 {
        return;
    }
    let bob = SessionKey::new("app", "bob", "s2").unwrap();
    let summary = sessions.summary(&bob).await.unwrap().unwrap();
    let body = r#"{"invocationId":"e-1","author":"user","timestamp":1.5,"content":{"role":"user","parts":[{"text":"Où?"}]}}"#;
    assert_eq!(
        (summary.title.as_deref(), summary.bytes),
        (Some("Où?"), (body.len() + r#"{"k":0}"#.len()) as u64)
    );
}

/// As it is stored, but for comments and line breaks.
fn sqlite_schema(path: &std::path::Path) -> Vec<String> {
    let connection = rusqlite::Connection::open(path).unwrap();
    let mut select =
        connection.prepare("SELECT sql FROM sqlite_schema WHERE sql NOT NULL ORDER BY name").unwrap();
    let plain = |sql: String| {
        let lines = sql.lines().map(|line| line.split("--").next().unwrap_or_default());
        lines.flat_map(str::split_whitespace).collect::<Vec<_>>().join(" ")
    };
    let found = select.query_map([], |row| row.get::<_, String>(0)).unwrap();
    found.map(|sql| plain(sql.unwrap())).collect()
}

#[tokio::test]
async fn a_file_of_any_earlier_version_becomes_todays_with_all_that_is_in_it() {
    let (_folder, new) = new_file();
    drop(Sqlite::open(&new).await.unwrap());
    let newest = rusqlite::Connection::open(&new).unwrap();
    let newest: u32 = newest.query_row("PRAGMA user_version", [], |row| row.get(0)).unwrap();
    assert!(newest as usize <= SQLITE.len() + 1, "schemas/ lacks what there was before version {newest}");
    for version in 1..=SQLITE.len() {
        let (_folder, path) = new_file();
        let old = rusqlite::Connection::open(&path).unwrap();
        SQLITE[..version].iter().for_each(|sql| old.execute_batch(sql).unwrap());
        old.execute_batch(&format!("PRAGMA user_version = {version}; PRAGMA application_id = 0x756d626c"))
            .unwrap();
        drop(old);
        let store = Sqlite::options(&path).keys(keys()).open().await.unwrap();
        assert_eq!(sqlite_schema(&path), sqlite_schema(&new), "from version {version}");
        assert_whole(&store.into(), version).await;
        // Once more, as every start does.
        let store = Sqlite::options(&path).keys(keys()).open().await.unwrap();
        assert_eq!(store.list("app", "ann").await.unwrap().len(), 1);
    }
}

#[tokio::test]
async fn a_file_of_a_newer_version_is_refused_and_left_alone() {
    let (_folder, path) = new_file();
    drop(Sqlite::open(&path).await.unwrap());
    let newer = rusqlite::Connection::open(&path).unwrap();
    newer.execute_batch("PRAGMA user_version = 99; CREATE TABLE from_the_future (x)").unwrap();
    let before = sqlite_schema(&path);
    let error = Sqlite::open(&path).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Store);
    let message = error.message();
    assert!(message.contains("newer version of Umbel") && message.contains("99"), "{message}");
    assert!(message.contains("use that version"), "{message}");
    assert_eq!(sqlite_schema(&path), before);
}

#[cfg(feature = "postgres")]
mod postgres {
    use umbel_stores::Postgres;

    use super::{assert_whole, keys};
    use crate::postgres::{connect, new_database, server};

    const POSTGRES: [&str; 3] = [
        include_str!("schemas/postgres_1.sql"),
        include_str!("schemas/postgres_2.sql"),
        include_str!("schemas/postgres_3.sql"),
    ];

    /// Columns, keys and indexes.
    async fn schema(url: &str) -> Vec<String> {
        let all = "SELECT table_name || '.' || column_name || ' ' || data_type || ' ' || is_nullable || ' '
                || coalesce(collation_name, '') || ' ' || coalesce(column_default, '') || is_identity AS it
            FROM information_schema.columns WHERE table_name LIKE 'umbel%'
            UNION ALL SELECT indexdef FROM pg_indexes WHERE tablename LIKE 'umbel%'
            UNION ALL SELECT conrelid::regclass || ' ' || pg_get_constraintdef(oid) FROM pg_constraint
            WHERE conrelid::regclass::text LIKE 'umbel%'
            ORDER BY it";
        let rows = connect(url).await.query(all, &[]).await.unwrap();
        rows.iter().map(|row| row.get(0)).collect()
    }

    #[tokio::test]
    async fn postgres_of_any_earlier_version_becomes_todays_with_all_that_is_in_it() {
        let Some(server) = server() else { return };
        let new = new_database(&server).await;
        // Servers that start together do it once.
        let (first, second) = tokio::join!(Postgres::open(&new), Postgres::open(&new));
        first.and(second).unwrap();
        let newest =
            connect(&new).await.query_one("SELECT max(version) FROM umbel_schema", &[]).await.unwrap();
        let newest: i64 = newest.get(0);
        assert!(
            newest as usize <= POSTGRES.len() + 1,
            "schemas/ lacks what there was before version {newest}"
        );
        for version in 1..=POSTGRES.len() {
            let url = new_database(&server).await;
            let old = connect(&url).await;
            old.batch_execute("CREATE TABLE umbel_schema (version bigint NOT NULL)").await.unwrap();
            for (before, sql) in POSTGRES[..version].iter().enumerate() {
                old.batch_execute(sql).await.unwrap();
                old.batch_execute(&format!("INSERT INTO umbel_schema VALUES ({})", before + 1))
                    .await
                    .unwrap();
            }
            let store = Postgres::options(&url).keys(keys()).open().await.unwrap();
            assert_eq!(schema(&url).await, schema(&new).await, "from version {version}");
            assert_whole(&store.into(), version).await;
        }
    }
}
