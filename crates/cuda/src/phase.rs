//! The arguments of phases: the same structs, in the same order, as in `kernels/phase.cuh`. Pointers are addresses on
//! the device; 0 is nothing.

/// The rows of a value: row `r` begins `r * stride` floats on.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct View {
    pub(crate) at: u64,
    pub(crate) stride: i64,
    /// 1 where floats carry marks.
    pub(crate) mask: u32,
    pub(crate) pad: u32,
}

#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct NormArgs {
    pub(crate) weight: u64,
    pub(crate) bias: u64,
    pub(crate) eps: f32,
    /// 0 is none, 1 root mean square, 2 layer.
    pub(crate) kind: i32,
}

#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Part {
    pub(crate) records: u64,
    pub(crate) bias: u64,
    pub(crate) scale: u64,
    pub(crate) y: u64,
    pub(crate) y_stride: i32,
    pub(crate) rows: i32,
    pub(crate) tiles: i32,
    pub(crate) format: i32,
    pub(crate) bytes: i32,
    pub(crate) factor: f32,
    pub(crate) y_mask: u32,
    pub(crate) pad: i32,
}

#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct LinearArgs {
    pub(crate) x: View,
    pub(crate) add: View,
    pub(crate) norm: NormArgs,
    pub(crate) cols: i32,
    pub(crate) chunks: i32,
    pub(crate) parts: i32,
    pub(crate) gated: i32,
    pub(crate) outputs_only: i32,
    pub(crate) gather: i32,
    pub(crate) signs: i32,
    pub(crate) pad: i32,
    pub(crate) part: [Part; 3],
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct FloatLinearArgs {
    pub(crate) w: u64,
    pub(crate) x: View,
    pub(crate) bias: u64,
    pub(crate) scale: u64,
    pub(crate) y: View,
    pub(crate) rows: i32,
    pub(crate) cols: i32,
    pub(crate) kind: i32,
    pub(crate) outputs_only: i32,
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct EmbedArgs {
    pub(crate) table: u64,
    pub(crate) y: View,
    pub(crate) chosen: u64,
    pub(crate) factor: f32,
    pub(crate) cols: i32,
    pub(crate) chunks: i32,
    /// Of codes, or -1 less the kind of floats.
    pub(crate) format: i32,
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct RowNormArgs {
    pub(crate) x: View,
    pub(crate) y: View,
    pub(crate) norm: NormArgs,
    pub(crate) group: i32,
    pub(crate) width: i32,
    pub(crate) outputs_only: i32,
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct RopeArgs {
    pub(crate) x: View,
    pub(crate) y: View,
    pub(crate) freqs: u64,
    pub(crate) magnitude: f32,
    pub(crate) width: i32,
    pub(crate) head_dim: i32,
    pub(crate) pairs: i32,
    pub(crate) interleaved: i32,
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct ElementArgs {
    pub(crate) a: View,
    pub(crate) b: View,
    pub(crate) y: View,
    pub(crate) by: f32,
    pub(crate) what: i32,
    pub(crate) width: i32,
    pub(crate) outputs_only: i32,
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct OutputsArgs {
    pub(crate) x: View,
    pub(crate) y: View,
    pub(crate) width: i32,
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct HeadArgs {
    pub(crate) x: View,
    pub(crate) norm_weight: u64,
    pub(crate) eps: f32,
    pub(crate) norm: i32,
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct AttendArgs {
    pub(crate) q: HeadArgs,
    pub(crate) k: HeadArgs,
    pub(crate) v: View,
    pub(crate) y: View,
    pub(crate) ready: View,
    pub(crate) freqs: u64,
    pub(crate) keys: u64,
    pub(crate) values: u64,
    pub(crate) partial: u64,
    pub(crate) arrivals: u64,
    pub(crate) magnitude: f32,
    pub(crate) scale: f32,
    pub(crate) softcap: f32,
    pub(crate) heads: i32,
    pub(crate) kv_heads: i32,
    pub(crate) head_dim: i32,
    pub(crate) v_dim: i32,
    pub(crate) window: i32,
    pub(crate) pairs: i32,
    pub(crate) interleaved: i32,
    pub(crate) table: i32,
    pub(crate) shape: i32,
    pub(crate) groups: i32,
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct ArgmaxArgs {
    pub(crate) logits: View,
    pub(crate) best: u64,
    pub(crate) places: u64,
    pub(crate) chosen: u64,
    pub(crate) width: i32,
}

/// What a phase works on.
#[repr(C)]
#[derive(Clone, Copy)]
union Body {
    linear: LinearArgs,
    float_linear: FloatLinearArgs,
    embed: EmbedArgs,
    norm: RowNormArgs,
    rope: RopeArgs,
    elements: ElementArgs,
    outputs: OutputsArgs,
    attend: AttendArgs,
    argmax: ArgmaxArgs,
}

/// A phase as the kernels read it.
#[repr(C, align(16))]
#[derive(Clone, Copy)]
pub(crate) struct RawPhase {
    kind: i32,
    waits: i32,
    shape: i32,
    pad: i32,
    body: Body,
}

/// A phase with its kind.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Phase {
    Embed(EmbedArgs),
    Linear(LinearArgs),
    FloatLinear(FloatLinearArgs),
    Norm(RowNormArgs),
    Rope(RopeArgs),
    Elements(ElementArgs),
    Outputs(OutputsArgs),
    Attend(AttendArgs),
    Argmax(ArgmaxArgs),
}

impl Phase {
    /// As the kernels read it; the numbers are those of `enum Kind`. `waits`: 0, or how often blocks have
    /// waited for each other when it begins; `shape`: the number of a linear's.
    pub(crate) fn raw(&self, waits: i32, shape: i32) -> RawPhase {
        // every byte is given a value: phases are copied to the device whole
        // SAFETY: zeros are good integers and floats.
        let mut body: Body = unsafe { std::mem::zeroed() };
        let kind = match *self {
            Phase::Embed(embed) => {
                body.embed = embed;
                0
            }
            Phase::Linear(linear) => {
                body.linear = linear;
                1
            }
            Phase::FloatLinear(float_linear) => {
                body.float_linear = float_linear;
                2
            }
            Phase::Norm(norm) => {
                body.norm = norm;
                3
            }
            Phase::Rope(rope) => {
                body.rope = rope;
                4
            }
            Phase::Elements(elements) => {
                body.elements = elements;
                5
            }
            Phase::Outputs(outputs) => {
                body.outputs = outputs;
                6
            }
            Phase::Attend(attend) => {
                body.attend = attend;
                7
            }
            Phase::Argmax(argmax) => {
                body.argmax = argmax;
                8
            }
        };
        RawPhase { kind, waits, shape, pad: 0, body }
    }
}

/// The arguments of a step of a few tokens; `StepArgs` in `kernels/ring.cuh`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct StepArgs {
    pub(crate) phases: u64,
    pub(crate) inputs: u64,
    pub(crate) freqs: [u64; MOST_TABLES],
    pub(crate) pairs: [i32; MOST_TABLES],
    pub(crate) tables: i32,
    pub(crate) count: i32,
    pub(crate) mark: u32,
    pub(crate) pad: u32,
}

/// Rotary tables of one model at most.
pub(crate) const MOST_TABLES: usize = 4;

/// x of many tokens as integers: `ManyX` in `kernels/many.cu`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct ManyX {
    pub(crate) bytes: u64,
    pub(crate) scales: u64,
    pub(crate) sums: u64,
    pub(crate) tokens: i64,
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct PrepareArgs {
    pub(crate) linear: LinearArgs,
    pub(crate) x: ManyX,
    pub(crate) inputs: u64,
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct ManyArgs {
    pub(crate) linear: LinearArgs,
    pub(crate) x: ManyX,
    pub(crate) part: i32,
    pub(crate) rows: i32,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct PhaseArgs {
    pub(crate) phase: RawPhase,
    pub(crate) inputs: u64,
}
