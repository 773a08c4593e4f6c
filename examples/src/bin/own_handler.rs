//! A handler of one's own: it keeps a list of what was done for whom, and stops an agent that spends too much.
//!
//! `cargo run -p umbel-examples --bin own_handler`

use std::sync::{Arc, Mutex, PoisonError};

use serde_json::json;
use umbel::{
    Handler, LlmAgent, NextTool, Outcome, Result, Run, Runner, ScriptedModel, ToolCall, ToolError,
    ToolResult, handler, tool,
};

/// Pays a bill.
#[tool]
async fn pay(bill: String, euros: u32) -> String {
    format!("{bill} is paid: {euros} €")
}

/// Writes down each call and how each run ended, and lets a run spend so much at most.
struct Cashbox {
    limit: u32,
    // A handler serves many runs at once, so what it holds itself is shared and locked.
    book: Arc<Mutex<Vec<String>>>,
}

impl Cashbox {
    fn write(&self, line: String) {
        self.book.lock().unwrap_or_else(PoisonError::into_inner).push(line);
    }
}

#[handler]
impl Handler for Cashbox {
    fn name(&self) -> &str {
        "cashbox"
    }

    async fn wrap_tool(&self, call: ToolCall<'_>, next: NextTool<'_>) -> ToolResult {
        let (run, user) = (call.run(), call.run().session_key().user());
        let euros = call.args.get("euros").and_then(|euros| euros.as_u64()).unwrap_or(0);
        // What belongs to one run is kept with the run: it is there after a question or a crash, too.
        let spent: u64 = run.kept("cashbox")?.unwrap_or(0);
        if spent + euros > u64::from(self.limit) {
            self.write(format!("{user}: refused {} of {euros} €", call.name()));
            let left = u64::from(self.limit) - spent;
            // An error of a layer is one of the tool: the model is told, so say what it can do.
            return Err(ToolError::new(format!("only {left} € are left in this run: ask the user")));
        }
        let name = call.name().to_owned();
        let result = next.call(call).await;
        if result.is_ok() {
            run.keep("cashbox", &(spent + euros))?;
            self.write(format!("{user}: {name} of {euros} €"));
        }
        result
    }

    async fn after_run(&self, run: &Run, outcome: &Outcome) -> Result<()> {
        self.write(format!("{}: {outcome:?}", run.session_key().user()));
        Ok(())
    }
}

#[tokio::main]
async fn main() -> Result<()> {
    let model = ScriptedModel::new("demo")
        .call("pay", json!({"bill": "phone", "euros": 30}))
        .call("pay", json!({"bill": "car", "euros": 300}))
        .text("The phone is paid. The car is too much for today.");
    let book = Arc::new(Mutex::new(Vec::new()));
    let agent = LlmAgent::new("clerk").model(model).tool(pay);
    let runner =
        Runner::builder("bank", agent).handler(Cashbox { limit: 100, book: book.clone() }).build()?;
    let session = runner.create_session("ann").await?;
    println!("{}", runner.run(&session.key, "Pay my bills.").text().await?);
    for line in book.lock().unwrap_or_else(PoisonError::into_inner).iter() {
        println!("  {line}");
    }
    Ok(())
}
