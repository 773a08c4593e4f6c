//! What the painter's script says: it calls the tools of the front end, if that one has them.

use serde_json::{Value, json};
use umbel::{FunctionResponse, ModelRequest};

use super::script::{Answer, call, last_words, results, say};

/// The tools that front ends may bring.
const SET_THEME: &str = "set_theme";
const GET_LOCAL_TIME: &str = "get_local_time";
const NOTIFY: &str = "notify";

/// What a person wants of the front end.
#[derive(Clone, Debug, PartialEq)]
enum Wish {
    Theme(&'static str),
    Time,
    Reminder(String),
    Unknown,
}

pub(super) fn answer(request: &ModelRequest) -> Answer {
    let told: Vec<String> = results(request).map(report).collect();
    if !told.is_empty() {
        return say(&told.join(" "));
    }
    let (tool, args) = match wish(&last_words(request)) {
        Wish::Theme(theme) => (SET_THEME, json!({"theme": theme})),
        Wish::Time => (GET_LOCAL_TIME, json!({})),
        Wish::Reminder(text) => (NOTIFY, json!({"text": text})),
        Wish::Unknown => {
            return say(
                "I work with what your front end can do. Say `make it dark`, `what time is it here?` or \
                        `remind me to buy a map`.",
            );
        }
    };
    if request.tools.iter().any(|meta| meta.tool.spec().name == tool) {
        return call([(tool, args)]);
    }
    say(&format!(
        "Only a front end that offers the tool `{tool}` can do that, and this one does not. The studio of `umbel serve` \
         does, and so can any AG-UI front end."
    ))
}

/// What a sentence asks for.
fn wish(text: &str) -> Wish {
    let small = text.to_lowercase();
    let has = |words: &[&str]| words.iter().any(|word| small.contains(word));
    match small.find("remind me") {
        Some(place) => {
            let rest = text.get(place + "remind me".len()..).unwrap_or_default().trim();
            let rest = rest.strip_prefix("to ").unwrap_or(rest);
            Wish::Reminder(rest.trim_end_matches(['.', '!', '?']).trim().to_owned())
        }
        None if has(&["dark", "night"]) => Wish::Theme("dark"),
        None if has(&["light", "bright"]) => Wish::Theme("light"),
        None if has(&["time", "clock", "late"]) => Wish::Time,
        None => Wish::Unknown,
    }
}

/// What a tool of the front end answered, in words. Front ends answer as they like: text, or an object.
fn report(response: &FunctionResponse) -> String {
    let object = response.response.as_ref();
    let field = |keys: &[&str]| {
        keys.iter().find_map(|key| object?.get(*key)).filter(|value| !value.is_null()).map(
            |value| match value {
                Value::String(text) => text.clone(),
                value => value.to_string(),
            },
        )
    };
    if let Some(error) = field(&["error"]) {
        return format!("That did not work: {error}.");
    }
    let told = field(&["theme", "time", "text", "result", "output", "content"]);
    match (response.name.as_str(), told) {
        (SET_THEME, Some(theme)) if theme.contains("light") => "It is light now.".to_owned(),
        (SET_THEME, Some(theme)) if theme.contains("dark") => "It is dark now.".to_owned(),
        (SET_THEME, _) => "The theme is changed.".to_owned(),
        (GET_LOCAL_TIME, Some(time)) => format!("Where you are it is {time}."),
        (NOTIFY, _) => "I have put up a reminder for you.".to_owned(),
        (name, told) => format!("{name} says: {}.", told.unwrap_or_else(|| "done".to_owned())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wishes_are_told_apart() {
        for (text, expected) in [
            ("Make it dark, please", Wish::Theme("dark")),
            ("switch to the light theme", Wish::Theme("light")),
            ("What time is it here?", Wish::Time),
            ("Please remind me to buy a Map.", Wish::Reminder("buy a Map".to_owned())),
            ("hello", Wish::Unknown),
        ] {
            assert_eq!(wish(text), expected, "{text}");
        }
    }

    #[test]
    fn what_front_ends_answer_is_put_into_words() {
        for (name, answer, expected) in [
            (SET_THEME, json!({"result": "dark"}), "It is dark now."),
            (SET_THEME, json!({"theme": "light"}), "It is light now."),
            (SET_THEME, json!({}), "The theme is changed."),
            (GET_LOCAL_TIME, json!({"result": "12:30"}), "Where you are it is 12:30."),
            (NOTIFY, json!({"result": {"shown": true}}), "I have put up a reminder for you."),
            (NOTIFY, json!({"error": "not allowed"}), "That did not work: not allowed."),
        ] {
            let response = FunctionResponse::new(None, name, answer.as_object().cloned().unwrap());
            assert_eq!(report(&response), expected);
        }
    }
}
