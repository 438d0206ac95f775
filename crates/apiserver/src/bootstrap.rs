//! The objects that every cluster has, created when the store is new.

use objects::apply::FieldManager;
use objects::catalog;
use serde_json::{Value, json};

use crate::api::Api;
use crate::error::ApiError;
use crate::route::ResourcePath;
use crate::subresources::core_resource;
use crate::write::{self, Origin, WriteOptions};
use crate::{codec, read};

/// Namespaces that always exist. All but the last cannot be deleted.
pub(crate) const NAMESPACES: [&str; 4] =
    ["default", "kube-system", "kube-public", "kube-node-lease"];

/// Creates the missing objects.
pub(crate) async fn ensure(api: &Api) -> Result<(), ApiError> {
    let namespaces = core_resource("namespaces")?;
    for name in NAMESPACES {
        let object = json!({"metadata": {"name": name}});
        make(api, namespaces, "", object).await?;
    }
    let classes = [
        (
            "system-cluster-critical",
            2_000_000_000,
            "Used for system critical pods that must run in the cluster, but can be moved to another node if necessary.",
        ),
        (
            "system-node-critical",
            2_000_001_000,
            "Used for system critical pods that must not be moved from their current node.",
        ),
    ];
    if let Some(priorities) = catalog::find("scheduling.k8s.io", "v1", "priorityclasses") {
        for (name, value, description) in classes {
            let object = json!({
                "metadata": {"name": name}, "value": value, "description": description,
            });
            make(api, priorities, "", object).await?;
        }
    }
    let advertised = &api.shared.options.advertised;
    let port = advertised.rsplit(':').next().and_then(|port| port.parse::<u16>().ok());
    let port = port.unwrap_or(6443);
    let service = json!({
        "metadata": {
            "name": "kubernetes", "namespace": "default",
            "labels": {"component": "apiserver", "provider": "kubernetes"},
        },
        "spec": {
            "type": "ClusterIP",
            "clusterIP": crate::services::first_address(&api.shared.options.service_range),
            "ports": [{"name": "https", "protocol": "TCP", "port": 443, "targetPort": port}],
            "sessionAffinity": "None",
        },
    });
    make(api, core_resource("services")?, "default", service).await
}

async fn make(
    api: &Api,
    resource: &'static catalog::Resource,
    namespace: &str,
    mut object: Value,
) -> Result<(), ApiError> {
    let name = object["metadata"]["name"].as_str().unwrap_or_default().to_owned();
    let key = codec::key(resource, namespace, &name);
    if api.store().get(&key).map_err(|error| read::read_failed(&error))?.is_some() {
        return Ok(());
    }
    object["kind"] = Value::from(resource.kind);
    object["apiVersion"] = Value::from(resource.api_version());
    let object = codec::canonical(resource, object)
        .map_err(|error| ApiError::internal(format!("{name}: {error}")))?;
    let path = ResourcePath {
        resource,
        namespace: namespace.to_owned(),
        name: String::new(),
        subresource: None,
        old_watch: false,
    };
    let manager = "kube-apiserver".to_owned();
    let options = WriteOptions { dry_run: false, manager, node: None };
    let version = resource.api_version();
    let by = FieldManager { name: &options.manager, subresource: "", api_version: &version };
    let origin = Origin::Update(by);
    // There is no client to warn.
    let mut warnings = Vec::new();
    write::create_object(api, &path, object, &options, origin, &mut warnings).await.map(|_| ())
}
