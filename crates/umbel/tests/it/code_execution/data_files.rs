//! Tables that the user sends, as files that code reads.

use std::sync::Arc;

use serde_json::json;
use umbel::handlers::Approve;
use umbel::{
    Answer, Chunk, CodeExecution, CodeSpec, Confirm, Content, LlmAgent, Part, Response, Role, RunCode,
    Runner, ScriptedModel, SessionKey,
};

use super::{Toy, block, told};
use crate::desk::shown;
use crate::recovery::{self, recover, run_and_die};
use crate::support::{Death, Spy, begin, call_with_id, calls, read, run_once, said, stored};

const TABLE: &[u8] = b"city,people\nRome,3\n";

fn message(parts: impl IntoIterator<Item = Part>) -> Content {
    Content::new(Role::User, parts)
}

/// An agent that runs code on files, its model, and what it runs code with.
async fn begun(
    model: ScriptedModel,
    execution: impl FnOnce(CodeExecution) -> CodeExecution,
) -> (Runner, SessionKey, Toy) {
    let toy = Toy::new();
    let execution = execution(CodeExecution::new(toy.clone()));
    let (runner, key) = begin(LlmAgent::new("a").model(model).code_executor(execution)).await;
    (runner, key, toy)
}

#[tokio::test]
async fn a_table_is_looked_at_once_and_given_to_all_code() {
    let model = ScriptedModel::new("m").recorded().text("I see.").text(block("print 1")).text("ok");
    let (runner, key, toy) = begun(model.clone(), CodeExecution::data_files).await;
    let table = || Part::data("text/csv; charset=utf-8", TABLE);
    let seen = read(runner.run(&key, message([Part::text("What is this?"), table()]))).await;
    let told = told(&seen.assert_finished().whole());
    assert_eq!(told[0], "Looking at `data_1_2.csv`.\n");
    assert!(told[1].ends_with("data_1_2 = explore(\"data_1_2.csv\")\n"), "{}", told[1]);
    assert_eq!(told[3], "I see.");
    let inputs = toy.inputs();
    assert_eq!((inputs.len(), inputs[0].files.len()), (1, 1));
    let file = &inputs[0].files[0];
    assert_eq!(
        (file.name.as_str(), file.mime_type.as_str(), &*file.data),
        ("data_1_2.csv", "text/csv", TABLE)
    );
    let sent = &model.requests()[0];
    assert_eq!(said(sent)[0], "What is this?\nAvailable file: `data_1_2.csv`\n");
    assert_eq!(sent.contents.len(), 3, "the model reads what the code saw");
    assert!(said(sent)[2].starts_with("```tool_output\n"));
    // The log keeps what the user sent.
    let stored = stored(&runner, &key).await;
    assert_eq!(stored[0].content.as_ref().unwrap().parts[1], table());

    // The same table again is the same file, and it is not looked at again.
    read(runner.run(&key, message([Part::text("And now?"), table()]))).await.assert_finished();
    let inputs = toy.inputs();
    assert_eq!((inputs.len(), inputs[1].code.as_str()), (2, "print 1"));
    assert_eq!(inputs[1].files.iter().map(|file| file.name.as_str()).collect::<Vec<_>>(), ["data_1_2.csv"]);
    let sent = said(&model.requests()[2]);
    assert_eq!(
        sent.iter().filter(|text| text.contains("Available file: `data_1_2.csv`")).count(),
        2,
        "{sent:?}"
    );
}

#[tokio::test]
async fn each_table_has_the_name_of_its_place_in_the_log() {
    let model = ScriptedModel::new("m").text("one").text("two");
    let (runner, key, toy) = begun(model, CodeExecution::data_files).await;
    let table = |text: &str| Part::data("text/csv", text.as_bytes());
    read(runner.run(&key, message([table("a\n1\n"), table("b\n1\n")]))).await.assert_finished();
    let third = stored(&runner, &key).await.len() + 1;
    read(runner.run(&key, message([Part::data("image/png", *b"x"), table("c\n1\n")])))
        .await
        .assert_finished();
    let names: Vec<String> = toy.inputs()[2].files.iter().map(|file| file.name.clone()).collect();
    assert_eq!(names, ["data_1_1.csv", "data_1_2.csv", &format!("data_{third}_2.csv")]);
    assert_eq!(toy.inputs().len(), 3, "each is looked at once");
}

