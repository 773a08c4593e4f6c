//! Names that clients choose may hold anything that people write. They come back as they were sent, in streams, in
//! addresses and in lists.

use serde_json::Value;

use crate::desk::{ask, desk, end, kinds, talker, text, user};

const ODD: [&str; 10] = [
    "\u{1f9c5} onion",
    "quotes \" and ' and `",
    "a/b/../c",
    "%2e%2e%2f",
    "?q=1&thread=other#x",
    "<script>alert(1)</script>",
    "'; DROP TABLE sessions; --",
    "\u{202e}right to left",
    "e\u{301} and \u{e9}",
    "back\\slash",
];

/// Text as it can stand in an address.
fn escaped(text: &str) -> String {
    text.bytes().map(|byte| format!("%{byte:02X}")).collect()
}

#[tokio::test]
async fn odd_thread_run_and_message_ids_are_kept_as_they_are() {
    let host = desk(talker("Fine by me.")).await;
    for odd in ODD.into_iter().chain([&*"x".repeat(256)]) {
        let reply = host.post("/agent", &ask(odd, odd, &[user(odd, "hello")])).await;
        let place = reply.head.headers["content-location"].to_str().unwrap().to_owned();
        let frames = reply.frames().await;
        assert_eq!((&frames[0].event["threadId"], &frames[0].event["runId"]), (&odd.into(), &odd.into()));
        assert_eq!((end(&frames)["type"].as_str(), &*text(&frames)), (Some("RUN_FINISHED"), "Fine by me."));
        for path in [place, format!("/agent/runs/{}/events", escaped(odd))] {
            let again = host.get(&path).await.frames().await;
            assert_eq!(again, frames, "{path}");
        }
        host.service.forget_frames();
        let again = host.get(&format!("/agent/runs/{}/events", escaped(odd))).await.frames().await;
        assert_eq!((kinds(&again).last(), &*text(&again)), (Some(&"RUN_FINISHED"), "Fine by me."), "{odd}");
        let thread = host.get(&format!("/agent/threads/{}", escaped(odd))).await.json().await;
        assert_eq!((&thread["threadId"], &thread["messages"][0]["id"]), (&odd.into(), &odd.into()));
    }
    let listed = host.get("/agent/threads").await.json().await;
    let listed: Vec<&Value> =
        listed["threads"].as_array().unwrap().iter().map(|one| &one["threadId"]).collect();
    assert_eq!(listed.len(), ODD.len() + 1, "each is a thread of its own: {listed:?}");
}

#[tokio::test]
async fn ids_that_look_like_ours_are_still_the_client_s() {
    let host = desk(talker("Yes.")).await;
    for (run, id) in [("r1", "a"), ("r2", "a:0"), ("r3", "a:thoughts"), ("r4", "a:x")] {
        let frames = host.run(&ask("t", run, &[user(id, id)])).await;
        assert_eq!(text(&frames), "Yes.", "{id} is a message of its own");
    }
    let thread = host.get("/agent/threads/t").await.json().await;
    let ids: Vec<&str> = thread["messages"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|one| one["role"] == "user")
        .map(|one| one["id"].as_str().unwrap())
        .collect();
    assert_eq!(ids, ["a", "a:0", "a:thoughts", "a:x"]);
}

#[tokio::test]
async fn imported_ids_do_not_hide_later_ones_that_begin_alike() {
    let host = desk(talker("Yes.")).await;
    let history = [
        user("a", "first"),
        serde_json::json!({"id": "b", "role": "assistant", "content": "second"}),
        user("c", "third"),
    ];
    host.run(&ask("t", "r1", &history)).await;
    for (run, id) in [("r2", "a:0"), ("r3", "b:1"), ("r4", "b:0")] {
        let frames = host.run(&ask("t", run, &[user(id, id)])).await;
        assert_eq!(text(&frames), "Yes.", "{id} is a message of its own");
    }
}
