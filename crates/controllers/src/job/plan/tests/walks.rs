//! Random walks: whatever happens to its pods, a job writes only valid statuses, respects its
//! parallelism, counts each pod once and finishes.

use super::*;
use std::collections::BTreeSet;

use objects::FeatureGates;
use objects::rules::{self, RuleContext, Subresource};
use proptest::prelude::*;

/// An external change of a job or its pods.
#[derive(Debug, Clone)]
enum Step {
    /// A pod exits with a code.
    Exit(prop::sample::Index, i32),
    /// A client deletes a pod.
    Delete(prop::sample::Index),
    /// A terminating pod ends.
    Die(prop::sample::Index),
    Suspend(bool),
    Parallelism(i64),
    /// Only for jobs whose number of indexes may change.
    Resize(i64),
    Wait(i64),
}

fn step() -> impl Strategy<Value = Step> {
    let one = any::<prop::sample::Index>;
    prop_oneof![
        6 => (one(), 0..4_i32).prop_map(|(at, code)| Step::Exit(at, code)),
        2 => one().prop_map(Step::Delete),
        3 => one().prop_map(Step::Die),
        1 => any::<bool>().prop_map(Step::Suspend),
        1 => (0..5_i64).prop_map(Step::Parallelism),
        1 => (1..6_i64).prop_map(Step::Resize),
        3 => (0..700_i64).prop_map(Step::Wait),
    ]
}

fn spec() -> impl Strategy<Value = Value> {
    let policies = (
        prop::option::of(0..3_i64),
        prop::option::of(1..4_i64),
        prop::option::of(Just(json!({"rules": [
            {"action": "FailJob", "onExitCodes": {"operator": "In", "values": [1]}},
            {"action": "Ignore", "onExitCodes": {"operator": "In", "values": [2]}},
        ]}))),
        prop::option::of(Just(json!({"rules": [{"succeededIndexes": "0", "succeededCount": 1}]}))),
        prop::option::of(prop_oneof![Just("Failed"), Just("TerminatingOrFailed")]),
    );
    let shape = (0..5_i64, prop::option::of(0..5_i64), any::<bool>(), 0..6_i64);
    (shape, policies).prop_map(|((parallelism, completions, indexed, limit), policies)| {
        let (per_index, most, failure, success, replacement) = policies;
        let mut spec = json!({
            "parallelism": parallelism, "backoffLimit": limit, "completionMode": "NonIndexed",
            "template": {"spec": {"restartPolicy": "Never"}},
        });
        let mut put = |field: &str, value: Option<Value>| {
            if let Some(value) = value {
                spec[field] = value;
            }
        };
        put("podReplacementPolicy", replacement.filter(|_| failure.is_none()).map(Value::from));
        put("podFailurePolicy", failure);
        put("completions", completions.map(Value::from));
        if let Some(completions) = completions.filter(|_| indexed) {
            put("completionMode", Some("Indexed".into()));
            put("successPolicy", success.filter(|_| completions > 0));
            if per_index.is_some() {
                put("backoffLimitPerIndex", per_index.map(Value::from));
                put("maxFailedIndexes", most.map(|most| most.min(completions).into()));
            }
        }
        spec
    })
}

/// A job with its pods and the expected counts.
struct Walk {
    job: Value,
    pods: Vec<Pod>,
    now: i64,
    made: usize,
    /// Uids of tracked pods that succeeded, and of those that the job reported as failed.
    succeeded: BTreeSet<String>,
    failed: BTreeSet<String>,
}

impl Walk {
    fn new(spec: &Value) -> Walk {
        let job = json!({
            "metadata": {"name": "j", "namespace": "a", "uid": "u", "resourceVersion": "1"},
            "spec": spec, "status": {},
        });
        let (succeeded, failed) = (BTreeSet::new(), BTreeSet::new());
        Walk { job, pods: Vec::new(), now: 1000, made: 0, succeeded, failed }
    }

    /// Returns the pod at an index among the matching ones.
    fn pick(&mut self, at: prop::sample::Index, fits: impl Fn(&Pod) -> bool) -> Option<&mut Pod> {
        let mut fit: Vec<&mut Pod> = self.pods.iter_mut().filter(|pod| fits(pod)).collect();
        if fit.is_empty() { None } else { Some(fit.swap_remove(at.index(fit.len()))) }
    }

    fn happen(&mut self, step: &Step) {
        let now = self.now;
        match step {
            Step::Exit(at, code) => {
                let Some(pod) = self.pick(*at, |pod| !pod.is_finished()) else { return };
                pod.ended = now;
                pod.phase = if *code == 0 { Phase::Succeeded } else { Phase::Failed };
                if *code != 0 {
                    pod.exits = vec![Exit { container: "c".to_owned(), code: *code }];
                } else if is_tracked(pod) {
                    let uid = pod.uid.clone();
                    self.succeeded.insert(uid);
                }
            }
            Step::Delete(at) => {
                if let Some(pod) = self.pick(*at, Pod::is_active) {
                    (pod.deleting, pod.ended) = (Some(now + 30), now);
                }
            }
            Step::Die(at) => {
                if let Some(pod) = self.pick(*at, |pod| pod.deleting.is_some()) {
                    pod.phase = if pod.is_finished() { pod.phase } else { Phase::Failed };
                }
            }
            Step::Suspend(on) => self.job["spec"]["suspend"] = (*on).into(),
            Step::Parallelism(number) => self.job["spec"]["parallelism"] = (*number).into(),
            Step::Resize(number) => {
                let spec = &mut self.job["spec"];
                if spec["completionMode"] == "Indexed" {
                    (spec["completions"], spec["parallelism"]) =
                        ((*number).into(), (*number).into());
                }
            }
            Step::Wait(seconds) => self.now += seconds,
        }
        // A deleted, finished pod without finalizers is gone.
        self.pods.retain(|pod| pod.deleting.is_none() || !pod.is_finished() || is_tracked(pod));
    }

