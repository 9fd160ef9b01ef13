//! The parameters of a message.

use serde_json::{Map, Value};
use tern::grammar::Grammar;

use super::input;
use crate::Config;
use crate::http::error::{ApiError, Result};
use crate::request::chat_request::ChatRequest;
use crate::request::clients;
use crate::request::constraint::RequestedGrammar;
use crate::request::ignored::Object;
use crate::request::options::{Options, unparsed};
use crate::request::params::{Params, Unparsed};
use crate::request::prepare::Preparation;
use crate::request::prompt::{Chat, model_or_adapter};
use crate::request::template_variables;
use crate::request::tools::{Function, ToolChoice, Tools, check_sizes};

/// Parameters that are not supported, and why.
const REFUSED: &[(&str, &str)] = &[
    ("container", "containers are not supported"),
    ("mcp_servers", "MCP servers are not supported"),
    ("n", "a message has one answer"),
    ("prompt", "use messages, or /v1/completions"),
];

/// A validated request.
pub(super) struct MessageRequest {
    pub(super) chat: ChatRequest,
    pub(super) model: String,
    pub(super) stream: bool,
}

/// `max_tokens` is required for an answer, and not for counting.
pub(super) fn take(preparation: &Preparation<'_>, answers: bool) -> Result<MessageRequest> {
    let Preparation { served, config, .. } = *preparation;
    let unparsed = Unparsed { kept: clients::ANTHROPIC_NAMES, ..unparsed(config) };
    let mut params = Params::parse(preparation.body, unparsed)?.naming(preparation.images);
    params.rename("stop_sequences", "stop");
    let model = model_or_adapter(&mut params, served)?;
    let stream = params.bool("stream")?.unwrap_or(false);
    if answers && params.peek("max_tokens").is_none() {
        return Err(params.missing("max_tokens"));
    }
    let missing = params.missing("messages");
    let messages = params.array("messages")?.ok_or(missing)?;
    if messages.is_empty() {
        return Err(ApiError::bad("messages", "messages: must not be empty"));
    }
    if messages.len() > config.max_messages {
        return Err(ApiError::too_many("messages", messages.len(), config.max_messages, "messages"));
    }
    let system = params.take("system");
    let messages = input::messages(system, messages, &params)?;
    let (tools, offered) = tools(&mut params, config)?;
    let mut variables = template_variables::take(&mut params, served, config)?;
    let grammar = output_config(&mut params, &mut variables.values)?;
    let options = Options::take(&mut params, served, config, &model)?;
    params.finish(Object::Body, REFUSED)?;
    let chat = Chat::new(messages, tools, offered, variables);
    let chat = ChatRequest { chat, options, grammar, truncate: false };
    Ok(MessageRequest { chat, model, stream })
}

/// The tools; those that only Anthropic can run are not offered to the model.
fn tools(params: &mut Params, config: &Config) -> Result<(Tools, Vec<Value>)> {
    let given = params.array("tools")?.unwrap_or_default();
    check_sizes(&given, config)?;
    let mut functions = Vec::new();
    for (at, tool) in given.into_iter().enumerate() {
        let mut tool = params.nested(tool, &format!("tools[{at}]"))?;
        match tool.string("type")?.as_deref() {
            None | Some("custom") => {
                functions.push(Function::take(&mut tool, "input_schema")?);
                tool.finish(Object::Tool, &[])?;
            }
            // server tools have a version in their type, such as web_search_20250305
            Some(hosted) if hosted.rsplit('_').next().is_some_and(|date| date.parse::<u32>().is_ok()) => {
                tracing::debug!(
                    tool = hosted,
                    "a tool that only Anthropic defines is not offered to the model"
                );
            }
            Some(other) => {
                return Err(ApiError::expected(&tool.name("type"), "\"custom\"", &other.into()));
            }
        }
    }
    let offered = functions.iter().map(Function::offered).collect();
    let functions = functions.into_iter().map(|function| (function.name, function.parameters)).collect();
    let mut tools = Tools { functions, choice: ToolChoice::None, many: true };
    let Some(mut choice) = params.object("tool_choice")? else {
        tools.choose(None)?;
        return Ok((tools, offered));
    };
    tools.many = !choice.bool("disable_parallel_tool_use")?.unwrap_or(false);
    let kind = choice.required_string("type")?;
    let chosen = match kind.as_str() {
        "auto" => ToolChoice::Auto,
        "any" => ToolChoice::Required,
        "none" => ToolChoice::None,
        "tool" => ToolChoice::Named(choice.required_string("name")?),
        _ => {
            let expected = "\"auto\", \"any\", \"tool\" or \"none\"";
            return Err(ApiError::expected("tool_choice.type", expected, &kind.into()));
        }
    };
    choice.finish(Object::Format, &[])?;
    tools.choose(Some(chosen))?;
    Ok((tools, offered))
}

/// `output_config`: the effort of reasoning, and a schema of the answer.
fn output_config(
    params: &mut Params,
    variables: &mut Map<String, Value>,
) -> Result<Option<RequestedGrammar>> {
    let old = params.object("output_format")?;
    let mut format = old;
    if let Some(mut config) = params.object("output_config")? {
        if let Some(effort) = config.string("effort")? {
            variables.entry("reasoning_effort").or_insert(effort.into());
        }
        format = config.object("format")?.or(format);
        config.take("task_budget");
        config.finish(Object::Format, &[])?;
    }
    let Some(mut format) = format else { return Ok(None) };
    let kind = format.required_string("type")?;
    if kind != "json_schema" {
        return Err(ApiError::expected(&format.name("type"), "\"json_schema\"", &kind.into()));
    }
    let schema = format.take("schema").ok_or_else(|| format.missing("schema"))?;
    format.finish(Object::Format, &[])?;
    Ok(Some(RequestedGrammar { grammar: Grammar::JsonSchema(schema), param: "output_config" }))
}
