//! What a run asks people, as their client shows it, and what they say, as the run takes it.

use rmcp::model::{ElicitRequestParams, ElicitResult, ElicitationAction, ElicitationSchema};
use serde_json::{Value, json};
use umbel_core::{Answer, DecisionKind, Interrupt, Question};

/// The field of a form for whether something may be done.
const CONFIRM: &str = "confirm";
/// The field of a form for an answer that is no object.
const ANSWER: &str = "answer";

/// How a question is put to a person.
struct Form {
    /// Whether they say yes or no.
    decides: bool,
    /// What else they say.
    asks: Asks,
}

/// What a question asks for, besides yes or no.
enum Asks {
    Nothing,
    /// The fields of that schema.
    Fields(Value),
    /// One field of that schema, which is the answer.
    One(Value),
    /// One field with the answer as JSON, since forms have no room for what is asked.
    Json,
}

/// Whether a client may show it. Secrets must not be asked for by forms, and who may not agree is not asked whether they do.
pub(super) fn can_be_shown(asked: &Interrupt) -> bool {
    let may_agree = asked.decisions.is_empty() || asked.decisions.contains(&DecisionKind::Approve);
    asked.reason != Question::CREDENTIAL && may_agree
}

/// Whether it decides about something, such as a call, and does not only ask for what is known: a person's word.
pub(super) fn decides(asked: &Interrupt) -> bool {
    asked.reason != Question::INPUT || !asked.decisions.is_empty()
}

fn form(asked: &Interrupt) -> Form {
    let decides = decides(asked);
    let asks = match &asked.response_schema {
        None if decides => Asks::Nothing,
        None => Asks::One(json!({"type": "string"})),
        Some(schema) => {
            let own = schema.get("properties").and_then(Value::as_object);
            let has_room = own.is_some_and(|own| !decides || !own.contains_key(CONFIRM));
            if has_room && flat(schema.clone()).is_some() {
                Asks::Fields(schema.clone())
            } else if flat(one(schema)).is_some() {
                Asks::One(schema.clone())
            } else {
                Asks::Json
            }
        }
    };
    Form { decides, asks }
}

/// A schema of an object with one field, which is the answer.
fn one(schema: &Value) -> Value {
    json!({"type": "object", "properties": {ANSWER: schema}, "required": [ANSWER]})
}

impl Form {
    /// The fields that a person is shown, as a schema.
    fn schema(&self) -> Value {
        let mut schema = match &self.asks {
            Asks::Nothing => json!({"type": "object", "properties": {}}),
            Asks::Fields(schema) => schema.clone(),
            Asks::One(schema) => one(schema),
            Asks::Json => {
                one(&json!({"type": "string", "title": "Answer", "description": "The answer, as JSON."}))
            }
        };
        if let (true, Some(schema)) = (self.decides, schema.as_object_mut()) {
            if let Some(fields) = schema.get_mut("properties").and_then(Value::as_object_mut) {
                let confirm =
                    json!({"type": "boolean", "title": "Agree", "description": "Whether it may be done."});
                fields.insert(CONFIRM.to_owned(), confirm);
            }
            // Who says no need not say more.
            schema.insert("required".to_owned(), json!([CONFIRM]));
        }
        schema
    }

    /// What the fields say; what is wrong with them if they say nothing that can be taken.
    fn taken(&self, content: Option<Value>) -> Result<Answer, String> {
        let Some(Value::Object(mut content)) = content else {
            return Err("the fields of the form are missing".to_owned());
        };
        if self.decides {
            match content.remove(CONFIRM) {
                Some(Value::Bool(true)) => {}
                Some(Value::Bool(false)) => return Ok(Answer::reject()),
                _ => return Err(format!("`{CONFIRM}` must be true or false")),
            }
        }
        let mut answer = || content.remove(ANSWER).ok_or_else(|| format!("`{ANSWER}` is missing"));
        Ok(match &self.asks {
            Asks::Nothing => Answer::approve(),
            Asks::One(_) => Answer::input(answer()?),
            Asks::Json => Answer::input(json_or_text(answer()?)),
            Asks::Fields(_) => Answer::input(content),
        })
    }
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
        message = format!("That answer cannot be taken: {again}\n\n{message}");
    }
    let requested_schema = *flat(form(asked).schema())?;
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

/// What a person said by a form: nothing if they did not decide, and what is wrong with it if it cannot be taken.
pub(super) fn answer(asked: &Interrupt, said: &ElicitResult) -> Result<Option<Answer>, String> {
    let answer = match said.action {
        ElicitationAction::Accept => form(asked).taken(said.content.clone())?,
        ElicitationAction::Decline => Answer::reject(),
        _ => return Ok(None),
    };
    Ok(Some(about(asked, answer)))
}

/// What whoever calls said by an argument, in words or as JSON.
pub(super) fn answer_in_words(asked: &Interrupt, said: &str) -> Result<Answer, String> {
    let plain = said.trim().trim_end_matches(['.', '!']).to_lowercase();
    let is_yes = ["yes", "y", "true", "ok", "approve", "approved"].contains(&plain.as_str());
    let is_no = ["no", "n", "false", "reject", "rejected"].contains(&plain.as_str());
    let form = form(asked);
    let answer = match (form.decides, &form.asks) {
        (true, _) if is_no => Answer::reject(),
        (true, Asks::Nothing) if is_yes => Answer::approve(),
        (true, Asks::Nothing) => return Err("the answer must be `yes` or `no`".to_owned()),
        (true, _) => form.taken(serde_json::from_str(said).ok())?,
        (false, Asks::One(_)) if asked.response_schema.is_none() => Answer::input(said),
        (false, _) => Answer::input(json_or_text(said.into())),
    };
    Ok(about(asked, answer))
}

