use proptest::prelude::*;

use super::*;

const CONTAINER: &str =
    "{containers: [{name: c, image: i, resources: {limits: {cpu: 1, memory: 1Gi}}}]}";

fn messages(text: &str) -> Vec<String> {
    read(text).unwrap_err().iter().map(ToString::to_string).collect()
}

fn one(version: &str, kind: &str, spec: &str) -> Workload {
    let text = format!(
        "apiVersion: {version}\nkind: {kind}\nmetadata: {{name: w, namespace: n}}\nspec: {spec}\n"
    );
    let manifest = read(&text).unwrap_or_else(|errors| panic!("{text}\n{errors:#?}"));
    assert_eq!(manifest.workloads.len(), 1);
    manifest.workloads[0].clone()
}

#[test]
fn every_kind_has_a_number_of_pods() {
    let template = format!("template: {{metadata: {{labels: {{a: b}}}}, spec: {CONTAINER}}}");
    let table = [
        ("apps/v1", "Deployment", format!("{{{template}}}"), Replicas::Count(1)),
        ("apps/v1", "Deployment", format!("{{replicas: 3, {template}}}"), Replicas::Count(3)),
        ("apps/v1", "ReplicaSet", format!("{{replicas: 0, {template}}}"), Replicas::Count(0)),
        ("apps/v1", "StatefulSet", format!("{{replicas: 2, {template}}}"), Replicas::Count(2)),
        ("apps/v1", "DaemonSet", format!("{{{template}}}"), Replicas::PerNode),
        ("v1", "ReplicationController", format!("{{replicas: 2, {template}}}"), Replicas::Count(2)),
        ("batch/v1", "Job", format!("{{parallelism: 4, {template}}}"), Replicas::Count(4)),
        (
            "batch/v1",
            "Job",
            format!("{{parallelism: 4, completions: 2, {template}}}"),
            Replicas::Count(2),
        ),
        ("batch/v1", "Job", format!("{{suspend: true, {template}}}"), Replicas::Count(0)),
        (
            "batch/v1",
            "CronJob",
            format!("{{schedule: '* * * * *', jobTemplate: {{spec: {{{template}}}}}}}"),
            Replicas::Count(1),
        ),
    ];
    for (version, kind, spec, replicas) in table {
        let workload = one(version, kind, &spec);
        assert_eq!(workload.replicas, replicas, "{kind} {spec}");
        assert_eq!(workload.kind.name(), kind);
        assert_eq!(workload.template.spec.containers[0].resources.requests.len(), 2);
        assert_eq!(workload.template.metadata.labels["a"], "b");
    }
}

#[test]
fn pods_of_a_workload_have_stable_names() {
    let template = format!("template: {{spec: {CONTAINER}}}");
    let set = one("apps/v1", "StatefulSet", &format!("{{ordinals: {{start: 5}}, {template}}}"));
    assert_eq!(set.pod_name(1), "w-6");
    assert_eq!(one("v1", "Pod", CONTAINER).pod_name(0), "w");
}

#[test]
fn lists_are_opened_and_other_kinds_skipped_by_name() {
    let text = format!(
        "apiVersion: v1\nkind: List\nitems:\n- apiVersion: v1\n  kind: Service\n  metadata: \
         {{name: s}}\n- apiVersion: v1\n  kind: Pod\n  metadata: {{name: p}}\n  spec: {CONTAINER}\n"
    );
    let manifest = read(&text).unwrap();
    assert_eq!(manifest.workloads[0].namespace, "default");
    assert_eq!(
        manifest.skipped[0].to_string(),
        "line 4, column 3: Service \"s\" skipped: it runs no pods"
    );
}

#[test]
fn problems_of_all_documents_are_listed_with_positions() {
    let text = "\
apiVersion: v1
kind: List
items:
- apiVersion: v1
  kind: Pod
  metadata: {name: p}
  spec:
    containers:
    - name: a
      image: i
      resources: {requests: {cpu: 2}, limits: {cpu: 1}}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: d}
spec:
  replicas: -1
  template:
    spec:
      containers:
      - {name: a, image: i}
      - {name: a, image: i}
