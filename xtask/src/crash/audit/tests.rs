//! Each thing that must not be is done to a healthy log by hand, and found.

use std::sync::Arc;

use serde_json::json;
use umbel::{CallFinished, CallId, Failure, NewSession, Object, Part};

use super::*;
use crate::crash::files;
use crate::crash::killer::Killer;
use crate::crash::place::Place;
use crate::crash::scenario::SCENARIOS;

/// What a scenario leaves when nobody disturbs it.
async fn healthy(scenario: &str) -> Evidence {
    let folder = tempfile::tempdir().unwrap();
    std::fs::create_dir(files::effects(folder.path())).unwrap();
    let scenario = SCENARIOS.iter().find(|one| one.name == scenario).unwrap();
    let place = Place { folder: folder.path().into(), url: "memory:".into(), scenario };
    let opened = place.clone().open(Arc::new(Killer::idle())).await.unwrap();
    let key = place.key("b-0").unwrap();
    opened.store().create(NewSession::new(key.clone())).await.unwrap();
    for message in scenario.messages {
        let outcome = opened.say("b", &key, *message).await.unwrap();
        opened.answer("b", &key, &outcome).await.unwrap();
    }
    let logs = opened.logs("b").await.unwrap();
    let calls = logs.iter().flat_map(call_ids);
    let effects = calls.map(|id| (id.to_owned(), Effect::of_call(folder.path(), id).unwrap())).collect();
    let seen = files::read(&files::seen(folder.path(), "b")).unwrap();
    let seen = seen.iter().map(|id| id.as_str().unwrap().to_owned()).collect();
    Evidence { shapes: Evidence::shapes(&logs).unwrap(), logs, seen, effects }
}

impl Evidence {
    /// Changes the entries of the first log, and what its store says about it.
    fn damage(mut self, change: impl FnOnce(&mut Vec<LogEntry>)) -> Self {
        change(&mut self.logs[0].entries);
        self.logs[0].version = self.logs[0].entries.len() as u64;
        self
    }

    fn call_of(&self, tool: &str) -> String {
        let calls = calls(&self.logs[0]);
        calls.iter().find(|(_, call)| call.tool == tool).unwrap().0.clone()
    }

    fn lines(&mut self, tool: &str) -> &mut Vec<Effect> {
        let call = self.call_of(tool);
        self.effects.get_mut(&call).unwrap()
    }

    /// The call is answered by these words, and no record says that it finished.
    fn answered_by(self, tool: &str, words: &str) -> Self {
        let call = self.call_of(tool);
        self.damage(|entries| {
            entries.retain(|entry| {
                !matches!(entry, LogEntry::Record(record)
                if matches!(&**record, RunStep::CallFinished { finished } if finished.call.as_str() == call))
            });
            change_events(entries, |event| {
                let mut content = (**event.content.as_ref().unwrap()).clone();
                for part in &mut content.parts {
                    if let Payload::Response(response) = &mut part.payload
                        && response.id.as_ref().is_some_and(|id| id.as_str() == call)
                    {
                        response.response = Some(object(words));
                    }
                }
                event.content = Some(Arc::new(content));
            });
        })
    }
}

fn object(error: &str) -> Object {
    Object::from_iter([("error".to_owned(), json!(error))])
}

fn change_events(entries: &mut [LogEntry], change: impl Fn(&mut Event)) {
    for entry in entries {
        if let LogEntry::Event(event) = entry {
            let mut changed = (**event).clone();
            change(&mut changed);
            *event = Arc::new(changed);
        }
    }
}

fn answers(entry: &LogEntry) -> bool {
    matches!(entry, LogEntry::Event(event) if event.responses().next().is_some())
}

fn record(entries: &[LogEntry], is: impl Fn(&RunStep) -> bool) -> usize {
    entries.iter().position(|entry| matches!(entry, LogEntry::Record(record) if is(record))).unwrap()
}

fn ended(entries: &[LogEntry]) -> usize {
    record(entries, |step| matches!(step, RunStep::Ended { .. }))
}

const UNKNOWN: &str = "the outcome is unknown";

#[tokio::test]
async fn undisturbed_runs_have_no_problems() {
    for scenario in SCENARIOS {
        let findings = healthy(scenario.name).await.audit();
        assert_eq!(findings.problems, Vec::<String>::new(), "{}", scenario.name);
        assert!(findings.runs > 0 && findings.finished == findings.runs);
        assert_eq!((findings.unknown, findings.repeats), (0, 0));
    }
}

