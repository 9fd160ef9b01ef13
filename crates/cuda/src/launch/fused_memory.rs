//! Shared memory of a block of the fused step: what is in it, and how much of it the ring gets.

use super::recurrent::StateSizes;
use crate::driver::{Define, sizes};
use crate::lower::{AttentionShape, KernelConfig};
use crate::shared::{
    AttendArgs, CHOICE_BYTES, CHUNK, FIELDS_BYTES, FRAGMENT_TOKENS, LinearArgs, MOST_EXPERTS, Phase,
    RawPhase, SHARE_STRIDE, STEP_STATE_COLUMNS, TILE, TRANSFORM_SPAN, WARPS, WINDOW,
};

/// Slots of the ring at most.
const MOST_SLOTS: usize = 32;
/// Bytes of a slot at least, and at most if a round fits: smaller ones cost more synchronisation than they
/// gain. Between them a slot has a tile of the matrix with the fewest columns, or the rounds of it that fit,
/// so that slots are full.
const SLOT: [usize; 2] = [9 * 1024, 22 * 1024];
/// Slots of half a round at least: with fewer, a warp could take a slot for full that is not
/// (`FLYING` of the kernel).
const HALF_SLOTS: usize = 8;
/// Bytes of keys in flight to a block: enough for all blocks together to saturate memory.
const KEYS_FLYING: usize = 80 * 1024;
/// Bytes that the kernel's static shared memory and the driver need.
const RESERVED: usize = 2048;

/// The phases of the window, and the one that the reading warp is at.
const WINDOW_BYTES: usize = (WINDOW + 1) * size_of::<RawPhase>();
/// Two barriers per slot.
const GATES: usize = 2 * MOST_SLOTS * 8;
/// Floats of each warp: one per token.
const WARP_FLOATS: usize = WARPS * FRAGMENT_TOKENS * 4;
/// For several tokens: the factor on the sums of a phase, and that of the last norm, per token.
const FACTORS: usize = 2 * FRAGMENT_TOKENS * 4;
/// What choosing experts needs in the arena: a key and a logit of each.
const CHOOSING: usize = MOST_EXPERTS * 8;
/// Bytes of x that may be staged in shared memory.
const MOST_STAGED: usize = 96 * 1024;
/// Bytes of x that may be in fields of two bits, and the tiles of a block from which on it is.
const MOST_FIELDS: usize = 36 * 1024;
const FIELDS_TILES: usize = 4;

/// A rotary table on the device.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RopeTable {
    pub(crate) at: u64,
    pub(crate) pairs: usize,
    /// Whether the parts of positions that pairs turn by follow the frequencies.
    pub(crate) parted: bool,
}

