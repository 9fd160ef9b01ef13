//! The kinds of grammars, and their translation for the parser.

use llguidance::api::TopLevelGrammar;
use serde_json::{Value, json};
use tern_text::{CallTexts, Tokenizer};

use crate::error::GrammarError;
use crate::gbnf::{Rules, is_gbnf};
use crate::{calls, lark, limits, schema};

/// What the whole text must match.
#[derive(Clone, Debug, PartialEq)]
pub enum Grammar {
    /// Any JSON object.
    JsonObject,
    /// JSON that is valid under this schema; properties are in the schema's order.
    JsonSchema(Value),
    /// A regex in the syntax of Rust's `regex` crate, which matches the whole text,
    /// with or without `^` and `$`.
    Regex(String),
    /// A grammar in llguidance's variant of Lark; its first rule is `start`.
    Lark(String),
    /// A grammar of llama.cpp; the rule of the whole text is `root`.
    Gbnf(String),
    /// One of these texts.
    Choice(Vec<String>),
    /// Tool calls.
    Calls {
        /// How the model writes calls.
        texts: CallTexts,
        /// The tools: a name, and a JSON schema for the arguments.
        tools: Vec<(String, Value)>,
        /// Whether several calls are allowed.
        many: bool,
    },
}

/// What a grammar is compiled from.
pub(crate) enum Translated {
    Parser(TopLevelGrammar),
    Gbnf(Rules),
}

impl Grammar {
    /// A grammar as text: GBNF if a line defines a rule by `::=`, otherwise Lark.
    pub fn of_text(text: String) -> Grammar {
        if is_gbnf(&text) { Grammar::Gbnf(text) } else { Grammar::Lark(text) }
    }

    /// Its name in errors.
    pub(crate) fn noun(&self) -> &'static str {
        match self {
            Grammar::JsonObject | Grammar::JsonSchema(_) => "JSON schema",
            Grammar::Regex(_) => "regex",
            Grammar::Lark(_) => "Lark grammar",
            Grammar::Gbnf(_) => "GBNF grammar",
            Grammar::Choice(_) => "choice",
            Grammar::Calls { .. } => "list of tools",
        }
    }

    /// Checks everything that can be checked without the parser, and translates it.
    pub(crate) fn translate(&self, tokenizer: &Tokenizer) -> Result<Translated, GrammarError> {
        let parser = match self {
            Grammar::Gbnf(text) => {
                check_text("GBNF grammar", text)?;
                let invalid = |why| GrammarError::Invalid { what: "GBNF grammar", why };
                return Rules::new(text).map(Translated::Gbnf).map_err(invalid);
            }
            Grammar::JsonObject => {
                Ok(TopLevelGrammar::from_json_schema(schema::with_options(json!({"type": "object"}))))
            }
            Grammar::JsonSchema(value) => {
                schema::check_size("JSON schema", [value], limits::TEXT)?;
                Ok(TopLevelGrammar::from_json_schema(schema::with_options(schema::clean(value)?)))
            }
            Grammar::Regex(pattern) => {
                check_text("regex", pattern)?;
                Ok(TopLevelGrammar::from_regex(whole(pattern)?))
            }
            Grammar::Lark(text) => {
                check_text("Lark grammar", text)?;
                Ok(TopLevelGrammar::from_lark(text.clone()))
            }
            Grammar::Choice(choices) => lark::choice(choices).map(TopLevelGrammar::from_lark),
            Grammar::Calls { texts, tools, many } => {
                calls::lark(texts, tools, *many, tokenizer).map(TopLevelGrammar::from_lark)
            }
        };
        parser.map(Translated::Parser)
    }
}

fn check_text(what: &'static str, text: &str) -> Result<(), GrammarError> {
    match text.len() {
        0 => Err(GrammarError::Empty(what)),
        found if found > limits::PATTERN_TEXT => {
            Err(GrammarError::Size { what, found, limit: limits::PATTERN_TEXT })
        }
        _ => Ok(()),
    }
}

/// Removes the anchors around the pattern: the parser always matches the whole text.
fn whole(pattern: &str) -> Result<&str, GrammarError> {
    use regex_syntax::hir::{HirKind, Look};

    let invalid = |why: String| GrammarError::Invalid { what: "regex", why };
    let parsed = regex_syntax::parse(pattern).map_err(|error| match error {
        regex_syntax::Error::Parse(error) => invalid(error.kind().to_string()),
        regex_syntax::Error::Translate(error) => invalid(error.kind().to_string()),
        other => invalid(other.to_string()),
    })?;
    let HirKind::Concat(parts) = parsed.kind() else { return Ok(pattern) };
    let is = |part: Option<&regex_syntax::hir::Hir>, look| {
        part.is_some_and(|part| matches!(part.kind(), HirKind::Look(found) if *found == look))
    };
    let mut inner = pattern;
    if is(parts.first(), Look::Start) {
        inner = inner.strip_prefix('^').unwrap_or(inner);
    }
    if is(parts.last(), Look::End) {
        inner = inner.strip_suffix('$').unwrap_or(inner);
    }
    if inner.is_empty() { Err(GrammarError::Empty("regex")) } else { Ok(inner) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn anchors_around_the_whole_pattern_are_removed() {
        for (pattern, want) in [
            ("^ab$", "ab"),
            ("ab", "ab"),
            ("^ab", "ab"),
            (r"ab\$", r"ab\$"),
            ("^a|b$", "^a|b$"),
            ("a$b", "a$b"),
        ] {
            assert_eq!(whole(pattern).as_deref(), Ok(want));
        }
        let why = |pattern| whole(pattern).unwrap_err().to_string();
        assert_eq!(
            why("a\\"),
            "invalid regex: incomplete escape sequence, reached end of pattern prematurely"
        );
        assert_eq!(
            why("(?=a)b"),
            "invalid regex: look-around, including look-ahead and look-behind, is not supported"
        );
        assert_eq!(why("^$"), "the regex must not be empty");
    }
}
