//! The hash by which a running container is known to be of the definition that is wanted: [`hash`].
//!
//! Covers what may change in a running pod and cannot change in a running container. Resources can,
//! and so are not in it. Does not equal upstream's, which prints Go values; nothing compares the two.

use crate::spec::Container;

/// The same on every machine and after every restart: hexadecimal, as upstream writes it.
#[must_use]
pub fn hash(container: &Container) -> String {
    // A byte that no text has, so that no two pairs run together.
    let bytes = [container.name.as_bytes(), &[0xff], container.image.as_bytes()].concat();
    format!("{:x}", fnv1a(&bytes))
}

/// FNV-1a of 64 bits.
fn fnv1a(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    })
}
