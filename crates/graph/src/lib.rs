//! A model as a device sees it: a [`Graph`] of ops about as large as the steps of a transformer layer, the [`Backend`]
//! interface that runs it, and the slow [`Reference`] that defines the right result.

mod adapters;
mod backend;
pub mod cases;
mod dry;
mod expert_split;
mod experts;
mod graph;
mod host_experts;
mod host_ops;
mod kv;
mod linear_inputs;
mod mask;
mod op;
mod page_table;
mod plan;
mod print;
mod random;
mod recurrent;
mod reference;
mod role;
mod rotation;
mod routing;
mod sample;
mod sampling;
mod seen;
mod state;
mod tensor;

pub use adapters::{AdaptedLinear, AdapterScales, AdapterSet};
pub use backend::{
    Backend, BackendError, Bindings, Buffer, Carried, DeviceInfo, Finished, Output, OutputRow, Program,
    Reserve, Slice, Step, StepOutput, Ticket,
};
pub use dry::{Breakers, Dry};
pub use expert_split::{ExpertPiece, ExpertSplit};
pub use graph::{Graph, GraphError, Node, RopeTable, SequenceRules, Value, Weight};
pub use host_experts::HostExperts;
pub use host_ops::{HostOps, HostOpsHandle, HostRows};
pub use kv::{KvCells, KvLayer, KvSize, KvSpec, WindowLayers};
pub use linear_inputs::{LinearInput, LinearInputs};
pub use mask::Mask;
pub use op::{
    Activation, Attention, Function, KeysAndValues, NormKind, Op, RopeStyle, TableRow, Temperature, Val,
    WeightId, clamp, softcap,
};
pub use page_table::PageTable;
pub use plan::{Plan, Work};
pub use random::Random;
pub use recurrent::{
    DeltaRule, DeltaWeights, KeyHeads, MAX_TAPS, ScanWeights, SelectiveScan, sigmoid, softplus,
};
pub use reference::Reference;
pub use role::{Role, Roles};
pub use rotation::{Basis, HeadOrder, Rotation};
pub use routing::{ExpertGroups, Gating, Routing, RoutingWorkspace};
pub use sample::{Sample, Sampled, all_finite, divergence, log_sum_exp, top_logprobs};
pub use sampling::{History, Mirostat, MirostatVersion, Sampling, SamplingError, Xtc};
pub use seen::Seen;
pub use state::{StateLayer, StateSlots, StateSpec};
pub use tensor::HostTensor;
