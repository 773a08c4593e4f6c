//! What a person is asked in the middle of an answer: approvals, what only they know, and results of tools that run
//! elsewhere.

use std::io::{self, Write};
use std::sync::Arc;

use serde_json::{Value, json};
use umbel::core::interrupt::{REQUEST_CONFIRMATION, REQUEST_CREDENTIAL, REQUEST_INPUT};
use umbel::{
    Answer, Content, DecisionKind, Event, FunctionCall, FunctionResponse, Interrupt, Object, Part, Question,
    Role,
};

use super::Chat;
use super::input::{Input, Keep, Line};
use super::redirect::{Redirect, parameter};
use crate::screen::called;
use crate::style::{Ink, clean_line};

/// Calls by which people are asked: they come with a question of their own.
const QUESTIONS: [&str; 3] = [REQUEST_CONFIRMATION, REQUEST_CREDENTIAL, REQUEST_INPUT];

impl<W: Write> Chat<W> {
    /// Asks the person each question. `None` if one of them gets no answer.
    pub(super) async fn answers(&mut self, asked: &[Interrupt]) -> io::Result<Option<Content>> {
        let mut answers = Vec::new();
        for interrupt in asked {
            let answer = match &interrupt.call {
                _ if interrupt.reason == Question::CREDENTIAL => self.credential(interrupt).await?,
                Some(call) => self.decision(interrupt, call).await?,
                None => self.word(interrupt).await?,
            };
            let Some(answer) = answer else { return Ok(None) };
            answers.push(Part::response(interrupt.response(&answer)));
        }
        Ok(Some(Content::new(Role::User, answers)))
    }

    /// Asks about a call.
    async fn decision(&mut self, interrupt: &Interrupt, call: &FunctionCall) -> io::Result<Option<Answer>> {
        let text = format!("{} asks you to approve: {}", interrupt.address.agent, called(call));
        self.screen.paint(Ink::Question, &text)?;
        let usual = [umbel::text::confirm_hint(&call.name), umbel::text::approve_hint(&call.name)];
        if let Some(hint) = interrupt.message.as_ref().filter(|hint| !usual.contains(hint)) {
            self.screen.print(hint)?;
        }
        let may = |kind| interrupt.decisions.contains(&kind);
        let (edit, respond) = (may(DecisionKind::Edit), may(DecisionKind::Respond));
        let keys = ["y/n", if edit { "/e" } else { "" }, if respond { "/r" } else { "" }].concat();
        let meaning = [
            "y approves, n rejects",
            if edit { ", e changes the arguments" } else { "" },
            if respond { ", r answers in the tool's place" } else { "" },
        ]
        .concat();
        self.screen.hint(&format!("The next line decides: {meaning}."))?;
        self.screen.note(&format!("{meaning}."))?;
        loop {
            let line = match self.read(Ink::Question, &format!("Approve? [{keys}]"), "", Keep::Once).await? {
                Line::Interrupt | Line::End => return Ok(None),
                Line::Typed(line) => line,
            };
            let (word, rest) = line.split_once(' ').unwrap_or((&line, ""));
            let made = match word.to_lowercase().as_str() {
                "y" | "yes" => return Ok(Some(Answer::approve())),
                "n" | "no" if rest.is_empty() => return Ok(Some(Answer::reject())),
                "n" | "no" => return Ok(Some(Answer::reject_because(rest))),
                "e" | "edit" if edit => self.edited(call, rest).await?,
                "r" | "respond" if respond => self.value("Result>", rest).await?.map(Answer::respond),
                _ => {
                    self.screen.print(&format!("Please type one of {keys}: {meaning}."))?;
                    None
                }
            };
            if made.is_some() {
                return Ok(made);
            }
        }
    }

