//! Objects of the API with the fields that scheduling reads.
//!
//! Main types: [`PodObject`] and [`NodeObject`], read by serde from what an API server serves. Unknown
//! fields are passed over, `null` is absent. What the fields mean together is for
//! [`crate::shape`] and [`crate::node`].

use std::collections::BTreeMap;

use objects::Quantity;
use objects::pod::resources::{ContainerResources, PodResources};
use objects::pod::{self, QosClass, Role};
use objects::selector::{LabelSelector, NodeSelector, NodeSelectorTerm};
use serde::{Deserialize, Deserializer};

/// A field that may be absent or `null`, and is empty then.
fn maybe<'de, D, T>(from: D) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de> + Default,
{
    Ok(Option::deserialize(from)?.unwrap_or_default())
}

macro_rules! object {
    ($(#[$doc:meta])* $vis:vis struct $name:ident { $($(#[$attr:meta])* $field:ident: $type:ty,)* }) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Default, Deserialize)]
        #[serde(rename_all = "camelCase")]
        $vis struct $name {
            $($(#[$attr])* #[serde(default, deserialize_with = "maybe")] pub(crate) $field: $type,)*
        }
    };
}

pub(crate) type ResourceList = BTreeMap<String, Quantity>;
pub(crate) type StringMap = BTreeMap<String, String>;

object! {
    pub(crate) struct Meta {
        name: String,
        namespace: String,
        uid: String,
        labels: StringMap,
        annotations: StringMap,
        deletion_timestamp: Option<String>,
        owner_references: Vec<OwnerReference>,
    }
}

object! {
    pub(crate) struct OwnerReference {
        kind: String,
        name: String,
        controller: bool,
    }
}

object! {
    /// A pod, as the API serves it.
    pub struct PodObject {
        metadata: Meta,
        spec: PodSpec,
        status: PodStatus,
    }
}

object! {
    pub(crate) struct PodSpec {
        node_name: String,
        priority: i32,
        preemption_policy: String,
        scheduling_gates: Vec<Named>,
        containers: Vec<Container>,
        init_containers: Vec<Container>,
        resources: Option<Requirements>,
        qos_resources: Vec<ClassEntry>,
        overhead: ResourceList,
        node_selector: StringMap,
        affinity: Affinity,
        tolerations: Vec<Toleration>,
        topology_spread_constraints: Vec<SpreadConstraint>,
        volumes: Vec<Volume>,
        host_network: bool,
        host_users: Option<bool>,
    }
}

object! {
    pub(crate) struct Named {
        name: String,
    }
}

object! {
    pub(crate) struct Container {
        name: String,
        image: String,
        resources: Requirements,
        ports: Vec<Port>,
        restart_policy: String,
        restart_policy_rules: Vec<RestartRule>,
    }
}

impl PodObject {
    /// Returns the resources of the pod. The API server has set the defaults.
    #[must_use]
    pub fn resources(&self) -> PodResources<'_> {
        fn of(of: &Requirements) -> pod::resources::Requirements<'_> {
            pod::resources::Requirements::new(&of.requests, &of.limits)
        }
        let spec = &self.spec;
        let containers = spec.containers().map(|(role, container)| ContainerResources {
            name: &container.name,
            role,
            requirements: of(&container.resources),
        });
        PodResources::new(containers)
            .with_pod_level(spec.resources.as_ref().map(of))
            .with_overhead(&spec.overhead)
            .with_reported_class(QosClass::parse(&self.status.qos_class))
    }
}

impl PodSpec {
    /// Returns init containers and app containers, in the order in which they start.
    pub(crate) fn containers(&self) -> impl Iterator<Item = (Role, &Container)> {
        let init = self.init_containers.iter().map(|container| {
            let role = if container.is_sidecar() { Role::Sidecar } else { Role::Init };
            (role, container)
        });
        init.chain(self.containers.iter().map(|container| (Role::App, container)))
    }
}

impl Container {
    /// Returns true for an init container that keeps running.
    pub(crate) fn is_sidecar(&self) -> bool {
        self.restart_policy == "Always"
    }
}

object! {
    pub(crate) struct RestartRule {
        action: String,
    }
}

object! {
    pub(crate) struct Requirements {
        requests: ResourceList,
        limits: ResourceList,
        qos_resources: Vec<ClassEntry>,
    }
}

object! {
    pub(crate) struct ClassEntry {
        name: String,
        class: String,
    }
}

object! {
    pub(crate) struct Port {
        host_port: i32,
        #[serde(rename = "hostIP")]
        host_ip: String,
        protocol: String,
    }
}

object! {
    pub(crate) struct Affinity {
        node_affinity: NodeAffinity,
        pod_affinity: PodAffinity,
        pod_anti_affinity: PodAffinity,
    }
}

object! {
    pub(crate) struct NodeAffinity {
        #[serde(rename = "requiredDuringSchedulingIgnoredDuringExecution")]
        required: Option<NodeSelector>,
        #[serde(rename = "preferredDuringSchedulingIgnoredDuringExecution")]
        preferred: Vec<PreferredNodeTerm>,
    }
}

object! {
    pub(crate) struct PreferredNodeTerm {
        weight: i64,
        preference: NodeSelectorTerm,
    }
}

object! {
    pub(crate) struct PodAffinity {
        #[serde(rename = "requiredDuringSchedulingIgnoredDuringExecution")]
        required: Vec<PodTerm>,
        #[serde(rename = "preferredDuringSchedulingIgnoredDuringExecution")]
        preferred: Vec<PreferredPodTerm>,
    }
}

object! {
    pub(crate) struct PodTerm {
        label_selector: Option<LabelSelector>,
        namespaces: Vec<String>,
        namespace_selector: Option<LabelSelector>,
        topology_key: String,
        match_label_keys: Vec<String>,
        mismatch_label_keys: Vec<String>,
    }
}

object! {
    pub(crate) struct PreferredPodTerm {
        weight: i64,
        pod_affinity_term: PodTerm,
    }
}

object! {
    pub(crate) struct Toleration {
        key: String,
        operator: String,
        value: String,
        effect: String,
    }
}

object! {
    pub(crate) struct SpreadConstraint {
        max_skew: i64,
        topology_key: String,
        when_unsatisfiable: String,
        label_selector: Option<LabelSelector>,
        min_domains: Option<i64>,
        node_affinity_policy: String,
        node_taints_policy: String,
        match_label_keys: Vec<String>,
    }
}

object! {
    pub(crate) struct Volume {
        name: String,
        persistent_volume_claim: Option<ClaimSource>,
        ephemeral: Option<Empty>,
        image: Option<ImageSource>,
        gce_persistent_disk: Option<GceDisk>,
        aws_elastic_block_store: Option<AwsDisk>,
        iscsi: Option<IscsiDisk>,
        rbd: Option<RbdDisk>,
    }
}

object! {
    pub(crate) struct Empty {}
}

object! {
    pub(crate) struct ClaimSource {
        claim_name: String,
    }
}

object! {
    pub(crate) struct ImageSource {
        reference: String,
    }
}

object! {
    pub(crate) struct GceDisk {
        pd_name: String,
        read_only: bool,
    }
}

object! {
    pub(crate) struct AwsDisk {
        #[serde(rename = "volumeID")]
        volume_id: String,
    }
}

object! {
    pub(crate) struct IscsiDisk {
        iqn: String,
        read_only: bool,
    }
}

object! {
    pub(crate) struct RbdDisk {
        monitors: Vec<String>,
        pool: String,
        image: String,
        read_only: bool,
    }
}

object! {
    pub(crate) struct PodStatus {
        phase: String,
        qos_class: String,
        start_time: Option<String>,
        nominated_node_name: String,
        conditions: Vec<Condition>,
        container_statuses: Vec<ContainerStatus>,
        init_container_statuses: Vec<ContainerStatus>,
        resources: Option<Requirements>,
        allocated_resources: ResourceList,
    }
}

object! {
    pub(crate) struct Condition {
        #[serde(rename = "type")]
        kind: String,
        status: String,
        reason: String,
    }
}

object! {
    pub(crate) struct ContainerStatus {
        name: String,
        resources: Option<Requirements>,
        allocated_resources: ResourceList,
    }
}

object! {
    /// A node, as the API serves it.
    pub struct NodeObject {
        metadata: Meta,
        spec: NodeSpec,
        status: NodeStatus,
    }
}

object! {
    pub(crate) struct NodeSpec {
        unschedulable: bool,
        taints: Vec<Taint>,
    }
}

object! {
    pub(crate) struct Taint {
        key: String,
        value: String,
        effect: String,
    }
}

object! {
    pub(crate) struct NodeStatus {
        allocatable: ResourceList,
        images: Vec<Image>,
        declared_features: Vec<String>,
        qos_resources: NodeClasses,
    }
}

object! {
    pub(crate) struct Image {
        names: Vec<String>,
        size_bytes: i64,
    }
}

object! {
    pub(crate) struct NodeClasses {
        #[serde(rename = "podQOSResources", alias = "podQoSResources")]
        pod: Vec<ClassResource>,
        #[serde(rename = "containerQOSResources", alias = "containerQoSResources")]
        container: Vec<ClassResource>,
    }
}

object! {
    pub(crate) struct ClassResource {
        name: String,
        classes: Vec<Class>,
    }
}

object! {
    pub(crate) struct Class {
        name: String,
        /// Zero is unlimited.
        capacity: u64,
    }
}

object! {
    /// A namespace, service, controller, budget, volume, claim or storage class. The caller passes
    /// its kind.
    pub(crate) struct OtherObject {
        metadata: Meta,
        spec: OtherSpec,
        status: OtherStatus,
        // Storage classes have their fields at the top.
        provisioner: String,
        volume_binding_mode: String,
        allowed_topologies: Vec<AllowedTopology>,
    }
}

object! {
    pub(crate) struct OtherSpec {
        // As text of JSON: a service's and a replication controller's is a map, others' a structure.
        selector: Option<serde_json::Value>,
        access_modes: Vec<String>,
        capacity: ResourceList,
        resources: Requirements,
        storage_class_name: String,
        volume_name: String,
        volume_mode: String,
        claim_ref: Option<ClaimReference>,
        node_affinity: VolumeAffinity,
    }
}

object! {
    pub(crate) struct ClaimReference {
        namespace: String,
        name: String,
    }
}

object! {
    pub(crate) struct VolumeAffinity {
        required: Option<NodeSelector>,
    }
}

object! {
    pub(crate) struct AllowedTopology {
        match_label_expressions: Vec<AllowedExpression>,
    }
}

object! {
    pub(crate) struct AllowedExpression {
        key: String,
        values: Vec<String>,
    }
}

object! {
    pub(crate) struct OtherStatus {
        phase: String,
        disruptions_allowed: i64,
        disrupted_pods: BTreeMap<String, serde_json::Value>,
    }
}
