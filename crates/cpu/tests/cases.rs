//! Every op case on every instruction set this machine has: near the reference, and equal to the scalar kernels.

use tern_cpu::{Cpu, available};
use tern_graph::{Backend, Bindings, Reserve, Step, cases};

#[test]
fn every_case_is_near_the_reference() {
    for kernels in available() {
        for case in cases::all().unwrap() {
            for threads in [1, 3] {
                let error = case.error(&mut Cpu::with_kernels(threads, kernels)).unwrap();
                assert!(error <= case.tolerance, "{kernels:?}: {}: {error} > {}", case.name, case.tolerance);
            }
        }
    }
}

#[test]
fn every_instruction_set_equals_the_scalar_one() {
    let all = available();
    let (scalar, wide) = all.split_last().unwrap();
    for case in cases::all().unwrap() {
        let want = case.run(&mut Cpu::with_kernels(1, scalar)).unwrap();
        for kernels in wide {
            let got = case.run(&mut Cpu::with_kernels(2, kernels)).unwrap();
            let off = cases::distance(&got, &want);
            assert!(off <= 4e-6, "{kernels:?}: {}: {off} from scalar", case.name);
        }
    }
}

/// A token's row is the same bits alone, in a chunk and beside others: batching never changes a text.
#[test]
fn rows_do_not_depend_on_their_neighbours() {
    let case = cases::linear(&tern_quant::Q4_1, 96, 512, 1).unwrap();
    for kernels in available() {
        let mut cpu = Cpu::with_kernels(2, kernels);
        let weights: Vec<_> = case.weights.iter().map(|t| cpu.store(t).unwrap()).collect();
        let kv = cpu.reserve(&Reserve::Kv { layers: vec![], pages: 4, page_len: 16 }).unwrap();
        let bindings = Bindings { weights: &weights, kv: Some(kv), max_tokens: 50, max_outputs: 50 };
        let program = cpu.compile(&case.graph, &bindings).unwrap();
        let mut run = |tokens: &[u32]| {
            let ticket = cpu.submit(program, Step::all_logits(tokens, 0, vec![0, 1, 2, 3])).unwrap();
            cpu.collect(ticket).unwrap().rows
        };
        let tokens: Vec<u32> = (0..50).collect();
        let together = run(&tokens);
        for (i, row) in together.iter().enumerate() {
            assert_eq!(&run(&tokens[i..i + 1])[0], row, "{kernels:?}: token {i}");
        }
    }
}

#[test]
fn steps_that_do_not_fit_are_refused_in_words() {
    let case = cases::linear(&tern_quant::Q8_0, 32, 64, 1).unwrap();
    let mut cpu = Cpu::new(1);
    let mut refused = |edit: fn(&mut Step)| {
        let mut case = case.clone();
        edit(&mut case.steps[0]);
        case.run(&mut cpu).unwrap_err().to_string()
    };
    assert_eq!(refused(|s| s.tokens[0] = 64), "token id 64 is outside the vocabulary of 64");
    assert_eq!(refused(|s| s.tokens.clear()), "a step has no tokens");
    assert_eq!(refused(|s| s.slices[0].len = 2), "slices cover 2 of 1 tokens");
    assert_eq!(refused(|s| s.slices[0].pages.clear()), "0 pages of 16 do not hold position 0");
    assert_eq!(refused(|s| s.outputs[0].row = 9), "output row 9 of 1 tokens");
}
