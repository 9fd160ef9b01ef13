//! Models whose experts are computed by a second backend: the same logits as on one backend, for every
//! architecture with experts.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::sync::{Arc, Mutex};

use tern_cpu::Cpu;
use tern_engine::{Capacity, GraphRunner, RunnerConfig};
use tern_graph::{
    Backend, BackendError, HostExperts, HostOps, HostRows, HostTensor, KvCells, Op, Random, Reference, Roles,
    cases,
};
use tern_models::{Model, SHAPES, Shape, Synth};

const POSITIONS: usize = 21;
/// Relative distance of the logits of the CPU from those of the reference.
const DISTANCE: f32 = 2e-3;

fn open(shape: &Shape) -> (Model, Vec<HostTensor>) {
    let shape = Shape { vocab: 320, ..shape.clone() };
    let mut synth = Synth::new(&shape, &tern_quant::Q8_0, None).unwrap();
    let weights = synth.model.graph.weights.clone();
    let tensors = weights.iter().map(|w| synth.tensor(w).unwrap()).collect();
    (synth.model, tensors)
}

/// The logits after every token, computed in chunks. `[positions * vocab]`
fn logits(backend: Box<dyn Backend>, (model, tensors): &(Model, Vec<HostTensor>), chunk: usize) -> Vec<f32> {
    let capacity =
        Capacity { pages: 2, page_len: 16, max_tokens: chunk, max_outputs: chunk, window: None, state: None };
    let config =
        RunnerConfig { capacity: capacity.with_slots(&model.graph, 1), kv_cells: KvCells::F16, threads: 2 };
    let mut runner =
        GraphRunner::new(backend, &model.graph, tensors.iter().cloned(), config, |_| ()).unwrap();
    let random = &mut Random::new(7);
    let tokens: Vec<u32> = (0..POSITIONS).map(|_| random.below(320) as u32).collect();
    let mut rows = vec![];
    runner.logits(&tokens, |_, row| rows.extend(row)).unwrap();
    rows
}

#[test]
fn the_experts_of_every_architecture_can_be_on_the_host() {
    let mut tested = 0;
    for shape in SHAPES.iter().filter(|s| s.name.starts_with("tiny-")) {
        let model = open(shape);
        let graph = &model.0.graph;
        let routes = graph.nodes.iter().filter(|node| matches!(node.op, Op::Route { .. })).count();
        assert_eq!(graph.expert_layers(), routes, "{}: some experts cannot be cut out", shape.name);
        if routes == 0 {
            continue;
        }
        tested += 1;
        let split = |host: Box<dyn Backend>, layers: usize, chunk: usize| {
            let device = Box::new(Reference::new());
            logits(Box::new(HostExperts::new(device, host, graph, layers).unwrap()), &model, chunk)
        };
        let want = logits(Box::new(Reference::new()), &model, POSITIONS);
        for layers in [0, 1, routes] {
            let got = split(Box::new(Reference::new()), layers, POSITIONS);
            assert!(got == want, "{}: experts of {layers} layers on a second reference", shape.name);
        }
        let cpu = split(Box::new(Cpu::new(2).unwrap()), routes, POSITIONS);
        let off = cases::distance(&cpu, &want);
        println!("{}: {routes} layers with experts, off by {off:.1e}", shape.name);
        assert!(off < DISTANCE, "{}: off by {off:.1e}", shape.name);
        let chunk = if graph.sequence_rules().whole { POSITIONS } else { 4 };
        assert!(split(Box::new(Cpu::new(1).unwrap()), routes, chunk) == cpu, "{}: chunks", shape.name);
    }
    assert!(tested >= 8, "only {tested} shapes have experts");
}

#[test]
fn a_model_of_rotated_weights_without_experts_is_unchanged() {
    let shape = SHAPES.iter().find(|s| s.name == "tiny-bonsai2").unwrap();
    let model = open(shape);
    let [device, host] = [0, 1].map(|_| Box::new(Reference::new()));
    let split = HostExperts::new(device, host, &model.0.graph, 0).unwrap();
    assert!(logits(Box::new(split), &model, 7) == logits(Box::new(Reference::new()), &model, 7));
}

/// Counts the bytes that it stores.
struct Counted(Reference, Arc<Mutex<usize>>);

