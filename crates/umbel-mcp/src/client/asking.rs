//! A request that may take several rounds: people are asked in between, credentials renewed, connections opened again.

use std::time::Duration;

use rmcp::model::{ClientRequest, InputRequest, InputResponses, ServerResult};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use smol_str::format_smolstr;
use tokio::sync::mpsc;
use umbel_core::tool_context::ONCE;
use umbel_core::{Error, ErrorKind, Grant, Result, ToolContext};

use super::attend::Attendant;
use super::elicitation::{self, People};
use super::link::Failure;
use super::oauth::{REFUSED, Refused};
use super::toolset::Inner;

/// How many rounds a request may take.
const ROUNDS: u32 = 10;
/// How long is waited before a server is asked again that just said to do so.
const AGAIN: Duration = Duration::from_millis(200);

/// What a server wants before it answers, and what it got.
#[derive(Clone, Debug, Default)]
pub(crate) struct Asked {
    pub(crate) responses: Option<InputResponses>,
    pub(crate) state: Option<String>,
}

/// What a server wants before it answers, as it is kept: after a question the request goes on from here.
#[derive(Debug, Deserialize, Serialize)]
struct Wanted {
    requests: Vec<(String, Value)>,
    state: Option<String>,
}

/// A request on behalf of a call, until it is answered.
pub(crate) struct Asking<'a> {
    inner: &'a Inner,
    cx: &'a ToolContext,
    /// It can be made again when the connection broke.
    is_safe_twice: bool,
    /// Where news go.
    pub(crate) news: Option<mpsc::Sender<Value>>,
}

impl<'a> Asking<'a> {
    pub(crate) fn new(inner: &'a Inner, cx: &'a ToolContext, is_safe_twice: bool) -> Self {
        Self { inner, cx, is_safe_twice, news: None }
    }

    /// The answer. `request` makes the request of each round.
    pub(crate) async fn ask(
        mut self,
        request: impl Fn(&Asked) -> ClientRequest,
    ) -> Result<ServerResult, Failure> {
        let options = &self.inner.options;
        let mut attendant = Attendant::new(&options.name, &options.grants);
        attendant.sampling = options.sampling.as_ref();
        attendant.cx = Some(self.cx);
        attendant.answerer = options.answerer.as_ref();
        attendant.news = self.news.take();
        let mut asked = Asked::default();
        for round in 0..ROUNDS {
            let wanted = match self.kept(round)? {
                Some(wanted) => wanted,
                None => match self.round(&request(&asked), &attendant).await? {
                    ServerResult::InputRequiredResult(result) => {
                        let requests = result.input_requests.unwrap_or_default().into_iter();
                        let requests =
                            requests.filter_map(|(key, wish)| Some((key, serde_json::to_value(wish).ok()?)));
                        let wanted = Wanted { requests: requests.collect(), state: result.request_state };
                        self.keep(round, wanted).await?
                    }
                    answer => return Ok(answer),
                },
            };
            asked = self.fulfil(round, wanted, &attendant).await?;
        }
        let message = format!("the MCP server `{}` asks for more and more before it answers", options.name);
        Err(Error::new(ErrorKind::Tool, message).into())
    }

    /// One request, made again where that helps.
    async fn round(
        &self,
        request: &ClientRequest,
        attendant: &Attendant<'_>,
    ) -> Result<ServerResult, Failure> {
        let options = &self.inner.options;
        let mut grant = self.grant(None).await?;
        let slot = self.inner.slot(self.cx.run(), grant.as_ref())?;
        let _turn = if options.one_at_a_time { Some(slot.turn.lock().await) } else { None };
        let (mut reconnected, mut renewed, mut visited) = (false, false, false);
        loop {
            let failure = match slot.ask(options, request.clone(), attendant).await {
                Ok(answer) => return Ok(answer),
                Err(failure) => failure,
            };
            match failure {
                Failure::Ended(_) if self.is_safe_twice && !reconnected => reconnected = true,
                Failure::Stranger(said) if grant.is_some() && !renewed => {
                    renewed = true;
                    grant = self.grant(grant.map(|grant| (said, grant))).await?;
                    slot.authorise(grant.as_ref())?;
                }
                Failure::GoThereFirst(pages) if !visited && options.grants.elicitation => {
                    visited = true;
                    self.visit(&pages).await?;
                }
                failure => return Err(failure),
            }
        }
    }

    /// The credential, or another one in the place of one that the server refused in these words.
    async fn grant(&self, refused: Option<(String, Grant)>) -> Result<Option<Grant>> {
        let Some(auth) = &self.inner.options.auth else { return Ok(None) };
        match refused {
            Some((said, grant)) => {
                let refused = Refused { said, credential: grant.credential().clone() };
                REFUSED.scope(refused, self.cx.credential_refused(auth, &grant)).await.map(Some)
            }
            None => self.cx.credential(auth).await.map(Some),
        }
    }

    /// Asks a person to go to pages first.
    async fn visit(&self, pages: &[Value]) -> Result<()> {
        let server = &self.inner.options.name;
        let people = People { cx: self.cx, server, answerer: self.inner.options.answerer.as_ref() };
        for page in pages {
            let text = |key: &str| page.get(key).and_then(Value::as_str).unwrap_or_default();
            let went = elicitation::visit(people, text("message"), text("url")).await?;
            let accepted = went.is_ok_and(|went| went.action == rmcp::model::ElicitationAction::Accept);
            if !accepted {
                let message =
                    format!("a person did not want to open the page that the MCP server `{server}` needs");
                return Err(Error::new(ErrorKind::Tool, message));
            }
        }
        Ok(())
    }

    /// Sees to what a server wants before it answers.
    async fn fulfil(&self, round: u32, wanted: Wanted, attendant: &Attendant<'_>) -> Result<Asked> {
        if wanted.requests.is_empty() {
            tokio::time::sleep(AGAIN.saturating_mul(1 << round)).await;
            return Ok(Asked { responses: None, state: wanted.state });
        }
        let server = &self.inner.options.name;
        let wrong = |why: &str| {
            Error::new(ErrorKind::Tool, format!("the MCP server `{server}` wants something: {why}"))
        };
        let mut responses = InputResponses::new();
        for (key, wish) in wanted.requests {
            let wish: InputRequest =
                serde_json::from_value(wish).map_err(|_| wrong("it cannot be understood"))?;
            let given = attendant.fulfil(wish).await?.map_err(|refused| wrong(&refused.message))?;
            responses.insert(key, serde_json::to_value(given).map_err(|_| wrong("it has no JSON form"))?);
        }
        Ok(Asked { responses: Some(responses), state: wanted.state })
    }

    /// What the server wanted in a round that was made before a question.
    fn kept(&self, round: u32) -> Result<Option<Wanted>> {
        let Some(call) = self.cx.idempotency_key() else { return Ok(None) };
        self.cx.run().kept(&format_smolstr!("{ONCE}{call}.mcp{round}"))
    }

    async fn keep(&self, round: u32, wanted: Wanted) -> Result<Wanted> {
        self.cx.once(&format!("mcp{round}"), || async { Ok(wanted) }).await
    }
}
