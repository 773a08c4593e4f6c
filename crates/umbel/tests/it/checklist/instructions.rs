//! D2 and D9: how instructions are joined, byte for byte.

#![allow(deprecated)]

use std::sync::Arc;

use serde_json::json;
use umbel::legacy::AgentMiddleware;
use umbel::{LlmAgent, RunConfig, Step, Words, template};

use crate::handler_support::{before_agent, configure};
use crate::support::{begin, changed, fine, object, read};

/// What the model is told, without the words about its name.
async fn told(agent: LlmAgent) -> String {
    told_with(agent, RunConfig::default()).await.unwrap()
}

async fn told_with(agent: LlmAgent, config: RunConfig) -> Result<String, String> {
    let model = fine();
    let agent =
        agent.model(model.clone()).processors(changed(|processors| processors.remove("identity").unwrap()));
    let (runner, key) = begin(agent).await;
    let seen = read(runner.run_with(&key, "hi", config)).await;
    match seen.error {
        Some(error) => Err(error.message().to_owned()),
        None => Ok(model.requests()[0].instruction.text()),
    }
}

fn pushes(words: impl Into<Words> + Clone + Send + Sync + 'static) -> impl umbel::Handler {
    configure("pushes", move |plan| {
        plan.instruction.push("pushes", words.clone());
        Ok(())
    })
}

fn old(addition: &str) -> AgentMiddleware {
    AgentMiddleware { additional_instruction: addition.to_owned(), ..AgentMiddleware::default() }
}

#[tokio::test]
async fn d2_parts_are_joined_by_a_blank_line_and_empty_ones_are_left_out() {
    let base = || LlmAgent::new("a").instruction("Base.");
    assert_eq!(told(base()).await, "Base.");
    assert_eq!(told(base().handler(pushes("A."))).await, "Base.\n\nA.");
    assert_eq!(told(base().handler(pushes("A.")).handler(pushes(""))).await, "Base.\n\nA.");
    assert_eq!(told(base().handler(pushes("")).handler(pushes("A."))).await, "Base.\n\nA.");
    assert_eq!(told(base().handler(pushes("A.")).handler(pushes("B."))).await, "Base.\n\nA.\n\nB.");
    let first = configure("first", |plan| {
        plan.instruction.prepend("first", "First.");
        Ok(())
    });
    assert_eq!(told(base().handler(first)).await, "First.\n\nBase.");
    // What a part has inside is its own affair.
    assert_eq!(told(base().handler(pushes("\nA.\n"))).await, "Base.\n\n\nA.\n");
}

#[tokio::test]
async fn d2_there_is_no_leading_separator() {
    for agent in [LlmAgent::new("a"), LlmAgent::new("a").instruction("")] {
        assert_eq!(told(agent.clone()).await, "");
        assert_eq!(told(agent.clone().handler(pushes("A."))).await, "A.");
        assert_eq!(told(agent.clone().handler(pushes("")).handler(pushes("A."))).await, "A.");
        assert_eq!(told(agent.clone().middleware(old("L."))).await, "L.");
        assert_eq!(told(agent.middleware(old("L.")).middleware(old("M."))).await, "L.\nM.");
    }
}

#[tokio::test]
async fn d2_a_middleware_of_the_old_form_joins_by_one_line_break() {
    let base = || LlmAgent::new("a").instruction("Base.");
    assert_eq!(told(base().middleware(old("L."))).await, "Base.\nL.");
    assert_eq!(told(base().middleware(old("L.")).middleware(old("M."))).await, "Base.\nL.\nM.");
    assert_eq!(told(base().middleware(old(""))).await, "Base.");
    assert_eq!(told(base().middleware(old("L.")).handler(pushes("H."))).await, "Base.\nL.\n\nH.");
    let provided = LlmAgent::new("a").instruction_fn(|_| Box::pin(async { Ok("Made.".to_owned()) }));
    assert_eq!(told(provided.middleware(old("L."))).await, "Made.\nL.");
    let nothing = LlmAgent::new("a").instruction_fn(|_| Box::pin(async { Ok(String::new()) }));
    assert_eq!(told(nothing.middleware(old("L."))).await, "L.");
}

