//! Resources of device plugins that registered with a kubelet on this node: [`former_devices`].
//!
//! Device plugins are not served. Their resources are reported with an amount of zero, as the kubelet does for plugins
//! that are gone: pods may still hold them, and no other pod may get any.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use serde_json::Value;

use super::Devices;

/// The kubelet's checkpoint of device plugins, below its root directory.
const CHECKPOINT: &str = "device-plugins/kubelet_internal_checkpoint";

/// Returns the resources in a kubelet's checkpoint below `root`, if there is one. Other extended
/// resources belong to other writers of the node.
#[must_use]
pub fn former_devices(root: &Path) -> BTreeMap<String, Devices> {
    let text = fs::read(root.join(CHECKPOINT)).unwrap_or_default();
    let checkpoint: Value = serde_json::from_slice(&text).unwrap_or_default();
    let registered = checkpoint["Data"]["RegisteredDevices"].as_object().into_iter().flatten();
    registered.map(|(name, _)| (name.clone(), Devices::default())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn resources_of_former_device_plugins_are_reported_as_zero() {
        let root = tempfile::tempdir().unwrap();
        assert_eq!(former_devices(root.path()), BTreeMap::new());
        fs::create_dir(root.path().join("device-plugins")).unwrap();
        let file = root.path().join(CHECKPOINT);
        fs::write(&file, "{").unwrap();
        assert_eq!(former_devices(root.path()), BTreeMap::new());
        let text = r#"{"Data":{"PodDeviceEntries":null,
            "RegisteredDevices":{"example.com/widget":["a","b"]}},"Checksum":1}"#;
        fs::write(&file, text).unwrap();
        let expected = [("example.com/widget".to_owned(), Devices { all: 0, healthy: 0 })];
        assert_eq!(former_devices(root.path()), BTreeMap::from(expected));
    }
}
