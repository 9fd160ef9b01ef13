//! `tern synth`: a model file with random weights.

use std::fs::File;
use std::io::{BufWriter, Write};

use tern::formats::{Checkpoint, Value};
use tern::models::{Synth, plain_tokenizer};
use tern::units;

use crate::args::SynthArgs;
use crate::error::{CliError, CliResult};
use crate::load;

pub(crate) fn synth(args: &SynthArgs) -> CliResult<()> {
    let (mut shape, quant) = Synth::parse(&args.spec)?;
    shape.context = args.context.unwrap_or(shape.context);
    let mut tokenizer = match &args.vocab {
        Some(path) => {
            let metadata = Checkpoint::open(path)?.metadata;
            shape.vocab = metadata.strings("tokenizer.ggml.tokens")?.len();
            metadata
        }
        None => plain_tokenizer(shape.vocab),
    };
    if let Some(path) = &args.chat_template {
        let template = std::fs::read_to_string(path)
            .map_err(|e| CliError::message(format!("{}: {e}", path.display())))?;
        tokenizer.insert("tokenizer.chat_template", Value::String(template));
    }
    let mut synth = Synth::new(&shape, quant, None)?;
    let failed = |e: std::io::Error| CliError::message(format!("{}: {e}", args.out.display()));
    // written to a temporary file and renamed, so that an incomplete model is never visible
    let part = args.out.with_extension("part");
    let mut file = BufWriter::with_capacity(1 << 20, File::create(&part).map_err(failed)?);
    let bar = load::byte_bar("writing", 0);
    let written = synth.write(&tokenizer, &mut file, |done, total| {
        bar.set_length(total);
        bar.set_position(done);
    });
    bar.finish_and_clear();
    let finished = written.map_err(CliError::from).and_then(|size| {
        file.flush().map_err(failed)?;
        std::fs::rename(&part, &args.out).map_err(failed)?;
        Ok(size)
    });
    if finished.is_err() {
        let _ = std::fs::remove_file(&part);
    }
    eprintln!("tern: {} {}: {}", args.out.display(), args.spec, units::bytes(finished?));
    Ok(())
}
