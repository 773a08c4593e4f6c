//! The support desk of the tutorial (`docs/tutorial.md`), as a whole: tools, state, approval, a team, a handler, tests,
//! and all commands of `umbel` for it.
//!
//! ```sh
//! cargo run -p umbel-examples --bin desk            # serves it, and prints where to look
//! cargo run -p umbel-examples --bin desk -- chat    # talks with it in the terminal
//! ```

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::sync::Arc;

use serde_json::{Value, json};
use umbel::handlers::{ApprovalRule, Approve};
use umbel::runtime::RunnerBuilder;
use umbel::{
    Chunk, Content, Dep, FunctionCall, Handler, LlmAgent, Model, ModelRequest, NextTool, Part, Response,
    Result, Runner, ScriptedModel, ToolCall, ToolContext, ToolError, ToolResult, handler, tool,
};
use umbel_cli::{Cli, Offer, Setup};

/// Where orders are looked up. A real desk would ask a database.
struct Orders(BTreeMap<u32, &'static str>);

impl Orders {
    fn demo() -> Self {
        Self(BTreeMap::from([(7, "kettle, sent on Monday"), (8, "lamp, not sent yet")]))
    }
}

/// Looks up an order.
#[tool(read_only)]
async fn find_order(
    Dep(orders): Dep<Orders>,
    /// The number of the order.
    number: u32,
) -> Result<String, ToolError> {
    let order = orders.0.get(&number).map(|order| (*order).to_owned());
    order
        .ok_or_else(|| ToolError::new(format!("there is no order {number}: ask the customer for the number")))
}

/// Notes what the customer's problem is.
#[tool]
async fn note_problem(cx: &ToolContext, problem: String) -> &'static str {
    cx.set_state("problem", problem);
    "noted"
}

/// Pays money back to the customer.
#[tool]
async fn refund(
    /// The number of the order.
    order: u32,
    euros: u32,
) -> String {
    format!("{euros} € for order {order} are on their way")
}

/// Writes down who has what done. A real desk would have it in its log.
struct Audit;

#[handler]
impl Handler for Audit {
    fn name(&self) -> &str {
        "audit"
    }

    async fn wrap_tool(&self, call: ToolCall<'_>, next: NextTool<'_>) -> ToolResult {
        let (user, tool) = (call.run().session_key().user().to_owned(), call.name().to_owned());
        let result = next.call(call).await;
        let how = match &result {
            Ok(_) => "done",
            // A question to a person is no failure.
            Err(error) if error.error().is_control() => "waits",
            Err(_) => "failed",
        };
        eprintln!("audit: {tool} for {user}: {how}");
        result
    }
}

/// The team.
fn desk(model: impl Model + 'static) -> LlmAgent {
    let large =
        ApprovalRule::tool("refund").when(|args| args.get("euros").and_then(Value::as_u64) > Some(20));
    let billing = LlmAgent::new("billing")
        .description("Pays money back.")
        .instruction("You pay money back. The problem is: {problem?}")
        .tool(refund)
        .handler(Approve::new().rule(large));
    LlmAgent::new("desk")
        .description("Answers customers.")
        .instruction(
            "You work at the support desk of a shop. Look orders up, and hand over to billing for money.",
        )
        .model(model)
        .tool(find_order)
        .tool(note_problem)
        .sub_agent(billing)
}

fn runner(model: impl Model + 'static) -> RunnerBuilder {
    Runner::builder("desk", desk(model)).dependency(Orders::demo()).handler(Audit)
}

