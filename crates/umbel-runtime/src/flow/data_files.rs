//! Tables that the user sent, as files that code can read.

use std::sync::Arc;

use umbel_core::code::LOOKS_AT_FILE;
use umbel_core::{Blob, CallId, CodeFile, Content, Event, List, Part, Payload, Role};

use crate::contents::visible::apply_rewinds;
use crate::text;

/// The media type of a table.
const CSV: &str = "text/csv";

/// A table that the user sent, named after its place in the log, so that it never changes its name: `data_3_2.csv` is the
/// second part of the third event.
pub(crate) struct DataFile {
    pub(crate) name: String,
    event: Arc<Event>,
    part: usize,
}

impl DataFile {
    fn blob(&self) -> Option<&Blob> {
        self.event.content.as_ref()?.parts.get(self.part).and_then(table)
    }

    /// The file as code reads it.
    pub(crate) fn to_code_file(&self) -> Option<CodeFile> {
        Some(CodeFile::new(self.name.clone(), CSV, self.blob()?.data.as_slice()))
    }

    /// The id of the code that looks at it.
    pub(crate) fn call_id(&self) -> CallId {
        format!("{LOOKS_AT_FILE}{}", self.name).into()
    }

    /// Whether it was looked at, or is being.
    pub(crate) fn was_looked_at(&self, events: &List<Arc<Event>>) -> bool {
        let id = self.call_id();
        let looks =
            |part: &Part| matches!(&part.payload, Payload::Code(code) if code.id.as_ref() == Some(&id));
        events.iter().any(|event| event.content.iter().any(|content| content.parts.iter().any(looks)))
    }

    /// Code that loads it under its own name, and says what is in it.
    pub(crate) fn loader(&self) -> String {
        let variable = self.name.strip_suffix(".csv").unwrap_or(&self.name);
        format!("{}\n{variable} = explore(\"{}\")\n", text::EXPLORE_TABLE, self.name)
    }
}

/// Whether code with that id looks at a file, which no model asked for.
pub(crate) fn looks_at_file(id: &CallId) -> bool {
    id.as_str().starts_with(LOOKS_AT_FILE)
}

/// A part as a table, if it is one.
fn table(part: &Part) -> Option<&Blob> {
    let Payload::InlineData(blob) = &part.payload else { return None };
    let kind = blob.mime_type.as_deref()?.split(';').next()?.trim();
    kind.eq_ignore_ascii_case(CSV).then_some(blob)
}

/// The tables that the user sent. One that was sent twice is one.
pub(crate) fn find(events: &List<Arc<Event>>) -> Vec<DataFile> {
    let all: Vec<Arc<Event>> = events.iter().cloned().collect();
    let mut live = apply_rewinds(&all).into_iter().peekable();
    let mut files: Vec<DataFile> = Vec::new();
    for (at, event) in all.iter().enumerate() {
        let is_live = live.next_if(|next| Arc::ptr_eq(next, event)).is_some();
        let Some(content) = event.content.as_ref().filter(|_| is_live && event.is_user()) else { continue };
        for (part, blob) in content.parts.iter().enumerate().filter_map(|(at, part)| Some((at, table(part)?)))
        {
            if named(&files, blob).is_none() {
                let name = format!("data_{}_{}.csv", at + 1, part + 1);
                files.push(DataFile { name, event: event.clone(), part });
            }
        }
    }
    files
}

/// The file with these bytes.
fn named<'a>(files: &'a [DataFile], blob: &Blob) -> Option<&'a DataFile> {
    files.iter().find(|file| file.blob().is_some_and(|known| known.data == blob.data))
}

/// Whether a message of the user has that file in it.
pub(crate) fn has(content: &Content, file: &DataFile) -> bool {
    let same =
        |part: &Part| table(part).is_some_and(|blob| file.blob().is_some_and(|own| own.data == blob.data));
    content.role == Some(Role::User) && content.parts.iter().any(same)
}

/// A message with names in the place of tables; `None` if it has none.
pub(crate) fn with_names(files: &[DataFile], content: &Content) -> Option<Content> {
    if content.role != Some(Role::User) || content.parts.iter().all(|part| table(part).is_none()) {
        return None;
    }
    let parts = content.parts.iter().map(|part| {
        let file = table(part).and_then(|blob| named(files, blob));
        file.map_or_else(|| part.clone(), |file| Part::text(text::available_file(&file.name)))
    });
    Some(Content { role: content.role.clone(), parts: parts.collect() })
}
