//! Traces as the times in a log tell them: coarser than recorded ones, and without handlers.

use std::collections::HashMap;
use std::sync::Arc;

use smol_str::{SmolStr, format_smolstr};
use umbel_core::{
    AgentKind, AgentTree, BoxFuture, CallId, Event, LogEntry, Mode, NodeId, Outcome, RunId, RunStep,
    SessionKey, Versions,
};

use super::{Kind, Session, Span, append};
use crate::problem::Problem;

impl Session<'_> {
    /// What the log tells of a run, or of all runs, agents that were called as tools included.
    pub(super) fn spans<'a>(&'a self, run: Option<&'a RunId>) -> BoxFuture<'a, Result<Vec<Span>, Problem>> {
        Box::pin(async move {
            let Some(news) = self.sessions.news(&self.key, Versions::default()).await? else {
                return Ok(Vec::new());
            };
            let mut telling = Telling::new(self.tree);
            for entry in &news.entries {
                telling.take(entry, run);
            }
            telling.end_run();
            let Telling { mut spans, called, .. } = telling;
            for Called { span, by, tool, session } in called {
                let plan = self.tree.node(by)?.agent.plan();
                let Some(agent) = plan.tools.get(&tool).and_then(|meta| meta.tool.agent()) else { continue };
                let (tree, id) = (AgentTree::new(agent)?, format!("{}/{session}", self.key.id()));
                let key = SessionKey::new(self.key.app(), self.key.user(), id)?;
                let inside = Session { sessions: self.sessions, key, tree: &tree }.spans(None).await?;
                append(&mut spans, inside, Some(span));
            }
            // A run that works for a call is part of that call.
            if run.is_none() {
                spans = without_runs(spans);
            }
            Ok(spans)
        })
    }
}

/// The same without the runs themselves: what is part of one is part of what that is part of.
fn without_runs(spans: Vec<Span>) -> Vec<Span> {
    let (mut kept, mut places) = (Vec::new(), Vec::new());
    for mut span in spans {
        let parent = span.parent.and_then(|parent| places.get(parent).copied().flatten());
        span.parent = parent;
        places.push(if span.kind == Kind::Run { parent } else { Some(kept.len()) });
        if span.kind != Kind::Run {
            kept.push(span);
        }
    }
    kept
}

/// A call of a tool, and the name of the session that works for it if an agent does.
struct Called {
    span: usize,
    by: NodeId,
    tool: SmolStr,
    session: SmolStr,
}

/// Where an event comes from: its branch, and the call that it works for.
type Way = (Option<SmolStr>, Option<SmolStr>);

/// An agent that speaks.
struct Speaker {
    node: Option<NodeId>,
    name: SmolStr,
    way: Way,
    span: usize,
}

/// The runs of a log, told one after the other.
struct Telling<'a> {
    tree: &'a AgentTree,
    spans: Vec<Span>,
    called: Vec<Called>,
    /// The run that is told.
    run: Option<RunId>,
    root: usize,
    ended: Option<Outcome>,
    speakers: Vec<Speaker>,
    /// When something last happened on a way.
    last: Vec<(Way, f64)>,
    calls: HashMap<CallId, usize>,
}

impl<'a> Telling<'a> {
    fn new(tree: &'a AgentTree) -> Self {
        Self {
            tree,
            spans: Vec::new(),
            called: Vec::new(),
            run: None,
            root: 0,
            ended: None,
            speakers: Vec::new(),
            last: Vec::new(),
            calls: HashMap::new(),
        }
    }

    /// Takes an entry in, if it is of the run that is asked for.
    fn take(&mut self, entry: &LogEntry, wanted: Option<&RunId>) {
        match entry {
            LogEntry::Event(event) => {
                if self.run.as_ref() != Some(&event.run) {
                    self.end_run();
                    if wanted.is_some_and(|wanted| *wanted != event.run) {
                        return;
                    }
                    self.begin_run(event);
                }
                self.event(event);
            }
            // A record belongs to the run of the event before it.
            LogEntry::Record(step) => {
                if let (RunStep::Ended { outcome }, Some(_)) = (&**step, &self.run) {
                    self.ended = Some(outcome.clone());
                }
            }
        }
    }

