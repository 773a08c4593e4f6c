//! A server to be asked, and what happens on the way there.

use std::io;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use umbel_core::{Answer, AuthConfig, BoxFuture, HttpPlace, PlainAuth};
use umbel_runtime::{LlmAgent, Runner, ScriptedModel};
use umbel_tools::{Guard, HttpGet, HttpLimits, Lookup};

use crate::{call, call_and_log, error, fails};

/// A server that answers by a function and keeps what it was asked.
#[derive(Clone)]
pub(crate) struct Server {
    pub(crate) port: u16,
    pub(crate) asked: Arc<Mutex<Vec<String>>>,
}

impl Server {
    /// The function gets the whole request and gives the whole answer. An empty answer never comes.
    pub(crate) async fn start(answer: impl Fn(&str) -> String + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let server = Self { port: listener.local_addr().unwrap().port(), asked: Arc::default() };
        let (asked, answer) = (server.asked.clone(), Arc::new(answer));
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                let (asked, answer) = (asked.clone(), answer.clone());
                tokio::spawn(async move {
                    let request = read_request(&mut stream).await;
                    asked.lock().unwrap().push(request.clone());
                    let answer = answer(&request);
                    if answer.is_empty() {
                        std::future::pending::<()>().await;
                    }
                    let _ = stream.write_all(answer.as_bytes()).await;
                });
            }
        });
        server
    }

    pub(crate) fn host(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    pub(crate) fn last(&self) -> String {
        self.asked.lock().unwrap().last().unwrap().clone()
    }

    pub(crate) fn count(&self) -> usize {
        self.asked.lock().unwrap().len()
    }
}

async fn read_request(stream: &mut tokio::net::TcpStream) -> String {
    let (mut request, mut buffer) = (Vec::new(), [0; 4096]);
    loop {
        let text = String::from_utf8_lossy(&request).into_owned();
        if let Some((head, body)) = text.split_once("\r\n\r\n") {
            let length = head.to_ascii_lowercase();
            let length = length.lines().find_map(|line| line.strip_prefix("content-length: "));
            if body.len() >= length.map_or(0, |length| length.trim().parse().unwrap()) {
                return text;
            }
        }
        match stream.read(&mut buffer).await {
            Ok(count @ 1..) => request.extend_from_slice(&buffer[..count]),
            _ => return text,
        }
    }
}

pub(crate) fn answer(status: u16, kind: &str, body: &str) -> String {
    let length = body.len();
    format!(
        "HTTP/1.1 {status} X\r\ncontent-type: {kind}\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n{body}"
    )
}

fn redirect(to: &str) -> String {
    format!("HTTP/1.1 302 X\r\nlocation: {to}\r\ncontent-length: 0\r\nconnection: close\r\n\r\n")
}

fn get(guard: Guard) -> HttpGet {
    HttpGet::new(guard).unwrap()
}

#[tokio::test]
async fn a_page_is_read_as_json_or_text_with_its_status() {
    let server = Server::start(|request| match request.split(' ').nth(1).unwrap() {
        "/json" => answer(200, "application/json", "{\"a\": [1, 2]}"),
        "/text" => answer(404, "text/plain", "grüß dich"),
        "/empty" => answer(204, "text/plain", ""),
        _ => answer(200, "image/png", "\u{1}\u{2}"),
    })
    .await;
    let tool = get(Guard::new([""; 0]).allow_private(&server.host()));
    let read = async |path: &str| {
        call(tool.clone(), json!({"url": format!("http://{}{path}", server.host())})).await
    };
    assert_eq!(read("/json").await, json!({"status": 200, "body": {"a": [1, 2]}}));
    assert_eq!(read("/text").await, json!({"status": 404, "body": "grüß dich"}));
    assert_eq!(read("/empty").await, json!({"status": 204, "body": null}));
    assert!(fails(tool.clone(), json!({"url": format!("http://{}/text", server.host())})).await);
    assert!(!fails(tool.clone(), json!({"url": format!("http://{}/json", server.host())})).await);
}

