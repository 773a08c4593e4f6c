//! Summaries in logs whose clocks go back, and of servers whose clocks differ: positions count, and no timestamp.

use std::sync::Arc;

use proptest::prelude::*;
use serde_json::{Value, json};
use umbel_core::{Content, ContentsView, Event, List};

use super::super::build;
use super::{assert_same, projection};

fn said(id: &str, author: &str, timestamp: f64) -> Value {
    let role = if author == "user" { "user" } else { "model" };
    json!({"id": id, "invocationId": "r", "author": author, "timestamp": timestamp,
           "content": {"role": role, "parts": [{"text": id}]}})
}

/// A summary as google-adk and older versions write it.
fn times(id: &str, timestamp: f64, start: f64, end: f64) -> Value {
    let content = json!({"role": "model", "parts": [{"text": id}]});
    json!({"id": id, "invocationId": "r", "author": "user", "timestamp": timestamp,
           "actions": {"compaction": {"startTimestamp": start, "endTimestamp": end, "compactedContent": content}}})
}

/// A summary that names what it covers.
fn range(id: &str, timestamp: f64, first: &str, last: &str) -> Value {
    let mut event = times(id, timestamp, 0.0, 1e9);
    event["customMetadata"] = json!({"umbel": {"compaction": {"first": first, "last": last}}});
    event
}

fn log(events: Vec<Value>) -> List<Arc<Event>> {
    events.into_iter().map(|event| Arc::new(serde_json::from_value(event).unwrap())).collect()
}

/// What the model is sent, kept at every prefix as built anew.
fn texts(events: Vec<Value>) -> Vec<String> {
    let view = ContentsView { agent: "a".into(), ..ContentsView::default() };
    let (events, mut kept) = (log(events), projection(&view));
    let mut prefix = List::new();
    for event in events.iter() {
        prefix.push(event.clone());
        assert_same(&mut kept, &prefix, None);
    }
    build(&view, &events, None).iter().map(|content| Content::text(content)).collect()
}

#[test]
fn what_comes_behind_a_summary_is_never_hidden_by_it_whatever_the_clock_says() {
    for summary in [times("sum", 4.0, 1.0, 4.0), range("sum", 4.0, "u1", "a2")] {
        for clock in [2.5, 0.0, 4.0, 1.0, 9.0] {
            let log = vec![
                said("u1", "user", 1.0),
                said("a1", "a", 2.0),
                said("u2", "user", 3.0),
                said("a2", "a", 4.0),
                summary.clone(),
                said("u3", "user", clock),
                said("a3", "a", clock + 0.1),
            ];
            assert_eq!(texts(log), ["sum", "u3", "a3"]);
        }
    }
}

#[test]
fn the_order_is_that_of_the_log_when_a_clock_goes_back_before_a_summary() {
    for summary in [times("sum", 6.0, 10.0, 11.0), range("sum", 6.0, "u1", "a1")] {
        let log = vec![
            said("u1", "user", 10.0),
            said("a1", "a", 11.0),
            said("u2", "user", 5.0),
            said("a2", "a", 12.0),
            summary,
            said("u3", "user", 7.0),
        ];
        assert_eq!(texts(log), ["sum", "u2", "a2", "u3"]);
    }
}

#[test]
fn a_summary_by_times_ends_with_the_last_event_at_its_end_though_later_ones_are_older() {
    let log = vec![
        said("u1", "user", 10.0),
        said("a1", "a", 13.0),
        said("u2", "user", 12.0),
        said("a2", "a", 12.5),
        times("sum", 12.6, 10.0, 13.0),
        said("u3", "user", 12.7),
    ];
    assert_eq!(texts(log), ["sum", "u2", "a2", "u3"]);
}

#[test]
fn a_summary_by_times_covers_what_it_was_made_of_though_the_clock_went_back_within() {
    let log = vec![
        said("u1", "user", 10.0),
        said("a1", "a", 9.0),
        said("u2", "user", 8.0),
        times("sum", 8.1, 10.0, 8.0),
        said("u3", "user", 9.0),
    ];
    assert_eq!(texts(log), ["sum", "u3"]);
}

