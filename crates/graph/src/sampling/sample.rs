//! Sampling a token from a row of logits. Every backend returns this result for the same logits.
//!
//! A row with a NaN or an infinity gives no token, whatever the parameters.
//!
//! Order: mask, bias, DRY and penalties, then temperature, min-p, top-k, top-p, then one draw. The draw
//! depends on the request's seed and the position, so a replayed, preempted or differently batched request
//! gives the same text. Filters that only the host has are in `filters.rs`.
//!
//! After the temperature, a token has a weight, an integer of at most 2^30. The best come first by weight,
//! and the lowest id first among equal weights: top-k keeps the k best, top-p the fewest best that together
//! weigh at least `ceil(top_p * total)`. With everything kept in the order of the ids, the token is the one
//! where the running sum passes `floor(draw * total)`.

use std::sync::Arc;

use super::{choice, filters};
use crate::{Mask, Sampling, Seen};

/// How one token is chosen: the parameters of its request, and what changes from token to token.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Sample {
    /// The parameters; shared by all tokens of a request.
    pub params: Arc<Sampling>,
    /// Tokens in the prompt or the text, and how often each was generated; only needed by the penalties.
    pub seen: Seen,
    /// The tokens that may be chosen; all without it.
    pub mask: Option<Mask>,
    /// What DRY subtracts from logits, by token.
    pub repetitions: Vec<(u32, f32)>,
    /// The state of mirostat; none before the first token.
    pub mirostat: Option<f32>,
    /// The draw, in [0, 1).
    pub draw: f32,
    /// Another one, which decides whether XTC excludes tokens.
    pub coin: f32,
}

impl From<Sampling> for Sample {
    fn from(params: Sampling) -> Sample {
        Sample { params: Arc::new(params), ..Sample::default() }
    }
}

/// A sampled token.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Sampled {
    /// The token.
    pub id: u32,
    /// Its log-probability under the model's own distribution, if requested.
    pub logprob: Option<f32>,
    /// The best tokens and their log-probabilities, best first, if requested.
    pub top: Vec<(u32, f32)>,
    /// Its rank by probability, the best is 1, if log-probabilities are requested.
    pub rank: Option<u32>,
    /// The log-probabilities of [`Sampling::reported`], in its order; of tokens outside the vocabulary minus
    /// infinity.
    pub reported: Vec<f32>,
    /// The state of mirostat after it.
    pub mirostat: Option<f32>,
}

impl Sample {
    /// Samples. `None` if a logit is not finite, or if the mask allows nothing.
    pub fn pick(&self, logits: &[f32]) -> Option<Sampled> {
        if !all_finite(logits) {
            return None;
        }
        let chosen = if self.changes_logits() {
            let mut own = logits.to_vec();
            self.adjust(&mut own);
            self.choose(&own)?
        } else {
            self.choose(logits)?
        };
        let filters::Chosen { id, mirostat } = chosen;
        let plain = Sampled { id, mirostat, ..Sampled::default() };
        let Some(count) = self.params.logprobs else { return Some(plain) };
        let logit = logits[id as usize];
        let log_sum = log_sum_exp(logits);
        let logprob = Some(logit - log_sum);
        let of = |id: &u32| logits.get(*id as usize).map_or(f32::NEG_INFINITY, |logit| logit - log_sum);
        let reported = self.params.reported.iter().map(of).collect();
        let rank = Some(1 + logits.iter().filter(|&&x| x > logit).count() as u32);
        Some(Sampled { logprob, rank, top: top_logprobs(logits, count), reported, ..plain })
    }

    fn choose(&self, logits: &[f32]) -> Option<filters::Chosen> {
        match self.params.needs_host() {
            true => filters::choose(self, logits),
            false => choice::choose(self, logits).map(|id| filters::Chosen { id, mirostat: None }),
        }
    }

    /// Whether penalties change any logit.
    pub fn has_penalties(&self) -> bool {
        !self.seen.counts().is_empty() && self.params.has_penalties()
    }

    /// Whether a mask, biases, DRY or penalties change any logit.
    pub fn changes_logits(&self) -> bool {
        let adds = !self.params.bias.is_empty() || !self.repetitions.is_empty();
        adds || self.has_penalties() || self.mask.is_some()
    }

    /// What is added to logits, in order: the biases, then DRY.
    pub fn added(&self) -> impl Iterator<Item = (u32, f32)> {
        let repetitions = self.repetitions.iter().map(|&(id, penalty)| (id, -penalty));
        self.params.bias.iter().copied().chain(repetitions)
    }

