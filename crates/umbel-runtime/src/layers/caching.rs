//! Answers a call that was answered before.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use serde_json::Value;
use smol_str::SmolStr;
use tokio::sync::{Mutex as AsyncMutex, OwnedMutexGuard};
use umbel_core::{
    Actions, CredentialWatch, Handler, Hooks, NextTool, Object, Result, ToolCall, ToolContext, ToolError,
    ToolOutput, ToolResult, ToolSpec, ToolValue, Work,
};

use super::cache_store::{CacheKey, CacheStore, CachedAnswer, MemoryCache, digest};
use super::canonical::{write_object, write_text, write_value};
use super::held::{Held, Holdings};
use super::nested::{holding, is_held};
use super::user_tools::UserTools;
use super::{CallScope, at_end, is_control, wait};

const HIT: &str = "cache_hit";
const STORED: &str = "cache_stored";
const BYPASS: &str = "cache_bypass";

/// How many schemas are remembered by their digest.
const SCHEMAS: usize = 64;

/// Answers a call that was answered before, without calling the tool.
///
/// Two calls are the same if tool, schema, scope and arguments are. The order of an object's keys does not matter, and
/// top-level arguments whose names begin with `__` do not count. Of calls that are the same and made at once one is made,
/// and the others wait for it; if it is dropped another one is made, and if it fails each is made by itself.
///
/// Only success is kept, for five minutes, for the user it was given to. Only tools that are read-only or idempotent are
/// asked less often, unless [`all_tools`](Self::all_tools) or [`tools`](Self::tools) say otherwise; never those that a
/// person must agree to, and never those whose answer comes later. A call that did something besides answering, such as
/// writing state, is not kept either. What a call's metadata said is not said again. A result that was streamed is kept
/// too; its news are not.
///
/// A result tells in its metadata how it came about; see [`CacheStatus`].
pub struct Caching {
    store: Arc<dyn CacheStore>,
    ttl: Duration,
    scope: CallScope,
    tools: Tools,
    ignored: Vec<SmolStr>,
    schemas: Mutex<Vec<Schema>>,
    flights: Arc<Holdings<u128, Arc<AsyncMutex<Flight>>>>,
    counts: Arc<Counts>,
    /// The metadata of a hit: cheaper to copy than to make.
    hit: Object,
}

/// Which tools are asked less often.
#[derive(Debug)]
enum Tools {
    Safe,
    All,
    Listed(Vec<SmolStr>),
}

/// The beginning of the keys of one tool: its name and the digest of its schema.
struct Schema {
    parameters: Arc<Value>,
    tool: SmolStr,
    head: String,
}

/// What became of a call that others wait for.
enum Flight {
    /// Nothing yet. Whoever finds it so makes the call.
    Open,
    /// It can be shared.
    Answered(Arc<CachedAnswer>),
    /// It cannot: each makes the call alone.
    Failed,
}

#[derive(Debug, Default)]
struct Counts {
    hits: AtomicU64,
    misses: AtomicU64,
    stored: AtomicU64,
    bypassed: AtomicU64,
    errors: AtomicU64,
}

/// How often a cache could answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CacheStats {
    /// Calls that were answered from the cache, those that waited for another one included.
    pub hits: u64,
    /// Calls that had to be made.
    pub misses: u64,
    /// Answers that were kept.
    pub stored: u64,
    /// Calls that the cache has nothing to do with.
    pub bypassed: u64,
    /// Failures of the store. They cost an answer, never a call.
    pub errors: u64,
}

/// How a result came about, as its metadata tell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum CacheStatus {
    /// From the cache: `cache_hit` is true.
    Hit,
    /// From the tool, and not kept: `cache_hit` is false.
    Miss,
    /// From the tool, and kept: `cache_stored` is true.
    Stored,
    /// From the tool, as the cache has nothing to do with it: `cache_bypass` is true.
    Bypass,
}

