//! Policies of jobs. The kubelet ignores their pods; the test sets their status.

use super::*;

const JOB_NAME: &str = "batch.kubernetes.io/job-name";
const INDEX: &str = "batch.kubernetes.io/job-completion-index";
const FAILURES: &str = "batch.kubernetes.io/job-index-failure-count";

/// Long enough ago that no timer is pending.
const LONG_AGO: &str = "2020-01-01T00:00:00Z";

async fn start() -> Cluster {
    let cluster = Cluster::start(Options::default()).await;
    cluster.namespace("a").await;
    cluster.node("n1").await;
    cluster
}

async fn create(cluster: &Cluster, name: &str, spec: &Value) {
    let mut object = named(job(spec, "Running"), name);
    object["spec"]["template"]["metadata"]["labels"] = json!({"silent": "true"});
    cluster.create(JOBS, "a", &object).await;
}

fn name(object: &Value) -> String {
    object["metadata"]["name"].as_str().unwrap_or_default().to_owned()
}

fn is_going(pod: &Value) -> bool {
    pod["metadata"]["deletionTimestamp"].is_string()
}

fn is_active(pod: &Value) -> bool {
    !is_going(pod) && !["Succeeded", "Failed"].iter().any(|end| pod["status"]["phase"] == *end)
}

/// Waits until exactly this many pods of a job are active.
async fn active(cluster: &Cluster, job: &str, count: usize) -> Vec<Value> {
    let of_job = |pod: &&Value| pod["metadata"]["labels"][JOB_NAME] == job && is_active(pod);
    let reached = |pods: &[Value]| {
        let active: Vec<&Value> = pods.iter().filter(of_job).collect();
        active.len() == count && active.iter().all(|pod| pod["spec"]["nodeName"].is_string())
    };
    let mut pods = cluster.wait_all("pods of the job", PODS, "a", reached).await;
    pods.retain(|pod| of_job(&pod));
    pods.sort_by_key(|pod| pod["metadata"]["labels"][INDEX].as_str().map(str::to_owned));
    pods
}

async fn write_status(cluster: &Cluster, pod: &Value, status: &Value) {
    let (kind, patch) = (PatchKind::StrategicMerge, json!({"status": status}));
    let written =
        cluster.client.patch_subresource(PODS, "a", &name(pod), "status", kind, &patch).await;
    written.unwrap_or_else(|error| panic!("{patch}: {error}"));
}

/// Ends a pod with an exit code.
async fn end(cluster: &Cluster, pod: &Value, code: i64) {
    let phase = if code == 0 { "Succeeded" } else { "Failed" };
    let terminated = json!({"exitCode": code, "startedAt": LONG_AGO, "finishedAt": LONG_AGO});
    let container = json!({
        "name": "c", "image": "i", "imageID": "", "ready": false, "restartCount": 0,
        "state": {"terminated": terminated},
    });
    write_status(cluster, pod, &json!({"phase": phase, "containerStatuses": [container]})).await;
}

/// Removes a terminating pod.
async fn leave(cluster: &Cluster, pod: &Value) {
    end(cluster, pod, 137).await;
    let uid = pod["metadata"]["uid"].as_str().unwrap_or_default();
    let options = DeleteOptions { grace_seconds: Some(0), ..DeleteOptions::of_uid(uid) };
    cluster.client.delete(PODS, "a", &name(pod), &options).await.unwrap();
}

async fn wait_for(cluster: &Cluster, job: &str, kind: &str) -> Value {
    cluster.wait(kind, JOBS, "a", job, |job| condition(job, kind)["status"] == "True").await
}

async fn wait_going(cluster: &Cluster, pod: &Value) {
    cluster.wait("the pod terminates", PODS, "a", &name(pod), is_going).await;
}

