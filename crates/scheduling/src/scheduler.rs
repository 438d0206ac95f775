//! Scheduling attempts: the node of a pod, or the reasons why none fits.
//!
//! Main type: [`Scheduler`]. It holds the [`Cluster`], its settings and a cache between attempts:
//! for each pod shape and node, the results of the local filters and scores until either changes.
//! An attempt does not change the cluster; its decision is in [`Attempt`].

use std::collections::BTreeMap;

use thiserror::Error;

use crate::cache::FilterCache;
use crate::cluster::{Cluster, PodId};
use crate::filters::Cycle;
use crate::preempt::{self, NotEligible, PreemptionSearch};
use crate::profile::{Profile, ProfileError, Settings};
use crate::score::ScoreTable;
use crate::shape::PodShape;
use crate::topology::Tables;
use crate::verdict::{Code, Histogram, Plugin, Reason, Rejection, Verdict};

/// The choice among equally good nodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Tie {
    #[default]
    FirstByName,
    /// A pseudo-random choice that depends only on the seed.
    Seed(u64),
}

/// The reason why no attempt was made.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum AttemptError {
    #[error("unknown pod {0:?}")]
    UnknownPod(String),
    #[error("pod {pod:?} is already on node {node:?}")]
    HasNode { pod: String, node: String },
}

/// The result of an attempt.
#[derive(Debug, Clone, PartialEq)]
pub struct Attempt {
    /// `namespace/name`.
    pub pod: String,
    pub outcome: Outcome,
}

#[derive(Debug, Clone, PartialEq)]
pub enum Outcome {
    Scheduled(Choice),
    Unschedulable(Box<Failure>),
    /// Scheduling gates hold the pod back.
    Gated,
}

/// The message of a gated pod.
pub const GATED_MESSAGE: &str = "Scheduling is blocked due to non-empty scheduling gates";

/// The selected node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Choice {
    pub node: String,
    /// The number of equally good nodes.
    pub ties: usize,
    /// The number of feasible nodes.
    pub feasible: usize,
    /// The nominated node was tried first, and it fits.
    pub via_nominated_node: bool,
}

/// The reasons why no node fits.
#[derive(Debug, Clone, PartialEq)]
pub struct Failure {
    /// The message of the PodScheduled condition.
    pub message: String,
    /// The rejecting plugins, in order of name.
    pub plugins: Vec<Plugin>,
    /// Set if the pod was rejected at PreFilter.
    pub pre_filter: Option<Verdict>,
    pub preemption: Option<Preemption>,
    /// The pod's nomination after the attempt.
    pub nomination: Nomination,
}

impl Failure {
    /// Returns the message, cut to the size of an event.
    #[must_use]
    pub fn event_message(&self) -> String {
        event_text(&self.message)
    }
}

/// Cuts a message to the 1024 bytes that an event can hold.
#[must_use]
pub fn event_text(message: &str) -> String {
    const LONGEST: usize = 1024;
    const CUT: &str = " ...";
    if message.len() <= LONGEST {
        return message.to_owned();
    }
    let mut end = LONGEST - CUT.len();
    while !message.is_char_boundary(end) {
        end -= 1;
    }
    format!("{}{CUT}", message.get(..end).unwrap_or_default())
}

/// The nominated node of a pod after a failed attempt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Nomination {
    /// The nomination stays.
    Unchanged,
    None,
    To(String),
}

/// A preemption that would make the pod fit.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Preemption {
    pub candidates: BTreeMap<String, Candidate>,
    /// Nodes that are equally good, in order of name.
    pub best: Vec<String>,
    pub nominated: Option<String>,
    /// Pods to be deleted, the most important first.
    pub victims: Vec<String>,
    /// Nodes on which preemption does not help, with the reasons.
    pub no_help: BTreeMap<String, Verdict>,
    /// Pods with lower priority that lose their nomination to the node.
    pub displaced: Vec<String>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Candidate {
    pub victims: Vec<String>,
    pub pdb_violations: usize,
}

/// An attempt with the data that led to it.
#[derive(Debug, Clone, PartialEq)]
pub struct Explanation {
    pub attempt: Attempt,
    /// Feasible nodes, in order of name.
    pub feasible: Vec<String>,
    /// The first rejection of each other node.
    pub filtered: BTreeMap<String, Verdict>,
    /// The rejections of every plugin.
    pub all_failures: BTreeMap<String, BTreeMap<Plugin, Vec<String>>>,
    /// Empty if no node was scored.
    pub scores: BTreeMap<String, NodeScores>,
    /// The nodes with the highest total, in order of name.
    pub best: Vec<String>,
}

