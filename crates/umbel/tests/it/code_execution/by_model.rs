//! Code that the model runs itself.

use serde_json::json;
use umbel::{
    Capabilities, CodeExecution, Content, ErrorKind, InMemoryArtifacts, LlmAgent, Part, Response, Role,
    RunCode, Runner, ScriptedModel,
};

use super::told;
use crate::support::{begin, read, run_once, with_session};

/// A model that runs code itself and draws an image.
fn draws(name: Option<&str>) -> ScriptedModel {
    let mut image = json!({"inlineData": {"mimeType": "image/png", "data": "aW1hZ2U="}});
    if let Some(name) = name {
        image["inlineData"]["displayName"] = name.into();
    }
    let parts = json!([
        {"text": "Here:"},
        {"executableCode": {"code": "draw()", "language": "PYTHON"}},
        {"codeExecutionResult": {"outcome": "OUTCOME_OK", "output": ""}},
        image,
        {"text": "Done."},
    ]);
    let content: Content = serde_json::from_value(json!({"role": "model", "parts": parts})).unwrap();
    ScriptedModel::new("m")
        .recorded()
        .response(Response::new(content))
        .capabilities(Capabilities::default().runs_code())
}

#[test]
fn a_model_that_cannot_run_code_is_refused() {
    let agent =
        LlmAgent::new("a").model(ScriptedModel::new("plain")).code_executor(CodeExecution::by_model());
    let error = Runner::new("app", agent).err().unwrap();
    assert_eq!(error.kind(), ErrorKind::Build);
    assert!(error.message().contains("model `plain` does not run code itself"), "{error}");
}

#[tokio::test]
async fn the_model_is_told_to_run_code_itself_and_its_images_are_artifacts() {
    for (name, kept) in [(Some("plot.png"), "plot.png"), (None, "image_"), (Some("user:all.png"), "image_")] {
        let model = draws(name);
        let agent = LlmAgent::new("a").model(model.clone()).code_executor(CodeExecution::by_model());
        let runner = Runner::builder("app", agent).artifacts(InMemoryArtifacts::new()).build().unwrap();
        let (runner, key) = with_session(runner).await;
        let seen = read(runner.run(&key, "draw")).await;
        let whole = seen.assert_finished().whole();
        assert_eq!(whole.len(), 1, "it is one answer");
        let delta = whole[0].actions.as_ref().unwrap().artifact_delta.clone().unwrap();
        let (saved, version) = delta.iter().next().unwrap();
        assert!(saved.starts_with(kept) && saved.ends_with(".png"), "{saved}");
        assert_eq!((delta.len(), *version), (1, 0));
        let expected = ["Here:", "> draw()", "=  (OK)", &format!("Saved as artifact: `{saved}`. "), "Done."];
        assert_eq!(told(&whole), expected);
        let store = runner.services().artifacts.as_ref().unwrap();
        let part = store.load(&key, saved, None).await.unwrap().unwrap();
        let data = serde_json::to_value(&*part).unwrap();
        assert_eq!(
            (&data["inlineData"]["mimeType"], &data["inlineData"]["data"]),
            (&json!("image/png"), &json!("aW1hZ2U="))
        );
        let request = &model.requests()[0];
        assert!(request.config.run_code);
        assert!(!request.instruction.text().contains("tool_code"), "it needs no fences");
    }
}

#[tokio::test]
async fn images_without_a_place_for_them_stay_where_they_are() {
    let agent = LlmAgent::new("a").model(draws(None)).code_executor(CodeExecution::by_model());
    let seen = run_once(agent).await;
    let parts = seen.assert_finished().whole()[0].content.clone().unwrap().parts.clone();
    assert_eq!(parts[3], Part::data("image/png", *b"image"));
}

#[tokio::test]
async fn what_the_model_ran_is_not_run_here_and_is_sent_as_it_is() {
    let model = draws(None).text("ok");
    let agent = LlmAgent::new("a").model(model.clone()).code_executor(CodeExecution::by_model());
    let (runner, key) = begin(agent).await;
    read(runner.run(&key, "draw")).await.assert_finished();
    read(runner.run(&key, "again")).await.assert_finished();
    let sent = model.requests()[1].contents.get(1).unwrap().clone();
    assert_eq!(sent.role, Some(Role::Model));
    let form = serde_json::to_value(&*sent).unwrap();
    assert_eq!(form["parts"][1]["executableCode"]["code"], "draw()");
}

#[tokio::test]
async fn a_tool_has_no_code_run_by_the_model() {
    let model = ScriptedModel::new("m").call("run_code", json!({"code": "print 1"})).text("ok");
    let seen = run_once(LlmAgent::new("a").model(model).tool(RunCode::new(CodeExecution::by_model()))).await;
    assert!(seen.assert_finished().tool_error().contains("there is no executor here"));
}
