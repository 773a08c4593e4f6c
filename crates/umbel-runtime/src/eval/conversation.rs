//! The conversation of a case, as it went.

use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::StreamExt;
use smol_str::SmolStr;
use umbel_core::interrupt::{REQUEST_CONFIRMATION, REQUEST_CREDENTIAL, REQUEST_INPUT};
use umbel_core::{
    Answer, Content, Event, Interrupt, ModelUsage, NewSession, Object, Outcome, Part, Parts, Result, Role,
    SessionKey, Usage,
};

use super::case::{Case, Reply};
use super::tools::has;
use crate::flow::calls_of;
use crate::flow::data_files::looks_at_file;
use crate::output_schema::SET_MODEL_RESPONSE;
use crate::runner::Runner;

/// Who talks unless a case says otherwise.
const USER: &str = "eval";
/// How many rounds of questions one message may lead to.
const ROUNDS: usize = 50;

/// A conversation, as it went.
#[derive(Clone, Debug, Default)]
pub(super) struct Conversation {
    pub(super) turns: Vec<Said>,
    /// The state at the end.
    pub(super) state: Object,
    /// Why it did not come to its end.
    pub(super) failure: Option<String>,
    pub(super) time: Duration,
}

/// What followed from one message.
#[derive(Clone, Debug, Default)]
pub(super) struct Said {
    pub(super) events: Vec<Arc<Event>>,
}

/// A call that was made.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Called {
    pub(super) name: SmolStr,
    pub(super) args: Object,
}

impl Said {
    /// The calls that models made, in the order of the log; code that they had run is one. Those by which Umbel asks people,
    /// or looks at files, are not the model's.
    pub(super) fn calls(&self) -> Vec<Called> {
        let own = [REQUEST_CONFIRMATION, REQUEST_CREDENTIAL, REQUEST_INPUT, SET_MODEL_RESPONSE];
        let said = self.events.iter().filter(|event| !event.is_user());
        let calls = said
            .filter(|event| !event.code_id().is_some_and(looks_at_file))
            .flat_map(|event| calls_of(event));
        let calls = calls.filter(|call| !own.contains(&call.name.as_str()));
        let called = calls.map(|call| Called {
            name: call.name,
            args: call.args.map(Arc::unwrap_or_clone).unwrap_or_default(),
        });
        called.collect()
    }

    fn last(&self) -> Option<&Arc<Event>> {
        self.events.iter().rev().find(|event| event.is_final() && event.content.is_some())
    }

    /// The answer.
    pub(super) fn text(&self) -> String {
        self.last().map(|event| event.answer_text()).unwrap_or_default()
    }

    /// Who gave it.
    pub(super) fn author(&self) -> &str {
        self.last().map(|event| event.author()).unwrap_or_default()
    }
}

impl Conversation {
    /// What models told about what they used.
    pub(super) fn used(&self) -> Vec<ModelUsage> {
        let events = self.turns.iter().flat_map(|said| &said.events);
        let mut used = Vec::new();
        for event in events {
            let meta = event.meta.as_deref();
            if let Some(usage) = meta.and_then(|meta| meta.usage_metadata.as_ref()) {
                let model = meta.and_then(|meta| meta.model_version.clone());
                used.push(ModelUsage { model, usage: usage.clone() });
            }
            used.extend(event.actions.iter().flat_map(|actions| actions.called_usage.iter().cloned()));
        }
        used
    }
}

/// All tokens of a call.
pub(super) fn tokens(usage: &Usage) -> u64 {
    let counts = [usage.prompt_token_count, usage.candidates_token_count, usage.thoughts_token_count];
    let sum = counts.iter().flatten().fold(0_u64, |sum, count| sum.saturating_add(*count));
    usage.total_token_count.unwrap_or(0).max(sum)
}

/// Has the conversation of a case.
pub(super) async fn talk(runner: &Runner, case: &Case) -> Conversation {
    let began = Instant::now();
    let mut talk = Conversation::default();
    if let Err(error) = try_to_talk(runner, case, &mut talk).await {
        talk.failure = Some(error.to_string());
    }
    talk.time = began.elapsed();
    talk
}

async fn try_to_talk(runner: &Runner, case: &Case, talk: &mut Conversation) -> Result<()> {
    let id = runner.services().ids.mint(umbel_core::IdKind::Session);
    let key = SessionKey::new(runner.app(), case.user.as_deref().unwrap_or(USER), id)?;
    runner.sessions().create(NewSession::new(key.clone()).state(case.state.clone())).await?;
    for turn in &case.turns {
        talk.turns.push(Said::default());
        let failure = answer(runner, &key, turn.user.clone(), &case.answers, talk).await?;
        if failure.is_some() {
            talk.failure = failure;
            break;
        }
    }
    let view = runner.session(&key).await?;
    talk.state = view.map(|view| view.state.to_object()).unwrap_or_default();
    Ok(())
}

/// Has a message answered, with all that people are asked for it. Gives why that did not come to its end.
async fn answer(
    runner: &Runner,
    key: &SessionKey,
    mut message: Content,
    replies: &[Reply],
    talk: &mut Conversation,
) -> Result<Option<String>> {
    for _ in 0..ROUNDS {
        let mut run = runner.run(key, message);
        let mut failure = None;
        while let Some(item) = run.next().await {
            match item {
                Ok(event) if !event.is_partial() => {
                    talk.turns.last_mut().into_iter().for_each(|said| said.events.push(event.clone()));
                }
                Ok(_) => {}
                Err(error) => failure = Some(error.to_string()),
            }
        }
        let asked = match run.outcome() {
            _ if failure.is_some() => return Ok(failure),
            Some(Outcome::Interrupted { interrupts }) => (**interrupts).clone(),
            Some(Outcome::Failed { failure }) => return Ok(Some(failure.message.clone())),
            Some(Outcome::Cancelled) => return Ok(Some("the run was cancelled".to_owned())),
            _ => return Ok(None),
        };
        let mut answers = Parts::new();
        for interrupt in &asked {
            match reply(replies, interrupt) {
                Some(answer) => answers.push(Part::response(interrupt.response(&answer))),
                None => return Ok(Some(unanswered(interrupt))),
            }
        }
        message = Content::new(Role::User, answers);
    }
    Ok(Some(format!("people were asked {ROUNDS} times, and there was no end of it")))
}

fn reply(replies: &[Reply], interrupt: &Interrupt) -> Option<Answer> {
    let call = interrupt.call.as_ref();
    let fits = |reply: &&Reply| {
        let tool = reply.tool.as_deref().is_none_or(|tool| call.is_some_and(|call| call.name == tool));
        let none = Object::new();
        let args = call.and_then(|call| call.args.as_deref()).unwrap_or(&none);
        tool && reply.when.as_ref().is_none_or(|when| has(when, args))
    };
    replies.iter().find(fits).map(Reply::answer)
}

fn unanswered(interrupt: &Interrupt) -> String {
    let about = interrupt.call.as_ref().map(|call| format!(" about `{}`", call.name)).unwrap_or_default();
    let message = interrupt.message.as_deref().unwrap_or_default();
    format!(
        "{} asks a question{about} that the case has no answer to: {message} (add an [[case.answer]])",
        interrupt.address.agent
    )
}
