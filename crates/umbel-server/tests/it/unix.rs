//! A server at a unix socket.

use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::path::{Path, PathBuf};

use http::{Method, Request, StatusCode};
use tokio::net::UnixStream;
use tokio::sync::oneshot;
use umbel_server::{Listener, Server};

use crate::desk::{end, offered, talker, text};
use crate::support::{Connection, input, within};

fn service() -> umbel_server::Service {
    Server::new().agent("/agent", offered(talker("Hello there."))).build().unwrap()
}

fn mode_of(path: &Path) -> u32 {
    std::fs::symlink_metadata(path).unwrap().permissions().mode() & 0o777
}

async fn connect(path: &PathBuf) -> Connection {
    Connection::over(UnixStream::connect(path).await.unwrap(), "localhost").await
}

#[tokio::test]
async fn a_unix_socket_serves_a_run_to_its_owner_without_auth_and_is_removed() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("desk.sock");
    let listener = Listener::unix(&path).await.unwrap();
    assert_eq!(mode_of(&path), 0o600);
    let (stop, stopped) = oneshot::channel::<()>();
    let serving = tokio::spawn(service().serve(listener, async { stopped.await.unwrap_or_default() }));
    let mut connection = connect(&path).await;
    let frames = connection.post("/agent", &input("t", "r", "Hi")).await.frames().await;
    assert_eq!((&*text(&frames), end(&frames)["type"].as_str()), ("Hello there.", Some("RUN_FINISHED")));
    stop.send(()).unwrap();
    within(serving).await.unwrap().unwrap();
    assert!(!path.exists(), "it is removed");
}

#[tokio::test]
async fn names_and_origins_are_checked_at_a_unix_socket_too() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("desk.sock");
    let listener = Listener::unix(&path).await.unwrap();
    let serving = tokio::spawn(service().serve(listener, std::future::pending()));
    let stream = UnixStream::connect(&path).await.unwrap();
    let mut by_name = Connection::over(stream, "evil.example").await;
    let agents = || Request::builder().method(Method::GET).uri("/agents");
    assert_eq!(by_name.send(agents(), "").await.status(), StatusCode::FORBIDDEN);
    let page = agents().header("origin", "http://evil.example");
    assert_eq!(connect(&path).await.send(page, "").await.status(), StatusCode::FORBIDDEN);
    assert_eq!(connect(&path).await.send(agents(), "").await.status(), StatusCode::OK);
    serving.abort();
}

#[tokio::test]
async fn the_group_may_connect_if_that_is_said() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("desk.sock");
    let listener = Listener::unix_for_group(&path).await.unwrap();
    assert_eq!(mode_of(&path), 0o660);
    drop(listener);
    assert!(!path.exists());
}

#[tokio::test]
async fn a_stale_socket_is_replaced_and_nothing_else_is() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("desk.sock");
    // A process that died leaves its socket behind.
    drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
    let first = Listener::unix(&path).await.unwrap();
    // Somebody listens there now.
    let error = Listener::unix(&path).await.unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::AddrInUse);
    // Another one took its place: it is not this one's to remove.
    std::fs::remove_file(&path).unwrap();
    let second = Listener::unix(&path).await.unwrap();
    drop(first);
    assert!(std::fs::symlink_metadata(&path).unwrap().file_type().is_socket());
    drop(second);
    assert!(!path.exists());

    std::fs::write(&path, "a letter").unwrap();
    let link = folder.path().join("link.sock");
    std::os::unix::fs::symlink(&path, &link).unwrap();
    for path in [&path, &link] {
        let error = Listener::unix(path).await.unwrap_err();
        assert_eq!(error.kind(), std::io::ErrorKind::AlreadyExists);
    }
    assert_eq!(std::fs::read_to_string(&path).unwrap(), "a letter");
}
