//! Who runs in the next step, with which tokens, on which pages.
//!
//! There is no prefill phase and no decode phase: a sequence has computed and wanted tokens, and a plan hands out
//! the difference within the token budget. Sequences stand in line by priority, then by arrival. Whoever is already
//! speaking gets its token in every step. Of what is left, half goes to the first unfinished prompt in line, which
//! therefore always moves, and the rest to those that want least: a short question is not kept waiting behind a
//! long document. The first in line is never preempted, so everyone's turn comes.

use std::collections::VecDeque;

use crate::sequence::Sequence;
use crate::{Answer, Batch, Capacity, EngineError, Event, Limits, Pages, Request, RequestId};

/// Prompts that are read at the same time; more would only finish later.
const UNFINISHED_PROMPTS: usize = 8;

/// Counts of an engine: how it stands, and what it did since it started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Sequences that hold pages.
    pub running: usize,
    /// Sequences that do not.
    pub waiting: usize,
    /// Pages nobody holds.
    pub pages_free: usize,
    /// Those of them that remember a prefix.
    pub pages_cached: usize,
    /// Pages in all.
    pub pages_total: usize,
    /// Tokens reported; end tokens are not among them.
    pub tokens_generated: u64,
    /// Tokens of the prompts that were read to their end, each prompt counted once.
    pub prompt_tokens: u64,
    /// Tokens of prompts that started, each prompt counted once.
    pub started_tokens: u64,
    /// Those of them that were remembered and not computed.
    pub cached_tokens: u64,
    /// Steps run.
    pub steps: u64,
    /// Sequences sent back to wait because others needed their pages.
    pub preemptions: u64,
}

/// The sequences of an engine. Holds integers only: no clock, thread or device.
///
/// Every batch that is planned is applied (or failed), in the same order; the next may be planned before. Requests
/// come and go at any time between: what is computed for one that is gone is dropped.
#[derive(Clone, Debug)]
pub struct Scheduler {
    limits: Limits,
    capacity: Capacity,
    pages: Pages,
    /// In line.
    running: Vec<Sequence>,
    /// In line.
    waiting: VecDeque<Sequence>,
    arrivals: u64,
    done: Stats,
}

impl Scheduler {
    /// Nothing to do yet.
    pub fn new(limits: Limits, capacity: Capacity) -> Result<Scheduler, EngineError> {
        limits.check(&capacity)?;
        Ok(Scheduler {
            limits,
            capacity,
            pages: Pages::new(capacity.pages, capacity.page_len),
            running: vec![],
            waiting: VecDeque::new(),
            arrivals: 0,
            done: Stats::default(),
        })
    }

    /// Takes a request in, or says why it can never run or cannot wait now.
    pub fn add(&mut self, id: RequestId, request: Request) -> Result<(), EngineError> {
        self.limits.admit(&request, &self.capacity)?;
        self.limits.queue(self.running.len(), self.waiting.len())?;
        if self.running.iter().chain(&self.waiting).any(|s| s.id == id) {
            return Err(EngineError::Duplicate(id));
        }
        self.arrivals += 1;
        self.wait(Sequence::new(id, self.arrivals, request));
        Ok(())
    }

    /// Forgets a request and takes its pages back; false if it is not here.
    pub fn cancel(&mut self, id: RequestId) -> bool {
        let before = self.running.len() + self.waiting.len();
        self.waiting.retain(|s| s.id != id);
        self.running.iter_mut().filter(|s| s.id == id).for_each(|s| s.finished = true);
        self.sweep();
        self.running.len() + self.waiting.len() < before
    }

    /// The next step, of about `budget` tokens: at least one a sequence that speaks, at most the runner's `max_tokens`.
    ///
    /// While a batch is under way, the next step takes tokens from it that are not known yet. The plan is empty if
    /// they must be known first; otherwise only when there is nothing to do.
    pub fn plan(&mut self, budget: usize) -> Batch {
        // nobody who speaks is left behind by a step that could not take him along
        if self.running.iter().any(Sequence::must_wait) || !self.make_room() {
            return Batch::default();
        }
        while self.admit() {}
        let grants = self.share(budget.clamp(self.running.len(), self.capacity.max_tokens));
        let mut batch = Batch { entries: Vec::with_capacity(grants.len()), started: vec![] };
        let mut samples = 0;
        for (sequence, mut grant) in self.running.iter_mut().zip(grants) {
            if grant == 0 {
                continue;
            }
            // since it sat down, others may have computed what it begins with
            if sequence.fresh && !sequence.sit_down(&mut self.pages) {
                continue;
            }
            grant = grant.min(sequence.wanted());
            if sequence.start() {
                self.done.started_tokens += sequence.prompt_len() as u64;
                self.done.cached_tokens += sequence.computed as u64;
                batch.started.push((sequence.id, sequence.computed));
            }
            let entry = sequence.go(grant, samples);
            samples += usize::from(entry.sample().is_some());
            batch.entries.push(entry);
        }
        batch
    }

