//! The products of a warpgroup in C: an instruction names every register of its sums, so
//! the text is written here.

use std::fmt::Write;

/// `Wgmma<tokens>`: 64 rows of halves in registers times `tokens` columns in shared memory, for GPUs that
/// have it; kernels include it as `host/wgmma.cuh`.
pub(crate) fn wgmma_text(tokens: usize) -> String {
    let sums = tokens / 2;
    let list = |item: &dyn Fn(usize) -> String, of: usize| (0..of).map(item).collect::<Vec<_>>().join(", ");
    let registers = list(&|i| format!("%{i}"), sums);
    let rows = list(&|i| format!("%{}", sums + i), 4);
    let outputs = list(&|i| format!("\"+f\"(d[{i}])"), sums);
    let inputs = list(&|i| format!("\"r\"(a[{i}])"), 4);
    let mut text = String::from("#include \"base/ptx.cuh\"\n#if HAS_WGMMA\n");
    let _ = writeln!(text, "template <> struct Wgmma<{tokens}> {{");
    let _ = writeln!(
        text,
        "    static DEVICE void multiply(float (&d)[{sums}], const u32 (&a)[4], u64 b) {{
        asm volatile(\"{{ .reg .pred p; setp.eq.u32 p, 1, 1; wgmma.mma_async.sync.aligned.m64n{tokens}k16.f32.f16.f16 \"
                     \"{{{registers}}}, {{{rows}}}, %{}, p, 1, 1, 0; }}\"
                     : {outputs} : {inputs}, \"l\"(b));
    }}
}};
#endif",
        sums + 4
    );
    text
}
