//! The server over HTTP, mounted where it is found out who asks.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, watch};
use umbel_core::{
    Caller, Confirm, ErrorKind, InMemoryArtifacts, InMemorySessions, Part, Question, SessionStore,
    TraceContext,
};
use umbel_mcp::server::{AgentOffer, McpLimits, McpServer, McpService};
use umbel_runtime::{LlmAgent, Runner, ScriptedModel};
use umbel_server::{BearerTokens, Problem, ProtectedResource, Server};

use crate::support::{TestTool, soon, speaker};

/// A server that listens.
pub(crate) struct House {
    address: std::net::SocketAddr,
    pub(crate) service: McpService,
}

/// What came back.
#[derive(Debug)]
pub(crate) struct Reply {
    pub(crate) status: u16,
    pub(crate) headers: String,
    pub(crate) body: String,
}

impl Reply {
    /// A header's value.
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        let mut lines = self.headers.lines().filter_map(|line| line.split_once(": "));
        lines.find(|(known, _)| known.eq_ignore_ascii_case(name)).map(|(_, value)| value)
    }

    /// The messages in it.
    pub(crate) fn messages(&self) -> Vec<Value> {
        let lines = self.body.lines().map(|line| line.strip_prefix("data:").unwrap_or(line).trim());
        lines.filter_map(|line| serde_json::from_str(line).ok()).filter(Value::is_object).collect()
    }

    /// The one that answers.
    pub(crate) fn answer(&self) -> Value {
        let mut messages = self.messages();
        messages.retain(|message| message.get("result").is_some() || message.get("error").is_some());
        assert_eq!(messages.len(), 1, "{self:?}");
        messages.remove(0)
    }
}

const TOKENS: [(&str, &str); 2] =
    [("token-of-ann-0123456789abcdef", "ann"), ("token-of-bob-0123456789abcdef", "bob")];

impl House {
    pub(crate) async fn new(server: McpServer) -> Self {
        Self::with(server, |server| server).await
    }

    pub(crate) async fn with(server: McpServer, change: impl FnOnce(Server) -> Server) -> Self {
        let service = server.http().unwrap();
        let tokens: String = TOKENS.iter().map(|(token, user)| format!("{token} {user}\n")).collect();
        let auth = BearerTokens::from_text(&tokens).unwrap();
        let server = Server::new().auth(auth).mount("/mcp", service.clone());
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let served = change(server).build().unwrap();
        tokio::spawn(served.serve(listener, std::future::pending()));
        Self { address, service }
    }

    /// Where it is, for clients of ours, and what ann shows there.
    pub(crate) fn door(&self) -> umbel_mcp::client::Http {
        let (token, _) = TOKENS[0];
        let place = format!("http://{}/mcp", self.address);
        umbel_mcp::client::Http::new(place).header("authorization", format!("Bearer {token}").as_str())
    }

    /// Sends a request, and gives the stream that its answer comes from.
    pub(crate) async fn open(
        &self,
        method: &str,
        user: &str,
        headers: &[(&str, &str)],
        body: &str,
    ) -> TcpStream {
        let token = TOKENS.iter().find(|(_, name)| *name == user).map(|(token, _)| *token);
        let mut head =
            format!("{method} /mcp HTTP/1.1\r\nconnection: close\r\ncontent-length: {}\r\n", body.len());
        if !headers.iter().any(|(name, _)| *name == "host") {
            head.push_str("host: localhost\r\n");
        }
        if let Some(token) = token {
            head = format!("{head}authorization: Bearer {token}\r\n");
        }
        head.push_str("accept: application/json, text/event-stream\r\ncontent-type: application/json\r\n");
        for (name, value) in headers {
            head = format!("{head}{name}: {value}\r\n");
        }
        let mut stream = TcpStream::connect(self.address).await.unwrap();
        stream.write_all(format!("{head}\r\n{body}").as_bytes()).await.unwrap();
        stream
    }

