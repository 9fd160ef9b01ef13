//! A model of the ring in `kernels/fused_step/ring.cuh`, under random schedules: in any order of warps and
//! loads the step ends, and every warp reads the slot that it waited for, and weights of experts are read for
//! the choice that they belong to.
//!
//! Barriers are modelled as in shared memory, where a wait sees only the parity of a round: a wait for a
//! round that is already two rounds back never ends.

use tern_graph::Random;

/// Warps that compute. The kernel has sixteen; four suffice to block each other.
const WARPS: usize = 4;

/// What one phase reads through the ring.
#[derive(Clone, Copy, Debug)]
enum Phase {
    /// Tiles of `pieces` slots, two tiles at a time with alternating slots.
    Linear { tiles: usize, pieces: usize },
    /// The same, each slot for half of the warps.
    Halves { tiles: usize, pieces: usize },
    /// The same as `Linear` of the experts that were chosen last.
    Experts { tiles: usize, pieces: usize },
    /// Slots of keys, each for one warp.
    Attend { slots: usize },
    /// Chooses experts; nothing is read through the ring.
    Route,
}

impl Phase {
    fn tiles_and_pieces(self) -> Option<(usize, usize)> {
        match self {
            Phase::Linear { tiles, pieces }
            | Phase::Halves { tiles, pieces }
            | Phase::Experts { tiles, pieces } => Some((tiles, pieces)),
            Phase::Attend { .. } | Phase::Route => None,
        }
    }

    /// Slots of a linear that different warps use at the same time.
    fn shares(self) -> usize {
        if matches!(self, Phase::Halves { .. }) { 2 } else { 1 }
    }
}

/// Which of the slots that may be filled the reader fills.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Filling {
    /// Those before the first that may not, as `Reader::fill` does.
    InOrder,
    /// All of them.
    AnyOrder,
    /// In order, without `Choice::wait_for`.
    WithoutChoice,
}

#[derive(Clone, Copy, Debug)]
enum Op {
    /// Wait until this slot of the step is full.
    Wait(usize),
    /// The warp releases a slot, with arrivals for other warps too.
    Release { slot: usize, arrivals: usize },
    /// All warps wait for each other.
    Barrier,
    /// `Choice::publish`, by one warp.
    Publish,
}

/// A barrier of shared memory.
#[derive(Clone, Copy)]
struct Gate {
    count: usize,
    arrived: usize,
    round: usize,
}

impl Gate {
    fn new(count: usize) -> Gate {
        Gate { count, arrived: 0, round: 0 }
    }

    fn arrive(&mut self, times: usize) {
        self.arrived += times;
        assert!(self.arrived <= self.count, "more arrivals than the barrier counts");
        if self.arrived == self.count {
            (self.arrived, self.round) = (0, self.round + 1);
        }
    }

    /// Whether the last complete round has this parity: all that the hardware tells.
    fn is_complete(&self, parity: usize) -> bool {
        self.round % 2 != parity % 2
    }
}

/// Slots of one call of `Reader::fill`.
struct Batch {
    first: usize,
    count: usize,
    flying: usize,
    /// The number of the choice that its experts are of, from 1 on.
    choice: Option<usize>,
}

struct Ring {
    slots: usize,
    filling: Filling,
    full: Vec<Gate>,
    empty: Vec<Gate>,
    /// The slot of the step that each slot of the ring holds.
    holds: Vec<Option<usize>>,
    loading: Vec<usize>,
    batches: Vec<Batch>,
    batch: usize,
    /// Which slots of the batch have been filled.
    filled: Vec<bool>,
    warps: Vec<Vec<Op>>,
    at: [usize; WARPS],
    /// Choices so far.
    published: usize,
    /// Whether a slot was filled for another choice than its own.
    confused: bool,
}

