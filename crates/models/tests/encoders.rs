//! Encoders and rerankers: as llama.cpp, transformers and the reference compute them, alone
//! and many texts in one step.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use serde::Deserialize;
use tern_cpu::Cpu;
use tern_graph::{
    Backend, Bindings, HostTensor, KvCells, KvSpec, Output, Pooling, Random, Reference, Reserve, Slice,
    StateSlots, StateSpec, Step,
};
use tern_models::{Model, SHAPES, Shape, Synth, VectorKind};

const PAGE_LEN: usize = 32;
/// Tokens of a step at most.
const STEP: usize = 256;

/// A recorded text, see `scripts/oracle/llama/models.py embed` and
/// `scripts/oracle/transformers/bert_scores.py`.
#[derive(Deserialize)]
struct Text {
    tokens: Vec<u32>,
    #[serde(default)]
    second: Option<usize>,
    vector: Vec<f32>,
}

#[derive(Deserialize)]
struct Fixture {
    model: String,
    texts: Vec<Text>,
}

fn fixtures() -> Vec<Fixture> {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fixtures/embeddings");
    let files = std::fs::read_dir(folder).unwrap().map(|file| file.unwrap().path());
    let tiny =
        files.filter(|path| path.file_name().is_some_and(|n| n.to_string_lossy().starts_with("tiny-")));
    tiny.map(|path| serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()).collect()
}

/// A model with random weights.
fn synth(spec: &str) -> (Model, Vec<HostTensor>) {
    let (shape, quant) = Synth::parse(spec).unwrap();
    let mut synth = Synth::new(&shape, quant, None).unwrap();
    let tensors = synth.tensors().unwrap();
    (synth.model, tensors)
}

/// The tokens of a text, and where its second part begins.
type Tokens<'a> = (&'a [u32], Option<usize>);

