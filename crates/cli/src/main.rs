//! `tern`: the command line. Text goes to stdout, everything else to stderr.
//!
//! Exit codes: 0 done, 1 an error told in one sentence, 2 wrong usage.

/// As the standard one, but a closed stderr is no panic, and names out of files are harmless to a terminal.
macro_rules! eprintln {
    ($($text:tt)*) => {
        crate::terminal::say(&format!($($text)*))
    };
}

mod args;
mod bench;
mod bench_ops;
mod bench_plan;
mod bus_error;
mod chat;
mod chat_line;
mod conversation;
mod doctor;
mod doctor_models;
mod doctor_stress;
mod error;
mod inspect;
mod load;
mod models;
mod perplexity;
mod process;
mod run;
mod runtime;
mod sampling;
mod serve;
mod stdin;
mod stress;
mod synth;
mod terminal;
mod tokenize;
mod top;
mod trace;
mod values;

use std::ffi::OsString;
use std::process::ExitCode;

use clap::Parser;

use crate::args::{BenchWhat, Cli, Command};
use crate::error::CliResult;

fn main() -> ExitCode {
    bus_error::explain();
    ExitCode::from(report(dispatch(Cli::parse_from(long_flags(std::env::args_os())))))
}

/// Says what went wrong, and gives the exit code.
fn report(result: CliResult<()>) -> u8 {
    match result {
        Ok(()) => 0,
        // whoever reads our text has enough of it
        Err(e) if e.is_closed_pipe() => 0,
        Err(e) => {
            eprintln!("tern: {e}");
            1
        }
    }
}

/// llama.cpp's users write -hf, -np and -ngl; a flag of one dash and two letters is not clap's way.
fn long_flags(args: impl Iterator<Item = OsString>) -> impl Iterator<Item = OsString> {
    let mut plain = false; // behind `--`
    args.map(move |arg| {
        plain |= arg == "--";
        match arg.to_str() {
            Some("-hf") if !plain => "--hf".into(),
            Some("-np") if !plain => "--parallel".into(),
            Some(text) if !plain && text.starts_with("-ngl") => match &text[4..] {
                "" => "--n-gpu-layers".into(),
                layers => format!("--n-gpu-layers={}", layers.trim_start_matches('=')).into(),
            },
            _ => arg,
        }
    })
}

fn dispatch(cli: Cli) -> CliResult<()> {
    match cli.command {
        Command::Run(args) => run::run(&args),
        Command::Chat(mut args) => {
            args.model.model = args.model.model.or(args.name.take());
            chat::chat(&args)
        }
        Command::Serve(mut args) => {
            args.model.model = args.model.model.or(args.name.take());
            serve::serve(*args)
        }
        Command::Top(args) => top::top(&args),
        Command::Inspect(args) => inspect::inspect(&args),
        Command::Tokenize(args) => tokenize::tokenize(&args),
        Command::Bench(args) => match &args.what {
            Some(BenchWhat::Ops(ops)) => bench_ops::bench_ops(ops),
            Some(BenchWhat::Plan(plan)) => bench_plan::bench_plan(plan),
            None => bench::bench(&args),
        },
        Command::Perplexity(args) => perplexity::perplexity(&args),
        Command::Synth(args) => synth::synth(&args),
        Command::Doctor(args) => doctor::doctor(&args),
        Command::Pull { name } => models::pull(&name),
        Command::List => models::list(),
    }
}
