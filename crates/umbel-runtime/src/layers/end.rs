//! How a call ends, be its result streamed or not.

use std::future::Future;

use futures::StreamExt;
use umbel_core::{Error, ErrorKind, ToolError, ToolItem, ToolOutput, ToolResult, ToolStream, ToolValue};

use crate::text;

/// Lets `finish` see how a call ends, and change it: with a value or an error.
///
/// A streamed result passes piece by piece, and `finish` sees its last item. If the stream is dropped before that,
/// `finish` is dropped with it: what it holds, such as a permit, goes back by its `Drop`.
///
/// ```
/// use std::future::ready;
/// use umbel_runtime::layers::at_end;
/// # use umbel_core::ToolResult;
/// # async fn mark(result: ToolResult) -> ToolResult {
/// // In a layer, with what `next` gave:
/// at_end(result, |end| {
///     ready(end.map(|mut value| {
///         value.metadata.insert("seen".into(), true.into());
///         value
///     }))
/// })
/// .await
/// # }
/// ```
pub async fn at_end<F, Fut>(result: ToolResult, finish: F) -> ToolResult
where
    F: FnOnce(Result<ToolValue, ToolError>) -> Fut + Send + 'static,
    Fut: Future<Output = Result<ToolValue, ToolError>> + Send + 'static,
{
    match result {
        Ok(ToolOutput::Stream(items)) => Ok(ToolOutput::Stream(map_last(items, finish))),
        Ok(ToolOutput::Value(value)) => finish(Ok(*value)).await.map(ToolOutput::from),
        Err(error) => finish(Err(error)).await.map(ToolOutput::from),
    }
}

fn map_last<F, Fut>(items: ToolStream, finish: F) -> ToolStream
where
    F: FnOnce(Result<ToolValue, ToolError>) -> Fut + Send + 'static,
    Fut: Future<Output = Result<ToolValue, ToolError>> + Send + 'static,
{
    Box::pin(futures::stream::unfold(Some((items, finish)), |state| async move {
        let (mut items, finish) = state?;
        let end = match items.next().await {
            Some(Ok(ToolItem::Done(value))) => Ok(value),
            Some(Ok(news)) => return Some((Ok(news), Some((items, finish)))),
            Some(Err(error)) => Err(error),
            None => Err(Error::new(ErrorKind::Tool, text::NO_RESULT).into()),
        };
        // The stream is over: whatever it holds goes before others are told.
        drop(items);
        Some((finish(end).await.map(ToolItem::Done), None))
    }))
}

#[cfg(test)]
mod tests {
    use std::future::ready;

    use serde_json::{Value, json};

    use super::*;

    fn stream(items: Vec<Result<ToolItem, ToolError>>) -> ToolResult {
        Ok(ToolOutput::Stream(Box::pin(futures::stream::iter(items))))
    }

    async fn items(result: ToolResult) -> Vec<Result<ToolItem, String>> {
        let Ok(ToolOutput::Stream(items)) = result else { panic!("not a stream") };
        items.map(|item| item.map_err(|e| e.to_string())).collect().await
    }

    #[tokio::test]
    async fn the_last_item_is_mapped_and_the_others_pass() {
        let news = ToolItem::Progress(json!(1));
        let given = stream(vec![Ok(news.clone()), Ok(ToolItem::Done(json!(2).into()))]);
        let mapped = at_end(given, |end| {
            assert_eq!(end.unwrap().value, json!(2));
            ready(Ok(json!(3).into()))
        });
        assert_eq!(items(mapped.await).await, [Ok(news), Ok(ToolItem::Done(json!(3).into()))]);
    }

    #[tokio::test]
    async fn a_stream_that_ends_with_an_error_or_without_a_value_is_a_failure() {
        for (given, word) in [(vec![Err(ToolError::new("boom"))], "boom"), (vec![], "without a result")] {
            let mapped = at_end(stream(given), |end| ready(end.map(|_| Value::Null.into()))).await;
            let items = items(mapped).await;
            assert_eq!(items.len(), 1);
            assert!(items[0].as_ref().unwrap_err().contains(word), "{items:?}");
        }
    }
}
