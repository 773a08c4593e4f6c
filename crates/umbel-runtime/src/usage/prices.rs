//! Money, and what models cost.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};
use smol_str::SmolStr;
use umbel_core::Usage;

use super::used::Tally;

/// An amount of money in billionths, so that sums are exact: of a dollar, or of whatever the prices are in.
///
/// ```
/// use umbel_runtime::usage::Money;
///
/// assert_eq!(Money::cents(250), Money::nanos(2_500_000_000));
/// assert_eq!(Money::nanos(1_230_000).to_string(), "$0.00123");
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Money(u64);

impl Money {
    /// Nothing.
    pub const ZERO: Self = Self(0);

    /// So many billionths.
    pub const fn nanos(nanos: u64) -> Self {
        Self(nanos)
    }

    /// So many hundredths.
    pub const fn cents(cents: u64) -> Self {
        Self(cents.saturating_mul(10_000_000))
    }

    /// So many whole ones.
    pub const fn dollars(dollars: u64) -> Self {
        Self(dollars.saturating_mul(ONE))
    }

    /// In billionths.
    pub const fn as_nanos(self) -> u64 {
        self.0
    }

    /// Both together.
    pub const fn plus(self, other: Self) -> Self {
        Self(self.0.saturating_add(other.0))
    }

    /// What is left without the other.
    pub(super) const fn minus(self, other: Self) -> Self {
        Self(self.0.saturating_sub(other.0))
    }
}

/// A whole one.
const ONE: u64 = 1_000_000_000;

impl fmt::Display for Money {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let parts = format!("{:09}", self.0 % ONE);
        let parts = parts.trim_end_matches('0');
        write!(f, "${}.{parts:0<2}", self.0 / ONE)
    }
}

/// What a model costs, for a million tokens each. Its JSON form has decimals, as price lists do.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Price {
    /// Tokens of the prompt.
    #[serde(with = "decimal")]
    pub input: Money,
    /// Those that came from a cache; as any other unless said otherwise.
    #[serde(default, with = "optional_decimal", skip_serializing_if = "Option::is_none")]
    pub cached_input: Option<Money>,
    /// Those that were put into a cache; as any other unless said otherwise.
    #[serde(default, with = "optional_decimal", skip_serializing_if = "Option::is_none")]
    pub cache_write: Option<Money>,
    /// Tokens of the answer, thoughts included.
    #[serde(with = "decimal")]
    pub output: Money,
    /// What calls with a long prompt cost instead.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub long_context: Option<Box<LongContext>>,
}

/// What calls with a long prompt cost.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct LongContext {
    /// Prompts of more tokens than that are long.
    pub above: u64,
    /// What all tokens of such a call cost.
    pub price: Price,
}

impl Price {
    /// So much for a million tokens of the prompt, and of the answer.
    pub fn new(input: Money, output: Money) -> Self {
        Self { input, output, ..Self::default() }
    }

    /// What tokens of the prompt cost that come from a cache.
    pub fn cached_input(mut self, price: Money) -> Self {
        self.cached_input = Some(price);
        self
    }

    /// What tokens of the prompt cost that are put into a cache.
    pub fn cache_write(mut self, price: Money) -> Self {
        self.cache_write = Some(price);
        self
    }

    /// What calls cost whose prompt has more tokens than that.
    pub fn above(mut self, tokens: u64, price: Self) -> Self {
        self.long_context = Some(Box::new(LongContext { above: tokens, price }));
        self
    }

    /// What one call costs, to the nearest billionth.
    pub fn cost(&self, usage: &Usage) -> Money {
        self.cost_of(&Tally::told(usage))
    }

    pub(super) fn cost_of(&self, call: &Tally) -> Money {
        if let Some(long) = self.long_context.as_ref().filter(|long| call.prompt > long.above) {
            return long.price.cost_of(call);
        }
        let cached = call.cached.min(call.prompt);
        let written = call.cache_writes.min(call.prompt - cached);
        let plain = call.prompt - cached - written;
        let part = |tokens: u64, price: Money| u128::from(tokens) * u128::from(price.0);
        let sum = part(plain, self.input)
            .saturating_add(part(cached, self.cached_input.unwrap_or(self.input)))
            .saturating_add(part(written, self.cache_write.unwrap_or(self.input)))
            .saturating_add(part(call.answer, self.output))
            .saturating_add(part(call.thoughts, self.output));
        Money(u64::try_from(sum.saturating_add(MILLION / 2) / MILLION).unwrap_or(u64::MAX))
    }
}

