//! The inputs of a step as the kernels read them: a header, then arrays.

use tern_graph::{Graph, KvSize, Slice, StateSlots, Step};

use super::strategy::StepSize;
use crate::shared::{
    ADAPTERS_AT, CARRIED_BIT, IDS_AT, IMAGE_ROWS_AT, INPUTS_HEADER, OUTPUT_ROWS_AT, OUTPUTS, PAGES_AT,
    POSITIONS_AT, SLICE_COUNT, SLICES_AT, STATE_WORDS, STATES_AT, TABLE_STRIDE, TOKENS, TURNS_AT, TYPE_BIT,
    WINDOW_PAGES_AT,
};

/// Words of page tables that are reserved whatever the number of sequences.
const SMALL_TABLES: usize = 1 << 20;

/// The slot of a state that is zero: -1 in the kernels.
const NO_SLOT: u32 = u32::MAX;

/// The place of a token that is of no image: -1 in the kernels.
const NO_ROW: u32 = u32::MAX;

/// What the inputs of a program's steps have.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct InputKinds {
    /// Adapters of the graph.
    adapters: usize,
    /// Rotations count the parts of positions.
    turns: bool,
    /// Rows of images take the place of tokens.
    image_rows: bool,
}

impl InputKinds {
    pub(super) fn of(graph: &Graph) -> InputKinds {
        InputKinds {
            adapters: graph.adapters(),
            turns: graph.ropes.iter().any(|table| !table.parts.is_empty()),
            image_rows: graph.image_width() > 0,
        }
    }

    /// Words per token at most.
    fn words(self) -> usize {
        self.adapters + if self.turns { 3 } else { 0 } + usize::from(self.image_rows)
    }
}

/// Words that are reserved for the inputs of steps of this size, with page tables of up to `kv.pages`
/// entries. A step has a slice per sequence, and at most one sequence per output; more are possible
/// if their tables are small.
pub(super) fn reserved_words(size: StepSize, kv: KvSize, kinds: InputKinds) -> usize {
    let tables = (size.tokens * kv.pages).min((size.outputs * kv.pages).max(SMALL_TABLES));
    let tables = if kv.window_pages.is_some() { 2 * tables } else { tables };
    INPUTS_HEADER + (3 + STATE_WORDS + kinds.words()) * size.tokens + size.outputs + tables
}

/// The rows of images that take the place of a step's tokens, in the order of the tokens.
pub(super) fn image_rows(step: &Step) -> Vec<f32> {
    let rows = step.slices.iter().flat_map(|s| s.positions().filter_map(|at| image_row(s, at)));
    rows.flatten().copied().collect()
}

fn image_row(slice: &Slice, position: usize) -> Option<&[f32]> {
    slice.images.row(position).filter(|row| !row.is_empty())
}

/// The words of a step's inputs; `windowed`: layers with a window have their own page tables.
pub(super) fn pack(step: &Step, kinds: InputKinds, windowed: bool) -> Vec<u32> {
    let (tokens, outputs) = (step.tokens.len(), step.outputs.len());
    // tables of both kinds have an entry per page of the sequence
    let tables: &[bool] = if windowed { &[false, true] } else { &[false] };
    let tables = || tables.iter().flat_map(|windowed| step.slices.iter().map(|s| s.table(*windowed)));
    let stride = tables().map(|table| table.len()).max().unwrap_or(0);
    let ids = INPUTS_HEADER;
    let mut words = vec![0; INPUTS_HEADER];
    words[IDS_AT] = ids as u32;
    words[POSITIONS_AT] = (ids + tokens) as u32;
    words[SLICES_AT] = (ids + 2 * tokens) as u32;
    words[OUTPUT_ROWS_AT] = (ids + 3 * tokens) as u32;
    words[PAGES_AT] = (ids + 3 * tokens + outputs) as u32;
    let window_tables = if windowed { step.slices.len() * stride } else { 0 };
    words[WINDOW_PAGES_AT] = words[PAGES_AT] + window_tables as u32;
    (words[TABLE_STRIDE], words[TOKENS], words[OUTPUTS]) = (stride as u32, tokens as u32, outputs as u32);
    words.extend(step.tokens.iter().zip(step.types()).map(|(id, kind)| id | (kind as u32) << TYPE_BIT));
    for carried in &step.carried {
        words[ids + carried.token] = 1 << CARRIED_BIT | carried.output as u32;
    }
    words.extend(step.positions().map(|p| p as u32));
    words.extend((0..).zip(&step.slices).flat_map(|(i, s)| std::iter::repeat_n(i, s.len)));
    words.extend(step.outputs.iter().map(|o| o.row as u32));
    for table in tables() {
        words.extend(&**table);
        words.extend(std::iter::repeat_n(0, stride - table.len()));
    }
    words[SLICE_COUNT] = step.slices.len() as u32;
    if step.slices.iter().any(|slice| slice.state.is_some()) {
        words[STATES_AT] = words.len() as u32;
        let mut first = 0;
        for slice in &step.slices {
            let StateSlots { read, write } = slice.state.unwrap_or_default();
            words.extend([first, slice.len as u32, read.unwrap_or(NO_SLOT), write]);
            first += slice.len as u32;
        }
    }
    if kinds.adapters > 0 {
        words[ADAPTERS_AT] = words.len() as u32;
        let scales =
            step.slices.iter().flat_map(|s| (0..kinds.adapters).map(|adapter| s.adapters.scale(adapter)));
        words.extend(scales.map(f32::to_bits));
    }
    let positions = || step.slices.iter().flat_map(|slice| slice.positions().map(move |at| (slice, at)));
    if kinds.turns {
        words[TURNS_AT] = words.len() as u32;
        words.extend(positions().flat_map(|(slice, at)| slice.images.turns(at)).map(|turn| turn as u32));
    }
    if kinds.image_rows && positions().any(|(slice, at)| image_row(slice, at).is_some()) {
        words[IMAGE_ROWS_AT] = words.len() as u32;
        let mut rows = 0..;
        words.extend(positions().map(|(slice, at)| match image_row(slice, at) {
            Some(_) => rows.next().unwrap_or(NO_ROW),
            None => NO_ROW,
        }));
    }
    words
}

