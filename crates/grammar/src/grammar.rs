//! What a text may be asked to follow, and its translation for the parser.

use llguidance::api::TopLevelGrammar;
use serde_json::{Value, json};
use tern_text::{CallTexts, Tokenizer};

use crate::calls;
use crate::error::GrammarError;
use crate::{limits, schema};

/// What a text must follow, from its first character to its last.
#[derive(Clone, Debug, PartialEq)]
pub enum Grammar {
    /// Any JSON object.
    JsonObject,
    /// JSON that this schema describes; properties come in the schema's order.
    JsonSchema(Value),
    /// A regex in the syntax of Rust's `regex` crate. It matches the whole text, with or without `^` and `$`.
    Regex(String),
    /// A grammar in llguidance's variant of Lark, beginning at the rule `start`.
    Lark(String),
    /// One of these texts.
    Choice(Vec<String>),
    /// Calls of tools.
    Calls {
        /// How the model writes calls.
        texts: CallTexts,
        /// The tools: a name, and a JSON schema for the arguments.
        tools: Vec<(String, Value)>,
        /// Whether more than one call may follow each other.
        many: bool,
    },
}

impl Grammar {
    /// What an error calls it.
    pub(crate) fn noun(&self) -> &'static str {
        match self {
            Grammar::JsonObject | Grammar::JsonSchema(_) => "JSON schema",
            Grammar::Regex(_) => "regex",
            Grammar::Lark(_) => "Lark grammar",
            Grammar::Choice(_) => "choice",
            Grammar::Calls { .. } => "list of tools",
        }
    }

    /// Checks everything that can be checked without the parser, and puts it in the parser's words.
    pub(crate) fn translate(&self, tokenizer: &Tokenizer) -> Result<TopLevelGrammar, GrammarError> {
        match self {
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
            Grammar::Choice(choices) => choice(choices).map(TopLevelGrammar::from_lark),
            Grammar::Calls { texts, tools, many } => {
                calls::lark(texts, tools, *many, tokenizer).map(TopLevelGrammar::from_lark)
            }
        }
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

/// The pattern without anchors around it: it matches the whole text as it is.
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

fn choice(choices: &[String]) -> Result<String, GrammarError> {
    if choices.is_empty() {
        return Err(GrammarError::Empty("list of choices"));
    }
    let size = |what, found, limit| {
        if found > limit { Err(GrammarError::Size { what, found, limit }) } else { Ok(()) }
    };
    if choices.len() > limits::CHOICES {
        return Err(GrammarError::Count { what: "choices", found: choices.len(), limit: limits::CHOICES });
    }
    size("list of choices", choices.iter().map(String::len).sum(), limits::TEXT)?;
    for choice in choices {
        if choice.is_empty() {
            return Err(GrammarError::Empty("choice"));
        }
        size("choice", choice.len(), limits::CHOICE)?;
    }
    let literals: Vec<String> = choices.iter().map(|text| literal(text)).collect();
    // one terminal, not one rule a choice: a choice may begin with another
    Ok(format!("start: CHOICE\nCHOICE: {}\n", literals.join(" | ")))
}

/// A text as a Lark string.
pub(crate) fn literal(text: &str) -> String {
    // Lark's strings are those of JSON, but for the one control character that JSON leaves alone
    Value::from(text).to_string().replace('\u{7f}', "\\u007f")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn anchors_around_the_whole_pattern_go() {
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
            "the regex cannot be used: incomplete escape sequence, reached end of pattern prematurely"
        );
        assert_eq!(
            why("(?=a)b"),
            "the regex cannot be used: look-around, including look-ahead and look-behind, is not supported"
        );
        assert_eq!(why("^$"), "the regex must not be empty");
    }

    #[test]
    fn choices_are_bounded() {
        let error = |choices: Vec<String>| choice(&choices).unwrap_err().to_string();
        assert_eq!(error(vec![]), "the list of choices must not be empty");
        assert_eq!(error(vec!["a".into(), String::new()]), "the choice must not be empty");
        assert_eq!(error(vec!["a".into(); 1025]), "1025 choices: at most 1024 are allowed");
        assert_eq!(error(vec!["a".repeat(4097)]), "the choice has 4097 bytes: at most 4096 are allowed");
        assert_eq!(
            error(vec!["a".repeat(4096); 17]),
            "the list of choices has 69632 bytes: at most 65536 are allowed"
        );
    }
}
