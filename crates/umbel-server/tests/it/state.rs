//! State both ways: what clients send, what they see, and what they may not touch.

use serde_json::{Value, json};
use umbel::handlers::ModelCallLimit;
use umbel::{FunctionTool, LlmAgent, Object, ScriptedModel};
use umbel_server::Server;

use crate::desk::{
    answers, ask, call, desk, end, kinds, of_kind, offered, results, say, serve, talker, text, user, with,
};
use crate::support::{Host, SseFrame, input};

/// An agent whose tool sets what the user's last word says, as JSON.
fn setter() -> LlmAgent {
    let set = FunctionTool::with_context("set", "Sets state", |cx, args: Value| {
        Box::pin(async move {
            for (key, value) in args.as_object().cloned().unwrap_or_default() {
                cx.set_state(key, value);
            }
            Ok("set")
        })
    });
    LlmAgent::new("setter").model(setting()).tool(set)
}

fn setting() -> ScriptedModel {
    answers(|request| {
        let asked = request
            .contents
            .iter()
            .rev()
            .find(|content| !content.text().is_empty())
            .map(|content| content.text());
        match serde_json::from_str::<Value>(&asked.unwrap_or_default()) {
            Ok(args) if results(request).is_empty() => call([("set", args)]),
            _ => say("done"),
        }
    })
}

/// The state that a client has after a stream, from what it had before.
fn folded(base: Option<Value>, frames: &[SseFrame]) -> Value {
    let mut state = base.unwrap_or_else(|| json!({}));
    for frame in frames {
        match frame.kind() {
            "STATE_SNAPSHOT" => state = frame.event["snapshot"].clone(),
            "STATE_DELTA" => {
                let ops: Vec<umbel_agui::PatchOp> =
                    serde_json::from_value(frame.event["delta"].clone()).unwrap();
                umbel_agui::patch::apply(&mut state, &ops).unwrap();
            }
            _ => {}
        }
    }
    state
}

async fn stored(host: &Host, thread: &str) -> Value {
    host.get(&format!("/agent/threads/{thread}")).await.json().await["state"].clone()
}

#[tokio::test]
async fn a_client_without_state_is_given_it_whole_before_any_patch() {
    let host = desk(setter()).await;
    host.run(&ask("t", "r1", &[user("m1", "{\"a\": 1}")])).await;
    for (run, sent) in
        [("r2", None), ("r3", Some(json!("text"))), ("r4", Some(json!([1]))), ("r5", Some(json!(7)))]
    {
        let message = ask("t", run, &[user(run, &format!("{{\"{run}\": true}}"))]);
        let frames = host
            .run(&match &sent {
                Some(state) => with(message, "state", state.clone()),
                None => message,
            })
            .await;
        let first = frames.iter().find(|frame| frame.kind().starts_with("STATE_")).unwrap();
        assert_eq!(first.kind(), "STATE_SNAPSHOT", "{run}: {sent:?}");
        assert_eq!(folded(sent, &frames), stored(&host, "t").await, "{run}");
    }
}

#[tokio::test]
async fn a_client_that_has_the_state_gets_patches_that_fit_it() {
    let host = desk(setter()).await;
    let awkward = json!({"a/b": {"~": [1, 2]}, "": 1, "m~n": false, "deep": {"list": [{"x": 1}, {"x": 2}]}});
    host.run(&ask("t", "r1", &[user("m1", &awkward.to_string())])).await;
    let base = stored(&host, "t").await;
    assert_eq!(base, awkward);
    let change = json!({"a/b": {"~": [1, 3]}, "deep": {"list": [{"x": 1}]}, "new": "yes"});
    let frames =
        host.run(&with(ask("t", "r2", &[user("m2", &change.to_string())]), "state", base.clone())).await;
    assert_eq!(kinds(&frames).iter().position(|kind| *kind == "STATE_DELTA").map(|at| at > 0), Some(true));
    let before_end: Vec<SseFrame> =
        frames.iter().filter(|frame| frame.kind() != "STATE_SNAPSHOT").cloned().collect();
    assert_eq!(folded(Some(base.clone()), &before_end), stored(&host, "t").await, "patches alone lead there");
    assert_eq!(folded(Some(base), &frames), stored(&host, "t").await);
}