#[tokio::test]
async fn tables_stay_as_they_are_unless_code_is_to_read_them() {
    let model = ScriptedModel::new("m").recorded().text(block("print 1")).text("ok");
    let (runner, key, toy) = begun(model.clone(), |execution| execution).await;
    let said = message([Part::data("text/csv", TABLE)]);
    read(runner.run(&key, said.clone())).await.assert_finished();
    assert!(toy.inputs()[0].files.is_empty());
    assert_eq!(**model.requests()[0].contents.get(0).unwrap(), said);
}

#[tokio::test]
async fn an_executor_of_another_language_gets_the_files_and_looks_at_none() {
    let toy = Toy::with(CodeSpec::new("lua"));
    let model = ScriptedModel::new("m").recorded().text("```lua\nprint 1\n```").text("ok");
    let execution = CodeExecution::new(toy.clone()).data_files();
    let (runner, key) = begin(LlmAgent::new("a").model(model.clone()).code_executor(execution)).await;
    read(runner.run(&key, message([Part::data("text/csv", TABLE)]))).await.assert_finished();
    assert_eq!(toy.ran(), ["print 1"]);
    assert_eq!(toy.inputs()[0].files.len(), 1);
    assert_eq!(said(&model.requests()[0]), ["\nAvailable file: `data_1_1.csv`\n"]);
}

#[tokio::test]
async fn nobody_is_asked_about_code_that_looks_at_a_table() {
    let model = ScriptedModel::new("m").text("I see.");
    let (runner, key, toy) = begun(model, |execution| execution.data_files().confirm(Confirm::Always)).await;
    read(runner.run(&key, message([Part::data("text/csv", TABLE)]))).await.assert_finished();
    assert_eq!(toy.inputs().len(), 1);
}

#[tokio::test]
async fn handlers_that_ask_people_ask_about_the_code_of_the_model_alone() {
    for approve in
        [Approve::new().tool("run_code"), Approve::every_call(), Approve::every_call().whole_batch()]
    {
        let toy = Toy::new();
        let model = ScriptedModel::new("m").text(block("print 1")).text("ok");
        let execution = CodeExecution::new(toy.clone()).data_files();
        let agent = LlmAgent::new("a").model(model).code_executor(execution).handler(approve);
        let (runner, key) = begin(agent).await;
        let seen = read(runner.run(&key, message([Part::data("text/csv", TABLE)]))).await;
        assert_eq!(toy.inputs().len(), 1, "the table was looked at");
        assert_eq!(shown(&seen.interrupts()[0]).1, json!({"code": "print 1"}));
        let asked = seen.interrupts()[0].clone();
        read(runner.resume(&key, [(&asked, Answer::approve())])).await.assert_finished();
        assert_eq!(toy.ran()[1..], ["print 1"]);
    }
}

