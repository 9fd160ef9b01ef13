//! What backends that compute inside `submit` keep of their steps.

use std::collections::HashMap;

use super::error::{BackendError, Result};
use super::handles::{Program, Ticket};
use super::step::{Step, StepOutput};

/// Finished steps that have not been collected, and the samples that the next step may carry over: for
/// backends that compute inside `submit`.
#[derive(Debug, Default)]
pub struct Finished {
    steps: u64,
    waiting: Vec<(u64, StepOutput)>,
    /// The last step of each program: which of its outputs sampled, and which tokens.
    last: HashMap<Program, (Vec<bool>, Vec<Option<u32>>)>,
}

impl Finished {
    /// Fills in the tokens that a step carries over from the one before it.
    pub fn carry(&mut self, program: Program, step: &mut Step) -> Result<()> {
        // removed: nothing is carried over from a step that fails
        let before = step.carried_from.unwrap_or(program);
        let (sampled, ids) = self.last.remove(&before).unwrap_or_default();
        self.last.remove(&program);
        step.check_carried(&sampled)?;
        for carried in &step.carried {
            if let (Some(&Some(id)), Some(token)) =
                (ids.get(carried.output), step.tokens.get_mut(carried.token))
            {
                *token = id;
            }
        }
        Ok(())
    }

    /// Keeps the output of a step until it is collected, and its samples for the next step.
    pub fn keep_step(&mut self, program: Program, step: &Step, output: StepOutput) -> Ticket {
        let sampled = step.outputs.iter().map(|o| o.sample.is_some()).collect();
        let ids = output.rows.iter().map(|row| row.sampled.as_ref().map(|s| s.id)).collect();
        self.last.insert(program, (sampled, ids));
        self.keep(output)
    }

    /// Keeps an output until it is collected.
    fn keep(&mut self, output: StepOutput) -> Ticket {
        self.steps += 1;
        self.waiting.push((self.steps, output));
        Ticket(self.steps)
    }

    /// The output of a ticket.
    pub fn take(&mut self, ticket: Ticket) -> Result<StepOutput> {
        let at = self.waiting.iter().position(|w| w.0 == ticket.0);
        let at = at.ok_or_else(|| {
            BackendError::Invalid("the ticket is from another backend or was collected before".into())
        })?;
        Ok(self.waiting.swap_remove(at).1)
    }
}
