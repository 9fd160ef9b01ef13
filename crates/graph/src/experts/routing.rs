//! Routing: which experts compute a token, and with which weights.

/// How the experts of a token are chosen from their logits.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Routing {
    /// Experts per token.
    pub used: usize,
    /// How logits become weights.
    pub gating: Gating,
    /// Experts come from some groups only.
    pub groups: Option<ExpertGroups>,
    /// Divide the weights of a token by their sum.
    pub renormalise: bool,
    /// Factor on the weights.
    pub scale: f32,
}

/// The weights of experts from their logits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Gating {
    /// Softmax over all experts.
    Softmax,
    /// The sigmoid of each logit.
    Sigmoid,
    /// Softmax over the chosen experts.
    ChosenSoftmax,
    /// `sqrt(ln(1 + exp(x)))` of each logit.
    SqrtSoftplus,
}

/// Equal groups of experts, of which the best are searched: those with the largest sum
/// of their two best scores.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExpertGroups {
    /// Groups of all experts.
    pub count: usize,
    /// Groups per token.
    pub used: usize,
}

/// Smallest divisor of weights that are renormalised: the smallest normal half.
const LEAST_SUM: f32 = 6.103_515_6e-5;

impl Routing {
    /// Chooses the experts of one token: `used` ids, best first, and then their weights. `bias` is added to
    /// the scores that choose, not to the weights. Among equal scores the lower id is first; a logit that is
    /// not finite makes all weights NaN. `workspace` is reused by later calls.
    pub fn choose(
        &self,
        logits: &[f32],
        bias: Option<&[f32]>,
        workspace: &mut RoutingWorkspace,
        out: &mut [f32],
    ) {
        let RoutingWorkspace { scores, group_scores } = workspace;
        let most = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let sum = || logits.iter().map(|x| (x - most).exp()).sum::<f32>();
        let sum = if self.gating == Gating::Softmax { sum() } else { 1.0 };
        let weight = |x: f32| match self.gating {
            Gating::Softmax => (x - most).exp() / sum,
            Gating::Sigmoid => 1.0 / (1.0 + (-x).exp()),
            Gating::ChosenSoftmax => x,
            Gating::SqrtSoftplus => (if x > 20.0 { x } else { x.exp().ln_1p() }).sqrt(),
        };
        scores.clear();
        scores.extend(logits.iter().map(|x| Some(weight(*x))));
        for (score, bias) in scores.iter_mut().zip(bias.unwrap_or_default()) {
            *score = score.map(|s| s + bias);
        }
        if let Some(groups) = self.groups {
            groups.limit(scores, group_scores);
        }
        let (ids, weights) = out.split_at_mut(self.used);
        for (id, w) in ids.iter_mut().zip(&mut *weights) {
            let best = take_best(scores);
            *id = best as f32;
            *w = weight(logits[best]);
        }
        if self.gating == Gating::ChosenSoftmax {
            let most = weights.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            weights.iter_mut().for_each(|w| *w = (*w - most).exp());
            let sum: f32 = weights.iter().sum();
            weights.iter_mut().for_each(|w| *w /= sum);
        }
        let sum = if self.renormalise { weights.iter().sum::<f32>().max(LEAST_SUM) } else { 1.0 };
        weights.iter_mut().for_each(|w| *w = *w / sum * self.scale);
        if !logits.iter().all(|x| x.is_finite()) {
            weights.fill(f32::NAN);
        }
    }
}

/// The memory of [`Routing::choose`].
#[derive(Clone, Debug, Default)]
pub struct RoutingWorkspace {
    scores: Vec<Option<f32>>,
    group_scores: Vec<Option<f32>>,
}

impl ExpertGroups {
    /// Removes the scores of all groups but the best.
    fn limit(self, scores: &mut [Option<f32>], group_scores: &mut Vec<Option<f32>>) {
        let len = scores.len() / self.count;
        let best_two = |group: &[Option<f32>]| {
            let (mut first, mut second) = (f32::NEG_INFINITY, f32::NEG_INFINITY);
            for &score in group.iter().flatten() {
                second = second.max(score.min(first));
                first = first.max(score);
            }
            if len == 1 { first } else { first + second }
        };
        group_scores.clear();
        group_scores.extend(scores.chunks_exact(len).map(|group| Some(best_two(group))));
        for _ in 0..self.used {
            take_best(group_scores);
        }
        for (group, left) in scores.chunks_exact_mut(len).zip(group_scores) {
            if left.is_some() {
                group.fill(None);
            }
        }
    }
}

