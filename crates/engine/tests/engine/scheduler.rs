//! The order in which sequences are scheduled, and what is refused.

use tern_engine::{
    Answer, Batch, Capacity, EngineError, Event, Finish, Limits, Request, RequestId, Sampled, Sampling,
    Scheduler, Want,
};

const LIMITS: Limits = Limits { max_seqs: 3, max_context: 64, max_waiting: 2, step_millis: 0 };
const CAPACITY: Capacity =
    Capacity { pages: 16, page_len: 4, max_tokens: 8, max_outputs: 4, window: None, state: None };

fn scheduler(limits: Limits, prompts: &[usize]) -> Scheduler {
    with_capacity(limits, CAPACITY, prompts)
}

fn with_capacity(limits: Limits, capacity: Capacity, prompts: &[usize]) -> Scheduler {
    let mut scheduler = Scheduler::new(limits, capacity).unwrap();
    for (id, &len) in (1u64..).zip(prompts) {
        scheduler.add(id, Request::new(vec![id as u32; len], 20)).unwrap();
    }
    scheduler
}

/// `(id, position, tokens, samples)` of each entry.
fn shape(batch: &Batch) -> Vec<(u64, usize, usize, bool)> {
    batch.entries.iter().map(|e| (e.id, e.slice.position, e.tokens.len(), !e.samples().is_empty())).collect()
}

fn step(scheduler: &mut Scheduler) -> Vec<(u64, usize, usize, bool)> {
    let batch = scheduler.plan(usize::MAX);
    apply(scheduler, &batch);
    shape(&batch)
}

/// Every sequence samples token 9.
fn apply(scheduler: &mut Scheduler, batch: &Batch) -> Vec<(RequestId, Event)> {
    let answers = batch.entries.iter().map(|e| match e.want {
        Want::Tokens(..) => token(9),
        _ => Answer::Nothing,
    });
    let events = scheduler.apply(batch, &answers.collect::<Vec<_>>());
    scheduler.check().unwrap();
    events
}

fn token(id: u32) -> Answer {
    Answer::Tokens(vec![Sampled { id, ..Sampled::default() }])
}

#[test]
fn decoding_comes_first_then_half_for_the_first_prompt_and_the_rest_for_the_shortest() {
    let s = &mut scheduler(LIMITS, &[3, 20, 2]);
    assert_eq!(step(s), [(1, 0, 3, true), (2, 0, 3, false), (3, 0, 2, true)]);
    assert_eq!(step(s), [(1, 3, 1, true), (2, 3, 6, false), (3, 2, 1, true)]);
    s.cancel(1);
    s.add(4, Request::new(vec![4; 6], 20)).unwrap();
    assert_eq!(step(s), [(2, 9, 4, false), (3, 3, 1, true), (4, 0, 3, false)]);
    assert_eq!(step(s), [(2, 13, 4, false), (3, 4, 1, true), (4, 3, 3, true)]);
}

#[test]
fn priority_goes_before_arrival() {
    let mut s = scheduler(Limits { max_seqs: 1, ..LIMITS }, &[2]);
    s.add(2, Request { priority: 1, ..Request::new(vec![2], 1) }).unwrap();
    s.add(3, Request { priority: -1, ..Request::new(vec![3], 1) }).unwrap();
    let first = |s: &mut Scheduler| step(s)[0].0;
    assert_eq!(first(&mut s), 3);
    assert_eq!(first(&mut s), 1);
    s.cancel(1);
    assert_eq!(first(&mut s), 2);
}

#[test]
fn a_small_budget_still_advances_every_decoding_sequence() {
    let s = &mut scheduler(LIMITS, &[1, 1, 1]);
    for _ in 0..2 {
        let batch = s.plan(1);
        assert_eq!(batch.entries.len(), 3);
        s.apply(&batch, &[token(5), token(5), token(5)]);
    }
}

