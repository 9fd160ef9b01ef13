//! Kernels without a GPU: a driver and a compiler that emulate one
//! (`crates/cuda/tests/emulated_gpu`) run small models.

use std::path::Path;
use std::process::Command;

/// Compares small models or ops with the CPU: `right` results, on a GPU with `processors` multiprocessors.
fn compare(name: &str, options: &[&str], processors: &str, right: usize) -> std::io::Result<()> {
    let compiler = std::env::var("CXX").unwrap_or_else(|_| "c++".into());
    let compiles = Command::new(&compiler).arg("--version").output().is_ok_and(|out| out.status.success());
    if !compiles || !cfg!(all(target_os = "linux", target_arch = "x86_64")) {
        println!("skipped: it needs a C++ compiler (c++ or CXX) on Linux and x86-64");
        return Ok(());
    }
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts/emulated_gpu");
    let ran = Command::new(script)
        .arg(env!("CARGO_BIN_EXE_tern"))
        .args(["doctor", "--device", "cuda", "--filter", name])
        .args(options)
        .env("EMULATED_GPU", Path::new(env!("CARGO_TARGET_TMPDIR")).join("emulated_gpu").join(processors))
        .env("EMULATED_GPU_PROCESSORS", processors)
        .output()?;
    let (out, errors) = (String::from_utf8_lossy(&ran.stdout), String::from_utf8_lossy(&ran.stderr));
    assert!(ran.status.success() && out.contains(&format!("{right} right, 0 wrong")), "{out}\n{errors}");
    Ok(())
}

/// With --reproducible, logits also have the same bits for any number of tokens per step.
#[test]
fn reproducible_steps_of_all_sizes_have_the_same_bits() {
    compare("tiny-qwen35:q8_0", &["--models", "--reproducible"], "4", 4).unwrap();
}

/// The only block has all tiles of every linear: more than it writes at once.
#[test]
fn a_gpu_with_one_multiprocessor_runs_recurrent_layers() {
    compare("tiny-qwen35moe:q8_0", &["--models"], "1", 4).unwrap();
}

/// Blocks run one after the other: none may write what a later one of the same launch reads.
#[test]
fn launches_run_recurrent_layers_with_blocks_in_sequence() {
    compare("tiny-qwen35:q8_0", &["--models", "--kv", "int8"], "2", 4).unwrap();
}

/// A block has many tiles: codes of two bits are multiplied as bits.
#[test]
fn many_tiles_of_two_bit_codes_are_multiplied_as_bits() {
    compare("linear pq2_0 12000x384 tokens 1", &["--ops"], "3", 1).unwrap();
}

/// Records are large: a slot of the ring has half a round of them, and a tile five slots.
#[test]
fn slots_of_half_a_round_are_multiplied_by_half_of_the_warps() {
    compare("linear q8_0 200x5120 tokens 1", &["--ops"], "3", 1).unwrap();
}

/// Slices are divided at the borders of an image whose tokens see each other. Heads of 20 columns are
/// followed by zeros.
#[test]
fn tokens_of_an_image_see_each_other() {
    compare("attend, whole images", &["--ops"], "2", 2).unwrap();
}

/// The first two of four layers and the embedding on the CPU: recurrent layers on both devices, and steps
/// of all sizes.
#[test]
fn layers_are_on_the_cpu_and_on_a_gpu() {
    compare("tiny-qwen35:q8_0", &["--models", "--gpu-layers", "3"], "2", 4).unwrap();
}

/// Only the output on the GPU, whose layers with a window are on the CPU.
#[test]
fn the_output_alone_is_on_a_gpu() {
    compare("tiny-gemma3:q8_0", &["--models", "--gpu-layers", "1", "--kv", "int8"], "2", 4).unwrap();
}
