//! A conversation: lines in, answers out.

mod hints;
mod interrupts;

use std::io::{self, IsTerminal, Write};
use std::process::ExitCode;

use clap::Args;
use futures::StreamExt;
use tokio::io::{AsyncBufRead, AsyncBufReadExt, BufReader, Split};
use umbel::{
    Answer, Content, EventFilter, FunctionCall, Interrupt, Object, Outcome, Part, Role, RunConfig, Runner,
    Session, SessionKey,
};

pub use self::interrupts::Interrupts;

use crate::args::{self, Kept, NOWHERE, Which};
use crate::screen::{Screen, called, in_log};
use crate::style::{Ink, Style};
use crate::{Cli, demo};

/// With whom to talk, and in which conversation.
#[derive(Args, Clone, Debug)]
#[command(after_help = "NO_COLOR=1 turns colours off.")]
pub struct Options {
    #[command(flatten)]
    which: Which,
    #[command(flatten)]
    kept: Kept,
    /// Which conversation to go on with; a new one if left out.
    #[arg(short, long, value_name = "ID")]
    session: Option<String>,
}

/// Talks until the person leaves.
pub fn main(cli: &Cli, options: &Options) -> io::Result<ExitCode> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let result = runtime.block_on(converse(cli, options));
    // A thread may still wait for a line that nobody will type.
    runtime.shutdown_background();
    result
}

async fn converse(cli: &Cli, options: &Options) -> io::Result<ExitCode> {
    let watched = io::stdout().is_terminal();
    let terminal = io::stdin().is_terminal() && watched;
    let stores = args::open(&options.kept.store).await?;
    let runner = cli.offer(&options.which, watched)?.runner(&stores).map_err(io::Error::other)?;
    let screen = Screen::new(io::stdout(), Style::for_terminal(watched), terminal);
    // Elsewhere Ctrl-C ends the program, as it does any other.
    let interrupts = if terminal { Interrupts::ctrl_c() } else { Interrupts::never() };
    let (user, session) = (&options.kept.user, options.session.as_deref());
    let input = BufReader::new(tokio::io::stdin());
    let begun = Chat::begin(runner, user, session, input, screen, interrupts).await;
    let mut chat = begun.map_err(io::Error::other)?;
    if options.kept.store != NOWHERE {
        chat.go_on().await?;
    }
    chat.talk().await?;
    Ok(ExitCode::SUCCESS)
}

/// The name of the call by which an agent asks for approval, and of the response by which a person gives it.
pub const QUESTION: &str = "adk_request_confirmation";

const COMMANDS: &str = "\
Commands:
  /help     what can be said
  /state    what this conversation remembers
  /events   what stands in its log
  /new      begin another conversation
  /quit     leave (or Ctrl-D)
Ctrl-C stops an answer.";

/// A conversation of one user with the agents of a runner.
#[derive(Debug)]
pub struct Chat<R, W> {
    runner: Runner,
    session: SessionKey,
    input: Split<R>,
    screen: Screen<W>,
    interrupts: Interrupts,
}

/// How an answer ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reply {
    /// All is said.
    Done,
    /// It was stopped.
    Stopped,
    /// It failed.
    Failed,
    /// It needs an approval that nobody gave or refused.
    Unanswered,
}

/// What came from the person.
enum Line {
    Typed(String),
    /// Ctrl-C.
    Interrupt,
    /// Ctrl-D, or the end of a pipe.
    End,
}

/// How one run ended.
enum Ended {
    Asks(Vec<Interrupt>),
    For(Reply),
}

impl<R: AsyncBufRead + Unpin, W: Write> Chat<R, W> {
    /// Begins a conversation, or goes on with the one of that id.
    pub async fn begin(
        runner: Runner,
        user: &str,
        id: Option<&str>,
        input: R,
        screen: Screen<W>,
        interrupts: Interrupts,
    ) -> umbel::Result<Self> {
        let session = match id {
            None => runner.create_session(user).await?.key,
            Some(id) => {
                let key = SessionKey::new(runner.app(), user, id)?;
                if runner
                    .sessions()
                    .get(&key, EventFilter { recent: Some(0), ..EventFilter::default() })
                    .await?
                    .is_none()
                {
                    runner.create_session_with(user, id, Object::new()).await?;
                }
                key
            }
        };
        // Bytes, not text: a line that is not UTF-8 shall not end the conversation.
        Ok(Self { runner, session, input: input.split(b'\n'), screen, interrupts })
    }

