//! How many of the decoding sequences a step has: all, or fewer in turns if a device is faster so.
//!
//! A device may compute steps of up to some size in a faster way, so that one sequence more makes all
//! of them slower. Which is better is measured: the throughput of steps of each size, now and then
//! again, since contexts grow.

use std::collections::HashMap;
use std::time::Duration;

/// Steps of a size that are measured.
const MEASURED: u32 = 4;
/// Steps after which a size is measured again.
const VALID: u64 = 2000;
/// Turns must raise throughput by this factor.
const BETTER: f64 = 1.03;

/// The sizes of steps that decode one token of each of their sequences.
#[derive(Debug, Default)]
pub struct StepSizes {
    /// The largest steps of each faster way, ascending.
    borders: Vec<usize>,
    costs: HashMap<usize, Cost>,
    steps: u64,
}

/// The cost of steps of one size.
#[derive(Clone, Copy, Debug)]
struct Cost {
    /// The shortest one that was measured.
    seconds: f64,
    measured: u32,
    /// When it was measured first.
    since: u64,
}

impl StepSizes {
    /// For a runner with these borders ([`crate::Runner::step_borders`]).
    pub fn new(mut borders: Vec<usize>) -> StepSizes {
        borders.sort();
        StepSizes { borders, ..StepSizes::default() }
    }

    /// Records the duration of a step of `sequences`.
    pub fn learn(&mut self, sequences: usize, took: Duration) {
        self.steps += 1;
        let seconds = took.as_secs_f64();
        let new = Cost { seconds, measured: 0, since: self.steps };
        let cost = self.costs.entry(sequences).or_insert(new);
        if self.steps - cost.since > VALID {
            *cost = new;
        }
        cost.measured += 1;
        if cost.measured <= MEASURED {
            cost.seconds = cost.seconds.min(seconds);
        }
    }

    /// The sequences of a step if `all` could decode a token. A border is compared up to twice its size:
    /// beyond, larger steps win.
    pub fn of(&self, all: usize) -> usize {
        let Some(border) = self.borders.iter().rev().copied().find(|border| *border < all) else {
            return all;
        };
        if all >= 2 * border {
            return all;
        }
        match (self.throughput(all), self.throughput(border)) {
            (None, _) => all,
            (_, None) => border,
            (Some(whole), Some(turns)) if turns > whole * BETTER => border,
            _ => all,
        }
    }

    /// Sequences per second, if steps of this size were measured.
    fn throughput(&self, size: usize) -> Option<f64> {
        let cost = self.costs.get(&size)?;
        let valid = cost.measured >= MEASURED && self.steps - cost.since <= VALID;
        valid.then(|| size as f64 / cost.seconds.max(1e-9))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs steps of up to `all` sequences on a device whose steps of up to 8 take `few` and larger ones
    /// `many` milliseconds.
    fn run(sizes: &mut StepSizes, all: usize, steps: usize, few: f64, many: f64) -> Vec<usize> {
        let step = |_| {
            let size = sizes.of(all);
            let took = if size <= 8 { few } else { many };
            sizes.learn(size, Duration::from_secs_f64(took / 1e3));
            size
        };
        (0..steps).map(step).collect()
    }

    #[test]
    fn turns_are_taken_if_they_are_faster() {
        let borders = || StepSizes::new(vec![8, 1]);
        let ran = run(&mut borders(), 9, 100, 1.4, 2.2);
        assert_eq!(ran[..MEASURED as usize], [9; MEASURED as usize]);
        assert!(ran[MEASURED as usize..].iter().all(|size| *size == 8));
        let ran = run(&mut borders(), 15, 100, 1.4, 2.2);
        assert!(ran[2 * MEASURED as usize..].iter().all(|size| *size == 15), "15 together are faster");
        assert_eq!(run(&mut borders(), 16, 50, 1.4, 9.0), [16; 50], "twice the border is not compared");
        assert_eq!(run(&mut borders(), 7, 50, 1.4, 2.2), [7; 50]);
        assert_eq!(run(&mut StepSizes::new(vec![]), 9, 50, 1.4, 2.2), [9; 50]);
    }

    #[test]
    fn sizes_are_measured_again() {
        let mut sizes = StepSizes::new(vec![8]);
        run(&mut sizes, 9, 100, 1.4, 2.2);
        let later = run(&mut sizes, 9, 3 * VALID as usize, 3.0, 2.2);
        assert_eq!(later.last(), Some(&9), "steps of eight have become slower");
    }
}
