//! Whole models with random weights: written, read back and run, on the CPU and on the reference.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use tern_cpu::Cpu;
use tern_engine::{Capacity, GraphRunner, RunnerConfig, WindowPages};
use tern_formats::{Checkpoint, Metadata};
use tern_graph::{
    Backend, Bindings, Graph, HostTensor, KvCells, KvSpec, Output, Random, Reference, Reserve, Slice, Step,
    cases, divergence,
};
use tern_models::{Model, SHAPES, Shape, Synth, plain_tokenizer};
use tern_quant::Quant;

/// Longer than the window of tiny-gemma3, and no multiple of a page.
const POSITIONS: usize = 42;
const PAGE_LEN: usize = 16;
/// Mean divergence from the reference: KV in half precision is nearly all of it.
const MEAN_KL: f64 = 1e-5;
/// Relative distance of the logits: a peaked distribution hides much from the divergence.
/// Activations of four-bit weights have twelve bits.
const DISTANCE: f32 = 2e-3;

/// A shape small enough for the reference.
fn small(shape: &Shape) -> Shape {
    // the first layer with full attention
    let layers = match shape.arch.name {
        "gemma3" | "gemma4" => 6,
        "maple" | "exaone-moe" | "mellum" | "cohere2" | "granite_swa" | "muse-glimmer" | "afmoe" => 4,
        "nemotron_h" | "nemotron_h_moe" => 4,
        _ => 2,
    };
    Shape { layers, vocab: 320, ..shape.clone() }
}

/// The model, written to a file and opened, unless no file stores the format.
fn open(shape: &Shape, quant: &'static Quant) -> (Model, Vec<HostTensor>) {
    let mut file = Vec::new();
    let mut synth = Synth::new(shape, quant, None).unwrap();
    if quant.gguf_id.is_none() {
        let tensors = synth.tensors().unwrap();
        return (synth.model, tensors);
    }
    synth.write(&Metadata::default(), &mut file, |_, _| ()).unwrap();
    read(file)
}

/// A file's model and its weights.
fn read(file: Vec<u8>) -> (Model, Vec<HostTensor>) {
    let (model, tensors) = Model::open(&Checkpoint::from_bytes(file.into()).unwrap(), None).unwrap();
    (model, tensors.iter().map(|tensor| tensor.make().unwrap()).collect())
}

fn tokens(vocab: usize) -> Vec<u32> {
    let mut random = Random::new(7);
    (0..POSITIONS).map(|_| random.below(vocab) as u32).collect()
}

/// The logits after every token, computed in chunks. `[positions][vocab]`
fn logits(
    backend: Box<dyn Backend>,
    (model, weights): &(Model, Vec<HostTensor>),
    chunk: usize,
) -> Vec<Vec<f32>> {
    let pages = POSITIONS.div_ceil(PAGE_LEN);
    // in small steps, layers with a window have their own pages, which are used in turn
    let window = model.graph.window().filter(|_| chunk < POSITIONS).map(|tokens| WindowPages {
        tokens,
        pages: WindowPages::in_turn(tokens, PAGE_LEN, chunk).min(pages),
    });
    let capacity =
        Capacity { pages, page_len: PAGE_LEN, max_tokens: chunk, max_outputs: chunk, window, state: None };
    let capacity = capacity.with_slots(&model.graph, 1);
    let config = RunnerConfig { capacity, kv_cells: KvCells::F16, threads: 2 };
    let weights = weights.iter().cloned();
    let mut runner = GraphRunner::new(backend, &model.graph, weights, config, |_| ()).unwrap();
    let mut rows = vec![];
    runner.logits(&tokens(model.config.vocab), |_, row| rows.push(row.to_vec())).unwrap();
    rows
}

/// Mean divergence of the rows of `got` from those of `want`, in nats.
fn mean_kl(want: &[Vec<f32>], got: &[Vec<f32>]) -> f64 {
    want.iter().zip(got).map(|(want, got)| divergence(want, got)).sum::<f64>() / want.len() as f64
}

