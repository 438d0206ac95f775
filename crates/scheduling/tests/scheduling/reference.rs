//! A reference implementation in the simplest form: every question iterates over all nodes and all
//! pods of the given JSON, without a cache. The scheduler is compared with it. It covers the
//! clusters that [`crate::worlds`] generates.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

/// Objects as given: pods on nodes have a node name.
#[derive(Debug, Default, Clone)]
pub(crate) struct World {
    pub(crate) nodes: Vec<Value>,
    pub(crate) pods: Vec<Value>,
}

fn list(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or("")
}

fn amount(value: &Value, of: &str) -> i64 {
    let text = text(&value[of]);
    let number = |digits: &str| digits.parse::<i64>().unwrap();
    match (text, of) {
        ("", _) => 0,
        (text, "cpu") => match text.strip_suffix('m') {
            Some(milli) => number(milli),
            None => number(text) * 1000,
        },
        (text, _) => match text.strip_suffix("Mi") {
            Some(mebi) => number(mebi) << 20,
            None => number(text),
        },
    }
}

/// Returns the sum over a pod's containers; `missing` is the default of a container without a
/// request.
fn requests(pod: &Value, of: &str, missing: i64) -> i64 {
    let containers = list(&pod["spec"]["containers"]).iter();
    containers
        .map(|c| {
            let requests = &c["resources"]["requests"];
            if requests[of].is_null() { missing } else { amount(requests, of) }
        })
        .sum()
}

fn label<'a>(object: &'a Value, key: &str) -> Option<&'a str> {
    object["metadata"]["labels"][key].as_str()
}

/// Supports `matchLabels` only. An absent selector selects nothing.
fn selects(selector: &Value, pod: &Value) -> bool {
    !selector.is_null()
        && selector["matchLabels"]
            .as_object()
            .into_iter()
            .flatten()
            .all(|(key, value)| label(pod, key) == value.as_str())
}

fn namespace(pod: &Value) -> &str {
    text(&pod["metadata"]["namespace"])
}

/// A term without namespaces applies to its own.
fn term_selects(term: &Value, owner: &Value, pod: &Value) -> bool {
    let named = list(&term["namespaces"]);
    let there = if named.is_empty() {
        namespace(pod) == namespace(owner)
    } else {
        named.iter().any(|n| text(n) == namespace(pod))
    };
    there && selects(&term["labelSelector"], pod)
}

fn required<'a>(pod: &'a Value, kind: &str) -> &'a [Value] {
    list(&pod["spec"]["affinity"][kind]["requiredDuringSchedulingIgnoredDuringExecution"])
}

fn preferred<'a>(pod: &'a Value, kind: &str) -> &'a [Value] {
    list(&pod["spec"]["affinity"][kind]["preferredDuringSchedulingIgnoredDuringExecution"])
}

fn tolerates(pod: &Value, taint: &Value) -> bool {
    list(&pod["spec"]["tolerations"]).iter().any(|t| {
        (t["effect"].is_null() || t["effect"] == taint["effect"])
            && t["key"] == taint["key"]
            && (t["operator"] == "Exists" || t["value"] == taint["value"])
    })
}

fn wants(pod: &Value, node: &Value) -> bool {
    let selector = pod["spec"]["nodeSelector"].as_object();
    selector.into_iter().flatten().all(|(key, value)| label(node, key) == value.as_str())
}

fn constraints(pod: &Value, when: &str) -> Vec<Value> {
    let all = list(&pod["spec"]["topologySpreadConstraints"]).iter();
    all.filter(|c| c["whenUnsatisfiable"] == when).cloned().collect()
}

