//! A handler without a framework of agents: it writes a stream that was recorded, in as many frames.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use axum::Router;
use axum::body::Body;
use axum::extract::State;
use axum::response::Response;
use axum::routing::post;
use bytes::Bytes;
use http::{HeaderValue, header};
use http_body::Frame;
use http_body_util::BodyExt;
use tokio::time::{Instant, Sleep};

use crate::agents::PACE;

/// A stream that was recorded: its frames, and whether each comes after a pause.
#[derive(Debug)]
pub struct Recorded {
    pub frames: Vec<Bytes>,
    pub is_paced: bool,
}

/// `/raw` reads the request and writes the stream, `/parse` parses the request as JSON too.
pub fn router(recorded: Recorded) -> Router {
    Router::new().route("/raw", post(raw)).route("/parse", post(parse)).with_state(Arc::new(recorded))
}

async fn raw(State(recorded): State<Arc<Recorded>>, body: Body) -> Response {
    let body = body.collect().await.map(http_body_util::Collected::to_bytes).unwrap_or_default();
    std::hint::black_box(body);
    stream(&recorded)
}

async fn parse(State(recorded): State<Arc<Recorded>>, body: Body) -> Response {
    let body = body.collect().await.map(http_body_util::Collected::to_bytes).unwrap_or_default();
    let value: serde_json::Value = serde_json::from_slice(&body).unwrap_or_default();
    std::hint::black_box(value);
    stream(&recorded)
}

fn stream(recorded: &Recorded) -> Response {
    let frames = recorded.frames.iter().cloned().collect();
    let pause = recorded.is_paced.then(|| Box::pin(tokio::time::sleep(PACE)));
    let body = Written { frames, pause };
    let mut response = Response::new(Body::new(body));
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache, no-store"));
    headers.insert("x-accel-buffering", HeaderValue::from_static("no"));
    let place = HeaderValue::from_static("/raw/runs/run-000000/events?thread=thread-000000");
    headers.insert(header::CONTENT_LOCATION, place);
    response
}

struct Written {
    frames: VecDeque<Bytes>,
    pause: Option<Pin<Box<Sleep>>>,
}

impl http_body::Body for Written {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        if let Some(pause) = &mut self.pause {
            ready!(pause.as_mut().poll(cx));
            pause.as_mut().reset(Instant::now() + PACE);
        }
        Poll::Ready(self.frames.pop_front().map(|frame| Ok(Frame::data(frame))))
    }
}
