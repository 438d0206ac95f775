//! Returns memory to the system after a load: [`block_on`].
//!
//! An allocator with a heap per thread keeps memory that a thread has freed until that thread
//! allocates again. A worker that sleeps after a load would keep it for ever. So workers of
//! long-lived processes release free memory before they sleep. The binary chooses the allocator and
//! sets the function to release with.

use std::cell::Cell;
use std::convert::Infallible;
use std::io;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use tokio::runtime::{Builder, Handle};

static RELEASE: OnceLock<fn()> = OnceLock::new();

/// Minimum interval between two releases by a thread: threads sleep often, and walking a heap is
/// not free.
const PAUSE: Duration = Duration::from_secs(1);

/// Interval at which sleeping workers are woken to release memory.
const ROUND: Duration = Duration::from_secs(5);

/// Sets the function that releases the current thread's free memory. Only the first call has an
/// effect.
pub fn release_with(release: fn()) {
    let _ = RELEASE.set(release);
}

/// Runs the work of a process on a runtime that releases memory.
pub(crate) fn block_on<T>(work: impl Future<Output = T>) -> io::Result<T> {
    let runtime =
        Builder::new_multi_thread().enable_all().on_thread_park(release_sometimes).build()?;
    Ok(runtime.block_on(async {
        tokio::select! {
            result = work => result,
            never = wake_workers() => match never {},
        }
    }))
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

/// Wakes the workers: a worker that finds more than one queued task wakes another.
async fn wake_workers() -> Infallible {
    let tasks = Handle::current().metrics().num_workers() * 8;
    loop {
        tokio::time::sleep(ROUND).await;
        for _ in 0..tasks {
            tokio::spawn(tokio::task::yield_now());
        }
    }
}
