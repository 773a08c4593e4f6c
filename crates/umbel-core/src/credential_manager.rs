//! The one place where credentials are looked up, renewed, asked for and given up.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use serde::{Deserialize, Serialize};
use serde_json::Value;
use smol_str::{SmolStr, format_smolstr};

use crate::auth::{AuthAnswer, AuthConfig, AuthRequest, Expects, Grant, Standing};
use crate::credential::{Credential, CredentialStore, InMemoryCredentials};
use crate::credential_watch::CredentialWatch;
use crate::error::{Error, ErrorKind, Result};
use crate::id::CallId;
use crate::interrupt::{Address, Answer, Asker, DecisionKind, Interrupt, Question};
use crate::run::Run;
use crate::tool_context::ToolContext;

/// How the layer begins that asks for a credential before a toolset is used. The name is google-adk's.
pub const TOOLSET_AUTH: &str = "_adk_toolset_auth_";
/// How the layer begins that asks for the credential of a call.
const CALL_AUTH: &str = "_credential/";

/// Credentials in a store: looked up, renewed before they expire, given up. Of several who want the same one at the same
/// time, one does the work and the others get what came of it.
pub struct CredentialManager {
    store: Arc<dyn CredentialStore>,
    /// Who is at work on a credential, by app, user and name.
    flights: Mutex<HashMap<[SmolStr; 3], Weak<Flight>>>,
}

/// An app, and a user of it.
pub type Whose<'a> = (&'a str, &'a str);

fn whose(run: &Run) -> Whose<'_> {
    (run.session_key().app(), run.session_key().user())
}

/// Whoever has it works on one credential.
type Flight = tokio::sync::Mutex<()>;

/// What is kept of a question until it is answered.
#[derive(Clone, Serialize, Deserialize)]
pub struct PendingAuth {
    /// What an answer must be.
    pub expects: Expects,
    /// What the method needs once there is one.
    pub pending: Value,
}

impl fmt::Debug for PendingAuth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PendingAuth(…)")
    }
}

/// What people said to a question for a credential, as the log has it: the secret itself is in the store.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct GivenAuth {
    /// The name of the credential.
    pub credential_key: SmolStr,
    /// The question whose answer it is. One answer may do for several.
    pub question: CallId,
    /// A digest of the answer, which tells nothing about it to those who have the log alone.
    pub answer_digest: SmolStr,
}

impl GivenAuth {
    /// Reads it from an answer in the log.
    pub fn of(answer: &Answer) -> Option<Self> {
        serde_json::from_value(answer.payload.clone()?).ok()
    }

    fn place(&self) -> SmolStr {
        format_smolstr!("_given/{}.{}", self.question, self.answer_digest)
    }
}

/// What this run has found out about credentials.
#[derive(Default)]
struct News(Mutex<Vec<(Address, SmolStr, Told)>>);

#[derive(Clone)]
enum Told {
    /// A person is being asked this.
    Asking(Box<AuthRequest>),
    /// It will not come: why.
    Denied(String),
}

impl News {
    fn of(run: &Run) -> Arc<Self> {
        run.values().get_or_insert_with(Self::default)
    }

    /// What is known of that credential for the calls of the same batch.
    fn get(&self, place: &Address, name: &str) -> Option<Told> {
        let news = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let about = news.iter().rev().find(|(of, known, _)| known == name && of.is_same_batch(place));
        about.map(|(_, _, told)| told.clone())
    }

    /// What a person is being asked for that credential, for whatever it is wanted.
    fn asked(&self, name: &str) -> Option<AuthRequest> {
        let news = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        news.iter().rev().find_map(|(_, known, told)| match told {
            Told::Asking(request) if known == name => Some((**request).clone()),
            _ => None,
        })
    }

    fn put(&self, place: &Address, name: &SmolStr, told: Told) {
        let mut news = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        news.push((place.clone(), name.clone(), told));
    }
}

impl CredentialManager {
    /// Manages the credentials of a store.
    pub fn new(store: Arc<dyn CredentialStore>) -> Self {
        Self { store, flights: Mutex::default() }
    }

    /// The store.
    pub fn store(&self) -> &Arc<dyn CredentialStore> {
        &self.store
    }

