//! What clients do with a server: every kind makes threads and deletes them.

use serde_json::{Value, json};

use super::client::{Client, HttpAnswer};

/// What one exchange does.
#[derive(Clone, Copy, Debug)]
pub(crate) enum ExchangeKind {
    /// A run that finishes, and the thread read.
    Chat,
    /// A run with a tool.
    Tool,
    /// A question that is answered.
    Answer,
    /// A question that nobody answers.
    Question,
    /// A stream whose connection is cut.
    Cut,
    /// A run that is cancelled while it waits.
    Cancel,
    /// A fork.
    Fork,
    /// A tool of an MCP server.
    McpTool,
    /// A call of an MCP client, in a session of the protocol.
    McpCall,
    /// A tool of the client.
    ClientTool,
}

/// All kinds, in turn.
pub(crate) const KINDS: [ExchangeKind; 10] = [
    ExchangeKind::Chat,
    ExchangeKind::Tool,
    ExchangeKind::Answer,
    ExchangeKind::Question,
    ExchangeKind::Cut,
    ExchangeKind::Cancel,
    ExchangeKind::Fork,
    ExchangeKind::McpTool,
    ExchangeKind::McpCall,
    ExchangeKind::ClientTool,
];

/// One thread of one client.
pub(crate) struct Exchange<'a> {
    client: &'a mut Client,
    thread: String,
}

impl<'a> Exchange<'a> {
    pub(crate) fn new(client: &'a mut Client, thread: String) -> Self {
        Self { client, thread }
    }

    pub(crate) fn of_kind(mut self, kind: ExchangeKind) -> Result<(), String> {
        match kind {
            ExchangeKind::Chat => {
                self.run("/chat")?;
                let thread = self.get("GET", &format!("/chat/threads/{}", self.thread), "")?;
                expect(&thread, thread.body.contains("some words"))?;
                self.delete("/chat")
            }
            ExchangeKind::Tool => self.run("/tool").and_then(|()| self.delete("/tool")),
            ExchangeKind::McpTool => self.run("/remote").and_then(|()| self.delete("/remote")),
            ExchangeKind::Question => {
                let asked = self.post("/ask", &self.said())?;
                expect(&asked, asked.body.contains("\"interrupt\""))?;
                self.delete("/ask")
            }
            ExchangeKind::Answer => self.answer(),
            ExchangeKind::Cut => {
                let body = self.said().to_string();
                self.client.cut("/slow", &body)?;
                self.delete("/slow")
            }
            ExchangeKind::Cancel => {
                let body = self.said().to_string();
                self.client.cut("/slow", &body)?;
                let path = format!("/slow/runs/{}-r/cancel?thread={0}", self.thread);
                let cancelled = self.get("POST", &path, "{}")?;
                expect(&cancelled, cancelled.status < 300)?;
                let path = format!("/slow/runs/{}-r/events?thread={0}", self.thread);
                let ended = self.get("GET", &path, "")?;
                expect(&ended, ended.body.contains("RUN_FINISHED") || ended.body.contains("RUN_ERROR"))?;
                self.delete("/slow")
            }
            ExchangeKind::Fork => self.fork(),
            ExchangeKind::McpCall => self.mcp_call(),
            ExchangeKind::ClientTool => self.client_tool(),
        }
    }

    /// A run that finishes. Its thread stays.
    pub(crate) fn run(&mut self, agent: &str) -> Result<(), String> {
        let ran = self.post(agent, &self.said())?;
        expect(&ran, ran.body.contains("RUN_FINISHED") && ran.body.contains("some words"))
    }

    /// The input of a run with a message.
    fn said(&self) -> Value {
        let thread = &self.thread;
        let message = json!({"id": format!("{thread}-m"), "role": "user", "content": "How is the weather?"});
        json!({"threadId": thread, "runId": format!("{thread}-r"), "protocolVersion": "1.0", "messages": [message]})
    }

    /// The input of the run after it.
    fn next(&self, field: &str, value: Value) -> Value {
        let thread = &self.thread;
        let next = json!({"threadId": thread, "runId": format!("{thread}-n"), "protocolVersion": "1.0", "messages": []});
        with(next, field, value)
    }

