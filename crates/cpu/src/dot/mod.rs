//! Linear kernels: products of rows of weights with the activations of tokens, by instruction set and format.

/// Trait methods that are one or two instructions, one line each.
macro_rules! instructions {
    ($($name:ident($($arg:ident: $type:ty),*) -> $out:ty = $call:expr;)*) => {
        $(#[inline(always)]
        unsafe fn $name($($arg: $type),*) -> $out {
            // SAFETY: the contract of the trait.
            unsafe { $call }
        })*
    };
}

#[cfg(target_arch = "aarch64")]
#[warn(dead_code)]
pub(crate) mod neon;
pub(crate) mod portable;
#[cfg(target_arch = "x86_64")]
pub(crate) mod x86;

pub(crate) use portable::packed::{PANELS, Packed, PackedDot, PackedKernel, PackedWorkspace};

use tern_graph::Val;
use tern_quant::{Codec, Quant};

use crate::activations::quantized_rows::QuantizedRows;
use crate::activations::token_tiles::TokenTiles;
use crate::memory::shared::Shared;

/// Rows of weights that share a pass over the activations.
pub(crate) const ROWS: usize = 4;
/// Rows given to a kernel at once.
pub(crate) const PANEL: usize = 16;

/// `out[r][t] = row[r] . x[t]`, for the given rows and as many tokens as fit `out`.
///
/// A result does not depend on the other rows and tokens of a call, so batching never changes a text.
#[derive(Clone, Copy)]
pub(crate) enum LinearKernel {
    /// Integer codes times quantized activations.
    Integer(IntegerKernel),
    /// Packed weights times quantized or f32 activations.
    Packed(PackedKernel),
    /// Floats times f32 activations, `cols` per token; all tokens.
    F32(fn(rows: &Rows<'_>, x: &[f32], workspace: &mut Workspace, to: &Target<'_>)),
}

impl LinearKernel {
    /// Whether it reads tiles of tokens.
    pub(crate) fn has_tiles(self) -> bool {
        match self {
            LinearKernel::Integer(kernel) => kernel.many.is_some(),
            LinearKernel::Packed(kernel) => matches!(kernel.dot, PackedDot::Integers { many: Some(_), .. }),
            LinearKernel::F32(_) => false,
        }
    }

    /// Whether it reads activations as they are.
    pub(crate) fn reads_floats(self) -> bool {
        match self {
            LinearKernel::Integer(_) => false,
            LinearKernel::Packed(kernel) => matches!(kernel.dot, PackedDot::Floats(_)),
            LinearKernel::F32(_) => true,
        }
    }
}

/// The kernels of an instruction set: one entry per format that does not run the general kernel.
pub(crate) type KernelList = [(&'static Quant, LinearKernel)];

/// The kernel of a format in a list, or the general one for its codes or floats; `None` if
/// the format cannot be run.
fn kernel_of(list: &KernelList, general: LinearKernel, quant: &'static Quant) -> Option<LinearKernel> {
    let own = list.iter().find(|(listed, _)| *listed == quant).map(|(_, kernel)| *kernel);
    own.or(match quant.codec {
        Codec::Codes(_) => Some(general),
        Codec::Float(_) => Some(portable::scalar::GENERAL_FLOATS),
        Codec::Named => None,
    })
}

/// A format's product with few tokens and, if the instruction set has tiles of tokens,
/// with many: the same bits.
#[derive(Clone, Copy)]
pub(crate) struct IntegerKernel {
    pub(crate) few: fn(rows: &Rows<'_>, x: &QuantizedRows<'_>, workspace: &mut Workspace, out: &mut [f32]),
    pub(crate) many:
        Option<fn(rows: &Rows<'_>, x: &TokenTiles<'_>, workspace: &mut Workspace, to: &Target<'_>)>,
}

/// A thread's memory for unpacked rows.
#[derive(Default)]
pub(crate) struct Workspace {
    pub(crate) packed: PackedWorkspace,
    floats: portable::floats::FloatsWorkspace,
    /// What `packed` may have cached: a value, and the number of the rows gathered from it, 0 for all.
    source: Option<(Val, usize)>,
    #[cfg(target_arch = "x86_64")]
    avx2: x86::avx2::Workspace,
}

impl Workspace {
    /// Sets what the next products read: a value, and the number of the rows gathered from it, 0 for all.
    /// `None` at the start of a step, when all values are new.
    pub(crate) fn reads(&mut self, source: Option<(Val, usize)>) {
        if source.is_none() || source != self.source {
            (self.packed.has_tables, self.packed.has_x) = (false, false);
        }
        self.source = source;
    }
}

/// Destination of the results of some rows: `out[t * stride + first + r] = y * scale + bias[r]`
pub(crate) struct Target<'a> {
    pub(crate) out: &'a Shared<f32>,
    /// The `t` of each token, if they are not 0, 1, 2 and so on.
    pub(crate) rows: Option<&'a [u32]>,
    pub(crate) stride: usize,
    pub(crate) first: usize,
    pub(crate) scale: f32,
    /// Bias of the rows from `first` on.
    pub(crate) bias: Option<&'a [f32]>,
}

impl<'b> Target<'b> {
    /// The target of the rows after the next `rows`.
    #[inline(always)]
    pub(crate) fn skip(&self, rows: usize) -> Target<'b> {
        Target { first: self.first + rows, bias: self.bias.map(|b| &b[rows..]), ..*self }
    }

    /// Writes the results of one token, in the order of the rows.
    ///
    /// # Safety
    /// No other thread accesses these rows before the next barrier.
    #[inline(always)]
    pub(crate) unsafe fn write<'a>(&self, token: usize, results: impl ExactSizeIterator<Item = &'a f32>) {
        let at = self.rows.map_or(token, |rows| rows[token] as usize) * self.stride + self.first;
        // SAFETY: the contract of this function.
        let out = unsafe { self.out.get_mut(at..at + results.len()) };
        // loops, since closures would not be compiled for the caller's instruction set
        if let Some(bias) = self.bias {
            for (o, (y, b)) in out.iter_mut().zip(results.zip(bias)) {
                *o = y * self.scale + b;
            }
        } else {
            for (o, y) in out.iter_mut().zip(results) {
                *o = y * self.scale;
            }
        }
    }
}

/// Consecutive rows of blocks.
pub(crate) struct Rows<'a> {
    pub(crate) quant: &'static Quant,
    pub(crate) count: usize,
    pub(crate) blocks: &'a [u8],
    pub(crate) tail: &'a [u8],
}

impl Rows<'_> {
    /// The bytes of each row.
    fn each(&self) -> impl Iterator<Item = &[u8]> {
        self.blocks.chunks_exact(self.blocks.len() / self.count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every format is either in the list or in `general`, whose formats run the general kernel.
    pub(super) fn assert_lists_all(list: &KernelList, general: &[&Quant]) {
        for quant in tern_quant::ALL.iter().filter(|q| q.is_runnable()) {
            let entries = list.iter().filter(|(listed, _)| listed == quant).count();
            assert_eq!(entries + usize::from(general.contains(quant)), 1, "{quant}");
        }
        assert!(list.iter().all(|(quant, _)| tern_quant::ALL.contains(quant)));
        // the general kernels have no short activations
        assert!(general.iter().all(|q| q.codes().is_none_or(|codes| codes.activation_bits == 16)));
    }
}
