//! The environment: order, overriding, missing sources.

use super::*;

fn world() -> World {
    let mut world = World::new();
    let pairs = |of: &[(&str, &str)]| {
        of.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
    };
    world
        .configs
        .config_maps
        .insert("cm1".to_owned(), pairs(&[("key1", "value1"), ("key2", "$(A)")]));
    let secret = BTreeMap::from([
        ("raw".to_owned(), vec![0xff, b'$']),
        ("user".to_owned(), b"admin".to_vec()),
    ]);
    world.configs.secrets.insert("sec1".to_owned(), secret);
    world
}

#[test]
fn variables_come_from_files_of_volumes() {
    let mut world = world();
    let mut file = |path: &str, text: Option<&str>| {
        let file = EnvFile { path: format!("/v/{path}"), text: text.map(str::to_owned) };
        world.env_files.insert(("v".to_owned(), path.to_owned()), file);
    };
    file("good", Some("A='$(HOME)'\nEMPTY=''\n"));
    file("bad", Some("A=1\n"));
    file("gone", None);
    let made = |volume: &str, path: &str, key: &str, optional: bool| {
        let from = json!({"volumeName": volume, "path": path, "key": key, "optional": optional});
        let env = json!([{"name": "X", "valueFrom": {"fileKeyRef": from}}]);
        let config = world.container(&pod_of(json!({"env": env})), "c");
        config.map(|config| texts(&config)).map_err(|error| error.to_string())
    };
    assert_eq!(made("v", "good", "A", false).unwrap(), ["X=$(HOME)"]);
    assert_eq!(made("v", "good", "B", true).unwrap(), [] as [&str; 0]);
    let missing = "environment variable key \"EMPTY\" not found in file \"/v/good\"";
    assert_eq!(made("v", "good", "EMPTY", false).unwrap_err(), missing);
    for path in ["bad", "gone"] {
        assert_eq!(made("v", path, "A", true).unwrap_err(), "couldn't parse env file");
    }
    let no_volume = "cannot find the volume \"w\" referenced by FileKeyRef";
    assert_eq!(made("w", "good", "A", true).unwrap_err(), no_volume);
}

#[test]
fn env_overrides_env_from_and_both_override_services() {
    let mut world = world();
    world.services = vec![
        service("default", "kubernetes", "10.0.0.1", &[("https", 443)]),
        service("lives", "my-db", "10.0.0.77", &[("", 80)]),
    ];
    world.attached.env = vec![("DEVICE".to_owned(), "0".to_owned())];
    let pod = pod_of(json!({
        "command": ["echo", "$(KUBERNETES_SERVICE_PORT)", "$(C)", "$$(C)"],
        "args": ["$(NOPE)", "$(MY_DB_SERVICE_HOST)", "$(DEVICE)"],
        "envFrom": [
            {"configMapRef": {"name": "cm1"}},
            {"prefix": "p_", "secretRef": {"name": "sec1"}},
            {"configMapRef": {"name": "nocm", "optional": true}},
        ],
        "env": [
            {"name": "A", "value": "$(key1)-$(MY_DB_SERVICE_PORT)"},
            {"name": "B", "value": "$(A)$(C)"},
            {"name": "C", "value": "c"},
            {"name": "key1", "value": "over"},
            {"name": "MY_DB_SERVICE_HOST", "value": "mine"},
            {"name": "D", "value": "$(key1)"},
            {"name": "NONE", "valueFrom": {"configMapKeyRef": {"name": "cm1", "key": "no", "optional": true}}},
            {"name": "GONE", "valueFrom": {"secretKeyRef": {"name": "no", "key": "no", "optional": true}}},
            {"name": "EMPTY"},
        ],
    }));
    let config = world.made(&pod);
    let texts = texts(&config);
    let own = [
        "DEVICE=0",
        "key1=over",
        "key2=$(A)",
        "p_raw=\u{fffd}$",
        "p_user=admin",
        "A=value1-80",
        "B=value1-80$(C)",
        "C=c",
        "MY_DB_SERVICE_HOST=mine",
        "D=over",
        "EMPTY=",
    ];
    assert_eq!(texts[..own.len()], own);
    let services: Vec<&str> = texts[own.len()..].iter().map(String::as_str).collect();
    assert!(services.contains(&"MY_DB_PORT_80_TCP=tcp://10.0.0.77:80"), "{services:?}");
    assert!(!services.iter().any(|text| text.starts_with("MY_DB_SERVICE_HOST")), "{services:?}");
    let raw = config.envs.iter().find(|variable| variable.key == "p_raw").unwrap();
    assert_eq!(raw.value, [0xff, b'$']);
    assert_eq!(config.command, ["echo", "443", "c", "$(C)"]);
    assert_eq!(config.args, ["$(NOPE)", "mine", "0"]);
}

