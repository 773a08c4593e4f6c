//! Agents of a file, and how they are put together.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::Value;
use toml::de::DeValue;
use umbel::{
    Agent, AgentTool, CodeExecution, Confirm, Effort, GenerateConfig, Handler, IncludeContents, LlmAgent,
    LoopAgent, Parallel, Result, Sequential, Thinking, Tool,
};

use super::models::{Chosen, script};
use super::table::{At, Table, json};
use super::tools::{BUILT_IN, Confirmed, Toolbox, Tools, built_in};
use super::{Reading, handlers};

/// An agent as the file has it.
pub(super) struct Drawn<'a> {
    pub(super) name: At<&'a str>,
    pub(super) description: &'a str,
    pub(super) suggestions: Vec<&'a str>,
    kind: Kind,
    pub(super) model: Option<Chosen>,
    instruction: Option<String>,
    code: Option<CodeExecution>,
    settings: GenerateConfig,
    history: bool,
    output_key: Option<&'a str>,
    output_schema: Option<Value>,
    input_schema: Option<Value>,
    tools: Vec<Wanted<'a>>,
    handlers: Vec<Arc<dyn Handler>>,
    /// Agents below it, or the steps of a workflow.
    below: Vec<At<&'a str>>,
    rounds: Option<u32>,
}

/// A tool that an agent wants.
struct Wanted<'a> {
    name: At<&'a str>,
    confirm: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Agent,
    Sequential,
    Parallel,
    Loop,
}

/// All agents of a file, by name.
pub(super) type Agents<'a> = BTreeMap<&'a str, Drawn<'a>>;

impl<'a> Reading<'a> {
    /// The agents that the file describes.
    pub(super) fn agents(&self, agents: &Table<'a>, usual: Option<&At<&str>>) -> Agents<'a> {
        let mut all = Agents::new();
        for (name, value) in agents.all() {
            let Some(mut table) = Table::of(self.problems, value) else { continue };
            table.at = name.at.clone();
            // It is part of addresses, and a name for models to call.
            let is_fit = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
            if !name.value.chars().all(is_fit) || !name.value.starts_with(|c: char| c.is_ascii_alphabetic()) {
                let message = format!("`{}` is no name of an agent", name.value);
                self.problems.hint(
                    &name.at,
                    message,
                    "use letters, digits, `_` and `-`, and begin with a letter",
                );
            }
            all.insert(name.value, self.agent(name, table, usual));
        }
        all
    }

    fn agent(&self, name: At<&'a str>, table: Table<'a>, usual: Option<&At<&str>>) -> Drawn<'a> {
        let kinds = [
            ("agent", Kind::Agent),
            ("sequential", Kind::Sequential),
            ("parallel", Kind::Parallel),
            ("loop", Kind::Loop),
        ];
        let kind = table.choice("kind", &kinds).unwrap_or(Kind::Agent);
        let text = |key| table.text(key).map(|text| text.value);
        let list = table.list("handlers");
        let handlers =
            list.iter().filter_map(|value| handlers::read(self.problems, value, &self.models)).collect();
        let mut drawn = Drawn {
            description: text("description").unwrap_or_default(),
            suggestions: table.texts("suggestions").into_iter().map(|text| text.value).collect(),
            kind,
            model: None,
            instruction: None,
            code: None,
            settings: GenerateConfig::default(),
            history: true,
            output_key: None,
            output_schema: None,
            input_schema: None,
            tools: Vec::new(),
            handlers,
            below: Vec::new(),
            rounds: None,
            name,
        };
        if kind == Kind::Agent {
            drawn.model = self.model(&drawn.name, &table, usual);
            drawn.instruction = self.instruction(&table);
            drawn.code = self.code(&table);
            drawn.settings = table.table("settings").map(settings).unwrap_or_default();
            drawn.history = table.maybe_flag("history").unwrap_or(true);
            drawn.output_key = text("output_key");
            drawn.output_schema = table
                .table("output_schema")
                .and_then(|_| table.get("output_schema"))
                .map(|s| json(s.get_ref()));
            drawn.input_schema = table
                .table("input_schema")
                .and_then(|_| table.get("input_schema"))
                .map(|s| json(s.get_ref()));
            drawn.tools = self.wanted(&table);
            drawn.below = table.texts("sub_agents");
        } else {
            drawn.below = table.texts("steps");
            if drawn.below.is_empty() {
                let message = format!("the workflow `{}` has no steps", drawn.name.value);
                self.problems.hint(&drawn.name.at, message, "name agents in their order: steps = [\"…\"]");
            }
        }
        if kind == Kind::Loop {
            drawn.rounds = table.whole("max_iterations");
        }
        table.finish();
        drawn
    }