type Verdict = (&'static str, BTreeSet<String>);

fn one(plugin: &'static str, reason: &str) -> Option<Verdict> {
    Some((plugin, BTreeSet::from([reason.to_owned()])))
}

impl World {
    fn on<'a>(&'a self, node: &'a Value) -> impl Iterator<Item = &'a Value> {
        let name = &node["metadata"]["name"];
        self.pods.iter().filter(move |p| p["spec"]["nodeName"] == *name)
    }

    fn placed(&self) -> impl Iterator<Item = (&Value, &Value)> {
        self.nodes.iter().flat_map(move |node| self.on(node).map(move |pod| (node, pod)))
    }

    /// Counts pods on nodes with this value of a label that satisfy a predicate.
    fn count(&self, key: &str, value: &str, test: impl Fn(&Value) -> bool) -> usize {
        let there = self.placed().filter(|(node, _)| label(node, key) == Some(value));
        there.filter(|(_, pod)| test(pod)).count()
    }

    /// Returns the first rejection of a node.
    fn verdict(&self, pod: &Value, node: &Value) -> Option<Verdict> {
        let hard = |t: &&Value| t["effect"] == "NoSchedule" || t["effect"] == "NoExecute";
        if node["spec"]["unschedulable"] == true {
            return one("NodeUnschedulable", "node(s) were unschedulable");
        }
        if list(&node["spec"]["taints"]).iter().filter(hard).any(|t| !tolerates(pod, t)) {
            return one("TaintToleration", "node(s) had untolerated taint(s)");
        }
        if !wants(pod, node) {
            return one("NodeAffinity", "node(s) didn't match Pod's node affinity/selector");
        }
        let port = |p: &Value| p["spec"]["containers"][0]["ports"][0]["hostPort"].as_i64();
        if port(pod).is_some_and(|wanted| self.on(node).any(|p| port(p) == Some(wanted))) {
            let text = "node(s) didn't have free ports for the requested pod ports";
            return one("NodePorts", text);
        }
        let allocatable = &node["status"]["allocatable"];
        let mut short = BTreeSet::new();
        if self.on(node).count() as i64 + 1 > amount(allocatable, "pods") {
            short.insert("Too many pods".to_owned());
        }
        for of in ["cpu", "memory", "example.com/gpu"] {
            let wanted = requests(pod, of, 0);
            let used: i64 = self.on(node).map(|p| requests(p, of, 0)).sum();
            if wanted > 0 && wanted > amount(allocatable, of) - used {
                short.insert(format!("Insufficient {of}"));
            }
        }
        if !short.is_empty() {
            return Some(("NodeResourcesFit", short));
        }
        self.classes(pod, node)
            .or_else(|| self.spread(pod, node))
            .or_else(|| self.affinity(pod, node))
    }

    /// Returns the class of each container of the one class resource, `rdt`.
    fn classes(&self, pod: &Value, node: &Value) -> Option<Verdict> {
        let used = |p: &Value| -> Vec<String> {
            let containers = list(&p["spec"]["containers"]).iter();
            containers
                .filter_map(|c| {
                    let own = &c["resources"]["qosResources"][0]["class"];
                    let class = own.as_str().or(p["spec"]["qosResources"][0]["class"].as_str());
                    class.map(str::to_owned)
                })
                .collect()
        };
        let wanted = used(pod);
        let offered = &node["status"]["qosResources"]["containerQOSResources"][0]["classes"];
        let mut reasons = BTreeSet::new();
        for class in wanted.iter().collect::<BTreeSet<_>>() {
            let count =
                |classes: Vec<String>| classes.iter().filter(|c| *c == class).count() as i64;
            let taken: i64 = self.on(node).map(|p| count(used(p))).sum();
            match list(offered).iter().find(|c| c["name"] == **class) {
                None => {
                    reasons.insert(format!("node(s) had no QoS class k8s.io/rdt={class}"));
                }
                Some(offer) => {
                    let capacity = offer["capacity"].as_i64().unwrap();
                    if capacity > 0 && taken + count(wanted.clone()) > capacity {
                        reasons.insert(format!("Insufficient QoS class k8s.io/rdt={class}"));
                    }
                }
            }
        }
        (!reasons.is_empty()).then_some(("QOSResources", reasons))
    }

    fn spread(&self, pod: &Value, node: &Value) -> Option<Verdict> {
        let hard = constraints(pod, "DoNotSchedule");
        for c in &hard {
            let key = text(&c["topologyKey"]);
            let Some(here) = label(node, key) else {
                let text =
                    "node(s) didn't match pod topology spread constraints (missing required label)";
                return one("PodTopologySpread", text);
            };
            let labelled =
                |n: &Value| hard.iter().all(|c| label(n, text(&c["topologyKey"])).is_some());
            let eligible = |n: &&Value| labelled(n) && wants(pod, n);
            let mut counts: BTreeMap<&str, i64> = BTreeMap::new();
            for n in self.nodes.iter().filter(eligible) {
                let matching = self
                    .on(n)
                    .filter(|p| namespace(p) == namespace(pod) && selects(&c["labelSelector"], p));
                *counts.entry(label(n, key).unwrap()).or_default() += matching.count() as i64;
            }
            let fewest = counts.values().min().copied().unwrap_or(0);
            let itself = i64::from(selects(&c["labelSelector"], pod));
            let skew = counts.get(here).copied().unwrap_or(0) + itself - fewest;
            if skew > c["maxSkew"].as_i64().unwrap() {
                let text = "node(s) didn't match pod topology spread constraints";
                return one("PodTopologySpread", text);
            }
        }
        None
    }

    fn affinity(&self, pod: &Value, node: &Value) -> Option<Verdict> {
        let plugin = "InterPodAffinity";
        let terms = required(pod, "podAffinity");
        let company = |p: &Value| terms.iter().all(|t| term_selects(t, pod, p));
        let here = |t: &Value| label(node, text(&t["topologyKey"]));
        let lonely = "node(s) didn't match pod affinity rules";
        if terms.iter().any(|t| here(t).is_none()) {
            return one(plugin, lonely);
        }
        let found = terms
            .iter()
            .all(|t| self.count(text(&t["topologyKey"]), here(t).unwrap(), company) > 0);
        let anywhere = self.placed().any(|(n, p)| {
            company(p) && terms.iter().any(|t| label(n, text(&t["topologyKey"])).is_some())
        });
        if !(found || !anywhere && company(pod)) {
            return one(plugin, lonely);
        }
        for t in required(pod, "podAntiAffinity") {
            let near =
                |value| self.count(text(&t["topologyKey"]), value, |p| term_selects(t, pod, p)) > 0;
            if here(t).is_some_and(near) {
                return one(plugin, "node(s) didn't match pod anti-affinity rules");
            }
        }
        let against = self.placed().any(|(n, p)| {
            required(p, "podAntiAffinity").iter().any(|t| {
                let key = text(&t["topologyKey"]);
                term_selects(t, p, pod)
                    && label(n, key).is_some()
                    && label(n, key) == label(node, key)
            })
        });
        if against {
            return one(plugin, "node(s) didn't satisfy existing pods anti-affinity rules");
        }
        None
    }

    /// Returns the feasible nodes with their totals, and the rejections of the others.
    pub(crate) fn decide(&self, pod: &Value) -> (BTreeMap<String, i64>, BTreeMap<String, Verdict>) {
        let mut fitting = Vec::new();
        let mut rejected = BTreeMap::new();
        for node in &self.nodes {
            match self.verdict(pod, node) {
                None => fitting.push(node),
                Some(verdict) => {
                    rejected.insert(text(&node["metadata"]["name"]).to_owned(), verdict);
                }
            }
        }
        let taints = self.taints(pod, &fitting);
        let spread = self.soft_spread(pod, &fitting);
        let affinity = self.preferred_affinity(pod, &fitting);
        let total = |(n, node): (usize, &&Value)| {
            let local = self.fit(pod, node) + self.balance(pod, node);
            let total = 3 * taints[n] + 2 * spread[n] + 2 * affinity[n] + local;
            (text(&node["metadata"]["name"]).to_owned(), total)
        };
        (fitting.iter().enumerate().map(total).collect(), rejected)
    }

    /// Returns the victims on a node, the most important first; or the rejection that remains
    /// without all pods of lower priority, which is empty if there are none.
    pub(crate) fn victims(&self, pod: &Value, node: &Value) -> Result<Vec<Value>, Option<Verdict>> {
        let priority = |p: &Value| p["spec"]["priority"].as_i64().unwrap();
        let name = &node["metadata"]["name"];
        let may_leave = |p: &Value| p["spec"]["nodeName"] == *name && priority(p) < priority(pod);
        let mut lower: Vec<Value> = self.pods.iter().filter(|p| may_leave(p)).cloned().collect();
        if lower.is_empty() {
            return Err(None);
        }
        let mut left = self.clone();
        left.pods.retain(|p| !may_leave(p));
        if let Some(verdict) = left.verdict(pod, node) {
            return Err(Some(verdict));
        }
        let started = |p: &Value| text(&p["status"]["startTime"]).to_owned();
        lower.sort_by_key(|p| (-priority(p), started(p)));
        let mut victims = Vec::new();
        for one in lower {
            left.pods.push(one);
            if left.verdict(pod, node).is_some() {
                victims.extend(left.pods.pop());
            }
        }
        Ok(victims)
    }

    fn taints(&self, pod: &Value, nodes: &[&Value]) -> Vec<i64> {
        let disliked = |node: &&Value| {
            let soft = list(&node["spec"]["taints"]).iter();
            let soft = soft.filter(|t| t["effect"] == "PreferNoSchedule");
            soft.filter(|t| !tolerates(pod, t)).count() as i64
        };
        let raw: Vec<i64> = nodes.iter().map(disliked).collect();
        let most = raw.iter().max().copied().unwrap_or(0);
        raw.iter().map(|r| if most == 0 { 100 } else { 100 - r * 100 / most }).collect()
    }

    fn fit(&self, pod: &Value, node: &Value) -> i64 {
        let allocatable = &node["status"]["allocatable"];
        let score = |of: &str, missing: i64| {
            let there = amount(allocatable, of);
            let pods = self.on(node).chain([pod]);
            let asked: i64 = pods.map(|p| requests(p, of, missing)).sum();
            if asked > there { 0 } else { (there - asked) * 100 / there }
        };
        (score("cpu", 100) + score("memory", 200 << 20)) / 2
    }

    fn balance(&self, pod: &Value, node: &Value) -> i64 {
        if requests(pod, "cpu", 0) == 0 && requests(pod, "memory", 0) == 0 {
            return 0;
        }
        let fraction = |of: &str, with: bool| {
            let used: i64 = self.on(node).map(|p| requests(p, of, 0)).sum();
            let own = if with { requests(pod, of, 0) } else { 0 };
            ((used + own) as f64 / amount(&node["status"]["allocatable"], of) as f64).min(1.0)
        };
        let even = |with: bool| {
            let apart = ((fraction("cpu", with) - fraction("memory", with)) / 2.0).abs();
            ((1.0 - apart) * 100.0) as i64
        };
        50 + (50 + even(true) - even(false)) / 2
    }

    fn soft_spread(&self, pod: &Value, nodes: &[&Value]) -> Vec<i64> {
        let soft = constraints(pod, "ScheduleAnyway");
        if soft.is_empty() {
            return vec![0; nodes.len()];
        }
        let labelled = |n: &Value| soft.iter().all(|c| label(n, text(&c["topologyKey"])).is_some());
        let matching = |c: &Value, n: &Value| {
            let pods = self.on(n).filter(|p| namespace(p) == namespace(pod));
            pods.filter(|p| selects(&c["labelSelector"], p)).count() as i64
        };
        let raw: Vec<Option<i64>> = nodes
            .iter()
            .map(|node| {
                let mut sum = 0.0;
                for c in soft.iter().filter(|_| labelled(node)) {
                    let key = text(&c["topologyKey"]);
                    let taking_part = nodes.iter().filter(|n| labelled(n));
                    let (count, domains) = if key == "kubernetes.io/hostname" {
                        (matching(c, node), taking_part.count())
                    } else {
                        let same = self.nodes.iter().filter(|n| {
                            labelled(n) && wants(pod, n) && label(n, key) == label(node, key)
                        });
                        let values: BTreeSet<_> = taking_part.map(|n| label(n, key)).collect();
                        (same.map(|n| matching(c, n)).sum(), values.len())
                    };
                    let skew = c["maxSkew"].as_i64().unwrap() - 1;
                    sum += count as f64 * ((domains + 2) as f64).ln() + skew as f64;
                }
                labelled(node).then_some(sum.round() as i64)
            })
            .collect();
        let highest = raw.iter().flatten().max().copied().unwrap_or(0);
        let lowest = raw.iter().flatten().min().copied().unwrap_or(0);
        let one = |raw: &Option<i64>| match raw {
            None => 0,
            Some(_) if highest == 0 => 100,
            Some(raw) => 100 * (highest + lowest - raw) / highest,
        };
        raw.iter().map(one).collect()
    }

    fn preferred_affinity(&self, pod: &Value, nodes: &[&Value]) -> Vec<i64> {
        let raw: Vec<i64> = nodes
            .iter()
            .map(|node| {
                let mut sum = 0;
                for (there, other) in self.placed() {
                    let mut add = |weight: i64, term: &Value, owner: &Value, about: &Value| {
                        let key = text(&term["topologyKey"]);
                        let same =
                            label(there, key).is_some() && label(there, key) == label(node, key);
                        if same && term_selects(term, owner, about) {
                            sum += weight;
                        }
                    };
                    for (owner, about) in [(pod, other), (other, pod)] {
                        for (kind, sign) in [("podAffinity", 1), ("podAntiAffinity", -1)] {
                            for t in preferred(owner, kind) {
                                let weight = sign * t["weight"].as_i64().unwrap();
                                add(weight, &t["podAffinityTerm"], owner, about);
                            }
                        }
                    }
                    for term in required(other, "podAffinity") {
                        add(1, term, other, pod);
                    }
                }
                sum
            })
            .collect();
        let (lowest, highest) =
            (raw.iter().min().copied().unwrap_or(0), raw.iter().max().copied().unwrap_or(0));
        let one = |raw: &i64| {
            if highest == lowest {
                0
            } else {
                (100.0 * ((raw - lowest) as f64 / (highest - lowest) as f64)) as i64
            }
        };
        raw.iter().map(one).collect()
    }
}
