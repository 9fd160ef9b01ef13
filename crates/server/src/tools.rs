//! The tools of a chat: which are offered, and which must be called.

use std::sync::Arc;

use serde_json::{Value, json};
use tern::text::ToolSchemas;

use crate::Config;
use crate::error::{ApiError, Result};
use crate::ignored::Object;
use crate::json::size_and_depth;
use crate::params::Params;

/// The tools of a request.
#[derive(Debug, Default)]
pub(crate) struct Tools {
    /// Names and argument schemas.
    pub(crate) functions: Vec<(String, Value)>,
    pub(crate) choice: ToolChoice,
    /// Parallel calls are allowed.
    pub(crate) many: bool,
}

/// Whether a tool may or must be called.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) enum ToolChoice {
    #[default]
    None,
    Auto,
    /// Any tool.
    Required,
    /// This tool.
    Named(String),
}

const CHOICES: &str =
    "\"none\", \"auto\", \"required\" or {\"type\": \"function\", \"function\": {\"name\": ...}}";

impl Tools {
    /// The tools, and their descriptions as a template takes them.
    pub(crate) fn take(params: &mut Params, config: &Config) -> Result<(Tools, Vec<Value>)> {
        let many = params.bool("parallel_tool_calls")?.unwrap_or(true);
        let offered = params.array("tools")?.unwrap_or_default();
        if offered.len() > config.max_tools {
            return Err(ApiError::too_many("tools", offered.len(), config.max_tools, "tools"));
        }
        // checked before they are copied, rendered and compiled
        let sizes: Vec<(usize, usize)> = offered.iter().map(size_and_depth).collect();
        let bytes = sizes.iter().map(|(bytes, _)| bytes).sum();
        if bytes > config.max_tool_bytes {
            return Err(ApiError::too_many("tools", bytes, config.max_tool_bytes, "bytes as JSON"));
        }
        let depth = sizes.iter().map(|(_, depth)| *depth).max().unwrap_or(0);
        if depth > config.max_tool_depth {
            return Err(ApiError::too_many("tools", depth, config.max_tool_depth, "levels of nesting"));
        }
        let functions: Result<Vec<_>> =
            offered.iter().enumerate().map(|(at, tool)| function(tool, at, params)).collect();
        let functions = functions?;
        let choice = choice(params.take("tool_choice"), &functions)?;
        Ok((Tools { functions, choice, many }, offered))
    }

    /// Whether the model may call tools.
    pub(crate) fn enabled(&self) -> bool {
        self.choice != ToolChoice::None
    }

    /// What is needed to parse calls, if the model may call tools.
    pub(crate) fn schemas(&self) -> Option<Arc<ToolSchemas>> {
        let functions = self.functions.iter().map(|(name, parameters)| (name.as_str(), parameters));
        self.enabled().then(|| Arc::new(ToolSchemas::new(functions)))
    }

    /// The tools of which one must be called, if any.
    pub(crate) fn forced(&self) -> Option<Vec<(String, Value)>> {
        match &self.choice {
            ToolChoice::None | ToolChoice::Auto => None,
            ToolChoice::Required => Some(self.functions.clone()),
            ToolChoice::Named(named) => {
                Some(self.functions.iter().filter(|(name, _)| name == named).cloned().collect())
            }
        }
    }

    /// Whether more than one call is allowed: a named function is called once.
    pub(crate) fn many(&self) -> bool {
        self.many && !matches!(self.choice, ToolChoice::Named(_))
    }
}

/// The name and the schema of a tool.
fn function(tool: &Value, at: usize, body: &Params) -> Result<(String, Value)> {
    let mut tool = body.nested(tool.clone(), &format!("tools[{at}]"))?;
    let kind = tool.required_string("type")?;
    if kind != "function" {
        return Err(ApiError::expected(&tool.name("type"), "\"function\"", &kind.into()));
    }
    let missing = tool.missing("function");
    let mut function = tool.object("function")?.ok_or(missing)?;
    tool.finish(Object::Tool, &[])?;
    let name = function.required_string("name")?;
    let known = |c: char| c.is_ascii_alphanumeric() || "_-.:/".contains(c);
    if name.is_empty() || name.len() > 128 || !name.chars().all(known) {
        let expected = "1 to 128 letters, digits and _-.:/";
        return Err(ApiError::expected(&function.name("name"), expected, &name.into()));
    }
    function.string("description")?;
    function.bool("strict")?; // a forced call always follows its schema
    let parameters =
        function.take("parameters").unwrap_or_else(|| json!({"type": "object", "properties": {}}));
    if !parameters.is_object() {
        return Err(ApiError::expected(&function.name("parameters"), "an object", &parameters));
    }
    function.finish(Object::Function, &[])?;
    Ok((name, parameters))
}

fn choice(choice: Option<Value>, functions: &[(String, Value)]) -> Result<ToolChoice> {
    let choice = match choice {
        None if functions.is_empty() => ToolChoice::None,
        None => ToolChoice::Auto,
        Some(Value::String(word)) => match word.as_str() {
            "none" => ToolChoice::None,
            "auto" => ToolChoice::Auto,
            "required" => ToolChoice::Required,
            _ => return Err(ApiError::expected("tool_choice", CHOICES, &word.into())),
        },
        Some(object) => {
            let name = object["function"]["name"].as_str();
            match name.filter(|_| object["type"] == "function") {
                Some(name) => ToolChoice::Named(name.to_owned()),
                None => return Err(ApiError::expected("tool_choice", CHOICES, &object)),
            }
        }
    };
    match &choice {
        ToolChoice::None => {}
        ToolChoice::Auto if functions.is_empty() => return Ok(ToolChoice::None),
        _ if functions.is_empty() => {
            return Err(ApiError::bad("tool_choice", "tool_choice: requires tools"));
        }
        ToolChoice::Named(name) if !functions.iter().any(|(known, _)| known == name) => {
            return Err(ApiError::bad("tool_choice", format!("tool_choice: unknown tool {name:?}")));
        }
        _ => {}
    }
    Ok(choice)
}
