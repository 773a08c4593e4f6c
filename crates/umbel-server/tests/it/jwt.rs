//! Tokens that somebody else signs.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use base64::Engine;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use http::StatusCode;
use ring::rand::SystemRandom;
use ring::rsa;
use ring::signature::{
    ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, Ed25519KeyPair, KeyPair, RSA_PKCS1_SHA256, RsaKeyPair,
};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::{ServerConfig, crypto};
use umbel_server::{AgentEndpoint, Jwt, Server};

use crate::auth::{ask, get, post, runner};
use crate::support::{Host, input, within};

fn text(bytes: impl AsRef<[u8]>) -> String {
    URL_SAFE_NO_PAD.encode(bytes)
}

/// A key that signs, as an identity provider has it.
enum Signer {
    Rsa(RsaKeyPair),
    P256(EcdsaKeyPair),
    Ed25519(Ed25519KeyPair),
}

impl Signer {
    fn rsa() -> Self {
        let key: String = include_str!("rsa_key.txt").split_whitespace().collect();
        Self::Rsa(RsaKeyPair::from_pkcs8(&STANDARD.decode(key).unwrap()).unwrap())
    }

    fn p256() -> Self {
        let (kind, random) = (&ECDSA_P256_SHA256_FIXED_SIGNING, SystemRandom::new());
        let key = EcdsaKeyPair::generate_pkcs8(kind, &random).unwrap();
        Self::P256(EcdsaKeyPair::from_pkcs8(kind, key.as_ref(), &random).unwrap())
    }

    fn ed25519() -> Self {
        let key = Ed25519KeyPair::generate_pkcs8(&SystemRandom::new()).unwrap();
        Self::Ed25519(Ed25519KeyPair::from_pkcs8(key.as_ref()).unwrap())
    }

    fn name(&self) -> &'static str {
        match self {
            Self::Rsa(_) => "RS256",
            Self::P256(_) => "ES256",
            Self::Ed25519(_) => "EdDSA",
        }
    }

    fn sign(&self, message: &[u8]) -> Vec<u8> {
        let random = SystemRandom::new();
        match self {
            Self::Rsa(key) => {
                let mut signature = vec![0; key.public().modulus_len()];
                key.sign(&RSA_PKCS1_SHA256, &random, message, &mut signature).unwrap();
                signature
            }
            Self::P256(key) => key.sign(&random, message).unwrap().as_ref().to_vec(),
            Self::Ed25519(key) => key.sign(message).as_ref().to_vec(),
        }
    }

    /// The public half, as it is published.
    fn jwk(&self, id: &str) -> Value {
        let mut key = match self {
            Self::Rsa(key) => {
                let parts = rsa::PublicKeyComponents::<Vec<u8>>::from(key.public());
                // Some write numbers with a zero before them.
                json!({"kty": "RSA", "n": text([&[0][..], &parts.n].concat()), "e": text(parts.e)})
            }
            Self::P256(key) => {
                let point = key.public_key().as_ref();
                json!({"kty": "EC", "crv": "P-256", "x": text(&point[1..33]), "y": text(&point[33..])})
            }
            Self::Ed25519(key) => json!({"kty": "OKP", "crv": "Ed25519", "x": text(key.public_key())}),
        };
        key["kid"] = json!(id);
        key["use"] = json!("sig");
        key["alg"] = json!(self.name());
        key
    }

    fn token(&self, header: &Value, claims: &Value) -> String {
        let mut head = json!({"alg": self.name(), "typ": "JWT"});
        head.as_object_mut().unwrap().extend(header.as_object().unwrap().clone());
        let signed = format!("{}.{}", text(head.to_string()), text(claims.to_string()));
        let signature = text(self.sign(signed.as_bytes()));
        format!("{signed}.{signature}")
    }
}

fn now() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs_f64()
}

