//! Reads occupancy and bandwidth of groups: [`Figures`].
//!
//! A group has a directory for each cache in `mon_data`, with a file for each event. On machines
//! with sub-NUMA clustering it also has directories for the parts of a cache. Figures of a control
//! group include those of its monitoring groups.

use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::path::Path;

use classes::hardware::CacheId;
use serde::Serialize;

use super::groups::directories;
use super::{ControlGroup, MonitorName, Resctrl, ResctrlError, failed, is_gone};

/// An event that the kernel counts, by its file name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Event {
    /// Bytes of cache in use.
    LlcOccupancy,
    /// Bytes transferred from and to all memory.
    MbmTotalBytes,
    /// Bytes transferred from and to the memory of the cache's own NUMA node.
    MbmLocalBytes,
    #[serde(untagged)]
    Other(String),
}

impl Event {
    fn of_file(name: &str) -> Event {
        match name {
            "llc_occupancy" => Event::LlcOccupancy,
            "mbm_total_bytes" => Event::MbmTotalBytes,
            "mbm_local_bytes" => Event::MbmLocalBytes,
            other => Event::Other(other.to_owned()),
        }
    }
}

impl fmt::Display for Event {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        to.write_str(match self {
            Event::LlcOccupancy => "llc_occupancy",
            Event::MbmTotalBytes => "mbm_total_bytes",
            Event::MbmLocalBytes => "mbm_local_bytes",
            Event::Other(name) => name,
        })
    }
}

/// The content of a counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Reading {
    Bytes(u64),
    /// The hardware has no value at the moment.
    Unavailable,
    /// The group has no hardware counter for this event.
    Unassigned,
    /// The hardware reported an error.
    Error,
}

impl Reading {
    fn parse(text: &str) -> Option<Reading> {
        match text.trim() {
            "Unavailable" => Some(Reading::Unavailable),
            "Unassigned" => Some(Reading::Unassigned),
            "Error" => Some(Reading::Error),
            number => number.parse().ok().map(Reading::Bytes),
        }
    }

    /// Returns the number of bytes, if there is one.
    #[must_use]
    pub fn bytes(self) -> Option<u64> {
        match self {
            Reading::Bytes(bytes) => Some(bytes),
            Reading::Unavailable | Reading::Unassigned | Reading::Error => None,
        }
    }
}

/// The counters of one cache.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct DomainFigures {
    pub events: BTreeMap<Event, Reading>,
    /// The counters of the cache's parts, with sub-NUMA clustering.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub parts: BTreeMap<u64, BTreeMap<Event, Reading>>,
}

/// The counters of a group.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Figures {
    pub caches: BTreeMap<CacheId, DomainFigures>,
}

impl Figures {
    /// Returns the sum of an event over all caches; `None` if no cache has a number.
    #[must_use]
    pub fn sum(&self, event: &Event) -> Option<u64> {
        let readings = self.caches.values().filter_map(|cache| cache.events.get(event)?.bytes());
        readings.reduce(u64::saturating_add)
    }
}

impl Resctrl {
    /// Returns the counters of a control group, with those of its monitoring groups.
    pub fn figures(&self, group: &ControlGroup) -> Result<Figures, ResctrlError> {
        figures_of(&self.directory(group).join("mon_data"))
    }

    /// Returns the counters of all of Berth's monitoring groups in any control group. A pod has
    /// several if its containers are monitored one by one.
    pub fn monitors(&self) -> Result<BTreeMap<(ControlGroup, MonitorName), Figures>, ResctrlError> {
        let mut found = BTreeMap::new();
        for (group, state) in self.groups()?.groups {
            for monitor in state.monitors.into_keys() {
                let directory = self.monitor_directory(&group, &monitor).join("mon_data");
                let figures = figures_of(&directory)?;
                found.insert((group.clone(), monitor), figures);
            }
        }
        Ok(found)
    }
}