#[tokio::test]
async fn what_a_client_changed_is_kept_and_what_it_lacks_is_told() {
    let host = desk(setter()).await;
    host.run(&ask("t", "r1", &[user("m1", "{\"kept\": 1, \"changed\": 1}")])).await;
    let theirs = json!({"changed": 2, "own": [1]});
    let frames = host.run(&with(ask("t", "r2", &[user("m2", "hello")]), "state", theirs.clone())).await;
    let wanted = json!({"kept": 1, "changed": 2, "own": [1]});
    assert_eq!((stored(&host, "t").await, folded(Some(theirs), &frames)), (wanted.clone(), wanted));
}

#[tokio::test]
async fn state_that_comes_without_a_message_is_kept_too() {
    let host = desk(talker("Hello.")).await;
    host.run(&input("t", "r1", "hello")).await;
    for (run, thread) in [("r2", "t"), ("r3", "new")] {
        let frames = host.run(&with(ask(thread, run, &[]), "state", json!({"color": "teal"}))).await;
        assert_eq!((end(&frames)["type"].as_str(), text(&frames).as_str()), (Some("RUN_FINISHED"), ""));
        assert_eq!(stored(&host, thread).await, json!({"color": "teal"}), "{thread}");
    }
}

#[tokio::test]
async fn keys_of_other_scopes_are_neither_taken_from_clients_nor_shown() {
    let host = desk(setter()).await;
    let theirs = json!({"app:a": 1, "user:u": 1, "temp:t": 1, "own": 1, "_umbel:calls:x": 99});
    let frames = host
        .run(&with(
            ask("t", "r1", &[user("m1", "{\"app:b\": 1, \"user:v\": 1, \"temp:w\": 1}")]),
            "state",
            theirs.clone(),
        ))
        .await;
    assert_eq!(folded(Some(theirs), &frames), json!({"own": 1}), "the client is told what counts");
    assert_eq!(stored(&host, "t").await, json!({"own": 1}));
    for frame in frames.iter().filter(|frame| frame.kind() == "STATE_SNAPSHOT") {
        assert_eq!(frame.event["snapshot"], json!({"own": 1}));
    }
    let other = host.run(&ask("t2", "r2", &[user("m1", "hello")])).await;
    assert_eq!(folded(None, &other), json!({}), "nothing reached the user or the app");
}

#[tokio::test]
async fn scoped_keys_are_shown_where_the_application_says_so_but_for_temp() {
    let host = serve(Server::new().agent("/agent", offered(setter()).scoped_state(true))).await;
    let theirs = json!({"user:theme": "dark", "temp:t": 1, "_umbel:x": 1});
    let frames =
        host.run(&with(ask("t", "r1", &[user("m1", "{\"app:b\": 1}")]), "state", theirs.clone())).await;
    assert_eq!(folded(Some(theirs), &frames), json!({"user:theme": "dark", "app:b": 1}));
    let other = host.run(&ask("t2", "r2", &[user("m1", "hello")])).await;
    assert_eq!(
        folded(None, &other),
        json!({"user:theme": "dark", "app:b": 1}),
        "they are the user's and the app's"
    );
}

#[tokio::test]
async fn what_handlers_keep_is_not_shown_and_cannot_be_overwritten() {
    let limits = ModelCallLimit::new().session(2);
    let host = desk(talker("Hello.").handler(limits)).await;
    for run in ["r1", "r2", "r3"] {
        let body =
            with(ask("t", run, &[user(run, "hello")]), "state", json!({"_umbel:calls:model-call-limit": 0}));
        let frames = host.run(&body).await;
        for frame in &frames {
            if frame.kind() == "STATE_SNAPSHOT" {
                assert_eq!(frame.event["snapshot"], json!({}), "{run}");
            }
        }
        if run == "r3" {
            assert_ne!(text(&frames), "Hello.", "the limit holds");
        }
    }
    assert_eq!(stored(&host, "t").await, json!({}));
}

