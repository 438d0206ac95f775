//! Recorded scenarios: a cluster, steps, and the recorded results of kube-scheduler.
//!
//! Main entry: [`differences`], which runs a scenario given as JSON and returns where our results
//! differ from the recorded ones. The format is described in `testdata/golden-sched/README.md`. The
//! tests and `berth conformance` run the same code.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value, json};

use crate::{
    Code, Explanation, GATED_MESSAGE, Outcome, Plugin, Preemption, Scheduler, Settings, Tie,
    Verdict,
};

/// A difference between our result and the recorded one.
#[derive(Debug, Clone, PartialEq)]
pub struct Difference {
    pub what: String,
    pub expected: Value,
    pub got: Value,
}

/// Runs a scenario. An unreadable scenario is a difference too.
#[must_use]
pub fn differences(scenario: &Value) -> Vec<Difference> {
    let mut runner = match ScenarioRunner::new(scenario) {
        Ok(runner) => runner,
        Err(problem) => {
            let expected = Value::from("a readable scenario");
            return vec![Difference { what: "the scenario".into(), expected, got: problem.into() }];
        }
    };
    for (number, step) in list(&scenario["steps"]).iter().enumerate() {
        runner.at = format!("step {}", number + 1);
        if let Err(problem) = runner.step(step) {
            runner.differ("", Value::from("a valid step"), problem.into());
        }
    }
    runner.differences
}

