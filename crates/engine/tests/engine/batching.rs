//! Batching never changes the text: whatever else runs, however small the cache and the chunks.

use crate::harness::{Scenario, alone, compare, run};
use proptest::prelude::*;
use tern_engine::{
    AdapterScales, Capacity, Limits, Pooling, Request, Sampling, ScriptedRunner, StateCapacity, WindowPages,
};

const VOCAB: usize = 50;

/// Prompts that often share a prefix.
fn prompt() -> impl Strategy<Value = Vec<u32>> {
    let tail = prop::collection::vec(0..VOCAB as u32, 1..20);
    (0..3u32, 0..30usize, tail).prop_map(|(kind, shared, tail)| {
        let mut prompt: Vec<u32> = (0..shared as u32).map(|i| (i * 7 + kind) % VOCAB as u32).collect();
        prompt.extend(tail);
        prompt
    })
}

fn request() -> impl Strategy<Value = Request> {
    let pooling = prop::option::weighted(0.1, prop::sample::select(vec![Pooling::Mean, Pooling::Last]));
    let ends = prop::collection::vec(0..VOCAB as u32, 0..3);
    let sampling = (any::<bool>(), any::<bool>(), any::<u64>()).prop_map(|(hot, penalties, seed)| Sampling {
        temperature: if hot { 1.0 } else { 0.0 },
        frequency: if penalties { 0.5 } else { 0.0 },
        seed,
        ..Sampling::default()
    });
    let window = prop::option::weighted(0.3, 0..30usize);
    let drafts = prop::sample::select(vec![0, 1, 4, 16]);
    let adapters = prop::sample::select(vec![&[][..], &[], &[], &[1.0], &[0.0, 1.0], &[0.5, 1.0]]);
    (prompt(), 1..40usize, sampling, ends, (-1..2i32, 0..3u64), (pooling, window, adapters, drafts)).prop_map(
        |(prompt, max_tokens, sampling, ends, (priority, client), more)| {
            let (pooling, penalty_window, adapters, drafts) = more;
            Request {
                drafts,
                adapters: AdapterScales::new(adapters),
                sampling,
                end_tokens: ends.into(),
                priority,
                client,
                pooling,
                penalty_window,
                ..Request::new(prompt, max_tokens)
            }
        },
    )
}

fn scenario() -> impl Strategy<Value = Scenario> {
    let cancelled = prop::option::weighted(0.3, 0..60usize);
    let stride = prop::option::weighted(0.2, 1..5u32);
    (request(), stride, 0..30usize, cancelled).prop_map(|(request, stride, arrives, cancelled)| Scenario {
        request,
        stride,
        arrives,
        cancelled,
    })
}

/// Scenarios, and sizes with which each fits alone but often no two at the same time.
fn scenarios_and_sizes() -> impl Strategy<Value = (Vec<Scenario>, Limits, Capacity)> {
    let sizes = (1..6usize, 0..30usize, 1..9usize, 0..20usize, 0..12usize);
    // half of the runs have layers with a window, whose pages are as few as one sequence needs, or some more
    let window = prop::option::of((1..30usize, 0..12usize));
    // and half have recurrent layers, with slots for two sequences at least, or enough for many snapshots
    let slots = prop::option::of(2..24usize);
    (prop::collection::vec(scenario(), 1..10), sizes, window, slots).prop_map(
        |(scenarios, (max_seqs, chunk, page_len, spare, drafts), window, slots)| {
            // more than a vector needs
            let fed = |g: &Scenario| g.request.prompt.len() + g.request.max_tokens - 1;
            let largest = scenarios.iter().map(fed).max().unwrap_or(1);
            let limits =
                Limits { max_seqs, max_context: largest + 1, max_waiting: scenarios.len(), step_millis: 0 };
            let pages = largest.div_ceil(page_len) + spare;
            let capacity = Capacity {
                pages,
                page_len,
                max_tokens: max_seqs + chunk,
                max_outputs: max_seqs + drafts,
                window: window.map(|(tokens, more)| window_pages(tokens, page_len, pages, more)),
                state: slots.map(|slots| StateCapacity { slots, bytes: 1 }),
            };
            (scenarios, limits, capacity)
        },
    )
}

