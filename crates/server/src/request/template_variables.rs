//! The variables of a chat template: those that a request gives, and those that its parameters become, such
//! as whether the model thinks before it answers.

use serde_json::{Map, Value};

use crate::Config;
use crate::http::error::{ApiError, Result};
use crate::models::model::ServedModel;
use crate::request::ignored::Object;
use crate::request::params::Params;

/// The variable of the effort of reasoning.
const EFFORT: &str = "reasoning_effort";

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

/// Tokens of reasoning of an effort, for templates that have no variable for it; without a limit for all
/// others. These are the numbers of Gemini's API.
const EFFORTS: &[(&str, usize)] = &[("none", 0), ("minimal", 1024), ("low", 1024), ("medium", 8192)];

/// The names of a thinking budget.
const BUDGETS: &[&str] = &[
    "max_thinking_tokens",
    "reasoning_budget_tokens",
    "thinking_budget",
    "thinking_budget_tokens",
    "thinking_token_budget",
];

/// What a request says about reasoning.
#[derive(Debug, Default, PartialEq)]
struct Reasoning {
    /// Whether the model thinks before it answers.
    thinks: Option<bool>,
    effort: Option<String>,
    /// Tokens after which the reasoning ends.
    budget: Option<usize>,
}

/// What the template of a chat is given.
#[derive(Debug, Default)]
pub(crate) struct TemplateVariables {
    pub(crate) values: Map<String, Value>,
    /// Tokens after which the reasoning of the answer ends.
    budget: Option<usize>,
}

impl TemplateVariables {
    /// Tokens after which the reasoning of the answer ends: those that were requested, or those of an effort
    /// that the template does not express.
    pub(crate) fn thinking_budget(&self, has_variable: impl Fn(&str) -> bool) -> Option<usize> {
        let of_effort = || {
            let effort = self.values.get(EFFORT)?.as_str()?;
            let budget = EFFORTS.iter().find(|(name, _)| *name == effort)?.1;
            (!has_variable(EFFORT)).then_some(budget)
        };
        self.budget.or_else(of_effort)
    }
}

/// The template's variables: `chat_template_kwargs`, and what the parameters of any API say about reasoning.
pub(crate) fn take(params: &mut Params, served: &ServedModel, config: &Config) -> Result<TemplateVariables> {
    let mut variables = params.object("chat_template_kwargs")?.map(Params::into_map).unwrap_or_default();
    let bytes = Value::from(variables.clone()).to_string().len();
    if bytes > config.max_template_kwargs {
        return Err(ApiError::too_many("chat_template_kwargs", bytes, config.max_template_kwargs, "bytes"));
    }
    let reasoning = Reasoning::take(params)?;
    if let Some(effort) = reasoning.effort {
        variables.entry(EFFORT).or_insert(effort.into());
    }
    if let Some(template) = served.model.template() {
        switch(&mut variables, reasoning.thinks, |name| template.has_variable(name));
    }
    Ok(TemplateVariables { values: variables, budget: reasoning.budget })
}

/// The same for answers that begin without reasoning, unless the request turns it on.
pub(crate) fn take_answering(
    params: &mut Params,
    served: &ServedModel,
    config: &Config,
) -> Result<Map<String, Value>> {
    let mut variables = take(params, served, config)?.values;
    if let Some(template) = served.model.template() {
        switch(&mut variables, Some(false), |name| template.has_variable(name));
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
        let effort = effort(params.string(EFFORT)?, EFFORT)?;
        let mut taken = Reasoning { thinks: params.bool("enable_thinking")?, effort, budget: None };
        for name in BUDGETS {
            let budget = params.integer(name, -1, i64::MAX)?; // -1 is no limit
            taken.budget = taken.budget.or(budget.and_then(|tokens| usize::try_from(tokens).ok()));
        }
        taken.or(think(params)?);
        taken.or(thinking(params)?);
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
        self.budget = self.budget.or(other.budget);
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
        Some(Value::Bool(thinks)) => Ok(Reasoning { thinks: Some(thinks), ..Reasoning::default() }),
        Some(Value::String(word)) => {
            let thinks = Some(word != "none");
            Ok(Reasoning { thinks, effort: effort(Some(word), "think")?, budget: None })
        }
        Some(other) => Err(ApiError::expected("think", "true, false or an effort", &other)),
    }
}

/// `thinking` of Anthropic's API, or a flag.
fn thinking(params: &mut Params) -> Result<Reasoning> {
    if let Some(Value::Bool(_)) = params.peek("thinking") {
        return Ok(Reasoning { thinks: params.bool("thinking")?, ..Reasoning::default() });
    }
    let Some(mut thinking) = params.object("thinking")? else { return Ok(Reasoning::default()) };
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
    let budget = thinking.integer("budget_tokens", 0, i64::MAX)?.map(|tokens| tokens as usize);
    thinking.string("display")?;
    thinking.finish(Object::Reasoning, &[])?;
    Ok(Reasoning { thinks, effort: None, budget })
}

/// `reasoning`, in the forms of OpenAI's Responses API and of OpenRouter.
fn openrouter(params: &mut Params) -> Result<Reasoning> {
    let Some(mut reasoning) = params.object("reasoning")? else { return Ok(Reasoning::default()) };
    let mut effort = effort(reasoning.string("effort")?, "reasoning.effort")?;
    let thinks = reasoning.bool("enabled")?;
    if thinks == Some(false) {
        effort.get_or_insert_with(|| "none".into());
    }
    let budget = reasoning.integer("max_tokens", 1, i64::MAX)?.map(|tokens| tokens as usize);
    reasoning.bool("exclude")?;
    reasoning.finish(Object::Reasoning, &[])?;
    Ok(Reasoning { thinks, effort, budget })
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
        let says = |thinks, effort: Option<&str>| Reasoning {
            thinks,
            effort: effort.map(str::to_owned),
            budget: None,
        };
        let budget = |thinks, budget| Reasoning { thinks, effort: None, budget: Some(budget) };
        for (body, want) in [
            (json!({}), says(None, None)),
            (json!({"enable_thinking": false}), says(Some(false), None)),
            (json!({"thinking": {"type": "enabled", "budget_tokens": 1024}}), budget(Some(true), 1024)),
            (json!({"max_thinking_tokens": 7, "enable_thinking": true}), budget(Some(true), 7)),
            (json!({"thinking_token_budget": -1}), says(None, None)),
            (json!({"reasoning": {"max_tokens": 7}}), budget(None, 7)),
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

    #[test]
    fn an_effort_is_a_budget_for_templates_without_a_variable() {
        let variables = |effort: &str, budget| TemplateVariables {
            values: [("reasoning_effort".to_owned(), effort.into())].into_iter().collect(),
            budget,
        };
        for (effort, budget, known, want) in [
            ("low", None, false, Some(1024)),
            ("low", None, true, None),
            ("high", None, false, None),
            ("none", None, false, Some(0)),
            ("low", Some(5), true, Some(5)),
        ] {
            assert_eq!(variables(effort, budget).thinking_budget(|_| known), want, "{effort} {known}");
        }
        assert_eq!(TemplateVariables::default().thinking_budget(|_| false), None);
    }
}
