//! What a call of a tool comes to: a run, which may ask people, and its result.

#![expect(
    deprecated,
    reason = "clients of today read log messages; the protocol gives this up, and nothing comes in its place"
)]

use std::sync::Arc;
use std::time::{Duration, Instant};

use ::http::request::Parts as Head;
use rmcp::model::{
    CallToolRequestParams, CallToolResponse, CallToolResult, ElicitRequest, ElicitResult, InputRequest,
    InputRequiredResult, LoggingLevel, LoggingMessageNotificationParam, ProgressNotificationParam,
    ProgressToken, ProtocolVersion,
};
use rmcp::service::RequestContext;
use rmcp::{ErrorData, RoleServer};
use serde_json::Value;
use umbel_core::trace_context::{TRACEPARENT, TRACESTATE};
use umbel_core::{
    Answer, Caller, Content, Error, ErrorKind, Event, IdKind, Interrupt, Object, Outcome, Part, Parts, Piece,
    RequestTrace, Result, Role, RunConfig, SessionKey, TraceContext,
};
use umbel_runtime::Said as Heard;

use super::client_model::CLIENT;
use super::handler::{Calls, Catalog};
use super::offer::{ANSWER, Kind, Offered, SESSION};
use super::passing::{Passing, Waiting};
use super::questions;
use super::result::{Said, failed, told, waits};

/// How often words in the making are told.
const NEWS: Duration = Duration::from_millis(100);
/// How often a person is asked the same thing, if the answer does not fit.
const TRIES: usize = 3;

/// A call on its way.
pub(super) struct Call<'a> {
    pub(super) catalog: &'a Catalog,
    pub(super) offer: &'a Offered,
    pub(super) calls: &'a Calls,
    pub(super) waiting: &'a Arc<Waiting>,
    pub(super) caller: &'a Caller,
    pub(super) context: &'a RequestContext<RoleServer>,
    /// From which level on the client wants to be told what goes on.
    pub(super) level: LoggingLevel,
}

/// What a run begins with.
enum Begins {
    /// A message in a session of its own.
    New(Content),
    /// A message in a session that is there.
    Message(Content),
    /// What people said.
    Answers(Vec<(Interrupt, Answer)>),
}

/// How a run ended.
enum Ended {
    Said(Box<Said>),
    Asks(Vec<Interrupt>),
}

/// What people said to questions.
enum Told {
    /// Something that a run begins with.
    Begins(Box<Begins>),
    /// Something that cannot be taken, and why: they are asked again.
    Unclear(String),
    /// They are to be asked by the client, which comes again with what they say.
    Later(Box<InputRequiredResult>),
    /// Nobody could be asked, or they did not decide.
    Nothing,
}