#[tokio::test]
async fn a_doubled_event_is_found() {
    let findings = healthy("text").await.damage(|entries| entries.insert(1, entries[0].clone())).audit();
    // By its id, and because the run has one more than it should.
    assert_eq!((findings.events_doubled, findings.events_lost), (2, 0));
    assert_eq!(findings.problems.len(), 2);
}

#[tokio::test]
async fn an_event_that_is_written_again_under_another_id_is_found() {
    let evidence = healthy("text").await.damage(|entries| {
        let mut again = vec![entries[2].clone()];
        change_events(&mut again, |event| event.id = "e-other".into());
        entries.insert(3, again.remove(0));
    });
    assert_eq!(evidence.audit().events_doubled, 1);
}

#[tokio::test]
async fn an_event_that_was_seen_and_is_gone_is_found() {
    let evidence = healthy("text").await;
    let last = evidence.seen.last().unwrap().clone();
    let evidence = evidence.damage(|entries| {
        entries.retain(|entry| !matches!(entry, LogEntry::Event(event) if event.id.as_str() == last));
    });
    let findings = evidence.audit();
    // It was seen, and the run has one less than it should.
    assert_eq!((findings.events_lost, findings.problems.len()), (2, 2));
}

#[tokio::test]
async fn a_gap_between_versions_is_found() {
    let mut evidence = healthy("text").await;
    evidence.logs[0].version += 1;
    let problems = evidence.audit().problems;
    assert!(problems.len() == 1 && problems[0].contains("gaps"), "{problems:?}");
}

#[tokio::test]
async fn a_run_without_an_outcome_with_two_or_with_a_failure_has_not_finished() {
    let damages: [fn(&mut Vec<LogEntry>); 3] = [
        |entries| {
            entries.remove(ended(entries));
        },
        |entries| entries.insert(ended(entries), entries[ended(entries)].clone()),
        |entries| {
            let failure = Box::new(Failure { code: "STORE".into(), message: "gone".into() });
            let at = ended(entries);
            entries[at] = RunStep::Ended { outcome: Outcome::Failed { failure } }.into();
        },
    ];
    for damage in damages {
        let findings = healthy("text").await.damage(damage).audit();
        assert_eq!((findings.runs - findings.finished, findings.problems.len()), (1, 1), "{findings:?}");
    }
}

#[tokio::test]
async fn a_call_without_an_answer_or_with_two_is_found() {
    let findings = healthy("call").await.damage(|entries| {
        let at = entries.iter().position(answers).unwrap();
        entries.remove(at);
    });
    assert!(findings.audit().problems.iter().any(|problem| problem.ends_with("has 0 answers")));
    let findings = healthy("call").await.damage(|entries| {
        let at = entries.iter().position(answers).unwrap();
        entries.insert(at, entries[at].clone());
    });
    assert!(findings.audit().problems.iter().any(|problem| problem.ends_with("has 2 answers")));
}

#[tokio::test]
async fn a_call_that_is_told_to_be_done_and_left_no_line_is_found() {
    for tool in ["pay", "note"] {
        let mut evidence = healthy("batch").await;
        evidence.lines(tool).clear();
        let findings = evidence.audit();
        assert_eq!((findings.effects_missing, findings.problems.len()), (1, 1));
    }
}

#[tokio::test]
async fn a_record_that_a_call_finished_needs_its_line_too() {
    let evidence = healthy("call").await.answered_by("pay", UNKNOWN);
    let call = evidence.call_of("pay");
    let mut evidence = evidence.damage(|entries| {
        let id: CallId = call.as_str().into();
        let answer = Object::from_iter([(DONE.to_owned(), json!(call))]);
        let response = Some(Part::response(FunctionResponse::new(Some(id.clone()), "pay", answer)));
        let finished = Box::new(CallFinished { call: id, response, ..CallFinished::default() });
        entries.insert(3, RunStep::CallFinished { finished }.into());
    });
    // Recorded as finished, and told to be of unknown outcome all the same.
    assert_eq!(evidence.audit().problems.len(), 1);
    evidence.lines("pay").clear();
    assert_eq!(evidence.audit().effects_missing, 1);
}

