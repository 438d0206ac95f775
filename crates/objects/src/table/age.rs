//! Ages for people: [`human_duration`], with upstream's rounding, and the ages of cells.

use serde_json::Value;

use crate::timestamp::Timestamp;

const MINUTE: i64 = 60;
const HOUR: i64 = 60 * MINUTE;
const DAY: i64 = 24 * HOUR;
const YEAR: i64 = 365 * DAY;

/// Renders a duration in one or two units, with two or three digits: `95s`, `4m10s`, `3h`, `5d2h`,
/// `400d`, `3y12d`. Clocks may differ by a second, so a time slightly in the future is `0s`.
#[must_use]
pub fn human_duration(seconds: i64) -> String {
    match seconds {
        ..-1 => "<invalid>".to_owned(),
        -1 => "0s".to_owned(),
        0..120 => format!("{seconds}s"),
        120..600 => pair(seconds, (MINUTE, "m"), (1, "s")),
        600..10_800 => format!("{}m", seconds / MINUTE),
        10_800..28_800 => pair(seconds, (HOUR, "h"), (MINUTE, "m")),
        28_800..172_800 => format!("{}h", seconds / HOUR),
        172_800..691_200 => pair(seconds, (DAY, "d"), (HOUR, "h")),
        691_200..63_072_000 => format!("{}d", seconds / DAY),
        63_072_000..252_288_000 => pair(seconds, (YEAR, "y"), (DAY, "d")),
        _ => format!("{}y", seconds / YEAR),
    }
}

/// Renders the larger unit, and the smaller if it is not zero.
fn pair(seconds: i64, large: (i64, &str), small: (i64, &str)) -> String {
    let (whole, rest) = (seconds / large.0, seconds % large.0 / small.0);
    match rest {
        0 => format!("{whole}{}", large.1),
        rest => format!("{whole}{}{rest}{}", large.1, small.1),
    }
}

/// Returns the age of a time of an object; `<unknown>` if it is absent.
pub(super) fn since(time: &Value, now: Timestamp) -> String {
    match time.as_str().map(Timestamp::parse) {
        Some(Ok(then)) => human_duration(between(then, now)),
        _ => "<unknown>".to_owned(),
    }
}

/// Returns the whole seconds between two times, truncated.
pub(super) fn between(from: Timestamp, to: Timestamp) -> i64 {
    let nanos = i64::from(to.nanos()) - i64::from(from.nanos());
    let seconds = to.seconds().saturating_sub(from.seconds());
    if seconds > 0 && nanos < 0 {
        seconds - 1
    } else if seconds < 0 && nanos > 0 {
        seconds + 1
    } else {
        seconds
    }
}
