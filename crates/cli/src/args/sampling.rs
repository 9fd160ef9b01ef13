//! Flags of sampling: one per row of the table of parameters, and those that are not numbers.

use clap::{Arg, ArgMatches, Args, Command, FromArgMatches};
use tern::graph::{PARAMETERS, Parameter, Range};
use tern::{Model, PartialSampling, Request, Sampling};

use super::values::{self, Seed};
use crate::error::CliResult;

/// The flags of [`PARAMETERS`]; those that are not given are not set.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ParameterArgs(pub(crate) PartialSampling);

/// All sampling parameters of one text.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Sampling")]
pub(crate) struct SamplingArgs {
    #[command(flatten)]
    pub(crate) parameters: ParameterArgs,
    #[command(flatten)]
    pub(crate) breakers: BreakerArgs,
    /// Seed; the same seed gives the same text, -1 is random [default: -1]
    #[arg(long, allow_negative_numbers = true)]
    pub(crate) seed: Option<Seed>,
    /// Add BIAS to the logit of token ID; may be repeated
    #[arg(long, value_name = "ID=BIAS", value_parser = values::bias)]
    pub(crate) logit_bias: Vec<(u32, f32)>,
}

/// What ends a repetition.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Sampling")]
pub(crate) struct BreakerArgs {
    /// DRY: text that ends a repetition; may be repeated [default: a line break, `:`, `"` and `*`]
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true)]
    pub(crate) dry_sequence_breaker: Vec<String>,
}

/// A parameter's flag.
fn flag(parameter: &'static Parameter) -> Arg {
    let default = match parameter.in_files {
        Some(files) => format!("the model's recommendation, or {}", files.usual),
        None => parameter.shown((parameter.get)(&Sampling::default())),
    };
    Arg::new(parameter.name)
        .long(parameter.flag)
        .aliases(parameter.flag_aliases.iter().copied())
        .value_name(parameter.value_name)
        .help(format!("{} [default: {default}]", parameter.help))
        .help_heading("Sampling")
        .allow_negative_numbers(true)
        .value_parser(|text: &str| parsed(parameter, text))
}

/// The value of a flag or of `/set`. Whether a number is in its range is checked with the other parameters.
pub(crate) fn parsed(parameter: &Parameter, text: &str) -> Result<f64, String> {
    match (parameter.range, text.parse(), text.parse::<i64>()) {
        (Range::Number { .. }, Ok(number), _) => Ok(number),
        (Range::Number { .. }, Err(_), _) => Err("expected a number".into()),
        (range, _, Ok(number)) if range.contains(number as f64) => Ok(number as f64),
        (range, ..) => Err(format!("expected a whole number, {range}")),
    }
}

impl FromArgMatches for ParameterArgs {
    fn from_arg_matches(matches: &ArgMatches) -> Result<ParameterArgs, clap::Error> {
        let mut args = ParameterArgs::default();
        args.update_from_arg_matches(matches)?;
        Ok(args)
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        for parameter in PARAMETERS {
            if let Some(value) = matches.get_one::<f64>(parameter.name) {
                self.0 = self.0.with(parameter, *value);
            }
        }
        Ok(())
    }
}

impl Args for ParameterArgs {
    fn augment_args(command: Command) -> Command {
        PARAMETERS.iter().fold(command, |command, parameter| command.arg(flag(parameter)))
    }

    fn augment_args_for_update(command: Command) -> Command {
        ParameterArgs::augment_args(command)
    }
}

impl SamplingArgs {
    /// Checks the values before a model is loaded; the engine checks what depends on the vocabulary.
    pub(crate) fn check(&self) -> CliResult<()> {
        self.parameters.0.check()?;
        Ok(self.base().check()?)
    }

    /// Sets the sampling parameters of a request.
    pub(crate) fn apply(&self, request: Request) -> Request {
        Request {
            sampling: self.parameters.0,
            base: self.base(),
            dry_breakers: self.breakers.texts(),
            seed: self.seed.and_then(|seed| seed.0),
            ..request
        }
    }

    fn base(&self) -> Sampling {
        Sampling { bias: self.logit_bias.clone(), ..Sampling::default() }
    }
}

impl BreakerArgs {
    /// The texts that end a repetition.
    pub(crate) fn texts(&self) -> Vec<String> {
        match self.dry_sequence_breaker.as_slice() {
            [] => Model::BREAKERS.map(String::from).into(),
            texts => texts.to_vec(),
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::args::{Cli, Command};

    fn given(flags: &[&str]) -> Result<Sampling, String> {
        let cli =
            Cli::try_parse_from([&["tern", "run", "prompt"], flags].concat()).map_err(|e| e.to_string())?;
        let Command::Run(args) = cli.command else { panic!("not run") };
        Ok(args.sampling.parameters.0.over(Sampling::default()))
    }

    #[test]
    fn every_parameter_has_a_flag_and_its_other_names() {
        for parameter in PARAMETERS {
            let mut want = Sampling::default();
            (parameter.set)(&mut want, 1.0);
            for name in [parameter.flag].iter().chain(parameter.flag_aliases) {
                assert_eq!(given(&[&format!("--{name}"), "1"]).as_ref(), Ok(&want), "{name}");
            }
        }
        assert_eq!(given(&[]), Ok(Sampling::default()));
    }

    #[test]
    fn values_of_the_wrong_kind_are_refused_with_what_was_expected() {
        let message = |flags: &[&str]| given(flags).unwrap_err();
        assert!(message(&["--temp", "warm"]).contains("expected a number"));
        assert!(message(&["--mirostat", "3"]).contains("expected a whole number, 0 to 2"));
        assert!(message(&["--top-k", "-2"]).contains("expected a whole number, -1 or more"));
        assert!(message(&["--dry-allowed-length", "1.5"]).contains("expected a whole number, 0 or more"));
    }
}
