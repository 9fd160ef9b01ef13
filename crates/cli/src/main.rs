//! `tern`: the command line. Text goes to stdout, everything else to stderr.
//!
//! Exit codes: 0 done, 1 an error told in one sentence, 2 wrong usage.

/// As the standard one, but a closed stderr is no panic: whoever reads it has enough.
macro_rules! eprintln {
    ($($text:tt)*) => {{
        let mut line = format!($($text)*);
        line.push('\n');
        let _ = std::io::Write::write_all(&mut std::io::stderr(), line.as_bytes());
    }};
}

mod args;
mod bench;
mod bench_ops;
mod bench_plan;
mod chat;
mod device;
mod doctor;
mod doctor_models;
mod doctor_stress;
mod error;
mod inspect;
mod load;
mod models;
mod perplexity;
mod process;
mod prompt;
mod run;
mod serve;
mod stress;
mod synth;
mod tokenize;
mod top;
mod trace;
mod units;

use std::process::ExitCode;

use clap::Parser;

use crate::args::{BenchWhat, Cli, Command};
use crate::error::CliResult;

fn main() -> ExitCode {
    // llama.cpp's users write -hf and -np; a flag of one dash and two letters is not clap's way
    let args = std::env::args_os().map(|a| match a.to_str() {
        Some("-hf") => "--hf".into(),
        Some("-np") => "--parallel".into(),
        _ => a,
    });
    match dispatch(Cli::parse_from(args)) {
        Ok(()) => ExitCode::SUCCESS,
        // whoever reads our text has enough of it
        Err(e) if e.is_closed_pipe() => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("tern: {e}");
            ExitCode::FAILURE
        }
    }
}

fn dispatch(cli: Cli) -> CliResult<()> {
    match cli.command {
        Command::Run(args) => run::run(&args),
        Command::Chat(args) => chat::chat(&args),
        Command::Serve(args) => serve::serve(*args),
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
