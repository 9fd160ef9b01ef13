//! Why a checkpoint cannot be run, in one sentence each.

use tern_formats::{MetadataError, shown};
use tern_graph::{GraphError, WeightError};

use crate::{ALL, SHAPES, Synth, TOWERS};

/// Why a checkpoint cannot be run.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ModelError {
    /// A key is missing or has a wrong value.
    #[error(transparent)]
    Metadata(#[from] MetadataError),
    /// Shapes inside the model do not fit each other.
    #[error(transparent)]
    Graph(#[from] GraphError),
    /// The architecture is unknown.
    #[error("architecture `{}` is not supported; Tern runs {}", shown(.0), known())]
    Architecture(String),
    /// The file is an adapter of a model, not a model.
    #[error("the file is an adapter: want its base model")]
    IsAdapter,

    /// The tower of images is of an unknown kind.
    #[error("images: towers of kind `{}` are not supported; Tern runs {}", shown(.0), towers())]
    Tower(String),
    /// The file of a tower belongs to another model.
    #[error(
        "the rows of the tower have {tower} columns, those of the model {model}: the files are of different models"
    )]
    TowerWidth {
        /// Columns of the tower's rows.
        tower: usize,
        /// Columns of the model's embeddings.
        model: usize,
    },
    /// The architecture does not take the images of a tower.
    #[error("`{arch}` models do not take images of a `{tower}` tower in Tern")]
    DoesNotSee {
        /// The architecture.
        arch: &'static str,
        /// The kind of the tower.
        tower: &'static str,
    },
    /// A tensor is missing.
    #[error("{0} is missing")]
    MissingTensor(String),
    /// A tensor has another shape than the architecture.
    #[error("{name}: want {want}, file has {found}")]
    Shape {
        /// The tensor.
        name: String,
        /// Its shape in the architecture.
        want: String,
        /// Its shape in the file.
        found: String,
    },
    /// A tensor has a format that no backend runs.
    #[error("{name}: format {format} is known but cannot be run")]
    TensorFormat {
        /// The tensor.
        name: String,
        /// Its format.
        format: &'static str,
    },
    /// A tensor that the architecture does not read.
    #[error("{}: unexpected tensor in a `{arch}` model: results without it would be wrong", shown(name))]
    UnexpectedTensor {
        /// The tensor.
        name: String,
        /// The architecture.
        arch: &'static str,
    },
    /// The tensor of one expert is unlike those of the others.
    #[error("{name}: want {want}, file has {found}")]
    ExpertDiffers {
        /// The tensor.
        name: String,
        /// The shape or the format of all experts.
        want: String,
        /// What it has.
        found: String,
    },
    /// A tensor that is stored rotated, and that the architecture does not read.
    #[error("{}: stored rotated, and not read by a `{arch}` model", shown(name))]
    UnreadRotation {
        /// The tensor.
        name: String,
        /// The architecture.
        arch: &'static str,
    },
    /// A model that scores texts has no tensors for it.
    #[error("cls.weight and cls.output.weight are missing: the model has no classifier")]
    NoClassifier,
    /// One of the two tensors of rope factors is missing.
    #[error("rope_factors_long.weight and rope_factors_short.weight must come together")]
    OneRopeFactor,
    /// A file that an old converter wrote.
    #[error("{name}: old files of {arch} are not supported, convert again")]
    OldFile {
        /// The tensor that only old files have.
        name: String,
        /// The architecture.
        arch: &'static str,
    },

    /// A key has a value that is not supported.
    #[error("`{key}` is {found}: want {want}")]
    Value {
        /// The key.
        key: String,
        /// Its value.
        found: String,
        /// What is supported.
        want: String,
    },
    /// A key has a value that is not supported in one of the layers.
    #[error("`{key}` of layer {layer} is {value}: want {want}")]
    LayerValue {
        /// The key.
        key: String,
        /// The layer.
        layer: usize,
        /// Its value there.
        value: usize,
        /// What is supported.
        want: String,
    },
    /// A key has fewer values than the model has layers.
    #[error("`{key}` has {values} values: want {layers}, one per layer")]
    FewValues {
        /// The key.
        key: String,
        /// Its values.
        values: usize,
        /// Layers of the model.
        layers: usize,
    },
    /// A key has several values, and the architecture the same one in all layers.
    #[error("`{0}` differs from layer to layer")]
    DiffersByLayer(String),
    /// A key that changes results, and is not known.
    #[error("`{}` is not known: results without it would be wrong", shown(.0))]
    UnknownKey(String),
    /// A text model whose tokens see later ones.
    #[error("`{key}` is false: `{arch}` models are supported with causal attention")]
    NotCausal {
        /// The key.
        key: String,
        /// The architecture.
        arch: &'static str,
    },
    /// Query heads that cannot share the key heads.
    #[error("{}{heads} heads are not a multiple of {kv_heads} kv heads", of_layer(layer))]
    Heads {
        /// Query heads.
        heads: usize,
        /// Key heads.
        kv_heads: usize,
        /// The layer, if layers differ.
        layer: Option<usize>,
    },
    /// More rotated columns than a head has, or an odd number.
    #[error("rope over {dims} dimensions in heads of {head_dim}")]
    RopeDims {
        /// Rotated columns.
        dims: usize,
        /// Columns of a head.
        head_dim: usize,
    },
    /// A layer that uses the keys of an earlier one, of which there is none like it.
    #[error("layer {layer} has no keys: want a layer {} a window among the first {own}", with(*window))]
    NoSharedKeys {
        /// The layer.
        layer: usize,
        /// Whether it has a window.
        window: bool,
        /// Layers with keys.
        own: usize,
    },
    /// A key of rotated weights is wrong.
    #[error("`{key}` {why}")]
    Rotation {
        /// The key.
        key: String,
        /// What is wrong.
        why: String,
    },

    /// An adapter does not fit the model.
    #[error("adapter {}: {why}", shown(adapter))]
    Adapter {
        /// The adapter's name.
        adapter: String,
        /// What does not fit.
        why: String,
    },
    /// A matrix of an adapter has a value that is no number.
    #[error("{0}: a value is not finite")]
    AdapterNotFinite(String),

    /// A model with random weights whose name is not a shape and a format.
    #[error("`{0}`: want SHAPE:FORMAT, such as bonsai-1.7b:q1_0")]
    SyntheticName(String),
    /// A shape that is not known.
    #[error("shape `{0}` is not known; there are {shapes}", shapes = shapes())]
    UnknownShape(String),
    /// A format that random weights cannot have.
    #[error("format `{0}` cannot be written; there are {formats}", formats = formats())]
    UnknownFormat(String),
}