/// Claims of a token that is good, but for some.
fn claims(changes: &Value) -> Value {
    let mut claims =
        json!({"sub": "ann", "iss": "https://login.example", "aud": "umbel", "exp": now() + 300.0});
    for (name, value) in changes.as_object().unwrap() {
        match value {
            Value::Null => drop(claims.as_object_mut().unwrap().remove(name)),
            value => claims[name] = value.clone(),
        }
    }
    claims
}

fn strict(keys: &[Value]) -> Jwt {
    let jwt = Jwt::from_json(&json!({"keys": keys}).to_string()).unwrap();
    jwt.issuer("https://login.example").audience("umbel").audience("studio")
}

async fn host(auth: Jwt) -> Host {
    let endpoint = AgentEndpoint::new(runner("app", "echo").build().unwrap());
    // What the token says of its owner reaches the run.
    let endpoint = endpoint.request_state(|_, principal| {
        let claims = principal.claims.clone().unwrap();
        Ok([("team".to_owned(), claims["team"].clone())].into_iter().collect())
    });
    Host::start(Server::new().agent("/chat", endpoint).auth(auth).build().unwrap()).await
}

/// What comes of a token: the status, and what the client is told.
async fn outcome(host: &Host, token: &str) -> (StatusCode, String) {
    let given = format!("Bearer {token}");
    let reply = ask(host, &get("/chat/threads"), &[("authorization", &given)]).await;
    let status = reply.status();
    let body = reply.json().await;
    (status, body["error"]["message"].as_str().unwrap_or_default().to_owned())
}

#[tokio::test]
async fn tokens_signed_in_each_of_the_three_ways_are_taken() {
    let signers = [Signer::rsa(), Signer::p256(), Signer::ed25519()];
    let keys: Vec<Value> = signers.iter().map(|signer| signer.jwk(signer.name())).collect();
    let host = host(strict(&keys)).await;
    for signer in &signers {
        for header in [json!({"kid": signer.name()}), json!({})] {
            let token = signer.token(&header, &claims(&json!({})));
            assert_eq!(outcome(&host, &token).await.0, StatusCode::OK, "{} {header}", signer.name());
        }
    }
}

#[tokio::test]
async fn a_token_that_is_not_good_is_refused_with_the_reason() {
    let (signer, other) = (Signer::ed25519(), Signer::ed25519());
    let host = host(strict(&[signer.jwk("k"), Signer::rsa().jwk("rsa")])).await;
    let good = claims(&json!({}));
    let with = |changes: Value| signer.token(&json!({}), &claims(&changes));
    let whole = signer.token(&json!({}), &good);
    let (signed, signature) = whole.rsplit_once('.').unwrap();
    let (head, _) = signed.split_once('.').unwrap();
    let changed = format!("{head}.{}.{signature}", text(claims(&json!({"sub": "bob"})).to_string()));
    let bare = |alg: &str, signature: &str| {
        let signed = format!("{}.{}", text(json!({"alg": alg}).to_string()), text(good.to_string()));
        format!("{signed}.{signature}")
    };
    // Whoever knows the public key could sign with it as a shared secret.
    let secret =
        ring::hmac::Key::new(ring::hmac::HMAC_SHA256, signer.jwk("k")["x"].as_str().unwrap().as_bytes());
    let shared = bare("HS256", "");
    let shared =
        format!("{shared}{}", text(ring::hmac::sign(&secret, shared.trim_end_matches('.').as_bytes())));
    for (token, why) in [
        ("abc".to_owned(), "no signed token"),
        ("a.b.c".to_owned(), "no signed token"),
        (format!("{whole}.x"), "no signed token"),
        (format!("{signed}.{signature}="), "no signed token"),
        (bare("none", ""), "not accepted"),
        (bare("None", signature), "not accepted"),
        (shared, "not accepted"),
        (signer.token(&json!({"alg": "RS256"}), &good), "not signed"),
        (signer.token(&json!({"crit": ["exp"]}), &good), "not accepted"),
        (signer.token(&json!({"kid": "rsa"}), &good), "not signed"),
        (signer.token(&json!({"kid": "other"}), &good), "not signed"),
        (other.token(&json!({"kid": "k"}), &good), "not signed"),
        (changed, "not signed"),
        (format!("{signed}."), "not signed"),
        (with(json!({"exp": now() - 61.0})), "expired"),
        (with(json!({"exp": "never"})), "expired"),
        (with(json!({"exp": null})), "no expiry"),
        (with(json!({"nbf": now() + 90.0})), "not count yet"),
        (with(json!({"iss": "https://evil.example"})), "issuer"),
        (with(json!({"iss": null})), "issuer"),
        (with(json!({"aud": "shop"})), "somebody else"),
        (with(json!({"aud": ["shop", 3]})), "somebody else"),
        (with(json!({"aud": null})), "somebody else"),
        (with(json!({"sub": null})), "whose it is (`sub`)"),
        (with(json!({"sub": ""})), "whose it is"),
        (with(json!({"sub": ["ann"]})), "whose it is"),
        (signer.token(&json!({}), &json!("ann")), "no signed token"),
    ] {
        let (status, message) = outcome(&host, &token).await;
        assert_eq!(status, StatusCode::UNAUTHORIZED, "{why}");
        assert!(message.contains(why), "{message} / {why}");
    }
    for token in [
        whole,
        with(json!({"exp": now() - 30.0})),
        with(json!({"nbf": now() + 30.0})),
        with(json!({"aud": ["shop", "studio"]})),
    ] {
        assert_eq!(outcome(&host, &token).await, (StatusCode::OK, String::new()));
    }
}

