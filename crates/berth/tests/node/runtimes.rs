//! Runtimes that misbehave or support more than containerd: a proxy before containerd alters
//! requests and responses.

use std::any::Any;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use client::PatchKind;
use client::kind::{NODES, PODS};
use cri::v1;
use objects::KubeletConfig;
use serde_json::{Value, json};

use crate::placement::{event_messages, exclusive, machine, one_exclusive_cpu};
use crate::support::{Berth, SLEEP, phase, pod, until};

/// Removes the cpuset from a request.
fn ignore_places(message: &mut dyn Any) -> Result<(), String> {
    let resources = if let Some(request) = message.downcast_mut::<v1::CreateContainerRequest>() {
        let linux = request.config.as_mut().and_then(|config| config.linux.as_mut());
        linux.and_then(|linux| linux.resources.as_mut())
    } else if let Some(request) = message.downcast_mut::<v1::UpdateContainerResourcesRequest>() {
        request.linux.as_mut()
    } else {
        None
    };
    if let Some(resources) = resources {
        resources.cpuset_cpus.clear();
        resources.cpuset_mems.clear();
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn runtime_that_ignores_cpusets_is_reported() {
    let (all, own, _) = machine();
    let (mut berth, _) = Berth::behind(ignore_places, one_exclusive_cpu).await;
    berth.create(exclusive("own")).await;
    // It starts nevertheless.
    berth.until("own", |pod| phase(pod) == "Running").await;
    for _ in 0..2 {
        let checked = berth.agent.reconciler.reconcile_all().await;
        assert_eq!((checked.wrong, checked.repaired), (1, 0), "{checked:?}");
    }
    let start = format!("Container c has CPUs {all} instead of {own} and cannot be put there");
    let message = until("the event", async || {
        let messages = event_messages(&berth, "own", "PlacementNotInForce").await;
        assert!(messages.len() <= 1, "{messages:?}");
        messages.into_iter().next()
    })
    .await;
    // The message may name another node of these tests as the cause.
    let ignored = format!("{start}: the runtime ignores where it is to run");
    let suspected = format!("{start}; suspected: ");
    assert!(message == ignored || message.starts_with(&suspected), "{message}");
    let outside = berth.agent.reconciler.audit(&berth.agent.housekeeping).await.outside;
    assert_eq!(outside.len(), 1, "{outside:?}");
    berth.delete("own").await;
    berth.gone("own").await;
    berth.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn pod_is_removed_although_the_runtime_keeps_dead_containers() {
    let stuck = Arc::new(AtomicBool::new(true));
    let keeps = Arc::clone(&stuck);
    // containerd does this with a task whose creation was interrupted.
    let alter = move |message: &mut dyn Any| {
        let removes = message.is::<v1::RemoveContainerRequest>()
            || message.is::<v1::RemovePodSandboxRequest>();
        match removes && keeps.load(Ordering::Relaxed) {
            true => Err("cannot delete running task: failed precondition".to_owned()),
            false => Ok(()),
        }
    };
    let (mut berth, _) = Berth::behind(alter, |_| {}).await;
    berth.create(pod("p", SLEEP)).await;
    berth.until("p", |pod| phase(pod) == "Running").await;
    berth.delete("p").await;
    berth.gone("p").await;
    let runtime = &berth.agent.runtime.cri;
    let left = async || {
        let request = v1::ListContainersRequest::default();
        runtime.call(request).await.unwrap().containers.len()
    };
    assert_eq!(left().await, 1, "the container was removed");
    // The pod is gone from the API, and its remains are removed as soon as possible.
    stuck.store(false, Ordering::Relaxed);
    until("nothing is left", async || (left().await == 0).then_some(())).await;
    berth.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn pod_waits_for_a_stopped_runtime_and_reports_it() {
    let mut berth = Berth::start(|_| {}).await;
    // The agent has connected to the runtime.
    berth.create(pod("before", SLEEP)).await;
    berth.until("before", |pod| phase(pod) == "Running").await;
    berth.containerd.kill().unwrap();
    berth.create(pod("p", SLEEP)).await;
    let waiting = |pod: &Value| {
        pod["status"]["containerStatuses"][0]["state"]["waiting"]["reason"] == "ContainerCreating"
    };
    berth.until("p", waiting).await;
    let message = until("the event", async || {
        let messages = event_messages(&berth, "p", "FailedCreatePodSandBox").await;
        assert!(messages.len() <= 1, "{messages:?}");
        messages.into_iter().next()
    })
    .await;
    let start =
        "Failed to create pod sandbox: rpc error: code = Unavailable desc = connection error";
    assert!(message.starts_with(start), "{message}");
    berth.containerd.restart().unwrap();
    berth.until("p", |pod| phase(pod) == "Running").await;
    for name in ["before", "p"] {
        berth.delete(name).await;
        berth.gone(name).await;
    }
    berth.end().await;
}

type Advertised = Arc<Mutex<v1::ResourcesInfo>>;

/// Simulates a runtime with the QoS classes (KEP-3008) in `advertised`; it rejects containers of
/// the class `broken`.
fn with_classes(advertised: Advertised) -> impl Fn(&mut dyn Any) -> Result<(), String> {
    move |message| {
        if let Some(answer) = message.downcast_mut::<v1::StatusResponse>() {
            let status = answer.status.get_or_insert_default();
            status.resources = Some(advertised.lock().unwrap().clone());
        }
        if let Some(request) = message.downcast_mut::<v1::CreateContainerRequest>() {
            let config = request.config.clone().unwrap_or_default();
            if config.qos_resources.iter().any(|resource| resource.class == "broken") {
                return Err("class \"broken\" of \"rdt\" has no cache left".to_owned());
            }
        }
        Ok(())
    }
}

fn resource(name: &str, mutable: bool, classes: &[(&str, u64)]) -> v1::QosResourceInfo {
    let class = |(name, capacity): &(&str, u64)| v1::QosResourceClassInfo {
        name: (*name).to_owned(),
        capacity: *capacity,
    };
    let classes = classes.iter().map(class).collect();
    v1::QosResourceInfo { name: name.to_owned(), mutable, classes }
}

fn classy(name: &str, resource: &str, class: &str) -> Value {
    let mut pod = pod(name, SLEEP);
    pod["spec"]["containers"][0]["resources"] =
        json!({"qosResources": [{"name": resource, "class": class}]});
    pod
}

/// Returns the classes of all recorded requests of a kind, as `name=class`.
fn classes_of<R: cri::Rpc>(passage: &cri::CallLog, read: impl Fn(R) -> Vec<String>) -> Vec<String> {
    let passed = passage.since(0).into_iter().filter(|passed| passed.method == R::METHOD);
    passed.flat_map(|passed| read(R::decode(&*passed.request).unwrap())).collect()
}

fn created(passage: &cri::CallLog) -> Vec<String> {
    classes_of(passage, |request: v1::CreateContainerRequest| {
        let classes = request.config.unwrap_or_default().qos_resources;
        classes
            .into_iter()
            .map(|resource| format!("{}={}", resource.name, resource.class))
            .collect()
    })
}

fn updated(passage: &cri::CallLog) -> Vec<String> {
    classes_of(passage, |request: v1::UpdateContainerResourcesRequest| {
        request
            .qos_resources
            .into_iter()
            .map(|resource| format!("{}={}", resource.name, resource.class))
            .collect()
    })
}

fn gate_on(config: &mut KubeletConfig) {
    config.feature_gates.set_named("QOSResources", true).unwrap();
}

async fn advertises(berth: &Berth, is: impl Fn(&Value) -> bool) -> Value {
    until("what the node advertises", async || {
        // The node may not exist yet.
        let node: Value = berth.api.get(NODES, "", "node-1").await.ok()?;
        Some(node["status"]["qosResources"].clone()).filter(&is)
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn runtime_classes_are_advertised_counted_requested_and_changed() {
    let rdt = resource("rdt", true, &[("gold", 1), ("silver", 0), ("broken", 0)]);
    let advertised = Advertised::default();
    advertised.lock().unwrap().container_qos_resources = vec![rdt.clone()];
    let alter = with_classes(Arc::clone(&advertised));
    let (mut berth, passage) = Berth::behind(alter, gate_on).await;
    let containers = |status: &Value| status["containerQOSResources"].clone();
    let advertised_rdt = json!([{"name": "k8s.io/rdt", "mutable": true, "classes": [
        {"name": "gold", "capacity": 1}, {"name": "silver"}, {"name": "broken"},
    ]}]);
    advertises(&berth, |status| containers(status) == advertised_rdt).await;

    berth.create(classy("gold", "rdt", "gold")).await;
    berth.until("gold", |pod| phase(pod) == "Running").await;
    assert_eq!(created(&passage), ["rdt=gold"]);
    // The class has a capacity of one, also after a restart.
    let refused = async |name: &str, class: &str| {
        berth.create(classy(name, "rdt", class)).await;
        let pod = berth.until(name, |pod| phase(pod) == "Failed").await;
        pod["status"].clone()
    };
    let status = refused("second", "gold").await;
    let message = "enough of class \"gold\" of QoS resource \"k8s.io/rdt\", requested: 1, used: 1, capacity: 1";
    assert!(status["message"].as_str().unwrap_or_default().contains(message), "{status:#}");
    let status = refused("unknown", "bronze").await;
    let message = "QoS resource \"k8s.io/rdt\" of the node has no class \"bronze\"";
    assert!(status["message"].as_str().unwrap_or_default().contains(message), "{status:#}");
    berth.restart().await;
    advertises(&berth, |status| containers(status) == advertised_rdt).await;
    berth.create(classy("third", "rdt", "gold")).await;
    berth.until("third", |pod| phase(pod) == "Failed").await;

    // The runtime's error is reported unchanged.
    berth.create(classy("broken", "rdt", "broken")).await;
    let waiting = |pod: &Value| pod["status"]["containerStatuses"][0]["state"]["waiting"].clone();
    let is_refused = |pod: &Value| waiting(pod)["reason"] == "CreateContainerError";
    let pod = berth.until("broken", is_refused).await;
    let expected = "class \"broken\" of \"rdt\" has no cache left";
    assert!(waiting(&pod)["message"].as_str().unwrap_or_default().contains(expected), "{pod:#}");
    let events = event_messages(&berth, "broken", "Failed").await;
    assert!(events.iter().any(|message| message.contains(expected)), "{events:?}");

    // A resize to another class releases the old one.
    let patch = json!({"spec": {"containers": [
        {"name": "c", "resources": {"qosResources": [{"name": "rdt", "class": "silver"}]}},
    ]}});
    let kind = PatchKind::StrategicMerge;
    berth.api.patch_subresource(PODS, "test", "gold", "resize", kind, &patch).await.unwrap();
    until("the other class", async || {
        updated(&passage).contains(&"rdt=silver".to_owned()).then_some(())
    })
    .await;
    berth.create(classy("fourth", "rdt", "gold")).await;
    berth.until("fourth", |pod| phase(pod) == "Running").await;

    // The runtime's configuration changes: other classes; a name on both levels counts for neither.
    {
        let mut advertised = advertised.lock().unwrap();
        let network = resource("example.com/network", false, &[("fast", 0)]);
        advertised.pod_qos_resources = vec![network, resource("example.com/x", false, &[("a", 0)])];
        advertised.container_qos_resources =
            vec![rdt, resource("example.com/x", false, &[("a", 0)])];
    }
    let status =
        advertises(&berth, |status| status["podQOSResources"][0]["name"] != Value::Null).await;
    assert_eq!(containers(&status), advertised_rdt);
    let network = json!({"name": "example.com/network", "classes": [{"name": "fast"}]});
    assert_eq!(status["podQOSResources"], json!([network]));
    berth.create(classy("both", "example.com/x", "a")).await;
    let pod = berth.until("both", |pod| phase(pod) == "Failed").await;
    let message = pod["status"]["message"].as_str().unwrap_or_default().to_owned();
    assert!(message.contains("Node has no QoS resource \"example.com/x\""), "{message}");
    for name in ["gold", "broken", "fourth"] {
        berth.delete(name).await;
        berth.gone(name).await;
    }
    berth.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn with_the_gate_off_no_class_reaches_the_runtime() {
    let advertised = Advertised::default();
    advertised.lock().unwrap().container_qos_resources =
        vec![resource("rdt", true, &[("gold", 1)])];
    let (mut berth, passage) = Berth::behind(with_classes(advertised), |_| {}).await;
    berth.create(classy("gold", "rdt", "gold")).await;
    berth.until("gold", |pod| phase(pod) == "Running").await;
    assert_eq!(created(&passage), [""; 0]);
    berth.delete("gold").await;
    berth.gone("gold").await;
    berth.end().await;
}
