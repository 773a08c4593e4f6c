//! MCP servers that do what a script says. Tests with them have a clock that goes on when nobody has anything to do: whoever
//! sleeps knows that all else was heard.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, DuplexStream, ReadHalf, WriteHalf};
use tokio::sync::Mutex as AsyncMutex;
use umbel_core::BoxFuture;
use umbel_mcp::client::Pipe;

/// What was said to a server, and how often somebody came.
#[derive(Clone, Default)]
pub(crate) struct Log {
    said: Arc<Mutex<Vec<Value>>>,
    connections: Arc<AtomicUsize>,
    closed: Arc<AtomicUsize>,
}

impl Log {
    /// The messages with that method.
    pub(crate) fn of(&self, method: &str) -> Vec<Value> {
        let said = self.said.lock().unwrap();
        said.iter().filter(|message| message["method"] == method).cloned().collect()
    }

    /// The answers to what the server asked.
    pub(crate) fn answers(&self) -> Vec<Value> {
        let said = self.said.lock().unwrap();
        said.iter().filter(|message| message["method"].is_null()).cloned().collect()
    }

    pub(crate) fn connections(&self) -> usize {
        self.connections.load(Ordering::SeqCst)
    }

    /// Waits until so many connections were closed.
    pub(crate) async fn wait_closed(&self, count: usize) {
        for _ in 0..2_000 {
            if self.closed.load(Ordering::SeqCst) >= count {
                return;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        panic!("it was never closed");
    }

    /// Waits until a message with that method came.
    pub(crate) async fn wait_for(&self, method: &str) -> Value {
        for _ in 0..2_000 {
            if let Some(message) = self.of(method).pop() {
                return message;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        panic!("`{method}` never came");
    }
}

/// A server's mouth.
#[derive(Clone)]
pub(crate) struct Out {
    write: Arc<AsyncMutex<Option<WriteHalf<DuplexStream>>>>,
    log: Log,
}

impl Out {
    /// Says a line as it is. Gives whether it was taken.
    pub(crate) async fn raw(&self, line: &[u8]) -> bool {
        let mut write = self.write.lock().await;
        let Some(write) = write.as_mut() else { return false };
        write.write_all(line).await.is_ok() && write.flush().await.is_ok()
    }

    pub(crate) async fn say(&self, message: Value) {
        self.raw(format!("{message}\n").as_bytes()).await;
    }

    pub(crate) async fn answer(&self, request: &Value, result: Value) {
        self.say(json!({"jsonrpc": "2.0", "id": request["id"], "result": result})).await;
    }

    pub(crate) async fn refuse(&self, request: &Value, code: i64, message: &str) {
        let error = json!({"code": code, "message": message});
        self.say(json!({"jsonrpc": "2.0", "id": request["id"], "error": error})).await;
    }

    /// Answers with a text.
    pub(crate) async fn text(&self, request: &Value, text: &str) {
        self.answer(request, json!({"content": [{"type": "text", "text": text}]})).await;
    }

    /// Asks the client something, and gives what it says.
    pub(crate) async fn ask(&self, id: &str, method: &str, params: Value) -> Value {
        let answers = || self.log.answers().into_iter().filter(|answer| answer["id"] == id);
        let before = answers().count();
        self.say(json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params})).await;
        for _ in 0..2_000 {
            if let Some(answer) = answers().nth(before) {
                return answer;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        panic!("`{id}` was never answered");
    }

    /// Goes away.
    pub(crate) async fn close(&self) {
        if let Some(mut write) = self.write.lock().await.take() {
            let _ = write.shutdown().await;
        }
    }
}

type Script = dyn Fn(Value, Out) -> BoxFuture<'static, ()> + Send + Sync;

/// A server at the other end of a pipe. It shakes hands; the rest is the script's.
pub(crate) fn server<F>(script: impl Fn(Value, Out) -> F + Send + Sync + 'static) -> (Pipe, Log)
where
    F: Future<Output = ()> + Send + 'static,
{
    let log = Log::default();
    let script: Arc<Script> = Arc::new(move |request, out| Box::pin(script(request, out)));
    let known = log.clone();
    let pipe = Pipe::new(move || {
        let (ours, theirs) = tokio::io::duplex(1 << 16);
        known.connections.fetch_add(1, Ordering::SeqCst);
        let (read, write) = tokio::io::split(theirs);
        let out = Out { write: Arc::new(AsyncMutex::new(Some(write))), log: known.clone() };
        tokio::spawn(serve(read, out, script.clone()));
        Ok(ours)
    });
    (pipe, log)
}

async fn serve(read: ReadHalf<DuplexStream>, out: Out, script: Arc<Script>) {
    let mut lines = BufReader::new(read).lines();
    while let Ok(Some(line)) = lines.next_line().await {
        let message: Value = serde_json::from_str(&line).unwrap();
        out.log.said.lock().unwrap().push(message.clone());
        match message["method"].as_str() {
            Some("initialize") => {
                let result = json!({"protocolVersion": "2025-11-25", "serverInfo": {"name": "fake", "version": "1"},
                    "capabilities": {"tools": {"listChanged": true}}, "instructions": "Be kind."});
                out.answer(&message, result).await;
            }
            // What a script does with it may take its time.
            Some(_) if !message["id"].is_null() => drop(tokio::spawn(script(message, out.clone()))),
            _ => {}
        }
    }
    out.log.closed.fetch_add(1, Ordering::SeqCst);
}

/// A server that was made before there was anything to discover, with these tools.
pub(crate) fn tools_server<F>(
    tools: Value,
    call: impl Fn(Value, Out) -> F + Send + Sync + 'static,
) -> (Pipe, Log)
where
    F: Future<Output = ()> + Send + 'static,
{
    let call = Arc::new(call);
    server(move |request, out| {
        let (tools, call) = (tools.clone(), call.clone());
        async move {
            match request["method"].as_str() {
                Some("tools/list") => out.answer(&request, json!({ "tools": tools })).await,
                Some("tools/call") => call(request, out).await,
                _ => out.refuse(&request, -32601, "not known").await,
            }
        }
    })
}

/// A tool in a list.
pub(crate) fn tool(name: &str) -> Value {
    json!({"name": name, "description": format!("Does {name}."), "inputSchema": {"type": "object", "properties": {}}})
}
