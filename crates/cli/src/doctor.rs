//! `tern doctor`: what this machine has, what is missing, and whether its devices compute what they should.

use std::fmt;
use std::io::Write;

use tern::cuda::Nvrtc;
use tern::graph::Backend;
use tern::graph::cases::{self, Case};
use tern::{Device, environment, units};

use crate::args::DoctorArgs;
use crate::error::{CliError, CliResult};
use crate::{doctor_models, doctor_stress};

/// How far a device that keeps the scales of weights in halves may be from the reference.
const HALVES: f32 = 5e-4;

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
                Err(e) => {
                    writeln!(out, "nvrtc    missing: {e}\n         pip install nvidia-cuda-nvrtc brings it")?
                }
            }
        }
    }
    let kernels = environment::kernel_cache().map_or("nowhere".into(), |path| path.display().to_string());
    writeln!(out, "kernels  kept in {kernels}")?;
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

/// Every op case on the device, against the reference.
fn ops(args: &DoctorArgs, out: &mut impl Write) -> CliResult<()> {
    let wanted = |c: &Case| args.filter.as_ref().is_none_or(|f| c.name.contains(f.as_str()));
    let mut verdicts = Verdicts { out, verbose: args.verbose, good: 0, bad: 0 };
    let mut backend = args.model.device.open(args.model.threads)?;
    writeln!(verdicts.out, "\nops on {}", backend.info().name)?;
    for case in cases::all()?.into_iter().filter(wanted) {
        let limit =
            if args.model.device == Device::Cpu { case.tolerance } else { case.tolerance.max(HALVES) };
        let (words, ok) = match case.error(&mut *backend) {
            Ok(error) => (format!("{error:.1e}"), error <= limit),
            Err(e) => (e.to_string(), false),
        };
        verdicts.add(ok, format_args!("{:60} {words}", case.name))?;
    }
    verdicts.end(format_args!("ops are wrong on {}", args.model.device))
}

/// What was right and what was wrong, told on the way and at the end.
pub(crate) struct Verdicts<W> {
    pub(crate) out: W,
    /// Also tells what is right.
    pub(crate) verbose: bool,
    pub(crate) good: usize,
    pub(crate) bad: usize,
}

impl<W: Write> Verdicts<W> {
    pub(crate) fn add(&mut self, ok: bool, what: fmt::Arguments<'_>) -> CliResult<()> {
        *(if ok { &mut self.good } else { &mut self.bad }) += 1;
        if !ok || self.verbose {
            writeln!(self.out, "{} {what}", if ok { "ok    " } else { "WRONG " })?;
        }
        Ok(())
    }

    /// The counts; an error, such as `3 ops are wrong on cuda:0`, if anything was wrong.
    pub(crate) fn end(mut self, wrong: fmt::Arguments<'_>) -> CliResult<()> {
        writeln!(self.out, "{} right, {} wrong", self.good, self.bad)?;
        if self.bad > 0 { Err(CliError::said(format!("{} {wrong}", self.bad))) } else { Ok(()) }
    }
}
