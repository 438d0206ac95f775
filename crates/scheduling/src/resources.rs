//! Quantities of resources, as scheduling counts them.
//!
//! Main type: [`ResourceVector`]: CPU in thousandths, everything else in whole units. Only
//! resources that the scheduler counts are kept; `objects` parses quantities.

use objects::Quantity;
use objects::pod::resources::Summable;
use objects::resources::{CPU, EPHEMERAL_STORAGE, HUGEPAGES_PREFIX, MEMORY};
use smallvec::SmallVec;

use crate::interner::{Interner, Symbol};

/// A counted resource.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Resource {
    Cpu,
    FilterCache,
    EphemeralStorage,
    /// Huge pages and extended resources.
    Scalar(Symbol),
}

impl Resource {
    /// Parses a name; `None` if the scheduler does not count the resource.
    pub(crate) fn new(name: &str, symbols: &mut Interner) -> Option<Resource> {
        Some(match name {
            CPU => Resource::Cpu,
            MEMORY => Resource::FilterCache,
            EPHEMERAL_STORAGE => Resource::EphemeralStorage,
            _ if is_scalar(name) => Resource::Scalar(symbols.intern(name)),
            _ => return None,
        })
    }

    pub(crate) fn name(self, symbols: &Interner) -> &str {
        match self {
            Resource::Cpu => CPU,
            Resource::FilterCache => MEMORY,
            Resource::EphemeralStorage => EPHEMERAL_STORAGE,
            Resource::Scalar(name) => symbols.text(name),
        }
    }

    /// Returns a quantity in the units of this resource.
    pub(crate) fn units(self, quantity: &Quantity) -> i64 {
        match self {
            Resource::Cpu => quantity.milli_value(),
            _ => quantity.value(),
        }
    }
}

fn is_scalar(name: &str) -> bool {
    name.contains('/')
        || name.starts_with(HUGEPAGES_PREFIX)
        || name.starts_with("attachable-volumes-")
}

/// ResourceVector by resource.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub(crate) struct ResourceVector {
    pub(crate) milli_cpu: i64,
    pub(crate) memory: i64,
    pub(crate) ephemeral_storage: i64,
    /// In order of symbol. An explicit amount of zero is kept.
    pub(crate) scalars: SmallVec<[(Symbol, i64); 1]>,
}

impl ResourceVector {
    pub(crate) fn get(&self, resource: Resource) -> i64 {
        match resource {
            Resource::Cpu => self.milli_cpu,
            Resource::FilterCache => self.memory,
            Resource::EphemeralStorage => self.ephemeral_storage,
            Resource::Scalar(name) => self.scalar(name).unwrap_or(0),
        }
    }

    /// Returns the amount of a scalar resource, if it is present.
    pub(crate) fn scalar(&self, name: Symbol) -> Option<i64> {
        self.scalars.iter().find(|(n, _)| *n == name).map(|(_, amount)| *amount)
    }

    pub(crate) fn set(&mut self, resource: Resource, amount: i64) {
        *self.slot(resource) = amount;
    }

    fn slot(&mut self, resource: Resource) -> &mut i64 {
        match resource {
            Resource::Cpu => &mut self.milli_cpu,
            Resource::FilterCache => &mut self.memory,
            Resource::EphemeralStorage => &mut self.ephemeral_storage,
            Resource::Scalar(name) => {
                let at = match self.scalars.binary_search_by_key(&name, |(n, _)| *n) {
                    Ok(at) => at,
                    Err(at) => {
                        self.scalars.insert(at, (name, 0));
                        at
                    }
                };
                &mut self.scalars[at].1
            }
        }
    }

    fn each(&mut self, other: &ResourceVector, change: impl Fn(&mut i64, i64)) {
        change(&mut self.milli_cpu, other.milli_cpu);
        change(&mut self.memory, other.memory);
        change(&mut self.ephemeral_storage, other.ephemeral_storage);
        for (name, amount) in &other.scalars {
            change(self.slot(Resource::Scalar(*name)), *amount);
        }
    }

    pub(crate) fn add(&mut self, other: &ResourceVector) {
        self.each(other, |have, more| *have = have.saturating_add(more));
    }

    pub(crate) fn subtract(&mut self, other: &ResourceVector) {
        self.each(other, |have, less| *have = have.saturating_sub(less));
    }

    /// Raises every amount to that of `other`.
    pub(crate) fn raise(&mut self, other: &ResourceVector) {
        self.each(other, |have, least| *have = (*have).max(least));
    }

    pub(crate) fn is_empty_request(&self) -> bool {
        self.milli_cpu == 0
            && self.memory == 0
            && self.ephemeral_storage == 0
            && self.scalars.is_empty()
    }
}

impl Summable for ResourceVector {
    fn add(&mut self, other: &ResourceVector) {
        ResourceVector::add(self, other);
    }

    fn raise(&mut self, other: &ResourceVector) {
        ResourceVector::raise(self, other);
    }
}
