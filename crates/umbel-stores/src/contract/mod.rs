//! Tests that any store can be put through, also one that is not part of Umbel.
//!
//! Each case is a function that takes a store and panics where the store does not keep its contract. The macros make a
//! test of each case; [`sessions`], [`artifacts`], [`memory`] and [`credentials`] run all of them in turn. A case works
//! with an app of its own, so cases may share a database and run at the same time.
//!
//! ```
//! mod my_sessions {
//!     umbel_stores::session_store_contract!(async { umbel_core::InMemorySessions::new() });
//! }
//! ```

#[doc(hidden)]
pub mod appends;
#[doc(hidden)]
pub mod artifacts;
#[doc(hidden)]
pub mod busy;
#[doc(hidden)]
pub mod credentials;
#[doc(hidden)]
pub mod dropped;
#[doc(hidden)]
pub mod leases;
#[doc(hidden)]
pub mod memory;
#[doc(hidden)]
pub mod odd;
#[doc(hidden)]
pub mod reading;
#[doc(hidden)]
pub mod upkeep;
mod vectors;

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};
use umbel_core::store::{Acquire, Acquired, Entries};
use umbel_core::{
    Actions, ArtifactStore, Clock, Content, CredentialStore, Error, ErrorKind, Event, EventFilter, LogEntry,
    MemoryStore, NewSession, Object, Outcome, Result, RunId, RunStep, Session, SessionKey, SessionStore,
    Source, SystemClock, Versions,
};

pub use self::vectors::perform;

/// A store of sessions in a test.
pub type Sessions = Arc<dyn SessionStore>;
/// A store of artifacts in a test.
pub type Artifacts = Arc<dyn ArtifactStore>;
/// A store of memories in a test.
pub type Memory = Arc<dyn MemoryStore>;
/// A store of credentials in a test.
pub type Credentials = Arc<dyn CredentialStore>;

/// Every case of a session store, in turn.
pub async fn sessions(store: &Sessions) {
    crate::__session_cases!(all store);
}

/// Every case of an artifact store, in turn.
pub async fn artifacts(store: &Artifacts) {
    crate::__artifact_cases!(all store);
}

/// Every case of a memory store, in turn.
pub async fn memory(store: &Memory) {
    crate::__memory_cases!(all store);
}

/// Every case of a credential store, in turn.
pub async fn credentials(store: &Credentials) {
    crate::__credential_cases!(all store);
}

/// Makes a test of each case of a session store. Takes a future that gives a store.
#[macro_export]
macro_rules! session_store_contract {
    ($make:expr) => {
        $crate::__session_cases!(tests $make);
    };
}

/// Makes a test of each case of an artifact store. Takes a future that gives a store.
#[macro_export]
macro_rules! artifact_store_contract {
    ($make:expr) => {
        $crate::__artifact_cases!(tests $make);
    };
}

/// Makes a test of each case of a memory store. Takes a future that gives a store.
#[macro_export]
macro_rules! memory_store_contract {
    ($make:expr) => {
        $crate::__memory_cases!(tests $make);
    };
}

/// Makes a test of each case of a credential store. Takes a future that gives a store.
#[macro_export]
macro_rules! credential_store_contract {
    ($make:expr) => {
        $crate::__credential_cases!(tests $make);
    };
}

