//! Macros that define constants, enums and structs in Rust and give their C text.

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
                $($(#[$field_doc])* pub(crate) $field: <$type as $crate::shared::c_text::Shared>::Host),+
            }

            impl $crate::shared::c_text::Shared for $name {
                type Host = $name;

                fn declare(name: &str) -> String {
                    format!("{} {name}", stringify!($name))
                }
            }

            impl $crate::shared::c_text::KernelArgs for $name {}
        )+

        fn structs() -> String {
            let mut text = String::new();
            $(
                let fields = [$((stringify!($field), <$type as $crate::shared::c_text::Shared>::declare(stringify!($field)),
                    std::mem::offset_of!($name, $field))),+];
                text += &$crate::shared::c_text::c_struct(stringify!($name), size_of::<$name>(), &fields);
            )+
            text
        }
    };
}
pub(crate) use shared_structs;

/// The struct `Sizes` in C: what the host has decided for one kernel. Its constants are enumerators:
/// `static constexpr` ones would be variables of the module.
pub(crate) fn c_sizes(sizes: &[(&str, usize)]) -> String {
    let constants = sizes.iter().map(|(name, value)| format!("        {name} = {value},\n"));
    format!("struct Sizes {{\n    enum : int {{\n{}    }};\n}};\n", constants.collect::<String>())
}

/// A struct of some bytes in C; fields are given by name, declaration and offset.
pub(super) fn c_struct(name: &str, bytes: usize, fields: &[(&str, String, usize)]) -> String {
    let declarations: String = fields.iter().map(|field| format!("    {};\n", field.1)).collect();
    let offsets = fields.iter().map(|(field, _, offset)| c_offset(name, field, *offset));
    format!("struct {name} {{\n{declarations}}};\n{}{}", c_size(name, bytes), offsets.collect::<String>())
}

/// Asserts the size of a struct in C.
pub(super) fn c_size(name: &str, bytes: usize) -> String {
    format!("static_assert(sizeof({name}) == {bytes}, \"{name} has {bytes} bytes on the host\");\n")
}

/// Asserts the offset of a field in C (`OFFSET_OF` of `kernels/base/ptx.cuh`).
pub(super) fn c_offset(name: &str, field: &str, offset: usize) -> String {
    let message = format!("{name}.{field} is at {offset} on the host");
    format!("static_assert(OFFSET_OF({name}, {field}) == {offset}, \"{message}\");\n")
}
