//! The keys and tensors of a folder under their GGUF names, by the tables of its family.

use std::collections::BTreeMap;

use indexmap::IndexMap;

use super::family::{COMMON_KEYS, COMMON_TENSORS, Family, Fix, Key, Kind, Rule};
use super::import::{Import, Imported, layer_of};
use super::matrix::Matrix;
use crate::{FolderError, FormatError, TensorError, Value};

impl Import {
    /// Sets the keys of a table; those of the family win over the common ones.
    pub(crate) fn set_keys(&mut self, family: &Family) -> Imported<()> {
        for table in family.keys.iter().copied().chain([COMMON_KEYS]) {
            let known: Vec<String> = self.metadata.iter().map(|(key, _)| key.into()).collect();
            for key in table {
                let name = format!("{}.{}", self.arch, key.to);
                if !known.contains(&name)
                    && let Some(value) = self.value(key)?
                {
                    self.metadata.insert(name, value);
                }
            }
        }
        Ok(())
    }

    fn value(&self, key: &Key) -> Imported<Option<Value>> {
        let config = &self.config;
        Ok(match key.kind {
            Kind::Uint => Some(Value::Uint(config.usize(key.from)?)),
            Kind::OptionalUint => config.optional_usize(key.from)?.map(Value::Uint),
            Kind::Float => Some(Value::Float(config.f64(key.from)?)),
            Kind::OptionalFloat => config.optional_f64(key.from)?.map(Value::Float),
            Kind::OptionalBool => config.optional_bool(key.from)?.map(Value::Bool),
            Kind::OptionalText => config.optional_str(key.from)?.map(|text| Value::String(text.into())),
        })
    }

    /// Renames all weights that are left by the rules of the family; refuses those without a rule.
    pub(crate) fn rename(&mut self, family: &Family) -> Imported<()> {
        if self.config.optional_bool("tie_word_embeddings")? == Some(true) {
            drop(self.weights.take("lm_head.weight"));
        }
        let mut experts: IndexMap<String, BTreeMap<u64, Matrix>> = IndexMap::new();
        for (name, matrix) in std::mem::take(&mut self.weights) {
            let Some(target) = Target::of(&name, family) else {
                let (place, changes_results) = (format!("a folder of {}", family.names[0]), true);
                return Err(FolderError::UnexpectedTensor { name, place, changes_results }.into());
            };
            let matrix = self.fix(&name, matrix, target.fix)?;
            match target.expert {
                Some(expert) => drop(experts.entry(target.name).or_default().insert(expert, matrix)),
                None => self.put(target.name, matrix)?,
            }
        }
        for (name, parts) in experts {
            let count = parts.len() as u64;
            if let Some((_, missing)) = parts.keys().zip(0..).find(|(expert, i)| *expert != i) {
                return Err(FolderError::MissingExpert { expert: missing, name }.into());
            }
            let stacked = Matrix::stacked(parts.into_values().collect());
            let stacked = stacked.ok_or_else(|| FolderError::ExpertsDiffer { count, name: name.clone() })?;
            self.put(name, stacked)?;
        }
        Ok(())
    }

    fn fix(&self, name: &str, matrix: Matrix, fix: Fix) -> Imported<Matrix> {
        match fix {
            Fix::Keep => Ok(matrix),
            Fix::PlusOne | Fix::NegatedExp | Fix::Column if !matrix.is_float() => {
                Err(FolderError::no_floats(name, matrix.quant).into())
            }
            Fix::PlusOne => Ok(matrix.mapped(|w| w + 1.0)),
            Fix::NegatedExp => Ok(matrix.mapped(|w| -w.exp())),
            Fix::Column => {
                let rows = matrix.shape.iter().product();
                Ok(matrix.in_f32().reshaped(vec![rows, 1]))
            }
            Fix::QueryHeads => self.paired(name, matrix, self.config.usize("num_attention_heads")?),
            Fix::KeyHeads => {
                let heads = self.config.optional_usize("num_key_value_heads")?;
                self.paired(name, matrix, heads.map_or_else(|| self.config.usize("num_attention_heads"), Ok)?)
            }
        }
    }

    /// Rows of heads in another order: column `i` of the first half beside column `i` of the second.
    fn paired(&self, name: &str, matrix: Matrix, heads: u64) -> Imported<Matrix> {
        let rows = matrix.shape.first().copied().unwrap_or(0);
        let Some(order) = paired_rows(rows, heads) else {
            return Err(FolderError::Heads { name: name.into(), rows, heads }.into());
        };
        if matrix.shape.len() > 2 {
            return Err(FormatError::Tensor(name.into(), TensorError::TooLarge(matrix.shape)));
        }
        Ok(matrix.gathered(order))
    }
}

/// The order of rows of heads in which column `i` of the first half of a head is beside column `i` of the
/// second; `None` if the rows are not `heads` heads of an even number of rows.
pub(crate) fn paired_rows(rows: u64, heads: u64) -> Option<Vec<u32>> {
    let dim = rows.checked_div(heads).filter(|dim| dim * heads == rows && dim % 2 == 0)?;
    u32::try_from(rows).ok()?;
    let row = |r: u64| (r / dim * dim + r % dim / 2 + r % 2 * (dim / 2)) as u32;
    Some((0..rows).map(row).collect())
}

/// What a rule makes of a name.
pub(crate) struct Target {
    pub(crate) name: String,
    pub(crate) expert: Option<u64>,
    pub(crate) fix: Fix,
}

impl Target {
    pub(crate) fn of(name: &str, family: &Family) -> Option<Target> {
        let (prefix, rest) = match layer_of(name) {
            Some((layer, rest)) => (format!("blk.{layer}."), format!("layers.{rest}")),
            None => (String::new(), name.to_string()),
        };
        let (plain, expert) = without_expert(&rest);
        let rules = || family.tensors.iter().copied().chain([COMMON_TENSORS]).flatten();
        if let Some(Rule { to, fix, .. }) = rules().find(|rule| rule.from == plain) {
            return Some(Target { name: format!("{prefix}{to}"), expert, fix: *fix });
        }
        let (stem, kind) =
            plain.rsplit_once('.').filter(|(_, kind)| ["weight", "bias", "scale"].contains(kind))?;
        let Rule { to, fix, .. } = rules().find(|rule| rule.from == stem)?;
        let fix = if kind == "scale" { Fix::Keep } else { *fix }; // one number for all rows
        Some(Target { name: format!("{prefix}{to}.{kind}"), expert, fix })
    }
}

/// A name with `*` instead of the number of an expert, and that number.
fn without_expert(name: &str) -> (String, Option<u64>) {
    let Some((before, after)) = name.split_once(".experts.") else { return (name.into(), None) };
    match after.split_once('.').map(|(number, rest)| (number.parse(), rest)) {
        Some((Ok(expert), rest)) => (format!("{before}.experts.*.{rest}"), Some(expert)),
        _ => (name.into(), None),
    }
}
