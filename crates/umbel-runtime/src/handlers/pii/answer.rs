//! The model's answer on its way through the handler, chunk by chunk.

use std::sync::Arc;

use futures::{StreamExt, stream};
use smallvec::{SmallVec, smallvec};
use umbel_core::{Chunk, ChunkStream, Content, Part, Parts, Payload, Response, Result, Role, Run};

use super::Pii;
use super::memory::remember;
use super::stream::StreamRedactor;

/// Redacts an answer. How it is cut into chunks makes no difference to what gets through.
pub(super) fn redacted<'a>(pii: &'a Pii, run: &'a Run, chunks: ChunkStream<'a>) -> ChunkStream<'a> {
    let mut answer = Answer { pii, run, text: None, form: Form::Words, stopped: false };
    let chunks = chunks.map(Some).chain(stream::iter([None]));
    Box::pin(chunks.flat_map(move |chunk| stream::iter(answer.take(chunk))))
}

type Chunks = SmallVec<[Result<Chunk>; 1]>;

struct Answer<'a> {
    pii: &'a Pii,
    run: &'a Run,
    /// The text that is coming in.
    text: Option<Text>,
    /// The form in which its last piece came, and in which its rest goes.
    form: Form,
    /// Something must not pass, or the model failed: nothing may follow.
    stopped: bool,
}

/// Text of one kind, up to the next part of another kind: in the whole message it is one part.
struct Text {
    redactor: StreamRedactor,
    passed: Passed,
}

/// What was let through of a text.
struct Passed {
    thought: Option<bool>,
    /// What the model wants to see again with this text, until it went with a piece of it.
    signature: Option<Box<str>>,
    text: String,
}

#[derive(Clone, Copy)]
enum Form {
    Words,
    Delta,
    /// A whole response that is marked as a piece.
    Piece,
}

