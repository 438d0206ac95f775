//! Requests for cache: percentages and masks, and the mask that a request takes of a base.
//!
//! Main type: [`CacheRequest`]. Dividing a cache between partitions is in [`super::partitions`].

use std::collections::BTreeMap;
use std::fmt;

use thiserror::Error;

use super::config::{CacheShare, PerCache};
use super::{ALL_CACHES, CacheIdList, CacheIdListError};
use crate::go_text::{NumberError, parse_uint, quoted};
use crate::hardware::resctrl::{CacheAllocation, CacheUse};
use crate::hardware::{CacheId, CapacityMask};

/// A request for a share of one cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CacheRequest {
    Percent(u64),
    PercentRange { low: u64, high: u64 },
    Mask(CapacityMask),
}

/// The requests for one cache, by use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CacheRequests {
    pub unified: CacheRequest,
    /// Code and data are given together or not at all.
    pub code_and_data: Option<(CacheRequest, CacheRequest)>,
}

impl CacheRequests {
    const WHOLE: CacheRequests =
        CacheRequests { unified: CacheRequest::Percent(100), code_and_data: None };

    /// Returns the request for a use, if it is given.
    #[must_use]
    pub fn given(&self, of: CacheUse) -> Option<CacheRequest> {
        match (of, self.code_and_data) {
            (CacheUse::Unified, _) => Some(self.unified),
            (CacheUse::Code, Some((code, _))) => Some(code),
            (CacheUse::Data, Some((_, data))) => Some(data),
            (_, None) => None,
        }
    }

    /// Returns the request for a use; the unified one is the default.
    #[must_use]
    pub fn effective(&self, of: CacheUse) -> CacheRequest {
        self.given(of).unwrap_or(self.unified)
    }
}

/// The reason why requests for a cache level cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum CacheRequestError {
    #[error(transparent)]
    Number(#[from] NumberError),
    #[error(transparent)]
    CacheIds(#[from] CacheIdListError),
    #[error("invalid percentage value {}", quoted(.0))]
    Percent(String),
    #[error("invalid percentage range {}", quoted(.0))]
    PercentRange(String),
    #[error("invalid bitmask {}: {source}", quoted(.text))]
    BitNumber { text: String, source: NumberError },
    #[error("invalid range {} in bitmask {}", quoted(.range), quoted(.text))]
    BitRange { range: String, text: String },
    #[error("invalid cache bitmask {}: more than one continuous block of ones", quoted(.0))]
    Scattered(String),
    #[error("invalid cache bitmask {}: number of bits less than {least}", quoted(.text))]
    TooFewBits { text: String, least: u64 },
    #[error("'unified' not specified in cache schema {0}")]
    NoUnified(Written),
    #[error("'code' specified but missing 'data' from cache schema {0}")]
    NoData(Written),
    #[error("'data' specified but missing 'code' from cache schema {0}")]
    NoCode(Written),
    #[error("unknown field {} in cache schema; the fields are unified, code and data", quoted(.0))]
    UnknownField(String),
    #[error("cache id {id} is in the keys {} and {} with different values", quoted(.first), quoted(.second))]
    Overlap { id: CacheId, first: String, second: String },
}

/// A share as written, for error texts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Written(CacheShare);

impl fmt::Display for Written {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let CacheShare { unified, code, data, .. } = &self.0;
        write!(f, "{{{unified} {code} {data}}}")
    }
}

/// Reads the requests for every cache of a level. A machine without the level has no caches, and
/// the texts are checked nevertheless.
pub(crate) fn requests(
    written: &PerCache<CacheShare>,
    level: Option<&CacheAllocation>,
) -> Result<BTreeMap<CacheId, CacheRequests>, CacheRequestError> {
    let base = level.and_then(CacheAllocation::base);
    let min_bits = base.map_or(0, |control| control.min_cbm_bits);
    let default = match written.get(ALL_CACHES) {
        Some(share) => parse_share(share, min_bits)?,
        None => CacheRequests::WHOLE,
    };
    let ids = level.map(|level| level.cache_ids.as_slice()).unwrap_or_default();
    let mut requests: BTreeMap<CacheId, CacheRequests> =
        ids.iter().map(|id| (*id, default)).collect();
    let mut named: BTreeMap<CacheId, &str> = BTreeMap::new();
    for (key, share) in written.iter().filter(|(key, _)| *key != ALL_CACHES) {
        let list = CacheIdList::parse(key)?;
        let share = parse_share(share, min_bits)?;
        for (id, request) in requests.iter_mut().filter(|(id, _)| list.contains(**id)) {
            if let Some(first) = named.insert(*id, key)
                && *request != share
            {
                let (first, second) = (first.to_owned(), key.clone());
                return Err(CacheRequestError::Overlap { id: *id, first, second });
            }
            *request = share;
        }
    }
    Ok(requests)
}

fn parse_share(share: &CacheShare, min_bits: u64) -> Result<CacheRequests, CacheRequestError> {
    let parse = |text: &str| (!text.is_empty()).then(|| parse_request(text, min_bits)).transpose();
    let (unified, code, data) = (parse(&share.unified)?, parse(&share.code)?, parse(&share.data)?);
    let written = || Written(share.clone());
    let Some(unified) = unified else { return Err(CacheRequestError::NoUnified(written())) };
    let code_and_data = match (code, data) {
        (None, None) => None,
        (Some(code), Some(data)) => Some((code, data)),
        (Some(_), None) => return Err(CacheRequestError::NoData(written())),
        (None, Some(_)) => return Err(CacheRequestError::NoCode(written())),
    };
    match &share.unknown {
        Some(name) => Err(CacheRequestError::UnknownField(name.clone())),
        None => Ok(CacheRequests { unified, code_and_data }),
    }
}

