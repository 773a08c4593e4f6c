//! A model behind HTTP that always says the same.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};

use serde_json::json;

/// Serves it, and tells its name: `Some` text is what it says, `None` refuses all requests.
pub(crate) fn says(text: Option<&'static str>) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let name = format!("http://{}/v1#m", listener.local_addr().unwrap());
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            // Who hangs up asks no more.
            let _ = stream.and_then(|stream| answer(stream, text));
        }
    });
    name
}

fn answer(mut stream: TcpStream, text: Option<&str>) -> std::io::Result<()> {
    let mut reader = BufReader::new(stream.try_clone()?);
    let mut length = 0;
    loop {
        let mut line = String::new();
        reader.read_line(&mut line)?;
        let line = line.trim().to_lowercase();
        if let Some(value) = line.strip_prefix("content-length:") {
            length = value.trim().parse().unwrap();
        }
        if line.is_empty() {
            break;
        }
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body)?;
    let streams = String::from_utf8_lossy(&body).replace(' ', "").contains("\"stream\":true");
    let (status, kind, body) = match text {
        None => ("400 Bad Request", "application/json", json!({"error": {"message": "no"}}).to_string()),
        Some(text) if streams => {
            let delta = json!({"choices": [{"index": 0, "delta": {"content": text}}]});
            let end = json!({"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]});
            ("200 OK", "text/event-stream", format!("data: {delta}\n\ndata: {end}\n\ndata: [DONE]\n\n"))
        }
        Some(text) => {
            let message = json!({"role": "assistant", "content": text});
            let whole = json!({"choices": [{"index": 0, "message": message, "finish_reason": "stop"}]});
            ("200 OK", "application/json", whole.to_string())
        }
    };
    write!(
        stream,
        "HTTP/1.1 {status}\r\ncontent-type: {kind}\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{body}",
        body.len()
    )
}
