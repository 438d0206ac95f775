//! The scheduler's profile: the enabled plugins and their arguments.
//!
//! Main types: [`Settings`], the caller's choices, and [`Profile`], built from a profile of a
//! `kubescheduler.config.k8s.io/v1` configuration (`plugins` and `pluginConfig`). Arguments of
//! unknown plugins are ignored.

use objects::types;
use serde::Deserialize;
use serde_json::Value;
use thiserror::Error;

use crate::interner::{Interner, Symbol};
use crate::labels::{Labels, NodeTerm, NodeTerms};
use crate::object::objects;
use crate::resources::Resource;
use crate::shape::{self, Spread};
use crate::verdict::Plugin;

/// The number of nodes that are evaluated for one pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Search {
    /// All nodes.
    #[default]
    AllNodes,
    /// Upstream's default: a share that decreases with the number of nodes.
    Adaptive,
    /// Until this percentage of the nodes is feasible.
    Percentage(u8),
}

/// The caller's choices.
#[derive(Debug, Clone, Default)]
pub struct Settings {
    /// A profile of upstream's configuration: `{pluginConfig, plugins}`. `Null` is the default one.
    pub profile: Value,
    /// Gate `QOSResources`: class capacities are counted.
    pub qos_resources: bool,
    /// Gate `TaintTolerationComparisonOperators`: tolerations with `Gt` and `Lt`.
    pub compare_taints: bool,
    /// The weight of the score for free class capacity; zero disables it.
    pub class_score_weight: i64,
    pub search: Search,
}

/// The reason why a configuration is rejected.
#[derive(Debug, Error)]
pub enum ProfileError {
    #[error("failed to parse the scheduler profile")]
    Unreadable(#[source] serde_json::Error),
    #[error("failed to parse the arguments of {plugin}")]
    Arguments { plugin: Plugin, source: serde_json::Error },
    #[error("{plugin}: unknown scoring strategy {name:?}")]
    Strategy { plugin: Plugin, name: String },
    #[error("{plugin}: the utilizations of the shape points must increase")]
    Points { plugin: Plugin },
}

/// The strategy that turns the requested share of a node into a score.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Strategy {
    LeastAllocated,
    MostAllocated,
    /// Points of utilisation in per cent and score from 0 to 100.
    Ratio(Vec<(i64, i64)>),
}

#[derive(Debug, Clone)]
pub(crate) struct Profile {
    /// Plugins of PreFilter, Filter and PostFilter, one bit each.
    pre_filters: u64,
    filters: u64,
    post_filters: u64,
    /// Score plugins with their weights.
    weights: Vec<(Plugin, i64)>,
    pub(crate) compare_taints: bool,
    pub(crate) qos_resources: bool,
    pub(crate) search: Search,
    pub(crate) strategy: Strategy,
    pub(crate) fit_resources: Vec<(Resource, i64)>,
    pub(crate) ignored: Vec<Symbol>,
    pub(crate) ignored_groups: Vec<String>,
    pub(crate) balanced: Vec<Resource>,
    /// Points of utilisation in per cent and score from 0 to 100, for volumes that would be bound.
    pub(crate) volume_points: Vec<(i64, i64)>,
    pub(crate) hard_affinity_weight: i64,
    pub(crate) ignore_preferred_of_existing: bool,
    pub(crate) added_required: Option<NodeTerms>,
    pub(crate) added_preferred: Vec<(i64, NodeTerm)>,
    pub(crate) spread_defaults: Vec<Spread>,
    /// The default constraints are upstream's system defaults: nodes may lack their labels.
    pub(crate) system_spread: bool,
    pub(crate) candidates_percentage: usize,
    pub(crate) candidates_least: usize,
}

/// Upstream's weights.
const WEIGHTS: [(Plugin, i64); 8] = [
    (Plugin::TaintToleration, 3),
    (Plugin::NodeAffinity, 2),
    (Plugin::PodTopologySpread, 2),
    (Plugin::InterPodAffinity, 2),
    (Plugin::NodeResourcesFit, 1),
    (Plugin::NodeResourcesBalancedAllocation, 1),
    (Plugin::ImageLocality, 1),
    (Plugin::VolumeBinding, 1),
];

