//! [`Cpu`]: the backend that runs graphs on the processor.

use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use tern_graph::{
    Backend, BackendError, Bindings, Buffer, CachePart, DeviceInfo, Finished, Graph, HostTensor, KvSize,
    Place, Program, Reserve, Roles, StateSpec, Step, StepOutput, Ticket,
};

use crate::activations::gathered_rows::GatheredRows;
use crate::attention::attend_plan::AttendPlan;
use crate::attention::kv::Kv;
use crate::bandwidth;
use crate::dot::{LinearKernel, PANEL, Packed, Rows};
use crate::instruction_sets::available;
use crate::kernels::Kernels;
use crate::memory::free::FreeMemory;
use crate::memory::lines::{Refused, release};
use crate::program::{Compiled, Memory, StepSize};
use crate::run::{Run, Scratch};
use crate::state::State;
use crate::sync::SPINS;
use crate::threads::{NoThreads, Pool, Task};
use crate::weight::Weight;

type Result<T> = std::result::Result<T, BackendError>;

/// More than the cores of any machine, and fewer than systems allow per process.
pub const MAX_THREADS: usize = 4096;

/// Bytes that packed copies of weights leave free: steps are slower without them, but possible.
const KEPT_FREE: u64 = 64 << 20;

/// Tokens of a step: enough for full speed, and few enough that a step takes seconds at most.
const STEP_TOKENS: usize = 512;

/// Runs graphs on the machine's processor. Weights are read from the mapped file, or
/// are packed for its kernels.
pub struct Cpu {
    kernels: &'static Kernels,
    pool: Pool,
    /// One per thread.
    workspaces: Vec<Mutex<Scratch>>,
    plan: AttendPlan,
    buffers: Vec<Stored>,
    programs: Vec<Compiled>,
    finished: Finished,
}

enum Stored {
    Tensor(Weight),
    Kv(Arc<Kv>),
    State(Arc<State>),
}

impl Cpu {
    /// The best kernels of this machine, on `threads` threads. Fails if the system cannot start all of them,
    /// rather than use its last thread and leave none to the rest of the program.
    pub fn new(threads: usize) -> Result<Cpu> {
        Cpu::with_kernels(threads, available()[0])
    }

    /// The same for steps that follow each other after the pauses in which a GPU works: threads sleep later.
    pub fn beside_a_gpu(threads: usize) -> Result<Cpu> {
        Cpu::open(threads, available()[0], |threads| Pool::with_idle_spins(threads, 40 * SPINS))
    }

    /// A chosen instruction set out of [`available`].
    pub fn with_kernels(threads: usize, kernels: &'static Kernels) -> Result<Cpu> {
        Cpu::open(threads, kernels, Pool::new)
    }

    fn open(
        threads: usize,
        kernels: &'static Kernels,
        start: impl FnOnce(usize) -> std::result::Result<Pool, NoThreads>,
    ) -> Result<Cpu> {
        if threads > MAX_THREADS {
            return Err(BackendError::Invalid(format!("{threads} threads: at most {MAX_THREADS}")));
        }
        let pool = start(threads).map_err(|e| BackendError::Unsupported(e.to_string()))?;
        let workspaces = (0..pool.threads()).map(|_| Mutex::default()).collect();
        Ok(Cpu {
            kernels,
            pool,
            workspaces,
            plan: AttendPlan::default(),
            buffers: vec![],
            programs: vec![],
            finished: Finished::default(),
        })
    }

    fn add(&mut self, stored: Stored) -> Buffer {
        self.buffers.push(stored);
        Buffer(self.buffers.len() as u32 - 1)
    }

    fn stored(&self, buffer: Buffer) -> Option<&Weight> {
        match self.buffers.get(buffer.0 as usize) {
            Some(Stored::Tensor(weight)) => Some(weight),
            _ => None,
        }
    }

