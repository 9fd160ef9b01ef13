//! The flags of commands that answer the requests of the server's APIs: `tern serve` and `tern batch`.

use clap::{Args, ValueEnum};
use tern::Pooling;

use super::values::{self, positive};
use super::{BreakerArgs, ModelArgs, ParameterArgs};

/// How a model is loaded for many requests, and what holds for those that do not say otherwise.
#[derive(Clone, Debug, Args)]
pub(crate) struct EngineArgs {
    #[command(flatten)]
    pub(crate) model: ModelArgs,
    /// Model name in requests; may be repeated for aliases [default: the name of the file or the model]
    #[arg(long, help_heading = "Model and device", alias = "alias", value_name = "NAME")]
    pub(crate) served_model_name: Vec<String>,
    /// Maximum number of sequences that run at once (also -np)
    #[arg(long, help_heading = "Batching", alias = "parallel", value_name = "N", default_value_t = 32, value_parser = positive)]
    pub(crate) max_num_seqs: usize,
    /// KV cache pages of 32 tokens [default: 8192 tokens per sequence, or one in full, within
    /// half of the free memory]
    #[arg(long, help_heading = "Batching", value_name = "N", value_parser = positive)]
    pub(crate) kv_pages: Option<usize>,
    /// Memory of snapshots of recurrent layers in the prefix cache, in MiB, beyond the state of running
    /// sequences [default: 8 snapshots per sequence, within an eighth of the free memory]
    #[arg(long, help_heading = "Batching", value_name = "MIB")]
    pub(crate) state_cache: Option<usize>,
    /// Maximum number of tokens per step [default: 2048 on a GPU, 512 on the CPU]
    #[arg(long, help_heading = "Batching", alias = "max-num-batched-tokens", value_name = "N", value_parser = positive)]
    pub(crate) max_batch_tokens: Option<usize>,
    /// Parameters of requests that are not known: refuse them with 400, or ignore them
    /// with a warning in the log
    #[arg(long, help_heading = "Limits", value_name = "HOW", default_value = "refuse")]
    pub(crate) unknown_parameters: UnknownArg,
    /// Fill-in-the-middle prompts have the text after the gap first, which some models prefer
    #[arg(long, help_heading = "Model and device")]
    pub(crate) spm_infill: bool,
    /// Pooling of embeddings: none (a vector per token), mean, cls (the first token) or last [default: the
    /// pooling in the model's file, or mean]
    #[arg(long, help_heading = "Model and device", value_name = "HOW", value_parser = values::pooling(),
        hide_possible_values = true)]
    pub(crate) pooling: Option<Pooling>,
    #[command(flatten)]
    pub(crate) sampling: ParameterArgs,
    #[command(flatten)]
    pub(crate) breakers: BreakerArgs,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum UnknownArg {
    Refuse,
    Ignore,
}
