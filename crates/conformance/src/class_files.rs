//! Vectors recorded from goresctrl: files of RDT and block I/O classes on machines, and look-ups of
//! classes. `classes` plays them; here a line is one vector.

use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};

use classes::vectors::quirks::{self, Quirk};
use classes::vectors::{self, Machines};
use serde_json::Value;

use super::{Difference, Outcome, Verdict};

/// The file stems.
pub(super) const KINDS: &[&str] = &["rdt", "rdt_class", "blockio"];

pub(super) fn run(machines: &Machines, stem: &str, line: &Value) -> Outcome {
    let text = |key: &str| line.get(key).and_then(Value::as_str).map(str::to_owned);
    let quirk = text("quirk");
    let kind = match text("kind") {
        Some(kind) => format!("{stem}/{kind}"),
        None => stem.to_owned(),
    };
    let id = text("id").unwrap_or_default();
    // A panic is a failure of that line, not of the run.
    let Ok(comparison) = catch_unwind(AssertUnwindSafe(|| vectors::check(machines, stem, line)))
    else {
        let (what, expected, got) = ("the run".into(), "an answer".into(), "a panic".into());
        let differences = vec![Difference { what, expected, got }];
        return Outcome { kind, id, verdict: Verdict::Failed, quirk, differences };
    };
    let (verdict, differences) = match (comparison.differences, &quirk) {
        (failed, _) if !failed.is_empty() => (Verdict::Failed, failed),
        (_, Some(_)) => (Verdict::DeliberatelyDifferent, comparison.deliberate),
        // Without a quirk, no difference has a reason.
        (_, None) if !comparison.deliberate.is_empty() => (Verdict::Failed, comparison.deliberate),
        (_, None) => (Verdict::Passed, Vec::new()),
    };
    let differences = differences
        .into_iter()
        .map(|of| Difference {
            what: of.what,
            expected: of.expected.to_string(),
            got: of.got.to_string(),
        })
        .collect();
    Outcome { kind, id, verdict, quirk, differences }
}

/// Returns the quirks that lines are marked with, each once.
pub(super) fn reasons<'a>(marks: impl Iterator<Item = &'a str>) -> Vec<&'static Quirk> {
    let names: BTreeSet<&str> = marks.flat_map(|mark| mark.split(',')).collect();
    names.into_iter().filter_map(quirks::find).collect()
}
