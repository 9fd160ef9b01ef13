//! Quantizing a model: which format each of its tensors gets, by a recipe.

mod importance;
mod importance_sums;
mod recipe;

use tern_quant::Quant;

pub use self::importance::{ImportanceError, ImportanceMatrix};
pub use self::importance_sums::{ImportanceSums, MeasuredText};
pub use self::recipe::{RECIPES, Recipe};
use self::recipe::{Shape, fitting, is_quantized};
use crate::convert::{Conversion, TargetTensor};
use crate::{Checkpoint, Tensor, Value};

/// How a model is quantized.
#[derive(Clone, Copy, Debug)]
pub struct Quantization<'a> {
    /// The mix of formats.
    pub recipe: &'static Recipe,
    /// Whether every matrix gets the recipe's base.
    pub pure: bool,
    /// Formats of tensors whose names match a pattern: the first that matches.
    pub keep: &'a [Keep],
    /// The importance of columns.
    pub importance: Option<&'a ImportanceMatrix>,
}

/// Tensors of a name get a format.
#[derive(Clone, Debug)]
pub struct Keep {
    /// The name; `*` is any text.
    pub pattern: String,
    /// The format.
    pub format: &'static Quant,
}

/// The format of one tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChosenFormat {
    /// The format.
    pub format: &'static Quant,
    /// The format of the recipe, if rows are no whole blocks of it.
    pub instead_of: Option<&'static Quant>,
}

impl<'a> Quantization<'a> {
    /// One format for all matrices.
    pub fn pure(recipe: &'static Recipe) -> Quantization<'a> {
        Quantization { recipe, pure: true, keep: &[], importance: None }
    }

    /// The formats of all tensors, in the order of the file.
    pub fn formats(&self, source: &Checkpoint) -> Vec<ChosenFormat> {
        let shape = Shape::of(source, self.importance.is_some());
        let choose = |tensor: &Tensor| {
            let kept = self.keep.iter().find(|keep| matches(&keep.pattern, &tensor.name));
            let wanted = match kept {
                Some(keep) => keep.format,
                None if !is_quantized(tensor) => tensor.quant,
                None if self.pure => self.recipe.base,
                None => shape.format(self.recipe, &tensor.name),
            };
            let format = if wanted == tensor.quant { wanted } else { fitting(wanted, tensor.cols()) };
            ChosenFormat { format, instead_of: (format != wanted).then_some(wanted) }
        };
        source.tensors.values().map(choose).collect()
    }

    /// How the model is written in these formats.
    pub fn conversion(&self, source: &Checkpoint, formats: &[ChosenFormat]) -> Conversion<'a> {
        let target = |(tensor, chosen): (&Tensor, &ChosenFormat)| {
            let importance = self.importance.and_then(|importance| importance.of(&tensor.name));
            TargetTensor { format: chosen.format, importance }
        };
        let tensors = source.tensors.values().zip(formats).map(target).collect();
        let metadata = source.metadata.clone();
        let mut conversion = Conversion { metadata, tensors, exact: false, threads: 1, max_file: None };
        let metadata = &mut conversion.metadata;
        match self.recipe.file_type {
            Some(number) => metadata.insert("general.file_type", Value::Uint(number)),
            None => metadata.remove("general.file_type"),
        };
        if self.recipe.base.codes().is_some() {
            metadata.insert("general.quantization_version", Value::Uint(2));
        }
        if let Some(importance) = self.importance {
            metadata.insert("quantize.imatrix.entries_count", Value::Uint(importance.len() as u64));
            if let Some(dataset) = importance.datasets.first() {
                metadata.insert("quantize.imatrix.dataset", Value::String(dataset.clone()));
            }
            if let Some(chunks) = importance.chunks {
                metadata.insert("quantize.imatrix.chunks_count", Value::Uint(chunks));
            }
        }
        conversion
    }
}

/// Whether a name is the pattern, in which `*` is any text.
fn matches(pattern: &str, name: &str) -> bool {
    match pattern.split_once('*') {
        None => pattern == name,
        Some((first, rest)) => name.strip_prefix(first).is_some_and(|name| {
            (0..=name.len()).filter(|&at| name.is_char_boundary(at)).any(|at| matches(rest, &name[at..]))
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::matches;

    #[test]
    fn stars_are_any_text() {
        assert!(matches("output.weight", "output.weight"));
        assert!(matches("blk.*.ffn_down.weight", "blk.12.ffn_down.weight"));
        assert!(matches("*", "") && matches("blk.*", "blk.") && matches("*attn*", "blk.0.attn_q.weight"));
        assert!(!matches("blk.1.*", "blk.11.attn_q.weight") && !matches("blk", "blk.0"));
    }
}