impl Call<'_> {
    /// Makes the call. What goes wrong is a result too, so that the model that called is told.
    pub(super) async fn make(&self, params: CallToolRequestParams) -> Result<CallToolResponse, ErrorData> {
        let Some(_place) = self.calls.begin(&self.catalog.limits, self.caller) else {
            return Ok(failed("too many calls are under way: try again when some are done").into());
        };
        let work = CLIENT.scope(self.context.peer.clone(), self.work(params));
        tokio::select! {
            biased;
            // The run is dropped, and so cancelled. Nobody waits for an answer any more.
            () = self.context.ct.cancelled() => Err(ErrorData::internal_error("the call was cancelled", None)),
            made = work => Ok(made.unwrap_or_else(|error| told(&error).into())),
        }
    }

    async fn work(&self, params: CallToolRequestParams) -> Result<CallToolResponse> {
        let args = params.arguments.unwrap_or_default();
        let begun = match (params.request_state, params.input_responses) {
            (Some(session), said) => self.come_again(&session, &said.unwrap_or_default()).await?,
            (None, _) => match self.begin(args).await? {
                Ok((key, begins)) => {
                    (Passing::new(self.offer, key), Vec::new(), Told::Begins(Box::new(begins)))
                }
                Err(refused) => return Ok(refused.into()),
            },
        };
        let (mut session, mut open, mut told) = begun;
        let mut tries = 0;
        loop {
            let again = match told {
                Told::Begins(begins) => match self.run(&mut session, *begins).await {
                    Ok(Ended::Said(said)) => {
                        let result = said.result(self.offer, session.key.id());
                        session.ours(self.offer);
                        session.end().await;
                        return Ok(result.into());
                    }
                    Ok(Ended::Asks(asks)) => {
                        session.ours(self.offer);
                        (tries, open) = (0, asks);
                        None
                    }
                    // The questions stay open.
                    Err(error) if error.kind() == ErrorKind::InvalidConfirmation && !open.is_empty() => {
                        tries += 1;
                        if tries >= TRIES {
                            return Err(error);
                        }
                        Some(error.message().to_owned())
                    }
                    Err(error) => return Err(error),
                },
                Told::Unclear(problem) => Some(problem),
                Told::Later(required) => {
                    session.wait(self.waiting, self.catalog.limits.answer_time);
                    return Ok((*required).into());
                }
                Told::Nothing => {
                    let result = waits(self.offer, session.key.id(), &open, self.catalog.callers_confirm);
                    session.end().await;
                    return Ok(result.into());
                }
            };
            told = self.ask(&session.key, &open, again).await;
        }
    }

    /// The session of a call, and what is said in it; a result if the arguments cannot be used.
    async fn begin(&self, mut args: Object) -> Result<Result<(SessionKey, Begins), CallToolResult>> {
        let (mut session, mut answer) = (None, None);
        if self.offer.takes_answers() {
            (session, answer) = (args.remove(SESSION), args.remove(ANSWER));
        }
        let session = match (&session, &answer) {
            (None | Some(Value::Null), None | Some(Value::Null)) => None,
            (Some(Value::String(session)), _) => Some(session.as_str()),
            _ => return Ok(Err(failed("`session` must be the session of an earlier answer, as a text"))),
        };
        if let (Some(session), Some(answer)) = (session, answer.filter(|answer| !answer.is_null())) {
            let key = self.key(session)?;
            return Ok(self.answered(&key, &answer).await?.map(|begins| (key, begins)));
        }
        if let Err(problems) = self.offer.check(&args) {
            let message = format!("the arguments do not fit `{}`: {problems}", self.offer.name());
            return Ok(Err(failed(message)));
        }
        let message = self.offer.message(args);
        Ok(Ok(match session {
            Some(session) => (self.key(session)?, Begins::Message(message)),
            None => {
                let id = self.offer.runner.services().ids.mint(IdKind::Session);
                (self.key(&id)?, Begins::New(message))
            }
        }))
    }

    /// The session of that name, if it is one of the caller's: there is no way to name another's.
    fn key(&self, session: &str) -> Result<SessionKey> {
        let app = self.caller.app.as_deref().unwrap_or_else(|| self.offer.runner.app());
        SessionKey::new(app, &self.caller.user, session)
    }

    /// What whoever calls says to the questions of a session; a result if it is no answer.
    async fn answered(&self, key: &SessionKey, answer: &Value) -> Result<Result<Begins, CallToolResult>> {
        let open = self.offer.runner.open_questions(key).await?;
        if open.is_empty() {
            return Ok(Err(failed("nothing is asked in that session: leave `answer` out")));
        }
        if open.iter().any(|asked| !questions::can_be_shown(asked))
            || !self.catalog.callers_confirm && open.iter().any(questions::decides)
        {
            return Ok(Err(waits(self.offer, key.id(), &open, self.catalog.callers_confirm)));
        }
        let said = umbel_core::json::render(answer);
        let each: Vec<String> = match open.as_slice() {
            [_] => vec![said],
            several => {
                let given: Object = serde_json::from_str(&said).unwrap_or_default();
                let given = several.iter().map(|asked| given.get(asked.id.as_str()));
                let Some(given) = given.collect::<Option<Vec<_>>>() else {
                    return Ok(Err(waits(self.offer, key.id(), &open, self.catalog.callers_confirm)));
                };
                given.into_iter().map(umbel_core::json::render).collect()
            }
        };
        let mut answers = Vec::new();
        for (asked, said) in open.into_iter().zip(each) {
            match questions::answer_in_words(&asked, &said) {
                Ok(answer) => answers.push((asked, answer)),
                Err(problem) => return Ok(Err(failed(problem))),
            }
        }
        Ok(Ok(Begins::Answers(answers)))
    }

    /// What a client brings that was told to ask, and comes again with what was said.
    async fn come_again(
        &self,
        session: &str,
        said: &std::collections::BTreeMap<String, Value>,
    ) -> Result<(Passing, Vec<Interrupt>, Told)> {
        let session = Passing::come_back(self.offer, self.key(session)?, self.waiting);
        let open = self.offer.runner.open_questions(&session.key).await?;
        if open.is_empty() {
            let message = "nothing is asked any more: call the tool again without `requestState`";
            return Err(Error::new(ErrorKind::InvalidInput, message));
        }
        let (mut answers, mut is_closed) = (Vec::new(), false);
        for asked in &open {
            let Some(said) = said.get(asked.id.as_str()) else { continue };
            let said = serde_json::from_value::<ElicitResult>(said.clone());
            let said = said.map_err(|_| "it is not what a form gives".to_owned());
            match said.and_then(|said| questions::answer(asked, &said)) {
                Ok(Some(answer)) => answers.push((asked.clone(), answer)),
                Ok(None) => is_closed = true,
                Err(problem) => return Ok((session, open, Told::Unclear(problem))),
            }
        }
        let told = match answers.is_empty() {
            false => Told::Begins(Box::new(Begins::Answers(answers))),
            true if is_closed => Told::Nothing,
            true => Told::Unclear("it is missing".to_owned()),
        };
        Ok((session, open, told))
    }

    /// Lets the agent work until it is done or asks something.
    async fn run(&self, session: &mut Passing, begins: Begins) -> Result<Ended> {
        let mut news = News::new(self);
        let runner = &self.offer.runner;
        let mut config: RunConfig = (**runner.config()).clone();
        if let Some(make) = &self.offer.config {
            config = make(self.caller, self.context.extensions.get::<Head>(), config)?;
        }
        config.streaming = news.token.is_some() || matches!(self.offer.kind, Kind::Tool);
        config.create_session = matches!(begins, Begins::New(_));
        if let Some(trace) = self.trace() {
            config.extensions.insert(trace);
        }
        let message = match begins {
            Begins::New(message) | Begins::Message(message) => message,
            Begins::Answers(answers) => {
                let parts = answers.iter().map(|(asked, answer)| Part::response(asked.response(answer)));
                Content::new(Role::User, parts.collect::<Parts>())
            }
        };
        let stream = session.stream.insert(runner.run_with(&session.key, message, config));
        let mut said = Said::default();
        while let Some(heard) = stream.said().await {
            match heard? {
                Heard::Piece(piece) => news.piece(&piece).await,
                Heard::Event(event) if event.is_partial() => news.preview(&event).await,
                Heard::Event(event) => {
                    said.hear(&event);
                    news.event(&event).await;
                }
            }
        }
        match stream.outcome() {
            Some(Outcome::Interrupted { interrupts }) => Ok(Ended::Asks(interrupts.to_vec())),
            Some(Outcome::Cancelled) => Err(Error::new(ErrorKind::Cancelled, "the run was cancelled")),
            Some(Outcome::Failed { failure }) => {
                let kind = ErrorKind::from_code(&failure.code).unwrap_or(ErrorKind::Other);
                Err(Error::new(kind, failure.message.clone()))
            }
            _ => Ok(Ended::Said(Box::new(said))),
        }
    }

    /// The trace that the call is part of, as the message says, or the server that took the request, or the request. Whether
    /// clients may say so is for that server to decide.
    fn trace(&self) -> Option<TraceContext> {
        let head = self.context.extensions.get::<Head>();
        let told = head.and_then(|head| head.extensions.get::<RequestTrace>());
        let is_trusted = told.is_none_or(|told| told.is_trusted);
        let takes_state = told.is_none_or(|told| told.takes_state);
        let meta = &self.context.meta.0;
        if let Some(parent) = meta.get_traceparent().filter(|_| is_trusted) {
            return TraceContext::parse(parent, meta.get_tracestate().filter(|_| takes_state));
        }
        if let Some(span) = told.and_then(|told| told.span.clone()) {
            return Some(span);
        }
        let headers = &head.filter(|_| is_trusted)?.headers;
        let header = |name| headers.get(name).and_then(|value| value.to_str().ok());
        TraceContext::parse(header(TRACEPARENT)?, header(TRACESTATE).filter(|_| takes_state))
    }

    /// Has people asked by the client, if it can.
    async fn ask(&self, key: &SessionKey, open: &[Interrupt], again: Option<String>) -> Told {
        let capabilities = self.context.client_capabilities();
        let elicits = capabilities.and_then(|client| client.elicitation);
        // A client that says nothing about forms has forms: there was nothing else once.
        let has_forms = elicits.is_some_and(|elicits| elicits.form.is_some() || elicits.url.is_none());
        if !has_forms || !open.iter().all(questions::can_be_shown) {
            return Told::Nothing;
        }
        let version = self.context.protocol_version();
        // Since then servers send no requests.
        if version.is_some_and(|version| version.as_str() >= ProtocolVersion::V_2026_07_28.as_str()) {
            let asks = open.iter().map(|asked| {
                let ask = questions::request(asked, again.as_deref())?;
                Some((asked.id.to_string(), InputRequest::Elicitation(ElicitRequest::new(ask))))
            });
            let Some(asks) = asks.collect::<Option<_>>() else { return Told::Nothing };
            let required = InputRequiredResult::new(Some(asks), Some(key.id().to_owned()));
            return Told::Later(Box::new(required));
        }
        let mut answers = Vec::new();
        for asked in open {
            match self.ask_now(asked, again.clone()).await {
                Some(answer) => answers.push((asked.clone(), answer)),
                None => return Told::Nothing,
            }
        }
        Told::Begins(Box::new(Begins::Answers(answers)))
    }

    /// Has a person asked one thing, again if they say nothing that can be taken.
    async fn ask_now(&self, asked: &Interrupt, mut again: Option<String>) -> Option<Answer> {
        for _ in 0..TRIES {
            let ask = questions::request(asked, again.as_deref())?;
            let time = Some(self.catalog.limits.answer_time);
            let said = self.context.peer.create_elicitation_with_timeout(ask, time).await;
            let said = said.inspect_err(|error| tracing::debug!("a client could not ask: {error}")).ok()?;
            match questions::answer(asked, &said) {
                Ok(answer) => return answer,
                Err(problem) => again = Some(problem),
            }
        }
        None
    }
}

