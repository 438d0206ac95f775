//! The work for a list grows linearly with its length.
//!
//! Each case is measured with a list and with one that is eight times as long. The times are
//! compared by a factor between linear and quadratic growth. On a machine under load the longer run
//! may be interrupted and the shorter one not, so a case is repeated and fails only if every
//! attempt does.

use std::time::{Duration, Instant};

use objects::FeatureGates;
use objects::apply::{self, FieldManager};
use objects::catalog::{self, Resource};
use objects::patch;
use objects::rules::{self, RuleContext, Subresource};
use objects::schema::Schema;
use objects::timestamp::Timestamp;
use objects::yaml;
use serde_json::{Map, Value, json};

const SHORT: usize = 1000;
const LONG: usize = 8 * SHORT;

/// Linear work takes 8 times as long for the long list, quadratic work 64 times.
const FACTOR: u32 = 28;

/// Linear work passes in one of the first attempts, quadratic work in none.
const ATTEMPTS: usize = 40;

fn now() -> Timestamp {
    Timestamp::new(1_800_000_000, 0)
}

/// Prepares the work on a list of a length.
type Case = fn(usize) -> Box<dyn Fn()>;

fn list(count: usize, item: impl Fn(usize) -> Value) -> Value {
    (0..count).map(item).collect()
}

fn map(count: usize, entry: impl Fn(usize) -> (String, Value)) -> Value {
    Value::Object((0..count).map(entry).collect::<Map<_, _>>())
}

fn resource(version: &str, kind: &str) -> &'static Resource {
    catalog::of_kind(version, kind).unwrap()
}

fn decoded(version: &str, kind: &str, object: Value) -> Value {
    let schema = Schema::served();
    let id = resource(version, kind).type_id(schema).unwrap();
    let mut object = schema.decode_value(id, object).unwrap().value;
    object["kind"] = json!(kind);
    object["apiVersion"] = json!(version);
    object
}

/// Validates a new object, and an update from the same object.
fn validation(version: &'static str, kind: &'static str, object: Value) -> Box<dyn Fn()> {
    let object = decoded(version, kind, object);
    Box::new(move || {
        let gates = FeatureGates::default();
        let ctx = RuleContext { gates: &gates, allow_privileged: true, now: now() };
        let resource = resource(version, kind);
        let _ = rules::validate_create(resource, &object, &ctx);
        let _ = rules::warnings(resource, &object, None);
        for part in [Subresource::Main, Subresource::Status, Subresource::EphemeralContainers] {
            let _ = rules::validate_update(resource, &object, &object, part, &ctx);
        }
    })
}

#[allow(clippy::needless_pass_by_value, reason = "callers pass what json! makes")]
fn pod(spec: Value) -> Value {
    json!({"metadata": {"name": "p", "namespace": "n"}, "spec": spec})
}

#[allow(clippy::needless_pass_by_value, reason = "callers pass what json! makes")]
fn container(fields: Value) -> Value {
    let mut container = json!({"name": "c", "image": "i"});
    container.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
    pod(json!({"containers": [container]}))
}

