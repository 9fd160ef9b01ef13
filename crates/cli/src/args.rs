//! The command line of `tern`: its commands, and the flags that they share.

mod batch;
mod bench;
mod bench_serve;
mod doctor;
mod engine;
pub(crate) mod habits;
mod models;
pub(crate) mod sampling;
mod serve;
mod texts;
mod values;

use std::convert::Infallible;
use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};
use clap_complete::Shell;
use tern::formats::quantize::{Keep, Recipe};
use tern::{Activations, AdapterFile, DRAFT_MAX, Device, ExpertPlacement, GpuLayers, Speculation};

pub(crate) use self::batch::BatchArgs;
pub(crate) use self::bench::{
    BenchArgs, BenchOpsArgs, BenchPlanArgs, BenchSpeculateArgs, BenchTurnsArgs, BenchWhat,
};
pub(crate) use self::bench_serve::{BenchServeArgs, Endpoint};
pub(crate) use self::doctor::DoctorArgs;
pub(crate) use self::engine::{EngineArgs, UnknownArg};
pub(crate) use self::models::{ListArgs, PsArgs, RmArgs, ShowArgs, StopArgs};
pub(crate) use self::sampling::{BreakerArgs, ParameterArgs, SamplingArgs};
pub(crate) use self::serve::{LogArgs, LogFormat, ServeArgs};
pub(crate) use self::texts::{BenchEmbedArgs, EmbedArgs, RerankArgs};
use self::values::positive;
pub(crate) use self::values::{MaxTokens, Seed};

/// Language models at the speed of memory.
#[derive(Debug, Parser)]
#[command(name = "tern", version, about, propagate_version = true, after_help = AFTER_HELP)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// Below the commands.
const AFTER_HELP: &str = "\
Flags may also be set in a file (`tern config` shows which), and the default model by TERN_MODEL.";

/// A year in seconds, the longest timeout.
pub(crate) const YEAR: u64 = 365 * 24 * 3600;

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Continue a prompt
    Run(RunArgs),
    /// Chat with a model in the terminal
    Chat(ChatArgs),
    /// Serve a model over the OpenAI API, with a chat page
    Serve(Box<ServeArgs>),
    /// Answer a file of requests, one per line, as a server would; continues where an earlier run ended
    Batch(Box<BatchArgs>),
    /// Monitor a running server
    Top(TopArgs),
    /// Show the contents of a model file and the memory it needs
    Inspect(InspectArgs),
    /// Print a vector per line of text, or how similar the lines are
    Embed(EmbedArgs),
    /// Sort lines of text by their relevance for a query
    Rerank(RerankArgs),
    /// Convert stdin to token ids, or back
    Tokenize(TokenizeArgs),
    /// Measure prompt and decode speed; `bench serve` measures a server under load
    Bench(BenchArgs),
    /// Measure the perplexity of a model on a text
    Perplexity(PerplexityArgs),
    /// Write a model without changing its weights: as a GGUF file or a folder of safetensors, in other
    /// floats or another layout
    Convert(ConvertArgs),
    /// Write a model as a GGUF file with quantized weights
    Quantize(QuantizeArgs),
    /// Measure which columns of a model's matrices matter most on a text, for `quantize --imatrix`
    Imatrix(ImatrixArgs),
    /// Write a GGUF file with random weights in the shape of a known model
    Synth(SynthArgs),
    /// Download a model by name
    Pull {
        /// A known name such as `smollm2` or `qwen3:0.6b`, or org/repo[:QUANT] on the Hugging Face hub
        name: String,
    },
    /// List local models and known model names
    List(ListArgs),
    /// Show a model in short: architecture, size, context, quantization, chat template, sampling parameters
    Show(ShowArgs),
    /// Delete a downloaded model
    Rm(RmArgs),
    /// List the models that a running server has loaded
    Ps(PsArgs),
    /// Unload a model of a running server
    Stop(StopArgs),
    /// Print the completions of a shell
    Completions {
        /// The shell
        shell: Shell,
    },
    /// Write man pages
    Man {
        /// Folder that gets a page per command [default: the first page to stdout]
        folder: Option<PathBuf>,
    },
    /// Show the config file and its settings
    Config,
    /// Show detected hardware and verify that devices compute correct results; with -m, compare a model on
    /// the device with the CPU
    Doctor(DoctorArgs),
}

