//! [`HostExperts`]: a device whose graphs leave the experts of some layers to a second
//! backend in the host's memory.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::{
    Backend, BackendError, Bindings, Buffer, DeviceInfo, ExpertSplit, Graph, HostOps, HostRows, HostTensor,
    KvCells, Output, Program, Reserve, Roles, Slice, Step, StepOutput, Ticket,
};

type Result<T> = std::result::Result<T, BackendError>;

/// A device and a host that computes the experts of the first layers. Their weights are
/// stored on the host only.
pub struct HostExperts {
    device: Box<dyn Backend>,
    host: Arc<Mutex<Host>>,
    /// Layers whose experts are on the host.
    layers: usize,
    /// Layers that have experts.
    all: usize,
    on_device: HashSet<String>,
    on_host: HashSet<String>,
    buffers: Vec<Stored>,
}

/// Where a tensor or the KV cache is.
#[derive(Clone, Copy)]
struct Stored {
    device: Option<Buffer>,
    host: Option<Buffer>,
}

/// The backend of the host, and the programs of its pieces.
struct Host {
    backend: Box<dyn Backend>,
    pieces: Vec<Program>,
}

impl HostExperts {
    /// The experts of the first `layers` layers of `graph` are for the host.
    pub fn new(
        mut device: Box<dyn Backend>,
        host: Box<dyn Backend>,
        graph: &Graph,
        layers: usize,
    ) -> Result<HostExperts> {
        let split = graph.split_experts(layers, 0).map_err(|e| BackendError::Invalid(e.to_string()))?;
        let names = |weights: &[usize]| weights.iter().map(|w| graph.weights[*w].name.clone()).collect();
        let on_host = split.pieces.iter().flat_map(|piece| piece.weights.iter().copied()).collect::<Vec<_>>();
        let (on_device, on_host) = (names(&split.device_weights), names(&on_host));
        let host = Arc::new(Mutex::new(Host { backend: host, pieces: vec![] }));
        let ops: Arc<Mutex<dyn HostOps>> = Arc::clone(&host) as _;
        device.set_host_ops(ops)?;
        let all = graph.expert_layers();
        Ok(HostExperts { device, host, layers, all, on_device, on_host, buffers: vec![] })
    }

    fn host(&self) -> MutexGuard<'_, Host> {
        // a panic of the device leaves the host as it was
        self.host.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn add(&mut self, stored: Stored) -> Buffer {
        self.buffers.push(stored);
        Buffer(self.buffers.len() as u32 - 1)
    }

    fn split(&self, graph: &Graph, first_piece: usize) -> Result<ExpertSplit> {
        graph.split_experts(self.layers, first_piece).map_err(|e| BackendError::Invalid(e.to_string()))
    }

    /// The buffers of some weights in one of the two places.
    fn buffers(
        &self,
        graph: &Graph,
        bindings: &Bindings<'_>,
        weights: &[usize],
        place: fn(&Stored) -> Option<Buffer>,
    ) -> Result<Vec<Buffer>> {
        let buffer = |weight: &usize| {
            let stored = bindings.weights.get(*weight).and_then(|b| self.buffers.get(b.0 as usize));
            let name = &graph.weights[*weight].name;
            let missing = || BackendError::Invalid(format!("{name}: not stored where its ops run"));
            stored.and_then(place).ok_or_else(missing)
        };
        weights.iter().map(buffer).collect()
    }
}

impl Backend for HostExperts {
    fn info(&self) -> DeviceInfo {
        let (info, host) = (self.device.info(), self.host().backend.info().name);
        let HostExperts { layers, all, .. } = self;
        DeviceInfo {
            name: format!("{} with the experts of {layers} of {all} layers on {host}", info.name),
            ..info
        }
    }

    fn store(&mut self, tensor: &HostTensor, roles: Roles) -> Result<Buffer> {
        let (name, mut stored) = (tensor.name(), Stored { device: None, host: None });
        if self.on_host.contains(name) {
            stored.host = Some(self.host().backend.store(tensor, roles)?);
        }
        if stored.host.is_none() || self.on_device.contains(name) {
            stored.device = Some(self.device.store(tensor, roles)?);
        }
        Ok(self.add(stored))
    }

