//! Requests recorded from the kubelet (`testdata/golden-node/cri.jsonl.gz`): the same pods and node give
//! equal requests, except for the differences in [`ON_PURPOSE`].

use std::collections::{BTreeMap, BTreeSet};
use std::io::Read as _;
use std::path::Path;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use cri::v1;
use flate2::read::GzDecoder;
use objects::{catalog, rules};
use placement::{CpuSet, NumaId};
use prost::Message;
use prost_reflect::{DescriptorPool, DynamicMessage, SerializeOptions};
use serde_json::{Value, json};

use super::tests::{node_env, service};
use super::*;
use lifecycle::spec::Pod;

mod pod_traces;

/// Intended differences: line, call of the line, path in the request, our value, reason.
const ON_PURPOSE: &[(&str, usize, &str, &str, &str)] = &[(
    "resize-pod-level",
    4,
    "/linux/cpu_shares",
    "\"153\"",
    "a container of a pod with resources as a whole has the shares of the pod's limit (102 when it \
     was made); upstream drops it to the fewest there are when the pod is resized",
)];

/// The line with several variables of its own. Upstream sends them in the random order of a map. Ours are
/// compared with the order of the manifest.
const ENV_IN_OUR_ORDER: &str = "own variables as they are written, then services by name";

/// Resizes: line, call before which it was made, path in the pod, value. Upstream changes limits before
/// requests, and updates the runtime in between.
const RESIZED: &[(&str, usize, &str, &str)] = &[
    ("resize-cpu-up", 3, "/spec/containers/0/resources/limits/cpu", "200m"),
    ("resize-cpu-up", 4, "/spec/containers/0/resources/requests/cpu", "80m"),
    ("resize-guaranteed", 3, "/spec/containers/0/resources/limits/memory", "96Mi"),
    ("resize-guaranteed", 3, "/spec/containers/0/resources/requests/memory", "96Mi"),
    ("resize-guaranteed", 5, "/spec/containers/0/resources/limits/cpu", "150m"),
    ("resize-guaranteed", 6, "/spec/containers/0/resources/requests/cpu", "150m"),
    ("resize-restart-policy", 4, "/spec/containers/0/resources/limits/memory", "96Mi"),
    ("resize-pod-level", 3, "/spec/resources/limits/cpu", "150m"),
];

/// Placements of containers: line, first call, CPUs, exclusive, memory nodes.
const PLACED: &[(&str, usize, &str, bool, &[u32])] = &[
    ("cpu-pinned", 0, "1", true, &[0]),
    ("cpu-besteffort", 0, "0-1", false, &[]),
    ("cpu-besteffort", 3, "0", false, &[]),
    ("cpu-besteffort", 4, "0-1", false, &[]),
    ("memory-pinned", 0, "0-1", false, &[0]),
    // Upstream's reconciliation only sets CPUs.
    ("memory-pinned", 3, "0-1", false, &[]),
];

/// Placeholders of the recording for values that differ between runs.
const UID: &str = "<UID>";
const NODE_IP: &str = "<NODE_IP>";

/// Reads the lines of a recording.
fn read(name: &str) -> Vec<Value> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/golden-node");
    let mut text = String::new();
    GzDecoder::new(std::fs::File::open(folder.join(name)).unwrap())
        .read_to_string(&mut text)
        .unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// Converts messages to the JSON of the recording.
struct Json(DescriptorPool);

impl Json {
    fn new() -> Json {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../cri/proto");
        let files = protox::compile([folder.join("runtime.proto")], [&folder]).unwrap();
        Json(DescriptorPool::from_file_descriptor_set(files).unwrap())
    }

    fn of<M: Message>(&self, name: &str, message: &M) -> Value {
        let descriptor = self.0.get_message_by_name(&format!("runtime.v1.{name}")).unwrap();
        let message =
            DynamicMessage::decode(descriptor, message.encode_to_vec().as_slice()).unwrap();
        let options = SerializeOptions::new().use_proto_field_name(true);
        let mut value =
            message.serialize_with_options(serde_json::value::Serializer, &options).unwrap();
        normalise(&mut value);
        value
    }
}

