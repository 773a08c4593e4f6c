//! What it costs others to read the stream that `bench-models parse` reads: `bench-models-peers WHO CHUNKS TIMES`.

use std::convert::Infallible;

use async_openai::types::chat::CreateChatCompletionStreamResponse;
use eventsource_stream::Eventsource;
use futures::StreamExt;
use futures::executor::block_on;
use rig_core::providers::openai::wire::{Chat, OpenAIConfig};
use rig_core::test_utils::history::decode;
use rig_core::wire::Mode;
use rig_http::http_client::framing::{SseFramer, WireFrame};

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let number = |at: usize| args[at].parse::<usize>().expect("a number");
    let frames = bench_models::stream(number(1));
    let said = bench_models::said(number(1));
    let read = match args[0].as_str() {
        "rig" => rig,
        "async-openai" => async_openai,
        other => panic!("there is no {other}"),
    };
    for _ in 0..number(2) {
        assert_eq!(read(&frames), said);
    }
}

/// rig's framing and decoder, which folds an answer as ours does.
fn rig(frames: &[Vec<u8>]) -> String {
    let wire = Chat::new(OpenAIConfig::new("sk-test"), "gpt-5");
    let mut framer = SseFramer::new();
    let mut split: Vec<WireFrame> = Vec::new();
    for frame in frames {
        split.extend(
            framer
                .push(frame)
                .filter(|event| !event.data.trim().is_empty())
                .map(|event| WireFrame::Text(event.data)),
        );
    }
    let response = decode(&wire, Mode::Streaming, split).expect("an answer");
    response.text()
}

/// async-openai reads server-sent events with this crate, and each of them into this type. It folds nothing.
fn async_openai(frames: &[Vec<u8>]) -> String {
    let mut text = String::new();
    let bytes = futures::stream::iter(frames.iter().map(|frame| Ok::<_, Infallible>(frame.as_slice())));
    block_on(async {
        let mut events = bytes.eventsource();
        while let Some(event) = events.next().await {
            let event = event.expect("an event");
            if event.data == "[DONE]" {
                break;
            }
            let chunk: CreateChatCompletionStreamResponse =
                serde_json::from_str(&event.data).expect("a chunk");
            for choice in chunk.choices {
                text.push_str(choice.delta.content.as_deref().unwrap_or_default());
            }
        }
    });
    text
}
