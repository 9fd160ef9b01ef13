//! A folder with the complete text of each program, and a `compile_commands.json` with which clangd opens the
//! files of `kernels`.
//!
//! Editors read kernels as C++ for the emulated GPU (`tests/emulated_gpu/gpu.h`), except `base/ptx.cuh`,
//! whose PTX is for a GPU.

use std::fs;
use std::io::{Error, Result};
use std::path::Path;

use super::typical;
use crate::driver::{FILES, HOST_FILES, KernelSource};

/// Where the files of kernels are, if this program was built on this machine.
const KERNELS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/kernels");
const EMULATED_GPU: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/emulated_gpu/gpu.h");

/// The file with the instructions of the GPU.
const PTX: &str = "base/ptx.cuh";

/// What the compiler of a GPU declares and `base/ptx.cuh` uses.
const PTX_BUILTINS: &str = "#define __device__
#define __forceinline__ inline
#define __noinline__
struct Dim { unsigned x, y, z; };
extern const Dim threadIdx;
float fabsf(float);
unsigned __float_as_uint(float);
float __int_as_float(int);
int __float2int_rn(float);
unsigned min(unsigned, unsigned);
unsigned long __cvta_generic_to_shared(const void*);
";

/// What [`write_programs`] has written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WrittenPrograms {
    /// Complete texts, in `programs`.
    pub programs: usize,
    /// Files of kernels that `compile_commands.json` has a command for; 0 if they are not on this machine.
    pub commands: usize,
}

/// Writes the complete text of a program of each kind into a folder, and how editors
/// compile each file of kernels.
pub fn write_programs(folder: &Path) -> Result<WrittenPrograms> {
    let write = |path: &str, text: &str| {
        let path = folder.join(path);
        fs::create_dir_all(path.parent().unwrap_or(folder))?;
        fs::write(path, text)
    };
    let programs = typical();
    for program in &programs {
        write(&format!("programs/{}", base_name(program.file())), &program.text())?;
        write(&defines_file(program), &program.c_defines())?;
        for file in HOST_FILES {
            let text = format!("#pragma once\n{}", program.host_text(file));
            write(&format!("{}/{file}", include_folder(program)), &text)?;
        }
    }
    if !Path::new(KERNELS).is_dir() {
        return Ok(WrittenPrograms { programs: programs.len(), commands: 0 });
    }
    // the emulated GPU leaves a namespace open, which has all of a program
    let ptx =
        format!("#pragma once\n#include \"{EMULATED_GPU}\"\n}}\n#undef __shared__\n#define __shared__\n");
    write(&format!("emulated/{PTX}"), &ptx)?;
    write("ptx_builtins.h", PTX_BUILTINS)?;
    let folder = fs::canonicalize(folder)?;
    let commands =
        FILES.iter().map(|(file, _)| command(&folder, &programs, file)).collect::<Result<Vec<_>>>()?;
    let text = format!("[\n{}\n]\n", commands.join(",\n"));
    fs::write(folder.join("compile_commands.json"), text)?;
    Ok(WrittenPrograms { programs: programs.len(), commands: commands.len() })
}

fn base_name(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
}

/// The folder of what the host writes for a program.
fn include_folder(program: &KernelSource) -> String {
    format!("include/{}", base_name(program.file()).trim_end_matches(".cu"))
}

fn defines_file(program: &KernelSource) -> String {
    format!("{}/defines.h", include_folder(program))
}