#[test]
fn missing_sources_are_reported_with_upstream_text() {
    let var = |source: Value| json!({"env": [{"name": "X", "valueFrom": source}]});
    for (container, expected) in [
        (
            var(json!({"configMapKeyRef": {"name": "cm1", "key": "nokey"}})),
            "couldn't find key nokey in ConfigMap lives/cm1",
        ),
        (
            var(json!({"secretKeyRef": {"name": "sec1", "key": "nokey"}})),
            "couldn't find key nokey in Secret lives/sec1",
        ),
        (var(json!({"configMapKeyRef": {"name": "x", "key": "k"}})), "configmap \"x\" not found"),
        (var(json!({"secretKeyRef": {"name": "x", "key": "k"}})), "secret \"x\" not found"),
        (json!({"envFrom": [{"configMapRef": {"name": "x"}}]}), "configmap \"x\" not found"),
        (
            json!({"envFrom": [{"secretRef": {"name": "x", "optional": false}}]}),
            "secret \"x\" not found",
        ),
        (
            var(json!({"fieldRef": {"fieldPath": "spec.priority"}})),
            "unsupported fieldPath: spec.priority",
        ),
        (
            var(json!({"fieldRef": {"fieldPath": "spec.nodeSelector['a']"}})),
            "unsupported fieldPath: spec.nodeSelector['a']",
        ),
        (
            var(json!({"resourceFieldRef": {"resource": "limits.gpu"}})),
            "Unsupported container resource : limits.gpu",
        ),
        (
            var(json!({"resourceFieldRef": {"resource": "cpu"}})),
            "Unsupported container resource : cpu",
        ),
        (
            var(json!({"resourceFieldRef": {"containerName": "d", "resource": "limits.cpu"}})),
            "container d not found",
        ),
    ] {
        let error = world().container(&pod_of(container.clone()), "c").unwrap_err();
        assert_eq!(error.to_string(), expected, "{container}");
    }
}

#[test]
fn services_are_linked_if_enabled_and_not_headless() {
    let services = [
        service("default", "kubernetes", "10.0.0.1", &[("https", 443)]),
        service("lives", "headless", "None", &[("", 80)]),
        service("lives", "v6", "2001:db8::1", &[("", 80)]),
        service("other", "far", "10.0.0.9", &[("", 80)]),
    ];
    let names = |links| {
        let of = service_links::of_services(&services, "lives", links);
        of.keys().filter(|name| name.ends_with("_HOST")).cloned().collect::<Vec<_>>()
    };
    assert_eq!(names(true), ["KUBERNETES_SERVICE_HOST", "V6_SERVICE_HOST"]);
    assert_eq!(names(false), ["KUBERNETES_SERVICE_HOST"]);
    let of = service_links::of_services(&services, "lives", true);
    assert_eq!(of["V6_PORT"], "tcp://[2001:db8::1]:80");
    assert_eq!(of.get("V6_SERVICE_PORT").map(String::as_str), Some("80"));
    // A service of the namespace replaces the API's of the same name.
    let own = [services[0].clone(), service("lives", "kubernetes", "10.0.0.5", &[("", 1)])];
    let of = service_links::of_services(&own, "lives", true);
    assert_eq!(of["KUBERNETES_SERVICE_HOST"], "10.0.0.5");
}

