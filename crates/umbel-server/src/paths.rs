//! Which paths are taken, so that nothing is served in the place of something else.

use smol_str::SmolStr;
use umbel_core::{Error, ErrorKind, Result};

use crate::gate::STUDIO;

/// The paths that are taken. A router ends the process where two do not go together; this tells before.
#[derive(Default)]
pub(crate) struct Paths {
    taken: matchit::Router<()>,
    /// What comes before the path of the studio, if there is one.
    pub(crate) studio: Option<SmolStr>,
}

impl Paths {
    /// Takes a path.
    pub(crate) fn take(&mut self, path: &str) -> Result<()> {
        let below =
            self.studio.as_ref().and_then(|base| path.strip_prefix(base.as_str())?.strip_prefix(STUDIO));
        let is_page = below.is_some_and(|below| below.is_empty() || below.starts_with('/'));
        // What routers once took for a name or for the rest of a path.
        if path.split('/').any(|part| part.starts_with([':', '*'])) {
            return refuse(format!(
                "the path `{path}` has a part that begins with `:` or `*`: choose another"
            ));
        }
        match self.taken.insert(path, ()) {
            Ok(()) if !is_page => Ok(()),
            Ok(()) | Err(matchit::InsertError::Conflict { .. }) => {
                refuse(format!("the path `{path}` is taken: choose another"))
            }
            Err(problem) => refuse(format!("the path `{path}` cannot be served: {problem}")),
        }
    }

    /// Takes a path for requests of all methods. That the studio leads to its pages from there is no reason for an agent, which
    /// is only posted to, to be elsewhere.
    pub(crate) fn take_all(&mut self, path: &str) -> Result<()> {
        if self.studio.as_ref().is_some_and(|base| path.strip_prefix(base.as_str()) == Some("/")) {
            return refuse(format!("the path `{path}` is taken: choose another"));
        }
        self.take(path)
    }
}

fn refuse(message: String) -> Result<()> {
    Err(Error::new(ErrorKind::Build, message))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_that_do_not_go_together_are_refused() {
        let mut paths = Paths { studio: Some("/base".into()), ..Paths::default() };
        for path in ["/chat", "/chat/threads", "/chat/threads/{thread}", "/base", "/base/studios"] {
            paths.take(path).unwrap();
        }
        for path in ["/chat", "/chat/threads", "/chat/threads/{other}", "/base/studio", "/base/studio/a"] {
            let refused = paths.take(path).unwrap_err();
            assert_eq!(refused.kind(), ErrorKind::Build);
            assert_eq!(refused.message(), format!("the path `{path}` is taken: choose another"));
        }
        for path in ["/:a", "/a/*b", "/a/{b", "/a/{*b}/c"] {
            assert_eq!(paths.take(path).unwrap_err().kind(), ErrorKind::Build, "{path}");
        }
        assert!(paths.take_all("/base/").is_err());
        paths.take("/base/").unwrap();
    }
}
