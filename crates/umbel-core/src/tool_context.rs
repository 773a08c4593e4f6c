//! What a tool sees of the run it works for.

use std::ops::Deref;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use smol_str::{SmolStr, format_smolstr};

use crate::actions::{Confirmation, ModelUsage};
use crate::code::{LOOKS_AT_FILE, RUN_CODE};
use crate::context::Context;
use crate::error::{Error, ErrorKind, Result};
use crate::extensions::Extensions;
use crate::id::{CallId, EventId};
use crate::interrupt::{Address, Answer, Question};
use crate::json::Object;
use crate::part::FunctionCall;
use crate::run::Run;
use crate::tool::ToolSet;

/// How the keys begin under which effects are kept that happen once.
pub const ONCE: &str = "once:";

/// How the layers are named under which questions are told apart by what they are about.
pub const ABOUT: &str = "about:";

/// What a tool sees of the run it works for, and where it leaves what it did. Clones belong to the same call.
#[derive(Clone, Debug)]
pub struct ToolContext {
    shared: Arc<Shared>,
    /// What layers further out put in.
    extensions: Extensions,
}

#[derive(Debug)]
struct Shared {
    context: Context,
    tool: SmolStr,
    call: Option<CallId>,
    made: CallMade,
    /// The arguments where the call has come to, on its way through the layers.
    shown: Mutex<Option<Arc<Object>>>,
    /// How many tools with layers of their own it has come into.
    chain: AtomicU32,
}

/// A call is among the layers of one tool as long as this lives.
#[derive(Debug)]
pub struct InnerLayers(Arc<Shared>);

impl Drop for InnerLayers {
    fn drop(&mut self) {
        self.0.chain.fetch_sub(1, Ordering::Relaxed);
    }
}

/// What is known of a call before it is made.
#[derive(Clone, Debug, Default)]
pub struct CallMade {
    /// The event by which the model asked for it.
    pub event: Option<EventId>,
    /// What a person said to a question about the call or of the tool itself. Boxed, since few calls are asked about.
    pub confirmation: Option<Box<Answer>>,
    /// It was made before, and cut short by a question, a cancellation or a crash.
    pub again: bool,
    /// All calls of its batch, if there are several.
    pub batch: Option<Arc<[FunctionCall]>>,
    /// The tools that the batch can call.
    pub tools: Option<Arc<ToolSet>>,
    /// It waited with others of its batch, and nobody is asked about them any more.
    pub released: bool,
    /// The tool that the model called, if a person put another one in its place.
    pub instead_of: Option<SmolStr>,
}

impl ToolContext {
    /// The context of one call.
    pub fn new(run: Run, tool: SmolStr, call: Option<CallId>, made: CallMade) -> Self {
        let (shown, chain) = (Mutex::default(), AtomicU32::new(0));
        let shared = Shared { context: Context::new(run), tool, call, made, shown, chain };
        Self { shared: Arc::new(shared), extensions: Extensions::new() }
    }

