//! Files that are read, and files that are wrong.

use std::path::Path;

use futures::StreamExt;
use proptest::prelude::*;
use serde_json::{Value, json};
use umbel::{Outcome, Runner};
use umbel_stores::Stores;

use super::problem::report;
use super::{Trust, handlers, read};
use crate::{Offer, Setup};

/// A command line that names no model, in an environment that has none: `script` says so.
fn setup() -> Setup {
    Setup { watched: false, model: Some("script".to_owned()) }
}

fn trusted() -> Trust {
    Trust { commands: true, variables: Vec::new() }
}

fn offers(source: &str) -> Vec<Offer> {
    let (offers, _) = read(source, Path::new(""), &setup(), &trusted());
    offers.unwrap_or_else(|problems| panic!("{}", report(Path::new("agents.toml"), source, problems)))
}

/// What is wrong with a file.
fn wrong(source: &str) -> String {
    let (offers, _) = read(source, Path::new(""), &setup(), &Trust::default());
    match offers {
        Ok(offers) => panic!("{source} is fine: {offers:?}"),
        Err(problems) => report(Path::new("agents.toml"), source, problems),
    }
}

fn runner(source: &str) -> Runner {
    offers(source).remove(0).runner(&Stores::in_memory()).unwrap()
}

/// What an agent of a file answers.
async fn answers(runner: &Runner, message: &str) -> String {
    let session = runner.create_session("ann").await.unwrap();
    runner.run(&session.key, message).text().await.unwrap()
}

#[tokio::test]
async fn an_agent_with_a_script_answers_in_turn_and_begins_again() {
    let runner = runner(
        r#"
        [agents.greeter]
        description = "Says hello."
        script = ["Hello!", "Still here."]
        suggestions = ["Hi", "Who are you?"]
        "#,
    );
    let session = runner.create_session("ann").await.unwrap();
    for expected in ["Hello!", "Still here.", "Hello!"] {
        assert_eq!(runner.run(&session.key, "hi").text().await.unwrap(), expected);
    }
    let offer = &offers("[agents.a]\nscript = ['x']\ndescription = 'D'\nsuggestions = ['s']")[0];
    assert_eq!((offer.name(), offer.describes(), offer.model_words()), ("a", "D", "a script"));
    assert_eq!(offer.suggestions(), ["s"]);
}

