use super::*;
use crate::types::Pod;
use crate::workload;

/// A pod with these lines as its spec, indented by two.
fn pod(spec: &str) -> Pod {
    let spec: String = spec.lines().map(|line| format!("  {line}\n")).collect();
    let text = format!("apiVersion: v1\nkind: Pod\nmetadata: {{name: p}}\nspec:\n{spec}");
    let manifest = workload::read(&text).unwrap_or_else(|errors| panic!("{text}\n{errors:#?}"));
    (*manifest.workloads[0].template).clone()
}

fn errors(spec: &str) -> Vec<String> {
    let spec: String = spec.lines().map(|line| format!("  {line}\n")).collect();
    let text = format!("apiVersion: v1\nkind: Pod\nmetadata: {{name: p}}\nspec:\n{spec}");
    workload::read(&text).unwrap_err().iter().map(ToString::to_string).collect()
}

/// A container with these requests and limits, in flow notation.
fn container(name: &str, requests: &str, limits: &str) -> String {
    format!(
        "- {{name: {name}, image: i, resources: {{requests: {{{requests}}}, limits: {{{limits}}}}}}}\n"
    )
}

#[test]
fn the_qos_class_is_upstreams() {
    let containers = |list: &[String]| format!("containers:\n{}", list.concat());
    let table = [
        (containers(&[container("a", "", "")]), QosClass::BestEffort),
        (containers(&[container("a", "", "cpu: 1, memory: 1Gi")]), QosClass::Guaranteed),
        (containers(&[container("a", "cpu: 1000m", "cpu: 1, memory: 1Gi")]), QosClass::Guaranteed),
        (containers(&[container("a", "cpu: 500m", "cpu: 1, memory: 1Gi")]), QosClass::Burstable),
        (containers(&[container("a", "", "memory: 1Gi")]), QosClass::Burstable),
        (
            containers(&[container("a", "nvidia.com/gpu: 1", "nvidia.com/gpu: 1")]),
            QosClass::BestEffort,
        ),
        (containers(&[container("a", "cpu: 0", "")]), QosClass::BestEffort),
        (
            containers(&[container("a", "", "cpu: 1, memory: 1Gi"), container("b", "", "")]),
            QosClass::Burstable,
        ),
        (
            format!(
                "initContainers:\n{}{}",
                container("i", "", ""),
                containers(&[container("a", "", "cpu: 1, memory: 1Gi")])
            ),
            QosClass::Burstable,
        ),
        (
            format!(
                "resources: {{limits: {{cpu: 2, memory: 1Gi}}}}\n{}",
                containers(&[container("a", "", "")])
            ),
            QosClass::Guaranteed,
        ),
        (
            format!(
                "resources: {{requests: {{cpu: 500m}}}}\n{}",
                containers(&[container("a", "cpu: 500m", "cpu: 1, memory: 1Gi")])
            ),
            QosClass::Burstable,
        ),
    ];
    for (spec, class) in table {
        assert_eq!(pod(&spec).spec.resources().qos_class(), class, "{spec}");
    }
}

#[test]
fn requests_default_to_limits_one_by_one() {
    let spec = format!("containers:\n{}", container("a", "cpu: 500m", "cpu: 1, memory: 1Gi"));
    let requests = &pod(&spec).spec.containers[0].resources.requests;
    assert_eq!(requests["cpu"].to_string(), "500m");
    assert_eq!(requests["memory"].to_string(), "1Gi");
}

#[test]
fn pod_level_requests_default_to_containers_then_to_limits() {
    let spec = format!(
        "resources: {{limits: {{cpu: 4, memory: 4Gi}}}}\ncontainers:\n{}{}",
        container("a", "cpu: 1", ""),
        container("b", "cpu: 500m", "")
    );
    let pod = pod(&spec);
    let requests = &pod.spec.resources.as_ref().unwrap().requests;
    assert_eq!(requests["cpu"].to_string(), "1500m");
    assert_eq!(requests["memory"].to_string(), "4Gi");
    assert_eq!(
        pod.spec.resources().effective(resources::Side::Requests)["memory"].to_string(),
        "4Gi"
    );
}

