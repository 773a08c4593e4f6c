//! `umbel chat`: a conversation, lines in and answers out.

mod commands;
mod hints;
mod input;
mod interrupts;
mod questions;
mod redirect;

use std::io::{self, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Args;
use futures::StreamExt;
use tokio::io::BufReader;
use umbel::core::interrupt::REQUEST_CONFIRMATION;
use umbel::{
    Content, ErrorKind, EventFilter, FunctionCall, Interrupt, Object, Outcome, RunConfig, Runner, SessionKey,
};

use self::input::{Ask, Keep, Line};
pub use self::input::{Editor, Input};
pub use self::interrupts::Interrupts;
use self::questions::awaited;
use crate::agents::Ready;
use crate::args::{self, Kept, NOWHERE, Which};
use crate::screen::Screen;
use crate::style::{Ink, Style};
use crate::{Cli, STOPPED, UNANSWERED, until_stopped, until_terminated};

/// With whom to talk, and in which conversation.
#[derive(Args, Clone, Debug)]
#[command(after_help = "\
In a pipe each line is a message, and a question is answered by the line that follows it.
NO_COLOR=1 turns colours off.
Exit code in a pipe: 0 if the last answer is there, 1 if it failed, 3 if it waits for an answer that nobody gave.

Examples:
  umbel chat
  umbel chat --agent booking --continue
  echo 'weather in Paris' | umbel chat
  echo 'weather in Paris' | umbel chat --json")]
pub struct Options {
    #[command(flatten)]
    which: Which,
    #[command(flatten)]
    kept: Kept,
    /// Which conversation to go on with, or begin; a new one with a name of its own if left out.
    #[arg(short, long, value_name = "ID")]
    session: Option<String>,
    /// Go on with the conversation that changed last.
    #[arg(short, long = "continue", conflicts_with = "session")]
    last: bool,
    /// All events as JSON, a line each, in the place of text.
    #[arg(long)]
    json: bool,
}

/// Talks until the person leaves.
pub fn main(cli: &Cli, options: &Options) -> io::Result<ExitCode> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let result = match is_terminal(options) {
        true => runtime.block_on(until_terminated(converse(cli, options))),
        false => runtime.block_on(until_stopped(converse(cli, options))),
    };
    // A thread may still wait for a line that nobody will type.
    runtime.shutdown_background();
    result
}

/// Whether a person sits before it.
fn is_terminal(options: &Options) -> bool {
    io::stdin().is_terminal() && io::stdout().is_terminal() && !options.json
}

async fn converse(cli: &Cli, options: &Options) -> io::Result<ExitCode> {
    let watched = io::stdout().is_terminal() && !options.json;
    let terminal = is_terminal(options);
    let stores = args::open(&options.kept.store).await?;
    let meant = cli.offer(&options.which, watched)?.name().to_owned();
    let offers = cli.offers(&options.which, watched)?.into_iter();
    let agents: Vec<Ready> =
        offers.map(|offer| offer.ready(&stores)).collect::<umbel::Result<_>>().map_err(io::Error::other)?;
    let style = Style::for_terminal(watched);
    let screen = match options.json {
        true => Screen::json(io::stdout()),
        false => Screen::new(io::stdout(), style, terminal),
    };
    // Elsewhere Ctrl-C ends the program, as it does any other.
    let interrupts = if terminal { Interrupts::ctrl_c() } else { Interrupts::never() };
    let input = match terminal {
        true => Input::editor(history_file(&options.kept.store))?,
        false => Input::lines(BufReader::new(tokio::io::stdin())),
    };
    let begin = match (&options.session, options.last) {
        (Some(id), _) => Begin::Named(id),
        (None, true) => Begin::Last,
        (None, false) => Begin::New,
    };
    let agent = agents.iter().find(|agent| agent.name == meant).cloned();
    let agent = agent.ok_or_else(|| args::bad_usage("there are no agents"))?;
    let begun = Chat::begin(agent, &options.kept.user, begin, input, screen, interrupts).await;
    let mut chat = begun.map_err(io::Error::other)?.agents(agents);
    chat.introduce()?;
    if options.kept.store != NOWHERE {
        chat.go_on().await?;
    }
    chat.talk().await?;
    // A person has seen how it went, and a script has not.
    Ok(if terminal { ExitCode::SUCCESS } else { chat.last.code() })
}