/// Tells the client what goes on, as it asked for.
struct News<'a> {
    call: &'a Call<'a>,
    token: Option<ProgressToken>,
    /// How far it is; this only grows.
    at: f64,
    /// Words in the making.
    words: String,
    told: Instant,
}

impl<'a> News<'a> {
    fn new(call: &'a Call<'a>) -> Self {
        let token = call.context.meta.get_progress_token();
        Self { call, token, at: 0.0, words: String::new(), told: Instant::now() }
    }

    /// More words. They are told now and then, not one by one.
    async fn piece(&mut self, piece: &Piece) {
        if piece.is_thought || self.token.is_none() {
            return;
        }
        self.words.push_str(&piece.text);
        if self.told.elapsed() >= NEWS {
            let words = std::mem::take(&mut self.words);
            self.step(words).await;
        }
    }

    /// News of a tool, or words that came as an event.
    async fn preview(&mut self, event: &Event) {
        for response in event.responses() {
            let news = response.response.clone().unwrap_or_default();
            self.of_tool(&response.name, news).await;
        }
    }

    async fn event(&mut self, event: &Event) {
        if !self.words.is_empty() {
            let words = std::mem::take(&mut self.words);
            self.step(words).await;
        }
        if matches!(self.call.offer.kind, Kind::Tool) {
            return;
        }
        for call in event.calls() {
            self.step(format!("calls `{}`", call.name)).await;
        }
    }

