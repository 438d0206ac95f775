//! Random clusters and walks: the scheduler against the reference implementation, and the
//! incrementally updated state against a rebuilt one.

use proptest::prelude::*;
use scheduling::{
    Code, Explanation, Outcome, Plugin, Preemption, Scheduler, Search, Settings, Tie,
};
use serde_json::{Value, json};

use crate::reference::World;

const APPS: [&str; 3] = ["a", "b", "c"];
const CLASSES: [&str; 3] = ["gold", "silver", "lead"];

pub(crate) fn node() -> impl Strategy<Value = Value> {
    let taints = prop_oneof![
        4 => Just(json!([])),
        1 => Just(json!([{"key": "k", "value": "v", "effect": "NoSchedule"}])),
        1 => Just(json!([{"key": "k", "value": "w", "effect": "PreferNoSchedule"}])),
    ];
    let classes = prop_oneof![
        3 => (1..4u32, 0..3u32).prop_map(|(gold, silver)| json!([
            {"name": "gold", "capacity": gold}, {"name": "silver", "capacity": silver},
        ])),
        1 => Just(json!([])),
    ];
    let amounts = (1..9u32, 1..9u32, 2..7u32, 0..3u32);
    let place = (0..4u32, prop::bool::weighted(0.9), prop::bool::ANY);
    (amounts, place, taints, classes, prop::bool::weighted(0.1)).prop_map(
        |((cpu, memory, pods, gpus), (zone, host, ssd), taints, classes, unschedulable)| {
            let mut labels = json!({});
            if zone > 0 {
                labels["zone"] = format!("z{zone}").into();
            }
            if host {
                labels["kubernetes.io/hostname"] = "set below".into();
            }
            labels["disk"] = if ssd { "ssd" } else { "hdd" }.into();
            json!({
                "metadata": {"labels": labels},
                "spec": {"taints": taints, "unschedulable": unschedulable},
                "status": {
                    "allocatable": {
                        "cpu": cpu.to_string(), "memory": format!("{}Mi", memory * 1024),
                        "pods": pods.to_string(), "example.com/gpu": gpus.to_string(),
                    },
                    "qosResources": {"containerQOSResources": [
                        {"name": "k8s.io/rdt", "classes": classes},
                    ]},
                },
            })
        },
    )
}

fn term() -> impl Strategy<Value = Value> {
    let key = prop_oneof![Just("zone"), Just("kubernetes.io/hostname")];
    (0..APPS.len(), key, prop::bool::weighted(0.2)).prop_map(|(app, key, both)| {
        let namespaces = if both { json!(["default", "other"]) } else { Value::Null };
        json!({
            "topologyKey": key, "namespaces": namespaces,
            "labelSelector": {"matchLabels": {"app": APPS[app]}},
        })
    })
}

fn spread() -> impl Strategy<Value = Value> {
    let key = prop_oneof![Just("zone"), Just("kubernetes.io/hostname")];
    let when = prop_oneof![Just("DoNotSchedule"), Just("ScheduleAnyway")];
    (0..APPS.len(), key, when, 1..4i64).prop_map(|(app, key, when, skew)| {
        json!({
            "topologyKey": key, "whenUnsatisfiable": when, "maxSkew": skew,
            "labelSelector": {"matchLabels": {"app": APPS[app]}},
        })
    })
}

fn affinity() -> impl Strategy<Value = Value> {
    let required = || prop::collection::vec(term(), 0..2);
    let preferred = || {
        let weighted = (term(), 1..100i64)
            .prop_map(|(term, weight)| json!({"weight": weight, "podAffinityTerm": term}));
        prop::collection::vec(weighted, 0..2)
    };
    (required(), required(), preferred(), preferred()).prop_map(|(near, apart, liked, disliked)| {
        json!({
            "podAffinity": {
                "requiredDuringSchedulingIgnoredDuringExecution": near,
                "preferredDuringSchedulingIgnoredDuringExecution": liked,
            },
            "podAntiAffinity": {
                "requiredDuringSchedulingIgnoredDuringExecution": apart,
                "preferredDuringSchedulingIgnoredDuringExecution": disliked,
            },
        })
    })
}

