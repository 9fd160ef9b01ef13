//! Requests for more memory or threads than available are refused with both numbers,
//! before anything is allocated.

use tern_cpu::{Cpu, MAX_THREADS};
use tern_graph::{Attention, Backend, BackendError, Bindings, KvSpec, Reserve, cases};

const ARGS: Attention = Attention::full(4, 2, 64, 0.1);

/// The message of an out-of-memory error.
fn message<T>(result: Result<T, BackendError>) -> String {
    match result {
        Err(BackendError::OutOfMemory(words)) => words,
        Err(other) => panic!("another error: {other}"),
        Ok(_) => panic!("not refused"),
    }
}

#[test]
fn pages_that_no_memory_holds_are_refused() {
    let case = cases::attend(ARGS, &[1]).unwrap();
    let mut cpu = Cpu::new(1).unwrap();
    let mut reserve = |pages| {
        let layers = case.graph.kv.clone();
        message(cpu.reserve(&Reserve::Kv(KvSpec { layers, pages, page_len: 32, ..KvSpec::default() })))
    };
    let many = reserve(1 << 40);
    // 512 bytes per token
    assert!(many.starts_with("KV for 35184372088832 tokens takes 17179869184 MiB, and "), "{many}");
    assert!(many.contains(" MiB are free"), "{many}");
    assert!(reserve(usize::MAX).starts_with("KV for 18446744073709551615 tokens takes "));
}

#[test]
fn scratch_that_no_memory_holds_is_refused() {
    let case = cases::linear(&tern_quant::Q8_0, 64, 512, 1).unwrap();
    let mut cpu = Cpu::new(1).unwrap();
    let weights = case.store(&mut cpu).unwrap();
    let bindings = Bindings { weights: &weights, kv: None, state: None, max_tokens: 1 << 40, max_outputs: 1 };
    let many = message(cpu.compile(&case.graph, &bindings));
    assert!(many.starts_with("scratch for steps of 1099511627776 tokens takes "), "{many}");
    assert!(many.contains(" MiB are free"), "{many}");
    // the backend still works
    assert!(case.error(&mut cpu).unwrap() <= case.tolerance);
}

#[test]
fn more_threads_than_any_machine_has_are_refused() {
    let words = Cpu::new(100_000).err().unwrap().to_string();
    assert_eq!(words, format!("100000 threads: at most {MAX_THREADS}"));
}