#[doc(hidden)]
#[macro_export]
macro_rules! __session_cases {
    ($mode:ident $arg:expr) => {
        $crate::__contract! { $mode $arg; Sessions;
            reading::{
                a_new_session_is_read_back, a_second_session_of_that_key_is_refused, a_missing_session_is_none,
                a_list_has_the_sessions_of_a_user_by_last_change, a_deleted_session_is_gone,
                a_session_made_anew_is_another_one, recent_and_after_choose_events, the_first_events_can_be_read_alone,
                state_goes_where_its_prefix_says, a_child_is_hidden_and_goes_with_its_parent,
                a_child_needs_its_parent, a_child_made_anew_is_nobodys_child, news_are_what_is_newer,
                news_of_shared_state_come_from_other_sessions,
                what_others_share_during_a_run_is_still_news_after_it
            },
            appends::{
                an_append_moves_the_version_by_its_entries, a_stale_append_writes_nothing,
                previews_are_not_stored, temp_keys_are_not_stored, an_empty_append_changes_nothing,
                a_commit_needs_no_lease, records_come_back_as_they_were, an_event_comes_back_as_it_was,
                state_follows_the_deltas, big_events_are_kept_whole
            },
            leases::{
                a_held_session_is_busy, a_lease_runs_out, an_old_lease_is_fenced_off,
                a_lease_given_back_is_gone, a_heartbeat_keeps_the_lease,
                a_lease_that_ran_out_writes_until_it_is_taken, taking_and_giving_back_write_at_once,
                a_lease_of_a_deleted_session_is_worth_nothing, an_abandoned_session_is_found,
                an_abandoned_session_is_for_those_who_claim_it, a_session_that_moved_on_is_not_taken,
                a_session_is_made_with_its_lease_if_that_is_wanted, one_of_many_gets_the_lease
            },
            odd::{
                odd_names_are_kept_apart, apps_and_users_do_not_see_each_other, odd_state_keys_are_kept,
                a_nul_in_a_state_key_is_refused, a_nul_in_a_value_is_kept,
                events_keep_their_order_when_the_clock_goes_back
            },
            busy::{
                many_tasks_on_one_session_lose_nothing, many_tasks_with_leases_lose_nothing,
                many_sessions_at_once_lose_nothing, shared_state_loses_no_write
            },
            dropped::{
                a_dropped_append_is_whole_or_nothing, a_dropped_release_is_whole_or_nothing,
                a_dropped_commit_is_whole_or_nothing, a_dropped_acquire_is_whole_or_nothing,
                a_dropped_heartbeat_leaves_the_lease_as_it_was,
                a_session_whose_making_is_dropped_is_there_or_not, a_dropped_deletion_is_whole_or_nothing,
                a_user_whose_erasing_is_dropped_is_erased_whole_or_not, a_dropped_reading_does_no_harm
            },
            upkeep::{
                a_question_is_open_until_the_user_answers, questions_follow_every_way_to_append,
                questions_of_an_app_are_listed_by_last_change, calls_are_awaited_until_they_are_answered,
                idle_sessions_come_in_pages_longest_ago_first, an_idle_session_tells_who_is_at_work,
                only_what_is_unchanged_and_free_is_deleted, an_erased_user_leaves_nothing,
                a_user_is_not_erased_while_a_run_is_under_way, a_session_has_the_title_of_its_first_message,
                usage_counts_every_byte_of_a_user
            }
        }
    };
}

#[doc(hidden)]
#[macro_export]
macro_rules! __artifact_cases {
    ($mode:ident $arg:expr) => {
        $crate::__contract! { $mode $arg; Artifacts;
            artifacts::{
                versions_count_from_zero, a_user_shares_what_is_named_so, users_and_sessions_are_kept_apart,
                a_deleted_artifact_starts_anew, every_kind_of_part_is_kept, odd_artifact_names_are_kept,
                a_nul_in_an_artifact_name_is_refused, concurrent_saves_get_a_version_each,
                artifacts_of_an_erased_user_are_gone, old_artifacts_go_and_others_keep_their_version
            },
            dropped::{a_dropped_save_of_an_artifact_is_whole_or_nothing}
        }
    };
}

#[doc(hidden)]
#[macro_export]
macro_rules! __memory_cases {
    ($mode:ident $arg:expr) => {
        $crate::__contract! { $mode $arg; Memory;
            memory::{
                the_best_memory_comes_first, adding_a_session_again_replaces_it,
                a_session_that_is_added_many_times_at_once_is_remembered_once, memories_are_their_users_alone,
                a_search_gives_the_best_ten, odd_queries_find_or_find_nothing, only_what_was_said_is_remembered,
                an_erased_user_is_forgotten, old_memories_go
            },
            dropped::{a_session_whose_adding_is_dropped_is_remembered_whole_or_not}
        }
    };
}

#[doc(hidden)]
#[macro_export]
macro_rules! __credential_cases {
    ($mode:ident $arg:expr) => {
        $crate::__contract! { $mode $arg; Credentials;
            credentials::{
                a_credential_is_read_back_and_replaced, credentials_are_their_users_alone,
                a_deleted_credential_is_gone, odd_credential_names_and_values_are_kept,
                a_nul_in_a_credential_name_is_refused, credentials_of_an_erased_user_are_gone, old_credentials_go,
                a_credential_is_replaced_only_if_it_is_the_one_that_was_read,
                of_many_who_replace_a_credential_at_once_one_does,
                a_replaced_credential_is_as_new_as_a_saved_one
            },
            dropped::{a_dropped_change_of_a_credential_is_whole_or_nothing}
        }
    };
}

#[doc(hidden)]
#[macro_export]
macro_rules! __contract {
    (all $store:expr; $kind:ident; $($module:ident::{$($case:ident),*}),*) => {
        $($( $crate::contract::$module::$case($store).await; )*)*
    };
    (tests $make:expr; $kind:ident; $($module:ident::{$($case:ident),*}),*) => {
        $($(
            #[test]
            fn $case() {
                $crate::contract::block_on(async {
                    let store: $crate::contract::$kind = ::std::sync::Arc::new($make.await);
                    $crate::contract::$module::$case(&store).await;
                });
            }
        )*)*
    };
}

/// Runs a case on several threads, as servers do.
pub fn block_on(case: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(4).enable_all().build();
    runtime.expect("a runtime for tests can be made").block_on(case);
}

