//! The table of sampling parameters: what requests, flags, model files and checks know of
//! each is written here once.

use std::fmt;

use super::{Mirostat, MirostatVersion, Sampling, SamplingError};

/// A sampling parameter that is a number.
#[derive(Clone, Copy, Debug)]
pub struct Parameter {
    /// Its name in requests and messages.
    pub name: &'static str,
    /// Its names in the requests of other programs.
    pub aliases: &'static [&'static str],
    /// Its flag, without dashes.
    pub flag: &'static str,
    /// Other names of the flag.
    pub flag_aliases: &'static [&'static str],
    /// What the help calls its value.
    pub value_name: &'static str,
    /// What it does, in one sentence without a period.
    pub help: &'static str,
    /// Its values.
    pub range: Range,
    /// Model files may recommend a value.
    pub in_files: Option<InFiles>,
    /// Its value.
    pub get: fn(&Sampling) -> f64,
    /// Sets a value, which is in its range.
    pub set: fn(&mut Sampling, f64),
}

/// A parameter that model files may recommend.
#[derive(Clone, Copy, Debug)]
pub struct InFiles {
    /// Its key in GGUF files, after `general.sampling.`.
    pub gguf: &'static str,
    /// Its key in `generation_config.json`.
    pub config: &'static str,
    /// What is used if neither a request nor a file sets it: llama.cpp's default.
    pub usual: f64,
}

/// The values of a parameter.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Range {
    /// Numbers.
    Number {
        /// The smallest one.
        low: f64,
        /// The largest one.
        high: f64,
    },
    /// Whole numbers.
    Integer {
        /// The smallest one.
        low: i64,
        /// The largest one; `i64::MAX` is no limit.
        high: i64,
    },
}

impl Range {
    /// Whether a value is in it; NaN is in none.
    pub fn contains(self, value: f64) -> bool {
        match self {
            Range::Number { low, high } => (low..=high).contains(&value),
            Range::Integer { low, high } => {
                value.fract() == 0.0 && (low as f64..=high as f64).contains(&value)
            }
        }
    }
}

impl fmt::Display for Range {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Range::Number { low, high } => write!(f, "{low} to {high}"),
            Range::Integer { low, high: i64::MAX } => write!(f, "{low} or more"),
            Range::Integer { low, high } => write!(f, "{low} to {high}"),
        }
    }
}

impl Parameter {
    /// The parameter with this name.
    pub fn named(name: &str) -> Option<&'static Parameter> {
        PARAMETERS.iter().find(|parameter| parameter.name == name)
    }

    /// Refuses a value outside its range.
    pub fn check(&self, value: f64) -> Result<(), SamplingError> {
        let Parameter { name, range, .. } = *self;
        match range.contains(value) {
            true => Ok(()),
            false => Err(SamplingError { name, want: range.to_string(), got: self.shown(value) }),
        }
    }

    /// A value as text: the shortest decimal of an `f32`, which it is stored as, or a whole number.
    pub fn shown(&self, value: f64) -> String {
        match self.range {
            Range::Number { .. } => (value as f32).to_string(),
            Range::Integer { .. } => value.to_string(),
        }
    }
}

/// The largest value of parameters that have no upper limit.
const LARGE: f64 = 1e6;

/// The values of a bias.
pub const BIAS: Range = Range::Number { low: -100.0, high: 100.0 };

const PROBABILITY: Range = Range::Number { low: 0.0, high: 1.0 };
const PENALTY: Range = Range::Number { low: -2.0, high: 2.0 };

/// What most of them have.
const PLAIN: Parameter = Parameter {
    name: "",
    aliases: &[],
    flag: "",
    flag_aliases: &[],
    value_name: "X",
    help: "",
    range: PROBABILITY,
    in_files: None,
    get: |_| 0.0,
    set: |_, _| {},
};

const fn in_files(gguf: &'static str, config: &'static str, usual: f64) -> Option<InFiles> {
    Some(InFiles { gguf, config, usual })
}

