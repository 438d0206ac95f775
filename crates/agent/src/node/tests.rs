//! Tables for what recordings do not show, and the status loop against an API with one node.

use std::sync::Mutex;
use std::time::Duration;

use client::{Body, BoxFuture, Client, Request, Response, Transport, TransportError};
use cri::v1;
use objects::patch;
use serde_json::json;
use tokio::sync::{mpsc, watch};

use super::recorded::described;
use super::*;
use crate::observability::events::{AgentEvent, NodeChange};
use crate::server::access::{self, Authorization};

/// Long enough for a busy machine. A successful test does not wait for it.
const PATIENCE: Duration = Duration::from_secs(60);

#[test]
fn this_machine_can_be_a_node() {
    let description = describe(KubeletConfig::default(), NodeOptions::default()).unwrap();
    assert!(!description.name.is_empty() && description.name == description.hostname);
    assert_eq!(os_name(description.os), if on_windows() { "windows" } else { "linux" });
    assert!(description.version.starts_with("v1.37."));
    // Without it the scheduler finds no node for a pod that restarts as a whole.
    let declared = "RestartAllContainersOnContainerExits".to_owned();
    assert!(
        description.declared_features.contains(&declared)
            && description.declared_features.is_sorted()
    );
    let given = NodeOptions {
        name: Some("n".to_owned()),
        addresses: vec!["192.0.2.9".parse().unwrap()],
        ..NodeOptions::default()
    };
    let description = describe(KubeletConfig::default(), given).unwrap();
    assert_eq!((description.name.as_str(), description.addresses.len()), ("n", 1));
}

fn on_windows() -> bool {
    std::env::consts::FAMILY == "windows"
}

#[test]
fn windows_nodes_report_their_build() {
    let (mut description, now) = described(&Value::Null);
    description.os = OsName::Windows;
    description.identity.kernel_version = "10.0.20348.2113".to_owned();
    description.labels.insert("team".to_owned(), "a".to_owned());
    let node = object(&description, &now);
    let labels = &node["metadata"]["labels"];
    assert_eq!(labels["node.kubernetes.io/windows-build"], "10.0.20348");
    assert_eq!((&labels["kubernetes.io/os"], &labels["team"]), (&json!("windows"), &json!("a")));
    assert!(status(&description, &now)["nodeInfo"].get("runningInUserNamespace").is_none());
}

#[test]
fn the_largest_images_are_reported_with_few_names() {
    let (mut description, mut now) = described(&Value::Null);
    let image = |bytes: u64| Image {
        id: bytes.to_string(),
        tags: (0..7).map(|n| format!("i{bytes}:{n}")).collect(),
        bytes,
        ..Image::default()
    };
    now.images = Arc::new((1..=60).map(image).collect());
    let found = status(&description, &now)["images"].clone();
    assert_eq!(list(&found).len(), 50);
    assert_eq!(found[0]["sizeBytes"], 60);
    assert_eq!(list(&found[0]["names"]).len(), 5);
    description.settings.max_images = None;
    assert_eq!(list(&status(&description, &now)["images"]).len(), 60);
    description.settings.max_images = Some(0);
    assert_eq!(status(&description, &now)["images"], json!([]));
}

#[test]
fn amounts_never_fall_below_nothing() {
    let (description, mut now) = described(&Value::Null);
    now.storage = 1 << 20;
    now.memory.total = 100 << 20;
    let left = allocatable(&description, &now);
    assert_eq!(left["memory"].to_string(), "0");
    assert_eq!(left["ephemeral-storage"].to_string(), "0");
}

#[test]
fn runtime_features_are_reported() {
    let (mut description, mut now) = described(&json!({"featureGates": {"QOSResources": true}}));
    let handler = |name: &str| cri::Handler {
        name: name.to_owned(),
        recursive_read_only_mounts: true,
        user_namespaces: false,
    };
    let RuntimeHealth::Seen(runtime) = &mut now.runtime else { panic!("there is one") };
    let runtime = Arc::make_mut(runtime);
    runtime.handlers = vec![handler("runc"), handler("")];
    runtime.tells_features = true;
    runtime.supplemental_groups_policy = true;
    runtime.classes = Some(advertised());
    let found = status(&description, &now);
    let features = json!({"recursiveReadOnlyMounts": true, "userNamespaces": false});
    let handlers =
        [json!({"name": "", "features": features}), json!({"name": "runc", "features": features})];
    assert_eq!(found["runtimeHandlers"], json!(handlers));
    assert_eq!(found["features"], json!({"supplementalGroupsPolicy": true}));
    assert_eq!(found["qosResources"]["containerQOSResources"][0]["name"], "k8s.io/rdt");
    description.config.feature_gates = objects::FeatureGates::default();
    assert_eq!(status(&description, &now)["qosResources"], Value::Null);
}