/// Stands in for a model: it knows a few words, so that the desk works without a key.
fn script() -> ScriptedModel {
    ScriptedModel::from_fn("script", |request: &ModelRequest| {
        let last = request.contents.last();
        let result = last.and_then(|last| last.responses().next()).and_then(|result| result.response.clone());
        // Whoever was handed the conversation is told of that last.
        let texts = request.contents.iter().rev().map(|content| content.text());
        let said = texts.into_iter().find(|text| !text.contains("transfer_to_agent")).unwrap_or_default();
        let number = said.split(|c: char| !c.is_ascii_digit()).find_map(|word| word.parse::<u32>().ok());
        let call = |name: &str, args: Value| {
            let args = args.as_object().cloned().unwrap_or_default();
            Response::new(Content::model(Part::call(FunctionCall::new(name, args))))
        };
        let answer = match (result, number) {
            (Some(result), _) => Response::text(format!("I have looked: {}", json!(result))),
            (None, Some(order)) if request.tools.get("refund").is_some() => {
                call("refund", json!({"order": order, "euros": 40}))
            }
            (None, Some(_)) if said.contains("money") => {
                call("transfer_to_agent", json!({"agent_name": "billing"}))
            }
            (None, Some(number)) => call("find_order", json!({"number": number})),
            (None, None) => {
                Response::text("I am a script. Ask me about order 7, or for the money of order 7.")
            }
        };
        vec![Ok(Chunk::Complete(answer))]
    })
}

fn offers(setup: &Setup) -> Result<Vec<Offer>> {
    let (model, words): (Arc<dyn Model>, _) = match setup.find_model()? {
        Some(found) => (Arc::new(found.model), found.name),
        None => (Arc::new(script()), "a script, which knows a few words".to_owned()),
    };
    let offer = Offer::new("desk", runner(model))
        .model(words)
        .about("Answers customers of a shop.")
        .suggest("Where is my order 7?")
        .suggest("I want my money for order 7 back.");
    Ok(vec![offer])
}

fn main() -> ExitCode {
    Cli::new(offers).about("The support desk of a shop.").main()
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::indexing_slicing)]
mod tests {
    use super::*;
    use umbel::Answer;

    #[tokio::test]
    async fn an_order_is_looked_up() {
        let model =
            ScriptedModel::new("test").call("find_order", json!({"number": 7})).text("It is on its way.");
        let runner = runner(model).build().unwrap();
        let session = runner.create_session("ann").await.unwrap();
        let events = runner.run(&session.key, "Where is my order 7?").collect_events().await.unwrap();
        let found = events[1].responses().next().unwrap().response.clone().unwrap();
        assert_eq!(found["result"], "kettle, sent on Monday");
    }

    #[tokio::test]
    async fn a_large_refund_waits_for_a_person_and_a_small_one_does_not() {
        for (euros, asked) in [(40, 1), (10, 0)] {
            let model = ScriptedModel::new("test")
                .recorded()
                .call("note_problem", json!({"problem": "the kettle is broken"}))
                .call("transfer_to_agent", json!({"agent_name": "billing"}))
                .call("refund", json!({"order": 7, "euros": euros}))
                .text("Done.");
            let runner = runner(model.clone()).build().unwrap();
            let session = runner.create_session("ann").await.unwrap();
            runner.run(&session.key, "My kettle is broken.").text().await.unwrap();
            let open = runner.open_questions(&session.key).await.unwrap();
            assert_eq!(open.len(), asked, "{euros} €");
            if let Some(question) = open.first() {
                let said = runner.resume(&session.key, [(question, Answer::approve())]).text().await.unwrap();
                assert_eq!(said, "Done.");
            }
            let told = model.requests()[2].instruction.text().to_owned();
            assert!(told.contains("The problem is: the kettle is broken"), "{told}");
        }
    }

    #[tokio::test]
    async fn the_script_stands_in_for_a_model() {
        let runner = offers(&Setup { model: Some("script".to_owned()), ..Setup::default() })
            .unwrap()
            .remove(0)
            .runner(&umbel::stores::Stores::in_memory())
            .unwrap();
        let session = runner.create_session("ann").await.unwrap();
        let said = runner.run(&session.key, "Where is my order 8?").text().await.unwrap();
        assert!(said.contains("lamp, not sent yet"), "{said}");
        runner.run(&session.key, "I want my money for order 8 back.").text().await.unwrap();
        assert_eq!(runner.open_questions(&session.key).await.unwrap().len(), 1);
    }
}
