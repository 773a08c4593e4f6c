//! Being told to stop, by Ctrl-C or by whoever runs the program.
//!
//! A signal that nobody waits for ends the program at once, and programs that its tools started would go on. So commands that
//! run agents are dropped instead, and what they started ends with them.

use std::io;
use std::process::ExitCode;

use crate::STOPPED;

/// Does it, unless the program is told to stop before it is done.
pub(crate) async fn until_stopped(work: impl Future<Output = io::Result<ExitCode>>) -> io::Result<ExitCode> {
    tokio::select! {
        // What is waited for first is heard from the beginning: the work may start programs before it waits itself.
        biased;
        Ok(()) = tokio::signal::ctrl_c() => Ok(ExitCode::from(STOPPED)),
        done = until_terminated(work) => done,
    }
}

/// The same where Ctrl-C means something else.
pub(crate) async fn until_terminated(
    work: impl Future<Output = io::Result<ExitCode>>,
) -> io::Result<ExitCode> {
    #[cfg(unix)]
    {
        let terminated = async {
            let kind = tokio::signal::unix::SignalKind::terminate();
            match tokio::signal::unix::signal(kind) {
                Ok(mut signal) => signal.recv().await,
                // Then a signal ends the program, as it does any other.
                Err(_) => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            _ = terminated => Ok(ExitCode::from(STOPPED)),
            done = work => done,
        }
    }
    #[cfg(not(unix))]
    work.await
}
