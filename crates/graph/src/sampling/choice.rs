//! From logits to one token in integers, so that the order of the summation does not change the token.
//!
//! A weight is a fixed point number and a sum of weights is exact. A device must compute exactly as here only
//! [`weight`], in single f32 operations, and the two products with a total, in f64, as
//! `kernels/sampling/sample.cu` does.

use super::Sample;

/// The weight of the best token.
pub(super) const FULL: u32 = 1 << 30;

/// Tokens per run: a run is skipped if its highest weight is too low.
const RUN: usize = 128;

/// Chooses from adjusted logits.
pub(super) fn choose(sample: &Sample, logits: &[f32]) -> Option<u32> {
    let best = argmax(logits)?;
    let params = &sample.params;
    if params.is_greedy() {
        return Some(best);
    }
    let weights = Weights::new(logits, logits[best as usize], params.temperature, sample.floor());
    weights.draw(&weights.cut(params.top_k, params.top_p), sample.draw)
}

/// The best token; the lowest id among equals. `None` if no logit is finite or +inf.
pub(super) fn argmax(logits: &[f32]) -> Option<u32> {
    let mut best = (f32::NEG_INFINITY, None);
    for (i, run) in logits.chunks(RUN).enumerate() {
        let max = highest(run);
        if max > best.0 {
            best = (max, run.iter().position(|&x| x == max).map(|at| (i * RUN + at) as u32));
        }
    }
    best.1
}

/// The highest logit of a run, in the lanes of a vector; a NaN is never the highest.
fn highest(run: &[f32]) -> f32 {
    let higher = |max: f32, x: f32| if x > max { x } else { max };
    let mut lanes = [f32::NEG_INFINITY; 16];
    for part in run.chunks(16) {
        lanes.iter_mut().zip(part).for_each(|(max, &x)| *max = higher(*max, x));
    }
    lanes.into_iter().fold(f32::NEG_INFINITY, higher)
}

const LOG2_E: f32 = std::f32::consts::LOG2_E;
/// ln 2 in two parts; the first has so few bits that its products here are exact.
const LN_2: [f32; 2] = [0.693_359_4, -2.121_944_4e-4];
/// (exp(r) - 1 - r) / r^2 for |r| <= ln 2 / 2, highest power first.
const EXP: [f32; 6] = [1.987_569_1e-4, 1.398_2e-3, 8.333_452e-3, 4.166_579_6e-2, 0.166_666_65, 0.5];
/// 1.5 * 2^23: added to a small number, it leaves the nearest integer in the lowest bits.
const ROUND: f32 = 12_582_912.0;

/// `exp(d) * FULL` for a `d` of 0 or less, to the nearest integer; 0 for a NaN.
///
/// No operation may be fused with the next or done in another precision.
#[inline]
pub(super) fn weight(d: f32) -> u32 {
    let d = if d > -25.0 { d } else { -25.0 }; // weighs nothing
    let shifted = d * LOG2_E + ROUND;
    let n = shifted - ROUND;
    let r = (d - n * LN_2[0]) - n * LN_2[1];
    let p = ((((EXP[0] * r + EXP[1]) * r + EXP[2]) * r + EXP[3]) * r + EXP[4]) * r + EXP[5];
    let exp = (p * (r * r) + r) + 1.0;
    let power = f32::from_bits((shifted.to_bits() << 23).wrapping_add((127 + 30) << 23)); // 2^(n + 30)
    nearest(exp * power)
}

/// The nearest integer, the even one of two, for 0 to 2^30. In two halves: a plain cast
/// would not be vectorized.
#[inline]
fn nearest(x: f32) -> u32 {
    let high = x * (1.0 / 32768.0) + ROUND;
    let low = (x - (high - ROUND) * 32768.0) + ROUND;
    let bits = ROUND.to_bits();
    ((high.to_bits() - bits) << 15).wrapping_add(low.to_bits().wrapping_sub(bits))
}

/// The lowest weight that is at least `min_p` of the best token's: the best token itself always is.
pub(super) fn floor(min_p: f32) -> u32 {
    ((f64::from(min_p) * f64::from(FULL)).ceil() as u32).clamp(1, FULL)
}

/// A row's weights, and the highest of every run. Weight 0 is excluded.
struct Weights {
    each: Vec<u32>,
    peaks: Vec<u32>,
}

/// What is kept: all weights above `weight`, and of those that equal it the `ties` with the lowest ids.
#[derive(Debug, PartialEq)]
struct Cut {
    weight: u32,
    ties: usize,
    /// The sum of what is kept.
    total: u64,
}

impl Weights {
    fn new(logits: &[f32], max: f32, temperature: f32, floor: u32) -> Weights {
        let weigh = |&x: &f32| {
            let weight = weight((x - max) / temperature);
            if weight < floor { 0 } else { weight }
        };
        let each: Vec<u32> = logits.iter().map(weigh).collect();
        let peaks = each.chunks(RUN).map(|run| run.iter().fold(0, |max, &w| max.max(w))).collect();
        Weights { each, peaks }
    }

