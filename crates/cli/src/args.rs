//! What can be written after `tern`.

use std::convert::Infallible;
use std::path::PathBuf;

use crate::device::Device;
use crate::values::{self, MaxTokens, Seed, positive};
use clap::{Args, Parser, Subcommand, ValueEnum};
use tracing_subscriber::filter::LevelFilter;

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
    /// Serve a model to many, over the OpenAI API and a chat page
    Serve(Box<ServeArgs>),
    /// Watch a running server
    Top(TopArgs),
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
    /// Show what this machine has, and check that its devices compute rightly; with -m, that this model runs on the device
    /// as on the processor
    Doctor(DoctorArgs),
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
    /// Tokens a sequence may have, prompt and answer together; 0 is what the model was made for [default: that, at most
    /// 8192]
    #[arg(short = 'c', long = "ctx", alias = "max-model-len", value_name = "TOKENS", value_parser = values::context,
        allow_negative_numbers = true)]
    pub(crate) context: Option<usize>,
    /// How keys and values are kept; int8 takes half the memory, on the processor only so far
    #[arg(long, alias = "kv-cache-dtype", value_name = "TYPE", value_enum, default_value_t = KvType::F16)]
    pub(crate) kv: KvType,
    /// Threads [default: all cores, one each]
    #[arg(short, long, value_parser = values::threads, allow_negative_numbers = true)]
    pub(crate) threads: Option<usize>,
    /// cpu, cuda or cuda:N; auto is the GPU where there is one
    #[arg(long, value_name = "DEVICE", default_value_t = Device::Auto)]
    pub(crate) device: Device,
    /// What llama.cpp's users write (also -ngl)
    #[arg(long = "n-gpu-layers", alias = "gpu-layers", value_name = "N", hide = true, value_parser = values::gpu_layers,
        allow_negative_numbers = true)]
    _gpu_layers: Option<Infallible>,
    /// Read the file into memory instead of mapping it: a file that is changed meanwhile then does no harm
    #[arg(long)]
    pub(crate) no_mmap: bool,
    /// Keep the file's bytes in memory, so that the system never takes them out (`ulimit -l` must allow it)
    #[arg(long)]
    pub(crate) mlock: bool,
    /// Say nothing but the text (and errors)
    #[arg(short, long)]
    pub(crate) quiet: bool,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum KvType {
    F16,
    Int8,
}

/// How tokens are chosen. What no flag says, the model's file may (`general.sampling.*`).
#[derive(Debug, Args)]
pub(crate) struct SamplingArgs {
    /// Randomness; 0 always takes the best token [default: the file's, or 0.8]
    #[arg(long, alias = "temperature", value_name = "T", allow_negative_numbers = true)]
    pub(crate) temp: Option<f32>,
    /// Choose among the K best tokens; 0 is all [default: the file's, or 40]
    #[arg(long, value_name = "K", value_parser = values::top_k, allow_negative_numbers = true)]
    pub(crate) top_k: Option<usize>,
    /// Choose among the best tokens that together have probability P [default: the file's, or 0.95]
    #[arg(long, value_name = "P", allow_negative_numbers = true)]
    pub(crate) top_p: Option<f32>,
    /// Choose among tokens at least P times as probable as the best [default: the file's, or 0.05]
    #[arg(long, value_name = "P", allow_negative_numbers = true)]
    pub(crate) min_p: Option<f32>,
    /// Same seed, same text; -1 is by the clock [default: -1]
    #[arg(long, allow_negative_numbers = true)]
    pub(crate) seed: Option<Seed>,
    /// Divide the logits of tokens seen before; 1 is off [default: the file's, or 1]
    #[arg(long, value_name = "X", allow_negative_numbers = true)]
    pub(crate) repeat_penalty: Option<f32>,
    /// Taken off a token's logit each time it was seen; 0 is off
    #[arg(long, value_name = "X", default_value_t = 0.0, allow_negative_numbers = true)]
    pub(crate) frequency_penalty: f32,
    /// Taken off a token's logit once it was seen; 0 is off
    #[arg(long, value_name = "X", default_value_t = 0.0, allow_negative_numbers = true)]
    pub(crate) presence_penalty: f32,
    /// Add BIAS to the logit of token ID; may be given again
    #[arg(long, value_name = "ID=BIAS", value_parser = values::bias)]
    pub(crate) logit_bias: Vec<(u32, f32)>,
}

