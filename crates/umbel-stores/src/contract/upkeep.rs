//! Which sessions wait, which are idle, and what is left when a user is erased.

use std::sync::Arc;

use serde_json::json;
use umbel_core::store::{Idle, IdleFilter, StoredUsage};
use umbel_core::weight::json_bytes;
use umbel_core::{
    CallId, Content, ErrorKind, EventFilter, FunctionResponse, Interrupt, LogEntry, NewSession, Object,
    Outcome, Part, RunId, RunStep, SessionKey, Source, Versions,
};

use super::leases::{SHORT, WAIT};
use super::{
    LONG, Sessions, acquire, entries, finished, fresh_app, key, lease, log, message, new_session, read,
    refused, said, sets,
};

/// A question as a run asks it.
fn question(id: &str) -> Interrupt {
    let question = json!({"id": id, "address": {"agent": "clerk"}, "reason": "confirmation",
                          "message": "May I? å\"\n\u{0}", "responseSchema": {"type": "boolean"}, "expiresAt": 1e9});
    serde_json::from_value(question).unwrap()
}

/// A run asks in the middle.
fn asked(ids: &[&str]) -> LogEntry {
    RunStep::Asked { interrupts: Box::new(ids.iter().map(|id| question(id)).collect()) }.into()
}

/// The end of a run that waits for answers.
fn ends_with(ids: &[&str]) -> LogEntry {
    let interrupts = Box::new(ids.iter().map(|id| question(id)).collect());
    RunStep::Ended { outcome: Outcome::Interrupted { interrupts } }.into()
}

/// An event with calls whose answer comes later.
fn awaits(ids: &[&str]) -> LogEntry {
    let mut event = message("I will call you back", 1.0);
    event.long_running_tool_ids = Some(Box::new(ids.iter().map(|id| CallId::from(*id)).collect()));
    LogEntry::Event(Arc::new(event))
}

/// The answer to a call or a question.
fn answers(id: &str, author: &str) -> LogEntry {
    let mut event = message("", 2.0);
    event.source = Arc::new(Source::new(author));
    let response = FunctionResponse::new(Some(CallId::from(id)), "tool", Object::new());
    event.content = Some(Arc::new(Content::user(Part::response(response))));
    LogEntry::Event(Arc::new(event))
}

/// The ids of the open questions of an app, with the session they stand in.
async fn open(store: &Sessions, app: &str, user: Option<&str>) -> Vec<(String, String)> {
    let open = store.open_questions(app, user).await.unwrap();
    open.iter().map(|open| (open.key.id().to_owned(), open.interrupt.id.to_string())).collect()
}

async fn idle(store: &Sessions, key: &SessionKey) -> Idle {
    let found = store.idle(key.app(), IdleFilter::before(f64::INFINITY)).await.unwrap();
    found.into_iter().find(|idle| idle.key == *key).unwrap()
}

async fn exists(store: &Sessions, key: &SessionKey) -> bool {
    store.get(key, EventFilter::default()).await.unwrap().is_some()
}

pub async fn a_question_is_open_until_the_user_answers(store: &Sessions) {
    let session = new_session(store).await;
    let app = session.key.app();
    let commit = async |entry| store.commit(&session.key, None, entries([entry])).await.unwrap();
    let ids = async || {
        let open = open(store, app, None).await;
        open.into_iter().map(|(_, id)| id).collect::<Vec<_>>().join(" ")
    };
    assert_eq!(ids().await, "");
    commit(asked(&["q1"])).await;
    commit(ends_with(&["q1", "q2"])).await;
    let found = store.open_questions(app, None).await.unwrap();
    assert_eq!(
        found.iter().map(|open| &open.interrupt).collect::<Vec<_>>(),
        [&question("q1"), &question("q2")]
    );
    assert!(found.iter().all(|open| open.key == session.key && open.updated_at == session.updated_at));
    commit(said("something else")).await;
    commit(RunStep::Started { fingerprint: 1 }.into()).await;
    commit(finished()).await;
    assert_eq!(ids().await, "q1 q2", "it may be answered much later");
    commit(answers("q1", "agent")).await;
    commit(answers("unknown", "user")).await;
    assert_eq!(ids().await, "q1 q2", "only people answer");
    commit(answers("q1", "user")).await;
    assert_eq!(ids().await, "q2");
    commit(asked(&["q3"])).await;
    commit(ends_with(&["q2"])).await;
    assert_eq!(ids().await, "q3 q2", "one that is asked again stands there once");
    let at_once = [answers("q3", "user"), asked(&["q4", "q5"]), answers("q4", "user"), asked(&["q3"])];
    store.commit(&session.key, None, entries(at_once)).await.unwrap();
    assert_eq!(ids().await, "q2 q5 q3", "the order of entries counts");
}