impl CacheStatus {
    /// What the metadata of a result tell; `None` if it met no cache.
    pub fn of(metadata: &Object) -> Option<Self> {
        let is = |name| metadata.get(name).and_then(Value::as_bool);
        match (is(HIT)?, is(STORED), is(BYPASS)) {
            (true, ..) => Some(Self::Hit),
            (_, Some(true), _) => Some(Self::Stored),
            (_, _, Some(true)) => Some(Self::Bypass),
            _ => Some(Self::Miss),
        }
    }

    fn mark(self, metadata: &mut Object) {
        // A cache further in may have left its own.
        if !metadata.is_empty() {
            metadata.shift_remove(STORED);
            metadata.shift_remove(BYPASS);
        }
        metadata.insert(HIT.to_owned(), Value::Bool(self == Self::Hit));
        match self {
            Self::Stored => metadata.insert(STORED.to_owned(), Value::Bool(true)),
            Self::Bypass => metadata.insert(BYPASS.to_owned(), Value::Bool(true)),
            Self::Hit | Self::Miss => None,
        };
    }
}

impl Default for Caching {
    fn default() -> Self {
        let mut hit = Object::new();
        CacheStatus::Hit.mark(&mut hit);
        Self {
            hit,
            store: Arc::new(MemoryCache::new()),
            ttl: Duration::from_secs(300),
            scope: CallScope::User,
            tools: Tools::Safe,
            ignored: Vec::new(),
            schemas: Mutex::default(),
            flights: Holdings::new(),
            counts: Arc::default(),
        }
    }
}

impl Caching {
    /// A cache in memory.
    pub fn new() -> Self {
        Self::default()
    }

    /// Keeps answers elsewhere, or with other bounds.
    pub fn store(mut self, store: impl CacheStore + 'static) -> Self {
        self.store = Arc::new(store);
        self
    }

