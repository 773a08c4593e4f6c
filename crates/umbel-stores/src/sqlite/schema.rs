//! The tables of the database, and how older ones become today's.

use std::path::Path;

use rusqlite::{Connection, TransactionBehavior};
use umbel_core::{Error, ErrorKind, Result};

use super::fault::fault;
use super::sessions;

/// Each takes a database one version further. What was released is never changed, only added to.
const MIGRATIONS: [&str; 4] = [
    include_str!("migrations/1_sessions.sql"),
    include_str!("migrations/2_artifacts_memory_credentials.sql"),
    include_str!("migrations/3_waits_and_ages.sql"),
    include_str!("migrations/4_titles_and_sizes.sql"),
];

/// The version from which on a session's row tells what it waits for.
const WAITS: usize = 3;

/// The version from which on a session's row has its title.
const TITLES: usize = 4;

/// The version that the tables of a database have once it was opened.
pub const SCHEMA_VERSION: usize = MIGRATIONS.len();

/// The same, as the database counts.
const NEWEST: i64 = SCHEMA_VERSION as i64;

/// "umbl": tells our databases from others.
const APPLICATION_ID: i64 = 0x756d_626c;

/// Brings a database to today's version.
pub(super) fn migrate(connection: &mut Connection, path: &Path) -> Result<()> {
    let say = |error| fault(path, error);
    if version(connection, path)? == MIGRATIONS.len() {
        return Ok(());
    }
    // Looked at again under the lock: another process may be doing the same.
    let change = connection.transaction_with_behavior(TransactionBehavior::Immediate).map_err(say)?;
    let from = version(&change, path)?;
    for migration in MIGRATIONS.iter().skip(from) {
        change.execute_batch(migration).map_err(say)?;
    }
    if from < WAITS {
        sessions::fill_in_waits(&change).map_err(|trouble| trouble.at(path))?;
    }
    if from < TITLES {
        sessions::fill_in_titles(&change).map_err(|trouble| trouble.at(path))?;
    }
    change.pragma_update(None, "user_version", NEWEST).map_err(say)?;
    change.pragma_update(None, "application_id", APPLICATION_ID).map_err(say)?;
    change.commit().map_err(say)
}