    /// The lowest weight that min-p keeps, from 1 to 2^30, the weight of the best token.
    pub fn floor(&self) -> u32 {
        choice::floor(self.params.min_p)
    }

    fn adjust(&self, logits: &mut [f32]) {
        if let Some(mask) = &self.mask {
            mask.apply(logits);
        }
        for (id, by) in self.added() {
            if let Some(x) = logits.get_mut(id as usize) {
                *x += by;
            }
        }
        if !self.has_penalties() {
            return;
        }
        let Sampling { repetition, frequency, presence, .. } = *self.params;
        for &(id, times) in self.seen.counts() {
            if let Some(x) = logits.get_mut(id as usize) {
                // at most the largest float: an infinity would leave nothing to draw from
                *x = if *x > 0.0 { (*x / repetition).min(f32::MAX) } else { *x * repetition };
                *x -= frequency * times as f32 + if times > 0 { presence } else { 0.0 };
            }
        }
    }
}

/// Whether all values are finite. In one pass without branches: nearly always they are.
pub fn all_finite(values: &[f32]) -> bool {
    // zero times a finite number is zero, otherwise NaN, and a NaN stays in a sum
    let mut lanes = [0.0f32; 16];
    let (whole, rest) = values.as_chunks::<16>();
    for part in whole {
        for i in 0..16 {
            lanes[i] += part[i] * 0.0;
        }
    }
    lanes.iter().chain(rest).all(|x| x.is_finite())
}

fn best_first(a: &(u32, f32), b: &(u32, f32)) -> std::cmp::Ordering {
    b.1.total_cmp(&a.1).then(a.0.cmp(&b.0))
}

/// `ln(sum(exp(x)))`, summed in f64.
pub fn log_sum_exp(logits: &[f32]) -> f32 {
    let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let sum: f64 = logits.iter().map(|&x| f64::from(x - max).exp()).sum();
    max + sum.ln() as f32
}

/// Kullback-Leibler divergence of the distribution of `got` from that of `want`, in nats.
pub fn divergence(want: &[f32], got: &[f32]) -> f64 {
    let (want_sum, got_sum) = (f64::from(log_sum_exp(want)), f64::from(log_sum_exp(got)));
    let term = |(w, g): (&f32, &f32)| {
        let (w, g) = (f64::from(*w) - want_sum, f64::from(*g) - got_sum);
        w.exp() * (w - g)
    };
    want.iter().zip(got).map(term).sum()
}

