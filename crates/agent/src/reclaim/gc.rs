//! Chooses what can be removed: unused images ([`Images`]) and stopped sandboxes ([`dead_sandboxes`]).
//!
//! Chooses as upstream does, and removes nothing. Time is an argument, in milliseconds of a monotonic clock.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::node::{Image, Settings};
use lifecycle::observed::{RuntimeContainer, RuntimeId, RuntimePod};

pub type Millis = i64;

/// The policy of image collection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ImagePolicy {
    /// Disk usage in percent at which images are removed until the lower value is reached.
    pub high_percent: u8,
    pub low_percent: u8,
    /// Minimum age of an image before it can be removed.
    pub min_age: Duration,
    /// Time after which an unused image is removed, however much space is free.
    pub max_age: Option<Duration>,
}

impl ImagePolicy {
    #[must_use]
    pub fn of(settings: &Settings) -> ImagePolicy {
        ImagePolicy {
            high_percent: settings.image_high_percent,
            low_percent: settings.image_low_percent,
            min_age: settings.image_min_age,
            max_age: settings.image_max_age,
        }
    }
}

/// The file system of the images.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ImageDisk {
    pub capacity: u64,
    pub available: u64,
}

impl ImageDisk {
    /// Returns the number of bytes to free by the policy; zero while there is space.
    #[must_use]
    pub fn to_free(self, policy: &ImagePolicy) -> u64 {
        let share = |percent: u8| u128::from(self.capacity) * u128::from(percent) / 100;
        let free_percent = u128::from(self.available) * 100 / u128::from(self.capacity.max(1));
        let used_percent = 100_u128.saturating_sub(free_percent);
        if self.capacity == 0 || used_percent < u128::from(policy.high_percent) {
            return 0;
        }
        let wanted = share(100_u8.saturating_sub(policy.low_percent));
        u64::try_from(wanted).unwrap_or(u64::MAX).saturating_sub(self.available)
    }
}

/// First detection and last use of each image, which the runtime does not report.
#[derive(Debug, Clone, Default)]
pub struct Images {
    known: BTreeMap<String, ImageRecord>,
}

#[derive(Debug, Clone)]
struct ImageRecord {
    first_seen: Millis,
    last_used: Option<Millis>,
    bytes: u64,
    kept: bool,
}

/// The images to remove, least recently used first, and their total size.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ImagesToRemove {
    /// With the size of each in bytes.
    pub images: Vec<(String, u64)>,
    pub bytes: u64,
}

impl Images {
    /// Records the existing images and those that containers use, running or exited. `sandbox` is the
    /// sandbox image, by name or id, which is always in use.
    pub fn note(&mut self, images: &[Image], used: &BTreeSet<String>, sandbox: &str, now: Millis) {
        let there: BTreeSet<&str> = images.iter().map(|image| image.id.as_str()).collect();
        self.known.retain(|id, _| there.contains(id.as_str()));
        for image in images {
            let known = self.known.entry(image.id.clone()).or_insert(ImageRecord {
                first_seen: now,
                last_used: None,
                bytes: 0,
                kept: false,
            });
            let names = || image.tags.iter().chain(&image.digests).chain([&image.id]);
            known.bytes = image.bytes;
            known.kept = image.pinned || names().any(|name| name == sandbox);
            if names().any(|name| used.contains(name)) {
                known.last_used = Some(now);
            }
        }
    }

    /// Returns images whose removal frees `bytes`, or fewer if not enough may be removed.
    #[must_use]
    pub fn free(&self, bytes: u64, policy: &ImagePolicy, now: Millis) -> ImagesToRemove {
        let mut chosen = ImagesToRemove::default();
        for (id, known) in self.idle(now) {
            if chosen.bytes >= bytes {
                break;
            }
            // A new image is about to be used.
            if now - known.first_seen < millis(policy.min_age) {
                continue;
            }
            chosen.images.push((id.clone(), known.bytes));
            chosen.bytes = chosen.bytes.saturating_add(known.bytes);
        }
        chosen
    }

    /// Returns the images that were unused for longer than the policy allows.
    #[must_use]
    pub fn expired(&self, policy: &ImagePolicy, now: Millis) -> ImagesToRemove {
        let Some(max_age) = policy.max_age else { return ImagesToRemove::default() };
        let mut chosen = ImagesToRemove::default();
        for (id, known) in self.idle(now) {
            let last = known.last_used.unwrap_or(known.first_seen);
            if now - last > millis(max_age) {
                chosen.images.push((id.clone(), known.bytes));
                chosen.bytes = chosen.bytes.saturating_add(known.bytes);
            }
        }
        chosen
    }

    /// Returns the images that were unused at the last record, least recently used first.
    fn idle(&self, now: Millis) -> Vec<(&String, &ImageRecord)> {
        let idle = self
            .known
            .iter()
            .filter(|(_, known)| !known.kept && known.last_used.is_none_or(|last| last < now));
        let mut idle: Vec<_> = idle.collect();
        idle.sort_by_key(|(id, known)| (known.last_used, known.first_seen, (*id).clone()));
        idle
    }
}

fn millis(duration: Duration) -> Millis {
    Millis::try_from(duration.as_millis()).unwrap_or(Millis::MAX)
}

/// Returns upstream's message for too little removable space.
#[must_use]
pub fn not_enough(wanted: u64, found: u64) -> String {
    format!(
        "Failed to garbage collect required amount of images. Attempted to free {wanted} bytes, \
         but only found {found} bytes eligible to free."
    )
}

