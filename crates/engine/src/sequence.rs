//! One request: the tokens it has, how many of them are in the KV pages, and what comes next.

use std::sync::Arc;

use tern_graph::{History, Mask, Sample, Sampled, Sampling, Seen, Slice, StateSlots, all_finite};

use crate::disk::key::IMAGE;
use crate::pages::{Need, PageList, Pages, Text};
use crate::slots::NextStep;
use crate::speculation::{Acceptance, Drafter, FinishedTexts, MOST_DRAFTS};
use crate::{Answer, EngineError, Entry, Event, Finish, Pooling, Request, RequestId, SharedConstraint, Want};

/// Whether the prefix of a waiting sequence was looked up on disk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Lookup {
    /// Not yet.
    #[default]
    Pending,
    /// It is being read; the sequence does not start.
    Restoring,
    /// Yes.
    Done,
}

/// A request and its progress.
#[derive(Clone, Debug)]
pub(crate) struct Sequence {
    pub(crate) id: RequestId,
    /// Order of arrival in this engine.
    pub(crate) arrival: u64,
    /// Its place among the sequences of its client, set when it starts; comparable between clients.
    pub(crate) turn: u64,
    /// When it was chosen to decode last; increases with every choice.
    pub(crate) stepped: u64,
    /// The prompt, then the generated tokens.
    pub(crate) tokens: Vec<u32>,
    /// The same with the contents of images in place of their tokens, if there are images: what pages are
    /// cached by.
    keys: Vec<u32>,
    /// Number of tokens in the pages.
    pub(crate) computed: usize,
    /// The same after the steps in flight.
    planned: usize,
    /// Tokens that the steps in flight sample, at most; the newest is sample `sample` of its batch.
    unknown: usize,
    sample: usize,
    pub(crate) held: PageList,
    /// Nothing was planned since it acquired its pages.
    pub(crate) fresh: bool,
    pub(crate) finished: bool,
    pub(crate) lookup: Lookup,
    failed: bool,
    /// The model reads texts whole and pools them.
    pub(crate) model_pools: bool,
    /// Whether it was in a step before.
    started: bool,
    prompt_len: usize,
    /// Without its prompt and sampling parameters, which are `tokens` and `sampling`.
    request: Request,
    sampling: Arc<Sampling>,
    /// The state of mirostat after the last token.
    mirostat: Option<f32>,
    /// Kept only if the penalties look at it: the first `counted` tokens.
    seen: Seen,
    counted: usize,
    /// The sum of hidden states, for a mean.
    sum: Vec<f32>,
    /// What guesses its next tokens, if anything does.
    drafter: Option<Box<Drafter>>,
    /// Accepted drafts that are computed again, because the state went back to before them.
    redo: usize,
}

impl Sequence {
    pub(crate) fn new(id: RequestId, arrival: u64, mut request: Request) -> Sequence {
        let tokens = std::mem::take(&mut request.prompt);
        let keys = if request.images.is_empty() { vec![] } else { keys(&tokens, &request) };
        let sampling = Arc::new(std::mem::take(&mut request.sampling));
        let seen = if sampling.has_penalties() { Seen::new(&tokens) } else { Seen::default() };
        // mirostat needs the token before a row when the row is sampled, which a draft is not
        let predicted = std::mem::take(&mut request.predicted);
        let drafts = request.drafts > 0 && request.pooling.is_none() && sampling.mirostat.is_none();
        Sequence {
            id,
            arrival,
            turn: 0,
            stepped: 0,
            computed: 0,
            planned: 0,
            unknown: 0,
            sample: 0,
            held: PageList::default(),
            fresh: true,
            finished: false,
            lookup: Lookup::Pending,
            failed: false,
            model_pools: false,
            started: false,
            prompt_len: tokens.len(),
            counted: tokens.len(),
            tokens,
            keys,
            request,
            sampling,
            mirostat: None,
            seen,
            sum: vec![],
            drafter: drafts.then(|| Box::new(Drafter::new(predicted))),
            redo: 0,
        }
    }

    /// Scheduling order of running sequences: lower first.
    pub(crate) fn rank(&self) -> (i32, u64, u64) {
        (self.request.priority, self.turn, self.arrival)
    }

