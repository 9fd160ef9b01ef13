//! One request on its way: the tokens it has, how many of them are in the KV pages, and what comes next.

use std::sync::Arc;

use tern_graph::{Sample, Sampled};

use crate::{EngineError, Event, Finish, Request, RequestId, Sampling, Seen};

/// A request and how far it is.
#[derive(Clone, Debug)]
pub(crate) struct Sequence {
    pub(crate) id: RequestId,
    /// The prompt, then what was generated.
    pub(crate) tokens: Vec<u32>,
    /// How many of the tokens are in the pages.
    pub(crate) computed: usize,
    pub(crate) pages: Vec<u32>,
    pub(crate) finished: bool,
    prompt_len: usize,
    max_tokens: usize,
    sampling: Sampling,
    end_tokens: Arc<[u32]>,
    /// Kept only where the penalties look at it.
    seen: Seen,
}

impl Sequence {
    pub(crate) fn new(id: RequestId, request: Request) -> Sequence {
        let Request { prompt, max_tokens, sampling, end_tokens } = request;
        let seen = if sampling.has_penalties() { Seen::new(&prompt) } else { Seen::default() };
        Sequence {
            id,
            computed: 0,
            pages: vec![],
            finished: false,
            prompt_len: prompt.len(),
            tokens: prompt,
            max_tokens,
            sampling,
            end_tokens,
            seen,
        }
    }

    /// Tokens that are known and not computed; at least one until the sequence is finished.
    pub(crate) fn wanted(&self) -> usize {
        self.tokens.len() - self.computed
    }

    /// Tokens generated so far.
    pub(crate) fn generated(&self) -> usize {
        self.tokens.len() - self.prompt_len
    }

    /// How the token after all known ones is chosen.
    pub(crate) fn sample(&self) -> Sample {
        self.sampling.at(self.tokens.len(), &self.seen)
    }

    /// Takes the sampled token in and says what that means for the text.
    pub(crate) fn advance(&mut self, sampled: Option<&Sampled>, mut emit: impl FnMut(Event)) {
        let Some(sampled) = sampled else {
            self.finished = true;
            return emit(Event::Failed(EngineError::NoLogit));
        };
        if self.end_tokens.contains(&sampled.id) {
            self.finished = true;
            return emit(Event::Done(Finish::Stop(sampled.id)));
        }
        self.tokens.push(sampled.id);
        if self.sampling.has_penalties() {
            self.seen.add(sampled.id);
        }
        emit(Event::Token(sampled.clone()));
        if self.generated() == self.max_tokens {
            self.finished = true;
            emit(Event::Done(Finish::Length));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn events(request: Request, ids: &[Option<u32>]) -> Vec<Event> {
        let mut sequence = Sequence::new(1, request);
        let mut events = vec![];
        for id in ids {
            let sampled = id.map(|id| Sampled { id, ..Sampled::default() });
            sequence.advance(sampled.as_ref(), |e| events.push(e));
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
        assert_eq!(events(two(), &[Some(5), None]), [token(5), Event::Failed(EngineError::NoLogit)]);
    }

    #[test]
    fn penalties_see_the_prompt_and_the_generated_tokens() {
        let sampling = Sampling { frequency: 1.0, ..Sampling::default() };
        let mut sequence = Sequence::new(1, Request { sampling, ..Request::new(vec![4, 4, 2], 9) });
        sequence.advance(Some(&Sampled { id: 2, ..Sampled::default() }), |_| ());
        assert_eq!(sequence.sample().seen, [(2, 2), (4, 2)]);
    }
}
