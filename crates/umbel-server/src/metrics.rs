//! Figures for Prometheus.

use std::fmt::Write;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::runs::Runs;

/// What is counted. The names are listed in the guide.
#[derive(Debug, Default)]
pub(crate) struct Metrics {
    runs_started: AtomicU64,
    runs_finished: AtomicU64,
    runs_interrupted: AtomicU64,
    runs_cancelled: AtomicU64,
    runs_failed: AtomicU64,
    runs_refused: AtomicU64,
    streams: AtomicU64,
    replays: AtomicU64,
    recovered: AtomicU64,
    swept: AtomicU64,
}

/// How a run ended, for counting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Counted {
    Started,
    Finished,
    Interrupted,
    Cancelled,
    Failed,
    Refused,
    Stream,
    Replay,
    Recovered,
    Swept,
}

impl Metrics {
    pub(crate) fn count(&self, what: Counted) {
        self.counter(what).fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn add(&self, what: Counted, count: u64) {
        self.counter(what).fetch_add(count, Ordering::Relaxed);
    }

    fn counter(&self, what: Counted) -> &AtomicU64 {
        match what {
            Counted::Started => &self.runs_started,
            Counted::Finished => &self.runs_finished,
            Counted::Interrupted => &self.runs_interrupted,
            Counted::Cancelled => &self.runs_cancelled,
            Counted::Failed => &self.runs_failed,
            Counted::Refused => &self.runs_refused,
            Counted::Stream => &self.streams,
            Counted::Replay => &self.replays,
            Counted::Recovered => &self.recovered,
            Counted::Swept => &self.swept,
        }
    }

    /// All figures in the form that Prometheus reads.
    pub(crate) fn text(&self, runs: &Runs) -> String {
        let mut text = String::new();
        let value = |what| self.counter(what).load(Ordering::Relaxed);
        let mut write = |name: &str, kind: &str, help: &str, values: &[(&str, u64)]| {
            // Writing to a string cannot fail.
            let _ = writeln!(text, "# HELP {name} {help}\n# TYPE {name} {kind}");
            for (labels, value) in values {
                let _ = writeln!(text, "{name}{labels} {value}");
            }
        };
        let active = u64::try_from(runs.active()).unwrap_or(u64::MAX);
        write("umbel_runs_active", "gauge", "Runs under way.", &[("", active)]);
        let kept = u64::try_from(runs.frame_bytes()).unwrap_or(u64::MAX);
        write("umbel_frames_kept_bytes", "gauge", "Bytes of frames kept for viewers.", &[("", kept)]);
        write("umbel_runs_started_total", "counter", "Runs begun.", &[("", value(Counted::Started))]);
        let ended = [
            ("{outcome=\"finished\"}", value(Counted::Finished)),
            ("{outcome=\"interrupted\"}", value(Counted::Interrupted)),
            ("{outcome=\"cancelled\"}", value(Counted::Cancelled)),
            ("{outcome=\"failed\"}", value(Counted::Failed)),
        ];
        write("umbel_runs_ended_total", "counter", "Runs ended, by outcome.", &ended);
        write(
            "umbel_requests_refused_total",
            "counter",
            "Requests refused before a stream began.",
            &[("", value(Counted::Refused))],
        );
        write("umbel_streams_total", "counter", "Streams opened.", &[("", value(Counted::Stream))]);
        write(
            "umbel_replays_total",
            "counter",
            "Streams made from the log.",
            &[("", value(Counted::Replay))],
        );
        write(
            "umbel_runs_recovered_total",
            "counter",
            "Runs of other processes that were gone on with.",
            &[("", value(Counted::Recovered))],
        );
        write(
            "umbel_sessions_swept_total",
            "counter",
            "Idle sessions deleted.",
            &[("", value(Counted::Swept))],
        );
        text
    }
}
