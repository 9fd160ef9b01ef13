//! The tools of a response: functions and free-form tools, whose calls are separate items.

use serde_json::{Value, json};

use crate::Config;
use crate::http::error::{ApiError, Result};
use crate::request::ignored::Object;
use crate::request::params::Params;
use crate::request::tools::{AllowedTools, Function, ToolChoice, Tools, check_sizes};

/// Tools that OpenAI runs itself. They are not offered to the model: nothing here can run them.
const HOSTED: &[&str] = &[
    "apply_patch",
    "code_interpreter",
    "computer",
    "computer_use_preview",
    "file_search",
    "image_generation",
    "local_shell",
    "mcp",
    "shell",
    "tool_search",
    "web_search",
    "web_search_preview",
];

/// The tools of a request.
pub(super) struct ResponseTools {
    pub(super) tools: Tools,
    /// As a template takes them.
    pub(super) offered: Vec<Value>,
    /// The names of free-form tools: their only argument is a text.
    pub(super) custom: Vec<String>,
}

pub(super) fn take(params: &mut Params, config: &Config) -> Result<ResponseTools> {
    let many = params.bool("parallel_tool_calls")?.unwrap_or(true);
    let given = params.array("tools")?.unwrap_or_default();
    check_sizes(&given, config)?;
    let (mut functions, mut custom) = (Vec::new(), Vec::new());
    for (at, tool) in given.into_iter().enumerate() {
        add(params.nested(tool, &format!("tools[{at}]"))?, &mut functions, &mut custom)?;
    }
    let mut offered: Vec<Value> = functions.iter().map(Function::offered).collect();
    let functions = functions.into_iter().map(|function| (function.name, function.parameters)).collect();
    let mut tools = Tools { functions, choice: ToolChoice::None, many };
    match params.take("tool_choice") {
        Some(choice) if choice["type"] == "allowed_tools" => {
            let allowed = AllowedTools::of(&choice, |tool| &tool["name"])?;
            tools.choose(Some(allowed.choice()))?;
            tools.restrict(&allowed)?;
            offered.retain(|tool| allowed.names.iter().any(|name| tool["function"]["name"] == **name));
        }
        choice => tools.choose(choice.map(chosen).transpose()?)?,
    }
    Ok(ResponseTools { tools, offered, custom })
}

fn add(mut tool: Params, functions: &mut Vec<Function>, custom: &mut Vec<String>) -> Result<()> {
    let kind = tool.required_string("type")?;
    match kind.as_str() {
        "function" => functions.push(Function::take(&mut tool, "parameters")?),
        "custom" => {
            tool.object("format")?; // a grammar of the text, which is not enforced
            let function = Function::take(&mut tool, "parameters")?;
            let input = json!({"input": {"type": "string"}});
            let parameters = json!({"type": "object", "properties": input, "required": ["input"], "additionalProperties": false});
            custom.push(function.name.clone());
            functions.push(Function { parameters, ..function });
        }
        // a group of tools, such as those of one server
        "namespace" => {
            let path = tool.name("tools");
            tool.string("name")?;
            tool.string("description")?;
            for (at, inner) in tool.array("tools")?.unwrap_or_default().into_iter().enumerate() {
                add(tool.nested(inner, &format!("{path}[{at}]"))?, functions, custom)?;
            }
        }
        hosted if HOSTED.contains(&hosted) || hosted.starts_with("web_search") => {
            tracing::debug!(tool = hosted, "a tool that only OpenAI can run is not offered to the model");
            return Ok(());
        }
        _ => {
            let expected = "\"function\", \"custom\" or \"namespace\"";
            return Err(ApiError::expected(&tool.name("type"), expected, &kind.into()));
        }
    }
    tool.finish(Object::Tool, &[])
}

fn chosen(choice: Value) -> Result<ToolChoice> {
    let expected =
        "\"none\", \"auto\", \"required\", {\"type\": \"function\", \"name\": ...} or allowed_tools";
    match &choice {
        Value::String(word) => match word.as_str() {
            "none" => Ok(ToolChoice::None),
            "auto" => Ok(ToolChoice::Auto),
            "required" => Ok(ToolChoice::Required),
            _ => Err(ApiError::expected("tool_choice", expected, &choice)),
        },
        object => {
            let named = object["type"] == "function" || object["type"] == "custom";
            match object["name"].as_str().filter(|_| named) {
                Some(name) => Ok(ToolChoice::Named(name.to_owned())),
                None => Err(ApiError::expected("tool_choice", expected, object)),
            }
        }
    }
}
