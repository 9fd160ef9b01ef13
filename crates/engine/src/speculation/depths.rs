//! How many drafts of each sequence a step computes.

/// Tokens per second must grow by this factor, or nothing is drafted.
const BETTER: f64 = 1.02;

/// The number of drafts per sequence that gives the most tokens per second, of steps that also compute one
/// row per each of `sequences`, with up to `most` drafts together.
///
/// `survival` has, per sequence, the probabilities that its first, first two, ... drafts are right;
/// `seconds` is the duration of a step by its rows.
pub(crate) fn depths(
    sequences: usize,
    survival: &[Vec<f64>],
    most: usize,
    seconds: impl Fn(usize) -> f64,
) -> Vec<usize> {
    let each = survival.iter().enumerate();
    let mut drafts: Vec<(f64, usize)> =
        each.flat_map(|(at, all)| all.iter().map(move |survival| (*survival, at))).collect();
    // stable, and probabilities fall: the drafts of a sequence stay in order
    drafts.sort_by(|a, b| b.0.total_cmp(&a.0));
    drafts.truncate(most);
    let mut tokens = sequences as f64;
    let (mut best, mut count) = (tokens / seconds(sequences).max(f64::MIN_POSITIVE) * BETTER, 0);
    for (taken, (survival, _)) in (1..).zip(&drafts) {
        tokens += survival;
        let speed = tokens / seconds(sequences + taken).max(f64::MIN_POSITIVE);
        if speed > best {
            (best, count) = (speed, taken);
        }
    }
    let mut depths = vec![0; survival.len()];
    drafts[..count].iter().for_each(|(_, at)| depths[*at] += 1);
    depths
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A step of one row takes 10, each further row `row` more.
    fn chosen(sequences: usize, survival: &[Vec<f64>], row: f64) -> Vec<usize> {
        depths(sequences, survival, 100, |rows| 10.0 + row * (rows - 1) as f64)
    }

    #[test]
    fn as_many_drafts_are_computed_as_pay() {
        let falling = |p: f64, count: usize| (1..=count).map(|n| p.powi(n as i32)).collect::<Vec<f64>>();
        assert_eq!(chosen(1, &[falling(0.9, 8)], 0.1), [8], "rows cost nearly nothing");
        assert_eq!(chosen(1, &[falling(0.9, 8)], 2.5), [6]);
        assert_eq!(chosen(1, &[falling(0.9, 8)], 10.0), [0], "a row costs as much as a step");
        assert_eq!(chosen(1, &[falling(0.2, 8)], 2.5), [0]);
        assert_eq!(chosen(2, &[falling(0.9, 4), falling(0.3, 4)], 2.5), [4, 0]);
        assert_eq!(chosen(3, &[vec![], falling(0.99, 2), vec![]], 0.1), [0, 2, 0]);
        assert_eq!(chosen(1, &[vec![]], 0.1), [0]);
    }

    #[test]
    fn drafts_are_bounded_together() {
        let all = vec![vec![0.9, 0.8, 0.7]; 4];
        assert_eq!(depths(4, &all, 6, |_| 1.0).iter().sum::<usize>(), 6);
        assert_eq!(depths(4, &all, 0, |_| 1.0), [0; 4]);
    }

    #[test]
    fn a_gain_within_the_noise_is_none() {
        assert_eq!(chosen(1, &[vec![0.01]], 0.0), [0]);
    }
}
