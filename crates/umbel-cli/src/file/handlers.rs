//! Handlers and layers by name.

use std::sync::Arc;

use toml::Spanned;
use toml::de::DeValue;
use umbel::handlers::pii::{Pii, PiiRule, PiiStrategy};
use umbel::handlers::{
    ApprovalRule, Approve, ClearResults, ContextEdit, EventFilter, GlobalInstruction, Keep, ModelCallLimit,
    ModelFallback, ModelLimitExit, ModelRetry, Offload, ReflectRetry, RepairCalls, Summarise, TodoList,
    ToolCallLimit, ToolLimitExit, ToolSelect, Trigger, UsageLimit,
};
use umbel::layers::{
    Caching, CallScope, CircuitBreaker, Concurrency, Logging, Quota, RateLimit, Timeout, ToolRetry,
};
use umbel::runtime::backoff::Backoff;
use umbel::{Handler, Result, Words};

use super::models::Models;
use super::table::{Problems, Table};

/// How a handler is made from its options. What does not fit together is an error in words.
type Make = fn(&Table<'_>, &Models<'_>) -> Result<Arc<dyn Handler>>;

/// All handlers that can be named.
pub(super) const KNOWN: [(&str, Make); 23] = [
    ("approve", approve),
    ("caching", caching),
    ("circuit_breaker", circuit_breaker),
    ("concurrency", concurrency),
    ("context_edit", context_edit),
    ("event_filter", event_filter),
    ("global_instruction", global_instruction),
    ("logging", logging),
    ("model_call_limit", model_call_limit),
    ("model_fallback", model_fallback),
    ("model_retry", model_retry),
    ("offload", offload),
    ("pii", pii),
    ("rate_limit", rate_limit),
    ("reflect_retry", reflect_retry),
    ("repair_calls", repair_calls),
    ("summarise", summarise),
    ("timeout", timeout),
    ("todo_list", todo_list),
    ("tool_call_limit", tool_call_limit),
    ("tool_retry", tool_retry),
    ("tool_select", tool_select),
    ("usage_limit", usage_limit),
];

/// A handler as it stands in a list: its name, or a table with its name and options.
pub(super) fn read<'a>(
    problems: &'a Problems,
    value: &'a Spanned<DeValue<'a>>,
    models: &Models<'_>,
) -> Option<Arc<dyn Handler>> {
    let empty = toml::de::DeTable::default();
    let (name, table) = match value.get_ref() {
        DeValue::String(name) => (name.as_ref(), Table::new(problems, &empty, value.span())),
        _ => {
            let table = Table::of(problems, value)?;
            let Some(name) = table.text("name") else {
                problems.hint(&table.at, "the handler has no `name`", "such as { name = \"model_retry\" }");
                return None;
            };
            (name.value, table)
        }
    };
    let Some((_, make)) = KNOWN.iter().find(|(known, _)| *known == name) else {
        let known: Vec<&str> = KNOWN.iter().map(|(name, _)| *name).collect();
        problems.unknown(&value.span(), "the handler", name, &known);
        return None;
    };
    let before = problems.count();
    let made = make(&table, models);
    // An option that is wrong has been told of, and may be why it cannot be made.
    if let Err(error) = &made
        && problems.count() == before
    {
        problems.note(&table.at, format!("the handler `{name}` cannot be made: {}", error.message()));
    }
    table.finish();
    made.ok()
}

fn done(handler: impl Handler + 'static) -> Result<Arc<dyn Handler>> {
    Ok(Arc::new(handler))
}

/// What an option that must be there says when it is not.
fn missing(what: &str) -> umbel::Error {
    umbel::Error::new(umbel::ErrorKind::Build, what.to_owned())
}

/// A value with what an option makes of it, if the option is there.
fn with<T, O>(value: T, option: Option<O>, change: impl FnOnce(T, O) -> T) -> T {
    match option {
        Some(option) => change(value, option),
        None => value,
    }
}

fn names<'a>(table: &Table<'a>, key: &'static str) -> Vec<&'a str> {
    table.texts(key).into_iter().map(|name| name.value).collect()
}

