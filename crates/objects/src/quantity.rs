//! Kubernetes resource quantities: `500m`, `1.5Gi`, `12e6`.
//!
//! Main type: [`Quantity`], an exact decimal that remembers its notation. Parsing, rounding, the
//! integer views and the canonical text follow upstream digit by digit, including its behaviour
//! beyond 64 bits: [`Quantity::value`] wraps or returns zero there. Callers that decide by a
//! quantity use [`Quantity::checked_value`] or [`Quantity::checked_milli_value`], which return
//! `None` instead. The unit of a quantity (CPUs, bytes) is not known here.

use std::cmp::Ordering;
use std::fmt;
use std::str::FromStr;

use serde::de::{self, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use thiserror::Error;

use self::decimal::{Decimal, Small};

mod decimal;
mod parse;

/// The notation of a quantity.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Format {
    /// `12M`: powers of 1,000 with a suffix.
    DecimalSi,
    /// `12Mi`: powers of 1,024 with a suffix.
    BinarySi,
    /// `12e6`: powers of ten as an exponent.
    DecimalExponent,
}

/// A text is not a quantity. The texts are upstream's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum ParseQuantityError {
    #[error(
        "quantities must match the regular expression \
         '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'"
    )]
    Format,
    #[error("unable to parse numeric part of quantity")]
    Numeric,
    #[error("unable to parse quantity's suffix")]
    Suffix,
}

/// The number itself. Upstream keeps most numbers as 64-bit mantissa and exponent and the rest as
/// big decimals. The difference is visible in [`Quantity::as_i64`] and on overflow, so the split is
/// kept here.
#[derive(Debug, Clone)]
enum Amount {
    Small(Small),
    Big(Box<Decimal>),
}

/// An exact resource quantity. Compares by value: `1000m` equals `1`.
#[derive(Clone)]
pub struct Quantity {
    amount: Amount,
    format: Format,
    /// The text as written, kept where upstream keeps it instead of the canonical one.
    text: Option<Box<str>>,
}

impl Quantity {
    /// Parses a quantity.
    pub fn parse(text: &str) -> Result<Quantity, ParseQuantityError> {
        parse::parse(text)
    }

    /// Zero, written `0`.
    #[must_use]
    pub fn zero() -> Quantity {
        Quantity::from_i64(0, Format::DecimalSi)
    }

    /// A whole number.
    #[must_use]
    pub fn from_i64(value: i64, format: Format) -> Quantity {
        Quantity { amount: Amount::Small(Small { value, exponent: 0 }), format, text: None }
    }

    /// A number of milli-units, such as the milli-CPUs of a CPU request.
    #[must_use]
    pub fn from_milli(value: i64) -> Quantity {
        let amount = Amount::Small(Small { value, exponent: -3 });
        Quantity { amount, format: Format::DecimalSi, text: None }
    }

    /// Bytes, written with binary suffixes (`512Mi`).
    #[must_use]
    pub fn from_bytes(bytes: u64) -> Quantity {
        match i64::try_from(bytes) {
            Ok(bytes) => Quantity::from_i64(bytes, Format::BinarySi),
            Err(_) => Quantity {
                amount: Amount::Big(Box::new(Decimal { unscaled: bytes.into(), exponent: 0 })),
                format: Format::BinarySi,
                text: None,
            },
        }
    }

    #[must_use]
    pub fn format(&self) -> Format {
        self.format
    }

    /// Returns the value rounded up to an integer, as upstream computes it: beyond 64 bits the
    /// result is that of upstream's arithmetic. See [`Quantity::checked_value`].
    #[must_use]
    pub fn value(&self) -> i64 {
        self.scaled_value(0)
    }

    /// Returns the value in milli-units, rounded up; beyond 64 bits as upstream computes it. See
    /// [`Quantity::checked_milli_value`].
    #[must_use]
    pub fn milli_value(&self) -> i64 {
        self.scaled_value(-3)
    }

    fn scaled_value(&self, exponent: i32) -> i64 {
        match &self.amount {
            Amount::Small(small) => small.scaled_value(exponent),
            Amount::Big(decimal) => decimal.scaled_value(exponent),
        }
    }

    /// Returns the value rounded up to an integer, or `None` if that needs more than 64 bits.
    #[must_use]
    pub fn checked_value(&self) -> Option<i64> {
        self.decimal().ceil_at(0)
    }

    /// Returns the value in milli-units, rounded up, or `None` if that needs more than 64 bits.
    #[must_use]
    pub fn checked_milli_value(&self) -> Option<i64> {
        self.decimal().ceil_at(-3)
    }

    /// Returns upstream's integer view: `None` for fractions, for values beyond 64 bits, and for
    /// every value that upstream holds as a big decimal or with a negative exponent, whole or not.
    /// `1.5Gi` has none; its canonical form `1536Mi` has.
    #[must_use]
    pub fn as_i64(&self) -> Option<i64> {
        match &self.amount {
            Amount::Small(small) => small.as_i64(),
            Amount::Big(_) => None,
        }
    }

    /// Reports whether a CPU quantity is a whole number of CPUs for the static CPU policy.
    #[must_use]
    pub fn is_whole_cpus(&self) -> bool {
        self.value().wrapping_mul(1000) == self.milli_value()
    }

    #[must_use]
    pub fn is_zero(&self) -> bool {
        self.sign() == 0
    }

    /// −1, 0 or 1.
    #[must_use]
    pub fn sign(&self) -> i32 {
        match &self.amount {
            Amount::Small(small) => small.value.signum() as i32,
            Amount::Big(decimal) => decimal.sign(),
        }
    }

    #[must_use]
    pub fn is_negative(&self) -> bool {
        self.sign() < 0
    }

