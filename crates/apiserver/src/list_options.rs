//! Checks of the options lists and watches share, before anything is read.

use objects::cursor::Causes;

use crate::refusal::Refusal;
use crate::request::Call;

const MATCH: &str = "resourceVersionMatch";

/// Refuses combinations of `resourceVersion`, `resourceVersionMatch`, `continue` and
/// `sendInitialEvents` that contradict each other.
pub(crate) fn check(call: &Call) -> Result<(), Refusal> {
    let query = &call.query;
    let (version, matching, going_on) =
        (query.text("resourceVersion"), query.text(MATCH), query.text("continue"));
    let watch = query.flag("watch");
    let initial = query.get("sendInitialEvents").filter(|value| !value.is_empty());
    let mut causes = Causes::default();
    let forbidden = |causes: &mut Causes, field: &str, detail: &str| {
        causes.add("FieldValueForbidden", field, format!("Forbidden: {detail}"));
    };
    if watch {
        if initial.is_some() && matching.is_empty() {
            let detail = "sendInitialEvents requires setting resourceVersionMatch to NotOlderThan";
            forbidden(&mut causes, MATCH, detail);
        }
        if initial.is_none() && !matching.is_empty() {
            forbidden(&mut causes, MATCH, "resourceVersionMatch is forbidden for watch unless sendInitialEvents is provided");
        }
        if initial.is_some() && !matching.is_empty() && matching != "NotOlderThan" {
            let message = format!(
                "Unsupported value: {matching:?}: supported values: \"NotOlderThan\""
            );
            causes.add("FieldValueNotSupported", MATCH, message);
        }
    } else {
        if initial.is_some() {
            forbidden(&mut causes, "sendInitialEvents", "sendInitialEvents is forbidden for list");
        }
        if !matching.is_empty() {
            if version.is_empty() {
                forbidden(&mut causes, MATCH, "resourceVersionMatch is forbidden unless resourceVersion is provided");
            }
            if !going_on.is_empty() {
                forbidden(&mut causes, MATCH, "resourceVersionMatch is forbidden when continue is provided");
            }
            if !matches!(matching, "Exact" | "NotOlderThan") {
                let message = format!(
                    "Unsupported value: {matching:?}: supported values: \"Exact\", \"NotOlderThan\", \"\""
                );
                causes.add("FieldValueNotSupported", MATCH, message);
            }
            if matching == "Exact" && version == "0" {
                forbidden(&mut causes, MATCH, "resourceVersionMatch \"exact\" is forbidden for resourceVersion \"0\"");
            }
        }
    }
    if !causes.is_empty() {
        return Err(Refusal::invalid_kind("meta.k8s.io", "ListOptions", "", &causes));
    }
    if !going_on.is_empty() && !matches!(version, "" | "0") {
        let message = "specifying resource version is not allowed when using continue";
        return Err(Refusal::bad_request(message));
    }
    Ok(())
}
