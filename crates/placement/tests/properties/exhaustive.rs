//! A reference implementation: every mask of nodes, every combination of hints, every combination
//! of nodes and remainders, like the kubelet. Slow and simple, so that it can be trusted.

use placement::affinity::Hint;
use placement::demand::MemoryAmounts;
use placement::memory::MemoryLedger;
use placement::{CpuSet, NumaMask, Topology};

/// Every non-empty set of nodes within `ground`.
pub(crate) fn masks(ground: NumaMask) -> impl Iterator<Item = NumaMask> {
    (1..=ground.0).map(NumaMask).filter(move |mask| mask.is_subset(ground))
}

/// CPU hints: every set of nodes that holds all reusable CPUs and enough in total.
pub(crate) fn cpu_hints(
    topology: &Topology,
    available: &CpuSet,
    reusable: &CpuSet,
    request: usize,
    align_by_socket: bool,
) -> Vec<Hint> {
    let ground = topology.nodes_with_cpus();
    let mut smallest = ground.len();
    let mut found = Vec::new();
    for mask in masks(ground) {
        let inside = topology.cpus_in(mask);
        if inside.len() >= request {
            smallest = smallest.min(mask.len());
        }
        let enough = reusable.len() + inside.count_common(available) >= request;
        if reusable.is_subset(&inside) && enough {
            found.push(mask);
        }
    }
    let per_socket = ground.len() / topology.sockets().len();
    let sockets_of = |mask: NumaMask| {
        let inside = topology.cpus_in(mask);
        topology.sockets().iter().filter(|s| !s.cpus.is_disjoint(&inside)).count()
    };
    let preferred = |mask: NumaMask| {
        mask.len() == smallest
            || (align_by_socket
                && per_socket > 0
                && sockets_of(mask) == smallest.div_ceil(per_socket))
    };
    found.into_iter().map(|mask| Hint { nodes: Some(mask), preferred: preferred(mask) }).collect()
}

/// Memory hints: every set of nodes with enough of every kind that mixes no groups.
pub(crate) fn memory_hints(ledger: &MemoryLedger, amounts: &MemoryAmounts) -> Vec<Hint> {
    let all = NumaMask::first(ledger.nodes.len());
    let mut smallest = all.len();
    let mut found = Vec::new();
    for mask in masks(all) {
        let sum = |of: &dyn Fn(usize) -> u64| mask.iter().map(of).sum::<u64>();
        let table = |node: usize, kind| {
            let tables = &ledger.nodes[node].tables;
            tables.iter().find(|(k, _)| *k == kind).map(|(_, t)| *t).unwrap_or_default()
        };
        let holds = amounts
            .iter()
            .all(|(kind, size)| sum(&|node| table(node, *kind).allocatable) >= size.0);
        if !holds {
            continue;
        }
        smallest = smallest.min(mask.len());
        let fits = |node: usize| {
            let state = &ledger.nodes[node];
            if mask.len() == 1 {
                state.cells.len() == 1
            } else {
                state.assignments == 0 || state.cells == mask
            }
        };
        let free =
            amounts.iter().all(|(kind, size)| sum(&|node| table(node, *kind).free) >= size.0);
        if mask.iter().all(fits) && free {
            found.push(mask);
        }
    }
    found
        .into_iter()
        .map(|mask| Hint { nodes: Some(mask), preferred: mask.len() == smallest })
        .collect()
}

/// Tries every combination of one hint from each list.
pub(crate) fn merge(lists: &[Vec<Hint>], all: NumaMask, distances: Option<&[Vec<u32>]>) -> Hint {
    let target = lists
        .iter()
        .filter_map(|list| list.iter().filter_map(|h| h.nodes).map(NumaMask::len).min())
        .max()
        .unwrap_or(0);
    let mut best: Option<Hint> = None;
    combine(lists, all, None, true, &mut |candidate| {
        let nodes = candidate.nodes.unwrap_or_default();
        if !nodes.is_empty() && best.is_none_or(|b| beats(candidate, b, target, distances)) {
            best = Some(candidate);
        }
    });
    best.unwrap_or(Hint { nodes: Some(all), preferred: false })
}

fn combine(
    lists: &[Vec<Hint>],
    common: NumaMask,
    first: Option<NumaMask>,
    preferred: bool,
    visit: &mut impl FnMut(Hint),
) {
    let Some((list, rest)) = lists.split_first() else {
        return visit(Hint { nodes: Some(common), preferred });
    };
    for hint in list {
        let nodes = hint.nodes;
        let same = nodes.is_none() || first.is_none() || nodes == first;
        let common = nodes.map_or(common, |nodes| common & nodes);
        combine(rest, common, first.or(nodes), preferred && hint.preferred && same, visit);
    }
}

