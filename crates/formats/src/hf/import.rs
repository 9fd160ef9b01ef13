//! One folder on its way to a checkpoint: its configuration and weights, and the keys and tensors made of them so far.

use std::collections::BTreeMap;

use indexmap::IndexMap;

use super::config::Config;
use super::family::{COMMON_KEYS, COMMON_TENSORS, Family, Fix, Key, Kind, Rule};
use super::matrix::Matrix;
use crate::{FormatError, Metadata, Tensor, TensorError, Value, shown};

/// Prefixes of tensors that belong to the language model.
pub(crate) const LANGUAGE: [&str; 8] = [
    "model.language_model.",
    "language_model.model.",
    "language_model.",
    "backbone.",
    "model.",
    "bert.",
    "roberta.",
    "distilbert.",
];
/// Other names of `layers.`.
const LAYERS: [&str; 3] = ["encoder.layer.", "encoder.layers.", "transformer.layer."];
/// Prefixes of tensors, after those, that belong to other parts: images, audio, drafts of the next tokens.
const OTHER_PARTS: [&str; 12] = [
    "visual.",
    "vision_tower.",
    "vision_model.",
    "vision_encoder.",
    "multi_modal_projector.",
    "mm_projector.",
    "patch_merger.",
    "audio_tower.",
    "embed_vision.",
    "embed_audio.",
    "vision_embedder.",
    "mtp.",
];
/// Endings of tensors that no graph needs, some of which are integers.
const UNUSED: [&str; 3] = ["rotary_emb.inv_freq", ".masked_bias", "embeddings.position_ids"];

/// More layers than any model has.
const MAX_LAYERS: u64 = 1 << 12;

/// A folder being converted.
pub(crate) struct Import {
    pub(crate) config: Config,
    pub(crate) arch: &'static str,
    pub(crate) metadata: Metadata,
    /// What is left of the weights, by the names of the folder without prefix.
    pub(crate) weights: IndexMap<String, Matrix>,
    pub(crate) tensors: IndexMap<String, Tensor>,
}

type Imported<T> = Result<T, FormatError>;

impl Import {
    pub(crate) fn new(
        config: Config,
        arch: &'static str,
        weights: IndexMap<String, Matrix>,
    ) -> Imported<Import> {
        let mut metadata = Metadata::default();
        metadata.insert("general.architecture", Value::String(arch.into()));
        let mut import =
            Import { config, arch, metadata, weights: IndexMap::new(), tensors: IndexMap::new() };
        let layers = import.config.optional_usize("num_hidden_layers")?;
        for (name, matrix) in weights {
            let short = LANGUAGE.iter().find_map(|prefix| name.strip_prefix(prefix)).unwrap_or(&name);
            let layer = LAYERS.iter().find_map(|prefix| short.strip_prefix(prefix));
            let short = layer.map_or(short.to_string(), |rest| format!("layers.{rest}"));
            let short = short.as_str();
            let drafts =
                layer_of(short).is_some_and(|(layer, _)| layers.is_some_and(|layers| layer >= layers));
            if drafts || OTHER_PARTS.iter().any(|part| short.starts_with(part)) {
                continue;
            }
            if matrix.shape.contains(&0) {
                return Err(FormatError::Tensor(name, TensorError::ZeroDimension(matrix.shape)));
            }
            // the order of rows is counted in u32
            let rows = matrix.rows().max(matrix.shape.first().map_or(0, |n| *n as usize));
            if u32::try_from(rows).is_err() {
                return Err(FormatError::Tensor(name, TensorError::TooLarge(matrix.shape)));
            }
            if import.weights.insert(short.into(), matrix).is_some() {
                return Err(FormatError::Tensor(name, TensorError::Duplicate));
            }
        }
        Ok(import)
    }

    /// Changes the architecture: folders of one name are those of several. No key has its prefix yet.
    pub(crate) fn set_arch(&mut self, arch: &'static str) {
        self.arch = arch;
        self.metadata.insert("general.architecture", Value::String(arch.into()));
    }

    /// Sets a key under the architecture's prefix.
    pub(crate) fn set(&mut self, name: &str, value: Value) {
        self.metadata.insert(format!("{}.{name}", self.arch), value);
    }

    /// The value of a key under the architecture's prefix, if it is a whole number.
    pub(crate) fn uint(&self, name: &str) -> Imported<u64> {
        let key = format!("{}.{name}", self.arch);
        match self.metadata.get(&key) {
            Some(Value::Uint(n)) => Ok(*n),
            _ => Err(FormatError::Config(format!("no key of config.json gives `{key}`"))),
        }
    }

    /// Layers of the model.
    pub(crate) fn layers(&self) -> Imported<u64> {
        let layers = self.config.usize("num_hidden_layers")?;
        match layers <= MAX_LAYERS {
            true => Ok(layers),
            false => Err(self.config.wrong("num_hidden_layers", &format!("at most {MAX_LAYERS}"))),
        }
    }

    /// Columns of a query or key head.
    pub(crate) fn head_dim(&self) -> Imported<u64> {
        match self.config.optional_usize("head_dim")? {
            Some(dim) => Ok(dim),
            None => {
                let (width, heads) =
                    (self.config.usize("hidden_size")?, self.config.usize("num_attention_heads")?);
                width.checked_div(heads).filter(|dim| *dim > 0).ok_or_else(|| {
                    self.config.wrong("num_attention_heads", "1 to the columns of `hidden_size`")
                })
            }
        }
    }

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

