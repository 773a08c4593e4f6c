//! Secrets in what people answer: taken out before anyone sees the message, and kept where credentials are.

use std::sync::Arc;

use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use smol_str::SmolStr;
use umbel_core::credential_manager::Whose;
use umbel_core::{
    Answer, CallId, Content, Credential, Error, ErrorKind, Event, FunctionResponse, GivenAuth, Interrupt,
    List, Object, Part, Payload, Result, RunParts, SessionKey,
};

use super::answers::{self, refused};
use super::drive::look;
use super::journal::Recorder;
use crate::contents::visible::REQUEST_CREDENTIAL;
use crate::layers::canonical::write_value;

/// Where the secret is kept that digests of a user's answers are made with.
const DIGEST_KEY: &str = "_answers";

/// The message as it may be seen: where it gives credentials, it says only which. What does not fit its question is an
/// error, and nothing is kept.
pub(super) async fn take_out(
    recorder: &Recorder,
    parts: &RunParts,
    input: Arc<Content>,
) -> Result<(Arc<Content>, Option<Taken>)> {
    let shared = &recorder.shared;
    let (open, events) = recorder.session(|hot| (hot.open().to_vec(), hot.live().clone()));
    // Who works for a call is answered by who made it, and gets no secrets. What was said once may be said again to who
    // stands in the place of tools.
    let is_secret = |response: &FunctionResponse| {
        let id = response.id.as_ref();
        let is_given =
            response.name == REQUEST_CREDENTIAL || id.is_some_and(|id| is_for_credential(&open, &events, id));
        is_given && !is_as_logged(response)
    };
    let is_again = || shared.team.extras.stand_in.is_some() && !input.responses().any(is_secret);
    if parts.depth > 0 || !gives_any(&open, &events, &input)? || is_again() {
        return Ok((input, None));
    }
    let whose = (parts.key.app(), parts.key.user());
    let mut taking = Taking { parts, whose, open, events, given: Vec::new() };
    let mut seen = Content { role: input.role.clone(), ..Content::default() };
    for part in &input.parts {
        seen.parts.push(taking.part(part).await?);
    }
    taking.answer_others(&mut seen);
    let now = shared.services.clock.now();
    answers::check(&shared.team, &taking.open, &taking.events, &seen, now)?;
    let mut taken = Taken { given: Vec::new(), closed: taking.closed(&seen) };
    for (given, value) in taking.given {
        shared.services.credentials.keep_given(taking.whose, &given, value).await?;
        taken.given.push(given);
    }
    Ok((Arc::new(seen), Some(taken)))
}

/// What of a message is in the store of credentials.
pub(super) struct Taken {
    /// What people gave.
    given: Vec<GivenAuth>,
    /// The questions that it closes without being the answer that is used: nothing need be kept for them.
    closed: Vec<CallId>,
}

impl Taken {
    /// Leaves no secrets behind that nobody will use. `is_logged` is whether the message is in the log.
    pub(super) async fn settle(self, recorder: &Recorder, key: &SessionKey, is_logged: bool) {
        if let Err(error) = self.try_to_settle(recorder, key, is_logged).await {
            tracing::warn!("what was kept of a question for a credential could not be deleted: {error}");
        }
    }

    async fn try_to_settle(self, recorder: &Recorder, key: &SessionKey, is_logged: bool) -> Result<()> {
        let (manager, whose) = (&recorder.shared.services.credentials, (key.app(), key.user()));
        if is_logged {
            for question in &self.closed {
                manager.forget_pending(whose, question).await?;
            }
            return Ok(());
        }
        if self.given.is_empty() {
            return Ok(());
        }
        // The same answer may have come twice, and the other one is used.
        look(recorder, key).await?;
        let events = recorder.session(|hot| hot.live().clone());
        let users = events.iter().rev().filter(|event| event.is_user());
        let logged: Vec<GivenAuth> = users.flat_map(|event| event.responses()).filter_map(given_in).collect();
        for given in self.given.iter().filter(|given| !logged.contains(given)) {
            manager.forget_given(whose, given).await?;
        }
        Ok(())
    }
}

fn given_in(response: &FunctionResponse) -> Option<GivenAuth> {
    GivenAuth::of(&serde_json::from_value(Value::Object(response.response.clone()?)).ok()?)
}

