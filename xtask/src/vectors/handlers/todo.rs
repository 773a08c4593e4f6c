//! The list of tasks.

use serde_json::json;
use umbel::BoxError;
use umbel::handlers::{TODOS, TodoList};

use super::message::settle_runs;
use super::play::{Play, both_ways};
use super::scene::{Scene, SceneModel};
use crate::vectors::case::{Case, Checked};
use crate::vectors::script::{list, text};
use crate::vectors::tokens::Tokens;

pub(in crate::vectors) async fn check(case: &Case) -> Result<Checked, BoxError> {
    both_ways(case, once).await
}

async fn once(case: &Case, streaming: bool) -> Result<Checked, BoxError> {
    let scene = Scene::new(&case.input);
    let mut todos = TodoList::new();
    if let Some(prompt) = text(&case.input, "todo_prompt") {
        todos = todos.prompt(prompt);
    }
    let model = SceneModel::new("main", list(&case.input, "model"), &scene);
    let play = Play::new(scene.agent(&case.input, model)?.handler(todos), streaming)?;
    let mut runs = Vec::new();
    for message in list(&case.input, "runs") {
        let played = play.run("t1", &[json!({"role": "user", "text": message})]).await?;
        if let Some(error) = played.error {
            return Err(error.into());
        }
        runs.push(json!({"todos": played.state.get(TODOS), "messages": played.messages}));
    }
    let seen = scene.seen();
    let system: Vec<String> = seen
        .asked
        .first()
        .map(|(_, request, _)| {
            // We tell a model its name, the oracle does not.
            let parts = request.instruction.parts().iter().filter(|part| part.source != "identity");
            parts.map(|part| part.text.to_string()).collect()
        })
        .unwrap_or_default();
    let mut actual = json!({
        "runs": runs,
        "ran": seen.ran(),
        "model_tools": seen.tools().first(),
        "system_seen": system,
    });
    let mut expected = case.expect.clone();
    settle_runs(&mut expected, &mut actual);
    Ok(Checked::Compare { expected, actual, tokens: Tokens::default() })
}
