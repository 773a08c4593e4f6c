//! The check of what people give as a credential.

use serde_json::Value;

use crate::auth::Expects;
use crate::json::Object;

/// No secret is longer.
const MAX_LENGTH: usize = 16 * 1024;

impl Expects {
    /// What is to be kept of an answer. It may be google-adk's `AuthConfig`, the credential in it, or just the text that was
    /// asked for. What else it holds, such as endpoints, is nobody's business. The error says why not, without the answer.
    pub fn check(&self, answer: &Value) -> Result<Value, String> {
        let answer = exchanged(answer);
        match self {
            Self::Redirect { uri, state, issuer } => {
                let parameters = parameters(answer, uri)?;
                check_redirect(&parameters, state, issuer.as_deref())?;
                Ok(Value::Object(parameters))
            }
            Self::Fields { names } => {
                let fields = names.iter().map(|name| Ok((name.clone(), field(answer, name, names.len())?)));
                Ok(Value::Object(fields.collect::<Result<Object, String>>()?))
            }
        }
    }
}

/// The credential in an `AuthConfig`, or the answer itself.
fn exchanged(answer: &Value) -> &Value {
    ["exchangedAuthCredential", "exchanged_auth_credential"]
        .iter()
        .find_map(|key| answer.get(key))
        .unwrap_or(answer)
}

/// `authCode` as `auth_code`.
fn snake(name: &str) -> String {
    let mut snake = String::with_capacity(name.len() + 2);
    for letter in name.chars() {
        if letter.is_ascii_uppercase() {
            snake.push('_');
        }
        snake.push(letter.to_ascii_lowercase());
    }
    snake
}

/// A text by its name, wherever google-adk has it.
fn text<'a>(answer: &'a Value, name: &str) -> Option<&'a str> {
    let snake = snake(name);
    let places = [Some(answer), answer.get("oauth2"), answer.pointer("/http/credentials")];
    let mut values =
        places.into_iter().flatten().filter_map(|place| place.get(name).or_else(|| place.get(&snake)));
    values.find_map(Value::as_str)
}

/// A text that can be a secret: it may go into a header.
fn usable(text: &str, what: &str) -> Result<(), String> {
    if text.is_empty() {
        return Err(format!("{what} is empty"));
    }
    if text.len() > MAX_LENGTH {
        return Err(format!("{what} is longer than {MAX_LENGTH} bytes"));
    }
    if text.chars().any(char::is_control) {
        return Err(format!("{what} has control characters in it, such as an end of line"));
    }
    Ok(())
}

fn field(answer: &Value, name: &str, of: usize) -> Result<Value, String> {
    let alone = answer.as_str().filter(|_| of == 1);
    let Some(given) = alone.or_else(|| text(answer, name)) else {
        return Err(format!("`{name}` is missing"));
    };
    usable(given, &format!("`{name}`"))?;
    Ok(given.into())
}

/// The parameters of the address that the browser was sent back to.
fn parameters(answer: &Value, uri: &str) -> Result<Object, String> {
    let address = answer.as_str().or_else(|| text(answer, "authResponseUri"));
    if let Some(address) = address {
        usable(address, "the address")?;
        let (base, query) = address.split_once('?').unwrap_or((address, ""));
        let expected = uri.split_once('?').map_or(uri, |(base, _)| base);
        if base != expected {
            return Err("the address is not the one that the browser was to be sent back to".to_owned());
        }
        let query = query.split_once('#').map_or(query, |(query, _)| query);
        let mut parameters = Object::new();
        for (name, value) in form_urlencoded::parse(query.as_bytes()) {
            usable(&value, "a parameter of the address")?;
            if parameters.insert(name.into_owned(), value.into_owned().into()).is_some() {
                return Err("a parameter of the address is there twice".to_owned());
            }
        }
        return Ok(parameters);
    }
    let code = text(answer, "authCode").or_else(|| text(answer, "code"));
    let Some(code) = code else {
        return Err("the address that the browser was sent back to is missing".to_owned());
    };
    let mut parameters = Object::from_iter([("code".to_owned(), code.into())]);
    for name in ["state", "iss"] {
        parameters.extend(text(answer, name).map(|value| (name.to_owned(), value.into())));
    }
    Ok(parameters)
}

