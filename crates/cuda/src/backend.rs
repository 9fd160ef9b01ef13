//! [`Cuda`]: the backend.

use std::path::PathBuf;
use std::sync::Arc;

use tern_graph::{
    Backend, BackendError, Bindings, Buffer, DeviceInfo, Graph, HostOpsHandle, HostTensor, KvCells, KvSize,
    KvSpec, Plan, Program, Reserve, Roles, StateSpec, Step, StepOutput, Ticket,
};

use crate::arithmetic::Arithmetic;
use crate::bandwidth;
use crate::driver::{Compiler, Device, SearchPaths, Staging};
use crate::kv::{Kv, KvMemory};
use crate::launch::{Compiled, InFlight, StepSize, in_cells, scratch_bytes};
use crate::shared::KvCell;
use crate::state::{Reserved, State};
use crate::weights::Weight;

type Result<T> = std::result::Result<T, BackendError>;

/// Tokens of a step at which the tensor cores are busy.
const STEP_TOKENS: usize = 2048;

/// How a GPU is opened.
#[derive(Clone, Debug, Default)]
pub struct CudaOptions {
    /// Where NVRTC is searched when a kernel has to be compiled.
    pub paths: SearchPaths,
    /// The folder in which compiled kernels are cached.
    pub cache: Option<PathBuf>,
    /// How results are computed.
    pub arithmetic: Arithmetic,
}

/// Runs graphs on an NVIDIA GPU.
pub struct Cuda {
    device: Arc<Device>,
    compiler: Compiler,
    staging: Staging,
    buffers: Vec<Stored>,
    programs: Vec<Compiled>,
    in_flight: Vec<Submitted>,
    steps: u64,
    /// What computes the ops that graphs leave to the host.
    host_ops: Option<HostOpsHandle>,
    /// The fault that destroyed the context; every later step fails with it.
    lost: Option<BackendError>,
}

enum Stored {
    Weight { weight: Arc<Weight>, rows: usize, cols: usize },
    Kv(Arc<Kv>),
    State(Arc<State>),
}

/// A step in flight.
struct Submitted {
    ticket: Ticket,
    program: Program,
    step: InFlight,
}

impl Cuda {
    /// Opens GPU `ordinal`.
    pub fn open(ordinal: usize, options: CudaOptions) -> Result<Cuda> {
        let CudaOptions { paths, cache, arithmetic } = options;
        let device = Device::open(ordinal, arithmetic)?;
        let compiler = Compiler::new(Arc::clone(&device), paths, cache);
        let staging = Staging::new(&device);
        Ok(Cuda {
            device,
            compiler,
            staging,
            buffers: vec![],
            programs: vec![],
            in_flight: vec![],
            steps: 0,
            host_ops: None,
            lost: None,
        })
    }

    fn add(&mut self, stored: Stored) -> Buffer {
        self.buffers.push(stored);
        Buffer(self.buffers.len() as u32 - 1)
    }

    fn start(&mut self, program: Program, step: &Step) -> Result<InFlight> {
        if let Some(from) = step.carried_from.filter(|from| *from != program && !step.carried.is_empty()) {
            let both = self.programs.get_disjoint_mut([program.0 as usize, from.0 as usize]);
            let [to, from] = both.map_err(|e| BackendError::Invalid(format!("carried tokens: {e}")))?;
            to.carry_from(from)?;
        }
        let compiled = self.compiled(program)?;
        let Reserved { kv, state } = &compiled.reserved;
        let kv = kv.as_ref().map_or(KvSize::default(), |kv| kv.spec.size());
        step.check(compiled.vocab, kv, state.as_ref().map(|state| state.spec.slots))?;
        step.check_sequences(compiled.sequence_rules)?;
        step.check_size(compiled.most.tokens, compiled.most.outputs)?;
        step.check_inputs(&compiled.input_widths)?;
        step.check_images(compiled.image_width)?;
        compiled.submit(step)
    }

    fn reserve_kv(&mut self, spec: &KvSpec) -> Result<Buffer> {
        let (cell, bytes) = match spec.cells {
            KvCells::F16 => (KvCell::Half, 2),
            KvCells::Int8 => (KvCell::Int8, 1),
            KvCells::Fp8 => (KvCell::Fp8, 1),
            KvCells::F32 => {
                return Err(BackendError::Invalid("keys and values in f32: the device keeps f16".into()));
            }
        };
        let layers = spec.layers.iter().enumerate().map(|(i, l)| {
            let slots = spec.pages_of(i) * spec.page_len * l.kv_heads;
            let room = |bytes: usize| self.device.allocate(slots * bytes);
            let scales = match cell {
                KvCell::Half => None,
                _ => Some([room(4)?, room(4)?]),
            };
            let [keys, values] = [l.k_dim, l.v_dim].map(|columns| room(in_cells(columns) * bytes));
            Ok(KvMemory { keys: keys?, values: values?, scales })
        });
        let kv = Kv { spec: spec.clone(), cells: cell, memory: layers.collect::<Result<Vec<_>>>()? };
        Ok(self.add(Stored::Kv(Arc::new(kv))))
    }

    fn reserve_state(&mut self, spec: &StateSpec) -> Result<Buffer> {
        if spec.bytes().is_none_or(|bytes| usize::try_from(bytes).is_err()) {
            return Err(BackendError::Invalid(format!("state of {} sequences: too large", spec.slots)));
        }
        let layers = spec.layers.iter().map(|layer| self.device.allocate(layer.floats * spec.slots * 4));
        let state = State { spec: spec.clone(), memory: layers.collect::<Result<Vec<_>>>()? };
        Ok(self.add(Stored::State(Arc::new(state))))
    }

