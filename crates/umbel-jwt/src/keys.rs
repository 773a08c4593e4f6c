//! Public keys of whoever issues tokens, as a JSON Web Key Set (RFC 7517), and the signatures they check.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ring::signature::{
    ECDSA_P256_SHA256_FIXED, ED25519, RSA_PKCS1_2048_8192_SHA256, RsaPublicKeyComponents, UnparsedPublicKey,
};
use serde::Deserialize;
use serde_json::Value;
use umbel_core::{Error, ErrorKind, Result};

/// How many keys of a set are looked at.
const MANY: usize = 100;

/// How a token may be signed. Signatures with a shared secret are not among them, nor is none at all: who has a public key
/// must not be able to sign.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Algorithm {
    Rs256,
    Es256,
    EdDsa,
}

impl Algorithm {
    /// By its name in tokens and keys.
    pub(crate) fn named(name: &str) -> Option<Self> {
        match name {
            "RS256" => Some(Self::Rs256),
            "ES256" => Some(Self::Es256),
            "EdDSA" | "Ed25519" => Some(Self::EdDsa),
            _ => None,
        }
    }
}

/// Keys that check signatures.
#[derive(Debug, Default)]
pub struct KeySet(Vec<Key>);

#[derive(Debug)]
struct Key {
    id: Option<String>,
    public: Public,
}

#[derive(Debug)]
enum Public {
    Rsa { n: Vec<u8>, e: Vec<u8> },
    P256(Vec<u8>),
    Ed25519(Vec<u8>),
}

/// A key as it is written. What is not needed is passed over.
#[derive(Deserialize)]
struct Jwk {
    kty: String,
    #[serde(rename = "use")]
    purpose: Option<String>,
    key_ops: Option<Vec<String>>,
    alg: Option<String>,
    kid: Option<String>,
    crv: Option<String>,
    n: Option<String>,
    e: Option<String>,
    x: Option<String>,
    y: Option<String>,
}

impl KeySet {
    /// Reads a key set. Keys for other purposes and of other kinds are passed over; one of ours must be left.
    pub fn parse(json: &str) -> Result<Self> {
        #[derive(Deserialize)]
        struct Set {
            keys: Vec<Value>,
        }
        let refuse = |message: String| Error::new(ErrorKind::Build, message);
        let set: Set = serde_json::from_str(json)
            .map_err(|error| refuse(format!("that is no key set, `{{\"keys\": […]}}`: {error}")))?;
        let jwks = set.keys.into_iter().take(MANY).filter_map(|key| serde_json::from_value(key).ok());
        let keys: Vec<Key> = jwks.filter_map(Key::of).collect();
        if keys.is_empty() {
            let kinds = "RSA of 2048 bits or more (RS256), P-256 (ES256) or Ed25519 (EdDSA)";
            return Err(refuse(format!("the key set has no key that can be used: it needs one of {kinds}")));
        }
        Ok(Self(keys))
    }

    /// Whether there is a key of that name, or one without a name that may be it.
    pub fn knows(&self, id: &str) -> bool {
        self.0.iter().any(|key| key.id.as_deref().is_none_or(|own| own == id))
    }

    /// Whether one of the keys that may be meant says that the signature is right.
    pub(crate) fn verifies(
        &self,
        algorithm: Algorithm,
        id: Option<&str>,
        message: &[u8],
        signature: &[u8],
    ) -> bool {
        let is_meant = |key: &&Key| {
            let named = id.is_none() || key.id.is_none() || key.id.as_deref() == id;
            named && key.public.algorithm() == algorithm
        };
        self.0.iter().filter(is_meant).any(|key| key.public.verifies(message, signature))
    }
}

impl Key {
    /// The key, if it is one that checks signatures in a way we know.
    fn of(jwk: Jwk) -> Option<Self> {
        let may_verify = jwk.purpose.as_deref().is_none_or(|purpose| purpose == "sig")
            && jwk.key_ops.as_ref().is_none_or(|ops| ops.iter().any(|op| op == "verify"));
        let bytes = |field: &Option<String>| URL_SAFE_NO_PAD.decode(field.as_deref()?).ok();
        let public = match (jwk.kty.as_str(), jwk.crv.as_deref()) {
            ("RSA", _) => {
                let whole = |bytes: Vec<u8>| bytes.into_iter().skip_while(|byte| *byte == 0).collect();
                let n: Vec<u8> = whole(bytes(&jwk.n)?);
                // Shorter ones are refused by every check, so they must not pass for a key.
                (n.len() >= 256).then_some(())?;
                Public::Rsa { n, e: whole(bytes(&jwk.e)?) }
            }
            ("EC", Some("P-256")) => {
                let (x, y) = (bytes(&jwk.x)?, bytes(&jwk.y)?);
                (x.len() == 32 && y.len() == 32).then(|| Public::P256([&[4][..], &x, &y].concat()))?
            }
            ("OKP", Some("Ed25519")) => {
                let point = bytes(&jwk.x).filter(|x| x.len() == 32 && !is_of_small_order(x))?;
                Public::Ed25519(point)
            }
            _ => return None,
        };
        let is_its_own = |name: &str| Algorithm::named(name) == Some(public.algorithm());
        let usable = may_verify && jwk.alg.as_deref().is_none_or(is_its_own);
        usable.then_some(Self { id: jwk.kid, public })
    }
}

