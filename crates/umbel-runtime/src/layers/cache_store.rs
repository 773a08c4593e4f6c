//! Where a cache keeps its answers: the contract, and a store in memory.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::hash::{BuildHasherDefault, Hasher};
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use siphasher::sip128::SipHasher13;
use smol_str::SmolStr;
use umbel_core::{Deadline, Part, Result, Work};

/// What a call is known by in a cache: the tool, the digest of its schema, the scope and the arguments.
#[derive(Clone, Debug)]
pub struct CacheKey {
    tool: SmolStr,
    text: String,
    digest: u128,
}

impl CacheKey {
    /// The key of a call that is described by `text` in full.
    pub(super) fn new(tool: SmolStr, text: String) -> Self {
        let digest = digest(&text);
        Self { tool, text, digest }
    }

    /// All that makes the call what it is, as canonical JSON.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// The digest of the text. The same for every process.
    pub fn digest(&self) -> u128 {
        self.digest
    }
}

/// A short form for stores that are addressed by text: `tool:NAME:DIGEST`.
impl fmt::Display for CacheKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "tool:{}:{:032x}", self.tool, self.digest)
    }
}

/// The digest of a text. It needs no secret: an answer is given only to a call whose whole text it was stored with.
pub(super) fn digest(text: &str) -> u128 {
    SipHasher13::new().hash(text.as_bytes()).as_u128()
}

/// An answer that is kept, with the call that it answers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CachedAnswer {
    /// The text of the call's key. Whoever is given an answer compares it.
    pub request: String,
    /// What the tool gave.
    pub value: Value,
    /// Media that belong to it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub parts: Vec<Part>,
}

impl CachedAnswer {
    /// About how many bytes it takes.
    fn size(&self) -> usize {
        let mut media = Count(0);
        // Counting cannot fail, and a part that cannot be written has no media to count.
        let _ = serde_json::to_writer(&mut media, &self.parts);
        size_of::<Self>() + self.request.len() + size_of_value(&self.value) + media.0
    }
}

fn size_of_value(value: &Value) -> usize {
    size_of::<Value>()
        + match value {
            Value::Null | Value::Bool(_) | Value::Number(_) => 0,
            Value::String(text) => text.len(),
            Value::Array(items) => items.iter().map(size_of_value).sum(),
            // A field has a hash and a slot besides its key.
            Value::Object(object) => {
                object.iter().map(|(key, value)| 48 + key.len() + size_of_value(value)).sum()
            }
        }
}

struct Count(usize);

impl io::Write for Count {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0 += bytes.len();
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Where a cache keeps its answers.
pub trait CacheStore: Send + Sync + fmt::Debug {
    /// The answer that is kept under this key, if it is not too old.
    fn get<'a>(&'a self, key: &'a CacheKey) -> Work<'a, Result<Option<Arc<CachedAnswer>>>>;

    /// Keeps an answer for so long, for good with [`Duration::MAX`]. Gives whether it was taken: one that is too large, or
    /// that is to be kept for no time at all, is not.
    fn put<'a>(
        &'a self,
        key: &'a CacheKey,
        answer: Arc<CachedAnswer>,
        ttl: Duration,
    ) -> Work<'a, Result<bool>>;

    /// Forgets all answers.
    fn clear(&self) -> Work<'_, Result<()>>;
}

/// A shared store is a store.
impl<S: CacheStore + ?Sized> CacheStore for Arc<S> {
    fn get<'a>(&'a self, key: &'a CacheKey) -> Work<'a, Result<Option<Arc<CachedAnswer>>>> {
        (**self).get(key)
    }

    fn put<'a>(
        &'a self,
        key: &'a CacheKey,
        answer: Arc<CachedAnswer>,
        ttl: Duration,
    ) -> Work<'a, Result<bool>> {
        (**self).put(key, answer, ttl)
    }

    fn clear(&self) -> Work<'_, Result<()>> {
        (**self).clear()
    }
}

