//! How a conversation looks: answers as they come, calls and state as one line each.

use std::io::{self, Write};
use std::sync::Arc;

use serde_json::Value;
use umbel::code::RUN_CODE;
use umbel::core::event::Source;
use umbel::core::interrupt::REQUEST_CREDENTIAL;
use umbel::core::state::StateScope;
use umbel::runtime::team::TRANSFER_TO_AGENT;
use umbel::{CallId, Event, EventId, FunctionCall, FunctionResponse, Object, Part};

use crate::chat::{QUESTION, question};
use crate::style::{Ink, Style, clean, clean_line, for_stdout};

/// The widest a card gets, so that it stays one line on most terminals.
const WIDTH: usize = 76;

/// The same for what an event of the log says, which stands behind its number and author.
const LOG_WIDTH: usize = 62;

/// Writes a conversation.
#[derive(Debug)]
pub struct Screen<W> {
    out: W,
    style: Style,
    interactive: bool,
    /// Whether events are written as JSON, and words for people elsewhere.
    json: bool,
    /// When calls were made, to tell how long they took.
    begun: Vec<(CallId, f64)>,
    open: Option<Open>,
    /// Whole events that came while another agent was speaking.
    held: Vec<Arc<Event>>,
    /// Answers whose beginning was not shown, so that their previews make no sense.
    missed: Vec<EventId>,
}

/// An answer that is being written word by word.
#[derive(Debug)]
struct Open {
    id: EventId,
    source: Arc<Source>,
    /// What was written of it.
    said: String,
    thought: String,
    /// What the line at hand is; none has begun if absent.
    line: Option<Voice>,
}

impl Open {
    /// What the whole answer says beyond what was written. `None` if something else was written.
    fn rest_of(&self, event: &Event) -> Option<[(Voice, String); 2]> {
        let rest = |voice, written: &str| {
            let text: String = spoken(event).filter(|(it, _)| *it == voice).map(|(_, text)| text).collect();
            // Words that turned out to be code were written with the rest.
            let became_code = event.code_call().is_some() && written.starts_with(&text);
            let rest = if became_code { "" } else { text.strip_prefix(written)? };
            Some((voice, rest.to_owned()))
        };
        Some([rest(Voice::Thought, &self.thought)?, rest(Voice::Said, &self.said)?])
    }
}

/// Aloud, or to itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Voice {
    Thought,
    Said,
}

impl<W: Write> Screen<W> {
    /// A screen. If it is `interactive`, a person sits before it, who sees prompts.
    pub fn new(out: W, style: Style, interactive: bool) -> Self {
        let (json, begun) = (false, Vec::new());
        Self { out, style, interactive, json, begun, open: None, held: Vec::new(), missed: Vec::new() }
    }

    /// Events as JSON, a line each. What is said to people goes to standard error.
    pub fn json(out: W) -> Self {
        Self { json: true, ..Self::new(out, Style::Plain, false) }
    }

    /// Whether a person sits before it.
    pub fn is_interactive(&self) -> bool {
        self.interactive
    }

    /// Writes lines as they are.
    pub fn print(&mut self, text: &str) -> io::Result<()> {
        if self.json {
            return writeln!(io::stderr(), "{}", clean(text));
        }
        writeln!(self.out, "{}", clean(text))?;
        self.out.flush()
    }

    /// Writes lines in that ink.
    pub fn paint(&mut self, ink: Ink, text: &str) -> io::Result<()> {
        if self.json {
            return self.print(text);
        }
        writeln!(self.out, "{}", self.style.paint(ink, &clean(text)))?;
        self.out.flush()
    }

    /// Writes a line only a person at a terminal needs.
    pub fn note(&mut self, text: &str) -> io::Result<()> {
        if self.interactive { self.paint(Ink::Faint, text) } else { Ok(()) }
    }

