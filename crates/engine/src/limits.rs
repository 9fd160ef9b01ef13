//! The policy of an engine: how many requests run and wait, and which can ever be served.

use crate::{Capacity, EngineError, Pooling, Request, StateCapacity};

/// Clients with fewer requests than this part of `max_waiting` may use the reserve of the queue.
const FEW: usize = 16;
/// The reserve is this part of `max_waiting`.
const RESERVE: usize = 4;

/// How an engine uses the [`Capacity`] of its runner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Sequences that run at the same time; at most the runner's `max_tokens` and `max_outputs`, so that
    /// every step can advance each of them. Fewer run if there are not enough state slots.
    pub max_seqs: usize,
    /// Tokens in a sequence, prompt and generated together.
    pub max_context: usize,
    /// Requests that may wait while `max_seqs` run. A quarter more may, of clients that have few: one client
    /// with many requests does not close the queue to others.
    pub max_waiting: usize,
    /// Target duration of a step during prefill, in milliseconds; 0 disables it: steps then have up to
    /// `max_tokens` tokens.
    pub step_millis: usize,
}

impl Limits {
    /// Refuses limits under which nothing could run, or for which the runner is too small.
    pub fn check(&self, capacity: &Capacity) -> Result<(), EngineError> {
        capacity.check()?;
        let sizes = [("max_seqs", self.max_seqs), ("max_context", self.max_context)];
        if let Some((name, got)) = sizes.into_iter().find(|(_, size)| *size == 0) {
            return Err(EngineError::range(name, "1 or more", got));
        }
        let sizes = [("max_tokens", capacity.max_tokens), ("max_outputs", capacity.max_outputs)];
        if let Some((name, got)) = sizes.into_iter().find(|(_, size)| *size < self.max_seqs) {
            return Err(EngineError::range(name, format!("max_seqs ({}) or more", self.max_seqs), got));
        }
        match capacity.state.filter(|_| capacity.sequences() == 0) {
            Some(state) => {
                let want = format!("{} or more", StateCapacity::PER_SEQUENCE);
                Err(EngineError::range("state slots", want, state.slots))
            }
            None => Ok(()),
        }
    }

    /// Refuses a request that can never be served, whatever else runs.
    ///
    /// `reads_whole`: the runner reads texts in one step ([`crate::Runner::reads_whole`]).
    pub fn admit(
        &self,
        request: &Request,
        capacity: &Capacity,
        reads_whole: bool,
    ) -> Result<(), EngineError> {
        let (prompt, max_tokens) = (request.prompt.len(), request.max_tokens);
        if prompt == 0 {
            return Err(EngineError::EmptyPrompt);
        }
        if max_tokens == 0 {
            return Err(EngineError::range("max_tokens", "1 or more", max_tokens));
        }
        request.sampling.check()?;
        // a vector needs no place for a token after the text
        let total = if request.pooling.is_some() { prompt } else { prompt.saturating_add(max_tokens) };
        if total > self.max_context && request.pooling.is_some() {
            return Err(EngineError::TextTooLong { tokens: prompt, max_tokens: self.max_context });
        }
        let whole = reads_whole || request.pooling.is_some_and(Pooling::needs_one_step);
        if whole && prompt > capacity.max_tokens {
            return Err(EngineError::TextTooLong { tokens: prompt, max_tokens: capacity.max_tokens });
        }
        if total > self.max_context {
            return Err(EngineError::Context { prompt, max_tokens, max_context: self.max_context });
        }
        // the last token is never fed back
        let fed = if request.pooling.is_some() { prompt } else { total - 1 };
        let need = capacity.pages_for(fed);
        if need > capacity.pages {
            return Err(EngineError::Pages { need, page_len: capacity.page_len, pages: capacity.pages });
        }
        Ok(())
    }

