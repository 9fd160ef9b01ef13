//! State slots: which sequence reads and writes which slot, and which slots are snapshots.
//!
//! Recurrent layers keep a state of fixed size per sequence, in a slot. A step reads the state before its
//! tokens from one slot and writes the state after them to the same or to another one. A snapshot is a slot
//! with a content, the name of the page whose last token it is the state after; it is never written again, so
//! taking and restoring it copies nothing. A free slot keeps its snapshot until it is used for another state,
//! the least recently used first.

use tern_graph::StateSlots;

use crate::EngineError;
use crate::pool::Pool;

/// All state slots of an engine: the only place that allocates and frees them.
#[derive(Clone, Debug)]
pub(crate) struct Slots {
    pool: Pool,
    /// Snapshots taken so far.
    taken: u64,
    /// The content of the snapshot that the last step's slot had, and the slot.
    lost: Option<(u64, u32)>,
}

/// The slots of one sequence.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct HeldState {
    /// The state after all tokens that are computed or in flight; `None` is the state at position 0.
    now: Option<State>,
    /// What the newest step read, if it wrote another slot: the state to return to
    /// while that step is in flight.
    before: Option<State>,
    /// The content of the last snapshot that it took itself, if the next one replaces it.
    replaceable: Option<u64>,
}

/// A state: its slot, and the number of tokens before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct State {
    slot: u32,
    position: usize,
}

/// A snapshot to take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Snapshot {
    /// Its content.
    pub(crate) name: u64,
    /// After how many tokens.
    pub(crate) position: usize,
    /// It stays when the sequence takes the next one.
    pub(crate) stays: bool,
    /// The one before it stays, too.
    pub(crate) last_stays: bool,
}

/// The next step of a sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NextStep {
    /// The state before it may be needed again: the step before it is in flight, or it has drafts.
    pub(crate) keeps_before: bool,
    /// The position after its last token.
    pub(crate) end: usize,
}

/// Counts of slots.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct SlotCounts {
    pub(crate) total: usize,
    /// Held by no sequence, with or without a snapshot.
    pub(crate) free: usize,
    /// Snapshots, held or not.
    pub(crate) snapshots: usize,
    /// Snapshots taken so far.
    pub(crate) taken: u64,
}

impl Slots {
    /// This many slots, all free.
    pub(crate) fn new(total: usize) -> Slots {
        Slots { pool: Pool::new(total), taken: 0, lost: None }
    }

    pub(crate) fn counts(&self) -> SlotCounts {
        let Slots { pool, taken, .. } = self;
        let snapshots = pool.contents().count();
        SlotCounts { total: pool.total(), free: pool.free(), snapshots, taken: *taken }
    }

    /// Whether there is a snapshot with this content.
    pub(crate) fn has(&self, name: u64) -> bool {
        self.pool.find(name).is_some()
    }

    /// The slot of the snapshot with this content.
    pub(crate) fn find(&self, name: u64) -> Option<u32> {
        self.pool.find(name)
    }

    /// The snapshot that the last [`Slots::next`] used the slot of, and the slot.
    pub(crate) fn take_lost(&mut self) -> Option<(u64, u32)> {
        self.lost.take()
    }

    /// The slots as pages of states, for snapshots from elsewhere.
    pub(crate) fn pool_mut(&mut self) -> &mut Pool {
        &mut self.pool
    }

    /// A sequence that continues after a snapshot of `position` tokens; zeros if there is none.
    pub(crate) fn restore(&mut self, name: u64, position: usize) -> HeldState {
        let now = self.pool.find(name).map(|slot| State { slot, position });
        now.into_iter().for_each(|state| self.pool.hold(state.slot));
        HeldState { now, ..HeldState::default() }
    }

    /// The slots of a sequence's next step. `None` if no slot is free, which cannot be with
    /// [`crate::StateCapacity::PER_SEQUENCE`] slots per sequence.
    pub(crate) fn next(&mut self, held: &mut HeldState, step: NextStep) -> Option<StateSlots> {
        let read = held.now.map(|state| state.slot);
        let before = held.before.take().map(|state| state.slot);
        // in place, unless the state is needed again: because it is a snapshot, because the step in flight,
        // which writes it, may turn out to be the last one that counts, or because drafts may be rejected
        let in_place = read.filter(|slot| !step.keeps_before && self.is_private(*slot));
        let write = match (in_place, before) {
            (None, Some(slot)) if self.is_private(slot) => slot,
            (in_place, before) => {
                before.into_iter().for_each(|slot| self.pool.release(slot));
                match in_place {
                    Some(slot) => slot,
                    None => {
                        let taken = self.pool.take()?;
                        self.lost = taken.lost.map(|name| (name, taken.page));
                        taken.page
                    }
                }
            }
        };
        let before = held.now.replace(State { slot: write, position: step.end });
        held.before = before.filter(|state| state.slot != write);
        Some(StateSlots { read, write })
    }

    /// Returns to the state before the newest step, which kept it.
    pub(crate) fn roll_back(&mut self, held: &mut HeldState) {
        debug_assert!(held.before.is_some(), "the step kept the state before it");
        if let Some(before) = held.before.take()
            && let Some(now) = held.now.replace(before)
        {
            self.pool.release(now.slot);
        }
    }

