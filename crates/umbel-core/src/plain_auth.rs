//! Credentials that are used as they are: API keys, bearer tokens, names with passwords.

use std::fmt;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use smol_str::SmolStr;

use crate::auth::{AuthAnswer, AuthMethod, AuthRequest, Expects, HttpAuth, HttpPlace, Standing};
use crate::credential::Credential;
use crate::error::Result;
use crate::work::Work;

/// A secret that is used as it is: an API key, a bearer token, or a name with a password. The program has it, or a person
/// is asked for it once.
#[derive(Clone)]
pub struct PlainAuth {
    form: Form,
    fixed: Option<Credential>,
    question: Option<String>,
}

#[derive(Clone, Debug)]
enum Form {
    ApiKey(HttpPlace, SmolStr),
    Bearer,
    Basic,
}

impl PlainAuth {
    /// An API key in a header, a parameter or a cookie of that name.
    pub fn api_key(place: HttpPlace, name: impl Into<SmolStr>) -> Self {
        Self::of(Form::ApiKey(place, name.into()))
    }

    /// A token, as `Authorization: Bearer …`.
    pub fn bearer() -> Self {
        Self::of(Form::Bearer)
    }

    /// A name with a password, as `Authorization: Basic …`.
    pub fn basic() -> Self {
        Self::of(Form::Basic)
    }

    fn of(form: Form) -> Self {
        Self { form, fixed: None, question: None }
    }

    /// The program has it: the key or token; for [`basic`](Self::basic) an object with `username` and `password`. Nobody is
    /// asked.
    pub fn fixed(mut self, secret: impl Into<Value>) -> Self {
        self.fixed = Some(Credential::new(secret));
        self
    }

    /// What people are asked, in your words: such as where the key is found.
    pub fn question(mut self, question: impl Into<String>) -> Self {
        self.question = Some(question.into());
        self
    }

    fn names(&self) -> &'static [&'static str] {
        match self.form {
            Form::ApiKey(..) => &["apiKey"],
            Form::Bearer => &["token"],
            Form::Basic => &["username", "password"],
        }
    }

    fn expects(&self) -> Expects {
        let names = self.names().iter().map(|name| (*name).to_owned()).collect();
        // A name with its password is encoded before it goes into a header.
        Expects::Fields { names, ascii: !matches!(self.form, Form::Basic) }
    }

    /// The texts of a credential, however it came into the store.
    fn texts(&self, credential: &Credential) -> Option<Value> {
        self.expects().check(credential.expose()).ok()
    }
}

impl AuthMethod for PlainAuth {
    fn scheme(&self) -> Value {
        match &self.form {
            Form::ApiKey(place, name) => json!({"type": "apiKey", "in": place, "name": name}),
            Form::Bearer => json!({"type": "http", "scheme": "bearer"}),
            Form::Basic => json!({"type": "http", "scheme": "basic"}),
        }
    }

    fn fixed(&self) -> Option<Credential> {
        self.fixed.clone()
    }

    fn standing(&self, kept: Option<&Credential>, _now: f64) -> Standing {
        match kept.and_then(|kept| self.texts(kept)) {
            Some(_) => Standing::Ready,
            None => Standing::Ask,
        }
    }

    fn http(&self, credential: &Credential) -> Option<HttpAuth> {
        let texts = self.texts(credential)?;
        let text = |name: &str| texts.get(name).and_then(Value::as_str);
        Some(match &self.form {
            Form::ApiKey(place, name) => HttpAuth::new(*place, name.clone(), text("apiKey")?),
            Form::Bearer => HttpAuth::bearer(text("token")?),
            Form::Basic => {
                let pair = STANDARD.encode(format!("{}:{}", text("username")?, text("password")?));
                HttpAuth::new(HttpPlace::Header, "Authorization", format!("Basic {pair}"))
            }
        })
    }

    fn ask(&self, _now: f64) -> Work<'_, Result<AuthRequest>> {
        let (what, shown) = match &self.form {
            Form::ApiKey(..) => ("an API key", json!({"authType": "apiKey"})),
            Form::Bearer => ("a token", json!({"authType": "http", "http": {"scheme": "bearer"}})),
            Form::Basic => {
                ("a name and a password", json!({"authType": "http", "http": {"scheme": "basic"}}))
            }
        };
        let names = self.names();
        let properties =
            names.iter().map(|name| ((*name).to_owned(), json!({"type": "string", "minLength": 1})));
        let properties = Value::Object(properties.collect());
        Work::done(Ok(AuthRequest {
            message: self.question.clone().unwrap_or_else(|| format!("Give {what} to go on.")),
            shown,
            schema: Some(json!({"type": "object", "properties": properties, "required": names})),
            expects: self.expects(),
            pending: Value::Null,
            expires_in: None,
        }))
    }

    fn exchange<'a>(&'a self, answer: AuthAnswer, _now: f64) -> Work<'a, Result<Credential>> {
        Work::done(Ok(Credential::new(answer.given)))
    }
}

impl fmt::Debug for PlainAuth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PlainAuth({:?})", self.form)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn carried(method: &PlainAuth, credential: Value) -> Option<(HttpPlace, SmolStr, String)> {
        let http = method.http(&Credential::new(credential))?;
        Some((http.place, http.name.clone(), http.expose().to_owned()))
    }

    #[test]
    fn each_form_goes_where_it_belongs() {
        for place in [HttpPlace::Header, HttpPlace::Query, HttpPlace::Cookie] {
            let carried = carried(&PlainAuth::api_key(place, "key"), json!("k"));
            assert_eq!(carried, Some((place, "key".into(), "k".to_owned())));
        }
        let (place, header) = (HttpPlace::Header, SmolStr::from("Authorization"));
        let bearer = carried(&PlainAuth::bearer(), json!({"token": "t"}));
        assert_eq!(bearer, Some((place, header.clone(), "Bearer t".to_owned())));
        let basic = carried(&PlainAuth::basic(), json!({"username": "ann", "password": "pass"}));
        assert_eq!(basic, Some((place, header, "Basic YW5uOnBhc3M=".to_owned())));
        assert_eq!(carried(&PlainAuth::basic(), json!("no")), None);
    }

    #[test]
    fn what_is_kept_in_another_form_is_asked_for_again() {
        let kept = Credential::new(json!({"token": "t"}));
        assert_eq!(PlainAuth::bearer().standing(Some(&kept), 0.0), Standing::Ready);
        assert_eq!(PlainAuth::basic().standing(Some(&kept), 0.0), Standing::Ask);
        assert_eq!(PlainAuth::bearer().standing(None, 0.0), Standing::Ask);
        // It would be refused by every request that it goes along with.
        let kept = Credential::new(json!({"token": "t\u{e9}"}));
        assert_eq!(PlainAuth::bearer().standing(Some(&kept), 0.0), Standing::Ask);
    }

    #[test]
    fn nothing_of_it_shows() {
        let method = PlainAuth::bearer().fixed("c4n4ry");
        let http = method.http(&Credential::new("c4n4ry"));
        let shown = format!("{method:?} {http:?} {}", method.scheme());
        assert!(!shown.contains("c4n4ry"), "{shown}");
    }
}
