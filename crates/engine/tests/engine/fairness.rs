//! Fairness between clients: what one waits for does not depend on how much another has in the queue.

#![expect(clippy::unwrap_used, reason = "a helper that fails fails its test")]

use std::collections::HashMap;

use tern_engine::{
    Batch, Capacity, Event, Limits, Request, RequestId, Runner, Scheduler, ScriptedRunner, StepRules,
};

const MANY: u64 = 1;
const ONE: u64 = 2;

fn limits(max_seqs: usize) -> Limits {
    Limits { max_seqs, max_context: 256, max_waiting: 10_000, step_millis: 0 }
}

fn capacity(pages: usize) -> Capacity {
    Capacity { pages, page_len: 8, max_tokens: 64, max_outputs: 16, window: None, state: None }
}

fn request(client: u64, id: u64, prompt: usize, max_tokens: usize) -> Request {
    // prompts of one client share prefixes with each other, but not with those of another
    let prompt = (0..prompt as u32).map(|at| (at * (7 + client as u32) + id as u32) % 50).collect();
    Request { client, ..Request::new(prompt, max_tokens) }
}

/// A scheduler and a runner, step by step.
struct Driven {
    scheduler: Scheduler,
    runner: ScriptedRunner,
    in_flight: Option<Batch>,
    /// Sequences that a step decodes while one client has more.
    decoding: usize,
    /// Entries of each step.
    sizes: Vec<usize>,
    steps: usize,
    /// The step in which a request ended.
    ended: HashMap<RequestId, usize>,
}

impl Driven {
    fn new(limits: Limits, capacity: Capacity, ahead: bool) -> Driven {
        let runner = ScriptedRunner::new(50, capacity);
        let runner = if ahead { runner.running_ahead() } else { runner };
        let scheduler = Scheduler::new(limits, capacity).unwrap();
        Driven {
            scheduler,
            runner,
            in_flight: None,
            decoding: usize::MAX,
            sizes: vec![],
            steps: 0,
            ended: HashMap::new(),
        }
    }

    fn step(&mut self) {
        let batch = self.scheduler.plan_sized(
            usize::MAX,
            &StepRules { few: &|all, _| self.decoding.min(all), size: &|all| all, seconds: &|_| 1.0 },
        );
        self.sizes.push(batch.entries.len());
        let batch = Some(batch).filter(|batch| !batch.entries.is_empty());
        assert!(
            batch.is_some() || self.in_flight.is_some() || self.scheduler.is_idle(),
            "nothing was planned"
        );
        batch.iter().for_each(|batch| self.runner.submit(batch).unwrap());
        let done = match self.runner.runs_ahead() {
            true => std::mem::replace(&mut self.in_flight, batch),
            false => batch,
        };
        self.steps += 1;
        let Some(done) = done else { return };
        let answers = self.runner.collect().unwrap();
        for (id, event) in self.scheduler.apply(&done, &answers) {
            assert!(!matches!(event, Event::Failed(_)), "{id}: {event:?}");
            if event.is_last() {
                self.ended.insert(id, self.steps);
            }
        }
        self.scheduler.check().unwrap();
    }

    /// Steps until a request has ended.
    fn wait_for(&mut self, id: RequestId) -> usize {
        let before = self.steps;
        while !self.ended.contains_key(&id) {
            self.step();
            assert!(self.steps < before + 10_000, "request {id} does not end: {:?}", self.scheduler.stats());
        }
        self.ended[&id].saturating_sub(before)
    }
}

/// The steps of one request beside `queued` ones of another client, which have run for some steps.
fn steps_beside(queued: u64, max_seqs: usize, pages: usize, one: (usize, usize), ahead: bool) -> usize {
    let mut driven = Driven::new(limits(max_seqs), capacity(pages), ahead);
    for id in 0..queued {
        driven.scheduler.add(id, request(MANY, id, 40, 100)).unwrap();
    }
    (0..20).for_each(|_| driven.step());
    let id = queued;
    driven.scheduler.add(id, request(ONE, 0, one.0, one.1)).unwrap();
    driven.wait_for(id)
}

