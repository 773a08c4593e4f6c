//! Servers of agents, and requests to them.

use std::net::SocketAddr;

use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use umbel_server::Server;

/// Says that nothing comes after this request, so that the answer can be read to its end.
pub(crate) const CLOSE: &str = "connection: close\r\n";

/// A server that listens on this thread.
pub(crate) struct Served {
    pub(crate) address: SocketAddr,
    stop: tokio::sync::oneshot::Sender<()>,
    serving: tokio::task::JoinHandle<std::io::Result<()>>,
}

impl Served {
    pub(crate) async fn start(server: Server) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
        let service = server.build().unwrap();
        let serving = tokio::spawn(service.serve(listener, async move {
            let _ = stopped.await;
        }));
        Self { address, stop, serving }
    }

    /// Sends a request, and does not wait for the answer.
    pub(crate) async fn ask(&self, request: &str, headers: &str, body: &str) -> TcpStream {
        let request = format!(
            "{request} HTTP/1.1\r\nhost: {}\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\
             {headers}\r\n{body}",
            self.address,
            body.len()
        );
        let mut stream = TcpStream::connect(self.address).await.unwrap();
        stream.write_all(request.as_bytes()).await.unwrap();
        stream
    }

    /// Begins a run.
    pub(crate) async fn run(&self, headers: &str) -> TcpStream {
        let body = json!({
            "threadId": "t", "runId": "r", "state": {}, "tools": [], "context": [], "forwardedProps": {},
            "messages": [{"id": "1", "role": "user", "content": "hi"}],
        });
        self.ask("POST /agent", headers, &body.to_string()).await
    }

    pub(crate) async fn stop(self) {
        let _ = self.stop.send(());
        self.serving.await.unwrap().unwrap();
    }

    /// Sends a request, and reads the whole answer.
    pub(crate) async fn read(&self, request: &str, body: &str) -> String {
        let mut answer = String::new();
        self.ask(request, CLOSE, body).await.read_to_string(&mut answer).await.unwrap();
        answer
    }
}
