//! Parses quantities: splits the text, interprets the suffix, and chooses between the 64-bit form
//! and the big decimal exactly as upstream does. Entry: [`parse`].

use num_bigint::BigInt;

use super::decimal::{Decimal, Small};
use super::{Amount, Format, ParseQuantityError, Quantity};

/// Binary suffixes by power of 1,024.
pub(super) const BINARY_SUFFIXES: [&str; 7] = ["", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei"];

/// Decimal suffixes by power of 1,000, starting with nano.
const DECIMAL_SUFFIXES: [&str; 10] = ["n", "u", "m", "", "k", "M", "G", "T", "P", "E"];

/// The smallest unit that is kept: 10^-9.
const NANO: i32 = -9;

/// Numbers of up to this many digits are tried as 64-bit integers.
const MAX_SMALL_DIGITS: usize = 18;

/// The longest text that is read. Upstream has no limit; no real quantity has a hundred digits.
const MAX_LENGTH: usize = 1024;

/// The largest exponent of ten of a number with more digits than [`MAX_SMALL_DIGITS`]. Such a
/// number is written out digit by digit.
const MAX_BIG_EXPONENT: i32 = 1024;

pub(super) fn decimal_suffix(exponent: i64) -> Option<&'static str> {
    let index = usize::try_from(exponent / 3 + 3).ok()?;
    DECIMAL_SUFFIXES.get(index).copied().filter(|_| exponent % 3 == 0)
}

/// The parts of a quantity's text. `number` has sign and point as written.
struct Pieces<'a> {
    negative: bool,
    number: &'a str,
    whole: &'a str,
    fraction: &'a str,
    suffix: &'a str,
}

/// The factor of a suffix: 10^exponent or 2^exponent, by format.
struct Unit {
    format: Format,
    exponent: i32,
}

pub(super) fn parse(text: &str) -> Result<Quantity, ParseQuantityError> {
    if text.is_empty() {
        return Err(ParseQuantityError::Format);
    }
    if text.len() > MAX_LENGTH {
        return Err(ParseQuantityError::Numeric);
    }
    let pieces = split(text)?;
    let unit = interpret(pieces.suffix).ok_or(ParseQuantityError::Suffix)?;
    if let Some((small, as_written)) = small(&pieces, &unit) {
        return Ok(Quantity {
            amount: Amount::Small(small),
            format: unit.format,
            text: as_written.then(|| text.into()),
        });
    }
    big(&pieces, &unit)
}

/// Splits the text with as few checks as needed: `Gi` is zero with a suffix, `1..5` fails because
/// the second point cannot start a suffix.
fn split(text: &str) -> Result<Pieces<'_>, ParseQuantityError> {
    let negative = text.starts_with('-');
    let unsigned = text.strip_prefix(['+', '-']).unwrap_or(text);
    let digits = unsigned.trim_start_matches('0');
    if digits.is_empty() {
        return Ok(Pieces { negative, number: "0", whole: "0", fraction: "", suffix: "" });
    }
    let (whole, rest) = leading_digits(digits);
    let (fraction, suffix) = match rest.strip_prefix('.') {
        Some(rest) => leading_digits(rest),
        None => ("", rest),
    };
    let letters = suffix.trim_start_matches(|c| "eEinumkKMGTP".contains(c));
    if !letters.is_empty() {
        let exponent = letters.strip_prefix(['+', '-']).unwrap_or(letters);
        if !exponent.bytes().all(|b| b.is_ascii_digit()) {
            return Err(ParseQuantityError::Format);
        }
    }
    let number = &text[..text.len() - suffix.len()];
    let whole = if whole.is_empty() { "0" } else { whole };
    Ok(Pieces { negative, number, whole, fraction, suffix })
}

fn leading_digits(text: &str) -> (&str, &str) {
    let end = text.bytes().position(|b| !b.is_ascii_digit()).unwrap_or(text.len());
    text.split_at(end)
}

fn interpret(suffix: &str) -> Option<Unit> {
    if let Some(index) = DECIMAL_SUFFIXES.iter().position(|s| *s == suffix) {
        let exponent = i32::try_from(index).ok()? * 3 + NANO;
        return Some(Unit { format: Format::DecimalSi, exponent });
    }
    if let Some(index) = BINARY_SUFFIXES.iter().position(|s| *s == suffix) {
        let exponent = i32::try_from(index).ok()? * 10;
        return Some(Unit { format: Format::BinarySi, exponent });
    }
    let exponent: i64 = suffix.strip_prefix(['e', 'E'])?.parse().ok()?;
    // Upstream truncates the 64-bit exponent without a check.
    #[expect(clippy::cast_possible_truncation)]
    Some(Unit { format: Format::DecimalExponent, exponent: exponent as i32 })
}

