//! The names by which a run tells others about itself: spans, their attributes, and metrics.
//!
//! They are those of OpenTelemetry's conventions for generative AI, which are still being developed; so they stand here and
//! nowhere else. What the conventions have no name for begins with `umbel.`.

/// Where the runtime makes its spans, as `tracing` calls it.
pub const TARGET: &str = "umbel_runtime::spans";

/// Where the server makes those of its requests.
pub const HTTP_TARGET: &str = "umbel_server::trace::request";

/// The names of spans. With them goes what they are about: `chat gpt-5`.
pub mod span {
    /// A run.
    pub const INVOCATION: &str = "invocation";
    /// An agent at work.
    pub const INVOKE_AGENT: &str = "invoke_agent";
    /// An agent that runs others.
    pub const INVOKE_WORKFLOW: &str = "invoke_workflow";
    /// A model call. One that is made again has another.
    pub const CHAT: &str = "chat";
    /// A tool call.
    pub const EXECUTE_TOOL: &str = "execute_tool";
    /// Another try of a tool call, within its span.
    pub const RETRY: &str = "retry";
    /// A hook of a handler.
    pub const HANDLE: &str = "handle";
    /// A request to the server.
    pub const HTTP: &str = "http";
}

/// The names of attributes.
pub mod attribute {
    /// What is done: the name of the span without what it is about.
    pub const OPERATION: &str = "gen_ai.operation.name";
    /// Who runs a model.
    pub const PROVIDER: &str = "gen_ai.provider.name";
    /// The session.
    pub const CONVERSATION: &str = "gen_ai.conversation.id";
    /// The name of an agent.
    pub const AGENT: &str = "gen_ai.agent.name";
    /// The app of an agent, and its name.
    pub const AGENT_ID: &str = "gen_ai.agent.id";
    /// What an agent is good for.
    pub const AGENT_DESCRIPTION: &str = "gen_ai.agent.description";
    /// The name of an agent that runs others.
    pub const WORKFLOW: &str = "gen_ai.workflow.name";
    /// The model that is asked.
    pub const REQUEST_MODEL: &str = "gen_ai.request.model";
    /// That the answer is to come in pieces; missing if it is not.
    pub const REQUEST_STREAM: &str = "gen_ai.request.stream";
    /// Randomness.
    pub const TEMPERATURE: &str = "gen_ai.request.temperature";
    /// Nucleus sampling.
    pub const TOP_P: &str = "gen_ai.request.top_p";
    /// Sampling among the best so many.
    pub const TOP_K: &str = "gen_ai.request.top_k";
    /// The longest answer.
    pub const MAX_TOKENS: &str = "gen_ai.request.max_tokens";
    /// For the same answer twice.
    pub const SEED: &str = "gen_ai.request.seed";
    /// Texts that end the answer. A list: a field of a span holds it as JSON.
    pub const STOP_SEQUENCES: &str = "gen_ai.request.stop_sequences";
    /// Against saying it again and again.
    pub const FREQUENCY_PENALTY: &str = "gen_ai.request.frequency_penalty";
    /// Against saying it again at all.
    pub const PRESENCE_PENALTY: &str = "gen_ai.request.presence_penalty";
    /// The form of the answer, if one was asked for.
    pub const OUTPUT_TYPE: &str = "gen_ai.output.type";
    /// The provider's name of the answer.
    pub const RESPONSE_ID: &str = "gen_ai.response.id";
    /// The model that answered, as it calls itself.
    pub const RESPONSE_MODEL: &str = "gen_ai.response.model";
    /// Why the answer ended. A list, in the words of the conventions; a field of a span holds the one there is, in the words of
    /// events.
    pub const FINISH_REASONS: &str = "gen_ai.response.finish_reasons";
    /// Seconds until the first piece of an answer came.
    pub const FIRST_CHUNK: &str = "gen_ai.response.time_to_first_chunk";
    /// Tokens of the prompt.
    pub const INPUT_TOKENS: &str = "gen_ai.usage.input_tokens";
    /// Tokens of the answer, those of thoughts among them.
    pub const OUTPUT_TOKENS: &str = "gen_ai.usage.output_tokens";
    /// Of the prompt, those that the provider had kept.
    pub const CACHE_READ_TOKENS: &str = "gen_ai.usage.cache_read.input_tokens";
    /// Of the prompt, those that the provider keeps from now on.
    pub const CACHE_CREATION_TOKENS: &str = "gen_ai.usage.cache_creation.input_tokens";
    /// Of the answer, those of thoughts.
    pub const REASONING_TOKENS: &str = "gen_ai.usage.reasoning.output_tokens";
    /// Input or output, of a metric.
    pub const TOKEN_TYPE: &str = "gen_ai.token.type";
    /// The name of a tool.
    pub const TOOL: &str = "gen_ai.tool.name";
    /// What kind of tool it is; missing if there is none of that name.
    pub const TOOL_TYPE: &str = "gen_ai.tool.type";
    /// What a tool does.
    pub const TOOL_DESCRIPTION: &str = "gen_ai.tool.description";
    /// The id of a call.
    pub const CALL_ID: &str = "gen_ai.tool.call.id";
    /// Content: what a tool is called with.
    pub const CALL_ARGUMENTS: &str = "gen_ai.tool.call.arguments";
    /// Content: what a tool gave.
    pub const CALL_RESULT: &str = "gen_ai.tool.call.result";
    /// Content: the tools that a model may call.
    pub const TOOL_DEFINITIONS: &str = "gen_ai.tool.definitions";
    /// Content: the conversation that a model is sent.
    pub const INPUT_MESSAGES: &str = "gen_ai.input.messages";
    /// Content: what a model answered.
    pub const OUTPUT_MESSAGES: &str = "gen_ai.output.messages";
    /// Content: what a model is told besides.
    pub const SYSTEM_INSTRUCTIONS: &str = "gen_ai.system_instructions";
    /// The host that is asked.
    pub const SERVER_ADDRESS: &str = "server.address";
    /// Its port.
    pub const SERVER_PORT: &str = "server.port";
    /// What went wrong, as a code.
    pub const ERROR: &str = "error.type";
    /// `GET` and its like; `_OTHER` for those that nobody knows.
    pub const HTTP_METHOD: &str = "http.request.method";
    /// The path of a route, without what is in it.
    pub const HTTP_ROUTE: &str = "http.route";
    /// The path itself.
    pub const URL_PATH: &str = "url.path";
    /// `http`.
    pub const URL_SCHEME: &str = "url.scheme";
    /// The status of an answer.
    pub const HTTP_STATUS: &str = "http.response.status_code";
    /// The run.
    pub const RUN: &str = "umbel.run.id";
    /// The run that this one goes on with, if it has another id.
    pub const RESUMES: &str = "umbel.run.resumes";
    /// The branch of agents side by side.
    pub const BRANCH: &str = "umbel.branch";
    /// The event that an answer became.
    pub const EVENT: &str = "umbel.event.id";
    /// Which try it is.
    pub const ATTEMPT: &str = "umbel.attempt";
    /// The name of a handler.
    pub const HANDLER: &str = "umbel.handler";
    /// Its hook.
    pub const HOOK: &str = "umbel.hook";
}