#[test]
fn times_that_were_rounded_cover_what_lies_between_them() {
    let log = vec![
        said("u1", "user", 1.000_000_4),
        said("a1", "a", 2.000_000_4),
        said("u2", "user", 3.0),
        times("sum", 3.5, 1.0, 2.000_001),
        said("u3", "user", 4.0),
    ];
    assert_eq!(texts(log), ["sum", "u2", "u3"]);
}

#[test]
fn a_summary_takes_the_place_of_one_that_it_contains_whatever_wrote_that() {
    for first in [times("sum1", 2.5, 1.0, 2.0), range("sum1", 2.5, "u1", "a1")] {
        let log = vec![
            said("u1", "user", 1.0),
            said("a1", "a", 2.0),
            first,
            said("u2", "user", 0.5),
            said("a2", "a", 0.6),
            range("sum2", 0.7, "u1", "a2"),
            said("u3", "user", 0.8),
        ];
        assert_eq!(texts(log), ["sum2", "u3"]);
    }
}

#[test]
fn a_log_without_the_events_that_its_summaries_cover_begins_with_those_that_no_other_contains() {
    let log = vec![
        times("sum1", 3.0, 1.0, 2.0),
        range("sum2", 5.0, "gone", "gone too"),
        said("u1", "user", 4.5),
        said("a1", "a", 6.0),
    ];
    assert_eq!(texts(log), ["sum2", "u1", "a1"]);
    let log = vec![times("sum1", 3.0, 1.0, 2.0), times("sum2", 5.0, 3.0, 4.0), said("u1", "user", 6.0)];
    assert_eq!(texts(log), ["sum1", "sum2", "u1"]);
}

#[test]
fn a_response_behind_a_summary_finds_its_call_and_the_newest_answers_by_the_order_of_the_log() {
    let call = json!({"id": "c", "invocationId": "r", "author": "a", "timestamp": 5.0, "longRunningToolIds": ["y"],
        "content": {"role": "model", "parts": [{"functionCall": {"id": "x", "name": "x", "args": {}}},
                                               {"functionCall": {"id": "y", "name": "y", "args": {}}}]}});
    let answer = |id: &str, of: &str, timestamp: f64, value: &str| {
        json!({"id": id, "invocationId": "r", "author": "a", "timestamp": timestamp,
               "content": {"role": "user", "parts": [{"functionResponse": {"id": of, "name": of, "response": {"v": value}}}]}})
    };
    let log = log(vec![
        said("u1", "user", 4.0),
        call,
        answer("x1", "x", 6.0, "old"),
        answer("x2", "x", 3.0, "new"),
        range("sum", 3.5, "u1", "x2"),
        answer("y1", "y", 2.0, "late"),
    ]);
    let view = ContentsView { agent: "a".into(), ..ContentsView::default() };
    let sent = build(&view, &log, None);
    let answers: Vec<_> = sent.iter().flat_map(|content| content.responses()).collect();
    let value = |index: usize| answers[index].response.as_ref().unwrap()["v"].clone();
    assert_eq!((answers.len(), value(0), value(1)), (2, json!("new"), json!("late")));
}

proptest! {
    #[test]
    fn with_any_clock_the_words_behind_a_summary_come_last_and_in_their_order(
        before in prop::collection::vec(0..20u8, 1..8),
        after in prop::collection::vec(0..20u8, 1..8),
        start in 0..20u8,
        end in 0..20u8,
        names in any::<bool>(),
    ) {
        let mut events: Vec<Value> =
            before.iter().enumerate().map(|(n, at)| said(&format!("b{n}"), "user", f64::from(*at))).collect();
        events.push(match names {
            true => range("sum", 5.0, &format!("b{}", start % 8), &format!("b{}", end % 8)),
            false => times("sum", 5.0, f64::from(start.min(end)), f64::from(start.max(end))),
        });
        let behind: Vec<String> = (0..after.len()).map(|n| format!("a{n}")).collect();
        events.extend(after.iter().zip(&behind).map(|(at, id)| said(id, "user", f64::from(*at))));
        let texts = texts(events);
        prop_assert!(texts.ends_with(&behind), "{texts:?}");
        let rest: Vec<&String> = texts.iter().filter(|text| text.starts_with('b')).collect();
        prop_assert!(rest.is_sorted(), "{texts:?}");
    }
}