/// Whether a point of the curve is one of the few that generate at most eight others. There are signatures that such a key
/// finds right for many messages, so whoever gets one into a key set could sign as anybody. The sign of `x` does not matter.
fn is_of_small_order(point: &[u8]) -> bool {
    /// The ordinates of those points but for 0, 1 and -1.
    const EIGHTH: [[u8; 32]; 2] = [
        [
            0x26, 0xe8, 0x95, 0x8f, 0xc2, 0xb2, 0x27, 0xb0, 0x45, 0xc3, 0xf4, 0x89, 0xf2, 0xef, 0x98, 0xf0,
            0xd5, 0xdf, 0xac, 0x05, 0xd3, 0xc6, 0x33, 0x39, 0xb1, 0x38, 0x02, 0x88, 0x6d, 0x53, 0xfc, 0x05,
        ],
        [
            0xc7, 0x17, 0x6a, 0x70, 0x3d, 0x4d, 0xd8, 0x4f, 0xba, 0x3c, 0x0b, 0x76, 0x0d, 0x10, 0x67, 0x0f,
            0x2a, 0x20, 0x53, 0xfa, 0x2c, 0x39, 0xcc, 0xc6, 0x4e, 0xc7, 0xfd, 0x77, 0x92, 0xac, 0x03, 0x7a,
        ],
    ];
    let mut ordinate = point.to_vec();
    if let Some(last) = ordinate.last_mut() {
        *last &= 0x7f;
    }
    let (first, rest) = ordinate.split_first().unwrap_or((&0, &[]));
    let is_all = |middle: u8, last: u8| {
        rest.split_last().is_some_and(|(end, rest)| *end == last && rest.iter().all(|byte| *byte == middle))
    };
    // 0 and 1, and what is -1, 0 and 1 modulo the prime: 2²⁵⁵ - 19.
    let is_small = *first <= 1 && is_all(0, 0);
    let is_large = (0xec..=0xee).contains(first) && is_all(0xff, 0x7f);
    is_small || is_large || EIGHTH.iter().any(|known| *known == ordinate.as_slice())
}

impl Public {
    fn algorithm(&self) -> Algorithm {
        match self {
            Self::Rsa { .. } => Algorithm::Rs256,
            Self::P256(_) => Algorithm::Es256,
            Self::Ed25519(_) => Algorithm::EdDsa,
        }
    }