/// Returns the sandboxes of a pod to remove after these containers: those that are not ready and have no
/// other containers. The newest is kept, because the pod's network is read from it.
#[must_use]
pub fn dead_sandboxes(seen: &RuntimePod, removed: &[RuntimeId]) -> Vec<RuntimeId> {
    let newest = seen.sandboxes.iter().max_by_key(|sandbox| (sandbox.created_at, sandbox.attempt));
    let left = |container: &&RuntimeContainer| !removed.contains(&container.id);
    let dead = seen.sandboxes.iter().filter(|sandbox| {
        let empty = !seen.containers.iter().filter(left).any(|of| of.sandbox == sandbox.id);
        let last = newest.is_some_and(|newest| newest.id == sandbox.id);
        !sandbox.ready && empty && !last
    });
    dead.map(|sandbox| sandbox.id.clone()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use lifecycle::observed::{ContainerState, RuntimeSandbox};

    const POLICY: ImagePolicy = ImagePolicy {
        high_percent: 85,
        low_percent: 80,
        min_age: Duration::from_secs(120),
        max_age: None,
    };

    fn image(id: &str, bytes: u64) -> Image {
        Image { id: id.to_owned(), tags: vec![format!("{id}:1")], bytes, ..Image::default() }
    }

    fn ids(chosen: &ImagesToRemove) -> Vec<&str> {
        chosen.images.iter().map(|(id, _)| id.as_str()).collect()
    }

    fn used(names: &[&str]) -> BTreeSet<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    #[test]
    fn so_much_is_freed_that_the_lower_share_is_reached() {
        let check = |available, expected| {
            assert_eq!(ImageDisk { capacity: 1000, available }.to_free(&POLICY), expected);
        };
        check(1000, 0);
        check(160, 0);
        // Percentages are rounded down, so that more seems to be in use.
        check(151, 49);
        check(150, 50);
        check(0, 200);
        assert_eq!(ImageDisk { capacity: 0, available: 0 }.to_free(&POLICY), 0);
    }

    #[test]
    fn least_recently_used_images_go_first_used_ones_stay() {
        let all = [image("a", 10), image("b", 20), image("c", 30), image("d", 40)];
        let mut images = Images::default();
        images.note(&all, &used(&["a", "b:1", "c"]), "", 0);
        images.note(&all, &used(&["b", "c"]), "", 1_000);
        let now = 200_000;
        images.note(&all, &used(&["c"]), "", now);
        let chosen = |bytes| images.free(bytes, &POLICY, now);
        assert_eq!(chosen(1), ImagesToRemove { images: vec![("d".to_owned(), 40)], bytes: 40 });
        assert_eq!(ids(&chosen(45)), ["d", "a"]);
        let all_of_them = chosen(u64::MAX);
        assert_eq!((ids(&all_of_them), all_of_them.bytes), (vec!["d", "a", "b"], 70));
        assert_eq!(chosen(0), ImagesToRemove::default());
    }

    #[test]
    fn new_images_and_the_sandbox_image_stay() {
        let mut pinned = image("pinned", 1);
        pinned.pinned = true;
        let old = [image("old", 1), image("pause", 1), pinned];
        let mut images = Images::default();
        images.note(&old, &BTreeSet::new(), "pause:1", 0);
        let mut all = old.to_vec();
        all.push(image("new", 1));
        images.note(&all, &BTreeSet::new(), "pause:1", 110_000);
        assert_eq!(ids(&images.free(100, &POLICY, 120_000)), ["old"]);
        assert_eq!(ids(&images.free(100, &POLICY, 230_000)), ["old", "new"]);
        // An image that was removed and pulled again is new.
        images.note(&all[1..], &BTreeSet::new(), "pause:1", 240_000);
        images.note(&all, &BTreeSet::new(), "pause:1", 250_000);
        assert_eq!(ids(&images.free(100, &POLICY, 260_000)), ["new"]);
    }

    #[test]
    fn images_may_grow_too_old() {
        let policy = ImagePolicy { max_age: Some(Duration::from_secs(1)), ..POLICY };
        let mut images = Images::default();
        let all = [image("a", 5), image("b", 5)];
        images.note(&all, &used(&["a"]), "", 0);
        images.note(&all, &used(&["a"]), "", 900);
        assert_eq!(images.expired(&policy, 1_000), ImagesToRemove::default());
        assert_eq!(ids(&images.expired(&policy, 1_001)), ["b"]);
        assert_eq!(ids(&images.expired(&policy, 1_901)), ["b", "a"]);
        assert_eq!(images.expired(&POLICY, 9_000), ImagesToRemove::default());
    }

    #[test]
    fn sandboxes_go_with_their_containers_except_the_newest() {
        let sandbox = |id: &str, attempt, ready| RuntimeSandbox {
            id: id.to_owned(),
            attempt,
            ready,
            created_at: i64::from(attempt),
            ips: Vec::new(),
            host_network: false,
        };
        let of = |id: &str, sandbox: &str| RuntimeContainer {
            sandbox: sandbox.to_owned(),
            state: ContainerState::Exited,
            ..RuntimeContainer::started(&id.to_owned(), "c")
        };
        let sandboxes =
            vec![sandbox("s", 0, false), sandbox("t", 1, false), sandbox("u", 2, false)];
        let mut seen = RuntimePod { sandboxes, containers: vec![of("a", "s"), of("b", "s")] };
        assert_eq!(dead_sandboxes(&seen, &[]), ["t"]);
        assert_eq!(dead_sandboxes(&seen, &["a".to_owned()]), ["t"]);
        assert_eq!(dead_sandboxes(&seen, &["a".to_owned(), "b".to_owned()]), ["s", "t"]);
        seen.sandboxes[1].ready = true;
        assert_eq!(dead_sandboxes(&seen, &[]), [""; 0]);
    }
}