    /// What a tool says while it works: anything, or `progress`, `total` and `message`.
    async fn of_tool(&mut self, tool: &str, news: Object) {
        let number = |key: &str| news.get(key).and_then(Value::as_f64);
        let only = if news.len() == 1 { news.get("result") } else { None };
        let message = news.get("message").or(only).map(umbel_core::json::render);
        if self.token.is_none() {
            let data = only.cloned().unwrap_or_else(|| Value::Object(news));
            return self.log(tool, data).await;
        }
        let message = message.unwrap_or_else(|| Value::Object(news.clone()).to_string());
        match number("progress") {
            // Of several tools at work, none knows how far the whole is.
            Some(at) if matches!(self.call.offer.kind, Kind::Tool) => {
                self.tell(at.max(self.at), number("total"), message).await;
            }
            _ => self.step(message).await,
        }
    }

    async fn step(&mut self, message: String) {
        self.tell(self.at + 1.0, None, message).await;
    }

    async fn tell(&mut self, at: f64, total: Option<f64>, message: String) {
        let Some(token) = self.token.clone() else { return };
        (self.at, self.told) = (at, Instant::now());
        let mut progress = ProgressNotificationParam::new(token, at).with_message(message);
        progress.total = total;
        // If the client is gone, the call is cancelled elsewhere.
        let _ = self.call.context.peer.notify_progress(progress).await;
    }

    /// Tells a client that asked for no progress.
    async fn log(&self, tool: &str, data: Value) {
        // The levels in their order.
        if self.call.level as u8 > LoggingLevel::Info as u8 {
            return;
        }
        let message = LoggingMessageNotificationParam::new(LoggingLevel::Info, data).with_logger(tool);
        let _ = self.call.context.peer.notify_logging_message(message).await;
    }
}
