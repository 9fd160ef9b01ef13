//! Models whose layers are on several devices: the same bits as on one, for every architecture.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use tern_cpu::Cpu;
use tern_engine::{Capacity, GraphRunner, RunnerConfig};
use tern_graph::{
    Backend, BackendError, Bindings, Buffer, DeviceInfo, Graph, HostTensor, KvCells, LayerGroup, Op, Program,
    Random, Reference, Reserve, Roles, Step, StepOutput, Ticket,
};
use tern_models::{Model, SHAPES, Shape, Synth};

const POSITIONS: usize = 21;

fn open(shape: &Shape) -> (Model, Vec<HostTensor>) {
    let shape = Shape { vocab: 320, ..shape.clone() };
    let mut synth = Synth::new(&shape, &tern_quant::Q8_0, None).unwrap();
    let weights = synth.model.graph.weights.clone();
    let tensors = weights.iter().map(|w| synth.tensor(w).unwrap()).collect();
    (synth.model, tensors)
}

fn reference() -> Box<dyn Backend> {
    Box::new(Reference::new())
}

fn cpu() -> Box<dyn Backend> {
    Box::new(Cpu::new(1).unwrap())
}

/// The logits after every token, computed in chunks. `[positions * vocab]`
fn logits(backend: Box<dyn Backend>, (model, tensors): &(Model, Vec<HostTensor>), chunk: usize) -> Vec<f32> {
    let chunk = if model.graph.sequence_rules().whole { POSITIONS } else { chunk };
    let sizes =
        Capacity { pages: 2, page_len: 16, max_tokens: chunk, max_outputs: chunk, window: None, state: None };
    let capacity = sizes.with_window(&model.graph).with_slots(&model.graph, 1);
    let config = RunnerConfig { capacity, kv_cells: KvCells::F16, threads: 1 };
    let mut runner =
        GraphRunner::new(backend, &model.graph, tensors.iter().cloned(), config, |_| ()).unwrap();
    let random = &mut Random::new(7);
    let tokens: Vec<u32> = (0..POSITIONS).map(|_| random.below(320) as u32).collect();
    let mut rows = vec![];
    runner.logits(&tokens, |_, row| rows.extend(row)).unwrap();
    rows
}

/// The same bits: values that are not finite too.
fn bits(rows: &[f32]) -> Vec<u32> {
    rows.iter().map(|x| x.to_bits()).collect()
}

#[test]
fn layers_on_several_devices_compute_the_bits_of_one() {
    let mut tested = 0;
    for shape in SHAPES.iter().filter(|s| s.name.starts_with("tiny-")) {
        let model = open(shape);
        let graph = &model.0.graph;
        let (layers, borders) = (graph.layers(), graph.layer_borders());
        println!("{}: {layers} layers, cut after {borders:?}", shape.name);
        assert!(borders.contains(&layers), "{}: no cut before the output", shape.name);
        let group = |device: fn() -> Box<dyn Backend>, borders: &[usize], chunk: usize| {
            let devices = (0..=borders.len()).map(|_| device()).collect();
            bits(&logits(Box::new(LayerGroup::new(devices, graph, borders).unwrap()), &model, chunk))
        };
        let want = bits(&logits(reference(), &model, POSITIONS));
        for border in &borders {
            assert!(group(reference, &[*border], POSITIONS) == want, "{}: after {border}", shape.name);
        }
        assert!(group(reference, &borders, POSITIONS) == want, "{}: after {borders:?}", shape.name);
        let want = bits(&logits(cpu(), &model, POSITIONS));
        for chunk in [POSITIONS, 4, 1] {
            assert!(group(cpu, &borders, chunk) == want, "{}: CPUs, chunks of {chunk}", shape.name);
        }
        tested += 1;
    }
    assert!(tested >= 40, "only {tested} shapes");
}
