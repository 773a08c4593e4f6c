//! Conversations through the chat loop: lines in, a screen out.

use std::io::{self, Write};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt, BufReader, DuplexStream};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use umbel::{AuthConfig, Chunk, FunctionTool, LlmAgent, PlainAuth, Response, Runner, ScriptedModel};
use umbel_cli::chat::{Begin, Chat, Input, Interrupts, Reply};
use umbel_cli::screen::Screen;
use umbel_cli::style::Style;
use umbel_cli::{Offer, Ready, Setup, demo};
use umbel_stores::Stores;
use umbel_tools::{OAuth, OAuthClient};

use crate::oauth_server::{OAuthServer, PUBLIC_CLIENT};

/// What was written, to be read while the chat still writes. Presses Ctrl-C when it sees a certain word.
#[derive(Clone, Default)]
struct Paper {
    text: Arc<Mutex<Vec<u8>>>,
    stop_at: Option<(&'static str, UnboundedSender<()>)>,
}

impl Paper {
    fn text(&self) -> String {
        String::from_utf8(self.text.lock().unwrap().clone()).unwrap()
    }
}

impl Write for Paper {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.text.lock().unwrap().extend(bytes);
        if let Some((word, _)) = &self.stop_at
            && self.text().contains(word)
        {
            let (_, pressed) = self.stop_at.take().unwrap();
            pressed.send(()).unwrap();
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The guide of the demo.
fn demo_runner(pace: Option<Duration>, stores: &Stores) -> Runner {
    Offer::new("guide", Runner::builder("demo", demo::guide(pace))).runner(stores).unwrap()
}

/// A chat with that agent, into which these bytes go.
async fn begin(
    runner: Runner,
    begin: Begin<'_>,
    bytes: impl AsRef<[u8]>,
    screen: Screen<Paper>,
    interrupts: Interrupts,
) -> Chat<Paper> {
    let input = Input::lines(io::Cursor::new(bytes.as_ref().to_vec()));
    Chat::begin(Ready::new("guide", runner), "ann", begin, input, screen, interrupts).await.unwrap()
}

/// What comes out if these lines go in.
async fn talk_with(runner: Runner, lines: &str, style: Style, interactive: bool) -> String {
    let paper = Paper::default();
    let screen = Screen::new(paper.clone(), style, interactive);
    begin(runner, Begin::New, lines, screen, Interrupts::never()).await.talk().await.unwrap();
    paper.text()
}

/// An agent of the demo, on the script.
fn offered(name: &str, stores: &Stores) -> Ready {
    let setup = Setup { watched: false, model: Some("script".to_owned()) };
    let mut offers = demo::offers(&setup).unwrap().into_iter();
    offers.find(|offer| offer.name() == name).unwrap().ready(stores).unwrap()
}

/// The same through a pipe, with the demo.
async fn talk(lines: &str) -> String {
    talk_with(demo_runner(None, &Stores::in_memory()), lines, Style::Plain, false).await
}

/// The demo with another model: one that answers this.
fn runner_of(model: ScriptedModel) -> Runner {
    Runner::new("test", LlmAgent::new("guide").model(model)).unwrap()
}

#[tokio::test]
async fn words_are_answered_in_plain_lines() {
    assert_eq!(talk("hi\n\n").await, "guide> Hello! Ask me about weather, money, packing or trips.\n");
}

#[tokio::test]
async fn a_last_line_without_an_end_and_bytes_that_are_no_text_are_taken() {
    let paper = Paper::default();
    let screen = Screen::new(paper.clone(), Style::Plain, false);
    let runner = demo_runner(None, &Stores::in_memory());
    let mut chat = begin(runner, Begin::New, b"\xff\xfe\r\nhi", screen, Interrupts::never()).await;
    chat.talk().await.unwrap();
    assert!(paper.text().contains("I am a script") && paper.text().contains("Hello!"), "{}", paper.text());
}

#[tokio::test]
async fn tools_are_shown_as_cards() {
    let expected = "  \
  → get_weather(city: \"Paris\")
  → get_weather(city: \"Rome\")
  ← get_weather: city Paris, celsius 21, sky sunny
  ← get_weather: city Rome, celsius 18, sky sunny
guide> Paris: sunny, 21 °C. Rome: sunny, 18 °C.
";
    assert_eq!(talk("weather in Paris and Rome").await, expected);
    let failed = talk("convert 5 EUR to XYZ").await;
    assert!(failed.contains("← convert_currency: there is no rate for XYZ"), "{failed}");
    assert!(failed.contains("guide> That did not work"), "{failed}");
}

#[tokio::test]
async fn an_approved_call_is_made() {
    let text = talk("book 3 nights in Lisbon\nperhaps\nYES\nwhat are my trips?").await;
    assert!(text.contains("guide asks you to approve: book_trip(city: \"Lisbon\", nights: 3)\n"), "{text}");
    assert!(text.contains("Please type one of y/n/e: y approves"), "{text}");
    assert!(
        text.contains("≡ user:trips = [\"Lisbon, 3 nights\"]\nguide> Booked: 3 nights in Lisbon"),
        "{text}"
    );
    assert!(text.ends_with("guide> Your trips: Lisbon, 3 nights.\n"), "{text}");
}

#[tokio::test]
async fn a_rejected_call_is_not_made() {
    let text = talk("book 3 nights in Lisbon\nn\nwhat are my trips?").await;
    assert!(text.contains("guide> All right, nothing was booked."), "{text}");
    assert!(text.ends_with("guide> You have no trips yet. Say `book 3 nights in Rome`.\n"), "{text}");
}

#[tokio::test]
async fn an_approval_that_nobody_gives_is_told() {
    let text = talk("book 3 nights in Lisbon").await;
    assert!(text.ends_with("No answer came, so this was not done.\n"), "{text}");
}

#[tokio::test]
async fn a_question_that_was_left_open_is_asked_again_when_the_conversation_goes_on() {
    let stores = Stores::in_memory();
    let mut said = Vec::new();
    for lines in ["book 3 nights in Lisbon", "yes\nwhat are my trips?", ""] {
        let paper = Paper::default();
        let screen = Screen::new(paper.clone(), Style::Plain, false);
        let runner = demo_runner(None, &stores);
        let mut chat = begin(runner, Begin::Named("trip"), lines, screen, Interrupts::never()).await;
        chat.go_on().await.unwrap();
        chat.talk().await.unwrap();
        said.push(paper.text());
    }
    assert!(said[0].contains("No answer came"), "{}", said[0]);
    assert!(said[1].contains("guide asks you to approve: book_trip"), "{}", said[1]);
    assert!(said[1].contains("guide> Booked: 3 nights in Lisbon"), "{}", said[1]);
    assert!(said[1].ends_with("guide> Your trips: Lisbon, 3 nights.\n"), "{}", said[1]);
    assert!(!said[2].contains("approve"), "{}", said[2]);
}

#[tokio::test]
async fn another_agent_takes_over_and_hands_back() {
    let text = talk("what can I eat in Rome?\nTokyo\nweather in Oslo\nback").await;
    assert!(text.starts_with("  » guide hands over to foodie\nfoodie> In Rome, try"), "{text}");
    assert!(text.contains("foodie> In Tokyo"), "the conversation stays with it: {text}");
    assert!(text.contains("  » foodie hands over to guide\n  → get_weather(city: \"Oslo\")"), "{text}");
    assert!(text.ends_with("guide> Here I am again. What can I do for you?\n"), "{text}");
}

#[tokio::test]
async fn agents_side_by_side_leave_their_part_to_the_next() {
    // With pauses, the two speak at the same time.
    let runner = demo_runner(Some(Duration::from_millis(1)), &Stores::in_memory());
    let text = talk_with(runner, "plan a day in Oslo", Style::Plain, false).await;
    assert!(text.contains("sights> The castle hill in Oslo\n"), "{text}");
    assert!(text.contains("evening> The night tram in Oslo\n"), "{text}");
    let plan =
        "writer> Here is your day:\n  morning: The castle hill in Oslo\n  evening: The night tram in Oslo\n";
    assert!(text.ends_with(plan), "{text}");
}

#[tokio::test]
async fn thoughts_are_shown_apart() {
    let text = talk("where should I go?").await;
    assert!(text.starts_with("  ~ Somewhere mild") && text.contains("\nguide> Go to Lisbon"), "{text}");
}

#[tokio::test]
async fn commands_show_state_log_and_help() {
    let text =
        talk("/state\n/events\npack a map\n/state\n/events\n/new\n/state\n/nonsense\n/help\n/quit\nhi").await;
    assert!(text.starts_with("Nothing is remembered yet.\nThe log is empty"), "{text}");
    assert!(text.contains("\npacking_list = [\"map\"]\n  1  user      pack a map\n"), "{text}");
    assert!(text.contains("\n  2  guide     → pack(items: [\"map\"])\n"), "{text}");
    assert_eq!(
        text.matches("Nothing is remembered yet").count(),
        2,
        "a new conversation knows nothing: {text}"
    );
    assert!(text.contains("There is no command /nonsense. /help lists those there are."), "{text}");
    assert!(text.contains("/resume ID") && text.contains("/events"), "{text}");
    assert!(!text.contains("Hello!"), "nothing is read after /quit: {text}");
}

#[tokio::test]
async fn a_trip_is_remembered_in_the_next_conversation() {
    let text = talk("book 3 nights in Lisbon\ny\n/new\nwhat are my trips?").await;
    assert!(text.ends_with("guide> Your trips: Lisbon, 3 nights.\n"), "{text}");
}

#[tokio::test]
async fn a_terminal_gets_prompts_and_colours_and_a_pipe_none() {
    let lines = "where should I go?\nbook 3 nights in Rome\nn\n/help\n";
    let piped = talk(lines).await;
    assert!(!piped.contains('\x1b') && !piped.contains("you>") && !piped.contains("Bye"), "{piped}");
    let shown = talk_with(demo_runner(None, &Stores::in_memory()), lines, Style::Colour, true).await;
    assert!(shown.contains("\x1b[1;32myou>\x1b[0m "), "{shown}");
    assert!(shown.contains("\x1b[2mSomewhere \x1b[0m"), "thoughts are dimmed: {shown}");
    assert!(shown.contains("Approve? [y/n/e]") && shown.ends_with("\x1b[2mBye.\x1b[0m\n"), "{shown}");
}

#[tokio::test]
async fn ctrl_c_stops_an_answer_and_the_chat_goes_on() {
    let (pressed, interrupts) = Interrupts::channel();
    let paper = Paper { stop_at: Some(("Go to", pressed)), ..Paper::default() };
    let screen = Screen::new(paper.clone(), Style::Plain, true);
    let runner = demo_runner(Some(Duration::from_millis(5)), &Stores::in_memory());
    let mut chat = begin(runner, Begin::New, "where should I go?\nhi\n", screen, interrupts).await;
    chat.talk().await.unwrap();
    let text = paper.text();
    assert!(text.contains("guide> Go to \nStopped.\nyou> guide> Hello!"), "{text}");
}

#[tokio::test]
async fn ctrl_c_at_the_prompt_leaves_when_pressed_twice() {
    let (pressed, interrupts) = Interrupts::channel();
    pressed.send(()).unwrap();
    pressed.send(()).unwrap();
    let paper = Paper::default();
    let screen = Screen::new(paper.clone(), Style::Plain, true);
    let runner = demo_runner(None, &Stores::in_memory());
    begin(runner, Begin::New, "hi\n", screen, interrupts).await.talk().await.unwrap();
    let text = paper.text();
    assert!(text.ends_with("you> \nPress Ctrl-C again to leave, or go on.\nyou> \nBye.\n"), "{text}");
}

#[tokio::test]
async fn a_failure_is_told_with_what_to_do_and_the_chat_goes_on() {
    let model = ScriptedModel::new("test").text("First.").break_off(["It is "]).text("Third.");
    let text = talk_with(runner_of(model), "one\ntwo\nthree", Style::Plain, false).await;
    assert_eq!(
        text,
        "guide> First.\nguide> It is \nThis went wrong: the model's answer broke off.\n\
         Check the network and say it again.\nguide> Third.\n"
    );
}

#[tokio::test]
async fn an_answer_that_was_cut_is_told() {
    let mut response = Response::text("It is");
    response.meta_mut().finish_reason = Some("MAX_TOKENS".into());
    response.meta_mut().finish_message = Some("too long".to_owned());
    let model = ScriptedModel::new("test").chunks([Chunk::Delta(response)]);
    let text = talk_with(runner_of(model), "one", Style::Plain, false).await;
    assert_eq!(text, "guide> It is\nThe answer may not be complete: too long\n");
}

#[tokio::test]
async fn a_model_cannot_steer_the_terminal() {
    let model = ScriptedModel::new("test").text("a\x1b[2Jb").stream(["c\x1b", "]0;d\x07"]);
    let text = talk_with(runner_of(model), "one\ntwo", Style::Plain, false).await;
    assert_eq!(text, "guide> a\u{fffd}[2Jb\nguide> c\u{fffd}]0;d\u{fffd}\n");
}

#[tokio::test]
async fn one_answer_tells_how_it_ended() {
    for (message, input, expected) in [
        ("hi", "", Reply::Done),
        ("book 2 nights in Rome", "", Reply::Unanswered),
        ("book 2 nights in Rome", "n\n", Reply::Done),
    ] {
        let screen = Screen::new(Paper::default(), Style::Plain, false);
        let runner = demo_runner(None, &Stores::in_memory());
        let mut chat = begin(runner, Begin::New, input, screen, Interrupts::never()).await;
        assert_eq!(chat.answer(message).await.unwrap(), expected);
    }
}

#[tokio::test]
async fn arguments_can_be_changed_before_a_call_is_made() {
    for lines in [
        "book 3 nights in Lisbon\ne\n{\"city\": \"Rome\", \"nights\": 2}\n",
        "book 3 nights in Lisbon\ne {\"city\": \"Rome\", \"nights\": 2}",
    ] {
        let paper = Paper::default();
        let screen = Screen::new(paper.clone(), Style::Plain, false);
        let runner = offered("booking", &Stores::in_memory()).runner;
        begin(runner, Begin::New, lines, screen, Interrupts::never()).await.talk().await.unwrap();
        let text = paper.text();
        assert!(text.contains("booking> Booked: 2 nights in Rome"), "{text}");
    }
    let text = talk("book 3 nights in Lisbon\ne\n[1]\nn").await;
    assert!(text.contains("These are no arguments") && text.contains("nothing was booked"), "{text}");
}

#[tokio::test]
async fn a_credential_is_typed_or_not_given_and_never_shown() {
    let talk = async |method: PlainAuth, lines: &str| {
        let auth = AuthConfig::new("shop", method.question("The key of the shop?"));
        let inner = auth.clone();
        let order = FunctionTool::with_context("order", "Orders.", move |cx, _: Value| {
            let auth = inner.clone();
            Box::pin(async move {
                let grant = cx.credential(&auth).await?;
                Ok(json!({"length": grant.http().map(|http| http.expose().len())}))
            })
        });
        let model = ScriptedModel::new("m").call("order", json!({})).text("That was it.");
        let agent = LlmAgent::new("guide").model(model).tool(order.auth(auth));
        talk_with(Runner::new("test", agent).unwrap(), lines, Style::Plain, false).await
    };
    let shown = talk(PlainAuth::bearer(), "go\nc4n4ry\n").await;
    assert!(
        shown.contains("guide asks: The key of the shop?") && shown.contains("← order: length 13"),
        "{shown}"
    );
    assert!(shown.contains("That was it.") && !shown.contains("c4n4ry"), "{shown}");
    assert!(!shown.contains("adk_request_credential") && !shown.contains("waits for"), "{shown}");
    let shown = talk(PlainAuth::basic(), "go\nann\nc4n4ry\n").await;
    assert!(shown.contains("← order: length 22") && !shown.contains("c4n4ry"), "{shown}");
    let shown = talk(PlainAuth::basic(), "go\n\n").await;
    assert!(shown.contains("nobody gave the credential `shop`") && shown.contains("That was it."), "{shown}");
}

#[tokio::test]
async fn the_result_of_a_tool_that_runs_elsewhere_is_typed() {
    use umbel::ToolSpec;
    let ask = || {
        let spec =
            ToolSpec::new("get_local_time", "Tells the time.", json!({"type": "object", "properties": {}}));
        let tool = FunctionTool::raw(ToolSpec { long_running: true, ..spec }, |cx, _| {
            cx.run().end();
            Box::pin(async { Ok(Value::Null.into()) })
        });
        let model = ScriptedModel::new("test").call("get_local_time", json!({})).text("It is noon.");
        Runner::new("test", LlmAgent::new("clock").model(model).tool(tool)).unwrap()
    };
    let text = talk_with(ask(), "what time is it?\n12:00\n", Style::Plain, false).await;
    assert!(text.contains("get_local_time() runs in a front end, not here.\nType its result"), "{text}");
    assert!(text.ends_with("clock> It is noon.\n"), "{text}");
    let text = talk_with(ask(), "what time is it?\n\n", Style::Plain, false).await;
    assert!(text.ends_with("No answer came, so this was not done.\n"), "{text}");
}

#[tokio::test]
async fn one_can_go_from_conversation_to_conversation_and_from_agent_to_agent() {
    let stores = Stores::in_memory();
    let paper = Paper::default();
    let screen = Screen::new(paper.clone(), Style::Plain, false);
    let agents = vec![offered("guide", &stores), offered("booking", &stores)];
    let lines = "pack a map\n/new\nhi\n/sessions\n/resume first\n/history\n/resume nobody\n/agent booking\nhi\n/agent x\n/help";
    let input = Input::lines(io::Cursor::new(lines));
    let mut chat =
        Chat::begin(agents[0].clone(), "ann", Begin::Named("first-one"), input, screen, Interrupts::never())
            .await
            .unwrap()
            .agents(agents);
    chat.talk().await.unwrap();
    let text = paper.text();
    let list = text.lines().filter(|line| line.contains("just now")).collect::<Vec<_>>();
    assert!(list.len() == 2 && list[0].starts_with("* ") && list[0].ends_with(" hi"), "{text}");
    assert!(list[1].contains("first-one") && list[1].ends_with("   4 events  pack a map"), "{text}");
    assert_eq!(text.matches("you> pack a map\n  → pack(items: [\"map\"])\n").count(), 2, "{text}");
    assert!(text.contains("There is no conversation nobody."), "{text}");
    assert!(text.contains("You talk with booking now.\nbooking> I book trips"), "{text}");
    assert!(text.contains("There is no agent `x`. There are: guide, booking"), "{text}");
    assert!(text.contains("* booking ") && text.contains("  book 3 nights in Lisbon\n"), "{text}");
}

#[tokio::test]
async fn the_last_conversation_is_gone_on_with() {
    let stores = Stores::in_memory();
    for (start, lines, expected) in [
        (Begin::Last, "pack a map", "map"),
        (Begin::Last, "pack an umbrella", "map · umbrella"),
        (Begin::New, "pack a hat", "list: hat"),
    ] {
        let paper = Paper::default();
        let screen = Screen::new(paper.clone(), Style::Plain, false);
        let runner = demo_runner(None, &stores);
        begin(runner, start, lines, screen, Interrupts::never()).await.talk().await.unwrap();
        assert!(paper.text().ends_with(&format!("{expected}.\n")), "{}", paper.text());
    }
}

#[tokio::test]
async fn each_agent_of_the_demo_shows_what_it_is_there_for() {
    for (agent, line, expected) in [
        ("painter", "make it dark", "painter> Only a front end that offers the tool `set_theme` can do that"),
        ("team", "plan a day in Oslo", "» team hands over to day_plan"),
        ("team", "what can I eat in Tokyo?", "foodie> In Tokyo"),
        ("thinker", "where is it warmest: Paris, Rome or Oslo?", "→ get_weather(city: \"Oslo\")"),
    ] {
        let paper = Paper::default();
        let screen = Screen::new(paper.clone(), Style::Plain, false);
        let runner = offered(agent, &Stores::in_memory()).runner;
        begin(runner, Begin::New, line, screen, Interrupts::never()).await.talk().await.unwrap();
        assert!(paper.text().contains(expected), "{}", paper.text());
    }
    let paper = Paper::default();
    let screen = Screen::new(paper.clone(), Style::Plain, false);
    let runner = offered("thinker", &Stores::in_memory()).runner;
    let mut chat = begin(runner, Begin::New, "where should I go?", screen, Interrupts::never()).await;
    chat.talk().await.unwrap();
    let text = paper.text();
    assert!(text.starts_with("  ~ No place is named") && text.matches("  ~ ").count() == 2, "{text}");
    assert!(text.contains("The warmest is") && text.contains("thinker> Go to "), "{text}");
}

#[tokio::test]
async fn a_suggestion_is_never_met_with_a_shrug() {
    let setup = Setup { watched: false, model: Some("script".to_owned()) };
    for offer in demo::offers(&setup).unwrap() {
        let agent = offer.ready(&Stores::in_memory()).unwrap();
        assert!(!agent.suggestions.is_empty() && !agent.about.is_empty() && agent.model.contains("script"));
        for suggestion in &agent.suggestions {
            let text = talk_with(agent.runner.clone(), suggestion, Style::Plain, false).await;
            for shrug in ["I am a script", "I book trips", "We plan days", "I work with what", "which city"] {
                assert!(!text.contains(shrug), "{suggestion}: {text}");
            }
        }
    }
}

#[tokio::test]
async fn a_person_is_told_where_to_sign_in_and_may_leave_it() {
    let method = OAuth::code(
        OAuthClient::new("app"),
        "https://login.example/authorize",
        "https://login.example/token",
        "https://app.example/back",
    );
    let auth = umbel::AuthConfig::new("shop", method.build().unwrap());
    let order =
        umbel::FunctionTool::new("order", "Orders.", |_: serde_json::Value| async { Ok("done") }).auth(auth);
    let model = ScriptedModel::new("m").call("order", serde_json::json!({})).text("A pity.");
    let runner = Runner::new("test", LlmAgent::new("shop").model(model).tool(order)).unwrap();
    let text = talk_with(runner, "go\n\n", Style::Plain, false).await;
    assert!(text.contains("Sign in at https://login.example/authorize?response_type=code"), "{text}");
    assert!(text.contains("paste the address that your browser was sent to"), "{text}");
    assert!(text.contains("nobody gave the credential") && text.contains("A pity."), "{text}");
}

/// Somebody who is asked to sign in, and where they come back to.
struct SignIn {
    server: OAuthServer,
    back: TcpListener,
    paper: Paper,
    keyboard: DuplexStream,
    is_asked: UnboundedReceiver<()>,
}

impl SignIn {
    /// They have said what needs it. The address that they come back to is taken until the listener is dropped.
    async fn begin() -> (Self, Chat<Paper>) {
        let server = OAuthServer::start().await;
        let back = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (authorize, token) = (server.url("/authorize"), server.url("/token"));
        let to = format!("http://{}/back", back.local_addr().unwrap());
        let method =
            OAuth::code(OAuthClient::new(PUBLIC_CLIENT), authorize, token, to).scope("see").scope("order");
        let auth = AuthConfig::new("shop", method.allow_private(server.host()).build().unwrap());
        let order = FunctionTool::new("order", "Orders.", |_: Value| async { Ok("ordered") }).auth(auth);
        let model = ScriptedModel::new("m").call("order", json!({})).text("That was it.");
        let runner = Runner::new("test", LlmAgent::new("shop").model(model).tool(order)).unwrap();
        let (asked, is_asked) = unbounded_channel();
        let paper = Paper { stop_at: Some(("or nothing to give none.", asked)), ..Paper::default() };
        let (mut keyboard, lines) = tokio::io::duplex(4096);
        keyboard.write_all(b"go\n").await.unwrap();
        let screen = Screen::new(paper.clone(), Style::Plain, false);
        let input = Input::lines(BufReader::new(lines));
        let agent = Ready::new("shop", runner);
        let chat = Chat::begin(agent, "ann", Begin::New, input, screen, Interrupts::never()).await.unwrap();
        (Self { server, back, paper, keyboard, is_asked }, chat)
    }

    /// The link that they are shown.
    async fn link(&mut self) -> String {
        self.is_asked.recv().await.unwrap();
        let text = self.paper.text();
        text.lines().find_map(|line| line.strip_prefix("Sign in at ")).unwrap().to_owned()
    }
}

/// What comes back for a request, whole.
async fn browse(place: &str, line: &str) -> String {
    let mut stream = TcpStream::connect(place).await.unwrap();
    stream.write_all(format!("{line} HTTP/1.1\r\nhost: {place}\r\n\r\n").as_bytes()).await.unwrap();
    let mut answer = String::new();
    // One that is not read to its end is cut.
    let _ = stream.read_to_string(&mut answer).await;
    answer
}

#[tokio::test]
async fn somebody_who_signed_in_comes_back_to_the_chat_by_themselves() {
    let (mut person, mut chat) = SignIn::begin().await;
    let place = person.back.local_addr().unwrap().to_string();
    let paper = person.paper.clone();
    person.back = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let signs_in = async move {
        let link = person.link().await;
        // A browser opens connections before it needs them, and any page can send it here.
        let _unused = TcpStream::connect(&place).await.unwrap();
        for other in ["GET /favicon.ico", "GET /back?code=x&state=another", "GET /back", "POST /back", "\r\n"]
        {
            let page = browse(&place, other).await;
            assert!(page.starts_with("HTTP/1.1 404") && page.contains("Nobody waits for this"), "{page}");
        }
        assert_eq!(browse(&place, &format!("GET /back?{}", "x".repeat(100_000))).await, "");
        let to = person.server.sign_in(&link).await;
        let target = to.strip_prefix(&format!("http://{place}")).unwrap();
        let page = browse(&place, &format!("GET {target}")).await;
        assert!(page.starts_with("HTTP/1.1 200") && page.contains("You may close this window"), "{page}");
        assert!(page.contains("referrer-policy: no-referrer") && page.contains("cache-control: no-store"));
        assert!(!page.contains("CANARY"), "{page}");
    };
    let (ended, ()) = tokio::join!(chat.talk(), signs_in);
    ended.unwrap();
    let text = paper.text();
    assert!(text.contains("It is for `shop`, with the scopes see order."), "{text}");
    assert!(text.contains("This goes on when your browser is back. Or paste the address"), "{text}");
    assert!(text.contains("← order: ordered") && text.contains("That was it."), "{text}");
    assert!(!text.contains("CANARY"), "{text}");
}

#[tokio::test]
async fn the_address_can_be_pasted_whether_or_not_the_chat_listens_for_it() {
    for listens in [true, false] {
        let (mut person, mut chat) = SignIn::begin().await;
        let paper = person.paper.clone();
        if listens {
            person.back = TcpListener::bind("127.0.0.1:0").await.unwrap();
        }
        let signs_in = async move {
            let link = person.link().await;
            let to = person.server.sign_in(&link).await;
            person.keyboard.write_all(format!("{to}\n").as_bytes()).await.unwrap();
        };
        let (ended, ()) = tokio::join!(chat.talk(), signs_in);
        ended.unwrap();
        let text = paper.text();
        assert_eq!(text.contains("This goes on when your browser is back"), listens, "{text}");
        assert!(text.contains("← order: ordered") && !text.contains("CANARY"), "{text}");
    }
}

#[tokio::test]
async fn an_address_that_is_no_answer_is_asked_for_once_more() {
    let (mut person, mut chat) = SignIn::begin().await;
    let paper = person.paper.clone();
    let signs_in = async move {
        let link = person.link().await;
        let denied = person.server.deny(&link).await;
        let to = person.server.sign_in(&link).await;
        let lines = format!("{to}x&state=another\n{denied}\n{to}\n");
        person.keyboard.write_all(lines.as_bytes()).await.unwrap();
    };
    let (ended, ()) = tokio::join!(chat.talk(), signs_in);
    ended.unwrap();
    let text = paper.text();
    assert!(text.contains("a parameter of the address is there twice"), "{text}");
    assert!(text.contains("`access_denied`: sign in again") && text.contains("answer once more"), "{text}");
    assert_eq!(text.matches("shop asks: Sign in").count(), 3, "{text}");
    assert!(text.contains("← order: ordered") && !text.contains("CANARY"), "{text}");
}
