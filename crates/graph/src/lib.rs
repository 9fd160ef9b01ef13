//! A model as a device sees it: a [`Graph`] of ops about as large as the steps of a transformer layer, the
//! [`Backend`] interface that runs it, and the slow [`Reference`] that defines the right result.

mod backend;
pub mod cases;
mod experts;
mod graph;
mod images;
mod lazy_tensor;
mod memory;
mod op;
mod pooling;
mod random;
mod reference;
mod sampling;
mod split;
mod tensor;
mod weight_error;

pub use backend::{
    Backend, BackendError, Bindings, Buffer, Carried, DeviceInfo, Finished, Output, OutputRow, Program,
    Reserve, Slice, Step, StepOutput, Ticket,
};
pub use experts::{
    ExpertGroups, ExpertPiece, ExpertSplit, Gating, HostExperts, HostOps, HostOpsHandle, HostRows, Routing,
    RoutingWorkspace,
};
pub use graph::{
    AdaptedLinear, AdapterScales, AdapterSet, Basis, DeltaRule, DeltaWeights, Graph, GraphError, HeadOrder,
    KeyHeads, LinearInput, LinearInputs, MAX_TAPS, Node, Plan, Role, Roles, RopeTable, Rotation, ScanWeights,
    SelectiveScan, SequenceRules, Value, Weight, Work, sigmoid, softplus,
};
pub use images::{ImageRows, Images, PlacedImage};
pub use lazy_tensor::LazyTensor;
pub use memory::{
    CachePart, KvCells, KvLayer, KvSize, KvSpec, PageTable, Place, StateLayer, StateSlots, StateSpec,
    WindowLayers,
};
pub use op::{
    Activation, Attention, Function, ImageOrder, KeysAndValues, NormKind, Op, RopeStyle, TableRow,
    Temperature, Val, WeightId, clamp, softcap,
};
pub use pooling::Pooling;
pub use random::Random;
pub use reference::Reference;
pub use sampling::{
    BIAS, Breakers, Dry, History, InFiles, Mask, Mirostat, MirostatVersion, PARAMETERS, Parameter, Range,
    Sample, Sampled, Sampling, SamplingError, Seen, Xtc, all_finite, divergence, log_sum_exp, top_logprobs,
};
pub use split::{LayerGroup, LayerPart};
pub use tensor::HostTensor;
pub use weight_error::WeightError;
