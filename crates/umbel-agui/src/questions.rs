//! Questions to people as interrupts of the protocol, and what comes back.

use serde_json::{Value, json};
use smol_str::{SmolStr, format_smolstr};
use umbel_core::{Answer, Interrupt, Object, Question};

use crate::event::AguiInterrupt;
use crate::input::{ResumeEntry, ResumeStatus};

/// A question as a front end is told of it.
pub fn interrupt_on_the_wire(asked: &Interrupt) -> AguiInterrupt {
    let call = asked.address.call.as_ref().filter(|_| asked.call.is_some() || asked.address.inner.is_some());
    let reason = match asked.reason.as_str() {
        Question::CONFIRMATION if call.is_some() => SmolStr::new_static("tool_call"),
        Question::CONFIRMATION => SmolStr::new_static("confirmation"),
        Question::INPUT => SmolStr::new_static("input_required"),
        own if own.contains(':') && !own.starts_with("core:") => asked.reason.clone(),
        own => format_smolstr!("umbel:{own}"),
    };
    let mut metadata = Object::new();
    if let Some(shown) = &asked.call {
        metadata.insert("toolName".to_owned(), json!(shown.name));
        metadata.insert("args".to_owned(), json!(shown.args));
    }
    for (key, value) in
        [("digest", asked.digest.as_ref().map(|digest| json!(digest))), ("payload", asked.payload.clone())]
    {
        if let Some(value) = value {
            metadata.insert(key.to_owned(), value);
        }
    }
    if !asked.decisions.is_empty() {
        metadata.insert("decisions".to_owned(), json!(asked.decisions));
    }
    AguiInterrupt {
        id: asked.id.as_str().into(),
        reason,
        message: asked.message.clone(),
        tool_call_id: call.map(|call| call.as_str().into()),
        response_schema: asked.response_schema.as_ref().and_then(Value::as_object).cloned(),
        expires_at: asked.expires_at.map(iso_8601),
        metadata: (!metadata.is_empty()).then_some(metadata),
        subagent_run_id: None,
    }
}

/// What a person said to a question, in the words of the protocol. An error says what an answer must look like.
pub fn answer_of(entry: &ResumeEntry, asked: &Interrupt) -> Result<Answer, String> {
    match (entry.status, &entry.payload) {
        (ResumeStatus::Cancelled, payload) => {
            let reason = payload.as_ref().and_then(|payload| payload.get("reason")).and_then(Value::as_str);
            Ok(Answer::reject_because(reason.unwrap_or("The user cancelled the question.")))
        }
        (ResumeStatus::Resolved, payload) => answer_from(payload.as_ref().unwrap_or(&Value::Null), asked),
    }
}

/// What a person said, in any of the forms that front ends use.
pub(crate) fn answer_from(payload: &Value, asked: &Interrupt) -> Result<Answer, String> {
    let said_yes =
        |object: &Object| ["approved", "confirmed"].iter().find_map(|key| object.get(*key)?.as_bool());
    if asked.reason == Question::CREDENTIAL {
        return Ok(credential_from(payload, said_yes));
    }
    match payload {
        Value::Bool(confirmed) if asked.reason != Question::INPUT => {
            Ok(Answer { confirmed: *confirmed, ..Answer::default() })
        }
        Value::Object(object) => match said_yes(object) {
            Some(confirmed) => decided(object.clone(), confirmed),
            None if asked.reason == Question::CONFIRMATION => Err(must_decide()),
            None => Ok(Answer::input(payload.clone())),
        },
        _ if asked.reason == Question::CONFIRMATION => Err(must_decide()),
        other => Ok(Answer::input(other.clone())),
    }
}

/// A credential, or that it is not given. What is given is not looked at: no error shall repeat it.
fn credential_from(payload: &Value, said_yes: impl Fn(&Object) -> Option<bool>) -> Answer {
    match payload.as_object().and_then(|object| Some((object, said_yes(object)?))) {
        Some((object, false)) => {
            let reason = object.get("reason").and_then(Value::as_str).map(str::to_owned);
            Answer { reason, ..Answer::reject() }
        }
        Some((object, true)) => Answer::input(object.get("payload").unwrap_or(payload).clone()),
        None if *payload == Value::Bool(false) => Answer::reject(),
        None => Answer::input(payload.clone()),
    }
}

fn must_decide() -> String {
    "the answer must say `approved: true` or `approved: false`".to_owned()
}

/// A decision with all that may come with it. The protocol calls other arguments `editedArgs`.
fn decided(mut object: Object, confirmed: bool) -> Result<Answer, String> {
    object.shift_remove("approved");
    object.insert("confirmed".to_owned(), Value::Bool(confirmed));
    if let Some(args) = object.shift_remove("editedArgs") {
        object.insert("args".to_owned(), args);
    }
    serde_json::from_value(Value::Object(object))
        .map_err(|error| format!("the answer cannot be read: {error}"))
}

