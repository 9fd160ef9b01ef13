//! A graph with recurrent layers and attention in an engine: states, snapshots and pages
//! together never change a text.

use std::sync::OnceLock;

use proptest::prelude::*;
use tern_engine::{
    Capacity, Engine, Event, GraphRunner, Handle, Limits, Pooling, Request, RunnerConfig, StateCapacity,
};
use tern_graph::{
    Attention, DeltaRule, DeltaWeights, Graph, HostTensor, KeyHeads, KvCells, Random, Reference, RopeStyle,
    RopeTable, StateLayer, WeightId,
};

use crate::harness::{Scenario, alone, compare, run};

const VOCAB: usize = 40;
const WIDTH: usize = 16;
const PAGE_LEN: usize = 8;
const RULE: DeltaRule =
    DeltaRule { k_heads: 1, v_heads: 2, k_dim: 8, v_dim: 8, eps: 1e-6, key_heads: KeyHeads::Tiled };

/// A graph and its weights.
#[derive(Default)]
struct Hybrid {
    graph: Graph,
    tensors: Vec<HostTensor>,
}

impl Hybrid {
    fn weight(&mut self, name: &str, shape: [usize; 2], rng: &mut Random) -> WeightId {
        self.tensor(name, shape, &rng.normals(shape[0] * shape[1], 0.7))
    }

    fn tensor(&mut self, name: &str, [rows, cols]: [usize; 2], values: &[f32]) -> WeightId {
        let name = format!("{name}{}", self.tensors.len());
        self.tensors.push(HostTensor::from_f32(&name, rows, cols, values));
        self.graph.matrix(name, rows, cols).unwrap()
    }
}

/// Embed, two layers with a convolution and a delta rule around one with attention, and an output matrix.
fn model() -> &'static Hybrid {
    static MODEL: OnceLock<Hybrid> = OnceLock::new();
    MODEL.get_or_init(|| {
        let (mut m, rng) = (Hybrid::default(), &mut Random::new(5));
        let freqs = (0..4).map(|i| 0.5f32.powi(i)).collect();
        let rope = m.graph.rope_table(RopeTable::new(freqs, 1.0));
        let table = m.weight("table", [VOCAB, WIDTH], rng);
        let mut x = m.graph.embed(table, 1.0); // [tokens, WIDTH]
        for attention in [false, true, false] {
            let rows = if attention { [WIDTH, 8, 8] } else { [RULE.width(), 2, 2] };
            let [a, b, c] = rows.map(|rows| {
                let w = m.weight("in", [rows, WIDTH], rng);
                m.graph.linear(x, w).unwrap()
            });
            let mixed = if attention {
                let [q, k] = [a, b].map(|x| m.graph.rope(x, 8, RopeStyle::Halves, rope).unwrap());
                m.graph.attend(q, k, c, Attention::full(2, 1, 8, 1.0)).unwrap()
            } else {
                let taps = m.weight("taps", [RULE.width(), 4], rng);
                let rate = m.tensor("rate", [1, 2], &[-0.02, -0.1]); // slow: a state is seen for long
                let qkv = m.graph.conv(a, taps, None, true).unwrap();
                let bias = m.weight("bias", [1, 2], rng);
                m.graph.delta(qkv, b, c, DeltaWeights { rate, bias }, RULE).unwrap()
            };
            x = m.graph.add(x, mixed).unwrap();
        }
        let rows = m.graph.outputs(x);
        let out = m.weight("out", [VOCAB, WIDTH], rng);
        m.graph.linear(rows, out).unwrap(); // [outputs, VOCAB]
        m
    })
}

fn runner(capacity: Capacity) -> GraphRunner {
    let Hybrid { graph, tensors } = model();
    let config = RunnerConfig { capacity, kv_cells: KvCells::F16, threads: 2 };
    GraphRunner::new(Box::new(Reference::new()), graph, tensors.clone(), config, |_| ()).unwrap()
}

fn capacity(slots: usize, max_tokens: usize) -> Capacity {
    let sizes =
        Capacity { pages: 80, page_len: PAGE_LEN, max_tokens, max_outputs: 4, window: None, state: None };
    sizes.with_slots(&model().graph, slots)
}

fn limits(max_seqs: usize) -> Limits {
    Limits { max_seqs, max_context: 600, max_waiting: 99, step_millis: 0 }
}

fn numbers(count: usize, seed: usize) -> Vec<u32> {
    (0..count).map(|i| ((i * 7 + i / 11 + seed * 13) % VOCAB) as u32).collect()
}