/// What compiles a file of kernels as a part of the first program that has it, after what comes before it
/// there; in `folder`, not in that of kernels, in which `base/ptx.cuh` is not that of the emulated GPU.
fn arguments(folder: &Path, programs: &[KernelSource], file: &str) -> Result<Vec<String>> {
    let in_folder = |path: &str| folder.join(path).display().to_string();
    let general = ["-xc++", "-std=c++20", "-fsyntax-only", "-Wno-pragma-once-outside-header"];
    let mut arguments = general.map(String::from).to_vec();
    arguments.extend(["-D__CUDA_ARCH__=900".into(), "-DREPRODUCIBLE=false".into()]);
    if file == PTX {
        let features = "-D__CUDA_ARCH_FEAT_SM90_ALL=1".into();
        arguments.extend(["--target=nvptx64-nvidia-cuda".into(), features]);
        arguments.extend(["-include".into(), in_folder("ptx_builtins.h")]);
    } else {
        let (program, before) = before(programs, file)?;
        for path in ["emulated".into(), include_folder(program)] {
            arguments.push(format!("-I{}", in_folder(&path)));
        }
        arguments.push(format!("-I{KERNELS}"));
        arguments.extend(["-include".into(), in_folder(&defines_file(program))]);
        arguments.extend(before.into_iter().flat_map(|file| ["-include".into(), file]));
    }
    arguments.push(format!("{KERNELS}/{file}"));
    Ok(arguments)
}

/// The entry of a file in `compile_commands.json`.
fn command(folder: &Path, programs: &[KernelSource], file: &str) -> Result<String> {
    let arguments = arguments(folder, programs, file)?;
    let arguments: String = arguments.iter().map(|a| format!(", {}", json(a))).collect();
    let (directory, file) = (json(&folder.display().to_string()), json(&format!("{KERNELS}/{file}")));
    Ok(format!("{{\"directory\": {directory}, \"file\": {file}, \"arguments\": [\"clang++\"{arguments}]}}"))
}

/// The first program that has this file, and the files that come before it there.
fn before<'a>(programs: &'a [KernelSource], file: &str) -> Result<(&'a KernelSource, Vec<String>)> {
    for program in programs {
        let mut files = program.files().map_err(Error::other)?;
        if let Some(at) = files.iter().position(|other| other == file) {
            files.truncate(at);
            return Ok((program, files));
        }
    }
    Err(Error::other(format!("{file} is in no program")))
}

/// A string in JSON.
fn json(text: &str) -> String {
    let escaped = text.replace('\\', "\\\\").replace('"', "\\\"");
    format!("\"{escaped}\"")
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn every_file_of_kernels_has_a_command_and_every_program_its_text() {
        let folder = tempfile::tempdir().unwrap();
        let written = write_programs(folder.path()).unwrap();
        assert_eq!((written.programs, written.commands), (12, FILES.len()));
        let commands = fs::read_to_string(folder.path().join("compile_commands.json")).unwrap();
        for (file, _) in FILES {
            assert!(commands.contains(&format!("\"file\": \"{KERNELS}/{file}\"")), "{file}");
        }
        let text = fs::read_to_string(folder.path().join("programs/one_token.cu")).unwrap();
        assert!(text.starts_with("#define FORMATS(X)") && text.contains("\n#line 1 \"linear/linear.cuh\"\n"));
    }

    /// As an editor does: each program, and headers that need what comes before them.
    #[test]
    fn files_of_kernels_compile_with_their_commands() {
        let compiler = std::env::var("CXX").unwrap_or_else(|_| "c++".into());
        if !Command::new(&compiler).arg("--version").output().is_ok_and(|out| out.status.success()) {
            println!(
                "skipped: files_of_kernels_compile_with_their_commands (there is no C++ compiler: c++ or CXX)"
            );
            return;
        }
        let folder = tempfile::tempdir().unwrap();
        write_programs(folder.path()).unwrap();
        let programs = typical();
        let files = programs.iter().map(KernelSource::file);
        for file in files.chain(["fused_step/step.cuh", "attention/paged_heads.cuh"]) {
            let arguments = arguments(folder.path(), &programs, file).unwrap();
            let out = Command::new(&compiler).args(arguments).current_dir(folder.path()).output().unwrap();
            assert!(out.status.success(), "{file}: {}", String::from_utf8_lossy(&out.stderr));
        }
    }
}
