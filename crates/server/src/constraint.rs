//! Answers that must follow rules: what a request asks for, and when in an answer the rules begin.

use axum::http::StatusCode;
use serde_json::Value;
use tern_engine::Guide;
use tern_grammar::{CompiledGrammar, Grammar, GrammarError};

use crate::error::{ApiError, Result};
use crate::json::Values;
use crate::model::Served;
use crate::opening::{Chat, Opened, Opening};
use crate::params::{Params, parsed};

/// A grammar and the parameter that asked for it.
#[derive(Debug, PartialEq)]
pub(crate) struct Wanted {
    pub(crate) grammar: Grammar,
    pub(crate) param: &'static str,
}

/// What a request says about the form of its answer, in any of the ways clients have.
pub(crate) fn take(params: &mut Params) -> Result<Option<Wanted>> {
    let mut wanted = Vec::new();
    if let Some(format) = params.object("response_format")? {
        wanted.extend(response_format(format)?.map(|grammar| Wanted { grammar, param: "response_format" }));
    }
    if let Some(mut outputs) = params.object("structured_outputs")? {
        for (name, kind) in
            [("json", Kind::Json), ("regex", Kind::Regex), ("choice", Kind::Choice), ("grammar", Kind::Lark)]
        {
            wanted.extend(kind.take(&mut outputs, name, "structured_outputs")?);
        }
        if outputs.bool("json_object")?.unwrap_or(false) {
            wanted.push(Wanted { grammar: Grammar::JsonObject, param: "structured_outputs" });
        }
        for name in ["disable_any_whitespace", "disable_additional_properties"] {
            if outputs.bool(name)?.unwrap_or(false) {
                let path = outputs.name(name);
                return Err(ApiError::bad(&*path, format!("{path}: only false is supported")));
            }
        }
        outputs.finish(&["disable_fallback"], &[])?;
    }
    for (name, kind) in [
        ("guided_json", Kind::Json),
        ("guided_regex", Kind::Regex),
        ("guided_choice", Kind::Choice),
        ("guided_grammar", Kind::Lark),
    ] {
        wanted.extend(kind.take(params, name, name)?);
    }
    match wanted.len() {
        0 | 1 => Ok(wanted.pop()),
        _ => {
            let (first, second) = (wanted[0].param, wanted[1].param);
            Err(ApiError::bad(second, format!("{second}: the form is already given by {first}")))
        }
    }
}

#[derive(Clone, Copy)]
enum Kind {
    Json,
    Regex,
    Choice,
    Lark,
}

impl Kind {
    fn take(self, params: &mut Params, name: &str, param: &'static str) -> Result<Option<Wanted>> {
        let path = params.name(name);
        let grammar = match self {
            Kind::Json => match params.take(name) {
                // a schema may come as text
                Some(Value::String(text)) => {
                    Some(Grammar::JsonSchema(parsed(Values::new().parse(&text), &path)?))
                }
                schema => schema.map(Grammar::JsonSchema),
            },
            Kind::Regex => params.string(name)?.map(Grammar::Regex),
            Kind::Lark => params.string(name)?.map(Grammar::Lark),
            Kind::Choice => {
                let text = |value: Value| match value {
                    Value::String(text) => Ok(text),
                    other => Err(ApiError::want(&path, "an array of strings", &other)),
                };
                let choices = params.array(name)?.map(|choices| choices.into_iter().map(text).collect());
                choices.transpose()?.map(Grammar::Choice)
            }
        };
        Ok(grammar.map(|grammar| Wanted { grammar, param }))
    }
}

fn response_format(mut format: Params) -> Result<Option<Grammar>> {
    let kind = format.need_string("type")?;
    let grammar = match kind.as_str() {
        "text" => None,
        // a schema beside the type is how llama.cpp's clients ask
        "json_object" => Some(format.take("schema").map_or(Grammar::JsonObject, Grammar::JsonSchema)),
        "json_schema" => {
            let missing = format.missing("json_schema");
            let mut named = format.object("json_schema")?.ok_or(missing)?;
            named.string("name")?;
            named.string("description")?;
            named.bool("strict")?; // it is always followed
            let schema = named.take("schema").ok_or_else(|| named.missing("schema"))?;
            named.finish(&[], &[])?;
            Some(Grammar::JsonSchema(schema))
        }
        _ => {
            let want = "\"text\", \"json_object\" or \"json_schema\"";
            return Err(ApiError::want("response_format.type", want, &kind.into()));
        }
    };
    format.finish(&[], &[])?;
    Ok(grammar)
}

/// Rules that are ready for every text of a request.
pub(crate) struct Constraint {
    compiled: CompiledGrammar,
    opening: Option<Opening>,
}

impl Constraint {
    /// Compiles a grammar. `chat` is the end of a chat's prompt: there the rules may have to wait.
    ///
    /// A model that reasons and is given a schema should do both, so the rules begin behind the reasoning: at once if
    /// it never opens it, and after its end if the prompt or the model opens it. Where tools may be called as well,
    /// the mark of a call lets the model go.
    pub(crate) fn new(served: &Served, wanted: &Wanted, chat: Option<Chat<'_>>) -> Result<Constraint> {
        let compiled = served.grammars().compile(&wanted.grammar).map_err(|error| match error {
            GrammarError::Busy => ApiError::new(StatusCode::TOO_MANY_REQUESTS, error.to_string()).retry(1),
            error => ApiError::bad(wanted.param, format!("{}: {error}", wanted.param)),
        })?;
        let opening = chat.and_then(|chat| Opening::new(served, chat));
        Ok(Constraint { compiled, opening })
    }

    /// The rules of one more text.
    pub(crate) fn guide(&self) -> Guide {
        let rules = self.compiled.constraint();
        match self.opening.clone() {
            None => Guide::new(rules),
            Some(opening) => Guide::new(Opened { rules, opening }),
        }
    }
}