/// Returns the 64-bit form, if upstream would use it, and whether the text is kept as written:
/// upstream takes some texts as canonical that are not (`+1`, `007`, `2104.330`).
fn small(pieces: &Pieces<'_>, unit: &Unit) -> Option<(Small, bool)> {
    let Pieces { whole, fraction, .. } = *pieces;
    let mut exponent = 0_i32;
    let mut factor = 1_i64;
    if unit.format == Format::BinarySi {
        // Upstream's estimate of how many digits are left after multiplying by the suffix.
        let factor_digits = usize::try_from(unit.exponent).ok()? * 3 / 10;
        if !fraction.is_empty() || whole.len() + factor_digits + 1 > 15 {
            return None;
        }
        factor = 1_i64.checked_shl(u32::try_from(unit.exponent).ok()?)?;
    } else {
        if whole.len() + fraction.len() > MAX_SMALL_DIGITS {
            return None;
        }
        exponent = unit.exponent.wrapping_sub(i32::try_from(fraction.len()).ok()?);
    }
    if exponent < NANO {
        return None;
    }
    let digits = format!("{whole}{fraction}");
    let number: i64 = digits.parse().ok()?;
    let value = number.checked_mul(factor)?;
    let as_written = match unit.format {
        Format::BinarySi => number & 7 != 0,
        _ => exponent % 3 == 0 && !digits.ends_with("000") && !digits.starts_with('0'),
    };
    Some((Small { value: if pieces.negative { -value } else { value }, exponent }, as_written))
}

/// Returns the big form: exact to 10^-9, smaller parts rounded away from zero.
fn big(pieces: &Pieces<'_>, unit: &Unit) -> Result<Quantity, ParseQuantityError> {
    if !pieces.number.bytes().any(|b| b.is_ascii_digit()) {
        return Err(ParseQuantityError::Numeric);
    }
    let digits = format!("{}{}", pieces.whole, pieces.fraction);
    let mut unscaled: BigInt = digits.parse().map_err(|_| ParseQuantityError::Numeric)?;
    let mut exponent = -i32::try_from(pieces.fraction.len()).unwrap_or(i32::MAX);
    let mut format = unit.format;
    if format == Format::BinarySi {
        unscaled <<= unit.exponent;
    } else {
        exponent = exponent.saturating_add(unit.exponent);
    }
    if unscaled == BigInt::ZERO {
        let amount = Amount::Big(Box::new(Decimal { unscaled, exponent: 0 }));
        return Ok(Quantity { amount, format, text: None });
    }
    if exponent > MAX_BIG_EXPONENT {
        let small = without_trailing_zeros(unscaled, exponent, pieces.negative);
        let amount = Amount::Small(small.ok_or(ParseQuantityError::Numeric)?);
        return Ok(Quantity { amount, format, text: None });
    }
    let mut decimal =
        Decimal { unscaled, exponent }.rounded_up(NANO).ok_or(ParseQuantityError::Numeric)?;
    if format == Format::BinarySi {
        let one = Decimal { unscaled: 1.into(), exponent: 0 };
        let most = Decimal { unscaled: i64::MAX.into(), exponent: 0 };
        if decimal.compare(&most).is_gt() {
            decimal = most;
        } else if decimal.compare(&one).is_lt() {
            format = Format::DecimalSi;
        }
    }
    if pieces.negative {
        decimal.unscaled = -decimal.unscaled;
    }
    Ok(Quantity { amount: Amount::Big(Box::new(decimal)), format, text: None })
}

/// Returns the 64-bit form of a number with a large exponent. The canonical text of such a number
/// may have up to two zeros more than [`MAX_SMALL_DIGITS`].
fn without_trailing_zeros(
    mut unscaled: BigInt,
    mut exponent: i32,
    negative: bool,
) -> Option<Small> {
    while &unscaled % 10_u32 == BigInt::ZERO {
        unscaled /= 10_u32;
        exponent = exponent.checked_add(1)?;
    }
    let value = i64::try_from(unscaled).ok()?;
    let digits = value.checked_ilog10().map_or(1, |digits| digits as usize + 1);
    (digits <= MAX_SMALL_DIGITS)
        .then(|| Small { value: if negative { -value } else { value }, exponent })
}