fn container() -> impl Strategy<Value = Value> {
    let request = |values: &'static [&'static str]| prop::option::of(prop::sample::select(values));
    (
        request(&["100m", "500m", "1", "2", "3"]),
        request(&["128Mi", "512Mi", "1024Mi", "2048Mi"]),
        prop::option::weighted(0.1, Just("1")),
        prop::option::weighted(0.3, prop::sample::select(&CLASSES[..])),
    )
        .prop_map(|(cpu, memory, gpu, class)| {
            let mut requests = json!({});
            for (name, amount) in [("cpu", cpu), ("memory", memory), ("example.com/gpu", gpu)] {
                if let Some(amount) = amount {
                    requests[name] = amount.into();
                }
            }
            let classes = class.map(|class| json!([{"name": "rdt", "class": class}]));
            json!({"image": "img", "resources": {"requests": requests, "qosResources": classes}})
        })
}

pub(crate) fn pod() -> impl Strategy<Value = Value> {
    (
        prop::collection::vec(container(), 1..3),
        (0..APPS.len(), prop::bool::weighted(0.8), 0..4i32),
        prop::collection::vec(spread(), 0..3),
        prop::option::weighted(0.3, affinity()),
        prop::option::weighted(0.15, Just(json!({"disk": "ssd"}))),
        prop::option::weighted(0.3, Just(json!([{"key": "k", "operator": "Exists"}]))),
        prop::option::weighted(0.2, prop::sample::select(&CLASSES[..2])),
        prop::option::weighted(0.1, 8000..8002i64),
        prop::bool::weighted(0.5),
    )
        .prop_map(
            |(
                mut containers,
                (app, home, priority),
                spread,
                affinity,
                selector,
                tolerations,
                class,
                port,
                spreads,
            )| {
                if let Some(port) = port {
                    containers[0]["ports"] = json!([{"hostPort": port}]);
                }
                let classes = class.map(|class| json!([{"name": "k8s.io/rdt", "class": class}]));
                json!({
                    "metadata": {
                        "namespace": if home { "default" } else { "other" },
                        "labels": {"app": APPS[app]},
                    },
                    "spec": {
                        "priority": priority, "containers": containers,
                        "topologySpreadConstraints": if spreads { spread } else { Vec::new() },
                        "affinity": affinity, "nodeSelector": selector,
                        "tolerations": tolerations, "qosResources": classes,
                    },
                })
            },
        )
}

/// The next step of a walk. Numbers choose among the existing objects.
#[derive(Debug, Clone)]
enum Step {
    Schedule(Box<Value>),
    /// Another pod like an earlier one.
    Again(usize),
    RemovePod(usize),
    ChangeNode(usize, Box<Value>),
    RemoveNode(usize),
    AddNode(Box<Value>),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        5 => pod().prop_map(|p| Step::Schedule(Box::new(p))),
        6 => (0..100usize).prop_map(Step::Again),
        3 => (0..100usize).prop_map(Step::RemovePod),
        1 => (0..100usize, node()).prop_map(|(n, node)| Step::ChangeNode(n, Box::new(node))),
        1 => (0..100usize).prop_map(Step::RemoveNode),
        1 => node().prop_map(|node| Step::AddNode(Box::new(node))),
    ]
}

fn named_node(mut node: Value, name: &str) -> Value {
    node["metadata"]["name"] = name.into();
    if !node["metadata"]["labels"]["kubernetes.io/hostname"].is_null() {
        node["metadata"]["labels"]["kubernetes.io/hostname"] = name.into();
    }
    node
}

fn key(pod: &Value) -> String {
    let meta = &pod["metadata"];
    format!("{}/{}", meta["namespace"].as_str().unwrap(), meta["name"].as_str().unwrap())
}

/// A cluster in two forms that must agree.
struct Walk {
    world: World,
    scheduler: Scheduler,
    seen: Vec<Value>,
    names: usize,
}

fn settings() -> Settings {
    Settings { qos_resources: true, ..Settings::default() }
}

