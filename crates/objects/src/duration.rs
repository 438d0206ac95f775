//! Durations as Kubernetes writes them: `10s`, `1m30s`, `1.5h`. Entry: [`parse`]. Negative ones,
//! which the notation allows and no setting here means, are not read.

use std::time::Duration;

/// Reads a duration in Go's notation; `None` if it is none or negative.
#[must_use]
pub fn parse(text: &str) -> Option<Duration> {
    let mut rest = text.strip_prefix('+').unwrap_or(text);
    if rest == "0" {
        return Some(Duration::ZERO);
    }
    if rest.is_empty() {
        return None;
    }
    let mut total = Duration::ZERO;
    while !rest.is_empty() {
        let unit_at = rest.find(|c: char| !c.is_ascii_digit() && c != '.')?;
        let (number, after) = rest.split_at(unit_at);
        let unit_end = after.find(|c: char| c.is_ascii_digit() || c == '.').unwrap_or(after.len());
        let (unit, after) = after.split_at(unit_end);
        rest = after;
        let nanos: u64 = match unit {
            "ns" => 1,
            "us" | "µs" | "μs" => 1_000,
            "ms" => 1_000_000,
            "s" => 1_000_000_000,
            "m" => 60_000_000_000,
            "h" => 3_600_000_000_000,
            _ => return None,
        };
        let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
        if (whole.is_empty() && fraction.is_empty()) || fraction.contains('.') {
            return None;
        }
        let whole: u64 = if whole.is_empty() { 0 } else { whole.parse().ok()? };
        let mut sum = Duration::from_nanos(whole.checked_mul(nanos)?);
        let mut share = nanos;
        for digit in fraction.bytes() {
            share /= 10;
            sum = sum.checked_add(Duration::from_nanos(share * u64::from(digit - b'0')))?;
        }
        total = total.checked_add(sum)?;
    }
    Some(total)
}

/// Writes a duration in the notation [`parse`] reads, with the units a person would use.
#[must_use]
pub fn render(duration: Duration) -> String {
    let seconds = duration.as_secs();
    let nanos = duration.subsec_nanos();
    if nanos != 0 {
        let fraction = format!("{nanos:09}");
        return format!("{seconds}.{}s", fraction.trim_end_matches('0'));
    }
    let (hours, minutes, seconds) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
    let parts = [(hours, "h"), (minutes, "m"), (seconds, "s")];
    let text: String =
        parts.iter().filter(|(n, _)| *n > 0).map(|(n, unit)| format!("{n}{unit}")).collect();
    if text.is_empty() { "0s".to_owned() } else { text }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn gos_notation_is_read_and_nonsense_is_not() {
        let table = [
            ("10s", Some(10_000)),
            ("1m30s", Some(90_000)),
            ("1.5h", Some(5_400_000)),
            ("0", Some(0)),
            ("100ms", Some(100)),
            (".5s", Some(500)),
            ("", None),
            ("10", None),
            ("s", None),
            (".s", None),
            ("1.2.3s", None),
            ("-1s", None),
            ("10 s", None),
            ("1d", None),
            ("99999999999999999999h", None),
        ];
        for (text, millis) in table {
            assert_eq!(parse(text), millis.map(Duration::from_millis), "{text}");
        }
    }

    proptest! {
        #[test]
        fn no_text_makes_the_reader_panic(text in "[-+0-9a-zµ.]{0,30}") {
            let _ = parse(&text);
        }

        #[test]
        fn what_is_written_is_read_back(nanos in any::<u64>()) {
            let duration = Duration::from_nanos(nanos);
            prop_assert_eq!(parse(&render(duration)), Some(duration));
        }
    }
}
