//! Sums up old turns before a request grows too long.

use umbel_core::{Result, Work};

use super::RequestProcessor;
use crate::flow::Draft;

pub(super) struct Compaction;

impl RequestProcessor for Compaction {
    fn name(&self) -> &str {
        "compaction"
    }

    fn acts(&self) -> bool {
        true
    }

    fn process<'a>(&'a self, draft: &'a mut Draft<'_>) -> Work<'a, Result<()>> {
        let Some(compactor) = draft.team.extras.compaction.clone() else { return Work::done(Ok(())) };
        if !compactor.watches_tokens() {
            return Work::done(Ok(()));
        }
        let (run, model, overflows) = (draft.run, draft.model.clone(), draft.overflows);
        Work::later(async move { compactor.compact_by_tokens(run, &model, overflows).await })
    }
}
