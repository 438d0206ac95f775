//! Jobs: run pods until enough have succeeded or too many have failed.
//!
//! [`plan`] decides; this file executes the plan. A finished pod is counted exactly once: its uid
//! is written into the job's status, then the pod's finalizer is removed, then the uid is added to
//! the count.

use std::sync::Arc;
use std::time::Duration;

use client::events::{Event, InvolvedObject};
use client::kind::{JOBS, PODS};
use client::{
    BoxFuture, CacheState, DeleteOptions, Error, Key, PatchKind, Propagation, ignore_not_found,
};
use serde_json::{Value, json};

use crate::context::{BY_NAMESPACE, ControllerContext, text};
use crate::observe::{IndexFailures, Pod, seconds};
use crate::workload::{
    claimed_pods, create_pods, delete_pods, is_deleting, pod_from_template, revision, selector,
    write_status,
};
use crate::workqueue::Reconcile;

mod count;
mod indexes;
mod plan;
mod policy;
mod scale;
mod spec;

use plan::JobEvent;
use scale::NewPod;
use spec::is_tracked;

pub(crate) const TRACKING: &str = "batch.kubernetes.io/job-tracking";
const INDEX: &str = "batch.kubernetes.io/job-completion-index";

/// The `managedBy` value of jobs that this controller manages.
const OUR_MANAGER: &str = "kubernetes.io/job-controller";

/// The length to which the API server cuts a `generateName`. A longer one would lose the index.
const GENERATED_NAME: usize = 58;

#[derive(Debug)]
pub(crate) struct Jobs(pub(crate) Arc<ControllerContext>);

impl Reconcile for Jobs {
    const NAME: &'static str = "job";

    fn reconcile(&self, key: Key) -> BoxFuture<'_, Result<Option<Duration>, Error>> {
        Box::pin(self.sync(key))
    }
}

impl Jobs {
    async fn sync(&self, key: Key) -> Result<Option<Duration>, Error> {
        let context = &*self.0;
        let job = context.jobs.get(&key);
        if job.as_ref().is_some_and(|job| is_managed_elsewhere(job)) {
            return Ok(None);
        }
        self.release_uncounted(&key, job.as_deref()).await?;
        let Some(job) = job.filter(|job| !is_done(job)) else { return Ok(None) };
        let Some(selector) = selector(&job) else { return Ok(None) };
        let recorder = context.recorder.named("job-controller");
        let subject = InvolvedObject::of(JOBS, &job);
        let pods = claimed_pods(context, JOBS, &job, &selector).await?;
        for adopted in pods.iter().filter(|pod| pod.owner.is_none()) {
            self.track(adopted).await?;
        }
        let plan = plan::plan(&job, &pods, context.clock.now());
        // The status must record the uids before the finalizers are removed.
        write_status(context, JOBS, &context.jobs, &job, plan.status).await?;
        for JobEvent { warning, reason, message } in plan.events {
            let event = if warning { Event::warning } else { Event::normal };
            recorder.record(event(&subject, reason, message));
        }
        for pod in &plan.release {
            self.release(pod).await?;
        }
        delete_pods(context, &recorder, &subject, &plan.delete).await?;
        let made = plan.create.iter().map(|new| pod_for(&job, *new)).collect();
        let created = create_pods(context, &recorder, &subject, made).await;
        match created.error {
            Some(error) if !error.is_namespace_terminating() => Err(error),
            _ => Ok(plan.again.map(|wait| Duration::from_secs(wait.unsigned_abs()))),
        }
    }

    /// Adds the tracking finalizer to an adopted pod.
    async fn track(&self, pod: &Pod) -> Result<(), Error> {
        let patch = json!({"metadata": {"uid": pod.uid, "finalizers": [TRACKING]}});
        let kind = PatchKind::StrategicMerge;
        let client = &self.0.client;
        let patched = client.patch(PODS, &pod.namespace, &pod.name, kind, &patch).await;
        ignore_not_found(patched.map(|_| ()))
    }

