//! Code coverage of inputs, from the counters that LLVM's SanitizerCoverage adds to every basic block.
//!
//! `-C passes=sancov-module` with inline 8-bit counters is available on stable Rust. Each
//! object file registers its counters before `main`; in a build without the pass none are
//! registered, and nothing is reached.

use std::sync::Mutex;

/// The counters: addresses and lengths.
static REGIONS: Mutex<Vec<(usize, usize)>> = Mutex::new(vec![]);

/// Called by the constructors of instrumented code.
#[unsafe(no_mangle)]
extern "C" fn __sanitizer_cov_8bit_counters_init(start: *mut u8, stop: *mut u8) {
    if let Ok(mut regions) = REGIONS.lock()
        && start < stop
        && !regions.iter().any(|r| r.0 == start as usize)
    {
        regions.push((start as usize, stop as usize - start as usize));
    }
}

/// Required by the same pass; program counters are not needed here.
#[unsafe(no_mangle)]
extern "C" fn __sanitizer_cov_pcs_init(_start: *const usize, _stop: *const usize) {}

/// The coverage of all inputs so far.
pub(crate) struct Cover {
    counters: Vec<&'static mut [u8]>,
    /// Per counter, the powers of two it has reached.
    seen: Vec<u8>,
    reached: usize,
}

impl Cover {
    pub(crate) fn new() -> Cover {
        let regions = REGIONS.lock().map(|r| r.clone()).unwrap_or_default();
        // SAFETY: the regions are counters in this program's data, which lives as long as the program and
        // whose only other users add to single bytes of it
        let region = |(start, len)| unsafe { std::slice::from_raw_parts_mut(start as *mut u8, len) };
        let counters: Vec<&'static mut [u8]> = regions.into_iter().map(region).collect();
        let all = counters.iter().map(|c| c.len()).sum();
        Cover { counters, seen: vec![0; all], reached: 0 }
    }

    /// The number of counters, and of those that were reached.
    pub(crate) fn counts(&self) -> (usize, usize) {
        (self.seen.len(), self.reached)
    }

    /// Resets the counters before an input.
    pub(crate) fn clear(&mut self) {
        self.counters.iter_mut().for_each(|c| c.fill(0));
    }

    /// Whether the input reached new code, or code about twice as often as any input before.
    pub(crate) fn is_new(&mut self) -> bool {
        let mut new = false;
        for (count, seen) in self.counters.iter().flat_map(|c| c.iter()).zip(&mut self.seen) {
            if *count > 0 {
                let bit = 1u8 << count.ilog2();
                if *seen & bit == 0 {
                    self.reached += usize::from(*seen == 0);
                    *seen |= bit;
                    new = true;
                }
            }
        }
        new
    }
}