#[tokio::test]
async fn d2_what_stands_between_is_said_by_the_middleware() {
    for (separator, expected) in [("\n\n", "Base.\n\nL."), ("", "Base.L."), (" -- ", "Base. -- L.")] {
        let middleware = AgentMiddleware { separator: Some(separator.to_owned()), ..old("L.") };
        assert_eq!(told(LlmAgent::new("a").instruction("Base.").middleware(middleware)).await, expected);
    }
}

#[tokio::test]
async fn d2_the_words_of_the_team_come_first_and_fixed_words_stay_apart() {
    let team = LlmAgent::new("a").global_instruction("Team.").instruction("Base.").handler(pushes("A."));
    assert_eq!(told(team).await, "Team.\n\nBase.\n\nA.");
    let model = fine();
    let agent = LlmAgent::new("a")
        .static_instruction("Fixed.")
        .instruction("Base.")
        .handler(pushes("A."))
        .model(model.clone())
        .processors(changed(|processors| processors.remove("identity").unwrap()));
    let (runner, key) = begin(agent).await;
    read(runner.run(&key, "hi")).await.assert_finished();
    let request = &model.requests()[0];
    assert_eq!(request.instruction.text(), "Fixed.");
    assert!(request.contents.iter().any(|content| content.text().contains("\nBase.\n\nA.\n")));
}

#[tokio::test]
async fn d2_words_of_a_handler_are_taken_as_they_are_unless_it_says_template() {
    let state = || RunConfig { state_delta: object(json!({"city": "Rome"})), ..RunConfig::default() };
    let base = || LlmAgent::new("a").instruction("In {city}.");
    assert_eq!(
        told_with(base().handler(pushes("{city} {\"a\": 1}")), state()).await.unwrap(),
        "In Rome.\n\n{city} {\"a\": 1}"
    );
    assert_eq!(
        told_with(base().handler(pushes(template("Of {city}."))), state()).await.unwrap(),
        "In Rome.\n\nOf Rome."
    );
    let error = told_with(base().handler(pushes("A.")), RunConfig::default()).await.unwrap_err();
    assert!(error.contains("names the state key `city`"), "{error}");
    let made: umbel::InstructionProvider =
        Arc::new(|run| Box::pin(async move { Ok(format!("{{city}} {}", run.agent_name())) }));
    assert_eq!(
        told_with(base().handler(pushes(WordsOf(made))), state()).await.unwrap(),
        "In Rome.\n\n{city} a"
    );
}

/// Words that are made for each request.
#[derive(Clone)]
struct WordsOf(umbel::InstructionProvider);

impl From<WordsOf> for Words {
    fn from(words: WordsOf) -> Self {
        Words::Provided(words.0)
    }
}

#[tokio::test]
async fn d9_replacing_drops_what_was_there_and_explain_names_it() {
    let agent = LlmAgent::new("a")
        .instruction("Base.")
        .handler(pushes("A."))
        .handler(configure("replaces", |plan| {
            let dropped = plan.instruction.replace("replaces", "R.");
            let sources: Vec<_> = dropped.iter().map(|part| part.source.as_str()).collect();
            assert_eq!(sources, ["instruction", "pushes"]);
            Ok(())
        }))
        .handler(pushes("B."));
    let explained = agent.clone().model(fine()).explain().unwrap();
    assert_eq!(
        explained.notes[..2],
        [
            "instruction part `instruction` is dropped by handler `replaces`",
            "instruction part `pushes` is dropped by handler `replaces`",
        ]
    );
    let parts: Vec<_> =
        explained.instruction.iter().map(|(source, text)| format!("{source}: {text}")).collect();
    assert_eq!(parts, ["replaces: R.", "pushes: B."]);
    assert_eq!(told(agent).await, "R.\n\nB.");
}

#[tokio::test]
async fn d9_a_part_can_be_dropped_by_its_source_for_one_turn() {
    let agent = LlmAgent::new("a").instruction("Base.").handler(pushes("A.")).handler(before_agent(
        "drops",
        |turn| {
            assert!(turn.plan.instruction.remove("instruction"));
            assert!(!turn.plan.instruction.remove("instruction"));
            Ok(Step::Continue)
        },
    ));
    assert_eq!(told(agent).await, "A.");
}
