//! How the distributions of a model differ from those of a reference: divergence, and how often
//! both prefer the same token.

use serde_json::{Value, json};
use tern::graph::divergence;

/// The differences at all positions so far.
#[derive(Debug, Default)]
pub(super) struct Comparison {
    /// Kullback-Leibler divergence from the reference, in nats.
    divergences: Vec<f64>,
    same_top: usize,
}

/// A mean and its standard error.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Mean {
    value: f64,
    error: f64,
}

impl Mean {
    fn of(values: impl Iterator<Item = f64> + Clone) -> Mean {
        let count = values.clone().count().max(1) as f64;
        let value = values.clone().sum::<f64>() / count;
        let variance = values.map(|x| (x - value).powi(2)).sum::<f64>() / (count - 1.0).max(1.0);
        Mean { value, error: (variance / count).sqrt() }
    }
}

impl Comparison {
    /// Adds a position: the logits of the reference and those of the model.
    pub(super) fn add(&mut self, reference: &[f32], logits: &[f32]) {
        self.divergences.push(divergence(reference, logits));
        self.same_top += usize::from(top(reference) == top(logits));
    }

    /// The mean divergence so far.
    pub(super) fn mean(&self) -> f64 {
        Mean::of(self.divergences.iter().copied()).value
    }

    fn share(&self) -> Mean {
        let (same, all) = (self.same_top, self.divergences.len());
        Mean::of((0..all).map(|i| if i < same { 1.0 } else { 0.0 }))
    }

    /// The divergence that a share of all positions does not exceed.
    fn quantile(sorted: &[f64], share: f64) -> f64 {
        let at = (share * (sorted.len().saturating_sub(1)) as f64).round() as usize;
        sorted.get(at).copied().unwrap_or(0.0)
    }

    fn sorted(&self) -> Vec<f64> {
        let mut sorted = self.divergences.clone();
        sorted.sort_by(f64::total_cmp);
        sorted
    }

    /// Two lines of text.
    pub(super) fn text(&self) -> String {
        let (kl, share, sorted) = (Mean::of(self.divergences.iter().copied()), self.share(), self.sorted());
        let [median, most, largest] = [0.5, 0.99, 1.0].map(|share| Comparison::quantile(&sorted, share));
        format!(
            "KL divergence {:.6} +/- {:.6}, median {median:.6}, 99 % {most:.6}, largest {largest:.6}\n\
             same top token {:.2} % +/- {:.2} %",
            kl.value,
            kl.error,
            100.0 * share.value,
            100.0 * share.error
        )
    }

    /// The same as JSON.
    pub(super) fn json(&self) -> Value {
        let (kl, share, sorted) = (Mean::of(self.divergences.iter().copied()), self.share(), self.sorted());
        json!({
            "kl_mean": kl.value, "kl_error": kl.error, "kl_median": Comparison::quantile(&sorted, 0.5),
            "kl_99": Comparison::quantile(&sorted, 0.99), "kl_largest": Comparison::quantile(&sorted, 1.0),
            "same_top": share.value, "same_top_error": share.error,
        })
    }
}

/// The token with the largest logit.
fn top(logits: &[f32]) -> Option<usize> {
    (0..logits.len()).max_by(|a, b| logits[*a].total_cmp(&logits[*b]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_logits_do_not_diverge_and_others_do() {
        let mut comparison = Comparison::default();
        comparison.add(&[1.0, 2.0, 3.0], &[1.0, 2.0, 3.0]);
        assert!(comparison.mean().abs() < 1e-12);
        // probabilities of 3/4 and 1/4 against 1/4 and 3/4: ln 3 / 2
        comparison.add(&[3f32.ln(), 0.0], &[0.0, 3f32.ln()]);
        let want = 3f64.ln() / 2.0;
        assert!((comparison.mean() - want / 2.0).abs() < 1e-6);
        assert!((Comparison::quantile(&comparison.sorted(), 1.0) - want).abs() < 1e-6);
        assert_eq!(comparison.share().value, 0.5);
        assert!(comparison.text().contains("same top token 50.00 % +/- 50.00 %"), "{}", comparison.text());
    }
}
