//! The sampling parameters of a request, the same struct from the request to the kernel.

use std::sync::Arc;

use super::{BIAS, PARAMETERS};
use crate::{Dry, Random, Sample, Seen};

/// How tokens are chosen. The default is greedy with every penalty off.
///
/// The repetition penalty looks at the prompt and the generated text, frequency and presence at
/// the generated text alone: the many markers of a prompt must not keep the model from writing the
/// one that ends its answer.
#[derive(Clone, Debug, PartialEq)]
pub struct Sampling {
    /// 0 takes the best token; at most 2.
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
    /// Drop tokens whose logit is more than this many standard deviations below the best one; 0 keeps all.
    pub top_n_sigma: f32,
    /// Keep the tokens whose surprise is closest to the expected one until their
    /// probabilities pass this; 1 keeps all.
    pub typical_p: f32,
    /// Excludes the most probable tokens at random.
    pub xtc: Xtc,
    /// A penalty on tokens that continue a repetition.
    pub dry: Dry,
    /// Replaces top-k, top-p, min-p and the other filters by a target for the surprise of tokens.
    pub mirostat: Option<Mirostat>,
    /// Added to single logits.
    pub bias: Vec<(u32, f32)>,
    /// The same seed gives the same text, however the request is batched, chunked or preempted.
    pub seed: u64,
    /// Report each token's log-probability, and those of this many best tokens.
    pub logprobs: Option<usize>,
    /// Tokens whose log-probabilities are reported too, if any are.
    pub reported: Arc<[u32]>,
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
            top_n_sigma: 0.0,
            typical_p: 1.0,
            xtc: Xtc::default(),
            dry: Dry::default(),
            mirostat: None,
            bias: vec![],
            seed: 0,
            logprobs: None,
            reported: Arc::new([]),
        }
    }
}

/// XTC ("exclude top choices"): with some probability, all tokens above a threshold but the least
/// probable of them are excluded.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Xtc {
    /// How often; 0 is off.
    pub probability: f32,
    /// Tokens of at least this probability; above 0.5 there is at most one, and nothing is excluded.
    pub threshold: f32,
}

impl Default for Xtc {
    fn default() -> Xtc {
        Xtc { probability: 0.0, threshold: 0.1 }
    }
}

/// Mirostat: how many tokens are kept follows from the surprise of the tokens so far.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Mirostat {
    /// The algorithm.
    pub version: MirostatVersion,
    /// The target of the surprise, in bits.
    pub tau: f32,
    /// How fast the state follows.
    pub eta: f32,
}

impl Mirostat {
    /// The usual target.
    pub const TAU: f32 = 5.0;
    /// The usual rate.
    pub const ETA: f32 = 0.1;
}

/// The two algorithms.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MirostatVersion {
    /// Keeps as many tokens as follow from an estimate by Zipf's law.
    One,
    /// Keeps tokens up to a surprise.
    Two,
}

/// What sampling knows of a sequence.
#[derive(Clone, Copy, Debug)]
pub struct History<'a> {
    /// All tokens, with the prompt's; only needed by DRY.
    pub tokens: &'a [u32],
    /// How often each was generated; only needed by penalties.
    pub seen: &'a Seen,
    /// The state of mirostat after the last token; none before the first.
    pub mirostat: Option<f32>,
}

/// A sampling parameter outside its range.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{name}: want {want}, got {got}")]
pub struct SamplingError {
    /// The parameter.
    pub name: &'static str,
    /// Its range.
    pub want: String,
    /// Its value.
    pub got: String,
}

impl Sampling {
    /// Refuses a parameter that is not a number or lies outside its range.
    pub fn check(&self) -> Result<(), SamplingError> {
        PARAMETERS.iter().try_for_each(|parameter| parameter.check((parameter.get)(self)))?;
        match self.bias.iter().find(|(_, by)| !BIAS.contains((*by).into())) {
            Some((id, by)) => Err(SamplingError {
                name: "logit_bias",
                want: BIAS.to_string(),
                got: format!("{by} for token {id}"),
            }),
            None => Ok(()),
        }
    }

    /// How the token at `position` is chosen, after the tokens of `history`.
    pub fn at(self: &Arc<Sampling>, position: usize, history: History<'_>) -> Sample {
        let mut random = self.random(position);
        Sample {
            params: Arc::clone(self),
            seen: if self.has_penalties() { history.seen.clone() } else { Seen::default() },
            mask: None,
            repetitions: self.dry.penalties(history.tokens),
            mirostat: history.mirostat,
            draw: random.uniform(),
            coin: random.uniform(),
        }
    }

    /// The draw of the token at `position`.
    pub fn draw(&self, position: usize) -> f32 {
        self.random(position).uniform()
    }

