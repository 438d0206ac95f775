//! Memory that is given back to the system after a load: [`runtime`].
//!
//! An allocator with a heap for each thread keeps what a thread has freed until that thread allocates
//! again. A worker that sleeps after a load would keep it for ever. So workers of long-lived processes
//! release what they have when they fall asleep. The allocator is chosen by the binary, which says how.

use std::cell::Cell;
use std::io;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use tokio::runtime::{Builder, Handle, Runtime};

static RELEASE: OnceLock<fn()> = OnceLock::new();

/// How often a thread releases memory. Falling asleep is frequent, and going through a heap is not
/// free.
const PAUSE: Duration = Duration::from_secs(1);

/// How often workers that sleep are woken to do it.
const ROUND: Duration = Duration::from_secs(5);

/// Sets the function that gives back what the current thread has freed. The first call counts.
pub fn release_with(release: fn()) {
    let _ = RELEASE.set(release);
}

/// Makes the runtime of a process that serves for a long time.
pub(crate) fn runtime() -> io::Result<Runtime> {
    let runtime =
        Builder::new_multi_thread().enable_all().on_thread_park(release_sometimes).build()?;
    runtime.spawn(wake_workers());
    Ok(runtime)
}

#[allow(
    clippy::missing_const_for_thread_local,
    reason = "it is constant; the lint does not see that in what the macro becomes for Windows"
)]
mod last_release {
    use super::{Cell, Instant};

    thread_local! {
        /// The time of the last release by this thread.
        pub(super) static LAST: Cell<Option<Instant>> = const { Cell::new(None) };
    }
}

fn release_sometimes() {
    let Some(release) = RELEASE.get() else { return };
    let is_early = |last: Instant| last.elapsed() < PAUSE;
    if !last_release::LAST.get().is_some_and(is_early) {
        release();
        last_release::LAST.set(Some(Instant::now()));
    }
}

/// Wakes the workers now and then: one that finds a queue with more than one task wakes another.
async fn wake_workers() {
    let tasks = Handle::current().metrics().num_workers() * 8;
    loop {
        tokio::time::sleep(ROUND).await;
        for _ in 0..tasks {
            tokio::spawn(tokio::task::yield_now());
        }
    }
}