/// Converts values of variables to text, and values that differ between runs to placeholders.
fn normalise(value: &mut Value) {
    match value {
        Value::Array(items) => items.iter_mut().for_each(normalise),
        Value::Object(fields) => {
            for (name, value) in fields {
                if name == "envs" {
                    for variable in value.as_array_mut().unwrap() {
                        if let Some(bytes) = variable.get_mut("value") {
                            let decoded = BASE64_STANDARD.decode(bytes.as_str().unwrap()).unwrap();
                            *bytes = String::from_utf8(decoded).unwrap().into();
                        }
                    }
                } else if name == annotations::CONTAINER_HASH {
                    assert!(u64::from_str_radix(value.as_str().unwrap(), 16).is_ok(), "{value}");
                    *value = "<HASH>".into();
                } else {
                    normalise(value);
                }
            }
        }
        Value::String(text) => *text = text.replace("/<CGROUP_ROOT>", "<CGROUP_ROOT>"),
        _ => {}
    }
}

/// Collects every path at which two values differ. Order matters in lists, but not in maps.
fn differences(path: &str, ours: &Value, theirs: &Value, found: &mut Vec<(String, Value, Value)>) {
    match (ours, theirs) {
        (Value::Object(a), Value::Object(b)) => {
            for name in a.keys().chain(b.keys()).collect::<BTreeSet<_>>() {
                let of = |fields: &serde_json::Map<String, Value>| {
                    fields.get(name).cloned().unwrap_or_default()
                };
                differences(&format!("{path}/{name}"), &of(a), &of(b), found);
            }
        }
        (Value::Array(a), Value::Array(b)) if a.len() == b.len() => {
            for (index, (a, b)) in a.iter().zip(b).enumerate() {
                differences(&format!("{path}/{index}"), a, b, found);
            }
        }
        _ if ours == theirs => {}
        _ => found.push((path.to_owned(), ours.clone(), theirs.clone())),
    }
}

/// Returns the pod as the API server had it: defaulted and bound.
fn served(line: &Value, namespace: &str) -> Value {
    let mut object = line["manifest"].clone();
    rules::set_defaults(catalog::of_kind("v1", "Pod").unwrap(), &mut object);
    let metadata = &mut object["metadata"];
    // Some manifests were sent to a namespace that they do not name.
    if metadata.get("namespace").is_none() {
        metadata["namespace"] = namespace.into();
    }
    metadata["uid"] = UID.into();
    object["spec"]["nodeName"] = "node-1".into();
    if line["id"] == "ephemeral-target" {
        // Added while the pod ran, with the defaults of a container.
        object["spec"]["ephemeralContainers"] = json!([{
            "name": "dbg", "image": "localhost/busybox:1", "targetContainerName": "c",
            "command": ["sh", "-c", "ps > /dev/termination-log"],
            "terminationMessagePath": "/dev/termination-log", "terminationMessagePolicy": "File",
        }]);
    }
    object
}

fn directory() -> String {
    format!("/var/lib/kubelet/pods/{UID}")
}

/// Returns the volumes of the recorded pods, with the kubelet's paths.
fn mounted(pod: &Pod) -> MountedVolumes {
    let mut mounted = MountedVolumes::default();
    for volume in &pod.spec.volumes {
        let name = &volume.name;
        let of_plugin =
            |plugin: &str| format!("{}/volumes/kubernetes.io~{plugin}/{name}", directory());
        let (host_path, read_only) = match (&volume.host_path, &volume.projected) {
            (Some(host), _) => (host.path.clone(), false),
            (_, Some(_)) => (of_plugin("projected"), true),
            _ => (of_plugin("empty-dir"), false),
        };
        let path = MountedVolume::Path { host_path, read_only, relabel: false };
        mounted.volumes.insert(name.clone(), path);
    }
    for container in &pod.spec.containers {
        for (index, mount) in container.volume_mounts.iter().enumerate() {
            if !mount.sub_path.is_empty() {
                let (volume, container) = (&mount.name, &container.name);
                let path = format!("{}/volume-subpaths/{volume}/{container}/{index}", directory());
                mounted.sub_paths.insert(index, path);
            }
        }
    }
    mounted
}

