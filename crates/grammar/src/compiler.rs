//! Compiling grammars, with limits on time and parallelism.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::thread;
use std::time::Duration;

use llguidance::toktrie::TokEnv;
use llguidance::{Matcher, ParserFactory};
use tern_text::Tokenizer;

use crate::constraint::{CompiledGrammar, TextMatcher};
use crate::error::{GrammarError, first_line};
use crate::gbnf::GbnfMatcher;
use crate::grammar::{Grammar, Translated};
use crate::limits;
use crate::slots::Slots;
use crate::vocabulary::Vocabulary;

/// Compiles grammars for one vocabulary. Clones share everything.
#[derive(Clone)]
pub struct GrammarCompiler {
    ready: Result<Arc<Ready>, GrammarError>,
    slots: Arc<Slots>,
}

struct Ready {
    vocabulary: Arc<Vocabulary>,
    factory: ParserFactory,
}

impl GrammarCompiler {
    /// Builds the token tree of the vocabulary, which takes a fraction of a second.
    ///
    /// A vocabulary that cannot be constrained (without an end token, for example) is an
    /// error of [`Self::compile`].
    pub fn new(tokenizer: Arc<Tokenizer>) -> GrammarCompiler {
        let ready = catch_unwind(AssertUnwindSafe(|| {
            let vocabulary = Arc::new(Vocabulary::new(tokenizer)?);
            let env: TokEnv = vocabulary.clone();
            let mut factory = ParserFactory::new_simple(&env).map_err(first_line)?;
            factory.quiet();
            *factory.limits_mut() = limits::parser();
            Ok(Arc::new(Ready { vocabulary, factory }))
        }));
        let ready = ready.unwrap_or_else(|_| Err("the vocabulary is too large".into()));
        GrammarCompiler {
            ready: ready.map_err(GrammarError::Vocabulary),
            slots: Slots::new(limits::COMPILING),
        }
    }

    /// Compiles a grammar. Blocks, usually for milliseconds and at most for a few seconds.
    pub fn compile(&self, grammar: &Grammar) -> Result<CompiledGrammar, GrammarError> {
        self.compile_within(grammar, limits::WAIT, limits::COMPILE)
    }

    fn compile_within(
        &self,
        grammar: &Grammar,
        wait: Duration,
        limit: Duration,
    ) -> Result<CompiledGrammar, GrammarError> {
        let ready = self.ready.clone()?;
        let what = grammar.noun();
        let translated = grammar.translate(ready.vocabulary.tokenizer())?;

        let slot = self.slots.take(wait).ok_or(GrammarError::Busy)?;
        let (send, receive) = sync_channel(1);
        // a thread for its stack size, and because the parser cannot be cancelled: after a timeout it runs on
        // to its own limits, and keeps its slot until then
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
    /// A grammar that accepts no text fails here, not while generating.
    fn compile(&self, grammar: Translated) -> Result<CompiledGrammar, String> {
        let work = || {
            let matcher = match grammar {
                Translated::Parser(grammar) => {
                    let mut matcher = Matcher::new(self.factory.create_parser(grammar));
                    matcher.compute_mask().map_err(|error| why(&error.to_string()))?;
                    TextMatcher::Parser(Box::new(matcher))
                }
                Translated::Gbnf(rules) => {
                    TextMatcher::Gbnf(Box::new(GbnfMatcher::new(rules, Arc::clone(&self.vocabulary))?))
                }
            };
            Ok(CompiledGrammar { matcher, tokens: self.vocabulary.tokenizer().vocab_size() })
        };
        catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|_| Err("the parser failed".into()))
    }
}

impl std::fmt::Debug for GrammarCompiler {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("GrammarCompiler")
    }
}

/// The parser's message, replaced if it is meant for the parser's developers.
fn why(message: &str) -> String {
    const REPLACED: &[(&str, &str)] = &[
        ("oneOf constraints", "the options of a `oneOf` overlap or cannot be distinguished: use `anyOf`"),
        ("NoExtension", "no text of this vocabulary matches it"),
        ("panic:", "the parser failed"),
    ];
    let replaced = REPLACED.iter().find(|(part, _)| message.contains(part));
    replaced.map_or_else(|| first_line(message), |&(_, message)| message.into())
}

#[cfg(test)]
mod tests {
    use tern_formats::Checkpoint;

    use super::*;

    #[test]
    fn a_slow_grammar_times_out_and_keeps_its_slot() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../tern/models/tern-stories-1bit.gguf");
        let tokenizer = Tokenizer::from_metadata(&Checkpoint::open(path.as_ref()).unwrap().metadata).unwrap();
        let compiler = GrammarCompiler::new(Arc::new(tokenizer));
        let slow = Grammar::Regex("a?".repeat(4000));
        let error = |wait, limit| compiler.compile_within(&slow, wait, limit).unwrap_err().to_string();
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
        // the slots are released, and the next grammar compiles
        let quick = Grammar::Choice(vec!["a".into()]);
        assert!(compiler.compile_within(&quick, Duration::from_secs(60), Duration::from_secs(60)).is_ok());
    }
}
