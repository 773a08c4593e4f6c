//! Agents of a simulated world.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;

use serde_json::Value;
use umbel::{
    Agent, AgentFn, AgentTool, Content, Event, LlmAgent, LoopAgent, Mode, Parallel, Result, Run, Sequential,
    agent_fn, run_sub_agent,
};

use super::handlers::SimHandler;
use super::ledger::EmitNote;
use super::models::MoveModel;
use super::services::SimClock;
use super::tools::{self, ToolWorld};
use super::world::{AgentShape, ClosureAct, HandlerShape, KindShape, ModelMove, Relation, ToolShape, millis};

/// What agents need of the simulation.
#[derive(Clone, Debug)]
pub(super) struct AgentWorld {
    pub(super) tools: ToolWorld,
    pub(super) clock: SimClock,
    /// There is one agent, and people act one after the other in one process.
    pub(super) is_alone: bool,
}

impl AgentWorld {
    /// Makes an agent and all below it.
    pub(super) fn build(&self, shape: &AgentShape) -> Arc<dyn Agent> {
        match &shape.kind {
            KindShape::Llm { moves, tools } => self.llm(shape, moves, tools),
            KindShape::Sequence => {
                let mut agent = Sequential::new(shape.name()).description("Works in order.");
                for child in &shape.children {
                    agent = agent.agent(self.build(child));
                }
                Arc::new(self.handlers(shape).into_iter().fold(agent, Sequential::handler))
            }
            KindShape::Fanout => {
                let mut agent = Parallel::new(shape.name()).description("Works at once.");
                for child in &shape.children {
                    agent = agent.agent(self.build(child));
                }
                Arc::new(self.handlers(shape).into_iter().fold(agent, Parallel::handler))
            }
            KindShape::Rounds(rounds) => {
                let mut agent = LoopAgent::new(shape.name()).description("Repeats.").max_iterations(*rounds);
                for child in &shape.children {
                    agent = agent.agent(self.build(child));
                }
                Arc::new(self.handlers(shape).into_iter().fold(agent, LoopAgent::handler))
            }
            KindShape::Closure { acts, propagates } => {
                let mut agent = self.closure(shape, acts, *propagates);
                for child in &shape.children {
                    agent = agent.sub_agent(self.build(child));
                }
                Arc::new(self.handlers(shape).into_iter().fold(agent, AgentFn::handler))
            }
        }
    }

    fn handlers(&self, shape: &AgentShape) -> Vec<SimHandler> {
        shape.handlers.iter().map(|shape| self.handler(*shape)).collect()
    }

    /// Makes a handler.
    pub(super) fn handler(&self, shape: HandlerShape) -> SimHandler {
        SimHandler { shape, ledger: self.tools.ledger.clone() }
    }

    fn llm(&self, shape: &AgentShape, moves: &[ModelMove], tools: &[ToolShape]) -> Arc<dyn Agent> {
        let model = MoveModel {
            name: shape.name(),
            moves: Arc::new(moves.to_vec()),
            ledger: self.tools.ledger.clone(),
            clock: self.clock.clone(),
            is_alone: self.is_alone,
        };
        let mut agent = LlmAgent::new(shape.name()).description("Thinks.").model(model);
        agent = match shape.relation {
            Relation::TaskMode => agent.mode(Mode::Task),
            Relation::OneTurn => agent.mode(Mode::SingleTurn),
            Relation::Peer | Relation::AsTool => agent,
        };
        for tool in tools {
            agent = agent.tool(tools::build(tool, &self.tools));
        }
        for child in &shape.children {
            agent = match child.relation {
                Relation::AsTool => agent.tool(AgentTool::new(self.build(child))),
                _ => agent.sub_agent(self.build(child)),
            };
        }
        Arc::new(self.handlers(shape).into_iter().fold(agent, LlmAgent::handler))
    }

    fn closure(&self, shape: &AgentShape, acts: &[ClosureAct], propagates: bool) -> AgentFn {
        let (world, acts) = (self.clone(), Arc::new(acts.to_vec()));
        agent_fn(shape.name(), move |run| {
            let (world, acts) = (world.clone(), acts.clone());
            Box::pin(async move {
                for (place, act) in acts.iter().enumerate() {
                    let done = world.act(run, act, place).await;
                    match done {
                        // What a person is asked, or that the run is to stop, always ends a turn.
                        Err(error) if propagates || error.is_control() => return Err(error),
                        _ => {}
                    }
                }
                Ok(())
            })
        })
    }

    async fn act(&self, run: &Run, act: &ClosureAct, place: usize) -> Result<()> {
        let text =
            || run.event().with_content(Content::model(format!("{} at {place}", run.agent_name()).as_str()));
        match act {
            ClosureAct::EmitText => self.emit(run, text()).await,
            ClosureAct::EmitEscalation => {
                self.tools.ledger.count("closure.escalation");
                let mut event = text();
                event.actions_mut().escalate = Some(true);
                self.emit(run, event).await
            }
            ClosureAct::EmitState => {
                let mut event = text();
                event.actions_mut().set_state("closure", Value::from(place));
                event.actions_mut().set_state("temp:closure", Value::from(place));
                self.emit(run, event).await
            }
            ClosureAct::RunChild(child) => run_sub_agent(run, &format!("a{child}")).await,
            ClosureAct::RunChildWithin(child, ms) => {
                let name = format!("a{child}");
                let ran = tokio::time::timeout(millis(*ms), run_sub_agent(run, &name)).await;
                ran.unwrap_or_else(|_| {
                    self.tools.ledger.count("closure.timeout");
                    Ok(())
                })
            }
            ClosureAct::RunChildForPolls(child, polls) => {
                let name = format!("a{child}");
                match for_polls(*polls, run_sub_agent(run, &name)).await {
                    Some(ran) => ran,
                    None => {
                        self.tools.ledger.count("closure.drop");
                        Ok(())
                    }
                }
            }
            ClosureAct::SleepDeaf(ms) => {
                tokio::time::sleep(millis(*ms)).await;
                Ok(())
            }
            ClosureAct::AskPerson => run.interrupt("Shall I?").map(drop),
        }
    }

    /// Emits, and notes what was returned.
    async fn emit(&self, run: &Run, event: Event) -> Result<()> {
        let event = run.emit(event).await?;
        if !self.tools.life.is_dead() {
            // The last word of a run is stored with its outcome.
            let is_held = run.is_top() && event.is_final();
            let (key, run) = (run.session_key().clone(), run.id().clone());
            let note = EmitNote { key, run, event: event.id.clone(), is_held };
            self.tools.ledger.lock().emits.push(note);
        }
        Ok(())
    }
}

/// The value of a future, unless it needs more polls than this: then it is dropped.
pub(super) async fn for_polls<T>(polls: u32, future: impl Future<Output = T>) -> Option<T> {
    let mut left = polls;
    let mut future = pin!(future);
    poll_fn(|cx| {
        if left == 0 {
            return Poll::Ready(None);
        }
        left -= 1;
        let polled = future.as_mut().poll(cx).map(Some);
        if polled.is_pending() && left == 0 { Poll::Ready(None) } else { polled }
    })
    .await
}
