//! The one place where credentials are looked up, renewed, asked for and given up.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use smol_str::{SmolStr, format_smolstr};
use tokio::time::{Instant, sleep};

use crate::auth::{AuthAnswer, AuthConfig, AuthRequest, Expects, Grant, Standing};
use crate::credential::{Credential, CredentialStore, InMemoryCredentials};
pub use crate::credential_turn::Whose;
use crate::credential_turn::{Turn, Turns, alone};
use crate::credential_watch::CredentialWatch;
use crate::error::{Error, ErrorKind, Result};
use crate::id::CallId;
use crate::interrupt::{Address, Answer, Asker, DecisionKind, Interrupt, NEEDS_CREDENTIAL, Question, Raised};
use crate::run::Run;
use crate::spawn_on_drop::SpawnOnDrop;
use crate::tool_context::ToolContext;

/// How the layer begins that asks for a credential before a toolset is used. The name is google-adk's.
pub const TOOLSET_AUTH: &str = "_adk_toolset_auth_";
/// How the layer begins that asks for the credential of a call.
const CALL_AUTH: &str = "_credential/";
/// How long a store that fails is tried again with what a service gave.
const KEEP_TRYING: Duration = Duration::from_secs(30);
/// The time between two tries.
const BETWEEN_TRIES: Duration = Duration::from_millis(250);

/// Credentials in a store: looked up, renewed before they expire, given up. Of several who want the same one at the same time, in
/// this process or another, one does the work and the others get what came of it.
#[derive(Clone)]
pub struct CredentialManager {
    store: Arc<dyn CredentialStore>,
    turns: Turns,
}

