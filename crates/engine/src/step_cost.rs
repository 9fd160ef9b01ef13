//! What a step of decoding costs: a fixed time and a time per sequence, fitted to the latest steps.

use std::time::Duration;

/// Decay of the sums per step.
const FADE: f64 = 0.99;
/// Throughput that smaller steps may cost: a step of fewer sequences takes at most this
/// much longer per sequence.
const DEARER: f64 = 4.0 / 3.0;
/// Smaller steps must be this much shorter.
const SHORTER: f64 = 2.0;

/// Sums over steps, each of `x` sequences and `y` seconds.
#[derive(Debug, Default)]
pub(crate) struct StepCost {
    count: f64,
    x: f64,
    y: f64,
    xx: f64,
    xy: f64,
}

impl StepCost {
    /// Records the duration of a step that decoded one token of each of `sequences`.
    pub(crate) fn learn(&mut self, sequences: usize, took: Duration) {
        let (x, y) = (sequences as f64, took.as_secs_f64());
        let new = [
            (&mut self.count, 1.0),
            (&mut self.x, x),
            (&mut self.y, y),
            (&mut self.xx, x * x),
            (&mut self.xy, x * y),
        ];
        for (sum, value) in new {
            *sum = *sum * FADE + value;
        }
    }

    /// How many of `all` sequences of `clients` clients a step should have, if one has more than another: as
    /// few as cost little throughput, or all if that would not make steps much shorter.
    pub(crate) fn few(&self, all: usize, clients: usize) -> usize {
        let spread = self.count * self.xx - self.x * self.x;
        // steps of one size say nothing about smaller ones: try one
        if spread < self.count * self.count {
            return all.div_ceil(2).max(clients);
        }
        let each = ((self.count * self.xy - self.x * self.y) / spread).max(0.0);
        let fixed = ((self.y - each * self.x) / self.count).max(0.0);
        let whole = fixed + each * all as f64;
        let dearest = whole / all as f64 * DEARER;
        // fixed / few + each = dearest
        let few = (fixed / (dearest - each).max(f64::MIN_POSITIVE)).ceil();
        let few = (few.min(all as f64) as usize).max(clients).max(1);
        if (fixed + each * few as f64) * SHORTER <= whole { few } else { all }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A device with a fixed cost per step and one per sequence, in milliseconds.
    fn learned(fixed: f64, each: f64, steps: impl IntoIterator<Item = usize>) -> StepCost {
        let mut cost = StepCost::default();
        for sequences in steps {
            cost.learn(sequences, Duration::from_secs_f64((fixed + each * sequences as f64) / 1e3));
        }
        cost
    }

    #[test]
    fn steps_are_small_where_sequences_cost_more_than_the_step() {
        for (fixed, each, want) in [
            (8.0, 15.0, 2),    // a small model on a CPU
            (0.0, 15.0, 2),    // at least one per client
            (100.0, 20.0, 10), // a larger one
            (10.0, 0.05, 32),  // a GPU: the size does not matter
            (350.0, 20.0, 32),
            (10.0, 0.0, 32),
        ] {
            let cost = learned(fixed, each, (0..200).map(|step| if step % 2 == 0 { 32 } else { 16 }));
            assert_eq!(cost.few(32, 2), want, "{fixed} {each}");
        }
        let cost = learned(8.0, 15.0, [32, 16, 8]);
        assert_eq!(cost.few(32, 20), 32, "one per client would not be much shorter");
        assert_eq!(cost.few(32, 12), 12);
    }

    #[test]
    fn a_smaller_step_is_tried_if_all_had_one_size() {
        assert_eq!(learned(10.0, 1.0, vec![32; 50]).few(32, 2), 16);
        assert_eq!(StepCost::default().few(9, 8), 8);
        // what is known for long fades
        let cost = learned(10.0, 0.05, (0..2000).map(|step| if step < 100 { step % 32 + 1 } else { 32 }));
        assert_eq!(cost.few(32, 2), 16);
    }
}