impl Profile {
    pub(crate) fn new(
        settings: &Settings,
        symbols: &mut Interner,
    ) -> Result<Profile, ProfileError> {
        let raw: RawProfile = match &settings.profile {
            Value::Null => RawProfile::default(),
            profile => RawProfile::deserialize(profile).map_err(ProfileError::Unreadable)?,
        };
        let (cpu, memory) = (Resource::Cpu, Resource::FilterCache);
        let mut profile = Profile {
            pre_filters: u64::MAX,
            filters: u64::MAX,
            post_filters: u64::MAX,
            weights: WEIGHTS.to_vec(),
            compare_taints: settings.compare_taints,
            qos_resources: settings.qos_resources,
            search: settings.search,
            strategy: Strategy::LeastAllocated,
            fit_resources: vec![(cpu, 1), (memory, 1)],
            ignored: Vec::new(),
            ignored_groups: Vec::new(),
            balanced: vec![cpu, memory],
            // The more of a volume is left unused, the better.
            volume_points: vec![(0, 100), (100, 0)],
            hard_affinity_weight: 1,
            ignore_preferred_of_existing: false,
            added_required: None,
            added_preferred: Vec::new(),
            // Upstream's system defaults.
            spread_defaults: vec![
                Spread::default_constraint("kubernetes.io/hostname", 3, false, symbols),
                Spread::default_constraint("topology.kubernetes.io/zone", 5, false, symbols),
            ],
            system_spread: true,
            candidates_percentage: 10,
            candidates_least: 100,
        };
        if settings.class_score_weight > 0 && settings.qos_resources {
            profile.weights.push((Plugin::QosResources, bounded(settings.class_score_weight)));
        }
        profile.choose_plugins(&raw.plugins);
        if let Some(share) = raw.percentage_of_nodes_to_score {
            profile.search = Search::Percentage(share.min(100) as u8);
        }
        for config in &raw.plugin_config {
            if let Some(plugin) = Plugin::from_name(&config.name) {
                profile.configure(plugin, &config.args, symbols)?;
            }
        }
        Ok(profile)
    }

    fn choose_plugins(&mut self, plugins: &RawPlugins) {
        let everywhere = &plugins.multi_point;
        choose(&mut self.pre_filters, &[everywhere, &plugins.pre_filter]);
        choose(&mut self.filters, &[everywhere, &plugins.filter]);
        choose(&mut self.post_filters, &[everywhere, &plugins.post_filter]);
        for point in [everywhere, &plugins.score] {
            for disabled in &point.disabled {
                self.disable_score(&disabled.name);
            }
            for enabled in &point.enabled {
                self.enable_score(enabled);
            }
        }
    }

    fn disable_score(&mut self, name: &str) {
        self.weights.retain(|(plugin, _)| name != "*" && plugin.name() != name);
    }

    fn enable_score(&mut self, enabled: &RawPlugin) {
        let Some(plugin) = Plugin::from_name(&enabled.name) else { return };
        // Only score plugins can be enabled. One without a weight gets weight one, not its default.
        if !WEIGHTS.iter().any(|(p, _)| *p == plugin) {
            return;
        }
        let weight = if enabled.weight == 0 { 1 } else { bounded(enabled.weight) };
        match self.weights.iter_mut().find(|(p, _)| *p == plugin) {
            Some((_, old)) => *old = weight,
            None => self.weights.push((plugin, weight)),
        }
    }