#[tokio::test]
async fn state_of_the_request_counts_more_and_temp_keys_live_for_the_run() {
    let look = FunctionTool::with_context("look", "Looks", |cx, _: Value| {
        let (tenant, once) = (cx.state("tenant"), cx.state("temp:once"));
        Box::pin(async move { Ok(json!({"tenant": tenant, "once": once})) })
    });
    let model = answers(|request| match results(request).first() {
        None => call([("look", json!({}))]),
        Some((_, value)) => say(&value.to_string()),
    });
    let agent = offered(LlmAgent::new("looker").model(model).tool(look)).request_state(|head, _| {
        let mut state = Object::new();
        state.insert("tenant".to_owned(), json!("from the request"));
        if head.headers.contains_key("x-once") {
            state.insert("temp:once".to_owned(), json!("now"));
        }
        Ok(state)
    });
    let host = serve(Server::new().agent("/agent", agent)).await;
    let body = with(input("t", "r1", "look"), "state", json!({"tenant": "forged", "temp:once": "forged"}));
    let request =
        http::Request::builder().method("POST").uri("/agent").header("content-type", "application/json");
    let frames = host.send(request.header("x-once", "1"), body.to_string()).await.frames().await;
    assert_eq!(text(&frames), "{\"tenant\":\"from the request\",\"once\":\"now\"}");
    assert!(
        frames.iter().all(|frame| !frame.kind().starts_with("STATE") || !frame.text.contains("temp:")),
        "never shown"
    );
    assert_eq!(stored(&host, "t").await, json!({"tenant": "from the request"}), "never kept");
    let frames = host.run(&with(input("t", "r2", "look"), "state", json!({"temp:once": "forged"}))).await;
    assert_eq!(text(&frames), "{\"tenant\":\"from the request\",\"once\":null}");
    // A request without a message has no run for which they could be.
    let request =
        http::Request::builder().method("POST").uri("/agent").header("content-type", "application/json");
    let frames =
        host.send(request.header("x-once", "1"), ask("t", "r3", &[]).to_string()).await.frames().await;
    assert_eq!(end(&frames)["type"], "RUN_FINISHED");
}

#[tokio::test]
async fn a_key_that_is_set_to_null_is_removed_and_one_that_does_not_change_says_nothing() {
    let host = desk(setter()).await;
    let first = host.run(&ask("t", "r1", &[user("m1", "{\"a\": 1}")])).await;
    assert_eq!(of_kind(&first, "STATE_DELTA").len(), 1);
    let same = host.run(&with(ask("t", "r2", &[user("m2", "{\"a\": 1}")]), "state", json!({"a": 1}))).await;
    assert_eq!(of_kind(&same, "STATE_DELTA").len(), 0, "nothing changed");
    let null =
        host.run(&with(ask("t", "r3", &[user("m3", "{\"a\": null}")]), "state", json!({"a": 1}))).await;
    let removed = of_kind(&null, "STATE_DELTA");
    assert_eq!(removed[0]["delta"], json!([{"op": "remove", "path": "/a"}]));
    assert_eq!(folded(Some(json!({"a": 1})), &null), json!({}));
    assert_eq!(stored(&host, "t").await, json!({}));
    let kept = host.run(&with(ask("t", "r4", &[user("m4", "hello")]), "state", json!({"a": null}))).await;
    assert_eq!(of_kind(&kept, "STATE_DELTA").len(), 0, "it is no change");
    assert_eq!(folded(Some(json!({"a": null})), &kept), json!({}), "the whole state does not have it");
}

