//! The options of the static CPU policy.
//!
//! Main type: [`CpuOptions`], in which options that exclude each other cannot both be set, and
//! [`CpuOptions::parse`], which reads the configuration's map of strings.

use std::collections::BTreeMap;

use thiserror::Error;

use crate::gates::Gates;
use crate::go_strconv::{ParseError, parse_bool};
use crate::topology::Topology;

use super::pick::Picking;

pub const FULL_CORES: &str = "full-pcpus-only";
pub const ACROSS_NUMA: &str = "distribute-cpus-across-numa";
pub const ALIGN_BY_SOCKET: &str = "align-by-socket";
pub const ACROSS_CORES: &str = "distribute-cpus-across-cores";
pub const STRICT_RESERVATION: &str = "strict-cpu-reservation";
pub const ALIGN_UNCORE: &str = "prefer-align-cpus-by-uncorecache";

/// Names the enhancement proposal used for [`ACROSS_CORES`].
pub const ACROSS_CORES_ALIASES: [&str; 2] =
    ["spread-physical-cpus-preferred", "distribute-cores-across-cpus"];

/// Every option name, as configured.
pub const NAMES: [&str; 6] =
    [FULL_CORES, ACROSS_NUMA, ALIGN_BY_SOCKET, ACROSS_CORES, STRICT_RESERVATION, ALIGN_UNCORE];

/// How CPUs are spread over the machine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Distribution {
    #[default]
    Packed,
    /// Packed, but within as few uncore caches as possible.
    UncoreAligned,
    AcrossNuma,
    AcrossCores,
}

/// A checked set of options.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CpuOptions {
    pub distribution: Distribution,
    /// Never with [`Distribution::AcrossCores`].
    pub full_cores: bool,
    pub align_by_socket: bool,
    pub strict_reservation: bool,
}

/// Why options cannot be used. The texts are the kubelet's.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum OptionsError {
    #[error("unknown CPU Manager Policy option: {0:?}")]
    Unknown(String),
    #[error("CPU Manager Policy Alpha-level Options not enabled, but option {0:?} provided")]
    Alpha(String),
    #[error("CPU Manager Policy Beta-level Options not enabled, but option {0:?} provided")]
    Beta(String),
    #[error("bad value for option {option:?}: {error}")]
    BadValue { option: String, error: ParseError },
    #[error("static policy options {0} and {1} can not be used at the same time")]
    Exclusive(&'static str, &'static str),
}

impl CpuOptions {
    pub fn parse(
        options: &BTreeMap<String, String>,
        gates: &Gates,
    ) -> Result<CpuOptions, OptionsError> {
        let mut on = Vec::new();
        for (name, value) in options {
            let canonical = canonical(name).ok_or_else(|| OptionsError::Unknown(name.clone()))?;
            match canonical {
                ALIGN_BY_SOCKET | ACROSS_CORES if !gates.cpu_policy_alpha_options => {
                    return Err(OptionsError::Alpha(name.clone()));
                }
                ACROSS_NUMA if !gates.cpu_policy_beta_options => {
                    return Err(OptionsError::Beta(name.clone()));
                }
                _ => {}
            }
            let value = parse_bool(value)
                .map_err(|error| OptionsError::BadValue { option: name.clone(), error })?;
            if value {
                on.push(canonical);
            }
        }
        for (a, b) in [
            (FULL_CORES, ACROSS_CORES),
            (ACROSS_NUMA, ACROSS_CORES),
            (ALIGN_UNCORE, ACROSS_CORES),
            (ALIGN_UNCORE, ACROSS_NUMA),
        ] {
            if on.contains(&a) && on.contains(&b) {
                return Err(OptionsError::Exclusive(a, b));
            }
        }
        let distribution = if on.contains(&ACROSS_CORES) {
            Distribution::AcrossCores
        } else if on.contains(&ACROSS_NUMA) {
            Distribution::AcrossNuma
        } else if on.contains(&ALIGN_UNCORE) {
            Distribution::UncoreAligned
        } else {
            Distribution::Packed
        };
        Ok(CpuOptions {
            distribution,
            full_cores: on.contains(&FULL_CORES),
            align_by_socket: on.contains(&ALIGN_BY_SOCKET),
            strict_reservation: on.contains(&STRICT_RESERVATION),
        })
    }

    /// The rules by which CPUs are chosen on a machine.
    #[must_use]
    pub fn picking(&self, topology: &Topology) -> Picking {
        match self.distribution {
            Distribution::Packed => Picking::Packed { align_uncore: false },
            Distribution::UncoreAligned => Picking::Packed { align_uncore: true },
            Distribution::AcrossCores => Picking::Spread,
            Distribution::AcrossNuma => Picking::AcrossNuma {
                group: if self.full_cores { topology.cpus_per_core() } else { 1 },
                align_by_socket: self.align_by_socket,
            },
        }
    }
}

impl CpuOptions {
    /// The rules by which reserved CPUs are chosen where none are named: those of containers,
    /// except that spreading does not apply. The kubelet then reserves a socket's lowest CPUs, and
    /// a node that comes from it must keep the CPUs it reserved.
    #[must_use]
    pub(super) fn reserving(&self, topology: &Topology) -> Picking {
        match self.distribution {
            Distribution::AcrossCores => Picking::Lowest,
            _ => self.picking(topology),
        }
    }
}

fn canonical(name: &str) -> Option<&'static str> {
    if ACROSS_CORES_ALIASES.contains(&name) {
        return Some(ACROSS_CORES);
    }
    NAMES.into_iter().find(|known| *known == name)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(options: &[(&str, &str)], gates: Gates) -> Result<CpuOptions, OptionsError> {
        let options = options.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
        CpuOptions::parse(&options, &gates)
    }

    const ALPHA: Gates = Gates { cpu_policy_alpha_options: true, ..Gates::ALL };

    #[test]
    fn spreading_needs_the_alpha_gate_under_every_name() {
        for name in [ACROSS_CORES, ACROSS_CORES_ALIASES[0], ACROSS_CORES_ALIASES[1]] {
            assert_eq!(
                parse(&[(name, "true")], Gates::default()),
                Err(OptionsError::Alpha(name.to_owned()))
            );
            let options = parse(&[(name, "true")], ALPHA).unwrap();
            assert_eq!(options.distribution, Distribution::AcrossCores);
        }
    }

    #[test]
    fn the_gate_alone_changes_nothing() {
        assert_eq!(parse(&[], ALPHA), Ok(CpuOptions::default()));
        assert_eq!(parse(&[(ACROSS_CORES, "false")], ALPHA), Ok(CpuOptions::default()));
    }

    #[test]
    fn an_alias_contradicts_what_the_name_contradicts() {
        assert_eq!(
            parse(&[(ACROSS_CORES_ALIASES[0], "1"), (FULL_CORES, "T")], ALPHA),
            Err(OptionsError::Exclusive(FULL_CORES, ACROSS_CORES))
        );
    }
}
