//! What is for one request only.

use std::sync::Arc;

use umbel_core::{
    CallId, Content, ContentsView, Event, FileData, FunctionCall, History, List, Object, Part, Payload, Role,
    RunId, Source,
};

use crate::contents::{build, place};

#[test]
fn context_goes_before_what_the_user_said_last_and_instructions_before_the_turn() {
    let said = Arc::new(Content::user("hi"));
    let [answer, context, rule] =
        [Content::model("yes"), Content::user("note"), Content::user("rule")].map(Arc::new);
    let placed = |before: &[&Arc<Content>], input: Option<&Arc<Content>>| {
        let mut history: History = before.iter().map(|content| (*content).clone()).collect();
        place(&mut history, std::slice::from_ref(&context), input, std::slice::from_ref(&rule));
        history.iter().map(|content| content.text()).collect::<Vec<_>>()
    };
    assert_eq!(placed(&[&said, &answer, &said], Some(&said)), ["hi", "yes", "rule", "note", "hi"]);
    assert_eq!(placed(&[&said, &answer], None), ["note", "hi", "yes", "rule"]);
    assert_eq!(placed(&[], Some(&said)), ["rule", "note"]);
}

#[test]
fn a_view_leaves_out_what_its_model_is_not_to_see() {
    let file = FileData { display_name: Some("a picture".into()), ..FileData::default() };
    let mut call = FunctionCall::new("look", Object::new());
    call.id = Some(CallId::from("adk-1"));
    let parts = [Part::thought("hm"), Part::new(Payload::FileData(Box::new(file))), Part::call(call)];
    let mut event = Event::new(RunId::from("r"), Arc::new(Source::new("alpha")))
        .with_content(Content::new(Role::Model, parts));
    event.long_running_tool_ids = Some(Box::new(vec!["adk-1".into()]));
    let events: List<Arc<Event>> = [Arc::new(event)].into_iter().collect();
    let sent = |view: &ContentsView| {
        let content = build(view, &events, None).pop().unwrap();
        let [thought, file, call] = content.parts.as_slice() else { panic!("{content:?}") };
        let Payload::FileData(file) = &file.payload else { panic!("{file:?}") };
        (thought.is_thought(), file.display_name.is_some(), call.as_call().unwrap().id.is_some())
    };
    let view = ContentsView::new("alpha");
    assert_eq!(sent(&view), (true, true, false));
    assert_eq!(sent(&ContentsView { keep_client_ids: true, ..view.clone() }), (true, true, true));
    assert_eq!(sent(&ContentsView { plain_thoughts: true, ..view.clone() }), (false, true, false));
    assert_eq!(sent(&ContentsView { no_display_names: true, ..view }), (true, false, false));
}
