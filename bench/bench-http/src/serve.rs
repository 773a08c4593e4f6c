//! A server as a process: it says where it listens, and stops when its input ends.

use std::io::Write;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::io::AsyncReadExt;
use tokio::net::TcpListener;
use tokio::runtime::{Builder, Runtime};
use umbel::Runner;
use umbel_server::{AgentEndpoint, Server, ServerLimits, Service};

use crate::agents;
use crate::raw::{self, Recorded};

/// One thread is the current one: what it does can be counted exactly.
fn runtime(threads: usize) -> Runtime {
    let mut builder = match threads {
        1 => Builder::new_current_thread(),
        _ => Builder::new_multi_thread(),
    };
    builder.worker_threads(threads).enable_all().build().expect("a runtime")
}

async fn listen() -> TcpListener {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    println!("{}", listener.local_addr().expect("an address"));
    std::io::stdout().flush().expect("somebody listens");
    listener
}

async fn told_to_stop() {
    let mut rest = Vec::new();
    let _ = tokio::io::stdin().read_to_end(&mut rest).await;
}

/// Umbel, with auth off.
pub fn umbel(store: &str, threads: usize, kept: usize) {
    runtime(threads).block_on(async {
        let sessions = umbel_stores::open(store).await.expect("a store").sessions;
        let limits = ServerLimits { kept_bytes: kept, ..ServerLimits::default() };
        let mut server = Server::new().limits(limits);
        for (path, agent) in agents::all() {
            let runner = Runner::builder(path.trim_start_matches('/'), agent);
            let runner = runner.sessions(sessions.clone()).build().expect("a runner");
            server = server.agent(path, AgentEndpoint::new(runner));
        }
        let forgets: Arc<OnceLock<Service>> = Arc::default();
        let forget = forgets.clone();
        let server = server.mount(
            "/forget",
            axum::Router::new().fallback(async move || {
                forget.get().expect("a service").forget_frames();
            }),
        );
        let service = server.build().expect("a server");
        let _ = forgets.set(service.clone());
        service.serve(listen().await, told_to_stop()).await.expect("serving");
    });
}

/// The raw handler, on connections with the settings of Umbel's server.
pub fn raw(stream: &str, threads: usize) {
    let text = std::fs::read_to_string(stream).expect("a recorded stream");
    let (is_paced, frames): (bool, Vec<String>) = serde_json::from_str(&text).expect("a recorded stream");
    let frames = frames.into_iter().map(Into::into).collect();
    let router = raw::router(Recorded { frames, is_paced });
    runtime(threads).block_on(async {
        let listener = listen().await;
        let accept = async {
            loop {
                let Ok((stream, _)) = listener.accept().await else { continue };
                let _ = stream.set_nodelay(true);
                let service = TowerToHyperService::new(router.clone());
                tokio::spawn(async move {
                    let mut http = http1::Builder::new();
                    http.timer(TokioTimer::new());
                    http.header_read_timeout(Duration::from_secs(30)).max_buf_size(64 * 1024);
                    let _ = http.serve_connection(TokioIo::new(stream), service).await;
                });
            }
        };
        tokio::select! {
            () = accept => {}
            () = told_to_stop() => {}
        }
    });
}
