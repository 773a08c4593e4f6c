//! A server that goes away, comes back, or keeps its answers to itself.

use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::json;
use umbel_core::store::{Acquire, Acquired, Entries};
use umbel_core::{
    Actions, ArtifactStore, Content, Credential, ErrorKind, Event, EventFilter, LogEntry, NewSession, Part,
    Result, RunId, SessionKey, SessionStore, Source, Versions,
};
use umbel_stores::{Key, Keys, Postgres, PostgresOptions};

use crate::postgres::{connect, entries, key, lease, new_database, new_session, server, texts};
use crate::proxy::{At, Lost, Proxy};
use crate::server::Server;

/// An event that sets something its user shares, so that it takes more than one statement.
fn shares(text: &str) -> Entries {
    let mut event = Event::new(RunId::from("e-1"), Arc::new(Source::new("agent")));
    event.content = Some(Arc::new(Content::model(text)));
    let delta = json!({"user:last": text}).as_object().cloned();
    [LogEntry::Event(Arc::new(event.with_actions(Actions { state_delta: delta, ..Actions::default() })))]
        .into_iter()
        .collect()
}

fn wanted(key: &SessionKey, entries: Entries) -> Acquire {
    let (owner, ttl, known) = ("tester".into(), Duration::from_secs(60), Versions::default());
    Acquire { known, entries, ..Acquire::new(key.clone(), owner, ttl) }
}