/// Which model, and how it is run.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Model and device")]
pub(crate) struct ModelArgs {
    /// Model to run: a name (`tern list`), a file, a folder, or org/repo[:QUANT] on the Hugging Face hub;
    /// `serve` accepts several
    #[arg(short, long, value_name = "MODEL")]
    pub(crate) model: Vec<String>,
    /// Model org/repo[:QUANT] on the Hugging Face hub (also -hf)
    #[arg(long, value_name = "REPO", conflicts_with = "model")]
    pub(crate) hf: Option<String>,
    /// Context length in tokens, prompt and answer together; 0 is the trained context, as far as memory
    /// allows [default: the trained context, at most 8192; `serve`: 0]
    #[arg(short = 'c', long = "ctx", alias = "max-model-len", value_name = "TOKENS", value_parser = values::context,
        allow_negative_numbers = true)]
    pub(crate) context: Option<usize>,
    /// Type of the KV cache; int8 and fp8 (GPU only) take half the memory [default: f16, or f32 on the CPU
    /// for models with f32 weights]
    #[arg(long, alias = "kv-cache-dtype", value_name = "TYPE", value_enum)]
    pub(crate) kv: Option<KvType>,
    /// CPU threads [default: one per core]
    #[arg(short, long, value_parser = values::threads, allow_negative_numbers = true)]
    pub(crate) threads: Option<usize>,
    /// Device: cpu, cuda, cuda:N, or auto for the GPU if there is one
    #[arg(long, value_name = "DEVICE", default_value_t = Device::Auto)]
    pub(crate) device: Device,
    /// Make texts on a GPU independent of other requests, bit for bit, as they always are on the CPU; slower
    #[arg(long)]
    pub(crate) reproducible: bool,
    /// Inputs of linears in steps of more than 128 tokens on a GPU: f16, or int8 for weights of one or two
    /// bits, which makes prompts faster and less exact
    #[arg(long, value_name = "TYPE", default_value_t = Activations::default())]
    pub(crate) activations: Activations,
    /// Where the experts of a mixture of experts are: device; cpu for host memory, where the CPU computes
    /// them while a GPU runs the rest; cpu:N for those of the first N layers; auto for as few layers in host
    /// memory as the GPU requires
    #[arg(long, value_name = "WHERE", default_value_t = ExpertPlacement::Auto)]
    pub(crate) experts: ExpertPlacement,
    /// Layers on the GPU, counted from the end with the output as one more, while the CPU computes the
    /// others; all; or auto for as many as the GPU has memory for (also -ngl)
    #[arg(long, alias = "n-gpu-layers", value_name = "LAYERS", default_value_t = GpuLayers::Auto,
        allow_negative_numbers = true)]
    pub(crate) gpu_layers: GpuLayers,
    /// Speculative decoding: guess tokens and compute several in a step, which does not change a text on
    /// the CPU or with --reproducible; suffix guesses what followed the same tokens before, auto is suffix
    /// on the CPU and off on a GPU
    #[arg(long, alias = "spec-type", value_name = "KIND", default_value_t = Speculation::Auto)]
    pub(crate) speculate: Speculation,
    /// Guessed tokens per sequence and step at most
    #[arg(long, alias = "spec-draft-n-max", value_name = "N", default_value_t = DRAFT_MAX)]
    pub(crate) draft_max: usize,
    /// Adapter (LoRA) to load with the model: a GGUF file or a folder of PEFT, and a factor on what it adds;
    /// may be repeated. All of them are used; in `serve` requests choose them by name
    #[arg(long, value_name = "NAME=FILE[:SCALE]")]
    pub(crate) lora: Vec<AdapterFile>,
    /// File with the tower of the model's images, in GGUF [default: the file beside the model whose name
    /// contains mmproj, or the model's own folder; none on GPUs]
    #[arg(long, value_name = "FILE", conflicts_with = "no_mmproj")]
    pub(crate) mmproj: Option<PathBuf>,
    /// Load the model without the tower of its images
    #[arg(long)]
    pub(crate) no_mmproj: bool,
    /// Tokens of one image at most; larger images are scaled down
    #[arg(long, value_name = "TOKENS", default_value_t = tern::ImageOptions::default().max_tokens,
        value_parser = values::positive)]
    pub(crate) image_max_tokens: usize,
    /// Folder in which prefixes of prompts are kept when they leave memory and at the end, so that they are
    /// not computed again, also after a restart; CPU only. Made if it is missing [default: none]
    #[arg(long, value_name = "FOLDER")]
    pub(crate) cache_dir: Option<PathBuf>,
    /// Maximum size of the files in --cache-dir in MiB; the least recently used ones are removed
    #[arg(long, value_name = "MIB", default_value_t = (tern::CacheFolder::DEFAULT_BYTES >> 20) as usize,
        value_parser = values::positive)]
    pub(crate) cache_dir_size: usize,
    /// Read the file into memory instead of mapping it, so that later changes to the file have no effect
    #[arg(long)]
    pub(crate) no_mmap: bool,
    /// Lock the file's bytes in memory so that they are never swapped out (requires a sufficient `ulimit -l`)
    #[arg(long)]
    pub(crate) mlock: bool,
    /// Print only the text and errors
    #[arg(short, long)]
    pub(crate) quiet: bool,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum KvType {
    F16,
    Int8,
    Fp8,
}