#[test]
fn one_request_does_not_wait_for_a_queue() {
    for ahead in [false, true] {
        for (max_seqs, pages) in [(8, 1000), (8, 60), (2, 1000), (4, 40)] {
            for one in [(4, 10), (100, 10), (30, 60)] {
                let steps: Vec<usize> =
                    [20, 200, 2000].map(|queued| steps_beside(queued, max_seqs, pages, one, ahead)).to_vec();
                assert!(steps.iter().all(|s| *s == steps[0]), "{max_seqs} {pages} {one:?}: {steps:?}");
                // a step per token, and for the prompt what it takes if others get half of each step
                let most = one.1 + one.0.div_ceil(16) + 8;
                assert!(steps[0] <= most, "{max_seqs} {pages} {one:?} {ahead}: {} of {most}", steps[0]);
            }
        }
    }
}

#[test]
fn clients_share_the_slots() {
    let mut driven = Driven::new(limits(8), capacity(1000), false);
    for id in 0..100 {
        driven.scheduler.add(id, request(MANY, id, 8, 50)).unwrap();
    }
    (0..10).for_each(|_| driven.step());
    for id in 100..120 {
        driven.scheduler.add(id, request(ONE, id, 8, 50)).unwrap();
    }
    driven.step();
    // four each: what the other client had beyond its half gave way
    let preempted = driven.scheduler.stats().preemptions;
    assert_eq!(preempted, 4);
    (0..200).for_each(|_| driven.step());
    let ended = |range: std::ops::Range<u64>| range.filter(|id| driven.ended.contains_key(id)).count();
    let (many, one) = (ended(0..100), ended(100..120));
    assert!(many.abs_diff(one) <= 4, "{many} and {one}");
    assert_eq!(driven.scheduler.stats().preemptions, preempted, "clients with a fair share keep it");
}

#[test]
fn a_client_with_many_requests_is_not_starved_by_others() {
    let mut driven = Driven::new(limits(4), capacity(1000), false);
    for id in 0..10 {
        driven.scheduler.add(id, request(MANY, id, 8, 20)).unwrap();
    }
    driven.step();
    // two new clients in every step, with one request each, are more than can be served
    for id in 0..400 {
        driven.scheduler.add(100 + id, request(100 + id, id, 8, 20)).unwrap();
        if id % 2 == 0 {
            driven.step();
        }
    }
    for id in (0..10).chain(100..500) {
        driven.wait_for(id);
    }
    // the first ran in steps 1 to 20, so the second is before all that came later, and the third before all
    // that came after the second began
    assert!(driven.ended[&1] < driven.ended[&150], "{:?}", driven.ended);
    assert!(driven.ended[&2] < driven.ended[&200], "{:?}", driven.ended);
}

#[test]
fn priority_goes_before_fairness() {
    let mut driven = Driven::new(limits(2), capacity(1000), false);
    for id in 0..4 {
        driven.scheduler.add(id, Request { priority: -1, ..request(MANY, id, 4, 10) }).unwrap();
    }
    driven.step();
    driven.scheduler.add(9, request(ONE, 9, 4, 10)).unwrap();
    driven.wait_for(9);
    assert!((0..4).all(|id| driven.ended[&id] < driven.ended[&9]), "{:?}", driven.ended);
}

#[test]
fn a_step_is_not_longer_for_another_client() {
    for ahead in [false, true] {
        let mut driven = Driven::new(limits(8), capacity(1000), ahead);
        for id in 0..20 {
            driven.scheduler.add(id, request(MANY, id, 8, 40)).unwrap();
        }
        (0..10).for_each(|_| driven.step());
        assert_eq!(driven.sizes.last(), Some(&8), "alone a client has whole steps");
        driven.scheduler.add(90, request(ONE, 0, 4, 30)).unwrap();
        (0..2).for_each(|_| driven.step());
        (driven.decoding, driven.sizes) = (3, vec![]);
        let steps = driven.wait_for(90);
        assert!(steps <= 34, "a token in every step: {steps}");
        // a prompt may begin beside three; the last token is in flight while the last steps are planned
        let beside = &driven.sizes[..steps - 3];
        assert!(beside.iter().all(|size| *size <= 4), "{beside:?}");
        for id in 0..20 {
            driven.wait_for(id);
        }
    }
}