pub async fn questions_follow_every_way_to_append(store: &Sessions) {
    let session = new_session(store).await;
    let app = session.key.app();
    let count = async || open(store, app, None).await.len();
    let taken =
        acquire(store, &session.key, LONG, Versions::default(), entries([asked(&["a"])])).await.unwrap();
    assert_eq!(count().await, 1);
    let versions = store.append(&taken.lease, taken.versions, entries([answers("a", "user")])).await.unwrap();
    assert_eq!(count().await, 0);
    let stale = store.append(&taken.lease, taken.versions, entries([asked(&["lost"])])).await;
    refused(stale, ErrorKind::StaleSession);
    assert_eq!(count().await, 0, "what was not written is not asked");
    let versions = store.append(&taken.lease, versions, entries([asked(&["b"])])).await.unwrap();
    let user_state = sets(json!({"user:u": 1}));
    let versions = store.append(&taken.lease, versions, entries([user_state, asked(&["c"])])).await.unwrap();
    assert_eq!(count().await, 2);
    store.release(&taken.lease, versions, entries([said("x"), ends_with(&["c", "d"])])).await.unwrap();
    assert_eq!(count().await, 3);
    let answers = entries([answers("b", "user"), answers("d", "user")]);
    acquire(store, &session.key, LONG, Versions::default(), answers).await.unwrap();
    assert_eq!(open(store, app, None).await, [("s1".to_owned(), "c".to_owned())]);
}

pub async fn questions_of_an_app_are_listed_by_last_change(store: &Sessions) {
    let (app, other) = (fresh_app(), fresh_app());
    let made = [
        (&app, "ann", "new", 9.0),
        (&app, "bob", "old", 3.0),
        (&app, "ann", "mid", 5.0),
        (&other, "ann", "x", 1.0),
    ];
    for (app, user, id, time) in made {
        let key = key(app, user, id);
        store.create(NewSession::new(key.clone())).await.unwrap();
        let event = LogEntry::Event(Arc::new(message("x", time)));
        store.commit(&key, None, entries([event, ends_with(&[id])])).await.unwrap();
    }
    let child = key(&app, "ann", "child");
    store.create(NewSession::new(child.clone()).parent(key(&app, "ann", "new"))).await.unwrap();
    store.commit(&child, None, entries([ends_with(&["hidden"])])).await.unwrap();
    let ids = |found: Vec<(String, String)>| found.into_iter().map(|(_, id)| id).collect::<Vec<_>>();
    assert_eq!(ids(open(store, &app, None).await), ["old", "mid", "new"]);
    assert_eq!(ids(open(store, &app, Some("ann")).await), ["mid", "new"]);
    assert!(open(store, &app, Some("eve")).await.is_empty());
    store.delete(&key(&app, "ann", "mid")).await.unwrap();
    assert_eq!(ids(open(store, &app, Some("ann")).await), ["new"]);
}

pub async fn calls_are_awaited_until_they_are_answered(store: &Sessions) {
    let session = new_session(store).await;
    let awaited = async |entry| {
        store.commit(&session.key, None, entries([entry])).await.unwrap();
        idle(store, &session.key).await.awaited_calls
    };
    assert_eq!(awaited(awaits(&["a", "b\0", "c"])).await, 3);
    assert!(idle(store, &session.key).await.is_waiting());
    assert_eq!(awaited(said("meanwhile")).await, 3);
    assert_eq!(awaited(finished()).await, 3, "a run that ends leaves them awaited");
    assert_eq!(awaited(answers("unknown", "agent")).await, 3);
    assert_eq!(awaited(answers("b\0", "agent")).await, 2);
    assert_eq!(awaited(answers("a", "agent")).await, 1);
    assert_eq!(awaited(awaits(&["c"])).await, 1, "the same call asked again");
    assert_eq!(awaited(answers("c", "agent")).await, 0);
    assert!(!idle(store, &session.key).await.is_waiting());
    let at_once =
        entries([awaits(&["d", "e"]), answers("d", "agent"), answers("e", "agent"), awaits(&["e"])]);
    store.commit(&session.key, None, at_once).await.unwrap();
    assert_eq!(idle(store, &session.key).await.awaited_calls, 1, "the order of entries counts");
    let mut preview = message("", 3.0);
    preview.partial = Some(true);
    preview.long_running_tool_ids = Some(Box::new(vec!["p".into()]));
    assert_eq!(awaited(LogEntry::Event(Arc::new(preview))).await, 1, "previews are not stored");
    let taken = lease(store, &session.key, LONG).await.unwrap();
    let versions = store.append(&taken.lease, taken.versions, entries([awaits(&["f"])])).await.unwrap();
    assert_eq!(idle(store, &session.key).await.awaited_calls, 2);
    store
        .release(&taken.lease, versions, entries([answers("e", "agent"), answers("f", "agent"), finished()]))
        .await
        .unwrap();
    assert_eq!(idle(store, &session.key).await.awaited_calls, 0);
}