/// Where lines that were typed are kept: beside the conversations, if these are in a file.
fn history_file(store: &str) -> Option<PathBuf> {
    let folder = Path::new(store.strip_prefix("sqlite:")?).parent()?;
    Some(folder.join("history"))
}

/// The name of the call by which an agent asks for approval, and of the response by which a person gives it.
pub const QUESTION: &str = REQUEST_CONFIRMATION;

/// Which conversation to begin with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Begin<'a> {
    /// A new one.
    New,
    /// The one of that id; it is made if it is not there.
    Named(&'a str),
    /// The one that changed last; a new one if there is none.
    Last,
}

/// A conversation of one user with an agent.
#[derive(Debug)]
pub struct Chat<W> {
    agent: Ready,
    /// All that one can talk with.
    agents: Vec<Ready>,
    session: SessionKey,
    input: Input,
    screen: Screen<W>,
    interrupts: Interrupts,
    /// How the last answer ended.
    last: Reply,
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
    /// It needs an answer that nobody gave.
    Unanswered,
}

impl Reply {
    /// The exit code of a conversation that ends with it.
    fn code(self) -> ExitCode {
        match self {
            Self::Done => ExitCode::SUCCESS,
            Self::Stopped => ExitCode::from(STOPPED),
            Self::Failed => ExitCode::FAILURE,
            Self::Unanswered => ExitCode::from(UNANSWERED),
        }
    }
}

/// How one run ended.
enum Ended {
    Asks(Vec<Interrupt>),
    /// Calls have to be made elsewhere.
    Awaits(Vec<FunctionCall>),
    /// An answer was not what was asked for: the question is still open.
    Refused,
    For(Reply),
}

impl<W: Write> Chat<W> {
    /// Begins a conversation, or goes on with one.
    pub async fn begin(
        agent: Ready,
        user: &str,
        begin: Begin<'_>,
        input: Input,
        screen: Screen<W>,
        interrupts: Interrupts,
    ) -> umbel::Result<Self> {
        let session = session(&agent.runner, user, begin).await?;
        let agents = vec![agent.clone()];
        Ok(Self { agent, agents, session, input, screen, interrupts, last: Reply::Done })
    }

    /// All that one can talk with.
    pub fn agents(mut self, agents: Vec<Ready>) -> Self {
        self.agents = agents;
        self
    }

    /// Tells whom one talks with, and what to say.
    fn introduce(&mut self) -> io::Result<()> {
        let Ready { name, about, model, suggestions, .. } = &self.agent;
        let mut text = match about.as_str() {
            "" => format!("You talk with {name}."),
            about => format!("{name}: {about}"),
        };
        if !model.is_empty() {
            text = format!("{text}\nModel: {model}.");
        }
        for (index, suggestion) in suggestions.iter().enumerate() {
            let head = if index == 0 { "Try:  " } else { "      " };
            text = format!("{text}\n{head}{suggestion}");
        }
        self.screen.note(&format!("{text}\nType /help for more, /quit to leave."))
    }

    /// Takes up what was left: runs whose program ended in the middle, and questions that nobody answered.
    pub async fn go_on(&mut self) -> io::Result<()> {
        match self.agent.runner.recover().await {
            Ok(recovered) if recovered.is_empty() => {}
            Ok(recovered) => {
                let count = recovered.len();
                self.screen
                    .note(&format!("{count} answer(s) that were cut short are finished now: see /events"))?;
            }
            Err(error) => self.failed(&error)?,
        }
        let id = self.session.id().to_owned();
        self.screen.note(&format!("This is conversation {id}. `--session {id}` comes back to it."))?;
        self.take_up().await
    }

    /// Asks what was asked before and has no answer yet.
    async fn take_up(&mut self) -> io::Result<()> {
        let view = match self.agent.runner.session(&self.session).await {
            Ok(Some(view)) => view,
            Ok(None) => return Ok(()),
            Err(error) => return self.failed(&error),
        };
        let message = if !view.open.is_empty() {
            self.screen.note("You were asked something and have not answered yet.")?;
            self.answers(&view.open).await?
        } else {
            let calls = awaited(view.events.iter());
            if calls.is_empty() {
                return Ok(());
            }
            self.results(&calls).await?
        };
        match message {
            Some(message) => self.answer(message).await.map(|_| ()),
            None => {
                self.last = Reply::Unanswered;
                Ok(())
            }
        }
    }

