//! A step: tokens of sequences and the rows that are requested, with the checks before
//! it runs, and its results.

use std::ops::Range;

use super::error::{BackendError, Result};
use super::handles::Program;
use crate::memory::check_slots;
use crate::{AdapterScales, Images, KvSize, PageTable, Sample, Sampled, SequenceRules, StateSlots};

/// One forward pass: tokens of one or more sequences, and the requested outputs.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Step {
    /// Token ids, sequence after sequence. `[tokens]`
    pub tokens: Vec<u32>,
    /// Which tokens belong to which sequence; the slices cover `tokens` in order.
    pub slices: Vec<Slice>,
    /// The requested rows.
    pub outputs: Vec<Output>,
    /// Tokens sampled by the step before. The placeholder in `tokens` is used only if
    /// no token could be sampled.
    pub carried: Vec<Carried>,
    /// The program of the step before, if it is another one than this step's.
    pub carried_from: Option<Program>,
    /// The rows of each [`crate::Op::Input`], by its index. `[inputs][tokens * width]`
    pub inputs: Vec<Vec<f32>>,
}

/// A token that is not known yet: it is sampled by the step before, of the same program or of
/// [`Step::carried_from`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Carried {
    /// Index into this step's tokens.
    pub token: usize,
    /// Index into the outputs of the step before.
    pub output: usize,
}

/// Consecutive tokens of one sequence.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Slice {
    /// Number of tokens.
    pub len: usize,
    /// Position of the first one in its sequence.
    pub position: usize,
    /// The sequence's KV pages.
    pub pages: PageTable,
    /// Its pages in the layers with a window, if they have their own. Entries of pages that lie before the
    /// window of the slice's first token are any page of the cache: what they hold has no effect.
    pub window_pages: PageTable,
    /// Its state slots, if the graph has recurrent layers.
    pub state: Option<StateSlots>,
    /// Position of the first token of the second text, if the sequence is a pair of texts.
    pub second: Option<usize>,
    /// The adapters of its sequence.
    pub adapters: AdapterScales,
    /// The images of its sequence.
    pub images: Images,
}

/// A requested row.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Output {
    /// Index into the step's tokens.
    pub row: usize,
    /// Sample a token from it.
    pub sample: Option<Sample>,
    /// Return the whole row.
    pub logits: bool,
}

/// The results of a step.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct StepOutput {
    /// One per output of the step, in order.
    pub rows: Vec<OutputRow>,
}

/// The result of one requested row.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct OutputRow {
    /// The sampled token, if requested; `None` also if a logit was not finite or no token was allowed.
    pub sampled: Option<Sampled>,
    /// The whole row, if requested.
    pub logits: Option<Vec<f32>>,
}

impl Slice {
    /// Tokens of a sequence all of whose layers have the same pages.
    pub fn new(len: usize, position: usize, pages: impl Into<PageTable>) -> Slice {
        Slice { len, position, pages: pages.into(), ..Slice::default() }
    }

    /// Positions of its tokens.
    pub fn positions(&self) -> Range<usize> {
        self.position..self.position + self.len
    }

    /// The type of the token at a position: 1 in the second text of a pair, 0 otherwise.
    pub fn type_at(&self, position: usize) -> usize {
        usize::from(self.second.is_some_and(|second| position >= second))
    }

    /// The page table of layers that have the window's (`KvSpec::window`), or of the others.
    pub fn table(&self, windowed: bool) -> &PageTable {
        if windowed { &self.window_pages } else { &self.pages }
    }
}

impl Step {
    /// One sequence's tokens from `position` on, with the logits of every row.
    pub fn all_logits(tokens: &[u32], position: usize, pages: impl Into<PageTable>) -> Step {
        Step {
            tokens: tokens.to_vec(),
            slices: vec![Slice::new(tokens.len(), position, pages)],
            outputs: (0..tokens.len()).map(|row| Output { row, sample: None, logits: true }).collect(),
            ..Step::default()
        }
    }

    /// Position of every token in its sequence.
    pub fn positions(&self) -> impl Iterator<Item = usize> {
        self.slices.iter().flat_map(Slice::positions)
    }

    /// The adapters of each row: of the step's outputs, or of its tokens.
    pub fn row_adapters(&self, outputs_only: bool) -> Vec<&AdapterScales> {
        let tokens = self.slices.iter().flat_map(|s| std::iter::repeat_n(&s.adapters, s.len));
        let tokens: Vec<_> = tokens.collect();
        if outputs_only { self.outputs.iter().map(|o| tokens[o.row]).collect() } else { tokens }
    }

    /// Whether a sequence of the step uses an adapter.
    pub fn has_adapters(&self) -> bool {
        self.slices.iter().any(|s| !s.adapters.is_empty())
    }

    /// Type of every token: 1 in the second text of a pair, 0 otherwise.
    pub fn types(&self) -> impl Iterator<Item = usize> {
        self.slices.iter().flat_map(|s| s.positions().map(|p| s.type_at(p)))
    }

