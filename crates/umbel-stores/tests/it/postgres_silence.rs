//! A server that says nothing: connections and statements have a time, after which they fail.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;
use umbel_core::{Error, ErrorKind, EventFilter, NewSession, SessionStore};
use umbel_stores::{Postgres, PostgresOptions};

use crate::postgres::{connect, entries, key, lease, new_database, new_session, server, texts};

const SHORT: Duration = Duration::from_millis(200);
/// More than anything here may take.
const LONG: Duration = Duration::from_secs(20);

/// How far a server goes that is none.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Answers {
    /// It accepts connections.
    Nothing,
    /// It lets users in.
    Login,
    /// It takes settings, too.
    Settings,
}

/// A server that stops to answer.
struct Silent {
    url: String,
    accepted: Arc<AtomicUsize>,
    task: JoinHandle<()>,
}

impl Silent {
    async fn start(answers: Answers) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("postgres://ann:secret@{}/desk", listener.local_addr().unwrap());
        let accepted = Arc::new(AtomicUsize::new(0));
        let count = accepted.clone();
        let task = tokio::spawn(async move {
            let mut connections = Vec::new();
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                count.fetch_add(1, Ordering::SeqCst);
                connections.push(tokio::spawn(converse(stream, answers)));
            }
        });
        Self { url, accepted, task }
    }

    fn options(&self) -> PostgresOptions {
        Postgres::options(&self.url).patience(Duration::ZERO)
    }
}

