//! A server that speaks TLS itself.

use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use http::{Method, Request, StatusCode};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::oneshot;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::pki_types::ServerName;
use tokio_rustls::rustls::{ClientConfig, RootCertStore, crypto};
use tracing_subscriber::Layer;
use tracing_subscriber::layer::SubscriberExt;
use umbel::{Chunk, LlmAgent};
use umbel_server::{BearerTokens, Listener, Server, ServerLimits, Tls};

use crate::desk::{Slowly, answers, end, offered, talker, text};
use crate::support::{Connection, Host, input, read_until, within};

/// A certificate for `localhost` and its key, in two files.
struct Certified {
    folder: tempfile::TempDir,
    certificate: rcgen::Certificate,
}

impl Certified {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let certificate = renew(folder.path());
        Self { folder, certificate }
    }

    fn tls(&self) -> Tls {
        Tls::from_files(self.folder.path().join("cert.pem"), self.folder.path().join("key.pem")).unwrap()
    }

    /// Serves until it is told to stop.
    async fn serve_until(&self, server: Server, stop: impl Future<Output = ()> + Send + 'static) -> Host {
        let tcp = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = tcp.local_addr().unwrap();
        Host::start_at(server.build().unwrap(), address, Listener::tls(tcp, self.tls()), stop)
    }

    async fn serve(&self, server: Server) -> Host {
        self.serve_until(server, std::future::pending()).await
    }
}

/// Writes a certificate and its key.
fn renew(folder: &Path) -> rcgen::Certificate {
    let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    std::fs::write(folder.join("cert.pem"), made.cert.pem()).unwrap();
    std::fs::write(folder.join("key.pem"), made.signing_key.serialize_pem()).unwrap();
    made.cert
}

fn server() -> Server {
    Server::new().agent("/agent", offered(talker("Hello there.")))
}