#[tokio::test]
async fn stream_snapshot_replay_and_thread_agree_on_keys_that_are_removed() {
    let host = desk(setter()).await;
    let mut has = json!({"a": 1, "b": {"c": null}, "d/~": 2});
    // Removed, removed though it was not there, set again, null inside a value, and all at once.
    let changes = [
        json!({"a": null}),
        json!({"never": null}),
        json!({"a": {"x": null, "y": [null]}}),
        json!({"b": null, "d/~": null, "e": 1}),
        json!({"e": null, "a": null}),
    ];
    for (n, change) in changes.iter().enumerate() {
        let run = format!("r{n}");
        let input =
            with(ask("t", &run, &[user(&format!("m{n}"), &change.to_string())]), "state", has.clone());
        let frames = host.run(&input).await;
        let deltas: Vec<SseFrame> =
            frames.iter().filter(|frame| frame.kind() != "STATE_SNAPSHOT").cloned().collect();
        for (key, value) in change.as_object().unwrap() {
            match value {
                Value::Null => drop(has.as_object_mut().unwrap().shift_remove(key)),
                value => has[key] = value.clone(),
            }
        }
        let before = input["state"].clone();
        assert_eq!(folded(Some(before.clone()), &deltas), has, "patches of {change}");
        assert_eq!(folded(Some(before.clone()), &frames), has, "patches and snapshot of {change}");
        assert_eq!(stored(&host, "t").await, has, "thread after {change}");
        host.service.forget_frames();
        let replayed = host.get(&format!("/agent/runs/{run}/events")).await.frames().await;
        assert_eq!(folded(Some(before), &replayed), has, "replay of {change}");
    }
    assert_eq!(has, json!({}));
}

/// What a client has that was there until now.
async fn history(host: &Host) -> Vec<Value> {
    host.get("/agent/threads/t").await.json().await["messages"].as_array().unwrap().clone()
}

/// A request of a client with that history and that state.
fn coming_back(history: &[Value], run: &str, says: &str, state: Value) -> Value {
    let messages = [history, &[user(&format!("m-{run}"), says)]].concat();
    with(ask("t", run, &messages), "state", state)
}

/// What a client is told of its changes that were not taken.
fn conflicts(frames: &[SseFrame]) -> Vec<Value> {
    let told = of_kind(frames, "CUSTOM").into_iter().filter(|event| event["name"] == "StateConflict");
    told.flat_map(|event| event["value"].as_array().unwrap().clone()).collect()
}

#[tokio::test]
async fn what_a_client_did_not_touch_is_never_overwritten() {
    let host = desk(setter()).await;
    host.run(&ask("t", "r1", &[user("m1", "{\"a\": 1, \"b\": 1}")])).await;
    let before = history(&host).await;
    host.run(&ask("t", "r2", &[user("m2", "{\"a\": 2}")])).await;
    let theirs = json!({"a": 1, "b": 5});
    let frames = host.run(&coming_back(&before, "r3", "hello", theirs.clone())).await;
    let wanted = json!({"a": 2, "b": 5});
    assert_eq!((stored(&host, "t").await, folded(Some(theirs), &frames)), (wanted.clone(), wanted));
    assert_eq!(conflicts(&frames), Vec::<Value>::new(), "it changed nothing that others did");
}

#[tokio::test]
async fn a_key_that_client_and_agent_both_changed_stays_and_the_client_is_told() {
    let host = desk(setter()).await;
    host.run(&ask("t", "r1", &[user("m1", "{\"a\": 1, \"b\": 1}")])).await;
    let before = history(&host).await;
    host.run(&ask("t", "r2", &[user("m2", "{\"a\": 2}")])).await;
    let theirs = json!({"a": 9, "b": 1});
    let frames = host.run(&coming_back(&before, "r3", "hello", theirs.clone())).await;
    assert_eq!(conflicts(&frames), [json!({"key": "a", "sent": 9, "kept": 2})]);
    let wanted = json!({"a": 2, "b": 1});
    assert_eq!((stored(&host, "t").await, folded(Some(theirs), &frames)), (wanted.clone(), wanted));
    let now = history(&host).await;
    let again = host.run(&coming_back(&now, "r4", "hello", json!({"a": 9, "b": 1}))).await;
    assert_eq!(conflicts(&again), Vec::<Value>::new(), "it knows what it changes");
    assert_eq!(stored(&host, "t").await, json!({"a": 9, "b": 1}));
}