    /// Sends a request, and reads the answer to its end.
    pub(crate) async fn send(&self, method: &str, user: &str, headers: &[(&str, &str)], body: &str) -> Reply {
        let mut stream = self.open(method, user, headers, body).await;
        let mut answer = Vec::new();
        soon(stream.read_to_end(&mut answer)).await.unwrap();
        let answer = String::from_utf8_lossy(&answer).into_owned();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap_or((&answer, ""));
        let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).unwrap_or(0);
        Reply { status, headers: head.to_owned(), body: body.to_owned() }
    }

    pub(crate) async fn post(&self, user: &str, headers: &[(&str, &str)], body: &Value) -> Reply {
        self.send("POST", user, headers, &body.to_string()).await
    }

    /// What comes over a stream, line by line.
    pub(crate) async fn stream(
        &self,
        method: &str,
        user: &str,
        headers: &[(&str, &str)],
        body: &str,
    ) -> Heard {
        let stream = self.open(method, user, headers, body).await;
        Heard(BufReader::new(stream).lines())
    }

    /// Begins a session.
    pub(crate) async fn session(&self, user: &str) -> String {
        let reply = self.post(user, &[], &initialize()).await;
        assert_eq!(reply.status, 200, "{reply:?}");
        let session = reply.header("mcp-session-id").unwrap().to_owned();
        let ready = json!({"jsonrpc": "2.0", "method": "notifications/initialized"});
        let reply = self.post(user, &[("mcp-session-id", &session)], &ready).await;
        assert_eq!(reply.status, 202, "{reply:?}");
        session
    }
}

/// A stream that is read as it comes.
pub(crate) struct Heard(tokio::io::Lines<BufReader<TcpStream>>);

impl Heard {
    /// The next message.
    pub(crate) async fn message(&mut self) -> Value {
        loop {
            let line = soon(self.0.next_line()).await.unwrap().expect("the stream goes on");
            let message = line.strip_prefix("data:").and_then(|data| serde_json::from_str(data.trim()).ok());
            if let Some(message) = message.filter(Value::is_object) {
                return message;
            }
        }
    }
}

pub(crate) fn initialize() -> Value {
    let client = json!({"name": "test", "version": "1"});
    let params = json!({"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": client});
    json!({"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": params})
}

pub(crate) fn tool_call(id: u32, name: &str, arguments: Value) -> Value {
    let mut call = json!({"jsonrpc": "2.0", "id": id, "method": "tools/call", "params": {"name": name}});
    call["params"]["arguments"] = arguments;
    call
}