fn advertised() -> v1::ResourcesInfo {
    let resource = |name: &str, mutable, classes: &[(&str, u64)]| v1::QosResourceInfo {
        name: name.to_owned(),
        mutable,
        classes: classes
            .iter()
            .map(|(name, capacity)| v1::QosResourceClassInfo {
                name: (*name).to_owned(),
                capacity: *capacity,
            })
            .collect(),
    };
    v1::ResourcesInfo {
        pod_qos_resources: vec![
            resource("example.com/net", false, &[("fast", 2)]),
            resource("blockio", false, &[("slow", 0)]),
        ],
        container_qos_resources: vec![
            resource("rdt", true, &[("gold", 0), ("silver", 7)]),
            resource("k8s.io/blockio", false, &[("slow", 0)]),
        ],
    }
}

#[test]
fn a_class_resource_is_for_pods_or_for_containers() {
    let advertised = advertised();
    assert_eq!(qos_resources::refused(&advertised), ["k8s.io/blockio"]);
    let expected = json!({
        "podQOSResources": [
            {"name": "example.com/net", "mutable": false, "classes": [{"name": "fast", "capacity": 2}]},
        ],
        "containerQOSResources": [
            {"name": "k8s.io/rdt", "mutable": true,
             "classes": [{"name": "gold"}, {"name": "silver", "capacity": 7}]},
        ],
    });
    assert_eq!(qos_resources::status(&advertised, true), expected);
    assert_eq!(qos_resources::offer_of_status(&expected), qos_resources::offer(&advertised));
    let offer = qos_resources::offer(&advertised).resources;
    let names: Vec<(&str, bool)> = offer.iter().map(|(n, o)| (n.as_str(), o.for_pods)).collect();
    assert_eq!(names, [("example.com/net", true), ("k8s.io/rdt", false)]);
    assert_eq!(offer["k8s.io/rdt"].classes["silver"], 7);
}

#[test]
fn unknown_official_names_are_reported_only_without_strictness() {
    let mut advertised = advertised();
    advertised.container_qos_resources[1].name = "disk".to_owned();
    let names = |strict| {
        let found = qos_resources::status(&advertised, strict);
        let containers = found["containerQOSResources"].as_array().unwrap().clone();
        containers.iter().map(|resource| resource["name"].clone()).collect::<Vec<_>>()
    };
    assert_eq!(names(true), ["k8s.io/rdt"]);
    assert_eq!(names(false), ["k8s.io/rdt", "disk"]);
}

#[test]
fn problems_are_listed_as_go_lists_errors() {
    let (_, mut now) = described(&Value::Null);
    let RuntimeHealth::Seen(runtime) = &mut now.runtime else { panic!("there is one") };
    let unmet = |reason: &str| cri::Condition {
        status: false,
        reason: reason.to_owned(),
        message: "no".to_owned(),
    };
    Arc::make_mut(runtime).ready = unmet("A");
    Arc::make_mut(runtime).network = unmet("B");
    let found = conditions(&Value::Null, Pressure::default(), &now.runtime.problems(), "t", false);
    let ready = found.conditions.last().unwrap();
    assert_eq!(
        ready["message"],
        "[container runtime not ready: RuntimeReady=false reason:A message:no, container runtime \
         network not ready: NetworkReady=false reason:B message:no]"
    );
}

#[test]
fn a_condition_keeps_the_time_of_its_last_change() {
    let none = Pressure::default();
    let first = conditions(&Value::Null, none, &[], "1", true);
    assert_eq!(
        first.changes,
        [NodeChange::SufficientMemory, NodeChange::NoDiskPressure, NodeChange::SufficientPids]
    );
    let before = Value::from(first.conditions);
    let later = conditions(&before, Pressure { memory: true, ..none }, &[], "2", false);
    assert_eq!(later.changes, [NodeChange::InsufficientMemory]);
    let times: Vec<_> = later
        .conditions
        .iter()
        .map(|c| (c["lastTransitionTime"].clone(), c["lastHeartbeatTime"].clone()))
        .collect();
    assert_eq!(times[0], (json!("2"), json!("2")));
    assert_eq!(times[1], (json!("1"), json!("2")));
}

