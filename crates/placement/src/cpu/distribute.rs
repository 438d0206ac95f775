//! Distributes CPUs evenly over NUMA nodes (`distribute-cpus-across-numa`).
//!
//! Main entry: [`across_numa`]. The kubelet tries all combinations of 1, 2, 3 … nodes, and for
//! each all subsets that could take the remainder, and keeps the first that leaves the machine
//! best balanced (smallest standard deviation of free CPUs, to three decimals). That is
//! exponential in nodes. Here the same result is found without trying all:
//!
//! * After a full distribution the mean of free CPUs is fixed, so balance is the sum of squares,
//!   and taking from the node with more free CPUs is never worse. The best combination therefore
//!   consists of the fullest nodes, and a prefix of a combination is best completed with them.
//! * The *first* best combination in lexicographic order is then found by walking positions in
//!   order and skipping every prefix whose best completion is worse ([`Search`]). Nodes with as
//!   many free CPUs as one that failed at the same place fail too.
//! * For one combination, the best allocation of the remainder is found per subset size
//!   ([`Remainder`]).
//!
//! It always terminates: a subset that cannot take the remainder in whole groups is skipped.

#![allow(clippy::cast_possible_wrap, reason = "counts of CPUs and nodes, thousands at most")]

use smallvec::SmallVec;

use crate::cpuset::CpuSet;
use crate::numa::MAX_NODES;
use crate::topology::Topology;

use super::pick::{NotEnoughCpus, Order, Selection, packed};

/// Chooses `count` of the `free` CPUs, evenly over NUMA nodes, in multiples of `group`. With
/// `align_by_socket` nodes of one socket are preferred to a better balance, and a node may give
/// less than an even share.
pub fn across_numa(
    topology: &Topology,
    free: &CpuSet,
    count: usize,
    group: usize,
    align_by_socket: bool,
) -> Result<CpuSet, NotEnoughCpus> {
    let group = group.max(1);
    if !count.is_multiple_of(group) {
        return packed(topology, free, count, Order::Packed, false);
    }
    let mut selection = Selection::new(topology, free, count);
    if count == 0 {
        return Ok(selection.taken);
    }
    if selection.free.len() < count {
        return Err(NotEnoughCpus { requested: count, available: free.len() });
    }
    let nodes = selection.nodes_in_order();
    let problem = Problem {
        free: nodes.iter().map(|n| selection.free_in_node(*n as usize) as i64).collect(),
        sockets: if align_by_socket {
            socket_members(topology, &nodes)
        } else {
            Default::default()
        },
        count: count as i64,
        group: group as i64,
        partial_shares: align_by_socket,
    };
    let range = nodes_range(topology, nodes.len(), count, group);
    let Some(shares) = range.into_iter().find_map(|nodes| problem.solve(nodes)) else {
        return packed(topology, free, count, Order::Packed, false);
    };
    // First the even shares, then the remainder one group at a time, in rounds.
    for position in &shares.combination {
        take_from(&mut selection, topology, nodes[*position] as usize, shares.even);
    }
    for position in &shares.remainder {
        take_from(&mut selection, topology, nodes[*position] as usize, group);
    }
    debug_assert_eq!(selection.needed, 0, "shares add up to the request");
    Ok(selection.taken)
}

fn take_from(selection: &mut Selection<'_>, topology: &Topology, node: usize, count: usize) {
    let free = &topology.nodes()[node].cpus & &selection.free;
    // Shares never exceed what the node has free.
    if let Ok(cpus) = packed(topology, &free, count, Order::Packed, false) {
        selection.take(&cpus);
    }
}

/// The smallest and largest number of nodes worth trying.
fn nodes_range(
    topology: &Topology,
    available: usize,
    count: usize,
    group: usize,
) -> std::ops::RangeInclusive<usize> {
    let groups = topology.cpus().len().div_ceil(group);
    let groups_per_node = groups.div_ceil(topology.nodes_with_cpus().len());
    let groups_needed = count.div_ceil(group);
    groups_needed.div_ceil(groups_per_node)..=groups_needed.min(available)
}

