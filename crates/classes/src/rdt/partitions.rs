//! Divides each cache between the partitions of a file.
//!
//! Main entry: [`divide`]. Partitions never overlap. Their shares are all percentages or all masks.

use std::collections::BTreeMap;

use thiserror::Error;

use super::Joined;
use super::cache::{CacheRequest, CacheRequests};
use crate::hardware::resctrl::{CacheAllocation, CacheLevel, CacheUse};
use crate::hardware::{CacheId, CapacityMask};

/// The masks of a partition for one cache, by use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Grant {
    unified: Option<CapacityMask>,
    code: Option<CapacityMask>,
    data: Option<CapacityMask>,
}

impl Grant {
    /// Returns the mask for a use; the unified one is the default.
    #[must_use]
    pub fn effective(&self, of: CacheUse) -> Option<CapacityMask> {
        match of {
            CacheUse::Unified => self.unified,
            CacheUse::Code => self.code.or(self.unified),
            CacheUse::Data => self.data.or(self.unified),
        }
    }

    fn set(&mut self, of: CacheUse, mask: CapacityMask) {
        match of {
            CacheUse::Unified => self.unified = Some(mask),
            CacheUse::Code => self.code = Some(mask),
            CacheUse::Data => self.data = Some(mask),
        }
    }
}

/// The requests of a partition; `None` if it does not mention the level.
pub(crate) type Requests = Option<BTreeMap<CacheId, CacheRequests>>;

/// The reason why a cache cannot be divided between the partitions.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum DivisionError {
    #[error("some partitions ({}) missing {level} \"{of}\" allocation request for cache id {id}", Joined(.partitions))]
    Missing { partitions: Vec<String>, level: CacheLevel, of: CacheUse, id: CacheId },
    #[error(
        "accumulated {level} \"{of}\" partition allocation requests for cache id {id} exceeds 100% ({percent}%)"
    )]
    Over100 { level: CacheLevel, of: CacheUse, id: CacheId, percent: u64 },
    #[error(
        "error resolving {level} allocation for cache id {id}: mixing relative and absolute allocations between partitions not supported"
    )]
    MaskAmongPercentages { level: CacheLevel, id: CacheId },
    #[error(
        "error resolving {level} allocation for cache id {id}: mixing absolute and relative allocations between partitions not supported"
    )]
    PercentageAmongMasks { level: CacheLevel, id: CacheId },
    #[error("percentage ranges in partition allocation not supported")]
    Range,
    #[error("overlapping {level} partition allocation requests for cache id {id}")]
    Overlap { level: CacheLevel, id: CacheId },
    #[error(
        "unable to resolve {level} allocation for cache id {id}, not enough exlusive bits available"
    )]
    NotEnoughBits { level: CacheLevel, id: CacheId },
    #[error(
        "unable to resolve {level} allocation for cache id {id}, {percent}% of {bits} bits is less than one bit"
    )]
    LessThanOneBit { level: CacheLevel, id: CacheId, percent: u64, bits: u32 },
}

/// Returns the masks of each partition for each cache of a level. Partitions are laid out in the
/// order of their names.
pub(crate) fn divide(
    level: CacheLevel,
    hardware: Option<&CacheAllocation>,
    requests: &BTreeMap<String, Requests>,
) -> Result<BTreeMap<String, BTreeMap<CacheId, Grant>>, DivisionError> {
    let mut grants: BTreeMap<String, BTreeMap<CacheId, Grant>> =
        requests.keys().map(|name| (name.clone(), BTreeMap::new())).collect();
    let Some((hardware, control)) = hardware.and_then(|level| Some((level, level.base()?))) else {
        return Ok(grants);
    };
    for id in hardware.cache_ids.iter().copied() {
        for of in CacheUse::ALL {
            let one = Division {
                level,
                id,
                of,
                bits: control.cbm_mask.lowest_zero(),
                min_bits: control.min_cbm_bits,
            };
            for (name, mask) in one.masks(requests)? {
                if let Some(partition) = grants.get_mut(name) {
                    partition.entry(id).or_default().set(of, mask);
                }
            }
        }
    }
    Ok(grants)
}

