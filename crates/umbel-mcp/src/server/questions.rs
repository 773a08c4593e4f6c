//! What a run asks people, as their client shows it, and what they say, as the run takes it.

use rmcp::model::{ElicitRequestParams, ElicitResult, ElicitationAction, ElicitationSchema};
use serde_json::{Value, json};
use umbel_core::{Answer, Interrupt, Question};

/// The field of a form for a question whether something may be done.
const CONFIRM: &str = "confirm";
/// The field of a form for an answer that is no object.
const ANSWER: &str = "answer";
/// The reason of questions for credentials.
const CREDENTIAL: &str = "credential";

/// How a question is put to a person.
enum Form {
    /// Yes or no.
    Confirm,
    /// The fields that the question asks for.
    Fields(Box<ElicitationSchema>),
    /// One field, which is the answer.
    One(Box<ElicitationSchema>),
    /// One field with the answer as JSON, since forms have no room for what is asked.
    Json,
}

/// Whether a client may show it. Secrets must not be asked for by forms.
pub(super) fn can_be_shown(asked: &Interrupt) -> bool {
    asked.reason != CREDENTIAL
}

/// Whether it asks if something may be done, and not for something that is known.
pub(super) fn is_confirmation(asked: &Interrupt) -> bool {
    asked.reason == Question::CONFIRMATION && asked.response_schema.is_none()
}

fn form(asked: &Interrupt) -> Form {
    let Some(schema) = &asked.response_schema else {
        let text =
            || json!({"type": "object", "properties": {ANSWER: {"type": "string"}}, "required": [ANSWER]});
        return match is_confirmation(asked) {
            true => Form::Confirm,
            false => flat(text()).map_or(Form::Json, Form::One),
        };
    };
    if let Some(fields) = flat(schema.clone()) {
        return Form::Fields(fields);
    }
    let one = json!({"type": "object", "properties": {ANSWER: schema}, "required": [ANSWER]});
    flat(one).map_or(Form::Json, Form::One)
}

/// A schema as a form, if it is one: an object whose fields are no objects themselves.
fn flat(schema: Value) -> Option<Box<ElicitationSchema>> {
    schema.get("properties")?;
    serde_json::from_value(schema).ok().map(Box::new)
}

/// What a client is to show. `again` is what was wrong with the answer before.
pub(super) fn request(asked: &Interrupt, again: Option<&str>) -> Option<ElicitRequestParams> {
    let mut message = words(asked);
    if let Some(again) = again {
        message = format!("{again}\n\n{message}");
    }
    let requested_schema = match form(asked) {
        Form::Fields(fields) | Form::One(fields) => *fields,
        Form::Confirm => *flat(json!({
            "type": "object",
            "properties": {CONFIRM: {"type": "boolean", "title": "Agree", "description": "Whether it may be done."}},
            "required": [CONFIRM],
        }))?,
        Form::Json => *flat(json!({
            "type": "object",
            "properties": {ANSWER: {"type": "string", "title": "Answer", "description": "The answer, as JSON."}},
            "required": [ANSWER],
        }))?,
    };
    Some(ElicitRequestParams::FormElicitationParams { meta: None, message, requested_schema })
}

/// A question in words, with the call that it is about: people agree to what they are shown.
pub(super) fn words(asked: &Interrupt) -> String {
    let mut text = asked.message.clone().unwrap_or_else(|| "The agent asks for an answer.".to_owned());
    if let Some(call) = &asked.call {
        let args = call.args.as_deref().cloned().unwrap_or_default();
        text = format!("{text}\n\nThe call: {}({})", call.name, Value::Object(args));
    }
    text
}

/// What a person said by a form; nothing if they did not decide.
pub(super) fn answer(asked: &Interrupt, said: &ElicitResult) -> Option<Answer> {
    let content = said.content.clone().unwrap_or_default();
    let answer = match said.action {
        ElicitationAction::Accept => match form(asked) {
            Form::Confirm => match content.get(CONFIRM) {
                Some(Value::Bool(false)) => Answer::reject(),
                _ => Answer::approve(),
            },
            Form::Fields(_) => Answer::input(content),
            Form::One(_) => Answer::input(content.get(ANSWER).cloned().unwrap_or_default()),
            Form::Json => Answer::input(json_or_text(content.get(ANSWER))),
        },
        ElicitationAction::Decline => Answer::reject(),
        _ => return None,
    };
    Some(about(asked, answer))
}

/// What whoever calls said by an argument, in words or as JSON.
pub(super) fn answer_in_words(asked: &Interrupt, said: &str) -> Result<Answer, String> {
    let plain = said.trim().trim_end_matches(['.', '!']).to_lowercase();
    let answer = match form(asked) {
        Form::Confirm => match plain.as_str() {
            "yes" | "y" | "true" | "ok" | "approve" | "approved" => Answer::approve(),
            "no" | "n" | "false" | "reject" | "rejected" => Answer::reject(),
            _ => return Err("the answer must be `yes` or `no`".to_owned()),
        },
        Form::One(_) if asked.response_schema.is_none() => Answer::input(said),
        _ => Answer::input(json_or_text(Some(&said.into()))),
    };
    Ok(about(asked, answer))
}