#[tokio::test]
async fn what_is_not_text_is_named_and_not_shown() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let host = listener.local_addr().unwrap().to_string();
    tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        read_request(&mut stream).await;
        let head = b"HTTP/1.1 200 X\r\ncontent-type: image/png\r\ncontent-length: 3\r\n\r\n";
        stream.write_all(head).await.unwrap();
        stream.write_all(&[0xff, 0xfe, 0xfd]).await.unwrap();
    });
    let read =
        call(get(Guard::new([""; 0]).allow_private(&host)), json!({"url": format!("http://{host}/")})).await;
    assert_eq!(read["body"], "(3 bytes of image/png, which is not text)");
}

#[tokio::test]
async fn an_answer_that_is_too_long_is_cut_at_a_character_and_says_so() {
    let server = Server::start(|_| answer(200, "text/plain", &"ü".repeat(100))).await;
    let limits = HttpLimits { bytes: 11, ..HttpLimits::default() };
    let tool = HttpGet::with_limits(Guard::new([""; 0]).allow_private(&server.host()), limits).unwrap();
    let read = call(tool, json!({"url": format!("http://{}/", server.host())})).await;
    assert_eq!(read, json!({"status": 200, "body": "üüüüü", "truncated": true}));
}

#[tokio::test]
async fn a_server_that_does_not_answer_is_not_waited_for() {
    let server = Server::start(|_| String::new()).await;
    let limits = HttpLimits { time: Duration::from_millis(100), ..HttpLimits::default() };
    let tool = HttpGet::with_limits(Guard::new([""; 0]).allow_private(&server.host()), limits).unwrap();
    let read = call(tool, json!({"url": format!("http://{}/", server.host())})).await;
    assert!(error(&read).starts_with("no answer within 0.1 s"), "{read}");
}

#[tokio::test]
async fn an_answer_has_no_time_or_all_the_time_there_is() {
    // Timers are as fine as a millisecond: an answer that comes sooner is in time even for zero.
    for (time, said) in [(Duration::ZERO, ""), (Duration::MAX, "hello")] {
        let server = Server::start(move |_| match said {
            "" => String::new(),
            said => answer(200, "text/plain", said),
        })
        .await;
        let limits = HttpLimits { time, ..HttpLimits::default() };
        let tool = HttpGet::with_limits(Guard::new([""; 0]).allow_private(&server.host()), limits).unwrap();
        let read = call(tool, json!({"url": format!("http://{}/", server.host())})).await;
        assert_eq!(read["status"] == 200, time == Duration::MAX, "{time:?}: {read}");
    }
}

#[tokio::test]
async fn packed_answers_are_refused_so_that_their_size_is_known() {
    let packed = "HTTP/1.1 200 X\r\ncontent-encoding: gzip\r\ncontent-length: 2\r\n\r\nxx";
    let server = Server::start(move |_| packed.to_owned()).await;
    let read = call(
        get(Guard::new([""; 0]).allow_private(&server.host())),
        json!({"url": format!("http://{}/", server.host())}),
    )
    .await;
    assert!(error(&read).contains("packed (`gzip`)"), "{read}");
}

#[tokio::test]
async fn private_addresses_are_not_asked_even_if_their_host_is_allowed() {
    let server = Server::start(|_| answer(200, "text/plain", "inside")).await;
    let tool = get(Guard::new(["*"]));
    for host in ["127.0.0.1", "localhost", "127.1", "2130706433", "[::ffff:127.0.0.1]", "0.0.0.0"] {
        let read = call(tool.clone(), json!({"url": format!("http://{host}:{}/", server.port)})).await;
        assert!(error(&read).contains("not public"), "{host}: {read}");
    }
    assert_eq!(server.count(), 0);
}

/// A name that is public when it is asked for first, and this machine from then on.
struct Rebinding(Arc<AtomicUsize>);

