//! Kernels for x86, by instruction set.

pub(crate) mod amx;
pub(crate) mod avx2;
pub(crate) mod avx512;
pub(crate) mod floats;

#[cfg(test)]
mod tests {
    use tern_graph::{Random, cases};
    use tern_quant::INT_BLOCK;

    use super::*;
    use crate::activations::quantized_rows::{QuantizedRows, QuantizedRowsBuffer, Rounding, quantize};
    use crate::dot::tests::assert_lists_all;
    use crate::dot::{LinearKernel, PackedDot, Rows, Target, Workspace};
    use crate::memory::lines::Line;
    use crate::memory::shared::Shared;

    const ROWS: usize = 11;
    const COLS: usize = 768;

    /// `[ROWS]` results of one token.
    fn run(kernel: LinearKernel, rows: &Rows<'_>, x: &QuantizedRows<'_>) -> Vec<f32> {
        let (out, mut workspace) = (Shared::new(ROWS).unwrap(), Workspace::default());
        match kernel {
            LinearKernel::Integer(kernel) => {
                // SAFETY: one thread.
                (kernel.few)(rows, x, &mut workspace, unsafe { out.get_mut(0..ROWS) });
            }
            LinearKernel::Packed(kernel) => {
                let mut panel = vec![Line::default(); (kernel.lines)(COLS)];
                (kernel.pack)(rows, COLS, &mut panel);
                let to = Target { out: &out, rows: None, stride: ROWS, first: 0, scale: 1.0, bias: None };
                let PackedDot::Integers { few, .. } = kernel.dot else {
                    panic!("{} has no integers", rows.quant)
                };
                few(&panel, ROWS, x, &mut workspace.packed, &to);
            }
            LinearKernel::F32(_) => panic!("{} has no integers", rows.quant),
        }
        // SAFETY: one thread.
        unsafe { out.get(0..ROWS) }.to_vec()
    }

    #[test]
    fn every_format_has_a_kernel() {
        assert_lists_all(avx2::KERNELS, &[]);
        assert_lists_all(avx512::KERNELS, &[]);
    }

    /// The path of formats that are in no kernel list, of which there may be none.
    #[test]
    fn every_format_runs_the_general_kernel() {
        let names: Vec<_> = crate::available().iter().map(|k| k.name).collect();
        let general = [("avx2", avx2::general_kernel()), ("avx512", avx512::general_kernel::<false>())];
        let rng = &mut Random::new(3);
        let buffer = QuantizedRowsBuffer::new(COLS).unwrap();
        // SAFETY: one thread.
        let x = unsafe {
            let rounding = Rounding { span: INT_BLOCK, low: 8 };
            quantize(&rng.normals(COLS, 1.0), rounding, buffer.part(COLS, 0, 0, COLS));
            buffer.view(1, COLS, 8)
        };
        for quant in tern_quant::ALL.iter().filter(|q| q.codes().is_some()) {
            let w = cases::random_tensor("w", quant, ROWS, COLS, rng).unwrap();
            let (blocks, tail) = w.data().split_at(w.data().len() - quant.tail);
            let rows = Rows { quant, count: ROWS, blocks, tail };
            let want = run(crate::dot::portable::scalar::kernel(quant).unwrap(), &rows, &x);
            for (name, kernel) in general.into_iter().filter(|(name, _)| names.contains(name)) {
                let off = cases::distance(&run(kernel, &rows, &x), &want);
                assert!(off <= 4e-6, "{name}: {quant}: {off} from scalar");
            }
        }
    }
}