    fn configure(
        &mut self,
        plugin: Plugin,
        args: &Value,
        symbols: &mut Interner,
    ) -> Result<(), ProfileError> {
        let unreadable = |source| ProfileError::Arguments { plugin, source };
        match plugin {
            Plugin::NodeResourcesFit => {
                let args = FitArgs::deserialize(args).map_err(unreadable)?;
                self.ignored = args.ignored_resources.iter().map(|r| symbols.intern(r)).collect();
                self.ignored_groups = args.ignored_resource_groups;
                let Some(strategy) = args.scoring_strategy else { return Ok(()) };
                if !strategy.resources.is_empty() {
                    let weighted = |r: &RawResource| {
                        let weight = if r.weight == 0 { 1 } else { bounded(r.weight) };
                        Some((Resource::new(&r.name, symbols)?, weight))
                    };
                    self.fit_resources = strategy.resources.iter().filter_map(weighted).collect();
                }
                self.strategy = match strategy.kind.as_str() {
                    "" | "LeastAllocated" => Strategy::LeastAllocated,
                    "MostAllocated" => Strategy::MostAllocated,
                    "RequestedToCapacityRatio" => {
                        let points = points(&strategy.requested_to_capacity_ratio.shape);
                        let points = points.ok_or(ProfileError::Points { plugin })?;
                        Strategy::Ratio(points)
                    }
                    name => return Err(ProfileError::Strategy { plugin, name: name.to_owned() }),
                };
            }
            Plugin::NodeResourcesBalancedAllocation => {
                let args = BalancedArgs::deserialize(args).map_err(unreadable)?;
                if !args.resources.is_empty() {
                    let names = args.resources.iter();
                    self.balanced = names.filter_map(|r| Resource::new(&r.name, symbols)).collect();
                }
            }
            Plugin::VolumeBinding => {
                let args = VolumeArgs::deserialize(args).map_err(unreadable)?;
                if !args.shape.is_empty() {
                    self.volume_points =
                        points(&args.shape).ok_or(ProfileError::Points { plugin })?;
                }
            }
            Plugin::InterPodAffinity => {
                let args = AffinityArgs::deserialize(args).map_err(unreadable)?;
                self.hard_affinity_weight = args.hard_pod_affinity_weight.map_or(1, shape::weight);
                self.ignore_preferred_of_existing = args.ignore_preferred_terms_of_existing_pods;
            }
            Plugin::NodeAffinity => {
                let args = NodeAffinityArgs::deserialize(args).map_err(unreadable)?;
                let added = args.added_affinity.as_ref();
                let (required, preferred) = shape::node_terms(added, symbols);
                self.added_required = required;
                self.added_preferred = preferred.into();
            }
            Plugin::PodTopologySpread => {
                let args = SpreadArgs::deserialize(args).map_err(unreadable)?;
                if args.defaulting_type == "List" || !args.default_constraints.is_empty() {
                    self.system_spread = false;
                    let none = Labels::default();
                    let constraints = args.default_constraints.iter();
                    self.spread_defaults =
                        constraints.map(|c| Spread::new(c, &none, symbols)).collect();
                }
            }
            Plugin::DefaultPreemption => {
                let args = PreemptionArgs::deserialize(args).map_err(unreadable)?;
                let set = |place: &mut usize, value: Option<usize>| {
                    *place = value.unwrap_or(*place);
                };
                set(&mut self.candidates_percentage, args.min_candidate_nodes_percentage);
                set(&mut self.candidates_least, args.min_candidate_nodes_absolute);
            }
            _ => {}
        }
        Ok(())
    }

    pub(crate) fn filters_by(&self, plugin: Plugin) -> bool {
        self.filters & bit(plugin) != 0 && (plugin != Plugin::QosResources || self.qos_resources)
    }

    pub(crate) fn pre_filters_by(&self, plugin: Plugin) -> bool {
        self.pre_filters & bit(plugin) != 0
    }

    /// Returns true if a plugin runs at PostFilter.
    pub(crate) fn post_filters_by(&self, plugin: Plugin) -> bool {
        self.post_filters & bit(plugin) != 0
    }

    /// Returns the weight of a score plugin; `None` if it is disabled.
    pub(crate) fn weight(&self, plugin: Plugin) -> Option<i64> {
        self.weights.iter().find(|(p, _)| *p == plugin).map(|(_, weight)| *weight)
    }

