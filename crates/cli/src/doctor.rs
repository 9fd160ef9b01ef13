//! `tern doctor`: the hardware of this machine, what is missing, and whether its devices
//! compute correct results.

mod models;
mod routers;
mod stress;
mod stress_models;
mod threads;
mod verdicts;

use std::io::Write;
use std::path::Path;

use tern::cuda::Nvrtc;
use tern::graph::Backend;
use tern::graph::cases::{self, Case};
use tern::{Activations, Device, environment, units};

use self::threads::in_parallel;
use self::verdicts::Verdicts;
use crate::args::DoctorArgs;
use crate::error::{CliError, CliResult};

/// Tolerance for devices that store the scales of weights as f16.
const F16_SCALES: f32 = 5e-4;
/// The same if weights become halves in steps of all sizes: scales times codes are rounded
/// once more, by up to 2^-11.
const F16_WEIGHTS: f32 = 1e-3;
/// The same if activations are bytes with a scale per 512 columns: half a step is 1/254 of the largest one.
const BYTES: f32 = 2e-2;

pub(crate) fn doctor(args: &DoctorArgs) -> CliResult<()> {
    let mut out = std::io::stdout().lock();
    if let Some(folder) = &args.kernels {
        return kernels(folder, &mut out);
    }
    let cpu = tern::cpu::Cpu::new(tern::threads(args.model.threads))?.info();
    writeln!(out, "cpu      {}", cpu.name)?;
    writeln!(out, "memory   {}, {} free", units::bytes(cpu.memory_total), units::bytes(cpu.memory_free))?;
    match tern::cuda::devices() {
        Err(e) => writeln!(out, "gpu      none: {e}")?,
        Ok((version, gpus)) => {
            writeln!(out, "driver   CUDA {}.{}", version / 1000, version % 1000 / 10)?;
            for gpu in &gpus {
                let (major, minor) = gpu.capability;
                writeln!(
                    out,
                    "cuda:{}   {}, sm_{major}{minor}, {} multiprocessors, {}",
                    gpu.ordinal,
                    gpu.name,
                    gpu.processors,
                    units::bytes(gpu.memory)
                )?;
            }
            match Nvrtc::open(&environment::nvrtc_paths()) {
                Ok(n) => writeln!(out, "nvrtc    {}.{} at {}", n.version.0, n.version.1, n.path.display())?,
                Err(e) => writeln!(
                    out,
                    "nvrtc    missing: {e}\n         install it with: pip install nvidia-cuda-nvrtc"
                )?,
            }
        }
    }
    let kernels = environment::kernel_cache()
        .map_or("not cached".into(), |path| format!("cached in {}", path.display()));
    writeln!(out, "kernels  {kernels}")?;
    if args.ops {
        ops(args, &mut out)?;
    }
    if args.models {
        models::random(args, &mut out)?;
    }
    if args.stress {
        return stress_models::all(args, &mut out);
    }
    match args.model.given() {
        Some(name) => models::real(args, name, &mut out),
        None => Ok(()),
    }
}

/// Writes the programs of the CUDA backend, and what editors need to open kernels.
fn kernels(folder: &Path, out: &mut impl Write) -> CliResult<()> {
    let written = tern::cuda::write_programs(folder)
        .map_err(|e| CliError::message(format!("{}: {e}", folder.display())))?;
    writeln!(out, "{} programs in {}", written.programs, folder.join("programs").display())?;
    let commands = folder.join("compile_commands.json");
    match written.commands {
        0 => writeln!(
            out,
            "no compile_commands.json: this tern was built elsewhere, from files that are not here"
        )?,
        files => writeln!(out, "{files} files of kernels in {}", commands.display())?,
    }
    Ok(())
}

/// Threads that test a device: compiling kernels for a GPU takes longer than running them, and the
/// CPU uses all cores itself.
pub(crate) fn workers(device: Device) -> usize {
    if device == Device::Cpu { 1 } else { tern::threads(None).clamp(1, 8) }
}

/// Runs every op case on the device and compares it with the reference.
fn ops(args: &DoctorArgs, out: &mut impl Write) -> CliResult<()> {
    let selected = |c: &Case| args.filter.as_ref().is_none_or(|f| c.name.contains(f.as_str()));
    let mut verdicts = Verdicts::new(out, args.verbose);
    let device = args.model.device;
    let backend = args.model.backend()?;
    writeln!(verdicts.out, "\nops on {}", backend.info().name)?;
    let cells = backend.kv_cells();
    let all = cases::all()?.into_iter().filter(selected).filter(|c| cells.contains(&c.kv_cells));
    let all: Vec<Case> = all.collect();
    let each = |backend: &mut CliResult<Box<dyn Backend>>, case: &Case| {
        let limit = match device {
            Device::Cpu => case.tolerance,
            _ if args.model.reproducible => case.tolerance.max(F16_WEIGHTS),
            _ if args.model.activations == Activations::Int8 && case.allows_bytes() => BYTES,
            _ => case.tolerance.max(F16_SCALES),
        };
        let error = match backend {
            Ok(backend) => case.error(&mut **backend).map_err(|e| e.to_string()),
            Err(e) => Err(e.to_string()),
        };
        let (result, ok) = match error {
            Ok(error) => (format!("{error:.1e}"), error <= limit),
            Err(message) => (message, false),
        };
        (ok, format!("{:60} {result}", case.name))
    };
    let open = || args.model.backend();
    in_parallel(&all, workers(device), open, each, |(ok, line)| verdicts.add(ok, format_args!("{line}")))?;
    verdicts.end(format_args!("ops are wrong on {}", args.model.device))
}