/// Returns the existing services; one of them existed only for some of the recorded pods.
fn services(call: &Value) -> Vec<Service> {
    let mut services = vec![service("default", "kubernetes", "10.0.0.1", &[("https", 443)])];
    if call.to_string().contains("MY_DB_SERVICE_HOST") {
        services.push(service("lives", "my-db", "10.0.0.77", &[("sql", 5432), ("web", 80)]));
    }
    services
}

fn node() -> NodeEnvironment {
    let mut node_env = node_env();
    node_env.ips = vec![NODE_IP.to_owned()];
    node_env.memory_capacity = 24_682_416 * 1024;
    node_env.cgroups.root = "/<CGROUP_ROOT>".to_owned();
    node_env.dns.resolv_conf = Some("nameserver <NAMESERVER>\n".to_owned());
    node_env
}

fn affinities(id: &str, call: usize) -> BTreeMap<String, ContainerAffinity> {
    let mut of_line = PLACED.iter().filter(|(line, from, ..)| *line == id && *from <= call);
    let Some((.., cpus, exclusive, mems)) = of_line.next_back() else { return BTreeMap::new() };
    let affinity = ContainerAffinity {
        cpus: CpuSet::parse(cpus).unwrap(),
        exclusive: *exclusive,
        mems: mems.iter().map(|id| NumaId(*id)).collect(),
        groups: Vec::new(),
    };
    BTreeMap::from([("c".to_owned(), affinity)])
}

/// Sorts variables, because they are compared as sets; see [`ENV_IN_OUR_ORDER`].
fn sort_env(request: &mut Value) {
    if let Some(variables) = request.pointer_mut("/config/envs").and_then(Value::as_array_mut) {
        variables.sort_by_key(|variable| variable["key"].to_string());
    }
}

fn check_env_order(pod: &Pod, container: &str, request: &Value) {
    let (_, container) = pod.container(container).unwrap();
    let ours = request.pointer("/config/envs").and_then(Value::as_array).unwrap();
    let ours: Vec<&str> = ours.iter().map(|variable| variable["key"].as_str().unwrap()).collect();
    let own = container.env.len();
    let written: Vec<&str> = container.env.iter().map(|variable| variable.name.as_str()).collect();
    assert_eq!(ours[..own], written, "{ENV_IN_OUR_ORDER}");
    assert!(ours[own..].is_sorted(), "{ENV_IN_OUR_ORDER}: {:?}", &ours[own..]);
}

/// The replay of one line of the recording.
struct Replay<'a> {
    line: &'a Value,
    json: &'a Json,
    node_env: NodeEnvironment,
    source: PodSource,
}

impl Replay<'_> {
    /// Returns our request for a recorded call; `None` if the call is not lowered.
    fn request(&self, pod: &Pod, index: usize, call: &Value) -> Option<Value> {
        let id = self.line["id"].as_str().unwrap();
        let affinities = affinities(id, index);
        let input = PodInput {
            pod,
            node_env: &self.node_env,
            source: &self.source,
            affinities: &affinities,
            user_namespace: None,
            volume_groups: &[],
        };
        let recorded = &call["request"];
        let text = |path: &str| recorded.pointer(path).unwrap().as_str().unwrap().to_owned();
        let config = || sandbox(&input, 0).unwrap().config;
        match call["call"].as_str().unwrap() {
            "RunPodSandbox" => {
                let request = v1::RunPodSandboxRequest {
                    config: Some(config()),
                    runtime_handler: String::new(),
                };
                Some(self.json.of("RunPodSandboxRequest", &request))
            }
            "CreateContainer" => {
                let mut request = create(&input, call, config());
                request.pod_sandbox_id = text("/pod_sandbox_id");
                let ours = self.json.of("CreateContainerRequest", &request);
                check_env_order(pod, &text("/config/metadata/name"), &ours);
                Some(ours)
            }
            "UpdateContainerResources" => {
                let id = text("/container_id");
                let request = match recorded.pointer("/linux/cpu_period") {
                    None => update::cpus(self.node_env.os, &affinities["c"], &id),
                    Some(_) => {
                        let (role, container) = pod.container("c").unwrap();
                        update::resources(&input, container, role, &id)
                    }
                };
                Some(self.json.of("UpdateContainerResourcesRequest", &request))
            }
            "UpdatePodSandboxResources" => {
                let request = update::sandbox(&input, &text("/pod_sandbox_id"));
                Some(self.json.of("UpdatePodSandboxResourcesRequest", &request))
            }
            "PullImage" => {
                let request = pull(&input, &pod.spec.containers[0].image, &config());
                Some(self.json.of("PullImageRequest", &request))
            }
            "StartContainer" | "StopContainer" | "RemoveContainer" | "StopPodSandbox"
            | "RemovePodSandbox" | "ExecSync" => None,
            other => panic!("unexpected call {other}"),
        }
    }
}

