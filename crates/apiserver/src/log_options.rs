//! Checks of the options of `pods/log`.

use objects::cursor::Causes;
use objects::timestamp::Timestamp;

use crate::error::ApiError;
use crate::request::Request;

pub(crate) fn check(request: &Request, pod: &str) -> Result<(), ApiError> {
    let query = &request.query;
    let mut causes = Causes::default();
    let mut at_least = |field: &str, least: i64, detail: &str| -> Result<Option<i64>, ApiError> {
        let value = query.int(field)?;
        if let Some(value) = value.filter(|value| *value < least) {
            causes.add("FieldValueInvalid", field, format!("Invalid value: {value}: {detail}"));
        }
        Ok(value)
    };
    at_least("tailLines", 0, "must be greater than or equal to 0")?;
    at_least("limitBytes", 1, "must be greater than 0")?;
    let seconds = at_least("sinceSeconds", 1, "must be greater than 0")?;
    let time = query.text("sinceTime");
    if !matches!(time, "" | "null") && Timestamp::parse(time).is_err() {
        let message = format!(
            "parsing time {time:?} as \"2006-01-02T15:04:05Z07:00\": cannot parse {time:?} as \"2006\""
        );
        return Err(ApiError::bad_request(message));
    }
    if seconds.is_some() && !query.text("sinceTime").is_empty() {
        let message = "Forbidden: at most one of `sinceTime` or `sinceSeconds` may be specified";
        causes.add("FieldValueForbidden", "[]", message.to_owned());
    }
    // Selecting a stream is behind a feature gate that is off.
    if query.get("stream").is_some_and(|stream| !stream.is_empty()) {
        let message = "Forbidden: may not be specified".to_owned();
        causes.add("FieldValueForbidden", "stream", message);
    }
    if causes.is_empty() {
        return Ok(());
    }
    Err(ApiError::invalid_kind("", "PodLogOptions", pod, &causes))
}
