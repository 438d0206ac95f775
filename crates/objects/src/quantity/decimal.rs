//! The arithmetic of quantities: a 64-bit mantissa with a decimal exponent ([`Small`]) and the
//! unbounded form of it ([`Decimal`]). Both represent `mantissa × 10^exponent`. Notation and
//! suffixes are not known here.

use std::cmp::Ordering;

use num_bigint::{BigInt, BigUint, Sign};

/// Numbers are aligned by writing out zeros; a larger gap than this is rejected, so that a short
/// text with a huge exponent cannot allocate gigabytes.
const MAX_ALIGNMENT: u64 = 4096;

#[derive(Debug, Clone, Copy)]
pub(super) struct Small {
    pub(super) value: i64,
    pub(super) exponent: i32,
}

impl Small {
    pub(super) fn as_i64(self) -> Option<i64> {
        if self.exponent < 0 { None } else { self.shifted_up(i64::from(self.exponent)).0 }
    }

    /// The value in units of `10^exponent`, rounded away from zero.
    pub(super) fn scaled_value(self, exponent: i32) -> i64 {
        let shift = i64::from(self.exponent) - i64::from(exponent);
        if shift >= 0 {
            let (exact, overflowed) = self.shifted_up(shift);
            return exact.unwrap_or(overflowed);
        }
        let Some(divisor) = u32::try_from(-shift).ok().and_then(|n| 10_i64.checked_pow(n)) else {
            return self.value.signum();
        };
        let (quotient, remainder) = (self.value / divisor, self.value % divisor);
        quotient + remainder.signum()
    }

    /// Returns `value × 10^shift`: the exact product, and upstream's result where there is none.
    /// Upstream multiplies in one step for the common shifts, which wraps, and digit by digit for
    /// others, which stops and returns zero.
    fn shifted_up(self, shift: i64) -> (Option<i64>, i64) {
        if self.value == 0 || shift == 0 {
            return (Some(self.value), self.value);
        }
        let factor = u32::try_from(shift).ok().and_then(|n| 10_i64.checked_pow(n));
        let exact = factor.and_then(|f| self.value.checked_mul(f));
        let overflowed = match (shift, factor) {
            (1 | 2 | 3 | 6 | 9, Some(f)) if self.value != i64::MIN => self.value.wrapping_mul(f),
            _ => 0,
        };
        (exact, overflowed)
    }

    pub(super) fn checked_add(self, other: Small) -> Option<Small> {
        if other.value == 0 {
            return Some(self);
        }
        if self.value == 0 {
            return Some(other);
        }
        let exponent = self.exponent.min(other.exponent);
        let a = self.shifted_up(i64::from(self.exponent) - i64::from(exponent)).0?;
        let b = other.shifted_up(i64::from(other.exponent) - i64::from(exponent)).0?;
        Some(Small { value: a.checked_add(b)?, exponent })
    }

    pub(super) fn checked_sub(self, other: Small) -> Option<Small> {
        self.checked_add(Small { value: other.value.checked_neg()?, exponent: other.exponent })
    }
}

#[derive(Debug, Clone)]
pub(super) struct Decimal {
    pub(super) unscaled: BigInt,
    pub(super) exponent: i32,
}

impl From<Small> for Decimal {
    fn from(small: Small) -> Decimal {
        Decimal { unscaled: small.value.into(), exponent: small.exponent }
    }
}

impl Decimal {
    pub(super) fn sign(&self) -> i32 {
        match self.unscaled.sign() {
            Sign::Minus => -1,
            Sign::NoSign => 0,
            Sign::Plus => 1,
        }
    }

    /// Returns the same value with exactly this exponent, rounded away from zero; `None` if it
    /// would have too many digits.
    pub(super) fn rounded_up(&self, exponent: i32) -> Option<Decimal> {
        let shift = i64::from(self.exponent) - i64::from(exponent);
        if self.sign() == 0 || shift == 0 {
            return Some(Decimal { unscaled: self.unscaled.clone(), exponent });
        }
        if shift > 0 {
            return Some(Decimal { unscaled: &self.unscaled * power_of_ten(shift)?, exponent });
        }
        // Dividing by more than the number has digits leaves only the rounding.
        let digits_at_most = i64::try_from(self.unscaled.bits()).ok()? / 3 + 1;
        let unscaled = if -shift > digits_at_most {
            BigInt::from(self.sign())
        } else {
            let divisor = power_of_ten(-shift)?;
            let (quotient, remainder) = (&self.unscaled / &divisor, &self.unscaled % &divisor);
            quotient + sign_of(&remainder)
        };
        Some(Decimal { unscaled, exponent })
    }

    /// Returns the value in units of `10^exponent`, rounded up, if it fits in 64 bits.
    pub(super) fn ceil_at(&self, exponent: i32) -> Option<i64> {
        let shift = i64::from(self.exponent) - i64::from(exponent);
        if shift > 18 && self.sign() != 0 {
            return None;
        }
        i64::try_from(&self.rounded_up(exponent)?.unscaled).ok()
    }

