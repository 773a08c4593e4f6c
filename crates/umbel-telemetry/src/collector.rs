//! Where spans and metrics go: a collector that speaks OTLP over HTTP. What it does, or does not do, is no run's business.

use std::io::Read;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use http::header::CONTENT_TYPE;
use http::{Request, Response, Uri};
use opentelemetry_http::{HttpClient, HttpError};
use reqwest::blocking::Client;
use rustls::ClientConfig;
use rustls::crypto::ring;
use rustls_platform_verifier::Verifier;
use umbel_core::{Error, ErrorKind, Result};

/// The most bytes of an answer that are read.
const ANSWER_BYTES: u64 = 64 << 10;

/// Speaks with a collector, on the thread of whoever exports.
#[derive(Debug)]
pub(crate) struct Collector {
    client: Client,
    /// It was said that nothing can be delivered.
    is_failing: AtomicBool,
}

impl Collector {
    pub(crate) fn new(timeout: Duration) -> Result<Self> {
        let failed = |why: &str| Error::new(ErrorKind::Build, format!("no connections can be made: {why}"));
        // Such a client cannot be made on a thread that serves async tasks.
        let made = thread::Builder::new().spawn(move || client(timeout)).map(thread::JoinHandle::join);
        let client = match made {
            Ok(Ok(client)) => client.map_err(|why| failed(&why))?,
            Ok(Err(_)) => return Err(failed("making one panicked")),
            Err(error) => return Err(failed(&error.to_string())),
        };
        Ok(Self { client, is_failing: AtomicBool::new(false) })
    }

    fn send(&self, request: Request<Bytes>) -> Result<Response<Bytes>, String> {
        let request = request.try_into().map_err(|error: reqwest::Error| words(&error))?;
        let mut answer = self.client.execute(request).map_err(|error| words(&error))?;
        let (status, headers) = (answer.status(), std::mem::take(answer.headers_mut()));
        if status.is_success()
            && headers.get(CONTENT_TYPE).is_some_and(|kind| kind.as_bytes().starts_with(b"text/html"))
        {
            return Err("it answers with a web page: that is no address of a collector".to_owned());
        }
        let mut body = Vec::new();
        answer.take(ANSWER_BYTES).read_to_end(&mut body).map_err(|_| "its answer broke off".to_owned())?;
        let mut response = Response::new(Bytes::from(body));
        (*response.status_mut(), *response.headers_mut()) = (status, headers);
        Ok(response)
    }

    /// Says that nothing can be delivered, once until it can.
    fn complain(&self, place: &str, why: &str) {
        if !self.is_failing.swap(true, Ordering::Relaxed) {
            tracing::warn!(
                "traces and metrics cannot be delivered to {place}: {why}. Runs go on without. This is said once, until it works \
                 again"
            );
        }
    }
}

#[async_trait]
impl HttpClient for Collector {
    async fn send_bytes(&self, request: Request<Bytes>) -> Result<Response<Bytes>, HttpError> {
        let place = place(request.uri());
        let sent = self.send(request);
        match &sent {
            Ok(answer) if answer.status().is_success() => self.is_failing.store(false, Ordering::Relaxed),
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
fn place(uri: &Uri) -> String {
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
        "it takes too long".to_owned()
    } else if std::ptr::eq(cause, error as &dyn std::error::Error) {
        "the connection failed".to_owned()
    } else {
        cause.to_string()
    }
}

fn client(timeout: Duration) -> Result<Client, String> {
    let make = || -> Result<Client, Box<dyn std::error::Error>> {
        let provider = Arc::new(ring::default_provider());
        let verifier = Arc::new(Verifier::new(provider.clone())?);
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
