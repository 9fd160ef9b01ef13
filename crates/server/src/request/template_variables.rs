//! The variables of a chat template: those that a request gives, and those that its parameters become, such
//! as whether the model thinks before it answers.

use serde_json::{Map, Value};

use crate::Config;
use crate::http::error::{ApiError, Result};
use crate::models::model::ServedModel;
use crate::request::ignored::Object;
use crate::request::params::Params;

/// The longest effort of reasoning in bytes.
const MAX_EFFORT: usize = 32;

/// A variable with which templates turn thinking on and off.
struct Switch {
    name: &'static str,
    value: fn(bool) -> Value,
}

/// The first that a template has is set.
const SWITCHES: &[Switch] = &[
    Switch { name: "enable_thinking", value: Value::Bool },
    Switch { name: "thinking", value: Value::Bool },
    Switch { name: "thinking_mode", value: |on| if on { "enabled" } else { "disabled" }.into() },
    // tokens; -1 is no limit
    Switch { name: "thinking_budget", value: |on| if on { -1 } else { 0 }.into() },
    Switch { name: "reasoning", value: Value::Bool },
];

/// What a request says about reasoning.
#[derive(Debug, Default, PartialEq)]
struct Reasoning {
    /// Whether the model thinks before it answers.
    thinks: Option<bool>,
    effort: Option<String>,
}

/// The template's variables: `chat_template_kwargs`, and what the parameters of any API say about reasoning.
pub(crate) fn take(params: &mut Params, served: &ServedModel, config: &Config) -> Result<Map<String, Value>> {
    let mut variables = params.object("chat_template_kwargs")?.map(Params::into_map).unwrap_or_default();
    let bytes = Value::from(variables.clone()).to_string().len();
    if bytes > config.max_template_kwargs {
        return Err(ApiError::too_many("chat_template_kwargs", bytes, config.max_template_kwargs, "bytes"));
    }
    let reasoning = Reasoning::take(params)?;
    if let Some(effort) = reasoning.effort {
        variables.entry("reasoning_effort").or_insert(effort.into());
    }
    if let Some(template) = served.model.template() {
        switch(&mut variables, reasoning.thinks, |name| template.has_variable(name));
    }
    Ok(variables)
}

/// Sets the template's own switch, also if the variables have the switch of another template.
fn switch(variables: &mut Map<String, Value>, thinks: Option<bool>, has: impl Fn(&str) -> bool) {
    let given = || SWITCHES.iter().find_map(|switch| variables.get(switch.name)?.as_bool());
    let Some(thinks) = thinks.or_else(given) else { return };
    if let Some(switch) = SWITCHES.iter().find(|switch| has(switch.name)) {
        variables.entry(switch.name).or_insert_with(|| (switch.value)(thinks));
    }
}

impl Reasoning {
    fn take(params: &mut Params) -> Result<Reasoning> {
        let effort = effort(params.string("reasoning_effort")?, "reasoning_effort")?;
        let mut taken = Reasoning { thinks: params.bool("enable_thinking")?, effort };
        taken.or(think(params)?);
        taken.or(Reasoning { thinks: thinking(params)?, effort: None });
        taken.or(openrouter(params)?);
        if taken.effort.as_deref() == Some("none") {
            taken.thinks.get_or_insert(false);
        }
        Ok(taken)
    }

    /// What is not set yet is set as in `other`.
    fn or(&mut self, other: Reasoning) {
        self.thinks = self.thinks.or(other.thinks);
        self.effort = self.effort.take().or(other.effort);
    }
}

fn effort(given: Option<String>, name: &str) -> Result<Option<String>> {
    match given {
        Some(effort) if effort.len() > MAX_EFFORT => {
            Err(ApiError::expected(name, format!("at most {MAX_EFFORT} bytes"), &effort.into()))
        }
        given => Ok(given),
    }
}

/// `think` of Ollama's API: a flag or an effort.
fn think(params: &mut Params) -> Result<Reasoning> {
    match params.take("think") {
        None => Ok(Reasoning::default()),
        Some(Value::Bool(thinks)) => Ok(Reasoning { thinks: Some(thinks), effort: None }),
        Some(Value::String(word)) => {
            let thinks = Some(word != "none");
            Ok(Reasoning { thinks, effort: effort(Some(word), "think")? })
        }
        Some(other) => Err(ApiError::expected("think", "true, false or an effort", &other)),
    }
}

