//! The `berth` binary: parses the command line, runs the command, prints errors once.

use std::process::ExitCode;

fn main() -> ExitCode {
    berth::cli::main()
}