#[derive(Debug, Args)]
pub(crate) struct RunArgs {
    #[command(flatten)]
    pub(crate) model: ModelArgs,
    #[command(flatten)]
    pub(crate) sampling: SamplingArgs,
    /// Generate N tokens at most; -1 is until the model ends or the context is full [default: -1]
    #[arg(short = 'n', long, value_name = "N", default_value_t = MaxTokens(None), hide_default_value = true,
        allow_negative_numbers = true)]
    pub(crate) max_tokens: MaxTokens,
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
    /// What llama.cpp's users write
    #[arg(short = 'p', long = "prompt", value_name = "TEXT", hide = true, value_parser = values::flag_of_prompt,
        allow_hyphen_values = true)]
    _prompt_flag: Option<Infallible>,
    /// The prompt; what is piped into stdin is appended to it after a blank line, and `-` is stdin alone
    pub(crate) prompt: String,
    /// A prompt that was not quoted, or a model before it
    #[arg(hide = true, value_name = "SECOND PROMPT", value_parser = values::second_prompt)]
    _second: Option<Infallible>,
}

#[derive(Debug, Args)]
pub(crate) struct ChatArgs {
    /// The model, as -m has it [default: smollm2]
    #[arg(value_name = "MODEL", conflicts_with_all = ["model", "hf"])]
    pub(crate) name: Option<String>,
    #[command(flatten)]
    pub(crate) model: ModelArgs,
    #[command(flatten)]
    pub(crate) sampling: SamplingArgs,
    /// System message
    #[arg(long, value_name = "TEXT")]
    pub(crate) system: Option<String>,
    /// Generate N tokens at most in one answer; -1 is until it ends or the context is full [default: -1]
    #[arg(short = 'n', long, value_name = "N", default_value_t = MaxTokens(None), hide_default_value = true,
        allow_negative_numbers = true)]
    pub(crate) max_tokens: MaxTokens,
    /// What llama.cpp's users write
    #[arg(short = 'p', long = "prompt", value_name = "TEXT", hide = true, value_parser = values::flag_of_prompt,
        allow_hyphen_values = true)]
    _prompt_flag: Option<Infallible>,
}

/// Seconds; longer than anyone waits.
const YEAR: u64 = 365 * 24 * 3600;