/// The version of the database; 0 for a new one.
fn version(connection: &Connection, path: &Path) -> Result<usize> {
    let number = |sql: &str| connection.query_row(sql, [], |row| row.get::<_, i64>(0));
    let found = number("PRAGMA user_version").map_err(|error| fault(path, error))?;
    let application = number("PRAGMA application_id").map_err(|error| fault(path, error))?;
    let tables = number("SELECT count(*) FROM sqlite_schema").map_err(|error| fault(path, error))?;
    let shown = path.display();
    if application != APPLICATION_ID && (application != 0 || found != 0 || tables != 0) {
        let message = format!("{shown} is a database of another program: choose another file");
        return Err(Error::new(ErrorKind::Store, message));
    }
    let known = MIGRATIONS.len();
    usize::try_from(found).ok().filter(|found| *found <= known).ok_or_else(|| {
        let message = format!(
            "{shown} was written by a newer version of Umbel (schema {found}, this one knows {known}): use that version"
        );
        Error::new(ErrorKind::Store, message)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tables(connection: &Connection) -> Vec<String> {
        let mut found =
            connection.prepare("SELECT sql FROM sqlite_schema WHERE sql NOT NULL ORDER BY name").unwrap();
        found.query_map([], |row| row.get(0)).unwrap().map(Result::unwrap).collect()
    }

    #[test]
    fn a_database_of_any_earlier_version_becomes_todays() {
        let path = Path::new("test");
        let mut new = Connection::open_in_memory().unwrap();
        migrate(&mut new, path).unwrap();
        for from in 1..=MIGRATIONS.len() {
            let mut old = Connection::open_in_memory().unwrap();
            for migration in MIGRATIONS.iter().take(from) {
                old.execute_batch(migration).unwrap();
            }
            let fields = "app, user, name, first_state, version, updated_at, epoch";
            old.execute_batch(&format!(
                "INSERT INTO sessions ({fields}) VALUES ('a', 'u', 's', '{{}}', 0, 1.5, 1)"
            ))
            .unwrap();
            old.pragma_update(None, "user_version", from as i64).unwrap();
            old.pragma_update(None, "application_id", APPLICATION_ID).unwrap();
            migrate(&mut old, path).unwrap();
            assert_eq!(tables(&old), tables(&new), "from version {from}");
            assert_eq!(version(&old, path).unwrap(), MIGRATIONS.len());
            let kept: String = old.query_row("SELECT name FROM sessions", [], |row| row.get(0)).unwrap();
            assert_eq!(kept, "s");
        }
    }

    #[test]
    fn what_sessions_of_an_earlier_version_wait_for_is_found_in_their_logs() {
        let path = Path::new("test");
        let mut old = Connection::open_in_memory().unwrap();
        for migration in MIGRATIONS.iter().take(WAITS - 1) {
            old.execute_batch(migration).unwrap();
        }
        let asks = r#"{"step":"ended","outcome":{"kind":"interrupted","interrupts":[{"id":"q","address":{"agent":"a"},"reason":"input"}]}}"#;
        let awaits = r#"{"id":"1","author":"a","timestamp":1.0,"longRunningToolIds":["c1","c2"]}"#;
        let answers = r#"{"id":"2","author":"user","timestamp":1.0,"content":{"role":"user","parts":[{"functionResponse":{"id":"c1","name":"t","response":{}}}]}}"#;
        let settles = answers.replace("c1", "q");
        let logs = [
            ("waits", vec![awaits, asks, answers]),
            ("answered", vec![asks, &settles]),
            ("quiet", vec![r#"{"step":"ended","outcome":{"kind":"finished"}}"#]),
        ];
        for (name, log) in logs {
            let fields = "app, user, name, first_state, version, updated_at, epoch";
            let insert = format!("INSERT INTO sessions ({fields}) VALUES ('a', 'u', ?1, '{{}}', ?2, 1.5, 1)");
            old.execute(&insert, (name, log.len() as i64)).unwrap();
            let session = old.last_insert_rowid();
            for (version, body) in log.into_iter().enumerate() {
                let time = (!body.contains("step")).then_some(1.0);
                let insert = "INSERT INTO log (session, version, time, body) VALUES (?1, ?2, ?3, ?4)";
                old.execute(insert, (session, version as i64 + 1, time, body)).unwrap();
            }
        }
        old.pragma_update(None, "user_version", WAITS as i64 - 1).unwrap();
        old.pragma_update(None, "application_id", APPLICATION_ID).unwrap();
        migrate(&mut old, path).unwrap();
        let mut select =
            old.prepare("SELECT questions ->> '$[0].id', awaited_calls FROM sessions ORDER BY id").unwrap();
        let found = select.query_map([], |row| Ok((row.get(0)?, row.get(1)?))).unwrap();
        let found: Vec<(Option<String>, Option<String>)> = found.map(Result::unwrap).collect();
        let waits = (Some("q".to_owned()), Some(r#"["c2"]"#.to_owned()));
        assert_eq!(found, [waits, (None, None), (None, None)]);
    }

    #[test]
    fn a_newer_database_and_a_foreign_one_are_refused_with_words() {
        let path = Path::new("some.db");
        let mut newer = Connection::open_in_memory().unwrap();
        migrate(&mut newer, path).unwrap();
        newer.pragma_update(None, "user_version", 99).unwrap();
        let error = migrate(&mut newer, path).unwrap_err();
        assert!(error.message().contains("newer version") && error.message().contains("99"), "{error}");
        let mut foreign = Connection::open_in_memory().unwrap();
        foreign.execute_batch("CREATE TABLE other (x)").unwrap();
        let error = migrate(&mut foreign, path).unwrap_err();
        assert!(error.message().contains("another program"), "{error}");
        assert_eq!(error.kind(), ErrorKind::Store);
    }
}
