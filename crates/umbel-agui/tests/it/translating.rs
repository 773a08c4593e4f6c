//! What other middlewares got wrong between an agent's events and a front end, one kind of mistake after the other: text
//! that is begun and not ended or said twice, models that stream what they said so far, empty last words, text beside
//! calls, doubled thoughts, structured answers in the chat, arguments in pieces, results without a summary, the order of
//! foretold state, escaping of paths, and conversations that differ from what was streamed.

use std::sync::Arc;

use serde_json::{Value, json};
use umbel_agui::{AguiEvent, Cast, Conversation, Ending, Guard, Member, Message, Prediction, Translator};
use umbel_core::{
    Content, Event, EventId, FunctionCall, FunctionResponse, Object, Part, PartialArg, Role, RunId, Source,
};

/// A front end: what it is told, and what it makes of it.
struct Page {
    translator: Translator,
    guard: Guard,
    told: Vec<Value>,
    fold: Conversation,
    log: Vec<Arc<Event>>,
    cast: Arc<Cast>,
}

impl Page {
    fn new(cast: Cast) -> Self {
        let cast = Arc::new(Cast { root: "root".into(), ..cast });
        let translator = Translator::new(cast.clone(), "t", "r", true);
        let mut page = Self {
            translator,
            guard: Guard::new(),
            told: Vec::new(),
            fold: Conversation::default(),
            log: Vec::new(),
            cast,
        };
        page.tell(|translator, mut sink| translator.begin(None, None, Object::new(), Vec::new(), &mut sink));
        page
    }

