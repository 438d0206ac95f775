//! Probes the features of a runtime.

use std::sync::atomic::Ordering;

use cri::{ClassSupport, Client, Condition, Handler, v1};

use crate::support::{Nothing, PATIENCE, Place, Served, State, pair};

fn status() -> v1::StatusResponse {
    let condition = |name: &str, status, reason: &str| v1::RuntimeCondition {
        r#type: name.to_owned(),
        status,
        reason: reason.to_owned(),
        message: format!("{name} it is"),
    };
    let features =
        v1::RuntimeHandlerFeatures { recursive_read_only_mounts: true, user_namespaces: false };
    let rdt = v1::QosResourceInfo { name: "k8s.io/rdt".to_owned(), ..Default::default() };
    v1::StatusResponse {
        status: Some(v1::RuntimeStatus {
            conditions: vec![
                condition("Other", true, ""),
                condition("NetworkReady", false, "NoNetwork"),
                condition("RuntimeReady", true, ""),
            ],
            resources: Some(v1::ResourcesInfo {
                container_qos_resources: vec![rdt],
                ..Default::default()
            }),
        }),
        runtime_handlers: vec![v1::RuntimeHandler {
            name: "runc".to_owned(),
            features: Some(features),
        }],
        features: Some(v1::RuntimeFeatures {
            supplemental_groups_policy: true,
            user_namespaces_host_network: false,
        }),
        ..Default::default()
    }
}

#[tokio::test]
async fn a_runtimes_features_are_probed() {
    let (_place, _served, client, runtime) =
        pair(State { status: status(), ..State::default() }).await;
    let found = client.probe().await.unwrap();
    assert_eq!(
        (&*found.runtime_name, &*found.runtime_version, &*found.runtime_api_version),
        ("test", "1.2.3", "v1")
    );
    assert!(found.runtime_ready.status);
    assert_eq!(
        found.network_ready,
        Condition {
            status: false,
            reason: "NoNetwork".to_owned(),
            message: "NetworkReady it is".to_owned()
        }
    );
    let runc = Handler {
        name: "runc".to_owned(),
        recursive_read_only_mounts: true,
        user_namespaces: false,
    };
    assert_eq!(found.handlers, [runc]);
    assert!(found.supplemental_groups_policy);
    assert!(!found.user_namespaces_host_network);
    assert_eq!(
        found.classes,
        ClassSupport::Fields { pod: [].into(), container: ["k8s.io/rdt".to_owned()].into() }
    );
    assert_eq!(found.cgroup_driver, Some(v1::CgroupDriver::Cgroupfs));
    assert!(found.may_send_events && found.sandbox_updates && found.list_streaming);
    assert!(!found.sandbox_metrics);
    // Probing consumed no event.
    assert_eq!(runtime.0.event_streams.load(Ordering::Relaxed), 0);
}

#[tokio::test]
async fn a_runtime_that_reports_nothing_has_no_features() {
    let (_place, _served, client, _) = pair(State::default()).await;
    let found = client.probe().await.unwrap();
    assert_eq!(found.classes, ClassSupport::Annotations);
    assert_eq!(found.handlers, []);
    assert!(!found.runtime_ready.status);
    assert_eq!(found.network_ready.message, "the runtime does not report NetworkReady");
}

#[tokio::test]
async fn a_server_without_the_protocol_cannot_be_probed() {
    let place = Place::new();
    let client = Client::new(place.endpoint.clone());
    assert!(client.probe().await.unwrap_err().is_unavailable());
    let _served = Served::start(&place, Nothing, PATIENCE).await;
    // The runtime is reachable, and Unimplemented is final.
    let error = client.connected(PATIENCE).await.unwrap_err();
    assert!(error.is_unimplemented(), "{error:?}");
    assert!(client.probe().await.unwrap_err().is_unimplemented());
}
