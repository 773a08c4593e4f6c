//! Requests that no well-meaning client sends, and what each is answered: a status, a code and words. None of them may
//! begin a run, and after all of them the server works as before.

use std::time::Duration;

use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use umbel_server::{Server, ServerLimits};

use crate::desk::{ask, desk, offered, serve, talker, text, user, with};
use crate::support::{Host, input, within};

/// A request and what it is answered.
struct Case {
    name: &'static str,
    method: &'static str,
    path: &'static str,
    headers: Vec<(&'static str, String)>,
    body: Vec<u8>,
    status: u16,
    code: &'static str,
    message: &'static str,
}

/// A `POST` of that body as JSON.
fn posted(
    name: &'static str,
    body: impl Into<Vec<u8>>,
    status: u16,
    code: &'static str,
    message: &'static str,
) -> Case {
    let headers = vec![("content-type", "application/json".to_owned())];
    Case { name, method: "POST", path: "/agent", headers, body: body.into(), status, code, message }
}

/// Another request, without a body.
fn asked(
    name: &'static str,
    method: &'static str,
    path: &'static str,
    header: Option<(&'static str, &str)>,
    (status, code, message): (u16, &'static str, &'static str),
) -> Case {
    let headers = header.map(|(name, value)| (name, value.to_owned())).into_iter().collect();
    Case { name, method, path, headers, body: Vec::new(), status, code, message }
}

fn field(name: &str, value: Value) -> String {
    with(input("t", "r", "hello"), name, value).to_string()
}

/// An input with JSON of so many levels in the place of `"DEEP"`.
fn deep(form: &Value, levels: usize) -> String {
    let nested = format!("{}1{}", "[".repeat(levels), "]".repeat(levels));
    form.to_string().replace("\"DEEP\"", &nested)
}

fn tools(count: usize) -> Value {
    (0..count).map(|at| json!({"name": format!("tool_{at}"), "description": ""})).collect()
}

/// What is asked for where nothing is wrong.
fn base() -> Value {
    input("t", "r", "hello")
}

/// The same with more in its message.
fn message(extra: &Value) -> Value {
    let mut message = user("m", "hello");
    message.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
    ask("t", "r", &[message])
}

/// Bodies that are no input.
fn no_inputs() -> Vec<Case> {
    vec![
        posted(
            "not JSON",
            "hello",
            400,
            "NOT_JSON",
            "the input: cannot be read as JSON: expected value at line 1 column 1",
        ),
        posted(
            "empty",
            "",
            400,
            "NOT_JSON",
            "the input: cannot be read as JSON: EOF while parsing a value at line 1 column 0",
        ),
        posted(
            "cut short",
            "{\"threadId\": \"t\"",
            400,
            "NOT_JSON",
            "cannot be read as JSON: EOF while parsing an object",
        ),
        posted(
            "no UTF-8",
            b"{\"threadId\": \"\xff\"}".to_vec(),
            400,
            "NOT_JSON",
            "`threadId` of the input: cannot be read as JSON: invalid unicode code point",
        ),
        posted(
            "two inputs",
            format!("{0}{0}", base()),
            400,
            "NOT_JSON",
            "cannot be read as JSON: trailing characters",
        ),
        posted(
            "an array",
            "[]",
            422,
            "INVALID_INPUT",
            "expected a JSON object with `threadId`, `runId` and `messages`",
        ),
        posted("null", "null", 422, "INVALID_INPUT", "expected a JSON object"),
        posted(
            "no messages",
            "{\"threadId\": \"t\", \"runId\": \"r\"}",
            422,
            "INVALID_INPUT",
            "`messages` is missing: send it",
        ),
        posted(
            "no thread",
            "{\"runId\": \"r\", \"messages\": []}",
            422,
            "INVALID_INPUT",
            "`threadId` is missing: send it",
        ),
        posted(
            "messages are text",
            field("messages", json!("hello")),
            422,
            "INVALID_INPUT",
            "`messages` of the input: invalid type: string",
        ),
        posted(
            "a message of no role",
            field("messages", json!([{"id": "m", "content": "x"}])),
            422,
            "INVALID_INPUT",
            "`messages[0]",
        ),
        posted(
            "a message of an unknown role",
            field("messages", json!([{"id": "m", "role": "king", "content": "x"}])),
            422,
            "INVALID_INPUT",
            "`messages[0]",
        ),
        posted(
            "a message without content",
            field("messages", json!([{"id": "m", "role": "user"}])),
            422,
            "INVALID_INPUT",
            "`messages[0]",
        ),
    ]
}

/// Bodies with too much in them.
fn too_much() -> Vec<Case> {
    let deep_tool = json!([{"name": "x", "description": "", "parameters": "DEEP"}]);
    vec![
        posted(
            "a result of no call",
            field("messages", json!([{"id": "m", "role": "tool", "content": ""}])),
            422,
            "INVALID_INPUT",
            "`messages[0]",
        ),
        posted(
            "deep state",
            deep(&with(base(), "state", json!("DEEP")), 10_000),
            400,
            "NOT_JSON",
            "`state` of the input: cannot be read as JSON: recursion limit exceeded",
        ),
        posted(
            "state of 65 levels",
            deep(&with(base(), "state", json!("DEEP")), 65),
            413,
            "TOO_MUCH",
            "`state` of the input: has more than 64 levels: send flatter values",
        ),
        posted(
            "deep properties",
            deep(&with(base(), "forwardedProps", json!("DEEP")), 10_000),
            400,
            "NOT_JSON",
            "`forwardedProps` of the input: cannot be read as JSON: recursion limit exceeded",
        ),
        posted(
            "deep parameters",
            deep(&with(base(), "tools", deep_tool), 10_000),
            400,
            "NOT_JSON",
            "`tools[0]` of the input: cannot be read as JSON: recursion limit exceeded",
        ),
        posted(
            "deep content",
            deep(&message(&json!({"content": "DEEP"})), 10_000),
            400,
            "NOT_JSON",
            "`messages[0]` of the input: cannot be read as JSON: recursion limit exceeded",
        ),
        posted(
            "deep metadata",
            deep(&message(&json!({"metadata": {"x": "DEEP"}})), 10_000),
            400,
            "NOT_JSON",
            "`messages[0]",
        ),
        posted(
            "a deep answer",
            deep(
                &with(
                    base(),
                    "resume",
                    json!([{"interruptId": "q", "status": "resolved", "payload": "DEEP"}]),
                ),
                10_000,
            ),
            400,
            "NOT_JSON",
            "`resume[0]` of the input: cannot be read as JSON: recursion limit exceeded",
        ),
        posted(
            "1,000 tools",
            field("tools", tools(1000)),
            413,
            "TOO_MUCH",
            "`tools` of the input: there may be at most 128: send fewer",
        ),
        posted(
            "a tool with a control character",
            field("tools", json!([{"name": "a\u{7}b", "description": ""}])),
            422,
            "INVALID_INPUT",
            "`tools[0].name` of the input: has control characters: leave them out",
        ),
        posted(
            "a tool without a name",
            field("tools", json!([{"name": "", "description": ""}])),
            422,
            "INVALID_INPUT",
            "`tools[0].name` of the input: must not be empty",
        ),
    ]
}

/// Bodies with names that cannot be.
fn no_names() -> Vec<Case> {
    vec![
        posted(
            "a long thread id",
            field("threadId", json!("t".repeat(300))),
            413,
            "TOO_MUCH",
            "`threadId` of the input: has 300 bytes, and may have 256",
        ),
        posted(
            "a long run id",
            field("runId", json!("\u{fc}".repeat(150))),
            413,
            "TOO_MUCH",
            "`runId` of the input: has 300 bytes, and may have 256",
        ),
        posted(
            "an empty thread id",
            field("threadId", json!("")),
            422,
            "INVALID_INPUT",
            "`threadId` of the input: must not be empty",
        ),
        posted(
            "a thread id of blanks",
            field("threadId", json!("   ")),
            422,
            "INVALID_INPUT",
            "`threadId` of the input: must not be empty",
        ),
        posted(
            "NUL in a thread id",
            field("threadId", json!("a\u{0}b")),
            422,
            "INVALID_INPUT",
            "`threadId` of the input: has control characters: leave them out",
        ),
        posted(
            "NUL in a run id",
            field("runId", json!("a\u{0}b")),
            422,
            "INVALID_INPUT",
            "`runId` of the input: has control characters: leave them out",
        ),
        posted(
            "a line feed in a message id",
            ask("t", "r", &[user("a\nid: 1", "x")]).to_string(),
            422,
            "INVALID_INPUT",
            "`messages[0].id` of the input: has control characters: leave them out",
        ),
        posted(
            "a thread id that is a number",
            field("threadId", json!(7)),
            422,
            "INVALID_INPUT",
            "`threadId` of the input: invalid type: integer `7`",
        ),
        posted(
            "an answer of no known status",
            field("resume", json!([{"interruptId": "q", "status": "maybe"}])),
            422,
            "INVALID_INPUT",
            "`resume[0]` of the input: unknown variant `maybe`",
        ),
    ]
}

/// Requests for what is not there, or from where they may not come.
fn others() -> Vec<Case> {
    let no_page = (404, "NOT_FOUND", "there is no such page");
    let method = (405, "METHOD_NOT_ALLOWED", "that cannot be done here");
    let host = (403, "HOST_NOT_ALLOWED", "this server is not known by that name: see `allow_host`");
    let origin =
        (403, "ORIGIN_NOT_ALLOWED", "pages of that origin may not ask this server: see `allow_origin`");
    let no_thread = (404, "NOT_FOUND", "there is no such thread");
    let no_run = (404, "NOT_FOUND", "there is no such run");
    let no_id = (
        400,
        "INVALID_EVENT_ID",
        "that is no id of an event of a stream: send one as it came, or none at all",
    );
    let long: &'static str = Box::leak(format!("/agent/threads/{}", "x".repeat(300)).into_boxed_str());
    let mut cases = vec![
        asked("an unknown path", "GET", "/nothing", None, no_page),
        asked("a path that climbs", "GET", "/agent/../../etc/passwd", None, no_page),
        asked("the wrong method", "GET", "/agent", None, method),
        asked("the wrong method of a thread", "POST", "/agent/threads/t", None, method),
        asked("a method of its own", "BREW", "/agent", None, method),
        asked("a wrong host", "GET", "/health", Some(("host", "evil.example")), host),
        asked(
            "a host that only begins right",
            "GET",
            "/health",
            Some(("host", "localhost.evil.example:80")),
            host,
        ),
        asked("no host", "GET", "/health", Some(("host", "")), host),
        asked("a foreign origin", "GET", "/agent/threads", Some(("origin", "https://evil.example")), origin),
        asked("an origin of nobody", "GET", "/agent/threads", Some(("origin", "null")), origin),
        asked(
            "the right name by another port",
            "GET",
            "/agent/threads",
            Some(("origin", "http://127.0.0.1:1")),
            origin,
        ),
        asked("an unknown thread", "GET", "/agent/threads/none", None, no_thread),
        asked("an unknown thread to be deleted", "DELETE", "/agent/threads/none", None, no_thread),
        asked("an unknown thread to be forked", "POST", "/agent/threads/none/fork", None, no_thread),
        asked("the runs of an unknown thread", "GET", "/agent/threads/none/runs", None, no_thread),
        asked(
            "a thread with NUL",
            "GET",
            "/agent/threads/a%00b",
            None,
            (400, "INVALID_INPUT", "the id of a session key has a NUL character: leave it out"),
        ),
        asked(
            "a thread that is no text",
            "GET",
            "/agent/threads/%ff",
            None,
            (400, "INVALID_INPUT", "the address cannot be read: write it in UTF-8"),
        ),
        asked("a long thread", "GET", long, None, no_thread),
        asked("an unknown run", "GET", "/agent/runs/none/events", None, no_run),
        asked("an unknown run of a thread", "GET", "/agent/runs/none/events?thread=t", None, no_run),
        asked("an unknown run to be cancelled", "POST", "/agent/runs/none/cancel", None, no_run),
        asked("a place that is none", "GET", "/agent/runs/none/events", Some(("last-event-id", "7")), no_id),
        asked(
            "another place that is none",
            "GET",
            "/agent/runs/none/events?after=1.1.1.1.e~9~x~t",
            None,
            no_id,
        ),
    ];
    let mut wrong_type =
        posted("text", "hello", 415, "NOT_JSON", "send JSON, with `Content-Type: application/json`");
    wrong_type.headers = vec![("content-type", "text/plain".to_owned())];
    cases.push(wrong_type);
    let mut no_type = posted("no type", input("t", "r", "x").to_string(), 415, "NOT_JSON", "send JSON");
    no_type.headers.clear();
    cases.push(no_type);
    let headers = (0..150).map(|_| ("x-flood", "1".to_owned())).collect();
    let mut flood = asked("150 headers", "GET", "/health", None, (431, "", ""));
    flood.headers = headers;
    cases.push(flood);
    let mut large = asked("a header of 400 kB", "GET", "/health", None, (431, "", ""));
    large.headers = vec![("x-large", "x".repeat(400_000))];
    cases.push(large);
    cases
}

/// A request as bytes.
fn bytes(case: &Case, host: &Host) -> Vec<u8> {
    let mut head = format!("{} {} HTTP/1.1\r\nconnection: close\r\n", case.method, case.path);
    if case.headers.iter().all(|(name, _)| *name != "host") {
        head.push_str(&format!("host: {}\r\n", host.address));
    }
    for (name, value) in &case.headers {
        head.push_str(&format!("{name}: {value}\r\n"));
    }
    head.push_str(&format!("content-length: {}\r\n\r\n", case.body.len()));
    [head.as_bytes(), &case.body].concat()
}

fn status(answer: &str) -> u16 {
    let status = answer.split(' ').nth(1).and_then(|status| status.parse().ok());
    status.unwrap_or_else(|| panic!("no status in {answer:?}"))
}

fn body(answer: &str) -> &str {
    answer.split_once("\r\n\r\n").map_or("", |(_, body)| body)
}

#[tokio::test]
async fn each_bad_request_is_answered_as_the_table_says_and_begins_no_run() {
    let host = desk(talker("Hello to you.")).await;
    let mut wrong = Vec::new();
    for case in [no_inputs(), too_much(), no_names(), others()].into_iter().flatten() {
        let answer = host.exchange(&bytes(&case, &host)).await;
        let status = status(&answer);
        let told: Value = serde_json::from_str(body(&answer)).unwrap_or_default();
        let (code, message) = (&told["error"]["code"], told["error"]["message"].as_str().unwrap_or_default());
        let right = status == case.status
            && code.as_str().unwrap_or_default() == case.code
            && message.contains(case.message);
        if !right {
            wrong.push(format!("{}: {status} {code} {message:?}, body {:?}", case.name, body(&answer)));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert_eq!(host.figure("umbel_runs_started_total").await, 0, "none of these is a run");
    let frames = host.run(&input("t", "r", "hello")).await;
    assert_eq!(text(&frames), "Hello to you.");
}

#[tokio::test]
async fn a_body_that_is_too_large_is_refused_before_it_has_come() {
    let host = desk(talker("x")).await;
    let head = |length: &str| {
        format!(
            "POST /agent HTTP/1.1\r\nhost: {}\r\ncontent-type: application/json\r\n{length}\r\n\r\n",
            host.address
        )
    };
    // Whoever says how much is to come need not send any of it.
    let mut told = TcpStream::connect(host.address).await.unwrap();
    told.write_all(head("content-length: 100000000").as_bytes()).await.unwrap();
    assert_too_large(&mut told).await;
    // Whoever does not is stopped on the way.
    let mut stream = TcpStream::connect(host.address).await.unwrap();
    stream.write_all(head("transfer-encoding: chunked").as_bytes()).await.unwrap();
    let chunk = format!("100000\r\n{}\r\n", " ".repeat(0x10_0000));
    let (mut sent, mut writes) = (0, true);
    let (mut read, mut write) = stream.into_split();
    let refused = within(async {
        let mut answer = vec![0; 4096];
        loop {
            tokio::select! {
                read = read.read(&mut answer) => {
                    break String::from_utf8_lossy(&answer[..read.unwrap()]).into_owned();
                }
                wrote = write.write_all(chunk.as_bytes()), if writes => {
                    writes = wrote.is_ok() && sent < 100;
                    sent += usize::from(writes);
                }
            }
        }
    })
    .await;
    assert!(refused.starts_with("HTTP/1.1 413 "), "{refused}");
    assert!(sent < 100, "it is refused while it is sent");
}

async fn assert_too_large(stream: &mut TcpStream) {
    let mut answer = vec![0; 4096];
    let read = within(stream.read(&mut answer)).await.unwrap();
    let answer = String::from_utf8_lossy(&answer[..read]).into_owned();
    assert_eq!(status(&answer), 413, "{answer}");
    let told = json!({"error": {"code": "BODY_TOO_LARGE", "message": "the request has more than 10485760 bytes (`body_bytes`)"}});
    assert_eq!(serde_json::from_str::<Value>(body(&answer)).unwrap(), told);
}

#[tokio::test]
async fn a_body_within_the_limit_is_taken_however_large() {
    let host = desk(talker("Much to read.")).await;
    let frames = host.run(&input("t", "r", &"word ".repeat(1_900_000))).await;
    assert_eq!(text(&frames), "Much to read.");
}

#[tokio::test]
async fn bodies_and_headers_that_do_not_arrive_are_not_waited_for() {
    let limits = ServerLimits { request_time: Duration::from_millis(100), ..ServerLimits::default() };
    let host = serve(Server::new().limits(limits).agent("/agent", offered(talker("x")))).await;
    let body = input("t", "r", "hello").to_string();
    let head = format!(
        "POST /agent HTTP/1.1\r\nhost: {}\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n",
        host.address,
        body.len()
    );
    let mut slow = TcpStream::connect(host.address).await.unwrap();
    slow.write_all(head.as_bytes()).await.unwrap();
    slow.write_all(&body.as_bytes()[..10]).await.unwrap();
    let mut answer = vec![0; 4096];
    let read = within(slow.read(&mut answer)).await.unwrap();
    let answer = String::from_utf8_lossy(&answer[..read]).into_owned();
    let told = json!({"error": {"code": "REQUEST_TOO_SLOW", "message": "the request took too long to arrive (`request_time`)"}});
    let json = |answer: &str| serde_json::from_str::<Value>(self::body(answer)).unwrap();
    assert_eq!((status(&answer), json(&answer)), (408, told.clone()));

    let mut slow = TcpStream::connect(host.address).await.unwrap();
    slow.write_all(b"POST /agent HTTP/1.1\r\nhost: x\r\n").await.unwrap();
    let mut answer = Vec::new();
    within(slow.read_to_end(&mut answer)).await.unwrap();
    let answer = String::from_utf8_lossy(&answer).into_owned();
    assert_eq!((status(&answer), json(&answer)), (408, told), "a head that does not end");

    let mut silent = TcpStream::connect(host.address).await.unwrap();
    let mut answer = Vec::new();
    within(silent.read_to_end(&mut answer)).await.unwrap();
    assert!(answer.is_empty(), "who asked for nothing gets no answer");
    assert_eq!(host.figure("umbel_runs_started_total").await, 0);
}

#[tokio::test]
async fn a_request_that_breaks_off_leaves_nothing_behind() {
    let host = desk(talker("Still here.")).await;
    let body = input("t", "r", "hello").to_string();
    let head = format!(
        "POST /agent HTTP/1.1\r\nhost: {}\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n",
        host.address,
        body.len()
    );
    let whole = format!("{head}{body}");
    for cut in [1, 20, head.len(), head.len() + 1, whole.len() - 1] {
        let mut stream = TcpStream::connect(host.address).await.unwrap();
        stream.write_all(&whole.as_bytes()[..cut]).await.unwrap();
    }
    assert_eq!(host.figure("umbel_runs_started_total").await, 0);
    assert_eq!(text(&host.run(&input("t", "r", "hello")).await), "Still here.");
}

#[tokio::test]
async fn a_page_of_an_allowed_origin_may_ask_and_no_other() {
    let server =
        Server::new().allow_origin("https://app.example").agent("/agent", offered(talker("Hello, page.")));
    let host = serve(server).await;
    let preflight = |origin: &str| {
        http::Request::builder()
            .method("OPTIONS")
            .uri("/agent")
            .header("origin", origin.to_owned())
            .header("access-control-request-method", "POST")
            .header("access-control-request-headers", "content-type")
    };
    let allowed = host.send(preflight("https://app.example"), "").await;
    assert_eq!(allowed.status(), 204);
    let header = |name: &str| allowed.head.headers.get(name).map(|value| value.to_str().unwrap());
    assert_eq!(header("access-control-allow-origin"), Some("https://app.example"));
    assert_eq!(header("access-control-allow-methods"), Some("GET, POST, DELETE"));
    assert_eq!(
        header("access-control-allow-headers"),
        Some(
            "accept, authorization, content-type, last-event-id, traceparent, tracestate, mcp-method, mcp-name, mcp-protocol-version, mcp-session-id"
        )
    );
    assert_eq!((header("access-control-allow-credentials"), header("vary")), (None, Some("origin")));
    let refused = host.send(preflight("https://evil.example"), "").await;
    assert_eq!(
        (refused.status().as_u16(), refused.head.headers.get("access-control-allow-origin")),
        (403, None)
    );
    let post = http::Request::builder()
        .method("POST")
        .uri("/agent")
        .header("content-type", "application/json")
        .header("origin", "https://app.example");
    let reply = host.send(post, input("t", "r", "hello").to_string()).await;
    assert_eq!(reply.head.headers["access-control-allow-origin"], "https://app.example");
    assert_eq!(text(&reply.frames().await), "Hello, page.");
    let missing = http::Request::builder().uri("/nowhere").header("origin", "https://app.example");
    let missing = host.send(missing, "").await;
    assert_eq!(
        missing.head.headers["access-control-allow-origin"], "https://app.example",
        "so that the page can read why"
    );
}

#[tokio::test]
async fn without_allowed_origins_no_page_is_told_that_it_may_ask() {
    let host = desk(talker("x")).await;
    let preflight = http::Request::builder()
        .method("OPTIONS")
        .uri("/agent")
        .header("origin", "https://app.example")
        .header("access-control-request-method", "POST");
    let reply = host.send(preflight, "").await;
    assert_eq!((reply.status().as_u16(), reply.head.headers.get("access-control-allow-origin")), (403, None));
}
