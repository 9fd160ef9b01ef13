//! What a step of decoding costs by its number of rows, measured.

use std::collections::BTreeMap;
use std::time::Duration;

/// Weight of the newest step in an average.
const NEWEST: f64 = 0.2;
/// Steps after which a size that was not run again is forgotten: contexts grow, and machines change.
const VALID: u64 = 500;
/// What a row more is expected to add to the largest step that is known, as a part of a step of one row:
/// little, so that it is tried.
const UNTRIED: f64 = 0.05;

/// The average duration of steps by their rows: last tokens and drafts.
#[derive(Clone, Debug, Default)]
pub(crate) struct RowCost {
    /// `(seconds, the step that was measured last)` by rows.
    sizes: BTreeMap<usize, (f64, u64)>,
    steps: u64,
}

impl RowCost {
    /// Records a step that only decoded.
    pub(crate) fn learn(&mut self, rows: usize, took: Duration) {
        self.steps += 1;
        let (steps, seconds) = (self.steps, took.as_secs_f64());
        let size = self.sizes.entry(rows).or_insert((seconds, steps));
        // one slow step, as of a page fault, says little
        let seconds = if steps > size.1 { seconds.min(4.0 * size.0) } else { seconds };
        *size = (size.0 + NEWEST * (seconds - size.0), steps);
        if steps.is_multiple_of(VALID / 8) {
            self.sizes.retain(|_, (_, last)| steps - *last < VALID);
        }
    }

    /// The expected seconds of a step; any positive number if nothing was measured.
    pub(crate) fn of(&self, rows: usize) -> f64 {
        let below = self.sizes.range(..=rows).next_back().map(|(rows, (seconds, _))| (*rows, *seconds));
        let above = self.sizes.range(rows..).next().map(|(rows, (seconds, _))| (*rows, *seconds));
        match (below, above) {
            (Some((low, least)), Some((high, most))) if high > low => {
                least + (most - least) * (rows - low) as f64 / (high - low) as f64
            }
            (Some((low, seconds)), _) => seconds * (1.0 + UNTRIED * (rows - low) as f64 / low.max(1) as f64),
            (None, Some((_, seconds))) => seconds,
            (None, None) => 1.0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn millis(cost: &RowCost, rows: usize) -> f64 {
        (cost.of(rows) * 1e6).round() / 1e3
    }

    #[test]
    fn sizes_between_those_that_were_measured_are_interpolated() {
        let mut cost = RowCost::default();
        assert!(cost.of(1) == cost.of(9), "nothing is known");
        cost.learn(1, Duration::from_millis(10));
        assert_eq!([1, 2, 3].map(|rows| millis(&cost, rows)), [10.0, 10.5, 11.0], "little more, to try it");
        cost.learn(5, Duration::from_millis(18));
        assert_eq!([1, 3, 5].map(|rows| millis(&cost, rows)), [10.0, 14.0, 18.0]);
        cost.learn(1, Duration::from_millis(1000));
        assert_eq!(millis(&cost, 1), 16.0, "a slow step counts as four");
    }

    #[test]
    fn sizes_are_forgotten_and_tried_again() {
        let mut cost = RowCost::default();
        cost.learn(4, Duration::from_millis(90));
        (0..2 * VALID).for_each(|_| cost.learn(1, Duration::from_millis(10)));
        assert_eq!(millis(&cost, 4), 11.5);
    }
}
