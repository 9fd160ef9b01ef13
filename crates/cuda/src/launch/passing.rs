//! How linear phases of many tokens pass values to each other: as x of the next one, also
//! before its norm is known.

use std::sync::Arc;

use tern_graph::BackendError;

use crate::driver::{Device, Memory};
use crate::lower::{order, passed_factor};
use crate::shared::{
    CHUNK, LinearArgs, NORMS_TOKENS, ONE_TILE, PLAIN_ORDER, PassedNorms, Phase, PrepareArgs,
};

/// The fewest rows of a step with x as bytes: it has several tiles.
pub(super) const LEAST_BYTE_ROWS: usize = ONE_TILE + 1;
const _: () = assert!(LEAST_BYTE_ROWS > NORMS_TOKENS, "no norm is passed there");

/// Where a linear phase gets x from, and where its value goes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Passing {
    pub(super) x: XSource,
    pub(super) y: YTarget,
    /// Whether a linear has x as bytes, and whether the one after the phase does: in large steps.
    pub(super) x_bytes: bool,
    y_bytes: bool,
    /// Norms of linears up to this one: each writes its factors where the one before the last did.
    norms: usize,
}

/// Where x comes from.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum XSource {
    /// A launch makes it.
    Made,
    /// The phase before has written it, with this factor.
    Passed(f32),
    /// The linear before has written it, without its norm.
    BeforeNorm,
    /// A launch makes it as the linear before would have written it without its norm.
    MadeBeforeNorm,
}

/// Where the value goes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum YTarget {
    Floats,
    /// x of the next linear, in this order of columns.
    Passed {
        order: i32,
    },
    /// Floats, and x of the next linear before its norm, which has these weights.
    BeforeNorm {
        order: i32,
        weight: u64,
    },
}

/// Which phases pass their values, see `passed_as_halves` and `passes_before_norm`.
pub(crate) struct Passed {
    pub(crate) as_halves: Vec<bool>,
    pub(crate) before_norm: Vec<bool>,
}

impl Passing {
    /// The passings of all phases. No phase writes x of the next one where its blocks read their own:
    /// there is memory for values that are passed, and for those that a launch makes or that are
    /// passed before their norm.
    pub(super) fn of(
        phases: &[Phase],
        passed: &Passed,
        takes_bytes: impl Fn(&LinearArgs) -> bool,
    ) -> Vec<Passing> {
        let takes_bytes = |i: usize| matches!(phases.get(i), Some(Phase::Linear(l)) if takes_bytes(l));
        let is_set = |list: &[bool], i: usize| list.get(i) == Some(&true);
        let next = |i: usize| if let Some(Phase::Linear(l)) = phases.get(i + 1) { Some(l) } else { None };
        let mut norms = 0;
        let mut all: Vec<Passing> = vec![];
        for (i, phase) in phases.iter().enumerate() {
            let x = match all.last().map(|before| before.y) {
                Some(YTarget::Passed { .. }) => XSource::Passed(passed_factor(&phases[i - 1])),
                Some(YTarget::BeforeNorm { .. }) => XSource::BeforeNorm,
                _ => XSource::Made,
            };
            let is_passed = matches!(x, XSource::Passed(_));
            norms += usize::from(matches!(phase, Phase::Linear(l) if has_norm(l)));
            let y = match next(i) {
                Some(next) if is_set(&passed.as_halves, i) && !is_passed => {
                    YTarget::Passed { order: order(next) }
                }
                // the factor of the last norm is applied to it
                Some(next) if is_set(&passed.before_norm, i) && is_passed && norms > 0 && has_norm(next) => {
                    YTarget::BeforeNorm { order: order(next), weight: next.norm.weight }
                }
                _ => YTarget::Floats,
            };
            all.push(Passing { x, y, x_bytes: takes_bytes(i), y_bytes: takes_bytes(i + 1), norms });
        }
        all
    }

    /// The order in which the next linear reads the value; `None` if it is written as floats only.
    pub(super) fn passed_order(self) -> Option<i32> {
        if let YTarget::Passed { order } = self.y { Some(order) } else { None }
    }

