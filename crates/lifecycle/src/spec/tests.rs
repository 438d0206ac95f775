use super::*;

#[test]
fn a_pod_of_the_api_is_read_completely() {
    let pod: Pod = serde_json::from_value(serde_json::json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": "p", "namespace": "n", "uid": "u", "labels": {"a": "b"}},
        "spec": {
            "initContainers": [{"name": "i"}, {"name": "s", "restartPolicy": "Always"}],
            "containers": [{
                "name": "c", "image": "busybox",
                "env": [{"name": "A", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}],
                "livenessProbe": {"httpGet": {"port": "web", "path": "/"}, "periodSeconds": 3},
                "lifecycle": {"preStop": {"sleep": {"seconds": 2}}},
                "resources": {"limits": {"cpu": "2"}, "qosResources": [{"name": "rdt", "class": "g"}]},
            }],
            "volumes": [
                {"name": "v", "downwardAPI": {"items": [{"path": "x"}]}},
                {"name": "w", "nfs": {"server": "s"}},
            ],
            "hostPID": true,
            "terminationGracePeriodSeconds": 5,
        },
        "status": {"phase": "Pending"},
    }))
    .unwrap();
    let roles: Vec<_> = pod.containers().map(|(role, c)| (role, c.name.as_str())).collect();
    assert_eq!(roles, [(Role::Init, "i"), (Role::Sidecar, "s"), (Role::App, "c")]);
    let container = &pod.spec.containers[0];
    let probe = container.liveness_probe.as_ref().unwrap();
    let http = probe.handler.http_get.as_ref().unwrap();
    assert_eq!((&http.port, probe.period_seconds), (&IntOrString::String("web".into()), 3));
    assert_eq!(
        container.lifecycle.pre_stop.as_ref().unwrap().sleep,
        Some(SleepAction { seconds: 2 })
    );
    assert_eq!(container.resources.qos_resources[0].class, "g");
    assert!(pod.spec.host_pid && pod.spec.volumes[0].downward_api.is_some());
    assert_eq!(pod.spec.volumes[1].other.keys().collect::<Vec<_>>(), ["nfs"]);
    assert_eq!((pod.grace_seconds(), pod.full_name().as_str()), (5, "n/p"));
}
