//! The flags of `tern serve`.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use tracing_subscriber::filter::LevelFilter;

use super::values::{self, positive};
use super::{EngineArgs, YEAR};

#[derive(Clone, Debug, Args)]
pub(crate) struct ServeArgs {
    /// The model, as after -m [default: every model of `tern list`, loaded on request]
    #[arg(value_name = "MODEL", conflicts_with_all = ["model", "hf"])]
    pub(crate) name: Option<String>,
    /// Folder whose models are loaded on request
    #[arg(long, help_heading = "Model and device", value_name = "FOLDER", conflicts_with_all = ["name", "model", "hf"])]
    pub(crate) models: Option<PathBuf>,
    /// Seconds that an idle model stays loaded, if there are several; -1 is until its memory is needed
    #[arg(long, help_heading = "Model and device", value_name = "SECONDS", default_value_t = 300,
        allow_negative_numbers = true, value_parser = clap::value_parser!(i64).range(-1..=YEAR as i64))]
    pub(crate) keep_alive: i64,
    /// Maximum memory of all loaded models in GiB; idle ones are dropped for a new one
    /// [default: the free memory]
    #[arg(long, help_heading = "Model and device", value_name = "GIB")]
    pub(crate) memory: Option<f64>,
    /// Maximum seconds of a load, if there are several models; one that takes longer ends, and its requests
    /// are refused
    #[arg(long, help_heading = "Model and device", value_name = "SECONDS", default_value_t = 600,
        value_parser = clap::value_parser!(u64).range(1..=YEAR))]
    pub(crate) load_timeout: u64,
    /// Without a model: download the chat model if no model is downloaded yet, without asking
    #[arg(long, help_heading = "Model and device", conflicts_with_all = ["name", "model", "hf", "models"])]
    pub(crate) pull: bool,
    #[command(flatten)]
    pub(crate) engine: EngineArgs,
    /// Address to listen on; 0.0.0.0 is every interface of this machine
    #[arg(long, help_heading = "Network", default_value = "127.0.0.1")]
    pub(crate) host: String,
    /// Port to listen on; 0 picks a free one
    #[arg(long, help_heading = "Network", short = 'p', default_value_t = 8080)]
    pub(crate) port: u16,
    /// API key that requests must send; may be repeated (or set TERN_API_KEY, which `ps` does not show)
    #[arg(long, help_heading = "Access", value_name = "KEY")]
    pub(crate) api_key: Vec<String>,
    /// File with API keys, one per line
    #[arg(long, help_heading = "Access", value_name = "FILE")]
    pub(crate) api_key_file: Option<PathBuf>,
    /// Allow downloads and deletions of models over HTTP without a key; with keys, those who have one may do
    /// so
    #[arg(long, help_heading = "Access")]
    pub(crate) manage_models: bool,
    /// Allow /ready and /metrics without a key, as /health always is: for load balancers and schedulers of
    /// clusters, which send none
    #[arg(long, help_heading = "Access")]
    pub(crate) open_monitoring: bool,
    /// Folder for the requests and results of batches; enables /v1/files and /v1/batches. Made if it is
    /// missing, and used by one server at a time
    #[arg(long, help_heading = "Batches", value_name = "FOLDER")]
    pub(crate) files: Option<PathBuf>,
    /// Maximum size of all files of an API key, results included, in GiB [default: 8]
    #[arg(long, help_heading = "Batches", value_name = "GIB", requires = "files", value_parser = positive)]
    pub(crate) max_files: Option<usize>,
    /// Maximum queued requests; further requests are rejected with 429
    #[arg(long, help_heading = "Batching", value_name = "N", default_value_t = 256)]
    pub(crate) max_queue: usize,
    /// Target step duration during prefill, in milliseconds; 0 disables it
    #[arg(long, help_heading = "Batching", value_name = "MS", default_value_t = 100)]
    pub(crate) step_millis: usize,
    /// Maximum duration of a request in seconds [default: no limit]
    #[arg(long, help_heading = "Limits", value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..=YEAR))]
    pub(crate) request_timeout: Option<u64>,
    /// Seconds that running requests may take to finish after SIGTERM
    #[arg(long, help_heading = "Limits", value_name = "SECONDS", default_value_t = 30, value_parser = clap::value_parser!(u64).range(..=YEAR))]
    pub(crate) drain_timeout: u64,
    /// Seconds after which /health fails if a step also takes ten times as long as expected
    #[arg(long, help_heading = "Limits", value_name = "SECONDS", default_value_t = 120, value_parser = clap::value_parser!(u64).range(1..=YEAR))]
    pub(crate) stall_timeout: u64,
    /// Maximum size of a request body in MiB [default: 16]
    #[arg(long, help_heading = "Limits", value_name = "MIB", value_parser = positive)]
    pub(crate) max_body: Option<usize>,
    /// Maximum size of all request bodies in memory in MiB; further requests are
    /// rejected with 503 [default: 128]
    #[arg(long, help_heading = "Limits", value_name = "MIB", value_parser = positive)]
    pub(crate) max_bodies: Option<usize>,
    /// Maximum number of open connections, within the limit of open files; beyond it only /health
    /// is served [default: 4096]
    #[arg(long, help_heading = "Limits", value_name = "N", value_parser = positive)]
    pub(crate) max_connections: Option<usize>,
    /// Maximum number of open connections per IPv4 address or IPv6 /64 network; a proxy is
    /// one address [default: 1024]
    #[arg(long, help_heading = "Limits", value_name = "N", value_parser = positive)]
    pub(crate) max_connections_per_peer: Option<usize>,
    /// Origin whose pages may call the server, or `*`; may be repeated
    #[arg(long, help_heading = "Access", value_name = "ORIGIN")]
    pub(crate) cors_origin: Vec<String>,
    /// Host name that requests may use besides localhost and addresses, or `*` for any; may be repeated.
    /// Checked on loopback, and elsewhere if there is no API key
    #[arg(long, help_heading = "Access", value_name = "NAME", value_parser = values::host_name)]
    pub(crate) allowed_host: Vec<String>,
    /// Host whose images requests may name by URL, or `*`; may be repeated. Only public addresses, at the
    /// ports of HTTP, are asked [default: images are in requests themselves]
    #[arg(long, help_heading = "Access", value_name = "HOST", value_delimiter = ',', value_parser = values::host_name)]
    pub(crate) allow_image_urls: Vec<String>,
    /// Folder whose images requests may name by `file://`
    #[arg(long, help_heading = "Access", value_name = "FOLDER", alias = "media-path")]
    pub(crate) image_folder: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) log: LogArgs,
}

/// Where a server logs to.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Logging")]
pub(crate) struct LogArgs {
    /// Log level on stderr; `info` writes one line per request
    #[arg(long, value_name = "LEVEL", default_value = "info")]
    pub(crate) log: LogLevel,
    /// Log format
    #[arg(long, value_name = "FORMAT", default_value = "text")]
    pub(crate) log_format: LogFormat,
    /// OpenTelemetry collector that receives one span per request, such as http://localhost:4318
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
