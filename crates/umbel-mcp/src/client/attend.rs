//! Seeing to what a server wants while it works on a request.

use std::sync::atomic::{AtomicU32, Ordering};

use rmcp::model::{
    ClientResult, ElicitResult, ElicitationAction, ErrorData, InputRequest, ProgressNotificationParam,
};
use serde_json::{Value, json};
use tokio::sync::mpsc;
use umbel_core::{Object, Result, ToolContext};

use super::calls::Caller;
use super::elicitation::{self, Answerer, People};
use super::handler::Grants;
use super::sampling::Sampling;

/// Who sees to what a server wants while it works on one request.
pub(crate) struct Attendant<'a> {
    pub(crate) server: &'a str,
    pub(crate) grants: &'a Grants,
    pub(crate) sampling: Option<&'a Sampling>,
    /// The call that the request is for, if it is for one. Without it nobody can be asked.
    pub(crate) cx: Option<&'a ToolContext>,
    /// Who answers its questions at once, if somebody does.
    pub(crate) answerer: Option<&'a Answerer>,
    /// Where news go.
    pub(crate) news: Option<mpsc::Sender<Value>>,
    sampled: AtomicU32,
}

impl<'a> Attendant<'a> {
    pub(crate) fn new(server: &'a str, grants: &'a Grants) -> Self {
        Self {
            server,
            grants,
            sampling: None,
            cx: None,
            answerer: None,
            news: None,
            sampled: AtomicU32::new(0),
        }
    }

    /// For whom the request is, if people can be asked about it.
    pub(crate) fn caller(&self) -> Option<Caller> {
        let key = self.cx?.run().session_key();
        Some([key.app().into(), key.user().into()])
    }

    /// Shows how far the server came.
    pub(crate) async fn progress(&self, told: &ProgressNotificationParam) {
        let Some(news) = &self.news else { return };
        let mut progress = Object::from_iter([("progress".to_owned(), json!(told.progress))]);
        progress.extend(told.total.map(|total| ("total".to_owned(), json!(total))));
        progress.extend(told.message.as_ref().map(|message| ("message".to_owned(), json!(message))));
        let _ = news.send(Value::Object(progress)).await;
    }

    /// Does what the server wants, or refuses it. An error here ends the request: a person must be asked first.
    pub(crate) async fn fulfil(&self, wish: InputRequest) -> Result<Result<ClientResult, ErrorData>> {
        let refuse = |why: &str| Ok(Err(ErrorData::invalid_request(why.to_owned(), None)));
        match wish {
            InputRequest::Elicitation(request) => {
                let Some(cx) = self.cx.filter(|_| self.grants.elicitation) else {
                    let declined = ElicitResult::new(ElicitationAction::Decline);
                    return Ok(Ok(ClientResult::ElicitResult(declined)));
                };
                let people = People { cx, server: self.server, answerer: self.answerer };
                let given = elicitation::ask(people, request.params).await?;
                Ok(given.map(ClientResult::ElicitResult))
            }
            InputRequest::CreateMessage(request) => {
                let Some((sampling, cx)) = self.sampling.zip(self.cx) else {
                    return refuse("no model is lent to servers here");
                };
                if self.sampled.fetch_add(1, Ordering::Relaxed) >= sampling.calls {
                    return refuse("the model was asked often enough for one call");
                }
                let given = sampling.ask(cx, self.server, request.params).await?;
                Ok(given.map(|message| ClientResult::CreateMessageResult(Box::new(message))))
            }
            InputRequest::ListRoots(_) => Ok(Ok(ClientResult::ListRootsResult(self.grants.roots()))),
            _ => refuse("that is not known here"),
        }
    }
}
