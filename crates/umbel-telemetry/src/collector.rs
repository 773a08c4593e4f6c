//! Where spans and metrics go: a collector that speaks OTLP over HTTP. What it does, or does not do, is no run's business.

use std::collections::HashMap;
use std::io::Read;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use bytes::Bytes;
use http::header::CONTENT_TYPE;
use http::{Request, Response, Uri};
use opentelemetry_http::{HttpClient, HttpError};
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceResponse;
use prost::Message;
use reqwest::blocking::Client;
use rustls::ClientConfig;
use rustls::crypto::ring;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use rustls_platform_verifier::Verifier;
use umbel_core::{Error, ErrorKind, Result};

/// The most bytes of an answer that are read.
const ANSWER_BYTES: usize = 64 << 10;

/// The port where collectors expect gRPC, which is not spoken here.
const GRPC_PORT: u16 = 4317;

/// Why an answer was not waited for any longer.
const TOO_LONG: &str = "it takes too long";

/// Speaks with a collector, on the thread of whoever exports.
#[derive(Debug)]
pub(crate) struct Collector {
    client: Client,
    timeout: Duration,
    /// Where nothing can be delivered, and why.
    failing: Mutex<HashMap<String, String>>,
}

impl Collector {
    /// One that may take so long to answer, and whose certificate may be signed by those in a file.
    pub(crate) fn new(timeout: Duration, certificate: Option<String>) -> Result<Self> {
        let failed = |why: &str| Error::new(ErrorKind::Build, format!("no connections can be made: {why}"));
        // Such a client cannot be made on a thread that serves async tasks.
        let make = move || client(timeout, certificate.as_deref());
        let made = thread::Builder::new().spawn(make).map(thread::JoinHandle::join);
        let client = match made {
            Ok(Ok(client)) => client.map_err(|why| failed(&why))?,
            Ok(Err(_)) => return Err(failed("making one panicked")),
            Err(error) => return Err(failed(&error.to_string())),
        };
        Ok(Self { client, timeout, failing: Mutex::default() })
    }

    fn send(&self, request: Request<Bytes>) -> Result<Response<Bytes>, String> {
        let begun = Instant::now();
        let request = request.try_into().map_err(|error: reqwest::Error| words(&error))?;
        let mut answer = self.client.execute(request).map_err(|error| words(&error))?;
        let (status, headers) = (answer.status(), std::mem::take(answer.headers_mut()));
        if status.is_success()
            && headers.get(CONTENT_TYPE).is_some_and(|kind| kind.as_bytes().starts_with(b"text/html"))
        {
            return Err("it answers with a web page: that is no address of a collector".to_owned());
        }
        let mut response = Response::new(Bytes::from(read(answer, || begun.elapsed() > self.timeout)?));
        (*response.status_mut(), *response.headers_mut()) = (status, headers);
        Ok(response)
    }

    /// Says that nothing can be delivered: once for each place until it can, and once for all if it is for the same reason.
    fn complain(&self, place: &Uri, why: &str) {
        let shown = shown(place);
        let mut failing = self.failing.lock().unwrap_or_else(PoisonError::into_inner);
        let is_said = failing.contains_key(&shown) || failing.values().any(|said| said == why);
        failing.insert(shown.clone(), why.to_owned());
        if is_said {
            return;
        }
        let hint = if place.port_u16() == Some(GRPC_PORT) {
            ". It is asked over HTTP, mostly at port 4318"
        } else {
            ""
        };
        tracing::warn!(
            "traces and metrics cannot be delivered to {shown}: {why}{hint}. Runs go on without. This is said once, until it \
             works again"
        );
    }

    /// All was delivered there.
    fn forgive(&self, place: &Uri) {
        self.failing.lock().unwrap_or_else(PoisonError::into_inner).remove(&shown(place));
    }
}

/// The beginning of an answer, if it comes in time. Each piece could come just in time, and the last one never.
fn read(mut answer: impl Read, is_late: impl Fn() -> bool) -> Result<Vec<u8>, String> {
    let (mut body, mut piece) = (Vec::new(), [0; 4096]);
    while body.len() < ANSWER_BYTES {
        let broken = |_| if is_late() { TOO_LONG } else { "its answer broke off" };
        let count = answer.read(&mut piece).map_err(broken).map_err(str::to_owned)?;
        body.extend(piece.iter().take(count));
        if count == 0 {
            break;
        }
        if is_late() {
            return Err(TOO_LONG.to_owned());
        }
    }
    Ok(body)
}

/// How many spans or points a collector refused of those that it took otherwise. It says so in the same form for both.
fn refused(answer: &Bytes) -> i64 {
    let answer = ExportTraceServiceResponse::decode(answer.clone()).ok();
    answer.and_then(|answer| answer.partial_success).map_or(0, |partial| partial.rejected_spans)
}