#[tokio::test]
async fn an_effect_that_happened_twice_is_found_unless_its_tool_is_idempotent() {
    let mut evidence = healthy("batch").await;
    let line = evidence.lines("pay")[0].clone();
    evidence.lines("pay").push(line);
    let findings = evidence.audit();
    assert_eq!((findings.effects_doubled, findings.problems.len()), (1, 1));

    let mut evidence = healthy("batch").await;
    let line = evidence.lines("note")[0].clone();
    evidence.lines("note").push(line.clone());
    let findings = evidence.audit();
    assert_eq!((findings.effects_doubled, findings.repeats, findings.problems.len()), (0, 1, 0));

    evidence.lines("note").push(Effect { key: "another".into(), ..line });
    assert_eq!(evidence.audit().problems.len(), 1);
}

#[tokio::test]
async fn an_effect_of_a_call_that_was_not_recorded_as_started_is_found() {
    let findings = healthy("call").await.damage(|entries| {
        entries.remove(record(entries, |step| matches!(step, RunStep::CallsStarted { .. })));
    });
    assert_eq!(findings.audit().problems.len(), 1);
}

#[tokio::test]
async fn an_unknown_outcome_is_right_only_for_a_call_that_was_started_and_did_not_finish() {
    for tool in ["pay", "ship"] {
        let mut evidence = healthy("batch").await.answered_by(tool, UNKNOWN);
        let findings = evidence.audit();
        assert_eq!((findings.unknown, findings.problems.len()), (1, 0));
        // Whether it happened is what nobody knows.
        evidence.lines(tool).clear();
        assert_eq!(evidence.audit(), findings);
    }
    let never_started = healthy("batch").await.answered_by("pay", UNKNOWN).damage(|entries| {
        entries.remove(record(entries, |step| matches!(step, RunStep::CallsStarted { .. })));
    });
    assert!(!never_started.audit().problems.is_empty());
    let idempotent = healthy("batch").await.answered_by("note", UNKNOWN);
    assert_eq!(idempotent.audit().problems.len(), 1);
    let failed = healthy("batch").await.answered_by("pay", "the tool is out of order");
    assert_eq!(failed.audit().problems.len(), 1);
}

/// A run that asked a person about a call, as if that had been cut short.
async fn asked_about() -> Evidence {
    let mut evidence = healthy("approval").await.damage(|entries| {
        for entry in entries {
            let LogEntry::Record(record) = entry else { continue };
            let RunStep::Asked { interrupts } = &**record else { continue };
            let mut interrupts = interrupts.clone();
            interrupts.iter_mut().for_each(|asked| asked.reason = UNFINISHED.into());
            *entry = RunStep::Asked { interrupts }.into();
        }
    });
    evidence.shapes = Evidence::shapes(&evidence.logs).unwrap();
    evidence
}

fn asks(entry: &LogEntry) -> bool {
    matches!(entry, LogEntry::Event(event) if event.calls().any(|call| call.name == "adk_request_confirmation"))
}

#[tokio::test]
async fn a_question_about_a_call_that_was_cut_short_is_no_part_of_how_runs_go_but_counted_and_looked_at() {
    let evidence = asked_about().await;
    assert!(
        evidence.shapes.values().flat_map(|shape| shape.keys()).all(|event| !event.contains("confirmation"))
    );
    let findings = evidence.audit();
    assert_eq!((findings.runs, findings.finished, findings.unknown), (1, 1, 1), "{findings:?}");
    assert_eq!(findings.problems, Vec::<String>::new());

    let doubled = evidence.clone().damage(|entries| {
        let at = entries.iter().position(asks).unwrap();
        let mut again = vec![entries[at].clone()];
        change_events(&mut again, |event| event.id = "e-other".into());
        entries.insert(at, again.remove(0));
    });
    let problems = doubled.audit().problems;
    assert!(problems.len() == 1 && problems[0].contains("was made 2 times"), "{problems:?}");

    let needless = evidence.damage(|entries| {
        entries.remove(record(entries, |step| matches!(step, RunStep::CallsStarted { .. })));
    });
    let problems = needless.audit().problems;
    assert!(problems.len() == 1 && problems[0].contains("was asked about"), "{problems:?}");
}

#[tokio::test]
async fn runs_that_begin_alike_and_go_differently_have_no_shape() {
    let logs = healthy("text").await.damage(|entries| {
        let mut more = Event::new("other".into(), umbel::Source::user());
        more = more.with_content(umbel::Content::user(Part::text("one")));
        entries.push(Arc::new(more).into());
    });
    assert!(Evidence::shapes(&logs.logs).is_err());
}