fn check_redirect(parameters: &Object, state: &str, issuer: Option<&str>) -> Result<(), String> {
    let given = |name: &str| parameters.get(name).and_then(Value::as_str);
    // Anybody can send somebody there: only with the state it is about this question.
    if given("state") != Some(state) {
        return Err("`state` is not that of the question: sign in with the address that it shows".to_owned());
    }
    if let (Some(given), Some(issuer)) = (given("iss"), issuer)
        && given != issuer
    {
        return Err("`iss` is not the service that was asked".to_owned());
    }
    if let Some(error) = given("error") {
        // A code of RFC 6749, if it is one: nothing else is repeated.
        let known = !error.is_empty()
            && error.len() < 40
            && error.bytes().all(|b| b.is_ascii_lowercase() || b == b'_');
        let error = if known { error } else { "error" };
        return Err(format!(
            "the service gave no code, but said `{error}`: sign in again, or reject the question"
        ));
    }
    usable(given("code").unwrap_or_default(), "`code`")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn redirect() -> Expects {
        let (uri, state) = ("https://app.example/back".to_owned(), "s-1".to_owned());
        Expects::Redirect { uri, state, issuer: Some("https://id.example".to_owned()) }
    }

    #[test]
    fn the_address_the_browser_came_back_to_is_read_wherever_it_stands() {
        let back = "https://app.example/back?code=c%20d&state=s-1#x";
        for answer in [
            json!(back),
            json!({"authResponseUri": back}),
            json!({"oauth2": {"auth_response_uri": back}}),
            json!({"exchangedAuthCredential": {"oauth2": {"authResponseUri": back, "clientId": "evil"}}}),
            json!({"exchanged_auth_credential": {"oauth2": {"auth_code": "c d", "state": "s-1"}}}),
            json!({"code": "c d", "state": "s-1"}),
        ] {
            let kept = redirect().check(&answer).unwrap();
            assert_eq!(kept, json!({"code": "c d", "state": "s-1"}), "{answer}");
        }
    }

    #[test]
    fn an_answer_of_another_question_place_or_service_is_refused_without_being_repeated() {
        let refused = [
            "https://app.example/back?code=c4n4ry&state=s-2",
            "https://app.example/back?code=c4n4ry",
            "https://evil.example/back?code=c4n4ry&state=s-1",
            "https://app.example/back/?code=c4n4ry&state=s-1",
            "https://app.example/back?code=c4n4ry&state=s-1&iss=https://evil.example",
            "https://app.example/back?code=c4n4ry&state=s-1&state=s-1",
            "https://app.example/back?error=access_denied&state=s-1&error_description=c4n4ry",
            "https://app.example/back?error=c4n4ry%21&state=s-1",
            "https://app.example/back?state=s-1",
            "c4n4ry",
        ];
        for answer in refused {
            let error = redirect().check(&json!(answer)).unwrap_err();
            assert!(!error.contains("c4n4ry"), "{error}");
        }
        let denied = redirect().check(&json!("https://app.example/back?error=access_denied&state=s-1"));
        assert!(denied.unwrap_err().contains("`access_denied`"));
        for answer in [json!(null), json!({}), json!(["c4n4ry"]), json!({"code": "c4n4ry"})] {
            redirect().check(&answer).unwrap_err();
        }
    }

    #[test]
    fn fields_are_found_in_each_form_and_must_be_usable() {
        let key = Expects::Fields { names: vec!["apiKey".to_owned()] };
        for answer in [
            json!("k"),
            json!({"apiKey": "k"}),
            json!({"api_key": "k", "more": 1}),
            json!({"exchangedAuthCredential": {"authType": "apiKey", "apiKey": "k"}}),
        ] {
            assert_eq!(key.check(&answer).unwrap(), json!({"apiKey": "k"}));
        }
        let basic = Expects::Fields { names: vec!["username".to_owned(), "password".to_owned()] };
        let given = json!({"http": {"scheme": "basic", "credentials": {"username": "ann", "password": "p"}}});
        assert_eq!(basic.check(&given).unwrap(), json!({"username": "ann", "password": "p"}));
        for answer in [json!("p"), json!({"username": "ann"}), json!({"username": "ann", "password": ""})] {
            basic.check(&answer).unwrap_err();
        }
        let error = key.check(&json!("c4n4ry\r\nX-Evil: 1")).unwrap_err();
        assert!(!error.contains("c4n4ry"), "{error}");
        key.check(&json!("k".repeat(MAX_LENGTH + 1))).unwrap_err();
    }
}
