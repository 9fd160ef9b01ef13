//! What the host and the kernels share, written once: constants, enums and argument structs, as Rust items and as the C
//! text ([`header`]) that every kernel source is compiled with.
//!
//! Argument structs are [`bytemuck::Pod`]: a struct with padding does not compile. The C text asserts the size of each
//! struct and the offset of each field, so that NVRTC refuses a kernel whose structs differ from the host's.

mod constants;
mod launches;
mod phases;
mod sampling;

pub(crate) use constants::*;
pub(crate) use launches::*;
pub(crate) use phases::*;
pub(crate) use sampling::*;

/// The C text of everything shared. It needs the integer types of `kernels/common.cuh`.
pub(crate) fn header() -> String {
    [constants::c_text(), phases::c_text(), launches::c_text(), sampling::c_text()].concat()
}

/// A type of a field of a shared struct.
pub(crate) trait Shared {
    /// What the host writes; an address on the device is a `u64`, 0 for none.
    type Host;

    /// The C declaration of `name` with this type.
    fn declare(name: &str) -> String;
}

/// A struct that is a kernel's only argument, or a part of it.
pub(crate) trait KernelArgs: bytemuck::Pod {}

macro_rules! scalars {
    ($($type:ty = $c:literal),+ $(,)?) => {$(
        impl Shared for $type {
            type Host = $type;

            fn declare(name: &str) -> String {
                format!("{} {name}", $c)
            }
        }
    )+};
}
scalars! { u8 = "u8", u16 = "u16", u32 = "u32", u64 = "u64", i32 = "int", i64 = "long", f32 = "float", () = "void" }

impl<T: Shared> Shared for *const T {
    type Host = u64;

    fn declare(name: &str) -> String {
        format!("const {}", T::declare(&format!("*{name}")))
    }
}

impl<T: Shared> Shared for *mut T {
    type Host = u64;

    fn declare(name: &str) -> String {
        T::declare(&format!("*{name}"))
    }
}

impl<T: Shared, const N: usize> Shared for [T; N] {
    type Host = [T::Host; N];

    fn declare(name: &str) -> String {
        T::declare(&format!("{name}[{N}]"))
    }
}

/// Integer constants: enumerators in C.
macro_rules! shared_constants {
    ($($(#[$doc:meta])* $name:ident: $type:ty = $value:expr;)+) => {
        $($(#[$doc])* pub(crate) const $name: $type = $value;)+

        fn constants() -> String {
            let constants = [$(format!("    {} = {},\n", stringify!($name), $name)),+];
            format!("enum : int {{\n{}}};\n", constants.concat())
        }
    };
}
pub(crate) use shared_constants;

/// Enums, numbered from 0; `Variant as NAME` is `NAME` in C.
macro_rules! shared_enums {
    ($($(#[$doc:meta])* $name:ident { $($(#[$variant_doc:meta])* $variant:ident as $c:ident),+ $(,)? })+) => {
        $(
            $(#[$doc])*
            #[derive(Clone, Copy, Debug, PartialEq, Eq)]
            pub(crate) enum $name { $($(#[$variant_doc])* $variant),+ }
        )+

        fn enums() -> String {
            let mut text = String::new();
            $(
                let variants = [$(format!("{} = {}", stringify!($c), $name::$variant as i32)),+];
                text += &format!("enum {} {{ {} }};\n", stringify!($name), variants.join(", "));
            )+
            text
        }
    };
}
pub(crate) use shared_enums;

/// Structs with the same name, fields and layout in Rust and in C.
macro_rules! shared_structs {
    ($($(#[$doc:meta])* $name:ident { $($(#[$field_doc:meta])* $field:ident: $type:ty),+ $(,)? })+) => {
        $(
            $(#[$doc])*
            #[repr(C)]
            #[derive(Clone, Copy, Debug, Default, bytemuck::Pod, bytemuck::Zeroable)]
            pub(crate) struct $name {
                $($(#[$field_doc])* pub(crate) $field: <$type as $crate::shared::Shared>::Host),+
            }

            impl $crate::shared::Shared for $name {
                type Host = $name;

                fn declare(name: &str) -> String {
                    format!("{} {name}", stringify!($name))
                }
            }

            impl $crate::shared::KernelArgs for $name {}
        )+

        fn structs() -> String {
            let mut text = String::new();
            $(
                let fields = [$((stringify!($field), <$type as $crate::shared::Shared>::declare(stringify!($field)),
                    std::mem::offset_of!($name, $field))),+];
                text += &$crate::shared::c_struct(stringify!($name), size_of::<$name>(), &fields);
            )+
            text
        }
    };
}
pub(crate) use shared_structs;

/// A struct of some bytes in C; fields are given by name, declaration and offset.
fn c_struct(name: &str, bytes: usize, fields: &[(&str, String, usize)]) -> String {
    let declarations: String = fields.iter().map(|field| format!("    {};\n", field.1)).collect();
    let offsets = fields.iter().map(|(field, _, offset)| c_offset(name, field, *offset));
    format!("struct {name} {{\n{declarations}}};\n{}{}", c_size(name, bytes), offsets.collect::<String>())
}

/// Asserts the size of a struct in C.
fn c_size(name: &str, bytes: usize) -> String {
    format!("static_assert(sizeof({name}) == {bytes}, \"{name} has {bytes} bytes on the host\");\n")
}

/// Asserts the offset of a field in C; `__INTADDR__` is how NVRTC's front end makes an address a constant.
fn c_offset(name: &str, field: &str, offset: usize) -> String {
    let message = format!("{name}.{field} is at {offset} on the host");
    format!("static_assert(__INTADDR__(&(({name}*)0)->{field}) == {offset}, \"{message}\");\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_struct_in_c_asserts_its_size_and_its_offsets() {
        let text = "struct OutputsArgs {
    View x;
    View y;
    int width;
    int pad;
};
static_assert(sizeof(OutputsArgs) == 56, \"OutputsArgs has 56 bytes on the host\");
static_assert(__INTADDR__(&((OutputsArgs*)0)->x) == 0, \"OutputsArgs.x is at 0 on the host\");
static_assert(__INTADDR__(&((OutputsArgs*)0)->y) == 24, \"OutputsArgs.y is at 24 on the host\");
static_assert(__INTADDR__(&((OutputsArgs*)0)->width) == 48, \"OutputsArgs.width is at 48 on the host\");
static_assert(__INTADDR__(&((OutputsArgs*)0)->pad) == 52, \"OutputsArgs.pad is at 52 on the host\");
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
    fn a_phase_holds_its_arguments_behind_its_head() {
        let args = OutputsArgs { width: 7, ..OutputsArgs::default() };
        let raw = Phase::Outputs(args).raw(3, 5);
        let words: &[i32] = bytemuck::cast_slice(bytemuck::bytes_of(&raw));
        assert_eq!(words[..4], [5, 3, 5, 0]);
        assert_eq!((words[4 + 12], words[4 + 13..].iter().all(|w| *w == 0)), (7, true));
        assert_eq!(size_of::<RawPhase>() % 16, 0);
    }
}