fn parse_request(text: &str, min_bits: u64) -> Result<CacheRequest, CacheRequestError> {
    if let Some(percent) = text.strip_suffix('%') {
        return parse_percent(text, percent);
    }
    let mask = match text.strip_prefix("0x") {
        Some(digits) => parse_uint(digits, 16, 64)?,
        None => parse_bit_list(text)?,
    };
    let mask = CapacityMask(mask);
    if !mask.is_contiguous() {
        return Err(CacheRequestError::Scattered(text.to_owned()));
    }
    if u64::from(mask.count()) < min_bits {
        return Err(CacheRequestError::TooFewBits { text: text.to_owned(), least: min_bits });
    }
    Ok(CacheRequest::Mask(mask))
}

fn parse_percent(text: &str, percent: &str) -> Result<CacheRequest, CacheRequestError> {
    // Seven bits, so that the number itself may be out of range before the percentage is.
    let number = |digits: &str| parse_uint(digits, 10, 7);
    match percent.split_once('-') {
        None => match number(percent)? {
            value @ 0..=100 => Ok(CacheRequest::Percent(value)),
            _ => Err(CacheRequestError::Percent(text.to_owned())),
        },
        Some((low, high)) => match (number(low)?, number(high)?) {
            (low, high) if low <= high && high <= 100 => {
                Ok(CacheRequest::PercentRange { low, high })
            }
            _ => Err(CacheRequestError::PercentRange(text.to_owned())),
        },
    }
}

/// Parses bit numbers such as `0-3,5`.
fn parse_bit_list(text: &str) -> Result<u64, CacheRequestError> {
    let bit = |digits: &str| {
        parse_uint(digits, 10, 6)
            .map_err(|source| CacheRequestError::BitNumber { text: text.to_owned(), source })
    };
    let mut mask = 0;
    for range in text.split(',') {
        let (first, last) = match range.split_once('-') {
            None => (bit(range)?, bit(range)?),
            Some((first, last)) => {
                let (first, last) = (bit(first)?, bit(last)?);
                if last <= first {
                    let (range, text) = (range.to_owned(), text.to_owned());
                    return Err(CacheRequestError::BitRange { range, text });
                }
                (first, last)
            }
        };
        mask |= (u64::MAX >> (63 - (last - first))) << first;
    }
    Ok(mask)
}

/// The reason why a request does not fit into its base.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum OverlayError {
    #[error("empty basemask not allowed")]
    EmptyBase,
    #[error("invalid basemask {base:#x}: more than one block of bits set")]
    ScatteredBase { base: CapacityMask },
    #[error("invalid basemask {base:#x}: fewer than {least} bits set")]
    NarrowBase { base: CapacityMask, least: u64 },
    #[error("bitmask {shifted:#x} ({mask:#x} << {shift}) does not fit basemask {base:#x}")]
    DoesNotFit { shifted: u64, mask: CapacityMask, shift: u32, base: CapacityMask },
    #[error("invalid percentage range in {{{low} {high}}}")]
    EmptyRange { low: u64, high: u64 },
    #[error("basemask {base:#x} has fewer than {least} bits")]
    TooFewBits { base: CapacityMask, least: u64 },
}

impl CacheRequest {
    /// Returns the mask of this request within a base. A percentage is rounded down to bits; one
    /// that gives too few bits is widened to lower bits first and then to higher ones. A mask
    /// counts from the lowest bit of the base.
    pub fn within(self, base: CapacityMask, min_bits: u64) -> Result<CapacityMask, OverlayError> {
        if base.is_empty() {
            return Err(OverlayError::EmptyBase);
        }
        if !base.is_contiguous() {
            return Err(OverlayError::ScatteredBase { base });
        }
        if u64::from(base.count()) < min_bits {
            return Err(OverlayError::NarrowBase { base, least: min_bits });
        }
        let shift = base.lowest();
        match self {
            CacheRequest::Mask(mask) => {
                let shifted = u128::from(mask.0) << shift;
                match u64::try_from(shifted).map(CapacityMask) {
                    Ok(fitting) if base.contains(fitting) => Ok(fitting),
                    _ => {
                        let shifted = mask.0 << shift;
                        Err(OverlayError::DoesNotFit { shifted, mask, shift, base })
                    }
                }
            }
            CacheRequest::Percent(high) => percent_of(base, 0, high, min_bits),
            CacheRequest::PercentRange { low, high } => percent_of(base, low, high, min_bits),
        }
    }
}

fn percent_of(
    base: CapacityMask,
    low: u64,
    high: u64,
    min_bits: u64,
) -> Result<CapacityMask, OverlayError> {
    let width = u64::from(base.count());
    let from = low.max(1);
    if from > high || high > 100 {
        return Err(OverlayError::EmptyRange { low, high });
    }
    let (mut first, mut last) = ((from - 1) * width / 100, (high - 1) * width / 100);
    let missing = min_bits.saturating_sub(last - first + 1);
    let below = missing.min(first);
    first -= below;
    last += missing - below;
    if last >= width {
        return Err(OverlayError::TooFewBits { base, least: min_bits });
    }
    let bit = |number: u64| u32::try_from(number).unwrap_or(u32::MAX);
    Ok(CapacityMask::block(base.lowest() + bit(first), bit(last - first + 1)))
}
