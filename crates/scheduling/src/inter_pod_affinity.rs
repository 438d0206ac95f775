//! Affinity and anti-affinity between pods.
//!
//! Main types: [`InterPodAffinity`], the required terms of the pod and of existing pods with the
//! counts of one attempt, and [`scores`] for the preferred ones. Counts are taken from shapes, not
//! from pods.

use std::sync::Arc;

use smallvec::SmallVec;

use crate::cluster::Cluster;
use crate::interner::Symbol;
use crate::labels::Labels;
use crate::profile::Profile;
use crate::shape::{PodShape, PodTerm};
use crate::shape_index::ShapeEntry;
use crate::topology::{Domains, Tables};
use crate::verdict::{Code, Plugin, Reason, Rejection};

/// Returns true if a term of the pod being scheduled matches another pod. Its namespace selector
/// matches existing namespaces; an empty one matches all.
fn term_of_new(term: &PodTerm, other: &PodShape, cluster: &Cluster) -> bool {
    let by_selector = || {
        let labels = cluster.workloads.namespaces.get(&other.namespace);
        term.namespace_selector.as_ref().is_some_and(|selector| {
            selector.is_everything()
                || labels.is_some_and(|labels| selector.matches(labels, &cluster.symbols))
        })
    };
    (term.namespaces.contains(&other.namespace) || by_selector())
        && term.selector.matches(&other.labels, &cluster.symbols)
}

/// Returns true if a term of an existing pod matches the pod being scheduled. An unknown namespace
/// has no labels.
fn term_of_old(term: &PodTerm, new: &PodShape, cluster: &Cluster) -> bool {
    let none = Labels::default();
    let by_selector = || {
        let labels = cluster.workloads.namespaces.get(&new.namespace).unwrap_or(&none);
        term.namespace_selector.as_ref().is_some_and(|s| s.matches(labels, &cluster.symbols))
    };
    (term.namespaces.contains(&new.namespace) || by_selector())
        && term.selector.matches(&new.labels, &cluster.symbols)
}

fn all_terms_of_new(terms: &[PodTerm], other: &PodShape, cluster: &Cluster) -> bool {
    !terms.is_empty() && terms.iter().all(|term| term_of_new(term, other, cluster))
}

/// Numbers of matching pods by domain of one topology key.
#[derive(Debug)]
struct Counts {
    key: Symbol,
    domains: Arc<Domains>,
    by_domain: Vec<i64>,
}

impl Counts {
    fn at(&self, slot: u32) -> Option<i64> {
        self.domains.of(slot).map(|domain| self.by_domain[domain])
    }

    fn add(&mut self, entry: &ShapeEntry, times: i64) {
        for (slot, placed) in &entry.placed {
            if let Some(domain) = self.domains.of(*slot) {
                self.by_domain[domain] += i64::from(placed.all) * times;
            }
        }
    }
}

/// Returns the counts of a key, and creates them if they are missing.
fn counts_of<'a>(
    list: &'a mut Vec<Counts>,
    key: Symbol,
    cluster: &Cluster,
    tables: &mut Tables,
) -> &'a mut Counts {
    let at = match list.iter().position(|c| c.key == key) {
        Some(at) => at,
        None => {
            let domains = tables.domains(cluster, key);
            let by_domain = vec![0; domains.count];
            list.push(Counts { key, domains, by_domain });
            list.len() - 1
        }
    };
    &mut list[at]
}

/// The required terms of the pod and of existing pods, with the current numbers of pods.
#[derive(Debug)]
pub(crate) struct InterPodAffinity {
    /// Pods that match all of the pod's affinity terms, by topology key.
    affinity: Vec<Counts>,
    /// The number of domains with such pods.
    affinity_domains: i64,
    /// Pods that match a term of the pod's anti-affinity, by topology key.
    anti_affinity: Vec<Counts>,
    /// Pods whose anti-affinity matches the pod, by topology key.
    existing_anti_affinity: Vec<Counts>,
    /// The pod matches its own affinity, so that the first of a group can be placed.
    satisfies_itself: bool,
}

/// Changes of the counts by pods that are added to or removed from one node.
#[derive(Debug, Clone, Default)]
pub(crate) struct AffinityDelta {
    affinity: SmallVec<[i64; 2]>,
    anti_affinity: SmallVec<[i64; 2]>,
    existing_anti_affinity: SmallVec<[(Symbol, i64); 2]>,
}

