//! `tern convert` and `tern quantize`: a model as a GGUF file in other formats.

use tern::formats::{Conversion, KeptFormat};
use tern::quant::{self, Quant};
use tern::{inspect_checkpoint, units};

use crate::args::{ConvertArgs, QuantizeArgs};
use crate::error::{CliError, CliResult};
use crate::load::{self, Bars};

/// Formats that a model must have been trained for.
const TRAINED: [&str; 6] = ["Q1_0", "Q2_0", "PQ2_0", "PTQ1_0", "TQ1_0", "TQ2_0"];

pub(crate) fn convert(args: &ConvertArgs) -> CliResult<()> {
    let to = args.to.as_deref().map(format).transpose()?;
    let conversion = Conversion { to, keep: vec![], exact: true, threads: tern::threads(args.threads) };
    write(&args.model, &conversion, &args.out)
}

pub(crate) fn quantize(args: &QuantizeArgs) -> CliResult<()> {
    let to = format(&args.to)?;
    let keep = args.keep.iter().map(|text| kept(text)).collect::<CliResult<_>>()?;
    if TRAINED.contains(&to.name) {
        eprintln!(
            "tern: warning: {to} is for models that were trained for it; others lose nearly everything"
        );
    }
    let conversion = Conversion { to: Some(to), keep, exact: false, threads: tern::threads(args.threads) };
    write(&args.model, &conversion, &args.out)
}

fn write(model: &str, conversion: &Conversion, out: &std::path::Path) -> CliResult<()> {
    let checkpoint = inspect_checkpoint(model, &Bars::default())?;
    let bar = load::byte_bar("writing", checkpoint.total_bytes());
    let written = conversion.write(&checkpoint, out, &mut |done| bar.set_position(done));
    bar.finish_and_clear();
    let written = written.map_err(|e| CliError::message(e.to_string()))?;
    for (tensor, format) in &written.fallbacks {
        eprintln!("tern: {tensor}: rows are no whole blocks of the requested format, written as {format}");
    }
    eprintln!(
        "tern: {}: {} tensors, {}, checked",
        out.display(),
        written.tensors,
        units::bytes(written.bytes)
    );
    Ok(())
}

/// A format by name, if it can be written.
fn format(name: &str) -> CliResult<&'static Quant> {
    let writable = |quant: &&&'static Quant| quant.encode.is_some() && quant.gguf_id.is_some();
    quant::ALL
        .iter()
        .filter(writable)
        .find(|quant| quant.name.eq_ignore_ascii_case(name))
        .copied()
        .ok_or_else(|| {
            let names: Vec<_> = quant::ALL.iter().filter(writable).map(|quant| quant.name).collect();
            CliError::message(format!("--to {name}: want one of {}", names.join(", ")))
        })
}

/// `PART=FORMAT`.
fn kept(text: &str) -> CliResult<KeptFormat> {
    let (part, name) = text
        .split_once('=')
        .ok_or_else(|| CliError::message(format!("--keep {text}: want PART=FORMAT, such as output=q8_0")))?;
    Ok(KeptFormat { part: part.into(), format: format(name)? })
}