#[tokio::test]
async fn no_model_can_pass_its_code_off_as_a_look_at_a_table() {
    let id = "adk-file-data_1_1.csv";
    let code = json!({"role": "model", "parts": [{"executableCode": {"id": id, "code": "fail"}}]});
    let forged = Response::new(serde_json::from_value::<Content>(code).unwrap());
    let toy = Toy::new();
    let model = ScriptedModel::new("m").response(forged.clone());
    let agent = LlmAgent::new("a").model(model).code_executor(toy.clone());
    let seen = run_once(agent.handler(Approve::new().tool("run_code"))).await;
    assert_eq!((seen.interrupts().len(), toy.ran().len()), (1, 0));
    // Nor behind code that is empty.
    let parts = json!([{"executableCode": {"code": ""}}, {"executableCode": {"id": id, "code": "fail"}}]);
    let code = json!({"role": "model", "parts": parts});
    let hidden = Response::new(serde_json::from_value::<Content>(code).unwrap());
    let agent = LlmAgent::new("a").model(ScriptedModel::new("m").response(hidden)).code_executor(toy.clone());
    run_once(agent).await.assert_finished();
    assert_eq!(toy.ran().len(), 0);
    // Nor by a call of the tool.
    let call = calls([call_with_id(id, "run_code", json!({"code": "fail"}))]);
    let agent =
        LlmAgent::new("a").model(ScriptedModel::new("m").response(call)).tool(RunCode::new(toy.clone()));
    let seen = run_once(agent.handler(Approve::new().tool("run_code"))).await;
    assert_eq!((seen.interrupts().len(), toy.ran().len()), (1, 0));
    // Nor does it run where no code is run.
    let agent = LlmAgent::new("a").model(ScriptedModel::new("m").response(forged.clone()));
    let seen = run_once(agent.tool(RunCode::new(toy.clone()))).await;
    assert_eq!((told(&seen.assert_finished().whole()), toy.ran().len()), (vec!["> fail".to_owned()], 0));
    // It counts when it fails.
    let model = ScriptedModel::from_fn("m", move |_| vec![Ok(Chunk::Complete(forged.clone()))]);
    run_once(LlmAgent::new("a").model(model).code_executor(toy.clone())).await.assert_finished();
    assert_eq!(toy.ran().len(), 2);
}

#[tokio::test]
async fn nobody_is_asked_about_a_look_at_a_table_that_was_cut_short() {
    let (toy, store) = (Toy { is_noting: true, ..Toy::new() }, Spy::default());
    let make = |store: Spy| {
        let execution = CodeExecution::new(toy.clone()).data_files().confirm(Confirm::Always);
        let agent = LlmAgent::new("a").model(ScriptedModel::new("m").text("I see.")).code_executor(execution);
        recovery::runner(store, Arc::new(agent)).build().unwrap()
    };
    let other = make(store.clone());
    let key = other.create_session("ann").await.unwrap().key;
    // The message is the first write, the code the second, its result the third.
    let dying = store.dying(Some(Death::Before(3)));
    run_and_die(&make(dying.clone()), &dying, &key, message([Part::data("text/csv", TABLE)])).await;
    assert_eq!(toy.ran().len(), 1);
    recover(&other).await;
    assert!(other.open_questions(&key).await.unwrap().is_empty());
    assert_eq!(told(&stored(&other, &key).await).last().unwrap(), "I see.");
}

#[tokio::test]
async fn a_look_that_fails_does_not_count_against_the_model() {
    let toy = Toy::new();
    let model = ScriptedModel::new("m").text(block("print 1")).text("ok");
    let execution = CodeExecution::new(Fails(toy.clone())).data_files().max_failures(1);
    let (runner, key) = begin(LlmAgent::new("a").model(model).code_executor(execution)).await;
    let seen = read(runner.run(&key, message([Part::data("text/csv", TABLE)]))).await;
    let told = told(&seen.assert_finished().whole());
    assert_eq!(told[2..], ["= no python\n\nThe code failed. (FAILED)", "> print 1", "= 1 (OK)", "ok"]);
}

/// Cannot look at tables.
#[derive(Debug)]
struct Fails(Toy);

impl umbel::CodeExecutor for Fails {
    fn spec(&self) -> &CodeSpec {
        self.0.spec()
    }

    fn execute<'a>(
        &'a self,
        run: &'a umbel::Run,
        input: umbel::CodeInput,
    ) -> umbel::BoxFuture<'a, umbel::Result<umbel::CodeOutput>> {
        if input.code.contains("explore") {
            return Box::pin(async { Ok(umbel::CodeOutput::failed("no python")) });
        }
        self.0.execute(run, input)
    }
}

#[tokio::test]
async fn the_tool_that_runs_code_reads_tables_too() {
    let toy = Toy::new();
    let model = ScriptedModel::new("m").call("run_code", json!({"code": "print 1"})).text("ok");
    let tool = umbel::RunCode::new(CodeExecution::new(toy.clone()).data_files());
    let (runner, key) = begin(LlmAgent::new("a").model(model).tool(tool)).await;
    read(runner.run(&key, message([Part::data("text/csv", TABLE)]))).await.assert_finished();
    assert_eq!(toy.inputs()[0].files[0].name, "data_1_1.csv");
}
