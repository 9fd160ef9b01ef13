//! `tern convert` and `tern quantize`: a model as a GGUF file in other formats, or as
//! a folder of safetensors.

use std::collections::BTreeMap;
use std::path::Path;

use tern::formats::quantize::{ChosenFormat, ImportanceMatrix, Quantization};
use tern::formats::{Access, Checkpoint, Conversion, FileKind, FolderExport};
use tern::{OpenedTower, inspect_checkpoint, units};

use crate::args::{ConvertArgs, FileArgs, QuantizeArgs};
use crate::error::{CliError, CliResult};
use crate::load::{self, Bars};

/// Bytes of a file of safetensors if --split-max-size is not given, as `transformers` has it.
const SAFETENSORS_FILE: u64 = 5_000_000_000;

pub(crate) fn convert(args: &ConvertArgs) -> CliResult<()> {
    let model = inspect_checkpoint(&args.model, &Bars::default())?;
    if args.out.extension().is_none_or(|end| end != "gguf") {
        return export(&model, args);
    }
    let conversion = match args.to {
        None => Conversion::unchanged(&model),
        Some(recipe) => {
            let quantization = Quantization::pure(recipe);
            let formats = quantization.formats(&model);
            show_replaced(&formats);
            quantization.conversion(&model, &formats)
        }
    };
    write(&model, Conversion { exact: true, ..conversion }, &args.files, &args.out)?;
    write_tower(&model, &args.files, &args.out)
}

/// Writes the tower of a folder, which is a separate file in GGUF: beside the file of the language model, in
/// its own formats.
fn write_tower(model: &Checkpoint, files: &FileArgs, out: &Path) -> CliResult<()> {
    if model.files.iter().all(|file| file.kind != FileKind::Safetensors) {
        return Ok(());
    }
    let tower = match OpenedTower::beside(model, Access::default()) {
        Ok(Some(tower)) => tower.checkpoint,
        Ok(None) => return Ok(()),
        Err(why) => {
            eprintln!("tern: warning: written without the tower of its images: {why}");
            return Ok(());
        }
    };
    let name = out.file_name().unwrap_or_default().to_string_lossy();
    let files = FileArgs { split_max_size: None, ..*files };
    write(&tower, Conversion::unchanged(&tower), &files, &out.with_file_name(format!("mmproj-{name}")))
}

pub(crate) fn quantize(args: &QuantizeArgs) -> CliResult<()> {
    let model = inspect_checkpoint(&args.model, &Bars::default())?;
    let importance = args.imatrix.as_deref().map(open_importance).transpose()?;
    let (recipe, pure, keep) = (args.to, args.pure, &args.keep);
    let quantization = Quantization { recipe, pure, keep, importance: importance.as_ref() };
    let formats = quantization.formats(&model);
    if recipe.needs_training() {
        let name = recipe.name;
        eprintln!(
            "tern: warning: {name} is for models that were trained for it; others lose nearly everything"
        );
    }
    let changed =
        model.tensors.values().zip(&formats).filter(|(tensor, chosen)| chosen.format != tensor.quant);
    let coded = changed.filter(|(tensor, _)| tensor.quant.codes().is_some()).count();
    if coded > 0 {
        eprintln!("tern: warning: {coded} tensors are quantized already; quantizing floats loses less");
    }
    show_replaced(&formats);
    let conversion = quantization.conversion(&model, &formats);
    if importance.is_some() {
        let known = conversion.tensors.iter().filter(|target| target.importance.is_some()).count();
        eprintln!("tern: the importance of columns is known of {known} tensors");
    }
    write(&model, conversion, &args.files, &args.out)?;
    write_tower(&model, &args.files, &args.out)
}

fn open_importance(path: &Path) -> CliResult<ImportanceMatrix> {
    ImportanceMatrix::open(path).map_err(|e| CliError::message(format!("{}: {e}", path.display())))
}

/// Says which formats were replaced by others, whose blocks divide the rows.
fn show_replaced(formats: &[ChosenFormat]) {
    let mut replaced: BTreeMap<(&str, &str), usize> = BTreeMap::new();
    for ChosenFormat { format, instead_of } in formats {
        if let Some(requested) = instead_of {
            *replaced.entry((requested.name, format.name)).or_default() += 1;
        }
    }
    for ((requested, format), tensors) in replaced {
        eprintln!(
            "tern: {tensors} tensors are written as {format}: their rows are no whole blocks of {requested}"
        );
    }
}

fn write(model: &Checkpoint, conversion: Conversion<'_>, files: &FileArgs, out: &Path) -> CliResult<()> {
    let threads = tern::threads(files.threads);
    let conversion = Conversion { threads, max_file: files.split_max_size, ..conversion };
    let bar = load::byte_bar("writing", model.total_bytes());
    let written = conversion.write(model, out, &mut |done| bar.set_position(done));
    bar.finish_and_clear();
    let written = written?;
    let more = match written.files {
        1 => String::new(),
        files => format!(" and {} more files", files - 1),
    };
    eprintln!(
        "tern: {}{more}: {} tensors, {} (was {}), checked",
        written.path.display(),
        written.tensors,
        units::bytes(written.bytes),
        units::bytes(model.total_bytes())
    );
    Ok(())
}

/// Writes a folder of safetensors.
fn export(model: &Checkpoint, args: &ConvertArgs) -> CliResult<()> {
    let floats = args.to.map(|recipe| recipe.base);
    if let Some(format) = floats.filter(|format| !format.is_float()) {
        return Err(CliError::message(format!(
            "--to {format}: folders of safetensors have F32, F16 or BF16; a name that ends in .gguf writes a GGUF file"
        )));
    }
    let bar = load::byte_bar("writing", model.total_bytes());
    let max_file = args.files.split_max_size.unwrap_or(SAFETENSORS_FILE);
    let written =
        FolderExport { model, floats, max_file }.write(&args.out, &mut |done| bar.set_position(done));
    bar.finish_and_clear();
    let written = written?;
    if OpenedTower::beside(model, Access::default()).is_ok_and(|tower| tower.is_some()) {
        eprintln!(
            "tern: warning: written without the tower of its images, which folders are not written with"
        );
    }
    eprintln!(
        "tern: {}: {}, {} tensors in {} files, {} (was {}), checked",
        args.out.display(),
        written.architecture,
        written.tensors,
        written.files,
        units::bytes(written.bytes),
        units::bytes(model.total_bytes())
    );
    Ok(())
}
