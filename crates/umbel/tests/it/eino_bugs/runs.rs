//! Runs that are cancelled, that ask a person, and that go on beside each other.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use futures::StreamExt;
use serde_json::{Value, json};
use umbel::{
    CancelReason, Content, Handler, LlmAgent, ModelTurn, NextTool, Outcome, Result, Run, Runner,
    ScriptedModel, SessionKey, Step, ToolCall, ToolResult, handler, tool,
};

use crate::support::{begin, read, stored};

/// Cancels the run in one phase, and notes how turns end.
struct Canceller {
    phase: &'static str,
    ends: Arc<Mutex<Vec<Outcome>>>,
}

impl Canceller {
    fn reach(&self, phase: &str, run: &Run) {
        if self.phase == phase {
            run.cancel_token().cancel(CancelReason::Asked);
        }
    }
}

#[handler]
impl Handler for Canceller {
    fn name(&self) -> &str {
        "canceller"
    }

    async fn before_agent(&self, turn: &mut umbel::AgentTurn<'_>) -> Result<Step> {
        self.reach("before_agent", turn.run());
        Ok(Step::Continue)
    }

    async fn before_model(&self, turn: &mut ModelTurn<'_>) -> Result<Step> {
        self.reach("before_model", turn.run());
        Ok(Step::Continue)
    }

    async fn after_model(&self, turn: &mut ModelTurn<'_>) -> Result<Step> {
        self.reach("after_model", turn.run());
        Ok(Step::Continue)
    }

    async fn wrap_tool(&self, call: ToolCall<'_>, next: NextTool<'_>) -> ToolResult {
        self.reach("wrap_tool", call.run());
        next.call(call).await
    }

    async fn after_agent(&self, _run: &Run, outcome: &Outcome) -> Result<()> {
        self.ends.lock().unwrap().push(outcome.clone());
        Ok(())
    }
}

/// Waits for ever.
#[tool]
async fn wait() {
    std::future::pending::<()>().await;
}

#[tokio::test]
async fn a_run_that_is_cancelled_in_any_phase_ends_once_and_tells_its_handlers() {
    for phase in ["before_agent", "before_model", "after_model", "wrap_tool"] {
        let ends: Arc<Mutex<Vec<Outcome>>> = Arc::default();
        let model = ScriptedModel::new("m").call("wait", json!({})).text("never");
        let agent =
            LlmAgent::new("a").model(model).tool(wait).handler(Canceller { phase, ends: ends.clone() });
        let (runner, key) = begin(agent).await;
        let seen = read(runner.run(&key, "hi")).await;
        assert_eq!(seen.outcome, Outcome::Cancelled, "{phase}");
        assert_eq!(*ends.lock().unwrap(), [Outcome::Cancelled], "{phase}");
        let texts: Vec<String> = stored(&runner, &key).await.iter().map(|event| event.text()).collect();
        assert!(!texts.contains(&"never".to_owned()), "{phase}");
    }
}

/// Asks a person before some calls, from a layer.
struct AskFirst;

#[handler]
impl Handler for AskFirst {
    fn name(&self) -> &str {
        "ask_first"
    }

    async fn before_model(&self, turn: &mut ModelTurn<'_>) -> Result<Step> {
        if turn.run().kept::<bool>("reminded")?.is_none() {
            turn.run().keep("reminded", &true)?;
            turn.history.push(Content::user("Be careful."));
        }
        Ok(Step::Continue)
    }

    async fn wrap_tool(&self, call: ToolCall<'_>, next: NextTool<'_>) -> ToolResult {
        let asks = call.args.get("name") == Some(&json!("b"));
        if asks && !call.interrupt(self, "Really delete b?")?.confirmed {
            return Ok(json!({"error": "no"}).into());
        }
        next.call(call).await
    }
}

static DELETED: Mutex<Vec<String>> = Mutex::new(Vec::new());

/// Deletes a file.
#[tool]
async fn delete(name: String) -> String {
    DELETED.lock().unwrap().push(name.clone());
    format!("{name} is gone")
}

