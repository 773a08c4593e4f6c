//! Instructions with holes: `{name}` is filled from the state, `{artifact.file}` from the artifacts.
//!
//! `{name?}` may be missing; `{{name}}` is the same as `{name}`; `${name}` and `\{name}` are left alone, and so is
//! anything in braces that is no name.

use std::borrow::Cow;
use std::sync::Arc;

use umbel_core::{Error, ErrorKind, Part, Payload, Result, Run, StateScope, json};

use crate::text;

/// An instruction with its holes found.
#[derive(Clone, Debug)]
pub struct Template {
    text: Arc<str>,
    holes: Vec<Hole>,
}

#[derive(Clone, Debug, PartialEq)]
struct Hole {
    start: usize,
    end: usize,
    name: String,
    optional: bool,
    artifact: bool,
}

impl Template {
    /// Finds the holes of a text.
    pub fn new(text: impl Into<Arc<str>>) -> Self {
        let text = text.into();
        Self { holes: holes(&text), text }
    }

    /// The text, holes and all.
    pub fn source(&self) -> &Arc<str> {
        &self.text
    }

    /// Whether there is nothing to fill.
    pub fn is_plain(&self) -> bool {
        self.holes.is_empty()
    }

    /// Fills the holes. A text without any is shared, not copied.
    pub async fn render(&self, run: &Run) -> Result<Arc<str>> {
        if self.holes.is_empty() {
            return Ok(self.text.clone());
        }
        let mut out = String::with_capacity(self.text.len());
        let mut rest = 0;
        let state = run.state();
        for hole in &self.holes {
            out.push_str(self.text.get(rest..hole.start).unwrap_or_default());
            rest = hole.end;
            if hole.artifact {
                out.push_str(&artifact(hole, run).await?);
                continue;
            }
            match state.get(&hole.name) {
                Some(value) => out.push_str(&json::render(value)),
                None if hole.optional => {}
                None => {
                    let message = text::missing_state(&hole.name, run.agent_name());
                    return Err(Error::new(ErrorKind::MissingState, message));
                }
            }
        }
        out.push_str(self.text.get(rest..).unwrap_or_default());
        Ok(out.into())
    }
}

async fn artifact(hole: &Hole, run: &Run) -> Result<String> {
    let part = run.artifacts()?.load(run.session_key(), &hole.name, None).await?;
    match part {
        Some(part) => Ok(artifact_text(&hole.name, &part).into_owned()),
        None if hole.optional => Ok(String::new()),
        None => {
            let message = format!("the instruction names the artifact `{}`, which does not exist", hole.name);
            Err(Error::new(ErrorKind::MissingArtifact, message))
        }
    }
}

/// An artifact as text: its own text, decoded text data, or a note that it is neither.
pub(crate) fn artifact_text<'a>(name: &str, part: &'a Part) -> Cow<'a, str> {
    let blob = match &part.payload {
        Payload::Text(text) => return Cow::Borrowed(text),
        Payload::InlineData(blob) => blob,
        _ => return Cow::Owned(serde_json::to_string(part).unwrap_or_default()),
    };
    let mime = blob.mime_type.as_deref().unwrap_or("application/octet-stream");
    if is_text(mime) {
        String::from_utf8_lossy(&blob.data)
    } else {
        Cow::Owned(text::binary_artifact(name, mime))
    }
}

/// Whether data of this media type reads as text.
pub(crate) fn is_text(mime: &str) -> bool {
    let mime = mime.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    mime.starts_with("text/")
        || mime.ends_with("+json")
        || mime.ends_with("+xml")
        || [
            "application/json",
            "application/xml",
            "application/csv",
            "application/yaml",
            "application/javascript",
        ]
        .contains(&mime.as_str())
}

fn holes(text: &str) -> Vec<Hole> {
    let bytes = text.as_bytes();
    let mut holes = Vec::new();
    let mut at = 0;
    while let Some(found) = text.get(at..).and_then(|rest| rest.find('{')) {
        let start = at + found;
        let escaped = start > 0 && matches!(bytes.get(start - 1), Some(b'$' | b'\\'));
        let run = |from: usize, byte: u8| bytes.iter().skip(from).take_while(|b| **b == byte).count();
        let inner = start + run(start, b'{');
        at = inner;
        if escaped {
            continue;
        }
        let Some(length) = text.get(inner..).and_then(|rest| rest.find(['{', '}'])) else { break };
        let close = inner + length;
        let braces = run(close, b'}');
        if braces == 0 {
            continue;
        }
        at = close + braces;
        let name = text.get(inner..close).unwrap_or_default().trim();
        holes.extend(hole(name, start, at));
    }
    holes
}

/// A hole of that name, if it is one.
fn hole(name: &str, start: usize, end: usize) -> Option<Hole> {
    let (name, optional) = name.strip_suffix('?').map_or((name, false), |name| (name, true));
    if let Some(file) = name.strip_prefix("artifact.") {
        return Some(Hole { start, end, name: file.to_owned(), optional, artifact: true });
    }
    let (_, key) = StateScope::split(name);
    is_identifier(key).then(|| Hole { start, end, name: name.to_owned(), optional, artifact: false })
}

fn is_identifier(name: &str) -> bool {
    let mut chars = name.chars();
    chars.next().is_some_and(|c| c == '_' || unicode_ident::is_xid_start(c))
        && chars.all(unicode_ident::is_xid_continue)
}
