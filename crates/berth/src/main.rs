//! The `berth` binary: parses the command line, runs the command, prints errors once.

use std::process::ExitCode;

use mimalloc::MiMalloc;

/// The system's allocator costs the control plane a third of its time and twice its memory
/// (docs/adr/0015-allocator.md).
#[global_allocator]
static ALLOCATOR: MiMalloc = MiMalloc;

fn main() -> ExitCode {
    berth::cli::main()
}
