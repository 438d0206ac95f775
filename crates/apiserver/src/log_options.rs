//! Checks of the options of `pods/log`.

use objects::cursor::Causes;

use crate::refusal::Refusal;
use crate::request::Call;

pub(crate) fn check(call: &Call) -> Result<(), Refusal> {
    let query = &call.query;
    let mut causes = Causes::default();
    let mut at_least = |field: &str, least: i64, detail: &str| -> Result<Option<i64>, Refusal> {
        let value = query.int(field)?;
        if let Some(value) = value.filter(|value| *value < least) {
            causes.add("FieldValueInvalid", field, format!("Invalid value: {value}: {detail}"));
        }
        Ok(value)
    };
    at_least("tailLines", 0, "must be greater than or equal to 0")?;
    at_least("limitBytes", 1, "must be greater than 0")?;
    let seconds = at_least("sinceSeconds", 1, "must be greater than 0")?;
    if seconds.is_some() && !query.text("sinceTime").is_empty() {
        let message = "Forbidden: at most one of `sinceTime` or `sinceSeconds` may be specified";
        causes.add("FieldValueForbidden", "", message.to_owned());
    }
    match query.text("stream") {
        "" | "All" => {}
        "Stdout" | "Stderr" => {
            if query.get("tailLines").is_some() {
                let message = "Forbidden: `tailLines` and specific `stream` are mutually exclusive for now";
                causes.add("FieldValueForbidden", "", message.to_owned());
            }
        }
        other => {
            let message = format!(
                "Unsupported value: {other:?}: supported values: \"All\", \"Stderr\", \"Stdout\""
            );
            causes.add("FieldValueNotSupported", "stream", message);
        }
    }
    if causes.is_empty() {
        return Ok(());
    }
    Err(Refusal::invalid_kind("", "PodLogOptions", "", &causes))
}
