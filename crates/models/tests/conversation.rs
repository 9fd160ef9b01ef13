//! A conversation with hybrid models on the CPU: every turn continues from a snapshot and says
//! the same as without one.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use tern_cpu::Cpu;
use tern_engine::{Capacity, Engine, Event, GraphRunner, Handle, Limits, Request, RunnerConfig};
use tern_graph::KvCells;
use tern_models::{SHAPES, Shape, Synth};
use tern_quant::Q8_0;

const TURNS: usize = 10;
const ANSWER: usize = 7;
const QUESTION: usize = 9;
/// Tokens of the conversation before the first turn.
const HISTORY: usize = 150;
const CONTEXT: usize = 512;

fn engine(synth: &mut Synth) -> Handle {
    let tensors = synth.tensors().unwrap();
    let graph = &synth.model.graph;
    let (pages, page_len) = (CONTEXT / 32, 32);
    let sizes = Capacity { pages, page_len, max_tokens: 64, max_outputs: 1, window: None, state: None };
    let config = RunnerConfig { capacity: sizes.with_slots(graph, 12), kv_cells: KvCells::F16, threads: 2 };
    let cpu = Box::new(Cpu::new(2).unwrap());
    let runner = GraphRunner::new(cpu, graph, tensors, config, |_| ()).unwrap();
    let limits = Limits { max_seqs: 1, max_context: CONTEXT, max_waiting: 1, step_millis: 0 };
    Engine::start(Box::new(runner), limits).unwrap()
}

/// The answer to a prompt, and how many of its tokens were cached.
fn answer(engine: &Handle, prompt: &[u32]) -> (Vec<u32>, usize) {
    let (mut text, mut cached) = (vec![], 0);
    for event in engine.generate(Request::new(prompt.to_vec(), ANSWER)).unwrap() {
        match event {
            Event::Started { cached: tokens } => cached = tokens,
            Event::Token(token) => text.push(token.id),
            Event::Failed(why) => panic!("{why}"),
            _ => {}
        }
    }
    (text, cached)
}

fn tokens(count: usize, seed: usize) -> impl Iterator<Item = u32> {
    (0..count).map(move |i| ((i * 31 + seed * 57) % 300) as u32)
}

fn check(shape: &Shape) {
    let synth = || Synth::new(shape, &Q8_0, Some(CONTEXT)).unwrap();
    let remembering = engine(&mut synth());
    let mut history: Vec<u32> = tokens(HISTORY, 1).collect();
    for turn in 0..TURNS {
        let (text, cached) = answer(&remembering, &history);
        // the last token of an answer is computed in the next turn
        let new = if turn == 0 { HISTORY } else { QUESTION + 1 };
        assert_eq!(history.len() - cached, new, "{}: turn {turn}", shape.name);
        if turn % 3 == 2 {
            assert_eq!(
                answer(&engine(&mut synth()), &history),
                (text.clone(), 0),
                "{}: turn {turn}",
                shape.name
            );
        }
        history.extend(text);
        history.extend(tokens(QUESTION, turn));
    }
    assert_eq!(remembering.stats().snapshot_hits, TURNS as u64 - 1);
}

#[test]
fn each_turn_computes_its_new_tokens_only() {
    let recurrent = |shape: &&Shape| {
        let model = || Synth::new(shape, &Q8_0, Some(CONTEXT)).unwrap().model;
        let generates = |model: tern_models::Model| model.vectors.is_none() && !model.graph.states.is_empty();
        shape.name.starts_with("tiny-") && generates(model())
    };
    let shapes: Vec<_> = SHAPES.iter().filter(recurrent).collect();
    assert_eq!(shapes.len(), 12);
    shapes.into_iter().for_each(check);
}