/// Close to the reference, and the same bits in chunks of any size.
fn check(name: &str, model: &(Model, Vec<HostTensor>)) {
    let want = logits(Box::new(Reference::new()), model, POSITIONS);
    assert!(want.iter().flatten().all(|x| x.is_finite()), "{name}: the reference is not finite");
    let whole = logits(Box::new(Cpu::new(2).unwrap()), model, POSITIONS);
    let (kl, off) = (mean_kl(&want, &whole), cases::distance(&whole.concat(), &want.concat()));
    println!("{name}: mean KL {kl:.1e}, off by {off:.1e}");
    assert!(kl < MEAN_KL, "{name}: mean KL {kl:.2e} to the reference");
    assert!(off < DISTANCE, "{name}: logits off by {off:.2e}");
    assert!(
        logits(Box::new(Cpu::new(1).unwrap()), model, 5) == whole,
        "{name}: chunks of 5 change the logits"
    );
}

#[test]
fn every_architecture_runs_as_the_reference_does() {
    for shape in SHAPES.iter().filter(|s| s.name.starts_with("tiny-")) {
        let model = open(&small(shape), &tern_quant::Q8_0);
        // encoders have no logits: see encoders.rs
        if model.0.vectors.is_none() {
            check(shape.name, &model);
        }
    }
}

#[test]
fn every_format_runs_as_the_reference_does() {
    let shape = small(Shape::by_name("tiny-qwen3").unwrap());
    for quant in Synth::formats() {
        let model = open(&shape, quant);
        let q = model.1.iter().find(|t| t.name() == "blk.0.attn_q.weight").unwrap();
        assert_eq!(q.quant().name, quant.name, "the file must hold what was asked for");
        check(quant.name, &model);
    }
}

/// The reference, too, must not depend on the chunks.
#[test]
fn the_reference_gives_the_same_in_chunks() {
    let model = open(&small(Shape::by_name("tiny-gemma3").unwrap()), &tern_quant::Q4_0);
    let whole = logits(Box::new(Reference::new()), &model, POSITIONS);
    assert!(logits(Box::new(Reference::new()), &model, 5) == whole);
}

/// A graph on a backend, with KV for two texts.
struct Ready {
    backend: Cpu,
    program: tern_graph::Program,
}

impl Ready {
    fn new(graph: &Graph, weights: &[HostTensor], pages: usize) -> Ready {
        let mut backend = Cpu::new(2).unwrap();
        let weights = weights.iter().zip(graph.roles());
        let weights: Vec<_> = weights.map(|(t, roles)| backend.store(t, roles).unwrap()).collect();
        let kv = KvSpec { layers: graph.kv.clone(), pages, page_len: PAGE_LEN, ..KvSpec::default() };
        let kv = Some(backend.reserve(&Reserve::Kv(kv)).unwrap());
        let most = 2 * POSITIONS;
        let bindings = Bindings { weights: &weights, kv, state: None, max_tokens: most, max_outputs: most };
        let program = backend.compile(graph, &bindings).unwrap();
        Ready { backend, program }
    }

    fn step(&mut self, step: Step) -> Vec<Vec<f32>> {
        let ticket = self.backend.submit(self.program, step).unwrap();
        let rows = self.backend.collect(ticket).unwrap().rows;
        rows.into_iter().map(|r| r.logits.unwrap()).collect()
    }
}

/// Two texts in one step, on pages that alternate: each gets the bits it gets alone.
fn texts_in_one_step(shape: &str) {
    let (model, weights) = open(&small(Shape::by_name(shape).unwrap()), &tern_quant::Q4_K);
    let text = tokens(model.config.vocab);
    let (a, b) = (&text[..35], &text[3..POSITIONS]);
    let alone =
        |text: &[u32]| Ready::new(&model.graph, &weights, 6).step(Step::all_logits(text, 0, vec![0, 1, 2]));
    let mut ready = Ready::new(&model.graph, &weights, 6);
    let (even, odd) = (vec![4, 2, 0], vec![1, 3, 5]);
    let first = ready.step(Step::all_logits(&a[..20], 0, even.clone()));
    // the rest of `a` and all of `b` in one step
    let rest = [&a[20..], b].concat();
    let both = ready.step(Step {
        slices: vec![Slice::new(15, 20, even), Slice::new(b.len(), 0, odd)],
        outputs: (0..rest.len()).map(|row| Output { row, sample: None, logits: true }).collect(),
        tokens: rest,
        ..Step::default()
    });
    let got_a = [first, both[..15].to_vec()].concat();
    assert!(got_a == alone(a), "{shape}: the text that goes on");
    assert!(both[15..] == alone(b), "{shape}: the text that begins");
}

