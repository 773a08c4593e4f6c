//! The processes that are killed, and the one that recovers all the while.

use std::io::{Read, Write};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use futures::future::try_join_all;
use umbel::{BoxError, NewSession, SessionKey};

use super::killer::Killer;
use super::place::{Opened, Place, point};

/// How often a process looks for runs to recover.
pub(super) const LOOK: Duration = Duration::from_millis(20);

/// What a child says when its work begins.
pub(super) const READY: &str = "ready";

/// `cargo xtask crash-child TASK …`, which only the harness calls.
pub(crate) fn main(args: impl Iterator<Item = String>) -> ExitCode {
    let done = super::runtime().and_then(|runtime| runtime.block_on(task(args)));
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("a child of the crash harness: {why}");
            ExitCode::FAILURE
        }
    }
}

async fn task(mut args: impl Iterator<Item = String>) -> Result<(), BoxError> {
    let task = args.next().ok_or("no task")?;
    let place = Place::from_args(&mut args)?;
    match task.as_str() {
        "work" => {
            let batch = args.next().ok_or("no batch")?;
            work(place, &batch, args.next()).await
        }
        "recover" => recover(place).await,
        other => Err(format!("there is no task `{other}`").into()),
    }
}

/// Says to a few sessions at once what there is to say. It may die on the way.
async fn work(place: Place, batch: &str, at: Option<String>) -> Result<(), BoxError> {
    let sessions = place.sessions(batch)?;
    let first = sessions.first().ok_or("no sessions")?;
    let killer = Arc::new(Killer::new(first.id(), point(at)?));
    let opened = place.open(killer.clone()).await?;
    for key in &sessions {
        opened.store().create(NewSession::new(key.clone())).await?;
    }
    say(READY)?;
    try_join_all(sessions.iter().map(|key| talk(&opened, batch, key))).await?;
    let (writes, effects) = killer.counts();
    say(&format!("{writes} {effects}"))
}

/// One conversation, from its first message to its last answer. A run that cannot go on here is left to be recovered.
async fn talk(opened: &Opened, batch: &str, key: &SessionKey) -> Result<(), BoxError> {
    for message in opened.place.scenario.messages {
        let mut outcome = match opened.say(batch, key, *message).await {
            Ok(outcome) => outcome,
            Err(_) => return Ok(()),
        };
        while let Ok(Some(next)) = opened.answer(batch, key, &outcome).await {
            outcome = next;
        }
    }
    Ok(())
}

/// Recovers whatever is abandoned, until nobody holds the other end of its input any more.
async fn recover(place: Place) -> Result<(), BoxError> {
    std::thread::spawn(|| {
        drop(std::io::stdin().read_to_end(&mut Vec::new()));
        std::process::exit(0);
    });
    let opened = place.open(Arc::new(Killer::idle())).await?;
    say(READY)?;
    loop {
        // While a server is down there is nothing to be done but to try again.
        drop(opened.runner.recover().await);
        tokio::time::sleep(LOOK).await;
    }
}

fn say(line: &str) -> Result<(), BoxError> {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{line}")?;
    Ok(out.flush()?)
}