/// A name for an app that no other case uses.
pub fn fresh_app() -> String {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos();
    format!("app-{since:x}-{:x}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed))
}

/// How often each of the tasks appends that work at the same time: 50 times, or what `UMBEL_CONTRACT_APPENDS` says.
fn appends_per_task() -> usize {
    std::env::var("UMBEL_CONTRACT_APPENDS").ok().and_then(|text| text.parse().ok()).unwrap_or(50)
}

fn key(app: &str, user: &str, id: &str) -> SessionKey {
    SessionKey::new(app, user, id).unwrap()
}

/// A new session of a new app.
async fn new_session(store: &Sessions) -> Session {
    store.create(NewSession::new(key(&fresh_app(), "ann", "s1"))).await.unwrap()
}

fn object(value: Value) -> Object {
    match value {
        Value::Object(object) => object,
        other => panic!("not an object: {other}"),
    }
}

/// A message of an agent.
fn message(text: &str, timestamp: f64) -> Event {
    let mut event = Event::new(RunId::from("e-1"), Arc::new(Source::new("agent")));
    event.content = Some(Arc::new(Content::model(text)));
    event.id = format!("id of {}", text.chars().take(40).collect::<String>()).into();
    event.timestamp = timestamp;
    event
}

fn said(text: &str) -> LogEntry {
    LogEntry::Event(Arc::new(message(text, 1.0)))
}

/// An event that sets state.
fn sets(delta: Value) -> LogEntry {
    let actions = Actions { state_delta: Some(object(delta)), ..Actions::default() };
    LogEntry::Event(Arc::new(message("state", 1.0).with_actions(actions)))
}

fn finished() -> LogEntry {
    RunStep::Ended { outcome: Outcome::Finished }.into()
}

fn entries(entries: impl IntoIterator<Item = LogEntry>) -> Entries {
    entries.into_iter().collect()
}

/// The session, which must be there.
async fn read(store: &Sessions, key: &SessionKey) -> Session {
    let session = store.get(key, EventFilter::default()).await.unwrap();
    session.unwrap_or_else(|| panic!("session {key} is gone"))
}

/// The texts of a session's events.
async fn texts(store: &Sessions, key: &SessionKey) -> Vec<String> {
    read(store, key).await.events.iter().map(|event| event.text()).collect()
}

/// The whole log of a session.
async fn log(store: &Sessions, key: &SessionKey) -> Vec<LogEntry> {
    store.news(key, Versions::default()).await.unwrap().expect("the session is there").entries
}

/// Takes the lease, knowing nothing and appending nothing.
async fn lease(store: &Sessions, key: &SessionKey, ttl: Duration) -> Result<Acquired> {
    acquire(store, key, ttl, Versions::default(), entries([])).await
}

async fn acquire(
    store: &Sessions,
    key: &SessionKey,
    ttl: Duration,
    known: Versions,
    entries: Entries,
) -> Result<Acquired> {
    let (key, owner) = (key.clone(), "tester".into());
    store.acquire(Acquire { known, entries, ..Acquire::new(key, owner, ttl) }).await
}

/// Takes the lease, though a run may have been cut short.
async fn claim(store: &Sessions, key: &SessionKey, entries: Entries) -> Result<Acquired> {
    let (key, owner, known) = (key.clone(), "claimer".into(), Versions::default());
    store.acquire(Acquire { known, entries, claims: true, ..Acquire::new(key, owner, LONG) }).await
}

/// What must fail, and how.
#[track_caller]
fn refused<T: std::fmt::Debug>(result: Result<T>, kind: ErrorKind) -> Error {
    match result {
        Ok(value) => panic!("expected the error {}, but it went well: {value:?}", kind.code()),
        Err(error) => {
            assert_eq!(error.kind(), kind, "{error}");
            assert!(!error.message().is_empty(), "an error needs words for people");
            error
        }
    }
}

/// Long enough for anything that must not run out in a test.
const LONG: Duration = Duration::from_secs(60);

/// The time of the machine.
fn now() -> f64 {
    SystemClock.now()
}

/// Waits until the time of the machine is later than now, and tells it.
async fn later() -> f64 {
    let start = now();
    while now() <= start {
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    now()
}

/// Names that databases have stumbled over.
fn odd_names() -> Vec<String> {
    let mut names: Vec<String> = [
        "a b",
        "å🦀漢",
        "it's",
        "say \"hi\"",
        "two\nlines",
        "tab\tand\r",
        "a/b",
        "a\\b",
        "%",
        "_",
        "a%",
        "*",
        "'; --",
        "null",
        "ⅷ",
        "e\u{301}",
        "é",
        "A",
        "a",
        "\u{202e}right",
        "{\"json\": 1}",
        "$1",
        "?1",
        ":name",
        "\u{1}",
        "\u{feff}bom",
    ]
    .map(str::to_owned)
    .into();
    names.push("long".repeat(200));
    names
}

/// A value with everything that JSON has.
fn odd_value() -> Value {
    json!({"n": null, "i": 9_007_199_254_740_993_u64, "neg": -1, "f": 0.1, "t": true, "s": "å\"\n\\ \u{1F980}",
           "deep": [[{"a": []}, {}]], "": "empty key", "long": "x".repeat(5_000)})
}