    /// Order in the queue: lower first.
    pub(crate) fn waiting_rank(&self) -> (i32, u64) {
        (self.request.priority, self.arrival)
    }

    /// Whose request it is.
    pub(crate) fn client(&self) -> u64 {
        self.request.client
    }

    /// Tokens, known or in flight, that will be in the pages; the last one of a text never is.
    pub(crate) fn length(&self) -> usize {
        (self.tokens.len() + self.unknown).min(self.prompt_len + self.request.max_tokens - 1)
    }

    /// Those of them that are in no step yet; at least one if nothing is in flight.
    pub(crate) fn pending(&self) -> usize {
        self.length() - self.planned
    }

    /// Whether its next step decodes: nothing is pending but its last token and drafts that were accepted.
    pub(crate) fn is_decoding(&self) -> bool {
        self.pending() == 1 + self.redo
    }

    /// Whether it is in a step that was planned and not applied.
    pub(crate) fn is_in_flight(&self) -> bool {
        self.planned > self.computed
    }

    /// Whether its next token can be planned only when the one in flight is known: because sampling depends
    /// on it, or because two would be unknown.
    pub(crate) fn must_wait(&self) -> bool {
        let depends = self.request.constraint.is_some() || self.sampling.depends_on_text();
        self.pending() > 0 && (self.unknown > 1 || self.unknown > 0 && depends)
    }

    /// Tokens generated so far.
    pub(crate) fn generated(&self) -> usize {
        self.tokens.len() - self.prompt_len
    }

    /// The tokens before its next step and the first of the step: layers with a window have
    /// pages for these at least.
    pub(crate) fn next_length(&self) -> usize {
        (self.planned + 1).min(self.length())
    }

