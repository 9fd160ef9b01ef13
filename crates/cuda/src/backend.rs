//! [`Cuda`]: the backend itself.

use std::path::PathBuf;
use std::sync::Arc;

use tern_graph::{
    Backend, BackendError, Bindings, Buffer, DeviceInfo, Graph, HostTensor, KvCells, KvSpec, Plan, Program,
    Reserve, Roles, Step, StepOutput, Ticket,
};

use crate::bandwidth;
use crate::driver::{Compiler, Device, Places, Staging};
use crate::launch::{Compiled, Kv, Underway, scratch_bytes};
use crate::weights::Weight;

type Result<T> = std::result::Result<T, BackendError>;

/// Runs graphs on an NVIDIA GPU.
pub struct Cuda {
    device: Arc<Device>,
    compiler: Compiler,
    staging: Staging,
    buffers: Vec<Stored>,
    programs: Vec<Compiled>,
    underway: Vec<(u64, Program, Underway)>,
    steps: u64,
    /// The fault that took the context, after which nothing more is run.
    lost: Option<BackendError>,
}

enum Stored {
    Weight { weight: Arc<Weight>, rows: usize, cols: usize },
    Kv(Arc<Kv>),
}

impl Cuda {
    /// Opens GPU `ordinal`; NVRTC is looked for in `places` when a kernel has to be compiled, and kernels are kept in
    /// `cache`.
    pub fn open(ordinal: usize, places: Places, cache: Option<PathBuf>) -> Result<Cuda> {
        let device = Device::open(ordinal)?;
        let compiler = Compiler::new(Arc::clone(&device), places, cache);
        let staging = Staging::new(&device);
        Ok(Cuda {
            device,
            compiler,
            staging,
            buffers: vec![],
            programs: vec![],
            underway: vec![],
            steps: 0,
            lost: None,
        })
    }

    fn add(&mut self, stored: Stored) -> Buffer {
        self.buffers.push(stored);
        Buffer(self.buffers.len() as u32 - 1)
    }

    fn start(&mut self, program: Program, step: &Step) -> Result<Underway> {
        let compiled = self.compiled(program)?;
        let (pages, page_len) = compiled.kv.as_ref().map_or((0, 0), |kv| (kv.pages, kv.page_len));
        step.check(compiled.vocab, pages, page_len)?;
        step.check_size(compiled.max_tokens, compiled.max_outputs)?;
        compiled.submit(step)
    }

    fn compiled(&mut self, program: Program) -> Result<&mut Compiled> {
        let compiled = self.programs.get_mut(program.0 as usize);
        compiled.ok_or_else(|| BackendError::Invalid(format!("program {} was not compiled here", program.0)))
    }

    /// After a failure: a device that cannot even be waited for has lost its context, whatever the failure was called.
    fn look_after<T>(&mut self, result: Result<T>) -> Result<T> {
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
        DeviceInfo { name: self.device.facts.name.clone(), memory_total, memory_free }
    }

    fn store(&mut self, tensor: &HostTensor, _: Roles) -> Result<Buffer> {
        let weight = Arc::new(Weight::store(&mut self.staging, tensor)?);
        Ok(self.add(Stored::Weight { weight, rows: tensor.rows, cols: tensor.cols }))
    }

    fn reserve(&mut self, what: &Reserve) -> Result<Buffer> {
        let Reserve::Kv(KvSpec { layers, cells, pages, page_len }) = what;
        if *cells != KvCells::F16 {
            return Err(BackendError::Unsupported(
                "KV in int8 is for the processor only so far: want f16 on a GPU".into(),
            ));
        }
        let halves = |heads: usize, dim: usize| self.device.allocate(pages * page_len * heads * dim * 2);
        let memory = layers
            .iter()
            .map(|l| Ok((halves(l.kv_heads, l.k_dim)?, halves(l.kv_heads, l.v_dim)?)))
            .collect::<Result<Vec<_>>>()?;
        let kv = Kv { layers: layers.clone(), pages: *pages, page_len: *page_len, memory };
        Ok(self.add(Stored::Kv(Arc::new(kv))))
    }

    fn scratch(&self, graph: &Graph, max_tokens: usize, max_outputs: usize) -> u64 {
        (Plan::new(graph).bytes(max_tokens, max_outputs) + scratch_bytes(graph, max_tokens)) as u64
    }

    fn compile(&mut self, graph: &Graph, bindings: &Bindings<'_>) -> Result<Program> {
        let stored = |b: Buffer| match self.buffers.get(b.0 as usize) {
            Some(Stored::Weight { weight, rows, cols }) => Some((weight, [*rows, *cols])),
            _ => None,
        };
        bindings.check(graph, |b| stored(b).map(|w| w.1))?;
        let weights: Vec<_> =
            bindings.weights.iter().filter_map(|b| stored(*b)).map(|w| Arc::clone(w.0)).collect();
        let kv = match bindings.kv.map(|b| self.buffers.get(b.0 as usize)) {
            None if graph.kv.is_empty() => None,
            Some(Some(Stored::Kv(kv))) if kv.layers == graph.kv => Some(Arc::clone(kv)),
            _ => {
                return Err(BackendError::Invalid(
                    "the graph's attention layers do not fit the KV pages".into(),
                ));
            }
        };
        let most = (bindings.max_tokens, bindings.max_outputs);
        let compiled = Compiled::new(&self.device, &mut self.compiler, graph, &weights, kv, most)?;
        self.programs.push(compiled);
        Ok(Program(self.programs.len() as u32 - 1))
    }

    fn submit(&mut self, program: Program, step: Step) -> Result<Ticket> {
        if let Some(why) = &self.lost {
            return Err(why.clone());
        }
        let started = self.start(program, &step);
        let underway = self.look_after(started)?;
        self.steps += 1;
        self.underway.push((self.steps, program, underway));
        Ok(Ticket(self.steps))
    }

    fn collect(&mut self, ticket: Ticket) -> Result<StepOutput> {
        let at = self.underway.iter().position(|w| w.0 == ticket.0);
        let at = at.ok_or_else(|| BackendError::Invalid("this ticket was not given out here".into()))?;
        let (_, program, underway) = self.underway.swap_remove(at);
        let output = self.compiled(program)?.collect(underway);
        self.look_after(output)
    }

    fn runs_ahead(&self) -> bool {
        true
    }

    fn read_bandwidth(&mut self) -> Option<f64> {
        bandwidth::measure(&self.device, &mut self.compiler).ok()
    }
}
