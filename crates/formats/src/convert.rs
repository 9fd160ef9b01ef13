//! Writing a model as a GGUF file: the same weights in other floats or another layout, or quantised.
//!
//! Files are written beside their final names, read again and compared, and renamed only then.

mod shards;

use std::collections::hash_map::DefaultHasher;
use std::fs::File;
use std::hash::Hasher;
use std::io::BufWriter;
use std::path::{Path, PathBuf};

use tern_quant::{EncodeError, F16, INT4_32, INT4_128, Q4_0, Q4_1, Quant};

use self::shards::Shard;
use crate::whole_file::write_whole_files;
use crate::{Checkpoint, ConversionError, FormatError, Metadata, Tensor};

/// How a model is written.
#[derive(Clone, Debug)]
pub struct Conversion<'a> {
    /// The metadata of the file.
    pub metadata: Metadata,
    /// How each tensor is written, in the order of the model.
    pub tensors: Vec<TargetTensor<'a>>,
    /// Refuses to change a weight, other than by rounding floats to shorter floats.
    pub exact: bool,
    /// Threads that encode.
    pub threads: usize,
    /// Largest number of bytes of tensors in a file, if the model is split. A tensor is always in one file.
    pub max_file: Option<u64>,
}

/// How one tensor is written.
#[derive(Clone, Copy, Debug)]
pub struct TargetTensor<'a> {
    /// Its format.
    pub format: &'static Quant,
    /// The importance of its columns, for all rows or for those of each expert.
    pub importance: Option<&'a [f32]>,
}

/// What was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConvertedFile {
    /// The file, or the first one of a split model.
    pub path: PathBuf,
    /// Files.
    pub files: usize,
    /// Bytes of all files.
    pub bytes: u64,
    /// Tensors in it.
    pub tensors: usize,
}

