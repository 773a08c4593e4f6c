//! The agents of the demo. Their instructions are meant for real models; the scripts do the same without them.

use umbel::runtime::handlers::{ApprovalRule, Approve};
use umbel::{DecisionKind, LlmAgent, Model, Parallel, Sequential};

use super::{Mind, painter, script, thinker, tools};

/// Several tools, state, a trip that must be approved, and a team.
pub(super) fn guide(mind: &Mind) -> LlmAgent {
    LlmAgent::new("guide")
        .description("Helps with travel: weather, money, packing, bookings.")
        .instruction(
            "You are a travel guide. Be brief. Use your tools rather than your memory, and several at once where that \
             saves time. Whatever a person wants to take along goes on the packing list. `foodie` knows what to eat, \
             `day_plan` plans a day in a city: hand over to them for that.\nThe packing list is: {packing_list?}",
        )
        .model(mind.of(script::guide))
        .tool(tools::get_weather)
        .tool(tools::convert_currency)
        .tool(tools::pack)
        .tool(tools::book_trip)
        .tool(tools::my_trips)
        .handler(asks_before_booking())
        .sub_agent(foodie(mind, "guide"))
        .sub_agent(day_plan(mind))
}

/// The guide with the tools that only read.
pub(super) fn guide_alone(model: impl Model + 'static) -> LlmAgent {
    LlmAgent::new("guide")
        .instruction("You are a travel guide. Be brief.")
        .model(model)
        .tool(tools::get_weather)
        .tool(tools::convert_currency)
}

/// Does nothing that costs money before a person has agreed.
pub(super) fn booking(mind: &Mind) -> LlmAgent {
    LlmAgent::new("booking")
        .description("Books trips, with a person's approval.")
        .instruction(
            "You book trips with `book_trip`. A person is asked for approval when you call it, so do not ask for it \
             yourself; three nights unless they say otherwise. They may change the call or reject it: say in a sentence \
             what came of it.",
        )
        .model(mind.of(script::booking))
        .tool(tools::book_trip)
        .tool(tools::my_trips)
        .handler(asks_before_booking())
}

/// A booking costs money: a person agrees to it, changes it or rejects it.
fn asks_before_booking() -> Approve {
    let decisions = [DecisionKind::Approve, DecisionKind::Edit, DecisionKind::Reject];
    Approve::new().rule(ApprovalRule::tool("book_trip").decisions(decisions))
}

/// Has no tools of its own: it uses those that a front end brings.
pub(super) fn painter(mind: &Mind) -> LlmAgent {
    LlmAgent::new("painter")
        .description("Uses the tools of the front end: theme, clock, reminders.")
        .instruction(
            "You work for the page or program that a person looks at. It may offer tools: `set_theme` (dark or light), \
             `get_local_time`, `notify` (a reminder). Call the one that fits what is asked, then say in a sentence what \
             came of it. Without the tool, say that only a front end that offers it can do that, such as the studio.",
        )
        .model(mind.of(painter::answer))
}

/// Hands over, and has two work side by side.
pub(super) fn team(mind: &Mind) -> LlmAgent {
    LlmAgent::new("team")
        .description("Finds out who can help: with food, or with a plan for a day.")
        .instruction(
            "You lead a team and do nothing yourself. Hand over to `foodie` for anything about food and to `day_plan` for \
             a plan of a day in a city. For anything else, say in a sentence what the team can do.",
        )
        .model(mind.of(script::team))
        .sub_agent(foodie(mind, "team"))
        .sub_agent(day_plan(mind))
}

/// Thinks, looks something up, thinks again.
pub(super) fn thinker(mind: &Mind) -> LlmAgent {
    LlmAgent::new("thinker")
        .description("Compares places, step by step.")
        .instruction(
            "You help to choose where to go. Think step by step: decide which places to compare, look up the weather of all \
             of them at once, compare what you found, then answer in a sentence or two.",
        )
        .model(mind.of(thinker::answer))
        .generate(mind.thinking())
        .tool(tools::get_weather)
}

/// Keeps the conversation until it is about something other than food.
fn foodie(mind: &Mind, home: &'static str) -> LlmAgent {
    let instruction = format!(
        "You know food and nothing else: name one dish that fits the city. Hand back to `{home}` for anything else."
    );
    LlmAgent::new("foodie")
        .description("Knows what to eat where.")
        .instruction(instruction)
        .model(mind.of(move |request| script::foodie(request, home)))
}

/// Two scouts side by side, then a writer who reads what they left in the state.
fn day_plan(mind: &Mind) -> Sequential {
    let sights = LlmAgent::new("sights")
        .model(mind.of(script::sights))
        .instruction("Name one sight of the city that the user asks about, in a few words.")
        .output_key("sights");
    let evening = LlmAgent::new("evening")
        .model(mind.of(script::evening))
        .instruction("Name one thing to do at night in the city that the user asks about, in a few words.")
        .output_key("evening");
    let writer = LlmAgent::new("writer")
        .model(mind.of(script::writer))
        .instruction("Make a short plan for a day of these.\nMorning: {sights}\nEvening: {evening}");
    Sequential::new("day_plan")
        .description("Plans a day in a city.")
        .agent(Parallel::new("scouts").agent(sights).agent(evening))
        .agent(writer)
}
