//! Any `tower::Layer` as a layer.
//!
//! A stack of tower services is built once, so that its limits hold over all calls, and it must not borrow; a call
//! borrows from its run. So the innermost service does not make the call: it sends it back to the layer, whose own
//! future makes it and sends the result in again.

use std::fmt;
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use futures::StreamExt;
use futures::future::{Either, select};
use futures::stream::FuturesUnordered;
use smol_str::SmolStr;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::sync::{Mutex, oneshot};
use tower_layer::Layer;
use tower_service::Service;
use umbel_core::{
    BoxError, BoxFuture, CallId, Error, ErrorKind, Handler, Hooks, NextTool, Object, ToolCall, ToolError,
    ToolOutput, ToolResult, Work,
};

use super::is_control;

/// A call as tower services see it.
#[derive(Clone, Debug)]
pub struct ToolRequest {
    /// The tool's name. Changing it changes nothing.
    pub name: SmolStr,
    /// The call's id. Changing it changes nothing.
    pub call_id: Option<CallId>,
    /// The arguments.
    pub args: Arc<Object>,
    /// The way back to the call.
    back: UnboundedSender<Ask>,
}

/// What the innermost service wants: the call made with these arguments.
#[derive(Debug)]
struct Ask {
    args: Arc<Object>,
    answer: oneshot::Sender<Result<ToolOutput, Error>>,
}

/// The innermost service of a stack: all that is further in than the layer.
#[derive(Clone, Copy, Debug)]
pub struct ToolService(());

impl Service<ToolRequest> for ToolService {
    type Response = ToolOutput;
    type Error = Error;
    type Future = BoxFuture<'static, Result<ToolOutput, Error>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: ToolRequest) -> Self::Future {
        let gone = || Error::new(ErrorKind::Cancelled, "nobody waits for this call any more");
        Box::pin(async move {
            let (answer, answered) = oneshot::channel();
            let ask = Ask { args: request.args, answer };
            request.back.send(ask).map_err(|_| gone())?;
            answered.await.map_err(|_| gone())?
        })
    }
}

/// A layer from any `tower::Layer`: a timeout, a limit, a retry, a stack of them.
///
/// Services that cannot be cloned can be used too. A call that was interrupted or cancelled further in leaves the stack
/// at once, whatever its services make of errors. A streamed result is an answer to the stack as soon as it begins.
///
/// ```
/// use std::time::Duration;
/// use tower::timeout::TimeoutLayer;
/// use umbel_runtime::layers::tower_layer;
///
/// let layer = tower_layer("timeout", TimeoutLayer::new(Duration::from_secs(5)));
/// ```
pub fn tower_layer<L>(name: impl Into<SmolStr>, layer: L) -> impl Handler + fmt::Debug
where
    L: Layer<ToolService>,
    L::Service: Service<ToolRequest, Response = ToolOutput, Error: Into<BoxError>, Future: Send> + Send,
{
    TowerLayer { name: name.into(), service: Mutex::new(layer.layer(ToolService(()))) }
}

struct TowerLayer<S> {
    name: SmolStr,
    /// Locked until it took a call, not while it works on it.
    service: Mutex<S>,
}

impl<S> TowerLayer<S>
where
    S: Service<ToolRequest, Response = ToolOutput, Error: Into<BoxError>, Future: Send> + Send,
{
    async fn serve(&self, request: ToolRequest) -> Result<ToolOutput, Error> {
        let mut service = self.service.lock().await;
        poll_fn(|cx| service.poll_ready(cx)).await.map_err(error)?;
        let response = service.call(request);
        drop(service);
        response.await.map_err(error)
    }
}

/// An error of a stack: one of Umbel's as it is, another one as a failure of the tool.
fn error(error: impl Into<BoxError>) -> Error {
    match error.into().downcast::<Error>() {
        Ok(error) => *error,
        Err(error) => Error::new(ErrorKind::Tool, error.to_string()).with_source(error),
    }
}

/// Makes the call with the arguments that the innermost service asks for, and sends it the result, unless the stack gave
/// it up. What no layer may deal with is given back instead.
async fn make(call: ToolCall<'_>, next: NextTool<'_>, mut ask: Ask) -> Option<ToolError> {
    let run = call.run();
    if let Err(cancelled) = run.cancel_token().check() {
        return Some(cancelled.into());
    }
    let result = {
        let given_up = pin!(ask.answer.closed());
        match select(next.call(ToolCall { args: ask.args, ..call }), given_up).await {
            Either::Left((result, _)) => result,
            Either::Right(_) => return None,
        }
    };
    match result {
        Err(error) if is_control(run, error.error()) => Some(error),
        result => {
            // If it was given up just now, nobody misses it.
            let _ = ask.answer.send(result.map_err(ToolError::into_error));
            None
        }
    }
}

/// Lets the stack serve a call, and makes the calls that it asks for meanwhile.
async fn drive(
    served: impl Future<Output = Result<ToolOutput, Error>>,
    call: ToolCall<'_>,
    next: NextTool<'_>,
    mut asks: UnboundedReceiver<Ask>,
) -> ToolResult {
    let mut served = pin!(served);
    let mut calls = FuturesUnordered::new();
    poll_fn(|cx| {
        loop {
            if let Poll::Ready(result) = served.as_mut().poll(cx) {
                return Poll::Ready(result.map_err(Into::into));
            }
            while let Poll::Ready(Some(ask)) = asks.poll_recv(cx) {
                calls.push(make(call.clone(), next, ask));
            }
            match calls.poll_next_unpin(cx) {
                Poll::Ready(Some(Some(control))) => return Poll::Ready(Err(control)),
                // The stack has a result to go on with.
                Poll::Ready(Some(None)) => {}
                Poll::Ready(None) | Poll::Pending => return Poll::Pending,
            }
        }
    })
    .await
}

impl<S> Handler for TowerLayer<S>
where
    S: Service<ToolRequest, Response = ToolOutput, Error: Into<BoxError>, Future: Send> + Send,
{
    fn name(&self) -> &str {
        &self.name
    }

    fn hooks(&self) -> Hooks {
        Hooks::WRAP_TOOL
    }

    fn wrap_tool<'a>(&'a self, call: ToolCall<'a>, next: NextTool<'a>) -> Work<'a, ToolResult> {
        Work::later(async move {
            let (back, asks) = unbounded_channel();
            let (name, call_id) = (call.name().into(), call.id().cloned());
            let request = ToolRequest { name, call_id, args: call.args.clone(), back };
            let token = call.run().cancel_token();
            token.guard(pin!(drive(self.serve(request), call, next, asks))).await?
        })
    }
}

impl<S> fmt::Debug for TowerLayer<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "TowerLayer({})", self.name)
    }
}