    /// Refuses one more request, of a client that has `own`, if as many run and wait as may.
    pub(crate) fn queue(&self, running: usize, waiting: usize, own: usize) -> Result<(), EngineError> {
        let Limits { max_seqs, max_waiting, .. } = *self;
        let reserve = if own < max_waiting / FEW { max_waiting / RESERVE } else { 0 };
        // a free slot counts as room to wait: the request takes it in the next step
        if running + waiting >= max_seqs.saturating_add(max_waiting).saturating_add(reserve) {
            return Err(EngineError::QueueFull { running, waiting, max_seqs, max_waiting });
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: Limits = Limits { max_seqs: 2, max_context: 32, max_waiting: 1, step_millis: 0 };
    const CAPACITY: Capacity =
        Capacity { pages: 3, page_len: 4, max_tokens: 8, max_outputs: 4, window: None, state: None };

    fn message(result: Result<(), EngineError>) -> String {
        result.map_or_else(|e| e.to_string(), |()| "ok".into())
    }

    #[test]
    fn limits_that_run_nothing_are_refused() {
        let seqs = |max_seqs| Limits { max_seqs, ..LIMITS };
        let slots = |slots| Capacity { state: Some(StateCapacity { slots, bytes: 1 }), ..CAPACITY };
        for (limits, capacity, want) in [
            (LIMITS, CAPACITY, "ok"),
            (LIMITS, Capacity { page_len: 0, ..CAPACITY }, "page_len: want 1 or more, got 0"),
            (seqs(0), CAPACITY, "max_seqs: want 1 or more, got 0"),
            (seqs(9), CAPACITY, "max_tokens: want max_seqs (9) or more, got 8"),
            (seqs(5), CAPACITY, "max_outputs: want max_seqs (5) or more, got 4"),
            (LIMITS, slots(2), "ok"),
            (LIMITS, slots(1), "state slots: want 2 or more, got 1"),
            (LIMITS, slots(0), "state slots: want 1 or more, got 0"),
        ] {
            assert_eq!(message(limits.check(&capacity)), want);
        }
    }

    #[test]
    fn a_request_that_can_never_fit_is_refused_with_both_numbers() {
        for (prompt, max_tokens, want) in [
            (1, 1, "ok"),
            (0, 1, "the prompt is empty"),
            (1, 0, "max_tokens: want 1 or more, got 0"),
            (12, 1, "ok"), // twelve tokens fed: three full pages
            (12, 2, "the request needs 4 KV pages of 4 tokens, the engine has 3"),
            (30, 3, "30 prompt tokens and 3 to generate do not fit the context of 32"),
            (
                2,
                usize::MAX,
                "2 prompt tokens and 18446744073709551615 to generate do not fit the context of 32",
            ),
        ] {
            assert_eq!(
                message(LIMITS.admit(&Request::new(vec![0; prompt], max_tokens), &CAPACITY, false)),
                want
            );
        }
    }

    #[test]
    fn a_text_that_is_read_whole_fits_one_step() {
        let admit =
            |pooling, whole| message(LIMITS.admit(&Request::embed(vec![0; 9], pooling), &CAPACITY, whole));
        for pooling in Pooling::ALL {
            let want = "the text has 9 tokens, this model reads at most 8";
            assert_eq!(admit(pooling, true), want, "{pooling}");
            let want = if pooling.needs_one_step() { want } else { "ok" };
            assert_eq!(admit(pooling, false), want, "{pooling}");
        }
    }

    #[test]
    fn a_full_queue_has_a_reserve_for_clients_with_few_requests() {
        let limits = Limits { max_seqs: 2, max_waiting: 64, ..LIMITS };
        let full = |running, waiting, own| limits.queue(running, waiting, own).is_err();
        for (running, waiting, own, refused) in [
            (2, 63, 65, false),
            (2, 64, 66, true),
            (2, 64, 4, true),
            (2, 64, 3, false),
            (2, 79, 0, false),
            (2, 80, 0, true),
        ] {
            assert_eq!(full(running, waiting, own), refused, "{running} {waiting} {own}");
        }
        assert!(LIMITS.queue(2, 1, 0).is_err(), "a short queue has no reserve");
    }
}