/// The scores of a node.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct NodeScores {
    /// By plugin: raw, normalised, weighted.
    pub plugins: BTreeMap<Plugin, [i64; 3]>,
    pub total: i64,
}

/// The cluster, the settings and the cache.
#[derive(Debug)]
pub struct Scheduler {
    cluster: Cluster,
    profile: Profile,
    tables: Tables,
    cache: FilterCache,
    /// The position in the list of nodes at which the next partial search starts.
    start: usize,
}

impl Scheduler {
    pub fn new(settings: &Settings) -> Result<Scheduler, ProfileError> {
        let mut cluster = Cluster::new();
        let profile = Profile::new(settings, &mut cluster.symbols)?;
        Ok(Scheduler {
            cluster,
            profile,
            tables: Tables::default(),
            cache: FilterCache::default(),
            start: 0,
        })
    }

    #[must_use]
    pub fn cluster(&self) -> &Cluster {
        &self.cluster
    }

    /// Returns the cluster for updates.
    pub fn cluster_mut(&mut self) -> &mut Cluster {
        &mut self.cluster
    }

    /// Selects a node for a pod, by `namespace/name`.
    pub fn attempt(&mut self, pod: &str, tie: Tie) -> Result<Attempt, AttemptError> {
        Ok(self.run(pod, tie, false)?.attempt)
    }

    /// Like [`Scheduler::attempt`], with the data that led to the decision.
    pub fn explain(&mut self, pod: &str, tie: Tie) -> Result<Explanation, AttemptError> {
        self.run(pod, tie, true)
    }

    /// Applies the decision of an attempt to the cluster: the assumed node, or the nomination.
    /// Victims are removed when the API reports it.
    pub fn adopt(&mut self, attempt: &Attempt) {
        match &attempt.outcome {
            Outcome::Scheduled(choice) => self.cluster.assume(&attempt.pod, &choice.node),
            Outcome::Unschedulable(failure) => {
                match &failure.nomination {
                    Nomination::Unchanged => {}
                    Nomination::None => self.cluster.nominate(&attempt.pod, None),
                    Nomination::To(node) => self.cluster.nominate(&attempt.pod, Some(node)),
                }
                for pod in failure.preemption.iter().flat_map(|p| &p.displaced) {
                    self.cluster.nominate(pod, None);
                }
            }
            Outcome::Gated => {}
        }
    }

    fn run(&mut self, pod: &str, tie: Tie, explain: bool) -> Result<Explanation, AttemptError> {
        let Scheduler { cluster, profile, tables, cache, start } = self;
        let unknown = || AttemptError::UnknownPod(pod.to_owned());
        let id = cluster.id(pod).ok_or_else(unknown)?;
        let (entry, shape) = cluster.pod_with_shape(id).ok_or_else(unknown)?;
        if let Some(node) = entry.node {
            let node = cluster.symbols.text(node).to_owned();
            return Err(AttemptError::HasNode { pod: pod.to_owned(), node });
        }
        let mut report =
            Report { cluster, profile, explain, explanation: blank(pod, Outcome::Gated) };
        if !entry.gates.is_empty() {
            return Ok(report.explanation);
        }
        if cluster.order.is_empty() {
            let message = "no nodes available to schedule pods".to_owned();
            report.fail(message, Vec::new(), None, None, Nomination::None);
            return Ok(report.explanation);
        }
        let cycle = match Cycle::new(cluster, profile, tables, id, entry, shape) {
            Ok(cycle) => cycle,
            Err(rejection) => {
                report.reject_pod(shape, &rejection);
                return Ok(report.explanation);
            }
        };
        if let Some(slot) = entry.nominated.and_then(|node| cluster.slot_of(node))
            && let Some(node) = cluster.node(slot)
            && cycle.check(slot, node).is_none()
        {
            report.chosen(slot, &[slot], 1, true);
            report.all_failures(&cycle);
            return Ok(report.explanation);
        }
        let view = cache.of(&cycle);
        let mut search = Search::default();
        search.run(&cycle, view, start);
        report.filtered(&search);
        report.all_failures(&cycle);
        match search.fitting.as_slice() {
            [] => report.no_feasible_node(&cycle, &search, tie),
            [only] => report.chosen(*only, &[*only], 1, false),
            fitting if !profile.scores() => report.chosen(fitting[0], &fitting[..1], 1, false),
            fitting => {
                let local: Vec<_> = fitting.iter().map(|slot| view.scores(*slot)).collect();
                let mut table = ScoreTable::new(explain);
                table.fill(shape, cluster, profile, tables, fitting, &local);
                if let Some(weight) = profile.weight(Plugin::VolumeBinding)
                    && let Some(scores) = cycle.volume_scores(fitting)
                {
                    table.add_plain(Plugin::VolumeBinding, weight, &scores);
                }
                let highest = table.totals.iter().max().copied().unwrap_or(0);
                let of_highest = fitting.iter().zip(&table.totals).filter(|(_, t)| **t == highest);
                let best: Vec<u32> = of_highest.map(|(slot, _)| *slot).collect();
                report.scored(fitting, &table);
                let chosen = pick(cluster, &best, tie);
                report.chosen(chosen, &best, fitting.len(), false);
            }
        }
        Ok(report.explanation)
    }
}

