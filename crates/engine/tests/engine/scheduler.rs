//! The order in which a scheduler serves, and what it refuses.

use tern_engine::{Batch, EngineError, Event, Limits, Request, Sampled, Scheduler};

const LIMITS: Limits =
    Limits { max_seqs: 3, max_batch_tokens: 8, max_context: 64, pages: 16, page_len: 4, max_waiting: 2 };

fn scheduler(limits: Limits, prompts: &[usize]) -> Scheduler {
    let mut scheduler = Scheduler::new(limits).unwrap();
    for (id, &len) in (1..).zip(prompts) {
        scheduler.add(id, Request::new(vec![7; len], 20)).unwrap();
    }
    scheduler
}

/// `(id, position, tokens, samples)` of each entry.
fn shape(batch: &Batch) -> Vec<(u64, usize, usize, bool)> {
    batch.entries.iter().map(|e| (e.id, e.position, e.tokens.len(), e.sample.is_some())).collect()
}

fn step(scheduler: &mut Scheduler) -> Vec<(u64, usize, usize, bool)> {
    let batch = scheduler.plan();
    let answers =
        batch.entries.iter().map(|e| e.sample.as_ref().map(|_| Sampled { id: 9, ..Sampled::default() }));
    scheduler.apply(&batch, &answers.collect::<Vec<_>>());
    scheduler.check().unwrap();
    shape(&batch)
}

#[test]
fn prompts_come_in_chunks_in_order_of_arrival_and_decoding_comes_first() {
    let s = &mut scheduler(LIMITS, &[3, 12, 2]);
    assert_eq!(step(s), [(1, 0, 3, true), (2, 0, 5, false)]);
    assert_eq!(step(s), [(1, 3, 1, true), (2, 5, 7, true)]);
    assert_eq!(step(s), [(1, 4, 1, true), (2, 12, 1, true), (3, 0, 2, true)]);
    assert_eq!(step(s), [(1, 5, 1, true), (2, 13, 1, true), (3, 2, 1, true)]);
}

#[test]
fn the_youngest_is_preempted_and_comes_back_before_those_who_wait() {
    let s = &mut scheduler(Limits { pages: 7, ..LIMITS }, &[4, 4, 4, 4]);
    assert_eq!(step(s), [(1, 0, 4, true), (2, 0, 4, true)]);
    assert_eq!(step(s), [(1, 4, 1, true), (2, 4, 1, true), (3, 0, 4, true)]);
    step(s); // 2 + 2 + 2 pages, one left
    assert_eq!((s.stats().running, s.stats().pages_free), (3, 1));
    let before = (0..20).find(|_| {
        step(s);
        s.stats().preemptions > 0
    });
    assert!(before.is_some(), "{:?}", s.stats());
    assert_eq!((s.stats().running, s.stats().waiting), (2, 2));
    s.cancel(1);
    s.cancel(2);
    let resumed = step(s);
    assert_eq!((resumed[0].0, resumed[0].1), (3, 0), "recomputed from its first token");
    assert!(resumed[0].2 > 4, "with what it had generated");
}

#[test]
fn a_full_queue_and_an_id_used_twice_are_refused() {
    let mut s = scheduler(LIMITS, &[1, 1, 1, 1]);
    assert_eq!(s.add(4, Request::new(vec![1], 1)), Err(EngineError::Duplicate(4)));
    s.add(5, Request::new(vec![1], 1)).unwrap();
    let words = "the queue is full: 0 running and 5 waiting, at most 3 and 2";
    assert_eq!(s.add(6, Request::new(vec![1], 1)).unwrap_err().to_string(), words);
    assert!(s.cancel(2) && !s.cancel(2));
    s.add(6, Request::new(vec![1], 1)).unwrap();
}

#[test]
fn a_request_without_a_finite_logit_fails_and_the_others_go_on() {
    let mut s = scheduler(LIMITS, &[2, 2]);
    let batch = s.plan();
    let events = s.apply(&batch, &[None, Some(Sampled { id: 9, ..Sampled::default() })]);
    assert_eq!(events[0], (1, Event::Failed(EngineError::NoLogit)));
    assert!(matches!(events[1], (2, Event::Token(_))));
    assert_eq!(step(&mut s), [(2, 2, 1, true)]);
}

#[test]
fn a_failed_step_ends_its_requests_only() {
    let mut s = scheduler(LIMITS, &[8, 8]);
    let batch = s.plan();
    assert_eq!(shape(&batch), [(1, 0, 8, true)]);
    let error = EngineError::Runner("the device is on fire".into());
    assert_eq!(s.fail(&batch, &error), [(1, Event::Failed(error))]);
    s.check().unwrap();
    assert_eq!(step(&mut s), [(2, 0, 8, true)]);
}

#[test]
fn a_request_cancelled_between_plan_and_apply_says_nothing() {
    let mut s = scheduler(LIMITS, &[2, 2]);
    let batch = s.plan();
    s.cancel(1);
    let sampled = [3, 4].map(|id| Some(Sampled { id, ..Sampled::default() }));
    let events = s.apply(&batch, &sampled);
    assert_eq!(events, [(2, Event::Token(Sampled { id: 4, ..Sampled::default() }))]);
}