fn whose(run: &Run) -> Whose<'_> {
    (run.session_key().app(), run.session_key().user())
}

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
        Self { store, turns: Turns::default() }
    }

    /// The store.
    pub fn store(&self) -> &Arc<dyn CredentialStore> {
        &self.store
    }

    /// A user's credential, if it can be used as it is kept. Nothing is renewed, and nobody is asked.
    pub async fn look(&self, whose: Whose<'_>, auth: &AuthConfig, now: f64) -> Result<Option<Grant>> {
        if let Some(fixed) = auth.method.fixed() {
            return Ok(Some(Grant::new(&*auth.method, fixed)));
        }
        let kept = self.load(whose, &auth.credential).await?;
        let usable = kept.filter(|kept| auth.method.standing(Some(kept), now) == Standing::Ready);
        Ok(usable.map(|kept| Grant::new(&*auth.method, kept)))
    }

    /// Gives a credential up: the service is told, if the method can, and it is forgotten here, even if the service did not want
    /// to know.
    pub async fn revoke(&self, whose: Whose<'_>, auth: &AuthConfig, now: f64) -> Result<()> {
        let turn = self.turns.take(whose, &auth.credential).await;
        let (manager, own) = (self.clone(), Of { whose, auth, now, turn: &turn }.to_owned());
        let revoked = SpawnOnDrop::boxed(async move {
            let Of { whose, auth, now, .. } = own.lent();
            let work = async {
                let Some(kept) = manager.load(whose, &auth.credential).await? else { return Ok(()) };
                let told = auth.method.revoke(&kept, now).await;
                manager.delete(whose, &auth.credential).await?;
                told
            };
            alone(&*manager.store, whose, &auth.credential, work).await
        });
        revoked.await
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

    /// Forgets what a person gave: it is not used.
    pub async fn forget_given(&self, whose: Whose<'_>, given: &GivenAuth) -> Result<()> {
        self.delete(whose, &given.place()).await
    }

    /// Forgets what was kept for the answer to a question that needs none any more.
    pub async fn forget_pending(&self, whose: Whose<'_>, question: &CallId) -> Result<()> {
        self.delete(whose, &pending_place(question)).await
    }

    /// A secret of Umbel's own about a user, made if there is none.
    pub async fn own(
        &self,
        whose: Whose<'_>,
        name: &str,
        make: impl Fn() -> Result<Credential>,
    ) -> Result<Credential> {
        loop {
            if let Some(known) = self.load(whose, name).await? {
                return Ok(known);
            }
            let made = make()?;
            if self.replace(whose, name, None, Some(made.clone())).await? {
                return Ok(made);
            }
        }
    }

    /// The credential as it is kept, renewed if it must be.
    async fn ready(&self, of: &Of<'_>) -> Result<Option<Grant>> {
        let kept = self.load(of.whose, &of.auth.credential).await?;
        match of.standing(kept.as_ref()) {
            Standing::Ready => Ok(kept.map(|kept| of.grant(kept))),
            Standing::Ask => Ok(None),
            Standing::Renew => self.renew(of, None).await,
        }
    }

    /// A credential that can be used, renewed if what is kept cannot or was refused by its service. One that was refused and
    /// cannot be renewed is forgotten.
    async fn renew(&self, of: &Of<'_>, refused: Option<&Grant>) -> Result<Option<Grant>> {
        if let Some(failure) = of.turn.failure() {
            return Err(failure);
        }
        let (manager, own) = (self.clone(), of.to_owned());
        let refused = refused.map(|refused| refused.credential().clone());
        // A service that gave a new refresh token may not know the old one any more.
        let renewed = SpawnOnDrop::boxed(async move {
            let of = own.lent();
            let work = manager.renew_alone(&of, refused.as_ref());
            let renewed = alone(&*manager.store, of.whose, &of.auth.credential, work).await;
            of.turn.note(&renewed);
            renewed
        });
        Ok(renewed.await?.map(|credential| of.grant(credential)))
    }

    async fn renew_alone(&self, of: &Of<'_>, refused: Option<&Credential>) -> Result<Option<Credential>> {
        let (name, method) = (&of.auth.credential, &of.auth.method);
        let kept = self.load(of.whose, name).await?;
        let is_refused = kept.is_some() && kept.as_ref() == refused;
        // Another process may have been first.
        match of.standing(kept.as_ref()) {
            Standing::Ready if !is_refused => return Ok(kept),
            Standing::Ask if !is_refused => return Ok(None),
            _ => {}
        }
        let new = method.renew(kept.as_ref(), of.now).await?;
        if new.is_none() && !is_refused {
            return Ok(None);
        }
        if self.keep(of.whose, name, kept.as_ref(), new.clone()).await? {
            return Ok(new);
        }
        // Somebody has signed in anew, or has given it up: that counts.
        let there = self.load(of.whose, name).await?;
        if let (Some(new), None) = (new, &there) {
            // If the service does not listen, it expires.
            _ = method.revoke(&new, of.now).await;
        }
        Ok(there.filter(|there| of.standing(Some(there)) == Standing::Ready))
    }

    /// The credential that a person's answer leads to. `None` if the answer was used before.
    async fn exchange(&self, of: &Of<'_>, given: &GivenAuth) -> Result<Option<Grant>> {
        // Each call of a run that went on with an answer comes by here.
        if self.load(of.whose, &given.place()).await?.is_none() {
            return Ok(None);
        }
        let (manager, own, given) = (self.clone(), of.to_owned(), given.clone());
        // A code can be redeemed once.
        let exchanged = SpawnOnDrop::boxed(async move {
            let of = own.lent();
            let work = manager.redeem(&of, &given);
            alone(&*manager.store, of.whose, &of.auth.credential, work).await
        });
        Ok(exchanged.await?.map(|credential| of.grant(credential)))
    }

    async fn redeem(&self, of: &Of<'_>, given: &GivenAuth) -> Result<Option<Credential>> {
        let (place, name) = (given.place(), &of.auth.credential);
        let Some(answer) = self.load(of.whose, &place).await? else { return Ok(None) };
        let exchanged = match redeemed(&answer) {
            // A process ended before it was done with it.
            Some(exchanged) => {
                let kept = self.load(of.whose, name).await?;
                let is_newer =
                    |kept: &Credential| *kept != exchanged && of.standing(Some(kept)) == Standing::Ready;
                Ok(kept.filter(is_newer).unwrap_or(exchanged))
            }
            None => {
                let pending = self.pending(of.whose, &given.question).await?.map(|kept| kept.pending);
                let given = answer.expose().clone();
                let given = AuthAnswer { given, pending: pending.unwrap_or_default() };
                let exchanged = of.auth.method.exchange(given, of.now).await;
                if let Ok(new) = &exchanged {
                    let noted = Some(in_place_of_answer(new));
                    if !self.keep(of.whose, &place, Some(&answer), noted).await? {
                        // All of the user's was erased meanwhile: this is not to be kept either.
                        _ = of.auth.method.revoke(new, of.now).await;
                        return Ok(None);
                    }
                }
                exchanged
            }
        };
        if let Ok(credential) = &exchanged {
            self.save(of.whose, name, credential.clone()).await?;
            if self.load(of.whose, &place).await?.is_none() {
                // All of the user's was erased just before: this must not stay behind.
                if self.replace(of.whose, name, Some(credential), None).await? {
                    _ = of.auth.method.revoke(credential, of.now).await;
                }
                return Ok(None);
            }
        }
        self.delete(of.whose, &place).await?;
        self.forget_pending(of.whose, &given.question).await?;
        exchanged.map(Some)
    }

    /// Stores what a service gave in the place of what it was given for. The service may not take that a second time, and nobody
    /// else has what it gave: a store that fails is tried again for a while.
    async fn keep(
        &self,
        whose: Whose<'_>,
        name: &str,
        before: Option<&Credential>,
        after: Option<Credential>,
    ) -> Result<bool> {
        let until = Instant::now() + KEEP_TRYING;
        loop {
            match self.replace(whose, name, before, after.clone()).await {
                Err(_) if Instant::now() < until => sleep(BETWEEN_TRIES).await,
                done => return done,
            }
        }
    }

    async fn load(&self, whose: Whose<'_>, name: &str) -> Result<Option<Credential>> {
        self.store.load(whose.0, whose.1, name).await
    }

    async fn save(&self, whose: Whose<'_>, name: &str, credential: Credential) -> Result<()> {
        self.store.save(whose.0, whose.1, name, credential).await
    }

    async fn replace(
        &self,
        whose: Whose<'_>,
        name: &str,
        before: Option<&Credential>,
        after: Option<Credential>,
    ) -> Result<bool> {
        self.store.replace(whose.0, whose.1, name, before, after).await
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

/// The credential that is worked on, for whom and when.
struct Of<'a> {
    whose: Whose<'a>,
    auth: &'a AuthConfig,
    now: f64,
    turn: &'a Arc<Turn>,
}

/// The same for work that outlives who began it. It has its turn until it is done.
struct OwnOf {
    whose: (String, String),
    auth: AuthConfig,
    now: f64,
    turn: Arc<Turn>,
}

impl Of<'_> {
    fn standing(&self, kept: Option<&Credential>) -> Standing {
        self.auth.method.standing(kept, self.now)
    }

    fn grant(&self, credential: Credential) -> Grant {
        Grant::new(&*self.auth.method, credential)
    }

    fn to_owned(&self) -> OwnOf {
        let whose = (self.whose.0.to_owned(), self.whose.1.to_owned());
        OwnOf { whose, auth: self.auth.clone(), now: self.now, turn: self.turn.clone() }
    }
}