fn approve(table: &Table<'_>, _: &Models<'_>) -> Result<Arc<dyn Handler>> {
    let shaped = |mut rule: ApprovalRule| {
        rule = with(rule, table.text("message"), |rule, message| rule.message(message.value));
        with(rule, table.seconds("expires"), ApprovalRule::expires_in)
    };
    let mut approve = Approve::new();
    let tools = names(table, "tools");
    for tool in &tools {
        approve = approve.rule(shaped(ApprovalRule::tool(*tool)));
    }
    if table.flag("all") {
        approve = approve.otherwise(shaped(ApprovalRule::any()));
    } else if tools.is_empty() {
        return Err(missing(
            "say which calls people are asked about, with `tools = [\"…\"]` or `all = true`",
        ));
    }
    for tool in names(table, "allow") {
        approve = approve.allow(tool);
    }
    if table.flag("allow_read_only") {
        approve = approve.allow_read_only();
    }
    if table.flag("whole_batch") {
        approve = approve.whole_batch();
    }
    done(approve)
}

fn caching(table: &Table<'_>, _: &Models<'_>) -> Result<Arc<dyn Handler>> {
    let mut caching = with(Caching::new(), table.seconds("ttl"), Caching::ttl);
    caching = with(caching, scope(table), Caching::scope);
    let tools = names(table, "tools");
    if !tools.is_empty() {
        caching = caching.tools(tools);
    }
    if table.flag("all_tools") {
        caching = caching.all_tools();
    }
    done(caching)
}

/// Which calls count together.
fn scope(table: &Table<'_>) -> Option<CallScope> {
    let word = table
        .choice("per", &[("all", 0), ("app", 1), ("user", 2), ("session", 3), ("run", 4), ("tool", 5)])?;
    Some(match word {
        0 => CallScope::All,
        1 => CallScope::App,
        2 => CallScope::User,
        3 => CallScope::Session,
        4 => CallScope::Run,
        _ => CallScope::Tool,
    })
}

fn circuit_breaker(table: &Table<'_>, _: &Models<'_>) -> Result<Arc<dyn Handler>> {
    let breaker = with(CircuitBreaker::new(), table.whole("failures"), CircuitBreaker::in_a_row);
    let breaker = with(breaker, table.seconds("open_for"), CircuitBreaker::open_for);
    done(with(breaker, scope(table), CircuitBreaker::per))
}

fn concurrency(table: &Table<'_>, _: &Models<'_>) -> Result<Arc<dyn Handler>> {
    let limit = table.whole("limit").ok_or_else(|| missing("say how many calls at once, with `limit`"))?;
    let concurrency = with(Concurrency::new(limit)?, table.seconds("max_wait"), Concurrency::max_wait);
    done(with(concurrency, scope(table), Concurrency::per))
}

fn context_edit(table: &Table<'_>, _: &Models<'_>) -> Result<Arc<dyn Handler>> {
    let clear =
        with(ClearResults::default(), table.whole::<u64>("above"), |_, tokens| ClearResults::above(tokens));
    let clear = with(clear, table.whole("keep"), ClearResults::keep);
    let clear = with(clear, table.whole("at_least"), ClearResults::at_least);
    let clear = with(clear, table.text("placeholder"), |clear, words| clear.placeholder(words.value));
    done(ContextEdit::of([clear.exclude(names(table, "exclude"))]))
}

fn event_filter(table: &Table<'_>, _: &Models<'_>) -> Result<Arc<dyn Handler>> {
    let mut filter = EventFilter::new();
    for what in names(table, "hide") {
        filter = match what {
            "partial" => filter.hide_partial(),
            "thoughts" => filter.hide_thoughts(),
            "calls" => filter.hide_calls(),
            "responses" => filter.hide_responses(),
            _ => {
                let message =
                    format!("`{what}` cannot be hidden: partial, thoughts, calls and responses can");
                return Err(missing(&message));
            }
        };
    }
    done(filter.hide_authors(names(table, "authors")))
}

fn global_instruction(table: &Table<'_>, _: &Models<'_>) -> Result<Arc<dyn Handler>> {
    let text = table.text("text").ok_or_else(|| missing("say what all agents are told, with `text`"))?;
    done(GlobalInstruction::new(Words::Template(text.value.into())))
}

