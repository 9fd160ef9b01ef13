//! How close the choice between two tokens was: rounding may decide a near tie either way.

use tern::engine::Request;

/// How far `got` was from being sampled after `text`, given the log-probabilities of the whole vocabulary.
///
/// Greedy: nats between the two tokens. Random: the distance of the draw from the
/// interval of `got` in [0, 1).
pub(crate) fn gap(request: &Request, text: &[u32], logprobs: &[(u32, f32)], want: u32, got: u32) -> f64 {
    let sampling = &request.sampling;
    let adjusted = |&(id, logprob): &(u32, f32)| {
        let times = if sampling.frequency == 0.0 { 0 } else { text.iter().filter(|t| **t == id).count() };
        (id, f64::from(logprob) - f64::from(sampling.frequency) * times as f64)
    };
    let mut all: Vec<(u32, f64)> = logprobs.iter().map(adjusted).collect();
    let value = |id: u32| all.iter().find(|(other, _)| *other == id).map_or(f64::NEG_INFINITY, |v| v.1);
    if sampling.temperature <= 0.0 {
        return (value(want) - value(got)).abs();
    }
    let best = all.iter().map(|v| v.1).fold(f64::NEG_INFINITY, f64::max);
    all.iter_mut().for_each(|v| v.1 = ((v.1 - best) / f64::from(sampling.temperature)).exp());
    all.sort_unstable_by_key(|v| v.0);
    let total: f64 = all.iter().map(|v| v.1).sum();
    let draw = f64::from(sampling.draw(request.prompt.len() + text.len())) * total;
    let mut low = 0.0;
    for (id, weight) in all {
        if id == got {
            return (low - draw).max(draw - (low + weight)).max(0.0) / total;
        }
        low += weight;
    }
    f64::INFINITY
}

#[cfg(test)]
mod tests {
    use super::*;
    use tern::engine::Sampling;

    fn request(sampling: Sampling) -> Request {
        Request { sampling, ..Request::new(vec![1, 2, 3], 10) }
    }

    #[test]
    fn greedy_gaps_are_nats_after_penalties() {
        let logprobs = [(4, -1.0), (7, -1.25), (9, -3.0)];
        let greedy = request(Sampling::default());
        assert_eq!(gap(&greedy, &[], &logprobs, 4, 7), 0.25);
        assert_eq!(gap(&greedy, &[], &logprobs, 4, 8), f64::INFINITY);
        let penalized = request(Sampling { frequency: 0.5, ..Sampling::default() });
        assert_eq!(gap(&penalized, &[4, 4], &logprobs, 7, 4), 0.75);
    }

    #[test]
    fn gaps_of_draws_are_distances_to_the_tokens_share() {
        let hot = request(Sampling { temperature: 1.0, seed: 5, ..Sampling::default() });
        let half = 0.5f32.ln();
        let draw = f64::from(hot.sampling.draw(3));
        let logprobs = [(1, half), (0, half)]; // by id: 0 has the lower half
        let (mine, other) = if draw < 0.5 { (0, 1) } else { (1, 0) };
        assert_eq!(gap(&hot, &[], &logprobs, other, mine), 0.0);
        assert!((gap(&hot, &[], &logprobs, mine, other) - (draw - 0.5).abs()).abs() < 1e-9);
    }
}