    fn verifies(&self, message: &[u8], signature: &[u8]) -> bool {
        let verified = match self {
            Self::Rsa { n, e } => {
                RsaPublicKeyComponents { n, e }.verify(&RSA_PKCS1_2048_8192_SHA256, message, signature)
            }
            Self::P256(point) => {
                UnparsedPublicKey::new(&ECDSA_P256_SHA256_FIXED, point).verify(message, signature)
            }
            Self::Ed25519(point) => UnparsedPublicKey::new(&ED25519, point).verify(message, signature),
        };
        verified.is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Signatures of `eyJhbGciOiJ4In0.e30` that OpenSSL made, with their keys.
    const SIGNED: [(Algorithm, &str, &str); 3] = [
        (
            Algorithm::Rs256,
            "{\"kty\":\"RSA\",\"n\":\"2hPo9LYoUdGCAnt3whkeq8O-_dJ5oNzOSytC82z1ju132F_eRKpVab4iUEVHiOhvBJtIN4t5\
             Jw4yy1KjkVcX8HAxjSHgkmn4P8cdkka16Ma1PJflTJRAcPNdFefMw1gIjnSjdXp1zJvVcsOYXMy4abBqDAVJic_YQa\
             f3d32si4qCarJ9H8fqMwzqpkLxORgvtttwPSeBgPaBV114uLbY20VUrWnCNj8bpojzd_2WESPAac9GmWJVSnkcNjNp\
             OW-1yhxe6eSUVN1fqnbNKsa5AROWKNTDieRnqScRNxKPons0kdGtybkB3tpw49snbHVnfjH46ZqjCQTF364Zn0MseQ\
             \",\"e\":\"AQAB\"}",
            "At54kcu2IGkNKgK_PQRaTAKpgx9ivGFIIysflnv7JTlS2yC4DDabNOIVHKvKREjHrAtyVtfcCDmWmQO2kMF85tEMc5\
             QEZ82O0IuH5hGJUFr0nL_VRGwQEYCRZivXQVZIoja_WnAvg-dWujn3C5u9arXl0dHcBB9mGBowrd2B-WpAMSUo_N44\
             5qaa3T_pEqoessStmNCn9hdiNOkQDIMSnwaSPLnBJhuc9qivWZvDaqvH2YP4aOanC7Bh47Uqb_d7aG1K4-6dwS_MA_\
             LRMrlKavWoB8mkp6P3S3IMhkzjynxWo6KEWtJonDEwKC4XGqN5B3SsbmodJfLaZ8Djewf7ZQ",
        ),
        (
            Algorithm::Es256,
            "{\"kty\":\"EC\",\"x\":\"yhaKsWT9ReAPblJ_y73uS9zrDZXCzRYRPoHcENUkUws\",\"y\":\"k4Wd8-Yc67Q8wbOZLgBzYHc\
             jcOA9Sjcl9qUUlCTbGFE\",\"crv\":\"P-256\"}",
            "rhbUDkB2a9HDbypaY9EejePASkrIxd673JafvUpNollvAyDugEyFfntg42tPvBa1pXr9LorOx6VcKdwZab1t_g",
        ),
        (
            Algorithm::EdDsa,
            "{\"crv\":\"Ed25519\",\"x\":\"jkhy1fU7jv-fATMI2ibAochhiwUj-hQqOg4CkNIdfR4\",\"kty\":\"OKP\"}",
            "_EUm5_jZqdiohyAW1OOKzaity1_YPSspPR0Ybl1_-R_HIfZeqYampyy1wq5nvcYjFPnkZRwhLg5gHTXWrcp0AQ",
        ),
    ];

    #[test]
    fn signatures_of_another_library_are_right_and_changed_ones_are_not() {
        let message = b"eyJhbGciOiJ4In0.e30";
        for (algorithm, jwk, signature) in SIGNED {
            let keys = KeySet::parse(&format!("{{\"keys\": [{jwk}]}}")).unwrap();
            let signature = URL_SAFE_NO_PAD.decode(signature).unwrap();
            assert!(keys.verifies(algorithm, None, message, &signature), "{algorithm:?}");
            assert!(
                keys.verifies(algorithm, Some("any"), message, &signature),
                "a key without a name may be it"
            );
            for at in 0..signature.len() {
                let mut changed = signature.clone();
                changed[at] ^= 1;
                assert!(!keys.verifies(algorithm, None, message, &changed), "{algorithm:?} {at}");
            }
            assert!(!keys.verifies(algorithm, None, b"eyJhbGciOiJ4In0.e31", &signature));
            for other in [Algorithm::Rs256, Algorithm::Es256, Algorithm::EdDsa] {
                assert_eq!(keys.verifies(other, None, message, &signature), other == algorithm);
            }
        }
    }

    #[test]
    fn a_key_of_small_order_is_none() {
        let mut points: Vec<Vec<u8>> = Vec::new();
        for (first, middle, last) in [
            (0x00, 0x00, 0x00),
            (0x01, 0x00, 0x00),
            (0xec, 0xff, 0x7f),
            (0xed, 0xff, 0x7f),
            (0xee, 0xff, 0x7f),
        ] {
            points.push([vec![first], vec![middle; 30], vec![last]].concat());
        }
        for ordinate in
            ["JuiVj8KyJ7BFw_SJ8u-Y8NXfrAXTxjM5sTgCiG1T_AU", "xxdqcD1N2E-6PAt2DRBnDyogU_osOczGTsf9d5KsA3o"]
        {
            points.push(URL_SAFE_NO_PAD.decode(ordinate).unwrap());
        }
        let key = |point: &[u8]| {
            let x = URL_SAFE_NO_PAD.encode(point);
            KeySet::parse(&format!("{{\"keys\":[{{\"kty\":\"OKP\",\"crv\":\"Ed25519\",\"x\":\"{x}\"}}]}}"))
        };
        for point in points {
            let other = [&point[..31], &[point[31] | 0x80]].concat();
            for point in [point, other] {
                assert!(key(&point).is_err(), "{point:02x?}");
            }
        }
        // With the first of them, this would be the signature of anything.
        let neutral = [vec![1], vec![0; 31]].concat();
        let signature = [neutral.clone(), vec![0; 32]].concat();
        assert!(Public::Ed25519(neutral).verifies(b"anything", &signature));
    }
}