impl Walk {
    fn new(nodes: Vec<Value>) -> Walk {
        let scheduler = Scheduler::new(&settings()).unwrap();
        let mut walk = Walk { world: World::default(), scheduler, seen: Vec::new(), names: 0 };
        for node in nodes {
            walk.add_node(node);
        }
        walk
    }

    fn name(&mut self, kind: &str) -> String {
        self.names += 1;
        format!("{kind}{}", self.names)
    }

    fn add_node(&mut self, node: Value) {
        let name = self.name("n");
        let node = named_node(node, &name);
        self.scheduler.cluster_mut().apply_node(&node).unwrap();
        self.world.nodes.push(node);
    }

    fn step(&mut self, step: &Step) {
        match step {
            Step::Schedule(pod) => {
                self.seen.push((**pod).clone());
                self.schedule((**pod).clone());
            }
            Step::Again(n) if !self.seen.is_empty() => {
                self.schedule(self.seen[n % self.seen.len()].clone());
            }
            Step::RemovePod(n) if !self.world.pods.is_empty() => {
                let pod = self.world.pods.remove(n % self.world.pods.len());
                self.scheduler.cluster_mut().remove_pod(&key(&pod));
            }
            Step::ChangeNode(n, node) if !self.world.nodes.is_empty() => {
                let n = n % self.world.nodes.len();
                let name = self.world.nodes[n]["metadata"]["name"].as_str().unwrap().to_owned();
                let node = named_node((**node).clone(), &name);
                self.scheduler.cluster_mut().apply_node(&node).unwrap();
                self.world.nodes[n] = node;
            }
            Step::RemoveNode(n) if !self.world.nodes.is_empty() => {
                let node = self.world.nodes.remove(n % self.world.nodes.len());
                let name = node["metadata"]["name"].as_str().unwrap();
                self.scheduler.cluster_mut().remove_node(name);
                // Its pods are deleted soon after.
                let gone = |pod: &Value| pod["spec"]["nodeName"] == *name;
                for pod in self.world.pods.iter().filter(|p| gone(p)) {
                    self.scheduler.cluster_mut().remove_pod(&key(pod));
                }
                self.world.pods.retain(|p| !gone(p));
            }
            Step::AddNode(node) => self.add_node((**node).clone()),
            _ => {}
        }
    }

    fn schedule(&mut self, mut pod: Value) {
        pod["metadata"]["name"] = self.name("p").into();
        pod["status"]["startTime"] =
            format!("2026-01-01T00:00:00.{:03}Z", self.names % 1000).into();
        let name = key(&pod);
        self.scheduler.cluster_mut().apply_pod(&pod).unwrap();
        let fast = self.scheduler.explain(&name, Tie::FirstByName).unwrap();
        let plain_attempt = self.scheduler.attempt(&name, Tie::FirstByName).unwrap();
        assert_eq!(plain_attempt, fast.attempt, "explaining changes nothing");

        let (totals, rejected) = self.world.decide(&pod);
        assert_eq!(fast.feasible, totals.keys().cloned().collect::<Vec<_>>(), "{pod}");
        for (node, (plugin, reasons)) in &rejected {
            let verdict = &fast.filtered[node];
            assert_eq!(verdict.plugin.unwrap().name(), *plugin, "{node} for {pod}");
            assert_eq!(verdict.reasons, reasons.iter().cloned().collect::<Vec<_>>(), "{node}");
        }
        if totals.len() > 1 {
            let scored = fast.scores.iter().map(|(node, s)| (node.clone(), s.total)).collect();
            assert_eq!(totals, scored, "{pod} in {:?}", self.world);
        }
        let afresh = self.afresh(&pod).explain(&name, Tie::FirstByName).unwrap();
        assert_eq!(fast, afresh, "as if it had been so from the start");

        match &fast.attempt.outcome {
            Outcome::Scheduled(choice) => {
                let most = totals.values().max().unwrap();
                let best = totals.iter().find(|(_, total)| *total == most).unwrap().0;
                assert_eq!((&choice.node, totals.len()), (best, choice.feasible));
                self.scheduler.adopt(&fast.attempt);
                pod["spec"]["nodeName"] = choice.node.clone().into();
                self.world.pods.push(pod);
            }
            Outcome::Unschedulable(failure) => {
                self.compare_victims(&pod, &fast, failure.preemption.as_ref());
                self.scheduler.cluster_mut().remove_pod(&name);
            }
            Outcome::Gated => panic!("no pod here has gates"),
        }
    }