pub async fn idle_sessions_come_in_pages_longest_ago_first(store: &Sessions) {
    let app = fresh_app();
    for (user, id, time) in
        [("ann", "e", 50.0), ("bob", "b", 20.0), ("ann", "a", 10.0), ("ann", "c", 20.0), ("ann", "d", 40.0)]
    {
        let key = key(&app, user, id);
        store.create(NewSession::new(key.clone())).await.unwrap();
        store.commit(&key, None, entries([LogEntry::Event(Arc::new(message("x", time)))])).await.unwrap();
    }
    let child = key(&app, "ann", "child");
    store.create(NewSession::new(child.clone()).parent(key(&app, "ann", "a"))).await.unwrap();
    store.commit(&child, None, entries([said("x")])).await.unwrap();
    let pages = async |filter: IdleFilter<'_>| {
        let (mut ids, mut last) = (Vec::new(), None::<Idle>);
        loop {
            let page = IdleFilter { after: last.as_ref(), ..filter };
            let page = store.idle(&app, page).await.unwrap();
            assert!(page.len() <= filter.limit);
            ids.extend(page.iter().map(|idle| idle.key.id().to_owned()));
            last = page.into_iter().next_back();
            if last.is_none() {
                return ids.join(" ");
            }
        }
    };
    for limit in [1, 2, 3, 100] {
        assert_eq!(pages(IdleFilter::before(50.0).limit(limit)).await, "a b c d", "{limit}");
        assert_eq!(pages(IdleFilter::before(1e9).limit(limit).user("ann")).await, "a c d e");
    }
    for limit in [1, 2, 3, 100] {
        let filter = IdleFilter::before(1e9).newest_first().limit(limit);
        assert_eq!(pages(filter).await, "e d c b a", "{limit}");
        assert_eq!(pages(filter.user("ann")).await, "e d c a");
    }
    assert_eq!(pages(IdleFilter::before(50.0).newest_first()).await, "d c b a", "the bound is the same");
    assert_eq!(pages(IdleFilter::before(20.0)).await, "a", "before, not at");
    assert_eq!(pages(IdleFilter::before(1e9).user("eve")).await, "");
    let found = store.idle(&app, IdleFilter::before(15.0)).await.unwrap();
    let session = read(store, &found[0].key).await;
    assert_eq!((found[0].updated_at, found[0].versions), (10.0, session.versions));
    let after = found.into_iter().next().unwrap();
    let next = store.idle(&app, IdleFilter::before(1e9).after(&after).limit(1)).await.unwrap();
    assert_eq!(next[0].key.id(), "b");
}

pub async fn an_idle_session_tells_who_is_at_work(store: &Sessions) {
    let session = new_session(store).await;
    let at_work = async || {
        let idle = idle(store, &session.key).await;
        (idle.held, idle.abandoned, idle.is_waiting())
    };
    assert_eq!(at_work().await, (false, false, false));
    let taken = lease(store, &session.key, LONG).await.unwrap();
    assert_eq!(at_work().await, (true, false, false));
    store.release(&taken.lease, taken.versions, entries([ends_with(&["a", "b"])])).await.unwrap();
    assert_eq!(at_work().await, (false, false, true));
    assert_eq!(idle(store, &session.key).await.questions, 2);
    lease(store, &session.key, SHORT).await.unwrap();
    tokio::time::sleep(WAIT).await;
    assert_eq!(at_work().await, (false, true, true));
}

