//! Blocking calls from asynchronous code: [`run`] moves one to a thread for blocking work.
//!
//! The text of an error is that of the call, so that it can be reported unchanged.

use thiserror::Error;
use tokio::task::JoinError;

/// The error of a blocking call.
#[derive(Debug, Error)]
pub enum BlockingError<E> {
    #[error(transparent)]
    Failed(E),
    /// The call panicked, or the agent ended before it.
    #[error(transparent)]
    Lost(JoinError),
}

/// Runs a fallible blocking function.
pub async fn run<T, E>(
    work: impl FnOnce() -> Result<T, E> + Send + 'static,
) -> Result<T, BlockingError<E>>
where
    T: Send + 'static,
    E: Send + 'static,
{
    match tokio::task::spawn_blocking(work).await {
        Ok(done) => done.map_err(BlockingError::Failed),
        Err(lost) => Err(BlockingError::Lost(lost)),
    }
}
