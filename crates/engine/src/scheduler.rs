//! Who runs in the next step, with which tokens, on which pages.
//!
//! There is no prefill phase and no decode phase: a sequence has computed and wanted tokens, and a plan hands out
//! the difference within the token budget. Running sequences are in order of arrival, and all of them are older
//! than all that wait. The oldest moves in every step and is never preempted, so everyone's turn comes.

use std::collections::VecDeque;

use tern_graph::Sampled;

use crate::sequence::Sequence;
use crate::{Batch, EngineError, Entry, Event, Limits, Pages, Request, RequestId};

/// Counts of an engine: how it stands, and what it did since it started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Sequences that hold pages.
    pub running: usize,
    /// Sequences that do not.
    pub waiting: usize,
    /// Pages nobody holds.
    pub pages_free: usize,
    /// Pages in all.
    pub pages_total: usize,
    /// Tokens reported; end tokens are not among them.
    pub tokens_generated: u64,
    /// Tokens of the prompts that were read to their end, each prompt counted once.
    pub prompt_tokens: u64,
    /// Steps run.
    pub steps: u64,
    /// Sequences sent back to wait because older ones needed their pages.
    pub preemptions: u64,
}

/// The sequences of an engine. Holds integers only: no clock, thread or device.
///
/// `plan` and `apply` (or `fail`) take turns; requests may come and go between any two of them.
#[derive(Clone, Debug)]
pub struct Scheduler {
    limits: Limits,
    pages: Pages,
    running: Vec<Sequence>,
    waiting: VecDeque<Sequence>,
    done: Stats,
}

impl Scheduler {
    /// Nothing to do yet.
    pub fn new(limits: Limits) -> Result<Scheduler, EngineError> {
        limits.check()?;
        Ok(Scheduler {
            limits,
            pages: Pages::new(limits.pages, limits.page_len),
            running: vec![],
            waiting: VecDeque::new(),
            done: Stats::default(),
        })
    }

    /// Takes a request in, or says why it can never run or cannot wait now.
    pub fn add(&mut self, id: RequestId, request: Request) -> Result<(), EngineError> {
        self.limits.admit(&request)?;
        self.limits.queue(self.running.len(), self.waiting.len())?;
        if self.running.iter().chain(&self.waiting).any(|s| s.id == id) {
            return Err(EngineError::Duplicate(id));
        }
        self.waiting.push_back(Sequence::new(id, request));
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

    /// The next step. Empty only when there is nothing to do.
    pub fn plan(&mut self) -> Batch {
        self.make_room();
        let mut budget = self.limits.max_batch_tokens;
        let mut grants = Vec::with_capacity(self.running.len()); // tokens in this step, one a running sequence
        // nobody is admitted behind an unfinished prompt, so all but the youngest want a single token: those who
        // are already speaking come before chunks of prompts, and everyone with pages gets at least one token
        for sequence in &self.running {
            let has_pages = sequence.pages.len() >= self.limits.pages_for(sequence.tokens.len());
            let grant = if has_pages { sequence.wanted().min(budget) } else { 0 };
            grants.push(grant);
            budget -= grant;
        }
        while budget > 0 && self.admit() {
            let grant = self.running.last().map_or(0, Sequence::wanted).min(budget);
            grants.push(grant);
            budget -= grant;
        }
        let granted = self.running.iter().zip(grants).filter(|(_, grant)| *grant > 0);
        Batch { entries: granted.map(|(sequence, grant)| entry(sequence, grant)).collect() }
    }

    /// Moves the sequences of a batch on by what was sampled, one answer an entry.
    pub fn apply(&mut self, batch: &Batch, sampled: &[Option<Sampled>]) -> Vec<(RequestId, Event)> {
        let mut events = vec![];
        let mut from = 0; // entries and running sequences have the same order
        for (i, e) in batch.entries.iter().enumerate() {
            // cancelled since the plan
            let Some(at) = self.running[from..].iter().position(|s| s.id == e.id) else { continue };
            from += at + 1;
            let sequence = &mut self.running[from - 1];
            sequence.computed = e.position + e.tokens.len();
            if e.sample.is_none() {
                continue;
            }
            if sequence.generated() == 0 {
                self.done.prompt_tokens += sequence.tokens.len() as u64;
            }
            let before = sequence.generated();
            sequence.advance(sampled.get(i).and_then(Option::as_ref), |event| events.push((e.id, event)));
            self.done.tokens_generated += (sequence.generated() - before) as u64;
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
            pages_total: self.pages.total(),
            ..self.done
        }
    }

    /// Every page is free or held by one running sequence.
    pub fn check(&self) -> Result<(), EngineError> {
        self.pages.check(self.running.iter().map(|s| s.pages.as_slice()))
    }

    /// Gives every running sequence the page its newest token needs, the youngest paying for the older ones.
    fn make_room(&mut self) {
        let mut i = 0;
        while i < self.running.len() {
            let sequence = &mut self.running[i];
            if self.pages.grow(&mut sequence.pages, sequence.tokens.len()) {
                i += 1;
            } else if i + 1 < self.running.len() {
                self.preempt_youngest();
            } else {
                // the youngest itself keeps what it has and sits this step out
                break;
            }
        }
    }

    fn preempt_youngest(&mut self) {
        let Some(mut sequence) = self.running.pop() else { return };
        self.pages.give_back(&mut sequence.pages);
        sequence.computed = 0;
        self.done.preemptions += 1;
        self.waiting.push_front(sequence); // before all younger ones
    }

    /// Starts the first waiting sequence, if there is room for all its known tokens.
    fn admit(&mut self) -> bool {
        if self.running.len() >= self.limits.max_seqs {
            return false;
        }
        let Some(first) = self.waiting.front() else { return false };
        // each running sequence may soon want a page more: it should not have to preempt the newcomer for it
        let spare = self.running.len();
        if self.pages.free() < self.limits.pages_for(first.tokens.len()) + spare {
            return false;
        }
        let Some(mut sequence) = self.waiting.pop_front() else { return false };
        let grown = self.pages.grow(&mut sequence.pages, sequence.tokens.len());
        debug_assert!(grown, "there were enough free pages");
        self.running.push(sequence);
        true
    }

    fn sweep(&mut self) {
        for mut sequence in self.running.extract_if(.., |s| s.finished) {
            self.pages.give_back(&mut sequence.pages);
        }
    }
}

/// The next `grant` tokens of a sequence; the last known token is followed by a sample.
fn entry(sequence: &Sequence, grant: usize) -> Entry {
    let end = sequence.computed + grant;
    Entry {
        id: sequence.id,
        tokens: sequence.tokens[sequence.computed..end].to_vec(),
        position: sequence.computed,
        pages: sequence.pages.clone(),
        sample: (end == sequence.tokens.len()).then(|| sequence.sample()),
    }
}