/// Sizes of everything but the ring.
pub(crate) struct FusedMemory {
    tokens: usize,
    /// Bytes of the smallest slot that holds a round of each matrix, and a slot of keys.
    slot: usize,
    /// The same with half a round, if records are large: then there are more slots.
    half_slot: Option<usize>,
    turns: usize,
    /// What a linear has in the arena.
    linear: Vec<(&'static str, usize)>,
    arena: usize,
    most_pairs: usize,
    /// Whether a phase chooses experts.
    routes: bool,
    /// Whether attention has sinks.
    sinks: bool,
    /// Whether attention has windows with separate pages.
    windows: bool,
    /// Whether there are recurrent phases or transforms.
    recurrent: bool,
    /// Rows of the matrices of recurrent phases.
    state_rows: usize,
    attentions: Vec<AttentionShape>,
    /// Warps that share the keys of attention, of the shape with the fewest.
    takers: usize,
}

/// Whether a linear of several tokens stages x in shared memory: it has more chunks than registers hold, and
/// several tiles per block that use them.
pub(super) fn is_staged(l: &LinearArgs, blocks: usize) -> bool {
    let chunks = l.chunks as usize;
    chunks > 2 * WARPS && staged_bytes(l) <= MOST_STAGED && l.tiles() > 2 * blocks
}

/// Whether x of a linear of one token is in fields of two bits: products with codes of two bits then take
/// fewest instructions, but making the fields takes as long as some tiles.
pub(super) fn is_of_fields(l: &LinearArgs, config: &KernelConfig, blocks: usize) -> bool {
    let parts = l.used_parts();
    let alike = parts.iter().all(|p| p.format == parts[0].format);
    let format = config.formats.get(parts[0].format as usize).filter(|f| f.is_raised() && f.is_placed());
    let each = if l.gated != 0 { 2 } else { 1 };
    let matrices = if l.experts.mixed != 0 { 1 } else { l.experts.used.max(1) as usize };
    let units = l.tiles() / each * matrices;
    let bytes = l.step_chunks() * FIELDS_BYTES;
    alike && format.is_some() && bytes <= MOST_FIELDS && units / blocks * each >= FIELDS_TILES
}

fn staged_bytes(l: &LinearArgs) -> usize {
    l.chunks as usize * CHUNK * FRAGMENT_TOKENS * 2
}

/// The ring that weights and keys come through.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ring {
    /// Bytes of a slot.
    pub(crate) slot: usize,
    pub(crate) slots: usize,
}

impl Ring {
    /// The most warps, or pairs of them, that share the slots evenly, up to `most`: each always has the same
    /// slots.
    fn sharing(self, most: usize) -> usize {
        (1..=most).rev().find(|n| self.slots.is_multiple_of(*n)).unwrap_or(1)
    }
}

/// Tiles whose rows are written together.
fn held_tiles(tokens: usize) -> usize {
    if tokens < FRAGMENT_TOKENS { 12 } else { 6 }
}

/// What every phase needs to know about the step: `Info` of `kernels/fused_step/ring.cuh`, which asserts it.
fn info_bytes(tokens: usize) -> usize {
    (16 + 8 + tokens * (8 + 3 * 4) + 4).next_multiple_of(16)
}

/// Whether there are recurrent phases or transforms.
pub(super) fn is_recurrent(phases: &[Phase]) -> bool {
    let is = |p: &Phase| matches!(p, Phase::Conv(_) | Phase::Recurrent(_) | Phase::Transform(_));
    phases.iter().any(is)
}

