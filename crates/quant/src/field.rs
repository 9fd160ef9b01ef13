//! The fields of a block: sizes for the reader, a C struct for the kernels.

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
    /// Unsigned byte.
    U8,
    /// Signed byte.
    I8,
    /// Unsigned 16-bit integer.
    U16,
    /// Unsigned 32-bit integer.
    U32,
}
