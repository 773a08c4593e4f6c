//! What `umbel serve` tells a collector.

use std::io::{BufRead, BufReader, Read, Write};
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

    /// Whether anything that came has this text in it.
    fn has(&self, text: &str) -> bool {
        self.has_bytes(text.as_bytes())
    }

    fn has_bytes(&self, bytes: &[u8]) -> bool {
        let has = |taken: &Vec<u8>| taken.windows(bytes.len()).any(|window| window == bytes);
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
        let address = format!("http://{}", collector.address);
        let mut by_environment = command(&["--port", "0"]);
        by_environment.env("OTEL_EXPORTER_OTLP_ENDPOINT", &address);
        for mut command in [by_environment, command(&["--port", "0", "--otlp", &address])] {
            collector.taken.lock().unwrap().clear();
            command.env(variable, value);
            run_and_stop(Served::start_as(command));
            assert_eq!(collector.has("POST /v1/traces"), has_traces, "{variable}");
            assert_eq!(collector.has("POST /v1/metrics"), has_metrics, "{variable}");
        }
    }
}

#[test]
fn the_environment_says_how_it_is_sent_wherever_it_is_sent_to() {
    let collector = Collector::start();
    let mut command = command(&["--port", "0", "--otlp", &format!("http://{}", collector.address)]);
    command
        .env("OTEL_EXPORTER_OTLP_COMPRESSION", "gzip")
        .env("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc")
        .env("OTEL_EXPORTER_OTLP_TRACES_HEADERS", "x-key=for-traces")
        .env("OTEL_EXPORTER_OTLP_METRICS_HEADERS", "x-key=for-metrics");
    run_and_stop(Served::start_as(command));
    for told in ["content-encoding: gzip", "x-key: for-traces", "x-key: for-metrics"] {
        assert!(collector.has(told), "{told}");
    }
    assert!(!collector.has("invoke_agent guide"), "it is packed");
}

#[test]
fn the_environment_says_how_long_a_collector_may_take_and_how_often_it_is_asked() {
    // It takes connections, and answers nobody.
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = format!("http://{}", silent.local_addr().unwrap());
    let mut command = command(&["--port", "0", "--otlp", &address]);
    command
        .env("OTEL_EXPORTER_OTLP_TIMEOUT", "50")
        .env("OTEL_BSP_SCHEDULE_DELAY", "20")
        .env("OTEL_METRICS_EXPORTER", "none");
    let mut served = Served::start_as(command);
    let answer = served.ask("POST /guide", &[], &message("r1", "weather in Paris"));
    assert!(answer.contains("RUN_FINISHED"), "{answer}");
    // It is said while the server runs, and not after the usual ten seconds.
    let log = served.child.stderr.take().unwrap();
    let line =
        BufReader::new(log).lines().map(Result::unwrap).find(|line| line.contains("cannot be delivered"));
    assert!(line.unwrap().contains("it takes too long"));
    served.signal("-TERM");
    assert!(served.ended().0.success());
}

#[test]
fn a_sampler_keeps_the_share_that_it_is_told() {
    for (share, is_kept) in [("0", false), ("1", true)] {
        let collector = Collector::start();
        let mut command = command(&["--port", "0", "--otlp", &format!("http://{}", collector.address)]);
        command.env("OTEL_TRACES_SAMPLER", "traceidratio").env("OTEL_TRACES_SAMPLER_ARG", share);
        run_and_stop(Served::start_as(command));
        assert_eq!(collector.has("POST /v1/traces"), is_kept, "{share}");
    }
}

#[test]
fn the_environment_may_ask_for_what_is_said_wherever_it_is_sent_to() {
    for (word, is_told) in [("SPAN_ONLY", true), ("true", true), ("NO_CONTENT", false)] {
        let collector = Collector::start();
        let mut command = command(&["--port", "0", "--otlp", &format!("http://{}", collector.address)]);
        command.env("OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT", word);
        run_and_stop(Served::start_as(command));
        assert_eq!(collector.has("canary-prompt"), is_told, "{word}");
    }
}

#[test]
fn traces_that_requests_name_are_taken_or_not_as_told() {
    let trace = "4bf92f3577b34da6a3ce929d0e0e4736";
    let bytes: Vec<u8> = (0..16).map(|n| u8::from_str_radix(&trace[2 * n..2 * n + 2], 16).unwrap()).collect();
    let parent = format!("traceparent: 00-{trace}-00f067aa0ba902b7-01");
    for (args, takes_trace, takes_state) in [
        (&[][..], true, false),
        (&["--trust-traces", "no"], false, false),
        (&["--trust-traces", "yes"], true, true),
    ] {
        let collector = Collector::start();
        let address = format!("http://{}", collector.address);
        let mut served = Served::start(&[&["--port", "0", "--otlp", &address], args].concat());
        let headers = [parent.as_str(), "tracestate: vendor=opaque"];
        let answer = served.ask("POST /guide", &headers, &message("r1", "weather in Paris"));
        assert!(answer.contains("RUN_FINISHED"), "{answer}");
        served.signal("-TERM");
        assert!(served.ended().0.success());
        assert!(collector.has("POST /guide"));
        assert_eq!(collector.has_bytes(&bytes), takes_trace, "{args:?}");
        assert_eq!(collector.has("vendor=opaque"), takes_state, "{args:?}");
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