#[derive(Debug, Args)]
pub(crate) struct ServeArgs {
    /// The model, as -m has it [default: smollm2]
    #[arg(value_name = "MODEL", conflicts_with_all = ["model", "hf"])]
    pub(crate) name: Option<String>,
    #[command(flatten)]
    pub(crate) model: ModelArgs,
    /// Address to listen on; 0.0.0.0 is every one of this machine
    #[arg(long, default_value = "127.0.0.1")]
    pub(crate) host: String,
    /// Port to listen on; 0 takes a free one
    #[arg(long, short = 'p', default_value_t = 8080)]
    pub(crate) port: u16,
    /// A key that requests must bring; may be given again (also TERN_API_KEY, which no `ps` shows)
    #[arg(long, value_name = "KEY")]
    pub(crate) api_key: Vec<String>,
    /// A file of keys, one a line
    #[arg(long, value_name = "FILE")]
    pub(crate) api_key_file: Option<PathBuf>,
    /// The name requests use for the model; may be given again for aliases [default: the file's or the model's own]
    #[arg(long, alias = "alias", value_name = "NAME")]
    pub(crate) served_model_name: Vec<String>,
    /// Sequences that run at once (also -np)
    #[arg(long, alias = "parallel", value_name = "N", default_value_t = 32, value_parser = positive)]
    pub(crate) max_num_seqs: usize,
    /// Requests that may wait when so many run; the next gets 429
    #[arg(long, value_name = "N", default_value_t = 256)]
    pub(crate) max_queue: usize,
    /// KV pages of 32 tokens [default: every sequence in full, within half of the free memory]
    #[arg(long, value_name = "N", value_parser = positive)]
    pub(crate) kv_pages: Option<usize>,
    /// Tokens in a step at most
    #[arg(long, alias = "max-num-batched-tokens", value_name = "N", default_value_t = 512, value_parser = positive)]
    pub(crate) max_batch_tokens: usize,
    /// Steps are kept about this long while prompts are read, so that nobody waits for long; 0 is no such wish
    #[arg(long, value_name = "MS", default_value_t = 100)]
    pub(crate) step_millis: usize,
    /// Seconds that a request may take [default: as long as it does]
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..=YEAR))]
    pub(crate) request_timeout: Option<u64>,
    /// Seconds that SIGTERM waits for what runs
    #[arg(long, value_name = "SECONDS", default_value_t = 30, value_parser = clap::value_parser!(u64).range(..=YEAR))]
    pub(crate) drain_timeout: u64,
    /// Seconds after which a step counts as stuck, if it also takes ten times as long as it should: /health then fails
    #[arg(long, value_name = "SECONDS", default_value_t = 120, value_parser = clap::value_parser!(u64).range(1..=YEAR))]
    pub(crate) stall_timeout: u64,
    /// MiB that a request's body may have [default: 16]
    #[arg(long, value_name = "MIB", value_parser = positive)]
    pub(crate) max_body: Option<usize>,
    /// MiB of request bodies held at once; more get 503 [default: 128]
    #[arg(long, value_name = "MIB", value_parser = positive)]
    pub(crate) max_bodies: Option<usize>,
    /// Open connections, within the limit of open files; beyond it only /health is answered [default: 4096]
    #[arg(long, value_name = "N", value_parser = positive)]
    pub(crate) max_connections: Option<usize>,
    /// Open connections of one IPv4 address or one /64 network of IPv6; a proxy is one address [default: 1024]
    #[arg(long, value_name = "N", value_parser = positive)]
    pub(crate) max_connections_per_peer: Option<usize>,
    /// An origin whose pages may call the server, or `*`; may be given again
    #[arg(long, value_name = "ORIGIN")]
    pub(crate) cors_origin: Vec<String>,
    /// Host name that requests may use beside localhost and addresses, or `*` for any; may be given again. Checked on
    /// loopback, and elsewhere if there is no key
    #[arg(long, value_name = "NAME", value_parser = values::host_name)]
    pub(crate) allowed_host: Vec<String>,
    /// How embeddings are made of tokens [default: as the file says, or the mean]
    #[arg(long, value_name = "HOW")]
    pub(crate) pooling: Option<PoolingArg>,
    /// Temperature where a request says none [default: the file's, or 1]
    #[arg(long, value_name = "T", allow_negative_numbers = true)]
    pub(crate) temp: Option<f32>,
    /// Top-k where a request says none; 0 is all [default: the file's, or 0]
    #[arg(long, value_name = "K", value_parser = values::top_k, allow_negative_numbers = true)]
    pub(crate) top_k: Option<usize>,
    /// Top-p where a request says none [default: the file's, or 1]
    #[arg(long, value_name = "P", allow_negative_numbers = true)]
    pub(crate) top_p: Option<f32>,
    /// Min-p where a request says none [default: the file's, or 0]
    #[arg(long, value_name = "P", allow_negative_numbers = true)]
    pub(crate) min_p: Option<f32>,
    /// Repetition penalty where a request says none; 1 is off [default: the file's, or 1]
    #[arg(long, value_name = "X", allow_negative_numbers = true)]
    pub(crate) repeat_penalty: Option<f32>,
    #[command(flatten)]
    pub(crate) log: LogArgs,
}

