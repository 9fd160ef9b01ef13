//! `tern doctor`: the hardware of this machine, what is missing, and whether its devices compute correct results.

use std::io::Write;

use tern::cuda::Nvrtc;
use tern::graph::Backend;
use tern::graph::cases::{self, Case};
use tern::{Device, environment, units};

use crate::args::DoctorArgs;
use crate::error::CliResult;
use crate::verdicts::Verdicts;
use crate::{doctor_models, doctor_stress};

/// Tolerance for devices that store the scales of weights as f16.
const F16_SCALES: f32 = 5e-4;

pub(crate) fn doctor(args: &DoctorArgs) -> CliResult<()> {
    let mut out = std::io::stdout().lock();
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
        doctor_models::random(args, &mut out)?;
    }
    if args.stress {
        return doctor_stress::all(args, &mut out);
    }
    match args.model.model.as_ref().or(args.model.hf.as_ref()) {
        Some(name) => doctor_models::real(args, name, &mut out),
        None => Ok(()),
    }
}

/// Runs every op case on the device and compares it with the reference.
fn ops(args: &DoctorArgs, out: &mut impl Write) -> CliResult<()> {
    let selected = |c: &Case| args.filter.as_ref().is_none_or(|f| c.name.contains(f.as_str()));
    let mut verdicts = Verdicts::new(out, args.verbose);
    let mut backend = args.model.device.open(args.model.threads)?;
    writeln!(verdicts.out, "\nops on {}", backend.info().name)?;
    let cells = backend.kv_cells();
    for case in cases::all()?.into_iter().filter(selected).filter(|c| cells.contains(&c.kv_cells)) {
        let limit =
            if args.model.device == Device::Cpu { case.tolerance } else { case.tolerance.max(F16_SCALES) };
        let (result, ok) = match case.error(&mut *backend) {
            Ok(error) => (format!("{error:.1e}"), error <= limit),
            Err(e) => (e.to_string(), false),
        };
        verdicts.add(ok, format_args!("{:60} {result}", case.name))?;
    }
    verdicts.end(format_args!("ops are wrong on {}", args.model.device))
}
