//! Ctrl-C, wherever it comes from.

use std::future::pending;

use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

/// Tells when the person pressed Ctrl-C.
#[derive(Debug)]
pub struct Interrupts(UnboundedReceiver<()>);

impl Interrupts {
    /// Those of the terminal. From now on Ctrl-C no longer ends the program. Needs a tokio runtime.
    pub fn ctrl_c() -> Self {
        let (pressed, interrupts) = Self::channel();
        // One listener for good, from now on: one for each time would not hear of what comes in between.
        #[cfg(unix)]
        let listener = tokio::signal::unix::signal(tokio::signal::unix::SignalKind::interrupt());
        #[cfg(windows)]
        let listener = tokio::signal::windows::ctrl_c();
        if let Ok(mut listener) = listener {
            tokio::spawn(async move { while listener.recv().await.is_some() && pressed.send(()).is_ok() {} });
        }
        interrupts
    }

    /// None at all.
    pub fn never() -> Self {
        Self::channel().1
    }

    /// Those that are sent by hand.
    pub fn channel() -> (UnboundedSender<()>, Self) {
        let (pressed, interrupts) = unbounded_channel();
        (pressed, Self(interrupts))
    }

    /// Done with the next one.
    pub async fn next(&mut self) {
        if self.0.recv().await.is_none() {
            pending::<()>().await;
        }
    }
}