    /// A user's credential, if it can be had without asking a person.
    pub async fn find(&self, whose: Whose<'_>, auth: &AuthConfig, now: f64) -> Result<Option<Grant>> {
        if let Some(fixed) = auth.method.fixed() {
            return Ok(Some(Grant::new(&*auth.method, fixed)));
        }
        let flight = self.flight(whose, &auth.credential);
        let _turn = flight.lock().await;
        self.ready(whose, auth, now).await
    }

    /// Gives a credential up: the service is told, and it is forgotten here, even if the service did not want to know.
    pub async fn revoke(&self, whose: Whose<'_>, auth: &AuthConfig, now: f64) -> Result<()> {
        let flight = self.flight(whose, &auth.credential);
        let _turn = flight.lock().await;
        let Some(kept) = self.load(whose, &auth.credential).await? else { return Ok(()) };
        let told = auth.method.revoke(&kept, now).await;
        self.delete(whose, &auth.credential).await?;
        told
    }

    /// Keeps what is needed once a question is answered.
    pub async fn keep_pending(
        &self,
        whose: Whose<'_>,
        question: &CallId,
        pending: &PendingAuth,
    ) -> Result<()> {
        let value = serde_json::to_value(pending).map_err(|e| {
            Error::new(ErrorKind::Other, "what a question for a credential needs has no JSON form")
                .with_source(e)
        })?;
        self.save(whose, &pending_place(question), Credential::new(value)).await
    }

    /// What was kept for the answer to a question.
    pub async fn pending(&self, whose: Whose<'_>, question: &CallId) -> Result<Option<PendingAuth>> {
        let Some(kept) = self.load(whose, &pending_place(question)).await? else { return Ok(None) };
        let pending = PendingAuth::deserialize(kept.expose());
        // What it says is secret, and so is why it cannot be read.
        pending
            .map(Some)
            .map_err(|_| Error::new(ErrorKind::Corrupt, "what was kept for a question cannot be read"))
    }

    /// Keeps what a person gave, until it is used.
    pub async fn keep_given(&self, whose: Whose<'_>, given: &GivenAuth, value: Value) -> Result<()> {
        self.save(whose, &given.place(), Credential::new(value)).await
    }

    /// A secret of Umbel's own about a user, made if there is none.
    pub async fn own(
        &self,
        whose: Whose<'_>,
        name: &SmolStr,
        make: impl FnOnce() -> Result<Credential>,
    ) -> Result<Credential> {
        let flight = self.flight(whose, name);
        let _turn = flight.lock().await;
        if let Some(known) = self.load(whose, name).await? {
            return Ok(known);
        }
        let made = make()?;
        self.save(whose, name, made.clone()).await?;
        Ok(made)
    }

    /// The credential as it is kept, renewed if it must be. What another process renewed meanwhile is as good.
    async fn ready(&self, whose: Whose<'_>, auth: &AuthConfig, now: f64) -> Result<Option<Grant>> {
        let kept = self.load(whose, &auth.credential).await?;
        match auth.method.standing(kept.as_ref(), now) {
            Standing::Ready => Ok(kept.map(|kept| Grant::new(&*auth.method, kept))),
            Standing::Ask => Ok(None),
            Standing::Renew => self.renew(whose, auth, kept, now).await,
        }
    }

    async fn renew(
        &self,
        whose: Whose<'_>,
        auth: &AuthConfig,
        kept: Option<Credential>,
        now: f64,
    ) -> Result<Option<Grant>> {
        let renewed = auth.method.renew(kept.as_ref(), now).await;
        if let Ok(Some(new)) = renewed {
            self.save(whose, &auth.credential, new.clone()).await?;
            return Ok(Some(Grant::new(&*auth.method, new)));
        }
        let other = self.load(whose, &auth.credential).await?.filter(|other| Some(other) != kept.as_ref());
        match other.filter(|other| auth.method.standing(Some(other), now) == Standing::Ready) {
            Some(other) => Ok(Some(Grant::new(&*auth.method, other))),
            None => renewed.map(|_| None),
        }
    }

    /// Sees to it that a credential is not used again that its service refused. Gives another one if that is to be had.
    async fn refused(
        &self,
        whose: Whose<'_>,
        auth: &AuthConfig,
        refused: &Grant,
        now: f64,
    ) -> Result<Option<Grant>> {
        let kept = self.load(whose, &auth.credential).await?;
        if kept.as_ref() != Some(refused.credential()) {
            return self.ready(whose, auth, now).await;
        }
        let renewed = self.renew(whose, auth, kept, now).await?;
        if renewed.is_none() {
            self.delete(whose, &auth.credential).await?;
        }
        Ok(renewed)
    }

