//! Credentials encrypted at rest.
//!
//! Each is sealed with XChaCha20-Poly1305 under a key with a name. Whose it is belongs to what is sealed, so a row that
//! is moved to another user does not open. Keys never touch the database.

use std::fmt;
use std::path::Path;
use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use chacha20poly1305::aead::{Aead, Generate, KeyInit, Payload};
use chacha20poly1305::{XChaCha20Poly1305, XNonce};
use umbel_core::store::refuse_nul;
use umbel_core::{Credential, Error, ErrorKind, Result};

use crate::entries::{from_json, to_json};

/// Where [`open`](crate::open) looks for the keys of credentials.
pub const KEYS_VARIABLE: &str = "UMBEL_CREDENTIAL_KEYS";
/// Where [`open`](crate::open) looks for the path of a file with them.
pub const KEYS_FILE_VARIABLE: &str = "UMBEL_CREDENTIAL_KEYS_FILE";

/// Bytes of a nonce, which stand before what was sealed.
const NONCE: usize = 24;

/// A key, with the name that is stored beside what it protects.
#[derive(Clone)]
pub struct Key {
    id: String,
    secret: [u8; 32],
}

impl Key {
    /// A key of 32 random bytes.
    pub fn new(id: impl Into<String>, secret: [u8; 32]) -> Self {
        Self { id: id.into(), secret }
    }

    /// A new key of that name, as it stands in a variable or a file: `name:base64`.
    pub fn generate(id: &str) -> Result<String> {
        let secret = chacha20poly1305::Key::try_generate().map_err(|error| no_randomness(&error))?;
        Ok(format!("{id}:{}", STANDARD.encode(secret)))
    }

    /// Its name.
    pub fn id(&self) -> &str {
        &self.id
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Key({}, …)", self.id)
    }
}

/// The keys of credentials: today's, and older ones that some are still sealed with.
///
/// To change the key, put a new one first, leave the old one in place, and call `rotate_credentials`; then the old one
/// can go.
#[derive(Clone)]
pub struct Keys(Arc<dyn Fn(Option<&str>) -> Result<Option<Key>> + Send + Sync>);

impl Keys {
    /// These keys. The first one is today's.
    pub fn new(keys: impl IntoIterator<Item = Key>) -> Result<Self> {
        let keys: Vec<Key> = keys.into_iter().collect();
        if keys.is_empty() {
            return Err(bad("there is no key among them"));
        }
        Ok(Self::from_fn(move |id| {
            let fits = |key: &&Key| id.is_none_or(|id| key.id == id);
            Ok(keys.iter().find(fits).cloned())
        }))
    }

    /// Keys that a function gives: today's for `None`, or the one of that name. It is asked for each credential, so it
    /// should remember what took it long.
    pub fn from_fn(find: impl Fn(Option<&str>) -> Result<Option<Key>> + Send + Sync + 'static) -> Self {
        Self(Arc::new(find))
    }

    /// Keys from text: `name:base64` of 32 bytes each, with white space or commas between. The first is today's.
    pub fn parse(text: &str) -> Result<Self> {
        let words = text.split(|c: char| c.is_whitespace() || c == ',').filter(|word| !word.is_empty());
        let keys = words.map(|word| {
            let (id, secret) = word.split_once(':').ok_or_else(|| bad("a key has no name before a `:`"))?;
            let secret = STANDARD.decode(secret).ok().and_then(|bytes| <[u8; 32]>::try_from(bytes).ok());
            let secret = secret.ok_or_else(|| bad(&format!("key `{id}` is not 32 bytes in base64")))?;
            Ok(Key::new(id, secret))
        });
        Self::new(keys.collect::<Result<Vec<_>>>()?)
    }

    /// Keys from a file that holds them as [`Keys::parse`] wants them.
    pub fn from_file(path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref();
        let text = std::fs::read_to_string(path).map_err(|error| {
            bad(&format!("{} cannot be read: {error}", path.display())).with_source(error)
        })?;
        Self::parse(&text)
    }

    /// Keys from [`KEYS_VARIABLE`] or the file that [`KEYS_FILE_VARIABLE`] names; `None` if neither is set.
    pub fn from_env() -> Result<Option<Self>> {
        match (std::env::var(KEYS_VARIABLE), std::env::var(KEYS_FILE_VARIABLE)) {
            (Ok(text), _) => Self::parse(&text).map(Some),
            (_, Ok(path)) => Self::from_file(path).map(Some),
            _ => Ok(None),
        }
    }

    /// Today's key.
    pub fn current(&self) -> Result<Key> {
        (self.0)(None)?.ok_or_else(|| bad("there is no key for today"))
    }

    pub(crate) fn seal(&self, owner: &Owner, credential: &Credential) -> Result<Sealed> {
        let key = self.current()?;
        let nonce = XNonce::try_generate().map_err(|error| no_randomness(&error))?;
        let secret = to_json(credential.expose())?;
        let payload = Payload { msg: secret.as_bytes(), aad: &owner.bound_to(&key.id) };
        let sealed = XChaCha20Poly1305::new(&key.secret.into()).encrypt(&nonce, payload);
        let sealed = sealed
            .map_err(|_| Error::new(ErrorKind::InvalidInput, "a credential is too long to be encrypted"))?;
        Ok(Sealed { key_id: key.id, bytes: [nonce.as_slice(), &sealed].concat() })
    }