    /// Its first tokens, as pages are cached by them.
    fn text(&self, len: usize) -> Text<'_> {
        Text { tokens: &self.keys()[..len], adapters: &self.request.adapters }
    }

    /// What stands for each token in the prefix cache.
    fn keys(&self) -> &[u32] {
        if self.keys.is_empty() { &self.tokens } else { &self.keys }
    }

    /// All its tokens, as pages are cached by them; `None` if it does not use the prefix cache.
    pub(crate) fn cached_text(&self) -> Option<Text<'_>> {
        (!self.reads_all()).then(|| self.text(self.tokens.len()))
    }

    /// Free pages that it needs to start.
    pub(crate) fn need(&self, pages: &Pages) -> Need {
        pages.need(self.text(self.tokens.len()), !self.reads_all())
    }

    /// Acquires pages for all known tokens, starting with the cached prefix; false, with none acquired, if
    /// there are not enough.
    pub(crate) fn acquire_pages(&mut self, pages: &mut Pages) -> bool {
        if !self.reads_all() {
            self.held = pages.revive(self.text(self.tokens.len()));
        }
        self.start_after_prefix();
        let (length, next_length) = (self.tokens.len(), self.next_length());
        let grown = pages.grow(&mut self.held, length, next_length);
        if !grown {
            self.release_pages(pages);
        }
        grown
    }

    /// Looks for its prefix again, if nothing was planned since it acquired its pages:
    /// others may have computed it.
    pub(crate) fn look_for_prefix(&mut self, pages: &mut Pages) {
        if self.fresh && !self.reads_all() {
            let tokens = if self.keys.is_empty() { &self.tokens } else { &self.keys };
            pages.revive_longer(&mut self.held, Text { tokens, adapters: &self.request.adapters });
            self.start_after_prefix();
        }
    }

    fn start_after_prefix(&mut self) {
        self.redo = 0;
        self.computed = self.held.start();
        self.planned = self.computed;
        self.fresh = true;
    }

    /// The tokens of its next step, of `grant` that it could have: prefill stops where
    /// snapshots of the state are taken.
    pub(crate) fn until_stop(&self, grant: usize) -> usize {
        self.held.stop(self.planned, self.planned + grant, self.length()) - self.planned
    }

    /// About as many tokens as `grant`, without a part of an image.
    pub(crate) fn uncut(&self, grant: usize) -> usize {
        self.request.images.uncut(self.planned, self.planned + grant) - self.planned
    }

    /// The state slots of its next step of `grant` tokens and `drafts`, if there are recurrent layers.
    pub(crate) fn next_slots(
        &mut self,
        pages: &mut Pages,
        grant: usize,
        drafts: usize,
    ) -> Option<StateSlots> {
        let keeps_before = self.is_in_flight() || drafts > 0;
        let step = NextStep { keeps_before, end: self.planned + grant + drafts };
        pages.next_slots(&mut self.held, step)
    }

    /// Looks for tokens that may follow the last known one; returns the probabilities that the first one, the
    /// first two, ... are right.
    pub(crate) fn propose(&mut self, finished: &FinishedTexts, acceptance: &Acceptance) -> Vec<f64> {
        // the last token of a text is sampled, never drafted
        let (generated, scored) = (self.generated(), self.request.scored);
        let left = (self.request.max_tokens - generated).saturating_sub(1);
        let Some(drafter) = self.drafter.as_mut().filter(|_| generated >= scored) else { return vec![] };
        let constraint = self.request.constraint.as_ref();
        if constraint.is_some_and(|constraint| !constraint.looks_ahead()) {
            return vec![];
        }
        let forced = constraint.map_or(vec![], SharedConstraint::forced);
        let most = self.request.drafts.min(MOST_DRAFTS).min(left);
        drafter.propose((&self.tokens, self.prompt_len), &forced, finished, most);
        drafter.survival(acceptance)
    }

    /// Whether something guesses its next tokens.
    pub(crate) fn has_drafter(&self) -> bool {
        self.drafter.is_some()
    }

    /// Whether all its tokens are known.
    pub(crate) fn is_known(&self) -> bool {
        self.unknown == 0
    }

    /// Acquires pages for up to `count` of the proposed drafts after its next `grant` tokens; returns those
    /// that its next step computes.
    pub(crate) fn grow_drafts(&mut self, pages: &mut Pages, grant: usize, count: usize) -> Vec<u32> {
        let Some(drafter) = self.drafter.as_ref().filter(|_| count > 0) else { return vec![] };
        let from = self.planned + grant;
        // a state is kept where a page ends, so a step ends there
        let end = self.held.stop(self.planned, from + count, from + count + 1).max(from);
        if !pages.grow(&mut self.held, end, end) {
            return vec![];
        }
        drafter.drafts(end - from).collect()
    }

    /// Takes back what the newest step computed of rejected drafts: their pages, and a state that includes
    /// them.
    pub(crate) fn roll_back(&mut self, pages: &mut Pages, entry: &Entry) {
        if self.computed == entry.slice.position + entry.tokens.len() {
            return;
        }
        if entry.slice.state.is_some() {
            // the accepted drafts are in the rejected state only: the next step computes them again
            pages.roll_back_state(&mut self.held);
            self.redo = self.computed - entry.slice.position;
            self.computed = entry.slice.position;
        }
        self.planned = self.computed;
        let length = self.length();
        pages.shrink(&mut self.held, length);
    }

    /// Counts which of its drafts were right, of the tokens after the first `known`.
    pub(crate) fn learn_drafts(&mut self, known: usize, acceptance: &mut Acceptance) {
        if let Some(drafter) = &mut self.drafter {
            drafter.learn(&self.tokens[known..], acceptance);
        }
    }

    /// The text that was generated, for later ones to look for their continuation in.
    pub(crate) fn finished_text(&self) -> Option<&[u32]> {
        (self.drafter.is_some() && !self.failed).then(|| &self.tokens[self.prompt_len..])
    }

    /// Caches the pages that are full now, and the state if it is at the end of one; nothing of a sequence
    /// that failed, whose values may not be finite.
    pub(crate) fn remember(&mut self, pages: &mut Pages) {
        if !self.failed {
            let tokens = if self.keys.is_empty() { &self.tokens } else { &self.keys };
            let text = Text { tokens: &tokens[..self.computed], adapters: &self.request.adapters };
            pages.remember(&mut self.held, text);
            pages.take_snapshot(&mut self.held, self.computed);
        }
    }

    /// Acquires pages of layers with a window for its next `grant` tokens, or for as many as there are pages.
    pub(crate) fn grow_window(&mut self, pages: &mut Pages, grant: usize) -> usize {
        pages.grow_window(&mut self.held, self.planned + grant).saturating_sub(self.planned)
    }

    /// Releases the pages: what they hold is computed again later, or found in the prefix cache.
    pub(crate) fn release_pages(&mut self, pages: &mut Pages) {
        if !self.failed {
            let tokens = if self.keys.is_empty() { &self.tokens } else { &self.keys };
            let text = Text { tokens: &tokens[..self.computed], adapters: &self.request.adapters };
            pages.keep_tail(&mut self.held, text);
        }
        pages.give_back(&mut self.held);
        self.computed = 0;
        self.planned = 0;
        self.sum.clear();
    }

    /// A mean needs the hidden state of every token, also of cached ones; a text that is
    /// whole has nothing cached.
    fn reads_all(&self) -> bool {
        self.is_whole() || self.request.pooling == Some(Pooling::Mean)
    }

    /// Whether all its tokens must be in one step.
    pub(crate) fn is_whole(&self) -> bool {
        self.model_pools || self.request.pooling.is_some_and(Pooling::needs_one_step)
    }

    /// Marks it as started; true the first time.
    pub(crate) fn start(&mut self) -> bool {
        !std::mem::replace(&mut self.started, true)
    }

    /// Tokens of the prompt.
    pub(crate) fn prompt_len(&self) -> usize {
        self.prompt_len
    }

    /// The next `grant` tokens and then `drafts`, in a batch with `samples` samples before it; after the last
    /// known token something is requested from the runner. Its state slots are [`Sequence::next_slots`].
    pub(crate) fn next_entry(&mut self, grant: usize, drafts: &[u32], samples: usize) -> Entry {
        let (position, end) = (self.planned, self.planned + grant);
        let last = end == self.tokens.len() + self.unknown;
        // while a token is in flight, it is the only one to plan
        let carried = (self.unknown > 0).then_some(self.sample);
        let mut tokens = if carried.is_some() { vec![0] } else { self.tokens[position..end].to_vec() };
        tokens.extend(drafts);
        let want = match self.request.pooling {
            Some(Pooling::Last) if !last => Want::Nothing,
            Some(pooling) => Want::Pooled(if self.model_pools { pooling.after_graph() } else { pooling }),
            None if last => Want::Tokens(self.samples(end, drafts), self.request.constraint.clone()),
            None => Want::Nothing,
        };
        if let Want::Tokens(requested, _) = &want {
            self.unknown += requested.len();
            self.sample = samples;
        }
        self.planned = end + drafts.len();
        self.redo = self.redo.saturating_sub(grant);
        self.fresh = false;
        let slice = Slice {
            len: tokens.len(),
            position,
            pages: self.held.pages.clone(),
            window_pages: self.held.window_pages.clone(),
            state: None,
            second: self.request.second,
            adapters: self.request.adapters.clone(),
            images: self.request.images.clone(),
        };
        Entry { id: self.id, tokens, carried, slice, want }
    }

    /// How the tokens at `position` and after each of the drafts there are sampled: each as if the drafts
    /// before it were known.
    fn samples(&mut self, position: usize, drafts: &[u32]) -> Vec<Sample> {
        self.count();
        let (known, counted) = (self.tokens.len(), self.counted);
        let before = (!drafts.is_empty()).then(|| self.seen.clone());
        let mut samples = Vec::with_capacity(1 + drafts.len());
        samples.push(self.sample_at(position));
        for (at, draft) in (position + 1..).zip(drafts) {
            self.tokens.push(*draft);
            self.count();
            samples.push(self.sample_at(at));
        }
        self.tokens.truncate(known);
        self.counted = counted;
        self.seen = before.unwrap_or_else(|| std::mem::take(&mut self.seen));
        samples
    }

    fn sample_at(&self, position: usize) -> Sample {
        let history = History { tokens: &self.tokens, seen: &self.seen, mirostat: self.mirostat };
        let mask = self.request.constraint.as_ref().map(|_| Mask::pending());
        Sample { mask, ..self.sampling.at(position, history) }
    }

    /// Counts the tokens generated since the last plan. Not earlier: while a batch shares the counts, adding
    /// to them would copy them.
    fn count(&mut self) {
        let prompt = self.prompt_len + self.request.scored;
        match self.request.penalty_window.filter(|window| *window < self.tokens.len()) {
            _ if !self.sampling.has_penalties() => {}
            Some(window) => self.seen = seen_last(&self.tokens, window, prompt),
            None => {
                for (at, &id) in self.tokens.iter().enumerate().skip(self.counted) {
                    if at < prompt { self.seen.see(id) } else { self.seen.add(id) }
                }
                self.counted = self.tokens.len();
            }
        }
    }

    /// Applies the answer to an entry and emits the resulting events.
    pub(crate) fn advance(&mut self, entry: &Entry, answer: &Answer, emit: &mut impl FnMut(Event)) {
        self.computed = entry.slice.position + entry.tokens.len() - entry.drafts().len();
        let not_finite = EngineError::NotFinite { position: self.computed - 1 };
        self.unknown -= entry.samples().len();
        match (&entry.want, answer) {
            (Want::Nothing, _) => {}
            (Want::Tokens(..), Answer::Tokens(rows)) if !rows.is_empty() => {
                self.take_rows(rows, entry.drafts(), emit);
            }
            (Want::Pooled(_), Answer::Hidden(row)) if self.is_whole() => {
                self.end(Event::Embedding(row.clone()), emit);
            }
            (Want::Pooled(_), Answer::Hidden(row)) => self.pool(row, emit),
            (Want::Tokens(samples, _), _) => {
                // nothing could be sampled: either no token was allowed, or a logit was not finite
                let mask = samples.first().and_then(|sample| sample.mask.as_ref());
                let why = match mask.map(Mask::wait) {
                    Some(Err(why)) => EngineError::Constraint(why.to_string()),
                    Some(Ok(words)) if words.iter().all(|&word| word == 0) => {
                        EngineError::Constraint("no token is allowed".into())
                    }
                    _ => not_finite,
                };
                self.end(Event::Failed(why), emit);
            }
            (Want::Pooled(_), _) => self.end(Event::Failed(not_finite), emit),
        }
    }

    /// Takes the samples after the last known token and after the drafts that equal the samples before
    /// them. If a draft's row has no sample, the next step finds out why.
    fn take_rows(&mut self, rows: &[Sampled], drafts: &[u32], emit: &mut impl FnMut(Event)) {
        for (row, sampled) in rows.iter().enumerate() {
            self.take(sampled, emit);
            if self.finished || drafts.get(row) != Some(&sampled.id) {
                return;
            }
            self.computed += 1;
        }
    }

    fn take(&mut self, sampled: &Sampled, emit: &mut impl FnMut(Event)) {
        if self.request.end_tokens.contains(&sampled.id) {
            return self.end(Event::Done(Finish::Stop(sampled.id)), emit);
        }
        let complete =
            self.request.constraint.as_ref().map_or(Ok(false), |constraint| constraint.accept(sampled.id));
        let complete = match complete {
            Ok(complete) => complete,
            Err(why) => return self.end(Event::Failed(EngineError::Constraint(why)), emit),
        };
        self.tokens.push(sampled.id);
        if !self.keys.is_empty() {
            self.keys.push(sampled.id);
        }
        // tokens that are scored were not chosen
        self.mirostat = sampled.mirostat.filter(|_| self.generated() > self.request.scored);
        emit(Event::Token(sampled.clone()));
        if complete {
            self.end(Event::Done(Finish::Complete), emit);
        } else if self.generated() == self.request.max_tokens {
            self.end(Event::Done(Finish::Length), emit);
        }
    }

    fn pool(&mut self, row: &[f32], emit: &mut impl FnMut(Event)) {
        self.sum.resize(row.len(), 0.0);
        self.sum.iter_mut().zip(row).for_each(|(sum, x)| *sum += x);
        if self.computed < self.tokens.len() {
            return;
        }
        let count = if self.reads_all() { self.tokens.len() as f32 } else { 1.0 };
        let vector: Vec<f32> = self.sum.iter().map(|sum| sum / count).collect();
        let event = match all_finite(&vector) {
            true => Event::Embedding(vector),
            // the sum overflowed
            false => Event::Failed(EngineError::NotFinite { position: self.computed - 1 }),
        };
        self.end(event, emit);
    }

    fn end(&mut self, event: Event, emit: &mut impl FnMut(Event)) {
        self.finished = true;
        self.failed = matches!(event, Event::Failed(_));
        emit(event);
    }
}

