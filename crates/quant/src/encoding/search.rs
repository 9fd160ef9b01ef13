//! Scales that keep the error of a block small: the searches of ggml, whose bytes the encoders write.
//!
//! All groups of a block are searched at once, one lane each, so that loops over groups become vector
//! instructions. The sums of a group are added in ggml's order.

/// One value per group.
pub(crate) type Lanes<const G: usize> = [f32; G];

/// The values of all groups of a block: `[i][group]`, for the i-th weight of each.
pub(crate) type Block<const N: usize, const G: usize> = [Lanes<G>; N];

/// A group whose magnitudes are all below it is zero.
pub(crate) const ZERO: f32 = 1e-15;

/// A block of weights by group.
pub(crate) fn lanes<const N: usize, const G: usize>(weights: &[f32]) -> Block<N, G> {
    std::array::from_fn(|i| std::array::from_fn(|g| weights[g * N + i]))
}

/// Codes of all groups in the order of the weights.
pub(crate) fn in_order<const N: usize, const G: usize>(codes: &Block<N, G>, out: &mut [u8]) {
    for (i, codes) in codes.iter().enumerate() {
        for (g, &code) in codes.iter().enumerate() {
            out[g * N + i] = code as u8;
        }
    }
}

/// The nearest integer, half to even, of a magnitude below 2^22; others become some integer.
#[inline(always)]
pub(crate) fn nearest_even(x: f32) -> f32 {
    const BIG: f32 = 12_582_912.0; // 1.5 * 2^23: floats from here on are integers
    (x + BIG) - BIG
}

#[inline(always)]
fn clamp(x: f32, least: f32, most: f32) -> f32 {
    let x = if x < most { x } else { most };
    if x > least { x } else { least }
}

/// `a` if `when`, otherwise `b`, per lane.
#[inline(always)]
fn choose<const G: usize>(when: &[bool; G], a: &Lanes<G>, b: &mut Lanes<G>) {
    for g in 0..G {
        b[g] = if when[g] { a[g] } else { b[g] };
    }
}

/// Which scales are tried: one with `first + each * step` codes more than there are, for steps 0 to `last`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Steps {
    pub(crate) first: f32,
    pub(crate) each: f32,
    pub(crate) last: u8,
    /// Whether magnitudes of errors are added instead of squares.
    pub(crate) magnitudes: bool,
}

impl Steps {
    /// For columns with an importance.
    pub(crate) const WEIGHTED: Steps = Steps { first: -0.9, each: 0.05, last: 36, magnitudes: false };

    #[inline(always)]
    fn cost(&self, error: f32) -> f32 {
        if self.magnitudes { error.abs() } else { error * error }
    }
}

/// `w = scale * code - min`, codes from 0 on.
pub(crate) struct AffineGroups<const N: usize, const G: usize> {
    pub(crate) scale: Lanes<G>,
    pub(crate) min: Lanes<G>,
    pub(crate) codes: Block<N, G>,
}

