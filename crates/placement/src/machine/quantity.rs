//! Amounts of memory as machine descriptions write them: bytes, or a number with a unit.
//!
//! Main entry: [`parse`]. Only whole amounts of bytes: this is hardware, not a request.

use crate::Bytes;

/// The description of a valid amount, for errors.
pub const EXPECTED: &str = "bytes or a number with a unit, like 68719476736 or 64Gi";

/// The units that may be given, for errors.
const TYPED: &str = "a number with a unit, like 512Mi or 64Gi";

const UNITS: [(&str, u64); 12] = [
    ("Ki", 1 << 10),
    ("Mi", 1 << 20),
    ("Gi", 1 << 30),
    ("Ti", 1 << 40),
    ("Pi", 1 << 50),
    ("Ei", 1 << 60),
    ("k", 1_000),
    ("M", 1_000_000),
    ("G", 1_000_000_000),
    ("T", 1_000_000_000_000),
    ("P", 1_000_000_000_000_000),
    ("E", 1_000_000_000_000_000_000),
];

/// Parses an amount; `None` if it is invalid or needs more than 64 bits.
#[must_use]
pub fn parse(text: &str) -> Option<Bytes> {
    let (digits, factor) = UNITS
        .iter()
        .find_map(|(unit, factor)| Some((text.strip_suffix(unit)?, *factor)))
        .unwrap_or((text, 1));
    if digits.is_empty() || !digits.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    digits.parse::<u64>().ok()?.checked_mul(factor).map(Bytes)
}

/// Parses an amount that a user typed. A number without a unit is rejected, because it would mean
/// bytes: `mem=512` hardly means 512 bytes.
pub fn parse_typed(text: &str) -> Result<Bytes, String> {
    let amount = parse(text).ok_or_else(|| format!("it should be {TYPED}"))?;
    let has_unit = text.ends_with(|c: char| c.is_ascii_alphabetic());
    if has_unit || amount == Bytes::ZERO {
        return Ok(amount);
    }
    Err(format!("it has no unit: write {text}Mi or {text}Gi, or whichever unit you mean"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_typed_amount_needs_a_unit() {
        assert_eq!(parse_typed("64Gi"), Ok(Bytes::gib(64)));
        assert_eq!(parse_typed("0"), Ok(Bytes::ZERO));
        let refused = parse_typed("512").unwrap_err();
        assert!(refused.contains("512Mi or 512Gi"), "{refused}");
        assert!(parse_typed("512GB").unwrap_err().contains("64Gi"));
    }

    #[test]
    fn amounts_are_whole_and_fit_into_64_bits() {
        assert_eq!(parse("64Gi"), Some(Bytes::gib(64)));
        assert_eq!(parse("1k"), Some(Bytes(1000)));
        assert_eq!(parse("0"), Some(Bytes::ZERO));
        for bad in ["", "Gi", "-1", "1.5Gi", "16Ei", "99999999999999999999", "1 Gi", "1gi", "+1"] {
            assert_eq!(parse(bad), None, "{bad}");
        }
    }
}
