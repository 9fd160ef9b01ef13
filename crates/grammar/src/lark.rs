//! Strings and choices in the syntax of Lark.

use serde_json::Value;

use crate::error::GrammarError;
use crate::limits;

/// A grammar that accepts exactly these texts.
pub(crate) fn choice(choices: &[String]) -> Result<String, GrammarError> {
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
    // one terminal, not one rule per choice: one choice may be a prefix of another
    Ok(format!("start: CHOICE\nCHOICE: {}\n", literals.join(" | ")))
}

/// A text as a Lark string.
pub(crate) fn literal(text: &str) -> String {
    // the syntax of JSON strings, except for the one control character that JSON does not escape
    Value::from(text).to_string().replace('\u{7f}', "\\u007f")
}

#[cfg(test)]
mod tests {
    use super::*;

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
