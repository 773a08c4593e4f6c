//! How often one may ask: token buckets, one for each user, and one for bad tokens of each peer.

use std::collections::HashMap;
use std::hash::{BuildHasher, Hash, RandomState};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use http::{HeaderMap, StatusCode, header};
use smol_str::SmolStr;

use crate::connections::Peer;
use crate::problem::Problem;
use crate::runs::ServerLimits;

/// So many buckets are kept. Those that are full again need not be.
const MOST: usize = 16 << 10;

/// So many good tokens are remembered.
const KNOWN: usize = 16 << 10;

/// A bucket holds what may be used in so many seconds at most.
const BURST: f64 = 2.0;

/// How often one may ask.
#[derive(Debug)]
pub(crate) struct Rates {
    /// Requests of users, by the second.
    users: Buckets<SmolStr>,
    /// Bad tokens of peers, by the minute.
    guesses: Buckets<Peer>,
    /// Digests of what was good lately: who has a good token is not locked out by others who guess from the same place.
    good: Mutex<HashMap<u64, ()>>,
    hasher: RandomState,
}

impl Rates {
    pub(crate) fn new(limits: &ServerLimits) -> Self {
        let per_second = f64::from(limits.requests_per_second);
        let per_minute = f64::from(limits.bad_tokens_per_minute);
        Self {
            users: Buckets::new(per_second, per_second * BURST),
            guesses: Buckets::new(per_minute / 60.0, per_minute),
            good: Mutex::default(),
            hasher: RandomState::new(),
        }
    }

    /// Counts a request of a user.
    pub(crate) fn count_request(&self, user: &SmolStr, limits: &ServerLimits) -> Result<(), Problem> {
        let Err(wait) = self.users.take(user.clone(), Instant::now()) else { return Ok(()) };
        let message = format!(
            "you sent more than {} requests a second (`requests_per_second`): slow down",
            limits.requests_per_second
        );
        Err(Problem::too_often("TOO_MANY_REQUESTS", message, wait))
    }

    /// A problem if a peer has sent too many bad tokens to try another one.
    pub(crate) fn check_guess(&self, peer: Peer, headers: &HeaderMap) -> Result<(), Problem> {
        let Some(wait) = self.guesses.wait(&peer, Instant::now()) else { return Ok(()) };
        if self.digest(headers).is_some_and(|digest| self.lock().contains_key(&digest)) {
            return Ok(());
        }
        let message = "too many bad tokens came from your address (`bad_tokens_per_minute`): try again later";
        Err(Problem::too_often("TOO_MANY_BAD_TOKENS", message.to_owned(), wait))
    }

    /// Counts a bad token of a peer.
    pub(crate) fn count_guess(&self, peer: Peer) {
        let _ = self.guesses.take(peer, Instant::now());
    }

    /// Remembers a good token.
    pub(crate) fn note_good(&self, headers: &HeaderMap) {
        let Some(digest) = self.digest(headers) else { return };
        let mut good = self.lock();
        if good.len() >= KNOWN && !good.contains_key(&digest) {
            good.clear();
        }
        good.insert(digest, ());
    }