fn blank(pod: &str, outcome: Outcome) -> Explanation {
    Explanation {
        attempt: Attempt { pod: pod.to_owned(), outcome },
        feasible: Vec::new(),
        filtered: BTreeMap::new(),
        all_failures: BTreeMap::new(),
        scores: BTreeMap::new(),
        best: Vec::new(),
    }
}

/// Returns one of at least one equally good nodes.
fn pick(cluster: &Cluster, best: &[u32], tie: Tie) -> u32 {
    let chosen = match tie {
        Tie::FirstByName => best.iter().min_by_key(|slot| cluster.node_name(**slot)),
        Tie::Seed(seed) => best.get((scattered(seed) % (best.len() as u64).max(1)) as usize),
    };
    chosen.copied().unwrap_or(0)
}

/// Scatters consecutive numbers (the finaliser of splitmix64).
fn scattered(seed: u64) -> u64 {
    let mut x = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

/// The results of the filters.
#[derive(Default)]
pub(crate) struct Search {
    /// Feasible nodes.
    fitting: Vec<u32>,
    /// Rejected nodes, with the index of their rejection.
    rejected: Vec<(u32, usize)>,
    rejections: Vec<Rejection>,
    /// Nodes that were skipped because the pod names others.
    excluded: Vec<u32>,
}

impl Search {
    fn run(&mut self, cycle: &Cycle<'_>, view: &mut crate::cache::ShapeCache, start: &mut usize) {
        let cluster = cycle.cluster;
        if let Some(names) = cycle.pinned() {
            for slot in &cluster.order {
                // The nominated node was tried before the names were considered.
                let is_named = cluster.node(*slot).is_some_and(|n| {
                    names.contains(&n.view.name) || cycle.entry.nominated == Some(n.view.name)
                });
                if is_named {
                    self.evaluate(cycle, view, *slot);
                } else {
                    self.excluded.push(*slot);
                }
            }
            return;
        }
        let nodes = &cluster.order;
        let enough = cycle.profile.enough(nodes.len());
        if enough >= nodes.len() {
            self.fitting.reserve(nodes.len());
            for slot in nodes {
                self.evaluate(cycle, view, *slot);
            }
            return;
        }
        let begin = *start % nodes.len();
        let (later, earlier) = nodes.split_at(begin);
        let mut evaluated = 0;
        for slot in earlier.iter().chain(later) {
            self.evaluate(cycle, view, *slot);
            evaluated += 1;
            if self.fitting.len() >= enough {
                break;
            }
        }
        *start = (begin + evaluated) % nodes.len();
    }

    fn evaluate(&mut self, cycle: &Cycle<'_>, view: &mut crate::cache::ShapeCache, slot: u32) {
        match view.check(cycle, slot) {
            None => self.fitting.push(slot),
            Some(rejection) => {
                let known = self.rejections.iter().position(|r| *r == *rejection);
                let number = known.unwrap_or_else(|| {
                    self.rejections.push(rejection.into_owned());
                    self.rejections.len() - 1
                });
                self.rejected.push((slot, number));
            }
        }
    }

    fn code_of(&self, slot: u32) -> Option<Code> {
        let number = self.rejected.iter().find(|(s, _)| *s == slot).map(|(_, n)| *n);
        match number {
            Some(number) => Some(self.rejections[number].code),
            None if self.excluded.contains(&slot) => Some(Code::UnschedulableAndUnresolvable),
            None => None,
        }
    }
}

/// Builds the result of an attempt.
struct Report<'a> {
    cluster: &'a Cluster,
    profile: &'a Profile,
    explain: bool,
    explanation: Explanation,
}

