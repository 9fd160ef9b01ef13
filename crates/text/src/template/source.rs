//! Checks of a template's source before it is compiled.

use minijinja::machinery::{Token, tokenize};
use minijinja::syntax::SyntaxConfig;

use super::TemplateError;

/// Limit of a template in bytes; the longest in use have 20 kB.
pub(super) const LONGEST: usize = 1 << 20;
/// Tokens between `{{` and `}}`: the depth of an expression's tree is bounded by its length.
const TAG_TOKENS: usize = 1_000;
/// `elif`s in a template: each is nested in the previous one.
const ELIFS: usize = 500;
/// Bytes that constant products such as `"-" * 20` may create while compiling.
const CONSTANT_BYTES: u64 = 1 << 20;

/// `{% generation %}` marks the assistant's text for training; it renders as its body in a new scope.
pub(super) fn without_generation_tags(source: &str) -> String {
    let mut out = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(at) = rest.find("{%") {
        let (before, tag) = rest.split_at(at);
        out.push_str(before);
        let Some(end) = tag.find("%}") else {
            rest = tag;
            break;
        };
        let (tag, after) = tag.split_at(end + 2);
        match tag.trim_start_matches("{%").trim_end_matches("%}").trim_matches(['-', '+']).trim() {
            "generation" => out.push_str(&tag.replace("generation", "with")),
            "endgeneration" => out.push_str(&tag.replace("endgeneration", "endwith")),
            _ => out.push_str(tag),
        }
        rest = after;
    }
    out.push_str(rest);
    out
}

/// Rejects source that could exhaust the stack or memory during compilation.
pub(super) fn check(source: &str, syntax: &SyntaxConfig) -> Result<(), TemplateError> {
    if source.len() > LONGEST {
        return Err(TemplateError::Source { len: source.len(), limit: LONGEST });
    }
    let mut elifs = 0;
    let mut tag = Tag::default();
    let mut constants: u64 = 0;
    for token in tokenize(source, false, syntax.clone()) {
        let Ok((token, span)) = token else {
            return Ok(()); // the compiler will report the error
        };
        let line = usize::from(span.start_line);
        match &token {
            Token::TemplateData(_) | Token::VariableStart | Token::BlockStart => tag = Tag::default(),
            Token::VariableEnd | Token::BlockEnd => {
                constants = tag.constant_bytes().saturating_add(constants);
                if constants > CONSTANT_BYTES {
                    return Err(TemplateError::Complex { line, what: "constant products too large" });
                }
            }
            token => {
                tag.add(token);
                elifs += usize::from(matches!(token, Token::Ident("elif")));
            }
        }
        if tag.tokens > TAG_TOKENS {
            return Err(TemplateError::Complex { line, what: "expression too long" });
        }
        if elifs > ELIFS {
            return Err(TemplateError::Complex { line, what: "too many elif" });
        }
    }
    Ok(())
}

/// Whether an expression names a variable. Names of members, after a dot, are none.
pub(super) fn has_variable(source: &str, syntax: &SyntaxConfig, name: &str) -> bool {
    let mut after_dot = false;
    tokenize(source, false, syntax.clone()).map_while(Result::ok).any(|(token, _)| {
        let is_variable = !after_dot && matches!(token, Token::Ident(found) if found == name);
        after_dot = matches!(token, Token::Dot);
        is_variable
    })
}

/// The contents of one `{{ }}` or `{% %}`.
#[derive(Default)]
struct Tag {
    tokens: usize,
    multiplies: bool,
    listed: bool, // a list or tuple may be written in it, of no more elements than it has tokens
    longest: u64, // string literal
    largest: u64, // no sum or product of its numbers is larger
}

impl Tag {
    fn add(&mut self, token: &Token<'_>) {
        self.tokens += 1;
        // the sum of two numbers from two on is no larger than their product
        let number = match token {
            Token::Int(number) => (*number).max(2),
            Token::Ident("true" | "True" | "false" | "False") => 2,
            // powers, quotients and fractions have no such bound
            Token::Int128(_) | Token::Float(_) | Token::Pow => u64::MAX,
            _ => 1,
        };
        self.largest = self.largest.max(1).saturating_mul(number);
        match token {
            Token::Mul => self.multiplies = true,
            Token::Str(text) => self.longest = self.longest.max(text.len() as u64),
            Token::String(text) => self.longest = self.longest.max(text.len() as u64),
            Token::BracketOpen | Token::Comma => self.listed = true,
            _ => {}
        }
    }

    /// Upper bound on the bytes created by constant folding.
    fn constant_bytes(&self) -> u64 {
        let longest = if self.listed { self.longest.max(self.tokens as u64) } else { self.longest };
        if self.multiplies { longest.saturating_mul(self.largest) } else { 0 }
    }
}
