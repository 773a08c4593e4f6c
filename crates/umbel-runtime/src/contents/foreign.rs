//! Rules 4 and 5: spoken words become text, and what other agents did is quoted.

use std::collections::HashMap;
use std::sync::Arc;

use smol_str::SmolStr;
use umbel_core::event::USER;
use umbel_core::{CallId, Content, ContentsView, Part, Parts, Payload, Role};

use super::item::{Item, Kind, known};
use super::visible::is_foreign;
use crate::text;

/// Who made which call; of several with one id, the last.
pub(crate) type Authors = HashMap<CallId, SmolStr>;

pub(crate) fn call_authors(items: &[Item], agent: &str) -> Authors {
    let mut authors = HashMap::new();
    for item in items {
        for id in item.calls().filter_map(|call| known(&call.id)) {
            authors.insert(id.clone(), item.author(agent).into());
        }
    }
    authors
}

/// Whether a content answers a call of another agent.
pub(crate) fn answers_foreign_call<'a>(
    view: &ContentsView,
    content: &Content,
    author_of: impl Fn(&CallId) -> Option<&'a SmolStr>,
) -> bool {
    content.responses().any(|response| {
        let author = known(&response.id).and_then(&author_of);
        author.is_some_and(|author| !author.is_empty() && *author != view.agent && author != USER)
    })
}

/// Turns speech into text and quotes what other agents did.
pub(crate) fn present(view: &ContentsView, items: Vec<Item>) -> Vec<Item> {
    let authors = call_authors(&items, &view.agent);
    let mut heard = Heard::default();
    let mut result = Vec::with_capacity(items.len());
    let mut items = items.into_iter().peekable();
    while let Some(mut item) = items.next() {
        if item.content.is_none() {
            match heard.listen(&item, items.peek()) {
                Spoken::Goes => continue,
                Spoken::Done(content) => item.content = Some(Arc::new(content)),
                Spoken::Nothing => {}
            }
        }
        let Some(content) = item.content.as_ref().filter(|content| !content.parts.is_empty()) else {
            result.push(item);
            continue;
        };
        let foreign = item.kind == Kind::Plain && is_foreign(view, &item.event);
        if foreign || answers_foreign_call(view, content, |id| authors.get(id)) {
            let author = item.author(&view.agent);
            let Some(quoted) = quote(author, content, view.foreign_thoughts) else { continue };
            item = Item { content: Some(Arc::new(quoted)), kind: Kind::Quoted, ..item };
        }
        result.push(item);
    }
    result
}

/// What another agent said as quoted data, in the user's role. `None` if nothing of it may be told.
pub(crate) fn quote(author: &str, content: &Content, with_thoughts: bool) -> Option<Content> {
    let told = content.parts.iter().filter_map(|part| match &part.payload {
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
    let parts: Parts = std::iter::once(Part::text(text::FOREIGN)).chain(told).collect();
    (parts.len() > 1).then_some(Content { role: Some(Role::User), parts })
}

/// Words heard so far, on both sides.
#[derive(Default)]
struct Heard {
    input: String,
    output: String,
}

enum Spoken {
    /// More words follow in the next item.
    Goes,
    /// The sentence is complete.
    Done(Content),
    /// Nobody spoke.
    Nothing,
}

impl Heard {
    fn listen(&mut self, item: &Item, next: Option<&Item>) -> Spoken {
        let next_of = |side| next.and_then(|next| next.spoken(side));
        let (heard, follows, role) =
            if let Some(words) = item.spoken(|meta| meta.input_transcription.as_ref()) {
                self.input.push_str(words);
                (&mut self.input, next_of(|meta| meta.input_transcription.as_ref()), Role::User)
            } else if let Some(words) = item.spoken(|meta| meta.output_transcription.as_ref()) {
                self.output.push_str(words);
                (&mut self.output, next_of(|meta| meta.output_transcription.as_ref()), Role::Model)
            } else {
                return Spoken::Nothing;
            };
        if follows.is_some() {
            return Spoken::Goes;
        }
        Spoken::Done(Content::new(role, [Part::text(std::mem::take(heard))]))
    }
}
