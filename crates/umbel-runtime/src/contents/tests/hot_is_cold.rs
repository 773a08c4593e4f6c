//! A projection that was extended gives what a build from scratch gives.

use std::sync::Arc;

use proptest::prelude::*;
use umbel_core::{Content, List};

use super::logs::log;
use super::{assert_same, projection};

proptest! {
    #![proptest_config(ProptestConfig { cases: 3000, ..ProptestConfig::default() })]

    #[test]
    fn contents_are_the_same_kept_as_built_anew(
        log in log(),
        asked in prop::collection::vec((any::<bool>(), 0..4usize), 30),
    ) {
        let inputs = [None, Some(Arc::new(Content::user("task"))), Some(Arc::new(Content::user("other")))];
        let (mut always, mut sometimes) = (projection(&log.view), projection(&log.view));
        let mut events = List::new();
        assert_same(&mut always, &events, None);
        for (index, event) in log.events.iter().enumerate() {
            events.push(event.clone());
            let (ask, input) = asked[index % asked.len()];
            let input = inputs.get(input).unwrap_or(&inputs[1]).as_ref();
            assert_same(&mut always, &events, input);
            if ask || index + 1 == log.events.len() {
                assert_same(&mut sometimes, &events, input);
            }
        }
    }
}
