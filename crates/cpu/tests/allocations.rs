//! A step allocates its output and nothing else: all other memory is reserved in advance.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};

use tern_cpu::{Cpu, available};
use tern_graph::{Attention, Backend, Bindings, KvSpec, Reserve, Step, cases};

/// The system allocator, with a counter.
struct Counted;

static TAKEN: AtomicUsize = AtomicUsize::new(0);

// SAFETY: all calls are forwarded to the system allocator.
unsafe impl GlobalAlloc for Counted {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        TAKEN.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the contract of `GlobalAlloc`.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the contract of `GlobalAlloc`.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static MEMORY: Counted = Counted;

/// Allocations of an output: its rows, the logits of one, and the tokens that the next step may carry over.
const ANSWER: usize = 4;

/// The fewest allocations of a step of `tokens`: in the first steps threads size their workspaces.
fn allocations(case: &cases::Case, kernels: &'static tern_cpu::Kernels, tokens: usize) -> usize {
    let mut cpu = Cpu::with_kernels(2, kernels).expect("threads");
    let weights = case.store(&mut cpu).expect("memory for weights");
    let kv = KvSpec { layers: case.graph.kv.clone(), pages: 4, page_len: 16, ..KvSpec::default() };
    let kv = cpu.reserve(&Reserve::Kv(kv)).expect("memory for pages");
    let bindings = Bindings { weights: &weights, kv: Some(kv), state: None, max_tokens: 32, max_outputs: 32 };
    let program = cpu.compile(&case.graph, &bindings).expect("a program");
    let mut taken = usize::MAX;
    for _ in 0..12 {
        let mut step = Step::all_logits(&vec![1; tokens], 0, vec![0, 1, 2, 3]);
        step.outputs.truncate(1);
        let before = TAKEN.load(Ordering::Relaxed);
        let ticket = cpu.submit(program, step).expect("a step");
        taken = taken.min(TAKEN.load(Ordering::Relaxed) - before);
        cpu.collect(ticket).expect("its output");
    }
    taken
}

/// The only test of this file: the allocations of others would be counted too.
#[test]
fn only_the_answer_is_allocated() {
    let args = Attention::full(6, 2, 64, 0.2);
    let mut all = vec![cases::attend(args, &[1]).unwrap()];
    for quant in tern_quant::ALL.iter().filter(|q| q.is_runnable()) {
        all.push(cases::expert_mlp(quant, 1).unwrap());
        all.push(cases::linear(quant, 48, 512, 1).unwrap());
    }
    for kernels in available() {
        for case in &all {
            for tokens in [1, 5, 32] {
                let taken = allocations(case, kernels, tokens);
                assert!(taken <= ANSWER, "{kernels:?}: {} with {tokens} tokens: {taken}", case.name);
            }
        }
    }
}
