//! A way to PostgreSQL that can be cut at the worst moment.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{UnixListener, UnixStream};

/// What gets lost of a write, and with it the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lost {
    /// It never arrives.
    Request,
    /// It is done, and nobody hears of it.
    Answer,
    /// It arrives, and is still being done when the connection is gone.
    Patience,
}

/// What a write is on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum At {
    /// The end of a transaction that may write.
    Commit,
    /// A statement that is a transaction of its own.
    Statement,
}

/// Stands between a store and a server that listens on a socket in a folder.
pub(crate) struct Proxy {
    folder: TempDir,
    way: Arc<Way>,
}

#[derive(Default)]
struct Way {
    /// What is to be lost next.
    next: Mutex<Option<(Lost, At)>>,
    /// Once something is lost, nobody gets through any more.
    closes: AtomicBool,
    is_closed: AtomicBool,
}

impl Proxy {
    pub(crate) fn start(server: &str) -> Self {
        let (_, host) = server.split_once("host=").unwrap();
        let (folder, way) = (tempfile::tempdir().unwrap(), Arc::new(Way::default()));
        let listener = UnixListener::bind(socket(folder.path())).unwrap();
        let (server, shared) = (socket(Path::new(host)), way.clone());
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                if shared.is_closed.load(Ordering::SeqCst) {
                    continue;
                }
                let server = UnixStream::connect(&server).await.unwrap();
                tokio::spawn(carry(client, server, shared.clone()));
            }
        });
        Self { folder, way }
    }

    /// The address of the same database, by this way.
    pub(crate) fn url(&self, server: &str) -> String {
        let (database, _) = server.split_once("host=").unwrap();
        format!("{database}host={}", self.folder.path().display())
    }

    /// Loses the next such write, once.
    pub(crate) fn lose(&self, what: Lost, at: At) {
        *self.way.next.lock().unwrap() = Some((what, at));
    }

    /// Loses the answer to the next such write, and is closed from then on.
    pub(crate) fn lose_and_close(&self, at: At) {
        self.way.closes.store(true, Ordering::SeqCst);
        self.lose(Lost::Answer, at);
    }

    /// Lets everyone through again.
    pub(crate) fn open(&self) {
        self.way.closes.store(false, Ordering::SeqCst);
        self.way.is_closed.store(false, Ordering::SeqCst);
    }

    /// Whether nothing is left to be lost.
    pub(crate) fn has_lost(&self) -> bool {
        self.way.next.lock().unwrap().is_none()
    }
}

fn socket(folder: &Path) -> PathBuf {
    folder.join(".s.PGSQL.5432")
}

/// Carries one connection, until it ends or is cut.
async fn carry(client: UnixStream, server: UnixStream, way: Arc<Way>) {
    let (from_client, to_client) = client.into_split();
    let (from_server, to_server) = server.into_split();
    let is_cut = AtomicBool::new(false);
    tokio::select! {
        _ = requests(from_client, to_server, &way, &is_cut) => {}
        _ = answers(from_server, to_client, &is_cut) => {}
    }
}

async fn requests(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    way: &Way,
    is_cut: &AtomicBool,
) -> std::io::Result<()> {
    // The first message has no kind.
    to.write_all(&body(&mut from).await?).await?;
    let (mut leaves, mut reads) = (false, false);
    loop {
        let (kind, body) = (from.read_u8().await?, body(&mut from).await?);
        let says = |words: &[u8]| kind == b'Q' && body.windows(words.len()).any(|found| found == words);
        reads |= says(b"READ ONLY");
        let at = match kind {
            b'Q' if says(b"COMMIT") => (!std::mem::take(&mut reads)).then_some(At::Commit),
            b'E' => Some(At::Statement),
            _ => None,
        };
        let lost = {
            let mut next = way.next.lock().unwrap();
            next.take_if(|(_, wanted)| Some(*wanted) == at).map(|(lost, _)| lost)
        };
        if lost.is_some() {
            way.is_closed.store(way.closes.load(Ordering::SeqCst), Ordering::SeqCst);
        }
        match lost {
            Some(Lost::Request) => return Ok(()),
            Some(Lost::Answer) => is_cut.store(true, Ordering::SeqCst),
            Some(Lost::Patience) | None => {}
        }
        to.write_all(&[&[kind], &body[..]].concat()).await?;
        // A statement is carried out once it is followed by a sync.
        leaves |= lost == Some(Lost::Patience);
        if leaves && matches!(kind, b'Q' | b'S') {
            return Ok(());
        }
    }
}

async fn answers(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    is_cut: &AtomicBool,
) -> std::io::Result<()> {
    loop {
        let (kind, body) = (from.read_u8().await?, body(&mut from).await?);
        if !is_cut.load(Ordering::SeqCst) {
            to.write_all(&[&[kind], &body[..]].concat()).await?;
        } else if kind == b'Z' {
            // The server is done, and ready for the next.
            return Ok(());
        }
    }
}

/// A message after its kind: its length, which counts itself, and the rest.
async fn body(from: &mut OwnedReadHalf) -> std::io::Result<Vec<u8>> {
    let length = from.read_u32().await?;
    let mut body = vec![0; length as usize];
    body[..4].copy_from_slice(&length.to_be_bytes());
    from.read_exact(&mut body[4..]).await?;
    Ok(body)
}