    /// Writes a line only whoever writes to a pipe needs.
    pub fn hint(&mut self, text: &str) -> io::Result<()> {
        if self.interactive { Ok(()) } else { self.paint(Ink::Question, text) }
    }

    /// The text as it would be painted.
    pub(crate) fn painted<'a>(&self, ink: Ink, text: &'a str) -> std::borrow::Cow<'a, str> {
        self.style.paint(ink, text)
    }

    /// Asks a person for the next line. The cursor stays behind it.
    pub fn prompt(&mut self, ink: Ink, text: &str) -> io::Result<()> {
        if self.interactive {
            write!(self.out, "{} ", self.style.paint(ink, text))?;
            self.out.flush()?;
        }
        Ok(())
    }

    /// Ends the line that a prompt began, where no Enter key did.
    pub fn end_prompt(&mut self) -> io::Result<()> {
        if self.interactive { writeln!(self.out) } else { Ok(()) }
    }

    /// Ends the line that the terminal began when it showed a key such as `^C`, unless words still stand on it.
    pub fn end_key(&mut self) -> io::Result<()> {
        if self.open.is_none() { self.end_prompt() } else { Ok(()) }
    }

    /// Shows an event: a preview word by word, anything else whole.
    ///
    /// Agents that work side by side speak at the same time. One of them is followed word by word; what the others
    /// say is shown once it is whole and the first has finished.
    pub fn show(&mut self, event: &Arc<Event>) -> io::Result<()> {
        if self.json {
            writeln!(self.out, "{}", for_stdout(&serde_json::to_string(&**event)?))?;
            return self.out.flush();
        }
        if let Some(open) = &self.open
            && open.id != event.id
        {
            if open.source != event.source {
                if !event.is_partial() {
                    self.held.push(event.clone());
                } else if !self.missed.contains(&event.id) {
                    self.missed.push(event.id.clone());
                }
                return Ok(());
            }
            // The same agent begins anew: its model was asked again.
            self.close()?;
        }
        match event.is_partial() {
            true if self.missed.contains(&event.id) => Ok(()),
            true => self.preview(event),
            false => self.whole(event),
        }
    }

    /// Shows an event of the log: what the person said, too.
    pub fn replay(&mut self, event: &Arc<Event>) -> io::Result<()> {
        let text = if event.is_user() { event.text() } else { String::new() };
        if text.is_empty() || self.json {
            return self.show(event);
        }
        self.settle()?;
        writeln!(self.out, "{} {}", self.style.paint(Ink::You, "you>"), clean(&text))?;
        self.cards(event)
    }

    /// Ends what is still open, and shows what waited for it.
    pub fn settle(&mut self) -> io::Result<()> {
        self.close()?;
        for event in std::mem::take(&mut self.held) {
            self.whole(&event)?;
        }
        Ok(())
    }

    fn preview(&mut self, event: &Event) -> io::Result<()> {
        for response in event.responses() {
            self.card(Ink::Faint, &format!("· {}", answered(response)))?;
        }
        for (voice, text) in spoken(event) {
            self.speak(event, voice, text)?;
        }
        self.out.flush()
    }

    fn whole(&mut self, event: &Event) -> io::Result<()> {
        let followed = self.open.is_some();
        self.missed.retain(|id| *id != event.id);
        match self.open.as_ref().and_then(|open| open.rest_of(event)) {
            Some(rest) => {
                for (voice, text) in rest.into_iter().filter(|(_, text)| !text.is_empty()) {
                    self.speak(event, voice, &text)?;
                }
            }
            None => {
                // Nothing of it was seen, or something else was: all is said.
                self.close()?;
                for (voice, text) in spoken(event) {
                    self.speak(event, voice, text)?;
                }
            }
        }
        self.close()?;
        self.cards(event)?;
        self.out.flush()?;
        if followed { self.settle() } else { Ok(()) }
    }

    /// What an event does, besides talking.
    fn cards(&mut self, event: &Event) -> io::Result<()> {
        let waiting =
            event.actions.as_ref().and_then(|actions| actions.requested_tool_confirmations.as_ref());
        let own = [TRANSFER_TO_AGENT, QUESTION, REQUEST_CREDENTIAL];
        let is_told = |call: &FunctionCall| !own.contains(&call.name.as_str());
        for call in event.calls_and_code().filter(is_told) {
            self.card(Ink::Tool, &format!("→ {}", called(&call)))?;
            self.begun.extend(call.id.clone().map(|id| (id, event.timestamp)));
        }
        let results = event.responses_and_results();
        for response in results.filter(|response| response.name != TRANSFER_TO_AGENT) {
            // A call that waits for a person has no answer yet: the person is asked next.
            let waits =
                waiting.zip(response.id.as_ref()).is_some_and(|(waiting, id)| waiting.contains_key(id));
            if !waits && !response.is_waiting() {
                let ink = if failed(&response) { Ink::Error } else { Ink::Tool };
                let took = self.took(&response, event.timestamp);
                self.card(ink, &format!("←{took} {}", answered(&response)))?;
            }
        }
        for (key, value) in shown_state(event) {
            self.card(Ink::State, &format!("≡ {key} = {value}"))?;
        }
        if let Some(agent) = event.actions.as_ref().and_then(|actions| actions.transfer_to_agent.as_ref()) {
            self.card(Ink::Agent, &format!("» {} hands over to {agent}", event.author()))?;
        }
        Ok(())
    }

    /// How long a call took, where a person reads along: elsewhere the same input gives the same output.
    fn took(&mut self, response: &FunctionResponse, now: f64) -> String {
        let begun = self.begun.iter().position(|(id, _)| Some(id) == response.id.as_ref());
        let Some((_, then)) = begun.map(|place| self.begun.swap_remove(place)) else { return String::new() };
        match (now - then).max(0.0) {
            _ if !self.interactive => String::new(),
            seconds if seconds < 1.0 => format!(" {} ms", (seconds * 1000.0).round()),
            seconds => format!(" {seconds:.1} s"),
        }
    }

    fn card(&mut self, ink: Ink, text: &str) -> io::Result<()> {
        let text = one_line(text, WIDTH);
        writeln!(self.out, "  {}", self.style.paint(ink, &text))
    }

    /// Writes more words of an agent, on a line that bears its name.
    fn speak(&mut self, event: &Event, voice: Voice, text: &str) -> io::Result<()> {
        let open = self.open.get_or_insert_with(|| Open {
            id: event.id.clone(),
            source: event.source.clone(),
            said: String::new(),
            thought: String::new(),
            line: None,
        });
        let style = self.style;
        if open.line != Some(voice) {
            if open.line.is_some() {
                writeln!(self.out)?;
            }
            match voice {
                Voice::Thought => write!(self.out, "  {}", style.paint(Ink::Faint, "~ "))?,
                Voice::Said => {
                    write!(
                        self.out,
                        "{} ",
                        style.paint(Ink::Agent, &format!("{}>", clean_line(event.author())))
                    )?;
                }
            }
            open.line = Some(voice);
        }
        let shown = clean(text);
        match voice {
            Voice::Thought => {
                open.thought.push_str(text);
                write!(self.out, "{}", style.paint(Ink::Faint, &shown))
            }
            Voice::Said => {
                open.said.push_str(text);
                write!(self.out, "{shown}")
            }
        }
    }

    fn close(&mut self) -> io::Result<()> {
        if self.open.take().is_some_and(|open| open.line.is_some()) {
            writeln!(self.out)?;
        }
        Ok(())
    }
}