impl FusedMemory {
    /// For steps of up to `tokens`, by `blocks` blocks.
    pub(crate) fn new(
        config: &KernelConfig,
        phases: &[Phase],
        ropes: &[RopeTable],
        tokens: usize,
        blocks: usize,
    ) -> FusedMemory {
        let linears = || phases.iter().filter_map(|p| if let Phase::Linear(l) = p { Some(l) } else { None });
        let keys = config.attentions.iter().map(|s| s.slot()).max().unwrap_or(0);
        let rounds = linears().map(LinearArgs::round_bytes).max().unwrap_or(0);
        let large = tokens == 1 && linears().all(|l| l.round_bytes() > SLOT[1] && l.step_chunks() >= WARPS);
        let linear = if tokens == 1 {
            let chunks = linears().map(LinearArgs::step_chunks).max().unwrap_or(0);
            let fields =
                linears().filter(|l| is_of_fields(l, config, blocks)).map(|l| l.step_chunks() * FIELDS_BYTES);
            vec![
                ("AT_X", fields.max().unwrap_or(0).max(chunks * 256)),
                ("AT_SCALES", (chunks * 4).next_multiple_of(16)),
                ("AT_SUMS", (chunks * config.sums_of_x() * 4).next_multiple_of(16)),
                ("AT_SHARES", held_tiles(tokens) * (WARPS * TILE + TILE) * 4),
            ]
        } else {
            let staged = linears().filter(|l| is_staged(l, blocks)).map(staged_bytes).max().unwrap_or(0);
            vec![("AT_X", staged), ("AT_SHARES", held_tiles(tokens) * WARPS * tokens * SHARE_STRIDE * 4)]
        };
        let attention = config.attentions.iter().map(|s| s.workspace()).max().unwrap_or(0);
        let routes = phases.iter().any(|p| matches!(p, Phase::Route(_)));
        let choosing = if routes { CHOOSING } else { 0 };
        let linears_bytes = linear.iter().map(|part| part.1).sum::<usize>();
        let recurrent = is_recurrent(phases);
        let span = if recurrent { (TRANSFORM_SPAN + CHUNK) * 4 } else { 0 };
        let arena = linears_bytes.max(attention).max(choosing).max(span).next_multiple_of(16);
        let most_pairs = ropes.iter().map(|r| r.pairs).max().unwrap_or(0).max(1);
        let turns = (ropes.len() * tokens * most_pairs * 8).next_multiple_of(16);
        let tiles = linears().map(|l| {
            let chunks = l.step_chunks();
            (l.round_bytes() * chunks.div_ceil(WARPS), l.record_bytes() * chunks, l.round_bytes())
        });
        let least = match tiles.min().unwrap_or((0, 0, 1)) {
            (rounds, ..) if rounds <= SLOT[1] => rounds.max(SLOT[0]),
            // not all warps have a chunk in its last round; two tokens take rounds of a slot two at a time
            (_, tile, _) if tokens == 1 && tile <= SLOT[1] => tile.max(SLOT[0]),
            (.., round) => (SLOT[1] / round * round).max(SLOT[0]),
        };
        let slot_of = |rounds: usize| rounds.max(keys).max(least).next_multiple_of(128);
        let attends =
            |is: fn(&AttendArgs) -> bool| phases.iter().any(|p| matches!(p, Phase::Attend(a) if is(a)));
        let (sinks, windows) = (attends(|a| a.sinks != 0), attends(|a| a.windowed != 0));
        let rows = phases.iter().map(|p| if let Phase::Recurrent(a) = p { a.rows as usize } else { 1 });
        let state_rows = rows.max().unwrap_or(1);
        FusedMemory {
            tokens,
            slot: slot_of(rounds),
            half_slot: large.then(|| slot_of(rounds / 2)),
            turns,
            linear,
            arena,
            most_pairs,
            routes,
            sinks,
            windows,
            recurrent,
            state_rows,
            attentions: config.attentions.clone(),
            takers: config.attentions.iter().map(|s| s.takers()).min().unwrap_or(WARPS),
        }
    }

