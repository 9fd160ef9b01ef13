//! A runner without a model: the next token is a function of every token before it.

use std::collections::{HashMap, HashSet, VecDeque};

use tern_graph::{AdapterScales, Place, Random, Sample, Sampled, StateSlots};

use crate::{Answer, Batch, CacheFormat, Capacity, EngineError, Entry, Pooling, Runner, Want};

type Script = dyn FnMut(&[u32], &Sample) -> Option<u32> + Send;

/// Answers from the history, which it reads back through the pages of each entry.
///
/// It keeps which token was written to which slot of which page and nothing about requests. A
/// scheduler that mixes up pages, positions or recomputation therefore changes the text, or reads a
/// slot that was never written.
///
/// If the capacity has pages of layers with a window, a slot of theirs keeps what a layer's keys depend on,
/// all tokens up to the position. Each token reads its window, and anything else in it fails the batch. If it
/// has state slots, a slot keeps the same, computed from the slot that is read: a state of other tokens than
/// those in the pages, of another position or of a slot that was never written fails the batch.
pub struct ScriptedRunner {
    vocab: usize,
    capacity: Capacity,
    /// Tokens, and the adapters that they were computed with. `[page][slot]`
    written: HashMap<u32, Vec<Option<(u32, AdapterScales)>>>,
    /// Hashes of all tokens up to a position, in pages of layers with a window. `[page][slot]`
    window_written: HashMap<u32, Vec<Option<u64>>>,
    /// Hashes of all tokens that a state was computed from, by slot.
    states: HashMap<u32, u64>,
    script: Box<Script>,
    ahead: bool,
    /// The samples of the last batch, for carried tokens of the next.
    sampled: Vec<Option<u32>>,
    /// Answers that were not collected, the oldest first.
    in_flight: VecDeque<Vec<Answer>>,
}

impl ScriptedRunner {
    /// Every next token is a hash of all tokens before it, of the tokens seen and, if the
    /// temperature is not 0, of the draw.
    pub fn new(vocab: usize, capacity: Capacity) -> ScriptedRunner {
        let vocab = vocab.max(1);
        ScriptedRunner::answering(vocab, capacity, move |history, sample| {
            Some(hashed(history, sample, vocab))
        })
    }

    /// Every next token is `answer(history)`; `None` stands for logits that are not finite.
    pub fn answering(
        vocab: usize,
        capacity: Capacity,
        answer: impl FnMut(&[u32], &Sample) -> Option<u32> + Send + 'static,
    ) -> ScriptedRunner {
        let capacity = Capacity { page_len: capacity.page_len.max(1), ..capacity };
        ScriptedRunner {
            vocab,
            capacity,
            written: HashMap::new(),
            window_written: HashMap::new(),
            states: HashMap::new(),
            script: Box::new(answer),
            ahead: false,
            sampled: vec![],
            in_flight: VecDeque::new(),
        }
    }

    /// The same, accepting a batch before the one before it is collected, as a device does.
    pub fn running_ahead(self) -> ScriptedRunner {
        ScriptedRunner { ahead: true, ..self }
    }

    /// The entry with its carried token resolved, if it has one.
    fn resolve(&self, entry: &Entry, sampled: &[Option<u32>]) -> Result<Entry, EngineError> {
        let mut entry = entry.clone();
        let Some(sample) = entry.carried.take() else { return Ok(entry) };
        let (Some(id), [token]) = (sampled.get(sample), &mut entry.tokens[..]) else {
            return Err(fault(
                &entry,
                format!("sample {sample} of {} for {:?}", sampled.len(), entry.tokens),
            ));
        };
        *token = id.unwrap_or(*token);
        Ok(entry)
    }

    fn write(&mut self, entry: &Entry) -> Result<(), EngineError> {
        for (i, &token) in entry.tokens.iter().enumerate() {
            let (page, slot) = self.slot(entry, entry.slice.position + i)?;
            self.written.entry(page).or_insert_with(|| vec![None; self.capacity.page_len])[slot] =
                Some((token, entry.slice.adapters.clone()));
        }
        Ok(())
    }