    /// In larger steps, launches apply norms, and x may be bytes. Reproducible: x has the same values there.
    pub(super) fn of_step(self, rows: usize, reproducible: bool) -> Passing {
        let is_large = rows >= LEAST_BYTE_ROWS;
        let (x_bytes, y_bytes) = (self.x_bytes && is_large, self.y_bytes && is_large);
        if rows <= NORMS_TOKENS {
            return Passing { x_bytes, y_bytes, ..self };
        }
        let x = match self.x {
            XSource::BeforeNorm if reproducible => XSource::MadeBeforeNorm,
            XSource::BeforeNorm => XSource::Made,
            x => x,
        };
        let y = match self.y {
            YTarget::BeforeNorm { .. } => YTarget::Floats,
            YTarget::Passed { .. } if y_bytes => YTarget::Passed { order: PLAIN_ORDER },
            y => y,
        };
        Passing { x, y, x_bytes, y_bytes, ..self }
    }
}

/// Whether a linear has a norm whose factors are kept: its x has the rows of the step.
fn has_norm(l: &LinearArgs) -> bool {
    l.norm.kind != 0 && l.gather == 0 && l.outputs_only == 0 && l.experts.used == 0
}

/// Sums of squares and factors of norms.
pub(super) struct NormMemory {
    /// `[128 columns][token]`, in steps of up to `NORMS_TOKENS`.
    squares: Memory,
    /// `[2][token]`, in steps of up to `tokens`.
    factors: Memory,
    /// `[token]`, in larger steps than `NORMS_TOKENS`.
    ratios: Memory,
    tokens: usize,
}

