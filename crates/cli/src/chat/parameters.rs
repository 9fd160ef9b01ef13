//! The parameters that `/set` changes during a conversation: those of the flags, by the same names.

use std::fmt::Display;
use std::str::FromStr;

use serde_json::{Map, Value};
use tern::{Model, Request, Sampling};

use crate::args::{ChatArgs, MaxTokens, SamplingArgs, Seed};
use crate::nearest;

/// What answers are made with.
#[derive(Clone, Debug)]
pub(crate) struct Parameters {
    pub(crate) sampling: SamplingArgs,
    pub(crate) max_tokens: MaxTokens,
    /// Whether the model thinks before it answers, or how much; none leaves it to the template.
    think: Option<Think>,
}

/// What a template is told about reasoning.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Think {
    Switched(bool),
    Effort(String),
}

/// Efforts that templates know.
const EFFORTS: [&str; 3] = ["low", "medium", "high"];

/// A parameter: its name, how it is set, and its value as it applies.
struct Parameter {
    name: &'static str,
    /// Another name.
    alias: &'static str,
    set: fn(&mut Parameters, &str) -> Result<(), String>,
    get: fn(&Parameters, &Sampling) -> String,
}

fn parse<T: FromStr>(text: &str) -> Result<T, String> {
    text.parse().map_err(|_| "want a number".to_string())
}

fn put<T>(place: &mut T, value: T) -> Result<(), String> {
    *place = value;
    Ok(())
}

fn shown(value: impl Display) -> String {
    value.to_string()
}

/// Everything that `/set` knows.
#[rustfmt::skip]
const PARAMETERS: &[Parameter] = &[
    Parameter { name: "temp", alias: "temperature",
        set: |p, text| put(&mut p.sampling.partial.temp, Some(parse(text)?)), get: |_, s| shown(s.temperature) },
    Parameter { name: "top-k", alias: "",
        set: |p, text| put(&mut p.sampling.partial.top_k, Some(crate::args::top_k(text)?)), get: |_, s| shown(s.top_k) },
    Parameter { name: "top-p", alias: "",
        set: |p, text| put(&mut p.sampling.partial.top_p, Some(parse(text)?)), get: |_, s| shown(s.top_p) },
    Parameter { name: "min-p", alias: "",
        set: |p, text| put(&mut p.sampling.partial.min_p, Some(parse(text)?)), get: |_, s| shown(s.min_p) },
    Parameter { name: "repeat-penalty", alias: "repetition-penalty",
        set: |p, text| put(&mut p.sampling.partial.repeat_penalty, Some(parse(text)?)), get: |_, s| shown(s.repetition) },
    Parameter { name: "frequency-penalty", alias: "",
        set: |p, text| put(&mut p.sampling.frequency_penalty, parse(text)?), get: |_, s| shown(s.frequency) },
    Parameter { name: "presence-penalty", alias: "",
        set: |p, text| put(&mut p.sampling.presence_penalty, parse(text)?), get: |_, s| shown(s.presence) },
    Parameter { name: "top-n-sigma", alias: "",
        set: |p, text| put(&mut p.sampling.samplers.top_n_sigma, parse(text)?), get: |_, s| shown(s.top_n_sigma) },
    Parameter { name: "typical-p", alias: "",
        set: |p, text| put(&mut p.sampling.samplers.typical_p, parse(text)?), get: |_, s| shown(s.typical_p) },
    Parameter { name: "xtc-probability", alias: "",
        set: |p, text| put(&mut p.sampling.samplers.xtc_probability, parse(text)?), get: |_, s| shown(s.xtc.probability) },
    Parameter { name: "xtc-threshold", alias: "",
        set: |p, text| put(&mut p.sampling.samplers.xtc_threshold, parse(text)?), get: |_, s| shown(s.xtc.threshold) },
    Parameter { name: "dry-multiplier", alias: "",
        set: |p, text| put(&mut p.sampling.samplers.dry_multiplier, parse(text)?), get: |_, s| shown(s.dry.multiplier) },
    Parameter { name: "dry-base", alias: "",
        set: |p, text| put(&mut p.sampling.samplers.dry_base, parse(text)?), get: |_, s| shown(s.dry.base) },
    Parameter { name: "dry-allowed-length", alias: "",
        set: |p, text| put(&mut p.sampling.samplers.dry_allowed_length, parse(text)?),
        get: |_, s| shown(s.dry.allowed_length) },
    Parameter { name: "mirostat", alias: "", set: set_mirostat, get: |p, _| shown(p.sampling.samplers.mirostat) },
    Parameter { name: "mirostat-tau", alias: "mirostat-ent",
        set: |p, text| put(&mut p.sampling.samplers.mirostat_tau, parse(text)?),
        get: |p, _| shown(p.sampling.samplers.mirostat_tau) },
    Parameter { name: "mirostat-eta", alias: "mirostat-lr",
        set: |p, text| put(&mut p.sampling.samplers.mirostat_eta, parse(text)?),
        get: |p, _| shown(p.sampling.samplers.mirostat_eta) },
    Parameter { name: "seed", alias: "",
        set: |p, text| put(&mut p.sampling.seed, Some(text.parse()?)),
        get: |p, _| p.sampling.seed.and_then(|Seed(seed)| seed).map_or("-1 (random)".into(), shown) },
    Parameter { name: "max-tokens", alias: "num-predict",
        set: |p, text| put(&mut p.max_tokens, text.parse()?), get: |p, _| shown(p.max_tokens) },
    Parameter { name: "think", alias: "", set: set_think, get: |p, _| match &p.think {
        None => "as the model's template has it".into(),
        Some(Think::Switched(on)) => if *on { "on".into() } else { "off".into() },
        Some(Think::Effort(effort)) => effort.clone(),
    } },
];