#[tokio::test]
async fn tools_are_called_and_handlers_act() {
    let source = r#"
        handlers = [{ name = "global_instruction", text = "Be brief." }]

        [agents.clerk]
        instruction = "Help."
        handlers = [{ name = "tool_call_limit", run = 1 }, "todo_list"]
        tools = ["current_time", "show"]
        script = [
            { call = "show", args = { word = "-x" } },
            { thought = "Hm.", call = "current_time" },
            "Done.",
        ]

        [tools.show]
        kind = "command"
        description = "Shows a word."
        program = "printf"
        args = ["%s", "--", "{word}"]
        arguments.word = { type = "string", description = "The word." }
        "#;
    let runner = runner(source);
    let session = runner.create_session("ann").await.unwrap();
    let events = runner.run(&session.key, "go").collect_events().await.unwrap();
    let responses: Vec<Value> = events
        .iter()
        .flat_map(|event| event.responses().filter_map(|response| response.response.clone()))
        .map(Value::Object)
        .collect();
    assert_eq!(responses[0]["exit_code"], 0);
    assert!(
        responses[1]["error"].as_str().unwrap().contains("no more tools may be called"),
        "{}",
        responses[1]
    );
    assert_eq!(events.last().unwrap().text(), "Done.");
    let explained = serde_json::to_value(runner.explain().unwrap()).unwrap().to_string();
    assert!(explained.contains("write_todos") && explained.contains("current_time"), "{explained}");
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn code_of_the_model_is_run() {
    let runner = runner(
        r#"
        [agents.clerk]
        code = "python"
        script = ["```tool_code\nprint(6 * 7)\n```", "Done."]
        "#,
    );
    let session = runner.create_session("ann").await.unwrap();
    let events = runner.run(&session.key, "go").collect_events().await.unwrap();
    assert!(serde_json::to_string(&events[1]).unwrap().contains("42"), "{events:?}");
    assert_eq!(events.last().unwrap().text(), "Done.");
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn how_code_is_run_can_be_said() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::set_permissions(folder.path(), std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    std::fs::write(folder.path().join("seen.txt"), "seen").unwrap();
    let look = format!("print(open('{}').read())", folder.path().join("seen.txt").display());
    let file = format!(
        r#"
        [agents.clerk]
        code = {{ stateful = true, data_files = true, max_failures = 1, memory_mib = 200, read_only = ["seen.txt"] }}
        script = [
            "In the place of this, the table is looked at.",
            """```tool_code\n{look}; x = 5\n```""",
            "```tool_code\nprint(x, 'rows', len(data_1_1))\n```",
            "```tool_code\nx = bytearray(10**9)\n```",
            "```tool_code\nprint(x)\n```",
            "Done.",
        ]
        [agents.hasty]
        code = {{ max_failures = 1, time = 2 }}
        script = ["```tool_code\nimport time; time.sleep(60)\n```", "Done."]
        [agents.careful]
        code = {{ language = "python", confirm = true }}
        script = ["```tool_code\nprint(1)\n```"]
        "#
    );
    let offers = read(&file, folder.path(), &setup(), &trusted()).0;
    let mut offers = offers.unwrap_or_else(|problems| panic!("{}", report(folder.path(), &file, problems)));
    let mut runner = |name: &str| {
        let at = offers.iter().position(|offer| offer.name() == name).unwrap();
        offers.remove(at).runner(&Stores::in_memory()).unwrap()
    };
    let careful = runner("careful");
    let session = careful.create_session("ann").await.unwrap();
    careful.run(&session.key, "go").collect_events().await.unwrap();
    assert_eq!(careful.open_questions(&session.key).await.unwrap().len(), 1);
    let clerk = runner("clerk");
    let session = clerk.create_session("ann").await.unwrap();
    let table = umbel::Content::new(umbel::Role::User, [umbel::Part::data("text/csv", *b"a\n1\n")]);
    let events = clerk.run(&session.key, table).collect_events().await.unwrap();
    let told = serde_json::to_string(&events).unwrap();
    for words in ["seen", "5 rows 1", "needed too much memory", "may use 200 MiB", "No more code"] {
        assert!(told.contains(words), "{words}: {told}");
    }
    let hasty = runner("hasty");
    let session = hasty.create_session("ann").await.unwrap();
    let events = hasty.run(&session.key, "go").collect_events().await.unwrap();
    let told = serde_json::to_string(&events).unwrap();
    assert!(told.contains("It may run for 2 s"), "{told}");
}

/// An MCP server in a few lines of shell, with a tool that says what it sees of the environment.
const MCP: &str = r#"read line
printf '%s\n' '{"jsonrpc":"2.0","id":0,"error":{"code":-32601,"message":"no"}}'
read line
printf '%s\n' '{"jsonrpc":"2.0","id":1,"result":{"protocolVersion":"2025-11-25","serverInfo":{"name":"s","version":"1"},"capabilities":{}}}'
read line; read line
printf '%s\n' '{"jsonrpc":"2.0","id":2,"result":{"tools":[{"name":"see","inputSchema":{"type":"object"}},{"name":"no","inputSchema":{"type":"object"}}]}}'
read line
printf '{"jsonrpc":"2.0","id":3,"result":{"content":[{"type":"text","text":"%s"}]}}\n' "$MINE"
read line
"#;

#[tokio::test]
async fn an_mcp_server_is_a_tool_of_a_file() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("server.sh"), MCP).unwrap();
    let source = format!(
        "[agents.a]\ntools = ['lab']\nscript = [{{ call = 'l_see' }}, 'done']\n\
         [tools.lab]\nkind = 'mcp'\nprogram = 'sh'\nargs = ['server.sh']\nfolder = '{0}'\nenv = {{ MINE = 'yes' }}\n\
         prefix = 'l_'\nonly = ['see']\npins = '{0}/pins.json'\nchanges = 'refuse'\nfirst_use = 'trust'\ntimeout = 20\n\
         trust_hints = true\nresources = true\ninstructions = true\none_at_a_time = true",
        folder.path().display()
    );
    let runner = runner(&source);
    let session = runner.create_session("ann").await.unwrap();
    let events = runner.run(&session.key, "go").collect_events().await.unwrap();
    let said = events.iter().flat_map(|event| event.responses()).next().unwrap().response.clone().unwrap();
    assert_eq!(Value::Object(said), serde_json::json!({"result": "yes"}));
    let pinned = std::fs::read_to_string(folder.path().join("pins.json")).unwrap();
    assert!(pinned.contains("\"see\"") && !pinned.contains("\"no\""), "{pinned}");
}

#[tokio::test]
async fn an_mcp_server_that_is_optional_need_not_be_there() {
    let source = "[agents.a]\ntools = ['web']\nscript = ['done']\n\
        [tools.web]\nkind = 'mcp'\nurl = 'http://127.0.0.1:1/mcp'\nheaders = { x-a = 'b' }\noptional = true\nconfirm = true";
    assert_eq!(answers(&runner(source), "go").await, "done");
}

