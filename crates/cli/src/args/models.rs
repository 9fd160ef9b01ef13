//! The flags of commands about stored and loaded models.

use clap::Args;

use super::values;

#[derive(Debug, Args)]
pub(crate) struct ListArgs {
    /// Print one JSON object
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct ShowArgs {
    /// Model: a name, a file, a folder, or org/repo[:QUANT]
    #[arg(value_name = "MODEL")]
    pub(crate) model: String,
    /// Print one JSON object
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct RmArgs {
    /// Models, as `tern list` names them
    #[arg(value_name = "MODEL", required = true)]
    pub(crate) models: Vec<String>,
    /// Do not ask
    #[arg(short, long)]
    pub(crate) yes: bool,
}

/// Which server.
#[derive(Debug, Args)]
pub(crate) struct ServerArgs {
    /// Address of the server
    #[arg(default_value = "http://127.0.0.1:8080", value_parser = values::server_url)]
    pub(crate) url: String,
    /// API key (or set TERN_API_KEY)
    #[arg(long, value_name = "KEY")]
    pub(crate) api_key: Option<String>,
}

#[derive(Debug, Args)]
pub(crate) struct PsArgs {
    #[command(flatten)]
    pub(crate) server: ServerArgs,
    /// Print one JSON object
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct StopArgs {
    /// The model, as `tern ps` names it
    #[arg(value_name = "MODEL")]
    pub(crate) model: String,
    #[command(flatten)]
    pub(crate) server: ServerArgs,
}
