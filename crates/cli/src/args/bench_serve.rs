//! The flags of `tern bench serve`.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

use super::YEAR;
use super::values::{self, Seed, positive};

#[derive(Debug, Args)]
pub(crate) struct BenchServeArgs {
    /// Address of the server, such as http://127.0.0.1:8080; https and a path before /v1 are possible
    #[arg(value_parser = values::server_url)]
    pub(crate) url: String,
    /// Model name in requests [default: the first of GET /v1/models]
    #[arg(short, long, value_name = "NAME")]
    pub(crate) model: Option<String>,
    /// API key (or set TERN_API_KEY or OPENAI_API_KEY)
    #[arg(long, value_name = "KEY")]
    pub(crate) api_key: Option<String>,
    /// Route of the requests
    #[arg(long, value_name = "ROUTE", value_enum, default_value_t = Endpoint::Completions)]
    pub(crate) endpoint: Endpoint,
    /// Maximum requests at once; a list such as 1,8,32 runs one round each [default: 1, or 64 with --rate]
    #[arg(short = 'b', long, alias = "max-concurrency", value_name = "N", value_delimiter = ',', value_parser = positive)]
    pub(crate) streams: Vec<usize>,
    /// Requests per round [default: 4 per stream, at least 16]
    #[arg(long, alias = "num-prompts", value_name = "N", value_parser = positive)]
    pub(crate) requests: Option<usize>,
    /// Tokens per prompt, as the server counts them
    #[arg(short, long, alias = "random-input-len", value_name = "TOKENS", default_value_t = 128, value_parser = positive)]
    pub(crate) prompt_tokens: usize,
    /// Generated tokens per request
    #[arg(short = 'n', long, alias = "random-output-len", value_name = "TOKENS", default_value_t = 128, value_parser = positive)]
    pub(crate) output_tokens: usize,
    /// Requests per second, at random times (Poisson) [default: as fast as the streams allow]
    #[arg(long, alias = "request-rate", value_name = "R", value_parser = values::rate)]
    pub(crate) rate: Option<f64>,
    /// Requests before each round that are not measured
    #[arg(long, alias = "num-warmups", value_name = "N", default_value_t = 1)]
    pub(crate) warmup: usize,
    /// Time limit of a request in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 600, value_parser = clap::value_parser!(u64).range(1..=YEAR))]
    pub(crate) timeout: u64,
    /// Seed of prompts and arrival times; -1 is random, so that no earlier run is in the
    /// prefix cache [default: -1]
    #[arg(long, allow_negative_numbers = true)]
    pub(crate) seed: Option<Seed>,
    /// Write all measurements to FILE as one JSON object; `-` prints it instead of the table
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
    /// Write charts to FILE, which ends in .svg or .html
    #[arg(long, value_name = "FILE", value_parser = values::plot_file)]
    pub(crate) plot: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Endpoint {
    /// /v1/completions
    Completions,
    /// /v1/chat/completions
    Chat,
}
