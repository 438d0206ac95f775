//! The images on the node, read from the runtime periodically: [`watch()`].
//!
//! Schedulers use the list, but it need not be exact to the second. Removes no images.

use std::sync::Arc;
use std::time::Duration;

use cri::v1;
use tokio::sync::watch;
use tracing::{info, warn};

use super::Image;
use crate::supervisor::millis;
use client::ErrorLog;

/// Interval between two requests: the time for which upstream caches its list.
const PERIOD: Duration = Duration::from_secs(30);

/// Updates `images_sender` until the receivers are gone. While the runtime is unavailable the list is kept.
pub async fn watch(client: cri::Client, images_sender: watch::Sender<Arc<Vec<Image>>>) {
    let mut errors = ErrorLog::default();
    loop {
        match client.call(v1::ListImagesRequest::default()).await {
            Ok(listed) => {
                if let Some(failures) = errors.recovered() {
                    info!(failures, "listed the images of the runtime again");
                }
                let images: Vec<Image> = listed.images.into_iter().map(Image::from).collect();
                images_sender.send_if_modified(|now| {
                    let changed = **now != images;
                    if changed {
                        *now = Arc::new(images);
                    }
                    changed
                });
            }
            Err(error) => {
                if errors.failed(&error) {
                    let retry_in_ms = millis(PERIOD);
                    warn!(%error, retry_in_ms, "failed to list the images of the runtime");
                }
            }
        }
        tokio::select! {
            () = tokio::time::sleep(PERIOD) => {}
            () = images_sender.closed() => return,
        }
    }
}