/// A call in the form that has no sessions.
fn call_now(name: &str, arguments: Value, more: Value) -> (Vec<(&'static str, String)>, Value) {
    let headers = vec![
        ("mcp-protocol-version", "2026-07-28".to_owned()),
        ("mcp-method", "tools/call".to_owned()),
        ("mcp-name", name.to_owned()),
    ];
    let mut body = tool_call(1, name, arguments);
    body["params"]["_meta"] = json!({
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientInfo": {"name": "test", "version": "1"},
        "io.modelcontextprotocol/clientCapabilities": {"elicitation": {"form": {}}},
    });
    let Value::Object(more) = more else { panic!("more is an object") };
    for (key, value) in more {
        body["params"][key] = value;
    }
    (headers, body)
}

async fn send_now(house: &House, user: &str, name: &str, arguments: Value, more: Value) -> Value {
    let (headers, body) = call_now(name, arguments, more);
    let headers: Vec<(&str, &str)> = headers.iter().map(|(name, value)| (*name, value.as_str())).collect();
    house.post(user, &headers, &body).await.answer()
}

#[tokio::test]
async fn who_asks_is_the_user_of_the_run() {
    let who = TestTool::new("who", |cx, _| {
        let user = cx.run().session_key().user().to_owned();
        std::future::ready(Ok(json!({"user": user}).into()))
    });
    let house = House::new(McpServer::new("house").tool(who)).await;
    for user in ["ann", "bob"] {
        let session = house.session(user).await;
        let reply = house.post(user, &[("mcp-session-id", &session)], &tool_call(1, "who", json!({}))).await;
        assert_eq!(reply.answer()["result"]["structuredContent"], json!({"user": user}));
        let now = send_now(&house, user, "who", json!({}), json!({})).await;
        assert_eq!(now["result"]["structuredContent"], json!({"user": user}));
    }
}

#[tokio::test]
async fn a_caller_reaches_what_is_of_their_app_and_user_alone() {
    let save = TestTool::new("save", |cx, _| async move {
        cx.save_artifact("report.txt", Part::text("All is well.")).await?;
        let key = cx.run().session_key();
        Ok(json!({"app": key.app(), "user": key.user()}).into())
    });
    let model = ScriptedModel::new("script").call("save", json!({})).text("Saved.").text("Again.");
    let agent = LlmAgent::new("writer").model(model).tool(save.clone());
    let writer = Runner::builder("app", agent).artifacts(InMemoryArtifacts::new()).build().unwrap();
    let server = McpServer::new("house")
        .agent(AgentOffer::new(writer).conversations())
        .tool(save)
        .tool_runner(|runner| runner.artifacts(InMemoryArtifacts::new()));
    let house = House::with(server, |server| {
        server.caller(|head, principal| {
            let tenant = head.headers.get("x-tenant").and_then(|tenant| tenant.to_str().ok());
            let tenant = tenant.ok_or_else(|| Problem::unauthorized("no tenant"))?;
            Ok(Caller::new(format!("{}-{tenant}", principal.id)).app(tenant))
        })
    })
    .await;
    assert_eq!(house.post("ann", &[], &initialize()).await.status, 401);
    let begin = async |tenant: &'static str| {
        let begun = house.post("ann", &[("x-tenant", tenant)], &initialize()).await;
        let session = begun.header("mcp-session-id").unwrap().to_owned();
        let ready = json!({"jsonrpc": "2.0", "method": "notifications/initialized"});
        let reply = house.post("ann", &[("x-tenant", tenant), ("mcp-session-id", &session)], &ready).await;
        assert_eq!(reply.status, 202, "{reply:?}");
        session
    };
    let (red, blue) = (begin("red").await, begin("blue").await);
    let ask = async |tenant: &str, session: &str, body: &Value| {
        house.post("ann", &[("x-tenant", tenant), ("mcp-session-id", session)], body).await
    };
    let who = tool_call(1, "save", json!({}));
    let told = ask("red", &red, &who).await.answer();
    assert_eq!(told["result"]["structuredContent"], json!({"app": "red", "user": "ann-red"}));
    assert_eq!(ask("blue", &red, &who).await.status, 404);
    let saved = ask("red", &red, &tool_call(2, "writer", json!({"request": "?"}))).await.answer();
    let link =
        saved["result"]["content"].as_array().unwrap().iter().find(|one| one["type"] == "resource_link");
    let uri = &link.unwrap()["uri"];
    let read = json!({"jsonrpc": "2.0", "id": 3, "method": "resources/read", "params": {"uri": uri}});
    assert_eq!(ask("red", &red, &read).await.answer()["result"]["contents"][0]["text"], "All is well.");
    assert!(ask("blue", &blue, &read).await.answer().get("error").is_some());
    let session = &saved["result"]["_meta"]["umbel/session"];
    let go_on = tool_call(4, "writer", json!({"request": "?", "session": session}));
    assert_eq!(ask("blue", &blue, &go_on).await.answer()["result"]["isError"], true);
    assert_eq!(ask("red", &red, &go_on).await.answer()["result"]["content"][0]["text"], "Again.");
}

#[tokio::test]
async fn nobody_sees_the_session_of_another() {
    let house = House::new(McpServer::new("house").agent(speaker(["One.", "Two."]))).await;
    let session = house.session("ann").await;
    let named = [("mcp-session-id", session.as_str())];
    let ask = tool_call(1, "speaker", json!({"request": "?"})).to_string();
    let unknown = [("mcp-session-id", "00000000-0000-0000-0000-000000000000")];
    for (method, body) in [("POST", ask.as_str()), ("GET", ""), ("DELETE", "")] {
        let taken = house.send(method, "bob", &named, body).await;
        let none = house.send(method, "bob", &unknown, body).await;
        assert_eq!((taken.status, &taken.body), (404, &none.body), "{method}");
    }
    let reply = house.send("POST", "ann", &named, &ask).await;
    assert_eq!(reply.answer()["result"]["content"][0]["text"], "One.");
}

#[tokio::test]
async fn a_session_ends_when_its_client_says_so() {
    let house = House::new(McpServer::new("house").agent(speaker(["One."]))).await;
    let session = house.session("ann").await;
    let named = [("mcp-session-id", session.as_str())];
    let gone = house.send("DELETE", "ann", &named, "").await;
    assert_eq!(gone.status, 202, "{gone:?}");
    let list = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/list"});
    assert_eq!(house.post("ann", &named, &list).await.status, 404);
}

