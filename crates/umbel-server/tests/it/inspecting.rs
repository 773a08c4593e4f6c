//! What agents are made of, and the log of a thread.

use std::sync::Arc;

use http::Method;
use serde_json::{Value, json};
use umbel::handlers::EventFilter;
use umbel::{
    AgentTool, Confirm, FunctionTool, InMemorySessions, LlmAgent, LoopAgent, Object, Parallel, Runner,
    Sequential, agent_fn,
};
use umbel_server::{AgentEndpoint, Server};

use crate::desk::{
    ByName, Slowly, answers, ask, call, desk, end, offered, results, say, serve, talker, user, with,
};
use crate::support::{Host, input};

async fn get(host: &Host, path: &str) -> Value {
    let reply = host.get(path).await;
    assert_eq!(reply.status(), 200, "{path}");
    reply.json().await
}

#[tokio::test]
async fn agents_are_listed_with_their_paths_and_what_one_may_say_first() {
    let guide = talker("hi").description("Shows the way.");
    let guide = offered(guide).suggestions(["Where to?", "How far?"]);
    let [sales, support] = ["sales", "support"].map(|name| offered(talker(name)));
    let server = Server::new().base_path("/x").agent("/guide", guide);
    let host = serve(server.resolver("/desk", [("a", sales), ("b", support)], |_| Ok(None))).await;
    let told = get(&host, "/x/agents").await;
    let agents = json!([
        {"path": "/x/guide", "name": "talker", "description": "Shows the way.",
         "suggestions": ["Where to?", "How far?"]},
        {"path": "/x/desk", "name": "talker", "description": "", "suggestions": []},
    ]);
    assert_eq!(told, json!({"agents": agents, "version": env!("CARGO_PKG_VERSION"), "inspect": true}));
}

#[tokio::test]
async fn a_graph_tells_what_each_agent_is_made_of_parents_first() {
    let look = FunctionTool::new("look", "Looks.", |_: Value| async { Ok("seen") });
    let pay = FunctionTool::new("pay", "Pays.", |_: Value| async { Ok("paid") });
    let helper = LlmAgent::new("helper").description("Helps.").model(answers(|_| say("ok")));
    let guide = LlmAgent::new("guide")
        .instruction("Be kind.")
        .model(answers(|_| say("hi")))
        .tool(look)
        .tool(pay.confirm(Confirm::Always))
        .tool(AgentTool::new(LlmAgent::new("expert").model(answers(|_| say("well")))))
        .sub_agent(helper);
    let steps = Sequential::new("steps").description("One by one.").agent(guide);
    let around = LoopAgent::new("around").agent(agent_fn("own", |_| Box::pin(async { Ok(()) })));
    let team = Parallel::new("team").agent(steps).agent(around.max_iterations(1));
    let runner = Runner::builder("desk", team).handler(EventFilter::new().hide_thoughts()).build().unwrap();
    let host = serve(Server::new().agent("/agent", AgentEndpoint::new(runner))).await;
    let graph = get(&host, "/agent/graph").await;
    assert_eq!(graph["root"], "team");
    let agents = graph["agents"].as_array().unwrap();
    let facts: Vec<Value> =
        agents.iter().map(|agent| json!([agent["name"], agent["kind"], agent["parent"]])).collect();
    let expected = json!([
        ["team", "parallel", null],
        ["steps", "sequential", "team"],
        ["guide", "llm", "steps"],
        ["helper", "llm", "guide"],
        ["around", "loop", "team"],
        ["own", "other", "around"],
    ]);
    assert_eq!(json!(facts), expected);
    let guide = &agents[2];
    assert_eq!(guide["model"], "script");
    assert_eq!(guide["instruction"], json!([{"source": "instruction", "text": "Be kind."}]));
    assert_eq!(guide["transfersTo"], json!(["helper"]));
    assert_eq!(agents[3]["transfersTo"], json!(["guide"]), "{}", agents[3]);
    assert_eq!((&agents[1]["description"], &agents[1]["model"]), (&json!("One by one."), &json!(null)));
    let tools = guide["tools"].as_array().unwrap();
    let named = |name: &str| tools.iter().find(|tool| tool["name"] == name).unwrap();
    assert_eq!(named("look")["source"], "agent");
    assert_eq!(named("look")["description"], "Looks.");
    assert!(named("look")["parameters"].is_object());
    assert_eq!(
        (&named("look")["needsConfirmation"], &named("look")["longRunning"]),
        (&json!(false), &json!(false))
    );
    assert_eq!(named("pay")["needsConfirmation"], true);
    assert_eq!(named("expert")["agent"], "expert");
    let hooks = guide["hooks"].as_array().unwrap();
    assert!(hooks.iter().any(|hook| hook["hook"] == "on_output"), "{guide}");
}