/// Answers in memory: at most so many, and so many bytes of them. The one that was not used for longest goes first.
#[derive(Debug)]
pub struct MemoryCache {
    max_entries: usize,
    max_bytes: usize,
    answers: Mutex<Answers>,
}

#[derive(Debug, Default)]
struct Answers {
    by_digest: HashMap<u128, Kept, BuildHasherDefault<Digests>>,
    /// The same in the order of their last use.
    by_use: BTreeMap<u64, u128>,
    /// Counts uses.
    uses: u64,
    bytes: usize,
}

/// Hashes digests: they are that already.
#[derive(Debug, Default)]
struct Digests(u64);

impl Hasher for Digests {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = self.0.rotate_left(8) ^ u64::from(*byte);
        }
    }

    #[allow(clippy::cast_possible_truncation)]
    fn write_u128(&mut self, digest: u128) {
        self.0 = digest as u64;
    }
}

#[derive(Debug)]
struct Kept {
    answer: Arc<CachedAnswer>,
    bytes: usize,
    expires: Deadline,
    used: u64,
}

impl Default for MemoryCache {
    fn default() -> Self {
        Self { max_entries: 1_000, max_bytes: 16 << 20, answers: Mutex::default() }
    }
}

impl MemoryCache {
    /// A store of at most 1,000 answers and 16 MiB.
    pub fn new() -> Self {
        Self::default()
    }

    /// At most so many answers.
    pub fn entries(mut self, max: usize) -> Self {
        self.max_entries = max;
        self
    }

    /// At most so many bytes, about.
    pub fn bytes(mut self, max: usize) -> Self {
        self.max_bytes = max;
        self
    }

    /// How many answers there are; some may be too old to be given.
    pub fn len(&self) -> usize {
        self.lock().by_digest.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn lock(&self) -> MutexGuard<'_, Answers> {
        self.answers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Answers {
    fn get(&mut self, digest: u128) -> Option<Arc<CachedAnswer>> {
        let kept = self.by_digest.get_mut(&digest)?;
        if kept.expires.is_past() {
            self.remove(digest);
            return None;
        }
        if kept.used != self.uses {
            self.by_use.remove(&kept.used);
            self.uses += 1;
            kept.used = self.uses;
            self.by_use.insert(kept.used, digest);
        }
        Some(kept.answer.clone())
    }

    fn put(&mut self, digest: u128, answer: Arc<CachedAnswer>, bytes: usize, expires: Deadline) {
        self.remove(digest);
        self.uses += 1;
        self.by_use.insert(self.uses, digest);
        self.bytes += bytes;
        self.by_digest.insert(digest, Kept { answer, bytes, expires, used: self.uses });
    }

    fn remove(&mut self, digest: u128) {
        if let Some(kept) = self.by_digest.remove(&digest) {
            self.by_use.remove(&kept.used);
            self.bytes -= kept.bytes;
        }
    }
}

impl CacheStore for MemoryCache {
    fn get<'a>(&'a self, key: &'a CacheKey) -> Work<'a, Result<Option<Arc<CachedAnswer>>>> {
        Work::done(Ok(self.lock().get(key.digest)))
    }

    fn put<'a>(
        &'a self,
        key: &'a CacheKey,
        answer: Arc<CachedAnswer>,
        ttl: Duration,
    ) -> Work<'a, Result<bool>> {
        let bytes = answer.size();
        if ttl.is_zero() || bytes > self.max_bytes || self.max_entries == 0 {
            return Work::done(Ok(false));
        }
        let mut answers = self.lock();
        answers.put(key.digest, answer, bytes, Deadline::after(ttl));
        while (answers.bytes > self.max_bytes || answers.by_digest.len() > self.max_entries)
            && let Some((_, oldest)) = answers.by_use.first_key_value()
        {
            let oldest = *oldest;
            answers.remove(oldest);
        }
        Work::done(Ok(true))
    }

