//! In ordinary logs nothing is ever built anew, so a turn costs the same however long the session is.

use std::sync::Arc;

use umbel_core::{
    Actions, Content, ContentsView, Event, FunctionCall, FunctionResponse, List, Object, Part, Role, RunId,
    Source,
};

use super::{assert_same, projection};

/// Writes a log and asks each view for its contents after every event.
struct Session {
    events: List<Arc<Event>>,
    views: Vec<super::Projection>,
    run: usize,
}

impl Session {
    fn new(views: &[ContentsView]) -> Self {
        Self { events: List::new(), views: views.iter().map(projection).collect(), run: 0 }
    }

    fn add(&mut self, author: &str, content: Content, actions: Actions) {
        let run = RunId::from(format!("r{}", self.run));
        let event =
            Event::new(run, Arc::new(Source::new(author))).with_content(content).with_actions(actions);
        self.events.push(Arc::new(event));
        for view in &mut self.views {
            assert_same(view, &self.events, None);
        }
    }

    fn says(&mut self, author: &str) {
        let said = Part::text(format!("{author} {}", self.events.len()));
        let role = if author == "user" { Role::User } else { Role::Model };
        self.run += usize::from(author == "user");
        self.add(author, Content::new(role, [said]), Actions::default());
    }

    fn uses(&mut self, author: &str, tool: &str, ids: &[Option<&str>], actions: Actions) {
        let calls = ids
            .iter()
            .map(|id| FunctionCall { id: id.map(Into::into), ..FunctionCall::new(tool, Object::new()) });
        let answers =
            ids.iter().rev().map(|id| FunctionResponse::new(id.map(Into::into), tool, Object::new()));
        self.add(author, Content::new(Role::Model, calls.map(Part::call)), Actions::default());
        self.add(author, Content::new(Role::User, answers.map(Part::response)), actions);
    }

    fn transfers(&mut self, from: &str, to: &str, id: &str) {
        let actions = Actions { transfer_to_agent: Some(to.into()), ..Actions::default() };
        self.uses(from, "transfer_to_agent", &[Some(id)], actions);
    }

    fn rebuilds(&self) -> Vec<usize> {
        self.views.iter().map(|view| view.rebuilds).collect()
    }
}

#[test]
fn words_and_tools_and_transfers_never_build_anew() {
    let mut session = Session::new(&["alpha", "beta", "gamma"].map(ContentsView::new));
    for turn in 0..20 {
        session.says("user");
        session.uses("alpha", "look", &[Some("call_1"), Some("call_2")], Actions::default());
        session.uses("alpha", "look", &[Some(&format!("adk-{turn}"))], Actions::default());
        session.uses("alpha", "book", &[None], Actions::default());
        session.says("alpha");
        session.says("user");
        session.transfers("alpha", "beta", "to-beta");
        session.uses("beta", "book", &[Some("beta_1"), None], Actions::default());
        session.transfers("beta", "alpha", "to-alpha");
        session.says("alpha");
    }
    assert_eq!(session.rebuilds(), [0, 0, 0]);
}

#[test]
fn calls_that_nobody_answered_never_build_anew() {
    let mut session = Session::new(&["alpha", "beta"].map(ContentsView::new));
    for turn in 0..20 {
        session.says("user");
        let call = FunctionCall::new("look", Object::new()).with_id(format!("c{turn}"));
        session.add("alpha", Content::model(Part::call(call)), Actions::default());
    }
    assert_eq!(session.rebuilds(), [0, 0]);
}

#[test]
fn a_late_answer_builds_anew_and_then_no_more() {
    let mut session = Session::new(&[ContentsView::new("alpha")]);
    session.says("user");
    let call = FunctionCall::new("job", Object::new()).with_id("j1");
    session.add("alpha", Content::model(Part::call(call)), Actions::default());
    session.says("alpha");
    session.says("user");
    assert_eq!(session.rebuilds(), [0]);
    let answer = FunctionResponse::new(Some("j1".into()), "job", Object::new());
    session.add("user", Content::user(Part::response(answer)), Actions::default());
    session.says("alpha");
    assert_eq!(session.rebuilds(), [2]);
    for _ in 0..20 {
        session.says("user");
        session.uses("alpha", "look", &[Some("c1")], Actions::default());
    }
    assert_eq!(session.rebuilds(), [2]);
}

#[test]
fn a_response_that_no_rule_could_place_may_yet_find_a_call_behind_it() {
    let call = |id: Option<&str>| {
        Part::call(FunctionCall { id: id.map(Into::into), ..FunctionCall::new("look", Object::new()) })
    };
    let response =
        |id: Option<&str>| Part::response(FunctionResponse::new(id.map(Into::into), "look", Object::new()));
    let mut session = Session::new(&[ContentsView::new("alpha")]);
    for parts in [
        vec![call(Some("c0"))],
        vec![response(Some("c0")), call(None)],
        vec![response(None)],
        vec![call(None)],
        vec![Part::text("done")],
    ] {
        session.add("alpha", Content::new(Role::Model, parts), Actions::default());
    }
}
