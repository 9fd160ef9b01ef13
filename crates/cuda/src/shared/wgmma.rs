//! The products of a warpgroup in C: an instruction names every register of its sums, so
//! the text is written here.

/// `Wgmma<tokens>` and `WgmmaBytes<tokens>`: 64 rows of halves or bytes in registers times `tokens` columns
/// in shared memory, for GPUs that have it; kernels include it as `host/wgmma.cuh`.
pub(crate) fn wgmma_text(tokens: usize) -> String {
    let [halves, bytes] = [HALVES, BYTES].map(|products| products.text(tokens));
    format!("#include \"base/ptx.cuh\"\n#if HAS_WGMMA\n{halves}{bytes}#endif\n")
}

/// One kind of products.
struct Products {
    name: &'static str,
    /// The type of sums in C, and their constraint.
    sums: (&'static str, char),
    /// Columns of an instruction, and its types.
    instruction: (usize, &'static str),
    /// What follows the predicate: signs and the order of columns, of floats.
    options: &'static str,
}

const HALVES: Products =
    Products { name: "Wgmma", sums: ("float", 'f'), instruction: (16, "f32.f16.f16"), options: ", 1, 1, 0" };

const BYTES: Products =
    Products { name: "WgmmaBytes", sums: ("int", 'r'), instruction: (32, "s32.s8.s8"), options: "" };

impl Products {
    fn text(&self, tokens: usize) -> String {
        let Products { name, sums: (of, constraint), instruction: (columns, types), options } = self;
        let sums = tokens / 2;
        let list =
            |item: &dyn Fn(usize) -> String, of: usize| (0..of).map(item).collect::<Vec<_>>().join(", ");
        let registers = list(&|i| format!("%{i}"), sums);
        let rows = list(&|i| format!("%{}", sums + i), 4);
        let outputs = list(&|i| format!("\"+{constraint}\"(d[{i}])"), sums);
        let inputs = list(&|i| format!("\"r\"(a[{i}])"), 4);
        format!(
            "template <> struct {name}<{tokens}> {{
    static DEVICE void multiply({of} (&d)[{sums}], const u32 (&a)[4], u64 b) {{
        asm volatile(\"{{ .reg .pred p; setp.eq.u32 p, 1, 1; wgmma.mma_async.sync.aligned.m64n{tokens}k{columns}.{types} \"
                     \"{{{registers}}}, {{{rows}}}, %{}, p{options}; }}\"
                     : {outputs} : {inputs}, \"l\"(b));
    }}
}};
",
            sums + 4
        )
    }
}
