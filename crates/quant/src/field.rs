//! The fields of a block, which give its size.

/// One field of a block: `count` values of one type, little-endian, no padding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Field {
    /// Name, as in ggml's struct.
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
    /// IEEE half in the highest four bits of four 16-bit words, its lowest bits first; the other
    /// bits are something else.
    ScatteredF16,
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
    /// Bytes of one value.
    pub const fn bytes(self) -> usize {
        match self {
            Self::U8 | Self::I8 => 1,
            Self::F16 | Self::BF16 | Self::U16 | Self::I16 => 2,
            Self::F32 | Self::U32 | Self::I32 => 4,
            Self::F64 | Self::I64 | Self::ScatteredF16 => 8,
        }
    }
}
