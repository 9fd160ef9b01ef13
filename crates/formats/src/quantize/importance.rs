//! Importance matrices: per tensor, the mean square of each column's activations, as llama.cpp's `imatrix` writes them.

use std::collections::HashMap;
use std::path::Path;

use crate::{Checkpoint, FormatError};

/// The importance of the columns of a model's matrices.
#[derive(Clone, Debug, Default)]
pub struct ImportanceMatrix {
    tensors: HashMap<String, Vec<f32>>,
    /// Texts that it was computed from, if the file says.
    pub datasets: Vec<String>,
}

/// Why a file is no importance matrix.
#[derive(Debug, thiserror::Error)]
pub enum ImportanceError {
    /// The file is not read.
    #[error(transparent)]
    Format(#[from] FormatError),
    /// The file has no pair of sums and counts.
    #[error(
        "no importance matrix: want tensors `NAME.in_sum2` and `NAME.counts`; older files that end in .dat must be converted"
    )]
    Empty,
    /// Sums and counts do not belong together.
    #[error("`{name}`: {sums} sums do not divide among {counts} counts")]
    Counts {
        /// The tensor.
        name: String,
        /// Sums of squares.
        sums: usize,
        /// Counts.
        counts: usize,
    },
}

impl ImportanceMatrix {
    /// Reads a GGUF file of `llama-imatrix`.
    pub fn open(path: &Path) -> Result<ImportanceMatrix, ImportanceError> {
        let file = Checkpoint::open(path)?;
        let mut tensors = HashMap::new();
        let floats = |name: &str| {
            let tensor = file.tensors.get(name).filter(|tensor| tensor.quant.is_float())?;
            let mut values = vec![0.0; tensor.rows() * tensor.cols()];
            tensor.quant.decode(&tensor.data(), &[], &mut values);
            Some(values)
        };
        for sums in file.tensors.keys().filter_map(|name| name.strip_suffix(".in_sum2")) {
            let pair = floats(&format!("{sums}.in_sum2")).zip(floats(&format!("{sums}.counts")));
            let Some((mut values, counts)) = pair else { continue };
            if counts.is_empty() || !values.len().is_multiple_of(counts.len()) {
                let name = sums.to_string();
                return Err(ImportanceError::Counts { name, sums: values.len(), counts: counts.len() });
            }
            // an expert that was never chosen: all its columns matter alike
            let columns = values.len() / counts.len();
            for (values, count) in values.chunks_exact_mut(columns.max(1)).zip(counts) {
                values.iter_mut().for_each(|v| *v = if count > 0.0 { *v / count } else { 1.0 });
            }
            tensors.insert(sums.to_string(), values);
        }
        if tensors.is_empty() {
            return Err(ImportanceError::Empty);
        }
        let datasets = file.metadata.optional_strings("imatrix.datasets").ok().flatten();
        Ok(ImportanceMatrix { tensors, datasets: datasets.map(<[_]>::to_vec).unwrap_or_default() })
    }

    /// The importance of the columns of a tensor: of all rows, or of those of each expert.
    pub fn of(&self, name: &str) -> Option<&[f32]> {
        self.tensors.get(name).map(Vec::as_slice)
    }

    /// Tensors that it has.
    pub fn len(&self) -> usize {
        self.tensors.len()
    }

    /// Whether it has none.
    pub fn is_empty(&self) -> bool {
        self.tensors.is_empty()
    }
}