/// The tokens of a prompt, with numbers above all tokens in place of those of images: contents have one each.
fn keys(tokens: &[u32], request: &Request) -> Vec<u32> {
    let key = |(position, token): (usize, &u32)| match request.images.at(position) {
        Some(image) => image.rows.id | IMAGE,
        None => *token,
    };
    tokens.iter().enumerate().map(key).collect()
}

/// The last `window` tokens, of which those after the first `prompt` of all were generated.
fn seen_last(tokens: &[u32], window: usize, prompt: usize) -> Seen {
    let from = tokens.len().saturating_sub(window);
    let mut counts: Vec<(u32, u32)> =
        (from..).zip(&tokens[from..]).map(|(at, id)| (*id, u32::from(at >= prompt))).collect();
    counts.sort_unstable();
    counts.dedup_by(|next, kept| {
        let same = next.0 == kept.0;
        kept.1 += if same { next.1 } else { 0 };
        same
    });
    counts.into()
}

#[cfg(test)]
mod tests {
    use tern_graph::{Dry, Mirostat, MirostatVersion};

    use super::*;
    use crate::Constraint;

    fn events(request: Request, ids: &[Option<u32>]) -> Vec<Event> {
        let mut sequence = Sequence::new(1, 1, request);
        let mut events = vec![];
        for id in ids {
            let entry = sequence.next_entry(sequence.pending(), &[], 0);
            let answer =
                id.map_or(Answer::Nothing, |id| Answer::Tokens(vec![Sampled { id, ..Sampled::default() }]));
            entry.make_masks();
            sequence.advance(&entry, &answer, &mut |e| events.push(e));
        }
        assert!(sequence.finished);
        events
    }