    /// Packs matrices, one below the other, for their kernel, if it has a packed layout and memory suffices;
    /// otherwise steps pack them. Each matrix begins with a new panel.
    fn pack(&mut self, t: &HostTensor, kernel: LinearKernel, matrices: usize) -> Option<Packed> {
        let kernel = match kernel {
            LinearKernel::Packed(kernel) if kernel.at_load => kernel,
            LinearKernel::Packed(_) | LinearKernel::Integer(_) | LinearKernel::F32(_) => return None,
        };
        let rows = t.rows() / matrices;
        let each = rows.div_ceil(PANEL);
        let bytes = Packed::bytes(&kernel, matrices * each, t.cols());
        if bytes.saturating_add(KEPT_FREE) > FreeMemory::now().free {
            return None;
        }
        let packed = Packed::new(&kernel, matrices * each, t.cols())?;
        let task = Task { index: 0, items: matrices * each, unit: 1, most: 4 };
        let done = self.pool.run(&|worker| {
            for panel in worker.share_all(task) {
                let (matrix, first) = (panel / each, panel % each * PANEL);
                let rows = matrix * rows + first..matrix * rows + rows.min(first + PANEL);
                let rows =
                    Rows { quant: t.quant(), count: rows.len(), blocks: t.row_range(rows), tail: t.tail() };
                // SAFETY: each panel is one thread's.
                (kernel.pack)(&rows, t.cols(), unsafe { packed.clear(panel) });
            }
        });
        done.then(|| {
            release(t.data());
            packed
        })
    }

    /// Drops packed copies of weights, the last ones first, until `want` bytes are free.
    fn make_room(&mut self, want: u64) {
        for stored in self.buffers.iter_mut().rev() {
            if want <= FreeMemory::now().free {
                return;
            }
            if let Stored::Tensor(weight) = stored {
                weight.packed.take_if(|packed| Arc::strong_count(packed) == 1); // no program reads it
            }
        }
    }

    fn reserve_state(&mut self, spec: &StateSpec) -> Result<Buffer> {
        let want = spec.bytes().unwrap_or(u64::MAX);
        let what = || format!("state of {} sequences", spec.slots);
        check_free(want, what)?;
        let state = State::new(spec).map_err(|_| too_little(want, what))?;
        Ok(self.add(Stored::State(Arc::new(state))))
    }

    /// The memory of a page or slot of a reserved buffer.
    fn cache_part(&self, buffer: Buffer, place: Place) -> Result<CacheMemory<'_>> {
        let (memory, count) = match (self.buffers.get(buffer.0 as usize), place.part) {
            (Some(Stored::Kv(kv)), CachePart::Page) => (CacheMemory::Kv(kv, false), kv.spec.pages),
            (Some(Stored::Kv(kv)), CachePart::WindowPage) => {
                let pages = kv.spec.window.as_ref().map_or(0, |window| window.pages);
                (CacheMemory::Kv(kv, true), pages)
            }
            (Some(Stored::State(state)), CachePart::StateSlot) => {
                (CacheMemory::State(state), state.spec.slots)
            }
            _ => return Err(BackendError::Invalid(format!("{place:?}: not in this buffer"))),
        };
        if place.number as usize >= count {
            return Err(BackendError::Invalid(format!("{place:?}: there are {count}")));
        }
        Ok(memory)
    }

    fn run(&mut self, program: Program, step: &Step) -> Result<StepOutput> {
        let fail = |text: String| Err(BackendError::Invalid(text));
        let Some(compiled) = self.programs.get(program.0 as usize) else {
            return fail(format!("program {} was not compiled here", program.0));
        };
        let kv = compiled.kv.as_ref().map_or(KvSize::default(), |kv| kv.spec.size());
        let slots = compiled.state.as_ref().map(|state| state.spec.slots);
        step.check(compiled.graph.vocab(), kv, slots)?;
        step.check_sequences(compiled.graph.sequence_rules())?;
        step.check_size(compiled.max_tokens, compiled.max_outputs)?;
        step.check_inputs(&compiled.input_widths)?;
        step.check_images(compiled.image_width)?;
        self.plan.set(step, compiled.kv.as_deref());
        let (kernels, workspaces, plan) = (self.kernels, &self.workspaces, &self.plan);
        let run = Run { program: compiled, kernels, step, plan, workspaces, refused: OnceLock::new() };
        if !self.pool.run(&|worker| run.work(worker)) {
            self.plan.forget();
            return Err(BackendError::Other("a thread failed in this step".into()));
        }
        if let Some(node) = run.refused.get() {
            return Err(unsupported(&compiled.graph, *node));
        }
        let Some(last) = compiled.graph.nodes.len().checked_sub(1) else { return Ok(StepOutput::default()) };
        let width = compiled.graph.nodes[last].value.width;
        // SAFETY: the threads are done.
        let logits = unsafe { compiled.value(last).get(0..run.rows(last) * width) };
        Ok(step.answer(logits.chunks_exact(width)))
    }
}