/// Removes the largest score, the first of equal ones, and returns its index. NaN is smaller than all others.
fn take_best(scores: &mut [Option<f32>]) -> usize {
    let mut best: Option<(usize, f32)> = None;
    for (i, score) in scores.iter().enumerate() {
        let Some(score) = *score else { continue };
        if best.is_none_or(|(_, most)| score > most || most.is_nan() && !score.is_nan()) {
            best = Some((i, score));
        }
    }
    let best = best.map_or(0, |(i, _)| i);
    scores[best] = None;
    best
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLAIN: Routing =
        Routing { used: 2, gating: Gating::Softmax, groups: None, renormalise: false, scale: 1.0 };

    fn choose(routing: Routing, logits: &[f32], bias: Option<&[f32]>) -> Vec<f32> {
        let mut out = vec![0.0; 2 * routing.used];
        routing.choose(logits, bias, &mut RoutingWorkspace::default(), &mut out);
        out
    }

    fn assert_near(got: &[f32], want: &[f32]) {
        let near = got.iter().zip(want).all(|(a, b)| (a - b).abs() < 1e-6);
        assert!(got.len() == want.len() && near, "{got:?}, want {want:?}");
    }

    #[test]
    fn every_gating() {
        let logits = [0.0, 2.0f32.ln(), 5.0f32.ln(), 0.0];
        assert_near(&choose(PLAIN, &logits, None), &[2.0, 1.0, 5.0 / 9.0, 2.0 / 9.0]);
        let routing = Routing { renormalise: true, scale: 3.0, ..PLAIN };
        assert_near(&choose(routing, &logits, None), &[2.0, 1.0, 15.0 / 7.0, 6.0 / 7.0]);
        let routing = Routing { gating: Gating::ChosenSoftmax, ..PLAIN };
        assert_near(&choose(routing, &logits, None), &[2.0, 1.0, 5.0 / 7.0, 2.0 / 7.0]);
        let routing = Routing { gating: Gating::Sigmoid, ..PLAIN };
        assert_near(&choose(routing, &logits, None), &[2.0, 1.0, 5.0 / 6.0, 2.0 / 3.0]);
        let routing = Routing { gating: Gating::SqrtSoftplus, ..PLAIN };
        assert_near(&choose(routing, &logits, None), &[2.0, 1.0, 6.0f32.ln().sqrt(), 3.0f32.ln().sqrt()]);
    }

    #[test]
    fn a_bias_chooses_and_does_not_weigh() {
        let routing = Routing { gating: Gating::Sigmoid, ..PLAIN };
        let got = choose(routing, &[0.0, 0.0, 0.0], Some(&[0.0, 0.1, 0.2]));
        assert_near(&got, &[2.0, 1.0, 0.5, 0.5]);
    }

    #[test]
    fn groups_are_ranked_by_their_two_best() {
        let routing = Routing {
            groups: Some(ExpertGroups { count: 2, used: 1 }),
            gating: Gating::ChosenSoftmax,
            ..PLAIN
        };
        // the best expert is in the first group, the best two in the second
        let got = choose(routing, &[9.0, -9.0, -9.0, 7.0, 7.0, 0.0], None);
        assert_near(&got, &[3.0, 4.0, 0.5, 0.5]);
    }

    #[test]
    fn of_equal_scores_the_lower_id_is_first() {
        assert_near(&choose(PLAIN, &[1.0; 4], None), &[0.0, 1.0, 0.25, 0.25]);
    }

    #[test]
    fn logits_that_are_not_finite_give_valid_ids_and_no_weights() {
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            for gating in [Gating::Softmax, Gating::Sigmoid, Gating::ChosenSoftmax, Gating::SqrtSoftplus] {
                for groups in [None, Some(ExpertGroups { count: 2, used: 1 })] {
                    let routing = Routing { gating, groups, renormalise: true, ..PLAIN };
                    for logits in [[bad; 4], [1.0, bad, 0.0, 2.0]] {
                        let got = choose(routing, &logits, None);
                        assert!(got[0] != got[1] && got[..2].iter().all(|id| (0.0..4.0).contains(id)));
                        assert!(got[2..].iter().all(|w| w.is_nan()), "{routing:?} of {logits:?}: {got:?}");
                    }
                }
            }
        }
    }
}
