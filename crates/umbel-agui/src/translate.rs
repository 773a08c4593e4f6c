//! From the log to AG-UI: each event of a run becomes what a front end is told.
//!
//! Previews come first, and what was previewed is not said again when the whole event comes. What was previewed and never
//! came whole is void: then the front end gets the conversation as the log has it.

use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::Arc;

use serde_json::Value;
use smallvec::SmallVec;
use smol_str::{SmolStr, format_smolstr};
use umbel_core::interrupt::{REQUEST_CONFIRMATION, REQUEST_CREDENTIAL, REQUEST_INPUT};
use umbel_core::{
    CallId, CodeResult, Event, EventId, FunctionCall, FunctionResponse, Interrupt, Object, Part, Payload,
    Piece, RunId, Source, Usage,
};

use crate::cast::Cast;
use crate::draft::{
    By, Draft, Open, Shown, close, encrypted, end_calls, is_preview_of, new_draft, owned_by, reopen,
    say_call, say_text, say_thought, stream_call, streams,
};
use crate::event::{
    AguiEvent, AguiInterrupt, EncryptedSubtype, EventKind, RunOutcome, SubagentOutcome, TokenUsage,
    ToolResultContent,
};
use crate::message::{AssistantMessage, Message};
use crate::messages::{reasoning_id, result_content, result_id};
use crate::patch::{PatchOp, diff};
use crate::preview::unsaid;
use crate::questions::interrupt_on_the_wire;

/// The call by which a model gives a structured answer: of no interest to a front end.
pub(crate) const SET_MODEL_RESPONSE: &str = "set_model_response";

/// How a run ended, for its front end.
#[derive(Clone, Debug)]
pub enum Ending<'a> {
    /// The agent said its last word, or waits for calls that the front end answers.
    Finished,
    /// People are asked.
    Interrupted(&'a [Interrupt]),
    /// It was told to stop.
    Cancelled,
    /// It failed.
    Failed {
        /// What happened, for people.
        message: Cow<'a, str>,
        /// What happened, for programs.
        code: Cow<'a, str>,
    },
}

/// A sub-agent at work.
#[derive(Debug)]
struct Speaker {
    id: SmolStr,
    run: RunId,
    source: Arc<Source>,
    is_step: bool,
}

/// Turns the events of one run into what its front end is told.
#[derive(Debug)]
pub struct Translator {
    cast: Arc<Cast>,
    thread: SmolStr,
    run: SmolStr,
    /// The front end knows of interrupts, and of outcomes with more than a name; one that does not gets interrupts as
    /// calls, and no outcome: some refuse a whole run for a field that they do not know.
    knows_interrupts: bool,
    drafts: SmallVec<[Draft; 1]>,
    /// In the order of their ids: then those that are done are told of in the same order, whoever of them spoke first.
    speakers: Vec<Speaker>,
    /// The ids that sub-agents had.
    spoke: HashMap<SmolStr, usize>,
    /// The state as the front end has it.
    state: Object,
    state_changed: bool,
    pending: Vec<CallId>,
    usage: Vec<TokenUsage>,
    /// Something was shown that the log does not have.
    is_void: bool,
    /// Thoughts of that kind, by the ids of their messages.
    void_thoughts: Vec<SmolStr>,
    /// How many messages began, and whether some stand in another order than in the log.
    begun: u32,
    is_mixed: bool,
    told: Option<EventId>,
    /// The code that was told last, by the id that it has as a call.
    code: Option<CallId>,
    /// The structured answer of the agent at the top.
    result: Option<Value>,
}

impl Translator {
    /// The translator of one run. `state` is what the front end is taken to have, `pending` the calls that wait for it.
    pub fn new(cast: Arc<Cast>, thread: &str, run: &str, knows_interrupts: bool) -> Self {
        Self {
            cast,
            thread: thread.into(),
            run: run.into(),
            knows_interrupts,
            drafts: SmallVec::new(),
            speakers: Vec::new(),
            spoke: HashMap::new(),
            state: Object::new(),
            state_changed: false,
            pending: Vec::new(),
            usage: Vec::new(),
            is_void: false,
            void_thoughts: Vec::new(),
            begun: 0,
            is_mixed: false,
            told: None,
            code: None,
            result: None,
        }
    }