/// Fits codes up to `most` to weights `x` whose errors count `by` as much.
pub(crate) fn affine<const N: usize, const G: usize>(
    x: &Block<N, G>,
    by: &Block<N, G>,
    most: f32,
    steps: Steps,
) -> AffineGroups<N, G> {
    let (mut low, mut high) = (x[0], x[0]);
    let mut sum_by = by[0];
    let mut sum_x: Lanes<G> = std::array::from_fn(|g| by[0][g] * x[0][g]);
    for (x, by) in x.iter().zip(by).skip(1) {
        for g in 0..G {
            low[g] = if x[g] < low[g] { x[g] } else { low[g] };
            high[g] = if x[g] > high[g] { x[g] } else { high[g] };
            sum_by[g] += by[g];
            sum_x[g] += by[g] * x[g];
        }
    }
    let low = low.map(|low| if low > 0.0 { 0.0 } else { low });
    let span: Lanes<G> = std::array::from_fn(|g| high[g] - low[g]);
    let code = |x: f32, inverse: f32, low: f32| clamp(nearest_even(inverse * (x - low)), 0.0, most);
    let inverse = span.map(|span| most / span);
    let mut best = AffineGroups { scale: inverse.map(|i| 1.0 / i), min: low, codes: [[0.0; G]; N] };
    let mut least = [0.0; G];
    for i in 0..N {
        for g in 0..G {
            best.codes[i][g] = code(x[i][g], inverse[g], low[g]);
            let error = best.scale[g] * best.codes[i][g] + low[g] - x[i][g];
            least[g] += by[i][g] * steps.cost(error);
        }
    }
    let mut codes = [[0.0; G]; N];
    for step in 0..=steps.last {
        // from the best minimum so far on
        let tried = steps.first + steps.each * f32::from(step) + most;
        let inverse: Lanes<G> = std::array::from_fn(|g| tried / (high[g] - best.min[g]));
        let (mut sum_l, mut sum_l2, mut sum_xl) = ([0.0; G], [0.0; G], [0.0; G]);
        for i in 0..N {
            for g in 0..G {
                let l = code(x[i][g], inverse[g], best.min[g]);
                codes[i][g] = l;
                let weighted = by[i][g] * l;
                sum_l[g] += weighted;
                sum_l2[g] += weighted * l;
                sum_xl[g] += weighted * x[i][g];
            }
        }
        let (mut scale, mut min, mut solvable) = ([0.0; G], [0.0; G], [false; G]);
        for g in 0..G {
            let determinant = sum_by[g] * sum_l2[g] - sum_l[g] * sum_l[g];
            solvable[g] = determinant > 0.0;
            scale[g] = (sum_by[g] * sum_xl[g] - sum_x[g] * sum_l[g]) / determinant;
            min[g] = (sum_l2[g] * sum_x[g] - sum_l[g] * sum_xl[g]) / determinant;
            if min[g] > 0.0 {
                min[g] = 0.0;
                scale[g] = sum_xl[g] / sum_l2[g];
            }
        }
        let mut cost = [0.0; G];
        for i in 0..N {
            for g in 0..G {
                let error = scale[g] * codes[i][g] + min[g] - x[i][g];
                cost[g] += by[i][g] * steps.cost(error);
            }
        }
        let better: [bool; G] = std::array::from_fn(|g| solvable[g] && cost[g] < least[g]);
        if better.contains(&true) {
            choose(&better, &cost, &mut least);
            choose(&better, &scale, &mut best.scale);
            choose(&better, &min, &mut best.min);
            codes.iter().zip(&mut best.codes).for_each(|(codes, best)| choose(&better, codes, best));
        }
    }
    for g in 0..G {
        best.min[g] = -best.min[g];
        if span[g].is_nan() || span[g] <= 0.0 {
            (best.scale[g], best.min[g]) = (0.0, -low[g]);
            best.codes.iter_mut().for_each(|codes| codes[g] = 0.0);
        }
    }
    best
}

/// `w = scale * (code - limit)`, codes from 0 on.
pub(crate) struct SymmetricGroups<const N: usize, const G: usize> {
    pub(crate) scale: Lanes<G>,
    pub(crate) codes: Block<N, G>,
}

/// The weight of each group that is farthest from zero, the first of equals; 0 if all are very small.
pub(crate) fn farthest_of_groups<const N: usize, const G: usize>(x: &Block<N, G>) -> Lanes<G> {
    let (mut far, mut most) = ([0.0f32; G], [0.0f32; G]);
    for x in x {
        for g in 0..G {
            let farther = x[g].abs() > most[g];
            far[g] = if farther { x[g] } else { far[g] };
            most[g] = if farther { x[g].abs() } else { most[g] };
        }
    }
    std::array::from_fn(|g| if most[g] < ZERO { 0.0 } else { far[g] })
}

/// Groups of zeros have scale 0 and codes 0.
fn clear_zeros<const N: usize, const G: usize>(far: &Lanes<G>, fit: &mut SymmetricGroups<N, G>) {
    for g in 0..G {
        if far[g] == 0.0 {
            fit.scale[g] = 0.0;
            fit.codes.iter_mut().for_each(|codes| codes[g] = 0.0);
        }
    }
}

/// Fits codes from `-limit` to `limit - 1`, stored plus `limit`, to weights `x` whose square
/// errors count `by` as much.
pub(crate) fn symmetric<const N: usize, const G: usize>(
    x: &Block<N, G>,
    by: &Block<N, G>,
    limit: f32,
) -> SymmetricGroups<N, G> {
    let far = farthest_of_groups(x);
    let mut fit = SymmetricGroups { scale: [0.0; G], codes: [[0.0; G]; N] };
    let mut best = [0.0; G];
    let mut codes = [[0.0; G]; N];
    for step in [0i8].into_iter().chain((-9..=9).filter(|&step| step != 0)) {
        let inverse = far.map(|far| -(limit + 0.1 * f32::from(step)) / far);
        let (mut sum_lx, mut sum_l2) = ([0.0f32; G], [0.0f32; G]);
        for i in 0..N {
            for g in 0..G {
                let l = clamp(nearest_even(inverse[g] * x[i][g]), -limit, limit - 1.0);
                codes[i][g] = l + limit;
                sum_lx[g] += by[i][g] * x[i][g] * l;
                sum_l2[g] += by[i][g] * l * l;
            }
        }
        let better: [bool; G] = std::array::from_fn(|g| {
            step == 0 || sum_l2[g] > 0.0 && sum_lx[g] * sum_lx[g] > best[g] * sum_l2[g]
        });
        let scale = std::array::from_fn(|g| if sum_l2[g] != 0.0 { sum_lx[g] / sum_l2[g] } else { 0.0 });
        let gain = std::array::from_fn(|g| scale[g] * sum_lx[g]);
        choose(&better, &scale, &mut fit.scale);
        choose(&better, &gain, &mut best);
        codes.iter().zip(&mut fit.codes).for_each(|(codes, best)| choose(&better, codes, best));
    }
    clear_zeros(&far, &mut fit);
    fit
}

