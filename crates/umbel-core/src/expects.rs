//! The check of what people give as a credential.

use serde_json::Value;

use crate::auth::Expects;
use crate::json::Object;

/// No secret is longer.
const MAX_LENGTH: usize = 16 * 1024;

impl Expects {
    /// What is to be kept of an answer. It may be google-adk's `AuthConfig`, the credential in it, or just the text that was
    /// asked for. What else it holds, such as endpoints, is nobody's business. A text may be the JSON of one of these; any
    /// other text is what was asked for, be it JSON. The error says why not, without the answer.
    pub fn check(&self, answer: &Value) -> Result<Value, String> {
        let read = answer.as_str().and_then(|text| serde_json::from_str::<Value>(text).ok());
        let read = read.filter(|read| self.is_named_in(exchanged(read)));
        let answer = exchanged(read.as_ref().unwrap_or(answer));
        match self {
            Self::Redirect { uri, state, issuer } => {
                let parameters = parameters(answer, uri)?;
                check_redirect(&parameters, state, issuer.as_deref())?;
                Ok(Value::Object(parameters))
            }
            Self::Fields { names, ascii } => {
                let field = |name| field(answer, name, names.len(), *ascii);
                let fields = names.iter().map(|name| Ok((name.clone(), field(name)?)));
                Ok(Value::Object(fields.collect::<Result<Object, String>>()?))
            }
        }
    }

