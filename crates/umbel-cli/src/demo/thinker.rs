//! What the thinker's script says: a thought, a look at the weather, another thought, an answer.

use serde_json::{Value, json};
use umbel::ModelRequest;

use super::script::{Answer, call, last_words, results, say, think};
use super::words::{Topic, places, topic};

/// What is compared if nobody names a place.
const PLACES: [&str; 3] = ["Lisbon", "Rome", "Cairo"];

/// A place and what the tool told of it.
struct Place {
    city: String,
    celsius: i64,
    sky: String,
}

pub(super) fn answer(request: &ModelRequest) -> Answer {
    let seen: Vec<Place> = results(request).filter_map(|result| place(result.response.as_ref()?)).collect();
    if let Some(best) = seen.iter().max_by_key(|place| place.celsius) {
        return conclude(&seen, best);
    }
    let words = last_words(request);
    let mut cities = places(&words);
    if topic(&words) == Topic::Hello && cities.is_empty() {
        return say("Hello! Ask me where to go, or which of some cities is the warmest.");
    }
    let why = if cities.is_empty() {
        cities = PLACES.map(str::to_owned).to_vec();
        "No place is named, so I choose three that are easy to reach."
    } else {
        "The places are named, so there is nothing to choose."
    };
    let list = cities.join(", ");
    let thought =
        format!("{why} What counts is the weather of today. I look at all of them at once: {list}.");
    let mut answer = think(&thought);
    answer.extend(call(cities.iter().map(|city| ("get_weather", json!({"city": city})))));
    answer
}

/// Compares what was found, then says it.
fn conclude(seen: &[Place], best: &Place) -> Answer {
    let found: Vec<String> = seen
        .iter()
        .map(|place| format!("{} has {} °C and is {}", place.city, place.celsius, place.sky))
        .collect();
    let mut answer = think(&format!("{}. The warmest is {}.", found.join("; "), best.city));
    let Place { city, celsius, sky } = best;
    let others = match seen.len() {
        1 => "It is the only place I looked at.".to_owned(),
        count => format!("It is the warmest of the {count} places I looked at."),
    };
    answer.extend(say(&format!("Go to {city}: {celsius} °C and {sky}. {others}")));
    answer
}

fn place(told: &umbel::Object) -> Option<Place> {
    let text = |key: &str| told.get(key).and_then(Value::as_str).map(str::to_owned);
    let celsius = told.get("celsius").and_then(Value::as_i64)?;
    Some(Place { city: text("city")?, celsius, sky: text("sky")? })
}
