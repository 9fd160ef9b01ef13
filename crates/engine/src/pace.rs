//! The expected maximum duration of a step, estimated from earlier steps.

use std::time::Duration;

/// Decay of the maxima per step, so that one slow step is forgotten.
const FADE: f64 = 0.95;

/// The slowest of the latest steps.
#[derive(Debug, Default)]
pub(crate) struct Pace {
    /// Seconds of a whole step.
    longest: f64,
    /// Seconds per token. Steps of few tokens set it, so it overestimates long ones.
    per_token: f64,
}

impl Pace {
    /// Records the duration of a step of `tokens` tokens.
    pub(crate) fn learn(&mut self, tokens: usize, took: Duration) {
        let seconds = took.as_secs_f64();
        self.longest = seconds.max(self.longest * FADE);
        self.per_token = (seconds / tokens.max(1) as f64).max(self.per_token * FADE);
    }

    /// The expected maximum for a step of `tokens` tokens; `None` before the first step.
    pub(crate) fn expected(&self, tokens: usize) -> Option<Duration> {
        let seconds = self.longest.max(self.per_token * tokens as f64);
        (seconds > 0.0).then(|| Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_prompt_after_single_tokens_is_expected_to_take_long() {
        let mut pace = Pace::default();
        assert_eq!(pace.expected(1), None);
        pace.learn(1, Duration::from_secs(2));
        assert_eq!(pace.expected(512), Some(Duration::from_secs(1024)));
        // reading the weights takes most of the time here: a single token takes as long as a prompt
        pace.learn(512, Duration::from_secs(400));
        assert_eq!(pace.expected(1), Some(Duration::from_secs(400)));
    }

    #[test]
    fn a_slow_step_is_forgotten() {
        let mut pace = Pace::default();
        pace.learn(1, Duration::from_secs(60)); // the first step of a device, for example
        (0..300).for_each(|_| pace.learn(1, Duration::from_millis(5)));
        assert_eq!(pace.expected(1), Some(Duration::from_millis(5)));
    }
}