impl<'a> Conversion<'a> {
    /// The model as it is, in one file. Codes with zero points, which GGUF files do not have, become codes
    /// with offsets, or without any if they are symmetric.
    pub fn unchanged(model: &Checkpoint) -> Conversion<'a> {
        let format = |tensor: &Tensor| match has_zero_points(tensor.quant) {
            true if is_symmetric(tensor) => &Q4_0,
            true => &Q4_1,
            false => tensor.quant,
        };
        let target = |tensor: &Tensor| TargetTensor { format: format(tensor), importance: None };
        Conversion {
            metadata: model.metadata.clone(),
            tensors: model.tensors.values().map(target).collect(),
            exact: true,
            threads: 1,
            max_file: None,
        }
    }

    /// Writes the model to `out`, checks the file and returns what it has. `progress` gets the bytes of the
    /// model that are done.
    ///
    /// ```no_run
    /// use tern_formats::{Checkpoint, Conversion};
    ///
    /// let model = Checkpoint::open("folder".as_ref())?;
    /// Conversion::unchanged(&model).write(&model, "model.gguf".as_ref(), &mut |_| ())?;
    /// # Ok::<(), tern_formats::FormatError>(())
    /// ```
    pub fn write(
        &self,
        model: &Checkpoint,
        out: &Path,
        progress: &mut dyn FnMut(u64),
    ) -> Result<ConvertedFile, FormatError> {
        for (tensor, target) in model.tensors.values().zip(&self.tensors) {
            self.check(tensor, target)?;
        }
        let shards = Shard::plan(self, model, out)?;
        let paths: Vec<PathBuf> = shards.iter().map(|shard| shard.path.clone()).collect();
        let mut done = 0;
        let write = |i: usize, file: &mut BufWriter<File>| {
            let step = |bytes: u64| {
                done += bytes;
                progress(done);
            };
            self.write_tensors(model, &shards[i], file, step)
        };
        let check = |written: &[(u64, Vec<u64>)], first: &Path| {
            let sums: Vec<u64> = written.iter().flat_map(|(_, sums)| sums).copied().collect();
            self.check_file(first, &sums)
        };
        let written = write_whole_files(out, &paths, write, check)?;
        let bytes = written.iter().map(|(bytes, _)| bytes).sum();
        Ok(ConvertedFile { files: paths.len(), bytes, tensors: self.tensors.len(), path: paths[0].clone() })
    }

    /// Refuses what cannot be written before anything is.
    fn check(&self, tensor: &Tensor, target: &TargetTensor<'_>) -> Result<(), FormatError> {
        let wrong = |why: ConversionError| Err(FormatError::Conversion(tensor.name.clone(), why));
        let (to, cols) = (target.format, tensor.cols());
        if to == tensor.quant {
            return Ok(());
        }
        if !tensor.quant.is_runnable() {
            return wrong(ConversionError::NotDecoded(tensor.quant.name));
        }
        if to.encode.is_none() {
            return wrong(EncodeError::NoEncoder(to.name).into());
        }
        if self.exact && tensor.quant.is_float() && !to.is_float() {
            return wrong(ConversionError::NotExact(to.name));
        }
        let matrices = matrices_of(tensor);
        match target.importance.map(<[f32]>::len) {
            Some(found) if found != cols && found != cols * matrices => {
                wrong(ConversionError::Importance { found, matrices, cols })
            }
            _ => Ok(()),
        }
    }

    /// Writes a file and returns its size and the hash of each tensor. `progress` gets
    /// the bytes of each tensor.
    fn write_tensors(
        &self,
        model: &Checkpoint,
        shard: &Shard,
        file: &mut BufWriter<File>,
        mut progress: impl FnMut(u64),
    ) -> Result<(u64, Vec<u64>), FormatError> {
        let (mut sums, mut refused) = (vec![], None);
        let bytes = shard.writer.write_to(file, |i, out| {
            let i = shard.tensors.start + i;
            let tensor = &model.tensors[i];
            let data = self.encoded(tensor, &self.tensors[i]).map_err(|e| {
                let text = e.to_string();
                refused = Some(e);
                std::io::Error::other(text)
            })?;
            sums.push(sum(&data));
            out.write_all(&data)?;
            progress(tensor.bytes());
            Ok(())
        });
        Ok((bytes.map_err(|e| refused.unwrap_or(e))?, sums))
    }

    /// The bytes of a tensor in a format.
    fn encoded(&self, tensor: &Tensor, target: &TargetTensor<'_>) -> Result<bytes::Bytes, FormatError> {
        let (data, to) = (tensor.data(), target.format);
        if to == tensor.quant {
            return Ok(data);
        }
        if self.exact && [&Q4_0, &Q4_1].contains(&to) && has_zero_points(tensor.quant) {
            let blocks = without_zero_points(tensor.quant, to, &data);
            return blocks.map_err(|e| FormatError::Conversion(tensor.name.clone(), e.into()));
        }
        let (cols, rows) = (tensor.cols(), tensor.rows());
        let exact = self.exact && !tensor.quant.is_float();
        let source = Source { tensor, data: &data, target, exact };
        if to.tail > 0 {
            return source.whole().map(Into::into);
        }
        let workers = self.threads.clamp(1, rows.max(1));
        // enough rows for each part to be worth a thread
        let each = rows.div_ceil(workers).max((1 << 16) / cols.max(1)).max(1);
        let parts: Vec<Result<Vec<u8>, FormatError>> = std::thread::scope(|scope| {
            let starts = (0..rows).step_by(each);
            let source = &source;
            let spawned: Vec<_> = starts
                .map(|start| scope.spawn(move || source.rows(start..(start + each).min(rows))))
                .collect();
            let lost = || FormatError::Conversion(tensor.name.clone(), ConversionError::Panicked);
            spawned.into_iter().map(|handle| handle.join().unwrap_or_else(|_| Err(lost()))).collect()
        });
        let mut out = Vec::new();
        for part in parts {
            out.extend(part?);
        }
        Ok(out.into())
    }

    /// Opens the file and compares each tensor with what was written.
    fn check_file(&self, path: &Path, sums: &[u64]) -> Result<(), FormatError> {
        let file = Checkpoint::open(path)?;
        let same = file.tensors.len() == sums.len()
            && file.tensors.values().zip(&self.tensors).zip(sums).all(|((tensor, target), want)| {
                tensor.quant == target.format && sum(&tensor.data()) == *want
            });
        match same {
            true => Ok(()),
            false => Err(FormatError::WrittenDiffers(path.into())),
        }
    }
}

/// Whether a format is four-bit codes with an integer zero point.
fn has_zero_points(quant: &Quant) -> bool {
    quant == &INT4_32 || quant == &INT4_128
}

/// The zero point of codes without offsets: that of [`Q4_0`].
const MIDDLE: u8 = 8;

/// Whether all blocks with a zero point have the one in the middle.
fn is_symmetric(tensor: &Tensor) -> bool {
    tensor.data().chunks_exact(tensor.quant.block_bytes()).all(|block| block[4] == MIDDLE)
}

/// Blocks with a zero point as blocks of [`Q4_0`], if it is the middle, or of [`Q4_1`]: the same codes, with
/// scales and offsets rounded to f16.
fn without_zero_points(from: &Quant, to: &Quant, data: &[u8]) -> Result<bytes::Bytes, EncodeError> {
    let mut out =
        Vec::with_capacity(data.len() / from.block_bytes() * from.block_len / 32 * to.block_bytes());
    for block in data.chunks_exact(from.block_bytes()) {
        let scale = f32::from_le_bytes([block[0], block[1], block[2], block[3]]);
        let factors = [scale, -scale * f32::from(block[4])];
        for codes in block[5..].chunks_exact(16) {
            F16.encode(if to == &Q4_0 { &factors[..1] } else { &factors }, &mut out)?;
            out.extend_from_slice(codes);
        }
    }
    Ok(out.into())
}

