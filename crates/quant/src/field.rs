//! The fields of a block: sizes for the reader, a C struct for the kernels.

use std::fmt::Write;

use crate::Quant;

/// One field of a block: `count` values of one type, little-endian, no padding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Field {
    /// Name in the C struct.
    pub name: &'static str,
    /// Type of one value.
    pub ty: FieldType,
    /// How many values.
    pub count: usize,
}

/// The type of a field's values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FieldType {
    /// IEEE half.
    F16,
    /// bfloat16.
    BF16,
    /// IEEE single.
    F32,
    /// IEEE double.
    F64,
    /// Unsigned byte.
    U8,
    /// Signed byte.
    I8,
    /// Unsigned 16-bit integer.
    U16,
    /// Signed 16-bit integer.
    I16,
    /// Unsigned 32-bit integer.
    U32,
    /// Signed 32-bit integer.
    I32,
    /// Signed 64-bit integer.
    I64,
}

impl Field {
    /// `count` values of type `ty`, called `name`.
    pub const fn new(name: &'static str, ty: FieldType, count: usize) -> Self {
        Self { name, ty, count }
    }

    /// Bytes the field takes.
    pub const fn bytes(&self) -> usize {
        self.ty.bytes() * self.count
    }
}

impl FieldType {
    /// Bytes of one value, which is also its alignment in C.
    pub const fn bytes(self) -> usize {
        match self {
            Self::U8 | Self::I8 => 1,
            Self::F16 | Self::BF16 | Self::U16 | Self::I16 => 2,
            Self::F32 | Self::U32 | Self::I32 => 4,
            Self::F64 | Self::I64 => 8,
        }
    }

    /// The C type that holds one value; halves are kept as their bits.
    pub const fn c_name(self) -> &'static str {
        match self {
            Self::U8 => "unsigned char",
            Self::I8 => "signed char",
            Self::F16 | Self::BF16 | Self::U16 => "unsigned short",
            Self::I16 => "short",
            Self::U32 => "unsigned int",
            Self::I32 => "int",
            Self::I64 => "long long",
            Self::F32 => "float",
            Self::F64 => "double",
        }
    }
}

impl Quant {
    /// One block as a C struct, with an assertion of its size.
    ///
    /// No field needs padding: each begins at a multiple of its own size.
    ///
    /// ```
    /// assert!(tern_quant::Q4_K.c_struct().starts_with("struct block_q4_k {\n    unsigned short d;\n"));
    /// ```
    pub fn c_struct(&self) -> String {
        let name = format!("block_{}", self.name.to_ascii_lowercase());
        let mut text = format!("struct {name} {{\n");
        for field in self.fields {
            let ty = field.ty.c_name();
            // Writing to a String cannot fail.
            let _ = match field.count {
                1 => writeln!(text, "    {ty} {};", field.name),
                n => writeln!(text, "    {ty} {}[{n}];", field.name),
            };
        }
        let size = self.block_bytes();
        let _ = write!(text, "}};\nstatic_assert(sizeof({name}) == {size}, \"{name} is {size} bytes\");\n");
        text
    }
}