#[test]
fn pod_level_limits_default_to_those_of_containers() {
    let spec = format!(
        "resources: {{requests: {{cpu: 5}}}}\ncontainers:\n{}",
        container("a", "", "cpu: 5, memory: 1Gi")
    );
    let pod = pod(&spec);
    assert_eq!(pod.spec.resources.as_ref().unwrap().limits["cpu"].to_string(), "5");
}

#[test]
fn the_whole_pod_needs_its_worst_moment_and_its_overhead() {
    let spec = "\
overhead: {cpu: 100m}
initContainers:
- {name: first, image: i, resources: {requests: {cpu: 3}}}
- {name: side, image: i, restartPolicy: Always, resources: {requests: {cpu: 1}}}
- {name: last, image: i, resources: {requests: {cpu: 3}}}
containers:
- {name: a, image: i, resources: {requests: {cpu: 1, memory: 1Gi}}}
- {name: b, image: i, resources: {requests: {cpu: 500m, memory: 1Gi}}}
";
    let pod = pod(spec);
    assert!(pod.spec.init_containers[1].is_sidecar());
    let requests = pod.spec.resources().effective(resources::Side::Requests);
    assert_eq!(requests["cpu"].to_string(), "4100m");
    assert_eq!(requests["memory"].to_string(), "2Gi");
}

#[test]
fn a_manifest_with_many_fields_is_read_completely() {
    let spec = "\
nodeName: n1
nodeSelector: {kubernetes.io/os: windows}
hostNetwork: true
priority: 1000
priorityClassName: high
serviceAccountName: sa
terminationGracePeriodSeconds: 30
tolerations: [{key: a, operator: Exists}]
securityContext: {runAsNonRoot: true, windowsOptions: {hostProcess: true}}
affinity: {nodeAffinity: {}}
resourceClaims: [{name: c, resourceClaimName: c}]
qosResources: [{name: k8s.io/rdt, class: gold}]
volumes: [{name: v, emptyDir: {sizeLimit: 1Gi}}]
containers:
- name: main
  image: example/app:1
  command: [app, --flag]
  ports: [{containerPort: 80}]
  env: [{name: A, value: b}]
  livenessProbe: {httpGet: {path: /, port: 80}}
  resources:
    claims: [{name: c}]
    limits: {cpu: 2, memory: 1Gi, hugepages-2Mi: 64Mi, nvidia.com/gpu: 1}
    qosResources: [{name: k8s.io/blockio, class: slow}]
";
    let pod = pod(spec);
    let main = &pod.spec.containers[0];
    assert_eq!((pod.spec.required_os(), pod.spec.declared_os()), (Some(OsName::Windows), None));
    assert_eq!(pod.spec.termination_grace_period_seconds, Some(30));
    assert_eq!((main.image.as_str(), main.command.len()), ("example/app:1", 2));
    assert_eq!(main.resources.qos_resources[0].class, "slow");
    assert_eq!(pod.spec.qos_resources[0].name, "k8s.io/rdt");
    assert_eq!(main.resources.requests.len(), 4);
}

#[test]
fn misspelt_fields_are_found_with_the_name_that_was_meant() {
    let spec = "\
nodeNmae: x
containers:
- name: a
  image: i
  resorces: {}
  resources: {limit: {cpu: 1}}
  securityContext: {windowsOptions: {hostprocess: true}}
";
    assert_eq!(
        errors(spec),
        [
            "line 5, column 3: spec.nodeNmae: unknown field \"nodeNmae\"; did you mean \
             \"nodeName\"?",
            "line 9, column 5: spec.containers[0].resorces: unknown field \"resorces\"; did you \
             mean \"resources\"?",
            "line 10, column 17: spec.containers[0].resources.limit: unknown field \"limit\"; did \
             you mean \"limits\"?",
            "line 11, column 40: spec.containers[0].securityContext.windowsOptions.hostprocess: \
             unknown field \"hostprocess\"; did you mean \"hostProcess\"?",
        ]
    );
}

