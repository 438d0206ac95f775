//! Points in time of the API: [`Timestamp`], seconds and nanoseconds since 1970 in UTC, read and
//! written as RFC 3339. There is no clock here; callers pass the time.

use std::fmt;

/// A point in time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Timestamp {
    seconds: i64,
    nanos: u32,
}

/// The text is not RFC 3339.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("not a time such as 2006-01-02T15:04:05Z")]
pub struct ParseTimestampError;

impl Timestamp {
    /// Nanoseconds above a second are carried over.
    #[must_use]
    pub fn new(seconds: i64, nanos: u32) -> Timestamp {
        let carried = seconds.saturating_add(i64::from(nanos / 1_000_000_000));
        Timestamp { seconds: carried, nanos: nanos % 1_000_000_000 }
    }

    /// Returns the time that a clock shows, which counts from 1970.
    #[must_use]
    pub fn since_epoch(since: std::time::Duration) -> Timestamp {
        let seconds = i64::try_from(since.as_secs()).unwrap_or(i64::MAX);
        Timestamp { seconds, nanos: since.subsec_nanos() }
    }

    /// Seconds since 1970.
    #[must_use]
    pub fn seconds(self) -> i64 {
        self.seconds
    }

    #[must_use]
    pub fn nanos(self) -> u32 {
        self.nanos
    }

    /// Milliseconds since 1970, rounded down.
    #[must_use]
    pub fn unix_millis(self) -> i64 {
        self.seconds.saturating_mul(1000).saturating_add(i64::from(self.nanos / 1_000_000))
    }

    /// Nanoseconds since 1970, as the CRI writes times.
    #[must_use]
    pub fn unix_nanos(self) -> i64 {
        self.seconds.saturating_mul(1_000_000_000).saturating_add(i64::from(self.nanos))
    }

    #[must_use]
    pub fn plus_seconds(self, seconds: i64) -> Timestamp {
        Timestamp { seconds: self.seconds.saturating_add(seconds), ..self }
    }

    /// Reads `2006-01-02T15:04:05Z`, with any fraction and any offset.
    pub fn parse(text: &str) -> Result<Timestamp, ParseTimestampError> {
        let bytes = text.as_bytes();
        let mark = |at: usize, mark: u8| {
            (bytes.get(at) == Some(&mark)).then_some(()).ok_or(ParseTimestampError)
        };
        for (at, byte) in [(4, b'-'), (7, b'-'), (10, b'T'), (13, b':'), (16, b':')] {
            mark(at, byte)?;
        }
        let (year, month, day) = (digits(bytes, 0, 4)?, digits(bytes, 5, 2)?, digits(bytes, 8, 2)?);
        let (hour, minute, second) =
            (digits(bytes, 11, 2)?, digits(bytes, 14, 2)?, digits(bytes, 17, 2)?);
        let in_range = (1..=12).contains(&month)
            && (1..=days_in(year, month)).contains(&day)
            && hour < 24
            && minute < 60
            && second < 60;
        if !in_range {
            return Err(ParseTimestampError);
        }
        let (nanos, zone) = fraction(bytes, 19)?;
        let offset = match bytes.get(zone) {
            Some(b'Z') if bytes.len() == zone + 1 => 0,
            Some(sign @ (b'+' | b'-')) if bytes.len() == zone + 6 => {
                mark(zone + 3, b':')?;
                let (hours, minutes) = (digits(bytes, zone + 1, 2)?, digits(bytes, zone + 4, 2)?);
                if hours > 23 || minutes > 59 {
                    return Err(ParseTimestampError);
                }
                let offset = hours * 3600 + minutes * 60;
                if *sign == b'-' { -offset } else { offset }
            }
            _ => return Err(ParseTimestampError),
        };
        let days = days_from_civil(year, month, day);
        let seconds = days * 86_400 + hour * 3600 + minute * 60 + second - offset;
        Ok(Timestamp { seconds, nanos })
    }

    /// `2006-01-02T15:04:05Z`, for `Time` fields.
    #[must_use]
    pub fn to_seconds_text(self) -> String {
        let (year, month, day) = civil_from_days(self.seconds.div_euclid(86_400));
        let of_day = self.seconds.rem_euclid(86_400);
        let (hour, minute, second) = (of_day / 3600, of_day / 60 % 60, of_day % 60);
        format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z")
    }

    /// `2006-01-02T15:04:05.000000Z`, for `MicroTime` fields.
    #[must_use]
    pub fn to_micros_text(self) -> String {
        let mut text = self.to_seconds_text();
        text.pop();
        format!("{text}.{:06}Z", self.nanos / 1000)
    }
}

impl Timestamp {
    /// `Mon, 02 Jan 2006 15:04:05 GMT`, for HTTP headers.
    #[must_use]
    pub fn to_http_text(self) -> String {
        const DAYS: [&str; 7] = ["Thu", "Fri", "Sat", "Sun", "Mon", "Tue", "Wed"];
        const MONTHS: [&str; 12] =
            ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
        let days = self.seconds.div_euclid(86_400);
        let (year, month, day) = civil_from_days(days);
        let at = |names: &[&'static str], index: i64| {
            usize::try_from(index).ok().and_then(|index| names.get(index)).copied()
        };
        let weekday = at(&DAYS, days.rem_euclid(7)).unwrap_or_default();
        let month = at(&MONTHS, month - 1).unwrap_or_default();
        let of_day = self.seconds.rem_euclid(86_400);
        let (hour, minute, second) = (of_day / 3600, of_day / 60 % 60, of_day % 60);
        format!("{weekday}, {day:02} {month} {year:04} {hour:02}:{minute:02}:{second:02} GMT")
    }
}