/// Pages for a window of `tokens` tokens: as few as one sequence of up to `pages` pages needs, and some more.
fn window_pages(tokens: usize, page_len: usize, pages: usize, more: usize) -> WindowPages {
    WindowPages { tokens, pages: (WindowPages::in_turn(tokens, page_len, 1) + more).min(pages) }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    #[test]
    fn batching_never_changes_the_text(
        (scenarios, limits, capacity) in scenarios_and_sizes(),
        budgets in prop::collection::vec(1..60usize, 1..5),
        repeats in any::<bool>(),
    ) {
        let scripted = || if repeats { repeating(capacity) } else { ScriptedRunner::new(VOCAB, capacity) };
        for mut runner in [scripted(), scripted().running_ahead()] {
            let (outcomes, _) = run((limits, capacity), &mut runner, &scenarios, &budgets).map_err(TestCaseError::fail)?;
            prop_assert_eq!(outcomes.len(), scenarios.len());
            for (scenario, together) in scenarios.iter().zip(&outcomes) {
                let roomy = Capacity { window: None, state: None, ..capacity };
                let mut roomy = if repeats { repeating(roomy) } else { ScriptedRunner::new(VOCAB, roomy) };
                let alone = alone(&mut roomy, scenario).map_err(TestCaseError::fail)?;
                let ended = together.finish.is_some() || !together.vector.is_empty();
                prop_assert!(scenario.cancelled.is_some() || ended);
                compare(&alone, together, scenario).map_err(TestCaseError::fail)?;
            }
        }
    }
}

/// Every next token is the one some places back, but now and then another: many drafts are right, some are
/// not.
fn repeating(capacity: Capacity) -> ScriptedRunner {
    ScriptedRunner::answering(VOCAB, capacity, |history, sample| {
        let (len, penalised) = (history.len(), sample.seen.counts().len() as u32);
        let drawn = (sample.draw * 4.0) as u32 * u32::from(sample.params.temperature > 0.0);
        let other = history.iter().fold(penalised, |sum, id| sum.wrapping_mul(31).wrapping_add(*id));
        match history.get(len.wrapping_sub(5)) {
            Some(id) if !len.is_multiple_of(13) && drawn < 3 => Some(*id),
            _ => Some((other + drawn) % VOCAB as u32),
        }
    })
}

#[test]
fn repeated_texts_take_fewer_steps_and_do_not_change() {
    let limits = Limits { max_seqs: 3, max_context: 200, max_waiting: 9, step_millis: 0 };
    for (window, state) in [
        (None, None),
        (Some(window_pages(9, 4, 150, 30)), None),
        (None, Some(StateCapacity { slots: 12, bytes: 1 })),
    ] {
        let capacity = Capacity { pages: 150, page_len: 4, max_tokens: 32, max_outputs: 24, window, state };
        let steps = |drafts: usize, ahead: bool| {
            let scenarios: Vec<Scenario> = scenarios(&[20, 31, 7], 120)
                .into_iter()
                .map(|s| Scenario { request: Request { drafts, ..s.request }, ..s })
                .collect();
            let runner = repeating(capacity);
            let mut runner = if ahead { runner.running_ahead() } else { runner };
            let (outcomes, stats) = run((limits, capacity), &mut runner, &scenarios, &[32]).unwrap();
            (outcomes.into_iter().map(|outcome| outcome.text).collect::<Vec<_>>(), stats)
        };
        let (texts, plain) = steps(0, false);
        assert_eq!((plain.drafted_tokens, plain.accepted_tokens), (0, 0));
        for ahead in [false, true] {
            let (drafted, stats) = steps(8, ahead);
            assert_eq!(drafted, texts);
            assert!(
                stats.steps * 3 < plain.steps * 2,
                "{} steps, {} without drafts",
                stats.steps,
                plain.steps
            );
            assert!(stats.accepted_tokens > 150 && stats.drafted_tokens > stats.accepted_tokens, "{stats:?}");
            assert_eq!(stats.tokens_generated, plain.tokens_generated);
        }
    }
}