const MILLION: u128 = 1_000_000;

/// What models cost, by the beginning of their names: the longest that fits counts, so that `large-2` is the price of
/// `large-2-2026-01-01` though there is one for `large` too.
///
/// Umbel brings no prices along, since they change: have them as data.
///
/// ```
/// use umbel_runtime::usage::{Money, Price, Prices};
///
/// let prices: Prices = serde_json::from_str(
///     r#"{
///         "large": {"input": 2.5, "cachedInput": 0.25, "output": 10,
///                   "longContext": {"above": 200000, "price": {"input": 5, "output": 15}}},
///         "large-mini": {"input": 0.15, "output": 0.6}
///     }"#,
/// )?;
/// assert_eq!(prices.price("large-mini-2026"), Some(&Price::new(Money::cents(15), Money::cents(60))));
/// assert_eq!(prices.price("unheard-of"), None);
/// # Ok::<(), serde_json::Error>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Prices(BTreeMap<SmolStr, Price>);

impl Prices {
    /// No prices.
    pub fn new() -> Self {
        Self::default()
    }

    /// The same with the price of models whose names begin like that, in the place of an older one.
    pub fn with(mut self, name: impl Into<SmolStr>, price: Price) -> Self {
        self.0.insert(name.into(), price);
        self
    }

    /// What a model costs, if that is known.
    pub fn price(&self, model: &str) -> Option<&Price> {
        let fitting = self.0.iter().filter(|(name, _)| model.starts_with(name.as_str()));
        fitting.max_by_key(|(name, _)| name.len()).map(|(_, price)| price)
    }

    /// What one call of a model costs, if that is known.
    pub fn cost(&self, model: &str, usage: &Usage) -> Option<Money> {
        self.price(model).map(|price| price.cost(usage))
    }
}

impl<N: Into<SmolStr>> FromIterator<(N, Price)> for Prices {
    fn from_iter<T: IntoIterator<Item = (N, Price)>>(prices: T) -> Self {
        Self(prices.into_iter().map(|(name, price)| (name.into(), price)).collect())
    }
}

/// Money as a decimal number. Numbers are read and written one by one here; sums are made of whole billionths.
mod decimal {
    use serde::{Deserialize, Deserializer, Serializer, de};

    use super::{Money, ONE};

    /// Above this a number with decimals does not tell billionths apart any more.
    const MOST: f64 = 9_000_000.0;

    #[allow(clippy::trivially_copy_pass_by_ref)] // The form that serde asks for.
    pub(super) fn serialize<S: Serializer>(money: &Money, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_f64(money.0 as f64 / ONE as f64)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Money, D::Error> {
        read(f64::deserialize(deserializer)?)
    }

    pub(super) fn read<E: de::Error>(price: f64) -> Result<Money, E> {
        if !(0.0..=MOST).contains(&price) {
            return Err(E::custom(format!("a price must be from 0 to {MOST}, not {price}")));
        }
        Ok(Money((price * ONE as f64).round() as u64))
    }
}

/// The same for a price that need not be there.
mod optional_decimal {
    use serde::{Deserialize, Deserializer, Serializer};

    use super::{Money, decimal};