    /// Lets the person change the arguments of a call. `None` if they think again.
    async fn edited(&mut self, call: &FunctionCall, given: &str) -> io::Result<Option<Answer>> {
        let now = call.args.as_ref().map_or_else(|| "{}".to_owned(), |args| json!(**args).to_string());
        let text = if given.is_empty() {
            self.screen.hint(&format!("The next line is the arguments as JSON. They are: {now}"))?;
            match self.read(Ink::Question, "Arguments>", &now, Keep::Once).await? {
                Line::Interrupt | Line::End => return Ok(None),
                Line::Typed(text) => text,
            }
        } else {
            given.to_owned()
        };
        match serde_json::from_str::<Object>(&text) {
            Ok(args) => Ok(Some(Answer::edit(args))),
            Err(error) => {
                self.screen.print(&format!("These are no arguments: a JSON object is needed ({error})."))?;
                Ok(None)
            }
        }
    }

    /// Asks for what only the person knows, or for yes or no.
    async fn word(&mut self, interrupt: &Interrupt) -> io::Result<Option<Answer>> {
        let agent = &interrupt.address.agent;
        let message = interrupt.message.as_deref().unwrap_or("It needs to know something from you.");
        self.screen.paint(Ink::Question, &format!("{agent} asks: {message}"))?;
        if interrupt.reason == Question::CONFIRMATION {
            return Ok(self
                .yes_or_no()
                .await?
                .map(|yes| if yes { Answer::approve() } else { Answer::reject() }));
        }
        if let Some(schema) = &interrupt.response_schema {
            self.screen.print(&format!("An answer must fit: {schema}"))?;
        }
        Ok(self.value("Answer>", "").await?.map(Answer::input))
    }

    /// Asks for a credential: the address that a browser was sent back to, or a secret. Nothing typed means that it is not
    /// given.
    async fn credential(&mut self, interrupt: &Interrupt) -> io::Result<Option<Answer>> {
        let message = interrupt.message.as_deref().unwrap_or("It needs a credential from you.");
        self.screen.paint(Ink::Question, &format!("{} asks: {message}", interrupt.address.agent))?;
        let shown = interrupt.payload.as_ref().and_then(|payload| payload.get("exchangedAuthCredential"));
        let sign_in = shown.and_then(|shown| shown.pointer("/oauth2/authUri")).and_then(Value::as_str);
        if let Some(link) = sign_in {
            return self.sign_in(interrupt, link).await;
        }
        self.screen.print("Type it, or nothing to give none.")?;
        let fields = interrupt.response_schema.as_ref().and_then(|schema| schema.get("required")?.as_array());
        let names: Vec<&str> = fields.into_iter().flatten().filter_map(Value::as_str).collect();
        if names.len() < 2 {
            return self.secret("Secret>").await;
        }
        let mut given = Object::new();
        for name in names {
            match self.secret(&format!("{name}>")).await? {
                Some(Answer { payload: Some(value), .. }) => given.insert(name.to_owned(), value),
                other => return Ok(other),
            };
        }
        Ok(Some(Answer::input(Value::Object(given))))
    }

    /// Shows where to sign in, and takes the address that the browser is sent back to: from the browser itself if that is an
    /// address of this machine, else from the person.
    async fn sign_in(&mut self, interrupt: &Interrupt, link: &str) -> io::Result<Option<Answer>> {
        const PASTE: &str = "paste the address that your browser was sent to, or nothing to give none.";
        // A browser does other things than signing in with other addresses.
        let is_web = ["https://", "http://"].iter().any(|scheme| link.starts_with(scheme));
        let shown = if is_web { link } else { "an address that is none" };
        let scopes = parameter(link, "scope").map(|scopes| format!(", with the scopes {scopes}"));
        let what = interrupt.credential().unwrap_or("this agent");
        self.screen.print(&clean_line(&format!("It is for `{what}`{}.", scopes.unwrap_or_default())))?;
        self.screen.print(&clean_line(&format!("Sign in at {shown}")))?;
        let Some(redirect) = Redirect::listen(link).await else {
            self.screen.print(&format!("Then {PASTE}"))?;
            return self.secret("Address>").await;
        };
        if !matches!(self.input, Input::Editor(_)) {
            self.screen.print(&format!("This goes on when your browser is back. Or {PASTE}"))?;
            let address = tokio::select! {
                typed = self.secret("Address>") => return typed,
                address = redirect.address() => address,
            };
            self.screen.end_prompt()?;
            return Ok(Some(Answer::input(address)));
        }
        // Nobody can take a line back from an editor that somebody may type in.
        self.screen
            .print("This goes on when your browser is back. To paste its address, or to give none, press Ctrl-C first.")?;
        tokio::select! {
            biased;
            () = self.interrupts.next() => self.screen.end_key()?,
            address = redirect.address() => return Ok(Some(Answer::input(address))),
        }
        self.screen.print(&format!("Now {PASTE}"))?;
        self.secret("Address>").await
    }