#[tokio::test]
async fn a_tool_with_confirm_asks_first() {
    for source in [
        "[agents.a]\ntools = [{ name = 'current_time', confirm = true }]\nscript = [{ call = 'current_time' }, 'ok']",
        "[agents.a]\ntools = ['t']\nscript = [{ call = 't' }, 'ok']\n\
         [tools.t]\nkind = 'command'\nprogram = 'true'\nconfirm = true",
        "[agents.a]\ntools = ['t']\nscript = [{ call = 't', args = { url = 'https://a.example' } }, 'ok']\n\
         [tools.t]\nkind = 'http_get'\nhosts = ['a.example']\nconfirm = true",
        "[agents.a]\ntools = ['current_time']\nscript = [{ call = 'current_time' }, 'ok']\n\
         handlers = [{ name = 'approve', all = true }]",
    ] {
        let runner = runner(source);
        let session = runner.create_session("ann").await.unwrap();
        let mut run = runner.run(&session.key, "go");
        while let Some(event) = run.next().await {
            event.unwrap();
        }
        assert!(matches!(run.outcome(), Some(Outcome::Interrupted { .. })), "{source}");
    }
}

#[tokio::test]
async fn workflows_sub_agents_and_agents_as_tools_work_together() {
    let source = r#"
        [agents.press]
        kind = "sequential"
        steps = ["writer", "round"]

        [agents.writer]
        script = [{ call = "checker", args = { request = "ok?" } }, "A draft."]
        output_key = "draft"
        tools = ["checker"]

        [agents.checker]
        description = "Checks."
        script = ["Fine."]

        [agents.round]
        kind = "loop"
        max_iterations = 2
        steps = ["both"]

        [agents.both]
        kind = "parallel"
        steps = ["left", "right"]

        [agents.left]
        instruction = "Read {draft}"
        script = ["L"]

        [agents.right]
        script = ["R"]
        history = false
        "#;
    let runner = runner(source);
    let session = runner.create_session("ann").await.unwrap();
    let events = runner.run(&session.key, "go").collect_events().await.unwrap();
    let said: Vec<_> = events.iter().map(|event| event.text()).filter(|text| !text.is_empty()).collect();
    assert_eq!(said.iter().filter(|text| *text == "L").count(), 2);
    assert!(said.contains(&"A draft.".to_owned()), "{said:?}");
    let team = "[agents.a]\nsub_agents = ['b']\nscript = [{ call = 'transfer_to_agent', args = { agent_name = 'b' } }]\n\
                [agents.b]\ndescription = 'B.'\nscript = ['I am b.']";
    assert_eq!(answers(&self::runner(team), "hi").await, "I am b.");
}

#[test]
fn agents_that_no_other_works_with_are_offered_unless_it_is_said() {
    let agents = "[agents.b]\nscript = ['x']\nsub_agents = ['c']\n[agents.a]\nscript = ['x']\n[agents.c]\nscript = ['x']";
    let names = |source: &str| offers(source).iter().map(|offer| offer.name().to_owned()).collect::<Vec<_>>();
    assert_eq!(names(agents), ["b", "a"]);
    assert_eq!(names(&format!("offer = ['c', 'b']\n{agents}")), ["c", "b"]);
}

#[test]
fn settings_and_schemas_reach_the_model() {
    let source = r#"
        [agents.a]
        script = ['{"city": "Rome"}']
        [agents.a.settings]
        temperature = 0.5
        top_p = 1
        top_k = 4
        max_tokens = 100
        stop = ["END"]
        seed = 7
        presence_penalty = 0.1
        frequency_penalty = 0.2
        parallel_calls = false
        thinking = { effort = "low", budget = 10, show = false }
        [agents.a.output_schema]
        type = "object"
        properties.city.type = "string"
        [agents.a.input_schema]
        type = "object"
        "#;
    let runner = runner(source);
    let explained = serde_json::to_value(runner.explain().unwrap()).unwrap();
    let root = runner.tree().node(runner.tree().root()).unwrap().agent.clone();
    assert_eq!(root.output_schema().unwrap()["properties"]["city"]["type"], "string");
    assert!(explained.is_array());
}

