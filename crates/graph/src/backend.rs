//! The interface of a device: it stores tensors, compiles graphs and runs steps.

mod error;
mod finished;
mod handles;
mod step;

use error::Result;

use crate::{Graph, HostOpsHandle, HostTensor, KvCells, KvSpec, Place, Roles, StateSpec};

pub use error::BackendError;
pub use finished::Finished;
pub use handles::{Buffer, Program, Ticket};
pub use step::{Carried, Output, OutputRow, Slice, Step, StepOutput};

/// The CPU, a GPU, or the reference interpreter. Handles are ids, so it is a plain `Box<dyn Backend>`.
pub trait Backend: Send {
    /// Name and memory of the device.
    fn info(&self) -> DeviceInfo;
    /// Takes a tensor: keeps the mapped bytes, or uploads and repacks them for its roles ([`Graph::roles`]).
    /// The work is done when it returns.
    fn store(&mut self, tensor: &HostTensor, roles: Roles) -> Result<Buffer>;
    /// Reserves memory that steps write to.
    fn reserve(&mut self, what: &Reserve) -> Result<Buffer>;
    /// Bytes of scratch for steps of up to `max_tokens` tokens and `max_outputs` outputs.
    fn scratch(&self, graph: &Graph, max_tokens: usize, max_outputs: usize) -> u64;
    /// Fuses, chooses kernels and plans scratch for a graph whose weights are stored.
    fn compile(&mut self, graph: &Graph, bindings: &Bindings<'_>) -> Result<Program>;
    /// Starts a step. Steps run in the order in which they are submitted.
    fn submit(&mut self, program: Program, step: Step) -> Result<Ticket>;
    /// Waits for a step and returns its outputs.
    fn collect(&mut self, ticket: Ticket) -> Result<StepOutput>;
    /// Bytes per second that the device reads from its memory, measured now; `None` if it cannot be measured.
    fn read_bandwidth(&mut self) -> Option<f64> {
        None
    }
    /// The types of keys and values that it can keep.
    fn kv_cells(&self) -> &'static [KvCells] {
        &[KvCells::F16, KvCells::F32, KvCells::Int8]
    }

    /// Whether it runs graphs with [`crate::Op::HostExperts`].
    fn runs_host_ops(&self) -> bool {
        false
    }

    /// What computes the values of [`crate::Op::HostExperts`] in steps of programs that
    /// are compiled from now on.
    fn set_host_ops(&mut self, _ops: HostOpsHandle) -> Result<()> {
        Err(BackendError::Unsupported(format!("{} does not run ops on the host", self.info().name)))
    }

    /// Waits for what a program compiles in the background; steps before that may be slower.
    fn finish_compiling(&mut self, _program: Program) -> Result<()> {
        Ok(())
    }

    /// The largest steps that a program runs in a faster way than larger ones, in tokens: one token
    /// more may make all slower.
    fn step_borders(&self, _program: Program) -> Vec<usize> {
        vec![]
    }

    /// Whether all steps run the program with adapters, once there are some: results do not depend on other
    /// sequences, and those of the program without adapters have other bits.
    fn adapts_all_steps(&self) -> bool {
        false
    }

    /// Whether `submit` returns before the step is done, so that the next one should be submitted meanwhile.
    fn runs_ahead(&self) -> bool {
        false
    }

    /// How the bytes of pages and state slots are arranged, and by which kernels they were computed: what is
    /// read by [`Backend::read_cache`] may be written by any backend for which this is the same. `None` if it
    /// does not copy them.
    fn cache_format(&self) -> Option<String> {
        None
    }

    /// Appends the bytes of a page or of a state slot. Nothing that writes it may be in flight.
    fn read_cache(&mut self, _from: Buffer, _place: Place, _to: &mut Vec<u8>) -> Result<()> {
        Err(BackendError::Unsupported(format!("{} does not copy its KV cache", self.info().name)))
    }

    /// Overwrites a page or a state slot by bytes that were read. Nothing that uses it may be in flight.
    fn write_cache(&mut self, _to: Buffer, _place: Place, _bytes: &[u8]) -> Result<()> {
        Err(BackendError::Unsupported(format!("{} does not copy its KV cache", self.info().name)))
    }
}

/// Name, memory and step size of a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceInfo {
    /// For display: the device's name and how it is used.
    pub name: String,
    /// Bytes of memory in total.
    pub memory_total: u64,
    /// Bytes that can be allocated.
    pub memory_free: u64,
    /// Tokens of a step that use the device well; larger steps gain nothing.
    pub step_tokens: usize,
}

/// Memory that lives as long as the model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reserve {
    /// A KV cache.
    Kv(KvSpec),
    /// The state of recurrent layers.
    State(StateSpec),
}

/// The buffers and sizes that a graph is compiled for.
#[derive(Clone, Copy, Debug)]
pub struct Bindings<'a> {
    /// One buffer per weight of the graph, in order.
    pub weights: &'a [Buffer],
    /// The reserved KV pages; a graph without attention needs none.
    pub kv: Option<Buffer>,
    /// The reserved state slots; a graph without recurrent layers needs none.
    pub state: Option<Buffer>,
    /// Maximum number of tokens in a step.
    pub max_tokens: usize,
    /// Maximum number of outputs in a step.
    pub max_outputs: usize,
}

impl Bindings<'_> {
    /// Refuses bindings that do not fit the graph; `shape` returns the rows and columns of a stored tensor.
    pub fn check(&self, graph: &Graph, shape: impl Fn(Buffer) -> Option<[usize; 2]>) -> Result<()> {
        let shapes: Option<Vec<_>> = self.weights.iter().map(|b| shape(*b)).collect();
        let Some(shapes) = shapes else {
            return Err(BackendError::Invalid("a weight is bound to a buffer that is not a tensor".into()));
        };
        if shapes.len() != graph.weights.len() {
            return Err(BackendError::Invalid(
                "the bindings must have one buffer per weight of the graph".into(),
            ));
        }
        let mut checks = graph.weights.iter().zip(shapes).map(|(weight, shape)| weight.check_shape(shape));
        checks.try_for_each(|check| check.map_err(|e| BackendError::Invalid(e.to_string())))
    }
}