impl Report<'_> {
    fn name(&self, slot: u32) -> String {
        self.cluster.node_name(slot).to_owned()
    }

    fn names(&self, slots: &[u32]) -> Vec<String> {
        let mut names: Vec<_> = slots.iter().map(|slot| self.name(*slot)).collect();
        names.sort();
        names
    }

    fn key(&self, id: PodId) -> String {
        self.cluster.pod(id).map(|p| p.key.to_string()).unwrap_or_default()
    }

    fn chosen(&mut self, slot: u32, best: &[u32], feasible: usize, via_nominated_node: bool) {
        if self.explain {
            self.explanation.best = self.names(best);
            if via_nominated_node {
                self.explanation.feasible = vec![self.name(slot)];
            }
        }
        self.explanation.attempt.outcome = Outcome::Scheduled(Choice {
            node: self.name(slot),
            ties: best.len(),
            feasible,
            via_nominated_node,
        });
    }

    fn filtered(&mut self, search: &Search) {
        if !self.explain {
            return;
        }
        let symbols = &self.cluster.symbols;
        self.explanation.feasible = self.names(&search.fitting);
        for (slot, number) in &search.rejected {
            let verdict = search.rejections[*number].render(symbols);
            self.explanation.filtered.insert(self.name(*slot), verdict);
        }
        for slot in &search.excluded {
            let verdict = Rejection::without_plugin(Reason::NotPinned).render(symbols);
            self.explanation.filtered.insert(self.name(*slot), verdict);
        }
    }

    fn all_failures(&mut self, cycle: &Cycle<'_>) {
        if !self.explain {
            return;
        }
        for slot in &self.cluster.order {
            let Some(node) = self.cluster.node(*slot) else { continue };
            let failures = cycle.all_failures(*slot, node);
            let by_plugin: BTreeMap<Plugin, Vec<String>> = failures
                .iter()
                .filter_map(|r| Some((r.plugin?, r.render(&self.cluster.symbols).reasons)))
                .collect();
            if !by_plugin.is_empty() {
                self.explanation.all_failures.insert(self.name(*slot), by_plugin);
            }
        }
    }

    fn scored(&mut self, fitting: &[u32], table: &ScoreTable) {
        if !self.explain {
            return;
        }
        for (n, slot) in fitting.iter().enumerate() {
            let plugins = table
                .columns
                .iter()
                .map(|c| (c.plugin, [c.raw[n], c.normalised[n], c.weight * c.normalised[n]]));
            let scores = NodeScores { plugins: plugins.collect(), total: table.totals[n] };
            self.explanation.scores.insert(self.name(*slot), scores);
        }
    }

    fn fail(
        &mut self,
        message: String,
        mut plugins: Vec<Plugin>,
        pre_filter: Option<Verdict>,
        preemption: Option<Preemption>,
        nomination: Nomination,
    ) {
        plugins.sort_by_key(|p| p.name());
        plugins.dedup();
        let failure = Failure { message, plugins, pre_filter, preemption, nomination };
        self.explanation.attempt.outcome = Outcome::Unschedulable(Box::new(failure));
    }

    /// Returns the nomination if no PostFilter plugin sets one: it is cleared if no PostFilter
    /// plugin is enabled.
    fn default_nomination(&self) -> Nomination {
        let asked = [Plugin::DynamicResources, Plugin::DefaultPreemption];
        if asked.iter().any(|plugin| self.profile.post_filters_by(*plugin)) {
            Nomination::Unchanged
        } else {
            Nomination::None
        }
    }

    /// Rejects the pod at PreFilter; preemption would not help.
    fn reject_pod(&mut self, shape: &PodShape, rejection: &Rejection) {
        let verdict = rejection.render(&self.cluster.symbols);
        let nodes = self.cluster.node_count();
        let mut message = format!("0/{nodes} nodes are available: {}.", verdict.reasons.join(", "));
        let mut nomination = self.default_nomination();
        if self.profile.post_filters_by(Plugin::DynamicResources) {
            // Upstream's text, from a plugin that finds nothing to do.
            message += " not found";
        } else if self.profile.post_filters_by(Plugin::DefaultPreemption) {
            let outcome = if shape.preempts {
                nomination = Nomination::None;
                let mut reasons = Histogram::default();
                let no_help = Rejection::without_plugin(Reason::NoHelp);
                reasons.add(&no_help, nodes, &self.cluster.symbols);
                reasons.render(nodes)
            } else {
                NotEligible::Never.text().to_owned()
            };
            message += &format!(" preemption: {outcome}");
        }
        let plugins = rejection.plugin.into_iter().collect();
        self.fail(message, plugins, Some(verdict), None, nomination);
    }

    fn no_feasible_node(&mut self, cycle: &Cycle<'_>, search: &Search, tie: Tie) {
        let cluster = self.cluster;
        let symbols = &cluster.symbols;
        let mut reasons = Histogram::default();
        for (number, rejection) in search.rejections.iter().enumerate() {
            let times = search.rejected.iter().filter(|(_, n)| *n == number).count();
            reasons.add(rejection, times, symbols);
        }
        let not_pinned = Rejection::without_plugin(Reason::NotPinned);
        reasons.add(&not_pinned, search.excluded.len(), symbols);
        let message = reasons.render(cluster.node_count());
        let mut plugins: Vec<Plugin> = search.rejections.iter().filter_map(|r| r.plugin).collect();
        if cycle.pinned().is_some() {
            plugins.push(Plugin::NodeAffinity);
        }
        if !self.profile.post_filters_by(Plugin::DefaultPreemption) {
            let nomination = self.default_nomination();
            return self.fail(message, plugins, None, None, nomination);
        }
        let waits_for = cycle.entry.nominated.and_then(|node| cluster.slot_of(node));
        let on_nominated = waits_for.and_then(|slot| search.code_of(slot));
        if let Err(not_eligible) = preempt::eligible(cycle, on_nominated) {
            let message = format!("{message} preemption: {}", not_eligible.text());
            return self.fail(message, plugins, None, None, Nomination::Unchanged);
        }
        let helpable: Vec<u32> = search
            .rejected
            .iter()
            .filter(|(_, number)| search.rejections[*number].code == Code::Unschedulable)
            .map(|(slot, _)| *slot)
            .collect();
        let offset = match tie {
            Tie::FirstByName => 0,
            Tie::Seed(seed) => scattered(seed) as usize,
        };
        let found = preempt::find(cycle, &helpable, offset);
        let mut preemption = self.preemption(&found);
        if found.best.is_empty() {
            let mut reasons = Histogram::default();
            for (_, rejection) in &found.no_help {
                reasons.add(rejection, 1, symbols);
            }
            let others = cluster.node_count() - found.no_help.len();
            reasons.add(&Rejection::without_plugin(Reason::NoHelp), others, symbols);
            let text = reasons.render(cluster.node_count());
            let preemption = (!found.no_help.is_empty()).then_some(preemption);
            let message = format!("{message} preemption: {text}");
            return self.fail(message, plugins, None, preemption, Nomination::None);
        }
        let slots: Vec<u32> = found.best.iter().map(|n| found.candidates[*n].slot).collect();
        let chosen = pick(cluster, &slots, tie);
        let node = self.name(chosen);
        let victims = found.candidates.iter().find(|c| c.slot == chosen);
        preemption.victims =
            victims.map(|c| c.victims.iter().map(|id| self.key(*id)).collect()).unwrap_or_default();
        preemption.best = self.names(&slots);
        preemption.nominated = Some(node.clone());
        let waiting = cluster.node(chosen).into_iter().flat_map(|n| &n.nominated);
        let lower = waiting.filter(|id| {
            let pod_with_shape = cluster.pod_with_shape(**id);
            **id != cycle.id
                && pod_with_shape.is_some_and(|(_, s)| s.priority < cycle.shape.priority)
        });
        preemption.displaced = lower.map(|id| self.key(*id)).collect();
        let message = format!(
            "{message} preemption: found a potential placement for pod on node {node}, preempting \
             {} victims",
            preemption.victims.len()
        );
        self.fail(message, plugins, None, Some(preemption), Nomination::To(node));
    }

    fn preemption(&self, found: &PreemptionSearch) -> Preemption {
        let mut preemption = Preemption::default();
        for candidate in &found.candidates {
            let victims = candidate.victims.iter().map(|id| self.key(*id)).collect();
            let shown = Candidate { victims, pdb_violations: candidate.violations };
            preemption.candidates.insert(self.name(candidate.slot), shown);
        }
        for (slot, rejection) in &found.no_help {
            let verdict = rejection.render(&self.cluster.symbols);
            preemption.no_help.insert(self.name(*slot), verdict);
        }
        preemption
    }
}
