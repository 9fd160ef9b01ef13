//! Every op case on every instruction set of this machine: close to the reference, and
//! equal to the scalar kernels.

use std::error::Error;

use tern_cpu::{Cpu, available};
use tern_graph::cases::{Case, Experts};
use tern_graph::{Attention, Backend, Bindings, HostTensor, KvSpec, Reserve, Step, cases};
use tern_quant::{MXFP4, NVFP4, Q1_0, Q2_0, Q2_K, Q3_K, Q6_K, Q8_0, Quant};

/// The cases whose types of keys and values the CPU has.
fn all_cases() -> impl Iterator<Item = Case> {
    let cells = Cpu::new(1).expect("a CPU").kv_cells();
    cases::all().expect("all cases").into_iter().filter(|case| cells.contains(&case.kv_cells))
}

#[test]
fn every_case_is_near_the_reference() {
    for kernels in available() {
        for case in all_cases() {
            for threads in [1, 3] {
                let error = case.error(&mut Cpu::with_kernels(threads, kernels).unwrap()).unwrap();
                assert!(error <= case.tolerance, "{kernels:?}: {}: {error} > {}", case.name, case.tolerance);
            }
        }
    }
}

#[test]
fn every_instruction_set_equals_the_scalar_one() {
    let all = available();
    let (scalar, wide) = all.split_last().unwrap();
    for case in all_cases() {
        let want = case.run(&mut Cpu::with_kernels(1, scalar).unwrap()).unwrap();
        for kernels in wide {
            let got = case.run(&mut Cpu::with_kernels(2, kernels).unwrap()).unwrap();
            let off = case.distance(&got, &want);
            // a second linear quantizes activations that differ in the last bit
            let two =
                ["residual", "mlp", "delta layer", "adapters"].iter().any(|name| case.name.starts_with(name));
            // the matrix unit multiplies floats as sums of two bf16, of 17 bits
            let most = match kernels.name {
                _ if case.name.starts_with("layer") => 1e-4, // four linears, and attention
                _ if two => 3e-5,
                "amx" => 8e-6,
                _ => 4e-6,
            };
            assert!(off <= most, "{kernels:?}: {}: {off} from scalar", case.name);
        }
    }
}