#[test]
fn settings_have_upstreams_defaults_and_name_errors() {
    let read = |fields: Value| {
        let mut config = KubeletConfig::default();
        config.untyped.extend(fields.as_object().unwrap().clone());
        Settings::of(&config)
    };
    let usual = read(json!({})).unwrap();
    assert_eq!((usual.update_every.as_secs(), usual.report_every.as_secs()), (10, 300));
    assert_eq!((usual.lease_seconds, usual.max_images), (40, Some(50)));
    let both = read(json!({"nodeStatusUpdateFrequency": "20s"})).unwrap();
    assert_eq!((both.update_every.as_secs(), both.report_every.as_secs()), (20, 20));
    assert_eq!(read(json!({"nodeStatusMaxImages": -1})).unwrap().max_images, None);
    assert_eq!((usual.files_every.as_secs(), usual.logs_every.as_secs()), (20, 10));
    assert_eq!(usual.logs, crate::runtime::logs::rotate::Policy::default());
    let logs = read(json!({"containerLogMaxSize": "1Mi", "containerLogMaxFiles": 2})).unwrap().logs;
    assert_eq!((logs.max_size, logs.max_files), (1 << 20, 2));
    for (field, value) in [
        ("containerLogMaxSize", json!("-1")),
        ("containerLogMaxFiles", json!(1)),
        ("containerLogMonitorInterval", json!("1s")),
    ] {
        let wrong = read(json!({field: value})).unwrap_err();
        assert_eq!(wrong.iter().map(|wrong| wrong.field).collect::<Vec<_>>(), [field]);
    }
    let wrong = read(json!({
        "port": 70000,
        "nodeLeaseDurationSeconds": -1,
        "imageGCHighThresholdPercent": 101,
        "imageMinimumGCAge": "soon",
        "registerWithTaints": [{"key": "a"}],
    }));
    let errors: Vec<String> = wrong.unwrap_err().iter().map(ToString::to_string).collect();
    let expected = [
        "port: 70000 should be a port from 1 to 65535",
        "registerWithTaints: [{\"key\":\"a\"}] should be a list of taints",
        "nodeLeaseDurationSeconds: -1 should be a number of seconds above zero",
        "imageGCHighThresholdPercent: 101 should be a percentage from 0 to 100",
        "imageMinimumGCAge: \"soon\" should be a duration such as 10s",
    ];
    assert_eq!(errors, expected);
    assert_eq!((usual.address, &usual.access), (None, &access::Settings::default()));
    let given = read(json!({
        "address": "::1",
        "authentication": {
            "anonymous": {"enabled": true}, "webhook": {"enabled": true, "cacheTTL": "3s"},
        },
        "authorization": {
            "mode": "Webhook",
            "webhook": {"cacheAuthorizedTTL": "4s", "cacheUnauthorizedTTL": "5s"},
        },
    }));
    let (seconds, given) = (Duration::from_secs, given.unwrap());
    assert_eq!(given.address, Some("::1".parse().unwrap()));
    let expected = access::Settings {
        anonymous: true,
        tokens: Some(seconds(3)),
        authorization: Authorization::Webhook { allowed: seconds(4), denied: seconds(5) },
    };
    assert_eq!(given.access, expected);
    let open = read(json!({
        "authentication": {"webhook": {"enabled": false}}, "authorization": {"mode": "AlwaysAllow"},
    }));
    let open = open.unwrap().access;
    assert_eq!((open.tokens, open.authorization), (None, Authorization::AlwaysAllow));
    let wrong = read(json!({
        "address": "here",
        "authentication": {"anonymous": {"enabled": "yes"}},
        "authorization": {"mode": "Nobody"},
    }));
    let errors: Vec<String> = wrong.unwrap_err().iter().map(ToString::to_string).collect();
    let expected = [
        "address: \"here\" should be an IP address",
        "authentication.anonymous.enabled: \"yes\" should be true or false",
        "authorization.mode: \"Nobody\" should be Webhook or AlwaysAllow",
    ];
    assert_eq!(errors, expected);
    let crossed = read(json!({"imageGCLowThresholdPercent": 85})).unwrap_err();
    assert_eq!(crossed.len(), 1);
}

