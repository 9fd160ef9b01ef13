//! Tensors under the names of folders, with the rows in their order.

use serde_json::{Map, Value as Json};
use tern_quant::{BF16, F16, F32, Quant};

use super::super::family::{COMMON_TENSORS, Family, Fix, Rule};
use super::super::matrix::Matrix;
use super::FolderExport;
use crate::{ExportError, FormatError, Tensor, TensorExport};

/// Tensors that are keys of `config.json`.
pub(super) const IN_CONFIG: [&str; 3] =
    ["rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight"];

/// The tensors of the folder, in the order of the model.
pub(super) fn tensors(
    export: &FolderExport<'_>,
    family: &Family,
    config: &Map<String, Json>,
) -> Result<Vec<(String, Matrix)>, FormatError> {
    let mut all = vec![];
    for tensor in export.model.tensors.values().filter(|tensor| !IN_CONFIG.contains(&tensor.name.as_str())) {
        let refused = |why: TensorExport| FormatError::from(ExportError::Tensor(tensor.name.clone(), why));
        let Some(source) = Source::of(&tensor.name, family) else {
            return Err(refused(TensorExport::NoName(family.names[0])));
        };
        if !tensor.quant.is_runnable() {
            return Err(refused(TensorExport::Format(tensor.quant.name)));
        }
        let matrix = fix(in_floats(tensor, target(tensor, export.floats)), source.fix, &tensor.name, config)?;
        if !source.name.contains('*') {
            all.push((source.name, matrix));
            continue;
        }
        let &[experts, rows, cols] = matrix.shape.as_slice() else {
            return Err(refused(TensorExport::NoExperts(matrix.shape)));
        };
        for expert in 0..experts {
            let part = matrix.clone().reshaped(vec![experts * rows, cols]);
            let part = part.row_range((expert * rows) as usize, rows as usize);
            all.push((source.name.replace('*', &expert.to_string()), part));
        }
    }
    Ok(all)
}

/// The format of a tensor in the folder: vectors keep theirs.
pub(super) fn target(tensor: &Tensor, floats: Option<&'static Quant>) -> &'static Quant {
    let vector = tensor.dims.iter().skip(1).all(|n| *n == 1);
    match (floats, tensor.quant.is_float()) {
        (Some(floats), _) if !vector => floats,
        (_, true) => tensor.quant,
        (_, false) => &F32,
    }
}

/// The weights of a tensor as floats, made when they are read.
fn in_floats(tensor: &Tensor, to: &'static Quant) -> Matrix {
    debug_assert!([&F32, &F16, &BF16].contains(&to));
    let shape = tensor.dims.iter().rev().copied().collect();
    let (cols, tensor) = (tensor.cols(), tensor.clone());
    Matrix::made(to, shape, move || {
        let (data, from) = (tensor.data(), tensor.quant);
        if from == to {
            return data.to_vec();
        }
        let (rows, tail) = data.split_at(data.len() - from.tail);
        let row_bytes = cols / from.block_len * from.block_bytes();
        let (mut weights, mut out) =
            (vec![0.0; cols], Vec::with_capacity(tensor.rows() * cols * to.block_bytes()));
        for row in rows.chunks_exact(row_bytes) {
            from.decode(row, tail, &mut weights);
            // floats have an encoder that takes any number of weights
            let _ = to.encode(&weights, &mut out);
        }
        out
    })
}

/// Where a tensor comes from.
struct Source {
    /// The name in the folder, with `*` for the number of an expert.
    name: String,
    fix: Fix,
}

impl Source {
    fn of(name: &str, family: &Family) -> Option<Source> {
        let (layer, rest) = match name.strip_prefix("blk.").and_then(|rest| rest.split_once('.')) {
            Some((layer, rest)) => (Some(layer), rest),
            None => (None, name),
        };
        let rules = || family.tensors.iter().copied().chain([COMMON_TENSORS]).flatten();
        // the first rule of a name counts on the way in
        let counts = |rule: &&Rule| {
            rules().find(|other| other.from == rule.from).is_some_and(|first| std::ptr::eq(first, *rule))
        };
        let of_layer = |rule: &&Rule| rule.from.starts_with("layers.") == layer.is_some();
        let find = |to: &str| rules().filter(of_layer).filter(counts).find(|rule| rule.to == to);
        let (rule, kind) = match find(rest) {
            Some(rule) => (rule, String::new()),
            None => {
                let (stem, kind) = rest.rsplit_once('.')?;
                (find(stem)?, format!(".{kind}"))
            }
        };
        let name = match (layer, rule.from.strip_prefix("layers.")) {
            (Some(layer), Some(from)) => format!("model.layers.{layer}.{from}{kind}"),
            _ if rule.from == "lm_head" => format!("lm_head{kind}"),
            _ => format!("model.{}{kind}", rule.from),
        };
        Some(Source { name, fix: rule.fix })
    }
}

/// The weights as they were before [`super::super::import`] changed them.
fn fix(matrix: Matrix, fix: Fix, name: &str, config: &Map<String, Json>) -> Result<Matrix, FormatError> {
    let count = |key: &str| config.get(key).and_then(Json::as_u64);
    let heads = match fix {
        Fix::Keep => return Ok(matrix),
        Fix::PlusOne => return Ok(matrix.mapped(|w| w - 1.0)),
        Fix::QueryHeads => count("num_attention_heads"),
        Fix::KeyHeads => count("num_key_value_heads").or_else(|| count("num_attention_heads")),
        Fix::NegatedExp | Fix::Column => None,
    };
    let rows = matrix.shape.first().copied().unwrap_or(0);
    let dim =
        heads.and_then(|heads| rows.checked_div(heads).filter(|dim| dim * heads == rows && dim % 2 == 0));
    let Some(dim) = dim else {
        return Err(ExportError::Tensor(name.into(), TensorExport::NoHeads(rows)).into());
    };
    // row `i` of a half was put beside row `i` of the other one
    let half = dim / 2;
    let row = |r: u64| (r / dim * dim + r % half * 2 + r % dim / half) as u32;
    Ok(matrix.gathered((0..rows).map(row).collect()))
}
