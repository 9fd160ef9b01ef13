//! Constrained answers: a compiled grammar, and when in an answer it begins to apply.

use tern_engine::{Constraint, SharedConstraint};
use tern_grammar::{CompiledGrammar, Grammar, GrammarError};

use crate::Model;
use crate::preamble::{AfterPreamble, ChatStart, Preamble};

/// A constraint that every text of a request follows.
pub struct CompiledConstraint {
    compiled: CompiledGrammar,
    preamble: Option<Preamble>,
}

impl CompiledConstraint {
    /// The state of one more text.
    pub fn shared(&self) -> SharedConstraint {
        let constraint = self.compiled.constraint();
        match self.preamble.clone() {
            None => SharedConstraint::new(constraint),
            Some(preamble) => SharedConstraint::new(AfterPreamble { constraint, preamble }),
        }
    }
}

impl CompiledConstraint {
    /// The same, for a constraint around it.
    pub(crate) fn boxed(&self) -> Box<dyn Constraint> {
        let constraint = self.compiled.constraint();
        match self.preamble.clone() {
            None => Box::new(constraint),
            Some(preamble) => Box::new(AfterPreamble { constraint, preamble }),
        }
    }
}

impl Model {
    /// Compiles a constraint, which blocks. `chat` is the start of a chat's answer.
    ///
    /// A model that reasons and is given a schema does both: the constraint applies after the
    /// reasoning, at once if the answer opens none. If tools may be called as well, the start token of
    /// a call lifts the constraint.
    pub fn constraint(
        &self,
        grammar: &Grammar,
        chat: Option<ChatStart<'_>>,
    ) -> Result<CompiledConstraint, GrammarError> {
        let compiled = self.grammar_compiler().compile(grammar)?;
        let forced = matches!(grammar, Grammar::Calls { .. });
        let preamble = chat.and_then(|chat| Preamble::new(self, chat, forced));
        Ok(CompiledConstraint { compiled, preamble })
    }
}