#[cfg(test)]
mod tests {
    use tern_graph::{AdapterScales, Carried, Output};

    use super::*;

    #[test]
    fn tables_of_windows_follow_the_others() {
        let slice = |len, position, pages: &[u32], window_pages: &[u32]| Slice {
            window_pages: window_pages.to_vec().into(),
            ..Slice::new(len, position, pages.to_vec())
        };
        let step = Step {
            tokens: vec![7, 9],
            slices: vec![slice(1, 5, &[4], &[1]), slice(1, 40, &[8, 2], &[0, 3, 5])],
            ..Step::default()
        };
        let words = pack(&step, InputKinds::default(), true);
        assert_eq!((words[PAGES_AT], words[WINDOW_PAGES_AT], words[TABLE_STRIDE]), (22, 28, 3));
        assert_eq!(words[22..], [4, 0, 0, 8, 2, 0, 1, 0, 0, 0, 3, 5]);
        let kv = KvSize { page_len: 32, pages: 9, window_pages: Some(6) };
        assert!(
            words.len()
                <= reserved_words(
                    StepSize { tokens: 2, outputs: 0, longest: 1, ..StepSize::default() },
                    kv,
                    InputKinds::default()
                )
        );
    }

    #[test]
    fn slices_of_recurrent_layers_have_tokens_and_slots() {
        let slice = |len, position, state| Slice { state: Some(state), ..Slice::new(len, position, vec![]) };
        let step = Step {
            tokens: vec![7, 9, 4],
            slices: vec![
                slice(2, 0, StateSlots { read: None, write: 5 }),
                slice(1, 8, StateSlots { read: Some(1), write: 3 }),
            ],
            ..Step::default()
        };
        let words = pack(&step, InputKinds::default(), false);
        assert_eq!((words[STATES_AT], words[SLICE_COUNT]), (25, 2));
        assert_eq!(words[25..], [0, 2, u32::MAX, 5, 2, 1, 1, 3]);
        let size = StepSize { tokens: 3, outputs: 0, longest: 2, ..StepSize::default() };
        assert!(words.len() <= reserved_words(size, KvSize::default(), InputKinds::default()));
    }

    #[test]
    fn slices_have_a_scale_per_adapter() {
        let slice =
            |scales: &[f32]| Slice { adapters: AdapterScales::new(scales), ..Slice::new(1, 0, vec![]) };
        let slices = vec![slice(&[0.5]), slice(&[]), slice(&[0.0, 2.0])];
        let step = Step { tokens: vec![7, 9, 4], slices, ..Step::default() };
        let words = pack(&step, InputKinds { adapters: 2, ..InputKinds::default() }, false);
        assert_eq!(words[ADAPTERS_AT], 25);
        assert_eq!(words[25..], [0.5, 0.0, 0.0, 0.0, 0.0, 2.0].map(f32::to_bits));
        let size = StepSize { tokens: 3, outputs: 0, longest: 1, ..StepSize::default() };
        assert!(
            words.len()
                <= reserved_words(
                    size,
                    KvSize::default(),
                    InputKinds { adapters: 2, ..InputKinds::default() }
                )
        );
    }

    #[test]
    fn tokens_of_a_second_text_have_a_bit() {
        let slice = Slice { second: Some(2), ..Slice::new(4, 0, vec![]) };
        let step = Step { tokens: vec![5, 6, 7, 8], slices: vec![slice], ..Step::default() };
        assert_eq!(pack(&step, InputKinds::default(), false)[16..20], [5, 6, 1 << 30 | 7, 1 << 30 | 8]);
    }

    #[test]
    fn arrays_follow_the_header_in_its_order() {
        let slice = |position, len, pages: Vec<u32>| Slice::new(len, position, pages);
        let step = Step {
            tokens: vec![7, 0, 9],
            carried: vec![Carried { token: 1, output: 3 }],
            slices: vec![slice(5, 2, vec![4]), slice(40, 1, vec![8, 2])],
            outputs: vec![Output { row: 2, ..Output::default() }],
            ..Step::default()
        };
        let kv = |pages| KvSize { page_len: 32, pages, window_pages: None };
        let words = pack(&step, InputKinds::default(), false);
        assert_eq!(words[..8], [16, 19, 22, 25, 26, 2, 3, 1]);
        assert_eq!(words[8..16], [0, 0, 26, 0, 2, 0, 0, 0]); // the counter of barriers begins at 0
        assert_eq!(words[16..19], [7, 1 << 31 | 3, 9]);
        assert_eq!(words[19..22], [5, 6, 40]);
        assert_eq!(words[22..25], [0, 0, 1]);
        assert_eq!(words[25..26], [2]);
        assert_eq!(words[26..], [4, 0, 8, 2]); // one table per slice, padded
        assert!(
            words.len()
                <= reserved_words(
                    StepSize { tokens: 3, outputs: 1, longest: 2, ..StepSize::default() },
                    kv(2),
                    InputKinds::default()
                )
        );
        // 128 sequences of 8,192 tokens: not 2,048 tables
        let most = StepSize { tokens: 2048, outputs: 128, longest: 2048, ..StepSize::default() };
        assert!(reserved_words(most, kv(32_768), InputKinds::default()) < 129 * 32_768);
    }
}