/// The `count` best tokens with their log-probabilities, best first.
pub fn top_logprobs(logits: &[f32], count: usize) -> Vec<(u32, f32)> {
    let count = count.min(logits.len());
    if count == 0 {
        return vec![];
    }
    let mut all: Vec<(u32, f32)> = logits.iter().enumerate().map(|(i, &x)| (i as u32, x)).collect();
    all.select_nth_unstable_by(count - 1, best_first);
    all.truncate(count);
    all.sort_unstable_by(best_first);
    let log_sum = log_sum_exp(logits);
    all.iter().map(|&(id, x)| (id, x - log_sum)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hot(temperature: f32) -> Sampling {
        Sampling { temperature, ..Sampling::default() }
    }

    fn with(temperature: f32) -> Sample {
        hot(temperature).into()
    }

    fn after(seen: &[(u32, u32)], params: Sampling) -> Sample {
        Sample { seen: seen.to_vec().into(), ..params.into() }
    }

    fn shares(sample: &Sample, logits: &[f32]) -> Vec<f32> {
        let mut counts = vec![0.0; logits.len()];
        for i in 0..10_000 {
            let s = Sample { draw: (i as f32 + 0.5) / 10_000.0, ..sample.clone() };
            counts[s.pick(logits).unwrap().id as usize] += 1e-4;
        }
        counts
    }

    #[test]
    fn greedy_takes_the_best_and_the_lowest_id_among_equals() {
        assert_eq!(with(0.0).pick(&[1.0, 3.0, 3.0, 2.0]).unwrap().id, 1);
    }

    #[test]
    fn a_logit_that_is_not_finite_gives_no_token_at_any_temperature() {
        let penalty = after(&[(3, 1)], Sampling { repetition: 1.5, ..hot(0.0) });
        let samples = [
            with(0.0),
            with(1.0),
            Sampling { top_k: 1, ..hot(0.7) }.into(),
            Sample { mask: Some(Mask::allowing([0, 1], 40)), ..with(0.0) }, // of others than the bad one
            Sampling { bias: vec![(39, -100.0)], ..hot(1.0) }.into(),
            penalty,
        ];
        for sample in samples {
            assert!(sample.pick(&[1.0; 40]).is_some());
            for (at, bad) in [(0, f32::NAN), (17, f32::INFINITY), (39, f32::NEG_INFINITY), (31, -f32::NAN)] {
                let mut logits = [1.0; 40];
                logits[at] = bad;
                assert_eq!(sample.pick(&logits), None, "{bad} with {sample:?}");
            }
        }
    }

    #[test]
    fn parameters_alone_never_make_a_choice_impossible() {
        for temperature in [0.0, 1.0] {
            let tiny = after(&[(1, 1)], Sampling { repetition: f32::MIN_POSITIVE, ..hot(temperature) });
            assert_eq!(tiny.pick(&[3.0, 100.0, -5.0]).unwrap().id, 1);
        }
    }

    #[test]
    fn draws_follow_the_softmax() {
        let logits = [0.0, 1.0, 2.0];
        let z: f32 = logits.iter().map(|x: &f32| x.exp()).sum();
        for (share, logit) in shares(&with(1.0), &logits).iter().zip(logits) {
            assert!((share - logit.exp() / z).abs() < 1e-3);
        }
    }

    #[test]
    fn top_k_top_p_and_min_p_cut_the_tail() {
        let logits = [3.0, 2.0, 1.0, 0.0]; // probabilities 0.64 0.24 0.09 0.03
        assert_eq!(shares(&Sampling { top_k: 2, ..hot(1.0) }.into(), &logits)[2..], [0.0, 0.0]);
        assert_eq!(shares(&Sampling { top_p: 0.8, ..hot(1.0) }.into(), &logits)[2..], [0.0, 0.0]);
        assert_eq!(shares(&Sampling { min_p: 0.3, ..hot(1.0) }.into(), &logits)[2..], [0.0, 0.0]);
        assert_eq!(shares(&Sampling { top_p: 0.1, ..hot(1.0) }.into(), &logits)[1..], [0.0, 0.0, 0.0]);
    }

    #[test]
    fn penalties_and_bias_move_single_logits() {
        let logits = [2.0, 1.9, -1.0];
        let pick = |params: Sampling| after(&[(0, 2)], params).pick(&logits).unwrap().id;
        assert_eq!(pick(hot(0.0)), 0);
        assert_eq!(pick(Sampling { repetition: 1.5, ..hot(0.0) }), 1);
        assert_eq!(pick(Sampling { frequency: 0.1, ..hot(0.0) }), 1);
        assert_eq!(pick(Sampling { presence: 0.2, ..hot(0.0) }), 1);
        assert_eq!(pick(Sampling { bias: vec![(2, 100.0)], ..hot(0.0) }), 2);
    }

    #[test]
    fn a_prompt_alone_is_repetition_and_no_more() {
        let pick = |params: Sampling| after(&[(0, 0)], params).pick(&[2.0, 1.9]).unwrap().id;
        assert_eq!(pick(Sampling { repetition: 1.5, ..hot(0.0) }), 1);
        assert_eq!(pick(Sampling { presence: 2.0, frequency: 2.0, ..hot(0.0) }), 0);
    }

    #[test]
    fn only_what_the_mask_allows_is_chosen() {
        let logits = [3.0, 2.0, 1.0, 0.0];
        for temperature in [0.0, 1.0] {
            let mask = Some(Mask::allowing([1, 3], 4));
            let params = Sampling { bias: vec![(0, 100.0)], ..hot(temperature) };
            let biased = Sample { mask, ..params.into() };
            let shares = shares(&biased, &logits);
            assert_eq!((shares[0], shares[2]), (0.0, 0.0));
            assert!(shares[1] > 0.8);
        }
        let broken = Mask::pending();
        broken.set(Err("too deep".into()));
        assert_eq!(Sample { mask: Some(broken), ..with(0.0) }.pick(&logits), None);
    }

    #[test]
    fn logprobs_are_of_the_models_own_distribution() {
        let s = Sample::from(Sampling { logprobs: Some(2), bias: vec![(0, 50.0)], ..hot(0.0) });
        let got = s.pick(&[0.0, 0.0]).unwrap();
        assert_eq!(got.id, 0);
        assert!((got.logprob.unwrap() - 0.5f32.ln()).abs() < 1e-6);
        assert_eq!(got.top.len(), 2);
    }
}