---
kind: Pod
";
    assert_eq!(
        messages(text),
        [
            "line 11, column 29: items[0].spec.containers[0].resources.requests: Invalid value: \
             \"2\": must be less than or equal to cpu limit of 1",
            "line 17, column 13: spec.replicas: expected a whole number between 0 and 2147483647, \
             found the number -1",
            "line 22, column 16: spec.template.spec.containers[1].name: Duplicate value: \"a\"",
            "line 24, column 1: apiVersion: missing; every Kubernetes object has one",
        ]
    );
}

#[test]
fn a_misspelt_kind_or_version_is_not_skipped() {
    let check = |version: &str, kind: &str, expected: &str| {
        let text = format!("apiVersion: {version}\nkind: {kind}\nmetadata: {{name: x}}\n");
        let messages = messages(&text);
        assert!(messages[0].contains(expected), "{messages:?}");
    };
    check("apps/v1", "Deploymnet", "did you mean \"Deployment\"?");
    check("apps/v1", "deployment", "did you mean \"Deployment\"?");
    check("v1", "Deployment", "Deployment is in \"apps/v1\", found \"v1\"");
    let foreign = "apiVersion: example.com/v1\nkind: Deployment\nmetadata: {name: x}\n";
    assert_eq!(read(foreign).unwrap().skipped.len(), 1);
}

#[test]
fn workloads_without_a_name_or_template_are_refused() {
    assert_eq!(
        messages("apiVersion: apps/v1\nkind: Deployment\nspec: {}\n"),
        [
            "line 1, column 1: metadata.name: Required value: name or generateName is required",
            "line 3, column 7: spec.template: Required value",
        ]
    );
}

#[test]
fn json_is_read_like_yaml() {
    let json = "{\"apiVersion\": \"v1\", \"kind\": \"Pod\", \"metadata\": {\"name\": \"p\"}, \
                \"spec\": {\"containers\": [{\"name\": \"c\", \"image\": \"i\"}]}}";
    assert_eq!(read(json).unwrap().workloads.len(), 1);
}

#[test]
fn a_text_without_an_object_is_refused() {
    assert_eq!(
        messages("hello"),
        ["line 1, column 1: expected a map of fields, found the text \"hello\""]
    );
    assert_eq!(read("").unwrap(), Manifest::default());
}

proptest! {
    #[test]
    fn no_text_makes_the_reader_panic(text in "\\PC{0,200}") {
        let _ = read(&text);
    }

    #[test]
    fn no_odd_value_in_a_pod_makes_the_reader_panic(
        cpu in "[-+0-9a-zA-Z.\\[\\]{}: ]{0,12}",
        field in "[a-zA-Z]{0,12}",
        value in "[-a-z0-9\\[\\]{}, ]{0,12}",
    ) {
        let _ = read(&format!(
            "apiVersion: v1\nkind: Pod\nmetadata: {{name: p}}\nspec:\n  {field}: {value}\n  \
             containers:\n  - name: a\n    {field}: {value}\n    resources:\n      requests:\n        \
             cpu: {cpu}\n      limits:\n        memory: {cpu}\n        hugepages-{value}: {cpu}\n"
        ));
    }
}

#[test]
fn a_pod_that_has_ended_is_skipped() {
    let pod = |name: &str, phase: &str| {
        format!(
            "{{apiVersion: v1, kind: Pod, metadata: {{name: {name}}}, status: {{phase: {phase}}}, spec: \
             {{containers: [{{name: c, image: i}}]}}}}"
        )
    };
    let pods = ["Running", "Pending", "Succeeded", "Failed"].map(|p| pod(&p.to_lowercase(), p));
    let text = format!("{{apiVersion: v1, kind: List, items: [{}]}}", pods.join(", "));
    let manifest = read(&text).unwrap();
    let names: Vec<&str> = manifest.workloads.iter().map(|one| one.name.as_str()).collect();
    assert_eq!(names, ["running", "pending"]);
    let skipped: Vec<String> = manifest.skipped.iter().map(ToString::to_string).collect();
    assert_eq!(skipped.len(), 2);
    assert!(skipped[0].ends_with("Pod \"succeeded\" skipped: it has ended"), "{skipped:?}");
}