    /// Removes the tracking finalizer from a pod.
    async fn release(&self, pod: &Pod) -> Result<(), Error> {
        let context = &*self.0;
        if !is_tracked(pod) {
            return Ok(());
        }
        let patch = json!({"metadata": {
            "uid": pod.uid, "$deleteFromPrimitiveList/finalizers": [TRACKING],
        }});
        let kind = PatchKind::StrategicMerge;
        match context.client.patch(PODS, &pod.namespace, &pod.name, kind, &patch).await {
            Ok(written) => {
                context
                    .pods
                    .caught_up(&CacheState::Deleting(&pod.key(), &|seen: &Pod| {
                        seen.revision >= revision(&written) || seen.uid != pod.uid
                    }))
                    .await
            }
            Err(error) if error.is_not_found() || error.is_conflict() => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Removes the tracking finalizer from pods that no job will count: those of a job that is
    /// finished or gone, and those without an owner.
    async fn release_uncounted(&self, key: &Key, job: Option<&Value>) -> Result<(), Error> {
        let counting = job.filter(|job| !is_done(job)).map(|job| text(&job["metadata"]["uid"]));
        for (_, pod) in self.0.pods.find(BY_NAMESPACE, key.namespace()) {
            let uncounted = match &pod.owner {
                Some(owner) => {
                    owner.kind == JOBS.kind
                        && owner.name == key.name()
                        && counting != Some(owner.uid.as_str())
                }
                None => true,
            };
            if uncounted {
                self.release(&pod).await?;
            }
        }
        Ok(())
    }
}

/// Returns true if another controller manages the job.
fn is_managed_elsewhere(job: &Value) -> bool {
    job["spec"]["managedBy"].as_str().is_some_and(|manager| manager != OUR_MANAGER)
}

/// Returns true if the job is finished or being deleted.
fn is_done(job: &Value) -> bool {
    is_deleting(job) || plan::is_finished(job)
}

/// Returns a new pod of the job.
fn pod_for(job: &Value, new: NewPod) -> Value {
    let mut pod = pod_from_template(JOBS, job, &job["spec"]["template"]);
    match pod["metadata"]["finalizers"].as_array_mut() {
        Some(finalizers) if finalizers.iter().any(|finalizer| *finalizer == TRACKING) => {}
        Some(finalizers) => finalizers.push(TRACKING.into()),
        None => pod["metadata"]["finalizers"] = json!([TRACKING]),
    }
    if let Some(index) = new.index {
        set_index(&mut pod, text(&job["metadata"]["name"]), index);
    }
    if let Some(IndexFailures { counted, ignored }) = new.failures {
        let annotations = &mut pod["metadata"]["annotations"];
        annotations[IndexFailures::COUNTED] = counted.to_string().into();
        if ignored > 0 {
            annotations[IndexFailures::IGNORED] = ignored.to_string().into();
        }
    }
    pod
}

/// Sets the index of a pod: in its name, annotation, label, hostname and environment.
fn set_index(pod: &mut Value, job: &str, index: i64) {
    let suffix = format!("-{index}-");
    let room = GENERATED_NAME.saturating_sub(suffix.len());
    let prefix: String = job.chars().take(room).collect();
    pod["metadata"]["generateName"] = format!("{prefix}{suffix}").into();
    pod["metadata"]["annotations"][INDEX] = index.to_string().into();
    pod["metadata"]["labels"][INDEX] = index.to_string().into();
    pod["spec"]["hostname"] = format!("{job}-{index}").into();
    let variable = json!({
        "name": "JOB_COMPLETION_INDEX",
        "valueFrom": {"fieldRef": {"fieldPath": format!("metadata.labels['{INDEX}']")}},
    });
    for list in ["initContainers", "containers"] {
        for container in pod["spec"][list].as_array_mut().into_iter().flatten() {
            match container["env"].as_array_mut() {
                Some(env) if env.iter().any(|v| v["name"] == variable["name"]) => {}
                Some(env) => env.push(variable.clone()),
                None => container["env"] = json!([variable]),
            }
        }
    }
}

/// Deletes finished jobs after `ttlSecondsAfterFinished`.
#[derive(Debug)]
pub(crate) struct FinishedJobs(pub(crate) Arc<ControllerContext>);

impl Reconcile for FinishedJobs {
    const NAME: &'static str = "ttl_jobs_to_delete";

    fn reconcile(&self, key: Key) -> BoxFuture<'_, Result<Option<Duration>, Error>> {
        Box::pin(async move {
            let context = &*self.0;
            let Some(job) = context.jobs.get(&key) else { return Ok(None) };
            let Some(wait) = ttl_left(&job, context.clock.now().seconds()) else { return Ok(None) };
            if wait > 0 {
                return Ok(Some(Duration::from_secs(wait.unsigned_abs())));
            }
            let options = DeleteOptions {
                propagation: Some(Propagation::Foreground),
                ..DeleteOptions::of_uid(text(&job["metadata"]["uid"]))
            };
            let done = context.client.delete(JOBS, key.namespace(), key.name(), &options).await;
            ignore_not_found(done).map(|()| None)
        })
    }
}

/// Returns the remaining seconds of a finished job; `None` if it is kept.
fn ttl_left(job: &Value, now: i64) -> Option<i64> {
    let kept = job["spec"]["ttlSecondsAfterFinished"].as_i64()?;
    if job["metadata"]["deletionTimestamp"].is_string() {
        return None;
    }
    let conditions = job["status"]["conditions"].as_array()?;
    let over = conditions
        .iter()
        .find(|c| (c["type"] == "Complete" || c["type"] == "Failed") && c["status"] == "True")?;
    Some((seconds(text(&over["lastTransitionTime"]))? + kept - now).max(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finished_job_is_kept_for_its_ttl() {
        let job = |ttl: Value, condition: &str| {
            json!({
                "metadata": {}, "spec": {"ttlSecondsAfterFinished": ttl},
                "status": {"conditions": [{
                    "type": condition, "status": "True",
                    "lastTransitionTime": "1970-01-01T00:00:10Z",
                }]},
            })
        };
        assert_eq!(ttl_left(&job(json!(20), "Complete"), 15), Some(15));
        assert_eq!(ttl_left(&job(json!(20), "Failed"), 40), Some(0));
        assert_eq!(ttl_left(&job(json!(0), "SuccessCriteriaMet"), 40), None);
        assert_eq!(ttl_left(&job(json!(null), "Complete"), 40), None);
    }

    #[test]
    fn pod_carries_its_index() {
        let job = |name: &str, template: Value| {
            json!({
                "metadata": {"name": name, "namespace": "a", "uid": "u"},
                "spec": {"template": {
                    "metadata": template,
                    "spec": {"hostname": "h", "containers": [{"name": "c"}]},
                }},
            })
        };
        let third = NewPod { index: Some(3), failures: None };
        let pod = pod_for(&job("j", json!({"labels": {}})), third);
        assert_eq!(pod["metadata"]["generateName"], "j-3-");
        assert_eq!(pod["metadata"]["labels"][INDEX], "3");
        assert_eq!(pod["metadata"]["annotations"], json!({INDEX: "3"}));
        assert_eq!(pod["spec"]["hostname"], "j-3");
        assert_eq!(pod["spec"]["containers"][0]["env"][0]["name"], "JOB_COMPLETION_INDEX");
        let long = pod_for(&job(&"n".repeat(60), json!({})), third);
        assert_eq!(long["metadata"]["generateName"], format!("{}-3-", "n".repeat(55)));
        let plain = pod_for(&job("j", json!({"finalizers": ["a/b"]})), NewPod::default());
        assert_eq!(plain["metadata"]["generateName"], "j-");
        assert_eq!(plain["metadata"]["finalizers"], json!(["a/b", TRACKING]));
        assert_eq!(plain["spec"]["hostname"], "h");
    }

    #[test]
    fn pod_carries_the_failure_count_of_its_index() {
        let job = json!({"metadata": {"name": "j"}, "spec": {"template": {}}});
        let new = |counted, ignored| NewPod {
            index: Some(0),
            failures: Some(IndexFailures { counted, ignored }),
        };
        let first = pod_for(&job, new(0, 0));
        assert_eq!(first["metadata"]["annotations"][IndexFailures::COUNTED], "0");
        assert!(first["metadata"]["annotations"][IndexFailures::IGNORED].is_null());
        let later = pod_for(&job, new(2, 1));
        assert_eq!(later["metadata"]["annotations"][IndexFailures::COUNTED], "2");
        assert_eq!(later["metadata"]["annotations"][IndexFailures::IGNORED], "1");
    }

    #[test]
    fn jobs_of_other_controllers_are_ignored() {
        for (manager, elsewhere) in [
            (Value::Null, false),
            (json!("kubernetes.io/job-controller"), false),
            (json!("example.com/queue"), true),
        ] {
            assert_eq!(is_managed_elsewhere(&json!({"spec": {"managedBy": manager}})), elsewhere);
        }
    }
}