#[tokio::test]
async fn both_changed_to_the_same_is_no_conflict_and_a_removal_of_what_others_changed_is_one() {
    let host = desk(setter()).await;
    host.run(&ask("t", "r1", &[user("m1", "{\"a\": 1, \"b\": 1, \"c\": 1}")])).await;
    let before = history(&host).await;
    host.run(&ask("t", "r2", &[user("m2", "{\"a\": 2, \"b\": 2}")])).await;
    let theirs = json!({"a": 2, "c": 1});
    let frames = host.run(&coming_back(&before, "r3", "hello", theirs.clone())).await;
    assert_eq!(conflicts(&frames), [json!({"key": "b", "kept": 2})]);
    let wanted = json!({"a": 2, "b": 2, "c": 1});
    assert_eq!((stored(&host, "t").await, folded(Some(theirs), &frames)), (wanted.clone(), wanted));
}

#[tokio::test]
async fn a_client_removes_a_key_by_sending_its_state_without_it() {
    let host = desk(setter()).await;
    host.run(&ask("t", "r1", &[user("m1", "{\"a\": 1, \"b\": {\"deep\": 1}}")])).await;
    let before = history(&host).await;
    let theirs = json!({"b": {"deep": 1}});
    let frames = host.run(&coming_back(&before, "r2", "hello", theirs.clone())).await;
    assert_eq!(
        (stored(&host, "t").await, folded(Some(theirs.clone()), &frames)),
        (theirs.clone(), theirs.clone())
    );
    let (now, other) = (history(&host).await, host.run(&ask("t", "r3", &[user("m3", "hello")])).await);
    assert_eq!(folded(None, &other), theirs, "it is gone for others, too");
    let back = host.run(&coming_back(&now, "r4", "{\"a\": 3}", theirs.clone())).await;
    assert_eq!(folded(Some(theirs), &back), json!({"a": 3, "b": {"deep": 1}}), "and may come back");
}

#[tokio::test]
async fn nothing_is_removed_by_who_keeps_no_state_or_was_not_told_of_it() {
    let host = desk(setter()).await;
    host.run(&ask("t", "r1", &[user("m1", "{\"a\": 1, \"b\": 1}")])).await;
    let before = history(&host).await;
    let all = json!({"a": 1, "b": 1});
    for (run, theirs) in [("r2", json!({})), ("r3", json!({"own": 1}))] {
        host.run(&coming_back(&before, run, "hello", theirs)).await;
        let stored = stored(&host, "t").await;
        assert_eq!((&stored["a"], &stored["b"]), (&all["a"], &all["b"]), "{run}: none of it was sent back");
    }
    host.run(&with(ask("t", "r4", &[user("m4", "hello")]), "state", json!({"a": 1}))).await;
    assert_eq!(stored(&host, "t").await["b"], 1, "who sends one message alone may not know of it");
    host.run(&ask("t", "r5", &[user("m5", "{\"new\": 1}")])).await;
    host.run(&coming_back(&before, "r6", "hello", json!({"a": 1, "b": 1}))).await;
    assert_eq!(stored(&host, "t").await["new"], 1, "it was never told of that");
}

#[tokio::test]
async fn state_that_a_client_sent_without_a_message_is_its_own_to_change() {
    let host = desk(setter()).await;
    host.run(&ask("t", "r1", &[user("m1", "{\"a\": 1}")])).await;
    let before = history(&host).await;
    host.run(&with(ask("t", "r2", &before), "state", json!({"a": 2}))).await;
    let frames = host.run(&coming_back(&before, "r3", "hello", json!({"a": 3}))).await;
    assert_eq!((conflicts(&frames).len(), stored(&host, "t").await), (0, json!({"a": 3})));
    let runs = host.get("/agent/threads/t/runs").await.json().await;
    let runs: Vec<_> = runs["runs"].as_array().unwrap().iter().map(|run| run["runId"].clone()).collect();
    assert_eq!(runs, ["r1", "r3"], "what has no message is no run");
}