    /// Takes up what was left: runs whose program ended in the middle, and questions that nobody answered.
    pub async fn go_on(&mut self) -> io::Result<()> {
        match self.runner.recover().await {
            Ok(recovered) if recovered.is_empty() => {}
            Ok(recovered) => {
                let count = recovered.len();
                self.screen
                    .note(&format!("{count} answer(s) that were cut short are finished now: see /events"))?;
            }
            Err(error) => self.failed(&error)?,
        }
        let open = match self.runner.open_questions(&self.session).await {
            Ok(open) => open,
            Err(error) => return self.failed(&error),
        };
        let id = self.session.id().to_owned();
        self.screen.note(&format!("This is conversation {id}. `--session {id}` comes back to it."))?;
        if !open.is_empty() {
            self.screen.note("You were asked something and have not answered yet.")?;
            if let Some(answers) = self.approvals(&open).await? {
                self.answer(answers).await?;
            }
        }
        Ok(())
    }

    /// Talks until the person leaves.
    pub async fn talk(&mut self) -> io::Result<()> {
        self.screen.note(demo::BANNER)?;
        let mut leaving = false;
        loop {
            self.screen.prompt(Ink::You, "you>")?;
            match self.read().await? {
                Line::End => break self.screen.end_prompt()?,
                Line::Interrupt if leaving => break self.screen.end_prompt()?,
                Line::Interrupt => {
                    leaving = true;
                    self.screen.end_prompt()?;
                    self.screen.note("Press Ctrl-C again to leave, or go on.")?;
                    continue;
                }
                Line::Typed(line) if line == "/quit" || line == "/exit" => break,
                Line::Typed(line) if line.is_empty() => {}
                Line::Typed(line) if line.starts_with('/') => self.command(&line).await?,
                Line::Typed(line) => {
                    self.answer(line).await?;
                }
            }
            leaving = false;
        }
        self.screen.note("Bye.")
    }

    /// Answers a message, and asks the person whatever the agents need to know for it.
    pub async fn answer(&mut self, message: impl Into<Content>) -> io::Result<Reply> {
        let mut message = message.into();
        loop {
            let asked = match self.run(message).await? {
                Ended::Asks(asked) => asked,
                Ended::For(reply) => return Ok(reply),
            };
            match self.approvals(&asked).await? {
                Some(answers) => message = answers,
                None => {
                    self.screen.paint(Ink::Question, "No answer came, so this was not done.")?;
                    return Ok(Reply::Unanswered);
                }
            }
        }
    }

    /// Does one run and shows its events as they come.
    async fn run(&mut self, message: Content) -> io::Result<Ended> {
        let config = RunConfig { streaming: true, ..RunConfig::default() };
        let mut run = self.runner.run_with(&self.session, message, config);
        let (mut failure, mut warning) = (None, None);
        loop {
            let item = tokio::select! {
                biased;
                () = self.interrupts.next() => {
                    // The run ends in its own time, so that its log stays whole.
                    run.cancel();
                    self.screen.end_key()?;
                    continue;
                }
                item = run.next() => item,
            };
            match item {
                None => break,
                Some(Ok(event)) => {
                    warning = event.error_message().map(str::to_owned).or(warning);
                    self.screen.show(&event)?;
                }
                Some(Err(error)) => failure = Some(error),
            }
        }
        self.screen.settle()?;
        Ok(match (run.outcome(), failure) {
            (Some(Outcome::Cancelled), _) => {
                self.screen.paint(Ink::Question, "Stopped.")?;
                Ended::For(Reply::Stopped)
            }
            (_, Some(error)) => {
                self.failed(&error)?;
                Ended::For(Reply::Failed)
            }
            (Some(Outcome::Interrupted { interrupts }), None) => Ended::Asks((**interrupts).clone()),
            (_, None) => {
                if let Some(warning) = warning {
                    self.screen.paint(Ink::Error, &format!("The answer may not be complete: {warning}"))?;
                }
                Ended::For(Reply::Done)
            }
        })
    }