    #[allow(clippy::ref_option)] // The form that serde asks for.
    pub(super) fn serialize<S: Serializer>(money: &Option<Money>, serializer: S) -> Result<S::Ok, S::Error> {
        match money {
            Some(money) => decimal::serialize(money, serializer),
            None => serializer.serialize_none(),
        }
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Money>, D::Error> {
        Option::<f64>::deserialize(deserializer)?.map(decimal::read).transpose()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn usage(prompt: u64, cached: u64, written: u64, answer: u64, thoughts: u64) -> Usage {
        Usage {
            prompt_token_count: Some(prompt),
            cached_content_token_count: Some(cached),
            cache_write_token_count: Some(written),
            candidates_token_count: Some(answer),
            thoughts_token_count: Some(thoughts),
            ..Usage::default()
        }
    }

    fn price() -> Price {
        let price = Price::new(Money::dollars(3), Money::dollars(15));
        price.cached_input(Money::cents(30)).cache_write(Money::cents(375))
    }

    #[test]
    fn each_kind_of_token_has_its_price_and_thoughts_cost_what_answers_do() {
        // 600 plain, 300 cached, 100 written, 20 said and 30 thought.
        let nanos = 600 * 3_000 + 300 * 300 + 100 * 3_750 + 50 * 15_000;
        assert_eq!(price().cost(&usage(1_000, 300, 100, 20, 30)), Money::nanos(nanos));
        let plain = Price::new(Money::dollars(3), Money::dollars(15));
        assert_eq!(plain.cost(&usage(1_000, 300, 100, 0, 0)), Money::nanos(3_000_000));
        // More from the cache than there is in the prompt is no discount on it.
        assert_eq!(price().cost(&usage(10, 50, 50, 0, 0)), Money::nanos(3_000));
        assert_eq!(price().cost(&Usage::default()), Money::ZERO);
    }

    #[test]
    fn a_long_prompt_has_prices_of_its_own_for_the_whole_call() {
        let price = price().above(1_000, Price::new(Money::dollars(6), Money::dollars(20)));
        assert_eq!(price.cost(&usage(1_000, 0, 0, 1, 0)), Money::nanos(3_000_000 + 15_000));
        assert_eq!(price.cost(&usage(1_001, 0, 0, 1, 0)), Money::nanos(6_006_000 + 20_000));
    }

    #[test]
    fn parts_of_a_billionth_are_rounded_once_per_call_and_nothing_overflows() {
        let tiny = Price::new(Money::nanos(400_000), Money::nanos(400_000));
        assert_eq!(tiny.cost(&usage(1, 0, 0, 0, 0)), Money::ZERO);
        assert_eq!(tiny.cost(&usage(1, 0, 0, 1, 0)), Money::nanos(1));
        let dear = Price::new(Money::nanos(u64::MAX), Money::nanos(u64::MAX));
        assert_eq!(dear.cost(&usage(u64::MAX, 0, 0, u64::MAX, u64::MAX)), Money::nanos(u64::MAX));
    }

    #[test]
    fn the_longest_beginning_of_a_name_counts() {
        let of = |cents| Price::new(Money::cents(cents), Money::ZERO);
        let prices: Prices =
            [("m", of(1)), ("m-large", of(2)), ("m-large-2", of(3)), ("m-s", of(4))].into_iter().collect();
        let input = |model: &str| prices.price(model).map(|price| price.input);
        assert_eq!(input("m-large-2-x"), Some(Money::cents(3)));
        assert_eq!(input("m-large-1"), Some(Money::cents(2)));
        assert_eq!(input("m-large"), Some(Money::cents(2)));
        assert_eq!(input("m-tiny"), Some(Money::cents(1)));
        assert_eq!(input("other-m"), None);
        assert_eq!(prices.cost("m", &usage(1_000_000, 0, 0, 5, 0)), Some(Money::cents(1)));
        assert_eq!(prices.cost("n", &usage(1, 0, 0, 0, 0)), None);
        assert_eq!(prices.with("n", of(5)).price("n"), Some(&of(5)));
    }

    #[test]
    fn prices_are_read_and_written_as_decimals() {
        let value = json!({
            "a": {"input": 0.0375, "cachedInput": 0.01, "cacheWrite": 1.25, "output": 0.3},
            "b": {"input": 2.5, "output": 10.0, "longContext": {"above": 200_000, "price": {"input": 5.0, "output": 15.0}}},
        });
        let prices: Prices = serde_json::from_value(value.clone()).unwrap();
        assert_eq!(prices.price("a").unwrap().input, Money::nanos(37_500_000));
        assert_eq!(serde_json::to_value(&prices).unwrap(), value);
        for bad in [
            json!({"a": {"input": -1, "output": 1}}),
            json!({"a": {"input": 1e10, "output": 1}}),
            json!({"a": {"input": "1", "output": 1}}),
            json!({"a": {"input": 1}}),
            json!({"a": {"input": 1, "output": 1, "cached": 1}}),
            json!({"a": {"input": 1, "output": 1, "cachedInput": -1}}),
        ] {
            assert!(serde_json::from_value::<Prices>(bad.clone()).is_err(), "{bad}");
        }
    }

    #[test]
    fn money_is_written_with_as_many_decimals_as_it_needs() {
        let words = |nanos| Money::nanos(nanos).to_string();
        assert_eq!(
            [words(0), words(ONE), words(1_500_000_000), words(1)],
            ["$0.00", "$1.00", "$1.50", "$0.000000001"]
        );
        assert_eq!(Money::dollars(2).plus(Money::cents(5)).to_string(), "$2.05");
        assert_eq!(Money::dollars(u64::MAX).plus(Money::nanos(1)).as_nanos(), u64::MAX);
    }
}