    /// The parts of shared memory after the ring.
    fn parts(&self) -> [(&'static str, usize); 8] {
        [
            ("AT_WINDOW", WINDOW_BYTES),
            ("AT_GATES", GATES),
            ("AT_INFO", info_bytes(self.tokens)),
            ("AT_CHOICE", if self.routes { CHOICE_BYTES } else { 0 }),
            ("AT_WARP_FLOATS", WARP_FLOATS),
            ("AT_FACTORS", FACTORS),
            ("AT_TURNS", self.turns),
            ("AT_ARENA", self.arena),
        ]
    }

    fn without_ring(&self) -> usize {
        self.parts().iter().map(|part| part.1).sum()
    }

    /// Bytes of everything.
    pub(crate) fn bytes(&self, ring: Ring) -> usize {
        ring.slot * ring.slots + self.without_ring()
    }

    /// The largest ring in `memory` bytes; `None` if there is no space for two slots.
    pub(crate) fn ring(&self, memory: usize) -> Option<Ring> {
        let free = memory.saturating_sub(RESERVED).checked_sub(self.without_ring())?;
        let ring = |slot: usize| {
            let most = (free / slot).min(MOST_SLOTS);
            // some warps share the keys of long contexts evenly
            let is_shared = |slots: &usize| Ring { slot, slots: *slots }.sharing(self.takers) >= 3;
            Ring { slot, slots: (3..=most).rev().find(is_shared).unwrap_or(most) }
        };
        let halves = self.half_slot.map(ring).filter(|ring| ring.slots >= HALF_SLOTS);
        Some(halves.unwrap_or_else(|| ring(self.slot))).filter(|ring| ring.slots >= 2)
    }

    /// Sizes and offsets, as the kernel is compiled with them.
    pub(crate) fn defines(&self, ring: Ring) -> Vec<Define> {
        let Ring { slot, slots } = ring;
        let mut all: Vec<(&'static str, usize)> = vec![];
        let mut place = |mut at: usize, parts: &[(&'static str, usize)]| {
            for (name, bytes) in parts {
                all.push((name, at));
                at += bytes;
            }
        };
        place(slots * slot, &self.parts());
        place(0, &self.linear);
        all.extend([
            ("SLOTS", slots),
            ("SLOT", slot),
            ("KEYS_FLYING", (KEYS_FLYING / slot).clamp(1, slots - 1)),
            ("HELD_TILES", held_tiles(self.tokens)),
            ("ARENA", self.arena),
            ("INFO", info_bytes(self.tokens)),
            ("MOST_PAIRS", self.most_pairs),
            ("SINKS", usize::from(self.sinks)),
            ("WINDOWS", usize::from(self.windows)),
        ]);
        let state = StateSizes::of(self.state_rows, 2 * 32 / STEP_STATE_COLUMNS); // two columns per lane
        all.extend(state.constants());
        let fused = self.attentions.iter().enumerate().filter(|(_, shape)| shape.fits_fused_step());
        let attentions = fused.map(|(i, shape)| shape.c_text(i, ring.sharing(shape.takers())));
        vec![
            ("ATTENTIONS(X)", attentions.collect::<Vec<_>>().join(" ")),
            // that the preprocessor has to know
            ("TOKENS_AT_ONCE", self.tokens.to_string()),
            ("ROUTES", usize::from(self.routes).to_string()),
            ("RECURRENT", usize::from(self.recurrent).to_string()),
            sizes(&all),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shared::Part;
    use crate::weights::Layout;

    /// A model with one linear of `cols`, as H200 blocks have 227 KiB.
    fn memory(cols: i32, tokens: usize) -> FusedMemory {
        let mut linear = LinearArgs { cols, chunks: cols / 128, parts: 1, ..LinearArgs::default() };
        linear.part[0] = Part { bytes: 1280, rows: 8192, tiles: 512, ..Part::default() };
        let ropes = [RopeTable { at: 0, pairs: 64, parted: false }];
        FusedMemory::new(&KernelConfig::default(), &[Phase::Linear(linear)], &ropes, tokens, 132)
    }

    #[test]
    fn the_ring_gets_the_rest_of_shared_memory() {
        let memory = memory(4096, 1);
        let ring = memory.ring(227 << 10).unwrap();
        assert_eq!(ring.slot, 16 * 1280); // a round of all warps
        assert!(ring.slots >= 8 && memory.bytes(ring) + RESERVED <= 227 << 10);
        let defines = memory.defines(ring);
        let value = |name: &str| defines.iter().find(|d| d.0 == name).map(|d| d.1.clone()).unwrap();
        assert!(value("Sizes").contains(&format!(" AT_WINDOW = {},\n", ring.slot * ring.slots)));
        assert_eq!(value("TOKENS_AT_ONCE"), "1");
    }

    #[test]
    fn the_most_warps_that_divide_the_slots_share_them() {
        let sharing = |slots, most| Ring { slot: 9216, slots }.sharing(most);
        assert_eq!([sharing(8, 12), sharing(12, 12), sharing(18, 8), sharing(7, 6)], [8, 12, 6, 1]);
    }

    #[test]
    fn a_slot_holds_a_tile_if_it_is_not_large() {
        let linear = |bytes: i32, cols: i32| {
            let mut linear = LinearArgs { cols, chunks: cols / 128, parts: 1, ..LinearArgs::default() };
            linear.part[0] = Part { bytes, ..Part::default() };
            Phase::Linear(linear)
        };
        let slot_of = |bytes, cols: [i32; 3], tokens| {
            let phases = cols.map(|cols| linear(bytes, cols));
            FusedMemory::new(&KernelConfig::default(), &phases, &[], tokens, 132).slot
        };
        let slot = |bytes, cols: i32| slot_of(bytes, [cols, 4096, 12288], 1);
        assert_eq!(slot(288, 4096), 9 * 1024); // codes of one bit: 32 records
        assert_eq!(slot(544, 4096), 32 * 544); // of two
        assert_eq!(slot_of(544, [5120, 6144, 17408], 1), 40 * 544); // two rounds and a half
        assert_eq!(slot_of(544, [5120, 6144, 17408], 2), 32 * 544); // two rounds
        assert_eq!(slot(288, 2048), 9 * 1024);
        assert_eq!(slot(640, 4096), 2 * 16 * 640);
        assert_eq!(slot(720, 4096), 16 * 720); // two rounds do not fit
        assert_eq!(slot(1280, 4096), 16 * 1280); // a round at least
    }

    #[test]
    fn large_records_come_in_half_rounds_if_there_are_many_slots() {
        let mut linear = LinearArgs { cols: 4096, chunks: 32, parts: 1, ..LinearArgs::default() };
        linear.part[0] = Part { bytes: 2176, rows: 4096, tiles: 256, ..Part::default() };
        let ring = |memory: usize, tokens| {
            let phases = [Phase::Linear(linear)];
            FusedMemory::new(&KernelConfig::default(), &phases, &[], tokens, 132).ring(memory).unwrap()
        };
        assert_eq!(ring(227 << 10, 1).slot, 8 * 2176);
        assert_eq!(ring(99 << 10, 1), Ring { slot: 16 * 2176, slots: 2 });
        assert_eq!(ring(227 << 10, 8).slot, 16 * 2176);
    }

    #[test]
    fn x_of_several_tokens_is_staged_if_registers_do_not_hold_it() {
        let [few, more, most] = [4096, 5120, 8192].map(|cols| memory(cols, 8).arena);
        assert_eq!(more, few + 5120 * 8 * 2);
        assert_eq!(most, few); // it does not fit: read again for every pair of tiles
    }

    #[test]
    fn x_of_many_tiles_of_two_bits_is_in_fields() {
        let layout = Layout::of(&tern_quant::PQ2_0).unwrap();
        let config = KernelConfig { formats: vec![layout], ..KernelConfig::default() };
        let linear = |tiles: i32, gated: i32, chunks: i32| {
            let part = Part { tiles, ..Part::default() };
            LinearArgs { chunks, gated, parts: 1 + gated, part: [part, part, part], ..LinearArgs::default() }
        };
        let is = |tiles, gated, chunks| is_of_fields(&linear(tiles, gated, chunks), &config, 132);
        assert!(is(528, 0, 40) && !is(527, 0, 40)); // four tiles per block
        assert!(is(264, 1, 40) && !is(263, 1, 40)); // two pairs
        assert!(!is(528, 0, 68)); // too large
        assert!(!is_of_fields(&linear(528, 0, 40), &KernelConfig::default(), 132));
        let memory = |tiles| FusedMemory::new(&config, &[Phase::Linear(linear(tiles, 0, 40))], &[], 1, 132);
        assert_eq!(memory(528).arena, memory(527).arena + 40 * (FIELDS_BYTES - 256));
    }

    #[test]
    fn a_step_that_leaves_no_space_for_two_slots_is_not_fused() {
        assert_eq!(memory(4096, 8).ring(48 << 10), None);
        assert_eq!(memory(262_144, 1).ring(227 << 10), None);
    }
}