    fn answer(&mut self) -> Result<(), String> {
        let asked = self.post("/ask", &self.said())?;
        let id = last_event(&asked.body).pointer("/outcome/interrupts/0/id").cloned();
        expect(&asked, id.is_some())?;
        let resume = json!([{"interruptId": id, "status": "resolved", "payload": {"approved": true}}]);
        let resumed = self.post("/ask", &self.next("resume", resume))?;
        expect(&resumed, resumed.body.contains("booked") && resumed.body.contains("RUN_FINISHED"))?;
        self.delete("/ask")
    }

    fn client_tool(&mut self) -> Result<(), String> {
        let tools = json!([{"name": "pick", "description": "Picks.", "parameters": {"type": "object"}}]);
        let called = self.post("/client", &with(self.said(), "tools", tools.clone()))?;
        let id = called.body.split("\"toolCallId\":\"").nth(1).and_then(|rest| rest.split('"').next());
        let id = id.ok_or("no call of the client's tool")?.to_owned();
        let result = json!([{"id": format!("{}-t", self.thread), "role": "tool", "toolCallId": id, "content": "this"}]);
        let ended = self.post("/client", &with(self.next("messages", result), "tools", tools))?;
        expect(&ended, ended.body.contains("some words") && ended.body.contains("RUN_FINISHED"))?;
        self.delete("/client")
    }

    fn fork(&mut self) -> Result<(), String> {
        self.run("/chat")?;
        let name = format!("{}-fork", self.thread);
        let path = format!("/chat/threads/{}/fork", self.thread);
        let forked = self.get("POST", &path, &json!({"threadId": name}).to_string())?;
        expect(&forked, forked.status == 201)?;
        self.delete("/chat")?;
        self.thread = name;
        self.delete("/chat")
    }

    fn mcp_call(&mut self) -> Result<(), String> {
        let accept = ("accept", "application/json, text/event-stream");
        let info = json!({"name": "soak", "version": "1"});
        let hello = json!({"jsonrpc": "2.0", "id": 1, "method": "initialize",
            "params": {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": info}});
        let opened = self.client.ask("POST", "/mcp", &[accept], &hello.to_string())?;
        let session = opened.header("mcp-session-id").unwrap_or_default().to_owned();
        expect(&opened, opened.status == 200 && !session.is_empty())?;
        let headers = [accept, ("mcp-session-id", &*session), ("mcp-protocol-version", "2025-06-18")];
        let ready = json!({"jsonrpc": "2.0", "method": "notifications/initialized"});
        self.client.ask("POST", "/mcp", &headers, &ready.to_string())?;
        let call = json!({"jsonrpc": "2.0", "id": 2, "method": "tools/call",
            "params": {"name": "guide", "arguments": {"request": "How is the weather?"}}});
        let called = self.client.ask("POST", "/mcp", &headers, &call.to_string())?;
        expect(&called, called.body.contains("some words"))?;
        let name = called.body.split("\"umbel/session\":\"").nth(1).and_then(|rest| rest.split('"').next());
        self.thread = name.ok_or_else(|| format!("the call has no session: {}", called.body))?.to_owned();
        let closed = self.client.ask("DELETE", "/mcp", &headers, "")?;
        expect(&closed, closed.status < 300)?;
        self.delete("/chat")
    }

    fn post(&mut self, path: &str, body: &Value) -> Result<HttpAnswer, String> {
        let answer = self.get("POST", path, &body.to_string())?;
        expect(&answer, answer.status == 200)?;
        Ok(answer)
    }

    fn get(&mut self, method: &str, path: &str, body: &str) -> Result<HttpAnswer, String> {
        self.client.ask(method, path, &[], body)
    }

    fn delete(&mut self, agent: &str) -> Result<(), String> {
        let deleted = self.get("DELETE", &format!("{agent}/threads/{}", self.thread), "")?;
        expect(&deleted, deleted.status == 204)
    }
}

/// An input with another field.
fn with(mut input: Value, field: &str, value: Value) -> Value {
    if let Some(fields) = input.as_object_mut() {
        fields.insert(field.to_owned(), value);
    }
    input
}

/// The last event of a stream.
fn last_event(body: &str) -> Value {
    let data = body.lines().filter_map(|line| line.strip_prefix("data: ")).next_back();
    data.and_then(|data| serde_json::from_str(data).ok()).unwrap_or_default()
}

fn expect(answer: &HttpAnswer, is_good: bool) -> Result<(), String> {
    match is_good {
        true => Ok(()),
        false => Err(format!("answered {}: {}", answer.status, answer.body)),
    }
}
