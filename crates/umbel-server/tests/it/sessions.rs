//! Sessions that nobody comes back to.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use serde_json::json;
use tokio::sync::Semaphore;
use umbel::{
    Chunk, Clock, InMemorySessions, LlmAgent, ModelRequest, Runner, ScriptedModel, SessionStore, SystemClock,
    agent_fn, tool,
};
use umbel_server::{AgentEndpoint, Server, Sweep};

use crate::auth::{ask, echo, get};
use crate::support::{Host, input, within};

/// A clock that can be put forward.
#[derive(Clone, Debug, Default)]
struct Forward(Arc<AtomicU64>);

impl Forward {
    fn by(&self, seconds: u64) {
        self.0.fetch_add(seconds, Ordering::SeqCst);
    }
}

impl Clock for Forward {
    fn now(&self) -> f64 {
        let ahead = u32::try_from(self.0.load(Ordering::SeqCst)).unwrap();
        SystemClock.now() + f64::from(ahead)
    }
}

/// Deletes a file.
#[tool(confirm)]
async fn delete_file(name: String) -> String {
    name
}

/// Looks after sessions without a pause.
const SWIFT: Sweep = Sweep {
    timeout: Duration::from_secs(60),
    every: Duration::from_millis(10),
    max_wait: Some(Duration::from_secs(600)),
};

async fn swept(host: &Host) -> u64 {
    let mut reply = host.get("/metrics").await;
    let text = reply.text().await;
    let line = text.lines().find_map(|line| line.strip_prefix("umbel_sessions_swept_total "));
    line.unwrap().parse().unwrap()
}

async fn threads(host: &Host, path: &str) -> Vec<String> {
    let body = ask(host, &get(&format!("{path}/threads")), &[]).await.json().await;
    let threads = body["threads"].as_array().unwrap().iter();
    threads.map(|thread| thread["threadId"].as_str().unwrap().to_owned()).collect()
}

async fn until_left(host: &Host, path: &str, left: &[&str]) {
    let look = async {
        while threads(host, path).await != left {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    within(look).await;
}

#[tokio::test]
async fn idle_sessions_go_and_those_that_run_or_wait_stay() {
    let (clock, gate) = (Forward::default(), Arc::new(Semaphore::new(0)));
    let asks = ScriptedModel::from_fn("asks", |_: &ModelRequest| {
        vec![Ok(Chunk::Complete(umbel::Response::new(umbel::Content::new(
            umbel::Role::Model,
            [umbel::Part::call(umbel::FunctionCall::new(
                "delete_file",
                json!({"name": "a.txt"}).as_object().unwrap().clone(),
            ))],
        ))))]
    });
    let slow = {
        let gate = gate.clone();
        agent_fn("slow", move |_| {
            let gate = gate.clone();
            Box::pin(async move {
                gate.acquire().await.unwrap().forget();
                Ok(())
            })
        })
    };
    let store = Arc::new(InMemorySessions::new());
    let endpoint = |runner: umbel::RunnerBuilder| {
        AgentEndpoint::new(runner.sessions(store.clone()).clock(clock.clone()).build().unwrap())
    };
    let service = Server::new()
        .agent("/echo", endpoint(Runner::builder("echo", echo("echo"))))
        .agent(
            "/asks",
            endpoint(Runner::builder("asks", LlmAgent::new("asks").model(asks).tool(delete_file))),
        )
        .agent("/slow", endpoint(Runner::builder("slow", slow)))
        .sweep(SWIFT)
        .build()
        .unwrap();
    let host = Host::start(service).await;
    host.post("/echo", &input("old", "r1", "hi")).await.frames().await;
    host.post("/asks", &input("waits", "r2", "hi")).await.frames().await;
    let running = host.post("/slow", &input("runs", "r3", "hi")).await;
    assert_eq!(threads(&host, "/echo").await, ["old"]);
    clock.by(61);
    until_left(&host, "/echo", &[]).await;
    assert_eq!((threads(&host, "/asks").await.len(), threads(&host, "/slow").await.len()), (1, 1));
    // People do not come back for ever.
    clock.by(600);
    until_left(&host, "/asks", &[]).await;
    assert_eq!((threads(&host, "/slow").await.len(), swept(&host).await), (1, 2));
    gate.add_permits(1);
    assert_eq!(running.frames().await.last().unwrap().kind(), "RUN_FINISHED");
}

/// Begins a thread, puts the clock forward, and starts another server on the same store. Then so many are left.
async fn left_after(
    seconds: u64,
    store: Arc<dyn SessionStore>,
    sweep: Option<Option<Sweep>>,
    expected: usize,
) {
    let clock = Forward::default();
    let build = || {
        let runner = Runner::builder("app", echo("echo")).sessions(store.clone()).clock(clock.clone());
        let server = Server::new().agent("/chat", AgentEndpoint::new(runner.build().unwrap()));
        match sweep {
            Some(sweep) => server.sweep(sweep).build().unwrap(),
            None => server.build().unwrap(),
        }
    };
    let host = Host::start(build()).await;
    host.post("/chat", &input("t", "r", "hi")).await.frames().await;
    drop(host);
    clock.by(seconds);
    // What is swept is swept when a server starts.
    let service = build();
    let left = async || store.list("app", "local").await.unwrap().len();
    let look = async {
        while left().await != expected {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        // What is to stay must not go a little later.
        if expected > 0 {
            tokio::time::sleep(Duration::from_millis(300)).await;
        }
    };
    tokio::select! {
        () = service.tend() => {}
        () = within(look) => {}
    }
    assert_eq!(left().await, expected, "after {seconds} s");
}

#[tokio::test]
async fn sessions_in_memory_go_after_twenty_minutes_and_those_on_disk_stay_unless_told() {
    let memory = || -> Arc<dyn SessionStore> { Arc::new(InMemorySessions::new()) };
    left_after(1_190, memory(), None, 1).await;
    left_after(1_201, memory(), None, 0).await;
    // Told never to.
    left_after(1_201, memory(), Some(None), 1).await;
    let folder = tempfile::tempdir().unwrap();
    let disk = |name: &str| {
        let path = folder.path().join(name);
        async move {
            let stores = umbel_stores::open(&format!("sqlite:{}", path.display())).await.unwrap();
            stores.sessions as Arc<dyn SessionStore>
        }
    };
    left_after(1_000_000, disk("a.db").await, None, 1).await;
    // Told to.
    left_after(1_201, disk("b.db").await, Some(Some(Sweep::default())), 0).await;
}

#[test]
fn the_defaults_are_as_documented() {
    let Sweep { timeout, every, max_wait } = Sweep::default();
    let seconds = [timeout.as_secs(), every.as_secs(), max_wait.unwrap().as_secs()];
    assert_eq!(seconds, [1_200, 300, 604_800]);
}
