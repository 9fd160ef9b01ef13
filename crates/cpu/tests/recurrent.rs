//! Recurrent ops: chunks of a prompt change no bit, and a slot that is only read keeps its state.

use tern_cpu::{Cpu, available};
use tern_graph::{Backend, Bindings, Reserve, Slice, StateSlots, StateSpec, Step, cases};

#[test]
fn chunks_change_no_bit() {
    for kernels in available() {
        let run = |lens: &[usize]| {
            let case = cases::delta_layer(lens).expect("a case");
            let mut cpu = Cpu::with_kernels(2, kernels).expect("threads");
            case.run(&mut cpu).expect("a run")
        };
        let whole = run(&[83]);
        for lens in [&[64, 19][..], &[1, 2, 80], &[7, 7, 7, 7, 7, 7, 7, 34], &[82, 1]] {
            assert!(run(lens) == whole, "{kernels:?}: chunks of {lens:?}");
        }
    }
}

/// A step in flight for one sequence does not touch the slots of others, and a snapshot can
/// be read again and again.
#[test]
fn a_slot_that_is_read_keeps_its_state() {
    let case = cases::delta_layer(&[9]).expect("a case");
    let mut cpu = Cpu::new(2).expect("threads");
    let weights = case.store(&mut cpu).expect("weights");
    let spec = StateSpec { layers: case.graph.states.clone(), slots: 3 };
    let state = Some(cpu.reserve(&Reserve::State(spec)).expect("state"));
    let bindings = Bindings { weights: &weights, kv: None, state, max_tokens: 16, max_outputs: 16 };
    let program = cpu.compile(&case.graph, &bindings).expect("a program");
    let mut run = |len: usize, position: usize, read: Option<u32>, write: u32| {
        let tokens = &case.steps[0].tokens[position..position + len];
        let slice = Slice { state: Some(StateSlots { read, write }), ..Slice::new(len, position, vec![]) };
        let step = Step { slices: vec![slice], ..Step::all_logits(tokens, position, vec![]) };
        let ticket = cpu.submit(program, step).expect("a step");
        cpu.collect(ticket).expect("rows").rows
    };
    let whole = run(9, 0, None, 2);
    assert!(run(5, 0, None, 0)[..] == whole[..5]);
    for _ in 0..2 {
        assert!(run(4, 5, Some(0), 1)[..] == whole[5..], "from the snapshot");
    }
    assert!(run(4, 5, Some(0), 0)[..] == whole[5..], "in place");
    assert!(run(4, 5, Some(0), 0)[..] != whole[5..], "the slot has moved on");
}
