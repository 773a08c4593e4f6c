//! `umbel serve` at a unix socket, and over TLS.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;

use tokio_rustls::rustls::pki_types::ServerName;
use tokio_rustls::rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned, crypto};

use crate::serve::{Served, message, refused};

/// Sends a message to the guide, and gives all that comes back.
fn ask(mut stream: impl Read + Write) -> String {
    let body = message("r1", "weather in Paris");
    let head = format!(
        "POST /guide HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-type: application/json\r\n\
         content-length: {}\r\n\r\n",
        body.len()
    );
    stream.write_all(format!("{head}{body}").as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

fn mode_of(path: &Path) -> u32 {
    std::fs::symlink_metadata(path).unwrap().permissions().mode() & 0o777
}

#[test]
fn it_serves_at_a_unix_socket_and_removes_it() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("umbel.sock");
    let name = path.to_str().unwrap();
    for (more, mode) in [(&[][..], 0o600), (&["--unix-group"], 0o660)] {
        let mut served = Served::start(&[&["--unix", name], more].concat());
        assert!(served.greeting.contains(&format!("on the socket {name}\n")), "{}", served.greeting);
        let curl = format!("curl -N --unix-socket '{name}' http://localhost/guide ");
        assert!(
            served.greeting.contains(&curl) && !served.greeting.contains("studio"),
            "{}",
            served.greeting
        );
        assert_eq!(mode_of(&path), mode);
        let answer = ask(UnixStream::connect(&path).unwrap());
        assert!(answer.starts_with("HTTP/1.1 200") && answer.contains("RUN_FINISHED"), "{answer}");
        let (code, text) = refused(&["--unix", name]);
        assert!(code == Some(1) && text.contains("another program listens there"), "{text}");
        served.signal("-TERM");
        assert!(served.ended().0.success());
        assert!(!path.exists(), "it is removed");
    }
    std::fs::write(&path, "a letter").unwrap();
    let (code, text) = refused(&["--unix", name]);
    assert!(code == Some(1) && text.contains(name) && text.contains("it is no socket"), "{text}");
    for more in [["--port", "1"], ["--host", "::1"], ["--tls-cert", "cert.pem"]] {
        assert_eq!(refused(&[&["--unix", name], &more[..]].concat()).0, Some(2), "{more:?}");
    }
    assert_eq!(refused(&["--unix-group"]).0, Some(2));
}

#[test]
fn it_serves_over_tls_with_a_certificate_and_its_key() {
    let folder = tempfile::tempdir().unwrap();
    let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    let other = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    let file = |name: &str, text: String| {
        let path = folder.path().join(name);
        std::fs::write(&path, text).unwrap();
        path.display().to_string()
    };
    let certificate = file("cert.pem", made.cert.pem());
    let key = file("key.pem", made.signing_key.serialize_pem());
    let wrong = file("wrong.pem", other.signing_key.serialize_pem());
    std::fs::set_permissions(&key, std::fs::Permissions::from_mode(0o644)).unwrap();

    let pair = ["--port", "0", "--tls-cert", &certificate, "--tls-key", &key];
    let mut served = Served::start(&[&pair[..], &["--host", "localhost"]].concat());
    let (_, rest) = served.greeting.split_once("listening on https://localhost:").unwrap();
    let port: u16 = rest.lines().next().unwrap().parse().unwrap();
    let curl = format!("curl -N https://localhost:{port}/guide ");
    assert!(served.greeting.contains(&curl) && !served.greeting.contains("http://"), "{}", served.greeting);

    let mut roots = RootCertStore::empty();
    roots.add(made.cert.der().clone()).unwrap();
    let config = ClientConfig::builder_with_provider(Arc::new(crypto::ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    let name = ServerName::try_from("localhost").unwrap();
    let client = ClientConnection::new(Arc::new(config), name).unwrap();
    let answer = ask(StreamOwned::new(client, TcpStream::connect(("localhost", port)).unwrap()));
    assert!(answer.starts_with("HTTP/1.1 200") && answer.contains("RUN_FINISHED"), "{answer}");
    served.signal("-TERM");
    assert!(served.ended().0.success());
    let mut log = String::new();
    served.child.stderr.take().unwrap().read_to_string(&mut log).unwrap();
    assert!(log.contains(&format!("chmod 600 {key}")), "others may read the key: {log}");

    for (args, code, word) in [
        (&["--tls-cert", &certificate][..], 2, "--tls-key"),
        (&["--tls-key", &key], 2, "--tls-cert"),
        (&["--tls-cert", &certificate, "--tls-key", &wrong], 1, "does not belong to the certificate"),
        (&["--tls-cert", &certificate, "--tls-key", "/none.pem"], 1, "/none.pem cannot be read"),
        (&[&pair[..], &["--host", "0.0.0.0"]].concat(), 2, "--tokens FILE"),
    ] {
        let (status, text) = refused(args);
        assert!(status == Some(code) && text.contains(word), "{args:?}: {status:?} {text}");
    }
}