    /// Keeps answers for so long: not at all with zero, for good with [`Duration::MAX`].
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.ttl = ttl;
        self
    }

    /// Who shares answers. Those of a tool that needs a credential, or of a toolset that does, are shared by no two users. Of another
    /// tool, the answer to a call that obtained a user's credential is not kept, unless for that user alone.
    pub fn scope(mut self, scope: CallScope) -> Self {
        self.scope = scope;
        self
    }

    /// Caches all tools, those with side effects too.
    pub fn all_tools(mut self) -> Self {
        self.tools = Tools::All;
        self
    }

    /// Caches these tools and no others.
    pub fn tools<N: Into<SmolStr>>(mut self, names: impl IntoIterator<Item = N>) -> Self {
        self.tools = Tools::Listed(names.into_iter().map(Into::into).collect());
        self
    }

    /// Arguments that do not matter to the answer, by name, such as an id for tracing.
    pub fn ignore<N: Into<SmolStr>>(mut self, names: impl IntoIterator<Item = N>) -> Self {
        self.ignored.extend(names.into_iter().map(Into::into));
        self
    }

    /// How often it could answer.
    pub fn stats(&self) -> CacheStats {
        let read = |count: &AtomicU64| count.load(Ordering::Relaxed);
        let Counts { hits, misses, stored, bypassed, errors } = &*self.counts;
        CacheStats {
            hits: read(hits),
            misses: read(misses),
            stored: read(stored),
            bypassed: read(bypassed),
            errors: read(errors),
        }
    }

    /// Forgets all answers.
    pub async fn clear(&self) -> Result<()> {
        self.store.clear().await
    }

    /// Whether the cache has to do with a call; then what the tool is.
    fn covers<'a>(&self, call: &ToolCall<'a>) -> Option<&'a ToolSpec> {
        let spec = call.tool?.spec();
        let listed = match &self.tools {
            Tools::Safe => spec.read_only || spec.idempotent,
            Tools::All => true,
            Tools::Listed(names) => names.contains(&spec.name),
        };
        // An answer that hangs on a person's word is for this one call.
        let asks = spec.confirm.needed(&call.args) || call.cx.confirmation().is_some();
        (listed && !asks && !spec.long_running).then_some(spec)
    }

    /// Whether users may share answers.
    fn is_shared(&self) -> bool {
        !matches!(self.scope, CallScope::User | CallScope::Session | CallScope::Run)
    }

    fn key(&self, call: &ToolCall<'_>, spec: &ToolSpec) -> CacheKey {
        let mut text = String::with_capacity(256);
        self.write_head(&mut text, call.name(), spec);
        let mut write = |scope: &CallScope| {
            scope.parts(call, |part| {
                write_text(&mut text, part);
                text.push(',');
            });
        };
        let is_custom = matches!(self.scope, CallScope::Custom(_));
        match &self.scope {
            scope if self.is_shared() && is_of_user(call) => {
                write(&CallScope::User);
                if is_custom {
                    write(scope);
                }
            }
            // The tool is in the key anyway.
            CallScope::Tool => write(&CallScope::All),
            scope => write(scope),
        }
        let counts =
            |name: &str| !name.starts_with("__") && !self.ignored.iter().any(|ignored| ignored == name);
        write_object(&mut text, &call.args, counts);
        text.push(']');
        CacheKey::new(call.name().into(), text)
    }

    /// Writes the beginning of a key. Schemas are long, so their digests are remembered.
    fn write_head(&self, text: &mut String, name: &str, spec: &ToolSpec) {
        let mut schemas = self.schemas.lock().unwrap_or_else(PoisonError::into_inner);
        let known =
            |schema: &&Schema| Arc::ptr_eq(&schema.parameters, &spec.parameters) && schema.tool == name;
        if let Some(schema) = schemas.iter().find(known) {
            text.push_str(&schema.head);
            return;
        }
        let (mut parameters, mut head) = (String::new(), String::from("["));
        write_value(&mut parameters, &spec.parameters);
        write_text(&mut head, name);
        head.push_str(&format!(",\"{:032x}\",", digest(&parameters)));
        text.push_str(&head);
        if schemas.len() >= SCHEMAS {
            schemas.clear();
        }
        schemas.push(Schema { parameters: spec.parameters.clone(), tool: name.into(), head });
    }

    /// The answer that is kept for this very call.
    fn check(&self, key: &CacheKey, found: Result<Option<Arc<CachedAnswer>>>) -> Option<Arc<CachedAnswer>> {
        // Two calls may have one digest, and a store may be wrong: the whole call is compared.
        self.counts.look(found).filter(|answer| answer.request == key.text())
    }

    fn hit(&self, answer: &CachedAnswer) -> ToolOutput {
        self.counts.hits.fetch_add(1, Ordering::Relaxed);
        let (value, parts) = (answer.value.clone(), answer.parts.clone());
        ToolOutput::from(ToolValue { value, parts, is_error: false, metadata: self.hit.clone() })
    }

    async fn miss(&self, call: ToolCall<'_>, next: NextTool<'_>, key: CacheKey) -> ToolResult {
        let is_open = self.is_shared() && !is_of_user(&call);
        // A call that was made to answer the same call cannot wait for it.
        let turn = if is_held(call.cx, &self.flights, &key.digest()) {
            None
        } else {
            match wait(call.run(), self.join(&key)).await? {
                Joined::Answered(answer) => return Ok(self.hit(&answer)),
                Joined::Leads(turn) => Some(turn),
                Joined::Alone => None,
            }
        };
        self.counts.misses.fetch_add(1, Ordering::Relaxed);
        let cx = holding(call.cx, &self.flights, key.digest());
        let (cx, watch) = CredentialWatch::begin(&cx);
        let end = End {
            watch: is_open.then_some(watch),
            turn,
            key,
            before: actions(call.cx),
            cx: call.cx.clone(),
            store: self.store.clone(),
            ttl: self.ttl,
            counts: self.counts.clone(),
        };
        let result = next.call(call.with_context(&cx)).await;
        at_end(result, move |result| end.finish(result)).await
    }

    /// Waits for a call that is the same and on its way, if there is one.
    async fn join(&self, key: &CacheKey) -> Joined {
        let held = self.flights.hold(key.digest(), || Arc::new(AsyncMutex::new(Flight::Open)));
        let flight = Arc::clone(&held).lock_owned().await;
        match &*flight {
            Flight::Answered(answer) if answer.request == key.text() => Joined::Answered(answer.clone()),
            Flight::Answered(_) | Flight::Failed => Joined::Alone,
            // Another call may have come to its end between the look and the flight.
            Flight::Open => match self.check(key, self.store.get(key).await) {
                Some(answer) => Joined::Answered(answer),
                None => Joined::Leads(Turn { flight, _held: held }),
            },
        }
    }
}