    /// A line that is taken as it is, and neither shown nor remembered.
    async fn secret(&mut self, prompt: &str) -> io::Result<Option<Answer>> {
        Ok(match self.read(Ink::Question, prompt, "", Keep::Hidden).await? {
            Line::Interrupt | Line::End => None,
            Line::Typed(text) if text.is_empty() => Some(Answer::reject()),
            Line::Typed(text) => Some(Answer::input(text)),
        })
    }

    /// Asks for yes or no.
    pub(super) async fn yes_or_no(&mut self) -> io::Result<Option<bool>> {
        self.screen.hint("The next line says y or n.")?;
        loop {
            match self.read(Ink::Question, "[y/n]", "", Keep::Once).await? {
                Line::Interrupt | Line::End => return Ok(None),
                Line::Typed(line) => match line.to_lowercase().as_str() {
                    "y" | "yes" => return Ok(Some(true)),
                    "n" | "no" => return Ok(Some(false)),
                    _ => self.screen.print("Please type y or n.")?,
                },
            }
        }
    }

    /// A value: JSON if it reads like that, else text. `None` if nothing was typed.
    async fn value(&mut self, prompt: &str, given: &str) -> io::Result<Option<Value>> {
        let text = if given.is_empty() {
            match self.read(Ink::Question, prompt, "", Keep::Once).await? {
                Line::Interrupt | Line::End => return Ok(None),
                Line::Typed(text) => text,
            }
        } else {
            given.to_owned()
        };
        Ok((!text.is_empty()).then(|| serde_json::from_str(&text).unwrap_or(Value::String(text))))
    }

    /// Asks for the results of calls that are made elsewhere, such as in a front end. `None` if none is given.
    pub(super) async fn results(&mut self, calls: &[FunctionCall]) -> io::Result<Option<Content>> {
        let mut results = Vec::new();
        for call in calls {
            let text = format!("{} runs in a front end, not here.", called(call));
            self.screen.paint(Ink::Question, &text)?;
            self.screen.print("Type its result, or nothing to leave it open.")?;
            if let Some(value) = self.value("Result>", "").await? {
                let result = match value {
                    Value::Object(object) => object,
                    value => Object::from_iter([("result".to_owned(), value)]),
                };
                let response = FunctionResponse::new(call.id.clone(), call.name.clone(), result);
                results.push(Part::response(response));
            }
        }
        Ok((!results.is_empty()).then(|| Content::new(Role::User, results)))
    }
}

/// The calls among these events that nobody has answered yet, of those whose answer comes from elsewhere.
pub(super) fn awaited<'a>(events: impl Iterator<Item = &'a Arc<Event>>) -> Vec<FunctionCall> {
    let mut awaited: Vec<FunctionCall> = Vec::new();
    for event in events.filter(|event| !event.is_partial()) {
        let later =
            |call: &&FunctionCall| call.id.as_ref().is_some_and(|id| event.long_running().contains(id));
        let asks = |call: &&FunctionCall| QUESTIONS.contains(&call.name.as_str());
        awaited.extend(event.calls().filter(later).filter(|call| !asks(call)).cloned());
        for response in event.responses() {
            awaited.retain(|call| call.id != response.id);
        }
    }
    awaited
}
