//! What an agent's answer writes to the state.

use umbel_core::{Agent, Event, Mode, Part, Result};

use crate::agents::LlmAgent;

/// The words of an agent in this turn, for its output key.
#[derive(Default)]
pub(crate) struct Answer(String);

impl Answer {
    /// Writes the answer to the output key with the event that carries it.
    ///
    /// Words around tool calls add up; the result of a tool that answers directly stands alone. With an output schema the
    /// parsed value is written, once.
    pub(crate) fn save(&mut self, agent: &LlmAgent, event: &mut Event) -> Result<()> {
        let Some(key) = &agent.output_key else { return Ok(()) };
        if agent.transfer().mode == Mode::Task || event.is_partial() {
            return Ok(());
        }
        let Some(content) = &event.content else { return Ok(()) };
        let text = event.answer_text();
        if let Some(schema) = agent.schema() {
            if event.is_final() && !text.trim().is_empty() {
                let value = schema.parse(&text)?;
                event.actions_mut().set_state(key, value);
            }
            return Ok(());
        }
        let says = |part: &Part| part.as_text().is_some() && !part.is_thought();
        if !text.is_empty() {
            if event.direct_answer().is_some() {
                self.0.clear();
            }
            self.0.push_str(&text);
            let all = self.0.clone();
            event.actions_mut().set_state(key, all);
        } else if event.is_final() && content.parts.iter().any(says) {
            event.actions_mut().set_state(key, "");
        }
        Ok(())
    }
}