/// Seconds since 1970 as a date and time.
fn iso_8601(seconds: f64) -> String {
    let millis = (seconds * 1000.0).round().clamp(0.0, 253_402_300_799_000.0);
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "within the years 1970 and 9999"
    )]
    let millis = millis as u64;
    let (days, rest) = (millis / 86_400_000, millis % 86_400_000);
    // Days are counted from the first of March of the year 0: then a leap day is the last of its year.
    let days = days + 719_468;
    let (era, day) = (days / 146_097, days % 146_097);
    let year = (day - day / 1_460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let (day, month) = (day - (153 * month + 2) / 5 + 1, if month < 10 { month + 3 } else { month - 9 });
    let year = year + era * 400 + u64::from(month <= 2);
    let (hour, minute, second) = (rest / 3_600_000, rest / 60_000 % 60, rest / 1000 % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{:03}Z", rest % 1000)
}

#[cfg(test)]
mod tests {
    use super::*;
    use umbel_core::{Address, CallId, DecisionKind, FunctionCall};

    fn asked(question: Question) -> Interrupt {
        Interrupt::new(CallId::from("q1"), Address::default(), question, 0.0)
    }

    fn entry(status: ResumeStatus, payload: Value) -> ResumeEntry {
        let payload = (!payload.is_null()).then_some(payload);
        ResumeEntry { interrupt_id: "q1".into(), status, payload, metadata: None }
    }

    #[test]
    fn times_are_written_as_dates() {
        assert_eq!(iso_8601(0.0), "1970-01-01T00:00:00.000Z");
        assert_eq!(iso_8601(951_827_696.5), "2000-02-29T12:34:56.500Z");
        assert_eq!(iso_8601(1_772_323_199.0), "2026-02-28T23:59:59.000Z");
        assert_eq!(iso_8601(4_107_542_400.0), "2100-03-01T00:00:00.000Z");
    }

    #[test]
    fn a_question_about_a_call_names_it_and_what_may_be_decided() {
        let call = FunctionCall::new("delete", Object::new()).with_id("c1");
        let address = Address { call: Some("c1".into()), ..Address::default() };
        let question = Question::confirm("Delete?").decisions(DecisionKind::ALL);
        let mut asked = Interrupt::new(CallId::from("q1"), address, question, 0.0);
        asked.call = Some(call);
        let wire = interrupt_on_the_wire(&asked);
        assert_eq!((wire.reason.as_str(), wire.tool_call_id.as_deref()), ("tool_call", Some("c1")));
        assert_eq!(wire.metadata.unwrap()["decisions"], json!(["approve", "edit", "reject", "respond"]));
    }

    #[test]
    fn reasons_are_those_of_the_protocol_or_carry_a_name() {
        let reason = |question| interrupt_on_the_wire(&asked(question)).reason;
        assert_eq!(reason(Question::confirm("?")), "confirmation");
        assert_eq!(reason(Question::input("?")), "input_required");
        assert_eq!(reason(Question::new("credential", "?")), "umbel:credential");
        assert_eq!(reason(Question::new("shop:size", "?")), "shop:size");
    }

    #[test]
    fn a_credential_is_given_in_several_forms_or_not_at_all() {
        let asked = asked(Question::new(Question::CREDENTIAL, "?"));
        let said = |payload| answer_of(&entry(ResumeStatus::Resolved, payload), &asked).unwrap();
        let key = json!({"apiKey": "k", "args": "no arguments"});
        for payload in [key.clone(), json!({"approved": true, "payload": key})] {
            assert_eq!(said(payload), Answer::input(key.clone()));
        }
        assert_eq!(said(json!("k")), Answer::input("k"));
        assert_eq!(said(json!(false)), Answer::reject());
        assert_eq!(said(json!({"approved": false, "reason": "no"})), Answer::reject_because("no"));
    }

    #[test]
    fn answers_come_in_several_forms_and_a_decision_must_be_one() {
        let confirm = asked(Question::confirm("?"));
        let yes = |payload| answer_of(&entry(ResumeStatus::Resolved, payload), &confirm);
        assert!(yes(json!(true)).unwrap().confirmed);
        assert!(yes(json!({"confirmed": true})).unwrap().confirmed);
        let edited = yes(json!({"approved": true, "editedArgs": {"path": "b"}})).unwrap();
        assert_eq!(edited.decision(), DecisionKind::Edit);
        let no = yes(json!({"approved": false, "reason": "too dear"})).unwrap();
        assert_eq!((no.confirmed, no.reason.as_deref()), (false, Some("too dear")));
        for payload in [json!(null), json!("yes"), json!({}), json!({"approved": "yes"})] {
            assert!(yes(payload.clone()).is_err(), "{payload}");
        }
        let cancelled = answer_of(&entry(ResumeStatus::Cancelled, json!(null)), &confirm).unwrap();
        assert_eq!(cancelled.decision(), DecisionKind::Reject);
        let input = asked(Question::input("?"));
        let said = answer_of(&entry(ResumeStatus::Resolved, json!("blue")), &input).unwrap();
        assert_eq!((said.confirmed, said.payload), (true, Some(json!("blue"))));
    }
}