/// Whether a response is an answer as the log has it.
fn is_as_logged(response: &FunctionResponse) -> bool {
    let said = Value::Object(response.response.clone().unwrap_or_default());
    let Ok(answer) = serde_json::from_value::<Answer>(said.clone()) else { return false };
    let payload = GivenAuth::of(&answer).map(|given| json!(given));
    answer.payload == payload && json!(answer) == said && response.unknown.is_empty()
}

/// Whether the message answers a question for a credential, be it one that is not open.
fn gives_any(open: &[Interrupt], events: &List<Arc<Event>>, input: &Content) -> Result<bool> {
    let mut any = false;
    for response in input.responses() {
        let is_named = response.name == REQUEST_CREDENTIAL;
        match &response.id {
            Some(id) => any |= is_named || is_for_credential(open, events, id),
            None if is_named => return Err(refused("the answer does not say to which question".to_owned())),
            None => {}
        }
    }
    Ok(any)
}

/// Whether a call asks for a credential.
fn is_for_credential(open: &[Interrupt], events: &List<Arc<Event>>, id: &CallId) -> bool {
    if let Some(asked) = open.iter().find(|asked| asked.id == *id) {
        return asked.call_name() == REQUEST_CREDENTIAL;
    }
    let mut calls = events.iter().rev().flat_map(|event| event.calls());
    calls.find(|call| call.id.as_ref() == Some(id)).is_some_and(|call| call.name == REQUEST_CREDENTIAL)
}

/// One message whose secrets are taken out.
struct Taking<'a> {
    parts: &'a RunParts,
    whose: Whose<'a>,
    open: Vec<Interrupt>,
    events: List<Arc<Event>>,
    /// What is to be kept.
    given: Vec<(GivenAuth, Value)>,
}