impl Backend for Counted {
    fn info(&self) -> tern_graph::DeviceInfo {
        self.0.info()
    }
    fn store(&mut self, tensor: &HostTensor, roles: Roles) -> Result<tern_graph::Buffer, BackendError> {
        *self.1.lock().unwrap() += tensor.data().len();
        self.0.store(tensor, roles)
    }
    fn reserve(&mut self, what: &tern_graph::Reserve) -> Result<tern_graph::Buffer, BackendError> {
        self.0.reserve(what)
    }
    fn scratch(&self, graph: &tern_graph::Graph, max_tokens: usize, max_outputs: usize) -> u64 {
        self.0.scratch(graph, max_tokens, max_outputs)
    }
    fn compile(
        &mut self,
        graph: &tern_graph::Graph,
        bindings: &tern_graph::Bindings<'_>,
    ) -> Result<tern_graph::Program, BackendError> {
        self.0.compile(graph, bindings)
    }
    fn set_host_ops(&mut self, ops: tern_graph::HostOpsHandle) -> Result<(), BackendError> {
        self.0.set_host_ops(ops)
    }
    fn submit(
        &mut self,
        program: tern_graph::Program,
        step: tern_graph::Step,
    ) -> Result<tern_graph::Ticket, BackendError> {
        self.0.submit(program, step)
    }
    fn collect(&mut self, ticket: tern_graph::Ticket) -> Result<tern_graph::StepOutput, BackendError> {
        self.0.collect(ticket)
    }
}

#[test]
fn the_weights_of_experts_are_stored_on_the_host_only() {
    let model = open(Shape::by_name("tiny-qwen3moe").unwrap());
    let total: usize = model.1.iter().map(|t| t.data().len()).sum();
    let experts = |layers: usize| -> usize {
        let of_layer = |t: &&HostTensor| (0..layers).any(|l| t.name().starts_with(&format!("blk.{l}.")));
        let exps = model.1.iter().filter(|t| t.name().contains("_exps")).filter(of_layer);
        exps.map(|t| t.data().len()).sum()
    };
    for layers in [1, model.0.graph.expert_layers()] {
        let stored = [(); 2].map(|()| Arc::new(Mutex::new(0)));
        let [device, host] = stored.clone().map(|count| Box::new(Counted(Reference::new(), count)));
        let backend = HostExperts::new(device, host, &model.0.graph, layers).unwrap();
        logits(Box::new(backend), &model, POSITIONS);
        let stored = stored.map(|count| *count.lock().unwrap());
        assert_eq!(stored, [total - experts(layers), experts(layers)], "the first {layers} layers");
    }
}

#[test]
fn what_cannot_be_split_is_refused_with_both_numbers() {
    let graph = &open(Shape::by_name("tiny-qwen3moe").unwrap()).0.graph;
    let have = graph.expert_layers();
    let message = |device: Box<dyn Backend>, layers: usize| {
        let host = Box::new(Reference::new());
        HostExperts::new(device, host, graph, layers).err().map(|e| e.to_string()).unwrap_or_default()
    };
    let want = format!("experts of {} layers for the host: the model has {have} such layers", have + 1);
    assert_eq!(message(Box::new(Reference::new()), have + 1), want);
    let cpu = message(Box::new(Cpu::new(1).unwrap()), 1);
    assert!(cpu.ends_with("does not run ops on the host"), "{cpu}");
}

/// Fails once.
struct Failing(bool);

impl HostOps for Failing {
    fn compute(&mut self, _: usize, rows: HostRows<'_>, out: &mut [f32]) -> Result<(), BackendError> {
        if std::mem::take(&mut self.0) {
            return Err(BackendError::Other("the host failed".into()));
        }
        out.copy_from_slice(rows.x);
        Ok(())
    }
}

#[test]
fn a_failure_of_the_host_fails_one_step() {
    let (model, tensors) = open(Shape::by_name("tiny-qwen3moe").unwrap());
    let split = model.graph.split_experts(1, 0).unwrap();
    let mut device = Reference::new();
    device.set_host_ops(Arc::new(Mutex::new(Failing(true)))).unwrap();
    let capacity =
        Capacity { pages: 1, page_len: 16, max_tokens: 4, max_outputs: 4, window: None, state: None };
    let config = RunnerConfig { capacity, kv_cells: KvCells::F16, threads: 2 };
    let weights = split.device_weights.iter().map(|w| tensors[*w].clone());
    let mut runner = GraphRunner::new(Box::new(device), &split.device, weights, config, |_| ()).unwrap();
    assert_eq!(runner.logits(&[1, 2], |_, _| ()).unwrap_err().to_string(), "the host failed");
    let mut rows = 0;
    runner.logits(&[1, 2], |_, _| rows += 1).unwrap();
    assert_eq!(rows, 2);
}
