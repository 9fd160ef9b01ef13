//! What can be written after `tern`.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};

/// Language models at the speed of memory.
#[derive(Debug, Parser)]
#[command(name = "tern", version, about, propagate_version = true)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Continue a prompt
    Run(RunArgs),
    /// Talk with a model
    Chat(ChatArgs),
    /// Show what is in a model file, and the memory it will take
    Inspect(InspectArgs),
    /// Turn stdin into token ids, or back
    Tokenize(TokenizeArgs),
    /// Measure prompt and decode speed
    Bench(BenchArgs),
    /// Measure how well a model predicts a text
    Perplexity(PerplexityArgs),
    /// Write a GGUF file with random weights in the shape of a known model
    Synth(SynthArgs),
    /// Fetch a model by name
    Pull {
        /// `smollm2`, or org/repo[:QUANT] of the Hugging Face hub
        name: String,
    },
    /// Show the models that are here, and those that have a name
    List,
}

/// Which model, and how it is run.
#[derive(Debug, Args)]
pub(crate) struct ModelArgs {
    /// A name (`tern list`), a file, a folder, or org/repo[:QUANT] of the Hugging Face hub
    #[arg(short, long, value_name = "MODEL")]
    pub(crate) model: Option<String>,
    /// org/repo[:QUANT] of the Hugging Face hub (also -hf)
    #[arg(long, value_name = "REPO", conflicts_with = "model")]
    pub(crate) hf: Option<String>,
    /// Tokens a sequence may have, prompt and answer together [default: what the model was made for, at most 8192]
    #[arg(short = 'c', long = "ctx", value_name = "TOKENS", value_parser = positive)]
    pub(crate) context: Option<usize>,
    /// Threads [default: all cores]
    #[arg(short, long, value_parser = positive)]
    pub(crate) threads: Option<usize>,
    /// Say nothing but the text (and errors)
    #[arg(short, long)]
    pub(crate) quiet: bool,
}

/// How tokens are chosen.
#[derive(Debug, Args)]
pub(crate) struct SamplingArgs {
    /// Randomness; 0 always takes the best token [default: 0 for run, 0.7 for chat]
    #[arg(long, value_name = "T", allow_negative_numbers = true)]
    pub(crate) temp: Option<f32>,
    /// Choose among the K best tokens; 0 is all
    #[arg(long, value_name = "K", default_value_t = 0)]
    pub(crate) top_k: usize,
    /// Choose among the best tokens that together have probability P
    #[arg(long, value_name = "P", default_value_t = 1.0, allow_negative_numbers = true)]
    pub(crate) top_p: f32,
    /// Choose among tokens at least P times as probable as the best
    #[arg(long, value_name = "P", default_value_t = 0.0, allow_negative_numbers = true)]
    pub(crate) min_p: f32,
    /// Same seed, same text [default: by the clock]
    #[arg(long)]
    pub(crate) seed: Option<u64>,
    /// Divide the logits of tokens seen before; 1 is off
    #[arg(long, value_name = "X", default_value_t = 1.0)]
    pub(crate) repeat_penalty: f32,
    /// Taken off a token's logit each time it was seen; 0 is off
    #[arg(long, value_name = "X", default_value_t = 0.0, allow_negative_numbers = true)]
    pub(crate) frequency_penalty: f32,
    /// Taken off a token's logit once it was seen; 0 is off
    #[arg(long, value_name = "X", default_value_t = 0.0, allow_negative_numbers = true)]
    pub(crate) presence_penalty: f32,
    /// Add BIAS to the logit of token ID; may be given again
    #[arg(long, value_name = "ID=BIAS", value_parser = bias)]
    pub(crate) logit_bias: Vec<(u32, f32)>,
}

#[derive(Debug, Args)]
pub(crate) struct RunArgs {
    #[command(flatten)]
    pub(crate) model: ModelArgs,
    #[command(flatten)]
    pub(crate) sampling: SamplingArgs,
    /// Generate N tokens at most [default: until the model ends or the context is full]
    #[arg(short = 'n', long, value_name = "N", value_parser = positive)]
    pub(crate) max_tokens: Option<usize>,
    /// Give the prompt to the model as it is, without the chat template
    #[arg(long)]
    pub(crate) raw: bool,
    /// System message for the chat template
    #[arg(long, value_name = "TEXT", conflicts_with = "raw")]
    pub(crate) system: Option<String>,
    /// End the text before this string; may be given again
    #[arg(long, value_name = "TEXT")]
    pub(crate) stop: Vec<String>,
    /// Go on after the model's end tokens
    #[arg(long)]
    pub(crate) ignore_eos: bool,
    /// Print one JSON object: text, tokens, finish_reason, timing
    #[arg(long)]
    pub(crate) json: bool,
    /// With --json, the K best tokens at each place
    #[arg(long, value_name = "K", requires = "json")]
    pub(crate) logprobs: Option<usize>,
    /// The prompt; `-` reads it from stdin
    pub(crate) prompt: String,
}