/// A value that takes the place of what others make up, such as the name of a tool that there is none of: each would be one more
/// to keep.
pub const OTHER: &str = "_OTHER";

/// What went wrong with the answer to a request, besides its status.
pub mod broken {
    /// The client hung up before the end of a stream.
    pub const CLIENT_GONE: &str = "CLIENT_GONE";
    /// The server broke a stream off, since the client did not read.
    pub const STREAM_BROKEN: &str = "STREAM_BROKEN";
}

/// The names of metrics.
pub mod metric {
    /// Seconds of a model call.
    pub const OPERATION_DURATION: &str = "gen_ai.client.operation.duration";
    /// Seconds until the first piece of an answer.
    pub const FIRST_CHUNK: &str = "gen_ai.client.operation.time_to_first_chunk";
    /// Seconds between two pieces of an answer.
    pub const PER_CHUNK: &str = "gen_ai.client.operation.time_per_output_chunk";
    /// Tokens of a model call.
    pub const TOKEN_USAGE: &str = "gen_ai.client.token.usage";
    /// What takes its place in conventions that are not released yet: tokens, counted.
    pub const INFERENCE_TOKENS: &str = "gen_ai.client.inference.tokens";
    /// Seconds of an agent's work.
    pub const AGENT_DURATION: &str = "gen_ai.invoke_agent.duration";
    /// Seconds of a tool call.
    pub const TOOL_DURATION: &str = "gen_ai.execute_tool.duration";
    /// Seconds of the work of an agent that runs others.
    pub const WORKFLOW_DURATION: &str = "gen_ai.workflow.duration";
}
