//! Supervision of the controllers: [`supervise`] restarts a controller that ends, [`catch_panic`]
//! turns a panic into an error.
//!
//! A panic is a defect in this program. It must not affect other objects and other controllers, and
//! it must not go unnoticed: every panic is logged and counted. A stack overflow or an abort cannot
//! be caught.

use std::any::Any;
use std::future::{Future, poll_fn};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use client::{Backoff, BoxFuture};
use tokio::sync::watch;
use tokio::time::Instant;
use tracing::error;

use crate::counters::Counters;

/// The delay before a restart.
const RESTART: Backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(60));
/// A controller that ran for this long counts as healthy again.
const HEALTHY: Duration = Duration::from_secs(300);

/// The message of a panic.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PanicMessage(pub(crate) String);

impl PanicMessage {
    fn of(payload: &(dyn Any + Send)) -> PanicMessage {
        let message = payload.downcast_ref::<&str>().map(|text| (*text).to_owned());
        let message = message.or_else(|| payload.downcast_ref::<String>().cloned());
        PanicMessage(message.unwrap_or_else(|| "a panic without a message".to_owned()))
    }
}

/// Calls a function and returns its panic as an error.
pub(crate) fn catch_panic_sync<T>(work: impl FnOnce() -> T) -> Result<T, PanicMessage> {
    catch_unwind(AssertUnwindSafe(work)).map_err(|payload| PanicMessage::of(&*payload))
}

/// Awaits a future and returns its panic as an error.
pub(crate) async fn catch_panic<F: Future>(work: F) -> Result<F::Output, PanicMessage> {
    let mut work = pin!(work);
    poll_fn(|context| match catch_panic_sync(|| work.as_mut().poll(context)) {
        Ok(Poll::Pending) => Poll::Pending,
        Ok(Poll::Ready(output)) => Poll::Ready(Ok(output)),
        Err(panicked) => Poll::Ready(Err(panicked)),
    })
    .await
}

/// Returns a new future of a controller for each start.
pub(crate) type Start = Box<dyn FnMut() -> BoxFuture<'static, ()> + Send>;

/// Runs a controller until `stop` is set. A controller that panics or returns before that is
/// restarted with back-off.
pub(crate) async fn supervise(
    name: &'static str,
    mut start: Start,
    counters: Arc<Counters>,
    mut stop: watch::Receiver<bool>,
) {
    let mut failures = 0;
    loop {
        let since = Instant::now();
        let ended = catch_panic(start()).await;
        if *stop.borrow() {
            return;
        }
        failures = if since.elapsed() >= HEALTHY { 1 } else { failures + 1 };
        let wait = RESTART.wait_with_jitter(name, failures);
        let wait_ms = wait.as_millis();
        match ended {
            Ok(()) => {
                error!(controller = name, wait_ms, "the controller ended; restarting it");
            }
            Err(PanicMessage(message)) => {
                error!(
                    controller = name,
                    panic = message,
                    wait_ms,
                    "the controller panicked; restarting it"
                );
            }
        }
        counters.restarted(name);
        tokio::select! {
            _ = stop.wait_for(|stop| *stop) => return,
            () = tokio::time::sleep(wait) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU32, Ordering};

    #[tokio::test]
    async fn controller_that_panics_or_ends_is_logged_and_restarted() {
        let lines = rig::logs::capture("controllers");
        let (starts, counters) = (Arc::new(AtomicU32::new(0)), Arc::new(Counters::default()));
        let (stop, stopped) = watch::channel(false);
        let counted = starts.clone();
        let start: Start = Box::new(move || {
            let number = counted.fetch_add(1, Ordering::Relaxed);
            let mut stopped = stopped.clone();
            Box::pin(async move {
                match number {
                    0 => panic!("the first start fails"),
                    1 => {}
                    _ => drop(stopped.wait_for(|stop| *stop).await),
                }
            })
        });
        let running = tokio::spawn(supervise("test", start, counters.clone(), stop.subscribe()));
        while starts.load(Ordering::Relaxed) < 3 {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        assert!(!running.is_finished());
        stop.send_replace(true);
        running.await.unwrap();
        let text = metrics::text::render(&counters.families());
        assert!(text.contains("\nberth_controller_restarts_total{name=\"test\"} 2\n"), "{text}");
        let [panicked, ended] = lines.with("controller=\"test\"").try_into().unwrap();
        let start = "ERROR the controller panicked; restarting it controller=\"test\" \
                     panic=\"the first start fails\" wait_ms=";
        assert!(panicked.starts_with(start), "{panicked}");
        let start = "ERROR the controller ended; restarting it controller=\"test\" wait_ms=";
        assert!(ended.starts_with(start), "{ended}");
    }

    #[tokio::test]
    async fn panic_is_returned_with_its_message() {
        let number = 7;
        assert_eq!(catch_panic(async { number }).await, Ok(7));
        let panicked = catch_panic(async { panic!("object {number}") }).await;
        assert_eq!(panicked, Err::<(), _>(PanicMessage("object 7".to_owned())));
        assert_eq!(
            catch_panic_sync(|| panic!("now")),
            Err::<(), _>(PanicMessage("now".to_owned()))
        );
    }
}