    /// The model of an agent: its script, its own, that of the file, or the usual one.
    fn model(&self, name: &At<&str>, table: &Table<'a>, usual: Option<&At<&str>>) -> Option<Chosen> {
        let (own, has_script) = (table.text("model"), table.get("script").is_some());
        let answers = table.list("script");
        if has_script {
            if let Some(own) = own {
                let message = "an agent has a model or a script, and not both";
                self.problems.hint(&own.at, message, "leave one of them out");
            } else if answers.is_empty() {
                self.problems.note(&name.at, format!("the script of `{}` has no answers", name.value));
            }
            return Some(script(self.problems, &answers));
        }
        let named = own.as_ref().map(|own| At { value: own.value, at: own.at.clone() });
        let named = named.or_else(|| usual.map(|usual| At { value: usual.value, at: usual.at.clone() }));
        if let Some(named) = named {
            return match self.models.named(named.value) {
                Ok(model) => Some(Chosen { model, words: crate::args::shown(named.value) }),
                Err(error) => {
                    self.problems.note(&named.at, error.message());
                    None
                }
            };
        }
        match self.models.usual() {
            Ok(Some(chosen)) => Some(chosen),
            Ok(None) => {
                let hint =
                    "say model = \"provider/model\" here or at the top of the file, or start with --model";
                self.problems.hint(&name.at, format!("`{}` has no model", name.value), hint);
                None
            }
            Err(error) => {
                self.problems.note(&name.at, error.message());
                None
            }
        }
    }

    fn instruction(&self, table: &Table<'a>) -> Option<String> {
        let file = table.text("instruction_file");
        match (table.text("instruction"), file) {
            (Some(_), Some(file)) => {
                let message = "the instruction stands here or in a file, and not in both places";
                self.problems.hint(&file.at, message, "leave one of them out");
                None
            }
            (Some(text), None) => Some(text.value.to_owned()),
            (None, Some(file)) => self.read_file(&file),
            (None, None) => None,
        }
    }

    /// The tools that an agent wants: names, or tables with a name and `confirm`.
    fn wanted(&self, table: &Table<'a>) -> Vec<Wanted<'a>> {
        let read = |value: &'a toml::Spanned<DeValue<'a>>| {
            if let Some(name) = value.get_ref().as_str() {
                return Some(Wanted { name: At { value: name, at: value.span() }, confirm: false });
            }
            let table = Table::of(self.problems, value)?;
            let wanted = table.text("name").map(|name| Wanted { name, confirm: table.flag("confirm") });
            if wanted.is_none() {
                self.problems.hint(
                    &table.at,
                    "the tool has no `name`",
                    "such as { name = \"…\", confirm = true }",
                );
            }
            table.finish();
            wanted
        };
        table.list("tools").into_iter().filter_map(read).collect()
    }

    /// An agent with all that is below it. What is wrong is noted, and left out.
    pub(super) fn make(
        &self,
        name: &At<&'a str>,
        agents: &Agents<'a>,
        toolbox: &Toolbox,
        within: &mut Vec<&'a str>,
    ) -> Option<Arc<dyn Agent>> {
        let Some(drawn) = agents.get(name.value) else {
            let known: Vec<&str> = agents.keys().copied().collect();
            self.problems.unknown(&name.at, "the agent", name.value, &known);
            return None;
        };
        if within.contains(&drawn.name.value) {
            let way = within.iter().chain([&drawn.name.value]).copied().collect::<Vec<_>>().join(" → ");
            self.problems.hint(&name.at, format!("the agents go in a circle: {way}"), "take it out here");
            return None;
        }
        within.push(drawn.name.value);
        let below = drawn
            .below
            .iter()
            .filter_map(|name| self.make(name, agents, toolbox, within))
            .collect::<Vec<_>>();
        let tools = self.tools_of(drawn, agents, toolbox, within);
        within.pop();
        Some(drawn.build(below, tools))
    }

    fn tools_of(
        &self,
        drawn: &Drawn<'a>,
        agents: &Agents<'a>,
        toolbox: &Toolbox,
        within: &mut Vec<&'a str>,
    ) -> Tools {
        let mut all = Tools::default();
        for Wanted { name, confirm } in &drawn.tools {
            let found: Vec<Arc<dyn Tool>> = if let Some(Tools { known, servers }) = toolbox.get(name.value) {
                all.servers.extend(servers.iter().cloned().map(|server| match confirm {
                    true => server.confirm(Confirm::Always),
                    false => server,
                }));
                known.clone()
            } else if let Some(tool) = built_in(name.value) {
                vec![tool]
            } else if agents.contains_key(name.value) {
                let agent = self.make(name, agents, toolbox, within);
                agent.map(|agent| Arc::new(AgentTool::new(agent)) as Arc<dyn Tool>).into_iter().collect()
            } else {
                // One that could not be made has been told of.
                if !self.described.contains(&name.value) {
                    let known = BUILT_IN.iter().chain(&self.described).chain(agents.keys());
                    self.problems.unknown(
                        &name.at,
                        "the tool",
                        name.value,
                        &known.copied().collect::<Vec<_>>(),
                    );
                }
                Vec::new()
            };
            all.known.extend(found.into_iter().map(|tool| match confirm {
                true => Arc::new(Confirmed::new(tool)) as Arc<dyn Tool>,
                false => tool,
            }));
        }
        all
    }
}

impl<'a> Drawn<'a> {
    /// The names of the agents that it works with.
    pub(super) fn others(&self) -> impl Iterator<Item = &'a str> {
        let tools = self.tools.iter().map(|wanted| wanted.name.value);
        self.below.iter().map(|name| name.value).chain(tools).collect::<Vec<_>>().into_iter()
    }