    /// Returns the value in units of `10^exponent` as upstream computes it for big decimals: 64-bit
    /// arithmetic on the lowest bits, except in special cases, and a remainder always adds one,
    /// below zero as well.
    pub(super) fn scaled_value(&self, exponent: i32) -> i64 {
        let shift = i64::from(self.exponent) - i64::from(exponent);
        if shift >= 0 {
            let factor = u32::try_from(shift).ok().and_then(|n| 10_i64.checked_pow(n));
            return low_bits(&self.unscaled).wrapping_mul(factor.unwrap_or(i64::MIN));
        }
        let quick = u32::try_from(-shift).ok().and_then(|n| 10_i64.checked_pow(n));
        if let Some(divisor) = quick
            && self.unscaled < BigInt::from(i64::MAX)
        {
            let low = low_bits(&self.unscaled);
            return low / divisor + i64::from(low % divisor != 0);
        }
        // Only numbers above the 64-bit range, or divided by more than 10^18, reach this.
        let Some(divisor) = power_of_ten(-shift) else { return i64::from(self.sign() != 0) };
        let (quotient, remainder) = (&self.unscaled / &divisor, &self.unscaled % &divisor);
        low_bits(&quotient).wrapping_add(i64::from(remainder.sign() != Sign::NoSign))
    }

    pub(super) fn checked_add(&self, other: &Decimal) -> Option<Decimal> {
        if other.sign() == 0 {
            return Some(self.clone());
        }
        if self.sign() == 0 {
            return Some(other.clone());
        }
        let exponent = self.exponent.min(other.exponent);
        let (a, b) = (self.rounded_up(exponent)?, other.rounded_up(exponent)?);
        Some(Decimal { unscaled: a.unscaled + b.unscaled, exponent })
    }

    pub(super) fn checked_sub(&self, other: &Decimal) -> Option<Decimal> {
        self.checked_add(&Decimal { unscaled: -&other.unscaled, exponent: other.exponent })
    }

    pub(super) fn compare(&self, other: &Decimal) -> Ordering {
        if self.sign() != other.sign() || self.sign() == 0 {
            return self.sign().cmp(&other.sign());
        }
        // The position of the leading digit decides unless it is equal; then the exponents differ
        // by no more than the numbers have digits, and aligning them is cheap.
        let magnitude = |d: &Decimal| digits(&d.unscaled) + i64::from(d.exponent);
        let by_magnitude = magnitude(self).cmp(&magnitude(other));
        let absolute = by_magnitude.then_with(|| {
            let exponent = self.exponent.min(other.exponent);
            let align = |d: &Decimal| {
                let zeros = u32::try_from(d.exponent - exponent).unwrap_or(0);
                d.unscaled.magnitude() * BigUint::from(10_u32).pow(zeros)
            };
            align(self).cmp(&align(other))
        });
        if self.sign() < 0 { absolute.reverse() } else { absolute }
    }

    /// Returns mantissa and exponent with the largest exponent that is a multiple of three.
    pub(super) fn base_1000(&self) -> (BigInt, i64) {
        let ten = BigInt::from(10);
        let (mut mantissa, mut exponent) = (self.unscaled.clone(), i64::from(self.exponent));
        while mantissa.sign() != Sign::NoSign && (&mantissa % &ten).sign() == Sign::NoSign {
            mantissa /= &ten;
            exponent += 1;
        }
        while exponent % 3 != 0 {
            mantissa *= 10;
            exponent -= 1;
        }
        (mantissa, exponent)
    }

    /// Returns mantissa and power of 1,024 (at most six, `Ei`); `None` for fractions and for
    /// numbers smaller than 1,024 either way.
    pub(super) fn base_1024(&self) -> Option<(BigInt, usize)> {
        let whole = self.rounded_up(0)?;
        if whole.compare(self) != Ordering::Equal {
            return None;
        }
        let mut mantissa = whole.unscaled;
        if mantissa.magnitude() < &BigUint::from(1024_u32) {
            return None;
        }
        let mut power = 0;
        while power < 6 && mantissa.trailing_zeros().is_some_and(|zeros| zeros >= 10) {
            mantissa >>= 10;
            power += 1;
        }
        Some((mantissa, power))
    }
}

/// 10^n, or `None` beyond [`MAX_ALIGNMENT`].
fn power_of_ten(n: i64) -> Option<BigInt> {
    let n = u64::try_from(n).ok().filter(|n| *n <= MAX_ALIGNMENT)?;
    Some(BigInt::from(10).pow(u32::try_from(n).ok()?))
}

fn sign_of(number: &BigInt) -> BigInt {
    match number.sign() {
        Sign::Minus => BigInt::from(-1),
        Sign::NoSign => BigInt::ZERO,
        Sign::Plus => BigInt::from(1),
    }
}

/// Returns the number of decimal digits.
fn digits(number: &BigInt) -> i64 {
    i64::try_from(number.magnitude().to_string().len()).unwrap_or(i64::MAX)
}

/// The number modulo 2^64 as a signed 64-bit integer.
fn low_bits(number: &BigInt) -> i64 {
    let low = number.iter_u64_digits().next().unwrap_or(0).cast_signed();
    if number.sign() == Sign::Minus { low.wrapping_neg() } else { low }
}
