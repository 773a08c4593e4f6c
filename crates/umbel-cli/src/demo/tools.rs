//! What the guide can do. All numbers are made up, and the same each time.

use serde_json::{Value, json};
use umbel::{ToolContext, ToolError, tool};

/// Euros for one unit of each currency.
const RATES: [(&str, f64); 5] = [("EUR", 1.0), ("USD", 0.9), ("GBP", 1.2), ("JPY", 0.006), ("CHF", 1.05)];

/// A number that belongs to a name, always the same one.
pub(super) fn digest(name: &str) -> u32 {
    name.to_lowercase().bytes().fold(7, |digest: u32, byte| digest.wrapping_mul(31).wrapping_add(byte.into()))
}

/// Tells the weather of a city.
#[tool(read_only)]
pub(super) async fn get_weather(
    /// The city's name.
    city: String,
) -> Value {
    let number = digest(&city);
    let sky = match number % 4 {
        0 => "sunny",
        1 => "cloudy",
        2 => "rainy",
        _ => "windy",
    };
    json!({"city": city, "celsius": 6 + number % 23, "sky": sky})
}

/// Converts an amount of money.
#[tool(read_only)]
pub(super) async fn convert_currency(
    /// How much.
    amount: f64,
    /// The currency it is in, such as EUR.
    from: String,
    /// The currency it is to be in.
    to: String,
) -> Result<Value, ToolError> {
    let converted = amount * rate(&from)? / rate(&to)?;
    Ok(json!({"amount": (converted * 100.0).round() / 100.0, "currency": to}))
}

fn rate(currency: &str) -> Result<f64, ToolError> {
    let found = RATES.iter().find(|(name, _)| *name == currency);
    found.map(|(_, euros)| *euros).ok_or_else(|| {
        let known: Vec<&str> = RATES.iter().map(|(name, _)| *name).collect();
        ToolError::new(format!("there is no rate for {currency}, only for {}", known.join(", ")))
    })
}

/// Puts things on the packing list and tells what is on it.
#[tool]
pub(super) async fn pack(
    cx: &ToolContext,
    /// The things to add; none to see the list.
    items: Vec<String>,
) -> Value {
    let mut list = strings(cx.state("packing_list"));
    let added = items.into_iter().filter(|item| !list.contains(item)).collect::<Vec<_>>();
    if !added.is_empty() {
        list.extend(added);
        cx.set_state("packing_list", list.clone());
    }
    json!({"packing_list": list})
}

/// Books a trip. It costs money.
#[tool]
pub(super) async fn book_trip(
    cx: &ToolContext,
    /// Where to.
    city: String,
    /// How many nights.
    nights: u32,
) -> Value {
    let price = nights * (50 + digest(&city) % 90);
    let mut trips = strings(cx.state("user:trips"));
    let number = trips.len() + 1;
    trips.push(format!("{city}, {nights} nights"));
    // Kept for the user, so that another conversation knows it too.
    cx.set_state("user:trips", trips);
    json!({"booking": format!("UMB-{number}"), "city": city, "nights": nights, "euros": price})
}

/// Tells which trips the user booked.
#[tool(read_only)]
pub(super) async fn my_trips(cx: &ToolContext) -> Value {
    json!({"trips": strings(cx.state("user:trips"))})
}

fn strings(value: Option<Value>) -> Vec<String> {
    value.and_then(|value| serde_json::from_value(value).ok()).unwrap_or_default()
}
