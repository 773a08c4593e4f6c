//! Agents to begin with: what one talks with until there are agents of one's own.
//!
//! The agents, tools, state, approvals and hand-overs are real. Unless a real model is named or the environment has a key
//! for one, the model is a script: it looks for words it knows, so it works offline and always says the same.

mod agents;
mod pace;
mod painter;
mod script;
mod thinker;
mod tools;
mod words;

use std::sync::Arc;
use std::time::Duration;

use umbel::core::model::Thinking;
use umbel::runtime::RunnerBuilder;
use umbel::{Chunk, GenerateConfig, LlmAgent, Model, ModelRequest, Result, Runner};

use self::pace::Paced;
use crate::agents::{Offer, Setup};
use crate::args::shown;

/// How long the script waits before each word where a person reads along.
const PACE: Duration = Duration::from_millis(25);

/// What is said of the script, wherever it takes the place of a model.
pub const SCRIPTED: &str = "a script that knows a few words: it works offline, and all data is made up";

/// What the agents of the demo think with.
#[derive(Clone)]
enum Mind {
    /// Scripts that wait so long before each word.
    Script(Option<Duration>),
    /// A model, and whether it thinks before it answers.
    Real(Arc<dyn Model>, bool),
}

impl Mind {
    /// The model of an agent whose script this is.
    fn of(
        &self,
        script: impl Fn(&ModelRequest) -> Vec<Result<Chunk>> + Send + Sync + 'static,
    ) -> Arc<dyn Model> {
        match self {
            Self::Script(pace) => Arc::new(Paced::new(script, *pace)),
            Self::Real(model, _) => model.clone(),
        }
    }

    /// How to ask for thoughts. A script has them anyway, and a model that does not think refuses to be asked.
    fn thinking(&self) -> GenerateConfig {
        let thinking = matches!(self, Self::Real(_, true))
            .then(|| Thinking { include_thoughts: true, ..Thinking::default() });
        GenerateConfig { thinking, ..GenerateConfig::default() }
    }
}

/// The agents of the demo.
pub fn offers(setup: &Setup) -> Result<Vec<Offer>> {
    let (mind, words) = match setup.find_model()? {
        None => (Mind::Script(setup.watched.then_some(PACE)), SCRIPTED.to_owned()),
        Some(found) => {
            let because = found.because.map_or_else(String::new, |variable| {
                format!(" ({variable} is set; `--model script` takes the script)")
            });
            let words = format!("{}{because}; what the tools tell is made up", shown(&found.name));
            let thinks = found.thinks();
            (Mind::Real(Arc::new(found.model), thinks), words)
        }
    };
    let offer = |name: &'static str, runner: RunnerBuilder| Offer::new(name, runner).model(words.clone());
    Ok(vec![
        offer("guide", Runner::builder("demo", agents::guide(&mind)))
            .about("A travel guide: several tools at once, a packing list in the state, and a team to help.")
            .suggest("weather in Paris and Rome")
            .suggest("pack an umbrella and a map")
            .suggest("convert 100 EUR to JPY")
            .suggest("what can I eat in Rome?"),
        offer("booking", Runner::builder("demo-booking", agents::booking(&mind)))
            .about("Books trips, and asks you first: approve, change or reject what it is about to do.")
            .suggest("book 3 nights in Lisbon")
            .suggest("what are my trips?"),
        offer("painter", Runner::builder("demo-painter", agents::painter(&mind)))
            .about("Works with tools that the front end has: its theme, its clock, its reminders.")
            .suggest("make it dark")
            .suggest("what time is it here?")
            .suggest("remind me to buy a map"),
        offer("team", Runner::builder("demo-team", agents::team(&mind)))
            .about(
                "Agents that hand over to each other; two that work side by side, and one who writes it up.",
            )
            .suggest("plan a day in Oslo")
            .suggest("what can I eat in Tokyo?"),
        offer("thinker", Runner::builder("demo-thinker", agents::thinker(&mind)))
            .about("Thinks aloud: before it looks something up, and again before it answers.")
            .suggest("where is it warmest: Paris, Rome or Oslo?")
            .suggest("where should I go?"),
    ])
}

/// The guide and its team, on the script. With a pace, the script waits so long before each word, as a model would.
pub fn guide(pace: Option<Duration>) -> LlmAgent {
    agents::guide(&Mind::Script(pace))
}

/// The guide alone, on another model than its script.
pub fn guide_on(model: impl Model + 'static) -> Result<Runner> {
    Runner::new("demo-guide", agents::guide_alone(model))
}