#[tokio::test]
async fn leeway_user_claim_and_audience_are_as_told() {
    let signer = Signer::p256();
    let keys = json!({"keys": [signer.jwk("k")]}).to_string();
    let token = |changes: Value| signer.token(&json!({"kid": "k"}), &claims(&changes));
    let host_of = |jwt: Jwt| host(jwt);
    let exact = host_of(Jwt::from_json(&keys).unwrap().audience("umbel").leeway(Duration::ZERO)).await;
    assert!(outcome(&exact, &token(json!({"exp": now() - 1.0}))).await.1.contains("expired"));
    assert_eq!(outcome(&exact, &token(json!({"iss": "anybody"}))).await.0, StatusCode::OK);
    // A token for somebody is not for everybody.
    let anybody = host_of(Jwt::from_json(&keys).unwrap()).await;
    assert!(outcome(&anybody, &token(json!({}))).await.1.contains("somebody else"));
    assert_eq!(outcome(&anybody, &token(json!({"aud": null}))).await.0, StatusCode::OK);

    let by_mail = host_of(strict(&[signer.jwk("k")]).user_claim("uid")).await;
    assert!(outcome(&by_mail, &token(json!({}))).await.1.contains("`uid`"));
    for uid in [json!("ann@example.org"), json!(17)] {
        let given = format!("Bearer {}", token(json!({"uid": uid, "team": "blue"})));
        let given = [("authorization", given.as_str())];
        ask(&by_mail, &post("/chat", &input("t", "r", "hi")), &given).await.frames().await;
        let thread = ask(&by_mail, &get("/chat/threads/t"), &given).await.json().await;
        assert_eq!(thread["state"]["team"], "blue");
    }
}

#[test]
fn a_key_set_needs_a_key_that_can_be_used() {
    let refused = |keys: &str| Jwt::from_json(keys).unwrap_err().message().to_owned();
    for keys in ["", "[]", "{}", r#"{"keys": 3}"#] {
        assert!(refused(keys).contains("no key set"), "{keys}");
    }
    let p256 = Signer::p256();
    let change = |name: &str, value: Value| {
        let mut key = p256.jwk("k");
        key[name] = value;
        key
    };
    let short = json!({"kty": "RSA", "n": text([0xc5; 128]), "e": "AQAB"});
    for key in [
        json!({"kty": "oct", "k": "c2VjcmV0"}),
        json!(3),
        short,
        change("use", json!("enc")),
        change("alg", json!("RS256")),
        change("key_ops", json!(["sign"])),
        change("crv", json!("P-384")),
        change("x", json!("AA")),
        change("y", json!("!")),
    ] {
        assert!(refused(&json!({"keys": [key]}).to_string()).contains("no key that can be used"), "{key}");
    }
    assert!(Jwt::from_json(&json!({"keys": [{"kty": "oct"}, p256.jwk("k")]}).to_string()).is_ok());
}