    /// The same context with a value for those further in: the layers inside this one, and the tool.
    pub fn with<T: Send + Sync + 'static>(&self, value: T) -> Self {
        let mut inner = self.clone();
        inner.extensions.insert(value);
        inner
    }

    /// A value that a layer further out put in, or that the run has.
    pub fn extension<T: Send + Sync + 'static>(&self) -> Option<Arc<T>> {
        self.extensions.get::<T>().or_else(|| self.run().extension::<T>())
    }

    /// All values that layers put in.
    pub fn extensions(&self) -> &Extensions {
        &self.extensions
    }

    /// The tool's name.
    pub fn tool_name(&self) -> &str {
        &self.shared.tool
    }

    /// The call's id; absent if the model gave none and the flow minted none.
    pub fn call_id(&self) -> Option<&CallId> {
        self.shared.call.as_ref()
    }

    /// Makes the tool's answer the agent's answer: the model is not asked to put it in words.
    pub fn skip_summarization(&self) {
        self.change(|actions| actions.skip_summarization = Some(true));
    }

    /// Tells what a model used that worked for the call. It counts as used by the run.
    pub fn add_usage(&self, used: ModelUsage) {
        self.change(|actions| actions.called_usage.push(used));
    }

    /// Ends the enclosing loop.
    pub fn escalate(&self) {
        self.change(|actions| actions.escalate = Some(true));
    }

    /// Hands over to another agent.
    pub fn transfer_to_agent(&self, name: impl Into<SmolStr>) {
        let name = name.into();
        self.change(|actions| actions.transfer_to_agent = Some(name));
    }

    /// What a person said to this call, if they were asked.
    pub fn confirmation(&self) -> Option<&Answer> {
        self.shared.made.confirmation.as_deref()
    }

    /// Whether the call was made before, and cut short by a question, a cancellation or a crash.
    pub fn is_again(&self) -> bool {
        self.shared.made.again
    }

    /// The calls that the model asked for together with this one, and this one, in call order. Empty if it is alone.
    pub fn batch(&self) -> &[FunctionCall] {
        self.shared.made.batch.as_deref().unwrap_or_default()
    }

    /// The tools that calls of this batch can name, if that is known.
    pub fn tools(&self) -> Option<&Arc<ToolSet>> {
        self.shared.made.tools.as_ref()
    }

    /// Whether it waited with others of its batch ([`Error::held`]), and nobody is asked about them any more.
    pub fn is_released(&self) -> bool {
        self.shared.made.released
    }

    /// The tool that the model called, if a person put this one in its place.
    pub fn instead_of(&self) -> Option<&SmolStr> {
        self.shared.made.instead_of.as_ref()
    }

    /// Whether it runs code that stands in an event, so that no tool of that name was called.
    pub fn is_code(&self) -> bool {
        let Shared { tool, call, made, .. } = &*self.shared;
        let runs_it = |id: &EventId| {
            let events = self.run().events();
            let found = events.iter().rev().find(|event| event.id == *id);
            found.is_some_and(|event| event.code_id().is_some_and(|code| Some(code) == call.as_ref()))
        };
        tool == RUN_CODE && made.event.as_ref().is_some_and(runs_it)
    }

    /// Whether it runs code by which a file is looked at that the user sent. No model wrote it, so nobody needs to agree.
    pub fn looks_at_file(&self) -> bool {
        self.call_id().is_some_and(|id| id.as_str().starts_with(LOOKS_AT_FILE)) && self.is_code()
    }

    /// Says that the call comes among layers that stand around one tool.
    pub fn inner_layers(&self) -> InnerLayers {
        self.shared.chain.fetch_add(1, Ordering::Relaxed);
        InnerLayers(self.shared.clone())
    }

    /// How many tools with layers of their own it has come into.
    pub(crate) fn chain(&self) -> u32 {
        self.shared.chain.load(Ordering::Relaxed)
    }

    /// Says with which arguments the call goes on: people are shown these if it asks something from there.
    pub fn show(&self, args: &Arc<Object>) {
        *self.shared.shown.lock().unwrap_or_else(PoisonError::into_inner) = Some(args.clone());
    }

    /// The arguments that people are shown, if they were told.
    pub fn shown(&self) -> Option<Arc<Object>> {
        self.shared.shown.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Names this call and no other, also when it is made again after a question or a crash: what a service needs to do
    /// the same thing only once. Without an id of the call there is no such name.
    pub fn idempotency_key(&self) -> Option<SmolStr> {
        let (event, call) = (self.shared.made.event.as_ref()?, self.shared.call.as_ref()?);
        Some(format_smolstr!("{event}.{call}"))
    }

    /// What people said to this question of the tool. If nobody was asked yet, the error ends the run as *interrupted*,
    /// and the tool is called again, from its top, with the answer. A tool may ask several questions one after the other.
    pub fn interrupt(&self, question: impl Into<Question>) -> Result<Answer> {
        self.ask(None, question.into())
    }

    /// Like [`interrupt`](Self::interrupt), for questions that come in no certain order or whose words are another's: an
    /// answer counts for a question about the same, such as a digest of its words, and for no other.
    pub fn interrupt_about(&self, what: &str, question: impl Into<Question>) -> Result<Answer> {
        self.ask(Some(format_smolstr!("{ABOUT}{what}")), question.into())
    }

    /// Where questions of this call come from.
    pub fn address(&self) -> Address {
        let event = self.shared.made.event.clone();
        Address { event, ..Address::new(self.run().source(), self.shared.call.clone()) }
    }

    /// What people said to this question of the tool, or of a layer around it. An answer belongs to the arguments that
    /// were [shown](Self::show): with others the question is asked anew.
    pub fn ask(&self, layer: Option<SmolStr>, question: Question) -> Result<Answer> {
        let place = Address { layer, ..self.address() };
        self.run().values().ask(place, question, self.shown().as_deref())
    }

    /// Does something once, though the tool may be called again after a question, a cancellation or a crash: what it gave is
    /// in the log before this returns. `key` names it among those of the call.
    pub async fn once<T, F>(&self, key: &str, effect: impl FnOnce() -> F) -> Result<T>
    where
        T: Serialize + DeserializeOwned,
        F: Future<Output = Result<T>>,
    {
        let Some(call) = self.idempotency_key() else { return effect().await };
        let key = format_smolstr!("{ONCE}{call}.{key}");
        if let Some(value) = self.run().kept(&key)? {
            return Ok(value);
        }
        let value = effect().await?;
        self.run().keep(key, &value)?;
        self.run().record(Vec::new()).await?;
        Ok(value)
    }

    /// Asks a person to agree. The tool should then return; it is called again with the answer.
    pub fn request_confirmation(&self, hint: impl Into<String>, payload: Option<Value>) -> Result<()> {
        let Some(call) = self.shared.call.clone() else {
            let message = "a call without an id cannot ask for a confirmation";
            return Err(Error::new(ErrorKind::InvalidInput, message));
        };
        let asked = Confirmation { hint: Some(hint.into()), payload, ..Confirmation::default() };
        self.change(|actions| {
            actions.requested_tool_confirmations.get_or_insert_default().insert(call, asked);
        });
        Ok(())
    }
}

impl Deref for ToolContext {
    type Target = Context;

    fn deref(&self) -> &Context {
        &self.shared.context
    }
}
