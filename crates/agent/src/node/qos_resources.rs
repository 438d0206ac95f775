//! QoS-class resources (KEP-3008) of a runtime, for the node's status and for admission.
//!
//! A name is for pods or for containers. A name that is registered for both is refused, and neither reported nor
//! allocated, because requests for it would be ambiguous.

use std::collections::BTreeMap;

use cri::v1;
use objects::rules::pod::class_resources::{full_name, is_unknown};
use serde_json::{Value, json};

use lifecycle::admission::{ClassOffer, Offered};

/// Returns `status.qosResources` for the classes of a runtime. With strict official names, an API server
/// would refuse the whole status for one name that it does not know.
#[must_use]
pub fn status(advertised: &v1::ResourcesInfo, strict_names: bool) -> Value {
    let refused = refused(advertised);
    let rendered = |resources: &[v1::QosResourceInfo]| -> Value {
        let kept = resources.iter().filter(|resource| {
            let name = full_name(&resource.name);
            let unknown = strict_names && is_unknown(name);
            !unknown && !refused.iter().any(|refused| refused == name)
        });
        let values = kept.map(|resource| {
            let classes = resource.classes.iter();
            let classes = classes.map(|class| match class.capacity {
                0 => json!({"name": class.name}),
                capacity => json!({"name": class.name, "capacity": capacity}),
            });
            json!({
                "name": full_name(&resource.name),
                "mutable": resource.mutable,
                "classes": classes.collect::<Vec<_>>(),
            })
        });
        values.collect()
    };
    json!({
        "podQOSResources": rendered(&advertised.pod_qos_resources),
        "containerQOSResources": rendered(&advertised.container_qos_resources),
    })
}

/// Returns the classes for admission.
#[must_use]
pub fn offer(advertised: &v1::ResourcesInfo) -> ClassOffer {
    let refused = refused(advertised);
    let mut resources = BTreeMap::new();
    let lists =
        [(true, &advertised.pod_qos_resources), (false, &advertised.container_qos_resources)];
    for (for_pods, list) in lists {
        for resource in list {
            let name = full_name(&resource.name).to_owned();
            if refused.contains(&name) {
                continue;
            }
            let classes = resource.classes.iter();
            let classes = classes.map(|class| (class.name.clone(), class.capacity)).collect();
            resources.insert(name, Offered { for_pods, classes });
        }
    }
    ClassOffer { resources }
}

/// Returns the same from a `status.qosResources` that [`status`] has written.
#[must_use]
pub fn offer_of_status(status: &Value) -> ClassOffer {
    let mut resources = BTreeMap::new();
    for (for_pods, list) in [(true, "podQOSResources"), (false, "containerQOSResources")] {
        for resource in status[list].as_array().into_iter().flatten() {
            let Some(name) = resource["name"].as_str() else { continue };
            let classes = resource["classes"].as_array().into_iter().flatten();
            let classes = classes.filter_map(|class| {
                Some((class["name"].as_str()?.to_owned(), class["capacity"].as_u64().unwrap_or(0)))
            });
            let offered = Offered { for_pods, classes: classes.collect() };
            resources.insert(name.to_owned(), offered);
        }
    }
    ClassOffer { resources }
}

/// Returns the names that are registered for both pods and containers.
#[must_use]
pub fn refused(advertised: &v1::ResourcesInfo) -> Vec<String> {
    let name = |resource: &v1::QosResourceInfo| full_name(&resource.name).to_owned();
    let containers: Vec<String> = advertised.container_qos_resources.iter().map(name).collect();
    let pods = advertised.pod_qos_resources.iter().map(name);
    pods.filter(|name| containers.contains(name)).collect()
}