impl Backend for Cpu {
    fn info(&self) -> DeviceInfo {
        let threads = self.pool.threads();
        let plural = if threads == 1 { "" } else { "s" };
        let name = format!("{} ({threads} thread{plural}, {})", processor(), self.kernels.name);
        let memory = FreeMemory::now();
        let (memory_total, memory_free) = (memory.total, memory.free);
        DeviceInfo { name, memory_total, memory_free, step_tokens: STEP_TOKENS }
    }

    fn store(&mut self, tensor: &HostTensor, roles: Roles) -> Result<Buffer> {
        if !tensor.quant().is_runnable() {
            let refused = format!("{}: {} is not supported on CPUs", tensor.name(), tensor.quant());
            return Err(BackendError::Unsupported(refused));
        }
        let matrices = match roles {
            Roles { matrix: true, experts: 0, .. } => Some(1),
            Roles { matrix: false, experts: 1.., .. } => Some(roles.experts),
            _ => None,
        };
        let kernel = self.kernels.linear_of(tensor.quant(), roles);
        let packed = matrices.zip(kernel).and_then(|(n, kernel)| self.pack(tensor, kernel, n)).map(Arc::new);
        Ok(self.add(Stored::Tensor(Weight { tensor: tensor.clone(), kernel, packed })))
    }

    fn reserve(&mut self, what: &Reserve) -> Result<Buffer> {
        let spec = match what {
            Reserve::Kv(spec) => spec,
            Reserve::State(spec) => return self.reserve_state(spec),
        };
        if !self.kv_cells().contains(&spec.cells) {
            let message = "fp8 KV cache: supported on GPUs only, use int8 on the CPU";
            return Err(BackendError::Unsupported(message.into()));
        }
        let want = spec.bytes().unwrap_or(u64::MAX);
        let what = || format!("KV for {} tokens", spec.pages.saturating_mul(spec.page_len));
        check_free(want, what)?;
        let kv = Kv::new(spec).map_err(|_| too_little(want, what))?;
        Ok(self.add(Stored::Kv(Arc::new(kv))))
    }

    fn scratch(&self, graph: &Graph, max_tokens: usize, max_outputs: usize) -> u64 {
        let threads = self.pool.threads() as u64;
        Compiled::scratch(graph, max_tokens, max_outputs, self.kernels)
            + threads * GatheredRows::bytes(graph, max_tokens)
    }

    fn compile(&mut self, graph: &Graph, bindings: &Bindings<'_>) -> Result<Program> {
        let fail = |text: &str| BackendError::Invalid(text.into());
        bindings.check(graph, |b| self.stored(b).map(|w| [w.tensor.rows(), w.tensor.cols()]))?;
        let kv = match bindings.kv.map(|b| self.buffers.get(b.0 as usize)) {
            None if graph.kv.is_empty() => None,
            Some(Some(Stored::Kv(kv))) if kv.spec.fits(graph) => Some(Arc::clone(kv)),
            _ => return Err(fail("the KV cache does not match the graph's attention layers")),
        };
        let state = match bindings.state.map(|b| self.buffers.get(b.0 as usize)) {
            None if graph.states.is_empty() => None,
            Some(Some(Stored::State(state))) if state.spec.fits(graph) => Some(Arc::clone(state)),
            _ => return Err(fail("the state slots do not match the graph's recurrent layers")),
        };
        let Bindings { max_tokens, max_outputs, .. } = *bindings;
        let want = self.scratch(graph, max_tokens, max_outputs);
        let what = || format!("scratch for steps of {} tokens", max_tokens);
        self.make_room(want);
        check_free(want, what)?;
        let refused = |_: Refused| too_little(want, what);
        self.plan.reserve(graph, kv.as_deref(), max_tokens).map_err(refused)?;
        for workspace in &mut self.workspaces {
            let workspace = workspace.get_mut().unwrap_or_else(PoisonError::into_inner);
            workspace.gathered.reserve(graph, max_tokens).map_err(refused)?;
        }
        let weights: Vec<_> = bindings.weights.iter().filter_map(|b| self.stored(*b)).cloned().collect();
        let (most, others) = (StepSize { tokens: max_tokens, outputs: max_outputs }, &self.programs);
        let compiled = Compiled::new(graph, weights, Memory { kv, state }, most, self.kernels, others)
            .map_err(refused)?;
        if let Some(node) = compiled.unsupported() {
            return Err(unsupported(graph, node));
        }
        self.programs.push(compiled);
        Ok(Program(self.programs.len() as u32 - 1))
    }