    /// Removes a weight of the folder and returns it.
    pub(crate) fn take(&mut self, name: &str) -> Imported<Matrix> {
        self.take_optional(name).ok_or_else(|| FormatError::Config(format!("tensor `{name}` is missing")))
    }

    /// The same, if it exists.
    pub(crate) fn take_optional(&mut self, name: &str) -> Option<Matrix> {
        self.weights.shift_remove(name)
    }

    /// Removes a weight of this shape and returns it.
    pub(crate) fn take_shaped(&mut self, name: &str, want: &[u64]) -> Imported<Matrix> {
        let matrix = self.take(name)?;
        if matrix.shape != want {
            return Err(shape_error(name, want, &matrix.shape));
        }
        Ok(matrix)
    }

    /// Adds a tensor.
    pub(crate) fn put(&mut self, name: String, matrix: Matrix) -> Imported<()> {
        let wrong = |e| FormatError::Tensor(name.clone(), e);
        if matrix.shape.len() > 4 {
            return Err(wrong(TensorError::Dimensions(matrix.shape.len() as u32)));
        }
        if matrix.shape.contains(&0) {
            return Err(wrong(TensorError::ZeroDimension(matrix.shape.clone())));
        }
        if !matrix.cols().is_multiple_of(matrix.quant.block_len) {
            let (cols, block) = (matrix.cols() as u64, matrix.quant.block_len as u64);
            return Err(wrong(TensorError::Ragged(cols, block, matrix.quant.name)));
        }
        // vectors are small, and other readers of GGUF files want them in f32
        let matrix = if matrix.shape.len() <= 1 && matrix.is_float() { matrix.in_f32() } else { matrix };
        match self.tensors.insert(name.clone(), matrix.into_tensor(name.clone())) {
            None => Ok(()),
            Some(_) => Err(FormatError::Tensor(name, TensorError::Duplicate)),
        }
    }

    /// Renames all weights that are left by the rules of the family; refuses those without a rule.
    pub(crate) fn rename(&mut self, family: &Family) -> Imported<()> {
        if self.config.optional_bool("tie_word_embeddings")? == Some(true) {
            self.weights.shift_remove("lm_head.weight");
        }
        let mut experts: IndexMap<String, BTreeMap<u64, Matrix>> = IndexMap::new();
        for (name, matrix) in std::mem::take(&mut self.weights) {
            let Some(target) = Target::of(&name, family) else {
                let (name, arch) = (shown(&name), family.names[0]);
                let text = format!(
                    "tensor `{name}` is unexpected in a folder of {arch}: results without it would be wrong"
                );
                return Err(FormatError::Config(text));
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
                return Err(FormatError::Config(format!("expert {missing} of `{name}` is missing")));
            }
            let stacked = Matrix::stacked(parts.into_values().collect()).ok_or_else(|| {
                FormatError::Config(format!("the {count} experts of `{name}` differ in shape or dtype"))
            })?;
            self.put(name, stacked)?;
        }
        Ok(())
    }

    fn fix(&self, name: &str, matrix: Matrix, fix: Fix) -> Imported<Matrix> {
        match fix {
            Fix::Keep => Ok(matrix),
            Fix::PlusOne | Fix::NegatedExp | Fix::Column if !matrix.is_float() => {
                Err(FormatError::Config(format!("tensor `{name}`: want floats, file has {}", matrix.quant)))
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
            let text =
                format!("tensor `{name}` has {rows} rows: want {heads} heads of an even number of columns");
            return Err(FormatError::Config(text));
        };
        if matrix.shape.len() > 2 {
            return Err(FormatError::Tensor(name.into(), TensorError::TooLarge(matrix.shape)));
        }
        Ok(matrix.gathered(order))
    }
}

/// The order of rows of heads in which column `i` of the first half of a head is beside column `i` of the second; `None` if the rows
/// are not so many heads of an even number of rows.
pub(crate) fn paired_rows(rows: u64, heads: u64) -> Option<Vec<u32>> {
    let dim = rows.checked_div(heads).filter(|dim| dim * heads == rows && dim % 2 == 0)?;
    u32::try_from(rows).ok()?;
    let row = |r: u64| (r / dim * dim + r % dim / 2 + r % 2 * (dim / 2)) as u32;
    Some((0..rows).map(row).collect())
}

/// Whether no graph needs a tensor.
pub(crate) fn is_unused(name: &str) -> bool {
    UNUSED.iter().any(|end| name.ends_with(end))
}

/// The error of a weight of another shape.
pub(crate) fn shape_error(name: &str, want: &[u64], found: &[u64]) -> FormatError {
    FormatError::Config(format!("tensor `{}`: want {want:?}, file has {found:?}", shown(name)))
}

/// The number of a layer and the rest of a name.
pub(crate) fn layer_of(name: &str) -> Option<(u64, &str)> {
    let (layer, rest) = name.strip_prefix("layers.")?.split_once('.')?;
    Some((layer.parse().ok()?, rest))
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