impl Ring {
    fn new(slots: usize, phases: &[Phase], filling: Filling) -> Ring {
        let takers = (1..=WARPS).rev().find(|n| slots.is_multiple_of(*n)).unwrap_or(1);
        let (mut warps, mut batches, mut next, mut choices) = (vec![vec![]; WARPS], vec![], 0, 0);
        for phase in phases {
            let (count, flying) = match *phase {
                Phase::Linear { tiles, pieces } | Phase::Experts { tiles, pieces } => {
                    (tiles * pieces, 2.min(slots - 1))
                }
                Phase::Halves { tiles, pieces } => (tiles * pieces, 3.min(slots - 1)),
                Phase::Attend { slots: keys } => (keys, 8.min(slots - 1)),
                Phase::Route => (0, 1),
            };
            choices += usize::from(matches!(phase, Phase::Route));
            let choice = matches!(phase, Phase::Experts { .. }).then_some(choices);
            for (w, ops) in warps.iter_mut().enumerate() {
                if let Some((tiles, pieces)) = phase.tiles_and_pieces() {
                    let shares = phase.shares();
                    let share = Share { index: w * shares / WARPS, of: shares };
                    linear(ops, next, [tiles, pieces], share, slots);
                }
                match *phase {
                    Phase::Route if w == 0 => ops.push(Op::Publish),
                    Phase::Attend { slots: keys } if w < takers => {
                        let mine = (w..keys).step_by(takers).map(|i| next + i);
                        ops.extend(
                            mine.flat_map(|i| [Op::Wait(i), Op::Release { slot: i, arrivals: WARPS }]),
                        );
                    }
                    Phase::Attend { .. } | Phase::Route => {}
                    Phase::Linear { .. } | Phase::Halves { .. } | Phase::Experts { .. } => {}
                }
                ops.push(Op::Barrier);
            }
            let starts = (0..count).step_by(slots.min(32));
            batches.extend(starts.map(|n| Batch {
                first: next + n,
                count: slots.min(32).min(count - n),
                flying,
                choice,
            }));
            next += count;
        }
        Ring {
            slots,
            filling,
            full: vec![Gate::new(1); slots],
            empty: vec![Gate::new(WARPS); slots],
            holds: vec![None; slots],
            loading: vec![],
            filled: vec![false; batches.first().map_or(0, |b| b.count)],
            batches,
            batch: 0,
            warps,
            at: [0; WARPS],
            published: 0,
            confused: false,
        }
    }

    /// `Reader::may_fill`.
    fn may_fill(&self, n: usize, flying: usize) -> bool {
        let (slot, round) = (n % self.slots, n / self.slots);
        let before = n.checked_sub(flying);
        self.empty[slot].is_complete(round + 1)
            && before.is_none_or(|b| self.full[b % self.slots].is_complete(b / self.slots))
    }

    /// One iteration of the loop in `Reader::fill`; false if it has to wait.
    fn read(&mut self) -> bool {
        let Some(&Batch { first, count, flying, choice }) = self.batches.get(self.batch) else {
            return false;
        };
        let waits = self.filling != Filling::WithoutChoice;
        if waits && choice.is_some_and(|n| self.published < n) {
            return false;
        }
        let Some(open) = self.filled.iter().position(|f| !f) else { return false };
        if !self.may_fill(first + open, flying) {
            return false;
        }
        let able: Vec<bool> =
            (0..count).map(|i| !self.filled[i] && self.may_fill(first + i, flying)).collect();
        for i in open..count {
            if self.filled[i] {
                continue;
            }
            if able[i] {
                let slot = (first + i) % self.slots;
                self.holds[slot] = None;
                self.loading.push(first + i);
                self.filled[i] = true;
                self.confused |= choice.is_some_and(|n| self.published != n);
            } else if self.filling != Filling::AnyOrder {
                break;
            }
        }
        if self.filled.iter().all(|f| *f) {
            self.batch += 1;
            self.filled = vec![false; self.batches.get(self.batch).map_or(0, |b| b.count)];
        }
        true
    }

    fn load(&mut self, random: &mut Random) -> bool {
        if self.loading.is_empty() {
            return false;
        }
        let n = self.loading.swap_remove(random.below(self.loading.len()));
        self.holds[n % self.slots] = Some(n);
        self.full[n % self.slots].arrive(1);
        true
    }

    fn compute(&mut self, warp: usize) -> bool {
        match self.warps[warp].get(self.at[warp]) {
            None => return false,
            Some(&Op::Wait(n)) => {
                if !self.full[n % self.slots].is_complete(n / self.slots) {
                    return false;
                }
                assert_eq!(
                    self.holds[n % self.slots],
                    Some(n),
                    "warp {warp} reads the bytes of another slot"
                );
            }
            Some(&Op::Release { slot: n, arrivals }) => self.empty[n % self.slots].arrive(arrivals),
            Some(Op::Publish) => self.published += 1,
            Some(Op::Barrier) => {
                let here =
                    |w: usize| self.warps[w].get(self.at[w]).is_some_and(|op| matches!(op, Op::Barrier));
                if !(0..WARPS).all(here) {
                    return false;
                }
                self.at.iter_mut().for_each(|at| *at += 1);
                return true;
            }
        }
        self.at[warp] += 1;
        true
    }

    /// Whether the step ends under a random schedule, with the weights of the right experts.
    fn ends(mut self, random: &mut Random) -> bool {
        loop {
            // a warp, the reader, or memory
            let first = random.below(WARPS + 2);
            let moved = (0..WARPS + 2).map(|i| (first + i) % (WARPS + 2)).any(|who| match who {
                0 => self.read(),
                1 => self.load(random),
                _ => self.compute(who - 2),
            });
            if !moved {
                return !self.confused
                    && self.batch == self.batches.len()
                    && self.at.iter().zip(&self.warps).all(|(at, ops)| *at == ops.len());
            }
        }
    }
}

