//! Keys and values stored as bytes: close to the reference, and the same in steps of any size.

use tern_cpu::{Cpu, available};
use tern_graph::{Attention, KvCells, cases};

/// An attention case over steps of these lengths.
fn case(args: Attention, lens: &[usize], cells: KvCells) -> cases::Case {
    let mut case = cases::attend(args, lens).expect("an attention case");
    case.kv_cells = cells;
    case
}

#[test]
fn bytes_are_near_the_reference_and_do_not_depend_on_the_size_of_steps() {
    for (heads, kv_heads, window) in [(6, 2, None), (4, 1, Some(19))] {
        let args = Attention { v_dim: 40, window, ..Attention::full(heads, kv_heads, 72, 0.2) };
        for kernels in available() {
            let error = |cells| {
                let case = case(args, &[17, 43], cells);
                case.error(&mut Cpu::with_kernels(2, kernels).unwrap()).unwrap()
            };
            let (halves, bytes) = (error(KvCells::F16), error(KvCells::Int8));
            assert!(bytes < 1e-2 && bytes > halves, "{kernels:?}: {bytes} as bytes, {halves} as halves");
            let run = |lens: &[usize]| {
                case(args, lens, KvCells::Int8).run(&mut Cpu::with_kernels(2, kernels).unwrap()).unwrap()
            };
            let alone = run(&[1; 60]);
            for lens in [&[60][..], &[17, 43], &[5, 1, 16, 38]] {
                assert_eq!(run(lens), alone, "{kernels:?}: {heads}/{kv_heads} heads, steps {lens:?}");
            }
        }
    }
}
