//! Objects of kinds that have no generated structure: volumes, claims and storage classes, which Berth
//! does not serve, and controllers of any kind.
//!
//! Unknown fields are skipped, and `null` is the same as absent.

use objects::ResourceList;
use objects::types::{NodeSelector, ObjectMeta, PersistentVolumeClaimSpec};
use serde::{Deserialize, Deserializer};
use serde_json::Value;

/// Reads a field that may be `null`, which is its zero value.
pub(crate) fn nullable<'de, D, T>(from: D) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de> + Default,
{
    Ok(Option::deserialize(from)?.unwrap_or_default())
}

/// Declares structures in which every field may be absent or `null`.
macro_rules! objects {
    ($($(#[$doc:meta])* $vis:vis struct $name:ident {
        $($(#[$attr:meta])* $field:ident: $type:ty,)*
    })*) => {$(
        $(#[$doc])*
        #[derive(Debug, Default, serde::Deserialize)]
        #[serde(rename_all = "camelCase")]
        $vis struct $name {
            $(
                $(#[$attr])*
                #[serde(default, deserialize_with = "crate::object::nullable")]
                $vis $field: $type,
            )*
        }
    )*};
}
pub(crate) use objects;

objects! {
    /// A controller with its selector, which is a map of labels for replication controllers.
    pub(crate) struct Controller {
        metadata: ObjectMeta,
        spec: ControllerSpec,
    }

    pub(crate) struct ControllerSpec {
        selector: Option<Value>,
    }

    pub(crate) struct PersistentVolume {
        metadata: ObjectMeta,
        spec: PersistentVolumeSpec,
        status: PhaseStatus,
    }

    pub(crate) struct PersistentVolumeSpec {
        access_modes: Vec<String>,
        capacity: ResourceList,
        storage_class_name: String,
        volume_mode: String,
        claim_ref: Option<ClaimReference>,
        node_affinity: VolumeNodeAffinity,
    }

    pub(crate) struct ClaimReference {
        namespace: String,
        name: String,
    }

    pub(crate) struct VolumeNodeAffinity {
        required: Option<NodeSelector>,
    }

    pub(crate) struct PhaseStatus {
        phase: String,
    }

    pub(crate) struct PersistentVolumeClaim {
        metadata: ObjectMeta,
        spec: PersistentVolumeClaimSpec,
        status: PhaseStatus,
    }

    pub(crate) struct StorageClass {
        metadata: ObjectMeta,
        provisioner: String,
        volume_binding_mode: String,
        allowed_topologies: Vec<TopologySelectorTerm>,
    }

    pub(crate) struct TopologySelectorTerm {
        match_label_expressions: Vec<TopologyExpression>,
    }

    pub(crate) struct TopologyExpression {
        key: String,
        values: Vec<String>,
    }
}