#[tokio::test]
async fn the_log_of_a_thread_is_told_as_viewers_may_see_it_in_pages() {
    let model = answers(|request| match results(request).is_empty() {
        true => call([("note", json!({}))]),
        false => say("Noted."),
    });
    let note = umbel::FunctionTool::new("note", "Notes.", |_: Value| async { Ok("done") });
    let agent = LlmAgent::new("scribe").model(model).tool(note).output_key("last");
    let host = desk(agent).await;
    let first = with(input("t", "r1", "Note it"), "state", json!({"mood": "good", "gone": 1}));
    host.run(&first).await;
    let second = ask("t", "r2", &[user("m2", "Again")]);
    host.run(&with(second, "state", json!({"mood": "bad", "gone": null}))).await;
    let log = get(&host, "/agent/threads/t/events").await;
    let events = log["events"].as_array().unwrap();
    assert_eq!((&log["threadId"], log["total"].as_u64()), (&json!("t"), Some(events.len() as u64)));
    assert_eq!((&log["initialState"], &log["next"]), (&json!({}), &json!(null)));
    let indexes: Vec<u64> = events.iter().map(|entry| entry["index"].as_u64().unwrap()).collect();
    assert_eq!(indexes, (0..events.len() as u64).collect::<Vec<_>>());
    let runs: Vec<&str> = events.iter().map(|entry| entry["runId"].as_str().unwrap()).collect();
    assert!(runs.starts_with(&["r1"]) && runs.ends_with(&["r2"]), "{runs:?}");
    assert!(runs.iter().all(|run| ["r1", "r2"].contains(run)), "{runs:?}");
    let names = |key: &str| -> Vec<&Value> {
        let parts = events.iter().flat_map(|entry| entry["event"]["content"]["parts"].as_array().unwrap());
        parts.filter_map(|part| part.get(key)).collect()
    };
    assert_eq!((names("functionCall").len(), names("functionResponse").len()), (2, 2));
    // What was set, one after the other, comes to the state as it is.
    let mut state = log["initialState"].as_object().unwrap().clone();
    for entry in events {
        let delta = entry["event"]["actions"]["stateDelta"].as_object().cloned().unwrap_or_default();
        assert!(
            delta.keys().all(|key| !key.starts_with("temp:") && !key.starts_with("_umbel:")),
            "{delta:?}"
        );
        state.extend(delta);
    }
    state.retain(|_, value| !value.is_null());
    assert_eq!(json!(state), get(&host, "/agent/threads/t").await["state"]);
    assert_eq!(state["mood"], "bad");
    // In pages.
    let (mut paged, mut after) = (Vec::new(), String::new());
    loop {
        let page = get(&host, &format!("/agent/threads/t/events?limit=3{after}")).await;
        assert!(page["events"].as_array().unwrap().len() <= 3);
        assert_eq!(page["initialState"].is_null(), !after.is_empty(), "only the first page has it");
        paged.extend(page["events"].as_array().unwrap().iter().cloned());
        match page["next"].as_u64() {
            Some(next) => after = format!("&after={next}"),
            None => break,
        }
    }
    assert_eq!(&paged, events);
    let last = events.len() - 1;
    let none = get(&host, &format!("/agent/threads/t/events?after={last}")).await;
    assert_eq!((&none["events"], &none["next"]), (&json!([]), &json!(null)));
    for bad in ["after=x", "limit=-1", "after=99999999999999999999999"] {
        assert_eq!(host.get(&format!("/agent/threads/t/events?{bad}")).await.status(), 400, "{bad}");
    }
}