#[test]
fn zero_stands_for_the_default_as_upstream_has_it() {
    let mut config = KubeletConfig::default();
    let usual = Settings::of(&config).unwrap();
    let zeros = json!({
        "port": 0, "nodeLeaseDurationSeconds": 0, "containerLogMaxSize": "", "fileCheckFrequency": "0s",
    });
    config.untyped.extend(zeros.as_object().unwrap().clone());
    assert_eq!(Settings::of(&config).unwrap(), usual);
}

#[test]
fn images_are_pulled_one_by_one_by_default() {
    let pulls = |fields: Value| {
        let mut config = KubeletConfig::default();
        config.untyped.extend(fields.as_object().unwrap().clone());
        Settings::of(&config).unwrap().parallel_pulls
    };
    assert_eq!(pulls(json!({})), 1);
    assert_eq!(pulls(json!({"maxParallelImagePulls": 4})), 4);
    assert_eq!(pulls(json!({"maxParallelImagePulls": 1})), 1);
    assert!(pulls(json!({"serializeImagePulls": false})) > 1000);
    assert_eq!(pulls(json!({"serializeImagePulls": false, "maxParallelImagePulls": 3})), 3);
}

/// The reader of the file and the agent must agree: a file that passes the check starts the agent.
#[test]
fn every_valid_configuration_file_starts_the_agent() {
    const FIELDS: [&str; 23] = [
        "allowedUnsafeSysctls",
        "containerLogMaxFiles",
        "containerLogMaxSize",
        "containerLogMonitorInterval",
        "enableControllerAttachDetach",
        "evictionMaxPodGracePeriod",
        "evictionPressureTransitionPeriod",
        "fileCheckFrequency",
        "imageGCHighThresholdPercent",
        "imageGCLowThresholdPercent",
        "imageMaximumGCAge",
        "imageMinimumGCAge",
        "localStorageCapacityIsolation",
        "maxParallelImagePulls",
        "nodeLeaseDurationSeconds",
        "nodeStatusMaxImages",
        "nodeStatusReportFrequency",
        "nodeStatusUpdateFrequency",
        "port",
        "providerID",
        "registerNode",
        "registerWithTaints",
        "serializeImagePulls",
    ];
    const VALUES: [&str; 26] = [
        "0",
        "1",
        "-1",
        "2",
        "85",
        "86",
        "101",
        "65536",
        "2147483648",
        "1.5",
        "true",
        "'true'",
        "''",
        "abc",
        "'5'",
        "0s",
        "10s",
        "-10s",
        "2s",
        "10Mi",
        "-10Mi",
        "0Mi",
        "[]",
        "{}",
        "[net.*]",
        "[{key: a, effect: NoSchedule}]",
    ];
    let mut taken = 0;
    for field in FIELDS {
        for value in VALUES {
            let text = format!(
                "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n{field}: {value}\n"
            );
            let Ok((config, _)) = objects::kubelet_config::read(&text) else { continue };
            taken += 1;
            assert!(Settings::of(&config).is_ok(), "{field}: {value}: {:?}", Settings::of(&config));
        }
    }
    assert!(taken > FIELDS.len(), "{taken}");
}

#[test]
fn a_node_has_a_name_that_an_api_server_takes() {
    assert_eq!(node_name(None, "Worker-1.Example.com").unwrap(), "worker-1.example.com");
    assert_eq!(node_name(Some(" Node "), "x").unwrap(), "node");
    let wrong = node_name(Some("My Host"), "x").unwrap_err().to_string();
    assert!(
        wrong.starts_with("--hostname-override: \"My Host\" should be a node's name"),
        "{wrong}"
    );
    assert!(wrong.contains("a lowercase RFC 1123 subdomain must consist of"), "{wrong}");
    for bad in ["", "a_b", "-a", &"a".repeat(254)] {
        assert!(node_name(Some(bad), "x").is_err(), "{bad}");
    }
    assert!(node_name(None, "my_machine").unwrap_err().to_string().contains("--hostname-override"));
}

