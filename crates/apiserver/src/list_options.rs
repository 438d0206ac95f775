//! Checks of the options that lists and watches share.

use objects::cursor::Causes;

use crate::error::ApiError;
use crate::request::Request;

const MATCH: &str = "resourceVersionMatch";

/// Rejects contradictory combinations of `resourceVersion`, `resourceVersionMatch`, `continue` and
/// `sendInitialEvents`.
pub(crate) fn check(request: &Request) -> Result<(), ApiError> {
    let query = &request.query;
    let (version, mut matching, continue_token) =
        (query.text("resourceVersion"), query.text(MATCH), query.text("continue"));
    let watch = query.flag("watch");
    let mut initial = query.get("sendInitialEvents").is_some();
    query.int("limit")?;
    query.int("timeoutSeconds")?;
    // A watch without a version begins with the current objects.
    if watch && !initial && matching.is_empty() && matches!(version, "" | "0") {
        (initial, matching) = (true, "NotOlderThan");
    }
    let mut causes = Causes::default();
    let forbidden = |causes: &mut Causes, field: &str, detail: &str| {
        causes.add("FieldValueForbidden", field, format!("Forbidden: {detail}"));
    };
    let not_supported = |causes: &mut Causes, supported: &str| {
        let message = format!("Unsupported value: {matching:?}: supported values: {supported}");
        causes.add("FieldValueNotSupported", MATCH, message);
    };
    let match_with_continue = "resourceVersionMatch is forbidden when continue is provided";
    if watch {
        if initial && matching != "NotOlderThan" {
            let detail = "sendInitialEvents requires setting resourceVersionMatch to NotOlderThan";
            forbidden(&mut causes, MATCH, detail);
        }
        if !matching.is_empty() {
            if !initial {
                let detail = "resourceVersionMatch is forbidden for watch unless \
                              sendInitialEvents is provided";
                forbidden(&mut causes, MATCH, detail);
            }
            if matching != "NotOlderThan" {
                not_supported(&mut causes, "\"NotOlderThan\"");
            }
            if !continue_token.is_empty() {
                forbidden(&mut causes, MATCH, match_with_continue);
            }
        }
    } else {
        if !matching.is_empty() {
            if version.is_empty() {
                let detail = "resourceVersionMatch is forbidden unless resourceVersion is provided";
                forbidden(&mut causes, MATCH, detail);
            }
            if !continue_token.is_empty() {
                forbidden(&mut causes, MATCH, match_with_continue);
            }
            if !matches!(matching, "Exact" | "NotOlderThan") {
                not_supported(&mut causes, "\"Exact\", \"NotOlderThan\", \"\"");
            }
            if matching == "Exact" && version == "0" {
                let detail =
                    "resourceVersionMatch \"exact\" is forbidden for resourceVersion \"0\"";
                forbidden(&mut causes, MATCH, detail);
            }
        }
        if initial {
            forbidden(&mut causes, "sendInitialEvents", "sendInitialEvents is forbidden for list");
        }
    }
    if !causes.is_empty() {
        return Err(ApiError::invalid_kind("meta.k8s.io", "ListOptions", "", &causes));
    }
    if !continue_token.is_empty() && !matches!(version, "" | "0") {
        let message = "specifying resource version is not allowed when using continue";
        return Err(ApiError::bad_request(message));
    }
    Ok(())
}
