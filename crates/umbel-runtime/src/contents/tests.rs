//! What the golden vectors and random logs say of contents.

mod clocks;
mod hot_is_cold;
mod logs;
mod ordinary;
mod request;
mod tokens;
mod vectors;

use std::sync::Arc;

use umbel_core::{Content, ContentsView, Event, List};

use super::build;
use super::projection::Projection;

/// Asserts that a projection gives what a build from scratch gives.
fn assert_same(kept: &mut Projection, events: &List<Arc<Event>>, input: Option<&Arc<Content>>) {
    let cold = build(kept.view(), events, input);
    let hot: Vec<_> = kept.contents(events, input).iter().cloned().collect();
    if hot != cold {
        let log: Vec<_> = events.iter().map(|event| serde_json::to_string(&**event).unwrap()).collect();
        let show = |contents: &[Arc<Content>]| {
            contents
                .iter()
                .map(|content| serde_json::to_string(&**content).unwrap())
                .collect::<Vec<_>>()
                .join("\n")
        };
        panic!("{:?}\nlog:\n{}\nhot:\n{}\ncold:\n{}", kept.view(), log.join("\n"), show(&hot), show(&cold));
    }
}

fn projection(view: &ContentsView) -> Projection {
    Projection::new(view.clone())
}