impl Lookup for Rebinding {
    fn lookup(&self, _: String) -> BoxFuture<'static, io::Result<Vec<IpAddr>>> {
        let times = self.0.fetch_add(1, Ordering::SeqCst);
        // Of documentation: nobody is there, and nobody is asked.
        let address = if times == 0 { Ipv4Addr::new(192, 0, 2, 1) } else { Ipv4Addr::LOCALHOST };
        Box::pin(async move { Ok(vec![IpAddr::V4(address)]) })
    }
}

#[tokio::test]
async fn a_name_that_leads_elsewhere_a_moment_later_gains_nothing() {
    let server = Server::start(|_| answer(200, "text/plain", "inside")).await;
    let times = Arc::new(AtomicUsize::new(0));
    let tool = get(Guard::new(["*"]).lookup(Rebinding(times.clone())));
    for _ in 0..3 {
        let url = format!("http://rebinding.example:{}/", server.port);
        let read = call(tool.clone(), json!({"url": url})).await;
        assert!(error(&read).contains("not public"), "{read}");
    }
    // Each connection goes to what was looked at for it: there is no second look that could differ.
    assert_eq!(times.load(Ordering::SeqCst), 3);
    assert_eq!(server.count(), 0);
}

#[tokio::test]
async fn redirects_are_looked_at_like_the_first_address() {
    let inside = Server::start(|_| answer(200, "text/plain", "inside")).await;
    let targets = [
        (format!("http://127.0.0.1:{}/", inside.port), "not among the hosts"),
        ("http://169.254.169.254/latest/meta-data/".to_owned(), "not among the hosts"),
        ("file:///etc/passwd".to_owned(), "`file:` is not allowed"),
        ("http://user@127.0.0.1/".to_owned(), "user's name"),
        ("http://[".to_owned(), "leads nowhere"),
    ];
    for (target, why) in targets {
        let to = target.clone();
        let server = Server::start(move |_| redirect(&to)).await;
        let tool = get(Guard::new([""; 0]).allow_private(&server.host()));
        let read = call(tool, json!({"url": format!("http://{}/", server.host())})).await;
        assert!(error(&read).contains(why), "{target}: {read}");
    }
    assert_eq!(inside.count(), 0);
}

#[tokio::test]
async fn redirects_are_followed_a_few_times() {
    let server = Server::start(|request| match request.split(' ').nth(1).unwrap() {
        "/a" => redirect("/b"),
        "/b" => answer(200, "text/plain", "there"),
        _ => redirect("/round"),
    })
    .await;
    let tool = get(Guard::new([""; 0]).allow_private(&server.host()));
    let read = async |path: &str| {
        call(tool.clone(), json!({"url": format!("http://{}{path}", server.host())})).await
    };
    assert_eq!(read("/a").await["body"], "there");
    assert_eq!(error(&read("/round").await), "it was redirected more than 5 times");
    assert_eq!(server.count(), 2 + 6);
}

#[tokio::test]
async fn what_is_no_address_is_said_to_be_none() {
    let tool = get(Guard::new(["*"]));
    for args in [json!({}), json!({"url": 1}), json!({"url": "here"})] {
        let read: Value = call(tool.clone(), args).await;
        assert!(error(&read).starts_with("`url` is"), "{read}");
    }
}

/// A server that says what it was asked, and leads away if asked for that.
async fn leads_away(to: &Server) -> Server {
    let to = format!("http://{}/there", to.host());
    Server::start(move |request| match request.split(' ').nth(1).unwrap() {
        "/away" => redirect(&to),
        _ => answer(200, "application/json", &json!({"asked": request}).to_string()),
    })
    .await
}

