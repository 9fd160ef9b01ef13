//! One folder on its way to a checkpoint: its configuration and weights, and the keys and
//! tensors made of them so far.

use indexmap::IndexMap;

use super::config::Config;
use super::matrix::Matrix;
use super::remaining::Remaining;
use crate::{FolderError, FormatError, Metadata, Tensor, TensorError, Value};

/// Prefixes of tensors that belong to the language model.
pub(crate) const LANGUAGE: [&str; 9] = [
    "model.text_model.",
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
const OTHER_PARTS: [&str; 15] = [
    "connector.",
    "visual.",
    "vision_tower.",
    "vision_model.",
    "vision_encoder.",
    "vision_adapter.",
    "vision_projection.",
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
    pub(crate) weights: Remaining<Matrix>,
    pub(crate) tensors: IndexMap<String, Tensor>,
}

/// What steps of an import return.
pub(crate) type Imported<T> = Result<T, FormatError>;

impl Import {
    pub(crate) fn new(
        config: Config,
        arch: &'static str,
        weights: IndexMap<String, Matrix>,
    ) -> Imported<Import> {
        let mut metadata = Metadata::default();
        metadata.insert("general.architecture", Value::String(arch.into()));
        let mut import =
            Import { config, arch, metadata, weights: Remaining::default(), tensors: IndexMap::new() };
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
            _ => Err(FolderError::NoSource(key).into()),
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

    /// Removes a weight of the folder and returns it.
    pub(crate) fn take(&mut self, name: &str) -> Imported<Matrix> {
        self.take_optional(name).ok_or_else(|| FolderError::MissingTensor(name.into()).into())
    }

    /// The same, if it exists.
    pub(crate) fn take_optional(&mut self, name: &str) -> Option<Matrix> {
        self.weights.take(name)
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
}

/// Whether no graph needs a tensor.
pub(crate) fn is_unused(name: &str) -> bool {
    UNUSED.iter().any(|end| name.ends_with(end))
}

/// The error of a weight of another shape.
pub(crate) fn shape_error(name: &str, want: &[u64], found: &[u64]) -> FormatError {
    FolderError::tensor(name, format!("{want:?}"), format!("{found:?}")).into()
}

/// The number of a layer and the rest of a name.
pub(crate) fn layer_of(name: &str) -> Option<(u64, &str)> {
    let (layer, rest) = name.strip_prefix("layers.")?.split_once('.')?;
    Some((layer.parse().ok()?, rest))
}