#[test]
fn errors_have_upstreams_texts_and_the_position() {
    let one =
        |requests: &str, limits: &str| format!("containers:\n{}", container("a", requests, limits));
    let table = [
        (
            one("cpu: 2", "cpu: 1"),
            "spec.containers[0].resources.requests: Invalid value: \"2\": must be less than or \
             equal to cpu limit of 1",
        ),
        (
            one("cpu: -1", ""),
            "spec.containers[0].resources.requests[cpu]: Invalid value: \"-1\": must be greater \
             than or equal to 0",
        ),
        (
            one("", "nvidia.com/gpu: 1500m"),
            "spec.containers[0].resources.limits[nvidia.com/gpu]: Invalid value: \"1500m\": must \
             be an integer",
        ),
        (
            one("nvidia.com/gpu: 1", ""),
            "spec.containers[0].resources.limits: Required value: Limit must be set for non \
             overcommitable resources",
        ),
        (
            one("cpu: 1, hugepages-2Mi: 2Mi", "hugepages-2Mi: 4Mi"),
            "spec.containers[0].resources.requests: Invalid value: \"2Mi\": must be equal to \
             hugepages-2Mi limit of 4Mi",
        ),
        (
            one("", "hugepages-2Mi: 4Mi"),
            "spec.containers[0].resources: Forbidden: HugePages require cpu or memory",
        ),
        (
            one("", "cpu: 1, hugepages-2Mi: 3Mi"),
            "spec.containers[0].resources.limits[hugepages-2Mi]: Invalid value: \"3Mi\": 3Mi is \
             not positive integer multiple of hugepages-2Mi",
        ),
        (
            one("memroy: 1Gi", ""),
            "spec.containers[0].resources.requests[memroy]: Invalid value: \"memroy\": must be a \
             standard resource type or fully qualified; did you mean \"memory\"?",
        ),
        ("containers: []".to_owned(), "spec.containers: Required value"),
        ("containers:\n- {image: x}".to_owned(), "spec.containers[0].name: Required value"),
        (
            "containers:\n- {name: a, image: i}\ninitContainers:\n- {name: a, image: i}".to_owned(),
            "spec.initContainers[0].name: Duplicate value: \"a\"",
        ),
        (
            "os: {name: mac}\ncontainers:\n- {name: a, image: i}".to_owned(),
            "spec.os: Unsupported value: \"mac\": supported values: \"linux\", \"windows\"",
        ),
        (
            format!("resources: {{requests: {{cpu: 1}}}}\n{}", one("cpu: 2", "")),
            "spec.resources.requests[cpu]: Invalid value: \"1\": must be greater than or equal to \
             aggregate container requests of 2",
        ),
        (
            "qosResources: [{name: rdt}]\ncontainers:\n- {name: a, image: i}".to_owned(),
            "spec.qosResources[0].class: Required value",
        ),
        (
            "hostNetwork: true\ncontainers:\n- {name: a, image: i}\n- {name: b, image: i, \
             securityContext: {windowsOptions: {hostProcess: true}}}"
                .to_owned(),
            "spec: Invalid value: \"\": If pod contains any hostProcess containers then all \
             containers must be HostProcess containers",
        ),
    ];
    for (spec, expected) in table {
        let errors = errors(&spec);
        assert_eq!(errors.len(), 1, "{spec}\n{errors:#?}");
        let (place, text) = errors[0].split_at(errors[0].find(": ").unwrap());
        assert_eq!(&text[2..], expected, "{spec}");
        assert!(place.starts_with("line "), "{place}");
    }
    let bad_name = errors("containers:\n- {name: A_b, image: i}");
    assert!(bad_name[0].contains("a lowercase RFC 1123 label must consist of"), "{bad_name:?}");
}

#[test]
fn an_unreadable_field_is_reported_once() {
    let errors = errors("containers:\n- {name: 5, image: i}\n");
    assert_eq!(errors.len(), 1, "{errors:?}");
}

#[test]
fn cpu_amounts_below_a_thousandth_are_rounded_up() {
    let text = "apiVersion: v1\nkind: Pod\nmetadata: {name: p}\nspec:\n  containers:\n  - name: a\n    \
                image: i\n    resources: {requests: {cpu: 0.5m}}\n";
    let manifest = workload::read(text).unwrap();
    assert_eq!(
        manifest.warnings[0].to_string(),
        "line 8, column 33: spec.containers[0].resources.requests.cpu: 500u is finer than a \
         thousandth of a CPU; rounded up to 1m"
    );
    let spec = &manifest.workloads[0].template.spec;
    assert_eq!(spec.containers[0].resources.requests["cpu"].to_string(), "1m");
}