fn beats(new: Hint, old: Hint, target: usize, distances: Option<&[Vec<u32>]>) -> bool {
    let (a, b) = (new.nodes.unwrap_or_default(), old.nodes.unwrap_or_default());
    let fitter = || match distances {
        Some(distances) if a.len() == b.len() => {
            let sum = |m: NumaMask| -> u32 {
                m.iter().flat_map(|x| m.iter().map(move |y| distances[x][y])).sum()
            };
            (sum(a), a) < (sum(b), b)
        }
        _ => (a.len(), a) < (b.len(), b),
    };
    match (new.preferred, old.preferred) {
        (true, false) => true,
        (false, true) => false,
        (true, true) => fitter(),
        (false, false) if b.len() > target => fitter(),
        (false, false) if b.len() == target => a.len() == target && fitter(),
        (false, false) if a.len() > target => false,
        (false, false) if a.len() == b.len() => fitter(),
        (false, false) => a.len() > b.len(),
    }
}

/// How many CPUs each node gives when `count` are distributed: positions in the order of `free`.
pub(crate) fn distribute(
    free: &[i64],
    socket: &[usize],
    count: i64,
    group: i64,
    align_by_socket: bool,
    sizes: std::ops::RangeInclusive<usize>,
) -> Option<Vec<i64>> {
    for size in sizes {
        let mut best: Option<(bool, i64, Vec<i64>)> = None;
        for combination in combinations(&(0..free.len()).collect::<Vec<_>>(), size) {
            let whole = |p: &usize| free[*p] / group * group;
            if combination.iter().map(whole).sum::<i64>() < count {
                continue;
            }
            let mut even = count / size as i64 / group * group;
            if align_by_socket {
                even = combination.iter().map(whole).min().unwrap_or(0).min(even);
            }
            if combination.iter().any(|p| free[*p] < even) {
                continue;
            }
            let Some((score, given)) = best_remainder(free, &combination, even, count, group)
            else {
                continue;
            };
            let one_socket =
                align_by_socket && combination.iter().all(|p| socket[*p] == socket[combination[0]]);
            let better = best.as_ref().is_none_or(|(one, old, _)| {
                if one_socket == *one { score < *old } else { one_socket }
            });
            if better {
                best = Some((one_socket, score, given));
            }
        }
        if let Some((_, _, given)) = best {
            return Some(given);
        }
    }
    None
}

fn best_remainder(
    free: &[i64],
    combination: &[usize],
    even: i64,
    count: i64,
    group: i64,
) -> Option<(i64, Vec<i64>)> {
    let mut given = vec![0; free.len()];
    combination.iter().for_each(|p| given[*p] = even);
    let rest = count - even * combination.len() as i64;
    if rest == 0 {
        return Some((deviation(free, &given), given));
    }
    let takers: Vec<usize> =
        combination.iter().copied().filter(|p| free[*p] - even >= group).collect();
    let mut best: Option<(i64, Vec<i64>)> = None;
    for size in (1..=takers.len()).rev() {
        for subset in combinations(&takers, size) {
            let groups: i64 = subset.iter().map(|p| (free[*p] - even) / group).sum();
            if groups * group < rest {
                continue;
            }
            let mut given = given.clone();
            let mut rest = rest;
            while rest > 0 {
                for p in &subset {
                    if rest > 0 && free[*p] - given[*p] >= group {
                        given[*p] += group;
                        rest -= group;
                    }
                }
            }
            let score = deviation(free, &given);
            if best.as_ref().is_none_or(|(old, _)| score < *old) {
                best = Some((score, given));
            }
        }
    }
    best
}

/// Standard deviation of what is left, in thousandths, as the kubelet rounds it.
fn deviation(free: &[i64], given: &[i64]) -> i64 {
    let left: Vec<f64> = free.iter().zip(given).map(|(f, g)| (f - g) as f64).collect();
    let n = left.len() as f64;
    let mean = (left.iter().sum::<f64>() / n * 1000.0).round() / 1000.0;
    let variance = left.iter().map(|x| (x - mean) * (x - mean)).sum::<f64>() / n;
    (variance.sqrt() * 1000.0).round() as i64
}

/// All ways to choose `size` of `items`, in lexicographic order.
pub(crate) fn combinations(items: &[usize], size: usize) -> Vec<Vec<usize>> {
    if size == 0 {
        return vec![Vec::new()];
    }
    let mut found = Vec::new();
    for (at, item) in items.iter().enumerate() {
        for mut rest in combinations(&items[at + 1..], size - 1) {
            rest.insert(0, *item);
            found.push(rest);
        }
    }
    found
}
