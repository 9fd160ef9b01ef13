//! Rotations by the three parts of a position: along the sequence, and the row and the column in an image.

use tern_graph::RopeTable;

use crate::{Build, ModelError};

/// What turns the pairs that are left after the sections of interleaved parts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Leftover {
    /// Nothing: a fourth part, which is always 0.
    Still,
    /// The place along the sequence.
    Sequence,
}

/// The key of the sizes of sections, in pairs.
const KEY: &str = "rope.dimension_sections";

impl Build<'_> {
    /// The table with sections whose parts take turns: sequence, row, column, sequence, ...
    pub(crate) fn sections(&mut self, table: usize, leftover: Leftover) -> Result<usize, ModelError> {
        let (sections, total) = self.section_sizes()?;
        let RopeTable { mut freqs, magnitude, .. } = self.graph.ropes[table].clone();
        if leftover == Leftover::Still {
            for (i, freq) in freqs.iter_mut().enumerate() {
                let sector = i % total;
                if sector >= sections[sector % 3].saturating_mul(3) {
                    *freq = 0.0;
                }
            }
        }
        let ends = [0, 1, 2].map(|part| sections[part].saturating_mul(3));
        let part = |i: usize| if !i.is_multiple_of(3) && i < ends[i % 3] { (i % 3) as u8 } else { 0 };
        let parts = if self.sees { (0..freqs.len()).map(part).collect() } else { vec![] };
        Ok(self.graph.rope_table(RopeTable { freqs, magnitude, parts }))
    }

    /// The table with one section after the other.
    pub(crate) fn sections_in_order(&mut self, table: usize) -> Result<usize, ModelError> {
        let (sections, _) = self.section_sizes()?;
        let RopeTable { freqs, magnitude, .. } = self.graph.ropes[table].clone();
        let ends = [sections[0], sections[0].saturating_add(sections[1])];
        let part = |i: usize| ends.iter().filter(|end| i >= **end).count() as u8;
        let parts = if self.sees { (0..freqs.len()).map(part).collect() } else { vec![] };
        Ok(self.graph.rope_table(RopeTable { freqs, magnitude, parts }))
    }

    /// Three sizes or more, and the sum of the first four.
    fn section_sizes(&self) -> Result<(Vec<usize>, usize), ModelError> {
        let sections = self.keys().usizes(KEY)?.ok_or_else(|| self.missing(KEY))?;
        let total: usize = sections.iter().take(4).fold(0, |sum, s| sum.saturating_add(*s));
        if sections.len() < 3 || total == 0 {
            return Err(ModelError::value(self.keys().key(KEY), format!("{sections:?}"), "four sizes"));
        }
        Ok((sections, total))
    }
}
