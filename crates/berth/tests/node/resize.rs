//! Resizes of running pods, read back from the kernel; and restarts of all containers.

use client::kind::{EVENTS, PODS};
use client::{PatchKind, Scope};
use host::cgroups::{Bound, Cgroups, EffectiveLimits};
use objects::kubelet_config::CpuManagerPolicy;
use objects::pod::OsName;
use serde_json::{Value, json};

use crate::support::{Berth, SLEEP, phase, pod, until_or};

const MIB: u64 = 1 << 20;

fn with(name: &str, resources: Value) -> Value {
    let mut pod = pod(name, SLEEP);
    pod["spec"]["containers"][0]["resources"] = resources;
    pod
}

async fn resize(berth: &Berth, name: &str, resources: Value) {
    let patch = json!({"spec": {"containers": [{"name": "c", "resources": resources}]}});
    let (kind, part) = (PatchKind::StrategicMerge, "resize");
    berth.api.patch_subresource(PODS, "test", name, part, kind, &patch).await.unwrap();
}

/// Reports whether no resize is pending and the newest generation was observed.
fn is_settled(pod: &Value) -> bool {
    let conditions = pod["status"]["conditions"].as_array().cloned().unwrap_or_default();
    let resizing = |of: &Value| of["type"].as_str().is_some_and(|of| of.starts_with("PodResize"));
    pod["status"]["observedGeneration"] == pod["metadata"]["generation"]
        && phase(pod) == "Running"
        && !conditions.iter().any(resizing)
}

fn condition<'a>(pod: &'a Value, kind: &str) -> Option<&'a Value> {
    pod["status"]["conditions"].as_array()?.iter().find(|of| of["type"] == kind)
}

/// Returns the kernel's limits of a pod's only container.
fn in_force(berth: &Berth, pod: &Value, class: &str) -> EffectiveLimits {
    let id = pod["status"]["containerStatuses"][0]["containerID"].as_str().unwrap();
    let id = id.trim_start_matches("containerd://");
    let uid = pod["metadata"]["uid"].as_str().unwrap();
    let path = format!("{}/kubepods{class}/pod{uid}/{id}", berth.containerd.cgroup_parent());
    let cgroups = Cgroups::observe().unwrap();
    let processes = cgroups.processes(&path).unwrap();
    cgroups.effective_limits(*processes.first().unwrap()).unwrap()
}

async fn reasons(berth: &Berth, name: &str) -> Vec<String> {
    let scope = Scope { namespace: "test".to_owned(), ..Scope::default() };
    let events = berth.api.list_values(EVENTS, &scope).await.unwrap();
    let of_pod = events.iter().filter(|event| event["involvedObject"]["name"] == name);
    of_pod.map(|event| event["reason"].as_str().unwrap().to_owned()).collect()
}