    fn token(id: u32) -> Event {
        Event::Token(Sampled { id, ..Sampled::default() })
    }

    #[test]
    fn a_text_ends_by_length_by_its_end_token_or_without_a_logit() {
        let two = || Request::new(vec![1], 2);
        assert_eq!(events(two(), &[Some(5), Some(6)]), [token(5), token(6), Event::Done(Finish::Length)]);
        let stop = Request { end_tokens: [9, 6].into(), ..two() };
        assert_eq!(events(stop, &[Some(5), Some(6)]), [token(5), Event::Done(Finish::Stop(6))]);
        let broken = Event::Failed(EngineError::NotFinite { position: 1 });
        assert_eq!(events(two(), &[Some(5), None]), [token(5), broken]);
    }

    /// Counts upward; complete at 7, fails after 8.
    struct Counting(u32);

    impl Constraint for Counting {
        fn mask(&mut self) -> Result<Vec<u32>, String> {
            if self.0 < 9 { Ok(vec![1 << self.0]) } else { Err("nine is too much".into()) }
        }

        fn accept(&mut self, token: u32) -> Result<bool, String> {
            if token != self.0 {
                return Err(format!("{token} after {}", self.0));
            }
            self.0 += 1;
            Ok(token == 7)
        }
    }

    #[test]
    fn a_constraint_ends_a_text_when_it_is_complete_and_reports_why_it_fails() {
        let constrained = |from| Request {
            constraint: Some(SharedConstraint::new(Counting(from))),
            ..Request::new(vec![1], 9)
        };
        let message = |events: Vec<Event>| match events.last() {
            Some(Event::Failed(why)) => why.to_string(),
            other => format!("{other:?}"),
        };
        let done = [token(6), token(7), Event::Done(Finish::Complete)];
        assert_eq!(events(constrained(6), &[Some(6), Some(7)]), done);
        assert_eq!(message(events(constrained(3), &[Some(4)])), "constraint: 4 after 3");
        assert_eq!(message(events(constrained(8), &[Some(8), None])), "constraint: nine is too much");
    }

