//! The images on the node, asked of the runtime now and then: [`watch()`].
//!
//! A scheduler likes to know where images are, but not to the second. Removes none.

use std::sync::Arc;
use std::time::Duration;

use cri::v1;
use tokio::sync::watch;

use super::Image;

/// Between two questions: for so long upstream takes its own list for true.
const PERIOD: Duration = Duration::from_secs(30);

/// Keeps `told` true until nobody listens. A runtime that is away has lost no images.
pub async fn watch(client: cri::Client, told: watch::Sender<Arc<Vec<Image>>>) {
    loop {
        if let Ok(listed) = client.call(v1::ListImagesRequest::default()).await {
            let images: Vec<Image> = listed.images.into_iter().map(Image::from).collect();
            told.send_if_modified(|now| {
                let changed = **now != images;
                if changed {
                    *now = Arc::new(images);
                }
                changed
            });
        }
        tokio::select! {
            () = tokio::time::sleep(PERIOD) => {}
            () = told.closed() => return,
        }
    }
}