/// All sampling parameters that are numbers, in the order in which they are set.
#[rustfmt::skip]
pub const PARAMETERS: &[Parameter] = &[
    Parameter {
        name: "temperature", flag: "temp", flag_aliases: &["temperature"], value_name: "T",
        help: "Temperature; 0 is greedy",
        range: Range::Number { low: 0.0, high: 2.0 }, in_files: in_files("temp", "temperature", 0.8),
        get: |s| s.temperature.into(), set: |s, x| s.temperature = x as f32, ..PLAIN
    },
    Parameter {
        name: "top_k", flag: "top-k", value_name: "K",
        help: "Sample from the K most probable tokens; 0 or -1 is all",
        range: Range::Integer { low: -1, high: i64::MAX }, in_files: in_files("top_k", "top_k", 40.0),
        get: |s| s.top_k as f64, set: |s, x| s.top_k = x as usize, ..PLAIN // -1 becomes 0
    },
    Parameter {
        name: "top_p", flag: "top-p", value_name: "P",
        help: "Sample from the most probable tokens with total probability P",
        in_files: in_files("top_p", "top_p", 0.95),
        get: |s| s.top_p.into(), set: |s, x| s.top_p = x as f32, ..PLAIN
    },
    Parameter {
        name: "min_p", flag: "min-p", value_name: "P",
        help: "Sample from tokens at least P times as probable as the most probable one",
        in_files: in_files("min_p", "min_p", 0.05),
        get: |s| s.min_p.into(), set: |s, x| s.min_p = x as f32, ..PLAIN
    },
    Parameter {
        name: "repeat_penalty", aliases: &["repetition_penalty"], flag: "repeat-penalty",
        help: "Divide the logits of tokens of the prompt or the text by X; 1 is off",
        range: Range::Number { low: 0.01, high: 10.0 }, in_files: in_files("penalty_repeat", "repetition_penalty", 1.0),
        get: |s| s.repetition.into(), set: |s, x| s.repetition = x as f32, ..PLAIN
    },
    Parameter {
        name: "frequency_penalty", flag: "frequency-penalty",
        help: "Subtracted from a token's logit for each time it was generated; 0 is off",
        range: PENALTY,
        get: |s| s.frequency.into(), set: |s, x| s.frequency = x as f32, ..PLAIN
    },
    Parameter {
        name: "presence_penalty", flag: "presence-penalty",
        help: "Subtracted from a token's logit if it was generated; 0 is off",
        range: PENALTY,
        get: |s| s.presence.into(), set: |s, x| s.presence = x as f32, ..PLAIN
    },
    Parameter {
        name: "top_n_sigma", flag: "top-n-sigma", flag_aliases: &["top-nsigma"], value_name: "N",
        help: "Sample from tokens whose logit is at most N standard deviations below the best one; 0 or -1 is off",
        range: Range::Number { low: -1.0, high: LARGE },
        get: |s| s.top_n_sigma.into(), set: |s, x| s.top_n_sigma = x.max(0.0) as f32, ..PLAIN
    },
    Parameter {
        name: "typical_p", flag: "typical-p", flag_aliases: &["typical"], value_name: "P",
        help: "Sample from the tokens with the most expected surprise, with total probability P; 1 is off",
        get: |s| s.typical_p.into(), set: |s, x| s.typical_p = x as f32, ..PLAIN
    },
    Parameter {
        name: "xtc_probability", flag: "xtc-probability", value_name: "P",
        help: "XTC: exclude the most probable tokens with this probability; 0 is off",
        get: |s| s.xtc.probability.into(), set: |s, x| s.xtc.probability = x as f32, ..PLAIN
    },
    Parameter {
        name: "xtc_threshold", flag: "xtc-threshold", value_name: "P",
        help: "XTC: of the tokens with at least this probability, all but the least probable are excluded",
        get: |s| s.xtc.threshold.into(), set: |s, x| s.xtc.threshold = x as f32, ..PLAIN
    },
    Parameter {
        name: "dry_multiplier", flag: "dry-multiplier",
        help: "DRY: penalty on tokens that continue a repetition; 0 is off",
        range: Range::Number { low: 0.0, high: LARGE },
        get: |s| s.dry.multiplier.into(), set: |s, x| s.dry.multiplier = x as f32, ..PLAIN
    },
    Parameter {
        name: "dry_base", flag: "dry-base",
        help: "DRY: the penalty grows by this factor with each token of the repetition",
        range: Range::Number { low: 1.0, high: LARGE },
        get: |s| s.dry.base.into(), set: |s, x| s.dry.base = x as f32, ..PLAIN
    },
    Parameter {
        name: "dry_allowed_length", flag: "dry-allowed-length", value_name: "N",
        help: "DRY: shorter repetitions are not penalised",
        range: Range::Integer { low: 0, high: i64::MAX },
        get: |s| s.dry.allowed_length as f64, set: |s, x| s.dry.allowed_length = x as usize, ..PLAIN
    },
    Parameter {
        name: "dry_penalty_last_n", flag: "dry-penalty-last-n", value_name: "N",
        help: "DRY: look at the last N tokens; -1 is all, 0 is none",
        range: Range::Integer { low: -1, high: i64::MAX },
        get: |s| if s.dry.last_n == usize::MAX { -1.0 } else { s.dry.last_n as f64 },
        set: |s, x| s.dry.last_n = if x < 0.0 { usize::MAX } else { x as usize }, ..PLAIN
    },
    Parameter {
        name: "mirostat", aliases: &["mirostat_mode"], flag: "mirostat", value_name: "N",
        help: "Mirostat 1 or 2, which replaces top-k, top-p, min-p and the other filters; 0 is off",
        range: Range::Integer { low: 0, high: 2 },
        get: |s| s.mirostat.map_or(0.0, |m| match m.version { MirostatVersion::One => 1.0, MirostatVersion::Two => 2.0 }),
        set: set_mirostat, ..PLAIN
    },
    Parameter {
        name: "mirostat_tau", flag: "mirostat-tau", flag_aliases: &["mirostat-ent"], value_name: "BITS",
        help: "Mirostat: target surprise in bits",
        range: Range::Number { low: 0.0, high: LARGE },
        get: |s| s.mirostat.map_or(Mirostat::TAU, |m| m.tau).into(),
        set: |s, x| if let Some(m) = &mut s.mirostat { m.tau = x as f32 }, ..PLAIN
    },
    Parameter {
        name: "mirostat_eta", flag: "mirostat-eta", flag_aliases: &["mirostat-lr"],
        help: "Mirostat: learning rate",
        get: |s| s.mirostat.map_or(Mirostat::ETA, |m| m.eta).into(),
        set: |s, x| if let Some(m) = &mut s.mirostat { m.eta = x as f32 }, ..PLAIN
    },
];