async fn answer_all(runner: &Runner, key: &SessionKey, outcome: &Outcome) -> Vec<Arc<umbel::Event>> {
    let Outcome::Interrupted { interrupts } = outcome else { panic!("{outcome:?}") };
    assert_eq!(interrupts.len(), 1);
    assert_eq!(interrupts[0].message.as_deref(), Some("Really delete b?"));
    runner.run(key, interrupts[0].answer(true)).collect_events().await.unwrap()
}

#[tokio::test]
async fn of_three_calls_at_once_only_the_one_that_asked_is_made_again() {
    let names = ["a", "b", "c"].map(|name| ("delete", json!({"name": name})));
    let model = ScriptedModel::new("m").recorded().calls(names).text("done");
    let agent = LlmAgent::new("a").model(model.clone()).tool(delete).handler(AskFirst);
    let store = umbel::InMemorySessions::new();
    let store = Arc::new(store);
    let first = Runner::builder("app", agent.clone()).sessions(store.clone()).build().unwrap();
    let key = first.create_session("ann").await.unwrap().key;
    let seen = read(first.run(&key, "delete them")).await;
    let mut made = DELETED.lock().unwrap().clone();
    made.sort();
    assert_eq!(made, ["a", "c"]);
    // Another process answers: it has nothing but the log.
    let second = Runner::builder("app", agent).sessions(store).build().unwrap();
    let events = answer_all(&second, &key, &seen.outcome).await;
    assert_eq!(DELETED.lock().unwrap().iter().filter(|name| *name == "b").count(), 1);
    assert_eq!(DELETED.lock().unwrap().len(), 3);
    assert_eq!(events.last().unwrap().text(), "done");
    // What the handler left before the question is there behind the answer, once.
    let asked = model.requests();
    let reminders = |index: usize| {
        let texts = asked[index].contents.iter().map(|content| content.text());
        texts.filter(|text| text == "Be careful.").count()
    };
    assert_eq!((reminders(0), reminders(1)), (1, 1));
    // In the next run it is gone, and made anew.
    second.run(&key, "and now?").text().await.unwrap_err();
    assert_eq!(
        model.requests()[2].contents.iter().filter(|content| content.text() == "Be careful.").count(),
        1
    );
}

/// Counts the messages of its run in the run's own values.
struct Counter;

#[derive(Default)]
struct Count(AtomicUsize);

#[handler]
impl Handler for Counter {
    fn name(&self) -> &str {
        "counter"
    }

    async fn before_model(&self, turn: &mut ModelTurn<'_>) -> Result<Step> {
        let count = turn.run().values().get_or_insert_with(Count::default);
        tokio::task::yield_now().await;
        count.0.fetch_add(1, Ordering::Relaxed);
        Ok(Step::Continue)
    }

    async fn after_agent(&self, run: &Run, _outcome: &Outcome) -> Result<()> {
        let count = run.values().get_or_insert_with(Count::default);
        let text = run.input().map(|input| input.text()).unwrap_or_default();
        assert_eq!(count.0.load(Ordering::Relaxed), 2, "{text}");
        Ok(())
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_hundred_runs_of_one_agent_at_once_do_not_mix() {
    let model = ScriptedModel::from_fn("m", |request| {
        let last = request.contents.last().unwrap();
        let response = match last.responses().next() {
            Some(response) => {
                umbel::Response::text(format!("{}", Value::from(response.response.clone().unwrap())))
            }
            None => {
                let args = umbel::Object::from_iter([("text".to_owned(), json!(last.text()))]);
                let call = umbel::FunctionCall::new("echo", args);
                umbel::Response::new(Content::model(umbel::Part::call(call)))
            }
        };
        vec![Ok(umbel::Chunk::Complete(response))]
    });
    /// Says it again.
    #[tool]
    async fn echo(text: String) -> String {
        tokio::task::yield_now().await;
        text
    }
    let runner = Runner::new("app", LlmAgent::new("a").model(model).tool(echo).handler(Counter)).unwrap();
    let runs = (0..100).map(|number| {
        let runner = runner.clone();
        tokio::spawn(async move {
            let key = runner.create_session("ann").await.unwrap().key;
            let text = runner.run(&key, format!("number {number}")).text().await.unwrap();
            assert_eq!(text, format!(r#"{{"result":"number {number}"}}"#));
        })
    });
    let mut runs: futures::stream::FuturesUnordered<_> = runs.collect();
    while let Some(run) = runs.next().await {
        run.unwrap();
    }
}
