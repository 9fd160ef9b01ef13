//! Constrained decoding: the grammar that a request asks for, in any of the parameters that clients use.

use axum::http::StatusCode;
use serde_json::Value;
use tern::grammar::{Grammar, GrammarError};
use tern::{ChatStart, CompiledConstraint};

use crate::http::error::{ApiError, Result};
use crate::models::model::ServedModel;
use crate::request::ignored::Object;
use crate::request::json::Values;
use crate::request::params::{Params, parsed};

/// A grammar and the parameter that set it.
#[derive(Debug, PartialEq)]
pub(crate) struct RequestedGrammar {
    pub(crate) grammar: Grammar,
    pub(crate) param: &'static str,
}

/// The constraint of a request: `response_format`, `structured_outputs`, `guided_*` or llama.cpp's `grammar`.
pub(crate) fn take(params: &mut Params) -> Result<Option<RequestedGrammar>> {
    let mut requested = Vec::new();
    if let Some(format) = params.object("response_format")? {
        requested.extend(
            response_format(format)?.map(|grammar| RequestedGrammar { grammar, param: "response_format" }),
        );
    }
    if let Some(mut outputs) = params.object("structured_outputs")? {
        for (name, kind) in [
            ("json", Kind::Json),
            ("regex", Kind::Regex),
            ("choice", Kind::Choice),
            ("grammar", Kind::Grammar),
        ] {
            requested.extend(kind.take(&mut outputs, name, "structured_outputs")?);
        }
        if outputs.bool("json_object")?.unwrap_or(false) {
            requested.push(RequestedGrammar { grammar: Grammar::JsonObject, param: "structured_outputs" });
        }
        for name in ["disable_any_whitespace", "disable_additional_properties"] {
            if outputs.bool(name)?.unwrap_or(false) {
                let path = outputs.name(name);
                return Err(ApiError::bad(&*path, format!("{path}: only false is supported")));
            }
        }
        outputs.finish(Object::Format, &[])?;
    }
    for (name, kind) in [
        ("guided_json", Kind::Json),
        ("guided_regex", Kind::Regex),
        ("guided_choice", Kind::Choice),
        ("guided_grammar", Kind::Grammar),
        ("grammar", Kind::Grammar),
    ] {
        requested.extend(kind.take(params, name, name)?);
    }
    match requested.len() {
        0 | 1 => Ok(requested.pop()),
        _ => {
            let (first, second) = (requested[0].param, requested[1].param);
            let message = match first == second {
                true => format!("{second}: must contain one constraint"),
                false => format!("{second}: cannot be combined with {first}"),
            };
            Err(ApiError::bad(second, message))
        }
    }
}

#[derive(Clone, Copy)]
enum Kind {
    Json,
    Regex,
    Choice,
    /// Lark or GBNF.
    Grammar,
}

impl Kind {
    fn take(self, params: &mut Params, name: &str, param: &'static str) -> Result<Option<RequestedGrammar>> {
        let path = params.name(name);
        let grammar = match self {
            Kind::Json => match params.take(name) {
                // a schema may be a string of JSON
                Some(Value::String(text)) => {
                    Some(Grammar::JsonSchema(parsed(Values::new().parse(&text), &path)?))
                }
                schema => schema.map(Grammar::JsonSchema),
            },
            Kind::Regex => params.string(name)?.map(Grammar::Regex),
            Kind::Grammar => params.string(name)?.map(Grammar::of_text),
            Kind::Choice => {
                let text = |value: Value| match value {
                    Value::String(text) => Ok(text),
                    other => Err(ApiError::expected(&path, "an array of strings", &other)),
                };
                let choices = params.array(name)?.map(|choices| choices.into_iter().map(text).collect());
                choices.transpose()?.map(Grammar::Choice)
            }
        };
        Ok(grammar.map(|grammar| RequestedGrammar { grammar, param }))
    }
}

fn response_format(mut format: Params) -> Result<Option<Grammar>> {
    let kind = format.required_string("type")?;
    let grammar = match kind.as_str() {
        "text" => None,
        // llama.cpp's clients send the schema next to the type
        "json_object" => Some(format.take("schema").map_or(Grammar::JsonObject, Grammar::JsonSchema)),
        "json_schema" => {
            let missing = format.missing("json_schema");
            let mut named = format.object("json_schema")?.ok_or(missing)?;
            named.string("name")?;
            named.string("description")?;
            named.bool("strict")?; // always strict
            let schema = named.take("schema").ok_or_else(|| named.missing("schema"))?;
            named.finish(Object::Format, &[])?;
            Some(Grammar::JsonSchema(schema))
        }
        _ => {
            let expected = "\"text\", \"json_object\" or \"json_schema\"";
            return Err(ApiError::expected("response_format.type", expected, &kind.into()));
        }
    };
    format.finish(Object::Format, &[])?;
    Ok(grammar)
}

/// Parameters for the format of an answer's text; the others constrain whatever is generated.
const FORMATS: &[&str] = &["response_format", "text.format", "output_config", "format"];

impl RequestedGrammar {
    /// Whether it is the format of a text.
    pub(crate) fn is_format(&self) -> bool {
        FORMATS.contains(&self.param)
    }

    /// Compiles the grammar. `chat` describes the start of a chat answer, which may
    /// reason or call a tool first.
    pub(crate) fn compile(
        &self,
        served: &ServedModel,
        chat: Option<ChatStart<'_>>,
    ) -> Result<CompiledConstraint> {
        served.model.constraint(&self.grammar, chat).map_err(|error| match error {
            GrammarError::Busy => ApiError::new(StatusCode::TOO_MANY_REQUESTS, error.to_string()).retry(1),
            error => ApiError::bad(self.param, format!("{}: {error}", self.param)),
        })
    }
}