/// Returns the counters in a `mon_data` directory. Directories disappear with the last CPU of a
/// cache.
fn figures_of(directory: &Path) -> Result<Figures, ResctrlError> {
    let mut caches = BTreeMap::new();
    for name in directories(directory)? {
        let Some(id) = number_after(&name, "mon_L3_") else { continue };
        let cache = directory.join(&name);
        let mut parts = BTreeMap::new();
        for name in directories(&cache)? {
            if let Some(part) = number_after(&name, "mon_sub_L3_") {
                parts.insert(part, events_of(&cache.join(name))?);
            }
        }
        caches.insert(CacheId(id), DomainFigures { events: events_of(&cache)?, parts });
    }
    Ok(Figures { caches })
}

fn number_after(name: &str, prefix: &str) -> Option<u64> {
    name.strip_prefix(prefix)?.parse().ok()
}

/// Returns the counters in the files of a directory.
fn events_of(directory: &Path) -> Result<BTreeMap<Event, Reading>, ResctrlError> {
    let entries = match fs::read_dir(directory) {
        Err(error) if is_gone(&error) => return Ok(BTreeMap::new()),
        entries => entries.map_err(failed("list", directory))?,
    };
    let mut events = BTreeMap::new();
    for entry in entries.flatten().filter(|entry| entry.file_type().is_ok_and(|of| of.is_file())) {
        let path = entry.path();
        let text = match fs::read_to_string(&path) {
            Err(error) if is_gone(&error) => continue,
            text => text.map_err(failed("read", &path))?,
        };
        let reading = Reading::parse(&text).ok_or_else(|| {
            let text = text.trim().to_owned();
            ResctrlError::Text { path: path.clone(), text, expected: "a number of bytes" }
        })?;
        let name = entry.file_name();
        events.insert(Event::of_file(&name.to_string_lossy()), reading);
    }
    Ok(events)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_without_a_number_and_parts_of_caches_are_read() {
        let place = tempfile::tempdir().unwrap();
        let put = |path: &str, text: &str| {
            let path = place.path().join("mon_data").join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        put("mon_L3_00/llc_occupancy", "131072\n");
        put("mon_L3_00/mbm_total_bytes", "Unavailable\n");
        put("mon_L3_00/mon_sub_L3_00/llc_occupancy", "65536\n");
        put("mon_L3_00/mon_sub_L3_03/llc_occupancy", "Error\n");
        put("mon_L3_12/llc_occupancy", "1\n");
        put("mon_L3_12/mbm_local_bytes", "Unassigned\n");
        put("mon_L3_12/new_event", "7\n");
        put("mon_L3_x/llc_occupancy", "9\n");
        let resctrl = Resctrl { root: place.path().to_owned(), options: Vec::new() };
        let figures = resctrl.figures(&ControlGroup::Root).unwrap();
        assert_eq!(figures.caches.keys().copied().collect::<Vec<_>>(), [CacheId(0), CacheId(12)]);
        assert_eq!(figures.sum(&Event::LlcOccupancy), Some(131_073));
        assert_eq!(figures.sum(&Event::MbmTotalBytes), None);
        assert_eq!(figures.sum(&Event::Other("new_event".to_owned())), Some(7));
        let first = &figures.caches[&CacheId(0)];
        assert_eq!(first.events[&Event::MbmTotalBytes], Reading::Unavailable);
        assert_eq!(first.parts[&3][&Event::LlcOccupancy], Reading::Error);
        let last = &figures.caches[&CacheId(12)];
        assert_eq!(last.events[&Event::MbmLocalBytes], Reading::Unassigned);
        let json = serde_json::to_value(last).unwrap();
        let expected = serde_json::json!({"events": {
            "llc_occupancy": {"bytes": 1}, "mbm_local_bytes": "unassigned", "new_event": {"bytes": 7},
        }});
        assert_eq!(json, expected);

        put("mon_L3_12/new_event", "many\n");
        let error = resctrl.figures(&ControlGroup::Root).unwrap_err().to_string();
        assert!(error.ends_with("contains \"many\", not a number of bytes"), "{error}");
        let nowhere = ControlGroup::of_class("nowhere").unwrap();
        assert_eq!(resctrl.figures(&nowhere).unwrap(), Figures::default());
    }
}
