//! GBNF, llama.cpp's grammars: parsed to rules of bytes, and matched byte by byte without a lexer.
//!
//! A lexer that prefers the longest match, as llguidance has, would reject texts of some GBNF grammars:
//! their rules are about single characters. So they have their own automaton, which also walks the
//! vocabulary's token tree.

mod automaton;
mod bytes;
mod matcher;
mod parse;
mod rules;

pub(crate) use self::matcher::GbnfMatcher;
pub(crate) use self::rules::Rules;

/// Whether a grammar is GBNF and not Lark: a line defines a rule by `::=`.
pub(crate) fn is_gbnf(text: &str) -> bool {
    text.lines().any(|line| {
        let name = line.trim_start().trim_start_matches(parse::is_name);
        name.len() < line.trim_start().len() && name.trim_start().starts_with("::=")
    })
}