const CASES: &[(&str, Case)] = &[
    ("unknown fields", |count| {
        let body = map(10 * count, |n| (format!("x{n}"), json!(1))).to_string();
        Box::new(move || {
            let schema = Schema::served();
            let id = schema.find("io.k8s.api.core.v1.Pod").unwrap();
            assert_eq!(schema.decode(id, body.as_bytes()).unwrap().strict.len(), 100);
        })
    }),
    ("keys of a YAML map in braces", |count| {
        let fields: Vec<String> = (0..count).map(|n| format!("key{n}: {{a: [1, 2]}}")).collect();
        let text = format!("{{{}}}", fields.join(", "));
        Box::new(move || assert_eq!(yaml::parse(&text).1, []))
    }),
    ("keys of a YAML map that are given twice", |count| {
        let text = "a: 1\n".repeat(count);
        Box::new(move || assert_eq!(yaml::parse(&text).1.len(), 200))
    }),
    ("owner references", |count| {
        let owners = list(count, |n| json!({"uid": format!("u{}", n / 2), "name": "o"}));
        let object = json!({"metadata": {"ownerReferences": owners}});
        Box::new(move || {
            assert_eq!(rules::meta::distinct_owners(&mut object.clone()).len(), count / 2);
        })
    }),
    ("spread constraints", |count| {
        let constraints = list(
            count,
            |n| json!({"topologyKey": format!("k{n}"), "maxSkew": 1, "whenUnsatisfiable": "DoNotSchedule"}),
        );
        validation("v1", "Pod", pod(json!({"topologySpreadConstraints": constraints})))
    }),
    ("tolerations", |count| {
        let tolerations = list(count, |n| json!({"key": format!("k{n}"), "operator": "Exists"}));
        validation("v1", "Pod", pod(json!({"tolerations": tolerations})))
    }),
    ("tolerations of a runtime class", |count| {
        let tolerations = list(count, |n| json!({"key": format!("k{n}"), "operator": "Exists"}));
        let class = json!({
            "metadata": {"name": "c"}, "handler": "h", "scheduling": {"tolerations": tolerations},
        });
        validation("node.k8s.io/v1", "RuntimeClass", class)
    }),
    ("environment variables", |count| {
        let variables = list(count, |n| json!({"name": format!("V{}", n / 2), "value": "v"}));
        validation("v1", "Pod", container(json!({"env": variables})))
    }),
    ("ports", |count| {
        let ports = list(count, |n| json!({"name": format!("p{n}"), "containerPort": 80}));
        validation("v1", "Pod", container(json!({"ports": ports})))
    }),
    ("mounts and devices", |count| {
        let mounts =
            list(count, |n| json!({"name": format!("m{n}"), "mountPath": format!("/m{n}")}));
        let devices =
            list(count, |n| json!({"name": format!("d{n}"), "devicePath": format!("/d{n}")}));
        validation(
            "v1",
            "Pod",
            container(json!({"volumeMounts": mounts, "volumeDevices": devices})),
        )
    }),
    ("resource claims", |count| {
        let names = list(count, |n| json!({"name": format!("c{n}")}));
        let mut pod = container(json!({"resources": {"claims": names}}));
        pod["spec"]["resourceClaims"] =
            list(count, |n| json!({"name": format!("x{n}"), "resourceClaimName": "r"}));
        validation("v1", "Pod", pod)
    }),
    ("statuses of containers", |count| {
        let name = |n: usize| format!("c{n}");
        let statuses =
            list(count, |n| json!({"name": name(n), "state": {"terminated": {"exitCode": 1}}}));
        let mut pod = pod(json!({
            "containers": list(count, |n| json!({"name": name(n)})), "restartPolicy": "OnFailure",
        }));
        pod["status"] = json!({
            "containerStatuses": statuses,
            "podIPs": list(count, |n| json!({"ip": format!("10.0.{}.{}", n / 256, n % 256)})),
            "resourceClaimStatuses": list(count, |n| json!({"name": name(n)})),
        });
        validation("v1", "Pod", pod)
    }),
    ("ports of a service", |count| {
        let ports = list(count, |n| json!({"name": format!("p{n}"), "port": n % 65_535 + 1}));
        let service = json!({
            "metadata": {"name": "s", "namespace": "n"}, "spec": {"type": "NodePort", "ports": ports},
        });
        validation("v1", "Service", service)
    }),
    ("managers of fields", |count| {
        let entry = |n: usize| {
            json!({
                "manager": format!("m{n}"), "operation": "Apply", "apiVersion": "v1",
                "fieldsType": "FieldsV1", "fieldsV1": {"f:data": {format!("f:k{n}"): {}}},
            })
        };
        let object = |value: &'static str| {
            json!({
                "kind": "ConfigMap", "apiVersion": "v1",
                "metadata": {"name": "c", "managedFields": list(count, entry)},
                "data": map(count, |n| (format!("k{n}"), json!(value))),
            })
        };
        let (old, new) = (object("a"), object("b"));
        Box::new(move || {
            let schema = Schema::served();
            let id = schema.find("io.k8s.api.core.v1.ConfigMap").unwrap();
            let by = FieldManager { name: "by", subresource: "", api_version: "v1" };
            apply::track_update(schema, id, Some(&old), &mut new.clone(), &by, now());
        })
    }),
    ("merged lists", |count| {
        let containers =
            |from: usize| list(count, |n| json!({"name": format!("c{}", n + from), "image": "i"}));
        let live = json!({
            "kind": "Pod", "apiVersion": "v1", "metadata": {"name": "p"},
            "spec": {"containers": containers(0)},
        });
        let mut applied = live.clone();
        applied["spec"]["containers"] = containers(count / 2);
        let body = applied.to_string();
        Box::new(move || {
            let schema = Schema::served();
            let id = schema.find("io.k8s.api.core.v1.Pod").unwrap();
            patch::strategic(schema, id, live.clone(), body.as_bytes()).unwrap();
            let by = FieldManager { name: "by", subresource: "", api_version: "v1" };
            apply::apply(schema, id, Some(&live), &applied, &by, true, now()).unwrap();
        })
    }),
];

/// Returns the shortest of some times, which is the least disturbed one.
fn time(attempts: usize, work: &dyn Fn()) -> Duration {
    let once = || {
        let start = Instant::now();
        work();
        start.elapsed()
    };
    std::iter::repeat_with(once).take(attempts).min().unwrap_or_default()
}

#[test]
fn work_does_not_grow_with_the_square_of_a_list() {
    let mut wrong = Vec::new();
    for (name, case) in CASES {
        let (short, long) = (case(SHORT), case(LONG));
        let grows = || {
            let (before, after) = (time(3, &short), time(1, &long));
            (after > before * FACTOR).then_some((before, after))
        };
        let failed: Option<Vec<_>> = std::iter::repeat_with(grows).take(ATTEMPTS).collect();
        wrong.extend(failed.map(|times| format!("{name}: {times:?}")));
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