/// Where a server's words go.
#[derive(Debug, Args)]
pub(crate) struct LogArgs {
    /// How much is told on stderr; `info` has a line a request
    #[arg(long, value_name = "LEVEL", default_value = "info")]
    pub(crate) log: LogLevel,
    /// How it is written
    #[arg(long, value_name = "FORMAT", default_value = "text")]
    pub(crate) log_format: LogFormat,
    /// An OpenTelemetry collector that gets a span a request, such as http://localhost:4318
    #[arg(long, value_name = "URL")]
    pub(crate) otlp_endpoint: Option<String>,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum LogLevel {
    Off,
    Error,
    Warn,
    Info,
    Debug,
}

impl LogLevel {
    pub(crate) fn level(self) -> LevelFilter {
        match self {
            LogLevel::Off => LevelFilter::OFF,
            LogLevel::Error => LevelFilter::ERROR,
            LogLevel::Warn => LevelFilter::WARN,
            LogLevel::Info => LevelFilter::INFO,
            LogLevel::Debug => LevelFilter::DEBUG,
        }
    }
}

#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum LogFormat {
    Text,
    Json,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum PoolingArg {
    Mean,
    Last,
}

#[derive(Debug, Args)]
pub(crate) struct TopArgs {
    /// The server
    #[arg(default_value = "http://127.0.0.1:8080")]
    pub(crate) url: String,
    /// Its API key (also TERN_API_KEY)
    #[arg(long, value_name = "KEY")]
    pub(crate) api_key: Option<String>,
    /// Seconds between two looks, 0.1 to 3600
    #[arg(long, value_name = "SECONDS", default_value_t = 2.0, value_parser = values::interval)]
    pub(crate) interval: f64,
    /// Look once
    #[arg(long)]
    pub(crate) once: bool,
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
    /// cpu, cuda or cuda:N; auto is the GPU where there is one
    #[arg(long, value_name = "DEVICE", default_value_t = Device::Auto)]
    pub(crate) device: Device,
    /// Threads [default: all cores, one each]
    #[arg(short, long, value_parser = values::threads)]
    pub(crate) threads: Option<usize>,
    /// Only cases whose name contains this
    pub(crate) filter: Option<String>,
    /// Print one JSON object
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct DoctorArgs {
    // with -m and nothing else, a model is run over a text and compared with the processor
    #[command(flatten)]
    pub(crate) model: ModelArgs,
    /// Run every op on the device and compare it with the reference
    #[arg(long)]
    pub(crate) ops: bool,
    /// Run small made-up models of every architecture and format on the device and compare them with the processor
    #[arg(long)]
    pub(crate) models: bool,
    /// Only ops and models whose name contains this
    #[arg(long, value_name = "TEXT")]
    pub(crate) filter: Option<String>,
    /// Also show what is right
    #[arg(short, long)]
    pub(crate) verbose: bool,
    /// Run random mixes of requests on the device and compare every text with the same request alone
    #[arg(long)]
    pub(crate) stress: bool,
    /// With --stress, random weights made on the spot, such as bonsai-1.7b:q1_0; a list, or given again, runs several
    /// models one after the other
    #[arg(long, value_name = "SHAPE:FORMAT", value_delimiter = ',', requires = "stress")]
    pub(crate) synthetic: Vec<String>,
    /// With --stress, requests that run at once
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = positive, requires = "stress")]
    pub(crate) streams: usize,
    /// With --stress, seconds for each model, loading not counted
    #[arg(long, value_name = "S", default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=YEAR), requires = "stress")]
    pub(crate) seconds: u64,
    /// With --stress, the same seed draws the same requests
    #[arg(long, value_name = "N", default_value_t = 1, requires = "stress")]
    pub(crate) seed: u64,
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

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_sound() {
        super::Cli::command().debug_assert();
    }
}