/// A file, and what is said of it: place, words, hint.
const WRONG: &[(&str, &str)] = &[
    ("", "agents.toml:1:1: the file has no agents"),
    ("agents = 5", "agents.toml:1:10: this must be a table, and is a number"),
    ("[agents.a\n", "agents.toml:1:10: this is no TOML"),
    ("[agents.a]\nscript = ['x']\nscript = ['y']", "agents.toml:3:1: this is no TOML: duplicate key"),
    ("[agents.a]\nscript = ['x']\ninstrction = 'x'", "agents.toml:3:1: the key `instrction` is not known"),
    ("[agents.a]\nscript = ['x']\ninstrction = 'x'", "   = did you mean `instruction`?"),
    ("[agents.a]\nmodle = 'script'", "   = did you mean `model`?"),
    ("[agents.a]\nscript = ['x']\ninstrction = 'x'", " 3 | instrction = 'x'\n   | ^^^^^^^^^^"),
    ("[agents.a]\nscript = ['x']\nzzz = 1", "= known are: code, description, "),
    ("[agents.a]\nscript = ['x']\ncode = 'ruby'", "agents.toml:3:8: code in `ruby` cannot be run"),
    ("[agents.a]\nscript = ['x']\ncode = 5", "agents.toml:3:8: `code` must be a text, and is a number"),
    ("[agents.a]\nscript = ['x']\ncode = { confrm = true }", "= did you mean `confirm`?"),
    (
        "[agents.a]\nscript = ['x']\ncode = { language = 'ruby' }",
        "agents.toml:3:21: code in `ruby` cannot be run",
    ),
    ("modle = 'x'\n[agents.a]\nscript = ['x']", "agents.toml:1:1: the key `modle` is not known"),
    ("[agents.a]\n", "agents.toml:1:9: `a` has no model"),
    ("[agents.a]\nmodel = 'nobody/x'", "agents.toml:2:9: "),
    ("[agents.a]\nmodel = 5", "agents.toml:2:9: `model` must be a text, and is a number"),
    ("[agents.a]\nmodel = 'x/y'\nscript = ['x']", "an agent has a model or a script, and not both"),
    ("[agents.a]\nscript = []", "the script of `a` has no answers"),
    ("[agents.a]\nscript = [5]", "agents.toml:2:11: this must be a table, and is a number"),
    ("[agents.a]\nscript = [{ sya = 'x' }]", "agents.toml:2:13: the key `sya` is not known"),
    ("[agents.a]\nscript = ['x']\nkind = 'loops'", "agents.toml:3:8: the kind `loops` is not known"),
    ("[agents.a]\nkind = 'loop'", "the workflow `a` has no steps"),
    ("[agents.a]\nkind = 'loop'\nsteps = ['a']", "the agents go in a circle: a → a"),
    (
        "[agents.a]\nkind = 'loop'\nsteps = ['b']\nmodel = 'x'\n[agents.b]\nscript = ['x']",
        "4:1: the key `model` is not known",
    ),
    (
        "[agents.a]\nscript = ['x']\nsub_agents = ['bb']\n[agents.b]\nscript = ['x']",
        "3:15: the agent `bb` is not known",
    ),
    (
        "[agents.a]\nscript = ['x']\nsub_agents = ['b']\n[agents.b]\nscript = ['x']\nsub_agents = ['a']",
        "none is offered",
    ),
    ("offer = ['b']\n[agents.a]\nscript = ['x']", "agents.toml:1:10: the agent `b` is not known"),
    ("[agents.a]\nscript = ['x']\ntools = ['current_tim']", "= did you mean `current_time`?"),
    ("[agents.a]\nscript = ['x']\ntools = [{ confirm = true }]", "agents.toml:3:10: the tool has no `name`"),
    (
        "[agents.a]\nscript = ['x']\ntools = [{ name = 'current_time', x = 1 }]",
        "3:35: the key `x` is not known",
    ),
    (
        "[agents.a]\nscript = ['x']\ninstruction = 'x'\ninstruction_file = 'y'",
        "4:20: the instruction stands here or in a file",
    ),
    ("[agents.a]\nscript = ['x']\ninstruction_file = 'nowhere.md'", "3:20: `nowhere.md` cannot be read"),
    ("[agents.a]\nscript = ['x']\nsettings = { temprature = 1 }", "= did you mean `temperature`?"),
    ("[agents.a]\nscript = ['x']\nsettings = { max_tokens = -1 }", "`max_tokens` must be a whole number"),
    (
        "[agents.a]\nscript = ['x']\nsettings = { thinking = { effort = 'hgih' } }",
        "the effort `hgih` is not known",
    ),
    ("[agents.a]\nscript = ['x']\nhandlers = ['todolist']", "3:13: the handler `todolist` is not known"),
    ("[agents.a]\nscript = ['x']\nhandlers = [{ nam = 'x' }]", "the handler has no `name`"),
    ("[agents.a]\nscript = ['x']\nhandlers = [{ name = 'timeout' }]", "say how long a call may take"),
    (
        "[agents.a]\nscript = ['x']\nhandlers = [{ name = 'timeout', seconds = 'x' }]",
        "`seconds` must be a number of seconds",
    ),
    (
        "[agents.a]\nscript = ['x']\nhandlers = [{ name = 'model_retry', retries = 1 }]",
        "the key `retries` is not known",
    ),
    ("[agents.'a b']\nscript = ['x']", "agents.toml:1:9: `a b` is no name of an agent"),
    ("handlers = ['model_call_limit']\n[agents.a]\nscript = ['x']", "agents.toml:2:9: "),
    (
        "[agents.a]\nscript = ['x']\n[tools.a]\nkind = 'http_get'\nhosts = ['x']",
        "`a` is the name of a tool, too",
    ),
    (
        "[agents.a]\nscript = ['x']\n[tools.exit_loop]\nkind = 'http_get'\nhosts = ['x']",
        "is the name of a built-in tool",
    ),
    ("[agents.a]\nscript = ['x']\n[tools.t]\nprogram = 'x'", "agents.toml:3:8: the tool `t` has no `kind`"),
    ("[agents.a]\nscript = ['x']\n[tools.t]\nkind = 'openapi'", "say which document, with `file`"),
    (
        "[agents.a]\nscript = ['x']\n[tools.t]\nkind = 'openapi'\nfile = 'nowhere.json'",
        "5:8: `nowhere.json` cannot be read",
    ),
    ("[agents.a]\nscript = ['x']\n[tools.t]\nkind = 'http_get'", "say which hosts may be read"),
    (
        "[agents.a]\nscript = ['x']\n[tools.t]\nkind = 'command'\nprogram = 'true'",
        "= if you trust this file, start with --allow-commands",
    ),
    (
        "[agents.a]\nscript = ['x']\n[tools.t]\nkind = 'mcp'\nprogram = 'true'",
        "= if you trust this file, start with --allow-commands",
    ),
    (
        "[agents.a]\nscript = ['x']\n[tools.t]\nkind = 'mcp'",
        "say where the server is, either with `program` or with `url`",
    ),
    (
        "[agents.a]\nscript = ['x']\n[tools.t]\nkind = 'command'",
        "agents.toml:3:8: the tool `t` runs a program",
    ),
    (
        "[agents.a]\nscript = ['x']\n[tools.t]\nkind = 'openapi'\nbearer = '${UMBEL_TEST_NO_SUCH}'",
        "= if it may be sent to where this file says, start with --allow-env UMBEL_TEST_NO_SUCH",
    ),
    ("[agents.a]\nscript = ['x']\n[tools.t]\nkind = 'openapi'\nheaders = { X = 5 }", "this must be a text"),
    (
        "[agents.a]\nscript = ['x']\n[tools.t]\nkind = 'openapi'\nconfirm = 5",
        "`confirm` must be true, false or \"changes\"",
    ),
    ("[agents.a]\nscript = ['x']\n[tools.t]\nkind = 'command'\nenv = { A = 1 }", "a variable must be a text"),
];

