//! A runner without a model: the next token is a function of every token before it.

use std::collections::{HashMap, HashSet};

use tern_graph::{Random, Sample, Sampled};

use crate::{Batch, EngineError, Entry, Runner};

type Answer = dyn FnMut(&[u32], &Sample) -> Option<u32> + Send;

/// Answers from history, which it reads back through the pages of each entry.
///
/// It remembers which token was written to which slot of which page and nothing about requests. A scheduler that
/// mixes up pages, positions or recomputation therefore changes the text, or asks for a slot that was never
/// written.
pub struct ScriptedRunner {
    vocab: usize,
    page_len: usize,
    /// `[page][slot]`
    written: HashMap<u32, Vec<Option<u32>>>,
    answer: Box<Answer>,
}

impl ScriptedRunner {
    /// Every next token is a hash of all tokens before it, of the tokens seen and, when hot, of the draw.
    pub fn new(vocab: usize, page_len: usize) -> ScriptedRunner {
        let vocab = vocab.max(1);
        ScriptedRunner::answering(vocab, page_len, move |history, sample| {
            Some(hashed(history, sample, vocab))
        })
    }

    /// Every next token is what `answer` makes of the history; `None` stands for a model without a finite logit.
    pub fn answering(
        vocab: usize,
        page_len: usize,
        answer: impl FnMut(&[u32], &Sample) -> Option<u32> + Send + 'static,
    ) -> ScriptedRunner {
        let page_len = page_len.max(1);
        ScriptedRunner { vocab, page_len, written: HashMap::new(), answer: Box::new(answer) }
    }

    fn write(&mut self, entry: &Entry) -> Result<(), EngineError> {
        for (i, &token) in entry.tokens.iter().enumerate() {
            let (page, slot) = self.slot(entry, entry.position + i)?;
            self.written.entry(page).or_insert_with(|| vec![None; self.page_len])[slot] = Some(token);
        }
        Ok(())
    }

    fn history(&self, entry: &Entry) -> Result<Vec<u32>, EngineError> {
        let read = |position| {
            let (page, slot) = self.slot(entry, position)?;
            let token = self.written.get(&page).and_then(|slots| slots[slot]);
            token.ok_or_else(|| fault(entry, format!("position {position} was never written")))
        };
        (0..entry.position + entry.tokens.len()).map(read).collect()
    }

    fn slot(&self, entry: &Entry, position: usize) -> Result<(u32, usize), EngineError> {
        let page = entry.pages.get(position / self.page_len);
        let page = page.ok_or_else(|| fault(entry, format!("no page for position {position}")))?;
        Ok((*page, position % self.page_len))
    }

    /// The token and made-up log-probabilities: 0 for it, -1, -2, ... for the ids after it.
    fn report(&self, id: u32, logprobs: Option<usize>) -> Sampled {
        let Some(count) = logprobs else { return Sampled { id, ..Sampled::default() } };
        let nth = |i: usize| (((id as usize + i) % self.vocab.max(1)) as u32, -(i as f32));
        Sampled { id, logprob: Some(0.0), top: (0..count.min(self.vocab)).map(nth).collect() }
    }
}

fn fault(entry: &Entry, what: String) -> EngineError {
    EngineError::Runner(format!("request {}: {what}", entry.id))
}

impl Runner for ScriptedRunner {
    fn step(&mut self, batch: &Batch) -> Result<Vec<Option<Sampled>>, EngineError> {
        let mut taken = HashSet::new();
        for entry in &batch.entries {
            if entry.tokens.is_empty() {
                return Err(fault(entry, "no tokens".into()));
            }
            if let Some(page) = entry.pages.iter().find(|page| !taken.insert(**page)) {
                return Err(fault(entry, format!("page {page} is in this batch already")));
            }
            self.write(entry)?;
        }
        let mut out = vec![];
        for entry in &batch.entries {
            let history = self.history(entry)?;
            let id = entry.sample.as_ref().and_then(|sample| (self.answer)(&history, sample));
            out.push(id.map(|id| self.report(id, entry.sample.as_ref().and_then(|s| s.logprobs))));
        }
        Ok(out)
    }

    fn vocab(&self) -> usize {
        self.vocab
    }
}

fn hashed(history: &[u32], sample: &Sample, vocab: usize) -> u32 {
    let seen = sample.seen.iter().flat_map(|&(id, times)| [id, times]);
    let draw = (sample.temperature > 0.0).then(|| sample.draw.to_bits());
    let words = history.iter().copied().chain(seen).chain(draw);
    let mix = words.fold(0, |hash: u64, word| Random::new(hash ^ u64::from(word)).next_u64());
    Random::new(mix).below(vocab) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(tokens: &[u32], position: usize, pages: &[u32]) -> Entry {
        let (tokens, pages) = (tokens.to_vec(), pages.to_vec());
        Entry { id: 1, tokens, position, pages, sample: Some(Sample::default()) }
    }

    fn next(runner: &mut ScriptedRunner, entries: Vec<Entry>) -> Result<Vec<u32>, String> {
        let out = runner.step(&Batch { entries }).map_err(|e| e.to_string())?;
        Ok(out.into_iter().flatten().map(|s| s.id).collect())
    }

    #[test]
    fn chunks_on_any_pages_give_the_same_token_and_another_history_another() {
        let whole = next(&mut ScriptedRunner::new(1000, 2), vec![entry(&[1, 2, 3, 4, 5], 0, &[0, 1, 2])]);
        let runner = &mut ScriptedRunner::new(1000, 2);
        next(runner, vec![entry(&[1, 2, 3], 0, &[7, 3])]).unwrap();
        assert_eq!(next(runner, vec![entry(&[4, 5], 3, &[7, 3, 4])]), whole);
        assert_ne!(next(runner, vec![entry(&[5, 5], 3, &[7, 3, 4])]), whole);
    }

    #[test]
    fn a_slot_never_written_a_missing_page_and_a_shared_page_are_refused() {
        let runner = &mut ScriptedRunner::new(1000, 2);
        let mut words = |entries| next(runner, entries).unwrap_err();
        assert_eq!(words(vec![entry(&[1], 1, &[0])]), "request 1: position 0 was never written");
        assert_eq!(words(vec![entry(&[1], 2, &[0])]), "request 1: no page for position 2");
        let twice = vec![entry(&[1], 0, &[5]), entry(&[1], 0, &[5])];
        assert_eq!(words(twice), "request 1: page 5 is in this batch already");
    }

    #[test]
    fn the_draw_counts_only_when_hot() {
        let runner = &mut ScriptedRunner::new(1000, 2);
        let mut with = |temperature, draw| {
            let sample = Some(Sample { temperature, draw, ..Sample::default() });
            next(runner, vec![Entry { sample, ..entry(&[1], 0, &[0]) }])
        };
        assert_eq!(with(0.0, 0.1), with(0.0, 0.9));
        assert_ne!(with(1.0, 0.1), with(1.0, 0.9));
    }
}