/// Which slots of a tile a warp uses.
#[derive(Clone, Copy)]
struct Share {
    index: usize,
    of: usize,
}

/// `run_tiles` of `kernels/linear/linear.cuh`: the alternating pieces of two tiles, or those of one.
fn linear(ops: &mut Vec<Op>, first: usize, [tiles, pieces]: [usize; 2], share: Share, slots: usize) {
    let mut tile = 0;
    while tile < tiles {
        let together = if pieces < slots && tile + 1 < tiles { 2 } else { 1 };
        for piece in (share.index..pieces).step_by(share.of) {
            let mine = (0..together).map(|n| first + tile * pieces + piece * together + n);
            ops.extend(mine.clone().map(Op::Wait));
            ops.extend(mine.map(|n| Op::Release { slot: n, arrivals: share.of }));
        }
        tile += together;
    }
}

/// Layers of a model: q, k and v; attention over some slots of keys; its output; gate and up; down.
fn layers(random: &mut Random, count: usize) -> Vec<Phase> {
    let keys = random.below(24);
    let pieces = 1 + random.below(4);
    let layer = |tiles: [usize; 4]| {
        [
            Phase::Linear { tiles: tiles[0], pieces: 1 },
            Phase::Attend { slots: keys },
            Phase::Linear { tiles: tiles[1], pieces: 1 },
            Phase::Linear { tiles: 2 * tiles[2], pieces: 1 },
            Phase::Linear { tiles: tiles[3], pieces },
        ]
    };
    let tiles = [2, 1, 4, 1].map(|most: usize| most + random.below(2));
    (0..count).flat_map(|_| layer(tiles)).collect()
}

/// Layers whose slots have half a round of records each.
fn halved_layers(random: &mut Random, count: usize) -> Vec<Phase> {
    let (keys, pieces) = (random.below(24), 1 + random.below(12));
    let tiles = [2, 1, 4, 1].map(|most: usize| most + random.below(2));
    let layer = [
        Phase::Halves { tiles: tiles[0], pieces: 4 },
        Phase::Attend { slots: keys },
        Phase::Halves { tiles: tiles[1], pieces: 5 },
        Phase::Halves { tiles: 2 * tiles[2], pieces: 4 },
        Phase::Halves { tiles: tiles[3], pieces },
    ];
    layer.repeat(count)
}

/// Layers with experts, of which this block may have no tiles: the choice, gate and up, down.
fn expert_layers(random: &mut Random, count: usize) -> Vec<Phase> {
    let (keys, pieces) = (random.below(12), 1 + random.below(6));
    let tiles = [1, 1, 0, 0].map(|least: usize| least + random.below(3));
    let layer = [
        Phase::Linear { tiles: tiles[0], pieces: 1 },
        Phase::Attend { slots: keys },
        Phase::Linear { tiles: tiles[1], pieces: 1 },
        Phase::Route,
        Phase::Experts { tiles: 2 * tiles[2], pieces: 1 },
        Phase::Experts { tiles: tiles[3], pieces },
    ];
    layer.repeat(count)
}

/// How many of the schedules never end, or read weights of other experts.
fn failures(
    filling: Filling,
    slots: usize,
    schedules: usize,
    layers: fn(&mut Random, usize) -> Vec<Phase>,
) -> usize {
    let mut random = Random::new(slots as u64);
    (0..schedules)
        .filter(|_| {
            let phases = layers(&mut random, 3);
            !Ring::new(slots, &phases, filling).ends(&mut random)
        })
        .count()
}

#[test]
fn a_step_ends_whatever_the_order_of_warps_and_loads() {
    for slots in [2, 3, 4, 5, 6, 7, 8, 12, 16, 20, 32] {
        assert_eq!(failures(Filling::InOrder, slots, 2_000, layers), 0, "{slots} slots");
        assert_eq!(failures(Filling::InOrder, slots, 2_000, expert_layers), 0, "{slots} slots, experts");
    }
    // with fewer, a warp that does not use each slot may be two rounds ahead of one
    for slots in [8, 9, 10, 12, 16, 20, 32] {
        assert_eq!(failures(Filling::InOrder, slots, 2_000, halved_layers), 0, "{slots} slots, halves");
    }
}

#[test]
fn filling_slots_out_of_order_can_deadlock() {
    assert!(failures(Filling::AnyOrder, 8, 2_000, layers) > 0);
}

#[test]
fn weights_of_experts_are_read_after_their_choice_and_before_the_next() {
    // without the wait, slots are filled before the choice is known
    assert!(failures(Filling::WithoutChoice, 8, 2_000, expert_layers) > 0);
    // a choice that the other warps make only after they have used it
    let mut ring = Ring::new(8, &[Phase::Experts { tiles: 1, pieces: 1 }, Phase::Route], Filling::InOrder);
    ring.batches[0].choice = Some(1);
    assert!(!ring.ends(&mut Random::new(2)));
}