impl OwnOf {
    fn lent(&self) -> Of<'_> {
        Of { whose: (&self.whose.0, &self.whose.1), auth: &self.auth, now: self.now, turn: &self.turn }
    }
}

/// What stands in the place of an answer once its credential is there: answers are objects, and this is none.
fn in_place_of_answer(credential: &Credential) -> Credential {
    Credential::new(Value::Array(vec![credential.expose().clone()]))
}

/// The credential that stands in the place of an answer.
fn redeemed(kept: &Credential) -> Option<Credential> {
    kept.expose().as_array()?.first().cloned().map(Credential::new)
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

/// The call waits for the answer to the question of another one.
fn waits_with_another() -> Error {
    Error::new(ErrorKind::Interrupted, NEEDS_CREDENTIAL).with_source(Raised::Held)
}

fn denied(message: String) -> Error {
    Error::new(ErrorKind::Denied, message)
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
    let turn = manager.turns.take(whose, name).await;
    let now = run.services().clock.now();
    let of = Of { whose, auth, now, turn: &turn };
    let answered = last_answer(run, &place, name);
    let news = News::of(run);
    if let Some(given) = answered.as_ref().filter(|_| refused.is_none()).and_then(GivenAuth::of) {
        match manager.exchange(&of, &given).await {
            Ok(Some(grant)) => return Ok(grant),
            Ok(None) => {}
            Err(error) => {
                let why = format!(
                    "the credential `{name}` was given, but could not be used: {}. Make the call again to have it asked for anew.",
                    error.message().trim_end_matches('.')
                );
                news.put(&place, name, Told::Denied(why.clone()));
                return Err(denied(why).with_source(error));
            }
        }
    }
    let found = match refused {
        Some(refused) => manager.renew(&of, Some(refused)).await?,
        None => manager.ready(&of).await?,
    };
    if let Some(grant) = found {
        return Ok(grant);
    }
    if answered.is_some_and(|answer| answer.decision() == DecisionKind::Reject) {
        news.put(&place, name, Told::Denied(format!("nobody gave the credential `{name}` that is needed")));
    }
    match news.get(&place, name) {
        Some(Told::Denied(why)) => return Err(denied(why)),
        Some(Told::Asking(_)) if place.call.is_some() => return Err(waits_with_another()),
        _ => {}
    }
    if place.call.is_some() && run.open_questions().iter().any(|asked| is_about(asked, &place, name)) {
        return Err(waits_with_another());
    }
    // Agents that work side by side ask the same: then one sign-in does for all of them.
    let request = match news.asked(name) {
        Some(request) => request,
        None => {
            if let Some(failure) = turn.failure() {
                return Err(failure);
            }
            let asked = auth.method.ask(now).await;
            turn.note(&asked);
            asked?
        }
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

/// What people said last to a question for that credential. What they gave for a call is good for its toolset, which is asked
/// for its tools before the call is made.
fn last_answer(run: &Run, place: &Address, name: &str) -> Option<Answer> {
    let answers = run.values().answers(run.source());
    let is_given = |asked: &Interrupt, answer: &Answer| {
        let is_it = asked.credential() == Some(name) && asked.address.inner.is_none();
        is_it && place.call.is_none() && GivenAuth::of(answer).is_some()
    };
    let about =
        |(asked, answer): &(Interrupt, Answer)| is_about(asked, place, name) || is_given(asked, answer);
    answers.into_iter().rfind(about).map(|(_, answer)| answer)
}

#[cfg(test)]
#[path = "credential_manager_tests.rs"]
mod tests;
