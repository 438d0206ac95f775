//! What can be thrown away: images nobody uses ([`Images`]) and sandboxes that ended ([`dead_sandboxes`]).
//!
//! Chooses as upstream does, and removes nothing. Time is an argument, in milliseconds of a clock that
//! only goes forward.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::node::{Image, Settings};
use crate::runtime::observed::{ContainerSeen, PodSeen, RuntimeId};

pub type Millis = i64;

/// When images go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ImagePolicy {
    /// From this share of the disk in use on, images are removed until the lower one is reached.
    pub high_percent: u8,
    pub low_percent: u8,
    /// How long an image is kept after it came, used or not.
    pub min_age: Duration,
    /// After this time without use an image goes, however much room there is.
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

/// The disk that images are on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ImageDisk {
    pub capacity: u64,
    pub available: u64,
}

impl ImageDisk {
    /// How much is to be freed by the policy; nothing while there is room.
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

/// What is known of images beyond what the runtime says: since when they are there and when they
/// were last in use.
#[derive(Debug, Clone, Default)]
pub struct Images {
    known: BTreeMap<String, Known>,
}

#[derive(Debug, Clone)]
struct Known {
    first_seen: Millis,
    last_used: Option<Millis>,
    bytes: u64,
    kept: bool,
}

/// Images that are to go, oldest use first, and what that comes to.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Chosen {
    /// With the bytes of each.
    pub images: Vec<(String, u64)>,
    pub bytes: u64,
}

impl Images {
    /// Takes note of the images there are and of those that containers use, whether they run or have
    /// ended. `sandbox` is the image of sandboxes, by name or id, which is always in use.
    pub fn note(&mut self, images: &[Image], used: &BTreeSet<String>, sandbox: &str, now: Millis) {
        let there: BTreeSet<&str> = images.iter().map(|image| image.id.as_str()).collect();
        self.known.retain(|id, _| there.contains(id.as_str()));
        for image in images {
            let known = self.known.entry(image.id.clone()).or_insert(Known {
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

    /// The images to remove to free so many bytes; fewer if there are not enough that may go.
    #[must_use]
    pub fn free(&self, bytes: u64, policy: &ImagePolicy, now: Millis) -> Chosen {
        let mut chosen = Chosen::default();
        for (id, known) in self.idle(now) {
            if chosen.bytes >= bytes {
                break;
            }
            // What has just come is about to be used.
            if now - known.first_seen < millis(policy.min_age) {
                continue;
            }
            chosen.images.push((id.clone(), known.bytes));
            chosen.bytes = chosen.bytes.saturating_add(known.bytes);
        }
        chosen
    }

    /// The images that nobody has used for longer than the policy lets them be.
    #[must_use]
    pub fn expired(&self, policy: &ImagePolicy, now: Millis) -> Chosen {
        let Some(max_age) = policy.max_age else { return Chosen::default() };
        let mut chosen = Chosen::default();
        for (id, known) in self.idle(now) {
            let last = known.last_used.unwrap_or(known.first_seen);
            if now - last > millis(max_age) {
                chosen.images.push((id.clone(), known.bytes));
                chosen.bytes = chosen.bytes.saturating_add(known.bytes);
            }
        }
        chosen
    }

    /// Images that were not in use when they were last looked at, those unused for longest first.
    fn idle(&self, now: Millis) -> Vec<(&String, &Known)> {
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

/// What is told when there is not enough to remove, in upstream's words.
#[must_use]
pub fn not_enough(wanted: u64, found: u64) -> String {
    format!(
        "Failed to garbage collect required amount of images. Attempted to free {wanted} bytes, \
         but only found {found} bytes eligible to free."
    )
}

/// The sandboxes of a pod that are to be removed when these containers have been: those that are not ready
/// and have no others, save the newest, which tells of the pod's network.
#[must_use]
pub fn dead_sandboxes(seen: &PodSeen, removed: &[RuntimeId]) -> Vec<RuntimeId> {
    let newest = seen.sandboxes.iter().max_by_key(|sandbox| (sandbox.created_at, sandbox.attempt));
    let left = |container: &&ContainerSeen| !removed.contains(&container.id);
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
    use crate::runtime::observed::{ContainerState, SandboxSeen};

    const POLICY: ImagePolicy = ImagePolicy {
        high_percent: 85,
        low_percent: 80,
        min_age: Duration::from_secs(120),
        max_age: None,
    };

    fn image(id: &str, bytes: u64) -> Image {
        Image { id: id.to_owned(), tags: vec![format!("{id}:1")], bytes, ..Image::default() }
    }

    fn ids(chosen: &Chosen) -> Vec<&str> {
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
        // Shares are rounded down, so that more seems to be in use.
        check(151, 49);
        check(150, 50);
        check(0, 200);
        assert_eq!(ImageDisk { capacity: 0, available: 0 }.to_free(&POLICY), 0);
    }

    #[test]
    fn images_unused_for_longest_go_first_and_those_in_use_stay() {
        let all = [image("a", 10), image("b", 20), image("c", 30), image("d", 40)];
        let mut images = Images::default();
        images.note(&all, &used(&["a", "b:1", "c"]), "", 0);
        images.note(&all, &used(&["b", "c"]), "", 1_000);
        let now = 200_000;
        images.note(&all, &used(&["c"]), "", now);
        let chosen = |bytes| images.free(bytes, &POLICY, now);
        assert_eq!(chosen(1), Chosen { images: vec![("d".to_owned(), 40)], bytes: 40 });
        assert_eq!(ids(&chosen(45)), ["d", "a"]);
        let all_of_them = chosen(u64::MAX);
        assert_eq!((ids(&all_of_them), all_of_them.bytes), (vec!["d", "a", "b"], 70));
        assert_eq!(chosen(0), Chosen::default());
    }

    #[test]
    fn what_has_just_come_and_what_sandboxes_need_stays() {
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
        // One that was removed and came back is new.
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
        assert_eq!(images.expired(&policy, 1_000), Chosen::default());
        assert_eq!(ids(&images.expired(&policy, 1_001)), ["b"]);
        assert_eq!(ids(&images.expired(&policy, 1_901)), ["b", "a"]);
        assert_eq!(images.expired(&POLICY, 9_000), Chosen::default());
    }

    #[test]
    fn a_sandbox_goes_with_its_last_container_and_the_newest_stays() {
        let sandbox = |id: &str, attempt, ready| SandboxSeen {
            id: id.to_owned(),
            attempt,
            ready,
            created_at: i64::from(attempt),
            ips: Vec::new(),
            host_network: false,
        };
        let of = |id: &str, sandbox: &str| ContainerSeen {
            sandbox: sandbox.to_owned(),
            state: ContainerState::Exited,
            ..ContainerSeen::started(&id.to_owned(), "c")
        };
        let sandboxes =
            vec![sandbox("s", 0, false), sandbox("t", 1, false), sandbox("u", 2, false)];
        let mut seen = PodSeen { sandboxes, containers: vec![of("a", "s"), of("b", "s")] };
        assert_eq!(dead_sandboxes(&seen, &[]), ["t"]);
        assert_eq!(dead_sandboxes(&seen, &["a".to_owned()]), ["t"]);
        assert_eq!(dead_sandboxes(&seen, &["a".to_owned(), "b".to_owned()]), ["s", "t"]);
        seen.sandboxes[1].ready = true;
        assert_eq!(dead_sandboxes(&seen, &[]), [""; 0]);
    }
}
