//! Which sequences run in the next step, with which tokens, on which pages.
//!
//! There is no prefill phase and no decode phase: a sequence has computed and pending tokens, and a plan
//! schedules the pending ones within the token budget. Sequences are ordered by priority, then fairly between
//! clients, then by arrival; see [`Clients`]. Sequences that are decoding get one token in every step, or
//! take turns if one client has many; see [`decoding`]. Of the rest of the budget, half goes to the first
//! unfinished prompt, which therefore always advances, and the rest to the shortest prompts first: a short
//! question does not wait behind a long document. The first sequence is never preempted, so every sequence
//! finishes. The last one is preempted if pages are short, or if its client has at least two more running
//! than a client that waits.

mod on_disk;

use std::collections::{HashMap, VecDeque};

use crate::clients::Clients;
use crate::decoding::{self, Candidate};
use crate::sequence::{Lookup, Sequence};
use crate::speculation::{Acceptance, FinishedTexts, depths};
use crate::{Answer, Batch, Capacity, EngineError, Event, Limits, Pages, Request, RequestId, Stats};

/// Prompts in prefill at the same time; with more, each would finish later.
const UNFINISHED_PROMPTS: usize = 8;

/// A draft after the token in flight must be this likely for the next step to wait for that token: without
/// drafts it would not.
const WORTH_WAITING: f64 = 0.5;

/// How many of the sequences that could decode a token are in a step, while the others have their turn in
/// later steps; and what tokens cost, by which drafts are added.
pub struct StepRules<'a> {
    /// The number while one client has more of them than another, from `(all, clients)`; at least one
    /// per client.
    pub few: &'a dyn Fn(usize, usize) -> usize,
    /// The number in a step without prompts, from `all`.
    pub size: &'a dyn Fn(usize) -> usize,
    /// The expected duration of a step without prompts by its tokens, in any unit.
    pub seconds: &'a dyn Fn(usize) -> f64,
}

/// The sequences of an engine. Holds integers only: no clock, thread or device.
///
/// Every planned batch is applied (or failed), in the same order; the next may be planned before. Requests
/// may be added and cancelled at any time in between: what is computed for a cancelled one is dropped.
#[derive(Clone, Debug)]
pub struct Scheduler {
    limits: Limits,
    capacity: Capacity,
    /// All tokens of a text are in one step: the model pools it.
    reads_whole: bool,
    /// All rows of an image are in one step.
    keeps_images: bool,
    pages: Pages,
    /// In scheduling order.
    running: Vec<Sequence>,
    /// By priority and arrival.
    waiting: VecDeque<Sequence>,
    clients: Clients,
    arrivals: u64,
    /// Counts tokens that were decoded.
    chosen: u64,
    /// What drafts of later texts are made from, and how often drafts were right.
    finished: FinishedTexts,
    acceptance: Acceptance,
    done: Stats,
}

impl Scheduler {
    /// Nothing to do yet.
    pub fn new(limits: Limits, capacity: Capacity) -> Result<Scheduler, EngineError> {
        limits.check(&capacity)?;
        Ok(Scheduler {
            limits,
            capacity,
            reads_whole: false,
            keeps_images: false,
            pages: Pages::new(&capacity),
            running: vec![],
            waiting: VecDeque::new(),
            clients: Clients::default(),
            arrivals: 0,
            chosen: 0,
            finished: FinishedTexts::default(),
            acceptance: Acceptance::default(),
            done: Stats::default(),
        })
    }

    /// The same for a runner that reads texts whole ([`crate::Runner::reads_whole`]), or does not.
    #[must_use]
    pub fn reading_whole(self, reads_whole: bool) -> Scheduler {
        Scheduler { reads_whole, ..self }
    }

    /// The same for a runner that must have all rows of an image in one step
    /// ([`crate::Runner::keeps_images_whole`]), or need not.
    #[must_use]
    pub fn keeping_images(self, keeps_images: bool) -> Scheduler {
        Scheduler { keeps_images, ..self }
    }