#[tokio::test]
async fn what_handlers_hide_and_what_is_internal_is_not_in_the_log_that_is_told() {
    let agent = agent_fn("own", |run| {
        Box::pin(async move {
            for (text, key) in [("shown", "open"), ("hidden", "secret"), ("kept", "_umbel:own")] {
                let mut event = run.event().with_content(umbel::Content::model(text));
                let delta = Object::from_iter([(key.to_owned(), json!(1)), ("user:u".to_owned(), json!(2))]);
                event.actions_mut().state_delta = Some(delta);
                run.emit(event).await?;
            }
            Ok(())
        })
    });
    let hide = EventFilter::new().hide_if(|_, event| event.text() == "hidden");
    for (scoped, keys) in [(false, json!([["open"], []])), (true, json!([["open", "user:u"], ["user:u"]]))] {
        let runner = Runner::builder("desk", agent.clone()).handler(hide.clone()).build().unwrap();
        let state = json!({"first": 1, "_umbel:x": 1, "user:u": 0, "user:v": 3});
        let state = state.as_object().cloned().unwrap();
        runner.create_session_with("local", "t", state).await.unwrap();
        let endpoint = AgentEndpoint::new(runner).scoped_state(scoped);
        let host = serve(Server::new().agent("/agent", endpoint)).await;
        host.run(&input("t", "r", "go")).await;
        let log = get(&host, "/agent/threads/t/events").await;
        let told: Vec<&Value> = log["events"].as_array().unwrap().iter().collect();
        let indexes: Vec<u64> = told.iter().map(|entry| entry["index"].as_u64().unwrap()).collect();
        assert_eq!((log["total"].as_u64(), indexes), (Some(4), vec![0, 1, 3]), "places stay as they are");
        let deltas = told[1..].iter().map(|entry| {
            let delta = entry["event"]["actions"]["stateDelta"].as_object().unwrap();
            delta.keys().cloned().collect::<Vec<_>>()
        });
        assert_eq!(json!(deltas.collect::<Vec<_>>()), keys);
        let first = if scoped { json!({"first": 1, "user:v": 3}) } else { json!({"first": 1}) };
        assert_eq!(log["initialState"], first);
    }
}

#[tokio::test]
async fn what_handlers_hide_stays_hidden_when_the_agent_that_said_it_is_gone() {
    let sessions = Arc::new(InMemorySessions::new());
    let server = |name: &str| {
        let agent = LlmAgent::new(name).model(answers(|_| say("hidden")));
        let hide = EventFilter::new().hide_if(|_, event| event.text() == "hidden");
        let runner = Runner::builder("desk", agent).sessions(sessions.clone()).handler(hide);
        Server::new().agent("/agent", AgentEndpoint::new(runner.build().unwrap()))
    };
    let host = serve(server("old")).await;
    host.run(&input("t", "r", "go")).await;
    host.service.replace(server("new")).unwrap();
    for path in ["/agent/threads/t", "/agent/threads/t/events"] {
        let told = get(&host, path).await.to_string();
        assert!(told.contains("\"go\"") && !told.contains("hidden"), "{told}");
    }
}

#[tokio::test]
async fn with_auth_nobody_looks_into_agents_unless_the_server_says_so() {
    for (told, allowed) in [(None, false), (Some(true), true)] {
        let mut server = Server::new().auth(ByName).agent("/agent", offered(talker("hi")));
        if let Some(told) = told {
            server = server.inspect(told);
        }
        let host = serve(server).await;
        host.ask("ann", Method::POST, "/agent", &input("t", "r", "hello")).await.frames().await;
        let agents = host.ask("ann", Method::GET, "/agents", &Value::Null).await.json().await;
        assert_eq!(agents["inspect"], allowed);
        for path in INSPECTED {
            let reply = host.ask("ann", Method::GET, path, &Value::Null).await;
            let status = reply.status();
            let code = reply.json().await["error"]["code"].clone();
            let expected = if allowed { (200, Value::Null) } else { (404, json!("INSPECTION_OFF")) };
            assert_eq!((status.as_u16(), code), expected, "{path}");
        }
        // What is one's own can be read all the same.
        for path in ["/agent/threads", "/agent/threads/t", "/agent/threads/t/runs", "/agent/runs/r/events"] {
            assert_eq!(host.ask("ann", Method::GET, path, &Value::Null).await.status(), 200, "{path}");
        }
    }
}

/// Everything that looks into agents and their work.
const INSPECTED: [&str; 4] = [
    "/agent/graph",
    "/agent/threads/t/events",
    "/agent/runs/r/steps",
    "/agent/runs/r/steps/1/request?thread=t",
];

