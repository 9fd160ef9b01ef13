//! Constrained decoding: text that follows a JSON schema, a regex, a Lark or GBNF grammar, a list
//! of choices or a tool call.
//!
//! [`GrammarCompiler::compile`] turns a [`Grammar`] into a [`CompiledGrammar`] for one vocabulary; each
//! sequence gets its own [`GrammarConstraint`] from it, which gives the mask of allowed tokens step by step.
//! The parser is `llguidance`, except for GBNF. This crate adapts our vocabulary to it and bounds untrusted
//! input in size, depth, time and memory; a schema keyword that would be ignored is an error.
//!
//! ```
//! use std::sync::Arc;
//! use tern_engine::Constraint;
//! use tern_grammar::{Grammar, GrammarCompiler};
//! # use tern_formats::Checkpoint;
//! # use tern_text::Tokenizer;
//! # let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../tern/models/tern-stories-1bit.gguf");
//! # let tokenizer = Tokenizer::from_metadata(&Checkpoint::open(path.as_ref())?.metadata)?;
//!
//! let compiler = GrammarCompiler::new(Arc::new(tokenizer));
//! let compiled = compiler.compile(&Grammar::Choice(vec!["yes".into(), "no".into()]))?;
//! let mut constraint = compiled.constraint();
//! let mask = constraint.mask()?;
//! assert!(mask.iter().any(|&word| word != 0));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Deliberately absent: sampling, parsing of tool calls in generated text, validation of finished documents,
//! and downloads: a schema that refers to another document is rejected.

mod arguments;
mod calls;
mod compiler;
mod constraint;
mod elements;
mod error;
mod gbnf;
mod grammar;
mod lark;
mod limits;
mod schema;
mod slots;
mod vocabulary;

pub use compiler::GrammarCompiler;
pub use constraint::{CompiledGrammar, GrammarConstraint};
pub use error::GrammarError;
pub use grammar::Grammar;