fn list(value: &Value) -> &[Value] {
    value.as_array().map(Vec::as_slice).unwrap_or_default()
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

fn key(pod: &Value) -> String {
    let metadata = &pod["metadata"];
    format!("{}/{}", text(&metadata["namespace"]), text(&metadata["name"]))
}

/// Converts a node from the form of scenarios to that of the API.
fn node_object(node: &Value) -> Value {
    json!({
        "metadata": {"name": node["name"], "labels": node["labels"]},
        "spec": {"taints": node["taints"], "unschedulable": node["unschedulable"]},
        "status": {
            "allocatable": node["allocatable"],
            "images": node["images"],
            "declaredFeatures": node["declaredFeatures"],
            "qosResources": node["qosResources"],
        },
    })
}

struct ScenarioRunner {
    scheduler: Scheduler,
    /// Pods that were being deleted from the start: as victims they stay.
    leaving: BTreeSet<String>,
    at: String,
    differences: Vec<Difference>,
}

impl ScenarioRunner {
    fn new(scenario: &Value) -> Result<ScenarioRunner, String> {
        let gate = |name: &str| scenario["feature_gates"][name].as_bool().unwrap_or(false);
        let settings = Settings {
            profile: scenario["config"].clone(),
            compare_taints: gate("TaintTolerationComparisonOperators"),
            qos_resources: gate("QOSResources"),
            ..Settings::default()
        };
        let scheduler = Scheduler::new(&settings).map_err(|e| e.to_string())?;
        let mut runner = ScenarioRunner {
            scheduler,
            leaving: BTreeSet::new(),
            at: String::new(),
            differences: Vec::new(),
        };
        runner.fill(&scenario["cluster"]).map_err(|e| e.to_string())?;
        Ok(runner)
    }

    fn fill(&mut self, from: &Value) -> Result<(), crate::ObjectError> {
        let cluster = self.scheduler.cluster_mut();
        for node in list(&from["nodes"]) {
            cluster.apply_node(&node_object(node))?;
        }
        let only_default = [json!({"metadata": {"name": "default"}})];
        let namespaces = from["namespaces"].as_array().map_or(&only_default[..], |n| n);
        for namespace in namespaces {
            cluster.apply_namespace(namespace)?;
        }
        for service in list(&from["services"]) {
            cluster.apply_service(service)?;
        }
        let controllers = [
            ("replicaSets", "ReplicaSet"),
            ("statefulSets", "StatefulSet"),
            ("replicationControllers", "ReplicationController"),
        ];
        for (field, kind) in controllers {
            for controller in list(&from[field]) {
                cluster.apply_controller(kind, controller)?;
            }
        }
        for budget in list(&from["podDisruptionBudgets"]) {
            cluster.apply_budget(budget)?;
        }
        for volume in list(&from["persistentVolumes"]) {
            cluster.apply_volume(volume)?;
        }
        for claim in list(&from["persistentVolumeClaims"]) {
            cluster.apply_claim(claim)?;
        }
        for class in list(&from["storageClasses"]) {
            cluster.apply_class(class)?;
        }
        for pod in list(&from["pods"]) {
            cluster.apply_pod(pod)?;
            if !pod["metadata"]["deletionTimestamp"].is_null() {
                self.leaving.insert(key(pod));
            }
        }
        Ok(())
    }

    fn step(&mut self, step: &Value) -> Result<(), String> {
        let cluster = self.scheduler.cluster_mut();
        let name = text(&step["name"]);
        match text(&step["op"]) {
            "schedule" => {
                cluster.apply_pod(&step["pod"]).map_err(|e| e.to_string())?;
                let has_node = !text(&step["pod"]["spec"]["nodeName"]).is_empty();
                self.attempt(&key(&step["pod"]), has_node, &step["expect"]);
            }
            "schedule_all" => {
                let mut pods = Vec::new();
                for pod in list(&step["pods"]) {
                    cluster.apply_pod(pod).map_err(|e| e.to_string())?;
                    pods.push((-pod["spec"]["priority"].as_i64().unwrap_or(0), key(pod)));
                }
                // In order of arrival among equal priorities.
                pods.sort_by_key(|(priority, _)| *priority);
                for (n, (_, pod)) in pods.iter().enumerate() {
                    self.attempt(pod, false, &step["expect"][n]);
                }
            }
            "retry" => self.attempt(name, false, &step["expect"]),
            "ungate" => {
                cluster.ungate(name);
                self.attempt(name, false, &step["expect"]);
            }
            "delete_pod" => cluster.remove_pod(name),
            "add_node" => {
                cluster.apply_node(&node_object(&step["node"])).map_err(|e| e.to_string())?;
            }
            "remove_node" => cluster.remove_node(name),
            other => return Err(format!("unknown operation {other:?}")),
        }
        Ok(())
    }

    fn differ(&mut self, what: &str, expected: Value, got: Value) {
        let at = &self.at;
        let what = if what.is_empty() { at.clone() } else { format!("{at}: {what}") };
        self.differences.push(Difference { what, expected, got });
    }

    fn compare(&mut self, what: &str, expected: &Value, got: Value) {
        if *expected != got {
            self.differ(what, expected.clone(), got);
        }
    }

    fn attempt(&mut self, pod: &str, has_node: bool, expected: &Value) {
        self.compare("pod", &expected["pod"], pod.into());
        if has_node {
            self.compare("result", &expected["result"], "not_queued".into());
            return;
        }
        match self.scheduler.explain(pod, Tie::FirstByName) {
            Err(error) => self.differ("", expected["result"].clone(), error.to_string().into()),
            Ok(explanation) => {
                self.check(expected, &explanation);
                self.scheduler.adopt(&explanation.attempt);
                if let Outcome::Unschedulable(failure) = &explanation.attempt.outcome {
                    for victim in failure.preemption.iter().flat_map(|p| &p.victims) {
                        if !self.leaving.contains(victim) {
                            self.scheduler.cluster_mut().remove_pod(victim);
                        }
                    }
                }
            }
        }
    }

    fn check(&mut self, expected: &Value, got: &Explanation) {
        let mut result = Map::new();
        let mut put = |field: &str, value: Value| {
            result.insert(field.to_owned(), value);
        };
        match &got.attempt.outcome {
            Outcome::Scheduled(choice) => {
                put("result", "scheduled".into());
                put("assigned", choice.node.clone().into());
                put("best", got.best.clone().into());
                if choice.via_nominated_node {
                    put("via_nominated_node", true.into());
                }
            }
            Outcome::Unschedulable(failure) => {
                put("result", "unschedulable".into());
                put("message", failure.message.clone().into());
                put("condition_reason", "Unschedulable".into());
                if !failure.plugins.is_empty() {
                    put("unschedulable_plugins", names(&failure.plugins));
                }
                if let Some(pre_filter) = &failure.pre_filter {
                    put("pre_filter", verdict(pre_filter));
                }
                if let Some(preemption) = &failure.preemption {
                    put("preemption", preempted(preemption));
                }
            }
            Outcome::Gated => {
                put("result", "gated".into());
                put("gated_by", Plugin::SchedulingGates.name().into());
                put("message", GATED_MESSAGE.into());
                put("condition_reason", "SchedulingGated".into());
            }
        }
        if got.attempt.outcome != Outcome::Gated {
            put("feasible", got.feasible.clone().into());
        }
        if !got.filtered.is_empty() {
            put("filtered", got.filtered.iter().map(|(n, v)| (n.clone(), verdict(v))).collect());
        }
        if !got.scores.is_empty() {
            let node = |scores: &crate::NodeScores| {
                let plugins = scores.plugins.iter().map(|(p, s)| (p.name().to_owned(), json!(s)));
                json!({"plugins": plugins.collect::<Map<_, _>>(), "total": scores.total})
            };
            put("scores", got.scores.iter().map(|(n, s)| (n.clone(), node(s))).collect());
        }
        let fields: BTreeSet<String> =
            expected.as_object().into_iter().flat_map(Map::keys).cloned().collect();
        for field in fields.union(&result.keys().cloned().collect()) {
            match field.as_str() {
                "pod" | "all_failures" => {}
                "filtered" | "scores" => {
                    let (expected, got) = (&expected[field], result.get(field));
                    self.compare_entries(field, expected, got.unwrap_or(&Value::Null));
                }
                _ => {
                    let got = result.get(field).cloned().unwrap_or_default();
                    self.compare(field, &expected[field], got);
                }
            }
        }
        self.check_all_failures(expected, got);
    }

    fn compare_entries(&mut self, field: &str, expected: &Value, got: &Value) {
        let keys = |v: &Value| -> BTreeSet<String> {
            v.as_object().into_iter().flat_map(Map::keys).cloned().collect()
        };
        for key in keys(expected).union(&keys(got)) {
            let what = format!("{field} {key}");
            self.compare(&what, &expected[key], got[key].clone());
        }
    }

    /// The recording lists a node here only if it has more than the first failure.
    fn check_all_failures(&mut self, expected: &Value, got: &Explanation) {
        let listed = expected["all_failures"].as_object();
        for (node, failures) in &got.all_failures {
            let ours = by_plugin(failures);
            match listed.and_then(|nodes| nodes.get(node)) {
                Some(recorded) => self.compare(&format!("all_failures {node}"), recorded, ours),
                None => {
                    let first = got.filtered.get(node).and_then(|v| Some((v.plugin?, &v.reasons)));
                    let known = first.is_some_and(|(plugin, reasons)| {
                        failures.iter().all(|(p, r)| *p == plugin && r == reasons)
                    });
                    if !known {
                        self.differ(&format!("all_failures {node}"), Value::Null, ours);
                    }
                }
            }
        }
        for (node, recorded) in listed.into_iter().flatten() {
            if !got.all_failures.contains_key(node) {
                let what = format!("all_failures {node}");
                self.differ(&what, recorded.clone(), Value::Null);
            }
        }
    }
}

fn names(plugins: &[Plugin]) -> Value {
    plugins.iter().map(|p| Value::from(p.name())).collect()
}

fn by_plugin(failures: &BTreeMap<Plugin, Vec<String>>) -> Value {
    failures.iter().map(|(p, reasons)| (p.name().to_owned(), json!(reasons))).collect()
}

fn verdict(verdict: &Verdict) -> Value {
    let code = match verdict.code {
        Code::Unschedulable => "Unschedulable",
        Code::UnschedulableAndUnresolvable => "UnschedulableAndUnresolvable",
    };
    let mut shown = Map::new();
    if let Some(plugin) = verdict.plugin {
        shown.insert("plugin".to_owned(), plugin.name().into());
    }
    shown.insert("code".to_owned(), code.into());
    shown.insert("reasons".to_owned(), json!(verdict.reasons));
    shown.into()
}

fn preempted(preemption: &Preemption) -> Value {
    let mut shown = Map::new();
    if !preemption.candidates.is_empty() {
        let candidate = |c: &crate::Candidate| json!({"victims": c.victims, "pdb_violations": c.pdb_violations});
        let candidates = preemption.candidates.iter();
        shown.insert(
            "candidates".to_owned(),
            candidates.map(|(node, c)| (node.clone(), candidate(c))).collect(),
        );
        shown.insert("best".to_owned(), json!(preemption.best));
        shown.insert("nominated".to_owned(), json!(preemption.nominated));
        shown.insert("victims".to_owned(), json!(preemption.victims));
    }
    if !preemption.no_help.is_empty() {
        let no_help = preemption.no_help.iter();
        shown.insert(
            "no_help".to_owned(),
            no_help.map(|(node, v)| (node.clone(), verdict(v))).collect(),
        );
    }
    shown.into()
}
