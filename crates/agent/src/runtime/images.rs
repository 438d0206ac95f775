//! Images of containers: [`Images`] finds or pulls them, according to the pull policy.
//!
//! The number of concurrent pulls is limited, and a failed pull is not retried immediately. Registry
//! credentials come from the pod's pull secrets ([`credentials`]). Image garbage collection is elsewhere.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use cri::v1;
use tokio::sync::Semaphore;

use crate::observability::events::AgentEvent;
use crate::pods::backoff::Backoff;
use crate::runtime::lower::ImageUser;
use client::clock::Clock;

pub mod credentials;
mod name;

pub use name::{NameError, with_tag};

/// An image that is present in the runtime.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct PresentImage {
    /// The ID of the image in the runtime.
    pub id: String,
    pub user: ImageUser,
}

/// The result of looking up an image.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ImageLookup {
    Present(PresentImage),
    /// It is missing, or may be outdated; this is its full name.
    ToPull(String),
}

/// The reason and message of a container that waits for an image.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct ImageError {
    pub reason: &'static str,
    pub message: String,
}

/// A request for an image.
#[derive(Debug, Clone)]
pub struct ImageRequest<'a> {
    /// The name in the container's spec.
    pub image: &'a str,
    /// `Always`, `IfNotPresent` or `Never`.
    pub policy: &'a str,
    /// Part of the back-off key: failures of one pod do not delay another.
    pub pod_uid: &'a str,
    /// The request to pull it, without credentials.
    pub request: &'a v1::PullImageRequest,
    /// Tried one after the other.
    pub credentials: &'a [v1::AuthConfig],
}

/// Finds and pulls images.
#[derive(Debug)]
pub struct Images {
    runtime: cri::Client,
    clock: Arc<dyn Clock>,
    backoff: Mutex<Backoffs>,
    /// Limits the number of concurrent pulls.
    pulls: Semaphore,
}

#[derive(Debug)]
struct Backoffs {
    waits: Backoff,
    /// The time and error of the last failed pull.
    failures: std::collections::BTreeMap<String, (i64, String)>,
}

/// The longest wait between two pulls of one image. Upstream's value.
const LONGEST: Duration = Duration::from_secs(300);

impl Images {
    #[must_use]
    pub fn new(runtime: cri::Client, clock: Arc<dyn Clock>, at_a_time: usize) -> Images {
        let waits = Backoff::new(LONGEST);
        Images {
            runtime,
            clock,
            backoff: Mutex::new(Backoffs { waits, failures: Default::default() }),
            pulls: Semaphore::new(at_a_time.max(1)),
        }
    }

    /// Returns the image, or that it must be pulled. Events are passed to `record`.
    pub async fn find(
        &self,
        wanted: &ImageRequest<'_>,
        record: &(dyn Fn(AgentEvent) + Send + Sync),
    ) -> Result<ImageLookup, ImageError> {
        let image = wanted.image.to_owned();
        let full = with_tag(&image).map_err(|error| {
            let error = error.to_string();
            let event = AgentEvent::BadImageName { image: image.clone(), error };
            let message = event.to_string();
            record(event);
            ImageError { reason: "InvalidImageName", message }
        })?;
        let spec = v1::ImageSpec { image: full.clone(), ..Default::default() };
        let found = self.status(spec.clone()).await.map_err(|error| {
            let message = format!("Failed to inspect image {image:?}: {}", error.rpc_text());
            ImageError { reason: "ImageInspectError", message }
        })?;
        match (found, wanted.policy) {
            (Some(present), "IfNotPresent" | "Never") => {
                record(AgentEvent::AlreadyPresent { image });
                Ok(ImageLookup::Present(present))
            }
            (None, "Never") => {
                let event = AgentEvent::NeverPull { image };
                let message = event.to_string();
                record(event);
                Err(ImageError { reason: "ErrImageNeverPull", message })
            }
            _ => Ok(ImageLookup::ToPull(full)),
        }
    }

    async fn status(&self, image: v1::ImageSpec) -> Result<Option<PresentImage>, cri::Error> {
        let request = v1::ImageStatusRequest { image: Some(image), verbose: false };
        let found = self.runtime.call(request).await?.image;
        Ok(found.map(|image| PresentImage { user: user_of(&image), id: image.id }))
    }

