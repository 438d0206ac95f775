//! Jobs: pods until enough have succeeded, or too many have failed.
//!
//! [`plan`] decides; here is what is done. A pod that has ended is counted exactly once: its uid is
//! written into the job's status, then the pod's finalizer goes, then the uid becomes a number.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};

use crate::client::{BoxFuture, DeleteOptions, Error, PatchKind, Propagation, gone_is_fine};
use crate::informer::Until;
use crate::key::Key;
use crate::kind::{JOBS, PODS};
use crate::observe::{Pod, seconds};
use crate::record::{Occurrence, Subject};
use crate::work::Reconcile;
use crate::workload::{
    claimed_pods, create_pods, delete_pods, pod_from_template, revision, selector, write_status,
};
use crate::world::{BY_NAMESPACE, World, text};

mod indexes;
mod plan;

pub(crate) const TRACKING: &str = "batch.kubernetes.io/job-tracking";
const INDEX: &str = "batch.kubernetes.io/job-completion-index";

#[derive(Debug)]
pub(crate) struct Jobs(pub(crate) Arc<World>);

impl Reconcile for Jobs {
    const NAME: &'static str = "job";

    fn reconcile(&self, key: Key) -> BoxFuture<'_, Result<Option<Duration>, Error>> {
        Box::pin(self.bring(key))
    }
}

impl Jobs {
    async fn bring(&self, key: Key) -> Result<Option<Duration>, Error> {
        let world = &*self.0;
        let Some(job) = world.jobs.get(&key) else {
            return self.let_go(&key).await.map(|()| None);
        };
        if job["metadata"]["deletionTimestamp"].is_string() {
            return self.let_go(&key).await.map(|()| None);
        }
        let Some(selector) = selector(&job) else { return Ok(None) };
        let recorder = world.recorder.named("job-controller");
        let subject = Subject::of(JOBS, &job);
        let pods = claimed_pods(world, JOBS, &job, &selector).await?;
        let plan = plan::plan(&job, &pods, world.clock.now());
        // What is counted is written down before the finalizers go.
        write_status(world, JOBS, &world.jobs, &job, plan.status).await?;
        for (warning, reason, message) in plan.events {
            let event = Occurrence::normal(&subject, reason, message);
            recorder.record(Occurrence { warning, ..event });
        }
        for pod in &plan.release {
            self.release(pod).await?;
        }
        delete_pods(world, &recorder, &subject, &plan.delete).await?;
        let made = plan.create.iter().map(|index| pod_for(&job, *index)).collect();
        let created = create_pods(world, &recorder, &subject, made).await;
        match created.error {
            Some(error) if !error.is_namespace_terminating() => Err(error),
            _ => Ok(plan.again.map(|wait| Duration::from_secs(wait.unsigned_abs()))),
        }
    }