fn create(
    input: &PodInput<'_>,
    call: &Value,
    sandbox: v1::PodSandboxConfig,
) -> v1::CreateContainerRequest {
    let metadata = &call["request"]["config"]["metadata"];
    let name = metadata["name"].as_str().unwrap();
    let attempt = u32::try_from(metadata["attempt"].as_u64().unwrap_or(0)).unwrap();
    let (role, wanted) = input.pod.container(name).unwrap();
    let ip = if input.pod.spec.host_network { NODE_IP } else { "<POD_IP>" };
    let target = "<ID-2>".to_owned();
    let of = ContainerInput {
        container: wanted,
        role,
        attempt,
        image: "<DIGEST>",
        // An image without a user runs as root.
        image_user: &ImageUser { uid: Some(0), name: String::new() },
        pod_ips: &[ip.to_owned()],
        mounted: &mounted(input.pod),
        configs: &Configs::default(),
        env_files: &BTreeMap::new(),
        services: &services(call),
        termination_log: Some(&format!("{}/containers/{name}/<RAND>", directory())),
        target: Some(&target).filter(|_| !wanted.target_container_name.is_empty()),
        attached: &DeviceAttachments::default(),
        recursive_read_only: false,
    };
    let environment = env::variables(input, &of).unwrap();
    let config = Some(container(input, &of, environment).unwrap());
    let pod_sandbox_id = String::new();
    v1::CreateContainerRequest { pod_sandbox_id, config, sandbox_config: Some(sandbox) }
}

#[test]
fn requests_equal_the_kubelets() {
    let json = Json::new();
    let mut lines = read("cri.jsonl.gz");
    lines.retain(|line| line["kind"] == "pod");
    assert_eq!(lines.len(), 29);
    let (mut compared, mut purposes) = (0, BTreeSet::new());
    let mut failures = Vec::new();
    for line in &lines {
        let id = line["id"].as_str().unwrap();
        let source = PodSource { origin: ConfigSource::Api, seen: "<TIME>".to_owned() };
        let replay = Replay { line, json: &json, node_env: node(), source };
        let mut object = served(line, "lives2");
        for (index, call) in line["calls"].as_array().unwrap().iter().enumerate() {
            for (_, _, path, value) in
                RESIZED.iter().filter(|(line, before, ..)| *line == id && *before == index)
            {
                *object.pointer_mut(path).unwrap() = (*value).into();
            }
            let pod: Pod = serde_json::from_value(object.clone()).unwrap();
            let Some(mut ours) = replay.request(&pod, index, call) else { continue };
            let mut theirs = call["request"].clone();
            sort_env(&mut ours);
            sort_env(&mut theirs);
            let mut found = Vec::new();
            differences("", &ours, &theirs, &mut found);
            for (path, ours, theirs) in found {
                let purpose = ON_PURPOSE.iter().position(|(line, at, wanted, text, _)| {
                    (*line, *at, *wanted, *text) == (id, index, &path, &ours.to_string())
                });
                match purpose {
                    Some(purpose) => _ = purposes.insert(purpose),
                    None => failures.push(format!(
                        "{id} {index} {}{path}: ours {ours}, recorded {theirs}",
                        call["call"]
                    )),
                }
            }
            compared += 1;
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
    assert_eq!(purposes.len(), ON_PURPOSE.len(), "listed differences do not occur");
    assert!(compared > 75, "{compared} requests");
}
