//! Importance matrices: per tensor, the mean square of each column's activations, as
//! llama.cpp's `imatrix` writes them.

use std::collections::HashMap;
use std::path::Path;

use crate::{Checkpoint, FormatError};

/// The importance of the columns of a model's matrices.
#[derive(Clone, Debug, Default)]
pub struct ImportanceMatrix {
    tensors: HashMap<String, Vec<f32>>,
    /// Texts that it was computed from, if the file says.
    pub datasets: Vec<String>,
    /// Chunks of text that it was computed from, if the file says.
    pub chunks: Option<u64>,
}

/// Why a file is no importance matrix.
#[derive(Debug, thiserror::Error)]
pub enum ImportanceError {
    /// The file is not read.
    #[error(transparent)]
    Format(#[from] FormatError),
    /// The file cannot be opened.
    #[error(transparent)]
    Read(#[from] std::io::Error),
    /// The file has no pair of sums and counts.
    #[error("no importance matrix: want tensors `NAME.in_sum2` and `NAME.counts`")]
    Empty,
    /// A file of the older layout ends within an entry or has an impossible one.
    #[error("no importance matrix: neither a GGUF file nor, at byte {at}, one of the older layout (.dat)")]
    Entry {
        /// Where the entry begins.
        at: usize,
    },
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
    /// A value that no mean square has.
    #[error("`{name}`: the importance of column {column} is {value}")]
    Value {
        /// The tensor.
        name: String,
        /// The column, counted through all matrices.
        column: usize,
        /// Its value.
        value: f32,
    },
}

impl ImportanceMatrix {
    /// Reads a file of `tern imatrix` or `llama-imatrix`: GGUF, or the older layout.
    pub fn open(path: &Path) -> Result<ImportanceMatrix, ImportanceError> {
        let mut magic = [0; 4];
        let read =
            std::fs::File::open(path).and_then(|mut file| std::io::Read::read_exact(&mut file, &mut magic));
        let matrix = match read {
            Ok(()) if &magic == b"GGUF" => ImportanceMatrix::from_gguf(&Checkpoint::open(path)?)?,
            Err(error) if error.kind() != std::io::ErrorKind::UnexpectedEof => return Err(error.into()),
            _ => ImportanceMatrix::from_entries(&std::fs::read(path)?)?,
        };
        for (name, values) in &matrix.tensors {
            if let Some(column) = values.iter().position(|v| !(v.is_finite() && *v >= 0.0)) {
                let (name, value) = (name.clone(), values[column]);
                return Err(ImportanceError::Value { name, column, value });
            }
        }
        if matrix.tensors.is_empty() { Err(ImportanceError::Empty) } else { Ok(matrix) }
    }

    fn from_gguf(file: &Checkpoint) -> Result<ImportanceMatrix, ImportanceError> {
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
        let datasets = file.metadata.optional_strings("imatrix.datasets").ok().flatten();
        let chunks = file.metadata.optional_usize("imatrix.chunk_count").ok().flatten();
        Ok(ImportanceMatrix {
            tensors,
            datasets: datasets.map(<[_]>::to_vec).unwrap_or_default(),
            chunks: chunks.map(|chunks| chunks as u64),
        })
    }

    /// The older layout: a count of entries, each a name, the number of chunks and the values times it, all
    /// lengths as i32; then chunks and the name of the text, which the oldest files lack.
    fn from_entries(bytes: &[u8]) -> Result<ImportanceMatrix, ImportanceError> {
        let mut rest = bytes;
        let mut tensors = HashMap::new();
        let at = |rest: &[u8]| ImportanceError::Entry { at: bytes.len() - rest.len() };
        let entries = number(&mut rest).ok_or_else(|| at(rest))?;
        for _ in 0..entries {
            let start = rest;
            let (name, values) = entry(&mut rest).ok_or_else(|| at(start))?;
            tensors.insert(name, values);
        }
        let chunks = number(&mut rest).map(|chunks| chunks as u64);
        let dataset = number(&mut rest).and_then(|len| rest.split_off(..len));
        let datasets = dataset.map(|name| String::from_utf8_lossy(name).into_owned()).into_iter().collect();
        Ok(ImportanceMatrix { tensors, datasets, chunks })
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

/// An i32 that is not negative.
fn number(rest: &mut &[u8]) -> Option<usize> {
    let (bytes, after) = rest.split_first_chunk()?;
    *rest = after;
    usize::try_from(i32::from_le_bytes(*bytes)).ok()
}

fn entry(rest: &mut &[u8]) -> Option<(String, Vec<f32>)> {
    let len = number(rest)?;
    let name = String::from_utf8(rest.split_off(..len)?.to_vec()).ok()?;
    let (chunks, len) = (number(rest)?, number(rest)?);
    let values = rest.split_off(..len.checked_mul(4)?)?.chunks_exact(4);
    let by = chunks.max(1) as f32;
    let values = values.map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]]) / by);
    Some((name, values.collect()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn opened(bytes: &[u8]) -> Result<ImportanceMatrix, ImportanceError> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("imatrix");
        std::fs::write(&path, bytes).unwrap();
        ImportanceMatrix::open(&path)
    }

    /// One entry as llama.cpp's older files have it: `blk.0.ffn_up.weight`, 4 chunks, the values 2 and 6.
    fn older() -> Vec<u8> {
        let name = b"blk.0.ffn_up.weight";
        let mut file = vec![];
        file.extend(1i32.to_le_bytes());
        file.extend((name.len() as i32).to_le_bytes());
        file.extend(name);
        file.extend(4i32.to_le_bytes());
        file.extend(2i32.to_le_bytes());
        file.extend([2f32, 6.0].iter().flat_map(|v| v.to_le_bytes()));
        file
    }

    #[test]
    fn older_files_are_read_with_and_without_the_name_of_the_text() {
        let matrix = opened(&older()).unwrap();
        assert_eq!(matrix.of("blk.0.ffn_up.weight"), Some(&[0.5f32, 1.5][..]));
        assert_eq!((matrix.len(), matrix.chunks), (1, None));
        assert!(matrix.datasets.is_empty());
        let mut named = older();
        named.extend(4i32.to_le_bytes());
        named.extend(8i32.to_le_bytes());
        named.extend(b"wiki.txt");
        let matrix = opened(&named).unwrap();
        assert_eq!((matrix.chunks, matrix.datasets), (Some(4), vec!["wiki.txt".to_string()]));
    }

    #[test]
    fn files_that_end_early_or_claim_too_much_are_refused() {
        let whole = older();
        for len in 0..whole.len() {
            let error = opened(&whole[..len]).unwrap_err();
            assert!(matches!(error, ImportanceError::Entry { .. }), "{len} bytes: {error}");
        }
        let mut claims = whole.clone();
        claims[4..8].copy_from_slice(&i32::MAX.to_le_bytes());
        let text = opened(&claims).unwrap_err().to_string();
        assert_eq!(
            text,
            "no importance matrix: neither a GGUF file nor, at byte 4, one of the older layout (.dat)"
        );
        claims[..4].copy_from_slice(&(-1i32).to_le_bytes());
        assert!(matches!(opened(&claims), Err(ImportanceError::Entry { at: 4 })), "a negative count");
        assert!(matches!(opened(&[0; 4]), Err(ImportanceError::Empty)));
        let mut wrong = whole;
        let end = wrong.len();
        wrong[end - 4..].copy_from_slice(&f32::NAN.to_le_bytes());
        let text = opened(&wrong).unwrap_err().to_string();
        assert_eq!(text, "`blk.0.ffn_up.weight`: the importance of column 1 is NaN");
    }

    #[test]
    fn a_missing_file_is_named_by_the_system() {
        let error = ImportanceMatrix::open("/missing/imatrix".as_ref()).unwrap_err();
        assert!(matches!(error, ImportanceError::Read(_)), "{error}");
    }
}