    fn build(&self, below: Vec<Arc<dyn Agent>>, tools: Tools) -> Arc<dyn Agent> {
        let name = self.name.value;
        macro_rules! workflow {
            ($group:expr) => {{
                let mut group = $group.description(self.description);
                for agent in below {
                    group = group.agent(agent);
                }
                for handler in &self.handlers {
                    group = group.handler(handler.clone());
                }
                Arc::new(group)
            }};
        }
        match self.kind {
            Kind::Agent => Arc::new(self.llm_agent(below, tools)),
            Kind::Sequential => workflow!(Sequential::new(name)),
            Kind::Parallel => workflow!(Parallel::new(name)),
            Kind::Loop => match self.rounds {
                Some(rounds) => workflow!(LoopAgent::new(name).max_iterations(rounds)),
                None => workflow!(LoopAgent::new(name)),
            },
        }
    }

    fn llm_agent(&self, below: Vec<Arc<dyn Agent>>, tools: Tools) -> LlmAgent {
        let mut agent = LlmAgent::new(self.name.value).description(self.description);
        agent = agent.generate(self.settings.clone());
        if let Some(chosen) = &self.model {
            agent = agent.model(chosen.model.clone());
        }
        if let Some(instruction) = &self.instruction {
            agent = agent.instruction(instruction.as_str());
        }
        if let Some(execution) = &self.code {
            agent = agent.code_executor(execution.clone());
        }
        if !self.history {
            agent = agent.include_contents(IncludeContents::None);
        }
        if let Some(key) = self.output_key {
            agent = agent.output_key(key);
        }
        if let Some(schema) = &self.output_schema {
            agent = agent.output_schema(schema.clone());
        }
        if let Some(schema) = &self.input_schema {
            agent = agent.input_schema(schema.clone());
        }
        for tool in tools.known {
            agent = agent.tool(tool);
        }
        for server in tools.servers {
            agent = agent.toolset(server);
        }
        for handler in &self.handlers {
            agent = agent.handler(handler.clone());
        }
        for other in below {
            agent = agent.sub_agent(other);
        }
        agent
    }
}

/// How a model is asked.
fn settings(table: Table<'_>) -> GenerateConfig {
    let settings = GenerateConfig {
        temperature: table.number("temperature"),
        top_p: table.number("top_p"),
        top_k: table.whole("top_k"),
        max_output_tokens: table.whole("max_tokens"),
        stop_sequences: table.texts("stop").into_iter().map(|text| text.value.to_owned()).collect(),
        seed: table.whole("seed"),
        presence_penalty: table.number("presence_penalty"),
        frequency_penalty: table.number("frequency_penalty"),
        parallel_calls: table.maybe_flag("parallel_calls"),
        thinking: table.table("thinking").map(thinking),
        ..GenerateConfig::default()
    };
    table.finish();
    settings
}

fn thinking(table: Table<'_>) -> Thinking {
    let efforts = [
        ("minimal", Effort::Minimal),
        ("low", Effort::Low),
        ("medium", Effort::Medium),
        ("high", Effort::High),
    ];
    let thinking = Thinking {
        include_thoughts: table.maybe_flag("show").unwrap_or(true),
        budget: table.whole("budget"),
        effort: table.choice("effort", &efforts),
    };
    table.finish();
    thinking
}

/// What goes wrong when a runner is made of an agent.
pub(super) fn check(agent: &Arc<dyn Agent>, handlers: &[Arc<dyn Handler>]) -> Result<()> {
    let runner = umbel::Runner::builder("check", agent.clone());
    handlers.iter().fold(runner, |runner, handler| runner.handler(handler.clone())).build().map(drop)
}
