//! What models cost, as data.

use serde::Deserialize;
use serde_json::Value;
use umbel_core::{Error, ErrorKind, Result};

/// What models cost in US dollars for a million tokens, by the beginning of their names: the longest that fits counts. In the
/// JSON form that `Prices` of `umbel-runtime` reads.
///
/// They are list prices of the day that [`prices_as_of`] names, and prices change: look before you bill somebody. A model
/// that came out later may begin like one that is there.
///
/// ```
/// let prices = umbel_models::prices()?;
/// assert!(prices["gpt-5"]["input"].is_number());
/// # Ok::<(), umbel_core::Error>(())
/// ```
pub fn prices() -> Result<Value> {
    Ok(table()?.prices)
}

/// The day of the [`prices`].
pub fn prices_as_of() -> Result<String> {
    Ok(table()?.as_of)
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Table {
    as_of: String,
    prices: Value,
}

fn table() -> Result<Table> {
    serde_json::from_str(include_str!("../data/prices.json"))
        .map_err(|error| Error::new(ErrorKind::Corrupt, "the prices cannot be read").with_source(error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_price_is_complete_and_makes_sense() {
        assert!(prices_as_of().unwrap().starts_with("20"));
        let prices = prices().unwrap();
        let prices = prices.as_object().unwrap();
        assert!(prices.len() > 50);
        for (name, price) in prices {
            let cost = |key: &str| price.get(key).map(|cost| cost.as_f64().unwrap());
            let (input, output) = (cost("input").unwrap(), cost("output").unwrap());
            assert!(input > 0.0 && output >= input && output < 1000.0, "{name}");
            assert!(cost("cachedInput").is_none_or(|cached| cached < input), "{name}");
            assert!(cost("cacheWrite").is_none_or(|write| write > input), "{name}");
        }
    }
}
