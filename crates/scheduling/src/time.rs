//! Timestamps of API objects. No function here reads the clock.

use objects::timestamp::Timestamp;

/// Milliseconds since 1970.
pub type Milliseconds = i64;

/// Parses an RFC 3339 time; `None` if it is invalid.
pub(crate) fn parse(text: &str) -> Option<Milliseconds> {
    Timestamp::parse(text).ok().map(Timestamp::unix_millis)
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
