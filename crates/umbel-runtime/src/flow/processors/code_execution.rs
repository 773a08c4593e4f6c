//! Code that the model writes: what it is told of it, what is taken out of its answers, and the files that code reads.

use std::sync::Arc;

use umbel_core::{Content, ContentsView, Part, Payload, Result, Role, Run, RunStep, Work};

use super::{Answered, RequestProcessor, ResponseProcessor, answers};
use crate::agents::LlmAgent;
use crate::code::AgentCode;
use crate::flow::code::{code_part, failures, find};
use crate::flow::data_files::{self, DataFile};
use crate::flow::{Batch, Draft};
use crate::text;

/// Has code look at files that the user sent, before the model is asked about them.
pub(super) struct DataFiles;

impl RequestProcessor for DataFiles {
    fn name(&self) -> &str {
        "data_files"
    }

    fn applies(&self, agent: &LlmAgent) -> bool {
        files_of(agent).is_some()
    }

    fn acts(&self) -> bool {
        true
    }

    fn process<'a>(&'a self, draft: &'a mut Draft<'_>) -> Work<'a, Result<()>> {
        let events = draft.run.events();
        let mut new = data_files::find(&events);
        new.retain(|file| !file.was_looked_at(&events));
        if new.is_empty() {
            return Work::done(Ok(()));
        }
        Work::later(async move {
            let seen = draft.run.contents(&draft.view());
            for file in new.iter().filter(|file| seen.iter().any(|content| data_files::has(content, file))) {
                look_at(draft, file).await?;
                if draft.is_stopped() || draft.run.is_ended() {
                    break;
                }
            }
            Ok(())
        })
    }
}

/// How an agent has code run, if it gives the code files.
fn files_of(agent: &LlmAgent) -> Option<&AgentCode> {
    let code = agent.code.as_deref()?;
    (code.execution.data_files && code.execution.executor().is_some()).then_some(code)
}

/// Runs the code that looks at a file. Only Python has some.
async fn look_at(draft: &mut Draft<'_>, file: &DataFile) -> Result<()> {
    let language =
        files_of(draft.agent).and_then(|code| code.execution.executor()).map(|one| &one.spec().language);
    let Some(language) = language.filter(|language| *language == "python") else { return Ok(()) };
    let id = file.call_id();
    let parts = [Part::text(text::looking_at(&file.name)), code_part(id.clone(), language, file.loader())];
    let event = draft.run.event().with_content(Content::new(Role::Model, parts));
    let started = RunStep::CallsStarted { calls: Box::new(vec![id]) };
    let event = draft.run.emit_with(event, vec![started]).await?;
    answers::make(draft, &Batch::of_event(&event)).await
}

/// Tells the model how to have code run, and takes code out of its answers.
pub(super) struct CodeExecution;

impl RequestProcessor for CodeExecution {
    fn name(&self) -> &str {
        "code_execution"
    }

    fn applies(&self, agent: &LlmAgent) -> bool {
        agent.code.is_some()
    }

    fn see(&self, draft: &Draft<'_>, view: &mut ContentsView) {
        let code = draft.agent.code.as_ref().filter(|code| code.execution.executor().is_some());
        view.code_as_words = code.map(|code| code.words.clone());
    }

    fn process<'a>(&'a self, draft: &'a mut Draft<'_>) -> Work<'a, Result<()>> {
        let Some(code) = &draft.agent.code else { return Work::done(Ok(())) };
        if code.execution.executor().is_none() {
            Arc::make_mut(&mut draft.request.config).run_code = true;
            return Work::done(Ok(()));
        }
        draft.request.instruction.push("code_execution", code.instruction.clone());
        if code.execution.data_files {
            name_files(draft);
        }
        Work::done(Ok(()))
    }
}

/// Puts names in the place of files.
fn name_files(draft: &mut Draft<'_>) {
    let files = data_files::find(&draft.run.events());
    if files.is_empty() {
        return;
    }
    for at in 0..draft.request.contents.len() {
        let named =
            draft.request.contents.get(at).and_then(|content| data_files::with_names(&files, content));
        if let Some(content) = named {
            draft.request.contents.replace(at, content);
        }
    }
}

impl ResponseProcessor for CodeExecution {
    fn name(&self) -> &str {
        "code_execution"
    }

    fn process<'a>(&'a self, answer: &'a mut Answered<'_>) -> Work<'a, Result<()>> {
        let Some(code) = &answer.agent.code else {
            disown(answer);
            return Work::done(Ok(()));
        };
        let Some(executor) = code.execution.executor() else {
            disown(answer);
            return if answer.run.artifacts().is_ok() && has_images(answer) {
                Work::later(keep_images(answer))
            } else {
                Work::done(Ok(()))
            };
        };
        let Some(content) = &answer.response.content else { return Work::done(Ok(())) };
        let planned = answer.agent.planner.as_ref().is_some_and(|planner| planner.marks_thoughts());
        let Some(found) = find(&content.parts, &code.execution.fences, planned) else {
            disown(answer);
            return Work::done(Ok(()));
        };
        if failures(answer.run) >= code.execution.max_failures {
            disown(answer);
            return Work::done(Ok(()));
        }
        let id = found.id.unwrap_or_else(|| answer.run.services().ids.call());
        let mut parts = found.before;
        parts.push(code_part(id, &executor.spec().language, found.code));
        answer.response.content = Some(Arc::new(Content { role: Some(Role::Model), parts }));
        Work::done(Ok(()))
    }
}

/// Code that is not to be run here has no id of ours, whatever a model says.
fn disown(answer: &mut Answered<'_>) {
    if let Some(content) = &mut answer.response.content
        && content.code_id().is_some()
        && let Some(Payload::Code(code)) =
            Arc::make_mut(content).parts.last_mut().map(|part| &mut part.payload)
    {
        code.id = None;
    }
}

/// The media type of a part that is an image.
fn image(part: &Part) -> Option<&str> {
    let Payload::InlineData(blob) = &part.payload else { return None };
    blob.mime_type.as_deref().filter(|kind| kind.starts_with("image/"))
}

fn has_images(answer: &Answered<'_>) -> bool {
    let content = answer.response.content.as_ref();
    content.is_some_and(|content| content.parts.iter().any(|part| image(part).is_some()))
}

/// Keeps images that the model drew as artifacts, and says so in their place.
async fn keep_images(answer: &mut Answered<'_>) -> Result<()> {
    let run = answer.run;
    let Some(content) = &mut answer.response.content else { return Ok(()) };
    for part in &mut Arc::make_mut(content).parts {
        let Some(kind) = image(part) else { continue };
        let name = image_name(run, part, kind);
        let version = run.artifacts()?.save(run.session_key(), &name, part.clone()).await?;
        let kept = answer.actions.get_or_insert_default().artifact_delta.get_or_insert_default();
        kept.insert(name.clone(), version);
        part.payload = Payload::Text(text::saved_image(&name));
    }
    Ok(())
}

/// The name of an image: the one that it has, unless that is one of the user's, or one of its own.
fn image_name(run: &Run, part: &Part, kind: &str) -> String {
    let given = match &part.payload {
        Payload::InlineData(blob) => blob.display_name.clone(),
        _ => None,
    };
    let usable = |name: &String| !name.is_empty() && !name.contains('\0') && !name.starts_with("user:");
    given.filter(usable).unwrap_or_else(|| {
        let ending = kind.trim_start_matches("image/");
        let ending: String = ending.chars().take_while(char::is_ascii_alphanumeric).collect();
        format!("image_{}.{}", run.services().ids.event(), if ending.is_empty() { "bin" } else { &ending })
    })
}