impl fmt::Display for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.to_seconds_text())
    }
}

/// Reports whether a `MicroTime` accepts the text: it requires exactly six digits of fraction.
#[must_use]
pub fn is_micro_time(text: &str) -> bool {
    let six = text.get(19..26).is_some_and(|fraction| {
        fraction.starts_with('.') && fraction.bytes().skip(1).all(|b| b.is_ascii_digit())
    });
    six && !text.as_bytes().get(26).is_some_and(u8::is_ascii_digit)
}

fn digits(bytes: &[u8], at: usize, count: usize) -> Result<i64, ParseTimestampError> {
    let text = bytes.get(at..at + count).ok_or(ParseTimestampError)?;
    text.iter().try_fold(0, |sum, byte| match byte {
        b'0'..=b'9' => Ok(sum * 10 + i64::from(byte - b'0')),
        _ => Err(ParseTimestampError),
    })
}

/// Reads the optional fraction, and returns the position of the zone.
fn fraction(bytes: &[u8], at: usize) -> Result<(u32, usize), ParseTimestampError> {
    if bytes.get(at) != Some(&b'.') {
        return Ok((0, at));
    }
    let count = bytes[at + 1..].iter().take_while(|byte| byte.is_ascii_digit()).count();
    if count == 0 {
        return Err(ParseTimestampError);
    }
    let taken = bytes[at + 1..at + 1 + count].iter().copied().chain(std::iter::repeat(b'0'));
    let nanos = taken.take(9).fold(0, |sum, byte| sum * 10 + u32::from(byte - b'0'));
    Ok((nanos, at + 1 + count))
}

fn is_leap(year: i64) -> bool {
    year % 4 == 0 && (year % 100 != 0 || year % 400 == 0)
}

fn days_in(year: i64, month: i64) -> i64 {
    match month {
        2 if is_leap(year) => 29,
        2 => 28,
        4 | 6 | 9 | 11 => 30,
        _ => 31,
    }
}

/// Returns the days since 1970 of a date. Years start in March, so that the leap day is the last of
/// a year.
fn days_from_civil(year: i64, month: i64, day: i64) -> i64 {
    let year = if month <= 2 { year - 1 } else { year };
    let (era, of_era) = (year.div_euclid(400), year.rem_euclid(400));
    let of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    era * 146_097 + of_era * 365 + of_era / 4 - of_era / 100 + of_year - 719_468
}

fn civil_from_days(days: i64) -> (i64, i64, i64) {
    let days = days + 719_468;
    let (era, of_era) = (days.div_euclid(146_097), days.rem_euclid(146_097));
    let year = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year + year / 4 - year / 100);
    let shifted = (5 * of_year + 2) / 153;
    let day = of_year - (153 * shifted + 2) / 5 + 1;
    let month = if shifted < 10 { shifted + 3 } else { shifted - 9 };
    (era * 400 + year + i64::from(month <= 2), month, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_read_and_written_in_utc() {
        for (text, seconds, nanos) in [
            ("1970-01-01T00:00:00Z", 0, 0),
            ("2000-02-29T23:59:59Z", 951_868_799, 0),
            ("2026-11-15T12:00:00.5+02:00", 1_794_736_800, 500_000_000),
            ("1969-12-31T23:59:59Z", -1, 0),
            ("0001-01-01T00:00:00Z", -62_135_596_800, 0),
        ] {
            let read = Timestamp::parse(text).unwrap();
            assert_eq!(read, Timestamp::new(seconds, nanos), "{text}");
        }
        let time = Timestamp::new(951_868_799, 1_234_567);
        assert_eq!(time.unix_millis(), 951_868_799_001);
        assert_eq!(time.unix_nanos(), 951_868_799_001_234_567);
        let since = std::time::Duration::new(951_868_799, 1_234_567);
        assert_eq!(Timestamp::since_epoch(since), time);
        assert_eq!(time.to_seconds_text(), "2000-02-29T23:59:59Z");
        assert_eq!(time.to_micros_text(), "2000-02-29T23:59:59.001234Z");
        assert_eq!(time.to_http_text(), "Tue, 29 Feb 2000 23:59:59 GMT");
    }

    #[test]
    fn every_day_of_a_few_centuries_comes_back() {
        for day in -150_000..150_000 {
            let time = Timestamp::new(day * 86_400 + 3_661, 0);
            assert_eq!(Timestamp::parse(&time.to_seconds_text()), Ok(time));
        }
    }

    #[test]
    fn malformed_times_are_rejected() {
        for text in [
            "",
            "now",
            "2026-02-29T00:00:00Z",
            "2026-13-01T00:00:00Z",
            "2026-01-01T24:00:00Z",
            "2026-01-01 00:00:00Z",
            "2026-01-01T00:00:00",
            "2026-01-01T00:00:00.Z",
            "2026-01-01T00:00:00+1",
            "2026-01-01T00:00:00Zx",
        ] {
            assert_eq!(Timestamp::parse(text), Err(ParseTimestampError), "{text}");
        }
    }
}
