//! Fields of a configuration that refuse a machine for the state of its operating system:
//! [`HostConditions`].
//!
//! The caller observes the state; a machine file does not have it.

use objects::{FieldPath, KubeletConfig};

use super::Finding;

/// The state of a Linux machine that a configuration may refuse. Windows has neither of both.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HostConditions {
    /// The machine uses cgroup v1.
    pub cgroup_v1: bool,
    /// The machine has swap space.
    pub swap: bool,
}

impl HostConditions {
    /// Returns an error for each field that refuses this machine, with the kubelet's message.
    ///
    /// The kubelet's defaults refuse swap and cgroup v1. Berth supports both, so it refuses them
    /// only if the configuration does so explicitly.
    #[must_use]
    pub fn check(self, config: &KubeletConfig) -> Vec<Finding> {
        let checks = [
            (
                self.cgroup_v1 && config.fail_cgroup_v1 == Some(true),
                "failCgroupV1",
                "kubelet is configured to not run on a host using cgroup v1. cgroup v1 support is \
                 unsupported and will be removed in a future release",
                "write failCgroupV1: false, or boot the machine with cgroup v2",
            ),
            (
                self.cgroup_v1 && config.single_process_oom_kill == Some(false),
                "singleProcessOOMKill",
                "invalid configuration: singleProcessOOMKill must not be explicitly set to false \
                 when using cgroup v1",
                "remove the field",
            ),
            (
                self.swap && config.fail_swap_on == Some(true),
                "failSwapOn",
                "running with swap on is not supported, please disable swap or set --fail-swap-on \
                 flag to false",
                "write failSwapOn: false, or disable swap with swapoff -a",
            ),
        ];
        let refused = checks.into_iter().filter(|(is_refused, ..)| *is_refused);
        let finding = |(_, field, message, remedy): (bool, &str, &str, &str)| Finding {
            path: FieldPath::of(field),
            message: message.to_owned(),
            remedy: Some(remedy.to_owned()),
        };
        refused.map(finding).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn explicit_fields_refuse_the_state_of_the_machine() {
        let v1 = HostConditions { cgroup_v1: true, swap: false };
        let swap = HostConditions { cgroup_v1: false, swap: true };
        let good = HostConditions::default();
        for (fields, conditions, expected) in [
            ("", v1, None),
            ("", swap, None),
            ("failCgroupV1: true", v1, Some("failCgroupV1")),
            ("failCgroupV1: true", swap, None),
            ("failCgroupV1: false", v1, None),
            ("singleProcessOOMKill: false", v1, Some("singleProcessOOMKill")),
            ("singleProcessOOMKill: true", v1, None),
            ("singleProcessOOMKill: false", good, None),
            ("failSwapOn: true", swap, Some("failSwapOn")),
            ("failSwapOn: true", good, None),
            ("failSwapOn: false", swap, None),
        ] {
            let text = format!(
                "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n{fields}\n"
            );
            let (config, _) = objects::kubelet_config::read(&text).unwrap();
            let found = conditions.check(&config);
            let found: Vec<String> = found.iter().map(|found| found.path.to_string()).collect();
            assert_eq!(found, Vec::from_iter(expected), "{fields} on {conditions:?}");
        }
    }
}