#[test]
fn only_what_differs_is_written() {
    let (description, now) = described(&Value::Null);
    let with = |time: &str, conditions_of: Pressure| {
        let mut status = status(&description, &now);
        status["conditions"] =
            conditions(&Value::Null, conditions_of, &[], time, false).conditions.into();
        status
    };
    let has = with("1", Pressure::default());
    assert_eq!(changes::of_status(&has, &with("2", Pressure::default()), false), None);
    let beat = changes::of_status(&has, &with("2", Pressure::default()), true).unwrap();
    let fields: Vec<&String> = beat["status"].as_object().unwrap().keys().collect();
    assert_eq!(fields, ["conditions"]);
    let disk = Pressure { disk: true, ..Pressure::default() };
    assert!(changes::of_status(&has, &with("2", disk), false).is_some());

    let mut gone = has;
    gone["capacity"]["hugepages-64Ki"] = "0".into();
    gone["features"] = json!({"supplementalGroupsPolicy": true});
    let patch = changes::of_status(&gone, &with("2", Pressure::default()), false).unwrap();
    let capacity = &patch["status"]["capacity"];
    assert_eq!(capacity.as_object().unwrap().get("hugepages-64Ki"), Some(&Value::Null));
    assert_eq!(patch["status"].as_object().unwrap().get("features"), Some(&Value::Null));
}

#[test]
fn extended_resources_of_other_writers_are_kept() {
    let (description, mut now) = described(&Value::Null);
    now.devices.insert("example.com/plugged".to_owned(), Devices { all: 0, healthy: 0 });
    let wanted = status(&description, &now);
    let mut has = wanted.clone();
    assert_eq!(changes::of_status(&has, &wanted, false), None);
    // Another writer sets the capacity, and all of it becomes allocatable.
    has["capacity"]["example.com/widget"] = "3".into();
    has["allocatable"]["example.com/gone"] = "1".into();
    has["capacity"]["example.com/plugged"] = "2".into();
    let patch = changes::of_status(&has, &wanted, false).unwrap();
    let expected = json!({
        "capacity": {"example.com/plugged": "0"},
        "allocatable": {"example.com/gone": null, "example.com/widget": "3"},
    });
    assert_eq!(patch["status"], expected);
    // Then there is nothing left to write.
    let patched = patch::merge(has, patch["status"].to_string().as_bytes()).unwrap();
    assert_eq!(changes::of_status(&patched.value, &wanted, false), None);
}

#[test]
fn labels_of_others_are_left_alone() {
    let wanted = BTreeMap::from([("kubernetes.io/os".to_owned(), "linux".to_owned())]);
    let notes = BTreeMap::from([("berth.dev/machine".to_owned(), "{}".to_owned())]);
    let has = json!({
        "labels": {"kubernetes.io/os": "plan9", "team": "a", "beta.kubernetes.io/os": "plan9"},
        "annotations": {"note": "b"},
    });
    let patch = changes::of_metadata(&has, &wanted, &notes).unwrap();
    let expected = json!({"metadata": {
        "labels": {"kubernetes.io/os": "linux", "beta.kubernetes.io/os": null},
        "annotations": {"berth.dev/machine": "{}"},
    }});
    assert_eq!(patch, expected);
    let patched = patch::merge(has, expected["metadata"].to_string().as_bytes()).unwrap();
    assert_eq!(changes::of_metadata(&patched.value, &wanted, &notes), None);
}

/// An API with one node and one lease, which merges patches as ours does.
#[derive(Debug, Default)]
struct OneNode(Mutex<Kept>);

#[derive(Debug, Default)]
struct Kept {
    revision: u64,
    objects: BTreeMap<String, Value>,
    watchers: Vec<mpsc::Sender<bytes::Bytes>>,
    writes: Vec<String>,
}

impl Kept {
    fn put(&mut self, path: &str, mut object: Value) -> Value {
        self.revision += 1;
        object["metadata"]["resourceVersion"] = self.revision.to_string().into();
        self.objects.insert(path.to_owned(), object.clone());
        if path.contains("/nodes/") {
            let line = format!("{}\n", json!({"type": "MODIFIED", "object": object}));
            self.watchers.retain(|watcher| watcher.try_send(line.clone().into()).is_ok());
        }
        object
    }

