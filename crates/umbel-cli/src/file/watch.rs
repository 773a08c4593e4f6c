//! Noticing that files have changed.

use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash, Hasher};
use std::path::PathBuf;
use std::time::SystemTime;

/// Files that are looked at now and then. They are read only if they look as if they had changed, and count as changed
/// only if their content has.
#[derive(Debug)]
pub(crate) struct Watch {
    files: Vec<PathBuf>,
    looks: Vec<Option<(SystemTime, u64)>>,
    content: u64,
}

impl Watch {
    /// Begins with the files as they are.
    pub(crate) fn new(files: Vec<PathBuf>) -> Self {
        Self { looks: looks(&files), content: content(&files), files }
    }

    /// Whether a file has changed since it was last asked.
    pub(crate) fn has_changed(&mut self) -> bool {
        let looks = looks(&self.files);
        if looks == self.looks {
            return false;
        }
        self.looks = looks;
        let content = content(&self.files);
        std::mem::replace(&mut self.content, content) != content
    }
}

fn looks(files: &[PathBuf]) -> Vec<Option<(SystemTime, u64)>> {
    let look = |path: &PathBuf| {
        let data = std::fs::metadata(path).ok()?;
        Some((data.modified().ok()?, data.len()))
    };
    files.iter().map(look).collect()
}

fn content(files: &[PathBuf]) -> u64 {
    let mut hasher = DefaultHasher::new();
    for path in files {
        // A file that is not there differs from one that is empty.
        std::fs::read(path).ok().hash(&mut hasher);
    }
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
        let mut watch = Watch::new(vec![path.clone()]);
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
}