    /// Asks the person about each call that needs an approval. `None` if one of them gets no answer.
    async fn approvals(&mut self, asked: &[Interrupt]) -> io::Result<Option<Content>> {
        let mut answers = Vec::new();
        for interrupt in asked {
            let Some(call) = &interrupt.call else {
                let text = format!(
                    "{} waits for something that this chat cannot give yet.",
                    interrupt.address.agent
                );
                self.screen.paint(Ink::Question, &text)?;
                return Ok(None);
            };
            let hint =
                interrupt.message.as_ref().filter(|hint| **hint != umbel::text::confirm_hint(&call.name));
            let text = format!("{} asks you to approve: {}", interrupt.address.agent, called(call));
            self.screen.paint(Ink::Question, &text)?;
            if let Some(hint) = hint {
                self.screen.print(hint)?;
            }
            let Some(confirmed) = self.yes_or_no().await? else { return Ok(None) };
            let answer = if confirmed { Answer::approve() } else { Answer::reject() };
            answers.push(Part::response(interrupt.response(&answer)));
        }
        Ok(Some(Content::new(Role::User, answers)))
    }

    async fn yes_or_no(&mut self) -> io::Result<Option<bool>> {
        if !self.screen.is_interactive() {
            self.screen.paint(Ink::Question, "Approve? The next line says y or n.")?;
        }
        loop {
            self.screen.prompt(Ink::Question, "Approve? [y/n]")?;
            match self.read().await? {
                Line::Interrupt | Line::End => {
                    self.screen.end_prompt()?;
                    return Ok(None);
                }
                Line::Typed(line) => match line.to_lowercase().as_str() {
                    "y" | "yes" => return Ok(Some(true)),
                    "n" | "no" => return Ok(Some(false)),
                    _ => self.screen.print("Please type y or n.")?,
                },
            }
        }
    }

    async fn command(&mut self, line: &str) -> io::Result<()> {
        match line {
            "/help" => self.screen.print(&format!("{}\n\n{COMMANDS}", demo::TRY)),
            "/state" => match self.load().await {
                Ok(session) => self.show_state(&session),
                Err(error) => self.failed(&error),
            },
            "/events" => match self.load().await {
                Ok(session) => self.show_events(&session),
                Err(error) => self.failed(&error),
            },
            "/new" => match self.runner.create_session(self.session.user()).await {
                Ok(session) => {
                    self.session = session.key;
                    self.screen
                        .print("A new conversation. Only what is kept for the user (`user:` keys) stays.")
                }
                Err(error) => self.failed(&error),
            },
            unknown => {
                self.screen.print(&format!("There is no command {unknown}. /help lists those there are."))
            }
        }
    }

    async fn load(&self) -> umbel::Result<Session> {
        let found = self.runner.sessions().get(&self.session, EventFilter::default()).await?;
        found.ok_or_else(|| umbel::Error::new(umbel::ErrorKind::SessionNotFound, "this conversation is gone"))
    }

    fn show_state(&mut self, session: &Session) -> io::Result<()> {
        let state = session.state.to_object();
        if state.is_empty() {
            return self.screen.print("Nothing is remembered yet. Try: pack an umbrella");
        }
        state.iter().try_for_each(|(key, value)| self.screen.print(&format!("{key} = {value}")))
    }

    fn show_events(&mut self, session: &Session) -> io::Result<()> {
        if session.events.is_empty() {
            return self.screen.print("The log is empty: nothing was said yet.");
        }
        let mut events = session.events.iter().enumerate();
        events.try_for_each(|(index, event)| {
            let number = index + 1;
            self.screen.print(&format!("{number:>3}  {:<8}  {}", event.author(), in_log(event)))
        })
    }

    fn failed(&mut self, error: &umbel::Error) -> io::Result<()> {
        let hint = hints::what_to_do(error.kind());
        self.screen.paint(Ink::Error, &format!("This went wrong: {error}.\n{hint}"))
    }

    async fn read(&mut self) -> io::Result<Line> {
        tokio::select! {
            biased;
            () = self.interrupts.next() => Ok(Line::Interrupt),
            line = self.input.next_segment() => Ok(match line? {
                Some(bytes) => Line::Typed(String::from_utf8_lossy(&bytes).trim().to_owned()),
                None => Line::End,
            }),
        }
    }
}

/// The call that a question is about.
pub(crate) fn question(call: &FunctionCall) -> Option<FunctionCall> {
    let about = call.args.as_ref().filter(|_| call.name == QUESTION)?.get("originalFunctionCall")?;
    serde_json::from_value(about.clone()).ok()
}