/// Results on one instruction set and on the scalar one.
type Compared = (&'static str, Vec<f32>, Vec<f32>);

/// A linear of 256 rows whose blocks were edited, given their row, on every instruction set.
fn with_blocks(
    quant: &'static Quant,
    tokens: usize,
    edit: impl Fn(usize, &mut [u8]),
) -> Result<Vec<Compared>, Box<dyn Error>> {
    let mut case = cases::linear(quant, 256, 256, tokens)?;
    let weights = case.weights.last_mut().ok_or("no weights")?;
    let mut data = weights.data().to_vec();
    for (r, row) in data.chunks_exact_mut(256 / quant.block_len * quant.block_bytes()).enumerate() {
        row.chunks_exact_mut(quant.block_bytes()).for_each(|block| edit(r, block));
    }
    *weights = HostTensor::new(weights.name(), quant, [256, 256], data.into())?;
    let all = available();
    let (scalar, wide) = all.split_last().ok_or("no kernels")?;
    let want = case.run(&mut Cpu::with_kernels(1, scalar)?)?;
    wide.iter().map(|k| Ok((k.name, case.run(&mut Cpu::with_kernels(1, k)?)?, want.clone()))).collect()
}

#[test]
fn every_byte_of_a_small_float_is_its_scale() {
    // scales per block, and the largest byte with finite results
    for (quant, scales, most) in [(&MXFP4, 1, 240), (&NVFP4, 4, 255)] {
        let edit = |r: usize, block: &mut [u8]| block[..scales].fill(r.min(most) as u8);
        for (name, got, want) in with_blocks(quant, 1, edit).unwrap() {
            for (r, (got, want)) in got.iter().zip(want).enumerate() {
                assert!((got - want).abs() <= 1e-3 * want.abs(), "{name}: {quant}: {r}: {got} for {want}");
            }
        }
    }
}

#[test]
fn the_largest_codes_and_scales_do_not_overflow() {
    // the byte of the largest codes and scales, and the offset of a block's scales
    for (quant, byte, d) in [(&Q2_K, 0xFF, 80), (&Q3_K, 0x00, 108), (&Q6_K, 0x80, 208)] {
        let edit = |r: usize, block: &mut [u8]| {
            block[16 * (r % 4)..].fill(byte);
            block[d..].as_chunks_mut::<2>().0.fill([0x00, 0x3C]); // one
        };
        for (name, got, want) in with_blocks(quant, 20, edit).unwrap() {
            let off = cases::distance(&got, &want);
            assert!(off <= 4e-6, "{name}: {quant}: {off} from scalar");
        }
    }
}

const EXPERTS: Experts = Experts { count: 3, used: 2, rows: 35, cols: 512 };

/// A token's row is the same bits alone, in a chunk and in a batch: batching never changes a text.
#[test]
fn rows_do_not_depend_on_the_batch() {
    let mut all: Vec<_> = [&Q8_0, &Q2_0].map(|q| cases::two_linears([&Q1_0, q], 35, 512, 1).unwrap()).into();
    for quant in cases::formats() {
        for (rows, cols) in [(35, 512), (8, 288usize.next_multiple_of(quant.block_len))] {
            all.push(cases::linear(quant, rows, cols, 1).unwrap());
        }
        // several blocks of columns, the last of them partial
        if quant.codes().is_none() {
            for cols in [1100, 1121] {
                all.push(cases::linear(quant, 35, cols, 1).unwrap());
            }
        }
    }
    // experts: how many tokens choose the same one depends on the batch
    for quant in cases::formats() {
        all.push(cases::expert_linear(quant, EXPERTS, 1).unwrap());
        if quant.block_len <= 256 {
            all.push(cases::expert_mlp(quant, 1).unwrap());
        }
    }
    for case in all {
        for kernels in available() {
            let mut cpu = Cpu::with_kernels(2, kernels).unwrap();
            let weights = case.store(&mut cpu).unwrap();
            let kv =
                cpu.reserve(&Reserve::Kv(KvSpec { pages: 4, page_len: 16, ..KvSpec::default() })).unwrap();
            let bindings =
                Bindings { weights: &weights, kv: Some(kv), state: None, max_tokens: 50, max_outputs: 50 };
            let program = cpu.compile(&case.graph, &bindings).unwrap();
            let mut run = |tokens: &[u32]| {
                let ticket = cpu.submit(program, Step::all_logits(tokens, 0, vec![0, 1, 2, 3])).unwrap();
                cpu.collect(ticket).unwrap().rows
            };
            let tokens: Vec<u32> = (0..50).collect();
            let together = run(&tokens);
            for size in [1, 4, 7, 9, 24] {
                let parts: Vec<_> = tokens.chunks(size).flat_map(&mut run).collect();
                assert_eq!(parts, together, "{kernels:?}: {}, {size} at a time", case.name);
            }
        }
    }
}

/// With more threads than cores some arrive after a phase has ended, and must not read
/// what later phases write.
#[test]
fn threads_that_are_late_do_not_change_the_results_of_experts() {
    let case = cases::expert_mlp(&Q8_0, 40).unwrap();
    let want = case.run(&mut Cpu::new(1).unwrap()).unwrap();
    let mut cpu = Cpu::new(9).unwrap();
    let mut run = case.prepare(&mut cpu).unwrap();
    for _ in 0..100 {
        let got: Vec<f32> = (0..case.steps.len()).flat_map(|i| run.step(i).unwrap()).collect();
        assert!(got == want, "off by {}", case.distance(&got, &want));
    }
}

/// The same for attention, whose tokens share the keys and values they read.
#[test]
fn attention_does_not_depend_on_the_size_of_steps() {
    for (heads, kv_heads, window) in [(6, 2, None), (6, 2, Some(19)), (3, 3, None), (4, 1, Some(3))] {
        let args = Attention { v_dim: 40, window, ..Attention::full(heads, kv_heads, 72, 0.2) };
        for kernels in available() {
            let run = |lens: &[usize]| {
                cases::attend(args, lens).unwrap().run(&mut Cpu::with_kernels(2, kernels).unwrap()).unwrap()
            };
            let alone = run(&[1; 60]);
            for lens in [&[60][..], &[17, 43], &[5, 1, 16, 38]] {
                assert_eq!(run(lens), alone, "{kernels:?}: {heads}/{kv_heads} heads, steps {lens:?}");
            }
        }
    }
}

/// Long contexts are split into runs that threads share: the same bits on any number of
/// threads, in steps of any size.
#[test]
fn split_attention_is_near_the_reference_and_the_same_on_any_number_of_threads() {
    for (heads, kv_heads, window) in [(4, 2, None), (2, 2, Some(600)), (2, 1, Some(40))] {
        let args = Attention { v_dim: 24, window, ..Attention::full(heads, kv_heads, 32, 0.3) };
        for kernels in available() {
            let case = |lens: &[usize]| cases::attend(args, lens).unwrap();
            let run = |threads: usize, lens: &[usize]| {
                case(lens).run(&mut Cpu::with_kernels(threads, kernels).unwrap()).unwrap()
            };
            let together = run(2, &[1060]);
            for (threads, lens) in
                [(1, &[511, 1, 1, 511, 1, 1, 34][..]), (3, &[1000, 7, 16, 37]), (5, &[1, 1040, 19])]
            {
                assert!(run(threads, lens) == together, "{kernels:?}: {heads} heads, steps {lens:?}");
            }
            let error = case(&[1030, 1, 4]).error(&mut Cpu::with_kernels(3, kernels).unwrap()).unwrap();
            assert!(error < 2e-3, "{kernels:?}: {heads} heads: {error}");
        }
    }
}

#[test]
fn invalid_steps_are_refused_with_a_message() {
    let case = cases::linear(&tern_quant::Q8_0, 32, 64, 1).unwrap();
    let mut cpu = Cpu::new(1).unwrap();
    let mut refused = |edit: fn(&mut Step)| {
        let mut case = case.clone();
        edit(&mut case.steps[0]);
        case.run(&mut cpu).unwrap_err().to_string()
    };
    assert_eq!(refused(|s| s.tokens[0] = 64), "token id 64 is outside the vocabulary of 64");
    assert_eq!(refused(|s| s.tokens.clear()), "a step has no tokens");
    assert_eq!(refused(|s| s.slices[0].len = 2), "slices cover 2 of 1 tokens");
    assert_eq!(refused(|s| s.slices[0].pages.make_mut().clear()), "0 pages of 16 do not hold position 0");
    assert_eq!(refused(|s| s.outputs[0].row = 9), "output row 9 of 1 tokens");
}