/// For each socket the positions in `nodes` that lie wholly in it.
fn socket_members(topology: &Topology, nodes: &[u16]) -> Vec<Combination> {
    (0..topology.sockets().len() as u16)
        .map(|socket| {
            let inside = |p: &usize| topology.nodes()[nodes[*p] as usize].sockets == [socket];
            (0..nodes.len()).filter(inside).collect()
        })
        .collect()
}

/// Positions in the order in which nodes are tried.
type Combination = SmallVec<[usize; MAX_NODES]>;

/// Free CPUs per node in the order in which nodes are tried, and what is wanted of them.
struct Problem {
    free: SmallVec<[i64; MAX_NODES]>,
    /// Positions of each socket's nodes; empty if sockets do not matter.
    sockets: Vec<Combination>,
    count: i64,
    group: i64,
    /// True if a combination may give smaller even shares, limited by its smallest node.
    partial_shares: bool,
}

/// The shares of the nodes, in the order of taking.
struct Shares {
    combination: Combination,
    even: usize,
    /// One entry per group of the remainder.
    remainder: Combination,
}

impl Problem {
    /// The shares of the first best combination of `nodes` nodes.
    fn solve(&self, nodes: usize) -> Option<Shares> {
        let all: Combination = (0..self.free.len()).collect();
        let search = |candidates: &Combination| {
            let even = self.count / nodes as i64 / self.group * self.group;
            let balance = Balance::new(&self.free, self.count);
            Search { problem: self, candidates: candidates.clone(), nodes, even, balance }.run()
        };
        let in_one_socket = self.sockets.iter().filter_map(search);
        let best = in_one_socket
            .min_by(|a, b| a.score.cmp(&b.score).then_with(|| a.combination.cmp(&b.combination)));
        let best = best.or_else(|| search(&all))?;
        let even = self.even_share(&best.combination, nodes);
        let remainder =
            Remainder::of(self, &best.combination, even, &Balance::new(&self.free, self.count))
                .allocate()?
                .receivers;
        Some(Shares { combination: best.combination, even: even as usize, remainder })
    }

    fn even_share(&self, combination: &Combination, nodes: usize) -> i64 {
        let even = self.count / nodes as i64 / self.group * self.group;
        if !self.partial_shares {
            return even;
        }
        combination.iter().map(|p| self.whole_groups(*p)).min().unwrap_or(even).min(even)
    }

    /// Free CPUs of a node that make whole groups.
    fn whole_groups(&self, position: usize) -> i64 {
        self.free[position] / self.group * self.group
    }
}

/// Scores a machine after the distribution: lower is better balanced.
struct Balance {
    /// Σ free² before anything is taken.
    squares: i64,
    nodes: i64,
    /// Mean of free CPUs afterwards, in thousandths, rounded as the kubelet does.
    mean: i64,
    sum_after: i64,
}

impl Balance {
    fn new(free: &[i64], count: i64) -> Balance {
        let nodes = free.len() as i64;
        let sum_after = free.iter().sum::<i64>() - count;
        let mean = (sum_after as f64 / nodes as f64 * 1000.0).round() as i64;
        Balance { squares: free.iter().map(|f| f * f).sum(), nodes, mean, sum_after }
    }

    /// The standard deviation in thousandths, given how much Σ free² changed.
    fn score(&self, change: i64) -> i64 {
        let squares = (self.squares + change) as i128 * 1_000_000;
        let (nodes, mean, sum) = (self.nodes as i128, self.mean as i128, self.sum_after as i128);
        let variance = squares - 2 * mean * 1000 * sum + nodes * mean * mean;
        // Thousandths squared are millionths, so the root is already in thousandths.
        (variance as f64 / self.nodes as f64).sqrt().round() as i64
    }
}

/// The search for the first best combination of a fixed number of nodes.
struct Search<'a> {
    problem: &'a Problem,
    /// Positions combinations are made of, ascending.
    candidates: Combination,
    nodes: usize,
    /// CPUs every chosen node gives, unless partial shares are allowed.
    even: i64,
    balance: Balance,
}