/// A store whose way to the server can be cut, and the server's own address.
async fn cuttable(server: &str) -> (Proxy, Postgres, String) {
    let url = new_database(server).await;
    let proxy = Proxy::start(&url);
    (Postgres::open(&proxy.url(&url)).await.map(|store| (proxy, store, url))).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn postgres_writes_whose_answer_or_request_is_lost_are_done_once() {
    let Some(server) = server() else { return };
    let (proxy, store, _) = cuttable(&server).await;
    for (lost, name) in [(Lost::Answer, "answer"), (Lost::Request, "request")] {
        let s = key(name);
        proxy.lose(lost, At::Commit);
        let created = store.create(NewSession::new(s.clone())).await.unwrap();
        assert_eq!(created.versions.session, 0);
        proxy.lose(lost, At::Commit);
        let taken = store.acquire(wanted(&s, entries(&["acquired"]))).await.unwrap();
        assert_eq!(taken.versions.session, 1);
        proxy.lose(lost, At::Statement);
        let versions = store.append(&taken.lease, taken.versions, entries(&["appended"])).await.unwrap();
        proxy.lose(lost, At::Commit);
        let versions = store.append(&taken.lease, versions, shares("shared")).await.unwrap();
        assert_eq!((versions.session, versions.user), (3, created.versions.user + 1));
        proxy.lose(lost, At::Commit);
        store.heartbeat(&taken.lease, Duration::from_secs(60)).await.unwrap();
        proxy.lose(lost, At::Statement);
        store.release(&taken.lease, versions, entries(&["released"])).await.unwrap();
        proxy.lose(lost, At::Commit);
        let taken = store.acquire(wanted(&s, Entries::new())).await.unwrap();
        proxy.lose(lost, At::Commit);
        store.release(&taken.lease, taken.versions, shares("released again")).await.unwrap();
        proxy.lose(lost, At::Commit);
        let versions = store.commit(&s, None, entries(&["committed"])).await.unwrap();
        assert_eq!(versions.session, 6);
        let expected = ["acquired", "appended", "shared", "released", "released again", "committed"];
        assert_eq!(texts(&store, &s).await, expected, "{lost:?}");

        proxy.lose(lost, At::Commit);
        assert_eq!(store.save(&s, "file", Part::text("one")).await.unwrap(), 0);
        assert_eq!(store.versions(&s, "file").await.unwrap(), [0], "{lost:?}");
        proxy.lose(lost, At::Commit);
        SessionStore::delete(&store, &s).await.unwrap();
        assert!(store.get(&s, EventFilter::default()).await.unwrap().is_none());
        assert!(proxy.has_lost(), "each of them was cut");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn postgres_a_credential_whose_replacement_is_lost_on_the_way_is_replaced_once() {
    let Some(server) = server() else { return };
    let url = new_database(&server).await;
    let proxy = Proxy::start(&url);
    let keys = Keys::parse(&Key::generate("k1").unwrap()).unwrap();
    let store = Postgres::options(&proxy.url(&url)).keys(keys).open().await.unwrap();
    // By its trait alone: others have methods of the same names.
    let store: &dyn umbel_core::CredentialStore = &store;
    let secret = |text: &str| Some(Credential::new(text));
    for lost in [Lost::Answer, Lost::Request] {
        for (before, after) in [(None, secret("one")), (secret("one"), secret("two")), (secret("two"), None)]
        {
            proxy.lose(lost, At::Commit);
            let replaced = store.replace("app", "ann", "mail", before.as_ref(), after.clone()).await;
            assert!(replaced.unwrap(), "{lost:?}: it was this one who did it");
            assert!(proxy.has_lost());
            assert_eq!(store.load("app", "ann", "mail").await.unwrap(), after);
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn postgres_an_append_that_is_still_being_written_is_not_written_again() {
    let Some(server) = server() else { return };
    let (proxy, store, url) = cuttable(&server).await;
    let s1 = new_session(&store).await;
    let taken = lease(&store, &s1).await;
    let slow = "CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql AS
            $$ BEGIN PERFORM pg_sleep(0.3); RETURN NEW; END $$;
        CREATE TRIGGER slow BEFORE INSERT ON umbel_log FOR EACH ROW EXECUTE FUNCTION slow();";
    connect(&url).await.batch_execute(slow).await.unwrap();
    proxy.lose(Lost::Patience, At::Statement);
    let versions = store.append(&taken.lease, taken.versions, entries(&["one"])).await.unwrap();
    assert_eq!(versions.session, 1);
    proxy.lose(Lost::Patience, At::Statement);
    store.release(&taken.lease, versions, entries(&["two"])).await.unwrap();
    assert!(proxy.has_lost());
    assert_eq!(texts(&store, &s1).await, ["one", "two"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn postgres_a_lost_answer_does_not_hide_what_others_did() {
    let Some(server) = server() else { return };
    let (proxy, store, url) = cuttable(&server).await;
    let s1 = new_session(&store).await;
    proxy.lose(Lost::Answer, At::Commit);
    let again = store.create(NewSession::new(s1.clone())).await.unwrap_err();
    assert_eq!(again.kind(), ErrorKind::AlreadyExists);
    let other = Postgres::open(&url).await.unwrap();
    let taken = lease(&other, &s1).await;
    proxy.lose(Lost::Answer, At::Commit);
    let busy = store.acquire(wanted(&s1, Entries::new())).await.unwrap_err();
    assert_eq!(busy.kind(), ErrorKind::SessionBusy);
    proxy.lose(Lost::Request, At::Statement);
    let stale = Versions { session: 7, ..taken.versions };
    let stale = store.append(&taken.lease, stale, entries(&["lost"])).await.unwrap_err();
    assert_eq!(stale.kind(), ErrorKind::StaleSession);
    other.release(&taken.lease, taken.versions, entries(&["kept"])).await.unwrap();
    assert_eq!(texts(&store, &s1).await, ["kept"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn postgres_says_when_nobody_knows_whether_something_was_written() {
    let Some(server) = server() else { return };
    let url = new_database(&server).await;
    let proxy = Proxy::start(&url);
    let options = Postgres::options(&proxy.url(&url)).patience(Duration::from_millis(300));
    let store = options.open().await.unwrap();
    let s1 = new_session(&store).await;
    let taken = lease(&store, &s1).await;
    for (at, entries, expected) in
        [(At::Statement, entries(&["one"]), &["one"][..]), (At::Commit, shares("two"), &["one", "two"])]
    {
        proxy.lose_and_close(at);
        let before = Versions { session: expected.len() as u64 - 1, ..taken.versions };
        let error = store.append(&taken.lease, before, entries).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Store);
        assert!(error.message().contains("read it again"), "{error}");
        proxy.open();
        // It was written, and reading tells.
        assert_eq!(texts(&store, &s1).await, expected);
    }
}

/// One run after another on a session of its own, each with a write that others share, until told to stop.
async fn runs(store: &Postgres, key: &SessionKey, stop: &tokio::sync::watch::Receiver<bool>) -> Result<u64> {
    store.create(NewSession::new(key.clone())).await?;
    let (mut known, mut n) = (Versions::default(), 0);
    while !*stop.borrow() {
        let text = |part: &str| format!("{n} {part}");
        let acquire = Acquire { known, ..wanted(key, entries(&[&text("begin")])) };
        let Acquired { lease, versions, .. } = store.acquire(acquire).await?;
        let versions = store.append(&lease, versions, entries(&[&text("middle")])).await?;
        let versions = store.append(&lease, versions, shares(&text("shared"))).await?;
        known = store.release(&lease, versions, entries(&[&text("end")])).await?;
        n += 1;
        assert_eq!(known.session, n * 4, "versions have a gap");
    }
    Ok(n)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn postgres_that_restarts_in_the_middle_of_runs_loses_and_doubles_nothing() {
    let Some(server) = Server::start().map(Arc::new) else { return };
    let options = || Postgres::options(&server.url()).connections(4).patience(Duration::from_secs(60));
    let store = options().open().await.unwrap();
    let shared = store.create(NewSession::new(key("shared"))).await.unwrap().key;
    let (stop, stopped) = tokio::sync::watch::channel(false);
    let tasks: Vec<_> = (0..8)
        .map(|task| {
            let (store, stopped, shared) = (store.clone(), stopped.clone(), shared.clone());
            tokio::spawn(async move {
                if task < 6 {
                    return runs(&store, &key(&format!("s{task}")), &stopped).await;
                }
                let mut n = 0;
                while !*stopped.borrow() {
                    store.commit(&shared, None, entries(&[&format!("{task} {n}")])).await?;
                    n += 1;
                }
                Ok(n)
            })
        })
        .collect();
    for how in ["fast", "immediate", "fast", "immediate"] {
        // Some of everything is to be under way.
        let before = store.get(&shared, EventFilter::default()).await.unwrap().unwrap().versions.session;
        while store.get(&shared, EventFilter::default()).await.unwrap().unwrap().versions.session
            < before + 20
        {
            tokio::task::yield_now().await;
        }
        let server = server.clone();
        let restart = move || {
            server.stop(how);
            server.go_on();
        };
        tokio::task::spawn_blocking(restart).await.unwrap();
    }
    stop.send(true).unwrap();
    let mut counts = Vec::new();
    for task in tasks {
        counts.push(task.await.unwrap().unwrap());
    }
    // As another process sees it.
    let store = options().open().await.unwrap();
    for (task, count) in counts.iter().enumerate().take(6) {
        let expected: Vec<String> = (0..*count)
            .flat_map(|n| ["begin", "middle", "shared", "end"].map(|part| format!("{n} {part}")))
            .collect();
        assert_eq!(texts(&store, &key(&format!("s{task}"))).await, expected);
    }
    let mut found = texts(&store, &shared).await;
    let mut expected: Vec<String> =
        (6..8).flat_map(|task| (0..counts[task]).map(move |n| format!("{task} {n}"))).collect();
    found.sort();
    expected.sort();
    assert_eq!(found, expected);
}

#[tokio::test(flavor = "multi_thread")]
async fn postgres_that_is_gone_is_an_error_with_words_and_the_store_goes_on_when_it_is_back() {
    let Some(server) = Server::start() else { return };
    let options = || Postgres::options(&server.url()).patience(Duration::from_millis(300));
    let store = options().open().await.unwrap();
    let s1 = new_session(&store).await;
    let taken = lease(&store, &s1).await;
    server.stop("fast");
    let started = Instant::now();
    let errors = [
        store.get(&s1, EventFilter::default()).await.unwrap_err(),
        store.append(&taken.lease, taken.versions, entries(&["lost"])).await.unwrap_err(),
        store.commit(&s1, None, entries(&["lost"])).await.unwrap_err(),
        options().open().await.unwrap_err(),
    ];
    for error in errors {
        assert_eq!(error.kind(), ErrorKind::Store);
        assert!(error.message().contains("check that it runs"), "{error}");
    }
    assert!(started.elapsed() < Duration::from_secs(10), "the wait has an end");
    server.go_on();
    store.release(&taken.lease, taken.versions, entries(&["kept"])).await.unwrap();
    assert_eq!(texts(&store, &s1).await, ["kept"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn postgres_says_when_all_connections_are_in_use() {
    let Some(server) = server() else { return };
    let url = new_database(&server).await;
    let patience = Duration::from_secs(1);
    let store = Postgres::options(&url).connections(1).patience(patience).open().await.unwrap();
    let s1 = new_session(&store).await;
    let other = connect(&url).await;
    let slow = "CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql AS
            $$ BEGIN PERFORM pg_advisory_lock_shared(7); RETURN NEW; END $$;
        CREATE TRIGGER slow BEFORE INSERT ON umbel_log FOR EACH ROW EXECUTE FUNCTION slow();
        ALTER FUNCTION slow SET lock_timeout = 0;
        SELECT pg_advisory_lock(7)";
    other.batch_execute(slow).await.unwrap();
    let slow = tokio::spawn({
        let (store, s1) = (store.clone(), s1.clone());
        async move { store.commit(&s1, None, entries(&["slow"])).await }
    });
    let waiting = "SELECT 1 FROM pg_stat_activity
        WHERE datname = current_database() AND wait_event_type = 'Lock'";
    while other.query(waiting, &[]).await.unwrap().is_empty() {
        tokio::task::yield_now().await;
    }
    let started = Instant::now();
    let error = store.get(&s1, EventFilter::default()).await.unwrap_err();
    assert!((patience..patience * 5).contains(&started.elapsed()), "{:?}", started.elapsed());
    assert_eq!(error.kind(), ErrorKind::Store);
    assert!(error.message().contains("in use"), "{error}");
    other.batch_execute("SELECT pg_advisory_unlock(7)").await.unwrap();
    slow.await.unwrap().unwrap();
    assert_eq!(texts(&store, &s1).await, ["slow"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn postgres_does_not_wait_for_a_lock_for_ever() {
    let Some(server) = server() else { return };
    let url = new_database(&server).await;
    let store = Postgres::options(&url).patience(Duration::from_millis(300)).open().await.unwrap();
    let s1 = new_session(&store).await;
    let taken = lease(&store, &s1).await;
    let mut other = connect(&url).await;
    let lock = other.transaction().await.unwrap();
    lock.execute("SELECT 1 FROM umbel_sessions FOR UPDATE", &[]).await.unwrap();
    let error = store.append(&taken.lease, taken.versions, entries(&["lost"])).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Store);
    assert!(error.message().contains("end that transaction"), "{error}");
    assert!(texts(&store, &s1).await.is_empty(), "readers do not wait for a writer");
    lock.rollback().await.unwrap();
    store.append(&taken.lease, taken.versions, entries(&["kept"])).await.unwrap();
    assert_eq!(texts(&store, &s1).await, ["kept"]);
}

#[tokio::test]
async fn postgres_that_lets_nobody_in_says_what_to_do() {
    let Some(server) = server() else { return };
    let url = new_database(&server).await;
    let name = url.split(['/', '?']).nth(3).unwrap().to_owned();
    let admin = connect(&url).await;
    let roles = format!(
        "CREATE ROLE {name}_one LOGIN CONNECTION LIMIT 1; CREATE ROLE {name}_none LOGIN;
         GRANT ALL ON SCHEMA public TO {name}_one"
    );
    admin.batch_execute(&roles).await.unwrap();
    let open = async |options: PostgresOptions| options.patience(Duration::from_millis(300)).open().await;
    let by = |user: &str| url.replace("user=umbel", &format!("user={user}"));
    let full = by(&format!("{name}_one"));
    let first = connect(&full).await;
    for (url, word) in [
        (url.replace(&name, "no_such_database"), "create it"),
        (by("no_such_user"), "check the user"),
        (by(&format!("{name}_none")), "grant what is missing"),
        (full.clone(), "allow more of them"),
    ] {
        let error = open(Postgres::options(&url)).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Store);
        assert!(error.message().contains(word), "{error}");
    }
    drop(first);
    // As soon as the server has noticed.
    Postgres::options(&full).connections(1).open().await.unwrap();
    // As a standby does.
    admin
        .batch_execute(&format!("ALTER DATABASE {name} SET default_transaction_read_only = on"))
        .await
        .unwrap();
    let error = open(Postgres::options(&url)).await.unwrap_err();
    assert!(error.message().contains("address of the primary"), "{error}");
}

#[tokio::test]
async fn postgres_a_record_that_cannot_be_read_is_an_error_that_names_it_and_others_go_on() {
    let Some(server) = server() else { return };
    let url = new_database(&server).await;
    let store = Postgres::open(&url).await.unwrap();
    let s1 = new_session(&store).await;
    let s2 = store.create(NewSession::new(key("s2"))).await.unwrap().key;
    for s in [&s1, &s2] {
        store.commit(s, None, entries(&["one", "two", "three"])).await.unwrap();
    }
    let other = connect(&url).await;
    for (change, word) in [
        ("UPDATE umbel_log SET body = left(body, 20) WHERE version = 2", "entry 2 of session app/ann/s1"),
        ("UPDATE umbel_log SET body = '{\"author\": 7}' WHERE version = 2", "entry 2 of session app/ann/s1"),
        (
            "UPDATE umbel_log SET time = NULL, body = '{\"step\": \"fromTheFuture\"}' WHERE version = 2",
            "newer",
        ),
        ("DELETE FROM umbel_log WHERE version = 2", "missing"),
    ] {
        other
            .batch_execute(&format!("{change} AND session = (SELECT min(id) FROM umbel_sessions)"))
            .await
            .unwrap();
        let error = store.news(&s1, Versions::default()).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt, "{change}");
        assert!(error.message().contains(word), "{error}");
        let error = store.acquire(wanted(&s1, entries(&["lost"]))).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt, "{change}");
    }
    assert_eq!(store.list("app", "ann").await.unwrap().len(), 2);
    store.commit(&s2, None, entries(&["four"])).await.unwrap();
    assert_eq!(texts(&store, &s2).await, ["one", "two", "three", "four"]);
}

#[tokio::test]
async fn postgres_a_lease_from_before_the_clock_went_back_ends_all_the_same() {
    let Some(server) = server() else { return };
    let url = new_database(&server).await;
    let store = Postgres::open(&url).await.unwrap();
    let s1 = new_session(&store).await;
    let ttl = Duration::from_millis(50);
    let short = || Acquire { ttl, claims: true, ..wanted(&s1, Entries::new()) };
    store.acquire(short()).await.unwrap();
    let other = connect(&url).await;
    let in_a_year = "UPDATE umbel_sessions SET lease_until = lease_until + 31536000000";
    other.batch_execute(in_a_year).await.unwrap();
    assert_eq!(store.acquire(short()).await.unwrap_err().kind(), ErrorKind::SessionBusy);
    let taken = loop {
        match store.acquire(short()).await {
            Ok(taken) => break taken,
            Err(error) => assert_eq!(error.kind(), ErrorKind::SessionBusy),
        }
    };
    other.batch_execute(in_a_year).await.unwrap();
    assert!(store.abandoned("app").await.unwrap().is_empty());
    while store.abandoned("app").await.unwrap().is_empty() {}
    store.append(&taken.lease, taken.versions, entries(&["still mine"])).await.unwrap();
}

#[test]
fn postgres_two_processes_that_write_at_the_same_time_lose_nothing() {
    let Some(url) = server() else { return };
    crate::two_processes::lose_nothing(&url);
}