/// How the question can be answered, for whoever calls.
pub(super) fn how(asked: &Interrupt) -> String {
    match (form(asked), &asked.response_schema) {
        (Form::Confirm, _) => "`yes` or `no`".to_owned(),
        (_, Some(schema)) => format!("JSON that fits this schema: {schema}"),
        (_, None) => "in words".to_owned(),
    }
}

/// An answer that says what it is an answer to.
fn about(asked: &Interrupt, answer: Answer) -> Answer {
    match &asked.digest {
        Some(digest) => answer.digest(digest.clone()),
        None => answer,
    }
}

/// A text as the JSON that it is, or else as a text.
fn json_or_text(text: Option<&Value>) -> Value {
    let text = text.cloned().unwrap_or_default();
    text.as_str().and_then(|text| serde_json::from_str(text).ok()).unwrap_or(text)
}

#[cfg(test)]
mod tests {
    use umbel_core::{Address, CallId};

    use super::*;

    fn asked(question: Question) -> Interrupt {
        Interrupt::new(CallId::from("q"), Address::default(), question, 0.0)
    }

    fn accept(content: Value) -> ElicitResult {
        ElicitResult::new(ElicitationAction::Accept).with_content(content)
    }

    fn fields(asked: &Interrupt) -> Value {
        let shown = serde_json::to_value(request(asked, None).unwrap()).unwrap();
        shown["requestedSchema"]["properties"].clone()
    }

    #[test]
    fn a_confirmation_is_a_box_to_tick() {
        let asked = asked(Question::confirm("Delete it?"));
        assert_eq!(fields(&asked)["confirm"]["type"], "boolean");
        assert_eq!(answer(&asked, &accept(json!({"confirm": true}))), Some(Answer::approve()));
        assert_eq!(answer(&asked, &accept(json!({"confirm": false}))), Some(Answer::reject()));
        assert_eq!(answer(&asked, &ElicitResult::new(ElicitationAction::Decline)), Some(Answer::reject()));
        assert_eq!(answer(&asked, &ElicitResult::new(ElicitationAction::Cancel)), None);
    }

    #[test]
    fn a_schema_of_fields_is_a_form() {
        let schema = json!({
            "type": "object",
            "properties": {
                "city": {"type": "string", "default": "Rome"},
                "days": {"type": "integer", "minimum": 1},
                "class": {"type": "string", "enum": ["first", "second"]},
            },
            "required": ["city"],
        });
        let asked = asked(Question::input("Where to?").schema(schema));
        let shown = fields(&asked);
        assert_eq!(shown["city"]["default"], "Rome");
        assert_eq!(shown["class"]["enum"], json!(["first", "second"]));
        let said = answer(&asked, &accept(json!({"city": "Oslo"})));
        assert_eq!(said, Some(Answer::input(json!({"city": "Oslo"}))));
    }

    #[test]
    fn what_is_no_form_is_one_field() {
        for (schema, kind, given, expected) in [
            (None, "string", json!("blue"), json!("blue")),
            (Some(json!({"type": "integer"})), "integer", json!(3), json!(3)),
            (
                Some(json!({"type": "array", "items": {"type": "object"}})),
                "string",
                json!("[{}]"),
                json!([{}]),
            ),
        ] {
            let mut question = Question::input("Which?");
            question.response_schema = schema;
            let asked = asked(question);
            assert_eq!(fields(&asked)["answer"]["type"], kind);
            assert_eq!(answer(&asked, &accept(json!({"answer": given}))), Some(Answer::input(expected)));
        }
    }

    #[test]
    fn words_of_a_caller_are_an_answer() {
        let confirm = asked(Question::confirm("Delete it?"));
        assert_eq!(answer_in_words(&confirm, " Yes. "), Ok(Answer::approve()));
        assert_eq!(answer_in_words(&confirm, "no"), Ok(Answer::reject()));
        assert!(answer_in_words(&confirm, "maybe").is_err());
        let input = asked(Question::input("Which colour?"));
        assert_eq!(answer_in_words(&input, "7"), Ok(Answer::input("7")));
        let number = asked(Question::input("How many?").schema(json!({"type": "integer"})));
        assert_eq!(answer_in_words(&number, "7"), Ok(Answer::input(7)));
    }

    #[test]
    fn an_answer_belongs_to_what_was_shown() {
        let mut asked = asked(Question::confirm("Delete it?"));
        asked.digest = Some("abc".to_owned());
        let said = answer(&asked, &accept(json!({"confirm": true}))).unwrap();
        assert_eq!(said.digest.as_deref(), Some("abc"));
    }

    #[test]
    fn secrets_are_not_asked_for_by_forms() {
        assert!(!can_be_shown(&asked(Question::new("credential", "Sign in"))));
        assert!(can_be_shown(&asked(Question::input("Which?"))));
    }
}
