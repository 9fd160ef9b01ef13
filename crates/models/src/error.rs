//! Why a checkpoint cannot be run, in one sentence each.

use tern_formats::{MetadataError, shown};
use tern_graph::{GraphError, WeightError};

use crate::ALL;

/// Why a checkpoint cannot be run.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ModelError {
    /// A key is missing or has a wrong value.
    #[error(transparent)]
    Metadata(#[from] MetadataError),
    /// Shapes inside the model do not fit each other.
    #[error(transparent)]
    Graph(#[from] GraphError),
    /// The architecture is unknown.
    #[error("architecture `{}` is not supported; Tern runs {}", shown(.0), known())]
    Architecture(String),
    /// A tensor is missing, has a wrong shape, or has a format that cannot be run.
    #[error("{0}")]
    Tensor(String),
    /// The file needs something that Tern does not support.
    #[error("{0}")]
    Unsupported(String),
}

impl From<WeightError> for ModelError {
    fn from(e: WeightError) -> ModelError {
        ModelError::Graph(e.into())
    }
}

fn known() -> String {
    ALL.iter().map(|a| a.name).collect::<Vec<_>>().join(", ")
}
