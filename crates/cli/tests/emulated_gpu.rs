//! Kernels without a GPU: a driver and a compiler that emulate one (`crates/cuda/tests/emulated_gpu`) run small models.

use std::path::Path;
use std::process::Command;

/// A GPU with one multiprocessor, whose block has all tiles of every linear: more than it writes at once.
#[test]
fn a_gpu_with_one_multiprocessor_runs_recurrent_layers() {
    let compiler = std::env::var("CXX").unwrap_or_else(|_| "c++".into());
    let compiles = Command::new(&compiler).arg("--version").output().is_ok_and(|out| out.status.success());
    if !compiles || !cfg!(all(target_os = "linux", target_arch = "x86_64")) {
        println!("skipped: it needs a C++ compiler (c++ or CXX) on Linux and x86-64");
        return;
    }
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts/emulated_gpu");
    let ran = Command::new(script)
        .arg(env!("CARGO_BIN_EXE_tern"))
        .args(["doctor", "--models", "--device", "cuda", "--filter", "tiny-qwen35moe:q8_0"])
        .env("EMULATED_GPU", Path::new(env!("CARGO_TARGET_TMPDIR")).join("emulated_gpu"))
        .env("EMULATED_GPU_PROCESSORS", "1")
        .output()
        .unwrap();
    let (out, errors) = (String::from_utf8_lossy(&ran.stdout), String::from_utf8_lossy(&ran.stderr));
    assert!(ran.status.success() && out.contains("4 right, 0 wrong"), "{out}\n{errors}");
}
