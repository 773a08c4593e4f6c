//! Which tools of which servers were agreed to, word for word.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use umbel_core::{BoxFuture, Error, ErrorKind, Result};

use super::listed::{Listed, digest};

/// What was agreed to of one server. Its tools are used as long as what the server says about them stays word for word what
/// it was.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Pinned {
    /// What the server said about each tool, by the name it has there.
    pub tools: BTreeMap<String, Value>,
    /// Digests of what was refused: nobody is asked about it again.
    pub refused: BTreeSet<String>,
    /// A digest of where that server is; absent if nobody noted it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub place: Option<String>,
}

impl Pinned {
    /// A digest of all tools together.
    pub fn digest(&self) -> String {
        digest(&json!(self.tools))
    }

    /// Whether it is about a server at another place than that: one that has the same name.
    pub(crate) fn is_of_another(&self, place: Option<&str>) -> bool {
        self.place.as_deref().zip(place).is_some_and(|(noted, place)| noted != place)
    }

    /// Whether that is what was agreed to.
    pub(crate) fn has(&self, listed: &Listed) -> bool {
        self.tools.get(&*listed.tool.name) == Some(&*listed.definition)
    }

    /// Those that nobody agreed to and nobody refused.
    pub(crate) fn news<'a>(&self, listed: &'a [Listed]) -> Vec<&'a Listed> {
        let is_new = |listed: &&Listed| !self.has(listed) && !self.refused.contains(&listed.digest);
        listed.iter().filter(is_new).collect()
    }

    /// Agrees to these.
    pub(crate) fn agree(&mut self, listed: &[&Listed]) {
        for listed in listed {
            self.tools.insert(listed.tool.name.to_string(), (*listed.definition).clone());
            self.refused.remove(&listed.digest);
        }
    }

    /// What became of these, for whoever has to agree.
    pub(crate) fn changes(&self, news: &[&Listed]) -> Value {
        let change = |listed: &&Listed| {
            let before = self.tools.get(&*listed.tool.name);
            let mut change = json!({"tool": listed.tool.name, "after": *listed.definition});
            if let (Some(object), Some(before)) = (change.as_object_mut(), before) {
                object.insert("before".to_owned(), before.clone());
            }
            change
        };
        news.iter().map(change).collect()
    }

    /// The same in words.
    pub(crate) fn in_words(&self, news: &[&Listed]) -> String {
        let words = |listed: &&Listed| match self.tools.get(&*listed.tool.name) {
            None => format!("`{}` is new", listed.tool.name),
            Some(before) => {
                let keys = ["description", "inputSchema", "outputSchema", "annotations", "title"];
                let changed = keys.into_iter().filter(|key| before.get(key) != listed.definition.get(key));
                format!("`{}` has another {}", listed.tool.name, changed.collect::<Vec<_>>().join(" and "))
            }
        };
        news.iter().map(words).collect::<Vec<_>>().join("; ")
    }
}

/// Keeps what was agreed to.
pub trait Pins: Send + Sync {
    /// What was agreed to of a server; `None` if nothing ever was.
    fn load<'a>(&'a self, server: &'a str) -> BoxFuture<'a, Result<Option<Pinned>>>;

    /// Keeps it, in the place of what was there.
    fn save<'a>(&'a self, server: &'a str, pinned: Pinned) -> BoxFuture<'a, Result<()>>;
}

impl<P: Pins + ?Sized> Pins for Arc<P> {
    fn load<'a>(&'a self, server: &'a str) -> BoxFuture<'a, Result<Option<Pinned>>> {
        (**self).load(server)
    }

    fn save<'a>(&'a self, server: &'a str, pinned: Pinned) -> BoxFuture<'a, Result<()>> {
        (**self).save(server, pinned)
    }
}

/// Keeps it as long as the process lives.
#[derive(Debug, Default)]
pub struct InMemoryPins(Mutex<BTreeMap<String, Pinned>>);

impl InMemoryPins {
    /// Nothing agreed to yet.
    pub fn new() -> Self {
        Self::default()
    }
}

impl Pins for InMemoryPins {
    fn load<'a>(&'a self, server: &'a str) -> BoxFuture<'a, Result<Option<Pinned>>> {
        let pinned = self.0.lock().unwrap_or_else(PoisonError::into_inner).get(server).cloned();
        Box::pin(std::future::ready(Ok(pinned)))
    }

    fn save<'a>(&'a self, server: &'a str, pinned: Pinned) -> BoxFuture<'a, Result<()>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(server.to_owned(), pinned);
        Box::pin(std::future::ready(Ok(())))
    }
}

/// Keeps it in a JSON file, which people can read, put under version control, and edit.
pub struct FilePins {
    path: PathBuf,
}