    #[test]
    fn a_mean_adds_up_over_chunks_and_the_last_is_the_last() {
        for (pooling, want) in [(Pooling::Mean, 2.0), (Pooling::Last, 6.0)] {
            let mut sequence = Sequence::new(1, 1, Request::embed(vec![1, 2, 3, 4], pooling));
            let mut events = vec![];
            for sum in [2.0, 6.0] {
                let entry = sequence.next_entry(2, &[], 0);
                sequence.advance(&entry, &Answer::Hidden(vec![sum]), &mut |e| events.push(e));
            }
            assert_eq!(events, [Event::Embedding(vec![want])]);
        }
    }

    #[test]
    fn penalties_see_the_prompt_and_the_generated_tokens() {
        let sampling = Sampling { frequency: 1.0, ..Sampling::default() };
        let mut sequence = Sequence::new(1, 1, Request { sampling, ..Request::new(vec![4, 4, 2], 9) });
        let entry = sequence.next_entry(3, &[], 0);
        sequence.advance(&entry, &Answer::Tokens(vec![Sampled { id: 2, ..Sampled::default() }]), &mut |_| ());
        let seen =
            sequence.next_entry(1, &[], 0).samples().first().map(|s: &Sample| s.seen.counts().to_vec());
        assert_eq!(seen, Some(vec![(2, 1), (4, 0)]));
    }

