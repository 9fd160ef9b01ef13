//! The tools of a chat: which are offered, and which must be called.

use std::sync::Arc;

use serde_json::{Value, json};
use tern::text::ToolSchemas;

use crate::Config;
use crate::http::error::{ApiError, Result};
use crate::request::ignored::Object;
use crate::request::json::size_and_depth;
use crate::request::params::Params;

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
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) enum ToolChoice {
    #[default]
    None,
    Auto,
    /// Any tool.
    Required,
    /// This tool.
    Named(String),
}

/// The tools that a request allows, and whether one of them must be called.
pub(crate) struct AllowedTools {
    pub(crate) names: Vec<String>,
    pub(crate) required: bool,
}

/// A function that is offered to the model.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Function {
    pub(crate) name: String,
    pub(crate) description: Option<String>,
    /// The schema of its arguments.
    pub(crate) parameters: Value,
}

const CHOICES: &str =
    "\"none\", \"auto\", \"required\" or {\"type\": \"function\", \"function\": {\"name\": ...}}";

impl Tools {
    /// The tools in the shape of chat completions, and their descriptions as a template takes them.
    pub(crate) fn take(params: &mut Params, config: &Config) -> Result<(Tools, Vec<Value>)> {
        let many = params.bool("parallel_tool_calls")?.unwrap_or(true);
        let offered = params.array("tools")?.unwrap_or_default();
        check_sizes(&offered, config)?;
        let function = |(at, tool): (usize, &Value)| {
            let mut tool = params.nested(tool.clone(), &format!("tools[{at}]"))?;
            let kind = tool.required_string("type")?;
            if kind != "function" {
                return Err(ApiError::expected(&tool.name("type"), "\"function\"", &kind.into()));
            }
            let missing = tool.missing("function");
            let mut function = tool.object("function")?.ok_or(missing)?;
            tool.finish(Object::Tool, &[])?;
            let taken = Function::take(&mut function, "parameters")?;
            function.finish(Object::Function, &[])?;
            Ok((taken.name, taken.parameters))
        };
        let functions: Result<Vec<_>> = offered.iter().enumerate().map(function).collect();
        let (functions, mut offered) = (functions?, offered);
        let mut tools = Tools { functions, choice: ToolChoice::None, many };
        match params.take("tool_choice") {
            Some(choice) if choice["type"] == "allowed_tools" => {
                let allowed = AllowedTools::of(&choice["allowed_tools"], |tool| &tool["function"]["name"])?;
                tools.choose(Some(allowed.choice()))?;
                tools.restrict(&allowed)?;
                offered.retain(|tool| allowed.names.iter().any(|name| tool["function"]["name"] == **name));
            }
            choice => tools.choose(choice.map(chosen).transpose()?)?,
        }
        Ok((tools, offered))
    }

    /// Sets the choice, which is `Auto` if there are tools and none is given.
    pub(crate) fn choose(&mut self, choice: Option<ToolChoice>) -> Result<()> {
        let known = |named: &str| self.functions.iter().any(|(name, _)| name == named);
        self.choice = match choice {
            None | Some(ToolChoice::Auto) if self.functions.is_empty() => ToolChoice::None,
            None => ToolChoice::Auto,
            Some(choice @ (ToolChoice::None | ToolChoice::Auto)) => choice,
            Some(_) if self.functions.is_empty() => {
                return Err(ApiError::bad("tool_choice", "tool_choice: requires tools"));
            }
            Some(ToolChoice::Named(name)) if !known(&name) => {
                return Err(ApiError::bad("tool_choice", format!("tool_choice: unknown tool {name:?}")));
            }
            Some(choice) => choice,
        };
        Ok(())
    }