fn at(delta: &[i64], n: usize) -> i64 {
    delta.get(n).copied().unwrap_or(0)
}

impl InterPodAffinity {
    /// Returns `None` if no term applies.
    pub(crate) fn new(
        shape: &PodShape,
        cluster: &Cluster,
        tables: &mut Tables,
    ) -> Option<InterPodAffinity> {
        let mut existing_anti_affinity = Vec::new();
        for other in cluster.shapes.with_anti_affinity() {
            for term in &other.shape.anti_affinity {
                if term_of_old(term, shape, cluster) {
                    counts_of(&mut existing_anti_affinity, term.key, cluster, tables).add(other, 1);
                }
            }
        }
        let counted = |c: &Counts| c.by_domain.iter().any(|n| *n > 0);
        if !existing_anti_affinity.iter().any(counted)
            && shape.affinity.is_empty()
            && shape.anti_affinity.is_empty()
        {
            return None;
        }
        let mut affinity = Vec::new();
        let mut anti_affinity = Vec::new();
        for term in &shape.affinity {
            counts_of(&mut affinity, term.key, cluster, tables);
        }
        for term in &shape.anti_affinity {
            counts_of(&mut anti_affinity, term.key, cluster, tables);
        }
        if !(shape.affinity.is_empty() && shape.anti_affinity.is_empty()) {
            for other in cluster.shapes.on_nodes() {
                if all_terms_of_new(&shape.affinity, &other.shape, cluster) {
                    for term in &shape.affinity {
                        counts_of(&mut affinity, term.key, cluster, tables).add(other, 1);
                    }
                }
                for term in &shape.anti_affinity {
                    if term_of_new(term, &other.shape, cluster) {
                        counts_of(&mut anti_affinity, term.key, cluster, tables).add(other, 1);
                    }
                }
            }
        }
        let domains = affinity.iter().flat_map(|c| &c.by_domain).filter(|n| **n != 0).count();
        Some(InterPodAffinity {
            affinity,
            affinity_domains: i64::try_from(domains).unwrap_or(i64::MAX),
            anti_affinity,
            existing_anti_affinity,
            satisfies_itself: all_terms_of_new(&shape.affinity, shape, cluster),
        })
    }

    /// Adds or removes a pod of this shape on the node.
    pub(crate) fn change(
        &self,
        delta: &mut AffinityDelta,
        shape: &PodShape,
        other: &PodShape,
        by: i64,
        cluster: &Cluster,
    ) {
        delta.affinity.resize(self.affinity.len(), 0);
        delta.anti_affinity.resize(self.anti_affinity.len(), 0);
        let add = |key: Symbol, list: &[Counts], delta: &mut [i64]| {
            if let Some(n) = list.iter().position(|c| c.key == key) {
                delta[n] += by;
            }
        };
        if all_terms_of_new(&shape.affinity, other, cluster) {
            for term in &shape.affinity {
                add(term.key, &self.affinity, &mut delta.affinity);
            }
        }
        for term in &shape.anti_affinity {
            if term_of_new(term, other, cluster) {
                add(term.key, &self.anti_affinity, &mut delta.anti_affinity);
            }
        }
        for term in &other.anti_affinity {
            if term_of_old(term, shape, cluster) {
                match delta.existing_anti_affinity.iter_mut().find(|(key, _)| *key == term.key) {
                    Some((_, n)) => *n += by,
                    None => delta.existing_anti_affinity.push((term.key, by)),
                }
            }
        }
    }

