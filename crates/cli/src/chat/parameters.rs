//! The parameters that `/set` changes during a conversation: those of the flags, by the same names.

use std::fmt::Display;

use serde_json::{Map, Value};
use tern::graph::{PARAMETERS, Parameter};
use tern::{Model, Request};

use crate::args::sampling::parsed;
use crate::args::{ChatArgs, MaxTokens, SamplingArgs, Seed};
use crate::nearest;

/// What answers are made with.
#[derive(Clone, Debug)]
pub(crate) struct Parameters {
    pub(crate) sampling: SamplingArgs,
    pub(crate) max_tokens: MaxTokens,
    /// Tokens of reasoning after which the answer begins.
    pub(crate) thinking_budget: Option<usize>,
    /// Whether the model thinks before it answers, or how much; none leaves it to the template.
    think: Option<Think>,
}

/// What a template is given about reasoning.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Think {
    Switched(bool),
    Effort(String),
}

/// Efforts that templates know.
const EFFORTS: [&str; 3] = ["low", "medium", "high"];

/// A parameter that is no row of the table of sampling: its name, how it is set, and its value as it applies.
struct Other {
    name: &'static str,
    /// Another name.
    alias: &'static str,
    set: fn(&mut Parameters, &str) -> Result<(), String>,
    get: fn(&Parameters) -> String,
}

/// What `/set` knows besides [`PARAMETERS`].
const OTHERS: &[Other] = &[
    Other {
        name: "seed",
        alias: "",
        set: |p, text| put(&mut p.sampling.seed, Some(text.parse()?)),
        get: |p| p.sampling.seed.and_then(|Seed(seed)| seed).map_or("-1 (random)".into(), shown),
    },
    Other {
        name: "max-tokens",
        alias: "num-predict",
        set: |p, text| put(&mut p.max_tokens, text.parse()?),
        get: |p| shown(p.max_tokens),
    },
    Other {
        name: "thinking-budget",
        alias: "reasoning-budget",
        set: |p, text| {
            let tokens = text.parse().map_err(|_| "expected a whole number of tokens".to_string())?;
            put(&mut p.thinking_budget, Some(tokens))
        },
        get: |p| p.thinking_budget.map_or("no limit".into(), shown),
    },
    Other {
        name: "think",
        alias: "",
        set: set_think,
        get: |p| match &p.think {
            None => "as the model's template has it".into(),
            Some(Think::Switched(on)) => if *on { "on" } else { "off" }.into(),
            Some(Think::Effort(effort)) => effort.clone(),
        },
    },
];

/// Whether `/set` knows a parameter by this name, which has `-` for `_`.
fn is_named(parameter: &Parameter, name: &str) -> bool {
    let is = |known: &&str| *known == name || known.replace('_', "-") == name;
    [parameter.flag].iter().chain(parameter.flag_aliases).chain(parameter.aliases).any(is)
}

fn put<T>(place: &mut T, value: T) -> Result<(), String> {
    *place = value;
    Ok(())
}

fn shown(value: impl Display) -> String {
    value.to_string()
}

fn set_think(parameters: &mut Parameters, text: &str) -> Result<(), String> {
    parameters.think = Some(match text {
        "on" | "true" => Think::Switched(true),
        "off" | "false" => Think::Switched(false),
        effort if EFFORTS.contains(&effort) => Think::Effort(effort.to_string()),
        _ => return Err(format!("want on, off or an effort ({})", EFFORTS.join(", "))),
    });
    Ok(())
}

impl Parameters {
    pub(crate) fn new(args: &ChatArgs) -> Parameters {
        let ChatArgs { max_tokens, thinking_budget, .. } = *args;
        Parameters { sampling: args.sampling.clone(), max_tokens, thinking_budget, think: None }
    }

    /// `/set NAME VALUE`; nothing changes if the value is wrong. Names may have `_` for `-`.
    pub(crate) fn set(&mut self, name: &str, value: &str) -> Result<(), String> {
        let wanted = name.trim_start_matches('-').replace('_', "-").to_ascii_lowercase();
        let parameter = PARAMETERS.iter().find(|parameter| is_named(parameter, &wanted));
        let other = OTHERS.iter().find(|other| [other.name, other.alias].contains(&wanted.as_str()));
        let Some(known) = parameter.map(|parameter| parameter.flag).or(other.map(|other| other.name)) else {
            let near = nearest::tip(&wanted, names());
            let all: Vec<&str> = names().chain(["system"]).collect();
            return Err(format!("unknown parameter {name}{near}: want one of {}", all.join(", ")));
        };
        if value.is_empty() {
            return Err(format!("/set {known}: missing value"));
        }
        let mut changed = self.clone();
        let failed = |why: String| format!("/set {known} {value}: {why}");
        if let Some(parameter) = parameter {
            let set = &mut changed.sampling.parameters.0;
            *set = set.with(parameter, parsed(parameter, value).map_err(failed)?);
        }
        if let Some(other) = other {
            (other.set)(&mut changed, value).map_err(failed)?;
        }
        changed.sampling.check().map_err(|e| failed(e.to_string()))?;
        *self = changed;
        Ok(())
    }

