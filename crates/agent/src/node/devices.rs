//! Resources of device plug-ins that registered with a kubelet on this node: [`former_devices`].
//!
//! Device plug-ins are not served. Their resources are reported with an amount of zero, as the kubelet does for
//! plug-ins that have gone: pods may still hold them, and no other pod is to be given any.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use serde_json::Value;

use super::Devices;

/// The kubelet's file of device plug-ins, below its root directory.
const CHECKPOINT: &str = "device-plugins/kubelet_internal_checkpoint";

/// Returns the resources that a kubelet's checkpoint below `root` names. Without one there are none: other
/// extended resources belong to other writers of the node.
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
    fn resources_of_a_kubelets_plug_ins_are_known_and_amount_to_nothing() {
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
