//! A client of HTTP/1.1 that keeps its connection, on a thread of its own.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

/// How long an answer may take.
const ANSWER: Duration = Duration::from_secs(60);

/// One connection.
pub(crate) struct Client {
    address: SocketAddr,
    stream: BufReader<TcpStream>,
}

/// What came back.
pub(crate) struct HttpAnswer {
    pub(crate) status: u16,
    /// Names in small letters.
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: String,
}

impl HttpAnswer {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(known, _)| known == name).map(|(_, value)| &**value)
    }
}

fn connect(address: SocketAddr) -> std::io::Result<BufReader<TcpStream>> {
    let stream = TcpStream::connect(address)?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(ANSWER))?;
    Ok(BufReader::new(stream))
}

impl Client {
    pub(crate) fn connect(address: SocketAddr) -> Result<Self, String> {
        let stream = connect(address).map_err(|error| format!("no connection: {error}"))?;
        Ok(Self { address, stream })
    }

    /// One request and its whole answer.
    pub(crate) fn ask(
        &mut self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: &str,
    ) -> Result<HttpAnswer, String> {
        let told = |error: std::io::Error| format!("{method} {path}: {error}");
        self.send(method, path, headers, body).map_err(told)?;
        self.answer().map_err(told)
    }

    /// Sends a request, waits for the first bytes of its answer, and closes the connection.
    pub(crate) fn cut(&mut self, path: &str, body: &str) -> Result<(), String> {
        let mut cut = || {
            self.send("POST", path, &[], body)?;
            self.head()?;
            self.stream.fill_buf()?;
            self.stream = connect(self.address)?;
            Ok(())
        };
        cut().map_err(|error: std::io::Error| format!("POST {path}, cut: {error}"))
    }

    fn send(
        &mut self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: &str,
    ) -> std::io::Result<()> {
        let mut head =
            format!("{method} {path} HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-length: {}\r\n", body.len());
        for (name, value) in [("content-type", "application/json")].iter().chain(headers) {
            head += &format!("{name}: {value}\r\n");
        }
        self.stream.get_mut().write_all(format!("{head}\r\n{body}").as_bytes())
    }

    fn line(&mut self) -> std::io::Result<String> {
        let mut line = String::new();
        if self.stream.read_line(&mut line)? == 0 {
            return Err(std::io::ErrorKind::UnexpectedEof.into());
        }
        Ok(line.trim_end().to_owned())
    }

    fn head(&mut self) -> std::io::Result<(u16, Vec<(String, String)>)> {
        let status = self.line()?.split(' ').nth(1).and_then(|code| code.parse().ok()).unwrap_or_default();
        let mut headers = Vec::new();
        loop {
            let line = self.line()?;
            let Some((name, value)) = line.split_once(':') else { return Ok((status, headers)) };
            headers.push((name.to_ascii_lowercase(), value.trim().to_owned()));
        }
    }

    fn answer(&mut self) -> std::io::Result<HttpAnswer> {
        let (status, headers) = self.head()?;
        let mut answer = HttpAnswer { status, headers, body: String::new() };
        let mut bytes = Vec::new();
        match answer.header("content-length").and_then(|length| length.parse().ok()) {
            Some(length) => {
                bytes.resize(length, 0);
                self.stream.read_exact(&mut bytes)?;
            }
            None if answer.header("transfer-encoding").is_some() => loop {
                let size = usize::from_str_radix(&self.line()?, 16).unwrap_or_default();
                let mut chunk = vec![0; size];
                self.stream.read_exact(&mut chunk)?;
                self.line()?;
                if size == 0 {
                    break;
                }
                bytes.extend(chunk);
            },
            None => {}
        }
        answer.body = String::from_utf8_lossy(&bytes).into_owned();
        Ok(answer)
    }
}