    fn backoffs(&self) -> std::sync::MutexGuard<'_, Backoffs> {
        self.backoff.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Pulls an image by its full name, unless it is in back-off.
    pub async fn pull(
        &self,
        wanted: &ImageRequest<'_>,
        full: &str,
        record: &(dyn Fn(AgentEvent) + Send + Sync),
    ) -> Result<PresentImage, ImageError> {
        let image = wanted.image.to_owned();
        let key = format!("{}_{image}", wanted.pod_uid);
        if let Some(before) = self.kept_waiting(&key) {
            let event = AgentEvent::PullBackOff { image };
            let message = format!("{event}: ErrImagePull: {before}");
            record(event);
            return Err(ImageError { reason: "ImagePullBackOff", message });
        }
        let waiting_since = Instant::now();
        record(AgentEvent::Pulling { image: image.clone() });
        // The semaphore is closed only when the agent stops.
        let Ok(_permit) = self.pulls.acquire().await else {
            let message = "the agent is stopping".to_owned();
            return Err(ImageError { reason: "ErrImagePull", message });
        };
        let begun = Instant::now();
        match self.pull_with_any(wanted, full).await {
            Ok(present) => {
                let bytes = self.size(full).await;
                let (took, waited) = (begun.elapsed(), waiting_since.elapsed());
                record(AgentEvent::Pulled { image, took, waited, bytes });
                let mut backoffs = self.backoffs();
                backoffs.failures.remove(&key);
                backoffs.waits.forget(&key);
                Ok(present)
            }
            Err(error) => {
                let text = pull_text(&error);
                record(AgentEvent::PullFailed { image, error: text.clone() });
                let now = self.clock.now().unix_nanos();
                let mut backoffs = self.backoffs();
                backoffs.waits.next(&key, now, now);
                backoffs.failures.retain(|_, (at, _)| now - *at < 2 * nanos_of(LONGEST));
                backoffs.failures.insert(key, (now, text.clone()));
                Err(ImageError { reason: "ErrImagePull", message: text })
            }
        }
    }

    /// Returns the last error while the pull is in back-off.
    fn kept_waiting(&self, key: &str) -> Option<String> {
        let backoffs = self.backoffs();
        let (at, error) = backoffs.failures.get(key)?;
        let waits = backoffs.waits.remaining(key, *at, self.clock.now().unix_nanos()).is_some();
        waits.then(|| error.clone())
    }

    async fn pull_with_any(
        &self,
        wanted: &ImageRequest<'_>,
        full: &str,
    ) -> Result<PresentImage, cri::Error> {
        let mut tries: Vec<Option<v1::AuthConfig>> =
            wanted.credentials.iter().cloned().map(Some).collect();
        if tries.is_empty() {
            tries.push(None);
        }
        let last = tries.len() - 1;
        for (position, auth) in tries.into_iter().enumerate() {
            let mut request = v1::PullImageRequest { auth, ..wanted.request.clone() };
            if let Some(image) = &mut request.image {
                full.clone_into(&mut image.image);
            }
            match self.runtime.call(request).await {
                Ok(_) => break,
                Err(error) if position == last => return Err(error),
                Err(_) => {}
            }
        }
        let spec = v1::ImageSpec { image: full.to_owned(), ..Default::default() };
        Ok(self.status(spec).await?.unwrap_or_default())
    }

    async fn size(&self, full: &str) -> u64 {
        let spec = v1::ImageSpec { image: full.to_owned(), ..Default::default() };
        let request = v1::ImageStatusRequest { image: Some(spec), verbose: false };
        let answer = self.runtime.call(request).await;
        answer.ok().and_then(|answer| answer.image).map_or(0, |image| image.size)
    }
}

fn nanos_of(duration: Duration) -> i64 {
    i64::try_from(duration.as_nanos()).unwrap_or(i64::MAX)
}

/// Formats a pull error. Upstream shows the code only if it is not `Unknown`.
fn pull_text(error: &cri::Error) -> String {
    match error.code {
        cri::Code::Unknown => error.message.clone(),
        _ => error.rpc_text(),
    }
}
/// Returns the user of an image: an ID, a name, or root if it has neither.
fn user_of(image: &v1::Image) -> ImageUser {
    let uid = image.uid.as_ref().map(|uid| uid.value);
    let root = image.username.is_empty().then_some(0);
    ImageUser { uid: uid.or(root), name: image.username.clone() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn image_without_a_user_runs_as_root() {
        let check = |uid: Option<i64>, name: &str, expected: Option<i64>| {
            let uid = uid.map(|value| v1::Int64Value { value });
            let image = v1::Image { uid, username: name.to_owned(), ..Default::default() };
            assert_eq!(user_of(&image).uid, expected, "{name}");
        };
        check(None, "", Some(0));
        check(Some(7), "", Some(7));
        check(None, "nobody", None);
    }
}