#[tokio::test]
async fn a_new_session_takes_the_place_of_the_first_of_its_user() {
    let limits = McpLimits { sessions_per_user: 2, ..McpLimits::default() };
    let house = House::new(McpServer::new("house").agent(speaker(["One."])).limits(limits)).await;
    let other = house.session("bob").await;
    let sessions = [house.session("ann").await, house.session("ann").await, house.session("ann").await];
    let list = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/list"});
    let mut found = Vec::new();
    for session in &sessions {
        found.push(house.post("ann", &[("mcp-session-id", session)], &list).await.status);
    }
    assert_eq!(found, [404, 200, 200]);
    assert_eq!(house.post("bob", &[("mcp-session-id", &other)], &list).await.status, 200);
}

#[tokio::test]
async fn there_are_so_many_sessions_and_no_more() {
    let limits = McpLimits { sessions: 1, ..McpLimits::default() };
    let house = House::new(McpServer::new("house").agent(speaker(["One."])).limits(limits)).await;
    let session = house.session("ann").await;
    let refused = house.post("bob", &[], &initialize()).await;
    assert_eq!((refused.status, refused.header("retry-after")), (503, Some("5")));
    // Whatever version the head says.
    let newer = [("mcp-protocol-version", "2026-07-28"), ("mcp-method", "initialize")];
    let refused = house.post("bob", &newer, &initialize()).await;
    assert_eq!((refused.status, refused.header("mcp-session-id")), (503, None));
    let now = send_now(&house, "bob", "speaker", json!({"request": "?"}), json!({})).await;
    assert_eq!(now["result"]["content"][0]["text"], "One.");
    house.send("DELETE", "ann", &[("mcp-session-id", &session)], "").await;
    house.session("bob").await;
}

