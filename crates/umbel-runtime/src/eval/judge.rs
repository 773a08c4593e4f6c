//! A model that judges whether something is true of a conversation.

use std::fmt;
use std::sync::Arc;

use futures::StreamExt;
use serde::Deserialize;
use serde_json::{Value, json};
use umbel_core::{Chunk, Content, Error, ErrorKind, Model, ModelRequest, Part, RandomIds, Result};

use super::conversation::Said;
use crate::aggregator::Aggregator;
use crate::output_schema::OutputSchema;
use crate::text;

/// A model that judges, and how often it is asked.
#[derive(Clone)]
pub struct Judge {
    model: Arc<dyn Model>,
    samples: u32,
}

/// What came of it.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Verdict {
    pub(super) holds: bool,
    /// Why, in the words of one that is of the majority; or why the others could not be read.
    pub(super) reason: String,
    pub(super) yes: u32,
    pub(super) no: u32,
}

#[derive(Deserialize)]
struct Vote {
    holds: bool,
    #[serde(default)]
    reason: String,
}

impl Judge {
    /// A judge that is asked once about each rubric.
    pub fn new(model: impl Model + 'static) -> Self {
        Self { model: Arc::new(model), samples: 1 }
    }

    /// The same, asked so many times. More than half of them must say yes; an answer that cannot be read does not.
    pub fn samples(mut self, samples: u32) -> Self {
        self.samples = samples.max(1);
        self
    }

    /// Whether the rubric is true of the conversation.
    pub(super) async fn judge(&self, rubric: &str, said: &[(String, Said)]) -> Result<Verdict> {
        let schema = OutputSchema::new(vote_schema())?;
        let mut request = ModelRequest::new(self.model.name());
        request.instruction.push("judge", text::JUDGE);
        request.output_schema = Some(schema.schema().clone());
        request.contents.push(Content::user(Part::text(text::to_judge(rubric, &transcript(said)))));
        let mut votes = Vec::new();
        let mut trouble = None;
        for _ in 0..self.samples {
            match self.ask(&request, &schema).await {
                Ok(vote) => votes.push(vote),
                Err(error) => trouble = Some(error),
            }
        }
        let reason_of = |holds: bool| votes.iter().find(|vote| vote.holds == holds);
        let count = |holds: bool| votes.iter().filter(|vote| vote.holds == holds).count() as u32;
        let (yes, no) = (count(true), count(false));
        // An answer that cannot be read is no yes: the majority is one of all that were asked for.
        let holds = u64::from(yes) * 2 > u64::from(self.samples);
        let reason = match (reason_of(holds), trouble) {
            (Some(vote), _) => vote.reason.clone(),
            (None, Some(error)) if votes.is_empty() => return Err(error),
            (None, trouble) => trouble.map(|error| error.message().to_owned()).unwrap_or_default(),
        };
        Ok(Verdict { holds, reason, yes, no })
    }

    async fn ask(&self, request: &ModelRequest, schema: &OutputSchema) -> Result<Vote> {
        let mut chunks = self.model.generate(request);
        let (mut fold, mut whole) = (Aggregator::new(), None);
        while let Some(chunk) = chunks.next().await {
            match chunk? {
                Chunk::Complete(response) => whole = Some(response),
                Chunk::Restart => (fold, whole) = (Aggregator::new(), None),
                piece => {
                    fold.fold_chunk(piece, &RandomIds, false);
                }
            }
        }
        let answer = whole.or_else(|| fold.close()).and_then(|response| response.content);
        let value = schema.parse(&answer.map(|content| content.text()).unwrap_or_default())?;
        serde_json::from_value(value).map_err(|error| Error::new(ErrorKind::InvalidOutput, error.to_string()))
    }
}

fn vote_schema() -> Value {
    json!({
        "type": "object",
        "properties": {"reason": {"type": "string"}, "holds": {"type": "boolean"}},
        "required": ["reason", "holds"],
        "additionalProperties": false,
    })
}

/// A conversation in words.
fn transcript(said: &[(String, Said)]) -> String {
    let mut lines = String::new();
    for (user, said) in said {
        lines.push_str(&format!("user: {user}\n"));
        for event in said.events.iter().filter(|event| !event.is_user()) {
            let (author, text) = (event.author(), event.text());
            if !text.is_empty() {
                lines.push_str(&format!("{author}: {text}\n"));
            }
            for call in event.calls_and_code() {
                let args = call.args.as_deref().cloned().unwrap_or_default();
                lines.push_str(&format!("{author} calls {} with {}\n", call.name, Value::Object(args)));
            }
            for response in event.responses_and_results() {
                let value = Value::Object(response.response.clone().unwrap_or_default());
                lines.push_str(&format!("{} answers {value}\n", response.name));
            }
        }
    }
    lines
}

impl fmt::Debug for Judge {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Judge({}, {} samples)", self.model.name(), self.samples)
    }
}