struct Best {
    score: i64,
    combination: Combination,
}

impl Search<'_> {
    fn run(&self) -> Option<Best> {
        // The fullest nodes make a good combination; its score bounds the search.
        let fullest = self.complete(&Combination::new(), 0, self.even, None);
        let limit = fullest.and_then(|c| self.exact(&c)).unwrap_or(i64::MAX);
        let mut best = None;
        self.descend(&mut Combination::new(), 0, limit, &mut best);
        best
    }

    /// Walks combinations in lexicographic order, leaving out what cannot be first and best:
    /// nothing above `limit`, nothing that is not below the best so far.
    fn descend(&self, prefix: &mut Combination, from: usize, limit: i64, best: &mut Option<Best>) {
        let worth = |score: i64, best: &Option<Best>| match best {
            Some(best) => score < best.score,
            None => score <= limit,
        };
        if prefix.len() == self.nodes {
            if let Some(score) = self.exact(prefix).filter(|score| worth(*score, best)) {
                *best = Some(Best { score, combination: prefix.clone() });
            }
            return;
        }
        let missing = self.nodes - prefix.len();
        if self.candidates.len() < missing {
            return;
        }
        let mut failed: SmallVec<[i64; MAX_NODES]> = SmallVec::new();
        for at in from..=self.candidates.len() - missing {
            let position = self.candidates[at];
            let free = self.problem.free[position];
            if failed.contains(&free) {
                continue;
            }
            prefix.push(position);
            if self.bound(prefix, at + 1).is_some_and(|bound| worth(bound, best)) {
                self.descend(prefix, at + 1, limit, best);
            }
            prefix.pop();
            failed.push(free);
        }
    }

    /// Returns a lower bound on the score of combinations that start with `prefix`: the fullest
    /// nodes join, and beyond the even shares every group goes to the node with the most CPUs left.
    /// `None` if no combination is possible.
    fn bound(&self, prefix: &Combination, from: usize) -> Option<i64> {
        let problem = self.problem;
        let lowest = prefix.iter().map(|p| problem.whole_groups(*p)).min().unwrap_or(self.even);
        let even = self.even.min(lowest);
        if !problem.partial_shares {
            let whole = (even == self.even).then(|| self.complete(prefix, from, even, None))?;
            return Some(self.levelled(&whole?, even));
        }
        // A later node may lower the shares of all: one bound per share that can come of it.
        let mut bound = self.complete(prefix, from, even, None).map(|c| self.levelled(&c, even));
        if prefix.len() < self.nodes {
            for (at, position) in self.candidates.iter().enumerate().skip(from) {
                let lower = problem.whole_groups(*position);
                if lower < even {
                    let whole = self.complete(prefix, from, lower, Some(at));
                    let score = whole.map(|c| self.levelled(&c, lower));
                    bound = bound.into_iter().chain(score).min();
                }
            }
        }
        bound
    }

    /// `prefix`, the candidate `also`, and the fullest candidates from `from` on that can give
    /// `even`; `None` if there are too few or they cannot hold the request.
    fn complete(
        &self,
        prefix: &Combination,
        from: usize,
        even: i64,
        also: Option<usize>,
    ) -> Option<Combination> {
        let problem = self.problem;
        let mut whole = prefix.clone();
        whole.extend(also.map(|at| self.candidates[at]));
        let missing = self.nodes - whole.len();
        let mut rest: Combination = self.candidates[from..]
            .iter()
            .copied()
            .filter(|p| problem.whole_groups(*p) >= even && !whole.contains(p))
            .collect();
        if rest.len() < missing {
            return None;
        }
        rest.sort_unstable_by_key(|p| (std::cmp::Reverse(problem.free[*p]), *p));
        whole.extend(rest.into_iter().take(missing));
        whole.sort_unstable();
        let held: i64 = whole.iter().map(|p| problem.whole_groups(*p)).sum();
        (held >= problem.count).then_some(whole)
    }

    fn levelled(&self, combination: &Combination, even: i64) -> i64 {
        let left = combination.iter().map(|p| self.problem.free[*p] - even).collect();
        let groups = (self.problem.count - even * self.nodes as i64) / self.problem.group;
        let change = even_change(&self.problem.free, combination, even)
            + level(left, groups, self.problem.group);
        self.balance.score(change)
    }

    /// The score of a combination; `None` if it cannot give what is wanted.
    fn exact(&self, combination: &Combination) -> Option<i64> {
        let even = self.problem.even_share(combination, self.nodes);
        if combination.iter().any(|p| self.problem.whole_groups(*p) < even) {
            return None;
        }
        let remainder = Remainder::of(self.problem, combination, even, &self.balance);
        remainder.allocate().map(|allocation| allocation.score)
    }
}

