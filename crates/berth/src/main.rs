//! The `berth` binary: parses the command line, runs the command, prints errors once.

use std::process::ExitCode;

use mimalloc::MiMalloc;

/// The system's allocator costs the control plane a third of its time and twice its memory
/// (docs/adr/0015-allocator.md).
#[global_allocator]
static ALLOCATOR: MiMalloc = MiMalloc;

unsafe extern "C" {
    /// Returns free memory of the current thread's heap and of the arenas to the system; at once if
    /// `force`.
    fn mi_collect(force: bool);
}

fn release_memory() {
    // SAFETY: a function of the allocator that is linked above. It may be called from any thread at
    // any time outside of the allocator itself.
    unsafe { mi_collect(true) }
}

fn main() -> ExitCode {
    berth::memory::release_with(release_memory);
    berth::cli::main()
}