/// Keeps the target and the rate that are set.
fn set_mirostat(sampling: &mut Sampling, version: f64) {
    let old = sampling.mirostat;
    let version = match version as u8 {
        0 => None,
        1 => Some(MirostatVersion::One),
        _ => Some(MirostatVersion::Two),
    };
    sampling.mirostat = version.map(|version| {
        let usual = Mirostat { version, tau: Mirostat::TAU, eta: Mirostat::ETA };
        Mirostat { version, ..old.unwrap_or(usual) }
    });
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    /// A value that is neither the default nor at the end of the range.
    fn other(parameter: &Parameter) -> f64 {
        match parameter.range {
            Range::Number { high, .. } => f64::from((high / 4.0) as f32),
            Range::Integer { .. } => 1.0,
        }
    }

    #[test]
    fn every_parameter_is_set_and_read_and_changes_nothing_else() {
        let start = Sampling {
            mirostat: Some(Mirostat { version: MirostatVersion::Two, tau: 4.0, eta: 0.2 }),
            ..Sampling::default()
        };
        for parameter in PARAMETERS {
            let mut sampling = start.clone();
            (parameter.set)(&mut sampling, other(parameter));
            for read in PARAMETERS {
                let changed = (read.get)(&sampling) != (read.get)(&start);
                assert_eq!(changed, read.name == parameter.name, "{} after {}", read.name, parameter.name);
            }
            assert_eq!((parameter.get)(&sampling), other(parameter), "{}", parameter.name);
            assert_eq!(sampling.check(), Ok(()), "{}", parameter.name);
        }
    }

    #[test]
    fn defaults_and_usual_values_are_in_their_ranges() {
        for parameter in PARAMETERS {
            assert_eq!(parameter.check((parameter.get)(&Sampling::default())), Ok(()));
            assert!(parameter.in_files.is_none_or(|files| parameter.range.contains(files.usual)));
            let error = parameter.check(f64::NAN).unwrap_err().to_string();
            assert_eq!(error, format!("{}: want {}, got NaN", parameter.name, parameter.range));
        }
    }

    #[test]
    fn names_and_flags_are_unique() {
        let all = |names: fn(&Parameter) -> Vec<&'static str>| {
            PARAMETERS.iter().flat_map(names).collect::<Vec<_>>()
        };
        for names in [
            all(|p| [&[p.name], p.aliases].concat()),
            all(|p| [&[p.flag], p.flag_aliases].concat()),
            all(|p| p.in_files.map(|files| files.gguf).into_iter().collect()),
            all(|p| p.in_files.map(|files| files.config).into_iter().collect()),
        ] {
            assert_eq!(names.iter().collect::<HashSet<_>>().len(), names.len(), "{names:?}");
            assert!(names.iter().all(|name| !name.is_empty()));
        }
    }

    #[test]
    fn whole_numbers_and_special_values_are_stored_as_they_are_used() {
        let set = |name: &str, value| {
            let mut sampling = Sampling::default();
            (Parameter::named(name).unwrap().set)(&mut sampling, value);
            sampling
        };
        assert_eq!((set("top_k", -1.0).top_k, set("top_k", 1e300).top_k), (0, usize::MAX));
        assert_eq!(set("top_n_sigma", -1.0), Sampling::default());
        assert_eq!(set("dry_penalty_last_n", -1.0).dry.last_n, usize::MAX);
        assert_eq!(set("mirostat", 1.0).mirostat.map(|m| (m.tau, m.eta)), Some((5.0, 0.1)));
        assert_eq!((set("mirostat", 0.0).mirostat, set("mirostat_tau", 3.0).mirostat), (None, None));
        assert!(!Parameter::named("mirostat").unwrap().range.contains(1.5));
    }
}
