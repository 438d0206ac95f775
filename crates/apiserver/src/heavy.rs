//! Requests with large bodies, which are handled on separate threads: [`HeavyWork`].
//!
//! Decoding, merging and validating a body of megabytes takes a good part of a second of CPU time,
//! and memory of many times its size. On the threads that serve connections, a few such requests
//! would delay all others. The number of running requests is limited to bound the memory, the
//! number of waiting ones to bound the queue.

use std::future::Future;
use std::sync::Arc;
use std::thread::available_parallelism;

use tokio::runtime::Handle;
use tokio::sync::Semaphore;

use crate::error::ApiError;

/// The largest body that is handled on the connection's thread. Pods and node statuses are smaller,
/// and take a few milliseconds.
pub(crate) const LIGHT_BODY: usize = 32 << 10;

/// The maximum number of running requests. Each may take a hundred megabytes.
const MAX_RUNNING: usize = 2;

/// The maximum number of running and waiting requests. Together their bodies have at most 96 MB.
const MAX_ADMITTED: usize = 32;

/// Runs requests with large bodies, a few at a time, in the order of their arrival.
#[derive(Debug)]
pub(crate) struct HeavyWork {
    turns: Arc<Semaphore>,
    slots: Semaphore,
}

impl Default for HeavyWork {
    fn default() -> HeavyWork {
        let cores = available_parallelism().map_or(1, |cores| cores.get());
        // Half of the cores stay free for other requests.
        let turns = Arc::new(Semaphore::new((cores / 2).clamp(1, MAX_RUNNING)));
        HeavyWork { turns, slots: Semaphore::new(MAX_ADMITTED) }
    }
}

impl HeavyWork {
    /// Runs `work` in turn. Work that has begun is finished even if the caller goes away.
    pub(crate) async fn run<T: Send + 'static>(
        &self,
        work: impl Future<Output = T> + Send + 'static,
    ) -> Result<T, ApiError> {
        let Ok(_slot) = self.slots.try_acquire() else {
            return Err(ApiError::too_many_requests());
        };
        let failed = |error: &dyn std::fmt::Display| {
            ApiError::internal(format!("a request with a large body was not answered: {error}"))
        };
        let turn = Arc::clone(&self.turns).acquire_owned().await.map_err(|error| failed(&error))?;
        let runtime = Handle::current();
        let done = tokio::task::spawn_blocking(move || {
            let done = runtime.block_on(work);
            drop(turn);
            done
        });
        done.await.map_err(|error| failed(&error))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use http::StatusCode;
    use tokio::sync::{Notify, oneshot};

    use super::*;

    #[tokio::test]
    async fn running_and_waiting_requests_are_limited() {
        let heavy = Arc::new(HeavyWork::default());
        let (running, release) = (Arc::new(AtomicUsize::new(0)), Arc::new(Notify::new()));
        let mut tasks = Vec::new();
        for _ in 0..MAX_ADMITTED {
            let (begun, admitted) = oneshot::channel();
            let (heavy, running) = (Arc::clone(&heavy), Arc::clone(&running));
            let release = Arc::clone(&release);
            tasks.push(tokio::spawn(async move {
                let work = async move {
                    let now = running.fetch_add(1, Ordering::SeqCst) + 1;
                    release.notified().await;
                    running.fetch_sub(1, Ordering::SeqCst);
                    now
                };
                let run = heavy.run(work);
                let _ = begun.send(());
                run.await
            }));
            admitted.await.unwrap();
        }
        while heavy.slots.available_permits() > 0 {
            tokio::task::yield_now().await;
        }
        let refused = heavy.run(async {}).await.unwrap_err();
        assert_eq!(refused.code, StatusCode::TOO_MANY_REQUESTS);
        assert_eq!(refused.retry_after, Some(1));
        for task in tasks {
            while !task.is_finished() {
                release.notify_one();
                tokio::task::yield_now().await;
            }
            assert!(task.await.unwrap().unwrap() <= MAX_RUNNING);
        }
        assert_eq!(heavy.slots.available_permits(), MAX_ADMITTED);
    }

    #[tokio::test]
    async fn panic_fails_one_request_only() {
        let heavy = HeavyWork::default();
        for _ in 0..MAX_ADMITTED + MAX_RUNNING {
            let refused = heavy.run(async { assert_eq!(MAX_RUNNING, 0) }).await.unwrap_err();
            assert_eq!(refused.code, StatusCode::INTERNAL_SERVER_ERROR);
        }
        heavy.run(async {}).await.unwrap();
    }
}