    /// Removes the tools that are not allowed.
    pub(crate) fn restrict(&mut self, allowed: &AllowedTools) -> Result<()> {
        if let Some(name) =
            allowed.names.iter().find(|name| !self.functions.iter().any(|(known, _)| known == *name))
        {
            return Err(ApiError::bad("tool_choice", format!("tool_choice: unknown tool {name:?}")));
        }
        self.functions.retain(|(name, _)| allowed.names.contains(name));
        Ok(())
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

impl AllowedTools {
    /// From `{"mode": ..., "tools": [...]}`.
    pub(crate) fn of(allowed: &Value, name: impl Fn(&Value) -> &Value) -> Result<AllowedTools> {
        let expected = "{\"mode\": \"auto\" or \"required\", \"tools\": [...]}";
        let wrong = || ApiError::expected("tool_choice", expected, allowed);
        let tools = allowed["tools"].as_array().ok_or_else(wrong)?;
        let names: Option<Vec<String>> =
            tools.iter().map(|tool| name(tool).as_str().map(str::to_owned)).collect();
        let required = match allowed["mode"].as_str() {
            Some("required") => true,
            Some("auto") | None => false,
            Some(_) => return Err(wrong()),
        };
        Ok(AllowedTools { names: names.ok_or_else(wrong)?, required })
    }

    pub(crate) fn choice(&self) -> ToolChoice {
        if self.required { ToolChoice::Required } else { ToolChoice::Auto }
    }
}

impl Function {
    /// A function whose argument schema is the member `schema`.
    pub(crate) fn take(function: &mut Params, schema: &str) -> Result<Function> {
        let name = function.required_string("name")?;
        let known = |c: char| c.is_ascii_alphanumeric() || "_-.:/".contains(c);
        if name.is_empty() || name.len() > 128 || !name.chars().all(known) {
            let expected = "1 to 128 letters, digits and _-.:/";
            return Err(ApiError::expected(&function.name("name"), expected, &name.into()));
        }
        let description = function.string("description")?;
        function.bool("strict")?; // a forced call always follows its schema
        let parameters = function.take(schema).unwrap_or_else(|| json!({"type": "object", "properties": {}}));
        if !parameters.is_object() {
            return Err(ApiError::expected(&function.name(schema), "an object", &parameters));
        }
        Ok(Function { name, description, parameters })
    }

    /// As a template takes it.
    pub(crate) fn offered(&self) -> Value {
        let mut function = json!({"name": self.name, "parameters": self.parameters});
        if let Some(description) = &self.description {
            function["description"] = description.as_str().into();
        }
        json!({"type": "function", "function": function})
    }
}

/// Checks the number, the size and the depth of tools, before they are copied, rendered and compiled.
pub(crate) fn check_sizes(offered: &[Value], config: &Config) -> Result<()> {
    if offered.len() > config.max_tools {
        return Err(ApiError::too_many("tools", offered.len(), config.max_tools, "tools"));
    }
    let sizes: Vec<(usize, usize)> = offered.iter().map(size_and_depth).collect();
    let bytes = sizes.iter().map(|(bytes, _)| bytes).sum();
    if bytes > config.max_tool_bytes {
        return Err(ApiError::too_many("tools", bytes, config.max_tool_bytes, "bytes as JSON"));
    }
    let depth = sizes.iter().map(|(_, depth)| *depth).max().unwrap_or(0);
    if depth > config.max_tool_depth {
        return Err(ApiError::too_many("tools", depth, config.max_tool_depth, "levels of nesting"));
    }
    Ok(())
}

/// `tool_choice` of chat completions.
fn chosen(choice: Value) -> Result<ToolChoice> {
    match &choice {
        Value::String(word) => match word.as_str() {
            "none" => Ok(ToolChoice::None),
            "auto" => Ok(ToolChoice::Auto),
            "required" => Ok(ToolChoice::Required),
            _ => Err(ApiError::expected("tool_choice", CHOICES, &choice)),
        },
        object => match object["function"]["name"].as_str().filter(|_| object["type"] == "function") {
            Some(name) => Ok(ToolChoice::Named(name.to_owned())),
            None => Err(ApiError::expected("tool_choice", CHOICES, object)),
        },
    }
}
