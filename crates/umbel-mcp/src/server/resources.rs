//! What clients can read: artifacts of agents, and whatever else a program offers.

use std::fmt;
use std::sync::Arc;

use umbel_core::{ArtifactStore, BoxFuture, Caller, Part, Result, SessionKey};
use umbel_runtime::Runner;

/// How the addresses of artifacts begin.
const ARTIFACT: &str = "artifact://";

/// Something that clients can read, or a pattern of such things.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Resource {
    /// Its address; of a pattern with names in braces, such as `notes://{day}`.
    pub uri: String,
    /// Its name, for people.
    pub name: String,
    /// What it is.
    pub description: Option<String>,
    /// Its media type.
    pub mime_type: Option<String>,
}

impl Resource {
    /// Something by that address.
    pub fn new(uri: impl Into<String>, name: impl Into<String>) -> Self {
        Self { uri: uri.into(), name: name.into(), ..Self::default() }
    }

    /// The same, with what it is.
    pub fn description(mut self, description: impl Into<String>) -> Self {
        self.description = Some(description.into());
        self
    }

    /// The same, with its media type.
    pub fn mime_type(mut self, mime_type: impl Into<String>) -> Self {
        self.mime_type = Some(mime_type.into());
        self
    }
}

/// Things that clients can read. Everything is asked for by somebody, and only theirs to see.
pub trait Resources: Send + Sync {
    /// What there is to read.
    fn list<'a>(&'a self, caller: &'a Caller) -> BoxFuture<'a, Result<Vec<Resource>>>;

    /// Patterns of what there is besides.
    fn patterns(&self) -> Vec<Resource> {
        Vec::new()
    }

    /// What is at an address: a text, or bytes with a media type. `None` if it is not one of these.
    fn read<'a>(&'a self, caller: &'a Caller, uri: &'a str) -> BoxFuture<'a, Result<Option<Part>>>;
}

/// The artifacts that runs of an agent left behind.
pub(super) struct Artifacts {
    app: String,
    store: Arc<dyn ArtifactStore>,
}

impl Artifacts {
    /// Those of a runner, if it keeps any.
    pub(super) fn of(runner: &Runner) -> Option<Self> {
        let store = runner.services().artifacts.clone()?;
        Some(Self { app: runner.app().to_owned(), store })
    }

    /// A session of the caller's.
    fn key(&self, caller: &Caller, session: &str) -> Result<SessionKey> {
        SessionKey::new(caller.app.as_deref().unwrap_or(&self.app), &caller.user, session)
    }
}

/// The address of an artifact of a session. It names the agent's app, whichever its caller's is.
pub(super) fn artifact_uri(app: &str, session: &str, name: &str) -> String {
    let [app, session, name] = [app, session, name].map(escaped);
    format!("{ARTIFACT}{app}/{session}/{name}")
}

/// A text as part of an address.
fn escaped(text: &str) -> String {
    let mut escaped = String::new();
    for byte in text.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' | b':' => {
                escaped.push(byte as char);
            }
            _ => escaped = format!("{escaped}%{byte:02X}"),
        }
    }
    escaped
}

/// The text that a part of an address stands for, if it stands for one.
fn unescaped(part: &str) -> Option<String> {
    let mut bytes = Vec::new();
    let mut rest = part.as_bytes();
    while let Some((first, after)) = rest.split_first() {
        rest = after;
        if *first != b'%' {
            bytes.push(*first);
            continue;
        }
        let digits = std::str::from_utf8(rest.get(..2)?).ok()?;
        bytes.push(u8::from_str_radix(digits, 16).ok()?);
        rest = rest.get(2..)?;
    }
    String::from_utf8(bytes).ok()
}

impl Resources for Artifacts {
    fn list<'a>(&'a self, caller: &'a Caller) -> BoxFuture<'a, Result<Vec<Resource>>> {
        Box::pin(async move {
            // Those of sessions are named by the results of calls; these are the user's own, whatever the session.
            let any = self.key(caller, "artifacts")?;
            let names = self.store.names(&any).await?;
            let own = names.into_iter().filter(|name| name.starts_with("user:"));
            Ok(own.map(|name| Resource::new(artifact_uri(&self.app, any.id(), &name), name)).collect())
        })
    }

    fn patterns(&self) -> Vec<Resource> {
        let uri = format!("{ARTIFACT}{}/{{session}}/{{name}}", escaped(&self.app));
        vec![Resource::new(uri, "artifact").description("A file that an agent saved in a session.")]
    }

    fn read<'a>(&'a self, caller: &'a Caller, uri: &'a str) -> BoxFuture<'a, Result<Option<Part>>> {
        Box::pin(async move {
            let Some(place) = uri.strip_prefix(ARTIFACT) else { return Ok(None) };
            let parts: Option<Vec<String>> = place.split('/').map(unescaped).collect();
            let Some([app, session, name]) = parts.as_deref() else { return Ok(None) };
            if *app != self.app {
                return Ok(None);
            }
            let Ok(key) = self.key(caller, session) else { return Ok(None) };
            Ok(self.store.load(&key, name, None).await?.map(|part| (*part).clone()))
        })
    }
}

impl fmt::Debug for Artifacts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Artifacts({})", self.app)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_of_artifacts_are_read_back() {
        let uri = artifact_uri("my app", "s-1", "user:ä/b.txt");
        assert_eq!(uri, "artifact://my%20app/s-1/user:%C3%A4%2Fb.txt");
        let parts: Vec<_> = uri.strip_prefix(ARTIFACT).unwrap().split('/').map(unescaped).collect();
        let expected = ["my app", "s-1", "user:ä/b.txt"].map(|part| Some(part.to_owned()));
        assert_eq!(parts, expected);
    }

    #[test]
    fn broken_addresses_stand_for_nothing() {
        for broken in ["%", "%4", "%zz", "%ff", "%é"] {
            assert_eq!(unescaped(broken), None, "{broken}");
        }
    }
}