pub async fn only_what_is_unchanged_and_free_is_deleted(store: &Sessions) {
    let session = new_session(store).await;
    let child = key(session.key.app(), "ann", "child");
    store.create(NewSession::new(child.clone()).parent(session.key.clone())).await.unwrap();
    let seen = store.commit(&session.key, None, entries([said("one")])).await.unwrap();
    store.commit(&session.key, None, entries([said("two")])).await.unwrap();
    refused(store.delete_unchanged(&session.key, seen).await, ErrorKind::StaleSession);
    let taken = lease(store, &session.key, LONG).await.unwrap();
    refused(store.delete_unchanged(&session.key, taken.versions).await, ErrorKind::SessionBusy);
    assert_eq!(log(store, &session.key).await.len(), 2, "nothing was deleted");
    let versions = store.release(&taken.lease, taken.versions, entries([])).await.unwrap();
    store.delete_unchanged(&session.key, versions).await.unwrap();
    assert!(!exists(store, &session.key).await && !exists(store, &child).await);
    store.delete_unchanged(&session.key, versions).await.unwrap();
    let again = store.create(NewSession::new(session.key.clone())).await.unwrap();
    let old = Versions { session: 0, ..versions };
    refused(store.delete_unchanged(&session.key, old).await, ErrorKind::StaleSession);
    store.delete_unchanged(&session.key, again.versions).await.unwrap();
    assert!(!exists(store, &session.key).await);
}

pub async fn an_erased_user_leaves_nothing(store: &Sessions) {
    let (app, other) = (fresh_app(), fresh_app());
    let state = super::object(json!({"k": 1, "user:u": "theirs", "app:a": "shared"}));
    let keys =
        [key(&app, "ann", "s1"), key(&app, "ann", "s2"), key(&app, "bob", "s1"), key(&other, "ann", "s1")];
    for key in &keys {
        store.create(NewSession::new(key.clone()).state(state.clone())).await.unwrap();
        store.commit(key, None, entries([said("x"), ends_with(&["q"])])).await.unwrap();
    }
    let (child, grandchild) = (key(&app, "ann", "child"), key(&app, "helper", "grandchild"));
    store.create(NewSession::new(child.clone()).parent(keys[0].clone())).await.unwrap();
    store.create(NewSession::new(grandchild.clone()).parent(child.clone())).await.unwrap();
    assert_eq!(store.erase_user(&app, "ann").await.unwrap(), 4);
    for gone in [&keys[0], &keys[1], &child, &grandchild] {
        assert!(!exists(store, gone).await, "{gone}");
    }
    assert!(store.list(&app, "ann").await.unwrap().is_empty());
    assert!(store.user_state(&app, "ann").await.unwrap().is_empty());
    assert!(open(store, &app, Some("ann")).await.is_empty());
    for kept in [&keys[2], &keys[3]] {
        let session = read(store, kept).await;
        assert_eq!(session.state.get("user:u"), Some(&json!("theirs")));
        assert_eq!(session.state.get("app:a"), Some(&json!("shared")));
        assert_eq!(session.events.len(), 1);
    }
    assert_eq!(store.erase_user(&app, "ann").await.unwrap(), 0, "once more is fine");
    let again = store.create(NewSession::new(keys[0].clone())).await.unwrap();
    assert_eq!(again.state.get("user:u"), None);
    store.commit(&keys[0], None, entries([sets(json!({"user:u": 2}))])).await.unwrap();
    assert_eq!(read(store, &keys[0]).await.state.get("user:u"), Some(&json!(2)));
}

pub async fn a_user_is_not_erased_while_a_run_is_under_way(store: &Sessions) {
    let session = new_session(store).await;
    let (app, parent) = (session.key.app(), key(session.key.app(), "ann", "s2"));
    let child = key(app, "ann", "child");
    store.create(NewSession::new(parent.clone())).await.unwrap();
    store.create(NewSession::new(child.clone()).parent(parent)).await.unwrap();
    store.commit(&session.key, None, entries([sets(json!({"user:u": 1}))])).await.unwrap();
    let taken = lease(store, &child, LONG).await.unwrap();
    let error = refused(store.erase_user(app, "ann").await, ErrorKind::SessionBusy);
    assert!(error.message().contains("child"), "{error}");
    assert_eq!(store.list(app, "ann").await.unwrap().len(), 2, "nothing was deleted");
    assert_eq!(store.user_state(app, "ann").await.unwrap().len(), 1);
    store.release(&taken.lease, taken.versions, entries([])).await.unwrap();
    // A run whose process is thought to be dead, and is not.
    let late = lease(store, &child, SHORT).await.unwrap();
    tokio::time::sleep(WAIT).await;
    assert_eq!(store.erase_user(app, "ann").await.unwrap(), 3);
    refused(
        store.append(&late.lease, late.versions, entries([said("late")])).await,
        ErrorKind::SessionNotFound,
    );
    refused(store.commit(&child, None, entries([said("late")])).await, ErrorKind::SessionNotFound);
    assert!(!exists(store, &child).await);
}