    /// Talks until the person leaves.
    pub async fn talk(&mut self) -> io::Result<()> {
        let mut leaving = false;
        loop {
            match self.read(Ink::You, "you>", "", Keep::Remembered).await? {
                Line::End => break,
                Line::Interrupt if leaving => break,
                Line::Interrupt => {
                    leaving = true;
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
        self.last = self.ask_until_done(message.into()).await?;
        Ok(self.last)
    }

    async fn ask_until_done(&mut self, mut message: Content) -> io::Result<Reply> {
        loop {
            let answers = match self.run(message).await? {
                Ended::Asks(asked) => self.answers(&asked).await?,
                Ended::Awaits(calls) => self.results(&calls).await?,
                Ended::Refused => match self.agent.runner.open_questions(&self.session).await {
                    Ok(open) if !open.is_empty() => self.answers(&open).await?,
                    _ => return Ok(Reply::Failed),
                },
                Ended::For(reply) => return Ok(reply),
            };
            match answers {
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
        let mut run = self.agent.runner.run_with(&self.session, message, config);
        let (mut failure, mut warning, mut events) = (None, None, Vec::new());
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
                    events.push(event);
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
                match error.kind() {
                    ErrorKind::InvalidConfirmation => Ended::Refused,
                    _ => Ended::For(Reply::Failed),
                }
            }
            (Some(Outcome::Interrupted { interrupts }), None) => Ended::Asks((**interrupts).clone()),
            (_, None) => {
                if let Some(warning) = warning {
                    self.screen.paint(Ink::Error, &format!("The answer may not be complete: {warning}"))?;
                }
                let calls = awaited(events.iter());
                if calls.is_empty() { Ended::For(Reply::Done) } else { Ended::Awaits(calls) }
            }
        })
    }

    fn failed(&mut self, error: &umbel::Error) -> io::Result<()> {
        let hint = hints::what_to_do(error.kind());
        self.screen.paint(Ink::Error, &format!("This went wrong: {error}.\n{hint}"))
    }

    /// Reads a line, from an editor with its own prompt or from whatever else there is.
    async fn read(&mut self, ink: Ink, prompt: &str, initial: &str, keep: Keep) -> io::Result<Line> {
        let edited = matches!(self.input, Input::Editor(_));
        if !edited {
            self.screen.prompt(ink, prompt)?;
        }
        let prompt = format!("{} ", self.screen.painted(ink, prompt));
        let ask = Ask { prompt, initial: initial.to_owned(), keep };
        let line = tokio::select! {
            biased;
            () = self.interrupts.next() => {
                if edited {
                    // The key was shown, or the prompt was.
                    self.screen.end_prompt()?;
                }
                Line::Interrupt
            }
            line = self.input.next(ask) => line?,
        };
        if !edited && !matches!(line, Line::Typed(_)) {
            // No Enter key ended the line.
            self.screen.end_prompt()?;
        }
        Ok(line)
    }
}

/// The session to begin with.
async fn session(runner: &Runner, user: &str, begin: Begin<'_>) -> umbel::Result<SessionKey> {
    let id = match begin {
        Begin::Named(id) => id,
        Begin::Last => {
            let known = runner.sessions().list(runner.app(), user).await?;
            return match known.into_iter().next_back() {
                Some(last) => Ok(last.key),
                None => Ok(runner.create_session(user).await?.key),
            };
        }
        Begin::New => return Ok(runner.create_session(user).await?.key),
    };
    let key = SessionKey::new(runner.app(), user, id)?;
    let newest = EventFilter { recent: Some(0), ..EventFilter::default() };
    if runner.sessions().get(&key, newest).await?.is_none() {
        runner.create_session_with(user, id, Object::new()).await?;
    }
    Ok(key)
}

/// The call that a question is about.
pub(crate) fn question(call: &FunctionCall) -> Option<FunctionCall> {
    let about = call.args.as_ref().filter(|_| call.name == QUESTION)?.get("originalFunctionCall")?;
    serde_json::from_value(about.clone()).ok()
}