    fn tell(&mut self, work: impl FnOnce(&mut Translator, &mut dyn FnMut(AguiEvent<'_>))) {
        let Self { translator, guard, told, fold, .. } = self;
        work(translator, &mut |event| {
            guard
                .pass(&event, &mut |event| {
                    umbel_agui::testing::record(event).unwrap();
                    told.push(serde_json::to_value(event).unwrap());
                    fold.apply(event);
                })
                .unwrap();
        });
    }

    /// An event of the run, and what is due after it.
    #[expect(clippy::needless_pass_by_value, reason = "reads better")]
    fn hear(&mut self, event: Event) {
        if !event.is_partial() {
            self.log.push(Arc::new(event.clone()));
        }
        self.tell(|translator, mut sink| translator.event(&event, &mut sink));
        self.correct();
    }

    fn correct(&mut self) {
        if self.translator.owes_messages() {
            let messages = self.logged();
            self.tell(|translator, mut sink| translator.messages(&messages, &mut sink));
        }
    }

    /// The conversation as the log has it.
    fn logged(&self) -> Vec<Message> {
        umbel_agui::messages(&self.cast, &self.log, true)
    }

    /// Ends the run. Nothing had to be repaired, and the page has what the log has.
    fn end(mut self) -> Told {
        self.tell(|translator, mut sink| translator.wind_up(&Ending::Finished, &mut sink));
        self.correct();
        self.tell(|translator, mut sink| translator.end(&Ending::Finished, &mut sink));
        assert_eq!(self.guard.repairs(), 0, "the order was right by itself: {:#?}", self.told);
        assert!(self.fold.messages().eq(&self.logged()), "what was streamed is what the log has");
        Told(self.told)
    }
}

struct Told(Vec<Value>);

impl Told {
    fn kinds(&self) -> Vec<&str> {
        self.0.iter().map(|event| event["type"].as_str().unwrap()).collect()
    }

    fn of(&self, kind: &str) -> Vec<&Value> {
        self.0.iter().filter(|event| event["type"] == kind).collect()
    }

    fn deltas(&self, kind: &str) -> Vec<&str> {
        self.of(kind).iter().map(|event| event["delta"].as_str().unwrap()).collect()
    }
}

fn event(id: &str, author: &str, parts: impl IntoIterator<Item = Part>) -> Event {
    let content = Content::new(Role::Model, parts);
    let mut event = Event::new(RunId::from("run"), Arc::new(Source::new(author))).with_content(content);
    event.id = EventId::from(id);
    event
}

fn whole(id: &str, parts: impl IntoIterator<Item = Part>) -> Event {
    event(id, "root", parts)
}

fn partial(id: &str, part: Part) -> Event {
    Event { partial: Some(true), ..event(id, "root", [part]) }
}

#[expect(clippy::needless_pass_by_value, reason = "reads better")]
fn call(id: &str, name: &str, args: Value) -> Part {
    Part::call(FunctionCall::new(name, args.as_object().cloned().unwrap()).with_id(id))
}

#[expect(clippy::needless_pass_by_value, reason = "reads better")]
fn result(id: &str, name: &str, value: Value) -> Part {
    Part::response(FunctionResponse::new(Some(id.into()), name, value.as_object().cloned().unwrap()))
}

fn text(text: &str) -> Part {
    Part::text(text)
}

#[test]
fn streamed_text_is_begun_once_ended_once_and_not_said_again() {
    let mut page = Page::new(Cast::default());
    for piece in ["Hel", "lo ", "you"] {
        page.hear(partial("e1", text(piece)));
    }
    page.hear(whole("e1", [text("Hello you")]));
    let told = page.end();
    assert_eq!(
        told.kinds(),
        [
            "RUN_STARTED",
            "TEXT_MESSAGE_START",
            "TEXT_MESSAGE_CONTENT",
            "TEXT_MESSAGE_CONTENT",
            "TEXT_MESSAGE_CONTENT",
            "TEXT_MESSAGE_END",
            "RUN_FINISHED"
        ]
    );
    assert_eq!(told.deltas("TEXT_MESSAGE_CONTENT"), ["Hel", "lo ", "you"]);
}

#[test]
fn text_that_comes_whole_is_one_message() {
    let mut page = Page::new(Cast::default());
    page.hear(whole("e1", [text("Hello you")]));
    let told = page.end();
    assert_eq!(
        told.kinds(),
        ["RUN_STARTED", "TEXT_MESSAGE_START", "TEXT_MESSAGE_CONTENT", "TEXT_MESSAGE_END", "RUN_FINISHED"]
    );
}

#[test]
fn what_the_whole_has_more_than_the_preview_is_said_behind_it() {
    let mut page = Page::new(Cast::default());
    page.hear(partial("e1", text("Hello")));
    page.hear(whole("e1", [text("Hello you")]));
    assert_eq!(page.end().deltas("TEXT_MESSAGE_CONTENT"), ["Hello", " you"]);
}

#[test]
fn a_model_that_streams_all_it_said_so_far_is_corrected_and_leaves_no_double_text() {
    let mut page = Page::new(Cast::default());
    for piece in ["Hel", "Hello", "Hello you"] {
        page.hear(partial("e1", text(piece)));
    }
    page.hear(whole("e1", [text("Hello you")]));
    let told = page.end();
    let snapshot = told.of("MESSAGES_SNAPSHOT");
    assert_eq!(snapshot.len(), 1);
    assert_eq!(snapshot[0]["messages"], json!([{"id": "e1", "role": "assistant", "content": "Hello you"}]));
}

#[test]
fn what_a_handler_made_of_the_answer_takes_the_place_of_what_was_previewed() {
    for (said, became) in [("My number is 123", "My number is [hidden]"), ("Too long", "Too"), ("Gone", "")] {
        let mut page = Page::new(Cast::default());
        page.hear(partial("e1", text(said)));
        page.hear(whole("e1", if became.is_empty() { vec![] } else { vec![text(became)] }));
        let told = page.end();
        let last = told.of("MESSAGES_SNAPSHOT");
        assert_eq!(last.len(), 1, "{said}");
        assert!(!last[0].to_string().contains(&format!("\"{said}\"")), "{said}");
    }
}

#[test]
fn thoughts_that_come_again_in_the_whole_are_one_message() {
    let mut page = Page::new(Cast::default());
    page.hear(partial("e1", Part::thought("I ")));
    page.hear(partial("e1", Part::thought("think")));
    page.hear(partial("e1", text("Yes")));
    page.hear(whole("e1", [Part::thought("I think"), text("Yes")]));
    let told = page.end();
    assert_eq!(
        told.kinds()[1..],
        [
            "REASONING_START",
            "REASONING_MESSAGE_START",
            "REASONING_MESSAGE_CONTENT",
            "REASONING_MESSAGE_CONTENT",
            "REASONING_MESSAGE_END",
            "REASONING_END",
            "TEXT_MESSAGE_START",
            "TEXT_MESSAGE_CONTENT",
            "TEXT_MESSAGE_END",
            "RUN_FINISHED"
        ]
    );
    assert_eq!(told.deltas("REASONING_MESSAGE_CONTENT"), ["I ", "think"]);
}

#[test]
fn a_last_word_without_words_begins_no_message_and_ends_the_one_that_is_open() {
    let mut page = Page::new(Cast::default());
    page.hear(whole("e0", [text("")]));
    page.hear(whole("e1", []));
    assert_eq!(page.end().kinds(), ["RUN_STARTED", "RUN_FINISHED"]);
}

#[test]
fn a_run_with_nothing_to_do_begins_and_ends() {
    let told = Page::new(Cast::default()).end();
    assert_eq!(told.kinds(), ["RUN_STARTED", "RUN_FINISHED"]);
    assert_eq!(told.0[1]["outcome"], json!({"type": "success"}));
}

#[test]
fn text_stands_before_the_calls_of_the_same_message_streamed_or_not() {
    for streamed in [true, false] {
        let mut page = Page::new(Cast::default());
        if streamed {
            page.hear(partial("e1", text("Let me see")));
        }
        page.hear(whole(
            "e1",
            [text("Let me see"), call("c1", "look", json!({"at": 1})), call("c2", "look", json!({}))],
        ));
        page.hear(whole(
            "e2",
            [result("c1", "look", json!({"result": "a"})), result("c2", "look", json!({"x": 1}))],
        ));
        let told = page.end();
        assert_eq!(
            told.kinds()[1..],
            [
                "TEXT_MESSAGE_START",
                "TEXT_MESSAGE_CONTENT",
                "TEXT_MESSAGE_END",
                "TOOL_CALL_START",
                "TOOL_CALL_ARGS",
                "TOOL_CALL_END",
                "TOOL_CALL_START",
                "TOOL_CALL_ARGS",
                "TOOL_CALL_END",
                "TOOL_CALL_RESULT",
                "TOOL_CALL_RESULT",
                "RUN_FINISHED"
            ],
            "streamed: {streamed}"
        );
        assert_eq!(told.deltas("TOOL_CALL_ARGS"), ["{\"at\":1}", "{}"]);
        assert!(told.of("TOOL_CALL_START").iter().all(|start| start["parentMessageId"] == "e1"));
        let results: Vec<_> =
            told.of("TOOL_CALL_RESULT").iter().map(|one| one["content"].as_str().unwrap()).collect();
        assert_eq!(results, ["a", "{\"x\":1}"]);
    }
}

#[test]
fn a_structured_answer_of_an_inner_agent_is_not_shown_and_its_calls_are() {
    let inner = Member { name: "parser".into(), is_silent: true, ..Member::default() };
    let mut page = Page::new(Cast { others: vec![inner], ..Cast::default() });
    page.hear(Event { partial: Some(true), ..event("e1", "parser", [text("{\"a\":")]) });
    page.hear(event("e1", "parser", [text("{\"a\":1}"), call("c1", "look", json!({}))]));
    page.hear(event("e2", "parser", [call("c2", "set_model_response", json!({"a": 1}))]));
    page.hear(event("e3", "parser", [result("c2", "set_model_response", json!({"ok": true}))]));
    page.hear(whole("e4", [text("All done")]));
    let told = page.end();
    assert_eq!(told.deltas("TEXT_MESSAGE_CONTENT"), ["All done"]);
    assert_eq!(told.of("TOOL_CALL_START").len(), 1, "how it answers is of no interest");
    assert_eq!(told.of("TOOL_CALL_RESULT").len(), 0);
}

#[test]
fn the_structured_answer_of_the_agent_at_the_top_is_the_result_of_the_run() {
    let mut page = Page::new(Cast { is_silent: true, ..Cast::default() });
    page.hear(partial("e1", text("{\"a\":")));
    page.hear(whole("e1", [text("{\"a\":1}")]));
    let told = page.end();
    assert_eq!(told.kinds(), ["RUN_STARTED", "RUN_FINISHED"]);
    assert_eq!(told.0[1]["result"], json!({"a": 1}));
}

fn piece(id: &str, path: &str, value: &str, more: bool) -> Event {
    let arg = PartialArg {
        json_path: Some(path.to_owned()),
        string_value: Some(value.to_owned()),
        ..PartialArg::default()
    };
    let call = FunctionCall {
        partial_args: Some(vec![arg]),
        will_continue: Some(more),
        ..FunctionCall::new("write", Object::new()).with_id("c1")
    };
    partial(id, Part::call(FunctionCall { args: None, ..call }))
}

#[test]
fn arguments_in_pieces_are_together_the_arguments() {
    let mut page = Page::new(Cast::default());
    page.hear(piece("e1", "$.text", "Once ", true));
    page.hear(piece("e1", "$.text", "upon \"a\" time", true));
    page.hear(whole("e1", [call("c1", "write", json!({"text": "Once upon \"a\" time", "pages": [1, 2]}))]));
    let told = page.end();
    let args: Value = serde_json::from_str(&told.deltas("TOOL_CALL_ARGS").concat()).unwrap();
    assert_eq!(args, json!({"text": "Once upon \"a\" time", "pages": [1, 2]}));
    assert_eq!(
        (told.of("TOOL_CALL_START").len(), told.of("TOOL_CALL_END").len()),
        (1, 1),
        "one call, one id"
    );
}

#[test]
fn arguments_that_became_others_are_corrected() {
    let mut page = Page::new(Cast::default());
    page.hear(piece("e1", "$.text", "draft", true));
    page.hear(whole("e1", [call("c1", "write", json!({"text": "final"}))]));
    let told = page.end();
    let snapshot = told.of("MESSAGES_SNAPSHOT");
    assert_eq!(snapshot[0]["messages"][0]["toolCalls"][0]["function"]["arguments"], "{\"text\":\"final\"}");
}

#[test]
fn a_call_that_was_previewed_and_never_made_is_ended_and_taken_back() {
    let mut page = Page::new(Cast::default());
    page.hear(piece("e1", "$.text", "draft", true));
    page.hear(whole("e1", [text("I will not")]));
    let told = page.end();
    assert_eq!((told.of("TOOL_CALL_START").len(), told.of("TOOL_CALL_END").len()), (1, 1));
    assert_eq!(
        told.of("MESSAGES_SNAPSHOT")[0]["messages"],
        json!([{"id": "e1", "role": "assistant", "content": "I will not"}])
    );
}

#[test]
fn state_is_foretold_before_its_call_begins_and_once() {
    let prediction =
        Prediction { state_key: "document".into(), tool: "write".into(), argument: "text".into() };
    for streamed in [true, false] {
        let mut page = Page::new(Cast { predictions: vec![prediction.clone()], ..Cast::default() });
        if streamed {
            page.hear(piece("e1", "$.text", "Once ", true));
        }
        page.hear(whole(
            "e1",
            [call("c1", "write", json!({"text": "Once upon"})), call("c2", "other", json!({}))],
        ));
        let told = page.end();
        let kinds = told.kinds();
        let custom = kinds.iter().position(|kind| *kind == "CUSTOM").unwrap();
        assert_eq!(
            (kinds[custom + 1], told.of("CUSTOM").len()),
            ("TOOL_CALL_START", 1),
            "streamed: {streamed}"
        );
        let value = json!([{"state_key": "document", "tool": "write", "tool_argument": "text"}]);
        assert_eq!((&told.0[custom]["name"], &told.0[custom]["value"]), (&json!("PredictState"), &value));
    }
}

#[test]
fn a_result_that_nobody_sums_up_is_told() {
    let mut page = Page::new(Cast::default());
    page.hear(whole("e1", [call("c1", "look", json!({}))]));
    let mut direct = whole("e2", [result("c1", "look", json!({"result": "as it is"}))]);
    direct.actions_mut().skip_summarization = Some(true);
    page.hear(direct);
    let told = page.end();
    assert_eq!(told.of("TOOL_CALL_RESULT")[0]["content"], "as it is");
    assert_eq!(told.kinds().last(), Some(&"RUN_FINISHED"));
}

#[test]
fn results_of_any_form_are_told_as_text() {
    for (given, shown) in [
        (json!({"result": "plain"}), "plain"),
        (json!({"result": ""}), ""),
        (json!({"result": null}), "null"),
        (json!({"result": [1, {"a": 2}]}), "[1,{\"a\":2}]"),
        (json!({}), "{}"),
        (json!({"error": "it broke"}), "{\"error\":\"it broke\"}"),
        (json!({"result": "a", "more": 1}), "{\"result\":\"a\",\"more\":1}"),
    ] {
        let mut page = Page::new(Cast::default());
        page.hear(whole("e1", [call("c1", "look", json!({}))]));
        page.hear(whole("e2", [result("c1", "look", given.clone())]));
        assert_eq!(page.end().of("TOOL_CALL_RESULT")[0]["content"], shown, "{given}");
    }
}

#[test]
fn changes_of_state_name_their_keys_in_the_protocol_s_way_and_hide_what_is_not_the_client_s() {
    let mut page = Page::new(Cast::default());
    let mut change = whole("e1", []);
    let delta = json!({"a/b": 1, "m~n": 2, "": 3, "temp:x": 4, "app:y": 5, "user:z": 6, "_umbel:w": 7});
    change.actions_mut().state_delta = delta.as_object().cloned();
    page.hear(change);
    let told = page.end();
    let paths: Vec<&str> = told.of("STATE_DELTA")[0]["delta"]
        .as_array()
        .unwrap()
        .iter()
        .map(|op| op["path"].as_str().unwrap())
        .collect();
    assert_eq!(paths, ["/a~1b", "/m~0n", "/"]);
    assert_eq!(told.of("STATE_SNAPSHOT")[0]["snapshot"], json!({"a/b": 1, "m~n": 2, "": 3}));
}

#[test]
fn two_agents_that_speak_at_once_keep_their_messages_apart() {
    let others =
        ["left", "right"].map(|name| Member { name: name.into(), is_step: true, ..Member::default() });
    let mut page = Page::new(Cast { others: others.into(), ..Cast::default() });
    let branch = |id: &str, name: &str, words: &str, partial: bool| {
        let mut event = event(id, name, [text(words)]);
        event.source = Arc::new(Source { branch: Some(format!("both.{name}").into()), ..Source::new(name) });
        Event { partial: partial.then_some(true), ..event }
    };
    page.hear(branch("l", "left", "From ", true));
    page.hear(branch("r", "right", "And ", true));
    page.hear(branch("l", "left", "From the left", false));
    page.hear(branch("r", "right", "And the right", false));
    page.hear(whole("e", [text("Both")]));
    let told = page.end();
    assert_eq!(told.of("SUBAGENT_STARTED").len(), 2);
    let owner = |id: &str| {
        told.of("TEXT_MESSAGE_START").iter().find(|one| one["messageId"] == id).unwrap()["subagentRunId"]
            .clone()
    };
    assert_ne!(owner("l"), owner("r"));
    assert_eq!(owner("e"), Value::Null);
}

#[test]
fn what_the_user_said_is_not_said_back() {
    let mut page = Page::new(Cast::default());
    let mut said = Event::new(RunId::from("run"), Source::user())
        .with_content(Content::new(Role::User, [text("hello")]));
    said.id = EventId::from("u1");
    page.tell(|translator, mut sink| translator.event(&said, &mut sink));
    assert_eq!(page.end().kinds(), ["RUN_STARTED", "RUN_FINISHED"]);
}

fn part(form: Value) -> Part {
    serde_json::from_value(form).unwrap()
}

/// The calls and results that a front end was told, and nothing else.
fn code_told(told: &Told) -> Vec<(String, String, String)> {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let told = told.0.iter().filter_map(|event| match event["type"].as_str()? {
        "TOOL_CALL_START" => Some(("call", &event["toolCallId"], text(&event["toolCallName"]))),
        "TOOL_CALL_ARGS" => Some(("args", &event["toolCallId"], text(&event["delta"]))),
        "TOOL_CALL_RESULT" => Some(("result", &event["toolCallId"], text(&event["content"]))),
        _ => None,
    });
    told.map(|(kind, id, text_of)| (kind.to_owned(), text(id), text_of)).collect()
}

fn expected(all: &[(&str, &str, &str)]) -> Vec<(String, String, String)> {
    all.iter().map(|(a, b, c)| ((*a).to_owned(), (*b).to_owned(), (*c).to_owned())).collect()
}

#[test]
fn code_and_its_result_are_a_call_and_its_result() {
    let mut page = Page::new(Cast::default());
    page.hear(whole(
        "e1",
        [text("See: "), part(json!({"executableCode": {"id": "adk-1", "code": "print(1)"}}))],
    ));
    page.hear(whole(
        "e2",
        [part(json!({"codeExecutionResult": {"id": "adk-1", "outcome": "OUTCOME_OK", "output": "1"}}))],
    ));
    page.hear(whole("e3", [text("It is 1.")]));
    assert_eq!(page.fold.messages().count(), 3, "the words with the call, the result, the answer");
    let told = page.end();
    let args = r#"{"code":"print(1)"}"#;
    assert_eq!(
        code_told(&told),
        expected(&[("call", "adk-1", "run_code"), ("args", "adk-1", args), ("result", "adk-1", "1")])
    );
    assert_eq!(told.of("TOOL_CALL_RESULT")[0]["messageId"], "e2:0");
}

#[test]
fn code_that_a_model_ran_itself_is_told_the_same_way() {
    let mut page = Page::new(Cast::default());
    let ran = || part(json!({"executableCode": {"code": "print(1)"}}));
    let gave = |output: &str| part(json!({"codeExecutionResult": {"output": output}}));
    page.hear(whole("e1", [ran(), gave("1"), text("and"), ran(), gave("2")]));
    // Logs of others tell the result in an event of its own, and not whose it is.
    page.hear(whole("e2", [ran()]));
    page.hear(whole("e3", [gave("3")]));
    // What belongs to nothing cannot be told.
    page.hear(whole("e4", [gave("4")]));
    let told = page.end();
    let results: Vec<_> = code_told(&told).into_iter().filter(|(kind, ..)| kind == "result").collect();
    let all = [("result", "e1:code:0", "1"), ("result", "e1:code:3", "2"), ("result", "e2:code:0", "3")];
    assert_eq!(results, expected(&all));
}

#[test]
fn words_that_turn_out_to_be_code_are_taken_back() {
    let mut page = Page::new(Cast::default());
    for piece in ["See: ", "```python\nprint(1)\n```", " It is 2."] {
        page.hear(partial("e1", text(piece)));
    }
    page.hear(whole(
        "e1",
        [text("See: "), part(json!({"executableCode": {"id": "adk-1", "code": "print(1)"}}))],
    ));
    page.hear(whole("e2", [part(json!({"codeExecutionResult": {"id": "adk-1", "output": "1"}}))]));
    let Some(Message::Assistant(said)) = page.fold.messages().next() else { panic!("{:?}", page.fold) };
    assert_eq!((said.content.as_deref(), said.tool_calls.len()), (Some("See: "), 1));
    page.end();
}