    /// The weights from `least` on, with their ids.
    fn from(&self, least: u32) -> impl Iterator<Item = (usize, u32)> {
        let least = least.max(1);
        let runs = (0..).step_by(RUN).zip(self.each.chunks(RUN)).zip(&self.peaks);
        let high = runs.filter(move |(_, peak)| **peak >= least);
        high.flat_map(|((first, run), _)| (first..).zip(run.iter().copied()))
            .filter(move |&(_, w)| w >= least)
    }

    /// Top-k, then top-p of what it left.
    fn cut(&self, top_k: usize, top_p: f32) -> Cut {
        let top_p = if top_p < 1.0 { top_p } else { 1.0 };
        if top_k == 0 && top_p == 1.0 {
            return Cut { weight: 0, ties: 0, total: self.each.iter().map(|&w| u64::from(w)).sum() };
        }
        let mut kept: Vec<u32> = self.from(self.bound(top_k)).map(|(_, w)| w).collect();
        if 0 < top_k && top_k < kept.len() {
            kept.select_nth_unstable_by(top_k - 1, |a, b| b.cmp(a));
            kept.truncate(top_k);
        }
        let total: u64 = kept.iter().map(|&w| u64::from(w)).sum();
        let limit = (f64::from(top_p) * total as f64).ceil() as u64;
        if limit < total {
            keep_until(&mut kept, limit);
        }
        let weight = kept.iter().copied().min().unwrap_or(0);
        let ties = kept.iter().filter(|&&w| w == weight).count();
        Cut { weight, ties, total: kept.iter().map(|&w| u64::from(w)).sum() }
    }

    /// A weight that at least `top_k` tokens reach, if there are as many runs: each has
    /// a peak at least as high.
    fn bound(&self, top_k: usize) -> u32 {
        if top_k == 0 || top_k > self.peaks.len() {
            return 1;
        }
        let mut peaks = self.peaks.clone();
        *peaks.select_nth_unstable_by(top_k - 1, |a, b| b.cmp(a)).1
    }

    /// The token at which the running sum of the kept weights, by id, passes the draw's share of the total.
    fn draw(&self, cut: &Cut, draw: f32) -> Option<u32> {
        let last = cut.total.checked_sub(1)?;
        let mut left = ((f64::from(draw) * cut.total as f64) as u64).min(last);
        let mut ties = cut.ties;
        for (id, weight) in self.from(cut.weight) {
            if weight == cut.weight {
                if ties == 0 {
                    continue;
                }
                ties -= 1;
            }
            if left < u64::from(weight) {
                return Some(id as u32);
            }
            left -= u64::from(weight);
        }
        None
    }
}