    #[test]
    fn penalties_may_see_the_last_tokens_only() {
        let sampling = Sampling { frequency: 1.0, ..Sampling::default() };
        for (window, want) in [
            (Some(3), vec![(2, 2), (4, 0)]),
            (Some(2), vec![(2, 2)]),
            (Some(0), vec![]),
            (Some(5), vec![(2, 2), (4, 0), (7, 0)]),
            (Some(9), vec![(2, 2), (4, 0), (7, 0)]),
            (None, vec![(2, 2), (4, 0), (7, 0)]),
        ] {
            let request = Request {
                sampling: sampling.clone(),
                penalty_window: window,
                ..Request::new(vec![7, 4, 4], 9)
            };
            let mut sequence = Sequence::new(1, 1, request);
            for grant in [3, 1] {
                let entry = sequence.next_entry(grant, &[], 0);
                sequence.advance(
                    &entry,
                    &Answer::Tokens(vec![Sampled { id: 2, ..Sampled::default() }]),
                    &mut |_| (),
                );
            }
            let seen =
                sequence.next_entry(1, &[], 0).samples().first().map(|s: &Sample| s.seen.counts().to_vec());
            assert_eq!(seen, Some(want), "{window:?}");
        }
    }

    #[test]
    fn scored_tokens_do_not_count_as_generated() {
        let sampling = Sampling { frequency: 1.0, ..Sampling::default() };
        let request = Request { sampling, scored: 2, ..Request::new(vec![4], 9) };
        let mut sequence = Sequence::new(1, 1, request);
        for id in [2, 7, 2] {
            let entry = sequence.next_entry(1, &[], 0);
            let sampled = Sampled { id, mirostat: Some(3.0), ..Sampled::default() };
            sequence.advance(&entry, &Answer::Tokens(vec![sampled]), &mut |_| ());
            assert_eq!(sequence.mirostat, (sequence.generated() == 3).then_some(3.0));
        }
        let seen =
            sequence.next_entry(1, &[], 0).samples().first().map(|s: &Sample| s.seen.counts().to_vec());
        assert_eq!(seen, Some(vec![(2, 1), (4, 0), (7, 0)]));
    }

    #[test]
    fn sampling_that_depends_on_the_text_waits_for_the_token_in_flight() {
        let waits = |sampling: Sampling| {
            let mut sequence = Sequence::new(1, 1, Request { sampling, ..Request::new(vec![4], 9) });
            sequence.next_entry(1, &[], 0);
            sequence.must_wait()
        };
        let off = Sampling::default;
        let mirostat = Mirostat { version: MirostatVersion::Two, tau: 5.0, eta: 0.1 };
        assert!(!waits(off()));
        assert!(!waits(Sampling { typical_p: 0.5, top_n_sigma: 1.0, ..off() }));
        assert!(waits(Sampling { dry: Dry { multiplier: 0.8, ..Dry::default() }, ..off() }));
        assert!(waits(Sampling { mirostat: Some(mirostat), ..off() }));
        assert!(waits(Sampling { presence: 0.1, ..off() }));
    }
}
