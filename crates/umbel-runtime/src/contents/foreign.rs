//! Rules 4 and 5: spoken words become text, and what other agents did is quoted.

use std::collections::HashMap;
use std::sync::Arc;

use smol_str::SmolStr;
use umbel_core::event::{Meta, Transcription, USER};
use umbel_core::{CallId, Content, ContentsView, Event, Part, Payload, Role};

use super::item::{Item, Kind};
use super::visible::is_foreign;
use crate::text;

/// Who made which call; of several with one id, the last.
pub(crate) fn call_authors(items: &[Item], agent: &str) -> HashMap<CallId, SmolStr> {
    let mut authors = HashMap::new();
    for item in items {
        for id in item.calls().filter_map(|call| call.id.clone()) {
            authors.insert(id, item.author(agent).into());
        }
    }
    authors
}

/// Whether an event answers a call of another agent.
pub(crate) fn answers_foreign_call(
    view: &ContentsView,
    content: Option<&Arc<Content>>,
    author_of: impl Fn(&CallId) -> Option<SmolStr>,
) -> bool {
    content.into_iter().flat_map(|content| content.responses()).any(|response| {
        let author = response.id.as_ref().and_then(&author_of);
        author.is_some_and(|author| author != view.agent && author != USER)
    })
}

/// Turns speech into text and quotes what other agents did.
pub(crate) fn present(view: &ContentsView, items: Vec<Item>) -> Vec<Item> {
    let authors = call_authors(&items, &view.agent);
    let mut heard = Heard::default();
    let mut result = Vec::with_capacity(items.len());
    for (index, item) in items.iter().enumerate() {
        let mut item = item.clone();
        if item.content.is_none() {
            match heard.listen(&item.event, items.get(index + 1)) {
                Spoken::Goes => continue,
                Spoken::Done(content) => item.content = Some(Arc::new(content)),
                Spoken::Nothing => {}
            }
        }
        let foreign = item.kind == Kind::Plain && is_foreign(view, &item.event)
            || answers_foreign_call(view, item.content.as_ref(), |id| authors.get(id).cloned());
        if foreign {
            let quoted = quote(&item.event, item.content.as_ref(), view.foreign_thoughts);
            match quoted {
                Quoted::Empty => item.kind = Kind::Plain,
                Quoted::Nothing => continue,
                Quoted::Content(content) => {
                    item.content = Some(Arc::new(content));
                    item.kind = Kind::Quoted;
                }
            }
        }
        result.push(item);
    }
    result
}

/// What becomes of another agent's event.
pub(crate) enum Quoted {
    /// There was nothing in it: it stays as it is.
    Empty,
    /// Nothing of it may be told.
    Nothing,
    /// This is what is told.
    Content(Content),
}

/// Another agent's event as quoted data, in the user's role.
pub(crate) fn quote(event: &Event, content: Option<&Arc<Content>>, with_thoughts: bool) -> Quoted {
    let parts = content.map(|content| content.parts.as_slice()).unwrap_or_default();
    if parts.is_empty() {
        return Quoted::Empty;
    }
    let author = event.author();
    let told = parts.iter().filter_map(|part| match &part.payload {
        _ if part.is_thought() => {
            let thought = part.as_text().filter(|text| with_thoughts && !text.trim().is_empty())?;
            Some(Part::text(text::thought(author, thought)))
        }
        Payload::Text(said) => (!said.trim().is_empty()).then(|| Part::text(text::said(author, said))),
        Payload::Call(call) => Some(Part::text(text::called(author, &call.name, call.args.as_deref()))),
        Payload::Response(response) => {
            Some(Part::text(text::returned(author, &response.name, response.response.as_ref())))
        }
        // Media and code keep their own kind of part: flattened into text they would lose what they are.
        Payload::InlineData(_) | Payload::FileData(_) | Payload::Code(_) | Payload::CodeResult(_) => {
            Some(part.clone())
        }
        _ => None,
    });
    let mut parts: umbel_core::Parts = std::iter::once(Part::text(text::FOREIGN)).collect();
    parts.extend(told);
    if parts.len() == 1 {
        return Quoted::Nothing;
    }
    Quoted::Content(Content { role: Some(Role::User), parts })
}

/// Words heard so far, on both sides.
#[derive(Default)]
struct Heard {
    input: String,
    output: String,
}

enum Spoken {
    /// More words follow in the next event.
    Goes,
    /// The sentence is complete.
    Done(Content),
    /// Nobody spoke.
    Nothing,
}

impl Heard {
    fn listen(&mut self, event: &Event, next: Option<&Item>) -> Spoken {
        let sides: [(&mut String, fn(&Meta) -> Option<&Transcription>, Role); 2] = [
            (&mut self.input, |meta| meta.input_transcription.as_ref(), Role::User),
            (&mut self.output, |meta| meta.output_transcription.as_ref(), Role::Model),
        ];
        for (heard, side, role) in sides {
            let words = |event: &Event| {
                let said = event.meta.as_deref().and_then(side).and_then(|said| said.text.clone());
                said.filter(|words| !words.is_empty())
            };
            let Some(said) = words(event) else { continue };
            heard.push_str(&said);
            if next.and_then(|next| words(&next.event)).is_some() {
                return Spoken::Goes;
            }
            return Spoken::Done(Content::new(role, [Part::text(std::mem::take(heard))]));
        }
        Spoken::Nothing
    }
}