    /// Adds a request; an error says why it can never run, or that the queue is full.
    pub fn add(&mut self, id: RequestId, request: Request) -> Result<(), EngineError> {
        self.limits.admit(&request, &self.capacity, self.reads_whole)?;
        self.limits.queue(self.running.len(), self.waiting.len(), self.clients.open(request.client))?;
        if self.running.iter().chain(&self.waiting).any(|s| s.id == id) {
            return Err(EngineError::Duplicate(id));
        }
        self.arrivals += 1;
        self.clients.enter(request.client);
        let mut sequence = Sequence::new(id, self.arrivals, request);
        sequence.model_pools = self.reads_whole;
        self.wait(sequence);
        Ok(())
    }

    /// Drops a request and releases its pages; false if there is none of this id.
    pub fn cancel(&mut self, id: RequestId) -> bool {
        let before = self.running.len() + self.waiting.len();
        if let Some(at) = self.waiting.iter().position(|s| s.id == id)
            && let Some(sequence) = self.waiting.remove(at)
        {
            self.clients.leave_queue(sequence.client());
        }
        self.running.iter_mut().filter(|s| s.id == id).for_each(|s| s.finished = true);
        self.sweep();
        self.running.len() + self.waiting.len() < before
    }

    /// The next step, of about `budget` tokens: at least one per decoding sequence, at most
    /// the runner's `max_tokens`.
    ///
    /// While a batch is in flight, the next step carries over its samples, which are not known yet. The plan
    /// is empty if they must be known first, or if there is nothing to do.
    pub fn plan(&mut self, budget: usize) -> Batch {
        self.plan_sized(budget, &StepRules { few: &|all, _| all, size: &|all| all, seconds: &|_| 1.0 })
    }

    /// The same with rules for the number of decoding sequences and of drafts.
    pub fn plan_sized(&mut self, budget: usize, rules: &StepRules<'_>) -> Batch {
        // never plan a step that would skip a decoding sequence
        if self.running.iter().any(Sequence::must_wait)
            || self.awaits_draft()
            || !self.grow_pages()
            || !self.admit_all()
        {
            return Batch::default();
        }
        let budget = budget.clamp(self.running.len(), self.capacity.max_tokens);
        let grants = self.share(budget, rules);
        let drafts = self.drafts(&grants, budget, rules);
        let mut batch = Batch { entries: Vec::with_capacity(grants.len()), started: vec![] };
        let mut samples = 0;
        for ((sequence, mut grant), drafts) in self.running.iter_mut().zip(grants).zip(drafts) {
            if grant == 0 {
                continue;
            }
            sequence.look_for_prefix(&mut self.pages);
            grant = sequence.until_stop(grant.min(sequence.pending()));
            grant = sequence.grow_window(&mut self.pages, grant);
            if self.keeps_images {
                grant = Some(sequence.uncut(grant)).filter(|uncut| *uncut <= grant).unwrap_or(0);
            }
            if grant == 0 {
                continue;
            }
            if sequence.start() {
                self.done.started_tokens += sequence.prompt_len() as u64;
                self.done.cached_tokens += sequence.computed as u64;
                self.done.snapshot_hits += u64::from(self.capacity.state.is_some() && sequence.computed > 0);
                batch.started.push((sequence.id, sequence.computed));
            }
            let drafts = sequence.grow_drafts(&mut self.pages, grant, drafts);
            let state = sequence.next_slots(&mut self.pages, grant, drafts.len());
            let mut entry = sequence.next_entry(grant, &drafts, samples);
            entry.slice.state = state;
            samples += entry.samples().len();
            batch.entries.push(entry);
        }
        batch
    }

