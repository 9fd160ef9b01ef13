//! The flags of `tern doctor`.

use std::path::PathBuf;

use clap::Args;

use super::values::positive;
use super::{ModelArgs, YEAR};

#[derive(Debug, Args)]
pub(crate) struct DoctorArgs {
    // with -m and nothing else, a model is run over a text and compared with the CPU
    #[command(flatten)]
    pub(crate) model: ModelArgs,
    /// Run every op on the device and compare it with the reference
    #[arg(long)]
    pub(crate) ops: bool,
    /// Run small random models of every architecture and format on the device and compare them with the CPU
    #[arg(long)]
    pub(crate) models: bool,
    /// Only ops and models whose name contains this
    #[arg(long, value_name = "TEXT")]
    pub(crate) filter: Option<String>,
    /// Write the complete text of a CUDA program of each kind into a folder, and a
    /// compile_commands.json for editors
    #[arg(long, value_name = "DIR", conflicts_with_all = ["ops", "models", "stress"])]
    pub(crate) kernels: Option<PathBuf>,
    /// Also show correct results
    #[arg(short, long)]
    pub(crate) verbose: bool,
    /// Run random mixes of requests on the device and compare every text with the same request alone
    #[arg(long)]
    pub(crate) stress: bool,
    /// With --stress, use random weights in a known shape, such as bonsai-1.7b:q1_0; a list, or repeated, for
    /// several models in turn
    #[arg(long, value_name = "SHAPE:FORMAT", value_delimiter = ',', requires = "stress")]
    pub(crate) synthetic: Vec<String>,
    /// With --stress, requests that run at once
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = positive, requires = "stress")]
    pub(crate) streams: usize,
    /// With --stress, seconds per model, without loading
    #[arg(long, value_name = "S", default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=YEAR), requires = "stress")]
    pub(crate) seconds: u64,
    /// With --stress, seed of the random requests
    #[arg(long, value_name = "N", default_value_t = 1, requires = "stress")]
    pub(crate) seed: u64,
}