    fn reserve(&mut self, what: &Reserve) -> Result<Buffer> {
        let device = Some(self.device.reserve(what)?);
        Ok(self.add(Stored { device, host: None }))
    }

    /// The scratch on the device.
    fn scratch(&self, graph: &Graph, max_tokens: usize, max_outputs: usize) -> u64 {
        let split = self.split(graph, 0);
        split.map_or(0, |split| self.device.scratch(&split.device, max_tokens, max_outputs))
    }

    fn compile(&mut self, graph: &Graph, bindings: &Bindings<'_>) -> Result<Program> {
        let first_piece = self.host().pieces.len();
        let split = self.split(graph, first_piece)?;
        let max_tokens = bindings.max_tokens;
        let mut pieces = vec![];
        for piece in &split.pieces {
            let weights = self.buffers(graph, bindings, &piece.weights, |stored| stored.host)?;
            // every row of a piece is an output
            let bindings =
                Bindings { weights: &weights, kv: None, state: None, max_tokens, max_outputs: max_tokens };
            pieces.push(self.host().backend.compile(&piece.graph, &bindings)?);
        }
        let weights = self.buffers(graph, bindings, &split.device_weights, |stored| stored.device)?;
        let reserved = |buffer: Option<Buffer>| {
            let stored = buffer.and_then(|buffer| self.buffers.get(buffer.0 as usize));
            stored.and_then(|stored| stored.device)
        };
        let (kv, state) = (reserved(bindings.kv), reserved(bindings.state));
        let bindings = Bindings { weights: &weights, kv, state, ..*bindings };
        let program = self.device.compile(&split.device, &bindings)?;
        self.host().pieces.extend(pieces);
        Ok(program)
    }

    fn submit(&mut self, program: Program, step: Step) -> Result<Ticket> {
        self.device.submit(program, step)
    }

    fn collect(&mut self, ticket: Ticket) -> Result<StepOutput> {
        self.device.collect(ticket)
    }

    fn read_bandwidth(&mut self) -> Option<f64> {
        self.device.read_bandwidth()
    }

    fn kv_cells(&self) -> &'static [KvCells] {
        self.device.kv_cells()
    }

    fn finish_compiling(&mut self, program: Program) -> Result<()> {
        self.device.finish_compiling(program)
    }

    fn step_borders(&self, program: Program) -> Vec<usize> {
        self.device.step_borders(program)
    }

    fn adapts_all_steps(&self) -> bool {
        self.device.adapts_all_steps()
    }

    /// `submit` waits for the host in most of a step: submitting the next one early would delay
    /// the results of this one.
    fn runs_ahead(&self) -> bool {
        false
    }
}

impl HostOps for Host {
    fn compute(&mut self, piece: usize, rows: HostRows<'_>, out: &mut [f32]) -> Result<()> {
        let HostRows { tokens, x, logits } = rows;
        let Some(program) = self.pieces.get(piece) else {
            return Err(BackendError::Invalid(format!("piece {piece} of {} on the host", self.pieces.len())));
        };
        let step = Step {
            tokens: vec![0; tokens],
            slices: vec![Slice::new(tokens, 0, vec![])],
            outputs: (0..tokens).map(|row| Output { row, sample: None, logits: true }).collect(),
            inputs: vec![x.to_vec(), logits.to_vec()],
            ..Step::default()
        };
        let ticket = self.backend.submit(*program, step)?;
        let results = self.backend.collect(ticket)?.rows;
        let width = out.len() / tokens.max(1);
        let mut filled = 0;
        for (row, to) in
            results.iter().filter_map(|row| row.logits.as_ref()).zip(out.chunks_exact_mut(width.max(1)))
        {
            if row.len() != width {
                break;
            }
            to.copy_from_slice(row);
            filled += 1;
        }
        if filled != tokens {
            return Err(BackendError::Other(format!(
                "the host computed {filled} of {tokens} rows of experts"
            )));
        }
        Ok(())
    }
}