#[test]
fn failure_policy_ignores_disruptions_and_fails_on_exit_code() {
    runtime().block_on(async {
        let cluster = start().await;
        let spec = json!({"completions": 2, "parallelism": 2, "podFailurePolicy": {"rules": [
            {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget"}]},
            {"action": "FailJob", "onExitCodes": {
                "containerName": "c", "operator": "In", "values": [42],
            }},
        ]}});
        create(&cluster, "j", &spec).await;
        let pods = active(&cluster, "j", 2).await;
        let evicted = json!({"phase": "Failed", "conditions": [
            {"type": "DisruptionTarget", "status": "True", "lastTransitionTime": LONG_AGO},
            {"type": "Ready", "status": "False", "lastTransitionTime": LONG_AGO},
        ]});
        write_status(&cluster, &pods[0], &evicted).await;
        let free = |pod: &Value| pod["metadata"]["finalizers"].is_null();
        cluster.wait("let go", PODS, "a", &name(&pods[0]), free).await;
        let pods = active(&cluster, "j", 2).await;
        let job = cluster.get(JOBS, "a", "j").await.unwrap();
        assert_eq!(job["status"].get("failed"), None, "{job:#}");
        end(&cluster, &pods[0], 42).await;
        let job = wait_for(&cluster, "j", "FailureTarget").await;
        let message = format!(
            "Container c for pod a/{} failed with exit code 42 matching FailJob rule at index 1",
            name(&pods[0])
        );
        assert_eq!(condition(&job, "FailureTarget")["reason"], "PodFailurePolicy");
        assert_eq!(condition(&job, "FailureTarget")["message"], *message);
        wait_going(&cluster, &pods[1]).await;
        // The job has not failed while a pod may still run.
        let job = cluster.wait("counted", JOBS, "a", "j", |j| j["status"]["failed"] == 2).await;
        assert!(
            condition(&job, "Failed").is_null() && job["status"]["terminating"] == 1,
            "{job:#}"
        );
        leave(&cluster, &pods[1]).await;
        let job = wait_for(&cluster, "j", "Failed").await;
        assert_eq!(condition(&job, "Failed")["message"], *message);
        let has_event = |events: &[Value]| events.iter().any(|e| e["reason"] == "PodFailurePolicy");
        cluster.wait_all("an event", EVENTS, "a", has_event).await;
        cluster.stop().await;
    });
}

#[test]
fn failed_index_does_not_stop_the_others() {
    runtime().block_on(async {
        let cluster = start().await;
        let spec = json!({
            "completions": 3, "parallelism": 3, "completionMode": "Indexed", "backoffLimitPerIndex": 1,
        });
        create(&cluster, "j", &spec).await;
        let first = active(&cluster, "j", 3).await;
        assert!(first.iter().all(|pod| pod["metadata"]["annotations"][FAILURES] == "0"));
        end(&cluster, &first[0], 1).await;
        let gone = name(&first[0]);
        let followed = |pods: &[Value]| {
            let retry = |pod: &&Value| is_active(pod) && pod["metadata"]["labels"][INDEX] == "0";
            pods.iter().any(|pod| retry(&pod) && name(pod) != gone)
        };
        cluster.wait_all("the index is tried again", PODS, "a", followed).await;
        let second = active(&cluster, "j", 3).await;
        assert_eq!(second[0]["metadata"]["annotations"][FAILURES], "1");
        end(&cluster, &second[0], 1).await;
        let given_up = |job: &Value| job["status"]["failedIndexes"] == "0";
        let job = cluster.wait("given up", JOBS, "a", "j", given_up).await;
        assert!(condition(&job, "FailureTarget").is_null(), "{job:#}");
        end(&cluster, &second[1], 0).await;
        end(&cluster, &second[2], 0).await;
        let job = wait_for(&cluster, "j", "Failed").await;
        assert_eq!(condition(&job, "Failed")["reason"], "FailedIndexes");
        let status = |field: &str| job["status"][field].clone();
        assert_eq!((status("completedIndexes"), status("succeeded")), (json!("1,2"), json!(2)));
        assert_eq!((status("failedIndexes"), status("failed")), (json!("0"), json!(2)));
        cluster.stop().await;
    });
}

#[test]
fn success_policy_completes_a_job() {
    runtime().block_on(async {
        let cluster = start().await;
        let spec = json!({
            "completions": 3, "parallelism": 3, "completionMode": "Indexed",
            "successPolicy": {"rules": [{"succeededIndexes": "0"}]},
        });
        create(&cluster, "j", &spec).await;
        let pods = active(&cluster, "j", 3).await;
        end(&cluster, &pods[0], 0).await;
        let job = wait_for(&cluster, "j", "SuccessCriteriaMet").await;
        assert_eq!(condition(&job, "SuccessCriteriaMet")["reason"], "SuccessPolicy");
        for pod in &pods[1..] {
            wait_going(&cluster, pod).await;
            let job = cluster.get(JOBS, "a", "j").await.unwrap();
            assert!(condition(&job, "Complete").is_null(), "{job:#}");
            leave(&cluster, pod).await;
        }
        let job = wait_for(&cluster, "j", "Complete").await;
        assert_eq!(condition(&job, "Complete")["reason"], "SuccessPolicy");
        assert_eq!(condition(&job, "Complete")["message"], "Matched rules at index 0");
        assert_eq!((&job["status"]["succeeded"], job["status"].get("failed")), (&json!(1), None));
        cluster.stop().await;
    });
}

#[test]
fn pods_are_replaced_suspended_and_resumed() {
    runtime().block_on(async {
        let cluster = start().await;
        let spec = json!({"podReplacementPolicy": "Failed", "backoffLimit": 1});
        create(&cluster, "j", &spec).await;
        create(&cluster, "other", &json!({"managedBy": "example.com/queue"})).await;
        let first = active(&cluster, "j", 1).await;
        cluster
            .client
            .delete(PODS, "a", &name(&first[0]), &DeleteOptions::default())
            .await
            .unwrap();
        let seen =
            |job: &Value| job["status"]["terminating"] == 1 && job["status"]["active"].is_null();
        cluster.wait("its pod is going", JOBS, "a", "j", seen).await;
        active(&cluster, "j", 0).await;
        leave(&cluster, &first[0]).await;
        let second = active(&cluster, "j", 1).await;
        let job = cluster.wait("counted", JOBS, "a", "j", |j| j["status"]["failed"] == 1).await;
        assert!(job["status"]["startTime"].is_string());
        // A deleted pod does not count, or the job would reach its back-off limit.
        cluster.merge(JOBS, "a", "j", &json!({"spec": {"suspend": true}})).await;
        wait_going(&cluster, &second[0]).await;
        leave(&cluster, &second[0]).await;
        let job = wait_for(&cluster, "j", "Suspended").await;
        assert!(job["status"]["startTime"].is_null() && job["status"]["failed"] == 1, "{job:#}");
        cluster.merge(JOBS, "a", "j", &json!({"spec": {"suspend": false}})).await;
        let third = active(&cluster, "j", 1).await;
        end(&cluster, &third[0], 0).await;
        let job = wait_for(&cluster, "j", "Complete").await;
        assert_eq!((&job["status"]["succeeded"], &job["status"]["failed"]), (&json!(1), &json!(1)));
        let other = cluster.get(JOBS, "a", "other").await.unwrap();
        assert_eq!(other["status"], json!({}));
        active(&cluster, "other", 0).await;
        cluster.stop().await;
    });
}

#[test]
fn job_adopts_matching_pods_and_releases_others() {
    runtime().block_on(async {
        let cluster = start().await;
        let labels = json!({"app": "x", "silent": "true"});
        cluster.create(PODS, "a", &pod("found", &json!({"metadata": {"labels": labels}}))).await;
        // A job observed before the pod would create its own.
        let budget = json!({
            "metadata": {"name": "b"},
            "spec": {"minAvailable": 0, "selector": {"matchLabels": {"app": "x"}}},
        });
        cluster.create(BUDGETS, "a", &budget).await;
        cluster.wait("known", BUDGETS, "a", "b", |b| b["status"]["expectedPods"] == 1).await;
        let mut object = named(job(&json!({"manualSelector": true}), "Running"), "j");
        object["spec"]["selector"] = json!({"matchLabels": {"app": "x"}});
        object["spec"]["template"]["metadata"]["labels"] = labels;
        cluster.create(JOBS, "a", &object).await;
        let tracking = json!(["batch.kubernetes.io/job-tracking"]);
        let adopted = |pod: &Value| pod["metadata"]["finalizers"] == tracking;
        let found = cluster.wait("adopted", PODS, "a", "found", adopted).await;
        assert_eq!(found["metadata"]["ownerReferences"][0]["name"], "j");
        cluster.wait("seen", JOBS, "a", "j", |job| job["status"]["active"] == 1).await;
        cluster.merge(PODS, "a", "found", &json!({"metadata": {"labels": {"app": "y"}}})).await;
        let free = |pod: &Value| {
            pod["metadata"]["ownerReferences"].is_null() && pod["metadata"]["finalizers"].is_null()
        };
        cluster.wait("let go", PODS, "a", "found", free).await;
        let is_successor = |pod: &Value| pod["metadata"]["labels"]["app"] == "x";
        let replaced = |pods: &[Value]| pods.iter().any(is_successor);
        let pods = cluster.wait_all("replaced", PODS, "a", replaced).await;
        let successor = pods.iter().find(|pod| is_successor(pod)).unwrap();
        end(&cluster, successor, 0).await;
        let job = wait_for(&cluster, "j", "Complete").await;
        assert_eq!((&job["status"]["succeeded"], job["status"].get("failed")), (&json!(1), None));
        cluster.stop().await;
    });
}
