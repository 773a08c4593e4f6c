//! Where a server listens: TCP, TLS over TCP, or a unix socket.

use std::fmt;
use std::io;
use std::net::SocketAddr;
#[cfg(unix)]
use std::path::PathBuf;

use tokio::net::{TcpListener, TcpStream};
#[cfg(unix)]
use tokio::net::{UnixListener, UnixSocket, UnixStream};

use crate::connections::Peer;
#[cfg(feature = "tls")]
use crate::tls::Tls;

/// How many connections may wait to be accepted.
#[cfg(unix)]
const BACKLOG: u32 = 1024;

/// Where a server listens, for [`Service::serve`](crate::Service::serve). A `TcpListener` is one.
pub struct Listener(Socket);

enum Socket {
    Tcp(TcpListener),
    #[cfg(feature = "tls")]
    Tls(TcpListener, Tls),
    #[cfg(unix)]
    Unix(UnixListener, SocketFile),
}

/// A connection that was accepted.
pub(crate) enum Accepted {
    Tcp(TcpStream),
    /// One whose handshake is still to come.
    #[cfg(feature = "tls")]
    Tls(TcpStream, Tls),
    #[cfg(unix)]
    Unix(UnixStream),
}

impl Listener {
    /// TLS over TCP, for a server without a proxy.
    #[cfg(feature = "tls")]
    pub fn tls(tcp: TcpListener, tls: Tls) -> Self {
        Self(Socket::Tls(tcp, tls))
    }

    /// A unix socket with mode 0600: the user of this process alone may connect. Like loopback it
    /// needs no auth. The file of a socket at which nobody listens any more is replaced; anything
    /// else that stands there is an error. It is removed when the server stops or this is dropped.
    #[cfg(unix)]
    pub async fn unix(path: impl Into<PathBuf>) -> io::Result<Self> {
        Self::unix_with(path.into(), 0o600).await
    }

    /// The same with mode 0660: the file's group may connect too. That is the group of this
    /// process, or of the folder if it has the setgid bit.
    #[cfg(unix)]
    pub async fn unix_for_group(path: impl Into<PathBuf>) -> io::Result<Self> {
        Self::unix_with(path.into(), 0o660).await
    }

    #[cfg(unix)]
    async fn unix_with(path: PathBuf, mode: u32) -> io::Result<Self> {
        use std::fs::{Permissions, set_permissions};
        use std::os::unix::fs::PermissionsExt;

        make_way(&path).await?;
        let socket = UnixSocket::new_stream()?;
        socket.bind(&path)?;
        let file = SocketFile::new(path)?;
        // Nobody can connect before it listens, so nobody does before its mode is set.
        set_permissions(&file.path, Permissions::from_mode(mode))?;
        Ok(Self(Socket::Unix(socket.listen(BACKLOG)?, file)))
    }

    /// The address by which others than this machine can reach it, if they can.
    pub(crate) fn exposed(&self) -> io::Result<Option<SocketAddr>> {
        let address = match &self.0 {
            Socket::Tcp(tcp) => tcp.local_addr()?,
            #[cfg(feature = "tls")]
            Socket::Tls(tcp, _) => tcp.local_addr()?,
            #[cfg(unix)]
            Socket::Unix(..) => return Ok(None),
        };
        Ok(Some(address).filter(|address| !address.ip().is_loopback()))
    }

    /// Whether what comes by it is encrypted.
    pub(crate) fn is_tls(&self) -> bool {
        match &self.0 {
            Socket::Tcp(_) => false,
            #[cfg(feature = "tls")]
            Socket::Tls(..) => true,
            #[cfg(unix)]
            Socket::Unix(..) => false,
        }
    }

    /// The next connection, and where it comes from.
    pub(crate) async fn accept(&self) -> io::Result<(Accepted, Peer)> {
        match &self.0 {
            Socket::Tcp(tcp) => {
                let (stream, peer) = accept_tcp(tcp).await?;
                Ok((Accepted::Tcp(stream), peer))
            }
            #[cfg(feature = "tls")]
            Socket::Tls(tcp, tls) => {
                let (stream, peer) = accept_tcp(tcp).await?;
                Ok((Accepted::Tls(stream, tls.clone()), peer))
            }
            #[cfg(unix)]
            Socket::Unix(unix, _) => Ok((Accepted::Unix(unix.accept().await?.0), Peer::local())),
        }
    }
}

async fn accept_tcp(tcp: &TcpListener) -> io::Result<(TcpStream, Peer)> {
    let (stream, address) = tcp.accept().await?;
    // Frames are small and must not wait for each other.
    let _ = stream.set_nodelay(true);
    Ok((stream, Peer::of(address.ip())))
}

impl From<TcpListener> for Listener {
    fn from(tcp: TcpListener) -> Self {
        Self(Socket::Tcp(tcp))
    }
}

impl fmt::Debug for Listener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Socket::Tcp(tcp) => f.debug_tuple("Tcp").field(tcp).finish(),
            #[cfg(feature = "tls")]
            Socket::Tls(tcp, tls) => f.debug_tuple("Tls").field(tcp).field(tls).finish(),
            #[cfg(unix)]
            Socket::Unix(_, file) => f.debug_tuple("Unix").field(&file.path).finish(),
        }
    }
}

/// The file of a unix socket. Dropped, it is removed, unless another one has taken its place.
#[cfg(unix)]
struct SocketFile {
    path: PathBuf,
    /// Device and inode.
    identity: (u64, u64),
}

#[cfg(unix)]
impl SocketFile {
    fn new(path: PathBuf) -> io::Result<Self> {
        let identity = identity_of(&path)?;
        Ok(Self { path, identity })
    }
}

#[cfg(unix)]
impl Drop for SocketFile {
    fn drop(&mut self) {
        if identity_of(&self.path).is_ok_and(|identity| identity == self.identity)
            && let Err(error) = std::fs::remove_file(&self.path)
        {
            tracing::warn!("the socket {} could not be removed: {error}", self.path.display());
        }
    }
}

#[cfg(unix)]
fn identity_of(path: &std::path::Path) -> io::Result<(u64, u64)> {
    use std::os::unix::fs::MetadataExt;
    let metadata = std::fs::symlink_metadata(path)?;
    Ok((metadata.dev(), metadata.ino()))
}

/// Removes a socket at which nobody listens any more. Whatever else stands there is an error.
#[cfg(unix)]
async fn make_way(path: &std::path::Path) -> io::Result<()> {
    use std::os::unix::fs::FileTypeExt;

    match std::fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error),
        Ok(metadata) if !metadata.file_type().is_socket() => {
            let message = "there is something already, and it is no socket";
            return Err(io::Error::new(io::ErrorKind::AlreadyExists, message));
        }
        Ok(_) => {}
    }
    match UnixStream::connect(path).await {
        Ok(_) => {
            let message = "another program listens there";
            Err(io::Error::new(io::ErrorKind::AddrInUse, message))
        }
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => std::fs::remove_file(path),
        Err(error) => Err(error),
    }
}
