//! A tiny model on the reference backend: chunks, pages and other sequences change no token of it.

use std::sync::{Arc, Mutex, OnceLock};

use proptest::prelude::*;
use tern_engine::{
    AdapterScales, AdapterSet, Capacity, Engine, EngineError, Event, GraphRunner, Limits, Pooling, Request,
    Runner, RunnerConfig, Sampling, Scheduler,
};
use tern_graph::{
    AdaptedLinear, Attention, Backend, BackendError, Bindings, Buffer, DeviceInfo, Gating, Graph,
    HostExperts, HostTensor, KvCells, Program, Random, Reference, Reserve, Roles, RopeStyle, RopeTable,
    Routing, Step, StepOutput, Ticket,
};

use crate::harness::{Scenario, alone, compare, run};

const VOCAB: usize = 40;
const WIDTH: usize = 16;
const EXPERTS: usize = 5;

/// Embed, one attention layer with rope, experts, and an output matrix; nothing in it
/// forgets the order of tokens.
fn model() -> &'static (Graph, Vec<HostTensor>) {
    static MODEL: OnceLock<(Graph, Vec<HostTensor>)> = OnceLock::new();
    MODEL.get_or_init(|| {
        let mut g = Graph::new();
        let table = g.matrix("table", VOCAB, WIDTH).unwrap();
        let [q, k, v] = [("q", WIDTH), ("k", 8), ("v", 8)].map(|(n, rows)| g.matrix(n, rows, WIDTH).unwrap());
        let out = g.matrix("out", VOCAB, WIDTH).unwrap();
        let freqs = (0..4).map(|i| 0.5f32.powi(i)).collect();
        let rope = g.rope_table(RopeTable::new(freqs, 1.0));
        let x = g.embed(table, 1.0); // [tokens, WIDTH]
        let [q, k, v] = [q, k, v].map(|w| g.linear(x, w).unwrap());
        let [q, k] = [q, k].map(|x| g.rope(x, 8, RopeStyle::Halves, rope).unwrap());
        let args = Attention::full(2, 1, 8, 1.0);
        let attended = g.attend(q, k, v, args).unwrap();
        let sum = g.add(x, attended).unwrap();
        let router = g.matrix("router", EXPERTS, WIDTH).unwrap();
        let logits = g.linear(sum, router).unwrap();
        let routing =
            Routing { used: 2, gating: Gating::Softmax, groups: None, renormalise: true, scale: 1.0 };
        let route = g.route(logits, None, routing).unwrap();
        let experts = g.experts("experts", EXPERTS, WIDTH, WIDTH).unwrap();
        let parts = g.expert_linear(sum, Some(route), experts).unwrap();
        let mixed = g.mix(parts, route).unwrap();
        let sum = g.add(sum, mixed).unwrap();
        let rows = g.outputs(sum);
        g.linear(rows, out).unwrap(); // [outputs, VOCAB]
        let rng = &mut Random::new(11);
        let mut random = |(name, rows): (&str, usize)| {
            HostTensor::from_f32(name, rows, WIDTH, &rng.normals(rows * WIDTH, 0.7))
        };
        let shapes = [
            ("table", VOCAB),
            ("q", WIDTH),
            ("k", 8),
            ("v", 8),
            ("out", VOCAB),
            ("router", EXPERTS),
            ("experts", EXPERTS * WIDTH),
        ];
        let tensors = shapes.map(&mut random).to_vec();
        (g, tensors)
    })
}

/// The reference as a backend that runs ahead; the device is lost after this many steps. The program of each
/// step is recorded. The last field: whether it adapts all steps.
struct Ahead(Reference, usize, Arc<Mutex<Vec<Program>>>, bool);

impl Ahead {
    fn new(steps: usize) -> Ahead {
        Ahead(Reference::new(), steps, Arc::default(), false)
    }
}

impl Backend for Ahead {
    fn info(&self) -> DeviceInfo {
        self.0.info()
    }

    fn store(&mut self, tensor: &HostTensor, roles: Roles) -> Result<Buffer, BackendError> {
        self.0.store(tensor, roles)
    }

    fn reserve(&mut self, what: &Reserve) -> Result<Buffer, BackendError> {
        self.0.reserve(what)
    }

    fn scratch(&self, graph: &Graph, max_tokens: usize, max_outputs: usize) -> u64 {
        self.0.scratch(graph, max_tokens, max_outputs)
    }