/// Whether the answer is the user's alone, as far as that is known before the call.
fn is_of_user(call: &ToolCall<'_>) -> bool {
    let needs_credential = call.tool.is_some_and(|tool| tool.spec().auth.is_some());
    needs_credential || UserTools::of(call.run()).has(call.name())
}

/// How a call goes on that the store has no answer for.
enum Joined {
    /// Another one got the answer.
    Answered(Arc<CachedAnswer>),
    /// It is made, and others wait for it.
    Leads(Turn),
    /// It is made, and nobody waits for it.
    Alone,
}

/// What a call has done besides answering.
fn actions(cx: &ToolContext) -> Actions {
    let mut now = Actions::default();
    cx.actions(|actions| now.clone_from(actions));
    now
}

/// The right to make a call that others wait for. Gives it to one of them when it is dropped.
struct Turn {
    flight: OwnedMutexGuard<Flight>,
    _held: Held<u128, Arc<AsyncMutex<Flight>>>,
}

/// All that is needed when a call comes to its end.
struct End {
    turn: Option<Turn>,
    /// Tells whether the answer is one user's, if others would get it.
    watch: Option<Arc<CredentialWatch>>,
    key: CacheKey,
    cx: ToolContext,
    before: Actions,
    store: Arc<dyn CacheStore>,
    ttl: Duration,
    counts: Arc<Counts>,
}

impl End {
    async fn finish(mut self, end: Result<ToolValue, ToolError>) -> Result<ToolValue, ToolError> {
        let mut value = match end {
            Ok(value) => value,
            Err(error) => {
                // Who was stopped has not failed: someone else makes the call.
                if !is_control(self.cx.run(), error.error()) {
                    self.tell(Flight::Failed);
                }
                return Err(error);
            }
        };
        let mut status = CacheStatus::Miss;
        let is_personal = self.watch.as_ref().is_some_and(|watch| watch.is_used());
        if is_personal || value.is_error || actions(&self.cx) != self.before {
            self.tell(Flight::Failed);
        } else {
            let (request, parts) = (self.key.text().to_owned(), value.parts.clone());
            let answer = Arc::new(CachedAnswer { request, value: value.value.clone(), parts });
            let stored = self.store.put(&self.key, answer.clone(), self.ttl).await;
            if self.counts.look(stored.map(|taken| taken.then_some(()))).is_some() {
                self.counts.stored.fetch_add(1, Ordering::Relaxed);
                status = CacheStatus::Stored;
            }
            self.tell(Flight::Answered(answer));
        }
        status.mark(&mut value.metadata);
        Ok(value)
    }

    /// Tells those who wait.
    fn tell(&mut self, news: Flight) {
        if let Some(turn) = &mut self.turn {
            *turn.flight = news;
        }
    }
}

