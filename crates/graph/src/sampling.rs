//! The sampling parameters of a request, the same struct from the request to the kernel.

use std::sync::Arc;

use crate::{Random, Sample, Seen};

/// How tokens are chosen. The default is greedy with every penalty off.
///
/// The repetition penalty looks at the prompt and the generated text, frequency and presence at the generated text
/// alone: the many markers of a prompt must not keep the model from writing the one that ends its answer.
#[derive(Clone, Debug, PartialEq)]
pub struct Sampling {
    /// 0 takes the best token.
    pub temperature: f32,
    /// Keep this many best tokens; 0 keeps all.
    pub top_k: usize,
    /// Keep the best tokens until their probabilities reach this; 1 keeps all.
    pub top_p: f32,
    /// Drop tokens less probable than this share of the best one; 0 keeps all.
    pub min_p: f32,
    /// Divides positive and multiplies negative logits of tokens in the prompt or the text; 1 is off.
    pub repetition: f32,
    /// Subtracted from a logit for every time the token was generated; 0 is off.
    pub frequency: f32,
    /// Subtracted from a logit once if the token was generated; 0 is off.
    pub presence: f32,
    /// Added to single logits.
    pub bias: Vec<(u32, f32)>,
    /// The same seed gives the same text, however the request is batched, chunked or preempted.
    pub seed: u64,
    /// Report each token's log-probability, and those of this many best tokens.
    pub logprobs: Option<usize>,
}

impl Default for Sampling {
    fn default() -> Sampling {
        Sampling {
            temperature: 0.0,
            top_k: 0,
            top_p: 1.0,
            min_p: 0.0,
            repetition: 1.0,
            frequency: 0.0,
            presence: 0.0,
            bias: vec![],
            seed: 0,
            logprobs: None,
        }
    }
}

/// A sampling parameter outside its range.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{name}: want {want}, got {got}")]
pub struct SamplingError {
    /// The parameter.
    pub name: &'static str,
    /// Its range.
    pub want: &'static str,
    /// Its value.
    pub got: String,
}

/// A parameter and its range.
struct Range {
    name: &'static str,
    get: fn(&Sampling) -> f32,
    low: f32,
    high: f32,
    want: &'static str,
}

const RANGES: &[Range] = &[
    Range { name: "temperature", get: |s| s.temperature, low: 0.0, high: f32::MAX, want: "0 or more" },
    Range { name: "top_p", get: |s| s.top_p, low: 0.0, high: 1.0, want: "0 to 1" },
    Range { name: "min_p", get: |s| s.min_p, low: 0.0, high: 1.0, want: "0 to 1" },
    Range {
        name: "repetition",
        get: |s| s.repetition,
        low: f32::MIN_POSITIVE,
        high: f32::MAX,
        want: "more than 0",
    },
    Range { name: "frequency", get: |s| s.frequency, low: -2.0, high: 2.0, want: "-2 to 2" },
    Range { name: "presence", get: |s| s.presence, low: -2.0, high: 2.0, want: "-2 to 2" },
];

impl Sampling {
    /// Refuses a parameter that is not a number or lies outside its range.
    pub fn check(&self) -> Result<(), SamplingError> {
        for &Range { name, get, low, high, want } in RANGES {
            let got = get(self);
            // a NaN lies in no range
            if !(low..=high).contains(&got) {
                return Err(SamplingError { name, want, got: got.to_string() });
            }
        }
        match self.bias.iter().find(|(_, by)| !(-100.0..=100.0).contains(by)) {
            Some((id, by)) => {
                Err(SamplingError { name: "bias", want: "-100 to 100", got: format!("{by} for token {id}") })
            }
            None => Ok(()),
        }
    }

    /// How the token at `position` is chosen, after the tokens in `seen`.
    pub fn at(self: &Arc<Sampling>, position: usize, seen: &Seen) -> Sample {
        Sample {
            params: Arc::clone(self),
            seen: if self.has_penalties() { seen.clone() } else { Seen::default() },
            mask: None,
            draw: self.draw(position),
        }
    }

    /// A number in [0, 1) that depends on the seed and the position only.
    pub fn draw(&self, position: usize) -> f32 {
        // the seed is mixed first, or neighbouring seeds would share draws at neighbouring positions
        let stream = Random::new(self.seed).next_u64();
        Random::new(stream ^ position as u64).uniform()
    }

    /// Whether the best token is taken, whatever the draw.
    pub fn is_greedy(&self) -> bool {
        self.temperature <= 0.0 || self.top_k == 1
    }

    /// Whether a choice depends on the tokens seen.
    pub fn has_penalties(&self) -> bool {
        self.repetition != 1.0 || self.frequency != 0.0 || self.presence != 0.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_outside_their_range_are_refused_by_name() {
        let off = Sampling::default;
        for (sampling, want) in [
            (Sampling { temperature: -1.0, ..off() }, "temperature: want 0 or more, got -1"),
            (Sampling { temperature: f32::NAN, ..off() }, "temperature: want 0 or more, got NaN"),
            (Sampling { temperature: f32::INFINITY, ..off() }, "temperature: want 0 or more, got inf"),
            (Sampling { top_p: 1.5, ..off() }, "top_p: want 0 to 1, got 1.5"),
            (Sampling { min_p: -0.1, ..off() }, "min_p: want 0 to 1, got -0.1"),
            (Sampling { repetition: 0.0, ..off() }, "repetition: want more than 0, got 0"),
            (Sampling { frequency: 3.0, ..off() }, "frequency: want -2 to 2, got 3"),
            (Sampling { presence: f32::NAN, ..off() }, "presence: want -2 to 2, got NaN"),
            (Sampling { bias: vec![(7, 101.0)], ..off() }, "bias: want -100 to 100, got 101 for token 7"),
        ] {
            assert_eq!(sampling.check().unwrap_err().to_string(), want);
        }
        assert_eq!(off().check(), Ok(()));
    }

    #[test]
    fn the_default_is_the_default_sample() {
        let sample = Arc::new(Sampling::default()).at(3, &Seen::new(&[1, 2]));
        assert_eq!(Sample { draw: 0.0, ..sample }, Sample::default());
    }

    #[test]
    fn draws_are_spread_and_differ_by_seed_and_position() {
        let draw = |seed, position| Sampling { seed, ..Sampling::default() }.draw(position);
        let mean = (0..1000).map(|p| draw(1, p)).sum::<f32>() / 1000.0;
        assert!((mean - 0.5).abs() < 0.03, "mean {mean}");
        let mut first: Vec<u32> = (0..30).flat_map(|s| (0..30).map(move |p| draw(s, p).to_bits())).collect();
        first.sort_unstable();
        first.dedup();
        assert!(first.len() > 890, "{} different draws of 900", first.len());
    }

    #[test]
    fn penalties_see_the_prompt_and_count_what_was_generated() {
        let sampling = Arc::new(Sampling { presence: 0.5, ..Sampling::default() });
        let mut seen = Seen::new(&[9, 2, 9]);
        [2, 2, 5].into_iter().for_each(|id| seen.add(id));
        assert_eq!(sampling.at(6, &seen).seen.counts(), [(2, 2), (5, 1), (9, 0)]);
    }
}