#[derive(Debug, Args)]
#[command(next_help_heading = "Text")]
pub(crate) struct RunArgs {
    #[command(flatten)]
    pub(crate) model: ModelArgs,
    #[command(flatten)]
    pub(crate) sampling: SamplingArgs,
    /// Maximum number of generated tokens; -1 is until the model ends or the context is full [default: -1]
    #[arg(short = 'n', long, value_name = "N", default_value_t = MaxTokens(None), hide_default_value = true,
        allow_negative_numbers = true)]
    pub(crate) max_tokens: MaxTokens,
    /// Pass the prompt as it is, without the chat template
    #[arg(long)]
    pub(crate) raw: bool,
    /// Tokens of reasoning after which the answer begins; 0 is none [default: no limit]
    #[arg(long, value_name = "N", alias = "reasoning-budget", conflicts_with = "raw")]
    pub(crate) thinking_budget: Option<usize>,
    /// System message for the chat template
    #[arg(long, value_name = "TEXT", conflicts_with = "raw")]
    pub(crate) system: Option<String>,
    /// End the text before this string; may be repeated
    #[arg(long, value_name = "TEXT")]
    pub(crate) stop: Vec<String>,
    /// File with a grammar that the text must follow: GBNF (llama.cpp) or Lark
    #[arg(long, value_name = "FILE")]
    pub(crate) grammar_file: Option<PathBuf>,
    /// Continue after the model's end tokens
    #[arg(long)]
    pub(crate) ignore_eos: bool,
    /// Print one JSON object: text, tokens, finish_reason, timing
    #[arg(long)]
    pub(crate) json: bool,
    /// Image to put before the prompt: JPEG, PNG, WebP, GIF or BMP; may be repeated
    #[arg(long, value_name = "FILE", conflicts_with = "raw")]
    pub(crate) image: Vec<PathBuf>,
    /// With --json, report the K most probable tokens at each position
    #[arg(long, value_name = "K", requires = "json")]
    pub(crate) logprobs: Option<usize>,
    /// The prompt; piped stdin is appended after a blank line, and `-` is stdin alone
    pub(crate) prompt: String,
    /// A prompt without quotes, or a model name before it
    #[arg(hide = true, value_name = "SECOND PROMPT", value_parser = values::second_prompt)]
    _second: Option<Infallible>,
}

#[derive(Debug, Args)]
pub(crate) struct ChatArgs {
    /// The model, as after -m [default: smollm2]
    #[arg(value_name = "MODEL", conflicts_with_all = ["model", "hf"])]
    pub(crate) name: Option<String>,
    #[command(flatten)]
    pub(crate) model: ModelArgs,
    #[command(flatten)]
    pub(crate) sampling: SamplingArgs,
    /// System message
    #[arg(long, value_name = "TEXT")]
    pub(crate) system: Option<String>,
    /// Maximum number of generated tokens per answer; -1 is until it ends or the
    /// context is full [default: -1]
    #[arg(short = 'n', long, value_name = "N", default_value_t = MaxTokens(None), hide_default_value = true,
        allow_negative_numbers = true)]
    pub(crate) max_tokens: MaxTokens,
    /// Tokens of reasoning after which the answer begins; 0 is none [default: no limit]
    #[arg(long, value_name = "N", alias = "reasoning-budget")]
    pub(crate) thinking_budget: Option<usize>,
    /// Do not wrap the answers at the width of the terminal
    #[arg(long)]
    pub(crate) no_wrap: bool,
    /// Do not read or write the history of typed lines (`chat_history` in $XDG_STATE_HOME/tern)
    #[arg(long)]
    pub(crate) no_history: bool,
}

#[derive(Debug, Args)]
pub(crate) struct TopArgs {
    /// Address of the server
    #[arg(default_value = "http://127.0.0.1:8080", value_parser = values::server_url)]
    pub(crate) url: String,
    /// API key (or set TERN_API_KEY)
    #[arg(long, value_name = "KEY")]
    pub(crate) api_key: Option<String>,
    /// Seconds between updates, 0.1 to 3600
    #[arg(long, value_name = "SECONDS", default_value_t = 2.0, value_parser = values::interval)]
    pub(crate) interval: f64,
    /// Print the state once and exit
    #[arg(long)]
    pub(crate) once: bool,
}

