//! Sampling with filters that only the host has: top-n-sigma, typical, XTC and mirostat.
//!
//! Order: the temperature, top-n-sigma, min-p, top-k, typical, top-p, XTC, then one draw. Mirostat replaces
//! all but the temperature. Without these filters the token is the one of `choice.rs`.

use std::cmp::Reverse;

use super::{Sample, choice};
use crate::{Mirostat, MirostatVersion};

/// The most probable tokens from which mirostat 1 estimates how fast probabilities fall.
const ESTIMATED: usize = 100;

/// A token that may still be chosen.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Candidate {
    id: u32,
    weight: u32,
}

/// A token, and the state of mirostat after it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Chosen {
    pub(super) id: u32,
    pub(super) mirostat: Option<f32>,
}

/// Chooses from adjusted logits.
pub(super) fn choose(sample: &Sample, logits: &[f32]) -> Option<Chosen> {
    let params = &sample.params;
    let best = choice::argmax(logits)?;
    if params.is_greedy() {
        return Some(Chosen { id: best, mirostat: None });
    }
    let mut kept = Candidates::new(sample, logits, best);
    if let Some(mirostat) = params.mirostat {
        let mu = sample.mirostat.unwrap_or(mirostat.start());
        kept.surprise(mirostat.version, mu, logits.len());
        let chosen = kept.draw(sample.draw)?;
        let surprise = -kept.probability(chosen).log2() as f32;
        let mu = mu - mirostat.eta * (surprise - mirostat.tau);
        // a mu that is not finite would keep one token in all later draws
        return Some(Chosen { id: chosen.id, mirostat: Some(mu.clamp(f32::MIN, f32::MAX)) });
    }
    if params.top_k > 0 {
        kept.0.truncate(params.top_k);
    }
    kept.typical(params.typical_p);
    kept.top_p(params.top_p);
    if sample.coin < params.xtc.probability {
        kept.exclude_top(params.xtc.threshold);
    }
    kept.draw(sample.draw).map(|chosen| Chosen { id: chosen.id, mirostat: None })
}

/// The candidates, best first: by weight, and the lowest id first among equal weights.
struct Candidates(Vec<Candidate>);

impl Candidates {
    fn new(sample: &Sample, logits: &[f32], best: u32) -> Candidates {
        let params = &sample.params;
        let max = logits[best as usize];
        let is_mirostat = params.mirostat.is_some();
        let lowest =
            if is_mirostat { f32::NEG_INFINITY } else { sigma_bound(logits, max, params.top_n_sigma) };
        let floor = if is_mirostat { 1 } else { sample.floor() };
        let candidate = |(id, &x): (u32, &f32)| Candidate {
            id,
            weight: if x < lowest { 0 } else { choice::weight((x - max) / params.temperature) },
        };
        let mut all: Vec<Candidate> =
            (0..).zip(logits).map(candidate).filter(|candidate| candidate.weight >= floor).collect();
        all.sort_unstable_by_key(|candidate| (Reverse(candidate.weight), candidate.id));
        Candidates(all)
    }

    fn total(&self) -> u64 {
        self.0.iter().map(|candidate| u64::from(candidate.weight)).sum()
    }

    fn probability(&self, of: Candidate) -> f64 {
        f64::from(of.weight) / self.total() as f64
    }

    /// Keeps the tokens whose surprise is closest to the expected one, until their
    /// probabilities pass `typical_p`.
    fn typical(&mut self, typical_p: f32) {
        if typical_p >= 1.0 {
            return;
        }
        let total = self.total() as f64;
        let probability = |c: &Candidate| f64::from(c.weight) / total;
        let entropy: f64 = self.0.iter().map(|c| -probability(c) * probability(c).ln()).sum();
        let distance = |c: &Candidate| (-probability(c).ln() - entropy).abs();
        self.0.sort_by(|a, b| distance(a).total_cmp(&distance(b))); // stable: the best first among equals
        let mut sum = 0.0;
        let enough = self.0.iter().position(|c| {
            sum += probability(c);
            sum > f64::from(typical_p)
        });
        self.0.truncate(enough.map_or(self.0.len(), |last| last + 1));
        self.0.sort_unstable_by_key(|candidate| (Reverse(candidate.weight), candidate.id));
    }

    fn top_p(&mut self, top_p: f32) {
        if top_p < 1.0 {
            let limit = (f64::from(top_p) * self.total() as f64).ceil() as u64;
            let mut sum = 0;
            let enough = self.0.iter().position(|c| {
                sum += u64::from(c.weight);
                sum >= limit
            });
            self.0.truncate(enough.map_or(self.0.len(), |last| last + 1));
        }
    }

    /// XTC: drops the tokens of at least this probability, except for the least probable of them.
    fn exclude_top(&mut self, threshold: f32) {
        let total = self.total() as f64;
        let above = |c: &&Candidate| f64::from(c.weight) / total >= f64::from(threshold);
        let above = self.0.iter().take_while(above).count();
        self.0.drain(..above.saturating_sub(1));
    }