#[test]
fn what_is_wrong_is_said_with_its_line_and_what_to_do() {
    for (source, words) in WRONG {
        let told = wrong(source);
        assert!(told.contains(words), "{source}\n--- should say: {words}\n--- says:\n{told}");
    }
}

#[test]
fn how_code_is_run_is_known_where_it_cannot_be_run() {
    let options =
        "data_files = true, confirm = true, max_failures = 1, stateful = true, time = 5, memory_mib = 9";
    let told = wrong(&format!(
        "[agents.a]\nscript = ['x']\ncode = {{ language = 'ruby', {options}, read_only = ['x'] }}"
    ));
    assert!(told.contains("code in `ruby` cannot be run") && !told.contains("not known"), "{told}");
}

#[test]
fn all_that_is_wrong_is_said_at_once() {
    let told = wrong(
        "[agents.a]\nscript = 5\nnope = 1\n[agents.b]\nscript = ['x']\ntools = ['nope']\nhandlers = ['nope']",
    );
    for line in ["agents.toml:2:10", "agents.toml:3:1", "agents.toml:6:10", "agents.toml:7:13"] {
        assert_eq!(told.matches(line).count(), 1, "{line}: {told}");
    }
}

/// Each handler with options that fit, so that every option is read.
const HANDLERS: &[(&str, &str)] = &[
    (
        "approve",
        "tools = ['x'], all = true, allow = ['y'], allow_read_only = true, whole_batch = true, message = 'm', expires = 5",
    ),
    ("caching", "ttl = 5, tools = ['x'], all_tools = false, per = 'session'"),
    ("circuit_breaker", "failures = 3, open_for = 1.5, per = 'tool'"),
    ("concurrency", "limit = 2, max_wait = 1, per = 'all'"),
    ("context_edit", "above = 10, keep = 1, at_least = 5, exclude = ['x'], placeholder = '[gone]'"),
    ("event_filter", "hide = ['partial', 'thoughts', 'calls', 'responses'], authors = ['x']"),
    ("global_instruction", "text = 'Be brief.'"),
    ("logging", "max_arg_bytes = 10, redact = ['/a'], inputs = false, outputs = false"),
    ("model_call_limit", "run = 2, session = 4, exit = 'end'"),
    ("model_fallback", "models = ['http://localhost:1/v1#m'], sticky = true"),
    ("model_retry", "max_retries = 1, initial = 0.5, factor = 2, max = 5"),
    ("offload", "above = 10, show = 5, exclude = ['x']"),
    (
        "pii",
        "kinds = ['email'], patterns = { badge = '[0-9]+' }, strategy = 'mask', input = true, output = true, tool_results = true",
    ),
    ("rate_limit", "per_second = 2, burst = 4, max_wait = 1, per = 'user'"),
    ("reflect_retry", "max_retries = 2, global = true, stop_when_exceeded = true"),
    ("repair_calls", ""),
    (
        "summarise",
        "messages = 50, tokens = 1000, fraction = 0.5, window = 1000, keep = 5, model = 'http://localhost:1/v1#m', lasting = true",
    ),
    ("timeout", "seconds = 5"),
    ("todo_list", ""),
    ("tool_call_limit", "tool = 'x', run = 1, session = 2, exit = 'end'"),
    ("tool_retry", "max_retries = 1, tools = ['x'], initial = 0.1"),
    (
        "tool_select",
        "model = 'http://localhost:1/v1#m', max_tools = 2, max_retries = 1, always_include = ['x']",
    ),
    ("usage_limit", "run_tokens = 100, session_tokens = 200, exit = 'error'"),
];

