//! The kinds of phases, and a phase as the kernels read it.

use bytemuck::{Pod, Zeroable, bytes_of, bytes_of_mut};

use super::c_text::{KernelArgs, Shared, c_offset, c_size, shared_structs};
use super::constants::WARPS;
use super::phase_args::*;

/// Phases in C, after their arguments.
pub(super) fn c_text() -> String {
    [phases(), classes()].concat()
}

/// The kinds of phases: `Variant(Args) as KIND, field`, the last two in C.
///
/// A small phase is a function `run` of `kernels/phases/small_phases.cuh`; without one the kernels do not
/// compile. A large phase has its own code in the fused step and its own kernels.
macro_rules! phases {
    (
        small { $($small:ident($small_args:ident) as $small_kind:ident, $small_field:ident;)+ }
        large { $($large:ident($large_args:ident) as $large_kind:ident, $large_field:ident;)+ }
    ) => {
        phases! {
            $($small($small_args) as $small_kind, $small_field;)+
            $($large($large_args) as $large_kind, $large_field;)+
        }

        /// The arguments of a large phase.
        #[expect(dead_code, reason = "argmax is launched with its whole phase")]
        pub(crate) enum LargePhase<'a> { $($large(&'a $large_args)),+ }

        impl Phase {
            /// `None` for a small phase.
            pub(crate) fn large(&self) -> Option<LargePhase<'_>> {
                match self {
                    $(Phase::$large(args) => Some(LargePhase::$large(args)),)+
                    $(Phase::$small(_) => None,)+
                }
            }
        }

        fn classes() -> String {
            let small = [$(concat!(" X(", stringify!($small_kind), ", ", stringify!($small_field), ")")),+];
            let large = [$(stringify!($large_kind)),+].len();
            format!("#define SMALL_PHASES(X){}\nenum {{ LARGE_PHASES = {large} }};\n", small.concat())
        }
    };
    ($($variant:ident($args:ident) as $kind:ident, $field:ident;)+) => {
        /// A phase with its arguments.
        #[derive(Clone, Copy, Debug)]
        pub(crate) enum Phase { $($variant($args)),+ }

        /// The number of a phase's kind in the kernels.
        #[derive(Clone, Copy)]
        enum Kind { $($variant),+ }

        impl Phase {
            fn kind_and_bytes(&self) -> (Kind, &[u8]) {
                match self { $(Phase::$variant(args) => (Kind::$variant, bytes_of(args))),+ }
            }
        }

        /// Words for the largest arguments, in whole pieces of 16 bytes.
        const BODY_WORDS: usize = {
            let mut most = 0;
            $(if size_of::<$args>() > most { most = size_of::<$args>(); })+
            most.next_multiple_of(16) / 8
        };

        fn phases() -> String {
            let kinds = [$(format!("{} = {}", stringify!($kind), Kind::$variant as i32)),+].join(", ");
            let fields = [$(format!("        {};\n", $args::declare(stringify!($field)))),+].concat();
            let offset = std::mem::offset_of!(RawPhase, body);
            let offsets = [$(c_offset("Phase", stringify!($field), offset)),+].concat();
            let head = format!("enum Kind {{ {kinds} }};\nstruct alignas(16) Phase {{\n    int kind, barrier, shape;\n    BlockRange range;\n");
            let body = format!("    union {{\n{fields}        u64 words[{BODY_WORDS}];\n    }};\n}};\n");
            [structs(), head, body, c_size("Phase", size_of::<RawPhase>()), c_head_offsets(), offsets].concat()
        }
    };
}

phases! {
    small {
        Embed(EmbedArgs) as EMBED, embed;
        FloatLinear(FloatLinearArgs) as FLOAT_LINEAR, float_linear;
        Norm(RowNormArgs) as ROW_NORM, norm;
        Rope(RopeArgs) as ROPE, rope;
        Elements(ElementArgs) as ELEMENTS, elements;
        Outputs(OutputsArgs) as OUTPUT_ROWS, outputs;
        Fragments(FragmentArgs) as FRAGMENTS, fragments;
        JoinHeads(JoinHeadsArgs) as JOIN_HEADS, join_heads;
        ImageRows(ImageRowsArgs) as IMAGE_ROWS, image_rows;
    }
    large {
        Linear(LinearArgs) as LINEAR, linear;
        Attend(AttendArgs) as ATTEND, attend;
        Route(RouteArgs) as ROUTE, route;
        Mix(MixArgs) as MIX, mix;
        Argmax(ArgmaxArgs) as ARGMAX, argmax;
        Conv(ConvArgs) as CONV, conv;
        Recurrent(RecurrentArgs) as RECURRENT_PHASE, recurrent;
        Transform(TransformArgs) as TRANSFORM, transform;
    }
}