/// Returns the change of the sum of squares if `even` CPUs are taken from each node of a
/// combination.
fn even_change(free: &[i64], combination: &Combination, even: i64) -> i64 {
    combination.iter().map(|p| (free[*p] - even).pow(2) - free[*p].pow(2)).sum()
}

/// Returns the change of the sum of squares if `groups` groups are taken, each from the node with
/// the most CPUs left.
fn level(mut left: SmallVec<[i64; MAX_NODES]>, groups: i64, group: i64) -> i64 {
    let mut change = 0;
    for _ in 0..groups {
        let Some(most) = left.iter_mut().max().filter(|m| **m >= group) else { break };
        change += (*most - group).pow(2) - most.pow(2);
        *most -= group;
    }
    change
}

/// The remainder of one combination, allocated to subsets of the nodes that still have a group
/// free, in rounds of one group each, in order.
struct Remainder<'a> {
    group: i64,
    groups: usize,
    balance: &'a Balance,
    /// Position and free CPUs after the even shares, in order.
    takers: SmallVec<[(usize, i64); MAX_NODES]>,
    /// The change of the sum of squares by the even shares.
    change: i64,
}

struct Allocation {
    score: i64,
    /// Positions in the order of taking, one entry a group.
    receivers: SmallVec<[usize; MAX_NODES]>,
}

