//! Layers with a window give their pages back: memory stays flat, prefixes are found
//! again, and no text changes.

use std::sync::OnceLock;

use proptest::prelude::*;
use tern_engine::{
    Capacity, Event, GraphRunner, Limits, Request, Runner, RunnerConfig, Scheduler, ScriptedRunner,
    WindowPages,
};
use tern_graph::{Attention, Graph, HostTensor, KvCells, Random, Reference, RopeStyle, RopeTable};

use crate::harness::{Scenario, alone, compare, run};

const VOCAB: usize = 40;
const WIDTH: usize = 16;
const WINDOW: usize = 5;

/// Embed, a layer that sees all keys and two that see a window, and an output matrix.
fn model() -> &'static (Graph, Vec<HostTensor>) {
    static MODEL: OnceLock<(Graph, Vec<HostTensor>)> = OnceLock::new();
    MODEL.get_or_init(|| {
        let (mut g, mut tensors, rng) = (Graph::new(), vec![], &mut Random::new(12));
        let mut matrix = |g: &mut Graph, name: String, rows: usize| {
            tensors.push(HostTensor::from_f32(&name, rows, WIDTH, &rng.normals(rows * WIDTH, 0.7)));
            g.matrix(name, rows, WIDTH).unwrap()
        };
        let freqs = (0..4).map(|i| 0.5f32.powi(i)).collect();
        let rope = g.rope_table(RopeTable::new(freqs, 1.0));
        let table = matrix(&mut g, "table".into(), VOCAB);
        let mut x = g.embed(table, 1.0); // [tokens, WIDTH]
        for (layer, window) in [Some(WINDOW - 2), None, Some(WINDOW)].into_iter().enumerate() {
            let [q, k, v] = [("q", WIDTH), ("k", 8), ("v", 8)].map(|(name, rows)| {
                let w = matrix(&mut g, format!("{name}{layer}"), rows);
                g.linear(x, w).unwrap()
            });
            let [q, k] = [q, k].map(|x| g.rope(x, 8, RopeStyle::Halves, rope).unwrap());
            let attended = g.attend(q, k, v, Attention { window, ..Attention::full(2, 1, 8, 1.0) }).unwrap();
            x = g.add(x, attended).unwrap();
        }
        let rows = g.outputs(x);
        let out = matrix(&mut g, "out".into(), VOCAB);
        g.linear(rows, out).unwrap(); // [outputs, VOCAB]
        (g, tensors)
    })
}

fn runner(capacity: Capacity) -> GraphRunner {
    let (graph, tensors) = model();
    let config = RunnerConfig { capacity, kv_cells: KvCells::F16, threads: 2 };
    GraphRunner::new(Box::new(Reference::new()), graph, tensors.clone(), config, |_| ()).unwrap()
}

fn limits(max_seqs: usize) -> Limits {
    Limits { max_seqs, max_context: 400, max_waiting: 9, step_millis: 0 }
}

/// Runs one request after the other; returns the cached tokens of each, and the most
/// window pages held at any time.
fn one_by_one(capacity: Capacity, prompts: &[Vec<u32>], max_tokens: usize) -> (Vec<usize>, usize) {
    let mut scheduler = Scheduler::new(limits(1), capacity).unwrap();
    let mut runner = ScriptedRunner::new(VOCAB, capacity);
    let (mut cached, mut most) = (vec![], 0);
    for (id, prompt) in (0..).zip(prompts) {
        scheduler.add(id, Request::new(prompt.clone(), max_tokens)).unwrap();
        while !scheduler.is_idle() {
            let batch = scheduler.plan(capacity.max_tokens);
            cached.extend(batch.started.iter().map(|started| started.1));
            let stats = scheduler.stats();
            most = most.max(stats.window_pages_total - stats.window_pages_free);
            let answers = runner.step(&batch).unwrap();
            let events = scheduler.apply(&batch, &answers);
            assert!(!events.iter().any(|(_, event)| matches!(event, Event::Failed(_))), "{events:?}");
            scheduler.check().unwrap();
        }
        let stats = scheduler.stats();
        assert_eq!(
            (stats.pages_free, stats.window_pages_free),
            (stats.pages_total, stats.window_pages_total)
        );
    }
    (cached, most)
}

fn numbers(count: u32, by: u32) -> Vec<u32> {
    (0..count).map(|i| (i * by + i / 7) % VOCAB as u32).collect()
}

#[test]
fn a_long_sequence_holds_the_pages_of_its_window_only() {
    let window = Some(WindowPages { tokens: 10, pages: 90 });
    let capacity = Capacity { pages: 100, page_len: 4, max_tokens: 8, max_outputs: 1, window, state: None };
    for (prompt, max_tokens) in [(1, 350), (350, 1), (150, 200)] {
        let (_, most) = one_by_one(capacity, &[numbers(prompt, 7)], max_tokens);
        // 9 tokens before a step of 8, from the middle of a page on
        assert!((4..=6).contains(&most), "{prompt} and {max_tokens} tokens: {most} pages");
    }
}

