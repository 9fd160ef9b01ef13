//! What the host and the kernels share, written once: constants, enums and argument structs, as Rust items
//! and as the C text ([`header`]) that every kernel source is compiled with.
//!
//! Argument structs are [`bytemuck::Pod`]: a struct with padding does not compile. The C text
//! asserts the size of each struct and the offset of each field, so that NVRTC refuses a kernel
//! whose structs differ from the host's.

mod c_text;
mod constants;
mod launches;
mod phase_args;
mod phases;
mod sampling;
mod wgmma;

pub(crate) use c_text::{KernelArgs, c_sizes};
pub(crate) use constants::*;
pub(crate) use launches::*;
pub(crate) use phase_args::*;
pub(crate) use phases::*;
pub(crate) use sampling::*;
pub(crate) use wgmma::wgmma_text;

/// The C text of everything shared, which kernels include as `host/shared.cuh`.
pub(crate) fn header() -> String {
    let parts = [constants::c_text(), phase_args::c_text(), phases::c_text()];
    let types = "#include \"base/ptx.cuh\"\n".to_string(); // of integers
    [types, parts.concat(), launches::c_text(), sampling::c_text()].concat()
}

#[cfg(test)]
mod tests {
    use super::c_text::Shared;
    use super::*;

    #[test]
    fn a_struct_in_c_asserts_its_size_and_its_offsets() {
        let text = "struct OutputsArgs {
    View x;
    View y;
    int width;
    int mean;
};
static_assert(sizeof(OutputsArgs) == 56, \"OutputsArgs has 56 bytes on the host\");
static_assert(OFFSET_OF(OutputsArgs, x) == 0, \"OutputsArgs.x is at 0 on the host\");
static_assert(OFFSET_OF(OutputsArgs, y) == 24, \"OutputsArgs.y is at 24 on the host\");
static_assert(OFFSET_OF(OutputsArgs, width) == 48, \"OutputsArgs.width is at 48 on the host\");
static_assert(OFFSET_OF(OutputsArgs, mean) == 52, \"OutputsArgs.mean is at 52 on the host\");
";
        assert!(header().contains(text));
    }

    #[test]
    fn pointers_arrays_and_enums_are_declared_as_in_c() {
        assert_eq!(<[*const f32; 4]>::declare("freqs"), "const float *freqs[4]");
        assert_eq!(<*mut ()>::declare("to"), "void *to");
        let header = header();
        assert!(header.contains("enum FloatKind { F32 = 0, F16 = 1, BF16 = 2 };\n"));
        assert!(header.contains("    WARPS = 16,\n    THREADS = 512,\n"));
        // every struct has its size asserted, and so has the union of a phase
        assert_eq!(header.matches("struct ").count(), header.matches("sizeof(").count());
    }

    #[test]
    fn sizes_are_constants_of_a_struct() {
        let text = c_sizes(&[("ROW_WARPS", 8), ("STAGE", 3072)]);
        assert_eq!(
            text,
            "struct Sizes {
    enum : int {
        ROW_WARPS = 8,
        STAGE = 3072,
    };
};
"
        );
    }

    #[test]
    fn a_phase_holds_its_arguments_behind_its_head() {
        let args = OutputsArgs { width: 7, ..OutputsArgs::default() };
        let raw = Phase::Outputs(args).raw(3, 5);
        let words: &[i32] = bytemuck::cast_slice(bytemuck::bytes_of(&raw));
        assert_eq!(words[..4], [5, 3, 5, 0]);
        assert_eq!((words[4 + 12], words[4 + 13..].iter().all(|w| *w == 0)), (7, true));
        assert_eq!(size_of::<RawPhase>() % 16, 0);
    }
}