#[tokio::test]
async fn keys_of_a_file_are_read_again_when_it_changes() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("keys.json");
    let (old, new) = (Signer::ed25519(), Signer::ed25519());
    std::fs::write(&path, json!({"keys": [old.jwk("old")]}).to_string()).unwrap();
    let host = host(Jwt::from_file(&path).unwrap().audience("umbel")).await;
    let token = |signer: &Signer, id: &str| signer.token(&json!({"kid": id}), &claims(&json!({})));
    let (old_token, new_token) = (token(&old, "old"), token(&new, "new"));
    assert_eq!(outcome(&host, &old_token).await.0, StatusCode::OK);
    assert_eq!(outcome(&host, &new_token).await.0, StatusCode::UNAUTHORIZED);
    std::fs::write(&path, json!({"keys": [new.jwk("new")]}).to_string()).unwrap();
    crate::support::within(async {
        while outcome(&host, &new_token).await.0 != StatusCode::OK {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    })
    .await;
    assert_eq!(outcome(&host, &old_token).await.0, StatusCode::UNAUTHORIZED);
}

/// Answers every request with the same, and counts them.
async fn publish(status: &'static str, body: String) -> (String, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/keys", listener.local_addr().unwrap());
    let asked = Arc::new(AtomicUsize::new(0));
    let count = asked.clone();
    tokio::spawn(async move {
        loop {
            let (mut stream, _) = listener.accept().await.unwrap();
            count.fetch_add(1, Ordering::SeqCst);
            let _ = stream.read(&mut [0; 4096]).await;
            let head =
                format!("HTTP/1.1 {status}\r\ncontent-length: {}\r\nconnection: close\r\n\r\n", body.len());
            let _ = stream.write_all(format!("{head}{body}").as_bytes()).await;
        }
    });
    (url, asked)
}

#[tokio::test]
async fn keys_at_an_address_are_asked_for_once_whatever_tokens_come() {
    let signer = Signer::p256();
    let (url, asked) = publish("200 OK", json!({"keys": [signer.jwk("k")]}).to_string()).await;
    let host = host(Jwt::from_url(&url).unwrap().audience("umbel")).await;
    assert_eq!(asked.load(Ordering::SeqCst), 0);
    for _ in 0..3 {
        let token = signer.token(&json!({"kid": "k"}), &claims(&json!({})));
        assert_eq!(outcome(&host, &token).await.0, StatusCode::OK);
    }
    for id in 0..20 {
        let token = signer.token(&json!({"kid": id.to_string()}), &claims(&json!({})));
        assert_eq!(outcome(&host, &token).await.0, StatusCode::UNAUTHORIZED);
    }
    assert_eq!(asked.load(Ordering::SeqCst), 1);
}

#[tokio::test]
async fn a_server_that_cannot_get_keys_says_so_and_lets_nobody_in() {
    let signer = Signer::p256();
    let keys = json!({"keys": [signer.jwk("k")]}).to_string();
    for (status, body) in [("500 Oh", keys.clone()), ("200 OK", "oh".to_owned()), ("302 Found", keys)] {
        let (url, asked) = publish(status, body).await;
        let host = host(Jwt::from_url(&url).unwrap().audience("umbel")).await;
        let token = signer.token(&json!({"kid": "k"}), &claims(&json!({})));
        let given = format!("Bearer {token}");
        for _ in 0..2 {
            let reply = ask(&host, &get("/chat/threads"), &[("authorization", &given)]).await;
            assert_eq!(reply.status(), StatusCode::SERVICE_UNAVAILABLE, "{status}");
            assert_eq!(reply.head.headers["retry-after"], "30");
            assert_eq!(reply.json().await["error"]["code"], "AUTH_UNAVAILABLE");
        }
        assert_eq!(asked.load(Ordering::SeqCst), 1);
    }
}

