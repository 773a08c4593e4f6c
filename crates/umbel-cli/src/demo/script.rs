//! What each agent's model says: a look at the last words, or at what the tools answered, and then an answer.

use serde_json::{Value, json};
use umbel::runtime::team::TRANSFER_TO_AGENT;
use umbel::runtime::text::FOREIGN;
use umbel::{Chunk, Content, FunctionCall, FunctionResponse, ModelRequest, Part, Response, Result, Role};

use super::tools::digest;
use super::words::{Topic, currencies, number, places, things, topic};

/// What a model says, piece by piece.
pub(super) type Answer = Vec<Result<Chunk>>;

/// How long a trip is if nobody says so.
const NIGHTS: f64 = 3.0;

pub(super) fn guide(request: &ModelRequest) -> Answer {
    if let Some(told) = reported(request) {
        return told;
    }
    let words = last_words(request);
    let places = places(&words);
    match (topic(&words), places.first()) {
        (Topic::Hello, _) => say("Hello! Ask me about weather, money, packing or trips."),
        (Topic::Back, _) => say("Here I am again. What can I do for you?"),
        (Topic::Money, _) => match (number(&words), currencies(&words)) {
            (Some(amount), Some((from, to))) => {
                call([("convert_currency", json!({"amount": plain(amount), "from": from, "to": to}))])
            }
            _ => say("Tell me an amount and two currencies, such as: convert 100 EUR to JPY"),
        },
        (Topic::Packing, _) => call([("pack", json!({"items": things(&words)}))]),
        (Topic::Trips, _) => call([("my_trips", json!({}))]),
        (Topic::Food, _) => transfer("foodie"),
        (Topic::Idea, _) => {
            let mut answer = think("Somewhere mild and easy to walk, by the sea. Lisbon fits best.");
            answer.extend(say("Go to Lisbon: hills, trams and the sea. Say `book 3 nights in Lisbon`."));
            answer
        }
        (Topic::Booking, Some(city)) => book(city, &words),
        (Topic::Day, Some(_)) => transfer("day_plan"),
        (Topic::Weather, Some(_)) => call(places.iter().map(|city| ("get_weather", json!({"city": city})))),
        // A bare city is most likely the answer to the question below.
        (Topic::Unknown, Some(city)) => call([("get_weather", json!({"city": city}))]),
        (Topic::Booking | Topic::Day | Topic::Weather, None) => say("For which city?"),
        (Topic::Unknown, None) => say("I am a script and know few words. Try `weather in Paris`, or /help."),
    }
}

pub(super) fn booking(request: &ModelRequest) -> Answer {
    if let Some(told) = reported(request) {
        return told;
    }
    let words = last_words(request);
    match (topic(&words), places(&words).first()) {
        (Topic::Trips, _) => call([("my_trips", json!({}))]),
        (Topic::Booking | Topic::Unknown, Some(city)) => book(city, &words),
        (Topic::Booking, None) => say("To which city?"),
        _ => say(
            "I book trips, and ask you before I do. Say `book 3 nights in Lisbon` or `what are my trips?`.",
        ),
    }
}

fn book(city: &str, words: &str) -> Answer {
    let nights = number(words).unwrap_or(NIGHTS).clamp(1.0, 30.0).round();
    call([("book_trip", json!({"city": city, "nights": nights as u32}))])
}

pub(super) fn team(request: &ModelRequest) -> Answer {
    let words = last_words(request);
    match (topic(&words), places(&words).first()) {
        (Topic::Food, _) => transfer("foodie"),
        (Topic::Day, None) => say("A day in which city?"),
        (Topic::Day | Topic::Unknown, Some(_)) => transfer("day_plan"),
        (Topic::Back, _) => say("Here we are again. Food, or a plan for a day?"),
        _ => say("We plan days and know food. Say `plan a day in Oslo` or `what can I eat in Tokyo?`."),
    }
}

/// Knows food, and sends home whoever wants something else.
pub(super) fn foodie(request: &ModelRequest, home: &str) -> Answer {
    let words = last_words(request);
    match (topic(&words), places(&words).first()) {
        (Topic::Food | Topic::Unknown, Some(city)) => say(&format!(
            "In {city}, try {}. Say `back` for the {home}.",
            pick(city, &["the grilled fish", "a bowl of noodles", "the lentil stew", "the plum cake"])
        )),
        (Topic::Food, None) => say("Gladly! In which city?"),
        (Topic::Unknown | Topic::Hello, None) => {
            say(&format!("I only know food. Name a city, or say `back` for the {home}."))
        }
        _ => transfer(home),
    }
}

pub(super) fn sights(request: &ModelRequest) -> Answer {
    let city = city(request);
    say(&format!(
        "{} in {city}",
        pick(&city, &["The old harbour", "The glass museum", "The castle hill", "The market hall"])
    ))
}

