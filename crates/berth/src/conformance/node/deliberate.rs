//! Where our agent differs from the recorded kubelet on purpose: [`apart`]. Each row is in
//! docs/reference/differences.md with its reason.

use serde_json::Value;

use super::super::Difference;

/// A difference on purpose: how the line's id begins, how the place begins, what of ours has to be in it,
/// and the reason.
const ON_PURPOSE: &[(&str, &str, &str, &str)] = &[];

/// Differences that are mistakes, and those on purpose with their reason.
pub(super) fn apart(
    id: &str,
    differences: Vec<Difference>,
) -> (Vec<Difference>, Vec<(&'static str, Difference)>) {
    let (mut mistakes, mut on_purpose) = (Vec::new(), Vec::new());
    for difference in differences {
        let row = ON_PURPOSE.iter().find(|(line, place, ours, _)| {
            id.starts_with(line) && difference.what.starts_with(place) && difference.got.contains(ours)
        });
        match row {
            Some((_, _, _, reason)) => on_purpose.push((*reason, difference)),
            None => mistakes.push(difference),
        }
    }
    (mistakes, on_purpose)
}

/// Whether a line records a defect of upstream whose right answer is known here.
pub(super) fn quirk_is_answered(line: &Value) -> bool {
    line["quirk"].is_string()
}