#[tokio::test]
async fn a_credential_goes_to_its_host_alone_and_does_not_come_back() {
    let away = Server::start(|request| answer(200, "text/plain", request)).await;
    let server = leads_away(&away).await;
    let guard = Guard::new(["public.example"]).allow_private(&server.host()).allow_private(&away.host());
    for (place, sent) in [
        (HttpPlace::Header, "key: s3cret-key\r\n"),
        (HttpPlace::Query, "GET /?key=s3cret-key "),
        (HttpPlace::Cookie, "cookie: key=s3cret-key\r\n"),
    ] {
        let auth = || AuthConfig::new("key", PlainAuth::api_key(place, "key").fixed("s3cret-key"));
        let tool = get(guard.clone()).auth(&server.host(), auth()).unwrap();
        let tool = tool.auth("public.example", auth()).unwrap();
        let read = async |url: String| call_and_log(Arc::new(tool.clone()), json!({"url": url})).await;
        let (said, log) = read(format!("http://{}/", server.host())).await;
        assert_eq!(said["status"], 200, "{said}");
        assert!(server.last().contains(sent), "{}", server.last());
        assert!(!log.contains("s3cret-key"), "{log}");
        for url in [format!("http://{}/away", server.host()), format!("http://{}/", away.host())] {
            read(url).await;
            assert!(!away.last().contains("s3cret-key"), "{}", away.last());
        }
        let (open, _) = read("http://public.example/".to_owned()).await;
        assert!(error(&open).contains("use https"), "{open}");
        assert!(get(guard.clone()).auth("*", auth()).unwrap_err().message().contains("stands for many"));
    }
}

#[tokio::test]
async fn a_person_is_asked_when_the_host_of_a_credential_is_named_and_again_if_it_is_refused() {
    let server = Server::start(|request| match request.contains("authorization: Bearer right-token\r\n") {
        true => answer(200, "text/plain", "the page"),
        false => answer(401, "text/plain", "no"),
    })
    .await;
    let tool = get(Guard::new([""; 0]).allow_private(&server.host()));
    let tool = tool.auth(&server.host(), AuthConfig::new("docs", PlainAuth::bearer())).unwrap();
    let url = format!("http://{}/", server.host());
    let model = ScriptedModel::new("m").call("http_get", json!({"url": url})).text("done");
    let runner = Runner::new("app", LlmAgent::new("agent").model(model).tool(tool)).unwrap();
    let key = runner.create_session("ann").await.unwrap().key;
    runner.run(&key, "go").collect_events().await.unwrap();
    for given in ["wrong-token", "right-token"] {
        let open = runner.open_questions(&key).await.unwrap();
        assert_eq!((open.len(), open[0].credential()), (1, Some("docs")));
        let answers = [(&open[0], Answer::input(given))];
        runner.resume(&key, answers).collect_events().await.unwrap();
    }
    assert!(runner.open_questions(&key).await.unwrap().is_empty());
    let events = runner.session(&key).await.unwrap().unwrap().events;
    let last = events.iter().flat_map(|event| event.responses()).last().unwrap();
    assert_eq!(last.response.as_ref().unwrap()["body"], "the page");
}

#[tokio::test]
async fn a_key_in_an_address_is_not_taken_for_refused_where_a_redirect_leaves_it_out() {
    let server = Server::start(|request| match request.split(' ').nth(1).unwrap() {
        "/left-out?key=right-key" => redirect("/there"),
        "/named?key=right-key" => redirect("/there?key=right-key"),
        _ => answer(401, "text/plain", "no"),
    })
    .await;
    for (path, is_refused) in [("/left-out", false), ("/named", true), ("/", true)] {
        let auth = AuthConfig::new("docs", PlainAuth::api_key(HttpPlace::Query, "key"));
        let tool = get(Guard::new([""; 0]).allow_private(&server.host())).auth(&server.host(), auth).unwrap();
        let url = format!("http://{}{path}", server.host());
        let model = ScriptedModel::new("m").call("http_get", json!({"url": url})).text("done");
        let runner = Runner::new("app", LlmAgent::new("agent").model(model).tool(tool)).unwrap();
        let key = runner.create_session("ann").await.unwrap().key;
        runner.run(&key, "go").collect_events().await.unwrap();
        let open = runner.open_questions(&key).await.unwrap();
        runner.resume(&key, [(&open[0], Answer::input("right-key"))]).collect_events().await.unwrap();
        let is_asked_again = !runner.open_questions(&key).await.unwrap().is_empty();
        assert_eq!(is_asked_again, is_refused, "{path}");
    }
}