    /// Mirostat: keeps the tokens whose surprise is at most `mu` bits (2), or as many as would have about
    /// this surprise if probabilities followed Zipf's law (1).
    fn surprise(&mut self, version: MirostatVersion, mu: f32, vocab: usize) {
        let total = self.total() as f64;
        let bits = |c: &Candidate| -(f64::from(c.weight) / total).log2();
        let keep = match version {
            MirostatVersion::Two => self.0.iter().take_while(|c| bits(c) <= f64::from(mu)).count(),
            MirostatVersion::One => self.zipf_count(f64::from(mu), vocab as f64),
        };
        self.0.truncate(keep.max(1));
    }

    fn zipf_count(&self, mu: f64, vocab: f64) -> usize {
        let (mut products, mut squares) = (0.0, 0.0);
        for (rank, pair) in (1..ESTIMATED).map(|rank| rank as f64).zip(self.0.windows(2)) {
            let step = ((rank + 1.0) / rank).ln();
            products += step * (f64::from(pair[0].weight) / f64::from(pair[1].weight)).ln();
            squares += step * step;
        }
        let exponent = products / squares;
        let excess = exponent - 1.0;
        let count = (excess * mu.exp2() / (1.0 - vocab.powf(-excess))).powf(1.0 / exponent);
        count as usize // 0 if it is not a number
    }

    /// The token at which the running sum of the weights, by id, passes the draw's share of the total.
    fn draw(&self, draw: f32) -> Option<Candidate> {
        let total = self.total();
        let last = total.checked_sub(1)?;
        let mut left = ((f64::from(draw) * total as f64) as u64).min(last);
        let mut by_id = self.0.clone();
        by_id.sort_unstable_by_key(|candidate| candidate.id);
        by_id.into_iter().find(|candidate| match left.checked_sub(u64::from(candidate.weight)) {
            Some(rest) => {
                left = rest;
                false
            }
            None => true,
        })
    }
}

/// The lowest logit that top-n-sigma keeps: `n` standard deviations below the best.
fn sigma_bound(logits: &[f32], max: f32, n: f32) -> f32 {
    if n <= 0.0 {
        return f32::NEG_INFINITY;
    }
    let valid = || logits.iter().filter(|x| x.is_finite()).map(|&x| f64::from(x));
    let count = valid().count().max(1) as f64;
    let mean = valid().sum::<f64>() / count;
    let variance = valid().map(|x| (x - mean) * (x - mean)).sum::<f64>() / count;
    (f64::from(max) - f64::from(n) * variance.sqrt()) as f32
}

