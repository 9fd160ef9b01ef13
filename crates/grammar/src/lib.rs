//! Text that must follow rules: a JSON schema, any JSON object, a regex, a Lark grammar, a choice, a tool call.
//!
//! [`Grammars`] knows a vocabulary, [`Grammars::compile`] turns a [`Grammar`] into a [`Compiled`] one, and each text
//! takes its own [`TextRules`] from it, which say token by token what may follow. The parser behind it is
//! `llguidance`; this crate gives it our vocabulary and takes nothing from a stranger unbounded: size, depth, time
//! and memory have limits, and a part of a schema that would not be followed is an error.
//!
//! ```
//! use std::sync::Arc;
//! use tern_engine::Rules;
//! use tern_grammar::{Grammar, Grammars};
//! # use tern_formats::Checkpoint;
//! # use tern_text::Tokenizer;
//! # let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../cli/models/tern-stories-1bit.gguf");
//! # let tokenizer = Tokenizer::from_metadata(&Checkpoint::open(path.as_ref())?.metadata)?;
//!
//! let grammars = Grammars::new(Arc::new(tokenizer));
//! let compiled = grammars.compile(&Grammar::Choice(vec!["yes".into(), "no".into()]))?;
//! let mut rules = compiled.rules();
//! let mask = rules.mask()?;
//! assert!(mask.iter().any(|&word| word != 0));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! What is deliberately absent: the crate samples nothing, reads no tool call back out of a text, validates no
//! finished document and fetches nothing: a schema that refers to another document is refused.

mod calls;
mod error;
mod grammar;
mod grammars;
mod limits;
mod rules;
mod schema;
mod slots;
mod vocabulary;

pub use error::GrammarError;
pub use grammar::Grammar;
pub use grammars::Grammars;
pub use rules::{Compiled, TextRules};