/// As [`symmetric`], with square errors that count as much as the squares of the weights, by another search:
/// codes are changed one by one as long as that helps.
pub(crate) fn symmetric_by_steps<const N: usize, const G: usize>(
    x: &Block<N, G>,
    limit: f32,
) -> SymmetricGroups<N, G> {
    let far = farthest_of_groups(x);
    let mut codes = [[0.0; G]; N];
    let (mut sum_lx, mut sum_l2) = ([0.0f32; G], [0.0f32; G]);
    for i in 0..N {
        for g in 0..G {
            let (x, inverse) = (x[i][g], -limit / far[g]);
            let l = clamp(nearest_even(inverse * x), -limit, limit - 1.0);
            codes[i][g] = l;
            let by = x * x;
            sum_lx[g] += by * x * l;
            sum_l2[g] += by * l * l;
        }
    }
    for _ in 0..5 {
        let mut changed = false;
        for i in 0..N {
            for g in 0..G {
                let (x, old) = (x[i][g], codes[i][g]);
                let by = x * x;
                let (lx, l2) = (sum_lx[g] - by * x * old, sum_l2[g] - by * old * old);
                let new = clamp(nearest_even(x * l2 / lx), -limit, limit - 1.0);
                let (new_lx, new_l2) = (lx + by * x * new, l2 + by * new * new);
                let gains = new_lx * new_lx * sum_l2[g] > sum_lx[g] * sum_lx[g] * new_l2;
                if lx > 0.0 && new != old && new_l2 > 0.0 && gains {
                    (codes[i][g], sum_lx[g], sum_l2[g]) = (new, new_lx, new_l2);
                    changed = true;
                }
            }
        }
        if !changed {
            break;
        }
    }
    let scale = std::array::from_fn(|g| if sum_l2[g] > 0.0 { sum_lx[g] / sum_l2[g] } else { 0.0 });
    let mut fit = SymmetricGroups { scale, codes: codes.map(|codes| codes.map(|code| code + limit)) };
    clear_zeros(&far, &mut fit);
    fit
}

/// Fits `values`, none negative, to codes up to `most`; square errors count `by` as much.
/// Returns the value of code 1.
pub(crate) fn unsigned<const G: usize>(values: &Lanes<G>, by: &Lanes<G>, most: f32) -> (f32, [u8; G]) {
    let top = values.iter().fold(0.0f32, |top, &x| if x > top { x } else { top });
    if top < ZERO {
        return (0.0, [0; G]);
    }
    let cost = |inverse: f32| {
        let scale = 1.0 / inverse;
        values.iter().zip(by).fold(0.0f32, |cost, (&x, &by)| {
            let l = nearest_even(inverse * x);
            let error = x - scale * if l < most { l } else { most };
            cost + by * error * error
        })
    };
    let mut inverse = most / top;
    let mut least = cost(inverse);
    for step in (-4i8..=4).filter(|&step| step != 0) {
        let tried = (0.1 * f32::from(step) + most) / top;
        let cost = cost(tried);
        if cost < least {
            (least, inverse) = (cost, tried);
        }
    }
    let up_to_most = |l: f32| if l < most { l } else { most };
    let mut codes: Lanes<G> = values.map(|x| up_to_most(nearest_even(inverse * x)));
    let (mut sum_lx, mut sum_l2) = (0.0f32, 0.0f32);
    for g in 0..G {
        sum_lx += by[g] * values[g] * codes[g];
        sum_l2 += by[g] * codes[g] * codes[g];
    }
    for _ in 0..5 {
        let mut changed = false;
        for g in 0..G {
            let (by, x) = (by[g], values[g]);
            let (lx, l2) = (sum_lx - by * x * codes[g], sum_l2 - by * codes[g] * codes[g]);
            if !(lx > 0.0 && l2 > 0.0) {
                continue;
            }
            let new = up_to_most(nearest_even(x * l2 / lx));
            let (new_lx, new_l2) = (lx + by * x * new, l2 + by * new * new);
            if new != codes[g] && new_lx * new_lx * sum_l2 > sum_lx * sum_lx * new_l2 {
                (codes[g], sum_lx, sum_l2) = (new, new_lx, new_l2);
                changed = true;
            }
        }
        if !changed {
            break;
        }
    }
    (if sum_l2 > 0.0 { sum_lx / sum_l2 } else { 0.0 }, codes.map(|code| code as u8))
}