    /// Executes plans until nothing is left to do, and returns the number of plans.
    fn act(&mut self) -> usize {
        for round in 0.. {
            assert!(round < 20, "the job does not come to rest: {:#}", self.job["status"]);
            if is_finished(&self.job) {
                assert!(!self.pods.iter().any(is_tracked), "a pod is still held");
                return round;
            }
            let pods: Vec<Arc<Pod>> = self.pods.iter().cloned().map(Arc::new).collect();
            let plan = plan(&self.job, &pods, at(self.now));
            let idle = plan.status == self.job["status"]
                && plan.create.is_empty()
                && plan.delete.is_empty()
                && plan.release.is_empty();
            if idle {
                return round;
            }
            self.apply(plan);
            self.check();
        }
        0
    }

    fn apply(&mut self, plan: Plan) {
        let mut new = self.job.clone();
        new["status"] = plan.status;
        let gates = FeatureGates::default();
        let ctx = RuleContext { gates: &gates, allow_privileged: true, now: at(self.now) };
        let jobs = objects::catalog::find("batch", "v1", "jobs").unwrap();
        let causes = rules::validate_update(jobs, &new, &self.job, Subresource::Status, &ctx);
        assert!(causes.is_empty(), "{causes:?}\n{:#}", new["status"]);
        self.job = new;
        self.failed.extend(self.uncounted("failed"));
        let goes = |pods: &[Arc<Pod>], pod: &Pod| pods.iter().any(|other| other.uid == pod.uid);
        for pod in &mut self.pods {
            if goes(&plan.release, pod) {
                pod.finalizers.clear();
            }
            if goes(&plan.delete, pod) {
                (pod.deleting, pod.ended) = (Some(self.now + 30), self.now);
            }
        }
        let alive = self.pods.iter().filter(|pod| !pod.is_finished()).count();
        let most = usize::try_from(JobSpec::of(&self.job).parallelism).unwrap();
        let in_turn = !JobSpec::of(&self.job).waits_for_ends || plan.create.is_empty();
        assert!(
            in_turn || alive + plan.create.len() <= most,
            "a pod comes before another has gone"
        );
        for new in plan.create {
            self.made += 1;
            let mut pod = (*pod(&format!("p{}", self.made), Phase::Running, true)).clone();
            pod.completion_index = new.index;
            pod.index_failures = new.failures.unwrap_or_default();
            (pod.created, pod.ended) = (self.now, self.now);
            self.pods.push(pod);
        }
    }

    /// Checks the invariants.
    fn check(&self) {
        let terms = JobSpec::of(&self.job);
        let pods: Vec<Arc<Pod>> = self.pods.iter().cloned().map(Arc::new).collect();
        let unfinished = UnfinishedPods::of(&pods);
        let busy: BTreeSet<_> = unfinished.active.iter().map(|pod| pod.completion_index).collect();
        assert!(!terms.indexed || busy.len() == unfinished.active.len(), "an index has two pods");
        let most = usize::try_from(terms.parallelism).unwrap();
        // The workers of an empty queue are left to finish.
        let may_stay = terms.completions.is_none() && !self.succeeded.is_empty();
        assert!(unfinished.active.len() <= most || may_stay, "more pods than may run");
        let (succeeded, failed) = (self.counted("succeeded"), self.counted("failed"));
        assert!(terms.indexed || succeeded == self.succeeded.len(), "{:#}", self.job);
        assert_eq!(failed, self.failed.len(), "{:#}", self.job);
    }

    fn uncounted(&self, end: &str) -> Vec<String> {
        let uids = self.job["status"]["uncountedTerminatedPods"][end].as_array();
        uids.into_iter().flatten().map(|uid| text(uid).to_owned()).collect()
    }

    /// Returns the number of pods in the status, counted or listed by uid.
    fn counted(&self, end: &str) -> usize {
        let number = self.job["status"][end].as_i64().unwrap_or(0);
        usize::try_from(number).unwrap() + self.uncounted(end).len()
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn random_walks_count_correctly_and_finish(
        spec in spec(),
        steps in prop::collection::vec(step(), 0..40),
        last in any::<prop::sample::Index>(),
    ) {
        let mut walk = Walk::new(&spec);
        walk.act();
        for step in &steps {
            if is_finished(&walk.job) {
                break;
            }
            walk.happen(step);
            walk.act();
        }
        // From here on every pod succeeds.
        walk.happen(&Step::Suspend(false));
        walk.happen(&Step::Parallelism(2));
        for _ in 0..200 {
            if is_finished(&walk.job) {
                break;
            }
            for step in [Step::Wait(1000), Step::Die(last), Step::Exit(last, 0)] {
                walk.happen(&step);
                walk.act();
            }
        }
        prop_assert!(is_finished(&walk.job), "{:#}", walk.job);
    }
}
