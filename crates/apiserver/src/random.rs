//! Randomness: unique ids, generated names, and jitter.

/// Returns a random UUID for a new object.
#[must_use]
pub(crate) fn uid() -> String {
    let mut bytes: [u8; 16] = random();
    bytes[6] = (bytes[6] & 0x0f) | 0x40;
    bytes[8] = (bytes[8] & 0x3f) | 0x80;
    let mut text = String::with_capacity(36);
    for (index, byte) in bytes.iter().enumerate() {
        if matches!(index, 4 | 6 | 8 | 10) {
            text.push('-');
        }
        for digit in [byte >> 4, byte & 15] {
            text.push(char::from(b"0123456789abcdef"[usize::from(digit)]));
        }
    }
    text
}

/// Returns the suffix of a generated name. Without vowels, so that it never spells a word.
#[must_use]
pub(crate) fn suffix() -> String {
    const ALPHABET: &[u8; 27] = b"bcdfghjklmnpqrstvwxz2456789";
    let bytes: [u8; 5] = random();
    bytes.iter().map(|byte| char::from(ALPHABET[usize::from(*byte) % ALPHABET.len()])).collect()
}

/// Returns a number below a bound that is not zero.
#[must_use]
pub(crate) fn below(bound: u64) -> u64 {
    u64::from_le_bytes(random()) % bound.max(1)
}

/// Returns a key for signing tokens.
#[must_use]
pub fn secret() -> [u8; 32] {
    random()
}

fn random<const N: usize>() -> [u8; N] {
    let mut bytes = [0; N];
    // Without a system source, uniqueness still comes from the clock and a counter.
    if getrandom::fill(&mut bytes).is_err() {
        use std::hash::{BuildHasher as _, Hasher as _};
        for chunk in bytes.chunks_mut(8) {
            let fresh = std::hash::RandomState::new().build_hasher().finish().to_le_bytes();
            chunk.copy_from_slice(&fresh[..chunk.len()]);
        }
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uids_are_version_four_and_differ() {
        let (a, b) = (uid(), uid());
        assert_ne!(a, b);
        assert_eq!(a.len(), 36);
        assert_eq!(a.as_bytes()[14], b'4');
        assert!(matches!(a.as_bytes()[19], b'8' | b'9' | b'a' | b'b'));
    }
}