#[test]
fn every_handler_can_be_named_with_its_options() {
    let known: Vec<&str> = handlers::KNOWN.iter().map(|(name, _)| *name).collect();
    assert_eq!(HANDLERS.iter().map(|(name, _)| *name).collect::<Vec<_>>(), known);
    for (name, options) in HANDLERS {
        let comma = if options.is_empty() { "" } else { ", " };
        let source =
            format!("[agents.a]\nscript = ['x']\nhandlers = [{{ name = '{name}'{comma}{options} }}]");
        let runner = runner(&source);
        assert!(runner.explain().is_ok(), "{name}");
    }
}

#[tokio::test]
async fn options_of_handlers_act() {
    let redacted = runner(
        "[agents.a]\nscript = ['I am a@b.example.']\nhandlers = [{ name = 'pii', kinds = ['email'], input = false, output = true }]",
    );
    assert_eq!(answers(&redacted, "hi").await, "I am [REDACTED_EMAIL].");
    let limited = "[agents.a]\nscript = [{ call = 'current_time' }, 'late']\ntools = ['current_time']\n\
                   handlers = [{ name = 'model_call_limit', run = 1 }]";
    assert_ne!(answers(&runner(limited), "hi").await, "late");
}

#[tokio::test]
async fn services_come_from_a_document_beside_the_file() {
    let folder = tempfile::tempdir().unwrap();
    let document = json!({"openapi": "3.1.0", "servers": [{"url": "https://pets.example"}], "paths": {
        "/pets": {"get": {"operationId": "list", "tags": ["r"]}, "post": {"operationId": "add"}}}});
    std::fs::write(folder.path().join("pets.json"), document.to_string()).unwrap();
    std::fs::write(folder.path().join("words.md"), "Love animals.").unwrap();
    let source = r#"
        [agents.a]
        script = ["x"]
        instruction_file = "words.md"
        tools = ["pets"]
        [tools.pets]
        kind = "openapi"
        file = "pets.json"
        prefix = "pets_"
        server = "https://other.example/v2"
        operations = ["list", "add"]
        tags = ["r"]
        allow_hosts = ["cdn.example"]
        allow_private = ["localhost:8080"]
        bearer = "fixed-token"
        headers = { X-Team = "blue" }
        query = { key = "fixed-key" }
        timeout = 5
        max_bytes = 1000
        redirects = 0
        confirm = "changes"
        "#;
    let path = folder.path().join("agents.toml");
    std::fs::write(&path, source).unwrap();
    let loaded = super::load(&path, &setup(), &Trust::default());
    let files: Vec<_> = loaded.files.iter().map(|seen| seen.path.clone()).collect();
    assert_eq!(files, [path.clone(), folder.path().join("pets.json"), folder.path().join("words.md")]);
    let runner = loaded.offers.unwrap().remove(0).runner(&Stores::in_memory()).unwrap();
    let explained = serde_json::to_string(&runner.explain().unwrap()).unwrap();
    assert!(explained.contains("pets_list") && explained.contains("pets_add"), "{explained}");
    assert!(!explained.contains("fixed-"), "{explained}");
    // What is wrong with the document is said at its name.
    std::fs::write(folder.path().join("pets.json"), "openapi: 3.0.0").unwrap();
    let told = super::load(&path, &setup(), &Trust::default()).offers.unwrap_err();
    assert!(told.contains("agents.toml:8:16: the OpenAPI document is not JSON"), "{told}");
    assert!(
        super::load(&folder.path().join("none.toml"), &setup(), &Trust::default())
            .offers
            .unwrap_err()
            .contains("cannot be read")
    );
}

/// The key of a client.
const KEY: &str = include_str!("../../../umbel-jwt/tests/p256_key.pem");

