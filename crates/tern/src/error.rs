//! Why a model cannot be loaded, or a request not answered: one sentence each.

use tern_engine::EngineError;

use crate::memory::MemoryPlan;

/// What went wrong. The variants of the crates below keep their own error, so that it can be matched.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The name means no model, or the model cannot be fetched.
    #[error(transparent)]
    Hub(#[from] tern_hub::HubError),
    /// The file is damaged, or of a kind that is not supported.
    #[error(transparent)]
    Format(#[from] tern_formats::FormatError),
    /// The file's metadata lacks something or contradicts itself.
    #[error(transparent)]
    Metadata(#[from] tern_formats::MetadataError),
    /// The architecture is not supported, or the tensors do not fit it.
    #[error(transparent)]
    Model(#[from] tern_models::ModelError),
    /// The vocabulary cannot be used.
    #[error(transparent)]
    Tokenizer(#[from] tern_text::TokenizerError),
    /// The chat template is invalid, or refuses the conversation.
    #[error(transparent)]
    Template(#[from] tern_text::TemplateError),
    /// A stop string is empty, or there are too many.
    #[error(transparent)]
    Stop(#[from] tern_text::StopError),
    /// The constraint cannot be compiled.
    #[error(transparent)]
    Grammar(#[from] tern_grammar::GrammarError),
    /// The device cannot be opened or failed.
    #[error(transparent)]
    Backend(#[from] tern_graph::BackendError),
    /// The request cannot run, or the engine has ended.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// A longer context was requested than the model was trained for.
    #[error("{name}: a context of {requested} tokens exceeds the trained context of {trained} tokens")]
    Context {
        /// The model.
        name: String,
        /// Tokens that were requested.
        requested: usize,
        /// Tokens that the model was trained for.
        trained: usize,
    },
    /// The device has less memory than the model needs.
    #[error("{name} does not fit: {plan}; {device} has {}", crate::units::bytes(*total))]
    Memory {
        /// The model.
        name: String,
        /// What it needs.
        plan: Box<MemoryPlan>,
        /// The device.
        device: String,
        /// Bytes that the device has.
        total: u64,
    },
    /// More layers than have experts were requested for host memory.
    #[error(
        "{name}: experts of {requested} layers were requested for the CPU, {available} layers have experts"
    )]
    ExpertLayers {
        /// The model.
        name: String,
        /// Layers that were requested.
        requested: usize,
        /// Layers that have experts.
        available: usize,
    },
    /// The model has no layers, or layers that cannot be separated.
    #[error("{name}: {requested} layers on the GPU were requested, but its layers cannot be separated")]
    GpuLayers {
        /// The model.
        name: String,
        /// Layers that were requested.
        requested: usize,
    },
    /// Layers were requested for a GPU, and the model runs on the CPU.
    #[error("layers on the GPU: {layers} were requested, but the device is the CPU")]
    NoGpu {
        /// Layers that were requested.
        layers: crate::GpuLayers,
    },
    /// Experts and layers were requested for host memory.
    #[error("{0}: either layers or experts can be in host memory, not both")]
    TwoPlacements(String),
    /// The folder of the prefix cache cannot be used.
    #[error("prefix cache: {0}")]
    CacheFolder(#[from] tern_engine::DiskError),
    /// A folder for prefixes on a device that does not copy its KV cache.
    #[error("prefix cache in a folder: {0} does not copy its KV cache; only the CPU does")]
    CacheFolderDevice(String),
    /// Two adapters of one model have the same name.
    #[error("two adapters have the name {0}")]
    AdapterName(String),
    /// A sampling parameter outside its range.
    #[error(transparent)]
    Sampling(#[from] tern_engine::SamplingError),
    /// A sampling parameter that does not exist.
    #[error("unknown sampling parameter {name}: want one of {}", parameter_names())]
    UnknownParameter {
        /// Its name.
        name: String,
    },
    /// The recommended sampling parameters of the model are invalid.
    #[error("recommended sampling parameters of {name}: {reason}")]
    Recommended {
        /// The model.
        name: String,
        /// What is wrong with them.
        reason: String,
    },
    /// A chat template that takes too long for short conversations, with which it is examined.
    #[error("{name}: its chat template takes more than {seconds} s for a few short conversations")]
    SlowTemplate {
        /// The model.
        name: String,
        /// The limit of time.
        seconds: u64,
    },
    /// The load was to end early.
    #[error("{0}: loading was stopped before it was complete")]
    Stopped(String),
    /// A conversation for a model without a chat template.
    #[error("{0} has no chat template")]
    NoChatTemplate(String),
    /// The last message was to be continued.
    #[error("the last message cannot be continued: {0}")]
    CannotContinue(&'static str),
    /// Documents for a model that does not score them.
    #[error("{0} is no reranker: it has neither a classifier nor a template that asks for yes or no")]
    NoReranker(String),
    /// Too few labels for the answers to a question.
    #[error(transparent)]
    Labels(#[from] crate::LabelError),
    /// Questions for a template that has no place for them.
    #[error(transparent)]
    QuestionPlace(#[from] crate::PlaceError),
    /// Tools for a model whose tool calls cannot be recognised.
    #[error("tools: the format of this model's tool calls is unknown")]
    UnknownCallFormat,
    /// An image that cannot be used.
    #[error(transparent)]
    Image(#[from] tern_images::ImageError),
    /// An image for a model that takes none.
    #[error("{0} does not take images")]
    DoesNotSee(String),
    /// A file that was to be a tower.
    #[error("{0} is not an mmproj file: want a GGUF file with `general.architecture` clip")]
    NoTower(String),
    /// Too many images in one conversation.
    #[error("{images} images: want at most {most}")]
    ManyImages {
        /// Its images.
        images: usize,
        /// The limit.
        most: usize,
    },
    /// The chat template writes another number of images.
    #[error("the chat template of the model wrote {places} places for {images} images")]
    ImagePlaces {
        /// Images of the conversation.
        images: usize,
        /// Places.
        places: usize,
    },
    /// The vocabulary lacks the token of images.
    #[error("images: the vocabulary has no token {0}, the tower belongs to another model")]
    NoImageToken(&'static str),
    /// The request was cancelled because the engine was shut down.
    #[error("the engine was shut down")]
    Cancelled,
}

/// The names of all sampling parameters.
fn parameter_names() -> String {
    tern_graph::PARAMETERS.iter().map(|parameter| parameter.name).collect::<Vec<_>>().join(", ")
}

impl Error {
    /// Whether the device has not enough memory: with other models gone, the same may succeed.
    pub fn is_memory(&self) -> bool {
        use tern_graph::{BackendError, WeightError};
        matches!(
            self,
            Error::Memory { .. }
                | Error::Backend(BackendError::OutOfMemory(_))
                | Error::Engine(
                    EngineError::OutOfMemory(_) | EngineError::Weight(WeightError::NoMemory { .. })
                )
        )
    }
}