    /// Advances the sequences of a batch by its answers, one per entry.
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
            let (known, first) = (sequence.tokens.len(), events.len());
            sequence.advance(e, answer, &mut |event| events.push((e.id, event)));
            let drafted = e.drafts().len();
            if drafted > 0 {
                let accepted = sequence.computed + drafted - e.slice.position - e.tokens.len();
                self.done.drafted_steps += 1;
                self.done.drafted_tokens += drafted as u64;
                self.done.accepted_tokens += accepted as u64;
                events.insert(first, (e.id, Event::Drafted { drafted, accepted }));
            }
            sequence.learn_drafts(known, &mut self.acceptance);
            sequence.roll_back(&mut self.pages, e);
            if computed < sequence.prompt_len() && sequence.computed >= sequence.prompt_len() && before == 0 {
                self.done.prompt_tokens += sequence.prompt_len() as u64;
            }
            self.done.tokens_generated += (sequence.generated() - before) as u64;
            if !sequence.is_whole() {
                sequence.remember(&mut self.pages);
            }
        }
        self.done.steps += 1;
        self.sweep();
        events
    }

    /// Ends the sequences of a batch whose step failed; the others continue.
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
        let [window_pages_free, window_pages_cached, window_pages_total] = self.pages.window_counts();
        let slots = self.pages.slot_counts();
        Stats {
            running: self.running.len(),
            waiting: self.waiting.len(),
            pages_free: self.pages.free(),
            pages_cached: self.pages.cached(),
            pages_total: self.pages.total(),
            window_pages_free,
            window_pages_cached,
            window_pages_total,
            state_slots_total: slots.total,
            state_slots_free: slots.free,
            state_snapshots: slots.snapshots,
            state_slot_bytes: self.capacity.state.map_or(0, |state| state.bytes),
            snapshots_taken: slots.taken,
            ..self.done
        }
    }

    /// Checks that every page and state slot is free or held by a running sequence.
    pub fn check(&self) -> Result<(), EngineError> {
        self.pages.check(self.running.iter().map(|s| &s.held))
    }

    /// Whether a sequence should know its token in flight before the next step, because drafts are likely to
    /// follow it.
    fn awaits_draft(&mut self) -> bool {
        let (finished, acceptance) = (&self.finished, &self.acceptance);
        let mut in_flight = self.running.iter_mut().filter(|s| s.has_drafter() && !s.is_known());
        in_flight.any(|s| s.propose(finished, acceptance).get(1).is_some_and(|p| *p >= WORTH_WAITING))
    }

    /// Drafts per running sequence in a step of these grants: none beside prompts.
    fn drafts(&mut self, grants: &[usize], budget: usize, rules: &StepRules<'_>) -> Vec<usize> {
        let none = vec![0; self.running.len()];
        let mut granted = self.running.iter().zip(grants).filter(|(_, grant)| **grant > 0);
        if !self.running.iter().any(Sequence::has_drafter) || !granted.all(|(s, _)| s.is_decoding()) {
            return none;
        }
        let (finished, acceptance) = (&self.finished, &self.acceptance);
        let propose = |(s, grant): (&mut Sequence, &usize)| match *grant > 0 && s.is_known() {
            true if *grant == s.pending() => s.propose(finished, acceptance),
            _ => vec![],
        };
        let survival: Vec<Vec<f64>> = self.running.iter_mut().zip(grants).map(propose).collect();
        let tokens: usize = grants.iter().sum();
        let outputs = grants.iter().filter(|grant| **grant > 0).count();
        let room = (self.capacity.max_outputs.saturating_sub(outputs)).min(budget.saturating_sub(tokens));
        depths(tokens, &survival, room, rules.seconds)
    }

    /// Tokens per running sequence in this step.
    fn share(&mut self, mut budget: usize, rules: &StepRules<'_>) -> Vec<usize> {
        let mut grants = vec![0; self.running.len()];
        let (mut prompts, mut decoding) = (vec![], vec![]);
        for (i, sequence) in self.running.iter().enumerate() {
            if !self.pages.covers(&sequence.held, sequence.length(), sequence.next_length()) {
                continue; // the last sequence found no page and skips this step
            }
            match sequence.pending() {
                0 => {} // its last token is in flight
                // the first whole text runs even if it exceeds the budget: it fits a step
                whole if sequence.is_whole() => {
                    if whole <= budget || grants.iter().all(|grant| *grant == 0) {
                        grants[i] = whole;
                        budget = budget.saturating_sub(whole);
                    }
                }
                _ if sequence.is_decoding() => {
                    decoding.push(Candidate { at: i, client: sequence.client(), stepped: sequence.stepped });
                }
                _ => prompts.push(i),
            }
        }
        let mut chosen = decoding::choose(decoding, rules.few);
        if prompts.is_empty() {
            let size = (rules.size)(chosen.len());
            if size < chosen.len() {
                chosen.sort_by_key(|i| self.running[*i].stepped);
                chosen.truncate(size);
            }
        }
        for &i in &chosen {
            self.chosen += 1;
            self.running[i].stepped = self.chosen;
            grants[i] = 1;
            budget = budget.saturating_sub(1);
        }
        for i in chosen {
            let again = (self.running[i].pending() - 1).min(budget);
            grants[i] += again;
            budget -= again;
        }
        let Some((&first, others)) = prompts.split_first() else { return grants };
        let mut others = others.to_vec();
        others.sort_by_key(|&i| self.running[i].pending());
        let others = others.into_iter().map(|i| (i, usize::MAX));
        for (i, most) in [(first, budget.div_ceil(2))].into_iter().chain(others).chain([(first, usize::MAX)])
        {
            let wanted = self.running[i].until_stop(self.running[i].pending());
            let grant = (wanted - grants[i]).min(most).min(budget);
            grants[i] += grant;
            budget -= grant;
        }
        if self.keeps_images {
            self.keep_images_whole(&mut grants, &prompts);
        }
        grants
    }

    /// Ends the grants of prompts before an image that they would cut, or after it: the first prompt always
    /// advances, if necessary in place of other sequences.
    fn keep_images_whole(&self, grants: &mut [usize], prompts: &[usize]) {
        let most = self.capacity.max_tokens;
        for (&i, is_first) in prompts.iter().zip(std::iter::once(true).chain(std::iter::repeat(false))) {
            if grants[i] == 0 {
                continue;
            }
            let (uncut, granted) = (self.running[i].uncut(grants[i]), grants.iter().sum::<usize>());
            let mut over = (granted - grants[i] + uncut).saturating_sub(most);
            grants[i] = if over == 0 || is_first { uncut } else { 0 };
            if is_first {
                for other in (0..grants.len()).rev().filter(|other| *other != i) {
                    over = over.saturating_sub(if over > 0 { std::mem::take(&mut grants[other]) } else { 0 });
                }
            }
        }
    }

    /// Acquires the pages that each running sequence needs for its newest token, preempting the last ones if
    /// necessary; false if the one to preempt is in flight.
    fn grow_pages(&mut self) -> bool {
        let mut i = 0;
        while i < self.running.len() {
            let sequence = &mut self.running[i];
            let (length, next_length) = (sequence.length(), sequence.next_length());
            if self.pages.grow(&mut sequence.held, length, next_length) {
                i += 1;
            } else if i + 1 == self.running.len() {
                break; // the last sequence keeps its pages and skips this step
            } else if self.running.last().is_some_and(Sequence::is_in_flight) {
                return false;
            } else {
                self.preempt_last();
            }
        }
        true
    }

    fn preempt_last(&mut self) {
        self.preempt(self.running.len() - 1);
    }

    fn preempt(&mut self, at: usize) {
        let mut sequence = self.running.remove(at);
        sequence.release_pages(&mut self.pages);
        sequence.lookup = Lookup::Pending; // what leaves memory until it starts again may be on disk
        self.done.preemptions += 1;
        self.clients.stop(sequence.client());
        self.wait(sequence);
    }

    /// Inserts a sequence into the queue.
    fn wait(&mut self, sequence: Sequence) {
        let at = self.waiting.partition_point(|s| s.waiting_rank() < sequence.waiting_rank());
        self.waiting.insert(at, sequence);
    }

    /// Starts sequences while there is room for the next one, which others make if their client has more than
    /// a fair share; false if the one to preempt is in flight.
    fn admit_all(&mut self) -> bool {
        while let Some(next) = self.next_waiting() {
            if self.has_room(next) {
                self.admit(next);
                continue;
            }
            if self.clients.is_one() {
                return true;
            }
            let (rank, client) = (self.waiting[next].waiting_rank(), self.waiting[next].client());
            let yields =
                |s: &Sequence| s.waiting_rank().0 >= rank.0 && self.clients.yields(s.client(), client);
            match self.running.iter().rposition(yields) {
                None => return true,
                Some(last) if self.running[last].is_in_flight() => return false,
                Some(last) => self.preempt(last),
            }
        }
        true
    }

    /// The waiting sequence that is next: of those with the best priority the first of the
    /// client that has the least.
    fn next_waiting(&self) -> Option<usize> {
        let mut ready = self.waiting.iter().enumerate().filter(|(_, s)| !s.is_restoring()).peekable();
        let (first, best) = ready.peek().map(|(at, s)| (*at, s.waiting_rank().0))?;
        if self.clients.is_one() {
            return Some(first);
        }
        let same = ready.take_while(|(_, s)| s.waiting_rank().0 == best);
        // arrivals are in order: the first of equals is kept
        same.min_by_key(|(_, s)| self.clients.standing(s.client())).map(|(at, _)| at)
    }

    /// Whether a waiting sequence can start: fewer than `max_seqs` run, few prompts are in prefill, and there
    /// are pages for all its known tokens and state slots.
    fn has_room(&self, at: usize) -> bool {
        let most = self.limits.max_seqs.min(self.capacity.sequences());
        if self.running.len() >= most || !self.may_prefill(self.waiting[at].client()) {
            return false;
        }
        // each running sequence may soon need one more page and should not have to preempt the new one for it
        let spare = self.running.len();
        self.pages.has(self.waiting[at].need(&self.pages), spare)
    }

    /// Whether one more prompt of a client may be in prefill: if there are few, or if another
    /// client has at least two more.
    fn may_prefill(&self, client: u64) -> bool {
        let prompts = || self.running.iter().filter(|s| s.pending() > 1 && !s.is_whole());
        if prompts().count() < UNFINISHED_PROMPTS {
            return true;
        }
        let mut counts = HashMap::from([(client, 0_usize)]);
        prompts().for_each(|s| *counts.entry(s.client()).or_default() += 1);
        counts.values().any(|count| *count > counts[&client] + 1)
    }

    fn admit(&mut self, at: usize) {
        let Some(mut sequence) = self.waiting.remove(at) else { return };
        let acquired = sequence.acquire_pages(&mut self.pages);
        debug_assert!(acquired, "there were enough free pages");
        self.clients.start(sequence.client());
        sequence.turn = self.next_turn(sequence.client());
        let at = self.running.partition_point(|s| s.rank() < sequence.rank());
        self.running.insert(at, sequence);
    }

    /// The turn of a client's next sequence: after its running ones, and not before the earliest of all, so
    /// that a client does not pay for what ran before others came.
    fn next_turn(&self, client: u64) -> u64 {
        let own = self.running.iter().filter(|s| s.client() == client).map(|s| s.turn + 1).max();
        let earliest = self.running.iter().map(|s| s.turn).min();
        own.max(earliest).unwrap_or(0)
    }

    fn sweep(&mut self) {
        for mut sequence in self.running.extract_if(.., |s| s.finished) {
            if let Some(text) = sequence.finished_text() {
                self.finished.add(text);
            }
            sequence.release_pages(&mut self.pages);
            self.clients.leave(sequence.client());
        }
    }
}