    fn answer(&mut self, request: &Request) -> (u16, Value) {
        let path = request.path.trim_end_matches("/status");
        if request.method != "GET" {
            self.writes.push(format!("{} {}", request.method, request.path));
        }
        let body: Value = serde_json::from_slice(&request.body).unwrap_or_default();
        let kept = self.objects.get(path).cloned();
        match (request.method.as_str(), kept) {
            ("GET", _) if path.ends_with("/nodes") => {
                let items: Vec<&Value> = self
                    .objects
                    .iter()
                    .filter(|(p, _)| p.contains("/nodes/"))
                    .map(|(_, o)| o)
                    .collect();
                let metadata = json!({"resourceVersion": self.revision.to_string()});
                (200, json!({"metadata": metadata, "items": items}))
            }
            ("GET", Some(object)) => (200, object),
            ("POST", _) => {
                let mut object = body;
                let name = object["metadata"]["name"].as_str().unwrap().to_owned();
                object["metadata"]["uid"] = "u".into();
                (201, self.put(&format!("{path}/{name}"), object))
            }
            ("PUT", Some(_)) => (200, self.put(path, body)),
            ("PATCH", Some(object)) => {
                let patched = if request.content_type.contains("strategic") {
                    let schema = objects::schema::Schema::served();
                    let node = schema.find("io.k8s.api.core.v1.Node").unwrap();
                    patch::strategic(schema, node, object, &request.body)
                } else {
                    patch::merge(object, &request.body)
                };
                (200, self.put(path, patched.unwrap().value))
            }
            _ => (404, json!({"kind": "Status", "reason": "NotFound", "message": path})),
        }
    }
}

impl Transport for OneNode {
    fn send(&self, request: Request) -> BoxFuture<'_, Result<Response, TransportError>> {
        let mut kept = self.0.lock().unwrap();
        if request.query.iter().any(|(name, _)| name == "watch") {
            let (watcher, changes) = mpsc::channel(100);
            kept.watchers.push(watcher);
            let body = Body::Stream(changes);
            return Box::pin(async { Ok(Response { status: 200, retry_after: None, body }) });
        }
        let (status, value) = kept.answer(&request);
        let body = Body::Whole(value.to_string().into());
        Box::pin(async move { Ok(Response { status, retry_after: None, body }) })
    }
}

/// The other ends of the channels of a node's loop.
struct Ends {
    runtime: watch::Sender<RuntimeHealth>,
    report: watch::Sender<Arc<NodeReport>>,
    pressure: watch::Sender<Pressure>,
    events: mpsc::UnboundedReceiver<AgentEvent>,
    seen: watch::Receiver<Option<Arc<Value>>>,
    api: Arc<OneNode>,
}

impl Ends {
    fn writes(&self) -> Vec<String> {
        self.api.0.lock().unwrap().writes.clone()
    }

    /// Waits until the node in the API matches.
    async fn until(&mut self, so: impl Fn(&Value) -> bool) -> Arc<Value> {
        let so = |node: &Option<Arc<Value>>| node.as_deref().is_some_and(&so);
        let found = tokio::time::timeout(PATIENCE, self.seen.wait_for(so)).await;
        found.unwrap().unwrap().clone().unwrap()
    }
}

fn ready(node: &Value) -> Option<&str> {
    list(&node["status"]["conditions"]).iter().find(|c| c["type"] == "Ready")?["status"].as_str()
}

fn start(api: OneNode, runtime: RuntimeHealth) -> Ends {
    let (mut description, now) = described(&Value::Null);
    description.settings.update_every = Duration::from_secs(600);
    let api = Arc::new(api);
    let (runtime, taken_runtime) = watch::channel(runtime);
    let (pressure, taken_pressure) = watch::channel(Pressure::default());
    let (report, taken_report) = watch::channel(now.report);
    let (sender, events) = mpsc::unbounded_channel();
    let (see, seen) = watch::channel(None);
    let sources = StatusInputs {
        takeover: watch::channel(Takeover::Done).1,
        runtime: taken_runtime,
        pressure: taken_pressure,
        images: watch::channel(Arc::default()).1,
        devices: watch::channel(BTreeMap::new()).1,
        report: taken_report,
        problems: watch::channel(Vec::new()).1,
        root: std::env::temp_dir(),
    };
    let client = Client::new(Arc::clone(&api) as Arc<dyn Transport>, "kubelet");
    tokio::spawn(run(client, description, sources, see, sender));
    Ends { runtime, report, pressure, events, seen, api }
}

