//! Durations at their limits: zero means at once, `Duration::MAX` means never.

use std::time::Duration;

use serde_json::{Value, json};
use umbel::{FunctionTool, LlmAgent, Outcome, RunConfig, RunLimits, Runner, ScriptedModel};
use umbel_stores::Sqlite;

use crate::support::{Spy, assert_ended, assert_free, fine, read, with_session};

/// Waits a moment in a tool, so that all that keeps watch is at work.
fn waiting() -> LlmAgent {
    let wait = FunctionTool::new("wait", "", |_: Value| async {
        tokio::time::sleep(Duration::from_millis(20)).await;
        Ok(json!("waited"))
    });
    LlmAgent::new("a").model(ScriptedModel::new("m").call("wait", json!({})).text("done")).tool(wait)
}

type Change = fn(&mut RunConfig, Duration);

const OPTIONS: &[(&str, Change)] = &[
    ("run_time", |config, time| config.limits.run_time = time),
    ("tool_time", |config, time| config.limits.tool_time = time),
    ("grace", |config, time| config.limits.grace = time),
    ("lease", |config, time| config.limits.lease = time),
    ("wait_for_session", |config, time| config.wait_for_session = time),
];

#[tokio::test(start_paused = true)]
async fn every_duration_of_a_run_takes_its_maximum_and_means_for_ever() {
    for (name, change) in OPTIONS {
        for spied in [false, true] {
            let mut config = RunConfig::default();
            change(&mut config, Duration::MAX);
            let builder = Runner::builder("app", waiting()).config(config);
            let builder = if spied { builder.sessions(Spy::default().slow()) } else { builder };
            let (runner, key) = with_session(builder.build().unwrap()).await;
            let seen = read(runner.run(&key, "hi")).await;
            assert_eq!(seen.outcome, Outcome::Finished, "{name}: {:?}", seen.error);
            assert_ended(&runner, &key, &seen).await;
            assert_free(&runner, &key).await;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn every_duration_of_a_run_takes_zero_and_means_at_once() {
    for (name, change) in OPTIONS {
        for spied in [false, true] {
            let mut config = RunConfig::default();
            change(&mut config, Duration::ZERO);
            let builder = Runner::builder("app", waiting()).config(config);
            let builder = if spied { builder.sessions(Spy::default().slow()) } else { builder };
            let (runner, key) = with_session(builder.build().unwrap()).await;
            let seen = read(runner.run(&key, "hi")).await;
            let told = seen
                .whole()
                .iter()
                .flat_map(|event| event.responses())
                .any(|response| format!("{:?}", response.response).contains("longer than"));
            match *name {
                "run_time" => assert_eq!(seen.code(), "TIMEOUT", "{:?}", seen.error),
                "tool_time" => assert!(told && seen.outcome == Outcome::Finished, "{:?}", seen.outcome),
                _ => assert_eq!(seen.outcome, Outcome::Finished, "{name}: {:?}", seen.error),
            }
            assert_ended(&runner, &key, &seen).await;
            assert_free(&runner, &key).await;
        }
    }
}

#[tokio::test]
async fn a_lease_on_a_database_may_be_endless_too() {
    let folder = tempfile::tempdir().unwrap();
    let store = Sqlite::open(folder.path().join("umbel.db")).await.unwrap();
    let agent = LlmAgent::new("a").model(fine());
    let limits = RunLimits { lease: Duration::MAX, run_time: Duration::MAX, ..RunLimits::default() };
    let config = RunConfig { limits, ..RunConfig::default() };
    let runner = Runner::builder("app", agent).sessions(store).config(config).build().unwrap();
    let (runner, key) = with_session(runner).await;
    let seen = read(runner.run(&key, "hi")).await;
    seen.assert_finished();
    assert!(runner.recover().await.unwrap().is_empty());
    assert_free(&runner, &key).await;
}
