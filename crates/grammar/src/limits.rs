//! Limits on untrusted grammars.

use std::time::Duration;

use llguidance::api::ParserLimits;

/// Bytes of a schema, or of all choices together.
pub(crate) const TEXT: usize = 64 << 10;
/// Bytes of a regex or a Lark grammar: time and memory can grow quadratically (`a?a?a?...`).
pub(crate) const PATTERN_TEXT: usize = 16 << 10;
/// Bytes of one regex in a schema.
pub(crate) const SCHEMA_PATTERN: usize = 4 << 10;
/// Bytes of the schemas of all tools together.
pub(crate) const TOOLS_TEXT: usize = 256 << 10;
/// Nesting depth of objects and arrays in a schema.
pub(crate) const DEPTH: usize = 64;
/// Objects in a schema, or in the schemas of all tools: with references each can add one level of nesting.
pub(crate) const OBJECTS: usize = 8192;
/// Number of choices.
pub(crate) const CHOICES: usize = 1024;
/// Bytes of one choice.
pub(crate) const CHOICE: usize = 4096;
/// Number of tools, as in the OpenAI API.
pub(crate) const TOOLS: usize = 128;
/// Calls per answer.
pub(crate) const CALLS: usize = 16;
/// `patternProperties` per object: every pair of them is compared.
pub(crate) const PATTERNS: usize = 16;
/// Repetitions of an item of a GBNF grammar.
pub(crate) const REPETITIONS: usize = 2000;
/// Items of a GBNF grammar, with all repetitions.
pub(crate) const GBNF_ITEMS: usize = 200_000;
/// Places of a GBNF grammar at which a text may be at the same time.
pub(crate) const GBNF_PLACES: usize = 2000;
/// States of a GBNF grammar that are known at the same time, of 1 to 2 kB.
pub(crate) const GBNF_STATES: usize = 20_000;
/// Places of a GBNF grammar that are visited for one mask: less than half a second.
pub(crate) const GBNF_WORK: usize = 2_000_000;

/// Grammars compiled at the same time.
pub(crate) const COMPILING: usize = 4;
/// How long a grammar waits for a free slot.
pub(crate) const WAIT: Duration = Duration::from_secs(5);
/// How long a grammar may compile.
pub(crate) const COMPILE: Duration = Duration::from_secs(3);
/// Stack of a compiling thread: each reference in a schema adds one level of recursion, of up to 8 KiB.
pub(crate) const STACK: usize = 256 << 20;

/// The parser's own limits.
pub(crate) fn parser() -> ParserLimits {
    ParserLimits {
        max_items_in_row: 2000,
        initial_lexer_fuel: 1_000_000,
        step_lexer_fuel: 100_000, // about 7 ms
        step_max_items: 50_000,   // about 3 ms
        max_lexer_states: 20_000, // 1 to 2 kB per state
        max_grammar_size: 200_000,
        precompute_large_lexemes: true,
        verbose_errors: false,
    }
}