/// How the question can be answered, for whoever calls.
pub(super) fn how(asked: &Interrupt) -> String {
    let form = form(asked);
    match (form.decides, &form.asks, &asked.response_schema) {
        (true, Asks::Nothing, _) => "`yes` or `no`".to_owned(),
        (true, ..) => format!("`no` or JSON that fits this schema: {}", form.schema()),
        (false, _, Some(schema)) => format!("JSON that fits this schema: {schema}"),
        (false, _, None) => "in words".to_owned(),
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
fn json_or_text(text: Value) -> Value {
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
        assert_eq!(answer(&asked, &accept(json!({"confirm": true}))), Ok(Some(Answer::approve())));
        assert_eq!(answer(&asked, &accept(json!({"confirm": false}))), Ok(Some(Answer::reject())));
        assert_eq!(
            answer(&asked, &ElicitResult::new(ElicitationAction::Decline)),
            Ok(Some(Answer::reject()))
        );
        assert_eq!(answer(&asked, &ElicitResult::new(ElicitationAction::Cancel)), Ok(None));
    }

    #[test]
    fn only_a_ticked_box_is_a_yes() {
        let asked = asked(Question::confirm("Delete it?"));
        let unclear = [json!({"confirm": "false"}), json!({"confirm": "true"}), json!({"confirm": null})];
        for content in unclear.into_iter().chain([json!({}), json!(null), json!(true), json!([true])]) {
            assert!(answer(&asked, &accept(content.clone())).is_err(), "{content}");
        }
        assert!(answer(&asked, &ElicitResult::new(ElicitationAction::Accept)).is_err());
    }

    #[test]
    fn whatever_decides_about_a_call_is_a_box_to_tick() {
        let kinds = [DecisionKind::Approve, DecisionKind::Reject, DecisionKind::Respond];
        for question in [
            Question::new("unfinished", "Make it again?").decisions(kinds),
            Question::new("shop:size", "Which size?"),
            Question::input("Which?").decisions(kinds),
        ] {
            let asked = asked(question);
            assert!(decides(&asked));
            assert_eq!(fields(&asked)["confirm"]["type"], "boolean");
            assert!(answer(&asked, &accept(json!({"answer": "no"}))).is_err());
            assert_eq!(answer_in_words(&asked, "no"), Ok(Answer::reject()));
            assert!(answer_in_words(&asked, "better not").is_err());
        }
        assert!(!decides(&asked(Question::input("Which?").schema(json!({"type": "string"})))));
    }

    #[test]
    fn a_confirmation_may_ask_for_more_than_yes() {
        let schema =
            json!({"type": "object", "properties": {"until": {"type": "string"}}, "required": ["until"]});
        let named = json!({"type": "object", "properties": {"confirm": {"type": "string"}}});
        for (schema, yes, payload) in [
            (schema, json!({"confirm": true, "until": "May"}), json!({"until": "May"})),
            (json!({"type": "string"}), json!({"confirm": true, "answer": "May"}), json!("May")),
            (named, json!({"confirm": true, "answer": "{\"confirm\":\"so\"}"}), json!({"confirm": "so"})),
        ] {
            let asked = asked(Question::confirm("Let it?").schema(schema));
            assert!(decides(&asked));
            assert_eq!(fields(&asked)["confirm"]["type"], "boolean");
            let shown = serde_json::to_value(request(&asked, None).unwrap()).unwrap();
            assert_eq!(shown["requestedSchema"]["required"], json!(["confirm"]));
            let said = Ok(Some(Answer::input(payload.clone())));
            assert_eq!(answer(&asked, &accept(yes.clone())), said);
            assert_eq!(answer_in_words(&asked, &yes.to_string()), Ok(Answer::input(payload)));
            for no in ["No.", r#"{"confirm": false}"#] {
                assert_eq!(answer_in_words(&asked, no), Ok(Answer::reject()));
            }
            assert!(answer_in_words(&asked, "May").is_err());
            let mut silent = yes;
            silent.as_object_mut().unwrap().remove("confirm");
            assert!(answer(&asked, &accept(silent)).is_err());
        }
    }

    #[test]
    fn an_answer_that_is_missing_is_none() {
        let asked = asked(Question::input("Which?"));
        assert!(answer(&asked, &accept(json!({}))).is_err());
        assert!(answer(&asked, &ElicitResult::new(ElicitationAction::Accept)).is_err());
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
        assert_eq!(said, Ok(Some(Answer::input(json!({"city": "Oslo"})))));
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
            assert_eq!(answer(&asked, &accept(json!({"answer": given}))), Ok(Some(Answer::input(expected))));
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
        let said = answer(&asked, &accept(json!({"confirm": true}))).unwrap().unwrap();
        assert_eq!(said.digest.as_deref(), Some("abc"));
    }

    #[test]
    fn secrets_are_not_asked_for_by_forms() {
        assert!(!can_be_shown(&asked(Question::new("credential", "Sign in"))));
        assert!(can_be_shown(&asked(Question::input("Which?"))));
    }

    #[test]
    fn who_may_not_agree_is_not_asked_whether_they_do() {
        let respond = Question::confirm("What does it give?").decisions([DecisionKind::Respond]);
        assert!(!can_be_shown(&asked(respond)));
        assert!(can_be_shown(&asked(Question::confirm("?").decisions(DecisionKind::ALL))));
    }
}
