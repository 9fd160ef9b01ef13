//! Models whose layers are on several devices: the same bits as on one, for every architecture.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::sync::{Arc, Mutex};

use tern_cpu::Cpu;
use tern_engine::{
    Capacity, Engine, Event, GraphRunner, Handle, Limits, Pooling, Request, Runner, RunnerConfig, Sampling,
};
use tern_graph::{
    Backend, BackendError, Bindings, Buffer, CachePart, DeviceInfo, Graph, HostTensor, KvCells, LayerGroup,
    Place, Program, Random, Reference, Reserve, Roles, Step, StepOutput, Ticket,
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
        for border in borders.iter().filter(|border| **border <= 2 || **border == layers) {
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

/// An engine with few pages, so that sequences are preempted, on devices of one thread each.
fn engine((model, tensors): &(Model, Vec<HostTensor>), borders: &[usize]) -> Handle {
    let devices: Vec<_> = (0..=borders.len()).map(|_| cpu()).collect();
    let backend: Box<dyn Backend> = match borders {
        [] => cpu(),
        _ => Box::new(LayerGroup::new(devices, &model.graph, borders).unwrap()),
    };
    let sizes =
        Capacity { pages: 24, page_len: 4, max_tokens: 12, max_outputs: 8, window: None, state: None };
    let capacity = sizes.with_window(&model.graph).with_slots(&model.graph, 12);
    let config = RunnerConfig { capacity, kv_cells: KvCells::Int8, threads: 1 };
    let runner = GraphRunner::new(backend, &model.graph, tensors.iter().cloned(), config, |_| ()).unwrap();
    let limits = Limits { max_seqs: 5, max_context: 80, max_waiting: 99, step_millis: 0 };
    Engine::start(Box::new(runner), limits).unwrap()
}

/// Prompts of which some begin alike, greedy, sampled and with drafts.
fn requests() -> Vec<Request> {
    let random = &mut Random::new(3);
    let mut tokens = |len: usize| -> Vec<u32> { (0..len).map(|_| random.below(320) as u32).collect() };
    let common = tokens(17);
    let request = |i: usize| {
        let mut prompt = if i.is_multiple_of(2) { common.clone() } else { vec![] };
        prompt.extend(tokens(1 + 5 * i % 23));
        let sampling = match i % 3 {
            0 => Sampling::default(),
            _ => Sampling { temperature: 0.9, seed: i as u64, ..Sampling::default() },
        };
        Request { sampling, drafts: i % 4, ..Request::new(prompt, 9 + i) }
    };
    (0..14).map(request).collect()
}

/// The tokens of each request, all of them at once, and the vectors of their prompts.
fn answers(engine: &Handle, requests: &[Request]) -> (Vec<Vec<u32>>, Vec<Vec<u32>>) {
    let started: Vec<_> = requests.iter().map(|r| engine.generate(r.clone()).unwrap()).collect();
    let embed = |r: &Request| engine.generate(Request::embed(r.prompt.clone(), Pooling::Last)).unwrap();
    let vectors: Vec<_> = requests.iter().map(embed).collect();
    let tokens = |event| match event {
        Event::Token(token) => Some(token.id),
        Event::Failed(why) => panic!("{why}"),
        _ => None,
    };
    let vector = |event| match event {
        Event::Embedding(vector) => Some(bits(&vector)),
        Event::Failed(why) => panic!("{why}"),
        _ => None,
    };
    let texts = started.into_iter().map(|stream| stream.filter_map(tokens).collect());
    (texts.collect(), vectors.into_iter().flat_map(|stream| stream.filter_map(vector)).collect())
}

#[test]
fn batches_on_several_devices_answer_like_one() {
    let requests = requests();
    for name in ["tiny-llama", "tiny-qwen35", "tiny-gemma3", "tiny-gemma4", "tiny-qwen3moe", "tiny-falcon-h1"]
    {
        let model = open(Shape::by_name(name).unwrap());
        let alone = engine(&model, &[]);
        let each = requests.iter().map(|r| answers(&alone, std::slice::from_ref(r)));
        let (texts, vectors): (Vec<_>, Vec<_>) = each.unzip();
        let want = (texts.concat(), vectors.concat());
        assert!(want.0.iter().zip(&requests).all(|(text, r)| text.len() == r.max_tokens), "{name}");
        let borders = model.0.graph.layer_borders();
        for borders in [&borders[..1], &borders] {
            let split = engine(&model, borders);
            let got = answers(&split, &requests);
            assert_eq!(got.0, want.0, "{name}: texts, cut after {borders:?}");
            assert!(got.1 == want.1, "{name}: vectors, cut after {borders:?}");
            assert!(split.stats().preemptions > 0, "{name}: nothing was preempted");
        }
    }
}

/// What a device was asked to store, and the step that fails.
#[derive(Default)]
struct Log {
    stored: Vec<(String, Roles)>,
    kv: Vec<usize>,
    fails: bool,
}

/// A reference that logs.
struct Logged(Reference, Arc<Mutex<Log>>);

impl Backend for Logged {
    fn info(&self) -> DeviceInfo {
        DeviceInfo { name: "logged".into(), ..self.0.info() }
    }
    fn store(&mut self, tensor: &HostTensor, roles: Roles) -> Result<Buffer, BackendError> {
        self.1.lock().unwrap().stored.push((tensor.name().into(), roles));
        self.0.store(tensor, roles)
    }
    fn reserve(&mut self, what: &Reserve) -> Result<Buffer, BackendError> {
        if let Reserve::Kv(spec) = what {
            self.1.lock().unwrap().kv.push(spec.layers.len());
        }
        self.0.reserve(what)
    }
    fn scratch(&self, graph: &Graph, max_tokens: usize, max_outputs: usize) -> u64 {
        self.0.scratch(graph, max_tokens, max_outputs)
    }
    fn compile(&mut self, graph: &Graph, bindings: &Bindings<'_>) -> Result<Program, BackendError> {
        self.0.compile(graph, bindings)
    }
    fn submit(&mut self, program: Program, step: Step) -> Result<Ticket, BackendError> {
        match std::mem::take(&mut self.1.lock().unwrap().fails) {
            true => Err(BackendError::DeviceLost("misaligned address".into())),
            false => self.0.submit(program, step),
        }
    }
    fn collect(&mut self, ticket: Ticket) -> Result<StepOutput, BackendError> {
        self.0.collect(ticket)
    }
}

#[test]
fn weights_and_kv_layers_are_where_they_are_read_and_errors_name_the_device() {
    // a tied embedding is a table on the first device and a matrix on the last
    let (model, tensors) = open(Shape::by_name("tiny-gemma3").unwrap());
    let logs = [(); 3].map(|()| Arc::new(Mutex::new(Log::default())));
    let device =
        |log: &Arc<Mutex<Log>>| -> Box<dyn Backend> { Box::new(Logged(Reference::new(), Arc::clone(log))) };
    let group = LayerGroup::new(logs.iter().map(device).collect(), &model.graph, &[2, 6]).unwrap();
    let name = group.info().name;
    assert_eq!(name, "layers 0 to 1 on logged, layers 2 to 5 on logged, layer 6 on logged");
    let capacity =
        Capacity { pages: 2, page_len: 16, max_tokens: 4, max_outputs: 4, window: None, state: None };
    let config = RunnerConfig { capacity, kv_cells: KvCells::F16, threads: 1 };
    let mut runner =
        GraphRunner::new(Box::new(group), &model.graph, tensors.clone(), config, |_| ()).unwrap();
    let of = |at: usize| logs[at].lock().unwrap();
    assert_eq!([0, 1, 2].map(|at| of(at).kv.clone()), [vec![2], vec![4], vec![1]]);
    for (at, layers) in [0..2, 2..6, 6..7].into_iter().enumerate() {
        let wrong = |(name, _): &&(String, Roles)| {
            let layer = name.strip_prefix("blk.").and_then(|n| n.split('.').next()?.parse().ok());
            layer.is_some_and(|layer: usize| !layers.contains(&layer))
        };
        assert_eq!(of(at).stored.iter().find(wrong), None);
    }
    let embedding = |at: usize| of(at).stored.iter().find(|(n, _)| n == "token_embd.weight").map(|s| s.1);
    let roles = Roles::default();
    let want = [Some(Roles { table: true, ..roles }), None, Some(Roles { matrix: true, ..roles })];
    assert_eq!([0, 1, 2].map(embedding), want);
    let all: usize = (0..3).map(|at| of(at).stored.len()).sum();
    assert_eq!(all, tensors.len() + 1);
    logs[1].lock().unwrap().fails = true;
    let failed = runner.logits(&[1, 2], |_, _| ()).unwrap_err().to_string();
    assert_eq!(failed, "the device was lost: layers 2 to 5 on logged: misaligned address");
    let mut rows = 0;
    runner.logits(&[1, 2], |_, _| rows += 1).unwrap();
    assert_eq!(rows, 2);
}

#[test]
fn pages_and_states_of_all_devices_are_copied_together() {
    for (name, part) in [("tiny-gemma3", CachePart::Page), ("tiny-qwen35", CachePart::StateSlot)] {
        let (model, tensors) = open(Shape::by_name(name).unwrap());
        let devices = vec![cpu(), cpu()];
        let group = LayerGroup::new(devices, &model.graph, &[2]).unwrap();
        let sizes =
            Capacity { pages: 3, page_len: 16, max_tokens: 4, max_outputs: 4, window: None, state: None };
        let capacity = sizes.with_slots(&model.graph, 2);
        let config = RunnerConfig { capacity, kv_cells: KvCells::F16, threads: 1 };
        let mut runner = GraphRunner::new(Box::new(group), &model.graph, tensors, config, |_| ()).unwrap();
        let format = runner.cache_format().unwrap();
        runner.logits(&[5, 6, 7], |_, _| ()).unwrap();
        let read = |runner: &mut GraphRunner, number| {
            let mut bytes = vec![];
            runner.read_cache(Place { part, number }, &mut bytes).unwrap();
            bytes
        };
        let (first, second) = (read(&mut runner, 0), read(&mut runner, 1));
        assert_eq!(first.len(), format.bytes_of(part), "{name}");
        assert!(first != second, "{name}");
        runner.write_cache(Place { part, number: 1 }, &first).unwrap();
        assert!(read(&mut runner, 1) == first, "{name}");
        let short = runner.write_cache(Place { part, number: 1 }, &first[1..]).unwrap_err().to_string();
        assert!(short.contains(&format!("want {} bytes, got {}", first.len(), first.len() - 1)), "{short}");
    }
}

#[test]
fn what_cannot_be_cut_is_refused_by_name() {
    let (model, _) = open(Shape::by_name("tiny-gemma4").unwrap());
    let refused = |borders: &[usize]| {
        let devices = (0..=borders.len()).map(|_| reference()).collect();
        LayerGroup::new(devices, &model.graph, borders).err().map(|e| e.to_string()).unwrap_or_default()
    };
    assert_eq!(
        refused(&[3]),
        "a cut after 3 layers: a later layer reads the keys and values of an earlier one"
    );
    assert_eq!(refused(&[9]), "a cut after 9 layers: the model has 6");
    assert_eq!(refused(&[0]), "a cut after 0 layers: the model has 6");
    assert_eq!(refused(&[6, 1]), "cuts after [6, 1] layers: each must be after the one before");
    let one = LayerGroup::new(vec![reference()], &model.graph, &[1]).err().unwrap().to_string();
    assert_eq!(one, "2 parts of a model on 1 devices");
}