/// Shakes hands, trusting that certificate alone.
async fn shake(
    stream: TcpStream,
    trusted: &rcgen::Certificate,
    alpn: &[&str],
) -> std::io::Result<TlsStream<TcpStream>> {
    let mut roots = RootCertStore::empty();
    roots.add(trusted.der().clone()).unwrap();
    let mut config = ClientConfig::builder_with_provider(Arc::new(crypto::ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    config.alpn_protocols = alpn.iter().map(|name| name.as_bytes().to_vec()).collect();
    let name = ServerName::try_from("localhost").unwrap();
    within(TlsConnector::from(Arc::new(config)).connect(name, stream)).await
}

async fn shaken(host: &Host, trusted: &rcgen::Certificate) -> TlsStream<TcpStream> {
    shake(TcpStream::connect(host.address).await.unwrap(), trusted, &[]).await.unwrap()
}

async fn connect(host: &Host, trusted: &rcgen::Certificate) -> Connection {
    Connection::over(shaken(host, trusted).await, &format!("localhost:{}", host.address.port())).await
}

fn agents() -> http::request::Builder {
    Request::builder().method(Method::GET).uri("/agents")
}

#[tokio::test]
async fn a_run_over_tls_streams_to_its_end() {
    let certified = Certified::new();
    let host = certified.serve(server()).await;
    let mut connection = connect(&host, &certified.certificate).await;
    let frames = connection.post("/agent", &input("t", "r", "Hi")).await.frames().await;
    assert_eq!((&*text(&frames), end(&frames)["type"].as_str()), ("Hello there.", Some("RUN_FINISHED")));
    // The same connection takes more requests.
    assert_eq!(connection.send(agents(), "").await.status(), StatusCode::OK);
    // Who trusts another certificate does not talk to it.
    let other = Certified::new();
    let stream = TcpStream::connect(host.address).await.unwrap();
    shake(stream, &other.certificate, &[]).await.unwrap_err();
}

#[tokio::test]
async fn http_1_1_is_agreed_on_and_nothing_else_is() {
    let certified = Certified::new();
    let host = certified.serve(server()).await;
    let connect = async || TcpStream::connect(host.address).await.unwrap();
    let both = shake(connect().await, &certified.certificate, &["h2", "http/1.1"]).await.unwrap();
    assert_eq!(both.get_ref().1.alpn_protocol(), Some(&b"http/1.1"[..]));
    shake(connect().await, &certified.certificate, &["h2"]).await.unwrap_err();
}

#[tokio::test]
async fn plain_http_on_the_tls_port_is_refused_and_others_are_served() {
    let certified = Certified::new();
    let host = certified.serve(server()).await;
    let mut plain = TcpStream::connect(host.address).await.unwrap();
    plain.write_all(b"GET /agents HTTP/1.1\r\nhost: localhost\r\n\r\n").await.unwrap();
    let mut answer = Vec::new();
    // It may be closed or reset.
    let _ = within(plain.read_to_end(&mut answer)).await;
    assert!(!answer.starts_with(b"HTTP"), "{}", String::from_utf8_lossy(&answer));
    assert_eq!(
        connect(&host, &certified.certificate).await.send(agents(), "").await.status(),
        StatusCode::OK
    );
}

#[tokio::test]
async fn a_stalled_handshake_blocks_nobody_and_ends_at_its_deadline() {
    let certified = Certified::new();
    let limits = ServerLimits { request_time: Duration::from_secs(4), ..ServerLimits::default() };
    let host = certified.serve(server().limits(limits)).await;
    let mut stalled = Vec::new();
    for at in 0..10 {
        let mut stream = TcpStream::connect(host.address).await.unwrap();
        if at % 2 == 0 {
            // The beginning of a record, and no more.
            stream.write_all(&[22, 3, 1]).await.unwrap();
        }
        stalled.push(stream);
    }
    let mut connection = connect(&host, &certified.certificate).await;
    assert_eq!(connection.send(agents(), "").await.status(), StatusCode::OK);
    for stream in &stalled {
        let read = stream.try_read(&mut [0; 16]).map_err(|error| error.kind());
        assert_eq!(read, Err(std::io::ErrorKind::WouldBlock), "it was served before their deadline");
    }
    for mut stream in stalled {
        let mut rest = Vec::new();
        let _ = within(stream.read_to_end(&mut rest)).await;
        assert!(rest.is_empty(), "{rest:?}");
    }
}

#[tokio::test]
async fn who_has_not_finished_the_handshake_makes_room_for_others() {
    let certified = Certified::new();
    let request_time = Duration::from_secs(600);
    let limits = ServerLimits { connections: 5, request_time, ..ServerLimits::default() };
    let auth = BearerTokens::from_text("abc ann").unwrap();
    let host = certified.serve(server().limits(limits).auth(auth)).await;
    let as_ann = || agents().header("authorization", "Bearer abc");
    let mut kept = connect(&host, &certified.certificate).await;
    assert_eq!(kept.send(as_ann(), "").await.status(), StatusCode::OK);
    let mut silent = Vec::new();
    for _ in 0..20 {
        silent.push(TcpStream::connect(host.address).await.unwrap());
    }
    assert_eq!(
        connect(&host, &certified.certificate).await.send(as_ann(), "").await.status(),
        StatusCode::OK
    );
    assert_eq!(kept.send(as_ann(), "").await.status(), StatusCode::OK);
    // The oldest was closed long before its deadline.
    let mut rest = Vec::new();
    within(silent[0].read_to_end(&mut rest)).await.unwrap();
    assert!(rest.is_empty());
}

#[tokio::test]
async fn a_renewed_certificate_counts_without_a_restart_and_a_broken_one_does_not() {
    let certified = Certified::new();
    let host = certified.serve(server()).await;
    let mut before = connect(&host, &certified.certificate).await;
    let shakes = async |trusted: &rcgen::Certificate| {
        let stream = TcpStream::connect(host.address).await.unwrap();
        shake(stream, trusted, &[]).await.is_ok()
    };
    let until = async |trusted: &rcgen::Certificate| {
        within(async {
            while !shakes(trusted).await {
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        })
        .await;
    };
    let renewed = renew(certified.folder.path());
    until(&renewed).await;
    assert!(!shakes(&certified.certificate).await);
    assert_eq!(before.send(agents(), "").await.status(), StatusCode::OK, "connections that are there stay");

    // A certificate whose key has not come yet, one that is none, and none at all: the last good
    // pair counts.
    let certificate = certified.folder.path().join("cert.pem");
    let other = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    let breaks: [&dyn Fn(); 3] = [
        &|| std::fs::write(&certificate, other.cert.pem()).unwrap(),
        &|| std::fs::write(&certificate, "oh").unwrap(),
        &|| std::fs::remove_file(&certificate).unwrap(),
    ];
    for (at, spoil) in breaks.iter().enumerate() {
        spoil();
        // Long enough for the files to be looked at: they are once a second.
        let end = tokio::time::Instant::now() + Duration::from_millis(1200);
        while tokio::time::Instant::now() < end {
            assert!(shakes(&renewed).await, "break {at}");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }
    until(&renew(certified.folder.path())).await;
}

#[tokio::test]
async fn a_server_that_stops_ends_streams_and_says_goodbye() {
    let certified = Certified::new();
    let (stop, stopped) = oneshot::channel::<()>();
    let slowly = Slowly::new("One two three");
    let agent = LlmAgent::new("slow").model(slowly.clone());
    let server = Server::new().agent("/agent", offered(agent));
    let host = certified.serve_until(server, async { stopped.await.unwrap_or_default() }).await;
    // One has not finished its handshake, and one asks for nothing.
    let _silent = TcpStream::connect(host.address).await.unwrap();
    let mut idle = shaken(&host, &certified.certificate).await;
    let mut connection = connect(&host, &certified.certificate).await;
    let mut reply = connection.post("/agent", &input("t", "r", "Hi")).await;
    read_until(&mut reply, "One ").await;
    stop.send(()).unwrap();
    slowly.go_on();
    let frames = reply.frames().await;
    assert_eq!(end(&frames)["type"], "RUN_FINISHED");
    // Without `close_notify` this is an error: whoever cut the line could have done that.
    let mut rest = Vec::new();
    within(idle.read_to_end(&mut rest)).await.unwrap();
    assert!(rest.is_empty());
    within(host.finished()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_stops_reading_over_tls_loses_the_connection() {
    /// More than all buffers on the way hold.
    const MUCH: usize = 24 << 20;
    let certified = Certified::new();
    let limits = ServerLimits {
        run_bytes: 2 * MUCH,
        read_time: Duration::from_millis(200),
        ..ServerLimits::default()
    };
    let piece = "x".repeat(4096);
    let flood = LlmAgent::new("flood")
        .model(answers(move |_| (0..MUCH / 4096).map(|_| Ok(Chunk::Text(piece.clone()))).collect()));
    let host = certified.serve(Server::new().limits(limits).agent("/agent", offered(flood))).await;
    let socket = TcpSocket::new_v4().unwrap();
    socket.set_recv_buffer_size(4096).unwrap();
    let stream = socket.connect(host.address).await.unwrap();
    let mut stream = shake(stream, &certified.certificate, &[]).await.unwrap();
    let body = input("t", "t", "hello").to_string();
    let head = format!(
        "POST /agent HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    );
    stream.write_all(head.as_bytes()).await.unwrap();
    // What is tested is that time goes by.
    tokio::time::sleep(Duration::from_secs(1)).await;
    let mut read = Vec::new();
    // It may be cut off with or without a word.
    let _ = within(stream.read_to_end(&mut read)).await;
    assert!(read.len() < MUCH, "{} bytes came through", read.len());
    assert!(!String::from_utf8_lossy(&read).contains("RUN_FINISHED"));
}

#[tokio::test]
async fn a_page_that_came_without_tls_is_not_of_the_same_origin() {
    let certified = Certified::new();
    let host = certified.serve(server()).await;
    let mut connection = connect(&host, &certified.certificate).await;
    for (scheme, status) in [("https", StatusCode::OK), ("http", StatusCode::FORBIDDEN)] {
        let origin = format!("{scheme}://localhost:{}", host.address.port());
        let reply = connection.send(agents().header("origin", origin), "").await;
        assert_eq!(reply.status(), status, "{scheme}");
    }
    let mut stream = shaken(&host, &certified.certificate).await;
    let ask = b"GET /agents HTTP/1.1\r\nhost: evil.example\r\nconnection: close\r\n\r\n";
    stream.write_all(ask).await.unwrap();
    let mut answer = String::new();
    within(stream.read_to_string(&mut answer)).await.unwrap();
    assert!(answer.contains("HOST_NOT_ALLOWED"), "{answer}");
}

/// The schemes of the spans of requests.
#[derive(Clone, Default)]
struct Schemes(Arc<Mutex<Vec<String>>>);

impl<S: tracing::Subscriber> Layer<S> for Schemes {
    fn on_new_span(
        &self,
        attributes: &tracing::span::Attributes<'_>,
        _: &tracing::span::Id,
        _: tracing_subscriber::layer::Context<'_, S>,
    ) {
        attributes.record(&mut |field: &tracing::field::Field, value: &dyn std::fmt::Debug| {
            if field.name() == "url.scheme" {
                self.0.lock().unwrap().push(format!("{value:?}"));
            }
        });
    }
}

#[tokio::test]
async fn traces_tell_the_scheme() {
    let schemes = Schemes::default();
    let _told = tracing::subscriber::set_default(tracing_subscriber::registry().with(schemes.clone()));
    let certified = Certified::new();
    let host = certified.serve(server()).await;
    connect(&host, &certified.certificate).await.send(agents(), "").await;
    let host = Host::start(server().build().unwrap()).await;
    host.get("/agents").await;
    assert_eq!(*schemes.0.lock().unwrap(), ["\"https\"", "\"http\""]);
}

#[tokio::test]
async fn tls_alone_does_not_open_a_server_to_others() {
    let certified = Certified::new();
    let listener = async || {
        let tcp = TcpListener::bind("0.0.0.0:0").await.unwrap();
        Listener::tls(tcp, certified.tls())
    };
    let open = server().build().unwrap();
    let error = open.serve(listener().await, std::future::ready(())).await.unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::PermissionDenied);
    let auth = BearerTokens::from_text("abc ann").unwrap();
    let guarded = server().auth(auth).build().unwrap();
    guarded.serve(listener().await, std::future::ready(())).await.unwrap();
}

#[test]
fn files_that_are_no_good_are_told_by_name() {
    let certified = Certified::new();
    let file = |name: &str, text: &str| {
        let path = certified.folder.path().join(name);
        std::fs::write(&path, text).unwrap();
        path
    };
    let (certificate, key) =
        (certified.folder.path().join("cert.pem"), certified.folder.path().join("key.pem"));
    let other = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    let other = file("other.pem", &other.signing_key.serialize_pem());
    let torn = file("torn.pem", "-----BEGIN CERTIFICATE-----\nMIIB\n");
    for (certificate, key, words) in [
        (&certificate, &other, &["other.pem", "does not belong to the certificate in", "cert.pem"][..]),
        (&key, &key, &["key.pem: there is no certificate"]),
        (&torn, &key, &["torn.pem: it is not in PEM form"]),
        (&certificate, &certificate, &["cert.pem: there is no private key"]),
        (&certificate, &certified.folder.path().join("none.pem"), &["none.pem cannot be read"]),
    ] {
        let error = Tls::from_files(certificate, key).unwrap_err().to_string();
        assert!(words.iter().all(|word| error.contains(word)), "{error}");
    }
}

#[cfg(unix)]
#[test]
fn a_key_that_others_may_read_is_told() {
    use std::os::unix::fs::PermissionsExt;
    let certified = Certified::new();
    let key = certified.folder.path().join("key.pem");
    for (mode, exposed) in [(0o600, None), (0o644, Some(&*key))] {
        std::fs::set_permissions(&key, std::fs::Permissions::from_mode(mode)).unwrap();
        assert_eq!(certified.tls().exposed(), exposed);
    }
}