shared_structs! {
    /// In a fused step, the blocks that compute a phase: `count` of them, after the first `first` ones from
    /// the last block on (`place_among`), which other phases use. All blocks if `count` is 0.
    BlockRange {
        count: u16,
        first: u16,
    }
}

impl BlockRange {
    fn new(first_block: i32, count: usize) -> BlockRange {
        BlockRange { count: count.min(0xffff) as u16, first: first_block as u16 }
    }
}

/// A phase as the kernels read it: `Phase` in C, where `body` is a union of all arguments.
#[repr(C, align(16))]
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
pub(crate) struct RawPhase {
    kind: i32,
    /// The index of the grid barrier that the phase begins with, from 1 on, or 0: it reads or
    /// writes values without tags.
    barrier: i32,
    /// The index of a linear in LINEARS.
    shape: i32,
    range: BlockRange,
    body: [u64; BODY_WORDS],
}

impl Shared for RawPhase {
    type Host = RawPhase;

    fn declare(name: &str) -> String {
        format!("Phase {name}")
    }
}

impl Default for RawPhase {
    fn default() -> RawPhase {
        RawPhase::zeroed()
    }
}

impl KernelArgs for RawPhase {}

impl RawPhase {
    /// The same phase, which has work for `warps` warps, on those of `blocks` blocks that do not compute the
    /// transform, if they have as many.
    pub(crate) fn apart_from(self, transform: &TransformArgs, warps: usize, blocks: usize) -> RawPhase {
        let used = TransformArgs::blocks(transform.width as usize);
        let others = blocks.saturating_sub(used);
        if warps > others * WARPS {
            return self;
        }
        RawPhase { range: BlockRange::new(transform.first_block + used as i32, others), ..self }
    }
}

fn c_head_offsets() -> String {
    let kind = c_offset("Phase", "kind", std::mem::offset_of!(RawPhase, kind));
    let barrier = c_offset("Phase", "barrier", std::mem::offset_of!(RawPhase, barrier));
    let shape = c_offset("Phase", "shape", std::mem::offset_of!(RawPhase, shape));
    [kind, barrier, shape, c_offset("Phase", "range", std::mem::offset_of!(RawPhase, range))].concat()
}

impl Phase {
    /// The blocks that compute it in a fused step.
    fn range(&self) -> BlockRange {
        match self {
            Phase::Transform(a) => BlockRange::new(a.first_block, TransformArgs::blocks(a.width as usize)),
            Phase::FloatLinear(a) if a.first_block >= 0 => {
                BlockRange::new(a.first_block, FloatLinearArgs::blocks(a.rows as usize))
            }
            _ => BlockRange::default(),
        }
    }

    /// As the kernels read it, with its grid barrier and the index of a linear's shape.
    pub(crate) fn raw(&self, barrier: i32, shape: i32) -> RawPhase {
        let (kind, args) = self.kind_and_bytes();
        let mut body = [0; BODY_WORDS];
        bytes_of_mut(&mut body)[..args.len()].copy_from_slice(args);
        RawPhase { kind: kind as i32, barrier, shape, range: self.range(), body }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_phase_beside_a_transform_has_the_other_blocks() {
        let transform = TransformArgs { width: 6144, first_block: 4, ..TransformArgs::default() };
        let raw = Phase::Recurrent(RecurrentArgs::default()).raw(0, 0);
        let pair = |range: BlockRange| (range.first, range.count);
        assert_eq!(pair(raw.range), (0, 0));
        assert_eq!(pair(Phase::Transform(transform).range()), (4, 24));
        assert_eq!(pair(raw.apart_from(&transform, 1728, 132).range), (28, 108));
    }

    #[test]
    fn a_phase_has_all_blocks_if_those_beside_the_transform_have_too_few_warps() {
        let transform = TransformArgs { width: 6144, ..TransformArgs::default() }; // 24 of 132 blocks
        let is_apart = |heads, cols, blocks| {
            let args = RecurrentArgs { heads, cols, ..RecurrentArgs::default() };
            Phase::Recurrent(args).raw(0, 0).apart_from(&transform, args.warps(), blocks).range.count != 0
        };
        assert!(is_apart(48, 128, 132)); // 1,536 of 1,728 warps
        assert!(is_apart(54, 127, 132) && !is_apart(55, 127, 132));
        assert!(!is_apart(1, 4, 24)); // the transform has all blocks
    }
}