#[test]
fn texts_in_one_step_do_not_affect_each_other() {
    ["tiny-gemma3", "tiny-gemma4", "tiny-gemma4-experts", "tiny-qwen3moe", "tiny-deepseek2"]
        .into_iter()
        .for_each(texts_in_one_step);
}

/// Old files have one tensor per expert: the model is the same.
#[test]
fn experts_in_separate_tensors_are_the_same_model() {
    let shape = small(Shape::by_name("tiny-mixtral").unwrap());
    let (model, want) = open(&shape, &tern_quant::Q8_0);
    let mut tensors = vec![];
    for (w, t) in model.graph.weights.iter().zip(&want) {
        let dims =
            |rows: usize| if rows == 1 { vec![w.cols as u64] } else { vec![w.cols as u64, rows as u64] };
        if w.experts == 1 {
            tensors.push((w.name.clone(), t.quant(), dims(w.rows), t.data().clone()));
            continue;
        }
        let part = w.name.strip_suffix("_exps.weight").unwrap();
        for (e, data) in t.data().chunks(t.data().len() / w.experts).enumerate() {
            let name = format!("{part}.{e}.weight");
            tensors.push((name, t.quant(), dims(w.rows / w.experts), data.to_vec().into()));
        }
    }
    let mut writer = tern_formats::gguf::Writer::new(shape.metadata());
    tensors.iter().for_each(|(name, quant, dims, _)| writer.declare(name, quant, dims).unwrap());
    let mut file = vec![];
    writer.write_to(&mut file, |i, out| out.write_all(&tensors[i].3)).unwrap();
    let got = read(file).1;
    let same = |(a, b): (&HostTensor, &HostTensor)| a.name() == b.name() && a.data() == b.data();
    assert!(got.len() == want.len() && got.iter().zip(&want).all(same));
}

/// FNV-1a.
fn hash<'a>(bytes: impl Iterator<Item = &'a u8>) -> u64 {
    bytes.fold(0xCBF2_9CE4_8422_2325, |h, b| (h ^ u64::from(*b)).wrapping_mul(0x100_0000_01B3))
}

/// Fixtures were recorded for files that `tern synth` wrote: the same spec must always give the same weights.
#[test]
fn synthetic_weights_never_change() {
    let (shape, quant) = Synth::parse("tiny-qwen3:q4_k").unwrap();
    let synth = || Synth::new(&shape, quant, None).unwrap();
    let tensors = synth().tensors().unwrap();
    let weights = hash(tensors.iter().flat_map(|t| t.data().iter()));
    assert_eq!(weights, 0x2DF6_BC49_3E27_C267, "{weights:#X}");
    let write = || {
        let mut file = Vec::new();
        let size = synth().write(&plain_tokenizer(shape.vocab), &mut file, |_, _| ()).unwrap();
        assert_eq!(size, file.len() as u64);
        file
    };
    let file = write();
    assert!(file == write(), "two files of one spec differ");
    let read = read(file).1;
    let same = |(a, b): (&HostTensor, &HostTensor)| a.name() == b.name() && a.data() == b.data();
    assert!(
        read.iter().zip(&tensors).all(same) && read.len() == tensors.len(),
        "the file holds other weights"
    );
}

#[test]
fn progress_ends_at_the_total() {
    let shape = small(Shape::by_name("tiny-qwen2").unwrap());
    let mut seen = vec![];
    let mut synth = Synth::new(&shape, &tern_quant::Q4_0, None).unwrap();
    synth.write(&Metadata::default(), &mut std::io::sink(), |done, total| seen.push((done, total))).unwrap();
    assert_eq!(seen.len(), synth.model.graph.weights.len());
    assert!(seen.is_sorted());
    let (done, total) = *seen.last().unwrap();
    assert_eq!(done, total);
}