/// Keeps the highest weights, as few as reach `limit` together; one at least.
fn keep_until(weights: &mut Vec<u32>, limit: u64) {
    let (mut sorted, mut sum) = (0, 0);
    while sorted < weights.len() {
        // most limits are reached by a few: sorting goes no further than it has to
        let end = (sorted * 8).max(64).min(weights.len());
        if end < weights.len() {
            weights[sorted..].select_nth_unstable_by(end - sorted - 1, |a, b| b.cmp(a));
        }
        weights[sorted..end].sort_unstable_by(|a, b| b.cmp(a));
        for i in sorted..end {
            sum += u64::from(weights[i]);
            if sum >= limit {
                return weights.truncate(i + 1);
            }
        }
        sorted = end;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::Sampling;

    /// The definition in the head of `sample.rs`, with everything sorted.
    fn slow(sample: &Sample, logits: &[f32]) -> Option<u32> {
        let best = (0..logits.len())
            .filter(|&i| logits[i] > f32::NEG_INFINITY)
            .reduce(|best, i| if logits[i] > logits[best] { i } else { best })?;
        if sample.params.temperature <= 0.0 || sample.params.top_k == 1 {
            return Some(best as u32);
        }
        let mut kept: Vec<(u64, u32)> = (0..)
            .zip(logits)
            .map(|(id, x)| (u64::from(weight((x - logits[best]) / sample.params.temperature)), id))
            .filter(|k| k.0 > 0 && k.0 as f64 >= f64::from(sample.params.min_p) * f64::from(FULL))
            .collect();
        kept.sort_by_key(|&(weight, id)| (std::cmp::Reverse(weight), id));
        if sample.params.top_k > 0 {
            kept.truncate(sample.params.top_k);
        }
        let total = |kept: &[(u64, u32)]| kept.iter().map(|k| k.0).sum::<u64>();
        if sample.params.top_p < 1.0 {
            let limit = (f64::from(sample.params.top_p) * total(&kept) as f64).ceil() as u64;
            let enough = (1..=kept.len()).find(|&n| total(&kept[..n]) >= limit);
            kept.truncate(enough?);
        }
        let target = (f64::from(sample.draw) * total(&kept) as f64).floor() as u64;
        kept.sort_by_key(|k| k.1);
        (1..=kept.len()).find(|&n| total(&kept[..n]) > target).map(|n| kept[n - 1].1)
    }

    /// Rows of several runs: close and spread logits, ties, and sometimes a value that is not finite.
    fn rows() -> impl Strategy<Value = Vec<f32>> {
        let odd = prop::sample::select(vec![f32::NAN, f32::NEG_INFINITY, -0.0, 0.0, -1e30, f32::INFINITY]);
        let logit = prop_oneof![
            20 => -12.0f32..8.0,
            10 => (-8i8..8).prop_map(f32::from),
            10 => Just(2.5f32),
            1 => odd.clone().prop_filter("a row with +inf is its own case", |x| *x < f32::INFINITY || x.is_nan()),
        ];
        prop_oneof![20 => prop::collection::vec(logit, 1..600), 1 => prop::collection::vec(odd, 0..4)]
    }

    fn samples() -> impl Strategy<Value = Sample> {
        let share = || prop_oneof![Just(0.0f32), Just(1.0f32), 0.0f32..1.0];
        let temperature = prop_oneof![Just(0.0f32), Just(1e-42), Just(1e9), 0.05f32..4.0];
        let top_k = prop_oneof![Just(0usize), 1usize..8, 1usize..700];
        let all = (temperature, top_k, share(), share(), 0.0f32..1.0);
        all.prop_map(|(temperature, top_k, top_p, min_p, draw)| {
            let off = Sampling::default();
            Sample { draw, ..Sampling { temperature, top_k, top_p, min_p, ..off }.into() }
        })
    }

    proptest! {
        #[test]
        fn the_choice_is_the_slow_one(sample in samples(), row in rows()) {
            prop_assert_eq!(choose(&sample, &row), slow(&sample, &row));
        }

        #[test]
        fn a_higher_draw_is_no_lower_id(sample in samples(), row in rows(), other in 0.0f32..1.0) {
            let (low, high) = (sample.draw.min(other), sample.draw.max(other));
            let at = |draw| choose(&Sample { draw, ..sample.clone() }, &row);
            prop_assert!(at(low) <= at(high));
        }

        #[test]
        fn top_k_keeps_exactly_k(row in rows(), top_k in 1usize..700, temperature in 0.1f32..4.0) {
            let Some(best) = argmax(&row) else { return Ok(()) };
            let weights = Weights::new(&row, row[best as usize], temperature, 1);
            let cut = weights.cut(top_k, 1.0);
            let kept = weights.from(cut.weight + 1).count() + cut.ties;
            prop_assert_eq!(kept, top_k.min(weights.from(1).count()));
        }

        #[test]
        fn weights_are_the_softmax(row in prop::collection::vec(-20.0f32..20.0, 1..300), temperature in 0.1f32..4.0) {
            let max = row[argmax(&row).unwrap() as usize];
            let weights = Weights::new(&row, max, temperature, 1);
            let total = weights.cut(0, 1.0).total as f64;
            let exp = |x: f32| (f64::from(x - max) / f64::from(temperature)).exp();
            let sum: f64 = row.iter().map(|&x| exp(x)).sum();
            for (&weight, &x) in weights.each.iter().zip(&row) {
                prop_assert!((f64::from(weight) / total - exp(x) / sum).abs() < 1e-6);
            }
        }
    }

    #[test]
    fn a_weight_is_exp_to_a_part_in_five_million() {
        assert_eq!([0.0, -0.0, f32::NAN, f32::NEG_INFINITY].map(weight), [FULL, FULL, 0, 0]);
        let mut worst = 0.0f64;
        // every 997th of the floats from -1e-6 to -26
        for bits in (1e-6f32.to_bits()..26f32.to_bits()).step_by(997) {
            let d = -f32::from_bits(bits);
            let want = f64::from(d).exp() * f64::from(FULL);
            worst = worst.max(((f64::from(weight(d)) - want).abs() - 0.5) / want);
        }
        assert!(worst < 2e-7, "{worst}");
    }

    #[test]
    fn the_nearest_integer_is_the_even_one_of_two() {
        let halves = (0..100_000).map(|i| i as f32 + 0.5);
        let spread = (0.1f32.to_bits()..=(FULL as f32).to_bits()).step_by(1 << 9).map(f32::from_bits);
        for x in halves.chain(spread).chain([0.0, FULL as f32]) {
            assert_eq!(nearest(x), x.round_ties_even() as u32, "{x}");
        }
    }

    #[test]
    fn min_p_is_a_weight_and_never_drops_the_best() {
        let floors = [0.0, -1.0, f32::NAN, 0.5, 1.0, 7.0].map(floor);
        assert_eq!(floors, [1, 1, 1, FULL / 2, FULL, FULL]);
    }

    #[test]
    fn nothing_is_drawn_beside_an_infinite_logit() {
        let hot = Sample::from(Sampling { temperature: 1.0, ..Sampling::default() });
        assert_eq!(choose(&hot, &[0.0, f32::INFINITY]), None);
        assert_eq!(choose(&Sample::default(), &[0.0, f32::INFINITY]), Some(1));
    }
}