impl Counts {
    /// What a store gave. A store that fails is as good as an empty one, but it is seen.
    fn look<T>(&self, found: Result<Option<T>>) -> Option<T> {
        found.unwrap_or_else(|error| {
            self.errors.fetch_add(1, Ordering::Relaxed);
            tracing::warn!(error = error.message(), "the store of a cache failed");
            None
        })
    }
}

impl Handler for Caching {
    fn name(&self) -> &str {
        "caching"
    }

    fn hooks(&self) -> Hooks {
        Hooks::WRAP_TOOL
    }

    fn wrap_tool<'a>(&'a self, call: ToolCall<'a>, next: NextTool<'a>) -> Work<'a, ToolResult> {
        let Some(spec) = self.covers(&call) else {
            self.counts.bypassed.fetch_add(1, Ordering::Relaxed);
            return Work::later(async move {
                at_end(next.call(call).await, |end| {
                    std::future::ready(end.map(|mut value| {
                        CacheStatus::Bypass.mark(&mut value.metadata);
                        value
                    }))
                })
                .await
            });
        };
        let key = self.key(&call, spec);
        match self.store.get(&key).try_now().ok().map(|found| self.check(&key, found)) {
            Some(Some(answer)) => Work::done(Ok(self.hit(&answer))),
            Some(None) => Work::later(self.miss(call, next, key)),
            None => Work::later(async move {
                let found = wait(call.run(), self.store.get(&key)).await?;
                match self.check(&key, found) {
                    Some(answer) => Ok(self.hit(&answer)),
                    None => self.miss(call, next, key).await,
                }
            }),
        }
    }
}

impl fmt::Debug for Caching {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Caching")
            .field("store", &self.store)
            .field("ttl", &self.ttl)
            .field("scope", &self.scope)
            .field("tools", &self.tools)
            .field("stats", &self.stats())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use umbel_core::{
        AuthConfig, BoxFuture, Credential, CredentialStore, FunctionTool, Grant, InMemoryCredentials,
        PlainAuth, Run, Tool, Toolset,
    };

    use super::*;
    use crate::{LlmAgent, Runner, ScriptedModel};

    fn text(caching: &Caching, spec: &ToolSpec, args: &Value) -> String {
        let cx = ToolContext::detached(&spec.name).unwrap();
        let tool: Arc<dyn Tool> =
            Arc::new(FunctionTool::raw(spec.clone(), |_, _| Box::pin(async { Ok(Value::Null.into()) })));
        let args = Arc::new(args.as_object().cloned().unwrap());
        caching.key(&ToolCall::new(&cx, Some(&tool), args), spec).text().to_owned()
    }