    /// Makes the state at a position a snapshot, instead of the last one that may be replaced; false if the
    /// sequence does not hold that state.
    pub(crate) fn snapshot(&mut self, held: &mut HeldState, snapshot: Snapshot) -> bool {
        let Snapshot { name, position, stays, last_stays } = snapshot;
        let states = [&mut held.now, &mut held.before].into_iter().flatten();
        let Some(state) = states.into_iter().find(|state| state.position == position) else { return false };
        let known = self.has(name);
        state.slot = self.pool.keep(state.slot, name);
        self.taken += u64::from(!known);
        let last = held.replaceable.take();
        if !known && !stays {
            held.replaceable = Some(name);
        }
        if let Some(last) = last.filter(|last| *last != name && !last_stays) {
            self.drop_unused(last, held);
        }
        true
    }

    /// Drops a snapshot that no other sequence reads.
    fn drop_unused(&mut self, name: u64, held: &HeldState) {
        let Some(slot) = self.pool.find(name) else { return };
        let own = [held.now, held.before].into_iter().flatten().filter(|state| state.slot == slot).count();
        if self.pool.holders(slot) == own {
            self.pool.forget(name);
        }
    }

    /// Drops a snapshot whose page is used for another content.
    pub(crate) fn forget(&mut self, name: u64) {
        self.pool.forget(name);
    }

    /// Releases all of `held`.
    pub(crate) fn release(&mut self, held: &mut HeldState) {
        let HeldState { now, before, .. } = std::mem::take(held);
        before.into_iter().chain(now).for_each(|state| self.pool.release(state.slot));
    }

    /// Checks that every slot is held as often as it occurs in `held`, and free exactly if it does not occur.
    pub(crate) fn check<'a>(&self, held: impl Iterator<Item = &'a HeldState>) -> Result<(), EngineError> {
        let states = held.flat_map(|held| [held.now, held.before]).flatten();
        self.pool.check("state slot", states.map(|state| state.slot))
    }

    /// Contents of all snapshots.
    pub(crate) fn contents(&self) -> impl Iterator<Item = u64> {
        self.pool.contents()
    }

    /// Whether the only sequence that holds a slot may write it.
    fn is_private(&self, slot: u32) -> bool {
        self.pool.holders(slot) == 1 && !self.pool.has_content(slot)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn step(slots: &mut Slots, held: &mut HeldState, end: usize, in_flight: bool) -> (Option<u32>, u32) {
        let StateSlots { read, write } = slots.next(held, NextStep { keeps_before: in_flight, end }).unwrap();
        (read, write)
    }

    fn named(name: u64, position: usize) -> Snapshot {
        Snapshot { name, position, stays: false, last_stays: false }
    }

    #[test]
    fn a_state_is_updated_in_place_unless_it_is_in_flight_or_a_snapshot() {
        let (mut slots, mut held) = (Slots::new(3), HeldState::default());
        assert_eq!(step(&mut slots, &mut held, 4, false), (None, 0));
        assert_eq!(step(&mut slots, &mut held, 5, false), (Some(0), 0));
        assert_eq!(step(&mut slots, &mut held, 6, true), (Some(0), 1), "5 is in flight");
        assert_eq!(step(&mut slots, &mut held, 7, true), (Some(1), 0), "by turns");
        assert!(slots.snapshot(&mut held, named(9, 6)));
        assert!(!slots.snapshot(&mut held, named(8, 5)), "that state is not there any more");
        assert_eq!(step(&mut slots, &mut held, 8, true), (Some(0), 2), "1 is a snapshot");
        slots.release(&mut held);
        slots.check([].into_iter()).unwrap();
        assert_eq!(slots.counts(), SlotCounts { total: 3, free: 3, snapshots: 1, taken: 1 });
    }

    #[test]
    fn a_rejected_draft_returns_to_the_state_before_it() {
        let (mut slots, mut held) = (Slots::new(2), HeldState::default());
        step(&mut slots, &mut held, 4, false);
        assert_eq!(step(&mut slots, &mut held, 7, true), (Some(0), 1), "not in place");
        slots.roll_back(&mut held);
        assert_eq!(held.now, Some(State { slot: 0, position: 4 }));
        assert_eq!((slots.counts().free, step(&mut slots, &mut held, 6, true)), (1, (Some(0), 1)));
        slots.release(&mut held);
        slots.check([].into_iter()).unwrap();
    }

    #[test]
    fn a_snapshot_is_read_by_several_and_replaced_by_the_sequence_that_took_it() {
        let mut slots = Slots::new(6);
        let mut first = HeldState::default();
        step(&mut slots, &mut first, 4, false);
        assert!(slots.snapshot(&mut first, named(1, 4)));
        let (mut second, mut third) = (slots.restore(1, 4), slots.restore(1, 4));
        assert_eq!(step(&mut slots, &mut second, 5, false), (Some(0), 1));
        assert_eq!(step(&mut slots, &mut third, 5, false), (Some(0), 2));
        step(&mut slots, &mut first, 8, false);
        assert!(slots.snapshot(&mut first, named(2, 8)));
        assert!(slots.has(1), "others hold it");
        slots.release(&mut second);
        slots.release(&mut third);
        step(&mut slots, &mut first, 12, false);
        assert!(slots.snapshot(&mut first, named(3, 12)));
        assert!(slots.has(1) && !slots.has(2) && slots.has(3));
        slots.check([&first].into_iter()).unwrap();
        let lost = slots.check([].into_iter()).unwrap_err().to_string();
        assert!(lost.contains("state slot"), "{lost}");
    }
}
