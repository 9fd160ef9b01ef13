//! [`Cpu`]: the backend itself.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use tern_graph::{
    Backend, BackendError, Bindings, Buffer, DeviceInfo, Finished, Graph, HostTensor, Program, Reserve, Step,
    StepOutput, Ticket,
};

use crate::bandwidth;
use crate::kernels::{Kernels, available};
use crate::kv::Kv;
use crate::program::Compiled;
use crate::run::Run;
use crate::threads::Pool;

type Result<T> = std::result::Result<T, BackendError>;

/// Runs graphs on the machine's processor. Weights stay where they are mapped.
pub struct Cpu {
    kernels: &'static Kernels,
    pool: Pool,
    buffers: Vec<Stored>,
    programs: Vec<Compiled>,
    finished: Finished,
}

enum Stored {
    Tensor(HostTensor),
    Kv(Arc<Kv>),
}

impl Cpu {
    /// The best kernels this machine has, on so many threads.
    pub fn new(threads: usize) -> Cpu {
        Cpu::with_kernels(threads, available()[0])
    }

    /// Kernels of one's own choice, out of [`available`].
    pub fn with_kernels(threads: usize, kernels: &'static Kernels) -> Cpu {
        let pool = Pool::new(threads);
        Cpu { kernels, pool, buffers: vec![], programs: vec![], finished: Finished::default() }
    }

    fn add(&mut self, stored: Stored) -> Buffer {
        self.buffers.push(stored);
        Buffer(self.buffers.len() as u32 - 1)
    }

    fn run(&mut self, program: Program, step: &Step) -> Result<StepOutput> {
        let fail = |text: String| Err(BackendError(text));
        let Some(compiled) = self.programs.get(program.0 as usize) else {
            return fail(format!("program {} was not compiled here", program.0));
        };
        let (pages, page_len) = compiled.kv.as_ref().map_or((0, 0), |kv| (kv.pages, kv.page_len));
        step.check(compiled.graph.vocab(), pages, page_len)?;
        step.check_size(compiled.max_tokens, compiled.max_outputs)?;
        compiled.taken.iter().for_each(|t| t.store(0, Ordering::Relaxed));
        let run = Run::new(compiled, self.kernels, step, self.pool.threads());
        if !self.pool.run(&|worker| run.work(worker)) {
            return fail("a thread failed in this step".into());
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
        let (memory_total, memory_free) = memory();
        DeviceInfo { name, memory_total, memory_free }
    }

    fn store(&mut self, tensor: &HostTensor) -> Result<Buffer> {
        Ok(self.add(Stored::Tensor(tensor.clone())))
    }

    fn reserve(&mut self, what: &Reserve) -> Result<Buffer> {
        let Reserve::Kv { layers, pages, page_len } = what;
        let (want, free) = (Kv::bytes(layers, *pages, *page_len).unwrap_or(u64::MAX), memory().1);
        if want > free {
            let mib = |bytes: u64| bytes / (1 << 20);
            return Err(BackendError(format!(
                "KV for {} tokens takes {} MiB and {} MiB are free; a smaller context (-c) would fit",
                pages * page_len,
                mib(want),
                mib(free)
            )));
        }
        Ok(self.add(Stored::Kv(Arc::new(Kv::new(layers, *pages, *page_len)))))
    }

    fn scratch(&self, graph: &Graph, max_tokens: usize, max_outputs: usize) -> u64 {
        Compiled::scratch(graph, max_tokens, max_outputs, self.kernels)
    }

    fn compile(&mut self, graph: &Graph, bindings: &Bindings<'_>) -> Result<Program> {
        let fail = |text: &str| BackendError(text.into());
        let stored = |b: Buffer| match self.buffers.get(b.0 as usize) {
            Some(Stored::Tensor(t)) => Some(t),
            _ => None,
        };
        bindings.check(graph, |b| stored(b).map(|t| (t.rows, t.cols)))?;
        let weights: Vec<_> = bindings.weights.iter().filter_map(|b| stored(*b)).cloned().collect();
        let kv = match bindings.kv.map(|b| self.buffers.get(b.0 as usize)) {
            None if graph.kv.is_empty() => None,
            Some(Some(Stored::Kv(kv))) if kv.layers.iter().map(|l| l.shape).eq(graph.kv.iter().copied()) => {
                Some(Arc::clone(kv))
            }
            _ => return Err(fail("the graph's attention layers do not fit the KV pages")),
        };
        let most = (bindings.max_tokens, bindings.max_outputs);
        self.programs.push(Compiled::new(graph, weights, kv, most, self.kernels));
        Ok(Program(self.programs.len() as u32 - 1))
    }

    fn read_bandwidth(&mut self) -> Option<f64> {
        bandwidth::measure(self.pool.threads(), self.info().memory_free)
    }

    fn submit(&mut self, program: Program, mut step: Step) -> Result<Ticket> {
        self.finished.carry(program, &mut step)?;
        let output = self.run(program, &step)?;
        Ok(self.finished.keep_step(program, &step, output))
    }

    fn collect(&mut self, ticket: Ticket) -> Result<StepOutput> {
        self.finished.take(ticket)
    }
}

/// The processor's own name, where the system tells it.
fn processor() -> String {
    let info = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let name = info.lines().find_map(|l| l.strip_prefix("model name")?.split_once(": "));
    name.map_or_else(|| std::env::consts::ARCH.to_string(), |(_, name)| name.trim().to_string())
}

/// Bytes of memory in all and free, of the machine or of the container; unknown counts as endless.
fn memory() -> (u64, u64) {
    let info = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let field = |name: &str| {
        let line = info.lines().find_map(|l| l.strip_prefix(name))?;
        line.trim().trim_end_matches(" kB").parse::<u64>().ok().map(|kib| kib * 1024)
    };
    let machine = (field("MemTotal:").unwrap_or(u64::MAX), field("MemAvailable:").unwrap_or(u64::MAX));
    let control = |name: &str| {
        std::fs::read_to_string(format!("/sys/fs/cgroup/{name}")).ok()?.trim().parse::<u64>().ok()
    };
    let (most, used) = (control("memory.max").unwrap_or(u64::MAX), control("memory.current").unwrap_or(0));
    (machine.0.min(most), machine.1.min(most.saturating_sub(used)))
}
