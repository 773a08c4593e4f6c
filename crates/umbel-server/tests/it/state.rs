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
    let awkward = json!({"a/b": {"~": [1, 2]}, "": 1, "m~n": null, "deep": {"list": [{"x": 1}, {"x": 2}]}});
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
async fn a_key_that_is_set_to_null_is_null_and_one_that_does_not_change_says_nothing() {
    let host = desk(setter()).await;
    let first = host.run(&ask("t", "r1", &[user("m1", "{\"a\": 1}")])).await;
    assert_eq!(of_kind(&first, "STATE_DELTA").len(), 1);
    let same = host.run(&with(ask("t", "r2", &[user("m2", "{\"a\": 1}")]), "state", json!({"a": 1}))).await;
    assert_eq!(of_kind(&same, "STATE_DELTA").len(), 0, "nothing changed");
    let null =
        host.run(&with(ask("t", "r3", &[user("m3", "{\"a\": null}")]), "state", json!({"a": 1}))).await;
    assert_eq!(
        (folded(Some(json!({"a": 1})), &null), stored(&host, "t").await),
        (json!({"a": null}), json!({"a": null}))
    );
}