#[test]
fn the_last_is_preempted_and_resumes_before_those_that_wait() {
    let s = &mut with_capacity(LIMITS, Capacity { pages: 7, max_tokens: 12, ..CAPACITY }, &[4, 4, 4, 4]);
    assert_eq!(step(s), [(1, 0, 4, true), (2, 0, 4, true), (3, 0, 4, true)]);
    let before = (0..20).find(|_| {
        step(s);
        s.stats().preemptions > 0
    });
    assert!(before.is_some(), "{:?}", s.stats());
    assert_eq!((s.stats().running, s.stats().waiting), (2, 2));
    s.cancel(1);
    s.cancel(2);
    let resumed = step(s);
    assert_eq!(resumed[0].0, 3);
    assert!(resumed[0].1 + resumed[0].2 > 4, "with what it had generated");
}

#[test]
fn a_prompt_with_a_cached_prefix_starts_after_it() {
    let mut s = Scheduler::new(LIMITS, Capacity { max_tokens: 64, ..CAPACITY }).unwrap();
    let prompt = |last: u32| [vec![1; 11], vec![last]].concat();
    s.add(1, Request::new(prompt(2), 20)).unwrap();
    assert_eq!(step(&mut s), [(1, 0, 12, true)]);
    s.add(2, Request::new(prompt(3), 20)).unwrap();
    assert_eq!(step(&mut s), [(1, 12, 1, true), (2, 8, 4, true)], "two pages of four are shared while held");
    s.cancel(1);
    s.cancel(2);
    assert_eq!((s.stats().pages_free, s.stats().pages_cached), (16, 4));
    s.add(3, Request::new(prompt(3), 20)).unwrap();
    assert_eq!(step(&mut s), [(3, 8, 4, true)], "and revived, but for the page of the last token");
    let stats = s.stats();
    assert_eq!((stats.started_tokens, stats.cached_tokens, stats.prompt_tokens), (36, 16, 36));
}

#[test]
fn of_equal_prompts_at_the_same_time_later_ones_wait_for_the_prefix() {
    let mut s = Scheduler::new(Limits { max_seqs: 4, ..LIMITS }, CAPACITY).unwrap();
    (1..=4).for_each(|id| s.add(id, Request::new(vec![1; 17], 20)).unwrap());
    for _ in 0..40 {
        step(&mut s);
    }
    assert!(s.stats().cached_tokens >= 32, "{:?}", s.stats());
}

#[test]
fn a_full_queue_and_an_id_used_twice_are_refused() {
    let mut s = scheduler(LIMITS, &[1, 1, 1, 1]);
    assert_eq!(s.add(4, Request::new(vec![1], 1)), Err(EngineError::Duplicate(4)));
    s.add(5, Request::new(vec![1], 1)).unwrap();
    let message = "the queue is full: 0 running and 5 waiting, at most 3 and 2";
    assert_eq!(s.add(6, Request::new(vec![1], 1)).unwrap_err().to_string(), message);
    assert!(s.cancel(2) && !s.cancel(2));
    s.add(6, Request::new(vec![1], 1)).unwrap();
}

#[test]
fn a_request_without_a_finite_logit_fails_and_the_others_go_on() {
    let mut s = scheduler(LIMITS, &[2, 2]);
    let batch = s.plan(8);
    let events = s.apply(&batch, &[Answer::Nothing, token(9)]);
    assert_eq!(events[0], (1, Event::Failed(EngineError::NotFinite { position: 1 })));
    assert!(matches!(events[1], (2, Event::Token(_))));
    assert_eq!(step(&mut s), [(2, 2, 1, true)]);
}

#[test]
fn a_failed_step_ends_its_requests_only() {
    let mut s = scheduler(Limits { max_seqs: 1, ..LIMITS }, &[8, 8]);
    let batch = s.plan(8);
    assert_eq!(shape(&batch), [(1, 0, 8, true)]);
    let error = EngineError::Runner("the device is on fire".into());
    assert_eq!(s.fail(&batch, &error), [(1, Event::Failed(error))]);
    s.check().unwrap();
    assert_eq!(step(&mut s), [(2, 0, 8, true)]);
}

