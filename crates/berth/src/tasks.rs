//! Background tasks of a long-lived process: [`TaskSet`] detects one that ends.
//!
//! Every task of a set has to run until the process shuts down. One that returns or panics is logged and
//! returned as an error by [`TaskSet::failure`], so that the process exits instead of continuing without
//! it. Controllers are restarted by their own crate.

use std::collections::HashMap;

use thiserror::Error;
use tokio::task::{Id, JoinError, JoinSet};

/// The unexpected end of a task.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum TaskError {
    #[error("the task {0:?} ended unexpectedly")]
    Ended(&'static str),
    #[error("the task {0:?} panicked: {1}")]
    Panicked(&'static str, String),
    #[error(transparent)]
    Agent(#[from] agent::supervisor::TaskError),
}

impl TaskError {
    /// Turns the result of a task that should still run into an error, and logs it.
    pub(crate) fn unexpected(name: &'static str, result: Result<(), JoinError>) -> TaskError {
        let error = match result.map_err(JoinError::try_into_panic) {
            Err(Ok(panic)) => {
                let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
                let text = text.or_else(|| panic.downcast_ref::<String>().cloned());
                TaskError::Panicked(name, text.unwrap_or_else(|| "no message".to_owned()))
            }
            _ => TaskError::Ended(name),
        };
        tracing::error!(task = name, "{error}; shutting down");
        error
    }

    /// Turns the result of an agent that should still run into an error. The agent has logged the end
    /// of its own tasks.
    pub(crate) fn of_agent(
        result: Result<Result<(), agent::supervisor::TaskError>, JoinError>,
    ) -> TaskError {
        match result {
            Ok(Err(error)) => error.into(),
            ended => TaskError::unexpected("agent", ended.map(drop)),
        }
    }
}

/// Named tasks that run until shutdown. Dropping the set cancels them.
#[derive(Debug, Default)]
pub(crate) struct TaskSet {
    tasks: JoinSet<()>,
    names: HashMap<Id, &'static str>,
}

impl TaskSet {
    pub(crate) fn spawn(
        &mut self,
        name: &'static str,
        task: impl Future<Output = ()> + Send + 'static,
    ) {
        let handle = self.tasks.spawn(task);
        self.names.insert(handle.id(), name);
    }

    /// Waits until a task ends; for ever if there are none. Cancel-safe.
    pub(crate) async fn failure(&mut self) -> TaskError {
        let Some(ended) = self.tasks.join_next_with_id().await else {
            return std::future::pending().await;
        };
        let (id, result) = match ended {
            Ok((id, ())) => (id, Ok(())),
            Err(error) => (error.id(), Err(error)),
        };
        TaskError::unexpected(self.names.get(&id).copied().unwrap_or_default(), result)
    }

    /// Cancels all tasks and waits for them.
    pub(crate) async fn stop(mut self) {
        self.tasks.shutdown().await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn ended_and_panicked_tasks_are_reported_by_name() {
        let mut tasks = TaskSet::default();
        tasks.spawn("endless", std::future::pending());
        tasks.spawn("short", async {});
        assert_eq!(tasks.failure().await, TaskError::Ended("short"));
        tasks.spawn("broken", async { panic!("index {}", 7) });
        let error = tasks.failure().await;
        assert_eq!(error, TaskError::Panicked("broken", "index 7".to_owned()));
        assert_eq!(error.to_string(), "the task \"broken\" panicked: index 7");
        tasks.stop().await;
    }

    #[tokio::test]
    async fn running_tasks_do_not_fail() {
        let mut tasks = TaskSet::default();
        tasks.spawn("endless", std::future::pending());
        let wait = std::time::Duration::from_millis(20);
        assert!(tokio::time::timeout(wait, tasks.failure()).await.is_err());
        let mut none = TaskSet::default();
        assert!(tokio::time::timeout(wait, none.failure()).await.is_err());
    }
}