impl Taking<'_> {
    /// A part as it may be seen.
    async fn part(&mut self, part: &Part) -> Result<Part> {
        let Payload::Response(response) = &part.payload else { return Ok(part.clone()) };
        let Some(id) = &response.id else { return Ok(part.clone()) };
        if response.name != REQUEST_CREDENTIAL && !is_for_credential(&self.open, &self.events, id) {
            return Ok(part.clone());
        }
        // Made anew: whatever else came along may be a secret, too.
        self.answer(id, response).await.map(|answer| response_part(id, &answer))
    }

    /// An answer as it may be seen.
    async fn answer(&mut self, id: &CallId, response: &FunctionResponse) -> Result<Answer> {
        let given = response.response.clone().unwrap_or_default();
        if let Some(asked) = self.open.iter().find(|asked| asked.id == *id).cloned() {
            return match said(&given) {
                Said::No(answer) => Ok(*answer),
                Said::Given(value, digest) => self.take(&asked, &value, digest).await,
            };
        }
        self.again(id, &given).await
    }

    /// What people give to an open question.
    async fn take(&mut self, asked: &Interrupt, value: &Value, digest: Option<String>) -> Result<Answer> {
        let (id, manager) = (&asked.id, &self.parts.services.credentials);
        let name = asked.credential().unwrap_or_default();
        let Some(pending) = manager.pending(self.whose, id).await? else {
            return Err(refused(format!(
                "question `{id}` cannot be answered any more, since what was kept for it is gone: reject it, and ask the agent again"
            )));
        };
        let kept = pending.expects.check(value);
        let kept =
            kept.map_err(|why| refused(format!("the answer to `{id}` is not what was asked for: {why}")))?;
        // The same answer to the same question of several agents is used once.
        let same = self.given.iter().find(|(given, known)| given.credential_key == name && *known == kept);
        let given = match same {
            Some((given, _)) => given.clone(),
            None => {
                let answer_digest = self.digest(id, value).await?;
                let given = GivenAuth { credential_key: name.into(), question: id.clone(), answer_digest };
                self.given.push((given.clone(), kept));
                given
            }
        };
        Ok(Answer { payload: Some(json!(given)), digest, ..Answer::approve() })
    }

    /// An answer to a question that is not open: the same may come twice, and is what it was.
    async fn again(&self, id: &CallId, given: &Object) -> Result<Answer> {
        let users = self.events.iter().rev().filter(|event| event.is_user());
        let before = users.flat_map(|event| event.responses()).find(|one| one.id.as_ref() == Some(id));
        let Some(before) = before else {
            return Err(refused(format!("nobody asked question `{id}`: see which are open")));
        };
        let before = before.response.clone().unwrap_or_default();
        let seen: Answer = serde_json::from_value(Value::Object(before.clone())).unwrap_or_default();
        let is_same = *given == before
            || match said(given) {
                Said::No(answer) => *answer == seen,
                Said::Given(value, _) => match GivenAuth::of(&seen) {
                    Some(known) => known.answer_digest == self.digest(&known.question, &value).await?,
                    None => false,
                },
            };
        match is_same {
            true => Ok(seen),
            false => Err(refused(format!("question `{id}` was answered already, and otherwise"))),
        }
    }

    /// The questions for credentials that a message closes, but for those whose answer is to be used.
    fn closed(&self, seen: &Content) -> Vec<CallId> {
        let is_used = |id: &CallId| self.given.iter().any(|(given, _)| given.question == *id);
        let is_open =
            |id: &CallId| self.open.iter().any(|asked| asked.id == *id && asked.credential().is_some());
        let answered = seen.responses().filter_map(|response| response.id.as_ref());
        answered.filter(|id| is_open(id) && !is_used(id)).cloned().collect()
    }

    /// One answer does for all open questions for the same credential.
    fn answer_others(&self, seen: &mut Content) {
        let mut answered: Vec<(CallId, Answer)> = Vec::new();
        for response in seen.responses() {
            let (Some(id), Some(given)) = (&response.id, &response.response) else { continue };
            if let Ok(answer) = serde_json::from_value(Value::Object(given.clone())) {
                answered.push((id.clone(), answer));
            }
        }
        let is_answered = |id: &CallId| answered.iter().any(|(known, _)| known == id);
        for other in self.open.iter().filter(|asked| !is_answered(&asked.id)) {
            let Some(name) = other.credential() else { continue };
            let same = |(id, _): &&(CallId, Answer)| {
                self.open.iter().any(|asked| asked.id == *id && asked.credential() == Some(name))
            };
            if let Some((_, answer)) = answered.iter().find(same) {
                // What was shown is another call.
                let answer = Answer { digest: None, ..answer.clone() };
                seen.parts.push(response_part(&other.id, &answer));
            }
        }
    }

    /// A digest of an answer that tells nothing about it to who does not have the user's secret: a password could be guessed
    /// by a digest that anyone can make.
    async fn digest(&self, question: &CallId, answer: &Value) -> Result<SmolStr> {
        let make = || {
            let mut secret = [0u8; 32];
            getrandom::fill(&mut secret).map_err(|e| {
                Error::new(ErrorKind::Other, format!("the system gives no random numbers: {e}"))
            })?;
            Ok(Credential::new(hex(&secret)))
        };
        let secret = self.parts.services.credentials.own(self.whose, DIGEST_KEY, make).await?;
        let mut text = String::new();
        write_value(&mut text, &json!([secret.expose(), question, answer]));
        Ok(hex(&Sha256::digest(text.as_bytes())).into())
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn response_part(id: &CallId, answer: &Answer) -> Part {
    let answer = serde_json::to_value(answer).ok().and_then(|answer| answer.as_object().cloned());
    Part::response(FunctionResponse::new(Some(id.clone()), REQUEST_CREDENTIAL, answer.unwrap_or_default()))
}

/// What people say to a question for a credential.
enum Said {
    /// That they do not give it.
    No(Box<Answer>),
    /// What they give, and what it is an answer to.
    Given(Value, Option<String>),
}

/// Reads an answer: an [`Answer`], its JSON text under `response`, or just what was asked for. Other text that is JSON may
/// be the secret itself.
fn said(response: &Object) -> Said {
    let is_answer = |read: &Value| {
        read.get("confirmed").is_some_and(Value::is_boolean)
            || read.as_object().is_some_and(|read| read.len() == 1 && read.contains_key("result"))
    };
    let value = match response.get("response") {
        Some(Value::String(text)) if response.len() == 1 => {
            let read = serde_json::from_str(text).ok().filter(is_answer);
            read.unwrap_or_else(|| Value::String(text.clone()))
        }
        _ => Value::Object(response.clone()),
    };
    let text = |key: &str| value.get(key).and_then(Value::as_str).map(str::to_owned);
    match value.get("confirmed").and_then(Value::as_bool) {
        Some(false) => {
            Said::No(Box::new(Answer { reason: text("reason"), digest: text("digest"), ..Answer::reject() }))
        }
        Some(true) => Said::Given(value.get("payload").cloned().unwrap_or_default(), text("digest")),
        None => {
            let only =
                value.as_object().filter(|object| object.len() == 1).and_then(|object| object.get("result"));
            Said::Given(only.unwrap_or(&value).clone(), None)
        }
    }
}