fn logging(table: &Table<'_>, _: &Models<'_>) -> Result<Arc<dyn Handler>> {
    let mut logging = with(Logging::new(), table.whole("max_arg_bytes"), Logging::max_arg_bytes);
    for pointer in names(table, "redact") {
        logging = logging.redact(pointer);
    }
    if table.maybe_flag("inputs") == Some(false) {
        logging = logging.without_input_logging();
    }
    if table.maybe_flag("outputs") == Some(false) {
        logging = logging.without_output_logging();
    }
    done(logging)
}

/// What happens when a limit on model calls is reached.
fn model_exit(table: &Table<'_>) -> Option<ModelLimitExit> {
    let is_end = table.choice("exit", &[("end", true), ("error", false)])?;
    Some(if is_end { ModelLimitExit::End } else { ModelLimitExit::Error })
}

fn model_call_limit(table: &Table<'_>, _: &Models<'_>) -> Result<Arc<dyn Handler>> {
    let limit = with(ModelCallLimit::new(), table.whole("run"), ModelCallLimit::run);
    let limit = with(limit, table.whole("session"), ModelCallLimit::session);
    done(with(limit, model_exit(table), ModelCallLimit::exit))
}

fn model_fallback(table: &Table<'_>, models: &Models<'_>) -> Result<Arc<dyn Handler>> {
    let mut fallback: Option<ModelFallback> = None;
    for name in names(table, "models") {
        let model = models.named(name)?;
        fallback = Some(match fallback {
            Some(fallback) => fallback.then(model),
            None => ModelFallback::new(model),
        });
    }
    let fallback = fallback.ok_or_else(|| missing("name other models, with `models = [\"…\"]`"))?;
    done(with(fallback, table.maybe_flag("sticky"), ModelFallback::sticky))
}

fn backoff(table: &Table<'_>) -> Backoff {
    let backoff = with(Backoff::new(), table.seconds("initial"), Backoff::initial);
    let backoff = with(backoff, table.number("factor"), Backoff::factor);
    with(backoff, table.seconds("max"), Backoff::max)
}

fn model_retry(table: &Table<'_>, _: &Models<'_>) -> Result<Arc<dyn Handler>> {
    let retry = with(ModelRetry::new(), table.whole("max_retries"), ModelRetry::max_retries);
    done(retry.backoff(backoff(table)))
}

fn offload(table: &Table<'_>, _: &Models<'_>) -> Result<Arc<dyn Handler>> {
    let offload = with(Offload::new(), table.whole("above"), Offload::above);
    let offload = with(offload, table.whole("show"), Offload::show);
    done(offload.exclude(names(table, "exclude")))
}

fn pii(table: &Table<'_>, _: &Models<'_>) -> Result<Arc<dyn Handler>> {
    let words = [
        ("redact", PiiStrategy::Redact),
        ("mask", PiiStrategy::Mask),
        ("hash", PiiStrategy::Hash),
        ("block", PiiStrategy::Block),
    ];
    let strategy = table.choice("strategy", &words);
    let (input, output) = (table.maybe_flag("input"), table.maybe_flag("output"));
    let tool_results = table.maybe_flag("tool_results");
    let mut rules = Vec::new();
    for kind in names(table, "kinds") {
        rules.push(PiiRule::built_in(kind)?);
    }
    for (kind, pattern) in table.table("patterns").map(|patterns| patterns.all()).unwrap_or_default() {
        let pattern = pattern.get_ref().as_str().ok_or_else(|| missing("a pattern must be a text"))?;
        rules.push(PiiRule::pattern(kind.value, pattern)?);
    }
    let mut pii: Option<Pii> = None;
    for rule in rules {
        let rule = with(rule, strategy, PiiRule::strategy);
        let rule = with(with(rule, input, PiiRule::input), output, PiiRule::output);
        let rule = with(rule, tool_results, PiiRule::tool_results);
        pii = Some(match pii {
            Some(pii) => pii.rule(rule),
            None => Pii::new(rule),
        });
    }
    done(pii.ok_or_else(|| missing("say what to look for, with `kinds = [\"email\"]` or `patterns`"))?)
}