impl Answer<'_> {
    /// Takes the next chunk, or the end. Gives what can be let through.
    fn take(&mut self, chunk: Option<Result<Chunk>>) -> Chunks {
        if self.stopped {
            return Chunks::new();
        }
        self.redact(chunk).unwrap_or_else(|error| {
            self.stopped = true;
            self.text = None;
            smallvec![Err(error)]
        })
    }

    fn redact(&mut self, chunk: Option<Result<Chunk>>) -> Result<Chunks> {
        match chunk.transpose()? {
            None => self.rest(),
            Some(Chunk::Text(text)) => self.words(&text, None),
            Some(Chunk::Thought(text)) => self.words(&text, Some(true)),
            Some(Chunk::Delta(delta)) => {
                self.form = Form::Delta;
                Ok(self.piece(delta)?.map(|delta| Ok(Chunk::Delta(delta))).into_iter().collect())
            }
            Some(Chunk::Complete(piece)) if piece.partial == Some(true) => {
                self.form = Form::Piece;
                Ok(self.piece(piece)?.map(|piece| Ok(Chunk::Complete(piece))).into_iter().collect())
            }
            Some(Chunk::Complete(whole)) => {
                let mut chunks = self.rest()?;
                chunks.push(Ok(Chunk::Complete(self.whole(whole)?)));
                Ok(chunks)
            }
            Some(Chunk::Restart) => {
                self.text = None;
                Ok(smallvec![Ok(Chunk::Restart)])
            }
            Some(other) => Ok(smallvec![Ok(other)]),
        }
    }

    fn words(&mut self, text: &str, thought: Option<bool>) -> Result<Chunks> {
        let mut parts = Parts::new();
        self.form = Form::Words;
        self.add(text, thought, None, &mut parts)?;
        Ok(self.chunks(parts))
    }

    /// A whole message.
    fn whole(&mut self, mut whole: Response) -> Result<Response> {
        let Some(content) = &mut whole.content else { return Ok(whole) };
        if let Some(changed) = self.pii.rules.output.words(content, &[])? {
            *content = Arc::new(changed);
        }
        let texts: Vec<String> = content.parts.iter().filter_map(Part::as_text).map(str::to_owned).collect();
        self.note(texts);
        Ok(whole)
    }

    /// A piece of a message. `None` if nothing of it is left for now.
    fn piece(&mut self, mut piece: Response) -> Result<Option<Response>> {
        let Some(content) = &piece.content else { return Ok(Some(piece)) };
        let mut parts = Parts::new();
        for part in &content.parts {
            match &part.payload {
                Payload::Text(text) if !text.is_empty() => {
                    self.add(text, part.thought_mark(), part.signature(), &mut parts)?;
                }
                _ => {
                    self.end_text(&mut parts)?;
                    parts.push(part.clone());
                }
            }
        }
        let role = content.role.clone();
        piece.content = (!parts.is_empty()).then(|| Arc::new(Content { role, parts }));
        let tells = piece.content.is_some() || piece.meta.is_some() || piece.turn_complete.is_some();
        Ok(tells.then_some(piece))
    }

    /// Adds text to that of its kind, and what of it can be let through to the parts.
    fn add(
        &mut self,
        text: &str,
        thought: Option<bool>,
        signature: Option<&str>,
        parts: &mut Parts,
    ) -> Result<()> {
        if self.text.as_ref().is_some_and(|text| text.passed.thought != thought) {
            self.end_text(parts)?;
        }
        let Pii { rules, lookback, .. } = self.pii;
        let coming = self.text.get_or_insert_with(|| Text {
            redactor: rules.output.stream(*lookback),
            passed: Passed { thought, signature: None, text: String::new() },
        });
        if coming.passed.signature.is_none() {
            coming.passed.signature = signature.map(Box::from);
        }
        let piece = coming.redactor.push(text)?;
        parts.extend(coming.passed.part(piece));
        Ok(())
    }

    /// The text is complete: what of it was held back goes to the parts.
    fn end_text(&mut self, parts: &mut Parts) -> Result<()> {
        let Some(Text { redactor, mut passed }) = self.text.take() else { return Ok(()) };
        parts.extend(passed.part(redactor.finish()?));
        self.note([passed.text]);
        Ok(())
    }

    /// What was held back.
    fn rest(&mut self) -> Result<Chunks> {
        let mut parts = Parts::new();
        self.end_text(&mut parts)?;
        Ok(self.chunks(parts))
    }

    /// Parts in the form in which the last piece came.
    fn chunks(&self, parts: Parts) -> Chunks {
        let chunk = |part: Part| match (self.form, part.as_text().filter(|_| part.signature().is_none())) {
            (Form::Words, Some(text)) if part.thought_mark().is_none() => Chunk::Text(text.to_owned()),
            (Form::Words, Some(text)) if part.is_thought() => Chunk::Thought(text.to_owned()),
            (Form::Piece, ..) => {
                let piece = Response::new(Content::new(Role::Model, [part]));
                Chunk::Complete(Response { partial: Some(true), ..piece })
            }
            _ => Chunk::Delta(Response::new(Content::new(Role::Model, [part]))),
        };
        parts.into_iter().map(|part| Ok(chunk(part))).collect()
    }

    /// Remembers what was let through: once is enough, also for rules that would find something in their own markers.
    fn note(&self, texts: impl IntoIterator<Item = String>) {
        remember(self.run, self.pii.number, |memory| memory.passed.extend(texts));
    }
}

impl Passed {
    /// The next piece as a part. `None` if it is nothing.
    fn part(&mut self, piece: String) -> Option<Part> {
        if piece.is_empty() {
            return None;
        }
        self.text.push_str(&piece);
        let mut part = Part::text(piece);
        if let Some(thought) = self.thought {
            part = part.with_thought(thought);
        }
        Some(match self.signature.take() {
            Some(signature) => part.with_signature(signature),
            None => part,
        })
    }
}

#[cfg(test)]
mod tests {
    use futures::StreamExt;
    use proptest::prelude::*;
    use umbel_core::{Event, RunConfig};

    use super::*;
    use crate::handlers::pii::{PiiRule, PiiStrategy};
    use crate::{LlmAgent, Runner, ScriptedModel};

    fn text() -> impl Strategy<Value = String> {
        const PIECES: &[&str] = &["an", "na@x", ".or", "g", " ", "to b@y.io. ", "1.2", ".3.4", "é", "no "];
        prop::sample::select(PIECES).prop_map(str::to_owned)
    }