#[tokio::test]
async fn keys_that_other_sessions_write_are_neither_removed_nor_put_back_by_who_did_not_hear_of_it() {
    let host = serve(Server::new().agent("/agent", offered(setter()).scoped_state(true))).await;
    host.run(&with(ask("t", "r1", &[user("m1", "hello")]), "state", json!({"a": 1}))).await;
    let set = |run: &'static str, what: Value| ask("other", run, &[user(run, &what.to_string())]);
    host.run(&set("o1", json!({"user:theme": "dark", "app:news": 1}))).await;
    let mut now = history(&host).await;
    let frames = host.run(&coming_back(&now, "r2", "hello", json!({"a": 1}))).await;
    let all = json!({"a": 1, "user:theme": "dark", "app:news": 1});
    assert_eq!(
        (stored(&host, "t").await, folded(Some(json!({"a": 1})), &frames)),
        (all.clone(), all.clone())
    );

    host.run(&set("o2", json!({"user:theme": "light"}))).await;
    now = history(&host).await;
    let frames = host.run(&coming_back(&now, "r3", "hello", all.clone())).await;
    assert_eq!(stored(&host, "t").await["user:theme"], "light");
    assert_eq!(folded(Some(all), &frames)["user:theme"], "light", "it is told what counts");

    // What it wrote itself is its own to change, until somebody else does.
    let sent = [("r4", 1, 1, 0), ("r5", 2, 2, 0), ("r6", 2, 7, 0), ("r7", 4, 7, 1), ("r8", 4, 4, 0)];
    for (run, own, kept, told) in sent {
        if run == "r6" {
            host.run(&set("o3", json!({"user:own": 7}))).await;
        }
        now = history(&host).await;
        let frames = host.run(&coming_back(&now, run, "hello", json!({"a": 1, "user:own": own}))).await;
        assert_eq!(stored(&host, "t").await["user:own"], kept, "{run}");
        assert_eq!(conflicts(&frames).len(), told, "{run}");
    }
}

#[tokio::test]
async fn who_saw_a_message_begin_and_not_what_came_with_it_neither_removes_that_nor_puts_it_back() {
    let model = answers(|request| say(&format!("On {}", request.contents.last().unwrap().text())));
    let host = desk(LlmAgent::new("writer").model(model).output_key("draft")).await;
    host.run(&with(ask("t", "r1", &[user("m1", "cats")]), "state", json!({"a": 1}))).await;
    // Its history has the whole message, as if it had stopped after the first words.
    let mut now = history(&host).await;
    let frames = host.run(&coming_back(&now, "r2", "dogs", json!({"a": 1}))).await;
    let snapshot = frames.iter().find(|frame| frame.kind().starts_with("STATE_")).unwrap();
    assert_eq!(folded(Some(json!({"a": 1})), std::slice::from_ref(snapshot))["draft"], "On cats");
    now = history(&host).await;
    let before = json!({"a": 1, "draft": "On cats"});
    let frames = host.run(&with(ask("t", "r3", &now), "state", before.clone())).await;
    assert_eq!((stored(&host, "t").await["draft"].as_str(), conflicts(&frames).len()), (Some("On dogs"), 0));
    assert_eq!(folded(Some(before), &frames)["draft"], "On dogs", "it is told what counts");
    host.run(&with(ask("t", "r4", &now), "state", json!({"a": 1, "draft": "Mine"}))).await;
    assert_eq!(stored(&host, "t").await["draft"], "Mine", "what it made of it counts");
    host.run(&with(ask("t", "r5", &now), "state", json!({"draft": "Mine"}))).await;
    assert_eq!(stored(&host, "t").await, json!({"draft": "Mine"}), "what it knew it may remove");
}
