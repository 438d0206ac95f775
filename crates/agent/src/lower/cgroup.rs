//! Names of cgroups: [`parent`], below which a pod's containers are.
//!
//! Only names; cgroups are made and removed through `host`.

use objects::QosClass;

use super::input::{CgroupDriver, Cgroups};

/// Below which all pods are.
const ALL_PODS: &str = "kubepods";

/// The cgroup of a pod as the runtime is told.
///
/// With systemd every level is a slice named after all levels above it, and dashes in a name would
/// be levels, so they become underscores.
#[must_use]
pub fn parent(cgroups: &Cgroups, class: QosClass, uid: &str) -> String {
    let pod = format!("pod{uid}");
    let mut levels: Vec<&str> = cgroups.root.split('/').filter(|part| !part.is_empty()).collect();
    levels.push(ALL_PODS);
    levels.extend(match class {
        QosClass::Guaranteed => None,
        QosClass::Burstable => Some("burstable"),
        QosClass::BestEffort => Some("besteffort"),
    });
    levels.push(&pod);
    match cgroups.driver {
        CgroupDriver::Cgroupfs => levels.iter().map(|level| format!("/{level}")).collect(),
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
