//! The token budget of a step, adapted so that steps take about the target time.

use std::time::Duration;

/// Fewer tokens than this use no device efficiently.
const LEAST: usize = 32;

/// Adapts the size of the next step to the duration of the last ones.
#[derive(Debug)]
pub(crate) struct Budget {
    tokens: usize,
    most: usize,
    /// In seconds; without it, every step may be as large as possible.
    target: Option<f64>,
}

impl Budget {
    /// Steps of `most` tokens, or as many as take about `millis` milliseconds; 0 disables the target.
    pub(crate) fn new(most: usize, millis: usize) -> Budget {
        let target = (millis > 0).then_some(millis as f64 / 1e3);
        let tokens = if target.is_some() { LEAST.min(most) } else { most };
        Budget { tokens, most, target }
    }

    /// Tokens of the next step.
    pub(crate) fn tokens(&self) -> usize {
        self.tokens
    }

    /// Records the duration of a step of `tokens` tokens.
    pub(crate) fn learn(&mut self, tokens: usize, took: Duration) {
        let Some(target) = self.target else { return };
        let ratio = target / took.as_secs_f64().max(1e-6);
        // a step smaller than allowed tells nothing about larger ones, unless it was too slow already
        if ratio < 1.0 || tokens >= self.tokens {
            let next = tokens as f64 * ratio.clamp(0.5, 2.0);
            self.tokens = (next as usize).clamp(LEAST.min(self.most), self.most);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A device with a fixed cost per step and one per token, in milliseconds.
    fn settle(budget: &mut Budget, step: f64, token: f64) -> f64 {
        let took = |tokens: usize| Duration::from_secs_f64((step + token * tokens as f64) / 1e3);
        for _ in 0..50 {
            let tokens = budget.tokens();
            budget.learn(tokens, took(tokens));
        }
        took(budget.tokens()).as_secs_f64() * 1e3
    }

    #[test]
    fn steps_settle_near_their_time_and_within_their_bounds() {
        let mut budget = Budget::new(4096, 100);
        let slow = settle(&mut budget, 5.0, 1.0);
        assert!((80.0..=105.0).contains(&slow), "{slow}");
        settle(&mut budget, 0.1, 0.001);
        assert_eq!(budget.tokens(), 4096);
        settle(&mut budget, 5.0, 100.0);
        assert_eq!(budget.tokens(), LEAST);
        assert_eq!(Budget::new(512, 0).tokens(), 512);
    }

    #[test]
    fn one_step_at_most_halves_or_doubles_the_next_within_the_bounds() {
        let after = |most, tokens, step, millis| {
            let mut budget = Budget { tokens, ..Budget::new(most, 100) };
            budget.learn(step, Duration::from_millis(millis));
            budget.tokens()
        };
        assert_eq!(after(4096, 100, 100, 0), 200, "at most twice");
        assert_eq!(after(4096, 100, 100, 10_000), 50, "at least half");
        assert_eq!(after(4096, 100, 100, 80), 125);
        assert_eq!(after(4096, 3000, 3000, 1), 4096, "not over the most");
        assert_eq!(after(4096, 40, 40, 10_000), LEAST, "not under the least");
        assert_eq!(after(4096, 1000, 200, 200), 100, "a short step that was too slow counts");
        assert_eq!(after(4096, 1000, 200, 100), 1000, "a short step that took its time does not");
        assert_eq!((after(8, 8, 8, 10_000), after(8, 8, 8, 1)), (8, 8), "the most is less than the least");
    }

    #[test]
    fn a_short_step_says_nothing_about_long_ones() {
        let mut budget = Budget::new(4096, 100);
        settle(&mut budget, 5.0, 1.0);
        let before = budget.tokens();
        budget.learn(1, Duration::from_millis(6));
        assert_eq!(budget.tokens(), before);
    }
}
