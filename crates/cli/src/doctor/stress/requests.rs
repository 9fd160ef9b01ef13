//! The requests of a stress run: random, reproducible by seed, with sizes around the engine's boundaries.

use tern::engine::{AdapterScales, Request, Sampling};
use tern::graph::Random;

/// Maximum prompt tokens of ordinary requests.
const PROMPT: usize = 512;
/// Maximum generated tokens per request.
const ANSWER: usize = 90;
/// The index of the request with a long answer in each group of four; its prompt is very short or very long.
const LONG_ANSWER: usize = 3;
/// Number of texts that prompts share as prefixes.
const DOCUMENTS: usize = 4;

/// The sizes of the engine that requests are derived from.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sizes {
    pub(crate) vocab: usize,
    pub(crate) context: usize,
    pub(crate) page_len: usize,
    pub(crate) step_tokens: usize,
    /// Adapters of the model.
    pub(crate) adapters: usize,
}

impl Sizes {
    /// Tokens of the longest possible request.
    pub(crate) fn longest(&self) -> usize {
        (PROMPT.max(self.step_tokens + self.step_tokens / 2) + ANSWER).min(self.context)
    }
}

/// An endless iterator of requests.
pub(crate) struct Requests {
    sizes: Sizes,
    random: Random,
    documents: Vec<Vec<u32>>,
    made: usize,
}

impl Requests {
    pub(crate) fn new(sizes: Sizes, seed: u64) -> Requests {
        let mut random = Random::new(seed);
        let mut document = |_| tokens(&mut random, sizes.vocab, sizes.context);
        let documents = (0..DOCUMENTS).map(&mut document).collect();
        Requests { sizes, random, documents, made: 0 }
    }

    /// Cycles through all kinds of lengths, so that a few requests cover every boundary.
    fn prompt_len(&mut self) -> usize {
        let Sizes { page_len, step_tokens, context, .. } = self.sizes;
        let random = &mut self.random;
        let len = match self.made % 8 {
            0 | 3 => 1 + random.below(page_len),
            1 | 4 => near(page_len * (1 + random.below(4)), random),
            2 => 1 + random.below(PROMPT),
            5 => near(step_tokens / 2, random), // the part of a step that is reserved for the first prompt
            6 => near(step_tokens, random),
            _ => step_tokens + random.below(step_tokens.div_ceil(2)), // always in several chunks
        };
        len.clamp(1, context - 1)
    }

    /// Half of the prompts are prefixes of a document, a quarter start with a part of one.
    fn prompt(&mut self, len: usize) -> Vec<u32> {
        let shared = match self.random.below(4) {
            0 | 1 => len,
            2 => self.random.below(len),
            _ => 0,
        };
        let document = &self.documents[self.random.below(DOCUMENTS)];
        let mut prompt = document[..shared].to_vec();
        prompt.extend(tokens(&mut self.random, self.sizes.vocab, len - shared));
        prompt
    }

    fn answer_len(&mut self, prompt: usize) -> usize {
        let Sizes { page_len, context, .. } = self.sizes;
        let len = match self.random.below(4) {
            _ if self.made % 4 == LONG_ANSWER => ANSWER - self.random.below(ANSWER / 3),
            0 => 1 + self.random.below(4),
            1 => near(page_len - prompt % page_len, &mut self.random), // ends at a page boundary
            _ => 1 + self.random.below(ANSWER),
        };
        len.clamp(1, ANSWER.min(context - prompt))
    }

    /// None, one, or all, of a model that has some.
    fn adapters(&mut self) -> AdapterScales {
        let count = self.sizes.adapters;
        if count == 0 {
            return AdapterScales::NONE;
        }
        let mut scales = vec![0.0; count];
        match self.random.below(4) {
            0 => {}
            1 => scales.fill(0.5),
            _ => scales[self.random.below(count)] = 1.0,
        }
        AdapterScales::new(&scales)
    }

    /// Mostly greedy. Penalties prevent the engine from planning a step ahead.
    fn sampling(&mut self) -> Sampling {
        match self.random.below(8) {
            0 | 1 => Sampling { temperature: 0.8, seed: self.random.next_u64(), ..Sampling::default() },
            2 => Sampling { frequency: 0.5, ..Sampling::default() },
            _ => Sampling::default(),
        }
    }
}

impl Iterator for Requests {
    type Item = Request;

    fn next(&mut self) -> Option<Request> {
        let len = self.prompt_len();
        let prompt = self.prompt(len);
        let max_tokens = self.answer_len(len);
        let sampling = self.sampling();
        let priority = -i32::from(self.random.below(8) == 0);
        let adapters = self.adapters();
        self.made += 1;
        Some(Request { sampling, priority, adapters, ..Request::new(prompt, max_tokens) })
    }
}

/// `n` random token ids.
pub(crate) fn tokens(random: &mut Random, vocab: usize, n: usize) -> Vec<u32> {
    (0..n).map(|_| random.below(vocab) as u32).collect()
}

/// A boundary, or one less or more.
fn near(boundary: usize, random: &mut Random) -> usize {
    (boundary + random.below(3)).saturating_sub(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIZES: Sizes = Sizes { vocab: 100, context: 1024, page_len: 32, step_tokens: 512, adapters: 0 };

    #[test]
    fn requests_fit_and_cover_the_boundaries() {
        let all: Vec<Request> = Requests::new(SIZES, 3).take(400).collect();
        let lens: Vec<usize> = all.iter().map(|r| r.prompt.len()).collect();
        assert!(all.iter().all(|r| r.prompt.len() + r.max_tokens <= SIZES.longest() && (1..=90).contains(&r.max_tokens)));
        for boundary in [31, 32, 33, 255, 256, 257, 511, 512, 513] {
            assert!(lens.contains(&boundary), "no prompt of {boundary} tokens");
        }
        assert!(lens.iter().any(|len| *len > 600));
        assert!(all.iter().any(|r| (r.prompt.len() + r.max_tokens).is_multiple_of(32)));
        assert!(all.iter().any(|r| r.sampling.temperature > 0.0) && all.iter().any(|r| r.priority < 0));
        let long: Vec<&[u32]> = all.iter().filter_map(|r| r.prompt.get(..64)).collect();
        assert!(long.iter().filter(|a| long.iter().filter(|b| a == b).count() > 1).count() > 10);
        assert_eq!(all, Requests::new(SIZES, 3).take(400).collect::<Vec<_>>(), "the seed decides");
        assert_ne!(all, Requests::new(SIZES, 4).take(400).collect::<Vec<_>>());
    }

    #[test]
    fn requests_fit_a_small_context() {
        let sizes = Sizes { vocab: 2, context: 8, page_len: 4, step_tokens: 4, adapters: 0 };
        assert!(Requests::new(sizes, 1).take(100).all(|r| r.prompt.len() + r.max_tokens <= 8));
        let used = |adapters| -> std::collections::HashSet<AdapterScales> {
            Requests::new(Sizes { adapters, ..sizes }, 1).take(100).map(|r| r.adapters).collect()
        };
        assert_eq!((used(0).len(), used(2).len()), (1, 4), "none, each and both");
    }
}
