//! What begins with a slash.

use std::io::{self, Write};

use umbel::core::state::StateScope;
use umbel::{Session, SessionKey};

use super::{Begin, Chat};
use crate::screen::in_log;
use crate::sessions::look;

const COMMANDS: &str = "\
Commands:
  /help           what can be said
  /state          what this conversation remembers
  /events         what stands in its log
  /history        what was said, in full
  /sessions       your conversations with this agent
  /resume ID      go on with another conversation
  /new            begin another conversation
  /agent NAME     talk with another agent
  /quit           leave (or Ctrl-D)
Ctrl-C stops an answer; twice leaves.";

impl<W: Write> Chat<W> {
    /// Does what a command says.
    pub(super) async fn command(&mut self, line: &str) -> io::Result<()> {
        let (command, rest) = line.split_once(' ').unwrap_or((line, ""));
        let rest = rest.trim();
        let done = match command {
            "/help" => Ok(self.help()?),
            "/state" => self.show_state().await?,
            "/events" => self.show_events().await?,
            "/history" => self.show_history().await?,
            "/sessions" => self.show_sessions().await?,
            "/resume" => self.resume(rest).await?,
            "/new" => self.begin_anew().await?,
            "/agent" => self.change_agent(rest).await?,
            unknown => Ok(self
                .screen
                .print(&format!("There is no command {unknown}. /help lists those there are."))?),
        };
        match done {
            Ok(()) => Ok(()),
            Err(error) => self.failed(&error),
        }
    }

    fn help(&mut self) -> io::Result<()> {
        if !self.agent.suggestions.is_empty() {
            self.screen.print("Things to say:")?;
            for suggestion in self.agent.suggestions.clone() {
                self.screen.print(&format!("  {suggestion}"))?;
            }
            self.screen.print("")?;
        }
        if self.agents.len() > 1 {
            self.screen.print("Agents:")?;
            for agent in self.agents.clone() {
                let here = if agent.name == self.agent.name { "*" } else { " " };
                self.screen.print(&format!("{here} {:<14}  {}", agent.name, agent.about))?;
            }
            self.screen.print("")?;
        }
        self.screen.print(COMMANDS)
    }

    async fn show_state(&mut self) -> io::Result<umbel::Result<()>> {
        let session = match self.whole().await {
            Ok(session) => session,
            Err(error) => return Ok(Err(error)),
        };
        let state = session.state.to_object();
        let mut shown = state.iter().filter(|(key, _)| !StateScope::is_internal(key)).peekable();
        if shown.peek().is_none() {
            self.screen.print("Nothing is remembered yet.")?;
        }
        for (key, value) in shown {
            self.screen.print(&format!("{key} = {value}"))?;
        }
        Ok(Ok(()))
    }

    async fn show_events(&mut self) -> io::Result<umbel::Result<()>> {
        let session = match self.whole().await {
            Ok(session) => session,
            Err(error) => return Ok(Err(error)),
        };
        if session.events.is_empty() {
            self.screen.print("The log is empty: nothing was said yet.")?;
        }
        for (index, event) in session.events.iter().enumerate() {
            let number = index + 1;
            self.screen.print(&format!("{number:>3}  {:<8}  {}", event.author(), in_log(event)))?;
        }
        Ok(Ok(()))
    }

    async fn show_history(&mut self) -> io::Result<umbel::Result<()>> {
        let session = match self.whole().await {
            Ok(session) => session,
            Err(error) => return Ok(Err(error)),
        };
        if session.events.is_empty() {
            self.screen.print("Nothing was said yet.")?;
        }
        for event in session.events.iter() {
            self.screen.replay(event)?;
        }
        self.screen.settle()?;
        Ok(Ok(()))
    }

    async fn show_sessions(&mut self) -> io::Result<umbel::Result<()>> {
        let listed = match look::list(&self.agent.name, &self.agent.runner, self.session.user()).await {
            Ok(listed) => listed,
            Err(error) => return Ok(Err(error)),
        };
        let width = listed.iter().map(|one| one.id.chars().count()).max().unwrap_or_default();
        for one in &listed {
            let here = if one.key == self.session { "*" } else { " " };
            self.screen.print(&format!("{here} {}", one.line(width)))?;
        }
        self.screen.note("/resume ID goes on with one of them; its first letters are enough.")?;
        Ok(Ok(()))
    }

    async fn resume(&mut self, id: &str) -> io::Result<umbel::Result<()>> {
        let listed = match look::list(&self.agent.name, &self.agent.runner, self.session.user()).await {
            Ok(listed) => listed,
            Err(error) => return Ok(Err(error)),
        };
        let exact = listed.iter().filter(|one| one.id == id).collect::<Vec<_>>();
        let begins = listed.iter().filter(|one| !id.is_empty() && one.id.starts_with(id)).collect::<Vec<_>>();
        let key: Option<SessionKey> = match (exact.as_slice(), begins.as_slice()) {
            ([one], _) | ([], [one]) => Some(one.key.clone()),
            _ => None,
        };
        let Some(key) = key else {
            let found = if begins.is_empty() {
                "There is no conversation"
            } else {
                "There are several conversations"
            };
            self.screen.print(&format!("{found} {id}. /sessions lists those there are."))?;
            return Ok(Ok(()));
        };
        self.session = key;
        let shown = self.show_history().await?;
        self.take_up().await?;
        Ok(shown)
    }

    async fn begin_anew(&mut self) -> io::Result<umbel::Result<()>> {
        let user = self.session.user().to_owned();
        match self.agent.runner.create_session(user).await {
            Ok(session) => self.session = session.key,
            Err(error) => return Ok(Err(error)),
        }
        self.screen.print("A new conversation. Only what is kept for the user (`user:` keys) stays.")?;
        Ok(Ok(()))
    }

    async fn change_agent(&mut self, name: &str) -> io::Result<umbel::Result<()>> {
        let Some(agent) = self.agents.iter().find(|agent| agent.name == name).cloned() else {
            let names = self.agents.iter().map(|agent| agent.name.as_str()).collect::<Vec<_>>().join(", ");
            self.screen.print(&format!("There is no agent `{name}`. There are: {names}"))?;
            return Ok(Ok(()));
        };
        match super::session(&agent.runner, self.session.user(), Begin::New).await {
            Ok(session) => self.session = session,
            Err(error) => return Ok(Err(error)),
        }
        self.screen.hint(&format!("You talk with {} now.", agent.name))?;
        self.agent = agent;
        self.introduce()?;
        Ok(Ok(()))
    }

    async fn whole(&self) -> umbel::Result<Session> {
        look::whole(&self.agent.runner, &self.session).await
    }
}
