//! `tern synth`: a model file with random weights.

use std::fs::File;
use std::io::BufWriter;

use tern::formats::{Checkpoint, Value, write_whole_file};
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
    let bar = load::byte_bar("writing", 0);
    let write = |file: &mut BufWriter<File>| {
        synth.write(&tokenizer, file, |done, total| {
            bar.set_length(total);
            bar.set_position(done);
        })
    };
    let written = write_whole_file(&args.out, write, |_, _| Ok(()));
    bar.finish_and_clear();
    eprintln!("tern: {} {}: {}", args.out.display(), args.spec, units::bytes(written?));
    Ok(())
}