    fn read_bandwidth(&mut self) -> Option<f64> {
        bandwidth::measure(&mut self.pool, FreeMemory::now().free)
    }

    fn submit(&mut self, program: Program, mut step: Step) -> Result<Ticket> {
        self.finished.carry(program, &mut step)?;
        let output = self.run(program, &step)?;
        Ok(self.finished.keep_step(program, &step, output))
    }

    fn collect(&mut self, ticket: Ticket) -> Result<StepOutput> {
        self.finished.take(ticket)
    }

    /// The kernels of another instruction set may add in another order.
    fn cache_format(&self) -> Option<String> {
        let order = if cfg!(target_endian = "big") { "big" } else { "little" };
        Some(format!("cpu {} {order} endian", self.kernels.name))
    }

    fn read_cache(&mut self, from: Buffer, place: Place, to: &mut Vec<u8>) -> Result<()> {
        match self.cache_part(from, place)? {
            // SAFETY: steps end before `submit` returns, and this has the backend to itself.
            CacheMemory::Kv(kv, windowed) => unsafe { kv.read_page(windowed, place.number, to) },
            // SAFETY: as above.
            CacheMemory::State(state) => unsafe { state.read_slot(place.number, to) },
        }
        Ok(())
    }

    fn write_cache(&mut self, to: Buffer, place: Place, bytes: &[u8]) -> Result<()> {
        let memory = self.cache_part(to, place)?;
        let want = match memory {
            CacheMemory::Kv(kv, windowed) => kv.spec.page_bytes(windowed),
            CacheMemory::State(state) => state.spec.slot_bytes(),
        };
        if bytes.len() != want {
            let got = bytes.len();
            return Err(BackendError::Invalid(format!("{place:?}: want {want} bytes, got {got}")));
        }
        match memory {
            // SAFETY: steps end before `submit` returns, and this has the backend to itself.
            CacheMemory::Kv(kv, windowed) => unsafe { kv.write_page(windowed, place.number, bytes) },
            // SAFETY: as above.
            CacheMemory::State(state) => unsafe { state.write_slot(place.number, bytes) },
        }
        Ok(())
    }
}

/// The memory that a page or a slot is in; of KV pages, whether they are those of layers with a window.
enum CacheMemory<'a> {
    Kv(&'a Kv, bool),
    State(&'a State),
}

fn unsupported(graph: &Graph, node: usize) -> BackendError {
    BackendError::Unsupported(format!("{} (node {node}) has no CPU kernel", graph.nodes[node].op.name()))
}

/// Refuses an allocation larger than the free memory: the system would grant it, and kill the process on use.
fn check_free(want: u64, what: impl Fn() -> String) -> Result<()> {
    if want > FreeMemory::now().free { Err(too_little(want, what)) } else { Ok(()) }
}

fn too_little(want: u64, what: impl Fn() -> String) -> BackendError {
    let mib = |bytes: u64| bytes / (1 << 20);
    let (what, want, free) = (what(), mib(want), mib(FreeMemory::now().free));
    BackendError::OutOfMemory(format!(
        "{what} takes {want} MiB, and {free} MiB are free; a smaller context (-c) or batch takes less"
    ))
}

/// The processor's name, or its architecture if the system does not report one.
fn processor() -> String {
    let info = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let name = info.lines().find_map(|l| l.strip_prefix("model name")?.split_once(": "));
    name.map_or_else(|| std::env::consts::ARCH.to_string(), |(_, name)| name.trim().to_string())
}

#[cfg(test)]
mod tests {
    use tern_graph::cases;

    use super::*;

    #[test]
    fn an_op_without_a_kernel_is_refused_by_name() {
        let all = cases::all().unwrap();
        let add = all.iter().find(|case| case.name == "add").unwrap();
        let mut cpu = Cpu::new(1).unwrap();
        add.run(&mut cpu).unwrap();
        let compiled = &mut cpu.programs[0];
        assert_eq!(compiled.unsupported(), None);
        compiled.run_alone(0);
        assert_eq!(compiled.unsupported(), Some(0));
        // and a step fails rather than return the values of an earlier one
        let error = cpu.submit(Program(0), add.steps[0].clone()).unwrap_err();
        assert_eq!(error, BackendError::Unsupported("embed (node 0) has no CPU kernel".into()));
    }
}