#[tokio::test]
async fn without_auth_inspection_can_be_switched_off() {
    let host = serve(Server::new().inspect(false).agent("/agent", offered(talker("hi")))).await;
    host.run(&input("t", "r", "hello")).await;
    for path in INSPECTED {
        assert_eq!(host.get(path).await.status(), 404, "{path}");
    }
    assert_eq!(get(&host, "/agents").await["inspect"], false);
}

#[tokio::test]
async fn another_s_work_cannot_be_looked_into() {
    let host = serve(Server::new().auth(ByName).inspect(true).agent("/agent", offered(talker("hi")))).await;
    host.ask("ann", Method::POST, "/agent", &input("t", "r", "hello")).await.frames().await;
    for path in INSPECTED.into_iter().filter(|path| *path != "/agent/graph") {
        let reply = host.ask("bob", Method::GET, path, &Value::Null).await;
        assert_eq!(reply.status(), 404, "{path}");
        assert_eq!(reply.json().await["error"]["code"], "NOT_FOUND", "{path}");
    }
}

#[tokio::test]
async fn threads_are_listed_with_titles_and_with_what_they_are_at() {
    let slowly = Slowly::new("one two");
    let asks = FunctionTool::new("pay", "Pays.", |_: Value| async { Ok("paid") }).confirm(Confirm::Always);
    let slow = slowly.clone();
    let model = answers(|request| {
        let said = request.contents.last().map(|content| content.text()).unwrap_or_default();
        if said.starts_with("Pay") { call([("pay", json!({}))]) } else { say("ok") }
    });
    let runner = Runner::new("desk", LlmAgent::new("clerk").model(model).tool(asks)).unwrap();
    let other =
        Runner::builder("desk", LlmAgent::new("slow").model(slow)).sessions(runner.sessions().clone());
    let other = AgentEndpoint::new(other.build().unwrap());
    let host = serve(Server::new().agent("/agent", AgentEndpoint::new(runner)).agent("/slow", other)).await;
    let long = format!("Tell me {}", "everything ".repeat(20));
    host.run(&input("told", "r1", &long)).await;
    let asked = host.run(&input("asks", "r2", "Pay\n the  bill")).await;
    assert_eq!(end(&asked)["outcome"]["type"], "interrupt");
    // State comes before what is said.
    host.run(&with(input("set", "r3", "Hello"), "state", json!({"a": 1}))).await;
    let mut running = host.post("/slow", &input("runs", "r4", "Slowly, please")).await;
    running.next().await.unwrap();
    let told = get(&host, "/agent/threads").await;
    let threads = told["threads"].as_array().unwrap();
    let facts = threads.iter().map(|thread| {
        assert!(thread["updatedAt"].as_f64().unwrap() > 1e9);
        json!([thread["threadId"], thread["title"], thread["running"], thread["waiting"]])
    });
    let facts: Vec<Value> = facts.collect();
    let expected = json!([
        ["runs", "Slowly, please", true, false],
        ["set", "Hello", false, false],
        ["asks", "Pay the bill", false, true],
        ["told", "Tell me everything everything everything everything everything everything…", false, false],
    ]);
    assert_eq!(json!(facts), expected);
    assert_eq!(told["next"], Value::Null);
    slowly.go_on();
    running.frames().await;
}

#[tokio::test]
async fn threads_come_in_pages_and_can_be_searched() {
    let host = desk(talker("hi")).await;
    for n in 0..7 {
        let about = if n % 2 == 0 { "Weather in ROME" } else { "Trains" };
        host.run(&input(&format!("t{n}"), &format!("r{n}"), &format!("{about} {n}"))).await;
    }
    let pages = async |query: &str| {
        let (mut ids, mut after) = (Vec::new(), String::new());
        loop {
            let page = get(&host, &format!("/agent/threads?{query}{after}")).await;
            let threads = page["threads"].as_array().unwrap();
            ids.push(threads.iter().map(|thread| thread["threadId"].as_str().unwrap().to_owned()).collect());
            match page["next"].as_str() {
                Some(next) => after = format!("&after={next}"),
                None => return ids.iter().map(|page: &Vec<String>| page.join(" ")).collect::<Vec<_>>(),
            }
        }
    };
    assert_eq!(pages("limit=3").await, ["t6 t5 t4", "t3 t2 t1", "t0"]);
    assert_eq!(pages("limit=7").await, ["t6 t5 t4 t3 t2 t1 t0"]);
    assert_eq!(pages("").await, ["t6 t5 t4 t3 t2 t1 t0"]);
    assert_eq!(pages("search=rome").await, ["t6 t4 t2 t0"]);
    assert_eq!(pages("search=rome%20weather&limit=2").await, ["t6 t4", "t2 t0"]);
    assert_eq!(pages("search=T5").await, ["t5"], "by name");
    assert_eq!(pages("search=rome+trains").await, [""]);
    for bad in ["limit=x", "after=x", "after="] {
        let reply = host.get(&format!("/agent/threads?{bad}")).await;
        assert_eq!(reply.status(), 400, "{bad}");
        assert_eq!(reply.json().await["error"]["code"], "INVALID_INPUT");
    }
}