#[tokio::test]
async fn an_idle_session_ends() {
    // Long enough for one request on a machine that has much to do.
    let limits = McpLimits { idle: Duration::from_millis(1_500), ..McpLimits::default() };
    let house = House::new(McpServer::new("house").agent(speaker(["One."])).limits(limits)).await;
    let begun = house.post("ann", &[], &initialize()).await;
    let session = begun.header("mcp-session-id").unwrap();
    // Whoever asks keeps it alive.
    soon(async {
        while !format!("{:?}", house.service).contains("Sessions(0)") {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    })
    .await;
    let list = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/list"});
    assert_eq!(house.post("ann", &[("mcp-session-id", session)], &list).await.status, 404);
}

#[tokio::test]
async fn who_is_turned_away_is_told_where_tokens_come_from() {
    let protected = ProtectedResource::new("https://agents.example/mcp")
        .authorization_server("https://login.example")
        .scope("agents");
    let server = McpServer::new("house").agent(speaker(["One."]));
    let house = House::with(server, |server| server.protected_resource(protected)).await;
    let refused = house.post("nobody", &[], &initialize()).await;
    let document = "https://agents.example/.well-known/oauth-protected-resource/mcp";
    let hint = format!("Bearer resource_metadata=\"{document}\", scope=\"agents\"");
    assert_eq!((refused.status, refused.header("www-authenticate")), (401, Some(hint.as_str())));
    let wrong = house.post("nobody", &[("authorization", "Bearer wrong")], &initialize()).await;
    let hint = format!("Bearer error=\"invalid_token\", resource_metadata=\"{document}\", scope=\"agents\"");
    assert_eq!((wrong.status, wrong.header("www-authenticate")), (401, Some(hint.as_str())));
    for path in ["", "/mcp"] {
        let mut stream = TcpStream::connect(house.address).await.unwrap();
        let ask = format!(
            "GET /.well-known/oauth-protected-resource{path} HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n"
        );
        stream.write_all(ask.as_bytes()).await.unwrap();
        let mut told = String::new();
        stream.read_to_string(&mut told).await.unwrap();
        assert!(told.starts_with("HTTP/1.1 200"), "{told}");
        assert!(told.contains(r#""authorization_servers":["https://login.example"]"#), "{told}");
    }
}

#[tokio::test]
async fn pages_of_other_sites_reach_nothing() {
    let house = House::with(McpServer::new("house").agent(speaker(["One."])), |server| {
        server.allow_host("agents.example")
    })
    .await;
    let foreign = house.post("ann", &[("host", "evil.example")], &initialize()).await;
    assert_eq!(foreign.status, 403);
    let page = house.post("ann", &[("origin", "https://evil.example")], &initialize()).await;
    assert_eq!(page.status, 403);
    assert_eq!(house.post("ann", &[("host", "agents.example")], &initialize()).await.status, 200);
}

#[tokio::test]
async fn without_sessions_people_are_asked_in_rounds() {
    let done = Arc::new(AtomicUsize::new(0));
    let count = done.clone();
    let mut delete = TestTool::new("delete", move |_, _| {
        count.fetch_add(1, Ordering::Relaxed);
        std::future::ready(Ok(json!("deleted").into()))
    });
    delete.spec.confirm = Confirm::Always;
    let model = ScriptedModel::new("script").call("delete", json!({})).text("It is over.");
    let runner = Runner::new("app", LlmAgent::new("deleter").model(model).tool(delete)).unwrap();
    let house = House::new(McpServer::new("house").agent(runner)).await;
    let request = json!({"request": "Delete it"});
    let first = send_now(&house, "ann", "deleter", request.clone(), json!({})).await;
    let first = &first["result"];
    assert_eq!(first["resultType"], "input_required");
    let (id, ask) = first["inputRequests"].as_object().unwrap().iter().next().unwrap();
    assert_eq!(ask["method"], "elicitation/create");
    assert_eq!(ask["params"]["requestedSchema"]["properties"]["confirm"]["type"], "boolean");
    let yes = json!({"action": "accept", "content": {"confirm": true}});
    let again = json!({"requestState": first["requestState"], "inputResponses": {id: yes}});
    let stolen = send_now(&house, "bob", "deleter", request.clone(), again.clone()).await;
    assert_eq!((&stolen["result"]["isError"], done.load(Ordering::Relaxed)), (&json!(true), 0));
    let unclear = json!({"action": "accept", "content": {"confirm": "false"}});
    for said in [json!({}), json!({id: unclear}), json!({id: "yes"}), json!({"other": yes})] {
        let state = json!({"requestState": first["requestState"], "inputResponses": said});
        let asked = send_now(&house, "ann", "deleter", request.clone(), state).await;
        assert_eq!(asked["result"]["requestState"], first["requestState"]);
        let message = asked["result"]["inputRequests"][id]["params"]["message"].as_str().unwrap();
        assert!(message.starts_with("That answer cannot be taken: "), "{message}");
    }
    assert_eq!(done.load(Ordering::Relaxed), 0);
    let closed = json!({"requestState": first["requestState"], "inputResponses": {id: {"action": "cancel"}}});
    let closed = send_now(&house, "ann", "deleter", request.clone(), closed).await;
    assert_eq!((&closed["result"]["isError"], done.load(Ordering::Relaxed)), (&json!(true), 0));
    let last = send_now(&house, "ann", "deleter", request, again).await;
    assert_eq!(last["result"]["content"][0]["text"], "It is over.");
    assert_eq!(done.load(Ordering::Relaxed), 1);
}

/// A tool that asks how many, and a server with it that keeps its sessions there.
fn counter() -> (McpServer, Arc<InMemorySessions>) {
    let tool = TestTool::new("count", |cx, _| {
        let answer =
            cx.interrupt(Question::input("How many?").schema(json!({"type": "integer", "maximum": 10})));
        async move { Ok(json!({"given": answer?.payload}).into()) }
    });
    let store = Arc::new(InMemorySessions::new());
    let kept = store.clone();
    (McpServer::new("house").tool(tool).tool_runner(move |runner| runner.sessions(kept)), store)
}

/// Waits until nothing of the tools' calls is left.
async fn nothing_left(store: &InMemorySessions) {
    soon(async {
        while !store.list("tools", "ann").await.unwrap().is_empty() {
            tokio::task::yield_now().await;
        }
    })
    .await;
}

#[tokio::test]
async fn without_sessions_an_answer_that_does_not_fit_is_asked_for_again() {
    let (server, store) = counter();
    let house = House::new(server).await;
    let first = send_now(&house, "ann", "count", json!({}), json!({})).await;
    let state = &first["result"]["requestState"];
    let (id, _) = first["result"]["inputRequests"].as_object().unwrap().iter().next().unwrap();
    let say = |number: u32| {
        let said = json!({"action": "accept", "content": {"answer": number}});
        json!({"requestState": state, "inputResponses": {id: said}})
    };
    let again = send_now(&house, "ann", "count", json!({}), say(300)).await;
    assert_eq!(&again["result"]["requestState"], state, "{again}");
    let last = send_now(&house, "ann", "count", json!({}), say(3)).await;
    assert_eq!(last["result"]["structuredContent"], json!({"given": 3}));
    assert!(store.list("tools", "ann").await.unwrap().is_empty());
    let late = send_now(&house, "ann", "count", json!({}), say(3)).await;
    assert_eq!(late["result"]["isError"], true);
}

#[tokio::test]
async fn a_call_of_a_tool_that_nobody_comes_back_to_leaves_nothing_behind() {
    let (server, store) = counter();
    let limits = McpLimits { answer_time: Duration::from_millis(200), ..McpLimits::default() };
    let house = House::new(server.limits(limits)).await;
    let first = send_now(&house, "ann", "count", json!({}), json!({})).await;
    assert_eq!(first["result"]["resultType"], "input_required");
    nothing_left(&store).await;
}

#[tokio::test]
async fn without_sessions_who_hangs_up_cancels_and_nothing_is_left_behind() {
    let (tool, mut told) = TestTool::endless("wait");
    let store = Arc::new(InMemorySessions::new());
    let kept = store.clone();
    let server = McpServer::new("house").tool(tool).tool_runner(move |runner| runner.sessions(kept));
    let house = House::new(server).await;
    let (headers, body) = call_now("wait", json!({}), json!({}));
    let headers: Vec<(&str, &str)> = headers.iter().map(|(name, value)| (*name, value.as_str())).collect();
    let stream = house.open("POST", "ann", &headers, &body.to_string()).await;
    assert_eq!(soon(told.recv()).await, Some("begun"));
    assert_eq!(store.list("tools", "ann").await.unwrap().len(), 1);
    drop(stream);
    assert_eq!(soon(told.recv()).await, Some("dropped"));
    nothing_left(&store).await;
}

#[tokio::test]
async fn a_stream_that_broke_off_is_taken_up_again() {
    let (slow, go, _begun) = patient();
    let house = House::new(McpServer::new("house").tool(slow)).await;
    let session = house.session("ann").await;
    let named = [("mcp-session-id", session.as_str())];
    let stream = house.open("POST", "ann", &named, &tool_call(1, "slow", json!({})).to_string()).await;
    let mut lines = BufReader::new(stream).lines();
    let id = soon(async {
        loop {
            let line = lines.next_line().await.unwrap().unwrap();
            if let Some(id) = line.strip_prefix("id:") {
                return id.trim().to_owned();
            }
        }
    })
    .await;
    drop(lines);
    let last = [("mcp-session-id", session.as_str()), ("last-event-id", id.as_str())];
    let stream = house.open("GET", "ann", &last, "").await;
    let mut lines = BufReader::new(stream).lines();
    assert_eq!(soon(lines.next_line()).await.unwrap().unwrap(), "HTTP/1.1 200 OK");
    go.send(true).unwrap();
    let answer = soon(async {
        loop {
            let line = lines.next_line().await.unwrap().unwrap();
            if line.contains("\"result\"") {
                return line;
            }
        }
    })
    .await;
    assert!(answer.contains("there"), "{answer}");
}

/// A tool that says which trace it is called in.
fn tracer() -> TestTool {
    TestTool::new("trace", |cx, _| {
        let trace = cx.extension::<TraceContext>().map(|trace| trace.traceparent().to_owned());
        std::future::ready(Ok(json!({"trace": trace}).into()))
    })
}

const PARENT: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

#[tokio::test]
async fn a_request_says_which_trace_it_is_part_of() {
    let house = House::new(McpServer::new("house").tool(tracer())).await;
    let session = house.session("ann").await;
    let headers = [("mcp-session-id", session.as_str()), ("traceparent", PARENT)];
    let reply = house.post("ann", &headers, &tool_call(1, "trace", json!({}))).await;
    assert_eq!(reply.answer()["result"]["structuredContent"], json!({"trace": PARENT}));
}

#[tokio::test]
async fn traces_of_strangers_are_left_alone() {
    let server = McpServer::new("house").tool(tracer());
    let house = House::with(server, |server| server.trust_traces(false)).await;
    let session = house.session("ann").await;
    let headers = [("mcp-session-id", session.as_str()), ("traceparent", PARENT)];
    let mut ask = tool_call(1, "trace", json!({}));
    ask["params"]["_meta"] = json!({"traceparent": PARENT});
    let reply = house.post("ann", &headers, &ask).await;
    assert_eq!(reply.answer()["result"]["structuredContent"], json!({"trace": null}));
}

/// A tool that tells that it has begun, and ends when it is told to.
fn patient() -> (TestTool, watch::Sender<bool>, mpsc::UnboundedReceiver<()>) {
    let (tell, told) = mpsc::unbounded_channel();
    let (go, gone) = watch::channel(false);
    let tool = TestTool::new("slow", move |_, _| {
        let (tell, mut gone) = (tell.clone(), gone.clone());
        async move {
            let _ = tell.send(());
            let _ = gone.wait_for(|gone| *gone).await;
            Ok(json!("there").into())
        }
    });
    (tool, go, told)
}

#[tokio::test]
async fn a_service_that_closes_takes_nothing_new_and_lets_calls_end() {
    let (tool, go, mut begun) = patient();
    let house = House::new(McpServer::new("house").tool(tool)).await;
    let session = house.session("ann").await;
    let named = [("mcp-session-id", session.as_str())];
    let ask = tool_call(1, "slow", json!({}));
    let (answered, ()) = tokio::join!(house.post("ann", &named, &ask), async {
        soon(begun.recv()).await.unwrap();
        // Another server in its place does not make it forget the call.
        let other = TestTool::new("other", |_, _| std::future::ready(Ok(json!("new").into())));
        house.service.replace(McpServer::new("house").tool(other)).unwrap();
        let service = house.service.clone();
        let closing = tokio::spawn(async move { service.close(Duration::MAX).await });
        let list = json!({"jsonrpc": "2.0", "id": 2, "method": "tools/list"});
        soon(async { while house.post("ann", &named, &list).await.status != 503 {} }).await;
        assert_eq!(house.post("bob", &[], &initialize()).await.status, 503);
        let cancelled =
            json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 9}});
        assert_eq!(house.post("ann", &named, &cancelled).await.status, 202);
        assert!(!closing.is_finished());
        go.send(true).unwrap();
        soon(closing).await.unwrap();
    });
    assert_eq!(answered.answer()["result"]["content"][0]["text"], "there");
    assert_eq!(house.send("GET", "ann", &named, "").await.status, 503);
}

