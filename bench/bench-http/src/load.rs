//! Runs at once, of Umbel and of the raw handler in turns.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::child::{Served, block_on, record};
use crate::client::{Client, Took, one_turn};

/// One server under load.
struct Side {
    server: Served,
    path: String,
    clients: Vec<Client>,
    /// Threads so far: each run has its own.
    threads: usize,
    /// Of each round.
    cpu: Vec<f64>,
    rates: Vec<f64>,
    firsts: Vec<Duration>,
    alls: Vec<Duration>,
}

impl Side {
    async fn new(server: Served, path: String, connections: usize) -> Self {
        let mut clients = Vec::new();
        for _ in 0..connections {
            clients.push(Client::connect(server.address).await);
        }
        let (cpu, rates, firsts, alls) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        Self { server, path, clients, threads: 0, cpu, rates, firsts, alls }
    }

    /// So many runs, spread over the connections.
    async fn round(&mut self, runs: usize, counts: bool) {
        let each = runs.div_ceil(self.clients.len());
        let (cpu, started) = (self.server.cpu(), Instant::now());
        let path = &self.path;
        let from = self.threads;
        let work = self.clients.iter_mut().enumerate().map(|(n, client)| async move {
            let mut took: Vec<Took> = Vec::with_capacity(each);
            for run in 0..each {
                let thread = from + n * each + run;
                took.push(client.run(path, &one_turn(format!("thread-{thread:06}"))).await);
            }
            took
        });
        let took: Vec<Took> = futures::future::join_all(work).await.into_iter().flatten().collect();
        self.threads += took.len();
        if !counts {
            return;
        }
        let seconds = started.elapsed().as_secs_f64();
        self.cpu.push((self.server.cpu() - cpu) as f64 / 1_000.0 / took.len() as f64);
        self.rates.push(took.len() as f64 / seconds);
        self.firsts.extend(took.iter().map(|took| took.first));
        self.alls.extend(took.iter().map(|took| took.all));
    }

    fn told(&mut self) -> Value {
        json!({
            "cpu_us": middle(&mut self.cpu), "runs_per_second": middle(&mut self.rates),
            "first_p50_us": at(&mut self.firsts, 50), "first_p99_us": at(&mut self.firsts, 99),
            "last_p50_us": at(&mut self.alls, 50), "last_p99_us": at(&mut self.alls, 99),
        })
    }
}

/// The middle of some figures.
fn middle(figures: &mut [f64]) -> f64 {
    figures.sort_by(f64::total_cmp);
    figures[figures.len() / 2]
}

/// What so many per cent are not above, in microseconds.
fn at(waits: &mut [Duration], part: usize) -> f64 {
    waits.sort();
    waits[(waits.len() - 1) * part / 100].as_secs_f64() * 1e6
}

/// A scenario at so many connections, on a store: Umbel, the raw handler, and the raw handler that parses its request.
/// They take turns, since a machine is not the same at all times; ratios are those of the middle rounds.
pub fn beside(scenario: &str, connections: usize, runs: usize, rounds: usize, store: &str) -> Value {
    let file = std::env::temp_dir().join(format!("bench-http-{}.json", std::process::id()));
    record(scenario, &file);
    let stream = file.display().to_string();
    let told = block_on(async {
        let mut umbel = Side::new(Served::umbel(store), format!("/{scenario}"), connections).await;
        let mut raw = Side::new(Served::raw(&stream), "/raw".to_owned(), connections).await;
        let mut parse = Side::new(Served::raw(&stream), "/parse".to_owned(), connections).await;
        for round in 0..=rounds {
            // The first one makes what later ones find.
            for side in [&mut umbel, &mut raw, &mut parse] {
                side.round(runs, round > 0).await;
            }
        }
        json!({ "umbel": umbel.told(), "raw": raw.told(), "parse": parse.told() })
    });
    let _ = std::fs::remove_file(file);
    told
}

/// How long one page takes to the disk of a file.
pub fn syncs(file: &str, count: usize) -> Value {
    let page = [b'x'; 4096];
    let written = File::create(file).expect("a file");
    written.write_all_at(&vec![b'x'; page.len() * count], 0).expect("room");
    written.sync_all().expect("a disk");
    let mut waits: Vec<Duration> = (0..count)
        .map(|n| {
            written.write_all_at(&page, (n * page.len()) as u64).expect("room");
            let started = Instant::now();
            written.sync_data().expect("a disk");
            started.elapsed()
        })
        .collect();
    let _ = std::fs::remove_file(file);
    json!({ "p50_us": at(&mut waits, 50), "p99_us": at(&mut waits, 99) })
}