/// Waits until all these events exist; they are written after the status.
async fn until_events(berth: &Berth, name: &str, expected: &[&str]) {
    until_or(&format!("{expected:?} of {name}"), async || {
        let reasons = reasons(berth, name).await;
        let has_event = |expected: &&str| reasons.iter().any(|reason| reason == expected);
        if expected.iter().all(has_event) { Ok(()) } else { Err(format!("{reasons:?}")) }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn cpu_and_memory_are_resized_without_a_restart() {
    let mut berth = Berth::start(|_| {}).await;
    let small = json!({
        "requests": {"cpu": "50m", "memory": "32Mi"}, "limits": {"cpu": "100m", "memory": "64Mi"},
    });
    let large = json!({
        "requests": {"cpu": "80m", "memory": "40Mi"}, "limits": {"cpu": "200m", "memory": "128Mi"},
    });
    berth.create(with("sized", small.clone())).await;
    let before = berth.until("sized", is_settled).await;
    let id = before["status"]["containerStatuses"][0]["containerID"].clone();
    let table = [(&large, 20_000, 128 * MIB), (&small, 10_000, 64 * MIB)];
    for (resources, time, memory) in table {
        resize(&berth, "sized", resources.clone()).await;
        let after = berth
            .until("sized", |pod| {
                is_settled(pod) && pod["status"]["containerStatuses"][0]["resources"] == *resources
            })
            .await;
        let status = &after["status"]["containerStatuses"][0];
        assert_eq!((&status["containerID"], &status["restartCount"]), (&id, &json!(0)));
        assert_eq!(status["allocatedResources"], resources["requests"]);
        let found = in_force(&berth, &after, "/burstable");
        assert_eq!(found.cpu_quota.unwrap().time, Bound::At(time));
        assert_eq!(found.memory, Some(Bound::At(memory)));
    }
    until_events(&berth, "sized", &["ResizeStarted", "ResizeCompleted"]).await;
    // The next agent knows the allocation, and changes nothing.
    berth.restart().await;
    let again = berth.until("sized", is_settled).await;
    assert_eq!(again["status"]["containerStatuses"][0]["containerID"], id);
    berth.delete("sized").await;
    berth.gone("sized").await;
    berth.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn pod_level_limits_apply_to_containers_without_their_own() {
    let mut berth = Berth::start(|_| {}).await;
    let level = |cpu: &str, memory: &str| {
        json!({
            "requests": {"cpu": "50m", "memory": "32Mi"}, "limits": {"cpu": cpu, "memory": memory},
        })
    };
    let mut whole = pod("whole", SLEEP);
    whole["spec"]["resources"] = level("100m", "64Mi");
    berth.create(whole).await;
    berth.until("whole", is_settled).await;
    let table = [("200m", "64Mi", 20_000), ("300m", "128Mi", 30_000), ("100m", "64Mi", 10_000)];
    for (cpu, memory, time) in table {
        let patch = json!({"spec": {"resources": level(cpu, memory)}});
        let kind = PatchKind::StrategicMerge;
        berth.api.patch_subresource(PODS, "test", "whole", "resize", kind, &patch).await.unwrap();
        let wanted = json!({"cpu": cpu, "memory": memory});
        let is_done =
            |pod: &Value| is_settled(pod) && pod["status"]["resources"]["limits"] == wanted;
        let after = berth.until("whole", is_done).await;
        let found = in_force(&berth, &after, "/burstable");
        assert_eq!(found.cpu_quota.unwrap().time, Bound::At(time), "{cpu} {memory}");
        assert!(!reasons(&berth, "whole").await.contains(&"ResizeError".to_owned()));
    }
    berth.delete("whole").await;
    berth.gone("whole").await;
    berth.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn pod_level_resize_restarts_containers_by_policy() {
    let mut berth = Berth::start(|_| {}).await;
    let level = |cpu: &str, memory: &str| {
        json!({
            "requests": {"cpu": "50m", "memory": "32Mi"}, "limits": {"cpu": cpu, "memory": memory},
        })
    };
    let mut whole = pod("whole", SLEEP);
    whole["spec"]["resources"] = level("100m", "64Mi");
    whole["spec"]["containers"][0]["resizePolicy"] =
        json!([{"resourceName": "memory", "restartPolicy": "RestartContainer"}]);
    berth.create(whole).await;
    berth.until("whole", is_settled).await;
    let table = [("200m", "64Mi", 0), ("200m", "128Mi", 1), ("200m", "96Mi", 2)];
    for (cpu, memory, restarts) in table {
        let patch = json!({"spec": {"resources": level(cpu, memory)}});
        let kind = PatchKind::StrategicMerge;
        berth.api.patch_subresource(PODS, "test", "whole", "resize", kind, &patch).await.unwrap();
        let wanted = json!({"cpu": cpu, "memory": memory});
        let is_done = |pod: &Value| {
            let status = &pod["status"];
            is_settled(pod)
                && status["resources"]["limits"] == wanted
                && status["containerStatuses"][0]["restartCount"] == restarts
                && status["containerStatuses"][0]["state"]["running"].is_object()
        };
        berth.until("whole", is_done).await;
    }
    until_events(&berth, "whole", &["ResizeStarted", "Killing", "ResizeCompleted"]).await;
    berth.delete("whole").await;
    berth.gone("whole").await;
    berth.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn memory_resize_restarts_a_container_by_policy() {
    let mut berth = Berth::start(|_| {}).await;
    let mut manifest = with("again", json!({"limits": {"cpu": "100m", "memory": "64Mi"}}));
    manifest["spec"]["containers"][0]["resizePolicy"] =
        json!([{"resourceName": "memory", "restartPolicy": "RestartContainer"}]);
    manifest["spec"]["containers"][0]["resources"]["requests"] =
        json!({"cpu": "50m", "memory": "32Mi"});
    berth.create(manifest).await;
    berth.until("again", is_settled).await;
    resize(&berth, "again", json!({"limits": {"memory": "96Mi"}})).await;
    let restarted =
        |pod: &Value| is_settled(pod) && pod["status"]["containerStatuses"][0]["restartCount"] == 1;
    let after = berth.until("again", restarted).await;
    assert_eq!(in_force(&berth, &after, "/burstable").memory, Some(Bound::At(96 * MIB)));
    until_events(&berth, "again", &["ResizeStarted", "Killing", "ResizeCompleted"]).await;
    berth.delete("again").await;
    berth.gone("again").await;
    berth.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn resize_is_deferred_until_resources_are_free() {
    let mut berth = Berth::start(|_| {}).await;
    let cpus = berth.settings.agent.machine.topology.all_cpus().len();
    let milli = |part: usize| json!({"requests": {"cpu": format!("{}m", cpus * part)}});
    berth.create(with("waits", milli(200))).await;
    berth.create(with("filler", milli(450))).await;
    berth.until("waits", is_settled).await;
    berth.until("filler", is_settled).await;
    resize(&berth, "waits", milli(600)).await;
    let pending = |pod: &Value| condition(pod, "PodResizePending").is_some();
    let deferred = berth.until("waits", pending).await;
    assert_eq!(condition(&deferred, "PodResizePending").unwrap()["reason"], "Deferred");
    let allocated = &deferred["status"]["containerStatuses"][0]["allocatedResources"];
    assert_eq!(*allocated, milli(200)["requests"]);
    // Admission counts its allocation, not its requested size.
    berth.create(with("beside", milli(150))).await;
    berth.until("beside", is_settled).await;
    berth.delete("filler").await;
    berth.gone("filler").await;
    let done = |pod: &Value| {
        let status = &pod["status"]["containerStatuses"][0];
        is_settled(pod) && status["allocatedResources"] == milli(600)["requests"]
    };
    berth.until("waits", done).await;
    until_events(&berth, "waits", &["ResizeDeferred", "ResizeStarted", "ResizeCompleted"]).await;
    for name in ["waits", "beside"] {
        berth.delete(name).await;
        berth.gone(name).await;
    }
    berth.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn memory_limit_is_not_set_below_usage() {
    let mut berth = Berth::start(|_| {}).await;
    let fill =
        "dd if=/dev/zero of=/d/x bs=1M count=40; trap 'exit 0' TERM; echo up; sleep 600 & wait";
    let mut manifest = pod("full", &["sh", "-c", fill]);
    let container = &mut manifest["spec"]["containers"][0];
    container["resources"] = json!({
        "requests": {"cpu": "10m", "memory": "32Mi"}, "limits": {"cpu": "500m", "memory": "128Mi"},
    });
    container["volumeMounts"] = json!([{"name": "d", "mountPath": "/d"}]);
    container["readinessProbe"] = json!({
        "exec": {"command": ["sh", "-c", "test $(stat -c %s /d/x) = 41943040"]}, "periodSeconds": 1,
    });
    manifest["spec"]["volumes"] = json!([{"name": "d", "emptyDir": {"medium": "Memory"}}]);
    berth.create(manifest).await;
    let ready = |pod: &Value| pod["status"]["containerStatuses"][0]["ready"] == true;
    berth.until("full", ready).await;
    resize(&berth, "full", json!({"limits": {"memory": "33Mi"}})).await;
    let failed = |pod: &Value| {
        condition(pod, "PodResizeInProgress").is_some_and(|of| of["reason"] == "Error")
    };
    let after = berth.until("full", failed).await;
    let message = condition(&after, "PodResizeInProgress").unwrap()["message"].to_string();
    assert!(message.contains("cannot decrease memory limits"), "{message}");
    assert_eq!(in_force(&berth, &after, "/burstable").memory, Some(Bound::At(128 * MIB)));
    until_events(&berth, "full", &["ResizeStarted", "ResizeError"]).await;
    berth.delete("full").await;
    berth.gone("full").await;
    berth.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn resize_allocates_and_releases_exclusive_cpus() {
    let last = |berth: &Berth| berth.settings.agent.machine.topology.all_cpus().last().unwrap();
    let mut berth = Berth::start(|config| {
        config.cpu_manager_policy = CpuManagerPolicy::Static;
        config.reserved_system_cpus = Some("0".to_owned());
        config.feature_gates.set_named("InPlacePodVerticalScalingExclusiveCPUs", true).unwrap();
    })
    .await;
    let all = berth.settings.agent.machine.topology.all_cpus().clone();
    let own = all.len() - 1;
    let cpus = |cpu: String| json!({"requests": {"cpu": cpu}, "limits": {"cpu": cpu}});
    let mut manifest = with("pinned", cpus("500m".to_owned()));
    for list in ["requests", "limits"] {
        manifest["spec"]["containers"][0]["resources"][list]["memory"] = "64Mi".into();
    }
    berth.create(manifest).await;
    berth.create(pod("shares", SLEEP)).await;
    let before = berth.until("pinned", is_settled).await;
    let other = berth.until("shares", is_settled).await;
    assert_eq!(in_force(&berth, &before, "").cpus, all);
    resize(&berth, "pinned", cpus(own.to_string())).await;
    let has = |cpu: String| {
        move |pod: &Value| {
            let status = &pod["status"]["containerStatuses"][0];
            is_settled(pod) && status["resources"]["limits"]["cpu"] == cpu
        }
    };
    let pinned = berth.until("pinned", has(own.to_string())).await;
    let found = in_force(&berth, &pinned, "");
    assert_eq!(found.cpus.len(), own);
    assert!(found.cpus.contains(last(&berth)));
    assert_eq!(found.cpu_quota.map(|quota| quota.time), Some(Bound::Max));
    let shared = in_force(&berth, &other, "/besteffort").cpus;
    assert_eq!(shared.to_string(), "0");
    resize(&berth, "pinned", cpus("500m".to_owned())).await;
    let back = berth.until("pinned", has("500m".to_owned())).await;
    let found = in_force(&berth, &back, "");
    assert_eq!((found.cpus, found.cpu_quota.unwrap().time), (all.clone(), Bound::At(50_000)));
    assert_eq!(in_force(&berth, &other, "/besteffort").cpus, all);
    assert_eq!(back["status"]["containerStatuses"][0]["restartCount"], 0);
    for name in ["pinned", "shares"] {
        berth.delete(name).await;
        berth.gone(name).await;
    }
    berth.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn restart_rule_restarts_all_containers_in_order() {
    let mut berth = Berth::start(|_| {}).await;
    let script = "n=$(cat /d/n 2>/dev/null || echo 0); echo $((n+1)) > /d/n; \
                  [ $n -ge 1 ] && exit 0; exit 42";
    let mut manifest = pod("all", &["sh", "-c", script]);
    let mounts = json!([{"name": "d", "mountPath": "/d"}]);
    let first = &mut manifest["spec"]["containers"][0];
    first["volumeMounts"] = mounts.clone();
    first["restartPolicy"] = "Never".into();
    first["restartPolicyRules"] = json!([
        {"action": "RestartAllContainers", "exitCodes": {"operator": "In", "values": [42]}},
    ]);
    let (mut second, mut init) = (first.clone(), first.clone());
    for (container, name, command) in [
        (&mut second, "other", SLEEP),
        (&mut init, "init", &["sh", "-c", "echo init >> /d/init"] as &[&str]),
    ] {
        let fields = container.as_object_mut().unwrap();
        fields.retain(|name, _| !name.starts_with("restartPolicy"));
        (container["name"], container["command"]) = (name.into(), json!(command));
    }
    manifest["spec"]["containers"].as_array_mut().unwrap().push(second);
    manifest["spec"]["initContainers"] = json!([init]);
    manifest["spec"]["volumes"] = json!([{"name": "d", "emptyDir": {}}]);
    manifest["spec"]["restartPolicy"] = "Never".into();
    let uid = berth.create(manifest).await;
    let again = |pod: &Value| {
        let statuses = &pod["status"]["containerStatuses"];
        statuses[1]["restartCount"] == 1 && !statuses[1]["state"]["running"].is_null()
    };
    let after = berth.until("all", again).await;
    let ended = &after["status"]["containerStatuses"][1]["lastState"]["terminated"];
    assert_eq!(ended["reason"], "RestartingAllContainers");
    assert_eq!(after["status"]["initContainerStatuses"][0]["restartCount"], 1);
    let volumes = berth.settings.agent.root.join("pods").join(&uid).join("volumes");
    let runs = volumes.join("kubernetes.io~empty-dir/d/init");
    assert_eq!(std::fs::read_to_string(runs).unwrap(), "init\ninit\n");
    berth.delete("all").await;
    berth.gone("all").await;
    berth.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn pod_resources_api_answers_on_its_socket() {
    use agent::observability::pod_resources::v1;
    use v1::pod_resources_lister_client::PodResourcesListerClient;

    let mut berth = Berth::start(|config| {
        config.cpu_manager_policy = CpuManagerPolicy::Static;
        config.reserved_system_cpus = Some("0".to_owned());
    })
    .await;
    let amounts = json!({"cpu": "1", "memory": "64Mi"});
    berth.create(with("pinned", json!({"requests": amounts, "limits": amounts}))).await;
    let pinned = berth.until("pinned", is_settled).await;
    let here =
        agent::observability::pod_resources::endpoint(OsName::Linux, &berth.settings.agent.root)
            .unwrap();
    let mut client = PodResourcesListerClient::new(cri::channel(&here));
    let listed = client.list(v1::ListPodResourcesRequest {}).await.unwrap().into_inner();
    let [of] = listed.pod_resources.as_slice() else { panic!("{listed:?}") };
    assert_eq!((of.name.as_str(), of.namespace.as_str()), ("pinned", "test"));
    let cpus: Vec<i64> = in_force(&berth, &pinned, "").cpus.iter().map(|c| c.0.into()).collect();
    assert_eq!(of.containers[0].cpu_ids, cpus);
    let request = |name: &str| v1::GetPodResourcesRequest {
        pod_name: name.to_owned(),
        pod_namespace: "test".to_owned(),
    };
    let one = client.get(request("pinned")).await.unwrap().into_inner();
    assert_eq!(one.pod_resources.as_ref(), Some(of));
    let none = client.get(request("nope")).await.unwrap_err();
    assert_eq!(none.message(), "pod nope in namespace test not found");
    let could = client.get_allocatable_resources(v1::AllocatableResourcesRequest {}).await.unwrap();
    let cpus = berth.settings.agent.machine.topology.all_cpus().len();
    assert_eq!(could.into_inner().cpu_ids.len(), cpus - 1);
    berth.delete("pinned").await;
    berth.gone("pinned").await;
    berth.end().await;
}