    /// Numbers in [0, 1) that depend on the seed and the position only.
    fn random(&self, position: usize) -> Random {
        // the seed is mixed first, or neighbouring seeds would share draws at neighbouring positions
        let stream = Random::new(self.seed).next_u64();
        Random::new(stream ^ position as u64)
    }

    /// Whether the best token is taken, whatever the draw.
    pub fn is_greedy(&self) -> bool {
        self.temperature <= 0.0 || self.top_k == 1
    }

    /// Whether tokens are counted: for repetition, frequency and presence.
    pub fn has_penalties(&self) -> bool {
        self.repetition != 1.0 || self.frequency != 0.0 || self.presence != 0.0
    }

    /// Whether a choice depends on the tokens before it.
    pub fn depends_on_text(&self) -> bool {
        self.has_penalties() || self.dry.is_on() || self.mirostat.is_some()
    }

    /// Whether a filter is set that only the host has: devices return the logits,
    /// from which the host samples.
    pub fn needs_host(&self) -> bool {
        let filters = self.top_n_sigma > 0.0 || self.typical_p < 1.0 || self.xtc.probability > 0.0;
        (filters || self.mirostat.is_some()) && !self.is_greedy()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_outside_their_range_are_refused_by_name() {
        let off = Sampling::default;
        for (sampling, want) in [
            (Sampling { temperature: -1.0, ..off() }, "temperature: want 0 to 2, got -1"),
            (Sampling { temperature: f32::NAN, ..off() }, "temperature: want 0 to 2, got NaN"),
            (Sampling { temperature: f32::INFINITY, ..off() }, "temperature: want 0 to 2, got inf"),
            (Sampling { top_p: 1.5, ..off() }, "top_p: want 0 to 1, got 1.5"),
            (Sampling { min_p: -0.1, ..off() }, "min_p: want 0 to 1, got -0.1"),
            (Sampling { repetition: 0.0, ..off() }, "repeat_penalty: want 0.01 to 10, got 0"),
            (Sampling { frequency: 3.0, ..off() }, "frequency_penalty: want -2 to 2, got 3"),
            (Sampling { presence: f32::NAN, ..off() }, "presence_penalty: want -2 to 2, got NaN"),
            (Sampling { typical_p: 1.1, ..off() }, "typical_p: want 0 to 1, got 1.1"),
            (Sampling { top_n_sigma: -2.0, ..off() }, "top_n_sigma: want -1 to 1000000, got -2"),
            (
                Sampling { xtc: Xtc { probability: 2.0, threshold: 0.1 }, ..off() },
                "xtc_probability: want 0 to 1, got 2",
            ),
            (
                Sampling { dry: Dry { base: 0.5, ..Dry::default() }, ..off() },
                "dry_base: want 1 to 1000000, got 0.5",
            ),
            (
                Sampling {
                    mirostat: Some(Mirostat { version: MirostatVersion::Two, tau: 5.0, eta: f32::NAN }),
                    ..off()
                },
                "mirostat_eta: want 0 to 1, got NaN",
            ),
            (
                Sampling { bias: vec![(7, 101.0)], ..off() },
                "logit_bias: want -100 to 100, got 101 for token 7",
            ),
        ] {
            assert_eq!(sampling.check().unwrap_err().to_string(), want);
        }
        assert_eq!(off().check(), Ok(()));
    }

    #[test]
    fn the_default_is_the_default_sample() {
        let seen = Seen::new(&[1, 2]);
        let sample =
            Arc::new(Sampling::default()).at(3, History { tokens: &[1, 2], seen: &seen, mirostat: None });
        assert_eq!(Sample { draw: 0.0, coin: 0.0, ..sample }, Sample::default());
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
        let history = History { tokens: &[9, 2, 9, 2, 2, 5], seen: &seen, mirostat: None };
        assert_eq!(sampling.at(6, history).seen.counts(), [(2, 2), (5, 1), (9, 0)]);
    }

    #[test]
    fn repetitions_are_penalised_only_if_dry_is_on() {
        let history = History { tokens: &[1, 2, 3, 1, 2], seen: &Seen::default(), mirostat: Some(3.0) };
        let dry = Dry { multiplier: 0.8, ..Dry::default() };
        let on = Arc::new(Sampling { dry, ..Sampling::default() });
        let sample = on.at(5, history);
        assert_eq!((sample.repetitions, sample.mirostat), (vec![(3, 0.8)], Some(3.0)));
        assert!(on.depends_on_text() && !on.needs_host());
        assert_eq!(Arc::new(Sampling::default()).at(5, history).repetitions, []);
    }
}