    fn begin_run(&mut self, event: &Event) {
        self.run = Some(event.run.clone());
        self.root = self.spans.len();
        self.spans.push(Span { end: Some(event.timestamp), ..Span::new(Kind::Run, "", event.timestamp) });
        self.last = vec![((None, None), event.timestamp)];
    }

    /// What is still open when nothing more is told of a run: it is over, or under way.
    fn end_run(&mut self) {
        if self.run.take().is_none() {
            return;
        }
        let speaking: Vec<usize> = self.speakers.drain(..).map(|speaker| speaker.span).collect();
        let root_end = self.spans.get(self.root).and_then(|root| root.end);
        let is_over = self.ended.is_some();
        for (index, span) in self.spans.iter_mut().enumerate().skip(self.root) {
            match span.kind {
                Kind::Tool if is_over && span.end.is_none() => span.end = root_end,
                Kind::Run | Kind::Agent if !is_over && (index == self.root || speaking.contains(&index)) => {
                    span.end = None;
                }
                _ => {}
            }
        }
        if let (Some(Outcome::Failed { failure }), Some(root)) =
            (self.ended.take(), self.spans.get_mut(self.root))
        {
            root.error = Some(failure.code.clone());
        }
        self.calls.clear();
    }

    fn event(&mut self, event: &Arc<Event>) {
        let time = event.timestamp;
        let way: Way = (event.source.branch.clone(), event.source.isolation_scope.clone());
        if event.is_user() {
            self.touch(self.root, &way, time);
            return;
        }
        let before = self.before(&way);
        let node = self.tree.find(event.author());
        let agent = self.speaker(node, event.author(), &way);
        for id in event.answered() {
            if let Some(span) = self.calls.get(id).and_then(|index| self.spans.get_mut(*index)) {
                span.end = Some(time);
            }
        }
        let kind = node.and_then(|id| self.tree.node(id).ok()).map(|node| node.agent.kind());
        if event.is_answer() && kind == Some(AgentKind::Llm) {
            self.model_call(event, agent, before);
        }
        for call in event.calls().cloned().chain(event.code_call()) {
            let mut span = Span { parent: Some(agent), ..Span::new(Kind::Tool, call.name.clone(), time) };
            if let Some(id) = &call.id {
                span.set("callId", id.as_str());
                self.calls.insert(id.clone(), self.spans.len());
            }
            if let (Some(by), Some(id)) = (node, &call.id) {
                let session = format_smolstr!("{}.{id}", event.id);
                let (span, tool) = (self.spans.len(), call.name.clone());
                self.called.push(Called { span, by, tool, session });
            }
            self.spans.push(span);
        }
        self.touch(agent, &way, time);
    }

    /// A model was asked when the agent last heard something, and answered with this.
    fn model_call(&mut self, event: &Event, agent: usize, before: f64) {
        let meta = event.meta.as_deref();
        let model = meta.and_then(|meta| meta.model_version.clone());
        let name = model.clone().unwrap_or_else(|| self.model_of(event.author()));
        let mut span = Span {
            parent: Some(agent),
            end: Some(event.timestamp),
            usage: meta.and_then(|meta| meta.usage_metadata.clone()),
            event: Some(event.id.as_str().into()),
            error: meta.and_then(|meta| meta.error_code.clone()),
            model,
            ..Span::new(Kind::Model, name, before)
        };
        span.set("agent", event.author());
        if let Some(reason) = meta.and_then(|meta| meta.finish_reason.as_deref()) {
            span.set("finishReason", reason);
        }
        self.spans.push(span);
    }

    /// The model that an agent has now, or one above it.
    fn model_of(&self, name: &str) -> SmolStr {
        let mut next = self.tree.find(name);
        while let Some(node) = next.and_then(|id| self.tree.node(id).ok()) {
            if let Some(model) = node.agent.model() {
                return model.name().into();
            }
            next = node.parent;
        }
        SmolStr::new_static("model")
    }