    /// Whether an object names what is asked for.
    fn is_named_in(&self, answer: &Value) -> bool {
        let is_there = |name: &str| text(answer, name).is_some();
        match self {
            Self::Redirect { .. } => ["authResponseUri", "authCode", "code"].into_iter().any(is_there),
            Self::Fields { names, .. } => names.iter().any(|name| is_there(name)),
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

/// A text that can be a secret.
fn usable(text: &str, what: &str) -> Result<(), String> {
    if text.is_empty() {
        return Err(format!("{what} is empty"));
    }
    readable(text, what)
}

fn readable(text: &str, what: &str) -> Result<(), String> {
    if text.len() > MAX_LENGTH {
        return Err(format!("{what} is longer than {MAX_LENGTH} bytes"));
    }
    if text.chars().any(char::is_control) {
        return Err(format!("{what} has control characters in it, such as an end of line"));
    }
    Ok(())
}

fn field(answer: &Value, name: &str, of: usize, ascii: bool) -> Result<Value, String> {
    let alone = answer.as_str().filter(|_| of == 1);
    let Some(given) = alone.or_else(|| text(answer, name)) else {
        return Err(format!("`{name}` is missing"));
    };
    // Who copies a key often has a space or an end of line with it.
    let given = if ascii { given.trim() } else { given };
    usable(given, &format!("`{name}`"))?;
    if ascii && !given.is_ascii() {
        return Err(format!("`{name}` has letters in it that cannot go into a header: copy it once more"));
    }
    Ok(given.into())
}

/// The parameters of the address that the browser was sent back to.
fn parameters(answer: &Value, uri: &str) -> Result<Object, String> {
    let address = answer.as_str().or_else(|| text(answer, "authResponseUri"));
    if let Some(address) = address {
        usable(address, "the address")?;
        let (base, query) = split(address);
        if !is_same_place(base, split(uri).0) {
            return Err("the address is not the one that the browser was to be sent back to".to_owned());
        }
        let mut parameters = Object::new();
        for (name, value) in form_urlencoded::parse(query.as_bytes()) {
            readable(&value, "a parameter of the address")?;
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

/// An address without its query, and the query.
fn split(address: &str) -> (&str, &str) {
    let address = address.split_once('#').map_or(address, |(address, _)| address);
    address.split_once('?').unwrap_or((address, ""))
}

/// Whether two addresses are of the same place: browsers write them in their own way.
fn is_same_place(one: &str, other: &str) -> bool {
    match (Place::of(one), Place::of(other)) {
        (Some(one), Some(other)) => one == other,
        // Such as `app.example:/back`, which browsers leave as it is.
        _ => one == other,
    }
}

/// Where an address leads to.
#[derive(PartialEq)]
struct Place<'a> {
    scheme: String,
    host: String,
    port: &'a str,
    path: &'a str,
}

impl<'a> Place<'a> {
    fn of(address: &'a str) -> Option<Self> {
        let (scheme, rest) = address.split_once("://")?;
        let scheme = scheme.to_ascii_lowercase();
        let at = rest.find('/').unwrap_or(rest.len());
        let (authority, path) = rest.split_at_checked(at)?;
        // Digits after the last colon: there are others in addresses of IPv6.
        let is_port = |port: &str| port.bytes().all(|byte| byte.is_ascii_digit());
        let named = authority.rsplit_once(':').filter(|(_, port)| is_port(port));
        let (host, port) = named.unwrap_or((authority, ""));
        let port = match (scheme.as_str(), port) {
            ("http", "80") | ("https", "443") => "",
            (_, port) => port,
        };
        let path = if path.is_empty() { "/" } else { path };
        Some(Self { scheme, host: host.to_ascii_lowercase(), port, path })
    }
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
        let key = Expects::Fields { names: vec!["apiKey".to_owned()], ascii: true };
        for answer in [
            json!("k"),
            json!({"apiKey": "k"}),
            json!({"api_key": "k", "more": 1}),
            json!({"exchangedAuthCredential": {"authType": "apiKey", "apiKey": "k"}}),
        ] {
            assert_eq!(key.check(&answer).unwrap(), json!({"apiKey": "k"}));
        }
        let names = vec!["username".to_owned(), "password".to_owned()];
        let basic = Expects::Fields { names, ascii: false };
        let given = json!({"http": {"scheme": "basic", "credentials": {"username": "ann", "password": "p"}}});
        assert_eq!(basic.check(&given).unwrap(), json!({"username": "ann", "password": "p"}));
        for answer in [json!("p"), json!({"username": "ann"}), json!({"username": "ann", "password": ""})] {
            basic.check(&answer).unwrap_err();
        }
        let error = key.check(&json!("c4n4ry\r\nX-Evil: 1")).unwrap_err();
        assert!(!error.contains("c4n4ry"), "{error}");
        key.check(&json!("k".repeat(MAX_LENGTH + 1))).unwrap_err();
    }

    #[test]
    fn the_address_is_that_of_the_question_however_a_browser_writes_it() {
        for (uri, back) in [
            ("http://localhost", "http://localhost/?code=c&state=s-1"),
            ("http://localhost:8000", "http://LOCALHOST:8000/?code=c&state=s-1"),
            ("https://App.example/back", "https://app.example:443/back?code=c&state=s-1"),
            ("HTTP://app.example:80/", "http://app.example?code=c&state=s-1"),
            ("http://[::1]:8000/back", "http://[::1]:8000/back?code=c&state=s-1"),
            ("app.example:/back", "app.example:/back?code=c&state=s-1"),
            ("https://app.example/back?tenant=1", "https://app.example/back?tenant=1&code=c&state=s-1#"),
        ] {
            let expects = Expects::Redirect { uri: uri.to_owned(), state: "s-1".to_owned(), issuer: None };
            assert_eq!(expects.check(&json!(back)).unwrap()["code"], "c", "{uri}");
        }
        for (uri, back) in [
            ("https://app.example/back", "http://app.example/back?code=c&state=s-1"),
            ("https://app.example/back", "https://app.example/Back?code=c&state=s-1"),
            ("https://app.example/back", "https://app.example:8443/back?code=c&state=s-1"),
            ("https://app.example/back", "https://app.example:80/back?code=c&state=s-1"),
            ("https://app.example/back", "https://x@app.example/back?code=c&state=s-1"),
            ("https://app.example", "https://app.example.evil.example/?code=c&state=s-1"),
            ("http://[::1]", "http://[::1:80]/?code=c&state=s-1"),
            ("app.example:/back", "APP.example:/back?code=c&state=s-1"),
        ] {
            let expects = Expects::Redirect { uri: uri.to_owned(), state: "s-1".to_owned(), issuer: None };
            expects.check(&json!(back)).unwrap_err();
        }
    }

    #[test]
    fn only_the_code_and_the_state_must_say_something() {
        let back = "https://app.example/back?code=c&state=s-1&scope=&session_state=";
        assert_eq!(redirect().check(&json!(back)).unwrap()["scope"], "");
        redirect().check(&json!("https://app.example/back?code=&state=s-1")).unwrap_err();
        redirect().check(&json!("https://app.example/back?code=c&state=")).unwrap_err();
    }

    #[test]
    fn a_text_that_is_json_is_a_secret_unless_it_names_what_is_asked_for() {
        let key = Expects::Fields { names: vec!["apiKey".to_owned()], ascii: true };
        for text in ["123456", "true", "null", "[1]", r#"{"type":"service_account"}"#, r#""quoted""#] {
            assert_eq!(key.check(&json!(text)).unwrap(), json!({"apiKey": text}));
        }
        for text in [r#"{"apiKey":"k"}"#, r#"{"exchangedAuthCredential":{"api_key":"k"}}"#] {
            assert_eq!(key.check(&json!(text)).unwrap(), json!({"apiKey": "k"}));
        }
        let back = json!({"authResponseUri": "https://app.example/back?code=c&state=s-1"});
        assert_eq!(redirect().check(&json!(back.to_string())).unwrap()["code"], "c");
    }

    #[test]
    fn what_goes_into_a_header_is_trimmed_and_must_be_able_to() {
        let key = Expects::Fields { names: vec!["apiKey".to_owned()], ascii: true };
        assert_eq!(key.check(&json!(" k k\r\n")).unwrap(), json!({"apiKey": "k k"}));
        for bad in ["k\u{e9}y", "k\u{200b}", "k\nk", "\u{7f}", " \n"] {
            key.check(&json!(bad)).unwrap_err();
        }
        let basic = Expects::Fields { names: vec!["password".to_owned()], ascii: false };
        assert_eq!(basic.check(&json!(" p\u{e9} ")).unwrap(), json!({"password": " p\u{e9} "}));
    }
}
