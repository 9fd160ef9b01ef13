//! The flags of `tern batch`.

use std::path::PathBuf;

use clap::Args;

use super::EngineArgs;

#[derive(Clone, Debug, Args)]
pub(crate) struct BatchArgs {
    #[command(flatten)]
    pub(crate) engine: EngineArgs,
    /// File that gets the results of requests that failed [default: OUT with `.errors` before its ending]
    #[arg(long, value_name = "FILE")]
    pub(crate) errors: Option<PathBuf>,
    /// File with a request per line: {"custom_id": ..., "method": "POST", "url": "/v1/chat/completions",
    /// "body": {...}}
    #[arg(value_name = "IN")]
    pub(crate) input: PathBuf,
    /// File that gets a result per line, in the order of the requests; if it has some already, only the
    /// others are answered
    #[arg(value_name = "OUT")]
    pub(crate) output: PathBuf,
}