    /// The span of an agent that speaks on a way. One that spoke there before it is done.
    fn speaker(&mut self, node: Option<NodeId>, name: &str, way: &Way) -> usize {
        let parent = self.above(node, way);
        let parent_of = |spans: &[Span], index: usize| spans.get(index).and_then(|span| span.parent);
        let is_beside = |spans: &[Span], speaker: &Speaker| {
            speaker.way == *way && parent_of(spans, speaker.span) == Some(parent)
        };
        let beside = self.speakers.iter().find(|speaker| is_beside(&self.spans, speaker));
        if let Some(same) = beside.filter(|speaker| speaker.node == node && speaker.name == name) {
            return same.span;
        }
        let spans = &self.spans;
        self.speakers.retain(|speaker| !is_beside(spans, speaker));
        let span = self.spans.len();
        let start = self.before(way);
        let mut new = Span { parent: Some(parent), end: Some(start), ..Span::new(Kind::Agent, name, start) };
        if let Some(branch) = &way.0 {
            new.set("branch", branch.as_str());
        }
        self.spans.push(new);
        self.speakers.push(Speaker { node, name: name.into(), way: way.clone(), span });
        span
    }

    /// What an agent's turn is part of: the call that it works for, the workflow that runs it, or the run. Who hands over is
    /// done, so that the next one stands beside it.
    fn above(&mut self, node: Option<NodeId>, way: &Way) -> usize {
        let Some(node) = node.and_then(|id| self.tree.node(id).ok()) else { return self.root };
        let parent = node.parent.and_then(|id| Some((id, self.tree.node(id).ok()?)));
        let Some((id, parent)) = parent else { return self.root };
        let call = way.1.as_ref().and_then(|call| self.calls.get(call.as_str())).copied();
        match (parent.agent.kind(), call) {
            (AgentKind::Llm, Some(call)) if node.agent.transfer().mode != Mode::Chat => call,
            (AgentKind::Llm, _) => self.above(Some(id), way),
            (kind, _) => {
                let own = format_smolstr!("{}.{}", parent.agent.name(), node.agent.name());
                let branch = way.0.as_ref().filter(|_| kind == AgentKind::Parallel);
                let outer = branch.and_then(|branch| branch.strip_suffix(own.as_str()));
                let outer = match outer {
                    Some(outer) => Some(outer.trim_end_matches('.')).filter(|outer| !outer.is_empty()),
                    None => way.0.as_deref(),
                };
                let way = (outer.map(SmolStr::new), way.1.clone());
                let name = parent.source.author.clone();
                self.speaker(Some(id), &name, &way)
            }
        }
    }

    /// When something last happened that an agent on this way knows of.
    fn before(&self, way: &Way) -> f64 {
        let is_above = |(branch, call): &Way| {
            let is_around = match (branch, &way.0) {
                (None, _) => true,
                (Some(outer), Some(inner)) => inner
                    .strip_prefix(outer.as_str())
                    .is_some_and(|rest| rest.is_empty() || rest.starts_with('.')),
                (Some(_), None) => false,
            };
            is_around && (call.is_none() || *call == way.1)
        };
        let known = self.last.iter().filter(|(known, _)| is_above(known));
        known.map(|(_, time)| *time).fold(f64::NEG_INFINITY, f64::max)
    }

    /// Notes that something happened: to an agent, and to all that it is part of.
    fn touch(&mut self, index: usize, way: &Way, time: f64) {
        let mut next = Some(index);
        while let Some(span) = next.and_then(|index| self.spans.get_mut(index)) {
            if span.kind != Kind::Tool {
                span.end = Some(span.end.map_or(time, |end| end.max(time)));
            }
            next = span.parent;
        }
        match self.last.iter_mut().find(|(known, _)| known == way) {
            Some((_, last)) => *last = time,
            None => self.last.push((way.clone(), time)),
        }
    }
}
