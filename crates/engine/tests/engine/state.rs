//! Recurrent layers: states are restored from snapshots, snapshots are where the next prompts need
//! them, and no text changes.

use proptest::prelude::*;
use tern_engine::{
    Capacity, Event, Limits, Request, RequestId, Runner, Scheduler, ScriptedRunner, StateCapacity, Stats,
};

use crate::harness::{Scenario, alone, compare, run};

const VOCAB: usize = 50;
const PAGE: usize = 8;

fn limits(max_seqs: usize) -> Limits {
    Limits { max_seqs, max_context: 4000, max_waiting: 99, step_millis: 0 }
}

fn capacity(slots: usize) -> Capacity {
    let state = Some(StateCapacity { slots, bytes: 1 });
    Capacity { pages: 600, page_len: PAGE, max_tokens: 64, max_outputs: 4, window: None, state }
}

/// A scheduler and a runner that serve one request after the other.
struct Served {
    scheduler: Scheduler,
    runner: ScriptedRunner,
    next: RequestId,
}

/// The text of a request, and how many tokens of its prompt were cached.
struct Reply {
    text: Vec<u32>,
    cached: usize,
}

impl Served {
    fn new(capacity: Capacity, ahead: bool) -> Served {
        let runner = ScriptedRunner::new(VOCAB, capacity);
        let runner = if ahead { runner.running_ahead() } else { runner };
        Served { scheduler: Scheduler::new(limits(4), capacity).unwrap(), runner, next: 0 }
    }

    fn stats(&self) -> Stats {
        self.scheduler.stats()
    }

    fn answer(&mut self, request: Request) -> Reply {
        let id = self.next;
        self.next += 1;
        let mut reply = Reply { text: vec![], cached: usize::MAX };
        self.scheduler.add(id, request).unwrap();
        let mut in_flight = vec![];
        while !self.scheduler.is_idle() || !in_flight.is_empty() {
            let batch = self.scheduler.plan(usize::MAX);
            reply.cached = batch.started.first().map_or(reply.cached, |(_, cached)| *cached);
            let planned = !batch.entries.is_empty();
            if planned {
                self.runner.submit(&batch).unwrap();
                in_flight.push(batch);
            }
            if in_flight.is_empty() || planned && self.runner.runs_ahead() && in_flight.len() == 1 {
                continue;
            }
            let (batch, answers) = (in_flight.remove(0), self.runner.collect().unwrap());
            for (_, event) in self.scheduler.apply(&batch, &answers) {
                match event {
                    Event::Token(token) => reply.text.push(token.id),
                    Event::Failed(why) => panic!("{why}"),
                    _ => {}
                }
            }
            self.scheduler.check().unwrap();
        }
        reply
    }
}

fn numbers(count: usize, seed: usize) -> Vec<u32> {
    (0..count).map(|i| ((i * 7 + i / 11 + seed * 13) % VOCAB) as u32).collect()
}

/// Tokens after the prefix that was found.
fn computed(prompt: &[u32], reply: &Reply) -> usize {
    prompt.len() - reply.cached
}

#[test]
fn every_turn_of_a_conversation_computes_its_new_tokens_only() {
    for ahead in [false, true] {
        let mut served = Served::new(capacity(14), ahead);
        let mut history = numbers(400, 1);
        for turn in 0..10 {
            let reply = served.answer(Request::new(history.clone(), 20 + turn));
            if turn > 0 {
                // the question, and the last token of the answer, which was not computed
                assert_eq!(computed(&history, &reply), 12 + 1, "turn {turn}, ahead: {ahead}");
            }
            history.extend(reply.text);
            history.extend(numbers(12, turn));
        }
        let stats = served.stats();
        assert_eq!((stats.snapshot_hits, stats.state_slots_free), (9, 14));
        assert!(stats.state_snapshots <= 14 && stats.snapshots_taken > 20, "{stats:?}");
    }
}

