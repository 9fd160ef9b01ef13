//! The experts that a device chooses, compared with those of the CPU: each other choice is a near tie, which
//! is proven, or wrong.
//!
//! Rounding moves the logits of routers. Where another expert is chosen, what follows differs for another
//! reason: the choices of later routers for this token and for later ones are compared no further. Of the
//! others, those that differ must be explained by logits that move no further than those of choices that are
//! the same.

use tern::models::Router;

use super::stress::{DEVIATIONS, square_of_differences};

/// Tokens from which on the deviation of a router's logits is its own; that of earlier routers counts for
/// fewer.
const LEAST_TOKENS: usize = 8;

/// The choices of a model's routers for some tokens, on two devices.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Choices {
    /// Choices that are compared: no earlier one differs among those that they depend on.
    pub(super) compared: usize,
    /// Choices after another one that differs.
    pub(super) after: usize,
    /// Other experts at a near tie.
    pub(super) ties: usize,
    /// Other experts, and rounding does not explain it.
    pub(super) wrong: usize,
    /// By how much the difference of the logits of two experts that are exchanged moves at most.
    pub(super) moved: f64,
    /// By how much it may move.
    pub(super) bound: f64,
    /// The largest distance of the compared logits of a router, in parts of their size.
    pub(super) distance: f64,
}

impl Choices {
    /// Compares rows of the logits and choices of all routers.
    pub(super) fn compare(routers: &[Router], want: &[Vec<f32>], got: &[Vec<f32>]) -> Choices {
        let mut all = Choices::default();
        // tokens from here on depend on another choice of an earlier router
        let (mut end, mut deviation) = (want.len(), 0.0);
        for router in routers {
            let columns = router.logits.clone();
            let (mut exchanged, mut same, mut off, mut size) = (vec![], vec![], 0.0, 0.0);
            for (token, (want, got)) in want.iter().zip(got).enumerate().take(end) {
                let choices = [want, got].map(|row| router.choice(row));
                let [want, got] = [&want[columns.clone()], &got[columns.clone()]];
                let moves: Vec<f64> = want.iter().zip(got).map(|(a, b)| f64::from(b - a)).collect();
                off += moves.iter().map(|x| x * x).sum::<f64>();
                size += want.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>();
                if choices[0] == choices[1] {
                    same.push(square_of_differences(&moves).sqrt());
                } else {
                    exchanged.push((token, exchange(&choices, &moves)));
                }
            }
            let own = same.iter().copied().fold(0.0, f64::max);
            deviation = if same.len() < LEAST_TOKENS { own.max(deviation) } else { own };
            let bound = DEVIATIONS * deviation;
            let ties = exchanged.iter().filter(|(_, moved)| *moved <= bound).count();
            all.compared += end;
            all.after += want.len() - end;
            all.ties += ties;
            all.wrong += exchanged.len() - ties;
            all.moved = exchanged.iter().map(|(_, moved)| *moved).fold(all.moved, f64::max);
            all.bound = all.bound.max(bound);
            all.distance = all.distance.max((off / size.max(1e-30)).sqrt());
            end = exchanged.first().map_or(end, |(token, _)| *token);
        }
        all
    }
}

/// By how much the difference of an expert that is chosen instead of another one moves, at most.
fn exchange([want, got]: &[Vec<usize>; 2], moves: &[f64]) -> f64 {
    let only = |these: &[usize], those: &[usize]| -> Vec<usize> {
        these.iter().copied().filter(|id| !those.contains(id)).collect()
    };
    let (gone, new) = (only(want, got), only(got, want));
    let pairs = gone.iter().flat_map(|gone| new.iter().map(move |new| moves[*new] - moves[*gone]));
    pairs.map(f64::abs).fold(0.0, f64::max)
}

#[cfg(test)]
mod tests {
    use super::*;
    use tern::graph::{Gating, Routing};

    /// Two routers that choose one of two experts.
    fn routers() -> Vec<Router> {
        let routing =
            Routing { used: 1, gating: Gating::Softmax, groups: None, renormalise: false, scale: 1.0 };
        let router =
            |at: usize| Router { routing, bias: None, logits: at..at + 2, chosen: 4 + at / 2..5 + at / 2 };
        vec![router(0), router(2)]
    }

    /// The rows with what the routers choose.
    fn chosen(rows: &[Vec<f32>]) -> Vec<Vec<f32>> {
        let best = |logits: &[f32]| f32::from(u8::from(logits[1] > logits[0]));
        let row = |row: &Vec<f32>| [&row[..], &[best(&row[..2]), best(&row[2..4])]].concat();
        rows.iter().map(row).collect()
    }

    fn compare(want: &[Vec<f32>], got: &[Vec<f32>]) -> Choices {
        Choices::compare(&routers(), &chosen(want), &chosen(got))
    }

    /// Rows in which the first router has clear choices, and the second one too.
    fn clear() -> Vec<Vec<f32>> {
        (0..20).map(|i| vec![1.0, 2.0 + i as f32, 3.0, -1.0]).collect()
    }

    /// All logits moved by up to 1e-3, in turns.
    fn rounded(rows: &[Vec<f32>]) -> Vec<Vec<f32>> {
        let moved = |(i, x): (usize, &f32)| x + if i % 2 == 0 { 1e-3 } else { -1e-3 };
        rows.iter().map(|row| row.iter().enumerate().map(moved).collect()).collect()
    }

    #[test]
    fn another_choice_is_a_near_tie_if_rounding_moves_logits_as_far() {
        let mut want = clear();
        want[12][..2].copy_from_slice(&[2.0, 2.001]);
        let got = rounded(&want);
        let all = compare(&want, &got);
        assert_eq!((all.ties, all.wrong), (1, 0), "{all:?}");
        // the second router is compared up to the token whose expert differs
        assert_eq!((all.compared, all.after), (20 + 12, 8));
        assert!((all.moved - 2e-3).abs() < 1e-5 && all.moved < all.bound && all.bound < 0.02, "{all:?}");
    }

    #[test]
    fn another_choice_that_rounding_does_not_explain_is_wrong() {
        let want = clear();
        let mut got = rounded(&want);
        got[12].swap(0, 1);
        let all = compare(&want, &got);
        assert_eq!((all.ties, all.wrong), (0, 1), "{all:?}");
        assert!(all.moved > 10.0 && all.distance > 0.1, "{all:?}");
        // what follows from it is not counted again
        got[15].swap(2, 3);
        assert_eq!(compare(&want, &got).wrong, 1);
        got[3].swap(2, 3);
        assert_eq!(compare(&want, &got).wrong, 2);
    }

    #[test]
    fn equal_logits_have_equal_choices() {
        let all = compare(&clear(), &clear());
        assert_eq!(all, Choices { compared: 40, ..Choices::default() });
    }
}