    pub(crate) fn open(&self, owner: &Owner, sealed: &Sealed) -> Result<Credential> {
        let id = &sealed.key_id;
        let key = (self.0)(Some(id))?.ok_or_else(|| {
            bad(&format!(
                "credential `{}` is encrypted with key `{id}`, which is not among the keys",
                owner.name
            ))
        })?;
        let damaged = || {
            let message = format!("credential `{}` cannot be decrypted with key `{id}`", owner.name);
            Error::new(ErrorKind::Corrupt, message)
        };
        let (nonce, bytes) = sealed.bytes.split_at_checked(NONCE).ok_or_else(damaged)?;
        let nonce = XNonce::try_from(nonce).map_err(|_| damaged())?;
        let payload = Payload { msg: bytes, aad: &owner.bound_to(&key.id) };
        let secret =
            XChaCha20Poly1305::new(&key.secret.into()).decrypt(&nonce, payload).map_err(|_| damaged())?;
        let secret = String::from_utf8(secret).map_err(|_| damaged())?;
        Ok(Credential::new(from_json::<serde_json::Value>("a credential", &secret)?))
    }
}

impl fmt::Debug for Keys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Keys(…)")
    }
}

/// The keys, or the error of a store that has none.
pub(crate) fn keys_or_refuse(keys: Option<&Keys>) -> Result<&Keys> {
    keys.ok_or_else(|| {
        let message = format!(
            "credentials are stored encrypted only, and there is no key: set {KEYS_VARIABLE} or {KEYS_FILE_VARIABLE}, or give keys when the store is opened"
        );
        Error::new(ErrorKind::Store, message)
    })
}

/// Whose a credential is.
#[derive(Clone, Debug)]
pub(crate) struct Owner {
    pub(crate) app: String,
    pub(crate) user: String,
    pub(crate) name: String,
}

impl Owner {
    pub(crate) fn new(app: &str, user: &str, name: &str) -> Result<Self> {
        for (what, text) in [("app", app), ("user", user), ("name", name)] {
            refuse_nul(&format!("{what} of a credential"), text)?;
        }
        let [app, user, name] = [app, user, name].map(str::to_owned);
        Ok(Self { app, user, name })
    }

    /// What is sealed along, so that it opens nowhere else. No part has a NUL, so that the parts stay apart.
    fn bound_to(&self, key: &str) -> Vec<u8> {
        [&self.app, &self.user, &self.name, key].join("\0").into_bytes()
    }
}

/// A nonce and what was encrypted, with the name of the key.
#[derive(Clone, Debug)]
pub(crate) struct Sealed {
    pub(crate) key_id: String,
    pub(crate) bytes: Vec<u8>,
}

fn bad(what: &str) -> Error {
    Error::new(ErrorKind::InvalidInput, format!("the keys of credentials cannot be used: {what}"))
}

fn no_randomness(error: &dyn fmt::Display) -> Error {
    Error::new(ErrorKind::Store, format!("the system gives no random bytes: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn owner(user: &str) -> Owner {
        Owner::new("app", user, "mail").unwrap()
    }

    #[test]
    fn what_is_sealed_opens_for_its_owner_alone() {
        let keys = Keys::parse(&Key::generate("k1").unwrap()).unwrap();
        let secret = Credential::new("s3cret");
        let sealed = keys.seal(&owner("ann"), &secret).unwrap();
        assert_eq!(keys.open(&owner("ann"), &sealed).unwrap(), secret);
        assert!(!sealed.bytes.windows(6).any(|bytes| bytes == b"s3cret"));
        assert_ne!(keys.seal(&owner("ann"), &secret).unwrap().bytes, sealed.bytes, "a nonce is used once");
        assert_eq!(keys.open(&owner("bob"), &sealed).unwrap_err().kind(), ErrorKind::Corrupt);
        for length in [0, NONCE - 1, NONCE, sealed.bytes.len() - 1] {
            let cut = Sealed { bytes: sealed.bytes[..length].to_vec(), ..sealed.clone() };
            assert_eq!(keys.open(&owner("ann"), &cut).unwrap_err().kind(), ErrorKind::Corrupt);
        }
    }

    #[test]
    fn an_old_key_opens_and_the_first_one_seals() {
        let (old, new) = (Key::generate("old").unwrap(), Key::generate("new").unwrap());
        let sealed = Keys::parse(&old).unwrap().seal(&owner("ann"), &Credential::new(1)).unwrap();
        let both = Keys::parse(&format!("{new},\n{old}")).unwrap();
        assert_eq!(both.open(&owner("ann"), &sealed).unwrap(), Credential::new(1));
        assert_eq!(both.seal(&owner("ann"), &Credential::new(1)).unwrap().key_id, "new");
        let error = Keys::parse(&new).unwrap().open(&owner("ann"), &sealed).unwrap_err();
        assert!(error.message().contains("`old`"), "{error}");
    }

    #[test]
    fn bad_keys_are_refused_with_words_and_without_the_key() {
        for text in ["", "nonsense", "k:!!!!", "k:c2hvcnQ=", " , "] {
            let error = Keys::parse(text).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidInput);
            assert!(!error.message().contains("c2hvcnQ"), "{error}");
        }
        assert!(Keys::from_file("/nowhere/at/all").is_err());
        let key = Key::new("k", [7; 32]);
        assert!(!format!("{key:?} {:?}", Keys::new([key.clone()]).unwrap()).contains('7'));
    }
}
