//! Sets of logical CPUs and the kernel's list notation for them (`0-3,8`).
//!
//! Main type: [`CpuSet`], a bit set that needs no allocation up to 1,024 CPUs. It knows nothing of
//! machines: whether a CPU exists is [`crate::topology::Topology`]'s business.

use std::fmt;
use std::ops::{BitAnd, BitOr, Sub};

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use smallvec::SmallVec;
use thiserror::Error;

use crate::go_strconv::{ParseError, parse_int};
use crate::ids::CpuId;

/// The highest id a CPU may have. Linux can be built for 8,192 CPUs and Windows numbers at most
/// 64 groups of 64; anything beyond is a typing error that must not cost gigabytes of bit set.
pub const MAX_CPU: u32 = 65_535;

/// Words kept in place: 16 × 64 = 1,024 CPUs, the largest machine of the performance goals.
type Words = SmallVec<[u64; 16]>;

/// A set of logical CPUs.
// Invariant: the last word is not zero, so equality and hashing can be derived.
#[derive(Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CpuSet {
    words: Words,
}

impl CpuSet {
    #[must_use]
    pub fn new() -> CpuSet {
        CpuSet::default()
    }

    /// The CPUs `first..=last`; empty if `first > last`.
    #[must_use]
    pub fn range(first: u32, last: u32) -> CpuSet {
        let mut set = CpuSet::new();
        if first <= last {
            set.insert_range(CpuId(first), CpuId(last));
        }
        set
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.words.is_empty()
    }

    #[must_use]
    pub fn len(&self) -> usize {
        self.words.iter().map(|w| w.count_ones() as usize).sum()
    }

    #[must_use]
    pub fn contains(&self, cpu: CpuId) -> bool {
        self.words.get(cpu.0 as usize / 64).is_some_and(|w| w >> (cpu.0 % 64) & 1 == 1)
    }

    /// Adds `cpu`.
    ///
    /// # Panics
    /// If `cpu` is above [`MAX_CPU`]; whatever reads input checks that before it makes an id.
    pub fn insert(&mut self, cpu: CpuId) {
        assert!(cpu.0 <= MAX_CPU, "CPU id {cpu} is above {MAX_CPU}");
        let word = cpu.0 as usize / 64;
        if self.words.len() <= word {
            self.words.resize(word + 1, 0);
        }
        self.words[word] |= 1 << (cpu.0 % 64);
    }

    /// Adds the CPUs from `first` up to `last`, a word at a time: lists come from outside, and a
    /// megabyte of `0-65535,` must not cost billions of steps.
    fn insert_range(&mut self, first: CpuId, last: CpuId) {
        self.insert(last);
        let (low, high) = (first.0 as usize / 64, last.0 as usize / 64);
        for word in low..=high {
            let from = if word == low { u64::MAX << (first.0 % 64) } else { u64::MAX };
            let to = if word == high { u64::MAX >> (63 - last.0 % 64) } else { u64::MAX };
            self.words[word] |= from & to;
        }
    }

    pub fn remove(&mut self, cpu: CpuId) {
        if let Some(word) = self.words.get_mut(cpu.0 as usize / 64) {
            *word &= !(1 << (cpu.0 % 64));
            self.trim();
        }
    }

    pub fn union_with(&mut self, other: &CpuSet) {
        if self.words.len() < other.words.len() {
            self.words.resize(other.words.len(), 0);
        }
        for (w, o) in self.words.iter_mut().zip(&other.words) {
            *w |= o;
        }
    }

    pub fn intersect_with(&mut self, other: &CpuSet) {
        self.words.truncate(other.words.len());
        for (w, o) in self.words.iter_mut().zip(&other.words) {
            *w &= o;
        }
        self.trim();
    }

    pub fn subtract(&mut self, other: &CpuSet) {
        for (w, o) in self.words.iter_mut().zip(&other.words) {
            *w &= !o;
        }
        self.trim();
    }

    /// How many CPUs both sets hold, without building the intersection.
    #[must_use]
    pub fn count_common(&self, other: &CpuSet) -> usize {
        self.words.iter().zip(&other.words).map(|(a, b)| (a & b).count_ones() as usize).sum()
    }

    #[must_use]
    pub fn is_disjoint(&self, other: &CpuSet) -> bool {
        self.words.iter().zip(&other.words).all(|(a, b)| a & b == 0)
    }

    #[must_use]
    pub fn is_subset(&self, other: &CpuSet) -> bool {
        self.words.len() <= other.words.len()
            && self.words.iter().zip(&other.words).all(|(a, b)| a & !b == 0)
    }

    #[must_use]
    pub fn first(&self) -> Option<CpuId> {
        self.iter().next()
    }

    #[must_use]
    pub fn last(&self) -> Option<CpuId> {
        let word = self.words.last()?;
        Some(CpuId((self.words.len() * 64 - 1) as u32 - word.leading_zeros()))
    }