#[test]
fn security_schemes_of_a_service_are_given_what_they_want() {
    let folder = tempfile::tempdir().unwrap();
    let schemes = json!({
        "login": {"type": "oauth2", "flows": {"authorizationCode": {
            "authorizationUrl": "https://login.example/authorize", "tokenUrl": "https://login.example/token"}}},
        "machine": {"type": "oauth2", "flows": {"clientCredentials": {"tokenUrl": "https://login.example/token"}}},
        "key": {"type": "apiKey", "in": "header", "name": "X-Key"},
        "other": {"type": "http", "scheme": "bearer"},
    });
    let path = |scheme: &str| json!({"get": {"operationId": scheme, "security": [{scheme: []}]}});
    let document = json!({"openapi": "3.1.0", "servers": [{"url": "https://pets.example"}],
        "paths": {"/a": path("login"), "/b": path("machine"), "/c": path("key"), "/d": path("other")},
        "components": {"securitySchemes": schemes}});
    std::fs::write(folder.path().join("pets.json"), document.to_string()).unwrap();
    let read = |security: &str| {
        let tool = "[tools.pets]\nkind = 'openapi'\nfile = 'pets.json'";
        let source = format!("[agents.a]\nscript = ['x']\ntools = ['pets']\n{tool}\n{security}");
        let path = folder.path().join("agents.toml");
        std::fs::write(&path, source).unwrap();
        super::load(&path, &setup(), &Trust::default()).offers
    };
    let good = format!(
        "
        [tools.pets.security]
        login = {{ client_id = 'app', client_secret = 'fixed-secret', redirect_uri = 'https://app.example/back' }}
        machine = {{ client_id = 'app', client_key = {KEY:?}, client_key_id = 'k1' }}
        key = {{ secret = 'fixed-key' }}
        other = {{ ask = true }}"
    );
    let runner = read(&good).unwrap().remove(0).runner(&Stores::in_memory()).unwrap();
    let explained = serde_json::to_string(&runner.explain().unwrap()).unwrap();
    assert!(explained.contains("machine") && !explained.contains("fixed-"), "{explained}");
    assert!(!explained.contains("PRIVATE KEY"), "{explained}");
    for (bad, said) in [
        ("[tools.pets.security.key]", "is given nothing, or too much"),
        ("[tools.pets.security.key]\nask = true\nsecret = 'x'", "is given nothing, or too much"),
        ("[tools.pets.security.none]\nask = true", "no security scheme `none`"),
        ("[tools.pets.security.key]\nclient_id = 'app'", "a program cannot sign in by it"),
        ("[tools.pets.security.machine]\nclient_id = 'a'\nclient_key = 'k'", "private key cannot be used"),
        (
            "[tools.pets.security.machine]\nclient_id = 'a'\nclient_key = 'k'\nclient_secret = 's'",
            "is given nothing, or too much",
        ),
        ("[tools.pets.security.key]\nsecrets = 'x'", "secrets"),
    ] {
        let told = read(bad).unwrap_err();
        assert!(told.contains(said), "{bad}: {told}");
    }
}

/// The page of the guide, and the folder of examples.
const PAGE: &str = include_str!("../../../../docs/agents-file.md");

#[test]
fn every_example_of_the_page_is_read() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/agents");
    let blocks: Vec<&str> =
        PAGE.split("```toml\n").skip(1).map(|rest| rest.split("```").next().unwrap()).collect();
    assert_eq!(blocks.len(), 8);
    for block in blocks {
        // Whoever reads the page has a key.
        let source = block.replace("model = \"openai/gpt-5-mini\"", "model = \"http://localhost:1/v1#m\"");
        let (offers, _) = read(&source, &folder, &setup(), &trusted());
        let told = offers.map_err(|problems| report(Path::new("docs"), &source, problems));
        assert!(told.is_ok(), "{}", told.unwrap_err());
    }
}

#[test]
fn the_page_names_all_handlers_and_tools() {
    for name in handlers::KNOWN.iter().map(|(name, _)| *name).chain(super::tools::BUILT_IN) {
        assert!(PAGE.contains(&format!("`{name}`")), "{name}");
    }
    let (_, page) = PAGE.split_once("\n# Handlers\n").unwrap();
    for (name, options) in HANDLERS {
        let line = page.lines().find(|line| line.starts_with(&format!("| `{name}`"))).unwrap();
        for key in options.split(", ").filter_map(|option| option.split_once(" = ")).map(|(key, _)| key) {
            let key = key.trim_start_matches(['{', '[', ' ']);
            assert!(line.contains(&format!("`{key}`")) || key.contains(char::is_whitespace), "{name}: {key}");
        }
    }
}

