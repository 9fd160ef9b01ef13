//! Damaged files: any input gives a model or an error, with memory bounded by the size of the file.

mod common;

use std::{
    alloc::{GlobalAlloc, Layout, System},
    sync::atomic::{AtomicUsize, Ordering::Relaxed},
};

use common::{Raw, file, text};
use tern_formats::{Checkpoint, Value};
use tern_quant::{F32, I2_S, PQ2_0, Q1_0, Q2_0, Q2_0_G128};

struct Measured;
static LIVE: AtomicUsize = AtomicUsize::new(0);
static PEAK: AtomicUsize = AtomicUsize::new(0);

// SAFETY: every call is passed on to the system allocator unchanged; only sizes are counted.
unsafe impl GlobalAlloc for Measured {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        PEAK.fetch_max(LIVE.fetch_add(layout.size(), Relaxed) + layout.size(), Relaxed);
        // SAFETY: the caller keeps the contract of `alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        LIVE.fetch_sub(layout.size(), Relaxed);
        // SAFETY: the caller keeps the contract of `dealloc`.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Measured = Measured;

/// Memory limit of a reader for a file of this size.
fn allowance(file: usize) -> usize {
    24 * file + (64 << 10)
}

/// Opens the bytes and reads all tensor data. Returns whether they were a model.
fn survive(bytes: &[u8]) -> bool {
    let copy = bytes::Bytes::copy_from_slice(bytes);
    let before = LIVE.load(Relaxed);
    PEAK.store(before, Relaxed);
    let outcome = Checkpoint::from_bytes(copy);
    let taken = PEAK.load(Relaxed) - before;
    assert!(taken <= allowance(bytes.len()), "{taken} bytes allocated for a file of {}", bytes.len());
    match outcome {
        Ok(model) => {
            let sum: u64 = model.tensors.values().flat_map(|t| t.data()).map(u64::from).sum();
            assert!(sum <= 255 * bytes.len() as u64);
            for tensor in model.tensors.values() {
                let weights = tensor.rows() as u64 * tensor.cols() as u64;
                assert_eq!(tensor.quant.tensor_bytes(weights), Some(tensor.bytes()));
            }
            true
        }
        Err(error) => {
            assert!(!error.to_string().is_empty());
            false
        }
    }
}

/// xorshift64*: the same damage in every run.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: usize) -> usize {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) as usize % sides.max(1)
    }
}

fn seeds() -> Vec<Vec<u8>> {
    let pairs = [
        ("general.architecture", text("qwen3")),
        ("general.alignment", Value::Uint(32)),
        ("tokenizer.ggml.tokens", Value::Strings(vec!["a".into(), "bc".into(), String::new()])),
        ("tokenizer.ggml.scores", Value::Floats(vec![0.5, 1.0])),
        ("qwen3.block_count", Value::Uint(2)),
        ("ints", Value::Ints(vec![-1, 5])),
        ("bools", Value::Bools(vec![true, false])),
        ("int", Value::Int(-1)),
    ];
    vec![
        file(&pairs, &[("embd", &Q1_0, &[128, 3]), ("norm", &F32, &[5]), ("x", &F32, &[2, 2, 2, 2])]),
        file(&pairs, &[("embd", &Q2_0, &[256, 8]), ("norm", &F32, &[5])]),
        file(&pairs[..1], &[("embd", &Q2_0_G128, &[256, 8]), ("norm", &F32, &[5])]),
        file(&pairs[2..], &[("a", &PQ2_0, &[128, 2]), ("b", &I2_S, &[128])]),
        Raw::new(2, 0, 1).string("k").u32(9).u32(0).u64(9).bytes(&[7; 9]).0,
        file(&[], &[]),
    ]
}

/// One test, so that nothing else allocates at the same time.
#[test]
fn damaged_files_are_opened_or_rejected() {
    let seeds = seeds();
    let mut dice = Dice(0x7465_726e);
    let extremes: [u64; 8] = [0, 1, 0xff, 0x7fff_ffff, 0xffff_ffff, 1 << 32, i64::MAX as u64, u64::MAX];
    let mut opened = 0;
    for seed in &seeds[..2] {
        assert!(survive(seed));
        assert!(
            (0..seed.len()).filter(|&len| survive(&seed[..len])).count() < 40,
            "only padding can be lost"
        );
    }
    for _ in 0..60_000 {
        let mut bytes = seeds[dice.roll(seeds.len())].clone();
        for _ in 0..=dice.roll(3) {
            let at = dice.roll(bytes.len());
            match dice.roll(6) {
                0 => bytes[at] ^= 1 << dice.roll(8),
                1 => bytes[at] = dice.roll(256) as u8,
                2 => bytes.truncate(at.max(1)),
                3 => {
                    let extreme = extremes[dice.roll(extremes.len())].to_le_bytes();
                    let end = bytes.len().min(at + 8);
                    bytes[at..end].copy_from_slice(&extreme[..end - at]);
                }
                4 => {
                    let other = &seeds[dice.roll(seeds.len())];
                    let from = dice.roll(other.len());
                    let len = dice.roll(64).min(other.len() - from);
                    bytes.splice(at..at, other[from..from + len].iter().copied());
                }
                _ => {
                    let end = bytes.len().min(at + dice.roll(32));
                    bytes.drain(at..end);
                    bytes.push(0);
                }
            }
        }
        opened += usize::from(survive(&bytes));
    }
    assert!(opened > 1000, "too few damaged files opened: {opened}");
    crowded();
}

/// Files of only the smallest entries, which need the most memory relative to their size.
fn crowded() {
    let n = 20_000u64;
    let strings = Raw::new(3, 0, 1).string("k").u32(9).u32(8).u64(n).bytes(&vec![0; 8 * n as usize]).0;
    assert!(survive(&strings));
    let bytes = Raw::new(3, 0, 1).string("k").u32(9).u32(0).u64(n).bytes(&vec![1; n as usize]).0;
    assert!(survive(&bytes));
    let pairs = (0..n).fold(Raw::new(3, 0, n), |raw, i| raw.pair(&format!("{i}"), 0, &[1])).0;
    assert!(survive(&pairs));
    let start = Raw::new(3, n, 1).pair("general.alignment", 4, &[1, 0, 0, 0]);
    let tensors =
        (0..n).fold(start, |raw, i| raw.info(&format!("{i}"), &[], 24, i)).bytes(&vec![0; n as usize]).0;
    assert!(survive(&tensors));
}