fn rate_limit(table: &Table<'_>, _: &Models<'_>) -> Result<Arc<dyn Handler>> {
    let rate = table.number("per_second").ok_or_else(|| missing("say how many calls, with `per_second`"))?;
    let burst = table.whole("burst").unwrap_or(1.max(rate.ceil() as u32));
    let limit =
        with(RateLimit::new(Quota::per_second(rate, burst)?), table.seconds("max_wait"), RateLimit::max_wait);
    done(with(limit, scope(table), RateLimit::per))
}

fn reflect_retry(table: &Table<'_>, _: &Models<'_>) -> Result<Arc<dyn Handler>> {
    let mut retry = with(ReflectRetry::new(), table.whole("max_retries"), ReflectRetry::max_retries);
    if table.flag("global") {
        retry = retry.global();
    }
    if table.flag("stop_when_exceeded") {
        retry = retry.stop_when_exceeded();
    }
    done(retry)
}

fn repair_calls(_: &Table<'_>, _: &Models<'_>) -> Result<Arc<dyn Handler>> {
    done(RepairCalls::new())
}

fn summarise(table: &Table<'_>, models: &Models<'_>) -> Result<Arc<dyn Handler>> {
    let mut triggers = Vec::new();
    triggers.extend(table.whole("messages").map(Trigger::Messages));
    triggers.extend(table.whole("tokens").map(Trigger::Tokens));
    triggers.extend(table.number("fraction").map(Trigger::Fraction));
    if triggers.is_empty() {
        return Err(missing("say when it is time, with `messages`, `tokens` or `fraction`"));
    }
    let summarise = Summarise::new(Trigger::Any(triggers));
    let summarise = with(summarise, table.whole("window"), Summarise::window);
    let mut summarise = with(summarise, table.whole("keep").map(Keep::Messages), Summarise::keep);
    if let Some(name) = table.text("model") {
        summarise = summarise.model(models.named(name.value)?);
    }
    if table.flag("lasting") {
        summarise = summarise.lasting();
    }
    done(summarise)
}

fn timeout(table: &Table<'_>, _: &Models<'_>) -> Result<Arc<dyn Handler>> {
    let limit =
        table.seconds("seconds").ok_or_else(|| missing("say how long a call may take, with `seconds`"))?;
    done(Timeout::new(limit))
}

fn todo_list(_: &Table<'_>, _: &Models<'_>) -> Result<Arc<dyn Handler>> {
    done(TodoList::new())
}

fn tool_call_limit(table: &Table<'_>, _: &Models<'_>) -> Result<Arc<dyn Handler>> {
    let limit = match table.text("tool") {
        Some(tool) => ToolCallLimit::of(tool.value),
        None => ToolCallLimit::new(),
    };
    let limit = with(limit, table.whole("run"), ToolCallLimit::run);
    let limit = with(limit, table.whole("session"), ToolCallLimit::session);
    let exit = table.choice("exit", &[("continue", 0), ("end", 1), ("error", 2)]).map(|word| match word {
        0 => ToolLimitExit::Continue,
        1 => ToolLimitExit::End,
        _ => ToolLimitExit::Error,
    });
    done(with(limit, exit, ToolCallLimit::exit))
}

fn tool_retry(table: &Table<'_>, _: &Models<'_>) -> Result<Arc<dyn Handler>> {
    let mut retry = with(ToolRetry::new(), table.whole("max_retries"), ToolRetry::max_retries);
    let tools = names(table, "tools");
    if !tools.is_empty() {
        retry = retry.tools(tools);
    }
    done(retry.backoff(backoff(table)))
}

fn tool_select(table: &Table<'_>, models: &Models<'_>) -> Result<Arc<dyn Handler>> {
    let mut select = with(ToolSelect::new(), table.whole("max_tools"), ToolSelect::max_tools);
    select = with(select, table.whole("max_retries"), ToolSelect::max_retries);
    if let Some(name) = table.text("model") {
        select = select.model(models.named(name.value)?);
    }
    done(select.always_include(names(table, "always_include")))
}

fn usage_limit(table: &Table<'_>, _: &Models<'_>) -> Result<Arc<dyn Handler>> {
    let limit = with(UsageLimit::new(), table.whole("run_tokens"), UsageLimit::run_tokens);
    let limit = with(limit, table.whole("session_tokens"), UsageLimit::session_tokens);
    done(with(limit, model_exit(table), UsageLimit::exit))
}
