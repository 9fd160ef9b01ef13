//! `tern tokenize`: text to token ids and back.

use std::io::{IsTerminal, Read, Write};

use tern::inspect_checkpoint;
use tern::text::Tokenizer;

use crate::args::TokenizeArgs;
use crate::error::{CliError, CliResult};
use crate::load::Bars;
use crate::process::terminal;

pub(crate) fn tokenize(args: &TokenizeArgs) -> CliResult<()> {
    let checkpoint = inspect_checkpoint(args.model.as_deref().unwrap_or("stories"), &Bars::default())?;
    let tokenizer = Tokenizer::from_metadata(&checkpoint.metadata)?;
    tokenizer.warnings().iter().for_each(|w| eprintln!("tern: {w}"));
    let mut input = String::new();
    let read = std::io::stdin().read_to_string(&mut input);
    read.map_err(|e| CliError::message(format!("stdin: {e}")))?;
    let mut out = std::io::stdout().lock();
    if args.decode {
        let id = |word: &str| match word.parse::<u32>() {
            Ok(id) if (id as usize) < tokenizer.vocab_size() => Ok(id),
            _ => {
                let max = tokenizer.vocab_size() - 1;
                Err(CliError::message(format!("`{word}` is not a token id: expected 0 to {max}")))
            }
        };
        let ids = input.split_whitespace().map(id).collect::<CliResult<Vec<u32>>>()?;
        let text = tokenizer.decode(&ids, args.special);
        write!(out, "{}", terminal::model_text(&text, out.is_terminal()))?;
    } else {
        let ids = tokenizer.encode(&input, args.special, args.special);
        let ids: Vec<String> = ids.iter().map(u32::to_string).collect();
        writeln!(out, "{}", ids.join(" "))?;
    }
    out.flush()?;
    Ok(())
}