#[tokio::test]
async fn a_service_that_closes_does_not_wait_for_ever() {
    for time in [Duration::ZERO, Duration::from_millis(50)] {
        let (tool, mut told) = TestTool::endless("wait");
        let house = House::new(McpServer::new("house").tool(tool)).await;
        let session = house.session("ann").await;
        let named = [("mcp-session-id", session.as_str())];
        let mut stream =
            house.open("POST", "ann", &named, &tool_call(1, "wait", json!({})).to_string()).await;
        assert_eq!(soon(told.recv()).await, Some("begun"));
        soon(house.service.close(time)).await;
        let mut rest = String::new();
        soon(stream.read_to_string(&mut rest)).await.unwrap();
        assert!(!rest.contains("\"result\""), "{rest}");
    }
}

#[tokio::test]
async fn a_session_may_be_silent_and_people_may_take_their_time_without_end() {
    let limits = McpLimits { idle: Duration::MAX, answer_time: Duration::MAX, ..McpLimits::default() };
    let tool = TestTool::new("quick", |_, _| std::future::ready(Ok(json!("there").into())));
    let house = House::new(McpServer::new("house").limits(limits).tool(tool)).await;
    let session = house.session("ann").await;
    let named = [("mcp-session-id", session.as_str())];
    let answered = house.post("ann", &named, &tool_call(1, "quick", json!({}))).await;
    assert_eq!(answered.answer()["result"]["content"][0]["text"], "there");
}