    fn compare_victims(&self, pod: &Value, fast: &Explanation, preemption: Option<&Preemption>) {
        for node in &self.world.nodes {
            let name = node["metadata"]["name"].as_str().unwrap();
            let candidate = preemption.and_then(|p| p.candidates.get(name));
            let no_help = preemption.and_then(|p| p.no_help.get(name));
            if fast.filtered[name].code == Code::UnschedulableAndUnresolvable {
                assert_eq!((candidate, no_help), (None, None), "{name} for {pod}");
                continue;
            }
            match self.world.victims(pod, node) {
                Ok(victims) => {
                    let victims: Vec<String> = victims.iter().map(key).collect();
                    assert_eq!(candidate.unwrap().victims, victims, "{name} for {pod}");
                }
                Err(verdict) => {
                    let said = no_help.unwrap();
                    let plugin = said.plugin.map(Plugin::name);
                    assert_eq!(plugin, verdict.as_ref().map(|(plugin, _)| *plugin), "{name}");
                    if let Some((_, reasons)) = verdict {
                        let reasons: Vec<String> = reasons.into_iter().collect();
                        assert_eq!(said.reasons, reasons, "{name} for {pod}");
                    }
                }
            }
        }
    }

    /// Returns a scheduler built from all objects at once.
    fn afresh(&self, pod: &Value) -> Scheduler {
        let mut fresh = Scheduler::new(&settings()).unwrap();
        let cluster = fresh.cluster_mut();
        let known = self.scheduler.cluster();
        for name in known.node_names() {
            let node = self.world.nodes.iter().find(|n| n["metadata"]["name"] == *name).unwrap();
            cluster.apply_node(node).unwrap();
            for on in known.pods_on(name) {
                let pod = self.world.pods.iter().find(|p| key(p) == on).unwrap();
                cluster.apply_pod(pod).unwrap();
            }
        }
        cluster.apply_pod(pod).unwrap();
        fresh
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn cached_results_match_computed_ones(
        nodes in prop::collection::vec(node(), 1..9),
        steps in prop::collection::vec(step(), 1..40),
    ) {
        let mut walk = Walk::new(nodes);
        for step in &steps {
            walk.step(step);
        }
    }

    #[test]
    fn partial_search_never_finds_an_unfit_node(
        nodes in prop::collection::vec(node(), 130..140),
        pods in prop::collection::vec(pod(), 1..8),
        share in 0..60u8,
    ) {
        let limited = Settings { search: Search::Percentage(share), ..settings() };
        let mut some = Scheduler::new(&limited).unwrap();
        let mut all = Scheduler::new(&settings()).unwrap();
        for (n, node) in nodes.iter().enumerate() {
            let node = named_node(node.clone(), &format!("n{n}"));
            some.cluster_mut().apply_node(&node).unwrap();
            all.cluster_mut().apply_node(&node).unwrap();
        }
        for (n, mut pod) in pods.into_iter().enumerate() {
            pod["metadata"]["name"] = format!("p{n}").into();
            let name = key(&pod);
            some.cluster_mut().apply_pod(&pod).unwrap();
            all.cluster_mut().apply_pod(&pod).unwrap();
            let few = some.explain(&name, Tie::Seed(n as u64)).unwrap();
            let full = all.explain(&name, Tie::Seed(n as u64)).unwrap();
            prop_assert!(few.feasible.iter().all(|node| full.feasible.contains(node)));
            prop_assert_eq!(few.feasible.is_empty(), full.feasible.is_empty());
            prop_assert!(few.feasible.len() >= full.feasible.len().min(100));
            some.adopt(&few.attempt);
            all.adopt(&few.attempt);
        }
    }
}
