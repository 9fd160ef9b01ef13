//! From a grammar to its compiled form, within bounds.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::thread;
use std::time::Duration;

use llguidance::api::TopLevelGrammar;
use llguidance::toktrie::TokEnv;
use llguidance::{Matcher, ParserFactory};
use tern_text::Tokenizer;

use crate::error::{GrammarError, first_line};
use crate::grammar::Grammar;
use crate::limits;
use crate::rules::Compiled;
use crate::slots::Slots;
use crate::vocabulary::Vocabulary;

/// Compiles grammars for one vocabulary. Clones share everything.
#[derive(Clone)]
pub struct Grammars {
    ready: Result<Arc<Ready>, GrammarError>,
    slots: Arc<Slots>,
}

struct Ready {
    vocabulary: Arc<Vocabulary>,
    factory: ParserFactory,
}

impl Grammars {
    /// Sorts the vocabulary once: a fraction of a second.
    ///
    /// A vocabulary that cannot be constrained (it has no end token, say) is an error of [`Self::compile`].
    pub fn new(tokenizer: Arc<Tokenizer>) -> Grammars {
        let ready = catch_unwind(AssertUnwindSafe(|| {
            let vocabulary = Arc::new(Vocabulary::new(tokenizer)?);
            let env: TokEnv = vocabulary.clone();
            let mut factory = ParserFactory::new_simple(&env).map_err(first_line)?;
            factory.quiet();
            *factory.limits_mut() = limits::parser();
            Ok(Arc::new(Ready { vocabulary, factory }))
        }));
        let ready = ready.unwrap_or_else(|_| Err("its vocabulary is too large".into()));
        Grammars { ready: ready.map_err(GrammarError::Vocabulary), slots: Slots::new(limits::COMPILING) }
    }

    /// Compiles a grammar: milliseconds as a rule, a few seconds at most. It blocks.
    pub fn compile(&self, grammar: &Grammar) -> Result<Compiled, GrammarError> {
        self.compile_within(grammar, limits::WAIT, limits::COMPILE)
    }

    fn compile_within(
        &self,
        grammar: &Grammar,
        wait: Duration,
        limit: Duration,
    ) -> Result<Compiled, GrammarError> {
        let ready = self.ready.clone()?;
        let what = grammar.noun();
        let translated = grammar.translate(ready.vocabulary.tokenizer())?;

        let slot = self.slots.take(wait).ok_or(GrammarError::Busy)?;
        let (send, receive) = sync_channel(1);
        // a thread for its stack, and because the parser cannot be stopped: one that is late runs on to its own
        // limits, and keeps its slot until then
        let work = move || {
            let _ = send.send(ready.compile(translated));
            drop(slot);
        };
        let spawned = thread::Builder::new().name("grammar".into()).stack_size(limits::STACK).spawn(work);
        spawned.map_err(|_| GrammarError::Busy)?;
        match receive.recv_timeout(limit) {
            Ok(compiled) => compiled.map_err(|why| GrammarError::Invalid { what, why }),
            Err(RecvTimeoutError::Timeout) => Err(GrammarError::Slow { what, limit }),
            Err(RecvTimeoutError::Disconnected) => {
                Err(GrammarError::Invalid { what, why: "the parser failed".into() })
            }
        }
    }
}

impl Ready {
    fn compile(&self, grammar: TopLevelGrammar) -> Result<Compiled, String> {
        let work = || {
            let mut matcher = Matcher::new(self.factory.create_parser(grammar));
            // a grammar that no text follows is found out here, not in mid-answer
            matcher.compute_mask().map_err(|error| why(&error.to_string()))?;
            Ok(Compiled { matcher, tokens: self.vocabulary.tokenizer().vocab_size() })
        };
        catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|_| Err("the parser failed".into()))
    }
}

impl std::fmt::Debug for Grammars {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Grammars")
    }
}

/// The parser's words, with ours where its own speak to its developers.
fn why(message: &str) -> String {
    const OURS: &[(&str, &str)] = &[
        ("oneOf constraints", "the options of a `oneOf` overlap or cannot be told apart: use `anyOf`"),
        ("NoExtension", "no text of this vocabulary follows it"),
        ("panic:", "the parser failed"),
    ];
    let ours = OURS.iter().find(|(theirs, _)| message.contains(theirs));
    ours.map_or_else(|| first_line(message), |&(_, ours)| ours.into())
}

#[cfg(test)]
mod tests {
    use tern_formats::Checkpoint;

    use super::*;

    #[test]
    fn a_slow_grammar_is_given_up_and_keeps_its_slot() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../cli/models/tern-stories-1bit.gguf");
        let tokenizer = Tokenizer::from_metadata(&Checkpoint::open(path.as_ref()).unwrap().metadata).unwrap();
        let grammars = Grammars::new(Arc::new(tokenizer));
        let slow = Grammar::Regex("a?".repeat(4000));
        let error = |wait, limit| grammars.compile_within(&slow, wait, limit).unwrap_err().to_string();
        for _ in 0..limits::COMPILING {
            assert_eq!(
                error(Duration::ZERO, Duration::from_millis(2)),
                "the regex takes more than 2ms to compile"
            );
        }
        assert_eq!(
            error(Duration::ZERO, Duration::from_secs(60)),
            "too many grammars are being compiled: try again later"
        );
        // the slots come back, and the next one is served
        let quick = Grammar::Choice(vec!["a".into()]);
        assert!(grammars.compile_within(&quick, Duration::from_secs(60), Duration::from_secs(60)).is_ok());
    }
}