#[derive(Debug, Args)]
pub(crate) struct ChatArgs {
    #[command(flatten)]
    pub(crate) model: ModelArgs,
    #[command(flatten)]
    pub(crate) sampling: SamplingArgs,
    /// System message
    #[arg(long, value_name = "TEXT")]
    pub(crate) system: Option<String>,
    /// Generate N tokens at most in one answer
    #[arg(short = 'n', long, value_name = "N", value_parser = positive)]
    pub(crate) max_tokens: Option<usize>,
}

#[derive(Debug, Args)]
pub(crate) struct InspectArgs {
    /// A model file, a folder or a name
    pub(crate) file: String,
    /// Print one JSON object
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct TokenizeArgs {
    /// A name, a file, a folder, or org/repo[:QUANT]
    #[arg(short, long)]
    pub(crate) model: Option<String>,
    /// Add BOS and EOS as the model wants, and read control tokens in the text
    #[arg(long)]
    pub(crate) special: bool,
    /// Read ids and print their text
    #[arg(long)]
    pub(crate) decode: bool,
}

#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct BenchArgs {
    #[command(subcommand)]
    pub(crate) what: Option<BenchWhat>,
    #[command(flatten)]
    pub(crate) model: ModelArgs,
    /// Random weights made on the spot, such as bonsai-1.7b:q1_0
    #[arg(long, value_name = "SHAPE:FORMAT", conflicts_with_all = ["model", "hf"])]
    pub(crate) synthetic: Option<String>,
    /// Tokens of the prompt test; 0 leaves it out [default: 512, or what the context holds]
    #[arg(short, long, value_name = "TOKENS")]
    pub(crate) prompt: Option<usize>,
    /// Tokens of the decode test; 0 leaves it out [default: 128, or what the context holds]
    #[arg(short = 'n', long, value_name = "TOKENS")]
    pub(crate) decode: Option<usize>,
    /// Tokens already in the context when a test begins
    #[arg(short, long, default_value_t = 0)]
    pub(crate) depth: usize,
    /// Sequences decoded at once
    #[arg(short = 'b', long, value_name = "N", default_value_t = 1, value_parser = positive)]
    pub(crate) streams: usize,
    /// Times each test is run
    #[arg(short, long, default_value_t = 3, value_parser = positive)]
    pub(crate) repeat: usize,
    /// Print one JSON object
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Subcommand)]
pub(crate) enum BenchWhat {
    /// Time single ops in every format
    Ops(BenchOpsArgs),
    /// Time the scheduler alone
    Plan(BenchPlanArgs),
}

#[derive(Debug, Args)]
pub(crate) struct BenchPlanArgs {
    /// Sequences that run at once
    #[arg(long, default_value_t = 256, value_parser = positive)]
    pub(crate) seqs: usize,
    /// Tokens that each has
    #[arg(long, default_value_t = 2048, value_parser = positive)]
    pub(crate) depth: usize,
    /// Print one JSON object
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct BenchOpsArgs {
    /// Threads [default: all cores]
    #[arg(short, long, value_parser = positive)]
    pub(crate) threads: Option<usize>,
    /// Only cases whose name contains this
    pub(crate) filter: Option<String>,
    /// Print one JSON object
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct PerplexityArgs {
    #[command(flatten)]
    pub(crate) model: ModelArgs,
    /// The text
    #[arg(short, long)]
    pub(crate) file: PathBuf,
    /// Score the first N chunks only
    #[arg(long, value_name = "N", value_parser = positive)]
    pub(crate) chunks: Option<usize>,
    /// Print one JSON object
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct SynthArgs {
    /// Such as bonsai-1.7b:q1_0
    #[arg(value_name = "SHAPE:FORMAT")]
    pub(crate) spec: String,
    /// The file to write
    pub(crate) out: PathBuf,
    /// Take the vocabulary of this model
    #[arg(long, value_name = "FILE")]
    pub(crate) vocab: Option<PathBuf>,
}

fn positive(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(0) | Err(_) => Err("want a whole number from 1 on".into()),
        Ok(n) => Ok(n),
    }
}

fn bias(text: &str) -> Result<(u32, f32), String> {
    let parts = text.split_once('=').and_then(|(id, by)| Some((id.parse().ok()?, by.parse().ok()?)));
    parts.ok_or_else(|| "want a token id and a number, such as 42=-100".into())
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_sound() {
        super::Cli::command().debug_assert();
    }
}