    /// Rounds away from zero to a milli-unit, as defaulting does with every resource list.
    #[must_use]
    pub fn round_up_to_milli(self) -> Quantity {
        let amount = match &self.amount {
            Amount::Small(small) if small.exponent >= -3 => return self,
            Amount::Small(small) => {
                Amount::Small(Small { value: small.scaled_value(-3), exponent: -3 })
            }
            Amount::Big(decimal) => match decimal.rounded_up(-3) {
                Some(rounded) => Amount::Big(Box::new(rounded)),
                None => return self,
            },
        };
        Quantity { amount, format: self.format, text: None }
    }

    /// Returns the sum, in the notation of `self` (of `other` if `self` is zero). `None` if the
    /// magnitudes differ so much that the sum would need thousands of digits.
    #[must_use]
    pub fn checked_add(&self, other: &Quantity) -> Option<Quantity> {
        self.combine(other, Small::checked_add, Decimal::checked_add)
    }

    /// Returns the difference, in the notation of `self` (of `other` if `self` is zero); `None` as
    /// in [`Quantity::checked_add`]. The result may be negative.
    #[must_use]
    pub fn checked_sub(&self, other: &Quantity) -> Option<Quantity> {
        self.combine(other, Small::checked_sub, Decimal::checked_sub)
    }

    fn combine(
        &self,
        other: &Quantity,
        small: fn(Small, Small) -> Option<Small>,
        big: fn(&Decimal, &Decimal) -> Option<Decimal>,
    ) -> Option<Quantity> {
        let quick = match (&self.amount, &other.amount) {
            (Amount::Small(a), Amount::Small(b)) => small(*a, *b),
            _ => None,
        };
        let amount = match quick {
            Some(sum) => Amount::Small(sum),
            None => Amount::Big(Box::new(big(&self.decimal(), &other.decimal())?)),
        };
        let format = if self.is_zero() { other.format } else { self.format };
        Some(Quantity { amount, format, text: None })
    }

    /// Returns `self` multiplied by `times`, such as the request of all replicas together.
    #[must_use]
    pub fn times(&self, times: u64) -> Quantity {
        let mut product = self.decimal();
        product.unscaled *= times;
        let amount = match i64::try_from(&product.unscaled) {
            Ok(value) => Amount::Small(Small { value, exponent: product.exponent }),
            Err(_) => Amount::Big(Box::new(product)),
        };
        Quantity { amount, format: self.format, text: None }
    }

    fn decimal(&self) -> Decimal {
        match &self.amount {
            Amount::Small(small) => Decimal::from(*small),
            Amount::Big(decimal) => (**decimal).clone(),
        }
    }

    /// Writes the canonical form: no fraction, the largest suffix that loses nothing.
    fn canonical(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_zero() {
            return out.write_str("0");
        }
        let decimal = self.decimal();
        let mut format = self.format;
        if format == Format::BinarySi {
            match decimal.base_1024() {
                Some((mantissa, power)) => {
                    return write!(out, "{mantissa}{}", parse::BINARY_SUFFIXES[power]);
                }
                // A binary suffix would lose the fraction, or would not be shorter: use the decimal
                // form.
                None => format = Format::DecimalSi,
            }
        }
        let (mantissa, exponent) = decimal.base_1000();
        match (format, exponent) {
            (_, 0) => write!(out, "{mantissa}"),
            (Format::DecimalSi, _) => match parse::decimal_suffix(exponent) {
                Some(suffix) => write!(out, "{mantissa}{suffix}"),
                // There is no suffix beyond `E`.
                None => write!(out, "{mantissa}e{exponent}"),
            },
            _ => write!(out, "{mantissa}e{exponent}"),
        }
    }
}

impl fmt::Display for Quantity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.text {
            Some(text) => f.write_str(text),
            None => self.canonical(f),
        }
    }
}

impl fmt::Debug for Quantity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Quantity({self})")
    }
}

impl FromStr for Quantity {
    type Err = ParseQuantityError;

    fn from_str(text: &str) -> Result<Quantity, ParseQuantityError> {
        Quantity::parse(text)
    }
}

impl Default for Quantity {
    fn default() -> Quantity {
        Quantity::zero()
    }
}

impl PartialEq for Quantity {
    fn eq(&self, other: &Quantity) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Quantity {}

impl PartialOrd for Quantity {
    fn partial_cmp(&self, other: &Quantity) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Quantity {
    fn cmp(&self, other: &Quantity) -> Ordering {
        match (&self.amount, &other.amount) {
            (Amount::Small(a), Amount::Small(b)) if a.exponent == b.exponent => {
                a.value.cmp(&b.value)
            }
            _ => self.decimal().compare(&other.decimal()),
        }
    }
}

impl Serialize for Quantity {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Quantity {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Quantity, D::Error> {
        struct QuantityVisitor;

        impl Visitor<'_> for QuantityVisitor {
            type Value = Quantity;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a quantity such as \"500m\", \"2\" or \"1Gi\"")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Quantity, E> {
                Quantity::parse(text.trim()).map_err(E::custom)
            }

            fn visit_i64<E: de::Error>(self, number: i64) -> Result<Quantity, E> {
                self.visit_str(&number.to_string())
            }

            fn visit_u64<E: de::Error>(self, number: u64) -> Result<Quantity, E> {
                self.visit_str(&number.to_string())
            }

            fn visit_f64<E: de::Error>(self, number: f64) -> Result<Quantity, E> {
                self.visit_str(&number.to_string())
            }
        }

        deserializer.deserialize_any(QuantityVisitor)
    }
}

#[cfg(test)]
mod tests;