#[tokio::test]
async fn who_watches_is_told_by_the_server_that_took_the_place_of_another() {
    let shelf = || McpServer::new("house").resources(crate::reading::Diary);
    let server = shelf();
    let before = server.changes();
    let house = House::new(server).await;
    let session = house.session("ann").await;
    let named = [("mcp-session-id", session.as_str())];
    let watch =
        json!({"jsonrpc": "2.0", "id": 1, "method": "resources/subscribe", "params": {"uri": "diary://a"}});
    assert_eq!(house.post("ann", &named, &watch).await.status, 200);
    let stream = house.open("GET", "ann", &named, "").await;
    let mut lines = BufReader::new(stream).lines();
    assert_eq!(soon(lines.next_line()).await.unwrap().unwrap(), "HTTP/1.1 200 OK");
    let next = shelf();
    let after = next.changes();
    house.service.replace(next).unwrap();
    for changes in [before, after] {
        changes.tell("diary://a").await;
        soon(async { while !lines.next_line().await.unwrap().unwrap().contains("resources/updated") {} })
            .await;
    }
}

#[tokio::test]
async fn a_request_of_nobody_is_refused() {
    let service = McpServer::new("house").agent(speaker(["One."])).http().unwrap();
    let body = http_body_util::Full::new(bytes::Bytes::from(initialize().to_string()));
    let request = ::http::Request::post("/mcp").header("host", "localhost").body(body).unwrap();
    let response = tower_service::Service::call(&mut service.clone(), request).await.unwrap();
    assert_eq!(response.status(), 401);
}

