//! A travel guide and its team: what one talks with until a real model is plugged in.
//!
//! The agents, tools, state, approvals and hand-overs are real. Only the model is a script: it looks for words it
//! knows, so it works offline and always says the same.

mod pace;
mod script;
mod tools;
mod words;

use std::time::Duration;

use umbel::{Chunk, LlmAgent, Model, ModelRequest, Parallel, Result, Runner, Sequential};

use self::pace::Paced;
use crate::agents::{Offer, Setup};

/// How long the demo's model waits before each word where a person reads along.
const PACE: Duration = Duration::from_millis(25);

/// What a person is told first.
pub const BANNER: &str = "\
Umbel demo: a travel guide and its team.
The model is a script that knows a few words, so it works offline.
All data is made up.
Type /help to see what to try, /quit to leave.
";

/// What can be said, and what it shows.
pub const TRY: &str = "\
The model is a script and all data is made up. Things to say:
  weather in Paris and Rome     two tools at once
  convert 100 EUR to JPY        a tool with several arguments; XYZ makes it fail
  pack an umbrella and a map    writes the state, see /state
  book 3 nights in Lisbon       asks for your approval
  what are my trips?            remembered for you, even after /new
  plan a day in Oslo            two agents side by side, then a third
  where should I go?            thinks before it answers
  what can I eat in Rome?       hands over to another agent; `back` returns";

/// The agents of the demo.
pub fn offers(setup: &Setup) -> Result<Vec<Offer>> {
    let pace = setup.watched.then_some(PACE);
    let guide = Offer::new("guide", Runner::builder("demo", guide(pace)))
        .about("A travel guide and its team: tools, state, approval, hand-over.")
        .suggest("weather in Paris and Rome")
        .suggest("book 3 nights in Lisbon");
    let day_plan = Offer::new("day-plan", Runner::builder("demo-day-plan", paced_day_plan(pace)))
        .about("Two agents side by side, then a third.")
        .suggest("plan a day in Oslo");
    Ok(vec![guide, day_plan])
}

/// The guide and its team. With a pace, the model waits so long before each word, as a real one would.
pub fn guide(pace: Option<Duration>) -> LlmAgent {
    let model = |answer: fn(&ModelRequest) -> Vec<Result<Chunk>>| Paced::new(answer, pace);
    LlmAgent::new("guide")
        .description("Helps with travel: weather, money, packing, bookings.")
        .instruction("You are a travel guide. Be brief. The packing list is: {packing_list?}")
        .model(model(script::guide))
        .tool(tools::get_weather)
        .tool(tools::convert_currency)
        .tool(tools::pack)
        .tool(tools::book_trip)
        .tool(tools::my_trips)
        .sub_agent(foodie(model(script::foodie)))
        .sub_agent(paced_day_plan(pace))
}

/// The guide alone, on another model than its script.
pub fn guide_on(model: impl Model + 'static) -> Result<Runner> {
    let guide = LlmAgent::new("guide")
        .instruction("You are a travel guide. Be brief.")
        .model(model)
        .tool(tools::get_weather)
        .tool(tools::convert_currency);
    Runner::new("demo-guide", guide)
}

fn paced_day_plan(pace: Option<Duration>) -> Sequential {
    let model = |answer: fn(&ModelRequest) -> Vec<Result<Chunk>>| Paced::new(answer, pace);
    day_plan(model(script::sights), model(script::evening), model(script::writer))
}

/// Keeps the conversation until it is about something other than food.
fn foodie(model: Paced) -> LlmAgent {
    LlmAgent::new("foodie")
        .description("Knows what to eat where.")
        .instruction("You know food and nothing else. Hand back to `guide` for anything else.")
        .model(model)
}

/// Two scouts side by side, then a writer who reads what they left in the state.
fn day_plan(sights: Paced, evening: Paced, writer: Paced) -> Sequential {
    let sights = LlmAgent::new("sights").model(sights).instruction("Name one sight.").output_key("sights");
    let evening = LlmAgent::new("evening")
        .model(evening)
        .instruction("Name one thing to do at night.")
        .output_key("evening");
    let writer = LlmAgent::new("writer")
        .model(writer)
        .instruction("Make a plan for a day of these.\nMorning: {sights}\nEvening: {evening}");
    Sequential::new("day_plan")
        .description("Plans a day in a city.")
        .agent(Parallel::new("scouts").agent(sights).agent(evening))
        .agent(writer)
}