    /// What the window's pages hold of each token of a history: all tokens up to it.
    fn prefixes(entry: &Entry, history: &[u32]) -> Vec<u64> {
        let prefixes = history.iter().scan(start(entry), |hash, &token| {
            *hash = mixed(*hash, token);
            Some(*hash)
        });
        prefixes.collect()
    }

    /// Computes the state after an entry's tokens from the one before them, and compares it with the pages.
    fn write_state(&mut self, entry: &Entry) -> Result<(), EngineError> {
        let Some(capacity) = self.capacity.state else { return Ok(()) };
        let Some(StateSlots { read, write }) = entry.slice.state else {
            return Err(fault(entry, "no state slots".into()));
        };
        if let Some(slot) = read.into_iter().chain([write]).find(|slot| *slot as usize >= capacity.slots) {
            return Err(fault(entry, format!("state slot {slot} of {}", capacity.slots)));
        }
        let before = match read {
            None if entry.slice.position > 0 => return Err(fault(entry, "no state is read".into())),
            None => start(entry),
            Some(slot) => *self
                .states
                .get(&slot)
                .ok_or_else(|| fault(entry, format!("state slot {slot} is read and was never written")))?,
        };
        let history = self.history(entry)?;
        if before
            != history[..entry.slice.position].iter().fold(start(entry), |state, token| mixed(state, *token))
        {
            let (position, slot) = (entry.slice.position, read.unwrap_or(0));
            return Err(fault(
                entry,
                format!("state slot {slot} is not the state before position {position}"),
            ));
        }
        self.states.insert(write, entry.tokens.iter().fold(before, |state, token| mixed(state, *token)));
        Ok(())
    }

    fn window_slot(&self, entry: &Entry, position: usize) -> Result<(u32, usize), EngineError> {
        let (page_len, pages) = (self.capacity.page_len, self.capacity.window.map_or(0, |w| w.pages));
        let page = entry.slice.window_pages.get(position / page_len).filter(|page| (**page as usize) < pages);
        let page = page.ok_or_else(|| fault(entry, format!("no window page for position {position}")))?;
        Ok((*page, position % page_len))
    }

    fn write_window(&mut self, entry: &Entry) -> Result<(), EngineError> {
        if self.capacity.window.is_none() {
            return Ok(());
        }
        let prefixes = ScriptedRunner::prefixes(entry, &self.history(entry)?);
        for (position, prefix) in prefixes.iter().enumerate().skip(entry.slice.position) {
            let ((page, slot), page_len) = (self.window_slot(entry, position)?, self.capacity.page_len);
            self.window_written.entry(page).or_insert_with(|| vec![None; page_len])[slot] = Some(*prefix);
        }
        Ok(())
    }

    /// Reads the window of every token of an entry: the first one sees the oldest keys,
    /// the others all that follow.
    fn check_window(&self, entry: &Entry, history: &[u32]) -> Result<(), EngineError> {
        let Some(window) = self.capacity.window else { return Ok(()) };
        let first = (entry.slice.position + 1).saturating_sub(window.tokens);
        for (position, prefix) in ScriptedRunner::prefixes(entry, history).iter().enumerate().skip(first) {
            let (page, slot) = self.window_slot(entry, position)?;
            let found = self.window_written.get(&page).and_then(|slots| slots[slot]);
            if found != Some(*prefix) {
                return Err(fault(entry, format!("position {position} of the window holds something else")));
            }
        }
        Ok(())
    }

    fn history(&self, entry: &Entry) -> Result<Vec<u32>, EngineError> {
        let read = |position| {
            let (page, slot) = self.slot(entry, position)?;
            let found = self.written.get(&page).and_then(|slots| slots[slot].as_ref());
            let (token, adapters) =
                found.ok_or_else(|| fault(entry, format!("position {position} was never written")))?;
            match *adapters == entry.slice.adapters {
                true => Ok(*token),
                false => Err(fault(entry, format!("position {position} was computed with other adapters"))),
            }
        };
        (0..entry.slice.position + entry.tokens.len()).map(read).collect()
    }