    /// Refuses a step that does not fit its graph: token ids, slices, pages, state slots and rows all in
    /// range. `state_slots` is the number of reserved slots, `None` if the graph has no recurrent layers.
    pub fn check(&self, vocab: usize, kv: KvSize, state_slots: Option<usize>) -> Result<()> {
        let fail = |text: String| Err(BackendError::Invalid(text));
        if self.tokens.is_empty() {
            return fail("a step has no tokens".into());
        }
        if let Some(id) = self.tokens.iter().find(|&&id| id as usize >= vocab) {
            return fail(format!("token id {id} is outside the vocabulary of {vocab}"));
        }
        let covered: usize = self.slices.iter().map(|s| s.len).sum();
        if covered != self.tokens.len() {
            return fail(format!("slices cover {covered} of {} tokens", self.tokens.len()));
        }
        let tables = [(false, "pages", Some(kv.pages)), (true, "window pages", kv.window_pages)];
        let tables = tables.iter().flat_map(|(windowed, name, pages)| {
            pages.iter().flat_map(move |pages| self.slices.iter().map(move |s| (s, *windowed, *name, *pages)))
        });
        for (s, windowed, name, pages) in tables {
            let (table, page_len) = (s.table(windowed), kv.page_len);
            if page_len > 0 && table.len() * page_len < s.position + s.len {
                let (has, last) = (table.len(), s.position + s.len - 1);
                return fail(format!("{has} {name} of {page_len} do not hold position {last}"));
            }
            if let Some(p) = table.iter().find(|&&p| p as usize >= pages) {
                let of = if windowed { " for windows" } else { "" };
                return fail(format!("page {p} is outside the {pages} reserved{of}"));
            }
        }
        check_slots(&self.slices, state_slots)?;
        if let Some(o) = self.outputs.iter().find(|o| o.row >= self.tokens.len()) {
            return fail(format!("output row {} of {} tokens", o.row, self.tokens.len()));
        }
        match self.carried.iter().find(|c| c.token >= self.tokens.len()) {
            Some(c) => fail(format!("carried token {} of {} tokens", c.token, self.tokens.len())),
            None => Ok(()),
        }
    }

    /// Refuses sequences that the graph cannot read.
    pub fn check_sequences(&self, rules: SequenceRules) -> Result<()> {
        let fail = |text: String| Err(BackendError::Invalid(text));
        let last = self.slices.iter().map(|s| s.position + s.len).max().unwrap_or(0);
        if let Some(rows) = rules.positions.filter(|rows| last > *rows) {
            return fail(format!("position {} is outside the {rows} of the model", last - 1));
        }
        let used = self.slices.iter().map(|s| s.adapters.scales().len()).max().unwrap_or(0);
        if used > rules.adapters {
            return fail(format!("adapter {} is outside the {} of the program", used - 1, rules.adapters));
        }
        match self.slices.iter().find(|s| rules.whole && s.position > 0) {
            Some(s) => fail(format!("a slice begins at position {}: sequences must be whole", s.position)),
            None => Ok(()),
        }
    }

    /// Refuses images whose rows the graph does not read whole ([`crate::Graph::image_width`]).
    pub fn check_images(&self, width: usize) -> Result<()> {
        let fail = |text: String| Err(BackendError::Invalid(text));
        for image in self.slices.iter().flat_map(|s| s.images.iter()).filter(|i| i.rows.width > 0) {
            let rows = &image.rows;
            if rows.width != width {
                return fail(format!(
                    "rows of an image have {} columns, the graph reads {width}",
                    rows.width
                ));
            }
            if rows.values.len() != rows.len * rows.width {
                let (len, values) = (rows.len, rows.values.len());
                return fail(format!("an image of {len} rows of {width} columns has {values} values"));
            }
        }
        Ok(())
    }

    /// Refuses to carry over what the step before does not sample; `sampled` tells which of its outputs do,
    /// and is empty if there was no step before.
    pub fn check_carried(&self, sampled: &[bool]) -> Result<()> {
        let fail = |text: String| Err(BackendError::Invalid(text));
        for c in &self.carried {
            match sampled.get(c.output) {
                Some(true) => {}
                Some(false) => {
                    return fail(format!("output {} of the step before samples no token", c.output));
                }
                None => {
                    let outputs = sampled.len();
                    return fail(format!("output {} of the step before, which has {outputs}", c.output));
                }
            }
        }
        Ok(())
    }

    /// Refuses a step whose input rows do not have these columns ([`crate::Graph::input_widths`]).
    pub fn check_inputs(&self, widths: &[usize]) -> Result<()> {
        let tokens = self.tokens.len();
        let sizes = self.inputs.iter().map(Vec::len);
        if sizes.eq(widths.iter().map(|width| width * tokens)) {
            return Ok(());
        }
        let (want, got) = (widths.len(), self.inputs.iter().map(Vec::len).collect::<Vec<_>>());
        Err(BackendError::Invalid(format!(
            "a step of {tokens} tokens: want {want} inputs of {widths:?} columns, got {got:?} values"
        )))
    }

    /// Refuses a step that is larger than its program was compiled for.
    pub fn check_size(&self, max_tokens: usize, max_outputs: usize) -> Result<()> {
        let (tokens, outputs) = (self.tokens.len(), self.outputs.len());
        if tokens > max_tokens || outputs > max_outputs {
            return Err(BackendError::Invalid(format!(
                "a step of {tokens} tokens and {outputs} outputs, compiled for {max_tokens} and {max_outputs}"
            )));
        }
        Ok(())
    }

    /// Turns rows of logits into the requested results.
    pub fn answer<'a>(&self, logits: impl Iterator<Item = &'a [f32]>) -> StepOutput {
        let rows = self.outputs.iter().zip(logits).map(|(o, row)| OutputRow {
            sampled: o.sample.as_ref().and_then(|s| s.pick(row)),
            logits: o.logits.then(|| row.to_vec()),
        });
        StepOutput { rows: rows.collect() }
    }
}
