//! `tern`: the command line. Results go to stdout, messages to stderr.
//!
//! It is a library so that the Python package has the same command: [`main`] is all that others use.
//!
//! Exit codes: 0 success, 1 an error with a one-line message, 2 wrong usage.

/// As the standard macro, but a closed stderr does not panic, and control characters from files are escaped.
macro_rules! eprintln {
    ($($text:tt)*) => {
        crate::process::terminal::message(&format!($($text)*))
    };
}

mod api;
mod args;
mod batch;
mod bench;
mod chat;
mod command_line;
mod doctor;
mod error;
mod files;
mod image_file;
mod load;
mod manual;
mod nearest;
mod process;
mod run;
mod running;
mod serve;
mod settings;
mod texts;
mod top;

use std::ffi::OsString;
use std::process::ExitCode;

use crate::args::{BenchWhat, Cli, Command};
use crate::error::CliResult;
use crate::process::out_of_memory;

#[global_allocator]
static ALLOCATOR: out_of_memory::WithReserve = out_of_memory::WithReserve;

/// The whole command, with the arguments of the process.
pub fn main() -> ExitCode {
    ExitCode::from(run(std::env::args_os()))
}

/// The whole command: its name and arguments in, its exit code out. Signals must have their default actions.
pub fn run(args: impl Iterator<Item = OsString>) -> u8 {
    process::bus_error::explain();
    out_of_memory::prepare();
    match command_line::parse(args) {
        Ok(cli) => report(dispatch(cli)),
        Err(ended) => ended.report(),
    }
}

/// Prints the error, if any, and returns the exit code.
fn report(result: CliResult<()>) -> u8 {
    match result {
        Ok(()) => 0,
        // the reader of stdout has closed it
        Err(e) if e.is_closed_pipe() => 0,
        Err(e) => {
            eprintln!("tern: {e}");
            1
        }
    }
}

fn dispatch(cli: Cli) -> CliResult<()> {
    match cli.command {
        Command::Run(args) => {
            args.model.check_one()?;
            run::run(&args)
        }
        Command::Chat(mut args) => {
            args.model.model.extend(args.name.take());
            args.model.check_one()?;
            chat::chat(&args)
        }
        Command::Serve(mut args) => {
            args.engine.model.model.extend(args.name.take());
            serve::serve(*args)
        }
        Command::Batch(args) => {
            args.engine.model.check_one()?;
            batch::batch(&args)
        }
        Command::Top(args) => top::top(&args),
        Command::Inspect(args) => files::inspect::inspect(&args),
        Command::Embed(args) => {
            args.model.check_one()?;
            texts::embed::embed(&args)
        }
        Command::Rerank(args) => {
            args.model.check_one()?;
            texts::rerank::rerank(&args)
        }
        Command::Tokenize(args) => texts::tokenize::tokenize(&args),
        Command::Bench(args) => match &args.what {
            Some(BenchWhat::Ops(ops)) => bench::ops::bench_ops(ops),
            Some(BenchWhat::Plan(plan)) => bench::plan::bench_plan(plan),
            Some(BenchWhat::Turns(turns)) => {
                turns.model.check_one()?;
                bench::turns::bench_turns(turns)
            }
            Some(BenchWhat::Speculate(speculate)) => {
                speculate.model.check_one()?;
                bench::speculate::bench_speculate(speculate)
            }
            Some(BenchWhat::Embed(embed)) => {
                embed.model.check_one()?;
                bench::embed::bench_embed(embed)
            }
            Some(BenchWhat::Serve(serve)) => bench::serve::bench_serve(serve),
            None => {
                args.model.check_one()?;
                bench::bench(&args)
            }
        },
        Command::Perplexity(args) => {
            args.model.check_one()?;
            texts::perplexity::perplexity(&args)
        }
        Command::Convert(args) => files::convert::convert(&args),
        Command::Quantize(args) => files::convert::quantize(&args),
        Command::Imatrix(args) => {
            args.model.check_one()?;
            texts::imatrix::imatrix(&args)
        }
        Command::Synth(args) => files::synth::synth(&args),
        Command::Doctor(args) => {
            args.model.check_one()?;
            doctor::doctor(&args)
        }
        Command::Pull { name } => files::models::pull(&name),
        Command::List(args) => files::models::list(&args),
        Command::Show(args) => files::show::show(&args),
        Command::Rm(args) => files::remove::remove(&args),
        Command::Ps(args) => running::ps(&args),
        Command::Stop(args) => running::stop(&args),
        Command::Completions { shell } => manual::completions(shell),
        Command::Man { folder } => manual::man(folder.as_deref()),
        Command::Config => command_line::config(),
    }
}
