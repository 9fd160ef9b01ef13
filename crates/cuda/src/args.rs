//! The arguments of the kernels: the same fields, in the same order, as the structs of their names in `kernels/`.
//! Pointers are addresses on the device; 0 is nothing.

#[repr(C)]
pub(crate) struct ArgmaxArgs {
    pub(crate) logits: u64,
    pub(crate) best: u64,
    pub(crate) width: i32,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct LinearArgs {
    pub(crate) codes: u64,
    pub(crate) high: u64,
    pub(crate) scales: u64,
    pub(crate) offsets: u64,
    pub(crate) x: u64,
    pub(crate) bias: u64,
    pub(crate) factor: u64,
    pub(crate) y: u64,
    pub(crate) weight_factor: f32,
    pub(crate) tokens: i32,
    pub(crate) cols: i32,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct LinearFloatArgs {
    pub(crate) w: u64,
    pub(crate) x: u64,
    pub(crate) bias: u64,
    pub(crate) factor: u64,
    pub(crate) y: u64,
    pub(crate) rows: i32,
    pub(crate) cols: i32,
    pub(crate) tokens: i32,
    pub(crate) kind: i32,
}

#[repr(C)]
pub(crate) struct EmbedArgs {
    pub(crate) codes: u64,
    pub(crate) high: u64,
    pub(crate) scales: u64,
    pub(crate) offsets: u64,
    pub(crate) inputs: u64,
    pub(crate) y: u64,
    pub(crate) factor: f32,
    pub(crate) cols: i32,
}

#[repr(C)]
pub(crate) struct EmbedFloatArgs {
    pub(crate) table: u64,
    pub(crate) inputs: u64,
    pub(crate) y: u64,
    pub(crate) factor: f32,
    pub(crate) cols: i32,
    pub(crate) kind: i32,
}

#[repr(C)]
pub(crate) struct NormArgs {
    pub(crate) x: u64,
    pub(crate) weight: u64,
    pub(crate) bias: u64,
    pub(crate) y: u64,
    pub(crate) eps: f32,
    pub(crate) group: i32,
    pub(crate) layer: i32,
}

#[repr(C)]
pub(crate) struct RopeArgs {
    pub(crate) x: u64,
    pub(crate) freqs: u64,
    pub(crate) inputs: u64,
    pub(crate) y: u64,
    pub(crate) magnitude: f32,
    pub(crate) width: i32,
    pub(crate) head_dim: i32,
    pub(crate) pairs: i32,
    pub(crate) interleaved: i32,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct ElementArgs {
    pub(crate) a: u64,
    pub(crate) b: u64,
    pub(crate) y: u64,
    pub(crate) count: i64,
    pub(crate) by: f32,
    pub(crate) what: i32,
}

#[repr(C)]
pub(crate) struct ColumnsArgs {
    pub(crate) x: u64,
    pub(crate) y: u64,
    pub(crate) width: i32,
    pub(crate) start: i32,
    pub(crate) len: i32,
}

#[repr(C)]
pub(crate) struct OutputsArgs {
    pub(crate) x: u64,
    pub(crate) inputs: u64,
    pub(crate) y: u64,
    pub(crate) width: i32,
}

#[repr(C)]
pub(crate) struct AttendArgs {
    pub(crate) q: u64,
    pub(crate) k: u64,
    pub(crate) v: u64,
    pub(crate) inputs: u64,
    pub(crate) keys: u64,
    pub(crate) values: u64,
    pub(crate) y: u64,
    pub(crate) scale: f32,
    pub(crate) softcap: f32,
    pub(crate) heads: i32,
    pub(crate) kv_heads: i32,
    pub(crate) head_dim: i32,
    pub(crate) v_dim: i32,
    pub(crate) page_len: i32,
    pub(crate) window: i32,
}