#[test]
fn a_request_cancelled_between_plan_and_apply_emits_nothing() {
    let mut s = scheduler(LIMITS, &[2, 2]);
    let batch = s.plan(8);
    s.cancel(1);
    let events = s.apply(&batch, &[token(3), token(4)]);
    let sampled = Event::Token(Sampled { id: 4, ..Sampled::default() });
    assert_eq!((events, batch.started), (vec![(2, sampled)], vec![(1, 0), (2, 0)]));
}

/// `(id, position, carried)` of each entry.
fn carried(batch: &Batch) -> Vec<(u64, usize, Option<usize>)> {
    batch.entries.iter().map(|e| (e.id, e.slice.position, e.carried)).collect()
}

#[test]
fn a_step_ahead_carries_tokens_in_flight_and_continues_prompts() {
    let s = &mut scheduler(LIMITS, &[3, 20, 2]);
    let first = s.plan(8);
    assert_eq!(shape(&first), [(1, 0, 3, true), (2, 0, 3, false), (3, 0, 2, true)]);
    let second = s.plan(8);
    assert_eq!(carried(&second), [(1, 3, Some(0)), (2, 3, None), (3, 2, Some(1))]);
    assert_eq!(s.plan(8), Batch::default(), "one step ahead and no more");
    assert_eq!(apply(s, &first).len(), 2);
    let third = s.plan(8);
    assert_eq!(carried(&third), [(1, 4, Some(0)), (2, 9, None), (3, 3, Some(1))]);
    apply(s, &second);
    apply(s, &third);
    assert_eq!(
        carried(&s.plan(8)),
        [(1, 5, None), (2, 15, None), (3, 4, None)],
        "known tokens are not carried"
    );
}

#[test]
fn a_sequence_that_must_know_its_token_delays_the_step() {
    let s = &mut scheduler(LIMITS, &[1, 1]);
    let sampling = Sampling { repetition: 1.1, ..Sampling::default() };
    s.add(3, Request { sampling, ..Request::new(vec![1, 2], 2) }).unwrap();
    let first = s.plan(8);
    assert_eq!((first.entries.len(), s.plan(8).entries.len()), (3, 0));
    apply(s, &first);
    let second = s.plan(8);
    assert_eq!(carried(&second), [(1, 1, None), (2, 1, None), (3, 2, None)]);
    assert_eq!(carried(&s.plan(8)), [(1, 2, Some(0)), (2, 2, Some(1))], "its last token is in flight");
}

#[test]
fn what_was_computed_after_the_end_is_dropped_and_not_remembered() {
    let mut s = Scheduler::new(LIMITS, Capacity { page_len: 2, ..CAPACITY }).unwrap();
    s.add(1, Request { end_tokens: [7].into(), ..Request::new(vec![1, 2, 3], 9) }).unwrap();
    let (first, second) = (s.plan(8), s.plan(8));
    assert_eq!(s.apply(&first, &[token(7)]), [(1, Event::Done(Finish::Stop(7)))]);
    assert!(s.is_idle());
    assert_eq!(s.apply(&second, &[token(5)]), []);
    assert_eq!((s.stats().pages_free, s.stats().pages_cached, s.stats().tokens_generated), (16, 1, 0));
    s.add(2, Request::new(vec![1, 2, 3, 7, 5], 9)).unwrap();
    assert_eq!(step(&mut s), [(2, 2, 3, true)], "one page of what was known");
}

#[test]
fn no_sequence_is_preempted_while_its_step_is_in_flight() {
    let s = &mut with_capacity(LIMITS, Capacity { pages: 7, max_tokens: 16, ..CAPACITY }, &[4, 6]);
    let mut in_flight = s.plan(16);
    let steps = (1..20).find(|_| {
        let next = s.plan(16);
        let ahead = !next.entries.is_empty();
        apply(s, &std::mem::replace(&mut in_flight, next));
        !ahead
    });
    // tokens 4 to 12 of the first and 6 to 14 of the second are fed, and the first needs its fourth page
    assert_eq!((steps, s.stats().preemptions), (Some(9), 0));
    assert_eq!(carried(&s.plan(16)), [(1, 12, None)]);
    assert_eq!((s.stats().preemptions, s.stats().running, s.stats().waiting), (1, 1, 1));
}