/// The vectors of texts, all of them in one step; those of all tokens of a text are one after the other.
fn vectors(
    backend: &mut dyn Backend,
    model: &(Model, Vec<HostTensor>),
    texts: &[Tokens<'_>],
) -> Vec<Vec<f32>> {
    let (Model { graph, vectors, .. }, tensors) = model;
    let weights = tensors.iter().zip(graph.roles());
    let weights: Vec<_> = weights.map(|(t, roles)| backend.store(t, roles).unwrap()).collect();
    let (mut slices, mut outputs, mut page, mut row) = (vec![], vec![], 0, 0);
    for &(text, second) in texts {
        let pages = text.len().div_ceil(PAGE_LEN) as u32;
        let table: Vec<u32> = (page..page + pages).rev().collect();
        let slot = StateSlots { read: None, write: slices.len() as u32 };
        let state = (!graph.states.is_empty()).then_some(slot);
        slices.push(Slice { second, state, ..Slice::new(text.len(), 0, table) });
        let rows = vectors.unwrap().pooling.after_graph().rows(row..row + text.len());
        outputs.extend(rows.map(|row| Output { row, sample: None, logits: true }));
        (page, row) = (page + pages, row + text.len());
    }
    let kv = KvSpec {
        layers: graph.kv.clone(),
        cells: KvCells::F32,
        pages: page as usize,
        page_len: PAGE_LEN,
        window: None,
    };
    let kv = Some(backend.reserve(&Reserve::Kv(kv)).unwrap());
    let state = StateSpec { layers: graph.states.clone(), slots: texts.len() };
    let state = (!graph.states.is_empty()).then(|| backend.reserve(&Reserve::State(state)).unwrap());
    let bindings = Bindings { weights: &weights, kv, state, max_tokens: STEP, max_outputs: STEP };
    let program = backend.compile(graph, &bindings).unwrap();
    let tokens = texts.iter().flat_map(|(text, _)| *text).copied().collect();
    let step = Step { tokens, slices, outputs, ..Step::default() };
    let ticket = backend.submit(program, step).unwrap();
    let mut rows = backend.collect(ticket).unwrap().rows.into_iter().map(|row| row.logits.unwrap());
    let each = |text: &[u32]| if vectors.unwrap().pooling == Pooling::None { text.len() } else { 1 };
    texts.iter().map(|(text, _)| rows.by_ref().take(each(text)).flatten().collect()).collect()
}

fn cosine(a: &[f32], b: &[f32]) -> f64 {
    assert_eq!(a.len(), b.len());
    let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum::<f64>();
    dot(a, b) / (dot(a, a) * dot(b, b)).sqrt()
}

/// Same direction and length; scores of classifiers within 1e-3.
fn check(name: &str, got: &[f32], want: &[f32], kind: VectorKind, near: f64) {
    match kind {
        VectorKind::Scores => {
            for (got, want) in got.iter().zip(want) {
                println!("{name}: score {want} off by {:.1e}", got - want);
                assert!((got - want).abs() < 1e-3, "{name}: {got}, want {want}");
            }
        }
        VectorKind::Embedding => {
            let cosine = cosine(got, want);
            println!("{name}: cosine {cosine:.7}");
            assert!(cosine > near, "{name}: cosine {cosine}");
            let norm = |v: &[f32]| v.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>().sqrt();
            let ratio = norm(got) / norm(want);
            assert!((ratio - 1.0).abs() < 5e-3, "{name}: {ratio} times as long");
        }
    }
}

fn kind(model: &Model) -> VectorKind {
    model.vectors.unwrap().kind
}

#[test]
fn vectors_are_those_of_llama_cpp_and_scores_those_of_transformers() {
    let fixtures = fixtures();
    assert!(fixtures.len() >= 8, "{} fixtures", fixtures.len());
    for fixture in fixtures {
        let name = fixture.model.strip_suffix(".gguf").unwrap();
        let (shape, format) = name.rsplit_once('-').unwrap();
        let model = synth(&format!("{shape}:{format}"));
        let texts: Vec<_> = fixture.texts.iter().map(|text| (&text.tokens[..], text.second)).collect();
        let reference = vectors(&mut Reference::new(), &model, &texts);
        let cpu = vectors(&mut Cpu::new(2).unwrap(), &model, &texts);
        for (at, text) in fixture.texts.iter().enumerate() {
            check(name, &reference[at], &text.vector, kind(&model.0), 0.9999);
            check(name, &cpu[at], &text.vector, kind(&model.0), 0.9999);
            check(name, &cpu[at], &reference[at], kind(&model.0), 0.99999);
        }
    }
}

/// A text has the same bits alone and among others.
#[test]
fn texts_of_a_step_do_not_affect_each_other() {
    for shape in encoders() {
        let model = synth(&format!("{}:q8_0", shape.name));
        let mut random = Random::new(3);
        let mut text = |len: usize| (0..len).map(|_| random.below(4096) as u32).collect::<Vec<_>>();
        let texts = [text(1), text(40), text(33), text(7)];
        let seconds = [None, Some(9), None, Some(2)];
        let all: Vec<_> = texts.iter().zip(seconds).map(|(text, second)| (&text[..], second)).collect();
        let together = vectors(&mut Cpu::new(2).unwrap(), &model, &all);
        for (at, text) in all.iter().enumerate() {
            let alone = vectors(&mut Cpu::new(1).unwrap(), &model, &[*text]);
            assert!(alone == together[at..=at], "{}: text {at}", shape.name);
        }
    }
}

/// Shapes whose texts are read whole.
fn encoders() -> impl Iterator<Item = &'static Shape> {
    let whole = |shape: &&Shape| {
        let model = Synth::new(shape, &tern_quant::Q8_0, None).unwrap().model;
        model.graph.sequence_rules().whole
    };
    SHAPES.iter().filter(|shape| shape.name.starts_with("tiny-")).filter(whole)
}

#[test]
fn every_layer_shares_one_kv_layer() {
    let names: Vec<&str> = encoders().map(|shape| shape.name).collect();
    assert!(names.contains(&"tiny-bert") && names.contains(&"tiny-gemma-embedding"), "{names:?}");
    for shape in encoders() {
        let graph = Synth::new(shape, &tern_quant::Q8_0, None).unwrap().model.graph;
        assert_eq!(graph.kv.len(), 1, "{}", shape.name);
    }
}
