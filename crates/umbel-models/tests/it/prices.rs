//! The prices that come along.

use umbel_core::Usage;
use umbel_runtime::usage::{Money, Prices};

#[test]
fn the_prices_can_be_counted_with() {
    let prices: Prices = serde_json::from_value(umbel_models::prices().unwrap()).unwrap();
    let usage = Usage {
        prompt_token_count: Some(1_000_000),
        cached_content_token_count: Some(500_000),
        candidates_token_count: Some(100_000),
        ..Usage::default()
    };
    // Half of the prompt for $1.25, half for $0.125, and a tenth of $10.
    assert_eq!(prices.cost("gpt-5-2025-08-07", &usage), Some(Money::nanos(1_687_500_000)));
    // A long prompt costs more.
    let long = prices.price("gpt-5.4-2026-03-05").unwrap().long_context.as_ref().unwrap();
    assert_eq!((long.above, long.price.input), (272_000, Money::dollars(5)));
    assert_eq!(prices.cost("my-own", &usage), None);
}

#[test]
fn the_models_of_those_who_sell_their_own_have_prices() {
    let prices: Prices = serde_json::from_value(umbel_models::prices().unwrap()).unwrap();
    for info in umbel_models::Catalog::known().models() {
        let (provider, model) = info.name.split_once('/').unwrap();
        if ["anthropic", "openai", "xai"].contains(&provider) {
            assert!(prices.price(model).is_some(), "{}", info.name);
        }
    }
}