    fn slot(&self, entry: &Entry, position: usize) -> Result<(u32, usize), EngineError> {
        let page = entry.slice.pages.get(position / self.capacity.page_len);
        let page = page.ok_or_else(|| fault(entry, format!("no page for position {position}")))?;
        Ok((*page, position % self.capacity.page_len))
    }

    fn answer(&mut self, entry: &Entry) -> Result<Answer, EngineError> {
        let history = self.history(entry)?;
        self.check_window(entry, &history)?;
        let samples = match &entry.want {
            Want::Nothing => return Ok(Answer::Nothing),
            Want::Tokens(samples, _) => samples,
            // two columns that depend on the tokens and on their order
            Want::Pooled(Pooling::Mean) => {
                return Ok(Answer::Hidden(hidden(&history[entry.slice.position..], entry.slice.position)));
            }
            Want::Pooled(_) => {
                let last = history.len() - 1;
                return Ok(Answer::Hidden(hidden(&history[last..], last)));
            }
        };
        // adapters change every answer
        let shift = start(entry) as u32 % self.vocab as u32;
        let rows = history.len() + 1 - samples.len()..;
        let row = |(len, sample): (usize, &Sample)| {
            let id = (self.script)(&history[..len], sample);
            let id = id.map(|id| if shift == 0 { id } else { (id + shift) % self.vocab as u32 });
            let id = id.and_then(|id| self.allowed(id, sample));
            id.map(|id| self.report(id, sample))
        };
        Ok(Answer::Tokens(rows.zip(samples).map_while(row).collect()))
    }

    /// The token itself, or else the next one that the mask allows.
    fn allowed(&self, id: u32, sample: &Sample) -> Option<u32> {
        let Some(mask) = &sample.mask else { return Some(id) };
        let words = mask.wait().ok()?;
        let vocab = self.vocab as u32;
        let allowed = |id: &u32| words.get(*id as usize / 32).is_some_and(|w| w >> (id % 32) & 1 == 1);
        (id..vocab).chain(0..id.min(vocab)).find(allowed)
    }

    /// The token and made-up log-probabilities: 0 for it, -1, -2, ... for the ids after it.
    fn report(&self, id: u32, sample: &Sample) -> Sampled {
        let Some(count) = sample.params.logprobs else { return Sampled { id, ..Sampled::default() } };
        let vocab = self.vocab.max(1);
        let nth = |i: usize| (((id as usize + i) % vocab) as u32, -(i as f32));
        let of = |other: &u32| -(((*other as usize + vocab - id as usize) % vocab) as f32);
        let reported = sample.params.reported.iter().map(of).collect();
        let top = (0..count.min(self.vocab)).map(nth).collect();
        Sampled { id, logprob: Some(0.0), top, rank: Some(1), reported, ..Sampled::default() }
    }
}

/// Refuses entries that write the same slot, or one that another reads: their order in a step is not defined.
fn check_slots(entries: &[Entry]) -> Result<(), EngineError> {
    for entry in entries {
        let Some(StateSlots { write, .. }) = entry.slice.state else { continue };
        let uses = |state: StateSlots| state.write == write || state.read == Some(write);
        let mut others = entries.iter().filter(|other| other.id != entry.id);
        if let Some(other) = others.find(|other| other.slice.state.is_some_and(uses)) {
            return Err(fault(entry, format!("request {} uses state slot {write}, too", other.id)));
        }
    }
    Ok(())
}

/// A state or a hash of a prefix, after one more token.
fn mixed(before: u64, token: u32) -> u64 {
    Random::new(before ^ u64::from(token)).next_u64()
}

/// What states and hashes of prefixes begin with: a number of the sequence's adapters, 0 without any.
fn start(entry: &Entry) -> u64 {
    entry.slice.adapters.scales().iter().fold(0, |hash, scale| mixed(hash, scale.to_bits()))
}

fn hidden(tokens: &[u32], position: usize) -> Vec<f32> {
    let sum: u32 = tokens.iter().sum();
    let turned: usize = (position..).zip(tokens).map(|(at, &id)| at * id as usize).sum();
    vec![sum as f32, turned as f32]
}