impl FilePins {
    /// The file need not be there yet.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into() }
    }
}

impl fmt::Debug for FilePins {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "FilePins({})", self.path.display())
    }
}

type AllPinned = BTreeMap<String, Pinned>;

fn read(path: &Path) -> Result<AllPinned> {
    let text = match std::fs::read(path) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(AllPinned::new()),
        Err(error) => {
            let message = format!("{} cannot be read: {error}", path.display());
            return Err(Error::new(ErrorKind::Store, message));
        }
    };
    serde_json::from_slice(&text).map_err(|error| {
        let message = format!("{} is no file of pinned tools: {error}", path.display());
        Error::new(ErrorKind::Corrupt, message)
    })
}

/// Held while a file is changed: several toolsets, each with its own [`FilePins`], may share one.
static CHANGING: Mutex<()> = Mutex::new(());

/// Changes what is in the file. It is written beside it and put in its place, so that there is always a whole one. Other
/// processes wait, too.
fn change(path: &Path, change: impl FnOnce(&mut AllPinned)) -> Result<()> {
    let failed =
        |error| Error::new(ErrorKind::Store, format!("{} cannot be written: {error}", path.display()));
    // Links lead to the file that is meant.
    let path = &std::fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    let beside = |end: &str| {
        let mut name = path.as_os_str().to_owned();
        name.push(end);
        PathBuf::from(name)
    };
    let _turn = CHANGING.lock().unwrap_or_else(PoisonError::into_inner);
    let lock = std::fs::File::create(beside(".lock")).map_err(failed)?;
    lock.lock().map_err(failed)?;
    let mut all = read(path)?;
    change(&mut all);
    let text =
        serde_json::to_vec_pretty(&all).map_err(|error| Error::new(ErrorKind::Store, error.to_string()))?;
    let new = beside(&format!(".{}.new", std::process::id()));
    std::fs::write(&new, text).and_then(|()| std::fs::rename(&new, path)).map_err(failed)
}

/// Files are slow: others go on meanwhile.
async fn aside<T: Send + 'static>(work: impl FnOnce() -> Result<T> + Send + 'static) -> Result<T> {
    tokio::task::spawn_blocking(work)
        .await
        .unwrap_or_else(|error| Err(Error::new(ErrorKind::Store, error.to_string())))
}

impl Pins for FilePins {
    fn load<'a>(&'a self, server: &'a str) -> BoxFuture<'a, Result<Option<Pinned>>> {
        Box::pin(async move {
            let path = self.path.clone();
            Ok(aside(move || read(&path)).await?.remove(server))
        })
    }

    fn save<'a>(&'a self, server: &'a str, pinned: Pinned) -> BoxFuture<'a, Result<()>> {
        Box::pin(async move {
            let (path, server) = (self.path.clone(), server.to_owned());
            aside(move || change(&path, |all| drop(all.insert(server, pinned)))).await
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pinned(text: &str) -> Pinned {
        let tools = BTreeMap::from([("a".to_owned(), json!({"description": text}))]);
        Pinned { tools, refused: BTreeSet::from(["abc".to_owned()]), place: None }
    }

    #[tokio::test]
    async fn a_file_keeps_what_was_agreed_to_of_each_server() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("pins.json");
        let pins = FilePins::new(&path);
        assert_eq!(pins.load("x").await.unwrap(), None);
        pins.save("x", pinned("one")).await.unwrap();
        pins.save("y", pinned("two")).await.unwrap();
        let again = FilePins::new(&path);
        assert_eq!(again.load("x").await.unwrap(), Some(pinned("one")));
        assert_eq!(again.load("y").await.unwrap().unwrap().digest(), pinned("two").digest());
        assert_ne!(pinned("one").digest(), pinned("two").digest());
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 4)]
    async fn several_that_share_a_file_lose_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("pins.json");
        let saves = (0..40).map(|n| {
            let pins = FilePins::new(&path);
            tokio::spawn(async move { pins.save(&format!("s{n}"), pinned("one")).await })
        });
        for save in saves.collect::<Vec<_>>() {
            save.await.unwrap().unwrap();
        }
        assert_eq!(read(&path).unwrap().len(), 40);
        let left = std::fs::read_dir(folder.path()).unwrap().map(|file| file.unwrap().file_name());
        assert!(left.into_iter().all(|name| name == "pins.json" || name == "pins.json.lock"));
    }

    #[tokio::test]
    async fn a_file_that_is_something_else_is_an_error_and_is_left_alone() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("pins.json");
        std::fs::write(&path, "hello").unwrap();
        let error = FilePins::new(&path).save("x", pinned("one")).await.unwrap_err();
        assert!(error.message().contains("is no file of pinned tools"), "{error}");
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "hello");
    }
}