/// The same over TLS, with that certificate.
async fn publish_over_tls(certificate: CertificateDer<'static>, key: Vec<u8>, body: String) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("https://localhost:{}/keys", listener.local_addr().unwrap().port());
    let key = PrivateKeyDer::try_from(key).unwrap();
    let config = ServerConfig::builder_with_provider(Arc::new(crypto::ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![certificate], key)
        .unwrap();
    let acceptor = tokio_rustls::TlsAcceptor::from(Arc::new(config));
    tokio::spawn(async move {
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            // Who does not trust it hangs up.
            let Ok(mut stream) = acceptor.accept(stream).await else { continue };
            let _ = stream.read(&mut [0; 4096]).await;
            let head =
                format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\nconnection: close\r\n\r\n", body.len());
            let _ = stream.write_all(format!("{head}{body}").as_bytes()).await;
            let _ = stream.shutdown().await;
        }
    });
    url
}

/// Set in the process that trusts the certificate.
const TRUSTED: &str = "UMBEL_TEST_CERTIFICATE";

#[tokio::test]
async fn keys_over_tls_count_if_the_certificate_is_trusted_and_are_refused_if_it_is_not() {
    let name = "jwt::keys_over_tls_count_if_the_certificate_is_trusted_and_are_refused_if_it_is_not";
    let signer = Signer::p256();
    let keys = json!({"keys": [signer.jwk("k")]}).to_string();
    let given = format!("Bearer {}", signer.token(&json!({"kid": "k"}), &claims(&json!({}))));
    let Ok(folder) = std::env::var(TRUSTED) else {
        let certified = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
        let key = certified.signing_key.serialize_der();
        let url = publish_over_tls(certified.cert.der().clone(), key, keys).await;
        let host = host(Jwt::from_url(&url).unwrap().audience("umbel")).await;
        let reply = ask(&host, &get("/chat/threads"), &[("authorization", &given)]).await;
        assert_eq!(reply.status(), StatusCode::SERVICE_UNAVAILABLE, "nobody vouches for it");
        assert_eq!(reply.json().await["error"]["code"], "AUTH_UNAVAILABLE");
        // Whom a process trusts is settled when it begins, so another one asks with the certificate among them.
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("trusted.pem");
        std::fs::write(&file, certified.cert.pem()).unwrap();
        std::fs::write(folder.path().join("key.pem"), certified.signing_key.serialize_pem()).unwrap();
        let mut trusting = tokio::process::Command::new(std::env::current_exe().unwrap());
        trusting
            .args(["--exact", name, "--nocapture"])
            .env("SSL_CERT_FILE", &file)
            .env(TRUSTED, folder.path());
        let output = within(trusting.output()).await.unwrap();
        let told = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(output.status.success() && told.contains("1 passed"), "{told}");
        return;
    };
    let read = |name: &str| std::fs::read_to_string(std::path::Path::new(&folder).join(name)).unwrap();
    let signing_key = rcgen::KeyPair::from_pem(&read("key.pem")).unwrap();
    let certificate = CertificateDer::from_pem_slice(read("trusted.pem").as_bytes()).unwrap();
    let url = publish_over_tls(certificate, signing_key.serialize_der(), keys).await;
    let host = host(Jwt::from_url(&url).unwrap().audience("umbel")).await;
    let reply = ask(&host, &get("/chat/threads"), &[("authorization", &given)]).await;
    assert_eq!(reply.status(), StatusCode::OK);
}

#[test]
fn keys_come_over_https_only_but_for_those_of_this_machine() {
    for url in ["http://login.example/keys", "ftp://login.example", "keys.json", "http://127.0.0.1.example/"]
    {
        assert!(Jwt::from_url(url).is_err(), "{url}");
    }
    for url in ["https://login.example/keys", "http://localhost:1/keys", "http://[::1]:1/"] {
        assert!(Jwt::from_url(url).is_ok(), "{url}");
    }
}