fn scenarios(prompts: &[usize], max_tokens: usize) -> Vec<Scenario> {
    let prompt =
        |(i, &len): (usize, &usize)| (0..len as u32).map(|t| (t * 7 + i as u32) % VOCAB as u32).collect();
    let prompts = prompts.iter().enumerate().map(prompt);
    prompts.map(|p| Scenario::new(Request::new(p, max_tokens))).collect()
}

#[test]
fn a_cache_too_small_for_all_preempts_and_still_gives_the_same_text() {
    let limits = Limits { max_seqs: 4, max_context: 64, max_waiting: 9, step_millis: 0 };
    let capacity =
        Capacity { pages: 12, page_len: 4, max_tokens: 16, max_outputs: 4, window: None, state: None };
    let scenarios = scenarios(&[8, 8, 8, 8], 30);
    let scripted = || ScriptedRunner::new(VOCAB, capacity);
    for mut runner in [scripted(), scripted().running_ahead()] {
        let (outcomes, stats) = run((limits, capacity), &mut runner, &scenarios, &[16]).unwrap();
        assert!(stats.preemptions > 0, "{stats:?}");
        assert_eq!((stats.tokens_generated, stats.prompt_tokens), (120, 32));
        for (scenario, together) in scenarios.iter().zip(&outcomes) {
            let alone = alone(&mut scripted(), scenario).unwrap();
            compare(&alone, together, scenario).unwrap();
        }
    }
}

#[test]
fn the_text_alone_is_the_script_applied_to_itself() {
    let request = Request::new(vec![3, 1, 4], 20);
    let total = |history: &[u32]| history.iter().sum::<u32>() % VOCAB as u32;
    let mut history = request.prompt.clone();
    for _ in 0..20 {
        history.push(total(&history));
    }
    let capacity =
        Capacity { pages: 6, page_len: 4, max_tokens: 16, max_outputs: 1, window: None, state: None };
    let mut runner = ScriptedRunner::answering(VOCAB, capacity, move |history, _| Some(total(history)));
    assert_eq!(alone(&mut runner, &Scenario::new(request)).unwrap().text, history[3..]);
}

#[test]
fn prefixes_of_other_adapters_are_not_used() {
    let limits = Limits { max_seqs: 1, max_context: 64, max_waiting: 9, step_millis: 0 };
    for state in [None, Some(StateCapacity { slots: 20, bytes: 1 })] {
        let capacity =
            Capacity { pages: 60, page_len: 4, max_tokens: 16, max_outputs: 4, window: None, state };
        let prompt: Vec<u32> = (0..33).map(|t| t * 7 % VOCAB as u32).collect();
        let with = |scales: &[f32]| {
            let adapters = AdapterScales::new(scales);
            Scenario::new(Request { adapters, ..Request::new(prompt.clone(), 3) })
        };
        // each twice: the second one finds the prefix of the first
        let scales: [&[f32]; 4] = [&[], &[1.0], &[0.0, 1.0], &[0.5]];
        let scenarios: Vec<Scenario> =
            scales.iter().flat_map(|scales| [with(scales), with(scales)]).collect();
        let mut runner = ScriptedRunner::new(VOCAB, capacity);
        let (outcomes, stats) = run((limits, capacity), &mut runner, &scenarios, &[16]).unwrap();
        assert_eq!(stats.cached_tokens, 4 * 32, "{stats:?}");
        let texts: std::collections::BTreeSet<_> = outcomes.iter().map(|outcome| &outcome.text).collect();
        assert_eq!(texts.len(), 4, "an adapter changes the text");
    }
}