    fn part() -> impl Strategy<Value = Part> {
        prop_oneof![
            4 => text().prop_map(Part::text),
            2 => text().prop_map(Part::thought),
            1 => text().prop_map(|text| Part::text(text).with_thought(false)),
            1 => text().prop_map(|text| Part::text(text).with_signature("c2ln")),
            1 => Just(Part::data("image/png", [1])),
            1 => Just(Part::text("").with_signature("c2ln")),
        ]
    }

    fn chunk() -> impl Strategy<Value = Chunk> {
        let parts = prop::collection::vec(part(), 0..4);
        prop_oneof![
            4 => text().prop_map(Chunk::Text),
            2 => text().prop_map(Chunk::Thought),
            3 => parts.prop_map(|parts| Chunk::Delta(Response::new(Content::new(Role::Model, parts)))),
            1 => Just(Chunk::Delta(Response::default())),
            1 => prop::collection::vec(part(), 0..3)
                .prop_map(|parts| Chunk::Complete(Response::new(Content::new(Role::Model, parts)))),
            1 => Just(Chunk::Restart),
        ]
    }

    /// The events of a run in which the model answers in these chunks.
    async fn run(chunks: &[Chunk], pii: Option<&Pii>, callbacks: bool) -> Vec<Arc<Event>> {
        let model = ScriptedModel::new("m").chunks(chunks.to_vec());
        let mut agent = LlmAgent::new("a").model(model);
        if callbacks {
            agent = agent.after_model(|_, _| Box::pin(async { Ok(None) }));
        }
        if let Some(pii) = pii {
            agent = agent.handler(pii.clone());
        }
        let runner = Runner::new("app", agent).unwrap();
        let session = runner.create_session("ann").await.unwrap();
        let config = RunConfig { streaming: true, ..RunConfig::default() };
        let events = runner.run_with(&session.key, "hi", config);
        events.map(|event| event.unwrap()).collect().await
    }

    fn said(contents: &[Arc<Content>], thoughts: bool) -> String {
        let parts = contents.iter().flat_map(|content| &content.parts);
        parts.filter(|part| part.is_thought() == thoughts).filter_map(Part::as_text).collect()
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(100))]

        #[test]
        fn an_answer_is_redacted_as_its_whole_is_however_it_comes(
            chunks in prop::collection::vec(chunk(), 1..12),
            lookback in prop_oneof![Just(0), 1..20usize, Just(128)],
            strategy in prop::sample::select(vec![PiiStrategy::Redact, PiiStrategy::Mask, PiiStrategy::Hash]),
            callbacks in any::<bool>(),
        ) {
            let rule = |rule: PiiRule| rule.input(false).output(true).strategy(strategy);
            let pii = Pii::new(rule(PiiRule::email())).rule(rule(PiiRule::ip())).lookback(lookback);
            let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
            let (plain, redacted) = runtime.block_on(async {
                (run(&chunks, None, callbacks).await, run(&chunks, Some(&pii), callbacks).await)
            });
            let whole = |events: &[Arc<Event>]| -> Vec<Arc<Content>> {
                events.iter().filter(|event| !event.is_partial()).filter_map(|event| event.content.clone()).collect()
            };
            let expected: Vec<Arc<Content>> = whole(&plain)
                .into_iter()
                .map(|content| pii.redact_answer(&content).unwrap().map_or(content, Arc::new))
                .collect();
            prop_assert_eq!(&whole(&redacted), &expected);
            if chunks.iter().any(|chunk| matches!(chunk, Chunk::Complete(_))) {
                return Ok(());
            }
            let is_void = |event: &Arc<Event>| event.meta.as_ref().is_some_and(|meta| meta.error_code.is_some());
            let valid = redacted.iter().rposition(is_void).map_or(0, |place| place + 1);
            let previews = redacted.into_iter().skip(valid).filter(|event| event.is_partial());
            let previews: Vec<Arc<Content>> = previews.filter_map(|event| event.content.clone()).collect();
            for thoughts in [false, true] {
                prop_assert_eq!(said(&previews, thoughts), said(&expected, thoughts));
            }
        }
    }
}