/// A message of the user, in a run of its own.
fn asks(run: &str, text: &str) -> LogEntry {
    let mut event = message(text, 1.0);
    (event.run, event.source) = (RunId::from(run), Source::user());
    event.content = Some(Arc::new(Content::user(text)));
    LogEntry::Event(Arc::new(event))
}

pub async fn a_session_has_the_title_of_its_first_message(store: &Sessions) {
    let first = new_session(store).await;
    let title = async |key: &SessionKey| store.summary(key).await.unwrap().unwrap().title;
    assert_eq!(title(&first.key).await, None);
    let opening = entries([sets(json!({"k": 1})), said("Welcome"), asks("r1", " The \n weather?\0 ")]);
    store.commit(&first.key, None, opening).await.unwrap();
    assert_eq!(title(&first.key).await.as_deref(), Some("The weather?"));
    store.commit(&first.key, None, entries([asks("r2", "Something else")])).await.unwrap();
    assert_eq!(idle(store, &first.key).await.title.as_deref(), Some("The weather?"));
    let mut rewind = message("", 1.0);
    rewind.run = RunId::from("r3");
    rewind.actions_mut().rewind_before_invocation_id = Some(RunId::from("r1"));
    let rewind = LogEntry::Event(Arc::new(rewind));
    store.commit(&first.key, None, entries([rewind, asks("r4", "Better this")])).await.unwrap();
    assert_eq!(title(&first.key).await.as_deref(), Some("Better this"));

    let long = new_session(store).await;
    let text = "word ".repeat(1_000);
    let taken = acquire(store, &long.key, LONG, Versions::default(), entries([])).await.unwrap();
    store.append(&taken.lease, taken.versions, entries([asks("r1", &text)])).await.unwrap();
    let expected = format!("{}…", "word ".repeat(15).trim_end());
    assert_eq!(title(&long.key).await, Some(expected));
    let missing = key(long.key.app(), "ann", "missing");
    assert_eq!(store.summary(&missing).await.unwrap(), None);
}

/// The bytes of what is in a session.
async fn bytes(store: &Sessions, key: &SessionKey) -> u64 {
    let news = store.news(key, Versions::default()).await.unwrap().unwrap();
    let first = json_bytes(&*news.session_state.unwrap());
    let entries = news.entries.iter().map(|entry| match entry {
        LogEntry::Event(event) => json_bytes(&**event),
        LogEntry::Record(step) => json_bytes(&**step),
    });
    first + entries.sum::<u64>()
}

pub async fn usage_counts_every_byte_of_a_user(store: &Sessions) {
    let app = fresh_app();
    assert_eq!(store.usage(&app, "ann").await.unwrap(), StoredUsage::default());
    let (one, two) = (key(&app, "ann", "one"), key(&app, "ann", "two"));
    let state = super::object(json!({"k": "å".repeat(100)}));
    store.create(NewSession::new(one.clone()).state(state)).await.unwrap();
    store.create(NewSession::new(two.clone())).await.unwrap();
    let child = key(&app, "ann", "child");
    store.create(NewSession::new(child.clone()).parent(one.clone())).await.unwrap();
    let other = key(&app, "bob", "one");
    store.create(NewSession::new(other.clone())).await.unwrap();
    store.commit(&other, None, entries([said("not Ann's")])).await.unwrap();
    store.commit(&child, None, entries([said("for one")])).await.unwrap();
    let taken = acquire(store, &one, LONG, Versions::default(), entries([said("1")])).await.unwrap();
    let versions = store.append(&taken.lease, taken.versions, entries([said("å\n2")])).await.unwrap();
    let shared = entries([sets(json!({"user:u": "x".repeat(500), "k": 2}))]);
    let versions = store.append(&taken.lease, versions, shared).await.unwrap();
    store.release(&taken.lease, versions, entries([said("3"), finished()])).await.unwrap();
    let (one_bytes, child_bytes) = (bytes(store, &one).await, bytes(store, &child).await);
    assert_eq!(store.summary(&one).await.unwrap().unwrap().bytes, one_bytes);
    let expected = StoredUsage { sessions: 2, bytes: one_bytes + child_bytes + bytes(store, &two).await };
    assert_eq!(store.usage(&app, "ann").await.unwrap(), expected);
    store.delete(&one).await.unwrap();
    let left = StoredUsage { sessions: 1, bytes: bytes(store, &two).await };
    assert_eq!(store.usage(&app, "ann").await.unwrap(), left);
}
