//! The flags of `tern embed`, `tern rerank` and `tern bench embed`.

use std::path::PathBuf;

use clap::Args;
use tern::Pooling;

use super::ModelArgs;
use super::values::{self, positive};

#[derive(Debug, Args)]
pub(crate) struct EmbedArgs {
    #[command(flatten)]
    pub(crate) model: ModelArgs,
    /// Text file, one text per line [default: stdin]
    pub(crate) file: Option<PathBuf>,
    /// Print the cosine similarities of all texts as a table instead of the vectors
    #[arg(long)]
    pub(crate) table: bool,
    /// Text before each line, such as "query: "
    #[arg(long, value_name = "TEXT", default_value = "")]
    pub(crate) prefix: String,
    /// Use the first N numbers of each vector, for models that are trained for it
    #[arg(long, value_name = "N", value_parser = positive)]
    pub(crate) dimensions: Option<usize>,
    /// Shorten texts that exceed the context instead of refusing them
    #[arg(long)]
    pub(crate) truncate: bool,
    /// Pooling of embeddings: none (a vector per token), mean, cls (the first token) or last [default: the
    /// pooling in the model's file, or mean]
    #[arg(long, value_name = "HOW", value_parser = values::pooling(), hide_possible_values = true)]
    pub(crate) pooling: Option<Pooling>,
}

#[derive(Debug, Args)]
pub(crate) struct RerankArgs {
    #[command(flatten)]
    pub(crate) model: ModelArgs,
    /// What is searched
    pub(crate) query: String,
    /// Text file, one document per line [default: stdin]
    pub(crate) file: Option<PathBuf>,
    /// Print the N best documents only
    #[arg(long, value_name = "N", value_parser = positive)]
    pub(crate) top: Option<usize>,
    /// What makes a document relevant, for models that read it
    #[arg(long, value_name = "TEXT")]
    pub(crate) instruction: Option<String>,
    /// Print one JSON object per document
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct BenchEmbedArgs {
    #[command(flatten)]
    pub(crate) model: ModelArgs,
    /// Use random weights in a known shape, such as minilm-l6:f16
    #[arg(long, value_name = "SHAPE:FORMAT", conflicts_with_all = ["model", "hf"])]
    pub(crate) synthetic: Option<String>,
    /// Texts of a run
    #[arg(long, value_name = "N", default_value_t = 256, value_parser = positive)]
    pub(crate) texts: usize,
    /// Tokens per text
    #[arg(long, value_name = "N", default_value_t = 128, value_parser = positive)]
    pub(crate) tokens: usize,
    /// Tokens per step at most [default: what suits the device]
    #[arg(long, value_name = "N", value_parser = positive)]
    pub(crate) step_tokens: Option<usize>,
    /// Repetitions
    #[arg(short, long, default_value_t = 3, value_parser = positive)]
    pub(crate) repeat: usize,
    /// Print one JSON object
    #[arg(long)]
    pub(crate) json: bool,
}