const NODE: &str = "/api/v1/nodes/node-1";
const LEASE: &str = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/node-1";

#[tokio::test]
async fn a_node_is_registered_and_kept_true() {
    let (_, now) = described(&Value::Null);
    let mut ends = start(OneNode::default(), RuntimeHealth::Starting);
    let node = ends.until(|node| ready(node) == Some("False")).await;
    assert_eq!(node["metadata"]["labels"]["kubernetes.io/hostname"], "node-1");
    assert!(node["metadata"]["annotations"]["berth.dev/machine"].is_string());
    ends.runtime.send_replace(now.runtime.clone());
    let node = ends.until(|node| ready(node) == Some("True")).await;
    assert_eq!(node["status"]["nodeInfo"]["containerRuntimeVersion"], "containerd://1.6.20");
    ends.pressure.send_replace(Pressure { disk: true, ..Pressure::default() });
    ends.until(|node| node["status"]["conditions"][1]["status"] == "True").await;
    let mut changes = Vec::new();
    while changes.last() != Some(&NodeChange::DiskPressure) {
        match tokio::time::timeout(PATIENCE, ends.events.recv()).await.unwrap().unwrap() {
            AgentEvent::Node { is, .. } => changes.push(is),
            other => panic!("{other}"),
        }
    }
    let expected = [
        NodeChange::SufficientMemory,
        NodeChange::NoDiskPressure,
        NodeChange::SufficientPids,
        NodeChange::Ready,
        NodeChange::DiskPressure,
    ];
    assert_eq!(changes, expected);
    let lease = ends.api.0.lock().unwrap().objects.get(LEASE).cloned().unwrap();
    assert_eq!(lease["metadata"]["ownerReferences"][0]["uid"], "u");
    assert!(ends.writes()[0].starts_with("POST"), "{:?}", ends.writes());
}

#[tokio::test]
async fn an_existing_node_is_adopted_with_changes_of_other_writers() {
    let (description, now) = described(&Value::Null);
    let api = OneNode::default();
    let mut before = object(&description, &now);
    before["metadata"]["labels"]["team"] = "a".into();
    before["metadata"]["labels"]["kubernetes.io/hostname"] = "old".into();
    before["metadata"]["uid"] = "u".into();
    before["spec"]["unschedulable"] = true.into();
    before["status"] = json!({
        "conditions": [{"type": "NetworkUnavailable", "status": "False"}],
        "nodeInfo": {"bootID": "another"},
        "addresses": [{"type": "ExternalIP", "address": "10.0.0.1"}],
    });
    api.0.lock().unwrap().put(NODE, before);
    let mut ends = start(api, now.runtime.clone());
    let node = ends.until(|node| ready(node) == Some("True")).await;
    let labels = &node["metadata"]["labels"];
    assert_eq!(
        (&labels["team"], &labels["kubernetes.io/hostname"]),
        (&json!("a"), &json!("node-1"))
    );
    assert_eq!(node["spec"]["unschedulable"], true);
    let kinds: Vec<&Value> =
        list(&node["status"]["conditions"]).iter().map(|condition| &condition["type"]).collect();
    assert!(kinds.contains(&&json!("NetworkUnavailable")) && kinds.len() == 5, "{kinds:?}");
    let addresses = list(&node["status"]["addresses"]);
    assert!(addresses.iter().all(|address| address["type"] != "ExternalIP"), "{addresses:?}");
    let first = tokio::time::timeout(PATIENCE, ends.events.recv()).await.unwrap().unwrap();
    assert!(matches!(first, AgentEvent::Rebooted { .. }), "{first}");
}

#[tokio::test]
async fn a_report_that_changes_is_written() {
    let mut ends = start(OneNode::default(), described(&Value::Null).1.runtime);
    ends.until(|node| ready(node) == Some("True")).await;
    let (_, other) = described(&json!({"maxPods": 20}));
    let name = placement::report::CONFIGURATION;
    let wanted = other.report.render()[name].clone();
    ends.report.send_replace(other.report);
    let node = ends.until(|node| node["metadata"]["annotations"][name] == wanted.as_str()).await;
    assert!(ready(&node).is_some());
}
