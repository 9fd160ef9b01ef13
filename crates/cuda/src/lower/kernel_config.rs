//! What the kernels of a model are compiled for.

use super::attention_shape::AttentionShape;
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

    /// The definitions that kernels are compiled with.
    pub(crate) fn defines(&self) -> Vec<(&'static str, String)> {
        let formats = self.formats.iter().enumerate().map(|(i, f)| {
            format!("X({i}, {}, {}, {}, {}, {})", f.bits, f.low, f.group, f.offsets, f.bytes())
        });
        let fused = self.attentions.iter().enumerate().filter(|(_, shape)| shape.fits_fused_step());
        let attentions = fused.map(|(i, shape)| shape.c_text(i));
        vec![
            ("FORMATS(X)", formats.collect::<Vec<_>>().join(" ")),
            ("ATTENTIONS(X)", attentions.collect::<Vec<_>>().join(" ")),
            ("PAGE_LEN", self.page_len.max(1).to_string()),
            ("OFFSET_SUMS", self.offset_sums().to_string()),
        ]
    }
}

/// The index of an item in a list; appends it if it is missing.
pub(crate) fn intern<T: PartialEq>(list: &mut Vec<T>, item: T) -> i32 {
    let index = list.iter().position(|t| *t == item);
    index.unwrap_or_else(|| {
        list.push(item);
        list.len() - 1
    }) as i32
}
