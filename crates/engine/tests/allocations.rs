//! What a step of decoding allocates does not grow with the context, the biases or the
//! tokens that penalties look at.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use tern_engine::{Answer, Capacity, Entry, Limits, Request, Sampled, Sampling, Scheduler};

/// The system's allocator, with the bytes counted per thread.
struct Counted;

thread_local! {
    static BYTES: Cell<usize> = const { Cell::new(0) };
}

// SAFETY: every call is forwarded to the system's allocator.
unsafe impl GlobalAlloc for Counted {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        BYTES.with(|bytes| bytes.set(bytes.get() + layout.size()));
        // SAFETY: the layout is the caller's.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: pointer and layout are the caller's.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static MEMORY: Counted = Counted;

const SEQS: usize = 4;
const PAGE_LEN: usize = 32;

/// The fewest bytes that planning, converting and applying one step allocates: a step that
/// fills a page needs more.
fn bytes_per_step(depth: usize, sampling: &Sampling) -> usize {
    let pages = SEQS * (depth + 100).div_ceil(PAGE_LEN);
    let capacity = Capacity {
        pages,
        page_len: PAGE_LEN,
        max_tokens: SEQS * depth,
        max_outputs: SEQS,
        window: None,
        state: None,
    };
    let limits = Limits { max_seqs: SEQS, max_context: depth + 100, max_waiting: 0, step_millis: 0 };
    let mut scheduler = Scheduler::new(limits, capacity).expect("valid sizes");
    for id in 0..SEQS as u32 {
        let prompt = (0..depth as u32).map(|i| i * 31 + id).collect();
        let request = Request { sampling: sampling.clone(), ..Request::new(prompt, 90) };
        scheduler.add(u64::from(id), request).expect("room for a sequence");
    }
    let mut fewest = usize::MAX;
    for _ in 0..20 {
        let before = BYTES.get();
        let batch = scheduler.plan(usize::MAX);
        let step = batch.to_step(|entry: &Entry| !entry.needs_hidden());
        let answers: Vec<Answer> = batch
            .entries
            .iter()
            .map(|_| Answer::Tokens(vec![Sampled { id: 31, ..Sampled::default() }]))
            .collect();
        drop(step);
        scheduler.apply(&batch, &answers);
        fewest = fewest.min(BYTES.get() - before);
    }
    fewest
}

#[test]
fn a_step_of_decoding_copies_no_pages_biases_or_counts() {
    let plain = Sampling::default();
    let biased = Sampling { bias: (0..1000).map(|id| (id, 1.0)).collect(), ..plain.clone() };
    let penalised = Sampling { frequency: 0.5, ..plain.clone() };
    let short = bytes_per_step(64, &plain);
    assert!(short < 1024 * SEQS, "{short} bytes");
    for (name, sampling) in [("plain", plain), ("biased", biased), ("penalised", penalised)] {
        assert_eq!(bytes_per_step(4096, &sampling), short, "{name}");
    }
}
