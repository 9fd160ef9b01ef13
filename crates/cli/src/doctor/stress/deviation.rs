//! How much the logits of a device depend on the size of its steps: what counts as a
//! near tie follows from it.

use tern::engine::{EngineError, GraphRunner};
use tern::graph::{Random, divergence};

/// Tokens of random texts. Attention to the last tokens of a long one is computed in slices.
const TEXTS: [usize; 3] = [48, 48, 400];
/// Tokens per step that are compared: a GPU has its own kernels for one, two, up to
/// four, up to eight, and more, and may have x as bytes in steps of more than 128.
const STEPS: [usize; 5] = [1, 2, 4, 8, LARGEST_STEP];
pub(crate) const LARGEST_STEP: usize = 192;
/// A choice between two tokens is a near tie if their logits differ by at most this many
/// deviations. Deviations are normally distributed: five are exceeded once in two million choices,
/// most of which have larger gaps.
pub(crate) const DEVIATIONS: f64 = 5.0;

/// By how much the difference of two logits changes with the size of steps, as a root mean
/// square over the vocabulary.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Deviation {
    /// Over all positions.
    pub(crate) mean: f64,
    /// At the position with the largest one: with experts, where a router decides a near tie.
    pub(crate) largest: f64,
    /// Median Kullback-Leibler divergence of a position, in nats.
    pub(crate) divergence: f64,
}

impl Deviation {
    /// Compares steps of several sizes with steps of one token: the runner should have outputs for the
    /// largest. Nothing else may be in flight.
    pub(crate) fn measure(
        runner: &mut GraphRunner,
        vocab: usize,
        longest: usize,
        seed: u64,
    ) -> Result<Deviation, EngineError> {
        let mut random = Random::new(seed);
        let (mut squares, mut divergences) = (vec![], vec![]);
        for length in TEXTS {
            let tokens = super::requests::tokens(&mut random, vocab, length.min(longest));
            let mut rows = |most| -> Result<Vec<Vec<f32>>, EngineError> {
                let mut rows = vec![];
                runner.logits_in_steps(&tokens, most, |_, row| rows.push(row.to_vec()))?;
                Ok(rows)
            };
            let want = rows(STEPS[0])?;
            for most in &STEPS[1..] {
                for (want, got) in want.iter().zip(rows(*most)?) {
                    squares.push(square(want, &got));
                    divergences.push(divergence(want, &got));
                }
            }
        }
        divergences.sort_by(f64::total_cmp);
        let mean = squares.iter().sum::<f64>() / squares.len().max(1) as f64;
        let largest = squares.iter().copied().fold(0.0, f64::max);
        let median = divergences.get(divergences.len() / 2).copied().unwrap_or(0.0);
        Ok(Deviation { mean: mean.sqrt(), largest: largest.sqrt(), divergence: median })
    }

    /// The largest gap of a near tie, in nats.
    pub(crate) fn tie(&self) -> f64 {
        DEVIATIONS * self.largest
    }
}

/// The mean square of what is added to the difference of two logits: twice the variance
/// of what is added to one.
fn square(want: &[f32], got: &[f32]) -> f64 {
    let added: Vec<f64> = want.iter().zip(got).map(|(want, got)| f64::from(got - want)).collect();
    square_of_differences(&added)
}

/// The mean square of the differences of two of these.
pub(crate) fn square_of_differences(added: &[f64]) -> f64 {
    let count = added.len().max(1) as f64;
    let mean = added.iter().sum::<f64>() / count;
    2.0 * added.iter().map(|x| (x - mean) * (x - mean)).sum::<f64>() / count
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_added_to_all_logits_changes_no_choice() {
        assert_eq!(square(&[1.0, 2.0, 5.0], &[1.5, 2.5, 5.5]), 0.0);
        // one of two moves by 0.5: so does their difference, in two of four ordered pairs
        assert_eq!(square(&[1.0, 2.0], &[1.5, 2.0]), 0.125);
    }
}
