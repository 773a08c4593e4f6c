//! What becomes of a request on its way: over real connections, to a provider that behaves and to ones that do not.

use std::time::Duration;

use futures::StreamExt;
use umbel_core::{Chunk, Content, Error, ErrorKind, Model, ModelErrorKind, Result};
use umbel_models::{HttpModel, Tape, Timeouts, model};

use crate::server::{Act, Server, answer};
use crate::support::{request, whole};

const STREAM: &str = "content-type: text/event-stream\r\nx-request-id: req-7\r\n";
const HELLO: &str = "data: {\"model\":\"m\",\"choices\":[{\"index\":0,\"delta\":{\"content\":\"Hello\"}}]}\n\n\
                     data: {\"choices\":[{\"index\":0,\"delta\":{},\"finish_reason\":\"stop\"}]}\n\n\
                     data: [DONE]\n\n";
const WHOLE: &str =
    "{\"choices\":[{\"index\":0,\"message\":{\"content\":\"Hello\"},\"finish_reason\":\"stop\"}]}";

fn at(url: &str) -> HttpModel {
    model(&format!("{url}/v1#m")).unwrap()
}

async fn ask(model: &HttpModel, stream: bool) -> Vec<Result<Chunk>> {
    let mut request = request([Content::user("hi")]);
    request.stream = stream;
    model.generate(&request).collect().await
}

async fn fail(model: &HttpModel, stream: bool) -> Error {
    ask(model, stream).await.pop().unwrap().unwrap_err()
}