    /// Moves the sequences of a batch on by what came back, one answer an entry.
    pub fn apply(&mut self, batch: &Batch, answers: &[Answer]) -> Vec<(RequestId, Event)> {
        let mut events = vec![];
        let mut from = 0; // entries and running sequences have the same order
        for (i, e) in batch.entries.iter().enumerate() {
            // cancelled or finished since the plan
            let Some(at) = self.running[from..].iter().position(|s| s.id == e.id) else { continue };
            from += at + 1;
            let sequence = &mut self.running[from - 1];
            let (before, computed) = (sequence.generated(), sequence.computed);
            let answer = answers.get(i).unwrap_or(&Answer::Nothing);
            sequence.advance(e, answer, &mut |event| events.push((e.id, event)));
            if computed < sequence.prompt_len() && sequence.computed >= sequence.prompt_len() && before == 0 {
                self.done.prompt_tokens += sequence.prompt_len() as u64;
            }
            self.done.tokens_generated += (sequence.generated() - before) as u64;
            self.pages.remember(&mut sequence.held, &sequence.tokens[..sequence.computed]);
        }
        self.done.steps += 1;
        self.sweep();
        events
    }

    /// Ends the sequences of a batch whose step failed; the others go on.
    pub fn fail(&mut self, batch: &Batch, error: &EngineError) -> Vec<(RequestId, Event)> {
        let mut events = vec![];
        for e in &batch.entries {
            if self.cancel(e.id) {
                events.push((e.id, Event::Failed(error.clone())));
            }
        }
        self.done.steps += 1;
        events
    }

    /// Neither running nor waiting requests.
    pub fn is_idle(&self) -> bool {
        self.running.is_empty() && self.waiting.is_empty()
    }

    /// The counts.
    pub fn stats(&self) -> Stats {
        Stats {
            running: self.running.len(),
            waiting: self.waiting.len(),
            pages_free: self.pages.free(),
            pages_cached: self.pages.cached(),
            pages_total: self.pages.total(),
            ..self.done
        }
    }

    /// Every page is free or held by the running sequences that say so.
    pub fn check(&self) -> Result<(), EngineError> {
        self.pages.check(self.running.iter().map(|s| &s.held))
    }

    /// Tokens for each running sequence in this step.
    fn share(&self, mut budget: usize) -> Vec<usize> {
        let mut grants = vec![0; self.running.len()];
        let mut prompts = vec![];
        for (i, sequence) in self.running.iter().enumerate() {
            if sequence.held.pages.len() < self.capacity.pages_for(sequence.length()) {
                continue; // the last in line found no page and sits this step out
            }
            match sequence.wanted() {
                0 => {} // its last token is under way
                1 => {
                    grants[i] = 1;
                    budget -= 1;
                }
                _ => prompts.push(i),
            }
        }
        let Some((&first, others)) = prompts.split_first() else { return grants };
        let mut others = others.to_vec();
        others.sort_by_key(|&i| self.running[i].wanted());
        let others = others.into_iter().map(|i| (i, usize::MAX));
        for (i, most) in [(first, budget.div_ceil(2))].into_iter().chain(others).chain([(first, usize::MAX)])
        {
            let grant = (self.running[i].wanted() - grants[i]).min(most).min(budget);
            grants[i] += grant;
            budget -= grant;
        }
        grants
    }

    /// Gives every running sequence the page its newest token needs, the last in line paying for those before; false
    /// if that one cannot before its step is done.
    fn make_room(&mut self) -> bool {
        let mut i = 0;
        while i < self.running.len() {
            let sequence = &mut self.running[i];
            let length = sequence.length();
            if self.pages.grow(&mut sequence.held, length) {
                i += 1;
            } else if i + 1 == self.running.len() {
                break; // the last itself keeps what it has and sits this step out
            } else if self.running.last().is_some_and(Sequence::is_under_way) {
                return false;
            } else {
                self.preempt_last();
            }
        }
        true
    }

    fn preempt_last(&mut self) {
        let Some(mut sequence) = self.running.pop() else { return };
        sequence.stand_up(&mut self.pages);
        self.done.preemptions += 1;
        self.wait(sequence);
    }

    /// Puts a sequence where it belongs among those who wait.
    fn wait(&mut self, sequence: Sequence) {
        let at = self.waiting.partition_point(|s| s.rank() < sequence.rank());
        self.waiting.insert(at, sequence);
    }

    /// Starts the first waiting sequence, if there is a seat and room for all its known tokens.
    fn admit(&mut self) -> bool {
        let prompts = self.running.iter().filter(|s| s.wanted() > 1).count();
        if self.running.len() >= self.limits.max_seqs || prompts >= UNFINISHED_PROMPTS {
            return false;
        }
        let Some(first) = self.waiting.front() else { return false };
        // each running sequence may soon want a page more: it should not have to preempt the newcomer for it
        let spare = self.running.len();
        if self.pages.free() < first.need(&self.pages) + spare {
            return false;
        }
        let Some(mut sequence) = self.waiting.pop_front() else { return false };
        let seated = sequence.sit_down(&mut self.pages);
        debug_assert!(seated, "there were enough free pages");
        let at = self.running.partition_point(|s| s.rank() < sequence.rank());
        self.running.insert(at, sequence);
        true
    }

    fn sweep(&mut self) {
        for mut sequence in self.running.extract_if(.., |s| s.finished) {
            self.pages.give_back(&mut sequence.held);
        }
    }
}