#[tokio::test]
async fn a_thread_can_begin_like_another_up_to_an_event_or_before_it() {
    let host = desk(talker("hi")).await;
    for (run, text) in [("r1", "one"), ("r2", "two")] {
        host.run(&input("t", run, text)).await;
    }
    let log = get(&host, "/agent/threads/t/events").await;
    let id = |index: usize| log["events"][index]["event"]["id"].clone();
    let forked = async |body: Value| {
        let reply = host.post("/agent/threads/t/fork", &body).await;
        assert_eq!(reply.status(), 201, "{body}");
        let thread = reply.json().await["threadId"].as_str().unwrap().to_owned();
        let messages = get(&host, &format!("/agent/threads/{thread}")).await["messages"].clone();
        let said = messages.as_array().unwrap().iter();
        said.map(|message| message["content"].as_str().unwrap().to_owned()).collect::<Vec<_>>().join(" ")
    };
    assert_eq!(forked(json!({"eventId": id(1)})).await, "one hi");
    assert_eq!(forked(json!({"eventId": id(2)})).await, "one hi two");
    assert_eq!(forked(json!({"eventId": id(2), "before": true})).await, "one hi");
    assert_eq!(forked(json!({"messageId": "m-r2", "before": true})).await, "one hi");
    assert_eq!(forked(json!({"messageId": "m-r2", "before": false})).await, "one hi two");
    assert_eq!(forked(json!({"eventId": id(0), "before": true})).await, "");
    for (body, status) in [
        (json!({"eventId": "none"}), 404),
        (json!({"messageId": "none", "before": true}), 404),
        (json!({"eventId": id(0), "messageId": "m-r1"}), 422),
    ] {
        assert_eq!(host.post("/agent/threads/t/fork", &body).await.status(), status, "{body}");
    }
}

#[tokio::test]
async fn a_long_log_is_told_in_one_page_and_soon() {
    const EVENTS: usize = 5_000;
    let folder = tempfile::tempdir().unwrap();
    let address = format!("sqlite:{}", folder.path().join("a.db").display());
    let open = async || umbel_stores::open(&address).await.unwrap().sessions;
    let runner = |store| Runner::builder("desk", talker("hi")).sessions(store).build().unwrap();
    let key = umbel::SessionKey::new("desk", "local", "t").unwrap();
    let filling = runner(open().await);
    filling.create_session_with("local", "t", Object::new()).await.unwrap();
    for run in 0..EVENTS / 50 {
        let events = (0..50).map(|index| {
            let source =
                if index == 0 { umbel::Source::user() } else { Arc::new(umbel::Source::new("talker")) };
            let text = format!("{} {}", "Some words of a usual message, and some more. ".repeat(8), index);
            let mut event = umbel::Event::new(format!("run{run}").as_str().into(), source);
            event.id = format!("e{run}-{index}").as_str().into();
            event.content = Some(Arc::new(umbel::Content::model(&*text)));
            event.actions_mut().state_delta = Some(Object::from_iter([(format!("k{index}"), json!(run))]));
            umbel::LogEntry::Event(Arc::new(event))
        });
        filling.sessions().commit(&key, None, events.collect()).await.unwrap();
    }
    // Another process, which has nothing at hand.
    let host = serve(Server::new().agent("/agent", AgentEndpoint::new(runner(open().await)))).await;
    let begun = std::time::Instant::now();
    let text = host.get("/agent/threads/t/events").await.text().await;
    let took = begun.elapsed();
    let log: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(log["events"].as_array().unwrap().len(), EVENTS);
    assert_eq!((log["total"].as_u64(), &log["next"]), (Some(EVENTS as u64), &Value::Null));
    // A build that is optimised takes a small part of that.
    assert!(took < std::time::Duration::from_secs(5), "{took:?}");
}
