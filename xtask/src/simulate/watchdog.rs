//! Ends the program when a simulation hangs in real time: a future that never yields cannot be stopped otherwise.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::world::SimWorld;

/// The longest that one simulation may take in real time.
const LONGEST: Duration = Duration::from_secs(10);

/// The worlds that are simulated now, by thread.
#[derive(Clone, Debug, Default)]
pub(super) struct Watchdog(Arc<Mutex<Vec<WatchedWorld>>>);

/// A world that is simulated now.
#[derive(Debug)]
struct WatchedWorld {
    thread: std::thread::ThreadId,
    world: SimWorld,
    since: Instant,
}

impl Watchdog {
    /// The one of this program, which looks at it for as long as it runs.
    pub(super) fn shared() -> &'static Self {
        static SHARED: std::sync::LazyLock<Watchdog> = std::sync::LazyLock::new(|| {
            let watchdog = Watchdog::default();
            let watching = watchdog.clone();
            std::thread::spawn(move || watching.watch());
            watchdog
        });
        &SHARED
    }

    fn watch(&self) {
        loop {
            std::thread::sleep(Duration::from_secs(1));
            let worlds = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some(stuck) = worlds.iter().find(|one| one.since.elapsed() > LONGEST) {
                println!("a simulation hangs for {LONGEST:?}, in a future that never yields:");
                println!("{}", super::literal(&stuck.world));
                std::process::exit(1);
            }
        }
    }

    /// Does something with a world under watch.
    pub(super) fn guard<T>(&self, world: &SimWorld, work: impl FnOnce() -> T) -> T {
        let thread = std::thread::current().id();
        let watched = WatchedWorld { thread, world: world.clone(), since: Instant::now() };
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(watched);
        let done = work();
        self.0.lock().unwrap_or_else(PoisonError::into_inner).retain(|one| one.thread != thread);
        done
    }
}
