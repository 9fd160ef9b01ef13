//! How fast this machine reads memory that no cache holds.

use std::hint::black_box;
use std::time::Instant;

use crate::threads::{Pool, Task, Whose};

/// Bytes read per pass: more than caches hold. Fewer if memory is short.
const MOST: u64 = 1 << 30;
/// Words that a thread takes at a time.
const PIECE: usize = 1 << 17;
/// Passes, of which the fastest counts: other processes use the memory too.
const PASSES: usize = 4;

/// Bytes per second on all threads, using at most part of `free` bytes; `None` if that
/// is too little to measure.
pub(crate) fn measure(pool: &mut Pool, free: u64) -> Option<f64> {
    let words = (MOST.min(free / 4) / 8) as usize;
    if words < 1 << 20 {
        return None;
    }
    let mut buffer: Vec<u64> = vec![];
    buffer.try_reserve_exact(words).ok()?;
    buffer.extend(0..words as u64); // touched, so that it is mapped
    let task = Task { index: 0, items: words, unit: PIECE, most: PIECE };
    let seconds = (0..PASSES).map(|_| {
        let start = Instant::now();
        pool.run(&|worker| {
            for whose in [Whose::Own, Whose::Others] {
                worker.share(task, whose).for_each(|part| {
                    black_box(read(&buffer[part]));
                });
            }
        });
        start.elapsed().as_secs_f64()
    });
    seconds.min_by(f64::total_cmp).map(|best| words as f64 * 8.0 / best)
}

/// Reads several streams at once: one alone does not saturate memory.
fn read(words: &[u64]) -> u64 {
    const STREAMS: usize = 8;
    let len = words.len() / STREAMS / 8 * 8;
    let streams: [&[u64]; STREAMS] = std::array::from_fn(|i| &words[i * len..(i + 1) * len]);
    let mut sums = [0u64; 8];
    for at in (0..len).step_by(8) {
        for stream in streams {
            for (sum, x) in sums.iter_mut().zip(&stream[at..at + 8]) {
                *sum = sum.wrapping_add(*x);
            }
        }
    }
    sums.iter().fold(0, |all, x| all.wrapping_add(*x))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everything_is_read() {
        let words: Vec<u64> = (0..64 * 5).collect();
        assert_eq!(read(&words), words.iter().sum());
    }

    #[test]
    fn memory_has_a_speed_unless_there_is_none() {
        let mut pool = Pool::new(2).unwrap();
        let speed = measure(&mut pool, 1 << 28).unwrap();
        assert!((1e8..1e13).contains(&speed), "{speed} bytes a second");
        assert_eq!(measure(&mut pool, 1 << 20), None);
    }
}