    /// The CPUs in ascending order.
    pub fn iter(&self) -> Iter<'_> {
        Iter { words: &self.words, next: 0, bits: self.words.first().copied().unwrap_or(0) }
    }

    /// The bits of CPUs `64 * index ..`, which on Windows are those of processor group `index`.
    #[must_use]
    pub fn word(&self, index: usize) -> u64 {
        self.words.get(index).copied().unwrap_or(0)
    }

    /// Number of 64-bit words up to the highest CPU.
    #[must_use]
    pub fn word_count(&self) -> usize {
        self.words.len()
    }

    /// Reads the kernel's list notation; the empty string is the empty set. Like the kubelet, it
    /// takes ids with a plus sign or leading zeros and overlapping ranges, but no white space.
    pub fn parse(text: &str) -> Result<CpuSet, ParseCpuSetError> {
        let mut set = CpuSet::new();
        if text.is_empty() {
            return Ok(set);
        }
        for part in text.split(',') {
            // "1--2" is the range from 1 to -2: cut at the first dash only.
            match part.split_once('-') {
                None => set.insert(parse_id(part)?),
                Some((first, last)) => {
                    let first = parse_int(first)?;
                    let last = parse_int(last)?;
                    if first > last {
                        return Err(ParseCpuSetError::Backwards {
                            range: part.to_owned(),
                            first,
                            last,
                        });
                    }
                    let (first, last) = (checked_id(first)?, checked_id(last)?);
                    set.insert_range(first, last);
                }
            }
        }
        Ok(set)
    }

    fn trim(&mut self) {
        while self.words.last() == Some(&0) {
            self.words.pop();
        }
    }
}

/// Why a text is not a CPU list. The texts are the kubelet's.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum ParseCpuSetError {
    #[error(transparent)]
    Number(#[from] ParseError),
    #[error("invalid range {range:?} ({first} > {last})")]
    Backwards { range: String, first: i64, last: i64 },
    #[error("CPU id {0} is above {MAX_CPU}, the highest id a CPU can have")]
    TooHigh(i64),
}

fn parse_id(text: &str) -> Result<CpuId, ParseCpuSetError> {
    checked_id(parse_int(text)?)
}

fn checked_id(number: i64) -> Result<CpuId, ParseCpuSetError> {
    u32::try_from(number)
        .ok()
        .filter(|id| *id <= MAX_CPU)
        .map(CpuId)
        .ok_or(ParseCpuSetError::TooHigh(number))
}

/// Ascending iterator over a [`CpuSet`].
#[derive(Clone, Debug)]
pub struct Iter<'a> {
    words: &'a [u64],
    next: usize,
    bits: u64,
}

impl Iterator for Iter<'_> {
    type Item = CpuId;

    fn next(&mut self) -> Option<CpuId> {
        while self.bits == 0 {
            self.next += 1;
            self.bits = *self.words.get(self.next)?;
        }
        let bit = self.bits.trailing_zeros();
        self.bits &= self.bits - 1;
        Some(CpuId((self.next * 64) as u32 + bit))
    }
}

impl<'a> IntoIterator for &'a CpuSet {
    type Item = CpuId;
    type IntoIter = Iter<'a>;

    fn into_iter(self) -> Iter<'a> {
        self.iter()
    }
}

impl FromIterator<CpuId> for CpuSet {
    fn from_iter<I: IntoIterator<Item = CpuId>>(cpus: I) -> CpuSet {
        let mut set = CpuSet::new();
        cpus.into_iter().for_each(|cpu| set.insert(cpu));
        set
    }
}

impl BitOr for &CpuSet {
    type Output = CpuSet;

    fn bitor(self, other: &CpuSet) -> CpuSet {
        let mut set = self.clone();
        set.union_with(other);
        set
    }
}

impl BitAnd for &CpuSet {
    type Output = CpuSet;

    fn bitand(self, other: &CpuSet) -> CpuSet {
        let mut set = self.clone();
        set.intersect_with(other);
        set
    }
}

impl Sub for &CpuSet {
    type Output = CpuSet;

    fn sub(self, other: &CpuSet) -> CpuSet {
        let mut set = self.clone();
        set.subtract(other);
        set
    }
}

impl fmt::Display for CpuSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut cpus = self.iter().peekable();
        let mut comma = "";
        while let Some(first) = cpus.next() {
            let mut last = first;
            while let Some(next) = cpus.next_if(|c| c.0 == last.0 + 1) {
                last = next;
            }
            write!(f, "{comma}{first}")?;
            if last != first {
                write!(f, "-{last}")?;
            }
            comma = ",";
        }
        Ok(())
    }
}

impl fmt::Debug for CpuSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{{{self}}}")
    }
}

impl Serialize for CpuSet {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for CpuSet {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<CpuSet, D::Error> {
        let text = std::borrow::Cow::<'de, str>::deserialize(deserializer)?;
        CpuSet::parse(&text)
            .map_err(|e| serde::de::Error::custom(format!("CPU list {text:?}: {e}")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_round_trips_in_canonical_form() {
        for (text, canonical) in
            [("", ""), ("5,4,3", "3-5"), ("0-3,8-11,9", "0-3,8-11"), ("63,64", "63-64")]
        {
            assert_eq!(CpuSet::parse(text).unwrap().to_string(), canonical);
        }
    }

    #[test]
    fn ranges_are_filled_across_words() {
        for (first, last) in [(0, 0), (0, 63), (63, 64), (5, 130), (64, 127), (100, 1000)] {
            let expected: CpuSet = (first..=last).map(CpuId).collect();
            assert_eq!(CpuSet::range(first, last), expected);
            assert_eq!(CpuSet::parse(&format!("{first}-{last}")).unwrap(), expected);
        }
        assert!(CpuSet::range(2, 1).is_empty());
    }

    #[test]
    fn an_absurd_id_is_refused_not_allocated() {
        assert_eq!(CpuSet::parse("0-4294967295"), Err(ParseCpuSetError::TooHigh(4_294_967_295)));
    }

    #[test]
    fn removing_the_highest_cpu_keeps_equality_exact() {
        let mut set = CpuSet::range(0, 3);
        set.insert(CpuId(700));
        set.remove(CpuId(700));
        assert_eq!(set, CpuSet::range(0, 3));
        assert_eq!(set.last(), Some(CpuId(3)));
    }
}