#[tokio::test]
async fn an_answer_is_streamed_and_says_which_request_it_belongs_to() {
    let server = Server::answering("200 OK", STREAM, HELLO).await;
    let model = at(&server.url).api_key("sk-1").unwrap().header("x-team", "blue").unwrap();
    let chunks = ask(&model, true).await;
    assert_eq!(chunks[0].as_ref().unwrap(), &Chunk::Text("Hello".to_owned()));
    assert_eq!(whole(&chunks).meta.as_ref().unwrap().unknown["requestId"], "req-7");
    let sent = &server.requests()[0];
    assert!(sent.starts_with("POST /v1/chat/completions HTTP/1.1\r\n"), "{sent}");
    for header in ["authorization: Bearer sk-1\r\n", "x-team: blue\r\n", "content-type: application/json\r\n"]
    {
        assert!(sent.contains(header), "{header} is not in {sent}");
    }
    assert!(sent.ends_with(r#""messages":[{"role":"user","content":"hi"}]}"#), "{sent}");
}

#[tokio::test]
async fn a_whole_answer_to_a_request_for_a_stream_is_taken_too() {
    let server = Server::answering("200 OK", "content-type: application/json\r\n", WHOLE).await;
    for stream in [true, false] {
        let chunks = ask(&at(&server.url), stream).await;
        assert_eq!(whole(&chunks).content.as_ref().unwrap().text(), "Hello");
    }
}

#[tokio::test]
async fn refusals_are_classed_and_say_how_long_to_wait() {
    let body = r#"{"error":{"message":"slow down"}}"#;
    for (status, headers, kind, wait) in [
        ("429 Too Many Requests", "retry-after: 3\r\n", ModelErrorKind::RateLimited, Some(3)),
        ("529 Overloaded", "retry-after-ms: 2000\r\n", ModelErrorKind::Overloaded, Some(2)),
        ("401 Unauthorized", "", ModelErrorKind::Auth, None),
    ] {
        let server = Server::answering(status, headers, body).await;
        let error = fail(&at(&server.url), true).await;
        assert_eq!(error.kind(), ErrorKind::Model(kind), "{status}");
        assert_eq!(error.retry_after(), wait.map(Duration::from_secs));
        assert!(error.message().contains("slow down"), "{error}");
    }
    let server = Server::answering("500 Oh", "", "").await;
    assert_eq!(fail(&at(&server.url), false).await.kind(), ErrorKind::Model(ModelErrorKind::Overloaded));
}

#[tokio::test]
async fn a_stream_that_breaks_off_anywhere_is_cut() {
    let frames: String = HELLO.lines().take(1).map(|line| format!("{line}\n\n")).collect();
    let chunked = format!("{:x}\r\n{frames}\r\n", frames.len());
    for bytes in [
        answer("200 OK", STREAM, &frames),
        answer("200 OK", &format!("{STREAM}content-length: 9999\r\n"), &frames),
        answer("200 OK", &format!("{STREAM}transfer-encoding: chunked\r\n"), &chunked),
    ] {
        let server = Server::start([Act::Send(bytes)]).await;
        let chunks = ask(&at(&server.url), true).await;
        assert_eq!(chunks[0].as_ref().unwrap(), &Chunk::Text("Hello".to_owned()));
        assert_eq!(chunks[1].as_ref().unwrap_err().kind(), ErrorKind::StreamCut);
        assert_eq!(chunks.len(), 2);
    }
    let half = &WHOLE[..20];
    let cut = answer("200 OK", "content-type: application/json\r\ncontent-length: 999\r\n", half);
    let server = Server::start([Act::Send(cut)]).await;
    assert_eq!(fail(&at(&server.url), false).await.kind(), ErrorKind::StreamCut);
}

#[tokio::test]
async fn each_wait_for_a_provider_takes_no_time_or_all_the_time_there_is() {
    type Set = fn(&mut Timeouts, Duration);
    let waits: [(&str, Set); 3] = [
        ("connect", |waits, time| waits.connect = time),
        ("first_byte", |waits, time| waits.first_byte = time),
        ("between_bytes", |waits, time| waits.between_bytes = time),
    ];
    for (name, set) in waits {
        let mut timeouts = Timeouts::default();
        set(&mut timeouts, Duration::MAX);
        let server = Server::answering("200 OK", STREAM, HELLO).await;
        let chunks = ask(&at(&server.url).timeouts(timeouts).unwrap(), true).await;
        assert_eq!(chunks[0].as_ref().unwrap(), &Chunk::Text("Hello".to_owned()), "{name}");
        // A connection to the same machine may be there at once: then the next wait ends it.
        let soon = Duration::from_millis(200);
        let mut timeouts = Timeouts { connect: soon, first_byte: soon, between_bytes: soon };
        set(&mut timeouts, Duration::ZERO);
        let server = Server::start([Act::Hang(answer("200 OK", STREAM, ": wait\n\n"))]).await;
        let error = fail(&at(&server.url).timeouts(timeouts).unwrap(), true).await;
        assert!(error.is_retryable(), "{name}: {error}");
    }
}

#[tokio::test]
async fn a_provider_that_is_silent_is_not_waited_for_forever() {
    let timeouts = Timeouts {
        connect: Duration::from_secs(5),
        first_byte: Duration::from_millis(100),
        between_bytes: Duration::from_millis(100),
    };
    let server = Server::start([Act::Hang(Vec::new())]).await;
    let error = fail(&at(&server.url).timeouts(timeouts).unwrap(), true).await;
    assert_eq!(error.kind(), ErrorKind::Model(ModelErrorKind::Transport));
    assert!(error.message().contains("no answer within"), "{error}");
    let begun = answer("200 OK", STREAM, ": wait\n\n");
    let server = Server::start([Act::Hang(begun)]).await;
    let error = fail(&at(&server.url).timeouts(timeouts).unwrap(), true).await;
    assert_eq!(error.kind(), ErrorKind::StreamCut);
    assert!(error.message().contains("nothing came for"), "{error}");
}

#[tokio::test]
async fn nobody_there_is_a_failed_connection_that_says_why() {
    let error = fail(&at("http://127.0.0.1:1"), true).await;
    assert_eq!(error.kind(), ErrorKind::Model(ModelErrorKind::Transport));
    assert!(error.message().contains("refused"), "{error}");
    let server = Server::start([Act::Send(b"what?".to_vec())]).await;
    assert_eq!(fail(&at(&server.url), true).await.kind(), ErrorKind::Model(ModelErrorKind::Transport));
}

#[tokio::test]
async fn a_key_is_not_taken_to_another_address() {
    let other = Server::answering("200 OK", STREAM, HELLO).await;
    let server = Server::answering("307 Over there", &format!("location: {}\r\n", other.url), "").await;
    let error = fail(&at(&server.url).api_key("sk-secret").unwrap(), true).await;
    assert_eq!(error.kind(), ErrorKind::Model(ModelErrorKind::Other));
    assert_eq!(other.requests(), Vec::<String>::new());
    assert!(!format!("{error:?}").contains("sk-secret"));
}

#[tokio::test]
async fn requests_go_through_a_proxy_if_there_is_one() {
    let proxy = Server::answering("200 OK", STREAM, HELLO).await;
    let model = at("http://nowhere.invalid").proxy(&proxy.url).unwrap();
    assert_eq!(whole(&ask(&model, true).await).content.as_ref().unwrap().text(), "Hello");
    assert!(proxy.requests()[0].starts_with("POST http://nowhere.invalid/v1/chat/completions "));
    assert!(at("http://nowhere.invalid").proxy("\n").is_err());
}

#[tokio::test]
async fn what_was_recorded_is_played_again_without_a_network_and_without_keys() {
    let refused =
        answer("429 No", "retry-after: 2\r\nset-cookie: secret\r\n", "{\"error\":\"sk-secret-1 is slow\"}");
    let cut = answer(
        "200 OK",
        &format!("{STREAM}content-length: 999\r\n"),
        HELLO.split("data: [DONE]").next().unwrap(),
    );
    let cut = String::from_utf8(cut)
        .unwrap()
        .replace("\"finish_reason\":\"stop\"", "\"finish_reason\":null")
        .into_bytes();
    let acts = [answer("200 OK", STREAM, HELLO), refused, cut];
    let server = Server::start(acts.map(Act::Send)).await;
    let tape = Tape::new();
    let model = at(&server.url).api_key("sk-secret-1").unwrap().record(&tape);
    let mut live = Vec::new();
    for _ in 0..3 {
        live.push(format!("{:?}", ask(&model, true).await).replace("sk-secret-1", "***"));
    }
    assert_eq!(tape.len(), 3);
    let json = tape.to_json();
    for secret in ["sk-secret-1", "set-cookie", "Bearer", &server.url] {
        assert!(!json.contains(secret), "{secret} is on the tape");
    }

    let tape = Tape::from_json(&json).unwrap();
    let model = at("http://127.0.0.1:1").replay(&tape);
    for before in live {
        assert!(!tape.is_played());
        let now = format!("{:?}", ask(&model, true).await);
        // Why a line was cut is the line's to say.
        let until_cut = |text: &str| text.split("kind: StreamCut").next().unwrap().to_owned();
        assert_eq!(until_cut(&now), until_cut(&before));
    }
    assert!(tape.is_played());
    let error = fail(&model, true).await;
    assert!(error.message().contains("the tape has no answer to this request"), "{error}");
    assert!(Tape::from_json("{}").is_err());
}

#[tokio::test]
async fn an_answer_that_nobody_reads_to_its_end_can_be_dropped_anywhere() {
    let server =
        Server::start([Act::Hang(answer("200 OK", STREAM, HELLO.split("data: [").next().unwrap()))]).await;
    let mut request = request([Content::user("hi")]);
    request.stream = true;
    for taken in 0..2 {
        let chunks: Vec<_> = at(&server.url).generate(&request).take(taken).collect().await;
        assert!(chunks.len() <= taken);
    }
}

#[tokio::test]
async fn a_tape_plays_again_though_ids_are_made_up_and_headers_have_plain_words() {
    let call = r#"{"choices":[{"index":0,"message":{"tool_calls":[{"function":{"name":"t","arguments":"{}"}}]},"finish_reason":"tool_calls"}]}"#;
    let acts =
        [call, WHOLE].map(|body| Act::Send(answer("200 OK", "content-type: application/json\r\n", body)));
    let server = Server::start(acts).await;
    let tape = Tape::new();
    let two_turns = |model: HttpModel| async move {
        let mut request = request([Content::user("hi")]);
        let first: Vec<_> = model.generate(&request).collect().await;
        let said = whole(&first).content.clone().unwrap();
        let id = said.calls().next().unwrap().id.clone();
        request.contents.push(said);
        let answered = umbel_core::FunctionResponse::new(id, "t", serde_json::Map::new());
        request.contents.push(Content::user(umbel_core::Part::response(answered)));
        let second: Vec<_> = model.generate(&request).collect().await;
        whole(&second).content.as_ref().unwrap().text()
    };
    let with_header = |model: HttpModel| model.header("x-cache-enabled", "true").unwrap();
    assert_eq!(two_turns(with_header(at(&server.url)).record(&tape)).await, "Hello");
    let tape = Tape::from_json(&tape.to_json()).unwrap();
    assert_eq!(two_turns(with_header(at("http://127.0.0.1:1")).replay(&tape)).await, "Hello");
}
