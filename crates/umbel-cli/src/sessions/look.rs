//! How conversations are listed and read.

use std::sync::Arc;

use umbel::{Clock, Event, EventFilter, List, Result, Runner, Session, SessionKey, SystemClock};

use crate::style::{clean, clean_line};

/// The longest a title gets.
const TITLE: usize = 60;

/// A conversation in a list.
#[derive(Debug, serde::Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Listed {
    /// The agent's name on the command line.
    pub(crate) agent: String,
    pub(crate) id: String,
    /// The first words that were said.
    pub(crate) title: Option<String>,
    /// Seconds since 1970.
    pub(crate) updated_at: f64,
    pub(crate) events: usize,
    /// Whether a person is asked something.
    pub(crate) waiting: bool,
    #[serde(skip)]
    pub(crate) key: SessionKey,
}

impl Listed {
    /// In a line, behind what one types to come back.
    pub(crate) fn line(&self, id_width: usize) -> String {
        let title = self.title.as_deref().unwrap_or("(nothing said yet)");
        let waits = if self.waiting { ", waits for you" } else { "" };
        let (id, when) = (clean_line(&self.id), ago(self.updated_at));
        format!("{id:<id_width$}  {when:<12}  {:>4} events  {title}{waits}", self.events)
    }
}

/// The conversations of a user with an agent, the one that changed last first.
pub(crate) async fn list(name: &str, runner: &Runner, user: &str) -> Result<Vec<Listed>> {
    let waiting = runner.sessions().open_questions(runner.app(), Some(user)).await?;
    let mut listed = Vec::new();
    for session in runner.sessions().list(runner.app(), user).await?.into_iter().rev() {
        // Gone meanwhile: then it is not listed.
        let Some(session) = runner.sessions().get(&session.key, EventFilter::default()).await? else {
            continue;
        };
        listed.push(Listed {
            agent: name.to_owned(),
            id: session.key.id().to_owned(),
            title: title(&session.events),
            updated_at: session.updated_at,
            events: session.events.len(),
            waiting: waiting.iter().any(|open| open.key == session.key),
            key: session.key,
        });
    }
    Ok(listed)
}

/// A conversation with all its events.
pub(crate) async fn whole(runner: &Runner, key: &SessionKey) -> Result<Session> {
    let found = runner.sessions().get(key, EventFilter::default()).await?;
    found.ok_or_else(|| {
        let message = format!("there is no conversation {}", key.id());
        umbel::Error::new(umbel::ErrorKind::SessionNotFound, message)
    })
}

/// The first words that a person said.
fn title(events: &List<Arc<Event>>) -> Option<String> {
    let text = events.iter().filter(|event| event.is_user()).map(|event| event.text());
    let text = text
        .map(|text| text.split_whitespace().collect::<Vec<_>>().join(" "))
        .find(|text| !text.is_empty())?;
    let short: String = clean(&text).chars().take(TITLE).collect();
    Some(if short.chars().count() < text.chars().count() { format!("{short}…") } else { short })
}

/// How long ago that was, for people.
pub(crate) fn ago(time: f64) -> String {
    let seconds = (SystemClock.now() - time).max(0.0) as u64;
    match seconds {
        0..60 => "just now".to_owned(),
        60..3_600 => format!("{} min ago", seconds / 60),
        3_600..86_400 => format!("{} h ago", seconds / 3_600),
        _ => format!("{} d ago", seconds / 86_400),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_told_as_one_would() {
        let now = SystemClock.now();
        for (seconds, expected) in [
            (-5.0, "just now"),
            (30.0, "just now"),
            (125.0, "2 min ago"),
            (7_300.0, "2 h ago"),
            (200_000.0, "2 d ago"),
        ] {
            assert_eq!(ago(now - seconds), expected);
        }
    }
}