#[tokio::test]
async fn what_is_offered_may_change_while_clients_stay() {
    let house = House::new(McpServer::new("house").agent(speaker(["One."]))).await;
    let session = house.session("ann").await;
    let named = [("mcp-session-id", session.as_str())];
    let other = TestTool::new("other", |_, _| std::future::ready(Ok(json!("new").into())));
    house.service.replace(McpServer::new("house").tool(other)).unwrap();
    let reply = house.post("ann", &named, &tool_call(1, "other", json!({}))).await;
    assert_eq!(reply.answer()["result"]["content"][0]["text"], "new");
    let gone = house.post("ann", &named, &tool_call(2, "speaker", json!({"request": "?"}))).await;
    assert_eq!(gone.answer()["error"]["code"], -32602);
    let bad = McpServer::new("house").agent(speaker(["."])).agent(speaker(["."]));
    assert!(house.service.replace(bad).is_err());
    assert_eq!(house.post("ann", &named, &tool_call(3, "other", json!({}))).await.status, 200);
}

#[tokio::test]
async fn a_request_says_how_its_call_is_run() {
    let model = ScriptedModel::new("m").recorded().text("1").text("2");
    let agent = LlmAgent::new("guide").instruction("The plan of {who} is {plan}.").model(model.clone());
    let offer = AgentOffer::new(Runner::new("app", agent).unwrap()).run_config(|caller, head, mut config| {
        let plan = head.and_then(|head| head.headers.get("x-plan")?.to_str().ok());
        let plan = plan.ok_or_else(|| umbel_core::Error::new(ErrorKind::InvalidInput, "say which plan"))?;
        let state = [("plan".to_owned(), json!(plan)), ("who".to_owned(), json!(caller.user.as_str()))];
        config.state_delta.extend(state);
        Ok(config)
    });
    let house = House::new(McpServer::new("house").agent(offer)).await;
    let session = house.session("ann").await;
    let ask = tool_call(1, "guide", json!({"request": "Hi"}));
    let reply = house.post("ann", &[("mcp-session-id", &session), ("x-plan", "gold")], &ask).await;
    assert_eq!(reply.answer()["result"]["content"][0]["text"], "1");
    assert!(model.requests()[0].instruction.text().contains("The plan of ann is gold."));
    let without = house.post("ann", &[("mcp-session-id", &session)], &ask).await.answer();
    assert_eq!((&without["result"]["isError"], model.requests().len()), (&json!(true), 1));
    assert!(
        without["result"]["content"][0]["text"].as_str().unwrap().contains("say which plan"),
        "{without}"
    );
}