    /// The credential that a person's answer leads to. `None` if the answer was used before.
    async fn exchange(
        &self,
        whose: Whose<'_>,
        auth: &AuthConfig,
        given: &GivenAuth,
        now: f64,
    ) -> Result<Option<Grant>> {
        let Some(answer) = self.load(whose, &given.place()).await? else { return Ok(None) };
        let pending = self.pending(whose, &given.question).await?.map(|kept| kept.pending);
        let answer = AuthAnswer { given: answer.expose().clone(), pending: pending.unwrap_or_default() };
        let exchanged = auth.method.exchange(answer, now).await;
        if let Ok(credential) = &exchanged {
            self.save(whose, &auth.credential, credential.clone()).await?;
        }
        self.delete(whose, &given.place()).await?;
        self.delete(whose, &pending_place(&given.question)).await?;
        exchanged.map(|credential| Some(Grant::new(&*auth.method, credential)))
    }

    /// The lock by which one works on a credential at a time.
    fn flight(&self, whose: Whose<'_>, name: &SmolStr) -> Arc<Flight> {
        let mut flights = self.flights.lock().unwrap_or_else(PoisonError::into_inner);
        let place = [whose.0.into(), whose.1.into(), name.clone()];
        if let Some(flight) = flights.get(&place).and_then(Weak::upgrade) {
            return flight;
        }
        flights.retain(|_, flight| flight.strong_count() > 0);
        let flight = Arc::new(Flight::default());
        flights.insert(place, Arc::downgrade(&flight));
        flight
    }

    async fn load(&self, whose: Whose<'_>, name: &str) -> Result<Option<Credential>> {
        self.store.load(whose.0, whose.1, name).await
    }

    async fn save(&self, whose: Whose<'_>, name: &str, credential: Credential) -> Result<()> {
        self.store.save(whose.0, whose.1, name, credential).await
    }

    async fn delete(&self, whose: Whose<'_>, name: &str) -> Result<()> {
        self.store.delete(whose.0, whose.1, name).await
    }
}

/// In memory: credentials end with the program.
impl Default for CredentialManager {
    fn default() -> Self {
        Self::new(Arc::new(InMemoryCredentials::new()))
    }
}

impl fmt::Debug for CredentialManager {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CredentialManager({:?})", self.store)
    }
}

fn pending_place(question: &CallId) -> SmolStr {
    format_smolstr!("_asked/{question}")
}

impl ToolContext {
    /// The user's credential. If there is none, a person is asked: the error ends the run as *interrupted*, and the tool is
    /// called again, from its top, once there is an answer. With [`ToolSpec::auth`](crate::ToolSpec::auth) that has happened
    /// before the tool is called.
    pub async fn credential(&self, auth: &AuthConfig) -> Result<Grant> {
        let grant = obtain(self.run(), self.place_of(auth), auth, None).await?;
        CredentialWatch::note_call(self, auth);
        Ok(grant)
    }

    /// Another credential in the place of one that its service refused: renewed, or else asked for anew as by
    /// [`credential`](Self::credential).
    pub async fn credential_refused(&self, auth: &AuthConfig, refused: &Grant) -> Result<Grant> {
        let grant = obtain(self.run(), self.place_of(auth), auth, Some(refused)).await?;
        CredentialWatch::note_call(self, auth);
        Ok(grant)
    }

    fn place_of(&self, auth: &AuthConfig) -> Address {
        Address { layer: Some(format_smolstr!("{CALL_AUTH}{}", auth.credential)), ..self.address() }
    }
}

impl Run {
    /// The user's credential, for a toolset that is asked for its tools. If there is none, a person is asked: the error ends
    /// the run as *interrupted*, and the agent goes on once there is an answer.
    pub async fn credential(&self, auth: &AuthConfig) -> Result<Grant> {
        let grant = obtain(self, toolset_place(self, auth), auth, None).await?;
        CredentialWatch::note_run(self, auth);
        Ok(grant)
    }

    /// Another credential in the place of one that its service refused: renewed, or else asked for anew as by
    /// [`credential`](Self::credential).
    pub async fn credential_refused(&self, auth: &AuthConfig, refused: &Grant) -> Result<Grant> {
        let grant = obtain(self, toolset_place(self, auth), auth, Some(refused)).await?;
        CredentialWatch::note_run(self, auth);
        Ok(grant)
    }
}

