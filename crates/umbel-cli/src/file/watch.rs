//! Noticing that files have changed.

use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash, Hasher};
use std::io;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

/// A file as it was read.
#[derive(Debug)]
pub(crate) struct Seen {
    pub(super) path: PathBuf,
    content: u64,
}

impl Seen {
    /// Reads a file, and remembers what was in it.
    pub(super) fn read(path: &Path) -> (io::Result<String>, Self) {
        let read = std::fs::read(path);
        let seen = Self { path: path.to_owned(), content: hash(read.as_ref().ok()) };
        let not_text = |_| io::Error::new(io::ErrorKind::InvalidData, "it is not UTF-8");
        (read.and_then(|bytes| String::from_utf8(bytes).map_err(not_text)), seen)
    }
}

/// Files that are looked at now and then. They are read only if they look as if they had changed, and count as changed
/// only if their content has.
#[derive(Debug)]
pub(crate) struct Watch {
    files: Vec<PathBuf>,
    /// None before the first time: a file may have changed since it was read.
    looks: Option<Vec<Option<(SystemTime, u64)>>>,
    content: Vec<u64>,
}

impl Watch {
    /// Begins with the files as they were read.
    pub(crate) fn new(files: Vec<Seen>) -> Self {
        let (files, content) = files.into_iter().map(|seen| (seen.path, seen.content)).unzip();
        Self { files, looks: None, content }
    }

    /// Whether a file has changed since it was last asked.
    pub(crate) fn has_changed(&mut self) -> bool {
        let looks = Some(looks(&self.files));
        if looks == self.looks {
            return false;
        }
        self.looks = looks;
        let content = self.files.iter().map(|path| hash(std::fs::read(path).ok().as_ref())).collect();
        std::mem::replace(&mut self.content, content) != self.content
    }
}

fn looks(files: &[PathBuf]) -> Vec<Option<(SystemTime, u64)>> {
    let look = |path: &PathBuf| {
        let data = std::fs::metadata(path).ok()?;
        Some((data.modified().ok()?, data.len()))
    };
    files.iter().map(look).collect()
}

/// What is in a file, in short. A file that is not there differs from one that is empty.
fn hash(content: Option<&Vec<u8>>) -> u64 {
    let mut hasher = DefaultHasher::new();
    content.hash(&mut hasher);
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_has_changed_when_its_content_has() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a");
        std::fs::write(&path, "one").unwrap();
        let mut watch = Watch::new(vec![Seen::read(&path).1]);
        assert!(!watch.has_changed());
        std::fs::write(&path, "three").unwrap();
        assert!(watch.has_changed());
        assert!(!watch.has_changed());
        // It was touched, and is the same.
        std::fs::write(&path, "three").unwrap();
        std::fs::File::open(&path).unwrap().set_modified(SystemTime::UNIX_EPOCH).unwrap();
        assert!(!watch.has_changed());
        std::fs::remove_file(&path).unwrap();
        assert!(watch.has_changed());
    }

    #[test]
    fn a_change_right_after_a_file_was_read_is_noticed() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a");
        std::fs::write(&path, "one").unwrap();
        let (text, seen) = Seen::read(&path);
        assert_eq!(text.unwrap(), "one");
        std::fs::write(&path, "two").unwrap();
        let mut watch = Watch::new(vec![seen]);
        assert!(watch.has_changed());
        assert!(!watch.has_changed());
    }
}
