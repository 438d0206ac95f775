//! Requests for memory bandwidth: a percentage or megabytes per second, whichever the machine uses.
//!
//! Main entry: [`requests`]. Combining a class with its partition is in [`super::plan`].

use std::collections::BTreeMap;

use thiserror::Error;

use super::config::{BandwidthShare, PerCache};
use super::plan::Warning;
use super::{ALL_CACHES, CacheIdList, CacheIdListError};
use crate::go_text::{NumberError, parse_uint, quoted};
use crate::hardware::{Bandwidth, CacheId};

/// The bandwidth that stands for "no limit" in megabytes per second.
pub const UNLIMITED_MBPS: u64 = 4_294_967_295;

const PERCENT: &str = "%";
const MBPS: &str = "MBps";

/// The reason why requests for bandwidth cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum BandwidthRequestError {
    #[error(transparent)]
    Number(#[from] NumberError),
    #[error(transparent)]
    CacheIds(#[from] CacheIdListError),
    #[error(
        "missing '%' value from mbSchema; required because percentage-based MBA allocation is enabled in the system"
    )]
    NoPercent,
    #[error(
        "missing 'MBps' value from mbSchema; required because 'mba_MBps' is enabled in the system"
    )]
    NoMbps,
    #[error("cache id {id} is in the keys {} and {} with different values", quoted(.first), quoted(.second))]
    Overlap { id: CacheId, first: String, second: String },
}

/// Reads the requests for every cache, in the unit that the machine uses. Alternatives with an
/// unknown unit are skipped with a warning.
pub(crate) fn requests(
    written: &PerCache<BandwidthShare>,
    hardware: Option<&Bandwidth>,
    warnings: &mut Vec<Warning>,
) -> Result<BTreeMap<CacheId, u64>, BandwidthRequestError> {
    let mbps = hardware.is_some_and(|mb| mb.mbps);
    let default = match written.get(ALL_CACHES) {
        Some(share) => parse_share(share, mbps, warnings)?,
        None if mbps => UNLIMITED_MBPS,
        None => 100,
    };
    let ids = hardware.map(|mb| mb.cache_ids.as_slice()).unwrap_or_default();
    let mut requests: BTreeMap<CacheId, u64> = ids.iter().map(|id| (*id, default)).collect();
    let mut named: BTreeMap<CacheId, &str> = BTreeMap::new();
    for (key, share) in written.iter().filter(|(key, _)| *key != ALL_CACHES) {
        let list = CacheIdList::parse(key)?;
        let value = parse_share(share, mbps, warnings)?;
        for (id, request) in requests.iter_mut().filter(|(id, _)| list.contains(**id)) {
            if let Some(first) = named.insert(*id, key)
                && *request != value
            {
                let (first, second) = (first.to_owned(), key.clone());
                return Err(BandwidthRequestError::Overlap { id: *id, first, second });
            }
            *request = value;
        }
    }
    Ok(requests)
}

fn parse_share(
    share: &BandwidthShare,
    mbps: bool,
    warnings: &mut Vec<Warning>,
) -> Result<u64, BandwidthRequestError> {
    for text in share {
        if let Some(digits) = text.strip_suffix(PERCENT) {
            if !mbps {
                return Ok(parse_uint(digits, 10, 7)?);
            }
        } else if let Some(digits) = text.strip_suffix(MBPS) {
            if mbps {
                return Ok(parse_uint(digits, 10, 32)?);
            }
        } else {
            warnings.push(Warning::BandwidthUnit { value: text.clone() });
        }
    }
    Err(if mbps { BandwidthRequestError::NoMbps } else { BandwidthRequestError::NoPercent })
}