/// The division of one cache for one use.
struct Division {
    level: CacheLevel,
    id: CacheId,
    of: CacheUse,
    bits: u32,
    min_bits: u64,
}

impl Division {
    fn masks<'a>(
        &self,
        requests: &'a BTreeMap<String, Requests>,
    ) -> Result<Vec<(&'a str, CapacityMask)>, DivisionError> {
        let given = |requests: &Requests| requests.as_ref()?.get(&self.id)?.given(self.of);
        let (mut present, mut missing) = (Vec::new(), Vec::new());
        for (name, requests) in requests {
            match given(requests) {
                Some(request) => present.push((name.as_str(), request)),
                None => missing.push(name.clone()),
            }
        }
        let Division { level, id, of, .. } = *self;
        match present.first() {
            None => Ok(Vec::new()),
            Some(_) if !missing.is_empty() => {
                Err(DivisionError::Missing { partitions: missing, level, of, id })
            }
            Some((_, CacheRequest::Mask(_))) => self.of_masks(&present),
            Some(_) => self.of_percentages(&present),
        }
    }

    fn of_masks<'a>(
        &self,
        requests: &[(&'a str, CacheRequest)],
    ) -> Result<Vec<(&'a str, CapacityMask)>, DivisionError> {
        let Division { level, id, .. } = *self;
        let mut used = CapacityMask::default();
        let mut masks = Vec::with_capacity(requests.len());
        for (name, request) in requests {
            let CacheRequest::Mask(mask) = *request else {
                return Err(DivisionError::PercentageAmongMasks { level, id });
            };
            if mask.overlaps(used) {
                return Err(DivisionError::Overlap { level, id });
            }
            used = CapacityMask(used.0 | mask.0);
            masks.push((*name, mask));
        }
        Ok(masks)
    }

    /// Serves the smallest requests first, because the minimum may round them up. The last one gets
    /// what is left.
    fn of_percentages<'a>(
        &self,
        requests: &[(&'a str, CacheRequest)],
    ) -> Result<Vec<(&'a str, CapacityMask)>, DivisionError> {
        let Division { level, id, of, bits, min_bits } = *self;
        let mut percentages = Vec::with_capacity(requests.len());
        for (name, request) in requests {
            match *request {
                CacheRequest::Percent(percent) => percentages.push((percent, *name)),
                CacheRequest::Mask(_) => {
                    return Err(DivisionError::MaskAmongPercentages { level, id });
                }
                CacheRequest::PercentRange { .. } => return Err(DivisionError::Range),
            }
        }
        let percent: u64 = percentages.iter().map(|(percent, _)| percent).sum();
        if percent > 100 {
            return Err(DivisionError::Over100 { level, of, id, percent });
        }
        let total = percent * u64::from(bits) / 100;
        if total == 0 {
            return Err(DivisionError::LessThanOneBit { level, id, percent, bits });
        }
        percentages.sort_unstable();
        let mut left = total;
        let mut widths: BTreeMap<&str, u64> = BTreeMap::new();
        for (at, (share, name)) in percentages.iter().enumerate() {
            if left < min_bits {
                return Err(DivisionError::NotEnoughBits { level, id });
            }
            let last = at + 1 == percentages.len();
            // Without a bit left, there is nothing to divide.
            let width = match left * percent / total {
                0 => left,
                percent_left => (share * left / percent_left).max(min_bits),
            };
            let width = if last { left } else { width.min(left) };
            widths.insert(name, width);
            left -= width;
        }
        let mut lowest = 0;
        Ok(requests
            .iter()
            .map(|(name, _)| {
                let width = widths.get(name).copied().unwrap_or(0);
                let width = u32::try_from(width).unwrap_or(u32::MAX);
                let mask = CapacityMask::block(lowest, width);
                lowest += width;
                (*name, mask)
            })
            .collect())
    }
}