    fn digest(&self, headers: &HeaderMap) -> Option<u64> {
        Some(self.hasher.hash_one(headers.get(header::AUTHORIZATION)?.as_bytes()))
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<u64, ()>> {
        self.good.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Token buckets by name.
#[derive(Debug)]
pub(crate) struct Buckets<K> {
    per_second: f64,
    most: f64,
    levels: Mutex<HashMap<K, Bucket>>,
}

#[derive(Clone, Copy, Debug)]
struct Bucket {
    level: f64,
    at: Instant,
}

impl Bucket {
    fn filled(self, per_second: f64, most: f64, now: Instant) -> Self {
        let added = now.saturating_duration_since(self.at).as_secs_f64() * per_second;
        Self { level: (self.level + added).min(most), at: now.max(self.at) }
    }
}

impl<K: Eq + Hash> Buckets<K> {
    pub(crate) fn new(per_second: f64, most: f64) -> Self {
        // One at least, so that whoever waits gets through.
        Self { per_second, most: most.max(1.0), levels: Mutex::default() }
    }

    /// Takes one out. If there is none, gives how long it takes until there is.
    pub(crate) fn take(&self, key: K, now: Instant) -> Result<(), Duration> {
        let mut levels = self.levels.lock().unwrap_or_else(PoisonError::into_inner);
        let bucket = self.bucket(&mut levels, key, now);
        if bucket.level < 1.0 {
            return Err(self.until_one(*bucket));
        }
        bucket.level -= 1.0;
        Ok(())
    }

    /// Takes that much out, even if the bucket is in debt then.
    pub(crate) fn spend(&self, key: K, amount: f64, now: Instant) {
        let mut levels = self.levels.lock().unwrap_or_else(PoisonError::into_inner);
        self.bucket(&mut levels, key, now).level -= amount;
    }

    /// The bucket of a key, filled up to now.
    fn bucket<'a>(&self, levels: &'a mut HashMap<K, Bucket>, key: K, now: Instant) -> &'a mut Bucket {
        if levels.len() >= MOST && !levels.contains_key(&key) {
            levels.retain(|_, bucket| bucket.filled(self.per_second, self.most, now).level < self.most);
            if levels.len() >= MOST {
                levels.clear();
            }
        }
        let bucket = levels.entry(key).or_insert(Bucket { level: self.most, at: now });
        *bucket = bucket.filled(self.per_second, self.most, now);
        bucket
    }

    /// How long it takes until there is one, if there is none.
    pub(crate) fn wait(&self, key: &K, now: Instant) -> Option<Duration> {
        let levels = self.levels.lock().unwrap_or_else(PoisonError::into_inner);
        let bucket = levels.get(key)?.filled(self.per_second, self.most, now);
        (bucket.level < 1.0).then(|| self.until_one(bucket))
    }

    fn until_one(&self, bucket: Bucket) -> Duration {
        Duration::try_from_secs_f64((1.0 - bucket.level) / self.per_second).unwrap_or(Duration::MAX)
    }
}

impl Problem {
    /// Something is done too often.
    pub(crate) fn too_often(code: &str, message: String, wait: Duration) -> Self {
        let problem = Self::new(StatusCode::TOO_MANY_REQUESTS, code, message);
        Self { retry_after: Some(wait.as_secs().saturating_add(1).min(3_600)), ..problem }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bucket_runs_dry_and_fills_again() {
        let buckets = Buckets::new(10.0, 20.0);
        let now = Instant::now();
        let at = |millis: u64| now + Duration::from_millis(millis);
        assert!((0..20).all(|_| buckets.take("ann", now).is_ok()));
        assert_eq!(buckets.take("ann", now), Err(Duration::from_millis(100)));
        assert_eq!(buckets.wait(&"ann", now), Some(Duration::from_millis(100)));
        assert!(buckets.take("bob", now).is_ok());
        assert!(buckets.take("ann", at(100)).is_ok() && buckets.take("ann", at(150)).is_err());
        // A clock that goes back gives nothing and takes nothing.
        assert!(buckets.take("ann", now).is_err());
        assert!(buckets.take("ann", at(200)).is_ok());
        assert_eq!(buckets.wait(&"eve", now), None);
    }

    #[test]
    fn what_is_kept_of_them_is_bounded_and_zero_lets_some_through() {
        let buckets = Buckets::new(1.0, 2.0);
        let now = Instant::now();
        for name in 0..3 * MOST {
            assert!(buckets.take(name, now).is_ok());
        }
        assert!(buckets.levels.lock().unwrap().len() <= MOST);
        let none = Buckets::new(0.0, 0.0);
        assert!(none.take("ann", now).is_ok());
        assert_eq!(none.take("ann", now), Err(Duration::MAX));
    }
}