    #[test]
    fn a_key_says_all_that_makes_a_call_what_it_is() {
        let spec = ToolSpec::new("t", "", json!({"type": "object"}));
        let caching = Caching::new().ignore(["i"]);
        let digest = format!("{:032x}", digest(r#"{"type":"object"}"#));
        for _ in 0..2 {
            assert_eq!(
                text(&caching, &spec, &json!({"b": 2, "a": 1, "__c": 3, "i": 4})),
                format!(r#"["t","{digest}","user","app","user",{{"a":1,"b":2}}]"#)
            );
        }
    }

    #[test]
    fn the_answer_of_a_tool_with_a_credential_never_leaves_its_user() {
        let auth = Some(AuthConfig::new("key", PlainAuth::bearer()));
        let spec = ToolSpec { auth, ..ToolSpec::new("t", "", json!({})) };
        for (scope, expected) in [
            (CallScope::All, "\"user\",\"app\",\"user\""),
            (CallScope::App, "\"user\",\"app\",\"user\""),
            (CallScope::Tool, "\"user\",\"app\",\"user\""),
            (CallScope::Session, "\"session\","),
            (CallScope::custom(|_| "ours".into()), "\"user\",\"app\",\"user\",\"custom\",\"ours\""),
        ] {
            let text = text(&Caching::new().scope(scope), &spec, &json!({}));
            assert!(text.contains(expected), "{text}");
        }
        let open = ToolSpec::new("t", "", json!({}));
        assert!(text(&Caching::new().scope(CallScope::Tool), &open, &json!({})).contains("\"all\""));
    }

    fn mail() -> AuthConfig {
        AuthConfig::new("mail", PlainAuth::bearer())
    }

    fn whoami() -> ToolSpec {
        ToolSpec { read_only: true, ..ToolSpec::new("whoami", "", json!({"type": "object"})) }
    }

    /// What a tool answers that has a credential, which is counted.
    fn answer(grant: &Grant, calls: &AtomicU64) -> ToolOutput {
        calls.fetch_add(1, Ordering::Relaxed);
        json!(grant.http().unwrap().expose()).into()
    }

    /// A tool that obtains a credential when it is called.
    fn obtaining(auth: AuthConfig, calls: Arc<AtomicU64>) -> FunctionTool {
        FunctionTool::raw(whoami(), move |cx, _| {
            let (auth, calls) = (auth.clone(), calls.clone());
            Box::pin(async move { Ok(answer(&cx.credential(&auth).await?, &calls)) })
        })
    }

    /// A toolset that lists its tools, and has them answer, with a credential.
    struct Chest(AuthConfig, Arc<AtomicU64>);

    impl Toolset for Chest {
        fn name(&self) -> &str {
            "chest"
        }

        fn tools<'a>(&'a self, run: &'a Run) -> BoxFuture<'a, Result<Vec<Arc<dyn Tool>>>> {
            Box::pin(async move {
                let (grant, calls) = (run.credential(&self.0).await?, self.1.clone());
                let tool = FunctionTool::raw(whoami(), move |_, _| {
                    let answer = answer(&grant, &calls);
                    Box::pin(std::future::ready(Ok(answer)))
                });
                Ok(vec![Arc::new(tool) as Arc<dyn Tool>])
            })
        }

        fn auth(&self) -> Option<&AuthConfig> {
            Some(&self.0)
        }
    }

    #[tokio::test]
    async fn what_a_user_was_told_by_their_credential_is_told_to_no_other() {
        let agent = || {
            let model = ScriptedModel::new("m");
            let model = (0..4).fold(model, |model, _| model.call("whoami", json!({})).text("done"));
            LlmAgent::new("a").model(model).handler(Caching::new().scope(CallScope::All))
        };
        let fixed = AuthConfig::new("mail", PlainAuth::bearer().fixed("ours"));
        let calls = Arc::new(AtomicU64::new(0));
        for (agent, made, own) in [
            (agent().toolset(Chest(mail(), calls.clone())), 2, true),
            (agent().tool(obtaining(mail(), calls.clone())), 4, true),
            (agent().tool(obtaining(fixed, calls.clone())), 1, false),
        ] {
            calls.store(0, Ordering::Relaxed);
            let store = InMemoryCredentials::new();
            for user in ["ann", "bob"] {
                store.save("app", user, "mail", Credential::new(user)).await.unwrap();
            }
            let runner = Runner::builder("app", agent).credentials(store).build().unwrap();
            for user in ["ann", "bob", "ann", "bob"] {
                let key = runner.create_session(user).await.unwrap().key;
                let events = runner.run(&key, "go").collect_events().await.unwrap();
                let told = events.iter().flat_map(|event| event.responses()).next().unwrap();
                let whose = if own { user } else { "ours" };
                assert_eq!(told.response.as_ref().unwrap()["result"], format!("Bearer {whose}"));
            }
            assert_eq!(calls.load(Ordering::Relaxed), made);
        }
    }

    #[test]
    fn the_memory_of_schemas_is_bounded() {
        let caching = Caching::new();
        for n in 0..3 * SCHEMAS {
            text(&caching, &ToolSpec::new(format!("t{n}"), "", json!({})), &json!({}));
        }
        assert!(caching.schemas.lock().unwrap().len() <= SCHEMAS);
    }
}