/// The words of an event, in order.
fn spoken(event: &Event) -> impl Iterator<Item = (Voice, &str)> {
    let parts = event.content.iter().flat_map(|content| content.parts.iter());
    parts.filter_map(|part: &Part| {
        let voice = if part.is_thought() { Voice::Thought } else { Voice::Said };
        Some((voice, part.as_text().filter(|text| !text.is_empty())?))
    })
}

/// What an event changes in the state, without what Umbel keeps there for itself.
fn shown_state(event: &Event) -> impl Iterator<Item = (&String, &Value)> {
    event.state_delta().into_iter().flatten().filter(|(key, _)| !StateScope::is_internal(key))
}

/// A call as one would write it.
pub fn called(call: &FunctionCall) -> String {
    let args = call.args.iter().flat_map(|args| args.iter());
    let args: Vec<String> = args.map(|(name, value)| format!("{name}: {value}")).collect();
    format!("{}({})", call.name, args.join(", "))
}

/// Whether a call went wrong: it says so, or the code that it ran does.
fn failed(response: &FunctionResponse) -> bool {
    let outcome = |given: &Object| given.get("outcome").and_then(Value::as_str).map(str::to_owned);
    response.response.as_ref().is_some_and(|given| {
        given.contains_key("error")
            || (response.name == RUN_CODE && outcome(given).is_some_and(|outcome| outcome != "ok"))
    })
}