#[test]
fn the_next_turn_finds_the_turns_before_it() {
    let window = Some(WindowPages { tokens: 10, pages: 12 });
    let capacity = Capacity { pages: 100, page_len: 4, max_tokens: 16, max_outputs: 1, window, state: None };
    let long = numbers(120, 3);
    let turns = [long[..60].to_vec(), long[..90].to_vec(), long.clone()];
    assert_eq!(one_by_one(capacity, &turns, 1).0, [0, 60, 88]);
    // an older turn: its window was used for others, the full pages were not
    let back = [long.clone(), long[..30].to_vec(), long];
    assert_eq!(one_by_one(capacity, &back, 1).0, [0, 0, 116]);
}

#[test]
fn few_window_pages_preempt_and_still_give_the_same_text() {
    // the window of one sequence has up to four pages
    let window = Some(WindowPages { tokens: 10, pages: 9 });
    let capacity = Capacity { pages: 60, page_len: 4, max_tokens: 16, max_outputs: 4, window, state: None };
    let scenarios: Vec<Scenario> = (1..5).map(|i| Scenario::new(Request::new(numbers(8, i), 40))).collect();
    let mut preemptions = 0;
    for mut scripted in
        [ScriptedRunner::new(VOCAB, capacity), ScriptedRunner::new(VOCAB, capacity).running_ahead()]
    {
        let (outcomes, stats) = run((limits(4), capacity), &mut scripted, &scenarios, &[16]).unwrap();
        preemptions += stats.preemptions;
        for (scenario, together) in scenarios.iter().zip(&outcomes) {
            let mut roomy = ScriptedRunner::new(VOCAB, Capacity { window: None, ..capacity });
            compare(&alone(&mut roomy, scenario).unwrap(), together, scenario).unwrap();
        }
    }
    assert!(preemptions > 0);
}

#[test]
fn sizes_of_windows_follow_the_sequences_and_never_exceed_the_other_pages() {
    let (graph, _) = model();
    let sized = |pages, max_outputs| {
        let sizes = Capacity { pages, page_len: 4, max_tokens: 16, max_outputs, window: None, state: None };
        sizes.with_window(graph).window
    };
    // two pages per window, four windows per sequence, and two steps of four pages
    assert_eq!(sized(1000, 1), Some(WindowPages { tokens: WINDOW, pages: 16 }));
    assert_eq!(sized(1000, 8), Some(WindowPages { tokens: WINDOW, pages: 72 }));
    assert_eq!(sized(10, 8), Some(WindowPages { tokens: WINDOW, pages: 10 }));
    let capacity =
        Capacity { pages: 9, page_len: 4, max_tokens: 1, max_outputs: 1, window: None, state: None };
    let small = |tokens, pages| Capacity { window: Some(WindowPages { tokens, pages }), ..capacity }.check();
    let message = small(10, 3).unwrap_err().to_string();
    assert_eq!(message, "window pages: want 4 or more for a window of 10, got 3");
    assert_eq!(small(0, 3).unwrap_err().to_string(), "window: want 1 or more, got 0");
    small(100, 9).unwrap(); // a sequence has no more pages than that
}

#[test]
fn logits_are_the_same_with_pages_used_in_turn() {
    let tokens = numbers(60, 11);
    let logits = |window_pages: Option<usize>, chunk: usize| {
        let window = window_pages.map(|pages| WindowPages { tokens: WINDOW, pages });
        let capacity =
            Capacity { pages: 15, page_len: 4, max_tokens: chunk, max_outputs: chunk, window, state: None };
        let mut rows = vec![];
        runner(capacity).logits(&tokens, |_, row| rows.push(row.to_vec())).unwrap();
        rows
    };
    let want = logits(None, 60);
    for (pages, chunk) in [(2, 60), (3, 7), (4, 60), (15, 60)] {
        assert!(logits(Some(pages), chunk) == want, "{pages} pages, steps of {chunk}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    #[test]
    fn windows_never_change_the_text_of_a_graph(
        prompts in prop::collection::vec((1..24usize, 0..3u32, 0..8usize), 1..5),
        (max_seqs, chunk, page_len, more) in (1..4usize, 0..12usize, 1..5usize, 0..10usize),
    ) {
        let scenario = |&(len, kind, arrives): &(usize, u32, usize)| Scenario {
            arrives,
            ..Scenario::new(Request::new(numbers(len as u32, kind), 12))
        };
        let scenarios: Vec<Scenario> = prompts.iter().map(scenario).collect();
        let (pages, max_tokens) = (35usize.div_ceil(page_len) + 4, max_seqs + chunk);
        let few = (WindowPages::in_turn(WINDOW, page_len, 1) + more).min(pages);
        let window = Some(WindowPages { tokens: WINDOW, pages: few });
        let capacity = Capacity { pages, page_len, max_tokens, max_outputs: max_tokens, window, state: None };
        let (outcomes, _) =
            run((limits(max_seqs), capacity), &mut runner(capacity), &scenarios, &[max_tokens, 3])
                .map_err(TestCaseError::fail)?;
        for (scenario, together) in scenarios.iter().zip(&outcomes) {
            let mut roomy =
                runner(Capacity { pages: 36, page_len, max_tokens: 36, max_outputs: 36, window: None, state: None });
            let alone = alone(&mut roomy, scenario).map_err(TestCaseError::fail)?;
            compare(&alone, together, scenario).map_err(TestCaseError::fail)?;
        }
    }
}
