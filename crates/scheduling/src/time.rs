//! Timestamps of API objects. No function here reads the clock.

/// Milliseconds since 1970.
pub type Milliseconds = i64;

/// Parses an RFC 3339 time; `None` if it is invalid.
pub(crate) fn parse(text: &str) -> Option<Milliseconds> {
    let number = |range: std::ops::Range<usize>| text.get(range)?.parse::<i64>().ok();
    let sign = |at: usize, expected: &str| text.get(at..=at).is_some_and(|s| expected.contains(s));
    if !(sign(4, "-") && sign(7, "-") && sign(10, "Tt ") && sign(13, ":") && sign(16, ":")) {
        return None;
    }
    let (year, month, day) = (number(0..4)?, number(5..7)?, number(8..10)?);
    let (hour, minute, second) = (number(11..13)?, number(14..16)?, number(17..19)?);
    let mut rest = text.get(19..)?;
    let mut millis = 0;
    if let Some(fraction) = rest.strip_prefix('.') {
        let digits = fraction.find(|c: char| !c.is_ascii_digit()).unwrap_or(fraction.len());
        let first: String = fraction.chars().take(digits.min(3)).collect();
        millis = format!("{first:0<3}").parse().ok()?;
        rest = fraction.get(digits..)?;
    }
    let offset = match rest {
        "Z" | "z" => 0,
        _ => {
            let away = if rest.starts_with('-') { -1 } else { 1 };
            let hours = rest.get(1..3)?.parse::<i64>().ok()?;
            let minutes = rest.get(4..6)?.parse::<i64>().ok()?;
            away * (hours * 60 + minutes)
        }
    };
    let minutes = (days(year, month, day) * 24 + hour) * 60 + minute - offset;
    Some((minutes * 60 + second) * 1000 + millis)
}

/// Returns the days from 1970-01-01 to a date of the Gregorian calendar.
fn days(year: i64, month: i64, day: i64) -> i64 {
    // Years start in March, so that the leap day is the last day of a year.
    let year = if month <= 2 { year - 1 } else { year };
    let month = (month + 9) % 12;
    let era = year.div_euclid(400);
    let of_era = year - era * 400;
    let of_year = (153 * month + 2) / 5 + day - 1;
    era * 146_097 + of_era * 365 + of_era / 4 - of_era / 100 + of_year - 719_468
}

#[cfg(test)]
mod tests {
    use super::parse;

    #[test]
    fn times_parse_with_fractions_and_offsets() {
        assert_eq!(parse("1970-01-01T00:00:00Z"), Some(0));
        assert_eq!(parse("2026-01-01T00:01:00Z"), Some(1_767_225_660_000));
        assert_eq!(parse("2000-02-29T12:00:00.25Z"), Some(951_825_600_250));
        assert_eq!(parse("2026-01-01T02:01:00+02:00"), parse("2026-01-01T00:01:00Z"));
        assert_eq!(parse("yesterday"), None);
        assert_eq!(parse("2026-01-01"), None);
        assert_eq!(parse(""), None);
    }
}