#[test]
fn state_is_reserved_by_the_layers_of_the_graph() {
    let sizes = capacity(6, 8);
    let bytes = 4 * 2 * (3 * RULE.width() + 2 * 8 * 8) as u64;
    assert_eq!(sizes.state, Some(StateCapacity { slots: 6, bytes }));
    let spec = sizes.state_spec(&model().graph).unwrap();
    assert_eq!((spec.layers.len(), spec.layers[1], spec.slots), (4, StateLayer { floats: 128 }, 6));
    let Hybrid { graph, tensors } = model();
    let config =
        RunnerConfig { capacity: Capacity { state: None, ..sizes }, kv_cells: KvCells::F16, threads: 2 };
    let refused = GraphRunner::new(Box::new(Reference::new()), graph, tensors.clone(), config, |_| ());
    let message = refused.err().map(|error| error.to_string());
    assert_eq!(message.as_deref(), Some("the graph has recurrent layers and needs state slots"));
}

#[test]
fn logits_are_the_same_in_chunks() {
    let tokens = numbers(50, 3);
    let logits = |chunk: usize| {
        let mut rows = vec![];
        let capacity = Capacity { max_outputs: chunk, ..capacity(1, chunk) };
        runner(capacity).logits(&tokens, |_, row| rows.push(row.to_vec())).unwrap();
        rows
    };
    let want = logits(50);
    assert!(want.windows(2).all(|rows| rows[0] != rows[1]));
    for chunk in [1, 7, 32] {
        assert!(logits(chunk) == want, "steps of {chunk}");
    }
}

/// The text that follows a prompt, and how many tokens of the prompt were cached.
fn generate(handle: &Handle, prompt: &[u32], max_tokens: usize) -> (Vec<u32>, usize) {
    let (mut text, mut cached) = (vec![], 0);
    for event in handle.generate(Request::new(prompt.to_vec(), max_tokens)).unwrap() {
        match event {
            Event::Started { cached: tokens } => cached = tokens,
            Event::Token(token) => text.push(token.id),
            Event::Failed(why) => panic!("{why}"),
            _ => {}
        }
    }
    (text, cached)
}

#[test]
fn ten_turns_compute_what_is_new_and_say_the_same_as_without_the_cache() {
    let capacity = capacity(10, 64);
    let handle = Engine::start(Box::new(runner(capacity)), limits(1)).unwrap();
    let mut history = numbers(200, 1);
    for turn in 0..10 {
        let (text, cached) = generate(&handle, &history, 9 + turn % 3);
        let fresh = Engine::start(Box::new(runner(capacity)), limits(1)).unwrap();
        assert_eq!(generate(&fresh, &history, 9 + turn % 3), (text.clone(), 0), "turn {turn}");
        // the question and the last token of the answer
        assert_eq!(history.len() - cached, if turn == 0 { 200 } else { 11 + 1 }, "turn {turn}");
        history.extend(text);
        history.extend(numbers(11, turn));
    }
    assert_eq!(handle.stats().snapshot_hits, 9);
}

#[test]
fn embeddings_continue_after_a_snapshot_or_read_everything() {
    let embed = |handle: &Handle, prompt: &[u32], pooling| {
        let events = handle.generate(Request::embed(prompt.to_vec(), pooling)).unwrap();
        events
            .filter_map(|event| if let Event::Embedding(vector) = event { Some(vector) } else { None })
            .next()
    };
    let prompt = numbers(90, 4);
    for pooling in [Pooling::Last, Pooling::Mean] {
        let start = |max_tokens| Engine::start(Box::new(runner(capacity(6, max_tokens))), limits(1)).unwrap();
        let (whole, chunks) = (start(90), start(20));
        let want = embed(&whole, &prompt, pooling).unwrap();
        generate(&chunks, &prompt, 3);
        let got = embed(&chunks, &prompt, pooling).unwrap();
        // a mean is the sum of chunks
        let near = want.iter().zip(&got).all(|(want, got)| (want - got).abs() < 1e-5);
        assert!(if pooling == Pooling::Last { got == want } else { near }, "{pooling:?}: {got:?}, {want:?}");
        assert_eq!(chunks.stats().snapshot_hits, u64::from(pooling == Pooling::Last));
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    #[test]
    fn states_never_change_the_text_of_a_graph(
        prompts in prop::collection::vec((1..60usize, 0..3usize, 0..20usize), 1..7),
        (max_seqs, chunk, slots) in (1..4usize, 0..40usize, 2..12usize),
    ) {
        let scenario = |&(len, kind, arrives): &(usize, usize, usize)| Scenario {
            arrives,
            ..Scenario::new(Request::new(numbers(len, kind), 12))
        };
        let scenarios: Vec<Scenario> = prompts.iter().map(scenario).collect();
        let max_tokens = max_seqs + chunk;
        let capacity = Capacity { pages: 12, ..capacity(slots, max_tokens) };
        let (outcomes, _) =
            run((limits(max_seqs), capacity), &mut runner(capacity), &scenarios, &[max_tokens, 3])
                .map_err(TestCaseError::fail)?;
        for (scenario, together) in scenarios.iter().zip(&outcomes) {
            let mut roomy = runner(Capacity { pages: 80, max_tokens: 80, ..capacity });
            let alone = alone(&mut roomy, scenario).map_err(TestCaseError::fail)?;
            compare(&alone, together, scenario).map_err(TestCaseError::fail)?;
        }
    }
}
