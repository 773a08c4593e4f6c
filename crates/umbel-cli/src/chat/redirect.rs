//! Where people come back to when they signed in, if that is this machine (RFC 8252, 7.3). What they bring along is checked by
//! who asked for it.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use futures::StreamExt;
use futures::stream::FuturesUnordered;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::{sleep, timeout};

/// Bytes of a request that are read: its address is in the first line.
const LONGEST: usize = 32 << 10;
/// How long a request may take.
const TIME: Duration = Duration::from_secs(10);
/// Requests at once: browsers open connections that they may need later.
const MOST: usize = 16;
/// How long nothing is taken when this machine gives no more connections.
const PAUSE: Duration = Duration::from_millis(100);

/// What a browser shows then.
const DONE: &str = "<h1>That is all</h1><p>Go on in the terminal. You may close this window.";
/// What it shows at other addresses.
const ELSEWHERE: &str = "<h1>Nobody waits for this</h1><p>Sign in with the address that the terminal shows.";

/// Listens at the address that a sign-in leads back to.
pub(super) struct Redirect {
    listener: TcpListener,
    /// The address up to its path.
    origin: String,
    path: String,
    /// What tells this sign-in from others.
    state: Option<String>,
}

impl Redirect {
    /// Listens where that link leads back to; `None` if that is not this machine alone, or another program is there.
    pub(super) async fn listen(link: &str) -> Option<Self> {
        let back = parameter(link, "redirect_uri")?;
        let rest = back.strip_prefix("http://")?;
        let (host, path) = rest.split_at_checked(rest.find('/').unwrap_or(rest.len()))?;
        let place: SocketAddr = host.replace("localhost", "127.0.0.1").parse().ok()?;
        if !place.ip().is_loopback() {
            return None;
        }
        let listener = TcpListener::bind(place).await.ok()?;
        let path = path.split('?').next().filter(|path| !path.is_empty()).unwrap_or("/").to_owned();
        Some(Self { listener, origin: format!("http://{host}"), path, state: parameter(link, "state") })
    }

    /// The address with which somebody came back.
    pub(super) async fn address(&self) -> String {
        let mut requests = FuturesUnordered::new();
        loop {
            tokio::select! {
                Some(address) = requests.next(), if !requests.is_empty() => if let Ok(Ok(Some(address))) = address {
                    return address;
                },
                accepted = self.listener.accept(), if requests.len() < MOST => match accepted {
                    Ok((stream, _)) => requests.push(timeout(TIME, self.answer(stream))),
                    Err(_) => sleep(PAUSE).await,
                },
            }
        }
    }

    /// Answers a request, and tells its address if it is the one that is waited for. Any page can send a browser here, so that
    /// one with another state changes nothing.
    async fn answer(&self, mut stream: TcpStream) -> io::Result<Option<String>> {
        let line = first_line(&mut stream).await?;
        let target = line.strip_prefix("GET ").and_then(|rest| rest.split(' ').next());
        let is_it = |target: &&str| {
            target.split('?').next() == Some(self.path.as_str()) && parameter(target, "state") == self.state
        };
        let target = target.filter(is_it);
        let (status, text) = if target.is_some() { ("200 OK", DONE) } else { ("404 Not Found", ELSEWHERE) };
        let page = format!("<!doctype html><html lang=en><meta charset=utf-8><title>Umbel</title>{text}");
        let head = format!(
            "HTTP/1.1 {status}\r\ncontent-type: text/html; charset=utf-8\r\ncontent-length: {}\r\n\
             content-security-policy: default-src 'none'\r\nreferrer-policy: no-referrer\r\n\
             cache-control: no-store\r\nconnection: close\r\n\r\n",
            page.len()
        );
        stream.write_all(format!("{head}{page}").as_bytes()).await?;
        stream.shutdown().await?;
        Ok(target.map(|target| format!("{}{target}", self.origin)))
    }
}

/// The first line of a request, once all of its head is there.
async fn first_line(stream: &mut TcpStream) -> io::Result<String> {
    let (mut bytes, mut buffer) = (Vec::new(), [0; 2048]);
    while !bytes.ends_with(b"\r\n\r\n") {
        let count = stream.read(&mut buffer).await?;
        if count == 0 || bytes.len() + count > LONGEST {
            return Err(io::ErrorKind::InvalidData.into());
        }
        bytes.extend(buffer.iter().take(count));
    }
    let head = String::from_utf8_lossy(&bytes);
    Ok(head.lines().next().unwrap_or_default().to_owned())
}

/// A parameter of an address.
pub(super) fn parameter(address: &str, name: &str) -> Option<String> {
    let (_, query) = address.split_once('?')?;
    let mut all = form_urlencoded::parse(query.as_bytes());
    all.find(|(known, _)| known == name).map(|(_, value)| value.into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn only_addresses_of_this_machine_are_listened_at() {
        let listens = async |back: &str| {
            let link: String = form_urlencoded::byte_serialize(back.as_bytes()).collect();
            Redirect::listen(&format!("https://login.example/?redirect_uri={link}")).await.is_some()
        };
        for back in ["http://127.0.0.1:0/back", "http://[::1]:0", "http://localhost:0/?a=b"] {
            assert!(listens(back).await, "{back}");
        }
        for back in [
            "https://127.0.0.1:0/back",
            "http://127.0.0.1/back",
            "http://0.0.0.0:0/back",
            "http://localhost.example:0/back",
            "http://ann@127.0.0.1:0/back",
            "app:/back",
        ] {
            assert!(!listens(back).await, "{back}");
        }
        assert!(Redirect::listen("https://login.example/").await.is_none());
    }
}