    fn compile(&mut self, graph: &Graph, bindings: &Bindings<'_>) -> Result<Program, BackendError> {
        self.0.compile(graph, bindings)
    }

    fn submit(&mut self, program: Program, step: Step) -> Result<Ticket, BackendError> {
        let left = self.1.checked_sub(1);
        self.1 = left.ok_or_else(|| BackendError::DeviceLost("a step: misaligned address".into()))?;
        self.2.lock().unwrap().push(program);
        self.0.submit(program, step)
    }

    fn collect(&mut self, ticket: Ticket) -> Result<StepOutput, BackendError> {
        self.0.collect(ticket)
    }

    fn adapts_all_steps(&self) -> bool {
        self.3
    }

    fn runs_ahead(&self) -> bool {
        true
    }
}

const CAPACITY: Capacity =
    Capacity { pages: 8, page_len: 4, max_tokens: 8, max_outputs: 8, window: None, state: None };

fn config(capacity: Capacity) -> RunnerConfig {
    RunnerConfig { capacity, kv_cells: KvCells::F16, threads: 2 }
}

fn load(tensors: Vec<HostTensor>, capacity: Capacity) -> Result<GraphRunner, EngineError> {
    GraphRunner::new(Box::new(Reference::new()), &model().0, tensors, config(capacity), |_| ())
}

fn runner(capacity: Capacity) -> GraphRunner {
    with_adapters(load(model().1.clone(), capacity).unwrap())
}

/// Two adapters of attention and of the last matrix.
fn with_adapters(mut runner: GraphRunner) -> GraphRunner {
    let (count, rank, rng) = (2, 3, &mut Random::new(12));
    let mut tensors = vec![];
    let linears = [("q", WIDTH), ("v", 8), ("out", VOCAB)].map(|(weight, rows)| {
        let linear = AdaptedLinear { weight: weight.into(), rank };
        let mut random = |name: String, rows, cols| {
            HostTensor::from_f32(&name, rows, cols, &rng.normals(rows * cols, 0.5))
        };
        tensors.push(random(linear.a(), count * rank, WIDTH));
        tensors.push(random(linear.b(), rows, count * rank));
        linear
    });
    let set = AdapterSet { count, linears: linears.to_vec(), tensors };
    runner.add_adapters(&model().0, &set, AdapterScales::NONE).unwrap();
    runner
}

/// One that does not run ahead, one that does, and one whose experts are on a second backend.
fn runners(capacity: Capacity) -> [GraphRunner; 3] {
    let ahead = Box::new(Ahead::new(usize::MAX));
    let (graph, tensors) = model();
    let host = HostExperts::new(Box::new(Reference::new()), Box::new(Reference::new()), graph, 1).unwrap();
    let on = |backend: Box<dyn Backend>| {
        with_adapters(GraphRunner::new(backend, graph, tensors.clone(), config(capacity), |_| ()).unwrap())
    };
    [runner(capacity), on(ahead), on(Box::new(host))]
}

