//! What the kernels of a model are compiled for.

use super::attention_shape::AttentionShape;
use crate::driver::Define;
use crate::shared::LinearArgs;
use crate::weights::Layout;

/// Formats and shapes, in the order of their indices in the kernels.
#[derive(Clone, Debug, Default)]
pub(crate) struct KernelConfig {
    pub(crate) formats: Vec<Layout>,
    pub(crate) attentions: Vec<AttentionShape>,
    /// Tokens of a KV page; 0 without attention.
    pub(crate) page_len: usize,
}

impl KernelConfig {
    /// Whether a format has offsets, so that sums of x are needed.
    pub(crate) fn offset_sums(&self) -> bool {
        self.formats.iter().any(|f| f.offsets)
    }

    /// Floats of sums of x per chunk that a step of one token needs: of 16 columns for offsets, of a chunk
    /// for codes that are stored with an offset.
    pub(crate) fn sums_of_x(&self) -> usize {
        if self.offset_sums() { 8 } else { usize::from(self.formats.iter().any(Layout::is_raised)) }
    }

    /// Whether a part of a linear is of halves.
    pub(crate) fn has_halves(&self, l: &LinearArgs) -> bool {
        l.used_parts().iter().any(|p| self.formats[p.format as usize].is_halves())
    }

    /// Whether a linear is of codes that few tokens are multiplied with in their places
    /// (`kernels/weights/placed.cuh`).
    pub(crate) fn has_placed(&self, l: &LinearArgs) -> bool {
        l.used_parts().iter().all(|p| self.formats[p.format as usize].is_placed())
    }

    /// The definitions that kernels are compiled with.
    pub(crate) fn defines(&self) -> Vec<Define> {
        let formats = self.formats.iter().enumerate().map(|(i, f)| format_text(i, f));
        vec![
            ("FORMATS(X)", formats.collect::<Vec<_>>().join(" ")),
            ("PAGE_LEN", self.page_len.max(1).to_string()),
            ("OFFSET_SUMS", self.offset_sums().to_string()),
        ]
    }

    /// The definitions of a kernel for linears of one format.
    pub(crate) fn linear_defines(&self, format: usize) -> Vec<Define> {
        vec![("FORMATS(X)", format_text(0, &self.formats[format])), ("FORMAT", "0".into())]
    }
}

fn format_text(index: usize, f: &Layout) -> String {
    format!("X({index}, {}, {}, {}, {}, {})", f.bits, f.low, f.group, f.offsets, f.bytes())
}

/// The index of an item in a list; appends it if it is missing.
pub(crate) fn intern<T: PartialEq>(list: &mut Vec<T>, item: T) -> i32 {
    let index = list.iter().position(|t| *t == item);
    index.unwrap_or_else(|| {
        list.push(item);
        list.len() - 1
    }) as i32
}
