//! Flags of the samplers beyond temperature, top-k, top-p and min-p.

use clap::Args;

/// Further sampling parameters; all are off by default.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Sampling")]
pub(crate) struct SamplerArgs {
    /// Sample from tokens whose logit is at most N standard deviations below the best one; 0 is off
    #[arg(
        long,
        alias = "top-nsigma",
        value_name = "N",
        default_value_t = 0.0,
        allow_negative_numbers = true
    )]
    pub(crate) top_n_sigma: f32,
    /// Sample from the tokens with the most expected surprise, with total probability P; 1 is off
    #[arg(long, alias = "typical", value_name = "P", default_value_t = 1.0, allow_negative_numbers = true)]
    pub(crate) typical_p: f32,
    /// XTC: exclude the most probable tokens with this probability; 0 is off
    #[arg(long, value_name = "P", default_value_t = 0.0, allow_negative_numbers = true)]
    pub(crate) xtc_probability: f32,
    /// XTC: of the tokens with at least this probability, all but the least probable are excluded
    #[arg(long, value_name = "P", default_value_t = 0.1, allow_negative_numbers = true)]
    pub(crate) xtc_threshold: f32,
    /// DRY: penalty on tokens that continue a repetition; 0 is off
    #[arg(long, value_name = "X", default_value_t = 0.0, allow_negative_numbers = true)]
    pub(crate) dry_multiplier: f32,
    /// DRY: the penalty grows by this factor with each token of the repetition
    #[arg(long, value_name = "X", default_value_t = 1.75, allow_negative_numbers = true)]
    pub(crate) dry_base: f32,
    /// DRY: shorter repetitions are not penalised
    #[arg(long, value_name = "N", default_value_t = 2)]
    pub(crate) dry_allowed_length: usize,
    /// DRY: look at the last N tokens; -1 is all, 0 is none
    #[arg(long, value_name = "N", default_value_t = -1, value_parser = clap::value_parser!(i64).range(-1..),
        allow_negative_numbers = true)]
    pub(crate) dry_penalty_last_n: i64,
    /// DRY: text that ends a repetition; may be repeated [default: a line break, `:`, `"` and `*`]
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true)]
    pub(crate) dry_sequence_breaker: Vec<String>,
    /// Mirostat 1 or 2, which replaces top-k, top-p, min-p and the filters above; 0 is off
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = clap::value_parser!(u8).range(0..=2))]
    pub(crate) mirostat: u8,
    /// Mirostat: target surprise in bits
    #[arg(
        long,
        alias = "mirostat-ent",
        value_name = "BITS",
        default_value_t = 5.0,
        allow_negative_numbers = true
    )]
    pub(crate) mirostat_tau: f32,
    /// Mirostat: learning rate
    #[arg(
        long,
        alias = "mirostat-lr",
        value_name = "X",
        default_value_t = 0.1,
        allow_negative_numbers = true
    )]
    pub(crate) mirostat_eta: f32,
}