/// Matrices of a tensor: one, or one per expert.
fn matrices_of(tensor: &Tensor) -> usize {
    tensor.dims.iter().skip(2).product::<u64>() as usize
}

/// A tensor to encode.
struct Source<'a> {
    tensor: &'a Tensor,
    data: &'a [u8],
    target: &'a TargetTensor<'a>,
    /// Each weight must be the same after it.
    exact: bool,
}

impl Source<'_> {
    /// Some rows, encoded.
    fn rows(&self, range: std::ops::Range<usize>) -> Result<Vec<u8>, FormatError> {
        let (from, cols, to) = (self.tensor.quant, self.tensor.cols(), self.target.format);
        let rows_of_matrix = self.tensor.rows() / matrices_of(self.tensor);
        let row_bytes = cols / from.block_len * from.block_bytes();
        let tail = &self.data[self.data.len() - from.tail..];
        let (mut weights, mut again, mut out) = (vec![0.0; cols], vec![0.0; cols], Vec::new());
        for row in range {
            from.decode(&self.data[row * row_bytes..][..row_bytes], tail, &mut weights);
            let start = out.len();
            let wrong = |e: EncodeError| FormatError::Conversion(self.tensor.name.clone(), e.into());
            let encoded = match self.target.importance {
                None => to.encode(&weights, &mut out),
                Some(all) => {
                    let at = if all.len() == cols { 0 } else { row / rows_of_matrix * cols };
                    to.encode_row(&weights, &all[at..at + cols], &mut out)
                }
            };
            encoded.map_err(wrong)?;
            if self.exact {
                to.decode(&out[start..], &[], &mut again);
                self.compare(row, &weights, &again)?;
            }
        }
        Ok(out)
    }

    /// The whole tensor, in a format whose blocks share a scale.
    fn whole(&self) -> Result<Vec<u8>, FormatError> {
        let (from, cols, to) = (self.tensor.quant, self.tensor.cols(), self.target.format);
        let (blocks, tail) = self.data.split_at(self.data.len() - from.tail);
        let (mut weights, mut out) = (vec![0.0; self.tensor.rows() * cols], vec![]);
        from.decode(blocks, tail, &mut weights);
        let wrong = |e: EncodeError| FormatError::Conversion(self.tensor.name.clone(), e.into());
        to.encode(&weights, &mut out).map_err(wrong)?;
        if self.exact {
            let (blocks, tail) = out.split_at(out.len() - to.tail);
            let mut again = vec![0.0; weights.len()];
            to.decode(blocks, tail, &mut again);
            let rows = weights.chunks_exact(cols).zip(again.chunks_exact(cols)).enumerate();
            for (row, (weights, again)) in rows {
                self.compare(row, weights, again)?;
            }
        }
        Ok(out)
    }

    /// Refuses a row in which a weight would change.
    fn compare(&self, row: usize, weights: &[f32], again: &[f32]) -> Result<(), FormatError> {
        let Some(col) = weights.iter().zip(again).position(|(a, b)| a != b) else { return Ok(()) };
        let (weight, found) = (weights[col].to_string(), again[col].to_string());
        let differs = ConversionError::Weight { row, col, weight, found, format: self.target.format.name };
        Err(FormatError::Conversion(self.tensor.name.clone(), differs))
    }
}

fn sum(data: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    hasher.write(data);
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zero_points_become_offsets_and_the_middle_becomes_none() {
        for from in [&INT4_32, &INT4_128] {
            for (zero, to) in [(5, &Q4_1), (MIDDLE, &Q4_1), (MIDDLE, &Q4_0)] {
                let mut block = 0.03125f32.to_le_bytes().to_vec();
                block.push(zero);
                block.extend((0..from.block_len as u8 / 2).map(|i| i.wrapping_mul(37)));
                let (mut want, mut got) = (vec![0.0; from.block_len], vec![0.0; from.block_len]);
                from.decode(&block, &[], &mut want);
                to.decode(&without_zero_points(from, to, &block).unwrap(), &[], &mut got);
                assert_eq!(got, want, "{from} with {zero} as {to}");
                let (name, dims) = ("w".to_string(), vec![from.block_len as u64]);
                let tensor = Tensor::mapped(name, from, dims, block.into());
                assert_eq!(is_symmetric(&tensor), zero == MIDDLE);
            }
        }
    }
}