    fn compiled(&mut self, program: Program) -> Result<&mut Compiled> {
        let compiled = self.programs.get_mut(program.0 as usize);
        compiled.ok_or_else(|| BackendError::Invalid(format!("program {} is not of this device", program.0)))
    }

    /// After a failure: if the device cannot be synchronised either, its context is
    /// lost, whatever the error was.
    fn check_context<T>(&mut self, result: Result<T>) -> Result<T> {
        let Err(error) = result else { return result };
        if self.device.wait().is_ok() {
            return Err(error);
        }
        let lost = BackendError::DeviceLost(error.to_string());
        Err(self.lost.get_or_insert(lost).clone())
    }
}

impl Backend for Cuda {
    fn info(&self) -> DeviceInfo {
        let (memory_free, memory_total) = self.device.memory().unwrap_or((0, self.device.facts.memory));
        let name = self.device.facts.name.clone();
        DeviceInfo { name, memory_total, memory_free, step_tokens: STEP_TOKENS }
    }

    fn store(&mut self, tensor: &HostTensor, roles: Roles) -> Result<Buffer> {
        let weight = Arc::new(Weight::store(&mut self.staging, tensor, roles)?);
        Ok(self.add(Stored::Weight { weight, rows: tensor.rows(), cols: tensor.cols() }))
    }

    fn reserve(&mut self, what: &Reserve) -> Result<Buffer> {
        match what {
            Reserve::Kv(spec) => self.reserve_kv(spec),
            Reserve::State(spec) => self.reserve_state(spec),
        }
    }

    fn scratch(&self, graph: &Graph, max_tokens: usize, max_outputs: usize) -> u64 {
        let most =
            StepSize { tokens: max_tokens, outputs: max_outputs, longest: max_tokens, ..StepSize::default() };
        let scratch = scratch_bytes(graph, most, &self.device);
        (Plan::new(graph).bytes(max_tokens, max_outputs) + scratch) as u64
    }

    fn compile(&mut self, graph: &Graph, bindings: &Bindings<'_>) -> Result<Program> {
        let stored = |b: Buffer| match self.buffers.get(b.0 as usize) {
            Some(Stored::Weight { weight, rows, cols }) => Some((weight, [*rows, *cols])),
            _ => None,
        };
        bindings.check(graph, |b| stored(b).map(|w| w.1))?;
        let weights = bindings.weights.iter().map(|b| {
            let weight = stored(*b).map(|w| Arc::clone(w.0));
            weight.ok_or_else(|| BackendError::Invalid(format!("buffer {} is no weight", b.0)))
        });
        let weights = weights.collect::<Result<Vec<_>>>()?;
        let kv = match bindings.kv.map(|b| self.buffers.get(b.0 as usize)) {
            None if graph.kv.is_empty() => None,
            Some(Some(Stored::Kv(kv))) if kv.spec.fits(graph) => Some(Arc::clone(kv)),
            _ => {
                return Err(BackendError::Invalid(
                    "the KV pages were reserved for other attention layers".into(),
                ));
            }
        };
        let state = match bindings.state.map(|b| self.buffers.get(b.0 as usize)) {
            None if graph.states.is_empty() => None,
            Some(Some(Stored::State(state))) if state.spec.fits(graph) => Some(Arc::clone(state)),
            _ => {
                let message = "the state slots do not match the graph's recurrent layers";
                return Err(BackendError::Invalid(message.into()));
            }
        };
        let reserved = Reserved { kv, state };
        let (tokens, outputs) = (bindings.max_tokens, bindings.max_outputs);
        let most = StepSize { tokens, outputs, longest: tokens, ..StepSize::default() };
        let (compiler, host_ops) = (&mut self.compiler, self.host_ops.clone());
        let compiled = Compiled::new(&self.device, compiler, graph, &weights, reserved, most, host_ops)?;
        self.programs.push(compiled);
        Ok(Program(self.programs.len() as u32 - 1))
    }

    fn submit(&mut self, program: Program, step: Step) -> Result<Ticket> {
        if let Some(lost) = &self.lost {
            return Err(lost.clone());
        }
        let started = self.start(program, &step);
        let step = self.check_context(started)?;
        self.steps += 1;
        self.in_flight.push(Submitted { ticket: Ticket(self.steps), program, step });
        Ok(Ticket(self.steps))
    }

    fn collect(&mut self, ticket: Ticket) -> Result<StepOutput> {
        let index = self.in_flight.iter().position(|s| s.ticket.0 == ticket.0);
        let index = index
            .ok_or_else(|| BackendError::Invalid(format!("ticket {} is of no step in flight", ticket.0)))?;
        let Submitted { program, step, .. } = self.in_flight.swap_remove(index);
        let output = self.compiled(program)?.collect(step);
        self.check_context(output)
    }

    fn runs_host_ops(&self) -> bool {
        true
    }

    fn set_host_ops(&mut self, ops: HostOpsHandle) -> Result<()> {
        self.host_ops = Some(ops);
        Ok(())
    }

    fn finish_compiling(&mut self, program: Program) -> Result<()> {
        self.compiled(program)?.finish_compiling()
    }

    fn step_borders(&self, program: Program) -> Vec<usize> {
        self.programs.get(program.0 as usize).map(Compiled::step_borders).unwrap_or_default()
    }

    fn kv_cells(&self) -> &'static [KvCells] {
        &[KvCells::F16, KvCells::Int8, KvCells::Fp8]
    }

    fn adapts_all_steps(&self) -> bool {
        self.device.arithmetic.reproducible
    }

    fn runs_ahead(&self) -> bool {
        true
    }

    fn read_bandwidth(&mut self) -> Option<f64> {
        bandwidth::measure(&self.device, &mut self.compiler).ok()
    }
}