impl NormMemory {
    pub(super) fn new<'a>(
        device: &Arc<Device>,
        linears: impl Iterator<Item = &'a LinearArgs>,
        max_rows: usize,
    ) -> Result<NormMemory, BackendError> {
        let columns = linears.map(|l| l.cols as usize).max().unwrap_or(0);
        let tokens = if device.arithmetic.reproducible { max_rows.max(NORMS_TOKENS) } else { NORMS_TOKENS };
        Ok(NormMemory {
            squares: device.allocate(columns.div_ceil(CHUNK) * NORMS_TOKENS * 4)?,
            factors: device.allocate(2 * tokens * 4)?,
            ratios: device.allocate(tokens * 4)?,
            tokens,
        })
    }

    fn factors(&self, norm: usize) -> u64 {
        self.factors.pointer() + (norm % 2 * self.tokens * 4) as u64
    }

    /// Completes the arguments of the launch that makes x of a linear: which factors it reads and writes.
    pub(super) fn complete(&self, args: &mut PrepareArgs, passing: Passing, rows: usize) {
        if rows <= self.tokens && has_norm(&args.linear) {
            args.norm_factors = self.factors(passing.norms);
        }
        if passing.x == XSource::MadeBeforeNorm {
            args.last_factors = self.factors(passing.norms - 1);
            args.ratios = self.ratios.pointer();
        }
    }

    /// What a linear needs.
    pub(super) fn args(&self, passing: Passing) -> PassedNorms {
        let mut args = PassedNorms::default();
        if passing.x == XSource::BeforeNorm {
            args.x_squares = self.squares.pointer();
            args.x_factors = self.factors(passing.norms - 1);
            args.factors = self.factors(passing.norms);
        }
        if passing.x == XSource::MadeBeforeNorm {
            args.x_ratios = self.ratios.pointer();
        }
        if let YTarget::BeforeNorm { weight, .. } = passing.y {
            args.y_squares = self.squares.pointer();
            args.y_factors = self.factors(passing.norms);
            args.y_weight = weight;
        }
        args
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shared::{AttendArgs, NormArgs};

    fn linear(norm: bool) -> LinearArgs {
        let norm = NormArgs { kind: i32::from(norm), ..NormArgs::default() };
        LinearArgs { norm, ..LinearArgs::default() }
    }

    #[test]
    fn the_norms_of_a_layer_are_applied_behind_the_next_product() {
        let [normed, plain] = [true, false].map(|norm| Phase::Linear(linear(norm)));
        let attend = Phase::Attend(AttendArgs::default());
        let head = Phase::Linear(LinearArgs { gather: 1, outputs_only: 1, ..linear(true) });
        // q k v, attention, output, gate and up, down, twice; then the head, which gathers its rows
        let layer = [normed, attend, plain, normed, plain];
        let phases = [&layer[..], &layer[..], &[head]].concat();
        let passed = Passed {
            as_halves: [false, true, false, true, false].into_iter().cycle().take(11).collect(),
            before_norm: [false, false, true, false, true].into_iter().cycle().take(11).collect(),
        };
        let all = Passing::of(&phases, &passed, |_| false);
        let before = |i: usize| all[i].x == XSource::BeforeNorm;
        assert_eq!((0..11).filter(|&i| before(i)).collect::<Vec<_>>(), [3, 5, 8]);
        let passes = |i: usize| matches!(all[i].y, YTarget::BeforeNorm { .. });
        assert_eq!((0..11).filter(|&i| passes(i)).collect::<Vec<_>>(), [2, 4, 7]);
        assert_eq!([0, 2, 3, 4, 5].map(|i| all[i].norms), [1, 1, 2, 2, 3]);
        let large = |i: usize, reproducible| all[i].of_step(NORMS_TOKENS + 1, reproducible);
        assert_eq!(large(3, false).x, XSource::Made);
        assert_eq!(large(3, true).x, XSource::MadeBeforeNorm);
        assert!([false, true].iter().all(|&reproducible| large(2, reproducible).y == YTarget::Floats));
    }

    #[test]
    fn values_that_become_bytes_in_large_steps_are_passed_in_their_own_order() {
        let [normed, plain] = [true, false].map(|norm| Phase::Linear(linear(norm)));
        // q k v, attention, output, gate and up, down
        let phases = [normed, Phase::Attend(AttendArgs::default()), plain, normed, plain];
        let passed = Passed { as_halves: vec![false, true, false, true, false], before_norm: vec![false; 5] };
        let all = Passing::of(&phases, &passed, |l| l.norm.kind == 0);
        let of = |rows: usize| -> Vec<(bool, Option<i32>)> {
            let all = all.iter().map(|passing| passing.of_step(rows, false));
            all.map(|passing| (passing.x_bytes, passing.passed_order())).collect()
        };
        let (small, large) = (Some(order(&linear(false))), Some(PLAIN_ORDER));
        assert_eq!(
            of(ONE_TILE),
            [(false, None), (false, small), (false, None), (false, small), (false, None)]
        );
        assert_eq!(
            of(LEAST_BYTE_ROWS),
            [(false, None), (false, large), (true, None), (false, large), (true, None)]
        );
    }

    #[test]
    fn a_value_before_the_first_norm_is_not_passed() {
        let [normed, plain] = [true, false].map(|norm| Phase::Linear(linear(norm)));
        let phases = [Phase::Attend(AttendArgs::default()), plain, normed];
        let passed = Passed { as_halves: vec![true, false, false], before_norm: vec![false, true, false] };
        let all = Passing::of(&phases, &passed, |_| false);
        assert_eq!((all[1].x, all[1].y, all[2].x), (XSource::Passed(1.0), YTarget::Floats, XSource::Made));
    }

    #[test]
    fn no_linear_writes_x_of_the_next_one_where_it_reads_its_own() {
        let [normed, plain] = [true, false].map(|norm| Phase::Linear(linear(norm)));
        // q k v, output of what a launch makes x from, gate and up, down, another one
        let phases = [normed, Phase::Attend(AttendArgs::default()), plain, normed, plain, plain];
        let passed = Passed {
            as_halves: vec![false, false, false, true, true, false],
            before_norm: vec![false, false, true, false, false, false],
        };
        let all = Passing::of(&phases, &passed, |_| false);
        assert_eq!((all[2].x, all[2].y, all[3].x), (XSource::Made, YTarget::Floats, XSource::Made));
        assert_eq!((all[4].y, all[5].x), (YTarget::Floats, XSource::Made));
    }
}