impl Mirostat {
    /// The state before the first token.
    fn start(self) -> f32 {
        2.0 * self.tau
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use proptest::prelude::*;
    use serde_json::Value;

    use super::*;
    use crate::{Dry, Mask, Sampling, Xtc};

    /// What llama.cpp's samplers keep; recorded by `scripts/oracle/llama/samplers.py`.
    fn recorded(what: &str) -> Vec<Value> {
        let all: Value = serde_json::from_str(include_str!("../../tests/samplers.json")).unwrap();
        all[what].as_array().unwrap().clone()
    }

    fn floats(values: &Value) -> Vec<f32> {
        values.as_array().unwrap().iter().map(|x| x.as_f64().unwrap() as f32).collect()
    }

    fn ids(values: &Value) -> Vec<u32> {
        values.as_array().unwrap().iter().map(|x| x.as_u64().unwrap() as u32).collect()
    }

    fn candidates(logits: &[f32], params: Sampling) -> Candidates {
        let sample = Sample::from(Sampling { temperature: 1.0, ..params });
        Candidates::new(&sample, logits, choice::argmax(logits).unwrap())
    }

    fn kept(candidates: &Candidates) -> Vec<u32> {
        let mut ids: Vec<u32> = candidates.0.iter().map(|c| c.id).collect();
        ids.sort_unstable();
        ids
    }

    #[test]
    fn the_filters_keep_what_those_of_llama_cpp_keep() {
        for case in recorded("filters") {
            let (logits, value) = (floats(&case["logits"]), floats(&case["parameters"])[0]);
            let mut all = candidates(&logits, Sampling::default());
            match case["sampler"].as_str().unwrap() {
                "typical" => all.typical(value),
                "xtc" => all.exclude_top(value),
                "top_n_sigma" => {
                    all = candidates(&logits, Sampling { top_n_sigma: value, ..Sampling::default() });
                }
                other => panic!("{other}"),
            }
            assert_eq!(kept(&all), ids(&case["kept"]), "{case}");
        }
    }

    #[test]
    fn mirostat_keeps_what_that_of_llama_cpp_keeps_along_a_text() {
        for run in recorded("mirostat") {
            let [tau, eta] = ["tau", "eta"].map(|name| run[name].as_f64().unwrap() as f32);
            let version = if run["version"] == 1 { MirostatVersion::One } else { MirostatVersion::Two };
            let mirostat = Some(Mirostat { version, tau, eta });
            let params = Arc::new(Sampling { temperature: 1.0, mirostat, ..Sampling::default() });
            let mut state = None;
            for step in run["steps"].as_array().unwrap() {
                let (logits, chosen) = (floats(&step["logits"]), step["chosen"].as_u64().unwrap() as u32);
                let mut all = candidates(&logits, (*params).clone());
                all.surprise(version, state.unwrap_or(2.0 * tau), logits.len());
                assert_eq!(kept(&all), ids(&step["kept"]), "{run}");
                // continue with the token that llama.cpp has drawn
                let draws = (0..20_000).map(|i| i as f32 / 20_000.0);
                let picked = draws
                    .map(|draw| Sample { params: params.clone(), mirostat: state, draw, ..Sample::default() })
                    .map(|sample| sample.pick(&logits).unwrap())
                    .find(|sampled| sampled.id == chosen);
                state = picked.unwrap().mirostat;
                assert!(state.is_some());
            }
        }
    }

    #[test]
    fn dry_subtracts_what_that_of_llama_cpp_subtracts() {
        for case in recorded("dry") {
            let given = &case["parameters"];
            let dry = Dry {
                multiplier: given["multiplier"].as_f64().unwrap() as f32,
                base: given["base"].as_f64().unwrap() as f32,
                allowed_length: given["allowed_length"].as_u64().unwrap() as usize,
                last_n: given["last_n"].as_u64().unwrap() as usize,
                ..Dry::default()
            };
            let got = dry.penalties(&ids(&case["tokens"]));
            let want = case["penalties"].as_array().unwrap();
            assert_eq!(got.len(), want.len(), "{case}");
            for ((id, penalty), want) in got.iter().zip(want) {
                assert_eq!(u64::from(*id), want[0].as_u64().unwrap(), "{case}");
                let want = want[1].as_f64().unwrap();
                assert!((f64::from(*penalty) - want).abs() <= 1e-4 * want.max(1.0), "{penalty} in {case}");
            }
        }
    }

    #[test]
    fn the_coin_decides_whether_top_choices_are_excluded() {
        let xtc = Xtc { probability: 0.3, threshold: 0.2 };
        let params = Arc::new(Sampling { temperature: 1.0, xtc, ..Sampling::default() });
        let pick = |coin| Sample { params: params.clone(), coin, ..Sample::default() }.pick(&[5.0, 4.5, 0.0]);
        assert_eq!(pick(0.29).unwrap().id, 1);
        assert_eq!(pick(0.3).unwrap().id, 0);
    }

    #[test]
    fn a_mask_and_the_temperature_0_go_before_filters() {
        let logits = [9.0, 1.0, 0.9, 0.8];
        let params = Sampling { typical_p: 0.5, top_n_sigma: 1.0, ..Sampling::default() };
        let mask = Some(Mask::allowing([1, 2], 4));
        let masked = Sampling { temperature: 1.0, ..params.clone() };
        for i in 0..100 {
            let draw = i as f32 / 100.0;
            let sample = Sample { mask: mask.clone(), draw, ..masked.clone().into() };
            assert!([1, 2].contains(&sample.pick(&logits).unwrap().id));
        }
        assert_eq!(Sample::from(params).pick(&logits).unwrap().id, 0);
        let none = Sample { mask: Some(Mask::allowing([], 4)), ..masked.into() };
        assert_eq!(none.pick(&logits), None);
    }

    #[test]
    fn one_token_and_odd_parameters_still_give_a_token() {
        for version in [MirostatVersion::One, MirostatVersion::Two] {
            for (tau, eta) in [(0.0, 0.0), (f32::MAX, 1.0), (5.0, 0.1)] {
                let mirostat = Some(Mirostat { version, tau, eta });
                let params = Sampling { temperature: 1.0, mirostat, ..Sampling::default() };
                let mut state = None;
                for logits in [&[0.5][..], &[1.0; 40], &[3.0, 2.0, 1.0]] {
                    let sample = Sample { mirostat: state, draw: 0.9, ..params.clone().into() };
                    state = sample.pick(logits).unwrap().mirostat;
                    assert!(state.unwrap().is_finite());
                }
            }
        }
        for typical_p in [0.0, 1e-9, 0.999_999] {
            let params = Sampling { temperature: 1.0, typical_p, ..Sampling::default() };
            assert!(Sample { draw: 0.999_999, ..params.into() }.pick(&[1.0; 9]).is_some());
        }
    }

    proptest! {
        #[test]
        fn without_its_filters_the_token_is_the_one_of_choice(
            row in prop::collection::vec(-9.0f32..9.0, 1..300), top_k in 0usize..50, top_p in 0.0f32..1.0,
            min_p in 0.0f32..0.5, draw in 0.0f32..1.0,
        ) {
            let params = Sampling { temperature: 0.9, top_k, top_p, min_p, ..Sampling::default() };
            let sample = Sample { draw, ..params.into() };
            prop_assert_eq!(choose(&sample, &row).map(|c| c.id), choice::choose(&sample, &row));
        }
    }
}