/// What a tool answered, in short.
fn answered(response: &FunctionResponse) -> String {
    let given = response.response.as_ref();
    let printed = given.filter(|_| response.name == RUN_CODE).and_then(|given| given.get("output"));
    let words = printed.map_or_else(|| given.map_or_else(String::new, in_short), bare);
    format!("{}: {words}", response.name)
}

fn in_short(object: &Object) -> String {
    match object.iter().next() {
        Some((key, value)) if object.len() == 1 && (key == "result" || key == "error") => {
            value.as_str().map_or_else(|| value.to_string(), str::to_owned)
        }
        _ => {
            let pairs: Vec<String> =
                object.iter().map(|(key, value)| format!("{key} {}", bare(value))).collect();
            pairs.join(", ")
        }
    }
}

/// Text without quotes, anything else as JSON.
fn bare(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

/// An event of the log in one line.
pub fn in_log(event: &Event) -> String {
    let mut parts: Vec<String> = Vec::new();
    for (voice, text) in spoken(event) {
        parts.push(match voice {
            Voice::Thought => format!("~ {text}"),
            Voice::Said => text.to_owned(),
        });
    }
    parts.extend(event.calls_and_code().map(|call| match question(&call) {
        Some(about) => format!("? {}", called(&about)),
        None => format!("→ {}", called(&call)),
    }));
    parts.extend(event.responses_and_results().map(|response| format!("← {}", answered(&response))));
    parts.extend(shown_state(event).map(|(key, value)| format!("≡ {key} = {value}")));
    if let Some(agent) = event.actions.as_ref().and_then(|actions| actions.transfer_to_agent.as_ref()) {
        parts.push(format!("» {agent}"));
    }
    parts.extend(event.error_message().map(|message| format!("✗ {message}")));
    one_line(&parts.join("  "), LOG_WIDTH)
}

/// The text on one line of at most that many characters.
fn one_line(text: &str, width: usize) -> String {
    let flat = clean_line(text);
    if flat.chars().count() <= width {
        return flat;
    }
    flat.chars().take(width - 1).chain(['…']).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use umbel::{Content, Role};

    fn event(id: &str, author: &str, parts: &[Part], partial: bool) -> Arc<Event> {
        let content = Content::new(Role::Model, parts.iter().cloned());
        let mut event = Event::new("run".into(), Arc::new(Source::new(author))).with_content(content);
        event.id = id.into();
        event.partial = Some(partial);
        Arc::new(event)
    }

    fn shown(events: &[Arc<Event>]) -> String {
        let mut screen = Screen::new(Vec::new(), Style::Plain, false);
        for event in events {
            screen.show(event).unwrap();
        }
        screen.settle().unwrap();
        String::from_utf8(screen.out).unwrap()
    }

    #[test]
    fn an_answer_is_written_once_though_it_comes_in_pieces_and_whole() {
        let pieces = ["It ", "is ", "sunny."].map(|text| event("e", "guide", &[Part::text(text)], true));
        let mut events = pieces.to_vec();
        events.push(event("e", "guide", &[Part::text("It is sunny.")], false));
        assert_eq!(shown(&events), "guide> It is sunny.\n");
        events.pop();
        assert_eq!(shown(&events), "guide> It is sunny.\n", "a run that was cut short");
    }

    #[test]
    fn what_the_whole_adds_or_changes_is_written() {
        let piece = event("e", "guide", &[Part::text("It is ")], true);
        let more = event("e", "guide", &[Part::text("It is warm.")], false);
        assert_eq!(shown(&[piece.clone(), more]), "guide> It is warm.\n");
        for id in ["e", "f"] {
            let other = event(id, "guide", &[Part::text("No idea.")], false);
            assert_eq!(shown(&[piece.clone(), other]), "guide> It is \nguide> No idea.\n");
        }
    }

    #[test]
    fn a_thought_has_a_line_of_its_own() {
        let whole = event("e", "guide", &[Part::thought("Hm."), Part::text("Yes.")], false);
        assert_eq!(shown(&[whole]), "  ~ Hm.\nguide> Yes.\n");
    }

    #[test]
    fn agents_that_speak_at_once_are_not_mixed_up() {
        let events = [
            event("a", "left", &[Part::text("one ")], true),
            event("b", "right", &[Part::text("uno ")], true),
            event("a", "left", &[Part::text("two")], true),
            event("b", "right", &[Part::text("uno due")], false),
            event("a", "left", &[Part::text("one two")], false),
        ];
        assert_eq!(shown(&events), "left> one two\nright> uno due\n");
        let [one, uno, two, uno_due, one_two] = events;
        let due = event("b", "right", &[Part::text("due")], true);
        let text = shown(&[one, uno, two, one_two, due, uno_due]);
        assert_eq!(text, "left> one two\nright> uno due\n", "the first ends while the other speaks");
    }

    #[test]
    fn code_is_shown_as_a_call_and_what_it_gave() {
        let part = |form| serde_json::from_value::<Part>(form).unwrap();
        let code = part(serde_json::json!({"executableCode": {"id": "adk-1", "code": "print(1)"}}));
        let gave = |outcome: &str| {
            part(
                serde_json::json!({"codeExecutionResult": {"id": "adk-1", "outcome": outcome, "output": "1"}}),
            )
        };
        let whole = event("e", "coder", &[Part::text("See: "), code], false);
        let result = event("f", "coder", &[gave("OUTCOME_OK")], false);
        let cards = "  → run_code(code: \"print(1)\")\n  ← run_code: 1\n";
        assert_eq!(shown(&[whole.clone(), result.clone()]), format!("coder> See: \n{cards}"));
        let piece = event("e", "coder", &[Part::text("See: ```python\nprint(1)\n```")], true);
        let text = shown(&[piece, whole.clone(), result.clone()]);
        assert_eq!(text, format!("coder> See: ```python\nprint(1)\n```\n{cards}"), "it is not said again");
        assert_eq!(in_log(&whole), "See:   → run_code(code: \"print(1)\")");
        assert_eq!(in_log(&result), "← run_code: 1");
        let response =
            |outcome: &str| event("f", "a", &[gave(outcome)], false).responses_and_results().next();
        assert!(!failed(&response("OUTCOME_OK").unwrap()) && failed(&response("OUTCOME_FAILED").unwrap()));
    }

    #[test]
    fn a_card_is_one_short_line() {
        let long =
            FunctionCall::new("note", Object::from_iter([("text".to_owned(), "word\n".repeat(40).into())]));
        let text = shown(&[event("e", "guide", &[Part::call(long)], false)]);
        assert_eq!((text.lines().count(), text.trim().chars().count()), (1, WIDTH));
    }
}
