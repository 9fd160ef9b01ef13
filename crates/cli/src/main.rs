//! The binary `tern`.

use std::process::ExitCode;

fn main() -> ExitCode {
    tern_cli::main()
}