    /// Takes the job's mark off a pod.
    async fn release(&self, pod: &Pod) -> Result<(), Error> {
        let world = &*self.0;
        if !pod.finalizers.iter().any(|finalizer| finalizer == TRACKING) {
            return Ok(());
        }
        let patch = json!({"metadata": {
            "uid": pod.uid, "$deleteFromPrimitiveList/finalizers": [TRACKING],
        }});
        let kind = PatchKind::StrategicMerge;
        match world.client.patch(PODS, &pod.namespace, &pod.name, kind, &patch).await {
            Ok(written) => {
                world
                    .pods
                    .caught_up(&Until::Going(&pod.key(), &|seen: &Pod| {
                        seen.revision >= revision(&written) || seen.uid != pod.uid
                    }))
                    .await
            }
            Err(error) if error.is_not_found() || error.is_conflict() => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// A job that is gone keeps no pod.
    async fn let_go(&self, job: &Key) -> Result<(), Error> {
        let world = &*self.0;
        let current = world.jobs.get(job).map(|job| text(&job["metadata"]["uid"]).to_owned());
        let going =
            world.jobs.get(job).is_some_and(|j| j["metadata"]["deletionTimestamp"].is_string());
        for (_, pod) in world.pods.find(BY_NAMESPACE, job.namespace()) {
            let orphan = pod.owner.as_ref().is_some_and(|owner| {
                owner.kind == "Job"
                    && owner.name == job.name()
                    && (going || current.as_deref() != Some(owner.uid.as_str()))
            });
            if orphan {
                self.release(&pod).await?;
            }
        }
        Ok(())
    }
}

/// The job's pod, for one of its indexes if it has any.
fn pod_for(job: &Value, index: Option<i64>) -> Value {
    let mut pod = pod_from_template(JOBS, job, &job["spec"]["template"]);
    pod["metadata"]["finalizers"] = json!([TRACKING]);
    let Some(index) = index else { return pod };
    let name = text(&job["metadata"]["name"]);
    pod["metadata"]["generateName"] = format!("{name}-{index}-").into();
    pod["metadata"]["annotations"][INDEX] = index.to_string().into();
    pod["metadata"]["labels"][INDEX] = index.to_string().into();
    if pod["spec"]["hostname"].is_null() {
        pod["spec"]["hostname"] = format!("{name}-{index}").into();
    }
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
    pod
}

/// Jobs that have been over for as long as they are kept.
#[derive(Debug)]
pub(crate) struct FinishedJobs(pub(crate) Arc<World>);

impl Reconcile for FinishedJobs {
    const NAME: &'static str = "ttl_jobs_to_delete";

    fn reconcile(&self, key: Key) -> BoxFuture<'_, Result<Option<Duration>, Error>> {
        Box::pin(async move {
            let world = &*self.0;
            let Some(job) = world.jobs.get(&key) else { return Ok(None) };
            let Some(wait) = outlived(&job, world.clock.now().seconds()) else { return Ok(None) };
            if wait > 0 {
                return Ok(Some(Duration::from_secs(wait.unsigned_abs())));
            }
            let options = DeleteOptions {
                propagation: Some(Propagation::Foreground),
                ..DeleteOptions::of_uid(text(&job["metadata"]["uid"]))
            };
            let done = world.client.delete(JOBS, key.namespace(), key.name(), &options).await;
            gone_is_fine(done).map(|()| None)
        })
    }
}

/// How long a finished job has left; `None` if it stays.
fn outlived(job: &Value, now: i64) -> Option<i64> {
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
    fn a_finished_job_is_kept_for_its_time() {
        let job = |ttl: Value, condition: &str| {
            json!({
                "metadata": {}, "spec": {"ttlSecondsAfterFinished": ttl},
                "status": {"conditions": [{
                    "type": condition, "status": "True",
                    "lastTransitionTime": "1970-01-01T00:00:10Z",
                }]},
            })
        };
        assert_eq!(outlived(&job(json!(20), "Complete"), 15), Some(15));
        assert_eq!(outlived(&job(json!(20), "Failed"), 40), Some(0));
        assert_eq!(outlived(&job(json!(0), "SuccessCriteriaMet"), 40), None);
        assert_eq!(outlived(&job(json!(null), "Complete"), 40), None);
    }

    #[test]
    fn a_pod_knows_its_index() {
        let job = json!({
            "metadata": {"name": "j", "namespace": "a", "uid": "u"},
            "spec": {"template": {"metadata": {"labels": {}}, "spec": {"containers": [{"name": "c"}]}}},
        });
        let pod = pod_for(&job, Some(3));
        assert_eq!(pod["metadata"]["generateName"], "j-3-");
        assert_eq!(pod["metadata"]["labels"][INDEX], "3");
        assert_eq!(pod["spec"]["containers"][0]["env"][0]["name"], "JOB_COMPLETION_INDEX");
        assert_eq!(pod_for(&job, None)["metadata"]["generateName"], "j-");
    }
}
