//! Measuring the importance of columns: sums of squares, and the file that they become.

use std::path::Path;

use indexmap::IndexMap;
use tern_quant::F32;

use super::ImportanceMatrix;
use crate::gguf::Writer;
use crate::{FormatError, Metadata, Value, write_whole_file};

/// Sums of the squares of what each matrix of a model was multiplied with.
#[derive(Clone, Debug, Default)]
pub struct ImportanceSums {
    tensors: IndexMap<String, ColumnSums>,
}

/// The sums of one tensor, which may have several matrices (experts).
#[derive(Clone, Debug)]
struct ColumnSums {
    /// `[matrices, columns]`
    squares: Vec<f64>,
    /// Rows that were added to each matrix.
    rows: Vec<u64>,
}

/// What importance was measured from.
#[derive(Clone, Debug)]
pub struct MeasuredText {
    /// The name of the text.
    pub dataset: String,
    /// Chunks of it.
    pub chunks: usize,
    /// Tokens per chunk.
    pub chunk_len: usize,
}

impl ImportanceSums {
    /// Adds a tensor with `matrices` matrices of `columns` columns and returns its number; one of the same
    /// name is the same tensor.
    pub fn tensor(&mut self, name: &str, matrices: usize, columns: usize) -> usize {
        let entry = self.tensors.entry(name.to_string());
        let at = entry.index();
        entry.or_insert_with(|| ColumnSums {
            squares: vec![0.0; matrices * columns],
            rows: vec![0; matrices],
        });
        at
    }

    /// Adds a row that a matrix of a tensor was multiplied with.
    pub fn add(&mut self, tensor: usize, matrix: usize, row: &[f32]) {
        let ColumnSums { squares, rows } = &mut self.tensors[tensor];
        rows[matrix] += 1;
        let squares = &mut squares[matrix * row.len()..][..row.len()];
        squares.iter_mut().zip(row).for_each(|(sum, x)| *sum += f64::from(*x) * f64::from(*x));
    }

    /// Tensors with matrices that no row was added to, and how many of all their matrices: experts
    /// that the text did not need.
    pub fn unused(&self) -> impl Iterator<Item = (&str, [usize; 2])> {
        let unused = |sums: &ColumnSums| sums.rows.iter().filter(|rows| **rows == 0).count();
        let all =
            self.tensors.iter().map(move |(name, sums)| (name.as_str(), [unused(sums), sums.rows.len()]));
        all.filter(|(_, [unused, _])| *unused > 0)
    }

    /// Writes the file that `llama-quantize` and `tern quantize` read, and reads it
    /// back. Returns its tensors.
    ///
    /// ```
    /// use tern_formats::quantize::{ImportanceMatrix, ImportanceSums, MeasuredText};
    ///
    /// let mut sums = ImportanceSums::default();
    /// let up = sums.tensor("blk.0.ffn_up.weight", 1, 2);
    /// sums.add(up, 0, &[1.0, 3.0]);
    /// sums.add(up, 0, &[1.0, 0.0]);
    /// let folder = tempfile::tempdir().unwrap();
    /// let path = folder.path().join("imatrix.gguf");
    /// sums.write(&path, &MeasuredText { dataset: "text.txt".into(), chunks: 1, chunk_len: 2 })?;
    /// assert_eq!(ImportanceMatrix::open(&path)?.of("blk.0.ffn_up.weight"), Some(&[1.0, 4.5][..]));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn write(&self, path: &Path, text: &MeasuredText) -> Result<usize, FormatError> {
        let mut metadata = Metadata::default();
        metadata.insert("general.type", Value::String("imatrix".into()));
        metadata.insert("imatrix.datasets", Value::Strings(vec![text.dataset.clone()]));
        metadata.insert("imatrix.chunk_count", Value::Uint(text.chunks as u64));
        metadata.insert("imatrix.chunk_size", Value::Uint(text.chunk_len as u64));
        let mut writer = Writer::new(metadata);
        for (name, ColumnSums { squares, rows }) in &self.tensors {
            let matrices = rows.len() as u64;
            writer.declare(&format!("{name}.in_sum2"), &F32, &[squares.len() as u64 / matrices, matrices])?;
            writer.declare(&format!("{name}.counts"), &F32, &[1, matrices])?;
        }
        let floats = |values: &mut dyn Iterator<Item = f32>| -> Vec<u8> {
            values.flat_map(f32::to_le_bytes).collect()
        };
        let data = |i: usize, out: &mut dyn std::io::Write| {
            let ColumnSums { squares, rows } = &self.tensors[i / 2];
            out.write_all(&match i % 2 {
                0 => floats(&mut squares.iter().map(|sum| *sum as f32)),
                _ => floats(&mut rows.iter().map(|rows| *rows as f32)),
            })
        };
        let check = |_: &u64, path: &Path| match ImportanceMatrix::open(path) {
            Ok(file) if file.len() == self.tensors.len() => Ok(()),
            Ok(file) => Err(FormatError::WrittenTensors(self.tensors.len(), file.len())),
            Err(error) => Err(FormatError::Importance(Box::new(error))),
        };
        write_whole_file(path, |file| writer.write_to(file, data), check)?;
        Ok(self.tensors.len())
    }
}
