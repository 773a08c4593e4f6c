//! What `umbel serve` tells a collector.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crate::serve::{Served, command, message};

/// A collector that takes all it gets, and keeps it.
struct Collector {
    address: SocketAddr,
    taken: Arc<Mutex<Vec<Vec<u8>>>>,
}

impl Collector {
    fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let (address, taken) = (listener.local_addr().unwrap(), Arc::<Mutex<Vec<Vec<u8>>>>::default());
        let kept = taken.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let kept = kept.clone();
                std::thread::spawn(move || take(stream.unwrap(), &kept));
            }
        });
        Self { address, taken }
    }

    /// Whether anything that came has these bytes in it.
    fn has(&self, text: &str) -> bool {
        let has = |bytes: &Vec<u8>| bytes.windows(text.len()).any(|window| window == text.as_bytes());
        self.taken.lock().unwrap().iter().any(has)
    }
}

/// Takes requests, as they stand, until there are no more.
fn take(mut stream: TcpStream, kept: &Mutex<Vec<Vec<u8>>>) -> Option<()> {
    loop {
        let mut request = Vec::new();
        let mut byte = [0];
        while !request.ends_with(b"\r\n\r\n") {
            stream.read_exact(&mut byte).ok()?;
            request.extend(byte);
        }
        let head = String::from_utf8(request.clone()).unwrap().to_ascii_lowercase();
        let length = head.split("content-length: ").nth(1)?.split('\r').next()?.parse().unwrap();
        let mut body = vec![0; length];
        stream.read_exact(&mut body).ok()?;
        request.extend(body);
        kept.lock().unwrap().push(request);
        stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n").ok()?;
    }
}

/// One run of a server that was started like this, which is then told to stop.
fn run_and_stop(mut served: Served) {
    let answer = served.ask("POST /guide", &[], &message("r1", "weather in Paris, canary-prompt"));
    assert!(answer.contains("RUN_FINISHED"), "{answer}");
    served.signal("-TERM");
    assert!(served.ended().0.success());
}

const TOLD: [&str; 6] = [
    "POST /v1/traces",
    "POST /guide",
    "invoke_agent guide",
    "execute_tool get_weather",
    "POST /v1/metrics",
    "gen_ai.client.operation.duration",
];

#[test]
fn a_collector_gets_all_before_the_server_ends_and_nothing_of_what_was_said() {
    let collector = Collector::start();
    run_and_stop(Served::start(&["--port", "0", "--otlp", &format!("http://{}", collector.address)]));
    for told in TOLD {
        assert!(collector.has(told), "{told}");
    }
    assert!(!collector.has("canary-prompt"));
}

#[test]
fn the_environment_says_where_and_as_whom_and_what() {
    let collector = Collector::start();
    let mut command = command(&["--port", "0"]);
    command
        .env("OTEL_EXPORTER_OTLP_ENDPOINT", format!("http://{}", collector.address))
        .env("OTEL_EXPORTER_OTLP_HEADERS", "x-key=opensesame")
        .env("OTEL_SERVICE_NAME", "travel-desk")
        .env("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment.name=test-bench")
        .env("OTEL_SEMCONV_STABILITY_OPT_IN", "http, gen_ai_latest_experimental")
        .env("OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT", "true");
    run_and_stop(Served::start_as(command));
    for told in TOLD {
        assert!(collector.has(told), "{told}");
    }
    for told in ["x-key: opensesame", "travel-desk", "test-bench", "canary-prompt"] {
        assert!(collector.has(told), "{told}");
    }
}

#[test]
fn the_environment_can_turn_it_off_or_leave_something_out() {
    for (variable, value, has_traces, has_metrics) in [
        ("OTEL_SDK_DISABLED", "true", false, false),
        ("OTEL_TRACES_EXPORTER", "none", false, true),
        ("OTEL_METRICS_EXPORTER", "none", true, false),
        ("OTEL_TRACES_SAMPLER", "always_off", false, true),
    ] {
        let collector = Collector::start();
        let mut command = command(&["--port", "0"]);
        command
            .env("OTEL_EXPORTER_OTLP_ENDPOINT", format!("http://{}", collector.address))
            .env(variable, value);
        run_and_stop(Served::start_as(command));
        assert_eq!(collector.has("POST /v1/traces"), has_traces, "{variable}");
        assert_eq!(collector.has("POST /v1/metrics"), has_metrics, "{variable}");
    }
}

#[test]
fn what_is_said_is_sent_if_that_is_wanted() {
    let collector = Collector::start();
    let address = format!("http://{}", collector.address);
    run_and_stop(Served::start(&["--port", "0", "--otlp", &address, "--otlp-content"]));
    assert!(collector.has("canary-prompt") && collector.has("gen_ai.input.messages"));
}

#[test]
fn a_collector_that_is_not_there_is_told_of_and_keeps_nobody_from_stopping() {
    let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let mut served = Served::start(&["--port", "0", "--otlp", &format!("http://{free}")]);
    let answer = served.ask("POST /guide", &[], &message("r1", "weather in Paris"));
    assert!(answer.contains("RUN_FINISHED"), "{answer}");
    let begun = Instant::now();
    served.signal("-TERM");
    assert!(served.ended().0.success());
    assert!(begun.elapsed() < Duration::from_secs(20), "{:?}", begun.elapsed());
    let mut log = String::new();
    served.child.stderr.take().unwrap().read_to_string(&mut log).unwrap();
    assert_eq!(log.matches("cannot be delivered").count(), 1, "{log}");
}