    /// What a template is given.
    pub(crate) fn template_variables(&self) -> Map<String, Value> {
        let mut variables = Map::new();
        match &self.think {
            None => {}
            Some(Think::Switched(on)) => {
                variables.insert("enable_thinking".into(), (*on).into());
            }
            Some(Think::Effort(effort)) => {
                variables.insert("enable_thinking".into(), true.into());
                variables.insert("reasoning_effort".into(), effort.as_str().into());
            }
        }
        variables
    }

    /// All parameters as they apply to this model, one per line.
    pub(crate) fn table(&self, model: &Model) -> String {
        let sampling = model.sampling(&self.sampling.apply(Request::text("")));
        let row = |name: &str, value: String| format!("  {name:20} {value}\n");
        let of_table = |parameter: &Parameter| {
            // what is set is shown although it may have no effect now, such as the target of mirostat
            let set = self.sampling.parameters.0.get(parameter);
            row(parameter.flag, parameter.shown(set.unwrap_or_else(|| (parameter.get)(&sampling))))
        };
        let others = OTHERS.iter().map(|other| row(other.name, (other.get)(self)));
        PARAMETERS.iter().map(of_table).chain(others).collect()
    }
}

/// The names that `/set` lists.
fn names() -> impl Iterator<Item = &'static str> + Clone {
    PARAMETERS.iter().map(|parameter| parameter.flag).chain(OTHERS.iter().map(|other| other.name))
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use tern::Sampling;

    use super::*;
    use crate::args::{Cli, Command};

    fn parameters(flags: &[&str]) -> Parameters {
        let cli = Cli::try_parse_from([&["tern", "chat"], flags].concat()).unwrap();
        let Command::Chat(args) = cli.command else { panic!("not chat") };
        Parameters::new(&args)
    }

    #[test]
    fn parameters_are_set_by_the_names_of_flags() {
        let mut parameters = parameters(&["--temp", "0.2"]);
        for (name, value) in
            [("temperature", "0.7"), ("top_k", "-1"), ("MIN-P", "0.1"), ("--seed", "7"), ("max-tokens", "9")]
        {
            parameters.set(name, value).unwrap();
        }
        let sampling = parameters.sampling.parameters.0.over(Sampling::default());
        assert_eq!((sampling.temperature, sampling.top_k, sampling.min_p), (0.7, 0, 0.1));
        assert_eq!(
            (parameters.sampling.seed, parameters.max_tokens),
            (Some(Seed(Some(7))), MaxTokens(Some(9)))
        );
        for name in names().chain([
            "temperature",
            "repetition-penalty",
            "mirostat_mode",
            "mirostat-lr",
            "num_predict",
        ]) {
            let value = if name == "think" { "off" } else { "1" };
            assert_eq!(parameters.set(name, value), Ok(()), "{name}");
        }
    }

    #[test]
    fn every_parameter_is_a_flag_except_think() {
        let flags = <Cli as clap::CommandFactory>::command();
        let chat = flags.find_subcommand("chat").unwrap();
        for name in names().filter(|name| *name != "think") {
            assert!(chat.get_arguments().any(|arg| arg.get_long() == Some(name)), "{name}");
        }
    }

    #[test]
    fn a_wrong_value_changes_nothing_and_says_what_is_expected() {
        let mut parameters = parameters(&["--temp", "0.2"]);
        let before = format!("{parameters:?}");
        let mut error = |name: &str, value: &str| parameters.set(name, value).unwrap_err();
        assert_eq!(error("top-p", "2"), "/set top-p 2: top_p: want 0 to 1, got 2");
        assert_eq!(error("temp", "warm"), "/set temp warm: expected a number");
        assert_eq!(error("temp", ""), "/set temp: missing value");
        assert_eq!(
            error("think", "maybe"),
            "/set think maybe: want on, off or an effort (low, medium, high)"
        );
        assert_eq!(error("mirostat", "3"), "/set mirostat 3: expected a whole number, 0 to 2");
        assert!(
            error("tmp", "1")
                .starts_with("unknown parameter tmp (did you mean temp?): want one of temp, top-k, ")
        );
        assert_eq!(format!("{parameters:?}"), before);
    }

    #[test]
    fn thinking_is_a_variable_of_the_template() {
        let mut parameters = parameters(&[]);
        assert!(parameters.template_variables().is_empty());
        parameters.set("think", "off").unwrap();
        assert_eq!(
            Value::from(parameters.template_variables()),
            serde_json::json!({"enable_thinking": false})
        );
        parameters.set("think", "high").unwrap();
        let want = serde_json::json!({"enable_thinking": true, "reasoning_effort": "high"});
        assert_eq!(Value::from(parameters.template_variables()), want);
    }
}
