//! Quantised checkpoints: the tensors of each method as rows in a format that kernels have,
//! exactly where one exists.

mod codes;
mod fp4;
mod grouped;
mod scaled;
mod ternary;
#[cfg(test)]
mod tests;

use indexmap::IndexMap;

use super::config::Config;
use super::matrix::Matrix;
use super::remaining::Remaining;
use crate::safetensors::Entry;
use crate::{FolderError, FormatError};

/// The tensors of a folder that are not read yet, by name.
pub(super) struct Parts {
    entries: Remaining<Entry>,
}

type Decoded<T> = Result<T, FormatError>;

impl Parts {
    /// Removes a tensor and returns it.
    fn take(&mut self, name: &str) -> Decoded<Entry> {
        self.take_optional(name).ok_or_else(|| FolderError::MissingTensor(name.into()).into())
    }

    fn take_optional(&mut self, name: &str) -> Option<Entry> {
        self.entries.take(name)
    }

    /// Removes a tensor of this dtype, one of several, and this shape, and returns it.
    fn take_shaped(&mut self, name: &str, dtypes: &[&str], shape: &[u64]) -> Decoded<Entry> {
        let entry = self.take(name)?;
        if !dtypes.contains(&entry.dtype.name) || entry.shape != shape {
            return Err(unexpected(&entry, &format!("{} {shape:?}", dtypes.join(" or "))));
        }
        Ok(entry)
    }

    /// The names of linears that have a tensor with this ending, without it.
    fn stems(&self, ending: &str) -> Vec<String> {
        self.entries.names().filter_map(|name| name.strip_suffix(ending)).map(String::from).collect()
    }
}

/// The error of a tensor of another dtype or shape.
fn unexpected(entry: &Entry, want: &str) -> FormatError {
    let found = format!("{} {:?}", entry.dtype.name, entry.shape);
    FolderError::tensor(&entry.name, want, found).into()
}

/// The weights of a folder: quantised ones decoded into formats as `quantization_config`
/// says, others as they are.
pub(crate) fn weights(
    entries: IndexMap<String, Entry>,
    config: &Config,
) -> Decoded<IndexMap<String, Matrix>> {
    let mut parts = Parts { entries: entries.into_iter().collect() };
    let mut weights = IndexMap::new();
    if let Some(quantization) = config.object("quantization_config")?.or(config.object("quantization")?) {
        decode(&quantization, &mut parts, &mut weights)?;
    }
    for (name, entry) in parts.entries {
        let dtype = entry.dtype.name;
        let matrix = Matrix::of(&entry)
            .ok_or_else(|| FolderError::Dtype { name: name.clone(), dtype: dtype.into() })?;
        weights.insert(name, matrix);
    }
    Ok(weights)
}

fn decode(q: &Config, parts: &mut Parts, weights: &mut IndexMap<String, Matrix>) -> Decoded<()> {
    let method = q.optional_str("quant_method")?;
    match method {
        Some("gptq") => grouped::gptq(q, parts, weights),
        Some("awq") => grouped::awq(q, parts, weights),
        Some("compressed-tensors") => match q.optional_str("format")? {
            Some("pack-quantized") => grouped::packed(parts, weights),
            Some("float-quantized" | "naive-quantized" | "int-quantized") => {
                scaled::per_channel(parts, weights)
            }
            Some("nvfp4-pack-quantized") => fp4::nvfp4(parts, weights),
            _ => Err(
                q.wrong("format", "pack-quantized, int-quantized, float-quantized or nvfp4-pack-quantized")
            ),
        },
        Some("fp8") => scaled::blocks(q, parts, weights),
        Some("mxfp4") => fp4::mxfp4(parts, weights),
        Some("bitsandbytes") => scaled::bitsandbytes(parts, weights),
        Some("bitnet") => ternary::bitnet(q, parts, weights),
        None if q.get("group_size").is_some() => grouped::mlx(q, parts, weights),
        _ => {
            Err(q.wrong("quant_method", "gptq, awq, compressed-tensors, fp8, mxfp4, bitsandbytes or bitnet"))
        }
    }
}

/// The name of the weight of a linear.
fn weight_of(stem: &str) -> String {
    format!("{stem}.weight")
}

/// The sizes of a matrix of codes, which must be products of small numbers.
fn count(sizes: &[u64], name: &str) -> Decoded<usize> {
    let all = sizes.iter().try_fold(1u64, |n, size| n.checked_mul(*size)).filter(|n| *n < 1 << 40);
    match all {
        Some(n) if n > 0 => Ok(n as usize),
        _ => {
            let why = format!("a matrix of {sizes:?} is empty or too large");
            Err(FolderError::TensorNotSupported { name: name.into(), why }.into())
        }
    }
}