impl ModelError {
    /// The error of a key with this value.
    pub(crate) fn value(key: impl Into<String>, found: impl ToString, want: impl Into<String>) -> ModelError {
        ModelError::Value { key: key.into(), found: found.to_string(), want: want.into() }
    }

    /// The error of a key with this name as its value.
    pub(crate) fn name(key: impl Into<String>, found: &str, want: &str) -> ModelError {
        ModelError::value(key, format!("`{}`", shown(found)), want)
    }

    /// The error of a tensor of another shape.
    pub(crate) fn shape(
        name: impl Into<String>,
        want: impl Into<String>,
        found: impl Into<String>,
    ) -> ModelError {
        ModelError::Shape { name: name.into(), want: want.into(), found: found.into() }
    }
}

fn of_layer(layer: &Option<usize>) -> String {
    layer.map_or(String::new(), |layer| format!("layer {layer}: "))
}

fn with(window: bool) -> &'static str {
    if window { "with" } else { "without" }
}

fn shapes() -> String {
    SHAPES.iter().map(|shape| shape.name).collect::<Vec<_>>().join(", ")
}

fn formats() -> String {
    Synth::formats().map(|format| format.name).collect::<Vec<_>>().join(", ")
}

impl From<WeightError> for ModelError {
    fn from(e: WeightError) -> ModelError {
        ModelError::Graph(e.into())
    }
}

fn towers() -> String {
    TOWERS.iter().map(|kind| kind.name).collect::<Vec<_>>().join(", ")
}

fn known() -> String {
    ALL.iter().map(|a| a.name).collect::<Vec<_>>().join(", ")
}
