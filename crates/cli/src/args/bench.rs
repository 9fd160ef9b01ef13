//! The flags of `tern bench`.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use tern::{Activations, Device};

use super::values::{self, positive};
use super::{BenchEmbedArgs, BenchServeArgs, ModelArgs, SamplingArgs};

#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct BenchArgs {
    #[command(subcommand)]
    pub(crate) what: Option<BenchWhat>,
    #[command(flatten)]
    pub(crate) model: ModelArgs,
    /// Use random weights in a known shape, such as bonsai-1.7b:q1_0
    #[arg(long, value_name = "SHAPE:FORMAT", conflicts_with_all = ["model", "hf"])]
    pub(crate) synthetic: Option<String>,
    /// Tokens of the prompt test; 0 omits it [default: 512, or what fits the context]
    #[arg(short, long, value_name = "TOKENS")]
    pub(crate) prompt: Option<usize>,
    /// Tokens of the decode test; 0 omits it [default: 128, or what fits the context]
    #[arg(short = 'n', long, value_name = "TOKENS")]
    pub(crate) decode: Option<usize>,
    /// Tokens in the context before a test begins
    #[arg(short, long, default_value_t = 0)]
    pub(crate) depth: usize,
    /// Sequences that are decoded at once; a list such as 1,8,32 runs every test with each
    #[arg(short = 'b', long, value_name = "N", default_value = "1", value_delimiter = ',', value_parser = positive)]
    pub(crate) streams: Vec<usize>,
    /// Repetitions of each test
    #[arg(short, long, default_value_t = 3, value_parser = positive)]
    pub(crate) repeat: usize,
    /// Print one JSON object
    #[arg(long)]
    pub(crate) json: bool,
}

impl BenchArgs {
    /// The largest number of streams of a test.
    pub(crate) fn most_streams(&self) -> usize {
        self.streams.iter().copied().max().unwrap_or(1)
    }
}

#[derive(Debug, Subcommand)]
pub(crate) enum BenchWhat {
    /// Measure single ops in every format
    Ops(BenchOpsArgs),
    /// Measure the scheduler alone
    Plan(BenchPlanArgs),
    /// Measure a conversation of several turns: tokens that each computes, time to its first token
    Turns(BenchTurnsArgs),
    /// Measure speculative decoding on real prompts: with and without drafts, and whether a text differs
    Speculate(Box<BenchSpeculateArgs>),
    /// Measure embeddings of a model that reads texts whole
    Embed(BenchEmbedArgs),
    /// Measure a server with the OpenAI API under load: throughput and latencies
    Serve(Box<BenchServeArgs>),
}

#[derive(Debug, Args)]
pub(crate) struct BenchTurnsArgs {
    #[command(flatten)]
    pub(crate) model: ModelArgs,
    /// Use random weights in a known shape, such as qwen3.5-0.8b:q4_k
    #[arg(long, value_name = "SHAPE:FORMAT", conflicts_with_all = ["model", "hf"])]
    pub(crate) synthetic: Option<String>,
    /// Number of turns
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = positive)]
    pub(crate) turns: usize,
    /// Tokens of the first prompt
    #[arg(long, value_name = "TOKENS", default_value_t = 4000, value_parser = positive)]
    pub(crate) history: usize,
    /// Tokens that each turn adds to the answer before it
    #[arg(long, value_name = "TOKENS", default_value_t = 32, value_parser = positive)]
    pub(crate) question: usize,
    /// Tokens of each answer
    #[arg(short = 'n', long, value_name = "TOKENS", default_value_t = 32, value_parser = positive)]
    pub(crate) answer: usize,
    /// Print one JSON object
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct BenchSpeculateArgs {
    #[command(flatten)]
    pub(crate) model: ModelArgs,
    #[command(flatten)]
    pub(crate) sampling: SamplingArgs,
    /// File with a prompt per line: a text, or a JSON object with the member `prompt`
    #[arg(long, value_name = "FILE")]
    pub(crate) prompts: PathBuf,
    /// Maximum number of generated tokens per prompt
    #[arg(short = 'n', long, value_name = "N", default_value_t = 200, value_parser = positive)]
    pub(crate) max_tokens: usize,
    /// Texts that are generated at once
    #[arg(short = 'b', long, value_name = "N", default_value_t = 1, value_parser = positive)]
    pub(crate) streams: usize,
    /// Pass the prompts as they are, without the chat template
    #[arg(long)]
    pub(crate) raw: bool,
    /// Print one JSON object
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct BenchPlanArgs {
    /// Sequences that run at once
    #[arg(long, default_value_t = 256, value_parser = positive)]
    pub(crate) seqs: usize,
    /// Tokens per sequence
    #[arg(long, default_value_t = 2048, value_parser = positive)]
    pub(crate) depth: usize,
    /// Print one JSON object
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct BenchOpsArgs {
    /// Device: cpu, cuda, cuda:N, or auto for the GPU if there is one
    #[arg(long, value_name = "DEVICE", default_value_t = Device::Auto)]
    pub(crate) device: Device,
    /// CPU threads [default: one per core]
    #[arg(short, long, value_parser = values::threads)]
    pub(crate) threads: Option<usize>,
    /// Time the kernels of --reproducible
    #[arg(long)]
    pub(crate) reproducible: bool,
    /// Time the kernels of --activations
    #[arg(long, value_name = "TYPE", default_value_t = Activations::default())]
    pub(crate) activations: Activations,
    /// Only cases whose name contains this
    pub(crate) filter: Option<String>,
    /// Print one JSON object
    #[arg(long)]
    pub(crate) json: bool,
}