impl Drop for Silent {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Speaks as much of the protocol as it may, and holds the connection then.
async fn converse(mut stream: TcpStream, answers: Answers) {
    if answers != Answers::Nothing {
        let length = stream.read_u32().await.unwrap();
        stream.read_exact(&mut vec![0; length as usize - 4]).await.unwrap();
        // Let in, and ready.
        stream.write_all(b"R\0\0\0\x08\0\0\0\0Z\0\0\0\x05I").await.unwrap();
    }
    if answers == Answers::Settings {
        assert_eq!(stream.read_u8().await.unwrap(), b'Q');
        let length = stream.read_u32().await.unwrap();
        stream.read_exact(&mut vec![0; length as usize - 4]).await.unwrap();
        stream.write_all(b"C\0\0\0\x08SET\0C\0\0\0\x08SET\0Z\0\0\0\x05I").await.unwrap();
    }
    std::future::pending::<()>().await;
}

async fn refused(options: PostgresOptions) -> (Error, Duration) {
    let started = Instant::now();
    (options.open().await.unwrap_err(), started.elapsed())
}

fn assert_retryable(error: &Error) {
    assert_eq!((error.kind(), error.is_retryable()), (ErrorKind::Store, true), "{error}");
    assert!(error.message().contains("does not answer in time"), "{error}");
    assert!(!error.message().contains("secret"), "{error}");
}

#[tokio::test]
async fn a_server_that_accepts_and_never_answers_fails_within_the_connect_timeout() {
    for answers in [Answers::Nothing, Answers::Login] {
        let silent = Silent::start(answers).await;
        for time in [Duration::ZERO, SHORT] {
            let (error, took) = refused(silent.options().connect_timeout(time)).await;
            assert_retryable(&error);
            assert!((time..LONG).contains(&took), "{answers:?}: {took:?}");
        }
        assert!(silent.accepted.load(Ordering::SeqCst) >= 1);
    }
}

#[tokio::test]
async fn the_connect_timeout_may_stand_in_the_address() {
    let silent = Silent::start(Answers::Nothing).await;
    let url = format!("{}?connect_timeout=1&statement_timeout=60", silent.url);
    let (error, took) = refused(Postgres::options(&url).patience(Duration::ZERO)).await;
    assert_retryable(&error);
    assert!((Duration::from_secs(1)..LONG).contains(&took), "{took:?}");
    // What the program says counts.
    let (error, took) = refused(Postgres::options(&url).connect_timeout(Duration::ZERO)).await;
    assert_retryable(&error);
    assert!(took < Duration::from_secs(1), "{took:?}");
}

#[tokio::test]
async fn a_server_that_stops_to_answer_fails_within_the_statement_timeout() {
    let silent = Silent::start(Answers::Settings).await;
    for opened in 1..=2 {
        let (error, took) = refused(silent.options().statement_timeout(SHORT)).await;
        assert_retryable(&error);
        assert!(error.message().contains("statement_timeout"), "{error}");
        assert!((SHORT..LONG).contains(&took), "{took:?}");
        assert_eq!(silent.accepted.load(Ordering::SeqCst), opened);
    }
}

#[tokio::test]
async fn a_time_without_end_is_waited_for_as_long_as_there_is_a_connection() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("postgres://ann@{}/desk", listener.local_addr().unwrap());
    let options = Postgres::options(&url).patience(Duration::ZERO);
    let open = tokio::spawn(options.connect_timeout(Duration::MAX).statement_timeout(Duration::MAX).open());
    let (mut stream, _) = listener.accept().await.unwrap();
    let length = stream.read_u32().await.unwrap();
    stream.read_exact(&mut vec![0; length as usize - 4]).await.unwrap();
    assert!(!open.is_finished());
    drop(stream);
    let error = open.await.unwrap().unwrap_err();
    assert!(error.message().contains("check that it runs") && error.is_retryable(), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn postgres_cancels_a_statement_that_takes_too_long_and_nothing_is_written() {
    let Some(server) = server() else { return };
    let url = new_database(&server).await;
    let by_option = Postgres::options(&url).statement_timeout(SHORT);
    let by_address = Postgres::options(&format!("{url}&statement_timeout=0.2"));
    let slow = "CREATE OR REPLACE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql AS
            $$ BEGIN PERFORM pg_sleep(600); RETURN NEW; END $$;
        CREATE TRIGGER slow BEFORE INSERT ON umbel_log FOR EACH ROW EXECUTE FUNCTION slow();";
    let stores = [by_option.open().await.unwrap(), by_address.open().await.unwrap()];
    let s1 = new_session(&stores[0]).await;
    // One that nobody holds.
    let s2 = stores[0].create(NewSession::new(key("s2"))).await.unwrap().key;
    let mut said = Vec::new();
    for (n, store) in stores.iter().enumerate() {
        let taken = lease(store, &s1).await;
        let other = connect(&url).await;
        other.batch_execute(slow).await.unwrap();
        let started = Instant::now();
        for error in [
            store.append(&taken.lease, taken.versions, entries(&["lost"])).await.unwrap_err(),
            store.commit(&s2, None, entries(&["lost"])).await.unwrap_err(),
        ] {
            assert_eq!((error.kind(), error.is_retryable()), (ErrorKind::Store, true));
            assert!(error.message().contains("raise `statement_timeout`"), "{error}");
        }
        assert!(started.elapsed() < LONG, "{:?}", started.elapsed());
        other.batch_execute("DROP TRIGGER slow ON umbel_log").await.unwrap();
        said.push(format!("kept {n}"));
        store.release(&taken.lease, taken.versions, entries(&[&said[n]])).await.unwrap();
        assert_eq!(texts(store, &s1).await, said, "the same connections go on");
        assert!(texts(store, &s2).await.is_empty());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn postgres_does_not_hang_on_a_lock_for_longer_than_a_statement_may_take() {
    let Some(server) = server() else { return };
    let url = new_database(&server).await;
    let options = Postgres::options(&url).patience(Duration::MAX).statement_timeout(SHORT);
    let store = options.open().await.unwrap();
    let s1 = new_session(&store).await;
    let taken = lease(&store, &s1).await;
    let mut other = connect(&url).await;
    let lock = other.transaction().await.unwrap();
    lock.execute("SELECT 1 FROM umbel_sessions FOR UPDATE", &[]).await.unwrap();
    let started = Instant::now();
    let error = store.append(&taken.lease, taken.versions, entries(&["lost"])).await.unwrap_err();
    assert_eq!((error.kind(), error.is_retryable()), (ErrorKind::Store, true), "{error}");
    assert!(started.elapsed() < LONG, "{:?}", started.elapsed());
    lock.rollback().await.unwrap();
    store.append(&taken.lease, taken.versions, entries(&["kept"])).await.unwrap();
    assert_eq!(texts(&store, &s1).await, ["kept"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn postgres_takes_times_of_nothing_and_without_end() {
    let Some(server) = server() else { return };
    let url = new_database(&server).await;
    let endless = Postgres::options(&url).patience(Duration::MAX).connect_timeout(Duration::MAX);
    let endless = endless.statement_timeout(Duration::MAX).open().await.unwrap();
    let s1 = new_session(&endless).await;
    endless.commit(&s1, None, entries(&["one"])).await.unwrap();
    // Nobody stands in the way, so that nobody has to wait.
    let hasty = Postgres::options(&url).patience(Duration::ZERO).open().await.unwrap();
    assert!(hasty.get(&s1, EventFilter::default()).await.unwrap().is_some());
    let (error, _) = refused(Postgres::options(&url).connect_timeout(Duration::ZERO)).await;
    assert_retryable(&error);
}