#[test]
fn the_end_of_an_answer_is_continued_once_and_then_found_at_the_last_page() {
    for ahead in [false, true] {
        let mut served = Served::new(capacity(14), ahead);
        let prompt = numbers(102, 1);
        let request = Request { end_tokens: [0, 1, 2, 3, 4].into(), ..Request::new(prompt.clone(), 90) };
        let text = [prompt, served.answer(request).text].concat();
        let border = text.len() / PAGE * PAGE;
        assert!(border < text.len(), "{} tokens", text.len());
        let cached = [2, 3, 4].map(|i| {
            let next = [text.clone(), numbers(20, i)].concat();
            served.answer(Request::new(next, 1)).cached
        });
        // the end token was sampled, not fed; all tokens before it are computed
        assert_eq!(cached, [text.len(), border, border], "ahead: {ahead}");
    }
}

#[test]
fn a_turn_without_the_reasoning_before_it_continues_at_the_end_of_the_prompt() {
    for prompt_len in 400..410 {
        let mut served = Served::new(capacity(14), true);
        let prompt = numbers(prompt_len, 1);
        served.answer(Request::new(prompt.clone(), 30));
        // the template ends the prompt by asking for an answer, and renders the answer in another way
        let next = [&prompt[..prompt_len - 10], &numbers(40, 7)].concat();
        let reply = served.answer(Request::new(next, 3));
        assert!(reply.cached > prompt_len - 16 - PAGE, "{prompt_len}: {}", reply.cached);
    }
}

#[test]
fn an_edited_last_message_continues_before_it() {
    // the message before was answered here
    let mut served = Served::new(capacity(14), true);
    let mut history = numbers(200, 1);
    let first = served.answer(Request::new(history.clone(), 20));
    history.extend(first.text);
    let said = [history.clone(), numbers(50, 2)].concat();
    served.answer(Request::new(said, 20));
    let edited = [history.clone(), numbers(60, 3)].concat();
    let reply = served.answer(Request::new(edited.clone(), 20));
    assert!(computed(&edited, &reply) < 61 + PAGE, "{}", reply.cached);
    // the whole conversation came from elsewhere: steps of prefill end before it, not
    // much further than it is long
    for len in [10, 50, 130, 200, 300] {
        let mut served = Served::new(capacity(24), true);
        let said = |last: usize| [numbers(500, 1), numbers(len, last)].concat();
        served.answer(Request::new(said(2), 20));
        let reply = served.answer(Request::new(said(3), 20));
        assert!(reply.cached + len + 64 >= 500, "{len}: {}", reply.cached);
    }
}

#[test]
fn a_shared_beginning_is_found_by_the_third_prompt() {
    let mut served = Served::new(capacity(14), false);
    let with = |i: usize| Request::new([numbers(300, 1), numbers(90, i + 2)].concat(), 5);
    let cached: Vec<usize> = (0..4).map(|i| served.answer(with(i)).cached).collect();
    // the second one finds a spaced snapshot and takes one where it leaves the pages of the first
    assert_eq!(cached, [0, 256, 296, 296]);
}

#[test]
fn snapshots_are_bounded_and_the_least_recently_used_is_dropped() {
    let mut served = Served::new(capacity(10), false);
    let again = numbers(100, 1);
    for i in 0..30 {
        served.answer(Request::new(numbers(100, i + 2), 40));
        let reply = served.answer(Request::new(again.clone(), 2));
        assert_eq!(reply.cached, [0, 80, 96][i.min(2)], "{i}"); // the second time leaves one at the last page
        assert!(served.stats().state_snapshots <= 10);
    }
    let reply = served.answer(Request::new(numbers(100, 2), 1));
    assert_eq!(reply.cached, 0, "its pages are cached, its snapshots were dropped long ago");
    assert!(served.stats().pages_cached > 100);
}

#[test]
fn a_long_answer_leaves_few_snapshots() {
    let mut served = Served::new(capacity(40), true);
    served.answer(Request::new(numbers(9, 1), 1200));
    // after 2, 4, 8, ... 128 pages, and the last one, which is the end
    assert_eq!((served.stats().state_snapshots, served.stats().snapshots_taken), (8, 150));
    let mut served = Served::new(capacity(40), false);
    let prompt = numbers(2000, 1);
    served.answer(Request::new(prompt.clone(), 1));
    assert!(served.stats().state_snapshots <= 12, "{:?}", served.stats());
    assert_eq!(served.answer(Request::new(prompt, 1)).cached, 1984);
}

