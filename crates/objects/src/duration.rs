//! Durations as Kubernetes writes them: `10s`, `1m30s`, `1.5h`. Entry: [`parse`]. Negative
//! durations are rejected, because no setting here takes one. [`fault`] returns Go's message for a
//! text that is not a duration.

use std::time::Duration;

/// The length of a unit in nanoseconds.
fn unit_nanos(unit: &str) -> Option<u64> {
    Some(match unit {
        "ns" => 1,
        "us" | "µs" | "μs" => 1_000,
        "ms" => 1_000_000,
        "s" => 1_000_000_000,
        "m" => 60_000_000_000,
        "h" => 3_600_000_000_000,
        _ => return None,
    })
}

fn is_of_number(c: char) -> bool {
    c.is_ascii_digit() || c == '.'
}

/// Returns Go's message for a text that is not a duration, and `None` for a duration of either sign.
#[must_use]
pub fn fault(text: &str) -> Option<String> {
    let unsigned = text.strip_prefix(['+', '-']).unwrap_or(text);
    if !unsigned.starts_with('+') && parse(unsigned).is_some() {
        return None;
    }
    let mut rest = unsigned;
    while !rest.is_empty() {
        let (number, after) = rest.split_at(rest.find(|c| !is_of_number(c)).unwrap_or(rest.len()));
        if number.trim_matches('.').is_empty() {
            break;
        }
        let (unit, after) = after.split_at(after.find(is_of_number).unwrap_or(after.len()));
        if unit.is_empty() || number.matches('.').count() > 1 {
            return Some(format!("time: missing unit in duration {text:?}"));
        }
        if unit_nanos(unit).is_none() {
            return Some(format!("time: unknown unit {unit:?} in duration {text:?}"));
        }
        rest = after;
    }
    Some(format!("time: invalid duration {text:?}"))
}

/// Reads a duration in Go's notation; `None` if the text is malformed or negative.
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
        let (number, after) = rest.split_at(rest.find(|c| !is_of_number(c))?);
        let (unit, after) = after.split_at(after.find(is_of_number).unwrap_or(after.len()));
        rest = after;
        let nanos = unit_nanos(unit)?;
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

/// Writes a duration in the notation that [`parse`] reads, with natural units.
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

    #[test]
    fn malformed_durations_have_gos_message() {
        for fine in ["1s", "-1s", "+1.5h", "0", "-0", "1h2m3.5s"] {
            assert_eq!(fault(fine), None, "{fine}");
        }
        for (text, expected) in [
            ("", "time: invalid duration \"\""),
            ("invalid", "time: invalid duration \"invalid\""),
            ("-", "time: invalid duration \"-\""),
            ("++1s", "time: invalid duration \"++1s\""),
            (".s", "time: invalid duration \".s\""),
            ("5", "time: missing unit in duration \"5\""),
            ("1.2.3s", "time: missing unit in duration \"1.2.3s\""),
            ("5d", "time: unknown unit \"d\" in duration \"5d\""),
            ("99999999999999999999h", "time: invalid duration \"99999999999999999999h\""),
        ] {
            assert_eq!(fault(text).as_deref(), Some(expected), "{text}");
        }
    }

    proptest! {
        #[test]
        fn no_text_makes_the_reader_panic(text in "[-+0-9a-zµ.]{0,30}") {
            let _ = (parse(&text), fault(&text));
        }

        #[test]
        fn durations_survive_a_round_trip(nanos in any::<u64>()) {
            let duration = Duration::from_nanos(nanos);
            prop_assert_eq!(parse(&render(duration)), Some(duration));
        }
    }
}