#[async_trait]
impl HttpClient for Collector {
    async fn send_bytes(&self, request: Request<Bytes>) -> Result<Response<Bytes>, HttpError> {
        let place = request.uri().clone();
        let sent = self.send(request);
        match &sent {
            Ok(answer) if answer.status().is_success() => match refused(answer.body()) {
                // It is of no use to send them again.
                count @ 1.. => {
                    self.complain(&place, &format!("it refuses some of it, {count} the first time"));
                }
                _ => self.forgive(&place),
            },
            // Whether it is worth another try, and when, follows from the status and its headers.
            Ok(answer) => {
                self.complain(&place, &format!("it answers with the status {}", answer.status()));
            }
            Err(why) => self.complain(&place, why),
        }
        sent.map_err(HttpError::from)
    }
}

/// An address for people, without a password that may stand in it.
fn shown(uri: &Uri) -> String {
    let host = uri.host().unwrap_or_default();
    let port = uri.port_u16().map(|port| format!(":{port}")).unwrap_or_default();
    format!("{}://{host}{port}{}", uri.scheme_str().unwrap_or("http"), uri.path())
}

/// What went wrong, down to the cause. Addresses may have keys in them, so they are left out.
fn words(error: &reqwest::Error) -> String {
    let mut cause: &dyn std::error::Error = error;
    while let Some(deeper) = cause.source() {
        cause = deeper;
    }
    if error.is_timeout() {
        TOO_LONG.to_owned()
    } else if std::ptr::eq(cause, error as &dyn std::error::Error) {
        "the connection failed".to_owned()
    } else {
        cause.to_string()
    }
}

fn client(timeout: Duration, certificate: Option<&str>) -> Result<Client, String> {
    let make = || -> Result<Client, Box<dyn std::error::Error>> {
        let provider = Arc::new(ring::default_provider());
        let trusted = certificate.map(certificates).transpose()?.unwrap_or_default();
        let verifier = Arc::new(Verifier::new_with_extra_roots(trusted, provider.clone())?);
        let tls = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()?
            .dangerous()
            .with_custom_certificate_verifier(verifier)
            .with_no_client_auth();
        let client = Client::builder()
            .tls_backend_preconfigured(tls)
            // Keys are for the address they were given for.
            .redirect(reqwest::redirect::Policy::none())
            .timeout(timeout)
            .user_agent(concat!("umbel/", env!("CARGO_PKG_VERSION")));
        Ok(client.build()?)
    };
    make().map_err(|error| error.to_string())
}

/// The certificates in a file.
fn certificates(path: &str) -> Result<Vec<CertificateDer<'static>>, String> {
    let read = CertificateDer::pem_file_iter(path).and_then(Iterator::collect::<Result<Vec<_>, _>>);
    match read {
        Ok(found) if !found.is_empty() => Ok(found),
        Ok(_) => Err(format!("there is no certificate in {path}")),
        Err(error) => Err(format!("the certificates in {path} cannot be read: {error}")),
    }
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader, Write};
    use std::net::{SocketAddr, TcpListener};

    use rustls::pki_types::PrivateKeyDer;
    use rustls::{ServerConfig, ServerConnection, StreamOwned};

    use super::*;

    /// A collector behind TLS that takes what it gets, and its certificate.
    fn tls() -> (SocketAddr, String) {
        let made = rcgen::generate_simple_self_signed(["127.0.0.1".to_owned()]).unwrap();
        let key = PrivateKeyDer::try_from(made.signing_key.serialize_der()).unwrap();
        let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![made.cert.der().clone()], key)
            .unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let (address, config) = (listener.local_addr().unwrap(), Arc::new(config));
        thread::spawn(move || {
            for stream in listener.incoming() {
                let connection = ServerConnection::new(config.clone()).unwrap();
                let mut stream = BufReader::new(StreamOwned::new(connection, stream.unwrap()));
                let mut line = String::new();
                // Who does not trust the certificate says nothing more.
                while stream.read_line(&mut line).is_ok_and(|count| count > 0) && line != "\r\n" {
                    line.clear();
                }
                let _ = stream.get_mut().write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n");
            }
        });
        (address, made.cert.pem())
    }

    #[test]
    fn a_certificate_counts_if_the_system_or_a_named_file_vouches_for_it() {
        let (address, pem) = tls();
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("collector.pem");
        std::fs::write(&file, pem).unwrap();
        let send = |certificate: Option<String>| {
            let collector = Collector::new(Duration::from_secs(20), certificate).unwrap();
            let request = Request::post(format!("https://{address}/v1/traces")).body(Bytes::new()).unwrap();
            collector.send(request).map(|answer| answer.status().as_u16())
        };
        let refused = send(None).unwrap_err();
        assert!(refused.contains("certificate"), "{refused}");
        assert_eq!(send(Some(file.display().to_string())), Ok(200));
    }

    #[test]
    fn a_file_without_certificates_is_refused_with_its_name() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("empty.pem");
        std::fs::write(&file, "nothing").unwrap();
        for path in [file, folder.path().join("missing.pem")] {
            let path = path.display().to_string();
            let error = Collector::new(Duration::from_secs(1), Some(path.clone())).unwrap_err();
            assert!(error.message().contains(&path), "{}", error.message());
        }
    }
}