#[test]
fn few_slots_limit_the_sequences_that_run_and_nothing_is_lost() {
    let scenarios: Vec<Scenario> = (1..7).map(|i| Scenario::new(Request::new(numbers(40, i), 30))).collect();
    for slots in [2, 3, 5, 8] {
        let capacity = capacity(slots);
        for mut runner in
            [ScriptedRunner::new(VOCAB, capacity), ScriptedRunner::new(VOCAB, capacity).running_ahead()]
        {
            let (outcomes, _) = run((limits(4), capacity), &mut runner, &scenarios, &[64]).unwrap();
            for (scenario, together) in scenarios.iter().zip(&outcomes) {
                let mut roomy = ScriptedRunner::new(VOCAB, Capacity { state: None, ..capacity });
                compare(&alone(&mut roomy, scenario).unwrap(), together, scenario).unwrap();
            }
        }
    }
}

#[test]
fn a_cancelled_request_leaves_the_snapshots_of_what_is_known() {
    let mut served = Served::new(capacity(8), true);
    let prompt = numbers(100, 1);
    served.scheduler.add(99, Request::new(prompt.clone(), 50)).unwrap();
    let (first, second) = (served.scheduler.plan(64), served.scheduler.plan(64));
    served.runner.submit(&first).unwrap();
    served.runner.submit(&second).unwrap();
    let answers = served.runner.collect().unwrap();
    served.scheduler.apply(&first, &answers); // 64 tokens
    assert!(served.scheduler.cancel(99));
    let answers = served.runner.collect().unwrap();
    assert_eq!(served.scheduler.apply(&second, &answers), []);
    served.scheduler.check().unwrap();
    let stats = served.stats();
    assert_eq!((stats.state_slots_free, stats.state_snapshots, stats.pages_free), (8, 1, 600));
    assert_eq!(served.answer(Request::new(prompt, 5)).cached, 64);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    /// Conversations whose turns continue, are edited or lose their last answer, at the same
    /// time and with few slots.
    #[test]
    fn snapshots_never_change_a_text(
        turns in prop::collection::vec((0..3usize, 1..40usize, 0..30usize, 0..25usize, 0..12usize), 1..24),
        (slots, ahead, page_len, chunk) in (2..16usize, any::<bool>(), 1..9usize, 0..40usize),
    ) {
        let state = Some(StateCapacity { slots, bytes: 1 });
        let capacity = Capacity { pages: 400, page_len, max_tokens: 4 + chunk, max_outputs: 4, window: None, state };
        let mut histories = [numbers(30, 1), numbers(45, 1), numbers(20, 2)];
        let mut scenarios = vec![];
        for (which, new, omitted, max_tokens, arrives) in turns {
            let history = &mut histories[which];
            history.truncate(history.len() - omitted.min(history.len() - 1));
            history.extend(numbers(new, history.len()));
            let scenario = Scenario::new(Request::new(history.clone(), max_tokens + 1));
            let mut roomy = ScriptedRunner::new(VOCAB, Capacity { state: None, max_tokens: 999, ..capacity });
            history.extend(alone(&mut roomy, &scenario).map_err(TestCaseError::fail)?.text);
            scenarios.push(Scenario { arrives: 4 * scenarios.len() + arrives, ..scenario });
            // the longest request, of pages of one token, fits into the engine: 300 + 39 + 25
            if history.len() > 300 {
                history.truncate(20);
            }
        }
        let runner = ScriptedRunner::new(VOCAB, capacity);
        let mut runner = if ahead { runner.running_ahead() } else { runner };
        let (outcomes, _) = run((limits(4), capacity), &mut runner, &scenarios, &[44, 7])
            .map_err(TestCaseError::fail)?;
        for (scenario, together) in scenarios.iter().zip(&outcomes) {
            let mut roomy = ScriptedRunner::new(VOCAB, Capacity { state: None, max_tokens: 999, ..capacity });
            let alone = alone(&mut roomy, scenario).map_err(TestCaseError::fail)?;
            compare(&alone, together, scenario).map_err(TestCaseError::fail)?;
        }
    }
}
