//! The effective configuration, for `/configz`: [`in_force`].
//!
//! It has the written fields, and the defaults of every field that has an effect. Fields without an effect
//! are included only if they were written.

use serde_json::{Value, json};

/// Values of fields that are not written: upstream's. Where the agent has a reader with the same default,
/// a test compares the two.
fn defaults() -> Value {
    json!({
        "enableServer": true,
        "enableDebuggingHandlers": true,
        "enableProfilingHandler": false,
        "registerNode": true,
        "fileCheckFrequency": "20s",
        "nodeStatusUpdateFrequency": "10s",
        "nodeStatusReportFrequency": "5m0s",
        "nodeLeaseDurationSeconds": 40,
        "nodeStatusMaxImages": 50,
        "imageMinimumGCAge": "2m0s",
        "imageMaximumGCAge": "0s",
        "imageGCHighThresholdPercent": 85,
        "imageGCLowThresholdPercent": 80,
        "serializeImagePulls": true,
        "cgroupsPerQOS": true,
        "cgroupDriver": "cgroupfs",
        "cpuManagerPolicy": "none",
        "cpuManagerReconcilePeriod": "10s",
        "memoryManagerPolicy": "None",
        "topologyManagerPolicy": "none",
        "topologyManagerScope": "container",
        "runtimeRequestTimeout": "2m0s",
        "maxPods": 110,
        "podPidsLimit": -1,
        "cpuCFSQuota": true,
        "cpuCFSQuotaPeriod": "100ms",
        "evictionPressureTransitionPeriod": "5m0s",
        "mergeDefaultEvictionSettings": false,
        "failSwapOn": false,
        "containerLogMaxSize": "10Mi",
        "containerLogMaxFiles": 5,
        "containerLogMonitorInterval": "10s",
        "enforceNodeAllocatable": ["pods"],
        "localStorageCapacityIsolation": true,
        "crashLoopBackOff": {"maxContainerRestartPeriod": "5m0s"},
        "seccompDefault": false,
        "shutdownGracePeriod": "0s",
        "shutdownGracePeriodCriticalPods": "0s",
    })
}

/// Returns the written configuration with the defaults added.
#[must_use]
pub fn in_force(written: Value) -> Value {
    let mut all = defaults();
    if let (Value::Object(all), Value::Object(written)) = (&mut all, written) {
        all.extend(written.into_iter().filter(|(_, value)| !value.is_null()));
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn written_fields_override_defaults() {
        let effective = in_force(json!({"maxPods": 3, "clusterDomain": "x", "podPidsLimit": null}));
        assert_eq!((&effective["maxPods"], &effective["clusterDomain"]), (&3.into(), &"x".into()));
        assert_eq!(effective["podPidsLimit"], -1);
    }

    #[test]
    fn defaults_are_those_that_the_configuration_has() {
        let effective = in_force(json!({"kind": "KubeletConfiguration",
            "apiVersion": "kubelet.config.k8s.io/v1beta1"}));
        let (read, warnings) = objects::kubelet_config::read(&effective.to_string()).unwrap();
        assert!(warnings.is_empty(), "{warnings:?}");
        let usual = objects::KubeletConfig::default();
        let typed = |config: &objects::KubeletConfig| objects::KubeletConfig {
            untyped: Default::default(),
            // Absent and false mean the same.
            fail_swap_on: config.fail_swap_on.filter(|&fails| fails),
            ..config.clone()
        };
        assert_eq!(typed(&read), typed(&usual));
        let described =
            |config: &objects::KubeletConfig| format!("{:?}", crate::node::Settings::of(config));
        assert_eq!(described(&read), described(&usual));
    }
}