    pub(crate) fn filter(
        &self,
        slot: u32,
        labels: &Labels,
        delta: Option<&AffinityDelta>,
    ) -> Option<Rejection> {
        let none = AffinityDelta::default();
        let delta = delta.unwrap_or(&none);
        let no = |code, reason| Some(Rejection::new(Plugin::InterPodAffinity, code, reason));
        if !self.satisfies_affinity(slot, delta) {
            return no(Code::UnschedulableAndUnresolvable, Reason::PodAffinity);
        }
        let mut anti = self.anti_affinity.iter().enumerate();
        if anti
            .any(|(n, c)| c.at(slot).is_some_and(|count| count + at(&delta.anti_affinity, n) > 0))
        {
            return no(Code::Unschedulable, Reason::PodAntiAffinity);
        }
        let changed = |key: Symbol| {
            delta.existing_anti_affinity.iter().find(|(k, _)| *k == key).map_or(0, |(_, by)| *by)
        };
        let existing_anti_affinity = self.existing_anti_affinity.iter();
        let known = existing_anti_affinity
            .clone()
            .any(|c| c.at(slot).is_some_and(|count| count + changed(c.key) > 0));
        let unknown = delta.existing_anti_affinity.iter().any(|(key, by)| {
            *by > 0
                && labels.get(*key).is_some()
                && !existing_anti_affinity.clone().any(|c| c.key == *key)
        });
        if known || unknown {
            return no(Code::Unschedulable, Reason::ExistingAntiAffinity);
        }
        None
    }

    /// Returns true if all domains of the node have pods that match the affinity, or if no domain
    /// has any and the pod matches itself.
    fn satisfies_affinity(&self, slot: u32, delta: &AffinityDelta) -> bool {
        let mut domains = self.affinity_domains;
        let mut satisfied = true;
        for (n, counts) in self.affinity.iter().enumerate() {
            let Some(count) = counts.at(slot) else { return false };
            let now = count + at(&delta.affinity, n);
            domains += i64::from(now != 0) - i64::from(count != 0);
            satisfied &= now > 0;
        }
        satisfied || (domains == 0 && self.satisfies_itself)
    }
}

/// Returns raw scores of the preferred terms for the feasible nodes, in their order; `None` if no
/// term matches.
pub(crate) fn scores(
    shape: &PodShape,
    cluster: &Cluster,
    profile: &Profile,
    tables: &mut Tables,
    fitting: &[u32],
) -> Option<Vec<i64>> {
    let own = !(shape.preferred_affinity.is_empty() && shape.preferred_anti_affinity.is_empty());
    let mut sums: Vec<Counts> = Vec::new();
    let mut touched = false;
    let mut add = |term: &PodTerm, weight: i64, entry: &ShapeEntry, tables: &mut Tables| {
        let counts = counts_of(&mut sums, term.key, cluster, tables);
        counts.add(entry, weight);
        touched |= entry.placed.keys().any(|slot| counts.domains.of(*slot).is_some());
    };
    if own {
        for other in cluster.shapes.on_nodes() {
            for (weight, term) in &shape.preferred_affinity {
                if term_of_new(term, &other.shape, cluster) {
                    add(term, *weight, other, tables);
                }
            }
            for (weight, term) in &shape.preferred_anti_affinity {
                if term_of_new(term, &other.shape, cluster) {
                    add(term, -*weight, other, tables);
                }
            }
        }
    }
    // The setting applies to pods without preferred terms of their own; for others every term
    // counts.
    if own || !profile.ignore_preferred_of_existing {
        for other in cluster.shapes.with_terms() {
            if profile.hard_affinity_weight > 0 {
                for term in &other.shape.affinity {
                    if term_of_old(term, shape, cluster) {
                        add(term, profile.hard_affinity_weight, other, tables);
                    }
                }
            }
            for (weight, term) in &other.shape.preferred_affinity {
                if term_of_old(term, shape, cluster) {
                    add(term, *weight, other, tables);
                }
            }
            for (weight, term) in &other.shape.preferred_anti_affinity {
                if term_of_old(term, shape, cluster) {
                    add(term, -*weight, other, tables);
                }
            }
        }
    }
    touched.then(|| {
        let score = |slot: &u32| sums.iter().filter_map(|c| c.at(*slot)).sum();
        fitting.iter().map(score).collect()
    })
}

/// Normalises scores to 0 to 100, in floats as upstream does.
pub(crate) fn normalise(raw: &[i64]) -> Vec<i64> {
    let lowest = raw.iter().min().copied().unwrap_or(0);
    let highest = raw.iter().max().copied().unwrap_or(0);
    let range = highest - lowest;
    let one = |raw: &i64| {
        if range == 0 { 0 } else { (100.0 * ((raw - lowest) as f64 / range as f64)) as i64 }
    };
    raw.iter().map(one).collect()
}