    fn clear(&self) -> Work<'_, Result<()>> {
        *self.lock() = Answers::default();
        Work::done(Ok(()))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const LONG: Duration = Duration::from_secs(60);

    fn key(name: &str) -> CacheKey {
        CacheKey::new("t".into(), name.to_owned())
    }

    async fn put(cache: &MemoryCache, name: &str, value: Value, ttl: Duration) -> bool {
        let answer = Arc::new(CachedAnswer { request: name.to_owned(), value, parts: Vec::new() });
        cache.put(&key(name), answer, ttl).await.unwrap()
    }

    async fn get(cache: &MemoryCache, name: &str) -> Option<Value> {
        cache.get(&key(name)).await.unwrap().map(|answer| answer.value.clone())
    }

    #[tokio::test]
    async fn the_answer_that_was_not_used_for_longest_goes_first() {
        let cache = MemoryCache::new().entries(2);
        for name in ["a", "b"] {
            assert!(put(&cache, name, json!(name), LONG).await);
        }
        assert_eq!(get(&cache, "a").await, Some(json!("a")));
        assert!(put(&cache, "c", json!("c"), LONG).await);
        assert_eq!(get(&cache, "b").await, None, "`a` was used after `b`");
        assert_eq!((get(&cache, "a").await, get(&cache, "c").await), (Some(json!("a")), Some(json!("c"))));
        // Writing over an answer pushes nothing out.
        assert!(put(&cache, "a", json!(1), LONG).await);
        assert_eq!((get(&cache, "a").await, get(&cache, "c").await), (Some(json!(1)), Some(json!("c"))));
    }

    #[tokio::test]
    async fn bytes_are_bounded_and_what_is_too_large_is_not_taken() {
        let cache = MemoryCache::new().bytes(3_000);
        assert!(!put(&cache, "huge", json!("x".repeat(3_000)), LONG).await);
        for name in ["a", "b", "c"] {
            assert!(put(&cache, name, json!("x".repeat(1_200)), LONG).await);
        }
        assert_eq!(cache.len(), 2);
        assert!(cache.lock().bytes <= 3_000);
        cache.clear().await.unwrap();
        assert!(cache.is_empty() && cache.lock().bytes == 0);
    }

    #[tokio::test]
    async fn media_count_as_bytes() {
        let cache = MemoryCache::new().bytes(3_000);
        let parts = vec![Part::text("x".repeat(3_000))];
        let answer = Arc::new(CachedAnswer { request: "a".into(), value: Value::Null, parts });
        assert!(!cache.put(&key("a"), answer, LONG).await.unwrap());
    }

    #[tokio::test(start_paused = true)]
    async fn an_answer_is_too_old_after_its_time() {
        let cache = MemoryCache::new();
        put(&cache, "a", json!(1), LONG).await;
        tokio::time::advance(LONG - Duration::from_millis(1)).await;
        assert_eq!(get(&cache, "a").await, Some(json!(1)));
        tokio::time::advance(Duration::from_millis(1)).await;
        assert_eq!(get(&cache, "a").await, None);
        assert!(cache.is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn an_answer_can_be_kept_for_good_or_not_at_all() {
        let cache = MemoryCache::new();
        assert!(put(&cache, "a", json!(1), Duration::MAX).await);
        assert!(!put(&cache, "b", json!(1), Duration::ZERO).await);
        tokio::time::advance(Duration::from_secs(365 * 86_400)).await;
        assert_eq!((get(&cache, "a").await, get(&cache, "b").await), (Some(json!(1)), None));
        assert_eq!(cache.len(), 1);
    }

    #[test]
    fn the_digest_of_a_text_is_the_same_everywhere() {
        // Stores that processes share depend on it.
        assert_eq!(key("a").to_string(), "tool:t:5fcd71c2553704083710b5e872fbf647");
    }
}