fn scenario() -> impl Strategy<Value = Scenario> {
    let prompt = prop::collection::vec(0..VOCAB as u32, 1..16);
    let cancelled = prop::option::weighted(0.2, 0..20usize);
    let adapters = prop::sample::select(vec![&[][..], &[], &[1.0], &[0.0, 1.0], &[0.5, -1.0]]);
    (prompt, 1..12usize, any::<bool>(), any::<u64>(), 0..8usize, (cancelled, adapters)).prop_map(
        |(prompt, max_tokens, hot, seed, arrives, (cancelled, adapters))| {
            let temperature = if hot { 1.0 } else { 0.0 };
            let sampling = Sampling { temperature, seed, ..Sampling::default() };
            let adapters = AdapterScales::new(adapters);
            let request = Request { sampling, adapters, ..Request::new(prompt, max_tokens) };
            Scenario { request, stride: None, arrives, cancelled }
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]

    #[test]
    fn batching_never_changes_the_text_of_a_graph(
        scenarios in prop::collection::vec(scenario(), 1..5),
        (max_seqs, chunk, page_len, spare) in (1..4usize, 0..12usize, 1..5usize, 0..4usize),
    ) {
        let max_tokens = max_seqs + chunk;
        let pages = 27usize.div_ceil(page_len) + spare;
        let limits = Limits { max_seqs, max_context: 28, max_waiting: 9, step_millis: 0 };
        let capacity = Capacity { pages, page_len, max_tokens, max_outputs: max_tokens, window: None, state: None };
        for mut both in runners(capacity) {
            let (outcomes, _) =
                run((limits, capacity), &mut both, &scenarios, &[max_tokens, 3]).map_err(TestCaseError::fail)?;
            for (scenario, together) in scenarios.iter().zip(&outcomes) {
                let mut roomy = runner(Capacity { pages: 28, page_len, max_tokens: 28, max_outputs: 28, window: None, state: None });
                let alone = alone(&mut roomy, scenario).map_err(TestCaseError::fail)?;
                compare(&alone, together, scenario).map_err(TestCaseError::fail)?;
            }
        }
    }
}

#[test]
fn logits_are_the_same_in_chunks_and_lead_to_the_greedy_text() {
    let sized = |max_tokens| runner(Capacity { max_tokens, max_outputs: max_tokens, ..CAPACITY });
    let request = Request::new(vec![5, 17, 3, 3, 29], 20);
    let outcome = alone(&mut sized(32), &Scenario::new(request.clone())).unwrap();
    let tokens = [request.prompt, outcome.text].concat();
    let all = |max_tokens| {
        let mut rows = vec![];
        let each = |position: usize, row: &[f32]| {
            assert_eq!(position, rows.len());
            rows.push(row.to_vec());
        };
        sized(max_tokens).logits(&tokens, each).unwrap();
        rows
    };
    let rows = all(3);
    assert_eq!(rows, all(32));
    for position in 4..tokens.len() - 1 {
        let best = (0..VOCAB).max_by(|&a, &b| rows[position][a].total_cmp(&rows[position][b]));
        assert_eq!(best, Some(tokens[position + 1] as usize));
    }
    let message = sized(8).logits(&[0; 33], |_, _| ()).unwrap_err().to_string();
    assert_eq!(message, "the request needs 9 KV pages of 4 tokens, the engine has 8");
}

#[test]
fn a_vector_is_the_hidden_state_pooled_however_it_is_chunked() {
    let prompt = vec![5, 17, 3, 3, 29, 8, 11];
    let pairs = config(Capacity { page_len: 2, ..CAPACITY });
    let (graph, tensors) = model();
    let hidden = graph.hidden().unwrap();
    let mut whole =
        GraphRunner::new(Box::new(Reference::new()), &hidden, tensors.clone(), pairs, |_| ()).unwrap();
    let mut rows: Vec<Vec<f32>> = vec![];
    whole.logits(&prompt, |_, row| rows.push(row.to_vec())).unwrap();
    let mean: Vec<f32> =
        (0..WIDTH).map(|i| rows.iter().map(|row| row[i]).sum::<f32>() / rows.len() as f32).collect();
    for (pooling, want) in [(Pooling::Mean, &mean), (Pooling::Last, &rows[6])] {
        for budget in [3, 16] {
            let limits = Limits { max_seqs: 3, max_context: 16, max_waiting: 0, step_millis: 0 };
            let capacity = Capacity {
                pages: 16,
                page_len: 2,
                max_tokens: 16,
                max_outputs: 16,
                window: None,
                state: None,
            };
            // a text in the same batch, and the same prompt before it: neither changes the embedding
            let scenarios = [
                Scenario::new(Request::new(prompt.clone(), 4)),
                Scenario { arrives: 6, ..Scenario::new(Request::embed(prompt.clone(), pooling)) },
            ];
            for mut runner in runners(capacity) {
                let (outcomes, _) = run((limits, capacity), &mut runner, &scenarios, &[budget]).unwrap();
                assert_eq!(outcomes[1].vector.len(), WIDTH);
                for (got, want) in outcomes[1].vector.iter().zip(want) {
                    assert!((got - want).abs() < 1e-5, "{pooling:?}: {got}, want {want}");
                }
            }
        }
    }
}

#[test]
fn weights_that_do_not_match_the_graph_are_refused_by_name() {
    let message = |change: fn(&mut Vec<HostTensor>)| {
        let mut tensors = model().1.clone();
        change(&mut tensors);
        load(tensors, CAPACITY).err().map(|e| e.to_string()).unwrap_or_default()
    };
    assert_eq!(message(|t| t.swap(1, 2)), "q: want this tensor next, got k");
    assert_eq!(message(|t| drop(t.pop())), "experts: missing tensor");
    assert_eq!(message(|t| t.push(t[0].clone())), "table: the graph has no such weight");
    let tall = |t: &mut Vec<HostTensor>| t[3] = HostTensor::from_f32("v", 9, WIDTH, &[0.0; 9 * WIDTH]);
    assert_eq!(message(tall), "v: want [8, 16], file has [9, 16]");
    assert_eq!(message(|_| ()), "");
}

#[test]
fn progress_counts_the_stored_bytes() {
    let mut stored = vec![];
    let (graph, tensors) = model();
    let progress = |bytes| stored.push(bytes);
    GraphRunner::new(Box::new(Reference::new()), graph, tensors.clone(), config(CAPACITY), progress).unwrap();
    let row = WIDTH as u64 * 4;
    assert_eq!(stored, [40, 56, 64, 72, 112, 117, 197].map(|rows| rows * row));
    // it ends when the progress says so, also after the last tensor
    for most in [1, 3, 7] {
        let (mut count, backend) = (0, Box::new(Reference::new()));
        let ended = GraphRunner::new_while(backend, graph, tensors.clone(), config(CAPACITY), |_| {
            count += 1;
            count < most
        });
        assert_eq!(ended.err().map(|error| error.to_string()).as_deref(), Some("loading was stopped"));
        assert_eq!(count, most);
    }
}

#[test]
fn a_sequence_without_a_finite_logit_fails_alone() {
    let mut tensors = model().1.clone();
    let mut values = tensors[0].to_f32();
    values[5 * WIDTH..6 * WIDTH].fill(f32::NAN); // token 5
    tensors[0] = HostTensor::from_f32("table", VOCAB, WIDTH, &values);
    let limits = Limits { max_seqs: 2, max_context: 16, max_waiting: 0, step_millis: 0 };
    let capacity =
        Capacity { pages: 8, page_len: 4, max_tokens: 16, max_outputs: 16, window: None, state: None };
    let mut runner = load(tensors, capacity).unwrap();
    let mut scheduler = Scheduler::new(limits, capacity).unwrap();
    scheduler.add(1, Request::new(vec![1, 5], 3)).unwrap();
    scheduler.add(2, Request::new(vec![1, 4], 3)).unwrap();
    let batch = scheduler.plan(16);
    let sampled = runner.step(&batch).unwrap();
    let events = scheduler.apply(&batch, &sampled);
    assert_eq!(events[0], (1, Event::Failed(EngineError::NotFinite { position: 1 })));
    assert!(matches!(events[1], (2, Event::Token(_))));
}

#[test]
fn a_batch_larger_than_compiled_for_is_refused() {
    let limits = Limits { max_seqs: 3, max_context: 16, max_waiting: 0, step_millis: 0 };
    let capacity =
        Capacity { pages: 8, page_len: 4, max_tokens: 9, max_outputs: 9, window: None, state: None };
    let mut scheduler = Scheduler::new(limits, capacity).unwrap();
    (0..3).for_each(|id| scheduler.add(id, Request::new(vec![1; 3], 3)).unwrap());
    let batch = scheduler.plan(16);
    let message = |max_tokens, max_outputs| {
        let mut runner = runner(Capacity { max_tokens, max_outputs, ..CAPACITY });
        runner.step(&batch).err().map(|e| e.to_string())
    };
    assert_eq!(message(8, 3), Some("a batch of 9 tokens, compiled for 8".into()));
    assert_eq!(message(9, 2), Some("a batch of 3 samples, compiled for 2".into()));
    assert_eq!(message(9, 3), None);
}

#[test]
fn a_backend_that_loses_its_device_ends_the_engine() {
    let (graph, tensors) = model();
    let limits = Limits { max_seqs: 2, max_context: 16, max_waiting: 0, step_millis: 0 };
    let capacity =
        Capacity { pages: 8, page_len: 4, max_tokens: 4, max_outputs: 4, window: None, state: None };
    let ahead = Box::new(Ahead::new(3));
    let runner = GraphRunner::new(ahead, graph, tensors.clone(), config(capacity), |_| ()).unwrap();
    let engine = Engine::start(Box::new(runner), limits).unwrap();
    let events: Vec<Event> = engine.generate(Request::new(vec![1, 2], 9)).unwrap().collect();
    let lost = EngineError::DeviceLost("a step: misaligned address".into());
    assert_eq!(events.last(), Some(&Event::Failed(lost.clone())));
    assert_eq!(engine.ended(), Some(lost));
}

#[test]
fn an_embedding_has_the_adapters_of_its_request() {
    let vector = |adapters: &[f32], with_text: bool| {
        let adapters = AdapterScales::new(adapters);
        let embed = Request { adapters, ..Request::embed(vec![5, 17, 3, 3], Pooling::Last) };
        let mut scenarios = vec![Scenario::new(embed)];
        let other = Request { adapters: AdapterScales::new(&[1.0]), ..Request::new(vec![5, 17, 3], 3) };
        scenarios.extend(with_text.then(|| Scenario::new(other)));
        let limits = Limits { max_seqs: 3, max_context: 16, max_waiting: 0, step_millis: 0 };
        let [_, mut ahead, _] = runners(CAPACITY);
        let (outcomes, _) = run((limits, CAPACITY), &mut ahead, &scenarios, &[8]).unwrap();
        outcomes[0].vector.clone()
    };
    let (plain, adapted) = (vector(&[], false), vector(&[0.0, 1.0], false));
    assert_ne!(plain, adapted);
    assert_eq!((vector(&[], true), vector(&[0.0, 1.0], true)), (plain, adapted));
}

#[test]
fn steps_of_sequences_without_adapters_run_the_graph_without_them() {
    let programs = |requests: &[&[f32]], adapts_all| {
        let backend = Ahead(Reference::new(), usize::MAX, Arc::default(), adapts_all);
        let programs = backend.2.clone();
        let (graph, tensors) = model();
        let runner = GraphRunner::new(Box::new(backend), graph, tensors.clone(), config(CAPACITY), |_| ());
        let scenario = |(i, scales): (usize, &&[f32])| {
            let adapters = AdapterScales::new(scales);
            Scenario::new(Request { adapters, ..Request::new(vec![5], 2 + 3 * i) })
        };
        let scenarios: Vec<Scenario> = requests.iter().enumerate().map(scenario).collect();
        let limits = Limits { max_seqs: 3, max_context: 16, max_waiting: 3, step_millis: 0 };
        run((limits, CAPACITY), &mut with_adapters(runner.unwrap()), &scenarios, &[8]).unwrap();
        programs.lock().unwrap().clone()
    };
    let (plain, adapted) = (programs(&[&[], &[]], false), programs(&[&[1.0], &[0.0, 1.0]], false));
    assert_ne!(plain[0], adapted[0]);
    assert!(plain.iter().all(|step| *step == plain[0]) && adapted.iter().all(|step| *step == adapted[0]));
    // the sequence with an adapter has two tokens, and the other one at least three steps without it
    let mixed = programs(&[&[1.0], &[]], false);
    let count = |program| mixed.iter().filter(|step| **step == program).count();
    assert_eq!(count(adapted[0]), 2, "{mixed:?}");
    assert!(count(plain[0]) >= 3 && count(plain[0]) + 2 == mixed.len(), "{mixed:?}");
    // unless the bits of the two programs would differ, and must not
    assert!(programs(&[&[1.0], &[]], true).iter().all(|step| *step == adapted[0]));
}

#[test]
fn an_adapter_that_the_model_does_not_have_is_refused() {
    let limits = Limits { max_seqs: 2, max_context: 16, max_waiting: 0, step_millis: 0 };
    let request =
        |scales: &[f32]| Request { adapters: AdapterScales::new(scales), ..Request::new(vec![1], 2) };
    let message = |runner: GraphRunner, scales: &[f32]| {
        let engine = Engine::start(Box::new(runner), limits).unwrap();
        engine.generate(request(scales)).err().map(|e| e.to_string())
    };
    let plain = || load(model().1.clone(), CAPACITY).unwrap();
    assert_eq!(message(runner(CAPACITY), &[0.5, 1.0]), None);
    let third = message(runner(CAPACITY), &[0.0, 0.0, 1.0]);
    assert_eq!(third.as_deref(), Some("adapter 2 does not exist, the model has 2"));
    assert_eq!(message(plain(), &[1.0]).as_deref(), Some("adapter 0 does not exist, the model has 0"));
    assert_eq!(message(plain(), &[0.0]), None, "a scale of 0 is no adapter");
}
