//! The objects of the recorded cluster before any pod: namespaces with a ServiceAccount, a
//! ConfigMap, a Secret and a Service.

use anyhow::Result;
use client::kind::{CONFIG_MAPS, Kind, NAMESPACES, SECRETS, SERVICE_ACCOUNTS, SERVICES};
use serde_json::{Value, json};

use super::testbed::ReplayContext;

/// Creates the objects.
pub(super) async fn make(context: &ReplayContext) -> Result<()> {
    for namespace in ["lives", "lives2"] {
        let object = json!({"metadata": {"name": namespace}});
        create(context, NAMESPACES, "", &object).await?;
        let account = json!({"metadata": {"name": "default"}});
        create(context, SERVICE_ACCOUNTS, namespace, &account).await?;
        let mut data = json!({"key1": "value1"});
        if namespace == "lives" {
            data["key2"] = "value2".into();
            data["file.conf"] = "a=1\nb=2\n".into();
        }
        let object = json!({"metadata": {"name": "cm1"}, "data": data});
        create(context, CONFIG_MAPS, namespace, &object).await?;
        let secret = json!({"user": "admin", "pass": "s3cret"});
        let object = json!({"metadata": {"name": "sec1"}, "stringData": secret});
        create(context, SECRETS, namespace, &object).await?;
    }
    let ports = json!([
        {"name": "sql", "port": 5432, "protocol": "TCP"},
        {"name": "web", "port": 80, "protocol": "TCP"},
    ]);
    let object = json!({
        "metadata": {"name": "my-db"},
        "spec": {"clusterIP": "10.0.0.77", "ports": ports, "selector": {"app": "db"}},
    });
    create(context, SERVICES, "lives", &object).await
}

async fn create(
    context: &ReplayContext,
    kind: Kind,
    namespace: &str,
    object: &Value,
) -> Result<()> {
    context.api.create(kind, namespace, object).await?;
    Ok(())
}
