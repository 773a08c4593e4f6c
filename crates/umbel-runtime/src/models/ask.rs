//! Asking a model something that is no part of the conversation.

use futures::StreamExt;
use tracing::Instrument;
use umbel_core::{Chunk, Model, ModelRequest, Response, Result, Run};

use crate::aggregator::Aggregator;
use crate::spans;
use crate::usage::book::metered;

/// Asks a model something that is no part of the conversation, and reads its answer to the end. It counts as a model
/// call of the run.
pub(crate) async fn ask(run: &Run, model: &dyn Model, request: &ModelRequest) -> Result<Option<Response>> {
    run.count_model_call()?;
    let Some(span) = spans::model_call(run, model, request) else { return read(run, model, request).await };
    let answered = Box::pin(read(run, model, request).instrument(span.span().clone())).await;
    match &answered {
        Ok(Some(response)) => {
            span.record_response(response);
            if let Some(content) = &response.content {
                span.take_answer(content, response.finish_reason());
            }
        }
        Ok(None) => {}
        Err(error) => span.record_error(error.kind().code()),
    }
    answered
}

async fn read(run: &Run, model: &dyn Model, request: &ModelRequest) -> Result<Option<Response>> {
    let mut chunks = metered(run, model, model.generate(request));
    let (mut fold, mut whole): (Aggregator, Option<Response>) = (Aggregator::new(), None);
    while let Some(chunk) = run.cancel_token().guard(chunks.next()).await? {
        match chunk? {
            Chunk::Complete(response) => whole = Some(response),
            Chunk::Restart => (fold, whole) = (Aggregator::new(), None),
            piece => {
                fold.fold_chunk(piece, run.services().ids.as_ref(), false);
            }
        }
    }
    Ok(whole.or_else(|| fold.close()))
}