fn set_mirostat(parameters: &mut Parameters, text: &str) -> Result<(), String> {
    let version = parse(text).ok().filter(|version| *version <= 2).ok_or("want 0 (off), 1 or 2")?;
    parameters.sampling.samplers.mirostat = version;
    Ok(())
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
        Parameters { sampling: args.sampling.clone(), max_tokens: args.max_tokens, think: None }
    }

    /// `/set NAME VALUE`; nothing changes if the value is wrong. Names may have `_` for `-`.
    pub(crate) fn set(&mut self, name: &str, value: &str) -> Result<(), String> {
        let wanted = name.trim_start_matches('-').replace('_', "-").to_ascii_lowercase();
        let is_named = |parameter: &&Parameter| [parameter.name, parameter.alias].contains(&wanted.as_str());
        let Some(parameter) = PARAMETERS.iter().find(is_named) else {
            let names = PARAMETERS.iter().map(|parameter| parameter.name);
            let near = nearest::tip(&wanted, names.clone());
            let all: Vec<&str> = names.chain(["system"]).collect();
            return Err(format!("unknown parameter {name}{near}: want one of {}", all.join(", ")));
        };
        if value.is_empty() {
            return Err(format!("/set {}: missing value", parameter.name));
        }
        let mut changed = self.clone();
        let failed = |why: String| format!("/set {} {value}: {why}", parameter.name);
        (parameter.set)(&mut changed, value).map_err(failed)?;
        changed.sampling.check().map_err(|e| failed(e.to_string()))?;
        *self = changed;
        Ok(())
    }

    /// What a template is told.
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
        let row =
            |parameter: &Parameter| format!("  {:20} {}\n", parameter.name, (parameter.get)(self, &sampling));
        PARAMETERS.iter().map(row).collect()
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

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
        let partial = &parameters.sampling.partial;
        assert_eq!((partial.temp, partial.top_k, partial.min_p), (Some(0.7), Some(0), Some(0.1)));
        assert_eq!(
            (parameters.sampling.seed, parameters.max_tokens),
            (Some(Seed(Some(7))), MaxTokens(Some(9)))
        );
        for parameter in PARAMETERS {
            let value = if parameter.name == "think" { "off" } else { "1" };
            assert_eq!(parameters.set(parameter.name, value), Ok(()), "{}", parameter.name);
        }
    }

    #[test]
    fn every_parameter_is_a_flag_except_think() {
        let flags = <Cli as clap::CommandFactory>::command();
        let chat = flags.find_subcommand("chat").unwrap();
        for parameter in PARAMETERS.iter().filter(|parameter| parameter.name != "think") {
            assert!(
                chat.get_arguments().any(|arg| arg.get_long() == Some(parameter.name)),
                "{}",
                parameter.name
            );
        }
    }

    #[test]
    fn a_wrong_value_changes_nothing_and_says_what_is_expected() {
        let mut parameters = parameters(&["--temp", "0.2"]);
        let before = format!("{parameters:?}");
        let mut error = |name: &str, value: &str| parameters.set(name, value).unwrap_err();
        assert_eq!(error("top-p", "2"), "/set top-p 2: top_p: want 0 to 1, got 2");
        assert_eq!(error("temp", "warm"), "/set temp warm: want a number");
        assert_eq!(error("temp", ""), "/set temp: missing value");
        assert_eq!(
            error("think", "maybe"),
            "/set think maybe: want on, off or an effort (low, medium, high)"
        );
        assert_eq!(error("mirostat", "3"), "/set mirostat 3: want 0 (off), 1 or 2");
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