pub(super) fn evening(request: &ModelRequest) -> Answer {
    let city = city(request);
    say(&format!(
        "{} in {city}",
        pick(&city, &["A boat at sunset", "A small jazz club", "The night tram", "An open-air film"])
    ))
}

/// Makes a plan of the two lines that its instruction took from the state.
pub(super) fn writer(request: &ModelRequest) -> Answer {
    let told = request.instruction.text();
    let found =
        |head: &str| told.lines().find_map(|line| line.strip_prefix(head)).unwrap_or("nothing").to_owned();
    say(&format!("Here is your day:\n  morning: {}\n  evening: {}", found("Morning: "), found("Evening: ")))
}

/// A number as one would write it: 100, not 100.0.
fn plain(number: f64) -> Value {
    let whole = number as i64;
    if whole as f64 == number { whole.into() } else { number.into() }
}

/// What tools answered last.
pub(super) fn results(request: &ModelRequest) -> impl Iterator<Item = &FunctionResponse> {
    request.contents.last().into_iter().flat_map(|last| last.responses())
}

/// What tools answered last, in words; nothing if they were not asked.
fn reported(request: &ModelRequest) -> Option<Answer> {
    let told: Vec<String> = results(request).map(report).collect();
    (!told.is_empty()).then(|| say(&told.join(" ")))
}

/// What a tool answered, in words.
fn report(response: &FunctionResponse) -> String {
    let told = response.response.as_ref();
    // Where a person changed the call, a notice stands beside the result.
    let told = told.and_then(|told| told.get("result")).and_then(Value::as_object).or(told);
    let field = |key: &str| told.and_then(|object| object.get(key));
    let text = |key: &str| match field(key) {
        Some(Value::String(text)) => text.clone(),
        Some(value) => value.to_string(),
        None => String::new(),
    };
    let list = |key: &str| {
        let items = field(key).and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_str);
        items.collect::<Vec<_>>().join(" · ")
    };
    match (response.name.as_str(), field("error")) {
        ("book_trip", Some(_)) => "All right, nothing was booked.".to_owned(),
        (_, Some(error)) => format!("That did not work: {}.", error.as_str().unwrap_or_default()),
        ("get_weather", None) => format!("{}: {}, {} °C.", text("city"), text("sky"), text("celsius")),
        ("convert_currency", None) => format!(
            "That is {} {}.",
            field("amount").and_then(Value::as_f64).map(plain).unwrap_or_default(),
            text("currency")
        ),
        ("pack", None) if list("packing_list").is_empty() => {
            "Nothing is packed yet. Say `pack an umbrella`.".to_owned()
        }
        ("pack", None) => format!("On your packing list: {}.", list("packing_list")),
        ("my_trips", None) if list("trips").is_empty() => {
            "You have no trips yet. Say `book 3 nights in Rome`.".to_owned()
        }
        ("my_trips", None) => format!("Your trips: {}.", list("trips")),
        ("book_trip", None) => {
            let (nights, city) = (text("nights"), text("city"));
            format!(
                "Booked: {nights} nights in {city} for {} euros. Your booking is {}.",
                text("euros"),
                text("booking")
            )
        }
        (other, None) => format!("{other} is done."),
    }
}

/// What the person said last. What other agents said is quoted to a model in the person's role; that is not meant.
pub(super) fn last_words(request: &ModelRequest) -> String {
    let quoted = |content: &Content| content.parts.first().and_then(Part::as_text) == Some(FOREIGN);
    let said = request
        .contents
        .iter()
        .rev()
        .find(|content| content.role == Some(Role::User) && !content.has_responses() && !quoted(content));
    said.map(|content| content.text()).unwrap_or_default()
}

fn city(request: &ModelRequest) -> String {
    places(&last_words(request)).into_iter().next().unwrap_or_else(|| "town".to_owned())
}

/// One of the choices, always the same for a name.
fn pick<'a>(name: &str, choices: &[&'a str]) -> &'a str {
    let place = digest(name) as usize % choices.len().max(1);
    choices.get(place).copied().unwrap_or_default()
}

/// Says something word by word.
pub(super) fn say(text: &str) -> Answer {
    text.split_inclusive(' ').map(|word| Ok(Chunk::Text(word.to_owned()))).collect()
}

/// Thinks aloud, word by word.
pub(super) fn think(thought: &str) -> Answer {
    thought.split_inclusive(' ').map(|word| Ok(Chunk::Thought(word.to_owned()))).collect()
}

/// Calls tools, all at once.
pub(super) fn call<'a>(calls: impl IntoIterator<Item = (&'a str, Value)>) -> Answer {
    let parts = calls.into_iter().map(|(name, args)| {
        let args = args.as_object().cloned().unwrap_or_default();
        Part::call(FunctionCall::new(name, args))
    });
    vec![Ok(Chunk::Delta(Response::new(Content::new(Role::Model, parts))))]
}

fn transfer(agent: &str) -> Answer {
    call([(TRANSFER_TO_AGENT, json!({"agent_name": agent}))])
}