fn fault(entry: &Entry, what: String) -> EngineError {
    EngineError::Runner(format!("request {}: {what}", entry.id))
}

impl Runner for ScriptedRunner {
    fn submit(&mut self, batch: &Batch) -> Result<(), EngineError> {
        if self.in_flight.len() > usize::from(self.ahead) {
            return Err(EngineError::Runner(format!("{} batches are in flight", self.in_flight.len())));
        }
        let before = std::mem::take(&mut self.sampled);
        let entries: Vec<Entry> =
            batch.entries.iter().map(|e| self.resolve(e, &before)).collect::<Result<_, _>>()?;
        let mut written = HashSet::new();
        for entry in &entries {
            if entry.tokens.is_empty() || entry.slice.len != entry.tokens.len() {
                let (len, tokens) = (entry.slice.len, entry.tokens.len());
                return Err(fault(entry, format!("a slice of {len} for {tokens} tokens")));
            }
            // many entries may read a page, but only one may write it
            let first = entry.slice.position / self.capacity.page_len;
            if let Some(page) = entry.slice.pages.iter().skip(first).find(|page| !written.insert(**page)) {
                return Err(fault(entry, format!("page {page} is written in this batch already")));
            }
        }
        for entry in &entries {
            let read = entry.slice.pages.iter().take(entry.slice.position / self.capacity.page_len);
            if let Some(page) = read.into_iter().find(|page| written.contains(page)) {
                return Err(fault(entry, format!("page {page} is read and written in this batch")));
            }
            self.write(entry)?;
        }
        entries.iter().try_for_each(|e| self.write_window(e))?;
        check_slots(&entries)?;
        entries.iter().try_for_each(|e| self.write_state(e))?;
        let answers: Vec<Answer> = entries.iter().map(|e| self.answer(e)).collect::<Result<_, _>>()?;
        let ids = |(entry, answer): (&Entry, &Answer)| {
            let rows = if let Answer::Tokens(rows) = answer { &rows[..] } else { &[] };
            let id = |row: usize| rows.get(row).map(|sampled| sampled.id);
            (0..entry.samples().len()).map(id).collect::<Vec<_>>()
        };
        self.sampled = entries.iter().zip(&answers).flat_map(ids).collect();
        self.in_flight.push_back(answers);
        Ok(())
    }

    fn collect(&mut self) -> Result<Vec<Answer>, EngineError> {
        self.in_flight.pop_front().ok_or_else(|| EngineError::Runner("no batch is in flight".into()))
    }

    fn runs_ahead(&self) -> bool {
        self.ahead
    }

    fn capacity(&self) -> Capacity {
        self.capacity
    }

    fn vocab(&self) -> usize {
        self.vocab
    }

    fn adapters(&self) -> usize {
        usize::MAX
    }

    fn cache_format(&self) -> Option<CacheFormat> {
        let Capacity { page_len, window, state, .. } = self.capacity;
        let bytes = [page_len * copies::SLOT, window.map_or(0, |_| page_len * 8), state.map_or(0, |_| 8)];
        Some(CacheFormat { model: [0; 32], adapters: [0; 32], bytes })
    }

    fn read_cache(&mut self, place: Place, to: &mut Vec<u8>) -> Result<(), EngineError> {
        self.copy_out(place, to)
    }

    fn write_cache(&mut self, place: Place, bytes: &[u8]) -> Result<(), EngineError> {
        self.copy_in(place, bytes)
    }
}

fn hashed(history: &[u32], sample: &Sample, vocab: usize) -> u32 {
    let seen = sample.seen.counts().iter().flat_map(|&(id, times)| [id, times]);
    let draw = (sample.params.temperature > 0.0).then(|| sample.draw.to_bits());
    let words = history.iter().copied().chain(seen).chain(draw);
    let mix = words.fold(0, mixed);
    Random::new(mix).below(vocab) as u32
}

mod copies;
#[cfg(test)]
mod tests;
