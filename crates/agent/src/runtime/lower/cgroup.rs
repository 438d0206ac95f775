//! Names of cgroups: [`parent`] of a pod's containers, and [`of_class`] and [`of_all_pods`] above it.
//!
//! Only names; `host` creates and removes cgroups.

use objects::QosClass;

use super::input::{CgroupDriver, Cgroups};

/// The cgroup of all pods.
const ALL_PODS: &str = "kubepods";
/// The prefix of a pod's cgroup.
const POD: &str = "pod";

/// Returns the cgroup of a pod in the form that runtimes expect.
#[must_use]
pub fn parent(cgroups: &Cgroups, class: QosClass, uid: &str) -> String {
    let pod = format!("{POD}{uid}");
    path(cgroups, level_of(class).into_iter().chain([pod.as_str()]))
}

/// Returns the cgroup of all pods of a class. Guaranteed pods have none of their own.
#[must_use]
pub fn of_class(cgroups: &Cgroups, class: QosClass) -> String {
    path(cgroups, level_of(class))
}

/// Returns the cgroup of all pods.
#[must_use]
pub fn of_all_pods(cgroups: &Cgroups) -> String {
    path(cgroups, [])
}

/// Returns the UID of the pod with this cgroup name. systemd replaces dashes by underscores; UIDs have
/// dashes.
#[must_use]
pub fn uid(driver: CgroupDriver, name: &str) -> Option<String> {
    let uid = match driver {
        CgroupDriver::Cgroupfs => name.strip_prefix(POD)?.to_owned(),
        CgroupDriver::Systemd => {
            let (_, last) = name.strip_suffix(".slice")?.rsplit_once('-')?;
            last.strip_prefix(POD)?.replace('_', "-")
        }
    };
    (!uid.is_empty()).then_some(uid)
}

fn level_of(class: QosClass) -> Option<&'static str> {
    match class {
        QosClass::Guaranteed => None,
        QosClass::Burstable => Some("burstable"),
        QosClass::BestEffort => Some("besteffort"),
    }
}

/// Returns the path of a cgroup. With systemd, every level is a slice named after all levels above it. Dashes
/// in a name would be levels, so they become underscores.
fn path<'a>(cgroups: &'a Cgroups, below: impl IntoIterator<Item = &'a str>) -> String {
    let root = cgroups.root.split('/').filter(|part| !part.is_empty());
    let levels = root.chain([ALL_PODS]).chain(below);
    match cgroups.driver {
        CgroupDriver::Cgroupfs => levels.map(|level| format!("/{level}")).collect(),
        CgroupDriver::Systemd => {
            let mut slice = String::new();
            let mut path = String::new();
            for level in levels {
                if !slice.is_empty() {
                    slice.push('-');
                }
                slice.push_str(&level.replace('-', "_"));
                path.push_str(&format!("/{slice}.slice"));
            }
            path
        }
    }
}