impl<'a> Remainder<'a> {
    fn of(
        problem: &Problem,
        combination: &Combination,
        even: i64,
        balance: &'a Balance,
    ) -> Remainder<'a> {
        let takers = combination
            .iter()
            .map(|p| (*p, problem.free[*p] - even))
            .filter(|(_, left)| *left >= problem.group)
            .collect();
        let rest = problem.count - even * combination.len() as i64;
        Remainder {
            group: problem.group,
            groups: (rest / problem.group) as usize,
            balance,
            takers,
            change: even_change(&problem.free, combination, even),
        }
    }

    /// The first best subset, sizes from largest to smallest, each in lexicographic order.
    fn allocate(&self) -> Option<Allocation> {
        let groups = self.groups;
        if groups == 0 {
            let score = self.balance.score(self.change);
            return Some(Allocation { score, receivers: SmallVec::new() });
        }
        let mut best: Option<Allocation> = None;
        for size in (1..=self.takers.len()).rev() {
            let found = if size >= groups {
                self.one_group_each(size, groups)
            } else {
                self.several_rounds(size, groups, best.as_ref().map(|b| b.score))
            };
            if let Some(found) = found
                && best.as_ref().is_none_or(|b| found.score < b.score)
            {
                best = Some(found);
            }
        }
        best
    }

    /// With at least as many nodes as groups only the first `groups` of a subset give anything;
    /// the others must merely exist behind them. So: the first best choice of `groups` nodes that
    /// leaves `size - groups` behind it.
    fn one_group_each(&self, size: usize, groups: usize) -> Option<Allocation> {
        let usable = self.takers.len() - (size - groups);
        let window = &self.takers[..usable];
        let best_score = self.score_of_sum(top_sum(window.iter().map(|t| t.1), groups)?, groups);
        let mut receivers = SmallVec::new();
        let mut sum = 0;
        let mut from = 0;
        while receivers.len() < groups {
            let missing = groups - receivers.len();
            let at = (from..=usable - missing).find(|at| {
                let (_, left) = window[*at];
                let rest = window[at + 1..].iter().map(|t| t.1);
                top_sum(rest, missing - 1)
                    .is_some_and(|rest| self.score_of_sum(sum + left + rest, groups) == best_score)
            })?;
            sum += window[at].1;
            receivers.push(window[at].0);
            from = at + 1;
        }
        Some(Allocation { score: best_score, receivers })
    }

    /// The score if `groups` different nodes with `sum` free CPUs together give one group each.
    fn score_of_sum(&self, sum: i64, groups: usize) -> i64 {
        let group = self.group;
        self.balance.score(self.change - 2 * group * sum + group * group * groups as i64)
    }

    /// With fewer nodes than groups some give several. Only worth looking at where a few nodes
    /// have far more free than the rest; a bound on what `size` nodes can reach cuts off the rest.
    fn several_rounds(
        &self,
        size: usize,
        groups: usize,
        to_beat: Option<i64>,
    ) -> Option<Allocation> {
        let mut best = to_beat.map(|score| Allocation { score, receivers: SmallVec::new() });
        let mut subset = SmallVec::new();
        self.subsets(size, groups, 0, &mut subset, &mut best);
        best.filter(|b| !b.receivers.is_empty())
    }

    fn subsets(
        &self,
        size: usize,
        groups: usize,
        from: usize,
        subset: &mut SmallVec<[usize; MAX_NODES]>,
        best: &mut Option<Allocation>,
    ) {
        if subset.len() == size {
            if let Some(found) = self.rounds(subset, groups)
                && best.as_ref().is_none_or(|b| found.score < b.score)
            {
                *best = Some(found);
            }
            return;
        }
        let mut failed: SmallVec<[i64; MAX_NODES]> = SmallVec::new();
        for at in from..=self.takers.len() - (size - subset.len()) {
            let (_, left) = self.takers[at];
            if failed.contains(&left) {
                continue;
            }
            subset.push(at);
            let bound = self.rounds_bound(subset, size, groups);
            if best.as_ref().is_none_or(|b| bound < b.score) {
                self.subsets(size, groups, at + 1, subset, best);
            }
            subset.pop();
            failed.push(left);
        }
    }

    /// Returns a lower bound: the fullest nodes join, and every group goes to the node with the
    /// most CPUs left.
    fn rounds_bound(&self, subset: &[usize], size: usize, groups: usize) -> i64 {
        let group = self.group;
        let last = subset.last().map_or(0, |at| at + 1);
        let mut rest: SmallVec<[i64; MAX_NODES]> =
            self.takers[last..].iter().map(|t| t.1).collect();
        rest.sort_unstable_by_key(|left| std::cmp::Reverse(*left));
        let mut left: SmallVec<[i64; MAX_NODES]> =
            subset.iter().map(|at| self.takers[*at].1).collect();
        left.extend(rest.into_iter().take(size - subset.len()));
        self.balance.score(self.change + level(left, groups as i64, group))
    }

    /// Takes one group per node in rounds; `None` if the subset has too few.
    fn rounds(&self, subset: &[usize], groups: usize) -> Option<Allocation> {
        let group = self.group;
        let mut left: SmallVec<[(usize, i64); MAX_NODES]> =
            subset.iter().map(|at| self.takers[*at]).collect();
        let mut receivers = SmallVec::new();
        let mut change = self.change;
        while receivers.len() < groups {
            let before = receivers.len();
            for (position, left) in &mut left {
                if receivers.len() < groups && *left >= group {
                    change += (*left - group).pow(2) - left.pow(2);
                    *left -= group;
                    receivers.push(*position);
                }
            }
            if receivers.len() == before {
                return None;
            }
        }
        Some(Allocation { score: self.balance.score(change), receivers })
    }
}

/// The sum of the `n` largest; `None` if there are fewer.
fn top_sum(values: impl Iterator<Item = i64>, n: usize) -> Option<i64> {
    let mut values: SmallVec<[i64; MAX_NODES]> = values.collect();
    if values.len() < n {
        return None;
    }
    values.sort_unstable_by_key(|v| std::cmp::Reverse(*v));
    Some(values[..n].iter().sum())
}
