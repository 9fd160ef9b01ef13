//! Vectors of floats in one instruction set, and the cells that are converted when they are loaded.

use half::{bf16, f16};

/// A vector of floats.
///
/// # Safety
/// Every `unsafe` method requires that the processor has the instruction set of the vector, and that pointers
/// are valid for a whole vector.
pub(crate) trait Vector: Copy {
    /// Floats per vector.
    const LEN: usize;
    /// Rows of two vectors of sums that fit the registers, at most [`MOST_ROWS`].
    const ROWS: usize;
    unsafe fn splat(x: f32) -> Self;
    unsafe fn load(p: *const f32) -> Self;
    unsafe fn store(self, p: *mut f32);
    /// Halves as floats.
    unsafe fn halves(p: *const u16) -> Self;
    /// The upper halves of floats.
    unsafe fn bf16(p: *const u16) -> Self;
    /// Bytes as floats.
    unsafe fn bytes(p: *const i8) -> Self;
    /// `self * by + plus`, rounded as `mul_add_one` does.
    unsafe fn mul_add(self, by: Self, plus: Self) -> Self;
    /// The same for one float.
    fn mul_add_one(x: f32, by: f32, plus: f32) -> f32 {
        x.mul_add(by, plus)
    }
    /// The sum of each vector's floats.
    unsafe fn sums(each: [Self; 4]) -> [f32; 4];
    /// Prefetches a cache line.
    unsafe fn ask<T>(_p: *const T) {}
}

/// [`Vector::ROWS`] of any instruction set at most.
pub(crate) const MOST_ROWS: usize = 8;

/// A number as a KV page stores it.
pub(crate) trait Cell: Copy + Default {
    /// # Safety
    /// That of [`Vector`].
    unsafe fn load<V: Vector>(p: *const Self) -> V;
    fn float(self) -> f32;
}

impl Cell for u16 {
    #[inline(always)]
    unsafe fn load<V: Vector>(p: *const u16) -> V {
        // SAFETY: the contract of this function.
        unsafe { V::halves(p) }
    }
    #[inline(always)]
    fn float(self) -> f32 {
        f16::from_bits(self).to_f32()
    }
}

impl Cell for f32 {
    #[inline(always)]
    unsafe fn load<V: Vector>(p: *const f32) -> V {
        // SAFETY: the contract of this function.
        unsafe { V::load(p) }
    }
    #[inline(always)]
    fn float(self) -> f32 {
        self
    }
}

impl Cell for i8 {
    #[inline(always)]
    unsafe fn load<V: Vector>(p: *const i8) -> V {
        // SAFETY: the contract of this function.
        unsafe { V::bytes(p) }
    }
    #[inline(always)]
    fn float(self) -> f32 {
        f32::from(self)
    }
}

/// A vector in plain Rust.
pub(crate) type Plain = [f32; 8];

impl Vector for Plain {
    const LEN: usize = 8;
    const ROWS: usize = 4;
    #[inline(always)]
    unsafe fn splat(x: f32) -> Plain {
        [x; 8]
    }
    #[inline(always)]
    unsafe fn load(p: *const f32) -> Plain {
        // SAFETY: the contract of this function.
        unsafe { p.cast::<Plain>().read() }
    }
    #[inline(always)]
    unsafe fn store(self, p: *mut f32) {
        // SAFETY: the contract of this function.
        unsafe { p.cast::<Plain>().write(self) }
    }
    #[inline(always)]
    unsafe fn halves(p: *const u16) -> Plain {
        // SAFETY: the contract of this function.
        unsafe { p.cast::<[u16; 8]>().read() }.map(Cell::float)
    }
    #[inline(always)]
    unsafe fn bf16(p: *const u16) -> Plain {
        // SAFETY: the contract of this function.
        unsafe { p.cast::<[u16; 8]>().read() }.map(|x| bf16::from_bits(x).to_f32())
    }
    #[inline(always)]
    unsafe fn bytes(p: *const i8) -> Plain {
        // SAFETY: the contract of this function.
        unsafe { p.cast::<[i8; 8]>().read() }.map(Cell::float)
    }
    #[inline(always)]
    unsafe fn mul_add(self, by: Plain, plus: Plain) -> Plain {
        std::array::from_fn(|i| self[i] * by[i] + plus[i])
    }
    #[inline(always)]
    unsafe fn sums(each: [Plain; 4]) -> [f32; 4] {
        each.map(|v| v.iter().sum())
    }
    #[inline(always)]
    fn mul_add_one(x: f32, by: f32, plus: f32) -> f32 {
        x * by + plus
    }
}