    /// The beginning: `theirs` is the state that the front end sent, `ours` what the session has after that. Calls that
    /// waited before the run go on waiting until they are answered.
    pub fn begin(
        &mut self,
        parent: Option<&str>,
        theirs: Option<&Value>,
        ours: Object,
        pending: Vec<CallId>,
        sink: &mut impl FnMut(AguiEvent<'_>),
    ) {
        self.pending = pending;
        let started = EventKind::RunStarted {
            thread_id: Cow::Borrowed(&self.thread),
            run_id: Cow::Borrowed(&self.run),
            protocol_version: Some(Cow::Borrowed(crate::PROTOCOL_VERSION)),
            parent_run_id: parent.map(Cow::Borrowed),
            input: None,
        };
        sink(started.into());
        self.state = ours;
        let is_base = |theirs: &Value| theirs.as_object().is_some_and(|theirs| *theirs == self.state);
        match theirs {
            Some(theirs) if is_base(theirs) => {}
            Some(theirs) if theirs.is_object() => {
                let ours = Value::Object(std::mem::take(&mut self.state));
                let delta = diff(theirs, &ours, "");
                sink(EventKind::StateDelta { delta: Cow::Owned(delta) }.into());
                self.state_changed = true;
                if let Value::Object(ours) = ours {
                    self.state = ours;
                }
            }
            None if self.state.is_empty() => {}
            _ => {
                self.state_changed = true;
                self.show_state(sink);
            }
        }
    }

    /// What an event of the run says, a preview or a whole one.
    pub fn event(&mut self, event: &Event, sink: &mut impl FnMut(AguiEvent<'_>)) {
        if event.is_user() {
            // The front end said this itself.
            for response in event.responses() {
                self.settle(response);
            }
        } else if event.is_partial() {
            self.preview(event, sink);
        } else {
            self.whole(event, sink);
        }
    }

    /// Takes in more words of what is being said; `false` if they are not just that, and have to be told as an event. The
    /// event that tells them is the one before it with other words.
    pub fn goes_on(&mut self, piece: &Piece) -> bool {
        let Some(draft) = self.going_on(piece) else { return false };
        draft.preview.add(&piece.text, piece.is_thought);
        let shown = &mut draft.shown;
        let bytes = if piece.is_thought { &mut shown.thoughts } else { &mut shown.text };
        *bytes += piece.text.len();
        true
    }

    /// The event that told that piece, if others like it may follow.
    pub fn last_words<'a>(&'a mut self, piece: &'a Piece) -> Option<AguiEvent<'a>> {
        let draft = self.going_on(piece)?;
        let delta = Cow::Borrowed(piece.text.as_str());
        Some(if piece.is_thought {
            let message_id = Cow::Owned(reasoning_id(&piece.event).into());
            owned_by(draft, EventKind::ReasoningMessageContent { message_id, delta })
        } else {
            let message_id = Cow::Borrowed(piece.event.as_str());
            owned_by(draft, EventKind::TextMessageContent { message_id, delta })
        })
    }

    /// What is being said, if that piece is more of it and nothing else is due.
    fn going_on(&mut self, piece: &Piece) -> Option<&mut Draft> {
        let open = if piece.is_thought { Open::Thought } else { Open::Text };
        match &mut self.drafts[..] {
            [draft] if draft.shown.open == open && draft.shown.event == piece.event => {
                (!piece.text.is_empty()).then_some(draft)
            }
            _ => None,
        }
    }

    /// Ends what the event shows to be void: its agent had begun to say something else, and did not say it.
    pub fn make_void(&mut self, event: &Event, sink: &mut impl FnMut(AguiEvent<'_>)) {
        if self.may_void(event) {
            self.bury(event, sink);
        }
    }

    /// Whether something else is being said, which the event may show to be void.
    pub fn may_void(&self, event: &Event) -> bool {
        self.drafts.iter().any(|draft| draft.shown.event != event.id)
    }

    /// Whether [`messages`](Self::messages) is due: something was shown that the log does not have, and nothing is being
    /// said that the log will have.
    pub fn owes_messages(&self) -> bool {
        self.is_void && self.drafts.is_empty()
    }

    /// The last event of the log that was told as a whole. What the front end is told of the conversation ends there.
    pub fn told(&self) -> Option<&EventId> {
        self.told.as_ref()
    }

    /// Whether the front end has messages in another order than the log: those of agents that speak at the same time stand
    /// in the order in which they began. [`messages`](Self::messages) puts them right.
    pub fn is_mixed(&self) -> bool {
        self.is_mixed
    }

    /// The front end has messages in another order than the log.
    pub fn mix(&mut self) {
        self.is_mixed = true;
    }

    /// Tells the front end the whole conversation.
    pub fn messages(&mut self, messages: &[Message], sink: &mut impl FnMut(AguiEvent<'_>)) {
        self.is_void = false;
        let void = std::mem::take(&mut self.void_thoughts);
        let snapshot = |messages| EventKind::MessagesSnapshot { messages }.into();
        let is_thought = |message: &Message| matches!(message, Message::Reasoning(_));
        // Clients leave what they have where it is. So what may stand in another order is taken away first.
        let is_users = |message: &Message| matches!(message, Message::User(_));
        let sure = match std::mem::take(&mut self.is_mixed) {
            true => messages.iter().rposition(is_users).map_or(0, |last| last + 1),
            false => messages.len(),
        };
        let (sure, rest) = messages.split_at(sure);
        let thoughts = rest.iter().filter(|message| is_thought(message)).map(|one| SmolStr::new(one.id()));
        let thoughts: Vec<SmolStr> = void.into_iter().chain(thoughts).collect();
        if !thoughts.is_empty() && !sure.iter().any(is_thought) {
            // Clients keep thoughts that a conversation without any does not have. So these are made something else first.
            let blank = |id| Message::Assistant(AssistantMessage { id, ..AssistantMessage::default() });
            let blanks = sure.iter().cloned().chain(thoughts.into_iter().map(blank)).collect();
            sink(snapshot(Cow::Owned(blanks)));
        }
        if !rest.is_empty() {
            sink(snapshot(Cow::Borrowed(sure)));
        }
        sink(snapshot(Cow::Borrowed(messages)));
    }

    /// The conversation cannot be told: the front end keeps what it has.
    pub fn messages_unknown(&mut self) {
        self.is_void = false;
    }

    /// The agent at the top.
    pub fn root(&self) -> &str {
        &self.cast.root
    }

    /// Whether the front end knows of interrupts.
    pub fn knows_interrupts(&self) -> bool {
        self.knows_interrupts
    }

    /// Takes up an event of which a front end saw the preview, up to there. Says how that began, which it saw.
    pub fn take_up(&mut self, event: &Event, shown: Shown, sink: &mut impl FnMut(AguiEvent<'_>)) {
        let at = self.begin_draft(event, sink);
        if let Some(draft) = self.drafts.get_mut(at) {
            reopen(draft, shown, sink);
        }
    }

    /// The same for an event of a run that never came. What a front end has of it is void.
    pub fn take_up_void(&mut self, run: &RunId, shown: Shown, sink: &mut impl FnMut(AguiEvent<'_>)) {
        let By { author, branch } = shown.by.clone();
        let author = if author.is_empty() { self.cast.root.clone() } else { author };
        let event = Event::new(run.clone(), Arc::new(Source { branch, ..Source::new(author) }));
        let owner = match shown.announced {
            0 => {
                self.speakers.iter().find(|speaker| speaker.source == event.source).map(|one| one.id.clone())
            }
            _ => self.speaker(&event, sink),
        };
        let mut draft = new_draft(&shown.event, &event.source, owner);
        reopen(&mut draft, shown, sink);
        self.drafts.push(draft);
    }

    /// Ends what was begun and will not come any more.
    pub fn make_all_void(&mut self, sink: &mut impl FnMut(AguiEvent<'_>)) {
        for mut draft in std::mem::take(&mut self.drafts) {
            self.note_void(&draft.shown);
            close(&mut draft, sink);
            end_calls(&draft, sink);
        }
    }

    /// What is due before the end: what was left open is closed, and the state is told whole.
    pub fn wind_up(&mut self, ending: &Ending<'_>, sink: &mut impl FnMut(AguiEvent<'_>)) {
        self.make_all_void(sink);
        let suspended: Option<Vec<SmolStr>> = match ending {
            Ending::Interrupted(interrupts) => {
                Some(interrupts.iter().map(|asked| asked.id.as_str().into()).collect())
            }
            _ => None,
        };
        for speaker in std::mem::take(&mut self.speakers).into_iter().rev() {
            let outcome = suspended.clone().map(|interrupt_ids| SubagentOutcome::Suspended { interrupt_ids });
            finish_speaker(&speaker, outcome, sink);
        }
        let waits = matches!(ending, Ending::Interrupted(_));
        if self.state_changed || waits || !self.state.is_empty() {
            self.show_state(sink);
        }
    }

    /// The one terminal event.
    pub fn end(&mut self, ending: &Ending<'_>, sink: &mut impl FnMut(AguiEvent<'_>)) {
        let usage = std::mem::take(&mut self.usage);
        let outcome = match ending {
            Ending::Failed { message, code } => {
                let (message, code) = (Cow::Borrowed(&**message), Some(Cow::Borrowed(&**code)));
                return sink(EventKind::RunError { message, code, usage }.into());
            }
            _ if !self.knows_interrupts => None,
            Ending::Cancelled => Some(RunOutcome::Cancelled),
            Ending::Interrupted(interrupts) => Some(RunOutcome::Interrupt {
                interrupts: interrupts.iter().map(interrupt_on_the_wire).collect::<Vec<AguiInterrupt>>(),
            }),
            _ => {
                let pending = self.pending.iter().map(|id| id.as_str().into()).collect();
                Some(RunOutcome::Success { pending_tool_call_ids: pending })
            }
        };
        let finished = EventKind::RunFinished {
            thread_id: Cow::Borrowed(&self.thread),
            run_id: Cow::Borrowed(&self.run),
            result: self.result.take().map(Cow::Owned),
            outcome,
            usage,
        };
        sink(finished.into());
    }

    fn show_state(&mut self, sink: &mut impl FnMut(AguiEvent<'_>)) {
        // A key that is `null` is not there. A front end may have had it so until now.
        self.state.retain(|_, value| !value.is_null());
        let state = Value::Object(std::mem::take(&mut self.state));
        sink(EventKind::StateSnapshot { snapshot: Cow::Borrowed(&state) }.into());
        if let Value::Object(state) = state {
            self.state = state;
        }
    }

    fn preview(&mut self, event: &Event, sink: &mut impl FnMut(AguiEvent<'_>)) {
        let Some(content) = &event.content else { return };
        let at = match self.drafts.iter().position(|draft| draft.shown.event == event.id) {
            Some(at) => at,
            None => self.begin_draft(event, sink),
        };
        let Self { cast, drafts, knows_interrupts, begun, .. } = self;
        let silent = cast.is_silent(event.author());
        let Some(draft) = drafts.get_mut(at) else { return };
        for part in &content.parts {
            match &part.payload {
                Payload::Text(text) if !text.is_empty() => {
                    if part.is_thought() {
                        draft.preview.add(text, true);
                        say_thought(draft, text, sink);
                    } else if !silent {
                        draft.preview.add(text, false);
                        say_text(draft, text, sink);
                    }
                }
                Payload::Call(call) if streams(call) => {
                    stream_call(draft, call, cast, *knows_interrupts, sink);
                }
                _ => {}
            }
        }
        draft.count_messages(false, begun);
    }

    /// An event is in the making. One of the same agent that never came whole has died.
    fn begin_draft(&mut self, event: &Event, sink: &mut impl FnMut(AguiEvent<'_>)) -> usize {
        self.bury(event, sink);
        let owner = self.speaker(event, sink);
        self.drafts.push(new_draft(&event.id, &event.source, owner));
        self.drafts.len() - 1
    }

    /// Closes what an agent had begun to say and did not say.
    fn bury(&mut self, event: &Event, sink: &mut impl FnMut(AguiEvent<'_>)) {
        let mut at = 0;
        while let Some(draft) = self.drafts.get_mut(at) {
            if draft.source != event.source || draft.shown.event == event.id {
                at += 1;
                continue;
            }
            close(draft, sink);
            end_calls(draft, sink);
            let draft = self.drafts.remove(at);
            self.note_void(&draft.shown);
        }
    }

    fn note_void(&mut self, shown: &Shown) {
        self.is_void = true;
        if shown.thinks {
            self.void_thoughts.push(reasoning_id(&shown.event));
        }
    }

    fn whole(&mut self, event: &Event, sink: &mut impl FnMut(AguiEvent<'_>)) {
        self.note_usage(event);
        let place = self.drafts.iter().position(|draft| draft.shown.event == event.id);
        let mut draft = match place {
            Some(place) => self.drafts.remove(place),
            None => {
                self.bury(event, sink);
                let said = event.content.as_ref().is_some_and(|content| !content.parts.is_empty());
                let owner = if said { self.speaker(event, sink) } else { None };
                new_draft(&event.id, &event.source, owner)
            }
        };
        let parts = event.content.as_ref().map_or(&[][..], |content| &content.parts);
        if !is_preview_of(&draft, parts) {
            // It cannot be taken back piece by piece: the conversation is told anew.
            self.is_void = true;
            (draft.shown.text, draft.shown.thoughts) = (usize::MAX, usize::MAX);
        }
        self.say(event, &mut draft, parts, sink);
        let calls = |part: &Part| matches!(part.payload, Payload::Call(_) | Payload::Code(_));
        draft.count_messages(parts.iter().any(calls), &mut self.begun);
        // What began before it comes behind it in the log.
        self.is_mixed |= self.drafts.iter().any(|other| other.first.is_some_and(|first| first < draft.last));
        close(&mut draft, sink);
        draft.calls.retain(|streamed| event.calls().all(|call| call.id.as_ref() != Some(&streamed.id)));
        end_calls(&draft, sink);
        if let Some(delta) = event.state_delta() {
            self.change_state(delta, sink);
        }
        if self.cast.is_silent && event.author() == self.cast.root && event.is_final() {
            self.result = serde_json::from_str(&event.text()).ok();
        }
        self.told = Some(event.id.clone());
    }

    /// Says what was not previewed of an event.
    fn say(
        &mut self,
        event: &Event,
        draft: &mut Draft,
        parts: &[Part],
        sink: &mut impl FnMut(AguiEvent<'_>),
    ) {
        let silent = self.cast.is_silent(event.author());
        let (mut text, mut thoughts) = (draft.shown.text, draft.shown.thoughts);
        for (index, part) in parts.iter().enumerate() {
            match &part.payload {
                Payload::Text(words) if part.is_thought() => {
                    if let Some(rest) = unsaid(words, &mut thoughts) {
                        say_thought(draft, rest, sink);
                    }
                    encrypted(
                        draft,
                        part,
                        EncryptedSubtype::Message,
                        &reasoning_id(&draft.shown.event),
                        sink,
                    );
                }
                Payload::Text(words) if !silent => {
                    if let Some(rest) = unsaid(words, &mut text) {
                        say_text(draft, rest, sink);
                    }
                }
                Payload::Call(call) => {
                    let Some(id) = &call.id else { continue };
                    if self.is_hidden(call) {
                        continue;
                    }
                    close(draft, sink);
                    say_call(draft, call, id, &self.cast, sink);
                    encrypted(draft, part, EncryptedSubtype::ToolCall, id.as_str(), sink);
                    if event.long_running().contains(id) {
                        self.pending.push(id.clone());
                    }
                }
                Payload::Response(response) => {
                    close(draft, sink);
                    self.say_result(event, draft, index, response, sink);
                }
                Payload::Code(code) => {
                    close(draft, sink);
                    let unnamed = || format_smolstr!("{}:code:{index}", event.id).into();
                    let id = code.id.clone().unwrap_or_else(unnamed);
                    say_call(draft, &code.as_call(), &id, &self.cast, sink);
                    self.code = Some(id);
                }
                Payload::CodeResult(result) => {
                    close(draft, sink);
                    self.say_code_result(event, draft, index, result, sink);
                }
                _ => {}
            }
        }
    }

    /// What code gave is told as the result of the call that ran it.
    fn say_code_result(
        &mut self,
        event: &Event,
        draft: &Draft,
        index: usize,
        result: &CodeResult,
        sink: &mut impl FnMut(AguiEvent<'_>),
    ) {
        // In logs of others it may not say whose it is: then it is that of the code before it.
        let code = self.code.take();
        let Some(id) = result.id.clone().or(code) else { return };
        let kind = EventKind::ToolCallResult {
            message_id: Cow::Owned(result_id(&event.id, index).into()),
            tool_call_id: Cow::Borrowed(id.as_str()),
            content: ToolResultContent::Text(Cow::Borrowed(result.output.as_deref().unwrap_or_default())),
            role: None,
        };
        sink(owned_by(draft, kind));
    }

    /// Calls that a front end is told of in another way, or not at all.
    fn is_hidden(&self, call: &FunctionCall) -> bool {
        match call.name.as_str() {
            REQUEST_CONFIRMATION | REQUEST_INPUT | REQUEST_CREDENTIAL => self.knows_interrupts,
            SET_MODEL_RESPONSE => true,
            _ => false,
        }
    }

    fn say_result(
        &mut self,
        event: &Event,
        draft: &Draft,
        index: usize,
        response: &FunctionResponse,
        sink: &mut impl FnMut(AguiEvent<'_>),
    ) {
        let Some(id) = &response.id else { return };
        if response.is_waiting() || response.name == SET_MODEL_RESPONSE {
            return;
        }
        self.settle(response);
        let kind = EventKind::ToolCallResult {
            message_id: Cow::Owned(result_id(&event.id, index).into()),
            tool_call_id: Cow::Borrowed(id.as_str()),
            content: ToolResultContent::from(result_content(response)),
            role: None,
        };
        sink(owned_by(draft, kind));
    }

    fn settle(&mut self, response: &FunctionResponse) {
        if let Some(id) = &response.id {
            self.pending.retain(|pending| pending != id);
        }
    }

    /// The sub-agent that speaks; none is the one at the top. Whoever is done by that is told of.
    fn speaker(&mut self, event: &Event, sink: &mut impl FnMut(AguiEvent<'_>)) -> Option<SmolStr> {
        let is_it = |speaker: &&Speaker| speaker.source == event.source && speaker.run == event.run;
        if let Some(speaker) = self.speakers.iter().find(is_it) {
            return Some(speaker.id.clone());
        }
        let branch = event.branch().unwrap_or_default();
        let mut at = 0;
        while let Some(speaker) = self.speakers.get(at) {
            let is_within = is_within(speaker.source.branch.as_deref().unwrap_or_default(), branch);
            if is_within || speaker.run != event.run {
                finish_speaker(&self.speakers.remove(at), None, sink);
            } else {
                at += 1;
            }
        }
        if event.author() == self.cast.root {
            return None;
        }
        let id = self.speaker_id(event);
        let member = self.cast.member(event.author());
        let is_step = member.is_some_and(|member| member.is_step);
        let description = member.map(|member| &*member.description).filter(|text| !text.is_empty());
        if is_step {
            sink(EventKind::StepStarted { step_name: Cow::Borrowed(event.author()) }.into());
        }
        let started = EventKind::SubagentStarted {
            subagent_run_id: Cow::Borrowed(&id),
            name: Cow::Borrowed(event.author()),
            description: description.map(Cow::Borrowed),
            parent_subagent_run_id: None,
            parent_tool_call_id: event.source.isolation_scope.as_deref().map(Cow::Borrowed),
            parent_message_id: None,
        };
        sink(started.into());
        let at = self.speakers.partition_point(|speaker| speaker.id < id);
        let (run, source) = (event.run.clone(), event.source.clone());
        self.speakers.insert(at, Speaker { id: id.clone(), run, source, is_step });
        Some(id)
    }

    /// A name for a turn of a sub-agent. It does not come from the event that begins the turn: that may be a preview of
    /// what the log will never have, and the log alone has to give the same name.
    fn speaker_id(&mut self, event: &Event) -> SmolStr {
        let name = format_smolstr!("{}-{}", event.run, event.author());
        let turns = self.spoke.entry(name.clone()).or_default();
        *turns += 1;
        if *turns == 1 { name } else { format_smolstr!("{name}-{turns}") }
    }

    /// Tells changes of the state. One to `null` removes the key, as it does in the thread.
    fn change_state(&mut self, delta: &Object, sink: &mut impl FnMut(AguiEvent<'_>)) {
        let mut ops: Vec<PatchOp> = Vec::new();
        let is_gone = |key: &str| delta.get(key).is_some_and(Value::is_null);
        for (key, value) in delta.iter().filter(|(key, _)| self.cast.shows(key)) {
            let path = format!("/{}", crate::patch::escape(key));
            if value.is_null() {
                ops.extend(self.state.contains_key(key).then_some(PatchOp::Remove { path }));
                continue;
            }
            match self.state.get(key) {
                Some(old) => ops.extend(diff(old, value, &path)),
                None => ops.push(PatchOp::Add { path, value: value.clone() }),
            }
            self.state.insert(key.clone(), value.clone());
        }
        if ops.iter().any(|op| matches!(op, PatchOp::Remove { .. })) {
            // All at once: what is behind a key that goes moves up each time.
            let cast = &self.cast;
            self.state.retain(|key, _| !(is_gone(key) && cast.shows(key)));
        }
        if !ops.is_empty() {
            self.state_changed = true;
            sink(EventKind::StateDelta { delta: Cow::Owned(ops) }.into());
        }
    }

    fn note_usage(&mut self, event: &Event) {
        if let Some(meta) = &event.meta
            && let Some(used) = &meta.usage_metadata
        {
            self.add_usage(meta.model_version.as_deref(), used);
        }
        for used in event.actions.iter().flat_map(|actions| &actions.called_usage) {
            self.add_usage(used.model.as_deref(), &used.usage);
        }
    }

    fn add_usage(&mut self, model: Option<&str>, used: &Usage) {
        let place = self.usage.iter().position(|usage| usage.model.as_deref() == model);
        let place = place.unwrap_or_else(|| {
            self.usage.push(TokenUsage { model: model.map(SmolStr::new), ..TokenUsage::default() });
            self.usage.len() - 1
        });
        if let Some(usage) = self.usage.get_mut(place) {
            usage.add(used);
        }
    }
}

/// Whether a branch is another one or part of it.
fn is_within(branch: &str, other: &str) -> bool {
    let rest = branch.strip_prefix(other);
    rest.is_some_and(|rest| rest.is_empty() || other.is_empty() || rest.starts_with('.'))
}

fn finish_speaker(speaker: &Speaker, outcome: Option<SubagentOutcome>, sink: &mut impl FnMut(AguiEvent<'_>)) {
    let id = Cow::Borrowed(speaker.id.as_str());
    sink(EventKind::SubagentFinished { subagent_run_id: id, result: None, outcome }.into());
    if speaker.is_step {
        let step_name = Cow::Borrowed(speaker.source.author.as_str());
        sink(EventKind::StepFinished { step_name }.into());
    }
}
