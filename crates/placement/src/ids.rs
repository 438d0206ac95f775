//! Newtypes for the ids and units of a machine.
//!
//! Main types: [`CpuId`], [`CoreId`], [`SocketId`], [`NumaId`], [`CacheId`], [`Bytes`]. They carry
//! no behaviour; sets of CPUs are in [`crate::cpuset`], sets of NUMA nodes in [`crate::numa`].

use std::fmt;

use serde::{Deserialize, Serialize};

macro_rules! id {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $name(pub u32);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
    };
}

id! {
    /// A logical CPU, numbered as the operating system does; on Windows `group * 64 + number`.
    CpuId
}
id! {
    /// A physical core, named after its lowest logical CPU.
    CoreId
}
id! {
    /// A physical processor package.
    SocketId
}
id! {
    /// A NUMA node, numbered as the operating system does; ids may have holes.
    NumaId
}
id! {
    /// An uncore (last-level) cache.
    CacheId
}

/// An amount of memory.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct Bytes(pub u64);

impl Bytes {
    pub const ZERO: Bytes = Bytes(0);

    #[must_use]
    pub const fn kib(n: u64) -> Bytes {
        Bytes(n * 1024)
    }

    #[must_use]
    pub const fn mib(n: u64) -> Bytes {
        Bytes(n << 20)
    }

    #[must_use]
    pub const fn gib(n: u64) -> Bytes {
        Bytes(n << 30)
    }
}

impl Bytes {
    /// The amount with at most one decimal, in the largest binary unit below it: `23.5Gi`. For people only.
    #[must_use]
    pub fn rounded(self) -> String {
        for (shift, unit) in [(50, "Pi"), (40, "Ti"), (30, "Gi"), (20, "Mi"), (10, "Ki")] {
            let one = 1u64 << shift;
            if self.0 >= one {
                let text = format!("{:.1}", self.0 as f64 / one as f64);
                return format!("{}{unit}", text.strip_suffix(".0").unwrap_or(&text));
            }
        }
        format!("{} bytes", self.0)
    }
}

impl fmt::Display for Bytes {
    /// The largest binary unit that divides the amount: `64Mi`, `1536Ki`, `1000`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (shift, unit) in [(50, "Pi"), (40, "Ti"), (30, "Gi"), (20, "Mi"), (10, "Ki")] {
            if self.0 != 0 && self.0.trailing_zeros() >= shift {
                return write!(f, "{}{unit}", self.0 >> shift);
            }
        }
        write!(f, "{}", self.0)
    }
}