/// `thinking` of Anthropic's API, or a flag.
fn thinking(params: &mut Params) -> Result<Option<bool>> {
    if let Some(Value::Bool(_)) = params.peek("thinking") {
        return params.bool("thinking");
    }
    let Some(mut thinking) = params.object("thinking")? else { return Ok(None) };
    let kind = thinking.required_string("type")?;
    let thinks = match kind.as_str() {
        "enabled" => Some(true),
        "disabled" => Some(false),
        "adaptive" => None, // as the template does it
        _ => {
            let expected = "\"enabled\", \"disabled\" or \"adaptive\"";
            return Err(ApiError::expected("thinking.type", expected, &kind.into()));
        }
    };
    thinking.integer("budget_tokens", 0, i64::MAX)?;
    thinking.string("display")?;
    thinking.finish(Object::Reasoning, &[])?;
    Ok(thinks)
}

/// `reasoning`, in the forms of OpenAI's Responses API and of OpenRouter.
fn openrouter(params: &mut Params) -> Result<Reasoning> {
    let Some(mut reasoning) = params.object("reasoning")? else { return Ok(Reasoning::default()) };
    let mut effort = effort(reasoning.string("effort")?, "reasoning.effort")?;
    let thinks = reasoning.bool("enabled")?;
    if thinks == Some(false) {
        effort.get_or_insert_with(|| "none".into());
    }
    reasoning.integer("max_tokens", 1, i64::MAX)?;
    reasoning.bool("exclude")?;
    reasoning.finish(Object::Reasoning, &[])?;
    Ok(Reasoning { thinks, effort })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::request::params::Unparsed;
    use serde_json::json;
    use tern::text::ChatTemplate;

    fn switched(variables: Value, thinks: Option<bool>, template: &str) -> Value {
        let template = ChatTemplate::new(template, "", "").unwrap();
        let mut variables = variables.as_object().unwrap().clone();
        switch(&mut variables, thinks, |name| template.has_variable(name));
        variables.into()
    }

    #[test]
    fn the_switch_is_the_one_that_the_template_has() {
        let (on, off) = (Some(true), Some(false));
        for (template, given, thinks, want) in [
            ("{% if enable_thinking %}a{% endif %}", json!({}), off, json!({"enable_thinking": false})),
            ("{% if thinking %}a{% endif %}", json!({}), on, json!({"thinking": true})),
            (
                "{% if thinking_mode == 'enabled' %}a{% endif %}",
                json!({}),
                off,
                json!({"thinking_mode": "disabled"}),
            ),
            ("{{ thinking_budget }}", json!({}), off, json!({"thinking_budget": 0})),
            // another template's name
            (
                "{% if thinking %}a{% endif %}",
                json!({"enable_thinking": false}),
                None,
                json!({"enable_thinking": false, "thinking": false}),
            ),
            // the template's own name is a decision already
            ("{{ thinking }}", json!({"thinking": true}), off, json!({"thinking": true})),
            // members and texts are no variables
            ("{{ messages[0].thinking }} enable_thinking {{ 'reasoning' }}", json!({}), on, json!({})),
            ("{{ enable_thinking }}", json!({}), None, json!({})),
        ] {
            assert_eq!(switched(given, thinks, template), want, "{template}");
        }
    }

    #[test]
    fn every_api_says_it_in_its_own_way() {
        let says = |thinks, effort: Option<&str>| Reasoning { thinks, effort: effort.map(str::to_owned) };
        for (body, want) in [
            (json!({}), says(None, None)),
            (json!({"enable_thinking": false}), says(Some(false), None)),
            (json!({"thinking": {"type": "enabled", "budget_tokens": 1024}}), says(Some(true), None)),
            (json!({"thinking": {"type": "adaptive"}}), says(None, None)),
            (json!({"thinking": false}), says(Some(false), None)),
            (json!({"think": true}), says(Some(true), None)),
            (json!({"think": "high"}), says(Some(true), Some("high"))),
            (json!({"reasoning_effort": "none"}), says(Some(false), Some("none"))),
            (json!({"reasoning_effort": "low"}), says(None, Some("low"))),
            (json!({"reasoning": {"enabled": false}}), says(Some(false), Some("none"))),
            (json!({"reasoning": {"effort": "high", "enabled": true}}), says(Some(true), Some("high"))),
        ] {
            let mut params = Params::parse(body.to_string().as_bytes(), Unparsed::default()).unwrap();
            assert_eq!(Reasoning::take(&mut params).unwrap(), want, "{body}");
            params.finish(Object::Body, &[]).unwrap();
        }
    }
}
