//! Whether the matrix unit works: some virtual machines report it and kill the process
//! at its first instruction.

use std::arch::asm;
use std::sync::OnceLock;

/// The sizes of tiles: tokens by rows for products, codes, and both planes of activations.
pub(crate) struct Tiles {
    /// Tiles of products: two for each tile of codes.
    pub(crate) products: usize,
    pub(crate) tokens: usize,
    /// Columns per product.
    pub(crate) depth: usize,
}

#[repr(C, align(64))]
struct Config {
    palette: u8,
    start: u8,
    reserved: [u8; 14],
    row_bytes: [u16; 16],
    rows: [u8; 16],
}

impl Tiles {
    /// # Safety
    /// The matrix unit works and the process may use it.
    #[inline(always)]
    pub(crate) unsafe fn configure(&self) {
        let (tokens, results) = (self.tokens as u8, 64);
        let kinds = [
            (self.products, tokens, results),
            (self.products / 2, (self.depth / 4) as u8, results),
            (2, tokens, self.depth as u16),
        ];
        let sizes =
            kinds.into_iter().flat_map(|(count, rows, bytes)| std::iter::repeat_n((rows, bytes), count));
        // SAFETY: the contract of this function.
        unsafe { configure(sizes) }
    }
}

/// Configures tiles of this many rows and bytes per row.
///
/// # Safety
/// The matrix unit works and the process may use it.
#[inline(always)]
pub(crate) unsafe fn configure(sizes: impl IntoIterator<Item = (u8, u16)>) {
    let mut config = Config { palette: 1, start: 0, reserved: [0; 14], row_bytes: [0; 16], rows: [0; 16] };
    for (i, (rows, bytes)) in sizes.into_iter().enumerate() {
        (config.rows[i], config.row_bytes[i]) = (rows, bytes);
    }
    // SAFETY: the contract of this function.
    unsafe { asm!("ldtilecfg [{}]", in(reg) &config, options(nostack, preserves_flags, readonly)) };
}

/// Releases the tiles, so that the system need not save and restore them.
///
/// # Safety
/// The matrix unit works and the process may use it.
#[inline(always)]
pub(crate) unsafe fn release() {
    // SAFETY: the contract of this function.
    unsafe { asm!("tilerelease", options(nostack, nomem, preserves_flags)) };
}

/// Whether the matrix unit multiplies integers here, and this process may use it. Tested
/// once, in a child process.
pub(crate) fn works() -> bool {
    static WORKS: OnceLock<bool> = OnceLock::new();
    *WORKS.get_or_init(|| is_named() && system::is_allowed() && system::child_can(multiplies))
}

/// Whether it also multiplies bf16.
pub(crate) fn works_with_bf16() -> bool {
    // leaf 7: bit 22 of edx
    works() && std::arch::x86_64::__cpuid_count(7, 0).edx >> 22 & 1 == 1
}

/// Whether the processor reports tiles and integer products.
fn is_named() -> bool {
    use std::arch::x86_64::{__cpuid, __cpuid_count};
    // leaf 7: bits 24 and 25 of edx
    __cpuid(0).eax >= 7 && __cpuid_count(7, 0).edx >> 24 & 3 == 3
}

/// Whether a small product is correct.
fn multiplies() -> bool {
    let (codes, x) = ([3i8; 8 * 64], [-5i8; 16 * 32]);
    let mut out = [0i32; 16 * 16];
    // SAFETY: an illegal instruction ends the child, which is the test.
    unsafe {
        Tiles { products: 2, tokens: 16, depth: 32 }.configure();
        asm!(
            "tilezero tmm0",
            "tileloadd tmm2, [{codes} + {line}*1]",
            "tileloadd tmm3, [{x} + {cols}*1]",
            "tdpbssd tmm0, tmm3, tmm2",
            "tilestored [{out} + {line}*1], tmm0",
            codes = in(reg) codes.as_ptr(),
            line = in(reg) 64usize,
            x = in(reg) x.as_ptr(),
            cols = in(reg) 32usize,
            out = in(reg) out.as_mut_ptr(),
            options(nostack, preserves_flags),
        );
        release();
    }
    out.iter().all(|v| *v == 32 * 3 * -5)
}

#[cfg(target_os = "linux")]
mod system {
    use std::ffi::{c_int, c_long};

    unsafe extern "C" {
        fn fork() -> c_int;
        fn waitpid(child: c_int, status: *mut c_int, options: c_int) -> c_int;
        fn _exit(status: c_int) -> !;
        fn syscall(number: c_long, ...) -> c_long;
    }

    /// Requests permission to use tiles in this process.
    pub(crate) fn is_allowed() -> bool {
        const ARCH_PRCTL: c_long = 158;
        const REQUEST_STATE: c_long = 0x1023;
        const TILE_DATA: c_long = 18;
        // SAFETY: it changes only the permission to use tiles.
        unsafe { syscall(ARCH_PRCTL, REQUEST_STATE, TILE_DATA) == 0 }
    }

    /// Whether a child process survives `work` and it returns true.
    pub(crate) fn child_can(work: fn() -> bool) -> bool {
        // SAFETY: the child does no more than `work`, which neither allocates nor locks, and ends.
        unsafe {
            let child = fork();
            if child == 0 {
                _exit(c_int::from(!work()));
            }
            let mut status = -1;
            child > 0 && waitpid(child, &mut status, 0) == child && status == 0
        }
    }
}

#[cfg(not(target_os = "linux"))]
mod system {
    pub(crate) fn is_allowed() -> bool {
        false
    }
    pub(crate) fn child_can(_work: fn() -> bool) -> bool {
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_trap_is_survived() {
        // SAFETY: the child dies of it.
        let trap = || unsafe {
            asm!("ud2");
            true
        };
        assert!(!system::child_can(trap));
        assert!(!system::child_can(|| false));
        assert_eq!(works(), is_named() && system::is_allowed() && system::child_can(multiplies));
    }
}