#[tokio::test]
async fn the_example_files_run() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/agents");
    let mut seen = 0;
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_none_or(|end| end != "toml") {
            continue;
        }
        seen += 1;
        let loaded = super::load(&path, &setup(), &trusted());
        for offer in loaded.offers.unwrap_or_else(|told| panic!("{told}")) {
            let message = offer.suggestions().first().cloned().unwrap_or_else(|| "Go.".to_owned());
            let runner = offer.runner(&Stores::in_memory()).unwrap();
            assert!(!answers(&runner, &message).await.is_empty(), "{}", path.display());
        }
    }
    assert_eq!(seen, 3);
}

const RICH: &str = r#"
offer = ["a"]
handlers = [{ name = "model_call_limit", run = 5 }]
[agents.a]
description = "Ü"
script = ["x", { call = "t", args = { n = 1.5, d = 1979-05-27 } }]
tools = ["current_time", { name = "t", confirm = true }, "b"]
settings = { temperature = 0.1, thinking = { effort = "low" } }
[agents.b]
kind = "loop"
steps = ["c"]
max_iterations = 0x10
[agents.c]
script = ["x"]
[tools.t]
kind = "command"
program = "true"
args = ["{n}"]
arguments.n = { type = "number" }
"#;

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]

    #[test]
    fn no_file_makes_the_reader_panic(cuts in prop::collection::vec((any::<prop::sample::Index>(), 0..40usize, 0..8usize), 1..8)) {
        let mut source = RICH.to_owned();
        for (at, length, what) in cuts {
            let places: Vec<usize> = source.char_indices().map(|(at, _)| at).collect();
            if places.is_empty() {
                break;
            }
            let from = at.index(places.len());
            let to = (from + length).min(places.len() - 1);
            let (from, to) = (places[from], places[to]);
            match what {
                0 => source.replace_range(from..to.max(from), ""),
                1 => source.insert_str(from, "[agents.a]\n"),
                2 => source.insert_str(from, "= {"),
                3 => source.insert(from, '\u{0}'),
                4 => source.insert_str(from, "\"b\", "),
                5 => source = source.replace("\"c\"", "\"b\""),
                6 => source = source.replace("[\"x\"]", "-9223372036854775809"),
                _ => source.insert_str(from, "é\n"),
            }
        }
        let (offers, _) = read(&source, Path::new(""), &setup(), &trusted());
        if let Err(problems) = offers {
            prop_assert!(!report(Path::new("a.toml"), &source, problems).is_empty());
        }
    }
}

#[test]
fn a_file_reads_what_lies_in_its_folder_and_nothing_else() {
    let folder = tempfile::tempdir().unwrap();
    let (inside, outside) = (folder.path().join("agents"), folder.path().join("secret.md"));
    std::fs::create_dir_all(inside.join("words")).unwrap();
    std::fs::write(&outside, "a secret").unwrap();
    std::fs::write(inside.join("words/a.md"), "words").unwrap();
    #[cfg(unix)]
    std::os::unix::fs::symlink(&outside, inside.join("link.md")).unwrap();
    let file = |name: &str| format!("[agents.a]\nscript = ['x']\ninstruction_file = '{name}'");
    let read = |name: &str, trust: &Trust| read(&file(name), &inside, &setup(), trust).0;
    assert!(read("words/a.md", &Trust::default()).is_ok());
    let mut names =
        vec!["../secret.md".to_owned(), "words/../../secret.md".to_owned(), outside.display().to_string()];
    if cfg!(unix) {
        names.push("link.md".to_owned());
    }
    for name in names {
        let told =
            report(Path::new("agents.toml"), &file(&name), read(&name, &Trust::default()).unwrap_err());
        assert!(
            told.contains("is not in the folder of this file") && told.contains("--allow-commands"),
            "{told}"
        );
        assert!(read(&name, &trusted()).is_ok(), "{name}");
    }
}

#[test]
fn a_file_uses_no_variable_that_it_is_not_trusted_with() {
    let file = |address: &str| {
        format!(
            "[agents.a]\nscript = ['x']\ntools = ['t']\n[tools.t]\nkind = 'mcp'\nurl = '{address}'\nheaders = \
             {{ X = 'a ${{CARGO_MANIFEST_DIR}}' }}"
        )
    };
    let source = file("https://tools.example/mcp");
    let read = |trust: &Trust| read(&source, Path::new(""), &setup(), trust).0;
    let told = report(Path::new("agents.toml"), &source, read(&Trust::default()).unwrap_err());
    assert!(told.contains("the variable `CARGO_MANIFEST_DIR`"), "{told}");
    assert!(told.contains("start with --allow-env CARGO_MANIFEST_DIR"), "{told}");
    let others = Trust { commands: false, variables: vec!["CARGO".to_owned()] };
    assert!(read(&others).is_err());
    let named = Trust { commands: false, variables: vec!["CARGO_MANIFEST_DIR".to_owned()] };
    assert!(read(&named).is_ok() && read(&trusted()).is_ok());
}