fn toolset_place(run: &Run, auth: &AuthConfig) -> Address {
    let layer = Some(format_smolstr!("{TOOLSET_AUTH}{}", auth.credential));
    Address { layer, ..Address::new(run.source(), None) }
}

fn denied(message: String) -> Error {
    Error::new(ErrorKind::Tool, message)
}

/// The credential for whoever wants it at that place: what a person gave, what is kept, or an error by which a person is
/// asked.
async fn obtain(run: &Run, place: Address, auth: &AuthConfig, refused: Option<&Grant>) -> Result<Grant> {
    auth.check()?;
    let name = &auth.credential;
    if let Some(fixed) = auth.method.fixed() {
        return match refused {
            None => Ok(Grant::new(&*auth.method, fixed)),
            Some(_) => {
                Err(denied(format!("the service refused the credential `{name}` that the program has")))
            }
        };
    }
    let (manager, whose) = (&run.services().credentials, whose(run));
    let flight = manager.flight(whose, name);
    let _turn = flight.lock().await;
    let now = run.services().clock.now();
    let answered = last_answer(run, &place, name);
    let news = News::of(run);
    if let Some(given) = answered.as_ref().filter(|_| refused.is_none()).and_then(GivenAuth::of) {
        match manager.exchange(whose, auth, &given, now).await {
            Ok(Some(grant)) => return Ok(grant),
            Ok(None) => {}
            Err(error) => {
                let why = format!(
                    "the credential `{name}` was given, but could not be used: {}. Make the call again to have it asked for anew.",
                    error.message().trim_end_matches('.')
                );
                news.put(&place, name, Told::Denied(why.clone()));
                return Err(Error::new(ErrorKind::Tool, why).with_source(error));
            }
        }
    }
    let found = match refused {
        Some(refused) => manager.refused(whose, auth, refused, now).await?,
        None => manager.ready(whose, auth, now).await?,
    };
    if let Some(grant) = found {
        return Ok(grant);
    }
    if answered.is_some_and(|answer| answer.decision() == DecisionKind::Reject) {
        news.put(&place, name, Told::Denied(format!("nobody gave the credential `{name}` that is needed")));
    }
    match news.get(&place, name) {
        Some(Told::Denied(why)) => return Err(denied(why)),
        Some(Told::Asking(_)) if place.call.is_some() => return Err(Error::held()),
        _ => {}
    }
    if place.call.is_some() && run.open_questions().iter().any(|asked| is_about(asked, &place, name)) {
        return Err(Error::held());
    }
    // Agents that work side by side ask the same: then one sign-in does for all of them.
    let request = match news.asked(name) {
        Some(request) => request,
        None => auth.method.ask(now).await?,
    };
    Err(ask(run, &place, auth, request).await?)
}

/// The error by which a person is asked.
async fn ask(run: &Run, place: &Address, auth: &AuthConfig, request: AuthRequest) -> Result<Error> {
    let id = run.services().ids.call();
    let pending = PendingAuth { expects: request.expects.clone(), pending: request.pending.clone() };
    run.services().credentials.keep_pending(whose(run), &id, &pending).await?;
    News::of(run).put(place, &auth.credential, Told::Asking(Box::new(request.clone())));
    let answers = run.values().answers(run.source());
    let nth = answers.iter().filter(|(asked, _)| asked.address.is_place(place)).count();
    let question = Question {
        id: Some(id),
        response_schema: request.schema,
        expires_in: request.expires_in,
        payload: Some(auth.shown(&request.shown)),
        ..Question::new(Question::CREDENTIAL, request.message)
    };
    let by = place.layer.clone().map_or(Asker::Itself, Asker::Layer);
    Ok(Error::asked(question, Some(by), u32::try_from(nth).unwrap_or(u32::MAX)))
}

/// Whether a question is for that credential, for a call of the same batch or for the same toolsets.
fn is_about(asked: &Interrupt, place: &Address, name: &str) -> bool {
    asked.credential() == Some(name) && asked.address.inner.is_none() && asked.address.is_same_batch(place)
}

/// What people said last to a question for that credential.
fn last_answer(run: &Run, place: &Address, name: &str) -> Option<Answer> {
    let answers = run.values().answers(run.source());
    let (_, answer) = answers.into_iter().rfind(|(asked, _)| is_about(asked, place, name))?;
    Some(answer)
}