    pub(crate) fn scores(&self) -> bool {
        !self.weights.is_empty()
    }

    /// Returns the number of feasible nodes at which the search stops.
    pub(crate) fn enough(&self, nodes: usize) -> usize {
        // Upstream evaluates all of up to a hundred nodes, and stops at no fewer than a hundred.
        const LEAST: usize = 100;
        if !self.scores() {
            return 1;
        }
        let share = match self.search {
            Search::AllNodes => return nodes,
            _ if nodes < LEAST => return nodes,
            Search::Percentage(0) | Search::Adaptive => {
                (50_usize.saturating_sub(nodes / 125)).max(5)
            }
            Search::Percentage(share) => usize::from(share.min(100)),
        };
        (nodes * share / 100).max(LEAST).min(nodes)
    }
}

/// Returns the points of a line, with scores scaled from 10 to 100; `None` if utilisation does not
/// increase.
fn points(shape: &[RawShapePoint]) -> Option<Vec<(i64, i64)>> {
    let point = |p: &RawShapePoint| (p.utilization.clamp(0, 100), p.score.clamp(0, 10) * 10);
    let points: Vec<_> = shape.iter().map(point).collect();
    let rising = points.windows(2).all(|pair| pair[0].0 < pair[1].0);
    (rising && !points.is_empty()).then_some(points)
}

fn bit(plugin: Plugin) -> u64 {
    1 << plugin as u64
}

/// Removes and adds plugins of a set, one list after the other.
fn choose(set: &mut u64, points: &[&RawPoint]) {
    for point in points {
        for disabled in &point.disabled {
            match Plugin::from_name(&disabled.name) {
                Some(plugin) => *set &= !bit(plugin),
                None if disabled.name == "*" => *set = 0,
                None => {}
            }
        }
        for plugin in point.enabled.iter().filter_map(|p| Plugin::from_name(&p.name)) {
            *set |= bit(plugin);
        }
    }
}

/// Bounds a weight so that sums do not overflow.
fn bounded(weight: i64) -> i64 {
    weight.clamp(0, i64::from(i32::MAX))
}

objects! {
    struct RawProfile {
        plugins: RawPlugins,
        plugin_config: Vec<RawConfig>,
        percentage_of_nodes_to_score: Option<u32>,
    }
    struct RawPlugins {
        multi_point: RawPoint,
        pre_filter: RawPoint,
        filter: RawPoint,
        post_filter: RawPoint,
        score: RawPoint,
    }
    struct RawPoint {
        enabled: Vec<RawPlugin>,
        disabled: Vec<RawPlugin>,
    }
    struct RawPlugin {
        name: String,
        weight: i64,
    }
    struct RawConfig {
        name: String,
        args: Value,
    }
    struct FitArgs {
        ignored_resources: Vec<String>,
        ignored_resource_groups: Vec<String>,
        scoring_strategy: Option<RawStrategy>,
    }
    struct RawStrategy {
        #[serde(rename = "type")]
        kind: String,
        resources: Vec<RawResource>,
        requested_to_capacity_ratio: RawRatio,
    }
    struct RawResource {
        name: String,
        weight: i64,
    }
    struct RawRatio {
        shape: Vec<RawShapePoint>,
    }
    struct RawShapePoint {
        utilization: i64,
        score: i64,
    }
    struct BalancedArgs {
        resources: Vec<RawResource>,
    }
    struct VolumeArgs {
        shape: Vec<RawShapePoint>,
    }
    struct AffinityArgs {
        hard_pod_affinity_weight: Option<i64>,
        ignore_preferred_terms_of_existing_pods: bool,
    }
    struct NodeAffinityArgs {
        added_affinity: Option<types::NodeAffinity>,
    }
    struct SpreadArgs {
        defaulting_type: String,
        default_constraints: Vec<types::TopologySpreadConstraint>,
    }
    struct PreemptionArgs {
        min_candidate_nodes_percentage: Option<usize>,
        min_candidate_nodes_absolute: Option<usize>,
    }
}
