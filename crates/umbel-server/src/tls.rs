//! TLS: a certificate and its key from files, and the handshake.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::ServerConfig;
use rustls::crypto::ring;
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;
use umbel_core::{Error, ErrorKind, Result};

use crate::watched::{Watched, others_may_read, read_file};

/// The protocol that is agreed on by ALPN.
const ALPN: &[u8] = b"http/1.1";

/// A certificate and its key, to serve TLS 1.2 and 1.3 with: see
/// [`Listener::tls`](crate::Listener::tls).
#[derive(Clone)]
pub struct Tls {
    key: PathBuf,
    config: Arc<Watched<ServerConfig>>,
}

impl Tls {
    /// Reads a certificate, followed by those of the authorities between it and a root, and its
    /// private key (PKCS #8, PKCS #1 or SEC1), all in PEM form. A second after one of the files
    /// changes both are read again, and handshakes from then on use them; files that cannot be read
    /// or do not belong together leave things as they were, and are told in the log.
    pub fn from_files(certificate: impl Into<PathBuf>, key: impl Into<PathBuf>) -> Result<Self> {
        let (certificate, key) = (certificate.into(), key.into());
        let (chain_file, key_file) = (certificate.clone(), key.clone());
        let config = Watched::open_all(vec![certificate, key.clone()], move || load(&chain_file, &key_file))?;
        let tls = Self { key, config };
        if let Some(path) = tls.exposed() {
            tracing::warn!("others may read the key in {0}: `chmod 600 {0}`", path.display());
        }
        Ok(tls)
    }

    /// The file of the key, if others on this machine may read it.
    pub fn exposed(&self) -> Option<&Path> {
        others_may_read(&self.key).then_some(&self.key)
    }

    /// Does the handshake, with what the files say by now.
    pub(crate) async fn handshake<S>(&self, stream: S) -> std::io::Result<TlsStream<S>>
    where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        TlsAcceptor::from(self.config.get().await).accept(stream).await
    }
}

/// Reads both files.
fn load(certificate: &Path, key: &Path) -> Result<ServerConfig> {
    let refuse = |message: String| Error::new(ErrorKind::Build, message);
    let chain = read_file(certificate, |text| {
        let chain = CertificateDer::pem_slice_iter(text.as_bytes()).collect::<Result<Vec<_>, pem::Error>>();
        let chain = chain.map_err(|error| refuse(format!("it is not in PEM form: {error}")))?;
        if chain.is_empty() {
            return Err(refuse("there is no certificate in it, in PEM form".to_owned()));
        }
        Ok(chain)
    })?;
    let private = read_file(key, |text| {
        // What is wrong with a secret is told without what it says.
        let none = "there is no private key in it, in PEM form and not encrypted";
        PrivateKeyDer::from_pem_slice(text.as_bytes()).map_err(|_| refuse(none.to_owned()))
    })?;
    let (certificate, key) = (certificate.display(), key.display());
    let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .and_then(|builder| builder.with_no_client_auth().with_single_cert(chain, private));
    let mut config = config.map_err(|error| match error {
        rustls::Error::InconsistentKeys(_) => {
            refuse(format!("the key in {key} does not belong to the certificate in {certificate}"))
        }
        error => {
            refuse(format!("the certificate in {certificate} and the key in {key} are no good: {error}"))
        }
    })?;
    config.alpn_protocols = vec![ALPN.to_vec()];
    Ok(config)
}

impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Tls").field(&self.config).finish()
    }
}
