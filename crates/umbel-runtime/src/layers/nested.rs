//! Calls on behalf of other calls: by a tool that calls tools, or an agent that was called as one.
//!
//! A call that holds something must not make those on its behalf wait for it.

use std::sync::Arc;

use umbel_core::ToolContext;

/// What a call holds, seen by those on its behalf.
struct Holding<K> {
    /// The address of the layer's own part, which lives as long as the call.
    layer: usize,
    key: K,
    outer: Option<Arc<Holding<K>>>,
}

/// Whether a call is on behalf of one that holds that key of a layer.
pub(super) fn is_held<K: Eq + Send + Sync + 'static, L>(cx: &ToolContext, layer: &Arc<L>, key: &K) -> bool {
    let mut holding = cx.extension::<Holding<K>>();
    while let Some(outer) = holding {
        if outer.layer == Arc::as_ptr(layer).addr() && outer.key == *key {
            return true;
        }
        holding = outer.outer.clone();
    }
    false
}

/// The context for those on behalf of a call that holds that key of a layer.
pub(super) fn holding<K: Send + Sync + 'static, L>(cx: &ToolContext, layer: &Arc<L>, key: K) -> ToolContext {
    cx.with(Holding { layer: Arc::as_ptr(layer).addr(), key, outer: cx.extension::<Holding<K>>() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_held_is_seen_further_in_by_layer_and_key() {
        let (one, two) = (Arc::new(1u8), Arc::new(2u8));
        let outer = ToolContext::detached("t").unwrap();
        let inner = holding(&holding(&outer, &one, 7u64), &two, 8u64);
        assert!(is_held(&inner, &one, &7u64) && is_held(&inner, &two, &8u64));
        assert!(!is_held(&inner, &one, &8u64) && !is_held(&inner, &two, &7u64));
        assert!(!is_held(&inner, &one, &7u32) && !is_held(&outer, &one, &7u64));
    }
}