#[test]
fn only_the_api_service_gets_the_address_of_the_api() {
    let services = [
        service("default", "kubernetes", "10.0.0.1", &[("https", 443)]),
        service("default", "web", "10.0.0.7", &[("", 80)]),
    ];
    let at = |address: &str| {
        let address = address.parse().unwrap();
        let moved = services.clone().map(|service| service.with_api_at(address));
        service_links::of_services(&moved, "default", true)
    };
    let of = at("192.0.2.7:6443");
    assert_eq!(of["KUBERNETES_SERVICE_HOST"], "192.0.2.7");
    assert_eq!(of["KUBERNETES_SERVICE_PORT"], "6443");
    assert_eq!(of["KUBERNETES_SERVICE_PORT_HTTPS"], "6443");
    assert_eq!(of["KUBERNETES_PORT_6443_TCP_ADDR"], "192.0.2.7");
    assert_eq!(of["WEB_PORT"], "tcp://10.0.0.7:80");
    assert_eq!(at("[2001:db8::1]:7443")["KUBERNETES_PORT"], "tcp://[2001:db8::1]:7443");
}

#[test]
fn resources_are_rendered_in_units_of_the_divisor() {
    let spec = json!({
        "resources": {"limits": {"memory": "3Gi"}, "requests": {"memory": "1Gi"}},
        "containers": [
            {"name": "c", "resources": {"limits": {"hugepages-2Mi": "4Mi"}, "requests": {"cpu": "1500m"}}},
            {"name": "d", "resources": {"limits": {"cpu": "1"}}},
        ],
    });
    let (pod, node_env) = (pod(spec), node_env());
    for (container, resource, divisor, expected) in [
        ("", "requests.cpu", None, "2"),
        ("", "requests.cpu", Some("1m"), "1500"),
        // Missing: the node's allocatable amount.
        ("", "limits.cpu", Some("1m"), "1700"),
        ("d", "limits.cpu", Some("0"), "1"),
        ("d", "requests.cpu", None, "0"),
        // Missing: the pod-level amount, then the node's.
        ("", "limits.memory", Some("1Gi"), "3"),
        ("", "limits.ephemeral-storage", Some("1Gi"), "10"),
        ("", "requests.memory", None, "0"),
        ("", "limits.hugepages-2Mi", Some("1Mi"), "4"),
        ("", "requests.hugepages-2Mi", None, "0"),
    ] {
        let of = lifecycle::spec::ResourceFieldRef {
            container_name: container.to_owned(),
            resource: resource.to_owned(),
            divisor: divisor.map(|text| text.parse().unwrap()),
        };
        let own = Some(&pod.spec.containers[0]);
        let value = downward::resource(&pod, &node_env, own, &of).unwrap();
        assert_eq!(value, expected, "{container} {resource} {divisor:?}");
    }
}

#[test]
fn labels_are_rendered_one_per_line() {
    let mut pod = pod(json!({}));
    pod.metadata.labels = [("b", "2\n\"x\" \\ \u{1}ü"), ("a", "1")]
        .map(|(key, value)| (key.to_owned(), value.to_owned()))
        .into();
    let world = World::new();
    let of = |path: &str| downward::field(&world.input(&pod), &[], path).unwrap();
    assert_eq!(of("metadata.labels"), "a=\"1\"\nb=\"2\\n\\\"x\\\" \\\\ \\x01ü\"");
    assert_eq!((of("metadata.labels['a']"), of("metadata.labels['z']")), ("1".into(), "".into()));
    assert_eq!(of("metadata.annotations['kubernetes.io/config.source']"), "api");
    assert_eq!(of("status.podIP"), "");
}