#[derive(Debug, Args)]
pub(crate) struct InspectArgs {
    /// Model file, folder or name
    pub(crate) file: String,
    /// Print one JSON object
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct TokenizeArgs {
    /// Model: a name, a file, a folder, or org/repo[:QUANT]
    #[arg(short, long)]
    pub(crate) model: Option<String>,
    /// Add BOS and EOS as the model expects, and parse control tokens in the text
    #[arg(long)]
    pub(crate) special: bool,
    /// Convert token ids to text
    #[arg(long)]
    pub(crate) decode: bool,
}

#[derive(Debug, Args)]
pub(crate) struct PerplexityArgs {
    #[command(flatten)]
    pub(crate) model: ModelArgs,
    /// Text file to score
    #[arg(short, long)]
    pub(crate) file: PathBuf,
    /// Score the first N chunks only
    #[arg(long, value_name = "N", value_parser = positive)]
    pub(crate) chunks: Option<usize>,
    /// Reference model with the same vocabulary: also print how much the distributions differ from its own
    #[arg(long, value_name = "OTHER")]
    pub(crate) compare: Option<String>,
    /// Device of the reference, if it is not --device
    #[arg(long, value_name = "DEVICE", requires = "compare")]
    pub(crate) compare_device: Option<Device>,
    /// Print one JSON object
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct ConvertArgs {
    /// Model: a folder of safetensors, a GGUF file, or a name as in -m
    #[arg(value_name = "MODEL")]
    pub(crate) model: String,
    /// GGUF file to write, or a folder of safetensors if the name does not end in .gguf
    pub(crate) out: PathBuf,
    /// Format of matrices: F32, F16 or BF16, or a layout that holds the same weights, such as TQ2_0 for Q2_0.
    /// By default formats are kept, and a folder has decoded weights in F32
    #[arg(long, value_name = "FORMAT", value_parser = values::recipe)]
    pub(crate) to: Option<&'static Recipe>,
    #[command(flatten)]
    pub(crate) files: FileArgs,
}

/// How files are written.
#[derive(Clone, Copy, Debug, Args)]
pub(crate) struct FileArgs {
    /// Split the model into files with at most this much of tensors each, such as 500M or 4G
    #[arg(long, value_name = "SIZE", value_parser = values::file_size)]
    pub(crate) split_max_size: Option<u64>,
    /// Threads; one per core by default
    #[arg(short, long, value_parser = values::threads)]
    pub(crate) threads: Option<usize>,
}

#[derive(Debug, Args)]
pub(crate) struct QuantizeArgs {
    /// Model: a folder of safetensors, a GGUF file, or a name as in -m
    #[arg(value_name = "MODEL")]
    pub(crate) model: String,
    /// GGUF file to write
    pub(crate) out: PathBuf,
    /// Format of matrices, or mix of formats, such as Q4_K_M
    #[arg(long, value_name = "FORMAT", value_parser = values::recipe)]
    pub(crate) to: &'static Recipe,
    /// All matrices get the same format, the embedding and the output too
    #[arg(long)]
    pub(crate) pure: bool,
    /// Format of tensors by name, in which * is any text; may be repeated, the first that matches counts
    #[arg(long, value_name = "PATTERN=FORMAT", value_parser = values::keep)]
    pub(crate) keep: Vec<Keep>,
    /// Importance of columns, a file of `tern imatrix` or llama-imatrix
    #[arg(long, value_name = "FILE")]
    pub(crate) imatrix: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) files: FileArgs,
}

#[derive(Debug, Args)]
pub(crate) struct ImatrixArgs {
    #[command(flatten)]
    pub(crate) model: ModelArgs,
    /// Text file to measure on
    #[arg(short, long)]
    pub(crate) file: PathBuf,
    /// File to write
    #[arg(short, long, value_name = "FILE", default_value = "imatrix.gguf")]
    pub(crate) out: PathBuf,
    /// Use the first N chunks only
    #[arg(long, value_name = "N", value_parser = positive)]
    pub(crate) chunks: Option<usize>,
}

#[derive(Debug, Args)]
pub(crate) struct SynthArgs {
    /// Shape and format, such as bonsai-1.7b:q1_0
    #[arg(value_name = "SHAPE:FORMAT")]
    pub(crate) spec: String,
    /// File to write
    pub(crate) out: PathBuf,
    /// Use the vocabulary of this model
    #[arg(long, value_name = "FILE")]
    pub(crate) vocab: Option<PathBuf>,
    /// Chat template of the file [default: none]
    #[arg(long, value_name = "FILE")]
    pub(crate) chat_template: Option<PathBuf>,
    /// Context length in tokens that the file names [default: that of the shape]
    #[arg(short, long, value_name = "TOKENS", value_parser = positive)]
    pub(crate) context: Option<usize>,
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    #[test]
    fn clap_accepts_the_command_line() {
        super::Cli::command().debug_assert();
    }
}
